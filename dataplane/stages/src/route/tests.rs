use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use proptest::prelude::*;

use super::*;
use crate::bench;
use dataplane_core::harness::{Fate, Harness, Outcome, frame, port};
use dataplane_core::pipeline::{PortInfo, Resources};
use dataplane_testing::{Folder, strategies};

/// Returns a packet to a destination.
fn to(destination: IpAddr) -> Vec<u8> {
    match destination {
        IpAddr::V4(address) => frame().ipv4([192, 0, 2, 9].into(), address).udp(1, 2).build(),
        IpAddr::V6(address) => frame().ipv6("2001:db8:ffff::9".parse().unwrap(), address).udp(1, 2).build(),
    }
}

fn send(harness: &mut Harness, destination: &str) -> Outcome {
    harness.run_one(&to(destination.parse().unwrap()))
}

/// Returns the egress port and next hop of a routed packet, or the fate of any other packet.
fn hop(outcome: &Outcome) -> Result<(u8, u32), Fate> {
    match &outcome.fate {
        Fate::Next => Ok((outcome.meta.egress, outcome.meta.next_hop)),
        other => Err(other.clone()),
    }
}

const TABLE: &str = r#"
table = [
    { prefix = "0.0.0.0/0", via = "192.0.2.1", port = "a" },
    { prefix = "10.0.0.0/8", port = "b" },
    { prefix = "10.66.0.0/16", drop = true },
    { prefix = "2001:db8::/32", via = "2001:db8::1", port = "b" },
    { prefix = "203.0.113.0/24", via = "2001:db8::1", port = "b" },
]
"#;

#[test]
fn longest_prefix_wins() {
    let mut harness = bench::parsed::<Route>(TABLE).unwrap();
    assert_eq!(hop(&send(&mut harness, "198.51.100.1")), Ok((0, 1)));
    assert_eq!(hop(&send(&mut harness, "10.1.2.3")), Ok((1, 0)));
    assert_eq!(hop(&send(&mut harness, "10.66.2.3")), Err(Fate::Dropped("blackhole".to_owned())));
    assert_eq!(hop(&send(&mut harness, "2001:db8::77")), Ok((1, 2)));
    assert_eq!(hop(&send(&mut harness, "203.0.113.9")), Ok((1, 2)));
    assert_eq!(hop(&send(&mut harness, "2001:db9::1")), Err(Fate::Output("no_route".to_owned())));
    let arp = frame().ether_type(0x88cc).payload(&[0; 46]).build();
    assert_eq!(hop(&harness.run_one(&arp)), Err(Fate::Dropped("unsupported".to_owned())));
}

#[test]
fn packets_for_this_host_leave_by_local_output() {
    let addresses = ["10.0.0.1/24", "192.0.2.1/31", "2001:db8::1/64"].map(|text| text.parse().unwrap());
    let here = PortInfo { addresses: addresses.to_vec(), ..port("a") };
    let builder = Harness::builder().ports(&[here, port("b")]).after(crate::parse::Parse::default());
    let more = "\ntable = [{ prefix = '10.0.0.0/24', port = 'a' }, { prefix = '10.0.0.0/32', port = 'b' }, \
                { prefix = '0.0.0.0/0', port = 'b' }, { prefix = '::/0', port = 'b' }]";
    let mut harness = builder.build::<Route>(more).unwrap();
    let mut sent = |to: &str| {
        let mut bytes = self::to(to.parse().unwrap());
        bytes[..6].copy_from_slice(&port("a").mac);
        hop(&harness.run_one(&bytes))
    };
    let local = Err(Fate::Output("local".to_owned()));
    // A network of two hosts (/31) has no broadcast address. A route of the config overrides the route to the network
    // address 10.0.0.0 of the host.
    for own in ["10.0.0.1", "10.0.0.255", "192.0.2.1", "2001:db8::1"] {
        assert_eq!(sent(own), local, "{own}");
    }
    for (other, egress) in [("10.0.0.2", 0), ("10.0.0.0", 1), ("192.0.2.0", 1), ("2001:db8::2", 1), ("10.0.1.255", 1)] {
        assert_eq!(sent(other), Ok((egress, 0)), "{other}");
    }
}

/// Returns the drop reason, or `None` if the packet was not dropped.
fn dropped(outcome: &Outcome) -> Option<&str> {
    match &outcome.fate {
        Fate::Dropped(reason) => Some(reason),
        _ => None,
    }
}

