//! Checks of the raw-packet features of a port.

use crate::config::diagnostics::{Diagnostics, Mistake};
use crate::config::load::Loaded;
use crate::config::plan::PortPlan;
use crate::config::port::{Port, Qp};
use crate::config::raw::{Action, FlowRuleConfig, Frames, Headers};
use dataplane_soft::config::HOST;

/// Warns about each connection on a device port whose frames a raw-packet port takes from the kernel. The kernel then
/// gets no answers to its ARP and neighbour requests, so the kernel cannot resolve the address of the peer.
pub(super) fn taken_answers(loaded: &Loaded<'_>, ports: &[Option<PortPlan>], diagnostics: &mut Diagnostics) {
    let plans = || ports.iter().flatten();
    for (index, plan) in ports.iter().enumerate() {
        let Some(port) = plan.as_ref().map(|plan| &plan.config).filter(|port| port.is_rdma()) else { continue };
        let is_same = |other: &Port| (&other.device, other.device_port) == (&port.device, port.device_port);
        let taker = plans().find(|other| takes_every_frame(other) && is_same(&other.config));
        let Some(taker) = taker.filter(|_| port.qp != Qp::RawPacket) else { continue };
        let (taker, name, number, device) = (&taker.config.name, &port.name, port.device_port, &port.device);
        let message = format!(
            "`{taker}` takes all frames of port {number} of `{device}` from the kernel, also the ARP and neighbour \
             answers that the connection of `{name}` needs"
        );
        let help = format!(
            "use another `device` or `device_port` for `{name}`, or leave ARP and ICMPv6 to the kernel: add to \
             `{taker}`: flow = [{{ match = {{ ipv4 = {{}} }} }}]"
        );
        diagnostics.push(Mistake::warning(loaded.locate(&format!("port[{index}].device")), message).help(help));
    }
}

/// Returns whether the port receives every Ethernet frame of its device port, except RDMA frames.
fn takes_every_frame(PortPlan { input, config: port, .. }: &PortPlan) -> bool {
    let is_catch_all = |rule: &FlowRuleConfig| {
        rule.frames == Frames::Matching && rule.headers.is_none() && rule.action == Action::Receive && !rule.dont_trap
    };
    let has_catch_all = port.flow.as_ref().is_none_or(|rules| rules.iter().any(is_catch_all));
    *input && port.is_rdma() && port.qp == Qp::RawPacket && has_catch_all
}

/// Checks the raw-packet features of a port: `flow`, `offload`, `rate_limit` and `promiscuous`.
pub(super) fn raw(loaded: &Loaded<'_>, index: usize, port: &Port, diagnostics: &mut Diagnostics) {
    let mut checker = RawChecker { loaded, path: format!("port[{index}]"), diagnostics };
    let given = [
        ("flow", port.flow.is_some()),
        ("offload", !port.offloads().is_empty()),
        ("rate_limit", port.rate_limit.is_some()),
    ];
    for (key, _) in given.into_iter().filter(|(_, given)| *given) {
        if let Some(link) = port.link.as_ref().filter(|link| !link.copies_frames()) {
            let help = match key {
                "flow" => "remove the key, and select packets with an `acl` stage",
                "rate_limit" => "remove the key, and limit the rate with a `limit` stage",
                _ => "remove the key",
            };
            let kind = link.kind();
            let message = format!(
                "`{key}` is not available on `{kind}` links, because the kernel reads and writes the packet \
                 buffers directly, and the software device does not process the frames"
            );
            checker.error(key, message, help);
        } else if port.qp != Qp::RawPacket {
            checker.needs_raw_packets(key, port);
        }
    }
    if port.promiscuous.is_some() {
        if port.device == HOST {
            let help = match port.link.as_ref().map(|link| link.kind()) {
                Some("packet" | "xdp") => "write the key in `link`",
                _ => "remove the key",
            };
            let message =
                format!("`promiscuous` of a port is only for RDMA devices, but `{}` has the device `host`", port.name);
            checker.error("promiscuous", message, help);
        } else if port.qp != Qp::RawPacket {
            checker.needs_raw_packets("promiscuous", port);
        }
        let rules = port.flow.iter().flatten();
        if port.promiscuous == Some(true) && rules.clone().any(FlowRuleConfig::follows_interface) {
            let message = format!(
                "`{}` is promiscuous, so its interface takes the frames of rules with `all_default` or `multicast_default`",
                port.name
            );
            let help = "remove this key, or use a rule without `match` and with a larger `priority`";
            checker.error("promiscuous", message, help);
        }
    }
    for (at, offload) in port.offloads().iter().enumerate() {
        if port.offloads()[..at].contains(offload) {
            checker.error(
                &format!("offload[{at}]"),
                format!("the offload `{}` is listed twice", offload.name()),
                "remove one of the two",
            );
        }
    }
    if port.flow.as_ref().is_some_and(Vec::is_empty) {
        let help = "add a rule, or remove `flow` to receive every frame";
        checker.error("flow", format!("`flow` has no rules, so `{}` receives nothing", port.name), help);
    }
    for (at, flow) in port.flow.iter().flatten().enumerate() {
        checker.flow(&format!("flow[{at}]"), flow);
    }
}

struct RawChecker<'a, 's> {
    loaded: &'a Loaded<'s>,
    path: String,
    diagnostics: &'a mut Diagnostics,
}

