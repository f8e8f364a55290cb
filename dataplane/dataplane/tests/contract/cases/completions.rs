//! Cases for completion queues: creation, polling, resizing, overrun and events.

use std::time::{Duration, Instant};

use dataplane::lane::message::{MessageDomain, poll, poll_or_sleep};
use dataplane::verbs::{
    Capability, CompletionChannel, CompletionQueue, Completions, CqApi, CqEvent, CqFlags, CqSpec, EventKind, LinkLayer,
    PollFields, QpCaps, QpSpec, QpState, QpType, RawDevice, SendFlags, SendOp, WcFlags,
};

use crate::Trial;
use crate::bed::{
    COMPLETION_TIMEOUT, Connection, Endpoint, EndpointSpec, MEMORY, Outcome, Pair, PairCq, Stop, errno_name, remote,
    status_name, verb_result,
};
use crate::cases::bad_lkey;

/// A device rejects depths and completion vectors that it does not support.
pub(crate) fn creation<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
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
fn polled_by<D: RawDevice>(t: &mut Trial<'_, D>, api: CqApi) -> Outcome {
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
    // This call must log nothing, because each completion is returned only once.
    t.wait_and_log(&mut pair, &[])?;
    t.expect("as requested: true")
}

pub(crate) fn classic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    polled_by(t, CqApi::Classic)
}

pub(crate) fn extended<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    polled_by(t, CqApi::Extended)
}

pub(crate) fn extended_one_at_a_time<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    polled_by(t, CqApi::ExtendedSingle)
}

/// Fields that were not requested are absent.
pub(crate) fn unrequested_fields_are_absent<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let spec = EndpointSpec::new(QpType::Rc);
    let spec = EndpointSpec { cq: CqSpec { fields: PollFields::BYTE_LEN, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    let it = pair.b.received.remove(0);
    t.log(format!("length {:?}, VLAN {:?}, flow tag {:?}", it.byte_len(), it.cvlan(), it.flow_tag()));
    t.log(format!("tag matching {:?}", it.tag_info()));
    t.log(format!("has timestamps: {}", it.ticks().is_some() || it.wallclock().is_some()));
    t.expect(
        "length Some(20), VLAN None, flow tag None
         tag matching None
         has timestamps: false",
    )
}

/// If a device does not support requested fields or flags, the result of `create_cq` lists them as refused. The device
/// grants all other requested fields and flags.
pub(crate) fn refused_capabilities_are_listed<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let flags = CqFlags::IGNORE_OVERRUN | CqFlags::SINGLE_THREADED;
    let fields = PollFields::STANDARD | PollFields::CVLAN | PollFields::FLOW_TAG | PollFields::TM_INFO;
    let (_, granted) = t.bed.a.create_cq(&CqSpec { depth: 8, fields, flags, ..CqSpec::default() }, None)?;
    let supported = t.bed.a.capabilities().has.clone();
    for (capability, is_granted) in [
        (Capability::IgnoreOverrun, granted.flags.contains(CqFlags::IGNORE_OVERRUN)),
        (Capability::SingleThreaded, granted.flags.contains(CqFlags::SINGLE_THREADED)),
        (Capability::Cvlan, granted.fields.contains(PollFields::CVLAN)),
        (Capability::FlowTag, granted.fields.contains(PollFields::FLOW_TAG)),
        (Capability::TagMatching, granted.fields.contains(PollFields::TM_INFO)),
    ] {
        let is_refused = granted.refused.contains(&capability);
        let is_right = is_refused != is_granted && is_refused != supported.contains(&capability);
        t.log(format!("{capability}: granted if supported, refused if not: {is_right}"));
    }
    t.expect(
        "ignore_overrun: granted if supported, refused if not: true
         single_threaded: granted if supported, refused if not: true
         cvlan: granted if supported, refused if not: true
         flow_tag: granted if supported, refused if not: true
         tag_matching: granted if supported, refused if not: true",
    )
}

