//! Tests of runs whose ports have flow rules, offloads and rate limits. Here the software device acts as the NIC.

use std::time::Instant;

use dataplane::config::{Diagnostics, Source};
use dataplane::pipeline::Registry;
use dataplane::prelude::*;
use dataplane::runtime::{Options, Run, assemble};
use dataplane::telemetry::Ledger;
use dataplane::topology::Topology;
use dataplane_testing::config::Config;
use dataplane_testing::strategies;
use etherparse::{PacketBuilder, VlanId};
use proptest::prelude::*;

use crate::common::{Folder, assembled_with, assert_good, counter, frames_of, stage};

fn udp(source: u16, target: u16) -> Vec<u8> {
    let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 9], 64).udp(source, target);
    let mut frame = Vec::new();
    packet.write(&mut frame, &[7; 30]).unwrap();
    frame
}

fn tagged(source: u16, target: u16) -> Vec<u8> {
    let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).single_vlan(VlanId::try_new(7).unwrap());
    let packet = packet.ipv4([10, 0, 0, 1], [10, 0, 0, 9], 64).udp(source, target);
    let mut frame = Vec::new();
    packet.write(&mut frame, &[7; 30]).unwrap();
    frame
}

/// Returns a config that plays `in.pcap` on the port `in` and writes the sent frames to `out.pcap` on the port `out`.
/// `input` and `output` are the additional keys of these ports.
fn config(workers: usize, input: &str, output: &str) -> String {
    Config::new()
        .workers(workers)
        .port_with("in", "kind = 'pcap', input = 'in.pcap'", input)
        .port_with("out", "kind = 'pcap', output = 'out.pcap'", output)
        .stage("tx", "port = 'out'")
        .to_string()
}

#[test]
fn flow_rules_select_and_count_received_frames() {
    let flow = "flow = [
        { match = { ipv4 = {}, udp = { dst = 53 } }, count = 'dns' },
        { priority = 1, match = { ethernet = { vlan = 7 } }, action = 'drop', count = 'tagged' },
        { priority = 2, match = { ipv4 = {}, udp = { src = 5 } } },
    ]";
    for workers in [1, 2] {
        let folder = Folder::new();
        folder.capture("in.pcap", [udp(1, 53), tagged(2, 53), udp(3, 54), tagged(5, 54), udp(5, 54)]);
        let report = folder.run(&config(workers, flow, ""));
        assert_good(&report);
        let mut sent = frames_of(&folder.file("out.pcap"));
        sent.sort();
        let mut expected = [udp(1, 53), tagged(2, 53), udp(5, 54)];
        expected.sort();
        assert_eq!(sent, expected);
        assert_eq!((counter(&report, 0, "flow.dns.packets"), counter(&report, 0, "flow.tagged.packets")), (2, 1));
        assert_eq!(counter(&report, 0, "flow.dns.bytes"), (udp(1, 53).len() + tagged(2, 53).len()) as u64);
        assert_eq!(counter(&report, 0, "rx_unmatched"), 2, "the dropped frame and the frame without a rule");
    }
}

#[test]
fn device_removes_vlan_tags_and_computes_checksums() {
    let folder = Folder::new();
    let mut wrong = tagged(1, 53);
    wrong[44] ^= 0x55;
    wrong[28] ^= 0x55;
    folder.capture("in.pcap", [&wrong, &udp(2, 53)]);
    let report = folder.run(&config(1, "offload = ['vlan_strip']", "offload = ['checksum']"));
    assert_good(&report);
    assert_eq!(frames_of(&folder.file("out.pcap")), [udp(1, 53), udp(2, 53)]);
}

#[test]
fn frames_leave_with_the_limited_rate() {
    let folder = Folder::new();
    folder.capture("in.pcap", (0..200).map(|source| udp(source, 53)));
    let begin = Instant::now();
    let report = folder.run(&config(1, "", "tx_depth = 256\nrate_limit = { rate = '8Mbps', burst = 144 }"));
    assert_good(&report);
    assert_eq!(frames_of(&folder.file("out.pcap")).len(), 200);
    // The first two of the 200 frames fit into the burst of the rate limit. Each of the other 198 frames has 72 bytes,
    // and waits one microsecond per byte.
    assert!(begin.elapsed().as_micros() >= 198 * 72, "{:?}", begin.elapsed());
}

