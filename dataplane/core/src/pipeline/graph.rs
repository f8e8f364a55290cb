//! The running graph: moves batches from stage to stage. A label is the decision of a stage about a packet.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::Error;
use crate::mem::{BATCH, Batch, BatchMemory, Edge, HoldState, Packet, Pool, Reason, Region, Verdict};
use crate::pipeline::contract::{Generate, ObserveDrop};
use crate::pipeline::held::{Held, HeldPackets};
use crate::pipeline::quarantine::Substitute;
use crate::pipeline::{Cause, Contract, Ctx, NodeSpec, OnPanic, Program, Quarantined, Stage, StageMarker, Target};

/// The counters of a stage, in packets.
#[derive(Clone, Debug)]
pub struct NodeCounters {
    /// Received packets.
    pub packets: u64,
    /// Received batches.
    pub batches: u64,
    /// Packets that the stage consumed, because they need no further processing.
    pub consumed: u64,
    /// Copies of packets that the graph made because the stage requested the copies.
    pub copied: u64,
    /// Packets that the stage added: split off from received packets, or generated.
    pub generated: u64,
    /// Requested copies that were not made, because no buffer was free or the contract of the stage does not declare
    /// copies.
    pub copies_missed: u64,
    /// Packets that left by each output. The index is the index of the output.
    pub outputs: [u64; Edge::MAX_OUTPUTS],
    /// Packets without a label that were dropped, because their target is [`Target::Drop`].
    pub dropped_next: u64,
    /// Packets that the stage dropped. The index is [`Reason::code`].
    pub drops: [u64; Reason::CODES],
    /// Panics of the stage.
    pub panics: u64,
    /// Whether the stage is quarantined after a panic.
    pub is_quarantined: bool,
}

impl Default for NodeCounters {
    fn default() -> Self {
        Self {
            packets: 0,
            batches: 0,
            consumed: 0,
            copied: 0,
            generated: 0,
            copies_missed: 0,
            outputs: [0; Edge::MAX_OUTPUTS],
            dropped_next: 0,
            drops: [0; Reason::CODES],
            panics: 0,
            is_quarantined: false,
        }
    }
}

/// Observes packets on their way through the graph. Workers that observe nothing use [`NoObserver`], which costs no
/// instructions.
pub trait Observer {
    /// Called before a batch enters the stage with the index `node`.
    fn before(&mut self, node: usize, stage: &mut dyn Stage, batch: &mut Batch) {
        let _ = (node, stage, batch);
    }

    /// Called for each packet after the stage with the index `node`. `fate` is what happens to the packet.
    fn after(&mut self, node: usize, packet: &Packet<'_>, fate: &PacketFate) {
        let _ = (node, packet, fate);
    }

    /// Whether the graph calls [`Observer::before`] and [`Observer::after`].
    const WATCHES: bool = true;

    /// Called when a part of the worker loop begins. The previous part has then ended.
    #[inline]
    fn enters(&mut self, part: Part) {
        let _ = part;
    }
}

/// A part of the worker loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A lane reclaims the buffers of completed sends.
    Reap,
    /// A lane receives packets.
    Receive,
    /// The stage with index `.0` processes `.1` packets.
    Stage(usize, usize),
    /// The lanes send packets.
    Transmit,
    /// A lane posts receives.
    Refill,
}

/// What happens to a packet after a stage: the packet goes to a target, or the stage dropped, consumed or holds the
/// packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFate {
    /// The packet has no label and goes to this target.
    Next(Target),
    /// The packet leaves by the output with this index and goes to this target.
    Output(usize, Target),
    /// The stage dropped the packet.
    Dropped(Reason),
    /// The stage consumed the packet.
    Consumed,
    /// The stage holds the packet.
    Held,
    /// A copy of the packet leaves by the output with this index and goes to this target. The last number is the slot
    /// of the copy.
    Copied(usize, Target, u32),
}

/// An observer that does nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Observer for NoObserver {
    const WATCHES: bool = false;
}

