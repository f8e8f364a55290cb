//! Checks that compare several keys of a port, or several ports.

mod connection;
mod raw;

use std::collections::{HashMap, HashSet};

use super::diagnostics::{Diagnostics, Mistake};
use super::load::Loaded;
use super::plan::PortPlan;
use super::port::{Port, Qp};
use super::raw::Offload;
use super::tree;
use dataplane_core::error::shorten;
use dataplane_core::parse_errors::{NAME_HELP, has_control_character, suggest};
use dataplane_core::verbs::{Capability, RssFields};
use dataplane_soft::config::{HOST, LinkConfig, PortLimits, SOFT, kinds};

/// Checks the ports. Returns the plan of each port, or `None` for a port that could not be read.
pub(super) fn ports(loaded: &Loaded<'_>, diagnostics: &mut Diagnostics) -> Vec<Option<PortPlan>> {
    let mut checker = PortChecker { loaded, diagnostics, names: HashMap::new() };
    if loaded.ports.is_empty() && !loaded.damaged {
        let mistake = Mistake::error(0..0, "the config has no port");
        checker.diagnostics.push(mistake.help("add a [[port]] with a name and a device, such as \"host\" or \"soft\""));
    }
    checker.names();
    let inputs = checker.inputs();
    let plan = |(index, entry): (usize, &super::load::PortEntry)| {
        let mut config = entry.port.clone()?;
        let peer = checker.port(index, &config);
        if let Some(link) = &mut config.link {
            link.resolve_paths(&|path| loaded.source().resolve(path));
        }
        Some(PortPlan {
            input: inputs.contains(&index),
            has_default_mtu: entry.has_default_mtu,
            node: None,
            peer,
            span: entry.span.clone(),
            config,
            requests: Vec::new(),
            verifiers: Vec::new(),
        })
    };
    let ports: Vec<_> = loaded.ports.iter().enumerate().map(plan).collect();
    checker.addresses();
    checker.devices();
    checker.listeners();
    checker.unused(&inputs);
    interfaces(loaded, &ports, diagnostics);
    raw::taken_answers(loaded, &ports, diagnostics);
    ports
}

struct PortChecker<'a, 's> {
    loaded: &'a Loaded<'s>,
    diagnostics: &'a mut Diagnostics,
    names: HashMap<&'a str, usize>,
}

