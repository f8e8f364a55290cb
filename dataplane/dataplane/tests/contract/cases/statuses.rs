//! Cases for failed requests: the completion statuses and events on both sides.

use std::thread;
use std::time::Duration;

use dataplane::lane::message::MessageDomain;
use dataplane::units::{QpNum, Rkey};
use dataplane::verbs::{
    Access, Capability, Destination, QpState, QpType, RawDevice, RecvRequest, Remote, SendFlags, SendOp, SendRequest,
    WcStatus,
};

use super::raw::{MACS, announce};
use super::{bad_lkey, bad_rkey};
use crate::Trial;
use crate::bed::{Connection, EndpointSpec, Outcome, Pair, PairCq, QKEY, Stop, connect, post_result, remote};

/// A message of 20 bytes fails if the receive has only 10 bytes.
pub(crate) fn rc_short_receive<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.recv(1, 0..10)?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 REM_INV_REQ_ERR
         b receive 1 LOC_LEN_ERR
         a ERR, b ERR",
    )
}

pub(crate) fn rc_receive_bad_lkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let sges = [bad_lkey(pair.b.buffer.sge(0..100))];
    pair.b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }])?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 REM_OP_ERR
         b receive 1 LOC_PROT_ERR
         a ERR, b ERR",
    )
}

pub(crate) fn rc_receive_without_local_write<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let fixed = pair.b.domain.buffer(100, Access::empty())?;
    pair.b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[fixed.sge(0..100)] }])?;
    pair.a.buffer.write(0, &[7; 20]);
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("written: {}", fixed.to_vec(0..100).iter().any(|byte| *byte != 0)));
    t.expect(
        "a send 1 REM_OP_ERR
         b receive 1 LOC_PROT_ERR
         written: false",
    )
}

/// Posts one request that the requester's device must reject, and logs the result.
fn check_local_error<D: RawDevice>(
    t: &mut Trial<'_, D>,
    request: impl FnOnce(&mut Pair<D>) -> Result<(), dataplane::verbs::PostError>,
) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.recv(1, 0..100)?;
    let posted = request(&mut pair);
    let wanted = if posted.is_ok() { &[(PairCq::ASent, 1)][..] } else { &[] };
    t.log(format!("posted: {}", post_result(posted)));
    t.wait_and_log(&mut pair, wanted)?;
    t.log_states(&pair)
}

pub(crate) fn rc_send_bad_lkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_local_error(t, |pair| {
        let sge = bad_lkey(pair.a.buffer.sge(0..20));
        pair.a.post(1, SendOp::Send, &[sge])
    })?;
    t.expect(
        "posted: ok
         a send 1 LOC_PROT_ERR
         a ERR, b RTS",
    )
}

pub(crate) fn rc_write_bad_lkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_local_error(t, |pair| {
        let sge = bad_lkey(pair.a.buffer.sge(0..20));
        pair.a.post(1, SendOp::RdmaWrite(remote(&pair.b, 0)), &[sge])
    })?;
    t.expect(
        "posted: ok
         a send 1 LOC_PROT_ERR
         a ERR, b RTS",
    )
}

pub(crate) fn rc_send_of_another_domain<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let other = MessageDomain::new(&t.bed.a)?.buffer(100, Access::LOCAL_WRITE)?;
    check_local_error(t, |pair| pair.a.post(1, SendOp::Send, &[other.sge(0..20)]))?;
    t.expect(
        "posted: ok
         a send 1 LOC_PROT_ERR
         a ERR, b RTS",
    )
}

pub(crate) fn rc_send_out_of_bounds<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_local_error(t, |pair| {
        let sge = pair.a.buffer.sge(pair.a.buffer.len() - 10..pair.a.buffer.len() + 10);
        pair.a.post(1, SendOp::Send, &[sge])
    })?;
    t.expect(
        "posted: ok
         a send 1 LOC_PROT_ERR
         a ERR, b RTS",
    )
}

pub(crate) fn rc_read_without_local_write<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_local_error(t, |pair| {
        let fixed = pair.a.domain.buffer(100, Access::empty()).expect("a buffer");
        let posted = pair.a.post(1, SendOp::RdmaRead(remote(&pair.b, 0)), &[fixed.sge(0..20)]);
        // The region must stay registered until the response arrives.
        pair.wait(&[(PairCq::ASent, 1)]).expect("a queue that can be polled");
        posted
    })?;
    t.expect(
        "posted: ok
         a send 1 LOC_PROT_ERR
         a ERR, b RTS",
    )
}

