use std::collections::BTreeMap;

use proptest::prelude::*;

use super::machine::{ANSWER, DELAY, PENANCE, TRIES};
use super::*;
use crate::header::arp::{REPLY, REQUEST};
use crate::header::ndp::{SOURCE_LINK_ADDRESS, link_address};
use crate::header::parse::dissect;
use crate::mem::Batch;
use crate::pipeline::{Facts, Stage};
use crate::stages::arp::Arp;
use crate::stages::forwarding::Mark;
use crate::stages::icmp::Icmp;
use crate::stages::neighbor::Neighbor;
use crate::stages::parse::Parse;
use crate::testing::{Fate, Harness, frame, port, strategies};

const REACHABLE: u64 = 30_000;
const AGEING: u64 = 600_000;

fn machine(most: usize) -> Machine {
    Machine::new(Settings { most, reachable: REACHABLE, ageing: AGEING }, 7)
}

fn hop(last: u8) -> NextHop {
    NextHop { address: IpAddr::from([10, 0, 0, last]), port: 0 }
}

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, last])
}

fn heard(last: u8, at: Option<u8>, claim: Claim, overrides: bool) -> Heard {
    Heard { hop: hop(last), mac: at.map(mac), claim, overrides }
}

/// What workers know, by the acts so far; and the questions that the last of them asked.
#[derive(Default)]
struct View {
    known: BTreeMap<NextHop, (Resolved, Mark)>,
    asked: Vec<(NextHop, Option<MacAddr>)>,
}

impl View {
    fn take(&mut self, acts: &mut Vec<Act>) {
        self.asked.clear();
        for act in acts.drain(..) {
            match act {
                Act::Set(hop, resolved, mark) => _ = self.known.insert(hop, (resolved, mark)),
                Act::Forget(hop) => _ = self.known.remove(&hop),
                Act::Ask(hop, at) => self.asked.push((hop, at)),
            }
        }
    }
}

/// One neighbour as RFC 4861, appendix C, has it, with what this host does otherwise: the events are the rows here.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Model {
    None,
    Incomplete {
        asked: u8,
        due: u64,
    },
    Failed {
        until: u64,
    },
    /// How long is random: between these.
    Reachable {
        mac: MacAddr,
        from: u64,
        to: u64,
    },
    Stale {
        mac: MacAddr,
        until: u64,
    },
    Delay {
        mac: MacAddr,
        until: u64,
    },
    Probe {
        mac: MacAddr,
        asked: u8,
        due: u64,
        doubted: bool,
    },
}

impl Model {
    fn mac(self) -> Option<MacAddr> {
        match self {
            Self::Reachable { mac, .. } | Self::Stale { mac, .. } => Some(mac),
            Self::Delay { mac, .. } | Self::Probe { mac, .. } => Some(mac),
            _ => None,
        }
    }

    fn seen(self) -> Option<(Resolved, Mark)> {
        Some(match self {
            Self::None => return None,
            Self::Incomplete { .. } => (Resolved::Unknown, Mark::Asked),
            Self::Failed { .. } => (Resolved::Failed, Mark::Asked),
            Self::Reachable { mac, .. } | Self::Delay { mac, .. } => (Resolved::At(mac), Mark::Quiet),
            Self::Stale { mac, .. } => (Resolved::At(mac), Mark::Watched),
            Self::Probe { mac, .. } => (Resolved::At(mac), Mark::Asked),
        })
    }

    fn reachable(mac: MacAddr, now: u64) -> Self {
        Self::Reachable { mac, from: now + REACHABLE / 2, to: now + REACHABLE * 3 / 2 }
    }

    fn stale(mac: MacAddr, now: u64) -> Self {
        Self::Stale { mac, until: now + AGEING }
    }

    fn wanted(self, now: u64) -> Self {
        match self {
            Self::None => Self::Incomplete { asked: 1, due: now + ANSWER },
            Self::Stale { mac, .. } => Self::Delay { mac, until: now + DELAY },
            other => other,
        }
    }

