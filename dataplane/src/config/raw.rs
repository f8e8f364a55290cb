//! What a verbs device does to the raw packets of a port: `flow`, `offload` and `rate_limit`.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::diagnostics::{Diagnostics, Mistake};
use super::load::Loaded;
use super::port::{Port, Qp, SOFT};
use super::types::{Mac, within, within_some};

/// Something that a device does to raw packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Offload {
    /// Computes the checksums of IPv4 and of TCP or UDP of what is sent.
    Checksum,
    /// Takes the outer VLAN tag off what is received. Which it was is not kept: a `flow` of one VLAN says it.
    VlanStrip,
    /// Leaves the frame check sequence, 4 bytes, at the end of what is received: for captures.
    Fcs,
    /// Lets a frame wait for a buffer instead of dropping it. Of ports that several workers share.
    DelayDrop,
}

impl Offload {
    /// The name that configs use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checksum => "checksum",
            Self::VlanStrip => "vlan_strip",
            Self::Fcs => "fcs",
            Self::DelayDrop => "delay_drop",
        }
    }
}

/// What the sends of each worker are slowed down to, by the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// The rate in kbit/s.
    #[serde(deserialize_with = "within::<_, u32, 1, 4294967295>")]
    #[schemars(range(min = 1, max = 4294967295u32))]
    pub kbps: u32,
    /// Bytes that may be sent at once. 0: as the device likes.
    #[serde(default)]
    pub burst: u32,
    /// Bytes of a typical packet. 0: as the device likes.
    #[serde(default)]
    pub packet: u16,
}

/// Which frames a rule is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Frames {
    /// Those that have what `match` says.
    #[default]
    Matching,
    /// Those that no other rule of the device's port takes.
    AllDefault,
    /// Those of multicast that no other rule of the device's port takes.
    MulticastDefault,
    /// A copy of every frame of the device's port, those of RDMA included.
    Sniffer,
}

/// What becomes of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// They are received.
    #[default]
    Receive,
    /// The device drops them.
    Drop,
}

/// The least that a rule for several queues has to leave free for its parts, one for each class of traffic.
const MAX_PRIORITY: u64 = 21_844;

/// A rule: which frames come to the port, and what becomes of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Flow {
    /// Which frames the rule is about.
    pub frames: Frames,
    /// The headers that they have. Absent: every frame. Of `frames = "matching"`.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub headers: Option<Match>,
    /// What becomes of them.
    pub action: Action,
    /// The name under which they are counted in the report, as `flow.NAME.packets` and `flow.NAME.bytes`. Rules of one name
    /// add up. Of `frames = "matching"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<String>,
    /// Of two rules that match, the one with the smaller number wins.
    #[serde(deserialize_with = "within::<_, u16, 0, MAX_PRIORITY>")]
    #[schemars(range(min = 0, max = MAX_PRIORITY))]
    pub priority: u16,
    /// Whether rules of greater numbers, those of the host among them, see the frames too. Of `frames = "matching"`.
    pub dont_trap: bool,
}

/// The headers that a rule wants. A header with nothing in it, such as `udp = {}`: any of its kind.
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
    /// The ports of TCP, with `ipv4` or `ipv6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Ports>,
    /// The ports of UDP, with `ipv4` or `ipv6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<Ports>,
    /// A tunnel of VXLAN, over `udp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vxlan: Option<Vxlan>,
    /// A tunnel of GRE, over `ipv4` or `ipv6`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gre: Option<Gre>,
    /// A tunnel of MPLS, over Ethernet or `udp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mpls: Option<Mpls>,
    /// The headers inside of the tunnel: a table of `ethernet`, `ipv4`, `ipv6`, `tcp` and `udp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inner: Option<Inner>,
}

/// The headers inside of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Inner {
    /// The Ethernet header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ethernet: Option<EthernetHeader>,
    /// An IPv4 header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Header>,
    /// An IPv6 header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Header>,
    /// The ports of TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Ports>,
    /// The ports of UDP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub udp: Option<Ports>,
}

/// An Ethernet header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EthernetHeader {
    /// The destination address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub dst: Option<Mac>,
    /// The source address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub src: Option<Mac>,
    /// The type behind the last VLAN tag. With `ipv4` or `ipv6` that is said already.
    #[serde(rename = "type", deserialize_with = "within_some::<_, u16, 0, 65535>")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub ether_type: Option<u16>,
    /// The id of the VLAN, whatever its priority.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 4094>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4094))]
    pub vlan: Option<u16>,
}

