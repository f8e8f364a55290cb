//! Captures and traces of live packets for a client. A control thread attaches an observer to each worker
//! ([`super::packet_observer`]), and reads the packets of the observers. After a change of the pipeline, the control
//! thread attaches new observers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rtrb::Consumer;

use crate::runtime::change::{RunState, lock};
use crate::runtime::packet_observer::{
    CaptureEvent, CaptureOutlet, CapturePoint, CapturedHead, DropCause, PacketFilter, PacketObserver,
};
use crate::runtime::trace::{PathEnd, Trace, TracedPacket};
use crate::runtime::worker_info::WorkerInfo;
use dataplane_control::observe::{
    Capture, Captured, CapturedPacket, Position, TraceFate, TraceHop, TracePackets, TracePath, Traced,
    TracedPacket as TracedRow,
};
use dataplane_control::{ErrorCode, Refusal};

/// The number of packet bytes after which an answer ends. The next packets are in the next answer.
const MAX_BYTES: usize = 512 << 10;
/// The maximum number of packets in an answer.
const MAX_PACKETS: usize = 4096;

/// A capture or a trace. Dropping this value ends the capture or trace.
pub(crate) struct Observation {
    state: Arc<RunState>,
    filter: Option<PacketFilter>,
    kind: ObservationKind,
    /// The worker that gives the next packet. The workers take turns.
    turn: usize,
    /// The reason why there are no further packets.
    end: Option<String>,
    /// `None` after the capture or trace has ended.
    slot: Option<ObservationSlot>,
}

enum ObservationKind {
    Capture { request: Capture, left: u64, lost: u64, workers: Vec<ObservedWorker<CaptureOutlet>> },
    Trace { dropped: Option<Arc<str>>, left: u64, workers: Vec<ObservedWorker<Consumer<(u64, TracedPacket)>>> },
}

/// The packets of one worker.
struct ObservedWorker<T> {
    /// The properties that the worker had when the observer was created. If the worker has other properties now, the
    /// worker needs a new observer.
    info: Arc<WorkerInfo>,
    outlet: T,
}

/// The right to observe the run. Only one client at a time has this right, because each worker has at most one
/// observer.
struct ObservationSlot(Arc<AtomicBool>);

impl ObservationSlot {
    fn take(is_taken: &Arc<AtomicBool>) -> Result<Self, Refusal> {
        if is_taken.swap(true, Ordering::AcqRel) {
            let help = "end the other `dataplane capture` or `dataplane trace` first";
            return Err(Refusal::new(ErrorCode::Busy, "another client captures or traces packets", help));
        }
        Ok(Self(is_taken.clone()))
    }
}

impl Drop for ObservationSlot {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.detach();
    }
}

impl Observation {
    /// Removes the observers of all workers. Another client can then capture or trace.
    fn detach(&mut self) {
        if self.slot.is_none() {
            return;
        }
        match &mut self.kind {
            ObservationKind::Capture { workers, lost, .. } => {
                *lost += workers.drain(..).map(|worker| worker.outlet.lost()).sum::<u64>();
            }
            ObservationKind::Trace { workers, .. } => workers.clear(),
        }
        let mut sampler = lock(&self.state.sampler);
        // A worker that does not answer keeps its observer. The worker does not use this observer any more, because the
        // outlet of the observer is dropped.
        (0..sampler.workers()).for_each(|worker| _ = sampler.observer(worker, None));
        drop(sampler);
        self.slot = None;
    }
}

fn no_answer(worker: usize) -> Refusal {
    let help = "try again; if the worker never answers, a stage waits or blocks, so restart the program";
    Refusal::new(ErrorCode::Failed, format!("worker {worker} does not answer"), help)
}

impl Observation {
    /// Starts to capture packets.
    ///
    /// # Errors
    /// Fails if another client captures or traces, if there is no such stage or port, or if a worker does not answer.
    pub(crate) fn capture(
        state: &Arc<RunState>,
        request: &Capture,
        filter: Option<PacketFilter>,
    ) -> Result<Self, Refusal> {
        let (workers, left) = (Vec::new(), request.packets.unwrap_or(u64::MAX));
        let kind = ObservationKind::Capture { request: request.clone(), left, lost: 0, workers };
        Self::start(state, kind, filter)
    }

