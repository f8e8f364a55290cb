//! Runs the same random verbs programs on two test beds and compares the results. A test bed is a pair of devices that
//! can reach each other, or one device with both endpoints.
//!
//! A program is generated while it runs on the first bed, the software device. The next step may depend on earlier
//! results, so that most steps are useful. The program then runs on the second bed. The second bed is rxe (the kernel's
//! software RoCE driver), or one software device that has both endpoints. After each step, the test waits until the
//! second bed has as many completions as the first bed had, so that the result does not depend on timing. On both beds,
//! the test checks that every accepted request ends exactly once. A request ends with its own completion, with the
//! completion of a later request of the same queue, or with a reset.
//!
//! On a slow machine, rxe sends some requests a second time. For two kinds of requests, the result of the second
//! transmission differs from the result of the first. Programs do not contain these requests, because their results
//! depend on timing:
//!
//! - A fenced read or atomic. Each read takes one of `max_rd_atomic` credits, and a fenced request waits until all
//!   credits are free (`rxe_wqe_is_fenced`). The second transmission waits too, but one credit still belongs to the
//!   request itself, so the request never completes.
//! - A read without bytes and with an invalid key. rxe does not check the key of the first transmission, but looks up
//!   the key of the second transmission (`rxe_recheck_mr`). So does the software device (test
//!   `rxe_checks_the_remote_key_of_an_empty_read_only_if_the_read_is_resent`).
//!
//! Some programs have a memory window, a limit of the shared receive queue, or a multicast group. On both beds, the
//! test checks that each limit that was reached raised exactly one event.
//!
//! `FUZZ_SEED=n` is the seed of the first program. Each further program uses the next number. `FUZZ_COUNT=n` is the
//! number of programs. If a program fails, the test removes the steps that are not needed for the failure. The test
//! prints the remaining program, and the command that repeats the failure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dataplane::lane::message::{Binding, MessageDomain, MessageSharedQueue, Mw};
use dataplane::units::{Gid, QpNum, Rkey};
use dataplane::verbs::{
    Access, AttributeMask, EventKind, MemoryWindow, MwKind, QpAttributes, QpCaps, QpState, QpType, RawDevice,
    RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge, SrqSpec, WcStatus,
};

use crate::bed::{
    CAPS, COMPLETION_TIMEOUT, Connection, Endpoint, EndpointSpec, Outcome, Pair, PairCq, Stop, TestBed, post_result,
    remote, verb_result,
};
use crate::cases::{bad_lkey, bad_rkey};

/// The random number generator SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns `true` with probability 1/`n`.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len() as u64) as usize]
    }
}

/// The local memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocalMemory {
    /// Memory of this length in one scatter/gather element.
    Good(u16),
    /// Memory of this length in three scatter/gather elements.
    Thirds(u16),
    /// No scatter/gather element.
    Nothing,
    BadKey(u16),
    OutOfBounds,
    /// Memory without local write access.
    Fixed(u16),
    /// Memory of another protection domain.
    Foreign(u16),
    /// More scatter/gather elements than the queue pair granted.
    TooMany,
}

impl LocalMemory {
    /// Returns `true` if the request moves no bytes.
    fn is_empty(self) -> bool {
        matches!(
            self,
            Self::Nothing | Self::Good(0) | Self::Thirds(0) | Self::BadKey(0) | Self::Fixed(0) | Self::Foreign(0)
        )
    }
}

/// The remote memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarMemory {
    Good(u16),
    BadKey,
    OutOfBounds,
    Below,
    /// Memory of the peer that the requester has no permission to access.
    Fixed,
    /// An address that is not a multiple of eight.
    Odd,
    /// Memory inside the peer's window, addressed with the key of the window.
    Window(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    SendWithImm(u32),
    SendWithInvBadKey,
    /// Invalidates the peer's window.
    SendWithInvWindow,
    /// Invalidates the window of the endpoint that posts the request.
    LocalInvWindow,
    Write(FarMemory),
    WriteWithImm(FarMemory, u32),
    Read(FarMemory),
    CompareSwap(FarMemory, u64, u64),
    FetchAdd(FarMemory, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    op: Op,
    local: LocalMemory,
    signalled: bool,
    inline: bool,
    fence: bool,
    solicited: bool,
}

/// One step of a program. `b` selects the second endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Receives {
        b: bool,
        locals: Vec<LocalMemory>,
    },
    Sends {
        b: bool,
        requests: Vec<Request>,
    },
    To {
        b: bool,
        state: QpState,
    },
    /// A state change with a missing attribute or with an attribute that is not allowed.
    BadModify {
        b: bool,
        state: QpState,
        mask: u32,
    },
    /// Moves both queue pairs to RESET and back to RTS.
    Reconnect,
    /// Binds the window of endpoint b. With `clears`, unbinds the window.
    Bind {
        access: Access,
        clears: bool,
    },
    /// Arms the limit of the shared receive queue.
    Arm {
        limit: u32,
    },
    /// Endpoint b joins or leaves the multicast group.
    Member {
        joins: bool,
    },
    /// Endpoint a sends to the multicast group.
    Multicast {
        requests: Vec<Request>,
    },
}

/// The parameters of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    kind: QpType,
    signal_all: bool,
    /// Whether endpoint b takes its receives from a shared receive queue.
    shared_queue: bool,
    /// The remote access that endpoint b grants to endpoint a.
    access: Access,
    /// The kind of endpoint b's window, if it has a window.
    window: Option<MwKind>,
    /// Whether endpoint a may send to a multicast group.
    group: bool,
}

/// The objects that all programs on a bed share. Creating them takes longer than running a program.
struct SharedObjects<'a, D: RawDevice> {
    bed: &'a TestBed<D>,
    domains: [MessageDomain<D>; 2],
    /// For each endpoint: read-only memory, and memory of another protection domain.
    fixed: [dataplane::lane::message::Buffer<D>; 2],
    foreign: [dataplane::lane::message::Buffer<D>; 2],
    /// The initial content of the memory.
    pattern: Vec<u8>,
    /// A connected pair. After a round trip on this pair, all earlier messages of other pairs have arrived or are lost.
    barrier: Pair<D>,
    /// The socket through which the network interface of a kernel device joins the multicast group.
    _member: Option<std::net::UdpSocket>,
}

