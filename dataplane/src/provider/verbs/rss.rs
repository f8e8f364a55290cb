//! Spreading the frames of a port over the queues of several workers (RSS).
//!
//! Each worker has a work queue to receive on. An indirection table lists the queues, over and over until it is full.
//! In front of it stand queue pairs that hash: one for each `TrafficClass`, since a queue pair hashes the addresses of
//! one IP version and the ports of one protocol. Flow rules bring each class to its own. So TCP and UDP over both IP
//! versions are spread by addresses and ports, the rest of IP by addresses; frames without anything to hash all go to the
//! first queue. The table has the entries that the software device's has, so both spread alike.
//!
//! These queue pairs have no send queue and no state: a worker that sends has a queue pair of its own.
//!
//! Not run on hardware: no device of the test bed has work queues. The calls are compared with what the man pages want,
//! against a driver in memory; known answers of the hash itself are those of the software device.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::ptr::{self, NonNull};

use ibverbs_sys::*;

use super::ffi;
use super::flow::{Flow, FlowError, FlowRule, FlowTraffic, HeaderMatch, IpMatch, TransportMatch};
use super::raw::{RawError, RawPacketCaps, RawReceive, RssCaps, range};
use crate::error::VerbError;
use crate::provider::{RssFields, RssSpec};

/// Entries of an indirection table, where the device has as many.
const TABLE: u32 = 128;

/// What is hashed alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TrafficClass {
    /// TCP over IPv4.
    Ipv4Tcp,
    /// UDP over IPv4.
    Ipv4Udp,
    /// Anything else over IPv4, fragments among it.
    Ipv4,
    /// TCP over IPv6.
    Ipv6Tcp,
    /// UDP over IPv6.
    Ipv6Udp,
    /// Anything else over IPv6.
    Ipv6,
    /// Neither: nothing is hashed.
    Other,
}

impl TrafficClass {
    /// All of them: those with a transport before those without, which would take their frames.
    const ALL: [Self; 7] =
        [Self::Ipv4Tcp, Self::Ipv4Udp, Self::Ipv6Tcp, Self::Ipv6Udp, Self::Ipv4, Self::Ipv6, Self::Other];

    /// The version of IP, 4 or 6.
    fn version(self) -> Option<u8> {
        match self {
            Self::Ipv4Tcp | Self::Ipv4Udp | Self::Ipv4 => Some(4),
            Self::Ipv6Tcp | Self::Ipv6Udp | Self::Ipv6 => Some(6),
            Self::Other => None,
        }
    }

    /// Its header of IP, and of the transport, with nothing to match.
    fn headers(self) -> (Option<IpMatch>, Option<TransportMatch>) {
        let ip = self.version().map(|version| match version {
            4 => IpMatch::V4(Default::default()),
            _ => IpMatch::V6(Default::default()),
        });
        let transport = match self {
            Self::Ipv4Tcp | Self::Ipv6Tcp => Some(TransportMatch::Tcp(Default::default())),
            Self::Ipv4Udp | Self::Ipv6Udp => Some(TransportMatch::Udp(Default::default())),
            Self::Ipv4 | Self::Ipv6 | Self::Other => None,
        };
        (ip, transport)
    }

    /// What of it is hashed: `enum ibv_rx_hash_fields`. 0: nothing.
    fn hashed(self, fields: RssFields) -> u64 {
        let addresses = match self.version() {
            Some(4) if fields.ipv4 => IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4,
            Some(6) if fields.ipv6 => IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6,
            _ => 0,
        };
        let ports = match self {
            Self::Ipv4Tcp | Self::Ipv6Tcp if fields.tcp => IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP,
            Self::Ipv4Udp | Self::Ipv6Udp if fields.udp => IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP,
            _ => 0,
        };
        u64::from(addresses | ports)
    }

    /// How far behind its rule's first priority it comes: the more headers it wants, the earlier.
    fn level(self) -> u16 {
        match self {
            Self::Ipv4Tcp | Self::Ipv4Udp | Self::Ipv6Tcp | Self::Ipv6Udp => 0,
            Self::Ipv4 | Self::Ipv6 => 1,
            Self::Other => 2,
        }
    }

    /// The part of a rule that is of this class; `None`: there is none.
    fn part(self, rule: &FlowRule) -> Option<FlowRule> {
        let FlowTraffic::Headers { outer, tunnel } = rule.traffic else {
            // Defaults and sniffers have no headers to tell classes by: they are taken whole, and not hashed.
            return (self == Self::Other).then(|| rule.clone());
        };
        let (ip, transport) = self.headers();
        let ip = narrowest(outer.ip, ip, same_version)?;
        let transport = narrowest(outer.transport, transport, same_transport)?;
        let outer = HeaderMatch { ip, transport, ..outer };
        Some(FlowRule { traffic: FlowTraffic::Headers { outer, tunnel }, ..rule.clone() })
    }
}

