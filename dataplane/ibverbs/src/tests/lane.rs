//! Tests of lanes on the fake driver, with failures that the software device cannot produce. A lane is the queue pair
//! and the completion queues of one worker on one port.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibverbs_sys::ibv_wc_status::{IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_WR_FLUSH_ERR};

use super::raw::{TestDevice, test_device, test_device_of};
use crate::fake::{Call, Completion, Fake, Poll};
use crate::ffi::Wc;
use crate::{VerbsAh, VerbsDevice, VerbsPd, encode_flow_rule};
use dataplane_core::clock::{ClockSource, Clocks, Stamp};
use dataplane_core::error::VerbError;
use dataplane_core::lane::{self, Lane, LaneQueuePair, LaneSpec, NoSink, PendingEvents, RawWiring, Stamping, Wiring};
use dataplane_core::mem::{Batch, PageKind, Pool, RecvFields, Region, RegionSpec, SlotLayout};
use dataplane_core::units::QpNum;
use dataplane_core::verbs::{
    AsyncEvent, CqSpec, Destination, Device, EventKind, FlowRule, FlowTraffic, Path, PollFields, ProtectionDomain,
    QpAttributes, QpCaps, QpSpec, QpState, QpType, QueuePair, RawDevice, RawSpec, WcStatus, WrId, WrKind,
};

const SLOTS: usize = 64;

fn pool() -> Pool {
    let layout = SlotLayout::new(128, 1600, SLOTS).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap()
}

/// A raw-packet lane on a fake device, with the numbers of its objects.
struct TestLane {
    lane: Box<dyn Lane>,
    pool: Pool,
    pending_events: Arc<PendingEvents>,
    send_cq: u32,
    recv_cq: u32,
    qp: u32,
    /// The work queue, if the port has several queues.
    wq: Option<u32>,
}

const SPEC: LaneSpec = LaneSpec {
    kind: QpType::RawPacket,
    queue: (0, 1),
    recv_depth: 16,
    send_depth: 8,
    stamps: Stamping::None,
    recv_fields: RecvFields::empty(),
    sleeps: false,
};

/// The wiring of a datagram queue pair: connects the queue pair to a peer.
#[derive(Debug)]
struct DatagramWiring {
    pd: VerbsPd,
    handle: Option<VerbsAh>,
}

impl Wiring<VerbsDevice> for DatagramWiring {
    fn initialise(&mut self, qp: &mut LaneQueuePair<'_, VerbsDevice>) -> Result<(), VerbError> {
        let (attributes, mask) = QpAttributes::init(QpType::Ud, 1, 0);
        qp.modify(&attributes, mask)
    }

    fn connect(&mut self, qp: &mut LaneQueuePair<'_, VerbsDevice>) -> Result<bool, VerbError> {
        for (attributes, mask) in [QpAttributes::rtr(), QpAttributes::rts(QpType::Ud)] {
            qp.modify(&attributes, mask)?;
        }
        let ah = self.handle.insert(self.pd.create_ah(&Path::default())?);
        qp.bind_peer(Destination { ah, qp: QpNum(1), qkey: 0 })?;
        Ok(true)
    }

    fn is_stale(&self) -> bool {
        false
    }

    fn prefix(&self) -> u16 {
        40
    }

    fn longest(&self) -> u16 {
        1024
    }
}

impl TestLane {
    /// Opens a raw-packet lane.
    fn open(test: &TestDevice, queue: (u16, u16)) -> Self {
        Self::open_with(test, QpType::RawPacket, queue)
    }

    /// Opens a lane that sends datagrams to a peer, or receives raw packets.
    fn open_with(test: &TestDevice, kind: QpType, queue: (u16, u16)) -> Self {
        Self::open_stamped(test, kind, queue, Stamping::None)
    }

    /// Opens a lane whose packets get timestamps.
    fn open_stamped(test: &TestDevice, kind: QpType, queue: (u16, u16), stamps: Stamping) -> Self {
        Self::open_spec(test, LaneSpec { kind, queue, stamps, ..SPEC })
    }

    fn open_spec(test: &TestDevice, spec: LaneSpec) -> Self {
        let (mut pool, pending_events) = (pool(), Arc::new(PendingEvents::default()));
        let pd = test.device.alloc_pd().unwrap();
        let LaneSpec { kind, queue, .. } = spec;
        let wiring: Box<dyn Wiring<VerbsDevice>> = match kind {
            QpType::Ud => Box::new(DatagramWiring { pd: pd.clone(), handle: None }),
            _ => Box::new(RawWiring { port: 1 }),
        };
        let clocks = Clocks::default();
        let [cq, qp, wq] = ["cq", "qp", "wq"].map(|kind| test.fake.last(kind) + 1);
        let lane = lane::open(&test.device, &pd, &mut pool, spec, wiring, pending_events.clone(), &clocks).unwrap();
        assert_eq!(lane.posted(), 16);
        let has_wq = kind == QpType::RawPacket && queue.1 > 1;
        // The completion queue for sends is created before the completion queue for receives.
        Self { lane, pool, pending_events, send_cq: cq, recv_cq: cq + 1, qp, wq: has_wq.then_some(wq) }
    }

