//! Raw-packet features of a port: `flow` and `offload`.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use dataplane_core::header::MacAddr;
use dataplane_core::units::{within, within_some};

/// A raw-packet offload of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Offload {
    /// Requests the offloads that the stages can use, if the device supports them.
    Auto,
    /// Computes the IPv4 header checksum and the TCP or UDP checksum of sent packets.
    Checksum,
    /// Removes the outer VLAN tag of received frames. To select one VLAN, add a `flow` rule.
    VlanStrip,
    /// Leaves the 4-byte frame check sequence at the end of received frames, for captures.
    Fcs,
    /// Lets a frame wait for a receive buffer instead of dropping the frame. Needs at least two workers on the port.
    DelayDrop,
}

impl Offload {
    /// Returns the name used in configs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Checksum => "checksum",
            Self::VlanStrip => "vlan_strip",
            Self::Fcs => "fcs",
            Self::DelayDrop => "delay_drop",
        }
    }
}

/// The frames that a rule applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Frames {
    /// The frames that match `match`.
    #[default]
    Matching,
    /// All frames that match no other rule on the same port of the device.
    AllDefault,
    /// Multicast frames that match no other rule on the same port of the device.
    MulticastDefault,
    /// A copy of every frame on the port of the device, including RDMA frames.
    Sniffer,
}

/// What happens to the matched frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The port receives the frames.
    #[default]
    Receive,
    /// The device drops the frames.
    Drop,
}

/// The largest `priority`. RSS hashes different fields for different kinds of traffic, such as TCP over IPv4. A rule
/// for several queues is therefore split into one rule for each kind of traffic. The split rules need three device
/// priorities for each `priority`, and a device priority has 16 bits.
const MAX_PRIORITY: u64 = 21_844;
/// The largest tag of a flow rule.
const MAX_TAG: u64 = (1 << 24) - 1;

/// A flow rule of the device. The rule selects frames. The key `action` determines whether the port receives these
/// frames or the device drops them. If a port has flow rules, the port receives only frames that a rule with the action
/// `receive` selects. Not tested on hardware.
///
/// Rules for traffic without a tunnel:
///
/// ```toml
/// [[port]]
/// name   = "wan"
/// device = "mlx5_0"
///
/// [[port.flow]]
/// match     = { ethernet = { dst = "02:00:00:00:00:01", vlan = 7 }, ipv4 = { dst = "192.0.2.0/24" }, udp = { dst = 53 } }
/// count     = "dns"
/// tag       = 5
/// priority  = 1
/// dont_trap = true
///
/// [[port.flow]]
/// match  = { ipv4 = { src = "198.51.100.7", tos = 184 }, tcp = { src = 179, dst = 179 } }
/// action = "drop"
///
/// [[port.flow]]
/// match = { ipv4 = { protocol = 89 } }
///
/// [[port.flow]]
/// match = { ipv6 = { src = "2001:db8::/32", dst = "2001:db8::1", flow_label = 5, traffic_class = 184, next_header = 58 } }
///
/// [[port.flow]]
/// match = { ethernet = { src = "02:00:00:00:00:02", type = 0x88cc } }
///
/// [[port.flow]]
/// frames = "all_default"
/// ```
///
/// Rules with fields that mlx5 cannot match:
///
/// ```toml
/// [[port]]
/// name   = "lan"
/// device = "rdma0"
///
/// [[port.flow]]
/// match = { ipv4 = { ttl = 1 } }
///
/// [[port.flow]]
/// match = { ipv6 = { hop_limit = 255 } }
/// ```
///
/// Rules for tunnels:
///
/// ```toml
/// [[port]]
/// name   = "tunnels"
/// device = "mlx5_0"
///
/// [[port.flow]]
/// match = { ipv4 = {}, udp = { src = 4000, dst = 4789 }, vxlan = { vni = 100 }, inner = { ipv4 = { dst = "10.0.0.1" }, tcp = { dst = 80 } } }
///
/// [[port.flow]]
/// match = { ipv4 = {}, gre = { protocol = 0x0800, key = 9 }, inner = { ethernet = {} } }
///
/// [[port.flow]]
/// match = { ethernet = {}, mpls = { label = 16 }, inner = { ipv6 = {}, tcp = { src = 1, dst = 2 } } }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FlowRuleConfig {
    /// The frames that the rule applies to. `"matching"` selects the frames that match `match`. `"all_default"` selects
    /// all frames that match no other rule of this device port. `"multicast_default"` selects the multicast frames that
    /// match no other rule of this device port. On mlx5, `"all_default"` and `"multicast_default"` select only frames
    /// that the network interface does not take, so neither broadcast frames nor frames to the address of the interface.
    /// To select all other frames, use a rule without `match` and with a larger `priority`. `"sniffer"` selects a copy
    /// of every frame on this device port, including RDMA frames.
    pub frames: Frames,
    /// The headers that a frame must have. Only with `frames = "matching"`. Default: the rule matches every frame.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub headers: Option<Match>,
    /// What happens to the matched frames. `"drop"` needs `frames = "matching"`.
    pub action: Action,
    /// The name of the counters of the matched frames. The report shows the counters as `flow.NAME.packets` and
    /// `flow.NAME.bytes`. Rules with the same name share their counters. Only with `frames = "matching"`. Default: not
    /// counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<String>,
    /// The tag of the matched frames. A stage with `use = "flow_tag"` selects packets by this tag. Only with `frames =
    /// "matching"`. Default: no tag.
    #[serde(deserialize_with = "within_some::<_, u32, 1, MAX_TAG>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_TAG))]
    pub tag: Option<u32>,
    /// The priority of the rule. If several rules match a frame, the rule with the smallest number wins. If several
    /// rules with the same priority and the same `dont_trap` match a frame, mlx5 may select any of these rules. The
    /// software device selects the first of these rules in the config. Overlapping rules should therefore have different
    /// priorities. mlx5 supports the priorities 0 to 15 with one worker, and 0 to 4 with several workers. With older
    /// kernels, mlx5 supports 0 to 7 with one worker, and 0 and 1 with several workers.
    #[serde(deserialize_with = "within::<_, u16, 0, MAX_PRIORITY>")]
    #[schemars(range(min = 0, max = MAX_PRIORITY))]
    pub priority: u16,
    /// Whether the frames that match this rule also go to rules with larger `priority` numbers, including the rules of
    /// the kernel of this host. Among rules with the same priority, rules with `dont_trap` apply first. On an RDMA
    /// device with several workers, `dont_trap = true` needs a `match` with `tcp`, `udp`, an IP protocol number
    /// (`protocol` or `next_header`), or a `type` other than IPv4 and IPv6. Not together with `action = "drop"`. Only
    /// with `frames = "matching"`.
    pub dont_trap: bool,
}

