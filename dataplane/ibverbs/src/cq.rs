//! Completion queues: creation with the requested features, and fallbacks for features that are missing.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use ibverbs_sys::{IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, ibv_cq, ibv_cq_init_attr_ex};

use super::channel::{CqTag, VerbsChannel};
use super::context::{Context, check_destroyed};
use super::domain::{NO_DOMAIN, VerbsPd};
use super::ffi::{self, Wc};
use super::held_log;
use super::queues::CqHandle;
use super::quirk::Quirk;
use super::raw;
use dataplane_core::clock::ClockSource;
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{
    Capability, Completion, CqApi, CqFlags, CqGranted, CqSpec, MAX_RUN, PollFields, QueueOwner,
};

/// A completion queue of a device.
pub struct VerbsCq {
    pub(super) handle: Arc<CqHandle>,
    pub(super) poller: Poller,
    /// The fields that may be read.
    pub(super) fields: PollFields,
    /// The clock of the timestamps in a run of completions (`Completions`).
    pub(super) stamps: ClockSource,
    /// Completions that were polled but not yet returned.
    pub(super) copied: CopiedCompletions,
    /// Makes this type not `Sync`, because a completion queue belongs to one worker.
    not_sync: PhantomData<Cell<()>>,
}

/// Copies of completions that a `VerbsCursor` returns one by one, and the index of the next completion.
#[derive(Debug, Default)]
pub(super) struct CopiedCompletions {
    pub(super) list: Vec<Completion>,
    pub(super) next: usize,
}

impl CopiedCompletions {
    pub(super) fn is_empty(&self) -> bool {
        self.next >= self.list.len()
    }
}

/// How a completion queue is polled.
pub(super) enum Poller {
    /// With `ibv_poll_cq(3)` into this array.
    Classic(Box<[Wc]>),
    /// In batches, with `ibv_start_poll(3)` and the related functions.
    Extended(RunFields),
    /// In batches like [`Poller::Extended`], with the granted fields of `RecvInfo`. The loop of this variant is slower
    /// and takes more arguments, so queues without such fields do not use it.
    WithInfo,
    /// With `ibv_start_poll(3)`, one completion per poll.
    Single,
    /// The queue is broken and is not polled any more.
    Broken(VerbError),
}

/// The combination of length and timestamp that is read for each completion of a run (`Completions`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RunFields {
    LengthAndTicks,
    Length,
    /// Another combination. Each granted field is checked for each completion.
    Other,
}

impl RunFields {
    fn of(fields: PollFields) -> Self {
        let of_run = fields & (PollFields::BYTE_LEN | PollFields::TIMESTAMP | PollFields::WALLCLOCK);
        match () {
            () if of_run == PollFields::BYTE_LEN | PollFields::TIMESTAMP => Self::LengthAndTicks,
            () if of_run == PollFields::BYTE_LEN => Self::Length,
            () => Self::Other,
        }
    }
}

impl Drop for VerbsCq {
    fn drop(&mut self) {
        let deferred = {
            let _hold = held_log::hold();
            let mut deferred = self.handle.deferred();
            match self.handle.owner.release() {
                true => mem::take(&mut *deferred),
                // Another thread owns the completion queue, and may be using it through a queue pair at the moment.
                false if deferred.is_empty() => return,
                false => {
                    let (device, cq) = (self.handle.context().name.clone(), self.handle.number());
                    let count = deferred.len();
                    return held_log::emit(move || {
                        tracing::warn!(
                            device,
                            cq,
                            "{count} queue pairs are not destroyed, because one thread dropped their completion queue \
                             while another thread owns the completion queue"
                        );
                    });
                }
            }
        };
        for queue_pair in deferred {
            // A failure has already been logged.
            let _ = queue_pair.end();
        }
    }
}

