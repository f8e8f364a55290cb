//! Packet observers. While a client captures or traces packets, each worker has a packet observer, which copies
//! packets, or records the paths of packets. A worker without an observer executes no instruction for observers.
//!
//! An observer never waits. If the rings to the control thread are full, the observer counts the packet as lost, and
//! the packet continues on its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use crate::runtime::trace::{PathEnd, PathRecorder, PipelineNames, TracedPacket};
use crate::runtime::wall_time::wall_time;
use crate::runtime::worker_info::WorkerInfo;
use dataplane_core::clock::ClockSource;
use dataplane_core::mem::{Batch, Packet, Reason};
use dataplane_core::pipeline::{Ctx, Observer, PacketFate, Part, Stage, Target};

/// Returns `true` for the packets that a client wants to see.
pub(crate) type PacketFilter = Arc<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// The number of packets that can wait for the control thread, for each worker.
const HEADS: usize = 16_384;
/// The number of bytes of packets that can wait for the control thread, for each worker.
const BYTES: usize = 4 << 20;

/// The position in the pipeline at which an observer captures packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CapturePoint {
    /// All ports.
    AllPorts,
    /// A port: the packets that the port receives, and the packets that the stages send on the port.
    Port(usize),
    /// The packets that enter a stage.
    Stage(usize),
    /// The packets that leave a stage by an output: the index of the stage, and the index of the output.
    Output(usize, usize),
}

/// The event at which a packet was captured. The numbers are indices of ports, stages and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureEvent {
    /// A port received the packet.
    Received(usize),
    /// The stages send the packet on a port.
    Sent(usize),
    /// The packet entered a stage.
    Entered(usize),
    /// The packet left a stage by an output.
    Left(usize, usize),
    /// A stage dropped the packet.
    Dropped(usize, DropCause),
}

/// The cause of a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropCause {
    /// The stage gave this reason.
    Reason(Reason),
    /// The output with this index leads nowhere.
    Output(usize),
}

/// A captured packet, without its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CapturedHead {
    /// The receive time in nanoseconds since 1970.
    pub(crate) nanos: u64,
    /// The clock of the receive time.
    pub(crate) source: ClockSource,
    /// The length of the packet in bytes.
    pub(crate) original: u32,
    /// The number of captured bytes.
    pub(crate) length: usize,
    pub(crate) event: CaptureEvent,
}

/// The worker's side of the rings of captured packets.
pub(crate) struct CaptureInlet {
    heads: Producer<CapturedHead>,
    bytes: Producer<u8>,
    lost: Arc<AtomicU64>,
}

/// The control thread's side of the rings of captured packets.
pub(crate) struct CaptureOutlet {
    heads: Consumer<CapturedHead>,
    bytes: Consumer<u8>,
    lost: Arc<AtomicU64>,
}

/// Creates the rings of one worker.
pub(crate) fn capture_rings() -> (CaptureInlet, CaptureOutlet) {
    let (heads, heads_out) = RingBuffer::new(HEADS);
    let (bytes, bytes_out) = RingBuffer::new(BYTES);
    let lost = Arc::new(AtomicU64::new(0));
    (CaptureInlet { heads, bytes, lost: lost.clone() }, CaptureOutlet { heads: heads_out, bytes: bytes_out, lost })
}

impl CaptureInlet {
    /// Copies a packet into the rings, or counts the packet as lost if there is no room.
    fn put(&mut self, head: CapturedHead, packet: &[u8]) {
        let room = !self.heads.is_full();
        let chunk = packet.get(..head.length).filter(|_| room).zip(self.bytes.write_chunk(head.length).ok());
        let Some((packet, mut chunk)) = chunk else {
            // Only the worker writes this counter.
            self.lost.store(self.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            return;
        };
        let (first, second) = chunk.as_mut_slices();
        let (start, end) = packet.split_at(first.len());
        first.copy_from_slice(start);
        second.copy_from_slice(end);
        chunk.commit_all();
        // The ring has room for the head.
        let _ = self.heads.push(head);
    }
}

impl CaptureOutlet {
    /// Returns the next packet, and its captured bytes.
    pub(crate) fn take(&mut self) -> Option<(CapturedHead, Vec<u8>)> {
        let head = self.heads.pop().ok()?;
        // The worker writes the bytes before the head.
        let chunk = self.bytes.read_chunk(head.length).ok()?;
        let (first, second) = chunk.as_slices();
        let bytes = [first, second].concat();
        chunk.commit_all();
        Some((head, bytes))
    }