struct GraphNode {
    name: String,
    stage: Box<dyn Stage>,
    inbox: Box<Batch>,
    next: Target,
    outputs: Box<[Target]>,
    /// Whether the stage declares copies. Only then do the inboxes of later stages have room for copies.
    copies: bool,
    /// Maximum number of packets that the stage adds per received packet.
    max_split: usize,
    /// Maximum number of packets that the stage generates per tick, and the function that generates the packets. `None`
    /// if the stage generates no packets.
    generator: Option<(usize, Generate)>,
    /// [`Graph::tick`] sets this field if the stage can generate packets. The stage then generates packets once, which
    /// clears the field.
    generation_due: bool,
    held: Option<Held>,
    counters: NodeCounters,
    watch: Option<DropWatch>,
    on_panic: OnPanic,
    /// The number of packets that entered the stage with the current batch. Only valid if `max_split` is not 0.
    entered: usize,
}

/// The observation of the drops of a stage (the observed stage) by another stage (the observing stage).
struct DropWatch {
    /// Index of the observing stage.
    by: usize,
    observe: ObserveDrop,
    /// Names of the drop reasons of the observed stage. The index is [`Reason::code`].
    reasons: Box<[String]>,
    /// Names of the outputs of the observed stage, by index.
    outputs: Box<[String]>,
}

impl DropWatch {
    fn new(by: usize, observe: ObserveDrop, node: &NodeSpec) -> Self {
        Self {
            by,
            observe,
            reasons: (0..Reason::CODES).map(|code| Reason::from_code(code as u8).name(&node.reasons)).collect(),
            outputs: node.outputs.iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    /// Returns the drop reason of a fate, or `None` if the fate is not a drop.
    #[inline]
    fn reason(&self, fate: &PacketFate) -> Option<&str> {
        let name = match fate {
            PacketFate::Dropped(reason) => self.reasons.get(usize::from(reason.code())),
            PacketFate::Next(Target::Drop) => self.reasons.get(usize::from(Reason::Requested.code())),
            PacketFate::Output(output, Target::Drop) => self.outputs.get(*output),
            _ => None,
        };
        name.map(String::as_str)
    }
}

/// A stage of an earlier graph, and the stage of a later graph that continues the work of the earlier stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Succession {
    /// Index of the stage in the earlier graph.
    pub earlier: usize,
    /// Index of the stage in the later graph.
    pub later: usize,
    /// Whether the earlier stage moves to the later graph. If `false`, the later graph has a new stage, which takes
    /// over the state of the earlier stage ([`Stage::adopt`]).
    pub moves: bool,
}

/// The stages of one worker. Each stage has an inbox, the batch that it processes. Each port has an outbox, the batch
/// to send.
///
/// No inbox can overflow. At most [`Graph::burst`] packets enter the graph. Copies and added packets increase this
/// number to at most [`BATCH`].
pub struct Graph {
    /// The memory of all batches.
    region: Arc<Region>,
    nodes: Box<[GraphNode]>,
    outboxes: Box<[Box<Batch>]>,
    burst: usize,
    /// The stage that the worker runs, or ran last.
    marker: Arc<StageMarker>,
    activity: Activity,
}

/// What the worker does with the stage that it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// The stage processes a batch, or observes a drop.
    Walk,
    /// The stage does its housekeeping, or reports its counters.
    Housekeeping,
    Generation,
    /// The stage hands its state over to another stage, or takes over state.
    TakeOver,
    /// The stage saves its state for another program.
    Save,
}

impl Graph {
    /// Creates a graph from a [`Program`], with batches that use the slots of `pool`, for `ports` ports.
    pub fn new(program: Program, ports: usize, pool: &Pool) -> Self {
        Self::in_memory(program, ports, &pool.batch_memory())
    }

    /// Creates a graph from a [`Program`], with batches in this memory, for `ports` ports. Any thread can create the
    /// graph. Only the worker that owns the pool of the memory can use the graph.
    pub fn in_memory(program: Program, ports: usize, memory: &BatchMemory) -> Self {
        let burst = BATCH / program.max_packets_per_received();
        let contracts: Vec<Contract> = program.nodes.iter().map(|node| node.stage.contract()).collect();
        let watch = |node: &NodeSpec| {
            let by = node.drop_observer?;
            Some(DropWatch::new(by, contracts[by].drop_observer?, node))
        };
        let node = |(node, contract): (NodeSpec, &Contract)| GraphNode {
            copies: contract.copies,
            max_split: contract.splits,
            generator: contract.generator.map(|(max, generate)| (max.min(burst), generate)),
            generation_due: false,
            held: contract.holds.map(|longest| Held::new(longest, memory)),
            watch: watch(&node),
            name: node.name,
            stage: node.stage,
            inbox: Batch::in_memory(memory),
            next: node.next,
            outputs: node.outputs.into_iter().map(|(_, target)| target).collect(),
            counters: NodeCounters::default(),
            on_panic: node.on_panic,
            entered: 0,
        };
        let nodes = program.nodes.into_iter().zip(&contracts).map(node).collect();
        let outboxes = (0..ports).map(|_| Batch::in_memory(memory)).collect();
        let (region, marker) = (memory.region().clone(), Arc::default());
        Self { region, nodes, outboxes, burst, marker, activity: Activity::Walk }
    }

