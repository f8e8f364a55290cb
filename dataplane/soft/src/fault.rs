//! Injected faults. The same seed produces the same faults at the same frames.
//!
//! A probability is a number from 0 to 1 per frame, request or poll. On raw-packet queue pairs, faults such as loss
//! apply to frames. On connections and datagrams, these faults apply to RoCE packets.

use std::collections::VecDeque;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use dataplane_core::clock::{ClockSource, HostClock, Timebase};
use dataplane_core::units::{Nanos, Period, Ticks, probability};
use dataplane_core::verbs::WcStatus;

/// Faults that the program injects into a port with the device `"soft"` or `"host"`, to test how a pipeline behaves.
/// `xdp` links do not support faults. Runs with the same `seed` and the same packets have the same faults.
///
/// ```toml
/// [[port]]
/// name   = "a"
/// device = "soft"
/// link   = { kind = "loopback" }
///
/// [port.faults]
/// seed      = 7
/// loss      = 0.01
/// duplicate = 0.001
/// reorder   = 0.001
/// corrupt   = 0.0001
/// delay     = 0.05
/// delay_by  = "2ms"
/// rx_error  = 0.00001
/// tx_error  = 0.00001
/// flap      = 0.00001
/// removal   = 0.0000001
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FaultSpec {
    /// The seed of the random number generator.
    pub seed: u64,
    /// The probability that a received packet is lost.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub loss: f64,
    /// The probability that a packet is received twice.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub duplicate: f64,
    /// The probability that a packet is received after the next packet.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub reorder: f64,
    /// The probability that one bit of a packet is flipped. With the `qp` types `"ud"`, `"rc"` and `"uc"`, the packet
    /// is lost instead, because its checksum is wrong.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub corrupt: f64,
    /// The probability that a packet is delayed by the time `delay_by`. At most 16384 packets can be delayed at a time.
    /// The program drops packets that exceed this limit.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub delay: f64,
    /// The delay of the packets that the key `delay` selects, such as `"1ms"`. At most `"365d"`.
    pub delay_by: Period,
    /// The probability that a poll of a queue with wall-clock timestamps returns nothing, as if the wall clock could
    /// not be read (`EBUSY`).
    #[serde(skip)]
    pub clock_busy: f64,
    /// The probability that a receive fails. All other posted receives and sends of the queue pair then fail too, and
    /// the program resets the queue pair.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub rx_error: f64,
    /// The status of failed receives.
    #[serde(skip)]
    pub rx_status: WcStatus,
    /// The probability that a send fails. All other posted sends and receives of the queue pair then fail too, and the
    /// program resets the queue pair.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub tx_error: f64,
    /// The status of failed sends.
    #[serde(skip)]
    pub tx_status: WcStatus,
    /// The probability that the link goes down when a packet arrives. This packet and the next eight packets are lost.
    /// Then the link comes up again.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub flap: f64,
    /// The probability that the device fails permanently when a packet arrives, as if the device was removed. The run
    /// then ends with an error.
    #[serde(deserialize_with = "probability")]
    #[schemars(range(min = 0, max = 1))]
    pub removal: f64,
    /// The number of further frames that are lost while the link is down. With 0, the link never goes down.
    #[serde(skip)]
    pub flap_frames: u32,
    /// The probability that a request is refused with [`FaultSpec::post_errno`].
    #[serde(skip)]
    pub post_error: f64,
    /// The position of a request that is refused with [`FaultSpec::post_errno`]. Sends and receives of a queue pair
    /// are counted separately, from 1. 0 disables this fault.
    #[serde(skip)]
    pub post_error_at: u64,
    /// The `errno` of refused requests.
    #[serde(skip)]
    pub post_errno: i32,
    /// The probability that a poll returns a completion that belongs to no request. Its `wr_id` is unknown, and its
    /// status or opcode is undefined.
    #[serde(skip)]
    pub bogus_completion: f64,
    /// The probability that the start of a poll fails with `EINVAL`. The queue stays usable.
    #[serde(skip)]
    pub poll_invalid: f64,
    /// The probability that the start or the next step of a poll fails with `EIO`. The queue then stays unusable.
    #[serde(skip)]
    pub poll_error: f64,
    /// Whether queue pairs in ERR never flush their requests and never raise `QP_LAST_WQE_REACHED`.
    #[serde(skip)]
    pub no_flush: bool,
    /// The total number of bytes that may be registered. `None` means unlimited. A registration above the limit fails
    /// with `ENOMEM`. With 0, every registration fails with `EPERM`.
    #[serde(skip)]
    pub memlock: Option<u64>,
    /// Whether the device behaves as if the process lacked `CAP_NET_RAW`: raw packets and privileged Q_Keys are
    /// refused.
    #[serde(skip)]
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
            delay_by: Period(Duration::from_millis(1)),
            clock_busy: 0.0,
            rx_error: 0.0,
            rx_status: WcStatus::GeneralErr,
            tx_error: 0.0,
            tx_status: WcStatus::GeneralErr,
            flap: 0.0,
            removal: 0.0,
            flap_frames: 8,
            post_error: 0.0,
            post_error_at: 0,
            post_errno: libc::ENOMEM,
            bogus_completion: 0.0,
            poll_invalid: 0.0,
            poll_error: 0.0,
            no_flush: false,
            memlock: None,
            no_net_raw: false,
        }
    }
}

