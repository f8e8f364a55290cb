//! Checks of links: frames that a generator can make, files that a capture can be played from and written to.

use std::collections::HashMap;
use std::net::IpAddr;

use super::diagnostics::{Diagnostics, Mistake};
use super::load::Loaded;
use super::memory::ETHERNET;
use super::plan::PortPlan;
use super::port::{Generator, Pace, Packet, Pcap, Port, Protocol, Tap};
use super::types::Repeat;
use super::xdp::Xdp;

/// The most bytes that all different frames of a generator have together.
const MOST_BYTES: u64 = 64 << 20;

/// Checks the frames of a generator: their addresses, and their sizes against their own headers and the MTU of the port.
/// What the MTU allows fits into a buffer, which is checked with the memory.
pub(super) fn generator(
    loaded: &Loaded<'_>,
    index: usize,
    port: &Port,
    link: &Generator,
    diagnostics: &mut Diagnostics,
) {
    let mut error = |key: &str, message: String, help: String| {
        let span = loaded.locate(&format!("port[{index}].link.{key}"));
        diagnostics.push(Mistake::error(span, message).help(help));
    };
    let v6 = link.protocol == Protocol::Udp6;
    for (key, address) in [("src_ip", link.src_ip), ("dst_ip", link.dst_ip)] {
        if address.is_some_and(|address| matches!(address, IpAddr::V6(_)) != v6) {
            let version = if v6 { "IPv6" } else { "IPv4" };
            let message = format!("the packets are {version}, and `{key}` is no {version} address");
            error(key, message, "change the address or `protocol`".to_owned());
        }
    }
    if link.size.is_some() && !link.sizes.is_empty() {
        error("size", "`size` and `sizes` are both given".to_owned(), "take one of them out".to_owned());
    }
    let headers = headers(link);
    let most = port.mtu.saturating_add(ETHERNET);
    let mix = link.mix();
    for (at, size) in mix.iter().map(|entry| u32::from(entry.size)).enumerate() {
        let key = if link.sizes.is_empty() { "size".to_owned() } else { format!("sizes[{at}].size") };
        if size < headers {
            let message = format!("a frame of {size} bytes is shorter than its headers, which have {headers}");
            error(&key, message, format!("make it at least {headers}"));
        } else if size > most {
            let message = format!("a frame of {size} bytes is longer than the mtu of `{}` allows, {most}", port.name);
            error(&key, message, format!("make it at most {most}, or the mtu at least {}", size - ETHERNET));
        }
    }
    let round: u64 = mix.iter().map(|entry| u64::from(entry.size) * u64::from(entry.weight)).sum();
    let bytes = round * u64::from(link.flows);
    if bytes > MOST_BYTES {
        let message = format!("the frames of {} flows have {bytes} bytes, more than {MOST_BYTES}", link.flows);
        error("flows", message, format!("make it at most {}, or the sizes and weights smaller", MOST_BYTES / round));
    }
}

/// The bytes of the headers of a frame.
fn headers(link: &Generator) -> u32 {
    let ethernet = if link.vlan.is_some() { 18 } else { 14 };
    ethernet
        + match link.protocol {
            Protocol::Udp4 => 20 + 8,
            Protocol::Tcp4 => 20 + 20,
            Protocol::Udp6 => 40 + 8,
        }
}

/// Checks that every key of a pcap link has a file that it is about.
pub(super) fn pcap(loaded: &Loaded<'_>, index: usize, link: &Pcap, diagnostics: &mut Diagnostics) {
    // The line with the file may be one of those that could not be read.
    if loaded.damaged {
        return;
    }
    let at = |key: &str| loaded.locate(&format!("port[{index}].link{key}"));
    if link.input.is_none() && link.output.is_none() {
        let mistake = Mistake::error(at(""), "this pcap link has no file");
        diagnostics.push(mistake.help("add `input`, `output` or both: the files that are played and written"));
        return;
    }
    let usual = Pcap::default();
    for (key, file, idle) in [
        ("loop", "input", link.input.is_none() && link.repeat != Repeat::default()),
        ("pace", "input", link.input.is_none() && link.pace != Pace::default()),
        ("snaplen", "output", link.output.is_none() && link.snaplen != usual.snaplen),
    ] {
        if idle {
            let mistake =
                Mistake::error(at(&format!(".{key}")), format!("`{key}` is about `{file}`, and there is none"));
            diagnostics.push(mistake.help(format!("add `{file}`, or take `{key}` out")));
        }
    }
}