    /// Returns the number of packets that were lost because the rings were full.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The observer of one worker.
pub(crate) struct PacketObserver {
    /// The properties of the worker for which the observer was created. A change of the pipeline replaces these
    /// properties, and the indices in `kind` are then invalid.
    info: Arc<WorkerInfo>,
    filter: Option<PacketFilter>,
    kind: ObserverKind,
    ctx: Ctx,
    /// Whether the graph of the worker is the graph for which the observer was created.
    is_valid: bool,
    /// Whether the next batch consists of packets that a stage held. The observer saw these packets when they entered
    /// the stage, so the observer does not capture them again, and starts no traces for them.
    is_release: bool,
}

enum ObserverKind {
    Capture(CaptureObserver),
    Trace(TraceObserver),
}

struct CaptureObserver {
    point: CapturePoint,
    /// Whether the observer captures only packets that stages drop.
    drops: bool,
    snaplen: usize,
    inlet: CaptureInlet,
}

struct TraceObserver {
    /// The number of packets that are still to be traced.
    left: usize,
    /// Set if only packets that end with a certain drop are traced: the name of the drop, and the selection of the
    /// packets whose paths are recorded.
    dropped: Option<DropSample>,
    recorder: PathRecorder,
    traced: Producer<(u64, TracedPacket)>,
}

/// The maximum number of packets of a batch whose paths are recorded to find a drop. A worker needs much more time for
/// a packet if it records the path of the packet.
const DROP_SAMPLES: usize = 8;

/// Selects the packets whose paths are recorded to find a drop.
struct DropSample {
    /// The drop, as `STAGE.REASON`.
    name: Arc<str>,
    /// The number of batches so far. From batch to batch, the position of the first selected packet changes, so that a
    /// drop in periodic traffic is found too.
    batches: usize,
    /// The number of packets before the next selected packet.
    at: usize,
    /// The distance between two selected packets of the batch.
    stride: usize,
}

impl DropSample {
    fn new(name: Arc<str>) -> Self {
        Self { name, batches: 0, at: 0, stride: 1 }
    }

    /// Prepares the selection from a batch with `packets` packets.
    fn begin(&mut self, packets: usize) {
        self.stride = packets.div_ceil(DROP_SAMPLES).max(1);
        self.at = self.batches % self.stride;
        self.batches = self.batches.wrapping_add(1);
    }

    /// Returns `true` if the path of the next packet is recorded. Each packet of a batch needs one call.
    fn selects(&mut self) -> bool {
        let is_selected = self.at == 0;
        self.at = if is_selected { self.stride - 1 } else { self.at - 1 };
        is_selected
    }

    fn matches(&self, packet: &TracedPacket) -> bool {
        packet.traces.iter().any(|trace| matches!(&trace.end, PathEnd::Dropped(name) if **name == *self.name))
    }
}

impl PacketObserver {
    /// Creates an observer that captures packets.
    pub(crate) fn capture(
        info: &Arc<WorkerInfo>,
        filter: Option<PacketFilter>,
        (point, drops): (CapturePoint, bool),
        snaplen: usize,
    ) -> (Box<Self>, CaptureOutlet) {
        let (inlet, outlet) = capture_rings();
        let kind = ObserverKind::Capture(CaptureObserver { point, drops, snaplen, inlet });
        (Self::new(info, filter, kind), outlet)
    }

