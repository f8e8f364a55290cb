//! The tester: sends the streams of one trial after the other, and judges the packets that return.
//!
//! One thread on one core sends and receives on all ports. The loop neither allocates memory nor takes locks.

mod clocks;
mod core_load;
mod host;
mod learn;
mod options;
mod outcome;
mod receiver;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dataplane::clock::{ClockSource, ClockState, HostClock};
use dataplane::lane::{LaneCounters, NoSink};
use dataplane::mem::Batch;
use dataplane::runtime::PortLanes;
use dataplane::soft::doctor::Roots;

use dataplane::{Error, Result};

use self::clocks::ClockWatch;
pub use self::clocks::{ClockSteps, HostTimes};
pub use self::core_load::CoreLoad;
use self::core_load::CoreSample;
use self::host::{Failures, account, counters, cpu_wait, overrun, pause};
pub use self::options::{IntervalCounts, Observer, TesterOptions, TrialPlan};
pub use self::outcome::{Outcome, PortOutcome, StreamOutcome};
use self::receiver::Receiver;
use self::turns::Turns;
use crate::judge::{Counts, Judge, Limits};
use crate::sender::Sender;
use crate::series::{Intervals, Point, Shares};
use crate::signature::Key;
use crate::stream::Stream;

/// Before a trial, the maximum time for discarding old packets and for sending learning frames, in nanoseconds.
const DISCARD_TIME: u64 = 1_000_000_000;
/// The number of iterations between two rounds of housekeeping.
const HOUSEKEEPING: u64 = 256;
/// Packets that arrive shortly after the last transmission count as throughput. The limit for this time is the duration
/// of the trial divided by this number. With a longer time, packets that wait in a queue of the device would also
/// count.
const DRAIN_SHARE: u64 = 200;
/// The smallest limit for the time after the last transmission in which packets count as throughput, in nanoseconds. In
/// a shorter time, it is possible that the thread of the tester does not run at all.
const SHORTEST_DRAIN: u64 = 1_000_000;
/// The largest window of a judge: the number of packets that the judge remembers. A window needs 8 bytes of memory per
/// packet.
const MAX_WINDOW: f64 = (1 << 22) as f64;
/// The smallest window of a judge, in packets.
const MIN_WINDOW: f64 = (1 << 14) as f64;
/// The window if the rate is not limited, in packets.
const DEFAULT_WINDOW: usize = 1 << 20;

/// Returns the error of a run that a signal has stopped.
pub(crate) fn stopped() -> Error {
    Error::Topology("stopped before the end, so the result is incomplete".to_owned())
}

/// The ports, the streams and their judges.
pub struct Tester {
    // The lanes are dropped last, because the batches belong to the pool of the lanes.
    outboxes: Vec<Box<Batch>>,
    inbox: Box<Batch>,
    senders: Vec<Sender>,
    judges: Vec<Judge>,
    streams: Vec<Stream>,
    options: TesterOptions,
    clock: HostClock,
    /// Reads the clocks of the host.
    host_times: Box<dyn FnMut() -> HostTimes>,
    /// The folders from which the load of the core is read.
    roots: Roots,
    /// The number from which the key of the last trial was created.
    key: u64,
    /// The number of the first flow of the next trial.
    first_flow: u64,
    stop: Arc<AtomicBool>,
    lanes: PortLanes,
}

impl Tester {
    /// Creates a tester for the streams. `fastest` is the highest rate of each stream in packets per second, or `None`
    /// if the rate is not limited. A trial ends early after `stop` was set.
    pub fn new(
        mut lanes: PortLanes,
        clock: HostClock,
        streams: Vec<Stream>,
        fastest: &[Option<f64>],
        options: TesterOptions,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let (ports, pool) = lanes.parts();
        let outboxes = ports.iter().map(|_| Batch::new(pool)).collect();
        let inbox = Batch::new(pool);
        // The first key differs between runs, so that packets of an earlier run do not count.
        let key = clock.nanos().0;
        let (senders, judges) = (Vec::new(), Vec::new());
        let own = clock.clone();
        let mut tester = Self {
            outboxes,
            inbox,
            senders,
            judges,
            streams: Vec::new(),
            options,
            clock,
            host_times: Box::new(move || HostTimes::read(&own)),
            roots: Roots::real(),
            key,
            first_flow: 0,
            stop,
            lanes,
        };
        tester.set_streams(streams, fastest);
        tester
    }