impl VerbsCq {
    /// Returns whether the driver uses no lock for the queue.
    pub(super) fn is_single_threaded(&self) -> bool {
        self.handle.owner.is_exclusive()
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

/// A feature that a completion queue may have beyond the minimum.
#[derive(Clone, Copy, PartialEq, Eq)]
struct OptionalFeature {
    /// The capability of the feature. `None` for the fields of the path.
    capability: Option<Capability>,
    fields: PollFields,
    flags: CqFlags,
}

/// The fields that describe the path of a datagram on InfiniBand.
const PATH_FIELDS: PollFields = PollFields::SLID.union(PollFields::SL).union(PollFields::DLID_PATH_BITS);

/// The standard fields that every device with extended completion queues supports.
const COMMON_FIELDS: PollFields = PollFields::STANDARD.difference(PATH_FIELDS);

/// The optional features, from the least to the most important. If the driver refuses a queue, the first feature is
/// removed first.
const OPTIONAL_FEATURES: [OptionalFeature; 8] = {
    const fn field(capability: Capability, fields: PollFields) -> OptionalFeature {
        OptionalFeature { capability: Some(capability), fields, flags: CqFlags::empty() }
    }
    const fn flag(capability: Capability, flags: CqFlags) -> OptionalFeature {
        OptionalFeature { capability: Some(capability), fields: PollFields::empty(), flags }
    }
    [
        // irdma does not know `DLID_PATH_BITS`. mlx4 refuses `SLID` and `SL` together with `TIMESTAMP`.
        OptionalFeature { capability: None, fields: PATH_FIELDS, flags: CqFlags::empty() },
        field(Capability::TagMatching, PollFields::TM_INFO),
        field(Capability::WallclockTimestamps, PollFields::WALLCLOCK),
        field(Capability::FlowTag, PollFields::FLOW_TAG),
        field(Capability::Cvlan, PollFields::CVLAN),
        field(Capability::Timestamps, PollFields::TIMESTAMP),
        flag(Capability::IgnoreOverrun, CqFlags::IGNORE_OVERRUN),
        flag(Capability::SingleThreaded, CqFlags::SINGLE_THREADED),
    ]
};

/// Returns `true` if the creation may succeed with fewer features.
fn negotiable(error: &VerbError) -> bool {
    matches!(error.errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)
}

/// A completion queue that was just created.
struct CreatedCq {
    raw: NonNull<ibv_cq>,
    features: Vec<OptionalFeature>,
    domain: Option<VerbsPd>,
    extended: bool,
}

/// Negotiates the features of one completion queue with the driver.
struct CqNegotiator<'a> {
    context: &'a Arc<Context>,
    spec: &'a CqSpec,
    /// The parent domain that the program chose for the queue.
    domain: Option<&'a VerbsPd>,
    channel: Option<&'a VerbsChannel>,
    tag: &'a CqTag,
    refused: Vec<Capability>,
    why: Vec<String>,
}

impl CqNegotiator<'_> {
    /// Tries to create an extended queue.
    fn extended(&self, features: &[OptionalFeature], domain: Option<&VerbsPd>) -> Result<NonNull<ibv_cq>, VerbError> {
        // The QP number is always requested, because it identifies the queue pair of a failed completion.
        let common = self.spec.fields & COMMON_FIELDS | PollFields::QP_NUM;
        let fields = features.iter().fold(common, |fields, feature| fields | feature.fields & self.spec.fields);
        let flags = features.iter().fold(CqFlags::empty(), |flags, feature| flags | feature.flags);
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
        // SAFETY: the context, the channel and the protection domain are valid. The tag stays valid until the queue is
        // destroyed. If the driver has no function to read a requested field, the queue is destroyed immediately.
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
        // SAFETY: same as in `extended`.
        unsafe { ffi::ibv_create_cq(self.context.raw(), depth, tag, channel, vector) }
    }

    fn destroy(&self, cq: NonNull<ibv_cq>) {
        // SAFETY: the queue was just created, and nothing else refers to it.
        check_destroyed(unsafe { ffi::ibv_destroy_cq(cq.as_ptr()) }, &self.context.name);
    }

    fn refuse(&mut self, capability: Capability, why: impl fmt::Display) {
        self.refused.push(capability);
        self.why.push(format!("missing {capability}: {why}"));
    }

