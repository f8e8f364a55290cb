//! What a worker does when there is nothing to do.

use std::time::Duration;

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
    },
}

impl Idle {
    /// Loops with nothing before the first sleep.
    const PATIENCE: u32 = 10_000;
    /// How long one sleep is: as long as a packet may wait.
    const NAP: Duration = Duration::from_micros(50);

    #[inline]
    pub(crate) fn after(&mut self, received: usize) {
        match self {
            Self::Spin => {}
            Self::Pause if received == 0 => (0..16).for_each(|_| std::hint::spin_loop()),
            Self::Pause => {}
            Self::Sleep { empty } if received == 0 => {
                *empty = empty.saturating_add(1);
                if *empty > Self::PATIENCE {
                    std::thread::sleep(Self::NAP);
                }
            }
            Self::Sleep { empty } => *empty = 0,
        }
    }
}