    /// Somebody answers.
    fn answered(self, mac: Option<MacAddr>, overrides: bool, now: u64) -> Self {
        match (self, mac.or(self.mac())) {
            (Self::None, _) | (_, None) => self,
            (Self::Incomplete { .. } | Self::Failed { .. }, Some(mac)) => Self::reachable(mac, now),
            (Self::Probe { mac: old, .. }, Some(mac)) if mac == old => Self::reachable(mac, now),
            (Self::Probe { doubted: false, .. }, Some(mac)) if overrides => Self::reachable(mac, now),
            (Self::Probe { .. }, _) => self,
            // Nobody asked.
            (_, mac) => self.told(mac, overrides, now),
        }
    }

    /// Somebody says where it is, unasked.
    fn told(self, mac: Option<MacAddr>, overrides: bool, now: u64) -> Self {
        let Some(mac) = mac.filter(|mac| Some(*mac) != self.mac()) else { return self };
        match self {
            Self::Incomplete { .. } | Self::Failed { .. } => Self::stale(mac, now),
            Self::Reachable { mac: old, .. } if overrides => {
                Self::Probe { mac: old, asked: 1, due: now + ANSWER, doubted: true }
            }
            Self::Reachable { mac: old, .. } => Self::stale(old, now),
            Self::Stale { .. } | Self::Delay { .. } | Self::Probe { doubted: false, .. } if overrides => {
                Self::stale(mac, now)
            }
            other => other,
        }
    }

    /// Somebody asks for this host.
    fn asks(self, mac: MacAddr, now: u64) -> Self {
        if self == Self::None { Self::stale(mac, now) } else { self.told(Some(mac), true, now) }
    }

