//! Tests of AF_PACKET and TAP links in private network namespaces.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::links::datagram;
use super::xdp::{ETHER_TYPE, replace_by_move, veth};
use super::*;
use crate::link::{Interface, set_option};

use crate::upgrade::HandedQueue;
use dataplane_core::error::Error;
use dataplane_testing::namespace::{in_namespace, ip};
use dataplane_testing::{PATIENCE, skip, wait_until};

use WcStatus::{GeneralErr, LocLenErr, Success};

pub(super) fn device(link: LinkSpec, mtu: u32) -> Result<SoftDevice, Error> {
    SoftDevice::new(SoftSpec { mtu, ..SoftSpec::new("soft", link) })
}

/// Returns a queue pair on an interface, with 16 posted receives.
fn rig(link: LinkSpec, mtu: u32) -> Rig {
    receiving(Rig::on(device(link, mtu).unwrap(), HostClock::manual(), Plan::default()))
}

pub(super) fn receiving(rig: Rig) -> Rig {
    let mut rig = rig.ready();
    rig.post_recv_run(&(0..16).collect::<Vec<_>>()).unwrap();
    rig
}

pub(super) fn packet(interface: &str) -> Rig {
    rig(LinkSpec::Packet(PacketSpec::new(interface)), 1500)
}

/// Returns a numbered frame with this length and these VLAN tags. The frame has the EtherType `ETHER_TYPE`, which
/// normal traffic does not use.
fn numbered(number: u8, len: usize, tags: &[[u8; 4]]) -> Vec<u8> {
    let mut frame = frame(number, len);
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 8]);
    for (tag, place) in tags.iter().zip([12, 16]) {
        frame[place..place + 4].copy_from_slice(tag);
    }
    let ether_type = 12 + 4 * tags.len();
    frame[ether_type..ether_type + 2].copy_from_slice(&ETHER_TYPE.to_be_bytes());
    frame
}

fn is_ours(frame: &[u8]) -> bool {
    frame.windows(2).take(21).any(|bytes| bytes == ETHER_TYPE.to_be_bytes())
}

impl Rig {
    pub(super) fn send_one(&mut self, frame: &[u8]) -> WcStatus {
        let desc = self.put(40, frame);
        self.post_send_run(&[desc], 7).unwrap();
        self.sent()[0].1
    }

    /// Returns the received test frames and posts their receives again.
    pub(super) fn frames(&mut self) -> Vec<Result<Vec<u8>, WcStatus>> {
        let mut frames = Vec::new();
        for (wr_id, status, len) in self.received() {
            let slot = (wr_id - 1000) as u32;
            let frame = if status == Success { Ok(self.get(slot, len as usize)) } else { Err(status) };
            self.post_recv_run(&[slot]).unwrap();
            if frame.as_ref().map_or(true, |frame| is_ours(frame) || frame.len() == 60) {
                frames.push(frame);
            }
        }
        frames
    }

    fn next_frame(&mut self) -> Result<Vec<u8>, WcStatus> {
        let mut frames = Vec::new();
        wait_until("a frame", || {
            frames.extend(self.frames());
            !frames.is_empty()
        });
        assert_eq!(frames.len(), 1);
        frames.remove(0)
    }

    fn expect_event(&self, kind: EventKind) {
        let mut raised = Vec::new();
        wait_until("an event", || {
            raised.extend(self.events());
            raised.contains(&kind)
        });
    }

    /// Sends until a frame arrives, because the peer may not be ready yet.
    fn send_until_received(&mut self, other: &mut Rig) {
        wait_until("a frame arrives", || {
            self.send_one(&numbered(1, 99, &[]));
            !other.frames().is_empty()
        });
        // Discard the frames that are still in transit.
        wait_until("no frame is in transit", || other.frames().is_empty());
    }
}

