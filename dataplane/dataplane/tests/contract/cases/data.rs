//! Cases for the payload, length and order of messages.

use std::ops::Range;

use dataplane::verbs::{Capability, QpCaps, QpType, RawDevice, RecvRequest, SendFlags, SendOp, SendRequest, Sge};

use crate::Trial;
use crate::bed::{Connection, Endpoint, EndpointSpec, Outcome, Pair, PairCq, QKEY, Stop, post_result, remote};

/// Returns bytes that depend on their position and on the seed.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed) as u8).collect()
}

/// The offset of the memory that messages are sent from.
pub(crate) const FROM: usize = 0;
/// The offset of the memory that messages are received or written into.
pub(crate) const INTO: usize = 8 << 10;

/// Returns message lengths around packet boundaries: 0, 1, the path MTU, one byte less, one byte more, and several
/// packets.
fn lengths(mtu: usize) -> [usize; 7] {
    [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu, 5 * mtu + 7]
}

/// Splits a range of the memory into three scatter/gather elements.
pub(crate) fn thirds<D: RawDevice>(end: &Endpoint<D>, part: Range<usize>) -> [Sge; 3] {
    let third = part.len() / 3;
    let (a, b) = (part.start + third, part.start + 2 * third);
    [end.buffer.sge(part.start..a), end.buffer.sge(a..b), end.buffer.sge(b..part.end)]
}

/// Sends messages of every length from three scatter/gather elements into three receive elements, and compares all
/// bytes. `grh` is the number of bytes before the payload of a receive.
fn check_lengths<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType, longest: usize, grh: usize) -> Outcome {
    t.require_elements(3)?;
    // A path MTU of 1,024 bytes.
    let with = Connection { path_mtu: 3, ..Connection::default() };
    let mut pair = t.pair_with(EndpointSpec::new(kind), with, with)?;
    for (seed, length) in lengths(1024).into_iter().filter(|length| *length <= longest).enumerate() {
        let bytes = pattern(seed, length);
        pair.a.buffer.write(FROM, &bytes);
        pair.b.buffer.write(INTO, &[0xee; 6000]);
        let sges = thirds(&pair.b, INTO..INTO + grh + length);
        pair.b.qp.post_recv(&[RecvRequest { wr_id: seed as u64, sges: &sges }])?;
        let sges = thirds(&pair.a, FROM..FROM + length);
        pair.a.post(seed as u64, SendOp::Send, &sges)?;
        t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
        let intact = pair.b.buffer.to_vec(INTO + grh..INTO + grh + length) == bytes;
        let overrun = pair.b.buffer.to_vec(INTO + grh + length..INTO + 6000).iter().any(|byte| *byte != 0xee);
        t.log(format!("{length} bytes: payload intact {intact}, bytes after it changed {overrun}"));
    }
    Ok(())
}

const CONNECTED_LENGTHS: &str = "a send 0 SEND
    b receive 0 RECV 0 bytes
    0 bytes: payload intact true, bytes after it changed false
    a send 1 SEND
    b receive 1 RECV 1 bytes
    1 bytes: payload intact true, bytes after it changed false
    a send 2 SEND
    b receive 2 RECV 1023 bytes
    1023 bytes: payload intact true, bytes after it changed false
    a send 3 SEND
    b receive 3 RECV 1024 bytes
    1024 bytes: payload intact true, bytes after it changed false
    a send 4 SEND
    b receive 4 RECV 1025 bytes
    1025 bytes: payload intact true, bytes after it changed false
    a send 5 SEND
    b receive 5 RECV 3072 bytes
    3072 bytes: payload intact true, bytes after it changed false
    a send 6 SEND
    b receive 6 RECV 5127 bytes
    5127 bytes: payload intact true, bytes after it changed false";

pub(crate) fn rc_lengths<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_lengths(t, QpType::Rc, usize::MAX, 0)?;
    t.expect(CONNECTED_LENGTHS)
}

pub(crate) fn uc_lengths<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_lengths(t, QpType::Uc, usize::MAX, 0)?;
    t.expect(CONNECTED_LENGTHS)
}

