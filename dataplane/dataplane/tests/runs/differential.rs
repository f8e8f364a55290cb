//! Compares a router config with a simple model that processes one frame at a time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dataplane_testing::config::Config;
use dataplane_testing::strategies;
use proptest::prelude::*;

use crate::common::{Folder, assert_good, frames_of};

const STAGES: &str = r#"
[[pipeline.stage]]
use = "parse"
[[pipeline.stage]]
use = "acl"
default = "permit"
rules = [
    { action = "deny", protocol = "udp", dst_port = "53-80" },
    { action = "permit", src = "10.0.0.0/31" },
    { action = "deny", src = "10.0.0.0/24" },
    { action = "deny", protocol = "tcp", src = "2001:db8:1::/48" },
]
[[pipeline.stage]]
use = "route"
table = [
    { prefix = "0.0.0.0/1", via = "192.0.2.2", port = "b" },
    { prefix = "10.0.0.0/16", via = "192.0.2.1", port = "a" },
    { prefix = "10.0.1.0/24", port = "b" },
    { prefix = "10.0.2.0/24", drop = true },
    { prefix = "10.0.2.1/32", via = "192.0.2.1", port = "b" },
    { prefix = "2000::/4", via = "2001:db8::1", port = "a" },
    { prefix = "2001:db8:1::/48", port = "a" },
    { prefix = "3000::/8", via = "2001:db8::2", port = "b" },
]
[[pipeline.stage]]
use = "ttl"
[[pipeline.stage]]
use = "neighbor"
table = [
    { address = "192.0.2.1", mac = "02:00:00:00:01:01", port = "a" },
    { address = "192.0.2.1", mac = "02:00:00:00:01:02" },
    { address = "192.0.2.2", mac = "02:00:00:00:01:03" },
    { address = "10.0.1.1", mac = "02:00:00:00:01:04" },
    { address = "10.0.1.2", mac = "02:00:00:00:01:05", port = "a" },
    { address = "2001:db8::1", mac = "02:00:00:00:01:06" },
    { address = "2001:db8:1::1", mac = "02:00:00:00:01:07", port = "a" },
]
[[pipeline.stage]]
use = "tx"
"#;

/// The fields that the model reads from a frame.
struct Found {
    l3: usize,
    /// Whether the frame has a VLAN tag.
    tagged: bool,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// The destination port, if the frame contains one.
    port: Option<u16>,
}

fn be16(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Returns the one's complement sum of RFC 1071, which is 0xffff for a valid header.
fn sum(header: &[u8]) -> u32 {
    let sum = header.chunks(2).map(|word| u32::from(be16(word, 0))).sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    (sum & 0xffff) + (sum >> 16)
}

/// Parses a frame of [`frames`], in which only the length and the IPv4 checksum may be wrong. The error is the name
/// under which the ledger (the packet accounting) counts the drop, such as `parse.runt`.
fn parse(frame: &[u8]) -> Result<Found, &'static str> {
    if frame.len() < 14 {
        return Err("parse.runt");
    }
    let (mut at, mut tagged) = (12, false);
    while [0x8100, 0x88a8, 0x9100].contains(&be16(frame, at)) {
        tagged = at > 12 || be16(frame, at + 2) & 0xfff != 0;
        at += 4;
    }
    let l3 = at + 2;
    let (protocol, first, l4, source, destination): (u8, bool, usize, IpAddr, IpAddr) = match be16(frame, at) {
        0x0806 => return Err("parse.arp"),
        0x0800 => {
            let length = usize::from(frame[l3] & 15) * 4;
            if sum(&frame[l3..l3 + length]) != 0xffff {
                return Err("parse.bad_checksum");
            }
            let address = |at| Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
            let first = be16(frame, l3 + 6) & 0x1fff == 0;
            (frame[l3 + 9], first, l3 + length, address(l3 + 12).into(), address(l3 + 16).into())
        }
        0x86dd => {
            let address = |at| Ipv6Addr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap());
            let (mut next, mut l4, mut first) = (frame[l3 + 6], l3 + 40, true);
            while first {
                let length = match next {
                    0 | 43 | 60 => usize::from(frame[l4 + 1]) * 8 + 8,
                    51 => usize::from(frame[l4 + 1]) * 4 + 8,
                    44 => {
                        first = be16(frame, l4 + 2) >> 3 == 0;
                        8
                    }
                    _ => break,
                };
                next = frame[l4];
                l4 += length;
            }
            (next, first, l4, address(l3 + 8).into(), address(l3 + 24).into())
        }
        _ => return Err("parse.other"),
    };
    let port = (first && [6, 17].contains(&protocol)).then(|| be16(frame, l4 + 2));
    Ok(Found { l3, tagged, source, destination, protocol, port })
}

fn is_in(address: IpAddr, prefix: &str) -> bool {
    prefix.parse::<ipnet::IpNet>().unwrap().contains(&address)
}