/// Posts one request that the peer must reject, and logs the completions and events of the peer.
fn check_remote_error<D: RawDevice>(
    t: &mut Trial<'_, D>,
    with: Connection,
    request: impl FnOnce(&mut Pair<D>) -> Result<(), dataplane::verbs::PostError>,
) -> Outcome {
    while t.bed.b.poll_async_event().is_some() {}
    let mut pair = t.pair_with(EndpointSpec::new(QpType::Rc), Connection::default(), with)?;
    let before = pair.b.buffer.to_vec(0..pair.b.buffer.len());
    pair.b.recv(9, 0..100)?;
    request(&mut pair)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.log(format!("touched: {}", pair.b.buffer.to_vec(0..before.len()) != before));
    while let Some(event) = t.bed.b.poll_async_event() {
        if event.element == pair.b.qp.number().0 {
            t.log(format!("b {}", event.kind));
        }
    }
    Ok(())
}

/// The time to wait until a frame has arrived, on devices without RC queue pairs. On other devices, round trips show
/// that the frame has arrived.
const ARRIVAL_TIME: Duration = Duration::from_millis(100);

const ACCESS_REFUSED: &str = "a send 1 REM_ACCESS_ERR
    b receive 9 WR_FLUSH_ERR
    a ERR, b ERR
    touched: false
    b IBV_EVENT_QP_ACCESS_ERR";

const REQUEST_REFUSED: &str = "a send 1 REM_INV_REQ_ERR
    b receive 9 WR_FLUSH_ERR
    a ERR, b ERR
    touched: false
    b IBV_EVENT_QP_REQ_ERR";

/// Posts an RDMA write to an address at which the peer must refuse the write.
fn check_refused_write<D: RawDevice>(
    t: &mut Trial<'_, D>,
    with: Connection,
    to: impl FnOnce(&Pair<D>) -> Remote,
) -> Outcome {
    check_remote_error(t, with, |pair| {
        let (to, sge) = (to(pair), pair.a.buffer.sge(0..20));
        pair.a.buffer.write(0, &[7; 20]);
        pair.a.post(1, SendOp::RdmaWrite(to), &[sge])
    })
}

pub(crate) fn rc_write_bad_rkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_refused_write(t, Connection::default(), |pair| bad_rkey(remote(&pair.b, 0)))?;
    t.expect(ACCESS_REFUSED)
}

pub(crate) fn rc_write_out_of_bounds<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_refused_write(t, Connection::default(), |pair| remote(&pair.b, pair.b.buffer.len() - 10))?;
    t.expect(ACCESS_REFUSED)
}

/// Posts a request to a memory region of the peer that has only the rights `access`.
fn check_missing_permission<D: RawDevice>(
    t: &mut Trial<'_, D>,
    access: Access,
    request: fn(Remote) -> SendOp<'static>,
) -> Outcome {
    check_remote_error(t, Connection::default(), |pair| {
        let fixed = pair.b.domain.buffer(100, access).expect("a buffer");
        let posted = pair.a.post(1, request(fixed.remote(0)), &[pair.a.buffer.sge(0..20)]);
        // The region must stay registered until the peer has refused the request.
        pair.wait(&[(PairCq::ASent, 1)]).expect("a queue that can be polled");
        posted
    })?;
    t.expect(ACCESS_REFUSED)
}

pub(crate) fn rc_write_without_permission<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_missing_permission(t, Access::LOCAL_WRITE | Access::REMOTE_READ, SendOp::RdmaWrite)
}

pub(crate) fn rc_read_without_permission<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_missing_permission(t, Access::LOCAL_WRITE | Access::REMOTE_WRITE, SendOp::RdmaRead)
}

pub(crate) fn rc_write_of_another_domain<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let other = MessageDomain::new(&t.bed.b)?.buffer(100, crate::bed::ALL_ACCESS)?;
    check_remote_error(t, Connection::default(), |pair| {
        let sge = pair.a.buffer.sge(0..20);
        pair.a.post(1, SendOp::RdmaWrite(other.remote(0)), &[sge])
    })?;
    t.expect(ACCESS_REFUSED)
}

