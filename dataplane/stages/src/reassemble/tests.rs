use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::parse::Parse;
use crate::vlan::Vlan;
use dataplane_core::harness::{Fate, Harness, Outcome, frame, port};
use dataplane_core::header::build::{Extension, Frame};
use dataplane_core::header::ipv4::{MORE_FRAGMENTS, checksum_ok};
use dataplane_core::pipeline::PortInfo;
use dataplane_testing::strategies;

const V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 2)];
const V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2)];
/// A protocol whose header the `parse` stage does not know.
const PROTOCOL: u8 = 200;
const SECOND: u64 = 1_000_000_000;

fn bench(parameters: &str) -> Harness {
    Harness::builder().needed_facts(Facts::FLOW_HASH).after(Parse::default()).build::<Reassemble>(parameters).unwrap()
}

/// A fragment of an IPv4 or IPv6 datagram.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    v6: bool,
    id: u16,
    offset: usize,
    more: bool,
    payload: Vec<u8>,
}

/// Returns a frame with this number of VLAN tags.
fn link(tags: u16) -> Frame<'static> {
    (0..tags).fold(frame(), |frame, tag| frame.vlan(tag + 1))
}

impl Part {
    fn build(&self, tags: u16) -> Vec<u8> {
        let units = (self.offset / 8) as u16;
        if self.v6 {
            let extensions =
                [Extension::DestinationOptions(&[7; 6]), Extension::Fragment(units, self.more, self.id.into())];
            let frame = link(tags).ipv6(V6[0], V6[1]).extensions(&extensions);
            frame.protocol(PROTOCOL).payload(&self.payload).build()
        } else {
            let field = units | if self.more { MORE_FRAGMENTS } else { 0 };
            let frame = link(tags).ipv4(V4[0], V4[1]).identification(self.id).options(&[1; 8]).fragment(field);
            frame.protocol(PROTOCOL).payload(&self.payload).build()
        }
    }
}

/// Returns a complete datagram, as it was before fragmentation.
fn whole(v6: bool, id: u16, tags: u16, payload: &[u8]) -> Vec<u8> {
    if v6 {
        let extensions = [Extension::DestinationOptions(&[7; 6])];
        link(tags).ipv6(V6[0], V6[1]).extensions(&extensions).protocol(PROTOCOL).payload(payload).build()
    } else {
        let frame = link(tags).ipv4(V4[0], V4[1]).identification(id).options(&[1; 8]);
        frame.protocol(PROTOCOL).payload(payload).build()
    }
}

/// A model of the stage: a map of datagrams to their received fragments. `None` marks a discarded datagram.
#[derive(Default)]
struct Model(BTreeMap<(bool, u16), Option<Vec<Part>>>);

impl Model {
    /// Returns the payload of a completed datagram, `None` if fragments are missing, or the drop reason of the
    /// fragment.
    fn take(&mut self, part: &Part) -> Result<Option<Vec<u8>>, &'static str> {
        if part.offset == 0 && !part.more {
            // An unfragmented packet or an atomic fragment is complete.
            return Ok(Some(part.payload.clone()));
        }
        if part.payload.is_empty() || part.more && !part.payload.len().is_multiple_of(8) {
            return Err("bad_fragment");
        }
        let key = (part.v6, part.id);
        let Some(parts) = self.0.entry(key).or_insert_with(|| Some(Vec::new())) else { return Err("overlap") };
        if parts.contains(part) {
            return Err("duplicate");
        }
        let end = |part: &Part| part.offset + part.payload.len();
        let conflicts = parts.iter().any(|known| {
            let overlap = known.offset < end(part) && part.offset < end(known);
            let behind = !known.more && end(part) > end(known) || !part.more && end(known) > end(part);
            // The last fragment defines the end, and no other fragment may end there or beyond.
            overlap || behind || !known.more && !part.more
        });
        if conflicts {
            self.0.insert(key, None);
            return Err("overlap");
        }
        parts.push(part.clone());
        parts.sort_by_key(|part| part.offset);
        let mut next = 0;
        for part in parts.iter() {
            if part.offset != next {
                return Ok(None);
            }
            next = end(part);
        }
        if parts.last().is_none_or(|last| last.more) {
            return Ok(None);
        }
        let payload = parts.iter().flat_map(|part| part.payload.clone()).collect();
        self.0.remove(&key);
        Ok(Some(payload))
    }
}