impl FaultSpec {
    /// Returns whether no fault is configured.
    pub fn is_none(&self) -> bool {
        self.no_queue_faults() && self.no_poll_faults() && self.memlock.is_none() && !self.no_net_raw
    }

    /// Returns whether no fault of completion queues is configured.
    pub(super) fn no_poll_faults(&self) -> bool {
        [self.clock_busy, self.bogus_completion, self.poll_invalid, self.poll_error].iter().all(|odds| *odds <= 0.0)
    }

    /// Returns whether no fault of queue pairs is configured.
    pub(super) fn no_queue_faults(&self) -> bool {
        let odds = [
            self.loss,
            self.duplicate,
            self.reorder,
            self.corrupt,
            self.delay,
            self.rx_error,
            self.tx_error,
            self.flap,
            self.removal,
            self.post_error,
        ];
        odds.iter().all(|odds| *odds <= 0.0) && self.post_error_at == 0 && !self.no_flush
    }
}

/// A random number generator: SplitMix64 (Steele, Lea and Flood, 2014).
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

    /// Returns `true` with the given probability. A probability of 0 draws no random number, so a disabled fault does
    /// not change the random numbers of the enabled faults.
    pub(super) fn happens(&mut self, odds: f64) -> bool {
        odds > 0.0 && ((self.next() >> 11) as f64) < odds * (1u64 << 53) as f64
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// A frame that is held back for reordering is received after this number of polls without a following frame.
const MAX_IDLE_POLLS: u8 = 4;
/// The maximum number of delayed frames.
const MAX_DELAYED: usize = 1 << 14;

/// A unit of transfer on a wire: a frame of a raw-packet queue pair, or a packet of a connection or datagram.
pub(super) trait Corruptible: Clone {
    /// Flips a random bit. Returns `false` if the receiver would detect the corruption and drop the unit.
    fn flip_bit(&mut self, random: &mut Random) -> bool;
}

impl Corruptible for Vec<u8> {
    fn flip_bit(&mut self, random: &mut Random) -> bool {
        let at = random.below(self.len());
        if let Some(byte) = self.get_mut(at) {
            *byte ^= 1 << random.below(8);
        }
        true
    }
}

/// An injected change of the link state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flap {
    Down,
    Up,
}

/// The injected faults that refuse posts, for the sends or the receives of one queue pair.
#[derive(Debug)]
pub(super) struct PostFaults {
    random: Random,
    odds: f64,
    at: u64,
    errno: i32,
    posted: u64,
}

impl PostFaults {
    /// Returns `None` if no refusals are configured.
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

    /// Returns the `errno` if the next request is refused.
    pub(super) fn refuses(&mut self) -> Option<i32> {
        self.posted += 1;
        (self.posted == self.at || self.random.happens(self.odds)).then_some(self.errno)
    }
}

/// The fault state of a raw-packet queue pair, or of all packets that a device receives on its connections and
/// datagram queue pairs.
#[derive(Debug)]
pub(super) struct Faults<T> {
    spec: FaultSpec,
    random: Random,
    clock: HostClock,
    timebase: Timebase,
    /// The units that the receiver gets next.
    ready: VecDeque<T>,
    /// The unit that is held back so that the next unit overtakes it.
    overtaken: Option<T>,
    /// The number of polls in which no unit followed `overtaken`.
    idle: u8,
    /// Delayed units, each with the time at which its delay started.
    delayed: VecDeque<(Ticks, T)>,
    /// The number of frames that are still lost before the link is up again.
    down: u32,
    flap: Option<Flap>,
    /// Whether a fault removes the device.
    pub(super) removes_device: bool,
    pub(super) injected: u64,
}

