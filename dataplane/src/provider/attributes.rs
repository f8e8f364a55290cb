//! Types, states and attributes of queue pairs, and which change of state wants which attributes.

use std::fmt;

use bitflags::bitflags;

use crate::provider::Access;
use crate::provider::code::codes;
use crate::units::{Gid, QpNum};

codes! {
    /// What a queue pair carries: `enum ibv_qp_type`.
    QpType {
        /// Messages, in order and acknowledged, between two queue pairs.
        Rc = 2 "IBV_QPT_RC",
        /// Messages, in order and not acknowledged, between two queue pairs.
        Uc = 3 "IBV_QPT_UC",
        /// Datagrams to any queue pair.
        Ud = 4 "IBV_QPT_UD",
        /// Whole Ethernet frames.
        RawPacket = 8 "IBV_QPT_RAW_PACKET",
        /// The sending half of an extended reliable connection.
        XrcSend = 9 "IBV_QPT_XRC_SEND",
        /// The receiving half of an extended reliable connection.
        XrcRecv = 10 "IBV_QPT_XRC_RECV",
        /// The driver's own.
        Driver = 255 "IBV_QPT_DRIVER",
    }
}

codes! {
    /// Where a queue pair stands: `enum ibv_qp_state`.
    QpState {
        /// As made: nothing may be posted.
        Reset = 0 "IBV_QPS_RESET",
        /// Receives may be posted; none is processed.
        Init = 1 "IBV_QPS_INIT",
        /// Receives are processed.
        Rtr = 2 "IBV_QPS_RTR",
        /// Receives and sends are processed.
        Rts = 3 "IBV_QPS_RTS",
        /// Sends are taken and not begun.
        Sqd = 4 "IBV_QPS_SQD",
        /// A send failed: sends are flushed, receives are processed.
        Sqe = 5 "IBV_QPS_SQE",
        /// Failed: everything is flushed.
        Err = 6 "IBV_QPS_ERR",
    }
}

bitflags! {
    /// Which attributes a change sets: `enum ibv_qp_attr_mask`.
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
        /// The sizes; no device here changes them.
        const CAP = 1 << 19;
        /// [`QpAttributes::dest_qp`].
        const DEST_QPN = 1 << 20;
        /// [`QpAttributes::rate_limit`].
        const RATE_LIMIT = 1 << 25;
    }
}

/// The way to a peer: `struct ibv_ah_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// Whether packets carry a global route header. On RoCE they always do.
    pub global: bool,
    /// The peer's address; of a global path.
    pub gid: Gid,
    /// Which of the own port's addresses is the source; of a global path.
    pub source_gid_index: u8,
    /// Hops that a packet may take; of a global path.
    pub hop_limit: u8,
    /// Traffic class; of a global path.
    pub traffic_class: u8,
    /// Flow label, 20 bits; of a global path.
    pub flow_label: u32,
    /// The peer's local identifier; 0 on RoCE.
    pub dlid: u16,
    /// Service level.
    pub service_level: u8,
    /// Path bits of the source.
    pub source_path_bits: u8,
    /// Most that is sent, as `enum ibv_rate` numbers it; 0: no limit.
    pub static_rate: u8,
    /// The own port, from 1.
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

/// Attributes of a queue pair: `struct ibv_qp_attr`. Only those that the mask names count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// The state to go to.
    pub state: QpState,
    /// The state that it is thought to be in.
    pub current_state: QpState,
    /// Whether going to SQD ends with an event.
    pub notify_drained: bool,
    /// What the peer may do.
    pub access: Access,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// The port, from 1.
    pub port: u8,
    /// What a datagram must carry to be taken in.
    pub qkey: u32,
    /// The way to the peer.
    pub path: Path,
    /// The other way to the peer; its port is the alternate one.
    pub alternate_path: Path,
    /// Index of the partition key on the other way.
    pub alternate_pkey_index: u16,
    /// Time without an answer before a retry on the other way, coded as `timeout`.
    pub alternate_timeout: u8,
    /// State of path migration, as verbs.h numbers it.
    pub path_migration: u8,
    /// Largest payload of a packet as verbs.h numbers it: 1 to 5 for 256 to 4,096 bytes.
    pub path_mtu: u8,
    /// The peer's queue pair.
    pub dest_qp: QpNum,
    /// Number of the first packet received; 24 bits.
    pub rq_psn: u32,
    /// Number of the first packet sent; 24 bits.
    pub sq_psn: u32,
    /// Reads and atomics under way, as requester.
    pub max_rd_atomic: u8,
    /// Reads and atomics under way, as responder.
    pub max_dest_rd_atomic: u8,
    /// What a peer waits that found no receive posted, as verbs.h codes it.
    pub min_rnr_timer: u8,
    /// Time without an answer before a retry: 4.096 µs times two to this; 0: for ever.
    pub timeout: u8,
    /// Retries without an answer.
    pub retry_count: u8,
    /// Retries when the peer has no receive posted; 7: for ever.
    pub rnr_retry: u8,
    /// Most that is sent, in kbit/s; 0: no limit.
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
    /// To `state`, with nothing else changed: what RESET, ERR and SQD take, and RTR and RTS of raw packets.
    pub fn to(state: QpState) -> (Self, AttributeMask) {
        (Self { state, ..Self::default() }, AttributeMask::STATE)
    }

    /// RESET to INIT of a queue pair of this type on a port: with the key `qkey` for datagrams, without access for the
    /// peer for connections.
    pub fn init(kind: QpType, port: u8, qkey: u32) -> (Self, AttributeMask) {
        let attributes = Self { state: QpState::Init, port, qkey, ..Self::default() };
        (attributes, AttributeMask::STATE | rule(kind, QpState::Reset, QpState::Init).map_or(PORT, |rule| rule.0))
    }

    /// INIT to RTR of a queue pair of raw packets or datagrams.
    pub fn rtr() -> (Self, AttributeMask) {
        Self::to(QpState::Rtr)
    }

    /// RTR to RTS of a queue pair of raw packets or datagrams; the latter count from packet number 0.
    pub fn rts(kind: QpType) -> (Self, AttributeMask) {
        let (attributes, mask) = Self::to(QpState::Rts);
        (attributes, if kind == QpType::Ud { mask | SQ_PSN } else { mask })
    }
}

/// Why a change of state is refused: always `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitionError {
    /// There is no such change.
    NoSuchTransition,
    /// The mask is not what the change wants.
    Attributes {
        /// What it wants and the mask lacks.
        missing: AttributeMask,
        /// What the mask has and may not be changed there.
        forbidden: AttributeMask,
    },
}

impl fmt::Display for TransitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchTransition => f.write_str("there is no such change of state"),
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

/// What a change wants and what it allows besides; `None`: there is no such change. The rules of the kernel's
/// `ib_modify_qp_is_ok`.
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

/// Whether a queue pair may go from one state to another with these attributes. [`AttributeMask::STATE`] is always
/// allowed; without it `to` is `from`.
///
/// # Errors
/// It may not: which attributes are missing or one too many, or that there is no such change.
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