    /// Checks that the graph was created for this pool.
    #[inline]
    fn check_pool(&self, pool: &Pool) {
        assert!(Arc::ptr_eq(&self.region, pool.region()), "the graph was created for another pool");
    }

    /// Returns the maximum number of packets that may enter the graph at a time.
    pub fn burst(&self) -> usize {
        self.burst
    }

    /// Returns the inbox for packets that are received on this port.
    #[inline]
    pub fn entry(&mut self, port: u8) -> &mut Batch {
        // A program always has at least one stage.
        let entry = &mut self.nodes[0].inbox;
        entry.set_ingress(port);
        entry
    }

    /// Returns the outbox of a port: the packets to send on this port.
    #[inline]
    pub fn outbox(&mut self, port: usize) -> &mut Batch {
        &mut self.outboxes[port]
    }

    /// Returns the name and counters of each stage.
    pub fn counters(&self) -> impl Iterator<Item = (&str, &NodeCounters)> {
        self.nodes.iter().map(|node| (node.name.as_str(), &node.counters))
    }

    /// Returns the number of packets that the stages have dropped.
    pub fn dropped(&self) -> u64 {
        let of = |node: &GraphNode| {
            let wired = node.outputs.iter().zip(&node.counters.outputs);
            let by_output: u64 = wired.filter(|(to, _)| **to == Target::Drop).map(|(_, packets)| packets).sum();
            by_output + node.counters.dropped_next + node.counters.drops.iter().sum::<u64>()
        };
        self.nodes.iter().map(of).sum()
    }

    /// Sets the marker in which the graph records the stage that the worker runs.
    pub fn set_marker(&mut self, marker: Arc<StageMarker>) {
        self.marker = marker;
    }

    /// Returns the name of the stage that a panic has interrupted, and the packets of the interrupted batch. Returns
    /// `None` if the panic has interrupted no stage. The packets are lost, because the stage may have processed
    /// them only partly.
    pub fn interrupted(&mut self) -> Option<(&str, &mut Batch)> {
        // While a stage processes packets, all earlier stages have passed on their packets. The first stage with
        // packets therefore has the interrupted batch.
        let first = self.nodes.iter().position(|node| !node.inbox.is_empty());
        let stage = self.marker.panicked().map(|(stage, _)| stage).or(first)?;
        let batch = first.filter(|_| self.activity == Activity::Walk).unwrap_or(stage);
        if batch == stage {
            return self.nodes.get_mut(stage).map(|node| (node.name.as_str(), &mut *node.inbox));
        }
        let [stage, batch] = self.nodes.get_disjoint_mut([stage, batch]).ok()?;
        Some((&stage.name, &mut batch.inbox))
    }

