//! Tests of the classifier against a model that checks the rules one by one.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ipnet::{IpNet, Ipv4Net};
use proptest::prelude::*;

use super::*;
use dataplane_testing::StopOnDrop;

/// Returns the first match by definition: checks one rule after another, field by field.
fn first_match(rules: &[Rule], key: &Key) -> Option<u32> {
    let (source, destination): (std::net::IpAddr, std::net::IpAddr) = match key.addresses {
        Addresses::V4(a, b) => (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into()),
        Addresses::V6(a, b) => (Ipv6Addr::from(a).into(), Ipv6Addr::from(b).into()),
    };
    let matches = |rule: &Rule| {
        rule.source.is_none_or(|net| net.contains(&source))
            && rule.destination.is_none_or(|net| net.contains(&destination))
            && rule.protocol.is_none_or(|protocol| protocol == key.protocol)
            && rule.source_ports.as_ref().is_none_or(|r| key.ports.is_some_and(|p| r.contains(&p.0)))
            && rule.destination_ports.as_ref().is_none_or(|r| key.ports.is_some_and(|p| r.contains(&p.1)))
            && rule.vlan.is_none_or(|vlan| key.vlan == Some(vlan))
            && rule.tcp_flags.is_none_or(|m| key.tcp_flags.is_some_and(|flags| flags & m.mask == m.value))
    };
    rules.iter().position(matches).map(|index| index as u32)
}

/// Generates numbers that are often near 0 or near the maximum, so that packets often match rules.
fn number(max: u128) -> impl Strategy<Value = u128> {
    prop_oneof![6 => 0..6u128, 1 => (0..3u128).prop_map(move |below| max - below), 1 => 0..=max]
}

fn net() -> impl Strategy<Value = IpNet> {
    let len = prop_oneof![1 => Just(0u8), 3 => 28..=32u8];
    let v4 = (number(u32::MAX.into()), len.clone())
        .prop_map(|(a, len)| ipnet::Ipv4Net::new_assert(Ipv4Addr::from(a as u32), len).into());
    let v6 = (number(u128::MAX), len)
        .prop_map(|(a, len)| ipnet::Ipv6Net::new_assert(Ipv6Addr::from(a), if len == 0 { 0 } else { len + 96 }).into());
    prop_oneof![v4, v6]
}

fn ports() -> impl Strategy<Value = RangeInclusive<u16>> {
    (number(65_535), number(65_535)).prop_map(|(a, b)| a as u16..=b as u16)
}

fn rule() -> impl Strategy<Value = Rule> {
    let rarely = |p| prop::option::weighted(p, (0u8..4, any::<u8>()));
    (
        prop::option::of(net()),
        prop::option::of(net()),
        prop::option::of(0u8..3),
        (prop::option::weighted(0.3, ports()), prop::option::weighted(0.3, ports())),
        prop::option::weighted(0.2, number(4095)),
        rarely(0.2),
    )
        .prop_map(|(source, destination, protocol, (source_ports, destination_ports), vlan, flags)| Rule {
            source,
            destination,
            protocol,
            source_ports,
            destination_ports,
            vlan: vlan.map(|vlan| vlan as u16),
            tcp_flags: flags.map(|(mask, value)| FlagMatch { mask, value: value & 3 }),
        })
}

fn key() -> impl Strategy<Value = Key> {
    let v4 = (number(u32::MAX.into()), number(u32::MAX.into())).prop_map(|(a, b)| Addresses::V4(a as u32, b as u32));
    let v6 = (number(u128::MAX), number(u128::MAX)).prop_map(|(a, b)| Addresses::V6(a, b));
    (
        prop_oneof![v4, v6],
        0u8..4,
        prop::option::of((number(65_535), number(65_535))),
        prop::option::of(number(4095)),
        prop::option::of(0u8..8),
    )
        .prop_map(|(addresses, protocol, ports, vlan, tcp_flags)| Key {
            addresses,
            protocol,
            ports: ports.map(|(a, b)| (a as u16, b as u16)),
            vlan: vlan.map(|vlan| vlan as u16),
            tcp_flags,
        })
}

