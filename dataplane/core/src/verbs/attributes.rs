//! Types, states and attributes of queue pairs, and the attributes that each state transition requires.

use std::fmt;

use bitflags::bitflags;

use crate::units::{Gid, QpNum};
use crate::verbs::Access;
use crate::verbs::code::codes;

codes! {
    /// The type of a queue pair: `enum ibv_qp_type`.
    QpType {
        /// Messages between two queue pairs, in order and acknowledged.
        Rc = 2 "IBV_QPT_RC",
        /// Messages between two queue pairs, in order and not acknowledged.
        Uc = 3 "IBV_QPT_UC",
        /// Datagrams to any queue pair.
        Ud = 4 "IBV_QPT_UD",
        /// Whole Ethernet frames.
        RawPacket = 8 "IBV_QPT_RAW_PACKET",
        /// The sending half of an extended reliable connection.
        XrcSend = 9 "IBV_QPT_XRC_SEND",
        /// The receiving half of an extended reliable connection.
        XrcRecv = 10 "IBV_QPT_XRC_RECV",
        /// Defined by the driver.
        Driver = 255 "IBV_QPT_DRIVER",
    }
}

codes! {
    /// The state of a queue pair: `enum ibv_qp_state`.
    QpState {
        /// The initial state: nothing may be posted.
        Reset = 0 "IBV_QPS_RESET",
        /// Receives may be posted, but are not processed.
        Init = 1 "IBV_QPS_INIT",
        /// Receives are processed.
        Rtr = 2 "IBV_QPS_RTR",
        /// Receives and sends are processed.
        Rts = 3 "IBV_QPS_RTS",
        /// Sends may be posted, but no new send is started.
        Sqd = 4 "IBV_QPS_SQD",
        /// A send failed: sends are flushed, and receives are still processed.
        Sqe = 5 "IBV_QPS_SQE",
        /// The queue pair failed: all requests are flushed.
        Err = 6 "IBV_QPS_ERR",
    }
}

bitflags! {
    /// The attributes that a call of `ibv_modify_qp(3)` sets: `enum ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AttributeMask: u32 {
        /// [`QpAttributes::state`].
        const STATE = 1;
        /// [`QpAttributes::current_state`].
        const CUR_STATE = 1 << 1;
        /// [`QpAttributes::notify_drained`].
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// [`QpAttributes::access`].
        const ACCESS_FLAGS = 1 << 3;
        /// [`QpAttributes::pkey_index`].
        const PKEY_INDEX = 1 << 4;
        /// [`QpAttributes::port`].
        const PORT = 1 << 5;
        /// [`QpAttributes::qkey`].
        const QKEY = 1 << 6;
        /// [`QpAttributes::path`].
        const AV = 1 << 7;
        /// [`QpAttributes::path_mtu`].
        const PATH_MTU = 1 << 8;
        /// [`QpAttributes::timeout`].
        const TIMEOUT = 1 << 9;
        /// [`QpAttributes::retry_count`].
        const RETRY_CNT = 1 << 10;
        /// [`QpAttributes::rnr_retry`].
        const RNR_RETRY = 1 << 11;
        /// [`QpAttributes::rq_psn`].
        const RQ_PSN = 1 << 12;
        /// [`QpAttributes::max_rd_atomic`]: as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// [`QpAttributes::alternate_path`], [`QpAttributes::alternate_pkey_index`],
        /// [`QpAttributes::alternate_timeout`].
        const ALT_PATH = 1 << 14;
        /// [`QpAttributes::min_rnr_timer`].
        const MIN_RNR_TIMER = 1 << 15;
        /// [`QpAttributes::sq_psn`].
        const SQ_PSN = 1 << 16;
        /// [`QpAttributes::max_dest_rd_atomic`]: as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// [`QpAttributes::path_migration`].
        const PATH_MIG_STATE = 1 << 18;
        /// The sizes of the queues. No device of this project supports changing them.
        const CAP = 1 << 19;
        /// [`QpAttributes::dest_qp`].
        const DEST_QPN = 1 << 20;
        /// [`QpAttributes::rate_limit`].
        const RATE_LIMIT = 1 << 25;
    }
}

/// The path to a peer: `struct ibv_ah_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Whether packets carry a global route header (GRH). On RoCE, packets always carry a GRH.
    pub global: bool,
    /// The peer's address; only for global paths.
    pub gid: Gid,
    /// The index of the source address in the local port's GID table; only for global paths.
    pub source_gid_index: u8,
    /// The hop limit; only for global paths.
    pub hop_limit: u8,
    /// The traffic class; only for global paths.
    pub traffic_class: u8,
    /// The flow label, 20 bits; only for global paths.
    pub flow_label: u32,
    /// The peer's local identifier (LID); 0 on RoCE.
    pub dlid: u16,
    /// The service level.
    pub service_level: u8,
    /// The low bits of the source's local identifier (LID), which select a path.
    pub source_path_bits: u8,
    /// The maximum rate, encoded as in `enum ibv_rate`; 0: no limit.
    pub static_rate: u8,
    /// The number of the local port. The first port has the number 1.
    pub port: u8,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            global: true,
            gid: Gid::default(),
            source_gid_index: 0,
            hop_limit: 0xff,
            traffic_class: 0,
            flow_label: 0,
            dlid: 0,
            service_level: 0,
            source_path_bits: 0,
            static_rate: 0,
            port: 1,
        }
    }
}