/// A multicast group of link-local scope that only this test uses.
const GROUP: Gid = Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xda, 0x7a, 0x00, 0x02]);

/// The access that a window permits.
const WINDOW: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

impl<'a, D: RawDevice> SharedObjects<'a, D> {
    fn new(bed: &'a TestBed<D>) -> Outcome<Self> {
        let domains = [MessageDomain::new(&bed.a)?, MessageDomain::new(&bed.b)?];
        let fixed = [domains[0].buffer(4096, Access::empty())?, domains[1].buffer(4096, Access::empty())?];
        let foreign = [&bed.a, &bed.b]
            .map(|device| -> Outcome<_> { Ok(MessageDomain::new(device)?.buffer(4096, crate::bed::ALL_ACCESS)?) });
        let [a, b] = foreign;
        let spec = EndpointSpec::new(QpType::Rc);
        let barrier = Pair::connected(bed, spec, Connection::default(), Connection::default())?;
        let own = barrier.b.gid.0;
        let interface = bed.b.gids(1)?.iter().find(|entry| entry.gid == own).map_or(0, |entry| entry.interface);
        let member = match interface {
            0 => None,
            interface => {
                let socket = std::net::UdpSocket::bind("[::]:0")?;
                socket.join_multicast_v6(&std::net::Ipv6Addr::from(GROUP.0), interface)?;
                Some(socket)
            }
        };
        let pattern = crate::cases::pattern(1, MEMORY);
        Ok(Self { bed, domains, fixed, foreign: [a?, b?], pattern, barrier, _member: member })
    }

    /// Sends a message in each direction.
    fn round_trip(&mut self) -> Outcome {
        self.barrier.a.recv(0, 0..8)?;
        self.barrier.b.recv(0, 0..8)?;
        self.barrier.a.send(0, 0..1)?;
        let there = self.barrier.wait(&[(PairCq::BReceived, 1)])?;
        self.barrier.b.send(0, 0..1)?;
        let back = self.barrier.wait(&[(PairCq::ASent, 1), (PairCq::AReceived, 1), (PairCq::BSent, 1)])?;
        for end in [&mut self.barrier.a, &mut self.barrier.b] {
            end.sent.clear();
            end.received.clear();
        }
        if there && back { Ok(()) } else { Err(Stop::Fail("no round trip".to_owned())) }
    }
}

/// A request that the queue pair accepted.
#[derive(Clone, Debug)]
struct AcceptedRequest {
    wr_id: u64,
    signalled: bool,
    /// The scatter/gather elements of the request.
    sges: Vec<Sge>,
}

/// A program that runs on a bed.
struct ProgramRun<'s, 'a, D: RawDevice> {
    objects: &'s mut SharedObjects<'a, D>,
    setting: Setting,
    // The window is dropped before its queue pair and region. In the other order, rxe waits for seconds.
    window: Option<Mw<D>>,
    pair: Pair<D>,
    srq: Option<MessageSharedQueue<D>>,
    /// The latest request that binds the window.
    binding: u64,
    /// Whether the window is bound.
    bound: bool,
    /// Whether endpoint b is a member of the multicast group.
    joined: bool,
    /// Whether the limit of the shared receive queue is armed.
    armed: bool,
    /// The number of times that the limit was reached.
    limits_reached: usize,
    /// The number of events about the limit.
    limit_events: usize,
    next: u64,
    /// The accepted sends and receives that have not ended, for each endpoint.
    sends: [VecDeque<AcceptedRequest>; 2],
    receives: [VecDeque<AcceptedRequest>; 2],
    log: Vec<String>,
}

/// The memory size of an endpoint in bytes. The memory starts with 8 receive buffers of 256 bytes.
const MEMORY: usize = 4096;
/// The offset of the 4 send buffers of 256 bytes.
const SENDS: usize = 2048;
/// The offset of the memory that the peer accesses.
const FAR: usize = 3072;

/// The number of completions in a step for each queue: sends of endpoint a, receives of endpoint a, sends of endpoint
/// b, receives of endpoint b.
type Counts = [usize; 4];

const QUEUES: [PairCq; 4] = [PairCq::ASent, PairCq::AReceived, PairCq::BSent, PairCq::BReceived];

const CONNECTION: Connection = Connection {
    access: Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC),
    max_rd_atomic: 4,
    max_dest_rd_atomic: 4,
    // A send to a peer without a posted receive fails immediately, without a retry.
    rnr_retry: 0,
    retry_count: 5,
    // 34 ms for each of six attempts. With a shorter timeout, a slow peer would count as absent.
    timeout: 13,
    path_mtu: 3,
    rq_psn: 0x77,
    sq_psn: 0x77,
};

/// Returns the connection parameters. The software device responds immediately or never, so a short timeout is enough.
fn connection<D: RawDevice>(bed: &TestBed<D>) -> Connection {
    if bed.kernel { CONNECTION } else { Connection { timeout: 5, ..CONNECTION } }
}

impl<'s, 'a, D: RawDevice> ProgramRun<'s, 'a, D> {
    fn new(objects: &'s mut SharedObjects<'a, D>, setting: Setting) -> Outcome<Self> {
        let caps = QpCaps { inline: 64, ..CAPS };
        let spec =
            EndpointSpec { signal_all: setting.signal_all, memory: MEMORY, caps, ..EndpointSpec::new(setting.kind) };
        let [first, second] = objects.domains.clone();
        let srq = match setting.shared_queue {
            true => Some(second.create_srq(&SrqSpec { depth: 16, sges: 3 })?),
            false => None,
        };
        let mut pair = Pair {
            a: Endpoint::on(objects.bed, false, spec, first, None)?,
            b: Endpoint::on(objects.bed, true, spec, second, srq.as_ref())?,
        };
        let own = connection(objects.bed);
        pair.advance(QpState::Rts, own, Connection { access: setting.access, ..own })?;
        for end in [&pair.a, &pair.b] {
            end.buffer.write(0, &objects.pattern);
        }
        let window = setting.window.map(|kind| pair.b.domain.alloc_mw(kind)).transpose()?;
        // Discard the events of earlier programs.
        while objects.bed.b.poll_async_event().is_some() {}
        let none = || [VecDeque::new(), VecDeque::new()];
        Ok(Self {
            objects,
            setting,
            window,
            pair,
            srq,
            binding: 0,
            bound: false,
            joined: false,
            armed: false,
            limits_reached: 0,
            limit_events: 0,
            next: 1,
            sends: none(),
            receives: none(),
            log: Vec::new(),
        })
    }

