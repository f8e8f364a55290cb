//! Flow rules, receive offloads and send offloads of raw-packet queue pairs.

use etherparse::PacketBuilder;

use super::*;

/// The receive information that a NIC can report.
const INFO: PollFields = PollFields::STANDARD.union(PollFields::RECV_INFO);

fn plan() -> Plan {
    Plan {
        fields: INFO,
        caps: QpCaps { send_depth: 16, recv_depth: 64, send_sges: 3, recv_sges: 3, inline: 0 },
        ..Plan::default()
    }
}

/// Returns a rig in RTS whose port receives the frames that it sends.
fn rig(refuse: &[Capability], raw: RawSpec) -> Rig {
    let clock = HostClock::manual();
    let device =
        SoftDevice::new(SoftSpec { disabled_capabilities: refuse.to_vec(), clock: clock.clone(), ..reflecting() })
            .unwrap();
    let mut rig = Rig::on(device.with_raw(raw), clock, plan()).ready();
    rig.post_recv_run(&(32..64).collect::<Vec<_>>()).unwrap();
    rig
}

fn udp(source: u8, port: u16, payload: &[u8]) -> Vec<u8> {
    let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, source], [10, 0, 0, 9], 9).udp(port, 53);
    let mut frame = Vec::new();
    packet.write(&mut frame, payload).unwrap();
    frame
}

fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    let mut tagged = frame.to_vec();
    let [high, low] = tci.to_be_bytes();
    tagged.splice(12..12, [0x81, 0, high, low]);
    tagged
}

impl Rig {
    /// Sends a frame with `post_send_run`, and polls the completion.
    fn transmit(&mut self, bytes: &[u8]) {
        let desc = self.put(1, bytes);
        self.post_send_run(&[desc], 1).unwrap();
        assert_eq!(self.sent(), [(1, WcStatus::Success)]);
    }

    /// Receives the frames that have arrived, with their receive information.
    fn arrivals(&mut self) -> Vec<(Vec<u8>, RecvInfo)> {
        let some = self.received();
        assert!(self.run.has_info);
        let info = self.run.info;
        some.iter()
            .zip(info)
            .map(|(&(wr_id, status, length), info)| {
                assert_eq!(status, WcStatus::Success);
                (self.get((wr_id - 1000) as u32, length as usize), info)
            })
            .collect()
    }

    fn tags(&mut self) -> Vec<u32> {
        self.arrivals().iter().map(|(_, info)| info.flow_tag).collect()
    }
}

fn ipv4_source(source: u8) -> FlowTraffic {
    let ip = Ipv4Match { src: MaskedValue::exact([10, 0, 0, source]), ..Ipv4Match::default() };
    FlowTraffic::Headers { outer: HeaderMatch { ip: Some(IpMatch::V4(ip)), ..HeaderMatch::default() }, tunnel: None }
}

#[test]
fn matching_rule_with_the_smallest_priority_decides() {
    let rig = rig(&[], RawSpec::default());
    let counters = [(); 2].map(|()| rig.device.create_flow_counters().unwrap());
    let rules = vec![
        FlowRule {
            priority: 9,
            tag: Some(9),
            count: Some(counters[0].clone()),
            ..FlowRule::new(FlowTraffic::ANY_HEADERS)
        },
        FlowRule { priority: 1, tag: Some(1), ..FlowRule::new(ipv4_source(1)) },
        FlowRule { priority: 2, drop: true, count: Some(counters[1].clone()), ..FlowRule::new(ipv4_source(2)) },
        FlowRule { priority: 3, tag: Some(3), dont_trap: true, ..FlowRule::new(ipv4_source(3)) },
    ];
    let device = rig.device.clone().with_raw(RawSpec { rules, ..RawSpec::default() });
    let clock = rig.clock.clone();
    drop(rig);
    let mut rig = Rig::on(device, clock, plan()).ready();
    rig.post_recv_run(&(32..64).collect::<Vec<_>>()).unwrap();
    for (source, tags) in [(1, vec![1]), (2, vec![]), (3, vec![3, 9]), (4, vec![9])] {
        rig.transmit(&udp(source, 1, b"abc"));
        assert_eq!(rig.tags(), tags, "source {source}");
    }
    let length = udp(1, 1, b"abc").len() as u64;
    assert_eq!(counters[0].read(), Ok(FlowCount { packets: 2, bytes: 2 * length }));
    assert_eq!(counters[1].read(), Ok(FlowCount { packets: 1, bytes: length }));
    assert_eq!(rig.device.counters().rx_unmatched, 1);
}