/// The attributes of a queue pair: `struct ibv_qp_attr`. Only the attributes in the mask are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// The new state.
    pub state: QpState,
    /// The assumed current state.
    pub current_state: QpState,
    /// Whether the transition to SQD raises an event when the queue is drained.
    pub notify_drained: bool,
    /// The operations that the peer may perform.
    pub access: Access,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The number of the port. The first port has the number 1.
    pub port: u8,
    /// The Q_Key that a datagram must carry to be accepted.
    pub qkey: u32,
    /// The path to the peer.
    pub path: Path,
    /// The alternate path to the peer, which includes the alternate port.
    pub alternate_path: Path,
    /// The index of the partition key of the alternate path.
    pub alternate_pkey_index: u16,
    /// The timeout of the alternate path, encoded like `timeout`.
    pub alternate_timeout: u8,
    /// The state of path migration, encoded as in verbs.h.
    pub path_migration: u8,
    /// The path MTU, encoded as in verbs.h: 1 to 5 for a payload of 256 to 4,096 bytes.
    pub path_mtu: u8,
    /// The number of the peer's queue pair.
    pub dest_qp: QpNum,
    /// The packet sequence number (PSN) of the first received packet; 24 bits.
    pub rq_psn: u32,
    /// The packet sequence number (PSN) of the first sent packet; 24 bits.
    pub sq_psn: u32,
    /// The maximum number of outstanding reads and atomics as requester.
    pub max_rd_atomic: u8,
    /// The maximum number of outstanding reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// The time that the peer waits before a retry if this queue pair had no receive posted, encoded as in verbs.h.
    pub min_rnr_timer: u8,
    /// The time to wait for an acknowledgement before a retry: 4.096 µs × 2^`timeout`; 0: wait indefinitely.
    pub timeout: u8,
    /// The maximum number of retries if no acknowledgement arrives.
    pub retry_count: u8,
    /// The maximum number of retries while the peer has no receive posted; 7: retry indefinitely.
    pub rnr_retry: u8,
    /// The maximum rate in kbit/s; 0: no limit.
    pub rate_limit: u32,
}

impl Default for QpAttributes {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            current_state: QpState::Reset,
            notify_drained: false,
            access: Access::empty(),
            pkey_index: 0,
            port: 1,
            qkey: 0,
            path: Path::default(),
            alternate_path: Path::default(),
            alternate_pkey_index: 0,
            alternate_timeout: 0,
            path_migration: 0,
            path_mtu: 3,
            dest_qp: QpNum(0),
            rq_psn: 0,
            sq_psn: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            rate_limit: 0,
        }
    }
}

impl QpAttributes {
    /// Returns the attributes that change only the state. These attributes are sufficient for the transitions to RESET,
    /// ERR and SQD. For raw packets, they are also sufficient for the transitions to RTR and RTS.
    pub fn to(state: QpState) -> (Self, AttributeMask) {
        (Self { state, ..Self::default() }, AttributeMask::STATE)
    }

    /// Returns the attributes for RESET to INIT. Datagram queue pairs get the Q_Key `qkey`. Connections grant the peer
    /// no access.
    pub fn init(kind: QpType, port: u8, qkey: u32) -> (Self, AttributeMask) {
        let attributes = Self { state: QpState::Init, port, qkey, ..Self::default() };
        (attributes, AttributeMask::STATE | rule(kind, QpState::Reset, QpState::Init).map_or(PORT, |rule| rule.0))
    }

    /// Returns the attributes for INIT to RTR of a raw packet or datagram queue pair.
    pub fn rtr() -> (Self, AttributeMask) {
        Self::to(QpState::Rtr)
    }

    /// Returns the attributes for RTR to RTS of a raw packet or datagram queue pair. Datagrams start at the packet
    /// sequence number 0.
    pub fn rts(kind: QpType) -> (Self, AttributeMask) {
        let (attributes, mask) = Self::to(QpState::Rts);
        (attributes, if kind == QpType::Ud { mask | SQ_PSN } else { mask })
    }
}

/// The reason for a refused state transition. The verb's error is always `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitionError {
    /// The transition does not exist.
    NoSuchTransition,
    /// The mask does not match the transition.
    Attributes {
        /// The required attributes that the mask lacks.
        missing: AttributeMask,
        /// The attributes of the mask that the transition does not allow.
        forbidden: AttributeMask,
    },
}

impl fmt::Display for TransitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchTransition => f.write_str("this state transition does not exist"),
            Self::Attributes { missing, forbidden } => {
                write!(f, "attributes missing: {missing:?}, not allowed: {forbidden:?}")
            }
        }
    }
}

impl std::error::Error for TransitionError {}

