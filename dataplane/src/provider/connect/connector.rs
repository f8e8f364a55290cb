//! The way of a queue pair from RESET to RTS and back: which attributes it takes, and in what order.

use crate::error::{Result, VerbError};
use crate::provider::connect::ConnectError;
use crate::provider::connect::endpoint::{EndpointError, QueuePairEndpoint, RemoteBuffer, VERSION};
use crate::provider::connect::parameters::{EndpointParameters, LocalPort, mtu_bytes};
use crate::provider::{AttributeMask, Device, LinkLayer, Path, QpAttributes, QpState, QpType, QueuePair};
use crate::units::QpNum;

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The peer.
    pub remote: QueuePairEndpoint,
    /// The way there.
    pub path: Path,
    /// The largest payload of a packet, as verbs.h numbers it: the smaller of both sides.
    pub path_mtu: u8,
    /// The largest message in bytes: the smaller of both sides; of datagrams what a packet carries.
    pub max_message: u32,
    /// Reads and atomics that may be under way, as requester.
    pub max_rd_atomic: u8,
}

/// An attribute set and its mask, as `ibv_modify_qp(3)` takes them.
pub type Change = (QpAttributes, AttributeMask);

/// Takes the queue pairs of one place through their states, anew as often as it must be: what a [`PreparedQueuePair`]
/// does by consuming itself, for who owns the queue pair otherwise.
///
/// [`PreparedQueuePair`]: crate::provider::connect::PreparedQueuePair
#[derive(Clone, Debug)]
pub struct Connector {
    device: String,
    kind: QpType,
    parameters: EndpointParameters,
    local: LocalPort,
    queue: u16,
    generation: u32,
    buffer: Option<RemoteBuffer>,
}

impl Connector {
    /// Checks the parameters against a device, for queue pairs of this type.
    ///
    /// # Errors
    /// As [`EndpointParameters::resolve`].
    pub fn new<D: Device>(device: &D, kind: QpType, parameters: EndpointParameters) -> Result<Self> {
        let local = parameters.resolve(device, kind)?;
        let device = device.name().to_owned();
        Ok(Self { device, kind, parameters, local, queue: 0, generation: 0, buffer: None })
    }

    /// The same for another queue of the port: the peer's must have the same number.
    #[must_use]
    pub fn queue(mut self, queue: u16) -> Self {
        self.queue = queue;
        self
    }

    /// The same with memory that the peer is told of.
    #[must_use]
    pub fn buffer(mut self, buffer: RemoteBuffer) -> Self {
        self.buffer = Some(buffer);
        self
    }

    /// The name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// How often the queue pair was reset.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// What the device's port brings.
    pub fn local(&self) -> &LocalPort {
        &self.local
    }

    /// What it was made with.
    pub fn parameters(&self) -> &EndpointParameters {
        &self.parameters
    }

    /// Looks again at what the port brings: after its state or its addresses have changed.
    ///
    /// # Errors
    /// As [`EndpointParameters::resolve`]; nothing has changed then.
    pub fn refresh<D: Device>(&mut self, device: &D) -> Result<()> {
        self.local = self.parameters.resolve(device, self.kind)?;
        Ok(())
    }

    /// What the peer must know of a queue pair.
    pub fn endpoint<Q: QueuePair>(&self, qp: &Q) -> QueuePairEndpoint {
        self.describe(qp.number(), qp.caps().recv_depth)
    }

    /// What the peer must know of the queue pair of this number, with room for so many receives.
    pub fn describe(&self, qpn: QpNum, receive_depth: u32) -> QueuePairEndpoint {
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

    /// What comes of a peer, if it can be one.
    ///
    /// # Errors
    /// It cannot: see [`QueuePairEndpoint::check_peer`]; or its first packet is not that of `rq_psn`.
    pub fn agree(&self, own: &QueuePairEndpoint, remote: &QueuePairEndpoint) -> Result<Agreed, EndpointError> {
        remote.check_peer(own, self.parameters.allow_self)?;
        // Of datagrams the packets of any peer come in, whatever their numbers.
        if let Some(expected) = self.parameters.rq_psn.filter(|&psn| psn != remote.psn && self.kind != QpType::Ud) {
            return Err(EndpointError::Expected { own: expected, peer: remote.psn });
        }
        let parameters = &self.parameters;
        let ethernet = self.local.link_layer == LinkLayer::Ethernet;
        let global = ethernet || parameters.grh.unwrap_or(!remote.gid.is_zero());
        // Without a header for the address the local identifier is all there is.
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
        Ok(Agreed {
            remote: *remote,
            path,
            path_mtu,
            max_message: if self.kind == QpType::Ud { most.min(mtu_bytes(path_mtu)) } else { most },
            max_rd_atomic: parameters.max_rd_atomic.min(remote.max_dest_rd_atomic),
        })
    }

    /// RESET to INIT.
    pub fn init(&self) -> Change {
        let (attributes, mask) = QpAttributes::init(self.kind, self.local.number, self.parameters.qkey);
        let access = self.parameters.access;
        (QpAttributes { access, pkey_index: self.parameters.pkey_index, ..attributes }, mask)
    }

    /// INIT to RTR.
    pub fn rtr(&self, agreed: &Agreed) -> Change {
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

    /// RTR to RTS.
    pub fn rts(&self, agreed: &Agreed) -> Change {
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

    /// Takes a queue pair from RESET to INIT, where receives can be posted. One that is there stays.
    ///
    /// # Errors
    /// The device refuses, or the queue pair is in another state.
    pub fn initialise<Q: QueuePair>(&self, qp: &mut Q) -> Result<(), ConnectError> {
        match qp.state() {
            QpState::Init => Ok(()),
            _ => self.change(qp, "ibv_modify_qp (RESET to INIT)", self.init()),
        }
    }

    /// Takes a queue pair from RESET or INIT to RTS, with this peer.
    ///
    /// # Errors
    /// It cannot be the peer: the queue pair is as it was. The device refuses.
    pub fn connect<Q: QueuePair>(&self, qp: &mut Q, remote: &QueuePairEndpoint) -> Result<Agreed, ConnectError> {
        let agreed = self.agree(&self.endpoint(qp), remote)?;
        self.initialise(qp)?;
        self.change(qp, "ibv_modify_qp (INIT to RTR)", self.rtr(&agreed))?;
        self.change(qp, "ibv_modify_qp (RTR to RTS)", self.rts(&agreed))?;
        Ok(agreed)
    }

    /// Takes a queue pair back to RESET from whatever state. What was posted is lost, and the next endpoint is of the next
    /// generation: what of the last is still under way is told apart.
    ///
    /// # Errors
    /// The device refuses.
    pub fn reset<Q: QueuePair>(&mut self, qp: &mut Q) -> Result<(), ConnectError> {
        self.change(qp, "ibv_modify_qp (to RESET)", QpAttributes::to(QpState::Reset))?;
        self.renew();
        Ok(())
    }

    /// The queue pair was reset by its owner: the next generation begins.
    pub fn renew(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    fn change<Q: QueuePair>(&self, qp: &mut Q, verb: &'static str, change: Change) -> Result<(), ConnectError> {
        let failed = |error: VerbError| VerbError { verb, ..error }.on(&self.device).into();
        qp.modify(&change.0, change.1).map_err(failed)
    }
}