pub(crate) fn rc_write_not_enabled<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let read_only = Connection { access: Access::REMOTE_READ, ..Connection::default() };
    check_refused_write(t, read_only, |pair| remote(&pair.b, 0))?;
    t.expect(REQUEST_REFUSED)
}

pub(crate) fn rc_read_not_enabled<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_remote_error(t, Connection { access: Access::REMOTE_WRITE, ..Connection::default() }, |pair| {
        let (to, sge) = (remote(&pair.b, 0), pair.a.buffer.sge(0..20));
        pair.a.post(1, SendOp::RdmaRead(to), &[sge])
    })?;
    t.expect(REQUEST_REFUSED)
}

pub(crate) fn rc_atomic_not_enabled<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Atomic)?;
    check_remote_error(t, Connection { access: Access::REMOTE_WRITE, ..Connection::default() }, |pair| {
        let (to, sge) = (remote(&pair.b, 0), pair.a.buffer.sge(0..8));
        pair.a.post(1, SendOp::FetchAdd { remote: to, add: 1 }, &[sge])
    })?;
    t.expect(REQUEST_REFUSED)
}

pub(crate) fn rc_read_max_dest_rd_atomic_0<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_remote_error(t, Connection { max_dest_rd_atomic: 0, ..Connection::default() }, |pair| {
        let (to, sge) = (remote(&pair.b, 0), pair.a.buffer.sge(0..20));
        pair.a.post(1, SendOp::RdmaRead(to), &[sge])
    })?;
    t.expect(REQUEST_REFUSED)
}

/// The queue pairs have different path MTUs, so the responder sends packets of a length that the requester does not
/// expect.
pub(crate) fn rc_read_unequal_mtu<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let with = |path_mtu| Connection { path_mtu, ..Connection::default() };
    for (of_requester, of_responder) in [(3, 1), (1, 3)] {
        let mut pair = t.pair_with(EndpointSpec::new(QpType::Rc), with(of_requester), with(of_responder))?;
        let (from, sge) = (remote(&pair.b, 0), pair.a.buffer.sge(0..3000));
        pair.a.post(1, SendOp::RdmaRead(from), &[sge])?;
        t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
        t.log(format!("MTU codes {of_requester} and {of_responder}: a {}, b {}", pair.a.state()?, pair.b.state()?));
    }
    t.expect(
        "a send 1 BAD_RESP_ERR
         MTU codes 3 and 1: a ERR, b RTS
         a send 1 BAD_RESP_ERR
         MTU codes 1 and 3: a ERR, b RTS",
    )
}

pub(crate) fn rc_no_receive<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 RNR_RETRY_EXC_ERR
         a ERR, b RTS",
    )
}

/// A send fails if no queue pair has the destination number.
pub(crate) fn rc_no_peer<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = Pair::new(t.bed, EndpointSpec::new(QpType::Rc))?;
    let with = Connection { retry_count: 1, timeout: 12, ..Connection::default() };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (attributes, mask) = with.step(&pair.a, state, pair.b.address(), QpNum(0xff_fff0));
        pair.a.qp.modify(&attributes, mask)?;
    }
    connect(&mut pair.b, &pair.a, with, QpState::Rts)?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 RETRY_EXC_ERR
         a ERR, b RTS",
    )
}

/// The device fails a read of a queue pair whose `max_rd_atomic` is 0. On rxe, the kernel's software RoCE driver, the
/// read would never complete, so Dataplane's provider `verbs` refuses the read.
pub(crate) fn rc_read_max_rd_atomic_0<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let none = Connection { max_rd_atomic: 0, ..Connection::default() };
    let mut pair = t.pair_with(EndpointSpec::new(QpType::Rc), none, Connection::default())?;
    let (from, sge) = (remote(&pair.b, 0), pair.a.buffer.sge(0..20));
    let posted = pair.a.post(1, SendOp::RdmaRead(from), &[sge]);
    t.log(format!("posted: {}", post_result(posted)));
    t.wait_and_log(&mut pair, &[])?;
    t.log_states(&pair)?;
    t.expect(
        "posted: ok
         a send 1 LOC_QP_OP_ERR
         a ERR, b RTS",
    )
}