    /// Continues after a panic of a stage with [`OnPanic::Drop`] or [`OnPanic::Bypass`]: replaces the stage, and drops
    /// the packets that the stage was processing. Returns `None` if the worker must end, for one of three reasons: the
    /// code that panicked is not part of a stage, the stage has [`OnPanic::Stop`], or the stage was handing over its
    /// state to another stage.
    ///
    /// A panic in [`Graph::save_states`] only makes an upgrade fail. A stage with [`OnPanic::Stop`] then stays in the
    /// graph, because the run must continue.
    ///
    /// The graph may still contain packets of other stages. [`Graph::walk`] moves them on.
    ///
    /// # Panics
    /// Panics if `pool` is not the pool that the graph was created for.
    #[cold]
    pub fn quarantine(&mut self, ctx: &Ctx, pool: &mut Pool) -> Option<Quarantined> {
        self.check_pool(pool);
        let (place, observes) = self.marker.panicked()?;
        let activity = self.activity;
        let stops = self.nodes.get(place)?.on_panic == OnPanic::Stop;
        if activity == Activity::TakeOver || stops && activity != Activity::Save {
            return None;
        }
        self.marker.clear();
        self.activity = Activity::Walk;
        let Self { nodes, outboxes, marker, .. } = self;
        let mut quarantined =
            Quarantined { stage: nodes[place].name.clone(), on_panic: nodes[place].on_panic, packets: 0, first: None };
        if observes {
            nodes.iter_mut().filter(|node| node.watch.as_ref().is_some_and(|watch| watch.by == place)).for_each(
                |node| {
                    node.watch = None;
                },
            );
            // The first packet of the first inbox that is not empty is the packet that the stage observed. The drop of
            // this packet is already counted, so only free its buffer. Then move the remaining packets.
            if let Some(at) = nodes.iter().position(|node| !node.inbox.is_empty()) {
                nodes[at].inbox.free_one(0, pool);
                nodes[at].inbox.forget_first(1);
                let (before, later) = nodes.split_at_mut(at + 1);
                if let Some((node, earlier)) = before.split_last_mut() {
                    BatchMove { ctx, place: at, node, earlier, later, outboxes, pool, marker }
                        .move_one_by_one(&mut NoObserver);
                }
            }
        } else if !matches!(activity, Activity::Housekeeping | Activity::Save) {
            let node = &mut nodes[place];
            if node.max_split > 0 || activity == Activity::Generation {
                node.inbox.return_spares(pool);
                let before = if activity == Activity::Generation { 0 } else { node.entered };
                node.counters.generated += node.inbox.len().saturating_sub(before) as u64;
            }
            quarantined.packets = node.inbox.len();
            quarantined.first = node.inbox.iter_mut().next().map(|packet| packet.data().to_vec());
            node.counters.drops[usize::from(Reason::Panicked.code())] += node.inbox.len() as u64;
            node.inbox.clear_labels();
            node.inbox.free_into(pool);
            node.inbox.set_hold_state(HoldState::Fresh);
        }
        let node = &mut nodes[place];
        node.counters.panics += 1;
        if stops {
            return Some(quarantined);
        }
        node.counters.is_quarantined = true;
        (node.generator, node.generation_due) = (None, false);
        let substitute = Substitute::new(&*node.stage, node.on_panic == OnPanic::Drop);
        let stage = std::mem::replace(&mut node.stage, Box::new(substitute));
        // The destructor of a stage that panicked may panic too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(stage)));
        Some(quarantined)
    }

    /// Returns the name of each stage and the stage itself.
    pub fn stages(&mut self) -> impl Iterator<Item = (&str, &mut Box<dyn Stage>)> {
        self.nodes.iter_mut().map(|node| (node.name.as_str(), &mut node.stage))
    }

    /// Calls `visit` for each stage, in the order of the pipeline. The worker calls this method between two batches.
    pub fn visit(&mut self, mut visit: impl FnMut(&dyn Stage)) {
        self.activity = Activity::Housekeeping;
        for (place, node) in self.nodes.iter().enumerate() {
            self.marker.run(place, || visit(&*node.stage));
        }
        self.marker.leave();
        self.activity = Activity::Walk;
    }

    /// Returns the saved state of each stage that has one, with the name of the stage
    /// ([`StateTransfer`](super::StateTransfer)).
    pub fn save_states(&mut self) -> Vec<(String, Vec<u8>)> {
        let mut states = Vec::new();
        self.activity = Activity::Save;
        for (place, node) in self.nodes.iter_mut().enumerate() {
            let Some((save, _)) = node.stage.contract().state_transfer else { continue };
            let state = self.marker.run(place, || save(&mut *node.stage));
            states.extend(state.map(|state| (node.name.clone(), state)));
        }
        self.marker.leave();
        self.activity = Activity::Walk;
        states
    }

    /// Makes the stages take over saved states. Returns a message for each stage that cannot use
    /// its state.
    pub fn load_states(&mut self, states: &[(String, Vec<u8>)]) -> Vec<String> {
        let mut problems = Vec::new();
        for node in &mut self.nodes {
            let Some((name, state)) = states.iter().find(|(name, _)| *name == node.name) else { continue };
            let loaded = match node.stage.contract().state_transfer {
                Some((_, load)) => load(&mut *node.stage, state),
                None => Err("this version of the stage keeps no state".to_owned()),
            };
            problems.extend(loaded.err().map(|why| format!("stage `{name}`: {why}")));
        }
        problems
    }

