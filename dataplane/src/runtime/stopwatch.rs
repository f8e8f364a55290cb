//! Times one loop in a thousand, part by part, where packets came.

use crate::clock::HostClock;
use crate::pipeline::{Observer, Part};
use crate::telemetry::Costs;

/// Of so many loops one is timed. That costs some thousand instructions. It is a prime: what is done in every eighth loop, such
/// as taking back what was sent, is done in an eighth of those that are timed.
const EVERY: u64 = 1021;
/// The first of them: not one that follows the slow things that loops do now and then.
pub(super) const FIRST: u64 = 128;
/// Reads of the clock by which it is found out what one costs.
const READS: usize = 1000;

/// The parts of the lanes before the stages, and behind them.
const BEFORE: [&str; 2] = ["reap", "receive"];
const BEHIND: [&str; 2] = ["transmit", "refill"];

/// Watches a walk, and what lanes do before and after it.
pub(crate) struct Stopwatch {
    clock: HostClock,
    /// What a read of the clock takes, in ticks.
    read: u64,
    /// The part that the time goes to, since when, and what each had of this loop: ticks and packets.
    open: usize,
    since: u64,
    laps: Box<[(u64, u64)]>,
    costs: Costs,
}

impl Stopwatch {
    pub(crate) fn new(clock: &HostClock, stages: usize) -> Self {
        let now = || clock.now().0;
        let read = (0..READS).map(|_| now().abs_diff(now())).min().unwrap_or(0);
        let laps = vec![(0, 0); BEFORE.len() + stages + BEHIND.len()].into_boxed_slice();
        let costs = Self::none(stages);
        Self { clock: clock.clone(), read, open: 0, since: 0, laps, costs }
    }

    /// The names of the parts, by number.
    pub(crate) fn parts<'a>(stages: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
        BEFORE.into_iter().chain(stages).chain(BEHIND).chain(["all"])
    }

    /// The costs of no burst, with so many stages.
    pub(crate) fn none(stages: usize) -> Costs {
        Costs::new(BEFORE.len() + stages + BEHIND.len())
    }

    pub(crate) fn costs(&mut self) -> &mut Costs {
        &mut self.costs
    }

    /// The number of the loop that is timed after that with this number, of which came what did.
    pub(crate) const fn next(number: u64, received: u64) -> u64 {
        // Where nothing came, those that follow are timed until something does.
        if received == 0 { number + 1 } else { number + EVERY }
    }

    pub(crate) fn begin(&mut self) {
        self.laps.fill((0, 0));
        (self.open, self.since) = (0, self.clock.now().0);
    }

    /// Ends the loop, in which so many packets came.
    pub(crate) fn end(&mut self, received: u64) {
        self.close();
        let behind = self.laps.len() - BEHIND.len();
        for lanes in [0..BEFORE.len(), behind..self.laps.len()] {
            self.laps[lanes].iter_mut().for_each(|(_, packets)| *packets = received);
        }
        self.costs.record(received, &self.laps);
    }

    /// The time up to now is that of the open part.
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
        let behind = self.laps.len() - BEHIND.len();
        let (open, entered) = match part {
            Part::Reap => (0, 0),
            Part::Receive => (1, 0),
            Part::Stage(place, packets) => (BEFORE.len() + place, packets as u64),
            Part::Transmit => (behind, 0),
            Part::Refill => (behind + 1, 0),
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
    use crate::units::Nanos;

    #[test]
    fn time_goes_to_the_part_that_was_entered_last() {
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
        let told: Vec<(&str, f64)> = report.iter().map(|cost| (cost.part.as_str(), cost.ticks)).collect();
        // 400 ticks for four packets in `ttl`, and ten for the others.
        let (lanes, stages) = ([("reap", 10.0), ("receive", 20.0)], [("parse", 30.0), ("ttl", 100.0)]);
        let behind = [("transmit", 50.0), ("refill", 60.0), ("all", 210.0)];
        assert_eq!(told, [&lanes[..], &stages, &behind].concat());
        assert!(report.iter().all(|cost| cost.bursts == 1), "{report:?}");
    }
}
