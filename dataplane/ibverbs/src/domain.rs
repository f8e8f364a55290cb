//! Protection domains, thread domains, and registered memory.
#![allow(unsafe_code)]

use std::fmt;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use ibverbs_sys::{ibv_mr, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};

use super::context::{Context, check_destroyed};
use super::ffi;
use super::raw_queue::RawSetup;
use dataplane_core::error::VerbError;
use dataplane_core::mem::Region;
use dataplane_core::units::{Lkey, Rkey};
use dataplane_core::verbs::{Access, MemoryRegion};

/// A protection domain of a device. All clones share one domain.
#[derive(Clone, Debug)]
pub struct VerbsPd(Arc<PdHandle>);

#[derive(Debug)]
struct PdHandle {
    raw: NonNull<ibv_pd>,
    /// For a parent domain: the protection domain that the parent domain extends.
    base: Option<VerbsPd>,
    /// The thread domain of a parent domain, if any.
    thread: Option<NonNull<ibv_td>>,
    /// The settings of raw-packet queue pairs in this domain.
    raw_setup: RawSetup,
    /// See [`VerbsPd::keep_mapped`].
    mapped: Mutex<Vec<Arc<Region>>>,
    context: Arc<Context>,
}

// SAFETY: a protection domain is only passed to the library. The library locks the parts that change.
unsafe impl Send for PdHandle {}
// SAFETY: same as above.
unsafe impl Sync for PdHandle {}

impl Drop for PdHandle {
    fn drop(&mut self) {
        let name = &self.context.name;
        // SAFETY: every object of a protection domain holds the domain, so none of the objects exist any more.
        if !check_destroyed(unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) }, name) {
            // A queue pair may still exist, because its destruction failed.
            mem::forget(mem::take(&mut self.mapped));
        }
        if let Some(td) = self.thread {
            // SAFETY: the thread domain is freed only here. If the parent domain could not be freed above, the library
            // refuses this call with `EBUSY`.
            check_destroyed(unsafe { ffi::ibv_dealloc_td(td.as_ptr()) }, name);
        }
    }
}

impl VerbsPd {
    pub(super) fn alloc(context: &Arc<Context>) -> Result<Self, VerbError> {
        Self::alloc_for_raw(context, RawSetup::default())
    }

