//! Checks of ports: what each key alone cannot tell.

use std::collections::{HashMap, HashSet};

use super::connection;
use super::diagnostics::{Diagnostics, Mistake};
use super::explain::suggest;
use super::link;
use super::load::Loaded;
use super::plan::PortPlan;
use super::port::{Capability, LINKS, Link, Port, Qp, SOFT};
use super::raw::{self, Offload};
use super::tree;

/// A packet names its port in a byte.
const MAX_PORTS: usize = 255;

/// The ports with all their names resolved; none for one that could not be read.
pub(super) fn ports(loaded: &Loaded<'_>, diagnostics: &mut Diagnostics) -> Vec<Option<PortPlan>> {
    let mut checker = Checker { loaded, diagnostics, names: HashMap::new() };
    if loaded.ports.is_empty() && !loaded.damaged {
        let mistake = Mistake::error(0..0, "the config has no port");
        checker.diagnostics.push(mistake.help("add a [[port]] with a name and a device, such as \"soft\""));
    }
    if let Some(entry) = loaded.ports.get(MAX_PORTS) {
        let mistake = Mistake::error(entry.span.clone(), format!("this is port {} of the config", MAX_PORTS + 1));
        checker.diagnostics.push(mistake.help(format!("a config has at most {MAX_PORTS} ports")));
    }
    checker.names();
    let inputs = checker.inputs();
    let plan = |(index, entry): (usize, &super::load::PortEntry)| {
        let mut config = entry.port.clone()?;
        let peer = checker.port(index, &config);
        if let Some(Link::Pcap(pcap)) = &mut config.link {
            for path in [&mut pcap.input, &mut pcap.output].into_iter().flatten() {
                *path = loaded.source().resolve(path);
            }
        }
        Some(PortPlan { input: inputs.contains(&index), node: None, peer, span: entry.span.clone(), config })
    };
    let ports: Vec<_> = loaded.ports.iter().enumerate().map(plan).collect();
    checker.devices();
    checker.unused(&inputs);
    link::interfaces(loaded, &ports, diagnostics);
    ports
}

struct Checker<'a, 's> {
    loaded: &'a Loaded<'s>,
    diagnostics: &'a mut Diagnostics,
    names: HashMap<&'a str, usize>,
}

