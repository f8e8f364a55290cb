//! Traces packets through the stages, one packet at a time, and records the path of each packet. Opens no device.

use std::collections::BTreeMap;

use crate::runtime::Assembly;
use dataplane_core::clock::{ClockSource, Stamp};
use dataplane_core::error::{Error, Result};
use dataplane_core::mem::{Batch, Packet, PageKind, Pool, Reason, Region, RegionSpec, SlotLayout};
#[cfg(any(test, fuzzing))]
use dataplane_core::pipeline::NodeCounters;
use dataplane_core::pipeline::{Ctx, Graph, Observer, PortInfo, Stage, Step, Target};
use dataplane_core::units::Nanos;

/// One stage on the path of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The name of the stage in the config.
    pub stage: String,
    /// The stage's description of the table entry that matched the packet.
    pub hit: Option<String>,
    /// The output that the stage chose for the packet. `None` if the stage chose no output, or the packet was dropped,
    /// consumed or held.
    pub output: Option<String>,
}

/// How the path of a packet ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The packet would be sent on the port with this name.
    Sent(String),
    /// The packet was dropped. The text is `stage.reason`, as in the ledger.
    Dropped(String),
    /// A stage consumed the packet.
    Consumed,
    /// A stage would hold the packet.
    Held,
    /// The port would not receive the packet, because the packet does not fit into a buffer. The number is the space of
    /// a buffer in bytes.
    TooLong(u32),
}

/// The path of one packet, or of a copy that a stage made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The stages, in order. The path of a copy begins with the stage that made the copy.
    pub hops: Vec<Hop>,
    /// How the path ended.
    pub end: End,
    /// The bytes of the packet at the end of its path.
    pub bytes: Vec<u8>,
    /// Whether the packet is a copy.
    pub copy: bool,
}

impl Trace {
    /// Returns the names of the stages, in order.
    pub fn path(&self) -> Vec<&str> {
        self.hops.iter().map(|hop| hop.stage.as_str()).collect()
    }
}

/// Runs the graph of one worker on single packets, without devices, and records the path of each packet.
pub struct Tracer {
    graph: Graph,
    pool: Pool,
    stages: Vec<StageNames>,
    ports: Vec<PortInfo>,
    start: Option<Nanos>,
}

/// The names of a stage, its outputs and its drop reasons.
struct StageNames {
    name: String,
    outputs: Vec<String>,
    reasons: Vec<&'static str>,
}

/// The number of slots of a tracer: enough for one packet and all its copies.
const SLOTS: usize = 2 * dataplane_core::mem::BATCH;

impl Tracer {
    /// Creates a tracer for the stages of the first worker.
    ///
    /// # Errors
    /// Returns an error if packet memory cannot be allocated.
    pub fn new(assembly: Assembly) -> Result<Self> {
        let Assembly { plan, ports, programs, .. } = assembly;
        let Some(program) = programs.into_iter().next() else {
            return Err(Error::Topology("the config has no worker".to_owned()));
        };
        let room = plan.runtime.buffer_size.saturating_sub(plan.runtime.headroom);
        let layout = SlotLayout::new(plan.runtime.headroom as usize, room as usize, SLOTS)?;
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let pool = Pool::new(Region::allocate(spec)?.0, layout)?;
        let nodes = program.nodes().iter();
        let names = nodes.map(|node| StageNames {
            name: node.name.clone(),
            outputs: node.outputs.iter().map(|(name, _)| name.clone()).collect(),
            reasons: node.reasons.clone(),
        });
        let stages = names.collect();
        let graph = Graph::new(program, ports.len(), &pool);
        Ok(Self { graph, pool, stages, ports, start: None })
    }

    /// Returns the index of the port with this name.
    pub fn port(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|port| port.name == name)
    }

    /// Passes a packet through the stages, as if this port had received the packet at `time`. Returns the trace of the
    /// packet, followed by the traces of its copies. The `time` of the first packet is also the start time of the run.
    pub fn trace(&mut self, port: usize, time: Nanos, packet: &[u8]) -> Vec<Trace> {
        let start = *self.start.get_or_insert(time);
        let ctx = Ctx { start, epoch: start, now: time, worker: 0 };
        let stamp = Stamp::new(time, ClockSource::Virtual);
        if !self.graph.entry(port as u8).push_bytes(packet, stamp, &mut self.pool) {
            let end = End::TooLong(self.pool.layout().room());
            return vec![Trace { hops: Vec::new(), end, bytes: packet.to_vec(), copy: false }];
        }
        let mut observer = TraceObserver {
            stages: &self.stages,
            ports: &self.ports,
            known: BTreeMap::new(),
            unseen: vec![(Target::Node(0), 0)],
            open: vec![OpenTrace::default()],
        };
        self.graph.walk(&ctx, &mut self.pool, &mut observer);
        self.graph.drop_held(&mut self.pool);
        let traces = observer.open.into_iter().map(OpenTrace::close).collect();
        for port in 0..self.ports.len() {
            self.graph.outbox(port).free_into(&mut self.pool);
        }
        traces
    }

    /// Returns the counters that a stage defines. The map is empty if there is no stage with this name.
    pub fn counters(&mut self, stage: &str) -> BTreeMap<String, u64> {
        let mut counters = BTreeMap::new();
        for (_, stage) in self.graph.stages().filter(|(name, _)| *name == stage) {
            stage.all_counters(&mut |name, value| *counters.entry(name.to_owned()).or_default() += value);
        }
        counters
    }
}

