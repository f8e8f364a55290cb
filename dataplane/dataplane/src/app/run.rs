//! `run`: runs a pipeline from its config to the final report.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::SigId;
use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;
// Ends the process without the exit handlers of C libraries, because other threads may still use these libraries.
use signal_hook::low_level::{exit, unregister};
use tracing::Level;

use super::args::{self, ReportFormat};
use super::console::{self, CLEAR_LINE, CommandError};
use super::control::{ControlServer, Job, Jobs};
use super::doctor;
use super::logs::{self, LogQueue};
use super::metrics::{Facts, Listener};
use super::privileges::Privileges;
use super::service::{self, Service};
use super::take_over::TakeOver;
use crate::config::{Control, Source};
use crate::runtime::{Assembly, Gate, Options, Predecessor, Run, RunEvent};
use dataplane_control::Call;
use dataplane_control::change::Applied;
use dataplane_core::pipeline::Registry;
use dataplane_core::stderr;
use dataplane_core::telemetry::{PacketsPerSecond, Progress};
use dataplane_core::topology::Topology;

/// The interval between two checks of the run.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A stop signal within this time after the first stop signal counts as the same request.
const SAME_REQUEST: Duration = Duration::from_millis(200);
/// The minimum interval between two updates of the progress line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Runs a pipeline, and prints the error if the run fails.
pub(super) fn run(registry: &Arc<Registry>, args: &args::Run) -> Result<(), CommandError> {
    run_to_end(registry, args).map_err(|error| {
        let (message, status) = match error {
            CommandError::Failed(message) => (message, 1),
            CommandError::Usage(message) => (message, 2),
            CommandError::Pipe => return error,
        };
        // No thread reads the signals of the run any more. Standard error may be a terminal that takes no output, so
        // SIGINT and SIGTERM must end the program while the program prints the error.
        let is_over = Arc::new(AtomicBool::new(true));
        let register = |signal| flag::register_conditional_shutdown(signal, status, is_over.clone());
        let registered: Vec<SigId> = [SIGINT, SIGTERM].into_iter().filter_map(|signal| register(signal).ok()).collect();
        logs::fail(&message, status);
        for id in registered {
            unregister(id);
        }
        // An empty message prints nothing. The error is already printed.
        match status {
            1 => CommandError::Failed(String::new()),
            _ => CommandError::Usage(String::new()),
        }
    })
}

