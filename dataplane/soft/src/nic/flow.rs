//! The flow rules of a port, interpreted for each received frame.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};

use super::headers::{Headers, Ip, Transport, TransportKind, Tunnel, parse};
use crate::numbers::Identity;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{
    EthernetMatch, FlowCount, FlowCounters, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match,
    MaskedValue, PortsMatch, TransportMatch, TunnelMatch,
};

/// The counters of flow rules.
#[derive(Debug)]
pub(crate) struct SoftFlowCounters {
    /// The identity of the device that created the counters.
    device: Identity,
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl SoftFlowCounters {
    pub(crate) fn new(device: Identity) -> Self {
        Self { device, packets: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Returns the counters as [`SoftFlowCounters`]. Returns `None` if a device other than `device` created the
    /// counters.
    pub(crate) fn of(counters: &dyn FlowCounters, device: Identity) -> Option<&Self> {
        let own: Option<&Self> = (counters as &dyn Any).downcast_ref();
        own.filter(|own| own.device == device)
    }

    fn count(&self, frame: &[u8]) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
    }
}

impl FlowCounters for SoftFlowCounters {
    fn read(&self) -> Result<FlowCount, VerbError> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(FlowCount { packets: read(&self.packets), bytes: read(&self.bytes) })
    }
}

/// The flow rules of a port, in the order in which they apply.
#[derive(Debug)]
pub(super) struct FlowTable {
    /// The rules that match headers, sorted by priority. At one priority, the rules with `dont_trap` come first, as on
    /// mlx5. Apart from that, rules of equal priority keep the order of the spec.
    rules: Vec<FlowRule>,
    sniffers: usize,
    has_all_default: bool,
    has_multicast_default: bool,
}

impl FlowTable {
    pub(super) fn new(rules: &[FlowRule]) -> Self {
        let is_headers = |rule: &FlowRule| matches!(rule.traffic, FlowTraffic::Headers { .. });
        let number = |traffic| rules.iter().filter(|rule| rule.traffic == traffic).count();
        let mut sorted: Vec<FlowRule> = rules.iter().filter(|rule| is_headers(rule)).cloned().collect();
        sorted.sort_by_key(|rule| (rule.priority, !rule.dont_trap));
        Self {
            rules: sorted,
            sniffers: number(FlowTraffic::Sniffer),
            has_all_default: number(FlowTraffic::AllDefault) > 0,
            has_multicast_default: number(FlowTraffic::MulticastDefault) > 0,
        }
    }

    /// Returns whether the rules deliver every frame once, without a tag and without a count.
    pub(super) fn is_transparent(&self) -> bool {
        let [FlowRule { traffic: FlowTraffic::ANY_HEADERS, tag: None, drop: false, count: None, .. }] = &*self.rules
        else {
            return false;
        };
        self.sniffers == 0 && !self.rules[0].dont_trap
    }

