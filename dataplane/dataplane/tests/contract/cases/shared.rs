//! Cases for shared receive queues.

use std::time::Duration;

use dataplane::lane::message::{MessageDomain, MessageSharedQueue};
use dataplane::verbs::{Capability, EventKind, QpState, QpType, RawDevice, RecvRequest, SrqSpec};

use crate::Trial;
use crate::bed::{
    COMPLETION_TIMEOUT, Connection, Endpoint, EndpointSpec, Outcome, Pair, PairCq, Profile, connect, post_result,
    verb_result,
};

/// Creates two pairs whose second endpoints share a receive queue.
fn two<D: RawDevice>(t: &Trial<'_, D>, depth: u32) -> Outcome<(Pair<D>, Pair<D>, MessageSharedQueue<D>)> {
    t.require(Capability::Srq)?;
    let domain = MessageDomain::new(&t.bed.b)?;
    let srq = domain.create_srq(&SrqSpec { depth, sges: 2 })?;
    let spec = EndpointSpec::new(QpType::Rc);
    let make = || -> Outcome<Pair<D>> {
        let b = Endpoint::on(t.bed, true, spec, domain.clone(), Some(&srq))?;
        let mut pair = Pair { a: Endpoint::new(t.bed, false, spec, None)?, b };
        pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
        Ok(pair)
    };
    Ok((make()?, make()?, srq))
}

fn post<D: RawDevice>(srq: &mut MessageSharedQueue<D>, end: &Endpoint<D>, wr_ids: std::ops::Range<u64>) -> Outcome {
    for wr_id in wr_ids {
        let place = 100 * wr_id as usize;
        srq.post_recv(&[RecvRequest { wr_id, sges: &[end.buffer.sge(place..place + 100)] }])?;
    }
    Ok(())
}

/// Messages to both queue pairs consume the shared receives in the order in which the receives were posted.
pub(crate) fn traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut one, mut two, mut srq) = two(t, 16)?;
    post(&mut srq, &one.b, 0..4)?;
    for wr_id in 0..4 {
        let pair = if matches!(wr_id, 0 | 3) { &mut one } else { &mut two };
        pair.a.buffer.write(0, &[wr_id as u8 + 1]);
        pair.a.send(wr_id, 0..1)?;
        t.wait_and_log(pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    }
    let got: Vec<u8> = (0..4).map(|at| one.b.buffer.to_vec(100 * at..100 * at + 1)[0]).collect();
    t.log(format!("{got:?}"));
    t.expect(
        "a send 0 SEND
         b receive 0 RECV 1 bytes
         a send 1 SEND
         b receive 1 RECV 1 bytes
         a send 2 SEND
         b receive 2 RECV 1 bytes
         a send 3 SEND
         b receive 3 RECV 1 bytes
         [1, 2, 3, 4]",
    )
}

pub(crate) fn full<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let (one, _two, mut srq) = two(t, 8)?;
    let depth = srq.depth() as usize;
    // The queue may accept more receives than its reported depth.
    let sges = [one.b.buffer.sge(0..10)];
    let requests: Vec<_> = (0..=64 * depth as u64).map(|wr_id| RecvRequest { wr_id, sges: &sges }).collect();
    let refused = srq.post_recv(&requests);
    let accepted = refused.as_ref().err().map_or(0, |refused| refused.accepted);
    t.log(format!(
        "{}, accepted at least the depth: {}",
        post_result(refused).split(' ').next().unwrap_or(""),
        accepted >= depth
    ));
    let many = vec![sges[0]; 64];
    let refused = srq.post_recv(&[RecvRequest { wr_id: 0, sges: &many }]);
    t.log(format!("many elements: {}", if refused.is_err() { "refused" } else { "accepted" }));
    t.expect(
        "ENOMEM, accepted at least the depth: true
         many elements: refused",
    )
}

/// A queue pair with a shared receive queue has no receive queue of its own.
pub(crate) fn own_receives_are_refused<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut one, _two, _srq) = two(t, 8)?;
    let sges = [one.b.buffer.sge(0..10)];
    t.log(post_result(one.b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }])));
    t.expect("EINVAL after 0")
}