/// Completions can be polled in batches (`poll_run`) or one by one (`poll`). If a program uses both functions, each
/// completion is returned once and in order.
pub(crate) fn runs_and_cursor<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    for wr_id in 0..10 {
        pair.b.recv(wr_id, 0..100)?;
        pair.a.send(wr_id, 0..wr_id as usize)?;
    }
    pair.wait(&[(PairCq::ASent, 10)])?;
    pair.a.sent.clear();
    // The last of the sends has completed, so all messages have arrived.
    let mut got: Vec<(u64, u32)> =
        pair.b.received.drain(..).map(|it| (it.wr_id, it.byte_len().unwrap_or(99))).collect();
    let (mut run, mut some) = (Completions::new(), Vec::new());
    let begin = Instant::now();
    while got.len() < 10 && begin.elapsed() < COMPLETION_TIMEOUT {
        let n = pair.b.recv_cq.poll_run(&mut run, 3)?;
        got.extend((0..n).map(|at| (run.wr_id[at], run.byte_len[at])));
        poll(&mut pair.b.recv_cq, &mut some, 2)?;
        got.extend(some.drain(..).map(|it| (it.wr_id, it.byte_len().unwrap_or(99))));
    }
    let in_order = got.iter().copied().eq((0..10).map(|n| (n, n as u32)));
    t.log(format!("all completions in order: {in_order}"));
    t.expect("all completions in order: true")
}

/// An enlarged queue keeps its completions and has space for more.
pub(crate) fn resize<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
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
    match pair.b.recv_cq.resize(100) {
        Err(refused) if refused.errno == libc::EOPNOTSUPP => {
            return Err(Stop::Skip("ibv_resize_cq".to_owned(), refused.errno));
        }
        grown => t.log(format!("has 100 entries: {}", grown.is_ok_and(|depth| depth >= 100))),
    }
    t.log(format!("resize to 1 entry: {}", verb_result(pair.b.recv_cq.resize(1))));
    let most = t.bed.a.capabilities().max_cqe;
    t.log(format!("resize above the maximum: {}", verb_result(pair.b.recv_cq.resize(most + 1))));
    pair.wait(&[(PairCq::BReceived, 10)])?;
    t.log(format!("completions kept: {}", pair.b.received.drain(..).map(|it| it.wr_id).eq(0..10)));
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.expect(
        "has 100 entries: true
         resize to 1 entry: EINVAL
         resize above the maximum: EINVAL
         completions kept: true
         a send 1 SEND
         b receive 1 RECV 20 bytes",
    )
}

/// The program does not poll the queue, so more requests complete than the queue has space for. The queue of the device
/// may have more entries than its reported depth. irdma, for example, allocates 10 entries for a depth of 4.
pub(crate) fn overrun<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    while t.bed.a.poll_async_event().is_some() {}
    let spec = EndpointSpec::new(QpType::Rc);
    let cq = CqSpec { depth: 4, ..spec.cq };
    let most = (4 * t.bed.a.create_cq(&cq, None)?.0.depth() + 64).min(t.bed.a.capabilities().max_qp_wr);
    let spec = EndpointSpec { cq, caps: QpCaps { send_depth: most, ..spec.caps }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    let number = pair.a.send_cq.number();
    let (far, sges) = (remote(&pair.b, 0), [pair.a.buffer.sge(0..10)]);
    let mut event = None;
    for wr_id in 0..u64::from(most) {
        if event.is_some() || pair.a.post(wr_id, SendOp::RdmaWrite(far), &sges).is_err() {
            break;
        }
        event = t.bed.a.poll_async_event();
    }
    // A device may report the failed queue pair first.
    let begin = Instant::now();
    while event.is_none_or(|it| it.kind != EventKind::CqErr || it.element != number) {
        let left = COMPLETION_TIMEOUT.saturating_sub(begin.elapsed());
        event = t.bed.a.wait_async_event(left);
        if event.is_none() {
            break;
        }
    }
    let event = event.map(|it| it.kind);
    t.log(format!("event of the queue: {event:?}"));
    t.log(format!("queue can be polled: {}", pair.a.send_cq.start_poll().is_ok()));
    // Leave no event for the next case.
    t.round_trips()?;
    drop(pair);
    while t.bed.a.poll_async_event().is_some() {}
    t.expect(
        "event of the queue: Some(CqErr)
         queue can be polled: false",
    )
}

