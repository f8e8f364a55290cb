//! Tests of AF_XDP links on both ends of a veth pair, in a private network namespace.

use std::process::Command;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::*;
use crate::upgrade::HandedQueue;
use dataplane_testing::namespace::{in_namespace, ip};
use dataplane_testing::program::RunningProgram;
use dataplane_testing::{PATIENCE, wait_until};

/// The EtherType of test frames, which is reserved for experiments (IEEE 802). The kernel therefore sends no such
/// frames.
pub(super) const ETHER_TYPE: u16 = 0x88b5;

/// Creates a veth pair, `va` and `vb`, with both ends up.
pub(crate) fn veth(queues: u32, mtu: u32) {
    let queues = format!("numrxqueues {queues} numtxqueues {queues}");
    ip(&format!("link add name va mtu {mtu} {queues} type veth peer name vb mtu {mtu} {queues}"));
    for end in ["va", "vb"] {
        ip(&format!("link set {end} addrgenmode none"));
        ip(&format!("link set {end} up"));
    }
}

/// Moves `va` and `vb` to another network namespace, and creates a veth pair with the same names and indexes. The other
/// namespace ends with the returned process.
pub(crate) fn replace_by_move() -> RunningProgram {
    let other = RunningProgram::start(Command::new("unshare").args(["--net", "sleep", "1000"]));
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let pid = other.id();
    wait_until("the process has its own network namespace", || namespace(&pid.to_string()) != namespace("self"));
    let [va, vb] = ["va", "vb"].map(|name| crate::link::Interface::need(name).unwrap().index);
    // Run the commands as one batch, so that the watchers find the new interfaces at their next check.
    ip(&format!(
        "link set va netns {pid}\nlink set vb netns {pid}\nlink add name va index {va} type veth peer name vb index \
         {vb}\nlink set va addrgenmode none\nlink set vb addrgenmode none\nlink set va up\nlink set vb up"
    ));
    other
}

fn has_program(interface: &str) -> bool {
    let output = Command::new("ip").args(["-details", "link", "show", interface]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("prog/xdp")
}

fn link(interface: &str) -> XdpSpec {
    let selector = Selector { ether_type: Some(ETHER_TYPE), ..Selector::default() };
    let filter = Filter { take: vec![selector], except: Vec::new() };
    XdpSpec { filter, ..XdpSpec::new(interface) }
}

fn device(link: XdpSpec, mtu: u32) -> dataplane_core::Result<SoftDevice> {
    let name = link.interface.clone();
    SoftDevice::new(SoftSpec { mtu, ..SoftSpec::new(&name, LinkSpec::Xdp(link)) })
}

/// One end of the pair: a raw-packet queue pair with its own slots.
struct End {
    device: SoftDevice,
    mr: SoftMr,
    layout: SlotLayout,
    send: SoftCq,
    recv: SoftCq,
    /// The channel of the receive queue.
    channel: SoftChannel,
    qp: SoftQp,
    run: Box<Completions>,
}

const DEPTH: u32 = 64;
/// The number of slots.
const SLOTS: usize = 256;
/// The `wr_id` of the receive for slot 0. Each further slot has the next number.
const RECV: u64 = 1 << 40;

impl End {
    fn new(device: SoftDevice, queue: (u16, u16), stride: usize) -> Self {
        Self::with(device, queue, stride, PollFields::STANDARD)
    }

    fn with(device: SoftDevice, queue: (u16, u16), stride: usize, fields: PollFields) -> Self {
        Self::on(device, queue, stride, fields, region(stride * SLOTS))
    }

    fn on(device: SoftDevice, queue: (u16, u16), stride: usize, fields: PollFields, memory: Arc<Region>) -> Self {
        let pd = device.alloc_pd().unwrap();
        let cq = CqSpec { depth: 2 * DEPTH, fields, ..CqSpec::default() };
        let (send, _) = device.create_cq(&cq, None).unwrap();
        let channel = device.create_channel().unwrap();
        let (recv, _) = device.create_cq(&cq, Some(&channel)).unwrap();
        let caps = QpCaps { send_depth: DEPTH, recv_depth: DEPTH, send_sges: 1, recv_sges: 1, inline: 0 };
        let spec = QpSpec { queue, ..QpSpec::new(QpType::RawPacket, caps) };
        let qp = pd.create_qp(&spec, &send, &recv, None).unwrap();
        let headroom = usize::from(XDP_HEADROOM);
        let layout = SlotLayout::new(headroom, stride - headroom - dataplane_core::mem::GUARD, SLOTS).unwrap();
        assert_eq!(layout.stride() as usize, stride);
        let mr = pd.register(memory, Access::LOCAL_WRITE).unwrap();
        Self { device, mr, layout, send, recv, channel, qp, run: Completions::new() }
    }

    fn go(&mut self, state: QpState) -> Result<(), VerbError> {
        let (attributes, mask) = match state {
            QpState::Init => QpAttributes::init(QpType::RawPacket, 1, 0),
            other => QpAttributes::to(other),
        };
        self.qp.modify(&attributes, mask)
    }

    /// Opens the queue pair, and polls once, because the link takes frames from the kernel only after the first poll.
    fn start(&mut self, first: u32) {
        self.open(first);
        assert_eq!(self.received(), []);
    }

    /// Moves the queue pair from RESET to RTS, and posts no receives.
    fn open_without_receives(&mut self) {
        self.qp.bind_slots(&self.mr, self.layout, RECV).unwrap();
        [QpState::Init, QpState::Rtr, QpState::Rts].into_iter().for_each(|state| self.go(state).unwrap());
    }

    /// Moves the queue pair from RESET to RTS, and posts `DEPTH` receives into the slots from `first`.
    fn open(&mut self, first: u32) {
        self.qp.bind_slots(&self.mr, self.layout, RECV).unwrap();
        self.go(QpState::Init).unwrap();
        self.post(&(first..first + DEPTH).collect::<Vec<_>>()).unwrap();
        self.go(QpState::Rtr).unwrap();
        self.go(QpState::Rts).unwrap();
    }

    fn post(&mut self, slots: &[u32]) -> Result<(), PostError> {
        // SAFETY: tests do not access posted slots.
        unsafe { self.qp.post_recv_run(slots) }
    }

    fn send(&mut self, run: &[Desc], first: u64) -> Result<(), PostError> {
        // SAFETY: tests do not access posted slots.
        unsafe { self.qp.post_send_run(&RunSource::new(run).run(), first) }
    }

    fn at(&self, slot: u32) -> *mut u8 {
        assert!(slot < self.layout.count());
        let offset = slot as usize * self.layout.stride() as usize + usize::from(XDP_HEADROOM);
        // SAFETY: the slot is below the count, and the region contains all slots.
        unsafe { self.mr.region().base().add(offset).as_ptr() }
    }

    /// Writes a frame to a slot, and returns the descriptor of the frame.
    fn put(&self, slot: u32, bytes: &[u8]) -> Desc {
        assert!(bytes.len() <= self.layout.room() as usize);
        // SAFETY: the bytes fit, and tests write only slots that they have not posted.
        unsafe { self.at(slot).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Desc { slot, offset: XDP_HEADROOM, len: bytes.len() as u16 }
    }

    /// Returns the first bytes of the frame in a slot.
    fn get(&self, slot: u32, len: u32) -> Vec<u8> {
        // SAFETY: tests read only slots whose receives have completed.
        unsafe { std::slice::from_raw_parts(self.at(slot), len as usize) }.to_vec()
    }

    /// Polls the receive queue. Returns the `wr_id`, the status and the length of each completion.
    fn received(&mut self) -> Vec<(u64, WcStatus, u32)> {
        self.recv.poll_run(&mut self.run, MAX_RUN).unwrap();
        completions_of(&self.run)
    }

    /// Polls the send queue. Returns the `wr_id` and the status of each completion.
    fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        self.send.poll_run(&mut self.run, MAX_RUN).unwrap();
        completions_of(&self.run).into_iter().map(|(wr_id, status, _)| (wr_id, status)).collect()
    }
}

/// Returns a frame of at least 18 bytes. Its content depends on `number`.
fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xff; 12];
    bytes.extend(ETHER_TYPE.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend((18..len.max(18)).map(|at| (at as u32).wrapping_mul(number.wrapping_add(7)) as u8));
    bytes.truncate(len.max(18));
    bytes
}

