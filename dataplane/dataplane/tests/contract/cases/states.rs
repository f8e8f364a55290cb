//! Cases for state changes: a device must accept exactly the changes and attributes that `check_transition` accepts.
//! `check_transition` is the table of transitions in `dataplane-core`.
//!
//! A unit test in `dataplane-core` checks that table against a second, independent table.

use dataplane::units::QpNum;
use dataplane::verbs::{AttributeMask, EventKind, QpAttributes, QpState, QpType, RawDevice, SendOp, check_transition};

use crate::Trial;
use crate::bed::{Connection, Endpoint, EndpointSpec, Outcome, PairCq, Profile, Stop, state_name, verb_result};

const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

/// The states that `modify` can set.
const REACHED: [QpState; 6] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

/// Optional attributes that the transition table allows, but not every device supports.
const MORE: AttributeMask =
    AttributeMask::ALT_PATH.union(AttributeMask::PATH_MIG_STATE).union(AttributeMask::RATE_LIMIT);

/// Returns attributes with valid values for the change from state `from` to state `to`.
fn attributes<D: RawDevice>(end: &Endpoint<D>, from: QpState, to: QpState) -> QpAttributes {
    let (mut attributes, _) = Connection::default().step(end, to, end.address(), QpNum(17));
    attributes.current_state = from;
    attributes
}

/// Moves the queue pair to SQD and waits until running requests have ended. Until then, a device may allow fewer state
/// changes.
pub(crate) fn drain<D: RawDevice>(end: &mut Endpoint<D>) -> Outcome {
    let device = end.domain.device().clone();
    // rxe, the kernel's software RoCE driver, raises an event at every drain, requested or not. Remove the events of
    // earlier drains.
    while device.wait_async_event(std::time::Duration::ZERO).is_some() {}
    let (attributes, mask) = QpAttributes::to(QpState::Sqd);
    let attributes = QpAttributes { notify_drained: true, ..attributes };
    end.enter_sqd(&attributes, mask | AttributeMask::EN_SQD_ASYNC_NOTIFY)?;
    let begin = std::time::Instant::now();
    while begin.elapsed() < crate::bed::COMPLETION_TIMEOUT {
        let event = device.wait_async_event(crate::bed::COMPLETION_TIMEOUT);
        if event.is_some_and(|it| it.kind == EventKind::SqDrained && it.element == end.qp.number().0) {
            return Ok(());
        }
    }
    Err(Stop::Fail("the device did not report that the send queue is drained".to_owned()))
}

/// Moves a queue pair from any state to state `to`.
fn take<D: RawDevice>(end: &mut Endpoint<D>, to: QpState) -> Outcome {
    if end.qp.query()?.state == QpState::Sqd {
        // While the send queue drains, some devices allow only the change to ERR.
        end.set_state(QpState::Err)?;
    }
    end.set_state(QpState::Reset)?;
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let before = match to {
            QpState::Reset => return Ok(()),
            QpState::Err => QpState::Init,
            QpState::Sqd => QpState::Rts,
            other => other,
        };
        let (attributes, mask) = Connection::default().step(end, state, end.address(), QpNum(17));
        end.apply(&attributes, mask)?;
        if state == before {
            break;
        }
    }
    match to {
        QpState::Sqd => drain(end),
        QpState::Err => end.set_state(to),
        _ => Ok(()),
    }
}

/// Tries every change from every settable state to every state, and logs the differences from the transition table.
/// Each change is tried with the required attributes, without one required attribute, with one attribute that is not
/// allowed, and with all allowed attributes except [`MORE`], which not every device supports.
fn table<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType) -> Outcome {
    let mut end = Endpoint::new(t.bed, false, EndpointSpec::new(kind), None)?;
    let mut tried = 0;
    for from in REACHED {
        take(&mut end, from)?;
        for to in STATES {
            let mut required = AttributeMask::empty();
            let mut allowed = AttributeMask::empty();
            if let Err(dataplane::verbs::TransitionError::Attributes { missing, .. }) =
                check_transition(kind, from, to, AttributeMask::STATE)
            {
                required = missing;
            }
            for bit in AttributeMask::all() - required {
                if check_transition(kind, from, to, required | bit).is_ok() {
                    allowed |= bit;
                }
            }
            let mut masks = vec![required, required | (allowed - MORE)];
            masks.extend(required.iter().map(|bit| required - bit));
            masks.extend((AttributeMask::all() - required - allowed).iter().map(|bit| required | bit));
            for mask in masks {
                let mask = mask | AttributeMask::STATE;
                let wanted = check_transition(kind, from, to, mask).is_ok();
                let got = end.qp.modify(&attributes(&end, from, to), mask);
                tried += 1;
                if got.is_ok() != wanted || got.is_err_and(|error| error.errno != libc::EINVAL) {
                    let of = if wanted { "allowed" } else { "not allowed" };
                    let (from, to, got) = (state_name(from), state_name(to), verb_result(got));
                    t.log(format!("{from}>{to} with {mask:?}: {of} by the table, got {got}"));
                }
                if got.is_ok() {
                    take(&mut end, from)?;
                }
            }
            // A refused change must not change the state.
            let now = end.state()?;
            if now != state_name(from) {
                t.log(format!("{}>{}: the state after the refused changes is {now}", state_name(from), state_name(to)));
                take(&mut end, from)?;
            }
        }
    }
    let count = if tried > 300 { "more than 300".to_owned() } else { tried.to_string() };
    t.log(format!("tried {count} state changes"));
    Ok(())
}

