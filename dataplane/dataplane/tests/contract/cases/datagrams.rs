//! Cases for datagrams: headers, Q_Keys, address handles and multicast groups.

use dataplane::lane::message::{Ah, MessageDomain};
use dataplane::units::{Gid, QpNum};
use dataplane::verbs::{
    Capability, Destination, LinkLayer, Path, QpType, RawDevice, SendFlags, SendOp, SendRequest, WcFlags,
};

use crate::Trial;
use crate::bed::{Outcome, PairCq, QKEY, Stop, post_result, verb_result};

/// If a completion has the GRH flag, the first 40 bytes of the receive are an IPv6 header, or 20 undefined bytes and an
/// IPv4 header. On InfiniBand, they are a global route header, which has the layout of an IPv6 header. The base transport
/// header then follows without a UDP header. Without the flag, the 40 bytes are undefined.
pub(crate) fn header<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    pair.b.recv(1, 0..100)?;
    pair.a.buffer.write(0, b"payload");
    pair.a.send(1, 0..7)?;
    pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    let flags = pair.b.received.first().and_then(|received| received.flags());
    let has_grh = flags.is_some_and(|flags| flags.contains(WcFlags::GRH));
    t.wait_and_log(&mut pair, &[])?;
    let bytes = pair.b.buffer.to_vec(0..48);
    let (from, to) = (pair.a.gid.0.0, pair.b.gid.0.0);
    let (next_header, udp) = match t.bed.link_layer()? {
        LinkLayer::Ethernet => (17, 8),
        _ => (0x1b, 0),
    };
    let is_v4 = from[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let right = match is_v4 {
        true => bytes[20] == 0x45 && bytes[29] == 17 && bytes[32..36] == from[12..] && bytes[36..40] == to[12..],
        false => bytes[0] >> 4 == 6 && bytes[6] == next_header && bytes[8..24] == from && bytes[24..40] == to,
    };
    t.log(format!("addresses: {}", right || !has_grh));
    // The lengths of the UDP header, the base transport header, the datagram extended transport header, the payload
    // with padding, and the ICRC.
    let length = usize::from(u16::from_be_bytes(if is_v4 { [bytes[22], bytes[23]] } else { [bytes[4], bytes[5]] }));
    let wanted = udp + 12 + 8 + 8 + 4 + if is_v4 { 20 } else { 0 };
    t.log(format!("length: {}", length == wanted || !has_grh));
    t.log(String::from_utf8_lossy(&bytes[40..47]));
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 47 bytes GRH
         addresses: true
         length: true
         payload",
    )
}

/// If the top bit of the Q_Key in a request is set, the device sends the Q_Key of the sending queue pair instead.
pub(crate) fn own_qkey<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    pair.b.recv(1, 0..100)?;
    pair.b.recv(2, 0..100)?;
    let (ah, qp) = pair.a.destination.clone().expect("a peer");
    let sges = [pair.a.buffer.sge(0..10)];
    for (wr_id, qkey) in [(1, 0x8000_0077), (2, QKEY)] {
        let to = Some(Destination { ah: &ah, qp, qkey });
        pair.a.qp.post_send(&[SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to }])?;
    }
    // A device that does not replace the Q_Key delivers only the second datagram, so wait for one receive. After the
    // round trips, no datagram is in flight.
    pair.wait(&[(PairCq::ASent, 2), (PairCq::BReceived, 1)])?;
    t.round_trips()?;
    t.wait_and_log(&mut pair, &[])?;
    t.expect(
        "a send 1 SEND
         a send 2 SEND
         b receive 1 RECV 50 bytes GRH
         b receive 2 RECV 50 bytes GRH",
    )
}

/// An address handle of another protection domain is rejected.
pub(crate) fn handle_of_another_domain<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    pair.b.recv(1, 0..100)?;
    let other = MessageDomain::new(&t.bed.a)?;
    let ah: Ah<D> = other.create_ah(&pair.a.path(pair.b.address()))?;
    let sges = [pair.a.buffer.sge(0..10)];
    let to = Some(Destination { ah: &ah, qp: pair.b.qp.number(), qkey: QKEY });
    let request = SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to };
    let posted = pair.a.qp.post_send(&[request]);
    t.log(format!("posted: {}", post_result(posted)));
    t.wait_and_log(&mut pair, if posted.is_ok() { &[(PairCq::ASent, 1)] } else { &[] })?;
    t.expect(
        "posted: ok
         a send 1 LOC_QP_OP_ERR",
    )
}

