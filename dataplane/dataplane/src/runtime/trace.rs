//! Records the paths of packets through the stages. A [`Tracer`] passes packets through the stages without a device,
//! one packet at a time. During a run, the workers record the paths of live packets ([`super::packet_observer`]).

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::runtime::Assembly;
use crate::runtime::worker_info::ReportedStage;
use dataplane_core::clock::{ClockSource, Stamp};
use dataplane_core::error::{Error, Result};
use dataplane_core::mem::{Batch, Packet, PageKind, Pool, Reason, Region, RegionSpec, SlotLayout};
#[cfg(any(test, fuzzing))]
use dataplane_core::pipeline::NodeCounters;
use dataplane_core::pipeline::{Ctx, Graph, Observer, PacketFate, Stage, StageMarker, Target, panic_message};
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
pub enum PathEnd {
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
    /// A stage panicked while it processed the packet.
    Panicked {
        /// The name of the stage.
        stage: String,
        /// The message of the panic.
        message: String,
    },
}

/// The path of one packet, or of a copy that a stage made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The stages, in order. The path of a copy begins with the stage that made the copy.
    pub hops: Vec<Hop>,
    /// How the path ended.
    pub end: PathEnd,
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

/// A packet that a port received, and its path.
#[derive(Clone, Debug)]
pub(crate) struct TracedPacket {
    /// The index of the port.
    pub(crate) port: u8,
    /// The receive timestamp.
    pub(crate) stamp: Stamp,
    /// The bytes of the packet when the port received the packet.
    pub(crate) frame: Vec<u8>,
    /// The trace of the packet, followed by the traces of its copies.
    pub(crate) traces: Vec<Trace>,
}

/// Runs the graph of one worker on single packets, without devices, and records the path of each packet.
pub struct Tracer {
    graph: Graph,
    pool: Pool,
    stages: Vec<ReportedStage>,
    ports: Vec<String>,
    start: Option<Nanos>,
    marker: Arc<StageMarker>,
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
        let stages = ReportedStage::of(&program);
        let ports: Vec<String> = ports.into_iter().map(|port| port.name).collect();
        let (mut graph, marker) = (Graph::new(program, ports.len(), &pool), Arc::<StageMarker>::default());
        graph.set_marker(marker.clone());
        Ok(Self { graph, pool, stages, ports, start: None, marker })
    }

    /// Returns the index of the port with this name.
    pub fn port(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|port| port == name)
    }

    /// Returns a function that returns the name of the stage that the tracer runs. Any thread can call the function.
    pub(crate) fn running_stage(&self) -> impl Fn() -> Option<String> + Send + 'static {
        let names: Vec<String> = self.stages.iter().map(|stage| stage.name.clone()).collect();
        let marker = self.marker.clone();
        move || names.get(marker.stage()?).cloned()
    }

    /// Passes a packet through the stages, as if this port had received the packet at `time`. Returns the trace of the
    /// packet, followed by the traces of its copies. The `time` of the first packet is also the start time of the run.
    ///
    /// If a stage panics, the trace ends with [`PathEnd::Panicked`]. Do not use the tracer any more after a panic.
    pub fn trace(&mut self, port: usize, time: Nanos, packet: &[u8]) -> Vec<Trace> {
        let start = *self.start.get_or_insert(time);
        let ctx = Ctx { start, start_wallclock: start, now: time, worker: 0 };
        let stamp = Stamp::new(time, ClockSource::Virtual);
        if !self.graph.entry(port as u8).push_bytes(packet, stamp, &mut self.pool) {
            let end = PathEnd::TooLong(self.pool.layout().room());
            return vec![Trace { hops: Vec::new(), end, bytes: packet.to_vec(), copy: false }];
        }
        let names = PipelineNames { stages: &self.stages, ports: &self.ports };
        let mut observer = PathObserver { names, recorder: PathRecorder::default() };
        let (graph, pool) = (&mut self.graph, &mut self.pool);
        let walked = catch_unwind(AssertUnwindSafe(|| graph.walk(&ctx, pool, &mut observer)));
        if let Err(panic) = walked {
            let mut recorder = observer.recorder;
            if let Some((stage, batch)) = self.graph.interrupted() {
                let end = PathEnd::Panicked { stage: stage.to_owned(), message: panic_message(&*panic).to_owned() };
                recorder.end_all(&end, batch);
            }
            return recorder.take().into_iter().flat_map(|traced| traced.traces).collect();
        }
        self.graph.drop_held(&mut self.pool);
        let traces = observer.recorder.take().into_iter().flat_map(|traced| traced.traces).collect();
        for port in 0..self.ports.len() {
            self.graph.outbox(port).free_into(&mut self.pool);
        }
        traces
    }

    /// Returns the counters that a stage defines. The map is empty if there is no stage with this name.
    pub fn counters(&mut self, stage: &str) -> BTreeMap<String, u64> {
        let mut counters = BTreeMap::new();
        for (_, stage) in self.graph.stages().filter(|(name, _)| *name == stage) {
            stage.counters(&mut |name: &str, value: u64| *counters.entry(name.to_owned()).or_default() += value);
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

        let mut ctx = Ctx { start: Nanos(0), start_wallclock: Nanos(0), now: Nanos(0), worker: 0 };
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
                while graph.process_held_or_generate(&ctx, pool, &mut NoObserver) {
                    send(graph, pool);
                }
            }
        }
        graph.drop_held(pool);
        let total = |part: fn(&NodeCounters) -> u64| graph.counters().map(|(_, counters)| part(counters)).sum::<u64>();
        let added = total(|counters| counters.copied + counters.generated);
        let ended = sent + graph.dropped() + total(|counters| counters.consumed);
        assert_eq!(received + added, ended, "the ledger: {received} received, {added} added, {sent} sent");
        assert_eq!(pool.available(), SLOTS, "buffers are missing");
    }
}

