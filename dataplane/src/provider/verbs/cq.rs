//! Completion queues: what is asked for, what is had, and what to do without.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ibverbs_sys::{IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex};

use super::channel::{CqTag, VerbsChannel};
use super::context::{Context, ended};
use super::domain::{NO_DOMAIN, VerbsPd};
use super::ffi::{self, Wc};
use super::owner::Owner;
use super::poll::Waiting;
use super::qp::QpBody;
use super::quirk::Quirk;
use crate::clock::ClockSource;
use crate::error::VerbError;
use crate::provider::{Capability, CqApi, CqFlags, CqGranted, CqSpec, PollFields, RUN, WcFlags};
use crate::units::QpNum;

/// A completion queue of a device.
pub struct VerbsCq {
    pub(super) handle: Arc<Handle>,
    pub(super) poller: Poller,
    /// The fields that may be read.
    pub(super) fields: PollFields,
    /// What the one stamp of a run is.
    pub(super) stamps: ClockSource,
    /// Polled, and not yet given out.
    pub(super) waiting: Waiting,
    /// One worker's: not to be shared.
    alone: PhantomData<Cell<()>>,
}

/// How a queue is polled.
pub(super) enum Poller {
    /// `ibv_poll_cq(3)` into this array.
    Classic(Box<[Wc]>),
    /// `ibv_start_poll(3)` and so on.
    Extended(Reads),
    /// The same, one at a time.
    Single,
    /// Not any more.
    Broken(VerbError),
}

/// What is read of each completion of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    LengthAndTicks,
    Length,
    /// Whatever was granted.
    Other,
}

impl Reads {
    fn of(fields: PollFields) -> Self {
        let of_run = fields & (PollFields::BYTE_LEN | PollFields::TIMESTAMP | PollFields::WALLCLOCK);
        match () {
            () if of_run == PollFields::BYTE_LEN | PollFields::TIMESTAMP => Self::LengthAndTicks,
            () if of_run == PollFields::BYTE_LEN => Self::Length,
            () => Self::Other,
        }
    }
}

/// The queue itself, as its owner and the queue pairs that report to it hold it.
pub(super) struct Handle {
    raw: NonNull<ibv_cq>,
    tag: Box<CqTag>,
    pub(super) owner: Owner,
    /// The queue pairs that report here, with what is known of their state.
    attached: Mutex<Vec<(QpNum, Arc<AtomicU32>)>>,
    /// Queue pairs that were dropped by another thread than the one that polls. They go when nobody polls any more.
    graves: Mutex<Vec<QpBody>>,
    channel: Option<VerbsChannel>,
    /// Whether the flag of good checksums is that of an invalidated key.
    confuses_flags: bool,
    /// The domain for one thread that it was created in.
    _domain: Option<VerbsPd>,
    context: Arc<Context>,
}

// SAFETY: the queue is polled by its owner alone. What else is done to it the library locks; where the driver was told
// not to lock, `owner` keeps other threads out. The rest is locked, or does not change.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
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

    /// What holds of a completion, by its flags as the driver gives them.
    #[inline]
    pub(super) fn flags(&self, raw: u32) -> WcFlags {
        let flags = WcFlags::from_bits_truncate(raw);
        if self.confuses_flags && flags.contains(WcFlags::IP_CSUM_OK) {
            return (flags - WcFlags::IP_CSUM_OK) | WcFlags::WITH_INV;
        }
        flags
    }

    pub(super) fn attach(&self, number: QpNum, state: &Arc<AtomicU32>) {
        self.attached().push((number, state.clone()));
    }

    pub(super) fn detach(&self, state: &Arc<AtomicU32>) {
        self.attached().retain(|(_, other)| !Arc::ptr_eq(other, state));
    }

    /// A completion of a queue pair failed: the state that was set last may not be its state any more.
    #[cold]
    pub(super) fn suspect(&self, number: u32) {
        for (_, state) in self.attached().iter().filter(|(other, _)| other.0 == number) {
            state.fetch_or(SUSPECT, Ordering::Relaxed);
        }
    }

    fn attached(&self) -> std::sync::MutexGuard<'_, Vec<(QpNum, Arc<AtomicU32>)>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where queue pairs wait for the end of polling. Held, polling does not end.
    pub(super) fn graves(&self) -> std::sync::MutexGuard<'_, Vec<QpBody>> {
        self.graves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The mark on a state that is to be asked for anew.
