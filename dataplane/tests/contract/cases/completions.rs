//! Completion queues: how they are made, polled, resized, overrun, and waited for.

use std::time::Duration;

use dataplane::lane::message::{MessageDomain, poll, poll_or_sleep};
use dataplane::provider::{
    Capability, CompletionChannel, CompletionQueue, Completions, CqApi, CqFlags, CqSpec, Device, EventKind, PollFields,
    QpState, QpType, SendFlags, SendOp,
};

use crate::Trial;
use crate::bed::{Connection, EndSpec, Of, Outcome, PATIENCE, Pair, remote, told};

/// Depths and vectors that there are not.
pub(crate) fn creation<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let (most, vectors) = (t.bed.a.capabilities().max_cqe, t.bed.a.capabilities().completion_vectors);
    for (what, spec) in [
        ("least", CqSpec { depth: 1, ..CqSpec::default() }),
        ("no entries", CqSpec::default()),
        ("too many", CqSpec { depth: most + 1, ..CqSpec::default() }),
        ("no such vector", CqSpec { depth: 1, vector: vectors, ..CqSpec::default() }),
    ] {
        let made = t.bed.a.create_cq(&spec, None);
        let enough = made.as_ref().map_or(true, |(cq, granted)| cq.depth() >= 1 && granted.depth == cq.depth());
        t.say(format!("{what}: {} {enough}", told(made)));
    }
    t.expect(
        "least: ok true
         no entries: EINVAL true
         too many: EINVAL true
         no such vector: EINVAL true",
    )
}

/// The same traffic whichever way it is polled.
fn polled_by<D: Device>(t: &mut Trial<'_, D>, api: CqApi) -> Outcome {
    if api != CqApi::Classic {
        t.need(Capability::ExtendedCq)?;
    }
    let spec = EndSpec::new(QpType::Rc);
    let spec = EndSpec { cq: CqSpec { api, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    for round in 0..20u64 {
        for wr_id in 0..8 {
            pair.b.recv(8 * round + wr_id, 0..100)?;
        }
        for wr_id in 0..8 {
            let sges = [pair.a.buffer.sge(0..wr_id as usize)];
            pair.a.post(8 * round + wr_id, SendOp::SendWithImm(wr_id as u32), &sges)?;
        }
        let came = pair.wait(&[(Of::ASent, 8), (Of::BReceived, 8)])?;
        let right = pair.b.received.iter().enumerate().all(|(at, it)| {
            it.wr_id == 8 * round + at as u64
                && it.byte_len() == Some(at as u32)
                && it.imm() == Some(at as u32)
                && it.qp_num() == Some(pair.b.qp.number())
        });
        let sent = pair.a.sent.iter().map(|it| it.wr_id).eq(8 * round..8 * round + 8);
        let exact = (pair.a.sent.len(), pair.b.received.len()) == (8, 8);
        if !(came && right && sent && exact) {
            t.say(format!("round {round}: came {came}, right {right}, sent {sent}, exact {exact}"));
            break;
        }
        pair.a.sent.clear();
        pair.b.received.clear();
    }
    // Nothing comes twice.
    t.see(&mut pair, &[])?;
    t.say("end");
    t.expect("end")
}

pub(crate) fn classic<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    polled_by(t, CqApi::Classic)
}

pub(crate) fn extended<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    polled_by(t, CqApi::Auto)
}

pub(crate) fn extended_one_at_a_time<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    polled_by(t, CqApi::ExtendedSingle)
}

/// Fields that were not asked for are not there.
pub(crate) fn fields_not_asked_for<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let spec = EndSpec::new(QpType::Rc);
    let spec = EndSpec { cq: CqSpec { fields: PollFields::BYTE_LEN, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    pair.wait(&[(Of::ASent, 1), (Of::BReceived, 1)])?;
    let it = pair.b.received.remove(0);
    t.say(format!("{:?} {:?} {:?} {:?}", it.byte_len(), it.cvlan(), it.flow_tag(), it.tag_info()));
    t.say(format!("stamps: {}", it.ticks().is_some() || it.wallclock().is_some()));
    t.expect(
        "Some(20) None None None
         stamps: false",
    )
}

/// What is not to be had is left out by name.
pub(crate) fn refused_by_name<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let flags = CqFlags::IGNORE_OVERRUN | CqFlags::SINGLE_THREADED;
    let fields = PollFields::STANDARD | PollFields::CVLAN | PollFields::FLOW_TAG | PollFields::TM_INFO;
    let (_, granted) = t.bed.a.create_cq(&CqSpec { depth: 8, fields, flags, ..CqSpec::default() }, None)?;
    let mut refused: Vec<&str> = granted.refused.iter().map(|it| it.name()).collect();
    refused.sort_unstable();
    t.say(refused.join(" "));
    let honest = !granted.refused.contains(&Capability::FlowTag) || !granted.fields.contains(PollFields::FLOW_TAG);
    t.say(format!("honest: {honest}"));
    t.expect(
        "cvlan flow_tag tag_matching
         honest: true",
    )
}