/// Looks up packets in batches in which some indexes have no key.
fn found(classifier: &Classifier, keys: &[Key]) -> Vec<Option<u32>> {
    let mut numbers = vec![7; 2 * keys.len()];
    classifier.lookup_batch(&mut numbers, |place| (place % 2 == 0).then(|| keys[place / 2]));
    assert!(numbers.iter().skip(1).step_by(2).all(|number| *number == MISS));
    let to_option = |number: u32| (number != MISS).then_some(number);
    let numbers: Vec<Option<u32>> = numbers.into_iter().step_by(2).map(to_option).collect();
    // For IPv4 keys with ports and without a VLAN, `lookup_v4` must return the same results as `lookup_batch`.
    let alone = keys.iter().zip(&numbers).filter_map(|(key, number)| match (key.addresses, key.ports, key.vlan) {
        (Addresses::V4(source, destination), Some(ports), None) => {
            Some((v4_key((source, destination), key.protocol, ports, key.tcp_flags), *number))
        }
        _ => None,
    });
    let (keys, expected): (Vec<V4Key>, Vec<Option<u32>>) = alone.unzip();
    let mut found = vec![7; keys.len()];
    classifier.lookup_v4(&keys, &mut found);
    assert_eq!(found.into_iter().map(to_option).collect::<Vec<_>>(), expected);
    numbers
}

fn expected(rules: &[Rule], keys: &[Key]) -> Vec<Option<u32>> {
    keys.iter().map(|key| first_match(rules, key)).collect()
}

/// Generates realistic rules: prefixes with equal leading bits.
fn site_rule() -> impl Strategy<Value = Rule> {
    let net = (0u32..6, any::<u16>(), prop::sample::select(vec![16u8, 20, 24, 28, 32])).prop_map(|(site, low, len)| {
        IpNet::from(Ipv4Net::new_assert(Ipv4Addr::from((site * 0x2f1_0000) | u32::from(low)), len))
    });
    let ports = prop_oneof![
        3 => Just(None),
        3 => prop::sample::select(vec![22u16, 53, 80, 443]).prop_map(|port| Some(port..=port)),
        1 => Just(Some(1024..=65_535)),
        1 => (any::<u16>(), 0u16..200).prop_map(|(first, more)| Some(first..=first.saturating_add(more))),
    ];
    let protocol = prop::option::weighted(0.8, prop::sample::select(vec![6u8, 17]));
    let sides = (prop::option::weighted(0.8, net.clone()), prop::option::weighted(0.8, net));
    (sides, protocol, ports).prop_map(|((source, destination), protocol, destination_ports)| Rule {
        source,
        destination,
        protocol,
        destination_ports,
        ..Rule::default()
    })
}

/// Returns a packet that matches or nearly matches a rule. The bits of `random` select the packet.
fn nearly_matching(rule: &Rule, random: u64) -> Key {
    let inside = |net: Option<IpNet>, random: u32| match net {
        Some(IpNet::V4(net)) => u32::from(net.network()) | (random & u32::from(net.hostmask())),
        _ => random,
    };
    let ports = rule.destination_ports.clone().unwrap_or(0..=u16::MAX);
    let mut destination = if random & 1 == 0 { *ports.start() } else { *ports.end() };
    if random & 0x38 == 0 {
        destination = destination.wrapping_add(1);
    }
    let address = inside(rule.destination, (random >> 8) as u32) ^ u32::from(random & 0x1c0 == 0) << (random >> 60);
    Key {
        addresses: Addresses::V4(inside(rule.source, (random >> 32) as u32), address),
        protocol: if random & 6 == 0 { 17 } else { rule.protocol.unwrap_or(6) },
        ports: Some(((random >> 16) as u16, destination)),
        vlan: None,
        tcp_flags: None,
    }
}

/// Returns numbers that look random but are equal in every run.
fn numbers() -> impl Iterator<Item = u64> {
    std::iter::successors(Some(0x9e37_79b9_7f4a_7c15_u64), |last| {
        let next = last ^ (last << 13);
        let next = next ^ (next >> 7);
        Some(next ^ (next << 17))
    })
}

/// A change of the rules: `true` to remove a rule, the position, and the rule to insert if no rule is removed.
type Change = (bool, prop::sample::Index, Rule);

/// Applies a change to a classifier and to a model list.
fn change(classifier: &mut Classifier, model: &mut Vec<(u32, Rule)>, (remove, at, rule): &Change) {
    if *remove && !model.is_empty() {
        let at = at.index(model.len());
        let (number, _) = model.remove(at);
        assert_eq!(classifier.remove(at), number);
    } else {
        let at = at.index(model.len() + 1);
        let number = classifier.insert(at, rule.clone());
        assert!(model.iter().all(|(other, _)| *other != number) && (number as usize) < classifier.rule_number_bound());
        model.insert(at, (number, rule.clone()));
    }
    assert!(classifier.rules().eq(model.iter().map(|(number, rule)| (*number, rule))));
}