/// The names of the stages, their outputs and drop reasons, and the names of the ports.
#[derive(Clone, Copy)]
pub(crate) struct PipelineNames<'a> {
    pub(crate) stages: &'a [ReportedStage],
    pub(crate) ports: &'a [String],
}

impl PipelineNames<'_> {
    fn stage(self, node: usize) -> String {
        self.stages.get(node).map_or("?", |stage| &stage.name).to_owned()
    }

    fn output(self, node: usize, output: usize) -> String {
        let name = self.stages.get(node).and_then(|stage| stage.outputs.get(output));
        name.map_or("undeclared", |(name, _)| name).to_owned()
    }

    /// Returns how a path ends when the packet leaves the stage `node` for `target`. Returns `None` if `target` is
    /// another stage.
    fn end(self, node: usize, target: Target, reason: &str) -> Option<PathEnd> {
        match target {
            Target::Node(_) => None,
            Target::Port(port) => Some(PathEnd::Sent(self.ports.get(port).map_or("?", String::as_str).to_owned())),
            Target::Egress | Target::Drop => Some(PathEnd::Dropped(format!("{}.{reason}", self.stage(node)))),
        }
    }
}

/// A trace that is not complete yet.
struct OpenTrace {
    hops: Vec<Hop>,
    end: Option<PathEnd>,
    bytes: Vec<u8>,
    origin: TraceOrigin,
}

/// The origin of a traced packet.
enum TraceOrigin {
    /// A port received the packet.
    Received { port: u8, stamp: Stamp, frame: Vec<u8> },
    /// A stage made the packet as a copy. The number is the index, in `open`, of the trace of the received packet from
    /// which the copy stems, directly or through other copies.
    Copy(usize),
}

impl OpenTrace {
    fn end(&mut self, end: PathEnd, packet: &Packet<'_>) {
        self.end = Some(end);
        self.bytes = packet.data().to_vec();
    }
}

/// Records the paths of packets. The recorder recognizes a packet by its slot.
#[derive(Default)]
pub(crate) struct PathRecorder {
    /// For each packet that is still in the pipeline: the slot of the packet, and the index of its trace in `open`.
    known: BTreeMap<u32, usize>,
    open: Vec<OpenTrace>,
}

