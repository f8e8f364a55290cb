//! The traffic tests of rdma-core's own test suite (`tests/` in its sources, version 44), under their original names.
//!
//! A case for a feature that the device lacks is skipped. The skip names the capability and the `errno`.

use dataplane::lane::message::{Binding, MessageDomain};
use dataplane::verbs::{
    Access, Capability, CqApi, CqSpec, MemoryWindow, MwKind, PollFields, QpCaps, QpState, QpType, RawDevice,
    RecvRequest, SendApi, SendFlags, SendOp,
};

use super::{bad_lkey, bad_rkey, completions, data, memory, posting, raw, shared, states, statuses};
use crate::Trial;
use crate::bed::{
    CAPS, Connection, Endpoint, EndpointSpec, Outcome, Pair, PairCq, Stop, post_result, remote, verb_result,
};

/// Skips a case whose verb has no function in the traits of `dataplane::verbs`. The case does not call the device.
fn no_verb(what: &str) -> Outcome {
    Err(Stop::Skip(what.to_owned(), 0))
}

// test_atomic.py

fn atomic<D: RawDevice>(t: &mut Trial<'_, D>, compare: bool) -> Outcome {
    t.require(Capability::Atomic)?;
    let mut pair = t.pair(QpType::Rc)?;
    for wr_id in 0..20u64 {
        pair.b.buffer.write(0, &wr_id.to_ne_bytes());
        let sges = [pair.a.buffer.sge(64..72)];
        let far = remote(&pair.b, 0);
        let op = match compare {
            // Every second comparison fails.
            true => SendOp::CompareSwap { remote: far, compare: wr_id & !1, swap: 1000 },
            false => SendOp::FetchAdd { remote: far, add: 7 },
        };
        pair.a.post(wr_id, op, &sges)?;
        let came = pair.wait(&[(PairCq::ASent, 1)])?;
        let good = pair.a.sent.drain(..).all(|it| it.byte_len() == Some(8) && it.wr_id == wr_id);
        let was = pair.a.buffer.to_vec(64..72) == wr_id.to_ne_bytes();
        let wanted = if !compare {
            wr_id + 7
        } else if wr_id & 1 == 0 {
            1000
        } else {
            wr_id
        };
        let is = pair.b.buffer.to_vec(0..8) == wanted.to_ne_bytes();
        if !(came && good && was && is) {
            t.log(format!("{wr_id}: came {came}, good {good}, was {was}, is {is}"));
        }
    }
    t.expect("")
}

pub(crate) fn test_atomic_cmp_and_swap<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    atomic(t, true)
}

pub(crate) fn test_atomic_fetch_and_add<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    atomic(t, false)
}

pub(crate) fn test_atomic_invalid_qp_access<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    statuses::rc_atomic_not_enabled(t)
}

pub(crate) fn test_atomic_invalid_mr_access<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Atomic)?;
    let mut pair = t.pair(QpType::Rc)?;
    let fixed = pair.b.domain.buffer(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let sges = [pair.a.buffer.sge(64..72)];
    pair.a.post(1, SendOp::FetchAdd { remote: fixed.remote(0), add: 1 }, &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.expect("a send 1 REM_ACCESS_ERR")
}

pub(crate) fn test_atomic_non_aligned_addr<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    data::atomic_not_aligned(t)
}

pub(crate) fn test_atomic_invalid_lkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Atomic)?;
    let mut pair = t.pair(QpType::Rc)?;
    let sges = [bad_lkey(pair.a.buffer.sge(64..72))];
    let far = remote(&pair.b, 0);
    pair.a.post(1, SendOp::FetchAdd { remote: far, add: 1 }, &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.expect("a send 1 LOC_PROT_ERR")
}

pub(crate) fn test_atomic_invalid_rkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Atomic)?;
    let mut pair = t.pair(QpType::Rc)?;
    let sges = [pair.a.buffer.sge(64..72)];
    let far = bad_rkey(remote(&pair.b, 0));
    pair.a.post(1, SendOp::FetchAdd { remote: far, add: 1 }, &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.expect("a send 1 REM_ACCESS_ERR")
}

/// Checks that the device rejects extended reliable connections (XRC), which are not part of the verbs contract.
fn xrc<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    Endpoint::new(t.bed, false, EndpointSpec::new(QpType::XrcSend), None)?;
    Err(Stop::Fail("the device accepts XRC queue pairs".to_owned()))
}

