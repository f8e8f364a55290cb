//! One packet after the other through the stages, with a note of everything that happens to it. No device is opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::{ClockSource, Stamp};
use crate::error::{Error, Result};
use crate::mem::{Batch, Packet, PageKind, Pool, Reason, Region, RegionSpec, SlotLayout};
use crate::pipeline::{Ctx, Graph, Observer, PortInfo, Stage, Step, Target};
use crate::runtime::Assembly;
use crate::units::Nanos;

/// A stage that a packet went through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// Its name in the config.
    pub stage: String,
    /// What its tables held for the packet.
    pub hit: Option<String>,
    /// The output that the packet left by; `None`: it was not labelled, or ended here.
    pub output: Option<String>,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It would be sent on the port of this name.
    Sent(String),
    /// It was dropped, for this `stage.reason` of the ledger.
    Dropped(String),
    /// A stage consumed it.
    Consumed,
    /// It would wait in a stage.
    Held,
    /// It would not be received: it is longer than a buffer, which holds so many bytes.
    TooLong(u32),
}

/// The way of one packet, or of a copy that a stage made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The stages, in order. A copy's begin with the stage that made it.
    pub hops: Vec<Hop>,
    /// What became of it.
    pub end: End,
    /// Its bytes at the end.
    pub bytes: Vec<u8>,
    /// Whether it is a copy.
    pub copy: bool,
}

impl Trace {
    /// The names of the stages, in order.
    pub fn path(&self) -> Vec<&str> {
        self.hops.iter().map(|hop| hop.stage.as_str()).collect()
    }
}

/// The stages of one worker on a bench: the same graph as in a run, watched packet by packet.
pub struct Tracer {
    graph: Graph,
    pool: Pool,
    stages: Vec<Labels>,
    ports: Vec<PortInfo>,
    start: Option<Nanos>,
}

/// What the outputs and reasons of a stage are called.
struct Labels {
    name: String,
    outputs: Vec<String>,
    reasons: Vec<&'static str>,
}

/// Slots of a tracer: one packet and all the copies that may be made of it.
const SLOTS: usize = 2 * crate::mem::BATCH;

impl Tracer {
    /// The stages of the first worker.
    ///
    /// # Errors
    /// There is no memory for packets.
    pub fn new(assembly: Assembly) -> Result<Self> {
        let Assembly { plan, ports, programs, .. } = assembly;
        let Some(program) = programs.into_iter().next() else {
            return Err(Error::Topology("the config has no worker".to_owned()));
        };
        let room = plan.runtime.buffer_size.saturating_sub(plan.runtime.headroom);
        let layout = SlotLayout::new(plan.runtime.headroom as usize, room as usize, SLOTS)?;
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let pool = Pool::new(Arc::new(Region::allocate(spec)?.0), layout)?;
        let nodes = program.nodes().iter();
        let labels = nodes.map(|node| Labels {
            name: node.name.clone(),
            outputs: node.outputs.iter().map(|(name, _)| name.clone()).collect(),
            reasons: node.reasons.clone(),
        });
        let stages = labels.collect();
        let graph = Graph::new(program, ports.len(), &pool);
        Ok(Self { graph, pool, stages, ports, start: None })
    }

    /// The number of the port of this name.
    pub fn port(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|port| port.name == name)
    }

    /// Sends a packet through, received on the port of this number at `time`, and says what became of it: its own trace
    /// first, then those of its copies. The first packet's time is when the run begins.
    pub fn trace(&mut self, port: usize, time: Nanos, packet: &[u8]) -> Vec<Trace> {
        let start = *self.start.get_or_insert(time);
        let ctx = Ctx { start, epoch: start, now: time, worker: 0 };
        let stamp = Stamp::new(time, ClockSource::Virtual);
        if !self.graph.entry(port as u8).push_bytes(packet, stamp, &mut self.pool) {
            let end = End::TooLong(self.pool.layout().room());
            return vec![Trace { hops: Vec::new(), end, bytes: packet.to_vec(), copy: false }];
        }
        let mut watch = Watch {
            stages: &self.stages,
            ports: &self.ports,
            base: self.pool.region().base().as_ptr().addr(),
            stride: self.pool.layout().stride as usize,
            known: BTreeMap::new(),
            unseen: vec![(Target::Node(0), 0)],
            open: vec![Open::default()],
        };
        self.graph.walk(&ctx, &mut self.pool, &mut watch);
        self.graph.drop_held(&mut self.pool);
        let traces = watch.open.into_iter().map(Open::close).collect();
        for port in 0..self.ports.len() {
            self.graph.outbox(port).free_into(&mut self.pool);
        }
        traces
    }

    /// The counters that the stage of this name keeps; none when there is no such stage.
    pub fn counters(&mut self, stage: &str) -> BTreeMap<String, u64> {
        let mut counters = BTreeMap::new();
        for (_, stage) in self.graph.stages().filter(|(name, _)| *name == stage) {
            stage.counters(&mut |name, value| *counters.entry(name.to_owned()).or_default() += value);
        }
        counters
    }
}

