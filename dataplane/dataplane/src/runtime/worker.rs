//! A worker and its loop. A worker is one thread on one core. Each worker has its own pool of packet buffers, its own
//! lanes (a queue pair and completion queues on each port) and its own graph of stages.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::runtime::black_box::{BlackBoxEvent, Cause, CauseKind, PanickedBatch, Recorder};
use crate::runtime::control::RunControl;
use crate::runtime::idle::IdlePolicy;
use crate::runtime::lane_swap::{RetiredLane, RetiringLane, ReturnedSlots};
use crate::runtime::packet_observer::PacketObserver;
use crate::runtime::sample::{
    HandedWorker, LaneError, LoopCounters, Message, Sample, Scope, Stamps, Swap, Times, WorkerCounters, WorkerEnd,
};
use crate::runtime::stopwatch::{self, Stopwatch};
use crate::runtime::worker_info::WorkerInfo;
use dataplane_core::clock::{HostClock, Stamp};
use dataplane_core::error::Error;
use dataplane_core::lane::{Lane, LaneCounters, LatencySink};
use dataplane_core::mem::Pool;
use dataplane_core::pipeline::{Ctx, Graph, NoObserver, Observer, OnPanic, Part, Quarantined, panic_message};
use dataplane_core::telemetry::{Latency, Progress};
use dataplane_core::units::{Nanos, Period, Ticks};

/// The number of loop iterations between two rounds of housekeeping.
const HOUSEKEEPING: u64 = 256;

/// The maximum number of bytes of a packet that the message about a panic shows.
const SHOWN: usize = 64;

/// The interval between two checks for a message to a paused worker.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The maximum time that a worker waits for its sends before a pause.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// The minimum time limit for the devices to release the flushed buffers of stopped queues. After an upgrade, the
/// kernel releases the buffers of an `xdp` port some milliseconds after the port has closed its socket.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(200);

/// The interval between two samples of the wall clock, in nanoseconds.
const WALL_CLOCK_INTERVAL: u64 = 1_000_000_000;

/// Computes the wall-clock time at `start` from the current wall-clock time. Reading the wall clock needs no system
/// call (vdso(7)).
#[cold]
fn epoch(clock: &HostClock, start: Nanos) -> Nanos {
    let readings = (0..5).map(|_| {
        let before = clock.nanos().0;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let bracket = clock.nanos().0.saturating_sub(before);
        (bracket, since.saturating_sub((before + bracket / 2).saturating_sub(start.0)))
    });
    // Each reading of the wall clock is between two readings of the host clock. The error is smallest if the time
    // between the two readings of the host clock is shortest.
    Nanos(readings.min().map_or(0, |(_, epoch)| epoch))
}

/// Returns the first bytes of a packet for a message.
fn shown(packet: &[u8]) -> String {
    let shown = &packet[..packet.len().min(SHOWN)];
    let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("; first packet ({} of {} bytes): {hex}", shown.len(), packet.len())
}

/// A worker that is ready to run. Only the thread of the worker accesses this value.
pub(crate) struct Worker {
    pub(crate) number: usize,
    // Rust drops fields in order. The lanes come before the pool, so that the devices release the packet memory before
    // the pool frees the memory.
    pub(crate) lanes: Vec<Box<dyn Lane>>,
    /// The indices of the lanes that receive packets.
    pub(crate) inputs: Vec<usize>,
    /// The lanes of removed ports that are not stopped yet, because sends may be in progress.
    pub(crate) retiring: Vec<RetiringLane>,
    /// The lanes of removed ports that a control thread closes.
    pub(crate) closing: ClosingLanes,
    pub(crate) graph: Graph,
    pub(crate) pool: Pool,
    /// The value of `runtime.burst` in the config.
    pub(crate) configured_burst: usize,
    /// The maximum number of packets of a burst: `configured_burst`, or less if the graph needs a smaller burst.
    pub(crate) burst: usize,
    /// The packets that the stages of earlier graphs dropped.
    pub(crate) dropped_before: u64,
    /// The properties of the worker and its stages.
    pub(crate) info: Option<Arc<WorkerInfo>>,
    pub(crate) idle: IdlePolicy,
    pub(crate) drain_timeout: Duration,
    pub(crate) control: Arc<RunControl>,
    pub(crate) latency: LatencyRecorder,
    /// Whether the worker processes no packets, because another program takes over the run.
    pub(crate) is_paused: bool,
    /// The number of the next iteration that the stopwatch measures, or 0 while the worker has an observer.
    pub(crate) timed: u64,
    pub(crate) stopwatch: Option<Box<Stopwatch>>,
    pub(crate) counts: LoopCounters,
    /// The time at which the worker ends in any case, if a change removes the worker.
    pub(crate) leave_by: Option<Instant>,
    /// The worker's end of the channel for statistics requests.
    pub(crate) reply: WorkerEnd,
    /// The observer of a client that captures or traces packets.
    pub(crate) observer: Option<Box<PacketObserver>>,
    /// The recorder of the black box. `None` if the config has no black box.
    pub(crate) recorder: Option<Recorder>,
}

