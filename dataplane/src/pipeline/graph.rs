//! The graph at work: batches walk from stage to stage.

use crate::mem::{BATCH, Batch, Edge, Fate, Packet, Pool, Reason, Wait};
use crate::pipeline::held::Held;
use crate::pipeline::{Cause, Ctx, NodeSpec, Program, Stage, Target};

/// What a stage has done, in packets.
#[derive(Clone, Debug)]
pub struct NodeCounters {
    /// Came in.
    pub packets: u64,
    /// Batches that they came in.
    pub batches: u64,
    /// Ended here, as the stage wished.
    pub consumed: u64,
    /// Copies made.
    pub copied: u64,
    /// Packets made of others.
    pub made: u64,
    /// Copies asked for and not made: no slot was free, or the stage does not say that it copies.
    pub copies_missed: u64,
    /// Left by each output, by index.
    pub outputs: [u64; Edge::MOST],
    /// Unlabelled, and dropped because that is where they go.
    pub dropped_next: u64,
    /// Dropped, by [`Reason::code`].
    pub drops: [u64; Reason::CODES],
}

impl Default for NodeCounters {
    fn default() -> Self {
        Self {
            packets: 0,
            batches: 0,
            consumed: 0,
            copied: 0,
            made: 0,
            copies_missed: 0,
            outputs: [0; Edge::MOST],
            dropped_next: 0,
            drops: [0; Reason::CODES],
        }
    }
}

/// Watches a walk. The worker's does nothing and costs nothing.
pub trait Observer {
    /// A batch is about to enter a stage.
    fn before(&mut self, node: usize, stage: &mut dyn Stage, batch: &mut Batch) {
        let _ = (node, stage, batch);
    }

    /// A packet has been through a stage and goes to `target`; of a drop by the stage `reason` says why.
    fn after(&mut self, node: usize, packet: &Packet<'_>, fate: &Step) {
        let _ = (node, packet, fate);
    }

    /// Whether [`Observer::before`] and [`Observer::after`] want to be called.
    const WATCHES: bool = true;

    /// A part of the loop begins, and the one before it is done.
    #[inline]
    fn enters(&mut self, part: Part) {
        let _ = part;
    }
}

/// A part of a worker's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A lane takes back what was sent.
    Reap,
    /// A lane takes in what came.
    Receive,
    /// The stage at this place has so many packets.
    Stage(usize, usize),
    /// Lanes send.
    Transmit,
    /// A lane posts receives.
    Refill,
}

/// What becomes of a packet after a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It goes there, unlabelled.
    Next(Target),
    /// It goes there, by the output with this index.
    Output(usize, Target),
    /// The stage dropped it.
    Dropped(Reason),
    /// The stage consumed it.
    Consumed,
    /// It waits in the stage.
    Held,
    /// A copy of it goes there, by the output with this index.
    Copied(usize, Target),
}

/// Watches nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Observer for NoObserver {
    const WATCHES: bool = false;
}

struct Node {
    name: String,
    stage: Box<dyn Stage>,
    inbox: Box<Batch>,
    next: Target,
    outputs: Box<[Target]>,
    /// Whether room was made for its copies.
    copies: bool,
    /// The most packets that are made of one.
    makes: usize,
    /// The most packets that it makes of nothing, and whether it may do so now.
    emits: usize,
    due: bool,
    held: Option<Held>,
    counters: NodeCounters,
    watch: Option<Watch>,
}

/// Who sees the drops of a stage, and what they are called.
struct Watch {
    /// The place of the stage that sees them.
    by: usize,
    /// By [`Reason::code`].
    reasons: Box<[String]>,
    /// By the index of the output.
    outputs: Box<[String]>,
}

impl Watch {
    fn new(by: usize, node: &NodeSpec) -> Self {
        Self {
            by,
            reasons: (0..Reason::CODES).map(|code| Reason::from_code(code as u8).name(&node.reasons)).collect(),
            outputs: node.outputs.iter().map(|(name, _)| name.clone()).collect(),
        }
    }

    /// What a step is called if it is a drop.
    #[inline]
    fn reason(&self, step: &Step) -> Option<&str> {
        let name = match step {
            Step::Dropped(reason) => self.reasons.get(usize::from(reason.code())),
            Step::Next(Target::Drop) => self.reasons.get(usize::from(Reason::Requested.code())),
            Step::Output(output, Target::Drop) => self.outputs.get(*output),
            _ => None,
        };
        name.map(String::as_str)
    }
}

