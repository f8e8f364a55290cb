//! The state of the sending side of a queue pair.

use std::collections::VecDeque;

use super::send::Send;
use dataplane_core::units::Ticks;
use dataplane_core::verbs::QpAttributes;

/// The sending side of a queue pair.
#[derive(Debug, Default)]
pub(super) struct Requester {
    /// Sends that are not complete.
    pub(super) queue: VecDeque<Send>,
    /// The index in `queue` of the first send whose packets are not all sent.
    pub(super) next: usize,
    /// The number of sends posted since RESET.
    pub(super) posted: u64,
    /// The packet sequence number of the next packet.
    pub(super) psn: u32,
    /// The number of retries that are left for a lost packet or acknowledgement.
    pub(super) retries: u8,
    /// The number of retries that are left while the receiver is not ready (has no posted receive).
    pub(super) rnr_retries: u8,
    /// The time at which the requester retries if no response arrives.
    pub(super) timeout: Option<Ticks>,
    /// The time of the next retry after the receiver was not ready.
    pub(super) rnr_until: Option<Ticks>,
    /// Whether unacknowledged packets were sent again since the last new acknowledgement.
    pub(super) rewound: bool,
}

impl Requester {
    pub(super) fn start(&mut self, attributes: &QpAttributes) {
        self.psn = attributes.sq_psn;
        (self.retries, self.rnr_retries) = (attributes.retry_count, attributes.rnr_retry);
    }

    pub(super) fn deadline(&self) -> Option<Ticks> {
        self.rnr_until.or(self.timeout)
    }

    /// Returns whether a send was started and is not complete.
    pub(super) fn is_under_way(&self) -> bool {
        self.queue.front().is_some_and(|send| send.begun)
    }

    /// Recomputes `next`.
    pub(super) fn seek(&mut self) {
        let over = |send: &Send| send.begun && send.failed.is_none() && send.sent == send.packets;
        self.next = self.queue.iter().take_while(|send| over(send)).count();
    }

    pub(super) fn start_retries(&mut self, attributes: &QpAttributes) {
        (self.retries, self.rnr_retries) = (attributes.retry_count, attributes.rnr_retry);
        self.rewound = false;
    }
}
