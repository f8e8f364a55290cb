use std::sync::{Arc, Mutex};

use super::*;
use crate::clock::Stamp;
use crate::mem::{PageKind, Region, RegionSpec, SlotLayout, SlotState};
use crate::pipeline::{Contract, CounterReport, DropObserver, Generator, NodeSpec, StageInfo};
use crate::units::Nanos;

/// A stage that drops, consumes or passes on a packet, or sends the packet to an output, depending on the first byte of
/// the packet.
struct Sort;

const OUT: Edge = Edge::new(0);
const LOST: Edge = Edge::new(1);

impl Stage for Sort {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            match packet.data().first() {
                Some(b'd') => packet.drop(Reason::Denied),
                Some(b'w') => packet.drop(Reason::of_stage(0)),
                Some(b'o') => packet.steer(OUT),
                Some(b'l') => packet.steer(LOST),
                Some(b'c') => packet.consume(),
                _ => {}
            }
        }
    }
}

/// A stage that passes every packet on.
struct Pass;

impl Stage for Pass {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
}

/// A stage that records the drops that it observes.
#[derive(Clone, Default)]
struct Watcher(Arc<Mutex<Vec<String>>>);

impl Stage for Watcher {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

    fn contract(&self) -> Contract {
        Contract::new().observes_drops::<Self>()
    }
}

impl DropObserver for Watcher {
    fn observe_drop(&mut self, _ctx: &Ctx, packet: &Packet<'_>, cause: Cause<'_>) {
        let text = format!("{} {}.{}", String::from_utf8_lossy(packet.data()), cause.stage, cause.reason);
        self.0.lock().unwrap().push(text);
    }
}

fn node(name: &str, stage: impl Stage + 'static, next: Target, drops: Option<usize>) -> NodeSpec {
    NodeSpec {
        name: name.to_owned(),
        kind: name.to_owned(),
        stage: Box::new(stage),
        next,
        outputs: Vec::new(),
        reasons: Vec::new(),
        info: StageInfo::new(),
        on_panic: OnPanic::Stop,
        drop_observer: drops,
    }
}

fn sort(next: Target, drops: Option<usize>) -> NodeSpec {
    let outputs = vec![("out".to_owned(), Target::Port(0)), ("lost".to_owned(), Target::Drop)];
    NodeSpec { outputs, reasons: vec!["w_byte"], ..node("sort", Sort, next, drops) }
}

fn pool() -> Pool {
    let layout = SlotLayout::new(0, 64, 64).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    let (region, _) = Region::allocate(spec).unwrap();
    Pool::new(region, layout).unwrap()
}

/// Sends packets through a graph of these nodes. Returns the graph, and the number of packets in the outbox.
fn walk(nodes: Vec<NodeSpec>, packets: &[&str]) -> (Graph, usize) {
    let mut pool = pool();
    let mut graph = Graph::new(Program::new(nodes), 1, &pool);
    for packet in packets {
        assert!(graph.entry(0).push_bytes(packet.as_bytes(), Stamp::NONE, &mut pool));
    }
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    graph.walk(&ctx, &mut pool, &mut NoObserver);
    let sent = graph.outbox(0).len();
    assert_eq!(pool.available() + sent, 64, "every slot is free or in an outbox");
    (graph, sent)
}

const PACKETS: [&str; 7] = ["d1", "n2", "w3", "o4", "l5", "c6", "d7"];
const SEEN: [&str; 4] = ["d1 sort.denied", "w3 sort.w_byte", "l5 sort.lost", "d7 sort.denied"];

#[test]
fn drops_are_observed_by_an_earlier_or_later_stage() {
    let seen = Watcher::default();
    let watcher = |next| node("watcher", seen.clone(), next, None);
    let take = || std::mem::take(&mut *seen.0.lock().unwrap());
    let port = Target::Port(0);
    // Four cases: the watcher is after `sort` and gets no packets, after `sort` and gets packets, or before `sort`. In
    // the fourth case, no stage observes the drops of `sort`.
    walk(vec![sort(port, Some(1)), watcher(Target::Drop)], &PACKETS);
    assert_eq!(take(), SEEN);
    walk(vec![sort(Target::Node(1), Some(2)), node("pass", Pass, Target::Node(2), None), watcher(port)], &PACKETS);
    assert_eq!(take(), SEEN);
    walk(vec![watcher(Target::Node(1)), sort(port, Some(0))], &PACKETS);
    assert_eq!(take(), SEEN);
    walk(vec![sort(port, None), watcher(Target::Drop)], &PACKETS);
    assert!(take().is_empty());
}

