//! Receive-side scaling (RSS): distributes the frames of a port over the queues of several workers.
//!
//! Each worker has a work queue for receives. An indirection table lists the work queues repeatedly until the table is
//! full. Each `TrafficClass` has a hashing queue pair, because a queue pair hashes the addresses of one IP version and
//! the ports of one protocol. Flow rules direct each class to its hashing queue pair, which selects a work queue from
//! the table. With the standard fields, the hash of TCP and UDP frames covers addresses and ports, and the hash of
//! other IP frames covers addresses. All frames without hashed fields go to the first queue. The table has 128
//! entries, like the table of the software device. If the device supports only smaller tables, the table is smaller.
//!
//! Hashing queue pairs have no send queue and no state. Each worker has another queue pair for its sends.
//!
//! This module has not been tested on hardware, because no test device has work queues. The tests use a fake driver in
//! memory and compare the calls with the man pages. Only the tests of the software device compute the hash and compare
//! it with known results.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use ibverbs_sys::*;

use super::ffi;
use super::flow::LEVELS;
use super::flow::object::Flow;
use super::held_log;
use super::raw::wq_flags;
use dataplane_core::error::VerbError;
use dataplane_core::header::{ether_type, protocol};
use dataplane_core::verbs::{
    FlowError, FlowRule, FlowTraffic, HeaderMatch, IpMatch, MaskedValue, RawError, RawPacketCaps, RawReceive, RawSpec,
    RssCaps, RssFields, RssSpec, TransportMatch, TunnelMatch,
};

/// The number of entries of an indirection table, unless the device supports only smaller tables.
const TABLE: u32 = 128;

/// A set of frames that are hashed with the same fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TrafficClass {
    /// TCP over IPv4. On mlx5, also fragments without a TCP header, whose ports the device does not know.
    Ipv4Tcp,
    /// UDP over IPv4. On mlx5, also fragments without a UDP header.
    Ipv4Udp,
    /// Other IPv4 traffic.
    Ipv4,
    /// TCP over IPv6.
    Ipv6Tcp,
    /// UDP over IPv6.
    Ipv6Udp,
    /// Other IPv6 traffic.
    Ipv6,
    /// Neither IPv4 nor IPv6. No field is hashed.
    Other,
}

impl TrafficClass {
    /// All classes, in the order of their priority (see [`Self::priority_offset`]). The classes with a transport come
    /// first, because the rules of the classes `Ipv4` and `Ipv6` also match TCP and UDP frames.
    const ALL: [Self; 7] =
        [Self::Ipv4Tcp, Self::Ipv4Udp, Self::Ipv6Tcp, Self::Ipv6Udp, Self::Ipv4, Self::Ipv6, Self::Other];

    /// Returns the IP version, 4 or 6.
    fn version(self) -> Option<u8> {
        match self {
            Self::Ipv4Tcp | Self::Ipv4Udp | Self::Ipv4 => Some(4),
            Self::Ipv6Tcp | Self::Ipv6Udp | Self::Ipv6 => Some(6),
            Self::Other => None,
        }
    }

    /// Returns empty matches for the IP header and the transport header of the class.
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

    /// Returns the EtherType of the IP header.
    fn ether_type(self) -> Option<[u8; 2]> {
        self.version().map(|version| match version {
            4 => ether_type::IPV4.to_be_bytes(),
            _ => ether_type::IPV6.to_be_bytes(),
        })
    }

    /// Returns the IP protocol number of the transport header.
    fn protocol(self) -> Option<[u8; 1]> {
        match self {
            Self::Ipv4Tcp | Self::Ipv6Tcp => Some([protocol::TCP]),
            Self::Ipv4Udp | Self::Ipv6Udp => Some([protocol::UDP]),
            Self::Ipv4 | Self::Ipv6 | Self::Other => None,
        }
    }

    /// Returns the hashed fields: `enum ibv_rx_hash_fields`. Returns 0 if no field is hashed.
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

    /// Returns the offset of this class within the three device priorities of a rule (see [`parts`]). The rule with the
    /// smallest priority number wins, so a class with more headers has a smaller offset.
    fn priority_offset(self) -> u16 {
        match self {
            Self::Ipv4Tcp | Self::Ipv4Udp | Self::Ipv6Tcp | Self::Ipv6Udp => 0,
            Self::Ipv4 | Self::Ipv6 => 1,
            Self::Other => 2,
        }
    }

