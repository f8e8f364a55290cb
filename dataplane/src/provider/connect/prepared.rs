//! Queue pairs by their stage: prepared, connected.

use crate::error::Result;
use crate::provider::connect::ConnectError;
use crate::provider::connect::connector::{Agreed, Connector};
use crate::provider::connect::endpoint::{QueuePairEndpoint, RemoteBuffer};
use crate::provider::connect::parameters::EndpointParameters;
use crate::provider::{Destination, Device, ProtectionDomain, QpSpec, QpType, QueuePair};

/// A queue pair that has no peer yet.
///
/// [`PreparedQueuePair::endpoint`] is what the peer must know of it, and [`PreparedQueuePair::handshake`] takes it from
/// there to RTS with what the peer has told:
///
/// ```
/// use dataplane::provider::connect::{EndpointParameters, PreparedQueuePair};
/// use dataplane::provider::soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
/// use dataplane::provider::{CqSpec, Device, ProtectionDomain, QpCaps, QpSpec, QpState, QpType, QueuePair};
///
/// let (one, two) = LoopbackLink::pair();
/// let prepare = |name: &str, mac, link| -> dataplane::Result<_> {
///     let device = SoftDevice::new(SoftSpec { mac, ..SoftSpec::new(name, LinkSpec::Loopback(link)) })?;
///     let failed = |error: dataplane::error::VerbError| error.on(name);
///     let pd = device.alloc_pd().map_err(failed)?;
///     let (cq, _) = device.create_cq(&CqSpec { depth: 16, ..CqSpec::default() }, None).map_err(failed)?;
///     let caps = QpCaps { send_depth: 8, recv_depth: 8, send_sges: 1, recv_sges: 1, inline: 0 };
///     let spec = QpSpec::new(QpType::Rc, caps);
///     let prepared =
///         PreparedQueuePair::new(&device, &pd, &spec, (&cq, &cq), None, EndpointParameters::default())?;
///     Ok((prepared, cq))
/// };
/// let (host1, _cq1) = prepare("one", [2, 0, 0, 0, 0, 1], one)?;
/// let (host2, _cq2) = prepare("two", [2, 0, 0, 0, 0, 2], two)?;
/// // Each host sends its endpoint to the other by whatever way.
/// let (host1end, host2end) = (host1.endpoint(), host2.endpoint());
/// let connected = host1.handshake(&host2end)?;
/// host2.handshake(&host1end)?;
/// assert_eq!(connected.queue_pair().state(), QpState::Rts);
/// # Ok::<(), dataplane::Error>(())
/// ```
#[derive(Debug)]
pub struct PreparedQueuePair<P: ProtectionDomain> {
    connector: Connector,
    pd: P,
    qp: P::Qp,
}

/// A queue pair in RTS, and what it has agreed on with its peer.
#[derive(Debug)]
pub struct ConnectedQueuePair<P: ProtectionDomain> {
    connector: Connector,
    pd: P,
    qp: P::Qp,
    agreed: Agreed,
    handle: Option<P::Ah>,
}

impl<P: ProtectionDomain> PreparedQueuePair<P> {
    /// Makes a queue pair that reports to the completion queues for sends and for receives, and checks the parameters
    /// against the device.
    ///
    /// # Errors
    /// The device cannot do it so: see [`EndpointParameters::resolve`]. No queue pair is to be had.
    pub fn new<D: Device<Pd = P, Cq = P::Cq>>(
        device: &D,
        pd: &P,
        spec: &QpSpec,
        (send, recv): (&P::Cq, &P::Cq),
        srq: Option<&P::Srq>,
        parameters: EndpointParameters,
    ) -> Result<Self> {
        let connector = Connector::new(device, spec.kind, parameters)?;
        let qp = pd.create_qp(spec, send, recv, srq).map_err(|error| error.on(device.name()))?;
        Ok(Self { connector, pd: pd.clone(), qp })
    }

