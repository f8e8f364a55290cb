//! Converts the raw-packet settings of a port into requests to its device.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::config::{self, Action, Frames, Offload, PortPlan, StageOffload};
use crate::runtime::offload;
use dataplane_core::error::{Error, Result};
use dataplane_core::verbs::{
    EthernetMatch, FlowCounters, FlowError, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match,
    MaskedValue, PortsMatch, RawDevice, RawReceive, RawSpec, TransportMatch, TunnelMatch,
};

/// The flow counters by name.
type FlowCounterMap = BTreeMap<String, Arc<dyn FlowCounters>>;

/// The raw-packet settings that [`prepare`] has applied.
#[derive(Default)]
pub(super) struct PreparedRaw {
    /// The counters of the flow rules.
    counters: FlowCounterMap,
    /// Whether the device computes the checksums of sent packets.
    pub(super) computes_checksums: bool,
}

/// Returns `true` if a port has raw-packet settings.
pub(super) fn is_configured(plan: &PortPlan) -> bool {
    let port = &plan.config;
    !plan.requests.is_empty() || port.flow.is_some() || !port.offloads().is_empty() || port.rate_limit.is_some()
}

/// Applies the raw-packet settings of a port to its device, for the given number of workers.
///
/// # Errors
/// Returns an error if the device does not support the settings.
pub(super) fn prepare<D: RawDevice>(device: D, plan: &PortPlan, workers: usize) -> Result<(D, PreparedRaw)> {
    let port = &plan.config;
    let named = |error: Error| Error::Config(format!("port `{}`: {error}", port.name));
    // Check the settings first, because the error of a verb names no remedy.
    let mut counters = FlowCounterMap::new();
    let queues = u16::try_from(workers).unwrap_or(u16::MAX);
    device.check_raw(&spec(plan, &counters), queues).map_err(named)?;
    for name in port.flow.iter().flatten().filter_map(|flow| flow.count.as_ref()) {
        if !counters.contains_key(name) {
            let made = device.create_flow_counters().map_err(|error| match error.errno {
                // `check_raw` did not see the action, because the counters did not exist yet.
                libc::EOPNOTSUPP => {
                    let driver = device.raw_caps().flow.driver;
                    named(Error::Config(FlowError::UnsupportedAction { driver, action: "count" }.to_string()))
                }
                _ => named(error.on(device.name())),
            })?;
            counters.insert(name.clone(), made);
        }
    }
    let mut spec = spec(plan, &counters);
    spec.checksum |= offload::is_requested(plan, StageOffload::SendChecksum) && device.raw_caps().tx_checksum;
    let prepared = PreparedRaw { counters, computes_checksums: spec.checksum };
    Ok((device.with_raw(spec), prepared))
}

/// Calls [`prepare`] if a port of an RDMA device has raw-packet queue pairs, even if the device does not report support
/// for raw packets. Without the raw-packet settings of the port, a queue pair would receive every frame of the
/// interface.
///
/// # Errors
/// Returns the errors of [`prepare`], and an error if the port of the device does not exist or is an InfiniBand port.
#[cfg(feature = "ibverbs")]
pub(super) fn prepare_rdma<D: RawDevice>(device: D, plan: &PortPlan, workers: usize) -> Result<(D, PreparedRaw)> {
    if plan.config.qp != config::Qp::RawPacket {
        return Ok((device, PreparedRaw::default()));
    }
    let (name, number) = (&plan.config.name, plan.config.device_port);
    let ports = device.capabilities().ports;
    if number > ports {
        let device = device.name();
        let (has, fix) = match ports {
            1 => ("only port 1".to_owned(), "device_port = 1".to_owned()),
            _ => (format!("only the ports 1 to {ports}"), format!("device_port to a number from 1 to {ports}")),
        };
        return Err(Error::Config(format!(
            "port `{name}`: `{device}` has {has}, but device_port is {number}; help: set {fix}, or set `device` to the RDMA \
             device of the other port, which `dataplane devices` lists"
        )));
    }
    if device.port(number).is_ok_and(|port| port.link_layer == dataplane_core::verbs::LinkLayer::InfiniBand) {
        let device = device.name();
        return Err(Error::Config(format!(
            "port `{name}`: raw packets need Ethernet, but port {number} of `{device}` is an InfiniBand port; help: set qp = \
             \"rc\" or \"ud\", and a `connection`"
        )));
    }
    prepare(device, plan, workers)
}

