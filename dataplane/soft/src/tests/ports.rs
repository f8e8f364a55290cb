//! Tests of port attributes that have an effect on packets: partitions, service levels and local identifiers.

use super::ends::*;
use super::*;

use WcStatus::{RetryExcErr, Success};

/// Returns two ends in RESET whose ports have these attributes.
fn ends(kind: QpType, ports: [PortSpec; 2]) -> (End, End) {
    let (a, b) = LoopbackLink::pair();
    let (clock, [port_a, port_b]) = (HostClock::manual(), ports);
    let with = Ends::of(Profile::Spec, kind);
    let end = |name: &str, link, last, port| {
        let mac = [2, 0, 0, 0, 0, last];
        let spec = SoftSpec { clock: clock.clone(), mac, port, ..SoftSpec::new(name, LinkSpec::Loopback(link)) };
        with.on(&SoftDevice::new(spec).unwrap(), &clock)
    };
    (end("a", a, 1, port_a), end("b", b, 2, port_b))
}

/// Sends one message, and returns the statuses at the sender and at the receiver.
fn send_one(a: &mut End, b: &mut End) -> (Vec<WcStatus>, Vec<WcStatus>) {
    let (into, from) = ([b.sge(0, 100)], [a.sge(0, 20)]);
    b.post_recv(1, &into).unwrap();
    match a.qp.kind() {
        QpType::Ud => a.post_to(1, SendOp::Send, &from, b.address(), QKEY).unwrap(),
        _ => a.post(1, SendOp::Send, &from).unwrap(),
    }
    for _ in 0..4 {
        a.clock.advance(Nanos(4_096 << 14));
        a.device.poll_async_event();
    }
    (statuses(&a.sent()), statuses(&b.received()))
}

#[test]
fn only_members_of_a_partition_communicate() {
    let (full, limited, other) = (0x8123, 0x0123, 0x8124);
    for (keys, may) in
        [([full, full], true), ([full, limited], true), ([limited, limited], false), ([full, other], false)]
    {
        for kind in [QpType::Rc, QpType::Ud] {
            let port = |key| PortSpec { pkeys: vec![0xffff, 0, key], ..PortSpec::default() };
            let (mut a, mut b) = ends(kind, keys.map(port));
            assert_eq!((a.device.port(1).unwrap().pkeys, a.device.pkey(1, 2)), (3, Ok(keys[0])));
            for end in [&mut a, &mut b] {
                let (mut attributes, mask) = QpAttributes::init(kind, 1, QKEY);
                for (index, allowed) in [(3, false), (1, false), (2, true)] {
                    attributes.pkey_index = index;
                    assert_eq!(end.qp.modify(&attributes, mask).is_ok(), allowed, "index {index}");
                }
            }
            let (to_a, to_b) = (a.address(), b.address());
            a.rtr(to_b);
            b.rtr(to_a);
            a.rts();
            b.rts();
            let expected = match (may, kind) {
                (true, _) => (vec![Success], vec![Success]),
                (false, QpType::Ud) => (vec![Success], vec![]),
                (false, _) => (vec![RetryExcErr], vec![]),
            };
            assert_eq!(send_one(&mut a, &mut b), expected, "{kind} {keys:x?}");
            assert_eq!(b.device.counters().pkey_violations > 0, !may);
        }
    }
}

