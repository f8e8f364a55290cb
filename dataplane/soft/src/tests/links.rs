//! Tests of loopback, generator and pcap links.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use dataplane_core::error::Error;
use dataplane_testing::Folder;

use WcStatus::Success;

fn pair(of: u16) -> (Rig, Vec<Rig>) {
    let (a, b) = LoopbackLink::pair();
    let clock = HostClock::manual();
    let sender = Rig::with(SoftSpec::new("a", LinkSpec::Loopback(a)), Plan::default()).ready();
    let device =
        SoftDevice::new(SoftSpec { clock: clock.clone(), ..SoftSpec::new("b", LinkSpec::Loopback(b)) }).unwrap();
    let receiver = |index| {
        let plan = Plan { queue: (index, of), ..Plan::default() };
        Rig::on(device.clone(), clock.clone(), plan).ready()
    };
    (sender, (0..of).map(receiver).collect())
}

/// Returns a UDP frame. `flow` is its source port, and `number` is the first byte of its payload.
pub(super) fn datagram(flow: u16, number: u8) -> Vec<u8> {
    let mut frame = vec![0; 60];
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    frame[34..36].copy_from_slice(&flow.to_be_bytes());
    frame[42] = number;
    frame
}

#[test]
fn flows_are_spread_over_queues_and_keep_their_order() {
    let (mut sender, mut receivers) = pair(4);
    let mut seen = [None; 64];
    for round in 0..8 {
        for receiver in &mut receivers {
            receiver.post_recv_run(&(0..16).collect::<Vec<_>>()).unwrap();
        }
        for flow in 0..16u16 {
            let desc = sender.put(1, &datagram(flow, round));
            sender.post_send_run(&[desc], 0).unwrap();
            sender.sent();
        }
        let mut count = 0;
        for (queue, receiver) in receivers.iter_mut().enumerate() {
            let got = receiver.received();
            count += got.len();
            for (wr_id, status, len) in got {
                assert_eq!((status, len), (Success, 60));
                let bytes = receiver.get((wr_id - 1000) as u32, 60);
                let flow = usize::from(bytes[35]);
                assert!(seen[flow].is_none_or(|(before, number)| before == queue && number + 1 == bytes[42]));
                seen[flow] = Some((queue, bytes[42]));
            }
            receiver.go(QpState::Reset);
            receiver.start();
        }
        assert_eq!(count, 16);
    }
    let used = (0..4).filter(|queue| seen.iter().flatten().any(|(seen, _)| seen == queue)).count();
    assert!(used > 1, "all 16 flows arrive on one queue");
}

#[test]
fn threads_at_the_ends_of_a_cable_lose_no_frame_if_the_receiver_keeps_up() {
    let (mut sender, mut receivers) = pair(1);
    let receiver = receivers.pop().unwrap();
    let count = 2_000u32;
    let (tx, rx) = std::sync::mpsc::sync_channel(8);
    let worker = std::thread::spawn(move || {
        let mut rig = receiver;
        rig.post_recv_run(&(0..16).collect::<Vec<_>>()).unwrap();
        let mut sum = 0u32;
        let mut seen = 0;
        while seen < count {
            for (wr_id, status, len) in rig.received() {
                assert_eq!((status, len), (Success, 60));
                let slot = (wr_id - 1000) as u32;
                sum += u32::from(rig.get(slot, 60)[42]);
                seen += 1;
                rig.post_recv_run(&[slot]).unwrap();
                tx.send(()).unwrap();
            }
            std::thread::yield_now();
        }
        sum
    });
    let mut expected = 0;
    for number in 0..count {
        expected += u32::from(number as u8);
        let desc = sender.put(1, &datagram(1, number as u8));
        sender.post_send_run(&[desc], 0).unwrap();
        sender.sent();
        if number >= 4 {
            rx.recv().unwrap();
        }
    }
    assert_eq!(rx.iter().take(4).count(), 4);
    assert_eq!(worker.join().unwrap(), expected);
}