/// The stages of one worker, with an inbox each, and an outbox for every port.
///
/// No inbox can overflow: it is entered with at most [`Graph::burst`] packets, and by copies they become at most
/// [`BATCH`].
pub struct Graph {
    nodes: Box<[Node]>,
    outboxes: Box<[Box<Batch>]>,
    burst: usize,
}

impl Graph {
    /// Gives a program memory: batches of `pool`'s slots, for `ports` ports.
    pub fn new(program: Program, ports: usize, pool: &Pool) -> Self {
        let burst = BATCH / program.multiplicity();
        let nodes = program.nodes.into_iter().map(|node| Node {
            copies: node.stage.copies(),
            makes: node.stage.makes(),
            emits: node.stage.emits().min(burst),
            due: false,
            held: node.stage.holds().map(|longest| Held::new(longest, pool)),
            watch: node.drops.map(|by| Watch::new(by, &node)),
            name: node.name,
            stage: node.stage,
            inbox: Batch::new(pool),
            next: node.next,
            outputs: node.outputs.into_iter().map(|(_, target)| target).collect(),
            counters: NodeCounters::default(),
        });
        Self { nodes: nodes.collect(), outboxes: (0..ports).map(|_| Batch::new(pool)).collect(), burst }
    }

    /// The most packets that it may be entered with.
    pub fn burst(&self) -> usize {
        self.burst
    }

    /// Where packets go that are received on this port.
    #[inline]
    pub(crate) fn entry(&mut self, port: u8) -> &mut Batch {
        // A program is never empty.
        let entry = &mut self.nodes[0].inbox;
        entry.set_ingress(port);
        entry
    }

    /// What is to be sent on a port.
    #[inline]
    pub(crate) fn outbox(&mut self, port: usize) -> &mut Batch {
        &mut self.outboxes[port]
    }

    /// Names and counters of the stages.
    pub fn counters(&self) -> impl Iterator<Item = (&str, &NodeCounters)> {
        self.nodes.iter().map(|node| (node.name.as_str(), &node.counters))
    }

    /// How many packets the stages have dropped.
    pub(crate) fn dropped(&self) -> u64 {
        let of = |node: &Node| {
            let wired = node.outputs.iter().zip(&node.counters.outputs);
            let by_output: u64 = wired.filter(|(to, _)| **to == Target::Drop).map(|(_, packets)| packets).sum();
            by_output + node.counters.dropped_next + node.counters.drops.iter().sum::<u64>()
        };
        self.nodes.iter().map(of).sum()
    }

    /// The stages, to ask for their own counters, or to finish them.
    pub(crate) fn stages(&mut self) -> impl Iterator<Item = (&str, &mut Box<dyn Stage>)> {
        self.nodes.iter_mut().map(|node| (node.name.as_str(), &mut node.stage))
    }

    /// Lets every stage look at its slow things. No packet is in the graph.
    pub(crate) fn tick(&mut self, ctx: &Ctx) {
        for node in &mut self.nodes {
            node.stage.tick(ctx);
            node.due = node.emits > 0;
            if let Some(held) = &mut node.held {
                held.begin();
            }
        }
    }

    /// Lets some of the packets that waited at the last [`Graph::tick`] go through their stage again, and on; when none is
    /// left, a stage makes some of nothing. `false`: there were none. What is in the outboxes is to be sent before the next
    /// call.
    pub(crate) fn release<O: Observer>(&mut self, ctx: &Ctx, pool: &mut Pool, observer: &mut O) -> bool {
        let burst = self.burst;
        for node in &mut self.nodes {
            let Some(held) = &mut node.held else { continue };
            let count = held.fill(&mut node.inbox, burst, ctx.now);
            if count > 0 {
                // They were counted when they came.
                node.counters.packets -= count as u64;
                self.walk(ctx, pool, observer);
                return true;
            }
        }
        (0..self.nodes.len()).any(|place| self.emit(place, ctx, pool, observer))
    }