pub(super) const SUSPECT: u32 = 1 << 16;

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(channel) = &self.channel {
            // SAFETY: the queue was created with both, and is destroyed below.
            unsafe { channel.forget(self.raw(), &self.tag) };
        }
        // SAFETY: the queue pairs that report here hold the queue, so there are none. Its events are acknowledged: those
        // of the channel above, and every event of the device as soon as it is taken.
        if !ended(unsafe { ffi::ibv_destroy_cq(self.raw()) }, &self.context.name) {
            // Events may still name it.
            mem::forget(mem::replace(&mut self.tag, CqTag::new(0)));
        }
    }
}

impl Drop for VerbsCq {
    fn drop(&mut self) {
        let graves = {
            let mut graves = self.handle.graves();
            self.handle.owner.release();
            mem::take(&mut *graves)
        };
        for body in graves {
            // What failed is in the log.
            let _ = body.end();
        }
    }
}

impl VerbsCq {
    /// Whether its driver has no lock for it.
    pub(super) fn is_single_threaded(&self) -> bool {
        self.handle.owner.is_alone()
    }
}

impl fmt::Debug for VerbsCq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsCq")
            .field("number", &self.handle.number())
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

/// Something that a queue may have beyond the least.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Extra {
    capability: Capability,
    fields: PollFields,
    flags: CqFlags,
}

/// What is given up first comes first.
const EXTRAS: [Extra; 7] = {
    const fn field(capability: Capability, fields: PollFields) -> Extra {
        Extra { capability, fields, flags: CqFlags::empty() }
    }
    const fn flag(capability: Capability, flags: CqFlags) -> Extra {
        Extra { capability, fields: PollFields::empty(), flags }
    }
    [
        field(Capability::TagMatching, PollFields::TM_INFO),
        field(Capability::WallclockTimestamps, PollFields::WALLCLOCK),
        field(Capability::FlowTag, PollFields::FLOW_TAG),
        field(Capability::Cvlan, PollFields::CVLAN),
        field(Capability::Timestamps, PollFields::TIMESTAMP),
        flag(Capability::IgnoreOverrun, CqFlags::IGNORE_OVERRUN),
        flag(Capability::SingleThreaded, CqFlags::SINGLE_THREADED),
    ]
};

/// Whether an answer means that something is not to be had, and not that nothing is.
fn negotiable(error: &VerbError) -> bool {
    matches!(error.errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)
}

/// A queue that was created and is not yet anybody's.
struct Made {
    raw: NonNull<ibv_cq>,
    extras: Vec<Extra>,
    domain: Option<VerbsPd>,
    extended: bool,
}

/// How queues are created for one request.
struct Maker<'a> {
    context: &'a Arc<Context>,
    spec: &'a CqSpec,
    channel: Option<&'a VerbsChannel>,
    tag: &'a CqTag,
    refused: Vec<Capability>,
    why: Vec<String>,
}