    /// Allocates a protection domain with settings for raw-packet queue pairs.
    pub(super) fn alloc_for_raw(context: &Arc<Context>, raw_setup: RawSetup) -> Result<Self, VerbError> {
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_alloc_pd(context.raw()) }?;
        Ok(Self(Arc::new(PdHandle {
            raw,
            base: None,
            thread: None,
            raw_setup,
            mapped: Mutex::default(),
            context: context.clone(),
        })))
    }

    pub(super) fn raw_setup(&self) -> &RawSetup {
        &self.0.raw_setup
    }

    /// Returns a protection domain for objects that only one thread uses, so that drivers need no locks. The result is
    /// a parent domain, which extends this domain with a thread domain. Each call creates a new thread domain, because
    /// different threads may use the results of two calls, and the objects of one thread domain may share driver
    /// resources without a lock.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver does not support thread domains.
    pub(super) fn for_one_thread(&self) -> Result<Self, VerbError> {
        let context = &self.0.context;
        // SAFETY: the context is valid. The structure has no members.
        let td = unsafe { ffi::ibv_alloc_td(context.raw(), &mut ibv_td_init_attr::default()) }?;
        self.extend(Some(td)).inspect_err(|_| {
            // SAFETY: no parent domain uses the thread domain.
            check_destroyed(unsafe { ffi::ibv_dealloc_td(td.as_ptr()) }, &context.name);
        })
    }

    /// Returns a parent domain that extends this domain and has no thread domain. Drivers therefore lock the objects of
    /// the parent domain.
    pub(super) fn alloc_parent(&self) -> Result<Self, VerbError> {
        match self.is_parent() {
            true => Err(VerbError::new("ibv_alloc_parent_domain", libc::EINVAL)),
            false => self.extend(None),
        }
    }

    /// Allocates a parent domain that extends this domain. If this domain is itself a parent domain, the new parent
    /// domain extends the protection domain that this domain extends.
    fn extend(&self, thread: Option<NonNull<ibv_td>>) -> Result<Self, VerbError> {
        let (context, base) = (&self.0.context, self.0.base.as_ref().unwrap_or(self).clone());
        let td = thread.map_or(ptr::null_mut(), NonNull::as_ptr);
        let mut attr = ibv_parent_domain_init_attr { pd: base.raw(), td, ..Default::default() };
        // SAFETY: the context, the protection domain and the thread domain are valid. The other members are zero.
        let raw = unsafe { ffi::ibv_alloc_parent_domain(context.raw(), &mut attr) }?;
        let raw_setup = self.0.raw_setup.clone();
        Ok(Self(Arc::new(PdHandle {
            raw,
            base: Some(base),
            thread,
            raw_setup,
            mapped: Mutex::default(),
            context: context.clone(),
        })))
    }

    /// Keeps a region mapped as long as this domain exists. Every queue pair holds its domain until the queue pair is
    /// destroyed, even if the queue pair was dropped before and is destroyed later, together with its completion queue.
    /// A parent domain holds the domain that it extends.
    pub(super) fn keep_mapped(&self, region: Arc<Region>) {
        let base = self.0.base.as_ref().unwrap_or(self);
        base.0.mapped.lock().unwrap_or_else(PoisonError::into_inner).push(region);
    }

    /// Returns whether this is a parent domain.
    pub(super) fn is_parent(&self) -> bool {
        self.0.base.is_some()
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Returns whether both handles refer to the same protection domain. A parent domain counts as the domain that it
    /// extends.
    pub(super) fn is(&self, other: &Self) -> bool {
        let base = |pd: &Self| Arc::as_ptr(&pd.0.base.as_ref().unwrap_or(pd).0);
        base(self) == base(other)
    }

    /// Registers memory of another device with a dma-buf file descriptor: `ibv_reg_dmabuf_mr(3)`. Scatter/gather
    /// elements and the peer access the byte at `offset` with the address `iova`.
    ///
    /// # Errors
    /// `EINVAL` if `length` is 0, if `iova` and `offset` are at different positions within a page, or if `access`
    /// contains remote writes or atomics without local writes. `EOPNOTSUPP` if the device does not support dma-buf.
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<VerbsDmabuf, VerbError> {
        const VERB: &str = "ibv_reg_dmabuf_mr";
        /// The smallest page size.
        const PAGE: u64 = 4096;
        if length == 0 || offset % PAGE != iova % PAGE || !sound(access) {
            return Err(VerbError::new(VERB, libc::EINVAL));
        }
        let access = access.bits().cast_signed();
        // SAFETY: the protection domain is valid. The device that exports the memory keeps the memory during the
        // registration.
        let raw = unsafe { ffi::ibv_reg_dmabuf_mr(self.raw(), offset, length, iova, fd.as_raw_fd(), access) }?;
        Ok(VerbsDmabuf(Arc::new(Registration { raw, memory: (), pd: self.clone() })))
    }
}

