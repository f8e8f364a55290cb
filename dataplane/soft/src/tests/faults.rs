//! Tests of injected faults on raw-packet queue pairs.

use super::*;

/// Returns a rig in RTS on a device with these faults.
fn faulty(faults: FaultSpec) -> Rig {
    Rig::new(SoftSpec { faults, ..reflecting() }).ready()
}

/// Sends `count` numbered frames, one by one, and returns the received frames.
fn trace(rig: &mut Rig, count: u8) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let mut take = |rig: &mut Rig| {
        for (wr_id, status, len) in rig.received() {
            let slot = (wr_id - 1000) as u32;
            if status == WcStatus::Success {
                got.push(rig.get(slot, len as usize));
                rig.post_recv_run(&[slot]).unwrap();
            }
        }
    };
    rig.post_recv_run(&[10, 11, 12, 13, 14, 15]).unwrap();
    for number in 0..count {
        let desc = rig.put(1, &[number; 60]);
        rig.post_send_run(&[desc], 0).unwrap();
        rig.sent();
        take(rig);
        rig.clock.advance(Nanos(1));
    }
    rig.clock.advance(Nanos(1_000));
    for _ in 0..8 {
        take(rig);
    }
    got
}

/// Returns the number of each frame, which is its first byte.
fn numbers(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().map(|frame| frame[0]).collect()
}

#[test]
fn same_seed_gives_the_same_run() {
    let spec = |seed| FaultSpec {
        seed,
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        corrupt: 0.1,
        delay: 0.1,
        delay_by: period(5),
        flap: 0.01,
        ..FaultSpec::default()
    };
    let run = |seed| trace(&mut faulty(spec(seed)), 200);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn without_faults_nothing_is_injected() {
    let mut rig = faulty(FaultSpec { seed: 9, ..FaultSpec::default() });
    assert_eq!(numbers(&trace(&mut rig, 50)), (0..50).collect::<Vec<_>>());
    assert_eq!(rig.device.counters().faults, 0);
}

#[test]
fn each_fault_has_its_effect() {
    let half = |with: fn(&mut FaultSpec)| {
        let mut spec = FaultSpec { seed: 3, ..FaultSpec::default() };
        with(&mut spec);
        let mut rig = faulty(spec);
        let got = trace(&mut rig, 100);
        (got, rig.device.counters().faults as usize)
    };
    let (lost, faults) = half(|spec| spec.loss = 0.5);
    assert!(lost.len() + faults == 100 && faults > 20 && numbers(&lost).is_sorted());
    let (twice, faults) = half(|spec| spec.duplicate = 0.5);
    assert!(twice.len() == 100 + faults && faults > 20 && numbers(&twice).is_sorted());
    let (mixed, faults) = half(|spec| spec.reorder = 0.5);
    let mut sorted = numbers(&mixed);
    assert!(!sorted.is_sorted() || faults == 0);
    sorted.sort();
    assert_eq!(sorted, (0..100).collect::<Vec<_>>(), "reordering loses and duplicates no frame");
    let (spoilt, faults) = half(|spec| spec.corrupt = 0.5);
    let changed = spoilt.iter().enumerate().filter(|(i, frame)| **frame != [*i as u8; 60]).count();
    assert!(changed == faults && faults > 20);
    let (late, _) = half(|spec| (spec.delay, spec.delay_by) = (0.5, period(10)));
    let mut sorted = numbers(&late);
    assert!(!sorted.is_sorted());
    sorted.sort();
    assert_eq!(sorted, (0..100).collect::<Vec<_>>());
}

#[test]
fn injected_request_errors_move_the_queue_pair_to_err() {
    let mut rig = faulty(FaultSpec { rx_error: 1.0, ..FaultSpec::default() });
    rig.post_recv_run(&[1, 2]).unwrap();
    let desc = rig.put(5, &frame(1, 60));
    rig.post_send_run(&[desc], 0).unwrap();
    assert_eq!(rig.received(), [(1001, WcStatus::GeneralErr, 0), (1002, WcStatus::WrFlushErr, 0)]);
    let mut rig = faulty(FaultSpec { tx_error: 1.0, tx_status: WcStatus::FatalErr, ..FaultSpec::default() });
    rig.post_send_run(&[desc, desc], 0).unwrap();
    assert_eq!(rig.sent(), [(0, WcStatus::FatalErr), (1, WcStatus::WrFlushErr)]);
    assert_eq!((rig.qp.state(), rig.device.counters().faults), (QpState::Err, 1));
}

#[test]
fn every_status_can_be_injected() {
    for status in WcStatus::NAMED.iter().copied().filter(|status| *status != WcStatus::Success) {
        let mut rig = faulty(FaultSpec { tx_error: 1.0, tx_status: status, ..FaultSpec::default() });
        let desc = rig.put(5, &frame(1, 60));
        rig.post_send_run(&[desc], 0).unwrap();
        assert_eq!(rig.sent(), [(0, status)]);
        assert_eq!(WcStatus::from_name(status.name()), Some(status));
    }
}

#[test]
fn flapping_link_raises_port_events() {
    let mut rig = faulty(FaultSpec { flap: 0.2, flap_frames: 3, seed: 1, ..FaultSpec::default() });
    let got = trace(&mut rig, 60);
    let events = rig.events();
    assert!(got.len() < 60 && events.len() > 2);
    assert!(
        events
            .chunks(2)
            .all(|pair| pair[0] == EventKind::PortErr && pair.get(1).is_none_or(|up| *up == EventKind::PortActive))
    );
}

#[test]
fn removal_fails_the_device_permanently() {
    let mut rig = faulty(FaultSpec { removal: 1.0, ..FaultSpec::default() });
    rig.post_recv_run(&[10]).unwrap();
    let desc = rig.put(5, &frame(1, 60));
    rig.post_send_run(&[desc], 0).unwrap();
    // The first poll receives the frame, and the next poll finds the device removed.
    assert_eq!(rig.recv.poll_run(&mut rig.run, 8).unwrap(), 0);
    assert_eq!(rig.recv.poll_run(&mut rig.run, 8).unwrap_err().errno, libc::EIO);
    assert_eq!(rig.events(), [EventKind::DeviceFatal]);
}

#[test]
fn queue_whose_polls_fail_with_ebusy_loses_no_completion() {
    let faults = FaultSpec { clock_busy: 0.5, seed: 4, ..FaultSpec::default() };
    let plan = Plan { fields: PollFields::STANDARD | PollFields::WALLCLOCK, ..Plan::default() };
    let mut rig = Rig::with(SoftSpec { faults, ..reflecting() }, plan).ready();
    rig.clock.advance(Nanos(50));
    let desc = rig.put(5, &frame(1, 60));
    let mut waits = 0;
    for wr_id in 0..40 {
        rig.post_send_run(&[desc], wr_id).unwrap();
        while rig.sent() != [(wr_id, WcStatus::Success)] {
            waits += 1;
            assert!(waits < 1000);
        }
        assert_eq!(rig.run.ticks[0], Ticks(50), "the timestamp is the wall-clock time in nanoseconds");
    }
    assert!(waits > 10);
}
