//! Tests of shared receive queues, memory windows, multicast, channels, addresses and runs of slots.

use std::time::Duration;

use super::ends::*;
use super::*;

use WcStatus::{MwBindErr, RemAccessErr, RnrRetryExcErr, Success, WrFlushErr};

#[test]
fn queue_pairs_share_receives_and_the_limit_raises_an_event() {
    for profile in [Profile::Spec, Profile::Rxe] {
        let ends = Ends { srq: Some(10), ..Ends::of(profile, QpType::Rc) };
        let (mut a, mut b) = ends.connected();
        let mut other = Ends::of(profile, QpType::Rc).on(&a.device, &a.clock);
        let spec = QpSpec::new(QpType::Rc, ends.caps);
        let second = b.pd.create_qp(&spec, &b.send, &b.recv, b.srq.as_ref()).unwrap();
        let first = std::mem::replace(&mut b.qp, second);
        other.attributes = a.attributes;
        connect(&mut other, &mut b);
        let mut srq = b.srq.clone().unwrap();
        let room = if profile == Profile::Spec { 10 } else { 15 };
        let into = [b.sge(0, 100)];
        for wr_id in 0..room {
            b.post_recv(wr_id, &into).unwrap();
        }
        assert_eq!(errno(b.post_recv(99, &into)), (0, libc::ENOMEM));
        assert_eq!(errno(b.post_recv(99, &[into[0]; 5])), (0, libc::EINVAL));
        // SAFETY: the post is refused.
        let own = unsafe { b.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &into }]) };
        assert_eq!(errno(own), (0, libc::EINVAL), "{profile:?}");
        assert_eq!(srq.depth(), 10);
        let limit = room as u32 - 2;
        srq.arm_limit(limit).unwrap();
        assert_eq!((srq.limit().unwrap(), srq.arm_limit(1000).is_err()), (limit, true));
        for wr_id in 0..4 {
            let end = if wr_id % 2 == 0 { &mut a } else { &mut other };
            let sge = [end.sge(0, 10)];
            end.post(wr_id, SendOp::Send, &sge).unwrap();
            let events = b.device.poll_async_event();
            let reached = AsyncEvent { kind: EventKind::SrqLimitReached, element: srq.number() };
            assert_eq!(events, (wr_id == 2).then_some(reached));
        }
        assert_eq!(srq.limit().unwrap(), 0);
        let got = End::completions(&mut b.recv);
        let numbers: Vec<_> = got.iter().map(|it| (it.wr_id, it.qp_num().unwrap())).collect();
        let (one, two) = (first.number(), b.qp.number());
        assert_eq!(numbers, [(0, one), (1, two), (2, one), (3, two)]);
        // A queue pair in ERR does not flush the receives of the shared queue.
        b.to(QpState::Err);
        assert_eq!(b.received(), []);
        let last = if profile == Profile::Spec { vec![EventKind::QpLastWqeReached] } else { vec![] };
        assert_eq!(b.events(), last);
        srq.resize(20).unwrap();
        assert_eq!((srq.depth(), srq.resize(0).is_err(), srq.resize(2).is_err()), (20, true, true));
        b.post_recv(50, &into).unwrap();
    }
}

#[test]
fn peer_of_an_empty_shared_queue_gets_receiver_not_ready() {
    let (mut a, mut b) = Ends { srq: Some(4), ..Ends::default() }.connected();
    let sge = [a.sge(0, 10)];
    a.post(1, SendOp::Send, &sge).unwrap();
    for _ in 0..3 {
        assert_eq!(a.sent(), []);
        a.clock.advance(Nanos(10_000));
    }
    assert_eq!((statuses(&a.sent()), b.received()), (vec![RnrRetryExcErr], vec![]));
}

fn bind(end: &End, at: usize, length: u64, access: Access) -> MwBind<'_, SoftMr> {
    MwBind { wr_id: 70, flags: SendFlags::SIGNALED, mr: &end.mr, addr: end.addr(at), length, access }
}

