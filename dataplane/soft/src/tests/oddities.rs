//! Tests of injected faults of the device, such as refused posts, invalid completions, failed polls and missing
//! privileges.

use super::ends::*;
use super::*;

use WcStatus::{Success, WrFlushErr};

fn with(faults: FaultSpec) -> Ends {
    Ends { faults, ..Ends::default() }
}

#[test]
fn post_is_refused_at_the_configured_request() {
    let faults = FaultSpec { post_error_at: 3, post_errno: libc::EAGAIN, ..FaultSpec::default() };
    let (mut a, mut b) = with(faults).connected();
    let wr = |wr_id| SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &[], to: None };
    let recv = |wr_id| RecvRequest { wr_id, sges: &[] };
    // SAFETY: tests do not access posted memory.
    unsafe {
        assert_eq!(errno(b.qp.post_recv(&[1, 2, 3, 4].map(recv))), (2, libc::EAGAIN));
        b.qp.post_recv(&[recv(3)]).unwrap();
        assert_eq!(
            errno(a.qp.post_send(&[1, 2, 3, 4].map(wr))),
            (2, libc::EAGAIN),
            "the requests before the refused request are accepted"
        );
    }
    assert_eq!((statuses(&a.sent()), b.received().len()), (vec![Success; 2], 2));
    let mut rig = Rig::new(SoftSpec { faults, ..reflecting() }).ready();
    let desc = rig.put(1, &frame(1, 60));
    assert_eq!(errno(rig.post_recv_run(&[1, 2, 3, 4])), (2, libc::EAGAIN));
    assert_eq!(errno(rig.post_send_run(&[desc; 5], 0)), (2, libc::EAGAIN));
    assert_eq!(rig.received().len(), 2);
}

#[test]
fn invalid_completions_are_injected_between_real_completions() {
    let faults = FaultSpec { bogus_completion: 0.5, seed: 5, ..FaultSpec::default() };
    let (mut a, b) = with(faults).connected();
    let sge = [a.sge(0, 8)];
    let mut strange = Vec::new();
    for wr_id in 0..100 {
        a.post(wr_id, SendOp::RdmaWrite(b.remote(0)), &sge).unwrap();
        let (real, other): (Vec<_>, Vec<_>) = End::completions(&mut a.send).into_iter().partition(|it| it.wr_id < 100);
        assert_eq!(real.iter().map(|it| (it.wr_id, it.status)).collect::<Vec<_>>(), [(wr_id, Success)]);
        strange.extend(other);
    }
    assert!(strange.iter().any(|it| it.status == WcStatus::Unknown(99)));
    assert!(strange.iter().any(|it| it.opcode() == Some(WcOpcode::Unknown(200))));
    let mut rig = Rig::new(SoftSpec { faults, ..reflecting() }).ready();
    rig.post_recv_run(&[1]).unwrap();
    let polled: usize = (0..40).map(|_| rig.received().len()).sum();
    assert!(polled > 10, "a raw-packet queue gets too few invalid completions");
}

#[test]
fn injected_poll_errors_are_returned() {
    let (mut a, _b) = with(FaultSpec { poll_invalid: 0.5, seed: 1, ..FaultSpec::default() }).connected();
    let polls: Vec<bool> = (0..40).map(|_| a.send.start_poll().is_ok()).collect();
    assert!(polls.contains(&true) && polls.contains(&false), "the queue stays usable");
    let (mut a, b) = with(FaultSpec { poll_error: 0.2, seed: 2, ..FaultSpec::default() }).connected();
    let sge = [a.sge(0, 8)];
    let failed = (0..200).find(|wr_id| {
        let _ = a.post(*wr_id, SendOp::RdmaWrite(b.remote(0)), &sge);
        let polled = a.send.start_poll().map(|cursor| cursor.map(|mut cursor| cursor.advance()));
        !matches!(polled, Ok(None | Some(Ok(_))))
    });
    assert!(failed.is_some());
    assert_eq!(a.send.start_poll().map(|_| ()).unwrap_err().errno, libc::EIO, "the queue stays unusable");
}