pub(crate) fn ud_lengths<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    check_lengths(t, QpType::Ud, 1024, 40)?;
    t.expect(
        "a send 0 SEND
         b receive 0 RECV 40 bytes GRH
         0 bytes: payload intact true, bytes after it changed false
         a send 1 SEND
         b receive 1 RECV 41 bytes GRH
         1 bytes: payload intact true, bytes after it changed false
         a send 2 SEND
         b receive 2 RECV 1063 bytes GRH
         1023 bytes: payload intact true, bytes after it changed false
         a send 3 SEND
         b receive 3 RECV 1064 bytes GRH
         1024 bytes: payload intact true, bytes after it changed false",
    )
}

/// Writes or reads remote memory with every length, and compares all bytes.
fn remote_lengths<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType, write: bool) -> Outcome {
    t.require_elements(3)?;
    let mut pair = t.pair(kind)?;
    for (seed, length) in lengths(1024).into_iter().enumerate() {
        let bytes = pattern(seed, length);
        let Pair { a, b } = &mut pair;
        let (from, into) = if write { (&a.buffer, &b.buffer) } else { (&b.buffer, &a.buffer) };
        from.write(FROM, &bytes);
        into.write(INTO, &[0xee; 6000]);
        let (far, sges) = match write {
            true => (remote(b, INTO), thirds(a, FROM..FROM + length)),
            false => (remote(b, FROM), thirds(a, INTO..INTO + length)),
        };
        a.post(seed as u64, if write { SendOp::RdmaWrite(far) } else { SendOp::RdmaRead(far) }, &sges)?;
        if kind != QpType::Rc {
            // A completed write may still be in flight. The message sent after the write shows that the write has
            // arrived.
            b.recv(0, 0..0)?;
            a.post_flags(0, SendOp::Send, SendFlags::empty(), &[])?;
            pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
            pair.b.received.clear();
        }
        t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
        let into = if write { &pair.b.buffer } else { &pair.a.buffer };
        let intact = into.to_vec(INTO..INTO + length) == bytes;
        let overrun = into.to_vec(INTO + length..INTO + 6000).iter().any(|byte| *byte != 0xee);
        t.log(format!("{length} bytes: payload intact {intact}, bytes after it changed {overrun}"));
    }
    Ok(())
}

fn expected_lengths(opcode: &str) -> String {
    let lines = |(at, length)| {
        format!("a send {at} {opcode}\n{length} bytes: payload intact true, bytes after it changed false\n")
    };
    lengths(1024).into_iter().enumerate().map(lines).collect()
}

pub(crate) fn rc_write_lengths<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    remote_lengths(t, QpType::Rc, true)?;
    t.expect(&expected_lengths("RDMA_WRITE"))
}

pub(crate) fn uc_write_lengths<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    remote_lengths(t, QpType::Uc, true)?;
    t.expect(&expected_lengths("RDMA_WRITE"))
}

pub(crate) fn rc_read_lengths<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    remote_lengths(t, QpType::Rc, false)?;
    t.expect(&expected_lengths("RDMA_READ"))
}

/// Requests without scatter/gather elements move no data and complete.
pub(crate) fn no_elements<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let far = remote(&pair.b, 0);
    pair.b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &[] }, RecvRequest { wr_id: 2, sges: &[] }])?;
    pair.a.post(1, SendOp::Send, &[])?;
    pair.a.post(2, SendOp::RdmaWrite(far), &[])?;
    pair.a.post(3, SendOp::RdmaRead(far), &[])?;
    pair.a.post(4, SendOp::RdmaWriteWithImm(far, 7u32.to_be()), &[])?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 4), (PairCq::BReceived, 2)])?;
    t.expect(
        "a send 1 SEND
         a send 2 RDMA_WRITE
         a send 3 RDMA_READ
         a send 4 RDMA_WRITE
         b receive 1 RECV 0 bytes
         b receive 2 RECV_RDMA_WITH_IMM 0 bytes WITH_IMM imm 0x7",
    )
}

/// A write of zero bytes does not check the remote key.
pub(crate) fn zero_length_write_ignores_bad_key<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let far = super::bad_rkey(remote(&pair.b, 0));
    pair.a.post(1, SendOp::RdmaWrite(far), &[])?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.log_states(&pair)?;
    t.expect(
        "a send 1 RDMA_WRITE
         a RTS, b RTS",
    )
}

