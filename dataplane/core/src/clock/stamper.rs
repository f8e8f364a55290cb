//! Conversion of the ticks of a burst (the completions of one poll) to stamps.

use std::sync::Arc;

use crate::clock::sync::HOLD_TIME;
use crate::clock::timebase::SHIFT;
use crate::clock::{ClockSource, ClockState, DeviceClock, HostClock, Mapping, Stamp, Timebase};
use crate::units::{Nanos, Ticks};

/// The maximum age of a completion in nanoseconds. An older completion means that the clock is wrong.
const MAX_AGE: u64 = 10_000_000_000;
/// The maximum backward step of a queue's stamps in nanoseconds. A larger step means that the clock is wrong. The
/// stamper applies a correction of this size or more at once, not gradually.
const MAX_BACKSTEP: u64 = 1_000_000;
/// The time in nanoseconds after which an unchanged counter counts as stopped. The duration of 16 ticks is added to
/// this time.
const STOPPED_AFTER: u64 = 100_000;
/// The tolerance in nanoseconds that is added to the estimated error of a mapping.
const SLACK: u64 = 1_000;
/// The slew rate of corrections: one nanosecond per 2^11 nanoseconds.
const SLEW: u32 = 11;
/// The time in nanoseconds for which a wall clock is observed, before a stamper decides whether the wall clock is
/// behind.
const WATCH_TIME: u64 = 1_000_000_000;
/// The minimum number of bursts that must be observed in [`WATCH_TIME`].
const WATCH_BURSTS: u32 = 64;

/// The available clocks for the completions of a device.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    /// The system clock.
    pub host: HostClock,
    /// The synchronized clocks of the device.
    pub device: Vec<Arc<DeviceClock>>,
}

impl Clocks {
    /// Returns the stamper of a completion queue whose completions carry ticks of this source.
    pub fn stamper(&self, granted: ClockSource) -> Stamper {
        Stamper::new(granted, &self.host, self.device.iter().find(|clock| clock.source() == granted))
    }
}

/// The numbers of stamps, by the clock that they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StampCounts {
    /// Stamps from the device.
    pub device: u64,
    /// Stamps from the system clock.
    pub host: u64,
    /// Stamps that were taken from the system clock because the device's stamps could not be right. `host` includes
    /// these stamps.
    pub implausible: u64,
}

/// The source of stamps for one completion queue. The stamps never go backwards. A stamper belongs to the worker that
/// polls the queue, and takes no lock. If the stamper needs the system clock, it reads this clock once per burst.
#[derive(Clone, Debug)]
pub struct Stamper {
    mode: StampMode,
    host: HostClock,
    /// The time of the last stamp, in nanoseconds.
    last: u64,
    counts: StampCounts,
}

#[derive(Clone, Debug)]
enum StampMode {
    /// No stamps.
    None,
    /// One stamp per burst: the time of the poll.
    Burst,
    /// The completions carry ticks of the system clock.
    Same(Timebase),
    /// Stamps from the device's clock, through its published mapping.
    Device(Box<Reader>),
}

impl Stamper {
    /// Creates a stamper that takes no stamps.
    pub fn none() -> Self {
        Self::with(StampMode::None, &HostClock::manual())
    }

    /// Creates a stamper for a queue. `granted` is the source of the ticks that the completions of the queue carry, and
    /// `device` is the clock of the device. Without a device clock or without ticks, the stamper uses the system clock.
    pub fn new(granted: ClockSource, host: &HostClock, device: Option<&Arc<DeviceClock>>) -> Self {
        let timebase = host.timebase();
        let mode = match device {
            Some(clock) if clock.source() == granted => StampMode::Device(Box::new(Reader::new(clock.clone()))),
            _ if granted == timebase.source => StampMode::Same(timebase),
            _ => StampMode::Burst,
        };
        Self::with(mode, host)
    }

    fn with(mode: StampMode, host: &HostClock) -> Self {
        Self { mode, host: host.clone(), last: 0, counts: StampCounts::default() }
    }

    /// Returns the numbers of stamps, by the clock that they come from.
    pub fn counts(&self) -> StampCounts {
        self.counts
    }

    /// Returns the source of the stamps while the device's clock is usable.
    pub fn source(&self) -> ClockSource {
        match &self.mode {
            StampMode::None => ClockSource::None,
            StampMode::Burst => self.host.timebase().source,
            StampMode::Same(timebase) => timebase.source,
            StampMode::Device(reader) => reader.clock.source(),
        }
    }

    /// Returns the source of the stamps while the device's clock is unusable.
    pub fn host_source(&self) -> ClockSource {
        self.host.timebase().source
    }

    /// Fills in the stamps of a burst that was just polled. Both slices have the same length.
    #[inline]
    pub fn stamp(&mut self, ticks: &[Ticks], stamps: &mut [Stamp]) {
        self.stamp_each(ticks, stamps, 1);
    }

