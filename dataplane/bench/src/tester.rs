//! The tester: sends the streams of one trial after the other, and judges the packets that return.
//!
//! One thread on one core sends and receives on all ports. The loop neither allocates memory nor takes locks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dataplane::clock::HostClock;
use dataplane::config::Idle;
use dataplane::lane::{Lane, LaneCounters, NoSink};
use dataplane::mem::Batch;
use dataplane::runtime::PortLanes;
use dataplane::units::Nanos;
use dataplane::{Error, Result};

use crate::judge::{Arrival, Judge, Judgement, Limits};
use crate::sender::Sender;
use crate::signature::{Found, Key, Signature, ones_sum};
use crate::stream::Stream;

/// The maximum time in which a trial discards packets before its start, in nanoseconds.
const DISCARD_TIME: u64 = 1_000_000_000;
/// The number of iterations between two rounds of housekeeping.
const HOUSEKEEPING: u64 = 256;
/// The time for draining after the last transmission is the duration of the trial divided by this number. With a longer
/// time, packets that wait in a queue of the device would count as throughput.
const DRAIN_SHARE: u64 = 200;
/// The shortest time for draining, in nanoseconds. In a shorter time, the thread of the tester may not run.
const SHORTEST_DRAIN: u64 = 1_000_000;
/// The largest window of a judge, in packets. The memory of a window is 8 bytes per packet.
const MAX_WINDOW: f64 = (1 << 22) as f64;
/// The smallest window of a judge, in packets.
const MIN_WINDOW: f64 = (1 << 14) as f64;
/// The window if the rate is not limited, in packets.
const DEFAULT_WINDOW: usize = 1 << 20;
/// The names of the counters of received frames that were lost because the tester was too slow. The names with `kernel`
/// are the counters of an AF_XDP socket. `kernel_rx_no_buffer` counts events, not frames, so the list does not have it.
const OVERRUNS: [&str; 5] =
    ["rx_out_of_buffer", "rx_missed", "kernel_rx_dropped", "kernel_rx_ring_full", INTERFACE_MISSED];
/// The name in the result for the kernel's counter `rx_missed_errors` of an interface: the NIC had no buffer for the frame.
const INTERFACE_MISSED: &str = "interface_rx_missed_errors";

/// The options of all trials.
#[derive(Clone, Copy, Debug)]
pub struct TesterOptions {
    /// A packet with a higher latency is late.
    pub late: Duration,
    /// A time without arrivals that is longer than this limit is a gap.
    pub gap: Duration,
    /// The trial ends when no packet has arrived for this time after the last transmission.
    pub settle: Duration,
    /// The maximum delay of a packet by the tester. More delayed packets are not sent.
    pub catch_up: Duration,
}

impl Default for TesterOptions {
    fn default() -> Self {
        Self {
            late: Duration::from_secs(1),
            gap: Duration::from_millis(100),
            settle: Duration::from_millis(200),
            catch_up: Duration::from_millis(1),
        }
    }
}

/// The result of a stream in a trial.
#[derive(Clone, Debug)]
pub struct StreamOutcome {
    /// The packets that were passed to the port.
    pub sent: u64,
    /// The packets that were due, but that the tester could not send in time.
    pub missed: u64,
    /// The judgement.
    pub judgement: Judgement,
}

/// The counts of a port in a trial.
#[derive(Clone, Debug, Default)]
pub struct PortOutcome {
    /// Packets that were passed to the port.
    pub offered: u64,
    /// Packets that the device sent.
    pub tx: u64,
    /// Packets that the device did not send.
    pub tx_failed: u64,
    /// Packets that the device received.
    pub rx: u64,
    /// Received packets with a signature of this trial.
    pub judged: u64,
    /// Received packets without a signature of this trial.
    pub foreign: u64,
    /// Packets that the device lost because the tester was too slow to receive them.
    pub overrun: u64,
    /// Counters of the device that changed in the trial.
    pub device: BTreeMap<String, u64>,
    /// Whether the link is up at the end of the trial, if the device reports the state.
    pub link_up: Option<bool>,
}

/// The result of a trial.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The time in which packets were sent, in nanoseconds.
    pub duration: u64,
    /// The streams, in order.
    pub streams: Vec<StreamOutcome>,
    /// The ports, in order.
    pub ports: Vec<PortOutcome>,
    /// The longest time between two iterations of the loop while the tester was sending, in nanoseconds.
    pub longest_pause: u64,
    /// The time from the first transmission until the traffic had settled, in nanoseconds.
    pub elapsed: u64,
    /// The part of `elapsed` in which the thread was ready to run, but had no core.
    pub waited: u64,
    /// Whether the trial was stopped before its end.
    pub stopped: bool,
    /// The clock of the receive times.
    pub clock: String,
}