/// Sends `count` frames from one end to the other, posts each completed receive again, and compares the frames.
fn carry(from: &mut End, to: &mut End, count: u32, length: impl Fn(u32) -> usize) {
    let deadline = Instant::now() + PATIENCE;
    let (mut next, mut over, mut seen) = (0u32, 0u32, 0u32);
    while seen < count || over < count {
        assert!(
            Instant::now() < deadline,
            "{next} posted, {over} sent, {seen} of {count} received: {:?}",
            to.device.counters()
        );
        // Keep fewer frames in transit than there are receives, so that no frame is lost.
        let burst = (count - next).min(16).min(DEPTH - (next - over)).min(DEPTH / 4 - (next - seen).min(DEPTH / 4));
        if burst > 0 {
            let run: Vec<Desc> = (next..next + burst)
                .map(|number| from.put(128 + number % 128, &frame(number, length(number))))
                .collect();
            from.send(&run, u64::from(next)).unwrap();
            next += burst;
        }
        for (wr_id, status) in from.sent() {
            assert_eq!(status, WcStatus::Success);
            over = wr_id as u32 + 1;
        }
        let mut slots = Vec::new();
        for (wr_id, status, len) in to.received() {
            assert_eq!(status, WcStatus::Success);
            let slot = (wr_id - RECV) as u32;
            let expected = frame(seen, length(seen));
            assert_eq!(len as usize, expected.len(), "frame {seen}");
            assert_eq!(to.get(slot, len), expected, "frame {seen}");
            seen += 1;
            slots.push(slot);
        }
        to.post(&slots).unwrap();
    }
}

/// Sends until a frame arrives, because a restarted queue pair may be bound to its queue only after some polls. When
/// the function returns, no frame is in transit.
fn reach(from: &mut End, to: &mut End) {
    let deadline = Instant::now() + PATIENCE;
    let send = |from: &mut End, len| {
        let desc = from.put(200, &frame(0, len));
        from.send(&[desc], 1).unwrap();
        while from.sent().is_empty() {
            assert!(Instant::now() < deadline, "nothing is sent");
        }
    };
    let arrived = |to: &mut End, len| {
        let received = to.received();
        to.post(&received.iter().map(|(wr_id, ..)| (wr_id - RECV) as u32).collect::<Vec<_>>()).unwrap();
        assert!(Instant::now() < deadline, "nothing arrives: {:?}", to.device.counters());
        received.iter().any(|(.., received)| *received >= len)
    };
    while !arrived(to, 60) {
        send(from, 60);
    }
    // Frames keep their order. When the longer frame has arrived, no earlier frame is in transit.
    send(from, 61);
    while !arrived(to, 61) {}
}