/// Posts a bind request and returns its completion.
fn bind_and_wait(end: &mut End, mw: &mut SoftMw, at: usize, length: u64, access: Access) -> Vec<WcStatus> {
    let mr = end.mr.clone();
    let bind = MwBind { mr: &mr, ..bind(end, at, length, access) };
    end.qp.bind_mw(mw, &bind).unwrap();
    statuses(&end.sent())
}

#[test]
fn memory_window_permits_access_to_its_part_of_a_region_until_it_is_closed() {
    for kind in [MwKind::Type1, MwKind::Type2] {
        let (mut a, mut b) = Ends::default().connected();
        let mut window = b.pd.alloc_mw(kind).unwrap();
        let before = window.rkey();
        assert_eq!(bind_and_wait(&mut b, &mut window, 100, 50, Access::REMOTE_WRITE), [Success]);
        assert!(window.rkey() != before && window.kind() == kind);
        let at = |b: &End, at| Remote { addr: b.addr(at), rkey: window.rkey() };
        a.put(0, &[7; 50]);
        let sge = [a.sge(0, 50)];
        a.post(1, SendOp::RdmaWrite(at(&b, 100)), &sge).unwrap();
        assert_eq!((statuses(&a.sent()), b.get(99, 52)), (vec![Success], [&[0][..], &[7; 50], &[0]].concat()));
        // A send with invalidate of the peer, a local request, or a bind request of length 0 closes the window.
        match kind {
            MwKind::Type2 => {
                b.post_recv(1, &[]).unwrap();
                a.post(2, SendOp::SendWithInv(window.rkey()), &[]).unwrap();
                let got = End::completions(&mut b.recv);
                assert_eq!(got[0].flags(), Some(WcFlags::WITH_INV));
                assert_eq!(got[0].invalidated_rkey(), Some(window.rkey()));
                assert_eq!(
                    bind_and_wait(&mut b, &mut window, 0, 10, Access::REMOTE_READ),
                    [Success],
                    "the window can be bound again"
                );
                b.post(71, SendOp::LocalInv(window.rkey()), &[]).unwrap();
                assert_eq!(statuses(&b.sent()), [Success]);
            }
            MwKind::Type1 => assert_eq!(bind_and_wait(&mut b, &mut window, 0, 0, Access::empty()), [Success]),
        }
        a.sent();
        a.post(3, SendOp::RdmaWrite(Remote { addr: b.addr(100), rkey: window.rkey() }), &sge).unwrap();
        assert_eq!(statuses(&a.sent()), [RemAccessErr]);
    }
}

#[test]
fn memory_window_permits_only_the_access_of_its_binding() {
    type Try = fn(&End, Rkey) -> SendOp<'static>;
    let tries: [(Try, u32); 4] = [
        (|b, rkey| SendOp::RdmaRead(Remote { addr: b.addr(100), rkey }), 8),
        (|b, rkey| SendOp::RdmaWrite(Remote { addr: b.addr(100), rkey }), 51),
        (|b, rkey| SendOp::RdmaWrite(Remote { addr: b.addr(99), rkey }), 8),
        (|b, rkey| SendOp::RdmaWrite(Remote { addr: b.addr(100), rkey: Rkey(rkey.0 ^ 1) }), 8),
    ];
    for (op, length) in tries {
        let (mut a, mut b) = Ends::default().connected();
        let mut window = b.pd.alloc_mw(MwKind::Type2).unwrap();
        bind_and_wait(&mut b, &mut window, 100, 50, Access::REMOTE_WRITE);
        let sge = [a.sge(0, length)];
        a.post(1, op(&b, window.rkey()), &sge).unwrap();
        assert_eq!(statuses(&a.sent()), [RemAccessErr]);
    }
    // A type 2 window belongs to one queue pair.
    let (mut a, mut b) = Ends::default().connected();
    let (mut c, mut d) = (Ends::default().on(&a.device, &a.clock), Ends::default().on(&b.device, &b.clock));
    (c.attributes, d.attributes) = (a.attributes, b.attributes);
    connect(&mut c, &mut d);
    let mut window = b.pd.alloc_mw(MwKind::Type2).unwrap();
    bind_and_wait(&mut b, &mut window, 0, 50, REMOTE);
    let sge = [c.sge(0, 8)];
    c.post(1, SendOp::RdmaWrite(Remote { addr: b.addr(0), rkey: window.rkey() }), &sge).unwrap();
    assert_eq!(statuses(&c.sent()), [RemAccessErr]);
    let sge = [a.sge(0, 8)];
    a.post(1, SendOp::RdmaWrite(Remote { addr: b.addr(0), rkey: window.rkey() }), &sge).unwrap();
    assert_eq!(statuses(&a.sent()), [Success]);
}