pub(crate) fn test_xrc_atomic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    xrc(t)
}

// test_cq.py

pub(crate) fn test_create_cq<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    for depth in [1, 7, 64, 1000] {
        let made = t.bed.a.create_cq(&CqSpec { depth, api: CqApi::Classic, ..CqSpec::default() }, None);
        t.log(format!("{depth}: {}", verb_result(made)));
    }
    t.expect(
        "1: ok
         7: ok
         64: ok
         1000: ok",
    )
}

pub(crate) fn test_create_cq_with_bad_flow<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    completions::creation(t)
}

/// A completion queue outlives its handle while a queue pair uses the queue. When the queue pair is gone, new queues
/// can be created.
pub(crate) fn test_destroy_cq<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    for _ in 0..20 {
        let pair = t.pair(QpType::Rc)?;
        let Pair { a, b: _b } = pair;
        let Endpoint { send_cq, recv_cq, qp, .. } = a;
        drop(send_cq);
        drop(recv_cq);
        drop(qp);
    }
    t.expect("")
}

pub(crate) fn test_resize_cq<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    completions::resize(t)
}

// test_cq_events.py

pub(crate) fn test_cq_events_rc<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    completions::arm_race(t)
}

pub(crate) fn test_cq_events_ud<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Events)?;
    use dataplane::verbs::{CompletionChannel, CompletionQueue};
    let channel = t.bed.b.create_channel()?;
    let spec = EndpointSpec::new(QpType::Ud);
    let mut pair = Pair::new(t.bed, spec)?;
    let recv_cq = t.bed.b.create_cq(&spec.cq, Some(&channel))?.0;
    let qp_spec = dataplane::verbs::QpSpec::new(QpType::Ud, t.bed.fit(spec.caps));
    pair.b.qp = pair.b.domain.create_qp(&qp_spec, &pair.b.send_cq, &recv_cq, None)?;
    pair.b.recv_cq = recv_cq;
    pair.advance(QpState::Rts, Connection::default(), Connection::default())?;
    for wr_id in 0..5 {
        pair.b.recv(wr_id, 0..100)?;
        pair.b.recv_cq.arm(false)?;
        pair.a.send(wr_id, 0..10)?;
        let woken = channel.wait(crate::bed::COMPLETION_TIMEOUT)?;
        t.log(format!("{}", woken == Some(pair.b.recv_cq.number())));
        pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
        pair.a.sent.clear();
        pair.b.received.clear();
    }
    t.expect("true\ntrue\ntrue\ntrue\ntrue")
}

// test_cqex.py

pub(crate) fn test_create_cq_ex<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::ExtendedCq)?;
    // A device on Ethernet may lack the fields of the InfiniBand path.
    let of_path = PollFields::SLID | PollFields::SL | PollFields::DLID_PATH_BITS;
    for fields in [PollFields::empty(), PollFields::BYTE_LEN, PollFields::STANDARD] {
        let (_, granted) = t.bed.a.create_cq(&CqSpec { depth: 16, fields, ..CqSpec::default() }, None)?;
        t.log(format!("{}", granted.fields.contains(fields - of_path)));
    }
    t.expect("true\ntrue\ntrue")
}

pub(crate) fn test_create_cq_ex_bad_flow<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    completions::creation(t)
}

fn cq_ex<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType, grh: u32) -> Outcome {
    t.require(Capability::ExtendedCq)?;
    let mut pair = t.pair(kind)?;
    for wr_id in 0..20 {
        pair.b.recv(wr_id, 0..200)?;
        pair.a.send(wr_id, 0..100)?;
        let came = pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
        let good = pair.b.received.drain(..).all(|it| it.wr_id == wr_id && it.byte_len() == Some(100 + grh));
        if !(came && good) {
            t.log(format!("{wr_id}: came {came}, good {good}"));
        }
        pair.a.sent.clear();
    }
    t.wait_and_log(&mut pair, &[])?;
    t.expect("")
}

pub(crate) fn test_rc_traffic_cq_ex<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    cq_ex(t, QpType::Rc, 0)
}

pub(crate) fn test_ud_traffic_cq_ex<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    cq_ex(t, QpType::Ud, 40)
}

pub(crate) fn test_xrc_traffic_cq_ex<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    xrc(t)
}

// test_flow.py

pub(crate) fn test_eth_spec_flow_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    raw::flow_ethernet(t)
}