pub(crate) fn handles<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let pair = t.pair(QpType::Ud)?;
    let right = pair.a.path(pair.b.address());
    let mut paths = vec![("right", right), ("no such port", Path { port: 9, ..right })];
    let mut standard = "right: made\nno such port: refused".to_owned();
    // On InfiniBand, no library and no driver checks the index of the source GID.
    if t.bed.link_layer()? == LinkLayer::Ethernet {
        paths.push(("no such source", Path { source_gid_index: 255, ..right }));
        standard += "\nno such source: refused";
    }
    for (what, path) in paths {
        // Do not log the errno, because it depends on which layer finds the error.
        t.log(format!("{what}: {}", if pair.a.domain.create_ah(&path).is_ok() { "made" } else { "refused" }));
    }
    t.expect(&standard)
}

/// A multicast group of link-local scope that only this test uses.
const GROUP: Gid = Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xda, 0x7a, 0x00, 0x01]);

/// A multicast datagram arrives at the queue pairs that are attached to the group when the datagram is sent.
pub(crate) fn multicast<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Multicast)?;
    // On InfiniBand, the subnet manager creates a group and gives it a LID.
    if t.bed.link_layer()? == LinkLayer::InfiniBand {
        return Err(Stop::Skip("multicast groups without a subnet manager".to_owned(), 0));
    }
    let mut pair = t.pair(QpType::Ud)?;
    // A kernel device receives only groups that its network interface has joined (ipv6(7), IPV6_ADD_MEMBERSHIP).
    if t.bed.kernel && pair.b.gid.0.0[0] != 0xfe {
        return Err(Stop::Skip("multicast on this interface".to_owned(), libc::EAFNOSUPPORT));
    }
    let interfaces: Vec<u32> =
        t.bed.b.gids(1)?.iter().filter(|it| it.gid == pair.b.gid.0).map(|it| it.interface).collect();
    let member = match interfaces.first() {
        None | Some(0) => None,
        Some(interface) => {
            let socket = std::net::UdpSocket::bind("[::]:0")?;
            match socket.join_multicast_v6(&std::net::Ipv6Addr::from(GROUP.0), *interface) {
                Ok(()) => Some(socket),
                Err(why) => {
                    return Err(Stop::Skip("multicast on this interface".to_owned(), why.raw_os_error().unwrap_or(0)));
                }
            }
        }
    };
    pair.b.qp.attach_multicast(GROUP, 0)?;
    pair.b.recv(1, 0..100)?;
    pair.b.recv(2, 100..200)?;
    let (_, peer) = pair.a.destination.clone().expect("a peer");
    pair.a.destination = Some((pair.a.domain.create_ah(&pair.a.path((GROUP, 0)))?, QpNum(0xff_ffff)));
    pair.a.buffer.write(0, b"to many");
    pair.a.send(1, 0..7)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    t.log(String::from_utf8_lossy(&pair.b.buffer.to_vec(40..47)));
    pair.b.qp.detach_multicast(GROUP, 0)?;
    pair.a.send(2, 0..7)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1)])?;
    pair.a.destination = Some((pair.a.domain.create_ah(&pair.a.path(pair.b.address()))?, peer));
    pair.a.send(3, 0..3)?;
    t.wait_and_log(&mut pair, &[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    drop(member);
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 47 bytes GRH
         to many
         a send 2 SEND
         a send 3 SEND
         b receive 2 RECV 43 bytes GRH",
    )
}

pub(crate) fn multicast_rules<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::Multicast)?;
    let mut pair = t.pair(QpType::Ud)?;
    let own = pair.b.gid.0;
    t.log(format!("not a group address: {}", verb_result(pair.b.qp.attach_multicast(own, 0))));
    t.log(format!("not a member of the group: {}", verb_result(pair.b.qp.detach_multicast(GROUP, 0))));
    let mut pair = t.pair(QpType::Rc)?;
    t.log(format!("connected: {}", verb_result(pair.b.qp.attach_multicast(GROUP, 0))));
    t.expect(
        "not a group address: EINVAL
         not a member of the group: EINVAL
         connected: EINVAL",
    )
}