#[test]
fn link_that_is_down_carries_no_frames() {
    let mut rig = Rig::new(reflecting()).ready();
    rig.post_recv_run(&[1, 2]).unwrap();
    rig.device.set_link(false);
    rig.device.set_link(false);
    assert!(!rig.device.port(1).unwrap().is_active());
    let desc = rig.put(5, &frame(1, 60));
    rig.post_send_run(&[desc], 0).unwrap();
    assert_eq!((rig.sent(), rig.received()), (vec![(0, Success)], vec![]));
    rig.device.set_link(true);
    assert_eq!(rig.events(), [EventKind::PortErr, EventKind::PortActive]);
    rig.post_send_run(&[desc], 1).unwrap();
    assert_eq!(rig.received(), [(1001, Success, 60)]);
}

fn generating(spec: GeneratorSpec) -> SoftSpec {
    SoftSpec::new("soft", LinkSpec::Generator(spec))
}

#[test]
fn generator_stops_after_its_count() {
    for copy in [false, true] {
        let mut rig =
            Rig::new(generating(GeneratorSpec { count: Some(10), rewrite: copy, ..GeneratorSpec::default() })).ready();
        rig.post_recv_run(&[3, 4, 5, 6]).unwrap();
        assert_eq!(rig.received().len(), 4);
        assert!(!rig.qp.source_ended());
        rig.post_recv_run(&(10..26).collect::<Vec<_>>()).unwrap();
        assert_eq!(rig.received().last(), Some(&(1015, Success, 64)));
        assert!(rig.qp.source_ended());
        assert_eq!(rig.received(), []);
        let frame = rig.get(15, 64);
        assert_eq!((&frame[12..14], &frame[30..34]), (&[8, 0][..], &[198, 19, 0, 1][..]));
        assert_eq!((rig.device.counters().rx_packets, rig.device.counters().rx_bytes), (10, 640));
    }
}

#[test]
fn frame_sizes_follow_their_weights_with_both_poll_functions() {
    for copy in [false, true] {
        let spec =
            GeneratorSpec { sizes: vec![(64, 3), (1500, 1)], flows: 2, rewrite: copy, ..GeneratorSpec::default() };
        let mut rig = Rig::new(generating(spec.clone())).ready();
        rig.post_recv_run(&(0..16).collect::<Vec<_>>()).unwrap();
        let got = rig.received();
        assert_eq!(got.iter().filter(|(_, _, len)| *len == 1500).count(), 4, "copy {copy}");
        for (wr_id, _, len) in got {
            let frame = rig.get((wr_id - 1000) as u32, len as usize);
            assert_eq!(u32::from(u16::from_be_bytes([frame[16], frame[17]])), len - 14);
        }
        let mut rig = Rig::new(generating(spec)).ready();
        rig.post_recv_run(&(0..16).collect::<Vec<_>>()).unwrap();
        let mut cursor = rig.recv.start_poll().unwrap().unwrap();
        let mut lengths = vec![cursor.get().byte_len().unwrap()];
        while cursor.advance().unwrap() {
            lengths.push(cursor.get().byte_len().unwrap());
        }
        assert_eq!((lengths.len(), lengths.iter().filter(|len| **len == 1500).count()), (16, 4));
    }
}

#[test]
fn paced_generator_follows_the_clock() {
    let mut rig = Rig::new(generating(GeneratorSpec { rate: Some(1_000_000), ..GeneratorSpec::default() })).ready();
    rig.post_recv_run(&(0..16).collect::<Vec<_>>()).unwrap();
    assert_eq!(rig.received().len(), 0);
    rig.clock.advance(Nanos(5_000));
    assert_eq!(rig.received().len(), 5);
    rig.clock.advance(Nanos(20_000));
    assert_eq!(rig.received().len(), 11, "only 11 receives are still posted");
    assert_eq!(rig.device.counters().rx_out_of_buffer, 9);
}

