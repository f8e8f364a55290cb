//! Which change of state a device allows, with which attributes: all of them, against the table of the crate, which a
//! test of its own holds to the manual.

use dataplane::provider::{
    AttributeMask, Device, EventKind, QpAttributes, QpState, QpType, SendOp, check_transition,
};
use dataplane::units::QpNum;

use crate::Trial;
use crate::bed::{Connection, End, EndSpec, Of, Outcome, Profile, Stop, name, told};

const STATES: [QpState; 7] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];

/// Those that a request can set.
const REACHED: [QpState; 6] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

/// Attributes without which a change that wants them is refused, and that need more of a device than being allowed.
const MORE: AttributeMask = AttributeMask::ALT_PATH.union(AttributeMask::PATH_MIG_STATE).union(AttributeMask::RATE_LIMIT);

/// Attributes that are good values of everything.
fn attributes<D: Device>(end: &End<D>, from: QpState, to: QpState) -> QpAttributes {
    let (mut attributes, _) = Connection::default().step(end, to, end.gid.0, QpNum(17));
    attributes.current_state = from;
    attributes
}

/// To SQD, and waits until what was under way is done: until then a device may allow less.
pub(crate) fn drain<D: Device>(end: &mut End<D>) -> Outcome {
    let device = end.domain.device().clone();
    // rxe tells of every time that it is drained, asked or not: what it told of an earlier one is not the word waited for.
    while device.wait_async_event(std::time::Duration::ZERO).is_some() {}
    let (attributes, mask) = QpAttributes::to(QpState::Sqd);
    let attributes = QpAttributes { notify_drained: true, ..attributes };
    end.qp.modify(&attributes, mask | AttributeMask::EN_SQD_ASYNC_NOTIFY)?;
    let begin = std::time::Instant::now();
    while begin.elapsed() < crate::bed::PATIENCE {
        let event = device.wait_async_event(crate::bed::PATIENCE);
        if event.is_some_and(|it| it.kind == EventKind::SqDrained && it.element == end.qp.number().0) {
            return Ok(());
        }
    }
    Err(Stop::Fail("no word that it is drained".to_owned()))
}

/// Takes a queue pair to a state, from wherever it is.
fn take<D: Device>(end: &mut End<D>, to: QpState) -> Outcome {
    if end.qp.query()?.state == QpState::Sqd {
        // While it drains some allow nothing else.
        end.to(QpState::Err)?;
    }
    end.to(QpState::Reset)?;
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let before = match to {
            QpState::Reset => return Ok(()),
            QpState::Err => QpState::Init,
            QpState::Sqd => QpState::Rts,
            other => other,
        };
        let (attributes, mask) = Connection::default().step(end, state, end.gid.0, QpNum(17));
        end.qp.modify(&attributes, mask)?;
        if state == before {
            break;
        }
    }
    match to {
        QpState::Sqd => drain(end),
        QpState::Err => end.to(to),
        _ => Ok(()),
    }
}

/// Every change from every state that can be set to every state: with what it wants, with one of that left out, with
/// one that is not allowed, and with all that is allowed. Tells where the device does not do as the table says.
fn table<D: Device>(t: &mut Trial<'_, D>, kind: QpType) -> Outcome {
    let mut end = End::new(t.bed, false, EndSpec::new(kind), None)?;
    let mut tried = 0;
    for from in REACHED {
        take(&mut end, from)?;
        for to in STATES {
            let mut required = AttributeMask::empty();
            let mut allowed = AttributeMask::empty();
            if let Err(dataplane::provider::TransitionError::Attributes { missing, .. }) =
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
                    t.say(format!("{}>{} with {mask:?}: {of}, {}", name(from), name(to), told(got)));
                }
                if got.is_ok() {
                    take(&mut end, from)?;
                }
            }
            // A refusal changes nothing.
            let now = end.state()?;
            if now != name(from) {
                t.say(format!("{}>{}: it is {now}", name(from), name(to)));
                take(&mut end, from)?;
            }
        }
    }
    t.say(if tried > 300 { "tried more than 300".to_owned() } else { format!("tried {tried}") });
    Ok(())
}

pub(crate) fn rc_table<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    table(t, QpType::Rc)?;
    t.expect("tried more than 300")
}

pub(crate) fn uc_table<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    table(t, QpType::Uc)?;
    t.expect("tried more than 300")
}

pub(crate) fn ud_table<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    table(t, QpType::Ud)?;
    t.expect("tried more than 300")
}

/// What was set can be asked for again.
pub(crate) fn query<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let pair = t.pair(QpType::Rc)?;
    let got = pair.a.qp.query()?;
    t.say(format!("{} {} {:?} {:?}", name(got.state), got.port, got.access, got.dest_qp == pair.b.qp.number()));
    t.say(format!(
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
    t.say(format!("to the peer: {}", got.path.gid == pair.b.gid.0 && got.path.global));
    t.expect(
        "RTS 1 Access(REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC) true
         mtu 3 psn 0x10 0x10 rd 4 4 timer 12 timeout 14 retry 2 1
         to the peer: true",
    )
}

/// A queue pair that has failed is of use again after RESET, INIT, RTR, RTS.
pub(crate) fn recovery<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    for round in 0..3 {
        let sges = [super::bad_lkey(pair.a.buffer.sge(0..20))];
        pair.a.post(round, SendOp::Send, &sges)?;
        pair.wait(&[(Of::ASent, 1)])?;
        t.say(format!("{} failed: {}", round, pair.a.sent.drain(..).any(|it| it.opcode().is_none())));
        pair.a.to(QpState::Reset)?;
        pair.b.to(QpState::Reset)?;
        pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
        pair.b.recv(round, 0..100)?;
        pair.a.send(round, 0..20)?;
        t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
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

/// A send that is wrong stops the sends of a datagram's queue pair, and nothing else; they can be taken up again.
pub(crate) fn send_queue_error<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    if t.bed.profile == Profile::Rxe {
        return Err(Stop::Skip("state SQE".to_owned(), libc::EOPNOTSUPP));
    }
    let mut pair = t.pair(QpType::Ud)?;
    pair.a.recv(1, 0..100)?;
    pair.b.recv(1, 0..100)?;
    let far = crate::bed::remote(&pair.b, 0);
    let sges = [pair.a.buffer.sge(0..20)];
    pair.a.post(1, SendOp::RdmaRead(far), &sges)?;
    pair.a.send(2, 0..20)?;
    t.see(&mut pair, &[(Of::ASent, 2)])?;
    t.states(&pair)?;
    // It still receives.
    pair.b.send(3, 0..20)?;
    t.see(&mut pair, &[(Of::BSent, 1), (Of::AReceived, 1)])?;
    pair.a.to(QpState::Rts)?;
    pair.a.send(4, 0..20)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    t.states(&pair)?;
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