#[test]
fn invalid_sources_are_dropped_as_martian() {
    let mut harness = bench::parsed::<Route>(TABLE).unwrap();
    let mut from = |source: &str| {
        let packet = match source.parse().unwrap() {
            IpAddr::V4(source) => frame().ipv4(source, [10, 1, 2, 3].into()).udp(1, 2).build(),
            IpAddr::V6(source) => frame().ipv6(source, "2001:db8::77".parse().unwrap()).udp(1, 2).build(),
        };
        dropped(&harness.run_one(&packet)).map(str::to_owned)
    };
    let v4 = ["0.0.0.0", "0.255.255.255", "127.0.0.1", "127.255.255.255", "224.0.0.1", "240.0.0.1", "255.255.255.255"];
    let v6 = ["::", "::1", "fe80::1", "febf:ffff::1", "ff00::", "ff02::1", "ffff::1"];
    for source in v4.into_iter().chain(v6) {
        assert_eq!(from(source).as_deref(), Some("martian"), "{source}");
    }
    let good =
        ["1.0.0.0", "126.255.255.255", "128.0.0.1", "223.255.255.255", "::2", "fe7f:ffff::1", "fec0::1", "fd00::1"];
    for source in good {
        assert_eq!(from(source), None, "{source}");
    }
}

#[test]
fn frames_to_other_mac_addresses_are_dropped() {
    let port = |interface: Option<&str>, addresses: &[&str]| PortInfo {
        interface: interface.map(str::to_owned),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        ..port("a")
    };
    let table = "table = [{ prefix = \"0.0.0.0/0\", port = \"a\" }]";
    let to = |mac: [u8; 6]| {
        let ip = frame()
            .ethernet(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr(mac))
            .ipv4([192, 0, 2, 9].into(), [192, 0, 2, 7].into());
        ip.udp(1, 2).build()
    };
    let macs = [[2, 0, 0, 0, 0, 10], [2, 0, 0, 0, 0, 11], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]];
    let frames = macs.map(to);
    let fates = |port: PortInfo| -> Vec<bool> {
        let mut harness = bench::builder().ports(&[port]).build::<Route>(table).unwrap();
        let outcomes = harness.run(&frames);
        let reasons = outcomes.iter().map(dropped);
        reasons.inspect(|reason| assert!(matches!(reason, None | Some("not_for_us")))).map(|r| r.is_none()).collect()
    };
    assert_eq!(fates(port(Some("eth0"), &[])), [true, false, false, false]);
    assert_eq!(fates(port(None, &["192.0.2.1/24"])), [true, false, false, false]);
    // The port accepts every MAC address.
    assert_eq!(fates(port(None, &[])), [true; 4]);
}

#[test]
fn vlan_frames_are_dropped_as_tagged() {
    let mut harness = bench::parsed::<Route>(TABLE).unwrap();
    let mut of = |tags: &[u16]| {
        let ip = frame().ipv4([192, 0, 2, 9].into(), [10, 1, 2, 3].into()).udp(1, 2);
        let tagged = tags.iter().fold(ip, |frame, tci| frame.vlan(*tci));
        dropped(&harness.run_one(&tagged.build())).map(str::to_owned)
    };
    for tags in [&[1][..], &[4095], &[0xe064], &[0, 7], &[7, 0], &[0, 0]] {
        assert_eq!(of(tags).as_deref(), Some("tagged"), "{tags:x?}");
    }
    // A tag with the VLAN ID 0 carries only a priority, so these frames are in no VLAN.
    for tags in [&[][..], &[0], &[0xe000], &[0x1000]] {
        assert_eq!(of(tags), None, "{tags:x?}");
    }
}

#[test]
fn vlan_frames_leave_by_local_output_if_the_routes_come_from_the_kernel() {
    let port = PortInfo { interface: Some("eth0".to_owned()), ..port("a") };
    let mut harness = bench::builder().ports(&[port]).build::<Route>("source = \"kernel\"").unwrap();
    let mut to = |destination: [u8; 6], tci: u16| {
        let ethernet = frame().ethernet(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr(destination)).vlan(tci);
        harness.run_one(&ethernet.ipv4([192, 0, 2, 9].into(), [10, 1, 2, 3].into()).udp(1, 2).build()).fate
    };
    let own = [2, 0, 0, 0, 0, 10];
    assert_eq!(to(own, 7), Fate::Output("local".to_owned()));
    assert_eq!(to(own, 0), Fate::Output("no_route".to_owned()));
    assert_eq!(to([2, 0, 0, 0, 0, 11], 7), Fate::Dropped("not_for_us".to_owned()));
}

