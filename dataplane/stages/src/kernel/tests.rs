//! Tests of the mirror, which copies routes and neighbours from the kernel to the forwarding tables. Most tests use the
//! real kernel, in network namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    MplsLabel, RouteAddress, RouteAttribute, RouteLwEnCapType, RouteMessage, RouteNextHop, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::*;
use crate::forwarding::{ForwardingReader, Path, ResolutionState, RouteKind};
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::{HoldTime, NextHop, Owner, RunStop, TaskSpec, Tasks};
use dataplane_testing::namespace::{in_namespace, ip, try_ip};
use dataplane_testing::{StopOnDrop, report_skip};

/// Time limit of every wait. The limit is long because the tests do not measure durations.
const PATIENCE: Duration = Duration::from_secs(240);

fn set(path: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
}

/// Runs a mirror until the returned value is dropped.
fn start(mirror: KernelMirror) -> Result<Tasks> {
    let owner = Owner::Stage("mirror".to_owned());
    Tasks::start(vec![TaskSpec { name: "mirror".to_owned(), task: Box::new(mirror), owner }], &RunStop::default())
}

/// Runs a mirror that reads the complete state only at its start, and when a message requires it.
fn start_without_periodic_resync(tables: &Arc<Forwarding>, writer: Box<ForwardingWriter>, ports: &[PortInfo]) -> Tasks {
    start(KernelMirror { resync_interval: Duration::MAX, ..KernelMirror::new(tables.clone(), writer, ports) }).unwrap()
}

