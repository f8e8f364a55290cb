//! Flow rules, which select the frames of a port that a raw-packet queue pair receives (`ibv_create_flow(3)`).
//!
//! A raw-packet queue pair receives no frames until a flow rule exists. A rule matches the headers of a frame, outside
//! and inside a tunnel. The actions of the rule deliver the frame to the queue pair, and tag, count or drop the frame.
//! This module checks a rule before the device creates the rule. Most error messages contain a remedy.
//!
//! Flow rules have not been tested on hardware, because no test device supports them. The tests use a fake device in
//! memory and compare the encodings byte by byte with the man page and verbs.h.
//!
//! How devices behave, according to the man page and the kernel's mlx5 driver:
//! - If several rules match, the rule with the smallest priority number wins. Rules that are created through verbs
//!   precede the rules of `ethtool` and of the kernel network stack.
//! - Many devices can match only whole fields, and refuse masks for single bits, prefixes and ranges.
//!   [`FlowRule::partial_masks`] and [`FlowError::Refused`] list the fields with such masks.
//! - The creation of a rule needs `CAP_NET_RAW` in the initial user namespace.
//! - The driver stores the tag in the completion field of the queue pair number. With
//!   [`PollFields::FLOW_TAG`](dataplane_core::verbs::PollFields), the queue pair number of a receive is therefore not
//!   valid. A frame that matched no rule with a tag has tag 0.

mod counters;
mod encode;
pub(super) mod object;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

pub use counters::{FlowCount, FlowCounters};

use dataplane_core::error::VerbError;

/// The bits of a VLAN tag that contain the VLAN identifier.
const VLAN_ID: [u8; 2] = [0x0f, 0xff];

/// A value and a mask for a header field, in network order. [`Bits::ANY`] matches every value. `Bits::from` converts a
/// number or an address to an exact match.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bits<const N: usize> {
    value: [u8; N],
    mask: [u8; N],
}

impl<const N: usize> Bits<N> {
    /// Matches every value.
    pub const ANY: Self = Self { value: [0; N], mask: [0; N] };

    /// Matches only this value.
    pub const fn exact(value: [u8; N]) -> Self {
        Self { value, mask: [0xff; N] }
    }

    /// Matches the bits that are set in `mask`. The other bits may have any value.
    pub fn masked(value: [u8; N], mask: [u8; N]) -> Self {
        Self { value: std::array::from_fn(|at| value[at] & mask[at]), mask }
    }

    /// Matches the first `length` bits, such as an address prefix. A length beyond the end of the field matches the
    /// whole field.
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

/// A match of an Ethernet header: `struct ibv_flow_spec_eth`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetMatch {
    /// Destination address.
    pub dst: Bits<6>,
    /// Source address.
    pub src: Bits<6>,
    /// The EtherType after the last VLAN tag.
    pub ether_type: Bits<2>,
    /// The VLAN tag: priority, drop eligible indicator and identifier. See [`EthernetMatch::vlan`].
    pub vlan_tag: Bits<2>,
}

impl EthernetMatch {
    /// Returns a match of a VLAN identifier (the low 12 bits of the tag). The priority may have any value.
    pub fn vlan(id: u16) -> Bits<2> {
        Bits::masked(id.to_be_bytes(), VLAN_ID)
    }
}

/// A match of an IPv4 header: `struct ibv_flow_spec_ipv4_ext`, or `struct ibv_flow_spec_ipv4` if only addresses are
/// matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Match {
    /// Source address.
    pub src: Bits<4>,
    /// Destination address.
    pub dst: Bits<4>,
    /// The protocol number of the payload.
    pub protocol: Bits<1>,
    /// Type of service.
    pub tos: Bits<1>,
    /// Time to live.
    pub ttl: Bits<1>,
    /// The fragmentation flags.
    pub flags: Bits<1>,
}

/// A match of an IPv6 header: `struct ibv_flow_spec_ipv6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Match {
    /// Source address.
    pub src: Bits<16>,
    /// Destination address.
    pub dst: Bits<16>,
    /// The flow label: the low 20 bits.
    pub flow_label: Bits<4>,
    /// The protocol number of the payload, or the first extension header.
    pub next_header: Bits<1>,
    /// Traffic class.
    pub traffic_class: Bits<1>,
    /// Hop limit.
    pub hop_limit: Bits<1>,
}

/// A match of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpMatch {
    /// Version 4.
    V4(Ipv4Match),
    /// Version 6.
    V6(Ipv6Match),
}

/// A match of TCP or UDP ports: `struct ibv_flow_spec_tcp_udp`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortsMatch {
    /// Source port.
    pub src: Bits<2>,
    /// Destination port.
    pub dst: Bits<2>,
}

