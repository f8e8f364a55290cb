//! Tests of the error cases of connections and datagrams, in both profiles. Each test checks the completions, the
//! states and the events of the requester and of the responder.

use super::ends::*;
use super::*;

use Profile::{Rxe, Spec};
use QpState::{Err, Rts, Sqe};
use WcStatus::{
    LocAccessErr, LocLenErr, LocProtErr, LocQpOpErr, MwBindErr, RemAbortErr, RemAccessErr, RemInvReqErr, RemOpErr,
    RetryExcErr, RnrRetryExcErr, Success, WrFlushErr,
};

/// The result of a case. In each array, the requester comes first.
#[derive(Debug, PartialEq)]
struct Outcome {
    statuses: [Vec<WcStatus>; 2],
    states: [QpState; 2],
    events: [Vec<EventKind>; 2],
}

impl Outcome {
    fn new(requester: &[WcStatus], responder: &[WcStatus], states: [QpState; 2]) -> Self {
        Self { statuses: [requester.to_vec(), responder.to_vec()], states, events: [vec![], vec![]] }
    }

    /// Adds an event of the responder if the profile is `Spec`. A device with the profile `Rxe` does not raise the
    /// event.
    fn with(mut self, profile: Profile, event: EventKind) -> Self {
        if profile == Spec {
            self.events[1].push(event);
        }
        self
    }
}

/// Polls and advances time until all retries and timeouts are over, and returns the result.
fn outcome((mut a, mut b): (End, End)) -> Outcome {
    let mut statuses = [vec![], vec![]];
    for _ in 0..10 {
        statuses[0].extend(self::statuses(&a.sent()));
        statuses[1].extend(self::statuses(&b.received()));
        a.clock.advance(Nanos(4_096 << 14));
    }
    Outcome { statuses, states: [a.qp.state(), b.qp.state()], events: [a.events(), b.events()] }
}

use super::ends::statuses;

/// Runs a test with each of the two profiles.
fn both(test: impl Fn(Profile)) {
    test(Spec);
    test(Rxe);
}

/// Returns `spec` or `rxe`, depending on the profile.
fn by<T>(profile: Profile, spec: T, rxe: T) -> T {
    if profile == Spec { spec } else { rxe }
}

/// Posts two receives with enough space, and returns the result of one operation with `length` bytes.
fn one(ends: &Ends, op: impl Fn(&End) -> SendOp<'static>, length: u32) -> Outcome {
    one_of(ends.connected(), op, length)
}

/// Does the same as [`one`], for two ends that are already connected.
fn one_of((mut a, mut b): (End, End), op: impl Fn(&End) -> SendOp<'static>, length: u32) -> Outcome {
    let into = [b.sge(0, 4_096)];
    b.post_recv(1, &into).unwrap();
    b.post_recv(2, &into).unwrap();
    let sge = [a.sge(0, length)];
    let op = op(&b);
    a.post(1, op, &sge).unwrap();
    outcome((a, b))
}

#[test]
fn too_small_receive_fails_both_sides() {
    both(|profile| {
        for length in [6, 5_000] {
            let (mut a, mut b) = Ends::of(profile, QpType::Rc).connected();
            let (short, long) = ([b.sge(0, length - 1)], [b.sge(0, 8_000)]);
            b.post_recv(1, &short).unwrap();
            b.post_recv(2, &long).unwrap();
            let sge = [a.sge(0, length)];
            a.post(1, SendOp::Send, &sge).unwrap();
            let (requester, responder) = by(profile, (RemInvReqErr, LocLenErr), (RemOpErr, LocQpOpErr));
            assert_eq!(outcome((a, b)), Outcome::new(&[requester], &[responder, WrFlushErr], [Err, Err]));
        }
    });
}

#[test]
fn receive_into_invalid_memory_fails() {
    both(|profile| {
        type Invalidate = fn(&End, Sge) -> (Sge, Option<SoftMr>);
        let invalid_cases: [Invalidate; 4] = [
            |_, sge| (Sge { lkey: Lkey(1), ..sge }, None),
            |end, sge| (Sge { addr: end.addr(BYTES - 10), ..sge }, None),
            |end, sge| {
                let mr = end.pd.register(end.mr.region().clone(), Access::empty()).unwrap();
                (Sge { lkey: mr.lkey(), ..sge }, Some(mr))
            },
            |end, sge| {
                let pd = end.device.alloc_pd().unwrap();
                let mr = pd.register(end.mr.region().clone(), FULL).unwrap();
                (Sge { lkey: mr.lkey(), ..sge }, Some(mr))
            },
        ];
        for invalidate in invalid_cases {
            let (mut a, mut b) = Ends::of(profile, QpType::Rc).connected();
            let (into, _kept) = invalidate(&b, b.sge(0, 100));
            b.post_recv(1, &[into]).unwrap();
            let sge = [a.sge(0, 100)];
            a.post(1, SendOp::Send, &sge).unwrap();
            let responder = by(profile, LocProtErr, LocQpOpErr);
            assert_eq!(outcome((a, b)), Outcome::new(&[RemOpErr], &[responder], [Err, Err]));
        }
    });
}