/// The match of a rule and of a class in one. `None`: no frame has both.
fn narrowest<T: Copy>(rule: Option<T>, class: Option<T>, same: fn(&T, &T) -> bool) -> Option<Option<T>> {
    match (rule, class) {
        (None, class) => Some(class),
        (Some(rule), Some(class)) if same(&rule, &class) => Some(Some(rule)),
        (Some(_), _) => None,
    }
}

fn same_version(a: &IpMatch, b: &IpMatch) -> bool {
    matches!((a, b), (IpMatch::V4(_), IpMatch::V4(_)) | (IpMatch::V6(_), IpMatch::V6(_)))
}

fn same_transport(a: &TransportMatch, b: &TransportMatch) -> bool {
    use TransportMatch::{Tcp, Udp};
    matches!((a, b), (Tcp(_), Tcp(_)) | (Udp(_), Udp(_)))
}

/// The sizes of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkQueueSpec {
    /// Receives outstanding.
    pub(super) depth: u32,
    /// Elements of a receive.
    pub(super) sges: u32,
    /// What it does to frames.
    pub(super) receive: RawReceive,
}

/// The state of a work queue: `enum ibv_wq_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WqState {
    /// What was posted is gone.
    Reset = IBV_WQS_RESET as isize,
    /// Receives.
    Ready = IBV_WQS_RDY as isize,
    /// What was posted is flushed.
    Err = IBV_WQS_ERR as isize,
}

/// A queue of receives without a queue pair: `ibv_create_wq(3)`.
#[derive(Debug)]
pub(super) struct WorkQueue {
    wq: NonNull<ibv_wq>,
    /// What was granted: at least what was asked for.
    spec: WorkQueueSpec,
}

// SAFETY: a work queue belongs to no thread; who posts to it holds it alone.
unsafe impl Send for WorkQueue {}

impl WorkQueue {
    /// Makes a work queue, in state RESET.
    ///
    /// # Errors
    /// The device does not do what is wished for, or as the verb.
    ///
    /// # Safety
    /// The domain and the completion queue are of the context, and outlive it.
    pub(super) unsafe fn create(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        spec: WorkQueueSpec,
        caps: &RawPacketCaps,
    ) -> Result<Self, RawError> {
        spec.receive.check(caps)?;
        let create_flags = spec.receive.wq_flags();
        let mut attr = ibv_wq_init_attr {
            wq_context: ptr::null_mut(),
            wq_type: IBV_WQT_RQ,
            max_wr: spec.depth,
            max_sge: spec.sges,
            pd,
            cq,
            comp_mask: if create_flags == 0 { 0 } else { IBV_WQ_INIT_ATTR_FLAGS },
            create_flags,
        };
        // SAFETY: the caller's promise; the attributes are those of the man page.
        let wq = unsafe { ffi::ibv_create_wq(context, &mut attr)? };
        Ok(Self { wq, spec: WorkQueueSpec { depth: attr.max_wr, sges: attr.max_sge, ..spec } })
    }

    /// What was granted.
    pub(super) fn spec(&self) -> WorkQueueSpec {
        self.spec
    }

    /// The object.
    pub(super) fn as_ptr(&self) -> NonNull<ibv_wq> {
        self.wq
    }

    /// Changes its state: `ibv_modify_wq(3)`.
    ///
    /// # Errors
    /// As the verb.
    pub(super) fn set_state(&mut self, state: WqState) -> Result<(), VerbError> {
        let mut attr = ibv_wq_attr { attr_mask: IBV_WQ_ATTR_STATE, wq_state: state as u32, ..Default::default() };
        // SAFETY: the work queue is alive, and the attributes are those of the man page.
        unsafe { ffi::ibv_modify_wq(self.wq.as_ptr(), &mut attr) }
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        // SAFETY: the work queue is alive, no table has it any more, and it is not used again.
        if let Err(error) = unsafe { ffi::ibv_destroy_wq(self.wq.as_ptr()) } {
            tracing::warn!("a work queue stays until its device is closed: {error}");
        }
    }
}

/// An indirection table.
#[derive(Debug)]
struct Table(NonNull<ibv_rwq_ind_table>);

impl Table {
    /// # Safety
    /// The work queues are of the context, and outlive it.
    unsafe fn create(context: *mut ibv_context, wqs: &mut [*mut ibv_wq]) -> Result<Self, VerbError> {
        assert!(wqs.len().is_power_of_two(), "a table of {} entries", wqs.len());
        let log_ind_tbl_size = wqs.len().ilog2();
        let mut attr = ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl: wqs.as_mut_ptr(), comp_mask: 0 };
        // SAFETY: the caller's promise; the list has as many entries as it says.
        unsafe { ffi::ibv_create_rwq_ind_table(context, &mut attr) }.map(Self)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: the table is alive, no queue pair has it any more, and it is not used again.
        if let Err(error) = unsafe { ffi::ibv_destroy_rwq_ind_table(self.0.as_ptr()) } {
            tracing::warn!("an indirection table stays until its device is closed: {error}");
        }
    }
}

/// A queue pair that hashes.
#[derive(Debug)]
struct HashQp {
    class: TrafficClass,
    qp: NonNull<ibv_qp>,
}

