//! Tests of the software device through the provider traits (the verbs contract), as a worker uses the device.

mod clocks;
mod completions;
mod distribution;
mod faults;
mod features;
mod identity;
mod interfaces;
mod links;
mod messages;
mod nic;
mod oddities;
mod ports;
mod program;
mod recovery;
mod states;
mod table;
mod verbs;
pub(crate) mod xdp;

mod ends;

use std::sync::Arc;

use crate::*;
use dataplane_core::clock::HostClock;
use dataplane_core::error::VerbError;
use dataplane_core::mem::{Desc, PageKind, Region, RegionSpec, RunSource, SlotLayout};
use dataplane_core::units::{Gid, Lkey, Nanos, Period, QpNum, Rkey, Ticks};
use dataplane_core::verbs::*;

const HEADROOM: u16 = 64;

fn period(nanos: u64) -> Period {
    Period(std::time::Duration::from_nanos(nanos))
}

/// A device with a queue pair, two completion queues, and slots (packet buffers).
struct Rig {
    device: SoftDevice,
    pd: SoftPd,
    /// An address handle for the address of this device.
    ah: SoftAh,
    mr: SoftMr,
    layout: SlotLayout,
    send: SoftCq,
    recv: SoftCq,
    qp: SoftQp,
    clock: HostClock,
    run: Box<Completions>,
    /// The `wr_id` values of the outstanding receives, in posting order.
    posted: Vec<u64>,
}

/// The parameters of a rig.
#[derive(Clone)]
struct Plan {
    kind: QpType,
    caps: QpCaps,
    cq_depth: u32,
    fields: PollFields,
    api: CqApi,
    flags: CqFlags,
    queue: (u16, u16),
    access: Access,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            kind: QpType::RawPacket,
            caps: QpCaps { send_depth: 16, recv_depth: 16, send_sges: 3, recv_sges: 3, inline: 64 },
            cq_depth: 64,
            fields: PollFields::STANDARD | PollFields::TIMESTAMP,
            api: CqApi::Auto,
            flags: CqFlags::empty(),
            queue: (0, 1),
            access: Access::LOCAL_WRITE,
        }
    }
}

/// Returns the spec of a device that receives the frames that it sends.
fn reflecting() -> SoftSpec {
    SoftSpec::new("soft", LinkSpec::Loopback(LoopbackLink::reflect()))
}

fn region(bytes: usize) -> Arc<Region> {
    let spec = RegionSpec { bytes, pages: PageKind::Normal, strict: false, node: None };
    Arc::new(Region::allocate(spec).unwrap().0)
}

impl Rig {
    fn new(spec: SoftSpec) -> Self {
        Self::with(spec, Plan::default())
    }

    /// Creates a device with a virtual clock, and a rig on this device.
    fn with(mut spec: SoftSpec, plan: Plan) -> Self {
        let clock = HostClock::manual();
        spec.clock = clock.clone();
        Self::on(SoftDevice::new(spec).unwrap(), clock, plan)
    }

    /// Creates another queue pair with its own memory on an existing device.
    fn on(device: SoftDevice, clock: HostClock, plan: Plan) -> Self {
        let pd = device.alloc_pd().unwrap();
        let cq =
            CqSpec { depth: plan.cq_depth, fields: plan.fields, flags: plan.flags, api: plan.api, ..CqSpec::default() };
        let (send, _) = device.create_cq(&cq, None).unwrap();
        let (recv, _) = device.create_cq(&cq, None).unwrap();
        let spec = QpSpec { queue: plan.queue, ..QpSpec::new(plan.kind, plan.caps) };
        let mut qp = pd.create_qp(&spec, &send, &recv, None).unwrap();
        let layout = SlotLayout::new(usize::from(HEADROOM), 1536, 64).unwrap();
        let mr = pd.register(region(layout.bytes()), plan.access).unwrap();
        qp.bind_slots(&mr, layout, 1000).unwrap();
        let ah = pd.create_ah(&Path { gid: device.gid(), ..Path::default() }).unwrap();
        Self { device, pd, ah, mr, layout, send, recv, qp, clock, run: Completions::new(), posted: Vec::new() }
    }

    /// Moves the queue pair to a state.
    fn go(&mut self, state: QpState) {
        let kind = self.qp.shared.kind;
        let (attributes, mask) = match state {
            QpState::Init => QpAttributes::init(kind, 1, 7),
            QpState::Rts if self.qp.state() == QpState::Rtr => QpAttributes::rts(kind),
            other => QpAttributes::to(other),
        };
        self.qp.modify(&attributes, mask).unwrap();
        if state == QpState::Reset {
            self.posted.clear();
        }
    }