    /// Time has passed; `seen`: what the machine made of one whose time may be over, or not yet.
    fn passed(self, seen: Option<&(Resolved, Mark)>, now: u64) -> Self {
        match self {
            Self::Incomplete { asked: 3, due } if due <= now => Self::Failed { until: now + PENANCE },
            Self::Incomplete { asked, due } if due <= now => Self::Incomplete { asked: asked + 1, due: now + ANSWER },
            Self::Failed { until } | Self::Stale { until, .. } if until <= now => Self::None,
            Self::Reachable { mac, from, to } if from <= now => match seen {
                Some((_, Mark::Quiet)) if now < to => self,
                _ => Self::stale(mac, now),
            },
            Self::Delay { mac, until } if until <= now => {
                Self::Probe { mac, asked: 1, due: now + ANSWER, doubted: false }
            }
            Self::Probe { mac, asked, due, doubted: false } if due <= now && asked < TRIES => {
                Self::Probe { mac, asked: asked + 1, due: now + ANSWER, doubted: false }
            }
            Self::Probe { due, .. } if due <= now => Self::Incomplete { asked: 1, due: now + ANSWER },
            other => other,
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Wanted(u8),
    Heard(u8, Option<u8>, Claim, bool),
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let claim = prop_oneof![Just(Claim::Answer), Just(Claim::Announces), Just(Claim::Asks)];
    let at = prop_oneof![4 => (0..3u8).prop_map(Some), 1 => Just(None)];
    prop_oneof![
        (0..3u8).prop_map(Event::Wanted),
        (0..3u8, at, claim, any::<bool>()).prop_map(|(hop, at, claim, over)| {
            // Who asks says where it is, and that it is to be believed.
            let asks = claim == Claim::Asks;
            Event::Heard(hop, if asks { at.or(Some(0)) } else { at }, claim, over || asks)
        }),
        prop_oneof![Just(50u64), Just(ANSWER), Just(DELAY), Just(REACHABLE), Just(AGEING)].prop_map(Event::Passes),
    ]
}

proptest! {
    #[test]
    fn the_machine_is_the_model(events in prop::collection::vec(event(), 1..200)) {
        let (mut machine, mut view, mut acts) = (machine(16), View::default(), Vec::new());
        let mut models = [Model::None; 3];
        let mut now = 0;
        for event in events {
            // A little time passes each time, so that there may be questions.
            now += 20;
            let mut asked: Vec<NextHop> = Vec::new();
            match event {
                Event::Wanted(last) => {
                    machine.wanted(hop(last), true, now, &mut acts);
                    let model = &mut models[usize::from(last)];
                    if *model == Model::None {
                        asked.push(hop(last));
                    }
                    *model = model.wanted(now);
                }
                Event::Heard(last, at, claim, overrides) => {
                    machine.heard(&heard(last, at, claim, overrides), now, &mut acts);
                    let model = &mut models[usize::from(last)];
                    let before = *model;
                    *model = match claim {
                        Claim::Answer => model.answered(at.map(mac), overrides, now),
                        Claim::Announces => model.told(at.map(mac), overrides, now),
                        Claim::Asks => model.asks(mac(at.unwrap_or(0)), now),
                    };
                    if *model != before && matches!(model, Model::Probe { .. }) {
                        asked.push(hop(last));
                    }
                }
                Event::Passes(time) => {
                    now += time;
                    machine.turn(now, &mut acts);
                }
            }
            let passes = matches!(event, Event::Passes(_));
            view.take(&mut acts);
            for (last, model) in (0u8..).zip(&mut models) {
                if passes {
                    let before = *model;
                    *model = model.passed(view.known.get(&hop(last)), now);
                    let asks = matches!(model, Model::Incomplete { .. } | Model::Probe { .. });
                    asked.extend((*model != before && asks).then_some(hop(last)));
                }
                prop_assert_eq!(view.known.get(&hop(last)).copied(), model.seen(), "{:?} at {}", model, now);
            }
            let mut really: Vec<NextHop> = view.asked.iter().map(|(hop, _)| *hop).collect();
            really.sort();
            asked.sort();
            prop_assert_eq!(really, asked);
            for (hop, at) in &view.asked {
                // One that is known is asked itself.
                let known = match view.known.get(hop) {
                    Some((Resolved::At(mac), _)) => Some(*mac),
                    _ => None,
                };
                prop_assert_eq!(*at, known);
            }
        }
    }

    #[test]
    fn a_flood_is_bounded_and_confirmed_neighbours_stay(
        flood in prop::collection::vec((any::<u16>(), 0..4u8, 0..20u64), 1..2000),
    ) {
        const MOST: usize = 16;
        let (mut machine, mut view, mut acts) = (machine(MOST), View::default(), Vec::new());
        let mut now = 0;
        // Half of the room is for neighbours that have answered.
        for last in 0..8 {
            machine.wanted(hop(last), true, now, &mut acts);
            machine.heard(&heard(last, Some(last), Claim::Answer, true), now, &mut acts);
        }
        let mut asked = 0;
        for (address, kind, time) in flood {
            now += time;
            let [high, low] = address.to_be_bytes();
            let made_up = NextHop { address: IpAddr::from([10, 1, high, low]), port: 0 };
            let claim = [Claim::Answer, Claim::Announces, Claim::Asks][usize::from(kind) % 3];
            match kind {
                3 => machine.wanted(made_up, true, now, &mut acts),
                _ => machine.heard(
                    &Heard { hop: made_up, mac: Some(mac(9)), claim, overrides: true }, now, &mut acts,
                ),
            }
            // A spoofed claim to one that is known to be there.
            let victim = (low % 8, Some(99), claim, true);
            if kind != 0 && now < REACHABLE / 2 {
                machine.heard(&heard(victim.0, victim.1, victim.2, victim.3), now, &mut acts);
            }
            if time == 0 {
                machine.turn(now, &mut acts);
            }
            view.take(&mut acts);
            asked += view.asked.len();
            for (hop, at) in view.asked.clone() {
                // Those that are there answer.
                if at.is_some() {
                    let IpAddr::V4(address) = hop.address else { continue };
                    let last = address.octets()[3];
                    machine.heard(&heard(last, Some(last), Claim::Answer, true), now, &mut acts);
                }
            }
            let before = std::mem::take(&mut view.asked);
            view.take(&mut acts);
            asked += view.asked.len();
            drop(before);
            prop_assert!(machine.len() <= MOST && view.known.len() == machine.len());
            for last in 0..8 {
                let known = view.known.get(&hop(last)).map(|(resolved, _)| *resolved);
                prop_assert!(now > REACHABLE / 2 || known == Some(Resolved::At(mac(last))), "{last}: {known:?}");
            }
        }
        // Two buckets of 64, and 500 a second each.
        prop_assert!(asked as u64 <= 2 * (64 + now / 2 + 1));
    }
}

#[test]
fn nobody_who_was_not_asked_is_taken_in() {
    let (mut machine, mut acts) = (machine(16), Vec::new());
    for claim in [Claim::Answer, Claim::Announces] {
        machine.heard(&heard(1, Some(1), claim, true), 0, &mut acts);
    }
    assert_eq!((machine.len(), acts.len()), (0, 0));
    machine.heard(&heard(1, Some(1), Claim::Asks, true), 0, &mut acts);
    assert_eq!(acts, [Act::Set(hop(1), Resolved::At(mac(1)), Mark::Watched)]);
}

#[test]
fn a_neighbour_that_moves_is_found_again_within_two_questions() {
    let (mut machine, mut view, mut acts) = (machine(16), View::default(), Vec::new());
    machine.wanted(hop(1), true, 0, &mut acts);
    machine.heard(&heard(1, Some(1), Claim::Answer, true), 0, &mut acts);
    // It announces its new place; the old one is asked first, as the announcement may be a lie.
    machine.heard(&heard(1, Some(2), Claim::Announces, true), 100, &mut acts);
    view.take(&mut acts);
    assert_eq!(view.asked.last(), Some(&(hop(1), Some(mac(1)))));
    assert_eq!(view.known[&hop(1)].0, Resolved::At(mac(1)));
    machine.turn(100 + ANSWER, &mut acts);
    view.take(&mut acts);
    assert_eq!(view.asked, [(hop(1), None)]);
    machine.heard(&heard(1, Some(2), Claim::Answer, true), 101 + ANSWER, &mut acts);
    view.take(&mut acts);
    assert_eq!(view.known[&hop(1)], (Resolved::At(mac(2)), Mark::Quiet));
}

/// Gives the resolution of the run to a test, and every packet the second port to leave by.
#[derive(Clone, Default)]
struct Inside(Arc<Mutex<Option<Arc<Resolution>>>>);

impl Stage for Inside {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        batch.iter_mut().for_each(|mut packet| packet.meta_mut().egress = 1);
    }

    fn sets(&self) -> Facts {
        Facts::EGRESS | Facts::NEXT_HOP
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> std::result::Result<(), Problem> {
        *self.0.lock().unwrap() = Some(Resolution::of(setup));
        Ok(())
    }
}

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 11]);

