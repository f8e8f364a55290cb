//! The time of a core in each state, from `/proc/stat` (proc_stat(5)).

/// The time of a core in clock ticks of 10 ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// The time in which the core had nothing to run.
    pub idle: u64,
    /// The time in which the hypervisor ran something else on the physical core.
    pub steal: u64,
    /// The sum of all times.
    pub total: u64,
}

impl CoreTime {
    /// Returns the time of a core. `text` is the content of `/proc/stat`. Returns `None` if the text has no line for
    /// the core, or if the kernel does not report the steal time.
    pub fn parse(text: &str, core: u32) -> Option<Self> {
        let name = format!("cpu{core}");
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(name.as_str()))?;
        // user, nice, system, idle, iowait, irq, softirq, steal. The guest times that follow are part of user and nice.
        let times: Vec<u64> =
            line.split_whitespace().skip(1).take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let [.., idle, iowait, _, _, steal] = times[..] else { return None };
        (times.len() == 8).then(|| Self { idle: idle + iowait, steal, total: times.iter().sum() })
    }

    /// Returns the time in which the core ran something.
    pub fn busy(&self) -> u64 {
        self.total.saturating_sub(self.idle).saturating_sub(self.steal)
    }
}
