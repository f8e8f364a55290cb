//! The rate limit of a send queue: a token bucket on the device's clock. If too few tokens are available, the device
//! does not wait, but leaves the frame in the send queue and tries again later.

use dataplane_core::clock::{HostClock, Timebase};
use dataplane_core::units::Ticks;
use dataplane_core::verbs::RateLimit;

/// The maximum burst in bytes, if the settings contain no burst.
const DEFAULT_BURST: u32 = 64 << 10;
/// The rates that a software device supports, in kbit/s.
pub(crate) const RATES: (u32, u32) = (1, u32::MAX);

/// The token bucket of a send queue. A frame takes one token per byte.
#[derive(Debug)]
pub(crate) struct Pacer {
    clock: HostClock,
    timebase: Timebase,
    start: Ticks,
    limit: RateLimit,
    /// The time at which the bucket is full again, in picoseconds since `start`.
    full_at: u128,
}

impl Pacer {
    pub(crate) fn new(clock: &HostClock, limit: RateLimit) -> Self {
        Self { clock: clock.clone(), timebase: clock.timebase(), start: clock.now(), limit, full_at: 0 }
    }

    /// Takes the tokens of a frame. Returns `false` if there are too few tokens at this time. A frame that is longer
    /// than the burst needs a full bucket.
    pub(crate) fn admits(&mut self, bytes: usize) -> bool {
        if self.limit.kbps == 0 {
            return true;
        }
        let now = u128::from(self.timebase.between(self.start, self.clock.now()).0) * 1000;
        // One bit at 1 kbit/s takes 1 ms.
        let time = |bytes: u128| bytes * 8 * 1_000_000_000 / u128::from(self.limit.kbps);
        let burst = if self.limit.burst == 0 { DEFAULT_BURST } else { self.limit.burst };
        let full_at = self.full_at.max(now);
        let cost = time(bytes as u128);
        let admits = full_at == now || full_at - now + cost <= time(burst.into());
        if admits {
            self.full_at = full_at + cost;
        }
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::units::Nanos;

    #[test]
    fn bucket_refills_at_the_rate_up_to_the_burst() {
        let clock = HostClock::manual();
        // 8 Mbit/s is one byte per microsecond.
        let mut pacer = Pacer::new(&clock, RateLimit { kbps: 8000, burst: 1000, typical_packet_size: 0 });
        let mut sent = |bytes| pacer.admits(bytes);
        assert_eq!([sent(600), sent(400), sent(1)], [true, true, false]);
        clock.advance(Nanos(1_000));
        assert_eq!([sent(2), sent(1), sent(1)], [false, true, false]);
        clock.advance(Nanos(10_000_000));
        assert_eq!([sent(1000), sent(1)], [true, false]);
        // A frame that is longer than the burst waits for a full bucket.
        clock.advance(Nanos(999_000));
        assert!(!sent(5000));
        clock.advance(Nanos(1_000));
        assert_eq!([sent(5000), sent(1)], [true, false]);
    }

    #[test]
    fn rate_0_does_not_limit() {
        let mut pacer = Pacer::new(&HostClock::manual(), RateLimit::default());
        assert!((0..100).all(|_| pacer.admits(1 << 20)));
    }
}