/// The lanes of removed ports that a control thread closes.
#[derive(Debug, Default)]
pub(crate) struct ClosingLanes {
    /// The number of lanes whose buffers have not returned yet.
    lanes: usize,
    /// The number of buffers that these lanes had posted for receive.
    posted: usize,
    /// The packets of all lanes that have retired so far.
    packets: Progress,
}

/// Records the time between two timestamps in a histogram.
#[derive(Default)]
pub(crate) struct LatencyRecorder(pub(crate) Latency);

impl LatencySink for LatencyRecorder {
    #[inline]
    fn record(&mut self, from: Stamp, to: Stamp, packets: u64) {
        self.0.record(from, to, packets);
    }
}

impl Worker {
    /// Runs until the run is stopped, a limit is reached, or all inputs have ended. Then drains the lanes.
    pub(crate) fn run(&mut self, clock: &HostClock) {
        self.counts.started = clock.now();
        let start = clock.nanos();
        let mut ctx = Ctx { start, start_wallclock: epoch(clock, start), now: start, worker: self.number };
        let mut sampled = start;
        let result = loop {
            let ended = catch_unwind(AssertUnwindSafe(|| match self.recorder {
                None => self.run_loop::<false>(clock, &mut ctx, &mut sampled),
                Some(_) => self.run_loop::<true>(clock, &mut ctx, &mut sampled),
            }));
            match ended {
                Ok(result) => break result,
                Err(panic) => {
                    let event = self.panic_event(&*panic, &ctx);
                    // The worker continues without the stage that panicked, if the config allows this.
                    let continues = self.quarantine(&*panic, &ctx, clock);
                    self.write_black_box(event);
                    if !continues {
                        resume_unwind(panic);
                    }
                }
            }
        };
        self.counts.ended = clock.now();
        if let Err((port, error)) = &result {
            let event = self.fault_event(*port, error);
            self.write_black_box(event);
            // Nobody serves this worker's queues any more, so stop the whole run instead of losing its traffic
            // silently.
            let port = self.info.as_ref().and_then(|info| info.ports.get(*port));
            let name = port.map_or("?", String::as_str);
            tracing::error!(worker = self.number, port, "worker {}: port `{name}`: {error}", self.number);
            self.control.stop();
        }
        self.counts.fault = result.err();
        self.control.thread(self.number).has_left.store(true, Ordering::Relaxed);
        self.drain();
        self.publish();
    }

    /// Returns the event of a panic for the black box: the stage, its batch, and the bursts of this worker. Returns
    /// `None` if the config has no black box.
    #[cold]
    fn panic_event(&mut self, panic: &(dyn Any + Send), ctx: &Ctx) -> Option<BlackBoxEvent> {
        let recorder = self.recorder.as_ref()?;
        let (mut stage, mut batch) = (None, PanickedBatch::default());
        if let Some((name, packets)) = self.graph.interrupted() {
            stage = Some(name.to_owned());
            batch = PanickedBatch { port: packets.ingress().into(), packets: recorder.heads(ctx, packets) };
        }
        let message = panic_message(panic).to_owned();
        let cause = Cause { kind: CauseKind::Panic, worker: Some(self.number), stage, message };
        Some(BlackBoxEvent { cause, bursts: Some(recorder.bursts()), batch })
    }

    /// Returns the event of a lane that failed, for the black box. Returns `None` if the config has no black box.
    #[cold]
    fn fault_event(&self, port: usize, error: &dyn std::fmt::Display) -> Option<BlackBoxEvent> {
        let recorder = self.recorder.as_ref()?;
        let bursts = recorder.bursts();
        let name = bursts.info.ports.get(port).map_or("?", String::as_str);
        let message = format!("port {name}: {error}");
        let cause = Cause { kind: CauseKind::Fault, worker: Some(self.number), stage: None, message };
        Some(BlackBoxEvent { cause, bursts: Some(bursts), batch: PanickedBatch::default() })
    }