    /// Returns the kind and the number of the object that receives.
    fn receiver(&self) -> (&'static str, u32) {
        self.wq.map_or(("qp", self.qp), |wq| ("wq", wq))
    }

    /// Returns the ids of the receives that the device has.
    fn posted(&self, test: &TestDevice) -> Vec<u64> {
        let (kind, number) = self.receiver();
        test.fake.posted(kind, number)
    }

    /// Takes the oldest receive from the device and returns its id.
    fn take_posted(&self, test: &TestDevice) -> u64 {
        let (kind, number) = self.receiver();
        test.fake.take_posted(kind, number)
    }

    /// Completes the oldest receive with the error `status`, as a device reports a failed receive.
    fn fail_receive(&self, test: &TestDevice, status: u32) {
        match self.wq {
            Some(wq) => test.fake.fail_wq(wq, self.recv_cq, status),
            // The field `qp_num` of the completion is 0 instead of the number of the queue pair. Real devices report
            // the number of the receive queue in this field, so the lane must not rely on the field.
            None => test.fake.polls(self.recv_cq, [Poll::wc(self.take_posted(test), status)]),
        }
    }

    /// Receives one packet.
    fn receive_one(&mut self, test: &TestDevice, batch: &mut Batch) {
        let frame = Wc { wr_id: self.take_posted(test), opcode: 128, byte_len: 60, ..Wc::default() };
        test.fake.polls(self.recv_cq, [Poll::Wc(Completion { wc: frame, ..Completion::default() })]);
        assert_eq!(self.lane.receive(&mut self.pool, batch, 1), Ok(1));
    }

    /// Forwards one packet, whose send then fails. The caller must not have restarted the queue pair, because the
    /// failed send has the generation 0.
    fn fail_send(&mut self, test: &TestDevice) {
        self.fail_send_with(test, 0, IBV_WC_LOC_QP_OP_ERR);
    }

    /// Forwards the first packet of the lane. The send of this packet then fails with `status`. `generation` is the
    /// number of restarts of the queue pair.
    fn fail_send_with(&mut self, test: &TestDevice, generation: u16, status: u32) {
        let mut batch = Batch::new(&self.pool);
        self.receive_one(test, &mut batch);
        self.lane.transmit(&mut self.pool, &mut batch);
        assert_eq!(self.lane.sending(), 1);
        test.fake.polls(self.send_cq, [Poll::wc(WrId::new(WrKind::Send, generation, 0).0, status)]);
    }

    /// Runs the loop of a worker once.
    fn turn(&mut self) {
        let mut batch = Batch::new(&self.pool);
        self.lane.reap(&mut self.pool, &mut NoSink).unwrap();
        self.lane.receive(&mut self.pool, &mut batch, 32).unwrap();
        assert_eq!(batch.len(), 0);
        self.lane.refill(&mut self.pool).unwrap();
    }
}

/// If a queue pair cannot be destroyed, the device may still write to the posted slots. The lane then returns an error,
/// and does not return these slots to the pool.
#[test]
fn slots_of_an_undestroyed_queue_pair_are_not_reused() {
    for refused in [0, libc::EBUSY] {
        let test = test_device();
        let TestLane { mut lane, mut pool, .. } = TestLane::open(&test, (0, 1));
        let mut batch = Batch::new(&pool);
        assert_eq!((pool.available(), lane.posted()), (SLOTS - 16, 16));
        // The receive completion queue is created last.
        test.fake.polls(test.fake.last("cq"), [Poll::ReturnCode(libc::EIO)]);
        test.fake.refuse("ibv_destroy_qp", refused);
        test.fake.calls();
        let received = lane.receive(&mut pool, &mut batch, 8);
        assert!(test.fake.calls().iter().any(|call| matches!(call, Call::DestroyQp(_))));
        if refused == 0 {
            assert_eq!((received, lane.counters().rebuilds, lane.counters().timed_out), (Ok(0), 1, 16));
            continue;
        }
        assert_eq!(received.map_err(|error| (error.verb, error.errno)), Err(("ibv_destroy_qp", refused)));
        test.fake.refuse("ibv_destroy_qp", 0);
        // A worker ends its lanes with the following steps.
        lane.reap(&mut pool, &mut NoSink).unwrap();
        // The new queue pair may still be in RESET, so `stop` may fail.
        let _ = lane.stop();
        assert_eq!(lane.drain(&mut pool), Ok(0), "no completion is outstanding");
        lane.reset_and_reclaim(&mut pool);
        assert_eq!((pool.available(), lane.posted()), (SLOTS - 16, 16), "the posted slots do not return to the pool");
        assert_eq!((lane.counters().rebuilds, lane.counters().timed_out), (0, 0));
    }
}

