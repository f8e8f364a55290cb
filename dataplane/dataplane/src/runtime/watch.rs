//! The thread that handles asynchronous events of a device and follows its clocks. Each device has one such thread.
//!
//! The thread takes and acknowledges every event immediately. For an event of a port of the device, the thread calls
//! the functions that are registered for this port. Any other event becomes a pending event, which the lanes of the
//! device check. A lane is one worker's queue pair and completion queues on one port. The thread also logs every event.
//! If equal events repeat, the thread logs only the first three, and then the 4th, 8th, 16th and so on.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::runtime::follow::ClockFollower;
use dataplane_core::clock::{ClockReport, Clocks, HostClock};
use dataplane_core::error::{Error, Result, THREAD_REMEDY};
use dataplane_core::lane::{PendingEvents, Stamping};
use dataplane_core::pipeline::{RunStop, panic_message};
use dataplane_core::verbs::{AsyncEvent, Device, EventKind, EventSubject};

/// The longest wait for an event before the thread checks whether to stop.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of unread lines. The oldest lines are discarded.
const MAX_LINES: usize = 256;

/// The maximum number of recorded panics.
const MAX_FAILURES: usize = 16;

/// The maximum number of distinct events that are counted. There are more distinct events only if queues are created
/// again many times. In that case, all counts restart from 0.
const MAX_COUNTED: usize = 1024;

/// A port number of the device, from 1, and the function to call when the state or addresses of that port may have
/// changed.
type OnPort = (u8, Box<dyn FnMut(EventKind) + Send>);

/// A function that the thread calls again and again.
struct Recurring {
    interval: Duration,
    last: Instant,
    act: Box<dyn FnMut() + Send>,
}

/// The event thread of a device. Dropping this value ends the thread.
pub(crate) struct Watch {
    shared: Arc<WatchState>,
    clocks: Clocks,
    thread: Option<JoinHandle<()>>,
}

struct WatchState {
    stop: AtomicBool,
    lines: Mutex<VecDeque<String>>,
    pending_events: Arc<PendingEvents>,
    on_port: Mutex<Vec<OnPort>>,
    recurring: Mutex<Vec<Recurring>>,
    follow: Mutex<ClockFollower>,
    /// The panics of the thread and of the functions of `on_port`.
    failures: Mutex<Vec<String>>,
}

