//! The queue pairs of a device, and their counters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::counters::SoftCounters;
use crate::qp_shared::QpShared;
use dataplane_core::units::QpNum;

/// The queue pairs of a device.
#[derive(Debug, Default)]
pub(super) struct Queues(Mutex<QueueList>);

#[derive(Debug, Default)]
struct QueueList {
    live: Vec<Weak<QpShared>>,
    /// The sums of the counters of dropped queue pairs.
    retired: SoftCounters,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, QueueList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a queue pair with `create`. Returns `None` if the device already has `most` queue pairs.
    pub(super) fn add<Q>(&self, most: u32, create: impl FnOnce() -> (Q, Weak<QpShared>)) -> Option<Q> {
        let mut list = self.lock();
        list.live.retain(|qp| qp.strong_count() > 0);
        if list.live.len() >= most as usize {
            return None;
        }
        let (qp, shared) = create();
        list.live.push(shared);
        Some(qp)
    }

    /// Removes a queue pair, and keeps its counters.
    pub(super) fn retire(&self, shared: &QpShared) {
        let mut list = self.lock();
        list.live.retain(|qp| !std::ptr::eq(qp.as_ptr(), shared));
        list.retired.add(&shared.counts.read());
    }

    /// Returns the counters, summed over all queue pairs, including dropped queue pairs.
    pub(super) fn counters(&self) -> SoftCounters {
        let list = self.lock();
        let mut sum = list.retired;
        list.live.iter().filter_map(Weak::upgrade).for_each(|qp| sum.add(&qp.counts.read()));
        sum
    }

    /// Returns the counters of each existing queue pair.
    pub(super) fn each(&self) -> Vec<(QpNum, SoftCounters)> {
        let live: Vec<Arc<QpShared>> = self.lock().live.iter().filter_map(Weak::upgrade).collect();
        live.iter().map(|qp| (qp.number, qp.counts.read())).collect()
    }
}
