//! Datagrams: their header, who they are from, and groups of multicast.

use dataplane::lane::message::{Ah, MessageDomain};
use dataplane::provider::{Capability, Destination, Device, Path, QpType, SendFlags, SendOp, SendRequest};
use dataplane::units::{Gid, QpNum};

use crate::Trial;
use crate::bed::{Of, Outcome, QKEY, Stop, told, told_post};

/// The first 40 bytes: an IPv6 header, or 20 bytes of anything and an IPv4 header.
pub(crate) fn header<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    pair.b.recv(1, 0..100)?;
    pair.a.buffer.write(0, b"payload");
    pair.a.send(1, 0..7)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    let bytes = pair.b.buffer.to_vec(0..48);
    let (from, to) = (pair.a.gid.0.0, pair.b.gid.0.0);
    let is_v4 = from[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let right = match is_v4 {
        true => bytes[20] == 0x45 && bytes[29] == 17 && bytes[32..36] == from[12..] && bytes[36..40] == to[12..],
        false => bytes[0] >> 4 == 6 && bytes[6] == 17 && bytes[8..24] == from && bytes[24..40] == to,
    };
    t.say(format!("addresses: {right}"));
    // UDP, the base and the datagram header, the payload and its padding, the check.
    let length = usize::from(u16::from_be_bytes(if is_v4 { [bytes[22], bytes[23]] } else { [bytes[4], bytes[5]] }));
    t.say(format!("length: {}", length == 8 + 12 + 8 + 8 + 4 + if is_v4 { 20 } else { 0 }));
    t.say(String::from_utf8_lossy(&bytes[40..47]));
    t.expect(
        "a send 1 SEND
         b receive 1 RECV 47 bytes GRH
         addresses: true
         length: true
         payload",
    )
}

/// With the top bit set the sender's own key is sent.
pub(crate) fn own_qkey<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    pair.b.recv(1, 0..100)?;
    pair.b.recv(2, 0..100)?;
    let (ah, qp) = pair.a.to.clone().expect("a peer");
    let sges = [pair.a.buffer.sge(0..10)];
    for (wr_id, qkey) in [(1, 0x8000_0077), (2, QKEY)] {
        let to = Some(Destination { ah: &ah, qp, qkey });
        pair.a.qp.post_send(&[SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to }])?;
    }
    // At least the second.
    pair.wait(&[(Of::ASent, 2), (Of::BReceived, 1)])?;
    t.round_trips()?;
    t.see(&mut pair, &[])?;
    t.expect(
        "a send 1 SEND
         a send 2 SEND
         b receive 1 RECV 50 bytes GRH
         b receive 2 RECV 50 bytes GRH",
    )
}

/// An address handle of another protection domain.
pub(crate) fn handle_of_another_domain<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let mut pair = t.pair(QpType::Ud)?;
    pair.b.recv(1, 0..100)?;
    let other = MessageDomain::new(&t.bed.a)?;
    let ah: Ah<D> = other.create_ah(&pair.a.path(pair.b.gid.0))?;
    let sges = [pair.a.buffer.sge(0..10)];
    let to = Some(Destination { ah: &ah, qp: pair.b.qp.number(), qkey: QKEY });
    let request = SendRequest { wr_id: 1, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to };
    let posted = pair.a.qp.post_send(&[request]);
    t.say(format!("posted: {}", told_post(posted)));
    t.see(&mut pair, if posted.is_ok() { &[(Of::ASent, 1)] } else { &[] })?;
    t.expect(
        "posted: ok
         a send 1 LOC_QP_OP_ERR",
    )
}

pub(crate) fn handles<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    let pair = t.pair(QpType::Ud)?;
    let right = pair.a.path(pair.b.gid.0);
    for (what, path) in [
        ("right", right),
        ("no such port", Path { port: 9, ..right }),
        ("no such source", Path { source_gid_index: 255, ..right }),
    ] {
        // Which errno depends on where it is found out.
        t.say(format!("{what}: {}", if pair.a.domain.create_ah(&path).is_ok() { "made" } else { "refused" }));
    }
    t.expect(
        "right: made
         no such port: refused
         no such source: refused",
    )
}

/// A group of link-local scope that nobody else uses.
const GROUP: Gid = Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xda, 0x7a, 0x00, 0x01]);

/// What is sent to a group arrives at those that are in it, while they are.
pub(crate) fn multicast<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    t.need(Capability::Multicast)?;
    let mut pair = t.pair(QpType::Ud)?;
    // A device of the kernel's gets only what its network interface has asked for (ipv6(7), IPV6_ADD_MEMBERSHIP).
    if t.bed.kernel && pair.b.gid.0.0[0] != 0xfe {
        return Err(Stop::Skip("multicast on this interface".to_owned(), libc::EAFNOSUPPORT));
    }
    let interfaces: Vec<u32> = t.bed.b.gids(1)?.iter().filter(|it| it.gid == pair.b.gid.0).map(|it| it.interface).collect();
    let member = match interfaces.first() {
        None | Some(0) => None,
        Some(interface) => {
            let socket = std::net::UdpSocket::bind("[::]:0")?;
            match socket.join_multicast_v6(&std::net::Ipv6Addr::from(GROUP.0), *interface) {
                Ok(()) => Some(socket),
                Err(why) => return Err(Stop::Skip("multicast on this interface".to_owned(), why.raw_os_error().unwrap_or(0))),
            }
        }
    };
    pair.b.qp.attach_multicast(GROUP, 0)?;
    pair.b.recv(1, 0..100)?;
    pair.b.recv(2, 100..200)?;
    let (_, peer) = pair.a.to.clone().expect("a peer");
    pair.a.to = Some((pair.a.domain.create_ah(&pair.a.path(GROUP))?, QpNum(0xff_ffff)));
    pair.a.buffer.write(0, b"to many");
    pair.a.send(1, 0..7)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
    t.say(String::from_utf8_lossy(&pair.b.buffer.to_vec(40..47)));
    pair.b.qp.detach_multicast(GROUP, 0)?;
    pair.a.send(2, 0..7)?;
    t.see(&mut pair, &[(Of::ASent, 1)])?;
    pair.a.to = Some((pair.a.domain.create_ah(&pair.a.path(pair.b.gid.0))?, peer));
    pair.a.send(3, 0..3)?;
    t.see(&mut pair, &[(Of::ASent, 1), (Of::BReceived, 1)])?;
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

pub(crate) fn multicast_rules<D: Device>(t: &mut Trial<'_, D>) -> Outcome {
    t.need(Capability::Multicast)?;
    let mut pair = t.pair(QpType::Ud)?;
    let own = pair.b.gid.0;
    t.say(format!("no group: {}", told(pair.b.qp.attach_multicast(own, 0))));
    t.say(format!("not in it: {}", told(pair.b.qp.detach_multicast(GROUP, 0))));
    let mut pair = t.pair(QpType::Rc)?;
    t.say(format!("connected: {}", told(pair.b.qp.attach_multicast(GROUP, 0))));
    t.expect(
        "no group: EINVAL
         not in it: EINVAL
         connected: EINVAL",
    )
}