/// At one priority, rules with `dont_trap` apply before the other rules, whatever their order. Only the first matching
/// rule of each kind applies.
#[test]
fn rule_of_equal_priority_also_applies_after_a_rule_with_dont_trap() {
    let tag = |tag, dont_trap| FlowRule { tag: Some(tag), dont_trap, ..FlowRule::new(ipv4_source(1)) };
    for (rules, tags) in [
        ([tag(1, true), tag(2, false), tag(3, false)], vec![1, 2]),
        ([tag(1, false), tag(2, true), tag(3, true)], vec![2, 1]),
    ] {
        let mut rig = rig(&[], RawSpec { rules: rules.to_vec(), ..RawSpec::default() });
        rig.transmit(&udp(1, 1, b"abc"));
        assert_eq!(rig.tags(), tags);
    }
}

#[test]
fn default_rules_receive_unmatched_frames_and_sniffer_rules_receive_copies() {
    let tag = |traffic, tag| FlowRule { tag: Some(tag), ..FlowRule::new(traffic) };
    let of = |kinds: &[FlowTraffic]| {
        let rules = kinds.iter().map(|kind| FlowRule::new(*kind)).chain([tag(ipv4_source(1), 1)]).collect();
        rig(&[], RawSpec { rules, ..RawSpec::default() })
    };
    let mut multicast = udp(2, 1, b"");
    multicast[0] = 1;
    for (kinds, tags) in [
        (vec![], [vec![1], vec![], vec![]]),
        (vec![FlowTraffic::AllDefault], [vec![1], vec![0], vec![0]]),
        (vec![FlowTraffic::MulticastDefault], [vec![1], vec![], vec![0]]),
        (vec![FlowTraffic::AllDefault, FlowTraffic::MulticastDefault], [vec![1], vec![0], vec![0]]),
        (vec![FlowTraffic::Sniffer], [vec![0, 1], vec![0], vec![0]]),
    ] {
        let mut rig = of(&kinds);
        for (frame, tags) in [udp(1, 1, b""), udp(2, 1, b""), multicast.clone()].iter().zip(tags) {
            rig.transmit(frame);
            assert_eq!(rig.tags(), tags, "{kinds:?}");
        }
    }
}

#[test]
fn counters_of_another_device_are_refused() {
    let (one, other) = (rig(&[], RawSpec::default()), rig(&[], RawSpec::default()));
    let count = Some(other.device.create_flow_counters().unwrap());
    let rules = vec![FlowRule { count, ..FlowRule::new(FlowTraffic::ANY_HEADERS) }];
    let spec = RawSpec { rules, ..RawSpec::default() };
    assert!(one.device.check_raw(&spec, 1).unwrap_err().to_string().contains("another device"));
    assert!(other.device.check_raw(&spec, 1).is_ok());
}

#[test]
fn receive_information_has_the_checksum_result_and_the_rss_hash() {
    let mut rig = rig(&[], RawSpec::default());
    let good = udp(1, 1, b"abc");
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    for (frame, flags) in
        [(&good, RecvFlags::CHECKSUM_OK | RecvFlags::HASH), (&bad, RecvFlags::HASH), (&arp, RecvFlags::empty())]
    {
        rig.transmit(frame);
        let [(bytes, info)] = &rig.arrivals()[..] else { panic!("expected one frame") };
        assert_eq!((bytes, info.flags), (frame, flags));
        let hash = crate::rss::Rss::new(&RssSpec::STANDARD).hash(frame).unwrap_or(0);
        assert_eq!(info.hash, hash);
    }
    assert_ne!(crate::rss::Rss::new(&RssSpec::STANDARD).hash(&good), None);
}