/// If the work queue of a lane cannot be destroyed, the device may still write to the posted slots, even after the
/// destruction of the queue pair.
#[test]
fn slots_of_an_undestroyed_work_queue_are_not_reused() {
    for (refused, expected) in [
        (&[][..], Ok(0)),
        (&["ibv_destroy_wq"], Err("ibv_destroy_wq")),
        (&["ibv_destroy_qp"], Err("ibv_destroy_qp")),
        (&["ibv_destroy_wq", "ibv_destroy_qp"], Err("ibv_destroy_wq")),
    ] {
        let test = test_device();
        let mut lanes: Vec<TestLane> = (0..2).map(|at| TestLane::open(&test, (at, 2))).collect();
        let TestLane { lane, pool, recv_cq, .. } = &mut lanes[0];
        let mut batch = Batch::new(pool);
        test.fake.polls(*recv_cq, [Poll::ReturnCode(libc::EIO)]);
        refused.iter().for_each(|verb| test.fake.refuse(verb, libc::EBUSY));
        test.fake.calls();
        let received = lane.receive(pool, &mut batch, 8).map_err(|error| error.verb);
        let calls = test.fake.calls();
        let wq = calls.iter().position(|call| matches!(call, Call::DestroyWq(_))).unwrap();
        let qp = calls.iter().rposition(|call| matches!(call, Call::DestroyQp(_))).unwrap();
        assert!(wq < qp, "the work queue is destroyed before the queue pair: {calls:?}");
        let abandoned = if expected.is_ok() { 16 } else { 0 };
        assert_eq!((received, lane.counters().timed_out), (expected, abandoned), "{refused:?}");
        refused.iter().for_each(|verb| test.fake.refuse(verb, 0));
        assert_eq!(lane.refill(pool).map(|()| 0).map_err(|error| error.verb), expected);
        assert_eq!((pool.available(), lane.posted()), (SLOTS - 16, 16));
    }
}

/// A lane whose old queue pair cannot be destroyed returns the same error at every later step. The lane does not reset
/// the new queue pair, because a reset would return the slots of the old queue pair to the pool.
#[test]
fn lane_stays_lost_after_its_queue_pair_could_not_be_destroyed() {
    let test = test_device();
    let mut t = TestLane::open(&test, (0, 1));
    let mut batch = Batch::new(&t.pool);
    // The send of one packet never completes, so the flush deadline passes.
    t.receive_one(&test, &mut batch);
    t.lane.transmit(&mut t.pool, &mut batch);
    t.fail_receive(&test, IBV_WC_LOC_PROT_ERR);
    test.fake.refuse_qp_state(t.qp, QpState::Reset.raw());
    test.fake.refuse("ibv_destroy_qp", libc::EBUSY);
    let refused = loop {
        t.lane.reap(&mut t.pool, &mut NoSink).unwrap();
        assert_eq!(t.lane.receive(&mut t.pool, &mut batch, 32), Ok(0));
        if let Err(error) = t.lane.refill(&mut t.pool) {
            break error;
        }
    };
    assert_eq!((refused.verb, refused.errno), ("ibv_destroy_qp", libc::EBUSY));
    // The device accepts everything now, but it still owns the slots of the old queue pair.
    test.fake.refuse("ibv_destroy_qp", 0);
    let owned = (1, t.lane.posted(), t.pool.available());
    let state = |t: &TestLane| (t.lane.sending(), t.lane.posted(), t.pool.available());
    assert_eq!(state(&t), owned);
    assert_eq!(t.lane.refill(&mut t.pool), Err(refused));
    assert_eq!(t.lane.housekeep(&mut t.pool), Err(refused));
    assert!(batch.push_bytes(&[0; 60], Stamp::NONE, &mut t.pool));
    t.lane.transmit(&mut t.pool, &mut batch);
    assert_eq!((batch.len(), t.lane.counters().tx_errors), (0, 1), "the packet is dropped");
    // A failure of the new completion queue changes nothing.
    test.fake.polls(test.fake.last("cq"), [Poll::ReturnCode(libc::EIO)]);
    assert_eq!(t.lane.receive(&mut t.pool, &mut batch, 32), Err(refused));
    assert_eq!(t.lane.stop(), Err(refused));
    assert_eq!(t.lane.drain(&mut t.pool), Ok(0));
    t.lane.reset_and_reclaim(&mut t.pool);
    assert_eq!(state(&t), owned);
    assert_eq!((t.lane.counters().recoveries, t.lane.counters().rebuilds, t.lane.counters().timed_out), (0, 0, 0));
}

