//! Tests of the bridge.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use dataplane_core::harness::{Fate, Harness, frame, port};
use dataplane_core::pipeline::Resources;

fn host_mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, number])
}

fn bench(ingress: u8, parameters: &str) -> Result<Harness, String> {
    let ports = ["a", "b", "c", "d"].map(port);
    Harness::builder().ports(&ports).ingress(ingress).build::<Bridge>(parameters)
}

fn counter(bench: &Harness, name: &str) -> u64 {
    bench.counters().into_iter().find(|(known, _)| known == name).unwrap().1
}

/// Sends one frame through the bridge. Returns the egress ports of the frame, or the drop reason.
fn send(bench: &mut Harness, from: MacAddr, to: MacAddr, vlan: u16) -> Result<Vec<u8>, String> {
    let sent = frame().ethernet(from, to);
    let sent = if vlan == 0 { sent } else { sent.vlan(vlan) };
    let sent = sent.ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(1, 2).payload(&[9; 50]).build();
    let mut ports = Vec::new();
    for outcome in bench.run(&[&sent]) {
        match outcome.fate {
            Fate::Next => {
                assert_eq!(outcome.bytes, sent);
                ports.push(outcome.meta.egress);
            }
            Fate::Dropped(reason) => return Err(reason),
            other => panic!("{other:?}"),
        }
    }
    ports.sort_unstable();
    Ok(ports)
}

proptest! {
    #[test]
    fn frames_go_to_the_port_where_the_address_was_last_seen(
        frames in prop::collection::vec((0..4u8, 0..6u8, 0..6u8, 0..3u16, 0..200u64), 1..60),
    ) {
        let mut bench = bench(0, "ageing = \"100s\"").unwrap();
        let mut heard: HashMap<(u8, u16), (u8, u64)> = HashMap::new();
        let mut now = 0;
        for (ingress, from, to, vlan, later) in frames {
            // The steps are multiples of the table's unit of time, so that the model does not have to round.
            now += later / 4 * 4;
            bench.advance(later / 4 * 4_000_000_000);
            bench.set_ingress(ingress);
            heard.insert((from, vlan), (ingress, now));
            let known = heard.get(&(to, vlan)).filter(|(_, at)| now - at <= 100).map(|(port, _)| *port);
            let expected = match known {
                Some(port) if port == ingress => Err("same_port".to_owned()),
                Some(port) => Ok(vec![port]),
                None => Ok((0..4).filter(|port| *port != ingress).collect()),
            };
            prop_assert_eq!(send(&mut bench, host_mac(from), host_mac(to), vlan), expected);
        }
    }
}

#[test]
fn multicast_is_flooded_and_reserved_addresses_are_dropped() {
    let mut bench = bench(1, "").unwrap();
    assert_eq!(send(&mut bench, host_mac(1), MacAddr::BROADCAST, 0), Ok(vec![0, 2, 3]));
    assert_eq!(send(&mut bench, host_mac(1), MacAddr([1, 0, 0x5e, 0, 0, 5]), 0), Ok(vec![0, 2, 3]));
    assert_eq!(send(&mut bench, host_mac(1), MacAddr([1, 0x80, 0xc2, 0, 0, 0xe]), 0), Err("reserved".to_owned()));
    assert_eq!(send(&mut bench, MacAddr([3; 6]), host_mac(1), 0), Err("bad_source".to_owned()));
    assert_eq!(send(&mut bench, MacAddr::ZERO, host_mac(1), 0), Err("bad_source".to_owned()));
}

/// The bridge does not parse the bytes after the MAC addresses and the VLAN tag.
#[test]
fn frame_with_any_payload_is_forwarded() {
    let mut bench = bench(0, "ports = ['a', 'b']").unwrap();
    for behind in
        [&[8, 0, 0x45][..], &[8, 0, 0xff, 0xff], &[0x86, 0xdd], &[0x81, 0, 0, 7, 0x81, 0, 0, 9, 8, 0], &[0x81, 0]]
    {
        let sent: Vec<u8> = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], behind].concat();
        let outcome = bench.run_one(&sent);
        assert_eq!((outcome.fate, outcome.bytes, outcome.meta.egress), (Fate::Next, sent, 1));
    }
}

