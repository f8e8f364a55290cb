use std::path::{Path, PathBuf};
use std::process::Command;

use pcap_parser::pcapng::{Block, parse_block_le};
use pcap_parser::traits::PcapNGPacketBlock;

use super::writer::{CaptureWriter, Record};
use super::*;
use dataplane_core::clock::{ClockSource, Stamp};
use dataplane_core::harness::{Fate, Harness, frame};
use dataplane_core::mem::{PageKind, Pool, Region, RegionSpec, SlotLayout};
use dataplane_core::pcapng::STATISTICS_BLOCK_LEN;
use dataplane_core::pipeline::{
    Graph, NoObserver, NodeSpec, OnPanic, Program, Resources, RunStop, StageInfo, Target, Tasks,
};
use dataplane_core::units::Nanos;
use dataplane_testing::{Folder, skip};

/// A folder with the files that a stage writes.
struct OutputFolder(Folder);

impl OutputFolder {
    fn new() -> Self {
        Self(Folder::new())
    }

    /// Builds a capture stage that writes to this folder, and starts its writer.
    fn build(&self, parameters: &str) -> Result<Harness, String> {
        let mut harness = Harness::builder().folder(self.0.path()).build::<Capture>(parameters)?;
        // The task closes the file when it ends.
        std::mem::forget(harness.start_tasks().unwrap());
        Ok(harness)
    }

    fn file(&self) -> PathBuf {
        self.0.file("out.pcapng")
    }

    /// Returns the names of the files in the folder, sorted.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn read(&self) -> Contents {
        Contents::of(&std::fs::read(self.file()).unwrap())
    }
}

/// A packet as another pcapng reader returns it. `clock` is the description of the interface in the file, which names
/// the clock of the timestamps. `original` is the length of the packet before truncation.
#[derive(Debug, PartialEq, Eq)]
struct Written {
    clock: String,
    nanos: u64,
    original: usize,
    bytes: Vec<u8>,
    comment: Option<String>,
}

/// The contents of a file, as parsed by another pcapng reader.
#[derive(Debug, Default)]
struct Contents {
    interface: String,
    clocks: Vec<String>,
    snaplen: u32,
    packets: Vec<Written>,
    received: u64,
    dropped: u64,
}

impl Contents {
    fn of(mut file: &[u8]) -> Self {
        let mut contents = Self::default();
        let mut blocks = 0;
        while !file.is_empty() {
            let (rest, block) = parse_block_le(file).unwrap();
            match block {
                Block::SectionHeader(_) => assert_eq!(blocks, 0),
                Block::InterfaceDescription(interface) => {
                    assert_eq!((interface.linktype.0, interface.ts_resolution()), (1, Some(1_000_000_000)));
                    contents.clocks.push(interface.if_description().unwrap().unwrap().to_owned());
                    contents.interface = interface.if_name().unwrap().unwrap().to_owned();
                    contents.snaplen = interface.snaplen;
                }
                Block::EnhancedPacket(packet) => contents.packets.push(Written {
                    clock: contents.clocks[packet.if_id as usize].clone(),
                    nanos: u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low),
                    original: packet.origlen as usize,
                    bytes: packet.packet_data().to_vec(),
                    comment: packet.options.first().map(|option| option.as_str().unwrap().to_owned()),
                }),
                Block::InterfaceStatistics(statistics) => {
                    contents.received = statistics.isb_ifrecv().unwrap().unwrap();
                    contents.dropped = statistics.isb_ifdrop().unwrap().unwrap();
                    assert!(rest.is_empty(), "the statistics block must be last");
                }
                other => panic!("unexpected: {:#x}", other.magic()),
            }
            blocks += 1;
            file = rest;
        }
        contents
    }
}

/// Returns the value of a counter.
fn counted(harness: &Harness, name: &str) -> u64 {
    harness.counters().into_iter().find(|(known, _)| known == name).unwrap().1
}