impl Maker<'_> {
    /// One try at an extended queue.
    fn extended(&self, extras: &[Extra], domain: Option<&VerbsPd>) -> Result<NonNull<ibv_cq>, VerbError> {
        // The number of the queue pair is what tells which one failed.
        let standard = self.spec.fields & PollFields::STANDARD | PollFields::QP_NUM;
        let fields = extras.iter().fold(standard, |fields, extra| fields | extra.fields);
        let flags = extras.iter().fold(CqFlags::empty(), |flags, extra| flags | extra.flags);
        let mut attr = ibv_cq_init_attr_ex {
            cqe: self.spec.depth,
            cq_context: ptr::from_ref(self.tag).cast_mut().cast(),
            channel: self.channel.map_or(ptr::null_mut(), VerbsChannel::raw),
            comp_vector: self.spec.vector,
            wc_flags: fields.bits(),
            comp_mask: if flags.is_empty() { 0 } else { IBV_CQ_INIT_ATTR_MASK_FLAGS },
            flags: flags.bits(),
            parent_domain: domain.map_or(NO_DOMAIN, VerbsPd::raw),
        };
        if domain.is_some() {
            attr.comp_mask |= IBV_CQ_INIT_ATTR_MASK_PD;
        }
        // SAFETY: context, channel and domain are alive, and so is the tag until the queue is destroyed. A queue whose
        // driver has no reader for a field that it granted is destroyed at once.
        unsafe {
            let cq = ffi::ibv_create_cq_ex(self.context.raw(), &mut attr)?;
            if let Err(error) = ffi::check_readers(cq.as_ptr(), fields.bits()) {
                self.destroy(cq.cast());
                return Err(error);
            }
            Ok(cq.cast())
        }
    }

    fn classic(&self) -> Result<NonNull<ibv_cq>, VerbError> {
        let [depth, vector] =
            [self.spec.depth, self.spec.vector].map(|number| c_int::try_from(number).unwrap_or(c_int::MAX));
        let tag = ptr::from_ref(self.tag).cast_mut().cast();
        let channel = self.channel.map_or(ptr::null_mut(), VerbsChannel::raw);
        // SAFETY: as of `extended`.
        unsafe { ffi::ibv_create_cq(self.context.raw(), depth, tag, channel, vector) }
    }

    fn destroy(&self, cq: NonNull<ibv_cq>) {
        // SAFETY: the queue was just created; nothing knows of it.
        ended(unsafe { ffi::ibv_destroy_cq(cq.as_ptr()) }, &self.context.name);
    }

    fn refuse(&mut self, capability: Capability, why: impl fmt::Display) {
        self.refused.push(capability);
        self.why.push(format!("no {capability}: {why}"));
    }

    /// An extended queue with as much as there is of what is asked for. `None`: not even the least is to be had so.
    fn negotiate(&mut self) -> Result<Option<Made>, VerbError> {
        let asked =
            |extra: &Extra| self.spec.fields.intersects(extra.fields) || self.spec.flags.intersects(extra.flags);
        let mut extras: Vec<Extra> = EXTRAS.into_iter().filter(asked).collect();
        if let Some(why) = self.context.quirks.why(Quirk::WallclockStamps)
            && let Some(at) = extras.iter().position(|extra| extra.fields == PollFields::WALLCLOCK)
        {
            extras.remove(at);
            self.refuse(Capability::WallclockTimestamps, why);
        }
        let mut given_up = Vec::new();
        let mut raw = loop {
            match self.extended(&extras, None) {
                Ok(raw) => break raw,
                Err(error) if !negotiable(&error) => return Err(error),
                Err(error) if extras.is_empty() => {
                    self.refuse(Capability::ExtendedCq, error);
                    return Ok(None);
                }
                Err(error) => given_up.push((extras.remove(0), error)),
            }
        };
        // The last one given up was too much. Those before it may have been innocent.
        let culprit = given_up.pop();
        for (extra, error) in given_up {
            extras.push(extra);
            match self.extended(&extras, None) {
                Ok(better) => self.destroy(mem::replace(&mut raw, better)),
                Err(_) => {
                    extras.pop();
                    self.refuse(extra.capability, error);
                }
            }
        }
        let mut domain = None;
        if let Some((extra, error)) = culprit {
            let single = extra.flags == CqFlags::SINGLE_THREADED;
            match if single { self.in_domain(&extras) } else { Err(error) } {
                Ok((better, of)) => {
                    self.destroy(mem::replace(&mut raw, better));
                    extras.push(extra);
                    domain = Some(of);
                }
                Err(other) => self.refuse(extra.capability, if single { other } else { error }),
            }
        }
        Ok(Some(Made { raw, extras, domain, extended: true }))
    }

    /// The other way to a queue without a lock: in a domain for one thread.
    fn in_domain(&self, extras: &[Extra]) -> Result<(NonNull<ibv_cq>, VerbsPd), VerbError> {
        let domain = VerbsPd::alloc(self.context)?.for_one_thread()?;
        Ok((self.extended(extras, Some(&domain))?, domain))
    }
}