/// Creates two ports on the interfaces `a0` and `b0`, which are in one namespace with their veth peers `a1` and `b1`.
fn two_ports() -> (Arc<Forwarding>, Box<ForwardingWriter>, Vec<PortInfo>) {
    ip("link add a0 type veth peer name a1
        link add b0 type veth peer name b1
        link set a1 up
        link set b1 up
        link set a0 up
        link set b0 up
        addr add 10.1.0.1/24 dev a0
        addr add 10.2.0.1/24 dev b0
        addr add 2001:db8:1::1/64 dev a0 nodad
        addr add 2001:db8:2::1/64 dev b0 nodad\n");
    let port = |name: &str, interface: &str| PortInfo {
        name: name.to_owned(),
        mac: [2, 0, 0, 0, 0, 99],
        mtu: 9000,
        interface: Some(interface.to_owned()),
        addresses: Vec::new(),
    };
    let (tables, writer) = ForwardingWriter::with_tables(vec!["a".to_owned(), "b".to_owned()], HoldTime::default());
    (tables, writer, vec![port("a", "a0"), port("b", "b0")])
}

fn find(reader: &ForwardingReader, ingress: u8, destination: &str) -> Option<Path> {
    let (v4, v6) = reader.routes(ingress)?;
    let group = match destination.parse().unwrap() {
        IpAddr::V4(address) => v4.lookup(address.into()),
        IpAddr::V6(address) => v6.lookup(address.into()),
    };
    reader.path(group?, 0)
}

/// Returns a short text for the route of a destination: the egress port and the gateway, or the kind of route.
fn outcome(reader: &ForwardingReader, ingress: u8, destination: &str) -> String {
    match find(reader, ingress, destination) {
        None => "none".to_owned(),
        Some(Path { kind: RouteKind::Forward, egress, next_hop }) => {
            let hop = next_hop.checked_sub(1).and_then(|place| reader.shared().next_hop_at(place as usize));
            match hop {
                Some(hop) => format!("{egress} {}", hop.address),
                None => format!("{egress}"),
            }
        }
        Some(path) => format!("{:?}", path.kind),
    }
}

fn expect(reader: &ForwardingReader, ingress: u8, destination: &str, expected: &str) {
    until(&format!("{destination} is {expected}"), || {
        (outcome(reader, ingress, destination) == expected, || outcome(reader, ingress, destination))
    });
}

/// Waits until a condition holds. Panics with the actual state if [`PATIENCE`] is exceeded.
fn until<W: FnOnce() -> String>(what: &str, mut look: impl FnMut() -> (bool, W)) {
    let end = Instant::now() + PATIENCE;
    loop {
        let (holds, actual) = look();
        if holds {
            return;
        }
        assert!(Instant::now() < end, "{what}: {}", actual());
        thread::yield_now();
    }
}

#[test]
fn routes_of_every_kind_are_mirrored() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        ip("route add 20.0.0.0/8 via 10.1.0.9\n");
        let reader = tables.register_reader();
        let _mirror = start(KernelMirror::new(tables.clone(), writer, &ports)).unwrap();
        // Routes that existed before the mirror started are present when `start` returns.
        assert_eq!(outcome(&reader, 0, "20.1.1.1"), "0 10.1.0.9");
        assert_eq!(outcome(&reader, 0, "10.2.0.77"), "1");
        assert_eq!(outcome(&reader, 0, "10.2.0.1"), "Local");
        assert_eq!(outcome(&reader, 0, "10.2.0.255"), "Local");
        assert_eq!(outcome(&reader, 0, "127.1.2.3"), "Local");
        assert_eq!(outcome(&reader, 0, "224.0.0.5"), "Local");
        assert_eq!(outcome(&reader, 0, "2001:db8:2::1"), "Local");
        assert_eq!(outcome(&reader, 0, "2001:db8:2::2"), "1");
        assert_eq!(outcome(&reader, 0, "8.8.8.8"), "none");
        assert_eq!(reader.address(0, false), Some([10, 1, 0, 1].into()));
        assert_eq!(reader.address(1, true), Some("2001:db8:2::1".parse().unwrap()));
        assert_eq!(reader.mtu(0), Some(1500));
        ip("route add blackhole 30.0.0.0/8
            route add unreachable 31.0.0.0/8
            route add prohibit 32.0.0.0/8
            route add throw 33.0.0.0/8
            route add 20.5.0.0/16 via 10.2.0.9 metric 50
            route add 20.6.0.0/16 dev b0
            route add 21.0.0.0/8 via 10.1.0.9 metric 100
            route add 21.0.0.0/8 via 10.2.0.9 metric 50
            route add 2001:db8:9::/48 via 2001:db8:1::9
            route add blackhole 2001:db8:a::/48
            route add 22.0.0.0/8 via inet6 2001:db8:2::9 dev b0
            nexthop add id 7 via 10.1.0.17 dev a0
            route add 23.0.0.0/8 nhid 7
            route add default via 10.2.0.254\n");
        expect(&reader, 0, "8.8.8.8", "1 10.2.0.254");
        expect(&reader, 0, "30.1.1.1", "Blackhole");
        expect(&reader, 0, "31.1.1.1", "Unreachable");
        expect(&reader, 0, "32.1.1.1", "Prohibit");
        expect(&reader, 0, "33.1.1.1", "Throw");
        expect(&reader, 0, "20.5.1.1", "1 10.2.0.9");
        expect(&reader, 0, "20.6.1.1", "1");
        expect(&reader, 0, "21.1.1.1", "1 10.2.0.9");
        expect(&reader, 0, "2001:db8:9::1", "0 2001:db8:1::9");
        expect(&reader, 0, "2001:db8:a::1", "Blackhole");
        expect(&reader, 0, "22.1.1.1", "1 2001:db8:2::9");
        expect(&reader, 0, "23.1.1.1", "0 10.1.0.17");
        // Remove the route with the smaller metric, so that the mirror uses the route with the larger metric. Change a
        // route, remove the only route of a prefix, replace a next hop, and add an address.
        ip("route del 21.0.0.0/8 via 10.2.0.9 metric 50
            route replace 20.5.0.0/16 via 10.1.0.77 metric 50
            route del blackhole 30.0.0.0/8
            nexthop replace id 7 via 10.1.0.18 dev a0
            addr add 10.9.0.1/24 dev b0\n");
        expect(&reader, 0, "21.1.1.1", "0 10.1.0.9");
        expect(&reader, 0, "20.5.1.1", "0 10.1.0.77");
        expect(&reader, 0, "30.1.1.1", "1 10.2.0.254");
        expect(&reader, 0, "23.1.1.1", "0 10.1.0.18");
        expect(&reader, 0, "10.9.0.1", "Local");
        ip("addr del 10.9.0.1/24 dev b0\n");
        expect(&reader, 0, "10.9.0.1", "1 10.2.0.254");
        // Multipath routes of IPv4 and of IPv6 use their two paths. When one path is removed, the other path stays.
        ip("route add 40.0.0.0/8 nexthop via 10.1.0.9 weight 1 nexthop via 10.2.0.9 weight 3
            route add 2001:db8:40::/48 nexthop via 2001:db8:1::9 nexthop via 2001:db8:2::9\n");
        let shares = |destination: &str| {
            let (v4, v6) = reader.routes(0).unwrap();
            let group = match destination.parse().unwrap() {
                IpAddr::V4(address) => v4.lookup(address.into()),
                IpAddr::V6(address) => v6.lookup(address.into()),
            };
            let mut shares: BTreeMap<u8, usize> = BTreeMap::new();
            for flow in 0..1024u32 {
                let path = group.and_then(|group| reader.path(group, flow.wrapping_mul(0x9e37_79b9)));
                if let Some(path) = path {
                    *shares.entry(path.egress).or_default() += 1;
                }
            }
            shares
        };
        until("two paths of IPv4", || (shares("40.1.1.1").len() == 2, || format!("{:?}", shares("40.1.1.1"))));
        let of = shares("40.1.1.1");
        assert!(of[&1] > 2 * of[&0], "{of:?}");
        until("two paths of IPv6", || {
            (shares("2001:db8:40::1").len() == 2, || format!("{:?}", shares("2001:db8:40::1")))
        });
        ip("route del 2001:db8:40::/48 via 2001:db8:1::9\n");
        expect(&reader, 0, "2001:db8:40::1", "1 2001:db8:2::9");
        // When an interface goes down, the kernel removes the routes of this interface without a message for each
        // route.
        ip("link set b0 down\n");
        expect(&reader, 0, "8.8.8.8", "none");
        expect(&reader, 0, "40.1.1.1", "0 10.1.0.9");
        expect(&reader, 0, "20.5.1.1", "0 10.1.0.77");
        ip("link set b0 up
            route add default via 10.2.0.253
            link set a0 mtu 1400
            link set a0 address 02:00:00:00:0a:0a\n");
        expect(&reader, 0, "8.8.8.8", "1 10.2.0.253");
        until("the MTU", || (reader.mtu(0) == Some(1400), || format!("{:?}", reader.mtu(0))));
        let mac = MacAddr([2, 0, 0, 0, 10, 10]);
        until("the link address", || (reader.mac(0) == Some(mac), || format!("{:?}", reader.mac(0))));
        // The interface is deleted, and another interface with the same name is created.
        ip("link del a0\n");
        expect(&reader, 0, "20.1.1.1", "1 10.2.0.253");
        ip("link add a0 type veth peer name a1
            link set a0 up
            addr add 10.1.0.1/24 dev a0
            route add 20.0.0.0/8 via 10.1.0.8\n");
        expect(&reader, 0, "20.1.1.1", "0 10.1.0.8");
    });
}

#[test]
fn neighbours_are_mirrored_and_resolved() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        set("ipv4/neigh/a0/retrans_time_ms", "50");
        let reader = tables.register_reader();
        let _mirror = start(KernelMirror::new(tables.clone(), writer, &ports)).unwrap();
        let hop = |address: &str, port| NextHop { address: address.parse().unwrap(), port };
        let known = |address: &str, port| reader.neighbor(hop(address, port));
        let becomes = |address: &str, port, expected: Option<ResolutionState>| {
            until(address, || (known(address, port) == expected, || format!("{:?}", known(address, port))));
        };
        let at = |last| Some(ResolutionState::At(MacAddr([2, 0, 0, 0, 1, last])));
        ip("neigh add 10.1.0.9 lladdr 02:00:00:00:01:01 nud permanent dev a0
            neigh add 10.1.0.10 lladdr 02:00:00:00:01:02 nud permanent dev a0
            neigh add 2001:db8:2::9 lladdr 02:00:00:00:01:03 nud reachable dev b0\n");
        becomes("10.1.0.9", 0, at(1));
        becomes("10.1.0.10", 0, at(2));
        becomes("2001:db8:2::9", 1, at(3));
        assert_eq!(known("10.1.0.9", 1), None);
        ip("neigh replace 10.1.0.9 lladdr 02:00:00:00:01:04 nud permanent dev a0
            neigh del 10.1.0.10 lladdr 02:00:00:00:01:02 dev a0\n");
        becomes("10.1.0.9", 0, at(4));
        becomes("10.1.0.10", 0, None);
        // No host has this address. The kernel tries to resolve the address, and reports the failure.
        reader.request_resolution(hop("10.1.0.66", 0));
        becomes("10.1.0.66", 0, Some(ResolutionState::Failed));
        assert!(tables.count(TableCount::Asked) >= 1);
    });
}

/// A neighbour request that is sent while the link is down gets no answer, and the kernel repeats the request only a
/// second later. The mirror therefore ignores requests for ports whose link is down.
#[test]
fn neighbours_are_requested_only_while_the_link_is_up() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        ip("link set a1 down\n");
        let reader = tables.register_reader();
        let _mirror = start(KernelMirror::new(tables.clone(), writer, &ports)).unwrap();
        let hop = |address: &str, port| NextHop { address: address.parse().unwrap(), port };
        reader.request_resolution(hop("10.1.0.66", 0));
        reader.request_resolution(hop("10.2.0.66", 1));
        let known = |address: &str, port| reader.neighbor(hop(address, port));
        // The mirror handles requests in order, so the first request is handled before the second request. Wait for the
        // neighbour and for the count, because the kernel can report the neighbour before the mirror counts the
        // request.
        until("the second request", || {
            (known("10.2.0.66", 1).is_some() && tables.count(TableCount::Asked) > 0, String::new)
        });
        assert_eq!((known("10.1.0.66", 0), tables.count(TableCount::Asked)), (None, 1));
        ip("link set a1 up\n");
        until("a request after the link came up", || {
            reader.request_resolution(hop("10.1.0.66", 0));
            (known("10.1.0.66", 0).is_some(), String::new)
        });
    });
}