#[test]
fn observing_drops_does_not_change_the_counters() {
    let counters = |drops| {
        let watcher = node("watcher", Watcher::default(), Target::Drop, None);
        let (graph, sent) = walk(vec![sort(Target::Port(0), drops), watcher], &PACKETS);
        let all: Vec<String> = graph.counters().map(|(name, counters)| format!("{name} {counters:?}")).collect();
        (all, sent)
    };
    let (seen, sent) = counters(Some(1));
    assert_eq!((&seen, sent), (&counters(None).0, 2));
    assert!(seen[1].starts_with("watcher NodeCounters { packets: 0,"), "{}", seen[1]);
}

#[test]
fn batch_dropped_as_a_whole_is_observed() {
    let seen = Watcher::default();
    let nodes = vec![node("end", Pass, Target::Drop, Some(1)), node("watcher", seen.clone(), Target::Drop, None)];
    let (graph, _) = walk(nodes, &["a", "b"]);
    assert_eq!(*seen.0.lock().unwrap(), ["a end.requested", "b end.requested"]);
    assert_eq!(graph.counters().next().unwrap().1.dropped_next, 2);
}

#[test]
#[should_panic(expected = "a stage cannot observe its own drops")]
fn stage_cannot_observe_its_own_drops() {
    Program::new(vec![sort(Target::Port(0), Some(0))]);
}

/// A stage that requests copies and sends packets to the output 9. The contract of the stage does not declare the
/// copies, and the stage has no output 9.
struct Undeclaring;

impl Stage for Undeclaring {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            match packet.data().first() {
                Some(b'c') => packet.copy_to(OUT),
                Some(b'u') => packet.steer(Edge::new(9)),
                _ => {}
            }
        }
    }
}

#[test]
fn undeclared_copy_and_output_are_counted_and_leak_no_slot() {
    let outputs = vec![("out".to_owned(), Target::Port(0))];
    let undeclaring = NodeSpec { outputs, ..node("undeclaring", Undeclaring, Target::Port(0), None) };
    let (graph, sent) = walk(vec![undeclaring], &["c1", "u2", "n3", "c4"]);
    let counters = graph.counters().next().unwrap().1;
    assert_eq!((sent, counters.copied, counters.copies_missed), (3, 0, 2));
    assert_eq!(counters.drops[usize::from(Reason::Undeclared.code())], 1);
}

/// A stage that holds packets until `open` is set. It records each arrival and drops overdue packets.
#[derive(Clone, Default)]
struct Gate {
    open: Arc<std::sync::atomic::AtomicBool>,
    seen: Arc<Mutex<Vec<(u8, HoldState)>>>,
}

impl Stage for Gate {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            self.seen.lock().unwrap().push((packet.ingress(), packet.hold_state()));
            if packet.hold_state() == HoldState::Overdue {
                packet.drop(Reason::NoNeighbor);
            } else if !self.open.load(std::sync::atomic::Ordering::Relaxed) {
                packet.hold();
            }
        }
    }

    fn contract(&self) -> Contract {
        Contract::new().holds(Some(Nanos(100)))
    }
}

