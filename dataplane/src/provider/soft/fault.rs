//! Faults on order: the same seed gives the same faults at the same frames.

use std::collections::VecDeque;

use crate::clock::{HostClock, Timebase};
use crate::provider::WcStatus;
use crate::provider::soft::link::{Datagram, Frame, Wire};
use crate::units::{Nanos, Ticks};

/// What goes wrong, and how often. Probabilities are from 0 to 1, for each frame or request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultSpec {
    /// Where the random numbers begin.
    pub seed: u64,
    /// A frame is lost before it is received.
    pub loss: f64,
    /// A frame is received twice.
    pub duplicate: f64,
    /// A frame is received after the one that follows it.
    pub reorder: f64,
    /// One bit of a frame is turned.
    pub corrupt: f64,
    /// A frame is received later.
    pub delay: f64,
    /// How much later.
    pub delay_by: Nanos,
    /// A poll with wall-clock stamps finds the queue busy (`EBUSY`).
    pub busy: f64,
    /// A receive fails with [`FaultSpec::rx_status`], and the queue pair with it.
    pub rx_error: f64,
    /// How.
    pub rx_status: WcStatus,
    /// A send fails with [`FaultSpec::tx_status`], and the queue pair as after any failed send.
    pub tx_error: f64,
    /// How.
    pub tx_status: WcStatus,
    /// The link goes down when a frame arrives, and up again.
    pub flap: f64,
    /// After how many frames, which are lost.
    pub flap_frames: u32,
}

impl Default for FaultSpec {
    fn default() -> Self {
        Self {
            seed: 0,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            delay: 0.0,
            delay_by: Nanos(0),
            busy: 0.0,
            rx_error: 0.0,
            rx_status: WcStatus::GeneralErr,
            tx_error: 0.0,
            tx_status: WcStatus::GeneralErr,
            flap: 0.0,
            flap_frames: 8,
        }
    }
}

impl FaultSpec {
    /// Whether nothing goes wrong.
    pub fn is_none(&self) -> bool {
        let odds = [
            self.loss,
            self.duplicate,
            self.reorder,
            self.corrupt,
            self.delay,
            self.busy,
            self.rx_error,
            self.tx_error,
            self.flap,
        ];
        odds.iter().all(|odds| *odds <= 0.0)
    }
}

/// Random numbers: SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Draws nothing where nothing can happen, so that one fault does not shift the others.
    pub(super) fn happens(&mut self, odds: f64) -> bool {
        odds > 0.0 && ((self.next() >> 11) as f64) < odds * (1u64 << 53) as f64
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// How many times a frame that is to be overtaken finds nothing behind it before it is received after all.
const PATIENCE: u8 = 4;
/// Frames that can be late at one time.
const MOST_DELAYED: usize = 1 << 14;

/// A frame that is kept back.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    datagram: Option<Datagram>,
    since: Ticks,
}

/// What became of the link when a frame arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flap {
    Down,
    Up,
}

/// The faults of a queue pair.
#[derive(Debug)]
pub(super) struct Faults {
    spec: FaultSpec,
    random: Random,
    clock: HostClock,
    timebase: Timebase,
    /// To be received next.
    ready: VecDeque<Held>,
    /// To be received after the next frame.
    overtaken: Option<Held>,
    /// How often nothing followed that could overtake it.
    idle: u8,
    /// To be received when it is time.
    delayed: VecDeque<Held>,
    /// Frames until the link is up again.
    down: u32,
    flap: Option<Flap>,
    pub(super) injected: u64,
}

impl Faults {
    pub(super) fn new(spec: FaultSpec, queue: u16, clock: HostClock) -> Self {
        let random = Random::new(spec.seed.wrapping_add(u64::from(queue) << 32));
        let timebase = clock.timebase();
        Self {
            spec,
            random,
            clock,
            timebase,
            ready: VecDeque::new(),
            overtaken: None,
            idle: 0,
            delayed: VecDeque::new(),
            down: 0,
            flap: None,
            injected: 0,
        }
    }

    fn strikes(&mut self, odds: f64) -> bool {
        let strikes = self.random.happens(odds);
        self.injected += u64::from(strikes);
        strikes
    }

    /// The status with which the next send fails, if it does.
    pub(super) fn send_fails(&mut self) -> Option<WcStatus> {
        self.strikes(self.spec.tx_error).then_some(self.spec.tx_status)
    }

    /// The status with which the next receive fails, if it does.
    pub(super) fn receive_fails(&mut self) -> Option<WcStatus> {
        self.strikes(self.spec.rx_error).then_some(self.spec.rx_status)
    }

    /// Whether the link has just changed.
    pub(super) fn flapped(&mut self) -> Option<Flap> {
        self.flap.take()
    }

    /// Whether frames are kept back here.
    pub(super) fn holds_any(&self) -> bool {
        !self.ready.is_empty() || self.overtaken.is_some() || !self.delayed.is_empty()
    }

    /// Forgets what is kept back. Returns how many frames that were.
    pub(super) fn clear(&mut self) -> u64 {
        let lost = self.ready.len() + usize::from(self.overtaken.is_some()) + self.delayed.len();
        self.ready.clear();
        self.overtaken = None;
        self.delayed.clear();
        lost as u64
    }

    /// Takes the next frame off the wire, or of those kept back, and hands it over unless it is lost. `false`: there is
    /// none.
    pub(super) fn take(&mut self, wire: &mut Wire, deliver: impl FnOnce(&mut Self, Frame<'_>)) -> bool {
        let now = self.clock.now();
        let due = self.delayed.front().is_some_and(|held| self.timebase.between(held.since, now) >= self.spec.delay_by);
        if due {
            self.ready.extend(self.delayed.pop_front());
        }
        if self.ready.is_empty() && !wire.take(|frame| self.arrive(frame, now)) {
            self.idle += 1;
            if self.idle == PATIENCE {
                self.idle = 0;
                self.ready.extend(self.overtaken.take());
            }
            if self.ready.is_empty() {
                return false;
            }
        }
        if let Some(held) = self.ready.pop_front() {
            deliver(self, Frame { bytes: &held.bytes, datagram: held.datagram });
        }
        true
    }

    fn arrive(&mut self, frame: Frame<'_>, now: Ticks) {
        if self.down > 0 {
            self.down -= 1;
            self.injected += 1;
            if self.down == 0 {
                self.flap = Some(Flap::Up);
            }
            return;
        }
        if self.spec.flap_frames > 0 && self.strikes(self.spec.flap) {
            self.down = self.spec.flap_frames;
            self.flap = Some(Flap::Down);
            return;
        }
        if self.strikes(self.spec.loss) {
            return;
        }
        let mut held = Held { bytes: frame.bytes.to_vec(), datagram: frame.datagram, since: now };
        if !held.bytes.is_empty() && self.strikes(self.spec.corrupt) {
            let at = self.random.below(held.bytes.len());
            held.bytes[at] ^= 1 << self.random.below(8);
        }
        if self.strikes(self.spec.delay) {
            // A wire holds so much; what is more is lost on it.
            if self.delayed.len() < MOST_DELAYED {
                self.delayed.push_back(held);
            }
            return;
        }
        if self.overtaken.is_none() && self.strikes(self.spec.reorder) {
            self.overtaken = Some(held);
            self.idle = 0;
            return;
        }
        if self.strikes(self.spec.duplicate) {
            self.ready.push_back(Held { bytes: held.bytes.clone(), ..held });
        }
        self.ready.push_back(held);
        self.ready.extend(self.overtaken.take());
    }
}