/// A match of a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportMatch {
    /// TCP.
    Tcp(PortsMatch),
    /// UDP.
    Udp(PortsMatch),
}

/// Matches of the headers of a frame, starting at Ethernet. `None` matches frames with and without the header. `Some`
/// with an empty match requires a header of this kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderMatch {
    /// The match of the Ethernet header.
    pub ethernet: Option<EthernetMatch>,
    /// The match of the IP header.
    pub ip: Option<IpMatch>,
    /// The match of the TCP or UDP header.
    pub transport: Option<TransportMatch>,
}

/// A match of a tunnel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelMatch {
    /// VXLAN, over UDP: `struct ibv_flow_spec_tunnel`.
    Vxlan {
        /// The network identifier: the low 24 bits.
        vni: Bits<4>,
    },
    /// GRE, over IP: `struct ibv_flow_spec_gre`.
    Gre {
        /// Flags and version.
        flags: Bits<2>,
        /// The EtherType of the payload.
        protocol: Bits<2>,
        /// The key.
        key: Bits<4>,
    },
    /// MPLS, over Ethernet, GRE or UDP: `struct ibv_flow_spec_mpls`.
    Mpls {
        /// A whole label stack entry: label (20 bits), traffic class, bottom of stack, time to live.
        label: Bits<4>,
    },
}

/// The frames of a port that a rule matches: `enum ibv_flow_attr_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there are few values, and they are not moved in the data path")]
pub enum FlowTraffic {
    /// Frames with these headers. If all matches are `None`, the rule matches every frame.
    Headers {
        /// The outer headers, from the start of the frame.
        outer: HeaderMatch,
        /// The tunnel header, with the headers inside the tunnel.
        tunnel: Option<(TunnelMatch, HeaderMatch)>,
    },
    /// Frames that no other rule of the port matches.
    AllDefault,
    /// Multicast frames that no other rule of the port matches.
    MulticastDefault,
    /// A copy of every frame of the port, including RDMA traffic. Many devices refuse this kind.
    Sniffer,
}

impl FlowTraffic {
    /// Frames with any headers.
    pub const ANY_HEADERS: Self =
        Self::Headers { outer: HeaderMatch { ethernet: None, ip: None, transport: None }, tunnel: None };
}

/// A flow rule: the frames that it matches and the actions for them (`ibv_create_flow(3)`). Not tested on hardware.
#[derive(Clone, Debug)]
pub struct FlowRule {
    /// The port, from 1.
    pub port: u8,
    /// The priority. If two rules match a frame, the rule with the smaller number wins.
    pub priority: u16,
    /// The frames that the rule matches.
    pub traffic: FlowTraffic,
    /// The tag (24 bits) in the completions of matched frames. `None`: no tag.
    pub tag: Option<u32>,
    /// Whether matched frames are dropped instead of delivered to the queue pair.
    pub drop: bool,
    /// The counters that count the matched frames, if any.
    pub count: Option<Arc<FlowCounters>>,
    /// Whether rules with larger priority numbers are also applied to the matched frames.
    pub dont_trap: bool,
}

impl FlowRule {
    /// Creates a rule that delivers the matched frames of port 1 to the queue pair. The priority is 0.
    pub fn new(traffic: FlowTraffic) -> Self {
        Self { port: 1, priority: 0, traffic, tag: None, drop: false, count: None, dont_trap: false }
    }
}

/// The limits of a driver for flow rules. Verbs cannot query these limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// The name of the driver, or `the device` if no limits are known.
    pub driver: &'static str,
    /// The number of priorities. `None`: unknown.
    pub priorities: Option<u16>,
    /// The header fields that the driver cannot match.
    pub unmatched: &'static [&'static str],
}

impl Default for FlowLimits {
    fn default() -> Self {
        Self::NONE
    }
}

impl FlowLimits {
    /// No known limits.
    pub const NONE: Self = Self { driver: "the device", priorities: None, unmatched: &[] };

    /// The limits of the kernel's mlx5 driver: `MLX5_BY_PASS_NUM_REGULAR_PRIOS`, and `LAST_*_FIELD` and
    /// `parse_flow_attr` in `fs.c`. Older kernels have 8 priorities.
    const MLX5: Self = Self {
        driver: "mlx5",
        priorities: Some(16),
        unmatched: &["ipv4 ttl", "ipv4 flags", "ipv6 hop_limit", "gre flags"],
    };

    /// Returns the limits of a driver.
    pub(crate) fn of(driver: &str) -> Self {
        if driver == Self::MLX5.driver { Self::MLX5 } else { Self::NONE }
    }

