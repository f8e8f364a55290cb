use std::collections::BTreeMap;

use proptest::prelude::*;

use super::machine::{FAILED_TIME, FIRST_PROBE_DELAY, MAX_SOLICITS, RETRANS_TIMER, VERIFY_INTERVAL};
use super::*;
use crate::arp::Arp;
use crate::forwarding::ReportedEvent;
use crate::icmp::Icmp;
use crate::neighbor::Neighbor;
use crate::parse::Parse;
use dataplane_core::harness::{Fate, Harness, frame, port};
use dataplane_core::header::arp::{REPLY, REQUEST};
use dataplane_core::header::ndp::{SOURCE_LINK_ADDRESS, link_address};
use dataplane_core::header::parse::dissect;
use dataplane_core::mem::{Batch, HoldState};
use dataplane_core::pipeline::{Contract, Facts, Stage};
use dataplane_testing::strategies;

const REACHABLE: u64 = 30_000;
const AGEING: u64 = 600_000;

fn machine(most: usize) -> StateMachine {
    StateMachine::new(Settings { most, reachable: REACHABLE, ageing: AGEING }, 7)
}

/// Returns the next hop on port 0 whose address ends with the number `last`.
fn hop(last: u8) -> NextHop {
    NextHop { address: IpAddr::from([10, 0, 0, last]), port: 0 }
}

fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, last])
}

/// Returns a message from the next hop with the number `last`. The message contains the MAC address with the number
/// `at`, or no MAC address.
fn heard(last: u8, at: Option<u8>, kind: NeighborMessageKind, overrides: bool) -> ReceivedMessage {
    ReceivedMessage { hop: hop(last), mac: at.map(mac), kind, overrides }
}

/// The entries that workers see after all actions until now, and the requests that the last actions sent.
#[derive(Default)]
struct View {
    known: BTreeMap<NextHop, (ResolutionState, ReportedEvent)>,
    asked: Vec<(NextHop, Option<MacAddr>)>,
}

impl View {
    fn take(&mut self, actions: &mut Vec<NeighborAction>) {
        self.asked.clear();
        for action in actions.drain(..) {
            match action {
                NeighborAction::Set(hop, resolved, mark) => _ = self.known.insert(hop, (resolved, mark)),
                NeighborAction::Forget(hop) => _ = self.known.remove(&hop),
                NeighborAction::Ask(hop, at) => self.asked.push((hop, at)),
            }
        }
    }
}