    /// Takes the events of the second device, and counts the events about the limit.
    fn take_events(&mut self) {
        let Some(number) = self.srq.as_ref().map(MessageSharedQueue::number) else { return };
        while let Some(event) = self.objects.bed.b.poll_async_event() {
            let reached = event.kind == EventKind::SrqLimitReached && event.element == number;
            self.limit_events += usize::from(reached);
        }
    }

    /// Logs the limit of the shared receive queue. If an armed limit is now 0, the limit was reached.
    fn log_limit(&mut self) -> Outcome {
        let Some(srq) = &self.srq else { return Ok(()) };
        let limit = srq.limit()?;
        self.limits_reached += usize::from(self.armed && limit == 0);
        self.armed = limit > 0;
        self.log.push(format!("limit {limit}"));
        Ok(())
    }

    fn bind(&mut self, access: Access, clears: bool) {
        let Some(window) = &mut self.window else { return };
        let (wr_id, buffer) = (self.next, self.pair.b.buffer.clone());
        self.next += 1;
        let part = if clears { 0..0 } else { FAR..MEMORY };
        let binding = Binding { wr_id, flags: SendFlags::SIGNALED, buffer: &buffer, part, access };
        let done = self.pair.b.qp.bind_mw(window, &binding);
        if done.is_ok() {
            self.sends[1].push_back(AcceptedRequest { wr_id, signalled: true, sges: Vec::new() });
            self.binding = wr_id;
        }
        self.log.push(format!("bind: {}", post_result(done)));
    }

    /// Returns the key that a request invalidates. If the window is not bound, the key is invalid, because rxe of Linux
    /// 6.1 follows a null pointer if a request invalidates an unbound window.
    fn window_key(&self) -> Rkey {
        let far = if self.bound { FarMemory::Window(0) } else { FarMemory::BadKey };
        self.far(false, far, 0).rkey
    }

    /// Posts the sends of endpoint a with the multicast group as their destination.
    fn post_multicasts(&mut self, requests: &[Request]) -> Outcome {
        let group = self.pair.a.domain.create_ah(&self.pair.a.path((GROUP, 0)))?;
        let usual = self.pair.a.destination.replace((group, QpNum(0xff_ffff)));
        self.post_sends(false, requests);
        self.pair.a.destination = usual;
        Ok(())
    }

    fn end(&mut self, b: bool) -> &mut Endpoint<D> {
        if b { &mut self.pair.b } else { &mut self.pair.a }
    }

    fn sges(&mut self, b: bool, local: LocalMemory, into: usize) -> Vec<Sge> {
        let fixed = self.objects.fixed[usize::from(b)].sge(0..usize::from(u16::MAX).min(4096));
        let foreign = self.objects.foreign[usize::from(b)].sge(0..4096);
        let end = self.end(b);
        let len = end.buffer.len();
        let cut = |sge: Sge, length: u16| Sge { length: u32::from(length), ..sge };
        match local {
            LocalMemory::Good(length) => vec![end.buffer.sge(into..into + usize::from(length))],
            LocalMemory::Thirds(length) => crate::cases::thirds(end, into..into + usize::from(length)).to_vec(),
            LocalMemory::Nothing => Vec::new(),
            LocalMemory::BadKey(length) => vec![bad_lkey(end.buffer.sge(into..into + usize::from(length)))],
            LocalMemory::OutOfBounds => vec![end.buffer.sge(len - 10..len + 90)],
            LocalMemory::Fixed(length) => vec![cut(fixed, length)],
            LocalMemory::Foreign(length) => vec![cut(foreign, length)],
            LocalMemory::TooMany => vec![end.buffer.sge(into..into + 1); CAPS.send_sges as usize + 30],
        }
    }

    /// Returns the remote memory of a request. The requests of one post use separate parts of the memory, because a
    /// read may see the data of a later write.
    fn far(&self, b: bool, far: FarMemory, wr_id: u64) -> Remote {
        let peer = if b { &self.pair.a } else { &self.pair.b };
        match far {
            FarMemory::Good(at) => remote(peer, FAR + 256 * (wr_id as usize % 4) + 8 * usize::from(at)),
            FarMemory::BadKey => bad_rkey(remote(peer, FAR)),
            FarMemory::OutOfBounds => remote(peer, peer.buffer.len() - 4),
            FarMemory::Below => Remote { addr: peer.buffer.addr() - 1, ..remote(peer, 0) },
            FarMemory::Fixed => self.objects.fixed[usize::from(!b)].remote(0),
            FarMemory::Odd => remote(peer, FAR + 3),
            // Endpoint a has no window, so a request of endpoint b has an invalid key.
            FarMemory::Window(at) => match self.window.as_ref().filter(|_| !b) {
                Some(window) => Remote { rkey: window.rkey(), ..remote(peer, FAR + 8 * usize::from(at)) },
                None => bad_rkey(remote(peer, FAR)),
            },
        }
    }