#[test]
fn run_that_needs_a_refused_capability_does_not_start() {
    let folder = Folder::new();
    folder.capture("in.pcap", [udp(1, 53)]);
    for (keys, needed, help) in [
        ("flow = [{}, { match = { ipv4 = {} } }]", "flow_rules", "select frames with an `acl` stage"),
        ("flow = [{ match = { ipv4 = {} }, count = 'v4' }]", "flow_rules", "select frames with an `acl` stage"),
        ("offload = ['vlan_strip']", "vlan_strip", "remove \"vlan_strip\" from `offload`"),
        ("rate_limit = { rate = '8Mbps' }", "pacing", "limit it in the pipeline"),
    ] {
        let text = config(1, &format!("{keys}\nrefuse = ['{needed}']"), "");
        let Err(error) = folder.start(&text, Default::default()) else { panic!("the run started with {keys}") };
        let message = error.to_string();
        assert!(message.starts_with("port `in`: the device does not support") && message.contains(help), "{message}");
    }
}

/// The stage `flow_tag` lists the tags 5 and 6. Frames with the tag 5 go to the output `listed`. Frames with the tag 7
/// and frames without a tag go to the next stage.
#[test]
fn tag_of_the_flow_rule_selects_the_output() {
    let flow = "flow = [
        { match = { ipv4 = {}, udp = { dst = 53 } }, tag = 5 },
        { match = { ipv4 = {}, udp = { dst = 54 } }, tag = 7 },
        { priority = 1 },
    ]";
    let text = Config::new()
        .workers(1)
        .port_with("in", "kind = 'pcap', input = 'in.pcap'", flow)
        .port("dns", "kind = 'pcap', output = 'dns.pcap'")
        .port("out", "kind = 'pcap', output = 'out.pcap'")
        .stage("flow_tag", "tags = [5, 6]\noutputs = { listed = 'to_dns' }")
        .stage("tx", "port = 'out'")
        .stage("tx", "name = 'to_dns'\nport = 'dns'")
        .to_string();
    let folder = Folder::new();
    folder.capture("in.pcap", [udp(1, 53), udp(2, 54), udp(3, 55), udp(4, 53)]);
    assert_good(&folder.run(&text));
    assert_eq!(frames_of(&folder.file("dns.pcap")), [udp(1, 53), udp(4, 53)]);
    assert_eq!(frames_of(&folder.file("out.pcap")), [udp(2, 54), udp(3, 55)]);
}

#[test]
fn vlan_tag_that_the_device_removed_can_be_restored() {
    let text = Config::new()
        .workers(1)
        .port_with("in", "kind = 'pcap', input = 'in.pcap'", "offload = ['vlan_strip']")
        .port("out", "kind = 'pcap', output = 'out.pcap'")
        .stage("vlan", "op = 'restore'")
        .stage("tx", "port = 'out'")
        .to_string();
    let folder = Folder::new();
    let frames = [tagged(1, 53), udp(2, 53), tagged(3, 53)];
    folder.capture("in.pcap", &frames);
    assert_good(&folder.run(&text));
    assert_eq!(frames_of(&folder.file("out.pcap")), frames);
}

/// The stages of five pipelines from the port `in` to the port `out`. In the first three pipelines, the device can
/// compute the checksums for the stage `checksum`.
const PIPELINES: [&str; 5] = [
    "parse verify_transport = true; checksum; tx port = 'out'",
    "parse; checksum; count; mac_swap; tx port = 'out'",
    "parse; ttl; checksum; mirror outputs = { copy = 'tx' }; tx port = 'out'",
    "parse verify_transport = true; ttl; tx port = 'out'",
    "parse; checksum; ttl; tx port = 'out'",
];

