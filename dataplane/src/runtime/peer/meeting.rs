//! Where the lanes of a port, each on its worker's thread, meet the thread that brings them their peers.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::provider::connect::QueuePairEndpoint;

/// How long a wait goes on before it is looked whether it is to end.
const GLANCE: Duration = Duration::from_millis(50);

/// How far a lane's connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    /// Its queue pair is not there yet.
    Empty,
    /// It can be connected.
    Offered(QueuePairEndpoint),
    /// Its peer is known.
    Answered(QueuePairEndpoint),
    /// It is in RTS.
    Ready,
    /// So is its peer.
    Live,
}

/// A seat for the lane of every worker. The connections of a port are made, and end, together.
#[derive(Debug)]
pub(crate) struct Meeting {
    seats: Mutex<Box<[Seat]>>,
    changed: Condvar,
    flags: Box<[Flags]>,
    /// How often peers were told; written with the seats locked.
    round: AtomicU32,
    /// Why a lane would not have its peer, last.
    refusal: Mutex<Option<String>>,
}

/// What a lane looks at without a lock; written with the seats locked.
#[derive(Debug, Default)]
struct Flags {
    answered: AtomicBool,
    live: AtomicBool,
    stale: AtomicBool,
}

impl Meeting {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            seats: Mutex::new(vec![Seat::Empty; lanes].into()),
            changed: Condvar::new(),
            flags: (0..lanes).map(|_| Flags::default()).collect(),
            round: AtomicU32::new(0),
            refusal: Mutex::default(),
        }
    }

    fn seats(&self) -> MutexGuard<'_, Box<[Seat]>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flags(&self, queue: u16) -> &Flags {
        &self.flags[usize::from(queue)]
    }

    /// The lane's queue pair is in INIT and can receive.
    pub(crate) fn offer(&self, queue: u16, endpoint: QueuePairEndpoint) {
        let flags = self.flags(queue);
        let mut seats = self.seats();
        flags.answered.store(false, Ordering::Relaxed);
        flags.live.store(false, Ordering::Relaxed);
        flags.stale.store(false, Ordering::Relaxed);
        seats[usize::from(queue)] = Seat::Offered(endpoint);
        self.changed.notify_all();
    }

    /// The lane's peer, once it is known, and how often the lanes were told theirs by then. It takes no lock before.
    pub(crate) fn answer(&self, queue: u16) -> Option<(QueuePairEndpoint, u32)> {
        if !self.flags(queue).answered.load(Ordering::Relaxed) {
            return None;
        }
        match self.seats().get(usize::from(queue)) {
            Some(Seat::Answered(peer)) => Some((*peer, self.round.load(Ordering::Relaxed))),
            _ => None,
        }
    }

    /// The lane's queue pair is in RTS.
    pub(crate) fn ready(&self, queue: u16) {
        self.seats()[usize::from(queue)] = Seat::Ready;
        self.changed.notify_all();
    }

    /// A lane cannot be connected with its peer.
    pub(crate) fn refuse(&self, why: &str) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    /// Why a lane would not have its peer, if one would not since this was asked.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the lane's peer is in RTS too.
    pub(crate) fn is_live(&self, queue: u16) -> bool {
        self.flags(queue).live.load(Ordering::Relaxed)
    }

    /// Whether the lane is to begin anew.
    pub(crate) fn is_stale(&self, queue: u16) -> bool {
        self.flags(queue).stale.load(Ordering::Relaxed)
    }

    /// All endpoints, once every lane has made its offer: those that are connected are told to begin anew as soon as one
    /// of them does. `None`: waiting was cancelled.
    pub(crate) fn gather(&self, cancelled: &dyn Fn() -> bool) -> Option<Vec<QueuePairEndpoint>> {
        let mut seats = self.seats();
        while !cancelled() {
            let offers: Vec<QueuePairEndpoint> =
                seats.iter().filter_map(|seat| if let Seat::Offered(it) = seat { Some(*it) } else { None }).collect();
            if offers.len() == seats.len() {
                return Some(offers);
            }
            if !offers.is_empty() {
                self.break_up_in(&seats);
            }
            seats = self.changed.wait_timeout(seats, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }

    /// Tells every lane its peer. `false`: a lane has begun anew meanwhile.
    pub(crate) fn deliver(&self, own: &[QueuePairEndpoint], peers: &[QueuePairEndpoint]) -> bool {
        let mut seats = self.seats();
        let same = seats.iter().zip(own).all(|(seat, own)| *seat == Seat::Offered(*own));
        if same {
            self.round.fetch_add(1, Ordering::Relaxed);
            for ((seat, flags), peer) in seats.iter_mut().zip(&self.flags).zip(peers) {
                *seat = Seat::Answered(*peer);
                flags.answered.store(true, Ordering::Relaxed);
            }
        }
        same
    }

    /// Waits until every lane is in RTS. `false`: one has begun anew, or it took too long.
    pub(crate) fn all_ready(&self, until: Instant, cancelled: &dyn Fn() -> bool) -> bool {
        let mut seats = self.seats();
        while Instant::now() < until && !cancelled() {
            if seats.iter().all(|seat| *seat == Seat::Ready) {
                return true;
            }
            if !seats.iter().all(|seat| matches!(seat, Seat::Ready | Seat::Answered(_))) {
                return false;
            }
            seats = self.changed.wait_timeout(seats, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Both sides are in RTS: packets may go.
    pub(crate) fn open(&self) {
        let mut seats = self.seats();
        for (seat, flags) in seats.iter_mut().zip(&self.flags).filter(|(seat, _)| **seat == Seat::Ready) {
            *seat = Seat::Live;
            flags.live.store(true, Ordering::Relaxed);
        }
    }

    /// Whether all are connected still.
    pub(crate) fn is_open(&self) -> bool {
        self.seats().iter().all(|seat| *seat == Seat::Live)
    }

    /// Tells every lane to begin anew.
    pub(crate) fn break_up(&self) {
        self.break_up_in(&self.seats());
    }

    fn break_up_in(&self, seats: &[Seat]) {
        let beyond = |seat: &Seat| matches!(seat, Seat::Answered(_) | Seat::Ready | Seat::Live);
        for (_, flags) in seats.iter().zip(&self.flags).filter(|(seat, _)| beyond(seat)) {
            flags.stale.store(true, Ordering::Relaxed);
        }
    }

    /// How far it has come, in words.
    pub(crate) fn describe(&self) -> &'static str {
        let seats = self.seats();
        if seats.contains(&Seat::Empty) {
            "a queue pair is not ready to be connected"
        } else if seats.iter().any(|seat| matches!(seat, Seat::Offered(_))) {
            "its peer did not come"
        } else {
            "its peer came, and did not finish the handshake"
        }
    }
}