#[test]
fn mixed_batch_gives_the_results_of_single_packets() {
    let mut harness = bench::parsed::<Route>(TABLE).unwrap();
    let destinations = ["10.0.0.1", "2001:db8::5", "1.1.1.1", "::1", "10.66.0.1", "2001:db8::6", "203.0.113.1"];
    let packets: Vec<Vec<u8>> = (0..252).map(|at| to(destinations[at % 7].parse().unwrap())).collect();
    let alone: Vec<_> = packets.iter().map(|packet| hop(&harness.run_one(packet))).collect();
    let together: Vec<_> = harness.run(&packets).iter().map(hop).collect();
    assert_eq!(alone, together);
}

#[test]
fn explain_names_prefix_and_path() {
    let text = format!("{} {}, {}]", TABLE.trim().trim_end_matches(']'), ecmp("a", 3), ecmp("b", 1));
    let mut harness = bench::parsed::<Route>(&text).unwrap();
    let mut explain = |destination: &str| {
        let address: IpAddr = destination.parse().unwrap();
        harness.explain_one(&to(address)).unwrap()
    };
    assert_eq!(explain("198.51.100.1"), "0.0.0.0/0 via 192.0.2.1 on a");
    assert_eq!(explain("10.2.3.4"), "10.0.0.0/8 on b");
    assert_eq!(explain("10.66.2.3"), "10.66.0.0/16 drop");
    assert_eq!(explain("2001:db8:1::1"), "2001:db8::/32 via 2001:db8::1 on b");
    assert_eq!(explain("::1"), "no route to ::1");
    let several = explain("172.16.0.1");
    assert!(several.starts_with("172.16.0.0/12 via 192.0.2.7 on "), "{several}");
    assert!(several.ends_with(", one of 2 paths"), "{several}");
}

fn ecmp(port: &str, weight: u16) -> String {
    format!("{{ prefix = \"172.16.0.0/12\", via = \"192.0.2.7\", port = \"{port}\", weight = {weight} }}")
}

#[test]
fn flows_stay_on_their_path_and_follow_weights() {
    let mut harness = bench::parsed::<Route>(&format!("table = [{}, {}]", ecmp("a", 3), ecmp("b", 1))).unwrap();
    let flow = |port| frame().ipv4([192, 0, 2, 9].into(), [172, 16, 0, 1].into()).udp(port, 53).build();
    let flows: Vec<Vec<u8>> = (0..256).map(flow).collect();
    let ports =
        |harness: &mut Harness| -> Vec<u8> { harness.run(&flows).iter().map(|outcome| outcome.meta.egress).collect() };
    let first = ports(&mut harness);
    assert_eq!(first, ports(&mut harness));
    let light = first.iter().filter(|port| **port == 1).count();
    assert!((20..=110).contains(&light), "{light} of 256 flows instead of about a quarter");
}

#[test]
fn routes_of_a_file_are_added_to_the_routes_of_the_config() {
    let text = "# edge\n10.0.0.0/8 via 192.0.2.1 port a # default\n\n  10.1.0.0/16 port b weight 2\r\n10.2.0.0/16 drop\n\
                2001:db8::/32 via fe80::1 port b";
    let folder = Folder::new();
    folder.write("routes.txt", text);
    let parameters = "file = \"routes.txt\"\ntable = [{ prefix = \"10.3.0.0/16\", port = \"b\" }]";
    let mut harness = bench::builder().folder(folder.path()).build::<Route>(parameters).unwrap();
    assert_eq!(hop(&send(&mut harness, "10.9.0.1")), Ok((0, 1)));
    assert_eq!(hop(&send(&mut harness, "10.1.0.1")), Ok((1, 0)));
    assert_eq!(hop(&send(&mut harness, "10.2.0.1")), Err(Fate::Dropped("blackhole".to_owned())));
    assert_eq!(hop(&send(&mut harness, "10.3.0.1")), Ok((1, 0)));
    assert_eq!(hop(&send(&mut harness, "2001:db8::1")), Ok((1, 2)));
    assert_eq!(harness.counters(), [("routes".to_owned(), 5)]);
}