/// Creates a pair. The receive completion queue of the second endpoint has a completion channel.
fn with_channel<D: RawDevice>(t: &Trial<'_, D>) -> Outcome<(Pair<D>, D::Channel)> {
    t.require(Capability::Events)?;
    let mut pair = Pair::new(t.bed, EndpointSpec::new(QpType::Rc))?;
    let channel = t.bed.b.create_channel()?;
    let spec = EndpointSpec::new(QpType::Rc);
    let domain = MessageDomain::new(&t.bed.b)?;
    let recv_cq = t.bed.b.create_cq(&spec.cq, Some(&channel))?.0;
    let qp_spec = dataplane::verbs::QpSpec::new(QpType::Rc, t.bed.fit(spec.caps));
    pair.b.qp = domain.create_qp(&qp_spec, &pair.b.send_cq, &recv_cq, None)?;
    pair.b.recv_cq = recv_cq;
    pair.b.buffer = domain.buffer(crate::bed::MEMORY, spec.access)?;
    pair.b.domain = domain;
    pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
    Ok((pair, channel))
}

/// An armed queue raises at most one event. A queue that is not armed raises no event.
pub(crate) fn events<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut pair, channel) = with_channel(t)?;
    let number = pair.b.recv_cq.number();
    for wr_id in 0..3 {
        pair.b.recv(wr_id, 0..100)?;
    }
    pair.a.send(0, 0..10)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("event before the queue is armed: {:?}", channel.wait(Duration::ZERO)?));
    pair.b.recv_cq.arm(false)?;
    pair.a.send(1, 0..10)?;
    t.log(format!("event of the armed queue: {}", channel.wait(COMPLETION_TIMEOUT)? == Some(number)));
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    pair.a.send(2, 0..10)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("second event: {:?}", channel.wait(Duration::ZERO)?));
    t.expect(
        "a send 0 SEND
         b receive 0 RECV 10 bytes
         event before the queue is armed: None
         event of the armed queue: true
         a send 1 SEND
         b receive 1 RECV 10 bytes
         a send 2 SEND
         b receive 2 RECV 10 bytes
         second event: None",
    )
}

/// A queue that is armed for solicited completions raises no event for other successful completions.
pub(crate) fn solicited_events<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut pair, channel) = with_channel(t)?;
    for wr_id in 0..3 {
        pair.b.recv(wr_id, 0..100)?;
    }
    pair.b.recv_cq.arm(true)?;
    pair.a.send(0, 0..10)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("event of an unsolicited message: {:?}", channel.wait(Duration::ZERO)?));
    let sges = [pair.a.buffer.sge(0..10)];
    pair.a.post_flags(1, SendOp::Send, SendFlags::SIGNALED | SendFlags::SOLICITED, &sges)?;
    t.log(format!("event of a solicited message: {}", channel.wait(COMPLETION_TIMEOUT)?.is_some()));
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    // An error completion also raises an event.
    pair.b.recv_cq.arm(true)?;
    pair.b.set_state(QpState::Err)?;
    t.log(format!("event of an error: {}", channel.wait(COMPLETION_TIMEOUT)?.is_some()));
    t.wait_and_log(&mut pair, &[(PairCq::BReceived, 1)])?;
    t.expect(
        "a send 0 SEND
         b receive 0 RECV 10 bytes
         event of an unsolicited message: None
         event of a solicited message: true
         a send 1 SEND
         b receive 1 RECV 10 bytes
         event of an error: true
         b receive 2 WR_FLUSH_ERR",
    )
}