    /// Returns the stamp of a burst of `n` completions that all have the same ticks.
    #[inline]
    pub fn stamp_all(&mut self, ticks: Ticks, n: usize) -> Stamp {
        // This direct path is several times as fast as the loop over a burst in `stamp_each`.
        let StampMode::Same(timebase) = &self.mode else { return self.stamp_one(ticks, n) };
        self.last = self.last.max(timebase.nanos(ticks).0);
        self.counts.host += n as u64;
        Stamp::new(Nanos(self.last), timebase.source)
    }

    /// Returns the stamp of `n` completions with the same ticks, in any mode.
    #[inline(never)]
    fn stamp_one(&mut self, ticks: Ticks, n: usize) -> Stamp {
        let mut stamps = [Stamp::NONE];
        self.stamp_each(&[ticks], &mut stamps, n as u64);
        stamps[0]
    }

    /// Fills in the stamps of a burst. Each stamp stands for `times` completions.
    #[inline]
    fn stamp_each(&mut self, ticks: &[Ticks], stamps: &mut [Stamp], times: u64) {
        match &mut self.mode {
            StampMode::None => stamps.fill(Stamp::NONE),
            StampMode::Burst => self.stamp_by_system(stamps, times, 0),
            StampMode::Same(timebase) => {
                let timebase = *timebase;
                self.counts.host += stamps.len() as u64 * times;
                each(ticks, stamps, |ticks| {
                    self.last = self.last.max(timebase.nanos(ticks).0);
                    Stamp::new(Nanos(self.last), timebase.source)
                });
            }
            StampMode::Device(reader) => {
                let now = self.host.nanos().0;
                match reader.stamp(now, &mut self.last, ticks, stamps) {
                    Ok(()) => self.counts.device += stamps.len() as u64 * times,
                    Err(implausible) => self.stamp_by_system(stamps, times, implausible),
                }
            }
        }
    }

    fn stamp_by_system(&mut self, stamps: &mut [Stamp], times: u64, implausible: u64) {
        self.last = self.last.max(self.host.nanos().0);
        stamps.fill(Stamp::new(Nanos(self.last), self.host.timebase().source));
        self.counts.host += stamps.len() as u64 * times;
        self.counts.implausible += implausible * times;
    }
}

/// Converts ticks to stamps. If all ticks are equal, which is frequent, the stamp is computed once.
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

/// The conversion from a device clock to stamps for one completion queue. Holds the current mapping of the clock and
/// the checks that detect a wrong clock.
#[derive(Clone, Debug)]
struct Reader {
    clock: Arc<DeviceClock>,
    seen: u64,
    mapping: Mapping,
    /// The maximum error of the mapping's slope, in units of 2^-32.
    rate: u64,
    /// The maximum age of a completion in ticks.
    oldest: u64,
    /// The ticks of the last completion, and the time at which the reader first saw these ticks.
    last_seen: (u64, u64),
    /// The time in nanoseconds after which unchanged ticks mean that the counter has stopped.
    stopped_after: u64,
    /// The remaining difference between the old and the new mapping in nanoseconds. The difference is slewed to 0.
    carry: i64,
    /// The time up to which `carry` was slewed.
    slewed: u64,
    watch: Watch,
}

/// The minimum age, in ticks, of the completions since the time `since`. See [`Reader::watch`].
#[derive(Clone, Copy, Debug)]
struct Watch {
    since: u64,
    bursts: u32,
    min_age: u64,
}

impl Watch {
    const fn new(since: u64) -> Self {
        Self { since, bursts: 0, min_age: u64::MAX }
    }
}

