//! Sends malformed frames through pipelines of many built-in stages.

use dataplane::testing::frame;
use dataplane_testing::config::Config;
use dataplane_testing::strategies;
use proptest::prelude::*;

use crate::common::{Folder, assert_conserved, assert_good, counter, drops, stage};

/// Returns a config with stages before and after `parse`, and a `capture` stage for the dropped frames.
fn config(burst: u32, workers: usize) -> String {
    Config::new()
        .workers(workers)
        .runtime(&format!("burst = {burst}"))
        .port_with("in", "kind = 'pcap', input = 'in.pcap', output = 'out.pcapng'", "rx_depth = 64")
        .port("b", "kind = 'pcap', output = 'b.pcap'")
        .stages(STAGES)
        .to_string()
}

const STAGES: &str = r#"
[[pipeline.stage]]
use = "count"
[[pipeline.stage]]
name = "swap"
use = "mac_swap"
min_len = 0
drops = "dropped"
[[pipeline.stage]]
name = "pop"
use = "vlan"
op = "pop"
drops = "dropped"
[[pipeline.stage]]
name = "push"
use = "vlan"
op = "push"
id = 7
[[pipeline.stage]]
name = "translate"
use = "vlan"
op = "translate"
map = { 7 = 70 }
[[pipeline.stage]]
use = "sample"
every = 3
outputs = { sample = "raw" }
[[pipeline.stage]]
use = "parse"
drops = "dropped"
outputs = { arp = "arp", other = "raw" }
[[pipeline.stage]]
use = "icmp"
addresses = ["10.0.0.1", "2001:db8::1"]
outputs = { reply = "out" }
[[pipeline.stage]]
use = "acl"
default = "permit"
fragments = "deny"
drops = "dropped"
rules = [{ action = "deny", protocol = "tcp", tcp_flags = "syn,fin" }, { action = "permit", dst_port = 53, protocol = "udp" }]
[[pipeline.stage]]
use = "limit"
packets_per_second = 1
burst = 1000
[[pipeline.stage]]
name = "protocols"
use = "count"
by = "protocol"
[[pipeline.stage]]
use = "route"
table = [{ prefix = "0.0.0.0/0", port = "b" }, { prefix = "::/0", via = "2001:db8::1", port = "in" }]
[[pipeline.stage]]
use = "ttl"
[[pipeline.stage]]
use = "neighbor"
table = [{ address = "10.0.0.2", mac = "02:00:00:00:00:01" }, { address = "2001:db8::1", mac = "02:00:00:00:00:02" }]
outputs = { unresolved = "raw" }
next = "out"
[[pipeline.stage]]
use = "arp"
addresses = ["10.0.0.1"]
outputs = { reply = "out" }
next = "raw"
[[pipeline.stage]]
name = "raw"
use = "tx"
port = "b"
[[pipeline.stage]]
name = "out"
use = "tx"
[[pipeline.stage]]
name = "dropped"
use = "capture"
file = "dropped.pcapng"
next = "drop"
[[pipeline.stage]]
use = "drop"
"#;

/// Generates random bytes, damaged frames, empty frames, and frames longer than a buffer.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => strategies::any_frame(),
        1 => Just(Vec::new()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (strategies::valid_frame(), 1400..5000usize).prop_map(|(mut frame, len)| {
            frame.resize(len, 0);
            frame
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_malformed_frame_is_sent_or_counted(
        frames in prop::collection::vec(frames(), 1..300), burst in 1..=64u32, workers in 1..=2usize,
    ) {
        let folder = Folder::new();
        folder.capture("in.pcap", &frames);
        let report = folder.run(&config(burst, workers));
        assert_good(&report);
        let long = frames.iter().filter(|frame| frame.len() > 2048 - 128).count() as u64;
        prop_assert_eq!(counter(&report, 0, "rx_too_long"), long);
        prop_assert_eq!(report.ports[0].rx_errors, long);
        prop_assert_eq!(report.packets.rx + long, frames.len() as u64);
        prop_assert_eq!(stage(&report, "count").packets, report.packets.rx);
        // The device accepts every frame that the stages send.
        prop_assert_eq!((report.ports[0].tx_errors, report.ports[1].tx_errors), (0, 0), "{}", report);
        prop_assert_eq!(report.ports.iter().map(|port| port.recoveries).sum::<u64>(), 0, "{}", report);
    }
}

/// Frames that are too short to send (runts) are dropped, and the port still sends longer frames.
#[test]
fn runts_are_dropped_and_longer_frames_are_sent() {
    let folder = Folder::new();
    let good = frame().ipv4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).udp(1, 2).build();
    let frames = (0..1000usize).map(|at| if at % 3 == 0 { vec![7; at % 14] } else { good.clone() });
    folder.capture("in.pcap", frames);
    let report =
        folder.run(&Config::new().port("p", "kind = 'pcap', input = 'in.pcap'").stage("tx", "port = 'p'").to_string());
    assert_conserved(&report);
    assert_eq!((report.packets.tx, drops(&report, "tx.runt"), report.ports[0].recoveries), (666, 334, 0), "{report}");
}