fn immediate<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType, grh: usize) -> Outcome {
    let mut pair = t.pair(kind)?;
    pair.b.recv(1, INTO..INTO + 100)?;
    pair.a.buffer.write(FROM, b"immediate");
    let sge = pair.a.buffer.sge(FROM..FROM + 9);
    pair.a.post(1, SendOp::SendWithImm(0x0102_0304u32.to_be()), &[sge])?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(String::from_utf8_lossy(&pair.b.buffer.to_vec(INTO + grh..INTO + grh + 9)));
    Ok(())
}

pub(crate) fn rc_immediate<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    immediate(t, QpType::Rc, 0)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 9 bytes WITH_IMM imm 0x1020304
         immediate",
    )
}

pub(crate) fn uc_immediate<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    immediate(t, QpType::Uc, 0)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 9 bytes WITH_IMM imm 0x1020304
         immediate",
    )
}

pub(crate) fn ud_immediate<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    immediate(t, QpType::Ud, 40)?;
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 49 bytes GRH|WITH_IMM imm 0x1020304
         immediate",
    )
}

/// A write with immediate data consumes a receive and does not touch the receive's memory.
pub(crate) fn rc_write_with_immediate<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.buffer.write(0, &[0xee; 100]);
    pair.b.recv(1, 0..100)?;
    pair.a.buffer.write(FROM, b"written");
    let (far, sge) = (remote(&pair.b, INTO), pair.a.buffer.sge(FROM..FROM + 7));
    pair.a.post(1, SendOp::RdmaWriteWithImm(far, 0x2a_u32.to_be()), &[sge])?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(String::from_utf8_lossy(&pair.b.buffer.to_vec(INTO..INTO + 7)));
    t.log(format!("receive touched: {}", pair.b.buffer.to_vec(0..100).iter().any(|byte| *byte != 0xee)));
    t.expect(
        "a send 1 RDMA_WRITE
         b receive 1 RECV_RDMA_WITH_IMM 7 bytes WITH_IMM imm 0x2a
         written
         receive touched: false",
    )
}

/// Inline data is copied when the request is posted. The key is not checked, and the memory can be reused immediately.
pub(crate) fn inline<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Inline)?;
    let spec = EndpointSpec::new(QpType::Rc);
    let spec = EndpointSpec { caps: QpCaps { inline: 16, ..spec.caps }, ..spec };
    let mut pair = t.pair_with(spec, Connection::default(), Connection::default())?;
    pair.b.recv(1, INTO..INTO + 100)?;
    pair.a.buffer.write(FROM, b"inline");
    let sges = [super::bad_lkey(pair.a.buffer.sge(FROM..FROM + 6))];
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    pair.a.post_flags(1, SendOp::Send, flags, &sges)?;
    pair.a.buffer.write(FROM, b"......");
    let far = remote(&pair.b, INTO + 200);
    pair.a.buffer.write(FROM, b"writes");
    pair.a.post_flags(2, SendOp::RdmaWrite(far), flags, &sges)?;
    pair.a.buffer.write(FROM, b"......");
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 2), (PairCq::BReceived, 1)])?;
    t.log(String::from_utf8_lossy(&pair.b.buffer.to_vec(INTO..INTO + 6)));
    t.log(String::from_utf8_lossy(&pair.b.buffer.to_vec(INTO + 200..INTO + 206)));
    // This message has one byte more than the queue pair allows in an inline send.
    let most = pair.a.qp.caps().inline as usize;
    let sges = [pair.a.buffer.sge(0..most), pair.a.buffer.sge(most..most + 1)];
    let posted = pair.a.post_flags(3, SendOp::Send, flags, &sges);
    t.log(format!("too long: {}", if posted.is_err() { "refused" } else { "accepted" }));
    t.expect(
        "a send 1 SEND
         a send 2 RDMA_WRITE
         b receive 1 RECV 6 bytes
         inline
         writes
         too long: refused",
    )
}

