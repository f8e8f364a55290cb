//! What a case runs on: two devices that reach each other, and queue pairs between them.

use std::ops::Range;
use std::time::{Duration, Instant};

use dataplane::lane::message::{Ah, Buffer, MessageDomain, MessageQueuePair, MessageSharedQueue, poll};
use dataplane::provider::{
    Access, AttributeMask, Completion, CqSpec, Destination, Device, Path, PollFields, PostError, QpAttributes, QpCaps,
    QpSpec, QpState, QpType, RecvRequest, Remote, SendApi, SendFlags, SendOp, SendRequest, Sge, WcFlags, WcStatus,
};
use dataplane::units::{Gid, QpNum};

/// How long a completion that must come may take. A kernel in emulation is slow; nothing waits as long otherwise.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The key of datagrams.
pub(crate) const QKEY: u32 = 0x1111;
/// Bytes of an end's memory.
pub(crate) const MEMORY: usize = 16 << 10;
/// What queue pairs are made with unless a case wants others. 15: some devices have one less than a power of two.
pub(crate) const CAPS: QpCaps = QpCaps { send_depth: 15, recv_depth: 15, send_sges: 3, recv_sges: 3, inline: 64 };
/// What the memory of ends can be used for.
pub(crate) const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Which table of differences applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// The standard: no difference.
    Spec,
    /// What the rxe driver of Linux 6.1 does.
    Rxe,
}

/// Two devices that reach each other, or one and itself.
#[derive(Clone, Debug)]
pub(crate) struct Bed<D: Device> {
    pub(crate) name: &'static str,
    pub(crate) profile: Profile,
    /// Whether it is a kernel's, and time is the host's.
    pub(crate) kernel: bool,
    pub(crate) a: D,
    pub(crate) b: D,
    /// Which address of a port is used.
    pub(crate) gid_index: u32,
}

/// Why a case does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The device cannot: the capability, and the `errno` that says so; 0: the contract has no verb to ask it by.
    Skip(String, i32),
    /// It went wrong.
    Fail(String),
}

pub(crate) type Outcome<T = ()> = Result<T, Stop>;

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Fail(error.to_string())
    }
}

/// A name that is the same on every device.
pub(crate) fn name(state: QpState) -> &'static str {
    state.name().trim_start_matches("IBV_QPS_")
}

pub(crate) fn errno_name(errno: i32) -> String {
    match errno {
        libc::EINVAL => "EINVAL".to_owned(),
        libc::ENOMEM => "ENOMEM".to_owned(),
        libc::EOPNOTSUPP => "EOPNOTSUPP".to_owned(),
        libc::EFAULT => "EFAULT".to_owned(),
        libc::EBUSY => "EBUSY".to_owned(),
        libc::EPERM => "EPERM".to_owned(),
        libc::ENOSPC => "ENOSPC".to_owned(),
        libc::ENOSYS => "ENOSYS".to_owned(),
        other => format!("errno {other}"),
    }
}

/// `ok`, or the errno by its name.
pub(crate) fn told<T>(result: Result<T, dataplane::error::VerbError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => errno_name(error.errno),
    }
}

/// `ok`, or the errno and how many were taken before it.
pub(crate) fn told_post(result: Result<(), PostError>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(refused) => format!("{} after {}", errno_name(refused.error.errno), refused.accepted),
    }
}

/// One side: a queue pair with a completion queue for each direction, and memory.
pub(crate) struct End<D: Device> {
    pub(crate) name: &'static str,
    pub(crate) domain: MessageDomain<D>,
    pub(crate) buffer: Buffer<D>,
    pub(crate) send_cq: D::Cq,
    pub(crate) recv_cq: D::Cq,
    pub(crate) qp: MessageQueuePair<D>,
    /// Address of the port, and its place in the table.
    pub(crate) gid: (Gid, u32),
    /// Where datagrams go.
    pub(crate) to: Option<(Ah<D>, QpNum)>,
    /// Polled and not yet told.
    pub(crate) sent: Vec<Completion>,
    pub(crate) received: Vec<Completion>,
}

/// How an end is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndSpec {
    pub(crate) kind: QpType,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) access: Access,
    pub(crate) cq: CqSpec,
    pub(crate) send_api: SendApi,
    /// Bytes of the end's memory.
    pub(crate) memory: usize,
}

impl EndSpec {
    pub(crate) fn new(kind: QpType) -> Self {
        let cq = CqSpec { depth: 64, fields: PollFields::STANDARD, ..CqSpec::default() };
        Self { kind, caps: CAPS, signal_all: false, access: ALL_ACCESS, cq, send_api: SendApi::Classic, memory: MEMORY }
    }
}

impl<D: Device> End<D> {
    pub(crate) fn new(bed: &Bed<D>, second: bool, spec: EndSpec, srq: Option<&MessageSharedQueue<D>>) -> Outcome<Self> {
        let device = if second { &bed.b } else { &bed.a };
        Self::on(bed, second, spec, MessageDomain::new(device)?, srq)
    }

