//! The state changes of a queue pair from RESET to RTS and back: their attributes and their order.

use crate::connect::ConnectError;
use crate::connect::endpoint::{EndpointError, QueuePairEndpoint, RemoteBuffer, VERSION};
use crate::connect::parameters::{EndpointParameters, LocalPort, mtu_bytes};
use crate::error::{Result, VerbError};
use crate::units::QpNum;
use crate::verbs::{AttributeMask, Device, LinkLayer, Path, QpAttributes, QpState, QpType, QueuePair};

/// The parameters that both sides agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedParameters {
    /// The peer's endpoint.
    pub remote: QueuePairEndpoint,
    /// The path to the peer.
    pub path: Path,
    /// The path MTU, coded as in verbs.h: the smaller value of the two sides.
    pub path_mtu: u8,
    /// Maximum message size in bytes: the smaller value of the two sides. For datagrams at most the path MTU.
    pub max_message: u32,
    /// Maximum number of outstanding reads and atomics as requester.
    pub max_rd_atomic: u8,
}

/// Attributes and their mask, as `ibv_modify_qp(3)` takes them.
pub type QpModification = (QpAttributes, AttributeMask);

/// Performs the state changes of one queue pair of a port. A connector can connect and reset the queue pair any number
/// of times. Use a connector if other code owns the queue pair. [`PreparedQueuePair`] owns its queue pair.
///
/// [`PreparedQueuePair`]: crate::connect::PreparedQueuePair
#[derive(Clone, Debug)]
pub struct Connector {
    device: String,
    kind: QpType,
    parameters: EndpointParameters,
    local: LocalPort,
    queue: u16,
    generation: u32,
    buffer: Option<RemoteBuffer>,
    /// The capacity of the shared receive queue. `None` if the queue pair has its own receive queue.
    shared_depth: Option<u32>,
}

impl EndpointParameters {
    /// Returns the change of a queue pair of type `kind` from RESET to INIT. Unlike the later changes, this change is
    /// possible while the port is down.
    pub fn init(&self, kind: QpType) -> QpModification {
        let (attributes, mask) = QpAttributes::init(kind, self.port, self.qkey);
        (QpAttributes { access: self.access, pkey_index: self.pkey_index, ..attributes }, mask)
    }
}

impl Connector {
    /// Checks the parameters against a device, and creates a connector for queue pairs of type `kind`.
    ///
    /// # Errors
    /// Same as [`EndpointParameters::resolve`].
    pub fn new<D: Device>(device: &D, kind: QpType, parameters: EndpointParameters) -> Result<Self> {
        let local = parameters.resolve(device, kind)?;
        let device = device.name().to_owned();
        Ok(Self { device, kind, parameters, local, queue: 0, generation: 0, buffer: None, shared_depth: None })
    }

    /// Sets the index of the queue on the port (default 0). The peer's queue pair must have the same index.
    #[must_use]
    pub fn queue(mut self, queue: u16) -> Self {
        self.queue = queue;
        self
    }

    /// Adds a buffer that the peer may read or write. The endpoint that is sent to the peer describes the buffer.
    #[must_use]
    pub fn buffer(mut self, buffer: RemoteBuffer) -> Self {
        self.buffer = Some(buffer);
        self
    }

    /// Sets the capacity of the shared receive queue of the queue pair. `None` if the queue pair has its own receive
    /// queue.
    pub(super) fn shared_depth(mut self, depth: Option<u32>) -> Self {
        self.shared_depth = depth;
        self
    }

    /// Returns the name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns how often the queue pair was reset.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the properties of the local port.
    pub fn local(&self) -> &LocalPort {
        &self.local
    }

    /// Returns whether the peer needs the GID of this side. On InfiniBand, the LID is enough if the port does not
    /// require a global route header and the parameters do not select a GID. Programs that exchange addresses like the
    /// programs of rdma-core then send no GID. A [`QueuePairEndpoint`] always contains the GID.
    pub fn needs_gid(&self) -> bool {
        let is_selected = self.parameters.gid.is_some() || self.parameters.gid_index.is_some();
        self.local.link_layer != LinkLayer::InfiniBand || self.local.needs_grh || is_selected
    }

    /// Returns the parameters of this connector.
    pub fn parameters(&self) -> &EndpointParameters {
        &self.parameters
    }

    /// Sets the properties of the local port. Call `set_local` with the result of [`EndpointParameters::resolve`] after
    /// the state or the addresses of the port have changed.
    pub fn set_local(&mut self, local: LocalPort) {
        self.local = local;
    }