#[test]
fn held_packet_comes_back_until_it_is_sent_or_dropped() {
    let (gate, mut pool) = (Gate::default(), pool());
    let nodes = vec![node("gate", gate.clone(), Target::Port(0), None)];
    let mut graph = Graph::new(Program::new(nodes), 1, &pool);
    let ctx = |now| Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(now), worker: 0 };
    let release = |graph: &mut Graph, pool: &mut Pool, now| {
        graph.tick(&ctx(now));
        while graph.process_held_or_generate(&ctx(now), pool, &mut NoObserver) {}
        std::mem::take(&mut *gate.seen.lock().unwrap())
    };
    // Two packets arrive on port 1, then one packet on port 2, and later one more packet on port 1.
    for (port, packets, now) in [(1, 2, 10), (2, 1, 20), (1, 1, 60)] {
        for _ in 0..packets {
            assert!(graph.entry(port).push_bytes(b"x", Stamp::NONE, &mut pool));
        }
        graph.walk(&ctx(now), &mut pool, &mut NoObserver);
    }
    assert_eq!(gate.seen.lock().unwrap().drain(..).count(), 4);
    let held = HoldState::Held;
    assert_eq!(release(&mut graph, &mut pool, 70), [(1, held), (1, held), (2, held), (1, held)]);
    assert_eq!((pool.available(), graph.outbox(0).len()), (60, 0));
    // The first two packets are overdue.
    let late = HoldState::Overdue;
    assert_eq!(release(&mut graph, &mut pool, 115), [(1, late), (1, late), (2, held), (1, held)]);
    assert_eq!(pool.available(), 62);
    gate.open.store(true, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(release(&mut graph, &mut pool, 116), [(2, held), (1, held)]);
    assert_eq!((pool.available(), graph.outbox(0).len()), (62, 2));
    assert_eq!(release(&mut graph, &mut pool, 117), []);
    graph.outbox(0).free_into(&mut pool);
    // Each packet is counted once, even if it passes through the stage several times.
    let counters = graph.counters().next().unwrap().1.clone();
    assert_eq!((counters.packets, counters.drops[usize::from(Reason::NoNeighbor.code())]), (4, 2));
    gate.open.store(false, std::sync::atomic::Ordering::Relaxed);
    graph.entry(0).push_bytes(b"x", Stamp::NONE, &mut pool);
    graph.walk(&ctx(200), &mut pool, &mut NoObserver);
    graph.tick(&ctx(201));
    graph.drop_held(&mut pool);
    assert_eq!((pool.available(), graph.dropped()), (64, 3));
    assert!(!graph.process_held_or_generate(&ctx(202), &mut pool, &mut NoObserver));
}

#[test]
fn packets_beyond_the_hold_limit_are_dropped_and_no_slot_leaks() {
    let gate = Gate::default();
    let layout = SlotLayout::new(0, 64, 600).unwrap();
    let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
    let mut pool = Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap();
    let mut graph = Graph::new(Program::new(vec![node("gate", gate, Target::Port(0), None)]), 1, &pool);
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    for round in 0..20 {
        for _ in 0..50 {
            assert!(graph.entry(round % 3).push_bytes(b"x", Stamp::NONE, &mut pool));
        }
        graph.walk(&ctx, &mut pool, &mut NoObserver);
        if round % 2 == 1 {
            graph.tick(&ctx);
            // Some held packets pass through the stage again before more packets arrive.
            graph.process_held_or_generate(&ctx, &mut pool, &mut NoObserver);
        }
        assert!(pool.available() >= 600 - BATCH);
    }
    let counters = graph.counters().next().unwrap().1.clone();
    let full = counters.drops[usize::from(Reason::QueueFull.code())];
    assert_eq!((counters.packets, full, pool.available()), (1000, 1000 - BATCH as u64, 600 - BATCH));
    graph.drop_held(&mut pool);
    assert_eq!((pool.available(), graph.dropped()), (600, 1000));
}

/// A stage that generates the requested number of packets, and passes received packets on.
#[derive(Clone, Default)]
struct Source(Arc<std::sync::atomic::AtomicUsize>);

impl Stage for Source {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

    fn contract(&self) -> Contract {
        Contract::new().generates::<Self>(8)
    }
}

impl Generator for Source {
    fn generate(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for _ in 0..self.0.swap(0, std::sync::atomic::Ordering::Relaxed) {
            if batch.generate(b"made").is_none() {
                break;
            }
        }
    }
}

