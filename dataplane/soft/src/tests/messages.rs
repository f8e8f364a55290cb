//! Tests of messages, remote memory access and atomic operations on connected queue pairs, and of retries.

use super::ends::*;
use super::*;

use WcStatus::{BadRespErr, RemAccessErr, RemInvReqErr, RetryExcErr, RnrRetryExcErr, Success, WrFlushErr};

const ACK_TIMEOUT: Nanos = Nanos(4_096 << 14);

#[test]
fn message_is_segmented_and_reassembled() {
    for (kind, profile) in [(QpType::Rc, Profile::Spec), (QpType::Uc, Profile::Spec), (QpType::Rc, Profile::Rxe)] {
        let (mut a, mut b) = Ends::of(profile, kind).connected();
        let bytes = frame(3, 10_000);
        a.put(100, &bytes);
        let into = [b.sge(0, 3_000), b.sge(5_000, 0), b.sge(20_000, 9_000)];
        b.post_recv(1, &into).unwrap();
        let from = [a.sge(100, 1), a.sge(101, 9_999)];
        a.post(2, SendOp::SendWithImm(0x1234), &from).unwrap();
        let sent = End::completions(&mut a.send);
        assert_eq!((sent.len(), sent[0].wr_id, sent[0].opcode()), (1, 2, Some(WcOpcode::Send)), "{kind} {profile:?}");
        let got = End::completions(&mut b.recv);
        assert_eq!((got.len(), got[0].byte_len(), got[0].imm()), (1, Some(10_000), Some(0x1234)));
        let rxe = profile == Profile::Rxe;
        let flags = if rxe { WcFlags::WITH_IMM | WcFlags::GRH } else { WcFlags::WITH_IMM };
        assert_eq!(got[0].flags(), Some(flags));
        assert_eq!(sent[0].flags(), Some(if rxe { WcFlags::WITH_IMM } else { WcFlags::empty() }));
        assert_eq!([b.get(0, 3_000), b.get(20_000, 7_000)].concat(), bytes);
    }
}

#[test]
fn remote_memory_is_written_read_and_changed_atomically() {
    let (mut a, mut b) = Ends::default().connected();
    a.put(0, &frame(9, 5_000));
    let from = [a.sge(0, 5_000)];
    a.post(1, SendOp::RdmaWrite(b.remote(1_000)), &from).unwrap();
    assert_eq!(b.get(1_000, 5_000), frame(9, 5_000));
    b.post_recv(7, &[]).unwrap();
    a.post(2, SendOp::RdmaWriteWithImm(b.remote(8_000), 5), &from[..]).unwrap();
    let got = End::completions(&mut b.recv);
    assert_eq!(
        (got[0].opcode(), got[0].byte_len(), got[0].imm()),
        (Some(WcOpcode::RecvRdmaWithImm), Some(5_000), Some(5))
    );
    let into = [a.sge(20_000, 2_000), a.sge(30_000, 3_000)];
    a.post(3, SendOp::RdmaRead(b.remote(1_000)), &into).unwrap();
    assert_eq!([a.get(20_000, 2_000), a.get(30_000, 3_000)].concat(), frame(9, 5_000));
    b.put(0, &7u64.to_ne_bytes());
    let word = [a.sge(64, 8)];
    a.post(4, SendOp::FetchAdd { remote: b.remote(0), add: u64::MAX }, &word).unwrap();
    assert_eq!((a.get(64, 8), b.get(0, 8)), (7u64.to_ne_bytes().to_vec(), 6u64.to_ne_bytes().to_vec()));
    a.post(5, SendOp::CompareSwap { remote: b.remote(0), compare: 5, swap: 1 }, &word).unwrap();
    a.post(6, SendOp::CompareSwap { remote: b.remote(0), compare: 6, swap: 2 }, &word).unwrap();
    assert_eq!((a.get(64, 8), b.get(0, 8)), (6u64.to_ne_bytes().to_vec(), 2u64.to_ne_bytes().to_vec()));
    let sent = End::completions(&mut a.send);
    let opcodes: Vec<_> = sent.iter().filter_map(Completion::opcode).collect();
    use WcOpcode::{CompSwap, FetchAdd, RdmaRead, RdmaWrite};
    assert_eq!(opcodes, [RdmaWrite, RdmaWrite, RdmaRead, FetchAdd, CompSwap, CompSwap]);
    assert_eq!((sent[2].byte_len(), sent[3].byte_len()), (Some(5_000), Some(8)));
    assert_eq!((a.events(), b.events()), (vec![], vec![]));
}

