//! Tests of the states of connected and datagram queue pairs. The tests try every transition with the required
//! attributes, and with every mask that differs from the required attributes in one attribute.

use super::ends::*;
use super::*;

use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];

/// Returns an end whose queue pair is in this state, or `None` if this type of queue pair does not have the state.
fn in_state(kind: QpType, state: QpState) -> Option<End> {
    let (mut a, b) = Ends::of(Profile::Spec, kind).unconnected();
    let to = b.address();
    if state == Reset {
        return Some(a);
    }
    a.init();
    if matches!(state, Rtr | Rts | Sqd | Sqe) {
        a.rtr(to);
    }
    if matches!(state, Rts | Sqd | Sqe) {
        a.rts();
    }
    match state {
        Sqd | Err => a.to(state),
        // A send that this type of queue pair does not support moves the queue pair to SQE.
        Sqe if kind != QpType::Rc => a.post(1, SendOp::RdmaRead(b.remote(0)), &[]).unwrap(),
        Sqe => return None,
        _ => {}
    }
    assert_eq!(a.qp.state(), state);
    Some(a)
}

#[test]
fn transitions_require_exactly_the_attributes_of_check_transition() {
    let mut changes = 0;
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for from in STATES {
            for to in STATES {
                let wants = match check_transition(kind, from, to, AttributeMask::empty()) {
                    Refused(TransitionError::Attributes { missing, .. }) => missing,
                    _ => AttributeMask::empty(),
                };
                let singles = AttributeMask::all().iter();
                let masks = std::iter::once(wants).chain(singles.map(|one| wants ^ one));
                for mask in
                    masks.filter(|mask| !mask.intersects(AttributeMask::ALT_PATH | AttributeMask::PATH_MIG_STATE))
                {
                    let Some(mut end) = in_state(kind, from) else { continue };
                    let path =
                        dataplane_core::verbs::Path { gid: end.device.gid(), ..dataplane_core::verbs::Path::default() };
                    let attributes = QpAttributes { state: to, current_state: from, path, ..end.attributes };
                    let mask = mask | AttributeMask::STATE;
                    let expected = check_transition(kind, from, to, mask).is_ok();
                    let before = end.qp.query().unwrap();
                    let changed = end.qp.modify(&attributes, mask);
                    assert_eq!(changed.is_ok(), expected, "{kind} {from} to {to} with {mask:?}");
                    assert_eq!(end.qp.state(), if expected { to } else { from });
                    if !expected {
                        assert_eq!((changed.unwrap_err().errno, end.qp.query().unwrap()), (libc::EINVAL, before));
                    }
                    changes += 1;
                }
            }
        }
    }
    assert!(changes > 2_000, "{changes}");
}

use std::result::Result::Err as Refused;

#[test]
fn each_state_allows_the_right_operations() {
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        for state in STATES {
            let Some(mut end) = in_state(kind, state) else { continue };
            end.sent();
            assert_eq!(end.post_recv(5, &[]).is_ok(), state != Reset, "{kind} {state}");
            let sends = matches!(state, Rts | Sqd | Sqe | Err);
            let to = (end.device.gid(), QpNum(0x99));
            let posted = match kind {
                QpType::Ud => end.post_to(6, SendOp::Send, &[], to, QKEY),
                _ => end.post(6, SendOp::Send, &[]),
            };
            match posted {
                Ok(()) => assert!(sends, "{kind} {state}"),
                Refused(refused) => assert_eq!((sends, refused.error.errno), (false, libc::EINVAL)),
            }
            let flushed = |is: bool, wr_id| if is { vec![(wr_id, WcStatus::WrFlushErr, 0)] } else { vec![] };
            assert_eq!(end.received(), flushed(state == Err, 5), "{kind} {state}");
            let sent = end.sent();
            if !(state == Rts && kind != QpType::Rc) {
                assert_eq!(sent, flushed(matches!(state, Err | Sqe), 6), "{kind} {state}");
            }
        }
    }
}

