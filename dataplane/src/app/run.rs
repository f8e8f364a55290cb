//! `run`: from config to report.

use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args::{self, Form};
use super::console::{self, CLEAR_LINE, Stop};
use crate::pipeline::Registry;
use crate::runtime::{Options, Run};
use crate::telemetry::Progress;
use crate::topology::Topology;

/// How often the run is looked at, and how often progress is shown.
const LOOK: Duration = Duration::from_millis(20);
/// Signals so close to the first are the same wish.
const AT_ONCE: Duration = Duration::from_millis(200);
const SHOW: Duration = Duration::from_millis(500);

pub(super) fn run(registry: &Registry, args: &args::Run) -> Result<(), Stop> {
    let assembly = console::assembly(&args.config, registry, Topology::discover()?)?;
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|error| Stop::Failed(format!("signals cannot be handled: {error}")))?;
    let options = Options { duration: args.duration, packets: args.packets };
    let hangup = Hangup { reloads: assembly.can_reload(), attended: console::has_terminal() };
    let mut asked = false;
    let mut is_end = |signal| {
        asked |= hangup.reloads(signal);
        !hangup.reloads(signal)
    };
    let run = Run::start_unless(assembly, options, || signals.pending().any(&mut is_end))?;
    tracing::info!("running");
    thread::scope(|scope| watch(&run, &mut signals, (hangup, asked), scope));
    let mut report = run.join()?;
    let outcome = match report.is_good() {
        true => Ok(()),
        false if report.errors.is_empty() => Err(Stop::Failed("the ledger does not balance".to_owned())),
        false => Err(Stop::Failed(report.errors.join("\nerror: "))),
    };
    match if args.json { Form::Json } else { args.report } {
        Form::Human => {
            // They come last, by the standard error.
            report.errors.clear();
            console::print(&report.to_string())?;
        }
        Form::Json => console::print_json(&report)?,
    }
    outcome
}

/// What SIGHUP means: where there are files to read anew, that; otherwise the end, as SIGINT and SIGTERM.
#[derive(Clone, Copy)]
struct Hangup {
    reloads: bool,
    /// The run was started from a terminal. When that is gone, SIGHUP is what it was made for: the end.
    attended: bool,
}

impl Hangup {
    fn reloads(self, signal: i32) -> bool {
        signal == SIGHUP && self.reloads && (!self.attended || console::has_terminal())
    }
}

/// Has files read anew, and says what came of it.
fn reload(run: &Run) {
    for (stage, told) in run.reload() {
        match told {
            Ok(now) => console::say(&format!("{stage}: reloaded: {now}")),
            Err(problems) => {
                console::say(&format!("{stage}: not reloaded, all stays as it was:"));
                problems.iter().for_each(|problem| console::say(&format!("  {problem}")));
            }
        }
    }
}

/// Shows progress and what devices say until the run ends.
fn watch<'s>(run: &'s Run, signals: &mut Signals, hangup: (Hangup, bool), scope: &'s Scope<'s, '_>) {
    let mut meter = console::is_watched().then(|| Meter::new(run.progress()));
    let mut stopping: Option<Instant> = None;
    let (hangup, mut asked) = hangup;
    let mut reloading: Option<ScopedJoinHandle<'_, ()>> = None;
    while !run.is_finished() {
        for signal in signals.pending() {
            match stopping {
                None if hangup.reloads(signal) => asked = true,
                None => {
                    stopping = Some(Instant::now());
                    run.stop();
                    tracing::info!("stopping: once more stops at once");
                }
                // A program that sends one to a whole group of processes may well send two.
                Some(since) if since.elapsed() < AT_ONCE => {}
                Some(_) => {
                    console::tell("\nstopped at once: what was on its way is lost, and there is no report\n");
                    std::process::exit(128 + signal);
                }
            }
        }
        // Many rules take a while to be compiled: meanwhile signals are heard.
        if asked && reloading.as_ref().is_none_or(ScopedJoinHandle::is_finished) {
            asked = false;
            reloading = Some(scope.spawn(|| reload(run)));
        }
        for event in run.events() {
            tracing::warn!("{event}");
        }
        if let Some(meter) = &mut meter {
            meter.tick(run);
        }
        thread::sleep(LOOK);
    }
    for event in run.events() {
        tracing::warn!("{event}");
    }
    if meter.is_some() {
        console::tell(CLEAR_LINE);
    }
}

/// The line of progress.
struct Meter {
    began: Instant,
    shown: Instant,
    last: Progress,
}

impl Meter {
    fn new(progress: Progress) -> Self {
        let now = Instant::now();
        Self { began: now, shown: now, last: progress }
    }

    fn tick(&mut self, run: &Run) {
        let since = self.shown.elapsed();
        if since < SHOW {
            return;
        }
        let progress = run.progress();
        let line = line(self.began.elapsed(), since, self.last, progress);
        console::tell(&format!("{CLEAR_LINE}{line}"));
        self.shown = Instant::now();
        self.last = progress;
    }
}

fn line(elapsed: Duration, since: Duration, last: Progress, now: Progress) -> String {
    let rate = |last: u64, now: u64| rate(now.saturating_sub(last) as f64 / since.as_secs_f64());
    format!(
        "{:.1} s · in {} · out {} · dropped {} ({} in all)",
        elapsed.as_secs_f64(),
        rate(last.rx, now.rx),
        rate(last.tx, now.tx),
        rate(last.dropped, now.dropped),
        now.dropped
    )
}

/// Packets a second in few digits.
fn rate(packets: f64) -> String {
    match packets {
        packets if packets >= 1e6 => format!("{:.2} Mpps", packets / 1e6),
        packets if packets >= 1e3 => format!("{:.1} kpps", packets / 1e3),
        packets => format!("{packets:.0} pps"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_a_difference_over_time() {
        let last = Progress { rx: 1_000, tx: 1_000, dropped: 3, loops: 1 };
        let now = Progress { rx: 2_001_000, tx: 6_000, dropped: 13, loops: 2 };
        let text = line(Duration::from_secs(7), Duration::from_millis(500), last, now);
        assert_eq!(text, "7.0 s · in 4.00 Mpps · out 10.0 kpps · dropped 20 pps (13 in all)");
    }
}
