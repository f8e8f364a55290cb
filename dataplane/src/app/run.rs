//! `run`: from config to report.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use super::args::{self, Form};
use super::console::{self, CLEAR_LINE, Stop};
use super::control::Server;
use super::doctor;
use crate::pipeline::{Problem, Registry};
use crate::runtime::{Assembly, Options, Run};
use crate::telemetry::Progress;
use crate::topology::Topology;

/// How often the run is looked at, and how often progress is shown.
const LOOK: Duration = Duration::from_millis(20);
/// Signals so close to the first are the same wish.
const AT_ONCE: Duration = Duration::from_millis(200);
const SHOW: Duration = Duration::from_millis(500);

pub(super) fn run(registry: &Registry, args: &args::Run) -> Result<(), Stop> {
    // With a handler, a file that may not grow is an error of whoever writes it, and not the end of the process.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGXFSZ])
        .map_err(|error| Stop::Failed(format!("signals cannot be handled: {error}")))?;
    let (assembly, mut asked) = assembled(registry, args, &mut signals)?;
    // What will not run says so itself.
    doctor::warn(&assembly.plan, false);
    let options = Options { duration: args.duration, packets: args.packets };
    let hangup = Hangup { reloads: assembly.can_reload(), attended: console::has_terminal() };
    if asked && !hangup.reloads() {
        return Err(Stop::Failed(UNWANTED.to_owned()));
    }
    let mut is_end = |signal| {
        let effect = Effect::of(signal, hangup, None);
        asked |= effect == Effect::Reload;
        effect == Effect::Stop
    };
    let server = Server::start(&assembly.plan.runtime.control, &args.config.path)?;
    let run = Run::start_unless(assembly, options, || signals.pending().any(&mut is_end))?;
    tracing::info!("running");
    watch(&run, &mut signals, hangup, asked, server);
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

/// Reads the config. Rules may take long to be compiled: SIGINT and SIGTERM end the program meanwhile, which holds nothing
/// yet. Says whether SIGHUP came.
fn assembled(registry: &Registry, args: &args::Run, signals: &mut Signals) -> Result<(Assembly, bool), Stop> {
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let watch = move || {
            let mut hung_up = false;
            loop {
                for signal in signals.pending() {
                    match signal {
                        SIGHUP => hung_up = true,
                        SIGINT | SIGTERM => std::process::exit(console::fail(UNWANTED, 1)),
                        _ => {}
                    }
                }
                if is_done.recv_timeout(LOOK) == Err(RecvTimeoutError::Disconnected) {
                    return hung_up;
                }
            }
        };
        let watcher = thread::Builder::new().name("signals".to_owned()).spawn_scoped(scope, watch);
        let watcher = watcher.map_err(|error| Stop::Failed(format!("a thread cannot be started: {error}")))?;
        let topology = Topology::discover();
        let assembly = topology.map_err(Stop::from).and_then(|known| console::assembly(&args.config, registry, known));
        drop(done);
        // It does not panic.
        let hung_up = watcher.join().unwrap_or_default();
        Ok((assembly?, hung_up))
    })
}

const UNWANTED: &str = "stopped before it ran";

/// What SIGHUP means: where there are files to read anew, that; otherwise the end, as SIGINT and SIGTERM.
#[derive(Clone, Copy)]
struct Hangup {
    reloads: bool,
    /// The run was started from a terminal. When that is gone, SIGHUP is what it was made for: the end.
    attended: bool,
}

impl Hangup {
    fn reloads(self) -> bool {
        self.reloads && (!self.attended || console::has_terminal())
    }
}

/// What a signal has a run do.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Nothing,
    Reload,
    Stop,
    /// To end without a report.
    Abort,
}

impl Effect {
    /// Of a run that was told to stop so long ago, or was not.
    fn of(signal: i32, hangup: Hangup, stopping: Option<Duration>) -> Self {
        match (signal, stopping) {
            (SIGXFSZ, _) => Self::Nothing,
            (SIGHUP, None) if hangup.reloads() => Self::Reload,
            (_, None) => Self::Stop,
            // It is no wish to lose anything, and there is no use for new rules any more.
            (SIGHUP, Some(_)) => Self::Nothing,
            // A program that sends one to a whole group of processes may well send two.
            (_, Some(since)) if since < AT_ONCE => Self::Nothing,
            (_, Some(_)) => Self::Abort,
        }
    }
}

/// What the stages say that were told to read anew.
type Told = Vec<(String, Result<String, Vec<Problem>>)>;