#[test]
fn routes_through_a_renamed_interface_are_local_until_it_is_renamed_back() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        ip("route add 20.0.0.0/8 via 10.2.0.9\n");
        let reader = tables.register_reader();
        let _mirror = start(KernelMirror::new(tables.clone(), writer, &ports)).unwrap();
        expect(&reader, 0, "20.1.1.1", "1 10.2.0.9");
        // Linux before 6.2 renames only interfaces that are down.
        if !try_ip("link set b0 name c0\n") {
            return report_skip("this kernel does not rename an interface that is up");
        }
        expect(&reader, 0, "20.1.1.1", "Local");
        expect(&reader, 0, "10.2.0.77", "Local");
        ip("link set c0 name b0\n");
        expect(&reader, 0, "20.1.1.1", "1 10.2.0.9");
        expect(&reader, 0, "10.2.0.77", "1");
    });
}

#[test]
fn route_behind_a_prepended_route_is_used_again() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        let reader = tables.register_reader();
        // The mirror must know both routes from the messages.
        let _mirror = start_without_periodic_resync(&tables, writer, &ports);
        ip("route add 20.0.0.0/8 via 10.1.0.9
            route prepend 20.0.0.0/8 via 10.2.0.9\n");
        expect(&reader, 0, "20.1.1.1", "1 10.2.0.9");
        ip("route append 20.0.0.0/8 via 10.2.0.10
            route replace 20.0.0.0/8 via 10.2.0.11\n");
        expect(&reader, 0, "20.1.1.1", "1 10.2.0.11");
        ip("route del 20.0.0.0/8 via 10.2.0.11\n");
        expect(&reader, 0, "20.1.1.1", "0 10.1.0.9");
        ip("route del 20.0.0.0/8 via 10.1.0.9\n");
        expect(&reader, 0, "20.1.1.1", "1 10.2.0.10");
    });
}

