//! The statistics of the measured times.

use std::ops::Range;
use std::time::Duration;

use dataplane::clock::HostClock;

/// The times of a bandwidth test, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct BandwidthTimes {
    /// The time before each message was posted.
    posted: Vec<u64>,
    /// The number of completed messages after each completion, and the time of the completion.
    completed: Vec<(usize, u64)>,
    /// With a duration, only the window counts messages, and the other fields stay empty.
    window: Option<Window>,
}

/// The messages of a test with a duration. The first and the last quarter of the duration do not count, as in perftest.
#[derive(Debug)]
struct Window {
    duration: u64,
    /// The time before the first message was posted.
    start: Option<u64>,
    /// The last time that was compared with the end.
    now: u64,
    /// The number of completed messages.
    completed: usize,
    /// The number of messages that completed in the window.
    counted: usize,
}

/// The rates of a bandwidth test, in messages per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MessageRates {
    /// The highest rate between the posting of a message and the completion of the same or of a later message, if known.
    pub(super) peak: Option<f64>,
    /// The rate from the first posting to the last completion.
    pub(super) average: f64,
}

impl BandwidthTimes {
    pub(super) fn with_capacity(messages: usize, completions: usize) -> Self {
        let (posted, completed) = (Vec::with_capacity(messages), Vec::with_capacity(completions));
        Self { posted, completed, window: None }
    }

    /// Counts the messages of a test with this duration.
    pub(super) fn in_window(duration: Duration) -> Self {
        let duration = duration.as_nanos() as u64;
        Self { window: Some(Window { duration, start: None, now: 0, completed: 0, counted: 0 }), ..Self::default() }
    }

    /// Records the time before a message is posted.
    #[inline]
    pub(super) fn post(&mut self, now: u64) {
        match &mut self.window {
            None => self.posted.push(now),
            Some(window) => window.start = window.start.or(Some(now)),
        }
    }

    /// Records a completion after which `messages` messages are complete.
    #[inline]
    pub(super) fn complete(&mut self, messages: usize, now: u64) {
        match &mut self.window {
            None => self.completed.push((messages, now)),
            Some(window) => window.complete(messages, now),
        }
    }

    /// Whether the duration of the test is over. Always `false` without a duration.
    #[inline]
    pub(super) fn is_over(&mut self, clock: &HostClock) -> bool {
        self.window.as_mut().is_some_and(|window| window.is_over(clock.nanos().0))
    }

    /// Returns the number of completed messages that count.
    pub(super) fn messages(&self) -> usize {
        if let Some(window) = &self.window {
            return window.counted;
        }
        self.completed.last().map_or(0, |(messages, _)| *messages)
    }

    /// Returns the rates. `None` if no message is complete, or if no time has passed.
    pub(super) fn rates(&self) -> Option<MessageRates> {
        if let Some(window) = &self.window {
            return window.average().map(|average| MessageRates { peak: None, average });
        }
        let (first, (messages, last)) = (*self.posted.first()?, *self.completed.last()?);
        if last <= first {
            return None;
        }
        let average = messages as f64 / duration(first, last);
        Some(MessageRates { peak: Some(self.peak(average)), average })
    }

    /// Returns the highest rate of all pairs of a posting and a completion. The method of Dinkelbach finds the pair
    /// without trying all pairs: as long as a pair has a higher rate than the best rate, the pair with the largest
    /// surplus over the best rate replaces the best rate.
    fn peak(&self, average: f64) -> f64 {
        let Some(&first) = self.posted.first() else { return average };
        let mut best = average;
        loop {
            let mut found: Option<(f64, f64)> = None;
            let (mut next, mut start) = (0, (f64::INFINITY, 0));
            for &(messages, time) in &self.completed {
                // The posting with the smallest `index - best * time` has the largest surplus.
                for (index, &posted) in self.posted.iter().enumerate().take(messages).skip(next) {
                    let cost = index as f64 - best * seconds(first, posted);
                    if cost < start.0 {
                        start = (cost, index);
                    }
                }
                next = messages;
                let surplus = messages as f64 - best * seconds(first, time) - start.0;
                if found.is_none_or(|(most, _)| surplus > most) {
                    let rate = (messages - start.1) as f64 / duration(self.posted[start.1], time);
                    found = Some((surplus, rate));
                }
            }
            match found {
                Some((_, rate)) if rate > best * (1.0 + 1e-9) => best = rate,
                _ => return best,
            }
        }
    }
}

impl Window {
    /// Returns the times between which messages count.
    fn bounds(&self) -> Option<Range<u64>> {
        let quarter = self.duration / 4;
        self.start.map(|start| start + quarter..start + self.duration - quarter)
    }

    fn complete(&mut self, messages: usize, now: u64) {
        if self.bounds().is_some_and(|bounds| bounds.contains(&now)) {
            self.counted += messages - self.completed;
        }
        self.completed = messages;
    }

    fn is_over(&mut self, now: u64) -> bool {
        self.now = now;
        self.start.is_some_and(|start| now >= start + self.duration)
    }

    /// Returns the messages per second. If the test ended early, the rate is until the last look at the clock.
    fn average(&self) -> Option<f64> {
        let Range { start, end } = self.bounds()?;
        let end = end.min(self.now);
        (end > start).then(|| self.counted as f64 / seconds(start, end))
    }
}

fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e9
}

/// Returns the seconds between two times, but at least the resolution of the clock.
fn duration(from: u64, to: u64) -> f64 {
    seconds(from, to).max(1e-9)
}

/// The times of a latency test: the times before each message was posted, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct LatencyTimes(Vec<u64>);

