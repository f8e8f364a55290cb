//! A worker: one core, its pool, its lanes and its graph, and the loop that runs them to completion.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::clock::{HostClock, Stamp};
use crate::error::VerbError;
use crate::lane::{Lane, LatencySink};
use crate::mem::Pool;
use crate::pipeline::{Ctx, Graph, NoObserver, Observer, Part};
use crate::runtime::control::Control;
use crate::runtime::idle::Idle;
use crate::runtime::sample::{Reply, Sample};
use crate::runtime::stopwatch::Stopwatch;
use crate::telemetry::{Latency, Progress};
use crate::units::{Nanos, Ticks};

/// How often round the loop the slow things are done: stop, limits, publishing, draining decisions.
const HOUSEKEEPING: u64 = 256;

/// How often the wall clock is looked at, in nanoseconds.
const COMPARED: u64 = 1_000_000_000;

/// What the wall clock showed at the start, by what it shows now. Read without a system call (vdso(7)).
#[cold]
fn epoch(clock: &HostClock, start: Nanos) -> Nanos {
    let readings = (0..5).map(|_| {
        let before = clock.nanos().0;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let bracket = clock.nanos().0.saturating_sub(before);
        (bracket, since.saturating_sub((before + bracket / 2).saturating_sub(start.0)))
    });
    // The reading that took the shortest is the most exact.
    Nanos(readings.min().map_or(0, |(_, epoch)| epoch))
}

/// A worker, ready to run. Everything in it belongs to its thread alone.
pub(crate) struct Worker {
    pub(crate) number: usize,
    // Lanes before the pool: a device lets go of memory before it is anyone else's.
    pub(crate) lanes: Vec<Box<dyn Lane>>,
    /// The lanes that packets are received from.
    pub(crate) inputs: Vec<usize>,
    pub(crate) graph: Graph,
    pub(crate) pool: Pool,
    pub(crate) burst: usize,
    pub(crate) idle: Idle,
    pub(crate) drain_timeout: Duration,
    pub(crate) control: Arc<Control>,
    pub(crate) latency: Spans,
    /// The number of the next loop that is timed.
    pub(crate) timed: u64,
    pub(crate) stopwatch: Option<Box<Stopwatch>>,
    pub(crate) counts: Counts,
    /// Where it is asked for its numbers.
    pub(crate) reply: Reply,
}

/// What the loop itself counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) loops: u64,
    pub(crate) idle_loops: u64,
    pub(crate) started: Ticks,
    pub(crate) ended: Ticks,
    pub(crate) fault: Option<(usize, VerbError)>,
}

/// Spans between stamps go into a histogram.
#[derive(Default)]
pub(crate) struct Spans(pub(crate) Latency);

impl LatencySink for Spans {
    #[inline]
    fn record(&mut self, from: Stamp, to: Stamp, packets: u64) {
        self.0.record(from, to, packets);
    }
}

impl Worker {
    /// Runs until it is told to stop, its limits are reached, or its sources have ended; then drains.
    pub(crate) fn run(&mut self, clock: &HostClock) {
        self.counts.started = clock.now();
        let result = self.run_loop(clock);
        self.counts.ended = clock.now();
        if let Err((_, error)) = &result {
            // Its share of the traffic is served by nobody: better a run that ends than one that seems well.
            tracing::error!("worker {}: {error}", self.number);
            self.control.stop();
        }
        self.counts.fault = result.err();
        self.drain();
        self.publish();
    }

    /// The day of a packet.
    fn run_loop(&mut self, clock: &HostClock) -> Result<(), (usize, VerbError)> {
        let start = clock.nanos();
        let (mut epoch, mut compared) = (epoch(clock, start), start);
        let number = self.number;
        let context = |epoch, now| Ctx { start, epoch, now, worker: number };
        let mut now = start;
        let at = |lane: usize| move |error: VerbError| (lane, error);
        for lane in 0..self.lanes.len() {
            self.lanes[lane].refill(&mut self.pool).map_err(at(lane))?;
        }
        loop {
            let received = if self.counts.loops < self.timed {
                self.turn(&context(epoch, now), &mut NoObserver)?
            } else {
                self.timed_turn(&context(epoch, now))?
            };
            self.counts.loops += 1;
            if received == 0 {
                self.counts.idle_loops += 1;
            }
            let slept = self.idle.after(received, &mut self.lanes, &self.inputs, &self.graph);
            if slept || self.counts.loops.is_multiple_of(HOUSEKEEPING) {
                self.publish();
                if let Some(sample) = self.reply.asked() {
                    self.answer(clock.now(), sample);
                }
                now = clock.nanos();
                // What disciplines the wall clock moves it against the processor's counter.
                if now.0.saturating_sub(compared.0) > COMPARED {
                    (epoch, compared) = (self::epoch(clock, start), now);
                }
                self.graph.tick(&context(epoch, now));
                while self.graph.release(&context(epoch, now), &mut self.pool, &mut NoObserver) {
                    self.transmit();
                }
                for lane in 0..self.lanes.len() {
                    self.lanes[lane].attend(&mut self.pool).map_err(at(lane))?;
                }
                if self.is_done(received, clock.now()) {
                    return Ok(());
                }
            }
        }
    }

