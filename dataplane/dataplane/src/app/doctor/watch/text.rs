//! The text that `doctor --watch` prints.

use std::fmt::Write;

use super::sample::{CoreChange, Interval, MemoryChange, Subject, Unavailable, WorkerChange};
use dataplane_core::telemetry::{Duration, Size};

/// The maximum number of interrupt sources that the line of a core names.
const SOURCES: usize = 3;
/// The minimum change of a frequency that is printed, as a share of the frequency. Smaller changes are noise.
const FREQUENCY_NOISE: f64 = 0.02;
/// The minimum wait in the run queue that is printed, in nanoseconds per second of the interval.
const SHORT_WAIT: f64 = 100_000.0;

/// Returns the lines that precede the first interval.
pub(super) fn heading(subject: &Subject, unavailable: &[Unavailable]) -> String {
    let cores: Vec<String> = subject.cores.iter().map(u32::to_string).collect();
    let mut text = format!("process {}, workers on cores {}\n", subject.process, cores.join(", "));
    for Unavailable { what, why } in unavailable {
        let _ = writeln!(text, "not available: {what}: {why}");
    }
    text
}

/// Returns the lines of an interval. A value that did not change has no line. `is_first` is `true` for the first
/// interval, which also prints values that are not changes.
pub(super) fn lines(interval: &Interval, is_first: bool) -> String {
    let seconds = interval.interval_s.max(f64::MIN_POSITIVE);
    let mut lines: Vec<String> = Vec::new();
    lines.extend(interval.memory.as_ref().and_then(|memory| remote(memory, is_first)));
    lines.extend(interval.cores.iter().filter_map(|core| of_core(core, seconds, is_first)));
    lines.extend(interval.workers.iter().filter_map(|worker| of_worker(worker, seconds)));
    for link in interval.links.iter().filter(|link| !link.errors.is_empty()) {
        let errors: Vec<String> = link.errors.iter().map(|(name, count)| format!("{name} +{count}")).collect();
        lines.push(format!("port {}: {}", link.port, errors.join(", ")));
    }
    if lines.is_empty() {
        lines.push("no changes".to_owned());
    }
    let mut text = format!("after {seconds:.1} s\n");
    lines.iter().for_each(|line| _ = writeln!(text, "  {line}"));
    text
}

fn remote(memory: &MemoryChange, is_first: bool) -> Option<String> {
    let (remote, change) = (memory.remote_bytes?, memory.remote_change_bytes.unwrap_or_default());
    if change == 0 && !(is_first && remote > 0) {
        return None;
    }
    let sign = if change < 0 { "-" } else { "+" };
    let size = Size(remote as f64);
    Some(format!("memory: {size} on nodes without a worker ({sign}{})", Size(change.unsigned_abs() as f64)))
}

fn of_core(core: &CoreChange, seconds: f64, is_first: bool) -> Option<String> {
    let mut parts = Vec::new();
    if let (Some(mhz), change) = (core.mhz, core.mhz_change.unwrap_or_default())
        && (is_first || change.abs() > mhz * FREQUENCY_NOISE)
    {
        parts.push(format!("{mhz:.0} MHz"));
    }
    parts.extend(core.steal_percent.filter(|steal| *steal > 0.0).map(|steal| format!("{steal:.1} % steal")));
    if let Some(interrupts) = core.interrupts.as_ref().filter(|interrupts| !interrupts.is_empty()) {
        let rate = |count: u64| (count as f64 / seconds).round();
        let mut sources: Vec<(&String, &u64)> = interrupts.iter().collect();
        sources.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
        let named = sources.iter().take(SOURCES).map(|(name, count)| format!("{name} {}", rate(**count)));
        let named: Vec<String> = named.collect();
        parts.push(format!("{} interrupts/s ({})", rate(interrupts.values().sum()), named.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("core {}: {}", core.core, parts.join(", ")))
}

fn of_worker(worker: &WorkerChange, seconds: f64) -> Option<String> {
    let waited = worker.waited_ns.map(|waited| waited as f64).filter(|waited| *waited >= SHORT_WAIT * seconds)?;
    let share = waited / (seconds * 1e9) * 100.0;
    let switches = worker.involuntary_switches.map_or(String::new(), |count| format!(", preempted {count} times"));
    Some(format!(
        "worker {}: waited {} ({share:.1} %) for core {}{switches}",
        worker.worker,
        Duration(waited),
        worker.core
    ))
}
