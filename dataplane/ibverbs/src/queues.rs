//! The handles of completion queues and queue pairs. A queue pair holds its completion queues. If a completion queue
//! has no lock, only the polling thread may destroy the queue pairs of the queue. Queue pairs that other threads drop
//! are destroyed together with the completion queue.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ibverbs_sys::{ibv_cq, ibv_cq_ex, ibv_gid, ibv_qp, ibv_qp_attr};

use super::channel::{CqTag, VerbsChannel};
use super::context::{Context, check_destroyed};
use super::domain::VerbsPd;
use super::ffi;
use super::held_log;
use super::raw;
use super::raw_queue::RawQueue;
use super::srq::VerbsSrq;
use dataplane_core::error::VerbError;
use dataplane_core::units::{Gid, QpNum};
use dataplane_core::verbs::{AttributeMask, Claim, QpState, QueueOwner, WcFlags, WcStatus};

/// The handle of a completion queue, shared by the owner of the queue and by the queue pairs that use the queue.
pub(super) struct CqHandle {
    pub(super) raw: NonNull<ibv_cq>,
    pub(super) tag: Box<CqTag>,
    pub(super) owner: QueueOwner,
    /// The queue pairs that use this completion queue.
    pub(super) attached: Mutex<Vec<AttachedQp>>,
    /// Queue pairs that a thread other than the polling thread dropped. The drop of the completion queue destroys these
    /// queue pairs.
    pub(super) deferred: Mutex<Vec<QpBody>>,
    pub(super) channel: Option<VerbsChannel>,
    /// Whether the driver has this defect: if the peer invalidated a key, the driver sets the flag that means "the
    /// checksums are valid".
    pub(super) confuses_flags: bool,
    /// The parent domain in which the queue was created, if any.
    pub(super) _domain: Option<VerbsPd>,
    pub(super) context: Arc<Context>,
}

/// A queue pair that uses a completion queue.
pub(super) struct AttachedQp {
    number: QpNum,
    /// Whether the queue pair is a raw-packet queue pair.
    raw: bool,
    /// Whether the sends of the queue pair complete on this completion queue.
    sends: bool,
    /// The last known state, with the flag `STATE_UNKNOWN` if the state must be queried again.
    state: Arc<AtomicU32>,
}

// SAFETY: only the owner polls the queue. The library locks all other operations. If the driver uses no lock, `owner`
// prevents the use by other threads. The other fields are locked or do not change.
unsafe impl Send for CqHandle {}
// SAFETY: same as above.
unsafe impl Sync for CqHandle {}

impl CqHandle {
    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    pub(super) fn raw_ex(&self) -> *mut ibv_cq_ex {
        self.raw.as_ptr().cast()
    }

    pub(super) fn number(&self) -> u32 {
        self.tag.number
    }

    pub(super) fn channel(&self) -> Option<&VerbsChannel> {
        self.channel.as_ref()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Converts the completion flags of the driver, and corrects the defect `Quirk::InvalidatedFlag`.
    #[inline]
    pub(super) fn flags(&self, raw: u32) -> WcFlags {
        let flags = WcFlags::from_bits_truncate(raw);
        if self.confuses_flags && flags.contains(WcFlags::IP_CSUM_OK) {
            return (flags - WcFlags::IP_CSUM_OK) | WcFlags::WITH_INV;
        }
        flags
    }

    /// Adds a queue pair that uses this completion queue. `sends` is whether the sends of the queue pair complete here.
    pub(super) fn attach(&self, number: QpNum, raw: bool, sends: bool, state: &Arc<AtomicU32>) {
        self.attached().push(AttachedQp { number, raw, sends, state: state.clone() });
    }

    pub(super) fn detach(&self, state: &Arc<AtomicU32>) {
        self.attached().retain(|qp| !Arc::ptr_eq(&qp.state, state));
    }

    /// Marks the state of a queue pair as unknown, because a completion with the queue pair number `number` failed.
    ///
    /// The number does not identify a raw-packet queue pair. On mlx5, the completion contains the number of the send
    /// queue or of the receive queue. The number of the send queue equals the number of the queue pair, but the number
    /// of the receive queue differs. A failure therefore marks every raw-packet queue pair of this completion queue.
    ///
    /// A flushed request marks no raw-packet queue pair, because the request may be from before the last reset. The
    /// caller of the poll sees the flush in the status of the completion.
    ///
    /// The status [`WcStatus::LocLenErr`] marks a raw-packet queue pair only if the sends of the queue pair complete on
    /// this completion queue, because the failed request may be a send. A receive with this status does not stop its
    /// queue pair: a frame was longer than its receive buffer, and on mlx5 the receive queue continues (Linux
    /// 187a9830c921). On a device that stops the receive queue instead, the later receives complete with the flush
    /// status.
    #[cold]
    pub(super) fn mark_failed(&self, number: u32, status: WcStatus) {
        for qp in self.attached().iter() {
            let concerned = match (qp.raw, status) {
                (false, _) => qp.number.0 == number,
                (true, WcStatus::WrFlushErr) => false,
                (true, WcStatus::LocLenErr) => qp.sends,
                (true, _) => true,
            };
            if concerned {
                qp.state.fetch_or(STATE_UNKNOWN, Ordering::Relaxed);
            }
        }
    }

    fn attached(&self) -> MutexGuard<'_, Vec<AttachedQp>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the list of queue pairs that are destroyed with the completion queue. While the list is locked, the
    /// polling thread does not release the completion queue.
    pub(super) fn deferred(&self) -> MutexGuard<'_, Vec<QpBody>> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flag in the stored state of a queue pair. If the flag is set, the state must be queried again.
pub(super) const STATE_UNKNOWN: u32 = 1 << 16;

impl Drop for CqHandle {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            // SAFETY: the queue was created with this channel and this tag, and it is destroyed below.
            unsafe { channel.forget(self.raw(), &self.tag) };
        }
        // SAFETY: every queue pair holds its completion queues, so no queue pair uses this queue any more. All events
        // of the queue are acknowledged: channel events above, and device events when they are taken.
        if !check_destroyed(unsafe { ffi::ibv_destroy_cq(self.raw()) }, &self.context.name) {
            // The tag is leaked, because events may still refer to it.
            mem::forget(mem::replace(&mut self.tag, CqTag::new(0, 0)));
        }
    }
}