#[test]
fn invalid_binding_of_a_memory_window_fails() {
    for profile in [Profile::Spec, Profile::Rxe] {
        type Invalidate = fn(&mut End) -> (SoftMr, u64);
        let invalid_cases: [Invalidate; 4] = [
            // A region that does not permit windows, a range outside the region, a region of another protection domain,
            // and a window that permits remote writes to a region without local write access.
            |end| (end.pd.register(end.mr.region().clone(), FULL - Access::MW_BIND).unwrap(), 10),
            |end| (end.mr.clone(), BYTES as u64 + 1),
            |end| (end.device.alloc_pd().unwrap().register(end.mr.region().clone(), FULL).unwrap(), 10),
            |end| (end.pd.register(end.mr.region().clone(), Access::MW_BIND).unwrap(), 10),
        ];
        for invalidate in invalid_cases {
            let (mut a, _b) = Ends::of(profile, QpType::Rc).connected();
            let mut window = a.pd.alloc_mw(MwKind::Type2).unwrap();
            let (mr, length) = invalidate(&mut a);
            let bind = MwBind { mr: &mr, length, ..bind(&a, 0, 10, Access::REMOTE_WRITE) };
            a.qp.bind_mw(&mut window, &bind).unwrap();
            a.post(2, SendOp::Send, &[]).unwrap();
            assert_eq!((statuses(&a.sent()), a.qp.state()), (vec![MwBindErr, WrFlushErr], QpState::Err));
        }
        // Invalid bind requests, and a window that is already bound.
        let (mut a, _b) = Ends::of(profile, QpType::Rc).connected();
        let mut window = a.pd.alloc_mw(MwKind::Type2).unwrap();
        let mr = a.mr.clone();
        let nothing = MwBind { mr: &mr, ..bind(&a, 0, 0, Access::REMOTE_WRITE) };
        assert_eq!(errno(a.qp.bind_mw(&mut window, &nothing)), (0, libc::EINVAL));
        let local = MwBind { mr: &mr, ..bind(&a, 0, 10, Access::LOCAL_WRITE) };
        assert_eq!(errno(a.qp.bind_mw(&mut window, &local)), (0, libc::EINVAL));
        assert_eq!(bind_and_wait(&mut a, &mut window, 0, 10, Access::REMOTE_WRITE), [Success]);
        assert_eq!(bind_and_wait(&mut a, &mut window, 0, 10, Access::REMOTE_WRITE), [MwBindErr]);
    }
}

#[test]
fn fenced_send_waits_for_earlier_reads() {
    // The read request is lost, because the link is down. The fenced send waits until the repeated read has completed.
    let (mut a, mut b) = Ends::default().connected();
    let into = [b.sge(500, 8)];
    b.post_recv(1, &into).unwrap();
    b.put(0, &[9; 8]);
    let sge = [a.sge(0, 8)];
    let (read, flags) = (SendOp::RdmaRead(b.remote(0)), SendFlags::FENCE | SendFlags::SIGNALED);
    a.device.set_link(false);
    a.post(1, read, &sge).unwrap();
    a.post_with(2, SendOp::Send, flags, &sge).unwrap();
    a.device.set_link(true);
    assert_eq!(b.received(), []);
    a.clock.advance(Nanos(4_096 << 14));
    assert_eq!(
        (a.sent().len(), b.received().len(), b.get(500, 8)),
        (2, 1, vec![9; 8]),
        "the fenced send contains the data of the read"
    );
}