    /// Applies the rules to a frame. Calls `deliver` with the flow tag for each copy of the frame that the queue pair
    /// receives.
    pub(super) fn apply(&self, frame: &[u8], mut deliver: impl FnMut(u32)) {
        for _ in 0..self.sniffers {
            deliver(0);
        }
        let (outer, tunnel) = parse(frame);
        let mut matched = false;
        // The priority of a matched rule with `dont_trap`. The other rules with `dont_trap` of this priority do not
        // apply.
        let mut passed = None;
        for rule in &self.rules {
            let is_second = rule.dont_trap && passed == Some(rule.priority);
            if is_second || !matches(&rule.traffic, &outer, tunnel.as_ref()) {
                continue;
            }
            matched = true;
            // The device that created the counters was checked when the queue pair was created.
            if let Some(counters) = &rule.count
                && let Some(counters) = (counters.as_ref() as &dyn Any).downcast_ref::<SoftFlowCounters>()
            {
                counters.count(frame);
            }
            if !rule.drop {
                deliver(rule.tag.unwrap_or(0));
            }
            if !rule.dont_trap {
                break;
            }
            passed = Some(rule.priority);
        }
        let multicast = frame.first().is_some_and(|first| first & 1 == 1);
        if !matched && (self.has_all_default || (self.has_multicast_default && multicast)) {
            deliver(0);
        }
    }
}

/// Returns whether a rule for `traffic` matches the headers of a frame.
fn matches(traffic: &FlowTraffic, outer: &Headers<'_>, inside: Option<&(Tunnel<'_>, Headers<'_>)>) -> bool {
    let FlowTraffic::Headers { outer: wanted, tunnel } = traffic else { return false };
    headers(wanted, outer)
        && match (tunnel, inside) {
            (None, _) => true,
            (Some((wanted, inner_wanted)), Some((found, inner))) => {
                tunnel_header(wanted, found) && headers(inner_wanted, inner)
            }
            (Some(_), None) => false,
        }
}

fn same<const N: usize>(wanted: &MaskedValue<N>, found: &[u8]) -> bool {
    let masked = found.iter().zip(wanted.mask()).map(|(byte, mask)| byte & mask);
    found.len() == N && masked.eq(wanted.value().iter().copied())
}

fn headers(wanted: &HeaderMatch, found: &Headers<'_>) -> bool {
    wanted.ethernet.as_ref().is_none_or(|wanted| ethernet(wanted, found))
        && wanted.ip.as_ref().is_none_or(|wanted| match (wanted, found.ip) {
            (IpMatch::V4(wanted), Some(Ip::V4(found))) => ipv4(wanted, found),
            (IpMatch::V6(wanted), Some(Ip::V6(found))) => ipv6(wanted, found),
            _ => false,
        })
        && wanted.transport.as_ref().is_none_or(|wanted| match (wanted, found.transport) {
            (TransportMatch::Tcp(wanted), Some(found @ Transport { kind: TransportKind::Tcp, .. }))
            | (TransportMatch::Udp(wanted), Some(found @ Transport { kind: TransportKind::Udp, .. })) => {
                ports(wanted, found)
            }
            _ => false,
        })
}

fn ethernet(wanted: &EthernetMatch, found: &Headers<'_>) -> bool {
    let Some(found) = found.ethernet else { return false };
    let tag = match found.tag {
        Some(tag) => same(&wanted.vlan_tag, &tag.to_be_bytes()),
        None => wanted.vlan_tag.is_any(),
    };
    tag && same(&wanted.dst, found.dst)
        && same(&wanted.src, found.src)
        && same(&wanted.ether_type, &found.ether_type.to_be_bytes())
}

fn ipv4(wanted: &Ipv4Match, found: &[u8; 20]) -> bool {
    /// Converts the flags in an IPv4 header to the flags of a match (`enum ib_ipv4_flags`).
    fn flags(header: u8) -> u8 {
        (header >> 6 & 1) << 1 | (header >> 5 & 1) << 2
    }
    same(&wanted.src, &found[12..16])
        && same(&wanted.dst, &found[16..20])
        && same(&wanted.protocol, &found[9..10])
        && same(&wanted.tos, &found[1..2])
        && same(&wanted.ttl, &found[8..9])
        && same(&wanted.flags, &[flags(found[6])])
}

fn ipv6(wanted: &Ipv6Match, found: &[u8; 40]) -> bool {
    let first = u32::from_be_bytes([found[0], found[1], found[2], found[3]]);
    // Ignore the bits of the mask above the 20 bits of the flow label.
    let label = MaskedValue::masked(*wanted.flow_label.value(), low(*wanted.flow_label.mask(), 20));
    same(&wanted.src, &found[8..24])
        && same(&wanted.dst, &found[24..40])
        && same(&label, &first.to_be_bytes())
        && same(&wanted.next_header, &found[6..7])
        && same(&wanted.traffic_class, &[(first >> 20) as u8])
        && same(&wanted.hop_limit, &found[7..8])
}

fn ports(wanted: &PortsMatch, found: Transport) -> bool {
    same(&wanted.src, &found.src.to_be_bytes()) && same(&wanted.dst, &found.dst.to_be_bytes())
}

fn tunnel_header(wanted: &TunnelMatch, found: &Tunnel<'_>) -> bool {
    match (wanted, found) {
        (TunnelMatch::Vxlan { vni: wanted }, Tunnel::Vxlan { vni }) => {
            same(&MaskedValue::masked(*wanted.value(), low(*wanted.mask(), 24)), &vni.to_be_bytes())
        }
        (
            TunnelMatch::Gre { flags: wanted_flags, protocol: wanted_protocol, key: wanted_key },
            Tunnel::Gre { flags, protocol, key },
        ) => {
            same(wanted_flags, &flags.to_be_bytes())
                && same(wanted_protocol, &protocol.to_be_bytes())
                && key.map_or(wanted_key.is_any(), |key| same(wanted_key, key))
        }
        (TunnelMatch::Mpls { label }, Tunnel::Mpls { entry }) => same(label, *entry),
        _ => false,
    }
}

/// Returns the low `bits` bits of a mask.
fn low(mask: [u8; 4], bits: u32) -> [u8; 4] {
    (u32::from_be_bytes(mask) & ((1 << bits) - 1)).to_be_bytes()
}