/// Returns packets of many sizes, each with different content.
fn packets(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|at| frame().ether_type(0x88b5).payload(&vec![at as u8; at * 7 % 1500]).build()).collect()
}

#[test]
fn every_packet_is_read_back_by_another_reader() {
    let folder = OutputFolder::new();
    let mut harness = folder.build("file = \"out.pcapng\"\nlossless = true\ncomment = \"größer\"").unwrap();
    let packets = packets(300);
    for packet in &packets {
        harness.advance(1_000_000_007);
        let outcome = harness.run_one(packet);
        assert_eq!((outcome.fate, outcome.bytes), (Fate::Next, packet.clone()));
    }
    harness.stage().finish().unwrap();
    let contents = folder.read();
    assert_eq!((contents.interface.as_str(), contents.snaplen), ("under_test", 65_535));
    assert_eq!((contents.received, contents.dropped), (300, 0));
    assert_eq!(contents.packets.len(), 300);
    for (at, (packet, written)) in packets.iter().zip(contents.packets).enumerate() {
        let nanos = (at as u64 + 1) * 1_000_000_007;
        let comment = Some("größer".to_owned());
        let clock = "time stamps: virtual".to_owned();
        assert_eq!(written, Written { clock, nanos, original: packet.len(), bytes: packet.clone(), comment });
    }
}

#[test]
fn with_full_buffers_packets_are_missed_and_a_lossless_capture_waits() {
    for lossless in [false, true] {
        let folder = OutputFolder::new();
        let parameters = format!("file = \"out.pcapng\"\nbuffers = 1\nlossless = {lossless}");
        let mut harness = folder.build(&parameters).unwrap();
        let packets = packets(256);
        for outcome in harness.run(&packets) {
            assert_eq!(outcome.fate, Fate::Next);
        }
        let counters: Vec<u64> = harness.counters().into_iter().map(|(_, value)| value).collect();
        harness.stage().finish().unwrap();
        let contents = folder.read();
        assert_eq!(counted(&harness, "waiting_max"), 1);
        assert_eq!(counted(&harness, "waiting"), 0);
        assert_eq!(counters[0] + counters[1], 256);
        assert_eq!(contents.packets.len() as u64, counters[0]);
        assert_eq!((contents.received, contents.dropped), (256, counters[1]));
        assert!(!lossless || counters[1] == 0);
    }
}

#[test]
fn keys_snaplen_max_packets_and_max_bytes_limit_the_file() {
    let run = |parameters: &str| {
        let folder = OutputFolder::new();
        let mut harness = folder.build(&format!("file = \"out.pcapng\"\nlossless = true\n{parameters}")).unwrap();
        harness.run(&packets(100));
        harness.stage().finish().unwrap();
        (folder.read(), std::fs::metadata(folder.file()).unwrap().len())
    };
    let (cut, _) = run("snaplen = \"20B\"");
    assert_eq!((cut.snaplen, cut.packets.len()), (20, 100));
    for (packet, written) in packets(100).iter().zip(&cut.packets) {
        assert_eq!((&packet[..packet.len().min(20)], packet.len()), (&written.bytes[..], written.original));
    }
    let (few, _) = run("max_packets = 7");
    assert_eq!(few.packets.len(), 7);
    let (all, size) = run("");
    let (fits, _) = run(&format!("max_bytes = {size}"));
    assert_eq!(fits.packets, all.packets);
    let (less, smaller) = run(&format!("max_bytes = {}", size - 1));
    assert!(less.packets.len() == 99 && smaller < size, "{} packets in {smaller} bytes", less.packets.len());
}