fn expected_number(model: &[(u32, Rule)], rules: &[Rule], key: &Key) -> Option<u32> {
    first_match(rules, key).map(|at| model[at as usize].0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lookup_finds_the_first_match(
        rules in prop::collection::vec(rule(), 0..150),
        keys in prop::collection::vec(key(), 60),
    ) {
        let classifier = Classifier::new(&rules);
        prop_assert_eq!(classifier.len(), rules.len());
        prop_assert_eq!(found(&classifier, &keys), expected(&rules, &keys));
        // Remove all rules up to the first match, so that the lookups find later rules.
        let mut rest = rules;
        while let Some(index) = keys.iter().find_map(|key| first_match(&rest, key)) {
            rest.drain(..=index as usize);
            let classifier = Classifier::new(&rest);
            for key in keys.iter().take(4) {
                prop_assert_eq!(classifier.lookup(key), first_match(&rest, key));
            }
            if rest.len() < 100 { break }
        }
    }

    #[test]
    fn packets_near_rules_find_the_first_match(
        rules in prop::collection::vec(site_rule(), 1..400),
        random in prop::collection::vec(any::<(prop::sample::Index, u64)>(), 100),
    ) {
        let classifier = Classifier::new(&rules);
        let keys: Vec<Key> = random.iter().map(|(rule, random)| nearly_matching(rule.get(&rules), *random)).collect();
        prop_assert_eq!(found(&classifier, &keys), expected(&rules, &keys));
    }

}

proptest! {
    // The test runs few cases, because each change compares the whole list, and many changes compile all rules again.
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Rules of all kinds are added and removed. Lookups agree with the model list, and earlier copies do not change.
    #[test]
    fn changed_classifier_agrees_with_a_list_of_rules(
        first in prop::collection::vec(rule(), 0..60),
        changes in prop::collection::vec((prop::bool::weighted(0.4), any::<prop::sample::Index>(), rule()), 1..150),
        keys in prop::collection::vec(key(), 40),
    ) {
        let mut classifier = Classifier::new(&first);
        let mut model: Vec<(u32, Rule)> = (0..).zip(first).collect();
        let mut copies = Vec::new();
        for (at, it) in changes.iter().enumerate() {
            change(&mut classifier, &mut model, it);
            if at % 10 == 0 || at + 1 == changes.len() {
                let rules: Vec<Rule> = model.iter().map(|(_, rule)| rule.clone()).collect();
                let expected: Vec<_> = keys.iter().map(|key| expected_number(&model, &rules, key)).collect();
                copies.push((classifier.clone(), expected));
            }
        }
        for (copy, expected) in &copies {
            prop_assert_eq!(&found(copy, &keys), expected);
        }
    }

    /// Inserts many realistic rules at one position, so that the gaps between the ranks are used up. Then removes rules
    /// at this position.
    #[test]
    fn classifier_agrees_with_a_list_after_many_changes_at_one_position(
        first in prop::collection::vec(site_rule(), 0..40),
        rules in prop::collection::vec((site_rule(), any::<u64>()), 60..160),
        down in any::<bool>(),
    ) {
        let mut classifier = Classifier::new(&first);
        let mut model: Vec<(u32, Rule)> = (0..).zip(first).collect();
        let start = model.len() / 2;
        for (at, (rule, _)) in rules.iter().enumerate() {
            let place = if down { start } else { start + at };
            model.insert(place, (classifier.insert(place, rule.clone()), rule.clone()));
        }
        let keys: Vec<Key> = rules.iter().map(|(rule, random)| nearly_matching(rule, *random)).collect();
        let list: Vec<Rule> = model.iter().map(|(_, rule)| rule.clone()).collect();
        let expected: Vec<_> = keys.iter().map(|key| expected_number(&model, &list, key)).collect();
        prop_assert_eq!(found(&classifier, &keys), expected);
        for _ in 0..rules.len() {
            model.remove(start);
            classifier.remove(start);
        }
        let list: Vec<Rule> = model.iter().map(|(_, rule)| rule.clone()).collect();
        let expected: Vec<_> = keys.iter().map(|key| expected_number(&model, &list, key)).collect();
        prop_assert_eq!(found(&classifier, &keys), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Replaces a list of rules by a changed list: some rules are removed, added or moved to other positions.
    #[test]
    fn update_replaces_a_list_of_rules(
        mut rules in prop::collection::vec(site_rule(), 0..150),
        changes in prop::collection::vec((0..4u8, any::<[prop::sample::Index; 2]>(), site_rule()), 0..40),
        random in prop::collection::vec(any::<(prop::sample::Index, u64)>(), 60),
    ) {
        let mut classifier = Classifier::new(&rules);
        let (before, first) = (classifier.clone(), rules.clone());
        for (kind, [from, to], rule) in &changes {
            if *kind > 0 && !rules.is_empty() {
                let rule = rules.remove(from.index(rules.len()));
                if *kind > 1 {
                    rules.insert(to.index(rules.len() + 1), rule);
                }
            } else {
                rules.insert(to.index(rules.len() + 1), rule.clone());
            }
        }
        classifier.update(&rules);
        prop_assert!(classifier.rules().map(|(_, rule)| rule).eq(&rules));
        let all: Vec<Rule> = first.iter().chain(&rules).cloned().collect();
        if !all.is_empty() {
            let keys: Vec<Key> = random.iter().map(|(rule, random)| nearly_matching(rule.get(&all), *random)).collect();
            prop_assert_eq!(found(&classifier, &keys), expected_of(&classifier, &keys));
            prop_assert_eq!(found(&before, &keys), expected(&first, &keys));
        }
    }
}

fn v4(address: u32, len: u8) -> Option<IpNet> {
    Some(Ipv4Net::new_assert(Ipv4Addr::from(address), len).into())
}

fn packet(source: u32, destination: u32, ports: (u16, u16)) -> Key {
    let addresses = Addresses::V4(source, destination);
    Key { addresses, protocol: 6, ports: Some(ports), vlan: None, tcp_flags: None }
}

#[test]
fn each_of_many_rules_is_found() {
    let rules: Vec<Rule> = (0..9_000u32).map(|i| Rule { source: v4(i << 8, 24), ..Rule::default() }).collect();
    let classifier = Classifier::new(&rules);
    let keys: Vec<Key> = (0..9_001u32).map(|i| packet(i << 8 | i & 0xff, 1, (1, 2))).collect();
    let found = found(&classifier, &keys);
    assert!(found[..9_000].iter().copied().eq((0..9_000).map(Some)));
    assert_eq!(found[9_000], None);
    assert!(classifier.v4.bytes() < 4 << 20, "{} bytes", classifier.v4.bytes());
}

#[test]
fn all_rules_are_found_with_any_number_of_rules_around_the_size_of_a_leaf() {
    for count in [0u16, 1, 7, 8, 9, 63, 64, 65] {
        let ports = |i: u16| Rule { destination_ports: Some(i * 10..=i * 10 + 9), ..Rule::default() };
        let rules: Vec<Rule> = (0..count).map(ports).collect();
        let classifier = Classifier::new(&rules);
        assert_eq!((classifier.len(), classifier.is_empty()), (count.into(), count == 0));
        let keys: Vec<Key> = (0..count * 10 + 20).map(|port| packet(1, 2, (port, port))).collect();
        assert_eq!(found(&classifier, &keys), expected(&rules, &keys), "{count}");
    }
}

/// The rules of these sets cannot be divided well into leaves. Lookups are correct, and the memory stays below its
/// bound. The test then replaces half of the rules one by one.
#[test]
fn indivisible_rules_are_found_within_the_memory_bound() {
    let mut random = numbers();
    let mut port = move || random.next().unwrap_or(0) as u16;
    let mut range = || {
        let (a, b) = (port(), port());
        a.min(b)..=a.max(b)
    };
    let ranges = |_| Rule { source_ports: Some(range()), destination_ports: Some(range()), ..Rule::default() };
    let nested = |i: u16| Rule {
        source_ports: Some(i..=65_535 - i),
        destination_ports: Some(i..=65_535 - i),
        ..Rule::default()
    };
    let sets: [(&str, Vec<Rule>); 4] = [
        ("ranges of ports", (0..10_000).map(ranges).collect()),
        ("ranges inside of ranges", (0..2_000).rev().map(nested).collect()),
        ("all equal", vec![Rule { source: v4(0x0a00_0000, 8), protocol: Some(6), ..Rule::default() }; 2_000]),
        (
            "source or destination only",
            (0..2_000u32)
                .map(|i| match i % 2 {
                    0 => Rule { source: v4(i.wrapping_mul(0x9e37_79b1), 24), ..Rule::default() },
                    _ => Rule { destination: v4(i.wrapping_mul(0x9e37_79b1), 24), ..Rule::default() },
                })
                .collect(),
        ),
    ];
    for (name, mut rules) in sets {
        let mut classifier = Classifier::new(&rules);
        let mut random = numbers();
        let keys: Vec<Key> = (0..64)
            .map(|_| {
                let bits = random.next().unwrap_or(0);
                let rule = &rules[bits as usize % rules.len()];
                nearly_matching(rule, bits)
            })
            .collect();
        assert_eq!(found(&classifier, &keys), expected(&rules, &keys), "{name}");
        let most = |rules: usize| rules * 64 * 48 + (1 << 20);
        assert!(classifier.v4.bytes() < most(rules.len()), "{name}: {} bytes", classifier.v4.bytes());
        let mut numbers: Vec<u32> = (0..rules.len() as u32).collect();
        for step in 0..200 {
            let at = (step * 7) % rules.len();
            classifier.remove(at);
            numbers.remove(at);
            let rule = rules.remove(at);
            let to = (step * 13) % (rules.len() + 1);
            numbers.insert(to, classifier.insert(to, rule.clone()));
            rules.insert(to, rule);
        }
        let expected: Vec<_> = expected(&rules, &keys).into_iter().map(|at| Some(numbers[at? as usize])).collect();
        assert_eq!(found(&classifier, &keys), expected, "{name}, changed");
        assert!(classifier.v4.bytes() < most(rules.len()), "{name}, changed: {} bytes", classifier.v4.bytes());
    }
}

#[test]
fn ipv6_rules_are_found() {
    let rule = |i: u128| {
        let net = |top: u128, len| ipnet::Ipv6Net::new_assert(Ipv6Addr::from(top), len).into();
        Rule {
            source: (!i.is_multiple_of(5)).then(|| net(0x2001_0db8 << 96 | (i % 50) << 80, 48)),
            destination: Some(net(0x2001_0db9 << 96 | i << 64, 64)),
            ..Rule::default()
        }
    };
    let rules: Vec<Rule> = (0..1_000).map(rule).collect();
    let classifier = Classifier::new(&rules);
    let keys: Vec<Key> = (0..500u128)
        .map(|i| {
            let (source, destination) =
                (0x2001_0db8 << 96 | (i % 51) << 80 | i, 0x2001_0db9 << 96 | (2 * i + i / 400) << 64 | 5);
            Key {
                addresses: Addresses::V6(source, destination),
                protocol: 58,
                ports: None,
                vlan: None,
                tcp_flags: None,
            }
        })
        .collect();
    assert_eq!(found(&classifier, &keys), expected(&rules, &keys));
    assert!(found(&classifier, &keys).iter().any(Option::is_some));
    assert_eq!(classifier.lookup(&packet(1, 2, (3, 4))), None);
}

/// After a change, a copy and its original still share nearly all memory.
#[test]
fn change_of_a_copy_copies_few_pages() {
    let rule =
        |i: u32| Rule { source: v4(i << 12, 24), destination: v4(i.wrapping_mul(0x9e37_79b1), 32), ..Rule::default() };
    let rules: Vec<Rule> = (0..5_000).map(rule).collect();
    let before = Classifier::new(&rules);
    let mut after = before.clone();
    assert_eq!(after.v4.differing(&before.v4), 0);
    after.remove(1_234);
    after.insert(77, rule(5_001));
    let differing = after.v4.differing(&before.v4) + after.v6.differing(&before.v6);
    // The change copies one leaf for each address family, and the cell that leads to the leaf.
    assert!(differing <= 4, "{differing} pages");
    // `update` makes the same change.
    let mut rules = rules;
    rules.remove(1_234);
    rules.insert(77, rule(5_001));
    let mut after = before.clone();
    after.update(&rules);
    assert!(after.rules().map(|(_, rule)| rule).eq(&rules));
    assert!(after.v4.differing(&before.v4) <= 4);
}

/// Threads look up packets while another thread changes rules and publishes copies. Every result comes from exactly one
/// of the published rule sets.
#[test]
fn concurrent_lookups_see_exactly_one_rule_set() {
    let rule = |i: u32| Rule { source: v4((i % 97) << 16, 16), destination: v4(i << 20, 12), ..Rule::default() };
    let (many, steps, batch) = if cfg!(miri) { (20, 4, 8) } else { (300, 200, 64) };
    let rules: Vec<Rule> = (0..many).map(rule).collect();
    let keys: Vec<Key> = (0..batch).map(|i: u32| packet((i % 97) << 16 | 5, i << 20 | 9, (1, 2))).collect();
    let mut classifier = Classifier::new(&rules);
    let answers = |classifier: &Classifier| expected_of(classifier, &keys);
    let latest = Mutex::new((classifier.clone(), answers(&classifier)));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ended = StopOnDrop(&ended);
        for _ in 0..2 {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let (copy, expected) = latest.lock().unwrap().clone();
                    for _ in 0..3 {
                        assert_eq!(found(&copy, &keys), expected);
                    }
                }
            });
        }
        for (step, random) in (0..steps).zip(numbers()) {
            let at = random as usize % classifier.len();
            if step % 2 == 0 {
                classifier.remove(at);
            } else {
                classifier.insert(at, rule(random as u32 % 64));
            }
            let next = (classifier.clone(), answers(&classifier));
            *latest.lock().unwrap() = next;
        }
    });
}