#[test]
fn vlans_are_separate_and_each_port_carries_only_its_vlans() {
    let members = "ports = ['a', 'b', 'c']\nmembers = [{ port = 'b', vlans = [0, 10] }, { port = 'c', vlans = [20] }]";
    let mut bench = bench(0, members).unwrap();
    let mut to = |ingress, vlan| {
        bench.set_ingress(ingress);
        send(&mut bench, host_mac(ingress), MacAddr::BROADCAST, vlan)
    };
    assert_eq!((to(0, 0), to(0, 10), to(0, 20)), (Ok(vec![1]), Ok(vec![1]), Ok(vec![2])));
    assert_eq!(to(0, 30), Err("alone".to_owned()));
    assert_eq!((to(1, 20), to(3, 0)), (Err("not_a_member".to_owned()), Err("not_a_member".to_owned())));
}

/// The addresses of a network are often equally spaced, such as consecutive numbers. Such addresses must spread over
/// the buckets, whatever the seeds of the table are.
#[test]
fn equally_spaced_addresses_spread_over_the_buckets() {
    for _ in 0..32 {
        for shift in [0, 8, 16] {
            let table = BridgeTable::new();
            for number in 0..40_000u64 {
                let [.., a, b, c, d, e] = (number << shift).to_be_bytes();
                table.learn(MacAddr([2, a, b, c, d, e]), 0, 1, 1);
            }
            let evicted = table.evicted.load(Ordering::Relaxed);
            assert!(evicted < 12_000, "distance {}, seeds {:?}: {evicted} evictions", 1 << shift, table.seeds);
        }
    }
}

#[test]
fn entry_of_a_worker_whose_clock_is_ahead_is_fresh() {
    let table = BridgeTable::new();
    for (seen, now, expected) in [(5, 4, Some(2)), (5, 5, Some(2)), (5, 80, Some(2)), (5, 81, None), (0, TIME, Some(2))]
    {
        table.learn(host_mac(1), 0, 2, seen);
        assert_eq!(table.find(host_mac(1), 0, now, 75), expected, "seen at {seen}, now {now}");
    }
}

/// Many addresses fill the table. The table does not grow, and learns a later address. A sweep removes only the old
/// addresses.
#[test]
fn full_table_learns_a_new_address_and_the_sweep_keeps_it() {
    let table = BridgeTable::new();
    for number in 0..200_000u32 {
        let [a, b, c, d] = number.to_be_bytes();
        table.learn(MacAddr([2, 9, a, b, c, d]), 0, 1, 1);
    }
    assert_eq!(table.words.len(), 1 << 16);
    table.learn(host_mac(1), 0, 2, 2);
    assert_eq!(table.find(host_mac(1), 0, 2, 75), Some(2));
    let left = |table: &BridgeTable| table.words.iter().filter(|way| way.load(Ordering::Relaxed) != 0).count();
    assert!(left(&table) > 60_000);
    for from in (0..1 << BUCKET_BITS).step_by(SWEPT) {
        table.sweep(from, 78, 76);
    }
    assert_eq!(left(&table), 1);
}

/// An attacker who knows the buckets sends from four addresses that share the bucket of a host on another port.
#[test]
fn four_addresses_of_one_bucket_do_not_evict_a_host_of_another_port() {
    let table = BridgeTable::new();
    let bucket = |mac| table.place(mac, 0).0.as_ptr();
    let addresses = (0u32..).map(|number| {
        let [a, b, c, d] = number.to_be_bytes();
        MacAddr([2, 9, a, b, c, d])
    });
    let host = host_mac(1);
    let chosen: Vec<MacAddr> = addresses.filter(|mac| bucket(*mac) == bucket(host)).take(4).collect();
    table.learn(host, 0, 2, 1);
    for mac in &chosen {
        table.learn(*mac, 0, 1, 2);
    }
    assert_eq!(table.find(host, 0, 2, 75), Some(2), "seeds {:?}", table.seeds);
    // The last address replaced the first address, and the counter `evicted` counts the replacement.
    let found: Vec<Option<u8>> = chosen.iter().map(|mac| table.find(*mac, 0, 2, 75)).collect();
    assert_eq!((found.iter().flatten().count(), table.evicted.load(Ordering::Relaxed)), (3, 1));
}

