//! Compares the stage `filter` with `tcpdump`.

use std::process::Command;

use dataplane::stages::filter::Filter;
use dataplane::testing::{Fate, Harness};
use dataplane_testing::skip;

use crate::common::{Folder, captures, frames_of};

/// Expressions from every part of pcap-filter(7) that applies to Ethernet.
const EXPRESSIONS: [&str; 72] = [
    "",
    "ip",
    "ip6",
    "arp",
    "rarp",
    "tcp",
    "udp",
    "icmp",
    "icmp6",
    "igmp or esp or ah or sctp",
    "ip proto 1",
    "ip6 proto 58",
    "proto \\udp",
    "ether proto 0x88cc",
    "ether proto \\arp",
    "not ip and not ip6",
    "port 80",
    "port 53",
    "tcp port 80",
    "udp port 53",
    "src port 53",
    "dst port 53",
    "tcp src port 80",
    "udp dst port 67",
    "portrange 1-1023",
    "src portrange 1024-65535",
    "tcp portrange 79-81 or udp portrange 33434-33534",
    "port domain",
    "host 10.0.0.1",
    "host 192.0.2.1",
    "src host 192.0.2.1",
    "dst host 192.0.2.1 or dst host 198.51.100.1",
    "net 192.0.2.0/24",
    "src net 192.0.2.0/24",
    "dst net 198.51.100.0 mask 255.255.255.0",
    "net 10",
    "net 2001:db8::/32",
    "src net fe80::/10",
    "host 2001:db8::1",
    "ip6 host ff02::1",
    "ether host 02:00:00:00:00:01",
    "ether src 02:00:00:00:00:01",
    "ether dst ff:ff:ff:ff:ff:ff",
    "ether broadcast",
    "ether multicast",
    "broadcast or multicast",
    "ip multicast",
    "ip6 multicast",
    "vlan",
    "vlan 7",
    "vlan 10 and ip",
    "vlan and tcp port 80",
    "vlan and vlan",
    "vlan and icmp",
    "greater 500",
    "less 100",
    "len >= 60 and len <= 200",
    "len % 2 == 1",
    "ip[0] & 0xf != 5",
    "ip[6:2] & 0x3fff != 0",
    "ip[6:2] & 0x1fff = 0 and udp",
    "ip[8] < 5",
    "ip6[6] == 44",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[tcpflags] == tcp-syn|tcp-ack",
    "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
    "icmp[icmptype] == icmp-echo",
    "icmp[icmptype] = icmp-timxceed or icmp[0] = 3",
    "ether[0] & 1 = 1 and ether[12:2] > 1500",
    "(tcp or udp) and not (port 80 or port 53)",
    "ip[2:2] - ((ip[0] & 0xf) << 2) > 100",
    "ip[16] * 3 + ip[19] / 2 ^ 5 != 17 and -ip[8] != 0",
];

#[test]
fn filter_matches_the_same_frames_as_tcpdump() {
    if Command::new("tcpdump").arg("--version").output().is_err() {
        return skip("tcpdump is not installed");
    }
    let folder = Folder::new();
    let frames: Vec<Vec<u8>> = captures().iter().flat_map(|path| frames_of(path)).collect();
    let all = folder.capture("all.pcap", &frames);
    let (mut nothing, mut everything) = (0, 0);
    for expression in EXPRESSIONS {
        let parameters =
            toml::to_string(&toml::Table::from_iter([("expression".to_owned(), expression.into())])).unwrap();
        let mut harness = Harness::from_toml::<Filter>(&parameters).unwrap_or_else(|error| panic!("{error}"));
        let mut ours = Vec::new();
        for batch in frames.chunks(256) {
            let fates = harness.run(batch).into_iter().map(|outcome| outcome.fate);
            ours.extend(
                batch.iter().zip(fates).filter(|(_, fate)| *fate == Fate::Next).map(|(frame, _)| frame.clone()),
            );
        }
        let taken = folder.file("taken.pcap");
        let mut tcpdump = Command::new("tcpdump");
        let tcpdump = tcpdump.arg("-r").arg(&all).arg("-w").arg(&taken).args(["--", expression]);
        let done = tcpdump.output().unwrap();
        assert!(done.status.success(), "{expression}: {}", String::from_utf8_lossy(&done.stderr));
        let theirs = frames_of(&taken);
        assert!(ours == theirs, "`{expression}`: {} packets match, and {} match in tcpdump", ours.len(), theirs.len());
        nothing += usize::from(ours.is_empty());
        everything += usize::from(ours.len() == frames.len());
    }
    // Most expressions must match some frames, but not all frames. Otherwise the comparison would prove little.
    assert!(
        nothing < EXPRESSIONS.len() / 4 && everything < 5,
        "{nothing} expressions match nothing, {everything} match everything"
    );
}

#[test]
fn invalid_expression_is_reported_with_the_libpcap_message() {
    for (expression, expected) in [
        ("tcp prot 80", "expression: `tcp prot 80`: can't parse filter expression: syntax error"),
        ("port http or", "syntax error"),
        ("vlan 5000", "VLAN tag 5000 greater than maximum"),
        ("port 70000", "70000"),
        ("-w /tmp/x", "syntax error"),
        ("inbound", "the instruction reads packet metadata that only the kernel has, such as the direction"),
        ("ip6 protochain 17", "the instruction jumps backwards or beyond the end of the filter; help: use `proto`"),
    ] {
        let error = Harness::from_toml::<Filter>(&format!("expression = \"{expression}\"")).err().unwrap();
        assert!(error.contains(expected) && error.contains("; help: "), "{error}");
    }
}
