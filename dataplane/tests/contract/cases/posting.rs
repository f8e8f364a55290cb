//! What can be posted, when, and how many.

use dataplane::provider::{
    Device, PostError, QpState, QpType, RecvRequest, SendFlags, SendOp, SendRequest, Sge,
};

use crate::Trial;
use crate::bed::{Connection, EndSpec, Of, Outcome, Pair, remote, told_post};

/// Posting by state of the queue pair.
fn by_state<D: Device>(t: &mut Trial<'_, D>, kind: QpType) -> Outcome {
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err] {
        let mut pair = Pair::new(t.bed, EndSpec::new(kind))?;
        match state {
            QpState::Reset => {}
            QpState::Init | QpState::Rtr => {
                crate::bed::join(&mut pair.a, &pair.b, Connection::default(), state)?;
            }
            _ => pair.advance(QpState::Rts, Connection::default(), Connection::default())?,
        }
        if matches!(state, QpState::Sqd | QpState::Err) {
            pair.a.to(state)?;
        }
        if kind == QpType::Ud && pair.a.to.is_none() {
            pair.a.to = Some((pair.a.domain.create_ah(&pair.a.path(pair.b.gid.0))?, pair.b.qp.number()));
        }
        let told = |posted: Result<(), PostError>| posted.map_or_else(|it| crate::bed::errno_name(it.error.errno), |()| "ok".to_owned());
        let sges = [pair.a.buffer.sge(0..100)];
        let receive = told(pair.a.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]));
        let send = told(pair.a.post(1, SendOp::Send, &sges));
        t.say(format!("{}: receive {receive}, send {send}", crate::bed::name(state)));
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

pub(crate) fn rc_by_state<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    by_state(t, QpType::Rc)
}

pub(crate) fn uc_by_state<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    by_state(t, QpType::Uc)
}

pub(crate) fn ud_by_state<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    by_state(t, QpType::Ud)
}

/// One more than the receive queue has room for: those before it are in, and complete.
pub(crate) fn receive_queue_full<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let depth = pair.b.qp.caps().recv_depth as usize;
    let sges = [pair.b.buffer.sge(0..100)];
    let requests: Vec<_> = (0..=depth as u64).map(|wr_id| RecvRequest { wr_id, sges: &sges }).collect();
    let refused = pair.b.qp.post_recv(&requests);
    let accepted = refused.as_ref().err().map(|refused| refused.accepted);
    t.say(format!("{}, all but one: {}", told_post(refused).split(' ').next().unwrap_or(""), accepted == Some(depth)));
    pair.b.to(QpState::Err)?;
    pair.wait(&[(Of::BReceived, depth)])?;
    let order: Vec<u64> = pair.b.received.drain(..).map(|it| it.wr_id).collect();
    t.say(format!("flushed in order: {}", order == (0..depth as u64).collect::<Vec<_>>()));
    t.see(&mut pair, &[])?;
    t.expect(
        "ENOMEM, all but one: true
         flushed in order: true",
    )
}

/// Posts what the peer takes none of, one more than there is room for.
pub(crate) fn send_queue_full<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let for_ever = Connection { rnr_retry: 7, ..Connection::default() };
    let mut pair = t.pair_with(EndSpec::new(QpType::Rc), for_ever, Connection::default())?;
    let depth = pair.a.qp.caps().send_depth as usize;
    let sges = [pair.a.buffer.sge(0..10)];
    let requests: Vec<_> = (0..=depth as u64)
        .map(|wr_id| SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to: None })
        .collect();
    let refused = pair.a.qp.post_send(&requests);
    let accepted = refused.as_ref().err().map(|refused| refused.accepted);
    t.say(format!("{}, all but one: {}", told_post(refused).split(' ').next().unwrap_or(""), accepted == Some(depth)));
    pair.a.to(QpState::Err)?;
    pair.wait(&[(Of::ASent, depth)])?;
    let order: Vec<u64> = pair.a.sent.drain(..).map(|it| it.wr_id).collect();
    t.say(format!("flushed in order: {}", order == (0..depth as u64).collect::<Vec<_>>()));
    t.see(&mut pair, &[])?;
    t.expect(
        "ENOMEM, all but one: true
         flushed in order: true",
    )
}

/// Without signals nothing is ever given back.
pub(crate) fn unsignalled_fills_the_queue<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let far = remote(&pair.b, 0);
    let sges = [pair.a.buffer.sge(0..10)];
    let depth = pair.a.qp.caps().send_depth;
    let mut taken = 0;
    // Writes, so that the peer need not do anything.
    for wr_id in 0..u64::from(depth) * 4 {
        if pair.a.post_flags(wr_id, SendOp::RdmaWrite(far), SendFlags::empty(), &sges).is_err() {
            break;
        }
        taken += 1;
        if taken % depth == 0 {
            // Those before have been carried out.
            t.round_trips()?;
            pair.pump()?;
        }
    }
    t.say(format!("taken: {} times its depth", f64::from(taken) / f64::from(depth)));
    t.see(&mut pair, &[])?;
    t.expect("taken: 1 times its depth")
}