    /// Replaces the streams of the next trials. `fastest` is the highest rate of each stream in packets per second, or
    /// `None` if the rate is not limited.
    pub fn set_streams(&mut self, streams: Vec<Stream>, fastest: &[Option<f64>]) {
        let limits = Limits { late: nanos(self.options.late), gap: nanos(self.options.gap) };
        let late = self.options.late.as_secs_f64();
        let judge = |rate: &Option<f64>| {
            // Twice the number of packets that are sent within the time after which a packet is late.
            let window = rate.map(|rate| (2.0 * rate * late).clamp(MIN_WINDOW, MAX_WINDOW) as usize);
            Judge::new(window.unwrap_or(DEFAULT_WINDOW), limits)
        };
        self.judges = fastest.iter().map(judge).collect();
        self.senders = (0..=u8::MAX).zip(&streams).map(|(number, stream)| Sender::new(stream, number)).collect();
        self.streams = streams;
    }

    /// Sets the length of the intervals in which packets are counted.
    pub fn set_interval(&mut self, interval: Duration) {
        self.options.interval = interval;
    }

    /// Sets the time without arrivals after which a trial ends.
    pub fn set_settle(&mut self, settle: Duration) {
        self.options.settle = settle;
    }

    /// Sets the maximum time by which the tester may send a packet after the packet was due. The tester does not send
    /// packets that would be later.
    pub fn set_catch_up(&mut self, catch_up: Duration) {
        self.options.catch_up = catch_up;
    }

    /// Replaces the function that reads the clocks of the host, for tests.
    pub fn set_host_times(&mut self, read: Box<dyn FnMut() -> HostTimes>) {
        self.host_times = read;
    }

    /// Sets the folders from which the load of the core is read, for tests.
    pub fn set_roots(&mut self, roots: Roots) {
        self.roots = roots;
    }

    /// Sets the number of the first flow of the next trials. The packets of a trial have the headers of this flow, the
    /// following flow, and so on.
    pub fn set_first_flow(&mut self, first: u64) {
        self.first_flow = first;
    }

    /// Returns the streams.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Returns the ports.
    pub fn lanes(&self) -> &PortLanes {
        &self.lanes
    }

    /// Runs a trial. `rates` has the rate of each stream in packets per second, or `None` for the highest possible
    /// rate. Returns after the traffic has settled.
    ///
    /// # Errors
    /// Returns an error if a port fails.
    pub fn trial(&mut self, rates: &[Option<f64>], duration: Duration) -> Result<Outcome> {
        self.trial_with(&TrialPlan { rates, duration, change: None }, &mut ())
    }

