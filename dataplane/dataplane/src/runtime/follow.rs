//! Synchronizes the clocks of a device with the system clock, so that device timestamps can be converted to the time of
//! the system clock. The event thread of the device compares the clocks at intervals. Each comparison is one step.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dataplane_core::clock::{ClockReport, ClockSource, ClockState, ClockSync, Clocks, HostClock, Timebase};
use dataplane_core::lane::Stamping;
use dataplane_core::units::Ticks;
use dataplane_core::verbs::{Capability, Device};

/// Synchronizes the clocks of a device that timestamp packets: the counter, the wall clock, or both. Skips a counter
/// that is itself the system clock, because this counter needs no synchronization.
pub(crate) struct ClockFollower {
    host: HostClock,
    clocks: Vec<FollowedClock>,
}

struct FollowedClock {
    sync: ClockSync,
    /// The time of the system clock at which the next step is due, in nanoseconds.
    due: u64,
    /// The number of times that the clock became unusable.
    losses: u64,
}

impl ClockFollower {
    /// Creates a follower for the clocks that `stamps` needs. Does the first step at once, so that the timestamp of the
    /// first packet is usable.
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
            ClockSource::DeviceWallclock if device.wallclock_is_system() => {
                ClockSync::new(timebase).mark_as_system_wallclock()
            }
            _ => ClockSync::new(timebase),
        };
        let follow = |timebase| FollowedClock { sync: sync(timebase), due: 0, losses: 0 };
        let mut follow = Self { host: host.clone(), clocks: timebases.into_iter().map(follow).collect() };
        follow.step(device, &mut |_, _| {});
        follow
    }

    /// Returns the clocks that the lanes of the device use for timestamps.
    pub(crate) fn clocks(&self) -> Clocks {
        let device = self.clocks.iter().map(|clock| clock.sync.clock()).collect();
        Clocks { host: self.host.clone(), device }
    }

    /// Returns a report about each followed clock.
    pub(crate) fn reports(&self) -> Vec<ClockReport> {
        self.clocks.iter().map(|clock| clock.sync.report()).collect()
    }

    /// Returns the time until the next step is due, at most `most`.
    pub(crate) fn until_due(&self, most: Duration) -> Duration {
        let now = self.host.nanos().0;
        let due = self.clocks.iter().filter(|clock| !clock.sync.is_unusable()).map(|clock| clock.due).min();
        due.map_or(most, |due| most.min(Duration::from_nanos(due.saturating_sub(now))))
    }

    /// Does the steps that are due. If a clock became unusable or usable again, calls `log` with a log line and with
    /// the number of times that the clock became unusable.
    pub(crate) fn step<D: Device>(&mut self, device: &D, log: &mut dyn FnMut(String, u64)) {
        for FollowedClock { sync, due, losses } in &mut self.clocks {
            if self.host.nanos().0 < *due || sync.is_unusable() {
                continue;
            }
            let before = sync.state();
            let after = match sync.mapping().timebase.source {
                // No verb reads the wall clock of a device. Assume that the device's wall clock shows the same time as
                // the system's wall clock.
                ClockSource::DeviceWallclock => sync.step(&self.host, || Ok(wall())),
                _ => sync.step(&self.host, || device.raw_clock()),
            };
            *due = self.host.nanos().0 + sync.interval().0;
            let lost = (before == ClockState::Invalid, after == ClockState::Invalid);
            if lost == (false, true) {
                *losses += 1;
            }
            if lost.0 != lost.1 {
                log(words(sync), *losses);
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
        ClockState::Invalid => format!("the device clock is no longer used, so packets get software timestamps{why}"),
        state => format!("the device clock is used again ({state})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::units::{Nanos, Period};
    use dataplane_soft::{CounterEvent, CounterEventKind, CounterSpec, LinkSpec, LoopbackLink, SoftDevice, SoftSpec};

    const SECOND: u64 = 1_000_000_000;

    fn device(host: &HostClock, counter: Option<CounterSpec>) -> SoftDevice {
        let link = LinkSpec::Loopback(LoopbackLink::reflect());
        SoftDevice::new(SoftSpec { clock: host.clone(), counter, ..SoftSpec::new("s", link) }).unwrap()
    }

    #[test]
    fn only_clocks_that_timestamp_packets_are_followed() {
        let host = HostClock::manual();
        let sources = |counter: Option<CounterSpec>, stamps| {
            let reports = ClockFollower::new(&device(&host, counter), &host, stamps).reports();
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
    fn clock_loss_and_recovery_are_logged_once_each() {
        let host = HostClock::manual();
        let event = |seconds, kind| CounterEvent { at: Period::from_secs(seconds), kind, value: 0 };
        let events = vec![event(5, CounterEventKind::Freeze), event(6, CounterEventKind::Resume)];
        let device = device(&host, Some(CounterSpec { events, ..CounterSpec::default() }));
        let mut follow = ClockFollower::new(&device, &host, Stamping::Device);
        let mut lines = Vec::new();
        while host.nanos().0 < 10 * SECOND {
            let until_due = follow.until_due(Duration::from_secs(1));
            assert!(!until_due.is_zero() && until_due <= Duration::from_millis(250), "{until_due:?}");
            host.advance(Nanos(until_due.as_nanos() as u64));
            follow.step(&device, &mut |line, _| lines.push(line));
        }
        let [lost, found] = &lines[..] else { panic!("{lines:?}") };
        assert!(lost.contains("no longer used"), "{lost}");
        assert!(found.contains("used again"), "{found}");
        assert_eq!((follow.reports()[0].freezes, follow.reports()[0].state), (1, ClockState::Synced));
    }

    /// A follower does no steps for a clock that can never be used.
    #[test]
    fn unusable_clock_is_not_polled() {
        let host = HostClock::manual();
        let device = device(&host, Some(CounterSpec { reports_khz: false, ..CounterSpec::default() }));
        let follow = ClockFollower::new(&device, &host, Stamping::Device);
        assert_eq!(follow.until_due(Duration::from_secs(3)), Duration::from_secs(3));
        assert_eq!(follow.reports()[0].state, ClockState::Invalid);
    }
}
