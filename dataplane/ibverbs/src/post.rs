//! Posts general requests and runs of packets with `ibv_post_recv(3)` and `ibv_post_send(3)`. A run is a burst of
//! packets, each identified by the index of its packet buffer (slot).
//!
//! Some devices silently drop an invalid request, never complete it, or report a wrong result. This module refuses such
//! requests before they are posted: see [`VerbsQp::check_send`]. Requests with an opcode that the queue pair type does
//! not support are posted nevertheless. The device completes them with [`dataplane_core::verbs::WcStatus::LocQpOpErr`].
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::{ptr, slice};

use ibverbs_sys::{
    ibv_mw_bind, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_send_wr__bindgen_ty_4,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
};

use super::ah::VerbsAh;
use super::builder::Builder;
use super::domain::VerbsMr;
use super::ffi;
use super::lists::SlotMemory;
use super::qp::VerbsQp;
use super::quirk::Quirk;
use super::request::{accepted, full, recv_wr, write_send};
use super::window::VerbsMw;
use dataplane_core::error::VerbError;
use dataplane_core::mem::Desc;
use dataplane_core::verbs::{
    Claim, MemoryRegion, MemoryWindow, MwBind, MwKind, PostError, QpState, QpType, RecvRequest, SendFlags, SendOp,
    SendRequest, WrOpcode, checksum_covers_payload,
};

#[cold]
fn refuse(verb: &'static str, errno: c_int) -> PostError {
    PostError { accepted: 0, error: VerbError::new(verb, errno) }
}

/// The length of a MAC address in bytes.
const MAC_LENGTH: u32 = 6;

const RECV: &str = "ibv_post_recv";
const SEND: &str = "ibv_post_send";

impl VerbsQp {
    /// Checks whether receives may be posted. Refuses receives in state RESET, because some drivers do not check the
    /// state. Other drivers return an error but keep the receive. Queue pairs with a shared receive queue cannot post
    /// receives.
    #[inline]
    fn may_recv(&self) -> Result<(), PostError> {
        if self.known_state() == QpState::Reset || self.shares_receives() {
            return Err(refuse(RECV, libc::EINVAL));
        }
        Ok(())
    }

    /// Checks whether sends may be posted in the current state.
    #[inline]
    fn may_send(&self) -> Result<(), PostError> {
        match self.known_state() {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
            _ => Err(refuse(SEND, libc::EINVAL)),
        }
    }

    /// Converts the error of a failed post. The caller tried to post `count` requests, starting at `first`. The driver
    /// sets `bad` to the first request that was not posted. Without a valid `bad`, the driver may hold any of the
    /// requests and execute them later. This function then moves the queue pair to ERR, which flushes all requests, and
    /// returns an error with 0 accepted requests. If the change to ERR also fails, all requests count as accepted, so
    /// that the caller does not use their memory again.
    #[cold]
    fn refused<T>(&mut self, error: VerbError, first: *const T, count: usize, bad: *const T) -> PostError {
        let taken = accepted(first, count, bad).unwrap_or_else(|| if self.stop_and_flush() { 0 } else { count });
        PostError { accepted: taken, error: full(error) }
    }

    /// Posts receive requests.
    ///
    /// # Safety
    /// The caller must follow the rules of [`post_recv`](dataplane_core::verbs::QueuePair::post_recv) for the memory of
    /// accepted requests.
    pub(super) unsafe fn recv_list(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.may_recv()?;
        let most = self.caps.recv_sges as usize;
        let good = requests.iter().position(|request| request.sges.len() > most).unwrap_or(requests.len());
        let mut done = 0;
        for chunk in requests[..good].chunks(self.post_lists.recv_list.len) {
            let list = &self.post_lists.recv_list;
            for (at, request) in chunk.iter().enumerate() {
                // SAFETY: the chunk is not longer than the list.
                unsafe { *list.at(at) = ibv_recv_wr { next: list.after(at), ..recv_wr(request) } };
            }
            let last = chunk.len() - 1;
            let (first, last, after) = (list.at(0), list.at(last), list.after(last));
            // SAFETY: the list is linked up to its last item. The caller keeps the memory of the requests valid.
            let posted = unsafe { self.post_recvs(first, last, after, chunk.len()) };
            posted.map_err(|refused| PostError { accepted: done + refused.accepted, ..refused })?;
            done += chunk.len();
        }
        if good < requests.len() { Err(PostError { accepted: good, ..refuse(RECV, libc::EINVAL) }) } else { Ok(()) }
    }