    /// The same as another queue of the port than the first: the peer's must have the same number.
    #[must_use]
    pub fn queue(mut self, queue: u16) -> Self {
        self.connector = self.connector.queue(queue);
        self
    }

    /// The same with memory that the peer is told of.
    #[must_use]
    pub fn buffer(mut self, buffer: RemoteBuffer) -> Self {
        self.connector = self.connector.buffer(buffer);
        self
    }

    /// What the peer must know.
    pub fn endpoint(&self) -> QueuePairEndpoint {
        self.connector.endpoint(&self.qp)
    }

    /// The queue pair: to say what its slots are, and to post receives once it is initialised.
    pub fn queue_pair(&mut self) -> &mut P::Qp {
        &mut self.qp
    }

    /// Goes to INIT, so that receives can be posted before the peer hears of this queue pair. It may be left out:
    /// [`PreparedQueuePair::handshake`] does it too.
    ///
    /// # Errors
    /// The device refuses.
    pub fn initialise(&mut self) -> Result<(), ConnectError> {
        self.connector.initialise(&mut self.qp)
    }

    /// Goes to RTS, with this peer. A queue pair of datagrams sends its runs there from now on.
    ///
    /// # Errors
    /// It cannot be the peer: see [`QueuePairEndpoint::check_peer`]. The device refuses. The queue pair is then gone.
    pub fn handshake(mut self, remote: &QueuePairEndpoint) -> Result<ConnectedQueuePair<P>, ConnectError> {
        let agreed = self.connector.connect(&mut self.qp, remote)?;
        let mut handle = None;
        if self.qp.kind() == QpType::Ud {
            let failed = |error: crate::error::VerbError| error.on(self.connector.device());
            let ah = self.pd.create_ah(&agreed.path).map_err(failed)?;
            let to = Destination { ah: &ah, qp: remote.qpn, qkey: remote.qkey };
            self.qp.bind_peer(to).map_err(failed)?;
            handle = Some(ah);
        }
        Ok(ConnectedQueuePair { connector: self.connector, pd: self.pd, qp: self.qp, agreed, handle })
    }
}

impl<P: ProtectionDomain> ConnectedQueuePair<P> {
    /// The queue pair.
    pub fn queue_pair(&self) -> &P::Qp {
        &self.qp
    }

    /// The queue pair, to post to.
    pub fn queue_pair_mut(&mut self) -> &mut P::Qp {
        &mut self.qp
    }

    /// What it has agreed on with its peer.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Where datagrams to the peer go; none of a connection.
    pub fn destination(&self) -> Option<Destination<'_, P::Ah>> {
        let remote = &self.agreed.remote;
        self.handle.as_ref().map(|ah| Destination { ah, qp: remote.qpn, qkey: remote.qkey })
    }

    /// Goes back to RESET, to be connected anew with other packet numbers: to this peer, whose endpoint is another by
    /// then, or to another. What was posted is lost.
    ///
    /// # Errors
    /// The device refuses.
    pub fn reset(mut self) -> Result<PreparedQueuePair<P>, ConnectError> {
        self.connector.reset(&mut self.qp)?;
        Ok(PreparedQueuePair { connector: self.connector, pd: self.pd, qp: self.qp })
    }

    /// The queue pair alone, and what can reset and connect it again.
    pub fn into_parts(self) -> (P::Qp, Connector, Agreed) {
        (self.qp, self.connector, self.agreed)
    }
}

/// Connects two queue pairs of one process with each other.
///
/// # Errors
/// As [`PreparedQueuePair::handshake`]; both are then gone.
pub fn join<A: ProtectionDomain, B: ProtectionDomain>(
    one: PreparedQueuePair<A>,
    other: PreparedQueuePair<B>,
) -> Result<(ConnectedQueuePair<A>, ConnectedQueuePair<B>), ConnectError> {
    let (first, second) = (one.endpoint(), other.endpoint());
    Ok((one.handshake(&second)?, other.handshake(&first)?))
}
