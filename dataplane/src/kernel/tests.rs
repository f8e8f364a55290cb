//! The mirror beside a real kernel, in network namespaces of their own. Each test runs itself again under
//! `unshare --net`, so that the namespace is gone when the test is; without the rights it says so.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    MplsLabel, RouteAddress, RouteAttribute, RouteLwEnCapType, RouteMessage, RouteNextHop, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::*;
use crate::header::MacAddr;
use crate::pipeline::NextHop;
use crate::stages::forwarding::{Kind, Path, Reader, Resolved};
use crate::testing::Ended;

/// Set in the process that is in the namespace.
const INSIDE: &str = "DATAPLANE_TEST_IN_NAMESPACE";
/// How long anything may take. Nothing is measured.
const PATIENCE: Duration = Duration::from_secs(240);

/// Runs a test in a namespace of its own.
fn in_namespace(name: &str, test: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return test();
    }
    let may = Command::new("unshare").args(["--net", "ip", "link"]).output();
    if !may.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: no network namespace can be made: {may:?}");
        return;
    }
    let path = format!("kernel::tests::{name}");
    let executable = std::env::current_exe().unwrap();
    let mut again = Command::new("unshare");
    again.arg("--net").arg(executable).args([&path, "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = again.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs lines of `ip`.
fn ip(lines: &str) {
    assert!(try_ip(lines), "ip refused:\n{lines}");
}

fn try_ip(lines: &str) -> bool {
    let mut child = Command::new("ip").args(["-force", "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

fn set(path: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{path}"), value).unwrap();
}

/// Two ports on veth pairs, whose other ends are in the same namespace, without addresses.
fn bed() -> (Arc<Forwarding>, Vec<PortInfo>) {
    ip("link set lo up
        link add a0 type veth peer name a1
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
    (Forwarding::new(&["a".to_owned(), "b".to_owned()]), vec![port("a", "a0"), port("b", "b0")])
}

fn find(reader: &Reader, ingress: u8, destination: &str) -> Option<Path> {
    let (v4, v6) = reader.routes(ingress)?;
    let group = match destination.parse().unwrap() {
        IpAddr::V4(address) => v4.lookup(address.into()),
        IpAddr::V6(address) => v6.lookup(address.into()),
    };
    reader.path(group?, 0)
}

/// What a destination gets, in short: a port with its gateway, or what else.
fn fate(reader: &Reader, ingress: u8, destination: &str) -> String {
    match find(reader, ingress, destination) {
        None => "none".to_owned(),
        Some(Path { kind: Kind::Forward, egress, next_hop }) => {
            let hop = next_hop.checked_sub(1).and_then(|place| reader.shared().hop(place as usize));
            match hop {
                Some(hop) => format!("{egress} {}", hop.address),
                None => format!("{egress}"),
            }
        }
        Some(path) => format!("{:?}", path.kind),
    }
}

fn expect(reader: &Reader, ingress: u8, destination: &str, expected: &str) {
    until(&format!("{destination} is {expected}"), || {
        (fate(reader, ingress, destination) == expected, || fate(reader, ingress, destination))
    });
}

/// Waits until something is so.
fn until<W: FnOnce() -> String>(what: &str, mut look: impl FnMut() -> (bool, W)) {
    let end = Instant::now() + PATIENCE;
    loop {
        let (so, instead) = look();
        if so {
            return;
        }
        assert!(Instant::now() < end, "{what}: {}", instead());
        thread::yield_now();
    }
}

#[test]
fn routes_of_every_kind_are_followed() {
    in_namespace("routes_of_every_kind_are_followed", || {
        let (tables, ports) = bed();
        ip("route add 20.0.0.0/8 via 10.1.0.9\n");
        let reader = tables.join();
        let _mirror = Mirror::start(tables.clone(), &ports).unwrap();
        // What was there before is there at once.
        assert_eq!(fate(&reader, 0, "20.1.1.1"), "0 10.1.0.9");
        assert_eq!(fate(&reader, 0, "10.2.0.77"), "1");
        assert_eq!(fate(&reader, 0, "10.2.0.1"), "Local");
        assert_eq!(fate(&reader, 0, "10.2.0.255"), "Local");
        assert_eq!(fate(&reader, 0, "127.1.2.3"), "Local");
        assert_eq!(fate(&reader, 0, "224.0.0.5"), "Local");
        assert_eq!(fate(&reader, 0, "2001:db8:2::1"), "Local");
        assert_eq!(fate(&reader, 0, "2001:db8:2::2"), "1");
        assert_eq!(fate(&reader, 0, "8.8.8.8"), "none");
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
        // The better goes, the other counts; a route is changed; all goes.
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
        // Several paths: both are taken, by one family as by the other, and one that goes leaves the other.
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
        // An interface that goes down takes its routes with it, and the kernel does not say so.
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
        // It is gone, and another of its name comes.
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
fn neighbours_are_followed_and_asked_for() {
    in_namespace("neighbours_are_followed_and_asked_for", || {
        let (tables, ports) = bed();
        set("ipv4/neigh/a0/retrans_time_ms", "50");
        let reader = tables.join();
        let _mirror = Mirror::start(tables.clone(), &ports).unwrap();
        let hop = |address: &str, port| NextHop { address: address.parse().unwrap(), port };
        let known = |address: &str, port| reader.neighbor(hop(address, port));
        let becomes = |address: &str, port, expected: Option<Resolved>| {
            until(address, || (known(address, port) == expected, || format!("{:?}", known(address, port))));
        };
        let at = |last| Some(Resolved::At(MacAddr([2, 0, 0, 0, 1, last])));
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
        // Nobody is there: the kernel asks, and says so.
        reader.ask(hop("10.1.0.66", 0));
        becomes("10.1.0.66", 0, Some(Resolved::Failed));
        assert!(tables.count(Count::Asked) >= 1);
    });
}

#[test]
fn a_vrf_has_its_own_table() {
    in_namespace("a_vrf_has_its_own_table", || {
        let (tables, ports) = bed();
        if !try_ip("link add red type vrf table 10\n") {
            println!("skipped: the kernel has no VRF devices");
            return;
        }
        let reader = tables.join();
        let _mirror = Mirror::start(tables.clone(), &ports).unwrap();
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

/// 100,000 routes come and go, faster than the socket's memory lets them be told, and one that stays is always there.
#[test]
fn a_hundred_thousand_routes_come_and_go() {
    in_namespace("a_hundred_thousand_routes_come_and_go", || {
        let (tables, ports) = bed();
        ip("route add 20.0.0.0/8 via 10.1.0.9\n");
        let reader = tables.join();
        // What is lost must be found out at once: nothing is read anew without a cause for an hour.
        let hour = Duration::from_secs(3600);
        let _mirror = Mirror::start_with(tables.clone(), &ports, 1 << 14, hour).unwrap();
        const MANY: u32 = 100_000;
        let lines = |verb: &str| -> String {
            let one = |at: u32| {
                let [_, a, b, c] = (at << 3).to_be_bytes();
                format!("route {verb} 40.{a}.{b}.{c}/29 via 10.2.0.9\n")
            };
            (0..MANY).map(one).collect()
        };
        let before = tables.count(Count::Routes);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let ended = Ended(&done);
            let watch = scope.spawn(|| {
                let watcher = tables.join();
                let mut looks = 0u64;
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(find(&watcher, 0, "20.1.1.1").map(|path| path.egress), Some(0));
                    watcher.pass();
                    reader.pass();
                    looks += 1;
                    thread::yield_now();
                }
                looks
            });
            for (verb, expected) in [("add", u64::from(MANY)), ("del", 0)] {
                ip(&lines(verb));
                let count = || tables.count(Count::Routes).saturating_sub(before);
                until(verb, || (count() == expected, || format!("{} routes", count())));
            }
            drop(ended);
            assert!(watch.join().unwrap() > 0);
        });
        println!("{} resyncs, {} changes", tables.count(Count::Resyncs), tables.count(Count::Changes));
        assert_eq!(tables.count(Count::Refused), 0);
    });
}

/// Behind a loss the kernel is silent of further ones until all that it kept was read, and there may be more of that than is
/// read at a time: what changes while all is read anew would never be told.
#[test]
fn what_changes_behind_a_loss_is_told() {
    in_namespace("what_changes_behind_a_loss_is_told", || {
        bed();
        let events = Events::open(1 << 18).unwrap();
        ip(&(0..5000)
            .map(|at| format!("route add 40.0.{}.{}/32 via 10.2.0.9\n", at >> 8, at & 255))
            .collect::<String>());
        assert!(!events.wait(PATIENCE, |_| {}).unwrap(), "5000 routes are more than it keeps");
        ip("route add 20.0.0.0/8 via 10.1.0.9\n");
        let prefix: ipnet::IpNet = "20.0.0.0/8".parse().unwrap();
        let mut told = false;
        let look = |message: socket::Message| {
            told |=
                matches!(messages::read(message.inner), Some(messages::News::Route(route)) if route.prefix == prefix);
        };
        assert!(events.wait(PATIENCE, look).unwrap());
        assert!(told);
    });
}

/// A port `a` that the kernel calls 7, without a kernel.
fn alone() -> (Arc<Forwarding>, State) {
    let port =
        PortInfo { name: "a".to_owned(), mac: [2; 6], mtu: 1500, interface: Some("a0".to_owned()), addresses: vec![] };
    let tables = Forwarding::new(&["a".to_owned()]);
    let writer = tables.writer().unwrap();
    let mut state = State::new(tables.clone(), writer, &[port]);
    let mut link = LinkMessage::default();
    link.header.index = 7;
    link.header.flags = LinkFlags::Up | LinkFlags::LowerUp;
    link.attributes = vec![LinkAttribute::IfName("a0".to_owned()), LinkAttribute::Address(vec![2; 6])];
    tell(&mut state, RouteNetlinkMessage::NewLink(link));
    (tables, state)
}

fn tell(state: &mut State, inner: RouteNetlinkMessage) {
    state.apply(socket::Message { flags: 0, inner });
}

/// Encapsulations are the host's: a router that sent such packets on as they are would leak them.
#[test]
fn routes_that_wrap_packets_are_left_to_the_host() {
    let (tables, mut state) = alone();
    let reader = tables.join();
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
        tell(&mut state, RouteNetlinkMessage::NewRoute(message));
        fate(&reader, 0, &format!("{net}.1.1.1"))
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
    // It loses what wrapped it.
    assert_eq!(route(21, single(Vec::new())), "0 10.1.0.9");
}

/// Who was refused is told of only once by the kernel: all are read anew, but not before there is room.
#[test]
fn neighbours_that_were_left_out_are_read_when_there_is_room() {
    let (tables, mut state) = alone();
    let reader = tables.join();
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
    while tables.count(Count::Refused) == 0 {
        assert!(!state.take_left_out());
        number += 1;
        tell(&mut state, RouteNetlinkMessage::NewNeighbour(message(number)));
    }
    assert!(known(1) && !known(number) && !state.take_left_out());
    tell(&mut state, RouteNetlinkMessage::DelNeighbour(message(1)));
    assert!(state.take_left_out() && !state.take_left_out());
}

#[test]
fn tables_have_one_writer() {
    let tables = Forwarding::new(&["a".to_owned()]);
    let _writer = tables.writer();
    let error = Mirror::start(tables, &[]).err().unwrap();
    assert_eq!(error.to_string(), "kernel: its tables are written already");
}