    /// Runs a trial that `observer` watches. Returns after the traffic has settled.
    ///
    /// # Errors
    /// Returns an error if a port fails.
    pub fn trial_with(&mut self, plan: &TrialPlan<'_>, observer: &mut dyn Observer) -> Result<Outcome> {
        if self.options.learn {
            self.send_learning_frames()?;
        }
        let before = counters(&self.lanes);
        let clock_faults = self.clock_faults();
        let mut outcome = self.run(plan, observer)?;
        let after = counters(&self.lanes);
        let later_faults = self.clock_faults();
        for (index, port) in outcome.ports.iter_mut().enumerate() {
            let changed = |(name, value): (&String, &u64)| {
                let change = value.saturating_sub(before[index].get(name).copied().unwrap_or(0));
                (change > 0).then(|| (name.clone(), change))
            };
            port.device = after[index].iter().filter_map(changed).collect();
            port.overrun = overrun(&port.device);
            port.link_downs = port.device.get(host::CARRIER_DOWN).copied().unwrap_or(0);
            port.link_up = self.lanes.is_link_up(index);
            (port.clock, port.clock_error) = self.receive_clock(index);
            port.clock_faults = later_faults[index].saturating_sub(clock_faults[index]);
        }
        for (stream, judged) in self.streams.iter().zip(&mut outcome.streams) {
            // The transmit time is from the system clock. Without a known offset between the clocks, the difference to the
            // receive time is not a latency.
            if outcome.ports.get(stream.to).is_some_and(|port| port.clock_error.is_none()) {
                judged.remove_latency();
            }
        }
        Ok(outcome)
    }

    /// Returns the clock of the receive times of a port, and the maximum error of the conversion to the system clock.
    fn receive_clock(&mut self, port: usize) -> (String, Option<u64>) {
        let source = self.lanes.parts().0.get(port).map_or(ClockSource::None, |lane| lane.stampers()[0].source());
        let error = match source {
            // The receive time is the time of the poll, from the system clock itself.
            ClockSource::Software | ClockSource::Virtual => Some(0),
            _ => {
                let clocks = self.lanes.clocks(port);
                let clock = clocks.iter().find(|clock| clock.source == source && clock.state == ClockState::Synced);
                clock.map(|clock| clock.error_ns)
            }
        };
        (source.to_string(), error)
    }

    /// Returns how often the clocks of each port have jumped or stopped so far.
    fn clock_faults(&self) -> Vec<u64> {
        let of = |port| self.lanes.clocks(port).iter().map(|clock| clock.jumps + clock.freezes).sum();
        (0..self.lanes.ports().len()).map(of).collect()
    }