/// The kernel reports no change of the IPv4 routes that use a removed nexthop object or its groups.
#[test]
fn removed_nexthop_objects_are_not_used() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        ip("nexthop add id 1 via 10.1.0.9 dev a0
            nexthop add id 2 via 10.2.0.9 dev b0
            nexthop add id 3 via 10.2.0.10 dev b0
            nexthop add id 10 group 1/2
            route add 20.0.0.0/8 nhid 10
            route add 30.0.0.0/8 via 10.1.0.9
            route add 30.1.0.0/16 nhid 3\n");
        let reader = tables.register_reader();
        let _mirror = start_without_periodic_resync(&tables, writer, &ports);
        expect(&reader, 0, "30.1.0.1", "1 10.2.0.10");
        ip("nexthop del id 3\n");
        expect(&reader, 0, "30.1.0.1", "0 10.1.0.9");
        // Returns the egress ports of flows with different hashes.
        let egress = || -> BTreeSet<u8> {
            let group = reader.routes(0).and_then(|(v4, _)| v4.lookup(Ipv4Addr::new(20, 0, 0, 1).into()));
            let path = |hash: u32| reader.path(group?, hash.wrapping_mul(0x9e37_79b9));
            (0..100).filter_map(path).map(|path| path.egress).collect()
        };
        assert_eq!(egress(), BTreeSet::from([0, 1]));
        ip("nexthop del id 1\n");
        until("only port 1 is used", || (egress() == BTreeSet::from([1]), || format!("{:?}", egress())));
    });
}

/// If IPv6 is off, the kernel reports only the state of the interface. With IPv6, the removal of the link-local address
/// would already cause a resync.
#[test]
fn ipv4_routes_follow_the_state_of_an_interface_without_a_port() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        ip("link add c0 type veth peer name c1\n");
        set("ipv6/conf/c0/disable_ipv6", "1");
        set("ipv4/conf/c0/ignore_routes_with_linkdown", "1");
        ip("link set c1 up
            link set c0 up
            addr add 10.3.0.1/24 dev c0
            route add 20.0.0.0/8 via 10.1.0.9
            route add 20.1.0.0/16 via 10.3.0.9\n");
        let reader = tables.register_reader();
        let _mirror = start_without_periodic_resync(&tables, writer, &ports);
        expect(&reader, 0, "20.1.1.1", "Local");
        // Without the carrier, the kernel does not use the route. The route stays in the table.
        ip("link set c1 down\n");
        expect(&reader, 0, "20.1.1.1", "0 10.1.0.9");
        ip("link set c1 up\n");
        expect(&reader, 0, "20.1.1.1", "Local");
        ip("link set c0 down\n");
        expect(&reader, 0, "20.1.1.1", "0 10.1.0.9");
    });
}