/// A run and the cursor give the same, also mixed.
pub(crate) fn runs_and_cursor<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    for wr_id in 0..10 {
        pair.b.recv(wr_id, 0..100)?;
        pair.a.send(wr_id, 0..wr_id as usize)?;
    }
    pair.wait(&[(Of::ASent, 10)])?;
    pair.a.sent.clear();
    // The last of the sends has completed, so all are received.
    let mut got: Vec<(u64, u32)> = pair.b.received.drain(..).map(|it| (it.wr_id, it.byte_len().unwrap_or(99))).collect();
    let (mut run, mut some) = (Completions::new(), Vec::new());
    let begin = std::time::Instant::now();
    while got.len() < 10 && begin.elapsed() < PATIENCE {
        let n = pair.b.recv_cq.poll_run(&mut run, 3)?;
        got.extend((0..n).map(|at| (run.wr_id[at], run.byte_len[at])));
        poll(&mut pair.b.recv_cq, &mut some, 2)?;
        got.extend(some.drain(..).map(|it| (it.wr_id, it.byte_len().unwrap_or(99))));
    }
    t.say(format!("{}", got.iter().copied().eq((0..10).map(|n| (n, n as u32)))));
    t.expect("true")
}

/// Grown with completions inside; they are still there, and there is room for more.
pub(crate) fn resize<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let spec = EndSpec::new(QpType::Rc);
    let spec = EndSpec { cq: CqSpec { depth: 16, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    for wr_id in 0..10 {
        pair.b.recv(wr_id, 0..100)?;
        pair.a.send(wr_id, 0..20)?;
    }
    // Only the sender's are taken out.
    let begin = std::time::Instant::now();
    while pair.a.sent.len() < 10 && begin.elapsed() < PATIENCE {
        poll(&mut pair.a.send_cq, &mut pair.a.sent, 64)?;
        std::thread::yield_now();
    }
    pair.a.sent.clear();
    let grown = pair.b.recv_cq.resize(100);
    t.say(format!("grown: {}", grown.is_ok_and(|depth| depth >= 100)));
    t.say(format!("too small: {}", told(pair.b.recv_cq.resize(1))));
    let most = t.bed.a.capabilities().max_cqe;
    t.say(format!("too large: {}", told(pair.b.recv_cq.resize(most + 1))));
    pair.wait(&[(Of::BReceived, 10)])?;
    t.say(format!("kept: {}", pair.b.received.drain(..).map(|it| it.wr_id).eq(0..10)));
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    t.expect(
        "grown: true
         too small: EINVAL
         too large: EINVAL
         kept: true
         a send 1 SEND
         b receive 1 RECV 20 bytes",
    )
}

/// More completes than there is room for, and nobody polls.
pub(crate) fn overrun<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    while t.bed.a.poll_async_event().is_some() {}
    let spec = EndSpec::new(QpType::Rc);
    let spec = EndSpec { cq: CqSpec { depth: 4, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    let (number, depth) = (pair.a.send_cq.number(), pair.a.send_cq.depth());
    let (far, sges) = (remote(&pair.b, 0), [pair.a.buffer.sge(0..10)]);
    for wr_id in 0..u64::from(depth) + 3 {
        if pair.a.post(wr_id, SendOp::RdmaWrite(far), &sges).is_err() {
            break;
        }
    }
    let event = t.bed.a.wait_async_event(PATIENCE);
    t.say(format!("{:?}", event.filter(|it| it.kind == EventKind::CqErr && it.element == number).map(|it| it.kind)));
    t.say(format!("can be polled: {}", pair.a.send_cq.start_poll().is_ok()));
    // So that no event is left for the next case.
    t.round_trips()?;
    drop(pair);
    while t.bed.a.poll_async_event().is_some() {}
    t.expect(
        "Some(CqErr)
         can be polled: false",
    )
}

/// An end whose receives come out of a channel.
fn with_channel<D: Device>(t: &Trial<'_, D>) -> Outcome<(Pair<D>, D::Channel)> {
    t.need(Capability::Events)?;
    let mut pair = Pair::new(t.bed, EndSpec::new(QpType::Rc))?;
    let channel = t.bed.b.create_channel()?;
    let spec = EndSpec::new(QpType::Rc);
    let domain = MessageDomain::new(&t.bed.b)?;
    let recv_cq = t.bed.b.create_cq(&spec.cq, Some(&channel))?.0;
    let qp_spec = dataplane::provider::QpSpec::new(QpType::Rc, spec.caps);
    pair.b.qp = domain.create_qp(&qp_spec, &pair.b.send_cq, &recv_cq, None)?;
    pair.b.recv_cq = recv_cq;
    pair.b.buffer = domain.buffer(crate::bed::MEMORY, spec.access)?;
    pair.b.domain = domain;
    pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
    Ok((pair, channel))
}

/// One event for an arming, and none without.
pub(crate) fn events<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut pair, channel) = with_channel(t)?;
    let number = pair.b.recv_cq.number();
    for wr_id in 0..3 {
        pair.b.recv(wr_id, 0..100)?;
    }
    pair.a.send(0, 0..10)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    t.say(format!("not armed: {:?}", channel.wait(Duration::ZERO)?));
    pair.b.recv_cq.arm(false)?;
    pair.a.send(1, 0..10)?;
    t.say(format!("armed: {}", channel.wait(PATIENCE)? == Some(number)));
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    pair.a.send(2, 0..10)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    t.say(format!("once: {:?}", channel.wait(Duration::ZERO)?));
    t.expect(
        "a send 0 SEND
         b receive 0 RECV 10 bytes
         not armed: None
         armed: true
         a send 1 SEND
         b receive 1 RECV 10 bytes
         a send 2 SEND
         b receive 2 RECV 10 bytes
         once: None",
    )
}

