//! Tests of messages on a device whose library may access memory without a check of the key. The fake device has an
//! unknown driver, so the provider makes no assumption about its library.

use super::raw::{TestDevice, test_device, test_device_of};
use dataplane_core::lane::message::{Buffer, MessageDomain, MessageQueuePair};
use dataplane_core::units::{Lkey, Rkey};
use dataplane_core::verbs::*;

use crate::VerbsDevice;
use crate::fake::Call;

fn queue_pair(test: &TestDevice, domain: &MessageDomain<VerbsDevice>, kind: QpType) -> MessageQueuePair<VerbsDevice> {
    let spec = CqSpec { depth: 16, ..CqSpec::default() };
    let (cq, _) = test.device.create_cq(&spec, None).unwrap();
    let caps = QpCaps { send_depth: 8, recv_depth: 8, send_sges: 2, recv_sges: 2, inline: 64 };
    let mut qp = domain.create_qp(&QpSpec::new(kind, caps), &cq, &cq, None).unwrap();
    for (attributes, mask) in super::fake_driver::changes_to_rts(kind) {
        qp.modify(&attributes, mask).unwrap();
    }
    qp
}

fn buffer(domain: &MessageDomain<VerbsDevice>) -> Buffer<VerbsDevice> {
    domain.buffer(4096, Access::LOCAL_WRITE).unwrap()
}

fn receive(qp: &mut MessageQueuePair<VerbsDevice>, sges: &[Sge]) -> Result<(), (usize, i32)> {
    let requests = [RecvRequest { wr_id: 1, sges: &[] }, RecvRequest { wr_id: 2, sges }];
    qp.post_recv(&requests).map_err(|refused| (refused.accepted, refused.error.errno))
}

fn send(qp: &mut MessageQueuePair<VerbsDevice>, op: SendOp, flags: SendFlags, sges: &[Sge]) -> Result<(), i32> {
    let request = SendRequest { wr_id: 3, op, flags, sges, to: None };
    qp.post_send(&[request]).map_err(|refused| refused.error.errno)
}

#[test]
fn element_outside_all_buffers_is_refused_before_the_library_sees_it() {
    let test = test_device();
    let domain = MessageDomain::new(&test.device).unwrap();
    let buffer = buffer(&domain);
    let dropped = self::buffer(&domain).sge(0..64);
    let outside = [
        Sge { addr: 1, length: 64, lkey: Lkey(0) },
        buffer.sge(4033..4097),
        Sge { addr: u64::MAX, ..buffer.sge(0..64) },
        dropped,
    ];
    let mut qp = queue_pair(&test, &domain, QpType::RawPacket);
    for element in outside {
        assert_eq!(receive(&mut qp, &[buffer.sge(0..64), element]), Err((0, libc::EFAULT)), "{element:?}");
        assert_eq!(send(&mut qp, SendOp::Send, SendFlags::empty(), &[element]), Err(libc::EFAULT), "{element:?}");
    }
    let number = qp.number().0;
    assert!(test.fake.posted("qp", number).is_empty(), "the library got no request");
    let end = [buffer.sge(4032..4096), Sge { addr: 1, length: 0, lkey: Lkey(0) }];
    assert_eq!(receive(&mut qp, &end), Ok(()));
    assert_eq!(send(&mut qp, SendOp::Send, SendFlags::empty(), &end), Ok(()));
    assert_eq!(test.fake.posted("qp", number), [1, 2]);
}

#[test]
fn inline_request_that_reads_from_the_peer_is_refused() {
    let test = test_device();
    let domain = MessageDomain::new(&test.device).unwrap();
    let (buffer, mut qp) = (buffer(&domain), queue_pair(&test, &domain, QpType::Rc));
    let remote = Remote { addr: 0, rkey: Rkey(1) };
    let reads = [SendOp::RdmaRead(remote), SendOp::FetchAdd { remote, add: 1 }];
    for op in reads {
        assert_eq!(send(&mut qp, op, SendFlags::INLINE, &[buffer.sge(0..8)]), Err(libc::EINVAL), "{op:?}");
        assert_eq!(send(&mut qp, op, SendFlags::empty(), &[buffer.sge(0..8)]), Ok(()), "{op:?}");
    }
    assert_eq!(send(&mut qp, SendOp::Send, SendFlags::INLINE, &[buffer.sge(0..8)]), Ok(()));
}

/// Libraries skip an element without bytes, except in raw packets and atomics. The address of such an element is
/// therefore not checked in messages.
#[test]
fn only_element_of_a_message_may_be_without_bytes() {
    let test = test_device();
    let domain = MessageDomain::new(&test.device).unwrap();
    let mut qp = queue_pair(&test, &domain, QpType::Rc);
    let empty = [Sge { addr: 0, length: 0, lkey: Lkey(0) }];
    assert_eq!(receive(&mut qp, &empty), Ok(()));
    let remote = Remote { addr: 0, rkey: Rkey(1) };
    for op in [SendOp::SendWithImm(0), SendOp::RdmaWriteWithImm(remote, 0)] {
        assert_eq!(send(&mut qp, op, SendFlags::empty(), &empty), Ok(()), "{op:?}");
    }
}

