//! Tests of streams that send the frames of a capture. The captures have frames of real programs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dataplane::clock::HostClock;
use dataplane::header::MacAddr;
use dataplane::mem::{Batch, PageKind, Pool, Region, RegionSpec, SlotLayout};
use dataplane::runtime::PortLanes;
use dataplane::soft::Capture;
use dataplane::units::Nanos;
use dataplane_bench::report::{RateReport, environment, rate_report};
use dataplane_bench::sender::Sender;
use dataplane_bench::setup::{self, Sources};
use dataplane_bench::signature::{Key, Signature};
use dataplane_bench::stream::{Stream, StreamPort};
use dataplane_bench::tester::{Tester, TesterOptions};
use dataplane_testing::{Folder, capture};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};

const KEY: Key = Key::new(7);
const FILES: [&str; 7] =
    ["arp-and-ping.pcap", "dns.pcap", "fragments.pcap", "http.pcap", "ipv6-and-nd.pcap", "mixed.pcap", "vlan.pcap"];
/// The key `rewrite` with a new prefix for each address in the captures.
const REWRITE: &str = "rewrite = { '192.0.2.0/24' = '10.1.0.0/24', '198.51.100.0/24' = '10.2.0.0/24', \
                       '203.0.113.0/24' = '10.3.0.0/24', '2001:db8::/32' = 'fd00:1::/32' }";

fn stream(keys: &str) -> Result<Stream, String> {
    let port =
        |(name, last): (&str, u8)| StreamPort { name: name.to_owned(), mac: MacAddr([2, 0, 0, 0, 0, last]), mtu: 1500 };
    let ports: Vec<_> = [("left", 1), ("right", 2)].into_iter().map(port).collect();
    Stream::new(&toml::from_str(keys).map_err(|error| error.to_string())?, 0, &ports)
}

fn pool() -> Pool {
    let layout = SlotLayout::new(128, 1700, 64).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap()
}

/// Returns the first frames that a stream sends.
fn frames(stream: &Stream, count: usize) -> Vec<Vec<u8>> {
    let (mut sender, mut pool, mut frames) = (Sender::new(stream, 0), pool(), Vec::new());
    let mut batch = Batch::new(&pool);
    sender.start(KEY, None, 1_000_000_000, 0, 0.0);
    for _ in 0..count {
        assert!(sender.send(&mut batch, &mut pool, Nanos(77), 0));
        frames.extend(batch.iter_mut().map(|packet| packet.data().to_vec()));
        batch.free_into(&mut pool);
    }
    frames
}

/// Checks all checksums of a frame.
fn check_sums(frame: &[u8], name: &str) {
    let Ok(sliced) = SlicedPacket::from_ethernet(frame) else { return };
    let transport = sliced.transport.as_ref();
    match sliced.net.as_ref() {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            assert_eq!(header.calc_header_checksum(), header.header_checksum, "{name}");
            let found = match transport {
                Some(TransportSlice::Udp(it)) => {
                    (it.to_header().calc_checksum_ipv4(&header, it.payload()).unwrap(), it.checksum())
                }
                Some(TransportSlice::Tcp(it)) => {
                    (it.to_header().calc_checksum_ipv4(&header, it.payload()).unwrap(), it.checksum())
                }
                Some(TransportSlice::Icmpv4(it)) => (it.icmp_type().calc_checksum(it.payload()), it.checksum()),
                _ => return,
            };
            assert_eq!(found.0, found.1, "{name}");
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header().to_header();
            let found = match transport {
                Some(TransportSlice::Udp(it)) => {
                    (it.to_header().calc_checksum_ipv6(&header, it.payload()).unwrap(), it.checksum())
                }
                Some(TransportSlice::Tcp(it)) => {
                    (it.to_header().calc_checksum_ipv6(&header, it.payload()).unwrap(), it.checksum())
                }
                Some(TransportSlice::Icmpv6(it)) => {
                    let sum = it.icmp_type().calc_checksum(header.source, header.destination, it.payload());
                    (sum.unwrap(), it.checksum())
                }
                _ => return,
            };
            assert_eq!(found.0, found.1, "{name}");
        }
        _ => {}
    }
}