/// An IPv4 header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ipv4Header {
    /// The source: an address, or a prefix such as `"192.0.2.0/24"`, which many devices refuse.
    #[serde(deserialize_with = "subnet4", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub src: Option<Ipv4Net>,
    /// The destination, as `src`.
    #[serde(deserialize_with = "subnet4", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub dst: Option<Ipv4Net>,
    /// The protocol inside. With `tcp` or `udp` that is said already.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub protocol: Option<u8>,
    /// The type of service.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub tos: Option<u8>,
    /// The time to live.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub ttl: Option<u8>,
}

/// An IPv6 header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Ipv6Header {
    /// The source: an address, or a prefix such as `"2001:db8::/32"`, which many devices refuse.
    #[serde(deserialize_with = "subnet6", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub src: Option<Ipv6Net>,
    /// The destination, as `src`.
    #[serde(deserialize_with = "subnet6", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub dst: Option<Ipv6Net>,
    /// The flow label.
    #[serde(deserialize_with = "within_some::<_, u32, 0, 1048575>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1048575))]
    pub flow_label: Option<u32>,
    /// The protocol inside, or the first extension header. With `tcp` or `udp` that is said already.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub next_header: Option<u8>,
    /// The traffic class.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub traffic_class: Option<u8>,
    /// The hop limit.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub hop_limit: Option<u8>,
}

/// The ports of TCP or UDP.
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

/// A tunnel of VXLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Vxlan {
    /// The identifier of the network.
    #[serde(deserialize_with = "within_some::<_, u32, 0, 16777215>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16777215))]
    pub vni: Option<u32>,
}

/// A tunnel of GRE.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Gre {
    /// The type of what is inside, as Ethernet numbers it.
    #[serde(deserialize_with = "within_some::<_, u16, 0, 65535>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub protocol: Option<u16>,
    /// The key.
    #[serde(deserialize_with = "within_some::<_, u32, 0, 4294967295>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 4294967295u32))]
    pub key: Option<u32>,
}

/// A tunnel of MPLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mpls {
    /// The label, whatever its traffic class and time to live.
    #[serde(deserialize_with = "within_some::<_, u32, 0, 1048575>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1048575))]
    pub label: Option<u32>,
}

/// An address, or a prefix without bits behind it.
fn subnet<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    version: &str,
    take: fn(IpNet) -> Option<T>,
) -> Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)).ok().and_then(take);
    let wrong = |help| serde::de::Error::custom(format!("`{text}` is no {version} address or prefix\n{help}"));
    net.map(Some).ok_or_else(|| wrong("write an address, or a prefix without bits behind it, such as \"192.0.2.0/24\""))
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

impl Match {
    /// The headers outside of a tunnel.
    pub fn outer(&self) -> Inner {
        let Self { ethernet, ipv4, ipv6, tcp, udp, .. } = self.clone();
        Inner { ethernet, ipv4, ipv6, tcp, udp }
    }
}

/// Checks what a device is to do to the raw packets of a port.
pub(super) fn raw(loaded: &Loaded<'_>, index: usize, port: &Port, diagnostics: &mut Diagnostics) {
    let mut checker = Checker { loaded, place: format!("port[{index}]"), diagnostics };
    let given = [
        ("flow", port.flow.is_some()),
        ("offload", !port.offload.is_empty()),
        ("rate_limit", port.rate_limit.is_some()),
    ];
    for (key, _) in given.into_iter().filter(|(_, given)| *given) {
        if port.device == SOFT {
            let help = match key {
                "flow" => "take it out, and let an `acl` stage choose",
                "rate_limit" => "take it out, and let a `limit` stage drop what is too much",
                _ => "take it out",
            };
            checker.error(key, format!("`{key}` is for verbs devices, and a software device has none"), help);
        } else if port.qp != Qp::RawPacket {
            let message =
                format!("`{key}` is about raw packets, and `{}` has {} queue pairs", port.name, port.qp.name());
            checker.error(key, message, "take it out, or write qp = \"raw_packet\"");
        }
    }
    for (at, offload) in port.offload.iter().enumerate() {
        if port.offload[..at].contains(offload) {
            checker.error(&format!("offload[{at}]"), format!("{} is named twice", offload.name()), "name it once");
        }
    }
    if port.flow.as_ref().is_some_and(Vec::is_empty) {
        let help = "add a rule, or take `flow` out: every frame comes then";
        checker.error("flow", format!("without a rule nothing comes to `{}`", port.name), help);
    }
    for (at, flow) in port.flow.iter().flatten().enumerate() {
        checker.flow(&format!("flow[{at}]"), flow);
    }
}

struct Checker<'a, 's> {
    loaded: &'a Loaded<'s>,
    place: String,
    diagnostics: &'a mut Diagnostics,
}