    /// Moves the queue pair from RESET to RTS.
    fn start(&mut self) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.go(state);
        }
    }

    /// Returns the rig with its queue pair in RTS.
    fn ready(mut self) -> Self {
        self.start();
        self
    }

    /// Returns the address of a slot's packet.
    fn packet(&self, slot: u32) -> *mut u8 {
        assert!(slot < self.layout.count());
        let offset = slot as usize * self.layout.stride() as usize + usize::from(HEADROOM);
        // SAFETY: the slot is below the count, and the region contains all slots.
        unsafe { self.mr.region().base().add(offset).as_ptr() }
    }

    /// Writes a packet to a slot, and returns the descriptor of the packet.
    fn put(&self, slot: u32, bytes: &[u8]) -> Desc {
        assert!(bytes.len() <= self.layout.room() as usize);
        // SAFETY: the bytes fit, and tests write only slots that they have not posted.
        unsafe { self.packet(slot).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Desc { slot, offset: HEADROOM, len: bytes.len() as u16 }
    }

    /// Returns the first bytes of the packet in a slot.
    fn get(&self, slot: u32, len: usize) -> Vec<u8> {
        // SAFETY: tests read only slots whose receives have completed.
        unsafe { std::slice::from_raw_parts(self.packet(slot), len) }.to_vec()
    }

    fn sge(&self, slot: u32, length: u32) -> Sge {
        Sge { addr: self.packet(slot) as u64, length, lkey: self.mr.lkey() }
    }

    /// Posts a receive for each slot. The `wr_id` of a receive is 1000 plus the slot.
    fn post_recv_run(&mut self, slots: &[u32]) -> Result<(), PostError> {
        // SAFETY: tests do not access posted slots.
        let posted = unsafe { self.qp.post_recv_run(slots) };
        let accepted = posted.as_ref().map_or_else(|refused| refused.accepted, |()| slots.len());
        self.posted.extend(slots[..accepted].iter().map(|slot| 1000 + u64::from(*slot)));
        posted
    }

    fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: tests do not access posted memory.
        let posted = unsafe { self.qp.post_recv(&[RecvRequest { wr_id, sges }]) };
        self.posted.extend(posted.is_ok().then_some(wr_id));
        posted
    }

    fn post_send_run(&mut self, run: &[Desc], first: u64) -> Result<(), PostError> {
        // SAFETY: tests do not access posted slots.
        unsafe { self.qp.post_send_run(&RunSource::new(run).run(), first) }
    }

    /// Posts a datagram to the queue pair of this rig. `sges` contains the payload.
    fn post_send(&mut self, wr_id: u64, sges: &[Sge], flags: SendFlags) -> Result<(), PostError> {
        let ah = self.ah.clone();
        let to = Destination { ah: &ah, qp: self.qp.number(), qkey: 7 };
        self.post(SendRequest { wr_id, op: SendOp::Send, flags, sges, to: Some(to) })
    }

    fn post(&mut self, wr: SendRequest<'_, SoftAh>) -> Result<(), PostError> {
        // SAFETY: tests do not access posted memory.
        unsafe { self.qp.post_send(&[wr]) }
    }

    /// Polls the completion queue of the receives. Returns the `wr_id`, the status and the length of each completion.
    fn received(&mut self) -> Vec<(u64, WcStatus, u32)> {
        self.receive(MAX_RUN)
    }

    fn receive(&mut self, limit: usize) -> Vec<(u64, WcStatus, u32)> {
        assert!(self.recv.poll_run(&mut self.run, limit).unwrap() <= limit);
        if self.run.in_order {
            let oldest = self.posted.iter().copied();
            self.run.wr_id.iter_mut().zip(oldest).take(self.run.len).for_each(|(to, from)| *to = from);
            let first = self.run.ticks[0];
            self.run.ticks[..self.run.len].fill(first);
        }
        let received = completions_of(&self.run);
        received.iter().for_each(|(wr_id, ..)| self.remove_posted(*wr_id));
        received
    }

    /// Removes a completed receive from `posted`.
    fn remove_posted(&mut self, wr_id: u64) {
        if let Some(at) = self.posted.iter().position(|posted| *posted == wr_id) {
            self.posted.remove(at);
        }
    }

    /// Polls the completion queue of the sends. Returns the `wr_id` and the status of each completion.
    fn sent(&mut self) -> Vec<(u64, WcStatus)> {
        self.send.poll_run(&mut self.run, MAX_RUN).unwrap();
        completions_of(&self.run).into_iter().map(|(wr_id, status, _)| (wr_id, status)).collect()
    }

    /// Returns the kinds of the asynchronous events that the device has raised.
    fn events(&self) -> Vec<EventKind> {
        std::iter::from_fn(|| self.device.poll_async_event()).map(|event| event.kind).collect()
    }
}

/// Returns the `wr_id`, the status and the length of each completion of a poll.
fn completions_of(run: &Completions) -> Vec<(u64, WcStatus, u32)> {
    let status = |i: usize| if run.failed { run.status[i] } else { WcStatus::Success };
    (0..run.len).map(|i| (run.wr_id[i], status(i), run.byte_len[i])).collect()
}

/// Returns the number of accepted requests and the errno of a refused post.
fn errno<T: std::fmt::Debug>(result: Result<T, PostError>) -> (usize, i32) {
    let refused = result.unwrap_err();
    (refused.accepted, refused.error.errno)
}

/// Returns a frame of `len` bytes. Its content depends on `number`.
fn frame(number: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| number.wrapping_add(at as u8)).collect()
}
