//! Posting, by `ibv_post_recv(3)` and `ibv_post_send(3)`: lists as they come, and runs from lists that are ready made.
//!
//! What a device would answer with silence, a hang or a lie is refused before it is posted: see [`VerbsQp::check_send`]. An
//! opcode that the type of the queue pair does not have is left to the device, which completes it with
//! [`crate::provider::WcStatus::LocQpOpErr`].
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::{self, NonNull};

use ibverbs_sys::{
    ibv_mw_bind, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_send_wr__bindgen_ty_1, ibv_send_wr__bindgen_ty_2,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_1, ibv_send_wr__bindgen_ty_2__bindgen_ty_2,
    ibv_send_wr__bindgen_ty_2__bindgen_ty_3, ibv_send_wr__bindgen_ty_4, ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_2, ibv_sge,
};

use super::ah::VerbsAh;
use super::builder;
use super::domain::VerbsMr;
use super::ffi;
use super::qp::VerbsQp;
use super::window::VerbsMw;
use crate::error::VerbError;
use crate::mem::{Desc, SlotLayout};
use crate::provider::{
    Destination, MemoryRegion, MemoryWindow, MwBind, MwKind, PostError, QpCaps, QpState, QpType, RUN, RecvRequest,
    SendFlags, SendOp, SendRequest, Sge, WrOpcode,
};

/// How many requests of a list go with one doorbell where no list is ready made.
pub(super) const CHUNK: usize = 32;

const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// A list that is linked: the library walks it by its pointers, so it is only ever reached by them.
struct Chain<T> {
    start: NonNull<T>,
    len: usize,
}

impl<T: Copy> Chain<T> {
    fn new(len: usize, item: T) -> Self {
        let list = Box::leak(vec![item; len.max(1)].into_boxed_slice());
        Self { len: list.len(), start: NonNull::from(list).cast() }
    }

    /// The place of an item. The caller sees to it that there is one.
    #[inline]
    fn at(&self, index: usize) -> *mut T {
        debug_assert!(index < self.len);
        self.start.as_ptr().wrapping_add(index)
    }
}

impl<T> Drop for Chain<T> {
    fn drop(&mut self) {
        // SAFETY: it was made of a box of this length, and this is the only owner.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len)) });
    }
}

/// The slots that runs are made of.
struct Slots {
    /// Kept registered as long as runs may name it.
    _mr: VerbsMr,
    layout: SlotLayout,
    base: u64,
    recv_wr_id: u64,
}

/// The lists that a queue pair posts from: made with it, so that posting allocates nothing.
pub(super) struct Scratch {
    recvs: Chain<ibv_recv_wr>,
    recv_sges: Chain<ibv_sge>,
    sends: Chain<ibv_send_wr>,
    send_sges: Chain<ibv_sge>,
    /// For lists, whose elements are the caller's.
    recv_list: Chain<ibv_recv_wr>,
    send_list: Chain<ibv_send_wr>,
    slots: Option<Slots>,
    pub(super) peer: Option<(VerbsAh, u32, u32)>,
    /// Whether runs were posted since RESET.
    posted: bool,
}

impl Scratch {
    /// `flags` are those of each send of a run.
    pub(super) fn new(caps: &QpCaps, flags: SendFlags) -> Self {
        let len = |depth: u32| (depth as usize).clamp(1, RUN);
        let (sends, recvs) = (len(caps.send_depth), len(caps.recv_depth));
        let send_flags = flags.bits();
        let send = ibv_send_wr { opcode: WrOpcode::Send.raw(), num_sge: 1, send_flags, ..Default::default() };
        let recv = ibv_recv_wr { num_sge: 1, ..Default::default() };
        let scratch = Self {
            recvs: Chain::new(recvs, recv),
            recv_sges: Chain::new(recvs, ibv_sge::default()),
            sends: Chain::new(sends, send),
            send_sges: Chain::new(sends, ibv_sge::default()),
            recv_list: Chain::new(recvs, recv),
            send_list: Chain::new(sends, send),
            slots: None,
            peer: None,
            posted: false,
        };
        // SAFETY: all places are in the lists, which nobody else knows of.
        unsafe {
            for at in 0..recvs {
                (*scratch.recvs.at(at)).sg_list = scratch.recv_sges.at(at);
                (*scratch.recvs.at(at)).next = scratch.recvs.after(at);
                (*scratch.recv_list.at(at)).next = scratch.recv_list.after(at);
            }
            for at in 0..sends {
                (*scratch.sends.at(at)).sg_list = scratch.send_sges.at(at);
                (*scratch.sends.at(at)).next = scratch.sends.after(at);
                (*scratch.send_list.at(at)).next = scratch.send_list.after(at);
            }
        }
        scratch
    }