/// While the table `local` of the kernel has a prefix, this prefix hides the longer prefixes of the table `main`.
#[test]
fn ipv6_routes_of_equal_metric_are_separate_unless_they_form_a_multipath_route() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        let reader = tables.register_reader();
        let mirror = start(KernelMirror::new(tables.clone(), writer, &ports)).unwrap();
        // A route without a gateway and a route from a router advertisement are no paths of a multipath route.
        ip("route add 2001:db8:9::/48 via 2001:db8:1::9
            addr add 2001:db8:50::1/64 dev a0 nodad
            addr add 2001:db8:50::2/64 dev b0 nodad
            route append 2001:db8:9::/48 dev b0
            route add 2001:db8:a::/48 dev b0\n");
        let all = [("2001:db8:50::9", "0"), ("2001:db8:9::1", "0 2001:db8:1::9")];
        expect(&reader, 0, "2001:db8:a::1", "1");
        assert_eq!(all.map(|(destination, _)| outcome(&reader, 0, destination)), all.map(|(_, expected)| expected));
        // The dump of a new mirror has both routes too.
        drop(mirror);
        let (tables, writer) = ForwardingWriter::with_tables(vec!["a".to_owned(), "b".to_owned()], HoldTime::default());
        let reader = tables.register_reader();
        let _mirror = start(KernelMirror::new(tables.clone(), writer, &ports)).unwrap();
        assert_eq!(all.map(|(destination, _)| outcome(&reader, 0, destination)), all.map(|(_, expected)| expected));
        ip("route del 2001:db8:9::/48 dev b0
            addr del 2001:db8:50::1/64 dev a0
            route del 2001:db8:a::/48\n");
        expect(&reader, 0, "2001:db8:a::1", "none");
        expect(&reader, 0, "2001:db8:50::9", "1");
        assert_eq!(outcome(&reader, 0, "2001:db8:9::1"), "0 2001:db8:1::9");
        // A replaced route of one kind leaves the route of the other kind.
        ip("route append 2001:db8:9::/48 dev b0
            route replace 2001:db8:9::/48 via 2001:db8:1::8\n");
        expect(&reader, 0, "2001:db8:9::1", "0 2001:db8:1::8");
        ip("route replace 2001:db8:9::/48 nexthop via 2001:db8:1::8 nexthop via 2001:db8:1::7\n");
        ip("route del 2001:db8:9::/48 via 2001:db8:1::8\n");
        expect(&reader, 0, "2001:db8:9::1", "0 2001:db8:1::7");
        ip("route del 2001:db8:9::/48 via 2001:db8:1::7\n");
        expect(&reader, 0, "2001:db8:9::1", "1");
    });
}

#[test]
fn local_prefix_hides_longer_prefixes_until_it_is_removed() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        ip("route add 20.0.0.0/16 via 10.2.0.9\n");
        let reader = tables.register_reader();
        let _mirror = start(KernelMirror::new(tables.clone(), writer, &ports)).unwrap();
        expect(&reader, 0, "20.0.1.1", "1 10.2.0.9");
        ip("route add local 20.0.0.0/8 dev lo\n");
        expect(&reader, 0, "20.9.1.1", "Local");
        expect(&reader, 0, "20.0.1.1", "Local");
        ip("route del local 20.0.0.0/8 dev lo table local\n");
        expect(&reader, 0, "20.9.1.1", "none");
        expect(&reader, 0, "20.0.1.1", "1 10.2.0.9");
    });
}

#[test]
fn a_vrf_has_its_own_table() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        if !try_ip("link add red type vrf table 10\n") {
            return report_skip("no VRF devices");
        }
        let reader = tables.register_reader();
        let _mirror = start(KernelMirror::new(tables.clone(), writer, &ports)).unwrap();
        ip("link set red up
            link set b0 master red
            route add 20.0.0.0/8 via 10.1.0.9
            route add table 10 20.0.0.0/8 via 10.2.0.9\n");
        expect(&reader, 0, "20.1.1.1", "0 10.1.0.9");
        expect(&reader, 1, "20.1.1.1", "1 10.2.0.9");
        expect(&reader, 1, "10.1.0.9", "none");
        ip("link set b0 nomaster\n");
        expect(&reader, 1, "20.1.1.1", "0 10.1.0.9");
    });
}