/// A fenced send waits for the preceding read, so the message contains the data that was read.
pub(crate) fn fence<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.buffer.write(FROM, &pattern(1, 4000));
    pair.b.recv(1, INTO..INTO + 4000)?;
    let (far, sges) = (remote(&pair.b, FROM), [pair.a.buffer.sge(INTO..INTO + 4000)]);
    pair.a.post(1, SendOp::RdmaRead(far), &sges)?;
    pair.a.post_flags(2, SendOp::Send, SendFlags::SIGNALED | SendFlags::FENCE, &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 2), (PairCq::BReceived, 1)])?;
    t.log(format!("read and sent back: {}", pair.b.buffer.to_vec(INTO..INTO + 4000) == pattern(1, 4000)));
    t.expect(
        "a send 1 RDMA_READ
         a send 2 SEND
         b receive 1 RECV 4000 bytes
         read and sent back: true",
    )
}

/// Sends many messages, one full queue at a time. Each message contains its number. Checks that each message arrives
/// once and in order.
fn many<D: RawDevice>(t: &mut Trial<'_, D>, kind: QpType, grh: usize) -> Outcome {
    const ROUNDS: u64 = 25;
    let mut pair = t.pair(kind)?;
    let depth = u64::from(pair.b.qp.caps().recv_depth.min(pair.a.qp.caps().send_depth));
    let (mut wrong, mut next) = (0, 0u64);
    for round in 0..ROUNDS {
        for at in 0..depth {
            let place = INTO + 64 * at as usize;
            pair.b.recv(round * depth + at, place..place + 48)?;
        }
        let to = pair.a.destination.clone();
        let to = to.as_ref().map(|(ah, qp)| dataplane::verbs::Destination { ah, qp: *qp, qkey: QKEY });
        let sges: Vec<[Sge; 1]> = (0..depth as usize).map(|at| [pair.a.buffer.sge(8 * at..8 * at + 8)]).collect();
        let requests: Vec<_> = (0..depth)
            .map(|at| {
                let wr_id = round * depth + at;
                pair.a.buffer.write(8 * at as usize, &wr_id.to_be_bytes());
                // Only the last request of a round is signalled.
                let flags = if at + 1 == depth { SendFlags::SIGNALED } else { SendFlags::empty() };
                SendRequest { wr_id, op: SendOp::Send, flags, sges: &sges[at as usize], to }
            })
            .collect();
        match pair.a.qp.post_send(&requests) {
            // efa refuses unsignalled sends (`efa_post_send_validate`).
            Err(refused) if kind == QpType::Ud && (refused.accepted, refused.error.errno) == (0, libc::EINVAL) => {
                return Err(Stop::Skip("unsignalled sends".to_owned(), refused.error.errno));
            }
            posted => posted?,
        }
        if !pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, depth as usize)])? {
            t.log(format!("round {round}: {} sent, {} received", pair.a.sent.len(), pair.b.received.len()));
            return Ok(());
        }
        let ended = pair.a.sent.drain(..).map(|it| it.wr_id).collect::<Vec<_>>();
        wrong += usize::from(ended != [round * depth + depth - 1]);
        for (at, it) in pair.b.received.drain(..).enumerate() {
            let place = INTO + 64 * at + grh;
            let mut number = [0; 8];
            pair.b.buffer.read(place, &mut number);
            let right = it.wr_id == next && u64::from_be_bytes(number) == next && it.byte_len() == Some(8 + grh as u32);
            wrong += usize::from(!right);
            next += 1;
        }
    }
    t.log(format!("wrong messages: {wrong}, all arrived: {}", next == ROUNDS * depth));
    t.wait_and_log(&mut pair, &[])?;
    Ok(())
}

pub(crate) fn rc_many<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    many(t, QpType::Rc, 0)?;
    t.expect("wrong messages: 0, all arrived: true")
}

pub(crate) fn uc_many<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    many(t, QpType::Uc, 0)?;
    t.expect("wrong messages: 0, all arrived: true")
}

pub(crate) fn ud_many<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    many(t, QpType::Ud, 40)?;
    t.expect("wrong messages: 0, all arrived: true")
}