/// A bench whose second port has addresses, with all that hears before a stage that asks.
fn bench(parameters: &str) -> std::result::Result<(Harness, Mind), String> {
    let addresses = ["10.0.0.1/24", "fe80::1/64", "2001:db8::1/64"].map(|text| text.parse().unwrap());
    let ports = [port("a"), PortInfo { mac: OURS.0, addresses: addresses.to_vec(), ..port("b") }];
    let inside = Inside::default();
    let arp = toml::from_str::<Arp>("").unwrap();
    let icmp = toml::from_str::<Icmp>("").unwrap();
    let builder = Harness::builder().ports(&ports).ingress(1).after(Parse::default());
    let builder = builder.after(arp).after(icmp).after(inside.clone());
    let harness = builder.build::<Neighbor>(&format!("source = 'resolve'\n{parameters}"))?;
    let resolution = inside.0.lock().unwrap().take().unwrap();
    assert!(resolution.flaw().is_none());
    Ok((harness, Mind::new(resolution).unwrap()))
}

fn sent(harness: &mut Harness) -> Vec<Vec<u8>> {
    let outcomes = harness.tick();
    for outcome in &outcomes {
        assert_eq!((outcome.fate.clone(), outcome.meta.egress), (Fate::Next, 1));
        let found = dissect(&outcome.bytes).unwrap();
        assert_eq!((outcome.meta.l3, outcome.meta.l4, outcome.meta.end), (found.l3, found.l4, found.end));
    }
    outcomes.into_iter().map(|outcome| outcome.bytes).collect()
}