impl<'a> PortChecker<'a, '_> {
    fn error(&mut self, path: &str, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Mistake::error(self.loaded.locate(path), message).help(help));
    }

    fn names(&mut self) {
        let loaded = self.loaded;
        for (index, entry) in loaded.ports.iter().enumerate() {
            let Some(name) = &entry.name else { continue };
            if name.get_ref().is_empty() {
                self.error(
                    &format!("port[{index}].name"),
                    "the name of the port is empty",
                    "write name = \"wan\", for example",
                );
            } else if has_control_character(name.get_ref()) {
                let message = "the name of the port contains a control character";
                self.error(&format!("port[{index}].name"), message, NAME_HELP);
                // Register the name, so that references to this port are not reported as unknown names.
                self.names.insert(name.get_ref(), index);
            } else if let Some(&first) = self.names.get(name.get_ref().as_str()) {
                let line = loaded.source().position(&loaded.ports[first].span).line;
                let message = format!("two ports have the name `{}`", shorten(name.get_ref()));
                self.error(
                    &format!("port[{index}].name"),
                    message,
                    format!("the other port is on line {line}; rename one of the two ports"),
                );
            } else {
                self.names.insert(name.get_ref(), index);
            }
        }
    }

    fn unknown_port(&mut self, path: &str, name: &str) {
        if !self.loaded.may_lack_ports() && !self.diagnostics.is_full() {
            let names: Vec<&str> = self.names.keys().copied().collect();
            self.error(path, format!("there is no port `{}`", shorten(name)), suggest("ports", name, &names));
        }
    }

    fn inputs(&mut self) -> Vec<usize> {
        let loaded = self.loaded;
        let Some((_, names)) = &loaded.input else { return Vec::new() };
        if names.is_empty() && !loaded.damaged {
            self.error("pipeline.input", "`input` names no port", "name at least one port: input = [\"wan\"]");
        }
        let mut inputs = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let path = format!("pipeline.input[{at}]");
            let name = name.get_ref();
            match self.names.get(name.as_str()) {
                Some(index) if inputs.contains(index) => {
                    self.error(&path, format!("the port `{name}` is listed twice"), "remove one of the two");
                }
                Some(index) => inputs.push(*index),
                None => self.unknown_port(&path, name),
            }
        }
        inputs
    }

    /// Checks that no address occurs at two ports, or twice at one port.
    fn addresses(&mut self) {
        let mut owners = HashMap::new();
        let loaded = self.loaded;
        for (index, port) in
            loaded.ports.iter().enumerate().filter_map(|(index, entry)| Some((index, entry.port.as_ref()?)))
        {
            for (place, address) in port.addresses.iter().enumerate() {
                let address = address.0.addr();
                if let Some(owner) = owners.get(&address) {
                    let message = format!("{address} is already an address of `{owner}`");
                    self.error(&format!("port[{index}].addresses[{place}]"), message, "remove one of the two");
                } else {
                    owners.insert(address, &port.name);
                }
            }
        }
    }

    /// Checks one port. Returns the index of its loopback peer.
    fn port(&mut self, index: usize, port: &Port) -> Option<usize> {
        let at = |key: &str| format!("port[{index}].{key}");
        connection::connection(self.loaded, index, port, self.diagnostics);
        raw::raw(self.loaded, index, port, self.diagnostics);
        self.peer(index, port);
        if port.device.is_empty() {
            self.error(
                &at("device"),
                "the device of the port is empty",
                "write \"host\", \"soft\" or the name of a verbs device",
            );
        }
        if port.is_rdma() {
            let given = [
                ("link", port.link.is_some()),
                ("faults", port.faults.is_some()),
                ("clock", port.clock.is_some()),
                ("refuse", !port.disabled_capabilities.is_empty()),
            ];
            for (key, _) in given.into_iter().filter(|(_, given)| *given) {
                let message = format!("a verbs device such as `{}` has no `{key}`", port.device);
                let device = port.link.as_ref().map_or(SOFT, |link| link.device());
                self.error(&at(key), message, format!("remove `{key}`, or write device = \"{device}\""));
            }
            return None;
        }
        if let Some(link) = port.link.as_ref().filter(|link| link.device() != port.device) {
            let message =
                format!("a link of kind `{}` needs the device `{}`, not `{}`", link.kind(), link.device(), port.device);
            self.error(&at("device"), message, format!("write device = \"{}\"", link.device()));
        }
        if port.device_port != 1 {
            let message = format!("the device `{}` has only port 1", port.device);
            self.error(&at("device_port"), message, "remove `device_port`");
        }
        let needed = match port.qp {
            Qp::RawPacket => Capability::RawPacket,
            Qp::Ud => Capability::Datagram,
            Qp::Rc => Capability::Rc,
            Qp::Uc => Capability::Uc,
        };
        if let Some(entry) = port.disabled_capabilities.iter().position(|refused| *refused == needed) {
            let message = format!("`{}` needs the capability {needed} for its queue pairs", port.name);
            self.error(&at(&format!("refuse[{entry}]")), message, format!("remove \"{needed}\" from `refuse`"));
        }
        if let Some(link) = port.link.as_ref().filter(|link| !matches!(link, LinkConfig::Loopback(_)))
            && port.qp != Qp::RawPacket
        {
            let message =
                format!("a {} link supports only raw packets, not {} queue pairs", link.kind(), port.qp.name());
            let soft = if port.device == HOST { "device = \"soft\" and " } else { "" };
            let help = format!("write {soft}link = {{ kind = \"loopback\" }}, or qp = \"raw_packet\"");
            self.error(&at("link"), message, help);
        }
        match &port.link {
            // The key `link` may be on a line that could not be read.
            None if self.loaded.damaged => None,
            None => {
                let message = format!("the port `{}` has no link", port.name);
                let help = format!("add link = {{ kind = {} }}", kinds(Some(&port.device)));
                self.error(&format!("port[{index}]"), message, help);
                None
            }
            Some(link) => {
                let (name, mtu, is_damaged) = (port.name.as_str(), port.max_packet(), self.loaded.damaged);
                let limits = PortLimits { name, mtu, has_faults: port.faults.is_some(), is_damaged };
                let mut mistakes = Vec::new();
                link.check(&limits, &mut mistakes);
                for mistake in mistakes {
                    self.error(&at(&mistake.place), mistake.message, mistake.help);
                }
                match link {
                    LinkConfig::Loopback(link) => self.loopback(index, port, link.peer.as_deref()),
                    _ => None,
                }
            }
        }
    }

    /// Checks that both ends of a connection within the config name each other.
    fn peer(&mut self, index: usize, port: &Port) {
        let Some((connection, name)) =
            port.connection.as_ref().and_then(|it| Some((it, it.rendezvous.peer.as_deref()?)))
        else {
            return;
        };
        let path = format!("port[{index}].connection.peer");
        let Some(&other) = self.names.get(name) else { return self.unknown_port(&path, name) };
        if other == index {
            if !connection.parameters.allow_self {
                let message = format!("`{name}` is its own peer");
                self.error(&path, message, "name another port, or add allow_self = true");
            }
            return;
        }
        let Some(end) = self.loaded.ports.get(other).and_then(|entry| entry.port.as_ref()) else { return };
        if end.connection.as_ref().and_then(|connection| connection.rendezvous.peer.as_deref())
            != Some(port.name.as_str())
        {
            let message = format!(
                "port `{}` has the peer `{name}`, but `{name}` does not have the peer `{}`",
                port.name, port.name
            );
            self.error(&path, message, format!("add to `{name}`: connection = {{ peer = \"{}\" }}", port.name));
        } else if end.qp != port.qp {
            let message =
                format!("`{name}` has {} queue pairs, but `{}` has {}", end.qp.name(), port.name, port.qp.name());
            self.error(&path, message, "use the same `qp` for both ports");
        }
    }

    fn loopback(&mut self, index: usize, port: &Port, peer: Option<&str>) -> Option<usize> {
        let Some(name) = peer else { return Some(index) };
        let path = format!("port[{index}].link.peer");
        let Some(&other) = self.names.get(name) else {
            self.unknown_port(&path, name);
            return None;
        };
        let Some(end) = self.loaded.ports.get(other).and_then(|entry| entry.port.as_ref()) else { return Some(other) };
        let back = match &end.link {
            Some(LinkConfig::Loopback(link)) => link.peer.as_deref().or(Some(&end.name)),
            _ => None,
        };
        if back != Some(port.name.as_str()) {
            let message = format!(
                "port `{}` has the peer `{name}`, but `{name}` does not have the peer `{}`",
                port.name, port.name
            );
            let help = format!("add to `{name}`: link = {{ kind = \"loopback\", peer = \"{}\" }}", port.name);
            self.error(&path, message, help);
        }
        Some(other)
    }

    /// Checks that no two ports of the config use the raw packets of the same physical port of an RDMA device.
    fn devices(&mut self) {
        let mut seen: HashMap<(&str, u8), &'a str> = HashMap::new();
        let loaded = self.loaded;
        for (index, entry) in loaded.ports.iter().enumerate() {
            let Some(port) = entry.port.as_ref().filter(|port| port.is_rdma() && port.qp == Qp::RawPacket) else {
                continue;
            };
            if let Some(other) = seen.insert((port.device.as_str(), port.device_port), port.name.as_str()) {
                let (name, number, device) = (&port.name, port.device_port, &port.device);
                let message = format!("`{name}` and `{other}` both use the raw packets of port {number} of `{device}`");
                let help = "use a different `device` or `device_port` for each port";
                self.error(&format!("port[{index}].device"), message, help);
            }
        }
    }

    /// Checks that no two ports listen for their peers on the same address.
    fn listeners(&mut self) {
        let loaded = self.loaded;
        let mut seen: Vec<&Port> = Vec::new();
        for (index, port) in loaded.ports.iter().enumerate().filter_map(|(at, entry)| Some((at, entry.port.as_ref()?)))
        {
            let Some(connection) = &port.connection else { continue };
            let shared = seen.iter().find_map(|other| {
                let address = connection.rendezvous.shared_listener(&other.connection.as_ref()?.rendezvous)?;
                Some((address, &other.name))
            });
            if let Some((address, other)) = shared {
                let message = format!("`{}` cannot listen on {address}, because `{other}` listens there", port.name);
                let help = "listen on another TCP port, such as 18516, and write the same TCP port in `to` of the peer";
                self.error(&format!("port[{index}].connection.listen"), message, help);
            }
            seen.push(port);
        }
    }

    fn unused(&mut self, inputs: &[usize]) {
        if self.loaded.may_lack_ports() || self.loaded.input.is_none() {
            return;
        }
        let loaded = self.loaded;
        // A stage may name ports in a file, and this check does not read files.
        if loaded.stages.iter().any(|stage| stage.parameters.get_ref().contains_key("file")) {
            return;
        }
        // This check does not know which parameters of a stage name ports. Any string that equals the name of a port
        // counts as a use of that port.
        let mut named = HashSet::new();
        for value in loaded.stages.iter().flat_map(|stage| stage.parameters.get_ref().values()) {
            tree::strings(value.get_ref(), &mut named);
        }
        for (index, entry) in loaded.ports.iter().enumerate() {
            let (Some(name), Some(_)) = (&entry.name, &entry.port) else { continue };
            let name = name.get_ref().as_str();
            let peer = loaded.ports.iter().enumerate().any(|(other, entry)| {
                let Some(port) = entry.port.as_ref().filter(|_| other != index) else { return false };
                let joined =
                    matches!(&port.link, Some(LinkConfig::Loopback(link)) if link.peer.as_deref() == Some(name));
                joined
                    || port
                        .connection
                        .as_ref()
                        .is_some_and(|connection| connection.rendezvous.peer.as_deref() == Some(name))
            });
            if !inputs.contains(&index) && !peer && !named.contains(name) {
                let mistake = Mistake::warning(
                    loaded.locate(&format!("port[{index}].name")),
                    format!("the port `{name}` is never used"),
                );
                self.diagnostics
                    .push(mistake.help("name the port in `input` of [pipeline], or as `port` of a `tx` stage"));
            }
        }
    }
}

