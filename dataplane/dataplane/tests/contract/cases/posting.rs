//! Cases for posting requests: in which states a post is accepted, and how many requests are accepted.

use dataplane::verbs::{PostError, QpState, QpType, RawDevice, RecvRequest, SendFlags, SendOp, SendRequest, Sge};

use crate::Trial;
use crate::bed::{Connection, EndpointSpec, Outcome, Pair, PairCq, post_result, remote};

/// Posts a receive and a send in every state of the queue pair except SQE.
fn by_state<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType) -> Outcome {
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err] {
        let mut pair = Pair::new(t.bed, EndpointSpec::new(kind))?;
        match state {
            QpState::Reset => {}
            QpState::Init | QpState::Rtr => {
                crate::bed::connect(&mut pair.a, &pair.b, Connection::default(), state)?;
            }
            _ => pair.advance(QpState::Rts, Connection::default(), Connection::default())?,
        }
        if matches!(state, QpState::Sqd | QpState::Err) {
            pair.a.set_state(state)?;
        }
        if kind == QpType::Ud && pair.a.destination.is_none() {
            pair.a.destination = Some((pair.a.domain.create_ah(&pair.a.path(pair.b.address()))?, pair.b.qp.number()));
        }
        let result = |posted: Result<(), PostError>| {
            posted.map_or_else(|it| crate::bed::errno_name(it.error.errno), |()| "ok".to_owned())
        };
        let sges = [pair.a.buffer.sge(0..100)];
        let receive = result(pair.a.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]));
        let send = result(pair.a.post(1, SendOp::Send, &sges));
        t.log(format!("{}: receive {receive}, send {send}", crate::bed::state_name(state)));
    }
    t.expect(
        "RESET: receive EINVAL, send EINVAL
         INIT: receive ok, send EINVAL
         RTR: receive ok, send EINVAL
         RTS: receive ok, send ok
         SQD: receive ok, send ok
         ERR: receive ok, send ok",
    )
}

pub(crate) fn rc_by_state<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    by_state(t, QpType::Rc)
}

pub(crate) fn uc_by_state<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    by_state(t, QpType::Uc)
}

pub(crate) fn ud_by_state<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    by_state(t, QpType::Ud)
}

/// Posts one receive more than the queue has space for. All receives except the last are accepted. In ERR, the
/// accepted receives are flushed in order.
pub(crate) fn receive_queue_full<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let depth = pair.b.qp.caps().recv_depth as usize;
    let sges = [pair.b.buffer.sge(0..100)];
    let requests: Vec<_> = (0..=depth as u64).map(|wr_id| RecvRequest { wr_id, sges: &sges }).collect();
    let refused = pair.b.qp.post_recv(&requests);
    let accepted = refused.as_ref().err().map(|refused| refused.accepted);
    t.log(format!(
        "{}, all but one: {}",
        post_result(refused).split(' ').next().unwrap_or(""),
        accepted == Some(depth)
    ));
    pair.b.set_state(QpState::Err)?;
    pair.wait(&[(PairCq::BReceived, depth)])?;
    let order: Vec<u64> = pair.b.received.drain(..).map(|it| it.wr_id).collect();
    t.log(format!("flushed in order: {}", order == (0..depth as u64).collect::<Vec<_>>()));
    t.wait_and_log(&mut pair, &[])?;
    t.expect(
        "ENOMEM, all but one: true
         flushed in order: true",
    )
}

/// Posts one send more than the queue has space for. The peer has no receives, so no send completes before ERR.
pub(crate) fn send_queue_full<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let endless_retry = Connection { rnr_retry: 7, ..Connection::default() };
    let mut pair = t.pair_with(EndpointSpec::new(QpType::Rc), endless_retry, Connection::default())?;
    let depth = pair.a.qp.caps().send_depth as usize;
    let sges = [pair.a.buffer.sge(0..10)];
    let requests: Vec<_> = (0..=depth as u64)
        .map(|wr_id| SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to: None })
        .collect();
    let refused = pair.a.qp.post_send(&requests);
    let accepted = refused.as_ref().err().map(|refused| refused.accepted);
    t.log(format!(
        "{}, all but one: {}",
        post_result(refused).split(' ').next().unwrap_or(""),
        accepted == Some(depth)
    ));
    pair.a.set_state(QpState::Err)?;
    pair.wait(&[(PairCq::ASent, depth)])?;
    let order: Vec<u64> = pair.a.sent.drain(..).map(|it| it.wr_id).collect();
    t.log(format!("flushed in order: {}", order == (0..depth as u64).collect::<Vec<_>>()));
    t.wait_and_log(&mut pair, &[])?;
    t.expect(
        "ENOMEM, all but one: true
         flushed in order: true",
    )
}

/// Without a signalled request, no entry of the send queue becomes free.
pub(crate) fn unsignalled_fills_the_queue<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let far = remote(&pair.b, 0);
    let sges = [pair.a.buffer.sge(0..10)];
    let depth = pair.a.qp.caps().send_depth;
    let mut taken = 0;
    // Writes need no action by the peer.
    for wr_id in 0..u64::from(depth) * 4 {
        if pair.a.post_flags(wr_id, SendOp::RdmaWrite(far), SendFlags::empty(), &sges).is_err() {
            break;
        }
        taken += 1;
        if taken % depth == 0 {
            // After these round trips, the earlier requests have been executed.
            t.round_trips()?;
            pair.poll_queues()?;
        }
    }
    t.log(format!("accepted: {} times the depth", f64::from(taken) / f64::from(depth)));
    t.wait_and_log(&mut pair, &[])?;
    t.expect("accepted: 1 times the depth")
}