#[test]
fn empty_messages_are_delivered() {
    let (mut a, mut b) = Ends::default().connected();
    b.post_recv(1, &[]).unwrap();
    let nowhere = Remote::default();
    for (wr_id, op) in [SendOp::Send, SendOp::RdmaWrite(nowhere), SendOp::RdmaRead(nowhere)].into_iter().enumerate() {
        a.post(wr_id as u64, op, &[]).unwrap();
    }
    assert_eq!(a.sent(), [(0, Success, 0), (1, Success, 0), (2, Success, 0)]);
    assert_eq!(b.received(), [(1, Success, 0)]);
}

#[test]
fn send_is_retried_until_the_peer_posts_a_receive() {
    let (mut a, mut b) = Ends::default().connected();
    let sge = [a.sge(0, 10)];
    a.post(1, SendOp::Send, &sge).unwrap();
    assert_eq!(a.sent(), []);
    a.clock.advance(Nanos(10_000));
    assert_eq!(a.sent(), []);
    let into = [b.sge(0, 10)];
    b.post_recv(2, &into).unwrap();
    assert_eq!(a.sent(), [], "no retry before the timer expires");
    a.clock.advance(Nanos(10_000));
    assert_eq!((a.sent(), b.received()), (vec![(1, Success, 0)], vec![(2, Success, 10)]));
    assert_eq!(a.device.counters().rnr_naks, 2);
    a.post(3, SendOp::Send, &sge).unwrap();
    for _ in 0..3 {
        assert_eq!(a.sent(), []);
        a.clock.advance(Nanos(10_000));
    }
    assert_eq!(statuses(&a.sent()), [RnrRetryExcErr]);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Err, QpState::Rts));
}

#[test]
fn sends_after_a_send_without_a_receive_use_no_retry_for_lost_packets() {
    let mut ends = Ends::default();
    (ends.attributes.retry_count, ends.attributes.rnr_retry) = (1, 7);
    let (mut a, mut b) = ends.connected();
    let sge = [a.sge(0, 10)];
    a.post_list(&[1, 2, 3].map(|wr_id| (wr_id, SendOp::Send, &sge[..]))).unwrap();
    for _ in 0..20 {
        assert_eq!(a.sent(), []);
        a.clock.advance(Nanos(10_000));
    }
    let into = [b.sge(0, 10)];
    (1..=3).for_each(|wr_id| b.post_recv(wr_id, &into).unwrap());
    a.clock.advance(Nanos(10_000));
    assert_eq!(statuses(&a.sent()), [Success; 3]);
    assert_eq!(a.device.counters().tx_retries, 0);
}

#[test]
fn silent_peer_fails_the_connection() {
    type Silence = fn(&mut End, &mut End);
    let reasons: [(&str, Silence); 4] = [
        ("link down", |_, b| b.device.set_link(false)),
        ("device gone", |_, b| b.device.remove()),
        ("in ERR", |_, b| b.to(QpState::Err)),
        ("no such address", |_, b| b.device.set_gids(&[])),
    ];
    for (reason, silence) in reasons {
        let (mut a, mut b) = Ends::default().connected();
        silence(&mut a, &mut b);
        let sge = [a.sge(0, 10)];
        a.post(1, SendOp::Send, &sge).unwrap();
        a.post_with(2, SendOp::Send, SendFlags::empty(), &sge).unwrap();
        for _ in 0..4 {
            assert_eq!(a.sent(), [], "{reason}");
            a.clock.advance(ACK_TIMEOUT);
        }
        assert_eq!(a.sent(), [(1, RetryExcErr, 0), (2, WrFlushErr, 0)], "{reason}");
        assert_eq!(a.qp.state(), QpState::Err);
    }
}