/// A model of one neighbour. The model follows the state machine in RFC 4861, appendix C, except where this
/// implementation deviates from the RFC. The events are the rows of the table in that appendix.
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
    /// The state ends at a random time between `from` and `to`.
    Reachable {
        mac: MacAddr,
        from: u64,
        to: u64,
    },
    Stale {
        mac: MacAddr,
        until: u64,
        confirmed: bool,
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

    /// Returns the entry that workers must see in this state.
    fn seen(self) -> Option<(ResolutionState, ReportedEvent)> {
        Some(match self {
            Self::None => return None,
            Self::Incomplete { .. } => (ResolutionState::Unknown, ReportedEvent::Answer),
            Self::Failed { .. } => (ResolutionState::Failed, ReportedEvent::Answer),
            Self::Reachable { mac, .. } | Self::Delay { mac, .. } => (ResolutionState::At(mac), ReportedEvent::None),
            Self::Stale { mac, .. } => (ResolutionState::At(mac), ReportedEvent::NextUse),
            Self::Probe { mac, .. } => (ResolutionState::At(mac), ReportedEvent::Answer),
        })
    }

    fn reachable(mac: MacAddr, now: u64) -> Self {
        Self::Reachable { mac, from: now + REACHABLE / 2, to: now + REACHABLE * 3 / 2 }
    }

    fn stale(mac: MacAddr, confirmed: bool, now: u64) -> Self {
        Self::Stale { mac, until: now + AGEING, confirmed }
    }

    fn doubted(mac: MacAddr, now: u64) -> Self {
        Self::Probe { mac, asked: 1, due: now + VERIFY_INTERVAL, doubted: true }
    }

    /// Returns the state after a packet needs the neighbour.
    fn wanted(self, now: u64) -> Self {
        match self {
            Self::None => Self::Incomplete { asked: 1, due: now + RETRANS_TIMER },
            Self::Stale { mac, confirmed: true, .. } => Self::Delay { mac, until: now + FIRST_PROBE_DELAY },
            Self::Stale { mac, confirmed: false, .. } => Self::doubted(mac, now),
            other => other,
        }
    }

    /// Returns the state after the neighbour has sent an answer.
    fn answered(self, mac: Option<MacAddr>, overrides: bool, now: u64) -> Self {
        match (self, mac.or(self.mac())) {
            (Self::None, _) | (_, None) => self,
            (Self::Incomplete { .. } | Self::Failed { .. }, Some(mac)) => Self::reachable(mac, now),
            (Self::Probe { mac: old, .. }, Some(mac)) if mac == old => Self::reachable(mac, now),
            // No request is outstanding, or the answer contradicts the known MAC address. The answer then counts as an
            // announcement.
            (_, mac) => self.announced(mac, overrides, now),
        }
    }

    /// Returns the state after the neighbour has announced its MAC address without a request.
    fn announced(self, mac: Option<MacAddr>, overrides: bool, now: u64) -> Self {
        let Some(mac) = mac.filter(|mac| Some(*mac) != self.mac()) else { return self };
        match self {
            Self::Incomplete { .. } | Self::Failed { .. } => Self::doubted(mac, now),
            Self::Reachable { mac: old, .. } | Self::Stale { mac: old, .. } | Self::Delay { mac: old, .. }
                if overrides =>
            {
                Self::doubted(old, now)
            }
            Self::Probe { mac: old, doubted: false, .. } if overrides => Self::doubted(old, now),
            Self::Reachable { mac: old, .. } => Self::stale(old, true, now),
            other => other,
        }
    }

    /// Returns the state after the neighbour has requested an address of this host.
    fn asks(self, mac: MacAddr, now: u64) -> Self {
        if self == Self::None { Self::stale(mac, false, now) } else { self.announced(Some(mac), true, now) }
    }

    /// Returns the state at the time `now`. `seen` is the state that the state machine reports. If a random timeout may
    /// have ended the state of the model, the model follows `seen`.
    fn passed(self, seen: Option<&(ResolutionState, ReportedEvent)>, now: u64) -> Self {
        match self {
            Self::Incomplete { asked: 3, due } if due <= now => Self::Failed { until: now + FAILED_TIME },
            Self::Incomplete { asked, due } if due <= now => {
                Self::Incomplete { asked: asked + 1, due: now + RETRANS_TIMER }
            }
            Self::Failed { until } | Self::Stale { until, .. } if until <= now => Self::None,
            Self::Reachable { mac, from, to } if from <= now => match seen {
                Some((_, ReportedEvent::None)) if now < to => self,
                _ => Self::stale(mac, true, now),
            },
            Self::Delay { mac, until } if until <= now => {
                Self::Probe { mac, asked: 1, due: now + RETRANS_TIMER, doubted: false }
            }
            Self::Probe { mac, asked, due, doubted } if due <= now && asked < MAX_SOLICITS => {
                let due = now + if doubted { VERIFY_INTERVAL } else { RETRANS_TIMER };
                Self::Probe { mac, asked: asked + 1, due, doubted }
            }
            Self::Probe { due, .. } if due <= now => Self::Incomplete { asked: 1, due: now + RETRANS_TIMER },
            other => other,
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Wanted(u8),
    Received(u8, Option<u8>, NeighborMessageKind, bool),
    Passes(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        Just(NeighborMessageKind::Reply),
        Just(NeighborMessageKind::Announcement),
        Just(NeighborMessageKind::Request)
    ];
    let at = prop_oneof![4 => (0..3u8).prop_map(Some), 1 => Just(None)];
    prop_oneof![
        (0..3u8).prop_map(Event::Wanted),
        (0..3u8, at, kind, any::<bool>()).prop_map(|(hop, at, kind, over)| {
            // A request always has the MAC address of its sender, and always counts as a message with the override flag.
            let asks = kind == NeighborMessageKind::Request;
            Event::Received(hop, if asks { at.or(Some(0)) } else { at }, kind, over || asks)
        }),
        prop_oneof![Just(50u64), Just(RETRANS_TIMER), Just(FIRST_PROBE_DELAY), Just(REACHABLE), Just(AGEING)]
            .prop_map(Event::Passes),
    ]
}

proptest! {
    #[test]
    fn state_machine_agrees_with_the_model(events in prop::collection::vec(event(), 1..200)) {
        let (mut machine, mut view, mut actions) = (machine(16), View::default(), Vec::new());
        let mut models = [Model::None; 3];
        let mut now = 0;
        for event in events {
            // 20 ms pass before each event, so that the rate limits allow requests.
            now += 20;
            let mut asked: Vec<NextHop> = Vec::new();
            match event {
                Event::Wanted(last) => {
                    machine.request(hop(last), true, now, &mut actions);
                    let model = &mut models[usize::from(last)];
                    let before = *model;
                    *model = model.wanted(now);
                    if *model != before && matches!(model, Model::Incomplete { .. } | Model::Probe { .. }) {
                        asked.push(hop(last));
                    }
                }
                Event::Received(last, at, kind, overrides) => {
                    machine.receive(&heard(last, at, kind, overrides), now, &mut actions);
                    let model = &mut models[usize::from(last)];
                    let before = *model;
                    *model = match kind {
                        NeighborMessageKind::Reply => model.answered(at.map(mac), overrides, now),
                        NeighborMessageKind::Announcement => model.announced(at.map(mac), overrides, now),
                        NeighborMessageKind::Request => model.asks(mac(at.unwrap_or(0)), now),
                    };
                    if *model != before && matches!(model, Model::Probe { .. }) {
                        asked.push(hop(last));
                    }
                }
                Event::Passes(time) => {
                    now += time;
                    machine.check_timeouts(now, &mut actions);
                }
            }
            let passes = matches!(event, Event::Passes(_));
            view.take(&mut actions);
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
                // A known neighbour is asked by unicast.
                let known = match view.known.get(hop) {
                    Some((ResolutionState::At(mac), _)) => Some(*mac),
                    _ => None,
                };
                prop_assert_eq!(*at, known);
            }
        }
    }

    #[test]
    fn confirmed_neighbours_stay_during_a_flood_of_claims(
        flood in prop::collection::vec((any::<u16>(), 0..4u8, 0..20u64), 1..2000),
        idle in prop_oneof![Just(0), Just(REACHABLE * 2)],
    ) {
        const MOST: usize = 16;
        let (mut machine, mut view, mut actions) = (machine(MOST), View::default(), Vec::new());
        let mut now = 0;
        // Eight neighbours answer, and use half of the table's entries.
        for last in 0..8 {
            machine.request(hop(last), true, now, &mut actions);
            machine.receive(&heard(last, Some(last), NeighborMessageKind::Reply, true), now, &mut actions);
        }
        now += idle;
        machine.check_timeouts(now, &mut actions);
        let mut asked = 0;
        for (address, choice, time) in flood {
            now += time;
            let [high, low] = address.to_be_bytes();
            let made_up = NextHop { address: IpAddr::from([10, 1, high, low]), port: 0 };
            let kind = [NeighborMessageKind::Reply, NeighborMessageKind::Announcement, NeighborMessageKind::Request][usize::from(choice) % 3];
            match choice {
                3 => machine.request(made_up, true, now, &mut actions),
                _ => machine.receive(
                    &ReceivedMessage { hop: made_up, mac: Some(mac(9)), kind, overrides: true }, now, &mut actions,
                ),
            }
            // A forged message claims the address of a known neighbour.
            let victim = (low % 8, Some(99), kind, true);
            if choice != 0 {
                machine.receive(&heard(victim.0, victim.1, victim.2, victim.3), now, &mut actions);
            }
            if time == 0 {
                machine.check_timeouts(now, &mut actions);
            }
            view.take(&mut actions);
            asked += view.asked.len();
            for (hop, at) in view.asked.clone() {
                // The neighbours that exist answer unicast requests.
                if at.is_some() {
                    let IpAddr::V4(address) = hop.address else { continue };
                    let last = address.octets()[3];
                    machine.receive(&heard(last, Some(last), NeighborMessageKind::Reply, true), now, &mut actions);
                }
            }
            let before = std::mem::take(&mut view.asked);
            view.take(&mut actions);
            asked += view.asked.len();
            drop(before);
            prop_assert!(machine.len() <= MOST && view.known.len() == machine.len());
            for last in 0..8 {
                let known = view.known.get(&hop(last)).map(|(resolved, _)| *resolved);
                prop_assert_eq!(known, Some(ResolutionState::At(mac(last))), "neighbour {} at {} ms", last, now);
            }
        }
        // Five token buckets allow bursts of 128 + 4 * 64 requests, and 3,000 requests per second.
        prop_assert!(asked as u64 <= 128 + 4 * 64 + now * 3 + 5);
    }
}

#[test]
fn unrequested_answer_creates_no_entry() {
    let (mut machine, mut actions) = (machine(16), Vec::new());
    for kind in [NeighborMessageKind::Reply, NeighborMessageKind::Announcement] {
        machine.receive(&heard(1, Some(1), kind, true), 0, &mut actions);
    }
    assert_eq!((machine.len(), actions.len()), (0, 0));
    machine.receive(&heard(1, Some(1), NeighborMessageKind::Request, true), 0, &mut actions);
    assert_eq!(actions, [NeighborAction::Set(hop(1), ResolutionState::At(mac(1)), ReportedEvent::NextUse)]);
}

/// Runs the timeout checks of a time span, and returns the requests, each with its time.
fn requests_between(
    machine: &mut StateMachine,
    view: &mut View,
    times: std::ops::Range<u64>,
) -> Vec<(u64, NextHop, Option<MacAddr>)> {
    let (mut requests, mut actions) = (Vec::new(), Vec::new());
    for now in times.step_by(TIMEOUT_INTERVAL as usize) {
        machine.check_timeouts(now, &mut actions);
        view.take(&mut actions);
        requests.extend(view.asked.iter().map(|(hop, at)| (now, *hop, *at)));
    }
    requests
}

#[test]
fn moved_neighbour_is_found_in_about_a_second_from_each_state() {
    // The times at which the neighbour announces its new MAC address: in the states reachable, stale, delay and probe.
    let stale = REACHABLE * 2;
    let used = stale + 1000;
    let starts = [(100, None), (stale, None), (used + 100, Some(used)), (used + FIRST_PROBE_DELAY + 100, Some(used))];
    for (start, used) in starts {
        let (mut machine, mut view, mut actions) = (machine(16), View::default(), Vec::new());
        machine.request(hop(1), true, 0, &mut actions);
        machine.receive(&heard(1, Some(1), NeighborMessageKind::Reply, true), 0, &mut actions);
        view.take(&mut actions);
        requests_between(&mut machine, &mut view, 0..used.unwrap_or(start));
        if let Some(used) = used {
            machine.request(hop(1), true, used, &mut actions);
            view.take(&mut actions);
            requests_between(&mut machine, &mut view, used..start);
        }
        machine.receive(&heard(1, Some(2), NeighborMessageKind::Announcement, true), start, &mut actions);
        // The first requests go to the old MAC address, because the announcement may be forged.
        view.take(&mut actions);
        assert_eq!(view.asked, [(hop(1), Some(mac(1)))], "at {start} ms");
        let requests = requests_between(&mut machine, &mut view, start + 1..start + 1200);
        let (broadcast, unicast) = requests.split_last().unwrap();
        assert_eq!(unicast.iter().map(|(_, _, at)| *at).collect::<Vec<_>>(), [Some(mac(1)), Some(mac(1))]);
        assert!(broadcast.2.is_none() && broadcast.0 <= start + RETRANS_TIMER + TIMEOUT_INTERVAL * 3, "{broadcast:?}");
        machine.receive(&heard(1, Some(2), NeighborMessageKind::Reply, true), start + 1200, &mut actions);
        view.take(&mut actions);
        assert_eq!(view.known[&hop(1)], (ResolutionState::At(mac(2)), ReportedEvent::None));
    }
}

/// RFC 4861, section 7.2.5: an advertisement without the override flag does not change the MAC address.
#[test]
fn advertisement_without_override_flag_changes_no_mac_address() {
    for kind in [NeighborMessageKind::Reply, NeighborMessageKind::Announcement] {
        let (mut machine, mut view, mut actions) = (machine(16), View::default(), Vec::new());
        machine.request(hop(1), true, 0, &mut actions);
        machine.receive(&heard(1, Some(1), NeighborMessageKind::Reply, true), 0, &mut actions);
        let mut at = |machine: &mut StateMachine, now| {
            machine.receive(&heard(1, Some(2), kind, false), now, &mut actions);
            view.take(&mut actions);
            (view.known[&hop(1)], view.asked.iter().filter(|(_, at)| at.is_some()).count())
        };
        // A reachable neighbour becomes stale. In the other states, nothing changes.
        assert_eq!(at(&mut machine, 100), ((ResolutionState::At(mac(1)), ReportedEvent::NextUse), 0));
        assert_eq!(at(&mut machine, 200), ((ResolutionState::At(mac(1)), ReportedEvent::NextUse), 0));
        machine.request(hop(1), true, 300, &mut Vec::new());
        assert_eq!(at(&mut machine, 400).0.0, ResolutionState::At(mac(1)));
        machine.check_timeouts(300 + FIRST_PROBE_DELAY, &mut Vec::new());
        assert_eq!(at(&mut machine, 400 + FIRST_PROBE_DELAY).0.0, ResolutionState::At(mac(1)));
    }
}

/// A forged request creates the entry. The neighbour exists at another MAC address.
#[test]
fn forged_mac_address_of_a_new_neighbour_is_replaced_in_about_a_second() {
    let (mut machine, mut view, mut actions) = (machine(16), View::default(), Vec::new());
    machine.receive(&heard(1, Some(2), NeighborMessageKind::Request, true), 0, &mut actions);
    view.take(&mut actions);
    assert_eq!((view.known[&hop(1)], view.asked.len()), ((ResolutionState::At(mac(2)), ReportedEvent::NextUse), 0));
    machine.request(hop(1), true, 100, &mut actions);
    view.take(&mut actions);
    assert_eq!(view.asked, [(hop(1), Some(mac(2)))]);
    // Further forged requests do not extend the verification.
    for now in (100..1100).step_by(50) {
        machine.receive(&heard(1, Some(3), NeighborMessageKind::Request, true), now, &mut actions);
        view.take(&mut actions);
        assert_eq!((view.known[&hop(1)].0, view.asked.len()), (ResolutionState::At(mac(2)), 0), "at {now} ms");
    }
    let requests = requests_between(&mut machine, &mut view, 101..1300);
    assert!(matches!(requests[..], [(.., Some(_)), (.., Some(_)), (_, _, None)]), "{requests:?}");
    machine.receive(&heard(1, Some(1), NeighborMessageKind::Reply, true), 1300, &mut actions);
    view.take(&mut actions);
    assert_eq!(view.known[&hop(1)], (ResolutionState::At(mac(1)), ReportedEvent::None));
}

/// A stage that passes the shared state of the run to the test, and sets the second port as egress port of every
/// packet.
#[derive(Clone, Default)]
struct Inside(Arc<Mutex<Option<Arc<Resolution>>>>);

impl Stage for Inside {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        batch.iter_mut().for_each(|mut packet| packet.meta_mut().egress = 1);
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> std::result::Result<(), Problem> {
        *self.0.lock().unwrap() = Some(Resolution::of(setup));
        Ok(())
    }

    fn contract(&self) -> Contract {
        Contract::new().sets(Facts::EGRESS | Facts::NEXT_HOP)
    }
}

const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 11]);

