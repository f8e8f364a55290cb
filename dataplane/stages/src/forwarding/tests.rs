//! Tests of the tables against a simple model, and with concurrent readers.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use dataplane_core::pipeline::HoldTime;
use dataplane_testing::StopOnDrop;

fn tables() -> (Arc<Forwarding>, Box<ForwardingWriter>) {
    let (shared, mut writer) =
        ForwardingWriter::with_tables(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], HoldTime::default());
    assert_eq!(writer.open(&shared, 0), Ok(true));
    (shared, writer)
}

/// Returns the path that the lookup of a destination selects for a flow.
fn find(reader: &ForwardingReader, ingress: u8, destination: IpAddr, flow: u32) -> Option<Path> {
    let (v4, v6) = reader.routes(ingress)?;
    let group = match destination {
        IpAddr::V4(address) => v4.lookup(address.into()),
        IpAddr::V6(address) => v6.lookup(address.into()),
    };
    reader.path(group?, flow)
}

fn gateway(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).into()
}

/// Returns the target of a route with these next hops, each given as the port and the last byte of the gateway.
fn to(hops: &[(u8, u8)]) -> RouteTarget {
    RouteTarget::Paths(
        hops.iter().map(|(port, last)| RouteHop { port: *port, via: Some(gateway(*last)), weight: 1 }).collect(),
    )
}

/// A change of the tables. Numbers stand for a port, the last byte of a gateway, and the last byte of a MAC address.
#[derive(Clone, Debug)]
enum Change {
    Set(IpNet, Vec<(u8, u8)>),
    Refuse(IpNet),
    Remove(IpNet),
    Resolve(u8, u8, u8),
    Forget(u8, u8),
    Publish,
}

fn prefix() -> impl Strategy<Value = IpNet> {
    let v4 = (0..4u8, 0..4u8, prop::sample::select(vec![0u8, 8, 16, 20, 24, 28, 32]))
        .prop_map(|(a, b, len)| IpNet::new(IpAddr::from([20 + a, b, 7 * b, 9 * a]), len).unwrap().trunc());
    let v6 = (0..4u16, prop::sample::select(vec![16u8, 32, 47, 64, 128]))
        .prop_map(|(a, len)| IpNet::new(IpAddr::from([0x2001, 0xdb8, a, a, 0, 0, 0, 1]), len).unwrap().trunc());
    prop_oneof![v4, v6]
}

