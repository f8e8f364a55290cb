//! Tests of queues that join and leave while frames arrive.

use std::collections::BTreeSet;

use super::interfaces::{device, packet, receiving};
use super::links::datagram;
use super::xdp::veth;
use super::*;
use dataplane_testing::namespace::in_namespace;
use dataplane_testing::wait_until;

/// The number of flows.
const FLOWS: u16 = 32;

fn queue(device: &SoftDevice, queue: (u16, u16)) -> Rig {
    receiving(Rig::on(device.clone(), HostClock::manual(), Plan { queue, ..Plan::default() }))
}

fn send(sender: &mut Rig) {
    for flow in 0..FLOWS {
        assert_eq!(sender.send_one(&datagram(flow, 0)), WcStatus::Success);
    }
}

/// Waits for this number of frames. Returns the numbers of the flows that each queue received.
fn receive<const QUEUES: usize>(mut queues: [&mut Rig; QUEUES], frames: usize) -> [Vec<u8>; QUEUES] {
    let mut got = [(); QUEUES].map(|()| Vec::new());
    wait_until("every datagram", || {
        for (queue, got) in queues.iter_mut().zip(&mut got) {
            got.extend(queue.frames().into_iter().map(|frame| frame.unwrap()[35]));
        }
        got.iter().map(Vec::len).sum::<usize>() >= frames
    });
    got
}

/// Sends frames to a port whose number of queues changes. Each frame must arrive at exactly one queue.
fn check(mut sender: Rig, shared: &SoftDevice) {
    let all = usize::from(FLOWS);
    shared.distribute(1).unwrap();
    let mut first = queue(shared, (0, 1));
    send(&mut sender);
    assert_eq!(receive([&mut first], all)[0].len(), all);
    for _ in 0..5 {
        // A queue that joins receives nothing at first.
        let mut second = queue(shared, (1, 2));
        send(&mut sender);
        assert!(receive([&mut first, &mut second], all)[1].is_empty());
        shared.distribute(2).unwrap();
        send(&mut sender);
        let flows = receive([&mut first, &mut second], all).map(|got| (got.len(), BTreeSet::from_iter(got)));
        let [(of_first, first_flows), (of_second, second_flows)] = &flows;
        assert!(*of_first > 0 && *of_second > 0 && of_first + of_second == all, "{flows:?}");
        assert!(first_flows.is_disjoint(second_flows), "{flows:?}");
        // The frames that wait at the second queue stay there.
        send(&mut sender);
        shared.distribute(1).unwrap();
        send(&mut sender);
        let got = receive([&mut first, &mut second], 2 * all);
        assert_eq!(got.each_ref().map(Vec::len), [2 * all - of_second, *of_second]);
        drop(second);
        send(&mut sender);
        assert_eq!(receive([&mut first], all)[0].len(), all);
    }
    assert_eq!(shared.counters().rx_missed, 0);
}

#[test]
fn queues_of_an_interface_join_and_leave_without_loss() {
    in_namespace(|| {
        veth(1, 1500);
        let sender = packet("va");
        check(sender, &device(LinkSpec::Packet(PacketSpec::new("vb")), 1500).unwrap());
    });
}