    /// The queue pair was reset: nothing is outstanding.
    pub(super) fn forget(&mut self) {
        self.posted = false;
    }

    pub(super) fn bind_slots(&mut self, mr: &VerbsMr, layout: SlotLayout, recv_wr_id: u64) -> Result<(), VerbError> {
        let refuse = |errno| Err(VerbError::new("bind_slots", errno));
        let base = mr.region().base().as_ptr().addr() as u64;
        let registered = mr.range();
        if self.posted {
            return refuse(libc::EBUSY);
        }
        if base < registered.start || base + layout.bytes() as u64 > registered.end {
            return refuse(libc::EINVAL);
        }
        let lkey = mr.lkey().0;
        // SAFETY: all places are in the lists, which nobody else looks at between posts.
        unsafe {
            for at in 0..self.recv_sges.len {
                *self.recv_sges.at(at) = ibv_sge { addr: 0, length: layout.room(), lkey };
            }
            for at in 0..self.send_sges.len {
                *self.send_sges.at(at) = ibv_sge { addr: 0, length: 0, lkey };
            }
        }
        self.slots = Some(Slots { _mr: mr.clone(), layout, base, recv_wr_id });
        Ok(())
    }

    pub(super) fn bind_peer(&mut self, to: Destination<'_, VerbsAh>) {
        let ud = ud(&to);
        // SAFETY: as above.
        unsafe {
            for at in 0..self.sends.len {
                (*self.sends.at(at)).wr = ud;
            }
        }
        self.peer = Some((to.ah.clone(), to.qp.0, to.qkey));
    }
}

impl<T: Copy> Chain<T> {
    /// The item after this one; null after the last.
    fn after(&self, index: usize) -> *mut T {
        if index + 1 < self.len { self.at(index + 1) } else { ptr::null_mut() }
    }
}

/// How many requests of a list were taken before that which was not. `None`: the driver does not say.
pub(super) fn accepted<T>(first: *const T, count: usize, bad: *const T) -> Option<usize> {
    if bad.is_null() {
        return None;
    }
    let at = bad.addr().wrapping_sub(first.addr()) / size_of::<T>();
    (at < count).then_some(at)
}

/// A receive. Its elements are the caller's.
pub(super) fn recv_wr(request: &RecvRequest<'_>) -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id: request.wr_id,
        next: ptr::null_mut(),
        sg_list: request.sges.as_ptr().cast_mut().cast(),
        num_sge: request.sges.len() as c_int,
    }
}

fn ud(to: &Destination<'_, VerbsAh>) -> ibv_send_wr__bindgen_ty_2 {
    let ud = ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: to.ah.raw(), remote_qpn: to.qp.0, remote_qkey: to.qkey };
    ibv_send_wr__bindgen_ty_2 { ud }
}

/// Writes a send to its place, all but the link. Its elements are the caller's.
fn write_send(wr: &mut ibv_send_wr, request: &SendRequest<'_, VerbsAh>) {
    wr.wr_id = request.wr_id;
    wr.sg_list = request.sges.as_ptr().cast_mut().cast();
    wr.num_sge = request.sges.len() as c_int;
    wr.opcode = request.op.opcode().raw();
    wr.send_flags = request.flags.bits();
    let rdma = |remote_addr, rkey| ibv_send_wr__bindgen_ty_2 {
        rdma: ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey },
    };
    let atomic = |remote_addr, rkey, compare_add, swap| ibv_send_wr__bindgen_ty_2 {
        atomic: ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey },
    };
    match request.op {
        SendOp::Send => {}
        SendOp::SendWithImm(imm_data) => wr.__bindgen_anon_1.imm_data = imm_data,
        SendOp::SendWithInv(rkey) | SendOp::LocalInv(rkey) => wr.__bindgen_anon_1.invalidate_rkey = rkey.0,
        SendOp::RdmaWrite(to) | SendOp::RdmaRead(to) => wr.wr = rdma(to.addr, to.rkey.0),
        SendOp::RdmaWriteWithImm(to, imm_data) => {
            wr.__bindgen_anon_1 = ibv_send_wr__bindgen_ty_1 { imm_data };
            wr.wr = rdma(to.addr, to.rkey.0);
        }
        SendOp::CompareSwap { remote, compare, swap } => wr.wr = atomic(remote.addr, remote.rkey.0, compare, swap),
        SendOp::FetchAdd { remote, add } => wr.wr = atomic(remote.addr, remote.rkey.0, add, 0),
        SendOp::Tso { header, mss } => {
            wr.__bindgen_anon_2 = ibv_send_wr__bindgen_ty_4 {
                tso: ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
                    hdr: header.as_ptr().cast_mut().cast(),
                    hdr_sz: header.len() as u16,
                    mss,
                },
            };
        }
    }
    if let Some(to) = &request.to {
        wr.wr = ud(to);
    }
}

