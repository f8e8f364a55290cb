//! Cases for memory registration, deregistration and memory windows.

use dataplane::error::Error;
use dataplane::lane::message::{Binding, Buffer};
use dataplane::units::Rkey;
use dataplane::verbs::{Access, Capability, MemoryWindow, MwKind, QpType, RawDevice, Remote, SendFlags, SendOp, Sge};

use crate::Trial;
use crate::bed::{Outcome, Pair, PairCq, Stop, errno_name, post_result, remote};

/// Returns `ok`, or the error of a registration.
pub(crate) fn registered<D: RawDevice>(result: Result<Buffer<D>, Error>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(Error::Verb { source, .. }) => errno_name(source.errno),
        Err(other) => other.to_string(),
    }
}

pub(crate) fn access_rules<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let pair = t.pair(QpType::Ud)?;
    // A device may refuse access for operations that it does not support, as efa does.
    let atomic = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let lacks = [(atomic, t.has(Capability::Atomic)), (Access::MW_BIND, t.has(Capability::MemoryWindow))];
    let untested: Vec<Access> = lacks.into_iter().filter(|(_, has)| !has).map(|(access, _)| access).collect();
    for access in [
        Access::empty(),
        Access::LOCAL_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        atomic,
        Access::MW_BIND,
        Access::LOCAL_WRITE | Access::RELAXED_ORDERING,
        // An undefined bit.
        Access::LOCAL_WRITE | Access::from_bits_retain(1 << 15),
    ] {
        let is_tested = !untested.contains(&access);
        let result = if is_tested { registered(pair.a.domain.buffer(100, access)) } else { "ok".to_owned() };
        t.log(format!("{access:?}: {result}"));
    }
    t.log(format!("of no bytes: {}", registered(pair.a.domain.buffer(0, Access::LOCAL_WRITE))));
    t.expect(
        "Access(0x0): ok
         Access(LOCAL_WRITE): ok
         Access(REMOTE_READ): ok
         Access(REMOTE_WRITE): EINVAL
         Access(REMOTE_ATOMIC): EINVAL
         Access(LOCAL_WRITE | REMOTE_WRITE): ok
         Access(LOCAL_WRITE | REMOTE_ATOMIC): ok
         Access(MW_BIND): ok
         Access(LOCAL_WRITE | RELAXED_ORDERING): ok
         Access(LOCAL_WRITE | 0x8000): EINVAL
         of no bytes: EINVAL",
    )
}

/// A peer can write the last byte of a region, but not the byte after it.
pub(crate) fn bounds<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let end = pair.b.buffer.len();
    pair.a.buffer.write(0, &[7; 10]);
    let sges = [pair.a.buffer.sge(0..10)];
    pair.a.post(1, SendOp::RdmaWrite(remote(&pair.b, end - 10)), &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.log(format!("written: {}", pair.b.buffer.to_vec(end - 10..end) == [7; 10]));
    pair.a.post(2, SendOp::RdmaWrite(remote(&pair.b, end - 9)), &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.expect(
        "a send 1 RDMA_WRITE
         written: true
         a send 2 REM_ACCESS_ERR",
    )
}

/// Checks an address below the region, and an address so high that the sum of address and length overflows.
pub(crate) fn bounds_below_and_overflow<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    for wr_id in 0..2 {
        let mut pair = t.pair(QpType::Rc)?;
        let far = remote(&pair.b, 0);
        let addr = if wr_id == 0 { far.addr - 1 } else { u64::MAX - 4 };
        let sges = [pair.a.buffer.sge(0..10)];
        pair.a.post(wr_id, SendOp::RdmaWrite(Remote { addr, ..far }), &sges)?;
        t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    }
    t.expect(
        "a send 0 REM_ACCESS_ERR
         a send 1 REM_ACCESS_ERR",
    )
}

