//! Recovery of a lane: handles errors, resets, failed completion queues, and the connection to the peer.
//!
//! Recovery owns the state of the queue pair. It stops and restarts the [`DataPath`] and reclaims the buffers that a
//! stopped queue pair does not return. While packets flow without errors, only a few cheap checks of this module run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::data_path::DataPath;
use super::queues::Queues;
use crate::error::VerbError;
use crate::lane::wiring::{LaneQueuePair, Wiring};
use crate::lane::{LaneSpec, PendingEvents};
use crate::mem::{Batch, Pool};
use crate::verbs::{CqGranted, Device, EventKind, QpAttributes, QpState, QueuePair};

/// Maximum time without progress while a queue pair in state ERR flushes its requests.
const FLUSH_DEADLINE: Duration = Duration::from_millis(500);
/// Maximum time for which a stopped lane repeats a reset that the device refuses with `EBUSY`, because another program may
/// still write to the posted slots.
const BUSY_DEADLINE: Duration = Duration::from_secs(30);

/// State of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The queue pair is in INIT: receives are posted, and the peer is not connected yet.
    Waiting,
    /// The queue pair is in RTS.
    Live,
    /// The queue pair is in ERR: outstanding requests are being flushed.
    Failed {
        /// The time when the queue pair stopped, or when the number of outstanding requests last changed.
        since: Instant,
        /// The number of outstanding requests at that time.
        outstanding: usize,
        /// Whether the device has refused the reset.
        is_refused: bool,
    },
    /// The device has refused to destroy a queue pair, with this error. The device keeps the slots that were posted to
    /// this queue pair, so the lane stays in this phase.
    Lost(VerbError),
}

/// The state of a lane's queue pair, and all data that is needed to recreate the queue pair.
pub(super) struct Recovery<D: Device> {
    phase: Phase,
    /// Whether the flush deadline of a stopped queue pair had passed at the last check.
    overdue: bool,
    wiring: Box<dyn Wiring<D>>,
    pending_events: Arc<PendingEvents>,
    /// The version of `pending_events` that was last handled.
    events_seen: u32,
    device: D,
    pd: D::Pd,
    spec: LaneSpec,
    /// The granted properties of the receive completion queue.
    pub(super) granted: CqGranted,
}

impl<D: Device> Recovery<D> {
    pub(super) fn new(
        device: &D,
        pd: &D::Pd,
        spec: LaneSpec,
        wiring: Box<dyn Wiring<D>>,
        pending_events: Arc<PendingEvents>,
        granted: CqGranted,
    ) -> Self {
        Self {
            phase: Phase::Waiting,
            overdue: false,
            wiring,
            pending_events,
            events_seen: 0,
            device: device.clone(),
            pd: pd.clone(),
            spec,
            granted,
        }
    }

    /// Returns whether the queue pair is connected.
    pub(super) fn is_connected(&self) -> bool {
        self.phase == Phase::Live
    }