#[cfg(any(test, fuzzing))]
impl Tracer {
    /// Passes bursts of packets through the stages. Each entry of `packets` contains the number of the port, whether
    /// the burst ends after this packet, and the bytes of the packet.
    ///
    /// # Panics
    /// If a packet or a buffer is not accounted for.
    pub(crate) fn run_bursts(&mut self, packets: &[(usize, bool, &[u8])]) {
        use dataplane_core::pipeline::NoObserver;

        let mut ctx = Ctx { start: Nanos(0), epoch: Nanos(0), now: Nanos(0), worker: 0 };
        let (mut received, mut sent) = (0, 0);
        let mut send = |graph: &mut Graph, pool: &mut Pool| {
            for port in 0..self.ports.len() {
                sent += graph.outbox(port).len() as u64;
                graph.outbox(port).free_into(pool);
            }
        };
        let (graph, pool) = (&mut self.graph, &mut self.pool);
        let mut waiting = 0;
        for (index, (port, ends, packet)) in packets.iter().enumerate() {
            let stamp = Stamp::new(ctx.now, ClockSource::Virtual);
            let port = port % self.ports.len();
            if graph.entry(port as u8).push_bytes(packet, stamp, pool) {
                received += 1;
                waiting += 1;
            }
            // All packets of a burst come from one port.
            let next = packets.get(index + 1);
            let same_port = next.is_some_and(|(next, ..)| next % self.ports.len() == port);
            if *ends || !same_port || waiting == graph.burst() {
                waiting = 0;
                graph.walk(&ctx, pool, &mut NoObserver);
                send(graph, pool);
                ctx.now.0 += 50_000_000;
                graph.tick(&ctx);
                while graph.release(&ctx, pool, &mut NoObserver) {
                    send(graph, pool);
                }
            }
        }
        graph.drop_held(pool);
        let total = |part: fn(&NodeCounters) -> u64| graph.counters().map(|(_, counters)| part(counters)).sum::<u64>();
        let added = total(|counters| counters.copied + counters.made);
        let ended = sent + graph.dropped() + total(|counters| counters.consumed);
        assert_eq!(received + added, ended, "the ledger: {received} received, {added} added, {sent} sent");
        assert_eq!(pool.available(), SLOTS, "buffers are missing");
    }
}

/// A trace that is not complete yet.
#[derive(Default)]
struct OpenTrace {
    hops: Vec<Hop>,
    end: Option<End>,
    bytes: Vec<u8>,
    copy: bool,
}

impl OpenTrace {
    fn close(self) -> Trace {
        let Self { hops, end, bytes, copy } = self;
        // The observer records the end of every packet, so this default is never used.
        Trace { hops, end: end.unwrap_or(End::Consumed), bytes, copy }
    }

    fn end(&mut self, end: End, packet: &Packet<'_>) {
        self.end = Some(end);
        self.bytes = packet.data().to_vec();
    }
}

/// Records the path of each packet. The observer recognizes a packet by its slot.
struct TraceObserver<'a> {
    stages: &'a [StageNames],
    ports: &'a [PortInfo],
    /// Maps the slot of each known packet to the packet's trace, as an index into `open`.
    known: BTreeMap<u32, usize>,
    /// The packets whose slots are not known yet. Each entry has the next stage of the packet and the index of its
    /// trace. The slot becomes known when the packet arrives at that stage. Packets to the same stage arrive in the
    /// order of this list.
    unseen: Vec<(Target, usize)>,
    open: Vec<OpenTrace>,
}

impl TraceObserver<'_> {
    fn arrived(&mut self, node: usize, slot: u32) -> Option<usize> {
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

    /// Returns how a path ends when the packet leaves the stage `node` for `target`. Returns `None` if `target` is
    /// another stage.
    fn end(&self, node: usize, target: Target, reason: &str) -> Option<End> {
        match target {
            Target::Node(_) => None,
            Target::Port(port) => Some(End::Sent(self.ports.get(port).map_or("?", |port| &port.name).to_owned())),
            Target::Egress | Target::Drop => Some(End::Dropped(format!("{}.{reason}", self.stages[node].name))),
        }
    }
}

impl Observer for TraceObserver<'_> {
    fn before(&mut self, node: usize, stage: &mut dyn Stage, batch: &mut Batch) {
        for packet in batch.iter_mut() {
            let Some(trace) = self.arrived(node, packet.slot()) else { continue };
            let hop = Hop { stage: self.stages[node].name.clone(), hit: stage.explain(&packet), output: None };
            self.open[trace].hops.push(hop);
        }
    }

    fn after(&mut self, node: usize, packet: &Packet<'_>, fate: &Step) {
        let Some(&trace) = self.known.get(&packet.slot()) else { return };
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
                let mut copy = OpenTrace { hops: vec![hop], copy: true, ..OpenTrace::default() };
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
            self.known.remove(&packet.slot());
        }
    }
}