/// A completion that arrived before the queue was armed raises no event. `poll_or_sleep` therefore polls once more
/// after arming.
pub(crate) fn arm_race<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
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
    t.log(format!("received {got} of 50 messages"));
    t.expect("received 50 of 50 messages")
}

/// Two completion queues share a channel. After both queues are armed, each queue raises an event with its own number.
pub(crate) fn two_queues_one_channel<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Events)?;
    let channel = t.bed.a.create_channel()?;
    let spec = EndpointSpec::new(QpType::Rc);
    let mut pair = Pair::new(t.bed, spec)?;
    let send_cq = t.bed.a.create_cq(&spec.cq, Some(&channel))?.0;
    let recv_cq = t.bed.a.create_cq(&spec.cq, Some(&channel))?.0;
    let qp_spec = dataplane::verbs::QpSpec::new(QpType::Rc, t.bed.fit(spec.caps));
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
            other => t.log(format!("unexpected event: {other:?}")),
        }
    }
    t.log(format!("{sent} event of the send queue, {received} event of the receive queue"));
    t.wait_and_log(
        &mut pair,
        &[(PairCq::ASent, 1), (PairCq::AReceived, 1), (PairCq::BSent, 1), (PairCq::BReceived, 1)],
    )?;
    t.expect(
        "1 event of the send queue, 1 event of the receive queue
         a send 1 SEND
         a receive 1 RECV 10 bytes
         b send 1 SEND
         b receive 1 RECV 10 bytes",
    )
}

/// The context of a completion queue is a value that the program chooses. The queue and all its events return this
/// value.
pub(crate) fn context<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Events)?;
    let channel = t.bed.a.create_channel()?;
    for api in [CqApi::Auto, CqApi::Classic] {
        let spec = EndpointSpec::new(QpType::Rc);
        let mut pair = Pair::new(t.bed, spec)?;
        let cq = |context| t.bed.a.create_cq(&CqSpec { api, context, ..spec.cq }, Some(&channel));
        let (send_cq, recv_cq) = (cq(u64::MAX - 5)?.0, cq(7)?.0);
        let qp_spec = QpSpec::new(QpType::Rc, t.bed.fit(spec.caps));
        pair.a.qp = pair.a.domain.create_qp(&qp_spec, &send_cq, &recv_cq, None)?;
        (pair.a.send_cq, pair.a.recv_cq) = (send_cq, recv_cq);
        pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
        let own = [pair.a.send_cq.context(), pair.a.recv_cq.context()];
        t.log(format!("contexts: {own:x?}, default {}", pair.b.send_cq.context()));
        pair.a.recv(1, 0..100)?;
        pair.b.recv(1, 0..100)?;
        pair.a.send_cq.arm(false)?;
        pair.a.send(1, 0..10)?;
        let event = channel.wait_event(COMPLETION_TIMEOUT)?;
        let wanted = CqEvent { queue: pair.a.send_cq.number(), context: u64::MAX - 5 };
        t.log(format!("event of the send queue: {}", event == Some(wanted)));
        pair.a.recv_cq.arm(false)?;
        pair.b.send(1, 0..10)?;
        // The software device makes progress only while it is polled.
        pair.b.poll_queues()?;
        let event = channel.wait_event(COMPLETION_TIMEOUT)?;
        let wanted = CqEvent { queue: pair.a.recv_cq.number(), context: 7 };
        t.log(format!("event of the receive queue: {}", event == Some(wanted)));
    }
    t.expect(
        "contexts: [fffffffffffffffa, 7], default 0
         event of the send queue: true
         event of the receive queue: true
         contexts: [fffffffffffffffa, 7], default 0
         event of the send queue: true
         event of the receive queue: true",
    )
}