#[test]
fn an_ipv4_neighbour_is_asked_for_found_and_given_up() {
    let (mut harness, mut mind) = bench("").unwrap();
    mind.step(0);
    // The link is told of the addresses first.
    assert_eq!(sent(&mut harness).len(), 3);
    let packet = frame().ipv4([192, 0, 2, 1].into(), [10, 0, 0, 9].into()).udp(1, 2).build();
    assert_eq!(harness.run_one(&packet).fate, Fate::Held);
    mind.step(10);
    let asked = frame()
        .ethernet(OURS, MacAddr::BROADCAST)
        .arp(REQUEST, (OURS, [10, 0, 0, 1].into()), (MacAddr::ZERO, [10, 0, 0, 9].into()))
        .pad_to(60)
        .build();
    assert_eq!(sent(&mut harness), [asked]);
    assert_eq!(harness.run_one(&packet).fate, Fate::Held);
    let answer = frame()
        .ethernet(mac(9), OURS)
        .arp(REPLY, (mac(9), [10, 0, 0, 9].into()), (OURS, [10, 0, 0, 1].into()))
        .pad_to(60)
        .build();
    harness.run_one(&answer);
    mind.step(20);
    let outcome = harness.run_one(&packet);
    assert_eq!(outcome.fate, Fate::Next);
    assert_eq!((&outcome.bytes[..6], &outcome.bytes[6..12]), (&mac(9).0[..], &OURS.0[..]));
    // Another one never answers.
    let packet = frame().ipv4([192, 0, 2, 1].into(), [10, 0, 0, 8].into()).udp(1, 2).build();
    harness.run_one(&packet);
    for (now, questions) in [(100, 1), (1150, 1), (2200, 1 + 3), (3250, 0)] {
        mind.step(now);
        // Among them the second announcement of three addresses.
        assert_eq!(sent(&mut harness).len(), questions, "at {now} ms");
    }
    assert_eq!(harness.run_one(&packet).fate, Fate::Output("unreachable".to_owned()));
}