#[test]
fn service_levels_have_four_bits() {
    let (mut a, b) = Ends::of(Profile::Spec, QpType::Ud).connected();
    let path = |service_level| Path { gid: b.device.gid(), service_level, ..Path::default() };
    assert!(a.pd.create_ah(&path(15)).is_ok());
    assert_eq!(a.pd.create_ah(&path(16)).map(|_| ()).unwrap_err().errno, libc::EINVAL);
    a = Ends::default().unconnected().0;
    a.init();
    let mask = AttributeMask::AV
        | AttributeMask::PATH_MTU
        | AttributeMask::DEST_QPN
        | AttributeMask::RQ_PSN
        | AttributeMask::MAX_DEST_RD_ATOMIC
        | AttributeMask::MIN_RNR_TIMER
        | AttributeMask::STATE;
    let to = |service_level| QpAttributes { state: QpState::Rtr, path: path(service_level), ..a.attributes };
    let (wrong, right) = (to(16), to(15));
    assert_eq!(a.qp.modify(&wrong, mask).unwrap_err().errno, libc::EINVAL);
    assert!(a.qp.modify(&right, mask).is_ok());
}

#[test]
fn infiniband_ports_have_local_identifiers() {
    let ports = [0x40, 0x80].map(|lid| PortSpec { lid, lmc: 3, ..PortSpec::default() });
    for global in [false, true] {
        for kind in [QpType::Rc, QpType::Uc, QpType::Ud] {
            let (mut a, mut b) = ends(kind, ports.clone());
            let port = b.device.port(1).unwrap();
            assert_eq!((port.link_layer, port.lid, port.lmc), (LinkLayer::InfiniBand, 0x80, 3));
            assert_eq!(b.device.gids(1).unwrap()[0].kind, GidKind::InfiniBand);
            let path = |dlid, source_path_bits| Path { global, dlid, source_path_bits, ..Path::default() };
            (a.attributes.path, b.attributes.path) = (path(0x85, 2), path(0x42, 5));
            connect(&mut a, &mut b);
            let (into, from) = ([b.sge(0, 100)], [a.sge(0, 20)]);
            a.put(0, &frame(7, 20));
            b.post_recv(1, &into).unwrap();
            match kind {
                QpType::Ud => a.post_to(1, SendOp::Send, &from, b.address(), QKEY).unwrap(),
                _ => a.post(1, SendOp::Send, &from).unwrap(),
            }
            let received = End::completions(&mut b.recv);
            assert_eq!((received.len(), statuses(&a.sent())), (1, vec![Success]), "{kind} {global}");
            let ud = kind == QpType::Ud;
            assert_eq!(b.get(if ud { 40 } else { 0 }, 20), frame(7, 20));
            let grh = received[0].flags().unwrap().contains(WcFlags::GRH);
            let lids = (received[0].slid(), received[0].dlid_path_bits(), grh);
            assert_eq!(lids, if ud { (Some(0x42), Some(5), global) } else { (None, None, false) }, "{kind} {global}");
        }
    }
}

#[test]
fn unspecified_link_layer_has_no_grh_flag_and_no_local_identifier() {
    let (a, b) = LoopbackLink::pair();
    let (clock, with) = (HostClock::manual(), Ends::of(Profile::Spec, QpType::Ud));
    let end = |name: &str, link, last| {
        let (mac, quirks) = ([2, 0, 0, 0, 0, last], vec![SoftQuirk::UnspecifiedLinkLayer]);
        let spec = SoftSpec { clock: clock.clone(), mac, quirks, ..SoftSpec::new(name, LinkSpec::Loopback(link)) };
        with.on(&SoftDevice::new(spec).unwrap(), &clock)
    };
    let (mut a, mut b) = (end("a", a, 1), end("b", b, 2));
    let port = b.device.port(1).unwrap();
    assert_eq!((port.link_layer, port.lid), (LinkLayer::Unspecified, 0));
    assert_eq!(b.device.gids(1).unwrap()[0].kind, GidKind::InfiniBand);
    assert!(!b.device.capabilities().has.contains(&Capability::RawPacket));
    connect(&mut a, &mut b);
    let (into, from) = ([b.sge(0, 100)], [a.sge(0, 20)]);
    a.put(0, &frame(7, 20));
    b.post_recv(1, &into).unwrap();
    a.post_to(1, SendOp::Send, &from, b.address(), QKEY).unwrap();
    let received = End::completions(&mut b.recv);
    assert_eq!((received.len(), received[0].flags()), (1, Some(WcFlags::empty())));
    assert_eq!((received[0].byte_len(), b.get(40, 20)), (Some(60), frame(7, 20)));
    assert_ne!(received[0].slid(), Some(0));
    // The bytes before the datagram are not an IP header.
    assert!(![4, 6].contains(&(b.get(0, 1)[0] >> 4)));
}