/// Generates the fragments of datagrams. Most fragments are valid. Some are missing, duplicated, or conflict with other
/// fragments.
fn parts() -> impl Strategy<Value = Vec<Part>> {
    let payload = prop::collection::vec(any::<u8>(), 1..3000);
    let cuts = prop::collection::vec(1..60usize, 0..12);
    let damage = prop::collection::vec((0..12usize, 0..14u8, any::<u8>()), 0..4);
    (any::<bool>(), 0..3u16, payload, cuts, damage).prop_map(|(v6, id, payload, cuts, damage)| {
        let (mut parts, mut from) = (Vec::new(), 0usize);
        for cut in cuts.into_iter().map(|units| units * 8).chain([usize::MAX]) {
            let to = payload.len().min(from.saturating_add(cut));
            if from < to {
                let more = to < payload.len();
                parts.push(Part { v6, id, offset: from, more, payload: payload[from..to].to_vec() });
            }
            from = to;
        }
        for (at, kind, byte) in damage {
            let at = at % parts.len();
            let mut other = parts[at].clone();
            match kind {
                0 | 1 => _ = (parts.len() > 1).then(|| parts.remove(at)),
                2..8 => parts.push(other),
                8 => {
                    other.offset += 8;
                    parts.push(other);
                }
                9 => {
                    other.more = !other.more;
                    parts.push(other);
                }
                10 => {
                    other.payload.iter_mut().take(1).for_each(|first| *first = byte);
                    parts.push(other);
                }
                11 => {
                    other.payload.push(byte);
                    parts.push(other);
                }
                12 => {
                    other.payload.clear();
                    parts.push(other);
                }
                _ => {
                    other.payload.truncate(8);
                    parts.push(other);
                }
            }
        }
        parts
    })
}

proptest! {
    // Every case creates a harness, so there are fewer cases than usual.
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn stage_matches_the_model(
        parts in prop::collection::vec(parts(), 1..4)
            .prop_map(|parts| parts.into_iter().flatten().collect::<Vec<Part>>())
            .prop_shuffle(),
        tags in 0..3u16,
    ) {
        let (mut bench, mut model) = (bench(""), Model::default());
        for part in parts {
            let sent = part.build(tags);
            let outcome = bench.run_one(&sent);
            match model.take(&part) {
                Ok(None) => prop_assert_eq!(outcome.fate, Fate::Consumed),
                Err(reason) => prop_assert_eq!(outcome.fate, Fate::Dropped(reason.to_owned())),
                Ok(Some(payload)) => {
                    prop_assert_eq!(&outcome.fate, &Fate::Next);
                    let expected = whole(part.v6, part.id, tags, &payload);
                    prop_assert_eq!(&outcome.bytes, &expected);
                    // The packet metadata equals the metadata after `parse` of the whole datagram.
                    let parsed = known(&expected);
                    prop_assert_eq!(facts(&outcome), facts(&parsed));
                }
            }
        }
    }

    #[test]
    fn packets_other_than_fragments_and_ipv6_are_unchanged(frames in prop::collection::vec(strategies::any_frame(), 1..40)) {
        let mut bench = bench("datagrams = 2\nlargest = 1280");
        let mut parse = Harness::from_toml::<Parse>("").unwrap();
        for frame in frames {
            let before = parse.run_one(&frame);
            let outcome = bench.run_one(&frame);
            if !before.meta.flags.contains(MetaFlags::FRAGMENT) && !before.meta.flags.contains(MetaFlags::IPV6) {
                prop_assert_eq!((outcome.fate, outcome.bytes), (Fate::Next, frame));
            }
            bench.advance(7 * SECOND);
            bench.tick();
        }
    }
}

