//! Tests of reused queue pair numbers and memory keys, and of a queue pair whose completion queue another thread polls.

use super::ends::*;
use super::*;
use WcStatus::{RemAccessErr, Success};

fn write_through(from: &mut End, to: u64, window: Rkey) -> WcStatus {
    let sge = [from.sge(0, 8)];
    from.post(1, SendOp::RdmaWrite(Remote { addr: to, rkey: window }), &sge).unwrap();
    from.sent()[0].1
}

#[test]
fn reused_number_gives_no_access_to_the_memory_of_its_earlier_owner() {
    // A protection domain does not accept the memory of another domain.
    let mut rig = Rig::new(reflecting());
    let number = rig.qp.number();
    let numbers = rig.qp.shared.device.numbers.clone();
    let own = {
        numbers.continue_at(number.0 + 1);
        rig.device.alloc_pd().unwrap()
    };
    let qp = |pd: &SoftPd, rig: &Rig| {
        let caps = Plan::default().caps;
        pd.create_qp(&QpSpec::new(QpType::RawPacket, caps), &rig.send, &rig.recv, None).unwrap()
    };
    let mut second = qp(&own, &rig);
    numbers.continue_at(number.0 + 1);
    let other = rig.device.alloc_pd().unwrap();
    let mr = other.register(region(rig.layout.bytes()), Access::LOCAL_WRITE).unwrap();
    assert_eq!(second.bind_slots(&mr, rig.layout, 0).unwrap_err().errno, libc::EINVAL);
    // A number that is in use is not given to another queue.
    numbers.continue_at(number.0);
    let third = qp(&own, &rig);
    assert!(![number, second.number(), QpNum(rig.send.number()), QpNum(rig.recv.number())].contains(&third.number()));
    rig.go(QpState::Init);

    // A type 2 window is bound by one queue pair. A later queue pair that reuses the number of this queue pair cannot
    // use the window.
    let (mut a, mut b) = Ends::default().connected();
    let mut window = b.pd.alloc_mw(MwKind::Type2).unwrap();
    let mr = b.mr.clone();
    let bind = MwBind {
        wr_id: 1,
        flags: SendFlags::SIGNALED,
        mr: &mr,
        addr: b.addr(0),
        length: 50,
        access: Access::REMOTE_WRITE,
    };
    b.qp.bind_mw(&mut window, &bind).unwrap();
    assert_eq!(b.sent()[0].1, Success);
    assert_eq!(write_through(&mut a, bind.addr, window.rkey()), Success);
    let End { device, clock, qp, send, recv, .. } = b;
    let (number, numbers) = (qp.number(), qp.shared.device.numbers.clone());
    drop((qp, send, recv));
    // The new end creates two completion queues and then its queue pair.
    numbers.continue_at(number.0 - 2);
    let mut later = Ends::default().on(&device, &clock);
    assert_eq!(later.qp.number(), number);
    let mut peer = Ends::default().on(&a.device, &a.clock);
    (peer.attributes, later.attributes) = (a.attributes, b.attributes);
    connect(&mut peer, &mut later);
    assert_eq!(write_through(&mut peer, bind.addr, window.rkey()), RemAccessErr);
}

#[test]
fn key_in_use_is_not_given_to_another_registration_or_window() {
    let (_peer, mut b) = Ends::default().connected();
    let keys = b.qp.shared.device.keys.clone();
    let mut window = b.pd.alloc_mw(MwKind::Type1).unwrap();
    let mr = b.mr.clone();
    let (flags, access) = (SendFlags::SIGNALED, Access::REMOTE_WRITE);
    b.qp.bind_mw(&mut window, &MwBind { wr_id: 1, flags, mr: &mr, addr: b.addr(0), length: 50, access }).unwrap();
    let without_binding = |key: u32| key & !0xff;
    let mut used = vec![b.mr.lkey().0, without_binding(window.rkey().0)];
    let (mut regions, mut windows) = (Vec::new(), Vec::new());
    for key in [used[0], used[1], used[0], used[1], u32::MAX - 0xff] {
        keys.continue_at(key);
        regions.push(b.pd.register(region(4096), FULL).unwrap());
        used.push(regions.last().unwrap().lkey().0);
        keys.continue_at(key);
        windows.push(b.pd.alloc_mw(MwKind::Type2).unwrap());
        used.push(windows.last().unwrap().rkey().0);
    }
    assert!(
        used.contains(&(u32::MAX - 0xff)) && !used.contains(&0),
        "the keys must include 0xffffff00 and, after the wrap, must not include 0: {used:x?}"
    );
    let all = used.len();
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), all, "{used:x?}");
    // A key is free again after its region was deregistered.
    let free = regions.pop().unwrap().lkey();
    keys.continue_at(free.0);
    assert_eq!(b.pd.register(region(4096), FULL).unwrap().lkey(), free);
}

#[test]
fn queue_pair_is_not_destroyed_if_another_thread_polled_its_completion_queue() {
    let polled = |elsewhere: bool| {
        let Rig { qp, mut recv, .. } = Rig::new(reflecting()).ready();
        let poll = move || recv.poll_run(&mut Completions::new(), MAX_RUN).map(|_| recv);
        let _recv = match elsewhere {
            true => std::thread::spawn(poll).join().unwrap().unwrap(),
            false => poll().unwrap(),
        };
        qp.destroy().map_err(|error| error.errno)
    };
    assert_eq!((polled(true), polled(false)), (Err(libc::EBUSY), Ok(())));
}
