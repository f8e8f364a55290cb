//! Where the time of a packet goes: loops that are timed now and then, part by part.

use serde::{Deserialize, Serialize};

/// What a part of the loop costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostReport {
    /// The part: `reap`, `receive`, `transmit` or `refill` of the lanes, the name of a stage, or `all`.
    pub part: String,
    /// Ticks of the processor's counter for each packet that came into the part, on average of the loops that were timed
    /// but the dearest hundredth of them.
    pub ticks: f64,
    /// The same in nanoseconds.
    pub ns: f64,
    /// How many packets a burst had, on average.
    pub burst: f64,
    /// How many bursts were timed.
    pub bursts: u64,
}

/// The costs of parts, by number. Recording does not allocate.
///
/// What was done in a loop is added up together with all loops that cost about as much a packet. So the dearest can be left
/// out as they are, with all their parts, and the parts of the others add up to their whole.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Of each class of loops all parts, and the whole.
    sums: Box<[Sum]>,
    /// Parts, and the whole.
    columns: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    ticks: u64,
    packets: u64,
    bursts: u64,
}

/// Classes of loops for each doubling of the ticks a packet, as a power of two.
const STEPS: u32 = 3;
/// Dearer loops are as dear as this, in ticks a packet.
const MOST: u64 = (1 << 36) - 1;
/// One loop of so many is left out: timer interrupts come to fewer, and other programs on the core.
const DEAREST: u64 = 100;

impl Costs {
    /// Of so many parts.
    pub fn new(parts: usize) -> Self {
        let columns = parts + 1;
        Self { sums: vec![Sum::default(); (class(MOST, 1) + 1) * columns].into_boxed_slice(), columns }
    }

    /// A loop in which so many packets came took so many ticks in each part, for so many packets in it. Of a loop without
    /// packets nothing is recorded.
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

    /// Adds those of another, as of a second worker.
    pub fn add(&mut self, other: &Self) {
        self.sums.iter_mut().zip(&other.sums).for_each(|(sum, other)| *sum = sum.with(other, u64::wrapping_add));
    }

    /// Those that were recorded after an earlier look at the same.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        let both = later.sums.iter_mut().zip(&earlier.sums);
        both.for_each(|(sum, earlier)| *sum = sum.with(earlier, u64::saturating_sub));
        later
    }

    /// As at first: of no loop.
    pub fn clear(&mut self) {
        self.sums.fill(Sum::default());
    }

    /// Those parts that were met, with their names, of which the last is that of the whole. `per_tick`: nanoseconds of a
    /// tick.
    pub fn report<'a>(&self, names: impl IntoIterator<Item = &'a str>, per_tick: f64) -> Vec<CostReport> {
        let met = self.all().into_iter().zip(self.usual()).zip(names).filter(|((all, _), _)| all.packets > 0);
        let report = |((all, [ticks, packets]), part): ((Sum, [f64; 2]), &str)| {
            // What was met in the dearest loops alone cost what it did there.
            let ticks = if packets > 0.0 { ticks / packets } else { all.ticks as f64 / all.packets as f64 };
            let burst = all.packets as f64 / all.bursts as f64;
            CostReport { part: part.to_owned(), ticks, ns: ticks * per_tick, burst, bursts: all.bursts }
        };
        met.map(report).collect()
    }

    /// What all loops come to.
    fn all(&self) -> Vec<Sum> {
        let mut total = vec![Sum::default(); self.columns];
        for class in self.sums.chunks_exact(self.columns) {
            total.iter_mut().zip(class).for_each(|(total, sum)| *total = total.with(sum, u64::wrapping_add));
        }
        total
    }

    /// The ticks and the packets of all loops but the dearest; of the class at the border with the share of its loops.
    fn usual(&self) -> Vec<[f64; 2]> {
        let loops = |class: &[Sum]| class.last().map_or(0, |all| all.bursts);
        let classes = self.sums.chunks_exact(self.columns);
        let all: u64 = classes.clone().map(loops).sum();
        let mut left = all - all.div_ceil(DEAREST).min(all.saturating_sub(1));
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

impl Sum {
    fn with(&self, other: &Self, by: fn(u64, u64) -> u64) -> Self {
        Self {
            ticks: by(self.ticks, other.ticks),
            packets: by(self.packets, other.packets),
            bursts: by(self.bursts, other.bursts),
        }
    }
}

/// The number of the class of a loop that took so many ticks for some packets.
fn class(ticks: u64, packets: u64) -> usize {
    let each = (ticks / packets).min(MOST);
    let shift = (each >> STEPS).checked_ilog2().unwrap_or(0);
    ((u64::from(shift) << STEPS) + (each >> shift)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["receive", "parse", "all"];

    #[test]
    fn classes_follow_one_another() {
        let mut last = 0;
        for ticks in 0..100_000 {
            let class = class(ticks, 1);
            assert!((last..=last + 1).contains(&class), "{ticks}");
            last = class;
        }
        assert_eq!([class(7, 1), class(16, 1), class(35, 2), class(36, 2)], [7, 16, 16, 17]);
        assert_eq!(class(u64::MAX, 1), class(MOST, 1));
    }

    #[test]
    fn parts_add_up_to_the_whole_and_interrupts_are_left_out() {
        let mut costs = Costs::new(2);
        // What is done in every eighth loop counts with an eighth.
        for number in 0..8 * 99 {
            let receive = if number % 8 == 0 { 3200 } else { 320 };
            costs.record(32, &[(receive, 32), (160, 16)]);
        }
        for _ in 0..8 {
            costs.record(32, &[(1_000_000, 32), (160, 16)]);
        }
        let report = costs.report(NAMES, 0.5);
        let told: Vec<_> = report.iter().map(|cost| (&cost.part[..], cost.ticks, cost.ns, cost.burst)).collect();
        assert_eq!(told, [("receive", 21.25, 10.625, 32.0), ("parse", 10.0, 5.0, 16.0), ("all", 26.25, 13.125, 32.0)]);
        assert!(report.iter().all(|cost| cost.bursts == 800), "{report:?}");
        // One in a hundred is left out, however many more there are.
        costs.record(32, &[(1_000_000, 32), (160, 16)]);
        costs.record(32, &[(1_000_000, 32), (160, 16)]);
        let ticks = costs.report(NAMES, 0.5)[0].ticks;
        assert!((21.25 + 35.0..21.25 + 45.0).contains(&ticks), "{ticks}");
    }

    #[test]
    fn a_part_that_the_dearest_loop_alone_met_is_told() {
        let mut costs = Costs::new(2);
        costs.record(1, &[(10, 1), (0, 0)]);
        assert_eq!(costs.report(NAMES, 1.0).iter().map(|cost| cost.ticks).collect::<Vec<_>>(), [10.0, 10.0]);
        costs.record(1, &[(10, 1), (90, 1)]);
        let ticks = costs.report(NAMES, 1.0).iter().map(|cost| (cost.ticks, cost.bursts)).collect::<Vec<_>>();
        assert_eq!(ticks, [(10.0, 2), (90.0, 1), (10.0, 2)]);
    }

    #[test]
    fn those_of_two_workers_and_those_since_add_up() {
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
        assert_eq!(costs.report(NAMES, 0.5)[0].bursts, 4);
        other.clear();
        assert_eq!(other.report(NAMES, 0.5), []);
    }
}