    /// Returns the endpoint of a queue pair, to send to the peer.
    pub fn endpoint<Q: QueuePair>(&self, qp: &Q) -> QueuePairEndpoint {
        self.endpoint_for(qp.number(), self.shared_depth.unwrap_or(qp.caps().recv_depth))
    }

    /// Returns the endpoint of the queue pair with number `qpn` and a receive queue of `receive_depth` entries.
    pub fn endpoint_for(&self, qpn: QpNum, receive_depth: u32) -> QueuePairEndpoint {
        let reliable = self.kind == QpType::Rc;
        QueuePairEndpoint {
            version: VERSION,
            transport: self.kind,
            link_layer: self.local.link_layer,
            lid: self.local.lid,
            gid: self.local.gid,
            gid_kind: self.local.gid_kind,
            qpn,
            psn: self.parameters.psn(self.generation),
            path_mtu: self.local.path_mtu,
            max_dest_rd_atomic: if reliable { self.parameters.max_dest_rd_atomic } else { 0 },
            max_message: self.local.max_message,
            qkey: if self.kind == QpType::Ud { self.parameters.qkey } else { 0 },
            generation: self.generation,
            queue: self.queue,
            receive_depth,
            buffer: self.buffer,
        }
    }

    /// Negotiates the parameters with a peer.
    ///
    /// # Errors
    /// The remote endpoint is invalid or does not match (see [`QueuePairEndpoint::check_peer`]), or its initial packet
    /// sequence number is not the number of [`EndpointParameters::expected_psn`].
    pub fn negotiate(
        &self,
        own: &QueuePairEndpoint,
        remote: &QueuePairEndpoint,
    ) -> Result<NegotiatedParameters, EndpointError> {
        remote.check_peer(own, self.parameters.allow_self)?;
        // Datagram queue pairs accept packets from any peer, with any sequence number.
        let expected = self.parameters.expected_psn(remote.generation).filter(|_| self.kind != QpType::Ud);
        if let Some(expected) = expected.filter(|&psn| psn != remote.psn) {
            return Err(EndpointError::UnexpectedPsn { own: expected, peer: remote.psn });
        }
        let parameters = &self.parameters;
        // Both sides must make the same decision, because some devices drop packets whose use of the global route
        // header differs from the path of the queue pair.
        let have_gids = !own.gid.is_zero() && !remote.gid.is_zero();
        let global = self.local.needs_grh || parameters.grh.unwrap_or(have_gids);
        // With a global route header, the GID addresses the peer. Without it, only the local identifier does.
        if global && remote.gid.is_zero() {
            return Err(EndpointError::NoAddress);
        }
        if !global && remote.lid == 0 {
            return Err(EndpointError::NoRoute);
        }
        let path_mtu = self.local.path_mtu.min(remote.path_mtu);
        let most = self.local.max_message.min(remote.max_message);
        let path = Path {
            global,
            gid: remote.gid,
            source_gid_index: self.local.gid_index,
            hop_limit: parameters.hop_limit,
            traffic_class: parameters.traffic_class,
            flow_label: parameters.flow_label,
            dlid: remote.lid,
            service_level: parameters.service_level,
            source_path_bits: parameters.source_path_bits,
            static_rate: parameters.static_rate,
            port: self.local.number,
        };
        Ok(NegotiatedParameters {
            remote: *remote,
            path,
            path_mtu,
            max_message: if self.kind == QpType::Ud { most.min(mtu_bytes(path_mtu)) } else { most },
            max_rd_atomic: parameters.max_rd_atomic.min(remote.max_dest_rd_atomic),
        })
    }

    /// Returns the change from RESET to INIT.
    pub fn init(&self) -> QpModification {
        self.parameters.init(self.kind)
    }

    /// Returns the change from INIT to RTR.
    pub fn rtr(&self, agreed: &NegotiatedParameters) -> QpModification {
        let connection = AttributeMask::AV | AttributeMask::PATH_MTU | AttributeMask::DEST_QPN | AttributeMask::RQ_PSN;
        let reliable = AttributeMask::MAX_DEST_RD_ATOMIC | AttributeMask::MIN_RNR_TIMER;
        let mask = match self.kind {
            QpType::Rc => connection | reliable,
            QpType::Uc => connection,
            _ => AttributeMask::empty(),
        };
        let alternate = self.parameters.alternate.as_ref().filter(|_| !mask.is_empty());
        let mask = if alternate.is_some() { mask | AttributeMask::ALT_PATH } else { mask };
        let attributes = QpAttributes {
            state: QpState::Rtr,
            path: agreed.path,
            alternate_path: alternate.map_or(Path::default(), |it| it.path(&agreed.path)),
            alternate_pkey_index: alternate.map_or(0, |it| it.pkey_index),
            alternate_timeout: alternate.map_or(0, |it| it.timeout),
            path_mtu: agreed.path_mtu,
            dest_qp: agreed.remote.qpn,
            rq_psn: agreed.remote.psn,
            max_dest_rd_atomic: self.parameters.max_dest_rd_atomic,
            min_rnr_timer: self.parameters.min_rnr_timer,
            ..QpAttributes::default()
        };
        (attributes, mask | AttributeMask::STATE)
    }