impl PreparedRaw {
    /// Returns the flow counters under the names that the report uses. Logs and leaves out counters that cannot be
    /// read.
    pub(super) fn counted(&self) -> BTreeMap<String, u64> {
        let mut report = BTreeMap::new();
        for (name, counters) in &self.counters {
            match counters.read() {
                Ok(count) => {
                    report.insert(format!("flow.{name}.packets"), count.packets);
                    report.insert(format!("flow.{name}.bytes"), count.bytes);
                }
                Err(error) => tracing::warn!("cannot read the counters of flow `{name}`: {error}"),
            }
        }
        report
    }
}

/// Returns the raw-packet settings of a port. Without flow rules in the config, an input port receives every frame. Any
/// other port without flow rules receives no frame, and its frames still reach the network stack of the host.
fn spec(plan: &PortPlan, counters: &FlowCounterMap) -> RawSpec {
    let port = &plan.config;
    let has = |offload| port.offloads().contains(&offload);
    RawSpec {
        receive: RawReceive {
            vlan_strip: has(Offload::VlanStrip),
            scatter_fcs: has(Offload::Fcs),
            delay_drop: has(Offload::DelayDrop),
        },
        rss: port.rss.clone(),
        rules: match &port.flow {
            Some(flows) => flows.iter().map(|flow| rule(flow, counters)).collect(),
            None if plan.input => vec![FlowRule::new(FlowTraffic::ANY_HEADERS)],
            None => Vec::new(),
        },
        // A packet in a pipeline is at most one frame, so segmentation offload (TSO) is not used.
        max_tso_header: 0,
        checksum: has(Offload::Checksum),
        rate: port.rate_limit,
    }
}

fn rule(flow: &config::FlowRuleConfig, counters: &FlowCounterMap) -> FlowRule {
    let traffic = match flow.frames {
        Frames::Matching => flow.headers.as_ref().map_or(FlowTraffic::ANY_HEADERS, |headers| FlowTraffic::Headers {
            outer: header_match(&headers.outer()),
            tunnel: tunnel(headers)
                .map(|tunnel| (tunnel, headers.inner.as_ref().map(header_match).unwrap_or_default())),
        }),
        Frames::AllDefault => FlowTraffic::AllDefault,
        Frames::MulticastDefault => FlowTraffic::MulticastDefault,
        Frames::Sniffer => FlowTraffic::Sniffer,
    };
    FlowRule {
        priority: flow.priority,
        tag: flow.tag,
        drop: flow.action == Action::Drop,
        count: flow.count.as_ref().and_then(|name| counters.get(name).cloned()),
        dont_trap: flow.dont_trap,
        ..FlowRule::new(traffic)
    }
}

/// Returns a match for exactly `value`. `None` matches any value.
fn exactly<T: Copy + Into<MaskedValue<N>>, const N: usize>(value: Option<T>) -> MaskedValue<N> {
    value.map_or(MaskedValue::ANY, Into::into)
}

