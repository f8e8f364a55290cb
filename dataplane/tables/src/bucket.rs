//! Token buckets: a plain rate limiter, and the three-colour markers of RFC 2697 and RFC 2698.
//!
//! The caller passes the time, in nanoseconds of any monotonic clock. If the time of a call is before the time of an
//! earlier call, no tokens are added. A token is a packet or a byte, as the caller chooses. The arithmetic is exact: a
//! bucket counts billionths of a token, and a rate of one token per second adds one billionth in each nanosecond.

use dataplane_core::mem::Colour;

/// The number of billionths in a token.
const SCALE: u128 = 1_000_000_000;

/// The fill level of a bucket.
#[derive(Clone, Copy, Debug)]
struct Level {
    now: u128,
    full: u128,
}

impl Level {
    fn full(tokens: u64) -> Self {
        let full = u128::from(tokens) * SCALE;
        Self { now: full, full }
    }

    /// Adds an amount, up to the size of the bucket. Returns the part that exceeds the size.
    #[inline]
    fn fill(&mut self, amount: u128) -> u128 {
        let room = self.full - self.now;
        let taken = amount.min(room);
        self.now += taken;
        amount - taken
    }

    #[inline]
    fn has(&self, tokens: u64) -> bool {
        self.now >= u128::from(tokens) * SCALE
    }

    /// Takes over the fill level of an earlier bucket, up to the size of this bucket.
    fn take_over_tokens(&mut self, earlier: Self) {
        self.set(earlier.now);
    }

    /// Sets the fill level, in billionths of a token. If the level exceeds the size of the bucket, the bucket is full.
    fn set(&mut self, level: u128) {
        self.now = level.min(self.full);
    }

    /// Takes tokens if there are enough. Returns whether the tokens were taken.
    #[inline]
    fn take(&mut self, tokens: u64) -> bool {
        let enough = self.has(tokens);
        if enough {
            self.now -= u128::from(tokens) * SCALE;
        }
        enough
    }
}

/// The latest of the times that callers have given.
#[derive(Clone, Copy, Debug)]
struct LastTime(u64);

impl LastTime {
    /// Returns the nanoseconds since the latest time, or 0 if `now` is before the latest time. Stores `now` as the
    /// latest time if `now` is later.
    #[inline]
    fn elapsed(&mut self, now: u64) -> u128 {
        let passed = now.saturating_sub(self.0);
        self.0 = self.0.max(now);
        u128::from(passed)
    }
}

/// A plain rate limiter with a burst.
///
/// ```
/// use dataplane_tables::bucket::TokenBucket;
///
/// let mut bucket = TokenBucket::new(10, 2, 0); // 10 a second, 2 at once
/// assert!(bucket.take(0, 1) && bucket.take(0, 1) && !bucket.take(0, 1));
/// assert!(!bucket.take(99_999_999, 1));
/// assert!(bucket.take(100_000_000, 1));
/// ```
#[derive(Clone, Debug)]
pub struct TokenBucket {
    level: Level,
    rate: u128,
    since: LastTime,
}

impl TokenBucket {
    /// Creates a full bucket. `rate` is in tokens per second, `burst` in tokens, `now` in nanoseconds.
    pub fn new(rate: u64, burst: u64, now: u64) -> Self {
        Self { level: Level::full(burst), rate: rate.into(), since: LastTime(now) }
    }

    /// Takes over the tokens of an earlier bucket, up to the burst size of this bucket. Call this function before the
    /// first [`TokenBucket::take`].
    pub fn take_over_tokens(&mut self, earlier: &Self) {
        self.level.take_over_tokens(earlier.level);
        self.since = earlier.since;
    }

    /// Returns the fill level at the time of the latest [`TokenBucket::take`], in billionths of a token.
    pub fn level(&self) -> u128 {
        self.level.now
    }

    /// Sets the fill level, in billionths of a token, to at most the burst size. The bucket of another program can thus
    /// continue with the level of this bucket.
    pub fn set_level(&mut self, level: u128) {
        self.level.set(level);
    }

