//! Counts of a trial by time: intervals of equal length, and the packets that were sent in each interval.
//!
//! A packet belongs to the interval in which it was sent, even if it arrives in a later interval. The loss of an
//! interval is the number of sent packets minus the number of received packets.

use std::time::Duration;

/// The maximum number of intervals of all streams together. Each interval of a stream takes 40 bytes of memory.
const MAX_INTERVALS: u64 = 1 << 18;

/// The intervals of a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// The length of an interval in nanoseconds.
    pub length: u64,
    /// The number of intervals.
    pub count: usize,
}

impl Intervals {
    /// Divides a trial of `duration` nanoseconds into intervals of the length `wanted`. If the intervals of
    /// `streams` streams would be too many, the length is a multiple of `wanted`.
    pub fn new(wanted: Duration, duration: u64, streams: usize) -> Self {
        let most = (MAX_INTERVALS / streams.max(1) as u64).max(1);
        let wanted = u64::try_from(wanted.as_nanos()).unwrap_or(u64::MAX).max(1);
        let length = wanted.saturating_mul(duration.div_ceil(wanted).div_ceil(most).max(1));
        // A trial can end a little late. The last interval has all packets that are sent after its start.
        Self { length, count: usize::try_from(duration.div_ceil(length)).unwrap_or(1).max(1) }
    }
}

/// Finds the interval of a time. The search is fast if most times are in the same interval as the previous time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    intervals: Intervals,
    index: usize,
    start: u64,
}

impl Cursor {
    pub(crate) fn new(intervals: Intervals) -> Self {
        Self { intervals, index: 0, start: 0 }
    }

    /// Returns the index of the interval of the time `at`.
    #[inline]
    pub(crate) fn at(&mut self, at: u64) -> usize {
        if at.wrapping_sub(self.start) >= self.intervals.length {
            self.seek(at);
        }
        self.index
    }

    #[cold]
    fn seek(&mut self, at: u64) {
        let Intervals { length, count } = self.intervals;
        let index = at.checked_div(length).unwrap_or(0);
        self.start = index * length;
        self.index = usize::try_from(index).unwrap_or(usize::MAX).min(count.saturating_sub(1));
    }
}

/// A division of packets among groups, in proportion to the weights of the groups. Each share is at most the weight of
/// the group, and the shares add up to the number of packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    left: u64,
    /// The sum of the weights of the groups that have no share yet.
    weights: u64,
}

impl Shares {
    /// Creates a division of `packets`. `weights` is the sum of the weights of all groups, and the maximum number of
    /// packets.
    pub(crate) fn new(packets: u64, weights: u64) -> Self {
        Self { left: packets.min(weights), weights }
    }

    /// Returns the share of the next group, which has the weight `weight`.
    pub(crate) fn next(&mut self, weight: u64) -> u64 {
        let share = u128::from(self.left) * u128::from(weight) / u128::from(self.weights.max(1));
        self.weights = self.weights.saturating_sub(weight);
        // The share is at most `left`, because the weight is at most `weights`.
        let share = u64::try_from(share).unwrap_or(self.left).min(self.left);
        self.left -= share;
        share
    }
}

/// The packets that were sent in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Packets that the tester passed to the port.
    pub sent: u64,
    /// Packets of `sent` that the port did not send.
    pub tx_failed: u64,
    /// Packets that arrived in time with the right content.
    pub received: u64,
    /// The sum of the latencies of the received packets, in nanoseconds.
    pub latency_sum: u64,
    /// The highest latency of the received packets, in nanoseconds.
    pub latency_max: u64,
}

impl Point {
    /// Returns the number of packets that the port sent, and that were lost, late or corrupted.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received + self.tx_failed)
    }

    /// Returns the mean latency in nanoseconds, or 0 without received packets.
    pub fn latency_mean(&self) -> u64 {
        self.latency_sum.checked_div(self.received).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_cover_the_trial_and_their_number_is_limited() {
        let second = 1_000_000_000;
        let of = |wanted, duration, streams| Intervals::new(Duration::from_nanos(wanted), duration, streams);
        assert_eq!(of(second / 10, second, 1), Intervals { length: second / 10, count: 10 });
        assert_eq!(of(second / 10, second + 1, 1).count, 11);
        assert_eq!(of(second, 1, 1).count, 1);
        let many = of(1000, 3600 * second, 256);
        assert!(many.count <= 1024 && many.length * many.count as u64 >= 3600 * second, "{many:?}");
        assert_eq!(many.length % 1000, 0);
    }

    #[test]
    fn shares_add_up_and_never_exceed_a_weight() {
        let divide = |packets: u64, weights: &[u64]| {
            let mut shares = Shares::new(packets, weights.iter().sum());
            weights.iter().map(|weight| shares.next(*weight)).collect::<Vec<_>>()
        };
        assert_eq!(divide(10, &[10, 10]), [5, 5]);
        assert_eq!(divide(10, &[0, 30, 10]), [0, 7, 3]);
        assert_eq!(divide(7, &[3, 4]), [3, 4]);
        assert_eq!(divide(9, &[3, 4]), [3, 4]);
        assert_eq!(divide(5, &[0, 0]), [0, 0]);
        for packets in 0..=40 {
            let (weights, shares) = ([7, 0, 1, 19, 2, 11], divide(packets, &[7, 0, 1, 19, 2, 11]));
            assert_eq!(shares.iter().sum::<u64>(), packets, "{shares:?}");
            assert!(shares.iter().zip(weights).all(|(share, weight)| *share <= weight), "{shares:?}");
        }
        assert_eq!(divide(u64::MAX, &[u64::MAX]), [u64::MAX]);
    }

    #[test]
    fn cursor_finds_the_interval_of_each_time() {
        let mut cursor = Cursor::new(Intervals { length: 10, count: 4 });
        let found: Vec<_> = [0, 9, 10, 25, 3, 39, 40, 1000, 5].into_iter().map(|at| cursor.at(at)).collect();
        assert_eq!(found, [0, 0, 1, 2, 0, 3, 3, 3, 0]);
    }
}