    /// Creates an observer that traces `packets` packets. The ring has each packet, with its receive time in
    /// nanoseconds since 1970. With `dropped`, the observer traces only packets that end with this drop, written as
    /// `STAGE.REASON`.
    pub(crate) fn trace(
        info: &Arc<WorkerInfo>,
        filter: Option<PacketFilter>,
        packets: usize,
        dropped: Option<Arc<str>>,
    ) -> (Box<Self>, Consumer<(u64, TracedPacket)>) {
        let (traced, outlet) = RingBuffer::new(packets);
        let (recorder, dropped) = (PathRecorder::default(), dropped.map(DropSample::new));
        let kind = ObserverKind::Trace(TraceObserver { left: packets, dropped, recorder, traced });
        (Self::new(info, filter, kind), outlet)
    }

    fn new(info: &Arc<WorkerInfo>, filter: Option<PacketFilter>, kind: ObserverKind) -> Box<Self> {
        let zero = dataplane_core::units::Nanos(0);
        let ctx = Ctx { start: zero, start_wallclock: zero, now: zero, worker: 0 };
        Box::new(Self { info: info.clone(), filter, kind, ctx, is_valid: false, is_release: false })
    }

    /// Returns `true` if the client no longer reads the packets of the observer, or if all wanted packets are traced.
    pub(crate) fn is_over(&self) -> bool {
        match &self.kind {
            ObserverKind::Capture(capture) => capture.inlet.heads.is_abandoned(),
            ObserverKind::Trace(trace) => trace.traced.is_abandoned() || (trace.left == 0 && trace.recorder.is_empty()),
        }
    }

    /// Prepares the observer for the next batch. `info` has the current properties of the worker.
    pub(crate) fn begin(&mut self, ctx: &Ctx, info: Option<&Arc<WorkerInfo>>) {
        self.ctx = *ctx;
        self.is_release = false;
        if let ObserverKind::Trace(trace) = &mut self.kind {
            // After a panic of a stage, the recorder has paths without an end. Trace other packets instead.
            let forgotten = trace.recorder.forget();
            trace.left += if trace.dropped.is_none() { forgotten } else { 0 };
        }
        self.is_valid = info.is_some_and(|info| Arc::ptr_eq(info, &self.info));
    }

    /// Prepares the observer for a release of held packets.
    pub(crate) fn begin_release(&mut self, ctx: &Ctx, info: Option<&Arc<WorkerInfo>>) {
        self.begin(ctx, info);
        self.is_release = true;
    }

    /// Passes the recorded paths to the control thread. Must be called after each batch.
    pub(crate) fn end_batch(&mut self) {
        self.is_release = false;
        let ObserverKind::Trace(trace) = &mut self.kind else { return };
        for packet in trace.recorder.take() {
            if let Some(dropped) = &trace.dropped {
                if trace.left == 0 || !dropped.matches(&packet) {
                    continue;
                }
                trace.left -= 1;
            }
            // The ring has room for all packets of the trace.
            let _ = trace.traced.push((wall_time(&self.ctx, packet.stamp), packet));
        }
    }
}

/// Returns the cause of a drop, or `None` if the step is not a drop.
fn drop_cause(step: &PacketFate) -> Option<DropCause> {
    match *step {
        PacketFate::Dropped(reason) => Some(DropCause::Reason(reason)),
        PacketFate::Next(Target::Drop) => Some(DropCause::Reason(Reason::Requested)),
        PacketFate::Output(output, Target::Drop | Target::Egress) => Some(DropCause::Output(output)),
        _ => None,
    }
}

impl CaptureObserver {
    /// Returns the event if the observer captures the packets of a batch that enters the stage `node`.
    fn entered(&self, node: usize, ingress: usize) -> Option<CaptureEvent> {
        match self.point {
            _ if self.drops => None,
            CapturePoint::Stage(stage) => (stage == node).then_some(CaptureEvent::Entered(node)),
            CapturePoint::Port(port) => (node == 0 && port == ingress).then_some(CaptureEvent::Received(ingress)),
            CapturePoint::AllPorts => (node == 0).then_some(CaptureEvent::Received(ingress)),
            CapturePoint::Output(..) => None,
        }
    }