#[test]
fn an_ipv6_neighbour_is_asked_for_and_confirmed() {
    let (mut harness, mut mind) = bench("reachable = 1").unwrap();
    mind.step(0);
    sent(&mut harness);
    let neighbor: std::net::Ipv6Addr = "2001:db8::9".parse().unwrap();
    let packet = frame().ipv6("2001:db8:1::1".parse().unwrap(), neighbor).udp(1, 2).build();
    assert_eq!(harness.run_one(&packet).fate, Fate::Held);
    mind.step(10);
    let [question] = &sent(&mut harness)[..] else { panic!("one question") };
    assert_eq!(question[..6], [0x33, 0x33, 0xff, 0, 0, 9]);
    assert_eq!(question[21], 255);
    assert_eq!(question[22..38], "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    assert_eq!(link_address(&question[78..], SOURCE_LINK_ADDRESS), Some(Some(OURS)));
    let advertise = |flags: u32, with: bool, hop_limit: u8| {
        let mut body = vec![136, 0, 0, 0];
        body.extend(flags.to_be_bytes());
        body.extend(neighbor.octets());
        if with {
            body.extend([2, 1]);
            body.extend(mac(9).0);
        }
        let sent = frame().ethernet(mac(9), OURS).ipv6(neighbor, "2001:db8::1".parse().unwrap()).ttl(hop_limit);
        let mut bytes = sent.protocol(58).payload(&body).build();
        let sum = crate::header::checksum::Sum::default();
        let ends: ([u8; 16], [u8; 16]) = (neighbor.octets(), bytes[38..54].try_into().unwrap());
        let sum = sum.pseudo_ipv6(&ends.0, &ends.1, 58, body.len() as u32).bytes(&body).checksum();
        bytes[56..58].copy_from_slice(&sum.to_be_bytes());
        bytes
    };
    // From beyond the link, and without its link address: nothing that helps.
    for bad in [advertise(0x6000_0000, true, 254), advertise(0x6000_0000, false, 255)] {
        harness.run_one(&bad);
        mind.step(20);
        assert_eq!(harness.run_one(&packet).fate, Fate::Held);
    }
    harness.run_one(&advertise(0x6000_0000, true, 255));
    mind.step(30);
    let outcome = harness.run_one(&packet);
    assert_eq!((outcome.fate, &outcome.bytes[..6]), (Fate::Next, &mac(9).0[..]));
    // It is stale, used, and five seconds later asked itself; its answer need not say where it is.
    for (now, questions) in [(1600, 0), (1700, 0), (6800, 3 + 1)] {
        mind.step(now);
        let frames = sent(&mut harness);
        assert_eq!(frames.len(), questions, "at {now} ms");
        assert_eq!(harness.run_one(&packet).fate, Fate::Next);
        assert!(questions == 0 || frames.iter().any(|frame| frame[..6] == mac(9).0));
    }
    harness.run_one(&advertise(0x4000_0000, false, 255));
    mind.step(6900);
    mind.step(8000);
    assert_eq!((sent(&mut harness).len(), harness.run_one(&packet).fate), (0, Fate::Next));
}

#[test]
fn a_link_that_comes_up_is_told_of_the_addresses_twice() {
    let (mut harness, mut mind) = bench("").unwrap();
    for (now, frames) in [(0, 3), (10, 0), (2000, 3), (2010, 0)] {
        mind.step(now);
        let frames_sent = sent(&mut harness);
        assert_eq!(frames_sent.len(), frames, "at {now} ms");
        for bytes in frames_sent {
            let (arp, own) = (bytes[12..14] == [8, 6], &bytes[6..12] == OURS.0.as_slice());
            let to_all = bytes[..6] == if arp { [0xff; 6] } else { [0x33, 0x33, 0, 0, 0, 1] };
            assert!(own && to_all);
        }
    }
    mind.resolution.announce(1);
    mind.resolution.announce(0);
    for (now, frames) in [(9000, 3), (9010, 0), (11_000, 3), (20_000, 0)] {
        mind.step(now);
        assert_eq!(sent(&mut harness).len(), frames, "at {now} ms");
    }
}

#[test]
fn own_addresses_and_those_of_all_are_not_asked_for() {
    let (mut harness, mut mind) = bench("").unwrap();
    mind.step(0);
    sent(&mut harness);
    for to in [[10, 0, 0, 1], [10, 0, 0, 0], [10, 0, 0, 255], [255, 255, 255, 255], [224, 0, 0, 1]] {
        let packet = frame().ipv4([192, 0, 2, 1].into(), to.into()).udp(1, 2).build();
        harness.run_one(&packet);
        mind.step(10);
        assert_eq!(harness.run_one(&packet).fate, Fate::Output("unreachable".to_owned()), "{to:?}");
    }
    assert_eq!(sent(&mut harness).len(), 0);
}

#[test]
fn nobody_else_has_a_link_address_of_this_host() {
    let (mut harness, mut mind) = bench("").unwrap();
    for (number, own) in [MacAddr(port("a").mac), OURS].into_iter().enumerate() {
        let claim = frame().ethernet(own, OURS).arp(REQUEST, (own, [10, 0, 0, 9].into()), (OURS, [10, 0, 0, 1].into()));
        harness.run_one(&claim.pad_to(60).build());
        mind.step(number as u64);
        assert_eq!(mind.machine.len(), 0);
    }
    let ignored = harness.counters().into_iter().find(|(name, _)| name == "ignored").unwrap().1;
    assert_eq!(ignored, 2);
}

#[test]
fn a_flood_of_messages_fills_no_queue() {
    let (mut harness, mut mind) = bench("most = 16").unwrap();
    mind.step(0);
    for round in 0..40u8 {
        let frames: Vec<Vec<u8>> = (0..=255u8)
            .map(|last| {
                let from = std::net::Ipv4Addr::new(10, 0, 0, last);
                let kind = if round % 2 == 0 { REQUEST } else { REPLY };
                let link = frame().ethernet(mac(last), OURS);
                link.arp(kind, (mac(last), from), (OURS, [10, 0, 0, 1].into())).pad_to(60).build()
            })
            .collect();
        harness.run(&frames);
        let open = mind.resolution.open.get().unwrap();
        assert!(open.hints.len() <= HINTS.1 as usize && open.answers.is_empty());
        mind.step(u64::from(round));
        assert!(mind.machine.len() <= 16);
    }
    let ignored = harness.counters().into_iter().find(|(name, _)| name == "ignored").unwrap().1;
    assert!(ignored > 9000, "{ignored}");
}

proptest! {
    // Each has tables of its own.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn whatever_comes_is_heard_without_harm(frames in prop::collection::vec(strategies::any_frame(), 1..40)) {
        let (mut harness, mut mind) = bench("most = 16").unwrap();
        for (now, frame) in (0..).zip(frames) {
            harness.run_one(&frame);
            mind.step(now * 100);
            sent(&mut harness);
            prop_assert!(mind.machine.len() <= 16);
        }
    }
}

