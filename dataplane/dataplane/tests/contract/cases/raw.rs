//! Cases for raw-packet queue pairs: flow rules, receive offloads, send offloads and RSS.

use dataplane::verbs::{
    Capability, CqSpec, EthernetMatch, FlowError, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match,
    MaskedValue, PollFields, PortsMatch, QpState, QpType, RateLimit, RawDevice, RawError, RawReceive, RawSpec,
    RecvFlags, RssSpec, SendFlags, SendOp, TransportMatch,
};
use std::time::Instant;

use etherparse::{PacketBuilder, VlanId};

use crate::Trial;
use crate::bed::{
    COMPLETION_TIMEOUT, Connection, Endpoint, EndpointSpec, MEMORY, Outcome, Pair, PairCq, Stop, TestBed, connect,
};

/// The addresses of the sender and the receiver.
pub(super) const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const PORTS: (u16, u16) = (1000, 53);
/// The offset of the UDP checksum in the frame of [`udp`].
const UDP_CHECKSUM: usize = 40;

/// Returns a UDP packet over IPv4.
fn udp(source: u8, port: u16) -> Vec<u8> {
    let packet = PacketBuilder::ethernet2(MACS[0], MACS[1]).ipv4([10, 0, 0, source], [10, 0, 0, 9], 64);
    let mut frame = Vec::new();
    packet.udp(port, PORTS.1).write(&mut frame, &[7; 20]).expect("a frame");
    frame
}

fn tcp(payload: &[u8]) -> Vec<u8> {
    let packet = PacketBuilder::ethernet2(MACS[0], MACS[1]).ipv4([10, 0, 0, 1], [10, 0, 0, 9], 64);
    let mut frame = Vec::new();
    packet.tcp(PORTS.0, PORTS.1, 100, 1000).write(&mut frame, payload).expect("a frame");
    frame
}

fn ipv6() -> Vec<u8> {
    let packet = PacketBuilder::ethernet2(MACS[0], MACS[1]).ipv6([0xfd; 16], [0xfc; 16], 64);
    let mut frame = Vec::new();
    packet.udp(PORTS.0, PORTS.1).write(&mut frame, &[7; 20]).expect("a frame");
    frame
}

fn tagged() -> Vec<u8> {
    let packet = PacketBuilder::ethernet2(MACS[0], MACS[1]).single_vlan(VlanId::try_new(7).expect("an identifier"));
    let mut frame = Vec::new();
    let packet = packet.ipv4([10, 0, 0, 1], [10, 0, 0, 9], 64).udp(PORTS.0, PORTS.1);
    packet.write(&mut frame, &[7; 20]).expect("a frame");
    frame
}

/// Returns the test bed with the raw-packet settings `a` and `b` for its two devices. Skips the case if a device lacks
/// the capability `needs`.
fn bed<D: RawDevice>(t: &Trial<'_, D>, needs: Capability, a: RawSpec, b: RawSpec) -> Outcome<TestBed<D>> {
    t.require(Capability::RawPacket)?;
    t.require(needs)?;
    if t.bed.a.name() == t.bed.b.name() {
        return Err(Stop::Skip("raw packets from a device to itself".to_owned(), libc::EOPNOTSUPP));
    }
    let TestBed { name, profile, kernel, gid_index, .. } = *t.bed;
    let with = |device: &D, raw: RawSpec| device.clone().with_raw(raw);
    Ok(TestBed { name, profile, kernel, a: with(&t.bed.a, a), b: with(&t.bed.b, b), gid_index })
}

/// Returns the parameters of an endpoint whose receive completions have the fields `PollFields::RECV_INFO`.
fn spec() -> EndpointSpec {
    let spec = EndpointSpec::new(QpType::RawPacket);
    let fields = spec.cq.fields | PollFields::RECV_INFO;
    EndpointSpec { cq: CqSpec { fields, ..spec.cq }, ..spec }
}

