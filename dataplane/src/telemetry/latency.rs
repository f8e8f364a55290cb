//! Latency in a histogram of fixed size.

use hdrhistogram::Histogram;

use crate::clock::ClockSource;
use crate::telemetry::LatencyReport;

/// Nanoseconds from receive stamp to send completion stamp, per packet, to three significant digits.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Latency {
    /// Longer is counted as this: a minute, in nanoseconds.
    pub const MOST: u64 = 60_000_000_000;

    /// An empty histogram. It never grows, so recording does not allocate.
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, Self::MOST, 3).expect("1 to a minute at 3 digits are valid bounds"))
    }

    /// So many packets that took so long: one step, however many they are.
    #[inline]
    pub fn record(&mut self, nanos: u64, packets: u64) {
        self.0.saturating_record_n(nanos, packets);
    }

    /// Adds another, as of a second worker.
    pub fn add(&mut self, other: &Self) {
        // Both have the bounds of `new`, so it cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// The percentiles, with the clock that they were measured with.
    pub fn report(&self, source: ClockSource) -> LatencyReport {
        let at = |quantile| self.0.value_at_quantile(quantile);
        LatencyReport {
            count: self.0.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: self.0.max(),
            source,
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
    use super::*;

    #[test]
    fn one_step_for_many_equals_many_steps() {
        let (mut at_once, mut singly) = (Latency::new(), Latency::new());
        for (nanos, packets) in [(100, 900), (2_000, 90), (30_000, 9), (Latency::MOST * 2, 1)] {
            at_once.record(nanos, packets);
            (0..packets).for_each(|_| singly.record(nanos, 1));
        }
        let report = at_once.report(ClockSource::Software);
        assert_eq!(report, singly.report(ClockSource::Software));
        assert_eq!((report.count, report.p50), (1_000, 100));
        // Three digits: within a thousandth.
        assert!(report.p99.abs_diff(2_000) <= 2 && report.p999.abs_diff(30_000) <= 30, "{report:?}");
        assert!(report.max >= Latency::MOST);
    }
}