impl WatchState {
    fn ports(&self) -> MutexGuard<'_, Vec<OnPort>> {
        self.on_port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self) -> MutexGuard<'_, ClockFollower> {
        self.follow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the recurring functions that are due.
    fn call_due(&self) {
        let mut recurring = self.recurring.lock().unwrap_or_else(PoisonError::into_inner);
        for it in recurring.iter_mut().filter(|it| it.last.elapsed() >= it.interval) {
            it.last = Instant::now();
            self.guard("a recurring function of the device", &mut it.act);
        }
    }

    /// Runs a part of the work of the thread. Logs and records a panic of this part. Returns `None` after a panic.
    fn guard<T>(&self, what: &str, part: impl FnOnce() -> T) -> Option<T> {
        let panic = match catch_unwind(AssertUnwindSafe(part)) {
            Ok(done) => return Some(done),
            Err(panic) => panic,
        };
        let failure = format!("{what} panicked: {}", panic_message(&*panic));
        tracing::error!("{failure}");
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        // Limit the number of recorded panics. A link may go up and down many times, and a function may panic each
        // time.
        if failures.len() < MAX_FAILURES {
            failures.push(failure);
        }
        None
    }

    fn log(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == MAX_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

impl Watch {
    /// Starts the event thread. The thread also follows the clocks that `stamps` needs. If the thread panics, it sets
    /// `stop`, because nobody handles the events of the device any more.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(crate) fn start<D: Device>(device: D, clock: &HostClock, stamps: Stamping, stop: &RunStop) -> Result<Self> {
        let follow = ClockFollower::new(&device, clock, stamps);
        let name = device.name().to_owned();
        Self::spawn(&name, follow, stop.clone(), move |shared| listen(&device, shared))
    }

    /// Starts a thread that runs `body`.
    fn spawn(
        name: &str,
        follow: ClockFollower,
        stop: RunStop,
        body: impl FnOnce(&WatchState) + Send + 'static,
    ) -> Result<Self> {
        let clocks = follow.clocks();
        let shared = Arc::new(WatchState {
            stop: AtomicBool::new(false),
            lines: Mutex::default(),
            pending_events: Arc::default(),
            on_port: Mutex::default(),
            recurring: Mutex::default(),
            follow: Mutex::new(follow),
            failures: Mutex::default(),
        });
        let thread_shared = shared.clone();
        let started = Arc::new(Barrier::new(2));
        let barrier = started.clone();
        let run = move || {
            started.wait();
            if thread_shared.guard("the event thread", || body(&thread_shared)).is_none() {
                stop.set();
            }
        };
        let thread = thread::Builder::new().name("events".to_owned()).spawn(run);
        let thread = thread.map_err(|error| {
            Error::Wire(format!("{name}: cannot start the event thread: {error}; help: {THREAD_REMEDY}"))
        })?;
        // A starting thread allocates memory. Wait until the thread has started, because nothing should allocate while
        // the workers run.
        barrier.wait();
        Ok(Self { shared, clocks, thread: Some(thread) })
    }

    /// Returns the panics of the thread and of the functions that it called.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Registers a function that the thread calls at every event of the port `port` of the device. If the function
    /// panics, the thread reports the panic, and calls the function again at the next event.
    pub(crate) fn on_port(&self, port: u8, act: impl FnMut(EventKind) + Send + 'static) {
        self.shared.ports().push((port, Box::new(act)));
    }

    /// Registers a function that the thread calls once in each interval. The thread checks about ten times a second
    /// whether a function is due, and calls no function any more after a removal of the device.
    #[cfg(any(feature = "ibverbs", test))]
    pub(crate) fn every(&self, interval: Duration, act: impl FnMut() + Send + 'static) {
        let recurring = Recurring { interval, last: Instant::now(), act: Box::new(act) };
        self.shared.recurring.lock().unwrap_or_else(PoisonError::into_inner).push(recurring);
    }

    /// Returns the pending events that the lanes of the device check.
    pub(crate) fn pending_events(&self) -> Arc<PendingEvents> {
        self.shared.pending_events.clone()
    }

    /// Returns the clocks that the lanes of the device use for timestamps.
    pub(crate) fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Returns a report about each followed clock.
    pub(crate) fn clock_reports(&self) -> Vec<ClockReport> {
        self.shared.follow().reports()
    }

    /// Returns the log lines that were added since the last call.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.shared.lines.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics.
            let _ = thread.join();
        }
    }
}

fn listen<D: Device>(device: &D, shared: &WatchState) {
    let mut counts: HashMap<(EventKind, u32), u64> = HashMap::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let until_due = shared.follow().until_due(STOP_CHECK_INTERVAL);
        let event = device.wait_async_event(until_due);
        shared.call_due();
        if !event.is_some_and(|event| event.kind == EventKind::DeviceFatal) {
            shared.follow().step(device, &mut |line, times| {
                if should_log(times) {
                    shared.log(line);
                }
            });
        }
        let Some(event) = event else { continue };
        match event.kind.subject() {
            // Only the ports that the config uses have a handler.
            EventSubject::Port => {
                shared.ports().iter_mut().filter(|(port, _)| u32::from(*port) == event.element).for_each(|(_, act)| {
                    shared.guard("the handler of port changes", || act(event.kind)).unwrap_or_default()
                })
            }
            _ => shared.pending_events.push(event),
        }
        if counts.len() >= MAX_COUNTED && !counts.contains_key(&(event.kind, event.element)) {
            counts.clear();
        }
        let times = counts.entry((event.kind, event.element)).or_default();
        *times += 1;
        if let Some(line) = line(event, *times) {
            shared.log(line);
        }
        if event.kind == EventKind::DeviceFatal {
            // The device generates no further events.
            return;
        }
    }
}