fn pair<D: RawDevice>(bed: &TestBed<D>) -> Outcome<Pair<D>> {
    let mut pair = Pair::connected(bed, spec(), Connection::default(), Connection::default())?;
    announce(&mut pair.b)?;
    Ok(pair)
}

/// Sends a frame with the address of the receiver as source. A switch then sends the frames to this address to the port
/// of the receiver, even if the table of the switch has another port.
pub(super) fn announce<D: RawDevice>(receiver: &mut Endpoint<D>) -> Outcome {
    send_from(receiver, &MACS[1])
}

/// Sends a frame from `end` to `MACS[0]`, with this source address and an EtherType for experiments.
fn send_from<D: RawDevice>(end: &mut Endpoint<D>, source: &[u8; 6]) -> Outcome {
    let frame = [&MACS[0][..], source, &[0x88, 0xb5], &[0; 46]].concat();
    let part = MEMORY - frame.len()..MEMORY;
    end.buffer.write(part.start, &frame);
    end.send(0, part)?;
    let begin = Instant::now();
    while end.sent.is_empty() && begin.elapsed() < COMPLETION_TIMEOUT {
        end.poll_queues()?;
    }
    end.sent.clear();
    Ok(())
}

/// Sends a frame with the address of the receiver from the sender. A switch then regards the address as an address of
/// the sender.
pub(crate) fn confuse_switch<D: RawDevice>(bed: &TestBed<D>) -> Outcome {
    let mut pair = Pair::connected(bed, spec(), Connection::default(), Connection::default())?;
    send_from(&mut pair.a, &MACS[1])?;
    // The software device takes the frame during a poll.
    pair.b.poll_queues()
}

/// Sends the frames in order. The flow rules of the receiver must accept the last of `frames`. Waits for the last
/// frame, and returns all received frames.
fn received<D: RawDevice>(pair: &mut Pair<D>, frames: &[Vec<u8>]) -> Outcome<Vec<Vec<u8>>> {
    for at in 0..frames.len() {
        pair.b.recv(at as u64, at * 256..(at + 1) * 256)?;
    }
    for (at, frame) in frames.iter().enumerate() {
        pair.a.buffer.write(at * 256, frame);
        pair.a.send(at as u64, at * 256..at * 256 + frame.len())?;
    }
    pair.wait(&[(PairCq::ASent, frames.len()), (PairCq::BReceived, 1)])?;
    arrived(pair, frames)
}

/// Polls until the last of `frames` has arrived, and returns all received frames.
fn arrived<D: RawDevice>(pair: &mut Pair<D>, frames: &[Vec<u8>]) -> Outcome<Vec<Vec<u8>>> {
    for number in 1..=frames.len() {
        if !pair.wait(&[(PairCq::BReceived, number)])? {
            break;
        }
        let got: Vec<Vec<u8>> = pair.b.received.iter().map(|it| bytes(&pair.b, it.wr_id, it.byte_len())).collect();
        if got.last() == frames.last() {
            return Ok(got);
        }
    }
    Ok(pair.b.received.iter().map(|it| bytes(&pair.b, it.wr_id, it.byte_len())).collect())
}

fn bytes<D: RawDevice>(end: &Endpoint<D>, wr_id: u64, length: Option<u32>) -> Vec<u8> {
    let at = wr_id as usize * 256;
    end.buffer.to_vec(at..at + length.unwrap_or(0) as usize)
}

fn outer(outer: HeaderMatch) -> FlowTraffic {
    FlowTraffic::Headers { outer, tunnel: None }
}

