//! Tests of the fields that completions have.

use std::thread;

use super::ends::*;
use super::*;

/// Returns, for each optional field of a completion, whether `it` has the field.
fn present(it: &Completion) -> [bool; 10] {
    [
        it.byte_len().is_some(),
        it.qp_num().is_some(),
        it.src_qp().is_some(),
        it.slid().is_some(),
        it.sl().is_some(),
        it.dlid_path_bits().is_some(),
        it.cvlan().is_some(),
        it.flow_tag().is_some(),
        it.tag_info().is_some(),
        it.imm().is_some(),
    ]
}

/// Returns what [`present`] returns for a completion that has exactly the fields `names`.
fn fields(names: &[&str]) -> [bool; 10] {
    let all = ["byte_len", "qp_num", "src_qp", "slid", "sl", "dlid_path_bits", "cvlan", "flow_tag", "tag", "imm"];
    all.map(|name| names.contains(&name))
}

#[test]
fn completions_of_connected_queue_pairs_have_no_datagram_fields() {
    for kind in [QpType::Rc, QpType::Uc] {
        let (mut a, mut b) = Ends::of(Profile::Spec, kind).connected();
        let (into, from) = ([b.sge(0, 100)], [a.sge(0, 20)]);
        b.post_recv(1, &into).unwrap();
        a.post(1, SendOp::Send, &from).unwrap();
        let (sent, received) = (End::completions(&mut a.send), End::completions(&mut b.recv));
        assert_eq!(present(&sent[0]), fields(&["qp_num"]), "{kind}");
        assert_eq!(present(&received[0]), fields(&["byte_len", "qp_num"]), "{kind}");
    }
    let (mut a, b) = Ends::default().connected();
    let into = [a.sge(0, 8)];
    a.post(1, SendOp::RdmaRead(b.remote(0)), &into).unwrap();
    a.post(2, SendOp::FetchAdd { remote: b.remote(0), add: 1 }, &into).unwrap();
    let sent = End::completions(&mut a.send);
    assert_eq!([present(&sent[0]), present(&sent[1])], [fields(&["byte_len", "qp_num"]); 2]);
}

#[test]
fn datagram_completions_name_their_sender() {
    let (mut a, mut b) = Ends::of(Profile::Spec, QpType::Ud).connected();
    let (into, from) = ([b.sge(0, 100)], [a.sge(0, 20)]);
    b.post_recv(1, &into).unwrap();
    a.attributes.path.service_level = 5;
    a.post_to(1, SendOp::Send, &from, b.address(), QKEY).unwrap();
    let (sent, received) = (End::completions(&mut a.send), End::completions(&mut b.recv));
    assert_eq!(present(&sent[0]), fields(&["qp_num"]));
    assert_eq!((received[0].src_qp(), received[0].sl()), (Some(a.qp.number()), Some(5)));
    // An Ethernet port has no local identifiers.
    assert_eq!(present(&received[0]), fields(&["byte_len", "qp_num", "src_qp", "sl"]));
}

#[test]
fn completions_of_raw_packet_queue_pairs_have_no_datagram_fields() {
    let plan = Plan { fields: PollFields::all(), ..Plan::default() };
    let mut rig = Rig::with(reflecting(), plan).ready();
    rig.post_recv_run(&[5]).unwrap();
    let desc = rig.put(1, &frame(1, 60));
    rig.post_send_run(&[desc], 40).unwrap();
    let (sent, received) = (End::completions(&mut rig.send), End::completions(&mut rig.recv));
    let received_fields = fields(&["byte_len", "qp_num", "cvlan", "flow_tag"]);
    assert_eq!((present(&sent[0]), present(&received[0])), (fields(&["qp_num"]), received_fields));
}

