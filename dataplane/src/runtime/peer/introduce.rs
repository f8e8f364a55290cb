//! The thread that brings the lanes of a port their peers: over TCP, or from another port of the same config.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::meeting::Meeting;
use crate::error::{Error, Result};
use crate::provider::connect::{self, ConnectError, Exchanged, Lifeline, Listener, Offer, Patience};

/// How often a connection is looked after.
const GLANCE: Duration = Duration::from_millis(50);
/// The pause after an exchange that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two troubles that are told.
const QUIET: Duration = Duration::from_secs(10);

/// Where the peer is.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// It comes to this address, from this one alone if one is given.
    Listen(SocketAddr, Option<IpAddr>),
    /// It is at this address.
    To(SocketAddr),
    /// It is another port of the same config.
    Inside(Arc<Meeting>),
}

/// How long peers are waited for, and what is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) deadline: Duration,
    pub(crate) step: Duration,
    pub(crate) allow_self: bool,
}

/// The thread. Dropping it ends it, and with it the connection.
pub(crate) struct Introducer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// What went wrong last, and when anything was told.
    trouble: Mutex<Option<(String, Instant)>>,
}

impl Shared {
    fn note(&self, text: String) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        // What is tried some times in a second, for hours maybe, is not told as often, nor what differs by a number alone.
        let told = match trouble.as_ref() {
            Some((last, told)) if *last == text || told.elapsed() < QUIET => {
                tracing::debug!("{text}");
                *told
            }
            _ => {
                tracing::warn!("{text}");
                Instant::now()
            }
        };
        *trouble = Some((text, told));
    }
}

impl Introducer {
    /// Starts it for a port of this name.
    ///
    /// # Errors
    /// The address cannot be listened at, or the thread not be started.
    pub(crate) fn start(port: &str, way: Way, terms: Terms, meeting: Arc<Meeting>) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let listener = match &way {
            Way::Listen(address, from) => Some(Listener::bind(*address, *from)?),
            Way::To(_) | Way::Inside(_) => None,
        };
        let life = Life { port: port.to_owned(), way, terms, meeting, listener, shared: shared.clone() };
        let thread = thread::Builder::new().name("peer".to_owned()).spawn(move || life.live());
        let thread = thread.map_err(|error| Error::Peer(format!("{port}: no thread for its peer: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What went wrong last, if anything did.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(text, _)| text.clone())
    }
}

impl Drop for Introducer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panics only by a bug, which its message has told.
            let _ = thread.join();
        }
    }
}

struct Life {
    port: String,
    way: Way,
    terms: Terms,
    meeting: Arc<Meeting>,
    listener: Option<Listener>,
    shared: Arc<Shared>,
}

impl Life {
    fn live(&self) {
        let cancelled = || self.shared.stop.load(Ordering::Relaxed);
        while !cancelled() {
            let connected = match &self.way {
                Way::Inside(other) => self.join(other, &cancelled),
                Way::Listen(..) | Way::To(_) => self.exchange(&cancelled),
            };
            match connected {
                Ok(lifeline) => self.look_after(lifeline.as_ref(), &cancelled),
                Err(ConnectError::Cancelled) => {}
                Err(error) => {
                    self.shared.note(format!("{}: {error}", self.port));
                    thread::sleep(PAUSE);
                }
            }
            self.meetings().for_each(Meeting::break_up);
        }
    }

    fn meetings(&self) -> impl Iterator<Item = &Meeting> {
        let other = if let Way::Inside(other) = &self.way { Some(&**other) } else { None };
        std::iter::once(&*self.meeting).chain(other)
    }

    /// Both sides are in this process.
    fn join(&self, other: &Meeting, cancelled: &dyn Fn() -> bool) -> Result<Option<Lifeline>, ConnectError> {
        let own = self.meeting.gather(cancelled).ok_or(ConnectError::Cancelled)?;
        let theirs = other.gather(cancelled).ok_or(ConnectError::Cancelled)?;
        for (one, two) in own.iter().zip(&theirs) {
            two.check_peer(one, self.terms.allow_self)?;
            one.check_peer(two, self.terms.allow_self)?;
        }
        let until = Instant::now() + self.terms.step;
        let met = self.meeting.deliver(&own, &theirs)
            && other.deliver(&theirs, &own)
            && self.meeting.all_ready(until, cancelled)
            && other.all_ready(until, cancelled);
        if met {
            self.meetings().for_each(Meeting::open);
            Ok(None)
        } else {
            Err(ConnectError::Deadline { last: self.meetings().find_map(Meeting::refusal) })
        }
    }

    /// The other side is another program.
    fn exchange(&self, cancelled: &dyn Fn() -> bool) -> Result<Option<Lifeline>, ConnectError> {
        let own = self.meeting.gather(cancelled).ok_or(ConnectError::Cancelled)?;
        let offer = Offer { endpoints: &own, allow_self: self.terms.allow_self };
        let patience = Patience { until: Instant::now() + self.terms.deadline, step: self.terms.step, cancelled };
        let exchanged: Exchanged = match (&self.way, &self.listener) {
            (_, Some(listener)) => listener.accept(&offer, &patience)?,
            (Way::To(address), _) => connect::connect(*address, &offer, &patience)?,
            // A way without a listener leads somewhere.
            _ => return Err(ConnectError::Cancelled),
        };
        let until = Instant::now() + self.terms.step;
        if !(self.meeting.deliver(&own, &exchanged.remotes) && self.meeting.all_ready(until, cancelled)) {
            return Err(ConnectError::Deadline { last: self.meeting.refusal() });
        }
        let lifeline = exchanged.confirm(&patience)?;
        self.meeting.open();
        Ok(Some(lifeline))
    }

    /// Returns when a lane begins anew, or the peer is gone.
    fn look_after(&self, lifeline: Option<&Lifeline>, cancelled: &dyn Fn() -> bool) {
        tracing::info!("{}: connected", self.port);
        while !cancelled() && self.meetings().all(Meeting::is_open) {
            match lifeline {
                Some(lifeline) if lifeline.is_cut(GLANCE) => {
                    tracing::warn!("{}: the peer has gone", self.port);
                    return;
                }
                Some(_) => {}
                None => thread::sleep(GLANCE),
            }
        }
    }
}