#[test]
fn only_one_worker_reports_the_number_of_routes() {
    let mut resources = Resources::new(vec![port("a")], Path::new(""));
    let counters = [0, 1].map(|worker| {
        let text = "table = [{ prefix = \"::/0\", port = \"a\" }, { prefix = \"10.0.0.0/8\", drop = true }]";
        let mut stage: Route = toml::from_str(text).unwrap();
        stage.prepare(&mut Setup::new(&mut resources, "routes", worker, 2)).unwrap();
        let mut counters = Vec::new();
        stage.counters(&mut |name: &str, value: u64| counters.push((name.to_owned(), value)));
        counters
    });
    assert_eq!(counters, [vec![("routes".to_owned(), 2)], vec![]]);
}

#[test]
fn workers_share_tables_and_next_hop_numbers() {
    let mut resources = Resources::new(vec![port("a")], Path::new(""));
    let mut prepare = |name: &str, worker| {
        let text = "table = [{ prefix = \"::/0\", via = \"fe80::1\", port = \"a\" }]";
        let mut stage: Route = toml::from_str(text).unwrap();
        stage.prepare(&mut Setup::new(&mut resources, name, worker, 2)).unwrap();
        stage.routes.unwrap()
    };
    let first = prepare("one", 0);
    assert!(Arc::ptr_eq(&first, &prepare("one", 1)));
    let other = prepare("two", 0);
    assert!(!Arc::ptr_eq(&first, &other));
    assert_eq!(first.paths.choose(0, 7), other.paths.choose(0, 7));
}

/// Tests a sparse file of 512 MiB without a line end, a file with a line of 2 MiB, and a file with 20 million invalid
/// lines.
#[test]
fn large_invalid_file_of_routes_is_refused_early() {
    let folder = Folder::new();
    let refused = || bench::builder().folder(folder.path()).build::<Route>("file = \"routes.txt\"").err().unwrap();
    std::fs::File::create(folder.file("routes.txt")).unwrap().set_len(512 << 20).unwrap();
    let error = refused();
    assert!(
        error.ends_with("routes.txt: byte 0 is NUL, so the file is not a text file; help: name a text file"),
        "{error}"
    );
    folder.write("routes.txt", format!("10.0.0.0/8 port a\n{}\n", "é".repeat(1 << 20)));
    let error = refused();
    let line = format!("routes.txt:2: `{}…`: the line has 2097152 bytes, more than 512", "é".repeat(64));
    assert!(error.lines().nth(1).unwrap().starts_with(&line), "{}", error.len());
    folder.write("routes.txt", "x\n".repeat(20_000_000));
    let error = refused();
    assert!(error.starts_with("file: routes.txt has 10000 invalid lines or more") && error.len() < 20_000, "{error}");
}

#[test]
fn every_bad_line_is_reported() {
    let text = "10.0.0.0/8 port a\n10.0.0/8 port a\n10.1.0.0/16 via 192.0.2.300 port a\n10.2.0.0/16 prot a\n\
                10.3.0.0/16 port x\n10.4.0.0/16\n10.5.0.0/16 port\n10.6.0.0/16 port a weight 65\n10.0.0.0/8 port a\n\
                10.8.0.0/16 drop port a\n2001:db8::/32 via 192.0.2.1 port a\n";
    let folder = Folder::new();
    folder.write("routes.txt", text);
    let error = bench::builder().folder(folder.path()).build::<Route>("file = \"routes.txt\"").err().unwrap();
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines[0], "file: routes.txt has 10 invalid lines");
    let prefix = "write a prefix such as 10.0.0.0/8 or 2001:db8::/32";
    assert_eq!(lines[1], format!("routes.txt:2: `10.0.0/8 port a`: `10.0.0/8` is not a prefix; help: {prefix}"));
    assert_eq!(lines[2], "routes.txt:3: `10.1.0.0/16 via 192.0.2.300 port a`: `192.0.2.300` is not an IP address");
    assert_eq!(lines[3], "routes.txt:4: `10.2.0.0/16 prot a`: `prot` is not one of via, port, weight, drop");
    assert!(lines[4].starts_with("routes.txt:5: `10.3.0.0/16 port x`: there is no port `x`; help: the ports are"));
    assert!(lines[5].starts_with("routes.txt:6: `10.4.0.0/16`: no port is given"), "{}", lines[5]);
    assert_eq!(lines[6], "routes.txt:7: `10.5.0.0/16 port`: `port` has no value");
    assert_eq!(
        lines[7],
        "routes.txt:8: `10.6.0.0/16 port a weight 65`: a weight of 65 is out of range; help: set a weight from 1 to 64"
    );
    assert_eq!(lines[8], "routes.txt:9: `10.0.0.0/8 on a` is listed twice");
    assert!(lines[9].contains(":10: `10.8.0.0/16 drop port a`: a route with drop cannot have via or port"));
    assert!(lines[10].contains(":11: ") && lines[10].contains("an IPv6 prefix cannot have the IPv4 gateway 192.0.2.1"));
    assert!(error.ends_with(&format!(
        "\nhelp: {}",
        "a line is `PREFIX via ADDRESS port NAME [weight N]`, `PREFIX port NAME [weight N]` or `PREFIX drop`"
    )));
}

