//! The fabric: the network that connects the queue pairs of all devices on one loopback link.

use std::sync::{Arc, MutexGuard};

use super::state::FabricState;
use super::timer::TimedState;
use crate::numbers::Numbers;
use dataplane_core::units::QpNum;

/// The network that connects queue pairs.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    timed: Arc<TimedState>,
    /// The generator of the numbers of queues and devices on the fabric. Two devices may have the same address, but not
    /// the same number.
    pub(crate) numbers: Arc<Numbers>,
}

impl Fabric {
    pub(super) fn lock(&self) -> MutexGuard<'_, FabricState> {
        self.timed.lock()
    }

    /// Runs the state machine until nothing more can happen at this time. See [`TimedState::run`].
    pub(super) fn run(&self, state: MutexGuard<'_, FabricState>) {
        self.timed.run(state);
    }

    /// Runs the state machine until nothing more can happen at this time.
    pub(crate) fn drive(&self) {
        self.run(self.lock());
    }

    /// Moves a queue pair to ERR because its completion queue overran.
    pub(crate) fn fail(&self, qp: QpNum) {
        let mut state = self.lock();
        state.at(qp, |qp, net| qp.fail_by_overrun(net));
        self.run(state);
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.timed.end();
    }
}