    /// As [`End::new`], in a domain that there is.
    pub(crate) fn on(
        bed: &Bed<D>,
        second: bool,
        spec: EndSpec,
        domain: MessageDomain<D>,
        srq: Option<&MessageSharedQueue<D>>,
    ) -> Outcome<Self> {
        let device = domain.device().clone();
        let (send_cq, recv_cq) = (device.create_cq(&spec.cq, None)?.0, device.create_cq(&spec.cq, None)?.0);
        let qp_spec =
            QpSpec { signal_all: spec.signal_all, send_api: spec.send_api, ..QpSpec::new(spec.kind, spec.caps) };
        let qp = domain.create_qp(&qp_spec, &send_cq, &recv_cq, srq).map_err(|refused| match refused.errno {
            libc::EOPNOTSUPP => Stop::Skip(format!("{} queue pairs", spec.kind), refused.errno),
            _ => refused.into(),
        })?;
        let gids = device.gids(1)?;
        let Some(entry) = gids.iter().find(|entry| entry.index == bed.gid_index) else {
            return Err(Stop::Fail(format!("{} has no GID {}: {gids:?}", device.name(), bed.gid_index)));
        };
        let gid = (entry.gid, entry.index);
        let buffer = domain.buffer(spec.memory, spec.access)?;
        let name = if second { "b" } else { "a" };
        Ok(Self { name, domain, buffer, send_cq, recv_cq, qp, gid, to: None, sent: Vec::new(), received: Vec::new() })
    }

    /// The way from here to an address.
    pub(crate) fn path(&self, gid: Gid) -> Path {
        Path { gid, source_gid_index: self.gid.1 as u8, hop_limit: 64, ..Path::default() }
    }

    pub(crate) fn pump(&mut self) -> Outcome {
        poll(&mut self.send_cq, &mut self.sent, 64)?;
        poll(&mut self.recv_cq, &mut self.received, 64)?;
        Ok(())
    }

    /// Posts a receive into a part of the memory.
    pub(crate) fn recv(&mut self, wr_id: u64, part: Range<usize>) -> Outcome {
        let sges = [self.buffer.sge(part)];
        Ok(self.qp.post_recv(&[RecvRequest { wr_id, sges: &sges }])?)
    }

    /// Posts a signalled send request.
    pub(crate) fn post(&mut self, wr_id: u64, op: SendOp<'_>, sges: &[Sge]) -> Result<(), PostError> {
        self.post_flags(wr_id, op, SendFlags::SIGNALED, sges)
    }

    pub(crate) fn post_flags(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        sges: &[Sge],
    ) -> Result<(), PostError> {
        let to = self.to.as_ref().map(|(ah, qp)| Destination { ah, qp: *qp, qkey: QKEY });
        self.qp.post_send(&[SendRequest { wr_id, op, flags, sges, to }])
    }

    /// Sends a part of the memory as a message.
    pub(crate) fn send(&mut self, wr_id: u64, part: Range<usize>) -> Outcome {
        let sges = [self.buffer.sge(part)];
        Ok(self.post(wr_id, SendOp::Send, &sges)?)
    }

    pub(crate) fn to(&mut self, state: QpState) -> Outcome {
        let (attributes, mask) = QpAttributes::to(state);
        Ok(self.qp.modify(&attributes, mask)?)
    }

    /// The state that the device has it in.
    pub(crate) fn state(&self) -> Outcome<&'static str> {
        Ok(name(self.qp.query()?.state))
    }

    /// A completion in words that are the same on every device.
    fn words(&self, completion: &Completion, peer: Option<QpNum>, connected: bool) -> String {
        let mut words = format!("{}", completion.wr_id);
        if completion.qp_num().is_some_and(|number| number != self.qp.number()) {
            words += " of another queue pair";
        }
        let (Some(opcode), Some(flags)) = (completion.opcode(), completion.flags()) else {
            return format!("{words} {}", short(completion.status));
        };
        words += &format!(" {}", opcode.name().trim_start_matches("IBV_WC_"));
        if opcode.is_receive() {
            words += &format!(" {} bytes", completion.byte_len().unwrap_or(u32::MAX));
            // See differences.rs: everywhere.
            let told = if connected { flags - WcFlags::GRH } else { flags };
            if !told.is_empty() {
                let names: Vec<&str> = told.iter_names().map(|(name, _)| name).collect();
                words += &format!(" {}", names.join("|"));
            }
            if let Some(imm) = completion.imm() {
                words += &format!(" imm {:#x}", u32::from_be(imm));
            }
            if self.qp.kind() == QpType::Ud && completion.src_qp() != peer {
                words += &format!(" from {:?}", completion.src_qp());
            }
        }
        words
    }

    /// Tells what has been polled, and forgets it.
    fn tell(&mut self, receives: bool, peer: Option<QpNum>, log: &mut Vec<String>) {
        let connected = matches!(self.qp.kind(), QpType::Rc | QpType::Uc);
        let queue = if receives { "receive" } else { "send" };
        let some = std::mem::take(if receives { &mut self.received } else { &mut self.sent });
        log.extend(some.iter().map(|one| format!("{} {queue} {}", self.name, self.words(one, peer, connected))));
    }
}