#[test]
fn send_from_invalid_memory_fails() {
    both(|profile| {
        for write in [false, true] {
            for foreign in [false, true] {
                let (mut a, b) = Ends::of(profile, QpType::Rc).connected();
                let pd = a.device.alloc_pd().unwrap();
                let mr = pd.register(a.mr.region().clone(), FULL).unwrap();
                let lkey = if foreign { mr.lkey() } else { Lkey(1) };
                let sge = [Sge { lkey, ..a.sge(0, 10) }];
                let op = if write { SendOp::RdmaWrite(b.remote(0)) } else { SendOp::Send };
                a.post(1, op, &sge).unwrap();
                let status = by(profile, LocProtErr, LocQpOpErr);
                assert_eq!(outcome((a, b)), Outcome::new(&[status], &[], [Err, Rts]));
            }
        }
    });
}

#[test]
fn read_into_read_only_memory_fails() {
    both(|profile| {
        let (mut a, b) = Ends::of(profile, QpType::Rc).connected();
        let mr = a.pd.register(a.mr.region().clone(), Access::REMOTE_READ).unwrap();
        let sge = [Sge { lkey: mr.lkey(), ..a.sge(0, 10) }];
        a.post(1, SendOp::RdmaRead(b.remote(0)), &sge).unwrap();
        assert_eq!(outcome((a, b)), Outcome::new(&[LocProtErr], &[], [Err, Rts]));
    });
}

