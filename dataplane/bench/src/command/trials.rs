//! Trials of a search on the open ports.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use dataplane::{Error, Result};

use super::opened::{Opened, check_links, verdict};
use super::threads::{run_with_shell, use_all_cores};
use crate::report::{CounterReport, Nanoseconds, Pps, RateReport, TrialReport};
use crate::search::{Measurement, Trials, is_ignored};

/// The longest sleep between two checks of the flag that ends a run.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the trials of a search on the ports.
pub(super) struct PortTrials<'a> {
    pub(super) opened: &'a mut Opened,
    /// For each stream, the share of the load that the stream sends.
    pub(super) shares: Vec<f64>,
    pub(super) reports: Vec<TrialReport>,
    /// The time between two trials.
    pub(super) rest: Duration,
    /// The flows of the trials, if each packet opens a flow.
    pub(super) flows: Option<&'a mut NewFlows>,
    /// Shows the progress.
    pub(super) show: &'a mut dyn FnMut(&str),
}

/// The reason why a search ended early.
pub(super) enum Ended {
    Stopped,
    Failed(Error),
}

impl Trials for PortTrials<'_> {
    type Error = Ended;

    fn measure(&mut self, load: f64, duration: f64) -> Result<Measurement, Ended> {
        let rates: Vec<_> = self.shares.iter().map(|share| Some(share * load)).collect();
        let mut attempt = 0;
        loop {
            attempt += 1;
            if let Some(flows) = &mut self.flows {
                flows.prepare(self.opened, (load * duration).ceil() as u64)?;
            }
            let outcome = self.opened.tester.trial(&rates, Duration::from_secs_f64(duration)).map_err(Ended::Failed)?;
            if outcome.stopped {
                return Err(Ended::Stopped);
            }
            let report = self.opened.report("search", &rates, &outcome);
            if report.unaccounted != 0 {
                return Err(Ended::Failed(verdict(&[&report]).err().unwrap_or(Error::Wire(String::new()))));
            }
            let total = &report.total;
            // During the trial, the device did not forward these packets, but stored them.
            let held = total.held;
            let (sent, lost) = match report.by_counters {
                None => (total.sent, total.lost_by_device() + held),
                Some(CounterReport { sent, arrived, .. }) => (sent, sent.saturating_sub(arrived + total.overrun)),
            };
            let by_counters = report.by_counters.is_some();
            let mut limits = limits(&report);
            limits.extend(report.tester.disturbances.iter().cloned());
            let ignored = is_ignored(!limits.is_empty(), attempt);
            let lost_by_tester = total.lost_by_tester();
            // Packets that the tester could not send in time, or lost itself, count as lost. The result can then be too low,
            // but not too high.
            let loss_ratio = (lost + lost_by_tester + total.missed) as f64 / (sent + total.missed).max(1) as f64;
            let number = self.reports.len() + 1;
            let time = Nanoseconds(outcome.duration);
            let note = if ignored { ", repeated because the tester was the limit or was disturbed" } else { "" };
            (self.show)(&format!("trial {number}: {}, {time}: loss {:.4} %{note}", Pps(load), loss_ratio * 100.0));
            let duration_s = report.duration_s;
            self.reports.push(TrialReport {
                pps: load,
                duration_s,
                sent,
                lost,
                lost_by_tester,
                held,
                loss_ratio,
                by_counters,
                ignored,
                limits,
            });
            rest(self.opened, self.rest)?;
            if !ignored {
                check_links(&report).map_err(Ended::Failed)?;
                return Ok(Measurement { duration: duration_s, loss_ratio });
            }
        }
    }
}

/// Returns the reasons why a trial that decides about a loss ratio shows a limit of the tester.
pub(super) fn limits(report: &RateReport) -> Vec<String> {
    let mut limits = report.tester.limits.clone();
    if report.total.missed > 0 && limits.is_empty() {
        // A goal allows only few lost packets, so even a few packets that were not sent can change the result.
        limits.push(format!("the tester did not send {} packets in time", report.total.missed));
    }
    limits
}