/// The name of a status without its prefix.
pub(crate) fn short(status: WcStatus) -> String {
    status.to_string().trim_start_matches("IBV_WC_").to_owned()
}

/// Which completion queue of which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    ASent,
    AReceived,
    BSent,
    BReceived,
}

/// Two ends that are, or can be, joined.
pub(crate) struct Pair<D: Device> {
    pub(crate) a: End<D>,
    pub(crate) b: End<D>,
}

/// What connecting sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) access: Access,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) retry_count: u8,
    pub(crate) timeout: u8,
    pub(crate) path_mtu: u8,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            rnr_retry: 1,
            retry_count: 2,
            // 4.096 µs times 2^14: 67 ms, which an emulated processor keeps.
            timeout: 14,
            path_mtu: 3,
            rq_psn: 0x10,
            sq_psn: 0x10,
        }
    }
}

impl Connection {
    /// The attributes of a change of state of a queue pair of this type on the way to a peer, as many as it wants.
    pub(crate) fn step<D: Device>(
        &self,
        end: &End<D>,
        to: QpState,
        gid: Gid,
        dest_qp: QpNum,
    ) -> (QpAttributes, AttributeMask) {
        use AttributeMask as M;
        let attributes = QpAttributes {
            state: to,
            access: self.access,
            port: 1,
            qkey: QKEY,
            path: end.path(gid),
            path_mtu: self.path_mtu,
            dest_qp,
            rq_psn: self.rq_psn,
            sq_psn: self.sq_psn,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: 12,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            ..QpAttributes::default()
        };
        let mask = match (end.qp.kind(), to) {
            (QpType::RawPacket, QpState::Init) => M::PORT,
            (QpType::RawPacket, _) => M::empty(),
            (QpType::Ud, QpState::Init) => M::PKEY_INDEX | M::PORT | M::QKEY,
            (_, QpState::Init) => M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS,
            (QpType::Ud, QpState::Rtr) => M::empty(),
            (QpType::Uc, QpState::Rtr) => M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN,
            (_, QpState::Rtr) => {
                M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER
            }
            (QpType::Rc, QpState::Rts) => M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC,
            (_, QpState::Rts) => M::SQ_PSN,
            _ => M::empty(),
        };
        (attributes, mask | M::STATE)
    }
}

impl<D: Device> Pair<D> {
    /// Two queue pairs in RESET.
    pub(crate) fn new(bed: &Bed<D>, spec: EndSpec) -> Outcome<Self> {
        Ok(Self { a: End::new(bed, false, spec, None)?, b: End::new(bed, true, spec, None)? })
    }

    /// Both in RTS, each the other's peer.
    pub(crate) fn connected(bed: &Bed<D>, spec: EndSpec, a: Connection, b: Connection) -> Outcome<Self> {
        let mut pair = Self::new(bed, spec)?;
        pair.advance(QpState::Rts, a, b)?;
        Ok(pair)
    }

    /// From RESET to a state, both.
    pub(crate) fn advance(&mut self, to: QpState, a: Connection, b: Connection) -> Outcome {
        join(&mut self.a, &self.b, a, to)?;
        join(&mut self.b, &self.a, b, to)
    }

    pub(crate) fn pump(&mut self) -> Outcome {
        self.a.pump()?;
        self.b.pump()
    }

    fn count(&self, of: Of) -> usize {
        match of {
            Of::ASent => self.a.sent.len(),
            Of::AReceived => self.a.received.len(),
            Of::BSent => self.b.sent.len(),
            Of::BReceived => self.b.received.len(),
        }
    }

    /// Polls until each of these queues has so many completions.
    pub(crate) fn wait(&mut self, wanted: &[(Of, usize)]) -> Outcome<bool> {
        let begin = Instant::now();
        loop {
            self.pump()?;
            if wanted.iter().all(|(of, n)| self.count(*of) >= *n) {
                return Ok(true);
            }
            if begin.elapsed() > PATIENCE {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }

    /// Tells everything that has been polled: queue by queue, each in its order.
    pub(crate) fn tell(&mut self, log: &mut Vec<String>) {
        let (a, b) = (self.a.qp.number(), self.b.qp.number());
        self.a.tell(false, Some(b), log);
        self.a.tell(true, Some(b), log);
        self.b.tell(false, Some(a), log);
        self.b.tell(true, Some(a), log);
    }
}

/// Takes a queue pair from RESET to a state, with this peer.
pub(crate) fn join<D: Device>(own: &mut End<D>, peer: &End<D>, with: Connection, to: QpState) -> Outcome {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (attributes, mask) = with.step(own, state, peer.gid.0, peer.qp.number());
        own.qp.modify(&attributes, mask)?;
        if state == to {
            break;
        }
    }
    if own.qp.kind() == QpType::Ud {
        own.to = Some((own.domain.create_ah(&own.path(peer.gid.0))?, peer.qp.number()));
    }
    Ok(())
}

/// Memory of the peer that is named wrongly, or rightly.
pub(crate) fn remote<D: Device>(end: &End<D>, offset: usize) -> Remote {
    end.buffer.remote(offset)
}
