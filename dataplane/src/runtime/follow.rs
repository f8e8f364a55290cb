//! The clocks of a device, followed by the thread that hears what the device says.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::{ClockReport, ClockSource, ClockState, ClockSync, Clocks, HostClock, Timebase};
use crate::lane::Stamping;
use crate::provider::{Capability, Device};
use crate::runtime::watch::is_worth;
use crate::units::Ticks;

/// The clocks by which packets of a device may be stamped, where they are not the host's: its counter and its wall clock.
pub(crate) struct Follow {
    host: HostClock,
    clocks: Vec<Followed>,
}

struct Followed {
    sync: ClockSync,
    /// When the next step is.
    due: u64,
    /// How often it was not to be trusted any more.
    losses: u64,
}

impl Follow {
    /// Those that stamping so needs, after a first step: their stamps can be used from the first packet on.
    pub(crate) fn new<D: Device>(device: &D, host: &HostClock, stamps: Stamping) -> Self {
        let (counter, mut timebases) = (device.timebase(), Vec::new());
        let has = |capability| device.capabilities().has.contains(&capability);
        if stamps == Stamping::Wallclock && has(Capability::WallclockTimestamps) {
            timebases.push(Timebase::new(ClockSource::DeviceWallclock, 1_000_000, u64::MAX));
        }
        let asked = matches!(stamps, Stamping::Device | Stamping::Wallclock);
        if asked && has(Capability::Timestamps) && counter.source != host.timebase().source {
            timebases.push(counter);
        }
        let sync = |timebase: Timebase| match timebase.source {
            ClockSource::DeviceWallclock if device.wallclock_is_hosts() => ClockSync::new(timebase).of_host(),
            _ => ClockSync::new(timebase),
        };
        let follow = |timebase| Followed { sync: sync(timebase), due: 0, losses: 0 };
        let mut follow = Self { host: host.clone(), clocks: timebases.into_iter().map(follow).collect() };
        follow.step(device, &mut |_| {});
        follow
    }

    /// What the lanes of the device stamp by.
    pub(crate) fn clocks(&self) -> Clocks {
        let device = self.clocks.iter().map(|clock| clock.sync.clock()).collect();
        Clocks { host: self.host.clone(), device }
    }

    /// What is known of them.
    pub(crate) fn reports(&self) -> Vec<ClockReport> {
        self.clocks.iter().map(|clock| clock.sync.report()).collect()
    }

    /// How long until the next step is due, and at most `most`.
    pub(crate) fn rest(&self, most: Duration) -> Duration {
        let now = self.host.nanos().0;
        let due = self.clocks.iter().filter(|clock| !clock.sync.is_hopeless()).map(|clock| clock.due).min();
        due.map_or(most, |due| most.min(Duration::from_nanos(due.saturating_sub(now))))
    }

    /// Does the steps that are due. What a person should know is told in words.
    pub(crate) fn step<D: Device>(&mut self, device: &D, tell: &mut dyn FnMut(String)) {
        for Followed { sync, due, losses } in &mut self.clocks {
            if self.host.nanos().0 < *due || sync.is_hopeless() {
                continue;
            }
            let before = sync.state();
            let after = match sync.mapping().timebase.source {
                // It shows what the host's does, as far as anybody knows.
                ClockSource::DeviceWallclock => sync.step(&self.host, || Ok(wall())),
                _ => sync.step(&self.host, || device.raw_clock()),
            };
            *due = self.host.nanos().0 + sync.interval().0;
            let lost = (before == ClockState::Invalid, after == ClockState::Invalid);
            if lost == (false, true) {
                *losses += 1;
            }
            if lost.0 != lost.1 && is_worth(*losses) {
                tell(words(sync));
            }
        }
    }
}

fn wall() -> Ticks {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Ticks(since.map_or(0, |since| since.as_nanos() as u64))
}

fn words(sync: &ClockSync) -> String {
    let why = sync.fault().map_or_else(String::new, |fault| format!(": {fault}"));
    match sync.state() {
        ClockState::Invalid => format!("its clock is not used any more{why}; the host's stamps its packets"),
        state => format!("its clock is used again ({state})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::soft::{CounterEvent, CounterSpec, LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
    use crate::units::Nanos;

    const SECOND: u64 = 1_000_000_000;

    fn device(host: &HostClock, counter: Option<CounterSpec>) -> SoftDevice {
        let link = LinkSpec::Loopback(LoopbackLink::reflect());
        SoftDevice::new(SoftSpec { clock: host.clone(), counter, ..SoftSpec::new("s", link) }).unwrap()
    }

    #[test]
    fn only_what_is_stamped_by_is_followed() {
        let host = HostClock::manual();
        let sources = |counter: Option<CounterSpec>, stamps| {
            let reports = Follow::new(&device(&host, counter), &host, stamps).reports();
            reports.iter().map(|report| report.source).collect::<Vec<_>>()
        };
        let own = Some(CounterSpec::default());
        assert_eq!(sources(own.clone(), Stamping::Device), [ClockSource::DeviceTicks]);
        let both = [ClockSource::DeviceWallclock, ClockSource::DeviceTicks];
        assert_eq!(sources(own.clone(), Stamping::Wallclock), both);
        assert_eq!(sources(None, Stamping::Wallclock), [ClockSource::DeviceWallclock]);
        for (counter, stamps) in [(None, Stamping::Device), (own.clone(), Stamping::Host), (own, Stamping::None)] {
            assert!(sources(counter, stamps).is_empty());
        }
    }

    #[test]
    fn a_loss_and_a_return_are_told_once_each() {
        let host = HostClock::manual();
        let event = |seconds: u64, event| (Nanos(seconds * SECOND), event);
        let events = vec![event(5, CounterEvent::Freeze), event(6, CounterEvent::Resume)];
        let device = device(&host, Some(CounterSpec { events, ..CounterSpec::default() }));
        let mut follow = Follow::new(&device, &host, Stamping::Device);
        let mut lines = Vec::new();
        while host.nanos().0 < 10 * SECOND {
            let rest = follow.rest(Duration::from_secs(1));
            assert!(!rest.is_zero() && rest <= Duration::from_millis(250), "{rest:?}");
            host.advance(Nanos(rest.as_nanos() as u64));
            follow.step(&device, &mut |line| lines.push(line));
        }
        let [lost, found] = &lines[..] else { panic!("{lines:?}") };
        assert!(lost.contains("not used any more: it "), "{lost}");
        assert!(found.contains("used again"), "{found}");
        assert_eq!((follow.reports()[0].freezes, follow.reports()[0].state), (1, ClockState::Synced));
    }

    /// The thread that follows a clock that cannot be followed has nothing to do.
    #[test]
    fn what_is_hopeless_is_left_alone() {
        let host = HostClock::manual();
        let device = device(&host, Some(CounterSpec { says_khz: false, ..CounterSpec::default() }));
        let follow = Follow::new(&device, &host, Stamping::Device);
        assert_eq!(follow.rest(Duration::from_secs(3)), Duration::from_secs(3));
        assert_eq!(follow.reports()[0].state, ClockState::Invalid);
    }
}