pub(crate) fn rc_send_with_invalidate_bad_rkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.recv(1, 0..100)?;
    let sge = pair.a.buffer.sge(0..20);
    pair.a.post(1, SendOp::SendWithInv(Rkey(0xdead_be00)), &[sge])?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    // Log only the state of endpoint b. The state of endpoint a depends on the device, because some devices acknowledge
    // the send before they check the key.
    t.log(format!("b {}", pair.b.state()?));
    t.expect(
        "a send 1 REM_ACCESS_ERR
         b receive 1 REM_INV_REQ_ERR
         b ERR",
    )
}

/// The first error flushes all later requests, signalled or not.
pub(crate) fn rc_error_flushes_later_requests<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.recv(1, 0..100)?;
    pair.b.recv(2, 100..200)?;
    let (good, bad) = (pair.a.buffer.sge(0..20), bad_lkey(pair.a.buffer.sge(0..20)));
    let (good, bad) = ([good], [bad]);
    let request = |wr_id, flags, sges| SendRequest { wr_id, op: SendOp::Send, flags, sges, to: None };
    pair.a.qp.post_send(&[request(1, SendFlags::SIGNALED, &good)])?;
    // Wait for the first send, because a request that is running when the error occurs may be flushed too.
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    pair.a.qp.post_send(&[
        request(2, SendFlags::empty(), &bad),
        request(3, SendFlags::empty(), &good),
        request(4, SendFlags::SIGNALED, &good),
    ])?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 3)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 20 bytes
         a send 2 LOC_PROT_ERR
         a send 3 WR_FLUSH_ERR
         a send 4 WR_FLUSH_ERR
         a ERR, b RTS",
    )
}

pub(crate) fn uc_short_receive<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Uc)?;
    pair.b.recv(1, 0..10)?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 SEND
         b receive 1 LOC_LEN_ERR
         a RTS, b ERR",
    )
}

/// A message that finds no receive is lost. Later messages arrive.
fn check_lost_message<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType, grh: usize) -> Outcome {
    let mut pair = t.pair(kind)?;
    pair.a.buffer.write(0, b"onetwo");
    pair.a.send(1, 0..3)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.round_trips()?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(2, 3..6)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    let text = pair.b.buffer.to_vec(grh..grh + 3);
    t.log(String::from_utf8_lossy(&text));
    t.log_states(&pair)
}

pub(crate) fn uc_no_receive<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_lost_message(t, QpType::Uc, 0)?;
    t.expect(
        "a send 1 SEND
         a send 2 SEND
         b receive 1 RECV 3 bytes
         two
         a RTS, b RTS",
    )
}

pub(crate) fn uc_bad_rkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Uc)?;
    pair.b.recv(1, 0..100)?;
    pair.a.buffer.write(0, &[7; 20]);
    let sges = [pair.a.buffer.sge(0..20)];
    pair.a.post(1, SendOp::RdmaWrite(bad_rkey(remote(&pair.b, 200))), &sges)?;
    pair.a.post(2, SendOp::Send, &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 2), (PairCq::BReceived, 1)])?;
    t.log(format!("written: {}", pair.b.buffer.to_vec(200..220).contains(&7)));
    t.log_states(&pair)?;
    t.expect(
        "a send 1 RDMA_WRITE
         a send 2 SEND
         b receive 1 RECV 20 bytes
         written: false
         a RTS, b RTS",
    )
}

pub(crate) fn ud_wrong_qkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    pair.b.recv(1, 0..100)?;
    pair.b.recv(2, 100..200)?;
    let sges = [pair.a.buffer.sge(0..20)];
    let (ah, qp) = pair.a.destination.clone().expect("a peer");
    for (wr_id, qkey) in [(1, QKEY + 1), (2, QKEY)] {
        let to = Some(Destination { ah: &ah, qp, qkey });
        pair.a.qp.post_send(&[SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to }])?;
    }
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 2), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 SEND
         a send 2 SEND
         b receive 1 RECV 60 bytes GRH
         a RTS, b RTS",
    )
}

pub(crate) fn ud_too_long<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    let mtu = t.bed.a.port(1)?.active_mtu as usize;
    pair.b.recv(1, 0..mtu + 100)?;
    let sge = pair.a.buffer.sge(0..mtu + 1);
    let posted = pair.a.post(1, SendOp::Send, &[sge]);
    t.log(format!("posted: {}", post_result(posted)));
    t.wait_and_log(&mut pair, if posted.is_ok() { &[(PairCq::ASent, 1)] } else { &[] })?;
    t.log_states(&pair)?;
    t.expect(
        "posted: ok
         a send 1 LOC_LEN_ERR
         a SQE, b RTS",
    )
}