#[test]
fn ticks_and_wall_clock_may_be_requested_together() {
    let both = PollFields::STANDARD | PollFields::TIMESTAMP | PollFields::WALLCLOCK;
    let wall_ahead = dataplane_core::units::Offset(37);
    let counter = CounterSpec { khz: 500_000, start: 1_000, wall_ahead, ..CounterSpec::default() };
    for (asked, ticks, wallclock) in [
        (both, Some(Ticks(1_050)), Some(Nanos(137))),
        (both - PollFields::WALLCLOCK, Some(Ticks(1_050)), None),
        (both - PollFields::TIMESTAMP, None, Some(Nanos(137))),
    ] {
        for kind in [QpType::RawPacket, QpType::Ud] {
            let spec = SoftSpec { counter: Some(counter.clone()), ..reflecting() };
            let mut rig = Rig::with(spec, Plan { kind, fields: asked, ..Plan::default() }).ready();
            rig.clock.advance(Nanos(100));
            rig.post_recv_run(&[5]).unwrap();
            let sge = rig.sge(1, 60);
            rig.post_send(40, &[sge], SendFlags::SIGNALED).unwrap();
            // For raw packets, a receive completes when the queue is polled, and a send completes when it is posted.
            let received = End::completions(&mut rig.recv);
            rig.clock.advance(Nanos(1_000));
            let sent = End::completions(&mut rig.send);
            for it in [received[0], sent[0]] {
                assert_eq!((it.ticks(), it.wallclock()), (ticks, wallclock), "{kind} {asked:?}");
            }
        }
    }
}

#[test]
fn errors_have_a_device_specific_code() {
    let (mut a, _b) = Ends::default().connected();
    let wrong = [Sge { lkey: Lkey(9), ..a.sge(0, 20) }];
    a.post(1, SendOp::Send, &wrong).unwrap();
    a.post(2, SendOp::Send, &wrong).unwrap();
    let sent = End::completions(&mut a.send);
    let codes: Vec<_> = sent.iter().map(|it| (it.status, it.vendor_err)).collect();
    assert_eq!(codes, [(WcStatus::LocProtErr, 0x04), (WcStatus::WrFlushErr, 0x05)]);
    let mut rig = Rig::new(reflecting()).ready();
    let short = rig.sge(1, 13);
    rig.post_send(1, &[short], SendFlags::SIGNALED).unwrap();
    assert_eq!(End::completions(&mut rig.send)[0].vendor_err, 0x01);
    // rxe has no device-specific status codes.
    let (mut a, _b) = Ends::of(Profile::Rxe, QpType::Rc).connected();
    let wrong = [Sge { lkey: Lkey(9), ..a.sge(0, 20) }];
    a.post(1, SendOp::Send, &wrong).unwrap();
    assert_eq!(End::completions(&mut a.send)[0].vendor_err, 0);
}

#[test]
fn poll_interface_determines_the_granted_fields_and_the_batches() {
    for (api, granted, batches) in [
        (CqApi::Auto, CqApi::Extended, vec![3]),
        (CqApi::Extended, CqApi::Extended, vec![3]),
        (CqApi::ExtendedSingle, CqApi::ExtendedSingle, vec![1, 1, 1]),
        (CqApi::Classic, CqApi::Classic, vec![3]),
    ] {
        let device = SoftDevice::new(reflecting()).unwrap();
        let both = PollFields::STANDARD | PollFields::TIMESTAMP;
        let spec = CqSpec { depth: 8, fields: both, api, flags: CqFlags::SINGLE_THREADED, ..CqSpec::default() };
        let (_, got) = device.create_cq(&spec, None).unwrap();
        assert_eq!(got.api, granted);
        let classic = granted == CqApi::Classic;
        assert_eq!(got.fields, if classic { PollFields::STANDARD } else { both });
        assert_eq!(got.flags.is_empty(), classic);
        let missing = [Capability::Timestamps, Capability::SingleThreaded];
        assert_eq!(got.refused, if classic { missing.to_vec() } else { vec![] });

        let mut rig = Rig::with(reflecting(), Plan { api, ..Plan::default() }).ready();
        let sge = rig.sge(1, 60);
        for wr_id in 0..3 {
            rig.post_send(wr_id, &[sge], SendFlags::SIGNALED).unwrap();
        }
        let mut polled = Vec::new();
        while let Some(mut cursor) = rig.send.start_poll().unwrap() {
            let mut ids = vec![cursor.get().wr_id];
            while cursor.advance().unwrap() {
                ids.push(cursor.get().wr_id);
            }
            polled.push(ids);
        }
        assert_eq!(polled.iter().map(Vec::len).collect::<Vec<_>>(), batches, "{api:?}");
        assert_eq!(polled.concat(), [0, 1, 2]);
    }
}