#[test]
fn zero_based_regions_are_addressed_from_0() {
    let (mut a, b) = Ends::default().connected();
    let part = b.pd.register_part(b.mr.region().clone(), 4_096..8_192, FULL | Access::ZERO_BASED).unwrap();
    a.put(0, &[5; 8]);
    let sge = [a.sge(0, 8)];
    a.post(1, SendOp::RdmaWrite(Remote { addr: 0, rkey: part.rkey() }), &sge).unwrap();
    a.post(2, SendOp::RdmaWrite(Remote { addr: 4_088, rkey: part.rkey() }), &sge).unwrap();
    assert_eq!((b.get(4_096, 8), b.get(8_184, 8), b.get(8_192, 1)), (vec![5; 8], vec![5; 8], vec![0]));
    a.post(3, SendOp::RdmaWrite(Remote { addr: 4_089, rkey: part.rkey() }), &sge).unwrap();
    assert_eq!(statuses(&a.sent()), [Success, Success, RemAccessErr]);
    let on_demand = b.pd.register(b.mr.region().clone(), FULL | Access::ON_DEMAND);
    assert_eq!(on_demand.unwrap_err().errno, libc::EOPNOTSUPP);
    let unknown = b.pd.register(b.mr.region().clone(), Access::from_bits_retain(1 << 12));
    assert_eq!(unknown.unwrap_err().errno, libc::EINVAL);
}

#[test]
fn received_datagram_starts_with_its_ip_header() {
    let (mut a, mut b) = Ends::of(Profile::Spec, QpType::Ud).connected();
    let (to, from) = (b.device.gids(1).unwrap()[1].gid, a.device.gids(1).unwrap()[1].gid);
    let into = [b.sge(0, 200)];
    b.post_recv(1, &into).unwrap();
    a.put(0, &frame(1, 52));
    a.attributes.path.source_gid_index = 1;
    (a.attributes.path.hop_limit, a.attributes.path.traffic_class) = (9, 3);
    let sge = [a.sge(0, 52)];
    let number = b.qp.number();
    a.post_to(1, SendOp::SendWithImm(1), &sge, (to, number), QKEY).unwrap();
    let got = End::completions(&mut b.recv);
    assert_eq!((got[0].byte_len(), got[0].src_qp()), (Some(92), Some(a.qp.number())));
    let header = b.get(0, 40);
    // The IP length of 108 bytes: IP header 20, UDP header 8, transport headers 12 and 8, immediate data 4, payload 52,
    // ICRC 4.
    assert_eq!((&header[..20], &header[20..24]), (&[0; 20][..], &[0x45, 3, 0, 108][..]));
    assert_eq!((header[28], header[29], &header[32..36], &header[36..]), (9, 17, &from.0[12..], &to.0[12..]));
    let sum: u32 = header[20..].chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    assert_eq!(b.get(40, 52), frame(1, 52));
}

#[test]
fn multicast_reaches_all_members_of_the_group() {
    let all = QpNum(0xff_ffff);
    for group in ["ff0e::7", "224.0.0.7"].map(|text| text.parse::<Gid>().unwrap()) {
        let ends = Ends::of(Profile::Spec, QpType::Ud);
        let (mut a, mut b) = ends.connected();
        let mut c = ends.on(&b.device, &b.clock);
        c.connect(a.address());
        let into = [b.sge(0, 100)];
        let also = [c.sge(0, 100)];
        for wr_id in 0..3 {
            b.post_recv(wr_id, &into).unwrap();
            c.post_recv(wr_id, &also).unwrap();
        }
        b.qp.attach_multicast(group, 0).unwrap();
        c.qp.attach_multicast(group, 0).unwrap();
        c.qp.attach_multicast(group, 0).unwrap();
        let sge = [a.sge(0, 10)];
        a.post_to(1, SendOp::Send, &sge, (group, all), QKEY).unwrap();
        a.post_to(2, SendOp::Send, &sge, (group, all), QKEY + 1).unwrap();
        assert_eq!((b.received(), c.received()), (vec![(0, Success, 50)], vec![(0, Success, 50)]), "{group}");
        c.qp.detach_multicast(group, 0).unwrap();
        assert_eq!(c.qp.detach_multicast(group, 0).unwrap_err().errno, libc::EINVAL);
        a.post_to(3, SendOp::Send, &sge, (group, all), QKEY).unwrap();
        assert_eq!((b.received().len(), c.received().len()), (1, 0));
        drop(b.qp);
        a.post_to(4, SendOp::Send, &sge, (group, all), QKEY).unwrap();
        assert_eq!(statuses(&a.sent()), [Success; 4]);
        let single = a.device.gid();
        assert_eq!(a.qp.attach_multicast(single, 0).unwrap_err().errno, libc::EINVAL);
    }
    let (mut a, _b) = Ends::default().connected();
    assert_eq!(a.qp.attach_multicast("ff0e::7".parse().unwrap(), 0).unwrap_err().errno, libc::EINVAL);
}