/// Builds a harness whose second port has addresses. All stages that receive answers come before the stage that
/// resolves neighbours.
fn bench(parameters: &str) -> std::result::Result<(Harness, ResolverState), String> {
    let addresses = ["10.0.0.1/24", "fe80::1/64", "2001:db8::1/64"].map(|text| text.parse().unwrap());
    let ports = [port("a"), PortInfo { mac: OURS.0, addresses: addresses.to_vec(), ..port("b") }];
    let inside = Inside::default();
    let arp = toml::from_str::<Arp>("").unwrap();
    let icmp = toml::from_str::<Icmp>("").unwrap();
    let builder = Harness::builder().ports(&ports).ingress(1).after(Parse::default());
    let builder = builder.after(arp).after(icmp).after(inside.clone());
    let harness = builder.build::<Neighbor>(&format!("source = 'resolve'\n{parameters}"))?;
    let resolution = inside.0.lock().unwrap().take().unwrap();
    Ok((harness, ResolverState::new(resolution).unwrap()))
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

/// Returns the number of neighbours of all ports.
fn neighbors(state: &ResolverState) -> usize {
    state.machines.iter().map(StateMachine::len).sum()
}

#[test]
fn ipv4_neighbour_is_requested_and_resolved_or_becomes_unreachable() {
    let (mut harness, mut state) = bench("").unwrap();
    state.step(0);
    // First, the stage announces its three addresses on the link.
    assert_eq!(sent(&mut harness).len(), 3);
    let packet = frame().ipv4([192, 0, 2, 1].into(), [10, 0, 0, 9].into()).udp(1, 2).build();
    assert_eq!(harness.run_one(&packet).fate, Fate::Held);
    state.step(10);
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
    state.step(20);
    let outcome = harness.run_one(&packet);
    assert_eq!(outcome.fate, Fate::Next);
    assert_eq!((&outcome.bytes[..6], &outcome.bytes[6..12]), (&mac(9).0[..], &OURS.0[..]));
    // The second neighbour never answers.
    let packet = frame().ipv4([192, 0, 2, 1].into(), [10, 0, 0, 8].into()).udp(1, 2).build();
    harness.run_one(&packet);
    for (now, questions) in [(100, 1), (1150, 1), (2200, 1 + 3), (3250, 0)] {
        state.step(now);
        // The frames at 2200 ms include the second announcement of each of the three addresses.
        assert_eq!(sent(&mut harness).len(), questions, "at {now} ms");
    }
    assert_eq!(harness.run_one(&packet).fate, Fate::Output("unreachable".to_owned()));
}

#[test]
fn counters_have_the_current_and_the_largest_number_of_neighbours() {
    let (mut harness, mut state) = bench("").unwrap();
    let mut counted = |harness: &mut Harness, now: u64| {
        state.step(now);
        let counters = harness.counters();
        ["neighbors", "neighbors_max"].map(|name| counters.iter().find(|(known, _)| known == name).unwrap().1)
    };
    assert_eq!(counted(&mut harness, 0), [0, 0]);
    for last in [7, 8] {
        harness.run_one(&frame().ipv4([192, 0, 2, 1].into(), [10, 0, 0, last].into()).udp(1, 2).build());
    }
    assert_eq!(counted(&mut harness, 10), [2, 2]);
    // The neighbours do not answer, so the stage removes them.
    for now in (100..9000).step_by(100) {
        counted(&mut harness, now);
    }
    assert_eq!(counted(&mut harness, 9000), [0, 2]);
}

/// The state of the neighbour at the start of a flood.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FloodStart {
    Reachable,
    Stale,
    Delay,
    Probe,
    /// The neighbour has sent a request for an address of this host, and has never answered.
    New,
}