impl Reader {
    /// Creates the reader with the current mapping. Waits while a mapping is being published, because without a mapping
    /// the stamper would use the system clock for the first burst.
    fn new(clock: Arc<DeviceClock>) -> Self {
        // No published mapping has this version, so every mapping counts as new.
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
            last_seen: (0, 0),
            stopped_after: STOPPED_AFTER,
            carry: 0,
            slewed: 0,
            watch: Watch::new(0),
        };
        reader.take(mapping, mapping.nanos.0);
        reader
    }

    /// Stamps a burst. On an error, returns the number of implausible device stamps.
    #[inline]
    fn stamp(&mut self, now: u64, last: &mut u64, ticks: &[Ticks], stamps: &mut [Stamp]) -> Result<(), u64> {
        if let Some(mapping) = self.clock.read(&mut self.seen) {
            self.take(mapping, now);
        }
        // If the mapping is older than `HOLD_TIME`, the thread that synchronizes the clock may have stopped.
        if self.mapping.state == ClockState::Invalid || now.saturating_sub(self.mapping.nanos.0) > HOLD_TIME {
            return Err(0);
        }
        let newest = ticks.last().map_or(0, |ticks| ticks.0);
        if newest != self.last_seen.0 {
            self.last_seen = (newest, now);
        } else if now.saturating_sub(self.last_seen.1) > self.stopped_after {
            return Err(ticks.len() as u64);
        }
        self.slew(now);
        if self.mapping.timebase.source != ClockSource::DeviceWallclock || self.clock.is_system_clock() {
            return self.convert(now, 0, last, ticks, stamps);
        }
        let offset = self.clock.offset();
        match self.convert(now, offset, last, ticks, stamps) {
            Ok(()) => self.watch(now, offset, ticks),
            Err(_) => {
                // The ticks come from the device's own wall clock. Assume that the last completion has arrived just
                // now.
                let offset = self.mapping.at(Nanos(now)).0.0.wrapping_sub(newest) as i64;
                self.clock.set_offset(offset);
                self.convert(now, offset, last, ticks, stamps)?;
            }
        }
        Ok(())
    }

    /// Converts ticks to stamps. The calculation subtracts the age of each completion from the current time. The
    /// calculation does not start at the reference point of the mapping, because a counter with few bits may have
    /// wrapped since then.
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
        // The maximum error of the mapping now.
        let passed = u128::from(now.saturating_sub(self.mapping.nanos.0));
        let doubt = ((passed * u128::from(self.rate)) >> SHIFT) as u64 + 2 * self.mapping.error.0;
        let slack = (doubt + SLACK).min(timebase.period().0 / 4);
        let (latest, when) = self.mapping.at(Nanos(now + slack));
        let latest = latest.0.wrapping_sub(offset as u64);
        let when = when.0.saturating_add_signed(self.carry);
        // If the device clock is the system's own wall clock, several cores stamp the frames, so the stamps may be out
        // of order.
        let max_backstep = if self.clock.is_system_clock() { MAX_AGE } else { MAX_BACKSTEP };
        let (mut wrong, mut newest) = (false, *last);
        each(ticks, stamps, |ticks| {
            let age = latest.wrapping_sub(ticks.0) & timebase.mask;
            let nanos = when.saturating_sub(timebase.nanos(Ticks(age)).0);
            wrong |= age > self.oldest || nanos + max_backstep < newest;
            newest = nanos.min(now).max(newest);
            Stamp::new(Nanos(newest), timebase.source)
        });
        if wrong {
            return Err(ticks.len() as u64);
        }
        *last = newest;
        Ok(())
    }

    /// Installs a new mapping. Stamps move to the new mapping gradually, unless the mappings have different epochs, a
    /// mapping is invalid, or the mappings differ by [`MAX_BACKSTEP`] or more.
    #[cold]
    fn take(&mut self, mapping: Mapping, now: u64) {
        let old = std::mem::replace(&mut self.mapping, mapping);
        let valid = |mapping: &Mapping| mapping.state != ClockState::Invalid;
        let continues = valid(&old) && valid(&mapping) && old.epoch == mapping.epoch;
        self.carry = if continues {
            let (ticks, when) = mapping.at(Nanos(now));
            let passed = Ticks(ticks.0.wrapping_sub(old.ticks.0));
            let before = old.nanos.0.wrapping_add(old.timebase.nanos(passed).0);
            let carry = before.wrapping_sub(when.0) as i64 + self.carry;
            if carry.unsigned_abs() < MAX_BACKSTEP { carry } else { 0 }
        } else {
            0
        };
        self.rate = ((u128::from(mapping.rate_ppb) << SHIFT) / 1_000_000_000) as u64;
        self.stopped_after = STOPPED_AFTER + mapping.timebase.nanos(Ticks(16)).0;
        self.oldest = mapping.timebase.ticks(Nanos(MAX_AGE)).0.min(mapping.timebase.mask);
    }

    /// Reduces the remaining correction in proportion to the time since the last stamps.
    #[inline]
    fn slew(&mut self, now: u64) {
        let step = now.saturating_sub(self.slewed) >> SLEW;
        self.carry = self.carry.signum() * (self.carry.abs() - step as i64).max(0);
        // Keep the remainder that is less than a step.
        self.slewed += step << SLEW;
    }

    /// Observes the age of completions. A worker that polls a queue continuously sometimes finds a completion that has
    /// just arrived. If even the youngest completion in [`WATCH_TIME`] is old, the device's wall clock is behind.
    fn watch(&mut self, now: u64, offset: i64, ticks: &[Ticks]) {
        let newest = ticks.last().map_or(0, |ticks| ticks.0).wrapping_add(offset as u64);
        let age = self.mapping.at(Nanos(now)).0.0.wrapping_sub(newest);
        self.watch.min_age = self.watch.min_age.min(if age >> 63 == 1 { 0 } else { age });
        self.watch.bursts += 1;
        if now.saturating_sub(self.watch.since) > WATCH_TIME {
            if self.watch.bursts >= WATCH_BURSTS && self.watch.min_age > MAX_BACKSTEP {
                self.clock.set_offset(offset.wrapping_add(self.watch.min_age as i64));
            }
            self.watch = Watch::new(now);
        }
    }
}
