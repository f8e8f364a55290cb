//! Where the time of a packet goes: bursts that are timed now and then, part by part.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// What a part of the loop costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostReport {
    /// The part: `reap`, `receive`, `transmit` or `refill` of the lanes, the name of a stage, or `all`.
    pub part: String,
    /// Half of the bursts took no more, in ticks of the processor's counter for each packet that came into the part.
    pub ticks: f64,
    /// The same in nanoseconds.
    pub ns: f64,
    /// How many packets a burst had, on average.
    pub burst: f64,
    /// How many bursts were timed.
    pub bursts: u64,
}

/// The costs of parts, by number. Recording does not allocate.
#[derive(Clone, Debug)]
pub struct Costs {
    parts: Box<[Cost]>,
}

#[derive(Clone, Debug)]
struct Cost {
    /// In [`UNIT`]s of a tick.
    ticks: Histogram<u32>,
    packets: u64,
}

/// Parts of a tick that are told apart.
const UNIT: f64 = 16.0;
/// Longer is counted as this, in [`UNIT`]s of a tick.
const MOST: u64 = 1 << 40;

impl Costs {
    /// Of so many parts.
    pub fn new(parts: usize) -> Self {
        let ticks = Histogram::new_with_bounds(1, MOST, 2).expect("1 to 2^40 at 2 digits are valid bounds");
        Self { parts: vec![Cost { ticks, packets: 0 }; parts].into_boxed_slice() }
    }

    /// A burst of so many packets took so many ticks in a part.
    pub fn record(&mut self, part: usize, ticks: u64, packets: u64) {
        if let Some(cost) = self.parts.get_mut(part).filter(|_| packets > 0) {
            let each = (ticks as f64 * UNIT / packets as f64).round() as u64;
            cost.ticks.saturating_record(each.max(1));
            cost.packets += packets;
        }
    }

    /// Adds those of another, as of a second worker.
    pub fn add(&mut self, other: &Self) {
        for (cost, other) in self.parts.iter_mut().zip(&other.parts) {
            // Both have the bounds of `new`, so it cannot fail.
            let _ = cost.ticks.add(&other.ticks);
            cost.packets += other.packets;
        }
    }

    /// Those that were recorded after an earlier look at the same.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        for (cost, earlier) in later.parts.iter_mut().zip(&earlier.parts) {
            // Of the same bounds, and no count was more then: it cannot fail.
            let _ = cost.ticks.subtract(&earlier.ticks);
            cost.packets = cost.packets.saturating_sub(earlier.packets);
        }
        later
    }

    /// As at first: of no burst.
    pub fn clear(&mut self) {
        for cost in &mut self.parts {
            cost.ticks.reset();
            cost.packets = 0;
        }
    }

    /// Those parts that were met, with their names. `per_tick`: nanoseconds of a tick.
    pub fn report<'a>(&self, names: impl IntoIterator<Item = &'a str>, per_tick: f64) -> Vec<CostReport> {
        let met = self.parts.iter().zip(names).filter(|(cost, _)| !cost.ticks.is_empty());
        let report = |(cost, part): (&Cost, &str)| {
            let ticks = cost.ticks.value_at_quantile(0.5) as f64 / UNIT;
            let bursts = cost.ticks.len();
            let burst = cost.packets as f64 / bursts as f64;
            CostReport { part: part.to_owned(), ticks, ns: ticks * per_tick, burst, bursts }
        };
        met.map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_bursts_cost_no_more() {
        let (mut costs, mut other) = (Costs::new(3), Costs::new(3));
        for ticks in [320, 640, 1_000_000] {
            costs.record(0, ticks, 32);
        }
        other.record(0, 640, 32);
        other.record(0, 640, 32);
        other.record(2, 100, 16);
        other.record(2, 100, 0);
        other.record(7, 100, 1);
        let before = costs.clone();
        costs.add(&other);
        let names = ["receive", "parse", "all"];
        assert_eq!(costs.since(&before).report(names, 0.5), other.report(names, 0.5));
        assert_eq!(costs.since(&costs).report(names, 0.5), []);
        other.clear();
        assert_eq!(other.report(names, 0.5), []);
        let report = costs.report(["receive", "parse", "all"], 0.5);
        let [receive, all] = &report[..] else { panic!("{report:?}") };
        assert_eq!((&receive.part[..], receive.bursts, receive.burst), ("receive", 5, 32.0));
        assert_eq!((receive.ticks.round(), receive.ns.round()), (20.0, 10.0));
        assert_eq!((&all.part[..], all.bursts, all.ticks.round()), ("all", 1, 6.0));
    }
}