/// Forged ARP replies and announcements of 1,000 addresses arrive for 3 s. Every tenth message claims the address of
/// the neighbour. The neighbour answers each request, but the test loses the first `lost` requests during the flood.
fn neighbour_stays_at_its_mac_address_during_a_flood_of_arp_messages(start: FloodStart, mut lost: usize) {
    let (mut harness, mut state) = bench("most = 64\nreachable = \"1s\"").unwrap();
    let ours = (OURS, [10, 0, 0, 1].into());
    let packet = frame().ipv4([192, 0, 2, 1].into(), [10, 0, 0, 9].into()).udp(1, 2).build();
    let message = |operation| frame().ethernet(mac(9), OURS).arp(operation, (mac(9), [10, 0, 0, 9].into()), ours);
    let [answer, request] = [REPLY, REQUEST].map(|operation| message(operation).pad_to(60).build());
    state.step(0);
    if start == FloodStart::New {
        harness.run_one(&request);
    } else {
        assert_eq!(harness.run_one(&packet).fate, Fate::Held);
        state.step(10);
        harness.run_one(&answer);
    }
    state.step(20);
    // The neighbour is reachable for at most 1.5 s.
    let mut now = if matches!(start, FloodStart::New | FloodStart::Reachable) { 30 } else { 2000 };
    state.step(now);
    if matches!(start, FloodStart::Delay | FloodStart::Probe) {
        assert_eq!(harness.run_one(&packet).fate, Fate::Next);
        state.step(now);
    }
    if start == FloodStart::Probe {
        now += FIRST_PROBE_DELAY;
        state.step(now);
    }
    sent(&mut harness);
    for now in (now..now + 3000).step_by(10) {
        for at in 0..100u16 {
            let number = (now as u16).wrapping_mul(10).wrapping_add(at) % 1000;
            let [high, low] = (number + 2).to_be_bytes();
            let address = if at % 10 == 0 { [10, 0, 0, 9] } else { [10, 0, high, low] };
            let forged = (MacAddr([2, 0, 0, 0xaa, high, low]), address.into());
            let forged = match at / 10 % 2 {
                0 => frame().ethernet(forged.0, OURS).arp(REPLY, forged, ours),
                _ => frame().ethernet(forged.0, MacAddr::BROADCAST).arp(REQUEST, forged, (MacAddr::ZERO, forged.1)),
            };
            harness.run_one(&forged.pad_to(60).build());
        }
        state.step(now);
        // The neighbour answers unicast requests, and broadcast requests for its address.
        for request in sent(&mut harness) {
            if request[..6] == mac(9).0 || request[..6] == MacAddr::BROADCAST.0 && request[38..42] == [10, 0, 0, 9] {
                if lost == 0 {
                    harness.run_one(&answer);
                }
                lost = lost.saturating_sub(1);
            }
        }
        let outcome = harness.run_one(&packet);
        assert_eq!((outcome.fate, &outcome.bytes[..6]), (Fate::Next, &mac(9).0[..]), "at {now} ms");
        assert!(neighbors(&state) <= 64);
    }
    assert_eq!(lost, 0);
}