#[cold]
fn refuse(verb: &'static str, errno: c_int) -> PostError {
    PostError { accepted: 0, error: VerbError::new(verb, errno) }
}

const RECV: &str = "ibv_post_recv";
const SEND: &str = "ibv_post_send";

impl VerbsQp {
    /// Whether receives may be posted. Drivers do not look at the state, or keep what they refuse.
    #[inline]
    fn may_recv(&self) -> Result<(), PostError> {
        if self.known_state() == QpState::Reset || self.shares_receives() {
            return Err(refuse(RECV, libc::EINVAL));
        }
        Ok(())
    }

    /// The same for sends.
    #[inline]
    fn may_send(&self) -> Result<(), PostError> {
        match self.known_state() {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
            _ => Err(refuse(SEND, libc::EINVAL)),
        }
    }

    /// What came of a post of `count` requests from `first` on: how many were taken. If the driver does not say, it may
    /// hold any of them and carry them out whenever: the queue pair is stopped, and all of them are flushed.
    #[cold]
    fn refused<T>(&mut self, error: VerbError, first: *const T, count: usize, bad: *const T) -> PostError {
        let taken = accepted(first, count, bad).unwrap_or_else(|| {
            self.give_up();
            0
        });
        PostError { accepted: taken, error: full(error) }
    }

    /// # Safety
    /// The caller lends the memory of what is accepted, as the trait says.
    pub(super) unsafe fn recv_list(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.may_recv()?;
        let most = self.caps.recv_sges as usize;
        let good = requests.iter().position(|request| request.sges.len() > most).unwrap_or(requests.len());
        let mut done = 0;
        for chunk in requests[..good].chunks(self.scratch.recv_list.len) {
            let list = &self.scratch.recv_list;
            for (at, request) in chunk.iter().enumerate() {
                // SAFETY: the chunk is no longer than the list.
                unsafe { *list.at(at) = ibv_recv_wr { next: list.after(at), ..recv_wr(request) } };
            }
            let last = chunk.len() - 1;
            let (first, last, after) = (list.at(0), list.at(last), list.after(last));
            // SAFETY: the list is linked up to its last, and the caller lends the memory that it names.
            let posted = unsafe { self.post_recvs(first, last, after, chunk.len()) };
            posted.map_err(|refused| PostError { accepted: done + refused.accepted, ..refused })?;
            done += chunk.len();
        }
        if good < requests.len() { Err(PostError { accepted: good, ..refuse(RECV, libc::EINVAL) }) } else { Ok(()) }
    }

    /// # Safety
    /// As [`VerbsQp::recv_list`].
    #[inline]
    pub(super) unsafe fn recv_run(&mut self, slots: &[u32]) -> Result<(), PostError> {
        self.may_recv()?;
        let Some(Slots { layout, base, recv_wr_id, .. }) = self.scratch.slots else {
            return Err(refuse(RECV, libc::EINVAL));
        };
        self.scratch.posted = true;
        let base = base + u64::from(layout.headroom);
        let good = slots.iter().position(|slot| *slot >= layout.count).unwrap_or(slots.len());
        let mut done = 0;
        for chunk in slots[..good].chunks(self.scratch.recvs.len) {
            let (wrs, sges) = (&self.scratch.recvs, &self.scratch.recv_sges);
            for (at, slot) in chunk.iter().enumerate() {
                // SAFETY: the chunk is no longer than the lists.
                unsafe {
                    (*wrs.at(at)).wr_id = recv_wr_id.wrapping_add(u64::from(*slot));
                    (*sges.at(at)).addr = base + u64::from(*slot) * u64::from(layout.stride);
                }
            }
            let last = chunk.len() - 1;
            let (first, last, after) = (wrs.at(0), wrs.at(last), wrs.after(last));
            // SAFETY: as in `recv_list`.
            let posted = unsafe { self.post_recvs(first, last, after, chunk.len()) };
            posted.map_err(|refused| PostError { accepted: done + refused.accepted, ..refused })?;
            done += chunk.len();
        }
        if good < slots.len() { Err(PostError { accepted: good, ..refuse(RECV, libc::EINVAL) }) } else { Ok(()) }
    }

