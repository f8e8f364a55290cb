//! Protection domains, thread domains, and registered memory.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use ibverbs_sys::{ibv_mr, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};

use super::ah::VerbsAh;
use super::context::{Context, ended};
use super::cq::VerbsCq;
use super::ffi;
use super::qp::VerbsQp;
use super::raw::RawSpec;
use super::srq::VerbsSrq;
use super::window::VerbsMw;
use crate::error::VerbError;
use crate::mem::Region;
use crate::provider::{Access, MemoryRegion, MwKind, Path, ProtectionDomain, QpSpec, SrqSpec};
use crate::units::{Lkey, Rkey};

/// A protection domain of a device. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct VerbsPd(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    raw: NonNull<ibv_pd>,
    /// Of a parent domain: its thread domain, and the domain that it stands for.
    parent: Option<(NonNull<ibv_td>, VerbsPd)>,
    /// What queue pairs of raw packets in it do.
    raw_spec: Arc<RawSpec>,
    context: Arc<Context>,
}

// SAFETY: a domain is only ever named to the library, which locks what it changes.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let name = &self.context.name;
        // SAFETY: what is in a domain holds it, so there is nothing any more.
        ended(unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) }, name);
        if let Some((td, _)) = &self.parent {
            // SAFETY: the parent domain that used it is gone.
            ended(unsafe { ffi::ibv_dealloc_td(td.as_ptr()) }, name);
        }
    }
}

impl VerbsPd {
    pub(super) fn alloc(context: &Arc<Context>) -> Result<Self, VerbError> {
        Self::alloc_for_raw(context, Arc::default())
    }

    /// A domain whose queue pairs of raw packets do this.
    pub(super) fn alloc_for_raw(context: &Arc<Context>, raw_spec: Arc<RawSpec>) -> Result<Self, VerbError> {
        // SAFETY: the context is open.
        let raw = unsafe { ffi::ibv_alloc_pd(context.raw()) }?;
        Ok(Self(Arc::new(Handle { raw, parent: None, raw_spec, context: context.clone() })))
    }

    pub(super) fn raw_spec(&self) -> &Arc<RawSpec> {
        &self.0.raw_spec
    }

    /// The same domain for what one thread alone uses, so that drivers need no lock there: a parent domain with a thread
    /// domain of its own. Objects of one thread domain may share more than locks, so each queue has its own.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the driver has no such domains.
    pub(super) fn for_one_thread(&self) -> Result<Self, VerbError> {
        let context = &self.0.context;
        // SAFETY: context and domain are alive, and the structures are zero but for what they must say.
        unsafe {
            let td = ffi::ibv_alloc_td(context.raw(), &mut ibv_td_init_attr::default())?;
            let mut attr = ibv_parent_domain_init_attr { pd: self.raw(), td: td.as_ptr(), ..Default::default() };
            match ffi::ibv_alloc_parent_domain(context.raw(), &mut attr) {
                Ok(raw) => {
                    let parent = Some((td, self.clone()));
                    Ok(Self(Arc::new(Handle {
                        raw,
                        parent,
                        raw_spec: self.0.raw_spec.clone(),
                        context: context.clone(),
                    })))
                }
                Err(error) => {
                    ended(ffi::ibv_dealloc_td(td.as_ptr()), &context.name);
                    Err(error)
                }
            }
        }
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.0.raw.as_ptr()
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.0.context
    }

    /// Whether both protect the same things: a parent domain is as the domain that it stands for.
    pub(super) fn is(&self, other: &Self) -> bool {
        fn base(pd: &VerbsPd) -> *const Handle {
            pd.0.parent.as_ref().map_or(Arc::as_ptr(&pd.0), |(_, pd)| base(pd))
        }
        base(self) == base(other)
    }

    /// Registers memory of another device, of which `fd` is a descriptor of the dma-buf kind: `ibv_reg_dmabuf_mr(3)`.
    /// The peer, and scatter/gather elements, name its byte `offset` as `iova`.
    ///
    /// # Errors
    /// `EINVAL`: no bytes, or `iova` and `offset` are not at the same place of a page. `EOPNOTSUPP`: not by this device.
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<VerbsDmabuf, VerbError> {
        const VERB: &str = "ibv_reg_dmabuf_mr";
        /// The smallest page there is.
        const PAGE: u64 = 4096;
        if length == 0 || offset % PAGE != iova % PAGE || !sound(access) {
            return Err(VerbError::new(VERB, libc::EINVAL));
        }
        let access = access.bits().cast_signed();
        // SAFETY: the domain is alive. The memory is the exporter's, which keeps it as long as it is registered.
        let raw = unsafe { ffi::ibv_reg_dmabuf_mr(self.raw(), offset, length, iova, fd.as_raw_fd(), access) }?;
        Ok(VerbsDmabuf(Arc::new(Registration { raw, pd: self.clone() })))
    }
}