#[test]
fn frames_arrive_unchanged_and_every_slot_is_returned() {
    in_namespace(|| {
        veth(1, 1500);
        let busy = Some(BusyPoll::default());
        for (mode, busy_poll) in [(Mode::Auto, None), (Mode::Native, busy), (Mode::Generic, None)] {
            let of = |name| device(XdpSpec { mode, busy_poll, ..link(name) }, 1500).unwrap();
            let (mut a, mut b) = (End::new(of("va"), (0, 1), 2048), End::new(of("vb"), (0, 1), 2048));
            a.start(0);
            b.start(0);
            carry(&mut a, &mut b, 3_000, |number| 18 + (number as usize * 37) % 1497);
            carry(&mut b, &mut a, 300, |_| 60);
            let (sent, received) = (a.device.counters(), b.device.counters());
            assert_eq!((sent.tx_packets, received.rx_packets), (3_000, 3_000));
            assert_eq!(sent.tx_bytes, received.rx_bytes);
            let expected = if mode == Mode::Generic { "va (generic, copy)" } else { "va (native, copy)" };
            assert_eq!(a.device.describe_link().as_deref(), Some(expected));
            // In ERR, every posted receive completes once.
            b.go(QpState::Err).unwrap();
            let mut flushed: Vec<u64> = Vec::new();
            while flushed.len() < DEPTH as usize {
                let some = b.received();
                assert!(!some.is_empty() && some.iter().all(|(_, status, _)| *status == WcStatus::WrFlushErr));
                flushed.extend(some.iter().map(|(wr_id, ..)| wr_id - RECV));
            }
            assert_eq!(b.received(), []);
            flushed.sort_unstable();
            assert_eq!(flushed, (0..u64::from(DEPTH)).collect::<Vec<_>>());
            // The queue pair can be started again, also with other slots.
            b.go(QpState::Reset).unwrap();
            b.start(100);
            reach(&mut a, &mut b);
            carry(&mut a, &mut b, 200, |_| 900);
            assert!(has_program("va") && has_program("vb"));
            drop((a, b));
            wait_until("no program is attached", || !has_program("va") && !has_program("vb"));
        }
    });
}

/// Returns the queue of an end that stops, because another program takes the queue over.
fn detach(end: &mut End) -> Vec<HandedQueue> {
    end.device.hand_over().unwrap().detach(1, true).unwrap();
    assert_eq!(end.device.hand_over().unwrap().detached().unwrap().map(|_| ()), None, "the queue pair has not stopped");
    end.go(QpState::Err).unwrap();
    assert_eq!(end.received(), [], "the kernel still writes to the posted slots");
    end.device.hand_over().unwrap().detached().unwrap().unwrap()
}

/// Receives `DEPTH` frames, and posts the slots again.
fn receive_all(end: &mut End) {
    let mut left = DEPTH;
    wait_until("the frames arrive", || {
        for (wr_id, status, _) in end.received() {
            assert_eq!(status, WcStatus::Success);
            end.post(&[(wr_id - RECV) as u32]).unwrap();
            left -= 1;
        }
        left == 0
    });
}

/// Sends frames with these numbers from the slots 128 and above.
fn send_numbered(end: &mut End, numbers: std::ops::Range<u32>) {
    let run: Vec<Desc> = numbers.map(|number| end.put(128 + number, &frame(number, 60))).collect();
    end.send(&run, 0).unwrap();
    wait_until("the frames are sent", || !end.sent().is_empty());
}

#[test]
fn slots_stay_posted_while_another_program_has_the_socket() {
    in_namespace(|| {
        veth(1, 1500);
        let of = |name| device(link(name), 1500).unwrap();
        let (mut a, mut b) = (End::new(of("va"), (0, 1), 2048), End::new(of("vb"), (0, 1), 2048));
        a.start(0);
        b.start(0);
        carry(&mut a, &mut b, 100, |_| 60);
        let queues = detach(&mut b);
        assert_eq!(b.go(QpState::Reset).unwrap_err().errno, libc::EBUSY);
        // These frames are still in the ring after the hand-over has failed.
        send_numbered(&mut a, 10..15);
        b.device.hand_over().unwrap().resume(true).unwrap();
        assert_eq!(b.device.counters().rx_missed, 5);
        // `queues` stands for the other program, which still has the socket.
        assert_eq!(b.received(), []);
        assert_eq!(b.go(QpState::Reset).unwrap_err().errno, libc::EBUSY);
        drop(queues);
        let mut flushed = Vec::new();
        wait_until("the kernel releases the slots", || {
            flushed.extend(b.received());
            flushed.len() == DEPTH as usize
        });
        assert!(flushed.iter().all(|(_, status, _)| *status == WcStatus::WrFlushErr));
        b.go(QpState::Reset).unwrap();
        b.start(0);
        reach(&mut a, &mut b);
        carry(&mut a, &mut b, 100, |_| 60);
        assert_eq!(b.device.counters().rx_missed, 5);
    });
}

#[test]
fn queue_that_waits_for_its_interface_is_not_handed_over() {
    in_namespace(|| {
        veth(2, 1500);
        let mut end = End::new(device(XdpSpec { queues: 2, ..link("vb") }, 1500).unwrap(), (1, 2), 2048);
        end.start(0);
        ip("link del vb");
        let mut flushed = 0;
        wait_until("every receive is flushed", || {
            flushed += end.received().len();
            flushed == DEPTH as usize
        });
        // The new interface has one queue.
        veth(1, 1500);
        wait_until("the program is attached", || has_program("vb"));
        end.go(QpState::Reset).unwrap();
        end.start(0);
        let error = end.device.hand_over().unwrap().detach(1, true).unwrap_err().to_string();
        assert!(error.contains("`vb`: cannot bind to queue 1") && error.contains("help: `ethtool -L vb"), "{error}");
    });
}

#[test]
fn idle_queue_of_a_deleted_interface_is_handed_over_only_after_its_restart() {
    in_namespace(|| {
        veth(1, 1500);
        let mut end = End::new(device(link("vb"), 1500).unwrap(), (0, 1), 2048);
        // The queue pair does not poll, like a queue pair that only sends.
        end.open(0);
        ip("link del vb");
        veth(1, 1500);
        wait_until("the program is attached", || has_program("vb"));
        end.device.hand_over().unwrap().detach(1, false).unwrap();
        end.go(QpState::Err).unwrap();
        let error = end.device.hand_over().unwrap().detached().unwrap_err().to_string();
        assert!(error.contains("the interface was created again"), "{error}");
        end.device.hand_over().unwrap().resume(false).unwrap();
        end.go(QpState::Reset).unwrap();
        end.start(0);
        assert_eq!(detach(&mut end).len(), 1);
    });
}

