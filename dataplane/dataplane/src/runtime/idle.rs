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
    /// `Some` while the lanes are armed: the sum of `rebuilds` of all lanes at that moment. If the sum has changed,
    /// some queues are new and not armed. An armed lane wakes the worker when a packet arrives.
    armed: Option<u64>,
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
        Self { kind, empty: 0, armed: None, is_upgrading: false, adaptive }
    }

    /// Treats all lanes as not armed, because the lanes of the worker have changed.
    pub(crate) fn disarm(&mut self) {
        self.armed = None;
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
            (self.empty, self.armed) = (0, None);
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
        self.armed.is_some()
            || self.empty.is_multiple_of(Adaptive::CHECK_EVERY) && adaptive.since.elapsed() >= adaptive.patience
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
        // Do not arm a lane if any other input has no waker. The worker then sleeps by time and does not consume
        // completion events, so each sleep of an armed RDMA lane would leave one event in the queue.
        let can_wake = inputs.iter().all(|&input| lanes[input].waker().is_some());
        if inputs.is_empty() || inputs.len() > Self::MAX_WAKERS || !can_wake {
            return timed();
        }
        let rebuilds = inputs.iter().map(|&input| lanes[input].counters().rebuilds).sum();
        if self.armed.take() != Some(rebuilds) {
            self.armed = inputs.iter().all(|&input| lanes[input].arm()).then_some(rebuilds);
            return if self.armed.is_some() { None } else { timed() };
        }
        let busy = self.is_upgrading || graph.holds() || lanes.iter().any(|lane| lane.sending() > 0);
        let time = if busy { Self::MAX_SLEEP_BUSY } else { Self::MAX_SLEEP };
        let time = most.map_or(time, |most| most.min(time));
        let mut wakers = inputs.iter().map(|&input| lanes[input].waker());
        let Some(first) = wakers.clone().flatten().next() else { return timed() };
        let mut fds: [PollFd<'_>; Self::MAX_WAKERS] =
            array::from_fn(|_| PollFd::from_borrowed_fd(wakers.next().flatten().unwrap_or(first), PollFlags::IN));
        // An error has no effect, because the caller polls the lanes after every sleep.
        let is_timeout = poll(&mut fds[..inputs.len()], Timespec::try_from(time).ok().as_ref()) == Ok(0);
        let woken = fds.map(|fd| !fd.revents().is_empty());
        for (&input, woken) in inputs.iter().zip(woken) {
            if woken {
                lanes[input].clear_wakeups();
            }
        }
        Some(Slept { time: begin.elapsed(), is_timeout })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::prelude::{Batch, Ctx, Stage};
    use dataplane_core::clock::Clocks;
    use dataplane_core::lane::{self, LaneSpec, RawWiring, Stamping};
    use dataplane_core::mem::{PageKind, Pool, RecvFields, Region, RegionSpec, SlotLayout};
    use dataplane_core::pipeline::{NodeSpec, OnPanic, Program, StageInfo, Target};
    use dataplane_core::verbs::{Device, QpType};
    use dataplane_soft::{FaultSpec, LinkSpec, PacketSpec, SoftDevice, SoftSpec};
    use dataplane_testing::namespace::in_namespace;

    use crate::runtime::stub_lane::StubLane;

    struct Nothing;

    impl Stage for Nothing {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}
    }

    fn pool() -> Pool {
        let layout = SlotLayout::new(128, 1600, 64).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap()
    }

    /// Returns a graph of one stage that does nothing.
    fn graph(lanes: usize, pool: &Pool) -> Graph {
        let node = NodeSpec {
            name: "nothing".to_owned(),
            kind: "nothing".to_owned(),
            stage: Box::new(Nothing),
            next: Target::Drop,
            outputs: Vec::new(),
            reasons: Vec::new(),
            info: StageInfo::new(),
            on_panic: OnPanic::Stop,
            drop_observer: None,
        };
        Graph::new(Program::new(vec![node]), lanes, pool)
    }

    #[test]
    fn lane_is_not_armed_if_another_lane_cannot_wake_the_worker() {
        let arms = Arc::new(AtomicU32::new(0));
        let waker = std::fs::File::open("/dev/null").unwrap().into();
        let armed = StubLane { waker: Some(waker), arms: arms.clone(), ..StubLane::default() };
        let mut lanes: [Box<dyn Lane>; 2] = [Box::new(armed), Box::new(StubLane::default())];
        let graph = graph(2, &pool());
        let (mut policy, mut counters) = (IdlePolicy::new(Idle::Sleep), SleepCounters::default());
        while !policy.after(0, &mut lanes, &[0, 1], &graph, &mut counters) {}
        assert_eq!((counters.sleeps, arms.load(Ordering::Relaxed)), (1, 0));
    }

    #[test]
    fn worker_arms_new_queues_before_a_sleep() {
        in_namespace(|| {
            let mut pool = pool();
            let faults = FaultSpec { poll_error: 1.0, ..FaultSpec::default() };
            let link = LinkSpec::Packet(PacketSpec::new("lo"));
            let device = SoftDevice::new(SoftSpec { faults, ..SoftSpec::new("s", link) }).unwrap();
            let pd = device.alloc_pd().unwrap();
            let spec = LaneSpec {
                kind: QpType::RawPacket,
                queue: (0, 1),
                recv_depth: 16,
                send_depth: 16,
                stamps: Stamping::None,
                recv_fields: RecvFields::empty(),
                sleeps: true,
            };
            let (wiring, clocks) = (Box::new(RawWiring { port: 1 }), Clocks::default());
            let lane = lane::open(&device, &pd, &mut pool, spec, wiring, Default::default(), &clocks).unwrap();
            let graph = graph(1, &pool);
            let (mut lanes, mut batch) = ([lane], Batch::new(&pool));
            let (mut policy, mut counters) = (IdlePolicy::new(Idle::Sleep), SleepCounters::default());
            for _ in 0..IdlePolicy::EMPTY_BEFORE_SLEEP {
                assert!(!policy.after(0, &mut lanes, &[0], &graph, &mut counters));
            }
            assert!(!policy.after(0, &mut lanes, &[0], &graph, &mut counters), "the lane is armed first");
            // The poll fails, so the lane creates its queues again.
            assert_eq!(lanes[0].receive(&mut pool, &mut batch, 1).unwrap(), 0);
            assert_eq!(lanes[0].counters().rebuilds, 1);
            assert!(!policy.after(0, &mut lanes, &[0], &graph, &mut counters), "the new queues are armed first");
            assert!(policy.after(0, &mut lanes, &[0], &graph, &mut counters));
            assert_eq!(counters.sleeps, 1);
        });
    }
}
