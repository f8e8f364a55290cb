//! Flow rules, which select the frames of a port that a raw-packet queue pair receives (`ibv_create_flow(3)`).
//!
//! On real devices, a raw-packet queue pair receives no frames until a flow rule exists. A rule matches the headers of
//! a frame, outside and inside a tunnel. The actions of the rule deliver the frame to the queue pair, and tag, count or
//! drop the frame. [`FlowRule::check`] checks a rule before a device creates the rule. Most error messages contain a
//! remedy.
//!
//! If several rules match a frame, the rule with the smallest priority number applies. A rule with
//! [`FlowRule::dont_trap`] acts on the frame, and the rules with larger priority numbers act on the frame too. A frame
//! that matched no rule with a tag has tag 0.

use std::any::Any;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::error::VerbError;

/// The bits of a VLAN tag that contain the VLAN identifier.
pub(super) const VLAN_ID: [u8; 2] = [0x0f, 0xff];

/// A value and a mask for a header field, in network order. [`MaskedValue::ANY`] matches every value.
/// `MaskedValue::from` converts a number or an address to an exact match.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct MaskedValue<const N: usize> {
    value: [u8; N],
    mask: [u8; N],
}

impl<const N: usize> MaskedValue<N> {
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

    /// Returns the value. The bits that are not set in the mask are 0.
    pub const fn value(&self) -> &[u8; N] {
        &self.value
    }

    /// Returns the mask: the bits that a matching field must have in common with the value.
    pub const fn mask(&self) -> &[u8; N] {
        &self.mask
    }

    /// Returns whether every value matches.
    pub fn is_any(&self) -> bool {
        self.mask == [0; N]
    }
}

impl<const N: usize> Default for MaskedValue<N> {
    fn default() -> Self {
        Self::ANY
    }
}

impl<const N: usize> fmt::Debug for MaskedValue<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}/{:02x?}", self.value, self.mask)
    }
}

impl From<u8> for MaskedValue<1> {
    fn from(value: u8) -> Self {
        Self::exact([value])
    }
}

impl From<u16> for MaskedValue<2> {
    fn from(value: u16) -> Self {
        Self::exact(value.to_be_bytes())
    }
}

impl From<u32> for MaskedValue<4> {
    fn from(value: u32) -> Self {
        Self::exact(value.to_be_bytes())
    }
}

impl From<[u8; 6]> for MaskedValue<6> {
    fn from(value: [u8; 6]) -> Self {
        Self::exact(value)
    }
}

impl From<Ipv4Addr> for MaskedValue<4> {
    fn from(value: Ipv4Addr) -> Self {
        Self::exact(value.octets())
    }
}

impl From<Ipv6Addr> for MaskedValue<16> {
    fn from(value: Ipv6Addr) -> Self {
        Self::exact(value.octets())
    }
}

/// A match of an Ethernet header: `struct ibv_flow_spec_eth`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetMatch {
    /// Destination address.
    pub dst: MaskedValue<6>,
    /// Source address.
    pub src: MaskedValue<6>,
    /// The EtherType after the last VLAN tag.
    pub ether_type: MaskedValue<2>,
    /// The VLAN tag: priority, drop eligible indicator and identifier. See [`EthernetMatch::vlan`].
    pub vlan_tag: MaskedValue<2>,
}

impl EthernetMatch {
    /// Returns a match of a VLAN identifier (the low 12 bits of the tag). The priority may have any value.
    pub fn vlan(id: u16) -> MaskedValue<2> {
        MaskedValue::masked(id.to_be_bytes(), VLAN_ID)
    }
}

/// A match of an IPv4 header: `struct ibv_flow_spec_ipv4_ext`, or `struct ibv_flow_spec_ipv4` if only addresses are
/// matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Match {
    /// Source address.
    pub src: MaskedValue<4>,
    /// Destination address.
    pub dst: MaskedValue<4>,
    /// The protocol number of the payload.
    pub protocol: MaskedValue<1>,
    /// Type of service.
    pub tos: MaskedValue<1>,
    /// Time to live.
    pub ttl: MaskedValue<1>,
    /// The fragmentation flags.
    pub flags: MaskedValue<1>,
}

/// A match of an IPv6 header: `struct ibv_flow_spec_ipv6`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Match {
    /// Source address.
    pub src: MaskedValue<16>,
    /// Destination address.
    pub dst: MaskedValue<16>,
    /// The flow label: the low 20 bits.
    pub flow_label: MaskedValue<4>,
    /// The protocol number of the payload, or the first extension header.
    pub next_header: MaskedValue<1>,
    /// Traffic class.
    pub traffic_class: MaskedValue<1>,
    /// Hop limit.
    pub hop_limit: MaskedValue<1>,
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
    pub src: MaskedValue<2>,
    /// Destination port.
    pub dst: MaskedValue<2>,
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
        vni: MaskedValue<4>,
    },
    /// GRE, over IP: `struct ibv_flow_spec_gre`.
    Gre {
        /// Flags and version.
        flags: MaskedValue<2>,
        /// The EtherType of the payload.
        protocol: MaskedValue<2>,
        /// The key.
        key: MaskedValue<4>,
    },
    /// MPLS, over Ethernet, GRE or UDP: `struct ibv_flow_spec_mpls`.
    Mpls {
        /// A whole label stack entry: label (20 bits), traffic class, bottom of stack, time to live.
        label: MaskedValue<4>,
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

/// A flow rule: the frames that it matches and the actions for them (`ibv_create_flow(3)`).
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
    pub count: Option<Arc<dyn FlowCounters>>,
    /// Whether rules with larger priority numbers are also applied to the matched frames.
    pub dont_trap: bool,
}