/// Creates a pair. The queue pair and the send completion queue of the first endpoint are in the parent domain
/// `parent`. The memory of this endpoint is in `plain`, the domain that `parent` extends.
pub(crate) fn in_parent_domain<D: RawDevice>(
    t: &Trial<'_, D>,
    plain: &MessageDomain<D>,
    parent: &MessageDomain<D>,
) -> Outcome<Pair<D>> {
    let spec = EndpointSpec::new(QpType::Rc);
    let a = Endpoint::on(t.bed, false, spec, parent.clone(), None)?;
    let mut pair = Pair { a, b: Endpoint::new(t.bed, true, spec, None)? };
    let send_cq = parent.create_cq(&spec.cq, None)?.0;
    let qp_spec = QpSpec::new(QpType::Rc, t.bed.fit(spec.caps));
    pair.a.qp = parent.create_qp(&qp_spec, &send_cq, &pair.a.recv_cq, None)?;
    pair.a.send_cq = send_cq;
    pair.a.buffer = plain.buffer(MEMORY, spec.access)?;
    pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
    Ok(pair)
}

/// If the device has parent domains, a completion queue can be created in a parent domain. A queue pair of the parent
/// domain can use the memory of the domain that the parent domain extends.
pub(crate) fn parent_domain<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let has = t.bed.a.capabilities().has.contains(&Capability::ParentDomain);
    let cq = EndpointSpec::new(QpType::Rc).cq;
    let plain = MessageDomain::new(&t.bed.a)?;
    t.log(format!("in a domain without parent: {}", verb_result(plain.create_cq(&cq, None))));
    let parent = plain.alloc_parent();
    t.log(format!("as the device reports: {}", parent.is_ok() == has));
    t.log(format!("parent: {}", parent.as_ref().map_or_else(|error| errno_name(error.errno), |_| "ok".to_owned())));
    if let Ok(parent) = parent {
        t.log(format!("parent of a parent: {}", verb_result(parent.alloc_parent())));
        t.log(format!("classic: {}", verb_result(parent.create_cq(&CqSpec { api: CqApi::Classic, ..cq }, None))));
        let mut pair = in_parent_domain(t, &plain, &parent)?;
        pair.a.recv(1, 0..100)?;
        pair.b.recv(1, 0..100)?;
        pair.a.send(1, 0..20)?;
        pair.b.send(1, 0..20)?;
        let all = [PairCq::ASent, PairCq::AReceived, PairCq::BSent, PairCq::BReceived];
        t.wait_and_log(&mut pair, &all.map(|cq| (cq, 1)))?;
    }
    t.expect(
        "in a domain without parent: EINVAL
         as the device reports: true
         parent: ok
         parent of a parent: EINVAL
         classic: EOPNOTSUPP
         a send 1 SEND
         a receive 1 RECV 20 bytes
         b send 1 SEND
         b receive 1 RECV 20 bytes",
    )
}