    /// Restricts a valid rule to this class. Returns `None` if no frame matches both the rule and the class.
    fn restrict(self, rule: &FlowRule) -> Option<FlowRule> {
        let FlowTraffic::Headers { mut outer, tunnel } = rule.traffic else {
            // Default and sniffer rules have no headers that identify a class. The class `Other` takes these rules
            // unchanged, so their frames are not hashed.
            return (self == Self::Other).then(|| rule.clone());
        };
        let (ip, transport) = self.headers();
        let ip = narrowest(outer.ip, ip, same_version)?;
        let transport = narrowest(outer.transport, transport, same_transport)?;
        let adds_ip = outer.ip.is_none() && ip.is_some();
        let adds_transport = outer.transport.is_none() && transport.is_some();
        // If the rule matches no UDP header, the MPLS label directly follows the Ethernet header or the last header
        // that the rule matches. A frame of the rule then has no header that only the class adds.
        if (adds_ip || adds_transport) && matches!(tunnel, Some((TunnelMatch::Mpls { .. }, _))) {
            return None;
        }
        outer = HeaderMatch { ip, transport, ..outer };
        if adds_ip && let Some(ethernet) = &mut outer.ethernet {
            imply(&mut ethernet.ether_type, self.ether_type()?)?;
        }
        if adds_transport {
            match &mut outer.ip {
                Some(IpMatch::V4(ip)) => imply(&mut ip.protocol, self.protocol()?)?,
                Some(IpMatch::V6(ip)) => imply(&mut ip.next_header, self.protocol()?)?,
                None => {}
            }
        }
        let part = FlowRule { traffic: FlowTraffic::Headers { outer, tunnel }, ..rule.clone() };
        // The rule is valid. If the part is invalid, the headers that the class adds cannot carry the tunnel of the
        // rule.
        part.check().is_ok().then_some(part)
    }
}

/// Removes the match of a field whose value follows from a header of a class. For example, an IPv4 header implies the
/// EtherType 0x0800. Devices refuse to match only some bits of such a field. Returns `None` if the match excludes the
/// implied value.
fn imply<const N: usize>(wanted: &mut MaskedValue<N>, implied: [u8; N]) -> Option<()> {
    if *wanted != MaskedValue::masked(implied, *wanted.mask()) {
        return None;
    }
    *wanted = MaskedValue::ANY;
    Some(())
}

/// Returns the narrower match of a rule and a class, or `None` if no frame can match both. The inner `None` matches
/// every frame.
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

/// The parameters of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkQueueSpec {
    /// The number of outstanding receives.
    pub(super) depth: u32,
    /// The number of scatter/gather elements of a receive.
    pub(super) sges: u32,
    /// The receive offloads.
    pub(super) receive: RawReceive,
}

/// The state of a work queue: `enum ibv_wq_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WqState {
    /// Posted receives are discarded.
    Reset = IBV_WQS_RESET as isize,
    /// The work queue receives.
    Ready = IBV_WQS_RDY as isize,
    /// Posted receives are flushed.
    Err = IBV_WQS_ERR as isize,
}

/// A receive queue without a queue pair: `ibv_create_wq(3)`.
#[derive(Debug)]
pub(super) struct WorkQueue {
    wq: NonNull<ibv_wq>,
    /// The granted sizes and the requested offloads.
    spec: WorkQueueSpec,
}

// SAFETY: a work queue is not bound to a thread, and its owner has exclusive access.
unsafe impl Send for WorkQueue {}

impl WorkQueue {
    /// Creates a work queue in state RESET.
    ///
    /// # Errors
    /// The device does not support the requested offloads, or the error of the verb.
    ///
    /// # Safety
    /// The protection domain and the completion queue must belong to the context and must outlive the work queue.
    pub(super) unsafe fn create(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        spec: WorkQueueSpec,
        caps: &RawPacketCaps,
    ) -> Result<Self, RawError> {
        spec.receive.check(caps)?;
        let create_flags = wq_flags(spec.receive);
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
        // SAFETY: the caller upholds the safety contract. The attributes are filled in as the man page requires.
        let wq = unsafe { ffi::ibv_create_wq(context, &mut attr)? };
        Ok(Self { wq, spec: WorkQueueSpec { depth: attr.max_wr, sges: attr.max_sge, ..spec } })
    }

    /// Returns the granted sizes and the requested offloads.
    pub(super) fn spec(&self) -> WorkQueueSpec {
        self.spec
    }

    /// Returns the raw pointer.
    pub(super) fn as_ptr(&self) -> NonNull<ibv_wq> {
        self.wq
    }