    fn run(&mut self, trial: &TrialPlan<'_>, observer: &mut dyn Observer) -> Result<Outcome> {
        let TrialPlan { rates, duration, change } = *trial;
        let (duration, settle, late) = (nanos(duration), nanos(self.options.settle), nanos(self.options.late));
        let longest_settle = settle.saturating_add(late);
        let intervals = Intervals::new(self.options.interval, duration, self.streams.len());
        let Self {
            outboxes,
            inbox,
            senders,
            judges,
            streams,
            clock,
            host_times,
            roots,
            key,
            first_flow,
            stop,
            lanes,
            options,
            ..
        } = self;
        *key = key.wrapping_add(1);
        let key = Key::new(*key);
        let plan = lanes.plan();
        let (burst, idle) = (plan.runtime.burst as usize, plan.runtime.idle);
        let depths: Vec<usize> = plan.ports.iter().map(|port| port.config.tx_depth as usize).collect();
        let names: Vec<String> = plan.ports.iter().map(|port| port.config.name.clone()).collect();
        let core = plan.cores.first().map(|core| core.0);
        let (lanes, pool) = lanes.parts();
        let failed = |port: usize, error: dataplane::error::VerbError| error.on(&names[port]);
        let mut ports = vec![PortOutcome::default(); lanes.len()];
        // Discard the packets that arrived since the last trial, and post receive buffers. If packets arrive all the
        // time, continue after `DISCARD_TIME`. The remaining old packets do not count, because the signatures of the
        // trial have another key.
        let begin = clock.nanos();
        let is_over = || stop.load(Ordering::Relaxed) || clock.nanos().0.saturating_sub(begin.0) > DISCARD_TIME;
        for (port, lane) in lanes.iter_mut().enumerate() {
            loop {
                lane.refill(pool).map_err(|error| failed(port, error))?;
                let received = lane.receive(pool, inbox, burst).map_err(|error| failed(port, error))?;
                inbox.free_into(pool);
                if received == 0 || is_over() {
                    break;
                }
            }
        }
        let before: Vec<(LaneCounters, u64)> =
            lanes.iter().map(|lane| (lane.counters().clone(), lane.sending() as u64)).collect();
        let count = senders.len().max(1) as f64;
        for (index, sender) in senders.iter_mut().enumerate() {
            let rate = rates.get(index).copied().flatten();
            sender.start(key, rate, duration, nanos(options.catch_up), index as f64 / count);
            sender.set_first_flow(*first_flow);
            sender.count_by_time(intervals);
            if let Some((at, rates)) = change {
                sender.change_rate(nanos(at), rates.get(index).copied().flatten());
            }
        }
        let turns = |port: usize| {
            let numbers = senders.iter().zip(streams.iter()).enumerate();
            let of = numbers.filter(|(_, (sender, stream))| sender.is_unlimited() && stream.from == port);
            Turns::new(&of.map(|(number, (_, stream))| (number, stream.weight)).collect::<Vec<_>>())
        };
        let mut turns: Vec<Turns> = (0..lanes.len()).map(turns).collect();
        for (judge, stream) in judges.iter_mut().zip(streams.iter()) {
            judge.start();
            judge.expect(stream.active.0, stream.active.1);
            judge.count_by_time(intervals);
        }
        let mut failures: Vec<Failures> = lanes.iter().map(|lane| Failures::new(&**lane, intervals)).collect();
        let mut watched = IntervalCounts {
            index: 0,
            streams: vec![Point::default(); senders.len()],
            counts: vec![Counts::default(); senders.len()],
        };
        // The core has worked for some milliseconds, so its frequency is no longer that of an idle core.
        let sample = CoreSample::read(roots, core);
        observer.start();
        // Clearing the windows of the judges takes milliseconds. Read the start time after the windows are cleared.
        // Otherwise, the packets that are due while the windows are cleared would count as missed.
        let mut clocks = ClockWatch::start(host_times);
        let waited = cpu_wait();
        let start = clock.nanos();
        let mut receiver = Receiver { streams, judges, key, start, judged: 0, foreign: 0 };
        let (mut loops, mut first, mut longest_pause) = (0u64, 0usize, 0u64);
        let (mut sending, mut stopped, mut last, mut ended) = (true, false, start.0, 0u64);
        let mut last_arrival = start.0;
        loop {
            // Step 1: return the buffers of sent packets.
            // Count new failures at the time of the previous iteration. After the last transmission, count new failures
            // in the last interval.
            let sent_at = if sending { last } else { ended.saturating_sub(1) }.saturating_sub(start.0);
            for ((port, lane), failures) in lanes.iter_mut().enumerate().zip(&mut failures) {
                lane.reap(pool, &mut NoSink).map_err(|error| failed(port, error))?;
                failures.count(&**lane, sent_at);
            }
            // Step 2: send the packets that are due. Each iteration starts with another stream, so that no stream has
            // an advantage. The streams without a rate limit then share the rest of the burst.
            let now = clock.nanos();
            let elapsed = now.0.saturating_sub(start.0);
            let mut moved = 0;
            if sending {
                longest_pause = longest_pause.max(now.0.saturating_sub(last));
                first = if first + 1 < senders.len() { first + 1 } else { 0 };
                for number in (first..senders.len()).chain(0..first) {
                    let (Some(sender), Some(stream)) = (senders.get_mut(number), receiver.streams.get(number)) else {
                        continue;
                    };
                    if sender.is_unlimited() {
                        continue;
                    }
                    let (Some(outbox), Some(lane)) = (outboxes.get_mut(stream.from), lanes.get(stream.from)) else {
                        continue;
                    };
                    let room = depths.get(stream.from).map_or(0, |depth| depth.saturating_sub(lane.sending()));
                    let most = room.min(burst).saturating_sub(outbox.len());
                    sender.send_due(outbox, pool, now, elapsed, most);
                }
                for (port, turns) in turns.iter_mut().enumerate() {
                    let (Some(outbox), Some(lane)) = (outboxes.get_mut(port), lanes.get(port)) else { continue };
                    let room = depths.get(port).map_or(0, |depth| depth.saturating_sub(lane.sending())).min(burst);
                    while outbox.len() < room
                        && let Some(sender) = turns.next().and_then(|number| senders.get_mut(number))
                        && let most = turns.packets().min(room - outbox.len())
                        && sender.send_due(outbox, pool, now, elapsed, most) > 0
                    {
                        turns.advance();
                    }
                }
                for ((outbox, lane), port) in outboxes.iter_mut().zip(lanes.iter_mut()).zip(&mut ports) {
                    if !outbox.is_empty() {
                        moved += outbox.len();
                        port.offered += outbox.len() as u64;
                        lane.transmit(pool, outbox);
                    }
                }
            }
            // Step 3: receive and judge.
            for (port, lane) in lanes.iter_mut().enumerate() {
                let received = lane.receive(pool, inbox, burst).map_err(|error| failed(port, error))?;
                if received > 0 {
                    let (judged, foreign) = (receiver.judged, receiver.foreign);
                    receiver.judge(inbox, port, now, senders);
                    inbox.free_into(pool);
                    moved += received;
                    if let Some(port) = ports.get_mut(port) {
                        port.judged += receiver.judged - judged;
                        port.foreign += receiver.foreign - foreign;
                    }
                    if receiver.judged > judged {
                        last_arrival = now.0;
                    }
                }
                lane.refill(pool).map_err(|error| failed(port, error))?;
            }
            // Step 4: end the transmission, and later the trial.
            last = now.0;
            if sending && (elapsed >= duration || stopped) {
                sending = false;
                senders.iter_mut().for_each(|sender| sender.finish(elapsed));
                let drain = (elapsed / DRAIN_SHARE).max(SHORTEST_DRAIN);
                receiver.judges.iter_mut().for_each(|judge| judge.end_sending(elapsed, drain));
                (ended, last_arrival) = (now.0, now.0);
            }
            if !sending {
                let all_sent = lanes.iter().all(|lane| lane.sending() == 0);
                let is_quiet = now.0.saturating_sub(last_arrival.max(ended)) > settle;
                if (all_sent && is_quiet) || now.0.saturating_sub(ended) > longest_settle {
                    break;
                }
            }
            loops += 1;
            if loops.is_multiple_of(HOUSEKEEPING) {
                for (port, lane) in lanes.iter_mut().enumerate() {
                    lane.housekeep(pool).map_err(|error| failed(port, error))?;
                }
                stopped |= stop.load(Ordering::Relaxed);
                clocks.check_at(now.0);
                // At this time, a packet of the watched interval that has not arrived yet is late.
                let over = (watched.index as u64 + 1).saturating_mul(intervals.length).saturating_add(late);
                if sending && elapsed > over && watched.index + 1 < intervals.count {
                    observe(&mut watched, receiver.streams, senders, receiver.judges, &failures, observer);
                }
            }
            if moved == 0 {
                pause(idle, senders, elapsed, sending);
            }
        }
        let mut clock_steps = clocks.check();
        // Only timestamps of the wall clock depend on the wall clock.
        if !lanes.iter().any(|lane| lane.stampers()[0].source() == ClockSource::DeviceWallclock) {
            clock_steps.wall = 0;
        }
        let duration = ended.saturating_sub(start.0);
        let (streams, judged_streams) = (receiver.streams, receiver.judges);
        for (port, (lane, failures)) in lanes.iter().zip(&mut failures).enumerate() {
            failures.count(&**lane, duration.saturating_sub(1));
            // The send queue is in order, so the packets that are still in the queue are the last packets of the trial.
            let mut waiting = lane.sending() as u64;
            for index in (0..intervals.count).rev() {
                if waiting == 0 {
                    break;
                }
                let of_port = senders.iter().zip(streams).filter(|(_, stream)| stream.from == port);
                let sent: u64 = of_port.filter_map(|(sender, _)| sender.series().get(index)).sum();
                let unsent = waiting.min(sent.saturating_sub(failures.in_interval(index)));
                failures.add(index, unsent);
                waiting -= unsent;
            }
        }
        let used = intervals.count.min(usize::try_from(duration.div_ceil(intervals.length)).unwrap_or(usize::MAX));
        while watched.index < used {
            observe(&mut watched, streams, senders, judged_streams, &failures, observer);
        }
        let mut series = vec![vec![Point::default(); senders.len()]; used];
        for (index, points) in series.iter_mut().enumerate() {
            fill_points(points, index, streams, senders, judged_streams, &failures);
        }
        let outcome = |(number, (sender, judge)): (usize, (&Sender, &mut Judge))| {
            let judgement = judge.finish(sender.sent(), duration);
            let series = series.iter().filter_map(|points| points.get(number).copied()).collect();
            StreamOutcome {
                sent: sender.sent(),
                unsigned: sender.unsigned(),
                missed: sender.missed(),
                pacing: sender.pacing().clone(),
                judgement,
                series,
            }
        };
        let outcomes = senders.iter().zip(judged_streams).enumerate().map(outcome).collect();
        for ((lane, (before, waiting)), port) in lanes.iter().zip(&before).zip(&mut ports) {
            account(&**lane, before, *waiting, port);
        }
        let (elapsed, waited) = (last.saturating_sub(start.0), cpu_wait().saturating_sub(waited));
        Ok(Outcome {
            duration,
            streams: outcomes,
            ports,
            longest_pause,
            elapsed,
            waited,
            core: CoreSample::read(roots, core).since(&sample),
            clock_steps,
            stopped,
            intervals,
        })
    }

