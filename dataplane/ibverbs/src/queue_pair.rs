//! The implementation of the trait `QueuePair`: state changes, multicast groups and posting.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use ibverbs_sys::{ibv_ece, ibv_gid, ibv_qp_attr, ibv_qp_init_attr};

use super::ah::VerbsAh;
use super::attr::{mtu_bytes, qp_attr, qp_attributes};
use super::context::Limits;
use super::domain::VerbsMr;
use super::ffi;
use super::held_log;
use super::qp::VerbsQp;
use super::queues::{QpBody, STATE_UNKNOWN};
use super::raw;
use super::window::VerbsMw;
use dataplane_core::error::VerbError;
use dataplane_core::mem::{Run, SlotLayout};
use dataplane_core::units::{Gid, QpNum};
use dataplane_core::verbs::{
    AttributeMask, Claim, Destination, Ece, MwBind, PostError, QpAttributes, QpCaps, QpState, QpType, QueuePair,
    RateLimit, RecvRequest, SendRequest, check_transition,
};

impl VerbsQp {
    /// Queries the attributes in `mask`. For a raw-packet queue pair, returns only the stored state and the stored port,
    /// and does not call the driver. The returned state is ERR if a completion has marked the state as unknown. A call
    /// of the driver would return nothing new, because the mlx5 driver also returns a stored state. If only the receive
    /// queue has failed, a query fails on mlx5, and the kernel logs a warning.
    fn query_attributes(&self, mask: AttributeMask) -> Result<QpAttributes, VerbError> {
        if self.kind == QpType::RawPacket {
            let known = self.state.load(Ordering::Relaxed);
            let failed = known & STATE_UNKNOWN != 0;
            let state = if failed { QpState::Err } else { QpState::from_raw(known) };
            return Ok(QpAttributes { state, port: self.port, ..QpAttributes::default() });
        }
        let mut attr = ibv_qp_attr::default();
        let mut init = ibv_qp_init_attr::default();
        // SAFETY: the queue pair is valid, and both structures are writable.
        unsafe { ffi::ibv_query_qp(self.raw(), &mut attr, mask.bits().cast_signed(), &mut init) }?;
        Ok(qp_attributes(&attr))
    }

    /// Returns whether the attributes are in range. Some devices check these values late or never.
    fn check_attributes(&self, attributes: &QpAttributes, mask: AttributeMask) -> bool {
        let limits = &self.body().context().limits.attr.orig_attr;
        let with = |bit, good: bool| !mask.contains(bit) || good;
        const BITS_24: u32 = 0xff_ffff;
        with(AttributeMask::PORT, (1..=limits.phys_port_cnt).contains(&attributes.port))
            && with(AttributeMask::AV, attributes.path.flow_label >> 20 == 0)
            && with(
                AttributeMask::ALT_PATH,
                (1..=limits.phys_port_cnt).contains(&attributes.alternate_path.port)
                    && attributes.alternate_path.flow_label >> 20 == 0
                    && attributes.alternate_timeout < 32,
            )
            && with(AttributeMask::PATH_MIG_STATE, attributes.path_migration <= 2)
            && with(AttributeMask::PATH_MTU, mtu_bytes(attributes.path_mtu.into()).is_some())
            && with(AttributeMask::DEST_QPN, attributes.dest_qp.0 <= BITS_24)
            && with(AttributeMask::RQ_PSN, attributes.rq_psn <= BITS_24)
            && with(AttributeMask::SQ_PSN, attributes.sq_psn <= BITS_24)
            && with(AttributeMask::TIMEOUT, attributes.timeout < 32)
            && with(AttributeMask::MIN_RNR_TIMER, attributes.min_rnr_timer < 32)
            && with(AttributeMask::RETRY_CNT, attributes.retry_count < 8)
            && with(AttributeMask::RNR_RETRY, attributes.rnr_retry < 8)
            && with(
                AttributeMask::MAX_QP_RD_ATOMIC,
                u32::from(attributes.max_rd_atomic) <= Limits::count(limits.max_qp_init_rd_atom),
            )
            && with(
                AttributeMask::MAX_DEST_RD_ATOMIC,
                u32::from(attributes.max_dest_rd_atomic) <= Limits::count(limits.max_qp_rd_atom),
            )
    }