/// The library of mlx4 reads the first 6 bytes of a raw packet from the first element, even if this element is shorter.
/// The library of irdma reads the first element of an atomic, even if the atomic has no element.
#[test]
fn send_that_lets_a_library_read_outside_its_elements_is_refused() {
    let test = test_device_of("mlx4", 0, |_| {});
    let domain = MessageDomain::new(&test.device).unwrap();
    let buffer = buffer(&domain);
    let mut raw = queue_pair(&test, &domain, QpType::RawPacket);
    let mut ud = queue_pair(&test, &domain, QpType::Ud);
    let ah = domain.create_ah(&Path::default()).unwrap();
    test.fake.calls();
    let outside = Sge { addr: 8, length: 0, lkey: Lkey(0) };
    let with_first = |first| [first, buffer.sge(0..60)];
    for flags in [SendFlags::empty(), SendFlags::INLINE] {
        assert_eq!(send(&mut raw, SendOp::Send, flags, &[]), Err(libc::EINVAL), "{flags:?}");
        for first in [outside, buffer.sge(0..0), buffer.sge(0..5)] {
            assert!(send(&mut raw, SendOp::Send, flags, &with_first(first)[..2]).is_err(), "{flags:?} {first:?}");
        }
    }
    let remote = Remote { addr: 0, rkey: Rkey(1) };
    for op in [SendOp::CompareSwap { remote, compare: 0, swap: 1 }, SendOp::FetchAdd { remote, add: 1 }] {
        let to = Some(Destination { ah: &ah, qp: ud.number(), qkey: 0 });
        let request = SendRequest { wr_id: 3, op, flags: SendFlags::empty(), sges: &[], to };
        assert_eq!(ud.post_send(&[request]).map_err(|refused| refused.error.errno), Err(libc::EINVAL), "{op:?}");
    }
    let calls = test.fake.calls();
    assert!(!calls.iter().any(|call| matches!(call, Call::PostSend(_))), "{calls:?}");
    assert_eq!(send(&mut raw, SendOp::Send, SendFlags::empty(), &with_first(buffer.sge(0..6))), Ok(()));
}

/// The fake device reads the first element of every request, even of a request without elements.
#[test]
fn request_without_elements_refers_to_a_readable_element() {
    let test = test_device();
    let domain = MessageDomain::new(&test.device).unwrap();
    let mut qp = queue_pair(&test, &domain, QpType::Rc);
    let remote = Remote { addr: 0, rkey: Rkey(1) };
    for op in [SendOp::Send, SendOp::RdmaWrite(remote), SendOp::RdmaRead(remote)] {
        assert_eq!(send(&mut qp, op, SendFlags::empty(), &[]), Ok(()), "{op:?}");
    }
    assert_eq!(receive(&mut qp, &[]), Ok(()));
}

fn is_mapped(addr: u64) -> bool {
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter_map(|line| line.split(' ').next()?.split_once('-'))
        .any(|(from, to)| (hex(from)..hex(to)).contains(&addr))
}

#[test]
fn dropped_buffer_stays_mapped_until_its_domain_and_queue_pairs_have_ended() {
    let test = test_device();
    let domain = MessageDomain::new(&test.device).unwrap();
    let early = buffer(&domain);
    let mut qp = queue_pair(&test, &domain, QpType::Rc);
    let late = buffer(&domain);
    for buffer in [early, late] {
        receive(&mut qp, &[buffer.sge(0..64)]).unwrap();
        let addr = buffer.addr();
        let regions = test.fake.live();
        drop(buffer);
        // The registration ends, but the library may still copy a message to this address.
        assert_eq!(test.fake.live(), regions - 1);
        assert!(is_mapped(addr));
    }
}

#[test]
fn memory_stays_mapped_while_the_destruction_of_a_queue_pair_is_deferred() {
    let test = test_device();
    let domain = MessageDomain::new(&test.device).unwrap();
    let buffer = buffer(&domain);
    let spec = CqSpec { depth: 16, flags: CqFlags::SINGLE_THREADED, ..CqSpec::default() };
    let (mut cq, granted) = test.device.create_cq(&spec, None).unwrap();
    assert!(granted.flags.contains(CqFlags::SINGLE_THREADED), "{granted}");
    // From now on, this thread owns the completion queue.
    assert!(cq.start_poll().unwrap().is_none());
    let caps = QpCaps { send_depth: 8, recv_depth: 8, send_sges: 2, recv_sges: 2, inline: 64 };
    let qp = domain.create_qp(&QpSpec::new(QpType::Rc, caps), &cq, &cq, None).unwrap();
    let addr = buffer.addr();
    // Another thread cannot destroy the queue pair. The library can therefore still find a message in a completion.
    std::thread::spawn(move || drop((qp, buffer, domain))).join().unwrap();
    let calls = test.fake.calls();
    assert!(!calls.iter().any(|call| format!("{call:?}").contains("DestroyQp")), "{calls:?}");
    assert!(is_mapped(addr));
    assert!(cq.start_poll().unwrap().is_none());
}
