//! Checks of ports, cores and memory: what each key alone cannot tell.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::diagnostics::{Diagnostics, Mistake};
use super::explain::suggest;
use super::load::Loaded;
use super::plan::PortPlan;
use super::port::{Generator, Link, Port, Protocol, Qp, SOFT};
use super::tree;
use crate::topology::{Topology, Workers};
use crate::units::CoreId;

/// The bytes of an Ethernet header with two VLAN tags (IEEE 802.1Q).
const ETHERNET: u32 = 14 + 2 * 4;
/// The bytes of the global route header that a UD receive begins with.
const GRH: u32 = 40;

/// The ports with all their names resolved; none for one that could not be read.
pub(super) fn ports(loaded: &Loaded<'_>, diagnostics: &mut Diagnostics) -> Vec<Option<PortPlan>> {
    let mut checker = Checker { loaded, diagnostics, names: HashMap::new() };
    if loaded.ports.is_empty() && !loaded.damaged {
        let mistake = Mistake::error(0..0, "the config has no port");
        checker.diagnostics.push(mistake.help("add a [[port]] with a name and a device, such as \"soft\""));
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
        Some(PortPlan { input: inputs.contains(&index), peer, span: entry.span.clone(), config })
    };
    let ports: Vec<_> = loaded.ports.iter().enumerate().map(plan).collect();
    checker.devices();
    checker.unused(&inputs);
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

    /// Checks one port; gives its peer.
    fn port(&mut self, index: usize, port: &Port) -> Option<usize> {
        let at = |key: &str| format!("port[{index}].{key}");
        let raw = "use qp = \"raw_packet\", or \"ud\" for datagrams";
        if matches!(port.qp, Qp::Rc | Qp::Uc) {
            self.error(&at("qp"), "rc and uc queue pairs cannot carry a pipeline yet", raw);
        }
        if port.device.is_empty() {
            self.error(&at("device"), "a port needs a device", "name a verbs device, or \"soft\"");
        }
        if port.device != SOFT {
            let given =
                [("link", port.link.is_some()), ("faults", port.faults.is_some()), ("refuse", !port.refuse.is_empty())];
            for (key, _) in given.into_iter().filter(|(_, given)| *given) {
                let message = format!("`{key}` is for software devices, and `{}` is none", port.device);
                self.error(&at(key), message, format!("take `{key}` out, or write device = \"soft\""));
            }
            return None;
        }
        if port.device_port != 1 {
            self.error(&at("device_port"), "a software device has one port", "take `device_port` out");
        }
        match &port.link {
            // Its line may be one of those that could not be read.
            None if self.loaded.damaged => None,
            None => {
                let message = format!("the software device of `{}` has no link", port.name);
                let help = "add link = { kind = \"loopback\" }, \"generator\" or \"pcap\"";
                self.error(&format!("port[{index}]"), message, help);
                None
            }
            Some(Link::Loopback(link)) => self.loopback(index, port, link.peer.as_deref()),
            Some(link) => {
                if port.qp == Qp::Ud {
                    let message = format!("the packets of a {} link are Ethernet frames, not datagrams", link.kind());
                    self.error(&at("qp"), message, "use qp = \"raw_packet\", or a loopback link");
                }
                match link {
                    Link::Generator(generator) => self.generator(index, generator),
                    Link::Pcap(pcap) if pcap.input.is_none() && pcap.output.is_none() && !self.loaded.damaged => {
                        let help = "add `input`, `output` or both: the files that are played and written";
                        self.error(&at("link"), "this pcap link has no file", help);
                    }
                    _ => {}
                }
                None
            }
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
        } else if end.qp != port.qp {
            let message = format!("`{}` and its peer `{name}` have different types of queue pairs", port.name);
            self.error(&path, message, "give both ports the same `qp`");
        }
        Some(other)
    }

    fn generator(&mut self, index: usize, link: &Generator) {
        let v6 = link.protocol == Protocol::Udp6;
        for (key, address) in [("src_ip", link.src_ip), ("dst_ip", link.dst_ip)] {
            if address.is_some_and(|address| matches!(address, IpAddr::V6(_)) != v6) {
                let version = if v6 { "IPv6" } else { "IPv4" };
                let message = format!("the packets are {version}, and `{key}` is no {version} address");
                self.error(&format!("port[{index}].link.{key}"), message, "change the address or `protocol`");
            }
        }
    }

    /// Two ports cannot have the queues of one port of a verbs device.
    fn devices(&mut self) {
        let mut seen: HashMap<(&str, u8), &'a str> = HashMap::new();
        let loaded = self.loaded;
        for (index, entry) in loaded.ports.iter().enumerate() {
            let Some(port) = entry.port.as_ref().filter(|port| port.device != SOFT) else { continue };
            if let Some(other) = seen.insert((port.device.as_str(), port.device_port), port.name.as_str()) {
                let message =
                    format!("`{}` and `{other}` use port {} of `{}`", port.name, port.device_port, port.device);
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
        // Which key of a stage names a port is the stage's own affair: any string that is a port's name counts.
        let mut named = HashSet::new();
        for value in loaded.stages.iter().flat_map(|stage| stage.parameters.get_ref().values()) {
            tree::strings(value.get_ref(), &mut named);
        }
        for (index, entry) in loaded.ports.iter().enumerate() {
            let (Some(name), Some(_)) = (&entry.name, &entry.port) else { continue };
            let name = name.get_ref().as_str();
            let peer = loaded.ports.iter().enumerate().any(|(other, entry)| {
                let link = entry.port.as_ref().and_then(|port| port.link.as_ref());
                other != index && matches!(link, Some(Link::Loopback(link)) if link.peer.as_deref() == Some(name))
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

/// The cores of the workers.
pub(super) fn cores(
    loaded: &Loaded<'_>,
    ports: &[Option<PortPlan>],
    topology: &Topology,
    diagnostics: &mut Diagnostics,
) -> Option<Vec<CoreId>> {
    let workers = &loaded.runtime.as_ref()?.workers;
    if let Workers::Cores(cores) = workers {
        for (at, &id) in cores.iter().enumerate() {
            let (message, help) = match topology.core(id) {
                None => {
                    let exist = Topology::list(topology.cores().iter().map(|core| core.id));
                    (format!("core {id} doesn't exist"), format!("this machine has the cores {exist}"))
                }
                Some(core) if !core.allowed => (
                    format!("core {id} is outside the affinity mask of this process"),
                    format!("this process may use the cores {}", topology.allowed_list()),
                ),
                Some(_) if cores[..at].contains(&id) => {
                    (format!("core {id} is given to two workers"), "give each worker a core of its own".to_owned())
                }
                Some(_) => continue,
            };
            diagnostics.push(Mistake::error(loaded.locate(&format!("runtime.workers[{at}]")), message).help(help));
        }
    }
    let devices: Vec<&str> = ports.iter().flatten().map(|port| port.config.device.as_str()).collect();
    match topology.place(workers, &devices) {
        Ok(cores) => Some(cores),
        Err(error) => {
            // Given cores were each looked at before, with their own places.
            if !matches!(workers, Workers::Cores(_)) {
                let mistake = Mistake::error(loaded.locate("runtime.workers"), error.to_string());
                diagnostics.push(mistake.help("ask for fewer workers, or widen the affinity mask of the process"));
            }
            None
        }
    }
}

/// Checks sizes and counts of buffers; gives how many each worker has.
pub(super) fn memory(loaded: &Loaded<'_>, ports: &[Option<PortPlan>], diagnostics: &mut Diagnostics) -> Option<u32> {
    let runtime = loaded.runtime.as_ref()?;
    let mut error = |path: &str, message: String, help: String| {
        diagnostics.push(Mistake::error(loaded.locate(path), message).help(help));
    };
    let room = runtime.buffer_size.saturating_sub(runtime.headroom);
    if room < 64 {
        let message = format!("a headroom of {} leaves {room} bytes of a buffer", runtime.headroom);
        error("runtime.headroom", message, format!("make it less than the buffer_size, {}", runtime.buffer_size));
        return None;
    }
    let mut rings = 0u32;
    for (index, port) in ports.iter().enumerate() {
        let Some(port) = port.as_ref().map(|port| &port.config) else { continue };
        rings = rings.saturating_add(port.rx_depth).saturating_add(port.tx_depth);
        if runtime.burst > port.rx_depth {
            let message =
                format!("the rx_depth of `{}` is {}, less than a burst of {}", port.name, port.rx_depth, runtime.burst);
            let help = format!("make it at least {}, or the burst of [runtime] smaller", runtime.burst);
            error(&format!("port[{index}].rx_depth"), message, help);
        }
        let header = if port.qp == Qp::Ud { GRH } else { ETHERNET };
        let grow =
            |frame: u32| format!("make buffer_size of [runtime] at least {}", frame.saturating_add(runtime.headroom));
        let frame = port.mtu.saturating_add(header);
        if frame > room {
            let message =
                format!("a packet of `{}` has up to {frame} bytes, and a buffer has room for {room}", port.name);
            error(&format!("port[{index}].mtu"), message, grow(frame));
        }
        if let Some(Link::Generator(link)) = &port.link {
            if link.sizes.is_empty() && link.size > room {
                let message = format!("a frame of {} bytes doesn't fit into a buffer with room for {room}", link.size);
                error(&format!("port[{index}].link.size"), message, grow(link.size));
            }
            for (at, size) in link.sizes.iter().enumerate().filter(|(_, size)| size.size > room) {
                let message = format!("a frame of {} bytes doesn't fit into a buffer with room for {room}", size.size);
                error(&format!("port[{index}].link.sizes[{at}].size"), message, grow(size.size));
            }
        }
    }
    let least = rings.saturating_add(runtime.burst);
    match runtime.buffers {
        Some(buffers) if buffers < least => {
            let message = format!("{buffers} buffers are fewer than rings and bursts of a worker hold, {least}");
            error("runtime.buffers", message, format!("make it at least {least}, or take the key out"));
            None
        }
        Some(buffers) => Some(buffers),
        // An eighth more for what stages hold and copy.
        None => Some(least.saturating_add(least / 8).next_multiple_of(64)),
    }
}