impl PathRecorder {
    /// Adds a hop to the paths of the packets that enter a stage. If the stage is the first stage, starts a path for
    /// each new packet for which `admit` returns `true`.
    pub(crate) fn before(
        &mut self,
        names: PipelineNames<'_>,
        node: usize,
        stage: &mut dyn Stage,
        batch: &mut Batch,
        mut admit: impl FnMut(&Packet<'_>) -> bool,
    ) {
        for packet in batch.iter_mut() {
            let trace = match self.known.get(&packet.slot()) {
                Some(trace) => *trace,
                None if node == 0 && admit(&packet) => self.start(&packet),
                None => continue,
            };
            // `explain` only reads the packet, so the run continues after a panic of the method.
            let hit = catch_unwind(AssertUnwindSafe(|| stage.explain(&packet)));
            let hit = hit.unwrap_or_else(|panic| Some(format!("panicked: {}", panic_message(&*panic))));
            let hop = Hop { stage: names.stage(node), hit, output: None };
            self.open[trace].hops.push(hop);
        }
    }

    fn start(&mut self, packet: &Packet<'_>) -> usize {
        let frame = packet.data().to_vec();
        let origin = TraceOrigin::Received { port: packet.ingress(), stamp: packet.stamp(), frame };
        self.known.insert(packet.slot(), self.open.len());
        self.open.push(OpenTrace { hops: Vec::new(), end: None, bytes: Vec::new(), origin });
        self.open.len() - 1
    }

    /// Records what happens to a packet after a stage.
    pub(crate) fn after(&mut self, names: PipelineNames<'_>, node: usize, packet: &Packet<'_>, fate: &PacketFate) {
        let Some(&trace) = self.known.get(&packet.slot()) else { return };
        let (output, end) = match *fate {
            PacketFate::Next(target) => (None, names.end(node, target, &Reason::Requested.name(&[]))),
            PacketFate::Output(output, target) => {
                let name = names.output(node, output);
                let end = names.end(node, target, &name);
                (Some(name), end)
            }
            PacketFate::Dropped(reason) => {
                let own = names.stages.get(node).map_or(&[][..], |stage| &stage.reasons);
                (None, names.end(node, Target::Drop, &reason.name(own)))
            }
            PacketFate::Consumed => (None, Some(PathEnd::Consumed)),
            PacketFate::Held => (None, Some(PathEnd::Held)),
            PacketFate::Copied(output, target, slot) => {
                let name = names.output(node, output);
                let end = names.end(node, target, &name);
                let hop = Hop { stage: names.stage(node), hit: None, output: Some(name) };
                let root = match self.open[trace].origin {
                    TraceOrigin::Copy(root) => root,
                    TraceOrigin::Received { .. } => trace,
                };
                let origin = TraceOrigin::Copy(root);
                let mut copy = OpenTrace { hops: vec![hop], end: None, bytes: Vec::new(), origin };
                match end {
                    Some(end) => copy.end(end, packet),
                    None => drop(self.known.insert(slot, self.open.len())),
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

    /// Ends all open paths, because a stage has panicked. `batch` has the packets of the stage.
    fn end_all(&mut self, end: &PathEnd, batch: &mut Batch) {
        for packet in batch.iter_mut() {
            if let Some(open) = self.known.get(&packet.slot()).and_then(|trace| self.open.get_mut(*trace)) {
                open.end(end.clone(), &packet);
            }
        }
        // The other packets are copies that have not reached the stage.
        let frames: Vec<Vec<u8>> = (0..self.open.len()).map(|trace| self.frame(trace).to_vec()).collect();
        for (open, frame) in self.open.iter_mut().zip(frames).filter(|(open, _)| open.end.is_none()) {
            (open.end, open.bytes) = (Some(end.clone()), frame);
        }
    }

    /// Returns the bytes that a packet had when the port received the packet.
    fn frame(&self, trace: usize) -> &[u8] {
        match self.open.get(trace).map(|open| &open.origin) {
            Some(TraceOrigin::Received { frame, .. }) => frame,
            Some(TraceOrigin::Copy(root)) if *root != trace => self.frame(*root),
            _ => &[],
        }
    }

    /// Returns the recorded packets, and forgets them. After a batch has passed through the graph, every path has
    /// ended.
    pub(crate) fn take(&mut self) -> Vec<TracedPacket> {
        self.known.clear();
        let mut roots = BTreeMap::new();
        let mut traced: Vec<TracedPacket> = Vec::new();
        for (index, OpenTrace { hops, end, bytes, origin }) in std::mem::take(&mut self.open).into_iter().enumerate() {
            // The recorder sees the end of every packet, so this default is never used.
            let end = end.unwrap_or(PathEnd::Consumed);
            match origin {
                TraceOrigin::Received { port, stamp, frame } => {
                    roots.insert(index, traced.len());
                    let traces = vec![Trace { hops, end, bytes, copy: false }];
                    traced.push(TracedPacket { port, stamp, frame, traces });
                }
                TraceOrigin::Copy(root) => {
                    // A copy follows its original in the list.
                    if let Some(packet) = roots.get(&root).and_then(|at| traced.get_mut(*at)) {
                        packet.traces.push(Trace { hops, end, bytes, copy: true });
                    }
                }
            }
        }
        traced
    }

    /// Forgets the recorded paths. Returns the number of packets.
    pub(crate) fn forget(&mut self) -> usize {
        self.known.clear();
        let received = |trace: &OpenTrace| matches!(trace.origin, TraceOrigin::Received { .. });
        std::mem::take(&mut self.open).iter().filter(|trace| received(trace)).count()
    }

    /// Returns `true` if no path is recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// Records the path of every packet.
struct PathObserver<'a> {
    names: PipelineNames<'a>,
    recorder: PathRecorder,
}

impl Observer for PathObserver<'_> {
    fn before(&mut self, node: usize, stage: &mut dyn Stage, batch: &mut Batch) {
        self.recorder.before(self.names, node, stage, batch, |_| true);
    }

    fn after(&mut self, node: usize, packet: &Packet<'_>, fate: &PacketFate) {
        self.recorder.after(self.names, node, packet, fate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Diagnostics, Source};
    use crate::runtime::assemble_offline;
    use crate::runtime::packet_observer::{CaptureEvent, CapturePoint, PacketFilter, PacketObserver};
    use crate::runtime::worker_info::WorkerInfo;
    use dataplane_core::harness::frame;

    /// Every received packet leaves on the port `a`, and a copy of the packet leaves on the port `b`.
    const MIRROR: &str = "[[port]]\nname = 'a'\ndevice = 'soft'\nlink = { kind = 'generator' }\n\
        [[port]]\nname = 'b'\ndevice = 'soft'\nlink = { kind = 'generator' }\n\
        [pipeline]\ninput = ['a']\n\
        [[pipeline.stage]]\nuse = 'mirror'\noutputs = { copy = 'copies' }\n\
        [[pipeline.stage]]\nuse = 'tx'\nport = 'a'\n\
        [[pipeline.stage]]\nname = 'copies'\nuse = 'tx'\nport = 'b'\n";

    fn tracer() -> (Tracer, Arc<WorkerInfo>) {
        tracer_of(MIRROR)
    }

    fn tracer_of(config: &str) -> (Tracer, Arc<WorkerInfo>) {
        let mut registry = dataplane_stages::registry();
        registry.add::<Faulty>("faulty");
        let source = Source::new("x.toml", config, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let assembly = assemble_offline(&source, &registry, &mut diagnostics).unwrap();
        let mut tracer = Tracer::new(assembly.unwrap_or_else(|| panic!("{}", diagnostics.render(false)))).unwrap();
        let (ports, stages_info) = (tracer.ports.clone(), std::mem::take(&mut tracer.stages));
        (tracer, Arc::new(WorkerInfo { ports, stages_info, ..WorkerInfo::example() }))
    }

    /// A stage that panics at its first batch, and when it explains a packet.
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Faulty {
        #[serde(default)]
        has_panicked: bool,
    }

    impl Stage for Faulty {
        fn process(&mut self, _: &Ctx, _: &mut Batch) {
            assert!(std::mem::replace(&mut self.has_panicked, true), "panic of the test");
        }

        fn explain(&mut self, _: &Packet<'_>) -> Option<String> {
            panic!("no explanation");
        }
    }

    fn packet(source: u16) -> Vec<u8> {
        frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(source, 53).build()
    }

    /// Selects the packets with the UDP source port 2000.
    fn filter() -> Option<PacketFilter> {
        Some(Arc::new(|frame: &[u8]| frame == packet(2000)))
    }

    /// Passes packets with the UDP source ports 1000, 2000 and 3000 through the graph in one burst.
    fn walk(tracer: &mut Tracer, observer: &mut PacketObserver, info: &Arc<WorkerInfo>) {
        let ctx = Ctx { start: Nanos(5), start_wallclock: Nanos(1_000_000), now: Nanos(7), worker: 0 };
        for source in [1000, 2000, 3000] {
            let stamp = Stamp::new(Nanos(6), ClockSource::Virtual);
            assert!(tracer.graph.entry(0).push_bytes(&packet(source), stamp, &mut tracer.pool));
        }
        observer.begin(&ctx, Some(info));
        tracer.graph.walk(&ctx, &mut tracer.pool, observer);
        observer.end_batch();
        for port in 0..2 {
            tracer.graph.outbox(port).free_into(&mut tracer.pool);
        }
    }

    #[test]
    fn copies_belong_to_the_traced_packet_of_a_burst() {
        let (mut tracer, info) = tracer();
        let (mut observer, mut traced) = PacketObserver::trace(&info, filter(), 3, None);
        walk(&mut tracer, &mut observer, &info);
        let (time, found) = traced.pop().unwrap();
        assert_eq!((time, found.port, &found.frame), (1_000_001, 0, &packet(2000)));
        let ends: Vec<_> = found.traces.iter().map(|trace| (trace.end.clone(), trace.copy, trace.path())).collect();
        assert_eq!(
            ends,
            [
                (PathEnd::Sent("a".to_owned()), false, vec!["mirror", "tx"]),
                (PathEnd::Sent("b".to_owned()), true, vec!["mirror", "copies"])
            ]
        );
        assert!(found.traces.iter().all(|trace| trace.bytes == packet(2000)));
        assert!(traced.pop().is_err() && !observer.is_over());
        // After the last packet, the observer is over.
        (0..2).for_each(|_| walk(&mut tracer, &mut observer, &info));
        assert!(observer.is_over() && traced.pop().is_ok() && traced.pop().is_ok());
    }

    #[test]
    fn trace_continues_after_panics_of_a_stage() {
        let second = "[[pipeline.stage]]\nuse = 'faulty'\n[[pipeline.stage]]\nuse = 'tx'\nport = 'a'\n";
        let config = MIRROR.replacen("[[pipeline.stage]]\nuse = 'tx'\nport = 'a'\n", second, 1);
        let (mut tracer, info) = tracer_of(&config);
        let (mut observer, mut traced) = PacketObserver::trace(&info, filter(), 1, None);
        let first = catch_unwind(AssertUnwindSafe(|| walk(&mut tracer, &mut observer, &info)));
        assert_eq!(panic_message(&*first.unwrap_err()), "panic of the test");
        assert!(!observer.is_over() && traced.pop().is_err());
        // The path of the first burst is incomplete, so the observer traces a packet of the next burst.
        let (mut tracer, _) = tracer_of(&config.replace("use = 'faulty'", "use = 'faulty'\nhas_panicked = true"));
        walk(&mut tracer, &mut observer, &info);
        let (_, found) = traced.pop().unwrap();
        let hop = &found.traces[0].hops[1];
        assert_eq!((hop.stage.as_str(), hop.hit.as_deref()), ("faulty", Some("panicked: no explanation")));
        assert!(observer.is_over());
    }

    #[test]
    fn only_packets_dropped_with_the_requested_reason_are_traced() {
        let drops = "[[pipeline.stage]]\nuse = 'filter'\nexpression = 'udp src port 1000 or udp src port 2000'\n\
            outputs = { other = 'drop' }\n[[pipeline.stage]]\nuse = 'tx'\nport = 'a'\n";
        let config = MIRROR.replacen("[[pipeline.stage]]\nuse = 'tx'\nport = 'a'\n", drops, 1);
        let (mut tracer, info) = tracer_of(&config);
        let (mut observer, mut traced) = PacketObserver::trace(&info, None, 2, Some("filter.other".into()));
        for _ in 0..2 {
            assert!(!observer.is_over());
            walk(&mut tracer, &mut observer, &info);
            let (_, found) = traced.pop().unwrap();
            assert_eq!(found.frame, packet(3000));
            assert_eq!(found.traces[0].end, PathEnd::Dropped("filter.other".to_owned()));
            assert!(traced.pop().is_err());
        }
        assert!(observer.is_over());
    }

    #[test]
    fn packets_are_captured_where_they_enter_and_leave() {
        use CaptureEvent::{Entered, Left, Received, Sent};
        for (point, expected) in [
            (CapturePoint::AllPorts, vec![Received(0), Sent(1), Sent(0)]),
            (CapturePoint::Port(0), vec![Received(0), Sent(0)]),
            (CapturePoint::Port(1), vec![Sent(1)]),
            (CapturePoint::Stage(2), vec![Entered(2)]),
            (CapturePoint::Output(0, 0), vec![Left(0, 0)]),
        ] {
            let (mut tracer, info) = tracer();
            let (mut observer, mut outlet) = PacketObserver::capture(&info, filter(), (point, false), 14);
            walk(&mut tracer, &mut observer, &info);
            let found: Vec<_> = std::iter::from_fn(|| outlet.take()).collect();
            let mut events: Vec<CaptureEvent> = found.iter().map(|(head, _)| head.event).collect();
            events.sort_by_key(|event| expected.iter().position(|wanted| wanted == event));
            assert_eq!(events, expected, "{point:?}");
            for (head, bytes) in found {
                assert_eq!((head.nanos, head.original as usize), (1_000_001, packet(2000).len()));
                assert_eq!(bytes, packet(2000)[..14]);
            }
            // An observer for the graph of an earlier config captures nothing.
            walk(&mut tracer, &mut observer, &self::tracer().1);
            assert!(outlet.take().is_none());
        }
    }
}