fn run_to_end(registry: &Arc<Registry>, args: &args::Run) -> Result<(), CommandError> {
    // Without a handler for SIGXFSZ, the kernel ends a process that exceeds a file size limit. With a handler, the
    // write fails with an error instead.
    // SIGUSR1, SIGUSR2 and SIGALRM stop the run like SIGTERM, because their default action ends a process without a
    // report. SIGQUIT keeps its default action: it ends the program at once and writes a core dump.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGXFSZ])
        .map_err(|error| CommandError::Failed(format!("cannot install signal handlers: {error}")))?;
    let mut take_over = if args.take_over { Some(TakeOver::begin()?) } else { None };
    let source = take_over.as_ref().map(|take_over| take_over.source(&args.config));
    let (assembly, mut asked) = assembled(registry, (args, source), &mut signals)?;
    let elapsed = take_over.as_ref().map_or(Duration::ZERO, TakeOver::running_time);
    let duration = args.duration.map(|duration| duration.saturating_sub(elapsed));
    let options = Options { duration, packets: args.packets };
    let reloads = args.config.path.as_os_str() != "-" || assembly.reads_files();
    let mut hangup = Hangup { reloads, from_terminal: console::has_terminal() };
    if asked && !hangup.reloads() {
        return Err(CommandError::Failed(STOPPED_EARLY.to_owned()));
    }
    let mut is_end = |signal| {
        let effect = Effect::of(signal, hangup, None);
        asked |= effect == Effect::Reload;
        effect == Effect::Stop
    };
    let runtime = assembly.plan.runtime.clone();
    let (metrics, mut server) = match (&take_over, &runtime.control) {
        (None, _) => {
            let metrics = Listener::open(&runtime).map_err(CommandError::Failed)?;
            let feed = metrics.as_ref().map(Listener::feed);
            (metrics, ControlServer::start(&runtime, &args.config.path, feed, registry)?)
        }
        // The name of the socket has the process id, so the new program has its own socket.
        (Some(_), Control::Auto) => (None, ControlServer::start(&runtime, &args.config.path, None, registry)?),
        // The running program hands its sockets over later.
        (Some(_), Control::Path(_) | Control::None) => (None, None),
    };
    if assembly.plan.runtime.sandbox {
        for failure in Privileges::of(&assembly).give_up_the_rest() {
            tracing::info!("this run keeps more privileges than it needs: {failure}");
        }
    }
    // Start the thread of the log queue after the program has given up privileges. A new thread has only the privileges
    // that the program still has.
    let queue = LogQueue::start()?;
    let facts = Facts::of(&assembly.plan, &args.config.path);
    let serve = |listener: Listener, server: &mut Option<ControlServer>| {
        server.iter_mut().for_each(|server| server.share_metrics(listener.share()));
        listener.serve(facts).map_err(CommandError::Failed)
    };
    let (run, metrics) = match &mut take_over {
        None => {
            let metrics = metrics.map(|listener| serve(listener, &mut server)).transpose()?;
            service::starting();
            (Run::start_unless(assembly, options, || signals.pending().any(&mut is_end))?, metrics)
        }
        Some(taking) => {
            let memories = taking.memories();
            let mut gate = |gate: &Gate<'_>| taking.take(gate);
            let predecessor = Predecessor { memories, gate: &mut gate };
            let cancelled = || signals.pending().any(&mut is_end);
            let run = Run::start_after(assembly, options, cancelled, Some(predecessor))?;
            let taken = take_over.take().map(|taken| taken.finish(&run, &runtime)).transpose()?;
            let (control, listener) = taken.map_or((None, None), |taken| (taken.control, taken.metrics));
            let feed = listener.as_ref().map(Listener::feed);
            match &mut server {
                Some(server) => server.set_feed(feed),
                None => server = ControlServer::new(control, &args.config.path, feed, registry),
            }
            hangup.from_terminal = console::has_terminal();
            (run, listener.map(|listener| serve(listener, &mut server)).transpose()?)
        }
    };
    if let Some(server) = &mut server {
        server.set_log_counts(queue.counts());
        server.set_earlier(elapsed);
    }
    tracing::info!("running");
    let until = duration.and_then(|duration| Instant::now().checked_add(duration));
    let jobs = Jobs::new(registry);
    let stopping = watch(&run, &mut signals, hangup, asked, until, server, &jobs);
    drop(metrics);
    let ending = signals.handle();
    abort_on_signal(signals, hangup, stopping)?;
    let mut report = run.join()?;
    report.logs_lost = queue.end();
    let outcome = match report.is_good() {
        true => Ok(()),
        false if report.errors.is_empty() => Err(CommandError::Failed("the ledger does not balance".to_owned())),
        false => Err(CommandError::Failed(report.errors.join("\nerror: "))),
    };
    let printed = match if args.json { ReportFormat::Json } else { args.report } {
        ReportFormat::Human => {
            // The errors are printed to standard error at the end.
            report.errors.clear();
            console::print(&report.to_string())
        }
        ReportFormat::Json => console::print_json(&report),
    };
    // For other commands, a closed pipe is no error, because the reader of a list may have seen enough. For `run`, a
    // closed pipe is an error, because the report is lost.
    let printed = printed.map_err(|error| match error {
        CommandError::Pipe => CommandError::Failed("the report is lost: standard output is closed".to_owned()),
        error => error,
    });
    ending.close();
    outcome.and(printed)
}

/// Reads and checks the config. `source` is the config of the program whose run this program takes over. Compiling large
/// rule sets may take long. SIGINT and SIGTERM end the program at once during that time, because the program holds no
/// resources yet. Also returns whether SIGHUP was received.
fn assembled(
    registry: &Registry,
    (args, source): (&args::Run, Option<Source>),
    signals: &mut Signals,
) -> Result<(Assembly, bool), CommandError> {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let watch = move || {
            let mut hung_up = false;
            loop {
                for signal in signals.pending() {
                    match signal {
                        SIGHUP => hung_up = true,
                        SIGXFSZ => {}
                        // The other thread may be writing to a terminal that takes no output.
                        _ => {
                            logs::fail_unless_full(STOPPED_EARLY);
                            exit(1)
                        }
                    }
                }
                if is_done.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Disconnected) {
                    return hung_up;
                }
            }
        };
        let watcher = thread::Builder::new().name("signals".to_owned()).spawn_scoped(scope, watch);
        let watcher = watcher.map_err(console::no_thread)?;
        let is_first = source.is_none();
        let topology = Topology::discover();
        let assembly = topology
            .map_err(CommandError::from)
            .and_then(|known| console::assembly(&args.config, source, registry, known));
        if is_first && let Ok(assembly) = &assembly {
            // Log only the findings about lost packets here. The run itself reports problems that prevent a start. After
            // a take-over, the log already has the findings of the previous program.
            doctor::warn(&assembly.plan);
        }
        drop(done);
        // The thread does not panic.
        let hung_up = watcher.join().unwrap_or_default();
        Ok((assembly?, hung_up))
    })
}

const STOPPED_EARLY: &str = "stopped before the run started";