    #[cold]
    fn write_black_box(&self, event: Option<BlackBoxEvent>) {
        if let Some((black_box, event)) = self.control.black_box().zip(event) {
            black_box.write_after(event);
        }
    }

    /// Continues after a panic of a stage, if [`Graph::quarantine`] allows this. Returns `false` if the worker must end.
    fn quarantine(&mut self, panic: &(dyn Any + Send), ctx: &Ctx, clock: &HostClock) -> bool {
        let Some(quarantined) = self.graph.quarantine(ctx, &mut self.pool) else { return false };
        // The panic has dropped the stopwatch of a measured iteration.
        if self.stopwatch.is_none() {
            self.stopwatch = Some(Box::new(Stopwatch::new(clock, self.graph.counters().count())));
            self.timed = self.counts.loops;
        }
        let Quarantined { stage, on_panic, packets, first } = quarantined;
        let first = first.map_or(String::new(), |packet| shown(&packet));
        let effect = match on_panic {
            OnPanic::Bypass => "the stage is now bypassed",
            OnPanic::Drop => "the stage now drops all its packets",
            OnPanic::Stop => "the stage continues, because only the upgrade has failed",
        };
        let message = format!(
            "worker {}: stage `{stage}` panicked (packets in the batch: {packets}): {}{first}; {effect} (on_panic)",
            self.number,
            panic_message(panic)
        );
        tracing::error!(worker = self.number, stage, "{message}");
        self.control.add_failure(message);
        true
    }

    /// Ends the worker after a panic of its loop: takes back the buffers that the devices own. Returns a message with
    /// the stage and its packets. The packets that were in the graph are lost, and so are their buffers.
    pub(crate) fn end_after_panic(&mut self, panic: &(dyn Any + Send), clock: &HostClock) -> String {
        self.control.stop();
        self.control.thread(self.number).has_left.store(true, Ordering::Relaxed);
        self.counts.ended = clock.now();
        let mut interrupted = None;
        let mut message = match self.graph.interrupted() {
            Some((stage, batch)) => {
                interrupted = Some(stage.to_owned());
                let first = batch.iter_mut().next().map_or(String::new(), |packet| shown(packet.data()));
                format!(
                    "stage `{stage}` panicked (packets in the batch: {}): {}{first}",
                    batch.len(),
                    panic_message(panic)
                )
            }
            None => format!("panicked: {}", panic_message(panic)),
        };
        // A lane that was interrupted may panic again. Its buffers are then lost too.
        let drained = catch_unwind(AssertUnwindSafe(|| self.drain()));
        let lost = self.pool.layout().count() as usize - self.pool.available();
        message += &format!("; lost buffers: {lost}");
        if drained.is_err() {
            message += ", some because a port could not be drained";
        }
        tracing::error!(worker = self.number, stage = interrupted, "worker {}: {message}", self.number);
        self.publish();
        message
    }