/// A lane registers packet memory with the flag `IBV_ACCESS_RELAXED_ORDERING`, so that the device may reorder its
/// writes. Devices that do not support this flag ignore the flag.
#[test]
fn packet_memory_is_registered_with_relaxed_ordering() {
    let test = test_device();
    let lane = TestLane::open(&test, (0, 1));
    let register = Call::RegMr { access: 1 | 1 << 20, iova2: true };
    assert!(test.fake.calls().contains(&register));
    drop(lane);
}

/// A lane requests inline sends for short frames. If the device refuses, the lane works without inline sends.
#[test]
fn short_frames_of_a_lane_are_sent_inline_if_the_device_supports_that() {
    const INLINE: u32 = 1 << 3;
    for refused in [false, true] {
        let test = test_device();
        test.fake.refuse_inline(refused);
        let mut lane = TestLane::open(&test, (0, 1));
        test.fake.calls();
        lane.fail_send(&test);
        let calls = test.fake.calls();
        let sent = calls.iter().find_map(|call| match call {
            Call::PostSend(list) => Some(list[0].flags & INLINE != 0),
            _ => None,
        });
        assert_eq!(sent, Some(!refused), "{calls:?}");
    }
}

/// A device may refuse every queue pair on a completion queue with timestamps, although the device creates such
/// completion queues. The device then has no timestamps, but still has all types of queue pairs. A lane of the device
/// creates its queues without timestamps, and still creates the flow rules of the port.
#[test]
fn lane_has_no_device_timestamps_if_its_queue_pair_is_refused_with_them() {
    use dataplane_core::verbs::Capability::{
        Datagram, ExtendedCq, ExtendedSend, Inline, RawPacket, Rc, Timestamps, Uc, WallclockTimestamps,
    };
    let mut test = test_device_of("fake", 0, Fake::refuses_timestamped_queues);
    let has = test.device.capabilities().has.clone();
    for capability in [RawPacket, Rc, Uc, Datagram, Inline, ExtendedSend, ExtendedCq] {
        assert!(has.contains(&capability), "{capability}: {has:?}");
    }
    for capability in [Timestamps, WallclockTimestamps] {
        let missing = &test.device.probed().missing;
        let why = missing.iter().find(|missing| missing.capability == capability).map(|missing| missing.why.as_str());
        assert!(why.is_some_and(|why| why.contains("ibv_create_qp failed: Operation not supported")), "{missing:?}");
    }
    let granted = test.device.probed().queue.as_ref().unwrap();
    assert_eq!(granted.stamps, ClockSource::None);
    assert!(granted.refused.contains(&Timestamps) && !granted.fields.contains(PollFields::TIMESTAMP), "{granted}");
    let dropping = FlowRule { drop: true, ..FlowRule::new(FlowTraffic::ANY_HEADERS) };
    let spec = RawSpec { rules: vec![dropping.clone()], ..RawSpec::default() };
    test.device.check_raw(&spec, 1).unwrap();
    test.set_raw(spec);
    for stamps in [Stamping::None, Stamping::Host, Stamping::Device, Stamping::Wallclock] {
        for kind in [QpType::RawPacket, QpType::Ud] {
            let is_raw = kind == QpType::RawPacket;
            test.fake.calls();
            let opened = TestLane::open_stamped(&test, kind, (0, 1), stamps);
            let granted = opened.lane.granted();
            assert_eq!(granted.stamps, ClockSource::None, "{stamps:?}");
            let asked = matches!(stamps, Stamping::Device | Stamping::Wallclock);
            assert_eq!(granted.refused.contains(&Timestamps), asked, "{stamps:?}: {granted}");
            assert_eq!(granted.refused.contains(&WallclockTimestamps), stamps == Stamping::Wallclock, "{granted}");
            let calls = test.fake.calls();
            let rules: Vec<_> = calls
                .iter()
                .filter_map(|call| match call {
                    Call::CreateFlow { bytes, .. } => Some(bytes.clone()),
                    _ => None,
                })
                .collect();
            let expected = encode_flow_rule(&dropping).unwrap();
            assert_eq!(rules, if is_raw { vec![expected] } else { Vec::new() }, "{stamps:?}: {calls:?}");
        }
    }
    // The lanes of a port with several queues create work queues. The device refuses work queues on a completion queue
    // with timestamps too.
    let lanes = [0, 1].map(|queue| TestLane::open_stamped(&test, QpType::RawPacket, (queue, 2), Stamping::Device));
    assert!(lanes.iter().all(|opened| opened.lane.granted().stamps == ClockSource::None));
}