#[test]
fn generated_packets_reach_the_next_stage_and_are_counted() {
    let (source, mut pool) = (Source::default(), pool());
    let free = pool.available();
    let gate = Gate::default();
    gate.open.store(true, std::sync::atomic::Ordering::Relaxed);
    let nodes =
        vec![node("source", source.clone(), Target::Node(1), None), node("gate", gate.clone(), Target::Port(0), None)];
    let mut graph = Graph::new(Program::new(nodes), 1, &pool);
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    // The stage generates at most its declared maximum, and nothing without a tick. Unused slots return to the pool.
    for (wanted, made) in [(0, 0), (3, 3), (20, 8)] {
        source.0.store(wanted, std::sync::atomic::Ordering::Relaxed);
        assert!(!graph.process_held_or_generate(&ctx, &mut pool, &mut NoObserver));
        graph.tick(&ctx);
        while graph.process_held_or_generate(&ctx, &mut pool, &mut NoObserver) {}
        assert_eq!((graph.outbox(0).len(), pool.available()), (made, free - made));
        graph.outbox(0).free_into(&mut pool);
    }
    let counters: Vec<(u64, u64)> =
        graph.counters().map(|(_, counters)| (counters.packets, counters.generated)).collect();
    assert_eq!(counters, [(0, 11), (11, 0)]);
    // Without free slots the stage generates nothing.
    let taken: Vec<u32> = std::iter::from_fn(|| pool.take(1, SlotState::Batched).first().copied()).collect();
    source.0.store(1, std::sync::atomic::Ordering::Relaxed);
    graph.tick(&ctx);
    assert!(!graph.process_held_or_generate(&ctx, &mut pool, &mut NoObserver));
    pool.put(&taken, SlotState::Batched);
    assert_eq!(pool.available(), free);
}

/// A stage that panics when it observes the drop of a packet that starts with `w`.
struct Panicking;

impl Stage for Panicking {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

    fn contract(&self) -> Contract {
        Contract::new().observes_drops::<Self>()
    }
}

impl DropObserver for Panicking {
    fn observe_drop(&mut self, _ctx: &Ctx, packet: &Packet<'_>, _cause: Cause<'_>) {
        assert_ne!(packet.data()[0], b'w');
    }
}

/// An observer that panics after it has observed this many packets and copies.
struct PanicsAfter(usize);

impl Observer for PanicsAfter {
    fn after(&mut self, _node: usize, _packet: &Packet<'_>, _fate: &PacketFate) {
        self.0 = self.0.checked_sub(1).expect("enough packets were observed");
    }
}

/// A stage that declares copies and sends one copy of each packet to the output `out`.
struct Copying;

impl Stage for Copying {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        batch.iter_mut().for_each(|mut packet| packet.copy_to(OUT));
    }

    fn contract(&self) -> Contract {
        Contract::new().copies()
    }
}

#[test]
fn panic_of_an_observer_duplicates_no_slot() {
    let copying = || {
        let outputs = vec![("out".to_owned(), Target::Port(0))];
        vec![NodeSpec { outputs, ..node("copying", Copying, Target::Port(0), None) }]
    };
    let cases = (0..7).map(|most| (vec![sort(Target::Port(0), None)], most));
    let watched = vec![sort(Target::Port(0), Some(1)), node("watcher", Panicking, Target::Port(0), None)];
    let cases = cases.chain((0..14).map(|most| (copying(), most))).chain([(watched, usize::MAX)]);
    for (nodes, most) in cases {
        let mut pool = pool();
        let mut graph = Graph::new(Program::new(nodes), 1, &pool);
        let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
        for packet in PACKETS {
            assert!(graph.entry(0).push_bytes(packet.as_bytes(), Stamp::NONE, &mut pool));
        }
        let walk = |graph: &mut Graph, pool: &mut Pool| match most {
            usize::MAX => graph.walk(&ctx, pool, &mut NoObserver),
            most => graph.walk(&ctx, pool, &mut PanicsAfter(most)),
        };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| walk(&mut graph, &mut pool)));
        assert!(panicked.is_err(), "{most}");
        let (_, batch) = graph.interrupted().unwrap();
        let mut owned: Vec<u32> = batch.descs().iter().map(|desc| desc.slot).collect();
        owned.extend(graph.outbox(0).descs().iter().map(|desc| desc.slot));
        owned.extend(pool.take(64, SlotState::Batched));
        owned.sort_unstable();
        assert_eq!(owned, (0..64).collect::<Vec<u32>>(), "{most}");
    }
}