fn change() -> impl Strategy<Value = Change> {
    let hops = prop::collection::btree_set((0..3u8, 1..5u8), 1..4).prop_map(|hops| hops.into_iter().collect());
    prop_oneof![
        4 => (prefix(), hops).prop_map(|(prefix, hops)| Change::Set(prefix, hops)),
        1 => prefix().prop_map(Change::Refuse),
        3 => prefix().prop_map(Change::Remove),
        2 => (0..3u8, 1..5u8, 1..9u8).prop_map(|(port, last, mac)| Change::Resolve(port, last, mac)),
        1 => (0..3u8, 1..5u8).prop_map(|(port, last)| Change::Forget(port, last)),
        1 => Just(Change::Publish),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn tables_agree_with_a_simple_model(changes in prop::collection::vec(change(), 1..80)) {
        let (shared, mut writer) = tables();
        let reader = shared.register_reader();
        let mut routes: BTreeMap<IpNet, Option<Vec<(u8, u8)>>> = BTreeMap::new();
        let mut macs: HashMap<(u8, u8), u8> = HashMap::new();
        for change in changes {
            match change {
                Change::Set(prefix, hops) => {
                    writer.set_route(0, prefix, &to(&hops)).unwrap();
                    routes.insert(prefix, Some(hops));
                }
                Change::Refuse(prefix) => {
                    writer.set_route(0, prefix, &RouteTarget::Special(RouteKind::Prohibit)).unwrap();
                    routes.insert(prefix, None);
                }
                Change::Remove(prefix) => {
                    prop_assert_eq!(writer.remove_route(0, prefix), routes.remove(&prefix).is_some());
                }
                Change::Resolve(port, last, mac) => {
                    let hop = NextHop { address: gateway(last), port };
                    writer
                        .set_neighbor(hop, ResolutionState::At(MacAddr([2, 0, 0, 0, 0, mac])), ReportedEvent::None)
                        .unwrap();
                    macs.insert((port, last), mac);
                }
                Change::Forget(port, last) => {
                    writer.unset_neighbor(NextHop { address: gateway(last), port });
                    macs.remove(&(port, last));
                }
                Change::Publish => {
                    reader.mark_quiescent();
                    writer.publish(&shared);
                }
            }
            prop_assert_eq!(writer.routes(), routes.len());
            let target = |hops: &Option<Vec<(u8, u8)>>| match hops {
                Some(hops) => to(hops),
                None => RouteTarget::Special(RouteKind::Prohibit),
            };
            let expected: Vec<_> = routes.iter().map(|(prefix, hops)| (0, *prefix, Arc::new(target(hops)))).collect();
            let (mut listed, mut after) = (Vec::new(), None);
            loop {
                let page = shared.routes_after(after, 3);
                let Some((table, prefix, _)) = page.last() else { break };
                after = Some((*table, *prefix));
                listed.extend(page);
            }
            prop_assert_eq!(listed, expected);
            let longest = |address: IpAddr| {
                let covers = |prefix: &&IpNet| prefix.contains(&address);
                routes.keys().filter(covers).max_by_key(|prefix| prefix.prefix_len()).map(|prefix| &routes[prefix])
            };
            let probes = routes.keys().map(|prefix| prefix.addr()).chain([IpAddr::from([20, 1, 7, 9])]);
            for address in probes {
                let listed = shared.route_for(0, address).map(|(_, _, listed)| listed);
                prop_assert_eq!(listed, longest(address).map(|hops| Arc::new(target(hops))));
                for flow in [0, 1, 0x9000_0000, u32::MAX] {
                    let found = find(&reader, 0, address, flow);
                    match longest(address) {
                        None => prop_assert_eq!(found, None),
                        Some(None) => prop_assert_eq!(found.map(|path| path.kind), Some(RouteKind::Prohibit)),
                        Some(Some(hops)) => {
                            let path = found.unwrap();
                            prop_assert_eq!(path.kind, RouteKind::Forward);
                            let hop = shared.neighbors.hop(path.next_hop as usize - 1).unwrap();
                            prop_assert_eq!(hop.port, path.egress);
                            let chosen = hops.iter().find(|(port, last)| (*port, gateway(*last)) == (hop.port, hop.address));
                            let mac = chosen.map(|chosen| macs.get(chosen).copied());
                            let at = |mac| ResolutionState::At(MacAddr([2, 0, 0, 0, 0, mac]));
                            let expected = mac.unwrap().map_or(ResolutionState::Unknown, at);
                            prop_assert_eq!(reader.next_hop_state(path.next_hop), expected);
                        }
                    }
                }
            }
            for port in 0..3 {
                for last in 1..5 {
                    let known = reader.neighbor(NextHop { address: gateway(last), port });
                    let expected =
                        macs.get(&(port, last)).map(|mac| ResolutionState::At(MacAddr([2, 0, 0, 0, 0, *mac])));
                    // The next hop of a route has an entry before it is resolved.
                    prop_assert_eq!(known.filter(|known| *known != ResolutionState::Unknown), expected);
                }
            }
        }
        for prefix in routes.keys() {
            writer.remove_route(0, *prefix);
        }
        for (port, last) in macs.keys() {
            writer.unset_neighbor(NextHop { address: gateway(*last), port: *port });
        }
        // Without routes and without known MAC addresses, the table has no entries.
        prop_assert_eq!(writer.neighbors_known(), 0);
    }
}

/// A writer adds and removes many routes while readers look up addresses. The readers always find the routes that do
/// not change, and the MAC addresses of their next hops.
#[test]
fn unchanged_routes_are_always_found_while_other_routes_change() {
    let (shared, mut writer) = tables();
    for last in 1..=2 {
        let hop = NextHop { address: gateway(last), port: last - 1 };
        writer.set_neighbor(hop, ResolutionState::At(MacAddr([2, 0, 0, 0, 0, last])), ReportedEvent::None).unwrap();
    }
    writer.set_route(0, "0.0.0.0/0".parse().unwrap(), &to(&[(0, 1)])).unwrap();
    writer.set_route(0, "20.1.2.128/25".parse().unwrap(), &to(&[(1, 2)])).unwrap();
    writer.set_route(0, "2001:db8::/48".parse().unwrap(), &to(&[(1, 2)])).unwrap();
    let done = AtomicBool::new(false);
    let (seen, changes) = thread::scope(|scope| {
        let ended = StopOnDrop(&done);
        let look = || {
            let reader = shared.register_reader();
            let mut seen = 0u64;
            while !done.load(Ordering::Relaxed) {
                for (address, mac) in [("20.1.2.200", 2), ("99.9.9.9", 1), ("2001:db8:0:1::1", 2), ("20.1.3.1", 1)] {
                    let path = find(&reader, 0, address.parse().unwrap(), 7).expect(address);
                    assert_eq!(
                        reader.next_hop_state(path.next_hop),
                        ResolutionState::At(MacAddr([2, 0, 0, 0, 0, mac])),
                        "{address}"
                    );
                    seen += 1;
                }
                reader.mark_quiescent();
            }
            seen
        };
        let readers = [scope.spawn(look), scope.spawn(look)];
        let mut changes = 0u64;
        for round in 0..20u32 {
            // The prefixes of the changed routes are near the prefixes of the unchanged routes. So the trie nodes near
            // the unchanged routes are created, removed and reused.
            for at in 0..64u8 {
                let v4 = IpNet::new(IpAddr::from([20, 1, 2, at]), 32).unwrap();
                let wide = IpNet::new(IpAddr::from([20, 1, 4 + at, 0]), 25 + (at % 7)).unwrap();
                let v6 = IpNet::new(IpAddr::from([0x2001, 0xdb8, 1, u16::from(at), 0, 0, 0, 0]), 64).unwrap();
                for prefix in [v4, wide, v6] {
                    if round % 2 == 0 {
                        writer.set_route(0, prefix, &to(&[(0, 3)])).unwrap();
                    } else {
                        assert!(writer.remove_route(0, prefix));
                    }
                    changes += 1;
                }
            }
            writer.publish(&shared);
        }
        drop(ended);
        (readers.into_iter().map(|reader| reader.join().unwrap()).sum::<u64>(), changes)
    });
    assert!(seen > 0 && changes == 20 * 192);
    assert_eq!(writer.routes(), 3);
}

#[test]
fn routes_and_neighbours_beyond_the_limit_are_refused() {
    let (shared, mut writer) = tables();
    let mut taken = 0usize;
    // Each of these prefixes needs its own cache line of the trie.
    for at in 0..(1u32 << 18) + 100 {
        let prefix = IpNet::new(Ipv4Addr::from((32 << 24) + (at << 8)).into(), 32).unwrap();
        taken += usize::from(writer.set_route(0, prefix, &RouteTarget::Special(RouteKind::Blackhole)).is_ok());
    }
    assert!(taken <= 1 << 18 && taken > (1 << 18) - 300, "{taken}");
    assert_eq!(writer.routes(), taken);
    let mut neighbors = 0usize;
    for at in 0..40_000u32 {
        let hop = NextHop { address: Ipv4Addr::from(20 << 24 | at).into(), port: 0 };
        neighbors += usize::from(writer.set_neighbor(hop, ResolutionState::Failed, ReportedEvent::None).is_ok());
    }
    assert!(neighbors > 16_000 && neighbors <= 1 << 14, "{neighbors}");
    let reader = shared.register_reader();
    let find = |at: u32| find(&reader, 0, Ipv4Addr::from((32 << 24) + (at << 8)).into(), 0).map(|path| path.kind);
    assert_eq!(find(5), Some(RouteKind::Blackhole));
    assert_eq!(
        reader.neighbor(NextHop { address: Ipv4Addr::from(20 << 24 | 5).into(), port: 0 }),
        Some(ResolutionState::Failed)
    );
}

#[test]
fn counters_have_the_current_and_the_largest_number_of_neighbours() {
    let (shared, mut writer) = tables();
    let hops: Vec<NextHop> = (1..=3).map(|last| NextHop { address: gateway(last), port: 0 }).collect();
    for hop in &hops {
        writer.set_neighbor(*hop, ResolutionState::Failed, ReportedEvent::None).unwrap();
    }
    writer.publish(&shared);
    hops.iter().skip(1).for_each(|hop| writer.unset_neighbor(*hop));
    writer.publish(&shared);
    let mut counted = Vec::new();
    shared
        .register_reader()
        .counters(&mut |name: &str, value: u64| counted.extend(name.starts_with("neighbors").then_some(value)));
    assert_eq!(counted, [1, 3]);
}

#[test]
fn refused_change_of_a_route_keeps_the_old_route() {
    let (shared, mut writer) = tables();
    let prefix = "32.0.0.0/8".parse().unwrap();
    writer.set_route(0, prefix, &to(&[(1, 2)])).unwrap();
    let hop = |at: u32| NextHop { address: Ipv4Addr::from(20 << 24 | at).into(), port: 0 };
    let refused = (0..40_000)
        .map(hop)
        .find(|hop| writer.set_neighbor(*hop, ResolutionState::Failed, ReportedEvent::None).is_err());
    // All slots that the hash of this gateway selects are taken. Other gateways may still find a free slot.
    let NextHop { address, port } = refused.expect("the table holds fewer neighbours than were added");
    let target = RouteTarget::Paths(vec![RouteHop { port, via: Some(address), weight: 1 }]);
    writer.set_route(0, prefix, &target).unwrap_err();
    writer.publish_without_readers(&shared);
    let reader = shared.register_reader();
    let path = find(&reader, 0, "32.1.1.1".parse().unwrap(), 0).unwrap();
    assert_eq!((path.kind, path.egress), (RouteKind::Forward, 1));
    assert_eq!(writer.routes(), 1);
}

/// The number of changes is larger than the number of cache lines of a table, so retired cache lines must be reused.
#[test]
fn retired_cache_lines_are_reused_before_readers_run_and_while_a_reader_runs() {
    let prefix = "32.0.0.1/32".parse().unwrap();
    for is_read in [false, true] {
        let (shared, mut writer) = tables();
        let reader = shared.register_reader();
        for at in 0..300_000 {
            let set = writer.set_route(0, prefix, &RouteTarget::Special(RouteKind::Blackhole));
            set.unwrap_or_else(|refused| panic!("change {at}, read: {is_read}: {refused}"));
            assert!(writer.remove_route(0, prefix));
            match is_read {
                _ if at % 1024 > 0 => {}
                false => writer.publish_without_readers(&shared),
                true => {
                    reader.mark_quiescent();
                    writer.publish(&shared);
                }
            }
        }
    }
}

#[test]
fn each_port_looks_up_its_own_table() {
    let (shared, mut writer) = tables();
    assert_eq!([1, MAX_TABLES].map(|table| writer.open(&shared, table)), [Ok(true), Ok(false)]);
    let prefix = "20.0.0.0/8".parse().unwrap();
    writer.set_route(0, prefix, &to(&[(0, 1)])).unwrap();
    writer.set_route(1, prefix, &to(&[(1, 1)])).unwrap();
    shared.set_table(2, 1);
    shared.set_table(1, MAX_TABLES);
    let reader = shared.register_reader();
    let egress = |ingress| find(&reader, ingress, [20, 0, 0, 1].into(), 0).map(|path| path.egress);
    assert_eq!((egress(0), egress(1), egress(2)), (Some(0), None, Some(1)));
}

#[test]
fn multicast_and_link_local_destinations_stay_local_despite_routes() {
    let (shared, mut writer) = tables();
    let reader = shared.register_reader();
    for prefix in ["224.0.0.0/24", "fe80::/64", "ff02::/16", "255.255.255.255/32"] {
        let prefix: IpNet = prefix.parse().unwrap();
        writer.set_route(0, prefix, &to(&[(0, 1)])).unwrap();
        assert_eq!(find(&reader, 0, prefix.addr(), 0).map(|path| path.kind), Some(RouteKind::Local), "{prefix}");
        assert!(!writer.remove_route(0, prefix));
    }
    assert_eq!(writer.routes(), 0);
}

#[test]
fn neighbour_is_requested_once_until_requests_are_allowed_again() {
    let (shared, mut writer) = tables();
    let reader = shared.register_reader();
    writer.set_route(0, "20.0.0.0/8".parse().unwrap(), &to(&[(0, 1)])).unwrap();
    let path = find(&reader, 0, [20, 0, 0, 1].into(), 0).unwrap();
    let hop = NextHop { address: gateway(1), port: 0 };
    for _ in 0..3 {
        assert_eq!(reader.next_hop_state(path.next_hop), ResolutionState::Unknown);
    }
    assert_eq!((shared.next_request(), shared.next_request()), (Some(hop), None));
    writer.allow_requests_again();
    assert_eq!(reader.next_hop_state(path.next_hop), ResolutionState::Unknown);
    assert_eq!(shared.next_request(), Some(hop));
    writer.set_neighbor(hop, ResolutionState::At(MacAddr([2; 6])), ReportedEvent::None).unwrap();
    writer.allow_requests_again();
    assert_eq!(
        (reader.next_hop_state(path.next_hop), shared.next_request()),
        (ResolutionState::At(MacAddr([2; 6])), None)
    );
    // Packets still use a stale neighbour, and the table requests a check of the neighbour.
    writer.set_neighbor(hop, ResolutionState::At(MacAddr([2; 6])), ReportedEvent::NextUse).unwrap();
    assert_eq!(
        (reader.next_hop_state(path.next_hop), shared.next_request()),
        (ResolutionState::At(MacAddr([2; 6])), Some(hop))
    );
    for _ in 0..2 * MAX_REQUESTS {
        reader.request_resolution(hop);
    }
    assert_eq!(shared.count(TableCount::LostRequests), MAX_REQUESTS as u64);
}

#[test]
fn use_of_a_neighbour_is_reported_later_if_the_queue_of_requests_was_full() {
    let (shared, mut writer) = tables();
    let reader = shared.register_reader();
    writer.set_route(0, "20.0.0.0/8".parse().unwrap(), &to(&[(0, 1)])).unwrap();
    let path = find(&reader, 0, [20, 0, 0, 1].into(), 0).unwrap();
    let hop = NextHop { address: gateway(1), port: 0 };
    for resolved in [ResolutionState::Unknown, ResolutionState::At(MacAddr([2; 6]))] {
        writer.set_neighbor(hop, resolved, ReportedEvent::NextUse).unwrap();
        let other = NextHop { address: gateway(2), port: 0 };
        (0..MAX_REQUESTS).for_each(|_| reader.request_resolution(other));
        assert!((0..100).all(|_| reader.next_hop_state(path.next_hop) == resolved));
        assert_eq!(shared.count(TableCount::LostRequests), 0);
        assert_eq!(std::iter::from_fn(|| shared.next_request()).filter(|request| *request == hop).count(), 0);
        assert_eq!(reader.next_hop_state(path.next_hop), resolved);
        assert_eq!((shared.next_request(), shared.next_request()), (Some(hop), None));
    }
}