    /// Returns the maximum message size in bytes after a change of the attributes in `mask`. Returns `None` if the port
    /// is not known, or if the change neither sets the port or the partition key index nor moves the queue pair to RTR.
    /// Also checks the partition key index, because rxe (the kernel's software RoCE driver) does not check this index.
    fn query_port(&self, attributes: &QpAttributes, mask: AttributeMask) -> Result<Option<u32>, VerbError> {
        let port = if mask.contains(AttributeMask::PORT) { attributes.port } else { self.port };
        let new_place = mask.intersects(AttributeMask::PORT | AttributeMask::PKEY_INDEX);
        let connects = mask.contains(AttributeMask::STATE) && attributes.state == QpState::Rtr;
        if port == 0 || !(new_place || connects) {
            return Ok(None);
        }
        // SAFETY: the context is open.
        let attr = unsafe { ffi::ibv_query_port(self.body().context().raw(), port) }?;
        if mask.contains(AttributeMask::PKEY_INDEX) && attributes.pkey_index >= attr.pkey_tbl_len {
            return Err(VerbError::new("ibv_modify_qp", libc::EINVAL));
        }
        Ok(Some(match self.kind {
            QpType::Ud => mtu_bytes(attr.active_mtu).unwrap_or(0),
            // The MTU of the network device limits the frame length. The RDMA device reports an error for a longer
            // frame.
            QpType::RawPacket => u32::MAX,
            _ => attr.max_msg_sz,
        }))
    }

    fn groups(&mut self) -> &mut Vec<(Gid, u16)> {
        &mut self.body_mut().groups
    }

    /// Sets a rate limit for sends. The queue pair must be a raw-packet queue pair in state RTS.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not support rate limits. `EINVAL` if the rate is out of range, or if the type or
    /// the state of the queue pair is wrong.
    pub fn set_rate_limit(&mut self, limit: RateLimit) -> Result<(), VerbError> {
        if self.kind != QpType::RawPacket || self.state() != QpState::Rts {
            return Err(VerbError::new("ibv_modify_qp_rate_limit", libc::EINVAL));
        }
        let context = self.body().context();
        // SAFETY: the queue pair is valid.
        let set = unsafe { raw::set_rate_limit(&limit, self.raw(), &raw::caps(context)) };
        set.map_err(|error| raw::verb_error(&error, &context.name))
    }
}

#[allow(unsafe_code, reason = "the trait is unsafe to implement")]
// SAFETY: requests go to libibverbs unchanged, and runs are checked against the bound layout. The device gives up all
// requests on RESET and on destruction. A queue pair that cannot be destroyed leaks together with the objects that the
// queue pair uses.
unsafe impl QueuePair for VerbsQp {
    type Mr = VerbsMr;
    type Ah = VerbsAh;
    type Mw = VerbsMw;

    fn number(&self) -> QpNum {
        self.body().number()
    }

    fn kind(&self) -> QpType {
        self.kind
    }

    fn caps(&self) -> QpCaps {
        self.caps
    }

    fn work_queue(&self) -> Option<u32> {
        // SAFETY: the work queue exists as long as the queue pair, and its number does not change.
        self.wq.map(|wq| unsafe { wq.as_ref() }.wq_num)
    }

    #[inline]
    fn state(&self) -> QpState {
        let known = self.state.load(Ordering::Relaxed);
        if known & STATE_UNKNOWN == 0 {
            return QpState::from_raw(known);
        }
        // A completion has reported a failure. Some failures do not change the state, and some stop only the send
        // queue, so query the state. If the query fails, as with mana, the state counts as ERR.
        let state = self.query_attributes(AttributeMask::STATE).map_or(QpState::Err, |attributes| attributes.state);
        self.set_state(state);
        if state == QpState::Err {
            self.flush_late_receives();
        }
        state
    }

    fn query(&self) -> Result<QpAttributes, VerbError> {
        use AttributeMask as M;
        let of_datagrams = M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY | M::SQ_PSN | M::CAP;
        let attributes = match self.query_attributes(M::all() - M::RATE_LIMIT) {
            // efa refuses a query of attributes that datagrams do not use (`efa_query_qp`).
            Err(VerbError { errno: libc::EOPNOTSUPP, .. }) if self.kind == QpType::Ud => {
                self.query_attributes(of_datagrams)
            }
            result => result,
        }?;
        self.set_state(attributes.state);
        Ok(attributes)
    }

    fn ece(&self) -> Result<Ece, VerbError> {
        let mut ece = ibv_ece::default();
        // SAFETY: the queue pair is valid, and the structure is writable.
        unsafe { ffi::ibv_query_ece(self.raw(), &mut ece) }?;
        Ok(Ece { vendor: ece.vendor_id, options: ece.options })
    }