    /// Lets a stage make packets of nothing, if it has not since the last [`Graph::tick`]. `false`: it made none.
    fn emit<O: Observer>(&mut self, place: usize, ctx: &Ctx, pool: &mut Pool, observer: &mut O) -> bool {
        let Self { nodes, outboxes, .. } = self;
        let (nodes, later) = nodes.split_at_mut(place + 1);
        let Some((node, earlier)) = nodes.split_last_mut().filter(|(node, _)| node.due) else { return false };
        node.due = false;
        node.inbox.set_ingress(0);
        node.inbox.stock(node.emits, pool);
        node.stage.emit(ctx, &mut node.inbox);
        node.inbox.unstock(pool);
        if node.inbox.is_empty() {
            return false;
        }
        node.counters.made += node.inbox.len() as u64;
        Moves { ctx, place, node, earlier, later, outboxes, pool }.all(observer);
        self.walk(ctx, pool, observer);
        true
    }

    /// Whether packets wait in a stage.
    pub(crate) fn holds(&self) -> bool {
        self.nodes.iter().any(|node| node.held.as_ref().is_some_and(|held| !held.is_empty()))
    }

    /// Drops all packets that wait: the worker stops.
    pub(crate) fn drop_held(&mut self, pool: &mut Pool) {
        for node in &mut self.nodes {
            let freed = node.held.as_mut().map_or(0, |held| held.free(pool));
            node.counters.drops[usize::from(Reason::Stopped.code())] += freed as u64;
        }
    }

    /// Moves what is in the entry through all stages into the outboxes.
    #[inline(always)]
    pub(crate) fn walk<O: Observer>(&mut self, ctx: &Ctx, pool: &mut Pool, observer: &mut O) {
        let Self { nodes, outboxes, .. } = self;
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
            if node.makes > 0 {
                let before = node.inbox.len();
                node.inbox.stock(before.saturating_mul(node.makes), pool);
                node.stage.process(ctx, &mut node.inbox);
                node.inbox.unstock(pool);
                node.counters.made += (node.inbox.len() - before) as u64;
            } else {
                node.stage.process(ctx, &mut node.inbox);
            }
            if O::WATCHES || !node.pass_on(place, later, outboxes) {
                Moves { ctx, place, node, earlier, later, outboxes, pool }.all(observer);
            }
        }
    }
}

/// A batch that a stage is done with, and everywhere that it may go.
struct Moves<'a> {
    ctx: &'a Ctx,
    place: usize,
    node: &'a mut Node,
    earlier: &'a mut [Node],
    later: &'a mut [Node],
    outboxes: &'a mut [Box<Batch>],
    pool: &'a mut Pool,
}