/// With wall-clock completions, each frame has the kernel's timestamp instead of the time of the poll. The device's
/// clock does not advance in this test, so a timestamp of the poll would be wrong.
#[test]
fn frames_are_stamped_on_arrival() {
    in_namespace(|| {
        veth(1, 1500);
        let mut a = packet("va");
        for hardware_stamps in [false, true] {
            // A veth pair has no hardware clock, so the kernel takes the timestamps.
            let link = LinkSpec::Packet(PacketSpec { hardware_stamps, ..PacketSpec::new("vb") });
            let plan = Plan { fields: PollFields::STANDARD | PollFields::WALLCLOCK, ..Plan::default() };
            let mut b = receiving(Rig::on(device(link, 1500).unwrap(), HostClock::manual(), plan));
            let described = b.device.describe_link();
            assert_eq!(described.as_deref(), hardware_stamps.then_some("vb (timestamps: kernel)"));
            let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
            let mut last = now();
            for number in 0..10 {
                assert_eq!(a.send_one(&numbered(number, 60, &[])), Success);
                wait_until("the frame", || b.frames().contains(&Ok(numbered(number, 60, &[]))));
                let stamp = b.run.ticks[b.run.len - 1].0;
                assert!((last..=now()).contains(&stamp), "{stamp} is not from {last} to {}", now());
                last = stamp;
            }
        }
    });
}

#[test]
fn frames_arrive_unchanged() {
    in_namespace(|| {
        veth(1, 1500);
        let (mut a, mut b) = (packet("va"), packet("vb"));
        let tags: [&[[u8; 4]]; 4] =
            [&[], &[[0x81, 0, 0x60, 7]], &[[0x88, 0xa8, 0, 5]], &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 7]]];
        for (nth, (len, tags)) in [60, 61, 1514].into_iter().flat_map(|len| tags.map(|tags| (len, tags))).enumerate() {
            let frame = numbered(nth as u8, len, tags);
            for forth in [true, false] {
                let (from, to) = if forth { (&mut a, &mut b) } else { (&mut b, &mut a) };
                assert_eq!(from.send_one(&frame), Success);
                assert_eq!(to.next_frame().unwrap(), frame, "{len} bytes, tags {tags:?}");
            }
        }
        // A burst arrives in order, and the sender does not receive its own frames.
        let burst: Vec<_> = (0..16).map(|at| a.put(32 + at, &numbered(at as u8, 60, &[]))).collect();
        a.post_send_run(&burst, 0).unwrap();
        assert_eq!(a.sent(), [(15, Success)]);
        let mut got = Vec::new();
        wait_until("a burst", || {
            got.extend(b.frames().into_iter().map(|frame| frame.unwrap()[20]));
            got.len() == 16
        });
        assert_eq!(got, (0..16).map(|at: u8| at + 20).collect::<Vec<_>>());
        assert_eq!((a.frames(), a.device.counters().tx_packets), (vec![], 12 + 16));
    });
}

#[test]
fn frames_longer_than_a_ring_entry_are_received() {
    in_namespace(|| {
        veth(1, 9000);
        let (mut a, mut b) = (packet("va"), rig(LinkSpec::Packet(PacketSpec::new("vb")), 500));
        for (len, tags) in [(1400, &[][..]), (1404, &[[0x81, 0, 0, 7]]), (60, &[])] {
            let frame = numbered(3, len, tags);
            assert_eq!(a.send_one(&frame), Success);
            assert_eq!(b.next_frame().unwrap(), frame);
        }
        assert_eq!(b.device.counters().rx_missed, 0);
    });
}

#[test]
fn frame_longer_than_its_receive_fails_only_that_receive() {
    in_namespace(|| {
        veth(1, 1500);
        let mut a = packet("va");
        let spec = LinkSpec::Packet(PacketSpec::new("vb"));
        let mut b = Rig::on(device(spec, 1500).unwrap(), HostClock::manual(), Plan::default()).ready();
        let short = b.sge(0, 100);
        b.post_recv(1000, &[short]).unwrap();
        b.post_recv_run(&[1]).unwrap();
        a.send_one(&numbered(1, 101, &[]));
        assert_eq!(b.next_frame(), Err(LocLenErr));
        a.send_one(&numbered(2, 101, &[]));
        assert_eq!(b.next_frame().unwrap(), numbered(2, 101, &[]));
        assert_eq!((b.device.counters().rx_too_long, b.qp.state()), (1, QpState::Rts));
    });
}