    /// Posts slots for receives.
    ///
    /// # Safety
    /// Same as [`VerbsQp::recv_list`].
    #[inline]
    pub(super) unsafe fn recv_run(&mut self, slots: &[u32]) -> Result<(), PostError> {
        self.may_recv()?;
        let Some(SlotMemory { layout, base, recv_wr_id, .. }) = self.post_lists.slots else {
            return Err(refuse(RECV, libc::EINVAL));
        };
        self.post_lists.posted = true;
        let base = base + u64::from(layout.headroom());
        let good = slots.iter().position(|slot| *slot >= layout.count()).unwrap_or(slots.len());
        let mut done = 0;
        for chunk in slots[..good].chunks(self.post_lists.recvs.len) {
            let (wrs, sges) = (&self.post_lists.recvs, &self.post_lists.recv_sges);
            for (at, slot) in chunk.iter().enumerate() {
                // SAFETY: the chunk is not longer than the lists.
                unsafe {
                    (*wrs.at(at)).wr_id = recv_wr_id.wrapping_add(u64::from(*slot));
                    (*sges.at(at)).addr = base + u64::from(*slot) * u64::from(layout.stride());
                }
            }
            let last = chunk.len() - 1;
            let (first, last, after) = (wrs.at(0), wrs.at(last), wrs.after(last));
            // SAFETY: same as in `recv_list`.
            let posted = unsafe { self.post_recvs(first, last, after, chunk.len()) };
            posted.map_err(|refused| PostError { accepted: done + refused.accepted, ..refused })?;
            done += chunk.len();
        }
        if good < slots.len() { Err(PostError { accepted: good, ..refuse(RECV, libc::EINVAL) }) } else { Ok(()) }
    }

