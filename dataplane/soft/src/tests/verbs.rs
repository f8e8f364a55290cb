//! Tests of queue pair states, requests, completions, memory keys and queue capacity.

use super::*;

use WcStatus::{LocLenErr, LocProtErr, LocQpOpErr, Success, WrFlushErr};

#[test]
fn reflected_frame_has_its_length_and_timestamp() {
    let mut rig = Rig::new(reflecting()).ready();
    rig.post_recv_run(&[5, 6]).unwrap();
    let descs = [rig.put(1, &frame(1, 60)), rig.put(2, &frame(2, 1500))];
    rig.clock.advance(Nanos(777));
    rig.post_send_run(&descs, 40).unwrap();
    assert_eq!(rig.sent(), [(41, Success)], "only the last send is signalled");
    assert_eq!(rig.received(), [(1005, Success, 60), (1006, Success, 1500)]);
    assert_eq!(rig.run.ticks[..2], [Ticks(777); 2]);
    assert_eq!((rig.get(5, 60), rig.get(6, 1500)), (frame(1, 60), frame(2, 1500)));
    let counters = rig.device.counters();
    assert_eq!((counters.rx_packets, counters.rx_bytes, counters.tx_packets, counters.tx_bytes), (2, 1560, 2, 1560));
}

#[test]
fn timestamps_contain_only_the_bits_of_the_mask() {
    let counter = Some(CounterSpec { bits: 8, ..CounterSpec::default() });
    let mut rig = Rig::new(SoftSpec { counter, ..reflecting() }).ready();
    assert_eq!(rig.device.timebase().mask, 0xff);
    rig.clock.advance(Nanos(0x1234));
    let desc = rig.put(1, &frame(1, 60));
    rig.post_send_run(&[desc], 0).unwrap();
    rig.sent();
    assert_eq!(rig.run.ticks[0], Ticks(0x34));
}

#[test]
fn each_state_allows_the_right_operations() {
    let mut rig = Rig::new(reflecting());
    let desc = rig.put(1, &frame(1, 60));
    assert_eq!(errno(rig.post_recv_run(&[5])), (0, libc::EINVAL), "RESET refuses receives");
    for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
        if state != QpState::Reset {
            rig.go(state);
        }
        assert_eq!(errno(rig.post_send_run(&[desc], 0)), (0, libc::EINVAL), "{state}");
    }
    rig.go(QpState::Reset);
    rig.go(QpState::Init);
    rig.post_recv_run(&[5]).unwrap();
    rig.go(QpState::Rtr);
    rig.go(QpState::Rts);
    rig.post_send_run(&[desc], 0).unwrap();
    assert_eq!(rig.received(), [(1005, Success, 60)], "a receive posted in INIT is kept");
}

#[test]
fn refused_transition_changes_nothing() {
    let mut rig = Rig::new(reflecting());
    let (attributes, mask) = QpAttributes::rtr();
    assert_eq!(rig.qp.modify(&attributes, mask), Err(VerbError::new("ibv_modify_qp", libc::EINVAL)));
    let (mut attributes, mask) = QpAttributes::init(QpType::RawPacket, 2, 0);
    assert!(rig.qp.modify(&attributes, mask).is_err(), "the device has no port 2");
    attributes.port = 1;
    assert!(rig.qp.modify(&attributes, mask | AttributeMask::QKEY).is_err());
    assert_eq!(rig.qp.state(), QpState::Reset);
    rig.qp.modify(&attributes, mask).unwrap();
    assert_eq!(rig.qp.state(), QpState::Init);
}