#[test]
fn full_disk_stops_the_capture_but_packets_pass() {
    let folder = OutputFolder::new();
    let mut harness = folder.build("file = \"/dev/full\"\nlossless = true\nbuffers = 2").unwrap();
    for _ in 0..20 {
        let outcomes = harness.run(&vec![vec![7; 1400]; 256]);
        assert!(outcomes.iter().all(|outcome| outcome.fate == Fate::Next));
    }
    let handled = counted(&harness, "taken") + counted(&harness, "missed");
    assert_eq!(handled, 20 * 256, "some packets count neither as taken nor as missed");
    let error = harness.stage().finish().unwrap_err().to_string();
    assert_eq!(error, "/dev/full: No space left on device (os error 28)");
}

/// Rotation by size: every packet is in one of the files, and each file is complete and within the size limit.
#[test]
fn full_file_is_followed_by_a_new_file() {
    let folder = OutputFolder::new();
    let mut harness = folder.build("file = \"out.pcapng\"\nlossless = true\nrotate_bytes = \"10kB\"").unwrap();
    let packets = packets(256);
    harness.advance(1_700_000_000_000_000_000);
    harness.run(&packets);
    harness.stage().finish().unwrap();
    let files = folder.files();
    assert!(files.len() > 15, "{files:?}");
    let mut written = Vec::new();
    for (at, name) in files.iter().enumerate() {
        assert_eq!(*name, format!("out_{:05}_20231114221320.pcapng", at + 1));
        let bytes = std::fs::read(folder.0.file(name)).unwrap();
        // Each file except the last file is so full that no further packet fits.
        assert!(bytes.len() <= 10_000 && (bytes.len() > 8_300 || at + 1 == files.len()), "{name}: {}", bytes.len());
        let contents = Contents::of(&bytes);
        written.extend(contents.packets);
        assert_eq!((contents.received, contents.dropped), (written.len() as u64, 0));
    }
    assert!(written.iter().map(|packet| &packet.bytes).eq(&packets));
}

/// Rotation by time, with a limited number of files.
#[test]
fn oldest_files_of_the_run_are_deleted() {
    let folder = OutputFolder::new();
    folder.0.write("out_00001_20001231235959.pcapng", "of another run");
    let parameters = "file = \"out.pcapng\"\nlossless = true\nrotate_time = \"1m\"\nkeep = 3";
    let mut harness = folder.build(parameters).unwrap();
    // Each file gets two packets, the second at the last possible time.
    for _ in 0..5 {
        harness.run_one(&[7; 60]);
        harness.advance(59_999_999_999);
        harness.run_one(&[8; 60]);
        harness.advance(1);
    }
    harness.stage().finish().unwrap();
    let expected = [
        "out_00001_20001231235959.pcapng",
        "out_00003_19700101000200.pcapng",
        "out_00004_19700101000300.pcapng",
        "out_00005_19700101000400.pcapng",
    ];
    assert_eq!(folder.files(), expected);
    for name in &expected[1..] {
        let contents = Contents::of(&std::fs::read(folder.0.file(name)).unwrap());
        let bytes: Vec<u8> = contents.packets.iter().map(|packet| packet.bytes[0]).collect();
        assert_eq!(bytes, [7, 8], "{name}");
    }
}