#[test]
fn other_descriptors_are_no_sockets_of_a_queue() {
    in_namespace(|| {
        veth(1, 1500);
        let mut end = End::new(device(link("vb"), 1500).unwrap(), (0, 1), 2048);
        end.start(0);
        let mut queues = detach(&mut end);
        drop(end);
        queues[0].descriptors.remove(0);
        queues[0].descriptors.insert(0, std::fs::File::open("/dev/zero").unwrap().into());
        let new = device(XdpSpec { takes_over: true, ..link("vb") }, 1500).unwrap();
        assert!(new.hand_over().unwrap().attach(queues).is_err());
    });
}

#[test]
fn queue_of_an_xdp_link_continues_in_another_program() {
    in_namespace(|| {
        veth(1, 1500);
        for mode in [Mode::Native, Mode::Generic] {
            let of = |name, takes_over| device(XdpSpec { mode, takes_over, ..link(name) }, 1500).unwrap();
            let bytes = 2048 * SLOTS;
            let spec = RegionSpec { bytes, pages: PageKind::Normal, strict: true, node: None };
            let memory = Arc::new(Region::allocate(spec).unwrap().0);
            let mut a = End::new(of("va", false), (0, 1), 2048);
            let mut old = End::on(of("vb", false), (0, 1), 2048, PollFields::STANDARD, memory.clone());
            a.start(0);
            old.start(0);
            carry(&mut a, &mut old, 100, |_| 60);
            // The other program ends before it takes the queue over. The old queue pair opens a new socket.
            drop(detach(&mut old));
            old.device.hand_over().unwrap().resume(true).unwrap();
            wait_until("the kernel releases the queue", || old.go(QpState::Reset).is_ok());
            old.start(0);
            reach(&mut a, &mut old);
            send_numbered(&mut a, 10..13);
            let queues = detach(&mut old);
            let posted = queues[0].posted.clone();
            assert_eq!(posted.len(), DEPTH as usize);
            send_numbered(&mut a, 13..15);
            let mut new = End::on(of("vb", true), (0, 1), 2048, PollFields::STANDARD, memory.clone());
            new.open_without_receives();
            assert_eq!(new.received(), []);
            assert!(new.device.hand_over().unwrap().attach(Vec::new()).is_err(), "the number of queues differs");
            new.device.hand_over().unwrap().attach(queues).unwrap();
            assert!(
                new.post(&[&posted[..], &[200]].concat()).is_err(),
                "more receives than the old program has posted"
            );
            drop(old);
            let mut received = Vec::new();
            wait_until("the frames that waited arrive", || {
                for (wr_id, status, len) in new.received() {
                    assert_eq!(status, WcStatus::Success);
                    received.push(new.get((wr_id - RECV) as u32, len));
                    new.post(&[(wr_id - RECV) as u32]).unwrap();
                }
                received.len() == 5
            });
            assert_eq!(received, (10..15).map(|number| frame(number, 60)).collect::<Vec<_>>());
            carry(&mut a, &mut new, 1_000, |number| 18 + (number as usize * 37) % 1497);
            carry(&mut new, &mut a, 300, |_| 60);
            assert!(has_program("vb"));
            drop((a, new));
            wait_until("no program is attached", || !has_program("va") && !has_program("vb"));
        }
    });
}

/// Returns an end that takes over the queue of `old`, and the slots of the posted receives.
fn take_over(old: &mut End, change: impl FnOnce(&mut HandedQueue)) -> (End, Vec<u32>) {
    let mut queues = detach(old);
    let posted = queues[0].posted.clone();
    change(&mut queues[0]);
    let taking = device(XdpSpec { takes_over: true, ..link("vb") }, 1500).unwrap();
    let mut new = End::on(taking, (0, 1), 2048, PollFields::STANDARD, old.mr.region().clone());
    new.open_without_receives();
    new.device.hand_over().unwrap().attach(queues).unwrap();
    (new, posted)
}

/// Returns the number of frames that the kernel has dropped because a ring of the socket was full.
fn dropped(end: &End) -> u64 {
    let counters = end.device.counters();
    counters.kernel_rx_dropped + counters.kernel_rx_ring_full
}

/// The number of frames that `overflow` sends.
const OVERFLOW: u64 = 100;

/// Sends more frames than the receiver has posted receives.
fn overflow(sender: &mut End) {
    send_numbered(sender, 0..50);
    send_numbered(sender, 50..OVERFLOW as u32);
}

#[test]
fn frames_dropped_by_full_rings_in_a_hand_over_are_counted_once() {
    in_namespace(|| {
        veth(1, 1500);
        let of = |name| device(link(name), 1500).unwrap();
        let (mut a, mut old) = (End::new(of("va"), (0, 1), 2048), End::new(of("vb"), (0, 1), 2048));
        a.start(0);
        old.start(0);
        // The kernel's counters are not 0 at the hand-over.
        overflow(&mut a);
        receive_all(&mut old);
        let received = old.device.counters().rx_packets;
        assert_eq!((received, dropped(&old)), (u64::from(DEPTH), OVERFLOW - u64::from(DEPTH)));
        let (mut new, posted) = take_over(&mut old, |_| overflow(&mut a));
        new.post(&posted).unwrap();
        receive_all(&mut new);
        assert_eq!(new.device.counters().rx_packets + dropped(&new), OVERFLOW);
        assert_eq!(dropped(&old), OVERFLOW - received, "the old program has handed over the socket");
        // The next hand-over fails, so this program also counts the frames in the ring.
        drop(old);
        let queues = detach(&mut new);
        overflow(&mut a);
        drop(queues);
        let before = dropped(&new);
        new.device.hand_over().unwrap().resume(true).unwrap();
        assert_eq!(new.device.counters().rx_missed + dropped(&new) - before, OVERFLOW);
    });
}