pub(crate) fn test_ipv4_spec_flow_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    raw::flow_ipv4(t)
}

pub(crate) fn test_ipv6_spec_flow_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    raw::flow_ipv6(t)
}

pub(crate) fn test_udp_spec_flow_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    raw::flow_udp(t)
}

pub(crate) fn test_tcp_spec_flow_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    raw::flow_tcp(t)
}

// test_mr.py

pub(crate) fn test_mr_rereg_addr<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("ibv_rereg_mr")
}

pub(crate) fn test_mr_rereg_atomic<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("ibv_rereg_mr")
}

pub(crate) fn test_mr_rereg_access<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("ibv_rereg_mr")
}

pub(crate) fn test_mr_rereg_pd<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("ibv_rereg_mr")
}

pub(crate) fn test_mr_rereg_bad_flow<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("ibv_rereg_mr")
}

pub(crate) fn test_reg_mr_bad_flags<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    memory::access_rules(t)
}

pub(crate) fn test_mw_type1<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    memory::window_1_bounds(t)
}

pub(crate) fn test_mw_type2<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    memory::window_2_bounds(t)
}

pub(crate) fn test_mw_type2_invalidate_local<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    memory::window_2_local_invalidate(t)
}

pub(crate) fn test_mw_type2_invalidate_remote<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    memory::window_2_remote_invalidate(t)
}

/// A request cannot invalidate a window of type 1.
pub(crate) fn test_mw_wrong_type<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let mut window = memory::allocate(t, &pair, MwKind::Type1)?;
    let buffer = pair.b.buffer.clone();
    let binding =
        Binding { wr_id: 1, flags: SendFlags::SIGNALED, buffer: &buffer, part: 0..100, access: Access::REMOTE_WRITE };
    pair.b.qp.bind_mw(&mut window, &binding)?;
    t.wait_and_log(&mut pair, &[(PairCq::BSent, 1)])?;
    let posted = pair.b.post(2, SendOp::LocalInv(window.rkey()), &[]);
    if posted.is_ok() {
        pair.wait(&[(PairCq::BSent, 1)])?;
    }
    let failed = posted.is_err() || pair.b.sent.drain(..).any(|it| it.opcode().is_none());
    t.log(format!("refused: {failed}"));
    t.expect(
        "b send 1 BIND_MW
         refused: true",
    )
}

pub(crate) fn test_dm_traffic<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("device memory")
}

pub(crate) fn test_dmabuf_mr<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("dma-buf memory")
}

// test_odp.py

fn odp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let pair = t.pair(QpType::Ud)?;
    match pair.a.domain.buffer(4096, Access::LOCAL_WRITE | Access::ON_DEMAND) {
        Err(dataplane::Error::Verb { source, .. }) => Err(Stop::Skip("on-demand paging".to_owned(), source.errno)),
        Err(other) => Err(Stop::Fail(other.to_string())),
        // The traits have no function for the traffic of these cases, such as a prefetch.
        Ok(_) => no_verb("on-demand paging"),
    }
}

pub(crate) fn test_odp_rc_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    odp(t)
}

pub(crate) fn test_odp_ud_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    odp(t)
}

pub(crate) fn test_odp_xrc_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    odp(t)
}

pub(crate) fn test_odp_rc_srq_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    odp(t)
}

pub(crate) fn test_odp_implicit_rc_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    odp(t)
}

pub(crate) fn test_odp_rc_huge_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    odp(t)
}

pub(crate) fn test_odp_prefetch<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    odp(t)
}

// test_parent_domain.py

pub(crate) fn test_default_allocators_rc_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::ParentDomain)?;
    let plain = MessageDomain::new(&t.bed.a)?;
    let mut pair = super::completions::in_parent_domain(t, &plain, &plain.alloc_parent()?)?;
    for wr_id in 0..10 {
        pair.b.recv(wr_id, 0..100)?;
        pair.a.send(wr_id, 0..20)?;
    }
    let came = pair.wait(&[(PairCq::ASent, 10), (PairCq::BReceived, 10)])?;
    t.log(format!("{came}"));
    t.expect("true")
}

pub(crate) fn test_mem_align_rc_traffic<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("memory allocators of parent domains")
}

// test_qp.py

