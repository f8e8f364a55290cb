//! Protection domains: where memory, queue pairs and what they use are made.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::error::VerbError;
use crate::mem::Region;
use crate::provider::soft::cq::SoftCq;
use crate::provider::soft::device::Shared;
use crate::provider::soft::fabric::SoftSrq;
use crate::provider::soft::handle::SoftAh;
use crate::provider::soft::memory::SoftMr;
use crate::provider::soft::qp::SoftQp;
use crate::provider::soft::spec::Profile;
use crate::provider::soft::window::{SoftMw, Windows};
use crate::provider::{Access, Capability, MwKind, Path, ProtectionDomain, QpSpec, QpType, SendApi, SrqSpec};

/// A protection domain of a software device.
#[derive(Clone, Debug)]
pub struct SoftPd(Arc<(Arc<Shared>, u32)>);

impl SoftPd {
    pub(super) fn new(device: &Arc<Shared>) -> Self {
        Self(Arc::new((device.clone(), device.number())))
    }
}

impl ProtectionDomain for SoftPd {
    type Mr = SoftMr;
    type Qp = SoftQp;
    type Cq = SoftCq;
    type Srq = SoftSrq;
    type Ah = SoftAh;
    type Mw = SoftMw;

    fn register_part(&self, region: Arc<Region>, part: Range<usize>, access: Access) -> Result<SoftMr, VerbError> {
        let (device, pd) = &*self.0;
        device.check("ibv_reg_mr")?;
        let failed = |errno| Err(VerbError::new("ibv_reg_mr", errno));
        let remote = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let inside = part.start < part.end && part.end <= region.len();
        let unknown = access.bits() & !Access::all().bits() != 0;
        if !inside || unknown || (remote && !access.contains(Access::LOCAL_WRITE)) {
            return failed(libc::EINVAL);
        }
        if access.contains(Access::ON_DEMAND) {
            return failed(libc::EOPNOTSUPP);
        }
        match device.spec.faults.memlock {
            Some(0) => return failed(libc::EPERM),
            Some(most) if device.keys.bytes() + part.len() as u64 > most => return failed(libc::ENOMEM),
            _ => {}
        }
        if device.keys.len() >= device.spec.limits.max_mr as usize {
            return failed(libc::ENOMEM);
        }
        Ok(device.keys.register(*pd, region, part, access))
    }

    fn alloc_mw(&self, kind: MwKind) -> Result<SoftMw, VerbError> {
        let (device, pd) = &*self.0;
        device.check("ibv_alloc_mw")?;
        match device.has(Capability::MemoryWindow) {
            true => Ok(Windows::add(&device.keys, kind, *pd)),
            false => Err(VerbError::new("ibv_alloc_mw", libc::EOPNOTSUPP)),
        }
    }

    fn create_ah(&self, path: &Path) -> Result<SoftAh, VerbError> {
        let (device, pd) = &*self.0;
        device.check("ibv_create_ah")?;
        let source = device.gid_at(path.source_gid_index);
        if path.port != 1 || !path.global || source.is_none() || path.gid.is_zero() || path.flow_label >> 20 != 0 {
            return Err(VerbError::new("ibv_create_ah", libc::EINVAL));
        }
        Ok(SoftAh::new(*pd, *path))
    }

    fn create_srq(&self, spec: &SrqSpec) -> Result<SoftSrq, VerbError> {
        let (device, _) = &*self.0;
        let failed = |errno| Err(VerbError::new("ibv_create_srq", errno));
        device.check("ibv_create_srq")?;
        let Some(fabric) = device.link.fabric().filter(|_| device.has(Capability::Srq)) else {
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
        let (device, pd) = &*self.0;
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
        if !device.has(wanted) || extended || (of > 1 && !device.has(Capability::Rss)) {
            return failed(libc::EOPNOTSUPP);
        }
        let raw = spec.kind == QpType::RawPacket;
        if raw && device.spec.faults.no_net_raw {
            return failed(libc::EPERM);
        }
        let fabric = device.link.fabric().filter(|_| !raw);
        let (limits, caps) = (device.spec.limits, spec.caps);
        let too_much = caps.send_depth.max(caps.recv_depth) > device.capabilities.max_qp_wr
            || caps.send_sges.max(caps.recv_sges) > limits.max_sge.min(u32::from(u8::MAX))
            || caps.inline > if device.has(Capability::Inline) { limits.max_inline } else { 0 };
        let foreign = [send, recv].iter().any(|cq| !Arc::ptr_eq(&cq.0.device, device))
            || srq.is_some_and(|srq| raw || !srq.is_of(device));
        if too_much || foreign || of == 0 || index >= of || (of > 1 && !raw) {
            return failed(libc::EINVAL);
        }
        let mut queues = device.queues.lock().unwrap_or_else(PoisonError::into_inner);
        queues.live.retain(|qp| qp.strong_count() > 0);
        if queues.live.len() >= limits.max_qp as usize {
            return failed(libc::ENOMEM);
        }
        let mut spec = *spec;
        if device.spec.profile == Profile::Rxe {
            // Both are kept in the same place.
            let bytes = (caps.send_sges * 16).max(caps.inline);
            (spec.caps.send_sges, spec.caps.inline) = (bytes / 16, bytes);
        }
        let qp = SoftQp::new(device, *pd, &spec, [send, recv], fabric, srq);
        queues.live.push(Arc::downgrade(&qp.shared));
        Ok(qp)
    }
}