#[test]
fn peers_with_different_packet_numbers_do_not_communicate() {
    for rq_psn in [5, 0xff_ff00] {
        let (mut a, mut b) = Ends::default().unconnected();
        b.attributes.rq_psn = rq_psn;
        connect(&mut a, &mut b);
        let into = [b.sge(0, 10)];
        b.post_recv(1, &into).unwrap();
        let sge = [a.sge(0, 10)];
        a.post(1, SendOp::Send, &sge).unwrap();
        for _ in 0..4 {
            assert_eq!(a.sent(), []);
            a.clock.advance(ACK_TIMEOUT);
        }
        assert_eq!((statuses(&a.sent()), b.received()), (vec![RetryExcErr], vec![]));
    }
}

#[test]
fn two_queue_pairs_of_one_device_communicate() {
    let (a, _) = Ends::default().unconnected();
    let mut b = Ends::default().on(&a.device, &a.clock);
    let mut a = a;
    (b.attributes.sq_psn, b.attributes.rq_psn) = (a.attributes.rq_psn, a.attributes.sq_psn);
    connect(&mut a, &mut b);
    let into = [b.sge(0, 10)];
    b.post_recv(1, &into).unwrap();
    let sge = [a.sge(0, 10)];
    a.post(1, SendOp::Send, &sge).unwrap();
    assert_eq!((a.sent(), b.received()), (vec![(1, Success, 0)], vec![(1, Success, 10)]));
}

#[test]
fn rxe_unfenced_read_does_not_see_the_changes_of_later_requests() {
    for write in [false, true] {
        let (mut a, b) = Ends::of(Profile::Rxe, QpType::Rc).connected();
        b.put(0, &7u64.to_ne_bytes());
        a.put(512, &9u64.to_ne_bytes());
        let (read, word, source) = ([a.sge(0, 8)], [a.sge(64, 8)], [a.sge(512, 8)]);
        let later: (SendOp<'_>, &[Sge]) = match write {
            true => (SendOp::RdmaWrite(b.remote(0)), &source),
            false => (SendOp::FetchAdd { remote: b.remote(0), add: 2 }, &word),
        };
        a.post_list(&[(1, SendOp::RdmaRead(b.remote(0)), &read), (2, later.0, later.1)]).unwrap();
        assert_eq!(statuses(&a.sent()), [Success; 2]);
        assert_eq!((a.get(0, 8), b.get(0, 8)), (7u64.to_ne_bytes().to_vec(), 9u64.to_ne_bytes().to_vec()), "{write}");
    }
}

#[test]
fn read_with_unequal_path_mtu_fails() {
    for (of_requester, of_responder, length) in [(3, 1, 3_000), (1, 3, 3_000), (3, 1, 600), (1, 3, 600)] {
        let (mut a, mut b) = Ends::default().unconnected();
        (a.attributes.path_mtu, b.attributes.path_mtu) = (of_requester, of_responder);
        connect(&mut a, &mut b);
        b.put(0, &frame(5, length));
        let into = [a.sge(0, length as u32)];
        a.post(1, SendOp::RdmaRead(b.remote(0)), &into).unwrap();
        assert_eq!(statuses(&a.sent()), [BadRespErr], "{of_requester} {of_responder} {length}");
        assert_eq!(a.qp.state(), QpState::Err);
    }
    // The response fits in one packet of either path MTU, so the difference has no effect.
    let (mut a, mut b) = Ends::default().unconnected();
    (a.attributes.path_mtu, b.attributes.path_mtu) = (3, 1);
    connect(&mut a, &mut b);
    b.put(0, &frame(5, 256));
    let into = [a.sge(0, 256)];
    a.post(1, SendOp::RdmaRead(b.remote(0)), &into).unwrap();
    assert_eq!((statuses(&a.sent()), a.get(0, 256)), (vec![Success], frame(5, 256)));
}