/// Returns the outcome of `parse` for a frame.
fn known(frame: &[u8]) -> Outcome {
    Harness::builder().needed_facts(Facts::FLOW_HASH).build::<Parse>("").unwrap().run_one(frame)
}

/// Returns the metadata that `parse` sets.
fn facts(outcome: &Outcome) -> (u16, u16, u16, u8, u8, u32) {
    let meta = outcome.meta;
    (meta.l3, meta.l4, meta.end, meta.flags.bits(), meta.protocol, meta.flow_hash)
}

/// Returns an IPv4 fragment of `len` bytes at an offset. `more` means that further fragments follow.
fn part(id: u16, offset: usize, more: bool, len: usize) -> Part {
    Part { v6: false, id, offset, more, payload: vec![id as u8; len] }
}

/// Sends a fragment without VLAN tags through the stage, and returns the fate of the packet.
fn fate(bench: &mut Harness, part: &Part) -> Fate {
    bench.run_one(&part.build(0)).fate
}

fn dropped(reason: &str) -> Fate {
    Fate::Dropped(reason.to_owned())
}

fn counter(bench: &Harness, name: &str) -> u64 {
    bench.counters().into_iter().find(|(known, _)| known == name).unwrap().1
}

#[test]
fn atomic_fragment_loses_its_fragment_header() {
    let extensions = [Extension::DestinationOptions(&[7; 6]), Extension::Fragment(0, false, 7)];
    let sent = frame().ipv6(V6[0], V6[1]).extensions(&extensions).udp(1, 2).payload(b"whole").pad_to(100).build();
    let outcome = bench("").run_one(&sent);
    let expected = frame().ipv6(V6[0], V6[1]).extensions(&extensions[..1]).udp(1, 2).payload(b"whole").build();
    assert_eq!((outcome.fate.clone(), &outcome.bytes), (Fate::Next, &expected));
    assert_eq!(facts(&outcome), facts(&known(&expected)));
}

#[test]
fn incomplete_datagram_goes_to_output_expired_after_the_timeout() {
    let mut bench = bench("timeout = \"5s\"");
    bench.set_ingress(1);
    let first = part(1, 0, true, 800);
    for part in [&first, &part(1, 1600, false, 8), &part(2, 800, true, 800)] {
        assert_eq!(fate(&mut bench, part), Fate::Consumed);
    }
    bench.advance(5 * SECOND - 1);
    assert_eq!((bench.tick().len(), counter(&bench, "open")), (0, 2));
    bench.advance(1);
    let expired = bench.tick();
    assert_eq!(counter(&bench, "open_max"), 2);
    // The first fragment of the second datagram has not arrived.
    assert_eq!(expired.len(), 1);
    assert_eq!((expired[0].fate.clone(), &expired[0].bytes), (Fate::Output("expired".to_owned()), &first.build(0)));
    assert!(expired[0].meta.flags.contains(MetaFlags::FIRST_FRAGMENT));
    assert_eq!((counter(&bench, "expired"), counter(&bench, "open")), (2, 0));
    // A later fragment starts a new datagram.
    assert_eq!(fate(&mut bench, &part(1, 800, true, 800)), Fate::Consumed);
}

/// Two `vlan` stages add tags in the headroom of a packet of maximum length. The fragment is then longer than the
/// longest packet that the stage can generate.
#[test]
fn expired_fragment_that_is_too_long_to_be_generated_does_not_delay_others() {
    let tag: Vlan = toml::from_str("op = \"push\"\nid = 1").unwrap();
    let mut bench = Harness::builder()
        .needed_facts(Facts::FLOW_HASH)
        .after(tag.clone())
        .after(tag)
        .after(Parse::default())
        .build::<Reassemble>("timeout = \"5s\"\nlargest = 65_515")
        .unwrap();
    // The buffers of the harness have room for packets of 9,216 bytes.
    let long = (9000..9300).map(|len| part(1, 0, true, len / 8 * 8)).rfind(|part| part.build(0).len() <= 9216).unwrap();
    let short = part(2, 0, true, 800);
    assert!(long.build(2).len() > 9216);
    assert_eq!([fate(&mut bench, &long), fate(&mut bench, &short)], [Fate::Consumed, Fate::Consumed]);
    bench.advance(5 * SECOND);
    let expired = bench.tick();
    assert_eq!(expired.len(), 1);
    assert_eq!(
        (expired[0].fate.clone(), expired[0].bytes.len()),
        (Fate::Output("expired".to_owned()), short.build(2).len())
    );
    assert_eq!((counter(&bench, "expired"), counter(&bench, "open")), (2, 0));
}