/// Armed for solicited ones, only those are events.
pub(crate) fn solicited_events<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut pair, channel) = with_channel(t)?;
    for wr_id in 0..3 {
        pair.b.recv(wr_id, 0..100)?;
    }
    pair.b.recv_cq.arm(true)?;
    pair.a.send(0, 0..10)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    t.say(format!("not solicited: {:?}", channel.wait(Duration::ZERO)?));
    let sges = [pair.a.buffer.sge(0..10)];
    pair.a.post_flags(1, SendOp::Send, SendFlags::SIGNALED | SendFlags::SOLICITED, &sges)?;
    t.say(format!("solicited: {}", channel.wait(PATIENCE)?.is_some()));
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    // An error is one too.
    pair.b.recv_cq.arm(true)?;
    pair.b.to(QpState::Err)?;
    t.say(format!("error: {}", channel.wait(PATIENCE)?.is_some()));
    t.see(&mut pair, &[(Of::BReceived, 1)])?;
    t.expect(
        "a send 0 SEND
         b receive 0 RECV 10 bytes
         not solicited: None
         solicited: true
         a send 1 SEND
         b receive 1 RECV 10 bytes
         error: true
         b receive 2 WR_FLUSH_ERR",
    )
}

/// What came before the arming is no event: it is found by looking once more.
pub(crate) fn arm_race<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut pair, channel) = with_channel(t)?;
    let mut got = 0;
    for round in 0..50u64 {
        pair.b.recv(round, 0..100)?;
        pair.a.send(round, 0..10)?;
        let mut some = Vec::new();
        let n = poll_or_sleep(&mut pair.b.recv_cq, &channel, &mut some, 8, PATIENCE)?;
        got += usize::from(n == 1 && some[0].wr_id == round);
        pair.wait(&[(Of::ASent, 1)])?;
        pair.a.sent.clear();
    }
    t.say(format!("{got} of 50"));
    t.expect("50 of 50")
}

/// Each armed queue has an event of its own, with its number.
pub(crate) fn two_queues_one_channel<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    t.need(Capability::Events)?;
    let channel = t.bed.a.create_channel()?;
    let spec = EndSpec::new(QpType::Rc);
    let mut pair = Pair::new(t.bed, spec)?;
    let send_cq = t.bed.a.create_cq(&spec.cq, Some(&channel))?.0;
    let recv_cq = t.bed.a.create_cq(&spec.cq, Some(&channel))?.0;
    let qp_spec = dataplane::provider::QpSpec::new(QpType::Rc, spec.caps);
    pair.a.qp = pair.a.domain.create_qp(&qp_spec, &send_cq, &recv_cq, None)?;
    (pair.a.send_cq, pair.a.recv_cq) = (send_cq, recv_cq);
    pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
    pair.a.send_cq.arm(false)?;
    pair.a.recv_cq.arm(false)?;
    pair.a.recv(1, 0..100)?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..10)?;
    pair.b.send(1, 0..10)?;
    let (mut sent, mut received) = (0, 0);
    for _ in 0..2 {
        // The device in software moves when it is polled.
        pair.b.pump()?;
        match channel.wait(PATIENCE)? {
            Some(number) if number == pair.a.send_cq.number() => sent += 1,
            Some(number) if number == pair.a.recv_cq.number() => received += 1,
            other => t.say(format!("{other:?}")),
        }
    }
    t.say(format!("{sent} {received}"));
    t.see(&mut pair, &[(Of::ASent, 1), (Of::AReceived, 1), (Of::BSent, 1), (Of::BReceived, 1)])?;
    t.expect(
        "1 1
         a send 1 SEND
         a receive 1 RECV 10 bytes
         b send 1 SEND
         b receive 1 RECV 10 bytes",
    )
}
