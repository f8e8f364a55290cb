//! Protection domains, which create memory regions, queue pairs and related objects.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cq::SoftCq;
use crate::fabric::SoftSrq;
use crate::handle::SoftAh;
use crate::memory::SoftMr;
use crate::mw::SoftMw;
use crate::nic::RawSettings;
use crate::numbers::Identity;
use crate::open_device::OpenDevice;
use crate::profile::Profile;
use crate::qp::SoftQp;
use crate::quirk::SoftQuirk;
use dataplane_core::error::VerbError;
use dataplane_core::mem::Region;
use dataplane_core::verbs::{Access, Capability, MwKind, Path, ProtectionDomain, QpSpec, QpType, SendApi, SrqSpec};

/// A protection domain of a software device.
#[derive(Clone, Debug)]
pub struct SoftPd(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    open: Arc<OpenDevice>,
    /// The identity that keys are checked against. A parent domain has the identity of the domain that it extends.
    identity: Identity,
    is_parent: bool,
    /// The settings of the raw-packet queue pairs of this protection domain.
    raw: Arc<RawSettings>,
}

impl SoftPd {
    pub(super) fn new(device: &Arc<OpenDevice>, raw: &Arc<RawSettings>) -> Self {
        let (open, identity, raw) = (device.clone(), Identity::new(), raw.clone());
        Self(Arc::new(Domain { open, identity, is_parent: false, raw }))
    }

    /// Returns whether this is a parent domain of `device`.
    pub(super) fn is_parent_of(&self, device: &Arc<OpenDevice>) -> bool {
        self.0.is_parent && Arc::ptr_eq(&self.0.open, device)
    }
}

// SAFETY: a registration has an `Arc` of its region, so the memory stays mapped. Each access checks the key, the
// protection domain, the bounds of the registered part and the access rights.
unsafe impl ProtectionDomain for SoftPd {
    type Mr = SoftMr;
    type Qp = SoftQp;
    type Cq = SoftCq;
    type Srq = SoftSrq;
    type Ah = SoftAh;
    type Mw = SoftMw;

    fn keep_mapped(&self, _: Arc<Region>) {}

    fn register_part(&self, region: Arc<Region>, part: Range<usize>, access: Access) -> Result<SoftMr, VerbError> {
        let Domain { open, identity: pd, .. } = &*self.0;
        let device = &open.shared;
        device.check("ibv_reg_mr")?;
        let failed = |errno| Err(VerbError::new("ibv_reg_mr", errno));
        let remote = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let inside = part.start < part.end && part.end <= region.len();
        let unknown = access.bits() & !Access::all().bits() != 0;
        if !inside || unknown || (remote && !access.contains(Access::LOCAL_WRITE)) {
            return failed(libc::EINVAL);
        }
        if access.contains(Access::ON_DEMAND) && !device.has_quirk(SoftQuirk::OnDemandPaging) {
            return failed(libc::EOPNOTSUPP);
        }
        match device.faults.memlock {
            Some(0) => return failed(libc::EPERM),
            Some(most) if device.keys.bytes() + part.len() as u64 > most => return failed(libc::ENOMEM),
            _ => {}
        }
        if device.keys.len() >= device.limits.max_mr as usize {
            return failed(libc::ENOMEM);
        }
        device.keys.register(*pd, region, part, access).ok_or(VerbError::new("ibv_reg_mr", libc::ENOMEM))
    }

    fn alloc_parent(&self) -> Result<Self, VerbError> {
        const VERB: &str = "ibv_alloc_parent_domain";
        let Domain { open, identity, is_parent, raw } = &*self.0;
        open.shared.check(VERB)?;
        match (open.shared.has(Capability::ParentDomain), is_parent) {
            (false, _) => Err(VerbError::new(VERB, libc::EOPNOTSUPP)),
            (true, true) => Err(VerbError::new(VERB, libc::EINVAL)),
            (true, false) => {
                let (open, raw) = (open.clone(), raw.clone());
                Ok(Self(Arc::new(Domain { open, identity: *identity, is_parent: true, raw })))
            }
        }
    }

    fn alloc_mw(&self, kind: MwKind) -> Result<SoftMw, VerbError> {
        let Domain { open, identity: pd, .. } = &*self.0;
        let device = &open.shared;
        device.check("ibv_alloc_mw")?;
        let failed = |errno| VerbError::new("ibv_alloc_mw", errno);
        match device.has(Capability::MemoryWindow) {
            true => SoftMw::alloc(&device.keys, kind, *pd).ok_or(failed(libc::ENOMEM)),
            false => Err(failed(libc::EOPNOTSUPP)),
        }
    }