fn header_match(headers: &config::Headers) -> HeaderMatch {
    let ethernet = headers.ethernet.as_ref().map(|it| EthernetMatch {
        dst: exactly(it.dst.map(|mac| mac.0)),
        src: exactly(it.src.map(|mac| mac.0)),
        ether_type: exactly(it.ether_type),
        vlan_tag: it.vlan.map_or(MaskedValue::ANY, EthernetMatch::vlan),
    });
    let v4 = |it: &config::Ipv4Header| {
        let net = |net: Option<ipnet::Ipv4Net>| {
            net.map_or(MaskedValue::ANY, |net| MaskedValue::prefix(net.network().octets(), net.prefix_len()))
        };
        IpMatch::V4(Ipv4Match {
            src: net(it.src),
            dst: net(it.dst),
            protocol: exactly(it.protocol),
            tos: exactly(it.tos),
            ttl: exactly(it.ttl),
            flags: MaskedValue::ANY,
        })
    };
    let v6 = |it: &config::Ipv6Header| {
        let net = |net: Option<ipnet::Ipv6Net>| {
            net.map_or(MaskedValue::ANY, |net| MaskedValue::prefix(net.network().octets(), net.prefix_len()))
        };
        IpMatch::V6(Ipv6Match {
            src: net(it.src),
            dst: net(it.dst),
            flow_label: exactly(it.flow_label),
            next_header: exactly(it.next_header),
            traffic_class: exactly(it.traffic_class),
            hop_limit: exactly(it.hop_limit),
        })
    };
    let ports = |it: &config::Ports| PortsMatch { src: exactly(it.src), dst: exactly(it.dst) };
    let tcp = headers.tcp.as_ref().map(|it| TransportMatch::Tcp(ports(it)));
    let udp = headers.udp.as_ref().map(|it| TransportMatch::Udp(ports(it)));
    HeaderMatch {
        ethernet,
        ip: headers.ipv4.as_ref().map(v4).or(headers.ipv6.as_ref().map(v6)),
        transport: tcp.or(udp),
    }
}

fn tunnel(headers: &config::Match) -> Option<TunnelMatch> {
    /// The shift of the label in an MPLS label stack entry: the label is the upper 20 bits (RFC 3032).
    const LABEL: u32 = 12;
    let vxlan = headers.vxlan.as_ref().map(|it| TunnelMatch::Vxlan { vni: exactly(it.vni) });
    let gre = headers.gre.as_ref().map(|it| TunnelMatch::Gre {
        flags: MaskedValue::ANY,
        protocol: exactly(it.protocol),
        key: exactly(it.key),
    });
    let mpls = headers.mpls.as_ref().map(|it| {
        let label = |label: u32| MaskedValue::prefix((label << LABEL).to_be_bytes(), 20);
        TunnelMatch::Mpls { label: it.label.map_or(MaskedValue::ANY, label) }
    });
    vxlan.or(gre).or(mpls)
}