    /// Runs the worker loop. Returns when the worker is done, or with the error of a lane. With `RECORDS`, the loop
    /// records each received burst for the black box. Without `RECORDS`, the loop has no instruction for the black box.
    ///
    /// Packets pass through the graph only in step 1, and when housekeeping releases held packets. At all other times,
    /// the ledger balances and stages may change their tables.
    #[inline(never)]
    fn run_loop<const RECORDS: bool>(
        &mut self,
        clock: &HostClock,
        ctx: &mut Ctx,
        sampled: &mut Nanos,
    ) -> Result<(), LaneError> {
        // A stage may have panicked while the worker answered a message during a pause.
        if self.is_paused && !self.stay_paused(clock) {
            return Ok(());
        }
        // After a panic of a stage, the graph and the outboxes may contain packets of other stages.
        self.graph.walk(ctx, &mut self.pool, &mut NoObserver);
        self.transmit();
        // Post receive buffers before the first poll. Without buffers, the device drops the packets that arrive.
        for (port, lane) in self.lanes.iter_mut().enumerate() {
            lane.refill(&mut self.pool).map_err(|error| (port, error))?;
        }
        loop {
            // Step 1: poll, process and send. The stopwatch measures about one iteration in a thousand. An
            // observer observes every iteration.
            let received = match self.counts.loops < self.timed {
                true => self.iterate::<_, RECORDS>(ctx, &mut NoObserver)?,
                false => self.observed_iterate::<RECORDS>(ctx)?,
            };
            // Step 2: count the iteration before housekeeping, which publishes the counters.
            self.counts.loops += 1;
            self.counts.idle_loops += u64::from(received == 0);
            // Step 3: idle if the poll received nothing. The key `idle` of the config selects the action.
            let (lanes, sleeps) = (&mut self.lanes, &mut self.counts.sleeps);
            let slept = self.idle.after(received, lanes, &self.inputs, &self.graph, sleeps);
            // Step 4: housekeeping. A sleep may be much longer than 256 iterations, so housekeeping follows each
            // sleep.
            if slept || self.counts.loops.is_multiple_of(HOUSEKEEPING) {
                self.housekeep(clock, ctx, sampled)?;
                // Step 5: check for the end of the run last, so that all work is complete when the loop returns.
                if self.is_done(received, clock.now()) {
                    return Ok(());
                }
            }
        }
    }

    /// Runs one iteration: reclaims sent buffers, then receives, processes and sends one burst of each input.
    #[inline(always)]
    fn iterate<O: Observer, const RECORDS: bool>(&mut self, ctx: &Ctx, observer: &mut O) -> Result<usize, LaneError> {
        // Reap first. Reaping frees the buffers of completed sends, and takes their timestamps soon after completion.
        observer.enters(Part::Reap);
        for (port, lane) in self.lanes.iter_mut().enumerate() {
            lane.reap(&mut self.pool, &mut self.latency).map_err(|error| (port, error))?;
        }
        let mut received = 0;
        for input in 0..self.inputs.len() {
            let port = self.inputs[input];
            // Receive up to a burst. With a packet limit, claim the packets from the shared budget first, and return
            // the unused part of the claim afterwards.
            observer.enters(Part::Receive);
            let limit = self.control.claim(self.burst);
            let lane = &mut self.lanes[port];
            let n = lane.receive(&mut self.pool, self.graph.entry(port as u8), limit).map_err(|error| (port, error))?;
            self.control.settle(limit, n);
            if n > 0 {
                // Run the packets through all stages, then send them. The outboxes must be empty before the next walk.
                received += n;
                if RECORDS && let Some(recorder) = &mut self.recorder {
                    recorder.record(ctx, self.graph.entry(port as u8));
                }
                self.graph.walk(ctx, &mut self.pool, observer);
                observer.enters(Part::Transmit);
                self.transmit();
            }
            // Refill last, so that buffers freed by the stages are posted again in the same iteration.
            observer.enters(Part::Refill);
            self.lanes[port].refill(&mut self.pool).map_err(|error| (port, error))?;
        }
        Ok(received)
    }

    /// Does the housekeeping: the work that is not done in every iteration. `sampled` is the time of the last sample of
    /// the wall clock.
    #[cold]
    fn housekeep(&mut self, clock: &HostClock, ctx: &mut Ctx, sampled: &mut Nanos) -> Result<(), LaneError> {
        // Publish progress and answer a statistics request first. At this point, the graph contains only held packets,
        // so the ledger balances, and the worker can switch to another graph.
        self.publish();
        self.idle.is_upgrading = self.control.is_upgrading();
        if let Some(message) = self.reply.asked() {
            self.answer(clock.now(), message);
            if self.is_paused && !self.stay_paused(clock) {
                return Ok(());
            }
        }
        // Read the clock. `now` is the time that stages see until the next housekeeping.
        ctx.now = clock.nanos();
        // NTP adjusts the wall clock relative to the TSC, so the offset is sampled again every second.
        if ctx.now.0.saturating_sub(sampled.0) > WALL_CLOCK_INTERVAL {
            (ctx.start_wallclock, *sampled) = (epoch(clock, ctx.start), ctx.now);
        }
        // Let stages do their own housekeeping. `tick` also selects the held packets that the loop below processes
        // again.
        self.graph.tick(ctx);
        // Process held packets again, and packets that stages generate. Each round must be transmitted before the next
        // round, because an outbox holds only one batch.
        while self.release(ctx) {
            self.transmit();
        }
        // Handle asynchronous device events, restart connections, and create failed queues again.
        for (port, lane) in self.lanes.iter_mut().enumerate() {
            lane.housekeep(&mut self.pool).map_err(|error| (port, error))?;
        }
        // `advance` returns whether a lane can be stopped. Ignore the result here: a control thread asks for the lanes
        // that can be stopped ([`Message::Retired`]).
        for retiring in &mut self.retiring {
            retiring.advance(&mut self.pool, &mut self.latency);
        }
        Ok(())
    }

