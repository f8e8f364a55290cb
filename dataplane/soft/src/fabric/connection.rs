//! The worker's handle of a queue pair on a fabric.

use std::sync::Arc;

use super::context::FabricContext;
use super::network::Fabric;
use super::qp::Qp;
use super::receive::Receive;
use super::requester::Requester;
use super::responder::Responder;
use super::send::{DatagramTarget, Send, SendWork};
use super::shared_receive::SoftSrq;
use crate::fault::PostFaults;
use crate::handle::SoftAh;
use crate::inbox::Inbox;
use crate::memory::{KeyCache, Slots, SoftMr, copy_inline};
use crate::mw::SoftMw;
use crate::numbers::Identity;
use crate::profile::Profile;
use crate::qp_shared::QpShared;
use crate::window::{BindRequest, BoundRange};
use dataplane_core::error::VerbError;
use dataplane_core::mem::{Desc, SlotLayout};
use dataplane_core::units::Gid;
use dataplane_core::verbs::{
    Access, AddressHandle, AttributeMask, Capability, Destination, MemoryRegion, MemoryWindow, MwBind, MwKind,
    PostError, QpAttributes, QpSpec, QpState, QpType, RecvRequest, Remote, SendApi, SendFlags, SendOp, SendRequest,
    SharedReceiveQueue, WrOpcode,
};

/// A connection or datagram queue pair. Dropping this value removes the queue pair from the fabric.
#[derive(Debug)]
pub(crate) struct Connection {
    fabric: Arc<Fabric>,
    shared: Arc<QpShared>,
    /// The shared receive queue. The field keeps the queue alive, because the queue pair refers to it only by number.
    _srq: Option<SoftSrq>,
    slots: Option<Slots>,
    peer: Option<DatagramTarget>,
    pd: Identity,
    /// Whether a post of several sends is accepted or refused as a whole.
    all_or_nothing: bool,
    inline: u64,
}

fn refused(verb: &'static str, accepted: usize, errno: i32) -> PostError {
    PostError { accepted, error: VerbError::new(verb, errno) }
}