/// When the number of posted receives falls below the limit, the queue raises one event and clears the limit.
pub(crate) fn limit<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut one, _two, mut srq) = two(t, 8)?;
    while t.bed.b.poll_async_event().is_some() {}
    post(&mut srq, &one.b, 0..6)?;
    srq.arm_limit(4)?;
    t.log(format!("armed: {}", srq.limit()?));
    for wr_id in 0..4 {
        one.a.send(wr_id, 0..1)?;
        one.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
        one.a.sent.clear();
        one.b.received.clear();
        if wr_id == 1 {
            t.log(format!("with 4 left: {:?}", t.bed.b.poll_async_event().map(|it| it.kind)));
        }
    }
    let event = t.bed.b.wait_async_event(COMPLETION_TIMEOUT);
    t.log(format!("{:?}", event.map(|it| (it.kind, it.element == srq.number()))));
    t.log(format!("again: {:?}, limit {}", t.bed.b.poll_async_event().map(|it| it.kind), srq.limit()?));
    t.log(format!("too high: {}", verb_result(srq.arm_limit(100_000))));
    t.expect(
        "armed: 4
         with 4 left: None
         Some((SrqLimitReached, true))
         again: None, limit 0
         too high: EINVAL",
    )
}

/// A queue pair in ERR does not flush the shared receives, so the other queue pairs can use them.
pub(crate) fn error_keeps_shared_receives<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    while t.bed.b.poll_async_event().is_some() {}
    let (mut one, mut two, mut srq) = two(t, 8)?;
    post(&mut srq, &one.b, 0..2)?;
    one.b.set_state(QpState::Err)?;
    // A device raises the event after the change of the state. rxe raises no such event.
    let timeout = if t.bed.profile == Profile::Rxe { Duration::ZERO } else { COMPLETION_TIMEOUT };
    let last = t.bed.b.wait_async_event(timeout).filter(|it| it.element == one.b.qp.number().0).map(|it| it.kind);
    t.log(format!("last WQE event: {}", last == Some(EventKind::QpLastWqeReached)));
    two.a.send(1, 0..1)?;
    t.wait_and_log(&mut two, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.wait_and_log(&mut one, &[])?;
    t.expect(
        "last WQE event: true
         a send 1 SEND
         b receive 0 RECV 1 bytes",
    )
}

/// An enlarged queue keeps its receives.
pub(crate) fn resize<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut one, _two, mut srq) = two(t, 4)?;
    post(&mut srq, &one.b, 0..3)?;
    match srq.resize(20) {
        Ok(()) => t.log(format!("resized: {}", srq.depth() >= 20)),
        Err(refused) if refused.errno == libc::EOPNOTSUPP => {
            return Err(crate::bed::Stop::Skip("srq resize".to_owned(), refused.errno));
        }
        Err(refused) => t.log(format!("refused: {refused}")),
    }
    post(&mut srq, &one.b, 3..20)?;
    for wr_id in 0..20 {
        one.a.send(wr_id, 0..1)?;
        one.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
        one.a.sent.clear();
    }
    t.log(format!("in order: {}", one.b.received.drain(..).map(|it| it.wr_id).eq(0..20)));
    t.expect(
        "resized: true
         in order: true",
    )
}

/// Datagrams that use a shared receive queue arrive with the 40-byte global route header.
pub(crate) fn datagrams<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Srq)?;
    let domain = MessageDomain::new(&t.bed.b)?;
    let mut srq = domain.create_srq(&SrqSpec { depth: 8, sges: 1 })?;
    let spec = EndpointSpec::new(QpType::Ud);
    let b = Endpoint::on(t.bed, true, spec, domain, Some(&srq))?;
    let mut pair = Pair { a: Endpoint::new(t.bed, false, spec, None)?, b };
    let with = Connection::default();
    connect(&mut pair.b, &pair.a, with, QpState::Rts)?;
    connect(&mut pair.a, &pair.b, with, QpState::Rts)?;
    post(&mut srq, &pair.b, 0..1)?;
    pair.a.send(1, 0..10)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.expect(
        "a send 1 SEND
         b receive 0 RECV 50 bytes GRH",
    )
}

/// If the shared queue has no receive, the responder returns receiver-not-ready (RNR), and the requester fails after
/// its retries.
pub(crate) fn empty<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let (mut one, _two, _srq) = two(t, 8)?;
    one.a.send(1, 0..1)?;
    t.wait_and_log(&mut one, &[(PairCq::ASent, 1)])?;
    t.expect("a send 1 RNR_RETRY_EXC_ERR")
}