#[test]
fn at_most_a_hundred_bad_lines_are_reported() {
    let folder = Folder::new();
    folder.write("routes.txt", "nonsense\n".repeat(250));
    let error = bench::builder().folder(folder.path()).build::<Route>("file = \"routes.txt\"").err().unwrap();
    assert!(error.starts_with("file: routes.txt has 250 invalid lines\n"));
    assert_eq!(error.matches("is not a prefix").count(), 100);
    assert!(error.contains("\nand 150 more\nhelp: a line is"));
}

#[test]
fn bad_entries_are_reported_with_their_place() {
    let refused = |table: &str| bench::parsed::<Route>(&format!("table = [{table}]")).err().unwrap();
    let unknown = refused("{ prefix = \"10.0.0.0/8\", port = \"a\" }, { prefix = \"::/0\", port = \"c\" }");
    assert!(unknown.starts_with("table[1].port: there is no port `c`"), "{unknown}");
    let none = refused("{ prefix = \"10.0.0.0/8\" }");
    assert_eq!(none, "table[0].port: no port is given; help: set port, or drop = true");
    let both = refused("{ prefix = \"10.0.0.0/8\", drop = true, via = \"192.0.2.1\" }");
    assert_eq!(
        both,
        "table[0].drop: a route with drop cannot have via or port; help: remove via and port, or remove drop"
    );
    let twice =
        refused("{ prefix = \"10.0.0.0/8\", port = \"a\", weight = 2 }, { prefix = \"10.0.0.0/8\", port = \"a\" }");
    assert_eq!(twice, "table[1]: `10.0.0.0/8 on a` is listed twice");
    let torn = refused("{ prefix = \"10.0.0.0/8\", port = \"a\" }, { prefix = \"10.0.0.0/8\", drop = true }");
    assert_eq!(torn, "table[1]: `10.0.0.0/8 drop` conflicts with a path for this prefix");
    assert!(refused("{ prefix = \"10.0.0.1/8\", port = \"a\" }").contains("did you mean 10.0.0.0/8?"));
    assert!(refused("{ prefix = \"10.0.0.0/8\", port = \"a\", weight = 0 }").starts_with("table[0].weight: "));
    let missing = bench::parsed::<Route>("file = \"nowhere/routes.txt\"").err().unwrap();
    assert!(missing.starts_with("file: nowhere/routes.txt: No such file"), "{missing}");
}

#[test]
fn million_routes_can_be_loaded() {
    let mut text = String::new();
    for i in 0..1_000_000u32 {
        // All /24 prefixes differ, because each contains the number of its route.
        let address = Ipv4Addr::from((i << 8).wrapping_add(1 << 24) & 0xffff_ff00);
        let gateway = i % 200 + 1;
        writeln!(text, "{address}/24 via 192.0.2.{gateway} port {}", if i % 2 == 0 { "a" } else { "b" }).unwrap();
    }
    let folder = Folder::new();
    folder.write("full.txt", text);
    let mut harness = bench::builder().folder(folder.path()).build::<Route>("file = \"full.txt\"").unwrap();
    for i in (0..1_000_000u32).step_by(7919) {
        let outcome = harness.run_one(&to(Ipv4Addr::from((i << 8) + (1 << 24) + 9).into()));
        // Next hops are numbered in the order in which the file names the gateways.
        assert_eq!(hop(&outcome), Ok(((i % 2) as u8, i % 200 + 1)));
    }
}

