//! Creation of the objects of a protection domain.

use std::ops::Range;
use std::sync::Arc;

use super::ah::VerbsAh;
use super::cq::VerbsCq;
use super::domain::{VerbsMr, VerbsPd};
use super::qp::VerbsQp;
use super::srq::VerbsSrq;
use super::window::VerbsMw;
use dataplane_core::error::VerbError;
use dataplane_core::mem::Region;
use dataplane_core::verbs::{Access, MwKind, Path, ProtectionDomain, QpSpec, SrqSpec};

#[allow(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: a registration holds its region until `ibv_dereg_mr` succeeds. The device checks keys, address ranges and
// access rights.
unsafe impl ProtectionDomain for VerbsPd {
    type Mr = VerbsMr;
    type Qp = VerbsQp;
    type Cq = VerbsCq;
    type Srq = VerbsSrq;
    type Ah = VerbsAh;
    type Mw = VerbsMw;

    fn register_part(&self, region: Arc<Region>, part: Range<usize>, access: Access) -> Result<VerbsMr, VerbError> {
        VerbsMr::register(self, region, part, access)
    }

    fn keep_mapped(&self, region: Arc<Region>) {
        Self::keep_mapped(self, region);
    }

    fn alloc_parent(&self) -> Result<Self, VerbError> {
        Self::alloc_parent(self)
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