#[test]
fn frames_that_overflow_the_ring_are_counted() {
    in_namespace(|| {
        veth(1, 1500);
        let mut a = packet("va");
        let mut b = rig(LinkSpec::Packet(PacketSpec { ring: 64, ..PacketSpec::new("vb") }), 1500);
        for number in 0..200 {
            assert_eq!(a.send_one(&numbered(number, 60, &[])), Success);
        }
        let mut got = 0;
        wait_until("all 200 frames are received or missed", || {
            got += b.frames().len() as u64;
            got + b.device.counters().rx_missed >= 200
        });
        let missed = b.device.counters().rx_missed;
        assert!(got >= 64 && missed > 0, "{got} received, {missed} missed");
    });
}

#[test]
fn flows_are_spread_over_the_queues() {
    in_namespace(|| {
        veth(1, 1500);
        let mut a = packet("va");
        let shared = device(LinkSpec::Packet(PacketSpec::new("vb")), 1500).unwrap();
        let mut queues = [0, 1].map(|index| {
            let plan = Plan { queue: (index, 2), ..Plan::default() };
            receiving(Rig::on(shared.clone(), HostClock::manual(), plan))
        });
        let mut got = [0, 1].map(|_| Vec::new());
        for round in 0..2 {
            for flow in 0..32 {
                assert_eq!(a.send_one(&datagram(flow, round)), Success);
            }
            wait_until("every datagram", || {
                for (queue, got) in queues.iter_mut().zip(&mut got) {
                    got.extend(queue.frames().into_iter().map(|frame| frame.unwrap()[35]));
                }
                got[0].len() + got[1].len() == 32 * (usize::from(round) + 1)
            });
        }
        let flows = got.map(|got| got.into_iter().collect::<BTreeSet<_>>());
        assert!(flows.iter().all(|flows| !flows.is_empty()) && flows[0].is_disjoint(&flows[1]), "{flows:?}");
        assert_eq!(flows[0].len() + flows[1].len(), 32);
    });
}

#[test]
fn port_follows_the_state_of_its_interface() {
    in_namespace(|| {
        veth(1, 1500);
        let (mut a, mut b) = (packet("va"), packet("vb"));
        a.send_until_received(&mut b);
        // The interface goes down, and the peer loses its carrier.
        ip("link set vb down");
        a.expect_event(EventKind::PortErr);
        b.expect_event(EventKind::PortErr);
        assert_eq!((a.send_one(&numbered(1, 60, &[])), a.qp.state()), (GeneralErr, QpState::Rts));
        assert_eq!((a.device.counters().tx_link_down, a.device.port(1).unwrap().state), (1, PortState::Down));
        ip("link set vb up");
        a.expect_event(EventKind::PortActive);
        b.expect_event(EventKind::PortActive);
        a.send_until_received(&mut b);
        b.send_until_received(&mut a);
        // The interface is removed and created again.
        ip("link del va");
        a.expect_event(EventKind::PortErr);
        b.expect_event(EventKind::PortErr);
        assert_eq!(b.send_one(&numbered(1, 60, &[])), GeneralErr);
        veth(1, 1500);
        a.expect_event(EventKind::PortActive);
        b.expect_event(EventKind::PortActive);
        a.send_until_received(&mut b);
        b.send_until_received(&mut a);
        // The MAC address changes and the MTU becomes smaller.
        ip("link set va address 02:00:00:00:00:aa");
        a.expect_event(EventKind::GidChange);
        assert_eq!(a.device.gid().0[8..], [0, 0, 0, 0xff, 0xfe, 0, 0, 0xaa]);
        ip("link set va mtu 1000");
        assert_eq!((a.send_one(&numbered(1, 1200, &[])), a.device.counters().tx_refused), (GeneralErr, 1));
        a.send_until_received(&mut b);
    });
}

