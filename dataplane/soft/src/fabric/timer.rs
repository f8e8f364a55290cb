//! The timer of a fabric: a thread that runs the state machine when a retry or a delayed packet is due.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::state::{FabricState, Timer};

/// The state of a fabric, and the timer that runs the state machine at the right times.
///
/// The thread starts after the first call that leaves a timer running. Most messages need no thread, because the peer
/// acknowledges a message in the call that sends the message.
#[derive(Debug, Default)]
pub(super) struct TimedState {
    state: Mutex<FabricState>,
    /// Signalled when the thread must wait for another time, or must end.
    changed: Condvar,
}

impl TimedState {
    pub(super) fn lock(&self) -> MutexGuard<'_, FabricState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the state machine until nothing more can happen at this time. The timer runs the state machine again when
    /// something is due.
    pub(super) fn run(self: &Arc<Self>, mut state: MutexGuard<'_, FabricState>) {
        state.run();
        let Some(due) = state.next_due() else { return };
        match state.timer {
            Timer::Stopped => {
                let timed = self.clone();
                let thread = std::thread::Builder::new().name("soft-timer".to_owned());
                // If the thread cannot start, timers expire only when the application posts or polls.
                if thread.spawn(move || timed.wait()).is_ok() {
                    state.timer = Timer::Waits(None);
                }
            }
            Timer::Waits(at) if at.is_none_or(|at| due < at) => self.changed.notify_one(),
            _ => {}
        }
    }

    /// Ends the thread.
    pub(super) fn end(&self) {
        self.lock().timer = Timer::Ends;
        self.changed.notify_one();
    }

    /// Runs the state machine whenever something is due, until the fabric is gone.
    fn wait(&self) {
        let mut state = self.lock();
        while state.timer != Timer::Ends {
            let due = state.next_due();
            state.timer = Timer::Waits(due);
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if !left.is_zero() => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    state.run();
                    state
                }
            };
        }
    }
}
