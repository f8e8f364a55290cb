//! The counter of a device, which its stamps count, and what can be wrong with it.

use crate::clock::{ClockSource, HostClock, Timebase};
use crate::error::VerbError;
use crate::units::{Nanos, Ticks};

/// A counter with a crystal of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterSpec {
    /// Thousand ticks a second, as is written on the crystal.
    pub khz: u64,
    /// Whether the device says so. If not it says 0.
    pub says_khz: bool,
    /// How much faster it really is, in parts in a billion.
    pub drift_ppb: i64,
    /// What it shows when the device is made.
    pub start: u64,
    /// What happens to it, and how long after the device was made; in this order.
    pub events: Vec<(Nanos, CounterEvent)>,
}

impl Default for CounterSpec {
    /// A gigahertz that is exact.
    fn default() -> Self {
        Self { khz: 1_000_000, says_khz: true, drift_ppb: 0, start: 0, events: Vec::new() }
    }
}

/// What happens to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterEvent {
    /// It shows so many ticks more from now on, or less.
    Jump(i64),
    /// It starts anew, as after a reset of the firmware.
    Set(u64),
    /// It stands still.
    Freeze,
    /// It goes on from where it stands.
    Resume,
    /// From now on it is so much faster than is written on it, in parts in a billion.
    Drift(i64),
    /// It cannot be read any more, for this `errno`; completions are stamped all the same.
    Mute(i32),
    /// It can be read again.
    Speak,
}

/// A counter, from one event to the next.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// Since the device was made.
    from: u64,
    ticks: u64,
    /// Ticks of a nanosecond, in units of 2^-48.
    rate: u64,
    mute: Option<i32>,
}

const SHIFT: u32 = 48;

impl Stretch {
    fn at(&self, time: u64) -> u64 {
        let passed = u128::from(time - self.from) * u128::from(self.rate);
        self.ticks.wrapping_add((passed >> SHIFT) as u64)
    }
}

/// The counter of a device: of its own crystal, or the host's.
#[derive(Debug)]
pub(super) struct Counter {
    host: HostClock,
    timebase: Timebase,
    made: u64,
    /// None: the host's.
    stretches: Vec<Stretch>,
}

impl Counter {
    pub(super) fn new(host: &HostClock, mask: u64, spec: Option<&CounterSpec>) -> Self {
        let timebase = match spec {
            Some(spec) => Timebase::new(ClockSource::DeviceTicks, if spec.says_khz { spec.khz } else { 0 }, mask),
            None if mask == u64::MAX => host.timebase(),
            // With less bits than the host's it is another one.
            None => host.timebase().masked(ClockSource::DeviceTicks, mask),
        };
        let stretches = spec.map_or_else(Vec::new, stretches);
        Self { host: host.clone(), timebase, made: host.nanos().0, stretches }
    }

    /// What it says of itself.
    pub(super) fn timebase(&self) -> Timebase {
        self.timebase
    }

    fn stretch(&self, time: u64) -> Option<&Stretch> {
        self.stretches.iter().rfind(|stretch| stretch.from <= time)
    }

    /// What a completion is stamped with.
    #[inline(always)]
    pub(super) fn now(&self) -> Ticks {
        let ticks = if self.stretches.is_empty() { self.host.now().0 } else { self.stretched() };
        Ticks(ticks & self.timebase.mask)
    }

    /// By its own crystal.
    #[inline(never)]
    fn stretched(&self) -> u64 {
        let time = self.host.nanos().0.saturating_sub(self.made);
        self.stretch(time).map_or(0, |stretch| stretch.at(time))
    }

    /// What asking for it gives.
    pub(super) fn read(&self) -> Result<Ticks, VerbError> {
        let time = self.host.nanos().0.saturating_sub(self.made);
        match self.stretch(time).and_then(|stretch| stretch.mute) {
            Some(errno) => Err(VerbError::new("ibv_query_rt_values_ex", errno)),
            None => Ok(self.now()),
        }
    }
}

/// What is planned, worked out: what it shows at a time depends on nothing else.
fn stretches(spec: &CounterSpec) -> Vec<Stretch> {
    let rate = |ppb: i64| {
        let billionths = u128::from(1_000_000_000u64.saturating_add_signed(ppb));
        u64::try_from(((u128::from(spec.khz) * billionths) << SHIFT) / 1_000_000_000_000_000).unwrap_or(u64::MAX)
    };
    let mut last = Stretch { from: 0, ticks: spec.start, rate: rate(spec.drift_ppb), mute: None };
    let mut usual = last.rate;
    let mut all = vec![last];
    for (time, event) in &spec.events {
        let from = time.0.max(last.from);
        last = Stretch { from, ticks: last.at(from), ..last };
        match *event {
            CounterEvent::Jump(by) => last.ticks = last.ticks.wrapping_add_signed(by),
            CounterEvent::Set(to) => last.ticks = to,
            CounterEvent::Freeze => last.rate = 0,
            CounterEvent::Resume => last.rate = usual,
            CounterEvent::Drift(ppb) => (last.rate, usual) = (rate(ppb), rate(ppb)),
            CounterEvent::Mute(errno) => last.mute = Some(errno),
            CounterEvent::Speak => last.mute = None,
        }
        all.push(last);
    }
    all
}