/// Messages can be sent in both directions at the same time.
pub(crate) fn rc_both_directions<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.a.buffer.write(FROM, b"from a");
    pair.b.buffer.write(FROM, b"from b");
    pair.a.recv(1, INTO..INTO + 10)?;
    pair.b.recv(1, INTO..INTO + 10)?;
    pair.a.send(2, FROM..FROM + 6)?;
    pair.b.send(2, FROM..FROM + 6)?;
    t.wait_and_log(
        &mut pair,
        &[(PairCq::ASent, 1), (PairCq::AReceived, 1), (PairCq::BSent, 1), (PairCq::BReceived, 1)],
    )?;
    for end in [&pair.a, &pair.b] {
        let text = end.buffer.to_vec(INTO..INTO + 6);
        t.log(String::from_utf8_lossy(&text));
    }
    t.expect(
        "a send 2 SEND
         a receive 1 RECV 6 bytes
         b send 2 SEND
         b receive 1 RECV 6 bytes
         from b
         from a",
    )
}

/// The packet sequence number has 24 bits and wraps.
pub(crate) fn psn_wraps<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let with = Connection { rq_psn: 0xff_fffe, sq_psn: 0xff_fffe, ..Connection::default() };
    let mut pair = t.pair_with(EndpointSpec::new(QpType::Rc), with, with)?;
    pair.a.buffer.write(FROM, &pattern(3, 5000));
    pair.b.recv(1, INTO..INTO + 5000)?;
    pair.a.send(1, FROM..FROM + 5000)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(format!("payload intact: {}", pair.b.buffer.to_vec(INTO..INTO + 5000) == pattern(3, 5000)));
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 5000 bytes
         payload intact: true",
    )
}

/// Posts an atomic operation. Logs the value that the operation returns and the new value in the peer's memory, or the
/// error of the post.
fn atomic<D: RawDevice>(t: &mut Trial<'_, D>, pair: &mut Pair<D>, wr_id: u64, op: SendOp<'_>) -> Outcome {
    pair.a.buffer.write(FROM, &[0xee; 8]);
    let sges = [pair.a.buffer.sge(FROM..FROM + 8)];
    let posted = pair.a.post(wr_id, op, &sges);
    if posted.is_err() {
        t.log(format!("posted: {}", post_result(posted)));
        return Ok(());
    }
    t.wait_and_log(pair, &[(PairCq::ASent, 1)])?;
    let word = |end: &Endpoint<D>, at| {
        let mut bytes = [0; 8];
        end.buffer.read(at, &mut bytes);
        u64::from_ne_bytes(bytes)
    };
    t.log(format!("was {:#x}, is {:#x}", word(&pair.a, FROM), word(&pair.b, INTO)));
    Ok(())
}

pub(crate) fn atomics<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Atomic)?;
    let mut pair = t.pair(QpType::Rc)?;
    pair.b.buffer.write(INTO, &0x1122_3344_5566_7788u64.to_ne_bytes());
    let remote = remote(&pair.b, INTO);
    atomic(t, &mut pair, 1, SendOp::CompareSwap { remote, compare: 0x1122_3344_5566_7788, swap: 5 })?;
    atomic(t, &mut pair, 2, SendOp::CompareSwap { remote, compare: 6, swap: 7 })?;
    atomic(t, &mut pair, 3, SendOp::FetchAdd { remote, add: u64::MAX })?;
    atomic(t, &mut pair, 4, SendOp::FetchAdd { remote, add: u64::MAX - 4 })?;
    t.expect(
        "a send 1 COMP_SWAP
         was 0x1122334455667788, is 0x5
         a send 2 COMP_SWAP
         was 0x5, is 0x5
         a send 3 FETCH_ADD
         was 0x5, is 0x4
         a send 4 FETCH_ADD
         was 0x4, is 0xffffffffffffffff",
    )
}

/// An unaligned atomic is never executed. The standard requires that the peer rejects the request. Some devices refuse
/// the post instead (see `differences`).
pub(crate) fn atomic_not_aligned<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Atomic)?;
    let mut pair = t.pair(QpType::Rc)?;
    let remote = remote(&pair.b, INTO + 4);
    atomic(t, &mut pair, 1, SendOp::FetchAdd { remote, add: 1 })?;
    t.log(format!("untouched: {}", pair.b.buffer.to_vec(INTO..INTO + 16) == [0; 16]));
    t.expect(
        "a send 1 REM_INV_REQ_ERR
         was 0xeeeeeeeeeeeeeeee, is 0x0
         untouched: true",
    )
}