#[test]
fn cursor_poll_returns_the_same_receive_information_as_run_poll() {
    let receive = RawReceive { vlan_strip: true, ..RawReceive::default() };
    let rules = vec![FlowRule { tag: Some(77), ..FlowRule::new(FlowTraffic::ANY_HEADERS) }];
    let mut rig = rig(&[], RawSpec { receive, rules, ..RawSpec::default() });
    let frame = tagged(&udp(1, 1, b"abc"), 0x6007);
    rig.transmit(&frame);
    let in_run = rig.arrivals()[0].1;
    rig.transmit(&frame);
    let cursor = rig.recv.start_poll().unwrap().unwrap();
    let it = cursor.get();
    assert_eq!(it.recv_info(), in_run);
    assert_eq!((it.cvlan(), it.flow_tag(), it.rss_hash()), (Some(0x6007), Some(77), Some(in_run.hash)));
    assert!(it.flags().unwrap().contains(WcFlags::IP_CSUM_OK));
}

#[test]
fn stripped_tag_is_in_the_receive_information() {
    let receive = RawReceive { vlan_strip: true, ..RawReceive::default() };
    let mut rig = rig(&[], RawSpec { receive, ..RawSpec::default() });
    let plain = udp(1, 1, b"abc");
    for (sent, received, vlan) in [
        (tagged(&plain, 0x6007), plain.clone(), 0x6007),
        (tagged(&tagged(&plain, 5), 0x2009), tagged(&plain, 5), 0x2009),
        (plain.clone(), plain.clone(), 0),
    ] {
        rig.transmit(&sent);
        let [(bytes, info)] = &rig.arrivals()[..] else { panic!("expected one frame") };
        assert_eq!((bytes, info.vlan), (&received, vlan));
        assert_eq!(info.flags.contains(RecvFlags::VLAN_STRIPPED), vlan != 0);
    }
}

#[test]
fn delivered_frame_ends_with_its_frame_check_sequence() {
    let receive = RawReceive { scatter_fcs: true, ..RawReceive::default() };
    let mut rig = rig(&[], RawSpec { receive, ..RawSpec::default() });
    let mut frame = vec![0; 14];
    frame.extend(b"123456789");
    rig.transmit(&frame);
    let received = rig.arrivals()[0].0.clone();
    assert_eq!(frame_length(received.len() as u32, true) as usize, frame.len());
    assert_eq!(received[..frame.len()], frame);
    // The residue of a frame with its check sequence is a constant of the polynomial.
    let crc = received.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    });
    assert_eq!(crc, 0xdebb_20e3);
}

#[test]
fn device_computes_the_checksums_of_runs_and_of_requests() {
    let good = udp(1, 1, b"abc");
    let mut broken = good.clone();
    broken[24..26].fill(0);
    broken[40..42].fill(0x11);
    let mut without = good.clone();
    without[40..42].fill(0);
    let mut rig = rig(&[], RawSpec { checksum: true, ..RawSpec::default() });
    rig.transmit(&broken);
    assert_eq!(rig.arrivals()[0].0, good);
    rig.transmit(&without);
    assert_eq!(rig.arrivals()[0].0, without, "a UDP packet without a checksum stays as it is");
    let mut rig = self::rig(&[], RawSpec::default());
    rig.put(1, &broken);
    let sges = [rig.sge(1, broken.len() as u32)];
    rig.post_send(7, &sges, SendFlags::SIGNALED | SendFlags::IP_CSUM).unwrap();
    rig.post_send(8, &sges, SendFlags::SIGNALED).unwrap();
    let frames: Vec<Vec<u8>> = rig.arrivals().into_iter().map(|(frame, _)| frame).collect();
    assert_eq!(frames, [good, broken]);
}