/// Frames that a kernel interface delivers are received, even if the device does not know yet that the link is up.
#[test]
fn frames_are_received_while_the_link_counts_as_down() {
    in_namespace(|| {
        veth(1, 1500);
        let (mut a, mut b, mut witness) = (packet("va"), packet("vb"), packet("vb"));
        for number in 0..100 {
            let frames = [numbered(number, 60, &[]), numbered(number, 61, &[])];
            frames.iter().for_each(|frame| assert_eq!(a.send_one(frame), Success));
            // The kernel delivers the first frame to all sockets before it delivers the second frame to any socket.
            wait_until("the second frame arrives", || witness.frames().contains(&Ok(frames[1].clone())));
            b.device.set_link(false);
            assert!(b.frames().contains(&Ok(frames[0].clone())), "frame {number} is not received");
        }
    });
}

/// The kernel sets IFF_RUNNING later than the carrier. In the mode `dormant`, the kernel does not set the flag at all.
#[test]
fn carrier_is_known_before_the_operational_state() {
    in_namespace(|| {
        veth(1, 1500);
        ip("link set va mode dormant");
        for (state, expected) in [("down", false), ("up", true)] {
            ip(&format!("link set va {state}"));
            let carrier = || Interface::need("va").unwrap().has_carrier;
            wait_until("the carrier follows the interface", || carrier() == expected);
        }
        ip("link set vb down");
        assert!(!Interface::need("va").unwrap().has_carrier);
    });
}

/// An interface moves to another network namespace, and another interface gets its name and its index.
#[test]
fn interface_with_the_index_of_a_moved_interface_is_used() {
    in_namespace(|| {
        veth(1, 1500);
        let (mut a, mut b) = (packet("va"), packet("vb"));
        a.send_until_received(&mut b);
        let _other = replace_by_move();
        a.send_until_received(&mut b);
        b.send_until_received(&mut a);
    });
}

/// Returns a queue pair, and the channel that its receive completion queue uses.
fn listening(link: LinkSpec) -> (Rig, SoftChannel) {
    let mut rig = Rig::on(device(link, 1500).unwrap(), HostClock::manual(), Plan::default());
    let channel = rig.device.create_channel().unwrap();
    let cq = CqSpec { depth: 64, fields: PollFields::STANDARD, ..CqSpec::default() };
    (rig.recv, _) = rig.device.create_cq(&cq, Some(&channel)).unwrap();
    let spec = QpSpec::new(QpType::RawPacket, Plan::default().caps);
    rig.qp = rig.pd.create_qp(&spec, &rig.send, &rig.recv, None).unwrap();
    rig.qp.bind_slots(&rig.mr, rig.layout, 1000).unwrap();
    (receiving(rig), channel)
}

/// Checks that each frame wakes a sleeping thread. Another thread sends frames one by one. This thread sleeps on the
/// channel until a frame arrives, and receives the frame.
fn wakes(far: &'static str, rig: &mut Rig, channel: &SoftChannel) {
    let (go, rx) = std::sync::mpsc::channel();
    let sender = std::thread::spawn(move || {
        let mut far = packet(far);
        while let Ok(number) = rx.recv() {
            assert_eq!(far.send_one(&numbered(number, 60, &[])), Success);
        }
    });
    for number in 0..100 {
        go.send(number).unwrap();
        // The frame may arrive before or after each of these steps.
        let mut frames = rig.frames();
        while frames.is_empty() {
            rig.recv.arm(false).unwrap();
            frames = rig.frames();
            if frames.is_empty() {
                assert_eq!(channel.wait(PATIENCE), Ok(Some(rig.recv.number())), "frame {number} raises no event");
                frames = rig.frames();
            }
        }
        assert_eq!(frames, [Ok(numbered(number, 60, &[]))]);
    }
    drop(go);
    sender.join().unwrap();
}