/// Sends the frame `other`, which a rule for `traffic` does not match, and the frame `matching`, which the rule
/// matches. Only the frame `matching` is received, with the tag of the rule if the device has tags. Skips the case if
/// the device cannot match the traffic.
fn selects<D: RawDevice>(t: &mut Trial<'_, D>, traffic: FlowTraffic, other: Vec<u8>, matching: Vec<u8>) -> Outcome {
    let has_tag = t.bed.b.capabilities().has.contains(&Capability::FlowTag);
    let rules = vec![FlowRule { tag: has_tag.then_some(0x1234), ..FlowRule::new(traffic) }];
    let raw = RawSpec { rules, ..RawSpec::default() };
    let checked = raw.check(&t.bed.b.raw_caps(), 1);
    if let Err(RawError::Flow(FlowError::UnsupportedField { .. } | FlowError::UnsupportedHeader { .. })) = checked {
        return Err(Stop::Skip("flow rules with the headers that the test case uses".to_owned(), libc::EOPNOTSUPP));
    }
    let bed = bed(t, Capability::FlowRules, RawSpec::default(), raw)?;
    let mut pair = pair(&bed)?;
    let got = received(&mut pair, &[other, matching.clone()])?;
    t.log(format!("only the matching frame: {}", got == [matching]));
    let tag = pair.b.received.first().and_then(|it| it.flow_tag());
    t.log(format!("tag: {}", tag == has_tag.then_some(0x1234)));
    t.expect(
        "only the matching frame: true
         tag: true",
    )
}

pub(crate) fn flow_ethernet<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let wanted = EthernetMatch { src: MaskedValue::exact(MACS[0]), ..EthernetMatch::default() };
    let mut other = udp(1, PORTS.0);
    // Not the address of the receiver: a switch would then send the frames for the receiver to the port of the sender.
    other[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 3]);
    selects(t, outer(HeaderMatch { ethernet: Some(wanted), ..HeaderMatch::default() }), other, udp(1, PORTS.0))
}

pub(crate) fn flow_ipv4<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let wanted = IpMatch::V4(Ipv4Match { src: MaskedValue::exact([10, 0, 0, 1]), ..Ipv4Match::default() });
    selects(t, outer(HeaderMatch { ip: Some(wanted), ..HeaderMatch::default() }), udp(2, PORTS.0), udp(1, PORTS.0))
}

pub(crate) fn flow_ipv6<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let wanted = IpMatch::V6(Ipv6Match { dst: MaskedValue::exact([0xfc; 16]), ..Ipv6Match::default() });
    selects(t, outer(HeaderMatch { ip: Some(wanted), ..HeaderMatch::default() }), udp(1, PORTS.0), ipv6())
}

/// Returns the traffic over IPv4 whose transport header (`kind`) has the source port 1000.
fn transport(kind: fn(PortsMatch) -> TransportMatch) -> FlowTraffic {
    let wanted = kind(PortsMatch { src: MaskedValue::from(PORTS.0), ..PortsMatch::default() });
    let ip = Some(IpMatch::V4(Ipv4Match::default()));
    outer(HeaderMatch { ip, transport: Some(wanted), ..HeaderMatch::default() })
}

pub(crate) fn flow_udp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    selects(t, transport(TransportMatch::Udp), tcp(&[7; 20]), udp(1, PORTS.0))
}

pub(crate) fn flow_tcp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    selects(t, transport(TransportMatch::Tcp), udp(1, PORTS.0), tcp(&[7; 20]))
}

/// A rule with the action `drop` drops and counts its frames. A rule with a larger priority number does not deliver
/// these frames.
pub(crate) fn flow_drop_and_count<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::RawPacket)?;
    t.require(Capability::FlowRules)?;
    let counters = match t.bed.b.create_flow_counters() {
        Err(error) if error.errno == libc::EOPNOTSUPP => {
            return Err(Stop::Skip("flow counters".to_owned(), libc::EOPNOTSUPP));
        }
        counters => counters?,
    };
    let ip = IpMatch::V4(Ipv4Match { src: MaskedValue::exact([10, 0, 0, 2]), ..Ipv4Match::default() });
    let traffic = outer(HeaderMatch { ip: Some(ip), ..HeaderMatch::default() });
    let drops = FlowRule { drop: true, count: Some(counters.clone()), ..FlowRule::new(traffic) };
    let all = FlowRule { priority: 1, ..FlowRule::new(FlowTraffic::ANY_HEADERS) };
    let rules = RawSpec { rules: vec![drops, all], ..RawSpec::default() };
    let bed = bed(t, Capability::FlowRules, RawSpec::default(), rules)?;
    let got = received(&mut pair(&bed)?, &[udp(2, 1), udp(1, 1), udp(2, 2), udp(3, 1)])?;
    t.log(format!("others are received: {}", got == [udp(1, 1), udp(3, 1)]));
    t.log(format!("dropped: {}", counters.read()?.packets));
    t.expect(
        "others are received: true
         dropped: 2",
    )
}