/// With libibverbs 65 or newer, mlx5 in real-time mode accepts queue pairs on a completion queue with wall-clock
/// timestamps, but refuses queue pairs on a completion queue with counter timestamps. Lanes request both kinds of
/// timestamps together, so a lane can use neither kind.
#[test]
fn wall_clock_that_no_lane_can_use_is_missing() {
    use dataplane_core::verbs::Capability::{Timestamps, WallclockTimestamps};
    let test = test_device_of("fake", 0, Fake::refuses_queues_with_ticks);
    let has = &test.device.capabilities().has;
    assert!(!has.contains(&Timestamps) && !has.contains(&WallclockTimestamps), "{has:?}");
    assert_eq!(test.device.probed().queue.as_ref().unwrap().stamps, ClockSource::None);
    let opened = TestLane::open_stamped(&test, QpType::Ud, (0, 1), Stamping::Wallclock);
    assert_eq!(opened.lane.granted().stamps, ClockSource::None);
}

/// How the device reports that a queue failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The completion of a receive has an error.
    Receive,
    /// The completion of a send has an error.
    Send,
    /// The device flushes the receives without a preceding error.
    Flush,
    /// `IBV_EVENT_WQ_FATAL`, without a completion.
    Event,
}

/// The lanes of a port recover from every failure of a raw-packet queue without `ibv_query_qp`. For a raw-packet queue
/// pair, mlx5 returns the state that its software stores. On a port with several queues, this state is RTS even if the
/// send queue has failed.
#[test]
fn raw_lane_recovers_without_a_query_of_its_queue_pair() {
    use Failure::{Event, Flush, Receive, Send};
    for (queues, failure) in
        [(1, Receive), (1, Send), (1, Flush), (2, Receive), (2, Send), (2, Flush), (2, Event), (3, Receive), (3, Send)]
    {
        let test = test_device();
        let mut lanes: Vec<TestLane> = (0..queues).map(|at| TestLane::open(&test, (at, queues))).collect();
        let failed = lanes.len() - 1;
        let lane = &mut lanes[failed];
        assert_eq!(lane.posted(&test).len(), 16);
        test.fake.calls();
        match failure {
            Receive => lane.fail_receive(&test, IBV_WC_LOC_PROT_ERR),
            Flush => lane.fail_receive(&test, IBV_WC_WR_FLUSH_ERR),
            Send => lane.fail_send(&test),
            Event => {
                lane.pending_events.push(AsyncEvent { kind: EventKind::WqFatal, element: lane.wq.unwrap() });
                lane.lane.housekeep(&mut lane.pool).unwrap();
            }
        }
        (0..4).for_each(|_| lane.turn());
        let calls = test.fake.calls();
        let context = format!("{queues} queues, {failure:?}: {calls:?}");
        assert!(!calls.iter().any(|call| matches!(call, Call::Misuse(_))), "{context}");
        let counters = lane.lane.counters().clone();
        assert_eq!((counters.recoveries, counters.rebuilds, counters.timed_out), (1, 0, 0), "{context}");
        let state_of = |qp: u32| {
            let to = |call: &Call| match *call {
                Call::ModifyQp { qp: number, state, mask, .. } if number == qp && mask & 1 != 0 => Some(state),
                _ => None,
            };
            calls.iter().filter_map(to).collect::<Vec<_>>()
        };
        let path = [QpState::Err, QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts].map(QpState::raw);
        assert_eq!(state_of(lane.qp), path, "{context}");
        assert_eq!((lane.lane.posted(), lane.posted(&test).len()), (16, 16), "{context}");
        assert_eq!(lane.pool.available() + 16, SLOTS, "{context}");
        let first = match failure {
            Receive => Some(WcStatus::LocProtErr),
            Send => Some(WcStatus::LocQpOpErr),
            Flush | Event => Some(WcStatus::WrFlushErr),
        };
        assert_eq!(counters.first_error, first, "{context}");
        if queues > 1 {
            let made = |call: &&Call| matches!(call, Call::CreateFlow { .. });
            assert_eq!(calls.iter().filter(made).count(), 7, "the port receives again: {context}");
        }
        // In the next loop, the lanes have nothing left to recover.
        lanes.iter_mut().for_each(TestLane::turn);
        assert!(!test.fake.calls().iter().any(|call| matches!(call, Call::ModifyQp { .. })), "{context}");
    }
}