    /// Takes `tokens` at time `now` if there are enough. Returns whether the tokens were taken. A request for more
    /// tokens than the burst never succeeds.
    #[inline]
    pub fn take(&mut self, now: u64, tokens: u64) -> bool {
        let earned = self.since.elapsed(now) * self.rate;
        self.level.fill(earned);
        self.level.take(tokens)
    }
}

/// The single rate three-colour marker of RFC 2697.
#[derive(Clone, Debug)]
pub struct SingleRateMarker {
    committed: Level,
    excess: Level,
    rate: u128,
    since: LastTime,
}

impl SingleRateMarker {
    /// Creates the marker with both buckets full. The committed information rate is in tokens per second, both burst
    /// sizes are in tokens, and `now` is in nanoseconds.
    pub fn new(rate: u64, committed_burst: u64, excess_burst: u64, now: u64) -> Self {
        Self {
            committed: Level::full(committed_burst),
            excess: Level::full(excess_burst),
            rate: rate.into(),
            since: LastTime(now),
        }
    }

    /// Takes over the tokens of an earlier marker, up to the burst sizes of this marker.
    pub fn take_over_tokens(&mut self, earlier: &Self) {
        self.committed.take_over_tokens(earlier.committed);
        self.excess.take_over_tokens(earlier.excess);
        self.since = earlier.since;
    }

    /// Returns the levels of the committed and of the excess bucket. See [`TokenBucket::level`].
    pub fn levels(&self) -> [u128; 2] {
        [self.committed.now, self.excess.now]
    }

    /// Sets the levels of the committed and of the excess bucket. See [`TokenBucket::set_level`].
    pub fn set_levels(&mut self, [committed, excess]: [u128; 2]) {
        self.committed.set(committed);
        self.excess.set(excess);
    }

    /// Returns the new colour of a packet that takes `tokens` tokens at time `now`. `before` is the colour that the
    /// packet already has. For colour-blind mode, pass [`Colour::Green`].
    #[inline]
    pub fn mark(&mut self, now: u64, tokens: u64, before: Colour) -> Colour {
        let over = self.committed.fill(self.since.elapsed(now) * self.rate);
        self.excess.fill(over);
        if before == Colour::Green && self.committed.take(tokens) {
            Colour::Green
        } else if before != Colour::Red && self.excess.take(tokens) {
            Colour::Yellow
        } else {
            Colour::Red
        }
    }
}

/// The two rate three-colour marker of RFC 2698.
#[derive(Clone, Debug)]
pub struct TwoRateMarker {
    committed: Level,
    peak: Level,
    committed_rate: u128,
    peak_rate: u128,
    since: LastTime,
}

impl TwoRateMarker {
    /// Creates the marker with both buckets full. `committed` and `peak` are pairs of a rate in tokens per second and a
    /// burst in tokens. `now` is in nanoseconds.
    pub fn new(committed: (u64, u64), peak: (u64, u64), now: u64) -> Self {
        Self {
            committed: Level::full(committed.1),
            peak: Level::full(peak.1),
            committed_rate: committed.0.into(),
            peak_rate: peak.0.into(),
            since: LastTime(now),
        }
    }

    /// Takes over the tokens of an earlier marker, up to the burst sizes of this marker.
    pub fn take_over_tokens(&mut self, earlier: &Self) {
        self.committed.take_over_tokens(earlier.committed);
        self.peak.take_over_tokens(earlier.peak);
        self.since = earlier.since;
    }

    /// Returns the levels of the committed and of the peak bucket. See [`TokenBucket::level`].
    pub fn levels(&self) -> [u128; 2] {
        [self.committed.now, self.peak.now]
    }

    /// Sets the levels of the committed and of the peak bucket. See [`TokenBucket::set_level`].
    pub fn set_levels(&mut self, [committed, peak]: [u128; 2]) {
        self.committed.set(committed);
        self.peak.set(peak);
    }

