//! Notifications to the service manager, such as systemd: the state of the run, a status line, and the watchdog
//! (sd_notify(3)). Without the environment variable `NOTIFY_SOCKET`, the program sends no notifications.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use crate::runtime::Run;
use dataplane_core::telemetry::{PacketsPerSecond, Progress};

/// The interval between two updates of the status line.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// The maximum time that a notification waits while the socket of the service manager is full. If the previous
/// notification failed, a notification does not wait.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

/// The maximum time that the last notification waits after an upgrade. This wait delays no packet, because the other
/// program already forwards the packets.
const LAST_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a notification has failed, and the log has a message about the failure.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Whether the most recent notification has failed. If so, the next notification does not wait.
static LAST_HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Sends a notification. Returns `false` if the notification failed. Logs only the first failure, because the service
/// manager may be gone for a long time.
fn notify(states: &[NotifyState<'_>]) -> bool {
    notify_within(states, (!LAST_HAS_FAILED.load(Ordering::Relaxed)).then_some(SEND_TIMEOUT))
}

/// Sends a notification like [`notify`]. If the socket of the service manager is full, waits up to `limit`. Without a
/// limit, does not wait.
fn notify_within(states: &[NotifyState<'_>], limit: Option<Duration>) -> bool {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return true };
    let sent = send(states, &path, limit);
    LAST_HAS_FAILED.store(sent.is_err(), Ordering::Relaxed);
    if let Err(error) = &sent
        && !HAS_FAILED.swap(true, Ordering::Relaxed)
    {
        let problem = match error.kind() {
            io::ErrorKind::WouldBlock => "the socket is full".to_owned(),
            _ => error.to_string(),
        };
        tracing::warn!("cannot notify the service manager at `{}` (NOTIFY_SOCKET): {problem}", path.display());
    }
    sent.is_ok()
}

/// Sends a notification as one datagram. `sd_notify::notify` would block indefinitely if the socket is full.
fn send(states: &[NotifyState<'_>], path: &OsStr, limit: Option<Duration>) -> io::Result<()> {
    let text: String = states.iter().map(|state| format!("{state}\n")).collect();
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(limit)?;
    socket.set_nonblocking(limit.is_none())?;
    loop {
        match socket.send_to(text.as_bytes(), path) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            sent => return sent.map(drop),
        }
    }
}

/// Reports that the run starts.
pub(super) fn starting() {
    notify(&[NotifyState::Status("starting")]);
}

/// Reports that the run is ready. Returns `false` if the notification failed.
fn running() -> bool {
    notify(&[NotifyState::Ready, NotifyState::Status("running")])
}

/// The connection of a run to the service manager.
pub(super) struct Service {
    is_stopping: bool,
    /// `true` if the notification that the run is ready failed, and must be sent again.
    is_ready_pending: bool,
    watchdog: Option<Watchdog>,
    /// The counters and the time of the last status line. `None` without a service manager.
    last: Option<(Progress, Instant)>,
}

impl Service {
    /// Reports that the workers run.
    pub(super) fn ready(run: &Run) -> Self {
        let now = Instant::now();
        let watchdog = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero());
        let watchdog = watchdog.map(|limit| Watchdog::new(limit, now, &run.loops()));
        let is_ready_pending = !running();
        let last = env::var_os("NOTIFY_SOCKET").map(|_| (run.progress(), now));
        Self { is_stopping: false, is_ready_pending, watchdog, last }
    }

    /// Reports the start of a reload, unless the run is stopping.
    pub(super) fn reloading(&mut self) {
        if self.is_stopping {
            return;
        }
        let mut states = vec![NotifyState::Reloading, NotifyState::Status("reloading")];
        // systemd 253 and newer need the monotonic time of the reload. Reading this time fails only on a host without a
        // monotonic clock, which does not occur.
        states.extend(NotifyState::monotonic_usec_now());
        notify(&states);
        self.is_ready_pending = false;
    }

    /// Reports the end of a reload, unless the run is stopping.
    pub(super) fn reloaded(&mut self) {
        if self.is_stopping {
            return;
        }
        self.is_ready_pending = !running();
    }

    /// Reports that the run stops, unless an earlier call has reported the stop.
    pub(super) fn stopping(&mut self) {
        if !std::mem::replace(&mut self.is_stopping, true) {
            notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
        }
    }

    /// Reports that another process has taken over the run. Afterwards, this process sends no notifications.
    pub(super) fn replaced_by(&mut self, process: u32) {
        self.is_stopping = true;
        let states = [NotifyState::MainPid(process), NotifyState::Ready, NotifyState::Status("running")];
        notify_within(&states, Some(LAST_TIMEOUT));
    }

    /// Feeds the watchdog, updates the status line, and reports that the run stops. The caller calls this function
    /// several times a second.
    pub(super) fn turn(&mut self, run: &Run) {
        let now = Instant::now();
        if run.is_stopped() {
            self.stopping();
        }
        if self.is_ready_pending && !self.is_stopping {
            self.is_ready_pending = !running();
        }
        // systemd disarms the watchdog of a service that stops. `WATCHDOG=1` would arm the watchdog again.
        let watchdog = self.watchdog.as_mut().filter(|_| !self.is_stopping);
        match watchdog.map(|watchdog| watchdog.check(now, || run.loops())) {
            Some(WatchdogCheck::Fed) => _ = notify(&[NotifyState::Watchdog]),
            Some(WatchdogCheck::Stuck(workers)) => {
                let list = workers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                let problem =
                    format!("workers without progress: {list}. The watchdog of the service manager is not fed");
                tracing::error!("{problem}");
                notify(&[NotifyState::Status(&problem)]);
            }
            Some(WatchdogCheck::StillStuck) | Some(WatchdogCheck::NotDue) | None => {}
        }
        let is_stuck = self.watchdog.as_ref().is_some_and(|watchdog| watchdog.is_stuck);
        if let Some((last, since)) = &mut self.last
            && !self.is_stopping
            && !is_stuck
            && now.duration_since(*since) >= STATUS_INTERVAL
        {
            let progress = run.progress();
            notify(&[NotifyState::Status(&status(*last, progress, now.duration_since(*since)))]);
            (*last, *since) = (progress, now);
        }
    }
}

/// Returns the status line: the rates since the last status line.
fn status(last: Progress, now: Progress, time: Duration) -> String {
    let rate = |last: u64, now: u64| PacketsPerSecond(now.saturating_sub(last) as f64 / time.as_secs_f64());
    format!(
        "running: in {}, out {}, dropped {}",
        rate(last.rx, now.rx),
        rate(last.tx, now.tx),
        rate(last.dropped, now.dropped)
    )
}

/// Decides when to feed the watchdog. The service manager ends the program if the program does not feed the watchdog
/// within a time limit.
struct Watchdog {
    interval: Duration,
    due: Instant,
    /// The loop iterations of each worker when the watchdog was last fed. `None` for a worker that had ended.
    fed: Vec<Option<u64>>,
    is_stuck: bool,
}

/// The result of a check.
#[derive(Debug, PartialEq, Eq)]
enum WatchdogCheck {
    NotDue,
    Fed,
    /// These workers made no progress since the watchdog was last fed.
    Stuck(Vec<usize>),
    /// A worker still makes no progress.
    StillStuck,
}

impl Watchdog {
    /// The number of checks within the time limit. A slow worker can have no progress at one check. With several checks
    /// within the limit, one such check does not end the program.
    const CHECKS: u32 = 4;

    fn new(limit: Duration, now: Instant, loops: &[Option<u64>]) -> Self {
        let interval = limit / Self::CHECKS;
        Self { interval, due: now + interval, fed: loops.to_vec(), is_stuck: false }
    }

    /// Checks whether all workers made progress since the watchdog was last fed. `loops` returns the loop iterations of
    /// each worker.
    fn check(&mut self, now: Instant, loops: impl FnOnce() -> Vec<Option<u64>>) -> WatchdogCheck {
        if now < self.due {
            return WatchdogCheck::NotDue;
        }
        self.due = now + self.interval;
        let loops = loops();
        let has_progress = |worker: usize| match loops[worker] {
            Some(count) => self.fed.get(worker) != Some(&Some(count)),
            // A worker ends when its inputs have ended.
            None => true,
        };
        let stuck: Vec<usize> = (0..loops.len()).filter(|&worker| !has_progress(worker)).collect();
        let was_stuck = std::mem::replace(&mut self.is_stuck, !stuck.is_empty());
        match (stuck.is_empty(), was_stuck) {
            (true, _) => {
                self.fed = loops;
                WatchdogCheck::Fed
            }
            (false, false) => WatchdogCheck::Stuck(stuck),
            (false, true) => WatchdogCheck::StillStuck,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_fed_only_while_every_running_worker_makes_progress() {
        let limit = Duration::from_secs(20);
        let start = Instant::now();
        let mut watchdog = Watchdog::new(limit, start, &[Some(0), Some(0)]);
        let mut at = |second: u64, loops: [Option<u64>; 2]| {
            watchdog.check(start + Duration::from_secs(second), || loops.to_vec())
        };
        assert_eq!(at(4, [Some(100), Some(100)]), WatchdogCheck::NotDue);
        assert_eq!(at(5, [Some(100), Some(100)]), WatchdogCheck::Fed);
        assert_eq!(at(10, [Some(200), Some(100)]), WatchdogCheck::Stuck(vec![1]));
        assert_eq!(at(15, [Some(300), Some(100)]), WatchdogCheck::StillStuck);
        // The last feed was at second 5, so the service manager would wait until second 25.
        assert_eq!(at(20, [Some(300), Some(101)]), WatchdogCheck::Fed);
        assert_eq!(at(25, [Some(400), Some(101)]), WatchdogCheck::Stuck(vec![1]));
    }

    #[test]
    fn worker_that_has_ended_or_restarted_is_not_stuck() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Duration::from_secs(4), start, &[Some(9), Some(9)]);
        let mut at =
            |second: u64, loops: &[Option<u64>]| watchdog.check(start + Duration::from_secs(second), || loops.to_vec());
        assert_eq!(at(1, &[Some(10), None]), WatchdogCheck::Fed);
        assert_eq!(at(2, &[Some(3), None]), WatchdogCheck::Fed);
        assert_eq!(at(3, &[Some(4), None, Some(0)]), WatchdogCheck::Fed);
        assert_eq!(at(4, &[Some(5), None, Some(0)]), WatchdogCheck::Stuck(vec![2]));
    }

    #[test]
    fn status_line_has_the_rates_since_the_last_line() {
        let last = Progress { rx: 1_000, tx: 1_000, dropped: 3, loops: 1 };
        let now = Progress { rx: 2_001_000, tx: 6_000, dropped: 13, loops: 2 };
        let text = status(last, now, Duration::from_millis(500));
        assert_eq!(text, "running: in 4.00 Mpps, out 10.0 kpps, dropped 20 pps");
    }
}