impl<'a> Checker<'a, '_> {
    fn error(&mut self, path: &str, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Mistake::error(self.loaded.locate(path), message).help(help));
    }

    fn names(&mut self) {
        let loaded = self.loaded;
        for (index, entry) in loaded.ports.iter().enumerate() {
            let Some(name) = &entry.name else { continue };
            if name.get_ref().is_empty() {
                self.error(&format!("port[{index}].name"), "a port needs a name", "write name = \"wan\", for example");
            } else if let Some(&first) = self.names.get(name.get_ref().as_str()) {
                let line = loaded.source().position(&loaded.ports[first].span).line;
                let message = format!("two ports have the name `{}`", name.get_ref());
                self.error(&format!("port[{index}].name"), message, format!("the other one is on line {line}"));
            } else {
                self.names.insert(name.get_ref(), index);
            }
        }
    }

    /// Whether a name that isn't known may be that of a port that could not be read.
    fn may_be_lost(&self) -> bool {
        self.loaded.damaged || self.loaded.ports.iter().any(|entry| entry.name.is_none())
    }

    fn unknown_port(&mut self, path: &str, name: &str) {
        if !self.may_be_lost() {
            let names: Vec<&str> = self.names.keys().copied().collect();
            self.error(path, format!("there is no port `{name}`"), suggest("ports", name, &names));
        }
    }

    fn inputs(&mut self) -> Vec<usize> {
        let loaded = self.loaded;
        let Some((_, names)) = &loaded.input else { return Vec::new() };
        if names.is_empty() && !loaded.damaged {
            self.error("pipeline.input", "no port feeds the pipeline", "name at least one: input = [\"wan\"]");
        }
        let mut inputs = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let path = format!("pipeline.input[{at}]");
            let name = name.get_ref();
            match self.names.get(name.as_str()) {
                Some(index) if inputs.contains(index) => {
                    self.error(&path, format!("the port `{name}` is named twice"), "name it once");
                }
                Some(index) => inputs.push(*index),
                None => self.unknown_port(&path, name),
            }
        }
        inputs
    }

    /// An address is one port's.
    fn addresses(&mut self, index: usize, port: &Port) {
        let loaded = self.loaded;
        for (place, address) in port.addresses.iter().enumerate() {
            let same = |other: &&super::types::Address| other.0.addr() == address.0.addr();
            let before = loaded.ports[..index].iter().filter_map(|entry| entry.port.as_ref());
            let owner = before.chain([port]).find(|other| {
                let until = if std::ptr::eq(*other, port) { place } else { other.addresses.len() };
                other.addresses[..until].iter().any(|other| same(&other))
            });
            if let Some(owner) = owner {
                let message = format!("{} is an address of `{}` already", address.0.addr(), owner.name);
                self.error(&format!("port[{index}].addresses[{place}]"), message, "leave one of them out");
            }
        }
    }

    /// Checks one port; gives its peer.
    fn port(&mut self, index: usize, port: &Port) -> Option<usize> {
        let at = |key: &str| format!("port[{index}].{key}");
        connection::connection(self.loaded, index, port, self.diagnostics);
        raw::raw(self.loaded, index, port, self.diagnostics);
        self.peer(index, port);
        self.addresses(index, port);
        if port.device.is_empty() {
            self.error(&at("device"), "a port needs a device", "name a verbs device, or \"soft\"");
        }
        if port.device != SOFT {
            let given = [
                ("link", port.link.is_some()),
                ("faults", port.faults.is_some()),
                ("clock", port.clock.is_some()),
                ("refuse", !port.refuse.is_empty()),
            ];
            for (key, _) in given.into_iter().filter(|(_, given)| *given) {
                let message = format!("`{key}` is for software devices, and `{}` is none", port.device);
                self.error(&at(key), message, format!("take `{key}` out, or write device = \"soft\""));
            }
            return None;
        }
        if port.device_port != 1 {
            self.error(&at("device_port"), "a software device has one port", "take `device_port` out");
        }
        let (needed, name) = match port.qp {
            Qp::RawPacket => (Capability::RawPacket, "raw_packet"),
            Qp::Ud => (Capability::Datagram, "datagram"),
            Qp::Rc => (Capability::Rc, "rc"),
            Qp::Uc => (Capability::Uc, "uc"),
        };
        if let Some(entry) = port.refuse.iter().position(|refused| *refused == needed) {
            let message = format!("without {name} `{}` cannot carry a pipeline", port.name);
            self.error(&at(&format!("refuse[{entry}]")), message, "take it out of `refuse`");
        }
        if let Some(link) = port.link.as_ref().filter(|link| !matches!(link, Link::Loopback(_)))
            && port.qp != Qp::RawPacket
        {
            let message = format!(
                "a {} link has whole frames, and no {} queue pair at the other end",
                link.kind(),
                port.qp.name()
            );
            self.error(&at("link"), message, "write link = { kind = \"loopback\" }, or qp = \"raw_packet\"");
        }
        match &port.link {
            // Its line may be one of those that could not be read.
            None if self.loaded.damaged => None,
            None => {
                let message = format!("the software device of `{}` has no link", port.name);
                let help = format!("add link = {{ kind = {LINKS} }}");
                self.error(&format!("port[{index}]"), message, help);
                None
            }
            Some(Link::Loopback(link)) => self.loopback(index, port, link.peer.as_deref()),
            Some(Link::Generator(link)) => {
                link::generator(self.loaded, index, port, link, self.diagnostics);
                None
            }
            Some(Link::Pcap(link)) => {
                link::pcap(self.loaded, index, link, self.diagnostics);
                None
            }
            Some(Link::Packet(link)) => {
                link::packet(self.loaded, index, link, self.diagnostics);
                None
            }
            Some(Link::Tap(link)) => {
                link::tap(self.loaded, index, link, self.diagnostics);
                None
            }
            Some(Link::Xdp(link)) => {
                link::xdp(self.loaded, index, port, link, self.diagnostics);
                None
            }
        }
    }

    /// Checks that a connection within the config has two ends, which name each other.
    fn peer(&mut self, index: usize, port: &Port) {
        let Some((connection, name)) = port.connection.as_ref().and_then(|it| Some((it, it.peer.as_deref()?))) else {
            return;
        };
        let path = format!("port[{index}].connection.peer");
        let Some(&other) = self.names.get(name) else { return self.unknown_port(&path, name) };
        if other == index {
            if !connection.allow_self {
                let message = format!("`{name}` is its own peer");
                self.error(&path, message, "name another port, or add allow_self = true");
            }
            return;
        }
        let Some(end) = self.loaded.ports.get(other).and_then(|entry| entry.port.as_ref()) else { return };
        if end.connection.as_ref().and_then(|connection| connection.peer.as_deref()) != Some(port.name.as_str()) {
            let message =
                format!("`{}` names `{name}` as its peer, but `{name}` doesn't name `{}`", port.name, port.name);
            self.error(&path, message, format!("give `{name}` connection = {{ peer = \"{}\" }}", port.name));
        } else if end.qp != port.qp {
            let message = format!("`{name}` has {} queue pairs, and `{}` {}", end.qp.name(), port.name, port.qp.name());
            self.error(&path, message, "give both the same `qp`");
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
            Some(Link::Loopback(link)) => link.peer.as_deref().or(Some(&end.name)),
            _ => None,
        };
        if back != Some(port.name.as_str()) {
            let message =
                format!("`{}` names `{name}` as its peer, but `{name}` doesn't name `{}`", port.name, port.name);
            let help = format!("give `{name}` link = {{ kind = \"loopback\", peer = \"{}\" }}", port.name);
            self.error(&path, message, help);
        }
        Some(other)
    }

    /// Two ports cannot have the raw packets of one port of a verbs device.
    fn devices(&mut self) {
        let mut seen: HashMap<(&str, u8), &'a str> = HashMap::new();
        let loaded = self.loaded;
        for (index, entry) in loaded.ports.iter().enumerate() {
            let Some(port) = entry.port.as_ref().filter(|port| port.device != SOFT && port.qp == Qp::RawPacket) else {
                continue;
            };
            if let Some(other) = seen.insert((port.device.as_str(), port.device_port), port.name.as_str()) {
                let (name, number, device) = (&port.name, port.device_port, &port.device);
                let message = format!("`{name}` and `{other}` take the raw packets of port {number} of `{device}`");
                let help = "give each its own `device` or `device_port`";
                self.error(&format!("port[{index}].device"), message, help);
            }
        }
    }

    fn unused(&mut self, inputs: &[usize]) {
        if self.may_be_lost() || self.loaded.input.is_none() {
            return;
        }
        let loaded = self.loaded;
        // What names a port may be in a file of a stage, and is not known here.
        if loaded.stages.iter().any(|stage| stage.parameters.get_ref().contains_key("file")) {
            return;
        }
        // Which key of a stage names a port is the stage's own affair: any string that is a port's name counts.
        let mut named = HashSet::new();
        for value in loaded.stages.iter().flat_map(|stage| stage.parameters.get_ref().values()) {
            tree::strings(value.get_ref(), &mut named);
        }
        for (index, entry) in loaded.ports.iter().enumerate() {
            let (Some(name), Some(_)) = (&entry.name, &entry.port) else { continue };
            let name = name.get_ref().as_str();
            let peer = loaded.ports.iter().enumerate().any(|(other, entry)| {
                let Some(port) = entry.port.as_ref().filter(|_| other != index) else { return false };
                let joined = matches!(&port.link, Some(Link::Loopback(link)) if link.peer.as_deref() == Some(name));
                joined || port.connection.as_ref().is_some_and(|connection| connection.peer.as_deref() == Some(name))
            });
            if !inputs.contains(&index) && !peer && !named.contains(name) {
                let mistake = Mistake::warning(
                    loaded.locate(&format!("port[{index}].name")),
                    format!("the port `{name}` is never used"),
                );
                self.diagnostics.push(mistake.help("name it in `input` of [pipeline] or as `port` of a `tx` stage"));
            }
        }
    }
}