/// Generates prefixes that are close together, and often one inside another.
fn prefix() -> impl Strategy<Value = IpNet> {
    let v4 =
        (0u32..4, 0u8..=32).prop_map(|(low, len)| Ipv4Net::new_assert((low << 28 | low).into(), len).trunc().into());
    let v6 =
        (0u128..4, 0u8..=128).prop_map(|(low, len)| Ipv6Net::new_assert((low << 124 | low).into(), len).trunc().into());
    prop_oneof![v4, v6]
}

fn destination() -> impl Strategy<Value = IpAddr> {
    let v4 = (0u32..4, 0u32..4).prop_map(|(high, low)| Ipv4Addr::from(high << 28 | low).into());
    let v6 = (0u128..4, 0u128..4).prop_map(|(high, low)| Ipv6Addr::from(high << 124 | low).into());
    prop_oneof![v4, v6]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Compares the lookup with a linear search over all prefixes.
    #[test]
    fn lookup_agrees_with_linear_search(
        prefixes in prop::collection::btree_map(prefix(), 1u8..250, 0..40),
        destinations in prop::collection::vec(destination(), 1..100),
    ) {
        let entry = |(prefix, last): (&IpNet, &u8)| {
            format!("{{ prefix = \"{prefix}\", via = \"2001:db8::{last:x}\", port = \"b\" }}")
        };
        let table: Vec<String> = prefixes.iter().map(entry).collect();
        let mut harness = bench::parsed::<Route>(&format!("table = [{}]", table.join(", "))).unwrap();
        let packets: Vec<Vec<u8>> = destinations.iter().map(|address| to(*address)).collect();
        // Next hops are numbered in the order in which the table names them.
        let mut gateways: Vec<u8> = Vec::new();
        for last in prefixes.values() {
            if !gateways.contains(last) {
                gateways.push(*last);
            }
        }
        for (destination, outcome) in destinations.iter().zip(harness.run(&packets)) {
            let covers = prefixes.iter().filter(|(prefix, _)| prefix.contains(destination));
            let expected = match covers.max_by_key(|(prefix, _)| prefix.prefix_len()) {
                Some((_, last)) => Ok((1, gateways.iter().position(|g| g == last).unwrap() as u32 + 1)),
                None => Err(Fate::Output("no_route".to_owned())),
            };
            prop_assert_eq!(hop(&outcome), expected);
        }
    }

    /// The result for a packet does not depend on the other packets of its batch.
    #[test]
    fn result_of_a_packet_is_independent_of_its_batch(
        frames in prop::collection::vec(
            prop_oneof![6 => (0..5usize, 0..30u8).prop_map(usual_frame), 1 => strategies::any_frame()], 1..100,
        ),
        has_address in any::<bool>(),
    ) {
        let addresses = if has_address { vec!["192.0.2.254/24".parse().unwrap()] } else { Vec::new() };
        let ports = [PortInfo { addresses, ..port("a") }, port("b")];
        let mut harness = bench::builder().ports(&ports).build::<Route>(TABLE).unwrap();
        let all = harness.run(&frames);
        for (frame, outcome) in frames.iter().zip(all) {
            let alone = harness.run_one(frame);
            prop_assert_eq!((hop(&outcome), &outcome.bytes), (hop(&alone), &alone.bytes));
        }
    }
}

/// Builds an untagged frame with IPv4 and UDP. About one of thirty frames has a martian source address. About one of
/// thirty frames has a destination MAC address other than the MAC address of the port.
fn usual_frame((to, odd): (usize, u8)) -> Vec<u8> {
    let to_mac = if odd == 1 { [2, 0, 0, 0, 0, 99] } else { [2, 0, 0, 0, 0, 10] };
    let source = if odd == 2 { [127, 0, 0, 1] } else { [172, 16, 0, odd] };
    let destination = [[8, 8, 8, 8], [10, 1, 0, odd], [10, 66, 0, 1], [203, 0, 113, 1], [192, 0, 2, 254]][to];
    frame().ethernet([2, 0, 0, 0, 9, 9].into(), to_mac.into()).ipv4(source.into(), destination.into()).udp(1, 2).build()
}