/// A stage that panics at a packet that starts with `n`, after it has labelled the packets before. As a generator, the
/// stage panics after it has generated two packets.
struct Faulty {
    generates: bool,
}

impl Stage for Faulty {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            assert_ne!(packet.data()[0], b'n', "a faulty packet");
            packet.drop(Reason::Denied);
        }
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("seen", 7);
        report.add_entry("rule", true, 5);
        report.add("last", 9);
        panic!("a faulty counter");
    }

    fn contract(&self) -> Contract {
        if self.generates { Contract::new().generates::<Self>(4) } else { Contract::new() }
    }
}

impl Generator for Faulty {
    fn generate(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for _ in 0..2 {
            assert!(batch.generate(b"g").is_some());
        }
        panic!("a faulty generator");
    }
}

/// Calls a function that must panic.
fn panics(act: impl FnOnce()) {
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err());
}

#[test]
fn graph_continues_without_a_stage_that_panicked() {
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    for on_panic in [OnPanic::Drop, OnPanic::Bypass] {
        let mut pool = pool();
        let outputs = vec![("out".to_owned(), Target::Node(2)), ("lost".to_owned(), Target::Drop)];
        let nodes = vec![
            NodeSpec { outputs, ..node("sort", Sort, Target::Node(1), None) },
            NodeSpec { on_panic, ..node("faulty", Faulty { generates: false }, Target::Node(2), None) },
            node("pass", Pass, Target::Port(0), None),
        ];
        let mut graph = Graph::new(Program::new(nodes), 1, &pool);
        let fill = |graph: &mut Graph, pool: &mut Pool, packets: &[&str]| {
            for packet in packets {
                assert!(graph.entry(0).push_bytes(packet.as_bytes(), Stamp::NONE, pool));
            }
        };
        // `x1` and `n2` reach the faulty stage, and `o4` reaches the last stage.
        fill(&mut graph, &mut pool, &["x1", "n2", "o4"]);
        panics(|| graph.walk(&ctx, &mut pool, &mut NoObserver));
        assert_eq!(
            graph.interrupted().map(|(name, batch)| (name.to_owned(), batch.len())),
            Some(("faulty".to_owned(), 2))
        );
        let quarantined = graph.quarantine(&ctx, &mut pool).unwrap();
        let expected = Quarantined { stage: "faulty".to_owned(), on_panic, packets: 2, first: Some(b"x1".to_vec()) };
        assert_eq!(quarantined, expected);
        // The quarantined stage keeps the counters that it reported before the panic of `counters`, in this order.
        let mut counters = Vec::new();
        let (_, stage) = graph.stages().nth(1).unwrap();
        stage.counters(&mut |name: &str, value: u64| counters.push((name.to_owned(), value)));
        assert_eq!(counters, [("seen", 7), ("rule", 5), ("last", 9)].map(|(name, value)| (name.to_owned(), value)));
        graph.walk(&ctx, &mut pool, &mut NoObserver);
        assert_eq!((graph.outbox(0).len(), pool.available()), (1, 63));
        fill(&mut graph, &mut pool, &["x5", "n6", "o7"]);
        graph.walk(&ctx, &mut pool, &mut NoObserver);
        let passed = if on_panic == OnPanic::Bypass { 4 } else { 2 };
        assert_eq!((graph.outbox(0).len(), pool.available()), (passed, 64 - passed));
        let (_, faulty) = graph.counters().nth(1).unwrap();
        let drops = |reason: Reason| faulty.drops[usize::from(reason.code())];
        assert_eq!((faulty.packets, faulty.panics, faulty.is_quarantined), (4, 1, true));
        assert_eq!((drops(Reason::Panicked), drops(Reason::Quarantined)), (2, 4 - passed as u64));
        assert!(graph.quarantine(&ctx, &mut pool).is_none(), "no stage is running");
        graph.outbox(0).free_into(&mut pool);
    }
}