    /// Starts to trace packets.
    ///
    /// # Errors
    /// Fails if another client captures or traces, or if a worker does not answer.
    pub(crate) fn trace(
        state: &Arc<RunState>,
        request: &TracePackets,
        filter: Option<PacketFilter>,
    ) -> Result<Self, Refusal> {
        let left = request.packets.unwrap_or(TracePackets::DEFAULT);
        if !(1..=TracePackets::MAX).contains(&left) {
            let message = format!("{left} packets is out of range");
            let help = format!("trace 1 to {} packets", TracePackets::MAX);
            return Err(Refusal::new(ErrorCode::BadField, message, help));
        }
        let dropped = request.dropped.as_deref().map(Arc::from);
        Self::start(state, ObservationKind::Trace { dropped, left, workers: Vec::new() }, filter)
    }

    fn start(state: &Arc<RunState>, kind: ObservationKind, filter: Option<PacketFilter>) -> Result<Self, Refusal> {
        let slot = ObservationSlot::take(&state.is_observed)?;
        let mut observation = Self { state: state.clone(), filter, kind, turn: 0, end: None, slot: Some(slot) };
        let workers = lock(&state.sampler).workers();
        (0..workers).try_for_each(|worker| observation.attach(worker))?;
        Ok(observation)
    }

    /// Attaches a new observer to a worker. The observer replaces the earlier observer of the worker.
    fn attach(&mut self, worker: usize) -> Result<(), Refusal> {
        let mut sampler = lock(&self.state.sampler);
        let info = sampler.info(worker).ok_or_else(|| no_answer(worker))?.clone();
        let filter = self.filter.clone();
        let observer = match &mut self.kind {
            ObservationKind::Capture { request, workers, lost, .. } => {
                let point = resolve(request.at.as_deref(), &info)?;
                let snaplen = request.snaplen.map_or(usize::MAX, |snaplen| snaplen as usize);
                let (observer, outlet) = PacketObserver::capture(&info, filter, (point, request.drops), snaplen);
                let observed = ObservedWorker { info, outlet };
                if let Some(mut before) = place(workers, worker, observed) {
                    // Packets that arrived between the last answer and the change are lost.
                    let waiting = std::iter::from_fn(|| before.outlet.take()).count();
                    *lost += before.outlet.lost() + waiting as u64;
                }
                observer
            }
            ObservationKind::Trace { dropped, left, workers } => {
                let (observer, outlet) = PacketObserver::trace(&info, filter, *left as usize, dropped.clone());
                place(workers, worker, ObservedWorker { info, outlet });
                observer
            }
        };
        // A worker may have ended before the other workers, for example at the end of its input. An ended worker needs
        // no observer, and this is no error.
        let has_left = self.state.control.thread(worker).has_left.load(Ordering::Relaxed);
        let is_attached = has_left || sampler.observer(worker, Some(observer));
        if is_attached { Ok(()) } else { Err(no_answer(worker)) }
    }

    /// Attaches new observers to added workers, and to workers whose pipeline has changed.
    fn follow_changes(&mut self) {
        // A change may have added or removed workers. The loop leaves the entries of removed workers, because the client
        // may not have read all packets of these entries.
        let workers = lock(&self.state.sampler).workers();
        for worker in 0..workers {
            let before = match &self.kind {
                ObservationKind::Capture { workers, .. } => workers.get(worker).map(|worker| &worker.info),
                ObservationKind::Trace { workers, .. } => workers.get(worker).map(|worker| &worker.info),
            };
            let is_same = {
                let mut sampler = lock(&self.state.sampler);
                sampler.pump();
                let Some(now) = sampler.info(worker) else { continue };
                before.is_some_and(|before| Arc::ptr_eq(now, before))
            };
            if !is_same && let Err(refusal) = self.attach(worker) {
                self.end.get_or_insert(format!("the config has changed: {}", refusal.message));
            }
        }
    }

    /// Returns the packets that were captured since the last call, in the order of their times.
    pub(crate) fn captured(&mut self) -> Captured {
        // Send the observers that still wait to their workers.
        lock(&self.state.sampler).pump();
        let ObservationKind::Capture { left, workers, .. } = &mut self.kind else { return Captured::default() };
        let take = |number, worker: &mut ObservedWorker<CaptureOutlet>| {
            let (head, data) = worker.outlet.take()?;
            Some((data.len(), captured_packet(number, head, data, &worker.info)))
        };
        let mut packets = take_in_turn(workers, &mut self.turn, left, take);
        packets.sort_by_key(|packet: &CapturedPacket| packet.time_ns);
        if packets.is_empty() && *left > 0 {
            self.follow_changes();
        }
        let ObservationKind::Capture { left, lost, workers, .. } = &self.kind else { return Captured::default() };
        let lost = lost + workers.iter().map(|worker| worker.outlet.lost()).sum::<u64>();
        let is_over = *left == 0 || (packets.is_empty() && self.is_over());
        if is_over {
            self.detach();
        }
        Captured { packets, lost, is_over, reason: self.end.clone() }
    }