    fn set_ece(&mut self, ece: Ece) -> Result<Ece, VerbError> {
        let mut ece = ibv_ece { vendor_id: ece.vendor, options: ece.options, comp_mask: 0 };
        // SAFETY: the queue pair is valid, and the structure is filled in as the man page requires.
        unsafe { ffi::ibv_set_ece(self.raw(), &mut ece) }?;
        Ok(Ece { vendor: ece.vendor_id, options: ece.options })
    }

    fn modify(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Result<(), VerbError> {
        const VERB: &str = "ibv_modify_qp";
        let from = self.state();
        let to = if mask.contains(AttributeMask::STATE) { attributes.state } else { from };
        if check_transition(self.kind, from, to, mask).is_err() || !self.check_attributes(attributes, mask) {
            return Err(VerbError::new(VERB, libc::EINVAL));
        }
        let most = self.query_port(attributes, mask)?;
        let _hold = held_log::hold();
        let queues = [self.body().send.clone(), self.body().recv.clone()];
        let guards = queues.each_ref().map(|queue| queue.owner.claim(Claim::Temporary));
        if guards.iter().any(Option::is_none) {
            return Err(VerbError::new(VERB, libc::EBUSY));
        }
        // SAFETY: the queue pair is valid, and this thread has claimed its completion queues.
        unsafe { ffi::ibv_modify_qp(self.raw(), &mut qp_attr(attributes), mask.bits().cast_signed()) }?;
        if mask.contains(AttributeMask::PORT) {
            self.port = attributes.port;
        }
        let port = self.port;
        let applied = self.body_mut().apply_state(port, to);
        drop(guards);
        self.max_message = most.unwrap_or(self.max_message);
        if mask.contains(AttributeMask::MAX_QP_RD_ATOMIC) {
            self.may_read = attributes.max_rd_atomic > 0;
        }
        if to == QpState::Reset {
            self.may_read = false;
            self.post_lists.forget();
        }
        self.set_state(to);
        applied
    }

    fn destroy(mut self) -> Result<(), VerbError> {
        self.body.take().map_or(Ok(()), QpBody::end)
    }

    fn bind_slots(&mut self, mr: &VerbsMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), VerbError> {
        self.post_lists.bind_slots(mr, layout, recv_wr_id)
    }

    unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the safety contract.
        unsafe { self.recv_list(requests) }
    }

    #[inline]
    unsafe fn post_recv_run(&mut self, slots: &[u32]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the safety contract.
        unsafe { self.recv_run(slots) }
    }

    unsafe fn post_send(&mut self, requests: &[SendRequest<'_, VerbsAh>]) -> Result<(), PostError> {
        // SAFETY: the caller upholds the safety contract.
        unsafe { self.send_list(requests) }
    }

    fn bind_mw(&mut self, mw: &mut VerbsMw, bind: &MwBind<'_, VerbsMr>) -> Result<(), PostError> {
        self.bind_window(mw, bind)
    }

    fn bind_peer(&mut self, to: Destination<'_, VerbsAh>) -> Result<(), VerbError> {
        if self.kind != QpType::Ud || !to.ah.pd().is(&self.body().pd) {
            return Err(VerbError::new("bind_peer", libc::EINVAL));
        }
        self.post_lists.bind_peer(to);
        Ok(())
    }

    fn attach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        if self.kind != QpType::Ud {
            return Err(VerbError::new("ibv_attach_mcast", libc::EINVAL));
        }
        // SAFETY: the queue pair is valid.
        unsafe { ffi::ibv_attach_mcast(self.raw(), &ibv_gid { raw: group.0 }, lid) }?;
        self.groups().push((group, lid));
        Ok(())
    }

    fn detach_multicast(&mut self, group: Gid, lid: u16) -> Result<(), VerbError> {
        let place = self.groups().iter().position(|other| *other == (group, lid));
        let place = place.ok_or(VerbError::new("ibv_detach_mcast", libc::EINVAL))?;
        // SAFETY: the queue pair is valid.
        unsafe { ffi::ibv_detach_mcast(self.raw(), &ibv_gid { raw: group.0 }, lid) }?;
        self.groups().swap_remove(place);
        Ok(())
    }

    #[inline]
    unsafe fn post_send_run(&mut self, run: &Run<'_>, first_wr_id: u64) -> Result<(), PostError> {
        // SAFETY: the caller upholds the safety contract.
        unsafe { self.send_run(run.descs(), first_wr_id) }
    }
}