#[test]
fn arriving_frame_wakes_a_sleeping_thread() {
    with_taps(|| {
        veth(1, 1500);
        let (mut b, channel) = listening(LinkSpec::Packet(PacketSpec::new("vb")));
        wakes("va", &mut b, &channel);
        let (mut tap, other) = listening(LinkSpec::Tap(TapSpec::new("dp0")));
        wakes("dp0", &mut tap, &other);
        // The descriptor is readable from the arrival of the frame until the event is taken.
        let is_readable = |channel: &SoftChannel| {
            let mut fds = [PollFd::from_borrowed_fd(channel.descriptor().unwrap(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
        };
        let mut a = packet("va");
        while channel.wait(Duration::ZERO).unwrap().is_some() {}
        assert!(!is_readable(&channel));
        a.send_one(&numbered(1, 60, &[]));
        wait_until("the frame", || !b.frames().is_empty());
        assert!(!is_readable(&channel), "a queue that is not armed raises no event");
        b.recv.arm(false).unwrap();
        a.send_one(&numbered(2, 60, &[]));
        wait_until("an event", || is_readable(&channel));
        assert!(
            channel.wait(Duration::ZERO).unwrap().is_some() && !is_readable(&channel),
            "after one arming, the queue raises only one event"
        );
        // While the interface is missing, an armed queue raises events periodically. The events wake the worker, which
        // then waits on the file descriptors of the new interface.
        ip("link del va");
        b.expect_event(EventKind::PortErr);
        b.recv.arm(false).unwrap();
        assert_eq!(channel.wait(PATIENCE), Ok(Some(b.recv.number())));
        veth(1, 1500);
        b.expect_event(EventKind::PortActive);
        packet("va").send_until_received(&mut b);
        wakes("va", &mut b, &channel);
        // A completion queue for sends raises its event after a short time, even if the queue has no completion.
        let cq = CqSpec { depth: 4, ..CqSpec::default() };
        let (mut sends, _) = b.device.create_cq(&cq, Some(&channel)).unwrap();
        let spec = QpSpec::new(QpType::RawPacket, Plan::default().caps);
        let _qp = b.pd.create_qp(&spec, &sends, &sends, None).unwrap();
        sends.arm(false).unwrap();
        wait_until("an event", || channel.wait(PATIENCE) == Ok(Some(sends.number())));
    });
}

/// Runs `work` like `in_namespace`, if the system supports TAP devices.
fn with_taps(work: impl FnOnce()) {
    if std::path::Path::new("/dev/net/tun").exists() {
        in_namespace(work);
    } else {
        skip("no /dev/net/tun");
    }
}

#[test]
fn created_tap_is_removed_with_its_device() {
    with_taps(|| {
        let mac = [2, 0, 0, 0, 0, 0x77];
        let mut tap = rig(LinkSpec::Tap(TapSpec { mac: Some(mac), ..TapSpec::new("dp0") }), 1400);
        let made = Interface::need("dp0").unwrap();
        assert_eq!((made.mac, made.mtu, made.is_set_up), (mac, 1400, true));
        let mut host = packet("dp0");
        host.send_until_received(&mut tap);
        for len in [60, 1414] {
            let frame = numbered(5, len, &[[0x81, 0, 0, 7]]);
            assert_eq!(host.send_one(&frame), Success);
            assert_eq!(tap.next_frame().unwrap(), frame);
            assert_eq!(tap.send_one(&frame), Success);
            assert_eq!(host.next_frame().unwrap(), frame);
        }
        ip("link set dp0 down");
        tap.expect_event(EventKind::PortErr);
        assert_eq!((tap.send_one(&numbered(1, 60, &[])), tap.qp.state()), (GeneralErr, QpState::Rts));
        ip("link set dp0 up");
        tap.expect_event(EventKind::PortActive);
        host.send_until_received(&mut tap);
        drop(tap);
        wait_until("the interface is removed", || Interface::find("dp0").unwrap().is_none());
    });
}

#[test]
fn existing_tap_is_attached_and_kept() {
    with_taps(|| {
        ip("tuntap add dev dp0 mode tap");
        ip("link set dp0 mtu 1300");
        let mut tap = rig(LinkSpec::Tap(TapSpec::new("dp0")), 1500);
        assert_eq!(Interface::need("dp0").unwrap().mtu, 1300);
        packet("dp0").send_until_received(&mut tap);
        // The interface is removed and created again.
        ip("link del dp0");
        tap.expect_event(EventKind::PortErr);
        assert_eq!(tap.send_one(&numbered(1, 60, &[])), GeneralErr);
        ip("tuntap add dev dp0 mode tap multi_queue");
        ip("link set dp0 up");
        tap.expect_event(EventKind::PortActive);
        packet("dp0").send_until_received(&mut tap);
        drop(tap);
        assert!(Interface::find("dp0").unwrap().is_some());
    });
}

/// A carrier on a TAP that the data plane has not opened yet means that another program uses the TAP. The data plane
/// then logs a warning.
#[test]
fn tap_has_a_carrier_only_while_a_program_uses_it() {
    with_taps(|| {
        ip("tuntap add dev dp0 mode tap multi_queue");
        ip("link set dp0 up");
        let is_used = || Interface::need("dp0").unwrap().has_carrier;
        assert!(!is_used());
        let taps = [(); 2].map(|()| rig(LinkSpec::Tap(TapSpec::new("dp0")), 1500));
        assert!(is_used());
        drop(taps);
        wait_until("no program uses the TAP", || !is_used());
    });
}

#[test]
fn unusable_interfaces_are_refused_with_the_reason() {
    with_taps(|| {
        veth(1, 1500);
        let error = |link| device(link, 1500).unwrap_err().to_string();
        let missing = error(LinkSpec::Packet(PacketSpec::new("no-such")));
        assert!(missing.contains("no interface `no-such`") && missing.contains("`ip link`"), "{missing}");
        let no_tap = error(LinkSpec::Tap(TapSpec::new("va")));
        assert!(no_tap.contains("`va` is not a TAP"), "{no_tap}");
        let tap = rig(LinkSpec::Tap(TapSpec::new("dp0")), 1500);
        assert!(tap.device.port(1).is_ok());
        ip("tuntap add dev one mode tap");
        let taken = rig(LinkSpec::Tap(TapSpec::new("one")), 1500);
        let busy = error(LinkSpec::Tap(TapSpec::new("one")));
        assert!(busy.contains("another program uses the interface"), "{busy}");
        drop(taken);
    });
}

/// Takes the queue of `old` for another program.
fn detach(old: &mut Rig) -> Vec<HandedQueue> {
    old.device.hand_over().unwrap().detach(1, true).unwrap();
    let mut queues = None;
    wait_until("the queue stops receiving", || {
        assert!(old.frames().is_empty());
        queues = old.device.hand_over().unwrap().detached().unwrap();
        queues.is_some()
    });
    queues.unwrap()
}

/// Hands the queue of `old` over to a device with the link `link`. `host` sends frames during the hand-over.
fn hand_over(host: &mut Rig, mut old: Rig, mut link: LinkSpec) {
    host.send_until_received(&mut old);
    let queues = detach(&mut old);
    assert_eq!(host.send_one(&numbered(9, 80, &[])), Success);
    assert!(old.frames().is_empty());
    // The other program has not received yet, so the old queue continues without loss.
    drop(queues);
    old.device.hand_over().unwrap().resume(false).unwrap();
    assert_eq!(old.next_frame().unwrap(), numbered(9, 80, &[]));
    let queues = detach(&mut old);
    for number in 10..14 {
        assert_eq!(host.send_one(&numbered(number, 80, &[])), Success);
    }
    assert!(old.frames().is_empty());
    link.take_over(true);
    let mut new = rig(link, 1500);
    assert!(new.frames().is_empty());
    assert!(new.device.hand_over().unwrap().attach(Vec::new()).is_err(), "the number of queues differs");
    new.device.hand_over().unwrap().attach(queues).unwrap();
    // Both programs can send while only the new program receives.
    let frame = numbered(20, 80, &[]);
    assert_eq!((old.send_one(&frame), new.send_one(&frame)), (Success, Success));
    drop(old);
    let mut received = Vec::new();
    wait_until("all frames", || {
        received.extend(new.frames().into_iter().map(Result::unwrap));
        received.len() >= 4
    });
    assert_eq!(received, (10..14).map(|number| numbered(number, 80, &[])).collect::<Vec<_>>());
    assert_eq!(new.device.counters().rx_missed, 0);
    host.send_until_received(&mut new);
}

#[test]
fn queue_of_a_packet_link_continues_in_another_program() {
    in_namespace(|| {
        veth(1, 1500);
        let old = packet("vb");
        hand_over(&mut packet("va"), old, LinkSpec::Packet(PacketSpec::new("vb")));
    });
}

/// The kernel passes a frame that it has merged from several datagrams (GSO), and the port splits the frame again.
#[test]
fn queue_of_a_packet_link_is_handed_over_after_all_segments_of_a_frame() {
    in_namespace(|| {
        veth(1, 1500);
        ip("addr add 10.0.0.1/24 dev va
            neigh add 10.0.0.2 lladdr 02:00:00:00:00:09 dev va nud permanent");
        let link = LinkSpec::Packet(PacketSpec::new("vb"));
        let mut old = Rig::on(device(link, 1500).unwrap(), HostClock::manual(), Plan::default()).ready();
        let socket = std::net::UdpSocket::bind("10.0.0.1:7").unwrap();
        let descriptor = socket.try_clone().unwrap().into();
        set_option(&descriptor, libc::SOL_UDP, libc::UDP_SEGMENT, &100).unwrap();
        socket.send_to(&[7; 500], "10.0.0.2:7").unwrap();
        let receive_one = |old: &mut Rig| {
            old.post_recv_run(&[0]).unwrap();
            wait_until("a segment", || old.received().iter().any(|(_, status, _)| *status == Success));
        };
        receive_one(&mut old);
        old.device.hand_over().unwrap().detach(1, true).unwrap();
        for segment in 2..=5 {
            receive_one(&mut old);
            let is_detached = old.device.hand_over().unwrap().detached().unwrap().is_some();
            assert!(!is_detached, "segment {segment}");
        }
        old.post_recv_run(&[0]).unwrap();
        assert_eq!(old.received(), []);
        assert!(old.device.hand_over().unwrap().detached().unwrap().is_some());
        assert_eq!((old.device.counters().rx_split, old.device.counters().rx_missed), (1, 0));
    });
}

#[test]
fn frames_that_another_program_leaves_in_the_ring_of_a_packet_link_are_counted() {
    in_namespace(|| {
        veth(1, 1500);
        let (mut host, mut old) = (packet("va"), packet("vb"));
        host.send_until_received(&mut old);
        let queues = detach(&mut old);
        let mut link = LinkSpec::Packet(PacketSpec::new("vb"));
        link.take_over(true);
        let mut new = rig(link, 1500);
        new.device.hand_over().unwrap().attach(queues).unwrap();
        host.send_until_received(&mut new);
        let missed = old.device.counters().rx_missed;
        for number in 0..3 {
            assert_eq!(host.send_one(&numbered(number, 80, &[])), Success);
        }
        old.device.hand_over().unwrap().resume(true).unwrap();
        host.send_until_received(&mut old);
        assert_eq!(old.device.counters().rx_missed - missed, 3);
        drop(new);
    });
}

/// A descriptor that is no packet socket with the expected ring can map memory of any format, so `attach` refuses the
/// descriptor.
#[test]
fn only_a_packet_socket_with_the_format_of_the_ring_is_taken_over() {
    in_namespace(|| {
        veth(1, 1500);
        let mut old = packet("vb");
        let queues = detach(&mut old);
        let mut link = LinkSpec::Packet(PacketSpec::new("vb"));
        link.take_over(true);
        let new = rig(link, 1500);
        let [HandedQueue { queue, position, .. }] = &queues[..] else { panic!("the link has one queue") };
        let memory = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, position[4] * position[5]).unwrap();
        // The kernel uses version 1 of the ring unless the socket selects another version.
        let other = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
        for descriptor in [memory, other] {
            let (position, posted) = (position.clone(), Vec::new());
            let queue = HandedQueue { queue: *queue, descriptors: vec![descriptor], position, posted };
            let error = new.device.hand_over().unwrap().attach(vec![queue]).unwrap_err().to_string();
            assert!(error.contains("checking the socket of the other program"), "{error}");
        }
    });
}

#[test]
fn queue_of_a_tap_continues_in_another_program() {
    with_taps(|| {
        let link = LinkSpec::Tap(TapSpec::new("dp0"));
        let old = rig(link.clone(), 1500);
        hand_over(&mut packet("dp0"), old, link);
        wait_until("the interface is removed with the last program", || Interface::find("dp0").unwrap().is_none());
    });
}