#[test]
fn packets_to_another_local_identifier_are_lost() {
    let ports = [0x40, 0x80].map(|lid| PortSpec { lid, ..PortSpec::default() });
    let (mut a, mut b) = ends(QpType::Rc, ports);
    a.attributes.path = Path { global: false, dlid: 0x81, ..Path::default() };
    b.attributes.path = Path { global: false, dlid: 0x40, ..Path::default() };
    connect(&mut a, &mut b);
    assert_eq!(send_one(&mut a, &mut b), (vec![RetryExcErr], vec![]));
}

/// Sends a message from `a`, whose path has no GRH, to `b`. The path of `b` has a GRH if `global` is `true`.
#[test]
fn packets_without_the_grh_of_the_connection_are_lost() {
    for global in [false, true] {
        let ports = [0x40, 0x80].map(|lid| PortSpec { lid, ..PortSpec::default() });
        let (mut a, mut b) = ends(QpType::Rc, ports);
        a.attributes.path = Path { global: false, dlid: 0x80, ..Path::default() };
        b.attributes.path = Path { global, dlid: 0x40, ..Path::default() };
        connect(&mut a, &mut b);
        let expected = if global { (vec![RetryExcErr], vec![]) } else { (vec![Success], vec![Success]) };
        assert_eq!(send_one(&mut a, &mut b), expected, "{global}");
    }
}

#[test]
fn port_that_requires_a_grh_refuses_paths_without_a_grh() {
    let port = PortSpec { lid: 0x40, grh_required: true, ..PortSpec::default() };
    let (a, b) = ends(QpType::Ud, [port.clone(), port]);
    assert!(a.device.port(1).unwrap().grh_required);
    let path = Path { gid: b.device.gid(), dlid: 0x40, ..Path::default() };
    assert!(a.pd.create_ah(&path).is_ok());
    let refused = a.pd.create_ah(&Path { global: false, ..path });
    assert_eq!(refused.map(|_| ()).unwrap_err().errno, libc::EINVAL);
}

#[test]
fn multicast_datagrams_have_no_destination_path_bits() {
    let ports = [0x40, 0x80].map(|lid| PortSpec { lid, lmc: 1, ..PortSpec::default() });
    let (mut a, mut b) = ends(QpType::Ud, ports);
    (a.attributes.path.dlid, b.attributes.path.dlid) = (0xc001, 0x40);
    connect(&mut a, &mut b);
    let group: Gid = "ff0e::1".parse().unwrap();
    b.qp.attach_multicast(group, 0xc001).unwrap();
    let (into, from) = ([b.sge(0, 100)], [a.sge(0, 20)]);
    b.post_recv(1, &into).unwrap();
    a.post_to(1, SendOp::Send, &from, (group, QpNum(0xff_ffff)), QKEY).unwrap();
    let received = End::completions(&mut b.recv);
    assert_eq!((received[0].slid(), received[0].dlid_path_bits()), (Some(0x40), None));
}

#[test]
fn infiniband_port_has_no_raw_packets_and_at_most_seven_path_bits() {
    let port = PortSpec { lid: 1, ..PortSpec::default() };
    let device = SoftDevice::new(SoftSpec { port: port.clone(), ..reflecting() }).unwrap();
    assert!(!device.capabilities().has.contains(&Capability::RawPacket));
    let wrong = PortSpec { lmc: 8, ..port };
    assert!(SoftDevice::new(SoftSpec { port: wrong, ..reflecting() }).is_err());
}