    /// Answers messages until the worker continues. Returns `false` if the run ends. Another program may use the packet
    /// memory meanwhile, so no stage runs.
    #[cold]
    fn stay_paused(&mut self, clock: &HostClock) -> bool {
        while self.is_paused {
            if self.control.is_over(clock.now()) {
                return false;
            }
            match self.reply.asked() {
                Some(message) => self.answer(clock.now(), message),
                None => thread::sleep(PAUSE_POLL_INTERVAL),
            }
            // A pause is no fault, so the watchdog must see progress.
            self.counts.loops += 1;
            self.publish();
        }
        true
    }

    /// Waits until all sends have completed, at most until `deadline`. Polls every lane in each round, and treats a lane
    /// that cannot be polled as finished.
    fn complete_sends(&mut self, deadline: Instant) {
        let Self { lanes, retiring, pool, latency, .. } = self;
        let mut is_complete = |lane: &mut Box<dyn Lane>| lane.reap(pool, latency).is_err() || lane.sending() == 0;
        loop {
            let lanes = lanes.iter_mut().chain(retiring.iter_mut().map(|retiring| &mut retiring.lane));
            if lanes.fold(true, |done, lane| done & is_complete(lane)) || Instant::now() >= deadline {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Stops the queues of these ports. If the worker continues, the lanes restart their queues.
    #[cold]
    fn stop_queues(&mut self, ports: &[usize]) {
        for &port in ports {
            let Some(lane) = self.lanes.get_mut(port) else { continue };
            // The next use of the lane reports an error again. The poll receives no packet, because the queue has
            // stopped.
            let _ = lane.stop();
            let _ = lane.receive(&mut self.pool, self.graph.entry(port as u8), 1);
        }
    }

    /// Takes over the buffers and the states of the stages of a worker of another program.
    ///
    /// # Errors
    /// Fails if the buffers do not fit the lanes.
    pub(crate) fn take_over(&mut self, handed: &HandedWorker) -> Result<(), Error> {
        let failed = |message: String| Error::Worker { worker: self.number, message };
        for (port, slots) in &handed.posted {
            let misfit = || failed(format!("the buffers of port {port} of the other program do not fit"));
            let lane = self.lanes.get_mut(*port).ok_or_else(misfit)?;
            if !self.pool.take_over(slots) {
                return Err(misfit());
            }
            lane.refill(&mut self.pool).map_err(|error| failed(error.to_string()))?;
            if self.pool.available() > 0 {
                return Err(misfit());
            }
        }
        self.pool.take_over_rest();
        for problem in self.graph.load_states(&handed.states) {
            tracing::warn!(
                worker = self.number,
                "worker {}: the state of the previous program is lost: {problem}",
                self.number
            );
        }
        Ok(())
    }

    /// Processes some of the held or generated packets. Returns `false` if there are no such packets.
    fn release(&mut self, ctx: &Ctx) -> bool {
        let Some(observer) = self.observer.as_mut().filter(|observer| !observer.is_over()) else {
            return self.graph.process_held_or_generate(ctx, &mut self.pool, &mut NoObserver);
        };
        observer.begin_release(ctx, self.info.as_ref());
        let is_released = self.graph.process_held_or_generate(ctx, &mut self.pool, &mut **observer);
        observer.end_batch();
        is_released
    }

    #[cold]
    fn observed_iterate<const RECORDS: bool>(&mut self, ctx: &Ctx) -> Result<usize, LaneError> {
        let Some(mut observer) = self.observer.take_if(|observer| !observer.is_over()) else {
            return self.timed_iterate::<RECORDS>(ctx);
        };
        observer.begin(ctx, self.info.as_ref());
        let received = catch_unwind(AssertUnwindSafe(|| self.iterate::<_, RECORDS>(ctx, &mut *observer)));
        // After a panic of a stage, the run and the observer may continue, so keep the observer.
        self.observer = Some(observer);
        received.unwrap_or_else(|panic| resume_unwind(panic))
    }

    #[cold]
    fn timed_iterate<const RECORDS: bool>(&mut self, ctx: &Ctx) -> Result<usize, LaneError> {
        // The stopwatch is always present outside this function.
        let Some(mut watch) = self.stopwatch.take() else {
            self.timed = u64::MAX;
            return Ok(0);
        };
        watch.begin();
        let received = self.iterate::<_, RECORDS>(ctx, &mut *watch)?;
        watch.end(received as u64);
        self.stopwatch = Some(watch);
        self.timed = Stopwatch::next(self.counts.loops, received as u64);
        Ok(received)
    }

    /// Sends the packets in the outboxes of the graph.
    #[inline]
    fn transmit(&mut self) {
        for (port, lane) in self.lanes.iter_mut().enumerate() {
            if !self.graph.outbox(port).is_empty() {
                lane.transmit(&mut self.pool, self.graph.outbox(port));
            }
        }
    }

    /// Returns `true` if the worker ends now: the run was stopped, a limit is reached, or all inputs have ended and all
    /// sends have completed.
    fn is_done(&mut self, received: usize, now: Ticks) -> bool {
        if self.control.is_over(now) || self.control.is_leaving(self.number) && self.has_passed_on(received) {
            return true;
        }
        // The loop receives on and refills only the lanes of input ports. An error may have stopped a lane that only
        // sends. `drain` takes back the receives that such a lane has posted, and `refill` resets the lane.
        for (port, lane) in self.lanes.iter_mut().enumerate() {
            // Ignore an error here. The next use of the lane reports the error again.
            if !lane.is_connected() && !self.inputs.contains(&port) {
                let _ = lane.drain(&mut self.pool);
            }
            let _ = lane.refill(&mut self.pool);
        }
        let mut inputs = self.inputs.iter().map(|&port| &self.lanes[port]);
        received == 0 && inputs.all(|lane| lane.source_ended()) && self.lanes.iter().all(|lane| lane.sending() == 0)
    }

    /// Returns `true` if a worker that a change removes can end: the queues have no packet, the stages hold no packet,
    /// and all sends have completed, or `drain_timeout` is over. The devices pass no further packets to the worker.
    #[cold]
    fn has_passed_on(&mut self, received: usize) -> bool {
        let Some(leave_by) = self.leave_by else {
            // The last poll may have been before the devices stopped passing packets to the worker, so poll again.
            self.leave_by = Some(Period(self.drain_timeout).after_now());
            return false;
        };
        let is_empty = received == 0 && !self.graph.holds() && self.lanes.iter().all(|lane| lane.sending() == 0);
        is_empty || Instant::now() >= leave_by
    }

    /// Drains the lanes after the last receive: completes the sends in progress, then reclaims all buffers from the
    /// devices.
    fn drain(&mut self) {
        // Drop the packets that stages hold. No stage runs any more.
        self.graph.drop_held(&mut self.pool);
        let deadline = Period(self.drain_timeout).after_now();
        self.complete_sends(deadline);
        let Self { lanes, retiring, closing, reply, pool, is_paused, .. } = self;
        let mut lanes: Vec<&mut Box<dyn Lane>> =
            lanes.iter_mut().chain(retiring.iter_mut().map(|retiring| &mut retiring.lane)).collect();
        // The devices of a paused worker may keep buffers for another program.
        flush(&mut lanes, pool, deadline, *is_paused);
        // Destroy the queues, and reclaim the buffers that the devices did not return before the deadline.
        lanes.iter_mut().for_each(|lane| lane.reset_and_reclaim(pool));
        // Wait for the closing lanes last, because the lanes of this worker must not wait for a control thread. If a
        // lane is closed only after the deadline, the requester of the lane counts the buffers of the lane.
        wait_until(deadline, || {
            if let Some(Message::Slots(mut slots)) = closing.asked(reply) {
                closing.take(&mut slots, pool);
                reply.give(Message::Slots(slots));
            }
            closing.lanes == 0
        });
    }

    /// Creates the first sample. Must be called on the worker's thread, because the first write to the sample places
    /// the memory on the worker's NUMA node.
    pub(crate) fn first_sample(&mut self, info: &WorkerInfo) -> Box<Sample> {
        // The first answer swaps the histograms of the worker with the histograms of the sample, so the memory of all
        // these histograms must be on the worker's NUMA node.
        let (mut sample, mut own) = (Box::new(Sample::new(info)), Times::new(info.stages_info.len()));
        // The first round measures the memory that the counters of the stages need. The second round writes to the
        // memory.
        for _ in 0..2 {
            let mut stages = sample.counters.stages.iter_mut();
            self.graph.visit(|stage| {
                if let Some(counters) = stages.next() {
                    counters.fill(stage);
                    counters.grow();
                }
            });
        }
        own.touch();
        sample.times.touch();
        self.latency.0 = own.latency;
        if let Some(watch) = &mut self.stopwatch {
            *watch.costs() = own.costs;
        }
        sample
    }

    #[cold]
    fn answer(&mut self, now: Ticks, mut message: Message) {
        let filled = match &mut message {
            Message::Sample(sample) => catch_unwind(AssertUnwindSafe(|| self.fill(sample, now))),
            Message::Swap(swap) => {
                self.exchange_graph(swap);
                catch_unwind(AssertUnwindSafe(|| self.fill(&mut swap.sample, now)))
            }
            Message::Observer(observer) => {
                std::mem::swap(&mut self.observer, observer);
                self.timed = match self.observer {
                    Some(_) => 0,
                    None => self.counts.loops + stopwatch::FIRST,
                };
                Ok(())
            }
            Message::Retired(lanes) => {
                self.retire_lanes(lanes);
                Ok(())
            }
            Message::Slots(slots) => {
                self.closing.take(slots, &mut self.pool);
                Ok(())
            }
            Message::Pause(paused) => {
                paused.has_failed = true;
                catch_unwind(AssertUnwindSafe(|| {
                    self.complete_sends(Instant::now() + SEND_TIMEOUT);
                    paused.sending = self.lanes.iter().position(|lane| lane.sending() > 0);
                    paused.states = self.graph.save_states();
                    (paused.has_failed, self.is_paused) = (false, true);
                }))
            }
            Message::Release(ports) => {
                self.stop_queues(ports);
                Ok(())
            }
            Message::Resume(is_touched) => {
                if *is_touched {
                    // The other program may have written to the buffers of held packets.
                    self.graph.drop_held(&mut self.pool);
                }
                self.is_paused = false;
                Ok(())
            }
        };
        // Answer also after a panic of a stage, because the requester waits for its message.
        self.reply.give(message);
        if let Err(panic) = filled {
            resume_unwind(panic);
        }
    }

    /// Switches the worker to the graph in `swap`, and stores the earlier graph in `swap`. The requester frees the
    /// earlier graph.
    fn exchange_graph(&mut self, swap: &mut Swap) {
        let numbers = swap.lanes.as_ref().map(|lanes| lanes.numbers());
        swap.graph.take_over(&mut self.graph, &swap.successions, numbers, &mut self.pool);
        if let Some(swap) = &mut swap.lanes {
            swap.exchange(&mut self.lanes, &mut self.inputs, &mut self.retiring, self.drain_timeout);
            self.idle.disarm();
        }
        self.dropped_before += self.graph.dropped();
        std::mem::swap(&mut self.graph, &mut swap.graph);
        std::mem::swap(&mut self.stopwatch, &mut swap.stopwatch);
        if let Some(info) = &mut self.info {
            std::mem::swap(info, &mut swap.info);
            if let Some(recorder) = &mut self.recorder {
                recorder.forget(info);
            }
        }
        self.burst = self.configured_burst.min(self.graph.burst());
    }

    /// Moves the retiring lanes that can be stopped to `into`, as far as the list has room.
    fn retire_lanes(&mut self, into: &mut Vec<RetiredLane>) {
        let Self { retiring, pool, latency, closing, .. } = self;
        let mut at = 0;
        while at < retiring.len() && into.len() < into.capacity() {
            if !retiring[at].advance(pool, latency) {
                at += 1;
                continue;
            }
            let retired = retiring.swap_remove(at).into_retired();
            closing.add(&retired);
            into.push(retired);
        }
    }

    /// Fills a sample, which must be empty.
    pub(crate) fn fill(&mut self, sample: &mut Sample, now: Ticks) {
        let WorkerCounters { at, counts, lanes, retiring, stamps, nodes, stages, connected, out, posted } =
            &mut sample.counters;
        (*at, *counts) = (now, self.counts);
        for (((lane, counters), stamps), connected) in self.lanes.iter().zip(lanes).zip(stamps).zip(connected) {
            counters.clone_from(lane.counters());
            *stamps = lane.stampers().map(Stamps::of);
            *connected = lane.is_connected();
        }
        for ((_, counters), copy) in self.graph.counters().zip(nodes) {
            copy.clone_from(counters);
        }
        *out = self.pool.layout().count() as usize - self.pool.available();
        let now_retiring = || self.retiring.iter().map(|retiring| (&retiring.name, &retiring.lane));
        retiring.clear();
        retiring.extend(now_retiring().map(|(name, lane)| (name.clone(), lane.counters().clone())));
        *posted = self.lanes.iter().chain(now_retiring().map(|(_, lane)| lane)).map(|lane| lane.posted()).sum();
        *posted += self.closing.posted;
        std::mem::swap(&mut sample.times.latency, &mut self.latency.0);
        if let Some(watch) = &mut self.stopwatch {
            std::mem::swap(&mut sample.times.costs, watch.costs());
        }
        // A stage may panic here, so all other values are already complete.
        if sample.scope == Scope::All {
            let mut stages = stages.iter_mut();
            self.graph.visit(|stage| {
                if let Some(counters) = stages.next() {
                    counters.fill(stage);
                }
            });
        }
    }

    fn publish(&self) {
        let mut progress = Progress { loops: self.counts.loops, ..self.closing.packets };
        let retiring = self.retiring.iter().map(|retiring| &retiring.lane);
        self.lanes.iter().chain(retiring).for_each(|lane| add_progress(&mut progress, lane.counters()));
        progress.dropped += self.dropped_before + self.graph.dropped();
        self.control.board(self.number).publish(progress);
    }
}

impl ClosingLanes {
    /// Returns the next message to the worker. Returns `None` if no lane is closing, or if there is no message yet.
    fn asked(&self, reply: &mut WorkerEnd) -> Option<Message> {
        if self.lanes > 0 { reply.asked() } else { None }
    }

    fn add(&mut self, retired: &RetiredLane) {
        self.lanes += 1;
        self.posted += retired.posted;
        add_progress(&mut self.packets, &retired.counters);
    }

    /// Takes the buffers of a closed lane.
    fn take(&mut self, slots: &mut ReturnedSlots, pool: &mut Pool) {
        pool.absorb(&mut slots.pool);
        self.lanes -= 1;
        // A device that is gone may keep some of the buffers. These buffers stay posted until the end of the run.
        self.posted -= slots.receives;
        // After the hand-over, the remaining packets of the lane were sent, or were dropped because
        // `drain_timeout` was over.
        let mut now = Progress::default();
        add_progress(&mut now, &slots.last);
        let mut before = Progress::default();
        add_progress(&mut before, &slots.before);
        self.packets.tx += now.tx - before.tx;
        self.packets.dropped += now.dropped - before.dropped;
    }
}

/// Polls until `what` returns `true` or until `deadline`. Polls at least once.
fn wait_until(deadline: Instant, mut what: impl FnMut() -> bool) {
    while !what() && Instant::now() < deadline {
        std::hint::spin_loop();
    }
}

/// Stops the lanes, and reclaims their flushed buffers. Waits for the devices until `deadline` or for
/// [`RELEASE_TIMEOUT`], whichever ends later, because the sends may have used up the time. With `once`, reclaims only
/// the buffers that the devices have released already.
fn flush(lanes: &mut [&mut Box<dyn Lane>], pool: &mut Pool, deadline: Instant, once: bool) {
    // Move the queue pairs to the error state, so that the devices flush all posted buffers.
    for lane in &mut *lanes {
        // `stop` fails only if the queue pair is already stopped.
        let _ = lane.stop();
    }
    wait_until(deadline.max(Instant::now() + RELEASE_TIMEOUT), || {
        lanes.iter_mut().fold(true, |done, lane| done & lane.drain(pool).map_or(true, |left| left == 0)) || once
    });
}

/// Adds the packets of a lane to `progress`.
fn add_progress(progress: &mut Progress, counters: &LaneCounters) {
    progress.rx += counters.rx;
    progress.tx += counters.tx;
    progress.dropped += counters.tx_full + counters.tx_errors + counters.tx_too_long + counters.tx_not_connected;
}

#[cfg(test)]
mod tests;
