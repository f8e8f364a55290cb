//! Random programs of verbs, the same on two beds, and what comes of them compared.
//!
//! A program is made while it runs on the first bed, the software device: what is done next may depend on what has
//! happened, so that most of what is tried still means something. It is then run on the second: real rxe, or the
//! software device laid out differently. After each step a bed waits for as many completions as the first had, so
//! nothing is a matter of time. On both it is checked that every request that was taken comes back exactly once: by its
//! completion, by that of a later request of its queue, or by a reset.
//!
//! `FUZZ_SEED=n` is the first seed (each program has the next), `FUZZ_COUNT=n` the number of programs. A program that
//! fails is cut down to the steps that matter and printed, with the line that repeats it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dataplane::lane::message::{MessageDomain, MessageSharedQueue};
use dataplane::provider::{
    Access, AttributeMask, Device, QpAttributes, QpState, QpType, RecvRequest, Remote, SendFlags, SendOp, SendRequest,
    Sge, SrqSpec, WcStatus,
};

use crate::bed::{Bed, CAPS, Connection, End, EndSpec, Of, Outcome, PATIENCE, Pair, Stop, remote, told, told_post};
use crate::cases::{bad_lkey, bad_rkey};

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n`.
    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len() as u64) as usize]
    }
}

/// Local memory of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Local {
    /// As many bytes as the request moves.
    Good(u16),
    /// Those in three elements.
    Thirds(u16),
    /// No element.
    Nothing,
    BadKey(u16),
    OutOfBounds,
    /// Memory that may not be written.
    Fixed(u16),
    /// Memory of another protection domain.
    Foreign(u16),
    /// More elements than were granted.
    TooMany,
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Far {
    Good(u16),
    BadKey,
    OutOfBounds,
    Below,
    /// Memory that the peer may not touch.
    Fixed,
    /// Not a multiple of eight.
    Odd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Send,
    SendWithImm(u32),
    SendWithInvBadKey,
    Write(Far),
    WriteWithImm(Far, u32),
    Read(Far),
    CompareSwap(Far, u64, u64),
    FetchAdd(Far, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    op: Op,
    local: Local,
    signalled: bool,
    inline: bool,
    fence: bool,
    solicited: bool,
}

/// One call of a program. `b`: of the second end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Receives {
        b: bool,
        locals: Vec<Local>,
    },
    Sends {
        b: bool,
        requests: Vec<Request>,
    },
    To {
        b: bool,
        state: QpState,
    },
    /// An attribute too many or too few.
    BadModify {
        b: bool,
        state: QpState,
        mask: u32,
    },
    /// Both to RESET and back to RTS.
    Reconnect,
}

/// What a program runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    kind: QpType,
    signal_all: bool,
    /// Whether b takes its receives from a shared queue.
    shared: bool,
    /// What b lets a do.
    access: Access,
}

/// What is common to all programs on a bed: making it takes more time than a program.
struct Stage<'a, D: Device> {
    bed: &'a Bed<D>,
    domains: [MessageDomain<D>; 2],
    /// For each end: memory that is not for writing, and memory of another domain.
    fixed: [dataplane::lane::message::Buffer<D>; 2],
    foreign: [dataplane::lane::message::Buffer<D>; 2],
    /// What memory is like at the beginning.
    pattern: Vec<u8>,
    /// Says when what was sent before has arrived or is lost.
    barrier: Pair<D>,
}

impl<'a, D: Device> Stage<'a, D> {
    fn new(bed: &'a Bed<D>) -> Outcome<Self> {
        let domains = [MessageDomain::new(&bed.a)?, MessageDomain::new(&bed.b)?];
        let fixed = [domains[0].buffer(4096, Access::empty())?, domains[1].buffer(4096, Access::empty())?];
        let foreign = [&bed.a, &bed.b]
            .map(|device| -> Outcome<_> { Ok(MessageDomain::new(device)?.buffer(4096, crate::bed::ALL_ACCESS)?) });
        let [a, b] = foreign;
        let spec = EndSpec::new(QpType::Rc);
        let barrier = Pair::connected(bed, spec, Connection::default(), Connection::default())?;
        Ok(Self { bed, domains, fixed, foreign: [a?, b?], pattern: crate::cases::pattern(1, MEMORY), barrier })
    }

    /// There and back.
    fn settle(&mut self) -> Outcome {
        self.barrier.a.recv(0, 0..8)?;
        self.barrier.b.recv(0, 0..8)?;
        self.barrier.a.send(0, 0..1)?;
        let there = self.barrier.wait(&[(Of::BReceived, 1)])?;
        self.barrier.b.send(0, 0..1)?;
        let back = self.barrier.wait(&[(Of::ASent, 1), (Of::AReceived, 1), (Of::BSent, 1)])?;
        for end in [&mut self.barrier.a, &mut self.barrier.b] {
            end.sent.clear();
            end.received.clear();
        }
        if there && back { Ok(()) } else { Err(Stop::Fail("no round trip".to_owned())) }
    }
}

/// A request that was taken.
#[derive(Clone, Debug)]
struct Taken {
    wr_id: u64,
    signalled: bool,
    /// For receives of datagrams: where their header goes.
    sges: Vec<Sge>,
}

/// A program under way on a bed.
struct Run<'s, 'a, D: Device> {
    stage: &'s mut Stage<'a, D>,
    setting: Setting,
    pair: Pair<D>,
    srq: Option<MessageSharedQueue<D>>,
    next: u64,
    /// By end: sends, receives.
    sends: [VecDeque<Taken>; 2],
    receives: [VecDeque<Taken>; 2],
    log: Vec<String>,
}

/// Bytes of an end: 8 receives of 256, 4 sends of 256, and what the peer reaches.
const MEMORY: usize = 4096;
const SENDS: usize = 2048;
const FAR: usize = 3072;

/// How many completions a step had, by queue: a's sends, a's receives, b's sends, b's receives.
type Counts = [usize; 4];

const QUEUES: [Of; 4] = [Of::ASent, Of::AReceived, Of::BSent, Of::BReceived];

const CONNECTION: Connection = Connection {
    access: Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC),
    max_rd_atomic: 4,
    max_dest_rd_atomic: 4,
    // At once.
    rnr_retry: 0,
    retry_count: 5,
    // 34 ms, six times: a peer that is slow must not be taken for one that is not there.
    timeout: 13,
    path_mtu: 3,
    rq_psn: 0x77,
    sq_psn: 0x77,
};

/// A device in software answers at once or never.
fn connection<D: Device>(bed: &Bed<D>) -> Connection {
    if bed.kernel { CONNECTION } else { Connection { timeout: 5, ..CONNECTION } }
}

impl<'s, 'a, D: Device> Run<'s, 'a, D> {
    fn new(stage: &'s mut Stage<'a, D>, setting: Setting) -> Outcome<Self> {
        let spec = EndSpec { signal_all: setting.signal_all, memory: MEMORY, ..EndSpec::new(setting.kind) };
        let [first, second] = stage.domains.clone();
        let srq = match setting.shared {
            true => Some(second.create_srq(&SrqSpec { depth: 16, sges: 3 })?),
            false => None,
        };
        let mut pair = Pair {
            a: End::on(stage.bed, false, spec, first, None)?,
            b: End::on(stage.bed, true, spec, second, srq.as_ref())?,
        };
        let own = connection(stage.bed);
        pair.advance(QpState::Rts, own, Connection { access: setting.access, ..own })?;
        for end in [&pair.a, &pair.b] {
            end.buffer.write(0, &stage.pattern);
        }
        let none = || [VecDeque::new(), VecDeque::new()];
        Ok(Self { stage, setting, pair, srq, next: 1, sends: none(), receives: none(), log: Vec::new() })
    }

    fn end(&mut self, b: bool) -> &mut End<D> {
        if b { &mut self.pair.b } else { &mut self.pair.a }
    }

    fn sges(&mut self, b: bool, local: Local, into: usize) -> Vec<Sge> {
        let fixed = self.stage.fixed[usize::from(b)].sge(0..usize::from(u16::MAX).min(4096));
        let foreign = self.stage.foreign[usize::from(b)].sge(0..4096);
        let end = self.end(b);
        let len = end.buffer.len();
        let cut = |sge: Sge, length: u16| Sge { length: u32::from(length), ..sge };
        match local {
            Local::Good(length) => vec![end.buffer.sge(into..into + usize::from(length))],
            Local::Thirds(length) => crate::cases::thirds(end, into..into + usize::from(length)).to_vec(),
            Local::Nothing => Vec::new(),
            Local::BadKey(length) => vec![bad_lkey(end.buffer.sge(into..into + usize::from(length)))],
            Local::OutOfBounds => vec![end.buffer.sge(len - 10..len + 90)],
            Local::Fixed(length) => vec![cut(fixed, length)],
            Local::Foreign(length) => vec![cut(foreign, length)],
            Local::TooMany => vec![end.buffer.sge(into..into + 1); CAPS.send_sges as usize + 30],
        }
    }

    /// Requests of one call touch places of their own: a read may see what is written behind it.
    fn far(&self, b: bool, far: Far, wr_id: u64) -> Remote {
        let peer = if b { &self.pair.a } else { &self.pair.b };
        match far {
            Far::Good(at) => remote(peer, FAR + 256 * (wr_id as usize % 4) + 8 * usize::from(at)),
            Far::BadKey => bad_rkey(remote(peer, FAR)),
            Far::OutOfBounds => remote(peer, peer.buffer.len() - 4),
            Far::Below => Remote { addr: peer.buffer.addr() - 1, ..remote(peer, 0) },
            Far::Fixed => self.stage.fixed[usize::from(!b)].remote(0),
            Far::Odd => remote(peer, FAR + 3),
        }
    }

    /// Carries out a step. With `wanted` it waits for so many completions.
    fn step(&mut self, step: &Step, wanted: Option<Counts>) -> Outcome<Counts> {
        match step {
            Step::Receives { b, locals } => self.post_receives(*b, locals),
            Step::Sends { b, requests } => self.post_sends(*b, requests),
            Step::To { b, state } => {
                let (attributes, mask) = QpAttributes::to(*state);
                let from = self.end(*b).qp.query()?.state;
                if (from, *state) == (QpState::Rts, QpState::Sqd) {
                    // Not before what is under way is done, which is another state of some devices.
                    crate::cases::drain(self.end(*b))?;
                    self.log.push("drained".to_owned());
                    return self.wait(wanted);
                }
                let done = self.end(*b).qp.modify(&attributes, mask);
                self.log.push(format!("to {state:?}: {}", told(done)));
                if done.is_ok() && *state == QpState::Reset {
                    self.sends[usize::from(*b)].clear();
                    self.forget_receives(*b);
                }
            }
            Step::BadModify { b, state, mask } => {
                let end = if *b { &self.pair.b } else { &self.pair.a };
                let (attributes, _) = CONNECTION.step(end, *state, end.gid.0, end.qp.number());
                let mask = AttributeMask::from_bits_truncate(*mask) | AttributeMask::STATE;
                // What would be right is left out: it would go to a state that the program does not know of.
                let from = self.end(*b).qp.query()?.state;
                let kind = self.setting.kind;
                if dataplane::provider::check_transition(kind, from, *state, mask).is_err() {
                    let done = self.end(*b).qp.modify(&attributes, mask);
                    self.log.push(format!("to {state:?} with {:#x}: {}", mask.bits(), told(done)));
                }
            }
            Step::Reconnect => {
                for b in [false, true] {
                    let (attributes, mask) = QpAttributes::to(QpState::Reset);
                    self.end(b).qp.modify(&attributes, mask)?;
                    self.sends[usize::from(b)].clear();
                    self.forget_receives(b);
                }
                let own = connection(self.stage.bed);
                self.pair.advance(QpState::Rts, own, Connection { access: self.setting.access, ..own })?;
            }
        }
        let counts = self.wait(wanted)?;
        // What nobody is told of may still be under way.
        if self.setting.kind != QpType::Rc && matches!(step, Step::Sends { .. }) {
            self.stage.settle()?;
            self.pair.pump()?;
        }
        self.account()?;
        self.pair.tell(&mut self.log);
        Ok(counts)
    }

    /// Those of a shared queue stay.
    fn forget_receives(&mut self, b: bool) {
        if !(b && self.srq.is_some()) {
            self.receives[usize::from(b)].clear();
        }
    }

    fn post_receives(&mut self, b: bool, locals: &[Local]) {
        let mut posted = Vec::new();
        for local in locals {
            let wr_id = self.next;
            self.next += 1;
            // Each into a place of its own.
            let place = 256 * (wr_id as usize % 8);
            posted.push(Taken { wr_id, signalled: true, sges: self.sges(b, *local, place) });
        }
        let requests: Vec<_> = posted.iter().map(|it| RecvRequest { wr_id: it.wr_id, sges: &it.sges }).collect();
        let done = match &mut self.srq {
            Some(srq) if b => srq.post_recv(&requests),
            _ => self.end(b).qp.post_recv(&requests),
        };
        let accepted = done.as_ref().map_or_else(|refused| refused.accepted, |()| posted.len());
        self.log.push(format!("receives: {}", told_post(done)));
        self.receives[usize::from(b)].extend(posted.into_iter().take(accepted));
        // rxe flushes what is posted in ERR when that state is set again; the provider does it where it knows of it.
        let end = self.end(b);
        if end.qp.query().is_ok_and(|it| it.state == QpState::Err) {
            let (attributes, mask) = QpAttributes::to(QpState::Err);
            let done = end.qp.modify(&attributes, mask);
            self.log.push(format!("once more: {}", told(done)));
        }
    }

    fn post_sends(&mut self, b: bool, requests: &[Request]) {
        let mut posted = Vec::new();
        for request in requests {
            let wr_id = self.next;
            self.next += 1;
            let place = SENDS + 256 * (wr_id as usize % 4);
            posted.push(Taken {
                wr_id,
                signalled: request.signalled || self.setting.signal_all,
                sges: self.sges(b, request.local, place),
            });
        }
        let ops: Vec<SendOp<'_>> = requests
            .iter()
            .zip(&posted)
            .map(|(request, taken)| match request.op {
                Op::Send => SendOp::Send,
                Op::SendWithImm(imm) => SendOp::SendWithImm(imm),
                Op::SendWithInvBadKey => SendOp::SendWithInv(bad_rkey(Remote::default()).rkey),
                Op::Write(far) => SendOp::RdmaWrite(self.far(b, far, taken.wr_id)),
                Op::WriteWithImm(far, imm) => SendOp::RdmaWriteWithImm(self.far(b, far, taken.wr_id), imm),
                Op::Read(far) => SendOp::RdmaRead(self.far(b, far, taken.wr_id)),
                Op::CompareSwap(far, compare, swap) => {
                    SendOp::CompareSwap { remote: self.far(b, far, taken.wr_id), compare, swap }
                }
                Op::FetchAdd(far, add) => SendOp::FetchAdd { remote: self.far(b, far, taken.wr_id), add },
            })
            .collect();
        let end = if b { &mut self.pair.b } else { &mut self.pair.a };
        let to = end.to.clone();
        let to = to.as_ref().map(|(ah, qp)| dataplane::provider::Destination { ah, qp: *qp, qkey: crate::bed::QKEY });
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
        self.log.push(format!("sends: {}", told_post(done)));
        self.sends[usize::from(b)].extend(posted.into_iter().take(accepted));
    }

    /// Whether a send that was taken must still end by itself.
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
                let wanted: Vec<(Of, usize)> = QUEUES.into_iter().zip(counts).collect();
                self.pair.wait(&wanted)?;
                // One look more, for what should not be there.
                self.pair.pump()?;
            }
            None => {
                // The software device does everything when it is polled, but for what it waits for.
                let mut idle = 0;
                let mut before = self.counts();
                while (idle < 3 || self.unfinished(false) || self.unfinished(true)) && begin.elapsed() < PATIENCE {
                    self.pair.pump()?;
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

    /// Every completion is of a request that was taken and has not ended; in order.
    fn account(&mut self) -> Outcome {
        for b in [false, true] {
            let end = if b { &self.pair.b } else { &self.pair.a };
            for it in &end.sent {
                let taken = &mut self.sends[usize::from(b)];
                let Some(at) = taken.iter().position(|taken| taken.wr_id == it.wr_id) else {
                    return Err(Stop::Fail(format!(
                        "{ACCOUNT}{} send {} completes twice or was never taken",
                        end.name, it.wr_id
                    )));
                };
                // Before it only those that nobody wanted to hear of.
                if let Some(lost) = taken.iter().take(at).find(|taken| taken.signalled) {
                    return Err(Stop::Fail(format!("{ACCOUNT}{} send {} has no completion", end.name, lost.wr_id)));
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
                            // The header tells of addresses, which are not the same everywhere.
                            WcStatus::Success if self.setting.kind == QpType::Ud => clear(end, &sges, 40),
                            WcStatus::Success | WcStatus::WrFlushErr => {}
                            // How much of it was written is nobody's promise.
                            _ => clear(end, &sges, usize::MAX),
                        }
                    }
                    at => {
                        return Err(Stop::Fail(format!(
                            "{ACCOUNT}{} receive {} completes as number {at:?}",
                            end.name, it.wr_id
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes everything back, and tells what the memory is like.
    fn finish(mut self) -> Outcome<Vec<String>> {
        for b in [false, true] {
            let (attributes, mask) = QpAttributes::to(QpState::Err);
            let done = self.end(b).qp.modify(&attributes, mask);
            self.log.push(format!("end: {}", told(done)));
        }
        // Every request that is still out, but for those of a shared queue.
        let out = |taken: &VecDeque<Taken>| taken.len();
        let shared = self.srq.is_some();
        let wanted = [
            out(&self.sends[0]),
            out(&self.receives[0]),
            out(&self.sends[1]),
            if shared { 0 } else { out(&self.receives[1]) },
        ];
        // A send that nobody wanted to hear of has ended well, and is not heard of, or is flushed.
        let begin = Instant::now();
        loop {
            self.pair.pump()?;
            let now = self.counts();
            let all = now[1] >= wanted[1] && now[3] >= wanted[3] && !self.unfinished(false) && !self.unfinished(true);
            if all {
                break;
            }
            if begin.elapsed() > PATIENCE {
                return Err(Stop::Fail(format!("{ACCOUNT}not all came back: {now:?} of {wanted:?}")));
            }
            std::thread::yield_now();
        }
        self.account()?;
        self.pair.tell(&mut self.log);
        for end in [&self.pair.a, &self.pair.b] {
            let bytes = end.buffer.to_vec(0..end.buffer.len());
            // FNV-1a, of words.
            let sum = bytes.chunks_exact(8).fold(0xcbf2_9ce4_8422_2325u64, |sum, word| {
                let word = word.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
                (sum ^ word).wrapping_mul(0x100_0000_01b3)
            });
            self.log.push(format!("{} memory {sum:016x}", end.name));
        }
        Ok(self.log)
    }
}

/// Makes the first bytes of a request's memory 0, as far as it is the end's own.
fn clear<D: Device>(end: &End<D>, sges: &[Sge], bytes: usize) {
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

/// What is done next.
fn choose<D: Device>(random: &mut Random, run: &Run<'_, '_, D>) -> Outcome<Step> {
    let states = [run.pair.a.qp.query()?.state, run.pair.b.qp.query()?.state];
    let kind = run.setting.kind;
    let broken = states.iter().any(|state| !matches!(state, QpState::Rts));
    if broken && !random.once_in(3) {
        return Ok(Step::Reconnect);
    }
    let b = random.once_in(3);
    let (own, peer) = (states[usize::from(b)], states[usize::from(!b)]);
    Ok(match random.below(20) {
        0..8 => {
            let n = 1 + random.below(3);
            Step::Receives { b, locals: (0..n).map(|_| receive(random, kind)).collect() }
        }
        8..17 => {
            // A peer that does not answer: see statuses.rc_no_peer.
            let deaf = kind == QpType::Rc
                && own == QpState::Rts
                && matches!(peer, QpState::Err | QpState::Reset | QpState::Init);
            if deaf {
                return Ok(Step::Reconnect);
            }
            // What was posted in SQD waits on rxe for the next doorbell after it: see posting.sqd_holds_sends_back.
            if own == QpState::Sqd {
                return Ok(Step::To { b, state: QpState::Rts });
            }
            let n = 1 + random.below(3);
            let mut requests: Vec<Request> = (0..n).map(|_| send(random, kind)).collect();
            // What is found out when the answer comes is over when what was sent behind it may have arrived, or not.
            if let Some(late) = requests.iter().position(is_wrong_late) {
                requests.truncate(late + 1);
            }
            // What is wrong on the own side ends the queue pair whatever is under way before it, and whether that still
            // ends well is a matter of time: so it goes first.
            if let Some(wrong) = requests.iter().position(|request| is_wrong_here(request, kind)) {
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

/// Whether there is no place for its answer, or the peer fails after it has answered.
fn is_wrong_late(request: &Request) -> bool {
    let answered = matches!(request.op, Op::Read(_) | Op::CompareSwap(..) | Op::FetchAdd(..));
    // The peer stops answering without a word.
    request.op == Op::SendWithInvBadKey
        || answered && !matches!(request.local, Local::Good(_) | Local::Thirds(_) | Local::Nothing)
}

/// Whether the requester's own device refuses it.
fn is_wrong_here(request: &Request, kind: QpType) -> bool {
    let answered = matches!(request.op, Op::Read(_) | Op::CompareSwap(..) | Op::FetchAdd(..));
    let whole = matches!(request.local, Local::Good(_) | Local::Thirds(_) | Local::Nothing | Local::Fixed(_));
    let has = match kind {
        QpType::Rc => true,
        QpType::Uc => !answered && request.op != Op::SendWithInvBadKey,
        _ => matches!(request.op, Op::Send | Op::SendWithImm(_)),
    };
    !has || (!whole && !answered) || request.local == Local::TooMany
}

fn length(random: &mut Random) -> u16 {
    random.of(&[0, 1, 7, 8, 20, 100, 200])
}

fn receive(random: &mut Random, kind: QpType) -> Local {
    let grh = if kind == QpType::Ud { 40 } else { 0 };
    let length = length(random) + grh;
    match random.below(24) {
        0..16 => Local::Good(256),
        16..18 => Local::Thirds(length),
        18 => Local::Good(length),
        19 => Local::Nothing,
        20 => Local::BadKey(length),
        21 => Local::Fixed(length),
        22 => Local::Foreign(length),
        _ => random.of(&[Local::OutOfBounds, Local::TooMany]),
    }
}

fn send(random: &mut Random, kind: QpType) -> Request {
    let length = length(random);
    let local = match random.below(24) {
        0..14 => Local::Good(length),
        14..19 => Local::Thirds(length),
        19 => Local::Nothing,
        20 => Local::BadKey(length),
        21 => Local::Foreign(length),
        22 => Local::Fixed(length),
        _ => random.of(&[Local::OutOfBounds, Local::TooMany]),
    };
    let far = match random.below(16) {
        0..12 => Far::Good(random.below(7) as u16),
        12 => Far::BadKey,
        13 => random.of(&[Far::OutOfBounds, Far::Below]),
        14 => Far::Fixed,
        _ => Far::Odd,
    };
    // What datagrams do not have is tried seldom.
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
    // Of eight bytes: others the libibverbs provider does not post.
    let local = match local {
        Local::BadKey(_) if atomic => Local::BadKey(8),
        Local::Foreign(_) if atomic => Local::Foreign(8),
        Local::Fixed(_) if atomic => Local::Fixed(8),
        _ if atomic => Local::Good(8),
        other => other,
    };
    let moves = matches!(op, Op::Send | Op::SendWithImm(_) | Op::Write(_) | Op::WriteWithImm(..));
    let whole = matches!(local, Local::Good(_) | Local::Thirds(_) | Local::Nothing);
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
        shared: kind == QpType::Rc && random.once_in(4),
        access: random.of(&[all, all, all, all, Access::REMOTE_READ, Access::empty()]),
    }
}

/// A program, what the first bed told, and how many completions each step had there.
struct Recorded {
    setting: Setting,
    steps: Vec<Step>,
    counts: Vec<Counts>,
    told: Vec<String>,
}

/// Makes a program while it runs.
fn record<D: Device>(stage: &mut Stage<'_, D>, seed: u64) -> Outcome<Recorded> {
    let mut random = Random(seed);
    let setting = setting(&mut random);
    let mut run = Run::new(stage, setting)?;
    let (mut steps, mut counts) = (Vec::new(), Vec::new());
    for _ in 0..3 + random.below(10) {
        let step = choose(&mut random, &run)?;
        counts.push(run.step(&step, None).map_err(|stop| during(stop, &steps, &step))?);
        steps.push(step);
    }
    Ok(Recorded { setting, steps, counts, told: run.finish()? })
}

fn during(stop: Stop, steps: &[Step], step: &Step) -> Stop {
    match stop {
        Stop::Fail(why) => Stop::Fail(format!("{why}\n   after {steps:#?}\n   in {step:#?}")),
        skip => skip,
    }
}

/// Runs a program as it was recorded.
fn replay<D: Device>(
    stage: &mut Stage<'_, D>,
    setting: Setting,
    steps: &[Step],
    counts: Option<&[Counts]>,
) -> Outcome<(Vec<Counts>, Vec<String>)> {
    let mut run = Run::new(stage, setting)?;
    let mut had = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        had.push(run.step(step, counts.map(|counts| counts[at]))?);
    }
    Ok((had, run.finish()?))
}

/// What two beds make of the same steps, if it is not the same.
fn differ<A: Device, B: Device>(
    first: &mut Stage<'_, A>,
    second: &mut Stage<'_, B>,
    setting: Setting,
    steps: &[Step],
) -> Option<String> {
    let (counts, told) = match replay(first, setting, steps, None) {
        Ok(done) => done,
        Err(stop) => return Some(format!("{}: {stop:?}", first.bed.name)),
    };
    match replay(second, setting, steps, Some(&counts)) {
        Ok((_, other)) if other == told => None,
        Ok((_, other)) => Some(side_by_side(&told, &other)),
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

/// Leaves out steps, and requests of steps, as long as the beds still differ.
fn shrink<A: Device, B: Device>(
    first: &mut Stage<'_, A>,
    second: &mut Stage<'_, B>,
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
        if let Step::Sends { requests, .. } = &steps[at]
            && requests.len() > 1
        {
            for leave in 0..requests.len() {
                let mut shorter = steps.clone();
                if let Step::Sends { requests, .. } = &mut shorter[at] {
                    requests.remove(leave);
                }
                fewer.push(shorter);
            }
        }
        match fewer.into_iter().find(|steps| differ(first, second, setting, steps).is_some()) {
            Some(less) => steps = less,
            None => at += 1,
        }
    }
    steps
}

fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => otherwise,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")),
    }
}

/// How often a program that differed is run again.
const AGAIN: usize = 3;
/// What is said of a request that did not come back once.
const ACCOUNT: &str = "accounting: ";

/// Runs programs on both beds. `test`: how to repeat one.
pub(crate) fn compare<A: Device, B: Device>(first: &Bed<A>, second: &Bed<B>, test: &str, count: u64) {
    let (seed, count) = (number("FUZZ_SEED", 1), number("FUZZ_COUNT", count));
    let (mut spent, mut unstable) = ([Duration::ZERO; 2], 0);
    let mut stages = (Stage::new(first).expect("a stage"), Stage::new(second).expect("a stage"));
    let (mut steps, mut completions) = (0, 0);
    let begin = Instant::now();
    for seed in seed..seed + count {
        if seed.is_multiple_of(500) {
            println!("at seed {seed} after {} s ({spent:?})", begin.elapsed().as_secs());
        }
        let repeat = format!("FUZZ_SEED={seed} FUZZ_COUNT=1 cargo test -p dataplane --test contract {test}");
        let at = Instant::now();
        let recorded =
            record(&mut stages.0, seed).unwrap_or_else(|stop| panic!("{}: {stop:?}\nto repeat: {repeat}", first.name));
        steps += recorded.steps.len();
        completions += recorded.counts.iter().flatten().sum::<usize>();
        spent[0] += at.elapsed();
        let at = Instant::now();
        let differs = match replay(&mut stages.1, recorded.setting, &recorded.steps, Some(&recorded.counts)) {
            Ok((_, told)) if told == recorded.told => None,
            Ok((_, told)) => Some(side_by_side(&recorded.told, &told)),
            Err(stop) => Some(format!("{}: {stop:?}", second.name)),
        };
        spent[1] += at.elapsed();
        let Some(why) = differs else { continue };
        let (a, b, setting) = (&mut stages.0, &mut stages.1, recorded.setting);
        let again = (0..AGAIN).find_map(|_| differ(a, b, setting, &recorded.steps));
        let (less, why) = match again {
            // What is a matter of time on a real device is told of and counted. A request that is lost or comes twice
            // is none of that.
            None if !why.contains(ACCOUNT) && unstable < 1 + count / 1000 => {
                unstable += 1;
                println!("not the same every time:\n{setting:?}\n{:?}\n{why}{repeat}", recorded.steps);
                continue;
            }
            None => (recorded.steps, format!("{why}   (not again)")),
            Some(again) => {
                let less = shrink(a, b, setting, recorded.steps);
                let why = differ(a, b, setting, &less).unwrap_or(again);
                (less, why)
            }
        };
        panic!("{} and {} differ.\n{setting:?}\n{less:#?}\n{why}\nto repeat: {repeat}", first.name, second.name);
    }
    let took = begin.elapsed().as_secs();
    println!(
        "{count} programs from seed {seed}: {steps} steps, {completions} completions, {unstable} not the same every time, {took} s"
    );
}
