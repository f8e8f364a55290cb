//! Cases for completion queues: creation, polling, resizing, overrun and events.

use std::time::Duration;

use dataplane::lane::message::{MessageDomain, poll, poll_or_sleep};
use dataplane::verbs::{
    Capability, CompletionChannel, CompletionQueue, Completions, CqApi, CqFlags, CqSpec, Device, EventKind, PollFields,
    QpState, QpType, SendFlags, SendOp,
};

use crate::Trial;
use crate::bed::{Connection, EndpointSpec, PairCq, Outcome, COMPLETION_TIMEOUT, Pair, remote, verb_result};

/// A device rejects depths and completion vectors that it does not support.
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
        t.log(format!("{what}: {} {enough}", verb_result(made)));
    }
    t.expect(
        "least: ok true
         no entries: EINVAL true
         too many: EINVAL true
         no such vector: EINVAL true",
    )
}

/// Checks traffic with one of the polling interfaces (`api`). Every interface must return the same completions.
fn polled_by<D: Device>(t: &mut Trial<'_, D>, api: CqApi) -> Outcome {
    if api != CqApi::Classic {
        t.require(Capability::ExtendedCq)?;
    }
    let spec = EndpointSpec::new(QpType::Rc);
    let (_, granted) = t.bed.a.create_cq(&CqSpec { api, ..spec.cq }, None)?;
    t.log(format!("as requested: {}", granted.api == api));
    let spec = EndpointSpec { cq: CqSpec { api, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    for round in 0..20u64 {
        for wr_id in 0..8 {
            pair.b.recv(8 * round + wr_id, 0..100)?;
        }
        for wr_id in 0..8 {
            let sges = [pair.a.buffer.sge(0..wr_id as usize)];
            pair.a.post(8 * round + wr_id, SendOp::SendWithImm(wr_id as u32), &sges)?;
        }
        let came = pair.wait(&[(PairCq::ASent, 8), (PairCq::BReceived, 8)])?;
        let right = pair.b.received.iter().enumerate().all(|(at, it)| {
            it.wr_id == 8 * round + at as u64
                && it.byte_len() == Some(at as u32)
                && it.imm() == Some(at as u32)
                && it.qp_num() == Some(pair.b.qp.number())
        });
        let sent = pair.a.sent.iter().map(|it| it.wr_id).eq(8 * round..8 * round + 8);
        let exact = (pair.a.sent.len(), pair.b.received.len()) == (8, 8);
        if !(came && right && sent && exact) {
            t.log(format!("round {round}: came {came}, right {right}, sent {sent}, exact {exact}"));
            break;
        }
        pair.a.sent.clear();
        pair.b.received.clear();
    }
    // This must log nothing, because no completion is returned twice.
    t.wait_and_log(&mut pair, &[])?;
    t.expect("as requested: true")
}

pub(crate) fn classic<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    polled_by(t, CqApi::Classic)
}

pub(crate) fn extended<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    polled_by(t, CqApi::Extended)
}

pub(crate) fn extended_one_at_a_time<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    polled_by(t, CqApi::ExtendedSingle)
}

/// Fields that were not requested are absent.
pub(crate) fn unrequested_fields_are_absent<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let spec = EndpointSpec::new(QpType::Rc);
    let spec = EndpointSpec { cq: CqSpec { fields: PollFields::BYTE_LEN, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    let it = pair.b.received.remove(0);
    t.log(format!("{:?} {:?} {:?} {:?}", it.byte_len(), it.cvlan(), it.flow_tag(), it.tag_info()));
    t.log(format!("stamps: {}", it.ticks().is_some() || it.wallclock().is_some()));
    t.expect(
        "Some(20) None None None
         stamps: false",
    )
}

/// If a device does not support requested fields or flags, the result of `create_cq` lists them as refused.
pub(crate) fn refused_capabilities_are_listed<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let flags = CqFlags::IGNORE_OVERRUN | CqFlags::SINGLE_THREADED;
    let fields = PollFields::STANDARD | PollFields::CVLAN | PollFields::FLOW_TAG | PollFields::TM_INFO;
    let (_, granted) = t.bed.a.create_cq(&CqSpec { depth: 8, fields, flags, ..CqSpec::default() }, None)?;
    let mut refused: Vec<&str> = granted.refused.iter().map(|it| it.name()).collect();
    refused.sort_unstable();
    t.log(refused.join(" "));
    let honest = !granted.refused.contains(&Capability::FlowTag) || !granted.fields.contains(PollFields::FLOW_TAG);
    t.log(format!("honest: {honest}"));
    t.expect(
        "cvlan flow_tag tag_matching
         honest: true",
    )
}