/// The last of a chain is signalled; its completion gives all of them back.
pub(crate) fn one_signal_gives_all_back<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
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
        if !pair.wait(&[(Of::ASent, 1)])? {
            break;
        }
        ended += pair.a.sent.drain(..).filter(|it| it.wr_id == round * depth + depth - 1).count();
    }
    t.say(format!("{ended} rounds"));
    t.expect("10 rounds")
}

/// Every send completes with an entry, asked for or not.
pub(crate) fn signal_all<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let spec = EndSpec { signal_all: true, ..EndSpec::new(QpType::Rc) };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    let far = remote(&pair.b, 0);
    let sges = [pair.a.buffer.sge(0..10)];
    for wr_id in 0..3 {
        pair.a.post_flags(wr_id, SendOp::RdmaWrite(far), SendFlags::empty(), &sges)?;
    }
    t.see(&mut pair, &[(Of::ASent, 3)])?;
    t.expect(
        "a send 0 RDMA_WRITE
         a send 1 RDMA_WRITE
         a send 2 RDMA_WRITE",
    )
}

/// More elements than were granted; those before it in the chain are in.
pub(crate) fn too_many_elements<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let caps = (pair.a.qp.caps(), pair.b.qp.caps());
    let one = [pair.b.buffer.sge(0..100)];
    let many: Vec<Sge> = vec![one[0]; caps.1.recv_sges as usize + 1];
    let refused = pair.b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &one }, RecvRequest { wr_id: 2, sges: &many }]);
    t.say(format!("receive: {}", told_post(refused)));
    let one = [pair.a.buffer.sge(0..10)];
    let many: Vec<Sge> = vec![one[0]; caps.0.send_sges as usize + 1];
    let request = |wr_id, sges| SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges, to: None };
    let refused = pair.a.qp.post_send(&[request(1, &one[..]), request(2, &many[..]), request(3, &one[..])]);
    // ENOMEM of some providers.
    let accepted = refused.as_ref().err().map(|refused| refused.accepted);
    t.say(format!("send: after {accepted:?}"));
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    t.states(&pair)?;
    t.expect(
        "receive: EINVAL after 1
         send: after Some(1)
         a send 1 SEND
         b receive 1 RECV 10 bytes
         a RTS, b RTS",
    )
}

/// Receives posted in INIT are used once the queue pair receives.
pub(crate) fn receives_posted_early<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = Pair::new(t.bed, EndSpec::new(QpType::Rc))?;
    let with = Connection::default();
    let (attributes, mask) = with.step(&pair.b, QpState::Init, pair.a.gid.0, pair.a.qp.number());
    pair.b.qp.modify(&attributes, mask)?;
    pair.b.recv(1, 0..100)?;
    for state in [QpState::Rtr, QpState::Rts] {
        let (attributes, mask) = with.step(&pair.b, state, pair.a.gid.0, pair.a.qp.number());
        pair.b.qp.modify(&attributes, mask)?;
    }
    crate::bed::join(&mut pair.a, &pair.b, with, QpState::Rts)?;
    pair.a.send(1, 0..20)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 20 bytes",
    )
}

/// RTR is enough to be sent to.
pub(crate) fn rtr_receives<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = Pair::new(t.bed, EndSpec::new(QpType::Rc))?;
    crate::bed::join(&mut pair.a, &pair.b, Connection::default(), QpState::Rts)?;
    crate::bed::join(&mut pair.b, &pair.a, Connection::default(), QpState::Rtr)?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    t.states(&pair)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 20 bytes
         a RTS, b RTR",
    )
}

/// What is posted in SQD waits for RTS; when what was under way is done, there is an event.
pub(crate) fn sqd_holds_sends_back<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    while t.bed.a.poll_async_event().is_some() {}
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.recv(1, 0..100)?;
    let (attributes, mask) = dataplane::provider::QpAttributes::to(QpState::Sqd);
    let notify = dataplane::provider::AttributeMask::EN_SQD_ASYNC_NOTIFY;
    let attributes = dataplane::provider::QpAttributes { notify_drained: true, ..attributes };
    pair.a.qp.modify(&attributes, mask | notify)?;
    let event = t.bed.a.wait_async_event(crate::bed::PATIENCE);
    t.say(format!("{:?}", event.map(|event| (event.kind, event.element == pair.a.qp.number().0))));
    pair.a.send(1, 0..20)?;
    t.round_trips()?;
    t.see(&mut pair, &[])?;
    t.states(&pair)?;
    pair.a.to(QpState::Rts)?;
    // The doorbell of the next rings for those as well: rxe waits for it.
    pair.b.recv(2, 0..100)?;
    pair.a.send(2, 0..20)?;
    t.see(&mut pair, &[(Of::ASent, 2), (Of::BReceived, 2)])?;
    t.expect(
        "Some((SqDrained, true))
         a SQD, b RTS
         a send 1 SEND
         a send 2 SEND
         b receive 1 RECV 20 bytes
         b receive 2 RECV 20 bytes",
    )
}