/// The statistics of a latency, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LatencyStatistics {
    pub(super) samples: u64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The median.
    pub(super) typical: f64,
    pub(super) mean: f64,
    /// The standard deviation.
    pub(super) deviation: f64,
    pub(super) p99: f64,
    pub(super) p99_9: f64,
}

impl LatencyTimes {
    pub(super) fn with_capacity(messages: usize) -> Self {
        Self(Vec::with_capacity(messages))
    }

    /// Records the time before a message is posted.
    #[inline]
    pub(super) fn post(&mut self, now: u64) {
        self.0.push(now);
    }

    /// Returns the number of posted messages.
    pub(super) fn messages(&self) -> usize {
        self.0.len()
    }

    /// Returns the statistics of the times between two postings, divided by `parts`. `None` with fewer than two messages.
    pub(super) fn statistics(&self, parts: u32) -> Option<LatencyStatistics> {
        let mut times: Vec<u64> = self.0.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        times.sort_unstable();
        let parts = f64::from(parts);
        let (min, max) = (*times.first()? as f64 / parts, *times.last()? as f64 / parts);
        let count = times.len();
        let mean = times.iter().map(|time| *time as f64).sum::<f64>() / count as f64 / parts;
        let variance = times.iter().map(|time| (*time as f64 / parts - mean).powi(2)).sum::<f64>() / count as f64;
        let middle = times[count / 2] as f64 + times[(count - 1) / 2] as f64;
        // The smallest time that at least this share of the times does not exceed.
        let rank = |share: f64| times[((count as f64 * share).ceil() as usize).clamp(1, count) - 1] as f64 / parts;
        Some(LatencyStatistics {
            samples: count as u64,
            min,
            max,
            typical: middle / 2.0 / parts,
            mean,
            deviation: libm::sqrt(variance),
            p99: rank(0.99),
            p99_9: rank(0.999),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn average_is_from_first_posting_to_last_completion() {
        let mut times = BandwidthTimes::default();
        assert_eq!(times.rates(), None);
        (0..4).for_each(|at| times.post(1_000 + at * 10));
        times.complete(2, 1_400);
        times.complete(4, 2_000);
        assert_eq!(times.messages(), 4);
        let rates = times.rates().unwrap();
        assert!((rates.average - 4.0 / 1e-6).abs() < 1.0, "{rates:?}");
        // The first two messages take 400 ns, and all four messages take 1000 ns.
        assert!((rates.peak.unwrap() - 2.0 / 400e-9).abs() < 1.0, "{rates:?}");
    }

    #[test]
    fn first_and_last_quarter_of_a_duration_do_not_count() {
        let mut times = BandwidthTimes::in_window(Duration::from_nanos(1000));
        let look = |times: &mut BandwidthTimes, now| times.window.as_mut().unwrap().is_over(now);
        assert!(!look(&mut times, 5000));
        times.complete(0, 5000);
        assert_eq!((times.messages(), times.rates()), (0, None));
        times.post(6000);
        times.post(6100);
        for (messages, now) in [(3, 6249), (5, 6250), (10, 6749), (20, 6750), (21, 6999)] {
            times.complete(messages, now);
        }
        assert_eq!(times.messages(), 7);
        // A test that is stopped after 500 ns has a window of 250 ns.
        for (now, is_over, seconds) in [(6500, false, 250e-9), (6999, false, 500e-9), (7000, true, 500e-9)] {
            assert_eq!(look(&mut times, now), is_over);
            let MessageRates { peak, average } = times.rates().unwrap();
            assert!((average * seconds - 7.0).abs() < 1e-6 && peak.is_none(), "{average}");
        }
    }

    #[test]
    fn messages_without_a_duration_have_no_rate() {
        let mut times = BandwidthTimes::default();
        times.post(100);
        times.complete(5, 100);
        assert_eq!((times.messages(), times.rates()), (5, None));
    }

    #[test]
    fn latency_is_the_time_between_two_postings() {
        let mut times = LatencyTimes::default();
        assert_eq!(times.statistics(2), None);
        for now in [0, 100, 300, 600, 1000] {
            times.post(now);
        }
        let found = times.statistics(1).unwrap();
        assert_eq!((found.samples, found.min, found.max, found.typical, found.mean), (4, 100.0, 400.0, 250.0, 250.0));
        assert_eq!((found.p99, found.p99_9), (400.0, 400.0));
        assert!((found.deviation - 111.803).abs() < 0.001, "{found:?}");
        assert_eq!(times.statistics(2).unwrap().typical, 125.0);
    }

    proptest! {
        /// The peak equals the highest rate of all pairs.
        #[test]
        fn peak_is_the_highest_rate_of_all_pairs(steps in prop::collection::vec((0u64..1000, 1u64..1000), 1..40), every in 1usize..5) {
            let mut times = BandwidthTimes::default();
            let (mut posted, mut completed) = (Vec::new(), Vec::new());
            let (mut now, mut last) = (0, 0);
            for (at, (gap, delay)) in steps.iter().enumerate() {
                now += gap;
                posted.push(now);
                times.post(now);
                last = last.max(now + delay);
                if (at + 1) % every == 0 || at + 1 == steps.len() {
                    completed.push((at + 1, last));
                    times.complete(at + 1, last);
                }
            }
            let pairs = completed.iter().flat_map(|&(messages, end)| {
                posted[..messages].iter().enumerate().map(move |(at, begin)| (messages - at) as f64 / duration(*begin, end))
            });
            let highest = pairs.fold(0.0, f64::max);
            let found = times.rates().unwrap().peak.unwrap();
            prop_assert!((found / highest - 1.0).abs() < 1e-6, "{} instead of {}", found, highest);
        }
    }
}
