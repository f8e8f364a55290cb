//! The test `reset` of RFC 2544: a command resets the device during a trial.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::opened::Opened;
use super::threads::{run_with_shell, use_all_cores};
use super::trials::Ended;
use crate::report::ResetReport;
use crate::tester::{Observer, TrialPlan};

/// The command starts after the duration of the trial divided by this number.
const DELAY: u32 = 10;

/// Sends the start time of the trial to the thread that runs the command.
struct Start(Option<mpsc::Sender<Instant>>);

impl Observer for Start {
    fn start(&mut self) {
        if let Some(start) = self.0.take() {
            // If the thread has ended, no thread needs the time.
            let _ = start.send(Instant::now());
        }
    }
}

/// Runs a trial, and the command during the trial.
pub(super) fn reset_test(
    opened: &mut Opened,
    rates: &[Option<f64>],
    duration: Duration,
    command: &str,
) -> Result<ResetReport, Ended> {
    let (sender, receiver) = mpsc::channel::<Instant>();
    let text = command.to_owned();
    let thread = thread::spawn(move || {
        use_all_cores();
        let start = receiver.recv().ok()?;
        thread::sleep((start + duration / DELAY).saturating_duration_since(Instant::now()));
        let at = start.elapsed();
        Some((at, run_with_shell(&text).is_ok_and(|status| status.success())))
    });
    let plan = TrialPlan { rates, duration, change: None };
    let outcome = opened.tester.trial_with(&plan, &mut Start(Some(sender))).map_err(Ended::Failed)?;
    let ran = thread.join().ok().flatten();
    if outcome.stopped {
        return Err(Ended::Stopped);
    }
    let (at, is_successful) = ran.unwrap_or_default();
    let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    let end = |gap: &crate::judge::Gap| gap.start.saturating_add(gap.length);
    let gaps = || outcome.streams.iter().flat_map(|stream| &stream.judgement.gaps).filter(|gap| end(gap) > at);
    // If a gap lasts until the end of the transmission, the device has not recovered.
    let is_recovered = gaps().all(|gap| end(gap) < outcome.duration);
    let longest = gaps().map(|gap| gap.length).max();
    Ok(ResetReport {
        command: command.to_owned(),
        is_successful,
        pps: rates.iter().flatten().sum(),
        command_at_s: at as f64 / 1e9,
        recovery_s: longest.filter(|_| is_recovered).map(|length| length as f64 / 1e9),
        is_recovered,
        lost: opened.report("rfc2544", rates, &outcome).total.lost,
    })
}