#[test]
fn discarded_datagram_stays_discarded_until_the_timeout() {
    let mut bench = bench("timeout = \"5s\"\nlargest = 1280");
    for (wrong, reason) in [(part(1, 8, false, 16), "overlap"), (part(2, 1280, false, 8), "too_large")] {
        let id = wrong.id;
        assert_eq!(fate(&mut bench, &part(id, 0, true, 16)), Fate::Consumed);
        assert_eq!(fate(&mut bench, &wrong), dropped(reason));
        assert_eq!(fate(&mut bench, &part(id, 16, false, 16)), dropped(reason));
        // Each datagram is discarded before the next datagram arrives.
        assert_eq!((counter(&bench, "open"), counter(&bench, "open_max")), (0, 1));
    }
    bench.advance(5 * SECOND);
    assert_eq!(bench.tick().len(), 0);
    assert_eq!(fate(&mut bench, &part(1, 0, true, 16)), Fate::Consumed);
    assert_eq!(fate(&mut bench, &part(1, 16, false, 16)), Fate::Next);
}

#[test]
fn datagram_with_too_many_fragments_is_discarded() {
    let mut bench = bench("");
    for at in 0..assembly::PIECES {
        assert_eq!(fate(&mut bench, &part(1, 16 * at, true, 8)), Fate::Consumed);
    }
    assert_eq!(fate(&mut bench, &part(1, 16 * assembly::PIECES, true, 8)), dropped("too_many"));
    // This fragment would end beyond the maximum length of a datagram.
    assert_eq!(fate(&mut bench, &part(2, 65_512, false, 8)), dropped("bad_fragment"));
}

#[test]
fn oldest_datagram_is_evicted() {
    let mut bench = bench("datagrams = 4\nper_source = 3");
    let other = |id: u16| {
        let field = MORE_FRAGMENTS;
        let from = Ipv4Addr::new(203, 0, 113, id as u8);
        frame().ipv4(from, V4[1]).identification(id).fragment(field).protocol(PROTOCOL).payload(&[0; 8]).build()
    };
    for id in 1..=4 {
        // The fourth datagram of the source replaces the first datagram of this source, although the stage has space
        // for one more datagram.
        assert_eq!(fate(&mut bench, &part(id, 0, true, 8)), Fate::Consumed);
        bench.advance(1);
    }
    assert_eq!((counter(&bench, "open"), counter(&bench, "evicted")), (3, 1));
    assert_eq!(bench.run_one(&other(1)).fate, Fate::Consumed);
    // The stage has no space for a further datagram, so it evicts the oldest datagram of all sources.
    assert_eq!(bench.run_one(&other(2)).fate, Fate::Consumed);
    assert_eq!((counter(&bench, "open"), counter(&bench, "evicted")), (4, 2));
    assert_eq!(fate(&mut bench, &part(3, 8, false, 8)), Fate::Next);
    assert_eq!(fate(&mut bench, &part(4, 8, false, 8)), Fate::Next);
    assert_eq!((counter(&bench, "open"), counter(&bench, "open_max")), (2, 4));
}

#[test]
fn fragments_of_different_ports_and_vlans_are_separate() {
    let mut bench = bench("");
    assert_eq!(fate(&mut bench, &part(1, 0, true, 8)), Fate::Consumed);
    assert_eq!(bench.run_one(&part(1, 8, false, 8).build(1)).fate, Fate::Consumed);
    bench.set_ingress(1);
    assert_eq!(fate(&mut bench, &part(1, 8, false, 8)), Fate::Consumed);
    bench.set_ingress(0);
    assert_eq!(fate(&mut bench, &part(1, 8, false, 8)), Fate::Next);
}

