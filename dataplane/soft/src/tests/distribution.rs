//! Tests of queues that join and leave while frames arrive.

use std::collections::BTreeSet;

use super::interfaces::{device, packet, receiving};
use super::links::datagram;
use super::xdp::{ETHER_TYPE, veth};
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

/// A function that returns the frame of a flow.
type FlowFrame = fn(u8) -> Vec<u8>;

/// Returns a frame with these bytes after the Ethernet header. The source address contains the mark of test frames, and
/// differs between flows.
fn marked(ether_type: u16, flow: u8, packet: &[u8]) -> Vec<u8> {
    let mark = ETHER_TYPE.to_be_bytes();
    [&[2, 0, 0, 0, 0, 9, mark[0], mark[1], 2, 0, 0, flow], &ether_type.to_be_bytes()[..], packet].concat()
}

/// Returns the first `len` bytes of an IPv4 packet with options and a UDP header.
fn ipv4(flow: u8, len: usize) -> Vec<u8> {
    let header = [0x46, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 0];
    marked(0x0800, flow, &[&header[..], &[1, flow, 0, 53, 0, 8, 0, 0]].concat()[..len])
}

/// Returns the first `len` bytes of an IPv6 packet with a UDP header.
fn ipv6(flow: u8, len: usize) -> Vec<u8> {
    let header = [&[0x60, 0, 0, 0, 0, 8, 17, 64][..], &[0xfd; 16], &[0xfc; 16]].concat();
    marked(0x86dd, flow, &[&header[..], &[1, flow, 0, 53, 0, 8, 0, 0]].concat()[..len])
}

/// A queue that must receive no frames has the first socket of the group. The kernel selects this socket if the BPF
/// program cannot load a byte of the frame. The other queues must therefore receive every frame, incoming and outgoing,
/// even if the packet in the frame is truncated.
#[test]
fn truncated_packets_do_not_reach_a_queue_without_flows() {
    in_namespace(|| {
        veth(1, 1500);
        let bypass = PacketSpec { qdisc_bypass: false, ..PacketSpec::new("va") };
        let mut sender =
            Rig::on(device(LinkSpec::Packet(bypass), 1500).unwrap(), HostClock::manual(), Plan::default()).ready();
        for (interface, outgoing) in [("vb", false), ("va", true)] {
            let link = PacketSpec { outgoing, ..PacketSpec::new(interface) };
            let shared = device(LinkSpec::Packet(link), 1500).unwrap();
            shared.distribute(2).unwrap();
            let mut queues = [2, 0, 1].map(|number| queue(&shared, (number, 3)));
            // The flows of each kind differ only in the port, or only in the MAC address.
            let kinds: [(&str, FlowFrame, bool); 6] = [
                ("IPv4", |flow| ipv4(flow, 32), true),
                ("IPv4 without ports", |flow| ipv4(flow, 26), false),
                ("IPv4 header", |flow| ipv4(flow, 10), true),
                ("IPv6", |flow| ipv6(flow, 48), true),
                ("IPv6 without ports", |flow| ipv6(flow, 42), false),
                ("IPv6 header", |flow| ipv6(flow, 39), true),
            ];
            for (kind, frame, is_spread) in kinds {
                for flow in 0..32 {
                    assert_eq!(sender.send_one(&frame(flow)), WcStatus::Success);
                }
                let mut got = [0; 3];
                wait_until("every frame", || {
                    for (queue, got) in queues.iter_mut().zip(&mut got) {
                        *got += queue.frames().len();
                    }
                    got.iter().sum::<usize>() >= 32
                });
                assert_eq!((got[0], got.iter().sum()), (0, 32), "{interface}: {kind}: {got:?}");
                assert_eq!(got[1] > 0 && got[2] > 0, is_spread, "{interface}: {kind}: {got:?}");
            }
        }
    });
}