/// After a write error, the capture counts the packets that it cannot write. The capture starts a new file later.
#[test]
fn capture_continues_in_the_next_file_after_a_failure() {
    let folder = OutputFolder::new();
    let inner = folder.0.file("inner");
    let parameters = "file = \"inner/out.pcapng\"\nlossless = true\nrotate_bytes = 4096";
    let mut harness = folder.build(parameters).unwrap();
    // The capture cannot create the folder `inner`, because a file has this name.
    std::fs::write(&inner, []).unwrap();
    let counters = |harness: &Harness| {
        let counters: Vec<u64> = harness.counters().into_iter().map(|(_, value)| value).collect();
        (counters[0], counters[1])
    };
    let mut given = 0;
    let mut until = |harness: &mut Harness, condition: &mut dyn FnMut(&Harness) -> bool| {
        let begin = std::time::Instant::now();
        while !condition(harness) {
            assert!(begin.elapsed() < std::time::Duration::from_secs(60), "{:?}", counters(harness));
            assert_eq!(harness.run_one(&[7; 1000]).fate, Fate::Next);
            given += 1;
            std::thread::yield_now();
        }
    };
    until(&mut harness, &mut |harness| counters(harness).1 > 0);
    std::fs::remove_file(&inner).unwrap();
    until(&mut harness, &mut |_| std::fs::read_dir(&inner).is_ok_and(|files| files.count() > 2));
    let (taken, missed) = counters(&harness);
    assert_eq!(taken + missed, given);
    let error = harness.stage().finish().unwrap_err().to_string();
    assert!(error.contains("inner"), "{error}");
    let mut last: Vec<PathBuf> = std::fs::read_dir(&inner).unwrap().map(|entry| entry.unwrap().path()).collect();
    last.sort();
    let contents = Contents::of(&std::fs::read(last.last().unwrap()).unwrap());
    // Some packets that were copied to buffers are lost. The file and the counters report the number of lost packets.
    let lost = harness.counters()[2].1;
    assert_eq!((contents.received, contents.dropped), (given, missed + lost));
    assert!(lost > 0);
}

#[test]
fn each_clock_has_its_own_interface_description() {
    let mut file = Vec::new();
    let mut writer = CaptureWriter::new(&mut file, "eth0", 100).unwrap();
    let mut expected = 0;
    for (nanos, source) in [ClockSource::Software, ClockSource::DeviceTicks, ClockSource::Software].iter().enumerate() {
        let nanos = nanos as u64;
        let record = Record { nanos, source: *source, original: 60, bytes: &[1; 60], comment: &[] };
        let before = writer.written();
        expected += writer.cost(&record);
        writer.packet(&record).unwrap();
        assert!(writer.written() > before);
    }
    let headers = writer.written() - expected;
    writer.finish(3, 3, 0).unwrap();
    assert_eq!(writer.written() - expected - headers, STATISTICS_BLOCK_LEN);
    let contents = Contents::of(&file);
    assert_eq!(contents.clocks, ["time stamps: software", "time stamps: device_ticks"]);
    let clocks: Vec<&str> = contents.packets.iter().map(|packet| packet.clock.as_str()).collect();
    assert_eq!(clocks, ["time stamps: software", "time stamps: device_ticks", "time stamps: software"]);
}

#[test]
fn only_a_finished_capture_leaves_a_file() {
    let folder = OutputFolder::new();
    drop(folder.build("file = \"out.pcapng\"").unwrap());
    assert!(!folder.file().exists());
    folder.build("file = \"out.pcapng\"").unwrap().stage().finish().unwrap();
    assert!(folder.read().packets.is_empty());
    folder.build("file = \"made/for/it.pcapng\"").unwrap().stage().finish().unwrap();
    assert!(folder.file().with_file_name("made/for/it.pcapng").exists());
}

#[test]
fn invalid_parameters_are_refused_with_their_key() {
    let folder = OutputFolder::new();
    let refused = |parameters: &str| folder.build(parameters).err().unwrap();
    std::fs::write(folder.file(), []).unwrap();
    let blocked = refused("file = \"out.pcapng/inside/x.pcapng\"");
    assert!(
        blocked.starts_with("file: ") && blocked.contains("x.pcapng cannot be written: Not a directory"),
        "{blocked}"
    );
    assert!(refused("file = \".\"").contains("cannot be written: a folder"), "{}", refused("file = \".\""));
    let file = "file = \"out.pcapng\"\n";
    assert!(refused(&format!("{file}snaplen = 0")).contains("expected a size from 1 to 65535 bytes"));
    let buffers = "buffers: 0 is out of range; help: set `buffers` to a value from 1 to 65536";
    assert_eq!(refused(&format!("{file}buffers = 0")), buffers);
    let long = format!("{file}comment = \"{}\"", "x".repeat(129));
    assert_eq!(refused(&long), "comment: 129 bytes is too long; help: shorten the comment to at most 128 bytes");
    for (parameters, expected) in [
        ("keep = 3", "keep: the capture writes only one file, so `keep` has no effect; help: add `rotate_bytes`"),
        ("rotate_bytes = 4095", "rotate_bytes: 4095 is too small; help: set `rotate_bytes` to 4096 or more"),
        ("rotate_time = \"0s\"", "rotate_time: 0s is too short; help: set `rotate_time` to \"1s\" or longer"),
        ("rotate_time = \"1s\"\nkeep = 0", "keep: 0 is too small; help: set `keep` to 1 or more"),
    ] {
        let message = refused(&format!("{file}{parameters}"));
        assert!(message.starts_with(expected), "{message}");
    }
    assert!(refused("").contains("missing field `file`"));
}