/// How the run handles SIGHUP. If the config is a file, or stages have files to reload, the run applies the config and
/// the files again. Otherwise the run stops, as for SIGINT and SIGTERM.
#[derive(Clone, Copy)]
struct Hangup {
    reloads: bool,
    /// Whether the run was started from a terminal. If that terminal is closed, SIGHUP stops the run.
    from_terminal: bool,
}

impl Hangup {
    fn reloads(self) -> bool {
        self.reloads && (!self.from_terminal || console::has_terminal())
    }
}

/// The effect of a signal on a run.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Nothing,
    Reload,
    Stop,
    /// End without a report.
    Abort,
}

impl Effect {
    /// Returns the effect of a signal. `stopping` is the time since the first stop signal, or `None` before that
    /// signal.
    fn of(signal: i32, hangup: Hangup, stopping: Option<Duration>) -> Self {
        match (signal, stopping) {
            (SIGXFSZ, _) => Self::Nothing,
            (SIGHUP, None) if hangup.reloads() => Self::Reload,
            (_, None) => Self::Stop,
            // While the run stops, ignore a hangup: an abort would lose packets, and new rules would have no use.
            (SIGHUP, Some(_)) => Self::Nothing,
            // A sender that signals a whole process group may deliver the same signal twice.
            (_, Some(since)) if since < SAME_REQUEST => Self::Nothing,
            (_, Some(_)) => Self::Abort,
        }
    }
}

/// Logs the result of a reload or of the revert of a change. Returns `false` while the reload or revert is in progress.
/// `what` is the start of each message.
fn print_changed(job: &mut Job, what: &str) -> bool {
    let applied = match job.result() {
        None => return false,
        Some(Ok(applied)) => serde_json::from_str::<Applied>(applied.get()).ok(),
        Some(Err(refusal)) => {
            let lines = refusal.mistakes.iter().map(|mistake| format!("\n  {mistake}")).collect::<String>();
            match lines.is_empty() {
                true => {
                    logs::notice(Level::WARN, &format!("{what} refused: {}; help: {}", refusal.message, refusal.help))
                }
                false => logs::notice(Level::WARN, &format!("{what} refused: {}:{lines}", refusal.message)),
            }
            return true;
        }
    };
    if let Some(applied) = applied {
        applied.warnings.iter().for_each(|warning| logs::notice(Level::WARN, &warning.to_string()));
        let operations = applied.operations.iter().map(|operation| format!("{what}: {operation}"));
        operations.for_each(|line| logs::notice(Level::INFO, &line));
        if applied.operations.is_empty() {
            logs::notice(Level::INFO, &format!("{what}: change {}, config {}", applied.number, applied.digest));
        }
    }
    true
}

/// Ends the program at once, without a report. The message is lost if standard error is a full pipe or a
/// stopped terminal.
fn abort(signal: i32) -> ! {
    stderr::write_unless_full("\naborted: packets in processing are lost, and there is no report\n");
    exit(128 + signal)
}

/// Starts a thread that handles signals while the run ends and the report is printed, because a device, an output file
/// or the reader of the report may be stuck. `stopping` is the time of the first stop signal.
fn abort_on_signal(mut signals: Signals, hangup: Hangup, mut stopping: Option<Instant>) -> Result<(), CommandError> {
    let handle = move || {
        for signal in signals.forever() {
            match Effect::of(signal, hangup, stopping.map(|since| since.elapsed())) {
                Effect::Nothing | Effect::Reload => {}
                Effect::Stop => stopping = Some(Instant::now()),
                Effect::Abort => abort(signal),
            }
        }
    };
    let thread = thread::Builder::new().name("signals".to_owned()).spawn(handle);
    thread.map(drop).map_err(console::no_thread)
}