impl<T: Corruptible> Faults<T> {
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
            removes_device: false,
            injected: 0,
        }
    }

    fn inject(&mut self, odds: f64) -> bool {
        let inject = self.random.happens(odds);
        self.injected += u64::from(inject);
        inject
    }

    /// Returns the status with which the next send fails, if a fault is injected.
    pub(super) fn send_fails(&mut self) -> Option<WcStatus> {
        self.inject(self.spec.tx_error).then_some(self.spec.tx_status)
    }

    /// Returns the status with which the next receive fails, if a fault is injected.
    pub(super) fn receive_fails(&mut self) -> Option<WcStatus> {
        self.inject(self.spec.rx_error).then_some(self.spec.rx_status)
    }

    /// Returns the link change since the last call, if there was one.
    pub(super) fn flapped(&mut self) -> Option<Flap> {
        self.flap.take()
    }

    /// Returns whether units are held back.
    pub(super) fn holds_any(&self) -> bool {
        !self.ready.is_empty() || self.overtaken.is_some() || !self.delayed.is_empty()
    }

    /// Drops the units that are held back, and returns their number.
    pub(super) fn clear(&mut self) -> u64 {
        let lost = self.ready.len() + usize::from(self.overtaken.is_some()) + self.delayed.len();
        self.ready.clear();
        self.overtaken = None;
        self.delayed.clear();
        lost as u64
    }

    /// Releases the units whose delay has passed.
    pub(super) fn release_delayed(&mut self) {
        let now = self.clock.now();
        let is_delayed = |since| self.timebase.between(since, now).0 < self.spec.delay_by.as_nanos();
        while self.delayed.front().is_some_and(|(since, _)| !is_delayed(*since)) {
            self.ready.extend(self.delayed.pop_front().map(|(_, held)| held));
        }
    }

    /// Returns the time until the first delayed unit is released. `None` without delayed units or with a virtual clock.
    pub(super) fn time_left(&self) -> Option<Nanos> {
        let (since, _) = self.delayed.front()?;
        let passed = self.timebase.between(*since, self.clock.now());
        let left = Nanos(self.spec.delay_by.as_nanos().saturating_sub(passed.0));
        (self.timebase.source != ClockSource::Virtual).then_some(left)
    }

    /// Records a poll without a new unit. After [`MAX_IDLE_POLLS`] such polls, the unit that waits to be overtaken is
    /// released.
    pub(super) fn idle_poll(&mut self) {
        self.idle += 1;
        if self.idle >= MAX_IDLE_POLLS {
            self.idle = 0;
            self.ready.extend(self.overtaken.take());
        }
    }

    /// Returns whether a unit is ready to be received.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns the next unit to be received.
    pub(super) fn next(&mut self) -> Option<T> {
        self.ready.pop_front()
    }

    /// Applies the faults to a unit that has arrived.
    pub(super) fn arrive(&mut self, mut held: T) {
        if self.down > 0 {
            self.down -= 1;
            self.injected += 1;
            if self.down == 0 {
                self.flap = Some(Flap::Up);
            }
            return;
        }
        if self.inject(self.spec.removal) {
            self.removes_device = true;
            return;
        }
        if self.spec.flap_frames > 0 && self.inject(self.spec.flap) {
            self.down = self.spec.flap_frames;
            self.flap = Some(Flap::Down);
            return;
        }
        if self.inject(self.spec.loss) {
            return;
        }
        if self.inject(self.spec.corrupt) && !held.flip_bit(&mut self.random) {
            return;
        }
        if self.inject(self.spec.delay) {
            // The number of delayed units is limited. Further units are lost.
            if self.delayed.len() < MAX_DELAYED {
                self.delayed.push_back((self.clock.now(), held));
            }
            return;
        }
        if self.overtaken.is_none() && self.inject(self.spec.reorder) {
            self.overtaken = Some(held);
            self.idle = 0;
            return;
        }
        if self.inject(self.spec.duplicate) {
            self.ready.push_back(held.clone());
        }
        self.ready.push_back(held);
        self.ready.extend(self.overtaken.take());
    }
}