#[test]
fn reachable_neighbour_stays_during_a_flood_of_arp_messages() {
    neighbour_stays_at_its_mac_address_during_a_flood_of_arp_messages(FloodStart::Reachable, 0);
}

#[test]
fn stale_neighbour_stays_during_a_flood_of_arp_messages() {
    neighbour_stays_at_its_mac_address_during_a_flood_of_arp_messages(FloodStart::Stale, 0);
}

#[test]
fn delayed_neighbour_stays_during_a_flood_of_arp_messages() {
    neighbour_stays_at_its_mac_address_during_a_flood_of_arp_messages(FloodStart::Delay, 0);
}

#[test]
fn probed_neighbour_stays_during_a_flood_of_arp_messages() {
    neighbour_stays_at_its_mac_address_during_a_flood_of_arp_messages(FloodStart::Probe, 0);
}

#[test]
fn new_neighbour_stays_during_a_flood_of_arp_messages() {
    neighbour_stays_at_its_mac_address_during_a_flood_of_arp_messages(FloodStart::New, 0);
}

#[test]
fn neighbour_stays_during_a_flood_that_loses_two_requests() {
    neighbour_stays_at_its_mac_address_during_a_flood_of_arp_messages(FloodStart::Reachable, 2);
}

#[test]
fn ipv6_neighbour_is_requested_and_confirmed() {
    let (mut harness, mut state) = bench("reachable = \"1s\"").unwrap();
    state.step(0);
    sent(&mut harness);
    let neighbor: std::net::Ipv6Addr = "2001:db8::9".parse().unwrap();
    let packet = frame().ipv6("2001:db8:1::1".parse().unwrap(), neighbor).udp(1, 2).build();
    assert_eq!(harness.run_one(&packet).fate, Fate::Held);
    state.step(10);
    let [request] = &sent(&mut harness)[..] else { panic!("one request") };
    assert_eq!(request[..6], [0x33, 0x33, 0xff, 0, 0, 9]);
    assert_eq!(request[21], 255);
    assert_eq!(request[22..38], "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    assert_eq!(link_address(&request[78..], SOURCE_LINK_ADDRESS), Some(Some(OURS)));
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
        let sum = dataplane_core::header::checksum::Sum::default();
        let ends: ([u8; 16], [u8; 16]) = (neighbor.octets(), bytes[38..54].try_into().unwrap());
        let sum = sum.pseudo_ipv6(&ends.0, &ends.1, 58, body.len() as u32).bytes(&body).checksum();
        bytes[56..58].copy_from_slice(&sum.to_be_bytes());
        bytes
    };
    // The first message comes from beyond the link (hop limit 254), and the second has no MAC address. Neither message
    // resolves the neighbour.
    for bad in [advertise(0x6000_0000, true, 254), advertise(0x6000_0000, false, 255)] {
        harness.run_one(&bad);
        state.step(20);
        assert_eq!(harness.run_one(&packet).fate, Fate::Held);
    }
    harness.run_one(&advertise(0x6000_0000, true, 255));
    state.step(30);
    let outcome = harness.run_one(&packet);
    assert_eq!((outcome.fate, &outcome.bytes[..6]), (Fate::Next, &mac(9).0[..]));
    // The entry becomes stale. Five seconds after the next use of the entry, the neighbour is asked by unicast. The
    // answer need not have a MAC address.
    for (now, questions) in [(1600, 0), (1700, 0), (6800, 3 + 1)] {
        state.step(now);
        let frames = sent(&mut harness);
        assert_eq!(frames.len(), questions, "at {now} ms");
        assert_eq!(harness.run_one(&packet).fate, Fate::Next);
        assert!(questions == 0 || frames.iter().any(|frame| frame[..6] == mac(9).0));
    }
    harness.run_one(&advertise(0x4000_0000, false, 255));
    state.step(6900);
    state.step(8000);
    assert_eq!((sent(&mut harness).len(), harness.run_one(&packet).fate), (0, Fate::Next));
}

#[test]
fn addresses_are_announced_twice_when_a_link_comes_up() {
    let (mut harness, mut state) = bench("").unwrap();
    for (now, frames) in [(0, 3), (10, 0), (2000, 3), (2010, 0)] {
        state.step(now);
        let frames_sent = sent(&mut harness);
        assert_eq!(frames_sent.len(), frames, "at {now} ms");
        for bytes in frames_sent {
            let (arp, own) = (bytes[12..14] == [8, 6], &bytes[6..12] == OURS.0.as_slice());
            let to_all = bytes[..6] == if arp { [0xff; 6] } else { [0x33, 0x33, 0, 0, 0, 1] };
            assert!(own && to_all);
        }
    }
    state.resolution.announce(1);
    state.resolution.announce(0);
    for (now, frames) in [(9000, 3), (9010, 0), (11_000, 3), (20_000, 0)] {
        state.step(now);
        assert_eq!(sent(&mut harness).len(), frames, "at {now} ms");
    }
}

