//! The time per packet in each part of the worker loop, measured in a sample of the loops.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The cost of one part of the loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CostReport {
    /// The name of the part: a step of the lanes (`reap`, `receive`, `transmit` or `refill`), the name of a stage, or
    /// `all` for the total.
    pub part: String,
    /// Whether the part is a stage. A stage can have the same name as another part.
    #[serde(default)]
    pub is_stage: bool,
    /// The average time in clock ticks for each packet that entered the part. The slowest 1 % of the measured loops is
    /// excluded.
    pub ticks: f64,
    /// The same average in nanoseconds.
    pub ns: f64,
    /// The average number of packets that entered the part in one loop.
    pub burst: f64,
    /// The number of measured loops in which packets entered the part.
    pub bursts: u64,
    /// Whether fewer than [`CostReport::NEARLY_IDLE`] packets entered the part in one loop on average. The caches are
    /// then cold, and few packets share the fixed cost of a loop, so the time per packet is longer than under load.
    #[serde(default)]
    pub nearly_idle: bool,
    /// Whether packets entered the part in fewer than [`CostReport::FEW_BURSTS`] measured loops. An interrupt in a
    /// single loop can then change the average noticeably.
    #[serde(default)]
    pub few_bursts: bool,
}

impl CostReport {
    /// The average number of packets per loop below which a part counts as nearly idle.
    pub const NEARLY_IDLE: f64 = 4.0;

    /// The number of measured loops below which an average is uncertain. With fewer loops, the exclusion of the slowest
    /// 1 % removes at most one loop.
    pub const FEW_BURSTS: u64 = 100;

    /// Returns the cost of the stage with this name.
    pub fn of_stage<'a>(costs: &'a [Self], stage: &str) -> Option<&'a Self> {
        costs.iter().find(|cost| cost.is_stage && cost.part == stage)
    }
}

/// The costs of the parts, by index. Recording does not allocate.
///
/// Loops with a similar cost per packet are summed in one class. A report excludes whole loops, not single parts of a
/// loop. The costs of the parts therefore still add up to the total.
#[derive(Clone, Debug)]
pub struct Costs {
    /// For each class of loops, one sum for each part and one sum for the total.
    sums: Box<[CostSum]>,
    /// The number of parts plus one for the total.
    columns: usize,
}

/// The sum of the costs of a part over several measured loops, such as the loops of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostSum {
    /// The time in clock ticks.
    pub ticks: u64,
    /// The packets that entered the part.
    pub packets: u64,
    /// The number of loops in which packets entered the part.
    pub bursts: u64,
}

/// Each doubling of the ticks per packet is divided into 2^`STEPS` classes. Below 2^`STEPS` ticks per packet, each
/// number of ticks has its own class.
const STEPS: u32 = 3;
/// The maximum cost in ticks per packet. A loop with a higher cost counts as a loop with this cost.
const MAX_TICKS: u64 = (1 << 36) - 1;
/// A report excludes the slowest loops: one in `EXCLUDED_ONE_IN`. Timer interrupts and other programs on the core slow
/// down fewer than one loop in `EXCLUDED_ONE_IN`.
const EXCLUDED_ONE_IN: u64 = 100;

impl Costs {
    /// Creates the costs of `parts` parts.
    pub fn new(parts: usize) -> Self {
        let columns = parts + 1;
        Self { sums: vec![CostSum::default(); (class(MAX_TICKS, 1) + 1) * columns].into_boxed_slice(), columns }
    }

    /// Returns the number of parts.
    pub fn parts(&self) -> usize {
        self.columns - 1
    }

    /// Records a loop that received `received` packets. `parts` has the ticks and the packets of each part. A loop
    /// that received no packets is ignored.
    pub fn record(&mut self, received: u64, parts: &[(u64, u64)]) {
        if received == 0 {
            return;
        }
        let ticks = parts.iter().map(|(ticks, _)| ticks).sum();
        let sums = self.sums.chunks_exact_mut(self.columns).nth(class(ticks, received)).into_iter().flatten();
        for (sum, (ticks, packets)) in sums.zip(parts.iter().chain([&(ticks, received)])) {
            sum.ticks += ticks;
            sum.packets += packets;
            sum.bursts += u64::from(*packets > 0);
        }
    }