/// Adds and removes 100,000 routes, so that the kernel sends more messages than the socket buffer can hold. A route
/// that does not change must be found in every lookup.
#[test]
fn routes_are_mirrored_although_the_socket_loses_messages() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        ip("route add 20.0.0.0/8 via 10.1.0.9\n");
        let reader = tables.register_reader();
        // The mirror must detect the lost messages itself, because the periodic resync is an hour away.
        let hour = Duration::from_secs(3600);
        let mirror = KernelMirror::new(tables.clone(), writer, &ports);
        let _mirror = start(KernelMirror { backlog: 1 << 14, resync_interval: hour, ..mirror }).unwrap();
        const MANY: u32 = 100_000;
        let lines = |verb: &str| -> String {
            let one = |at: u32| {
                let [_, a, b, c] = (at << 3).to_be_bytes();
                format!("route {verb} 40.{a}.{b}.{c}/29 via 10.2.0.9\n")
            };
            (0..MANY).map(one).collect()
        };
        let before = tables.count(TableCount::Routes);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let ended = StopOnDrop(&done);
            let (tables, done) = (&tables, &done);
            let watch = scope.spawn(move || {
                let watcher = tables.register_reader();
                let mut lookups = 0u64;
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(find(&watcher, 0, "20.1.1.1").map(|path| path.egress), Some(0));
                    watcher.mark_quiescent();
                    reader.mark_quiescent();
                    lookups += 1;
                    thread::yield_now();
                }
                lookups
            });
            for (verb, expected) in [("add", u64::from(MANY)), ("del", 0)] {
                ip(&lines(verb));
                let count = || tables.count(TableCount::Routes).saturating_sub(before);
                until(verb, || (count() == expected, || format!("{} routes", count())));
            }
            drop(ended);
            assert!(watch.join().unwrap() > 0);
        });
        println!("{} resyncs, {} changes", tables.count(TableCount::Resyncs), tables.count(TableCount::Changes));
        assert_eq!(tables.count(TableCount::Refused), 0);
    });
}

/// Returns the commands that add routes to the first addresses of 40.0.0.0/8.
fn add_host_routes(count: u32) -> String {
    (0..count).map(|at| format!("route add 40.0.{}.{}/32 via 10.2.0.9\n", at >> 8, at & 255)).collect()
}

#[test]
fn neighbour_does_not_wait_for_queued_route_changes() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        let reader = tables.register_reader();
        let mut mirror = KernelMirror::new(tables.clone(), writer, &ports);
        mirror.start().unwrap();
        // The mirror is started but does not run yet, so these changes are queued.
        ip(&format!("{}neigh add 10.1.0.9 lladdr 02:00:00:00:01:01 nud permanent dev a0\n", add_host_routes(200)));
        let stop = StopSignal::default();
        thread::scope(|scope| {
            let run = scope.spawn(|| mirror.run(&stop));
            until("the first route", || (find(&reader, 0, "40.0.0.0").is_some(), String::new));
            let neighbor = reader.neighbor(NextHop { address: "10.1.0.9".parse().unwrap(), port: 0 });
            stop.set();
            run.join().unwrap().unwrap();
            assert_eq!(neighbor, Some(ResolutionState::At(MacAddr([2, 0, 0, 0, 1, 1]))));
        });
    });
}

#[test]
fn resync_reads_neighbours_first_and_serves_them_between_parts_of_the_routes() {
    const ROUTES: u32 = 2000;
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        ip(&format!("{}neigh add 10.1.0.9 lladdr 02:00:00:00:01:01 nud permanent dev a0\n", add_host_routes(ROUTES)));
        let reader = tables.register_reader();
        let is_known = |host: usize| {
            let address = IpAddr::from([10, 1, 0, host as u8]);
            reader.neighbor(NextHop { address, port: 0 }).is_some()
        };
        let routes_known = || {
            let is_found = |at: &u32| find(&reader, 0, &format!("40.0.{}.{}", at >> 8, at & 255)).is_some();
            (0..ROUTES).filter(is_found).count() as u32
        };
        let mut requests = Requests::open().unwrap();
        let mut neighbors = NeighborSockets::open(socket::BACKLOG).unwrap();
        let mut state = MirrorState::new(tables.clone(), writer, &ports).unwrap();
        // For each call: the number of routes in the tables.
        let mut calls = Vec::new();
        let mut serve = |state: &mut MirrorState| {
            let host = calls.len() + 10;
            assert!(is_known(host - 1), "the neighbour of the call before");
            ip(&format!("neigh add 10.1.0.{host} lladdr 02:00:00:00:01:01 nud permanent dev a0\n"));
            neighbors.serve(state);
            assert!(is_known(host));
            calls.push(routes_known());
        };
        state.resync(&mut requests, &mut serve).unwrap();
        assert!(calls.contains(&0), "{calls:?}");
        assert!(calls.iter().any(|known| (1..ROUTES).contains(known)), "{calls:?}");
        assert_eq!(routes_known(), ROUTES);
        // A resync without a difference also has several parts.
        let mut calls = 0;
        state.resync(&mut requests, &mut |_| calls += 1).unwrap();
        assert!(calls > ROUTES / 256, "{calls}");
    });
}