    /// Records that the queue lacks a feature.
    fn refuse_feature(&mut self, feature: OptionalFeature, why: impl fmt::Display) {
        match feature.capability {
            Some(capability) => self.refuse(capability, why),
            None => self.why.push(format!("missing the fields slid, sl and dlid_path_bits: {why}")),
        }
    }

    /// Creates an extended queue with as many of the requested features as possible. Returns `None` if the driver
    /// refuses an extended queue even without optional features.
    fn negotiate(&mut self) -> Result<Option<CreatedCq>, VerbError> {
        let asked = |feature: &OptionalFeature| {
            self.spec.fields.intersects(feature.fields) || self.spec.flags.intersects(feature.flags)
        };
        let mut features: Vec<OptionalFeature> = OPTIONAL_FEATURES.into_iter().filter(asked).collect();
        for (quirk, capability) in [
            (Quirk::WallclockStamps, Capability::WallclockTimestamps),
            (Quirk::IgnoredOverrunFlag, Capability::IgnoreOverrun),
        ] {
            if let Some(why) = self.context.quirks.why(quirk)
                && let Some(at) = features.iter().position(|feature| feature.capability == Some(capability))
            {
                features.remove(at);
                self.refuse(capability, why);
            }
        }
        let mut given_up = Vec::new();
        let mut raw = loop {
            match self.extended(&features, self.domain) {
                Ok(raw) => break raw,
                Err(error) if !negotiable(&error) => return Err(error),
                Err(error) if features.is_empty() => {
                    self.refuse(Capability::ExtendedCq, error);
                    return Ok(None);
                }
                Err(error) => given_up.push((features.remove(0), error)),
            }
        };
        // The driver accepted the queue after the last feature was removed, so that feature caused the refusal. The
        // driver may still support the features that were removed earlier. The most important of these features is
        // tried first, because a driver may refuse two features only together.
        let last_given_up = given_up.pop();
        for (feature, error) in given_up.into_iter().rev() {
            features.push(feature);
            match self.extended(&features, self.domain) {
                Ok(better) => self.destroy(mem::replace(&mut raw, better)),
                Err(_) => {
                    features.pop();
                    self.refuse_feature(feature, error);
                }
            }
        }
        let mut domain = self.domain.cloned();
        if let Some((feature, error)) = last_given_up {
            let single = feature.flags == CqFlags::SINGLE_THREADED;
            match if single { self.in_domain(&features) } else { Err(error) } {
                Ok((better, of)) => {
                    self.destroy(mem::replace(&mut raw, better));
                    features.push(feature);
                    domain = Some(of);
                }
                Err(other) => self.refuse_feature(feature, if single { other } else { error }),
            }
        }
        Ok(Some(CreatedCq { raw, features, domain, extended: true }))
    }

    /// Creates a queue without a lock in a single-threaded protection domain. Used if the driver refuses the flag
    /// `SINGLE_THREADED`.
    fn in_domain(&self, features: &[OptionalFeature]) -> Result<(NonNull<ibv_cq>, VerbsPd), VerbError> {
        let domain = match self.domain {
            Some(chosen) => chosen.for_one_thread()?,
            None => VerbsPd::alloc(self.context)?.for_one_thread()?,
        };
        Ok((self.extended(features, Some(&domain))?, domain))
    }
}

