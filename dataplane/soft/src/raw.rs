//! The state of a raw-packet queue pair, which either copies frames or is zero-copy (the kernel owns the posted slots).

use std::os::fd::BorrowedFd;

use crate::completion::{Now, RawCqe, Stamps};
use crate::counters::Counting;
use crate::cq_core::CqCore;
use crate::engine::{CopyingQp, PartialPost};
use crate::handle::SoftAh;
use crate::link::LinkEnd;
use crate::memory::SoftMr;
use crate::nic::RawSettings;
use crate::numbers::Identity;
use crate::open_device::OpenDevice;
use crate::qp_shared::QpShared;
use crate::ring::Ring;
use crate::zero_copy::ZeroCopyQp;
use dataplane_core::mem::{Run, SlotLayout};
use dataplane_core::verbs::{Completions, PollFields, PostError, QpSpec, RecvRequest, SendRequest};

/// The part of a queue pair's state that only its worker accesses.
// `repr(u8)` gives the enum's tag its own byte. A tag inside a niche of another field costs more instructions per
// batch.
#[repr(u8)]
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "created once for each queue pair, and not moved on the data path")]
pub(super) enum QpCore {
    Copying(CopyingQp),
    ZeroCopy(ZeroCopyQp),
}

/// Calls a method of the queue pair inside a [`QpCore`].
macro_rules! inside {
    ($self:ident, $qp:ident => $call:expr) => {
        match $self {
            Self::Copying($qp) => $call,
            Self::ZeroCopy($qp) => $call,
        }
    };
}

impl QpCore {
    /// Creates the state of a queue pair. `fields` are the completion fields that were granted to the receive
    /// completion queue.
    pub(super) fn new(device: &OpenDevice, pd: Identity, spec: &QpSpec, raw: &RawSettings, fields: PollFields) -> Self {
        let shared = &device.shared;
        match device.link.clone().end(spec, &raw.rss, &shared.clock) {
            LinkEnd::Copying(wire) => Self::Copying(CopyingQp::new(shared, wire, pd, spec, raw, fields)),
            LinkEnd::ZeroCopy(queue) => Self::ZeroCopy(ZeroCopyQp::new(shared, queue, pd, spec)),
        }
    }

    /// Drops all requests and all pending frames. The pending frames count as missed.
    ///
    /// # Errors
    /// Returns the `errno` if the hardware may still write to the slots. The requests then stay posted.
    pub(super) fn reset(&mut self, counts: &Counting) -> Result<(), i32> {
        inside!(self, qp => qp.reset(counts))
    }

    /// Starts receiving.
    ///
    /// # Errors
    /// Returns the `errno` of the failure. The error of the link may have more details.
    pub(super) fn open(&mut self) -> Result<(), i32> {
        inside!(self, qp => qp.open())
    }

    /// Processes the deferred sends that the rate limit admits now.
    pub(super) fn resume(&mut self, shared: &QpShared, cq: &mut CqCore) {
        match self {
            Self::Copying(qp) => qp.resume(shared, cq),
            // A zero-copy queue pair accepts sends only in RTS and ERR, so no send is deferred.
            Self::ZeroCopy(_) => {}
        }
    }

    /// Flushes the sends that have not completed: deferred sends, or sends that the kernel owns. Receives are flushed
    /// when their completions are polled.
    pub(super) fn fail(&mut self, shared: &QpShared, cq: &mut CqCore) {
        inside!(self, qp => qp.fail(shared, cq))
    }

    /// Flushes sends that have not completed, oldest first, until a flushed send generates a completion. Returns this
    /// completion, or `None` if no flushed send generates one.
    pub(super) fn flush_one(&mut self, shared: &QpShared) -> Option<RawCqe> {
        inside!(self, qp => qp.flush_one(shared))
    }

    /// Binds the slots to which the calls of `post_recv_run` and `post_send_run` refer.
    ///
    /// # Errors
    /// Returns the `errno` of the failure.
    pub(super) fn bind(&mut self, mr: &SoftMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), i32> {
        inside!(self, qp => qp.bind(mr, layout, recv_wr_id))
    }