impl Checker<'_, '_> {
    fn error(&mut self, key: &str, message: String, help: &str) {
        let span = self.loaded.locate(&format!("{}.{key}", self.place));
        self.diagnostics.push(Mistake::error(span, message).help(help));
    }

    fn flow(&mut self, place: &str, flow: &Flow) {
        if flow.frames != Frames::Matching {
            let given = [
                ("match", flow.headers.is_some()),
                ("action", flow.action == Action::Drop),
                ("count", flow.count.is_some()),
                ("dont_trap", flow.dont_trap),
            ];
            for (key, _) in given.into_iter().filter(|(_, given)| *given) {
                let message = format!("`{key}` is of rules that match headers, and this one is another");
                self.error(&format!("{place}.{key}"), message, "take it out, or take `frames` out");
            }
            return;
        }
        if flow.action == Action::Drop && flow.dont_trap {
            let message = "what is dropped goes nowhere else".to_owned();
            self.error(&format!("{place}.dont_trap"), message, "take `dont_trap` or `action` out");
        }
        if flow.count.as_ref().is_some_and(String::is_empty) {
            self.error(&format!("{place}.count"), "a counter needs a name".to_owned(), "write count = \"dns\"");
        }
        let Some(headers) = &flow.headers else { return };
        let place = format!("{place}.match");
        let outer = headers.outer();
        self.headers(&place, &outer);
        let tunnels: Vec<&str> =
            [("vxlan", headers.vxlan.is_some()), ("gre", headers.gre.is_some()), ("mpls", headers.mpls.is_some())]
                .into_iter()
                .filter_map(|(key, given)| given.then_some(key))
                .collect();
        match (&tunnels[..], &headers.inner) {
            ([], Some(_)) => {
                let message = "`inner` is inside of a tunnel, and there is none".to_owned();
                self.error(&format!("{place}.inner"), message, "add `vxlan`, `gre` or `mpls`, or take `inner` out");
            }
            ([first, second, ..], _) => {
                let message = format!("`{first}` and `{second}` are both given");
                self.error(&format!("{place}.{second}"), message, "take one of them out");
            }
            _ => {}
        }
        let over = if outer.tcp.is_some() { Some("tcp") } else { outer.udp.as_ref().map(|_| "udp") };
        let ip = outer.ipv4.is_some() || outer.ipv6.is_some();
        for tunnel in tunnels {
            let wanted = match tunnel {
                "vxlan" if over != Some("udp") => "`udp`",
                "gre" if over.is_some() || !ip => "`ipv4` or `ipv6` alone",
                "mpls" if over == Some("tcp") => "Ethernet or `udp`",
                _ => continue,
            };
            let message = format!("`{tunnel}` goes over {wanted}");
            self.error(&format!("{place}.{tunnel}"), message, "match those headers too");
        }
        if let Some(inner) = &headers.inner {
            self.headers(&format!("{place}.inner"), inner);
        }
    }

    /// Headers that no frame has together, and what one header says of the next.
    fn headers(&mut self, place: &str, headers: &Inner) {
        let Inner { ethernet, ipv4, ipv6, tcp, udp } = headers;
        for (first, second, both) in
            [("ipv4", "ipv6", ipv4.is_some() && ipv6.is_some()), ("tcp", "udp", tcp.is_some() && udp.is_some())]
        {
            if both {
                let message = format!("no frame has `{first}` and `{second}`");
                self.error(&format!("{place}.{second}"), message, "make two rules of it");
            }
        }
        let ip = if ipv4.is_some() { Some("ipv4") } else { ipv6.as_ref().map(|_| "ipv6") };
        let transport = if tcp.is_some() { Some("tcp") } else { udp.as_ref().map(|_| "udp") };
        if let (Some(transport), None) = (transport, ip) {
            let message = format!("`{transport}` goes over IPv4 or IPv6");
            self.error(&format!("{place}.{transport}"), message, "say which, if only by ipv4 = {}");
        }
        let ether_type = ethernet.as_ref().is_some_and(|it| it.ether_type.is_some());
        let protocol = ipv4.as_ref().is_some_and(|it| it.protocol.is_some());
        let next_header = ipv6.as_ref().is_some_and(|it| it.next_header.is_some());
        for (key, given, said) in [
            ("ethernet.type", ether_type, ip),
            ("ipv4.protocol", protocol, transport),
            ("ipv6.next_header", next_header, transport),
        ] {
            if let (true, Some(said)) = (given, said) {
                self.error(&format!("{place}.{key}"), format!("`{said}` says that already"), "take it out");
            }
        }
    }
}