#[test]
fn evictions_of_addresses_are_counted() {
    let mut bench = bench(0, "").unwrap();
    assert_eq!(counter(&bench, "evicted"), 0);
    // 65,536 entries cannot hold 66,000 addresses.
    for first in (0..66_000u32).step_by(80) {
        let frames = (first..first + 80).map(|number| {
            let [_, a, b, c] = number.to_be_bytes();
            frame().ethernet(MacAddr([2, 1, 1, a, b, c]), host_mac(1)).build()
        });
        let frames: Vec<Vec<u8>> = frames.collect();
        bench.run(&frames);
    }
    let evicted = counter(&bench, "evicted");
    assert!(evicted >= 464, "{evicted}");
    assert_eq!((counter(&bench, "learned"), counter(&bench, "learned_max")), (66_000 - evicted, 66_000 - evicted));
}

#[test]
fn learned_addresses_are_counted_until_they_are_removed() {
    let mut bench = bench(0, "ageing = \"10s\"").unwrap();
    let counted = |bench: &Harness| (counter(bench, "learned"), counter(bench, "learned_max"));
    for (host, vlan) in [(1, 0), (2, 0), (1, 7), (2, 0)] {
        send(&mut bench, host_mac(host), MacAddr::BROADCAST, vlan).unwrap();
    }
    assert_eq!(counted(&bench), (3, 3));
    bench.advance(60_000_000_000);
    send(&mut bench, host_mac(2), MacAddr::BROADCAST, 0).unwrap();
    // Each tick searches some buckets for aged addresses.
    for _ in 0..=(1 << BUCKET_BITS) / SWEPT {
        bench.tick();
    }
    assert_eq!(counted(&bench), (1, 3));
    // The new bridge uses the same table.
    bench.change::<Bridge>("ageing = \"20s\"").unwrap();
    assert_eq!(counted(&bench), (1, 3));
}

#[test]
fn only_one_worker_reports_the_number_of_learned_addresses() {
    let mut resources = Resources::new(["a", "b"].map(port).to_vec(), std::path::Path::new(""));
    let stages = [0, 1].map(|worker| {
        let mut stage: Bridge = toml::from_str("").unwrap();
        stage.prepare(&mut Setup::new(&mut resources, "bridge", worker, 2)).unwrap();
        stage.table.as_ref().unwrap().learn(host_mac(worker as u8), 0, 1, 1);
        stage
    });
    let learned = stages.each_ref().map(|stage| {
        let mut learned = Vec::new();
        stage.counters(&mut |name: &str, value: u64| learned.extend(name.starts_with("learned").then_some(value)));
        learned
    });
    assert_eq!(learned, [[2, 2], [0, 0]]);
}

/// Two workers see an address again and again while a third worker removes the address.
#[test]
fn address_that_is_updated_and_removed_at_once_is_counted() {
    let table = BridgeTable::new();
    table.learn(host_mac(1), 0, 1, 0);
    let index = table.words.iter().position(|way| way.load(Ordering::Relaxed) != 0).unwrap();
    let bucket = index / (table.words.len() >> BUCKET_BITS);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| (0..2_000_000).for_each(|round| table.learn(host_mac(1), 0, 1, round % 2)));
        }
        threads.spawn(|| (0..400_000).for_each(|_| table.sweep(bucket, 100, 1)));
    });
    // A negative count is reported as 0, which is correct for an empty table. With this address, 0 is wrong.
    table.learn(host_mac(2), 0, 1, 0);
    let left = table.words.iter().filter(|way| way.load(Ordering::Relaxed) != 0).count() as u64;
    assert_eq!(table.learned().0, left);
}

/// Addresses that differ only in their first bits are spread over the buckets, and differently in each table.
#[test]
fn buckets_of_addresses_differ_between_tables() {
    let buckets = || {
        let table = BridgeTable::new();
        let start = table.words.as_ptr().addr();
        let bucket = |number: u16| {
            let [a, b] = number.to_be_bytes();
            table.place(MacAddr([a, b & 0xfe, 7, 7, 7, 7]), 0).0.as_ptr().addr() - start
        };
        (0..1000).map(|number| bucket(number << 1)).collect::<Vec<_>>()
    };
    let (one, other) = (buckets(), buckets());
    let shared = one.iter().zip(&other).filter(|(one, other)| one == other).count();
    let different = one.into_iter().collect::<std::collections::HashSet<_>>().len();
    assert!(different > 500 && shared < 100, "{different} different buckets, {shared} equal buckets in two tables");
}