    /// Returns the packets that were traced since the last call.
    pub(crate) fn traced(&mut self) -> Traced {
        // Send the observers that still wait to their workers.
        lock(&self.state.sampler).pump();
        let ObservationKind::Trace { left, workers, .. } = &mut self.kind else { return Traced::default() };
        let take = |number, worker: &mut ObservedWorker<Consumer<(u64, TracedPacket)>>| {
            let (time_ns, packet) = worker.outlet.pop().ok()?;
            let bytes = packet.frame.len() * (1 + packet.traces.len());
            Some((bytes, traced_packet(number, time_ns, packet, &worker.info)))
        };
        let mut packets = take_in_turn(workers, &mut self.turn, left, take);
        packets.sort_by_key(|packet: &TracedRow| packet.time_ns);
        let is_complete = *left == 0;
        if packets.is_empty() && !is_complete {
            self.follow_changes();
        }
        let is_over = is_complete || (packets.is_empty() && self.is_over());
        if is_over {
            self.detach();
        }
        Traced { packets, is_over, reason: self.end.clone() }
    }

    fn is_over(&self) -> bool {
        self.end.is_some() || self.state.control.is_stopped()
    }

    /// Returns `true` if the observation is a trace.
    pub(crate) fn is_trace(&self) -> bool {
        matches!(self.kind, ObservationKind::Trace { .. })
    }
}

/// Takes packets for one answer: one packet of each worker in turn, so that a busy worker does not hide the others.
/// `take` returns the next packet of a worker, and the number of its bytes.
fn take_in_turn<W, P>(
    workers: &mut [W],
    turn: &mut usize,
    left: &mut u64,
    mut take: impl FnMut(usize, &mut W) -> Option<(usize, P)>,
) -> Vec<P> {
    let (mut packets, mut bytes, mut empty) = (Vec::new(), 0, 0);
    while empty < workers.len() && *left > 0 && packets.len() < MAX_PACKETS && bytes < MAX_BYTES {
        let number = *turn % workers.len();
        *turn = number + 1;
        let Some((length, packet)) = take(number, &mut workers[number]) else {
            empty += 1;
            continue;
        };
        (empty, bytes, *left) = (0, bytes + length, *left - 1);
        packets.push(packet);
    }
    packets
}

/// Sets the entry of a worker. Returns the earlier entry.
fn place<T>(workers: &mut Vec<T>, worker: usize, observed: T) -> Option<T> {
    match workers.get_mut(worker) {
        Some(entry) => Some(std::mem::replace(entry, observed)),
        None => {
            workers.push(observed);
            None
        }
    }
}

/// Finds the stage, the output or the port with a name.
fn resolve(at: Option<&str>, info: &WorkerInfo) -> Result<CapturePoint, Refusal> {
    let Some(at) = at else { return Ok(CapturePoint::AllPorts) };
    let port = |name: &str| info.ports.iter().position(|port| port == name).map(CapturePoint::Port);
    let stage_at = |name: &str| info.stages_info.iter().position(|stage| stage.name == name);
    let stage = |name: &str| stage_at(name).map(CapturePoint::Stage);
    let output = |name: &str| {
        let (stage, output) = name.rsplit_once('.')?;
        let node = stage_at(stage)?;
        let place = info.stages_info[node].outputs.iter().position(|(name, _)| name == output)?;
        Some(CapturePoint::Output(node, place))
    };
    if let Some(found) = at.strip_prefix("port:").map(port).or_else(|| at.strip_prefix("stage:").map(stage)) {
        return found.ok_or_else(|| unknown(at, info));
    }
    match (stage(at), port(at)) {
        (Some(_), Some(_)) => {
            let message = format!("`{at}` is the name of a stage and of a port");
            Err(Refusal::new(ErrorCode::NotFound, message, format!("use `stage:{at}` or `port:{at}`")))
        }
        (found, other) => found.or(other).or_else(|| output(at)).ok_or_else(|| unknown(at, info)),
    }
}