fn denied(found: &Found) -> bool {
    if found.protocol == 17 && found.port.is_some_and(|port| (53..=80).contains(&port)) {
        return true;
    }
    let source = |prefix| is_in(found.source, prefix);
    !source("10.0.0.0/31") && (source("10.0.0.0/24") || (found.protocol == 6 && source("2001:db8:1::/48")))
}

/// Returns the output port and the last byte of the next hop's MAC address. Checks longer prefixes first.
fn next(to: IpAddr) -> Result<(usize, u8), &'static str> {
    let on_link = |port, known: &[(&str, u8)]| {
        let known = known.iter().find(|(address, _)| address.parse::<IpAddr>().unwrap() == to);
        known.map_or(Err("neighbor.unresolved"), |(_, mac)| Ok((port, *mac)))
    };
    match () {
        () if is_in(to, "10.0.2.1/32") => Ok((1, 2)),
        () if is_in(to, "10.0.1.0/24") => on_link(1, &[("10.0.1.1", 4)]),
        () if is_in(to, "10.0.2.0/24") => Err("route.blackhole"),
        () if is_in(to, "10.0.0.0/16") => Ok((0, 1)),
        () if is_in(to, "0.0.0.0/1") => Ok((1, 3)),
        () if is_in(to, "2001:db8:1::/48") => on_link(0, &[("2001:db8:1::1", 7)]),
        () if is_in(to, "3000::/8") => Err("neighbor.unresolved"),
        () if is_in(to, "2000::/4") => Ok((0, 6)),
        () => Err("route.no_route"),
    }
}

/// Returns the output port and the routed frame, or the name under which the ledger counts the drop.
fn route(mut frame: Vec<u8>) -> Result<(usize, Vec<u8>), &'static str> {
    let found = parse(&frame)?;
    if denied(&found) {
        return Err("acl.denied");
    }
    if found.tagged {
        return Err("route.tagged");
    }
    let next = next(found.destination);
    if let Err(reason) = next
        && reason.starts_with("route.")
    {
        return Err(reason);
    }
    if is_in(found.source, "127.0.0.0/8") {
        return Err("route.martian");
    }
    let ttl = found.l3 + if found.source.is_ipv4() { 8 } else { 7 };
    if frame[ttl] <= 1 {
        return Err("ttl.expired");
    }
    frame[ttl] -= 1;
    if found.source.is_ipv4() {
        let end = found.l3 + usize::from(frame[found.l3] & 15) * 4;
        frame[found.l3 + 10..found.l3 + 12].fill(0);
        let checksum = !(sum(&frame[found.l3..end]) as u16);
        frame[found.l3 + 10..found.l3 + 12].copy_from_slice(&checksum.to_be_bytes());
    }
    let (port, mac) = next?;
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 1, mac, 2, 0, 0, 0, 0, 10 + port as u8]);
    Ok((port, frame))
}

/// Generates frames. Most frames are valid, a few are shorter than an Ethernet header, and a few have a wrong IPv4
/// header checksum.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let flaw = prop_oneof![8 => Just(None), 1 => (0..14usize).prop_map(Some), 1 => (14..30usize).prop_map(Some)];
    (strategies::valid_frame(), flaw).prop_map(|(mut frame, flaw)| {
        match flaw {
            Some(len @ ..14) => frame.truncate(len),
            Some(bit) if be16(&frame, 12) == 0x0800 => frame[24 + (bit - 14) / 8] ^= 1 << (bit % 8),
            _ => {}
        }
        frame
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn router_matches_its_model(frames in prop::collection::vec(frames(), 1..400)) {
        let folder = Folder::new();
        folder.capture("in.pcap", &frames);
        let config = Config::new()
            .port("in", "kind = 'pcap', input = 'in.pcap'")
            .port_with("a", "kind = 'pcap', output = 'a.pcap'", "mac = '02:00:00:00:00:0a'")
            .port_with("b", "kind = 'pcap', output = 'b.pcap'", "mac = '02:00:00:00:00:0b'")
            .stages(STAGES);
        let report = folder.run(&config.to_string());
        assert_good(&report);
        let (mut out, mut drops) = ([Vec::new(), Vec::new()], BTreeMap::<String, u64>::new());
        for frame in frames {
            match route(frame) {
                Ok((port, frame)) => out[port].push(frame),
                Err(reason) => *drops.entry(reason.to_owned()).or_default() += 1,
            }
        }
        prop_assert_eq!(&report.ledger.drops, &drops);
        for (expected, name) in out.iter().zip(["a.pcap", "b.pcap"]) {
            let sent = frames_of(&folder.file(name));
            let first = expected.iter().zip(&sent).position(|(expected, sent)| expected != sent);
            if let Some(at) = first {
                prop_assert_eq!(&expected[at], &sent[at], "frame {} of {}", at, name);
            }
            prop_assert_eq!(expected.len(), sent.len());
        }
    }
}