#[test]
fn rxe_checks_the_remote_key_of_an_empty_read_only_if_the_read_is_resent() {
    for (profile, known, lost, status) in [
        (Profile::Spec, false, false, Success),
        (Profile::Spec, false, true, Success),
        (Profile::Rxe, false, false, Success),
        (Profile::Rxe, true, true, Success),
        (Profile::Rxe, false, true, RemAccessErr),
    ] {
        let millisecond = 1_000_000;
        let faults = FaultSpec { delay: 1.0, delay_by: period(millisecond), ..FaultSpec::default() };
        let (mut a, b) = Ends { faults, ..Ends::of(profile, QpType::Rc) }.connected();
        let from = if known { b.remote(0) } else { Remote { rkey: Rkey(0xdead), ..b.remote(0) } };
        a.post(1, SendOp::RdmaRead(from), &[]).unwrap();
        let pass = |time| {
            a.clock.advance(Nanos(time));
            a.device.poll_async_event();
        };
        // The request is in transit. If the link of the requester is down when the response arrives, the response is
        // lost.
        a.device.set_link(!lost);
        pass(millisecond);
        a.device.set_link(true);
        for _ in 0..4 {
            pass(4_096 << 14);
        }
        assert_eq!(statuses(&a.sent()), [status], "{profile:?} {known} {lost}");
    }
}

#[test]
fn responder_refuses_more_reads_than_its_limit() {
    for (of_requester, status) in [(1, Success), (4, RemInvReqErr)] {
        let (mut a, mut b) = Ends::default().unconnected();
        a.attributes.max_rd_atomic = of_requester;
        b.attributes.max_dest_rd_atomic = 1;
        connect(&mut a, &mut b);
        let into = [a.sge(0, 10_000)];
        let read = SendOp::RdmaRead(b.remote(0));
        a.post_list(&[(1, read, &into), (2, read, &into)]).unwrap();
        assert_eq!(a.sent(), [(1, Success, 10_000), (2, status, if status == Success { 10_000 } else { 0 })]);
        let events = if status == Success { vec![] } else { vec![EventKind::QpReqErr] };
        assert_eq!(b.events(), events);
    }
}

/// Waits until a condition is true. Does not post or poll, so only the timer threads of the fabrics make progress.
/// Returns `false` after a deadline.
fn happens(condition: impl Fn() -> bool) -> bool {
    let begin = std::time::Instant::now();
    while begin.elapsed() < std::time::Duration::from_secs(20) {
        if condition() {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

#[test]
fn lost_message_is_sent_again_without_a_poll() {
    let (mut a, mut b) = Ends { real_time: true, ..Ends::default() }.unconnected();
    // 4.096 µs times 2^10 is 4 ms.
    a.attributes.timeout = 10;
    connect(&mut a, &mut b);
    let (into, from) = ([b.sge(0, 10)], [a.sge(0, 10)]);
    b.post_recv(1, &into).unwrap();
    b.device.set_link(false);
    a.post(2, SendOp::Send, &from).unwrap();
    b.device.set_link(true);
    assert!(happens(|| b.device.counters().rx_packets == 1));
    assert_eq!((a.sent(), b.received()), (vec![(2, Success, 0)], vec![(1, Success, 10)]));
}

#[test]
fn silent_peer_fails_the_connection_without_a_poll() {
    let (mut a, b) = Ends { real_time: true, ..Ends::default() }.unconnected();
    let mut b = b;
    a.attributes.timeout = 8;
    connect(&mut a, &mut b);
    b.device.set_link(false);
    let from = [a.sge(0, 10)];
    a.post(1, SendOp::Send, &from).unwrap();
    assert!(happens(|| a.qp.state() == QpState::Err));
    assert_eq!(statuses(&a.sent()), [RetryExcErr]);
}

#[test]
fn delayed_message_arrives_without_a_poll() {
    let faults = FaultSpec { delay: 1.0, delay_by: period(1_000_000), ..FaultSpec::default() };
    let (mut a, mut b) = Ends { real_time: true, faults, ..Ends::of(Profile::Spec, QpType::Uc) }.connected();
    let (into, from) = ([b.sge(0, 10)], [a.sge(0, 10)]);
    b.post_recv(1, &into).unwrap();
    a.post(2, SendOp::Send, &from).unwrap();
    assert!(happens(|| b.device.counters().rx_packets == 1));
}
