//! A latency histogram of fixed size.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::clock::{ClockSource, Stamp};
use crate::telemetry::LatencyReport;

/// The time of each packet from receive stamp to send completion stamp, in nanoseconds. For times up to one minute, a
/// reported value is never below the true value, and at most 1 % above the true value. Longer times are reported as one
/// minute.
///
/// Recording increments the counter of a value range, which takes only a few instructions. The ranges are the ranges of
/// a histogram with two significant digits. The histogram itself is built when a report is requested. With a third
/// digit, a worker would touch about ten times as many counters. These counters would displace packets from the
/// first-level cache.
#[derive(Clone, Debug)]
pub struct Latency {
    /// The number of packets in each value range.
    counts: Box<[u64; RANGES]>,
    /// The number of packets measured by each clock.
    by_source: [u64; SOURCES],
    /// The number of packets whose two stamps are from different clocks.
    unmeasured: u64,
}

const SOURCES: usize = ClockSource::ALL.len();
const RANGES: usize = range(Latency::MAX_NANOS) + 1;

/// Each value below 256 ns (8 bits) has its own range. From 256 ns, each power of two has 128 ranges of equal size.
const BITS: u32 = 8;

/// Returns the index of the range of a value in nanoseconds.
#[inline]
const fn range(nanos: u64) -> usize {
    let size = (nanos | ((1 << BITS) - 1)).ilog2() + 1 - BITS;
    ((size as usize) << (BITS - 1)) + (nanos >> size) as usize
}

/// Returns the lowest value of a range in nanoseconds.
const fn range_start(range: usize) -> u64 {
    let size = (range >> (BITS - 1)).saturating_sub(1);
    ((range - (size << (BITS - 1))) as u64) << size
}

impl Latency {
    /// The maximum value in nanoseconds: one minute. Longer times count as this value.
    pub const MAX_NANOS: u64 = 60_000_000_000;

    /// Creates an empty histogram. Its size is fixed, so recording does not allocate.
    pub fn new() -> Self {
        Self { counts: Box::new([0; RANGES]), by_source: [0; SOURCES], unmeasured: 0 }
    }

    /// Records `packets` packets with the same two stamps in one step. Packets whose stamps are from different clocks
    /// are counted as unmeasured. Packets without a stamp are ignored.
    #[inline]
    pub fn record(&mut self, from: Stamp, to: Stamp, packets: u64) {
        match to.since(from) {
            Some(nanos) => {
                self.counts[range(nanos.0.min(Self::MAX_NANOS))] += packets;
                self.by_source[to.source() as usize] += packets;
            }
            None if from != Stamp::NONE && to != Stamp::NONE => self.unmeasured += packets,
            None => {}
        }
    }