/// Shows progress and device events, and serves clients, until the run ends. `asked` is `true` if SIGHUP already
/// requested a reload. The run stops at `until`. Returns the time of the first stop signal.
fn watch(
    run: &Run,
    signals: &mut Signals,
    hangup: Hangup,
    mut asked: bool,
    until: Option<Instant>,
    mut server: Option<ControlServer>,
    jobs: &Jobs,
) -> Option<Instant> {
    let mut meter = console::is_watched().then(|| Meter::new(run.progress()));
    let mut stopping: Option<Instant> = None;
    let (mut reloading, mut reverting): (Option<Job>, Option<Job>) = (None, None);
    let changer = run.changer();
    let mut service = Service::ready(run);
    while !run.is_finished() {
        for signal in signals.pending() {
            match Effect::of(signal, hangup, stopping.map(|since| since.elapsed())) {
                Effect::Nothing => {}
                Effect::Reload => asked = true,
                Effect::Stop => {
                    stopping = Some(Instant::now());
                    run.stop();
                    tracing::info!("stopping: repeat the signal to abort");
                }
                Effect::Abort => {
                    drop(server);
                    abort(signal);
                }
            }
        }
        // Workers check the time limit themselves, but not while a stage waits, such as a lossless capture. The stop
        // also ends such a wait.
        if stopping.is_none() && until.is_some_and(|until| until <= Instant::now()) {
            run.stop();
        }
        if reloading.as_mut().is_some_and(|reload| print_changed(reload, "reload")) {
            reloading = None;
            service.reloaded();
        }
        if reverting.as_mut().is_some_and(|revert| print_changed(revert, "revert")) {
            reverting = None;
        }
        if reverting.is_none() && stopping.is_none() && changer.is_overdue() {
            reverting = jobs.revert_overdue(&changer);
        }
        if asked && reloading.is_none() && stopping.is_none() {
            tracing::info!("reloading files");
            // The loop logs a refusal like the result of a reload.
            reloading = Some(jobs.start(&changer, &Call::Reload {}).unwrap_or_else(Job::refused));
            asked = false;
            service.reloading();
        }
        log_events(run);
        for RunEvent { worker, stage, message, .. } in run.stalls() {
            tracing::error!(worker, stage, "{message}");
        }
        service.turn(run);
        if let Some(meter) = &mut meter {
            meter.tick(run);
        }
        match &mut server {
            Some(server) => {
                server.turn(run);
                if let Some(process) = server.successor()
                    && !run.is_stopped()
                {
                    service.replaced_by(process);
                    run.stop();
                }
                server.wait(POLL_INTERVAL);
            }
            None => thread::sleep(POLL_INTERVAL),
        }
    }
    // A run also ends without a stop, for example when its inputs have ended.
    service.stopping();
    if let Some(server) = server {
        server.end(run);
    }
    log_events(run);
    if meter.is_some() {
        stderr::write_unless_full(CLEAR_LINE);
    }
    if reloading.is_some_and(|mut reloading| !print_changed(&mut reloading, "reload")) {
        logs::notice(Level::WARN, "reload abandoned: the run has ended");
    }
    stopping
}

/// Logs the new messages about devices.
fn log_events(run: &Run) {
    for RunEvent { port, message, .. } in run.events() {
        tracing::warn!(port, "{message}");
    }
}

/// The progress line. A terminal that takes no output, for example after Ctrl-S, does not delay the thread.
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
        if since < PROGRESS_INTERVAL {
            return;
        }
        let progress = run.progress();
        let line = line(self.began.elapsed(), since, self.last, progress);
        stderr::write_unless_full(&format!("{CLEAR_LINE}{line}"));
        self.shown = Instant::now();
        self.last = progress;
    }
}

fn line(elapsed: Duration, since: Duration, last: Progress, now: Progress) -> String {
    let rate = |last: u64, now: u64| PacketsPerSecond(now.saturating_sub(last) as f64 / since.as_secs_f64());
    format!(
        "{:.1} s · in {} · out {} · dropped {} ({} total)",
        elapsed.as_secs_f64(),
        rate(last.rx, now.rx),
        rate(last.tx, now.tx),
        rate(last.dropped, now.dropped),
        now.dropped
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_stop_signal_aborts_the_run_but_sighup_does_not() {
        let [none, files] = [false, true].map(|reloads| Hangup { reloads, from_terminal: false });
        let (soon, later) = (Some(SAME_REQUEST / 2), Some(SAME_REQUEST));
        for (signal, hangup, stopping, expected) in [
            (SIGHUP, files, None, Effect::Reload),
            (SIGHUP, none, None, Effect::Stop),
            (SIGHUP, files, later, Effect::Nothing),
            (SIGHUP, none, later, Effect::Nothing),
            (SIGINT, files, None, Effect::Stop),
            (SIGTERM, files, soon, Effect::Nothing),
            (SIGTERM, none, later, Effect::Abort),
            (SIGUSR1, files, None, Effect::Stop),
            (SIGUSR2, none, soon, Effect::Nothing),
            (SIGALRM, none, later, Effect::Abort),
            (SIGXFSZ, none, None, Effect::Nothing),
            (SIGXFSZ, none, later, Effect::Nothing),
        ] {
            assert_eq!(Effect::of(signal, hangup, stopping), expected, "{signal} {stopping:?}");
        }
    }

    #[test]
    fn progress_line_shows_rates_since_the_last_line() {
        let last = Progress { rx: 1_000, tx: 1_000, dropped: 3, loops: 1 };
        let now = Progress { rx: 2_001_000, tx: 6_000, dropped: 13, loops: 2 };
        let text = line(Duration::from_secs(7), Duration::from_millis(500), last, now);
        assert_eq!(text, "7.0 s · in 4.00 Mpps · out 10.0 kpps · dropped 20 pps (13 total)");
    }
}