    /// Once round: what was sent comes back, what came is received, goes through the graph and is sent.
    #[inline(always)]
    fn turn<O: Observer>(&mut self, ctx: &Ctx, observer: &mut O) -> Result<usize, (usize, VerbError)> {
        let at = |lane: usize| move |error: VerbError| (lane, error);
        observer.enters(Part::Reap);
        for (place, lane) in self.lanes.iter_mut().enumerate() {
            lane.reap(&mut self.pool, &mut self.latency).map_err(at(place))?;
        }
        let mut received = 0;
        for input in 0..self.inputs.len() {
            let place = self.inputs[input];
            observer.enters(Part::Receive);
            let limit = self.control.claim(self.burst);
            let lane = &mut self.lanes[place];
            let n = lane.receive(&mut self.pool, self.graph.entry(place as u8), limit).map_err(at(place))?;
            self.control.settle(limit, n);
            if n > 0 {
                received += n;
                self.graph.walk(ctx, &mut self.pool, observer);
                observer.enters(Part::Transmit);
                self.transmit();
            }
            observer.enters(Part::Refill);
            self.lanes[place].refill(&mut self.pool).map_err(at(place))?;
        }
        Ok(received)
    }

    #[cold]
    fn timed_turn(&mut self, ctx: &Ctx) -> Result<usize, (usize, VerbError)> {
        // It is here but within this function.
        let Some(mut watch) = self.stopwatch.take() else {
            self.timed = u64::MAX;
            return Ok(0);
        };
        watch.begin();
        let received = self.turn(ctx, &mut *watch)?;
        watch.end(received as u64);
        self.stopwatch = Some(watch);
        self.timed = Stopwatch::next(self.counts.loops, received as u64);
        Ok(received)
    }

    /// Sends what the graph has put into its outboxes.
    #[inline]
    fn transmit(&mut self) {
        for (port, lane) in self.lanes.iter_mut().enumerate() {
            if !self.graph.outbox(port).is_empty() {
                lane.transmit(&mut self.pool, self.graph.outbox(port));
            }
        }
    }

    fn is_done(&mut self, received: usize, now: Ticks) -> bool {
        if self.control.is_over(now) {
            return true;
        }
        // An output alone may have stopped by an error: it is brought up again here.
        for lane in &mut self.lanes {
            // A lane that cannot be reset says so when it is next used.
            let _ = lane.refill(&mut self.pool);
        }
        let mut inputs = self.inputs.iter().map(|&place| &self.lanes[place]);
        received == 0 && inputs.all(|lane| lane.source_ended()) && self.lanes.iter().all(|lane| lane.sending() == 0)
    }

    /// Intake has stopped: lets what is being sent be sent, then takes everything back from the devices.
    fn drain(&mut self) {
        self.graph.drop_held(&mut self.pool);
        let deadline = Instant::now() + self.drain_timeout;
        let before_deadline = |what: &mut dyn FnMut() -> bool| {
            while !what() && Instant::now() < deadline {
                std::hint::spin_loop();
            }
        };
        let Self { lanes, pool, latency, .. } = self;
        // Every lane gets its turn each time round. One that cannot be polled any more has nothing left to wait for.
        before_deadline(&mut || {
            lanes.iter_mut().fold(true, |done, lane| done & (lane.reap(pool, latency).is_err() || lane.sending() == 0))
        });
        for lane in lanes.iter_mut() {
            // Refused only where it is stopped already.
            let _ = lane.stop();
        }
        before_deadline(&mut || {
            lanes.iter_mut().fold(true, |done, lane| done & lane.drain(pool).map_or(true, |left| left == 0))
        });
        lanes.iter_mut().for_each(|lane| lane.abandon(pool));
    }

    #[cold]
    fn answer(&mut self, now: Ticks, mut sample: Box<Sample>) {
        sample.take(self, now);
        self.reply.give(sample);
    }

    fn publish(&self) {
        let mut progress = Progress { loops: self.counts.loops, ..Progress::default() };
        for lane in &self.lanes {
            let counters = lane.counters();
            progress.rx += counters.rx;
            progress.tx += counters.tx;
            progress.dropped +=
                counters.tx_full + counters.tx_errors + counters.tx_too_long + counters.tx_not_connected;
        }
        progress.dropped += self.graph.dropped();
        self.control.board(self.number).publish(progress);
    }
}