    /// Returns whether the queue pair has stopped and its requests are being flushed.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.phase, Phase::Failed { .. })
    }

    /// Returns whether the device keeps slots of a queue pair that the device refused to destroy.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.phase, Phase::Lost(_))
    }

    /// Returns whether packets cannot be sent now.
    #[inline]
    pub(super) fn is_not_live(&self, data: &DataPath<D>) -> bool {
        self.phase != Phase::Live || data.queues.qp.state() == QpState::Err
    }

    /// Moves the queue pair from RESET to INIT, and on to RTS if the peer is ready. Posts receives before the peer
    /// learns of the queue pair.
    pub(super) fn start(&mut self, data: &mut DataPath<D>, pool: &mut Pool) -> Result<(), VerbError> {
        self.initialise(data, pool)?;
        self.connect(data, pool)
    }

    /// Moves the queue pair from RESET to INIT. Posts nothing.
    fn initialise(&mut self, data: &mut DataPath<D>, pool: &Pool) -> Result<(), VerbError> {
        self.phase = Phase::Waiting;
        data.bind(pool)?;
        self.wiring.initialise(&mut LaneQueuePair::new(&mut data.queues.qp))
    }

    /// Posts receives to a queue pair in INIT, and moves the queue pair on to RTS if the peer is ready.
    fn connect(&mut self, data: &mut DataPath<D>, pool: &mut Pool) -> Result<(), VerbError> {
        data.refill(pool)?;
        self.try_connect(data)
    }

    fn try_connect(&mut self, data: &mut DataPath<D>) -> Result<(), VerbError> {
        if self.wiring.connect(&mut LaneQueuePair::new(&mut data.queues.qp))? {
            data.longest = self.wiring.longest();
            self.phase = Phase::Live;
        }
        Ok(())
    }

    /// Advances a lane that is not live: recovers a failed queue pair, or continues the connection setup.
    #[cold]
    pub(super) fn advance(&mut self, data: &mut DataPath<D>, pool: &mut Pool) -> Result<(), VerbError> {
        if matches!(self.phase, Phase::Live | Phase::Waiting) && data.queues.qp.state() == QpState::Err {
            self.fail(data);
        }
        match self.phase {
            Phase::Lost(error) => Err(error),
            Phase::Live => Ok(()),
            Phase::Waiting => self.try_connect(data),
            Phase::Failed { .. } => self.recover(data, pool),
        }
    }

    /// Starts recovery after a completion with an error, if the queue pair has stopped.
    #[cold]
    pub(super) fn examine_error(&mut self, data: &mut DataPath<D>) {
        data.has_error = false;
        if self.phase == Phase::Live && self.has_stopped(data) {
            self.fail(data);
        }
    }

    /// Returns whether a queue pair has stopped after an error. A flushed request proves that the queue pair has
    /// stopped. After any other error, the state that the provider returns decides. For raw packets, the libibverbs
    /// provider queries the device only after a frame that is longer than its receive buffer. After other errors, and
    /// if the device refuses the query, the provider assumes ERR.
    fn has_stopped(&self, data: &mut DataPath<D>) -> bool {
        if std::mem::take(&mut data.was_flushed) {
            return true;
        }
        !matches!(data.queues.qp.state(), QpState::Rtr | QpState::Rts | QpState::Sqd)
    }

    /// Moves the queue pair to ERR, so that all outstanding requests are flushed. This function also sets ERR if the
    /// queue pair reports ERR already, because maybe only the send queue or only the receive queue has failed.
    #[cold]
    fn fail(&mut self, data: &mut DataPath<D>) {
        let (attributes, mask) = QpAttributes::to(QpState::Err);
        let stopped = data.queues.qp.modify(&attributes, mask);
        data.was_flushed = false;
        self.phase = Phase::Failed { since: Instant::now(), outstanding: data.outstanding(), is_refused: false };
        self.overdue = false;
        // If the device refused the change, the send queue may still work. The marker is a send request for the newest
        // packet, so a working queue would send this packet twice. Without the marker, the flush deadline ends the wait
        // for the outstanding requests.
        if stopped.is_ok() {
            data.post_marker();
        }
    }

    /// Drops all packets, because the queue pair cannot send now. In state ERR, posted packets would only be flushed,
    /// and the queue pair cannot be reset while flushes are outstanding.
    #[cold]
    pub(super) fn drop_all(&self, data: &mut DataPath<D>, pool: &mut Pool, batch: &mut Batch) {
        match self.phase {
            Phase::Waiting => data.counters.tx_not_connected += batch.len() as u64,
            _ => data.counters.tx_errors += batch.len() as u64,
        }
        batch.free_into(pool);
    }

    /// Checks whether the flush deadline of a stopped queue pair has passed. Call this function before the polls of the
    /// two completion queues. If one of these polls returns a completion, the deadline starts again: the request may
    /// have completed in time, while the thread was descheduled and could not poll.
    #[inline]
    pub(super) fn check_deadline(&mut self, data: &DataPath<D>) {
        if let Phase::Failed { since, .. } = self.phase {
            self.extend_deadline(data);
            self.overdue = since.elapsed() >= FLUSH_DEADLINE;
        }
    }

    /// Restarts the flush deadline if requests have completed since the deadline was last started.
    #[cold]
    fn extend_deadline(&mut self, data: &DataPath<D>) {
        let now_outstanding = data.outstanding();
        if let Phase::Failed { since, outstanding, .. } = &mut self.phase
            && *outstanding != now_outstanding
        {
            (*since, *outstanding) = (Instant::now(), now_outstanding);
            self.overdue = false;
        }
    }

    /// Resets and restarts a stopped queue pair after all requests have completed or the flush deadline has passed.
    #[cold]
    fn recover(&mut self, data: &mut DataPath<D>, pool: &mut Pool) -> Result<(), VerbError> {
        self.extend_deadline(data);
        if data.outstanding() > 0 && !self.overdue {
            return Ok(());
        }
        let abandoned = data.outstanding() as u64;
        self.restart(data, pool, abandoned)
    }

    /// Moves the queue pair from any state to RESET, reclaims all posted slots, and restarts the queue pair.
    /// `abandoned` is the number of posted requests that the device did not complete in time. If the device refuses the
    /// reset or the change from RESET to INIT, creates all queues again. irdma, for example, accepts the reset, but
    /// keeps the queue pair in ERR.
    #[cold]
    fn restart(&mut self, data: &mut DataPath<D>, pool: &mut Pool, abandoned: u64) -> Result<(), VerbError> {
        let (attributes, mask) = QpAttributes::to(QpState::Reset);
        if let Err(refused) = data.queues.qp.modify(&attributes, mask) {
            return if self.waits_for_reset(data, refused) { Ok(()) } else { self.rebuild(data, pool, refused) };
        }
        data.counters.timed_out += abandoned;
        data.reclaim_all(pool);
        data.stopping = false;
        if let Err(refused) = self.initialise(data, pool) {
            return self.rebuild(data, pool, refused);
        }
        data.counters.recoveries += 1;
        self.connect(data, pool)
    }

    /// Returns whether the device may accept the reset later: after a hand-over that has failed. Logs the first refusal.
    fn waits_for_reset(&mut self, data: &DataPath<D>, refused: VerbError) -> bool {
        let Phase::Failed { since, is_refused, .. } = &mut self.phase else { return false };
        if !data.stopping || refused.errno != libc::EBUSY || since.elapsed() >= BUSY_DEADLINE {
            return false;
        }
        if !std::mem::replace(is_refused, true) {
            tracing::warn!("{}: the lane cannot restart yet ({refused})", self.device.name());
        }
        true
    }

    /// Creates all queues again, because a completion queue has failed or the queue pair cannot be reset. `lost` is the
    /// error of the failed queue. Fails if the lane stops, if the device is gone, or if the device refuses to destroy
    /// the old queue pair.
    #[cold]
    pub(super) fn rebuild(
        &mut self,
        data: &mut DataPath<D>,
        pool: &mut Pool,
        lost: VerbError,
    ) -> Result<(), VerbError> {
        if let Phase::Lost(error) = self.phase {
            return Err(error);
        }
        if data.stopping {
            return Err(lost);
        }
        tracing::warn!(
            "{}: the queues of a lane failed ({lost}), so the lane creates its queues again",
            self.device.name()
        );
        let (queues, granted) = Queues::create(&self.device, &self.pd, &self.spec)?;
        let old = std::mem::replace(&mut data.queues, queues);
        self.granted = granted;
        let (queue_pair, work_queue, queues) = old.numbers();
        if let Err(error) = old.qp.destroy() {
            // The device may still write to the posted slots, so the pool never gets them back.
            self.phase = Phase::Lost(error);
            return Err(error);
        }
        self.pending_events.forget(queue_pair, work_queue, &queues);
        data.counters.timed_out += data.outstanding() as u64;
        data.reclaim_all(pool);
        data.counters.rebuilds += 1;
        self.start(data, pool)
    }

    /// Does the housekeeping: restarts the connection if the peer restarted, and handles device events.
    pub(super) fn housekeep(&mut self, data: &mut DataPath<D>, pool: &mut Pool) -> Result<(), VerbError> {
        if let Phase::Lost(error) = self.phase {
            return Err(error);
        }
        if self.wiring.is_stale() {
            match self.phase {
                Phase::Live => self.fail(data),
                // The peer for which the lane is waiting is gone. No outstanding request can complete, so restart at
                // once.
                Phase::Waiting => self.restart(data, pool, 0)?,
                Phase::Failed { .. } | Phase::Lost(_) => {}
            }
        }
        let overdue = data.unsignalled_since.is_some_and(|since| since.elapsed() > FLUSH_DEADLINE);
        if overdue && data.in_flight.len() > 0 && self.phase == Phase::Live {
            // No later signalled send reports the unsignalled sends. Only a reset returns their slots.
            self.fail(data);
        }
        if self.pending_events.changed_since(&mut self.events_seen) { self.handle_events(data, pool) } else { Ok(()) }
    }

    /// Handles pending device events that concern this lane.
    #[cold]
    fn handle_events(&mut self, data: &mut DataPath<D>, pool: &mut Pool) -> Result<(), VerbError> {
        if self.pending_events.is_device_lost() {
            return Err(VerbError::new("ibv_get_async_event", libc::EIO));
        }
        let (queue_pair, work_queue, queues) = data.queues.numbers();
        if self.pending_events.take(&[EventKind::CqErr], &queues) {
            return self.rebuild(data, pool, VerbError::new("IBV_EVENT_CQ_ERR", libc::EIO));
        }
        let failed = [EventKind::QpFatal, EventKind::QpReqErr, EventKind::QpAccessErr, EventKind::PathMigErr];
        let pair_failed = self.pending_events.take(&failed, &[queue_pair]);
        let receives_failed = self.pending_events.take(&[EventKind::WqFatal], work_queue.as_slice());
        if (pair_failed || receives_failed) && self.phase == Phase::Live {
            self.fail(data);
        }
        Ok(())
    }

    /// Stops the lane: moves the queue pair to ERR, so that all outstanding requests are flushed.
    pub(super) fn stop(&mut self, data: &mut DataPath<D>) -> Result<(), VerbError> {
        data.stopping = true;
        if let Phase::Lost(error) = self.phase {
            return Err(error);
        }
        let (attributes, mask) = QpAttributes::to(QpState::Err);
        data.queues.qp.modify(&attributes, mask)?;
        data.post_marker();
        Ok(())
    }

    /// Resets the queue pair and reclaims the slots of all outstanding requests.
    pub(super) fn abandon(&mut self, data: &mut DataPath<D>, pool: &mut Pool) {
        if data.outstanding() == 0 || self.is_lost() {
            return;
        }
        let (attributes, mask) = QpAttributes::to(QpState::Reset);
        // A device that is gone refuses the reset. Its slots do not come back, and the report shows these slots as
        // missing.
        if data.queues.qp.modify(&attributes, mask).is_ok() {
            data.counters.timed_out += data.outstanding() as u64;
            data.reclaim_all(pool);
        }
    }
}