#[test]
fn slots_of_an_adopted_socket_stay_posted_while_the_old_program_has_the_socket() {
    in_namespace(|| {
        veth(1, 1500);
        // With fewer receives, the adoption has not ended.
        for count in [DEPTH as usize, 10] {
            let mut old = End::new(device(link("vb"), 1500).unwrap(), (0, 1), 2048);
            old.start(0);
            let (mut new, posted) = take_over(&mut old, |_| ());
            assert_eq!(new.received(), []);
            new.post(&posted[..count]).unwrap();
            assert_eq!(new.received(), []);
            new.go(QpState::Err).unwrap();
            assert_eq!(new.received(), []);
            assert_eq!(new.go(QpState::Reset).unwrap_err().errno, libc::EBUSY);
            drop(old);
            let mut flushed = 0;
            wait_until("the kernel releases the slots", || {
                flushed += new.received().len();
                flushed == count
            });
            new.go(QpState::Reset).unwrap();
        }
    });
}

/// A queue pair that neither sends nor polls stands for an idle queue of a port that only sends.
#[test]
fn idle_queue_is_handed_over_again_after_an_upgrade() {
    in_namespace(|| {
        veth(1, 1500);
        for has_receives in [true, false] {
            let mut old = End::new(device(link("vb"), 1500).unwrap(), (0, 1), 2048);
            if has_receives {
                old.open(0);
            } else {
                old.open_without_receives();
            }
            let (mut new, posted) = take_over(&mut old, |_| ());
            drop(old);
            // Without receives, the queue pair gets no call before the next upgrade.
            if has_receives {
                new.post(&posted).unwrap();
            }
            assert_eq!(detach(&mut new)[0].posted, posted);
        }
    });
}

#[test]
fn queue_without_traffic_since_an_upgrade_restarts_if_its_interface_was_deleted() {
    in_namespace(|| {
        for has_sent in [true, false] {
            veth(1, 1500);
            let mut old = End::new(device(link("vb"), 1500).unwrap(), (0, 1), 2048);
            old.open_without_receives();
            let (mut new, _) = take_over(&mut old, |_| ());
            drop(old);
            ip("link del vb");
            veth(1, 1500);
            wait_until("the program is attached", || has_program("vb"));
            if has_sent {
                let desc = new.put(200, &frame(0, 60));
                new.send(&[desc], 5).unwrap();
                assert_eq!(new.sent(), [(5, WcStatus::WrFlushErr)]);
            } else {
                new.device.hand_over().unwrap().detach(1, false).unwrap();
                new.go(QpState::Err).unwrap();
                assert_eq!(new.received(), []);
                let error = new.device.hand_over().unwrap().detached().unwrap_err().to_string();
                assert!(error.contains("the interface was created again"), "{error}");
                new.device.hand_over().unwrap().resume(false).unwrap();
            }
            new.go(QpState::Reset).unwrap();
            new.start(0);
            assert_eq!(detach(&mut new).len(), 1);
            ip("link del vb");
        }
    });
}

#[test]
fn sends_are_flushed_if_the_socket_of_another_program_cannot_be_mapped() {
    in_namespace(|| {
        veth(1, 1500);
        let mut old = End::new(device(link("vb"), 1500).unwrap(), (0, 1), 2048);
        old.start(0);
        // The send ring of the socket has fewer entries.
        let (mut new, _) = take_over(&mut old, |queue| queue.position[2] = 1 << 20);
        let run: Vec<Desc> = (128..131).map(|slot| new.put(slot, &frame(slot, 60))).collect();
        new.send(&run, 5).unwrap();
        assert_eq!(new.sent(), [5, 6, 7].map(|wr_id| (wr_id, WcStatus::WrFlushErr)));
    });
}

/// The old program has posted no receives, so no call of the queue pair except the poll finds the failure.
#[test]
fn receiving_queue_restarts_if_the_socket_of_another_program_cannot_be_mapped() {
    in_namespace(|| {
        veth(1, 1500);
        let of = |name| device(link(name), 1500).unwrap();
        let (mut a, mut old) = (End::new(of("va"), (0, 1), 2048), End::new(of("vb"), (0, 1), 2048));
        a.start(0);
        old.open_without_receives();
        let (mut new, _) = take_over(&mut old, |queue| queue.position[2] = 1 << 20);
        assert_eq!(new.received(), []);
        assert_eq!(new.received(), []);
        assert_eq!(new.qp.state(), QpState::Err);
        new.go(QpState::Reset).unwrap();
        new.start(0);
        // The socket waits until the old program has released the queue.
        drop(old);
        reach(&mut a, &mut new);
    });
}

#[test]
fn arriving_frame_wakes_a_sleeping_thread() {
    in_namespace(|| {
        veth(1, 1500);
        for mode in [Mode::Native, Mode::Generic] {
            let of = move |name| device(XdpSpec { mode, ..link(name) }, 1500).unwrap();
            let mut b = End::new(of("vb"), (0, 1), 2048);
            b.start(0);
            let (go, rx) = std::sync::mpsc::channel();
            let sender = thread::spawn(move || {
                let mut a = End::new(of("va"), (0, 1), 2048);
                a.start(0);
                while let Ok(number) = rx.recv() {
                    let desc = a.put(200, &frame(number, 60));
                    a.send(&[desc], 1).unwrap();
                    let deadline = Instant::now() + PATIENCE;
                    while a.sent().is_empty() {
                        assert!(Instant::now() < deadline, "frame {number} is not sent");
                    }
                }
            });
            for number in 0..200 {
                go.send(number).unwrap();
                // The frame may arrive at any point of this sequence.
                let mut received = b.received();
                while received.is_empty() {
                    b.recv.arm(false).unwrap();
                    received = b.received();
                    if received.is_empty() {
                        let event = b.channel.wait(PATIENCE);
                        assert_eq!(event, Ok(Some(b.recv.number())), "frame {number} raises no event");
                        received = b.received();
                    }
                }
                let [(wr_id, WcStatus::Success, len)] = received[..] else { panic!("{received:?}") };
                let slot = (wr_id - RECV) as u32;
                assert_eq!(b.get(slot, len), frame(number, 60));
                b.post(&[slot]).unwrap();
            }
            drop(go);
            sender.join().unwrap();
        }
    });
}