/// The completion of a received datagram has the fields of `struct ibv_wc`, on every polling interface.
pub(crate) fn fields_of_datagrams<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    for api in [CqApi::Auto, CqApi::Classic] {
        let spec = EndpointSpec::new(QpType::Ud);
        let spec = EndpointSpec { cq: CqSpec { api, ..spec.cq }, ..spec };
        let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
        pair.b.recv(7, 0..100)?;
        let sges = [pair.a.buffer.sge(0..20)];
        pair.a.post(8, SendOp::SendWithImm(0x0102_0304u32.to_be()), &sges)?;
        if !pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])? {
            return Err(Stop::Fail("no datagram".to_owned()));
        }
        let (sent, it) = (pair.a.sent.remove(0), pair.b.received.remove(0));
        t.log(format!("{} {:?} {} {}", it.wr_id, it.opcode(), status_name(it.status), it.vendor_err));
        t.log(format!("{:?} {:?} {:?}", it.byte_len(), it.imm().map(u32::from_be), it.invalidated_rkey()));
        t.log(format!("flags: {}", pair.b.flag_names(it.flags().unwrap_or_default())));
        let numbers = (it.qp_num() == Some(pair.b.qp.number()), it.src_qp() == Some(pair.a.qp.number()));
        t.log(format!("queue pairs: {numbers:?}"));
        // On Ethernet, the LID, the service level and the path bits are absent or 0. efa, whose link layer is neither
        // Ethernet nor InfiniBand, returns the number of an address handle as LID. The extended polling interface does
        // not return the index of the partition key.
        let has_lid = matches!(t.bed.link_layer()?, LinkLayer::Ethernet | LinkLayer::InfiniBand);
        let is_sender = !has_lid || it.slid().unwrap_or(0) == u32::from(pair.a.lid);
        let identifiers = (is_sender, it.sl().unwrap_or(0), it.dlid_path_bits().unwrap_or(0));
        t.log(format!("identifiers: {identifiers:?} {}", it.pkey_index().unwrap_or(0)));
        let of_receives = (sent.src_qp(), sent.slid(), sent.sl(), sent.dlid_path_bits(), sent.pkey_index(), sent.imm());
        t.log(format!("{} {:?} {of_receives:?}", sent.wr_id, sent.opcode()));
    }
    t.expect(
        &"7 Some(Recv) SUCCESS 0
         Some(60) Some(16909060) None
         flags: GRH|WITH_IMM
         queue pairs: (true, true)
         identifiers: (true, 0, 0) 0
         8 Some(Send) (None, None, None, None, None, None)
         "
        .repeat(2),
    )
}

/// The completions of messages have the length, the immediate data and the queue pair, on every polling interface.
pub(crate) fn fields_of_messages<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let has_atomics = t.has(Capability::Atomic);
    for api in [CqApi::Auto, CqApi::Classic] {
        let spec = EndpointSpec::new(QpType::Rc);
        let spec = EndpointSpec { cq: CqSpec { api, ..spec.cq }, ..spec };
        let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
        for wr_id in 1..=3 {
            pair.b.recv(wr_id, 0..100)?;
        }
        let (sges, word, far) = ([pair.a.buffer.sge(0..20)], [pair.a.buffer.sge(64..72)], remote(&pair.b, 512));
        pair.a.post(1, SendOp::Send, &sges)?;
        pair.a.post(2, SendOp::SendWithImm(0x0102_0304u32.to_be()), &sges)?;
        pair.a.post(3, SendOp::RdmaWriteWithImm(far, 5u32.to_be()), &sges)?;
        pair.a.post(4, SendOp::RdmaWrite(far), &sges)?;
        pair.a.post(5, SendOp::RdmaRead(far), &sges)?;
        if has_atomics {
            pair.a.post(6, SendOp::FetchAdd { remote: far, add: 1 }, &word)?;
            pair.a.post(7, SendOp::CompareSwap { remote: far, compare: 1, swap: 1 }, &word)?;
        }
        pair.wait(&[(PairCq::ASent, if has_atomics { 7 } else { 5 }), (PairCq::BReceived, 3)])?;
        let own = [pair.a.qp.number(), pair.b.qp.number()];
        for (it, own) in
            pair.a.sent.drain(..).map(|it| (it, own[0])).chain(pair.b.received.drain(..).map(|it| (it, own[1])))
        {
            // The GRH flag of connected receives is undefined. See the start of differences.rs.
            let flags = it.flags().map(|flags| flags & (WcFlags::WITH_IMM | WcFlags::WITH_INV | WcFlags::IP_CSUM_OK));
            let flags = flags.filter(|_| it.opcode().is_some_and(|opcode| opcode.is_receive())).unwrap_or_default();
            t.log(format!(
                "{} {:?} {} {:?} {:?} {flags:?} {}",
                it.wr_id,
                it.opcode(),
                it.vendor_err,
                it.byte_len(),
                it.imm().map(u32::from_be),
                it.qp_num() == Some(own)
            ));
        }
    }
    let atomics = "6 Some(FetchAdd) 0 Some(8) None WcFlags(0x0) true
         7 Some(CompSwap) 0 Some(8) None WcFlags(0x0) true";
    let atomics = if has_atomics { atomics } else { "" };
    t.expect(
        &format!(
            "1 Some(Send) 0 None None WcFlags(0x0) true
         2 Some(Send) 0 None None WcFlags(0x0) true
         3 Some(RdmaWrite) 0 None None WcFlags(0x0) true
         4 Some(RdmaWrite) 0 None None WcFlags(0x0) true
         5 Some(RdmaRead) 0 Some(20) None WcFlags(0x0) true
         {atomics}
         1 Some(Recv) 0 Some(20) None WcFlags(0x0) true
         2 Some(Recv) 0 Some(20) Some(16909060) WcFlags(WITH_IMM) true
         3 Some(RecvRdmaWithImm) 0 Some(20) Some(5) WcFlags(WITH_IMM) true
         "
        )
        .repeat(2),
    )
}

