//! Follows the kernel: its routes, neighbours, addresses and links become the tables that stages look in.
//!
//! A thread of its own reads all there is once (a dump), then follows what changes, and writes it to
//! [`Forwarding`]. Workers are not stopped and do not notice. Where the kernel had to throw messages away, and where it
//! is known not to tell (the IPv4 routes of an interface that goes down), all is read anew and only differences are
//! written. What workers need to know, the kernel is asked to find out.

mod messages;
mod rib;
mod socket;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::pipeline::PortInfo;
use crate::stages::forwarding::{Count, Forwarding};
use socket::{Events, Requests};
use state::State;

/// How long a question of a worker may wait.
const NAP: Duration = Duration::from_millis(10);
/// How long after something that the kernel does not tell in full all is read anew: more of it often follows at once.
const SETTLE: Duration = Duration::from_millis(50);
/// How often workers may ask again for a neighbour that is not resolved.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How often all is read anew without a cause.
const CARE: Duration = Duration::from_secs(60);
/// How long after a failure it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The thread that follows the kernel of this network namespace. Dropped, it ends.
#[derive(Debug)]
pub struct Mirror {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mirror {
    /// Reads what there is, and follows it from then on. Ports are those interfaces that they name. No worker is at work before
    /// this is done.
    ///
    /// # Errors
    /// There is no socket to the kernel, or it does not answer; somebody follows it for these tables already.
    pub fn start(tables: Arc<Forwarding>, ports: &[PortInfo]) -> Result<Self> {
        Self::start_with(tables, ports, socket::BACKLOG, CARE)
    }

    /// The same, with so many bytes for what the kernel tells and is not read yet, and all read anew so often without a cause.
    fn start_with(tables: Arc<Forwarding>, ports: &[PortInfo], backlog: usize, care: Duration) -> Result<Self> {
        let failed = |what: &str, error: std::io::Error| Error::Kernel(format!("{what}: {error}"));
        let writer = tables.writer().ok_or_else(|| Error::Kernel("its tables are written already".to_owned()))?;
        // What changes while all is read is told behind it.
        let events = Events::open(backlog).map_err(|error| failed("cannot subscribe to changes", error))?;
        let mut requests = Requests::open().map_err(|error| failed("cannot open a netlink socket", error))?;
        let mut state = State::new(tables, writer, ports);
        state.read_anew(&mut requests).map_err(|error| failed("cannot read routes", error))?;
        state.begin();
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = thread::Builder::new().name("kernel-mirror".to_owned());
        let thread = thread.spawn(move || follow(&mut state, &events, &mut requests, care, &told));
        let thread = thread.map_err(|error| failed("its thread cannot be started", error))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there was printed there.
            let _ = thread.join();
        }
    }
}

/// The life of the thread.
fn follow(state: &mut State, events: &Events, requests: &mut Requests, care: Duration, stop: &AtomicBool) {
    let (mut anew, mut asked, mut cared) = (None::<Instant>, Instant::now(), Instant::now());
    while !stop.load(Ordering::Relaxed) {
        match events.wait(NAP, |message| state.apply(message)) {
            Ok(complete) => {
                if !complete {
                    tracing::debug!("kernel: messages were lost, all is read anew");
                }
                if !complete || state.take_doubt() {
                    anew = anew.or(Some(Instant::now() + SETTLE));
                }
            }
            Err(error) => {
                tracing::warn!("kernel: {error}");
                anew = anew.or(Some(Instant::now() + AGAIN));
                thread::sleep(NAP);
            }
        }
        if cared.elapsed() >= care {
            cared = Instant::now();
            anew = anew.or(Some(cared));
        }
        if anew.is_some_and(|at| at <= Instant::now()) {
            anew = None;
            state.tables().add(Count::Resyncs, 1);
            if let Err(error) = state.read_anew(requests) {
                tracing::warn!("kernel: reading anew: {error}");
                anew = Some(Instant::now() + AGAIN);
            }
        }
        if asked.elapsed() >= ASK_AGAIN {
            asked = Instant::now();
            state.ask_again();
            if state.take_left_out()
                && let Err(error) = state.read_neighbors(requests)
            {
                tracing::warn!("kernel: reading neighbours anew: {error}");
                anew = anew.or(Some(Instant::now() + AGAIN));
            }
        }
        state.answer(requests);
        state.publish();
    }
}