/// A stage that counts the packets with an RSS hash.
#[derive(serde::Deserialize)]
struct HashReader {
    #[serde(skip)]
    hashes: u64,
}

impl Stage for HashReader {
    fn process(&mut self, _: &Ctx, batch: &mut Batch) {
        let has_hash = |packet: &Packet<'_>| packet.recv_info().flags.contains(RecvFlags::HASH);
        self.hashes += batch.iter_mut().filter(|packet| has_hash(packet)).count() as u64;
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("hashes", self.hashes);
    }

    fn contract(&self) -> Contract {
        Contract::new().receives(RecvFields::HASH)
    }
}

/// Returns the config of a pipeline from the port `in` to the port `out`, which have these additional keys.
fn pipeline(stages: &str, input: &str, output: &str) -> String {
    let config = Config::new().workers(1).port_with("in", "kind = 'pcap', input = 'in.pcap'", input).port_with(
        "out",
        "kind = 'pcap', output = 'out.pcap'",
        output,
    );
    let add = |config: Config, stage: &str| {
        let (kind, parameters) = stage.split_once(' ').unwrap_or((stage, ""));
        config.stage(kind, parameters)
    };
    stages.split("; ").fold(config, add).to_string()
}

/// Returns whether a `vlan` stage restores the frame exactly after the device has removed its VLAN tag. The stage does
/// not know the type of the removed tag, and a device does not report a tag whose control information is 0.
fn is_restorable(frame: &[u8]) -> bool {
    let is_tagged = [[0x81, 0], [0x88, 0xa8], [0x91, 0]].contains(&[frame[12], frame[13]]);
    !is_tagged || (frame[12..14] == [0x81, 0] && frame.len() >= 18 && frame[14..16] != [0, 0])
}

