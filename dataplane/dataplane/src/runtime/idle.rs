//! The behaviour of a worker when there is nothing to receive. A lane is one worker's queue pair and completion queues
//! on one port.

use std::array;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use dataplane_core::lane::Lane;
use dataplane_core::pipeline::Graph;

/// The action of a worker after an iteration of the worker loop that received nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IdlePolicy {
    /// Polls again at once.
    Spin,
    /// Pauses briefly, which gives the other hardware thread of the core more time, then polls again.
    Pause,
    /// Sleeps after many empty iterations. Polls again when a packet arrives, or when the maximum time of a sleep has
    /// passed.
    Sleep {
        /// The number of empty iterations since the last packet.
        empty: u32,
        /// Whether the lanes are armed. An armed lane wakes the worker when a packet arrives.
        armed: bool,
    },
}

impl IdlePolicy {
    /// The number of empty iterations before the first sleep.
    const EMPTY_BEFORE_SLEEP: u32 = 10_000;
    /// The length of a sleep if the lanes cannot wake the worker. A received packet may wait this long.
    const TIMED_SLEEP: Duration = Duration::from_micros(50);
    /// The longest sleep if the lanes can wake the worker. A stop request or the housekeeping of the stages may wait
    /// this long.
    const MAX_SLEEP: Duration = Duration::from_millis(20);
    /// The longest sleep while packets are being sent, or are held in a stage. Neither a completed send nor a due
    /// packet in a stage wakes the worker.
    const MAX_SLEEP_BUSY: Duration = Duration::from_millis(1);
    /// A worker with at most this many receiving lanes can sleep until a lane wakes the worker. With more receiving
    /// lanes, the worker sleeps for [`Self::TIMED_SLEEP`].
    const MAX_WAKERS: usize = 16;

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
    ) -> bool {
        match self {
            Self::Spin => {}
            Self::Pause if received == 0 => (0..16).for_each(|_| std::hint::spin_loop()),
            Self::Pause => {}
            Self::Sleep { empty, armed } if received == 0 => {
                *empty = empty.saturating_add(1);
                if *empty > Self::EMPTY_BEFORE_SLEEP {
                    *armed = Self::sleep(*armed, lanes, inputs, graph);
                    return !*armed;
                }
            }
            Self::Sleep { empty, armed } => (*empty, *armed) = (0, false),
        }
        false
    }

    /// Sleeps in two calls. The first call arms the lanes. The caller then polls once more, because a packet may have
    /// arrived before the lanes were armed. If there is still no packet, the second call sleeps until a lane wakes the
    /// worker or the maximum time has passed. If the lanes cannot wake the worker, each call sleeps for a fixed time.
    /// Returns whether the lanes are armed.
    #[cold]
    fn sleep(armed: bool, lanes: &mut [Box<dyn Lane>], inputs: &[usize], graph: &Graph) -> bool {
        if inputs.is_empty() || inputs.len() > Self::MAX_WAKERS {
            std::thread::sleep(Self::TIMED_SLEEP);
            return false;
        }
        if !armed {
            let all = inputs.iter().all(|&input| lanes[input].arm());
            if !all {
                std::thread::sleep(Self::TIMED_SLEEP);
            }
            return all;
        }
        let busy = graph.holds() || lanes.iter().any(|lane| lane.sending() > 0);
        let time = if busy { Self::MAX_SLEEP_BUSY } else { Self::MAX_SLEEP };
        let mut wakers = inputs.iter().filter_map(|&input| lanes[input].waker()).cycle();
        if let Some(first) = wakers.next() {
            let mut fds: [PollFd<'_>; Self::MAX_WAKERS] =
                array::from_fn(|_| PollFd::from_borrowed_fd(wakers.next().unwrap_or(first), PollFlags::IN));
            // Ignore the result, because the caller polls the lanes after every sleep.
            let _ = poll(&mut fds[..inputs.len()], Timespec::try_from(time).ok().as_ref());
        }
        for &input in inputs {
            lanes[input].clear_wakeups();
        }
        false
    }
}