    /// Closes the ports.
    ///
    /// # Errors
    /// Returns an error if a link failed during the trials, or if packet buffers are missing.
    pub fn close(self) -> Result<()> {
        let Self { lanes, outboxes, inbox, .. } = self;
        drop((outboxes, inbox));
        let (errors, missing) = lanes.close();
        match errors.into_iter().next() {
            Some(error) => Err(error),
            None if missing > 0 => Err(Error::Memory(format!("{missing} packet buffers are missing"))),
            None => Ok(()),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sets the counts of each stream in an interval.
fn fill_points(
    points: &mut [Point],
    index: usize,
    streams: &[Stream],
    senders: &[Sender],
    judges: &[Judge],
    failures: &[Failures],
) {
    for (point, (sender, judge)) in points.iter_mut().zip(senders.iter().zip(judges)) {
        let sent = sender.series().get(index).copied().unwrap_or(0);
        *point = Point { sent, ..judge.series().get(index).copied().unwrap_or_default() };
    }
    for (port, failures) in failures.iter().enumerate() {
        let failed = failures.in_interval(index);
        if failed > 0 {
            let is_from = |stream: &Stream| stream.from == port;
            let of_port = points.iter().zip(streams).filter(|(_, stream)| is_from(stream));
            let mut shares = Shares::new(failed, of_port.map(|(point, _)| point.lost()).sum());
            for (point, _) in points.iter_mut().zip(streams).filter(|(_, stream)| is_from(stream)) {
                point.tx_failed = shares.next(point.lost());
            }
        }
    }
}

/// Passes the counts of the next interval to the observer.
fn observe(
    watched: &mut IntervalCounts,
    streams: &[Stream],
    senders: &[Sender],
    judges: &[Judge],
    failures: &[Failures],
    observer: &mut dyn Observer,
) {
    fill_points(&mut watched.streams, watched.index, streams, senders, judges, failures);
    for (counts, judge) in watched.counts.iter_mut().zip(judges) {
        *counts = *judge.counts();
    }
    observer.interval(watched);
    watched.index += 1;
}