/// A frame that is longer than its receive buffer fails only its own receive. The lane posts the buffer again, and
/// changes neither its queues nor the flow rules of the port.
#[test]
fn long_raw_frame_fails_only_its_receive() {
    for queues in [1, 2] {
        let test = test_device();
        let mut lanes: Vec<TestLane> = (0..queues).map(|at| TestLane::open(&test, (at, queues))).collect();
        let lane = &mut lanes[0];
        let (kind, number) = lane.receiver();
        for frames in 1..=3 {
            test.fake.receives_long_frame(kind, number, lane.recv_cq);
            test.fake.calls();
            (0..4).for_each(|_| lane.turn());
            let calls = test.fake.calls();
            let context = format!("{queues} queues, frame {frames}: {calls:?}");
            let changes = |call: &Call| {
                matches!(call, Call::ModifyQp { .. } | Call::ModifyWq { .. } | Call::CreateFlow { .. })
                    || matches!(call, Call::DestroyFlow(_) | Call::Misuse(_))
            };
            assert!(!calls.iter().any(changes), "{context}");
            let counters = lane.lane.counters();
            assert_eq!((counters.rx_errors, counters.recoveries, counters.tx_errors), (frames, 0, 0), "{context}");
            assert_eq!(counters.first_error, Some(WcStatus::LocLenErr), "{context}");
            assert_eq!((lane.lane.posted(), lane.posted(&test).len(), lane.pool.available()), (16, 16, SLOTS - 16));
            assert!(lane.lane.is_connected());
        }
        let mut batch = Batch::new(&lane.pool);
        lane.receive_one(&test, &mut batch);
    }
}

/// If a device stops a queue after a frame that is longer than its receive buffer, the flushes of the other receives
/// start the recovery. A send that is too long always starts the recovery.
#[test]
fn long_frame_that_stops_the_queue_starts_the_recovery() {
    let test = test_device();
    let mut lanes: Vec<TestLane> = (0..2).map(|at| TestLane::open(&test, (at, 2))).collect();
    let lane = &mut lanes[0];
    lane.fail_receive(&test, IBV_WC_LOC_LEN_ERR);
    (0..4).for_each(|_| lane.turn());
    let counters = lane.lane.counters().clone();
    assert_eq!((counters.rx_errors, counters.recoveries, counters.rebuilds), (1, 1, 0));
    assert_eq!((counters.first_error, lane.posted(&test).len()), (Some(WcStatus::LocLenErr), 16));
    lane.fail_send_with(&test, 1, IBV_WC_LOC_LEN_ERR);
    (0..4).for_each(|_| lane.turn());
    assert_eq!((lane.lane.counters().tx_errors, lane.lane.counters().recoveries), (1, 2));
}

/// If the device refuses to reset a failed queue, the lane creates its queues again.
#[test]
fn raw_lane_creates_its_queues_again_if_a_reset_is_refused() {
    for queues in [1, 2] {
        let test = test_device();
        let mut lanes: Vec<TestLane> = (0..queues).map(|at| TestLane::open(&test, (at, queues))).collect();
        let lane = &mut lanes[0];
        lane.fail_receive(&test, IBV_WC_LOC_PROT_ERR);
        let mut batch = Batch::new(&lane.pool);
        assert_eq!(lane.lane.receive(&mut lane.pool, &mut batch, 32), Ok(0));
        // The flushes arrive, and then the reset fails.
        assert_eq!(lane.lane.receive(&mut lane.pool, &mut batch, 32), Ok(0));
        assert_eq!(lane.lane.posted(), 0);
        test.fake.refuse_qp_state(lane.qp, QpState::Reset.raw());
        lane.lane.refill(&mut lane.pool).unwrap();
        let counters = lane.lane.counters().clone();
        assert_eq!((counters.recoveries, counters.rebuilds, counters.timed_out), (0, 1, 0), "{queues} queues");
        assert_eq!((lane.lane.posted(), lane.lane.is_connected()), (16, true));
        lane.turn();
    }
}

/// irdma accepts the change of a failed queue pair to RESET, but the queue pair stays in ERR and then refuses the
/// change to INIT. The lane then creates its queues again, at every recovery.
#[test]
fn lane_creates_its_queues_again_if_a_reset_queue_pair_cannot_be_initialised() {
    let test = test_device();
    test.fake.keeps_reset_qps_in_err();
    let mut lane = TestLane::open(&test, (0, 1));
    for failures in 1..=3 {
        lane.fail_receive(&test, IBV_WC_LOC_PROT_ERR);
        test.fake.calls();
        (0..4).for_each(|_| lane.turn());
        let counters = lane.lane.counters();
        assert_eq!((counters.rebuilds, counters.recoveries, counters.timed_out), (failures, 0, 0));
        assert_eq!(lane.pool.available() + 16, SLOTS);
        // The new objects have the last numbers.
        (lane.qp, lane.send_cq, lane.recv_cq) = (test.fake.last("qp"), lane.send_cq + 2, test.fake.last("cq"));
        assert!(lane.lane.is_connected());
        assert_eq!((lane.lane.posted(), lane.posted(&test).len()), (16, 16));
        let calls = test.fake.calls();
        assert!(!calls.iter().any(|call| matches!(call, Call::Misuse(_))), "{calls:?}");
    }
    let mut batch = Batch::new(&lane.pool);
    lane.receive_one(&test, &mut batch);
    // If the device also refuses a new queue pair, the lane does not try again, and returns the error of the device.
    test.fake.refuse_qp_state(test.fake.last("qp") + 1, QpState::Init.raw());
    lane.fail_receive(&test, IBV_WC_LOC_PROT_ERR);
    let mut received = Batch::new(&lane.pool);
    assert_eq!(lane.lane.receive(&mut lane.pool, &mut received, 32), Ok(0));
    assert_eq!(lane.lane.receive(&mut lane.pool, &mut received, 32), Ok(0));
    let refused = lane.lane.refill(&mut lane.pool).unwrap_err();
    assert_eq!((refused.verb, refused.errno), ("ibv_modify_qp", libc::EINVAL));
}