impl FlowRuleConfig {
    /// Returns whether the kernel does not get the LACP frames of a bond because of this rule. The rules of kinds other
    /// than `matching` leave the frames of joined multicast groups to the kernel, or copy them.
    pub(crate) fn takes_lacp(&self) -> bool {
        /// The EtherType of LACP (IEEE 802.3, slow protocols).
        const SLOW_PROTOCOLS: u16 = 0x8809;
        let Some(headers) = &self.headers else { return self.frames == Frames::Matching && !self.dont_trap };
        let ethernet = headers.ethernet.clone().unwrap_or_default();
        let is_lacp = EthernetHeader {
            dst: ethernet.dst.filter(|dst| dst.0 != [0x01, 0x80, 0xc2, 0, 0, 0x02]),
            ether_type: ethernet.ether_type.filter(|&kind| kind != SLOW_PROTOCOLS),
            ..ethernet
        } == EthernetHeader::default();
        let has_only_ethernet = Match { ethernet: None, ..headers.clone() } == Match::default();
        is_lacp && has_only_ethernet && !self.dont_trap
    }
}

/// The headers that a rule matches. An empty header table, such as `udp = {}`, matches any header of that kind. mlx4
/// can match only Ethernet, IPv4, TCP and UDP headers, and supports no `tag`, `count` or `action = "drop"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// The Ethernet header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<EthernetHeader>,
    /// An IPv4 header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Header>,
    /// An IPv6 header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Header>,
    /// The ports of a TCP header. Needs `ipv4` or `ipv6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Ports>,
    /// The ports of a UDP header. Needs `ipv4` or `ipv6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<Ports>,
    /// A VXLAN tunnel header. Needs `udp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vxlan: Option<Vxlan>,
    /// A GRE tunnel header. Needs `ipv4` or `ipv6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gre: Option<Gre>,
    /// An MPLS label, after the Ethernet or UDP header. On mlx5, a rule without `udp` matches only a label after the
    /// Ethernet header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mpls: Option<Mpls>,
    /// The headers inside the tunnel: a table of `ethernet`, `ipv4`, `ipv6`, `tcp` and `udp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inner: Option<Headers>,
}

/// The headers inside a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Headers {
    /// The Ethernet header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<EthernetHeader>,
    /// An IPv4 header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Header>,
    /// An IPv6 header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Header>,
    /// The ports of a TCP header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Ports>,
    /// The ports of a UDP header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<Ports>,
}

/// An Ethernet header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EthernetHeader {
    /// The destination MAC address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst: Option<MacAddr>,
    /// The source MAC address. mlx4 cannot match this field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<MacAddr>,
    /// The EtherType after the last VLAN tag. Not together with `ipv4` or `ipv6`, which imply the EtherType. mlx4
    /// cannot match this field.
    #[serde(rename = "type", deserialize_with = "within_some::<_, u16, 0, 65535>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub ether_type: Option<u16>,
    /// The VLAN ID. The priority bits of the VLAN tag (PCP) are ignored.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 4094>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4094))]
    pub vlan: Option<u16>,
}