    /// Posts a part of a linked list: the link after its last is cut for that long.
    ///
    /// # Safety
    /// All of it is one list of ours with `count` requests from `first` to `last`, and `after` is what comes then. The
    /// caller lends the memory that it names.
    #[inline]
    unsafe fn post_recvs(
        &mut self,
        first: *mut ibv_recv_wr,
        last: *mut ibv_recv_wr,
        after: *mut ibv_recv_wr,
        count: usize,
    ) -> Result<(), PostError> {
        let Some(_visit) = self.recv_queue().owner.visit() else { return Err(refuse(RECV, libc::EBUSY)) };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive, its queue lets this thread in, and the list is the caller's promise.
        let answer = unsafe {
            (*last).next = ptr::null_mut();
            let answer = match self.wq {
                None => ffi::ibv_post_recv(self.raw(), first, &mut bad),
                Some(wq) => ffi::ibv_post_wq_recv(wq.as_ptr(), first, &mut bad),
            };
            (*last).next = after;
            answer
        };
        drop(_visit);
        if self.known_state() == QpState::Err {
            self.remind();
        }
        answer.map_err(|error| self.refused(error, first, count, bad))
    }

    /// # Safety
    /// As [`VerbsQp::post_recvs`].
    #[inline]
    unsafe fn post_sends(
        &mut self,
        first: *mut ibv_send_wr,
        last: *mut ibv_send_wr,
        after: *mut ibv_send_wr,
        count: usize,
    ) -> Result<(), PostError> {
        let Some(_visit) = self.send_queue().owner.visit() else { return Err(refuse(SEND, libc::EBUSY)) };
        let mut bad = ptr::null_mut();
        // SAFETY: as in `post_recvs`.
        let answer = unsafe {
            (*last).next = ptr::null_mut();
            let answer = ffi::ibv_post_send(self.raw(), first, &mut bad);
            (*last).next = after;
            answer
        };
        drop(_visit);
        answer.map_err(|error| self.refused(error, first, count, bad))
    }