impl HashQp {
    /// # Safety
    /// The domain is of the context, and it and the table outlive it.
    unsafe fn create(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        table: &Table,
        class: TrafficClass,
        rss: &RssSpec,
    ) -> Result<Self, VerbError> {
        let mut key = rss.key;
        let mut attr = ibv_qp_init_attr_ex {
            qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
            pd,
            rwq_ind_tbl: table.0.as_ptr(),
            rx_hash_conf: ibv_rx_hash_conf {
                rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
                rx_hash_key_len: key.len() as u8,
                rx_hash_key: key.as_mut_ptr(),
                rx_hash_fields_mask: class.hashed(rss.fields),
            },
            ..Default::default()
        };
        // SAFETY: the caller's promise; the attributes are those of the man page, and the key lives through the call.
        let qp = unsafe { ffi::ibv_create_qp_ex(context, &mut attr)? };
        Ok(Self { class, qp })
    }
}

impl Drop for HashQp {
    fn drop(&mut self) {
        // SAFETY: the queue pair is alive, no rule has it any more, and it is not used again.
        if let Err(error) = unsafe { ffi::ibv_destroy_qp(self.qp.as_ptr()) } {
            tracing::warn!("a queue pair stays until its device is closed: {error}");
        }
    }
}

/// Work queues that frames are spread over, as long as it lives.
#[derive(Debug)]
pub(super) struct Spread {
    // Dropped in this order: each uses those below.
    flows: Vec<Flow>,
    hashes: Vec<HashQp>,
    _tables: Vec<Table>,
}

// SAFETY: none of its objects belongs to a thread.
unsafe impl Send for Spread {}

impl Spread {
    /// Spreads what rules take over work queues. Those become ready before.
    ///
    /// # Errors
    /// More queues than the device's tables have entries, fields that it does not hash, a rule that cannot be, or as the
    /// verbs. Nothing is left behind.
    ///
    /// # Safety
    /// The domain and the work queues are of the context, and outlive it.
    pub(super) unsafe fn create(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        wqs: &[NonNull<ibv_wq>],
        rss: &RssSpec,
        rules: &[FlowRule],
        caps: &RssCaps,
    ) -> Result<Self, RawError> {
        let size = table_size(wqs.len(), caps)?;
        check_fields(rss.fields, caps)?;
        let mut entries: Vec<*mut ibv_wq> = wqs.iter().cycle().take(size).map(|wq| wq.as_ptr()).collect();
        // SAFETY: the caller's promise, of all below. Each object is made after those that it uses, and dropped before.
        unsafe {
            let tables = vec![Table::create(context, &mut entries)?, Table::create(context, &mut entries[..1])?];
            let mut spread = Self { flows: Vec::new(), hashes: Vec::new(), _tables: tables };
            for class in TrafficClass::ALL {
                // Without fields a queue pair cannot choose: it has a table of one entry.
                let table = &spread._tables[usize::from(class.hashed(rss.fields) == 0)];
                spread.hashes.push(HashQp::create(context, pd, table, class, rss)?);
            }
            for rule in rules {
                for (class, rule) in parts(rule)? {
                    let hash = spread.hashes.iter().find(|hash| hash.class == class).expect("there is one of each");
                    spread.flows.push(Flow::create(hash.qp, &rule)?);
                }
            }
            Ok(spread)
        }
    }
}

/// How many entries a table for so many queues has: a power of two, in which no queue has much more than another.
fn table_size(queues: usize, caps: &RssCaps) -> Result<usize, RawError> {
    let most = caps.max_table_size.clamp(1, TABLE);
    // Devices have powers of two; what is above the last one is of no use.
    let most = 1_u32 << most.ilog2();
    range("queues to spread over", queues as u64, 1, u64::from(most).min(u64::from(caps.max_work_queues)))?;
    range("indirection tables", 2, 0, u64::from(caps.max_tables))?;
    Ok(most as usize)
}

fn check_fields(fields: RssFields, caps: &RssCaps) -> Result<(), RawError> {
    let wanted = TrafficClass::ALL.iter().fold(0, |all, class| all | class.hashed(fields));
    if wanted & !caps.fields == 0 {
        return Ok(());
    }
    Err(RawError::Lacks { what: "hash of all these fields", remedy: "hash fewer of ipv4, ipv6, tcp and udp" })
}

/// A rule by classes, each at its own priority: three for each priority of rules.
fn parts(rule: &FlowRule) -> Result<Vec<(TrafficClass, FlowRule)>, FlowError> {
    let first = rule.priority.checked_mul(3).filter(|first| first.checked_add(2).is_some());
    let wide =
        FlowError::Width { field: "priority of a rule for several queues", value: rule.priority.into(), bits: 14 };
    let first = first.ok_or(wide)?;
    let part = |class: TrafficClass| {
        let part = class.part(rule)?;
        Some((class, FlowRule { priority: first + class.level(), ..part }))
    };
    Ok(TrafficClass::ALL.into_iter().filter_map(part).collect())
}
