//! Token buckets: a plain rate, and the three-colour markers of RFC 2697 and RFC 2698.
//!
//! Time is what the caller says, in nanoseconds of any clock that moves forward; a step backwards counts as none. A
//! token is a packet or a byte, as the caller likes. The arithmetic is exact: a bucket counts billionths of a token,
//! which is what a rate of one a second gives in a nanosecond.

use crate::mem::Colour;

/// Billionths of a token in a token.
const SCALE: u128 = 1_000_000_000;

/// A level between empty and full.
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

    /// Pours in, and gives what ran over.
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

    /// Takes tokens out, if they are there.
    #[inline]
    fn take(&mut self, tokens: u64) -> bool {
        let enough = self.has(tokens);
        if enough {
            self.now -= u128::from(tokens) * SCALE;
        }
        enough
    }
}

/// The time that has passed since the last look.
#[derive(Clone, Copy, Debug)]
struct Since(u64);

impl Since {
    /// Nanoseconds since the last call; 0 when time went backwards.
    #[inline]
    fn elapsed(&mut self, now: u64) -> u128 {
        let passed = now.saturating_sub(self.0);
        self.0 = self.0.max(now);
        u128::from(passed)
    }
}

/// A plain rate with a burst.
///
/// ```
/// use dataplane::stages::table::bucket::TokenBucket;
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
    since: Since,
}

impl TokenBucket {
    /// A full bucket: `rate` in tokens a second, `burst` in tokens, `now` in nanoseconds.
    pub fn new(rate: u64, burst: u64, now: u64) -> Self {
        Self { level: Level::full(burst), rate: rate.into(), since: Since(now) }
    }

    /// Whether `tokens` are there at `now`; takes them if so. More than the burst are never there.
    #[inline]
    pub fn take(&mut self, now: u64, tokens: u64) -> bool {
        let earned = self.since.elapsed(now) * self.rate;
        self.level.fill(earned);
        self.level.take(tokens)
    }
}

/// The single rate three-colour marker, RFC 2697.
#[derive(Clone, Debug)]
pub struct SingleRate {
    committed: Level,
    excess: Level,
    rate: u128,
    since: Since,
}

impl SingleRate {
    /// Both buckets full: the committed information rate in tokens a second, committed and excess burst size in
    /// tokens, `now` in nanoseconds.
    pub fn new(rate: u64, committed_burst: u64, excess_burst: u64, now: u64) -> Self {
        Self {
            committed: Level::full(committed_burst),
            excess: Level::full(excess_burst),
            rate: rate.into(),
            since: Since(now),
        }
    }

    /// The colour of a packet of `tokens` at `now` that came with the colour `before`. Colour-blind is always
    /// [`Colour::Green`] before.
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

/// The two rate three-colour marker, RFC 2698.
#[derive(Clone, Debug)]
pub struct TwoRate {
    committed: Level,
    peak: Level,
    committed_rate: u128,
    peak_rate: u128,
    since: Since,
}

impl TwoRate {
    /// Both buckets full: committed and peak, each a rate in tokens a second and a burst in tokens; `now` in
    /// nanoseconds.
    pub fn new(committed: (u64, u64), peak: (u64, u64), now: u64) -> Self {
        Self {
            committed: Level::full(committed.1),
            peak: Level::full(peak.1),
            committed_rate: committed.0.into(),
            peak_rate: peak.0.into(),
            since: Since(now),
        }
    }

    /// The colour of a packet of `tokens` at `now` that came with the colour `before`. Colour-blind is always
    /// [`Colour::Green`] before.
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

    fn colour() -> impl Strategy<Value = Colour> {
        prop::sample::select(vec![Colour::Green, Colour::Yellow, Colour::Red])
    }

    /// Packets: nanoseconds since the one before (negative: the clock stepped back), tokens, colour before.
    fn packets() -> impl Strategy<Value = Vec<(i64, u64, Colour)>> {
        prop::collection::vec((-5i64..40, 0u64..30, colour()), 1..60)
    }

    /// The times of packets, and how far each moves the latest time seen.
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
        /// By the closed form: before a packet, the level is the least over all earlier moments of a full bucket then,
        /// what came in since, and what was taken since.
        #[test]
        fn a_bucket_is_its_closed_form(
            rate in 0u64..3 * NANO,
            burst in 0u64..40,
            packets in packets(),
        ) {
            let mut bucket = TokenBucket::new(rate, burst, 1000);
            let (mut clock, mut history) = (0u64, vec![(0u64, 0u64)]);
            for ((now, moved), (_, tokens, _)) in times(&packets).into_iter().zip(&packets) {
                clock += moved;
                // A moment when the bucket may have been full: this one, before anything is taken.
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

        /// Token by token, as section 3 of RFC 2697 has it.
        #[test]
        fn single_rate_is_the_rfc(rate in 0u64..4, cbs in 0u64..60, ebs in 0u64..60, packets in packets()) {
            let mut marker = SingleRate::new(rate * NANO, cbs, ebs, 1000);
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

        /// Token by token, as section 3 of RFC 2698 has it.
        #[test]
        fn two_rates_are_the_rfc(
            (cir, pir) in (0u64..4, 0u64..6),
            (cbs, pbs) in (0u64..60, 0u64..60),
            packets in packets(),
        ) {
            let mut marker = TwoRate::new((cir * NANO, cbs), (pir * NANO, pbs), 1000);
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
        fn no_number_overflows(
            numbers in any::<[u64; 5]>(),
            packets in prop::collection::vec((any::<u64>(), any::<u64>(), colour()), 1..20),
        ) {
            let [a, b, c, d, start] = numbers;
            for (rate, burst) in [(a, b), (u64::MAX, u64::MAX)] {
                let mut plain = TokenBucket::new(rate, burst, 0);
                let mut single = SingleRate::new(rate, burst, c, start);
                let mut two = TwoRate::new((rate, burst), (c, d), start);
                for (now, tokens, before) in packets.iter().copied().chain([(u64::MAX, u64::MAX, Colour::Green)]) {
                    plain.take(now, tokens);
                    prop_assert!(single.mark(now, tokens, before) >= before);
                    prop_assert!(two.mark(now, tokens, before) >= before);
                }
            }
        }
    }

    #[test]
    fn a_slow_rate_loses_nothing_to_rounding() {
        // One token in three seconds' worth of looks, each too short for a whole one.
        let mut bucket = TokenBucket::new(1, 1, 0);
        assert!(bucket.take(0, 1));
        for now in (1..NANO).step_by(999_983) {
            assert!(!bucket.take(now, 1));
        }
        assert!(bucket.take(NANO, 1));
    }
}