/// A marker is a send of a packet that was already posted. In state ERR, the flush of the marker shows that all earlier
/// sends have completed. If the device refuses the change to ERR, the send queue may still work, so a marker would send
/// the packet again.
#[test]
fn marker_is_posted_only_after_the_change_to_err() {
    for is_refused in [false, true] {
        let test = test_device();
        let mut t = TestLane::open(&test, (0, 1));
        let mut batch = Batch::new(&t.pool);
        t.receive_one(&test, &mut batch);
        t.receive_one(&test, &mut batch);
        // The driver accepts only the first send, which is unsignalled.
        test.fake.refuse_at("ibv_post_send", libc::ENOMEM, Some(1));
        t.lane.transmit(&mut t.pool, &mut batch);
        test.fake.refuse("ibv_post_send", 0);
        assert_eq!(t.lane.sending(), 1);
        if is_refused {
            test.fake.refuse_qp_state(t.qp, QpState::Err.raw());
        }
        t.fail_receive(&test, IBV_WC_LOC_PROT_ERR);
        test.fake.calls();
        let mut received = Batch::new(&t.pool);
        assert_eq!(t.lane.receive(&mut t.pool, &mut received, 32), Ok(0));
        let calls = test.fake.calls();
        assert!(calls.iter().any(|call| matches!(call, Call::ModifyQp { .. })), "{calls:?}");
        let markers = calls.iter().filter(|call| matches!(call, Call::PostSend(_) | Call::WrStart)).count();
        assert_eq!(markers, usize::from(!is_refused), "{calls:?}");
    }
}

/// efa refuses unsignalled sends, so a lane on efa signals every send.
#[test]
fn lane_on_efa_signals_every_send() {
    for (driver, expected) in [("mlx5", 1), ("efa", 3)] {
        let test = test_device_of(driver, 0, |fake| {
            if driver == "efa" {
                fake.refuses_unsignalled_sends();
            }
        });
        let mut t = TestLane::open_with(&test, QpType::Ud, (0, 1));
        let mut batch = Batch::new(&t.pool);
        for round in 0..3 {
            (0..3).for_each(|_| assert!(batch.push_bytes(&[0; 60], Stamp::NONE, &mut t.pool)));
            test.fake.calls();
            t.lane.transmit(&mut t.pool, &mut batch);
            let calls = test.fake.calls();
            let signalled = calls.iter().find_map(|call| match call {
                Call::PostSend(list) => Some(list.iter().filter(|send| send.flags & 2 != 0).count()),
                _ => None,
            });
            assert_eq!(signalled, Some(expected), "{driver}: {calls:?}");
            let ids = (round * 3..round * 3 + 3).skip(3 - expected).map(|id| WrId::new(WrKind::Send, 0, id as u64).0);
            test.fake.polls(t.send_cq, ids.map(|id| Poll::wc(id, 0)));
            t.turn();
            let counters = t.lane.counters();
            assert_eq!(
                (counters.tx, counters.tx_errors, counters.unmatched_completions),
                (3 * (round as u64 + 1), 0, 0),
                "{driver}"
            );
            assert_eq!(t.lane.sending(), 0);
        }
    }
}

/// If efa accepts only a part of a batch, the accepted sends complete. No send is then outstanding, so the lane is not
/// restarted at the flush deadline.
#[test]
fn completed_sends_of_a_partly_accepted_batch_need_no_restart() {
    let test = test_device_of("efa", 0, |fake| fake.refuses_unsignalled_sends());
    let mut t = TestLane::open_with(&test, QpType::Ud, (0, 1));
    let mut batch = Batch::new(&t.pool);
    (0..2).for_each(|_| assert!(batch.push_bytes(&[0; 60], Stamp::NONE, &mut t.pool)));
    test.fake.refuse_at("ibv_post_send", libc::ENOMEM, Some(1));
    t.lane.transmit(&mut t.pool, &mut batch);
    assert_eq!((t.lane.sending(), t.lane.counters().tx_errors), (1, 1));
    test.fake.polls(t.send_cq, [Poll::wc(WrId::new(WrKind::Send, 0, 0).0, 0)]);
    // The flush deadline is half a second.
    let end = Instant::now() + Duration::from_millis(600);
    while Instant::now() < end {
        t.turn();
        t.lane.housekeep(&mut t.pool).unwrap();
    }
    assert_eq!((t.lane.sending(), t.lane.counters().tx, t.lane.counters().recoveries), (0, 1, 0));
    // The deadline of a second batch starts with this batch.
    (0..2).for_each(|_| assert!(batch.push_bytes(&[0; 60], Stamp::NONE, &mut t.pool)));
    test.fake.refuse_at("ibv_post_send", libc::ENOMEM, Some(1));
    t.lane.transmit(&mut t.pool, &mut batch);
    t.lane.housekeep(&mut t.pool).unwrap();
    assert_eq!((t.lane.sending(), t.lane.counters().recoveries), (1, 0));
    assert!(t.lane.is_connected());
}