/// A completion reports whether the checksums of the received packet are correct.
pub(crate) fn receive_checksum<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let bed = bed(t, Capability::RxChecksum, RawSpec::default(), RawSpec::default())?;
    let mut pair = pair(&bed)?;
    let mut wrong = udp(1, 1);
    wrong[UDP_CHECKSUM] ^= 1;
    received(&mut pair, &[wrong, udp(1, 1)])?;
    for it in &pair.b.received {
        t.log(format!("correct: {}", it.recv_info().flags.contains(RecvFlags::CHECKSUM_OK)));
    }
    t.expect(
        "correct: false
         correct: true",
    )
}

/// The device removes the outer VLAN tag from the frame, and the completion returns the tag.
pub(crate) fn vlan_strip<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    t.require(Capability::RawPacket)?;
    t.require(Capability::Cvlan)?;
    let receive = RawReceive { vlan_strip: true, ..RawReceive::default() };
    let bed = bed(t, Capability::VlanStrip, RawSpec::default(), RawSpec { receive, ..RawSpec::default() })?;
    let mut pair = pair(&bed)?;
    pair.b.recv(0, 0..256)?;
    pair.a.buffer.write(0, &tagged());
    pair.a.send(0, 0..tagged().len())?;
    pair.wait(&[(PairCq::BReceived, 1)])?;
    for it in &pair.b.received {
        t.log(format!("without the tag: {}", bytes(&pair.b, it.wr_id, it.byte_len()) == udp(1, PORTS.0)));
        t.log(format!("tag: {:?}", it.cvlan()));
    }
    t.expect(
        "without the tag: true
         tag: Some(7)",
    )
}

/// The device computes the checksums of a send that requests them.
pub(crate) fn send_checksum<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let bed = bed(t, Capability::TxChecksum, RawSpec::default(), RawSpec::default())?;
    let mut pair = pair(&bed)?;
    let mut wrong = udp(1, 1);
    wrong[UDP_CHECKSUM..UDP_CHECKSUM + 2].fill(0x11);
    wrong[24..26].fill(0);
    pair.b.recv(0, 0..256)?;
    pair.a.buffer.write(0, &wrong);
    let sges = [pair.a.buffer.sge(0..wrong.len())];
    pair.a.post_flags(1, SendOp::Send, SendFlags::SIGNALED | SendFlags::IP_CSUM, &sges)?;
    pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 1)])?;
    for it in &pair.b.received {
        t.log(format!("correct: {}", bytes(&pair.b, it.wr_id, it.byte_len()) == udp(1, 1)));
    }
    t.expect("correct: true")
}

/// The device splits one send into TCP segments.
pub(crate) fn segmentation<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let bed = bed(t, Capability::Tso, RawSpec { max_tso_header: 64, ..RawSpec::default() }, RawSpec::default())?;
    let mut pair = pair(&bed)?;
    for at in 0..3 {
        pair.b.recv(at, at as usize * 256..(at as usize + 1) * 256)?;
    }
    let (header, payload) = (tcp(&[]), (0..250).collect::<Vec<u8>>());
    pair.a.buffer.write(0, &payload);
    let sges = [pair.a.buffer.sge(0..payload.len())];
    pair.a.post(1, SendOp::Tso { header: &header, mss: 100 }, &sges)?;
    pair.wait(&[(PairCq::ASent, 1), (PairCq::BReceived, 3)])?;
    let parts: Vec<Vec<u8>> =
        pair.b.received.iter().map(|it| bytes(&pair.b, it.wr_id, it.byte_len()).split_off(header.len())).collect();
    let lengths: Vec<usize> = parts.iter().map(Vec::len).collect();
    t.log(format!("segments: {lengths:?}, in order: {}", parts.concat() == payload));
    t.expect("segments: [100, 100, 50], in order: true")
}