/// Returns two connected ends, and the channel that the receive completion queue of the second end uses.
fn listening(ends: &Ends) -> (End, End, SoftChannel) {
    let (mut a, mut b) = ends.unconnected();
    let channel = b.device.create_channel().unwrap();
    let cq = CqSpec { depth: 16, fields: PollFields::STANDARD, ..CqSpec::default() };
    let (recv, _) = b.device.create_cq(&cq, Some(&channel)).unwrap();
    b.qp = b.pd.create_qp(&QpSpec::new(ends.kind, ends.caps), &b.send, &recv, None).unwrap();
    b.recv = recv;
    connect(&mut a, &mut b);
    (a, b, channel)
}

#[test]
fn armed_queue_raises_one_event() {
    let (mut a, mut b, channel) = listening(&Ends::default());
    let none = Duration::ZERO;
    let send = |a: &mut End, b: &mut End, flags| {
        b.post_recv(1, &[]).unwrap();
        a.post_with(1, SendOp::Send, flags | SendFlags::SIGNALED, &[]).unwrap();
        a.sent();
    };
    send(&mut a, &mut b, SendFlags::empty());
    assert_eq!(channel.wait(none), Ok(None), "the queue is not armed");
    b.recv.arm(false).unwrap();
    assert_eq!(channel.wait(none), Ok(None), "a completion before the arming raises no event");
    send(&mut a, &mut b, SendFlags::empty());
    send(&mut a, &mut b, SendFlags::empty());
    assert_eq!(channel.wait(none), Ok(Some(b.recv.number())));
    assert_eq!(channel.wait(none), Ok(None), "a queue must be armed again after each event");
    b.recv.arm(true).unwrap();
    send(&mut a, &mut b, SendFlags::empty());
    assert_eq!(channel.wait(none), Ok(None), "the message is not solicited");
    send(&mut a, &mut b, SendFlags::SOLICITED);
    assert_eq!(channel.wait(none), Ok(Some(b.recv.number())));
    b.recv.arm(true).unwrap();
    b.post_recv(9, &[]).unwrap();
    b.to(QpState::Err);
    assert_eq!(channel.wait(none), Ok(Some(b.recv.number())), "an error raises an event");
    assert!(a.recv.arm(false).is_err(), "a queue without a channel cannot be armed");
    b.device.remove();
    assert_eq!(channel.wait(none).unwrap_err().errno, libc::EIO);
}

#[test]
fn channel_wakes_a_sleeping_thread() {
    let (mut a, mut b, channel) = listening(&Ends::default());
    b.post_recv(1, &[]).unwrap();
    b.recv.arm(false).unwrap();
    let number = b.recv.number();
    let sleeper = std::thread::spawn(move || channel.wait(Duration::from_secs(60)));
    a.post(1, SendOp::Send, &[]).unwrap();
    assert_eq!(sleeper.join().unwrap(), Ok(Some(number)));
    // A queue of raw packets gets completions only while it is polled, so the channel raises its event after a short
    // time.
    let device = SoftDevice::new(reflecting()).unwrap();
    let channel = device.create_channel().unwrap();
    let (mut cq, _) = device.create_cq(&CqSpec { depth: 4, ..CqSpec::default() }, Some(&channel)).unwrap();
    let caps = Plan::default().caps;
    let _qp = device.alloc_pd().unwrap().create_qp(&QpSpec::new(QpType::RawPacket, caps), &cq, &cq, None).unwrap();
    cq.arm(false).unwrap();
    assert_eq!(channel.wait(Duration::from_secs(60)), Ok(Some(cq.number())));
}