/// Checks the name of an interface and the size of its ring.
pub(super) fn packet(loaded: &Loaded<'_>, index: usize, link: &Packet, diagnostics: &mut Diagnostics) {
    interface_name(loaded, &format!("port[{index}].link.interface"), &link.interface, diagnostics);
    if !link.ring.is_power_of_two() {
        let span = loaded.locate(&format!("port[{index}].link.ring"));
        let mistake = Mistake::error(span, format!("a ring of {} frames is no power of two", link.ring));
        diagnostics.push(mistake.help(format!("make it {}, for example", link.ring.next_power_of_two().min(1 << 16))));
    }
}

/// Checks the name of a TAP, and that its address is one.
pub(super) fn tap(loaded: &Loaded<'_>, index: usize, link: &Tap, diagnostics: &mut Diagnostics) {
    interface_name(loaded, &format!("port[{index}].link.name"), &link.name, diagnostics);
    if let Some(mac) = link.mac.filter(|mac| mac.0[0] & 1 == 1 || mac.0 == [0; 6]) {
        let span = loaded.locate(&format!("port[{index}].link.mac"));
        let mistake = Mistake::error(span, format!("{mac} is the address of no single interface"));
        diagnostics.push(mistake.help("make the first byte even, such as 02, and not all of it zero"));
    }
}

/// Checks the name of an interface, and that nothing is asked of its wire that the kernel's has not.
pub(super) fn xdp(loaded: &Loaded<'_>, index: usize, port: &Port, link: &Xdp, diagnostics: &mut Diagnostics) {
    interface_name(loaded, &format!("port[{index}].link.interface"), &link.interface, diagnostics);
    if port.faults.is_some() {
        let message = format!("frames of `{}` are in the kernel's hands, where no faults are made", port.name);
        let mistake = Mistake::error(loaded.locate(&format!("port[{index}].faults")), message);
        diagnostics.push(mistake.help("take `faults` out, or write link = { kind = \"packet\" }"));
    }
}

/// The most bytes of the name of an interface.
const LONGEST_NAME: usize = 15;

fn interface_name(loaded: &Loaded<'_>, path: &str, name: &str, diagnostics: &mut Diagnostics) {
    let odd = |byte: u8| b"/:%".contains(&byte) || byte == 0 || byte.is_ascii_whitespace();
    if name.is_empty() || name.len() > LONGEST_NAME || [".", ".."].contains(&name) || name.bytes().any(odd) {
        let mistake = Mistake::error(loaded.locate(path), format!("no interface can have the name `{name}`"));
        let help = format!(
            "it has 1 to {LONGEST_NAME} bytes, no space, slash, colon or percent sign: `ip link` lists those there are"
        );
        diagnostics.push(mistake.help(help));
    }
}

/// Checks that no interface is that of two ports.
pub(super) fn interfaces(loaded: &Loaded<'_>, ports: &[Option<PortPlan>], diagnostics: &mut Diagnostics) {
    let mut seen: HashMap<&str, &str> = HashMap::new();
    for (index, port) in ports.iter().enumerate() {
        let Some(config) = port.as_ref().map(|port| &port.config) else { continue };
        let Some((link, interface)) = config.link.as_ref().and_then(|link| Some((link, link.interface()?))) else {
            continue;
        };
        if let Some(other) = seen.insert(interface, &config.name) {
            let message = format!("`{}` and `{other}` are both the interface `{interface}`", config.name);
            let key = if link.kind() == "tap" { "name" } else { "interface" };
            let mistake = Mistake::error(loaded.locate(&format!("port[{index}].link.{key}")), message);
            diagnostics.push(mistake.help("give every port an interface of its own"));
        }
    }
}