#[test]
fn neighbours_are_read_again_without_a_resync_after_an_error() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        let reader = tables.register_reader();
        let mut state = MirrorState::new(tables.clone(), writer, &ports).unwrap();
        state.resync(&mut Requests::open().unwrap(), &mut |_| ()).unwrap();
        let add = |host: u8| ip(&format!("neigh add 10.1.0.{host} lladdr 02:00:00:00:01:01 nud permanent dev a0\n"));
        let known = || [9, 10].map(|host| reader.neighbor(NextHop { address: [10, 1, 0, host].into(), port: 0 }));
        // The socket does not report this neighbour.
        add(9);
        let mut neighbors = NeighborSockets::open(socket::BACKLOG).unwrap();
        neighbors.requests = Requests::without_receiver().unwrap();
        neighbors.read_at = Some(Instant::now());
        assert!(!neighbors.serve(&mut state), "the kernel does not receive the request");
        assert!(neighbors.read_at.is_some_and(|at| at > Instant::now()));
        // Until the next attempt, no change is read.
        add(10);
        neighbors.requests = Requests::open().unwrap();
        assert!(!neighbors.serve(&mut state));
        assert_eq!(known(), [None, None]);
        neighbors.read_at = Some(Instant::now());
        assert!(neighbors.serve(&mut state));
        assert!(known().iter().all(Option::is_some));
        assert!(!state.take_resync_needed());
    });
}

/// A resync calls only `serve`.
#[test]
fn workers_may_request_an_unresolved_neighbour_again_during_a_resync() {
    in_namespace(|| {
        let (tables, writer, ports) = two_ports();
        let reader = tables.register_reader();
        let mut state = MirrorState::new(tables.clone(), writer, &ports).unwrap();
        state.resync(&mut Requests::open().unwrap(), &mut |_| ()).unwrap();
        let mut neighbors = NeighborSockets::open(socket::BACKLOG).unwrap();
        let hop = NextHop { address: [10, 1, 0, 66].into(), port: 0 };
        reader.request_resolution(hop);
        neighbors.serve(&mut state);
        assert_eq!(tables.count(TableCount::Asked), 1);
        neighbors.last_retry = Instant::now().checked_sub(RETRY_INTERVAL).unwrap();
        neighbors.serve(&mut state);
        assert!(reader.neighbor(hop).is_some());
        neighbors.serve(&mut state);
        assert_eq!(tables.count(TableCount::Asked), 2);
    });
}

/// After the kernel has reported a loss of messages, the kernel reports no further loss until the queue is empty. The
/// queue may hold more messages than one call of `read` reads. Therefore, `read` empties the whole queue after a loss,
/// so that later messages arrive and later losses are reported.
#[test]
fn changes_after_a_loss_are_reported() {
    in_namespace(|| {
        two_ports();
        let events = Events::open(&socket::ROUTE_GROUPS, 1 << 18).unwrap();
        ip(&add_host_routes(5000));
        assert_eq!(events.read(|_| {}).unwrap(), ReadResult::Lost, "5000 routes did not overflow the socket buffer");
        ip("route add 20.0.0.0/8 via 10.1.0.9\n");
        let prefix: ipnet::IpNet = "20.0.0.0/8".parse().unwrap();
        let mut reported = false;
        let look = |message: socket::Message| {
            reported |= matches!(messages::read(message.content), Some(messages::Update::Route(route)) if route.prefix == prefix);
        };
        assert_ne!(events.read(look).unwrap(), ReadResult::Lost);
        assert!(reported);
    });
}