#[test]
fn completion_queue_can_be_enlarged() {
    for (profile, depth, wider) in [(Profile::Spec, 4, 9), (Profile::Rxe, 7, 15)] {
        let (mut a, b) = Ends { cq_depth: 4, ..Ends::of(profile, QpType::Rc) }.connected();
        assert_eq!(a.send.depth(), depth);
        let sge = [a.sge(0, 8)];
        (0..4).for_each(|wr_id| a.post(wr_id, SendOp::RdmaWrite(b.remote(0)), &sge).unwrap());
        assert_eq!(a.send.resize(2).unwrap_err().errno, libc::EINVAL);
        assert_eq!((a.send.resize(9).unwrap(), a.send.depth()), (wider, wider));
        (4..9).for_each(|wr_id| a.post(wr_id, SendOp::RdmaWrite(b.remote(0)), &sge).unwrap());
        assert_eq!(statuses(&a.sent()), [Success; 9]);
        assert_eq!(a.send.resize(u32::MAX).unwrap_err().errno, libc::EINVAL);
    }
}

#[test]
fn address_changes_raise_an_event() {
    let (mut a, mut b) = Ends::default().connected();
    b.post_recv(1, &[]).unwrap();
    b.post_recv(2, &[]).unwrap();
    let gids = b.device.gids(1).unwrap();
    assert_eq!((gids.len(), gids[0].gid, gids[1].gid.to_string()), (2, b.device.gid(), "::ffff:192.0.2.2".to_owned()));
    a.post(1, SendOp::Send, &[]).unwrap();
    // The index of a queue pair's source address may change, but the address must stay in the GID table.
    b.device.set_gids(&[Gid::default(), gids[1].gid, gids[0].gid]);
    assert_eq!((b.events(), b.device.gids(1).unwrap()[1].index), (vec![EventKind::GidChange], 2));
    a.post(2, SendOp::Send, &[]).unwrap();
    assert_eq!(statuses(&a.sent()), [Success; 2]);
    b.device.set_gids(&gids[1..].iter().map(|entry| entry.gid).collect::<Vec<_>>());
    a.post(3, SendOp::Send, &[]).unwrap();
    assert_eq!(a.sent(), []);
    let path =
        dataplane_core::verbs::Path { gid: gids[0].gid, source_gid_index: 5, ..dataplane_core::verbs::Path::default() };
    assert_eq!(a.pd.create_ah(&path).unwrap_err().errno, libc::EINVAL);
}

#[test]
fn extended_post_accepts_all_sends_or_none() {
    for (profile, full) in [(Profile::Spec, libc::ENOMEM), (Profile::Rxe, libc::ENOSPC)] {
        let ends = Ends { send_api: SendApi::Extended, ..Ends::of(profile, QpType::Rc) };
        let (mut a, mut b) = ends.connected();
        let (good, bad) = ([a.sge(0, 8)], [a.sge(0, 8); 9]);
        let wr = |sges| SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, sges, to: None };
        // SAFETY: tests do not access posted memory.
        let mut post = |wrs: &[SendRequest<'_, SoftAh>]| unsafe { a.qp.post_send(wrs) };
        assert_eq!(errno(post(&[wr(&good), wr(&bad)])), (0, libc::EINVAL));
        let depth = if profile == Profile::Spec { 16 } else { 31 };
        assert_eq!(errno(post(&vec![wr(&good); depth + 1])), (0, full));
        post(&vec![wr(&good); depth]).unwrap();
        assert_eq!(errno(post(&[wr(&good)])), (0, full));
        let into = [b.sge(0, 8)];
        b.post_recv(1, &into).unwrap();
        a.clock.advance(Nanos(10_000));
        assert_eq!((a.sent().len(), b.received().len()), (1, 1));
    }
}