    /// Runs a step and returns the number of completions for each queue. With `wanted`, waits for these numbers of
    /// completions.
    fn step(&mut self, step: &Step, wanted: Option<Counts>) -> Outcome<Counts> {
        match step {
            Step::Receives { b, locals } => self.post_receives(*b, locals),
            Step::Sends { b, requests } => self.post_sends(*b, requests),
            Step::To { b, state } => {
                let (attributes, mask) = QpAttributes::to(*state);
                let from = self.end(*b).qp.query()?.state;
                if (from, *state) == (QpState::Rts, QpState::Sqd) {
                    // `drain` discards all events of the device, so count the events about the limit first.
                    self.take_events();
                    // Wait until running requests have ended. Until then, some devices do not report the state SQD.
                    crate::cases::drain(self.end(*b))?;
                    self.log.push("drained".to_owned());
                    return self.wait(wanted);
                }
                let done = self.end(*b).qp.modify(&attributes, mask);
                self.log.push(format!("to {state:?}: {}", verb_result(done)));
                if done.is_ok() && *state == QpState::Reset {
                    self.sends[usize::from(*b)].clear();
                    self.forget_receives(*b);
                }
            }
            Step::BadModify { b, state, mask } => {
                let end = if *b { &self.pair.b } else { &self.pair.a };
                let (attributes, _) = CONNECTION.step(end, *state, end.address(), end.qp.number());
                let mask = AttributeMask::from_bits_truncate(*mask) | AttributeMask::STATE;
                // Skip valid changes, because they lead to a state that the program does not track.
                let from = self.end(*b).qp.query()?.state;
                let kind = self.setting.kind;
                if dataplane::verbs::check_transition(kind, from, *state, mask).is_err() {
                    let done = self.end(*b).qp.modify(&attributes, mask);
                    self.log.push(format!("to {state:?} with {:#x}: {}", mask.bits(), verb_result(done)));
                }
            }
            Step::Reconnect => {
                for b in [false, true] {
                    let (attributes, mask) = QpAttributes::to(QpState::Reset);
                    self.end(b).qp.modify(&attributes, mask)?;
                    self.sends[usize::from(b)].clear();
                    self.forget_receives(b);
                }
                let own = connection(self.objects.bed);
                self.pair.advance(QpState::Rts, own, Connection { access: self.setting.access, ..own })?;
            }
            Step::Bind { access, clears } => self.bind(*access, *clears),
            Step::Arm { limit } => {
                if let Some(srq) = &mut self.srq {
                    let done = srq.arm_limit(*limit);
                    self.armed |= done.is_ok();
                    self.log.push(format!("limit {limit}: {}", verb_result(done)));
                }
            }
            Step::Member { joins } => {
                let qp = &mut self.pair.b.qp;
                let done = if *joins { qp.attach_multicast(GROUP, 0) } else { qp.detach_multicast(GROUP, 0) };
                self.joined = if done.is_ok() { *joins } else { self.joined };
                self.log.push(format!("joins {joins}: {}", verb_result(done)));
            }
            Step::Multicast { requests } => self.post_multicasts(requests)?,
        }
        let counts = self.wait(wanted)?;
        // UC and UD messages are not acknowledged, so they may still be in flight.
        if self.setting.kind != QpType::Rc && matches!(step, Step::Sends { .. } | Step::Multicast { .. }) {
            self.objects.round_trip()?;
            self.pair.poll_queues()?;
        }
        self.check_accounting()?;
        self.bound |= self.pair.b.sent.iter().any(|it| it.wr_id == self.binding && it.status == WcStatus::Success);
        self.pair.log_completions(&mut self.log);
        self.log_limit()?;
        Ok(counts)
    }

    /// Removes the receives of an endpoint from the accounting after a reset. Receives of a shared queue stay posted.
    fn forget_receives(&mut self, b: bool) {
        if !(b && self.srq.is_some()) {
            self.receives[usize::from(b)].clear();
        }
    }

    fn post_receives(&mut self, b: bool, locals: &[LocalMemory]) {
        let mut posted = Vec::new();
        for local in locals {
            let wr_id = self.next;
            self.next += 1;
            // Each receive has its own part of the memory.
            let place = 256 * (wr_id as usize % 8);
            posted.push(AcceptedRequest { wr_id, signalled: true, sges: self.sges(b, *local, place) });
        }
        let requests: Vec<_> = posted.iter().map(|it| RecvRequest { wr_id: it.wr_id, sges: &it.sges }).collect();
        let done = match &mut self.srq {
            Some(srq) if b => srq.post_recv(&requests),
            _ => self.end(b).qp.post_recv(&requests),
        };
        let accepted = done.as_ref().map_or_else(|refused| refused.accepted, |()| posted.len());
        self.log.push(format!("receives: {}", post_result(done)));
        self.receives[usize::from(b)].extend(posted.into_iter().take(accepted));
        // rxe does not flush a receive that is posted in ERR until the state is set to ERR again. The provider `verbs`
        // sets ERR again after each post, but only if the provider knows that the state is ERR. If the device has set
        // ERR, it is possible that the provider does not know the state, so the test sets ERR again.
        let end = self.end(b);
        if end.qp.query().is_ok_and(|it| it.state == QpState::Err) {
            let (attributes, mask) = QpAttributes::to(QpState::Err);
            let done = end.qp.modify(&attributes, mask);
            self.log.push(format!("to Err again: {}", verb_result(done)));
        }
    }

    fn post_sends(&mut self, b: bool, requests: &[Request]) {
        let mut posted = Vec::new();
        for request in requests {
            let wr_id = self.next;
            self.next += 1;
            let place = SENDS + 256 * (wr_id as usize % 4);
            posted.push(AcceptedRequest {
                wr_id,
                signalled: request.signalled || self.setting.signal_all,
                sges: self.sges(b, request.local, place),
            });
        }
        let invalidates = requests.iter().any(|it| matches!(it.op, Op::SendWithInvWindow | Op::LocalInvWindow));
        let ops: Vec<SendOp<'_>> = requests
            .iter()
            .zip(&posted)
            .map(|(request, taken)| match request.op {
                Op::Send => SendOp::Send,
                Op::SendWithImm(imm) => SendOp::SendWithImm(imm),
                Op::SendWithInvBadKey => SendOp::SendWithInv(bad_rkey(Remote::default()).rkey),
                Op::SendWithInvWindow => SendOp::SendWithInv(self.window_key()),
                Op::LocalInvWindow => SendOp::LocalInv(self.window_key()),
                Op::Write(far) => SendOp::RdmaWrite(self.far(b, far, taken.wr_id)),
                Op::WriteWithImm(far, imm) => SendOp::RdmaWriteWithImm(self.far(b, far, taken.wr_id), imm),
                Op::Read(far) => SendOp::RdmaRead(self.far(b, far, taken.wr_id)),
                Op::CompareSwap(far, compare, swap) => {
                    SendOp::CompareSwap { remote: self.far(b, far, taken.wr_id), compare, swap }
                }
                Op::FetchAdd(far, add) => SendOp::FetchAdd { remote: self.far(b, far, taken.wr_id), add },
            })
            .collect();
        // The window may be invalid from now on, even if the request fails.
        self.bound &= !invalidates;
        let end = if b { &mut self.pair.b } else { &mut self.pair.a };
        let to = end.destination.clone();
        let to = to.as_ref().map(|(ah, qp)| dataplane::verbs::Destination { ah, qp: *qp, qkey: crate::bed::QKEY });
        let chain: Vec<_> = requests
            .iter()
            .zip(&posted)
            .zip(&ops)
            .map(|((request, taken), op)| {
                let mut flags = SendFlags::empty();
                flags.set(SendFlags::SIGNALED, request.signalled);
                flags.set(SendFlags::INLINE, request.inline);
                flags.set(SendFlags::FENCE, request.fence);
                flags.set(SendFlags::SOLICITED, request.solicited);
                SendRequest { wr_id: taken.wr_id, op: *op, flags, sges: &taken.sges, to }
            })
            .collect();
        let done = end.qp.post_send(&chain);
        let accepted = done.as_ref().map_or_else(|refused| refused.accepted, |()| posted.len());
        self.log.push(format!("sends: {}", post_result(done)));
        self.sends[usize::from(b)].extend(posted.into_iter().take(accepted));
    }

