//! Encoding of a flow rule as `struct ibv_flow_attr` followed by `struct ibv_flow_spec_*` of verbs.h. Filter values are
//! in network order, and unused bytes are zero. Types, sizes, priorities and tags are in host order.

use ibverbs_sys::*;

use super::{
    Bits, EthernetMatch, FlowError, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match, PortsMatch,
    TransportMatch, TunnelMatch, VLAN_ID,
};

const TAG_BITS: u8 = 24;

/// The encoded specs of a rule, the matched fields, and the matched fields whose masks do not cover the whole field.
#[derive(Default)]
struct Encoder {
    bytes: Vec<u8>,
    specs: u8,
    matched: Vec<&'static str>,
    partial: Vec<&'static str>,
}

/// An encoded rule.
pub(super) struct Encoded {
    /// `struct ibv_flow_attr`, followed by its specs.
    pub(super) bytes: Vec<u8>,
    /// The matched fields.
    pub(super) matched: Vec<&'static str>,
    /// The matched fields whose masks do not cover the whole field.
    pub(super) partial: Vec<&'static str>,
}

impl Encoder {
    /// Appends a spec: type, size, values and masks. `fields` has the order of the members of the C filter structure.
    fn filter(&mut self, kind: u32, align: usize, fields: &[Field<'_>]) {
        let start = self.start(kind);
        for masks in [false, true] {
            self.pad(start, align);
            for (name, value, mask, whole) in fields {
                self.bytes.extend_from_slice(if masks { mask } else { value });
                if masks && mask.iter().any(|byte| *byte != 0) {
                    self.matched.push(name);
                    if mask != whole {
                        self.partial.push(name);
                    }
                }
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

/// A field of a filter: its name, value, mask, and the mask that covers the whole field.
type Field<'a> = (&'static str, &'a [u8], &'a [u8], &'a [u8]);

const ONES: [u8; 16] = [0xff; 16];

/// Returns a field that uses all bits of its bytes.
fn field<'a, const N: usize>(name: &'static str, bits: &'a Bits<N>) -> Field<'a> {
    (name, &bits.value, &bits.mask, &ONES[..N])
}

/// Returns a field that uses only some bits of its bytes. `whole` is the mask of these bits.
fn low<'a, const N: usize>(name: &'static str, bits: &'a Bits<N>, whole: &'a [u8; N]) -> Field<'a> {
    (name, &bits.value, &bits.mask, whole)
}

impl FlowRule {
    /// Encodes the rule for `ibv_create_flow`: `struct ibv_flow_attr` followed by its specs.
    ///
    /// # Errors
    /// The rule is invalid.
    pub fn encode(&self) -> Result<Vec<u8>, FlowError> {
        self.encoded().map(|rule| rule.bytes)
    }

    /// Returns the matched fields whose masks do not cover the whole field. Many devices refuse rules with such masks.
    ///
    /// # Errors
    /// The rule is invalid.
    pub fn partial_masks(&self) -> Result<Vec<&'static str>, FlowError> {
        self.encoded().map(|rule| rule.partial)
    }

    pub(super) fn encoded(&self) -> Result<Encoded, FlowError> {
        self.check()?;
        let mut encoder = Encoder::default();
        let kind = match &self.traffic {
            FlowTraffic::Headers { outer, tunnel } => {
                headers(&mut encoder, outer, 0);
                if let Some((tunnel, inner)) = tunnel {
                    encode_tunnel(&mut encoder, tunnel);
                    headers(&mut encoder, inner, IBV_FLOW_SPEC_INNER);
                }
                if encoder.specs == 0 {
                    // A rule for every frame needs one header with an empty match.
                    ethernet(&mut encoder, &EthernetMatch::default(), 0);
                }
                IBV_FLOW_ATTR_NORMAL
            }
            FlowTraffic::AllDefault => IBV_FLOW_ATTR_ALL_DEFAULT,
            FlowTraffic::MulticastDefault => IBV_FLOW_ATTR_MC_DEFAULT,
            FlowTraffic::Sniffer => IBV_FLOW_ATTR_SNIFFER,
        };
        self.actions(&mut encoder);
        let size = size_of::<ibv_flow_attr>() + encoder.bytes.len();
        let mut bytes = Vec::with_capacity(size);
        let comp_mask = 0_u32;
        let flags = if self.dont_trap { IBV_FLOW_ATTR_FLAGS_DONT_TRAP } else { 0 };
        bytes.extend(comp_mask.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((size as u16).to_ne_bytes());
        bytes.extend(self.priority.to_ne_bytes());
        bytes.extend([encoder.specs, self.port]);
        bytes.extend([0; 2]);
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(encoder.bytes);
        Ok(Encoded { bytes, matched: encoder.matched, partial: encoder.partial })
    }

    fn actions(&self, encoder: &mut Encoder) {
        if let Some(tag) = self.tag {
            let start = encoder.start(IBV_FLOW_SPEC_ACTION_TAG);
            encoder.pad(start, 4);
            encoder.bytes.extend(tag.to_ne_bytes());
            encoder.end(start);
        }
        if let Some(counters) = &self.count {
            let start = encoder.start(IBV_FLOW_SPEC_ACTION_COUNT);
            encoder.pad(start, 8);
            encoder.bytes.extend(counters.counters.as_ptr().expose_provenance().to_ne_bytes());
            encoder.end(start);
        }
        if self.drop {
            let start = encoder.start(IBV_FLOW_SPEC_ACTION_DROP);
            encoder.end(start);
        }
    }

    fn check(&self) -> Result<(), FlowError> {
        if self.port == 0 {
            return Err(FlowError::Port);
        }
        width("tag", self.tag.unwrap_or(0), TAG_BITS)?;
        if let FlowTraffic::Headers { outer, tunnel } = &self.traffic {
            check_headers(outer)?;
            if let Some((tunnel, inner)) = tunnel {
                check_tunnel(outer, tunnel)?;
                check_headers(inner)?;
            }
        } else {
            let actions = [(self.tag.is_some(), "tag"), (self.drop, "drop"), (self.count.is_some(), "count")];
            if let Some((_, action)) = actions.into_iter().find(|(there, _)| *there) {
                return Err(FlowError::ActionWithoutHeaders(action));
            }
            if self.dont_trap {
                return Err(FlowError::DontTrapWithoutHeaders);
            }
        }
        let others = [(self.tag.is_some(), "a tag"), (self.dont_trap, "dont_trap")];
        match others.into_iter().find(|(there, _)| self.drop && *there) {
            Some((_, other)) => Err(FlowError::DropWith(other)),
            None => Ok(()),
        }
    }
}

fn width(field: &'static str, value: u32, bits: u8) -> Result<(), FlowError> {
    if value >> bits == 0 { Ok(()) } else { Err(FlowError::Width { field, value, bits }) }
}

/// Returns the number that a field must equal. Returns `None` if the mask does not cover the whole field.
fn whole<const N: usize>(bits: &Bits<N>) -> Option<u32> {
    (bits.mask == [0xff; N]).then(|| bits.value.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

/// Checks that the value of a 4-byte field fits in its low `bits` bits.
fn low_width(field: &'static str, wanted: &Bits<4>, bits: u8) -> Result<(), FlowError> {
    // The conversion from a number sets all bits of the mask, including the bits above the field. This function
    // therefore checks only the value.
    width(field, u32::from_be_bytes(wanted.value), bits)
}

fn check_headers(headers: &HeaderMatch) -> Result<(), FlowError> {
    let (ip, ether_type, protocol) = match &headers.ip {
        Some(IpMatch::V4(ip)) => ("IPv4", 0x0800, ip.protocol),
        Some(IpMatch::V6(ip)) => {
            low_width("flow_label", &ip.flow_label, 20)?;
            ("IPv6", 0x86dd, ip.next_header)
        }
        None => ("", 0, Bits::ANY),
    };
    if let (Some(ethernet), false) = (&headers.ethernet, ip.is_empty())
        && let Some(wanted) = whole(&ethernet.ether_type)
        && wanted != ether_type
    {
        return Err(FlowError::EtherType { ether_type: wanted as u16, ip });
    }
    let (inside, number) = match &headers.transport {
        Some(TransportMatch::Tcp(_)) => ("TCP", 6),
        Some(TransportMatch::Udp(_)) => ("UDP", 17),
        None => return Ok(()),
    };
    if ip.is_empty() {
        return Err(FlowError::TransportWithoutIp(inside));
    }
    match whole(&protocol) {
        Some(wanted) if wanted != number => Err(FlowError::Protocol { protocol: wanted as u8, inside }),
        _ => Ok(()),
    }
}

fn check_tunnel(outer: &HeaderMatch, tunnel: &TunnelMatch) -> Result<(), FlowError> {
    let transport = outer.transport.as_ref().map(|transport| match transport {
        TransportMatch::Tcp(_) => "TCP",
        TransportMatch::Udp(_) => "UDP",
    });
    let (name, wanted, bad) = match tunnel {
        TunnelMatch::Vxlan { vni } => {
            low_width("vni", vni, 24)?;
            ("VXLAN", "UDP", transport.filter(|over| *over != "UDP"))
        }
        TunnelMatch::Gre { .. } => ("GRE", "IP", transport),
        TunnelMatch::Mpls { .. } => ("MPLS", "Ethernet, GRE or UDP", transport.filter(|over| *over != "UDP")),
    };
    match bad {
        Some(over) => Err(FlowError::Tunnel { tunnel: name, over, wanted }),
        None => Ok(()),
    }
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
    let vlan_tag = if spec.vlan_tag.mask == VLAN_ID { &VLAN_ID } else { &[0xff; 2] };
    encoder.filter(
        IBV_FLOW_SPEC_ETH | inner,
        2,
        &[
            field("ethernet dst", &spec.dst),
            field("ethernet src", &spec.src),
            field("ether_type", &spec.ether_type),
            low("vlan_tag", &spec.vlan_tag, vlan_tag),
        ],
    );
}

fn ipv4(encoder: &mut Encoder, spec: &Ipv4Match, inner: u32) {
    let addresses = [field("ipv4 src", &spec.src), field("ipv4 dst", &spec.dst)];
    let others = [
        field("ipv4 protocol", &spec.protocol),
        field("ipv4 tos", &spec.tos),
        field("ipv4 ttl", &spec.ttl),
        field("ipv4 flags", &spec.flags),
    ];
    if [spec.protocol, spec.tos, spec.ttl, spec.flags].iter().all(Bits::is_any) {
        encoder.filter(IBV_FLOW_SPEC_IPV4 | inner, 4, &addresses);
    } else {
        encoder.filter(IBV_FLOW_SPEC_IPV4_EXT | inner, 4, &[&addresses[..], &others].concat());
    }
}

fn ipv6(encoder: &mut Encoder, spec: &Ipv6Match, inner: u32) {
    // The flow label is in the low 20 bits. The kernel requires the other bits to be zero.
    let whole = [0, 0x0f, 0xff, 0xff];
    let label = Bits::masked(spec.flow_label.value, and(spec.flow_label.mask, whole));
    encoder.filter(
        IBV_FLOW_SPEC_IPV6 | inner,
        4,
        &[
            field("ipv6 src", &spec.src),
            field("ipv6 dst", &spec.dst),
            low("ipv6 flow_label", &label, &whole),
            field("ipv6 next_header", &spec.next_header),
            field("ipv6 traffic_class", &spec.traffic_class),
            field("ipv6 hop_limit", &spec.hop_limit),
        ],
    );
}

fn ports(encoder: &mut Encoder, spec: &PortsMatch, kind: u32) {
    encoder.filter(kind, 2, &[field("dst port", &spec.dst), field("src port", &spec.src)]);
}

fn encode_tunnel(encoder: &mut Encoder, tunnel: &TunnelMatch) {
    match tunnel {
        TunnelMatch::Vxlan { vni } => {
            let whole = [0, 0xff, 0xff, 0xff];
            let vni = Bits::masked(vni.value, and(vni.mask, whole));
            encoder.filter(IBV_FLOW_SPEC_VXLAN_TUNNEL, 4, &[low("vni", &vni, &whole)]);
        }
        TunnelMatch::Gre { flags, protocol, key } => encoder.filter(
            IBV_FLOW_SPEC_GRE,
            4,
            &[field("gre flags", flags), field("gre protocol", protocol), field("gre key", key)],
        ),
        TunnelMatch::Mpls { label } => encoder.filter(IBV_FLOW_SPEC_MPLS, 4, &[field("mpls label", label)]),
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
