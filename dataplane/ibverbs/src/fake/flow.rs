//! How the kernel's mlx5 driver checks and places flow rules: `fs.c` in `drivers/infiniband/hw/mlx5`.

use std::ffi::c_int;

use ibverbs_sys::*;

/// The size of `struct ibv_flow_attr`.
const ATTRIBUTES: usize = size_of::<ibv_flow_attr>();

/// `MLX5_IB_FLOW_MCAST_PRIO`: the table after the tables of all priorities.
pub(crate) const MULTICAST_TABLE: u16 = 32;

/// A flow rule on the device.
#[derive(Debug)]
pub(crate) struct FakeFlow {
    /// The table of the rule, if the rule matches headers. A frame passes the tables in ascending order.
    pub(super) table: Option<u16>,
    /// The addresses of the counters that the rule uses.
    pub(super) counters: Vec<usize>,
}

impl FakeFlow {
    /// Creates a rule from the bytes that the driver receives.
    ///
    /// # Errors
    /// `EINVAL` if the specs of the rule contradict each other.
    pub(crate) fn new(bytes: &[u8]) -> Result<Self, c_int> {
        let is_headers = u32_at(bytes, 4) == IBV_FLOW_ATTR_NORMAL;
        if is_headers && !(is_consistent(bytes, 0) && is_consistent(bytes, IBV_FLOW_SPEC_INNER)) {
            return Err(libc::EINVAL);
        }
        let address = |spec: &[u8]| usize::from_ne_bytes(*spec[8..].first_chunk().unwrap());
        let counters = specs(bytes).filter(|(kind, _)| *kind == IBV_FLOW_SPEC_ACTION_COUNT);
        let counters = counters.map(|(_, spec)| address(spec)).collect();
        Ok(Self { table: is_headers.then(|| table(bytes)), counters })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(*bytes[at..].first_chunk().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap())
}

/// Returns the type of each spec of a rule, and all bytes of the spec.
fn specs(bytes: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut rest = &bytes[ATTRIBUTES..];
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (spec, behind) = rest.split_at(usize::from(u16_at(rest, 4)));
        rest = behind;
        Some((u32_at(spec, 0), spec))
    })
}

/// Returns whether the driver accepts the matches of the outer or the inner headers (`is_valid_ethertype` and
/// `set_proto`). If a rule matches the EtherType or the protocol twice, both matches must have the same value and a
/// whole mask. The driver accepts the EtherTypes of MPLS with any IP header.
fn is_consistent(bytes: &[u8], inner: u32) -> bool {
    let (mut ether_type, mut ip, mut protocols) = (None, None, Vec::new());
    for (kind, spec) in specs(bytes).filter(|(kind, _)| kind & IBV_FLOW_SPEC_INNER == inner) {
        let word = |at: usize| u16::from_be_bytes([spec[at], spec[at + 1]]);
        match kind & !IBV_FLOW_SPEC_INNER {
            IBV_FLOW_SPEC_ETH if word(34) != 0 => ether_type = Some((word(18), word(34))),
            IBV_FLOW_SPEC_IPV4 => ip = Some(0x0800),
            IBV_FLOW_SPEC_IPV4_EXT => {
                ip = Some(0x0800);
                protocols.push((spec[16], spec[28]));
            }
            IBV_FLOW_SPEC_IPV6 => {
                ip = Some(0x86dd);
                protocols.push((spec[44], spec[84]));
            }
            IBV_FLOW_SPEC_TCP => protocols.push((6, 0xff)),
            IBV_FLOW_SPEC_UDP => protocols.push((17, 0xff)),
            IBV_FLOW_SPEC_GRE => protocols.push((47, 0xff)),
            _ => {}
        }
    }
    let has_valid_type = match (ether_type, ip) {
        (Some((value, mask)), Some(ip)) => mask == 0xffff && [ip, 0x8847, 0x8848].contains(&value),
        _ => true,
    };
    protocols.retain(|(_, mask)| *mask != 0);
    has_valid_type && protocols.windows(2).all(|pair| pair[0] == pair[1])
}

/// Returns the index of the table for a rule that matches headers (`get_flow_table`).
fn table(bytes: &[u8]) -> u16 {
    let is_trap = u32_at(bytes, 16) & IBV_FLOW_ATTR_FLAGS_DONT_TRAP == 0;
    if is_multicast_only(bytes) && is_trap { MULTICAST_TABLE } else { 2 * u16_at(bytes, 10) + u16::from(is_trap) }
}

/// Returns whether the driver treats a rule as a multicast rule (`flow_is_multicast_only`). Only the first spec
/// decides. libibverbs sends `IPV4_EXT` as `IPV4`.
fn is_multicast_only(bytes: &[u8]) -> bool {
    match specs(bytes).next() {
        Some((IBV_FLOW_SPEC_IPV4 | IBV_FLOW_SPEC_IPV4_EXT, spec)) => spec[12] & 0xf0 == 0xe0,
        Some((IBV_FLOW_SPEC_ETH, spec)) => spec[6] & spec[22] & 1 == 1,
        _ => false,
    }
}