#[test]
fn later_graph_decides_what_a_quarantined_stage_does() {
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    let successions = [Succession { earlier: 0, later: 0, moves: true }];
    for (first, later, sent) in [
        (OnPanic::Bypass, OnPanic::Drop, 0),
        (OnPanic::Bypass, OnPanic::Stop, 0),
        (OnPanic::Drop, OnPanic::Bypass, 1),
        (OnPanic::Drop, OnPanic::Drop, 0),
    ] {
        let mut pool = pool();
        let graph = |on_panic, pool: &Pool| {
            let nodes =
                vec![NodeSpec { on_panic, ..node("faulty", Faulty { generates: false }, Target::Port(0), None) }];
            Graph::new(Program::new(nodes), 1, pool)
        };
        let mut before = graph(first, &pool);
        assert!(before.entry(0).push_bytes(b"n1", Stamp::NONE, &mut pool));
        panics(|| before.walk(&ctx, &mut pool, &mut NoObserver));
        assert!(before.quarantine(&ctx, &mut pool).is_some());
        let mut after = graph(later, &pool);
        after.take_over(&mut before, &successions, None, &mut pool);
        assert!(after.entry(0).push_bytes(b"n2", Stamp::NONE, &mut pool));
        after.walk(&ctx, &mut pool, &mut NoObserver);
        assert_eq!(after.outbox(0).len(), sent, "{first:?} {later:?}");
        let (_, faulty) = after.counters().next().unwrap();
        assert_eq!(faulty.drops[usize::from(Reason::Quarantined.code())], 1 - sent as u64);
        after.outbox(0).free_into(&mut pool);
    }
}

#[test]
fn panic_of_a_generator_or_of_an_observer_leaks_no_slot() {
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    let mut pool = pool();
    let on_panic = OnPanic::Drop;
    let nodes = vec![
        sort(Target::Node(1), Some(2)),
        NodeSpec { on_panic, ..node("faulty", Faulty { generates: true }, Target::Port(0), None) },
        NodeSpec { on_panic, ..node("watcher", Panicking, Target::Drop, None) },
    ];
    let mut graph = Graph::new(Program::new(nodes), 1, &pool);
    graph.tick(&ctx);
    panics(|| while graph.process_held_or_generate(&ctx, &mut pool, &mut NoObserver) {});
    assert_eq!(
        graph.quarantine(&ctx, &mut pool).map(|found| (found.stage, found.packets)),
        Some(("faulty".to_owned(), 2))
    );
    assert_eq!(pool.available(), 64);
    // The quarantined stage generates nothing.
    graph.tick(&ctx);
    assert!(!graph.process_held_or_generate(&ctx, &mut pool, &mut NoObserver));

    for packet in PACKETS {
        assert!(graph.entry(0).push_bytes(packet.as_bytes(), Stamp::NONE, &mut pool));
    }
    panics(|| graph.walk(&ctx, &mut pool, &mut NoObserver));
    assert_eq!(
        graph.quarantine(&ctx, &mut pool).map(|found| (found.stage, found.packets)),
        Some(("watcher".to_owned(), 0))
    );
    graph.walk(&ctx, &mut pool, &mut NoObserver);
    // `o4` was sent, the quarantined stage dropped `n2`, and `sort` dropped or consumed all others.
    assert_eq!((graph.outbox(0).len(), pool.available()), (1, 63));
    let counters: Vec<NodeCounters> = graph.counters().map(|(_, counters)| counters.clone()).collect();
    let dropped = |at: usize| counters[at].drops.iter().sum::<u64>();
    assert_eq!((counters[0].packets, dropped(0), counters[0].outputs[1], counters[0].consumed), (7, 3, 1, 1));
    assert_eq!((counters[1].packets, counters[1].generated, dropped(1)), (1, 2, 3));
    assert_eq!(counters.iter().map(|counters| counters.panics).collect::<Vec<_>>(), [0, 1, 1]);
    graph.outbox(0).free_into(&mut pool);
}