/// Returns the log line for an event that occurred for the n-th time, where n is `times`. Returns `None` if this
/// occurrence is not logged.
fn line(event: AsyncEvent, times: u64) -> Option<String> {
    let words = event.kind.words();
    match times {
        1..=3 => Some(format!("{words} ({event})")),
        _ if should_log(times) => Some(format!("{words} ({event}, {times} times)")),
        _ => None,
    }
}

/// Returns `true` for the first three occurrences, and then for each power of two.
fn should_log(times: u64) -> bool {
    times <= 3 || times.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use dataplane_soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};

    fn device() -> SoftDevice {
        SoftDevice::new(SoftSpec::new("s", LinkSpec::Loopback(LoopbackLink::reflect()))).unwrap()
    }

    #[test]
    fn port_event_calls_its_handler_and_removal_is_a_pending_event() {
        let device = device();
        let (sender, receiver) = mpsc::channel();
        let watch = Watch::start(device.clone(), &HostClock::new(), Stamping::Device, &RunStop::default()).unwrap();
        watch.on_port(2, |_| unreachable!("the device has one port"));
        watch.on_port(1, move |kind| sender.send(kind).unwrap());
        device.set_link(false);
        assert_eq!(receiver.recv_timeout(Duration::from_secs(30)), Ok(EventKind::PortErr));
        device.remove();
        while !watch.pending_events().is_device_lost() {
            thread::yield_now();
        }
        let thread = watch.thread.as_ref().unwrap();
        while !thread.is_finished() {
            thread::yield_now();
        }
        assert_eq!(
            watch.lines(),
            [
                "the link is down (IBV_EVENT_PORT_ERR on port 1)",
                "the device failed permanently (IBV_EVENT_DEVICE_FATAL)"
            ]
        );
    }

    #[test]
    fn recurring_function_is_called_again_and_again() {
        let (sender, receiver) = mpsc::channel();
        let watch = Watch::start(device(), &HostClock::new(), Stamping::Device, &RunStop::default()).unwrap();
        watch.every(Duration::from_millis(1), move || {
            let _ = sender.send(());
        });
        for _ in 0..3 {
            assert_eq!(receiver.recv_timeout(Duration::from_secs(30)), Ok(()));
        }
    }

    #[test]
    fn panic_of_a_handler_is_reported_and_the_next_event_is_handled() {
        let device = device();
        let (sender, receiver) = mpsc::channel();
        let watch = Watch::start(device.clone(), &HostClock::new(), Stamping::Device, &RunStop::default()).unwrap();
        watch.on_port(1, move |kind| {
            sender.send(kind).unwrap();
            assert_eq!(kind, EventKind::PortActive, "this handler panics if the link goes down");
        });
        for (is_up, kind) in [(false, EventKind::PortErr), (true, EventKind::PortActive)] {
            device.set_link(is_up);
            assert_eq!(receiver.recv_timeout(Duration::from_secs(30)), Ok(kind));
        }
        let [failure] = &watch.failures()[..] else { panic!("{:?}", watch.failures()) };
        assert!(failure.starts_with("the handler of port changes panicked: assertion"), "{failure}");
    }

    #[test]
    fn panic_of_the_event_thread_is_reported_and_stops_the_run() {
        let (device, clock, stop) = (device(), HostClock::new(), RunStop::default());
        let follow = ClockFollower::new(&device, &clock, Stamping::Device);
        let mut watch = Watch::spawn("s", follow, stop.clone(), |_| panic!("an unknown event")).unwrap();
        watch.thread.take().unwrap().join().unwrap();
        assert_eq!(watch.failures(), ["the event thread panicked: an unknown event"]);
        assert!(stop.is_set());
    }

    #[test]
    fn event_storm_is_logged_in_few_lines() {
        let event = AsyncEvent { kind: EventKind::CqErr, element: 3 };
        let lines: Vec<String> = (1..=37).filter_map(|times| line(event, times)).collect();
        assert_eq!(lines.len(), 7, "{lines:?}");
        assert!(lines[6].ends_with(", 32 times)"));
    }
}