#[test]
fn device_splits_a_tcp_stream_into_segments() {
    let mut header = Vec::new();
    let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 9], 9).tcp(1, 2, 100, 4).fin();
    packet.write(&mut header, &[]).unwrap();
    let payload: Vec<u8> = (0..250).collect();
    let mut rig = rig(&[], RawSpec { max_tso_header: 64, ..RawSpec::default() });
    rig.put(1, &payload);
    let sges = [rig.sge(1, 250)];
    let request = |header, mss| SendRequest {
        wr_id: 5,
        op: SendOp::Tso { header, mss },
        flags: SendFlags::SIGNALED,
        sges: &sges,
        to: None,
    };
    rig.post(request(&header, 100)).unwrap();
    assert_eq!(rig.sent(), [(5, WcStatus::Success)]);
    let frames = rig.arrivals();
    let parts: Vec<&[u8]> = frames.iter().map(|(frame, _)| &frame[header.len()..]).collect();
    assert_eq!(parts, payload.chunks(100).collect::<Vec<_>>());
    assert!(frames.iter().all(|(_, info)| info.flags.contains(RecvFlags::CHECKSUM_OK)));
    assert_eq!(rig.device.counters().tx_packets, 3);
    for (header, mss) in [(&header[..], 0), (&[0; 65][..], 100), (&[][..], 100)] {
        assert_eq!(errno(rig.post(request(header, mss))), (0, libc::EINVAL));
    }
    assert_eq!(errno(self::rig(&[], RawSpec::default()).post(request(&header, 100))), (0, libc::EINVAL));
}

/// A paced send completes when the rate limit admits it. The sends keep their order, and no thread sleeps.
#[test]
fn paced_sends_leave_at_the_rate() {
    // 8 Mbit/s is one byte per microsecond.
    let rate = Some(RateLimit { kbps: 8000, burst: 200, typical_packet_size: 0 });
    let mut rig = rig(&[], RawSpec { rate, ..RawSpec::default() });
    assert!(!rig.qp.sends_complete_immediately());
    let run: Vec<Desc> = (0..5).map(|slot| rig.put(slot, &[slot as u8; 100])).collect();
    rig.post_send_run(&run, 1).unwrap();
    let firsts = |rig: &mut Rig| rig.arrivals().iter().map(|(frame, _)| frame[0]).collect::<Vec<_>>();
    assert!(rig.sent().is_empty(), "only the last send of a run is signalled");
    assert_eq!(firsts(&mut rig), [0, 1]);
    rig.clock.advance(Nanos(99_000));
    assert!(rig.sent().is_empty());
    assert!(firsts(&mut rig).is_empty());
    rig.clock.advance(Nanos(1_000));
    rig.sent();
    assert_eq!(firsts(&mut rig), [2]);
    rig.clock.advance(Nanos(200_000));
    assert_eq!(rig.sent(), [(5, WcStatus::Success)]);
    assert_eq!(firsts(&mut rig), [3, 4]);
    // A state change to ERR flushes the sends that wait.
    rig.post_send_run(&run, 11).unwrap();
    rig.go(QpState::Err);
    assert_eq!(rig.sent().last(), Some(&(15, WcStatus::WrFlushErr)));
}

