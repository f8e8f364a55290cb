//! The end of a queue pair that its worker holds.

use std::sync::Arc;

use super::qp::{Qp, Receive, Target};
use super::request::Requester;
use super::response::Responder;
use super::send::{Send, Work};
use super::{Fabric, Reach, SoftSrq};
use crate::error::VerbError;
use crate::mem::{Desc, SlotLayout};
use crate::provider::soft::fault::PostFaults;
use crate::provider::soft::handle::SoftAh;
use crate::provider::soft::inbox::Inbox;
use crate::provider::soft::memory::{KeyCache, Slots, SoftMr, copy_inline};
use crate::provider::soft::qp::QpShared;
use crate::provider::soft::spec::Profile;
use crate::provider::soft::window::{Binding, Bound, SoftMw};
use crate::provider::{
    Access, AddressHandle, AttributeMask, Capability, Destination, MemoryRegion, MemoryWindow, MwBind, MwKind,
    PostError, QpAttributes, QpSpec, QpState, QpType, RecvRequest, Remote, SendApi, SendFlags, SendOp, SendRequest,
    SharedReceiveQueue, WrOpcode,
};
use crate::units::Gid;

/// A queue pair of a connection or of datagrams: on its fabric as long as this lives.
#[derive(Debug)]
pub(in crate::provider::soft) struct Connection {
    fabric: Arc<Fabric>,
    shared: Arc<QpShared>,
    /// Kept for the queue pair, which names it by number.
    _srq: Option<SoftSrq>,
    slots: Option<Slots>,
    peer: Option<Target>,
    pd: u32,
    /// Whether posts of several sends fail whole.
    whole: bool,
    inline: u64,
}

fn refused(verb: &'static str, accepted: usize, errno: i32) -> PostError {
    PostError { accepted, error: VerbError::new(verb, errno) }
}

/// An operation without what it borrows.
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
        // No queue pair here has it, whatever the segments.
        SendOp::Tso { mss, .. } => SendOp::Tso { header: &[], mss },
    }
}

impl Connection {
    /// Puts a queue pair of a checked spec on the fabric.
    pub(in crate::provider::soft) fn new(
        fabric: &Arc<Fabric>,
        shared: &Arc<QpShared>,
        pd: u32,
        spec: &QpSpec,
        cqs: [&Arc<Inbox>; 2],
        srq: Option<&SoftSrq>,
    ) -> Self {
        let device = &shared.device;
        let faults = |salt| PostFaults::new(&device.spec.faults, u64::from(shared.number.0) << 8 | salt);
        let qp = Qp {
            shared: shared.clone(),
            profile: device.spec.profile,
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
            whole: spec.send_api == SendApi::Extended,
            inline: u64::from(spec.caps.inline),
        }
    }