pub(crate) fn ud_short_receive<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    // The receive is large enough for the payload, but not for the payload and the 40-byte header.
    pair.b.recv(1, 0..59)?;
    pair.a.send(1, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 SEND
         b receive 1 LOC_LEN_ERR
         a RTS, b ERR",
    )
}

pub(crate) fn ud_no_receive<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_lost_message(t, QpType::Ud, 40)?;
    t.expect(
        "a send 1 SEND
         a send 2 SEND
         b receive 1 RECV 43 bytes GRH
         two
         a RTS, b RTS",
    )
}

/// A frame that finds no receive is lost, and the queue pairs stay in RTS. The frames have an EtherType for
/// experiments, because a port may drop frames with a wrong length field.
pub(crate) fn raw_no_receive<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::RawPacket)?;
    t.require(Capability::FlowRules)?;
    if t.bed.a.name() == t.bed.b.name() {
        return Err(Stop::Skip("raw packets from a device to itself".to_owned(), libc::EOPNOTSUPP));
    }
    let mut pair = t.pair(QpType::RawPacket)?;
    announce(&mut pair.b)?;
    let frame = |payload: u8| [&MACS[1][..], &MACS[0], &[0x88, 0xb5], &[payload; 46]].concat();
    pair.a.buffer.write(0, &frame(1));
    pair.a.buffer.write(60, &frame(2));
    pair.a.send(1, 0..60)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    // The completion does not mean that the frame has arrived.
    match t.bed.require_type(QpType::Rc) {
        Ok(()) => t.round_trips()?,
        Err(_) => thread::sleep(ARRIVAL_TIME),
    }
    // The software device takes the frame during a poll.
    pair.poll_queues()?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(2, 60..120)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("of {}", pair.b.buffer.to_vec(14..15)[0]));
    t.log_states(&pair)?;
    t.expect(
        "a send 1 SEND
         a send 2 SEND
         b receive 1 RECV 60 bytes
         of 2
         a RTS, b RTS",
    )
}

/// When the user moves a queue pair to ERR, every request completes once with a flush error, including unsignalled
/// sends.
pub(crate) fn error_by_user<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let endless_retry = Connection { rnr_retry: 7, ..Connection::default() };
    let mut pair = t.pair_with(EndpointSpec::new(QpType::Rc), endless_retry, Connection::default())?;
    pair.a.recv(5, 0..10)?;
    pair.a.recv(6, 10..20)?;
    let sges = [pair.a.buffer.sge(0..20)];
    // The peer has no receives, so no send completes.
    pair.a.post(1, SendOp::Send, &sges)?;
    pair.a.post_flags(2, SendOp::Send, SendFlags::empty(), &sges)?;
    pair.a.post(3, SendOp::Send, &sges)?;
    pair.a.set_state(QpState::Err)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 3), (PairCq::AReceived, 2)])?;
    // Requests posted in ERR are flushed too.
    pair.a.recv(7, 0..10)?;
    pair.a.post_flags(4, SendOp::Send, SendFlags::empty(), &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::AReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 WR_FLUSH_ERR
         a send 2 WR_FLUSH_ERR
         a send 3 WR_FLUSH_ERR
         a receive 5 WR_FLUSH_ERR
         a receive 6 WR_FLUSH_ERR
         a send 4 WR_FLUSH_ERR
         a receive 7 WR_FLUSH_ERR
         a ERR, b RTS",
    )
}

/// A receive that is posted in ERR is flushed once, even if the state is set to ERR again.
pub(crate) fn receive_after_error<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.a.recv(1, 0..10)?;
    pair.a.set_state(QpState::Err)?;
    t.wait_and_log(&mut pair, &[(PairCq::AReceived, 1)])?;
    pair.a.recv(2, 0..10)?;
    t.round_trips()?;
    t.wait_and_log(&mut pair, &[])?;
    t.log("ERR again");
    pair.a.set_state(QpState::Err)?;
    pair.a.recv(3, 0..10)?;
    pair.a.set_state(QpState::Err)?;
    t.round_trips()?;
    t.wait_and_log(&mut pair, &[])?;
    t.expect(
        "a receive 1 WR_FLUSH_ERR
         a receive 2 WR_FLUSH_ERR
         ERR again
         a receive 3 WR_FLUSH_ERR",
    )
}