impl Moves<'_> {
    /// Moves all packets.
    #[inline]
    fn all<O: Observer>(&mut self, observer: &mut O) {
        if O::WATCHES || self.node.inbox.is_labelled() {
            self.one_by_one(observer);
        } else {
            self.whole();
        }
    }

    /// Nothing was labelled: the batch is handed over as it is.
    #[inline]
    fn whole(&mut self) {
        let Self { place, node, later, outboxes, pool, .. } = self;
        let inbox = match node.next {
            Target::Node(to) => &mut later[to - *place - 1].inbox,
            Target::Port(port) => &mut outboxes[port],
            Target::Egress => match node.inbox.common_egress().map(usize::from) {
                Some(port) if port < outboxes.len() => &mut outboxes[port],
                _ => return self.one_by_one(&mut NoObserver),
            },
            Target::Drop if node.watch.is_some() => return self.one_by_one(&mut NoObserver),
            Target::Drop => {
                node.counters.dropped_next += node.inbox.len() as u64;
                node.inbox.set_wait(Wait::Fresh);
                return node.inbox.free_into(pool);
            }
        };
        if inbox.is_empty() {
            std::mem::swap(inbox, &mut node.inbox);
            inbox.set_wait(Wait::Fresh);
        } else {
            inbox.append(&mut node.inbox);
        }
        node.inbox.set_wait(Wait::Fresh);
    }

    fn one_by_one<O: Observer>(&mut self, observer: &mut O) {
        for index in 0..self.node.inbox.len() {
            if let Some(edge) = self.node.inbox.copy_wanted(index) {
                self.copy(index, edge, observer);
            }
            let step = self.step(index);
            if O::WATCHES
                && let Some(packet) = self.node.inbox.get_mut(index)
            {
                observer.after(self.place, &packet, &step);
            }
            if self.node.watch.is_some() {
                self.show_drop(index, &step);
            }
            let Self { place, node, later, outboxes, pool, .. } = self;
            if let (Step::Held, Some(held)) = (step, &mut node.held)
                && held.take(&node.inbox, index, self.ctx.now)
            {
                continue;
            }
            let inbox = match step {
                Step::Next(target) | Step::Output(_, target) => inbox_of(target, *place, later, outboxes),
                Step::Dropped(_) | Step::Consumed | Step::Held | Step::Copied(..) => None,
            };
            if !inbox.is_some_and(|inbox| inbox.push_from(&node.inbox, index)) {
                node.inbox.free_one(index, pool);
            }
        }
        self.node.inbox.clear_labels();
        self.node.inbox.forget();
        self.node.inbox.set_wait(Wait::Fresh);
    }

    /// What becomes of a packet; it is counted here.
    #[inline]
    fn step(&mut self, index: usize) -> Step {
        let node = &mut *self.node;
        let step = match node.inbox.fate(index) {
            Fate::Next => Step::Next(node.next),
            Fate::Edge(edge) => match node.outputs.get(edge.index()) {
                Some(target) => {
                    node.counters.outputs[edge.index()] += 1;
                    Step::Output(edge.index(), *target)
                }
                None => Step::Dropped(Reason::Undeclared),
            },
            Fate::Dropped(reason) => Step::Dropped(reason),
            Fate::Consumed => Step::Consumed,
            Fate::Held if node.held.as_ref().is_some_and(Held::has_room) => Step::Held,
            Fate::Held => Step::Dropped(Reason::QueueFull),
        };
        let step = match step {
            Step::Next(Target::Egress) => match usize::from(node.inbox.egress(index)) {
                port if port < self.outboxes.len() => Step::Next(Target::Port(port)),
                _ => Step::Dropped(Reason::NoPort),
            },
            step => step,
        };
        match step {
            Step::Dropped(reason) => node.counters.drops[usize::from(reason.code())] += 1,
            Step::Consumed => node.counters.consumed += 1,
            Step::Next(Target::Drop) => node.counters.dropped_next += 1,
            _ => {}
        }
        step
    }

    /// Shows a packet that is dropped to the stage that wants to see it.
    fn show_drop(&mut self, index: usize, step: &Step) {
        let Self { ctx, place, node, earlier, later, .. } = self;
        let Node { name, inbox, watch: Some(watch), .. } = &mut **node else { return };
        let Some(reason) = watch.reason(step) else { return };
        let watcher = match watch.by.checked_sub(*place + 1) {
            Some(ahead) => later.get_mut(ahead),
            None => earlier.get_mut(watch.by),
        };
        if let (Some(watcher), Some(packet)) = (watcher, inbox.get_mut(index)) {
            watcher.stage.observe_drop(ctx, &packet, Cause { stage: name, reason });
        }
    }

    fn copy<O: Observer>(&mut self, index: usize, edge: Edge, observer: &mut O) {
        let Self { place, node, later, outboxes, pool, .. } = self;
        let target = node.output(edge);
        // An output that is not wired is no place for a copy.
        let Some(inbox) = inbox_of(target, *place, later, outboxes) else { return };
        // A stage that did not say that it copies has no room for copies in the inboxes behind it.
        if !node.copies || !inbox.push_copy(&mut node.inbox, index, pool) {
            node.counters.copies_missed += 1;
            return;
        }
        node.counters.copied += 1;
        if O::WATCHES
            && let Some(packet) = node.inbox.get_mut(index)
        {
            observer.after(*place, &packet, &Step::Copied(edge.index(), target));
        }
    }
}

impl Node {
    /// Hands the batch over as it is, which is what happens to most: nothing was labelled, and the stage or port that all go to
    /// has none. `false`: it is not so, and nothing has changed.
    #[inline]
    fn pass_on(&mut self, place: usize, later: &mut [Self], outboxes: &mut [Box<Batch>]) -> bool {
        let next = match self.next {
            Target::Node(to) => later.get_mut(to - place - 1).map(|node| &mut node.inbox),
            Target::Port(port) => outboxes.get_mut(port),
            Target::Egress | Target::Drop => None,
        };
        let Some(next) = next.filter(|next| next.is_empty() && !self.inbox.is_labelled()) else { return false };
        std::mem::swap(next, &mut self.inbox);
        next.set_wait(Wait::Fresh);
        self.inbox.set_wait(Wait::Fresh);
        true
    }

    /// Where an output leads; one that the stage did not declare leads nowhere.
    #[inline]
    fn output(&self, edge: Edge) -> Target {
        self.outputs.get(edge.index()).copied().unwrap_or(Target::Drop)
    }
}

#[inline]
fn inbox_of<'a>(
    target: Target,
    place: usize,
    later: &'a mut [Node],
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