fn unknown(at: &str, info: &WorkerInfo) -> Refusal {
    if let Some((name, output)) = at.rsplit_once('.')
        && let Some(stage) = info.stages_info.iter().find(|stage| stage.name == name)
    {
        let outputs: Vec<&str> = stage.outputs.iter().map(|(name, _)| name.as_str()).collect();
        let help = match &outputs[..] {
            [] => format!("stage `{name}` has no outputs; use `{name}` for the packets that enter the stage"),
            outputs => format!("the outputs of stage `{name}` are {}", outputs.join(", ")),
        };
        return Refusal::new(ErrorCode::NotFound, format!("stage `{name}` has no output `{output}`"), help);
    }
    let stages: Vec<&str> = info.stages_info.iter().map(|stage| stage.name.as_str()).collect();
    let help = format!("the stages are {}; the ports are {}", stages.join(", "), info.ports.join(", "));
    Refusal::new(ErrorCode::NotFound, format!("there is no stage, output or port `{at}`"), help)
}

fn captured_packet(worker: usize, head: CapturedHead, bytes: Vec<u8>, info: &WorkerInfo) -> CapturedPacket {
    let port = |port: usize| info.ports.get(port).cloned().unwrap_or_default();
    let stage = |node: usize| info.stages_info.get(node).map(|stage| stage.name.clone()).unwrap_or_default();
    let output = |node: usize, output: usize| {
        let stage = info.stages_info.get(node);
        stage.and_then(|stage| stage.outputs.get(output)).map(|(name, _)| name.clone()).unwrap_or_default()
    };
    let (position, name, drop) = match head.event {
        CaptureEvent::Received(at) => (Position::Received, port(at), None),
        CaptureEvent::Sent(at) => (Position::Sent, port(at), None),
        CaptureEvent::Entered(node) => (Position::Entered, stage(node), None),
        CaptureEvent::Left(node, by) => (Position::Left, format!("{}.{}", stage(node), output(node, by)), None),
        CaptureEvent::Dropped(node, cause) => {
            let reason = match cause {
                DropCause::Reason(reason) => {
                    reason.name(info.stages_info.get(node).map_or(&[][..], |stage| &stage.reasons))
                }
                DropCause::Output(by) => output(node, by),
            };
            (Position::Dropped, stage(node), Some(reason))
        }
    };
    CapturedPacket {
        time_ns: head.nanos,
        clock: head.source.name().to_owned(),
        worker: worker as u32,
        position,
        name,
        reason: drop,
        length: head.original,
        bytes: hex::encode(bytes),
    }
}

fn traced_packet(worker: usize, time_ns: u64, packet: TracedPacket, info: &WorkerInfo) -> TracedRow {
    TracedRow {
        time_ns,
        worker: worker as u32,
        port: info.ports.get(usize::from(packet.port)).cloned().unwrap_or_default(),
        bytes: hex::encode(packet.frame),
        paths: packet.traces.into_iter().map(trace_path).collect(),
    }
}

fn trace_path(trace: Trace) -> TracePath {
    let (fate, detail) = match trace.end {
        PathEnd::Sent(port) => (TraceFate::Sent, Some(port)),
        PathEnd::Dropped(reason) => (TraceFate::Dropped, Some(reason)),
        PathEnd::Consumed => (TraceFate::Consumed, None),
        // `TooLong` does not occur: a live packet fits into its buffer.
        PathEnd::Held | PathEnd::TooLong(_) => (TraceFate::Held, None),
        // Does not occur: a live trace forgets the packets of a stage that panics.
        PathEnd::Panicked { stage, .. } => (TraceFate::Other, Some(stage)),
    };
    let hops = trace.hops.into_iter();
    TracePath {
        stages: hops.map(|hop| TraceHop { stage: hop.stage, hit: hop.hit, output: hop.output }).collect(),
        fate,
        detail,
        bytes: hex::encode(trace.bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_worker_does_not_hide_the_packets_of_other_workers() {
        let mut workers = [vec![0; 2 * MAX_PACKETS], vec![1; 3], vec![2; 1]];
        let (mut turn, mut left) = (0, MAX_PACKETS as u64 + 4);
        let take = |_: usize, worker: &mut Vec<u8>| worker.pop().map(|packet| (64, packet));
        let packets = take_in_turn(&mut workers, &mut turn, &mut left, take);
        assert_eq!(packets.len(), MAX_PACKETS);
        assert_eq!(packets[..8], [0, 1, 2, 0, 1, 0, 1, 0]);
        // The next answer starts with another worker.
        workers[1].push(1);
        turn = 1;
        assert_eq!(take_in_turn(&mut workers, &mut turn, &mut left, take), [1, 0, 0, 0]);
        assert_eq!(left, 0);
    }
}