#[test]
fn frames_have_other_addresses_and_right_checksums_and_signatures_where_they_fit() {
    for file in FILES {
        let path = capture(file);
        let original = Capture::read(&std::fs::read(&path).unwrap()).unwrap();
        let stream = stream(&format!("capture = '{}'\n{REWRITE}", path.display())).unwrap();
        // Read two rounds, because the stream starts again after the last frame.
        let sent = frames(&stream, 2 * original.len());
        let mut sequence = 0;
        for (number, frame) in sent.iter().enumerate() {
            let (before, name) = (original.frame(number % original.len()), format!("{file} frame {number}"));
            assert_eq!(frame.len(), before.len(), "{name}");
            assert_eq!((&frame[..6], &frame[6..12]), (&[2, 0, 0, 0, 0, 2][..], &[2, 0, 0, 0, 0, 1][..]), "{name}");
            check_sums(frame, &name);
            let payload = |frame: &[u8]| match SlicedPacket::from_ethernet(frame).ok()?.transport? {
                TransportSlice::Udp(it) => Some(it.payload().to_vec()),
                TransportSlice::Tcp(it) => Some(it.payload().to_vec()),
                TransportSlice::Icmpv4(it) => Some(it.payload().to_vec()),
                TransportSlice::Icmpv6(it) => Some(it.payload().to_vec()),
                TransportSlice::Igmp(_) => None,
            };
            let (old, new) = (payload(before).unwrap_or_default(), payload(frame).unwrap_or_default());
            let signature = Signature::find(frame, KEY).map(|found| found.signature);
            assert_eq!(signature.is_some(), old.len() >= 18, "{name}");
            if let Some(signature) = signature {
                assert_eq!((signature.sequence, signature.sent), (sequence, 77), "{name}");
                sequence += 1;
                assert_eq!(old[..old.len() - 18], new[..new.len() - 18], "{name}");
            } else {
                assert_eq!(old, new, "{name}");
            }
            for prefix in [[192, 0, 2], [198, 51, 100], [203, 0, 113]] {
                let has = |frame: &[u8]| match SlicedPacket::from_ethernet(frame).ok()?.net? {
                    NetSlice::Ipv4(ip) => {
                        Some(ip.header().source()[..3] == prefix || ip.header().destination()[..3] == prefix)
                    }
                    _ => None,
                };
                assert_ne!(has(frame), Some(true), "{name}");
            }
        }
        assert!(sequence > 0 || file == "arp-and-ping.pcap", "{file} has no frame with room for a signature");
    }
}

/// Writes a capture with frames of the shortest length at the given times in microseconds.
fn write_capture(folder: &Folder, times: &[u32]) -> std::path::PathBuf {
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];
    for time in times {
        for word in [time / 1_000_000, time % 1_000_000, 60, 60] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0; 60]);
    }
    folder.write("times.pcap", file)
}

#[test]
fn frames_keep_the_times_of_the_file_at_the_factor() {
    let folder = Folder::new();
    let path = write_capture(&folder, &[5_000_000, 5_010_000, 5_040_000]);
    let due = |keys: &str, rate: f64| {
        let stream = stream(&format!("capture = '{}'\n{keys}", path.display())).unwrap();
        let rates = setup::rates(std::slice::from_ref(&stream), None, &[None, None]).unwrap();
        assert!((rates[0].unwrap() / rate - 1.0).abs() < 1e-9, "{rates:?}");
        let (mut sender, mut pool, mut times) = (Sender::new(&stream, 0), pool(), Vec::new());
        let mut batch = Batch::new(&pool);
        sender.start(KEY, rates[0], 1_000_000_000, 1_000_000_000, 0.0);
        for _ in 0..5 {
            let next = sender.next_due().unwrap();
            assert!(sender.is_due(next + 1) && sender.send(&mut batch, &mut pool, Nanos(0), next));
            times.push((next as f64 / 1e5).round() / 10.0);
            batch.free_into(&mut pool);
        }
        times
    };
    // The times are in milliseconds. The first frame follows the last frame after the mean time of 20 ms.
    assert_eq!(due("", 50.0), [0.0, 10.0, 40.0, 60.0, 70.0]);
    assert_eq!(due("speed = 2.0", 100.0), [0.0, 5.0, 20.0, 30.0, 35.0]);
    assert_eq!(due("rate = '1kpps'", 1000.0), [0.0, 0.5, 2.0, 3.0, 3.5]);
    assert_eq!(due("rate = '1kpps'\nspacing = 'constant'", 1000.0), [0.0, 1.0, 2.0, 3.0, 4.0]);
}