/// The ports, the streams and their judges.
pub struct Tester {
    // The lanes are last, because the batches belong to their pool.
    outboxes: Vec<Box<Batch>>,
    inbox: Box<Batch>,
    senders: Vec<Sender>,
    judges: Vec<Judge>,
    streams: Vec<Stream>,
    options: TesterOptions,
    clock: HostClock,
    /// The number of the key of the last trial.
    key: u64,
    stop: Arc<AtomicBool>,
    lanes: PortLanes,
}

/// The streams of one port that send as fast as possible. The streams share the port by their weights.
struct Turns {
    /// The position and the number of each stream. The stream with the lowest position is next.
    order: BinaryHeap<Reverse<(u64, usize)>>,
    /// By the number of a stream: the distance of the positions of two packets.
    strides: Vec<u64>,
}

impl Turns {
    /// Creates the turns for the streams with the given numbers and weights.
    fn new(weights: &[(usize, f64)]) -> Self {
        const ONE: f64 = (1u64 << 20) as f64;
        let highest = weights.iter().map(|(_, weight)| *weight).fold(0.0, f64::max);
        let mut strides = vec![1; weights.iter().map(|(number, _)| number + 1).max().unwrap_or(0)];
        for (number, weight) in weights {
            strides[*number] = ((highest / weight * ONE) as u64).max(1);
        }
        let order = weights.iter().map(|(number, _)| Reverse((strides[*number], *number))).collect();
        Self { order, strides }
    }

    /// Returns the stream of the next packet.
    #[inline]
    fn next(&self) -> Option<usize> {
        self.order.peek().map(|Reverse((_, number))| *number)
    }

    /// Notes that the next packet was sent.
    #[inline]
    fn advance(&mut self) {
        if let Some(mut top) = self.order.peek_mut() {
            let Reverse((position, number)) = &mut *top;
            *position = position.saturating_add(self.strides.get(*number).copied().unwrap_or(1));
        }
    }
}

/// The state of the receive side of a trial.
struct Receiver<'a> {
    streams: &'a [Stream],
    judges: &'a mut [Judge],
    key: Key,
    /// The start of the trial on the system clock.
    start: Nanos,
    judged: u64,
    foreign: u64,
}