    /// Returns `true` if a signalled send of the endpoint has not completed yet. Returns `false` in SQD, because sends
    /// that are posted in SQD complete only after SQD.
    fn unfinished(&self, b: bool) -> bool {
        let (end, taken) = if b { (&self.pair.b, &self.sends[1]) } else { (&self.pair.a, &self.sends[0]) };
        let state = end.qp.query().map_or(QpState::Err, |it| it.state);
        let ended: Vec<u64> = end.sent.iter().map(|it| it.wr_id).collect();
        state != QpState::Sqd && taken.iter().any(|it| it.signalled && !ended.contains(&it.wr_id))
    }

    fn wait(&mut self, wanted: Option<Counts>) -> Outcome<Counts> {
        let begin = Instant::now();
        match wanted {
            Some(counts) => {
                let wanted: Vec<(PairCq, usize)> = QUEUES.into_iter().zip(counts).collect();
                self.pair.wait(&wanted)?;
                // Poll once more to find unexpected completions.
                self.pair.poll_queues()?;
            }
            None => {
                // The software device does all its work while it is polled, except for work that waits for a timer.
                let mut idle = 0;
                let mut before = self.counts();
                while (idle < 3 || self.unfinished(false) || self.unfinished(true))
                    && begin.elapsed() < COMPLETION_TIMEOUT
                {
                    self.pair.poll_queues()?;
                    let now = self.counts();
                    idle = if now == before { idle + 1 } else { 0 };
                    before = now;
                    if idle > 3 {
                        std::thread::yield_now();
                    }
                }
            }
        }
        Ok(self.counts())
    }

    fn counts(&self) -> Counts {
        [self.pair.a.sent.len(), self.pair.a.received.len(), self.pair.b.sent.len(), self.pair.b.received.len()]
    }

