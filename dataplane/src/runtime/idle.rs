//! What a worker does when there is nothing to do.

use std::array;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::lane::Lane;
use crate::pipeline::Graph;

/// The policy for loops in which nothing was received.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Idle {
    /// Looks again at once.
    Spin,
    /// Lets the core's other thread go first for a moment, then looks again.
    Pause,
    /// After a while of nothing, sleeps; at the first packet it is awake again.
    Sleep {
        /// Loops with nothing since the last packet.
        empty: u32,
        /// Whether the lanes wake the worker.
        armed: bool,
    },
}

impl Idle {
    /// Loops with nothing before the first sleep.
    const PATIENCE: u32 = 10_000;
    /// How long one sleep is where nothing wakes the worker: as long as a packet may wait.
    const NAP: Duration = Duration::from_micros(50);
    /// How long one sleep is where packets wake it: as long as being told to stop may wait, or the ticks of stages.
    const SLEEP: Duration = Duration::from_millis(20);
    /// The same while packets are being sent or wait in a stage, whose end wakes nobody.
    const BUSY: Duration = Duration::from_millis(1);
    /// The most lanes that can wake a worker.
    const WAKERS: usize = 16;

    /// Does it. `inputs` are the places of the lanes that packets come from. Returns whether it slept, so that loops say
    /// nothing of how long ago the slow things were looked at.
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
                if *empty > Self::PATIENCE {
                    *armed = Self::sleep(*armed, lanes, inputs, graph);
                    return !*armed;
                }
            }
            Self::Sleep { empty, armed } => (*empty, *armed) = (0, false),
        }
        false
    }

    /// Arms the lanes; called again after one more loop without a packet, sleeps until one of them wakes it. Returns
    /// whether they are armed.
    #[cold]
    fn sleep(armed: bool, lanes: &mut [Box<dyn Lane>], inputs: &[usize], graph: &Graph) -> bool {
        if inputs.is_empty() || inputs.len() > Self::WAKERS {
            std::thread::sleep(Self::NAP);
            return false;
        }
        if !armed {
            let all = inputs.iter().all(|&input| lanes[input].arm());
            if !all {
                std::thread::sleep(Self::NAP);
            }
            return all;
        }
        let busy = graph.holds() || lanes.iter().any(|lane| lane.sending() > 0);
        let time = if busy { Self::BUSY } else { Self::SLEEP };
        let mut wakers = inputs.iter().filter_map(|&input| lanes[input].waker()).cycle();
        if let Some(first) = wakers.next() {
            let mut fds: [PollFd<'_>; Self::WAKERS] =
                array::from_fn(|_| PollFd::from_borrowed_fd(wakers.next().unwrap_or(first), PollFlags::IN));
            // Whatever woke it: it looks.
            let _ = poll(&mut fds[..inputs.len()], Timespec::try_from(time).ok().as_ref());
        }
        for &input in inputs {
            lanes[input].woken();
        }
        false
    }
}
