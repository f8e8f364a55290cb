//! Completion queues. No thread of the software device receives raw packets, so a poll of a completion queue receives
//! these packets.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::channel_events::ChannelEvents;
use crate::completion::Stamps;
use crate::cq_core::{Attached, Attachments, CqCore, PollFaults};
use crate::inbox::Inbox;
use crate::open_device::OpenDevice;
use crate::profile::Profile;
use crate::quirk::SoftQuirk;
use crate::thread_cell::ThreadCell;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{Claim, Completion, CompletionQueue, Completions, CqFlags, CqGranted, Cursor, PollFields};

/// The state that the owner of a completion queue shares with the queue pairs that report to the queue.
#[derive(Debug)]
pub(super) struct CqShared {
    pub(super) number: u32,
    /// A value of the program (`CqSpec::context`), which completion events of the queue return.
    context: u64,
    depth: AtomicU32,
    /// The completion fields that the creator of the queue requested and was granted.
    pub(super) fields: PollFields,
    pub(super) attachments: Arc<Attachments>,
    /// Whether a raw-packet queue pair was ever attached to this queue. If so, only one thread at a time may use the
    /// queue.
    raw: AtomicBool,
    pub(super) inbox: Arc<Inbox>,
    pub(super) core: ThreadCell<CqCore>,
    pub(super) device: Arc<OpenDevice>,
}

impl CqShared {
    /// Adds a queue pair that reports its completions to this queue.
    pub(super) fn attach(&self, attached: Attached) {
        self.raw.fetch_or(attached.core.is_some(), Ordering::Relaxed);
        self.attachments.change(|list| list.push(attached));
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.device.shared.cqs.fetch_sub(1, Ordering::Relaxed);
        if let Some(channel) = self.inbox.channel() {
            channel.detach(self.number);
        }
    }
}

/// The time until an armed queue without a file descriptor raises its event. A packet waits at most this long.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// The time until an armed queue raises its event while the link is down. It is not enough to wait for the current file
/// descriptors, because the link may have other descriptors when it comes up again.
const LINK_DOWN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A completion queue of the software device.
#[derive(Debug)]
pub struct SoftCq(pub(super) Arc<CqShared>, PhantomData<Cell<()>>);

impl SoftCq {
    /// Creates a queue. The caller has checked the properties in `granted`.
    pub(super) fn new(
        device: &Arc<OpenDevice>,
        context: u64,
        granted: &CqGranted,
        stamps: Stamps,
        faults: Option<PollFaults>,
        channel: Option<Arc<ChannelEvents>>,
    ) -> Self {
        let shared = &device.shared;
        let reserved = shared.number();
        let number = reserved.get();
        if let Some(channel) = &channel {
            channel.attach(number, context);
        }
        let attachments = Arc::new(Attachments::new());
        let survives_overrun = shared.profile == Profile::Rxe;
        let (depth, ignore_overrun) = (granted.depth, granted.flags.contains(CqFlags::IGNORE_OVERRUN));
        let inbox = Inbox::new(reserved, depth as usize, ignore_overrun, survives_overrun, stamps.clone(), channel);
        let inbox = Arc::new(inbox);
        let core = CqCore::new(device, granted, stamps, faults, &attachments, &inbox);
        let shared = CqShared {
            number,
            context,
            depth: AtomicU32::new(depth),
            fields: granted.fields,
            attachments,
            raw: AtomicBool::new(false),
            inbox,
            core: ThreadCell::new(core),
            device: device.clone(),
        };
        Self(Arc::new(shared), PhantomData)
    }

    #[inline]
    fn with<R>(&self, verb: &'static str, work: impl FnOnce(&mut CqCore) -> Result<R, i32>) -> Result<R, VerbError> {
        let kind = if self.0.raw.load(Ordering::Relaxed) { Claim::Permanent } else { Claim::Temporary };
        // `None` means that another thread owns the queue: EBUSY.
        self.0.core.with(kind, work).unwrap_or(Err(libc::EBUSY)).map_err(|errno| VerbError::new(verb, errno))
    }
}

/// The cursor of a [`SoftCq`].
#[derive(Debug)]
pub struct SoftCursor<'cq> {
    cq: &'cq mut SoftCq,
    current: Completion,
}

impl Cursor for SoftCursor<'_> {
    fn get(&self) -> Completion {
        self.current.only(self.cq.0.fields)
    }

    fn advance(&mut self) -> Result<bool, VerbError> {
        let next = self.cq.with("ibv_next_poll", CqCore::continue_poll)?;
        self.current = next.unwrap_or(self.current);
        Ok(next.is_some())
    }
}

// SAFETY: the device moves the bytes of a request before it adds the completion, and does not access them afterwards.
// Injected faults change a status, or add a completion with a random `wr_id` that belongs to no request.
unsafe impl CompletionQueue for SoftCq {
    type Cursor<'cq> = SoftCursor<'cq>;

    fn number(&self) -> u32 {
        self.0.number
    }

    fn context(&self) -> u64 {
        self.0.context
    }

    fn depth(&self) -> u32 {
        self.0.depth.load(Ordering::Relaxed)
    }

    fn start_poll(&mut self) -> Result<Option<SoftCursor<'_>>, VerbError> {
        let first = self.with("ibv_start_poll", CqCore::start_poll)?;
        Ok(first.map(|current| SoftCursor { cq: self, current }))
    }

    #[inline]
    fn poll_run(&mut self, run: &mut Completions, limit: usize) -> Result<usize, VerbError> {
        let polled = self.with("ibv_start_poll", |core| core.poll_run(run, limit));
        if polled.is_err() {
            run.clear();
        }
        polled
    }

    fn release_claim(&self) {
        // If another thread owns the queue, or if this thread is using the queue, nothing is released.
        let _ = self.0.core.with(Claim::Temporary, |core| core.release_queue_pairs());
        self.0.core.release();
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), VerbError> {
        let refused = |errno| VerbError::new("ibv_req_notify_cq", errno);
        if self.0.device.shared.is_gone() {
            return Err(refused(libc::EIO));
        }
        let channel = self.0.inbox.channel().ok_or(refused(libc::EINVAL))?;
        if !self.0.raw.load(Ordering::Relaxed) {
            self.0.inbox.arm(solicited_only);
            return Ok(());
        }
        // Completions of raw packets appear only when the queue is polled.
        let watched = self.0.core.with(Claim::Temporary, |core| core.watch(channel)).unwrap_or(false);
        match (self.0.device.shared.is_up(), watched) {
            (true, true) => {}
            (true, false) => channel.notify_after(self.0.number, POLL_INTERVAL),
            (false, _) => channel.notify_after(self.0.number, LINK_DOWN_POLL_INTERVAL),
        }
        Ok(())
    }

    fn resize(&mut self, depth: u32) -> Result<u32, VerbError> {
        if self.0.device.shared.has_quirk(SoftQuirk::NoCqResize) {
            return Err(VerbError::new("ibv_resize_cq", libc::EOPNOTSUPP));
        }
        let device = &self.0.device.shared;
        let most = device.limits.max_cqe;
        let rounded = device.profile.slots(depth);
        let resized = self.with("ibv_resize_cq", |core| {
            if device.is_gone() {
                return Err(libc::EIO);
            }
            let resized = (1..=most).contains(&depth) && core.resize(rounded as usize);
            if resized { Ok(rounded) } else { Err(libc::EINVAL) }
        })?;
        self.0.depth.store(resized, Ordering::Relaxed);
        Ok(resized)
    }
}