/// Creates a completion queue, in the parent domain `domain` if a domain is given. `safe` returns the best poll
/// interface that works reliably. If a better interface is not reliable, `safe` also returns the reason.
pub(super) fn create(
    context: &Arc<Context>,
    spec: &CqSpec,
    domain: Option<&VerbsPd>,
    channel: Option<&VerbsChannel>,
    safe: impl FnOnce() -> (CqApi, Option<String>),
) -> Result<(VerbsCq, CqGranted), VerbError> {
    // Ethernet frames have no LID. mlx5 fills these fields with other values: libmlx5 returns the packet type of RoCE as
    // the service level (`handle_responder`).
    let of_path = if context.is_ethernet { PATH_FIELDS } else { PollFields::empty() };
    let spec = &CqSpec { fields: spec.fields - of_path, ..*spec };
    let limits = &context.limits;
    let in_range = (1..=limits.max_cqe()).contains(&spec.depth) && spec.vector < limits.vectors.max(1);
    let same_device = channel.is_none_or(|channel| Arc::ptr_eq(channel.context(), context));
    if !in_range || !same_device {
        return Err(VerbError::new("ibv_create_cq", libc::EINVAL));
    }
    if let Some(domain) = domain
        && !(domain.is_parent() && Arc::ptr_eq(domain.context(), context))
    {
        return Err(VerbError::new("ibv_create_cq_ex", libc::EINVAL));
    }
    let tag = CqTag::new(context.number(), spec.context);
    let mut negotiator =
        CqNegotiator { context, spec, domain, channel, tag: &tag, refused: Vec::new(), why: Vec::new() };
    // Use the requested poll interface if it works reliably.
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
            CqApi::Classic => negotiator.refuse(Capability::ExtendedCq, why),
            _ => negotiator.why.push(why),
        }
    }
    let created = if api == CqApi::Classic { None } else { negotiator.negotiate()? };
    let created = match created {
        Some(created) => created,
        // `ibv_create_cq` has no argument for a parent domain.
        None if domain.is_some() => return Err(VerbError::new("ibv_create_cq_ex", libc::EOPNOTSUPP)),
        None => {
            for feature in OPTIONAL_FEATURES {
                if let Some(capability) = feature.capability
                    && (spec.fields.intersects(feature.fields) || spec.flags.intersects(feature.flags))
                {
                    negotiator.refuse(capability, "only an extended completion queue supports this capability");
                }
            }
            // `struct ibv_wc` has the fields of the path.
            let features = OPTIONAL_FEATURES.into_iter().filter(|feature| feature.capability.is_none()).collect();
            CreatedCq { raw: negotiator.classic()?, features, domain: None, extended: false }
        }
    };
    // Every queue reports the flags of completions. One flag is set if the checksums of a received packet are correct.
    let mut of_flags = spec.fields & PollFields::CHECKSUM;
    if !of_flags.is_empty() && !raw::reported_caps(&limits.attr).rx_checksum {
        negotiator.refuse(Capability::RxChecksum, "the device does not check the checksums of received packets");
        of_flags = PollFields::empty();
    }
    if spec.fields.contains(PollFields::RSS_HASH) {
        negotiator.refuse(Capability::RssHash, "completions of libibverbs have no RSS hash");
    }
    let CqNegotiator { mut refused, why, .. } = negotiator;
    refused.sort_unstable();
    refused.dedup();
    let granted = created.features.iter().fold(COMMON_FIELDS, |fields, feature| fields | feature.fields);
    let fields = spec.fields & granted | of_flags;
    let flags = created.features.iter().fold(CqFlags::empty(), |flags, feature| flags | feature.flags);
    let stamps = if fields.contains(PollFields::WALLCLOCK) {
        ClockSource::DeviceWallclock
    } else if fields.contains(PollFields::TIMESTAMP) {
        ClockSource::DeviceTicks
    } else {
        ClockSource::None
    };
    let handle = CqHandle {
        raw: created.raw,
        tag,
        owner: QueueOwner::new(flags.contains(CqFlags::SINGLE_THREADED)),
        attached: Mutex::default(),
        deferred: Mutex::default(),
        channel: channel.cloned(),
        confuses_flags: context.quirks.why(Quirk::InvalidatedFlag).is_some(),
        _domain: created.domain,
        context: context.clone(),
    };
    let poller = match created.extended {
        true if api == CqApi::ExtendedSingle => Poller::Single,
        true if fields.intersects(PollFields::RECV_INFO) => Poller::WithInfo,
        true => Poller::Extended(RunFields::of(fields)),
        false => Poller::Classic(vec![Wc::default(); MAX_RUN].into()),
    };
    let cq = VerbsCq {
        handle: Arc::new(handle),
        poller,
        fields,
        stamps,
        copied: CopiedCompletions::default(),
        not_sync: PhantomData,
    };
    let api = if created.extended { api } else { CqApi::Classic };
    let depth = dataplane_core::verbs::CompletionQueue::depth(&cq);
    Ok((cq, CqGranted { depth, fields, flags, api, stamps, refused, why }))
}