#[test]
fn ecn_congestion_mark_is_kept() {
    let run = |first: u8, last: u8| {
        let mut bench = bench("");
        let build = |tos: u8, field: u16| {
            frame().ipv4(V4[0], V4[1]).tos(tos).fragment(field).protocol(PROTOCOL).payload(&[0; 8]).build()
        };
        bench.run_one(&build(0x40 | first, MORE_FRAGMENTS));
        bench.run_one(&build(0x80 | last, 1))
    };
    for (first, last, whole) in [(2, 2, 2), (2, 3, 3), (3, 1, 3), (0, 0, 0), (0, 2, 0)] {
        let outcome = run(first, last);
        assert_eq!((outcome.fate, outcome.bytes[15]), (Fate::Next, 0x40 | whole));
        assert!(checksum_ok(&outcome.bytes[14..]));
    }
    assert_eq!(run(0, 3).fate, dropped("bad_ecn"));
}

#[test]
fn datagram_larger_than_a_buffer_is_dropped() {
    let mut bench = bench("largest = 65515");
    let step = 8000;
    for at in 0..2 {
        assert_eq!(fate(&mut bench, &part(1, at * step, true, step)), Fate::Consumed);
    }
    assert_eq!(fate(&mut bench, &part(1, 2 * step, false, 8)), dropped("too_large"));
}

#[test]
fn datagrams_for_other_hosts_are_unchanged_if_the_key_own_is_set() {
    let port = PortInfo { addresses: vec!["198.51.100.2/24".parse().unwrap()], ..port("a") };
    let builder = Harness::builder().ports(&[port]).after(Parse::default());
    let mut bench = builder.build::<Reassemble>("own = true").unwrap();
    assert_eq!(fate(&mut bench, &part(1, 0, true, 8)), Fate::Consumed);
    let other = frame().ipv4(V4[1], V4[0]).fragment(MORE_FRAGMENTS).protocol(PROTOCOL).payload(&[0; 8]).build();
    let outcome = bench.run_one(&other);
    assert_eq!((outcome.fate, outcome.bytes), (Fate::Next, other));
}

#[test]
fn invalid_parameters_are_refused_with_their_key() {
    for (parameters, message) in [
        ("datagrams = 0", "datagrams: 0 is out of range"),
        ("largest = 1279", "largest: 1279 is out of range"),
        ("timeout = \"61s\"", "timeout: 1m 1s is out of range; help: set timeout to a value from \"1s\" to \"1m\""),
        ("per_source = 0", "per_source: 0 is out of range"),
        ("own = true", "own: no port has an address"),
    ] {
        let error = Harness::from_toml::<Reassemble>(parameters).err().unwrap();
        assert!(error.starts_with(message), "{error}");
    }
}

#[test]
fn open_datagrams_and_counters_stay_if_the_stage_is_replaced() {
    let mut bench = bench("datagrams = 4");
    assert_eq!(fate(&mut bench, &part(1, 0, true, 8)), Fate::Consumed);
    bench.change::<Reassemble>("datagrams = 4\ntimeout = \"5s\"").unwrap();
    assert_eq!(counter(&bench, "open"), 1);
    assert_eq!(fate(&mut bench, &part(1, 8, false, 8)), Fate::Next);
    assert_eq!((counter(&bench, "open"), counter(&bench, "completed")), (0, 1));
    // If `datagrams` changes, the new stage allocates new memory, so the open datagrams are lost.
    assert_eq!(fate(&mut bench, &part(2, 0, true, 8)), Fate::Consumed);
    bench.change::<Reassemble>("datagrams = 8").unwrap();
    assert_eq!((counter(&bench, "open"), counter(&bench, "completed")), (0, 1));
    assert_eq!(fate(&mut bench, &part(2, 8, false, 8)), Fate::Consumed);
    assert_eq!((counter(&bench, "open"), counter(&bench, "open_max")), (1, 1));
}