    /// Works at the queue pair, and lets happen what follows.
    fn with<R>(
        &self,
        work: impl FnOnce(&mut Qp, &mut Reach<'_>) -> Result<R, (usize, i32)>,
    ) -> Result<R, (usize, i32)> {
        if self.shared.device.is_gone() {
            return Err((0, libc::EIO));
        }
        let mut state = self.fabric.lock();
        let result = state.at(self.shared.number, work).unwrap_or(Err((0, libc::EINVAL)));
        state.run();
        result
    }

    pub(in crate::provider::soft) fn query(&self) -> Result<QpAttributes, i32> {
        let asked = self.with(|qp, _| {
            let state = qp.state();
            Ok(QpAttributes { state, current_state: state, ..qp.attributes })
        });
        asked.map_err(|(_, errno)| errno)
    }

    pub(in crate::provider::soft) fn modify(&self, to: &QpAttributes, mask: AttributeMask) -> Result<(), i32> {
        self.with(|qp, reach| qp.modify(to, mask, reach).map_err(|errno| (0, errno))).map_err(|(_, errno)| errno)
    }

    pub(in crate::provider::soft) fn bind(&mut self, mr: &SoftMr, layout: SlotLayout, base: u64) -> Result<(), i32> {
        let outstanding = self.with(|qp, _| Ok(!qp.receives.is_empty())).map_err(|(_, errno)| errno)?;
        if outstanding {
            return Err(libc::EBUSY);
        }
        self.slots = Some(Slots::new(mr.clone(), layout, base, self.pd).ok_or(libc::EINVAL)?);
        Ok(())
    }

    pub(in crate::provider::soft) fn bind_peer(&mut self, to: Destination<'_, SoftAh>) -> Result<(), i32> {
        if self.shared.kind != QpType::Ud {
            return Err(libc::EINVAL);
        }
        self.peer = Some(target(&to));
        Ok(())
    }

    pub(in crate::provider::soft) fn post_recv(&self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        self.with(|qp, reach| qp.post_receives(requests.iter().map(Receive::of), reach))
            .map_err(|(accepted, errno)| refused("ibv_post_recv", accepted, errno))
    }

    pub(in crate::provider::soft) fn post_recv_run(&self, run: &[u32]) -> Result<(), PostError> {
        const VERB: &str = "ibv_post_recv";
        let Some(slots) = &self.slots else { return Err(refused(VERB, 0, libc::EINVAL)) };
        let valid = run.iter().take_while(|&&slot| slot < slots.layout.count).count();
        let receives = run[..valid].iter().map(|&slot| Receive {
            wr_id: slots.recv_wr_id.wrapping_add(u64::from(slot)),
            sges: vec![slots.recv_sge(slot)],
        });
        self.with(|qp, reach| qp.post_receives(receives, reach))
            .map_err(|(accepted, errno)| refused(VERB, accepted, errno))?;
        if valid < run.len() { Err(refused(VERB, valid, libc::EINVAL)) } else { Ok(()) }
    }

    pub(in crate::provider::soft) fn post_send(&self, requests: &[SendRequest<'_, SoftAh>]) -> Result<(), PostError> {
        let sends = requests.iter().map(|wr| {
            let to = wr.to.as_ref().map(target);
            let mut send = Send::new(wr.wr_id, Work::Op(owned(&wr.op)), wr.flags, wr.sges, to);
            if wr.flags.contains(SendFlags::INLINE) && self.may_be_inline(&send) {
                let mut bytes = Vec::new();
                copy_inline(wr.sges, &mut bytes);
                send.inline = Some(bytes);
            }
            send
        });
        let verb = if self.whole { "ibv_wr_complete" } else { "ibv_post_send" };
        self.push(sends, requests.len()).map_err(|(accepted, errno)| refused(verb, accepted, errno))
    }

    pub(in crate::provider::soft) fn post_send_run(&self, run: &[Desc], first: u64) -> Result<(), PostError> {
        const VERB: &str = "ibv_post_send";
        let Some(slots) = &self.slots else { return Err(refused(VERB, 0, libc::EINVAL)) };
        let layout = slots.layout;
        let valid = run.iter().take_while(|&&desc| layout.admits(desc)).count();
        // The last that is taken is signalled, so it must be known which that is.
        let space = self.with(|qp, _| Ok(qp.space())).map_err(|(at, errno)| refused(VERB, at, errno))?;
        let count = valid.min(space);
        let sends = run[..count].iter().enumerate().map(|(i, &desc)| {
            let flags = if i + 1 == count { SendFlags::SIGNALED } else { SendFlags::empty() };
            Send::new(first.wrapping_add(i as u64), Work::Op(SendOp::Send), flags, &[slots.sge(desc)], self.peer)
        });
        self.push(sends, count).map_err(|(accepted, errno)| refused(VERB, accepted, errno))?;
        match (count == run.len(), count == valid) {
            (true, _) => Ok(()),
            (_, true) => Err(refused(VERB, count, libc::EINVAL)),
            _ => Err(refused(VERB, count, libc::ENOMEM)),
        }
    }

    /// Posts the binding of a window.
    pub(in crate::provider::soft) fn bind_mw(
        &self,
        mw: &mut SoftMw,
        bind: &MwBind<'_, SoftMr>,
    ) -> Result<(), PostError> {
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
        let to = Bound { lkey: bind.mr.lkey(), addr: bind.addr, length: bind.length, access: bind.access };
        let send = Send::new(bind.wr_id, Work::Bind(Binding { rkey, to }), bind.flags, &[], None);
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

    /// Posts sends, in part where one is refused, or all or none.
    fn push(&self, sends: impl Iterator<Item = Send>, count: usize) -> Result<(), (usize, i32)> {
        self.with(|qp, reach| {
            let full = if self.whole && qp.is_rxe() { libc::ENOSPC } else { libc::ENOMEM };
            if self.whole {
                let sends: Vec<Send> = sends.collect();
                let wrong = sends.iter().find_map(|send| self.objection(qp, send));
                let errno = wrong.or_else(|| (qp.space() < count).then_some(full));
                let refuses = || qp.refused[1].as_mut().and_then(PostFaults::refuses);
                if let Some(errno) = errno.or_else(|| std::iter::repeat_with(refuses).take(count).find_map(|it| it)) {
                    return Err((0, errno));
                }
                sends.into_iter().for_each(|send| qp.push_send(send, reach));
                return Ok(());
            }
            for (accepted, send) in sends.enumerate() {
                let errno = self.objection(qp, &send).or_else(|| (qp.space() == 0).then_some(full));
                if let Some(errno) = errno.or_else(|| qp.refused[1].as_mut().and_then(PostFaults::refuses)) {
                    return Err((accepted, errno));
                }
                qp.push_send(send, reach);
            }
            Ok(())
        })
    }

    /// Why a send may not be posted at all.
    fn objection(&self, qp: &Qp, send: &Send) -> Option<i32> {
        let opcode = send.work.opcode();
        let atomic = match send.work {
            Work::Op(SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. }) => Some(remote),
            _ => None,
        };
        let inline = send.flags.contains(SendFlags::INLINE);
        // The kernel's device looks at atomics before it takes them. Of a datagram there is no address there to look at.
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

    pub(in crate::provider::soft) fn attach(&self, group: Gid) -> Result<(), i32> {
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

    pub(in crate::provider::soft) fn detach(&self, group: Gid) -> Result<(), i32> {
        if self.shared.device.is_gone() {
            return Err(libc::EIO);
        }
        let mut state = self.fabric.lock();
        let before = state.groups.len();
        state.groups.retain(|member| *member != (group, self.shared.number));
        if state.groups.len() < before { Ok(()) } else { Err(libc::EINVAL) }
    }
}

fn target(to: &Destination<'_, SoftAh>) -> Target {
    Target { path: *to.ah.path(), qp: to.qp, qkey: to.qkey, pd: to.ah.pd() }
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