/// Drops packets whose first byte is odd.
struct DropOdd;

impl Stage for DropOdd {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            if packet.data().first().is_some_and(|byte| byte % 2 == 1) {
                packet.drop(Reason::Denied);
            }
        }
    }
}

fn pool() -> Pool {
    let layout = SlotLayout::new(0, 2048, 64).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    let (region, _) = Region::allocate(spec).unwrap();
    Pool::new(region, layout).unwrap()
}

/// Returns the graph of one of two workers. The stage `odd` drops packets with an odd first byte. The capture writes
/// the dropped packets and all other packets.
fn graph(resources: &mut Resources, worker: usize, pool: &Pool) -> Graph {
    let mut capture: Capture = toml::from_str("file = \"out.pcapng\"\nlossless = true\ncomment = \"through\"").unwrap();
    capture.prepare(&mut Setup::new(resources, "drops", worker, 2)).unwrap();
    let node = |name: &str, stage: Box<dyn Stage>, next, drops| NodeSpec {
        name: name.to_owned(),
        kind: name.to_owned(),
        stage,
        next,
        outputs: Vec::new(),
        reasons: Vec::new(),
        info: StageInfo::new(),
        on_panic: OnPanic::Stop,
        drop_observer: drops,
    };
    let odd = node("odd", Box::new(DropOdd), Target::Node(1), Some(1));
    let drops = node("drops", Box::new(capture), Target::Port(0), None);
    Graph::new(Program::new(vec![odd, drops]), 1, pool)
}

/// Runs two workers that write dropped packets and passed packets to one file.
fn two_workers(folder: &Path) {
    let mut resources = Resources::new(Vec::new(), folder);
    let mut pools = [pool(), pool()];
    let mut graphs = [0, 1].map(|worker| graph(&mut resources, worker, &pools[worker]));
    let _tasks = Tasks::start(std::mem::take(&mut resources.services.tasks), &RunStop::default()).unwrap();
    for (worker, (graph, pool)) in graphs.iter_mut().zip(&mut pools).enumerate() {
        let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(1_700_000_000_000_000_000), now: Nanos(0), worker };
        for byte in 0..10u8 {
            let stamp = Stamp::new(Nanos(u64::from(byte) * 1000 + worker as u64), ClockSource::Virtual);
            assert!(graph.entry(0).push_bytes(&[byte; 60], stamp, pool));
        }
        graph.walk(&ctx, pool, &mut NoObserver);
        assert_eq!(graph.outbox(0).len(), 5);
    }
    for graph in &mut graphs {
        for (_, stage) in graph.stages() {
            stage.finish().unwrap();
        }
    }
}

#[test]
fn dropped_packets_are_written_with_their_reason_by_all_workers() {
    let folder = OutputFolder::new();
    two_workers(folder.0.path());
    let mut written = folder.read().packets;
    written.sort_by_key(|packet| packet.nanos);
    assert_eq!(written.len(), 20);
    for (at, packet) in written.iter().enumerate() {
        let (byte, worker) = (at as u64 / 2, at as u64 % 2);
        assert_eq!(packet.nanos, 1_700_000_000_000_000_000 + byte * 1000 + worker);
        assert_eq!(packet.bytes, [byte as u8; 60]);
        let comment = if byte % 2 == 1 { "odd.denied" } else { "through" };
        assert_eq!(packet.comment.as_deref(), Some(comment));
    }
}