#[test]
fn stage_without_on_panic_is_not_quarantined() {
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    let mut pool = pool();
    let nodes = vec![node("faulty", Faulty { generates: false }, Target::Port(0), None)];
    let mut graph = Graph::new(Program::new(nodes), 1, &pool);
    assert!(graph.entry(0).push_bytes(b"n1", Stamp::NONE, &mut pool));
    panics(|| graph.walk(&ctx, &mut pool, &mut NoObserver));
    assert!(graph.quarantine(&ctx, &mut pool).is_none());
    assert_eq!(graph.interrupted().map(|(name, batch)| (name, batch.len())), Some(("faulty", 1)));
}

#[test]
fn panic_outside_the_code_of_stages_quarantines_no_stage() {
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    let mut pool = pool();
    let nodes = vec![NodeSpec { on_panic: OnPanic::Drop, ..node("pass", Pass, Target::Port(0), None) }];
    let mut graph = Graph::new(Program::new(nodes), 1, &pool);
    let marker = Arc::<StageMarker>::default();
    graph.set_marker(marker.clone());
    assert!(graph.entry(0).push_bytes(b"x1", Stamp::NONE, &mut pool));
    panics(|| graph.walk(&ctx, &mut pool, &mut PanicsAfter(0)));
    // The mark for the watchdog stays at the last stage.
    assert_eq!(marker.stage(), Some(0));
    assert!(graph.quarantine(&ctx, &mut pool).is_none());
}

/// A stage that holds each packet once, and sets the egress port from the second byte of the packet.
struct HoldOnce;

impl Stage for HoldOnce {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            let port = packet.data()[1] - b'0';
            if packet.hold_state() == HoldState::Fresh {
                packet.meta_mut().egress = port;
                packet.hold();
            }
        }
    }

    fn contract(&self) -> Contract {
        Contract::new().holds(Some(Nanos(1_000_000_000))).exit(crate::pipeline::DefaultTarget::Egress)
    }
}

#[test]
fn held_packets_get_the_new_numbers_of_their_ports() {
    let ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
    let mut pool = pool();
    let graph = |ports, pool: &Pool| {
        let nodes = vec![node("holds", HoldOnce, Target::Drop, None)];
        Graph::new(Program::new(nodes), ports, pool)
    };
    let mut before = graph(3, &pool);
    // The first byte is the ingress port, and the second byte is the egress port.
    for packet in ["00", "01", "10", "12", "21", "22"] {
        let entry = before.entry(packet.as_bytes()[0] - b'0');
        assert!(entry.push_bytes(packet.as_bytes(), Stamp::NONE, &mut pool));
        before.walk(&ctx, &mut pool, &mut NoObserver);
    }
    // Port 1 is removed, port 0 becomes port 1, and port 2 becomes port 0.
    let mut after = graph(2, &pool);
    let numbers = [Some(1), None, Some(0)];
    let successions = [Succession { earlier: 0, later: 0, moves: true }];
    after.take_over(&mut before, &successions, Some(&numbers), &mut pool);
    after.tick(&ctx);
    let mut sent = vec![Vec::new(); 2];
    while after.process_held_or_generate(&ctx, &mut pool, &mut NoObserver) {
        for (port, sent) in sent.iter_mut().enumerate() {
            let ingress = after.outbox(port).ingress();
            sent.extend(after.outbox(port).iter_mut().map(|packet| (ingress, packet.data().to_vec())));
            after.outbox(port).free_into(&mut pool);
        }
    }
    assert_eq!(sent, [vec![(0, b"22".to_vec())], vec![(1, b"00".to_vec())]]);
    let (_, counters) = after.counters().next().unwrap();
    // Port 1, which was removed, received two packets and is the egress port of two other packets.
    assert_eq!(counters.drops[usize::from(Reason::Stopped.code())], 2);
    assert_eq!(counters.drops[usize::from(Reason::NoPort.code())], 2);
    assert_eq!(pool.available(), 64);
}