/// With wall-clock completions, each frame has the timestamp of the XDP program instead of the time of the poll. The
/// device's clock does not advance in this test, so a timestamp of the poll would be wrong.
#[test]
fn frames_are_stamped_on_arrival() {
    in_namespace(|| {
        // Each of the longer frames uses three buffers.
        veth(1, 9000);
        for (mode, hardware_stamps) in [(Mode::Native, false), (Mode::Native, true), (Mode::Generic, false)] {
            let of = |name| XdpSpec { mode, hardware_stamps, ..link(name) };
            let mut a = End::new(device(of("va"), 9000).unwrap(), (0, 1), 12_288);
            a.start(0);
            let (mtu, clock) = (9000, HostClock::manual());
            let spec = SoftSpec { mtu, clock, stamped: true, ..SoftSpec::new("vb", LinkSpec::Xdp(of("vb"))) };
            let fields = PollFields::STANDARD | PollFields::WALLCLOCK;
            let mut b = End::with(SoftDevice::new(spec).unwrap(), (0, 1), 12_288, fields);
            b.start(0);
            // A veth pair has no hardware clock, so the kernel takes the timestamps.
            let runs = if mode == Mode::Native { "native" } else { "generic" };
            let described = format!("vb ({runs}, copy, timestamps: kernel)");
            assert_eq!(b.device.describe_link(), Some(described));
            /// The maximum error of the conversion between two clocks, in nanoseconds.
            const EXACT: u64 = 50_000;
            let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
            let (mut last, lengths) = (now() - EXACT, if mode == Mode::Native { [60, 9_014] } else { [60, 900] });
            for number in 0..20 {
                let sent = frame(number, lengths[number as usize % 2]);
                let desc = a.put(200, &sent);
                a.send(&[desc], 1).unwrap();
                let (deadline, mut received) = (Instant::now() + PATIENCE, Vec::new());
                while received.is_empty() || a.sent().is_empty() {
                    assert!(Instant::now() < deadline, "frame {number}");
                    received.extend(b.received());
                }
                let [(wr_id, WcStatus::Success, len)] = received[..] else { panic!("{received:?}") };
                assert_eq!(b.get((wr_id - RECV) as u32, len), sent);
                b.post(&[(wr_id - RECV) as u32]).unwrap();
                let stamp = b.run.ticks[0].0;
                assert!((last + 1..=now() + EXACT).contains(&stamp), "{stamp} is not from {last} to {}", now());
                last = stamp;
            }
        }
    });
}

/// Kernels before 6.6 have no multi-buffer support. tools/vm/check-contract runs the test on such a kernel.
#[test]
fn long_frame_is_sent_or_fails_alone() {
    in_namespace(|| {
        veth(1, 9000);
        let of = |name| device(link(name), 9000).unwrap();
        let (mut a, mut b) = (End::new(of("va"), (0, 1), 12_288), End::new(of("vb"), (0, 1), 12_288));
        a.start(0);
        b.start(0);
        let run = [a.put(128, &frame(0, 4_000)), a.put(129, &frame(1, 100))];
        a.send(&run, 5).unwrap();
        let (mut sent, mut seen) = (Vec::new(), Vec::new());
        let deadline = Instant::now() + PATIENCE;
        while !sent.iter().any(|(wr_id, _)| *wr_id == 6) || !seen.iter().any(|(_, _, len)| *len == 100) {
            assert!(Instant::now() < deadline, "sent {sent:?}, received {seen:?}");
            sent.extend(a.sent());
            seen.extend(b.received());
        }
        let lengths: Vec<u32> = seen.iter().map(|(_, _, len)| *len).collect();
        match sent[..] {
            [(6, WcStatus::Success)] => assert_eq!(lengths, [4_000, 100]),
            // Without multi-buffer support, only the short frame is sent.
            [(5, WcStatus::LocLenErr), (6, WcStatus::Success)] => assert_eq!(lengths, [100]),
            _ => panic!("{sent:?}"),
        }
        assert_eq!(a.qp.state(), QpState::Rts);
    });
}

#[test]
fn multi_buffer_frame_is_joined_in_its_slot() {
    in_namespace(|| {
        // A veth pair supports this MTU with XDP, because the XDP program accepts frames with several buffers.
        veth(1, 9000);
        let of = |name| device(link(name), 9000).unwrap();
        let (mut a, mut b) = (End::new(of("va"), (0, 1), 12_288), End::new(of("vb"), (0, 1), 12_288));
        a.start(0);
        b.start(0);
        carry(&mut a, &mut b, 600, |number| [60, 3_775, 3_776, 3_777, 7_616, 7_617, 9_014][number as usize % 7]);
        assert_eq!(b.device.counters().rx_packets, 600);
    });
}