    /// Runs the housekeeping of every stage. The graph must contain no packets, except held packets.
    pub fn tick(&mut self, ctx: &Ctx) {
        self.activity = Activity::Housekeeping;
        for (place, node) in self.nodes.iter_mut().enumerate() {
            self.marker.run(place, || node.stage.tick(ctx));
            node.generation_due = node.generator.is_some_and(|(max, _)| max > 0);
            if let Some(held) = &mut node.held {
                held.begin();
            }
        }
        self.marker.leave();
        self.activity = Activity::Walk;
    }

    /// Passes some of the packets that were held at the last [`Graph::tick`] through their stage again. If no such
    /// packet is left, one stage generates packets instead. Returns `false` if no packet was released or generated.
    ///
    /// The caller must send the contents of the outboxes before the next call.
    ///
    /// # Panics
    /// Panics if `pool` is not the pool that the graph was created for.
    pub fn process_held_or_generate<O: Observer>(&mut self, ctx: &Ctx, pool: &mut Pool, observer: &mut O) -> bool {
        self.check_pool(pool);
        let burst = self.burst;
        for node in &mut self.nodes {
            let Some(held) = &mut node.held else { continue };
            let count = held.fill(&mut node.inbox, burst, ctx.now);
            if count > 0 {
                // Each of these packets was already counted when it arrived.
                node.counters.packets -= count as u64;
                self.walk(ctx, pool, observer);
                return true;
            }
        }
        (0..self.nodes.len()).any(|place| self.generate(place, ctx, pool, observer))
    }

    /// Lets a stage generate packets, at most once after each [`Graph::tick`]. Returns `false` if the stage generated
    /// no packet.
    fn generate<O: Observer>(&mut self, place: usize, ctx: &Ctx, pool: &mut Pool, observer: &mut O) -> bool {
        let Self { nodes, outboxes, marker, activity, .. } = self;
        let (nodes, later) = nodes.split_at_mut(place + 1);
        let Some((node, earlier)) = nodes.split_last_mut().filter(|(node, _)| node.generation_due) else {
            return false;
        };
        node.generation_due = false;
        let Some((max, generate)) = node.generator else { return false };
        node.inbox.set_ingress(0);
        node.inbox.take_spares(max, pool);
        *activity = Activity::Generation;
        marker.run(place, || generate(&mut *node.stage, ctx, &mut node.inbox));
        marker.leave();
        *activity = Activity::Walk;
        node.inbox.return_spares(pool);
        if node.inbox.is_empty() {
            return false;
        }
        node.counters.generated += node.inbox.len() as u64;
        BatchMove { ctx, place, node, earlier, later, outboxes, pool, marker }.move_all(observer);
        self.walk(ctx, pool, observer);
        true
    }

    /// Returns whether any stage holds packets.
    pub fn holds(&self) -> bool {
        self.nodes.iter().any(|node| node.held.as_ref().is_some_and(|held| !held.is_empty()))
    }