/// Copies an operation without the data that it borrows (the header of a TSO request).
fn owned(op: &SendOp<'_>) -> SendOp<'static> {
    match *op {
        SendOp::Send => SendOp::Send,
        SendOp::SendWithImm(imm) => SendOp::SendWithImm(imm),
        SendOp::SendWithInv(rkey) => SendOp::SendWithInv(rkey),
        SendOp::RdmaWrite(remote) => SendOp::RdmaWrite(remote),
        SendOp::RdmaWriteWithImm(remote, imm) => SendOp::RdmaWriteWithImm(remote, imm),
        SendOp::RdmaRead(remote) => SendOp::RdmaRead(remote),
        SendOp::CompareSwap { remote, compare, swap } => SendOp::CompareSwap { remote, compare, swap },
        SendOp::FetchAdd { remote, add } => SendOp::FetchAdd { remote, add },
        SendOp::LocalInv(rkey) => SendOp::LocalInv(rkey),
        // Queue pairs on a fabric refuse TSO requests, so the header is not used.
        SendOp::Tso { mss, .. } => SendOp::Tso { header: &[], mss },
    }
}

impl Connection {
    /// Adds a queue pair to the fabric. The caller has checked `spec`.
    pub(crate) fn new(
        fabric: &Arc<Fabric>,
        shared: &Arc<QpShared>,
        pd: Identity,
        spec: &QpSpec,
        cqs: [&Arc<Inbox>; 2],
        srq: Option<&SoftSrq>,
    ) -> Self {
        let device = &shared.device;
        let faults = |salt| PostFaults::new(&device.faults, u64::from(shared.number.0) << 8 | salt);
        let qp = Qp {
            shared: shared.clone(),
            profile: device.profile,
            pd,
            caps: spec.caps,
            signal_all: spec.signal_all,
            keys: KeyCache::new(device.keys.clone(), pd),
            attributes: QpAttributes::default(),
            source: Gid::default(),
            send_cq: cqs[0].clone(),
            recv_cq: cqs[1].clone(),
            srq: srq.map(SharedReceiveQueue::number),
            receives: Default::default(),
            receives_posted: 0,
            requester: Requester::default(),
            responder: Responder::default(),
            refused: [faults(1), faults(2)],
            draining: false,
            was_reset: false,
            busy: false,
        };
        let mut state = fabric.lock();
        state.prepare(device);
        state.qps.insert(shared.number.0, qp);
        Self {
            fabric: fabric.clone(),
            shared: shared.clone(),
            _srq: srq.cloned(),
            slots: None,
            peer: None,
            pd,
            all_or_nothing: spec.send_api == SendApi::Extended,
            inline: u64::from(spec.caps.inline),
        }
    }

    /// Runs `work` on the queue pair, and then runs the state machine. An error contains the number of accepted
    /// requests and the `errno`.
    fn with<R>(
        &self,
        work: impl FnOnce(&mut Qp, &mut FabricContext<'_>) -> Result<R, (usize, i32)>,
    ) -> Result<R, (usize, i32)> {
        if self.shared.device.is_gone() {
            return Err((0, libc::EIO));
        }
        let mut state = self.fabric.lock();
        let result = state.at(self.shared.number, work).unwrap_or(Err((0, libc::EINVAL)));
        self.fabric.run(state);
        result
    }

    pub(crate) fn query(&self) -> Result<QpAttributes, i32> {
        let asked = self.with(|qp, _| {
            let state = qp.state();
            Ok(QpAttributes { state, current_state: state, ..qp.attributes })
        });
        asked.map_err(|(_, errno)| errno)
    }

    pub(crate) fn modify(&self, to: &QpAttributes, mask: AttributeMask) -> Result<(), i32> {
        self.with(|qp, ctx| qp.modify(to, mask, ctx).map_err(|errno| (0, errno))).map_err(|(_, errno)| errno)
    }

    pub(crate) fn bind(&mut self, mr: &SoftMr, layout: SlotLayout, base: u64) -> Result<(), i32> {
        let outstanding = self.with(|qp, _| Ok(!qp.receives.is_empty())).map_err(|(_, errno)| errno)?;
        if outstanding {
            return Err(libc::EBUSY);
        }
        self.slots = Some(Slots::new(mr.clone(), layout, base, self.pd).ok_or(libc::EINVAL)?);
        Ok(())
    }

    pub(crate) fn bind_peer(&mut self, to: Destination<'_, SoftAh>) -> Result<(), i32> {
        if self.shared.kind != QpType::Ud {
            return Err(libc::EINVAL);
        }
        self.peer = Some(target(&to));
        Ok(())
    }

    pub(crate) fn post_recv(&self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.with(|qp, ctx| qp.post_receives(requests.iter().map(Receive::of), ctx))
            .map_err(|(accepted, errno)| refused("ibv_post_recv", accepted, errno))
    }

    pub(crate) fn post_recv_run(&self, run: &[u32]) -> Result<(), PostError> {
        const VERB: &str = "ibv_post_recv";
        let Some(slots) = &self.slots else { return Err(refused(VERB, 0, libc::EINVAL)) };
        let valid = run.iter().take_while(|&&slot| slot < slots.layout.count()).count();
        let receives = run[..valid].iter().map(|&slot| Receive {
            wr_id: slots.recv_wr_id.wrapping_add(u64::from(slot)),
            sges: vec![slots.recv_sge(slot)],
        });
        self.with(|qp, ctx| qp.post_receives(receives, ctx))
            .map_err(|(accepted, errno)| refused(VERB, accepted, errno))?;
        if valid < run.len() { Err(refused(VERB, valid, libc::EINVAL)) } else { Ok(()) }
    }

    pub(crate) fn post_send(&self, requests: &[SendRequest<'_, SoftAh>]) -> Result<(), PostError> {
        let sends = requests.iter().map(|wr| {
            let to = wr.to.as_ref().map(target);
            let mut send = Send::new(wr.wr_id, SendWork::Op(owned(&wr.op)), wr.flags, wr.sges, to);
            if wr.flags.contains(SendFlags::INLINE) && self.may_be_inline(&send) {
                let mut bytes = Vec::new();
                copy_inline(wr.sges, &mut bytes);
                send.inline = Some(bytes);
            }
            send
        });
        let verb = if self.all_or_nothing { "ibv_wr_complete" } else { "ibv_post_send" };
        self.push(sends, requests.len()).map_err(|(accepted, errno)| refused(verb, accepted, errno))
    }

    pub(crate) fn post_send_run(&self, run: &[Desc], first: u64) -> Result<(), PostError> {
        const VERB: &str = "ibv_post_send";
        let Some(slots) = &self.slots else { return Err(refused(VERB, 0, libc::EINVAL)) };
        let layout = slots.layout;
        let valid = run.iter().take_while(|&&desc| layout.admits(desc)).count();
        // The last accepted send must be signaled, so compute the number of accepted sends in advance.
        let space = self.with(|qp, _| Ok(qp.space())).map_err(|(at, errno)| refused(VERB, at, errno))?;
        let count = valid.min(space);
        let sends = run[..count].iter().enumerate().map(|(i, &desc)| {
            let flags = if i + 1 == count { SendFlags::SIGNALED } else { SendFlags::empty() };
            Send::new(first.wrapping_add(i as u64), SendWork::Op(SendOp::Send), flags, &[slots.sge(desc)], self.peer)
        });
        self.push(sends, count).map_err(|(accepted, errno)| refused(VERB, accepted, errno))?;
        match (count == run.len(), count == valid) {
            (true, _) => Ok(()),
            (_, true) => Err(refused(VERB, count, libc::EINVAL)),
            _ => Err(refused(VERB, count, libc::ENOMEM)),
        }
    }

    /// Posts a bind request for a window.
    pub(crate) fn bind_mw(&self, mw: &mut SoftMw, bind: &MwBind<'_, SoftMr>) -> Result<(), PostError> {
        const VERB: &str = "ibv_bind_mw";
        let device = &self.shared.device;
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let wrong = self.shared.kind == QpType::Ud
            || !mw.is_of(&device.keys)
            || !remote.contains(bind.access)
            || (bind.length == 0 && mw.kind() == MwKind::Type2);
        if wrong {
            return Err(refused(VERB, 0, libc::EINVAL));
        }
        let rkey = mw.next_key();
        let to = BoundRange { lkey: bind.mr.lkey(), addr: bind.addr, length: bind.length, access: bind.access };
        let send = Send::new(bind.wr_id, SendWork::Bind(BindRequest { rkey, to }), bind.flags, &[], None);
        self.push(std::iter::once(send), 1).map_err(|(accepted, errno)| refused(VERB, accepted, errno))?;
        mw.set_key(rkey);
        Ok(())
    }

    fn may_be_inline(&self, send: &Send) -> bool {
        let sends = matches!(
            send.work.opcode(),
            WrOpcode::Send
                | WrOpcode::SendWithImm
                | WrOpcode::SendWithInv
                | WrOpcode::RdmaWrite
                | WrOpcode::RdmaWriteWithImm
        );
        sends && send.length <= self.inline
    }

    /// Posts sends. With `all_or_nothing`, no send is accepted if one send is refused. Otherwise, the sends before the
    /// first refused send are accepted.
    fn push(&self, sends: impl Iterator<Item = Send>, count: usize) -> Result<(), (usize, i32)> {
        self.with(|qp, ctx| {
            let full = if self.all_or_nothing && qp.is_rxe() { libc::ENOSPC } else { libc::ENOMEM };
            if self.all_or_nothing {
                let sends: Vec<Send> = sends.collect();
                let wrong = sends.iter().find_map(|send| self.post_error(qp, send));
                let errno = wrong.or_else(|| (qp.space() < count).then_some(full));
                let refuses = || qp.refused[1].as_mut().and_then(PostFaults::refuses);
                if let Some(errno) = errno.or_else(|| std::iter::repeat_with(refuses).take(count).find_map(|it| it)) {
                    return Err((0, errno));
                }
                sends.into_iter().for_each(|send| qp.push_send(send, ctx));
                return Ok(());
            }
            for (accepted, send) in sends.enumerate() {
                let errno = self.post_error(qp, &send).or_else(|| (qp.space() == 0).then_some(full));
                if let Some(errno) = errno.or_else(|| qp.refused[1].as_mut().and_then(PostFaults::refuses)) {
                    return Err((accepted, errno));
                }
                qp.push_send(send, ctx);
            }
            Ok(())
        })
    }

    /// Returns the `errno` if a send is invalid, so that it must not be posted.
    fn post_error(&self, qp: &Qp, send: &Send) -> Option<i32> {
        let opcode = send.work.opcode();
        let atomic = match send.work {
            SendWork::Op(SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. }) => Some(remote),
            _ => None,
        };
        let inline = send.flags.contains(SendFlags::INLINE);
        // rxe (the kernel's software RoCE driver) checks atomics when they are posted. On a datagram queue pair, an
        // atomic has no valid remote address, so its alignment is not checked.
        let wrong_atomic = |qp: &Qp| {
            let aligned = |remote: Remote| qp.kind() == QpType::Ud || remote.addr.is_multiple_of(8);
            qp.profile == Profile::Rxe && atomic.is_some_and(|remote| !aligned(remote) || send.length < 8)
        };
        if matches!(qp.state(), QpState::Reset | QpState::Init | QpState::Rtr)
            || send.sges.len() > qp.caps.send_sges as usize
            || send.flags.contains(SendFlags::IP_CSUM)
            || (inline && send.inline.is_none())
            || wrong_atomic(qp)
        {
            return Some(libc::EINVAL);
        }
        let lacks = |capability| !self.shared.device.has(capability);
        let unsupported = opcode == WrOpcode::Tso || (atomic.is_some() && lacks(Capability::Atomic));
        unsupported.then_some(libc::EOPNOTSUPP)
    }

    pub(crate) fn attach(&self, group: Gid) -> Result<(), i32> {
        if self.shared.device.is_gone() {
            return Err(libc::EIO);
        }
        let mut state = self.fabric.lock();
        let member = (group, self.shared.number);
        if !state.qps.get(&self.shared.number.0).is_some_and(|qp| qp.may_join(group)) {
            return Err(libc::EINVAL);
        }
        if !state.groups.contains(&member) {
            state.groups.push(member);
        }
        Ok(())
    }

    pub(crate) fn detach(&self, group: Gid) -> Result<(), i32> {
        if self.shared.device.is_gone() {
            return Err(libc::EIO);
        }
        let mut state = self.fabric.lock();
        let before = state.groups.len();
        state.groups.retain(|member| *member != (group, self.shared.number));
        if state.groups.len() < before { Ok(()) } else { Err(libc::EINVAL) }
    }
}

fn target(to: &Destination<'_, SoftAh>) -> DatagramTarget {
    DatagramTarget { path: *to.ah.path(), qp: to.qp, qkey: to.qkey, pd: to.ah.pd() }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.fabric.lock();
        state.groups.retain(|(_, member)| *member != self.shared.number);
        let Some(qp) = state.qps.remove(&self.shared.number.0) else { return };
        if !qp.is_rxe() {
            qp.send_cq.purge(self.shared.number);
            qp.recv_cq.purge(self.shared.number);
        }
        self.shared.set_state(QpState::Reset);
    }
}