/// An IPv4 header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ipv4Header {
    /// The source: an address, or a prefix such as `"192.0.2.0/24"`. Many devices do not support prefixes.
    #[serde(deserialize_with = "subnet4", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub src: Option<Ipv4Net>,
    /// The destination: an address or a prefix. Many devices do not support prefixes.
    #[serde(deserialize_with = "subnet4", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub dst: Option<Ipv4Net>,
    /// The IP protocol number. Not together with `tcp` or `udp`, which imply the protocol. mlx4 cannot match this
    /// field.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub protocol: Option<u8>,
    /// The type-of-service byte. mlx4 cannot match this field.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub tos: Option<u8>,
    /// The time to live. mlx5 and mlx4 cannot match this field.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub ttl: Option<u8>,
}

/// An IPv6 header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ipv6Header {
    /// The source: an address, or a prefix such as `"2001:db8::/32"`. Many devices do not support prefixes.
    #[serde(deserialize_with = "subnet6", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub src: Option<Ipv6Net>,
    /// The destination: an address or a prefix. Many devices do not support prefixes.
    #[serde(deserialize_with = "subnet6", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub dst: Option<Ipv6Net>,
    /// The flow label.
    #[serde(deserialize_with = "within_some::<_, u32, 0, 1048575>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1048575))]
    pub flow_label: Option<u32>,
    /// The protocol number of the next header, which may be an extension header. Not together with `tcp` or `udp`,
    /// which imply the protocol.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub next_header: Option<u8>,
    /// The traffic class.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub traffic_class: Option<u8>,
    /// The hop limit. mlx5 cannot match this field.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub hop_limit: Option<u8>,
}

/// The ports of a TCP or UDP header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ports {
    /// The source port.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 65535>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub src: Option<u16>,
    /// The destination port.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 65535>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub dst: Option<u16>,
}

/// A VXLAN tunnel header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Vxlan {
    /// The VXLAN network identifier (VNI).
    #[serde(deserialize_with = "within_some::<_, u32, 0, 16777215>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16777215))]
    pub vni: Option<u32>,
}

/// A GRE tunnel header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Gre {
    /// The EtherType of the inner packet.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 65535>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub protocol: Option<u16>,
    /// The GRE key.
    #[serde(deserialize_with = "within_some::<_, u32, 0, 4294967295>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4294967295u32))]
    pub key: Option<u32>,
}

/// An MPLS label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mpls {
    /// The label. The other fields of the MPLS header, such as the TTL, are ignored.
    #[serde(deserialize_with = "within_some::<_, u32, 0, 1048575>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1048575))]
    pub label: Option<u32>,
}

/// Reads an address, or a prefix whose host bits are all 0.
fn subnet<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    version: &str,
    take: fn(IpNet) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok().and_then(take);
    let wrong =
        |help| serde::de::Error::custom(format!("`{text}` is not an {version} address or prefix; help: {help}"));
    net.map(Some).ok_or_else(|| {
        wrong("write an address, or a prefix with host bits of 0, such as \"192.0.2.0/24\" or \"2001:db8::/32\"")
    })
}

fn subnet4<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ipv4Net>, D::Error> {
    subnet(deserializer, "IPv4", |net| match net {
        IpNet::V4(net) if net.trunc() == net => Some(net),
        _ => None,
    })
}

fn subnet6<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ipv6Net>, D::Error> {
    subnet(deserializer, "IPv6", |net| match net {
        IpNet::V6(net) if net.trunc() == net => Some(net),
        _ => None,
    })
}

impl FlowRuleConfig {
    /// Returns whether the port can receive frames to several unicast MAC addresses by this rule.
    pub(super) fn receives_other_addresses(&self) -> bool {
        let ethernet = self.headers.as_ref().and_then(|headers| headers.ethernet.as_ref());
        let has_destination = ethernet.is_some_and(|ethernet| ethernet.dst.is_some());
        self.action == Action::Receive && self.frames != Frames::MulticastDefault && !has_destination
    }

    /// Returns whether the rule gets only the frames that the network interface of the device does not take. mlx5 applies
    /// such a rule after the rules of the interface. In promiscuous mode, the interface takes all frames.
    pub(crate) fn follows_interface(&self) -> bool {
        matches!(self.frames, Frames::AllDefault | Frames::MulticastDefault)
    }
}

impl Match {
    /// Returns the headers outside the tunnel.
    pub fn outer(&self) -> Headers {
        let Self { ethernet, ipv4, ipv6, tcp, udp, .. } = self.clone();
        Headers { ethernet, ipv4, ipv6, tcp, udp }
    }
}