    /// Posts the items `first` to `last` of a linked list. Removes the link from `last` to `after` during the call.
    ///
    /// # Safety
    /// All pointers must be in one list of this queue pair. `first` to `last` must be `count` requests, and `after`
    /// must be the item after `last`. The caller must keep the memory of the requests valid.
    #[inline]
    unsafe fn post_recvs(
        &mut self,
        first: *mut ibv_recv_wr,
        last: *mut ibv_recv_wr,
        after: *mut ibv_recv_wr,
        count: usize,
    ) -> Result<(), PostError> {
        let Some(_guard) = self.recv_queue().owner.claim(Claim::Temporary) else {
            return Err(refuse(RECV, libc::EBUSY));
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is valid, this thread has claimed the completion queue of the receives (`recv_queue`),
        // and the caller guarantees that the list is valid.
        let answer = unsafe {
            (*last).next = ptr::null_mut();
            let answer = match self.wq {
                None => ffi::ibv_post_recv(self.raw(), first, &mut bad),
                Some(wq) => ffi::ibv_post_wq_recv(wq.as_ptr(), first, &mut bad),
            };
            (*last).next = after;
            answer
        };
        drop(_guard);
        if self.known_state() == QpState::Err {
            self.flush_late_receives();
        }
        answer.map_err(|error| self.refused(error, first, count, bad))
    }

    /// Posts the items `first` to `last` of a linked list of sends, as [`VerbsQp::post_recvs`] does for receives.
    ///
    /// # Safety
    /// Same as [`VerbsQp::post_recvs`].
    #[inline]
    unsafe fn post_sends(
        &mut self,
        first: *mut ibv_send_wr,
        last: *mut ibv_send_wr,
        after: *mut ibv_send_wr,
        count: usize,
    ) -> Result<(), PostError> {
        let Some(_guard) = self.send_queue().owner.claim(Claim::Temporary) else {
            return Err(refuse(SEND, libc::EBUSY));
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is valid, this thread has claimed the completion queue of the sends (`send_queue`),
        // and the caller guarantees that the list is valid.
        let answer = unsafe {
            (*last).next = ptr::null_mut();
            let answer = ffi::ibv_post_send(self.raw(), first, &mut bad);
            (*last).next = after;
            answer
        };
        drop(_guard);
        answer.map_err(|error| self.refused(error, first, count, bad))
    }

    /// Refuses a send that some devices would execute or report wrongly. Some devices drop a datagram that is longer
    /// than the MTU, and complete the request with success. Some devices never complete a read if the queue pair allows
    /// no outstanding reads. Some devices complete an atomic operation with success although its size is not 8 bytes.
    /// Inline reads and inline atomic operations are refused, because an inline request has no buffer for the result.
    ///
    /// Also refuses a send for which a library would read memory outside the elements of the send. The library of mlx4
    /// reads the destination MAC address of a raw packet from the first element, without a check of the length of this
    /// element (`mlx4_post_send`).
    fn check_send(&self, request: &SendRequest<'_, VerbsAh>) -> Result<(), c_int> {
        let length: u64 = request.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let inline = request.flags.contains(SendFlags::INLINE);
        let read = self.may_read && !inline;
        let datagram = match &request.to {
            Some(to) => self.kind == QpType::Ud && to.ah.pd().is(&self.body().pd),
            None => self.kind != QpType::Ud,
        };
        // Only RC supports reads and atomics. For the other queue pair types, the device itself reports an error.
        let of_op = match request.op {
            SendOp::RdmaRead(_) => read || self.kind != QpType::Rc,
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
                // Require exactly one element, because a library may read the first element and ignore the others.
                let one = matches!(request.sges, [sge] if sge.length == 8);
                one && (read && remote.addr % 8 == 0 || self.kind != QpType::Rc)
            }
            SendOp::Tso { header, mss } if self.kind == QpType::RawPacket => {
                self.offload.may_segment(header.len(), mss, length)
            }
            SendOp::Tso { header, .. } => header.len() <= usize::from(u16::MAX),
            _ => true,
        };
        let long = match request.op {
            SendOp::Tso { .. } => length > u64::from(u32::MAX),
            _ => length > u64::from(self.max_message),
        };
        let has_address = self.kind != QpType::RawPacket
            || matches!(request.op, SendOp::Tso { .. })
            || request.sges.first().is_some_and(|first| first.length >= MAC_LENGTH);
        let fits = request.sges.len() <= self.caps.send_sges as usize
            && has_address
            && !long
            && (!inline || length <= u64::from(self.caps.inline));
        let computes =
            self.kind != QpType::RawPacket || self.offload.checksum || !request.flags.contains(SendFlags::IP_CSUM);
        match datagram && of_op && fits {
            true if computes => Ok(()),
            true => Err(libc::EOPNOTSUPP),
            false => Err(libc::EINVAL),
        }
    }

    /// Returns the extended send interface. Returns `None` if the queue pair was created without this interface, or if
    /// a driver defect affects one of the requests.
    fn builder_for(&self, requests: &[SendRequest<'_, VerbsAh>]) -> Option<Builder> {
        let several = requests.iter().any(|request| request.sges.len() > 1);
        let broken = several && self.body().pd.context().quirks.why(Quirk::BuilderLists).is_some();
        self.builder.filter(|_| !broken)
    }

    /// Posts send requests.
    ///
    /// # Safety
    /// The caller must follow the rules of [`post_send`](dataplane_core::verbs::QueuePair::post_send) for the memory of
    /// accepted requests.
    pub(super) unsafe fn send_list(&mut self, requests: &[SendRequest<'_, VerbsAh>]) -> Result<(), PostError> {
        self.may_send()?;
        let wrong = requests.iter().enumerate().find_map(|(at, request)| Some((at, self.check_send(request).err()?)));
        let good = &requests[..wrong.map_or(requests.len(), |(at, _)| at)];
        if let Some(builder) = self.builder_for(good) {
            // SAFETY: the queue pair is valid, and the caller keeps the memory of the requests valid.
            unsafe { builder.send_list(&self.send_queue().owner, good) }?;
        } else {
            let mut done = 0;
            for chunk in good.chunks(self.post_lists.send_list.len) {
                let list = &self.post_lists.send_list;
                for (at, request) in chunk.iter().enumerate() {
                    // SAFETY: the chunk is not longer than the list, which nothing else accesses.
                    write_send(unsafe { &mut *list.at(at) }, request);
                }
                let last = chunk.len() - 1;
                let (first, last, after) = (list.at(0), list.at(last), list.after(last));
                // SAFETY: the list is linked up to its last item. The caller keeps the memory of the requests valid.
                let posted = unsafe { self.post_sends(first, last, after, chunk.len()) };
                posted.map_err(|refused| PostError { accepted: done + refused.accepted, ..refused })?;
                done += chunk.len();
            }
        }
        match wrong {
            Some((accepted, errno)) => Err(PostError { accepted, ..refuse(SEND, errno) }),
            None => Ok(()),
        }
    }

    /// Sets the send flags of each packet of a chunk: `INLINE` for short packets, and `IP_CSUM` for packets whose
    /// checksums the device can compute.
    ///
    /// # Safety
    /// The chunk must not be longer than the list. The packets must be inside the slots that `bind_slots` has set, and
    /// nothing may write to the packets during the call.
    unsafe fn set_flags(&self, chunk: &[Desc]) {
        let Some(memory) = &self.post_lists.slots else { return };
        let base = memory.mr.region().base().as_ptr();
        let usual = self.post_lists.run_flags;
        for (at, desc) in chunk.iter().enumerate() {
            let start = desc.slot as usize * memory.layout.stride() as usize + usize::from(desc.offset);
            // SAFETY: the caller upholds the safety contract.
            let frame = unsafe { slice::from_raw_parts(base.add(start), desc.len.into()) };
            let mut flags = usual;
            flags.set(SendFlags::INLINE, u32::from(desc.len) <= self.inline_runs);
            flags.set(SendFlags::IP_CSUM, self.offload.checksum_runs && checksum_covers_payload(frame));
            // SAFETY: same as above. Nothing else accesses the list.
            unsafe { (*self.post_lists.sends.at(at)).send_flags = flags.bits() };
        }
    }

    /// Sends packets from their slots.
    ///
    /// # Safety
    /// Same as [`VerbsQp::send_list`].
    #[inline]
    pub(super) unsafe fn send_run(&mut self, run: &[Desc], first_wr_id: u64) -> Result<(), PostError> {
        self.may_send()?;
        let Some(SlotMemory { layout, base, .. }) = self.post_lists.slots else {
            return Err(refuse(SEND, libc::EINVAL));
        };
        if self.kind == QpType::Ud && self.post_lists.peer.is_none() {
            return Err(refuse(SEND, libc::EINVAL));
        }
        self.post_lists.posted = true;
        let most = self.max_message;
        let fits = |desc: &Desc| layout.admits(*desc) && u32::from(desc.len) <= most;
        let good = run.iter().position(|desc| !fits(desc)).unwrap_or(run.len());
        let mut done = 0;
        for chunk in run[..good].chunks(self.post_lists.sends.len) {
            let (wrs, sges) = (&self.post_lists.sends, &self.post_lists.send_sges);
            let wr_id = first_wr_id.wrapping_add(done as u64);
            for (at, desc) in chunk.iter().enumerate() {
                // SAFETY: the chunk is not longer than the lists.
                unsafe {
                    (*wrs.at(at)).wr_id = wr_id.wrapping_add(at as u64);
                    let sge = &mut *sges.at(at);
                    sge.addr = base + u64::from(desc.slot) * u64::from(layout.stride()) + u64::from(desc.offset);
                    sge.length = desc.len.into();
                }
            }
            if self.offload.checksum_runs || self.inline_runs > 0 {
                // SAFETY: `layout` admits the packets of the chunk, and the caller keeps the memory valid and
                // unchanged.
                unsafe { self.set_flags(chunk) };
            }
            let at = chunk.len() - 1;
            let (first, last, after) = (wrs.at(0), wrs.at(at), wrs.after(at));
            let signal = done + chunk.len() == good;
            // SAFETY: same as in `send_list`. The signal flag is removed after the post.
            let posted = unsafe {
                let usual = (*last).send_flags;
                (*last).send_flags = usual | if signal { SendFlags::SIGNALED.bits() } else { 0 };
                let posted = match self.builder {
                    Some(builder) => {
                        let peer = self.post_lists.peer.as_ref().filter(|_| self.kind == QpType::Ud);
                        builder.send_run(&self.send_queue().owner, peer, first, chunk.len())
                    }
                    None => self.post_sends(first, last, after, chunk.len()),
                };
                (*last).send_flags = usual;
                posted
            };
            posted.map_err(|refused| PostError { accepted: done + refused.accepted, ..refused })?;
            done += chunk.len();
        }
        if good < run.len() { Err(PostError { accepted: good, ..refuse(SEND, libc::EINVAL) }) } else { Ok(()) }
    }

    pub(super) fn bind_window(&mut self, mw: &mut VerbsMw, bind: &MwBind<'_, VerbsMr>) -> Result<(), PostError> {
        const VERB: &str = "ibv_bind_mw";
        self.may_send()?;
        let pd = &self.body().pd;
        let clears = bind.length == 0;
        if !mw.pd().is(pd) || !bind.mr.pd().is(pd) || clears && mw.kind() == MwKind::Type2 {
            return Err(refuse(VERB, libc::EINVAL));
        }
        let Some(guard) = self.send_queue().owner.claim(Claim::Temporary) else {
            return Err(refuse(VERB, libc::EBUSY));
        };
        let info = ibv_mw_bind_info {
            mr: bind.mr.raw(),
            addr: bind.addr,
            length: bind.length,
            mw_access_flags: bind.access.bits(),
        };
        let posted = match mw.kind() {
            MwKind::Type1 => {
                // A length of 0 removes the binding. rxe (the kernel's software RoCE driver) accesses the region even
                // then, so the region is always passed.
                let mut wr = ibv_mw_bind { wr_id: bind.wr_id, send_flags: bind.flags.bits(), bind_info: info };
                // SAFETY: the queue pair, the window and the region are valid and belong to the same protection domain.
                unsafe { ffi::ibv_bind_mw(self.raw(), mw.raw(), &mut wr) }
            }
            MwKind::Type2 => {
                let rkey = mw.next_rkey();
                let bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: mw.raw(), rkey, bind_info: info };
                let mut wr = ibv_send_wr {
                    wr_id: bind.wr_id,
                    opcode: WrOpcode::BindMw.raw(),
                    send_flags: bind.flags.bits(),
                    __bindgen_anon_2: ibv_send_wr__bindgen_ty_4 { bind_mw },
                    ..Default::default()
                };
                let mut bad = ptr::null_mut();
                // SAFETY: same as above.
                match unsafe { ffi::ibv_post_send(self.raw(), &mut wr, &mut bad) } {
                    Ok(()) => {
                        mw.set_rkey(rkey);
                        Ok(())
                    }
                    Err(error) => {
                        drop(guard);
                        let refused = self.refused(error, &raw const wr, 1, bad);
                        if refused.accepted > 0 {
                            mw.keep(bind.mr);
                        }
                        return Err(refused);
                    }
                }
            }
        };
        drop(guard);
        posted.map_err(|error| PostError { accepted: 0, error: full(error) })?;
        if !clears {
            mw.keep(bind.mr);
        }
        Ok(())
    }
}