/// Creates queue pairs with normal, minimal and excessive capabilities.
fn create_qp<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType) -> Outcome {
    let most = t.bed.a.capabilities().max_sge;
    let caps = |send_depth, recv_depth, send_sges, recv_sges, inline| QpCaps {
        send_depth,
        recv_depth,
        send_sges,
        recv_sges,
        inline,
    };
    t.bed.require_type(kind)?;
    let domain = MessageDomain::new(&t.bed.a)?;
    let (cq, _) = t.bed.a.create_cq(&CqSpec { depth: 64, ..CqSpec::default() }, None)?;
    for (what, caps) in [
        ("some", t.bed.fit(CAPS)),
        ("least", caps(1, 1, 1, 1, 0)),
        ("many elements", caps(1, 1, most + 1, 1, 0)),
        ("many requests", caps(u32::MAX, 1, 1, 1, 0)),
        ("much inline", caps(1, 1, 1, 1, 1 << 20)),
    ] {
        let granted = domain.create_qp(&dataplane::verbs::QpSpec::new(kind, caps), &cq, &cq, None).map(|qp| qp.caps());
        t.log(match granted {
            // hns returns no error for too many inline bytes. The granted number is then smaller.
            Ok(got) if got.inline < caps.inline => format!("{what}: refused"),
            Ok(got) => {
                let enough = got.send_depth >= caps.send_depth && got.recv_sges >= caps.recv_sges;
                format!("{what}: ok, enough {enough}")
            }
            Err(_) => format!("{what}: refused"),
        });
    }
    t.expect(
        "some: ok, enough true
         least: ok, enough true
         many elements: refused
         many requests: refused
         much inline: refused",
    )
}

pub(crate) fn test_create_qp_rc<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    create_qp(t, QpType::Rc)
}

pub(crate) fn test_create_qp_uc<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    create_qp(t, QpType::Uc)
}

pub(crate) fn test_create_qp_ud<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    create_qp(t, QpType::Ud)
}

pub(crate) fn test_create_qp_raw_packet<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    create_qp(t, QpType::RawPacket)
}

pub(crate) fn test_query_qp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    states::query(t)
}

pub(crate) fn test_modify_qp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    states::recovery(t)
}

/// The Q_Key of a running datagram queue pair can be changed.
pub(crate) fn test_modify_ud_qp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    let attributes = dataplane::verbs::QpAttributes {
        state: QpState::Rts,
        qkey: 0x2222,
        ..dataplane::verbs::QpAttributes::default()
    };
    use dataplane::verbs::AttributeMask as M;
    t.log(verb_result(pair.a.qp.modify(&attributes, M::STATE | M::QKEY)));
    t.log(format!("{:#x}", pair.a.qp.query()?.qkey));
    t.expect(
        "ok
         0x2222",
    )
}

/// A Q_Key with the top bit set requires privileges.
pub(crate) fn test_modify_ud_privileged_qkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = Pair::new(t.bed, EndpointSpec::new(QpType::Ud))?;
    let (attributes, mask) = dataplane::verbs::QpAttributes::init(QpType::Ud, 1, 0x8000_0001);
    let set = verb_result(pair.a.qp.modify(&attributes, mask));
    t.log(if set == "EPERM" { "ok".to_owned() } else { set });
    t.expect("ok")
}

pub(crate) fn test_modify_raw_rate_limit<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    raw::rate_limit(t)
}

// test_qpex.py

/// Creates a pair that posts its sends with `ibv_wr_*`.
fn qp_ex<D: RawDevice>(t: &Trial<'_, D>, kind: QpType) -> Outcome<Pair<D>> {
    t.require(Capability::ExtendedSend)?;
    let spec = EndpointSpec { send_api: SendApi::Extended, ..EndpointSpec::new(kind) };
    t.pair_with(spec, Connection::default(), Connection::default())
}

/// Posts one operation that consumes a receive, and logs the result.
fn message<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType, op: SendOp<'_>, length: usize) -> Outcome {
    let mut pair = qp_ex(t, kind)?;
    let grh = if kind == QpType::Ud { 40 } else { 0 };
    let bytes = data::pattern(9, length);
    pair.a.buffer.write(0, &bytes);
    pair.b.recv(1, 4096..6000)?;
    let sges = [pair.a.buffer.sge(0..length)];
    pair.a.post(1, op, if length == 0 { &[] } else { &sges })?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("payload intact: {}", pair.b.buffer.to_vec(4096 + grh..4096 + grh + length) == bytes));
    Ok(())
}

