//! The ticks of a burst become stamps.

use std::sync::Arc;

use crate::clock::sync::HOLD;
use crate::clock::timebase::SHIFT;
use crate::clock::{ClockSource, ClockState, DeviceClock, HostClock, Mapping, Stamp, Timebase};
use crate::units::{Nanos, Ticks};

/// A completion that waited longer than this is of a clock that is wrong, in nanoseconds.
const MOST_AGE: u64 = 10_000_000_000;
/// A stamp so much before the last of its queue, or after now, is of a clock that is wrong.
const MOST_BACK: u64 = 1_000_000;
/// A counter that shows the same for so long, and for some ticks more, stands still, in nanoseconds.
const STILL: u64 = 100_000;
/// What a line is off by beyond what it says of itself.
const SLACK: u64 = 1_000;
/// A correction is spread out: a nanosecond in so many (a power of 2).
const SLEW: u32 = 11;
/// How long a wall clock is watched before it is found to be behind the host's.
const WATCH: u64 = 1_000_000_000;
/// How many bursts must have been seen in this time.
const WATCHED: u32 = 64;

/// The clocks that there are for the completions of a device.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    /// The host's.
    pub host: HostClock,
    /// Those of the device that are followed.
    pub device: Vec<Arc<DeviceClock>>,
}

impl Clocks {
    /// What stamps a completion queue whose completions carry ticks of this source.
    pub fn stamper(&self, granted: ClockSource) -> Stamper {
        Stamper::new(granted, &self.host, self.device.iter().find(|clock| clock.source() == granted))
    }
}

/// How many stamps were taken from where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StampCounts {
    /// From the device.
    pub device: u64,
    /// From the host's clock.
    pub host: u64,
    /// Of those from the host's clock: the device's were there, and could not be right.
    pub implausible: u64,
}

/// What makes the stamps of one completion queue. They never go back. It belongs to the worker that polls the queue: it
/// does not lock, and where the device has a clock it looks at the host's once a burst.
#[derive(Clone, Debug)]
pub struct Stamper {
    mode: Mode,
    host: HostClock,
    /// The last stamp.
    last: u64,
    counts: StampCounts,
}

#[derive(Clone, Debug)]
enum Mode {
    /// Nothing is stamped.
    None,
    /// A burst has one stamp: when it was polled.
    Burst,
    /// The device counts by the host's clock.
    Same(Timebase),
    /// By what is published of the device's clock.
    Device(Box<Reader>),
}

impl Stamper {
    /// Stamps nothing.
    pub fn none() -> Self {
        Self::with(Mode::None, &HostClock::manual())
    }

    /// For a queue whose completions carry ticks of `granted`, on a device with that clock. Without one, and without
    /// ticks, the host's clock is what there is.
    pub fn new(granted: ClockSource, host: &HostClock, device: Option<&Arc<DeviceClock>>) -> Self {
        let timebase = host.timebase();
        let mode = match device {
            Some(clock) if clock.source() == granted => Mode::Device(Box::new(Reader::new(clock.clone()))),
            _ if granted == timebase.source => Mode::Same(timebase),
            _ => Mode::Burst,
        };
        Self::with(mode, host)
    }

    fn with(mode: Mode, host: &HostClock) -> Self {
        Self { mode, host: host.clone(), last: 0, counts: StampCounts::default() }
    }

    /// How many stamps it has taken, and from where.
    pub fn counts(&self) -> StampCounts {
        self.counts
    }

    /// What its stamps are from when all is well.
    pub fn source(&self) -> ClockSource {
        match &self.mode {
            Mode::None => ClockSource::None,
            Mode::Burst => self.host.timebase().source,
            Mode::Same(timebase) => timebase.source,
            Mode::Device(reader) => reader.clock.source(),
        }
    }

    /// What its stamps are from when the device's clock cannot be used.
    pub fn host_source(&self) -> ClockSource {
        self.host.timebase().source
    }

    /// The stamps of a burst that has just been polled, one for each. Both slices are of one length.
    #[inline]
    pub fn stamp(&mut self, ticks: &[Ticks], stamps: &mut [Stamp]) {
        self.stamp_each(ticks, stamps, 1);
    }

    /// The stamp of a burst of `n` completions that all have these ticks.
    #[inline]
    pub fn stamp_all(&mut self, ticks: Ticks, n: usize) -> Stamp {
        // Without the loop over a burst, which takes several times as long.
        let Mode::Same(timebase) = &self.mode else { return self.stamp_one(ticks, n) };
        self.last = self.last.max(timebase.nanos(ticks).0);
        self.counts.host += n as u64;
        Stamp::new(Nanos(self.last), timebase.source)
    }