#[test]
fn each_queue_generates_its_own_flows() {
    let spec = generating(GeneratorSpec { flows: 64, count: Some(640), ..GeneratorSpec::default() });
    let clock = HostClock::manual();
    let device = SoftDevice::new(SoftSpec { clock: clock.clone(), ..spec }).unwrap();
    let mut ports = std::collections::HashMap::new();
    for queue in 0..3 {
        let plan = Plan { queue: (queue, 3), ..Plan::default() };
        let mut rig = Rig::on(device.clone(), clock.clone(), plan).ready();
        while !rig.qp.source_ended() {
            rig.post_recv_run(&[1]).unwrap();
            for _ in rig.received() {
                *ports.entry((queue, rig.get(1, 64)[34..36].to_vec())).or_insert(0) += 1;
            }
        }
    }
    assert_eq!((ports.len(), ports.values().all(|count| *count == 10)), (64, true));
}

fn playing(input: Option<PathBuf>, output: Option<PathBuf>) -> PcapSpec {
    PcapSpec { input, output, ..PcapSpec::default() }
}

fn record(path: &Path, frames: &[Vec<u8>]) {
    let spec = SoftSpec::new("soft", LinkSpec::Pcap(playing(None, Some(path.to_path_buf()))));
    let mut rig = Rig::new(spec).ready();
    for frame in frames {
        rig.clock.advance(Nanos(1_000_001));
        let desc = rig.put(1, frame);
        rig.post_send_run(&[desc], 0).unwrap();
        assert_eq!(rig.sent(), [(0, Success)]);
    }
    rig.device.finish().unwrap();
}

fn play(rig: &mut Rig) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while !rig.qp.source_ended() {
        rig.post_recv_run(&[1, 2, 3]).unwrap();
        for (wr_id, status, len) in rig.received() {
            assert_eq!(status, Success);
            frames.push(rig.get((wr_id - 1000) as u32, len as usize));
        }
        rig.go(QpState::Reset);
        rig.start();
    }
    frames
}

#[test]
fn captures_round_trip_in_both_formats() {
    let frames: Vec<_> = (0..7).map(|i| frame(i, 60 + usize::from(i))).collect();
    for name in ["both.pcap", "both.pcapng"] {
        let folder = Folder::new();
        let path = folder.file(name);
        record(&path, &frames);
        let spec = PcapSpec { times: Some(2), ..playing(Some(path.clone()), None) };
        let mut rig = Rig::new(SoftSpec::new("soft", LinkSpec::Pcap(spec))).ready();
        assert_eq!(play(&mut rig), [&frames[..], &frames[..]].concat(), "{name}");
        assert!(rig.device.wire_error().is_none());

        let spec = PcapSpec { pace: Pace::File, ..playing(Some(path.clone()), None) };
        let mut rig = Rig::new(SoftSpec::new("soft", LinkSpec::Pcap(spec))).ready();
        rig.post_recv_run(&[1, 2, 3]).unwrap();
        assert_eq!(rig.received().len(), 1, "the first frame is due immediately");
        rig.clock.advance(Nanos(1_000_000));
        assert_eq!(rig.received().len(), 0);
        rig.clock.advance(Nanos(1));
        assert_eq!(rig.received().len(), 1);
    }
}

#[test]
fn damaged_capture_is_replayed_up_to_the_damage() {
    let frames: Vec<_> = (0..4).map(|i| frame(i, 60)).collect();
    for (name, header, each) in [("cut.pcap", 24, 76), ("cut.pcapng", 60, 92)] {
        let folder = Folder::new();
        let path = folder.file(name);
        record(&path, &frames);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), header + 4 * each);
        fs::write(&path, &bytes[..header + 3 * each + 20]).unwrap();
        let spec = SoftSpec::new("soft", LinkSpec::Pcap(playing(Some(path.clone()), None)));
        let mut rig = Rig::new(spec).ready();
        assert_eq!(play(&mut rig), frames[..3]);
        let error = rig.device.wire_error().unwrap().to_string();
        let place = format!("damaged at byte {}", header + 3 * each);
        assert!(error.contains(&place) && error.contains(name) && error.contains("3 frames"), "{error}");
    }
}