/// Checks that the ports can be shared by so many workers.
pub(super) fn spread(loaded: &Loaded<'_>, ports: &[Option<PortPlan>], workers: usize, diagnostics: &mut Diagnostics) {
    for (index, plan) in ports.iter().enumerate().filter(|_| workers == 1) {
        let Some(PortPlan { config: port, .. }) = plan else { continue };
        if let Some(at) = port.offload.iter().position(|offload| *offload == Offload::DelayDrop) {
            let message = format!("delay_drop is of several queues, and with one worker `{}` has one", port.name);
            let mistake = Mistake::error(loaded.locate(&format!("port[{index}].offload[{at}]")), message);
            diagnostics.push(mistake.help("take it out, or let [runtime] have more workers"));
        }
    }
    for (index, plan) in ports.iter().enumerate().filter(|_| workers > 1) {
        // Each worker has a connection of its own.
        let Some(port) = plan.as_ref().filter(|port| port.config.qp == Qp::RawPacket) else { continue };
        let name = &port.config.name;
        if let Some(at) = port.config.refuse.iter().position(|refused| *refused == Capability::Rss) {
            let message = format!("without rss `{name}` has one queue, and there are {workers} workers");
            let mistake = Mistake::error(loaded.locate(&format!("port[{index}].refuse[{at}]")), message);
            diagnostics.push(mistake.help("take \"rss\" out of `refuse`, or write workers = 1 in [runtime]"));
        }
        if port.input && port.config.rss.fields.is_empty() {
            let message = format!("`{name}` hashes nothing, so one of {workers} workers gets every packet");
            let mistake = Mistake::error(loaded.locate(&format!("port[{index}].rss.fields")), message);
            diagnostics.push(mistake.help("name what is hashed, such as \"ipv4\", or take `fields` out"));
        }
    }
}
