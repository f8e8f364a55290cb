//! Faults on order: the same seed gives the same faults at the same frames.

use std::collections::VecDeque;

use crate::clock::{HostClock, Timebase};
use crate::provider::WcStatus;
use crate::provider::soft::counters::Counting;
use crate::provider::soft::link::Wire;
use crate::units::{Nanos, Ticks};

/// What goes wrong, and how often. Probabilities are from 0 to 1, for each frame, packet or request. Of connections and
/// datagrams it is packets that are lost and so on; one that is corrupt is found out by its check, and lost too.
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
    /// A post is refused with [`FaultSpec::post_errno`] at this request.
    pub post_error: f64,
    /// The request with this number is refused so: sends and receives of a queue pair, each counted from 1. 0: none.
    pub post_error_at: u64,
    /// How.
    pub post_errno: i32,
    /// A poll finds an entry of no request: of an unknown `wr_id`, with a status or an opcode that there is not.
    pub garbage: f64,
    /// A poll that starts is refused (`EINVAL`), and the queue is well.
    pub poll_invalid: f64,
    /// A poll, or a step of one, finds the queue broken for good.
    pub poll_error: f64,
    /// What fails is never flushed, and no event says that the last receive was.
    pub mute: bool,
    /// Bytes that may be registered; 0: none, as the system refuses it (`EPERM`).
    pub memlock: Option<u64>,
    /// The process may not have raw packets, nor privileged keys: it lacks `CAP_NET_RAW`.
    pub no_net_raw: bool,
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
            post_error: 0.0,
            post_error_at: 0,
            post_errno: libc::ENOMEM,
            garbage: 0.0,
            poll_invalid: 0.0,
            poll_error: 0.0,
            mute: false,
            memlock: None,
            no_net_raw: false,
        }
    }
}

impl FaultSpec {
    /// Whether nothing goes wrong.
    pub fn is_none(&self) -> bool {
        self.spares_queues() && self.spares_polls() && self.memlock.is_none() && !self.no_net_raw
    }

    /// Whether nothing goes wrong at completion queues.
    pub(super) fn spares_polls(&self) -> bool {
        [self.busy, self.garbage, self.poll_invalid, self.poll_error].iter().all(|odds| *odds <= 0.0)
    }

    /// Whether nothing goes wrong at queue pairs.
    pub(super) fn spares_queues(&self) -> bool {
        let odds = [
            self.loss,
            self.duplicate,
            self.reorder,
            self.corrupt,
            self.delay,
            self.rx_error,
            self.tx_error,
            self.flap,
            self.post_error,
        ];
        odds.iter().all(|odds| *odds <= 0.0) && self.post_error_at == 0 && !self.mute
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

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// How many times a frame that is to be overtaken finds nothing behind it before it is received after all.
const PATIENCE: u8 = 4;
/// Frames that can be late at one time.
const MOST_DELAYED: usize = 1 << 14;

/// What a wire carries.
pub(super) trait Carried: Clone {
    /// Turns a bit. `false`: it cannot be told any more what it was.
    fn spoil(&mut self, random: &mut Random) -> bool;
}

impl Carried for Vec<u8> {
    fn spoil(&mut self, random: &mut Random) -> bool {
        let at = random.below(self.len());
        if let Some(byte) = self.get_mut(at) {
            *byte ^= 1 << random.below(8);
        }
        true
    }
}

/// What became of the link when a frame arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flap {
    Down,
    Up,
}

/// Which posts are refused, of one kind at one queue pair.
#[derive(Debug)]
pub(super) struct PostFaults {
    random: Random,
    odds: f64,
    at: u64,
    errno: i32,
    posted: u64,
}

impl PostFaults {
    /// `None`: no post is refused.
    pub(super) fn new(spec: &FaultSpec, salt: u64) -> Option<Self> {
        let random = Random::new(spec.seed.wrapping_add(salt));
        let some = spec.post_error > 0.0 || spec.post_error_at > 0;
        some.then_some(Self {
            random,
            odds: spec.post_error,
            at: spec.post_error_at,
            errno: spec.post_errno,
            posted: 0,
        })
    }

    /// Whether the next request is refused, and how.
    pub(super) fn refuses(&mut self) -> Option<i32> {
        self.posted += 1;
        (self.posted == self.at || self.random.happens(self.odds)).then_some(self.errno)
    }
}

/// The faults of a queue pair of raw packets, or of all that comes in at a device of anything else.
#[derive(Debug)]
pub(super) struct Faults<T> {
    spec: FaultSpec,
    random: Random,
    clock: HostClock,
    timebase: Timebase,
    /// To be received next.
    ready: VecDeque<T>,
    /// To be received after the next frame.
    overtaken: Option<T>,
    /// How often nothing followed that could overtake it.
    idle: u8,
    /// To be received when it is time: what came when.
    delayed: VecDeque<(Ticks, T)>,
    /// Frames until the link is up again.
    down: u32,
    flap: Option<Flap>,
    pub(super) injected: u64,
}

impl<T: Carried> Faults<T> {
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

    /// Lets go of what has been late long enough.
    pub(super) fn catch_up(&mut self) {
        let now = self.clock.now();
        let late = |since| self.timebase.between(since, now) < self.spec.delay_by;
        while self.delayed.front().is_some_and(|(since, _)| !late(*since)) {
            self.ready.extend(self.delayed.pop_front().map(|(_, held)| held));
        }
    }

    /// Nothing has come in: after a few times of that, nothing is to overtake what is kept back.
    pub(super) fn wait(&mut self) {
        self.idle += 1;
        if self.idle >= PATIENCE {
            self.idle = 0;
            self.ready.extend(self.overtaken.take());
        }
    }

    /// The next to be received.
    pub(super) fn next(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Something has come in.
    pub(super) fn arrive(&mut self, mut held: T) {
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
        if self.strikes(self.spec.corrupt) && !held.spoil(&mut self.random) {
            return;
        }
        if self.strikes(self.spec.delay) {
            // A wire holds so much; what is more is lost on it.
            if self.delayed.len() < MOST_DELAYED {
                self.delayed.push_back((self.clock.now(), held));
            }
            return;
        }
        if self.overtaken.is_none() && self.strikes(self.spec.reorder) {
            self.overtaken = Some(held);
            self.idle = 0;
            return;
        }
        if self.strikes(self.spec.duplicate) {
            self.ready.push_back(held.clone());
        }
        self.ready.push_back(held);
        self.ready.extend(self.overtaken.take());
    }
}

impl Faults<Vec<u8>> {
    /// Takes the next frame off the wire, or of those kept back, and hands it over unless it is lost. `false`: there is
    /// none.
    pub(super) fn take(&mut self, wire: &mut Wire, counts: &Counting, deliver: impl FnOnce(&mut Self, &[u8])) -> bool {
        self.catch_up();
        if self.ready.is_empty() && !wire.take(counts, |frame, _| self.arrive(frame.to_vec())) {
            self.wait();
            if self.ready.is_empty() {
                return false;
            }
        }
        if let Some(held) = self.next() {
            deliver(self, &held);
        }
        true
    }
}