/// Waits between two trials, so that the device recovers.
pub(super) fn rest(opened: &Opened, time: Duration) -> Result<(), Ended> {
    let end = Instant::now() + time;
    while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        if opened.stop.load(Ordering::Relaxed) {
            return Err(Ended::Stopped);
        }
        thread::sleep(left.min(LOOK));
    }
    Ok(())
}

/// Removes the flows of the previous trial from the device, and selects the flows of the next trial.
pub(super) struct NewFlows {
    /// The command that removes all flows.
    flush: Option<String>,
    /// The time after which the device removes idle flows. `None` if there is a command.
    expire: Option<Duration>,
    /// The number of the first flow that no trial has used.
    pub(super) next: u64,
}

impl NewFlows {
    /// Returns the flows of the first trial.
    pub(super) fn new(flush: Option<String>, expire: Option<Duration>) -> Self {
        Self { flush, expire, next: 0 }
    }

    /// Prepares a trial with up to `count` new flows.
    pub(super) fn prepare(&mut self, opened: &mut Opened, count: u64) -> Result<(), Ended> {
        match (&self.flush, self.expire) {
            (Some(command), _) => flush(command).map_err(Ended::Failed)?,
            (None, Some(time)) => rest(opened, time)?,
            (None, None) => {}
        }
        opened.tester.set_first_flow(self.next);
        self.next = self.next.wrapping_add(count);
        Ok(())
    }
}

fn flush(command: &str) -> Result<()> {
    let text = command.to_owned();
    let run = move || {
        use_all_cores();
        run_with_shell(&text)
    };
    let failed = |why: String| Error::Topology(format!("the command of --flush failed: {command}: {why}"));
    match thread::spawn(run).join() {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(failed(status.to_string())),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed("the thread of the command failed".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use dataplane::clock::HostClock;
    use dataplane_testing::Folder;

    use super::super::opened::TrafficArgs;
    use super::*;
    use crate::tester::HostTimes;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        traffic: TrafficArgs,
    }

    const CABLE: &str = "[runtime]\nworkers = 1\nhugepages = 'none'\nidle = 'sleep'\n\
        [[port]]\nname = 'left'\ndevice = 'soft'\nlink = { kind = 'loopback', peer = 'right' }\n\
        [[port]]\nname = 'right'\ndevice = 'soft'\nlink = { kind = 'loopback', peer = 'left' }\n";

    #[test]
    fn trial_with_a_clock_step_is_repeated() {
        let folder = Folder::new();
        let config = folder.write("bench.toml", CABLE).display().to_string();
        let words = ["", &config, "--catch-up", "60s", "--late", "60s", "--settle", "20ms"];
        let mut opened = Opened::new(&Words::parse_from(words).traffic, |streams, _| Ok(vec![None; streams.len()]))
            .unwrap_or_else(|error| panic!("{error}"));
        // The system clock steps forward by an hour between the first and the second reading: in the first trial.
        let (clock, mut readings) = (HostClock::new(), 0);
        opened.tester.set_host_times(Box::new(move || {
            readings += 1;
            let times = HostTimes::read(&clock);
            HostTimes { system: times.system + if readings == 1 { 0 } else { 3_600_000_000_000 }, ..times }
        }));
        let mut trials = PortTrials {
            opened: &mut opened,
            shares: vec![1.0],
            reports: Vec::new(),
            rest: Duration::ZERO,
            flows: None,
            show: &mut |_| {},
        };
        assert!(trials.measure(1_000.0, 0.02).is_ok());
        let is_step = |trial: &TrialReport| trial.limits.iter().any(|limit| limit.contains("clock stepped by +3600.0"));
        let steps: Vec<bool> = trials.reports.iter().map(is_step).collect();
        // On a busy machine, further trials may be repeated for another reason.
        assert!(steps.len() > 1 && steps[0] && !steps[1..].contains(&true), "{:?}", trials.reports);
        assert!(trials.reports[0].ignored);
    }
}
