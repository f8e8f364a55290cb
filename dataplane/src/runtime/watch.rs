//! The thread that hears what a device says outside any completion, and follows its clocks: one for each device.
//!
//! Every event is taken off and acknowledged at once. What concerns queues becomes an alarm that their lanes act on; what
//! a person should know becomes a line of text, of a storm of equal events the first and then ever fewer.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::clock::{ClockReport, Clocks, HostClock};
use crate::error::{Error, Result};
use crate::lane::{Alarms, Stamping};
use crate::provider::{AsyncEvent, Device, EventKind, EventSubject};
use crate::runtime::follow::Follow;

/// How long the thread waits for an event before it looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(100);
/// Lines that wait to be read; the oldest give way.
const LINES: usize = 256;

/// Different events that are counted, to tell a storm. More come only of queues that are made anew over and over: then
/// counting begins anew too.
const COUNTED: usize = 1024;

/// What to do when a port of the device, from 1, may have changed: its state or its addresses.
type OnPort = (u8, Box<dyn FnMut() + Send>);

/// A device that is listened to. Dropping it ends the thread.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    clocks: Clocks,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    lines: Mutex<VecDeque<String>>,
    alarms: Arc<Alarms>,
    on_port: Mutex<Vec<OnPort>>,
    follow: Mutex<Follow>,
}

impl Shared {
    fn ports(&self) -> MutexGuard<'_, Vec<OnPort>> {
        self.on_port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follow(&self) -> MutexGuard<'_, Follow> {
        self.follow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

impl Watch {
    /// Starts to listen, and to follow the clocks that packets are to be stamped by.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start<D: Device>(device: D, clock: &HostClock, stamps: Stamping) -> Result<Self> {
        let follow = Follow::new(&device, clock, stamps);
        let clocks = follow.clocks();
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            lines: Mutex::default(),
            alarms: Arc::default(),
            on_port: Mutex::default(),
            follow: Mutex::new(follow),
        });
        let theirs = shared.clone();
        let name = device.name().to_owned();
        let begun = Arc::new(Barrier::new(2));
        let both = begun.clone();
        let life = move || {
            begun.wait();
            listen(&device, &theirs);
        };
        let thread = thread::Builder::new().name("events".to_owned()).spawn(life);
        let thread = thread.map_err(|error| Error::Wire(format!("{name}: no thread for its events: {error}")))?;
        // A thread that begins takes memory: not while the workers run.
        both.wait();
        Ok(Self { shared, clocks, thread: Some(thread) })
    }

    /// Has `act` called, on the thread, at every event of a port of the device.
    pub(crate) fn on_port(&self, port: u8, act: impl FnMut() + Send + 'static) {
        self.shared.ports().push((port, Box::new(act)));
    }

    /// Where the lanes of the device hear of it.
    pub(crate) fn alarms(&self) -> Arc<Alarms> {
        self.shared.alarms.clone()
    }

    /// What the lanes of the device stamp by.
    pub(crate) fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// What is known of the clocks that are followed.
    pub(crate) fn clock_reports(&self) -> Vec<ClockReport> {
        self.shared.follow().reports()
    }

    /// What was heard since the last call, in words.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.shared.lines.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panics only by a bug, which its message has told.
            let _ = thread.join();
        }
    }
}

fn listen<D: Device>(device: &D, shared: &Shared) {
    let mut heard: HashMap<(EventKind, u32), u64> = HashMap::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let rest = shared.follow().rest(PATIENCE);
        let event = device.wait_async_event(rest);
        if !event.is_some_and(|event| event.kind == EventKind::DeviceFatal) {
            shared.follow().step(device, &mut |line| shared.tell(line));
        }
        let Some(event) = event else { continue };
        match event.kind.subject() {
            // Of another port nothing is to be done.
            EventSubject::Port => shared
                .ports()
                .iter_mut()
                .filter(|(port, _)| u32::from(*port) == event.element)
                .for_each(|(_, act)| act()),
            _ => shared.alarms.ring(event),
        }
        if heard.len() >= COUNTED && !heard.contains_key(&(event.kind, event.element)) {
            heard.clear();
        }
        let times = heard.entry((event.kind, event.element)).or_default();
        *times += 1;
        if let Some(line) = line(event, *times) {
            shared.tell(line);
        }
        if event.kind == EventKind::DeviceFatal {
            // It says nothing any more but this.
            return;
        }
    }
}

/// The line of an event that comes for the n-th time, if it is worth one: the first few, then each power of two.
fn line(event: AsyncEvent, times: u64) -> Option<String> {
    let words = event.kind.words();
    match times {
        1..=3 => Some(format!("{words} ({event})")),
        _ if is_worth(times) => Some(format!("{words} ({event}, {times} times)")),
        _ => None,
    }
}

/// Whether something that happens for the n-th time is worth a line.
pub(crate) fn is_worth(times: u64) -> bool {
    times <= 3 || times.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::provider::soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};

    fn device() -> SoftDevice {
        SoftDevice::new(SoftSpec::new("s", LinkSpec::Loopback(LoopbackLink::reflect()))).unwrap()
    }

    #[test]
    fn a_port_is_told_of_and_a_removal_rings() {
        let device = device();
        let (tell, told) = mpsc::channel();
        let watch = Watch::start(device.clone(), &HostClock::new(), Stamping::Device).unwrap();
        watch.on_port(2, || unreachable!("the device has one port"));
        watch.on_port(1, move || tell.send(()).unwrap());
        device.set_link(false);
        assert_eq!(told.recv_timeout(Duration::from_secs(30)), Ok(()));
        device.remove();
        while !watch.alarms().is_gone() {
            thread::yield_now();
        }
        let thread = watch.thread.as_ref().unwrap();
        while !thread.is_finished() {
            thread::yield_now();
        }
        assert_eq!(
            watch.lines(),
            ["the link is down (IBV_EVENT_PORT_ERR on port 1)", "the device is gone for good (IBV_EVENT_DEVICE_FATAL)"]
        );
    }

    #[test]
    fn a_storm_is_few_lines() {
        let event = AsyncEvent { kind: EventKind::CqErr, element: 3 };
        let lines: Vec<String> = (1..=37).filter_map(|times| line(event, times)).collect();
        assert_eq!(lines.len(), 7, "{lines:?}");
        assert!(lines[6].ends_with(", 32 times)"));
    }
}