#[test]
fn stopped_send_queue_keeps_its_sends() {
    let plan = Plan { kind: QpType::Ud, ..Plan::default() };
    let mut rig = Rig::with(reflecting(), plan).ready();
    rig.post_recv_run(&[5, 6]).unwrap();
    let attributes = QpAttributes { state: QpState::Sqd, notify_drained: true, ..QpAttributes::default() };
    rig.qp.modify(&attributes, AttributeMask::STATE | AttributeMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert_eq!(rig.events(), [EventKind::SqDrained]);
    rig.put(1, &frame(1, 10));
    let sge = rig.sge(1, 10);
    rig.post_send(1, &[sge], SendFlags::INLINE | SendFlags::SIGNALED).unwrap();
    rig.put(1, &frame(9, 10));
    rig.post_send(2, &[sge], SendFlags::SIGNALED).unwrap();
    assert_eq!((rig.sent(), rig.received()), (vec![], vec![]));
    rig.go(QpState::Rts);
    assert_eq!(rig.sent(), [(1, Success), (2, Success)]);
    assert_eq!(rig.received(), [(1005, Success, 50), (1006, Success, 50)]);
    assert_eq!(rig.get(5, 50)[40..], frame(1, 10), "inline data is copied when it is posted");
    assert_eq!(rig.get(6, 50)[40..], frame(9, 10));
}

#[test]
fn error_flushes_all_requests_in_order() {
    let mut rig = Rig::new(reflecting()).ready();
    rig.post_recv_run(&[5, 6]).unwrap();
    let sge = rig.sge(20, 64);
    rig.post_recv(77, &[sge]).unwrap();
    rig.go(QpState::Sqd);
    let descs = [rig.put(1, &frame(1, 60)), rig.put(2, &frame(2, 60))];
    rig.post_send_run(&descs, 10).unwrap();
    rig.go(QpState::Err);
    assert_eq!(rig.sent(), [(10, WrFlushErr), (11, WrFlushErr)], "unsignalled sends are flushed too");
    let flushed = |wr_id| (wr_id, WrFlushErr, 0);
    assert_eq!(rig.received(), [flushed(1005), flushed(1006), flushed(77)]);
    rig.post_send_run(&descs[..1], 12).unwrap();
    rig.post_recv_run(&[7]).unwrap();
    assert_eq!((rig.sent(), rig.received()), (vec![(12, WrFlushErr)], vec![flushed(1007)]));
}

#[test]
fn reset_discards_requests_and_completions() {
    let mut rig = Rig::new(reflecting()).ready();
    rig.post_recv_run(&[5]).unwrap();
    let desc = rig.put(1, &frame(1, 60));
    rig.post_send_run(&[desc], 0).unwrap();
    rig.go(QpState::Reset);
    assert_eq!((rig.sent(), rig.received()), (vec![], vec![]));
    let mut rig = rig.ready();
    rig.post_recv_run(&[6]).unwrap();
    rig.post_send_run(&[desc], 3).unwrap();
    assert_eq!((rig.sent(), rig.received()), (vec![(3, Success)], vec![(1006, Success, 60)]));
}

#[test]
fn send_entry_is_freed_only_by_polling_a_completion() {
    let mut rig = Rig::new(reflecting()).ready();
    rig.put(1, &frame(1, 60));
    let sge = rig.sge(1, 60);
    for wr_id in 0..16 {
        rig.post_send(wr_id, &[sge], SendFlags::empty()).unwrap();
    }
    assert_eq!(errno(rig.post_send(16, &[sge], SendFlags::SIGNALED)), (0, libc::ENOMEM));
    assert_eq!(rig.sent(), []);
    assert_eq!(
        errno(rig.post_send(16, &[sge], SendFlags::SIGNALED)),
        (0, libc::ENOMEM),
        "a poll without a completion frees no entry of the queue"
    );
}

#[test]
fn last_accepted_send_of_a_partly_accepted_run_is_signalled() {
    for link in [LinkSpec::Loopback(LoopbackLink::reflect()), LinkSpec::Generator(GeneratorSpec::default())] {
        let mut rig = Rig::new(SoftSpec::new("soft", link)).ready();
        let desc = rig.put(1, &frame(1, 60));
        assert_eq!(errno(rig.post_send_run(&[desc; 20], 100)), (16, libc::ENOMEM));
        assert_eq!(errno(rig.post_send_run(&[desc], 100)), (0, libc::ENOMEM));
        assert_eq!(rig.sent(), [(115, Success)]);
        rig.post_send_run(&[desc; 16], 200).unwrap();
        assert_eq!(rig.sent(), [(215, Success)]);
        let outside = Desc { slot: 64, ..desc };
        assert_eq!(errno(rig.post_send_run(&[desc, outside, desc], 300)), (1, libc::EINVAL));
        let beyond = Desc { offset: u16::MAX, ..desc };
        assert_eq!(errno(rig.post_send_run(&[desc, desc, beyond], 400)), (2, libc::EINVAL));
        assert_eq!(rig.sent(), [(300, Success), (401, Success)]);
    }
}

#[test]
fn receive_queue_checks_depth_and_slots() {
    let mut rig = Rig::new(reflecting()).ready();
    assert_eq!(errno(rig.post_recv_run(&[1, 2, 64, 3])), (2, libc::EINVAL));
    assert_eq!(errno(rig.post_recv_run(&[u32::MAX])), (0, libc::EINVAL));
    let all: Vec<u32> = (10..30).collect();
    assert_eq!(errno(rig.post_recv_run(&all)), (14, libc::ENOMEM));
    let sge = rig.sge(60, 10);
    assert_eq!(errno(rig.post_recv(1, &[sge])), (0, libc::ENOMEM));
    let (mr, layout) = (rig.mr.clone(), rig.layout);
    assert_eq!(rig.qp.bind_slots(&mr, layout, 0), Err(VerbError::new("bind_slots", libc::EBUSY)));
    rig.go(QpState::Reset);
    rig.go(QpState::Init);
    assert_eq!(errno(rig.post_recv(1, &[sge; 4])), (0, libc::EINVAL));
    let larger =
        SlotLayout::new(layout.headroom().into(), layout.room() as usize, layout.count() as usize + 1000).unwrap();
    assert_eq!(rig.qp.bind_slots(&mr, larger, 0), Err(VerbError::new("bind_slots", libc::EINVAL)));
}

#[test]
fn scatter_gather_lists_are_processed_in_order() {
    let mut rig = Rig::new(reflecting()).ready();
    let into = [rig.sge(10, 20), rig.sge(11, 0), rig.sge(12, 40)];
    rig.post_recv(1, &into).unwrap();
    rig.put(1, &frame(1, 14));
    rig.put(2, &frame(15, 36));
    let from = [rig.sge(1, 14), rig.sge(2, 36)];
    rig.post_send(2, &from, SendFlags::SIGNALED).unwrap();
    assert_eq!((rig.sent(), rig.received()), (vec![(2, Success)], vec![(1, Success, 50)]));
    assert_eq!([rig.get(10, 20), rig.get(12, 30)].concat(), frame(1, 50));
}

#[test]
fn keys_are_checked_for_sends_and_receives() {
    let foreign = |rig: &Rig| {
        let pd = rig.device.alloc_pd().unwrap();
        pd.register(rig.mr.region().clone(), Access::LOCAL_WRITE).unwrap()
    };
    let base = |rig: &Rig| rig.mr.region().base().as_ptr() as u64;
    type Invalidate = fn(&Rig, Sge) -> Sge;
    let wrong: [(&str, Invalidate); 4] = [
        ("no such key", |_, sge| Sge { lkey: Lkey(9), ..sge }),
        ("before the region", |rig, sge| Sge { addr: rig.mr.region().base().as_ptr() as u64 - 8, ..sge }),
        ("past the end of the region", |rig, sge| Sge {
            addr: rig.mr.region().base().as_ptr() as u64 + rig.mr.region().len() as u64 - 59,
            ..sge
        }),
        ("past the end of the address space", |_, sge| Sge { addr: u64::MAX - 3, ..sge }),
    ];
    for (what, invalidate) in wrong {
        let mut rig = Rig::new(reflecting()).ready();
        let sge = invalidate(&rig, rig.sge(1, 60));
        rig.post_send(1, &[sge], SendFlags::empty()).unwrap();
        assert_eq!(rig.sent(), [(1, LocProtErr)], "{what}: a failed send has a completion, even if it is unsignalled");
        assert_eq!(rig.qp.state(), QpState::Err);

        let mut rig = Rig::new(reflecting()).ready();
        let sge = invalidate(&rig, rig.sge(1, 60));
        rig.post_recv(2, &[sge]).unwrap();
        let desc = rig.put(3, &frame(1, 60));
        rig.post_recv_run(&[7]).unwrap();
        rig.post_send_run(&[desc], 0).unwrap();
        assert_eq!(rig.received(), [(2, LocProtErr, 0), (1007, WrFlushErr, 0)], "{what}");
    }
    let mut rig = Rig::new(reflecting()).ready();
    let other = foreign(&rig);
    let sge = Sge { addr: base(&rig), length: 60, lkey: other.lkey() };
    rig.post_send(1, &[sge], SendFlags::empty()).unwrap();
    assert_eq!(rig.sent(), [(1, LocProtErr)], "a key of another protection domain is invalid");
    let layout = rig.layout;
    assert!(Rig::new(reflecting()).qp.bind_slots(&other, layout, 0).is_err());
}

#[test]
fn key_is_invalid_after_deregistration() {
    let mut rig = Rig::new(reflecting()).ready();
    let mr = rig.pd.register(region(4096), Access::LOCAL_WRITE).unwrap();
    let sge = Sge { addr: mr.region().base().as_ptr() as u64, length: 60, lkey: mr.lkey() };
    rig.post_send(1, &[sge], SendFlags::SIGNALED).unwrap();
    drop(mr);
    rig.post_send(2, &[sge], SendFlags::SIGNALED).unwrap();
    assert_eq!(rig.sent(), [(1, Success), (2, LocProtErr)]);
}

#[test]
fn read_only_memory_is_never_written() {
    let plan = Plan { access: Access::empty(), ..Plan::default() };
    let mut rig = Rig::with(reflecting(), plan).ready();
    rig.post_recv_run(&[7]).unwrap();
    let desc = rig.put(3, &frame(1, 60));
    rig.post_send_run(&[desc], 0).unwrap();
    assert_eq!(rig.sent(), [(0, Success)], "a send may read the read-only memory");
    assert_eq!(rig.received(), [(1007, LocProtErr, 0)]);
    assert_eq!(rig.get(7, 60), [0; 60]);
    let remote = rig.pd.register(region(4096), Access::REMOTE_WRITE);
    assert_eq!(remote.unwrap_err().errno, libc::EINVAL);
}

#[test]
fn inline_sends_need_no_key_and_have_a_limit() {
    let mut rig = Rig::new(reflecting()).ready();
    rig.post_recv_run(&[7]).unwrap();
    let bytes = frame(3, 65);
    let sge = |length| Sge { addr: bytes.as_ptr() as u64, length, lkey: Lkey(0) };
    let flags = SendFlags::INLINE | SendFlags::SIGNALED;
    assert_eq!(errno(rig.post_send(1, &[sge(65)], flags)), (0, libc::EINVAL));
    rig.post_send(2, &[sge(64)], flags).unwrap();
    assert_eq!((rig.sent(), rig.received()), (vec![(2, Success)], vec![(1007, Success, 64)]));
    assert_eq!(rig.get(7, 64), frame(3, 64));
}

#[test]
fn invalid_lengths_and_opcodes_fail() {
    for (kind, len, op, status, state) in [
        (QpType::RawPacket, 13, SendOp::Send, LocLenErr, QpState::Err),
        (QpType::RawPacket, 1523, SendOp::Send, LocLenErr, QpState::Err),
        (QpType::RawPacket, 60, SendOp::SendWithImm(0), LocQpOpErr, QpState::Err),
        (QpType::Ud, 1501, SendOp::Send, LocLenErr, QpState::Sqe),
        (QpType::Ud, 60, SendOp::RdmaWrite(Remote::default()), LocQpOpErr, QpState::Sqe),
    ] {
        let mut rig = Rig::with(reflecting(), Plan { kind, ..Plan::default() }).ready();
        let sges = [rig.sge(1, len)];
        let ah = rig.ah.clone();
        let to = Some(Destination { ah: &ah, qp: rig.qp.number(), qkey: 7 });
        let wr = SendRequest { wr_id: 1, op, flags: SendFlags::empty(), sges: &sges, to };
        rig.post(wr).unwrap();
        rig.post(SendRequest { wr_id: 2, op: SendOp::Send, ..wr }).unwrap();
        assert_eq!(rig.sent(), [(1, status), (2, WrFlushErr)], "{kind} {op:?} of {len}");
        assert_eq!(rig.qp.state(), state);
        if state == QpState::Sqe {
            rig.go(QpState::Rts);
            let sges = [rig.sge(1, 60)];
            rig.post(SendRequest { wr_id: 3, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to }).unwrap();
            assert_eq!(rig.sent(), [(3, Success)]);
        }
    }
}

#[test]
fn too_long_frame_completes_its_receive_with_an_error() {
    let mut rig = Rig::new(reflecting()).ready();
    let short = rig.sge(10, 59);
    rig.post_recv(1, &[short]).unwrap();
    rig.post_recv_run(&[5]).unwrap();
    let desc = rig.put(1, &frame(1, 60));
    rig.post_send_run(&[desc, desc], 0).unwrap();
    assert_eq!(rig.received(), [(1, LocLenErr, 0), (1005, Success, 60)]);
    assert_eq!((rig.device.counters().rx_too_long, rig.qp.state()), (1, QpState::Rts));
}

#[test]
fn datagrams_carry_grh_qkey_and_immediate_data() {
    let mut rig =
        Rig::with(reflecting(), Plan { kind: QpType::Ud, fields: PollFields::STANDARD, ..Plan::default() }).ready();
    rig.post_recv_run(&[5, 6, 7]).unwrap();
    rig.put(1, &frame(1, 100));
    let sges = [rig.sge(1, 100)];
    let (gid, qp) = (rig.device.gid(), rig.qp.number());
    let send = |op, to| SendRequest { wr_id: 1, op, flags: SendFlags::empty(), sges: &sges, to: Some(to) };
    let ah = rig.ah.clone();
    let to = Destination { ah: &ah, qp, qkey: 7 };
    rig.post(send(SendOp::SendWithImm(0xabcd), to)).unwrap();
    rig.post(send(SendOp::Send, Destination { qkey: 8, ..to })).unwrap();
    rig.post(send(SendOp::Send, Destination { qp: QpNum(99), ..to })).unwrap();
    rig.post(send(SendOp::Send, Destination { qkey: 1 << 31, ..to })).unwrap();
    let mut cursor = rig.recv.start_poll().unwrap().unwrap();
    let first = cursor.get();
    assert_eq!((first.wr_id, first.byte_len(), first.imm()), (1005, Some(140), Some(0xabcd)));
    assert_eq!((first.src_qp(), first.qp_num()), (Some(qp), Some(qp)));
    assert_eq!((first.opcode(), first.flags()), (Some(WcOpcode::Recv), Some(WcFlags::GRH | WcFlags::WITH_IMM)));
    assert_eq!((first.ticks(), first.cvlan()), (None, None), "fields that were not requested are absent");
    assert!(cursor.advance().unwrap());
    assert_eq!(
        (cursor.get().wr_id, cursor.get().flags()),
        (1006, Some(WcFlags::GRH)),
        "a Q_Key with its top bit set is replaced by the Q_Key of the sender"
    );
    assert_eq!(cursor.get().imm(), None, "no immediate data was sent");
    assert!(!cursor.advance().unwrap());
    assert!(rig.recv.start_poll().unwrap().is_none());
    let got = rig.get(5, 140);
    assert_eq!((got[0] >> 4, &got[8..24], &got[24..40], &got[40..]), (6, &gid.0[..], &gid.0[..], &frame(1, 100)[..]));
    assert_eq!(rig.device.counters().qkey_violations, 1);
}

#[test]
fn frames_without_a_receive_are_lost_and_counted() {
    for kind in [QpType::RawPacket, QpType::Ud] {
        let mut rig = Rig::with(reflecting(), Plan { kind, ..Plan::default() }).ready();
        rig.put(1, &frame(1, 60));
        let sge = rig.sge(1, 60);
        rig.post_send(1, &[sge], SendFlags::SIGNALED).unwrap();
        assert_eq!((rig.sent(), rig.received()), (vec![(1, Success)], vec![]));
        assert_eq!(rig.device.counters().rx_out_of_buffer, 1);
    }
}

#[test]
fn overrun_queue_is_unusable_and_its_queue_pair_fails() {
    let plan = Plan { cq_depth: 4, ..Plan::default() };
    let mut rig = Rig::with(reflecting(), plan.clone()).ready();
    rig.put(1, &frame(1, 60));
    let sge = rig.sge(1, 60);
    for wr_id in 0..8 {
        rig.post_send(wr_id, &[sge], SendFlags::SIGNALED).unwrap();
    }
    assert_eq!(rig.events(), [EventKind::CqErr, EventKind::QpFatal]);
    assert_eq!(rig.send.poll_run(&mut rig.run, 8).unwrap_err().errno, libc::EIO);
    assert_eq!(rig.send.start_poll().map(|_| ()).unwrap_err().errno, libc::EIO);
    assert_eq!(rig.qp.state(), QpState::Err);

    let mut rig = Rig::with(reflecting(), plan.clone()).ready();
    rig.post_recv_run(&[1, 2, 3, 4, 5]).unwrap();
    let desc = rig.put(9, &frame(1, 60));
    rig.post_send_run(&[desc; 5], 0).unwrap();
    assert_eq!(
        rig.recv.poll_run(&mut rig.run, 8).unwrap_err().errno,
        libc::EIO,
        "the fifth frame overruns the completion queue of four entries"
    );
    assert_eq!(rig.events(), [EventKind::CqErr, EventKind::QpFatal]);

    let mut rig = Rig::with(reflecting(), Plan { flags: CqFlags::IGNORE_OVERRUN, ..plan }).ready();
    rig.put(1, &frame(1, 60));
    let sge = rig.sge(1, 60);
    for wr_id in 0..8 {
        rig.post_send(wr_id, &[sge], SendFlags::SIGNALED).unwrap();
    }
    assert_eq!(rig.sent(), [4, 5, 6, 7].map(|wr_id| (wr_id, Success)), "the older completions are overwritten");
    assert_eq!(rig.received(), []);
    rig.post_recv_run(&[1, 2, 3, 4, 5]).unwrap();
    let desc = rig.put(9, &frame(1, 60));
    rig.post_send_run(&[desc; 5], 0).unwrap();
    assert_eq!(rig.received(), [1002, 1003, 1004, 1005].map(|wr_id| (wr_id, Success, 60)));
    assert_eq!(rig.events(), []);
}

#[test]
fn refused_capabilities_are_listed_and_the_rest_granted() {
    let has = SoftDevice::new(reflecting()).unwrap().capabilities().has.clone();
    for refused in has {
        let device = SoftDevice::new(SoftSpec { disabled_capabilities: vec![refused], ..reflecting() }).unwrap();
        assert!(!device.capabilities().has.contains(&refused));
        let (fields, flags) = (PollFields::STANDARD | PollFields::TIMESTAMP | PollFields::WALLCLOCK, CqFlags::all());
        let (cq, granted) = device.create_cq(&CqSpec { depth: 8, fields, flags, ..CqSpec::default() }, None).unwrap();
        let of_cq = matches!(
            refused,
            Capability::ExtendedCq
                | Capability::Timestamps
                | Capability::WallclockTimestamps
                | Capability::SingleThreaded
                | Capability::IgnoreOverrun
        );
        assert_eq!(granted.refused, if of_cq { vec![refused] } else { vec![] });
        assert_eq!(granted.fields == fields && granted.flags == flags, !of_cq);
        let pd = device.alloc_pd().unwrap();
        let make_by = |kind, inline, queues, send_api| {
            let caps = QpCaps { send_depth: 1, recv_depth: 1, send_sges: 1, recv_sges: 1, inline };
            let spec = QpSpec { queue: (0, queues), send_api, ..QpSpec::new(kind, caps) };
            pd.create_qp(&spec, &cq, &cq, None).map_err(|error| error.errno)
        };
        let make = |kind, inline, queues| make_by(kind, inline, queues, SendApi::Classic).map(|_| ());
        let expect = |capability, errno| if refused == capability { Err(errno) } else { Ok(()) };
        assert_eq!(make(QpType::RawPacket, 0, 1), expect(Capability::RawPacket, libc::EOPNOTSUPP));
        assert_eq!(make(QpType::Ud, 0, 1), expect(Capability::Datagram, libc::EOPNOTSUPP));
        assert_eq!(make(QpType::Ud, 8, 1).is_err(), matches!(refused, Capability::Inline | Capability::Datagram));
        assert_eq!(make(QpType::RawPacket, 0, 2).is_err(), matches!(refused, Capability::Rss | Capability::RawPacket));
        assert_eq!(make(QpType::Rc, 0, 1), expect(Capability::Rc, libc::EOPNOTSUPP));
        assert_eq!(make(QpType::Uc, 0, 1), expect(Capability::Uc, libc::EOPNOTSUPP));
        assert_eq!(make(QpType::XrcSend, 0, 1), Err(libc::EOPNOTSUPP));
        let errno = |made: Result<(), VerbError>| made.map_err(|error| error.errno);
        let extended = make_by(QpType::Ud, 0, 1, SendApi::Extended).map(|_| ());
        assert_eq!(extended.is_err(), matches!(refused, Capability::ExtendedSend | Capability::Datagram));
        let srq = pd.create_srq(&SrqSpec { depth: 8, sges: 1 }).map(|_| ());
        assert_eq!(errno(srq), expect(Capability::Srq, libc::EOPNOTSUPP));
        let parent = pd.alloc_parent().map(|_| ());
        assert_eq!(errno(parent), expect(Capability::ParentDomain, libc::EOPNOTSUPP));
        let window = pd.alloc_mw(MwKind::Type2).map(|_| ());
        assert_eq!(errno(window), expect(Capability::MemoryWindow, libc::EOPNOTSUPP));
        assert_eq!(errno(device.create_channel().map(|_| ())), expect(Capability::Events, libc::EOPNOTSUPP));
        if let Ok(mut qp) = make_by(QpType::Ud, 0, 1, SendApi::Classic) {
            let joined = qp.attach_multicast("ff0e::1".parse().unwrap(), 0);
            assert_eq!(errno(joined), expect(Capability::Multicast, libc::EOPNOTSUPP));
        }
    }
}

#[test]
fn removed_device_fails_every_verb_with_eio() {
    let mut rig = Rig::new(reflecting()).ready();
    rig.device.remove();
    rig.device.remove();
    assert_eq!(rig.events(), [EventKind::DeviceFatal]);
    assert_eq!(errno(rig.post_recv_run(&[1])), (0, libc::EIO));
    assert_eq!(rig.recv.poll_run(&mut rig.run, 8).unwrap_err().errno, libc::EIO);
    assert_eq!(rig.device.alloc_pd().map(|_| ()).unwrap_err().errno, libc::EIO);
    let (attributes, mask) = QpAttributes::to(QpState::Reset);
    assert_eq!(rig.qp.modify(&attributes, mask).unwrap_err().errno, libc::EIO);
}

#[test]
fn other_thread_can_destroy_the_queues_but_not_post_or_poll() {
    let mut rig = Rig::new(reflecting()).ready();
    rig.received();
    let Rig { mut qp, recv, send, .. } = rig;
    std::thread::spawn(move || {
        // SAFETY: the post is refused.
        assert_eq!(errno(unsafe { qp.post_recv_run(&[1]) }), (0, libc::EBUSY));
        let mut recv = recv;
        let busy = recv.poll_run(&mut Completions::new(), 8).unwrap_err();
        assert_eq!(busy.errno, libc::EBUSY);
        drop((qp, recv, send));
    })
    .join()
    .unwrap();
}

#[test]
fn one_completion_queue_can_serve_sends_and_receives() {
    let device = SoftDevice::new(reflecting()).unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = CqSpec { depth: 8, fields: PollFields::STANDARD, ..CqSpec::default() };
    let (mut cq, _) = device.create_cq(&cq, None).unwrap();
    let caps = QpCaps { send_depth: 4, recv_depth: 4, send_sges: 1, recv_sges: 1, inline: 60 };
    let spec = QpSpec { signal_all: true, ..QpSpec::new(QpType::RawPacket, caps) };
    let mut qp = pd.create_qp(&spec, &cq, &cq, None).unwrap();
    for (attributes, mask) in
        [QpAttributes::init(QpType::RawPacket, 1, 0), QpAttributes::rtr(), QpAttributes::rts(QpType::RawPacket)]
    {
        qp.modify(&attributes, mask).unwrap();
    }
    let mr = pd.register(region(4096), Access::LOCAL_WRITE).unwrap();
    let sges = [Sge { addr: mr.region().base().as_ptr() as u64, length: 60, lkey: mr.lkey() }];
    let send = SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::INLINE, sges: &sges, to: None };
    // SAFETY: no other code accesses the region.
    unsafe {
        qp.post_recv(&[RecvRequest { wr_id: 2, sges: &sges }]).unwrap();
        qp.post_send(&[send]).unwrap();
    }
    let mut run = Completions::new();
    assert_eq!(cq.poll_run(&mut run, 8).unwrap(), 2);
    assert_eq!(completions_of(&run), [(1, Success, 0), (2, Success, 60)]);
}