/// The keys of a deregistered region are invalid.
pub(crate) fn deregistered<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let far = pair.b.domain.buffer(100, crate::bed::ALL_ACCESS)?.remote(0);
    let sges = [pair.a.buffer.sge(0..10)];
    pair.a.post(1, SendOp::RdmaWrite(far), &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    let mut pair = t.pair(QpType::Rc)?;
    let gone = pair.a.domain.buffer(100, crate::bed::ALL_ACCESS)?.sge(0..10);
    let posted = pair.a.post(2, SendOp::Send, &[gone]);
    let wanted = if posted.is_ok() { &[(PairCq::ASent, 1)][..] } else { &[] };
    t.log(format!("posted: {}", post_result(posted)));
    t.wait_and_log(&mut pair, wanted)?;
    t.expect(
        "a send 1 REM_ACCESS_ERR
         posted: ok
         a send 2 LOC_PROT_ERR",
    )
}

/// Allocates a window for the memory of endpoint b. Skips the case if the device does not support windows of this type.
pub(crate) fn allocate<D: RawDevice>(
    t: &Trial<'_, D>,
    pair: &Pair<D>,
    kind: MwKind,
) -> Outcome<<D::Pd as dataplane::verbs::ProtectionDomain>::Mw> {
    t.require(Capability::MemoryWindow)?;
    pair.b.domain.alloc_mw(kind).map_err(|refused| match refused.errno {
        libc::EOPNOTSUPP | libc::EINVAL => Stop::Skip(format!("memory windows of {kind:?}"), refused.errno),
        _ => refused.into(),
    })
}

/// Binds a window to bytes 1,000 to 1,099 of the memory of endpoint b.
fn window<D: RawDevice>(
    t: &mut Trial<'_, D>,
    pair: &mut Pair<D>,
    kind: MwKind,
    access: Access,
) -> Outcome<<D::Pd as dataplane::verbs::ProtectionDomain>::Mw> {
    let mut window = allocate(t, pair, kind)?;
    bind(pair, &mut window, 50, 1000..1100, access)?;
    t.wait_and_log(pair, &[(PairCq::BSent, 1)])?;
    Ok(window)
}

fn bind<D: RawDevice>(
    pair: &mut Pair<D>,
    window: &mut <D::Pd as dataplane::verbs::ProtectionDomain>::Mw,
    wr_id: u64,
    part: std::ops::Range<usize>,
    access: Access,
) -> Outcome {
    let buffer = pair.b.buffer.clone();
    let binding = Binding { wr_id, flags: SendFlags::SIGNALED, buffer: &buffer, part, access };
    Ok(pair.b.qp.bind_mw(window, &binding)?)
}

/// Writes through a key and logs the completion.
fn write<D: RawDevice>(t: &mut Trial<'_, D>, pair: &mut Pair<D>, wr_id: u64, rkey: Rkey, offset: usize) -> Outcome {
    let sges: [Sge; 1] = [pair.a.buffer.sge(0..10)];
    let far = Remote { rkey, ..remote(&pair.b, offset) };
    pair.a.post(wr_id, SendOp::RdmaWrite(far), &sges)?;
    t.wait_and_log(pair, &[(PairCq::ASent, 1)])
}

const WINDOW: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

fn window_bounds<D: RawDevice>(t: &mut Trial<'_, D>, kind: MwKind) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    pair.a.buffer.write(0, &[7; 10]);
    let window = window(t, &mut pair, kind, WINDOW)?;
    write(t, &mut pair, 1, window.rkey(), 1000)?;
    write(t, &mut pair, 2, window.rkey(), 1090)?;
    t.log(format!("written: {}", pair.b.buffer.to_vec(1000..1010) == [7; 10]));
    write(t, &mut pair, 3, window.rkey(), 1091)?;
    t.expect(
        "b send 50 BIND_MW
         a send 1 RDMA_WRITE
         a send 2 RDMA_WRITE
         written: true
         a send 3 REM_ACCESS_ERR",
    )
}

pub(crate) fn window_1_bounds<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    window_bounds(t, MwKind::Type1)
}

pub(crate) fn window_2_bounds<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    window_bounds(t, MwKind::Type2)
}

fn window_access<D: RawDevice>(t: &mut Trial<'_, D>, kind: MwKind) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let window = window(t, &mut pair, kind, Access::REMOTE_READ)?;
    let (far, sges) = (Remote { rkey: window.rkey(), ..remote(&pair.b, 1000) }, [pair.a.buffer.sge(0..10)]);
    pair.a.post(1, SendOp::RdmaRead(far), &sges)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    write(t, &mut pair, 2, window.rkey(), 1000)?;
    t.expect(
        "b send 50 BIND_MW
         a send 1 RDMA_READ
         a send 2 REM_ACCESS_ERR",
    )
}