    /// The same, by any clock.
    #[inline(never)]
    fn stamp_one(&mut self, ticks: Ticks, n: usize) -> Stamp {
        let mut stamps = [Stamp::NONE];
        self.stamp_each(&[ticks], &mut stamps, n as u64);
        stamps[0]
    }

    /// The stamps of a burst; each is that of so many completions.
    #[inline]
    fn stamp_each(&mut self, ticks: &[Ticks], stamps: &mut [Stamp], times: u64) {
        match &mut self.mode {
            Mode::None => stamps.fill(Stamp::NONE),
            Mode::Burst => self.by_host(stamps, times, 0),
            Mode::Same(timebase) => {
                let timebase = *timebase;
                self.counts.host += stamps.len() as u64 * times;
                each(ticks, stamps, |ticks| {
                    self.last = self.last.max(timebase.nanos(ticks).0);
                    Stamp::new(Nanos(self.last), timebase.source)
                });
            }
            Mode::Device(reader) => {
                let now = self.host.nanos().0;
                match reader.stamp(now, &mut self.last, ticks, stamps) {
                    Ok(()) => self.counts.device += stamps.len() as u64 * times,
                    Err(implausible) => self.by_host(stamps, times, implausible),
                }
            }
        }
    }

    fn by_host(&mut self, stamps: &mut [Stamp], times: u64, implausible: u64) {
        self.last = self.last.max(self.host.nanos().0);
        stamps.fill(Stamp::new(Nanos(self.last), self.host.timebase().source));
        self.counts.host += stamps.len() as u64 * times;
        self.counts.implausible += implausible * times;
    }
}

/// Completions of a burst often have one stamp: it is worked out once.
#[inline]
fn each(ticks: &[Ticks], stamps: &mut [Stamp], mut stamp: impl FnMut(Ticks) -> Stamp) {
    let Some(&first) = ticks.first() else { return };
    if ticks.iter().fold(0, |bits, other| bits | (other.0 ^ first.0)) == 0 {
        return stamps.fill(stamp(first));
    }
    for (place, &ticks) in stamps.iter_mut().zip(ticks) {
        *place = stamp(ticks);
    }
}

/// What a queue knows of its device's clock.
#[derive(Clone, Debug)]
struct Reader {
    clock: Arc<DeviceClock>,
    seen: u64,
    mapping: Mapping,
    /// How far the line's slope is from the truth at most, in units of 2^-32.
    rate: u64,
    /// A completion is not older, in ticks.
    oldest: u64,
    /// What the last completion showed, and when that was seen first.
    showed: (u64, u64),
    /// For how long it may show the same.
    still: u64,
    /// What a line that came after another one is still away from it.
    carry: i64,
    /// Until when that has been made less.
    slewed: u64,
    watch: Watch,
}

/// How old the youngest completion was that came since a time.
#[derive(Clone, Copy, Debug)]
struct Watch {
    since: u64,
    bursts: u32,
    least: u64,
}

impl Watch {
    const fn new(since: u64) -> Self {
        Self { since, bursts: 0, least: u64::MAX }
    }
}

impl Reader {
    /// It waits for a line where one is just being published: without one the first burst would be the host's to stamp.
    fn new(clock: Arc<DeviceClock>) -> Self {
        // Nothing is published under this version.
        let mut seen = u64::MAX;
        let mapping = loop {
            match clock.read(&mut seen) {
                Some(mapping) => break mapping,
                None => std::thread::yield_now(),
            }
        };
        let mut reader = Self {
            clock,
            seen,
            mapping,
            rate: 0,
            oldest: 0,
            showed: (0, 0),
            still: STILL,
            carry: 0,
            slewed: 0,
            watch: Watch::new(0),
        };
        reader.take(mapping, mapping.nanos.0);
        reader
    }

    /// The error is the number of stamps that were there and are not to be believed.
    #[inline]
    fn stamp(&mut self, now: u64, last: &mut u64, ticks: &[Ticks], stamps: &mut [Stamp]) -> Result<(), u64> {
        if let Some(mapping) = self.clock.read(&mut self.seen) {
            self.take(mapping, now);
        }
        // The thread that follows the clock may have stopped.
        if self.mapping.state == ClockState::Invalid || now.saturating_sub(self.mapping.nanos.0) > HOLD {
            return Err(0);
        }
        let newest = ticks.last().map_or(0, |ticks| ticks.0);
        if newest != self.showed.0 {
            self.showed = (newest, now);
        } else if now.saturating_sub(self.showed.1) > self.still {
            return Err(ticks.len() as u64);
        }
        self.slew(now);
        if self.mapping.timebase.source != ClockSource::DeviceWallclock || self.clock.is_hosts() {
            return self.convert(now, 0, last, ticks, stamps);
        }
        let offset = self.clock.offset();
        match self.convert(now, offset, last, ticks, stamps) {
            Ok(()) => self.watch(now, offset, ticks),
            Err(_) => {
                // It is another wall clock than the host's. What came last came just now.
                let offset = self.mapping.at(Nanos(now)).0.0.wrapping_sub(newest) as i64;
                self.clock.set_offset(offset);
                self.convert(now, offset, last, ticks, stamps)?;
            }
        }
        Ok(())
    }

