//! Encoding of a flow rule as `struct ibv_flow_attr` followed by `struct ibv_flow_spec_*` of verbs.h. Filter values are
//! in network order, and unused bytes are zero. Types, sizes, priorities and tags are in host order.

use std::any::Any;

use ibverbs_sys::*;

use super::VerbsFlowCounters;
use super::driver::needs_empty_ethernet;
use dataplane_core::verbs::{
    EthernetMatch, FlowCounters, FlowError, FlowLimits, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match,
    Ipv6Match, MaskedValue, PortsMatch, TransportMatch, TunnelMatch,
};

/// The encoded specifications (specs) of a rule: one for each header that the rule matches, and one for each action.
#[derive(Default)]
struct Encoder {
    bytes: Vec<u8>,
    specs: u8,
}

impl Encoder {
    /// Appends a spec: type, size, values and masks. `fields` has the order of the members of the C filter structure.
    fn filter(&mut self, kind: u32, align: usize, fields: &[Field<'_>]) {
        let start = self.start(kind);
        for masks in [false, true] {
            self.pad(start, align);
            for (value, mask) in fields {
                self.bytes.extend_from_slice(if masks { mask } else { value });
            }
        }
        self.end(start);
    }

    fn start(&mut self, kind: u32) -> usize {
        let start = self.bytes.len();
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend([0; 2]);
        start
    }

    fn pad(&mut self, start: usize, align: usize) {
        let length = (self.bytes.len() - start).next_multiple_of(align);
        self.bytes.resize(start + length, 0);
    }

    fn end(&mut self, start: usize) {
        self.pad(start, 4);
        let size = (self.bytes.len() - start) as u16;
        self.bytes[start + 4..start + 6].copy_from_slice(&size.to_ne_bytes());
        self.specs += 1;
    }
}

/// The value and the mask of a field.
type Field<'a> = (&'a [u8], &'a [u8]);

fn field<const N: usize>(bits: &MaskedValue<N>) -> Field<'_> {
    (bits.value(), bits.mask())
}

/// Encodes a flow rule for `ibv_create_flow`: `struct ibv_flow_attr` followed by its specs.
///
/// # Errors
/// The rule is invalid, or its counters belong to a device of another provider.
pub fn encode_flow_rule(rule: &FlowRule) -> Result<Vec<u8>, FlowError> {
    encode_for(rule, &FlowLimits::NONE)
}