/// Completions can be polled in batches (`poll_run`) or one by one (`poll`). Both ways together return each completion
/// once and in order.
pub(crate) fn runs_and_cursor<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    for wr_id in 0..10 {
        pair.b.recv(wr_id, 0..100)?;
        pair.a.send(wr_id, 0..wr_id as usize)?;
    }
    pair.wait(&[(PairCq::ASent, 10)])?;
    pair.a.sent.clear();
    // The last of the sends has completed, so all messages have arrived.
    let mut got: Vec<(u64, u32)> = pair.b.received.drain(..).map(|it| (it.wr_id, it.byte_len().unwrap_or(99))).collect();
    let (mut run, mut some) = (Completions::new(), Vec::new());
    let begin = std::time::Instant::now();
    while got.len() < 10 && begin.elapsed() < COMPLETION_TIMEOUT {
        let n = pair.b.recv_cq.poll_run(&mut run, 3)?;
        got.extend((0..n).map(|at| (run.wr_id[at], run.byte_len[at])));
        poll(&mut pair.b.recv_cq, &mut some, 2)?;
        got.extend(some.drain(..).map(|it| (it.wr_id, it.byte_len().unwrap_or(99))));
    }
    t.log(format!("{}", got.iter().copied().eq((0..10).map(|n| (n, n as u32)))));
    t.expect("true")
}

/// An enlarged queue keeps its completions and has space for more.
pub(crate) fn resize<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let spec = EndpointSpec::new(QpType::Rc);
    let spec = EndpointSpec { cq: CqSpec { depth: 16, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    for wr_id in 0..10 {
        pair.b.recv(wr_id, 0..100)?;
        pair.a.send(wr_id, 0..20)?;
    }
    // Poll only the sender's completions.
    let begin = std::time::Instant::now();
    while pair.a.sent.len() < 10 && begin.elapsed() < COMPLETION_TIMEOUT {
        poll(&mut pair.a.send_cq, &mut pair.a.sent, 64)?;
        std::thread::yield_now();
    }
    pair.a.sent.clear();
    let grown = pair.b.recv_cq.resize(100);
    t.log(format!("grown: {}", grown.is_ok_and(|depth| depth >= 100)));
    t.log(format!("too small: {}", verb_result(pair.b.recv_cq.resize(1))));
    let most = t.bed.a.capabilities().max_cqe;
    t.log(format!("too large: {}", verb_result(pair.b.recv_cq.resize(most + 1))));
    pair.wait(&[(PairCq::BReceived, 10)])?;
    t.log(format!("kept: {}", pair.b.received.drain(..).map(|it| it.wr_id).eq(0..10)));
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.expect(
        "grown: true
         too small: EINVAL
         too large: EINVAL
         kept: true
         a send 1 SEND
         b receive 1 RECV 20 bytes",
    )
}

/// More requests complete than the queue has space for, because the queue is not polled.
pub(crate) fn overrun<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    while t.bed.a.poll_async_event().is_some() {}
    let spec = EndpointSpec::new(QpType::Rc);
    let spec = EndpointSpec { cq: CqSpec { depth: 4, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    let (number, depth) = (pair.a.send_cq.number(), pair.a.send_cq.depth());
    let (far, sges) = (remote(&pair.b, 0), [pair.a.buffer.sge(0..10)]);
    for wr_id in 0..u64::from(depth) + 3 {
        if pair.a.post(wr_id, SendOp::RdmaWrite(far), &sges).is_err() {
            break;
        }
    }
    let event = t.bed.a.wait_async_event(COMPLETION_TIMEOUT);
    t.log(format!("{:?}", event.filter(|it| it.kind == EventKind::CqErr && it.element == number).map(|it| it.kind)));
    t.log(format!("can be polled: {}", pair.a.send_cq.start_poll().is_ok()));
    // Leave no event for the next case.
    t.round_trips()?;
    drop(pair);
    while t.bed.a.poll_async_event().is_some() {}
    t.expect(
        "Some(CqErr)
         can be polled: false",
    )
}

/// Creates a pair whose second endpoint receives through a completion channel.
fn with_channel<D: Device>(t: &Trial<'_, D>) -> Outcome<(Pair<D>, D::Channel)> {
    t.require(Capability::Events)?;
    let mut pair = Pair::new(t.bed, EndpointSpec::new(QpType::Rc))?;
    let channel = t.bed.b.create_channel()?;
    let spec = EndpointSpec::new(QpType::Rc);
    let domain = MessageDomain::new(&t.bed.b)?;
    let recv_cq = t.bed.b.create_cq(&spec.cq, Some(&channel))?.0;
    let qp_spec = dataplane::verbs::QpSpec::new(QpType::Rc, spec.caps);
    pair.b.qp = domain.create_qp(&qp_spec, &pair.b.send_cq, &recv_cq, None)?;
    pair.b.recv_cq = recv_cq;
    pair.b.buffer = domain.buffer(crate::bed::MEMORY, spec.access)?;
    pair.b.domain = domain;
    pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
    Ok((pair, channel))
}

/// An armed queue raises at most one event. A queue that is not armed raises no event.
pub(crate) fn events<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut pair, channel) = with_channel(t)?;
    let number = pair.b.recv_cq.number();
    for wr_id in 0..3 {
        pair.b.recv(wr_id, 0..100)?;
    }
    pair.a.send(0, 0..10)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("not armed: {:?}", channel.wait(Duration::ZERO)?));
    pair.b.recv_cq.arm(false)?;
    pair.a.send(1, 0..10)?;
    t.log(format!("armed: {}", channel.wait(COMPLETION_TIMEOUT)? == Some(number)));
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    pair.a.send(2, 0..10)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("once: {:?}", channel.wait(Duration::ZERO)?));
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