#[test]
fn mute_device_does_not_flush_requests() {
    let faults = FaultSpec { no_flush: true, ..FaultSpec::default() };
    let (mut a, mut b) = Ends { srq: Some(4), ..with(faults) }.connected();
    let sge = [a.sge(0, 8)];
    a.post(1, SendOp::Send, &sge).unwrap();
    b.post_recv(1, &[]).unwrap();
    a.to(QpState::Err);
    b.to(QpState::Err);
    assert_eq!((a.sent(), b.received(), b.events()), (vec![], vec![], vec![]));
    a.to(QpState::Reset);
    let mut rig = Rig::new(SoftSpec { faults, ..reflecting() }).ready();
    rig.post_recv_run(&[1, 2]).unwrap();
    rig.go(QpState::Err);
    assert_eq!((rig.received(), rig.sent()), (vec![], vec![]));
    rig.go(QpState::Reset);
    let mut rig = rig.ready();
    rig.post_recv_run(&[1]).unwrap();
    let desc = rig.put(5, &frame(1, 60));
    rig.post_send_run(&[desc], 0).unwrap();
    assert_eq!(rig.received(), [(1001, Success, 60)]);
}

#[test]
fn missing_privileges_are_reported() {
    let faults = FaultSpec { memlock: Some(10_000), no_net_raw: true, ..FaultSpec::default() };
    let device = SoftDevice::new(SoftSpec { faults, ..reflecting() }).unwrap();
    let pd = device.alloc_pd().unwrap();
    let one = pd.register(region(8_192), Access::LOCAL_WRITE).unwrap();
    let more = || pd.register(region(4_096), Access::LOCAL_WRITE).map(|_| ()).map_err(|error| error.errno);
    assert_eq!(more(), Err(libc::ENOMEM));
    drop(one);
    assert_eq!(more(), Ok(()));
    let none = SoftDevice::new(SoftSpec { faults: FaultSpec { memlock: Some(0), ..faults }, ..reflecting() }).unwrap();
    let refused = none.alloc_pd().unwrap().register(region(4_096), Access::empty());
    assert_eq!(refused.unwrap_err().errno, libc::EPERM);
    let (cq, _) = device.create_cq(&CqSpec { depth: 4, ..CqSpec::default() }, None).unwrap();
    let caps = Plan::default().caps;
    let made = |kind| pd.create_qp(&QpSpec::new(kind, caps), &cq, &cq, None);
    assert_eq!(made(QpType::RawPacket).map(|_| ()).unwrap_err().errno, libc::EPERM);
    let mut qp = made(QpType::Ud).unwrap();
    let (attributes, mask) = QpAttributes::init(QpType::Ud, 1, 1 << 31);
    assert_eq!(qp.modify(&attributes, mask).unwrap_err().errno, libc::EPERM);
    let (attributes, mask) = QpAttributes::init(QpType::Ud, 1, 1);
    qp.modify(&attributes, mask).unwrap();
}

#[test]
fn injected_send_and_receive_errors_are_reported() {
    let faults = FaultSpec { tx_error: 1.0, tx_status: WcStatus::FatalErr, ..FaultSpec::default() };
    let (mut a, _b) = with(faults).connected();
    a.post(1, SendOp::Send, &[]).unwrap();
    a.post(2, SendOp::Send, &[]).unwrap();
    assert_eq!(statuses(&a.sent()), [WcStatus::FatalErr, WrFlushErr]);
    let faults = FaultSpec { rx_error: 1.0, rx_status: WcStatus::Unknown(99), ..FaultSpec::default() };
    for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let (mut a, mut b) = Ends { kind, ..with(faults) }.connected();
        let into = [b.sge(0, 100)];
        b.post_recv(1, &into).unwrap();
        b.post_recv(2, &into).unwrap();
        let to = b.address();
        match kind {
            QpType::Ud => a.post_to(1, SendOp::Send, &[], to, QKEY).unwrap(),
            _ => a.post(1, SendOp::Send, &[]).unwrap(),
        }
        let sent = if kind == QpType::Rc { WcStatus::RemOpErr } else { Success };
        assert_eq!(statuses(&a.sent()), [sent]);
        assert_eq!((statuses(&b.received()), b.qp.state()), (vec![WcStatus::Unknown(99), WrFlushErr], QpState::Err));
    }
}

#[test]
fn messages_arrive_despite_a_flapping_link() {
    let faults = FaultSpec { flap: 0.05, flap_frames: 2, seed: 3, ..FaultSpec::default() };
    let mut ends = Ends { faults, ..Ends::of(Profile::Rxe, QpType::Rc) };
    (ends.attributes.retry_count, ends.attributes.rnr_retry) = (7, 7);
    let (mut a, mut b) = ends.connected();
    for wr_id in 0..100 {
        b.post_recv(wr_id, &[]).unwrap();
        a.post(wr_id, SendOp::Send, &[]).unwrap();
        while a.sent().is_empty() {
            a.clock.advance(Nanos(4_096 << 14));
        }
        assert_eq!(b.received(), [(wr_id, Success, 0)]);
    }
    let events = b.events();
    assert!(events.len() > 2 && events.chunks(2).all(|pair| pair[0] == EventKind::PortErr));
}