#[test]
fn classic_poll_misses_completions_that_arrive_after_its_start() {
    for (api, batch) in [(CqApi::Classic, vec![1]), (CqApi::Extended, vec![1, 2])] {
        let (mut a, mut b) = Ends { api, ..Ends::default() }.connected();
        let (into, from) = ([b.sge(0, 100)], [a.sge(0, 20)]);
        b.post_recv(1, &into).unwrap();
        b.post_recv(2, &into).unwrap();
        a.post(1, SendOp::Send, &from).unwrap();
        let mut cursor = b.recv.start_poll().unwrap().unwrap();
        let mut ids = vec![cursor.get().wr_id];
        // This message arrives while the poll runs.
        a.post(2, SendOp::Send, &from).unwrap();
        while cursor.advance().unwrap() {
            ids.push(cursor.get().wr_id);
        }
        assert_eq!(ids, batch, "{api:?}");
        let rest = b.received().len();
        assert_eq!(ids.len() + rest, 2, "{api:?}");
    }
}

#[test]
fn only_classic_queues_report_the_partition_key_index() {
    for (api, index) in [(CqApi::Classic, Some(0)), (CqApi::Extended, None)] {
        let (mut a, mut b) = Ends { api, ..Ends::of(Profile::Spec, QpType::Ud) }.connected();
        let (into, from) = ([b.sge(0, 100)], [a.sge(0, 20)]);
        b.post_recv(1, &into).unwrap();
        a.post_to(1, SendOp::Send, &from, b.address(), QKEY).unwrap();
        let (sent, received) = (End::completions(&mut a.send), End::completions(&mut b.recv));
        assert_eq!((sent[0].pkey_index(), received[0].pkey_index()), (None, index), "{api:?}");
    }
}

/// Each round flushes all receives and then resets the queue pair, while another thread polls the flushed receives.
#[test]
fn reset_frees_all_receives_while_another_thread_polls() {
    for api in [CqApi::Classic, CqApi::Extended] {
        // Many receives, so that the main thread is often in the middle of a poll when the queue pair is reset.
        let caps = QpCaps { recv_depth: 512, ..Ends::default().caps };
        let ends = Ends { api, caps, cq_depth: 1024, ..Ends::default() };
        let (End { mut qp, recv: mut cq, attributes, .. }, _b) = ends.unconnected();
        let resets = thread::spawn(move || {
            let requests: Vec<_> = (0..512).map(|wr_id| RecvRequest { wr_id, sges: &[] }).collect();
            for round in 0..1_000 {
                let (mut init, mask) = QpAttributes::init(qp.kind(), 1, QKEY);
                init.access = attributes.access;
                qp.modify(&init, mask).unwrap();
                // SAFETY: the requests have no memory.
                let posted = unsafe { qp.post_recv(&requests) };
                assert!(posted.is_ok(), "{api:?}, round {round}: {posted:?}");
                let mut to = |state| {
                    let (attributes, mask) = QpAttributes::to(state);
                    qp.modify(&attributes, mask).unwrap();
                };
                to(QpState::Err);
                // Wait for a time that differs between rounds, so that the main thread is at different points of its
                // poll.
                (0..round % 64 * 50).for_each(|_| std::hint::spin_loop());
                to(QpState::Reset);
            }
        });
        let mut run = Completions::new();
        while !resets.is_finished() {
            cq.poll_run(&mut run, MAX_RUN).unwrap();
            End::completions(&mut cq);
        }
        resets.join().unwrap();
    }
}