/// Checks that this number of workers can share each port.
pub(super) fn spread(loaded: &Loaded<'_>, ports: &[Option<PortPlan>], workers: usize, diagnostics: &mut Diagnostics) {
    for (index, plan) in ports.iter().enumerate().filter(|_| workers == 1) {
        let Some(PortPlan { config: port, .. }) = plan else { continue };
        if let Some(at) = port.offloads().iter().position(|offload| *offload == Offload::DelayDrop) {
            let message =
                format!("delay_drop needs several queues, but `{}` has one queue for its one worker", port.name);
            let mistake = Mistake::error(loaded.locate(&format!("port[{index}].offload[{at}]")), message);
            diagnostics.push(mistake.help("remove \"delay_drop\" from `offload`, or use more workers in [runtime]"));
        }
    }
    for (index, plan) in ports.iter().enumerate().filter(|_| workers > 1) {
        // Other types of queue pairs need no RSS, because each worker has its own connection.
        let Some(port) = plan.as_ref().filter(|port| port.config.qp == Qp::RawPacket) else { continue };
        let name = &port.config.name;
        if let Some(at) = port.config.disabled_capabilities.iter().position(|refused| *refused == Capability::Rss) {
            let message =
                format!("`{name}` refuses rss and therefore has only one queue, but there are {workers} workers");
            let mistake = Mistake::error(loaded.locate(&format!("port[{index}].refuse[{at}]")), message);
            diagnostics.push(mistake.help("remove \"rss\" from `refuse`, or set workers = 1 in [runtime]"));
        }
        if port.input && port.config.rss.fields == RssFields::NONE {
            let message = format!("`{name}` hashes no fields, so one of {workers} workers receives every packet");
            let mistake = Mistake::error(loaded.locate(&format!("port[{index}].rss.fields")), message);
            diagnostics.push(mistake.help("name the fields to hash, such as \"ipv4\", or remove `fields`"));
        }
    }
}

/// Checks that no two ports use the same interface.
fn interfaces(loaded: &Loaded<'_>, ports: &[Option<PortPlan>], diagnostics: &mut Diagnostics) {
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for (index, port) in ports.iter().enumerate() {
        let Some(config) = port.as_ref().map(|port| &port.config) else { continue };
        let Some((link, interface)) = config.link.as_ref().and_then(|link| Some((link, link.interface()?))) else {
            continue;
        };
        if let Some(other) = seen.insert(interface, &config.name) {
            let message = format!("`{}` and `{other}` both use the interface `{interface}`", config.name);
            let at = format!("port[{index}].link.{}", link.interface_key());
            let mistake = Mistake::error(loaded.locate(&at), message);
            diagnostics.push(mistake.help("give each port its own interface"));
        }
    }
}