    fn create_ah(&self, path: &Path) -> Result<SoftAh, VerbError> {
        let Domain { open, identity: pd, .. } = &*self.0;
        let device = &open.shared;
        device.check("ibv_create_ah")?;
        // Drivers without datagrams, such as mana, have no address handles either.
        if open.link.fabric().is_some() && !device.has(Capability::Datagram) {
            return Err(VerbError::new("ibv_create_ah", libc::EOPNOTSUPP));
        }
        if !device.is_valid_path(path) {
            return Err(VerbError::new("ibv_create_ah", libc::EINVAL));
        }
        Ok(SoftAh::new(*pd, *path))
    }

    fn create_srq(&self, spec: &SrqSpec) -> Result<SoftSrq, VerbError> {
        let Domain { open, .. } = &*self.0;
        let device = &open.shared;
        let failed = |errno| Err(VerbError::new("ibv_create_srq", errno));
        device.check("ibv_create_srq")?;
        let Some(fabric) = open.link.fabric().filter(|_| device.has(Capability::Srq)) else {
            return failed(libc::EOPNOTSUPP);
        };
        let limits = &device.capabilities;
        if spec.depth == 0 || spec.depth > limits.max_srq_wr || spec.sges > limits.max_sge {
            return failed(libc::EINVAL);
        }
        if device.srqs.fetch_add(1, Ordering::Relaxed) >= limits.max_srq {
            device.srq_is_gone();
            return failed(libc::ENOMEM);
        }
        Ok(SoftSrq::new(device, fabric, spec))
    }

    fn create_qp(
        &self,
        spec: &QpSpec,
        send: &SoftCq,
        recv: &SoftCq,
        srq: Option<&SoftSrq>,
    ) -> Result<SoftQp, VerbError> {
        let Domain { open, identity: pd, raw: settings, .. } = &*self.0;
        let device = &open.shared;
        let failed = |errno| Err(VerbError::new("ibv_create_qp", errno));
        device.check("ibv_create_qp")?;
        let wanted = match spec.kind {
            QpType::RawPacket => Capability::RawPacket,
            QpType::Ud => Capability::Datagram,
            QpType::Rc => Capability::Rc,
            QpType::Uc => Capability::Uc,
            _ => return failed(libc::EOPNOTSUPP),
        };
        let (index, of) = spec.queue;
        let extended = spec.send_api == SendApi::Extended && !device.has(Capability::ExtendedSend);
        let creates = device.has(wanted) || open.spec.hidden_qp_types.contains(&wanted);
        if !creates || extended || (of > 1 && !device.has(Capability::Rss)) {
            return failed(libc::EOPNOTSUPP);
        }
        let raw = spec.kind == QpType::RawPacket;
        if raw && device.faults.no_net_raw {
            return failed(libc::EPERM);
        }
        if raw {
            RawSettings::check(&settings.spec, device, of).map_err(|why| why.verb_error())?;
        }
        let fabric = open.link.fabric().filter(|_| !raw);
        let (limits, caps) = (device.limits, spec.caps);
        let exceeds_limits = caps.send_depth.max(caps.recv_depth) > device.capabilities.max_qp_wr
            || caps.send_sges.max(caps.recv_sges) > limits.max_sge.min(u32::from(u8::MAX))
            || caps.inline > if device.has(Capability::Inline) { limits.max_inline } else { 0 };
        let foreign = [send, recv].iter().any(|cq| !Arc::ptr_eq(&cq.0.device, open))
            || srq.is_some_and(|srq| raw || !srq.is_of(device));
        if exceeds_limits || foreign || of == 0 || index >= of || (of > 1 && !raw) {
            return failed(libc::EINVAL);
        }
        let mut spec = *spec;
        if device.has_quirk(SoftQuirk::GrantsLessInline) {
            spec.caps.inline = caps.inline.min(32);
        }
        if device.profile == Profile::Rxe {
            // rxe stores scatter/gather elements and inline data in the same space.
            let bytes = (caps.send_sges * 16).max(caps.inline);
            (spec.caps.send_sges, spec.caps.inline) = (bytes / 16, bytes);
        }
        let created = open.queues.add(limits.max_qp, || {
            let qp = SoftQp::new(open, *pd, &spec, [send, recv], fabric, srq, settings);
            let shared = Arc::downgrade(&qp.shared);
            (qp, shared)
        });
        created.map_or(failed(libc::ENOMEM), Ok)
    }
}