#[test]
fn what_does_not_fit_is_told() {
    for (parameters, message) in [
        ("most = 15", "most: 15 is not to be had"),
        ("reachable = 0", "reachable: 0 is not to be had"),
        ("ageing = 90000", "ageing: 90000 is not to be had"),
        ("table = [{ address = '10.0.0.9', mac = '02:00:00:00:00:09' }]", "source: the neighbours of the config alone"),
    ] {
        let error = bench(parameters).err().unwrap();
        assert!(error.starts_with(message), "{error}");
    }
    let error = Harness::from_toml::<Neighbor>("source = 'resolve'").err().unwrap();
    assert!(error.starts_with("source: no port has an address to ask with"), "{error}");
    let error = Harness::from_toml::<Neighbor>("reachable = 5").err().unwrap();
    assert!(error.starts_with("reachable: `reachable` is of neighbours that it finds itself"), "{error}");
}

#[test]
fn it_speaks_with_an_address_of_the_link() {
    let addresses = ["10.0.0.1/24", "10.9.0.1/16"].map(|text| text.parse().unwrap());
    let port = PortInfo { addresses: addresses.to_vec(), ..port("b") };
    // It speaks with the address of the same prefix, and else with the first.
    for (asked, speaks) in
        [([10, 9, 3, 3], [10, 9, 0, 1]), ([10, 0, 0, 7], [10, 0, 0, 1]), ([9, 9, 9, 9], [10, 0, 0, 1])]
    {
        let spoken = frames::speaker(&port, IpAddr::from(asked));
        assert_eq!(spoken, Some(IpAddr::from(speaks)));
    }
    assert_eq!(frames::speaker(&port, "2001:db8::1".parse().unwrap()), None);
}