    /// Adds another histogram, such as the histogram of a second worker.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&*other.counts).for_each(|(sum, packets)| *sum += packets);
        self.by_source.iter_mut().zip(other.by_source).for_each(|(sum, packets)| *sum += packets);
        self.unmeasured += other.unmeasured;
    }

    /// Returns the packets that were recorded after `earlier`, which is an earlier copy of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        later.counts.iter_mut().zip(&*earlier.counts).for_each(|(sum, packets)| *sum = sum.saturating_sub(*packets));
        later.by_source.iter_mut().zip(earlier.by_source).for_each(|(sum, packets)| *sum = sum.saturating_sub(packets));
        later.unmeasured = later.unmeasured.saturating_sub(earlier.unmeasured);
        later
    }

    /// Removes all recorded packets.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.by_source, self.unmeasured) = ([0; SOURCES], 0);
    }

    /// Returns the counts as an [`hdrhistogram`] histogram with the same value ranges.
    fn histogram(&self) -> Histogram<u64> {
        let histogram = Histogram::new_with_bounds(1, Self::MAX_NANOS, 2);
        let mut histogram = histogram.expect("1 to a minute at 2 digits are valid bounds");
        for (range, packets) in self.counts.iter().enumerate().filter(|(_, packets)| **packets > 0) {
            histogram.saturating_record_n(range_start(range), *packets);
        }
        histogram
    }

    /// Returns the number of packets in each bucket. A bucket contains the latencies above the previous bound, up to
    /// its own bound. An additional last bucket contains the latencies above the last bound. The bounds are in
    /// nanoseconds, in ascending order. If a latency is less than 1 % below a bound, the packet may count in the next
    /// bucket.
    pub fn buckets(&self, bounds: &[u64]) -> Vec<u64> {
        let mut buckets = vec![0; bounds.len() + 1];
        for (range, packets) in self.counts.iter().enumerate().filter(|(_, packets)| **packets > 0) {
            let highest = range_start(range + 1) - 1;
            buckets[bounds.partition_point(|bound| *bound < highest)] += packets;
        }
        buckets
    }

    /// Returns the sum of the latencies in nanoseconds. The error is at most 1 %.
    pub fn sum(&self) -> f64 {
        let middle = |range| (range_start(range) + range_start(range + 1) - 1) as f64 / 2.0;
        let counts = self.counts.iter().enumerate().filter(|(_, packets)| **packets > 0);
        counts.map(|(range, packets)| middle(range) * *packets as f64).sum()
    }

    /// Returns the percentiles, and the clocks of the measured packets.
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
    fn source_of_a_report_is_mixed_if_different_clocks_measured_the_packets() {
        let (ticks, software) = (ClockSource::DeviceTicks, ClockSource::Software);
        let mut latency = Latency::new();
        assert_eq!(latency.report().source, ClockSource::None);
        latency.record(Stamp::NONE, Stamp::NONE, 1);
        latency.record(stamp(5, ticks), stamp(15, ticks), 3);
        assert_eq!((latency.report().source, latency.report().count), (ticks, 3));
        // The device clock became invalid, so these packets have stamps from two clocks.
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
    fn recording_many_packets_equals_recording_each_packet() {
        let (mut at_once, mut singly) = (Latency::new(), Latency::new());
        for (nanos, packets) in [(100, 900), (2_000, 90), (30_000, 9), (Latency::MAX_NANOS * 2, 1)] {
            let (from, to) = (stamp(7, ClockSource::Software), stamp(7 + nanos, ClockSource::Software));
            at_once.record(from, to, packets);
            (0..packets).for_each(|_| singly.record(from, to, 1));
        }
        let report = at_once.report();
        assert_eq!(report, singly.report());
        assert_eq!((report.count, report.p50), (1_000, 100));
        // Two digits are exact to within 1 %.
        assert!(report.p99.abs_diff(2_000) <= 20 && report.p999.abs_diff(30_000) <= 300, "{report:?}");
        assert!(report.max >= Latency::MAX_NANOS);
    }

    #[test]
    fn buckets_count_each_packet_once_and_sum_is_close() {
        let mut latency = Latency::new();
        for (nanos, packets) in [(0, 1), (100, 2), (101, 4), (1_500, 8), (70_000, 16)] {
            latency.record(stamp(7, ClockSource::Software), stamp(7 + nanos, ClockSource::Software), packets);
        }
        assert_eq!(latency.buckets(&[100, 1_000, 2_000]), [3, 4, 8, 16]);
        assert_eq!(latency.buckets(&[]), [31]);
        let exact = 100.0 * 2.0 + 101.0 * 4.0 + 1_500.0 * 8.0 + 70_000.0 * 16.0;
        assert!((latency.sum() - exact).abs() <= exact / 100.0, "{}", latency.sum());
    }

    proptest! {
        /// Compares with a histogram into which every value is recorded.
        #[test]
        fn recorded_latencies_match_a_reference_histogram(times in proptest::collection::vec((0..37u32, any::<u64>(), 1..9u64), 1..50)) {
            let mut expected = Histogram::<u64>::new_with_bounds(1, Latency::MAX_NANOS, 2).unwrap();
            let mut latency = Latency::new();
            for (bits, random, packets) in times {
                let nanos = random & ((1 << bits) - 1);
                expected.saturating_record_n(nanos.min(Latency::MAX_NANOS), packets);
                latency.record(stamp(7, ClockSource::Software), stamp(7 + nanos, ClockSource::Software), packets);
                prop_assert!(range_start(range(nanos)) <= nanos && nanos < range_start(range(nanos) + 1));
            }
            prop_assert_eq!(latency.histogram(), expected);
        }
    }
}