/// Whether writing by the peer comes with writing by this side: the C interface has no other.
fn sound(access: Access) -> bool {
    access.contains(Access::LOCAL_WRITE) || !access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

impl ProtectionDomain for VerbsPd {
    type Mr = VerbsMr;
    type Qp = VerbsQp;
    type Cq = VerbsCq;
    type Srq = VerbsSrq;
    type Ah = VerbsAh;
    type Mw = VerbsMw;

    fn register_part(&self, region: Arc<Region>, part: Range<usize>, access: Access) -> Result<VerbsMr, VerbError> {
        const VERB: &str = "ibv_reg_mr";
        if part.is_empty() || part.end > region.len() || !sound(access) {
            return Err(VerbError::new(VERB, libc::EINVAL));
        }
        let start = region.base().as_ptr().wrapping_add(part.start);
        // SAFETY: the domain is alive; the memory is part of a region that the registration keeps mapped.
        let raw = unsafe { ffi::ibv_reg_mr(self.raw(), start.cast(), part.len(), access.bits()) }?;
        let registration = Registration { raw, pd: self.clone() };
        Ok(VerbsMr(Arc::new(Mapped { registration, region })))
    }

    fn alloc_mw(&self, kind: MwKind) -> Result<VerbsMw, VerbError> {
        VerbsMw::alloc(self, kind)
    }

    fn create_ah(&self, path: &Path) -> Result<VerbsAh, VerbError> {
        VerbsAh::create(self, path)
    }

    fn create_srq(&self, spec: &SrqSpec) -> Result<VerbsSrq, VerbError> {
        VerbsSrq::create(self, spec)
    }

    fn create_qp(
        &self,
        spec: &QpSpec,
        send: &VerbsCq,
        recv: &VerbsCq,
        srq: Option<&VerbsSrq>,
    ) -> Result<VerbsQp, VerbError> {
        VerbsQp::create(self, spec, send, recv, srq)
    }
}

/// A registration with a domain.
#[derive(Debug)]
struct Registration {
    raw: NonNull<ibv_mr>,
    pd: VerbsPd,
}

// SAFETY: a registration is a few numbers that do not change, until it ends.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Registration {
    /// A member of the C structure.
    fn get<T>(&self, member: impl FnOnce(&ibv_mr) -> T) -> T {
        // SAFETY: the registration is alive, and nobody changes its members.
        member(unsafe { self.raw.as_ref() })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: this is the only owner, and windows hold what they are bound to. Requests that still name the key fail.
        ended(unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) }, &self.pd.context().name);
    }
}

/// Memory registered with a device. Clones are the same registration.
#[derive(Clone)]
pub struct VerbsMr(Arc<Mapped>);

/// The registration ends before the memory is unmapped.
struct Mapped {
    registration: Registration,
    region: Arc<Region>,
}

impl VerbsMr {
    pub(super) fn raw(&self) -> *mut ibv_mr {
        self.0.registration.raw.as_ptr()
    }

    pub(super) fn pd(&self) -> &VerbsPd {
        &self.0.registration.pd
    }

    /// The registered part, as addresses of this process.
    pub(super) fn range(&self) -> Range<u64> {
        self.0.registration.get(|mr| mr.addr.addr() as u64..mr.addr.addr() as u64 + mr.length as u64)
    }
}

impl fmt::Debug for VerbsMr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerbsMr").field("lkey", &self.lkey()).field("rkey", &self.rkey()).finish_non_exhaustive()
    }
}

impl MemoryRegion for VerbsMr {
    fn lkey(&self) -> Lkey {
        self.0.registration.get(|mr| Lkey(mr.lkey))
    }

    fn rkey(&self) -> Rkey {
        self.0.registration.get(|mr| Rkey(mr.rkey))
    }

    fn region(&self) -> &Arc<Region> {
        &self.0.region
    }
}

/// Memory of another device, registered. Clones are the same registration.
#[derive(Clone, Debug)]
pub struct VerbsDmabuf(Arc<Registration>);

impl VerbsDmabuf {
    /// The key that names it in a scatter/gather element.
    pub fn lkey(&self) -> Lkey {
        self.0.get(|mr| Lkey(mr.lkey))
    }

    /// The key by which a peer names it.
    pub fn rkey(&self) -> Rkey {
        self.0.get(|mr| Rkey(mr.rkey))
    }
}

/// Sees to it that a child process does not take registered memory with it: kernels since 5.12 copy such pages when a
/// process forks, and on older ones the library must be told before anything is registered.
///
/// # Errors
/// The kernel is an old one, and something is registered already.
pub(super) fn make_forks_safe() -> Result<(), VerbError> {
    /// `IBV_FORK_DISABLED` of `enum ibv_fork_status`.
    const DISABLED: u32 = 0;
    if ffi::ibv_is_fork_initialized() != DISABLED {
        return Ok(());
    }
    // SAFETY: it takes nothing, and locks what it changes.
    unsafe { ffi::ibv_fork_init() }
}

/// The null pointer as a domain: none.
pub(super) const NO_DOMAIN: *mut ibv_pd = ptr::null_mut();