/// The change to RESET discards the posted requests and the completions that were not polled. After a new connection,
/// the queue pair works again.
pub(crate) fn reset_by_user<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.recv(1, 0..100)?;
    pair.b.recv(2, 100..200)?;
    pair.a.send(1, 0..20)?;
    // When the send of endpoint a has completed, the receive of endpoint b has completed too. The test does not poll
    // the completion of this receive before the reset.
    wait_for_a(&mut pair)?;
    for end in [&mut pair.a, &mut pair.b] {
        end.set_state(QpState::Reset)?;
    }
    t.log_states(&pair)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
    pair.b.recv(3, 200..300)?;
    pair.a.send(2, 0..20)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.expect(
        "a RESET, b RESET
         a send 1 SEND
         a send 2 SEND
         b receive 3 RECV 20 bytes",
    )
}

/// Polls only endpoint a.
fn wait_for_a<D: RawDevice>(pair: &mut Pair<D>) -> Outcome {
    let begin = std::time::Instant::now();
    while pair.a.sent.is_empty() && begin.elapsed() < crate::bed::COMPLETION_TIMEOUT {
        pair.a.poll_queues()?;
        std::thread::yield_now();
    }
    Ok(())
}

/// The failed request completes before the later requests, which are flushed in order. Receives are flushed in order
/// too.
pub(crate) fn flush_order<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    for wr_id in 20..24 {
        pair.a.recv(wr_id, 0..10)?;
    }
    pair.b.recv(1, 0..100)?;
    let (good, to) = ([pair.a.buffer.sge(0..20)], bad_rkey(remote(&pair.b, 0)));
    let mut requests =
        vec![SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &good, to: None }];
    requests.push(SendRequest { wr_id: 2, op: SendOp::RdmaWrite(to), ..requests[0] });
    for wr_id in 3..8 {
        requests.push(SendRequest { wr_id, ..requests[0] });
    }
    pair.a.qp.post_send(&requests)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 7), (PairCq::AReceived, 4), (PairCq::BReceived, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 SEND
         a send 2 REM_ACCESS_ERR
         a send 3 WR_FLUSH_ERR
         a send 4 WR_FLUSH_ERR
         a send 5 WR_FLUSH_ERR
         a send 6 WR_FLUSH_ERR
         a send 7 WR_FLUSH_ERR
         a receive 20 WR_FLUSH_ERR
         a receive 21 WR_FLUSH_ERR
         a receive 22 WR_FLUSH_ERR
         a receive 23 WR_FLUSH_ERR
         b receive 1 RECV 20 bytes
         a ERR, b ERR",
    )
}

/// `WcStatus::from_name` finds every status that a device reports, by the name of the status in verbs.h.
pub(crate) fn status_by_name<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.recv(1, 0..100)?;
    pair.a.send(1, 0..20)?;
    pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    pair.a.recv(2, 0..100)?;
    let sges = [pair.a.buffer.sge(0..20)];
    pair.a.post(2, SendOp::RdmaWrite(bad_rkey(remote(&pair.b, 0))), &sges)?;
    pair.wait(&[(PairCq::ASent, 2), (PairCq::AReceived, 1)])?;
    for it in pair.a.sent.drain(..).chain(pair.a.received.drain(..)) {
        let found = WcStatus::from_name(it.status.name());
        t.log(format!("{} {} {}", it.status, it.status.raw(), found == Some(it.status)));
    }
    let all = WcStatus::NAMED.iter().filter(|it| WcStatus::from_name(it.name()) == Some(**it)).count();
    t.log(format!("{all} names, {}", WcStatus::from_raw(99)));
    t.log(format!("{:?} {:?}", WcStatus::from_name("IBV_WC_success"), WcStatus::from_name("IBV_WC_SUCCESS ")));
    t.expect(
        "IBV_WC_SUCCESS 0 true
         IBV_WC_REM_ACCESS_ERR 10 true
         IBV_WC_WR_FLUSH_ERR 5 true
         24 names, unknown (99)
         None None",
    )
}