/// Runs a pipeline on `in.pcap`. Returns the sent frames without their last `cut` bytes, the ledger, and the number of
/// packets with an RSS hash.
fn result(folder: &Folder, text: &str, cut: usize) -> (Vec<Vec<u8>>, Ledger, u64) {
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    registry.add::<HashReader>("hash_reader");
    let assembly = assembled_with(&Source::new(folder.file("test.toml"), text, &[]), &registry).unwrap();
    let report = Run::start(assembly, Options::default()).unwrap().join().unwrap();
    assert_good(&report);
    let mut frames = frames_of(&folder.file("out.pcap"));
    frames.iter_mut().for_each(|frame| frame.truncate(frame.len() - cut));
    let hashes = stage(&report, "hash_reader").counters["hashes"];
    (frames, report.ledger, hashes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A run writes the same frames and has the same ledger without offloads, with all offloads that the stages can
    /// use, and with some of these offloads. The offload `vlan_strip` changes nothing if a stage restores the tags. The
    /// offload `fcs` only appends the frame check sequence.
    #[test]
    fn offloads_change_neither_frames_nor_the_ledger(
        frames in prop::collection::vec((strategies::any_frame(), strategies::valid_frame(), any::<Option<(usize, u8)>>()), 1..30),
        stages in prop::sample::select(PIPELINES.to_vec()),
        more in prop::sample::select(vec!["", "vlan_strip", "fcs"]),
        refused in prop::sample::subsequence(vec!["'rx_checksum'", "'tx_checksum'", "'rss_hash'"], 0..3),
    ) {
        let folder = Folder::new();
        let frames = frames.into_iter().flat_map(|(any, mut valid, change)| {
            // The frame check sequence could complete a truncated packet.
            if more == "fcs" {
                return [None, Some(valid)];
            }
            if let Some((at, by)) = change {
                let at = at % valid.len();
                valid[at] ^= by;
            }
            [Some(any), Some(valid)]
        });
        let frames: Vec<Vec<u8>> = frames.flatten()
            .filter(|frame| frame.len() >= 14 && (more != "vlan_strip" || is_restorable(frame)))
            .collect();
        folder.capture("in.pcap", &frames);
        let restore = if more == "vlan_strip" { "vlan op = 'restore'; " } else { "" };
        let stages = format!("hash_reader; {restore}{stages}");
        let run = |offloads: &str, refused: &str, cut: usize| {
            let output = if offloads.is_empty() { "[]" } else { "['auto']" };
            let refuse = format!("refuse = [{refused}]");
            let input = format!("offload = [{offloads}]\n{refuse}");
            result(&folder, &pipeline(&stages, &input, &format!("offload = {output}\n{refuse}")), cut)
        };
        let (offloads, cut) = match more {
            "" => ("'auto'".to_owned(), 0),
            _ => (format!("'auto', '{more}'"), if more == "fcs" { 4 } else { 0 }),
        };
        let plain = run("", "'rss_hash'", 0);
        let offloaded = run(&offloads, "", cut);
        let partly = run(&offloads, &refused.join(", "), cut);
        prop_assert_eq!((plain.2, partly.2), (0, if refused.contains(&"'rss_hash'") { 0 } else { offloaded.2 }));
        prop_assert!(offloaded.2 > 0 || more != "fcs" || frames.iter().all(|frame| frame[12..14] != [8, 0]));
        prop_assert_eq!((&plain.0, &plain.1), (&offloaded.0, &offloaded.1));
        prop_assert_eq!((&plain.0, &plain.1), (&partly.0, &partly.1));
    }
}

#[test]
fn device_computes_checksums_only_if_no_later_stage_changes_the_ip_packet() {
    let computed = |stages: &str| {
        let folder = Folder::new();
        folder.capture("in.pcap", [udp(1, 53)]);
        let assembly = folder.assemble(&pipeline(stages, "offload = ['auto']", "offload = ['auto']")).unwrap();
        let requests = &assembly.plan.ports;
        requests
            .iter()
            .map(|port| port.requests.iter().map(|it| it.offload.to_string()).collect())
            .collect::<Vec<Vec<_>>>()
    };
    let (none, send, receive) = (vec![], vec!["send checksums".to_owned()], vec!["receive checksums".to_owned()]);
    assert_eq!(computed(PIPELINES[0]), [receive.clone(), send.clone()]);
    assert_eq!(computed(PIPELINES[1]), [none.clone(), send.clone()]);
    assert_eq!(computed(PIPELINES[2]), [none.clone(), send]);
    assert_eq!(computed(PIPELINES[3]), [receive, none.clone()]);
    assert_eq!(computed(PIPELINES[4]), [none.clone(), none]);
}

/// mlx5 reports no checksums for the work queues of a port with several workers. The software device reports the
/// checksums in both cases.
#[test]
fn rdma_device_verifies_checksums_only_for_one_worker() {
    let plan = |workers: usize, device: &str, keys: &str| {
        let text = Config::new()
            .workers(workers)
            .input(&["in"])
            .stage("parse", "verify_transport = true\nnext = 'drop'")
            .to_string();
        let text = format!("{text}\n[[port]]\nname = 'in'\ndevice = '{device}'\n{keys}\n");
        let folder = Folder::new();
        folder.capture("in.pcap", [udp(1, 53)]);
        folder.assemble(&text).unwrap().plan.to_string()
    };
    let requested = "device offload: receive checksums (stages: parse)";
    let verified = "no device offload of receive checksums with several workers (verified by the stages: parse)";
    let soft = "link = { kind = 'pcap', input = 'in.pcap' }\noffload = ['auto']";
    for (workers, device, keys, is_requested) in
        [(1, "mlx5_0", "", true), (2, "mlx5_0", "", false), (2, "soft", soft, true)]
    {
        let plan = plan(workers, device, keys);
        let found = (plan.contains(requested), plan.contains(verified));
        assert_eq!(found, (is_requested, !is_requested), "{workers} workers, {device}: {plan}");
    }
}

/// A stage computes the checksums itself if its packets are never sent, or if a capture observes its drops.
#[test]
fn stage_computes_the_checksums_of_packets_that_are_never_sent() {
    let mut wrong = udp(1, 53);
    wrong[40] ^= 0x55;
    let text = Config::new()
        .workers(1)
        .port_with("in", "kind = 'pcap', input = 'in.pcap'", "offload = []")
        .stage("parse", "")
        .stage("checksum", "next = 'drop'\ndrops = 'cap'")
        .stage("capture", "name = 'cap'\nfile = 'dropped.pcapng'\nlossless = true\nnext = 'drop'")
        .to_string();
    let folder = Folder::new();
    folder.capture("in.pcap", [&wrong]);
    folder.run(&text);
    assert_eq!(frames_of(&folder.file("dropped.pcapng")), [udp(1, 53)]);
}

/// Two rules match each frame, so the port receives two copies of each frame. A burst has an odd number of packets, so
/// the two copies can be in different bursts.
#[test]
fn copies_of_a_frame_can_be_received_in_different_bursts() {
    let flow = "flow = [{ frames = 'sniffer' }, { match = { ipv4 = {} } }]";
    for burst in ["1", "3"] {
        let folder = Folder::new();
        folder.capture("in.pcap", (0..30).map(|source| udp(source, 53)));
        let text = config(1, flow, "").replace("[runtime]\n", &format!("[runtime]\nburst = {burst}\n"));
        assert!(text.contains("burst = "), "{text}");
        let report = folder.run(&text);
        assert_good(&report);
        assert_eq!((report.packets.tx, counter(&report, 0, "rx_missed")), (60, 0), "burst {burst}");
    }
}

/// A stage cannot compute a VLAN tag or a flow tag itself. If the device cannot report the tag, the run does not start.
#[test]
fn device_must_report_the_information_that_a_stage_needs() {
    for (keys, refused, stage, parameters) in [
        ("offload = ['vlan_strip']", "cvlan", "vlan", "op = 'restore'"),
        ("flow = [{ match = { ipv4 = {} }, tag = 5 }, { priority = 1 }]", "flow_tag", "flow_tag", "tags = [5]"),
    ] {
        let text = |more: &str| {
            Config::new()
                .workers(1)
                .port_with("in", "kind = 'pcap', input = 'in.pcap'", &format!("{keys}\n{more}"))
                .stage(stage, parameters)
                .stage("tx", "port = 'in'")
                .to_string()
        };
        let folder = Folder::new();
        folder.capture("in.pcap", [tagged(1, 53)]);
        let run = folder.start(&text(&format!("refuse = ['{refused}']")), Default::default());
        let error = run.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("port `in`: the device does not report") && error.contains("; help: remove"), "{error}");
        assert_good(&folder.run(&text("")));
    }
}