#[test]
fn error_names_the_config_key_of_a_refused_offload() {
    let receive = |vlan_strip, scatter_fcs| RawReceive { vlan_strip, scatter_fcs, ..RawReceive::default() };
    let rules = vec![FlowRule::new(ipv4_source(1))];
    let rate = Some(RateLimit { kbps: 8, ..RateLimit::default() });
    for (capability, spec, key) in [
        (Capability::FlowRules, RawSpec { rules, ..RawSpec::default() }, "`flow`"),
        (Capability::VlanStrip, RawSpec { receive: receive(true, false), ..RawSpec::default() }, "vlan_strip"),
        (Capability::Fcs, RawSpec { receive: receive(false, true), ..RawSpec::default() }, "fcs"),
        (Capability::TxChecksum, RawSpec { checksum: true, ..RawSpec::default() }, "checksum"),
        (Capability::Tso, RawSpec { max_tso_header: 60, ..RawSpec::default() }, "segmentation"),
        (Capability::Pacing, RawSpec { rate, ..RawSpec::default() }, "pacing"),
    ] {
        let granting = rig(&[], spec.clone());
        assert!(granting.device.check_raw(&spec, 1).is_ok());
        let refusing = SoftDevice::new(SoftSpec { disabled_capabilities: vec![capability], ..reflecting() }).unwrap();
        let why = refusing.check_raw(&spec, 1).unwrap_err().to_string();
        assert!(why.contains(key), "{capability}: {why}");
        let device = refusing.with_raw(spec);
        let (cq, _) = device.create_cq(&CqSpec { depth: 8, ..CqSpec::default() }, None).unwrap();
        let qp = device.alloc_pd().unwrap().create_qp(&QpSpec::new(QpType::RawPacket, plan().caps), &cq, &cq, None);
        assert_eq!(qp.unwrap_err().errno, libc::EOPNOTSUPP, "{capability}");
    }
    let refusing =
        SoftDevice::new(SoftSpec { disabled_capabilities: vec![Capability::FlowRules], ..reflecting() }).unwrap();
    assert_eq!(refusing.create_flow_counters().unwrap_err().errno, libc::EOPNOTSUPP);
}

#[test]
fn refused_receive_information_is_absent() {
    for (capability, field) in [
        (Capability::RxChecksum, PollFields::CHECKSUM),
        (Capability::RssHash, PollFields::RSS_HASH),
        (Capability::FlowTag, PollFields::FLOW_TAG),
        (Capability::Cvlan, PollFields::CVLAN),
    ] {
        let device = SoftDevice::new(SoftSpec { disabled_capabilities: vec![capability], ..reflecting() }).unwrap();
        let spec = CqSpec { depth: 8, fields: INFO, ..CqSpec::default() };
        let (_, granted) = device.create_cq(&spec, None).unwrap();
        assert_eq!((granted.fields, granted.refused), (INFO - field, vec![capability]));
    }
}

/// The receiving port selects the queue of a frame with its own RSS settings. The RSS settings of the sending port have
/// no effect.
#[test]
fn receiving_port_selects_the_queue_with_its_own_rss_settings() {
    let (a, b) = LoopbackLink::pair();
    let clock = HostClock::manual();
    let device = |link, rss| {
        SoftDevice::new(SoftSpec { rss, clock: clock.clone(), ..SoftSpec::new("soft", LinkSpec::Loopback(link)) })
            .unwrap()
    };
    let none = RssFields::NONE;
    let mut sender = Rig::on(device(a, RssSpec { fields: none, ..RssSpec::STANDARD }), clock.clone(), plan()).ready();
    let receiver = device(b, RssSpec::STANDARD);
    let mut queues = [0, 1].map(|index| {
        let mut rig = Rig::on(receiver.clone(), clock.clone(), Plan { queue: (index, 2), ..plan() }).ready();
        rig.post_recv_run(&(32..64).collect::<Vec<_>>()).unwrap();
        rig
    });
    for port in 0..16 {
        sender.transmit(&udp(1, port, b"abc"));
    }
    let rss = crate::rss::Rss::new(&RssSpec::STANDARD);
    for (index, queue) in (0..).zip(&mut queues) {
        let ports: Vec<u16> =
            queue.arrivals().iter().map(|(frame, _)| u16::from_be_bytes([frame[34], frame[35]])).collect();
        let expected: Vec<u16> = (0..16).filter(|port| rss.queue(&udp(1, *port, b"abc"), 2) == index).collect();
        assert_eq!(ports, expected);
        assert!(!ports.is_empty());
    }
}