/// Sends `count` equal frames in one batch. Returns how many frames leave the bridge, and the drop reasons of the other
/// frames.
fn send_many(bench: &mut Harness, to: MacAddr, count: usize) -> (usize, Vec<String>) {
    let sent = frame().ethernet(host_mac(1), to).payload(&[9; 50]).build();
    let (mut passed, mut dropped) = (0, Vec::new());
    for outcome in bench.run(&vec![sent; count]) {
        match outcome.fate {
            Fate::Dropped(reason) => dropped.push(reason),
            _ => passed += 1,
        }
    }
    dropped.dedup();
    (passed, dropped)
}

#[test]
fn storm_control_limits_each_kind_of_flooded_frames_of_each_port() {
    let limits = "ports = ['a', 'b']\nstorm_control = { broadcast = 10, unknown_unicast = '20pps', burst = 3 }";
    let mut bench = bench(0, limits).unwrap();
    let multicast = MacAddr([1, 0, 0x5e, 0, 0, 5]);
    assert_eq!(send_many(&mut bench, MacAddr::BROADCAST, 9), (3, vec!["broadcast_storm".to_owned()]));
    assert_eq!(send_many(&mut bench, host_mac(7), 9), (3, vec!["unknown_storm".to_owned()]));
    // The config sets no limit for multicast, and the limit of port `b` is separate from the limit of port `a`.
    assert_eq!(send_many(&mut bench, multicast, 9), (9, vec![]));
    bench.set_ingress(1);
    assert_eq!(send_many(&mut bench, MacAddr::BROADCAST, 9), (3, vec!["broadcast_storm".to_owned()]));
    // Frames to a known address are never limited. The bridge learns the address of host 2 from a frame that the bridge
    // drops.
    bench.set_ingress(0);
    send(&mut bench, host_mac(2), MacAddr::BROADCAST, 0).unwrap_err();
    bench.set_ingress(1);
    assert_eq!(send_many(&mut bench, host_mac(2), 50), (50, vec![]));
    bench.advance(100_000_000);
    assert_eq!(send_many(&mut bench, MacAddr::BROADCAST, 9).0, 1);
    assert_eq!(send_many(&mut bench, host_mac(7), 9).0, 3);
}

#[test]
fn workers_share_the_rate_of_storm_control() {
    let limits: StormControl = toml::from_str("multicast = 5\nburst = 1").unwrap();
    let second = 1_000_000_000;
    let mut harness = bench(0, "ports = ['a', 'b']\nstorm_control = { multicast = 5, burst = 1 }").unwrap();
    let passed = (0..=10).map(|_| {
        harness.advance(second / 10);
        send_many(&mut harness, MacAddr([1; 6]), 9).0
    });
    assert_eq!(passed.sum::<usize>(), 1 + 5);
    // Each worker passes at least one frame per second, even if the rate is below the number of workers.
    for (worker, workers, expected) in [(0, 2, "rate: 3"), (1, 2, "rate: 2"), (7, 8, "rate: 1,")] {
        let meter = StormMeter::new(&limits, [0].into_iter(), (worker, workers)).unwrap();
        assert!(format!("{meter:?}").contains(expected), "{meter:?}");
    }
}

/// Runs the housekeeping of the bridge. Returns the probes that the bridge sends, each with its egress port.
fn probes(bench: &mut Harness) -> Vec<(u8, Vec<u8>)> {
    bench.tick().into_iter().map(|outcome| (outcome.meta.egress, outcome.bytes)).collect()
}