/// A send queue with a rate limit sends its frames.
pub(crate) fn rate_limit<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    let rate = Some(RateLimit { kbps: 1_000_000, ..RateLimit::default() });
    let bed = bed(t, Capability::Pacing, RawSpec { rate, ..RawSpec::default() }, RawSpec::default())?;
    let got = received(&mut pair(&bed)?, &[udp(1, 1), udp(1, 2)])?;
    t.log(format!("received: {}", got == [udp(1, 1), udp(1, 2)]));
    t.expect("received: true")
}

/// Each frame reaches one of two queues, and all frames of a flow reach the same queue.
fn rss<D: RawDevice>(t: &mut Trial<'_, D>, frame: impl Fn(u16) -> Vec<u8>) -> Outcome {
    let raw = RawSpec { rss: RssSpec::STANDARD, ..RawSpec::default() };
    let bed = bed(t, Capability::Rss, RawSpec::default(), raw)?;
    let mut sender = Endpoint::new(&bed, false, spec(), None)?;
    let queue = |index| Endpoint::new(&bed, true, EndpointSpec { queue: (index, 2), ..spec() }, None);
    let mut queues = [queue(0)?, queue(1)?];
    for queue in &mut queues {
        connect(queue, &sender, Connection::default(), QpState::Rts)?;
        for at in 0..15 {
            queue.recv(at, at as usize * 256..(at as usize + 1) * 256)?;
        }
    }
    connect(&mut sender, &queues[0], Connection::default(), QpState::Rts)?;
    announce(&mut queues[0])?;
    // Seven flows, with two frames each.
    for number in 0..14_u16 {
        let frame = frame(number % 7);
        sender.buffer.write(0, &frame);
        sender.send(number.into(), 0..frame.len())?;
        let begin = Instant::now();
        let all = |queues: &[Endpoint<D>; 2]| queues.iter().map(|queue| queue.received.len()).sum::<usize>();
        while all(&queues) <= usize::from(number) && begin.elapsed() < COMPLETION_TIMEOUT {
            sender.poll_queues()?;
            queues.iter_mut().try_for_each(Endpoint::poll_queues)?;
        }
    }
    let frames = |queue: &Endpoint<D>| -> Vec<Vec<u8>> {
        queue.received.iter().map(|it| bytes(queue, it.wr_id, it.byte_len())).collect()
    };
    let flows = [frames(&queues[0]), frames(&queues[1])];
    let twice = |flows: &Vec<Vec<u8>>| flows.iter().all(|it| flows.iter().filter(|other| *other == it).count() == 2);
    t.log(format!("frames: {}", flows[0].len() + flows[1].len()));
    t.log(format!("flows stay together: {}", flows.iter().all(twice)));
    t.log(format!("both queues are used: {}", flows.iter().all(|flows| !flows.is_empty())));
    t.expect(
        "frames: 14
         flows stay together: true
         both queues are used: true",
    )
}

pub(crate) fn rss_udp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    rss(t, |flow| udp(1, 1000 + flow))
}

pub(crate) fn rss_tcp<D: RawDevice>(t: &mut Trial<'_, D>) -> Outcome {
    rss(t, |flow| {
        let mut frame = tcp(&[7; 20]);
        frame[34..36].copy_from_slice(&(1000 + flow).to_be_bytes());
        frame
    })
}