    /// Takes over the work of `earlier`, the graph that this graph replaces on its worker:
    ///
    /// - Moves each continuing stage to this graph ([`Succession::moves`]).
    /// - Lets each replaced stage hand its state over to the new stage ([`Stage::adopt`]).
    /// - Moves the packets that these stages hold, unless a new stage refuses the packets
    ///   ([`Stage::adopt`]). Drops and counts all other held packets of `earlier`.
    /// - If the numbers of the ports change, gives the moved packets the new numbers, and drops the packets that a
    ///   removed port received. `ports` has the new number of each earlier port, or `None` for a removed port. The
    ///   argument `ports` is `None` if the numbers stay the same.
    ///
    /// Each graph keeps its own counters, but the counts of held packets move with the packets. Before the call, the
    /// graphs must contain no packets except held packets. This method neither allocates nor frees memory.
    ///
    /// # Panics
    /// Panics if `pool` is not the pool that both graphs were created for.
    pub fn take_over(
        &mut self,
        earlier: &mut Self,
        successions: &[Succession],
        ports: Option<&[Option<u8>]>,
        pool: &mut Pool,
    ) {
        self.check_pool(pool);
        earlier.check_pool(pool);
        // The worker continues with this graph, so this graph gets the marker of the worker.
        std::mem::swap(&mut self.marker, &mut earlier.marker);
        earlier.activity = Activity::TakeOver;
        for succession in successions {
            let before = earlier.nodes.get_mut(succession.earlier);
            let (Some(before), Some(node)) = (before, self.nodes.get_mut(succession.later)) else { continue };
            // If a stage panics here, `earlier` is still the graph of the worker, so the error names a stage of
            // `earlier`.
            let held_packets = earlier.marker.run(succession.earlier, || {
                if succession.moves {
                    std::mem::swap(&mut node.stage, &mut before.stage);
                    node.counters.is_quarantined = before.counters.is_quarantined;
                    if let Some(substitute) = node.stage.downcast::<Substitute>() {
                        substitute.drops = node.on_panic != OnPanic::Bypass;
                    }
                    HeldPackets::Keep
                } else {
                    node.stage.adopt(&mut *before.stage)
                }
            });
            let GraphNode { held: before_held, counters: before_counters, .. } = before;
            if let (HeldPackets::Keep, Some(held), Some(before)) = (held_packets, &mut node.held, before_held) {
                // The earlier graph has counted the held packets. The packets move, so the count moves too.
                let (counts, earlier) = (&mut node.counters.packets, &mut before_counters.packets);
                *counts += before.len() as u64;
                *earlier -= before.len() as u64;
                held.exchange(before);
                if let Some(ports) = ports {
                    let freed = held.renumber_ports(ports, pool);
                    node.counters.drops[usize::from(Reason::Stopped.code())] += freed as u64;
                }
            }
        }
        earlier.marker.leave();
        earlier.activity = Activity::Walk;
        earlier.drop_held(pool);
    }

    /// Calls [`Stage::finish`] of each stage in this graph for whose name `is_finished` returns `true`. Returns the
    /// errors.
    pub fn finish(&mut self, is_finished: impl Fn(&str) -> bool) -> Vec<Error> {
        let nodes = self.nodes.iter_mut().filter(|node| is_finished(&node.name));
        nodes.filter_map(|node| node.stage.finish().err()).collect()
    }

    /// Returns the counters of each stage, and sets them to 0.
    pub fn take_counters(&mut self) -> impl Iterator<Item = NodeCounters> {
        self.nodes.iter_mut().map(|node| std::mem::take(&mut node.counters))
    }

    /// Drops all held packets, because the worker stops, or because another graph replaces this graph. The drop reason
    /// is [`Reason::Stopped`].
    ///
    /// # Panics
    /// Panics if `pool` is not the pool that the graph was created for.
    pub fn drop_held(&mut self, pool: &mut Pool) {
        self.check_pool(pool);
        for node in &mut self.nodes {
            let freed = node.held.as_mut().map_or(0, |held| held.free(pool));
            node.counters.drops[usize::from(Reason::Stopped.code())] += freed as u64;
        }
    }

    /// Moves the packets of the entry inbox through all stages into the outboxes.
    ///
    /// # Panics
    /// Panics if `pool` is not the pool that the graph was created for.
    #[inline(always)]
    pub fn walk<O: Observer>(&mut self, ctx: &Ctx, pool: &mut Pool, observer: &mut O) {
        self.check_pool(pool);
        let Self { nodes, outboxes, marker, .. } = self;
        let marker = &**marker;
        for place in 0..nodes.len() {
            let (nodes, later) = nodes.split_at_mut(place + 1);
            let Some((node, earlier)) = nodes.split_last_mut().filter(|(node, _)| !node.inbox.is_empty()) else {
                continue;
            };
            if O::WATCHES {
                observer.before(place, &mut *node.stage, &mut node.inbox);
            }
            observer.enters(Part::Stage(place, node.inbox.len()));
            node.counters.packets += node.inbox.len() as u64;
            node.counters.batches += 1;
            if node.max_split > 0 {
                let before = node.inbox.len();
                node.entered = before;
                node.inbox.take_spares(before.saturating_mul(node.max_split), pool);
                marker.run(place, || node.stage.process(ctx, &mut node.inbox));
                node.inbox.return_spares(pool);
                node.counters.generated += (node.inbox.len() - before) as u64;
            } else {
                marker.run(place, || node.stage.process(ctx, &mut node.inbox));
            }
            if O::WATCHES || !node.try_swap_whole(place, later, outboxes) {
                BatchMove { ctx, place, node, earlier, later, outboxes, pool, marker }.move_all(observer);
            }
        }
        marker.leave();
    }
}