pub(crate) fn test_qp_ex_ud_send<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    message(t, QpType::Ud, SendOp::Send, 100)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 140 bytes GRH
         payload intact: true",
    )
}

pub(crate) fn test_qp_ex_ud_zero_size<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    message(t, QpType::Ud, SendOp::Send, 0)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 40 bytes GRH
         payload intact: true",
    )
}

pub(crate) fn test_qp_ex_ud_send_imm<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    message(t, QpType::Ud, SendOp::SendWithImm(0x55u32.to_be()), 100)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 140 bytes GRH|WITH_IMM imm 0x55
         payload intact: true",
    )
}

pub(crate) fn test_qp_ex_rc_send<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    message(t, QpType::Rc, SendOp::Send, 1500)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 1500 bytes
         payload intact: true",
    )
}

pub(crate) fn test_qp_ex_rc_send_imm<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    message(t, QpType::Rc, SendOp::SendWithImm(0x55u32.to_be()), 1500)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 1500 bytes WITH_IMM imm 0x55
         payload intact: true",
    )
}

/// Posts one read or write of the peer's memory, and logs whether the memory of both sides has the same bytes.
fn one_sided<D: RawDevice>(t: &mut Trial<'_, D>, read: bool, length: usize) -> Outcome {
    let mut pair = qp_ex(t, QpType::Rc)?;
    let bytes = data::pattern(5, length);
    let far = remote(&pair.b, 4096);
    let sges = [pair.a.buffer.sge(0..length)];
    if read { &pair.b.buffer } else { &pair.a.buffer }.write(if read { 4096 } else { 0 }, &bytes);
    pair.a.post(
        1,
        if read { SendOp::RdmaRead(far) } else { SendOp::RdmaWrite(far) },
        if length == 0 { &[] } else { &sges },
    )?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    let intact = pair.a.buffer.to_vec(0..length) == bytes && pair.b.buffer.to_vec(4096..4096 + length) == bytes;
    t.log(format!("payload intact: {intact}"));
    Ok(())
}

pub(crate) fn test_qp_ex_rc_rdma_write<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    one_sided(t, false, 1500)?;
    t.expect(
        "a send 1 RDMA_WRITE
         payload intact: true",
    )
}

pub(crate) fn test_qp_ex_rc_rdma_write_zero_length<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    one_sided(t, false, 0)?;
    t.expect(
        "a send 1 RDMA_WRITE
         payload intact: true",
    )
}

pub(crate) fn test_qp_ex_rc_rdma_write_imm<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = qp_ex(t, QpType::Rc)?;
    pair.b.recv(1, 0..100)?;
    let (far, sges) = (remote(&pair.b, 4096), [pair.a.buffer.sge(0..100)]);
    pair.a.post(1, SendOp::RdmaWriteWithImm(far, 0x55u32.to_be()), &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.expect(
        "a send 1 RDMA_WRITE
         b receive 1 RECV_RDMA_WITH_IMM 100 bytes WITH_IMM imm 0x55",
    )
}

pub(crate) fn test_qp_ex_rc_rdma_read<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    one_sided(t, true, 1500)?;
    t.expect(
        "a send 1 RDMA_READ
         payload intact: true",
    )
}

pub(crate) fn test_qp_ex_rc_rdma_read_zero_size<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    one_sided(t, true, 0)?;
    t.expect(
        "a send 1 RDMA_READ
         payload intact: true",
    )
}

fn atomic_ex<D: RawDevice>(t: &mut Trial<'_, D>, compare: bool) -> Outcome {
    t.require(Capability::Atomic)?;
    let mut pair = qp_ex(t, QpType::Rc)?;
    pair.b.buffer.write(0, &5u64.to_ne_bytes());
    let (far, sges) = (remote(&pair.b, 0), [pair.a.buffer.sge(0..8)]);
    let op = match compare {
        true => SendOp::CompareSwap { remote: far, compare: 5, swap: 11 },
        false => SendOp::FetchAdd { remote: far, add: 6 },
    };
    pair.a.post(1, op, &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    let right = pair.a.buffer.to_vec(0..8) == 5u64.to_ne_bytes() && pair.b.buffer.to_vec(0..8) == 11u64.to_ne_bytes();
    t.log(format!("right: {right}"));
    Ok(())
}

pub(crate) fn test_qp_ex_rc_atomic_cmp_swp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    atomic_ex(t, true)?;
    t.expect(
        "a send 1 COMP_SWAP
         right: true",
    )
}

