//! Measures how long each part of the worker loop takes. The stopwatch measures about one iteration in a thousand, and
//! counts only iterations that received packets.

use dataplane_core::clock::HostClock;
use dataplane_core::pipeline::{Observer, Part};
use dataplane_core::telemetry::Costs;

/// The interval between two measured iterations. A measurement costs about a thousand instructions. The interval is
/// prime, so that the measurements do not always meet the same periodic work. For example, work that runs in every
/// eighth iteration is in one eighth of the measurements.
const EVERY: u64 = 1021;
/// The number of the first measured iteration. This number is not a multiple of the housekeeping interval, so the first
/// measured iteration does not directly follow housekeeping.
pub(super) const FIRST: u64 = 128;
/// The number of measurements of the duration of one clock read. The shortest duration is used.
const READS: usize = 1000;

/// The names of the parts before and after the stages.
const BEFORE_STAGES: [&str; 2] = ["reap", "receive"];
const AFTER_STAGES: [&str; 2] = ["transmit", "refill"];

/// Measures the parts of one loop iteration: the work of each stage, and the work of the lanes before and after the
/// stages. A lane is one worker's queue pair and completion queues on one port.
pub(crate) struct Stopwatch {
    clock: HostClock,
    /// The duration of one clock read, in ticks.
    read: u64,
    /// The index of the current part.
    open: usize,
    /// The value of the clock at the last call of `begin` or `close`, in ticks.
    since: u64,
    /// The ticks and the packets of each part in this iteration.
    laps: Box<[(u64, u64)]>,
    costs: Costs,
}

impl Stopwatch {
    pub(crate) fn new(clock: &HostClock, stages: usize) -> Self {
        let now = || clock.now().0;
        let read = (0..READS).map(|_| now().abs_diff(now())).min().unwrap_or(0);
        let laps = vec![(0, 0); BEFORE_STAGES.len() + stages + AFTER_STAGES.len()].into_boxed_slice();
        let costs = Self::empty_costs(stages);
        Self { clock: clock.clone(), read, open: 0, since: 0, laps, costs }
    }

    /// Returns the name of each part and whether the part is a stage, in the order of their indices. The last name,
    /// `all`, is for the whole iteration.
    pub(crate) fn parts<'a>(stages: impl Iterator<Item = &'a str>) -> impl Iterator<Item = (&'a str, bool)> {
        let of_loop = |name: &'a str| (name, false);
        let after = AFTER_STAGES.into_iter().chain(["all"]).map(of_loop);
        BEFORE_STAGES.into_iter().map(of_loop).chain(stages.map(|name| (name, true))).chain(after)
    }

    /// Returns the number of stages of these costs.
    pub(crate) fn stages_of(costs: &Costs) -> usize {
        costs.parts() - BEFORE_STAGES.len() - AFTER_STAGES.len()
    }

    /// Returns empty costs for this number of stages.
    pub(crate) fn empty_costs(stages: usize) -> Costs {
        Costs::new(BEFORE_STAGES.len() + stages + AFTER_STAGES.len())
    }

    pub(crate) fn costs(&mut self) -> &mut Costs {
        &mut self.costs
    }

    /// Returns the number of the next measured iteration. `number` is the last measured iteration, and `received` is
    /// the number of packets that this iteration received.
    pub(crate) const fn next(number: u64, received: u64) -> u64 {
        // If nothing was received, measure the following iterations until one receives packets.
        if received == 0 { number + 1 } else { number + EVERY }
    }

    pub(crate) fn begin(&mut self) {
        self.laps.fill((0, 0));
        (self.open, self.since) = (0, self.clock.now().0);
    }

    /// Ends the measurement of an iteration that received this number of packets.
    pub(crate) fn end(&mut self, received: u64) {
        self.close();
        let after = self.laps.len() - AFTER_STAGES.len();
        for lanes in [0..BEFORE_STAGES.len(), after..self.laps.len()] {
            self.laps[lanes].iter_mut().for_each(|(_, packets)| *packets = received);
        }
        self.costs.record(received, &self.laps);
    }

    /// Adds the time since the last call of `begin` or `close` to the current part.
    fn close(&mut self) {
        let now = self.clock.now().0;
        if let Some((ticks, _)) = self.laps.get_mut(self.open) {
            *ticks += now.saturating_sub(self.since).saturating_sub(self.read);
        }
        self.since = now;
    }
}

impl Observer for Stopwatch {
    const WATCHES: bool = false;

    fn enters(&mut self, part: Part) {
        self.close();
        let after = self.laps.len() - AFTER_STAGES.len();
        let (open, entered) = match part {
            Part::Reap => (0, 0),
            Part::Receive => (1, 0),
            Part::Stage(place, packets) => (BEFORE_STAGES.len() + place, packets as u64),
            Part::Transmit => (after, 0),
            Part::Refill => (after + 1, 0),
        };
        self.open = open;
        if let Some((_, packets)) = self.laps.get_mut(open) {
            *packets += entered;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::units::Nanos;

    #[test]
    fn time_is_charged_to_the_part_entered_last() {
        let clock = HostClock::manual();
        let mut watch = Stopwatch::new(&clock, 2);
        let mut turn = |received: u64| {
            watch.begin();
            let parts =
                [Part::Reap, Part::Receive, Part::Stage(0, 10), Part::Stage(1, 4), Part::Transmit, Part::Refill];
            for (ticks, part) in (1..).zip(parts) {
                watch.enters(part);
                clock.advance(Nanos(ticks * 100));
            }
            watch.end(received);
        };
        turn(0);
        turn(10);
        assert_eq!([Stopwatch::next(128, 0), Stopwatch::next(129, 10)], [129, 1150]);
        let report = watch.costs().report(Stopwatch::parts(["parse", "ttl"].into_iter()), 1.0);
        let measured: Vec<(&str, f64)> = report.iter().map(|cost| (cost.part.as_str(), cost.ticks)).collect();
        // `ttl`: 400 ticks for 4 packets. Every other part: its ticks for 10 packets.
        let (lanes, stages) = ([("reap", 10.0), ("receive", 20.0)], [("parse", 30.0), ("ttl", 100.0)]);
        let after = [("transmit", 50.0), ("refill", 60.0), ("all", 210.0)];
        assert_eq!(measured, [&lanes[..], &stages, &after].concat());
        assert!(report.iter().all(|cost| cost.bursts == 1), "{report:?}");
    }
}