#[test]
fn file_that_is_not_an_ethernet_capture_is_refused() {
    let folder = Folder::new();
    let path = folder.file("refused");
    let open = || SoftDevice::new(SoftSpec::new("soft", LinkSpec::Pcap(playing(Some(path.clone()), None))));
    assert!(matches!(open(), Err(Error::File { .. })), "the file does not exist");
    let mut raw_ip = 0xa1b2_c3d4u32.to_be_bytes().to_vec();
    raw_ip.extend([0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0, 101]);
    for (bytes, wanted) in
        [(&b""[..], "not a capture"), (b"hello, this is no capture", "not a capture"), (&raw_ip, "link type is 101")]
    {
        fs::write(&path, bytes).unwrap();
        let error = open().unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn microseconds_and_swapped_byte_order_are_supported() {
    let folder = Folder::new();
    let path = folder.file("big-endian.pcap");
    let mut bytes = 0xa1b2_c3d4u32.to_be_bytes().to_vec();
    bytes.extend([0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0, 1]);
    for micros in [5u32, 8] {
        for word in [1, micros, 60, 60] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend(frame(micros as u8, 60));
    }
    fs::write(&path, bytes).unwrap();
    let spec = PcapSpec { pace: Pace::File, times: None, ..playing(Some(path.clone()), None) };
    let mut rig = Rig::new(SoftSpec::new("soft", LinkSpec::Pcap(spec))).ready();
    rig.post_recv_run(&[1, 2, 3, 4]).unwrap();
    assert_eq!(rig.received().len(), 1);
    rig.clock.advance(Nanos(2_999));
    assert_eq!(rig.received().len(), 0);
    rig.clock.advance(Nanos(1));
    assert_eq!(rig.received().len(), 2, "the queue pair receives the second frame, and then the first frame again");
    assert_eq!((rig.get(1, 60), rig.get(2, 60)), (frame(5, 60), frame(8, 60)));
    assert!(!rig.qp.source_ended());
}

/// A logger that reads the error of a device.
struct ErrorLogger {
    device: SoftDevice,
    errors: Arc<Mutex<Vec<String>>>,
}

impl Subscriber for ErrorLogger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        let error = self.device.wire_error().map_or(String::new(), |error| error.to_string());
        self.errors.lock().unwrap().push(error);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message about a write error is logged without the lock of the file.
#[test]
fn logger_can_read_the_error_of_the_device() {
    let mut rig = Rig::new(SoftSpec::new("soft", LinkSpec::Pcap(playing(None, Some("/dev/full".into()))))).ready();
    let desc = rig.put(1, &frame(1, 1500));
    let errors = Arc::new(Mutex::new(Vec::new()));
    let logger = ErrorLogger { device: rig.device.clone(), errors: errors.clone() };
    tracing::subscriber::with_default(logger, || {
        for wr_id in 0..300 {
            rig.post_send_run(&[desc], wr_id).unwrap();
            rig.sent();
        }
    });
    let errors = errors.lock().unwrap();
    assert!(matches!(&errors[..], [error] if error.starts_with("/dev/full: ")), "{errors:?}");
}

/// If the disk is full, sends fail, the queue pair stays in RTS, and the error names the file.
#[test]
fn full_disk_fails_the_sends_and_is_reported() {
    let mut rig = Rig::new(SoftSpec::new("soft", LinkSpec::Pcap(playing(None, Some("/dev/full".into()))))).ready();
    let desc = rig.put(1, &frame(1, 1500));
    let mut failed = false;
    for wr_id in 0..300 {
        rig.post_send_run(&[desc], wr_id).unwrap();
        failed |= rig.sent() == [(wr_id, WcStatus::GeneralErr)];
    }
    assert!(failed && rig.qp.state() == QpState::Rts);
    for error in [rig.device.wire_error().unwrap(), rig.device.finish().unwrap_err()] {
        assert!(error.to_string().starts_with("/dev/full: ") && error.to_string().contains("os error 28"), "{error}");
    }
    let rig = Rig::new(SoftSpec::new("soft", LinkSpec::Pcap(playing(None, Some("/dev/full".into()))))).ready();
    assert!(
        rig.device.wire_error().is_none() && rig.device.finish().is_err(),
        "the device reports the write error only at its end"
    );
}