/// In each round, only the last request is signalled. The completion of this request frees the queue entries of all
/// requests of the round.
pub(crate) fn one_signalled_request_frees_all<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let far = remote(&pair.b, 0);
    let sges = [pair.a.buffer.sge(0..10)];
    let depth = u64::from(pair.a.qp.caps().send_depth);
    let mut ended = 0;
    for round in 0..10 {
        for at in 0..depth {
            let flags = if at + 1 == depth { SendFlags::SIGNALED } else { SendFlags::empty() };
            pair.a.post_flags(round * depth + at, SendOp::RdmaWrite(far), flags, &sges)?;
        }
        if !pair.wait(&[(PairCq::ASent, 1)])? {
            break;
        }
        ended += pair.a.sent.drain(..).filter(|it| it.wr_id == round * depth + depth - 1).count();
    }
    t.log(format!("{ended} rounds"));
    t.expect("10 rounds")
}

/// With `signal_all`, every send generates a completion, signalled or not.
pub(crate) fn signal_all<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let spec = EndpointSpec { signal_all: true, ..EndpointSpec::new(QpType::Rc) };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    let far = remote(&pair.b, 0);
    let sges = [pair.a.buffer.sge(0..10)];
    for wr_id in 0..3 {
        pair.a.post_flags(wr_id, SendOp::RdmaWrite(far), SendFlags::empty(), &sges)?;
    }
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 3)])?;
    t.expect(
        "a send 0 RDMA_WRITE
         a send 1 RDMA_WRITE
         a send 2 RDMA_WRITE",
    )
}

/// A request with more scatter/gather elements than the queue pair allows is refused. The preceding requests of the
/// same call are accepted.
pub(crate) fn too_many_elements<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let caps = (pair.a.qp.caps(), pair.b.qp.caps());
    let one = [pair.b.buffer.sge(0..100)];
    let many: Vec<Sge> = vec![one[0]; caps.1.recv_sges as usize + 1];
    let refused = pair.b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &one }, RecvRequest { wr_id: 2, sges: &many }]);
    t.log(format!("receive: {}", post_result(refused)));
    let one = [pair.a.buffer.sge(0..10)];
    let many: Vec<Sge> = vec![one[0]; caps.0.send_sges as usize + 1];
    let request = |wr_id, sges| SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges, to: None };
    let refused = pair.a.qp.post_send(&[request(1, &one[..]), request(2, &many[..]), request(3, &one[..])]);
    // Do not log the errno, because some providers return ENOMEM instead of EINVAL.
    let accepted = refused.as_ref().err().map(|refused| refused.accepted);
    t.log(format!("send: after {accepted:?}"));
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "receive: EINVAL after 1
         send: after Some(1)
         a send 1 SEND
         b receive 1 RECV 10 bytes
         a RTS, b RTS",
    )
}

/// Receives that are posted in INIT are used as soon as the queue pair can receive.
pub(crate) fn receives_posted_in_init<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = Pair::new(t.bed, EndpointSpec::new(QpType::Rc))?;
    let with = Connection::default();
    let (attributes, mask) = with.step(&pair.b, QpState::Init, pair.a.address(), pair.a.qp.number());
    pair.b.qp.modify(&attributes, mask)?;
    pair.b.recv(1, 0..100)?;
    for state in [QpState::Rtr, QpState::Rts] {
        let (attributes, mask) = with.step(&pair.b, state, pair.a.address(), pair.a.qp.number());
        pair.b.qp.modify(&attributes, mask)?;
    }
    crate::bed::connect(&mut pair.a, &pair.b, with, QpState::Rts)?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 20 bytes",
    )
}

/// A queue pair in RTR receives messages.
pub(crate) fn rtr_receives<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = Pair::new(t.bed, EndpointSpec::new(QpType::Rc))?;
    crate::bed::connect(&mut pair.a, &pair.b, Connection::default(), QpState::Rts)?;
    crate::bed::connect(&mut pair.b, &pair.a, Connection::default(), QpState::Rtr)?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 20 bytes
         a RTS, b RTR",
    )
}

/// A send that is posted in SQD starts only after the change to RTS. The event `SQ_DRAINED` reports that all sends that
/// were posted before SQD have completed.
pub(crate) fn sqd_holds_sends<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    while t.bed.a.poll_async_event().is_some() {}
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.recv(1, 0..100)?;
    let (attributes, mask) = dataplane::verbs::QpAttributes::to(QpState::Sqd);
    let notify = dataplane::verbs::AttributeMask::EN_SQD_ASYNC_NOTIFY;
    let attributes = dataplane::verbs::QpAttributes { notify_drained: true, ..attributes };
    pair.a.enter_sqd(&attributes, mask | notify)?;
    let event = t.bed.a.wait_async_event(crate::bed::COMPLETION_TIMEOUT);
    t.log(format!("{:?}", event.map(|event| (event.kind, event.element == pair.a.qp.number().0))));
    pair.a.send(1, 0..20)?;
    t.round_trips()?;
    t.wait_and_log(&mut pair, &[])?;
    t.log_states(&pair)?;
    pair.a.set_state(QpState::Rts)?;
    // rxe, the kernel's software RoCE driver, sends the waiting requests only when the next request is posted.
    pair.b.recv(2, 0..100)?;
    pair.a.send(2, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 2), (PairCq::BReceived, 2)])?;
    t.expect(
        "Some((SqDrained, true))
         a SQD, b RTS
         a send 1 SEND
         a send 2 SEND
         b receive 1 RECV 20 bytes
         b receive 2 RECV 20 bytes",
    )
}
