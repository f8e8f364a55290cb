//! Flow rules: which frames of a port a queue pair of raw packets gets (`ibv_create_flow(3)`).
//!
//! No frame arrives at such a queue pair before a rule is there. A rule says which headers a frame must have, outside
//! and inside of a tunnel, and what becomes of it: to the queue pair, with a tag, counted, or dropped. What the types
//! cannot rule out is checked before the device is asked; each refusal says what to do instead.
//!
//! Not run on hardware: no device of the test bed has flow rules. The encodings are compared byte by byte with what the
//! man page and verbs.h want, against a driver in memory.
//!
//! What devices do with rules, by the man page and the kernel's mlx5 driver:
//! - A smaller priority wins. Rules of verbs come before those of `ethtool` and of the kernel's own stack.
//! - A field is matched whole or not at all. Masks of single bits, prefixes and ranges are refused by many devices:
//!   [`FlowRule::partial_masks`] names such fields, and [`FlowError::Refused`] repeats them.
//! - A rule needs `CAP_NET_RAW` in the first user namespace.
//! - A tag shares its place in the completion with the queue pair's number: with
//!   [`PollFields::FLOW_TAG`](crate::provider::PollFields) the number of a receive is not valid. A frame of no rule with a
//!   tag has tag 0.

mod encode;
mod object;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use encode::VLAN_ID;
pub(super) use object::Flow;
pub use object::{FlowCount, FlowCounters};

use crate::error::VerbError;

/// The bits of a header field that a rule wants, in network order. [`Bits::ANY`] wants none. A number or an address
/// turns into those that are just like it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bits<const N: usize> {
    value: [u8; N],
    mask: [u8; N],
}

impl<const N: usize> Bits<N> {
    /// Whatever is there.
    pub const ANY: Self = Self { value: [0; N], mask: [0; N] };

    /// Just this.
    pub const fn exact(value: [u8; N]) -> Self {
        Self { value, mask: [0xff; N] }
    }

    /// The bits of `value` that are set in `mask`.
    pub fn masked(value: [u8; N], mask: [u8; N]) -> Self {
        Self { value: std::array::from_fn(|at| value[at] & mask[at]), mask }
    }

    /// The first `length` bits: a prefix of addresses. More than there are is all.
    pub fn prefix(value: [u8; N], length: u8) -> Self {
        let ones = |at: usize| u32::from(length).saturating_sub(8 * at as u32).min(8);
        Self::masked(value, std::array::from_fn(|at| (0xff00_u16 >> ones(at)) as u8))
    }

    fn is_any(&self) -> bool {
        self.mask == [0; N]
    }
}

impl<const N: usize> Default for Bits<N> {
    fn default() -> Self {
        Self::ANY
    }
}

impl<const N: usize> fmt::Debug for Bits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}/{:02x?}", self.value, self.mask)
    }
}

impl From<u8> for Bits<1> {
    fn from(value: u8) -> Self {
        Self::exact([value])
    }
}

impl From<u16> for Bits<2> {
    fn from(value: u16) -> Self {
        Self::exact(value.to_be_bytes())
    }
}

impl From<u32> for Bits<4> {
    fn from(value: u32) -> Self {
        Self::exact(value.to_be_bytes())
    }
}

impl From<[u8; 6]> for Bits<6> {
    fn from(value: [u8; 6]) -> Self {
        Self::exact(value)
    }
}

impl From<Ipv4Addr> for Bits<4> {
    fn from(value: Ipv4Addr) -> Self {
        Self::exact(value.octets())
    }
}

impl From<Ipv6Addr> for Bits<16> {
    fn from(value: Ipv6Addr) -> Self {
        Self::exact(value.octets())
    }
}

/// An Ethernet header: `struct ibv_flow_spec_eth`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetMatch {
    /// Destination address.
    pub dst: Bits<6>,
    /// Source address.
    pub src: Bits<6>,
    /// The type behind the last VLAN tag.
    pub ether_type: Bits<2>,
    /// The VLAN tag: priority, drop bit and identifier. See [`EthernetMatch::vlan`].
    pub vlan_tag: Bits<2>,
}

impl EthernetMatch {
    /// The VLAN identifier of a tag, whatever its priority: the low 12 bits.
    pub fn vlan(id: u16) -> Bits<2> {
        Bits::masked(id.to_be_bytes(), VLAN_ID)
    }
}

/// An IPv4 header: `struct ibv_flow_spec_ipv4_ext`, or `struct ibv_flow_spec_ipv4` for addresses alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Match {
    /// Source address.
    pub src: Bits<4>,
    /// Destination address.
    pub dst: Bits<4>,
    /// The protocol inside.
    pub protocol: Bits<1>,
    /// Type of service.
    pub tos: Bits<1>,
    /// Time to live.
    pub ttl: Bits<1>,
    /// The flags of fragments.
    pub flags: Bits<1>,
}

/// An IPv6 header: `struct ibv_flow_spec_ipv6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Match {
    /// Source address.
    pub src: Bits<16>,
    /// Destination address.
    pub dst: Bits<16>,
    /// The flow label: the low 20 bits.
    pub flow_label: Bits<4>,
    /// The protocol inside, or the first extension header.
    pub next_header: Bits<1>,
    /// Traffic class.
    pub traffic_class: Bits<1>,
    /// Hop limit.
    pub hop_limit: Bits<1>,
}

/// An IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpMatch {
    /// Version 4.
    V4(Ipv4Match),
    /// Version 6.
    V6(Ipv6Match),
}

/// The ports of TCP or UDP: `struct ibv_flow_spec_tcp_udp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortsMatch {
    /// Source port.
    pub src: Bits<2>,
    /// Destination port.
    pub dst: Bits<2>,
}