/// Returns the expected results from the rules of a classifier.
fn expected_of(classifier: &Classifier, keys: &[Key]) -> Vec<Option<u32>> {
    let (numbers, rules): (Vec<u32>, Vec<Rule>) =
        classifier.rules().map(|(number, rule)| (number, rule.clone())).unzip();
    expected(&rules, keys).into_iter().map(|at| Some(numbers[at? as usize])).collect()
}

/// Tests a leaf without AVX2, and a classifier with AVX2 if the processor has AVX2.
#[test]
fn leaf_matches_agree_with_its_rules() {
    let mut random = numbers();
    for _ in 0..if cfg!(miri) { 1 } else { 200 } {
        let mut next = || random.next().unwrap_or(0);
        let rules: Vec<Rule> = (0..next() % 9)
            .map(|_| {
                let bits = next();
                Rule {
                    source: (bits & 1 == 0).then(|| v4((bits >> 8) as u32 & 3, 31)).flatten(),
                    protocol: (bits & 2 == 0).then_some((bits >> 16) as u8 & 1),
                    source_ports: (bits & 4 == 0).then(|| (bits >> 24) as u16 & 3..=65_533 + (bits >> 28) as u16 % 3),
                    destination_ports: (bits & 8 == 0).then(|| 3..=3 + (bits >> 32) as u16 % 3),
                    vlan: (bits & 48 == 0).then_some((bits >> 40) as u16 & 1),
                    ..Rule::default()
                }
            })
            .collect();
        let entries: Vec<_> = rules.iter().zip(0..).filter_map(|(rule, rank)| rule.v4(rank)).collect();
        let leaf = leaf::Leaf::new(&entries, 0);
        assert!(leaf.entries().map(|entry| entry.rank).eq(0..rules.len() as u64));
        for _ in 0..20 {
            let bits = next();
            let ports = ((bits >> 20) as u16 & 7).wrapping_sub(4);
            let key = Key {
                protocol: (bits >> 8) as u8 & 1,
                ports: (bits & 7 != 0).then_some((ports, (bits >> 24) as u16 & 7)),
                vlan: (bits & 8 == 0).then_some((bits >> 30) as u16 & 1),
                ..packet((bits >> 40) as u32 & 3, 7, (0, 0))
            };
            let words = words::v4(&key, (bits >> 40) as u32 & 3, 7);
            let first = first_match(&rules, &key);
            assert_eq!(leaf.first(leaf.matches(&words)), first.map_or(NO_RANK, u64::from), "{rules:?} {key:?}");
            assert_eq!(Classifier::new(&rules).lookup(&key), first);
        }
    }
}

#[test]
fn empty_rule_set_matches_nothing() {
    let mut classifier = Classifier::new(&[]);
    assert!(classifier.is_empty());
    let addresses = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED).into();
    let key = Key { addresses, protocol: 0, ports: None, vlan: None, tcp_flags: None };
    assert_eq!(classifier.lookup(&key), None);
    let number = classifier.insert(0, Rule::default());
    assert_eq!((classifier.lookup(&key), classifier.len()), (Some(number), 1));
    assert_eq!((classifier.remove(0), classifier.lookup(&key)), (number, None));
}