pub(crate) fn test_qp_ex_rc_atomic_fetch_add<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    atomic_ex(t, false)?;
    t.expect(
        "a send 1 FETCH_ADD
         right: true",
    )
}

pub(crate) fn test_qp_ex_rc_atomic_write<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("ibv_wr_atomic_write")
}

pub(crate) fn test_qp_ex_rc_flush<D: RawDevice>(_: &mut Trial<'_, D>) -> Outcome {
    no_verb("ibv_wr_flush")
}

pub(crate) fn test_qp_ex_rc_bind_mw<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = qp_ex(t, QpType::Rc)?;
    let mut window = memory::allocate(t, &pair, MwKind::Type2)?;
    let buffer = pair.b.buffer.clone();
    let binding =
        Binding { wr_id: 1, flags: SendFlags::SIGNALED, buffer: &buffer, part: 0..100, access: Access::REMOTE_WRITE };
    pair.b.qp.bind_mw(&mut window, &binding)?;
    t.wait_and_log(&mut pair, &[(PairCq::BSent, 1)])?;
    let sges = [pair.a.buffer.sge(0..10)];
    let far = dataplane::verbs::Remote { rkey: window.rkey(), ..remote(&pair.b, 50) };
    pair.a.post(1, SendOp::RdmaWrite(far), &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.expect(
        "b send 1 BIND_MW
         a send 1 RDMA_WRITE",
    )
}

pub(crate) fn test_qp_ex_xrc_send<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    xrc(t)
}

pub(crate) fn test_post_receive_qp_state_bad_flow<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    posting::rc_by_state(t)
}

pub(crate) fn test_post_send_qp_state_bad_flow<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    posting::uc_by_state(t)
}

pub(crate) fn test_full_rq_bad_flow<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    posting::receive_queue_full(t)
}

pub(crate) fn test_rq_with_larger_sgl_bad_flow<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let many = vec![pair.a.buffer.sge(0..1); pair.a.qp.caps().recv_sges as usize + 1];
    t.log(post_result(pair.a.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &many }])));
    t.expect("EINVAL after 0")
}

// test_relaxed_ordering.py

fn relaxed<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType) -> Outcome {
    let spec = EndpointSpec::new(kind);
    let spec = EndpointSpec { access: spec.access | Access::RELAXED_ORDERING, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    let grh = if kind == QpType::Ud { 40 } else { 0 };
    let bytes = data::pattern(3, 1000);
    pair.a.buffer.write(0, &bytes);
    pair.b.recv(1, 4096..6000)?;
    pair.a.send(1, 0..1000)?;
    pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("payload intact: {}", pair.b.buffer.to_vec(4096 + grh..5096 + grh) == bytes));
    t.expect("payload intact: true")
}

pub(crate) fn test_ro_rc_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    relaxed(t, QpType::Rc)
}

pub(crate) fn test_ro_ud_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    relaxed(t, QpType::Ud)
}

// test_rss_traffic.py

pub(crate) fn test_rss_udp_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    raw::rss_udp(t)
}

pub(crate) fn test_rss_tcp_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    raw::rss_tcp(t)
}

// test_srq.py

pub(crate) fn test_rc_srq_traffic<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    shared::traffic(t)
}

pub(crate) fn test_resize_srq<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    shared::resize(t)
}

pub(crate) fn test_srq_limit_event<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    shared::limit(t)
}

// test_tag_matching.py

pub(crate) fn test_tag_matching_rc<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::TagMatching)?;
    no_verb("tag matching")
}

// test_mlx5_timestamp.py

/// Timestamps are present and never decrease.
pub(crate) fn test_timestamp_free_running<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Timestamps)?;
    let spec = EndpointSpec::new(QpType::Rc);
    let spec = EndpointSpec { cq: CqSpec { fields: PollFields::STANDARD | PollFields::TIMESTAMP, ..spec.cq }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    let mut last = None;
    for wr_id in 0..10 {
        pair.b.recv(wr_id, 0..100)?;
        pair.a.send(wr_id, 0..10)?;
        pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
        pair.a.sent.clear();
        let now = pair.b.received.remove(0).ticks();
        if now.is_none() || now < last {
            t.log(format!("{now:?} after {last:?}"));
        }
        last = now;
    }
    t.expect("")
}