#[test]
fn own_and_broadcast_addresses_are_never_requested() {
    let (mut harness, mut state) = bench("").unwrap();
    state.step(0);
    sent(&mut harness);
    for to in [[10, 0, 0, 1], [10, 0, 0, 0], [10, 0, 0, 255], [255, 255, 255, 255], [224, 0, 0, 1]] {
        let packet = frame().ipv4([192, 0, 2, 1].into(), to.into()).udp(1, 2).build();
        harness.run_one(&packet);
        state.step(10);
        assert_eq!(harness.run_one(&packet).fate, Fate::Output("unreachable".to_owned()), "{to:?}");
    }
    assert_eq!(sent(&mut harness).len(), 0);
}

#[test]
fn messages_with_a_mac_address_of_this_host_are_ignored() {
    let (mut harness, mut state) = bench("").unwrap();
    for (number, own) in [MacAddr(port("a").mac), OURS].into_iter().enumerate() {
        let claim = frame().ethernet(own, OURS).arp(REQUEST, (own, [10, 0, 0, 9].into()), (OURS, [10, 0, 0, 1].into()));
        harness.run_one(&claim.pad_to(60).build());
        state.step(number as u64);
        assert_eq!(neighbors(&state), 0);
    }
    let ignored = harness.counters().into_iter().find(|(name, _)| name == "ignored").unwrap().1;
    assert_eq!(ignored, 2);
}

#[test]
fn flood_of_messages_does_not_fill_the_queues() {
    let (mut harness, mut state) = bench("most = 16").unwrap();
    state.step(0);
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
        let resolution = &state.resolution;
        assert!(resolution.hints.len() <= HINT_LIMIT.1 as usize && resolution.answers.len() == 0);
        state.step(u64::from(round));
        assert!(neighbors(&state) <= 16);
    }
    let ignored = harness.counters().into_iter().find(|(name, _)| name == "ignored").unwrap().1;
    assert!(ignored > 9000, "{ignored}");
}

proptest! {
    // Every case creates large tables, so the test runs fewer cases than the default of proptest.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn any_frame_is_received_without_panic(frames in prop::collection::vec(strategies::any_frame(), 1..40)) {
        let (mut harness, mut state) = bench("most = 16").unwrap();
        for (now, frame) in (0..).zip(frames) {
            harness.run_one(&frame);
            state.step(now * 100);
            sent(&mut harness);
            prop_assert!(neighbors(&state) <= 16);
        }
    }
}

#[test]
fn invalid_parameters_are_reported() {
    for (parameters, message) in [
        ("most = 15", "most: 15 is out of range"),
        ("reachable = \"0s\"", "reachable: 0s is out of range"),
        ("ageing = \"25h\"", "ageing: 1day 1h is out of range"),
        ("table = [{ address = '10.0.0.9', mac = '02:00:00:00:00:09' }]", "source: neighbours cannot come from both"),
    ] {
        let error = bench(parameters).err().unwrap();
        assert!(error.starts_with(message), "{error}");
    }
    let error = Harness::from_toml::<Neighbor>("source = 'resolve'").err().unwrap();
    assert!(error.starts_with("source: no port has an address to send requests from"), "{error}");
    let error = Harness::from_toml::<Neighbor>("reachable = \"5s\"").err().unwrap();
    assert!(error.starts_with("reachable: `reachable` only applies with source = \"resolve\""), "{error}");
}

#[test]
fn source_address_is_on_the_link_of_the_neighbour() {
    let addresses = ["10.0.0.1/24", "10.9.0.1/16"].map(|text| text.parse().unwrap());
    let port = PortInfo { addresses: addresses.to_vec(), ..port("b") };
    // The source address has the same prefix as the neighbour. Without such an address, the first address is used.
    for (asked, speaks) in
        [([10, 9, 3, 3], [10, 9, 0, 1]), ([10, 0, 0, 7], [10, 0, 0, 1]), ([9, 9, 9, 9], [10, 0, 0, 1])]
    {
        let spoken = frames::source_address(&port, IpAddr::from(asked));
        assert_eq!(spoken, Some(IpAddr::from(speaks)));
    }
    assert_eq!(frames::source_address(&port, "2001:db8::1".parse().unwrap()), None);
}

/// Packets to 1,000 unused addresses per second arrive (a scan). After four seconds, packets to a new neighbour also
/// arrive.
#[test]
fn new_neighbour_is_asked_at_once_during_a_scan() {
    let settings = Settings { most: 4096, reachable: 1000, ageing: AGEING };
    let (mut machine, mut view, mut actions) = (StateMachine::new(settings, 7), View::default(), Vec::new());
    let peer = hop(1);
    let neighbor = NextHop { address: IpAddr::from([10, 200, 0, 1]), port: 0 };
    let (mut answered, mut probed) = (None, 0);
    for now in 0..20_000u64 {
        let [.., high, low] = now.to_be_bytes();
        machine.request(NextHop { address: IpAddr::from([10, 1, high, low]), port: 0 }, true, now, &mut actions);
        // Every 100 ms, there is a packet for the peer, and later also a packet for the neighbour.
        if now % 100 == 0 {
            machine.request(peer, true, now, &mut actions);
        }
        if now >= 4000 && now % 100 == 0 {
            machine.request(neighbor, true, now, &mut actions);
        }
        if now % TIMEOUT_INTERVAL == 0 {
            machine.check_timeouts(now, &mut actions);
        }
        view.take(&mut actions);
        if view.asked.iter().any(|(hop, _)| *hop == peer) {
            probed += 1;
            machine.receive(&heard(1, Some(1), NeighborMessageKind::Reply, true), now, &mut actions);
            let asked = std::mem::take(&mut view.asked);
            view.take(&mut actions);
            view.asked = asked;
        }
        // When the peer is stale, the stage asks the peer by unicast, and the peer stays reachable.
        assert_eq!(
            view.known.get(&peer).map(|(resolved, _)| *resolved),
            Some(ResolutionState::At(mac(1))),
            "at {now} ms"
        );
        if answered.is_none() && view.asked.iter().any(|(hop, _)| *hop == neighbor) {
            answered = Some(now);
        }
    }
    assert!(probed >= 3, "{probed}");
    assert!(answered.is_some_and(|at| at <= 4000 + TIMEOUT_INTERVAL), "asked at {answered:?} ms");
}