#[test]
fn send_with_invalid_length_fails_alone() {
    in_namespace(|| {
        veth(1, 1500);
        let of = |name| device(link(name), 1500).unwrap();
        let (mut a, mut b) = (End::new(of("va"), (0, 1), 2048), End::new(of("vb"), (0, 1), 2048));
        a.start(0);
        b.start(0);
        let good = a.put(128, &frame(0, 100));
        let long = Desc { len: 1523, ..a.put(129, &frame(1, 100)) };
        let short = Desc { len: 13, ..a.put(130, &frame(1, 100)) };
        let last = a.put(131, &frame(1, 100));
        a.send(&[good, long, short, last], 5).unwrap();
        let (mut sent, mut seen) = (Vec::new(), Vec::new());
        let deadline = Instant::now() + PATIENCE;
        while sent.len() < 3 || seen.len() < 2 {
            assert!(Instant::now() < deadline);
            sent.extend(a.sent());
            seen.extend(b.received());
        }
        assert_eq!(sent, [(6, WcStatus::LocLenErr), (7, WcStatus::LocLenErr), (8, WcStatus::Success)]);
        assert_eq!(a.qp.state(), QpState::Rts);
        // A descriptor outside its slot is refused immediately.
        let outside = Desc { offset: 1900, ..good };
        assert_eq!(errno(a.send(&[good, outside], 9)), (1, libc::EINVAL));
        // Requests with scatter/gather elements are not supported.
        // SAFETY: the post is refused.
        assert_eq!(errno(unsafe { a.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }]) }), (0, libc::EOPNOTSUPP));
    });
}

#[test]
fn each_queue_has_its_own_socket() {
    in_namespace(|| {
        veth(2, 1500);
        let (a, b) = (device(link("va"), 1500).unwrap(), device(XdpSpec { queues: 2, ..link("vb") }, 1500).unwrap());
        let mut a = [End::new(a.clone(), (0, 1), 2048)];
        let mut b = [0, 1].map(|queue| End::new(b.clone(), (queue, 2), 2048));
        a[0].start(0);
        b.iter_mut().for_each(|end| end.start(0));
        // Frames sent on queue 0 of one end arrive on queue 0 of the other end.
        let [first, _] = &mut b;
        carry(&mut a[0], first, 100, |_| 64);
        let error = device(XdpSpec { queues: 3, ..link("va") }, 1500).unwrap_err().to_string();
        assert!(error.contains("`va` has 2 receive queues") && error.contains("ethtool -L va combined 3"), "{error}");
    });
}

/// A queue pair whose receives are never polled stands for a port that only sends.
#[test]
fn frames_go_to_the_kernel_until_the_first_poll() {
    in_namespace(|| {
        veth(1, 1500);
        let [mut a, mut b] = ["va", "vb"].map(|name| End::new(device(link(name), 1500).unwrap(), (0, 1), 2048));
        a.open(0);
        b.open(0);
        let mut kernel = super::interfaces::packet("vb");
        let send = |a: &mut End, number: u32| {
            let desc = a.put(200, &frame(number, 60));
            a.send(&[desc], 1).unwrap();
            wait_until("the frame is sent", || !a.sent().is_empty());
        };
        for number in 0..3 {
            send(&mut a, number);
            let mut seen = Vec::new();
            wait_until("the kernel has the frame", || {
                seen.extend(kernel.frames());
                !seen.is_empty()
            });
            assert_eq!(seen, [Ok(frame(number, 60))]);
        }
        // The first poll takes the frames from the kernel.
        assert_eq!(b.received(), []);
        carry(&mut a, &mut b, 100, |_| 60);
        assert_eq!(kernel.frames(), []);
        assert_eq!(b.device.counters().kernel_rx_dropped, 0);
    });
}

#[test]
fn unusable_interface_is_named_in_the_error() {
    in_namespace(|| {
        veth(1, 1500);
        let first = device(link("va"), 1500).unwrap();
        let error = device(link("va"), 1500).unwrap_err().to_string();
        assert!(
            error.contains("`va`") && error.contains("bpf_link") && error.contains("bpftool link detach"),
            "{error}"
        );
        // A run gives up CAP_SYS_ADMIN before it opens its devices, and then cannot see the bpf_link.
        let error = std::thread::spawn(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::SYS_ADMIN;
            sets.permitted -= CapabilitySet::SYS_ADMIN;
            set_capabilities(None, sets).unwrap();
            device(link("va"), 1500).unwrap_err().to_string()
        });
        let error = error.join().unwrap();
        assert!(error.contains("end the process") && error.contains("`bpftool link detach id ID`"), "{error}");
        drop(first);
        wait_until("the interface is free", || device(link("va"), 1500).is_ok());
        let error = device(link("nothing"), 1500).unwrap_err().to_string();
        assert!(error.contains("no interface `nothing`"), "{error}");
        let zero = device(XdpSpec { copying: Copying::Zero, ..link("va") }, 1500).unwrap();
        let mut end = End::new(zero, (0, 1), 2048);
        end.qp.bind_slots(&end.mr, end.layout, RECV).unwrap();
        end.go(QpState::Init).unwrap();
        assert_eq!(end.go(QpState::Rtr).unwrap_err().errno, libc::EOPNOTSUPP);
        assert_eq!(end.qp.state(), QpState::Init);
        let error = end.device.wire_error().unwrap().to_string();
        assert!(error.contains("queue 0 has no zero-copy mode"), "{error}");
    });
}

#[test]
fn slots_that_cannot_be_umem_chunks_are_refused() {
    in_namespace(|| {
        veth(1, 1500);
        let mut end = End::new(device(link("va"), 1500).unwrap(), (0, 1), 2048);
        for (headroom, stride) in [(128, 2048), (256, 2112), (256, 6144)] {
            let layout = SlotLayout::new(headroom, stride - headroom - 64, 16).unwrap();
            assert_eq!(end.qp.bind_slots(&end.mr, layout, RECV).unwrap_err().errno, libc::EINVAL, "{layout:?}");
        }
    });
}