    /// Checks that every completion belongs to an accepted request that has not ended, and that completions are in
    /// order.
    fn check_accounting(&mut self) -> Outcome {
        for b in [false, true] {
            let end = if b { &self.pair.b } else { &self.pair.a };
            for it in &end.sent {
                let taken = &mut self.sends[usize::from(b)];
                let Some(at) = taken.iter().position(|taken| taken.wr_id == it.wr_id) else {
                    return Err(Stop::Fail(format!(
                        "{ACCOUNTING}{} send {} completed twice or was never accepted",
                        end.name, it.wr_id
                    )));
                };
                // All signalled requests before this request must already have a completion.
                if let Some(lost) = taken.iter().take(at).find(|taken| taken.signalled) {
                    return Err(Stop::Fail(format!("{ACCOUNTING}{} send {} has no completion", end.name, lost.wr_id)));
                }
                let ended = taken.drain(..=at).next_back().map_or(Vec::new(), |taken| taken.sges);
                if !matches!(it.status, WcStatus::Success | WcStatus::WrFlushErr) {
                    clear(end, &ended, usize::MAX);
                }
            }
            let shared = b && self.srq.is_some();
            for it in &end.received {
                let taken = &mut self.receives[usize::from(b)];
                let at = taken.iter().position(|taken| taken.wr_id == it.wr_id);
                match at {
                    Some(at) if at == 0 || shared => {
                        let taken = taken.remove(at);
                        let sges = taken.map_or(Vec::new(), |taken| taken.sges);
                        match it.status {
                            // The header of a datagram contains addresses, which differ between beds.
                            WcStatus::Success if self.setting.kind == QpType::Ud => clear(end, &sges, 40),
                            WcStatus::Success | WcStatus::WrFlushErr => {}
                            // After an error, the written length is not defined.
                            _ => clear(end, &sges, usize::MAX),
                        }
                    }
                    Some(earlier) => {
                        return Err(Stop::Fail(format!(
                            "{ACCOUNTING}{} receive {} completed before {earlier} earlier receives",
                            end.name, it.wr_id
                        )));
                    }
                    None => {
                        return Err(Stop::Fail(format!(
                            "{ACCOUNTING}{} receive {} completed twice or was never accepted",
                            end.name, it.wr_id
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends all requests, logs a checksum of the memory, and returns the log.
    fn finish(mut self) -> Outcome<Vec<String>> {
        for b in [false, true] {
            let (attributes, mask) = QpAttributes::to(QpState::Err);
            let done = self.end(b).qp.modify(&attributes, mask);
            self.log.push(format!("end: {}", verb_result(done)));
        }
        // The numbers of requests that have not ended, without the receives of a shared queue. The loop below waits for
        // the receives and for the signalled sends.
        let out = |taken: &VecDeque<AcceptedRequest>| taken.len();
        let shared = self.srq.is_some();
        let wanted = [
            out(&self.sends[0]),
            out(&self.receives[0]),
            out(&self.sends[1]),
            if shared { 0 } else { out(&self.receives[1]) },
        ];
        // The loop does not wait for unsignalled sends: such a send succeeds without a completion, or is flushed.
        let begin = Instant::now();
        loop {
            self.pair.poll_queues()?;
            let now = self.counts();
            let all = now[1] >= wanted[1] && now[3] >= wanted[3] && !self.unfinished(false) && !self.unfinished(true);
            if all {
                break;
            }
            if begin.elapsed() > COMPLETION_TIMEOUT {
                return Err(Stop::Fail(format!(
                    "{ACCOUNTING}not all requests ended: {now:?} completions for {wanted:?} requests"
                )));
            }
            std::thread::yield_now();
        }
        self.check_accounting()?;
        self.pair.log_completions(&mut self.log);
        self.log_limit()?;
        self.take_events();
        while self.limit_events < self.limits_reached && begin.elapsed() < COMPLETION_TIMEOUT {
            std::thread::yield_now();
            self.take_events();
        }
        if self.limit_events != self.limits_reached {
            let (events, reached) = (self.limit_events, self.limits_reached);
            return Err(Stop::Fail(format!(
                "{ACCOUNTING}the limit was reached {reached} times, but raised {events} events"
            )));
        }
        for end in [&self.pair.a, &self.pair.b] {
            let bytes = end.buffer.to_vec(0..end.buffer.len());
            // FNV-1a over words of 8 bytes.
            let sum = bytes.chunks_exact(8).fold(0xcbf2_9ce4_8422_2325u64, |sum, word| {
                let word = word.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
                (sum ^ word).wrapping_mul(0x100_0000_01b3)
            });
            self.log.push(format!("{} memory {sum:016x}", end.name));
        }
        Ok(self.log)
    }
}

/// Zeroes the first `bytes` bytes of a request's memory. Skips memory that does not belong to the endpoint's buffer.
fn clear<D: RawDevice>(end: &Endpoint<D>, sges: &[Sge], bytes: usize) {
    let mut left = bytes;
    for sge in sges {
        let now = left.min(sge.length as usize);
        left -= now;
        let offset = sge.addr.wrapping_sub(end.buffer.addr()) as usize;
        if offset < end.buffer.len() {
            end.buffer.write(offset, &vec![0; now.min(end.buffer.len() - offset)]);
        }
    }
}

/// Chooses the next step.
fn choose<D: RawDevice>(random: &mut Random, run: &ProgramRun<'_, '_, D>) -> Outcome<Step> {
    let states = [run.pair.a.qp.query()?.state, run.pair.b.qp.query()?.state];
    let kind = run.setting.kind;
    let broken = states.iter().any(|state| !matches!(state, QpState::Rts));
    if broken && !random.once_in(3) {
        return Ok(Step::Reconnect);
    }
    if !broken
        && random.once_in(4)
        && let Some(step) = optional_step(random, run)
    {
        return Ok(step);
    }
    let b = random.once_in(3);
    let (own, peer) = (states[usize::from(b)], states[usize::from(!b)]);
    Ok(match random.below(20) {
        0..8 => {
            let n = 1 + random.below(3);
            Step::Receives { b, locals: (0..n).map(|_| receive(random, kind)).collect() }
        }
        8..17 => {
            // A peer in these states would not respond, and the send would fail only after all retries (case
            // `statuses.rc_no_peer`).
            let deaf = kind == QpType::Rc
                && own == QpState::Rts
                && matches!(peer, QpState::Err | QpState::Reset | QpState::Init);
            if deaf {
                return Ok(Step::Reconnect);
            }
            // When a queue pair leaves SQD, rxe does not start the requests that were posted in SQD. rxe starts them
            // only at the next post (case `posting.sqd_holds_sends`), so leave SQD before the post.
            if own == QpState::Sqd {
                return Ok(Step::To { b, state: QpState::Rts });
            }
            let n = 1 + random.below(3);
            let mut requests: Vec<Request> = (0..n).map(|_| repeatable(send(random, kind))).collect();
            // The requester detects some errors only when the response arrives. Until then, later requests may or may
            // not arrive at the peer, so remove the later requests.
            if let Some(late) = requests.iter().position(fails_late) {
                requests.truncate(late + 1);
            }
            // A local error stops the queue pair while earlier requests are running. Whether the earlier requests still
            // succeed depends on timing, so move the failing request to the start.
            if let Some(wrong) = requests.iter().position(|request| fails_locally(request, kind)) {
                requests.swap(0, wrong);
            }
            if let Some(last) = requests.last_mut() {
                last.signalled = true;
            }
            Step::Sends { b, requests }
        }
        17 => {
            Step::To { b, state: random.of(&[QpState::Err, QpState::Err, QpState::Sqd, QpState::Reset, QpState::Rts]) }
        }
        18 => {
            let state =
                random.of(&[QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Reset, QpState::Err]);
            Step::BadModify { b, state, mask: (1 << random.below(21)) | (1 << random.below(21)) }
        }
        _ => Step::Reconnect,
    })
}

/// Chooses a step that needs a window, a shared receive queue or a multicast group.
fn optional_step<D: RawDevice>(random: &mut Random, run: &ProgramRun<'_, '_, D>) -> Option<Step> {
    let Setting { window, shared_queue, group, kind, .. } = run.setting;
    if group {
        return Some(match random.below(3) {
            0 => Step::Member { joins: !run.joined },
            _ => {
                let plain = Request { op: Op::Send, local: LocalMemory::Good(length(random)), ..send(random, kind) };
                let request = Request { signalled: true, inline: false, ..plain };
                Step::Multicast { requests: vec![request; 1 + random.below(2) as usize] }
            }
        });
    }
    if shared_queue && random.once_in(2) {
        return Some(Step::Arm { limit: 1 + random.below(5) as u32 });
    }
    let type_2 = window? == MwKind::Type2;
    let request = |op, local| Request { op, local, signalled: true, inline: false, fence: false, solicited: false };
    let far = FarMemory::Window(random.below(100) as u16);
    Some(match random.below(8) {
        0..3 => {
            let access = random.of(&[WINDOW, WINDOW, Access::REMOTE_READ]);
            // Only a window of type 1 can be unbound. A window of type 2 is invalidated instead.
            let clears = !type_2 && random.once_in(4);
            Step::Bind { access: if clears { Access::empty() } else { access }, clears }
        }
        3 if type_2 => Step::Sends { b: true, requests: vec![request(Op::LocalInvWindow, LocalMemory::Nothing)] },
        4 if type_2 => {
            let local = LocalMemory::Good(length(random));
            Step::Sends { b: false, requests: vec![request(Op::SendWithInvWindow, local)] }
        }
        5 => Step::Sends { b: false, requests: vec![request(Op::FetchAdd(far, random.next()), LocalMemory::Good(8))] },
        6 => {
            let read = request(Op::Read(far), LocalMemory::Good(length(random)));
            Step::Sends { b: false, requests: vec![repeatable(read)] }
        }
        _ => Step::Sends { b: false, requests: vec![request(Op::Write(far), LocalMemory::Good(length(random)))] },
    })
}

/// Returns the request without the properties that make the result depend on whether rxe sends the request twice. See
/// the description of this module.
fn repeatable(request: Request) -> Request {
    let answered = matches!(request.op, Op::Read(_) | Op::CompareSwap(..) | Op::FetchAdd(..));
    let op = match request.op {
        Op::Read(_) if request.local.is_empty() => Op::Read(FarMemory::Good(0)),
        op => op,
    };
    Request { op, fence: request.fence && !answered, ..request }
}

/// Returns `true` if the request fails only when the response arrives, or if the peer's queue pair fails after it has
/// responded.
fn fails_late(request: &Request) -> bool {
    let answered = matches!(request.op, Op::Read(_) | Op::CompareSwap(..) | Op::FetchAdd(..));
    // If a send requests the invalidation of an invalid key, the peer fails without an error response.
    request.op == Op::SendWithInvBadKey
        || answered && !matches!(request.local, LocalMemory::Good(_) | LocalMemory::Thirds(_) | LocalMemory::Nothing)
}

/// Returns `true` if the requester's device rejects the request.
fn fails_locally(request: &Request, kind: QpType) -> bool {
    let answered = matches!(request.op, Op::Read(_) | Op::CompareSwap(..) | Op::FetchAdd(..));
    // Devices do not check the keys of elements without bytes.
    let whole = matches!(
        request.local,
        LocalMemory::Good(_)
            | LocalMemory::Thirds(_)
            | LocalMemory::Nothing
            | LocalMemory::Fixed(_)
            | LocalMemory::BadKey(0)
            | LocalMemory::Foreign(0)
    );
    let has = match kind {
        QpType::Rc => true,
        QpType::Uc => !answered && request.op != Op::SendWithInvBadKey,
        _ => matches!(request.op, Op::Send | Op::SendWithImm(_)),
    };
    !has || (!whole && !answered) || request.local == LocalMemory::TooMany
}

fn length(random: &mut Random) -> u16 {
    random.of(&[0, 1, 7, 8, 20, 100, 200])
}

fn receive(random: &mut Random, kind: QpType) -> LocalMemory {
    let grh = if kind == QpType::Ud { 40 } else { 0 };
    let length = length(random) + grh;
    match random.below(24) {
        0..16 => LocalMemory::Good(256),
        16..18 => LocalMemory::Thirds(length),
        18 => LocalMemory::Good(length),
        19 => LocalMemory::Nothing,
        20 => LocalMemory::BadKey(length),
        21 => LocalMemory::Fixed(length),
        22 => LocalMemory::Foreign(length),
        _ => random.of(&[LocalMemory::OutOfBounds, LocalMemory::TooMany]),
    }
}

fn send(random: &mut Random, kind: QpType) -> Request {
    let length = length(random);
    let local = match random.below(24) {
        0..14 => LocalMemory::Good(length),
        14..19 => LocalMemory::Thirds(length),
        19 => LocalMemory::Nothing,
        20 => LocalMemory::BadKey(length),
        21 => LocalMemory::Foreign(length),
        22 => LocalMemory::Fixed(length),
        _ => random.of(&[LocalMemory::OutOfBounds, LocalMemory::TooMany]),
    };
    let far = match random.below(16) {
        0..12 => FarMemory::Good(random.below(7) as u16),
        12 => FarMemory::BadKey,
        13 => random.of(&[FarMemory::OutOfBounds, FarMemory::Below]),
        14 => FarMemory::Fixed,
        _ => FarMemory::Odd,
    };
    // Datagram queue pairs do not support all operations, so unsupported operations are tried rarely.
    let ops = if kind == QpType::Ud && !random.once_in(12) { 7 } else { 16 };
    let any = random.below(ops);
    let mut atomic = false;
    let op = match any {
        0..5 => Op::Send,
        5..7 => Op::SendWithImm(random.next() as u32),
        7..10 => Op::Write(far),
        10..12 => Op::WriteWithImm(far, random.next() as u32),
        12..14 => Op::Read(far),
        14 if random.once_in(4) => Op::SendWithInvBadKey,
        14 => {
            atomic = true;
            Op::CompareSwap(far, random.below(2), random.next())
        }
        _ => {
            atomic = true;
            Op::FetchAdd(far, random.next())
        }
    };
    // Atomics move eight bytes. The libibverbs provider does not post other lengths.
    let local = match local {
        LocalMemory::BadKey(_) if atomic => LocalMemory::BadKey(8),
        LocalMemory::Foreign(_) if atomic => LocalMemory::Foreign(8),
        LocalMemory::Fixed(_) if atomic => LocalMemory::Fixed(8),
        _ if atomic => LocalMemory::Good(8),
        other => other,
    };
    let moves = matches!(op, Op::Send | Op::SendWithImm(_) | Op::Write(_) | Op::WriteWithImm(..));
    let whole = matches!(local, LocalMemory::Good(_) | LocalMemory::Thirds(_) | LocalMemory::Nothing);
    Request {
        op,
        local,
        signalled: !random.once_in(3),
        inline: moves && whole && random.once_in(5),
        fence: random.once_in(8),
        solicited: random.once_in(8),
    }
}

fn setting(random: &mut Random) -> Setting {
    let kind = random.of(&[QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]);
    let all = CONNECTION.access;
    Setting {
        kind,
        signal_all: random.once_in(4),
        shared_queue: kind == QpType::Rc && random.once_in(4),
        access: random.of(&[all, all, all, all, Access::REMOTE_READ, Access::empty()]),
        window: if kind == QpType::Rc { random.of(&[None, Some(MwKind::Type1), Some(MwKind::Type2)]) } else { None },
        group: kind == QpType::Ud && random.once_in(2),
    }
}

/// A program, its log on the first bed, and the number of completions of each step on that bed.
struct Recorded {
    setting: Setting,
    steps: Vec<Step>,
    counts: Vec<Counts>,
    log: Vec<String>,
}

/// Generates a program while it runs.
fn record<D: RawDevice>(objects: &mut SharedObjects<'_, D>, seed: u64) -> Outcome<Recorded> {
    let mut random = Random(seed);
    let setting = setting(&mut random);
    let mut run = ProgramRun::new(objects, setting)?;
    let (mut steps, mut counts) = (Vec::new(), Vec::new());
    for _ in 0..3 + random.below(10) {
        let step = choose(&mut random, &run)?;
        counts.push(run.step(&step, None).map_err(|stop| with_steps(stop, &steps, &step))?);
        steps.push(step);
    }
    Ok(Recorded { setting, steps, counts, log: run.finish()? })
}

fn with_steps(stop: Stop, steps: &[Step], step: &Step) -> Stop {
    match stop {
        Stop::Fail(why) => Stop::Fail(format!("{why}\n   after {steps:#?}\n   in {step:#?}")),
        skip => skip,
    }
}

/// Runs a recorded program.
fn replay<D: RawDevice>(
    objects: &mut SharedObjects<'_, D>,
    setting: Setting,
    steps: &[Step],
    counts: Option<&[Counts]>,
) -> Outcome<(Vec<Counts>, Vec<String>)> {
    let mut run = ProgramRun::new(objects, setting)?;
    let mut had = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        had.push(run.step(step, counts.map(|counts| counts[at]))?);
    }
    Ok((had, run.finish()?))
}

/// Runs the same steps on both beds. Returns a description of the difference between the results, or `None` if they are
/// equal.
fn compare_runs<A: RawDevice, B: RawDevice>(
    first: &mut SharedObjects<'_, A>,
    second: &mut SharedObjects<'_, B>,
    setting: Setting,
    steps: &[Step],
) -> Option<String> {
    let (counts, log) = match replay(first, setting, steps, None) {
        Ok(done) => done,
        Err(stop) => return Some(format!("{}: {stop:?}", first.bed.name)),
    };
    match replay(second, setting, steps, Some(&counts)) {
        Ok((_, other)) if other == log => None,
        Ok((_, other)) => Some(side_by_side(&log, &other)),
        Err(stop) => Some(format!("{}: {stop:?}", second.bed.name)),
    }
}

fn side_by_side(first: &[String], second: &[String]) -> String {
    let mut text = String::new();
    for at in 0..first.len().max(second.len()) {
        let (a, b) = (first.get(at).map_or("", |it| it), second.get(at).map_or("", |it| it));
        text += &format!("   {} {a:<50} | {b}\n", if a == b { ' ' } else { '!' });
    }
    text
}

/// Removes steps, and requests of steps, as long as the beds still differ.
fn shrink<A: RawDevice, B: RawDevice>(
    first: &mut SharedObjects<'_, A>,
    second: &mut SharedObjects<'_, B>,
    setting: Setting,
    mut steps: Vec<Step>,
) -> Vec<Step> {
    let begin = Instant::now();
    let mut at = 0;
    while at < steps.len() && begin.elapsed() < Duration::from_secs(120) {
        let mut fewer = vec![];
        let mut without = steps.clone();
        without.remove(at);
        fewer.push(without);
        if let Step::Sends { requests, .. } | Step::Multicast { requests } = &steps[at]
            && requests.len() > 1
        {
            for leave in 0..requests.len() {
                let mut shorter = steps.clone();
                if let Step::Sends { requests, .. } | Step::Multicast { requests } = &mut shorter[at] {
                    requests.remove(leave);
                }
                fewer.push(shorter);
            }
        }
        match fewer.into_iter().find(|steps| compare_runs(first, second, setting, steps).is_some()) {
            Some(less) => steps = less,
            None => at += 1,
        }
    }
    steps
}

pub(crate) fn env_number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => otherwise,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")),
    }
}

/// The maximum number of times that a program runs again if its results on the two beds differ.
const RERUNS: usize = 3;
/// The prefix of messages about requests that did not end exactly once.
const ACCOUNTING: &str = "accounting: ";

/// Runs `count` programs on both beds. `seed` is the seed of the first program. The variables `FUZZ_SEED` and
/// `FUZZ_COUNT` replace both numbers. `test` is the test name in the command that repeats a program.
pub(crate) fn compare<A: RawDevice, B: RawDevice>(
    first: &TestBed<A>,
    second: &TestBed<B>,
    test: &str,
    (seed, count): (u64, u64),
) {
    let (seed, count) = (env_number("FUZZ_SEED", seed), env_number("FUZZ_COUNT", count));
    let mut spent = [Duration::ZERO; 2];
    let message = "creating the shared objects failed";
    let mut objects = (SharedObjects::new(first).expect(message), SharedObjects::new(second).expect(message));
    let (mut steps, mut completions) = (0, 0);
    let begin = Instant::now();
    for seed in seed..seed + count {
        if seed.is_multiple_of(500) {
            println!("at seed {seed} after {} s ({spent:?})", begin.elapsed().as_secs());
        }
        let repeat = format!("FUZZ_SEED={seed} FUZZ_COUNT=1 cargo test -p dataplane --test contract {test}");
        let at = Instant::now();
        let recorded =
            record(&mut objects.0, seed).unwrap_or_else(|stop| panic!("{}: {stop:?}\nto repeat: {repeat}", first.name));
        steps += recorded.steps.len();
        completions += recorded.counts.iter().flatten().sum::<usize>();
        spent[0] += at.elapsed();
        let at = Instant::now();
        let differs = match replay(&mut objects.1, recorded.setting, &recorded.steps, Some(&recorded.counts)) {
            Ok((_, log)) if log == recorded.log => None,
            Ok((_, log)) => Some(side_by_side(&recorded.log, &log)),
            Err(stop) => Some(format!("{}: {stop:?}", second.name)),
        };
        spent[1] += at.elapsed();
        let Some(why) = differs else { continue };
        let (a, b, setting) = (&mut objects.0, &mut objects.1, recorded.setting);
        let again = (0..RERUNS).find_map(|_| compare_runs(a, b, setting, &recorded.steps));
        let (less, why) = match again {
            None => (recorded.steps, format!("{why}   (not reproduced)")),
            Some(again) => {
                let less = shrink(a, b, setting, recorded.steps);
                let why = compare_runs(a, b, setting, &less).unwrap_or(again);
                (less, why)
            }
        };
        panic!("{} and {} differ.\n{setting:?}\n{less:#?}\n{why}\nto repeat: {repeat}", first.name, second.name);
    }
    let took = begin.elapsed().as_secs();
    println!("{count} programs from seed {seed}: {steps} steps, {completions} completions, no difference, {took} s");
}