#[test]
fn send_queue_entry_is_freed_by_polling_and_on_rxe_immediately() {
    let posted = |profile| {
        let (mut a, b) = Ends::of(profile, QpType::Rc).connected();
        let sge = [a.sge(0, 8)];
        (0..200)
            .take_while(|wr_id| a.post_with(*wr_id, SendOp::RdmaWrite(b.remote(0)), SendFlags::empty(), &sge).is_ok())
            .count()
    };
    assert_eq!((posted(Profile::Spec), posted(Profile::Rxe)), (16, 200));
}

#[test]
fn runs_of_slots_are_sent_as_messages() {
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let (mut a, mut b) = Ends::of(Profile::Spec, kind).connected();
        let layout = SlotLayout::new(usize::from(HEADROOM), 1536, 16).unwrap();
        for end in [&mut a, &mut b] {
            let mr = end.pd.register(region(layout.bytes()), Access::LOCAL_WRITE).unwrap();
            end.qp.bind_slots(&mr, layout, 1000).unwrap();
            end.mr = mr;
        }
        let path = dataplane_core::verbs::Path { gid: b.device.gid(), ..dataplane_core::verbs::Path::default() };
        let ah = a.pd.create_ah(&path).unwrap();
        let peer = a.qp.bind_peer(Destination { ah: &ah, qp: b.qp.number(), qkey: QKEY });
        assert_eq!(peer.is_ok(), kind == QpType::Ud);
        let slot = |number: usize| number * layout.stride() as usize + usize::from(HEADROOM);
        a.put(slot(2), &frame(4, 60));
        // SAFETY: tests do not access posted memory.
        unsafe {
            b.qp.post_recv_run(&[5, 6, 7]).unwrap();
            assert_eq!(errno(b.qp.post_recv_run(&[8, 16])), (1, libc::EINVAL));
            let (mr, rebound) = (b.mr.clone(), b.qp.bind_slots(&b.mr, layout, 0));
            assert_eq!((rebound.unwrap_err().errno, mr.lkey()), (libc::EBUSY, b.mr.lkey()));
            let desc = Desc { slot: 2, offset: HEADROOM, len: 60 };
            a.qp.post_send_run(&RunSource::new(&[desc; 3]).run(), 40).unwrap();
            let outside = Desc { slot: 16, ..desc };
            assert_eq!(errno(a.qp.post_send_run(&RunSource::new(&[desc, outside]).run(), 50)), (1, libc::EINVAL));
        }
        let before = if kind == QpType::Ud { 40 } else { 0 };
        assert_eq!(a.sent(), [(42, Success, 0), (50, Success, 0)], "only the last send of each run is signalled");
        let got = [1005, 1006, 1007, 1008].map(|wr_id| (wr_id, Success, 60 + before as u32));
        assert_eq!(b.received(), got);
        assert_eq!(b.get(slot(6) + before, 60), frame(4, 60), "{kind}");
        let desc = Desc { slot: 2, offset: HEADROOM, len: 60 };
        // SAFETY: tests do not access posted memory.
        let full = unsafe { a.qp.post_send_run(&RunSource::new(&[desc; 20]).run(), 100) };
        assert_eq!(errno(full), (16, libc::ENOMEM));
    }
}

/// A peer can access the memory of an end whose thread neither posts nor polls.
#[test]
fn peer_accesses_memory_although_its_owner_does_not_poll() {
    let (mut a, b) = Ends::default().connected();
    let remote = b.remote(100);
    let (tx, rx) = std::sync::mpsc::channel();
    let passive = std::thread::spawn(move || {
        rx.recv().unwrap();
        b.get(100, 8)
    });
    a.put(0, &[6; 8]);
    let (from, into) = ([a.sge(0, 8)], [a.sge(8, 8)]);
    a.post(1, SendOp::RdmaWrite(remote), &from).unwrap();
    a.post(2, SendOp::RdmaRead(remote), &into).unwrap();
    assert_eq!((statuses(&a.sent()), a.get(8, 8)), (vec![Success; 2], vec![6; 8]));
    tx.send(()).unwrap();
    assert_eq!(passive.join().unwrap(), [6; 8]);
}