/// A header of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportMatch {
    /// TCP.
    Tcp(PortsMatch),
    /// UDP.
    Udp(PortsMatch),
}

/// Headers from Ethernet on. `None`: whatever is there, or nothing; `Some` with nothing to match: any of that kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Ethernet.
    pub ethernet: Option<EthernetMatch>,
    /// IP.
    pub ip: Option<IpMatch>,
    /// TCP or UDP.
    pub transport: Option<TransportMatch>,
}

/// The header of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelMatch {
    /// VXLAN, over UDP: `struct ibv_flow_spec_tunnel`.
    Vxlan {
        /// The network's identifier: the low 24 bits.
        vni: Bits<4>,
    },
    /// GRE, over IP: `struct ibv_flow_spec_gre`.
    Gre {
        /// Flags and version.
        flags: Bits<2>,
        /// The type of what is inside.
        protocol: Bits<2>,
        /// The key.
        key: Bits<4>,
    },
    /// MPLS, over Ethernet, GRE or UDP: `struct ibv_flow_spec_mpls`.
    Mpls {
        /// A whole entry: label (20 bits), traffic class, bottom of stack, time to live.
        label: Bits<4>,
    },
}

/// Which frames of a port a rule takes: `enum ibv_flow_attr_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "few, and not moved where it counts")]
pub enum FlowTraffic {
    /// Those with these headers. With none: every frame.
    Headers {
        /// From the start of the frame.
        outer: HeaderMatch,
        /// Of a tunnel, with the headers inside of it.
        tunnel: Option<(TunnelMatch, HeaderMatch)>,
    },
    /// Those that no other rule of the port takes.
    AllDefault,
    /// Those of multicast that no other rule of the port takes.
    MulticastDefault,
    /// A copy of every frame of the port, those of RDMA included. Many devices refuse it.
    Sniffer,
}

impl FlowTraffic {
    /// Every frame of the port that no rule of a smaller priority takes.
    pub const ALL: Self =
        Self::Headers { outer: HeaderMatch { ethernet: None, ip: None, transport: None }, tunnel: None };
}

/// A rule: which frames, and what becomes of them (`ibv_create_flow(3)`). Not run on hardware.
#[derive(Clone, Debug)]
pub struct FlowRule {
    /// The port, from 1.
    pub port: u8,
    /// Of two rules that match the one with the smaller number wins.
    pub priority: u16,
    /// Which frames.
    pub traffic: FlowTraffic,
    /// A tag for each completion: 24 bits.
    pub tag: Option<u32>,
    /// Whether they are dropped, and not given to the queue pair.
    pub drop: bool,
    /// Where they are counted.
    pub count: Option<Arc<FlowCounters>>,
    /// Whether rules of greater priority numbers see them too.
    pub dont_trap: bool,
}

impl FlowRule {
    /// A rule that gives frames of port 1 to the queue pair, at the first priority.
    pub fn new(traffic: FlowTraffic) -> Self {
        Self { port: 1, priority: 0, traffic, tag: None, drop: false, count: None, dont_trap: false }
    }
}

/// A rule that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// Ports count from 1.
    #[error("port 0: ports count from 1")]
    Port,
    /// TCP or UDP ports without an IP header.
    #[error("{0} ports without an IP header: say which of IPv4 and IPv6, if only by an empty match")]
    TransportWithoutIp(&'static str),
    /// Ethernet's type and the IP header are of different protocols.
    #[error("ether_type {ether_type:#06x} with an {ip} header: leave the type out, the header says it")]
    EtherType {
        /// The type.
        ether_type: u16,
        /// The header.
        ip: &'static str,
    },
    /// IP's protocol and the header inside are different.
    #[error("IP protocol {protocol} with {inside}: leave the protocol out, the header says it")]
    Protocol {
        /// The protocol.
        protocol: u8,
        /// What is inside.
        inside: &'static str,
    },
    /// A tunnel over a header that cannot carry it.
    #[error("{tunnel} over {over}: {tunnel} goes over {wanted}")]
    Tunnel {
        /// The tunnel.
        tunnel: &'static str,
        /// What it was to go over.
        over: &'static str,
        /// What it can go over.
        wanted: &'static str,
    },
    /// A number that its field has no room for.
    #[error("{field} {value:#x}: it has {bits} bits")]
    Width {
        /// The field.
        field: &'static str,
        /// The number.
        value: u32,
        /// Its bits.
        bits: u8,
    },
    /// Tag, drop and count are for rules with headers.
    #[error("{0} of a default or sniffer rule: only rules with headers have it; match all headers instead")]
    ActionWithoutHeaders(&'static str),
    /// Only rules with headers can let others see what they took.
    #[error("dont_trap of a default or sniffer rule: only rules with headers have it")]
    DontTrapWithoutHeaders,
    /// What is dropped goes nowhere else.
    #[error("drop with {0}: what is dropped goes nowhere else")]
    DropWith(&'static str),
    /// The device refused.
    #[error("{error}{}", refused(.error, .partial))]
    Refused {
        /// Why.
        error: VerbError,
        /// Fields that were to be matched in part.
        partial: Vec<&'static str>,
    },
}

/// What a user can do about a refusal.
fn refused(error: &VerbError, partial: &[&str]) -> String {
    match error.errno {
        libc::EPERM => ": flow rules need CAP_NET_RAW: setcap cap_net_raw+ep PROGRAM".to_owned(),
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENXIO => ": the device has no such flow rules".to_owned(),
        _ if !partial.is_empty() => {
            let fields = partial.join(", ");
            format!(": most devices match a field whole or not at all, and the rule has a part of {fields}")
        }
        libc::ENOMEM => ": no room for the rule, or no such priority".to_owned(),
        _ => String::new(),
    }
}