    /// Returns the file descriptor that is readable when a frame has arrived, or `None` if only polling finds new
    /// frames.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        inside!(self, qp => qp.descriptor())
    }

    /// Returns whether no more frames will arrive.
    pub(super) fn ended(&self) -> bool {
        match self {
            Self::Copying(qp) => qp.ended(),
            Self::ZeroCopy(_) => false,
        }
    }

    pub(super) fn post_recv(&mut self, shared: &QpShared, requests: &[RecvRequest<'_>]) -> Result<(), PartialPost> {
        inside!(self, qp => qp.post_recv(shared, requests))
    }

    #[inline]
    pub(super) fn post_recv_run(&mut self, shared: &QpShared, slots: &[u32]) -> Result<(), PartialPost> {
        inside!(self, qp => qp.post_recv_run(shared, slots))
    }

    pub(super) fn post_send(
        &mut self,
        shared: &QpShared,
        cq: &mut CqCore,
        requests: &[SendRequest<'_, SoftAh>],
    ) -> Result<(), PostError> {
        match self {
            Self::Copying(qp) => qp.post_send(shared, cq, requests),
            Self::ZeroCopy(_) => Err(PartialPost::none_accepted(libc::EOPNOTSUPP).into_error("ibv_post_send")),
        }
    }

    #[inline]
    pub(super) fn post_send_run(
        &mut self,
        shared: &QpShared,
        cq: &mut CqCore,
        run: &Run<'_>,
        first_wr_id: u64,
    ) -> Result<(), PartialPost> {
        match self {
            Self::Copying(qp) => qp.post_send_run(shared, cq, run, first_wr_id),
            Self::ZeroCopy(qp) => qp.post_send_run(shared, cq, run.descs(), first_wr_id),
        }
    }

    /// Adds completions for the sends whose slots the kernel has returned, until `ring` has `max_entries` entries.
    #[inline]
    pub(super) fn reap(&mut self, shared: &QpShared, ring: &mut Ring<RawCqe>, max_entries: usize, stamps: &Stamps) {
        if let Self::ZeroCopy(qp) = self {
            qp.reap(shared, ring, max_entries, stamps);
        }
    }

    /// Returns whether the completion queue overruns. `room` is the number of completions that still fit. The queue
    /// overruns if more than `room` frames have arrived for posted receives, or if the queue pair is in ERR and flushes
    /// more than `room` receives. Hardware would already have written all these completions.
    #[inline]
    pub(super) fn overruns(&mut self, shared: &QpShared, room: usize) -> bool {
        match self {
            Self::Copying(qp) => qp.overruns(shared, room),
            // Received frames wait in the kernel's RX ring, which drops frames instead of overrunning.
            Self::ZeroCopy(_) => false,
        }
    }

    /// Receives directly into the completion list `run` until the list has `limit` entries. `in_order` may be `true`
    /// only if the list is empty and the completion queue serves only this queue pair. Returns `false` without
    /// receiving if the caller must use [`QpCore::receive`].
    #[inline(always)]
    pub(super) fn receive_run(
        &mut self,
        shared: &QpShared,
        run: &mut Completions,
        limit: usize,
        now: Now,
        in_order: bool,
    ) -> bool {
        match self {
            Self::Copying(qp) => qp.receive_run(shared, run, limit, now, in_order),
            Self::ZeroCopy(qp) => qp.receive_run(shared, run, limit, now),
        }
    }

    /// Receives frames until `ring` has `max_frames` more completions. In state ERR, flushes up to `max_frames`
    /// receives instead. A frame without a timestamp gets the time `now`.
    pub(super) fn receive(&mut self, shared: &QpShared, ring: &mut Ring<RawCqe>, max_frames: usize, now: Now) {
        inside!(self, qp => qp.receive(shared, ring, max_frames, now))
    }
}