    /// Adds other costs, such as the costs of a second worker.
    pub fn add(&mut self, other: &Self) {
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, other)| *sum = sum.with(other, u64::wrapping_add));
    }

    /// Returns the costs for another list of parts. `from` has one element for each part of the new list: the index of
    /// the old part whose costs the new part takes over, or `None` if the new part starts without costs. The total does
    /// not change.
    #[must_use]
    pub fn with_parts(&self, from: &[Option<usize>]) -> Self {
        let mut costs = Self::new(from.len());
        let rows = costs.sums.chunks_exact_mut(from.len() + 1).zip(self.sums.chunks_exact(self.columns));
        for (new, old) in rows {
            let parts = from.iter().map(|from| from.filter(|from| *from + 1 < self.columns));
            for (new, from) in new.iter_mut().zip(parts.chain([Some(self.columns - 1)])) {
                *new = from.and_then(|from| old.get(from)).copied().unwrap_or_default();
            }
        }
        costs
    }

    /// Returns the costs that were recorded after `earlier`, which is an earlier copy of these costs.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        let both = later.sums.iter_mut().zip(&earlier.sums);
        both.for_each(|(sum, earlier)| *sum = sum.with(earlier, u64::saturating_sub));
        later
    }

    /// Removes all recorded loops.
    pub fn clear(&mut self) {
        self.sums.fill(CostSum::default());
    }

    /// Returns the costs of all parts that handled packets. `names` has the name of each part by index and whether the
    /// part is a stage, and then the name of the total. `per_tick` is the duration of a tick in nanoseconds.
    pub fn report<'a>(&self, names: impl IntoIterator<Item = (&'a str, bool)>, per_tick: f64) -> Vec<CostReport> {
        let seen =
            self.sums().into_iter().zip(self.without_slowest()).zip(names).filter(|((all, _), _)| all.packets > 0);
        let report = |((all, [ticks, packets]), (part, is_stage)): ((CostSum, [f64; 2]), (&str, bool))| {
            // A part that occurred only in the excluded loops is reported with its cost in these loops.
            let ticks = if packets > 0.0 { ticks / packets } else { all.ticks as f64 / all.packets as f64 };
            let burst = all.packets as f64 / all.bursts as f64;
            CostReport {
                part: part.to_owned(),
                is_stage,
                ticks,
                ns: ticks * per_tick,
                burst,
                bursts: all.bursts,
                nearly_idle: burst < CostReport::NEARLY_IDLE,
                few_bursts: all.bursts < CostReport::FEW_BURSTS,
            }
        };
        seen.map(report).collect()
    }

    /// Returns the sums over all loops, for each part by index, and then for the total.
    pub fn sums(&self) -> Vec<CostSum> {
        let mut total = vec![CostSum::default(); self.columns];
        for class in self.sums.chunks_exact(self.columns) {
            total.iter_mut().zip(class).for_each(|(total, sum)| *total = total.with(sum, u64::wrapping_add));
        }
        total
    }

    /// Returns the ticks and packets of all loops except the slowest. If only some loops of a class are excluded, the
    /// sums of the class are scaled to the share of the remaining loops.
    fn without_slowest(&self) -> Vec<[f64; 2]> {
        let loops = |class: &[CostSum]| class.last().map_or(0, |all| all.bursts);
        let classes = self.sums.chunks_exact(self.columns);
        let all: u64 = classes.clone().map(loops).sum();
        let mut left = all - all.div_ceil(EXCLUDED_ONE_IN).min(all.saturating_sub(1));
        let mut total = vec![[0.0; 2]; self.columns];
        for class in classes {
            let taken = loops(class).min(left);
            left -= taken;
            let share = taken as f64 / loops(class).max(1) as f64;
            for ([ticks, packets], sum) in total.iter_mut().zip(class) {
                *ticks += sum.ticks as f64 * share;
                *packets += sum.packets as f64 * share;
            }
        }
        total
    }
}

