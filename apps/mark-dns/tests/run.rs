//! Runs the app with its config from the repository, as the documentation describes.

use std::path::Path;
use std::process::Command;

use dataplane::header::Header;
use dataplane::header::ipv4::{Ipv4, checksum_ok};
use dataplane::header::udp::Udp;
use dataplane::testing::frames_of;
use dataplane_testing::{Folder, capture};

#[test]
fn only_dns_packets_are_marked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = Folder::new();
    let output = folder.file("marked.pcapng");
    let run = Command::new(env!("CARGO_BIN_EXE_mark-dns"))
        .arg("run")
        .arg(root.join("apps/mark-dns/mark-dns.toml"))
        .args(["--report", "json", "--set"])
        .arg(format!("port.lan.link.output={}", output.display()))
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!((report["packets"]["rx"].as_u64(), report["ledger"]["unaccounted"].as_i64()), (Some(31), Some(0)));

    let mut marked = 0;
    for (before, after) in frames_of(capture("dns.pcap")).unwrap().iter().zip(frames_of(&output).unwrap()) {
        let Some(ip) = after.get(14..).and_then(|bytes| Ipv4::view(bytes).ok()) else { continue };
        let dns = ip.protocol == 17
            && Udp::view(&after[34..]).is_ok_and(|udp| [udp.source, udp.destination].contains(&53.into()));
        marked += usize::from(dns);
        assert_eq!(ip.tos >> 2, if dns { 46 } else { before[15] >> 2 });
        assert!(checksum_ok(&after[14..]));
        assert_eq!(before[26..], after[26..], "a byte after the checksum changed");
    }
    assert_eq!(marked, 8, "the capture contains eight DNS packets over IPv4 and UDP");
}

#[test]
fn the_app_is_short() {
    let lines = include_str!("../src/main.rs").lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines < 40, "{lines} lines");
}