/// Encodes a flow rule for a driver with these limits.
///
/// # Errors
/// Same as [`encode_flow_rule`].
pub(super) fn encode_for(rule: &FlowRule, limits: &FlowLimits) -> Result<Vec<u8>, FlowError> {
    rule.check()?;
    let mut encoder = Encoder::default();
    if needs_empty_ethernet(rule, limits) {
        ethernet(&mut encoder, &EthernetMatch::default(), 0);
    }
    let kind = match &rule.traffic {
        FlowTraffic::Headers { outer, tunnel } => {
            headers(&mut encoder, outer, 0);
            if let Some((tunnel, inner)) = tunnel {
                encode_tunnel(&mut encoder, tunnel);
                headers(&mut encoder, inner, IBV_FLOW_SPEC_INNER);
            }
            if encoder.specs == 0 {
                // A rule that matches every frame still needs one spec: an Ethernet header with an empty match.
                ethernet(&mut encoder, &EthernetMatch::default(), 0);
            }
            IBV_FLOW_ATTR_NORMAL
        }
        FlowTraffic::AllDefault => IBV_FLOW_ATTR_ALL_DEFAULT,
        FlowTraffic::MulticastDefault => IBV_FLOW_ATTR_MC_DEFAULT,
        FlowTraffic::Sniffer => IBV_FLOW_ATTR_SNIFFER,
    };
    encode_actions(&mut encoder, rule)?;
    let size = size_of::<ibv_flow_attr>() + encoder.bytes.len();
    let mut bytes = Vec::with_capacity(size);
    let comp_mask = 0_u32;
    let flags = if rule.dont_trap { IBV_FLOW_ATTR_FLAGS_DONT_TRAP } else { 0 };
    bytes.extend(comp_mask.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((size as u16).to_ne_bytes());
    bytes.extend(rule.priority.to_ne_bytes());
    bytes.extend([encoder.specs, rule.port]);
    bytes.extend([0; 2]);
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(encoder.bytes);
    Ok(bytes)
}

fn encode_actions(encoder: &mut Encoder, rule: &FlowRule) -> Result<(), FlowError> {
    if let Some(tag) = rule.tag {
        let start = encoder.start(IBV_FLOW_SPEC_ACTION_TAG);
        encoder.pad(start, 4);
        encoder.bytes.extend(tag.to_ne_bytes());
        encoder.end(start);
    }
    if let Some(counters) = &rule.count {
        let counters = own_counters(counters.as_ref()).ok_or(FlowError::OtherDevice)?;
        let start = encoder.start(IBV_FLOW_SPEC_ACTION_COUNT);
        encoder.pad(start, 8);
        encoder.bytes.extend(counters.counters.as_ptr().expose_provenance().to_ne_bytes());
        encoder.end(start);
    }
    if rule.drop {
        let start = encoder.start(IBV_FLOW_SPEC_ACTION_DROP);
        encoder.end(start);
    }
    Ok(())
}

/// Returns the counters as [`VerbsFlowCounters`], or `None` if another provider created them.
pub(super) fn own_counters(counters: &dyn FlowCounters) -> Option<&VerbsFlowCounters> {
    (counters as &dyn Any).downcast_ref()
}

/// Appends the specs of headers. `inner` is `IBV_FLOW_SPEC_INNER` for headers inside a tunnel, otherwise 0.
fn headers(encoder: &mut Encoder, headers: &HeaderMatch, inner: u32) {
    if let Some(spec) = &headers.ethernet {
        ethernet(encoder, spec, inner);
    }
    match &headers.ip {
        Some(IpMatch::V4(spec)) => ipv4(encoder, spec, inner),
        Some(IpMatch::V6(spec)) => ipv6(encoder, spec, inner),
        None => {}
    }
    match &headers.transport {
        Some(TransportMatch::Tcp(spec)) => ports(encoder, spec, IBV_FLOW_SPEC_TCP | inner),
        Some(TransportMatch::Udp(spec)) => ports(encoder, spec, IBV_FLOW_SPEC_UDP | inner),
        None => {}
    }
}

fn ethernet(encoder: &mut Encoder, spec: &EthernetMatch, inner: u32) {
    encoder.filter(
        IBV_FLOW_SPEC_ETH | inner,
        2,
        &[field(&spec.dst), field(&spec.src), field(&spec.ether_type), field(&spec.vlan_tag)],
    );
}

fn ipv4(encoder: &mut Encoder, spec: &Ipv4Match, inner: u32) {
    let addresses = [field(&spec.src), field(&spec.dst)];
    let others = [field(&spec.protocol), field(&spec.tos), field(&spec.ttl), field(&spec.flags)];
    if [spec.protocol, spec.tos, spec.ttl, spec.flags].iter().all(MaskedValue::is_any) {
        encoder.filter(IBV_FLOW_SPEC_IPV4 | inner, 4, &addresses);
    } else {
        encoder.filter(IBV_FLOW_SPEC_IPV4_EXT | inner, 4, &[&addresses[..], &others].concat());
    }
}

fn ipv6(encoder: &mut Encoder, spec: &Ipv6Match, inner: u32) {
    // The flow label is in the low 20 bits. The kernel requires the other bits to be zero.
    let whole = [0, 0x0f, 0xff, 0xff];
    let label = MaskedValue::masked(*spec.flow_label.value(), and(*spec.flow_label.mask(), whole));
    encoder.filter(
        IBV_FLOW_SPEC_IPV6 | inner,
        4,
        &[
            field(&spec.src),
            field(&spec.dst),
            field(&label),
            field(&spec.next_header),
            field(&spec.traffic_class),
            field(&spec.hop_limit),
        ],
    );
}

fn ports(encoder: &mut Encoder, spec: &PortsMatch, kind: u32) {
    encoder.filter(kind, 2, &[field(&spec.dst), field(&spec.src)]);
}

fn encode_tunnel(encoder: &mut Encoder, tunnel: &TunnelMatch) {
    match tunnel {
        TunnelMatch::Vxlan { vni } => {
            let whole = [0, 0xff, 0xff, 0xff];
            let vni = MaskedValue::masked(*vni.value(), and(*vni.mask(), whole));
            encoder.filter(IBV_FLOW_SPEC_VXLAN_TUNNEL, 4, &[field(&vni)]);
        }
        TunnelMatch::Gre { flags, protocol, key } => {
            encoder.filter(IBV_FLOW_SPEC_GRE, 4, &[field(flags), field(protocol), field(key)])
        }
        TunnelMatch::Mpls { label } => encoder.filter(IBV_FLOW_SPEC_MPLS, 4, &[field(label)]),
    }
}

fn and<const N: usize>(a: [u8; N], b: [u8; N]) -> [u8; N] {
    std::array::from_fn(|at| a[at] & b[at])
}

/// Checks at compile time that the encodings have the layout of the structures in verbs.h.
const _: () = {
    macro_rules! offsets {
        ($($spec:ident: $value:literal $mask:literal;)+) => {$(
            assert!(std::mem::offset_of!($spec, val) == $value && std::mem::offset_of!($spec, mask) == $mask);
        )+};
    }
    offsets! {
        ibv_flow_spec_eth: 6 22;
        ibv_flow_spec_ipv4: 8 16;
        ibv_flow_spec_ipv4_ext: 8 20;
        ibv_flow_spec_ipv6: 8 48;
        ibv_flow_spec_tcp_udp: 6 10;
        ibv_flow_spec_tunnel: 8 12;
        ibv_flow_spec_gre: 8 16;
        ibv_flow_spec_mpls: 8 12;
    }
    assert!(std::mem::offset_of!(ibv_flow_spec_action_tag, tag_id) == 8);
    assert!(std::mem::offset_of!(ibv_flow_spec_counter_action, counters) == 8);
    assert!(std::mem::offset_of!(ibv_flow_attr, priority) == 10 && std::mem::offset_of!(ibv_flow_attr, flags) == 16);
};