#[cfg(feature = "ibverbs")]
#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::config::{Diagnostics, Source};
    use dataplane_core::verbs::{Capability, RateLimit};
    use dataplane_ibverbs::encode_flow_rule;
    use dataplane_soft::{LinkSpec, LoopbackLink, SoftDevice, SoftQuirk, SoftSpec};

    /// Returns a port of a verbs device with these keys.
    pub(crate) fn plan(keys: &str, input: bool) -> PortPlan {
        let text = format!("[[port]]\nname = \"p\"\ndevice = \"mlx5_0\"\n{keys}\n");
        let source = Source::new("x.toml", &text, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let loaded = config::load(&source, &mut diagnostics);
        assert!(!diagnostics.has_errors(), "{}", diagnostics.render(false));
        let config = loaded.ports().next().unwrap().clone();
        let (requests, verifiers) = (Vec::new(), Vec::new());
        PortPlan { config, span: 0..0, input, has_default_mtu: false, node: None, peer: None, requests, verifiers }
    }

    fn rules(keys: &str) -> Vec<FlowRule> {
        spec(&plan(keys, true), &FlowCounterMap::new()).rules
    }

    /// Encodes a rule, and skips the head of the rule. Returns each specification that follows: its type, and its bytes
    /// after type and size.
    fn specs(rule: &FlowRule) -> Vec<(u32, Vec<u8>)> {
        let bytes = encode_flow_rule(rule).unwrap();
        let mut rest = &bytes[20..];
        let mut found = Vec::new();
        while !rest.is_empty() {
            let size = usize::from(u16::from_ne_bytes([rest[4], rest[5]]));
            found.push((u32::from_ne_bytes(rest[..4].try_into().unwrap()), rest[6..size].to_vec()));
            rest = &rest[size..];
        }
        found
    }

    #[test]
    fn raw_packet_port_on_infiniband_is_refused_with_a_remedy() {
        let (link, _other) = LoopbackLink::pair();
        let mut spec = SoftSpec::new("mlx5_0", LinkSpec::Loopback(link));
        spec.port.lid = 1;
        let device = SoftDevice::new(spec).unwrap();
        let error = prepare_rdma(device.clone(), &plan("", true), 1).err().unwrap().to_string();
        assert!(error.contains("port 1 of `mlx5_0` is an InfiniBand port; help: set qp = \"rc\""), "{error}");
        let connected = plan("qp = \"rc\"\nconnection = { to = \"127.0.0.1:18515\" }", true);
        assert!(prepare_rdma(device, &connected, 1).is_ok());
    }

    #[test]
    fn missing_port_of_a_device_is_refused_with_a_remedy() {
        let (link, _other) = LoopbackLink::pair();
        let device = SoftDevice::new(SoftSpec::new("mlx5_0", LinkSpec::Loopback(link))).unwrap();
        let error = prepare_rdma(device.clone(), &plan("device_port = 2", true), 1).err().unwrap().to_string();
        let problem = "`mlx5_0` has only port 1, but device_port is 2; help: set device_port = 1, or set `device`";
        assert!(error.contains(problem), "{error}");
        assert!(prepare_rdma(device, &plan("device_port = 1", true), 1).is_ok());
    }

    #[test]
    fn without_flow_rules_only_an_input_port_receives_frames() {
        assert_eq!(rules("").iter().map(|rule| rule.traffic).collect::<Vec<_>>(), [FlowTraffic::ANY_HEADERS]);
        let spec = spec(&plan("", false), &FlowCounterMap::new());
        assert!(spec.rules.is_empty() && !spec.checksum && spec.rate.is_none());
        assert_eq!(spec.receive, RawReceive::default());
    }

    /// Checks the values and masks of each header, in the order and byte order of verbs.h.
    #[test]
    fn every_matched_header_is_encoded_in_its_rule() {
        let rules = rules(
            "flow = [{ priority = 3, match = { ethernet = { dst = '02:00:00:00:00:01', src = '02:00:00:00:00:02', \
             vlan = 7 }, ipv4 = { src = '192.0.2.0/24', dst = '198.51.100.9', tos = 4, ttl = 5 }, \
             udp = { src = 0x1234, dst = 4789 }, vxlan = { vni = 0x0a0b0c }, \
             inner = { ipv6 = { src = '2001:db8::/32', dst = '::1', flow_label = 0x12345, traffic_class = 6, \
             hop_limit = 8 }, tcp = { dst = 443 } } } }, \
             { match = { ethernet = { type = 0x88cc } } }, \
             { match = { ipv4 = { protocol = 47 }, gre = { protocol = 0x6558, key = 9 } } }, \
             { match = { ethernet = {}, mpls = { label = 0x12345 } } }, \
             { match = { ipv6 = { next_header = 58 } } }]",
        );
        let [first, lldp, gre, mpls, icmp] = &rules[..] else { panic!("{rules:?}") };
        assert_eq!((first.priority, first.port, first.drop, first.tag), (3, 1, false, None));
        let both = |value: &[u8], mask: &[u8]| [value, mask].concat();
        let found = specs(first);
        let kinds: Vec<u32> = found.iter().map(|(kind, _)| *kind).collect();
        // ETH, IPV4_EXT, UDP, VXLAN_TUNNEL, INNER | IPV6, INNER | TCP
        assert_eq!(kinds, [0x20, 0x32, 0x41, 0x50, 0x131, 0x140]);
        let value = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0, 0, 0, 7];
        let mut mask = [0xff; 16];
        mask[12..].copy_from_slice(&[0, 0, 0x0f, 0xff]);
        assert_eq!(found[0].1[..32], both(&value, &mask));
        let value = [192, 0, 2, 0, 198, 51, 100, 9, 0, 4, 5, 0];
        let mask = [255, 255, 255, 0, 255, 255, 255, 255, 0, 255, 255, 0];
        assert_eq!(found[1].1[2..], both(&value, &mask));
        assert_eq!(found[2].1[..8], both(&[0x12, 0xb5, 0x12, 0x34], &[0xff; 4]));
        assert_eq!(found[3].1[2..], both(&[0, 0x0a, 0x0b, 0x0c], &[0, 255, 255, 255]));
        assert_eq!(found[4].1[2..6], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(found[4].1[42..46], [0xff, 0xff, 0xff, 0xff], "the mask of the prefix");
        assert_eq!(found[5].1[..8], both(&[0x01, 0xbb, 0, 0], &[0xff, 0xff, 0, 0]));
        assert_eq!(first.partial_masks(), ["ipv4 src", "ipv6 src"]);
        assert_eq!(specs(lldp)[0].1[12..16], [0x88, 0xcc, 0, 0]);
        assert_eq!(
            specs(gre)[1],
            (0x51, both(&[0, 0, 0, 0, 0x65, 0x58, 0, 0, 0, 9], &[0, 0, 0xff, 0xff, 255, 255, 255, 255]))
        );
        assert_eq!(specs(mpls)[1].1[2..6], [0x12, 0x34, 0x50, 0]);
        assert_eq!(icmp.partial_masks(), [""; 0]);
    }

    #[test]
    fn traffic_kinds_and_actions_are_encoded() {
        let rules = rules(
            "flow = [{ frames = 'all_default' }, { frames = 'multicast_default' }, { frames = 'sniffer' }, \
             { action = 'drop', match = { ipv4 = {}, tcp = { dst = 23 } } }, { dont_trap = true, priority = 21844 }]",
        );
        let kinds: Vec<u32> = rules
            .iter()
            .map(|rule| u32::from_ne_bytes(encode_flow_rule(rule).unwrap()[4..8].try_into().unwrap()))
            .collect();
        // enum ibv_flow_attr_type
        assert_eq!(kinds, [1, 2, 3, 0, 0]);
        assert_eq!(specs(&rules[3]).last().unwrap().0, 0x1001, "IBV_FLOW_SPEC_ACTION_DROP");
        let head = encode_flow_rule(&rules[4]).unwrap();
        assert_eq!((head[16], u16::from_ne_bytes([head[10], head[11]])), (2, 21844), "dont_trap, priority");
    }

    /// When the program opens a device, it tries to create a raw-packet queue pair. Even if this attempt failed, the
    /// device may create such queue pairs later. The settings of the port must apply to these queue pairs too.
    #[test]
    fn settings_are_applied_even_if_the_device_reports_no_raw_packets() {
        let link = LinkSpec::Loopback(LoopbackLink::reflect());
        let refuse = vec![Capability::RawPacket];
        let device = SoftDevice::new(SoftSpec { disabled_capabilities: refuse, ..SoftSpec::new("p", link) }).unwrap();
        let flow = "flow = [{ count = 'bgp', match = { ethernet = {}, ipv4 = {}, tcp = { dst = 179 } } }]";
        let (device, prepared) = prepare_rdma(device, &plan(flow, true), 1).unwrap();
        assert_eq!(prepared.counters.keys().collect::<Vec<_>>(), ["bgp"]);
        drop(device);
        let port = "qp = 'ud'\nconnection = { to = '127.0.0.1:18515' }";
        let device = SoftDevice::new(SoftSpec::new("p", LinkSpec::Loopback(LoopbackLink::reflect()))).unwrap();
        assert!(prepare_rdma(device, &plan(port, true), 1).unwrap().1.counters.is_empty());
    }

    #[test]
    fn error_names_a_count_that_the_device_does_not_support() {
        let link = LinkSpec::Loopback(LoopbackLink::reflect());
        let quirks = vec![SoftQuirk::PlainFlowRules];
        let device = SoftDevice::new(SoftSpec { quirks, ..SoftSpec::new("p", link) }).unwrap();
        let flow = "flow = [{ count = 'v4', match = { ethernet = {}, ipv4 = {} } }]";
        let error = prepare(device, &plan(flow, true), 1).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("port `p`: ") && error.contains("the action `count`; help: "), "{error}");
    }

    #[test]
    fn offloads_and_rate_limit_reach_the_device() {
        let keys = "offload = ['checksum', 'vlan_strip', 'fcs', 'delay_drop']\n\
                    rate_limit = { rate = '500kbps', burst = 9000, packet = 64 }";
        let spec = spec(&plan(keys, true), &FlowCounterMap::new());
        assert!(spec.checksum);
        assert_eq!(spec.receive, RawReceive { vlan_strip: true, scatter_fcs: true, delay_drop: true });
        assert_eq!(spec.rate, Some(RateLimit { kbps: 500, burst: 9000, typical_packet_size: 64 }));
    }
}