    /// Changes the state: `ibv_modify_wq(3)`. If the device refuses a change to RESET or ERR, tries the change again
    /// with ERR as the current state. The device may have moved the work queue to ERR on its own, and the kernel does
    /// not know this change.
    ///
    /// # Errors
    /// The error of the verb.
    pub(super) fn set_state(&mut self, state: WqState) -> Result<(), VerbError> {
        let attr = ibv_wq_attr { attr_mask: IBV_WQ_ATTR_STATE, wq_state: state as u32, ..Default::default() };
        let from_error = ibv_wq_attr {
            attr_mask: IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE,
            curr_wq_state: WqState::Err as u32,
            ..attr
        };
        // SAFETY: the work queue is valid, and the attributes are filled in as the man page requires.
        let set = |mut attr| unsafe { ffi::ibv_modify_wq(self.wq.as_ptr(), &mut attr) };
        // Verbs do not allow a change from ERR to READY, so READY is not tried again.
        match set(attr) {
            Err(refused) if state != WqState::Ready => set(from_error).map_err(|_| refused),
            result => result,
        }
    }
}

impl WorkQueue {
    /// Destroys the work queue.
    ///
    /// # Errors
    /// The error of the verb, which is also logged. The device may then still write to the memory of posted receives.
    pub(super) fn destroy(self) -> Result<(), VerbError> {
        ManuallyDrop::new(self).end()
    }

    /// Destroys the work queue. The caller must not use the work queue again.
    fn end(&mut self) -> Result<(), VerbError> {
        // SAFETY: the work queue is valid, no indirection table uses it any more, and it is not used again.
        let destroyed = unsafe { ffi::ibv_destroy_wq(self.wq.as_ptr()) };
        if let Err(error) = destroyed {
            held_log::emit(move || {
                tracing::warn!("cannot destroy a work queue, so it stays until its device is closed: {error}");
            });
        }
        destroyed
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        // `end` has already logged the error.
        let _ = self.end();
    }
}

/// An indirection table.
#[derive(Debug)]
struct IndirectionTable(NonNull<ibv_rwq_ind_table>);

impl IndirectionTable {
    /// Creates a table with these work queues as its entries.
    ///
    /// # Safety
    /// The work queues must belong to the context and must outlive the table.
    unsafe fn create(context: *mut ibv_context, wqs: &mut [*mut ibv_wq]) -> Result<Self, VerbError> {
        assert!(wqs.len().is_power_of_two(), "the table size {} is not a power of two", wqs.len());
        let log_ind_tbl_size = wqs.len().ilog2();
        let mut attr = ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl: wqs.as_mut_ptr(), comp_mask: 0 };
        // SAFETY: the caller upholds the safety contract. The list has `2^log_ind_tbl_size` entries.
        unsafe { ffi::ibv_create_rwq_ind_table(context, &mut attr) }.map(Self)
    }
}

impl Drop for IndirectionTable {
    fn drop(&mut self) {
        // SAFETY: the table is valid, no queue pair uses it any more, and it is not used again.
        if let Err(error) = unsafe { ffi::ibv_destroy_rwq_ind_table(self.0.as_ptr()) } {
            held_log::emit(move || {
                tracing::warn!("cannot destroy an indirection table, so it stays until its device is closed: {error}");
            });
        }
    }
}

/// A hashing queue pair.
#[derive(Debug)]
struct HashQp {
    class: TrafficClass,
    qp: NonNull<ibv_qp>,
}

impl HashQp {
    /// Creates the hashing queue pair of a class.
    ///
    /// # Safety
    /// The protection domain must belong to the context. The protection domain and the table must outlive the queue
    /// pair.
    unsafe fn create(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        table: &IndirectionTable,
        class: TrafficClass,
        rss: &RssSpec,
    ) -> Result<Self, VerbError> {
        let mut key = rss.key.0;
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
        // SAFETY: the caller upholds the safety contract. The attributes are filled in as the man page requires, and
        // the key is valid during the call.
        let qp = unsafe { ffi::ibv_create_qp_ex(context, &mut attr)? };
        Ok(Self { class, qp })
    }
}

impl Drop for HashQp {
    fn drop(&mut self) {
        // SAFETY: the queue pair is valid, no flow rule uses it any more, and it is not used again.
        if let Err(error) = unsafe { ffi::ibv_destroy_qp(self.qp.as_ptr()) } {
            held_log::emit(move || {
                tracing::warn!("cannot destroy a hashing queue pair, so it stays until its device is closed: {error}");
            });
        }
    }
}

/// The RSS objects of a port. Frames are distributed over the work queues until this value is dropped.
#[derive(Debug)]
pub(super) struct RssGroup {
    // Dropped in this order: each object uses the objects below it.
    flows: Vec<Flow>,
    hashes: Vec<HashQp>,
    _tables: Vec<IndirectionTable>,
}

// SAFETY: none of the objects is bound to a thread.
unsafe impl Send for RssGroup {}