/// Returns whether the access flags are valid: remote writes and remote atomics require local write access.
fn sound(access: Access) -> bool {
    access.contains(Access::LOCAL_WRITE) || !access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// A memory registration in a protection domain.
#[derive(Debug)]
struct Registration<M: Clone> {
    raw: NonNull<ibv_mr>,
    /// The owner of the memory, if this process owns the memory. Dropped after the deregistration.
    memory: M,
    pd: VerbsPd,
}

// SAFETY: a registration consists of a few numbers that do not change until it is deregistered. The owner of the memory
// may be sent.
unsafe impl<M: Clone + Send> Send for Registration<M> {}
// SAFETY: same as above. The owner of the memory may be shared.
unsafe impl<M: Clone + Sync> Sync for Registration<M> {}

impl<M: Clone> Registration<M> {
    /// Reads a member of the C structure `ibv_mr`.
    fn get<T>(&self, member: impl FnOnce(&ibv_mr) -> T) -> T {
        // SAFETY: the registration is valid, and no code changes its members.
        member(unsafe { self.raw.as_ref() })
    }
}

impl<M: Clone> Drop for Registration<M> {
    fn drop(&mut self) {
        // SAFETY: the last owner is being dropped. A memory window holds every region that it may be bound to. Requests
        // that still use the key fail.
        let ended = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
        if !check_destroyed(ended, &self.pd.context().name) {
            // The device may still access the memory, so the memory must stay mapped until the process ends.
            mem::forget(self.memory.clone());
        }
    }
}

/// Memory that is registered with a device. All clones share one registration.
#[derive(Clone)]
pub struct VerbsMr(Arc<Registration<Arc<Region>>>);

impl VerbsMr {
    pub(super) fn register(
        pd: &VerbsPd,
        region: Arc<Region>,
        part: Range<usize>,
        access: Access,
    ) -> Result<Self, VerbError> {
        const VERB: &str = "ibv_reg_mr";
        if part.is_empty() || part.end > region.len() || !sound(access) {
            return Err(VerbError::new(VERB, libc::EINVAL));
        }
        let start = region.base().as_ptr().wrapping_add(part.start);
        // SAFETY: the protection domain is valid. The registration holds the region that contains the memory.
        let raw = unsafe { ffi::ibv_reg_mr(pd.raw(), start.cast(), part.len(), access.bits()) }?;
        Ok(Self(Arc::new(Registration { raw, memory: region, pd: pd.clone() })))
    }

    pub(super) fn raw(&self) -> *mut ibv_mr {
        self.0.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &VerbsPd {
        &self.0.pd
    }

    /// Returns whether both handles refer to the same registration.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the registered range of virtual addresses.
    pub(super) fn range(&self) -> Range<u64> {
        self.0.get(|mr| mr.addr.addr() as u64..mr.addr.addr() as u64 + mr.length as u64)
    }
}

impl fmt::Debug for VerbsMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsMr").field("lkey", &self.lkey()).field("rkey", &self.rkey()).finish_non_exhaustive()
    }
}

#[allow(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: all clones share one registration, and the region of a registration never changes.
unsafe impl MemoryRegion for VerbsMr {
    fn lkey(&self) -> Lkey {
        self.0.get(|mr| Lkey(mr.lkey))
    }

    fn rkey(&self) -> Rkey {
        self.0.get(|mr| Rkey(mr.rkey))
    }

    fn region(&self) -> &Arc<Region> {
        &self.0.memory
    }
}

/// Registered memory of another device. All clones share one registration.
#[derive(Clone, Debug)]
pub struct VerbsDmabuf(Arc<Registration<()>>);

impl VerbsDmabuf {
    /// Returns the key for scatter/gather elements.
    pub fn lkey(&self) -> Lkey {
        self.0.get(|mr| Lkey(mr.lkey))
    }

    /// Returns the key that a peer uses for remote access.
    pub fn rkey(&self) -> Rkey {
        self.0.get(|mr| Rkey(mr.rkey))
    }
}

/// Enables fork support, which keeps registered memory usable in this process after a fork. Kernels since 5.12 need no
/// fork support, because they copy registered pages at a fork. On older kernels, fork support must be enabled before
/// the first registration.
///
/// # Errors
/// The kernel is older than 5.12, and memory is already registered.
pub(super) fn make_forks_safe() -> Result<(), VerbError> {
    /// `IBV_FORK_DISABLED` of `enum ibv_fork_status`.
    const DISABLED: u32 = 0;
    if ffi::ibv_is_fork_initialized() != DISABLED {
        return Ok(());
    }
    // SAFETY: the function has no arguments. The function locks the state that it changes.
    unsafe { ffi::ibv_fork_init() }
}

/// The null pointer, which stands for "no protection domain".
pub(super) const NO_DOMAIN: *mut ibv_pd = ptr::null_mut();