    /// Returns the new colour of a packet that takes `tokens` tokens at time `now`. `before` is the colour that the
    /// packet already has. For colour-blind mode, pass [`Colour::Green`].
    #[inline]
    pub fn mark(&mut self, now: u64, tokens: u64, before: Colour) -> Colour {
        let elapsed = self.since.elapsed(now);
        self.committed.fill(elapsed * self.committed_rate);
        self.peak.fill(elapsed * self.peak_rate);
        if before == Colour::Red || !self.peak.take(tokens) {
            Colour::Red
        } else if before == Colour::Yellow || !self.committed.take(tokens) {
            Colour::Yellow
        } else {
            Colour::Green
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NANO: u64 = 1_000_000_000;

    #[test]
    fn later_bucket_resumes_with_the_tokens_of_the_earlier_bucket() {
        let mut earlier = TokenBucket::new(10, 5, 0);
        assert!(earlier.take(NANO, 3));
        for (burst, left) in [(5, 2), (1, 1), (50, 2)] {
            let mut later = TokenBucket::new(1, burst, 0);
            later.take_over_tokens(&earlier);
            let taken = (0..10).filter(|_| later.take(NANO, 1)).count();
            assert_eq!(taken, left, "burst {burst}");
        }
        let mut markers = [SingleRateMarker::new(1, 2, 2, 0), SingleRateMarker::new(1, 9, 9, 0)];
        let mut peaks = [TwoRateMarker::new((1, 2), (2, 3), 0), TwoRateMarker::new((1, 9), (2, 9), 0)];
        for _ in 0..2 {
            assert_eq!(markers[0].mark(0, 1, Colour::Green), Colour::Green);
            assert_eq!(peaks[0].mark(0, 1, Colour::Green), Colour::Green);
        }
        let [marker, later] = &mut markers;
        later.take_over_tokens(marker);
        assert_eq!(later.mark(0, 1, Colour::Green), Colour::Yellow);
        let [peak, later] = &mut peaks;
        later.take_over_tokens(peak);
        assert_eq!([(); 2].map(|()| later.mark(0, 1, Colour::Green)), [Colour::Yellow, Colour::Red]);
    }

    fn colour() -> impl Strategy<Value = Colour> {
        prop::sample::select(vec![Colour::Green, Colour::Yellow, Colour::Red])
    }

    /// Generates packets. Each packet is a tuple: the nanoseconds since the previous packet (negative if the clock
    /// steps back), the tokens of the packet, and the colour that the packet already has.
    fn packets() -> impl Strategy<Value = Vec<(i64, u64, Colour)>> {
        prop::collection::vec((-5i64..40, 0u64..30, colour()), 1..60)
    }

    /// Returns the time of each packet, and how far each packet advances the latest time.
    fn times(packets: &[(i64, u64, Colour)]) -> Vec<(u64, u64)> {
        let (mut now, mut latest) = (1000i64, 1000);
        packets
            .iter()
            .map(|(step, _, _)| {
                now = (now + step).max(0);
                let moved = (now - latest).max(0);
                latest += moved;
                (now as u64, moved as u64)
            })
            .collect()
    }

    proptest! {
        /// Compares the bucket with a closed form. For each earlier moment, assume that the bucket was full at that
        /// moment. Add the tokens that were earned since then, and subtract the tokens that were taken since then. The
        /// minimum of these numbers is the level before the packet.
        #[test]
        fn bucket_agrees_with_closed_form(
            rate in 0u64..3 * NANO,
            burst in 0u64..40,
            packets in packets(),
        ) {
            let mut bucket = TokenBucket::new(rate, burst, 1000);
            let (mut clock, mut history) = (0u64, vec![(0u64, 0u64)]);
            for ((now, moved), (_, tokens, _)) in times(&packets).into_iter().zip(&packets) {
                clock += moved;
                // The bucket may have been full at this moment, before the packet takes tokens.
                history.push((clock, 0));
                let mut taken = 0u128;
                let level = history.iter().rev().map(|(then, took)| {
                    taken += u128::from(*took);
                    let earned = u128::from(burst) * SCALE + u128::from(clock - then) * u128::from(rate);
                    earned as i128 - (taken * SCALE) as i128
                });
                let accepted = level.min().unwrap() >= (u128::from(*tokens) * SCALE) as i128;
                prop_assert_eq!(bucket.take(now, *tokens), accepted);
                if accepted {
                    history.last_mut().unwrap().1 = *tokens;
                }
            }
        }

        /// Compares the marker with a model that adds the tokens one by one, as in section 3 of RFC 2697.
        #[test]
        fn single_rate_marker_agrees_with_rfc_2697(rate in 0u64..4, cbs in 0u64..60, ebs in 0u64..60, packets in packets()) {
            let mut marker = SingleRateMarker::new(rate * NANO, cbs, ebs, 1000);
            let (mut tc, mut te) = (cbs, ebs);
            for ((now, moved), (_, tokens, before)) in times(&packets).into_iter().zip(&packets) {
                for _ in 0..moved * rate {
                    if tc < cbs {
                        tc += 1;
                    } else if te < ebs {
                        te += 1;
                    }
                }
                let expected = match before {
                    Colour::Green if tc >= *tokens => { tc -= tokens; Colour::Green }
                    Colour::Green | Colour::Yellow if te >= *tokens => { te -= tokens; Colour::Yellow }
                    _ => Colour::Red,
                };
                prop_assert_eq!(marker.mark(now, *tokens, *before), expected);
            }
        }

        /// Compares the marker with a model that adds the tokens nanosecond by nanosecond, as in section 3 of RFC 2698.
        #[test]
        fn two_rate_marker_agrees_with_rfc_2698(
            (cir, pir) in (0u64..4, 0u64..6),
            (cbs, pbs) in (0u64..60, 0u64..60),
            packets in packets(),
        ) {
            let mut marker = TwoRateMarker::new((cir * NANO, cbs), (pir * NANO, pbs), 1000);
            let (mut tc, mut tp) = (cbs, pbs);
            for ((now, moved), (_, tokens, before)) in times(&packets).into_iter().zip(&packets) {
                for _ in 0..moved {
                    tc = (tc + cir).min(cbs);
                    tp = (tp + pir).min(pbs);
                }
                let expected = if *before == Colour::Red || tp < *tokens {
                    Colour::Red
                } else if *before == Colour::Yellow || tc < *tokens {
                    tp -= tokens;
                    Colour::Yellow
                } else {
                    tp -= tokens;
                    tc -= tokens;
                    Colour::Green
                };
                prop_assert_eq!(marker.mark(now, *tokens, *before), expected);
            }
        }

        #[test]
        fn largest_numbers_do_not_overflow(
            numbers in any::<[u64; 5]>(),
            packets in prop::collection::vec((any::<u64>(), any::<u64>(), colour()), 1..20),
        ) {
            let [a, b, c, d, start] = numbers;
            for (rate, burst) in [(a, b), (u64::MAX, u64::MAX)] {
                let mut plain = TokenBucket::new(rate, burst, 0);
                let mut single = SingleRateMarker::new(rate, burst, c, start);
                let mut two = TwoRateMarker::new((rate, burst), (c, d), start);
                for (now, tokens, before) in packets.iter().copied().chain([(u64::MAX, u64::MAX, Colour::Green)]) {
                    plain.take(now, tokens);
                    prop_assert!(single.mark(now, tokens, before) >= before);
                    prop_assert!(two.mark(now, tokens, before) >= before);
                }
            }
        }
    }

    #[test]
    fn slow_rate_has_no_rounding_loss() {
        // Each call is too early for a whole token. After one second, the bucket has exactly one token.
        let mut bucket = TokenBucket::new(1, 1, 0);
        assert!(bucket.take(0, 1));
        for now in (1..NANO).step_by(999_983) {
            assert!(!bucket.take(now, 1));
        }
        assert!(bucket.take(NANO, 1));
    }
}