/// A batch that a stage has processed, with all possible destinations of its packets.
struct BatchMove<'a> {
    ctx: &'a Ctx,
    place: usize,
    node: &'a mut GraphNode,
    earlier: &'a mut [GraphNode],
    later: &'a mut [GraphNode],
    outboxes: &'a mut [Box<Batch>],
    pool: &'a mut Pool,
    marker: &'a StageMarker,
}

impl BatchMove<'_> {
    /// Moves all packets of the batch to their destinations.
    #[inline]
    fn move_all<O: Observer>(&mut self, observer: &mut O) {
        if O::WATCHES || self.node.inbox.is_labelled() {
            self.move_one_by_one(observer);
        } else {
            self.move_whole();
        }
    }

    /// Moves the whole batch to the next target. No packet of the batch may be labelled.
    #[inline]
    fn move_whole(&mut self) {
        let Self { place, node, later, outboxes, pool, .. } = self;
        let inbox = match node.next {
            Target::Node(to) => &mut later[to - *place - 1].inbox,
            Target::Port(port) => &mut outboxes[port],
            Target::Egress => match node.inbox.common_egress().map(usize::from) {
                Some(port) if port < outboxes.len() => &mut outboxes[port],
                _ => return self.move_one_by_one(&mut NoObserver),
            },
            Target::Drop if node.watch.is_some() => return self.move_one_by_one(&mut NoObserver),
            Target::Drop => {
                node.counters.dropped_next += node.inbox.len() as u64;
                node.inbox.set_hold_state(HoldState::Fresh);
                return node.inbox.free_into(pool);
            }
        };
        if inbox.is_empty() {
            std::mem::swap(inbox, &mut node.inbox);
            inbox.set_hold_state(HoldState::Fresh);
        } else {
            inbox.append(&mut node.inbox);
        }
        node.inbox.set_hold_state(HoldState::Fresh);
    }

    fn move_one_by_one<O: Observer>(&mut self, observer: &mut O) {
        for index in 0..self.node.inbox.len() {
            if let Some(edge) = self.node.inbox.copy_wanted(index) {
                self.copy(index, edge, observer);
            }
            let step = self.step(index);
            if O::WATCHES {
                let place = self.place;
                show(&mut self.node.inbox, index, |packet| observer.after(place, packet, &step));
            }
            if self.node.watch.is_some() {
                self.show_drop(index, &step);
            }
            let Self { place, node, later, outboxes, pool, .. } = self;
            if let (PacketFate::Held, Some(held)) = (step, &mut node.held)
                && held.take(&node.inbox, index, self.ctx.now)
            {
                continue;
            }
            let inbox = match step {
                PacketFate::Next(target) | PacketFate::Output(_, target) => {
                    target_inbox(target, *place, later, outboxes)
                }
                PacketFate::Dropped(_) | PacketFate::Consumed | PacketFate::Held | PacketFate::Copied(..) => None,
            };
            if !inbox.is_some_and(|inbox| inbox.push_from(&node.inbox, index)) {
                node.inbox.free_one(index, pool);
            }
        }
        self.node.inbox.clear_labels();
        self.node.inbox.forget();
        self.node.inbox.set_hold_state(HoldState::Fresh);
    }

    /// Counts a packet and returns what happens to the packet.
    #[inline]
    fn step(&mut self, index: usize) -> PacketFate {
        let node = &mut *self.node;
        let step = match node.inbox.verdict(index) {
            Verdict::Next => PacketFate::Next(node.next),
            Verdict::Edge(edge) => match node.outputs.get(edge.index()) {
                Some(target) => {
                    node.counters.outputs[edge.index()] += 1;
                    PacketFate::Output(edge.index(), *target)
                }
                None => PacketFate::Dropped(Reason::Undeclared),
            },
            Verdict::Dropped(reason) => PacketFate::Dropped(reason),
            Verdict::Consumed => PacketFate::Consumed,
            Verdict::Held if node.held.as_ref().is_some_and(Held::has_room) => PacketFate::Held,
            Verdict::Held => PacketFate::Dropped(Reason::QueueFull),
        };
        let step = match step {
            PacketFate::Next(Target::Egress) => match usize::from(node.inbox.egress(index)) {
                port if port < self.outboxes.len() => PacketFate::Next(Target::Port(port)),
                _ => PacketFate::Dropped(Reason::NoPort),
            },
            step => step,
        };
        match step {
            PacketFate::Dropped(reason) => node.counters.drops[usize::from(reason.code())] += 1,
            PacketFate::Consumed => node.counters.consumed += 1,
            PacketFate::Next(Target::Drop) => node.counters.dropped_next += 1,
            _ => {}
        }
        step
    }

    /// Passes a dropped packet to the stage that observes the drops of this stage.
    fn show_drop(&mut self, index: usize, step: &PacketFate) {
        let Self { ctx, place, node, earlier, later, marker, .. } = self;
        let GraphNode { name, inbox, watch: Some(watch), .. } = &mut **node else { return };
        let Some(reason) = watch.reason(step) else { return };
        let watcher = match watch.by.checked_sub(*place + 1) {
            Some(ahead) => later.get_mut(ahead),
            None => earlier.get_mut(watch.by),
        };
        let Some(watcher) = watcher else { return };
        show(inbox, index, |packet| {
            marker.run_observer(watch.by, || {
                (watch.observe)(&mut *watcher.stage, ctx, packet, Cause { stage: name, reason });
            });
        });
    }

    fn copy<O: Observer>(&mut self, index: usize, edge: Edge, observer: &mut O) {
        let Self { place, node, later, outboxes, pool, .. } = self;
        let target = node.output(edge);
        // An output that is not connected has no inbox, so the copy is not made.
        let Some(inbox) = target_inbox(target, *place, later, outboxes) else { return };
        // If the contract of a stage does not declare copies, the inboxes of later stages have no room for copies.
        if !node.copies || !inbox.push_copy(&mut node.inbox, index, pool) {
            node.counters.copies_missed += 1;
            return;
        }
        node.counters.copied += 1;
        if O::WATCHES {
            let slot = inbox.descs().last().map_or(0, |copy| copy.slot);
            let step = PacketFate::Copied(edge.index(), target, slot);
            show(&mut node.inbox, index, |packet| observer.after(*place, packet, &step));
        }
    }
}