#[test]
fn port_without_flow_rules_can_send_with_offloads() {
    let folder = Folder::new();
    folder.capture("in.pcap", [udp(1, 53)]);
    for keys in ["offload = ['auto']", "offload = ['checksum']", "rate_limit = { rate = '1Gbps' }"] {
        let report = folder.run(&config(1, "", &format!("{keys}\nrefuse = ['flow_rules']")));
        assert_good(&report);
        assert_eq!(report.packets.tx, 1, "{keys}");
    }
}

/// A stage that reads VLAN tags or flow tags causes a warning if no input port reports such tags.
#[test]
fn stage_that_reads_tags_warns_if_no_input_port_reports_them() {
    for (stage, parameters, message) in [
        ("vlan", "op = 'restore'", "no input port removes VLAN tags, so this stage restores none"),
        ("flow_tag", "tags = [5]", "no flow rule of an input port has a tag, so this stage selects no packet"),
    ] {
        let text = Config::new().port("in", "kind = 'generator'").stage(stage, parameters).stage("tx", "port = 'in'");
        let source = Source::new("test.toml", text.to_string(), &[]);
        let mut registry = Registry::new();
        dataplane::stages::register(&mut registry);
        let mut diagnostics = Diagnostics::new(&source);
        let topology = Topology::discover().unwrap();
        assert!(assemble(&source, &registry, topology, &mut diagnostics).unwrap().is_some());
        let records = diagnostics.records();
        assert_eq!((records.len(), records[0].message.clone()), (1, format!("stage `{stage}`: {message}")));
    }
}