impl FlowRule {
    /// Creates a rule that delivers the matched frames of port 1 to the queue pair. The priority is 0.
    pub fn new(traffic: FlowTraffic) -> Self {
        Self { port: 1, priority: 0, traffic, tag: None, drop: false, count: None, dont_trap: false }
    }
}

/// The limits of a device for flow rules. The verbs interface cannot query these limits, so a provider selects them by
/// the name of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// The name of the driver, or `the device` if no limits are known.
    pub driver: &'static str,
    /// The number of priorities. `None`: unknown.
    pub priorities: Option<u16>,
    /// The number of device priorities that each priority of the rules uses, on a port with several queues.
    pub rss_levels: u16,
    /// The header fields that the driver cannot match.
    pub unsupported_fields: &'static [&'static str],
    /// The headers that the driver cannot match: `IPv6`, `VXLAN`, `GRE` or `MPLS`.
    pub unsupported_headers: &'static [&'static str],
    /// The actions that the driver does not support: `tag`, `drop` or `count`.
    pub unsupported_actions: &'static [&'static str],
}

impl Default for FlowLimits {
    fn default() -> Self {
        Self::NONE
    }
}

impl FlowLimits {
    /// No known limits.
    pub const NONE: Self = Self {
        driver: "the device",
        priorities: None,
        rss_levels: 1,
        unsupported_fields: &[],
        unsupported_headers: &[],
        unsupported_actions: &[],
    };

    /// Checks a rule for a port with `queues` queues.
    ///
    /// # Errors
    /// The rule is invalid, or the driver refuses it.
    pub fn check(&self, rule: &FlowRule, queues: u16) -> Result<(), FlowError> {
        rule.check()?;
        let driver = self.driver;
        if let Some(header) = rule.limited_headers().into_iter().find(|name| self.unsupported_headers.contains(name)) {
            return Err(FlowError::UnsupportedHeader { driver, header });
        }
        if let Some(action) = rule.actions().into_iter().find(|name| self.unsupported_actions.contains(name)) {
            return Err(FlowError::UnsupportedAction { driver, action });
        }
        if let Some(field) = rule.matched_fields().iter().find(|field| self.unsupported_fields.contains(&field.name)) {
            return Err(FlowError::UnsupportedField { driver, field: field.name });
        }
        let levels = if queues == 1 { 1 } else { self.rss_levels };
        let last = self.priorities.map_or(1 << 16, u32::from) / u32::from(levels) - 1;
        if u32::from(rule.priority) <= last {
            return Ok(());
        }
        let queues = if queues == 1 { "1 queue" } else { "2 or more queues" };
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
    #[error(
        "{driver} cannot match {field}; help: remove this field from the rule, and select these frames with a stage"
    )]
    UnsupportedField {
        /// The name of the driver.
        driver: &'static str,
        /// The name of the field.
        field: &'static str,
    },
    /// The driver cannot match a header.
    #[error(
        "{driver} cannot match {header} headers; help: remove this header from the rule, and select these frames with \
         a stage"
    )]
    UnsupportedHeader {
        /// The name of the driver.
        driver: &'static str,
        /// The name of the header.
        header: &'static str,
    },
    /// The driver does not support an action.
    #[error(
        "{driver} does not support the action `{action}`; help: remove the action from the rule, and use a stage \
         instead"
    )]
    UnsupportedAction {
        /// The name of the driver.
        driver: &'static str,
        /// The name of the action.
        action: &'static str,
    },
    /// The priority is too large for the driver.
    #[error(
        "flow priority {priority} is too large: {driver} has the priorities 0 to {last} for {queues}; help: use a \
         smaller priority"
    )]
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
    #[error("a default or sniffer rule cannot have {0}; help: use a rule that matches frames with any headers instead")]
    ActionWithoutHeaders(&'static str),
    /// `dont_trap` in a rule without headers.
    #[error(
        "a default or sniffer rule cannot have dont_trap; help: use a rule that matches frames with any headers instead"
    )]
    DontTrapWithoutHeaders,
    /// `dont_trap` in a rule that the device splits into overlapping rules for several queues.
    #[error(
        "on a port with 2 or more queues, {driver} would deliver a frame several times if a rule with dont_trap matches \
         frames of several protocols; help: match `tcp`, `udp`, another IP protocol or an EtherType, or use one worker"
    )]
    DontTrapWithSeveralQueues {
        /// The name of the driver.
        driver: &'static str,
    },
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
                         0 to 7, or 0 and 1 for several queues, because mlx5 on older kernels has only these priorities"
                .to_owned()
        }
        _ => String::new(),
    }
}

/// The values of the counters of flow rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// The number of matched frames.
    pub packets: u64,
    /// The number of bytes in the matched frames.
    pub bytes: u64,
}

/// Counters of flow rules: `ibv_create_counters(3)`. If several rules use the same counters, the counters contain the
/// sum. A provider accepts only counters that its own device created, and finds their type with [`Any`].
pub trait FlowCounters: Any + fmt::Debug + Send + Sync {
    /// Reads the counters: `ibv_read_counters(3)`. The counts of destroyed rules are included.
    ///
    /// # Errors
    /// The error of the verb.
    fn read(&self) -> Result<FlowCount, VerbError>;
}
