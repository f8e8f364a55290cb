//! Disturbances of the core of the tester without another thread on this core: the hypervisor takes the core, the
//! frequency changes, or other hardware threads of the same physical core are busy.

use dataplane::soft::doctor::Roots;
use dataplane::topology::{CoreTime, parse_ranges};

/// The length of a clock tick in `/proc/stat`, in nanoseconds.
const TICK: u64 = 10_000_000;

/// The disturbances of the core of the tester in a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreLoad {
    /// The time in which the hypervisor ran something else on the core of the tester, in nanoseconds. The kernel counts
    /// whole ticks of 10 ms, so the time is a lower limit: the counted ticks minus one tick.
    pub stolen: u64,
    /// The busy time of the busiest other thread of the physical core, in nanoseconds. A lower limit, like `stolen`.
    pub neighbour: u64,
    /// The frequency of the core at the start and at the end of the trial in MHz, if cpufreq reports the frequency.
    pub megahertz: Option<(f64, f64)>,
}

/// The values of the core of the tester at one time. A value that the host does not report is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CoreSample {
    time: Option<CoreTime>,
    /// The times of the other threads of the physical core.
    neighbours: Vec<Option<CoreTime>>,
    megahertz: Option<f64>,
}

impl CoreSample {
    /// Reads the values of a core. Without a core, returns no values.
    pub(super) fn read(roots: &Roots, core: Option<u32>) -> Self {
        let Some(core) = core else { return Self::default() };
        let stat = roots.proc("stat").unwrap_or_default();
        let folder = format!("devices/system/cpu/cpu{core}");
        let siblings = roots.sys(&format!("{folder}/topology/thread_siblings_list")).unwrap_or_default();
        let neighbours = parse_ranges(&siblings).into_iter().filter(|sibling| *sibling != core);
        let kilohertz = roots.sys(&format!("{folder}/cpufreq/scaling_cur_freq"));
        Self {
            time: CoreTime::parse(&stat, core),
            neighbours: neighbours.map(|sibling| CoreTime::parse(&stat, sibling)).collect(),
            megahertz: kilohertz.and_then(|text| text.parse::<f64>().ok()).map(|kilohertz| kilohertz / 1_000.0),
        }
    }

    /// Returns the disturbances of the core since an earlier sample.
    pub(super) fn since(&self, before: &Self) -> CoreLoad {
        let increase = |now: Option<CoreTime>, before: Option<CoreTime>, of: fn(&CoreTime) -> u64| {
            let ticks = now.zip(before).map_or(0, |(now, before)| of(&now).saturating_sub(of(&before)));
            // The first tick may have started before the earlier sample.
            ticks.saturating_sub(1) * TICK
        };
        let neighbours = self.neighbours.iter().zip(&before.neighbours);
        CoreLoad {
            stolen: increase(self.time, before.time, |time| time.steal),
            neighbour: neighbours.map(|(now, old)| increase(*now, *old, CoreTime::busy)).max().unwrap_or(0),
            megahertz: before.megahertz.zip(self.megahertz),
        }
    }
}

#[cfg(test)]
mod tests {
    use dataplane_testing::Folder;

    use super::*;

    /// Core 1 is the core of the tester. Its physical core also has thread 3.
    struct Host(Roots, Folder);

    impl Host {
        fn new() -> Self {
            let folder = Folder::new();
            Self(Roots { sys: folder.file("sys"), proc: folder.file("proc") }, folder)
        }

        /// Sets the steal time of core 1 and the busy time of core 3 in ticks, and the frequency of core 1 in kHz.
        fn set(&self, steal: u64, busy: u64, kilohertz: u64) {
            let stat =
                format!("cpu 0 0 0 0 0 0 0 0 0 0\ncpu1 9 0 0 50 1 0 0 {steal} 0 0\ncpu3 {busy} 0 0 70 2 0 0 5 0 0\n");
            self.1.write("proc/stat", stat);
            let folder = "sys/devices/system/cpu/cpu1";
            self.1.write(&format!("{folder}/topology/thread_siblings_list"), "1,3\n");
            self.1.write(&format!("{folder}/cpufreq/scaling_cur_freq"), format!("{kilohertz}\n"));
        }
    }

    #[test]
    fn steal_frequency_and_neighbour_are_read_from_the_host() {
        let host = Host::new();
        host.set(7, 100, 3_000_000);
        let before = CoreSample::read(&host.0, Some(1));
        assert_eq!(before.since(&before), CoreLoad { megahertz: Some((3000.0, 3000.0)), ..CoreLoad::default() });
        host.set(10, 150, 2_000_000);
        let load = CoreSample::read(&host.0, Some(1)).since(&before);
        let expected = CoreLoad { stolen: 2 * TICK, neighbour: 49 * TICK, megahertz: Some((3000.0, 2000.0)) };
        assert_eq!(load, expected);
    }

    #[test]
    fn missing_values_are_no_disturbance() {
        let host = Host::new();
        let before = CoreSample::read(&host.0, Some(1));
        assert_eq!(before, CoreSample::default());
        host.set(7, 100, 3_000_000);
        let after = CoreSample::read(&host.0, Some(1));
        assert_eq!(after.since(&before), CoreLoad::default());
        assert_eq!(CoreSample::read(&host.0, None).since(&after), CoreLoad::default());
    }
}