    /// Every stamp is reckoned back from now: so far a counter of few bits cannot have wrapped.
    #[inline]
    fn convert(
        &mut self,
        now: u64,
        offset: i64,
        last: &mut u64,
        ticks: &[Ticks],
        stamps: &mut [Stamp],
    ) -> Result<(), u64> {
        let Mapping { timebase, .. } = self.mapping;
        // As far as the line may be from the truth by now.
        let passed = u128::from(now.saturating_sub(self.mapping.nanos.0));
        let doubt = ((passed * u128::from(self.rate)) >> SHIFT) as u64 + 2 * self.mapping.error.0;
        let slack = (doubt + SLACK).min(timebase.period().0 / 4);
        let (latest, when) = self.mapping.at(Nanos(now + slack));
        let latest = latest.0.wrapping_sub(offset as u64);
        let when = when.0.saturating_add_signed(self.carry);
        // Frames that several cores of the host have stamped may come out of order.
        let most_back = if self.clock.is_hosts() { MOST_AGE } else { MOST_BACK };
        let (mut wrong, mut newest) = (false, *last);
        each(ticks, stamps, |ticks| {
            let age = latest.wrapping_sub(ticks.0) & timebase.mask;
            let nanos = when.saturating_sub(timebase.nanos(Ticks(age)).0);
            wrong |= age > self.oldest || nanos + most_back < newest;
            newest = nanos.min(now).max(newest);
            Stamp::new(Nanos(newest), timebase.source)
        });
        if wrong {
            return Err(ticks.len() as u64);
        }
        *last = newest;
        Ok(())
    }

    /// A new line. Stamps go over to it bit by bit, unless it has nothing to do with the old one.
    #[cold]
    fn take(&mut self, mapping: Mapping, now: u64) {
        let old = std::mem::replace(&mut self.mapping, mapping);
        let valid = |mapping: &Mapping| mapping.state != ClockState::Invalid;
        let goes_on = valid(&old) && valid(&mapping) && old.epoch == mapping.epoch;
        self.carry = if goes_on {
            let (ticks, when) = mapping.at(Nanos(now));
            let passed = Ticks(ticks.0.wrapping_sub(old.ticks.0));
            let before = old.nanos.0.wrapping_add(old.timebase.nanos(passed).0);
            let carry = before.wrapping_sub(when.0) as i64 + self.carry;
            if carry.unsigned_abs() < MOST_BACK { carry } else { 0 }
        } else {
            0
        };
        self.rate = ((u128::from(mapping.rate_ppb) << SHIFT) / 1_000_000_000) as u64;
        self.still = STILL + mapping.timebase.nanos(Ticks(16)).0;
        self.oldest = mapping.timebase.ticks(Nanos(MOST_AGE)).0.min(mapping.timebase.mask);
    }

    /// The longer a queue had no stamps, the less it notices a correction.
    #[inline]
    fn slew(&mut self, now: u64) {
        let step = now.saturating_sub(self.slewed) >> SLEW;
        self.carry = self.carry.signum() * (self.carry.abs() - step as i64).max(0);
        // What is less than a step is not lost.
        self.slewed += step << SLEW;
    }

    /// A queue that is polled all the time has, now and then, a completion that has only just come. If its youngest is
    /// old then its clock is behind.
    fn watch(&mut self, now: u64, offset: i64, ticks: &[Ticks]) {
        let newest = ticks.last().map_or(0, |ticks| ticks.0).wrapping_add(offset as u64);
        let age = self.mapping.at(Nanos(now)).0.0.wrapping_sub(newest);
        self.watch.least = self.watch.least.min(if age >> 63 == 1 { 0 } else { age });
        self.watch.bursts += 1;
        if now.saturating_sub(self.watch.since) > WATCH {
            if self.watch.bursts >= WATCHED && self.watch.least > MOST_BACK {
                self.clock.set_offset(offset.wrapping_add(self.watch.least as i64));
            }
            self.watch = Watch::new(now);
        }
    }
}