#[test]
fn invalid_attributes_are_refused() {
    type Invalidate = fn(&mut QpAttributes);
    let wrong_rtr: [Invalidate; 10] = [
        |it| it.path_mtu = 0,
        |it| it.path_mtu = 4,
        |it| it.path_mtu = 6,
        |it| it.dest_qp = QpNum(1 << 24),
        |it| it.rq_psn = 1 << 24,
        |it| it.max_dest_rd_atomic = 129,
        |it| it.min_rnr_timer = 32,
        |it| it.path.gid = Gid::default(),
        |it| it.path.source_gid_index = 2,
        |it| it.path.port = 2,
    ];
    let wrong_rts: [Invalidate; 5] = [
        |it| it.timeout = 32,
        |it| it.retry_count = 8,
        |it| it.rnr_retry = 8,
        |it| it.sq_psn = 1 << 24,
        |it| it.max_rd_atomic = 129,
    ];
    let mut end = in_state(QpType::Rc, Init).unwrap();
    use AttributeMask as Mask;
    let uc = Mask::STATE | Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
    let rtr = uc | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER;
    let path = dataplane_core::verbs::Path { gid: end.device.gid(), ..dataplane_core::verbs::Path::default() };
    let good = QpAttributes { state: Rtr, path, ..end.attributes };
    let refused = |end: &mut End, invalidate: Invalidate, good, mask| {
        let mut attributes: QpAttributes = good;
        invalidate(&mut attributes);
        assert_eq!(end.qp.modify(&attributes, mask).unwrap_err().errno, libc::EINVAL, "{attributes:?}");
    };
    wrong_rtr.into_iter().for_each(|invalidate| refused(&mut end, invalidate, good, rtr));
    end.qp.modify(&good, rtr).unwrap();
    let rts = Mask::STATE | Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::SQ_PSN | Mask::MAX_QP_RD_ATOMIC;
    let good = QpAttributes { state: Rts, ..good };
    wrong_rts.into_iter().for_each(|invalidate| refused(&mut end, invalidate, good, rts));
    end.qp.modify(&good, rts).unwrap();
    let asked = end.qp.query().unwrap();
    assert_eq!((asked.timeout, asked.dest_qp, asked.path.gid), (14, good.dest_qp, path.gid));
}

#[test]
fn send_that_started_before_sqd_completes_in_sqd() {
    let (mut a, mut b) = Ends::default().connected();
    let sge = [a.sge(0, 8)];
    a.post(1, SendOp::Send, &sge).unwrap();
    let stop = QpAttributes { state: Sqd, notify_drained: true, ..QpAttributes::default() };
    a.qp.modify(&stop, AttributeMask::STATE | AttributeMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    a.post(2, SendOp::Send, &sge).unwrap();
    assert_eq!((a.sent(), a.events()), (vec![], vec![]), "the first send waits for a receive");
    for wr_id in 1..=2 {
        let into = [b.sge(0, 8)];
        b.post_recv(wr_id, &into).unwrap();
    }
    a.clock.advance(Nanos(10_000));
    assert_eq!((statuses(&a.sent()), a.events()), (vec![WcStatus::Success], vec![EventKind::SqDrained]));
    assert_eq!(b.received().len(), 1, "the second send was not started");
    a.to(Rts);
    assert_eq!((a.sent().len(), b.received().len()), (1, 1));
}

#[test]
fn first_message_in_rtr_raises_an_event() {
    for profile in [Profile::Spec, Profile::Rxe] {
        let (mut a, mut b) = Ends::of(profile, QpType::Rc).unconnected();
        let (to_a, to_b) = (a.address(), b.address());
        b.init();
        b.rtr(to_a);
        a.connect(to_b);
        for wr_id in 1..=2 {
            b.post_recv(wr_id, &[]).unwrap();
            a.post(wr_id, SendOp::Send, &[]).unwrap();
        }
        assert_eq!((a.sent().len(), b.received().len()), (2, 2), "a queue pair in RTR responds to messages");
        let event = if profile == Profile::Spec { vec![EventKind::CommEst] } else { vec![] };
        assert_eq!(b.events(), event);
        b.rts();
    }
}