    /// Returns the change from RTR to RTS.
    pub fn rts(&self, agreed: &NegotiatedParameters) -> QpModification {
        let reliable = AttributeMask::TIMEOUT
            | AttributeMask::RETRY_CNT
            | AttributeMask::RNR_RETRY
            | AttributeMask::MAX_QP_RD_ATOMIC;
        let mask = if self.kind == QpType::Rc { reliable } else { AttributeMask::empty() };
        let migration = self.parameters.path_migration.filter(|_| self.kind != QpType::Ud);
        let mask = if migration.is_some() { mask | AttributeMask::PATH_MIG_STATE } else { mask };
        let attributes = QpAttributes {
            state: QpState::Rts,
            path_migration: migration.map_or(0, |state| state as u8),
            sq_psn: self.parameters.psn(self.generation),
            timeout: self.parameters.timeout,
            retry_count: self.parameters.retry_count,
            rnr_retry: self.parameters.rnr_retry,
            max_rd_atomic: agreed.max_rd_atomic,
            ..QpAttributes::default()
        };
        (attributes, mask | AttributeMask::STATE | AttributeMask::SQ_PSN)
    }

    /// Moves a queue pair from RESET to INIT, so that receives can be posted. Does nothing if the queue pair is in
    /// INIT.
    ///
    /// # Errors
    /// The device returns an error, or the queue pair is in another state.
    pub fn initialise<Q: QueuePair>(&self, qp: &mut Q) -> Result<(), ConnectError> {
        match qp.state() {
            QpState::Init => Ok(()),
            _ => self.change(
                |attributes, mask| qp.modify(attributes, mask),
                "ibv_modify_qp (RESET to INIT)",
                self.init(),
            ),
        }
    }

    /// Connects a queue pair in RESET or INIT with a peer and moves it to RTS.
    ///
    /// # Errors
    /// The remote endpoint is invalid or does not match (the queue pair is then unchanged), or the device returns an
    /// error.
    pub fn connect<Q: QueuePair>(
        &self,
        qp: &mut Q,
        remote: &QueuePairEndpoint,
    ) -> Result<NegotiatedParameters, ConnectError> {
        let agreed = self.negotiate(&self.endpoint(qp), remote)?;
        self.initialise(qp)?;
        self.establish(&agreed, |attributes, mask| qp.modify(attributes, mask))?;
        Ok(agreed)
    }

    /// Moves a queue pair from INIT to RTS with negotiated parameters. `modify` is `ibv_modify_qp(3)` on the queue
    /// pair.
    ///
    /// # Errors
    /// The errors of `modify`.
    pub fn establish(
        &self,
        agreed: &NegotiatedParameters,
        mut modify: impl FnMut(&QpAttributes, AttributeMask) -> Result<(), VerbError>,
    ) -> Result<(), ConnectError> {
        self.change(&mut modify, "ibv_modify_qp (INIT to RTR)", self.rtr(agreed))?;
        self.change(&mut modify, "ibv_modify_qp (RTR to RTS)", self.rts(agreed))
    }

    /// Moves a queue pair from any state back to RESET. Posted work requests are lost. The generation number in the
    /// endpoint is one higher after the reset. Each generation has its own packet sequence numbers, so the queue pair
    /// does not accept delayed packets of the old generation.
    ///
    /// # Errors
    /// The device returns an error.
    pub fn reset<Q: QueuePair>(&mut self, qp: &mut Q) -> Result<(), ConnectError> {
        let change = QpAttributes::to(QpState::Reset);
        self.change(|attributes, mask| qp.modify(attributes, mask), "ibv_modify_qp (to RESET)", change)?;
        self.start_next_generation();
        Ok(())
    }

    /// Starts the next generation, after the owner has reset the queue pair.
    pub fn start_next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn change(
        &self,
        mut modify: impl FnMut(&QpAttributes, AttributeMask) -> Result<(), VerbError>,
        verb: &'static str,
        change: QpModification,
    ) -> Result<(), ConnectError> {
        let failed = |error: VerbError| VerbError { verb, ..error }.on(&self.device).into();
        modify(&change.0, change.1).map_err(failed)
    }
}