/// Runs the bridge with one frame whose ingress port is `port`. Returns the drop reason, or the egress ports.
fn receive(bench: &mut Harness, port: u8, frame: &[u8]) -> Result<Vec<u8>, String> {
    bench.set_ingress(port);
    let outcomes = bench.run(&[frame]);
    outcomes
        .into_iter()
        .map(|outcome| match outcome.fate {
            Fate::Dropped(reason) => Err(reason),
            _ => Ok(outcome.meta.egress),
        })
        .collect()
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn looped_port_is_shut_and_opens_when_the_loop_is_gone() {
    let mut bench = bench(0, "loop_shut = '10s'").unwrap();
    let shut = |bench: &Harness| {
        let counters = bench.counters().into_iter().filter(|(name, _)| name.starts_with("shut_"));
        counters.map(|(_, value)| value).collect::<Vec<u64>>()
    };
    let first = probes(&mut bench);
    assert_eq!(first.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(first.iter().all(|(_, probe)| probe.len() == 60));
    assert_eq!(probes(&mut bench), []);
    send(&mut bench, host_mac(1), MacAddr::BROADCAST, 0).unwrap();
    receive(&mut bench, 2, &frame().ethernet(host_mac(3), host_mac(1)).build()).unwrap();
    // The probe of port `b` comes back at port `c`, so port `c` is shut.
    assert_eq!(receive(&mut bench, 2, &first[1].1), Err("probe".to_owned()));
    probes(&mut bench);
    assert_eq!(shut(&bench), [0, 0, 1, 0]);
    bench.set_ingress(0);
    assert_eq!(send(&mut bench, host_mac(1), MacAddr::BROADCAST, 0), Ok(vec![1, 3]));
    // Frames to the hosts behind the shut port are flooded.
    assert_eq!(send(&mut bench, host_mac(1), host_mac(3), 0), Ok(vec![1, 3]));
    bench.set_ingress(2);
    assert_eq!(send(&mut bench, host_mac(4), MacAddr::BROADCAST, 0), Err("shut".to_owned()));
    bench.advance(9 * SECOND);
    let second = probes(&mut bench);
    // The bridge drops a probe of an earlier round, and a probe that comes back at the port that sent the probe.
    // Neither probe proves a loop, because a host can send both.
    assert_eq!(receive(&mut bench, 3, &first[1].1), Err("probe".to_owned()));
    assert_eq!(receive(&mut bench, 1, &second[1].1), Err("probe".to_owned()));
    probes(&mut bench);
    assert_eq!(shut(&bench), [0, 0, 1, 0]);
    // A probe of port `c` that comes back at port `b` also shuts port `c`, because port `c` is later in the config. Port
    // `c` therefore stays shut.
    assert_eq!(receive(&mut bench, 1, &second[2].1), Err("probe".to_owned()));
    bench.advance(9 * SECOND);
    probes(&mut bench);
    bench.set_ingress(0);
    assert_eq!(send(&mut bench, host_mac(1), MacAddr::BROADCAST, 0), Ok(vec![1, 3]));
    bench.advance(SECOND);
    probes(&mut bench);
    bench.set_ingress(0);
    assert_eq!(send(&mut bench, host_mac(1), MacAddr::BROADCAST, 0), Ok(vec![1, 2, 3]));
    assert_eq!(shut(&bench), [0, 0, 1, 0]);
}

#[test]
fn probe_of_another_bridge_is_flooded() {
    let (mut bench, mut other) = (bench(0, "loop_shut = '10s'").unwrap(), bench(0, "loop_shut = '10s'").unwrap());
    let sent = probes(&mut other);
    assert_eq!(receive(&mut bench, 1, &sent[0].1), Ok(vec![0, 2, 3]));
    // A probe with a wrong authentication code is not from this bridge.
    let mut forged = probes(&mut bench)[0].1.clone();
    forged[20] ^= 1;
    assert_eq!(receive(&mut bench, 1, &forged), Ok(vec![0, 2, 3]));
}

#[test]
fn probe_has_the_lowest_vlan_of_a_port_with_vlans() {
    let parameters = "ports = ['a', 'b']\nloop_shut = '10s'\nmembers = [{ port = 'b', vlans = [30, 20] }]";
    let mut bench = bench(0, parameters).unwrap();
    let sent = probes(&mut bench);
    assert_eq!((&sent[0].1[12..14], &sent[1].1[12..18]), (&[0x88, 0xb5][..], &[0x81, 0, 0, 20, 0x88, 0xb5][..]));
    assert_eq!(receive(&mut bench, 0, &sent[1].1), Err("probe".to_owned()));
    probes(&mut bench);
    // Port `b` is shut, so VLAN 20 has no open port other than the ingress port.
    assert_eq!(send(&mut bench, host_mac(1), MacAddr::BROADCAST, 20), Err("alone".to_owned()));
}

#[test]
fn invalid_parameters_are_refused_with_their_key() {
    for (parameters, message) in [
        ("ageing = \"0s\"", "ageing: 0s is out of range"),
        ("loop_shut = '2s'", "loop_shut: 2s is out of range"),
        ("storm_control = { burst = 5 }", "storm_control: no rate is set"),
        ("storm_control = { broadcast = 1, burst = 0 }", "storm_control.burst: 0 passes no frame"),
        ("ports = ['a']", "ports: a bridge needs 2 to 64 ports, but this bridge has 1"),
        ("ports = ['a', 'b', 'a']", "ports[2]: `a` is listed twice"),
        ("ports = ['a', 'x']", "ports[1]: there is no port `x`"),
        ("ports = ['a', 'b']\nmembers = [{ port = 'c', vlans = [] }]", "members[0].port: `c` is not a port of this"),
        ("members = [{ port = 'c', vlans = [4095] }]", "members[0].vlans: 4095 is not a VLAN id"),
    ] {
        let error = bench(0, parameters).err().unwrap();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn listed_entries_have_the_learned_addresses_vlans_and_ports() {
    let table = table::BridgeTable::new();
    let mut learned = Vec::new();
    for number in 0..2_000u32 {
        let [_, a, b, c] = number.wrapping_mul(2_654_435).to_be_bytes();
        let (mac, vlan, port) = (MacAddr([2, 0, a, b, c, 7]), (number % 4095) as u16, (number % 100) as u8);
        table.learn(mac, vlan, port, 5);
        learned.push((mac, vlan, port));
    }
    // In a full bucket, a new address replaces another address, so some addresses are gone.
    learned.retain(|(mac, vlan, port)| table.find(*mac, *vlan, 5, 0) == Some(*port));
    let entries = (0..table.words.len()).filter_map(|index| table.entry(index, 7));
    let mut listed: Vec<_> =
        entries.inspect(|entry| assert_eq!(entry.age, 2)).map(|entry| (entry.mac, entry.vlan, entry.port)).collect();
    listed.sort_by_key(|(mac, vlan, _)| (mac.0, *vlan));
    learned.sort_by_key(|(mac, vlan, _)| (mac.0, *vlan));
    assert_eq!(listed, learned);
    assert!(listed.len() > 1_900, "{}", listed.len());
    // The entries have a later time than this reader, as if another worker had stored the entries.
    assert!((0..table.words.len()).filter_map(|index| table.entry(index, 4)).all(|entry| entry.age == 0));
}

#[test]
fn learned_addresses_and_their_ages_move_to_another_program() {
    let mut old = bench(0, "ageing = \"100s\"").unwrap();
    for (host, vlan, seconds) in [(1, 0, 60), (2, 7, 0)] {
        old.set_ingress(host);
        send(&mut old, host_mac(host), MacAddr::BROADCAST, vlan).unwrap();
        old.advance(seconds * 1_000_000_000);
    }
    old.tick();
    let state = old.stage().downcast::<Bridge>().unwrap().save_state().unwrap();
    let mut new = bench(0, "ageing = \"100s\"").unwrap();
    new.stage().downcast::<Bridge>().unwrap().load_state(&state).unwrap();
    assert_eq!(send(&mut new, host_mac(9), host_mac(1), 0), Ok(vec![1]));
    assert_eq!(send(&mut new, host_mac(9), host_mac(2), 7), Ok(vec![2]));
    // The first address was last seen 60 seconds before the start of the new program.
    new.advance(48_000_000_000);
    assert_eq!(send(&mut new, host_mac(9), host_mac(1), 0), Ok(vec![1, 2, 3]));
    assert_eq!(send(&mut new, host_mac(9), host_mac(2), 7), Ok(vec![2]));
    for wrong in [&[][..], &[9], &state[..state.len() - 1]] {
        assert!(new.stage().downcast::<Bridge>().unwrap().load_state(wrong).is_err());
    }
}