/// If an interface is removed and recreated under its name, the link attaches the program again. The queue pairs move
/// to ERR, and can be restarted.
#[test]
fn recreated_interface_is_used_again() {
    in_namespace(|| {
        veth(1, 1500);
        let of = |name| device(link(name), 1500).unwrap();
        let (mut a, mut b) = (End::new(of("va"), (0, 1), 2048), End::new(of("vb"), (0, 1), 2048));
        a.start(0);
        b.start(0);
        carry(&mut a, &mut b, 100, |_| 64);
        let deadline = Instant::now() + PATIENCE;
        ip("link set va down");
        while !b.device.poll_async_event().is_some_and(|event| event.kind == EventKind::PortErr) {
            assert!(Instant::now() < deadline);
            thread::yield_now();
        }
        ip("link set va up");
        while !b.device.poll_async_event().is_some_and(|event| event.kind == EventKind::PortActive) {
            assert!(Instant::now() < deadline);
            thread::yield_now();
        }
        carry(&mut a, &mut b, 100, |_| 64);
        ip("link del va");
        let last = a.put(200, &frame(0, 64));
        a.send(&[last], 7_777).unwrap();
        veth(1, 1500);
        let (mut flushed, mut sent) = (0, Vec::new());
        while flushed < 2 * DEPTH || sent.is_empty() {
            assert!(Instant::now() < deadline, "{flushed} {sent:?}");
            flushed += (a.received().len() + b.received().len()) as u32;
            sent.extend(a.sent());
        }
        assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Err));
        assert_eq!(sent.iter().map(|(wr_id, _)| *wr_id).collect::<Vec<_>>(), [7_777]);
        // A queue pair in ERR flushes new sends, even if the kernel still owned the slot when the interface was
        // removed.
        a.send(&[last], 8_888).unwrap();
        assert_eq!(a.sent(), [(8_888, WcStatus::WrFlushErr)]);
        for end in [&mut a, &mut b] {
            end.go(QpState::Reset).unwrap();
            end.start(0);
        }
        reach(&mut b, &mut a);
        reach(&mut a, &mut b);
        carry(&mut a, &mut b, 100, |_| 64);
    });
}

/// While the interface does not exist, a queue pair can be restarted, and its sends fail immediately. Frames pass again
/// when an interface of this name exists.
#[test]
fn restarted_queue_pair_waits_for_its_deleted_interface() {
    in_namespace(|| {
        veth(1, 1500);
        let of = |name| device(link(name), 1500).unwrap();
        let (mut a, mut b) = (End::new(of("va"), (0, 1), 2048), End::new(of("vb"), (0, 1), 2048));
        a.start(0);
        b.start(0);
        for round in 1..4 {
            carry(&mut a, &mut b, 50, |_| 64);
            ip("link del va");
            for end in [&mut a, &mut b] {
                let mut flushed = 0;
                wait_until("every receive is flushed", || {
                    flushed += end.received().len();
                    flushed == DEPTH as usize
                });
                assert_eq!(end.qp.state(), QpState::Err);
                end.go(QpState::Reset).unwrap();
                end.start(0);
                let frame = end.put(200, &frame(0, 64));
                // In an earlier round, the first sends of `reach` may have failed before the new link came up. These
                // sends are in the counter too, so compare the counter with its value before this send.
                let before = end.device.counters().tx_link_down;
                end.send(&[frame], round).unwrap();
                assert_eq!((end.sent(), end.qp.state()), (vec![(round, WcStatus::GeneralErr)], QpState::Rts));
                assert_eq!(end.device.counters().tx_link_down, before + 1);
            }
            // The new interface is down at first, so that the sockets cannot be bound to it.
            ip("link add name va type veth peer name vb");
            wait_until("the programs are attached", || has_program("va") && has_program("vb"));
            assert_eq!((a.received(), b.received()), (vec![], vec![]));
            for end in ["va", "vb"] {
                ip(&format!("link set {end} addrgenmode none"));
                ip(&format!("link set {end} up"));
            }
            reach(&mut b, &mut a);
            reach(&mut a, &mut b);
        }
    });
}

/// An interface moves to another network namespace, and another interface gets its name and its index.
#[test]
fn interface_with_the_index_of_a_moved_interface_is_used() {
    in_namespace(|| {
        veth(1, 1500);
        let of = |name| device(link(name), 1500).unwrap();
        let (mut a, mut b) = (End::new(of("va"), (0, 1), 2048), End::new(of("vb"), (0, 1), 2048));
        a.start(0);
        b.start(0);
        carry(&mut a, &mut b, 50, |_| 64);
        let _other = replace_by_move();
        for end in [&mut a, &mut b] {
            let mut flushed = 0;
            wait_until("every receive is flushed", || {
                flushed += end.received().len();
                flushed == DEPTH as usize
            });
            end.go(QpState::Reset).unwrap();
            end.start(0);
        }
        reach(&mut b, &mut a);
        reach(&mut a, &mut b);
    });
}

#[test]
#[ignore = "the process that `killed_process_leaves_no_xdp_program` kills"]
fn victim() {
    let mut end = End::new(device(link("va"), 1500).unwrap(), (0, 1), 2048);
    end.start(0);
    thread::sleep(PATIENCE);
}

#[test]
fn killed_process_leaves_no_xdp_program() {
    in_namespace(|| {
        veth(1, 1500);
        let this = std::env::current_exe().unwrap();
        let name = "tests::xdp::victim";
        let mut victim = RunningProgram::start(Command::new(this).args(["--exact", "--ignored", name]));
        let wait = |wanted: bool| {
            let deadline = Instant::now() + PATIENCE / 2;
            while has_program("va") != wanted {
                assert!(Instant::now() < deadline, "an XDP program is attached to the interface: {}", !wanted);
            }
        };
        wait(true);
        victim.kill().unwrap();
        victim.wait().unwrap();
        wait(false);
        // The kernel has released the queue too.
        let of = |name| device(link(name), 1500).unwrap();
        let (mut a, mut b) = (End::new(of("va"), (0, 1), 2048), End::new(of("vb"), (0, 1), 2048));
        a.start(0);
        b.start(0);
        carry(&mut b, &mut a, 100, |_| 64);
    });
}