impl Receiver<'_> {
    /// Judges the packets of a batch that arrived at the port `port`.
    #[inline]
    fn judge(&mut self, batch: &mut Batch, port: usize, now: Nanos, senders: &[Sender]) {
        for packet in batch.iter_mut() {
            let stamp = packet.stamp().nanos();
            let at = if stamp.0 == 0 { now } else { stamp };
            let data = packet.data();
            let found = Signature::find(data, self.key);
            let stream = |found: Found| {
                let stream = self.streams.get(usize::from(found.signature.stream)).filter(|it| it.to == port)?;
                Some((found, stream.filler(found.signature.size)?))
            };
            let Some((Found { signature, offset, repaired }, filler)) = found.and_then(stream) else {
                self.foreign += 1;
                continue;
            };
            let filler = offset.checked_sub(filler).and_then(|start| data.get(start..offset));
            let is_intact = !repaired && filler.is_some_and(|filler| !ones_sum(filler) == signature.filler);
            let latency = at.0.saturating_sub(signature.sent_before(at).0);
            let at = at.0.saturating_sub(self.start.0);
            let arrival = Arrival { sequence: signature.sequence, at, latency, corrupted: !is_intact };
            let number = usize::from(signature.stream);
            if let (Some(judge), Some(sender)) = (self.judges.get_mut(number), senders.get(number)) {
                self.judged += 1;
                judge.arrive(arrival, sender.sent());
            }
        }
    }
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
        let senders = (0..=u8::MAX).zip(&streams).map(|(number, stream)| Sender::new(stream, number)).collect();
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let limits = Limits { late: nanos(options.late), gap: nanos(options.gap) };
        let judge = |rate: &Option<f64>| {
            // Twice the packets that are sent until a packet is late.
            let window =
                rate.map(|rate| (2.0 * rate * options.late.as_secs_f64()).clamp(MIN_WINDOW, MAX_WINDOW) as usize);
            Judge::new(window.unwrap_or(DEFAULT_WINDOW), limits)
        };
        let judges = fastest.iter().map(judge).collect();
        // The first key differs between runs, so that packets of an earlier run do not count.
        let key = clock.nanos().0;
        Self { outboxes, inbox, senders, judges, streams, options, clock, key, stop, lanes }
    }

    /// Returns the streams.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Returns the ports.
    pub fn lanes(&self) -> &PortLanes {
        &self.lanes
    }

    /// Runs a trial. `rates` has the rate of each stream in packets per second, or `None` for as many as possible.
    /// Returns after the traffic has settled.
    ///
    /// # Errors
    /// Returns an error if a port fails.
    pub fn trial(&mut self, rates: &[Option<f64>], duration: Duration) -> Result<Outcome> {
        let counters = |lanes: &PortLanes| -> Vec<BTreeMap<String, u64>> {
            let of = |(port, plan): (usize, &dataplane::config::PortPlan)| {
                let mut counters = lanes.counters(port);
                // A device with its own counter counts these frames already.
                if !counters.contains_key("rx_out_of_buffer") || plan.config.link.is_some() {
                    let missed = plan.config.kernel_interface().and_then(interface_missed);
                    counters.extend(missed.map(|missed| (INTERFACE_MISSED.to_owned(), missed)));
                }
                counters
            };
            lanes.plan().ports.iter().enumerate().map(of).collect()
        };
        let before = counters(&self.lanes);
        let mut outcome = self.run(rates, duration)?;
        let after = counters(&self.lanes);
        for (index, port) in outcome.ports.iter_mut().enumerate() {
            let changed = |(name, value): (&String, &u64)| {
                let change = value.saturating_sub(before[index].get(name).copied().unwrap_or(0));
                (change > 0).then(|| (name.clone(), change))
            };
            port.device = after[index].iter().filter_map(changed).collect();
            port.overrun = overrun(&port.device);
            port.link_up = self.lanes.is_link_up(index);
        }
        Ok(outcome)
    }

    fn run(&mut self, rates: &[Option<f64>], duration: Duration) -> Result<Outcome> {
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let (duration, settle) = (nanos(duration), nanos(self.options.settle));
        let longest_settle = settle.saturating_add(nanos(self.options.late));
        let Self { outboxes, inbox, senders, judges, streams, clock, key, stop, lanes, options } = self;
        *key = key.wrapping_add(1);
        let key = Key::new(*key);
        let plan = lanes.plan();
        let (burst, idle) = (plan.runtime.burst as usize, plan.runtime.idle);
        let depths: Vec<usize> = plan.ports.iter().map(|port| port.config.tx_depth as usize).collect();
        let names: Vec<String> = plan.ports.iter().map(|port| port.config.name.clone()).collect();
        let (lanes, pool) = lanes.parts();
        let failed = |port: usize, error: dataplane::error::VerbError| error.on(&names[port]);
        let mut ports = vec![PortOutcome::default(); lanes.len()];
        // Discard the packets that arrived since the last trial, and post receive buffers. A port can receive packets
        // without an end. The key of the trial then tells these packets from the packets of the trial.
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
        let before: Vec<LaneCounters> = lanes.iter().map(|lane| lane.counters().clone()).collect();
        let count = senders.len().max(1) as f64;
        for (index, sender) in senders.iter_mut().enumerate() {
            let rate = rates.get(index).copied().flatten();
            sender.start(key, rate, duration, nanos(options.catch_up), index as f64 / count);
        }
        let turns = |port: usize| {
            let numbers = senders.iter().zip(streams.iter()).enumerate();
            let of = numbers.filter(|(_, (sender, stream))| sender.is_unlimited() && stream.from == port);
            Turns::new(&of.map(|(number, (_, stream))| (number, stream.weight)).collect::<Vec<_>>())
        };
        let mut turns: Vec<Turns> = (0..lanes.len()).map(turns).collect();
        judges.iter_mut().for_each(Judge::start);
        // Clearing the windows of the judges takes milliseconds. Read the start after that, because packets that are due
        // in this time would count as missed.
        let waited = cpu_wait();
        let start = clock.nanos();
        let mut receiver = Receiver { streams, judges, key, start, judged: 0, foreign: 0 };
        let (mut loops, mut first, mut longest_pause) = (0u64, 0usize, 0u64);
        let (mut sending, mut stopped, mut last, mut ended) = (true, false, start.0, 0);
        let mut last_arrival = start.0;
        loop {
            // Step 1: return the buffers of sent packets.
            for (port, lane) in lanes.iter_mut().enumerate() {
                lane.reap(pool, &mut NoSink).map_err(|error| failed(port, error))?;
            }
            // Step 2: send the packets that are due. The first stream changes, so that no stream has an advantage. The
            // streams without a limit then share the rest.
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
                    while outbox.len() < room.min(burst) && sender.is_due(elapsed) {
                        if !sender.send(outbox, pool, now) {
                            break;
                        }
                    }
                }
                for (port, turns) in turns.iter_mut().enumerate() {
                    let (Some(outbox), Some(lane)) = (outboxes.get_mut(port), lanes.get(port)) else { continue };
                    let room = depths.get(port).map_or(0, |depth| depth.saturating_sub(lane.sending())).min(burst);
                    while outbox.len() < room
                        && let Some(sender) = turns.next().and_then(|number| senders.get_mut(number))
                        && sender.is_due(elapsed)
                        && sender.send(outbox, pool, now)
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
            }
            if moved == 0 {
                pause(idle, senders, elapsed, sending);
            }
        }
        let (judged_streams, duration) = (receiver.judges, ended.saturating_sub(start.0));
        let outcomes = senders.iter().zip(judged_streams).map(|(sender, judge)| StreamOutcome {
            sent: sender.sent(),
            missed: sender.missed(),
            judgement: judge.finish(sender.sent(), duration),
        });
        let outcomes = outcomes.collect();
        for ((lane, before), port) in lanes.iter().zip(&before).zip(&mut ports) {
            account(&**lane, before, port);
        }
        let clock = lanes.first().map_or_else(String::new, |lane| lane.stampers()[0].source().to_string());
        let (elapsed, waited) = (last.saturating_sub(start.0), cpu_wait().saturating_sub(waited));
        Ok(Outcome { duration, streams: outcomes, ports, longest_pause, elapsed, waited, stopped, clock })
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

