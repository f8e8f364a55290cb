//! Latency in a histogram of fixed size.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::clock::{ClockSource, Stamp};
use crate::telemetry::LatencyReport;

/// Nanoseconds from receive stamp to send completion stamp, per packet: within a hundredth, and never less than it was.
///
/// They are counted in the ranges that a histogram of two digits has, by the few instructions that this takes; the histogram
/// itself is made when somebody asks for percentiles. With a third digit the counters that a worker comes by in a run are some
/// ten times as many, and take the first-level cache from its packets.
#[derive(Clone, Debug)]
pub struct Latency {
    /// How many packets took a time of each range.
    counts: Box<[u64; RANGES]>,
    /// How many packets were measured by each clock.
    by_source: [u64; SOURCES],
    /// How many had stamps of different clocks.
    unmeasured: u64,
}

const SOURCES: usize = ClockSource::ALL.len();
const RANGES: usize = range(Latency::MOST) + 1;

/// Below 256 nanoseconds each is a range of its own, and from there on each power of two has 128 of equal size.
const BITS: u32 = 8;

/// The number of the range that so many nanoseconds are in.
#[inline]
const fn range(nanos: u64) -> usize {
    let size = (nanos | ((1 << BITS) - 1)).ilog2() + 1 - BITS;
    ((size as usize) << (BITS - 1)) + (nanos >> size) as usize
}

/// The fewest nanoseconds of a range.
const fn least(range: usize) -> u64 {
    let size = (range >> (BITS - 1)).saturating_sub(1);
    ((range - (size << (BITS - 1))) as u64) << size
}

impl Latency {
    /// Longer is counted as this: a minute, in nanoseconds.
    pub const MOST: u64 = 60_000_000_000;

    /// Of no packet. It never grows, so recording does not allocate.
    pub fn new() -> Self {
        Self { counts: Box::new([0; RANGES]), by_source: [0; SOURCES], unmeasured: 0 }
    }

    /// So many packets that have these stamps: one step, however many they are. Between stamps of different clocks there
    /// is no time that could be told.
    #[inline]
    pub fn record(&mut self, from: Stamp, to: Stamp, packets: u64) {
        match to.since(from) {
            Some(nanos) => {
                self.counts[range(nanos.0.min(Self::MOST))] += packets;
                self.by_source[to.source() as usize] += packets;
            }
            None if from != Stamp::NONE && to != Stamp::NONE => self.unmeasured += packets,
            None => {}
        }
    }

    /// Adds another, as of a second worker.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&*other.counts).for_each(|(sum, packets)| *sum += packets);
        self.by_source.iter_mut().zip(other.by_source).for_each(|(sum, packets)| *sum += packets);
        self.unmeasured += other.unmeasured;
    }

    /// Those that were recorded after an earlier look at the same.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        later.counts.iter_mut().zip(&*earlier.counts).for_each(|(sum, packets)| *sum = sum.saturating_sub(*packets));
        later.by_source.iter_mut().zip(earlier.by_source).for_each(|(sum, packets)| *sum = sum.saturating_sub(packets));
        later.unmeasured = later.unmeasured.saturating_sub(earlier.unmeasured);
        later
    }

    /// As at first: of no packet.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.by_source, self.unmeasured) = ([0; SOURCES], 0);
    }

    /// What has been counted, as a histogram of the same ranges.
    fn histogram(&self) -> Histogram<u64> {
        let histogram = Histogram::new_with_bounds(1, Self::MOST, 2);
        let mut histogram = histogram.expect("1 to a minute at 2 digits are valid bounds");
        for (range, packets) in self.counts.iter().enumerate().filter(|(_, packets)| **packets > 0) {
            histogram.saturating_record_n(least(range), *packets);
        }
        histogram
    }

    /// The percentiles, with the clock that they were measured with, or the clocks.
    pub fn report(&self) -> LatencyReport {
        let histogram = self.histogram();
        let at = |quantile| histogram.value_at_quantile(quantile);
        let by_source = ClockSource::ALL.into_iter().zip(self.by_source).filter(|(_, packets)| *packets > 0);
        let by_source: BTreeMap<ClockSource, u64> = by_source.collect();
        let source = match by_source.len() {
            0 => ClockSource::None,
            1 => by_source.keys().copied().next().unwrap_or(ClockSource::None),
            _ => ClockSource::Mixed,
        };
        LatencyReport {
            count: histogram.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max(),
            source,
            by_source,
            unmeasured: self.unmeasured,
        }
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::Nanos;

    fn stamp(nanos: u64, source: ClockSource) -> Stamp {
        Stamp::new(Nanos(nanos), source)
    }

    #[test]
    fn the_clock_is_named_and_several_are_mixed() {
        let (ticks, software) = (ClockSource::DeviceTicks, ClockSource::Software);
        let mut latency = Latency::new();
        assert_eq!(latency.report().source, ClockSource::None);
        latency.record(Stamp::NONE, Stamp::NONE, 1);
        latency.record(stamp(5, ticks), stamp(15, ticks), 3);
        assert_eq!((latency.report().source, latency.report().count), (ticks, 3));
        // The clock of the device is not believed any more, and a packet is between the two.
        latency.record(stamp(20, ticks), stamp(900, software), 2);
        assert_eq!((latency.report().source, latency.report().unmeasured), (ticks, 2));
        let mut other = Latency::new();
        other.record(stamp(900, software), stamp(950, software), 4);
        let before = latency.clone();
        latency.add(&other);
        assert_eq!(latency.since(&before).report(), other.report());
        other.clear();
        assert_eq!(latency.since(&latency).report(), other.report());
        let report = latency.report();
        assert_eq!((report.source, report.count, report.unmeasured), (ClockSource::Mixed, 7, 2));
        assert_eq!(report.by_source, BTreeMap::from([(ticks, 3), (software, 4)]));
    }

    #[test]
    fn one_step_for_many_equals_many_steps() {
        let (mut at_once, mut singly) = (Latency::new(), Latency::new());
        for (nanos, packets) in [(100, 900), (2_000, 90), (30_000, 9), (Latency::MOST * 2, 1)] {
            let (from, to) = (stamp(7, ClockSource::Software), stamp(7 + nanos, ClockSource::Software));
            at_once.record(from, to, packets);
            (0..packets).for_each(|_| singly.record(from, to, 1));
        }
        let report = at_once.report();
        assert_eq!(report, singly.report());
        assert_eq!((report.count, report.p50), (1_000, 100));
        // Two digits: within a hundredth.
        assert!(report.p99.abs_diff(2_000) <= 20 && report.p999.abs_diff(30_000) <= 300, "{report:?}");
        assert!(report.max >= Latency::MOST);
    }

    proptest! {
        /// Against a histogram that each time is recorded into.
        #[test]
        fn ranges_are_those_of_a_histogram(times in proptest::collection::vec((0..37u32, any::<u64>(), 1..9u64), 1..50)) {
            let mut expected = Histogram::<u64>::new_with_bounds(1, Latency::MOST, 2).unwrap();
            let mut latency = Latency::new();
            for (bits, random, packets) in times {
                let nanos = random & ((1 << bits) - 1);
                expected.saturating_record_n(nanos.min(Latency::MOST), packets);
                latency.record(stamp(7, ClockSource::Software), stamp(7 + nanos, ClockSource::Software), packets);
                prop_assert!(least(range(nanos)) <= nanos && nanos < least(range(nanos) + 1));
            }
            prop_assert_eq!(latency.histogram(), expected);
        }
    }
}