/// The test does not start the writer, so the only buffer stays full.
#[test]
fn stop_of_the_run_ends_the_wait_for_a_free_buffer() {
    let folder = OutputFolder::new();
    let (mut pool, mut resources) = (pool(), Resources::new(Vec::new(), folder.0.path()));
    let mut capture: Capture = toml::from_str("file = \"out.pcapng\"\nlossless = true\nbuffers = 1").unwrap();
    capture.prepare(&mut Setup::new(&mut resources, "all", 0, 1)).unwrap();
    let node = NodeSpec {
        name: "all".to_owned(),
        kind: "capture".to_owned(),
        stage: Box::new(capture),
        next: Target::Port(0),
        outputs: Vec::new(),
        reasons: Vec::new(),
        info: StageInfo::new(),
        on_panic: OnPanic::Stop,
        drop_observer: None,
    };
    let mut graph = Graph::new(Program::new(vec![node]), 1, &pool);
    for _ in 0..3 {
        assert!(graph.entry(0).push_bytes(&[0; 60], Stamp::NONE, &mut pool));
    }
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| graph.walk(&ctx, &mut pool, &mut NoObserver));
        resources.services.stop.set();
        worker.join().unwrap();
    });
    let mut counters = Vec::new();
    graph
        .stages()
        .for_each(|(_, stage)| stage.counters(&mut |name: &str, value: u64| counters.push((name.to_owned(), value))));
    let expected = [("taken", 1), ("missed", 2), ("lost", 0), ("waiting", 1), ("waiting_max", 1)];
    assert_eq!(counters, expected.map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(graph.outbox(0).len(), 3);
}

#[test]
fn tshark_reads_the_file() {
    let folder = OutputFolder::new();
    two_workers(folder.0.path());
    let fields = ["-e", "frame.time_epoch", "-e", "frame.len", "-e", "frame.interface_name", "-e", "frame.comment"];
    let tshark = Command::new("tshark").arg("-r").arg(folder.file()).args(["-T", "fields"]).args(fields).output();
    let Ok(output) = tshark else { return skip("tshark is not installed") };
    let text = String::from_utf8_lossy(&output.stdout);
    let fault = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{fault}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 20, "{text}{fault}");
    assert!(lines.contains(&"1700000000.000001000\t60\tdrops\todd.denied"), "{text}");
    assert!(lines.contains(&"1700000000.000008001\t60\tdrops\tthrough"), "{text}");
}

#[test]
fn capture_that_needs_more_memory_than_the_host_has_is_refused() {
    let mut resources = dataplane_core::pipeline::Resources::new(Vec::new(), std::path::Path::new(""));
    let mut prepare = |buffers: usize, name: &str| {
        let mut stage: Capture = toml::from_str(&format!("file = '/dev/null'\nbuffers = {buffers}")).unwrap();
        stage.prepare(&mut Setup::new(&mut resources, name, 0, 2)).map_err(|problem| problem.to_string())
    };
    assert_eq!(prepare(16, "small"), Ok(()));
    resources.memory.available = Some(4 << 30);
    let mut prepare = |buffers: usize, name: &str| {
        let mut stage: Capture = toml::from_str(&format!("file = '/dev/null'\nbuffers = {buffers}")).unwrap();
        stage.prepare(&mut Setup::new(&mut resources, name, 0, 2)).map_err(|problem| problem.to_string())
    };
    let error = prepare(65_536, "large").unwrap_err();
    let start = "buffers: this needs 8220 MiB of memory, and other stages need 3 MiB, but the host has 4096 MiB";
    assert_eq!(error, format!("{start}; help: reduce `buffers`, or `snaplen`"));
    assert!((2 << 20..3 << 20).contains(&resources.memory.stages["small"]));
}