/// Returns the number of frames that were lost because the tester was too slow. `changes` are the changes of the counters.
fn overrun(changes: &BTreeMap<String, u64>) -> u64 {
    OVERRUNS.iter().filter_map(|name| changes.get(*name)).sum()
}

/// Returns the number of frames for which the NIC of an interface had no buffer, or `None` if the kernel does not count
/// these frames.
fn interface_missed(interface: &str) -> Option<u64> {
    let path = Path::new("/sys/class/net").join(interface).join("statistics/rx_missed_errors");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Sets the counts of a port from the counters of its lane.
fn account(lane: &dyn Lane, before: &LaneCounters, port: &mut PortOutcome) {
    let now = lane.counters();
    let failed = |it: &LaneCounters| it.tx_full + it.tx_errors + it.tx_too_long + it.tx_not_connected + it.stopped;
    port.tx = now.tx - before.tx;
    port.tx_failed = failed(now) - failed(before);
    port.rx = now.rx - before.rx;
}

/// Waits a little after an iteration without packets, as the key `idle` of the config requests.
#[inline]
fn pause(idle: Idle, senders: &[Sender], elapsed: u64, sending: bool) {
    /// The longest sleep. A packet that arrives may wait this long.
    const LONGEST: u64 = 50_000;
    /// A shorter sleep would take longer than requested.
    const SHORTEST: u64 = 10_000;
    match idle {
        Idle::Spin => {}
        Idle::Pause => (0..16).for_each(|_| std::hint::spin_loop()),
        Idle::Sleep | Idle::Adaptive => {
            let next = senders.iter().filter_map(Sender::next_due).min().filter(|_| sending);
            match next.map_or(LONGEST, |next| next.saturating_sub(elapsed)).min(LONGEST) {
                left @ SHORTEST.. => thread::sleep(Duration::from_nanos(left)),
                _ => thread::yield_now(),
            }
        }
    }
}

/// Returns the time in nanoseconds in which this thread was ready to run but had no core (proc_pid_schedstat(5)).
/// Returns 0 if the kernel does not report this time.
fn cpu_wait() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_an_af_xdp_socket_and_of_the_nic_are_overrun() {
        let changes = [
            ("rx_packets", 100),
            ("kernel_rx_dropped", 1),
            ("kernel_rx_ring_full", 2),
            ("kernel_rx_no_buffer", 4),
            ("interface_rx_missed_errors", 8),
        ];
        let changes = changes.map(|(name, count)| (name.to_owned(), count)).into();
        assert_eq!(overrun(&changes), 11);
    }

    #[test]
    fn interface_without_the_counter_has_no_missed_frames() {
        assert_eq!(interface_missed("lo"), Some(0));
        assert_eq!(interface_missed("no such interface"), None);
    }
}
