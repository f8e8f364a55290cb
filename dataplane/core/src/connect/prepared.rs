//! Two types for the states of a queue pair: prepared (no peer yet) and connected. A program can therefore not use a
//! queue pair in the wrong state.

use crate::connect::ConnectError;
use crate::connect::connector::{Connector, NegotiatedParameters};
use crate::connect::endpoint::{QueuePairEndpoint, RemoteBuffer};
use crate::connect::parameters::EndpointParameters;
use crate::error::Result;
use crate::verbs::{Destination, Device, ProtectionDomain, QpSpec, QpType, QueuePair, SharedReceiveQueue};

/// A queue pair without a peer.
///
/// [`PreparedQueuePair::endpoint`] returns the endpoint to send to the peer. [`PreparedQueuePair::connect`] takes the
/// peer's endpoint and moves the queue pair to RTS:
///
/// ```
/// use dataplane_core::connect::{EndpointParameters, PreparedQueuePair};
/// use dataplane_soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
/// use dataplane_core::verbs::{CqSpec, Device, ProtectionDomain, QpCaps, QpSpec, QpState, QpType, QueuePair};
///
/// let (one, two) = LoopbackLink::pair();
/// let prepare = |name: &str, mac, link| -> dataplane_core::Result<_> {
///     let device = SoftDevice::new(SoftSpec { mac, ..SoftSpec::new(name, LinkSpec::Loopback(link)) })?;
///     let failed = |error: dataplane_core::error::VerbError| error.on(name);
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
/// // Each host sends its endpoint to the other host, by any transport.
/// let (host1end, host2end) = (host1.endpoint(), host2.endpoint());
/// let connected = host1.connect(&host2end)?;
/// host2.connect(&host1end)?;
/// assert_eq!(connected.queue_pair().state(), QpState::Rts);
/// # Ok::<(), dataplane_core::Error>(())
/// ```
#[derive(Debug)]
pub struct PreparedQueuePair<P: ProtectionDomain> {
    connector: Connector,
    pd: P,
    qp: P::Qp,
}

/// A queue pair in RTS, with the parameters that were negotiated with its peer.
#[derive(Debug)]
pub struct ConnectedQueuePair<P: ProtectionDomain> {
    connector: Connector,
    pd: P,
    qp: P::Qp,
    agreed: NegotiatedParameters,
    handle: Option<P::Ah>,
}

impl<P: ProtectionDomain> PreparedQueuePair<P> {
    /// Creates a queue pair that uses the given completion queues for sends and receives. Checks the parameters against
    /// the device first.
    ///
    /// # Errors
    /// The device does not support the parameters (see [`EndpointParameters::resolve`]), or the device cannot create
    /// the queue pair.
    pub fn new<D: Device<Pd = P, Cq = P::Cq>>(
        device: &D,
        pd: &P,
        spec: &QpSpec,
        (send, recv): (&P::Cq, &P::Cq),
        srq: Option<&P::Srq>,
        parameters: EndpointParameters,
    ) -> Result<Self> {
        let connector = Connector::new(device, spec.kind, parameters)?.shared_depth(srq.map(SharedReceiveQueue::depth));
        let qp = pd.create_qp(spec, send, recv, srq).map_err(|error| error.on(device.name()))?;
        Ok(Self { connector, pd: pd.clone(), qp })
    }

    /// Sets the index of this queue pair among the queue pairs of the port (default 0). The peer's queue pair must have
    /// the same index.
    #[must_use]
    pub fn queue(mut self, queue: u16) -> Self {
        self.connector = self.connector.queue(queue);
        self
    }

    /// Adds memory to the endpoint that the peer receives.
    #[must_use]
    pub fn buffer(mut self, buffer: RemoteBuffer) -> Self {
        self.connector = self.connector.buffer(buffer);
        self
    }

    /// Returns the endpoint to send to the peer.
    pub fn endpoint(&self) -> QueuePairEndpoint {
        self.connector.endpoint(&self.qp)
    }

    /// Returns the queue pair, to set its slot layout and to post receives after [`PreparedQueuePair::initialise`].
    pub fn queue_pair_mut(&mut self) -> &mut P::Qp {
        &mut self.qp
    }

    /// Moves the queue pair to INIT, so that receives can be posted before the peer knows this queue pair. The call is
    /// optional, because [`PreparedQueuePair::connect`] also moves the queue pair to INIT.
    ///
    /// # Errors
    /// The device returns an error.
    pub fn initialise(&mut self) -> Result<(), ConnectError> {
        self.connector.initialise(&mut self.qp)
    }

    /// Connects the queue pair with the peer and moves it to RTS. After the handshake, [`QueuePair::post_send_run`] of
    /// a datagram queue pair sends to this peer.
    ///
    /// # Errors
    /// The endpoint is not acceptable as the peer (see [`QueuePairEndpoint::check_peer`]), or the device returns an
    /// error. The queue pair is destroyed in both cases.
    pub fn connect(mut self, remote: &QueuePairEndpoint) -> Result<ConnectedQueuePair<P>, ConnectError> {
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
    /// Returns the queue pair.
    pub fn queue_pair(&self) -> &P::Qp {
        &self.qp
    }

    /// Returns the queue pair, to post work requests.
    pub fn queue_pair_mut(&mut self) -> &mut P::Qp {
        &mut self.qp
    }

    /// Returns the parameters that were negotiated with the peer.
    pub fn negotiated(&self) -> &NegotiatedParameters {
        &self.agreed
    }

    /// Returns the destination of datagrams to the peer. `None` for a connection.
    pub fn destination(&self) -> Option<Destination<'_, P::Ah>> {
        let remote = &self.agreed.remote;
        self.handle.as_ref().map(|ah| Destination { ah, qp: remote.qpn, qkey: remote.qkey })
    }

    /// Moves the queue pair back to RESET, so that it can be connected again with new packet numbers. The next
    /// handshake needs a new endpoint of the same peer, or the endpoint of another peer. Posted work requests are lost.
    ///
    /// On some devices, such as irdma, a queue pair never leaves ERR. The reset or the next handshake then returns an
    /// error, and the program must create another queue pair.
    ///
    /// # Errors
    /// The device returns an error.
    pub fn reset(mut self) -> Result<PreparedQueuePair<P>, ConnectError> {
        self.connector.reset(&mut self.qp)?;
        Ok(PreparedQueuePair { connector: self.connector, pd: self.pd, qp: self.qp })
    }

    /// Returns the queue pair, the connector that can reset and reconnect it, and the negotiated parameters.
    pub fn into_parts(self) -> (P::Qp, Connector, NegotiatedParameters) {
        (self.qp, self.connector, self.agreed)
    }
}

/// Connects two queue pairs of the same process with each other.
///
/// # Errors
/// Same as [`PreparedQueuePair::connect`]. On an error, both queue pairs are destroyed.
pub fn connect_pair<A: ProtectionDomain, B: ProtectionDomain>(
    one: PreparedQueuePair<A>,
    other: PreparedQueuePair<B>,
) -> Result<(ConnectedQueuePair<A>, ConnectedQueuePair<B>), ConnectError> {
    let (first, second) = (one.endpoint(), other.endpoint());
    Ok((one.connect(&second)?, other.connect(&first)?))
}