/// The scan requests more addresses per second than the rate limit permits. Each request for the new neighbour competes
/// with the requests of the scan.
#[test]
fn new_neighbour_is_found_during_a_faster_scan() {
    let (mut machine, mut view, mut actions) = (machine(4096), View::default(), Vec::new());
    let neighbor = NextHop { address: IpAddr::from([10, 200, 0, 1]), port: 0 };
    let mut asked_at = None;
    for now in 0..20_000u64 {
        for third in 0..3u64 {
            // Every 100 ms, there is a packet for the neighbour, at different places among the packets of the scan.
            if third == now / 100 % 3 && now >= 4000 && now % 100 == 0 {
                machine.request(neighbor, true, now, &mut actions);
            }
            let [.., a, b, c] = (now * 3 + third).to_be_bytes();
            machine.request(NextHop { address: IpAddr::from([11, a, b, c]), port: 0 }, true, now, &mut actions);
        }
        if now % TIMEOUT_INTERVAL == 0 {
            machine.check_timeouts(now, &mut actions);
        }
        view.take(&mut actions);
        if asked_at.is_none() && view.asked.iter().any(|(hop, _)| *hop == neighbor) {
            asked_at = Some(now);
        }
    }
    assert!(asked_at.is_some_and(|at| at <= 5000), "asked at {asked_at:?} ms");
}

#[test]
fn held_packet_causes_the_request_that_the_rate_limit_refused() {
    let (mut harness, mut state) = bench("").unwrap();
    let packet = |last| frame().ipv4([192, 0, 2, 1].into(), [10, 0, 0, last].into()).udp(1, 2).build();
    state.step(0);
    sent(&mut harness);
    // Each packet to a host without an entry takes one token. The limit permits bursts of 256.
    harness.run(&vec![packet(8); 256]);
    assert_eq!(harness.run_one(&packet(9)).fate, Fate::Held);
    let asked = |harness: &mut Harness, state: &mut ResolverState, now| {
        state.step(now);
        sent(harness).iter().filter(|request| request[38..42] == [10, 0, 0, 9]).count()
    };
    // The first step handles the 256 requests, and the further steps find no request for the second neighbour.
    (1..=10).for_each(|now| state.step(now));
    assert_eq!(asked(&mut harness, &mut state, 20), 0);
    harness.advance(1_000_000_000);
    // The held packet passes through the stage again.
    harness.set_hold_state(HoldState::Held);
    for (now, requests) in [(40, 1), (60, 0)] {
        assert_eq!(harness.run_one(&packet(9)).fate, Fate::Held);
        // The request creates an entry, so no further packet asks.
        assert_eq!(asked(&mut harness, &mut state, now), requests);
    }
}

#[test]
fn counters_have_the_current_and_the_largest_number_of_held_packets() {
    let (mut harness, _) = bench("").unwrap();
    let counted = |harness: &Harness| {
        let counters = harness.counters();
        ["held", "held_max"].map(|name| counters.iter().find(|(known, _)| known == name).unwrap().1)
    };
    let packet = |last| frame().ipv4([192, 0, 2, 1].into(), [10, 0, 0, last].into()).udp(1, 2).build();
    assert_eq!(counted(&harness), [0, 0]);
    harness.run(&[packet(8), packet(8), packet(9)]);
    assert_eq!(counted(&harness), [3, 3]);
    // Between two batches, the held packets pass through the stage again. Two of the packets are still held.
    harness.tick();
    harness.set_hold_state(HoldState::Held);
    harness.run(&[packet(8), packet(9)]);
    assert_eq!(counted(&harness), [2, 3]);
    harness.change::<Neighbor>("source = 'resolve'").unwrap();
    assert_eq!(counted(&harness)[1], 3);
}

/// All neighbours have answered and are stale. A new neighbour, which answers 10 ms after a request, must have time to
/// answer during a scan of 300 addresses per second.
#[test]
fn new_neighbour_is_found_during_a_scan_while_the_table_is_full_of_stale_neighbours() {
    let (mut machine, mut view, mut actions) = (machine(64), View::default(), Vec::new());
    let other = |number: u64| {
        let [.., a, b, c] = number.to_be_bytes();
        NextHop { address: IpAddr::from([11, a, b, c]), port: 0 }
    };
    let answer = |hop| ReceivedMessage { hop, mac: Some(mac(1)), kind: NeighborMessageKind::Reply, overrides: true };
    for number in 0..64 {
        machine.request(other(number), true, 0, &mut actions);
        machine.receive(&answer(other(number)), 0, &mut actions);
    }
    let start = 2 * REACHABLE;
    machine.check_timeouts(start, &mut actions);
    view.take(&mut actions);
    let neighbor = hop(1);
    for turn in 0..500u64 {
        let now = start + turn * 10;
        if view.asked.iter().any(|(hop, _)| *hop == neighbor) {
            machine.receive(&answer(neighbor), now, &mut actions);
        }
        if !matches!(view.known.get(&neighbor), Some((ResolutionState::At(_), _))) {
            machine.request(neighbor, true, now, &mut actions);
        }
        (0..3).for_each(|third| machine.request(other(1000 + 3 * turn + third), true, now, &mut actions));
        if turn % 5 == 0 {
            machine.check_timeouts(now, &mut actions);
        }
        view.take(&mut actions);
    }
    assert_eq!(view.known.get(&neighbor).map(|(resolved, _)| *resolved), Some(ResolutionState::At(mac(1))));
    assert!(machine.len() <= 64);
}

/// The table is full of reachable neighbours. A gateway of the config needs no free place.
#[test]
fn gateway_is_requested_although_the_table_is_full() {
    let (mut harness, mut state) = bench("most = 16\nreachable = '1s'").unwrap();
    state.step(0);
    let open = state.resolution.open.get().unwrap();
    let gateway = NextHop { address: [10, 0, 0, 99].into(), port: 1 };
    open.number(gateway).unwrap();
    let reader = open.tables.register_reader();
    let hosts = (2..=17).map(|last| NextHop { address: [10, 0, 0, last].into(), port: 1 });
    for (now, hop) in (1..).zip(hosts) {
        let machine = &mut state.machines[1];
        machine.request(hop, true, now, &mut state.actions);
        let answer = ReceivedMessage { hop, mac: Some(mac(1)), kind: NeighborMessageKind::Reply, overrides: true };
        machine.receive(&answer, now, &mut state.actions);
        state.step(now);
    }
    sent(&mut harness);
    let asked = |state: &mut ResolverState, harness: &mut Harness, now| {
        reader.neighbor(gateway).unwrap();
        state.step(now);
        sent(harness).iter().filter(|request| request[38..42] == [10, 0, 0, 99]).count()
    };
    assert_eq!(asked(&mut state, &mut harness, 100), 1);
}