/// The attributes that efa returns for a queue pair: state, index of the partition key, port, Q_Key, RNR retries, PSN
/// of sends, and capacities.
const ATTRIBUTES_OF_EFA: u32 = 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 11 | 1 << 16 | 1 << 19;

/// efa refuses a query of attributes that datagrams do not use. The lane asks only for the state, so a failed receive
/// does not restart a queue pair that still works. If the device cannot return the state (for example, mana), the lane
/// assumes that the queue pair has stopped.
#[test]
fn failed_datagram_restarts_no_queue_pair_that_still_works() {
    for (known, recoveries) in [(ATTRIBUTES_OF_EFA, 0), (0, 1)] {
        let test = test_device_of("efa", 0, |fake| fake.knows_attributes(known));
        let mut t = TestLane::open_with(&test, QpType::Ud, (0, 1));
        let wr_id = t.take_posted(&test);
        let wc = Wc { wr_id, status: IBV_WC_LOC_LEN_ERR, qp_num: t.qp, ..Wc::default() };
        test.fake.polls(t.recv_cq, [Poll::Wc(Completion { wc, ..Completion::default() })]);
        (0..4).for_each(|_| t.turn());
        let counters = t.lane.counters();
        assert_eq!((counters.rx_errors, counters.recoveries), (1, recoveries), "known attributes: {known:#x}");
        assert_eq!(counters.first_error, Some(WcStatus::LocLenErr));
        assert!(t.lane.is_connected());
    }
}

#[test]
fn datagram_queue_pair_of_efa_can_be_queried() {
    let test = test_device_of("efa", 0, |fake| fake.knows_attributes(ATTRIBUTES_OF_EFA));
    let pd = test.device.alloc_pd().unwrap();
    let (cq, _) = test.device.create_cq(&CqSpec { depth: 16, ..CqSpec::default() }, None).unwrap();
    let caps = QpCaps { send_depth: 8, recv_depth: 8, send_sges: 1, recv_sges: 1, inline: 0 };
    let of_datagrams = QpAttributes::init(QpType::Ud, 1, 0);
    let of_datagrams = [of_datagrams, QpAttributes::rtr(), QpAttributes::rts(QpType::Ud)];
    for (kind, changes, expected) in [
        (QpType::Ud, &of_datagrams[..], Ok(QpState::Rts)),
        // If the device refuses a query, the provider repeats the query with fewer attributes only for a UD queue pair,
        // because efa has no connected queue pairs.
        (QpType::Rc, &super::fake_driver::changes_to_rts(QpType::Rc)[..], Err(libc::EOPNOTSUPP)),
    ] {
        let mut qp = pd.create_qp(&QpSpec::new(kind, caps), &cq, &cq, None).unwrap();
        for (attributes, mask) in changes {
            qp.modify(attributes, *mask).unwrap();
        }
        assert_eq!(qp.query().map(|it| it.state).map_err(|error| error.errno), expected, "{kind}");
    }
}

/// With one vector for all workers, the wake-ups of all workers would interrupt one core.
#[test]
fn wake_ups_of_workers_use_different_completion_vectors() {
    let null = File::open("/dev/null").unwrap();
    let test = test_device_of("fake", 1 | 2 | 8, |fake| fake.has_channels(null.as_raw_fd(), 4));
    test.device.capabilities();
    test.fake.calls();
    // Returns the vectors of the completion queues for sends and for receives.
    let vectors = |kind, worker, sleeps| {
        let _lane = TestLane::open_spec(&test, LaneSpec { kind, queue: (worker, 6), sleeps, ..SPEC });
        let vector = |call| if let Call::CreateCqEx { vector, .. } = call { Some(vector) } else { None };
        test.fake.calls().into_iter().filter_map(vector).collect::<Vec<u32>>()
    };
    for kind in [QpType::RawPacket, QpType::Ud] {
        assert_eq!([0, 1, 5].map(|worker| vectors(kind, worker, true)), [[0, 0], [0, 1], [0, 1]], "{kind}");
        // A lane without a channel causes no wake-ups.
        assert_eq!(vectors(kind, 1, false), [0, 0]);
    }
}