/// Creates the state for one port `a`, whose interface has the index 7. The messages come from the test instead of the
/// kernel.
fn port_without_kernel() -> (Arc<Forwarding>, MirrorState) {
    let port =
        PortInfo { name: "a".to_owned(), mac: [2; 6], mtu: 1500, interface: Some("a0".to_owned()), addresses: vec![] };
    let (tables, writer) = ForwardingWriter::with_tables(vec!["a".to_owned()], HoldTime::default());
    let mut state = MirrorState::new(tables.clone(), writer, &[port]).unwrap();
    let mut link = LinkMessage::default();
    link.header.index = 7;
    link.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
    link.attributes = vec![LinkAttribute::IfName("a0".to_owned()), LinkAttribute::Address(vec![2; 6])];
    apply(&mut state, RouteNetlinkMessage::NewLink(link));
    (tables, state)
}

fn apply(state: &mut MirrorState, inner: RouteNetlinkMessage) {
    state.apply(socket::Message { flags: 0, content: socket::Content::Route(inner) });
}

/// The kernel must forward the packets of routes with an encapsulation, so these routes are `Local` in the mirror. If
/// the mirror ignored the encapsulation, the port would send the packets without the encapsulation.
#[test]
fn packets_of_routes_with_an_encapsulation_go_to_the_host() {
    let (tables, mut state) = port_without_kernel();
    let reader = tables.register_reader();
    let gateway = || RouteAttribute::Gateway(RouteAddress::Inet([10, 1, 0, 9].into()));
    let label = || {
        RouteAttribute::NewDestination(vec![MplsLabel { label: 100, traffic_class: 0, bottom_of_stack: true, ttl: 0 }])
    };
    let encap = || vec![RouteAttribute::EncapType(RouteLwEnCapType::Mpls), RouteAttribute::Encap(Vec::new())];
    let mut route = |net: u8, attributes: Vec<RouteAttribute>| {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.destination_prefix_length = 8;
        message.header.table = 254;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![RouteAttribute::Destination(RouteAddress::Inet([net, 0, 0, 0].into()))];
        message.attributes.extend(attributes);
        apply(&mut state, RouteNetlinkMessage::NewRoute(message));
        outcome(&reader, 0, &format!("{net}.1.1.1"))
    };
    let single = |more: Vec<RouteAttribute>| [vec![RouteAttribute::Oif(7), gateway()], more].concat();
    assert_eq!(route(20, single(Vec::new())), "0 10.1.0.9");
    assert_eq!(route(21, single(encap())), "Local");
    assert_eq!(route(22, single(vec![label()])), "Local");
    let many = |more: Vec<RouteAttribute>| {
        let hop = |attributes: Vec<RouteAttribute>| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = 7;
            hop.attributes = [vec![gateway()], attributes].concat();
            hop
        };
        vec![RouteAttribute::MultiPath(vec![hop(Vec::new()), hop(more)])]
    };
    assert_eq!(route(23, many(Vec::new())), "0 10.1.0.9");
    assert_eq!(route(24, many(encap())), "Local");
    assert_eq!(route(25, many(vec![label()])), "Local");
    // Replaces a route by a route without encapsulation.
    assert_eq!(route(21, single(Vec::new())), "0 10.1.0.9");
}

/// The tables refuse a neighbour when they are full. The kernel does not report this neighbour again. So the mirror
/// reads all neighbours again as soon as the tables have room.
#[test]
fn refused_neighbours_are_read_again_when_there_is_room() {
    let (tables, mut state) = port_without_kernel();
    let reader = tables.register_reader();
    let address = |number: u32| std::net::Ipv4Addr::from(0x0a01_0000 + number);
    let message = |number: u32| {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = 7;
        message.header.state = NeighbourState::Reachable;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address(number))),
            NeighbourAttribute::LinkLayerAddress(vec![2, 0, 0, 0, 1, 1]),
        ];
        message
    };
    let known = |number: u32| reader.neighbor(NextHop { address: address(number).into(), port: 0 }).is_some();
    let mut number = 0;
    while tables.count(TableCount::Refused) == 0 {
        assert!(!state.take_neighbors_to_retry());
        number += 1;
        apply(&mut state, RouteNetlinkMessage::NewNeighbour(message(number)));
    }
    assert!(known(1) && !known(number) && !state.take_neighbors_to_retry());
    apply(&mut state, RouteNetlinkMessage::DelNeighbour(message(1)));
    assert!(state.take_neighbors_to_retry() && !state.take_neighbors_to_retry());
}

#[test]
fn failed_request_names_the_capability_only_if_permission_is_missing() {
    let failure = |code| state::failed_request([10, 0, 0, 9].into(), &std::io::Error::from_raw_os_error(code));
    let asked = "cannot ask the kernel to resolve 10.0.0.9";
    assert_eq!(failure(1), format!("{asked}: Operation not permitted (os error 1) (this needs CAP_NET_ADMIN)"));
    assert_eq!(failure(105), format!("{asked}: No buffer space available (os error 105)"));
}