/// The handle of a queue pair, and all objects that must outlive the queue pair.
pub(super) struct QpBody {
    pub(super) raw: NonNull<ibv_qp>,
    pub(super) state: Arc<AtomicU32>,
    pub(super) send: Arc<CqHandle>,
    pub(super) recv: Arc<CqHandle>,
    pub(super) srq: Option<VerbsSrq>,
    /// The protection domain in which the queue pair was created, which may be a single-threaded parent domain.
    pub(super) pd: VerbsPd,
    /// The multicast groups (GID, LID) of the queue pair. The queue pair must be detached from all groups before its
    /// destruction.
    pub(super) groups: Vec<(Gid, u16)>,
    /// The flow rules and the receive queue of a raw-packet queue pair.
    pub(super) raw_queue: Option<RawQueue>,
}

// SAFETY: same as for `VerbsQp`.
unsafe impl Send for QpBody {}

impl QpBody {
    pub(super) fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    pub(super) fn number(&self) -> QpNum {
        // SAFETY: the queue pair is valid, and its number does not change.
        QpNum(unsafe { self.raw.as_ref() }.qp_num)
    }

    /// Destroys the queue pair. If a completion queue of the queue pair has no lock and another thread polls that
    /// queue, this function only moves the queue pair to ERR. The queue pair is then destroyed when the completion
    /// queue is dropped.
    ///
    /// # Errors
    /// The error of the verb, which is also logged. `EBUSY` if the queue pair is destroyed later.
    pub(super) fn end(mut self) -> Result<(), VerbError> {
        let _hold = held_log::hold();
        let queues = [self.send.clone(), self.recv.clone()];
        let mut guards = Vec::new();
        for queue in &queues {
            // While the list is locked, the completion queue cannot be released.
            let mut deferred = queue.deferred();
            match queue.owner.claim(Claim::Temporary) {
                Some(guard) => guards.push(guard),
                None => {
                    let mut attr = ibv_qp_attr { qp_state: QpState::Err.raw(), ..Default::default() };
                    // SAFETY: the queue pair is valid. The change to ERR does not access a completion queue in user
                    // space.
                    let stopped = unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), &mut attr, STATE) };
                    if let Err(error) = stopped.and_then(|()| self.apply_state(0, QpState::Err)) {
                        let device = self.context().name.clone();
                        held_log::emit(move || tracing::warn!(device, "{error}"));
                    }
                    deferred.push(self);
                    return Err(VerbError::new("ibv_destroy_qp", libc::EBUSY));
                }
            }
        }
        self.destroy()
    }

    /// Applies a state change to the receive side of a raw-packet queue pair. Does nothing for other types.
    pub(super) fn apply_state(&mut self, port: u8, state: QpState) -> Result<(), VerbError> {
        let Some(raw_queue) = &mut self.raw_queue else { return Ok(()) };
        // SAFETY: the raw queue belongs to this queue pair, which is valid.
        let applied = unsafe { raw_queue.apply_state(self.raw, port, state) };
        applied.map_err(|error| raw::verb_error(&error, &self.pd.context().name))
    }

    /// Destroys the queue pair. This thread must have claimed both completion queues.
    ///
    /// # Errors
    /// - The queue pair cannot be destroyed.
    /// - The work queue to which the receives were posted cannot be destroyed. The device may then still write to the
    ///   memory of posted receives, although the queue pair is destroyed.
    ///
    /// The errors are also logged.
    fn destroy(mut self) -> Result<(), VerbError> {
        // Destroy the receive side first, so that no more frames are received.
        let receives = self.raw_queue.take().map_or(Ok(()), RawQueue::destroy);
        let name = &self.context().name;
        for (group, lid) in &self.groups {
            let gid = ibv_gid { raw: group.0 };
            // SAFETY: the queue pair is valid, and it is attached to the group.
            check_destroyed(unsafe { ffi::ibv_detach_mcast(self.raw.as_ptr(), &gid, *lid) }, name);
        }
        for queue in [&self.send, &self.recv] {
            queue.detach(&self.state);
        }
        // SAFETY: this is the only owner. Events of the queue pair are acknowledged when they are taken.
        let destroyed = unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) };
        check_destroyed(destroyed, name);
        receives.and(destroyed)
    }
}

pub(super) const STATE: c_int = AttributeMask::STATE.bits().cast_signed();