/// Has files read anew on a thread of its own. Many rules take a while to be compiled: a run that ends does not wait for
/// them.
fn reload(run: &Run) -> Receiver<Told> {
    tracing::info!("files are read anew");
    let (tell, told) = mpsc::channel();
    let reload = run.reloader();
    // It may be that nobody hears it any more. Without a thread the channel ends at once.
    let spawned = thread::Builder::new().name("reload".to_owned()).spawn(move || drop(tell.send(reload())));
    if let Err(error) = spawned {
        tracing::error!("no thread to read files anew: {error}");
    }
    told
}

/// Says what came of it, if that is known. `false`: it is not known yet.
fn say_reloaded(reloading: &Receiver<Told>) -> bool {
    let told = match reloading.try_recv() {
        Ok(told) => told,
        Err(TryRecvError::Disconnected) => return true,
        Err(TryRecvError::Empty) => return false,
    };
    for (stage, told) in told {
        match told {
            Ok(now) => console::say(&format!("{stage}: reloaded: {now}")),
            Err(problems) => {
                console::say(&format!("{stage}: not reloaded, all stays as it was:"));
                problems.iter().for_each(|problem| console::say(&format!("  {problem}")));
            }
        }
    }
    true
}

/// Shows progress and what devices say, and answers clients, until the run ends. `asked`: files are to be read anew.
fn watch(run: &Run, signals: &mut Signals, hangup: Hangup, mut asked: bool, mut server: Option<Server>) {
    let mut meter = console::is_watched().then(|| Meter::new(run.progress()));
    let mut stopping: Option<Instant> = None;
    let mut reloading: Option<Receiver<Told>> = None;
    while !run.is_finished() {
        for signal in signals.pending() {
            match Effect::of(signal, hangup, stopping.map(|since| since.elapsed())) {
                Effect::Nothing => {}
                Effect::Reload => asked = true,
                Effect::Stop => {
                    stopping = Some(Instant::now());
                    run.stop();
                    tracing::info!("stopping: once more stops at once");
                }
                Effect::Abort => {
                    drop(server);
                    console::tell("\nstopped at once: what was on its way is lost, and there is no report\n");
                    std::process::exit(128 + signal);
                }
            }
        }
        if reloading.as_ref().is_some_and(say_reloaded) {
            reloading = None;
        }
        if asked && reloading.is_none() && stopping.is_none() {
            asked = false;
            reloading = Some(reload(run));
        }
        for event in run.events() {
            tracing::warn!("{event}");
        }
        if let Some(meter) = &mut meter {
            meter.tick(run);
        }
        match &mut server {
            Some(server) => {
                server.turn(run);
                server.wait(LOOK);
            }
            None => thread::sleep(LOOK),
        }
    }
    drop(server);
    for event in run.events() {
        tracing::warn!("{event}");
    }
    if meter.is_some() {
        console::tell(CLEAR_LINE);
    }
    if reloading.is_some_and(|reloading| !say_reloaded(&reloading)) {
        console::say("files are not read anew any more: the run has ended");
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
    fn a_second_wish_to_end_ends_at_once_and_a_hangup_is_none() {
        let [none, files] = [false, true].map(|reloads| Hangup { reloads, attended: false });
        let (soon, later) = (Some(AT_ONCE / 2), Some(AT_ONCE));
        for (signal, hangup, stopping, expected) in [
            (SIGHUP, files, None, Effect::Reload),
            (SIGHUP, none, None, Effect::Stop),
            (SIGHUP, files, later, Effect::Nothing),
            (SIGHUP, none, later, Effect::Nothing),
            (SIGINT, files, None, Effect::Stop),
            (SIGTERM, files, soon, Effect::Nothing),
            (SIGTERM, none, later, Effect::Abort),
            (SIGXFSZ, none, None, Effect::Nothing),
            (SIGXFSZ, none, later, Effect::Nothing),
        ] {
            assert_eq!(Effect::of(signal, hangup, stopping), expected, "{signal} {stopping:?}");
        }
    }

    #[test]
    fn progress_is_a_difference_over_time() {
        let last = Progress { rx: 1_000, tx: 1_000, dropped: 3, loops: 1 };
        let now = Progress { rx: 2_001_000, tx: 6_000, dropped: 13, loops: 2 };
        let text = line(Duration::from_secs(7), Duration::from_millis(500), last, now);
        assert_eq!(text, "7.0 s · in 4.00 Mpps · out 10.0 kpps · dropped 20 pps (13 in all)");
    }
}