    /// Whether a send is one that the device can carry out and tell the truth about. Longer than the MTU a datagram is
    /// dropped and reported as sent, a read without a place for it never ends, an atomic of another size is reported with
    /// that size: by one device or another.
    fn check_send(&self, request: &SendRequest<'_, VerbsAh>) -> Result<(), c_int> {
        let length: u64 = request.sges.iter().map(|sge| u64::from(sge.length)).sum();
        let inline = request.flags.contains(SendFlags::INLINE);
        let read = self.may_read && !inline;
        let datagram = match &request.to {
            Some(to) => self.kind == QpType::Ud && to.ah.pd().is(&self.body().pd),
            None => self.kind != QpType::Ud,
        };
        // Only a reliable connection has reads and atomics: on others the device says so.
        let of_op = match request.op {
            SendOp::RdmaRead(_) => read || self.kind != QpType::Rc,
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => {
                read && length == 8 && remote.addr % 8 == 0 || self.kind != QpType::Rc
            }
            SendOp::Tso { header, mss } if self.kind == QpType::RawPacket => {
                self.offload.may_segment(header.len(), mss, length)
            }
            SendOp::Tso { header, .. } => header.len() <= usize::from(u16::MAX),
            _ => true,
        };
        let long = match request.op {
            SendOp::Tso { .. } => length > u64::from(u32::MAX),
            _ => length > u64::from(self.most),
        };
        let fits = request.sges.len() <= self.caps.send_sges as usize
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

    /// # Safety
    /// The caller lends the memory of what is accepted, as the trait says.
    pub(super) unsafe fn send_list(&mut self, requests: &[SendRequest<'_, VerbsAh>]) -> Result<(), PostError> {
        self.may_send()?;
        let wrong = requests.iter().enumerate().find_map(|(at, request)| Some((at, self.check_send(request).err()?)));
        let good = &requests[..wrong.map_or(requests.len(), |(at, _)| at)];
        if let Some(posted) = builder::send_list(self, good) {
            posted?;
        } else {
            let mut done = 0;
            for chunk in good.chunks(self.scratch.send_list.len) {
                let list = &self.scratch.send_list;
                for (at, request) in chunk.iter().enumerate() {
                    // SAFETY: the chunk is no longer than the list, which nobody else looks at.
                    write_send(unsafe { &mut *list.at(at) }, request);
                }
                let last = chunk.len() - 1;
                let (first, last, after) = (list.at(0), list.at(last), list.after(last));
                // SAFETY: the list is linked up to its last, and the caller lends the memory that it names.
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

    /// # Safety
    /// As [`VerbsQp::send_list`].
    #[inline]
    pub(super) unsafe fn send_run(&mut self, run: &[Desc], first_wr_id: u64) -> Result<(), PostError> {
        self.may_send()?;
        let Some(Slots { layout, base, .. }) = self.scratch.slots else {
            return Err(refuse(SEND, libc::EINVAL));
        };
        if self.kind == QpType::Ud && self.scratch.peer.is_none() {
            return Err(refuse(SEND, libc::EINVAL));
        }
        self.scratch.posted = true;
        let most = self.most;
        let fits = |desc: &Desc| layout.admits(*desc) && u32::from(desc.len) <= most;
        let good = run.iter().position(|desc| !fits(desc)).unwrap_or(run.len());
        let mut done = 0;
        for chunk in run[..good].chunks(self.scratch.sends.len) {
            let (wrs, sges) = (&self.scratch.sends, &self.scratch.send_sges);
            let wr_id = first_wr_id.wrapping_add(done as u64);
            for (at, desc) in chunk.iter().enumerate() {
                // SAFETY: the chunk is no longer than the lists.
                unsafe {
                    (*wrs.at(at)).wr_id = wr_id.wrapping_add(at as u64);
                    let sge = &mut *sges.at(at);
                    sge.addr = base + u64::from(desc.slot) * u64::from(layout.stride) + u64::from(desc.offset);
                    sge.length = desc.len.into();
                }
            }
            let at = chunk.len() - 1;
            let (first, last, after) = (wrs.at(0), wrs.at(at), wrs.after(at));
            let signal = done + chunk.len() == good;
            // SAFETY: as in `send_list`; the flag is taken off again.
            let posted = unsafe {
                let usual = (*last).send_flags;
                (*last).send_flags = usual | if signal { SendFlags::SIGNALED.bits() } else { 0 };
                let posted = match builder::send_run(self, first, chunk.len()) {
                    Some(posted) => posted,
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
        let Some(visit) = self.send_queue().owner.visit() else { return Err(refuse(VERB, libc::EBUSY)) };
        let info = ibv_mw_bind_info {
            mr: bind.mr.raw(),
            addr: bind.addr,
            length: bind.length,
            mw_access_flags: bind.access.bits(),
        };
        let posted = match mw.kind() {
            MwKind::Type1 => {
                // A length of 0 takes it off. The region is named all the same: rxe looks at it.
                let mut wr = ibv_mw_bind { wr_id: bind.wr_id, send_flags: bind.flags.bits(), bind_info: info };
                // SAFETY: queue pair, window and region are alive and of one domain.
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
                // SAFETY: as above.
                let posted = unsafe { ffi::ibv_post_send(self.raw(), &mut wr, &mut ptr::null_mut()) };
                posted.inspect(|()| mw.set_rkey(rkey))
            }
        };
        drop(visit);
        posted.map_err(|error| PostError { accepted: 0, error: full(error) })?;
        // The region stays registered as long as a window may be on it.
        mw.bound = if clears { None } else { Some(bind.mr.clone()) };
        Ok(())
    }
}

/// A full queue by one name: drivers have three.
pub(super) fn full(error: VerbError) -> VerbError {
    match error.errno {
        libc::ENOSPC | libc::EAGAIN => VerbError { errno: libc::ENOMEM, ..error },
        _ => error,
    }
}