pub(crate) fn window_1_access<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    window_access(t, MwKind::Type1)
}

pub(crate) fn window_2_access<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    window_access(t, MwKind::Type2)
}

/// A new binding has a new key, and the old key becomes invalid.
pub(crate) fn window_1_rebound<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let mut window = window(t, &mut pair, MwKind::Type1, WINDOW)?;
    let old = window.rkey();
    bind(&mut pair, &mut window, 51, 2000..2100, WINDOW)?;
    t.wait_and_log(&mut pair, &[(PairCq::BSent, 1)])?;
    t.log(format!("new key: {}", window.rkey() != old));
    write(t, &mut pair, 1, window.rkey(), 2000)?;
    write(t, &mut pair, 2, old, 1000)?;
    t.expect(
        "b send 50 BIND_MW
         b send 51 BIND_MW
         new key: true
         a send 1 RDMA_WRITE
         a send 2 REM_ACCESS_ERR",
    )
}

pub(crate) fn window_1_unbound<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let mut window = window(t, &mut pair, MwKind::Type1, WINDOW)?;
    let old = window.rkey();
    bind(&mut pair, &mut window, 51, 0..0, Access::empty())?;
    t.wait_and_log(&mut pair, &[(PairCq::BSent, 1)])?;
    write(t, &mut pair, 1, old, 1000)?;
    t.expect(
        "b send 50 BIND_MW
         b send 51 BIND_MW
         a send 1 REM_ACCESS_ERR",
    )
}

/// The owner of the window invalidates the key with a local request.
pub(crate) fn window_2_local_invalidate<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let window = window(t, &mut pair, MwKind::Type2, WINDOW)?;
    pair.b.post(51, SendOp::LocalInv(window.rkey()), &[])?;
    t.wait_and_log(&mut pair, &[(PairCq::BSent, 1)])?;
    write(t, &mut pair, 1, window.rkey(), 1000)?;
    t.expect(
        "b send 50 BIND_MW
         b send 51 LOCAL_INV
         a send 1 REM_ACCESS_ERR",
    )
}

/// The peer invalidates the key with a send request.
pub(crate) fn window_2_remote_invalidate<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let window = window(t, &mut pair, MwKind::Type2, WINDOW)?;
    pair.b.recv(1, 0..100)?;
    let sges = [pair.a.buffer.sge(0..10)];
    pair.a.post(1, SendOp::SendWithInv(window.rkey()), &sges)?;
    pair.wait(&[(PairCq::BReceived, 1)])?;
    let key = pair.b.received.first().and_then(|it| it.invalidated_rkey());
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    t.log(format!("key reported: {}", key == Some(window.rkey())));
    write(t, &mut pair, 2, window.rkey(), 1000)?;
    t.expect(
        "b send 50 BIND_MW
         a send 1 SEND
         b receive 1 RECV 10 bytes WITH_INV
         key reported: true
         a send 2 REM_ACCESS_ERR",
    )
}

/// A window cannot be bound to a region without the access flag `MW_BIND`.
pub(crate) fn window_without_bind_access<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let plain = pair.b.domain.buffer(100, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let mut window = allocate(t, &pair, MwKind::Type2)?;
    let binding =
        Binding { wr_id: 1, flags: SendFlags::SIGNALED, buffer: &plain, part: 0..50, access: Access::REMOTE_WRITE };
    pair.b.qp.bind_mw(&mut window, &binding)?;
    t.wait_and_log(&mut pair, &[(PairCq::BSent, 1)])?;
    t.log(format!("b {}", pair.b.state()?));
    t.expect(
        "b send 1 MW_BIND_ERR
         b ERR",
    )
}

/// A window that extends beyond the region is rejected.
pub(crate) fn window_out_of_bounds<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Rc)?;
    let end = pair.b.buffer.len();
    let mut window = allocate(t, &pair, MwKind::Type2)?;
    bind(&mut pair, &mut window, 1, end - 10..end + 10, WINDOW)?;
    t.wait_and_log(&mut pair, &[(PairCq::BSent, 1)])?;
    t.expect("b send 1 MW_BIND_ERR")
}
