//! The behaviour of a worker when there is nothing to receive. A lane is one worker's queue pair and completion queues
//! on one port.

use std::array;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::config::Idle;
use crate::runtime::sample::SleepCounters;
use dataplane_core::lane::Lane;
use dataplane_core::pipeline::Graph;

/// The behaviour of a worker after an iteration of the worker loop that received nothing, as `runtime.idle` selects it.
#[derive(Debug)]
pub(crate) struct IdlePolicy {
    kind: Idle,
    /// The number of empty iterations since the last packet.
    empty: u32,
    /// Whether the lanes are armed. An armed lane wakes the worker when a packet arrives.
    armed: bool,
    /// Whether another program is about to take over the run, so that the worker must answer soon.
    pub(crate) is_upgrading: bool,
    adaptive: Adaptive,
}

/// The state that only `idle = "adaptive"` needs.
#[derive(Debug)]
struct Adaptive {
    /// The time of the first empty iteration since the last packet.
    since: Instant,
    /// The time without packets before a sleep. A sleep that is worth its cost halves this time. A shorter sleep doubles
    /// the time.
    patience: Duration,
    /// The time that the worker has slept since the last housekeeping.
    slept: Duration,
    /// The number of sleeps until the next measured wake-up.
    until_probe: u32,
}

impl Adaptive {
    /// The number of empty iterations between two checks of the clock.
    const CHECK_EVERY: u32 = 16;
    const MIN_PATIENCE: Duration = Duration::from_micros(2);
    /// The maximum of `patience`. Packets that arrive in shorter intervals keep the worker awake.
    const MAX_PATIENCE: Duration = Duration::from_micros(100);
    /// The minimum length of a sleep that is worth the cost of arming the lanes, of two system calls and of the wake-up.
    const WORTH: Duration = Duration::from_micros(100);
    /// The interval of housekeeping while the worker sleeps often.
    const HOUSEKEEPING: Duration = Duration::from_millis(5);
    /// The number of sleeps between two sleeps that measure the time of a wake-up.
    const PROBE_EVERY: u32 = 64;
    /// The length of a sleep that measures the time of a wake-up.
    const PROBE: Duration = Duration::from_micros(100);
}

/// A sleep that has ended.
struct Slept {
    time: Duration,
    /// Whether the maximum time ended the sleep.
    is_timeout: bool,
}

impl IdlePolicy {
    /// The number of empty iterations before the first sleep.
    const EMPTY_BEFORE_SLEEP: u32 = 10_000;
    /// The length of a sleep if the lanes cannot wake the worker. A received packet may wait this long.
    const TIMED_SLEEP: Duration = Duration::from_micros(50);
    /// The longest sleep if the lanes can wake the worker. A stop request or the housekeeping of the stages may wait
    /// this long.
    const MAX_SLEEP: Duration = Duration::from_millis(20);
    /// The longest sleep while packets are being sent or are held in a stage, and during an upgrade. These events do not
    /// wake the worker: the completion of a send, the time at which a held packet is due, and the hand-over.
    const MAX_SLEEP_BUSY: Duration = Duration::from_millis(1);
    /// A worker with at most this many receiving lanes can sleep until a lane wakes the worker. With more receiving
    /// lanes, the worker sleeps for [`Self::TIMED_SLEEP`].
    const MAX_WAKERS: usize = 16;

    pub(crate) fn new(kind: Idle) -> Self {
        let adaptive = Adaptive {
            since: Instant::now(),
            patience: Adaptive::MAX_PATIENCE,
            slept: Duration::ZERO,
            until_probe: Adaptive::PROBE_EVERY,
        };
        Self { kind, empty: 0, armed: false, is_upgrading: false, adaptive }
    }