/// Sends captures over a cable for half a second.
fn trial(file: &Path, keys: &str) -> RateReport {
    let folder = Folder::new();
    let config = format!(
        "[runtime]\nworkers = 1\nhugepages = 'none'\nidle = 'sleep'\n\
         [[port]]\nname = 'left'\ndevice = 'soft'\nlink = {{ kind = 'loopback', peer = 'right' }}\n\
         [[stream]]\ncapture = '{}'\n\
         [[port]]\nname = 'right'\ndevice = 'soft'\nlink = {{ kind = 'loopback', peer = 'left' }}\n{keys}\n",
        file.display()
    );
    let sources = Sources { config: Some(folder.write("bench.toml", config)), ..Sources::default() };
    let (assembly, set) = setup::load(&sources).unwrap();
    let clock = HostClock::new();
    let lanes = PortLanes::open(assembly, &clock, || false).unwrap();
    let options = TesterOptions {
        late: Duration::from_secs(30),
        settle: Duration::from_millis(50),
        catch_up: Duration::from_secs(60),
        ..TesterOptions::default()
    };
    let mut tester = Tester::new(lanes, clock, set.streams(None).unwrap(), &[None], options, Arc::default());
    let rates = [Some(10_000.0)];
    let outcome = tester.trial(&rates, Duration::from_millis(500)).unwrap();
    let names = vec![("left".to_owned(), String::new()), ("right".to_owned(), String::new())];
    let report = rate_report("rate", tester.streams(), &rates, &names, &outcome, &environment(None));
    tester.close().unwrap();
    assert_eq!(report.unaccounted, 0, "{report}");
    report
}

#[test]
fn frames_with_a_signature_are_judged_and_the_others_are_counted() {
    let report = trial(&capture("http.pcap"), "");
    let total = &report.total;
    assert!(total.sent > 100 && total.unsigned > 100, "{report}");
    assert_eq!((total.received, total.lost, total.corrupted), (total.sent, 0, 0), "{report}");
    assert_eq!(report.ports[1].foreign, total.unsigned, "{report}");
    let unsigned = total.unsigned;
    let expected = format!(
        "NOT JUDGED: {unsigned} packets were sent without a signature, and {unsigned} packets without a signature arrived"
    );
    assert!(report.to_string().contains(&expected), "{report}");
}

#[test]
fn losses_and_wrong_bits_of_captured_frames_are_counted() {
    let report = trial(&capture("dns.pcap"), "faults = { seed = 1, loss = 0.02 }");
    let faults = report.ports[1].counters["faults"];
    let unsigned = report.total.unsigned - report.ports[1].foreign;
    assert!(report.total.lost > 10, "{report}");
    assert_eq!(report.total.lost + unsigned, faults, "{report}");
}

#[test]
fn mistakes_have_a_fix() {
    let folder = Folder::new();
    let dns = capture("dns.pcap");
    let dns = dns.display();
    let text = folder.write("text", "this is no capture, but a text that is long enough");
    let empty = write_capture(&folder, &[]);
    for (keys, expected) in [
        ("capture = '/no such file'".to_owned(), "`capture` /no such file: No such file or directory"),
        (format!("capture = '{}'", text.display()), "not a capture"),
        (format!("capture = '{}'", empty.display()), "has no frames; help:"),
        (format!("capture = '{dns}'\nsize = 100"), "help: remove `size`"),
        (format!("capture = '{dns}'\nspeed = 0.0"), "`speed` is 0.0; help: use a factor above 0"),
        (format!("capture = '{dns}'\nspeed = 1e300"), "`speed` is 1e300; help: use a factor above 0, and at most 1e9"),
        (
            format!("capture = '{dns}'\nrewrite = {{ '10.0.0.0/8' = '10.0.0.0/9' }}"),
            "help: use two prefixes of the same",
        ),
        (format!("capture = '{dns}'\nsrc_mac = ['02:00:00:00:00:01', '02:00:00:00:00:02']"), "help: use one address"),
        ("speed = 2.0".to_owned(), "help: add `capture = FILE`"),
        ("spacing = 'file'".to_owned(), "help: add `capture = FILE`"),
    ] {
        let why = stream(&keys).unwrap_err();
        assert!(why.contains(expected), "{keys}: {why}");
    }
}

/// The checksum of ICMPv6 covers the addresses and all fragments, so the test checks reassembled packets.
#[test]
fn checksum_of_a_fragmented_packet_fits_the_other_addresses() {
    let path = capture("fragments.pcap");
    let count = Capture::read(&std::fs::read(&path).unwrap()).unwrap().len();
    let stream = stream(&format!("capture = '{}'\n{REWRITE}", path.display())).unwrap();
    let (mut whole, mut packets) = (Vec::new(), 0);
    for frame in frames(&stream, count) {
        let ip = &frame[14..];
        // Skip all other frames than fragments of ICMPv6 (58) whose fragment header (44) directly follows the IPv6
        // header.
        if frame[12..14] != [0x86, 0xdd] || ip[6] != 44 || ip[40] != 58 {
            continue;
        }
        let length = usize::from(u16::from_be_bytes([ip[4], ip[5]]));
        whole.extend_from_slice(&ip[48..40 + length]);
        // The lowest bit is set if more fragments follow.
        if ip[43] & 1 == 0 {
            let pseudo = [&ip[8..40], &(whole.len() as u32).to_be_bytes(), &[0, 0, 0, 58]].concat();
            let words = |bytes: &[u8]| {
                bytes.chunks(2).map(|it| u32::from(it[0]) << 8 | u32::from(*it.get(1).unwrap_or(&0))).sum::<u32>()
            };
            assert_eq!((words(&pseudo) + words(&whole)) % 0xffff, 0, "packet {packets}");
            assert_eq!(ip[8], 0xfd);
            whole.clear();
            packets += 1;
        }
    }
    assert!(packets > 1, "{packets}");
}