/// The operations that access the peer's memory: a write, a read and an atomic.
const OPS: [fn(Remote) -> SendOp<'static>; 3] =
    [SendOp::RdmaWrite, SendOp::RdmaRead, |remote| SendOp::FetchAdd { remote, add: 1 }];

#[test]
fn access_to_invalid_remote_memory_fails() {
    both(|profile| {
        type Invalidate = fn(&End) -> (Remote, Option<SoftMr>);
        let invalid_cases: [Invalidate; 4] = [
            |end| (Remote { rkey: Rkey(1), ..end.remote(0) }, None),
            |end| (end.remote(BYTES), None),
            |end| {
                let mr = end.pd.register(end.mr.region().clone(), Access::LOCAL_WRITE).unwrap();
                (Remote { rkey: mr.rkey(), ..end.remote(0) }, Some(mr))
            },
            |end| {
                let mr = end.device.alloc_pd().unwrap().register(end.mr.region().clone(), FULL).unwrap();
                (Remote { rkey: mr.rkey(), ..end.remote(0) }, Some(mr))
            },
        ];
        for invalidate in invalid_cases {
            for op in OPS {
                let (mut a, mut b) = Ends::of(profile, QpType::Rc).connected();
                b.post_recv(1, &[]).unwrap();
                let (remote, _kept) = invalidate(&b);
                let sge = [a.sge(0, 8)];
                a.put(0, &[0xff; 8]);
                a.post(1, op(remote), &sge).unwrap();
                a.post_with(2, SendOp::Send, SendFlags::empty(), &sge).unwrap();
                assert_eq!(b.get(0, BYTES), [0; BYTES], "the memory is unchanged");
                let expected = Outcome::new(&[RemAccessErr, WrFlushErr], &[WrFlushErr], [Err, Err]);
                assert_eq!(outcome((a, b)), expected.with(profile, EventKind::QpAccessErr));
            }
        }
        // If a write with immediate data fails, a receive of the responder completes with an error.
        let bad = |b: &End| SendOp::RdmaWriteWithImm(Remote { rkey: Rkey(1), ..b.remote(0) }, 0);
        let responder = [by(profile, LocAccessErr, RemAccessErr), WrFlushErr];
        let expected = Outcome::new(&[RemAccessErr], &responder, [Err, Err]);
        assert_eq!(one(&Ends::of(profile, QpType::Rc), bad, 8), expected);
    });
}

#[test]
fn operation_without_permission_of_the_peer_fails() {
    both(|profile| {
        let wrong = || Outcome::new(&[RemInvReqErr], &[WrFlushErr, WrFlushErr], [Err, Err]);
        for (op, lacks) in OPS.into_iter().zip([Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC]) {
            let mut ends = Ends::of(profile, QpType::Rc);
            ends.attributes.access = REMOTE - lacks;
            assert_eq!(one(&ends, |b| op(b.remote(0)), 8), wrong().with(profile, EventKind::QpReqErr));
        }
        let mut ends = Ends::of(profile, QpType::Rc);
        ends.attributes.max_dest_rd_atomic = 0;
        for op in &OPS[1..] {
            assert_eq!(one(&ends, |b| op(b.remote(0)), 8), wrong().with(profile, EventKind::QpReqErr));
        }
    });
}

#[test]
fn atomics_require_eight_aligned_bytes() {
    let add = |at| move |b: &End| SendOp::FetchAdd { remote: b.remote(at), add: 1 };
    let unaligned = one(&Ends::default(), add(4), 8);
    let expected = Outcome::new(&[RemInvReqErr], &[WrFlushErr, WrFlushErr], [Err, Err]);
    assert_eq!(unaligned, expected.with(Spec, EventKind::QpReqErr));
    assert_eq!(one(&Ends::default(), add(0), 16), Outcome::new(&[LocLenErr], &[], [Err, Rts]));
    let rxe = Ends::of(Rxe, QpType::Rc);
    let (mut a, b) = rxe.connected();
    let (sge, short) = ([a.sge(0, 8)], [a.sge(0, 7)]);
    assert_eq!(errno(a.post(1, add(4)(&b), &sge)), (0, libc::EINVAL));
    assert_eq!(errno(a.post(1, add(0)(&b), &short)), (0, libc::EINVAL));
    let long = [a.sge(0, 16)];
    a.post(1, add(0)(&b), &long).unwrap();
    assert_eq!(a.sent(), [(1, Success, 16)]);
}

#[test]
fn send_fails_after_its_retries_if_the_peer_has_no_receive_or_is_unreachable() {
    both(|profile| {
        let (mut a, b) = Ends::of(profile, QpType::Rc).connected();
        let sge = [a.sge(0, 8)];
        a.post(1, SendOp::Send, &sge).unwrap();
        assert_eq!(outcome((a, b)), Outcome::new(&[RnrRetryExcErr], &[], [Err, Rts]));
        for down in [false, true] {
            let (mut a, mut b) = Ends::of(profile, QpType::Rc).unconnected();
            let to = (b.address().0, QpNum(if down { b.address().1.0 } else { 0x9999 }));
            let from = a.address();
            a.connect(to);
            b.connect(from);
            b.device.set_link(!down);
            b.events();
            let sge = [a.sge(0, 8)];
            a.post(1, SendOp::Send, &sge).unwrap();
            assert_eq!(outcome((a, b)), Outcome::new(&[RetryExcErr], &[], [Err, Rts]));
        }
    });
}

#[test]
fn retry_count_of_seven_is_unlimited_only_with_rxe() {
    let retries = |profile| {
        let mut ends = Ends::of(profile, QpType::Rc);
        ends.attributes.retry_count = 7;
        let (mut a, b) = ends.connected();
        b.device.set_link(false);
        let sge = [a.sge(0, 8)];
        a.post(1, SendOp::Send, &sge).unwrap();
        let silent = (0..100).take_while(|_| {
            a.clock.advance(Nanos(4_096 << 14));
            a.sent().is_empty()
        });
        silent.count()
    };
    assert_eq!((retries(Spec), retries(Rxe)), (7, 100));
    // For retries while the receiver is not ready (`rnr_retry`), 7 means unlimited in both profiles.
    both(|profile| {
        let mut ends = Ends::of(profile, QpType::Rc);
        ends.attributes.rnr_retry = 7;
        let (mut a, mut b) = ends.connected();
        let sge = [a.sge(0, 8)];
        a.post(1, SendOp::Send, &sge).unwrap();
        for _ in 0..100 {
            assert_eq!(a.sent(), []);
            a.clock.advance(Nanos(10_000));
        }
        b.post_recv(1, &sge.map(|_| b.sge(0, 8))).unwrap();
        a.clock.advance(Nanos(10_000));
        assert_eq!(statuses(&a.sent()), [Success]);
    });
}

#[test]
fn read_with_max_rd_atomic_0_fails_or_on_rxe_never_completes() {
    both(|profile| {
        let mut ends = Ends::of(profile, QpType::Rc);
        ends.attributes.max_rd_atomic = 0;
        let (mut a, b) = ends.connected();
        let sge = [a.sge(0, 8)];
        a.post(1, SendOp::RdmaRead(b.remote(0)), &sge).unwrap();
        let expected = by(profile, Outcome::new(&[LocQpOpErr], &[], [Err, Rts]), Outcome::new(&[], &[], [Rts, Rts]));
        assert_eq!(outcome((a, b)), expected);
    });
}

#[test]
fn invalidation_of_a_wrong_key_fails() {
    both(|profile| {
        for key in [|_: &End| Rkey(1), |b: &End| b.mr.rkey()] {
            let requester = by(profile, RemAccessErr, Success);
            let expected = Outcome::new(&[requester], &[RemInvReqErr, WrFlushErr], [Err, Err]);
            let states = by(profile, [Err, Err], [Rts, Err]);
            let got = one(&Ends::of(profile, QpType::Rc), |b| SendOp::SendWithInv(key(b)), 8);
            assert_eq!(got, Outcome { states, ..expected });
        }
        let (mut a, b) = Ends::of(profile, QpType::Rc).connected();
        a.post(1, SendOp::LocalInv(Rkey(1)), &[]).unwrap();
        let status = by(profile, MwBindErr, LocQpOpErr);
        assert_eq!(outcome((a, b)), Outcome::new(&[status], &[], [Err, Rts]));
    });
}

#[test]
fn operation_that_the_queue_pair_type_does_not_support_fails() {
    both(|profile| {
        let state = by(profile, Sqe, Err);
        let expected = || Outcome::new(&[LocQpOpErr], &[], [state, Rts]);
        let read = |b: &End| SendOp::RdmaRead(b.remote(0));
        let atomic = |b: &End| SendOp::FetchAdd { remote: b.remote(0), add: 1 };
        assert_eq!(one(&Ends::of(profile, QpType::Uc), read, 8), expected());
        assert_eq!(one(&Ends::of(profile, QpType::Uc), atomic, 8), expected());
        let write = |b: &End| SendOp::RdmaWrite(b.remote(0));
        let invalidate = |_: &End| SendOp::SendWithInv(Rkey(1));
        let ops: [fn(&End) -> SendOp<'static>; 3] = [read, write, invalidate];
        for op in ops {
            assert_eq!(one(&Ends::of(profile, QpType::Ud), op, 8), expected());
        }
        let (mut a, _b) = Ends::of(profile, QpType::Rc).connected();
        let segments = SendOp::Tso { header: &[], mss: 100 };
        assert_eq!(errno(a.post(1, segments, &[])), (0, libc::EOPNOTSUPP));
    });
}

#[test]
fn unreliable_connection_reports_no_errors_to_the_sender() {
    both(|profile| {
        let ends = Ends::of(profile, QpType::Uc);
        let (mut a, mut b) = ends.connected();
        let (short, sge) = ([b.sge(0, 7)], [a.sge(0, 8)]);
        b.post_recv(1, &short).unwrap();
        a.post(1, SendOp::Send, &sge).unwrap();
        let responder = by(profile, LocLenErr, LocQpOpErr);
        assert_eq!(outcome((a, b)), Outcome::new(&[Success], &[responder], [Rts, Err]));

        let nothing = || Outcome::new(&[Success], &[], [Rts, Rts]);
        let (mut a, b) = ends.connected();
        a.post(1, SendOp::Send, &sge.map(|_| a.sge(0, 8))).unwrap();
        assert_eq!(outcome((a, b)), nothing());
        let bad = |b: &End| SendOp::RdmaWrite(Remote { rkey: Rkey(1), ..b.remote(0) });
        assert_eq!(one(&ends, bad, 8), nothing());
        let mut closed = ends.clone();
        closed.attributes.access = Access::empty();
        assert_eq!(one(&closed, |b| SendOp::RdmaWrite(b.remote(0)), 8), nothing());
        let lossy = Ends { faults: FaultSpec { loss: 1.0, ..FaultSpec::default() }, ..ends.clone() };
        assert_eq!(one(&lossy, |_| SendOp::Send, 8), nothing());
        // An unreliable connection may use a shared receive queue.
        let (mut a, mut b) = Ends { srq: Some(8), ..ends }.connected();
        for wr_id in 1..=2 {
            let into = [b.sge(0, 4_000)];
            b.post_recv(wr_id, &into).unwrap();
        }
        let sge = [a.sge(0, 10)];
        a.post(1, SendOp::Send, &sge).unwrap();
        assert_eq!((b.received(), b.events()), (vec![(1, Success, 10)], vec![]));
    });
}

#[test]
fn incomplete_message_is_dropped_and_the_next_message_uses_its_receive() {
    // Random packets are lost. A message with a missing part is dropped completely, and the next message uses the
    // receive of the dropped message. With the standard profile, a receive of a shared receive queue completes with an
    // error instead.
    let lossy = |seed| FaultSpec { seed, loss: 0.3, ..FaultSpec::default() };
    both(|profile| {
        for shared in [false, true] {
            let mut seen = 0;
            for seed in 0..40 {
                let srq = shared.then_some(8);
                let ends = Ends { faults: lossy(seed), srq, ..Ends::of(profile, QpType::Uc) };
                let (mut a, mut b) = ends.connected();
                for wr_id in 1..=8 {
                    let into = [b.sge(0, 4_096)];
                    b.post_recv(wr_id, &into).unwrap();
                }
                let sge = [a.sge(0, 4_096)];
                for number in 1..=8 {
                    a.post(number, SendOp::SendWithImm(number as u32), &sge).unwrap();
                }
                assert_eq!(statuses(&a.sent()), [Success; 8]);
                let got = b.received();
                let aborted = got.iter().filter(|(_, status, _)| *status == RemAbortErr).count();
                assert!(aborted == 0 || (shared && profile == Spec));
                assert!(got.iter().all(|(_, status, len)| *status == RemAbortErr || *len == 4_096));
                // Receives are used in order, and no receive is used twice.
                let used: Vec<u64> = got.iter().map(|(wr_id, ..)| *wr_id).collect();
                assert_eq!(used, (1..=used.len() as u64).collect::<Vec<_>>(), "seed {seed}");
                seen += aborted;
                assert_eq!(b.qp.state(), Rts);
            }
            assert_eq!(seen > 0, shared && profile == Spec);
        }
    });
}

/// Sends one datagram of `length` bytes to a posted receive of `room` bytes, or without a receive if `room` is `None`.
/// Returns the result and the counters of both devices.
fn datagram(profile: Profile, length: u32, qkey: u32, room: Option<u32>) -> (Outcome, SoftCounters, SoftCounters) {
    let (mut a, mut b) = Ends::of(profile, QpType::Ud).connected();
    if let Some(room) = room {
        let into = [b.sge(0, room)];
        b.post_recv(1, &into).unwrap();
    }
    let sge = [a.sge(0, length)];
    let to = b.address();
    a.post_to(1, SendOp::Send, &sge, to, qkey).unwrap();
    let devices = (a.device.clone(), b.device.clone());
    (outcome((a, b)), devices.0.counters(), devices.1.counters())
}

#[test]
fn undeliverable_datagrams_are_counted() {
    both(|profile| {
        let nothing = Outcome::new(&[Success], &[], [Rts, Rts]);
        let (got, _, counters) = datagram(profile, 8, QKEY + 1, Some(4_096));
        assert_eq!((got, counters.qkey_violations), (nothing, 1));
        let (got, _, counters) = datagram(profile, 8, QKEY, None);
        assert_eq!((got, counters.rx_out_of_buffer), (Outcome::new(&[Success], &[], [Rts, Rts]), 1));
        let (got, _, _) = datagram(profile, 8, QKEY, Some(47));
        let responder = by(profile, LocLenErr, LocQpOpErr);
        assert_eq!(got, Outcome::new(&[Success], &[responder], [Rts, Err]));
        let (got, ..) = datagram(profile, 8, QKEY, Some(48));
        assert_eq!(got, Outcome::new(&[Success], &[Success], [Rts, Rts]));
        let longest = by(profile, 1_500, 1_024);
        let (got, ..) = datagram(profile, longest, QKEY, Some(4_096));
        assert_eq!(got, Outcome::new(&[Success], &[Success], [Rts, Rts]));
        let (got, sent, _) = datagram(profile, longest + 1, QKEY, Some(4_096));
        let (status, state) = by(profile, (LocLenErr, Sqe), (Success, Rts));
        assert_eq!((got, sent.tx_packets), (Outcome::new(&[status], &[], [state, Rts]), 0));
    });
}

#[test]
fn requested_err_state_flushes_requests() {
    both(|profile| {
        let (mut a, mut b) = Ends::of(profile, QpType::Rc).connected();
        let sge = [a.sge(0, 8)];
        for wr_id in 1..=3 {
            a.post_with(wr_id, SendOp::Send, SendFlags::empty(), &sge).unwrap();
            let into = [a.sge(0, 8)];
            a.post_recv(10 + wr_id, &into).unwrap();
        }
        a.to(Err);
        let flushed = |of: &[u64]| of.iter().map(|wr_id| (*wr_id, WrFlushErr, 0)).collect::<Vec<_>>();
        assert_eq!((a.sent(), a.received()), (flushed(&[1, 2, 3]), flushed(&[11, 12, 13])));
        a.post(4, SendOp::Send, &sge).unwrap();
        a.post_recv(14, &[]).unwrap();
        assert_eq!((a.sent(), a.received()), (flushed(&[4]), flushed(&[14])));
        assert_eq!((b.received(), b.qp.state(), a.events()), (vec![], Rts, vec![]));
    });
}

#[test]
fn reset_discards_requests() {
    both(|profile| {
        let (mut a, mut b) = Ends::of(profile, QpType::Rc).connected();
        let into = [b.sge(0, 8)];
        b.post_recv(1, &into).unwrap();
        b.post_recv(2, &into).unwrap();
        let sge = [a.sge(0, 8)];
        a.post(1, SendOp::Send, &sge).unwrap();
        a.to(QpState::Reset);
        b.to(QpState::Reset);
        let stale = |wr_id, len| by(profile, vec![], vec![(wr_id, Success, len)]);
        assert_eq!(
            (a.sent(), b.received()),
            (stale(1, 0), stale(1, 8)),
            "only rxe keeps the completions from before the reset"
        );
        connect(&mut a, &mut b);
        a.post(3, SendOp::Send, &sge).unwrap();
        assert_eq!((a.sent(), b.received()), (vec![], vec![]), "the receives are discarded");
    });
}

#[test]
fn overrun_fails_the_queue_pairs() {
    let overrun = |profile| {
        let ends = Ends { cq_depth: 4, ..Ends::of(profile, QpType::Rc) };
        let (a, mut b) = ends.connected();
        let depth = a.send.depth();
        for wr_id in 0..2 * u64::from(depth) {
            let into = [b.sge(0, 8)];
            b.post_recv(wr_id, &into).unwrap();
        }
        (a, b, depth)
    };
    // The completion queue of sends overruns. With the standard profile, the queue is unusable. With rxe, the queue
    // stays usable, and only some completions are lost.
    let (mut a, b, depth) = overrun(Spec);
    assert_eq!(depth, 4);
    let sge = [a.sge(0, 8)];
    for wr_id in 0..5 {
        a.post(wr_id, SendOp::RdmaWrite(b.remote(0)), &sge).unwrap();
    }
    assert_eq!(a.send.poll_run(&mut Completions::new(), 8).unwrap_err().errno, libc::EIO);
    assert_eq!((a.qp.state(), a.events()), (Err, vec![EventKind::CqErr, EventKind::QpFatal]));
    let (mut a, b, depth) = overrun(Rxe);
    assert_eq!(depth, 7);
    for wr_id in 0..9 {
        a.post(wr_id, SendOp::RdmaWrite(b.remote(0)), &sge.map(|_| a.sge(0, 8))).unwrap();
    }
    assert_eq!((a.sent().len(), a.qp.state(), a.events()), (7, Rts, vec![EventKind::CqErr; 2]));
    a.post(9, SendOp::RdmaWrite(b.remote(0)), &sge.map(|_| a.sge(0, 8))).unwrap();
    assert_eq!(statuses(&a.sent()), [Success]);
    // The completion queue of receives overruns. The queue pair moves to ERR in both profiles.
    for profile in [Spec, Rxe] {
        let (mut a, mut b, depth) = overrun(profile);
        for wr_id in 0..u64::from(depth) + 1 {
            a.post_with(wr_id, SendOp::Send, SendFlags::empty(), &sge.map(|_| a.sge(0, 8))).unwrap();
        }
        assert_eq!(b.qp.state(), Err);
        let events = b.events();
        match profile {
            Spec => assert_eq!(events, [EventKind::CqErr, EventKind::QpFatal]),
            Rxe => assert!(events.len() > 1 && events.iter().all(|event| *event == EventKind::CqErr)),
        }
        assert_eq!(b.recv.poll_run(&mut Completions::new(), 8).is_err(), profile == Spec);
    }
}