    /// Treats all lanes as not armed, because the lanes of the worker have changed.
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
    }

    /// Applies the policy after an iteration. `inputs` are the indices of the lanes that receive packets. Returns
    /// `true` after a sleep. The caller must then do its housekeeping at once, because a sleep may take longer than the
    /// iterations between two rounds of housekeeping.
    #[inline]
    pub(crate) fn after(
        &mut self,
        received: usize,
        lanes: &mut [Box<dyn Lane>],
        inputs: &[usize],
        graph: &Graph,
        sleeps: &mut SleepCounters,
    ) -> bool {
        if received > 0 {
            (self.empty, self.armed) = (0, false);
            return false;
        }
        self.after_empty(lanes, inputs, graph, sleeps)
    }

    /// Applies the policy after an iteration that received nothing. See [`Self::after`].
    #[inline(never)]
    fn after_empty(
        &mut self,
        lanes: &mut [Box<dyn Lane>],
        inputs: &[usize],
        graph: &Graph,
        sleeps: &mut SleepCounters,
    ) -> bool {
        match self.kind {
            Idle::Spin => false,
            Idle::Pause => {
                (0..16).for_each(|_| std::hint::spin_loop());
                false
            }
            Idle::Sleep => {
                self.empty = self.empty.saturating_add(1);
                if self.empty <= Self::EMPTY_BEFORE_SLEEP {
                    return false;
                }
                let slept = self.sleep(lanes, inputs, graph, None);
                slept.iter().for_each(|slept| sleeps.count(slept.time));
                slept.is_some()
            }
            Idle::Adaptive => self.is_adaptive_sleep_due() && self.sleep_adaptively(lanes, inputs, graph, sleeps),
        }
    }

    /// Counts an empty iteration. Returns `true` if the worker must arm its lanes or sleep.
    fn is_adaptive_sleep_due(&mut self) -> bool {
        let adaptive = &mut self.adaptive;
        if self.empty == 0 {
            adaptive.since = Instant::now();
        }
        self.empty = self.empty.saturating_add(1);
        self.armed || self.empty.is_multiple_of(Adaptive::CHECK_EVERY) && adaptive.since.elapsed() >= adaptive.patience
    }

    /// Sleeps like [`Self::sleep`], and adapts the patience to the length of the sleep. Returns `true` if housekeeping is
    /// due.
    #[cold]
    fn sleep_adaptively(
        &mut self,
        lanes: &mut [Box<dyn Lane>],
        inputs: &[usize],
        graph: &Graph,
        sleeps: &mut SleepCounters,
    ) -> bool {
        let most = match self.adaptive.until_probe {
            0 => Some(Adaptive::PROBE),
            _ => None,
        };
        let Some(Slept { time, is_timeout }) = self.sleep(lanes, inputs, graph, most) else {
            return false;
        };
        sleeps.count(time);
        let adaptive = &mut self.adaptive;
        adaptive.until_probe = adaptive.until_probe.checked_sub(1).unwrap_or(Adaptive::PROBE_EVERY);
        if most.is_some() {
            if is_timeout {
                sleeps.measure(time.saturating_sub(Adaptive::PROBE));
            }
        } else if time < Adaptive::WORTH {
            adaptive.patience = (adaptive.patience * 2).min(Adaptive::MAX_PATIENCE);
        } else {
            adaptive.patience = (adaptive.patience / 2).max(Adaptive::MIN_PATIENCE);
        }
        adaptive.slept += time;
        let is_due = adaptive.slept >= Adaptive::HOUSEKEEPING || graph.holds();
        if is_due {
            adaptive.slept = Duration::ZERO;
        }
        is_due
    }

    /// Sleeps in two calls. The first call arms the lanes, and returns `None`. The caller then polls once more, because a
    /// packet may have arrived before the lanes were armed. If there is still no packet, the second call sleeps until a
    /// lane wakes the worker or the maximum time has passed. `most` can shorten the maximum time. If the lanes cannot
    /// wake the worker, each call sleeps for a fixed time.
    #[cold]
    fn sleep(
        &mut self,
        lanes: &mut [Box<dyn Lane>],
        inputs: &[usize],
        graph: &Graph,
        most: Option<Duration>,
    ) -> Option<Slept> {
        let begin = Instant::now();
        let timed = || {
            std::thread::sleep(Self::TIMED_SLEEP);
            Some(Slept { time: begin.elapsed(), is_timeout: false })
        };
        if inputs.is_empty() || inputs.len() > Self::MAX_WAKERS {
            return timed();
        }
        if !self.armed {
            self.armed = inputs.iter().all(|&input| lanes[input].arm());
            return if self.armed { None } else { timed() };
        }
        self.armed = false;
        let busy = self.is_upgrading || graph.holds() || lanes.iter().any(|lane| lane.sending() > 0);
        let time = if busy { Self::MAX_SLEEP_BUSY } else { Self::MAX_SLEEP };
        let time = most.map_or(time, |most| most.min(time));
        let mut is_timeout = false;
        let mut woken = [true; Self::MAX_WAKERS];
        let mut wakers = inputs.iter().map(|&input| lanes[input].waker());
        if let Some(first) = wakers.clone().flatten().next() {
            let mut fds: [PollFd<'_>; Self::MAX_WAKERS] =
                array::from_fn(|_| PollFd::from_borrowed_fd(wakers.next().flatten().unwrap_or(first), PollFlags::IN));
            // An error has no effect, because the caller polls the lanes after every sleep.
            is_timeout = poll(&mut fds[..inputs.len()], Timespec::try_from(time).ok().as_ref()) == Ok(0);
            woken = fds.map(|fd| !fd.revents().is_empty());
        } else {
            std::thread::sleep(Self::TIMED_SLEEP);
        }
        for (&input, woken) in inputs.iter().zip(woken) {
            if woken {
                lanes[input].clear_wakeups();
            }
        }
        Some(Slept { time: begin.elapsed(), is_timeout })
    }
}
