//! The rendezvous is the state that the lanes of a port share with the exchange thread. Each lane runs on its worker's
//! thread and offers its own endpoint. The exchange thread passes the endpoints of all lanes to the peer, and the
//! endpoints of the peer to the lanes.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dataplane_core::connect::QueuePairEndpoint;

/// The interval at which a waiting thread checks whether the wait is cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The connection state of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneState {
    /// The queue pair of the lane does not exist yet.
    NoQueuePair,
    /// The queue pair is ready to connect, with this endpoint.
    Offered(QueuePairEndpoint),
    /// The peer's endpoint is known.
    Answered(QueuePairEndpoint),
    /// The queue pair is in RTS.
    Ready,
    /// The peer's queue pair is in RTS too.
    Live,
}

/// The connection state of the lanes of all workers on one port. The connections of a port start and end together.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    states: Mutex<Box<[LaneState]>>,
    changed: Condvar,
    flags: Box<[Flags]>,
    /// The number of rounds so far. In each round, all lanes get the endpoints of their peers. A thread must lock
    /// `states` before it writes this field.
    round: AtomicU32,
    /// The reason why a lane last refused its peer.
    refusal: Mutex<Option<String>>,
}

/// Flags that a lane reads without a lock. A thread must lock `states` before it writes a flag.
#[derive(Debug, Default)]
struct Flags {
    answered: AtomicBool,
    live: AtomicBool,
    stale: AtomicBool,
}

impl Rendezvous {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            states: Mutex::new(vec![LaneState::NoQueuePair; lanes].into()),
            changed: Condvar::new(),
            flags: (0..lanes).map(|_| Flags::default()).collect(),
            round: AtomicU32::new(0),
            refusal: Mutex::default(),
        }
    }

    fn states(&self) -> MutexGuard<'_, Box<[LaneState]>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flags(&self, queue: u16) -> &Flags {
        &self.flags[usize::from(queue)]
    }

    /// Offers the endpoint of a lane. The queue pair of the lane must be in INIT and have receives posted.
    pub(crate) fn offer(&self, queue: u16, endpoint: QueuePairEndpoint) {
        let flags = self.flags(queue);
        let mut states = self.states();
        flags.answered.store(false, Ordering::Relaxed);
        flags.live.store(false, Ordering::Relaxed);
        flags.stale.store(false, Ordering::Relaxed);
        states[usize::from(queue)] = LaneState::Offered(endpoint);
        self.changed.notify_all();
    }

    /// Returns the endpoint of the lane's peer, and the round in which the lane got the endpoint. Returns `None`,
    /// without taking the lock, while the endpoint is unknown.
    pub(crate) fn answer(&self, queue: u16) -> Option<(QueuePairEndpoint, u32)> {
        if !self.flags(queue).answered.load(Ordering::Relaxed) {
            return None;
        }
        match self.states().get(usize::from(queue)) {
            Some(LaneState::Answered(peer)) => Some((*peer, self.round.load(Ordering::Relaxed))),
            _ => None,
        }
    }

    /// Records that the lane's queue pair is in RTS.
    pub(crate) fn ready(&self, queue: u16) {
        self.states()[usize::from(queue)] = LaneState::Ready;
        self.changed.notify_all();
    }

    /// Records the reason why a lane cannot connect to its peer.
    pub(crate) fn refuse(&self, why: &str) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    /// Returns the reason of the last refusal. Returns `None` if no lane refused its peer since the last call.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns `true` if the queue pairs of the lane and its peer are both in RTS.
    pub(crate) fn is_live(&self, queue: u16) -> bool {
        self.flags(queue).live.load(Ordering::Relaxed)
    }

    /// Returns `true` if the lane must connect again, for example because the peer has disconnected.
    pub(crate) fn is_stale(&self, queue: u16) -> bool {
        self.flags(queue).stale.load(Ordering::Relaxed)
    }

    /// Waits until every lane has offered its endpoint, and returns all endpoints. When a lane makes a new offer, marks
    /// the connected lanes as stale, so that all lanes connect again together. Returns `None` if the wait was
    /// cancelled.
    pub(crate) fn gather_offers(&self, cancelled: &dyn Fn() -> bool) -> Option<Vec<QueuePairEndpoint>> {
        let mut states = self.states();
        while !cancelled() {
            let offers: Vec<QueuePairEndpoint> = states
                .iter()
                .filter_map(|state| if let LaneState::Offered(it) = state { Some(*it) } else { None })
                .collect();
            if offers.len() == states.len() {
                return Some(offers);
            }
            if !offers.is_empty() {
                self.mark_stale(&states);
            }
            states = self.changed.wait_timeout(states, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    /// Gives each lane the endpoint of its peer. `own` contains the endpoints that were sent to the peer. Returns
    /// `false`, and changes nothing, if a lane offered another endpoint after `own` was sent.
    pub(crate) fn deliver_peers(&self, own: &[QueuePairEndpoint], peers: &[QueuePairEndpoint]) -> bool {
        let mut states = self.states();
        let same = states.iter().zip(own).all(|(state, own)| *state == LaneState::Offered(*own));
        if same {
            self.round.fetch_add(1, Ordering::Relaxed);
            for ((state, flags), peer) in states.iter_mut().zip(&self.flags).zip(peers) {
                *state = LaneState::Answered(*peer);
                flags.answered.store(true, Ordering::Relaxed);
            }
        }
        same
    }

    /// Waits until the queue pair of every lane is in RTS. Returns `false` if a lane starts again, if the wait is
    /// cancelled, or at the deadline.
    pub(crate) fn all_ready(&self, until: Instant, cancelled: &dyn Fn() -> bool) -> bool {
        let mut states = self.states();
        while Instant::now() < until && !cancelled() {
            if states.iter().all(|state| *state == LaneState::Ready) {
                return true;
            }
            if !states.iter().all(|state| matches!(state, LaneState::Ready | LaneState::Answered(_))) {
                return false;
            }
            states = self.changed.wait_timeout(states, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Marks all lanes that are still ready as connected: both sides are in RTS, and packets may be sent.
    pub(crate) fn open(&self) {
        let mut states = self.states();
        for (state, flags) in states.iter_mut().zip(&self.flags).filter(|(state, _)| **state == LaneState::Ready) {
            *state = LaneState::Live;
            flags.live.store(true, Ordering::Relaxed);
        }
    }

    /// Returns `true` if all lanes are still connected.
    pub(crate) fn is_open(&self) -> bool {
        self.states().iter().all(|state| *state == LaneState::Live)
    }

    /// Marks every lane with a peer as stale, so that the lane connects again.
    pub(crate) fn mark_all_stale(&self) {
        self.mark_stale(&self.states());
    }

    fn mark_stale(&self, states: &[LaneState]) {
        let beyond = |state: &LaneState| matches!(state, LaneState::Answered(_) | LaneState::Ready | LaneState::Live);
        for (_, flags) in states.iter().zip(&self.flags).filter(|(state, _)| beyond(state)) {
            flags.stale.store(true, Ordering::Relaxed);
        }
    }

    /// Returns a description of the state, for error messages.
    pub(crate) fn describe(&self) -> &'static str {
        let states = self.states();
        if states.contains(&LaneState::NoQueuePair) {
            "a queue pair is not ready to connect"
        } else if states.iter().any(|state| matches!(state, LaneState::Offered(_))) {
            "the peer did not connect"
        } else {
            "the peer connected but did not finish the handshake"
        }
    }
}