impl RawChecker<'_, '_> {
    fn error(&mut self, key: &str, message: String, help: &str) {
        let span = self.loaded.locate(&format!("{}.{key}", self.path));
        self.diagnostics.push(Mistake::error(span, message).help(help));
    }

    fn needs_raw_packets(&mut self, key: &str, port: &Port) {
        let message =
            format!("`{key}` needs raw-packet queue pairs, and `{}` has {} queue pairs", port.name, port.qp.name());
        self.error(key, message, "remove the key, or write qp = \"raw_packet\"");
    }

    fn flow(&mut self, path: &str, flow: &FlowRuleConfig) {
        if flow.frames != Frames::Matching {
            let given = [
                ("match", flow.headers.is_some()),
                ("action", flow.action == Action::Drop),
                ("count", flow.count.is_some()),
                ("tag", flow.tag.is_some()),
                ("dont_trap", flow.dont_trap),
            ];
            for (key, _) in given.into_iter().filter(|(_, given)| *given) {
                let message =
                    format!("`{key}` needs frames = \"matching\", but this rule has another value of `frames`");
                self.error(&format!("{path}.{key}"), message, "remove the key, or remove `frames`");
            }
            return;
        }
        if flow.action == Action::Drop && flow.dont_trap {
            let message = "`dont_trap` has no effect on frames that are dropped".to_owned();
            self.error(&format!("{path}.dont_trap"), message, "remove `dont_trap` or `action`");
        }
        if flow.count.as_ref().is_some_and(String::is_empty) {
            self.error(
                &format!("{path}.count"),
                "the name of the counter is empty".to_owned(),
                "write a name, for example count = \"dns\"",
            );
        }
        let Some(headers) = &flow.headers else { return };
        let path = format!("{path}.match");
        let outer = headers.outer();
        self.headers(&path, &outer);
        let tunnels: Vec<&str> =
            [("vxlan", headers.vxlan.is_some()), ("gre", headers.gre.is_some()), ("mpls", headers.mpls.is_some())]
                .into_iter()
                .filter_map(|(key, given)| given.then_some(key))
                .collect();
        match (&tunnels[..], &headers.inner) {
            ([], Some(_)) => {
                let message = "`inner` needs a tunnel, but this rule matches no tunnel".to_owned();
                self.error(&format!("{path}.inner"), message, "add `vxlan`, `gre` or `mpls`, or remove `inner`");
            }
            ([first, second, ..], _) => {
                let message = format!("`{first}` and `{second}` cannot be used together");
                self.error(&format!("{path}.{second}"), message, "remove one of the two");
            }
            _ => {}
        }
        let over = if outer.tcp.is_some() { Some("tcp") } else { outer.udp.as_ref().map(|_| "udp") };
        let ip = outer.ipv4.is_some() || outer.ipv6.is_some();
        for tunnel in tunnels {
            let wanted = match tunnel {
                "vxlan" if over != Some("udp") => "`udp`",
                "gre" if over.is_some() || !ip => "`ipv4` or `ipv6` without `tcp` and `udp`",
                "mpls" if over == Some("tcp") => "`udp` or no transport header",
                _ => continue,
            };
            let message = format!("`{tunnel}` needs {wanted}");
            self.error(&format!("{path}.{tunnel}"), message, "match the headers that carry the tunnel");
        }
        if let Some(inner) = &headers.inner {
            self.headers(&format!("{path}.inner"), inner);
        }
    }

    /// Reports headers that exclude each other, transport headers without an IP header, and keys whose value another
    /// header already implies.
    fn headers(&mut self, path: &str, headers: &Headers) {
        let Headers { ethernet, ipv4, ipv6, tcp, udp } = headers;
        for (first, second, both) in
            [("ipv4", "ipv6", ipv4.is_some() && ipv6.is_some()), ("tcp", "udp", tcp.is_some() && udp.is_some())]
        {
            if both {
                let message = format!("`{first}` and `{second}` exclude each other");
                self.error(&format!("{path}.{second}"), message, "write two rules");
            }
        }
        let ip = if ipv4.is_some() { Some("ipv4") } else { ipv6.as_ref().map(|_| "ipv6") };
        let transport = if tcp.is_some() { Some("tcp") } else { udp.as_ref().map(|_| "udp") };
        if let (Some(transport), None) = (transport, ip) {
            let message = format!("`{transport}` needs `ipv4` or `ipv6`");
            self.error(&format!("{path}.{transport}"), message, "add ipv4 = {} or ipv6 = {}");
        }
        let ether_type = ethernet.as_ref().is_some_and(|it| it.ether_type.is_some());
        let protocol = ipv4.as_ref().is_some_and(|it| it.protocol.is_some());
        let next_header = ipv6.as_ref().is_some_and(|it| it.next_header.is_some());
        for (key, given, implied_by) in [
            ("ethernet.type", ether_type, ip),
            ("ipv4.protocol", protocol, transport),
            ("ipv6.next_header", next_header, transport),
        ] {
            if let (true, Some(implied_by)) = (given, implied_by) {
                let message = format!("`{implied_by}` already sets `{key}`");
                self.error(&format!("{path}.{key}"), message, &format!("remove `{key}`"));
            }
        }
    }
}