/// A queue that is armed for solicited completions raises no event for other successful completions.
pub(crate) fn solicited_events<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut pair, channel) = with_channel(t)?;
    for wr_id in 0..3 {
        pair.b.recv(wr_id, 0..100)?;
    }
    pair.b.recv_cq.arm(true)?;
    pair.a.send(0, 0..10)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("not solicited: {:?}", channel.wait(Duration::ZERO)?));
    let sges = [pair.a.buffer.sge(0..10)];
    pair.a.post_flags(1, SendOp::Send, SendFlags::SIGNALED | SendFlags::SOLICITED, &sges)?;
    t.log(format!("solicited: {}", channel.wait(COMPLETION_TIMEOUT)?.is_some()));
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    // An error completion also raises an event.
    pair.b.recv_cq.arm(true)?;
    pair.b.set_state(QpState::Err)?;
    t.log(format!("error: {}", channel.wait(COMPLETION_TIMEOUT)?.is_some()));
    t.wait_and_log(&mut pair, &[(PairCq::BReceived, 1)])?;
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

/// A completion that arrived before the queue was armed raises no event. `poll_or_sleep` therefore polls once more
/// after arming.
pub(crate) fn arm_race<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut pair, channel) = with_channel(t)?;
    let mut got = 0;
    for round in 0..50u64 {
        pair.b.recv(round, 0..100)?;
        pair.a.send(round, 0..10)?;
        let mut some = Vec::new();
        let n = poll_or_sleep(&mut pair.b.recv_cq, &channel, &mut some, 8, COMPLETION_TIMEOUT)?;
        got += usize::from(n == 1 && some[0].wr_id == round);
        pair.wait(&[(PairCq::ASent, 1)])?;
        pair.a.sent.clear();
    }
    t.log(format!("{got} of 50"));
    t.expect("50 of 50")
}

/// Each armed queue raises its own event, with its own number.
pub(crate) fn two_queues_one_channel<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Events)?;
    let channel = t.bed.a.create_channel()?;
    let spec = EndpointSpec::new(QpType::Rc);
    let mut pair = Pair::new(t.bed, spec)?;
    let send_cq = t.bed.a.create_cq(&spec.cq, Some(&channel))?.0;
    let recv_cq = t.bed.a.create_cq(&spec.cq, Some(&channel))?.0;
    let qp_spec = dataplane::verbs::QpSpec::new(QpType::Rc, spec.caps);
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
        // The software device makes progress only while it is polled.
        pair.b.poll_queues()?;
        match channel.wait(COMPLETION_TIMEOUT)? {
            Some(number) if number == pair.a.send_cq.number() => sent += 1,
            Some(number) if number == pair.a.recv_cq.number() => received += 1,
            other => t.log(format!("{other:?}")),
        }
    }
    t.log(format!("{sent} {received}"));
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::AReceived, 1), (PairCq::BSent, 1), (PairCq::BReceived, 1)])?;
    t.expect(
        "1 1
         a send 1 SEND
         a receive 1 RECV 10 bytes
         b send 1 SEND
         b receive 1 RECV 10 bytes",
    )
}