pub(crate) fn rc_table<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    table(t, QpType::Rc)?;
    t.expect("tried more than 300 state changes")
}

pub(crate) fn uc_table<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    table(t, QpType::Uc)?;
    t.expect("tried more than 300 state changes")
}

pub(crate) fn ud_table<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    table(t, QpType::Ud)?;
    t.expect("tried more than 300 state changes")
}

/// A query returns the attributes that were set.
pub(crate) fn query<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let pair = t.pair(QpType::Rc)?;
    let got = pair.a.qp.query()?;
    t.log(format!("{} {} {:?} {:?}", state_name(got.state), got.port, got.access, got.dest_qp == pair.b.qp.number()));
    t.log(format!(
        "mtu {} psn {:#x} {:#x} rd {} {} timer {} timeout {} retry {} {}",
        got.path_mtu,
        got.rq_psn,
        got.sq_psn,
        got.max_rd_atomic,
        got.max_dest_rd_atomic,
        got.min_rnr_timer,
        got.timeout,
        got.retry_count,
        got.rnr_retry
    ));
    t.log(format!("to the peer: {}", got.path.gid == pair.b.gid.0 && got.path.global));
    t.expect(
        "RTS 1 Access(REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC) true
         mtu 3 psn 0x10 0x10 rd 4 4 timer 12 timeout 14 retry 2 1
         to the peer: true",
    )
}

/// A failed queue pair works again after RESET, INIT, RTR and RTS.
pub(crate) fn recovery<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    for round in 0..3 {
        let sges = [super::bad_lkey(pair.a.buffer.sge(0..20))];
        pair.a.post(round, SendOp::Send, &sges)?;
        pair.wait(&[(PairCq::ASent, 1)])?;
        t.log(format!("{} failed: {}", round, pair.a.sent.drain(..).any(|it| it.opcode().is_none())));
        pair.a.set_state(QpState::Reset)?;
        pair.b.set_state(QpState::Reset)?;
        pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
        pair.b.recv(round, 0..100)?;
        pair.a.send(round, 0..20)?;
        t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    }
    t.expect(
        "0 failed: true
         a send 0 SEND
         b receive 0 RECV 20 bytes
         1 failed: true
         a send 1 SEND
         b receive 1 RECV 20 bytes
         2 failed: true
         a send 2 SEND
         b receive 2 RECV 20 bytes",
    )
}

/// An invalid send stops only the send queue of a datagram queue pair (state SQE). A change to RTS resumes the send
/// queue.
pub(crate) fn send_queue_error<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    if t.bed.profile == Profile::Rxe {
        return Err(Stop::Skip("state SQE".to_owned(), libc::EOPNOTSUPP));
    }
    let mut pair = t.pair(QpType::Ud)?;
    pair.a.recv(1, 0..100)?;
    pair.b.recv(1, 0..100)?;
    let far = crate::bed::remote(&pair.b, 0);
    let sges = [pair.a.buffer.sge(0..20)];
    match pair.a.post(1, SendOp::RdmaRead(far), &sges) {
        Err(refused) if refused.error.errno == libc::EINVAL => {
            return Err(Stop::Skip(super::opcodes::ERROR_COMPLETIONS.to_owned(), refused.error.errno));
        }
        posted => posted?,
    }
    pair.a.send(2, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 2)])?;
    t.log_states(&pair)?;
    // The queue pair still receives.
    pair.b.send(3, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::BSent, 1), (PairCq::AReceived, 1)])?;
    pair.a.set_state(QpState::Rts)?;
    pair.a.send(4, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 LOC_QP_OP_ERR
         a send 2 WR_FLUSH_ERR
         a SQE, b RTS
         a receive 1 RECV 60 bytes GRH
         b send 3 SEND
         a send 4 SEND
         b receive 1 RECV 60 bytes GRH
         a RTS, b RTS",
    )
}