impl GraphNode {
    /// Moves the whole batch with one swap if no packet is labelled and the inbox of the target is empty. This is the
    /// common case. Otherwise, returns `false` and changes nothing.
    #[inline]
    fn try_swap_whole(&mut self, place: usize, later: &mut [Self], outboxes: &mut [Box<Batch>]) -> bool {
        let next = match self.next {
            Target::Node(to) => later.get_mut(to - place - 1).map(|node| &mut node.inbox),
            Target::Port(port) => outboxes.get_mut(port),
            Target::Egress | Target::Drop => None,
        };
        let Some(next) = next.filter(|next| next.is_empty() && !self.inbox.is_labelled()) else { return false };
        std::mem::swap(next, &mut self.inbox);
        next.set_hold_state(HoldState::Fresh);
        self.inbox.set_hold_state(HoldState::Fresh);
        true
    }

    /// Returns the target of an output. The target of an undeclared output is [`Target::Drop`].
    #[inline]
    fn output(&self, edge: Edge) -> Target {
        self.outputs.get(edge.index()).copied().unwrap_or(Target::Drop)
    }
}

/// Shows the packet at `index` to `observe`, which may call code of stages and observers. The packets before `index`
/// have already moved to another batch or to the pool. If `observe` panics, these packets are removed from `inbox`, so
/// that each slot keeps one owner.
#[cold]
fn show(inbox: &mut Batch, index: usize, observe: impl FnOnce(&Packet<'_>)) {
    struct Moved<'a>(&'a mut Batch, usize);
    impl Drop for Moved<'_> {
        fn drop(&mut self) {
            self.0.forget_first(self.1);
        }
    }
    let moved = Moved(inbox, index);
    if let Some(packet) = moved.0.get_mut(index) {
        observe(&packet);
    }
    std::mem::forget(moved);
}

#[inline]
fn target_inbox<'a>(
    target: Target,
    place: usize,
    later: &'a mut [GraphNode],
    outboxes: &'a mut [Box<Batch>],
) -> Option<&'a mut Batch> {
    match target {
        Target::Node(to) => later.get_mut(to - place - 1).map(|node| &mut *node.inbox),
        Target::Port(port) => outboxes.get_mut(port).map(|outbox| &mut **outbox),
        Target::Egress | Target::Drop => None,
    }
}

#[cfg(test)]
mod tests;