/// Creates a queue. `safe` says which way of polling can be relied on, and why no better one.
pub(super) fn create(
    context: &Arc<Context>,
    spec: &CqSpec,
    channel: Option<&VerbsChannel>,
    safe: impl FnOnce() -> (CqApi, Option<String>),
) -> Result<(VerbsCq, CqGranted), VerbError> {
    let limits = &context.limits;
    let in_range = (1..=limits.max_cqe()).contains(&spec.depth) && spec.vector < limits.vectors.max(1);
    let same_device = channel.is_none_or(|channel| Arc::ptr_eq(channel.context(), context));
    if !in_range || !same_device {
        return Err(VerbError::new("ibv_create_cq", libc::EINVAL));
    }
    let tag = CqTag::new(context.number());
    let mut maker = Maker { context, spec, channel, tag: &tag, refused: Vec::new(), why: Vec::new() };
    // How it may be polled: as wished, where that can be relied on.
    let (api, why) = match spec.api {
        CqApi::Classic => (CqApi::Classic, None),
        CqApi::ExtendedSingle => (CqApi::ExtendedSingle, None),
        CqApi::Auto => safe(),
        CqApi::Extended => match safe() {
            (CqApi::Extended, why) => (CqApi::Extended, why),
            (_, why) => (CqApi::ExtendedSingle, why),
        },
    };
    if let Some(why) = why {
        match api {
            CqApi::Classic => maker.refuse(Capability::ExtendedCq, why),
            _ => maker.why.push(why),
        }
    }
    let made = if api == CqApi::Classic { None } else { maker.negotiate()? };
    let made = match made {
        Some(made) => made,
        None => {
            for extra in EXTRAS {
                if spec.fields.intersects(extra.fields) || spec.flags.intersects(extra.flags) {
                    maker.refuse(extra.capability, "only an extended completion queue has it");
                }
            }
            Made { raw: maker.classic()?, extras: Vec::new(), domain: None, extended: false }
        }
    };
    let Maker { mut refused, why, .. } = maker;
    refused.sort_unstable();
    refused.dedup();
    let fields = made.extras.iter().fold(spec.fields & PollFields::STANDARD, |fields, extra| fields | extra.fields);
    let flags = made.extras.iter().fold(CqFlags::empty(), |flags, extra| flags | extra.flags);
    let stamps = if fields.contains(PollFields::WALLCLOCK) {
        ClockSource::DeviceWallclock
    } else if fields.contains(PollFields::TIMESTAMP) {
        ClockSource::DeviceTicks
    } else {
        ClockSource::None
    };
    let handle = Handle {
        raw: made.raw,
        tag,
        owner: Owner::new(flags.contains(CqFlags::SINGLE_THREADED)),
        attached: Mutex::default(),
        graves: Mutex::default(),
        channel: channel.cloned(),
        confuses_flags: context.quirks.why(Quirk::InvalidatedFlag).is_some(),
        _domain: made.domain,
        context: context.clone(),
    };
    let poller = match made.extended {
        true if api == CqApi::ExtendedSingle => Poller::Single,
        true => Poller::Extended(Reads::of(fields)),
        false => Poller::Classic(vec![Wc::default(); RUN].into()),
    };
    let cq =
        VerbsCq { handle: Arc::new(handle), poller, fields, stamps, waiting: Waiting::default(), alone: PhantomData };
    let api = if made.extended { api } else { CqApi::Classic };
    let depth = crate::provider::CompletionQueue::depth(&cq);
    Ok((cq, CqGranted { depth, fields, flags, api, stamps, refused, why }))
}