/// Returns the two streams of the conversations in a capture.
fn sides(keys: &str) -> Result<[Stream; 2], String> {
    let port =
        |(name, last): (&str, u8)| StreamPort { name: name.to_owned(), mac: MacAddr([2, 0, 0, 0, 0, last]), mtu: 1500 };
    let ports: Vec<_> = [("left", 1), ("right", 2)].into_iter().map(port).collect();
    let streams = Stream::all(&toml::from_str(keys).map_err(|error| error.to_string())?, 0, &ports)?;
    streams.try_into().map_err(|streams: Vec<Stream>| format!("{} streams", streams.len()))
}

#[test]
fn conversation_is_sent_from_both_sides_at_the_times_of_the_capture() {
    let path = capture("http.pcap");
    let keys = format!(
        "capture = '{}'\nclients = ['192.0.2.0/24']\n{REWRITE}\nspeed = 2.0\nreply_mac = '02:00:00:00:00:09'",
        path.display()
    );
    let [client, server] = sides(&keys).unwrap();
    assert_eq!([(client.from, client.to), (server.from, server.to)], [(0, 1), (1, 0)]);
    assert_eq!([client.name.as_str(), server.name.as_str()], ["stream-0-clients", "stream-0-servers"]);
    let original = Capture::read(&std::fs::read(&path).unwrap()).unwrap();
    let is_ip = |index: &usize| original.frame(*index)[12..14] == [8, 0];
    let indexes: Vec<usize> = (0..original.len()).filter(is_ip).collect();
    let start = original.time(0).0;
    let expected = |source: [u8; 4]| -> Vec<u64> {
        let of_side = indexes.iter().filter(|index| original.frame(**index)[26..30] == source);
        of_side.map(|index| (original.time(*index).0 - start) / 2).collect()
    };
    for (stream, old, new, macs) in [
        (&client, [192, 0, 2, 10], [10, 1, 0, 10], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]),
        (&server, [198, 51, 100, 20], [10, 2, 0, 20], [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 2]),
    ] {
        let times = expected(old);
        assert!(times.len() > 10);
        let mut sender = Sender::new(stream, 0);
        let (mut pool, rate) = (pool(), setup::rates(std::slice::from_ref(stream), None, &[None, None]).unwrap()[0]);
        let mut batch = Batch::new(&pool);
        sender.start(KEY, rate, 1 << 40, 1 << 40, 0.5);
        for (number, time) in times.iter().enumerate() {
            let due = sender.next_due().unwrap();
            // Each time has a rounding error of less than 1 us after at most 100 frames.
            assert!(due.abs_diff(*time) < 1_000, "frame {number}: {due}, not {time}");
            assert!(sender.send(&mut batch, &mut pool, Nanos(77), due));
            let frame = batch.iter_mut().map(|packet| packet.data().to_vec()).next().unwrap();
            batch.free_into(&mut pool);
            assert_eq!((&frame[..12], &frame[26..30]), (&macs[..], &new[..]), "frame {number}");
            check_sums(&frame, "http.pcap");
        }
    }
}

#[test]
fn mistakes_of_conversations_have_a_fix() {
    let http = capture("http.pcap");
    let with = |keys: &str| sides(&format!("capture = '{}'\n{keys}", http.display())).unwrap_err();
    for (keys, expected) in [
        ("clients = ['10.0.0.0/8']", "has no IP packets from `clients`; help: change the prefixes of `clients`"),
        ("clients = ['0.0.0.0/0', '::/0']", "has no IP packets from `clients`"),
        ("clients = ['192.0.2.0/24']\nrate = 5", "`rate` does not fit; help: use `speed`"),
        ("clients = ['192.0.2.0/24']\nspacing = 'constant'", "help: remove `spacing`"),
        ("reply_mac = '02:00:00:00:00:09'", "help: add the prefixes of the clients"),
    ] {
        let why = with(keys);
        assert!(why.contains(expected), "{keys}: {why}");
    }
    assert!(sides("clients = ['10.0.0.0/8']").unwrap_err().contains("help: add `capture = FILE`"));
    let both = sides(&format!("capture = '{}'\nclients = ['192.0.2.0/24']", http.display())).unwrap();
    let why = setup::rates(&both, Some("5kpps".parse().unwrap()), &[None, None]).unwrap_err().to_string();
    assert!(why.contains("help: use `bench rate` or `bench soak` without --rate"), "{why}");
}