    /// Returns the event if the observer captures a packet with this fate after the stage `node`.
    fn left(&self, node: usize, ingress: usize, fate: &PacketFate) -> Option<CaptureEvent> {
        let output = match *fate {
            PacketFate::Output(output, _) | PacketFate::Copied(output, ..) => Some(output),
            _ => None,
        };
        if self.drops {
            let cause = drop_cause(fate)?;
            let is_here = match self.point {
                CapturePoint::AllPorts => true,
                CapturePoint::Port(port) => port == ingress,
                CapturePoint::Stage(stage) => stage == node,
                CapturePoint::Output(stage, by) => stage == node && output == Some(by),
            };
            return is_here.then_some(CaptureEvent::Dropped(node, cause));
        }
        let port = match *fate {
            PacketFate::Next(Target::Port(port))
            | PacketFate::Output(_, Target::Port(port))
            | PacketFate::Copied(_, Target::Port(port), _) => Some(port),
            _ => None,
        };
        match self.point {
            CapturePoint::AllPorts => port.map(CaptureEvent::Sent),
            CapturePoint::Port(wanted) => port.filter(|port| *port == wanted).map(CaptureEvent::Sent),
            CapturePoint::Output(stage, by) => {
                (stage == node && output == Some(by)).then_some(CaptureEvent::Left(node, by))
            }
            CapturePoint::Stage(_) => None,
        }
    }

    fn put(&mut self, ctx: &Ctx, filter: Option<&PacketFilter>, packet: &Packet<'_>, event: CaptureEvent) {
        let data = packet.data();
        if filter.is_some_and(|filter| !filter(data)) {
            return;
        }
        let stamp = packet.stamp();
        let length = data.len().min(self.snaplen);
        let (nanos, source, original) = (wall_time(ctx, stamp), stamp.source(), data.len() as u32);
        self.inlet.put(CapturedHead { nanos, source, original, length, event }, data);
    }
}

impl Observer for PacketObserver {
    fn before(&mut self, node: usize, stage: &mut dyn Stage, batch: &mut Batch) {
        let is_release = std::mem::take(&mut self.is_release);
        if !self.is_valid {
            return;
        }
        let Self { info, filter, kind, ctx, .. } = self;
        match kind {
            ObserverKind::Capture(capture) => {
                let Some(event) = capture.entered(node, batch.ingress().into()).filter(|_| !is_release) else { return };
                for packet in batch.iter_mut() {
                    capture.put(ctx, filter.as_ref(), &packet, event);
                }
            }
            ObserverKind::Trace(TraceObserver { left, dropped, recorder, .. }) => {
                let names = PipelineNames { stages: &info.stages_info, ports: &info.ports };
                if let Some(dropped) = dropped.as_mut().filter(|_| node == 0) {
                    dropped.begin(batch.len());
                }
                recorder.before(names, node, stage, batch, |packet| {
                    if is_release || *left == 0 || dropped.as_mut().is_some_and(|dropped| !dropped.selects()) {
                        return false;
                    }
                    let is_taken = filter.as_ref().is_none_or(|filter| filter(packet.data()));
                    // If only packets with a drop are traced, a packet counts when its path has ended with the drop.
                    *left -= usize::from(is_taken && dropped.is_none());
                    is_taken
                });
            }
        }
    }

    fn after(&mut self, node: usize, packet: &Packet<'_>, fate: &PacketFate) {
        // The worker calls `begin_release` also before a stage generates packets. The graph passes generated packets to
        // `after` first, and held packets to `before` first. If `after` is called first, the packets are not held.
        self.is_release = false;
        if !self.is_valid {
            return;
        }
        let Self { info, filter, kind, ctx, .. } = self;
        match kind {
            ObserverKind::Capture(capture) => {
                if let Some(event) = capture.left(node, packet.ingress().into(), fate) {
                    capture.put(ctx, filter.as_ref(), packet, event);
                }
            }
            ObserverKind::Trace(trace) => {
                let names = PipelineNames { stages: &info.stages_info, ports: &info.ports };
                trace.recorder.after(names, node, packet, fate);
            }
        }
    }

    fn enters(&mut self, part: Part) {
        if part == Part::Transmit {
            self.end_batch();
        }
    }
}