use AttributeMask as Mask;

const NONE: Mask = Mask::empty();
const CUR: Mask = Mask::CUR_STATE;
const ACCESS: Mask = Mask::ACCESS_FLAGS;
const PKEY: Mask = Mask::PKEY_INDEX;
const PORT: Mask = Mask::PORT;
const QKEY: Mask = Mask::QKEY;
const SQ_PSN: Mask = Mask::SQ_PSN;
const RATE: Mask = Mask::RATE_LIMIT;
const MIGRATION: Mask = Mask::ALT_PATH.union(Mask::PATH_MIG_STATE);
const UC_RUNNING: Mask = CUR.union(ACCESS).union(MIGRATION);
const RC_RUNNING: Mask = UC_RUNNING.union(Mask::MIN_RNR_TIMER);
const UD_RUNNING: Mask = CUR.union(QKEY);
const CONNECTED_INIT: Mask = PKEY.union(PORT).union(ACCESS);
const UC_RTR: Mask = Mask::AV.union(Mask::PATH_MTU).union(Mask::DEST_QPN).union(Mask::RQ_PSN);
const RC_RTR: Mask = UC_RTR.union(Mask::MAX_DEST_RD_ATOMIC).union(Mask::MIN_RNR_TIMER);
const RC_RTS: Mask =
    SQ_PSN.union(Mask::TIMEOUT).union(Mask::RETRY_CNT).union(Mask::RNR_RETRY).union(Mask::MAX_QP_RD_ATOMIC);
const UC_SQD: Mask = MIGRATION.union(Mask::AV).union(ACCESS).union(PKEY);
const RC_SQD: Mask = UC_SQD
    .union(PORT)
    .union(Mask::TIMEOUT)
    .union(Mask::RETRY_CNT)
    .union(Mask::RNR_RETRY)
    .union(Mask::MAX_QP_RD_ATOMIC)
    .union(Mask::MAX_DEST_RD_ATOMIC)
    .union(Mask::MIN_RNR_TIMER);

/// Returns the required and the optional attributes of a transition, or `None` if the transition does not exist. The
/// rules equal the rules of the kernel function `ib_modify_qp_is_ok`.
fn rule(kind: QpType, from: QpState, to: QpState) -> Option<(Mask, Mask)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{RawPacket, Rc, Uc, Ud};
    if !matches!(kind, Rc | Uc | Ud | RawPacket) {
        return None;
    }
    let by_kind = |rc, uc, ud, raw| match kind {
        Rc => rc,
        Uc => uc,
        Ud => ud,
        _ => raw,
    };
    let init = by_kind(CONNECTED_INIT, CONNECTED_INIT, PKEY | PORT | QKEY, PORT);
    Some(match (from, to) {
        (Reset | Init | Rtr | Rts | Sqd | Sqe | Err, Reset) | (Init | Rtr | Rts | Sqd | Sqe | Err, Err) => (NONE, NONE),
        (Reset, Init) => (init, NONE),
        (Init, Init) => (NONE, by_kind(init, init, init, NONE)),
        (Init, Rtr) => {
            let connected = Mask::ALT_PATH | ACCESS | PKEY;
            (by_kind(RC_RTR, UC_RTR, NONE, NONE), by_kind(connected, connected, PKEY | QKEY, NONE))
        }
        (Rtr, Rts) => (by_kind(RC_RTS, SQ_PSN, SQ_PSN, NONE), by_kind(RC_RUNNING, UC_RUNNING, UD_RUNNING, RATE)),
        (Rts, Rts) => (NONE, by_kind(RC_RUNNING, UC_RUNNING, UD_RUNNING, RATE)),
        (Rts, Sqd) => {
            let notify = Mask::EN_SQD_ASYNC_NOTIFY;
            (NONE, by_kind(notify, notify, notify, NONE))
        }
        (Sqd, Rts) => (NONE, by_kind(RC_RUNNING, UC_RUNNING, UD_RUNNING, NONE)),
        (Sqd, Sqd) => (NONE, by_kind(RC_SQD, UC_SQD, PKEY | QKEY, NONE)),
        (Sqe, Rts) => (NONE, by_kind(NONE, CUR | ACCESS, UD_RUNNING, NONE)),
        _ => return None,
    })
}

/// Checks whether a queue pair of this type may go from one state to another with these attributes.
/// [`AttributeMask::STATE`] is always allowed. For a mask without this bit, the caller passes the current state as
/// `from` and as `to`.
///
/// # Errors
/// The transition does not exist, or attributes are missing or forbidden.
pub fn check_transition(kind: QpType, from: QpState, to: QpState, mask: AttributeMask) -> Result<(), TransitionError> {
    let (required, optional) = rule(kind, from, to).ok_or(TransitionError::NoSuchTransition)?;
    let missing = required - mask;
    let forbidden = mask - (required | optional | Mask::STATE);
    match missing.is_empty() && forbidden.is_empty() {
        true => Ok(()),
        false => Err(TransitionError::Attributes { missing, forbidden }),
    }
}

#[cfg(test)]
mod tests;