impl RssGroup {
    /// Distributes the frames that match the rules over the work queues. The work queues must be ready before this
    /// call.
    ///
    /// # Errors
    /// - The device does not support RSS.
    /// - The number of queues exceeds the table size or the number of work queues of the device.
    /// - The device has too few indirection tables.
    /// - The device cannot hash a requested field.
    /// - A rule is invalid, or a verb failed.
    ///
    /// On an error, all created objects are destroyed.
    ///
    /// # Safety
    /// The protection domain and the work queues must belong to the context and must outlive the returned value.
    pub(super) unsafe fn create(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        wqs: &[NonNull<ibv_wq>],
        rss: &RssSpec,
        rules: &[FlowRule],
        caps: &RawPacketCaps,
    ) -> Result<Self, RawError> {
        let Some(rss_caps) = &caps.rss else {
            return Err(RawError::lacks("RSS for raw packets", "set workers = 1 in [runtime]"));
        };
        let size = table_size(wqs.len(), rss_caps)?;
        check_fields(rss.fields, rss_caps)?;
        let mut entries: Vec<*mut ibv_wq> = wqs.iter().cycle().take(size).map(|wq| wq.as_ptr()).collect();
        // SAFETY: the caller upholds the safety contract. Each object is created after the objects that it uses, and
        // destroyed before them.
        unsafe {
            let tables = vec![
                IndirectionTable::create(context, &mut entries)?,
                IndirectionTable::create(context, &mut entries[..1])?,
            ];
            let mut rss_group = Self { flows: Vec::new(), hashes: Vec::new(), _tables: tables };
            for class in TrafficClass::ALL {
                // Without hashed fields, a queue pair cannot distribute frames, so it uses a table of one entry.
                let table = &rss_group._tables[usize::from(class.hashed(rss.fields) == 0)];
                rss_group.hashes.push(HashQp::create(context, pd, table, class, rss)?);
            }
            for rule in rules {
                for (class, rule) in parts(rule)? {
                    let hash = rss_group
                        .hashes
                        .iter()
                        .find(|hash| hash.class == class)
                        .expect("every class has a hashing queue pair");
                    rss_group.flows.push(Flow::create(hash.qp, &rule, &caps.flow)?);
                }
            }
            Ok(rss_group)
        }
    }
}

/// Returns the table size: the largest power of two that the device supports, up to [`TABLE`]. In a large table, all
/// queues have about the same number of entries.
fn table_size(queues: usize, caps: &RssCaps) -> Result<usize, RawError> {
    let most = caps.max_table_size.clamp(1, TABLE);
    // Table sizes are powers of two, so a limit that is not a power of two is rounded down.
    let most = 1_u32 << most.ilog2();
    RawError::check_range(
        "number of RSS queues",
        queues as u64,
        1,
        u64::from(most).min(u64::from(caps.max_work_queues)),
    )?;
    RawError::check_range("number of indirection tables", 2, 0, u64::from(caps.max_tables))?;
    Ok(most as usize)
}

fn check_fields(fields: RssFields, caps: &RssCaps) -> Result<(), RawError> {
    let wanted = TrafficClass::ALL.iter().fold(0, |all, class| all | class.hashed(fields));
    if wanted & !caps.fields == 0 {
        return Ok(());
    }
    Err(RawError::Lacks { what: "RSS over all requested fields", remedy: "use fewer of ipv4, ipv6, tcp and udp" })
}

/// Checks that a device supports the settings for a port with `queues` queues.
///
/// # Errors
/// The first unsupported setting. For several queues, a rule with `dont_trap` must not be split into several parts.
/// Each part would pass the frame on to the next part, so the device would deliver the frame several times.
pub(super) fn check(spec: &RawSpec, caps: &RawPacketCaps, queues: u16) -> Result<(), RawError> {
    spec.check(caps, queues)?;
    if queues == 1 {
        return Ok(());
    }
    for rule in &spec.rules {
        if parts(rule)?.len() > 1 && rule.dont_trap {
            return Err(FlowError::DontTrapWithSeveralQueues { driver: caps.flow.driver }.into());
        }
    }
    Ok(())
}

/// Splits a rule into one rule for each class that can match. The classes have three priority offsets, so each priority
/// of a rule needs three priorities of the device.
///
/// # Errors
/// The rule is invalid, or its priority is too large.
fn parts(rule: &FlowRule) -> Result<Vec<(TrafficClass, FlowRule)>, FlowError> {
    rule.check()?;
    let first = rule.priority.checked_mul(LEVELS).filter(|first| first.checked_add(LEVELS - 1).is_some());
    let wide =
        FlowError::Width { field: "priority of a rule for several queues", value: rule.priority.into(), bits: 14 };
    let first = first.ok_or(wide)?;
    let part = |class: TrafficClass| {
        let part = class.restrict(rule)?;
        Some((class, FlowRule { priority: first + class.priority_offset(), ..part }))
    };
    Ok(TrafficClass::ALL.into_iter().filter_map(part).collect())
}