impl CostSum {
    fn with(&self, other: &Self, by: fn(u64, u64) -> u64) -> Self {
        Self {
            ticks: by(self.ticks, other.ticks),
            packets: by(self.packets, other.packets),
            bursts: by(self.bursts, other.bursts),
        }
    }
}

/// Returns the class index of a loop that took `ticks` ticks for `packets` packets.
fn class(ticks: u64, packets: u64) -> usize {
    let each = (ticks / packets).min(MAX_TICKS);
    let shift = (each >> STEPS).checked_ilog2().unwrap_or(0);
    ((u64::from(shift) << STEPS) + (each >> shift)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [(&str, bool); 3] = [("receive", false), ("parse", true), ("all", false)];

    #[test]
    fn class_indexes_have_no_gaps() {
        let mut last = 0;
        for ticks in 0..100_000 {
            let class = class(ticks, 1);
            assert!((last..=last + 1).contains(&class), "{ticks}");
            last = class;
        }
        assert_eq!([class(7, 1), class(16, 1), class(35, 2), class(36, 2)], [7, 16, 16, 17]);
        assert_eq!(class(u64::MAX, 1), class(MAX_TICKS, 1));
    }

    #[test]
    fn parts_add_up_to_the_total_without_the_slowest_loops() {
        let mut costs = Costs::new(2);
        // A cost that occurs in every eighth loop adds one eighth of this cost to the average.
        for number in 0..8 * 99 {
            let receive = if number % 8 == 0 { 3200 } else { 320 };
            costs.record(32, &[(receive, 32), (160, 16)]);
        }
        for _ in 0..8 {
            costs.record(32, &[(1_000_000, 32), (160, 16)]);
        }
        let report = costs.report(NAMES, 0.5);
        let rows: Vec<_> = report.iter().map(|cost| (&cost.part[..], cost.ticks, cost.ns, cost.burst)).collect();
        assert_eq!(rows, [("receive", 21.25, 10.625, 32.0), ("parse", 10.0, 5.0, 16.0), ("all", 26.25, 13.125, 32.0)]);
        assert!(report.iter().all(|cost| cost.bursts == 800 && !cost.nearly_idle && !cost.few_bursts), "{report:?}");
        // Only one loop in a hundred is excluded, even if more loops are slow.
        costs.record(32, &[(1_000_000, 32), (160, 16)]);
        costs.record(32, &[(1_000_000, 32), (160, 16)]);
        let ticks = costs.report(NAMES, 0.5)[0].ticks;
        assert!((21.25 + 35.0..21.25 + 45.0).contains(&ticks), "{ticks}");
    }

    #[test]
    fn part_that_occurs_only_in_excluded_loops_is_reported() {
        let mut costs = Costs::new(2);
        costs.record(1, &[(10, 1), (0, 0)]);
        let report = costs.report(NAMES, 1.0);
        assert_eq!(report.iter().map(|cost| (cost.ticks, cost.nearly_idle)).collect::<Vec<_>>(), [(10.0, true); 2]);
        costs.record(1, &[(10, 1), (90, 1)]);
        let ticks = costs.report(NAMES, 1.0).iter().map(|cost| (cost.ticks, cost.bursts)).collect::<Vec<_>>();
        assert_eq!(ticks, [(10.0, 2), (90.0, 1), (10.0, 2)]);
    }

    #[test]
    fn sums_and_differences_match_the_recorded_loops() {
        let (mut costs, mut other) = (Costs::new(2), Costs::new(2));
        for ticks in [320, 640, 1_000_000] {
            costs.record(32, &[(ticks, 32), (0, 0)]);
        }
        other.record(32, &[(640, 32), (100, 16)]);
        other.record(0, &[(640, 0), (100, 0)]);
        let before = costs.clone();
        costs.add(&other);
        assert_eq!(costs.since(&before).report(NAMES, 0.5), other.report(NAMES, 0.5));
        assert_eq!(costs.since(&costs).report(NAMES, 0.5), []);
        let receive = costs.report(NAMES, 0.5).remove(0);
        assert_eq!((receive.bursts, receive.few_bursts), (4, true));
        other.clear();
        assert_eq!(other.report(NAMES, 0.5), []);
    }
}