    /// Checks that the driver supports a rule. Each priority of a rule uses `levels` priorities of the device: 3 for
    /// several queues with RSS, otherwise 1.
    ///
    /// # Errors
    /// The rule is invalid, or the driver refuses it.
    pub(crate) fn check(&self, rule: &FlowRule, levels: u16) -> Result<(), FlowError> {
        let matched = rule.encoded()?.matched;
        let driver = self.driver;
        if let Some(field) = self.unmatched.iter().copied().find(|field| matched.contains(field)) {
            return Err(FlowError::Unmatched { driver, field });
        }
        let last = self.priorities.map_or(1 << 16, u32::from) / u32::from(levels) - 1;
        if u32::from(rule.priority) <= last {
            return Ok(());
        }
        let queues = if levels == 1 { "1 queue" } else { "2 or more queues" };
        Err(FlowError::Priority { driver, priority: rule.priority, last, queues })
    }
}

/// An invalid or refused flow rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// The port is 0.
    #[error("port 0 does not exist; ports start at 1")]
    Port,
    /// TCP or UDP ports are matched without an IP header.
    #[error("a match of {0} ports needs an IP header; help: add an IPv4 or IPv6 match, which may be empty")]
    TransportWithoutIp(&'static str),
    /// The EtherType contradicts the IP header.
    #[error("ether_type {ether_type:#06x} contradicts the {ip} header; help: remove ether_type")]
    EtherType {
        /// The EtherType.
        ether_type: u16,
        /// The name of the IP header.
        ip: &'static str,
    },
    /// The IP protocol number contradicts the transport header.
    #[error("IP protocol {protocol} contradicts the {inside} header; help: remove the protocol")]
    Protocol {
        /// The protocol number.
        protocol: u8,
        /// The name of the transport header.
        inside: &'static str,
    },
    /// The header outside the tunnel cannot carry the tunnel.
    #[error("{over} cannot carry {tunnel}; help: use {wanted}")]
    Tunnel {
        /// The name of the tunnel.
        tunnel: &'static str,
        /// The outer header of the rule.
        over: &'static str,
        /// The headers that can carry the tunnel.
        wanted: &'static str,
    },
    /// The driver cannot match a header field.
    #[error("{driver} cannot match {field}; help: remove it from the rule, and select these frames with a stage")]
    Unmatched {
        /// The name of the driver.
        driver: &'static str,
        /// The name of the field.
        field: &'static str,
    },
    /// The priority is too large for the driver.
    #[error("{driver} has the flow priorities 0 to {last} for {queues}, not {priority}; help: use a smaller priority")]
    Priority {
        /// The name of the driver.
        driver: &'static str,
        /// The priority of the rule.
        priority: u16,
        /// The largest priority of the driver.
        last: u32,
        /// The number of queues of the port, in words.
        queues: &'static str,
    },
    /// The counters of the rule belong to another device.
    #[error("the counters of a flow rule belong to another device; help: create the counters with the same device")]
    OtherDevice,
    /// A number that is too large for its field.
    #[error("{field} {value:#x} does not fit in {bits} bits")]
    Width {
        /// The name of the field.
        field: &'static str,
        /// The value.
        value: u32,
        /// The width of the field in bits.
        bits: u8,
    },
    /// A tag, drop or count action in a rule without headers.
    #[error("a default or sniffer rule cannot have {0}; help: use a rule that matches all headers instead")]
    ActionWithoutHeaders(&'static str),
    /// `dont_trap` in a rule without headers.
    #[error("a default or sniffer rule cannot have dont_trap; help: use a rule that matches all headers instead")]
    DontTrapWithoutHeaders,
    /// A drop action together with an action that needs the frame.
    #[error("drop cannot be combined with {0}, because a dropped frame is not delivered")]
    DropWith(&'static str),
    /// The device refused the rule.
    #[error("{error}{}", refused(.error, .partial))]
    Refused {
        /// The error of the verb.
        error: VerbError,
        /// The fields whose masks do not cover the whole field.
        partial: Vec<&'static str>,
    },
}

/// Returns the reason and the remedy for a rule that the device refused, starting with `: `. Returns an empty string if
/// neither is known.
fn refused(error: &VerbError, partial: &[&str]) -> String {
    match error.errno {
        libc::EPERM => ": flow rules need CAP_NET_RAW; help: run `setcap cap_net_raw+ep PROGRAM`".to_owned(),
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENXIO => ": the device does not support this flow rule".to_owned(),
        _ if !partial.is_empty() => {
            let fields = partial.join(", ");
            format!(": most devices cannot match a part of a field, and the rule matches only a part of {fields}")
        }
        libc::ENOMEM => {
            ": the device has no space for the rule, or does not support its priority; help: use the priorities \
                         0 to 7, or 0 and 1 for several queues, because older kernels have no others on mlx5"
                .to_owned()
        }
        _ => String::new(),
    }
}