/// A completion with an error has its request, its status and its queue pair. All other fields are absent.
pub(crate) fn fields_of_errors<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    for api in [CqApi::Auto, CqApi::Classic] {
        let spec = EndpointSpec::new(QpType::Rc);
        let spec = EndpointSpec { cq: CqSpec { api, ..spec.cq }, ..spec };
        let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
        pair.a.recv(2, 0..100)?;
        let sges = [bad_lkey(pair.a.buffer.sge(0..20))];
        pair.a.post(1, SendOp::Send, &sges)?;
        pair.wait(&[(PairCq::ASent, 1), (PairCq::AReceived, 1)])?;
        let own = pair.a.qp.number();
        for it in pair.a.sent.drain(..).chain(pair.a.received.drain(..)) {
            let first = (it.opcode(), it.flags(), it.byte_len(), it.imm(), it.invalidated_rkey());
            let second = (it.src_qp(), it.slid(), it.sl(), it.dlid_path_bits(), it.pkey_index());
            let number = it.qp_num() == Some(own);
            t.log(format!("{} good {} {number} {first:?} {second:?}", it.wr_id, it.opcode().is_some()));
        }
    }
    t.expect(
        &"1 good false true (None, None, None, None, None) (None, None, None, None, None)
         2 good false true (None, None, None, None, None) (None, None, None, None, None)
         "
        .repeat(2),
    )
}

/// The field `PollFields::CHECKSUM` is granted exactly if the device checks the checksums of received packets. The
/// completion of a message on a reliable connection never has the flag `IP_CSUM_OK`.
pub(crate) fn checksum<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let has = t.bed.b.capabilities().has.contains(&Capability::RxChecksum);
    let spec = EndpointSpec::new(QpType::Rc);
    let cq = CqSpec { fields: spec.cq.fields | PollFields::CHECKSUM, ..spec.cq };
    let (_, granted) = t.bed.b.create_cq(&cq, None)?;
    t.log(format!("granted if supported: {}", granted.fields.contains(PollFields::CHECKSUM) == has));
    t.log(format!("refused if not supported: {}", granted.refused.contains(&Capability::RxChecksum) != has));
    let mut pair = t.pair_with(EndpointSpec { cq, ..spec }, Connection::default(), Connection::default())?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    let it = pair.b.received.remove(0);
    let verdict = it.flags().is_some_and(|flags| flags.contains(WcFlags::IP_CSUM_OK));
    t.log(format!("verdict on a message: {verdict} {:?}", it.recv_info().flags));
    t.expect(
        "granted if supported: true
         refused if not supported: true
         verdict on a message: false RecvFlags(0x0)",
    )
}