/// A received query created the entry of the gateway, before a packet for the gateway arrived.
#[test]
fn gateway_that_a_message_created_is_not_evicted() {
    let (mut machine, mut actions) = (machine(16), Vec::new());
    machine.receive(&heard(1, Some(1), NeighborMessageKind::Request, true), 0, &mut actions);
    machine.request_gateway(hop(1), true, 1, &mut actions);
    for last in 2..=200 {
        machine.request(hop(last), true, 2, &mut actions);
    }
    assert!(machine.len() <= 16);
    assert!(!actions.contains(&NeighborAction::Forget(hop(1))));
}

/// A forged message may have created the entry in the earlier state machine.
#[test]
fn neighbour_of_an_earlier_state_machine_is_verified_at_its_first_use() {
    let (mut machine, mut actions) = (machine(16), Vec::new());
    machine.take_over(hop(1), mac(1), false, &mut actions);
    machine.request(hop(1), true, 1, &mut actions);
    assert!(actions.contains(&NeighborAction::Ask(hop(1), Some(mac(1)))), "{actions:?}");
    // A full table has room for a gateway.
    for last in 2..=16 {
        machine.take_over(hop(last), mac(last), false, &mut actions);
    }
    machine.take_over(hop(17), mac(17), false, &mut actions);
    machine.take_over(hop(18), mac(18), true, &mut actions);
    for last in 20..=200 {
        machine.request(hop(last), true, 2, &mut actions);
    }
    let is_set =
        |last| actions.iter().any(|action| matches!(action, NeighborAction::Set(known, ..) if *known == hop(last)));
    assert!(!is_set(17) && is_set(18) && !actions.contains(&NeighborAction::Forget(hop(18))));
}

/// The reserved part of the table has four entries.
#[test]
fn full_share_loses_only_its_oldest_neighbours() {
    let (mut machine, mut actions) = (machine(64), Vec::new());
    for last in 1..=64 {
        machine.request(hop(last), true, 0, &mut actions);
        machine.receive(&heard(last, Some(last), NeighborMessageKind::Reply, true), 0, &mut actions);
    }
    machine.check_timeouts(2 * REACHABLE, &mut actions);
    for last in 101..=104 {
        machine.request(hop(last), true, 2 * REACHABLE + u64::from(last), &mut actions);
    }
    actions.clear();
    machine.request(hop(105), true, 2 * REACHABLE + 105, &mut actions);
    assert!(actions.contains(&NeighborAction::Forget(hop(101))), "{actions:?}");
    assert!(!(102..=104).any(|last| actions.contains(&NeighborAction::Forget(hop(last)))), "{actions:?}");
}

/// A request for a neighbour is lost: the test takes the request from the queue instead of the resolver.
#[test]
fn lost_request_is_repeated_after_a_second() {
    let (mut harness, mut state) = bench("").unwrap();
    state.step(0);
    let open = state.resolution.open.get().unwrap();
    let neighbor = NextHop { address: [10, 0, 0, 99].into(), port: 1 };
    open.number(neighbor).unwrap();
    let reader = open.tables.register_reader();
    sent(&mut harness);
    let requests = || std::iter::from_fn(|| open.tables.next_request()).count();
    reader.neighbor(neighbor).unwrap();
    reader.neighbor(neighbor).unwrap();
    // The test takes the request, so the resolver does not receive it.
    assert_eq!(requests(), 1);
    let open = state.resolution.clone();
    state.step(999);
    reader.neighbor(neighbor).unwrap();
    assert_eq!(open.open.get().unwrap().tables.next_request(), None);
    state.step(1000);
    reader.neighbor(neighbor).unwrap();
    assert_eq!(open.open.get().unwrap().tables.next_request(), Some(neighbor));
}

/// The addresses differ only in bits that a simple hash ignores or that a sender could choose.
#[test]
fn addresses_of_a_pattern_share_no_queue_of_held_packets() {
    let (mut harness, _) = bench("").unwrap();
    let to = |host: u16| std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, host, 0, 9);
    let packets: Vec<_> =
        (1..=64).map(|host| frame().ipv6("2001:db8:1::1".parse().unwrap(), to(host)).udp(1, 2).build()).collect();
    let outcomes = harness.run(&packets);
    assert!(outcomes.iter().all(|outcome| outcome.fate == Fate::Held), "{outcomes:?}");
}

/// The hosts of one port answer for more addresses than the table has entries.
#[test]
fn neighbours_of_one_port_leave_room_for_the_neighbours_of_other_ports() {
    let addresses = |text: &str| vec![text.parse().unwrap()];
    let ports = [
        PortInfo { addresses: addresses("10.0.0.1/16"), ..port("a") },
        PortInfo { mac: OURS.0, addresses: addresses("10.9.0.1/16"), ..port("b") },
    ];
    let inside = Inside::default();
    let builder = Harness::builder().ports(&ports).after(Parse::default()).after(toml::from_str::<Arp>("").unwrap());
    let mut harness = builder.after(inside.clone()).build::<Neighbor>("source = 'resolve'\nmost = 16").unwrap();
    let mut state = ResolverState::new(inside.0.lock().unwrap().take().unwrap()).unwrap();
    state.step(0);
    let hop = |port: u8, last: u8| NextHop { address: IpAddr::from([10, port * 9, 1, last]), port };
    let resolve = |state: &mut ResolverState, hop: NextHop, now: u64| {
        let machine = &mut state.machines[usize::from(hop.port)];
        machine.request(hop, true, now, &mut state.actions);
        let answer = ReceivedMessage { hop, mac: Some(mac(1)), kind: NeighborMessageKind::Reply, overrides: true };
        machine.receive(&answer, now, &mut state.actions);
        state.step(now);
    };
    (0..32).for_each(|last| resolve(&mut state, hop(0, last), 1 + u64::from(last)));
    resolve(&mut state, hop(1, 1), 40);
    assert_eq!([&state.machines[0], &state.machines[1]].map(StateMachine::len), [16, 1]);
    let open = state.resolution.open.get().unwrap();
    assert_eq!(open.tables.neighbor_state(hop(1, 1)).map(|(resolved, _)| resolved), Some(ResolutionState::At(mac(1))));
    harness.tick();
}