/// A trace that is being written.
#[derive(Default)]
struct Open {
    hops: Vec<Hop>,
    end: Option<End>,
    bytes: Vec<u8>,
    copy: bool,
}

impl Open {
    fn close(self) -> Trace {
        let Self { hops, end, bytes, copy } = self;
        // A packet that has no end was handed over to where nobody looked, which the walk does with none.
        Trace { hops, end: end.unwrap_or(End::Consumed), bytes, copy }
    }

    fn end(&mut self, end: End, packet: &Packet<'_>) {
        self.end = Some(end);
        self.bytes = packet.data().to_vec();
    }
}

/// Follows packets by their slots.
struct Watch<'a> {
    stages: &'a [Labels],
    ports: &'a [PortInfo],
    /// Where slots begin, and how far they are apart.
    base: usize,
    stride: usize,
    /// Which trace the packet in a slot has.
    known: BTreeMap<usize, usize>,
    /// Packets on their way to a stage whose slots have not been seen yet, in the order in which they come.
    unseen: Vec<(Target, usize)>,
    open: Vec<Open>,
}

impl Watch<'_> {
    fn slot(&self, packet: &Packet<'_>) -> usize {
        (packet.data().as_ptr().addr() - self.base) / self.stride
    }

    fn arrived(&mut self, node: usize, slot: usize) -> Option<usize> {
        if let Some(trace) = self.known.get(&slot) {
            return Some(*trace);
        }
        let place = self.unseen.iter().position(|(target, _)| *target == Target::Node(node))?;
        let (_, trace) = self.unseen.remove(place);
        self.known.insert(slot, trace);
        Some(trace)
    }

    fn output(&self, node: usize, output: usize) -> String {
        self.stages[node].outputs.get(output).map_or("undeclared", String::as_str).to_owned()
    }

    /// Where a packet ends that goes to `target` from a stage; `None`: it does not end yet.
    fn end(&self, node: usize, target: Target, reason: &str) -> Option<End> {
        match target {
            Target::Node(_) => None,
            Target::Port(port) => Some(End::Sent(self.ports.get(port).map_or("?", |port| &port.name).to_owned())),
            Target::Egress | Target::Drop => Some(End::Dropped(format!("{}.{reason}", self.stages[node].name))),
        }
    }
}

impl Observer for Watch<'_> {
    fn before(&mut self, node: usize, stage: &mut dyn Stage, batch: &mut Batch) {
        for packet in batch.iter_mut() {
            let slot = self.slot(&packet);
            let Some(trace) = self.arrived(node, slot) else { continue };
            let hop = Hop { stage: self.stages[node].name.clone(), hit: stage.explain(&packet), output: None };
            self.open[trace].hops.push(hop);
        }
    }

    fn after(&mut self, node: usize, packet: &Packet<'_>, fate: &Step) {
        let slot = self.slot(packet);
        let Some(&trace) = self.known.get(&slot) else { return };
        let (output, end) = match *fate {
            Step::Next(target) => (None, self.end(node, target, &Reason::Requested.name(&[]))),
            Step::Output(output, target) => {
                let name = self.output(node, output);
                let end = self.end(node, target, &name);
                (Some(name), end)
            }
            Step::Dropped(reason) => {
                let reason = reason.name(&self.stages[node].reasons);
                (None, self.end(node, Target::Drop, &reason))
            }
            Step::Consumed => (None, Some(End::Consumed)),
            Step::Held => (None, Some(End::Held)),
            Step::Copied(output, target) => {
                let name = self.output(node, output);
                let end = self.end(node, target, &name);
                let hop = Hop { stage: self.stages[node].name.clone(), hit: None, output: Some(name) };
                let mut copy = Open { hops: vec![hop], copy: true, ..Open::default() };
                match end {
                    Some(end) => copy.end(end, packet),
                    None => self.unseen.push((target, self.open.len())),
                }
                self.open.push(copy);
                return;
            }
        };
        if let Some(hop) = self.open[trace].hops.last_mut() {
            hop.output = output;
        }
        if let Some(end) = end {
            self.open[trace].end(end, packet);
            self.known.remove(&slot);
        }
    }
}
