//! The test bed of a case, and pairs of queue pairs on the test bed. A test bed is two devices that can reach each
//! other, or one device that loops back to itself. A case is one test of the verbs traits (`dataplane::verbs`).

use std::ops::Range;
use std::time::{Duration, Instant};

use dataplane::lane::message::{Ah, Buffer, MessageDomain, MessageQueuePair, MessageSharedQueue, poll};
use dataplane::units::{Gid, QpNum};
use dataplane::verbs::{
    Access, AttributeMask, Capability, Completion, CqSpec, Destination, Device, GidKind, LinkLayer, Path, PollFields,
    PostError, QpAttributes, QpCaps, QpSpec, QpState, QpType, RecvRequest, Remote, SendApi, SendFlags, SendOp,
    SendRequest, Sge, WcFlags, WcStatus,
};

use crate::differences::{BedProperties, logs_grh};

/// The maximum wait for a completion. The value is large because a kernel in an emulated machine is slow. A passing
/// case never waits this long.
pub(crate) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(20);
/// The Q_Key of the datagrams.
pub(crate) const QKEY: u32 = 0x1111;
/// The memory size of an endpoint in bytes.
pub(crate) const MEMORY: usize = 16 << 10;
/// The default capabilities of queue pairs. The depth is 15 because the queues of some devices have 2^n - 1 entries.
pub(crate) const CAPS: QpCaps = QpCaps { send_depth: 15, recv_depth: 15, send_sges: 3, recv_sges: 3, inline: 0 };
/// The access flags of the endpoints' memory.
pub(crate) const ALL_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Whether a device is expected to differ from the standard, which is the InfiniBand specification and the manual
/// pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// The device follows the standard.
    Spec,
    /// The device behaves like the rxe driver of Linux 6.1. `differences.rs` lists its differences from the standard.
    Rxe,
}

/// Two devices that can reach each other, or one device that loops back to itself.
#[derive(Clone, Debug)]
pub(crate) struct TestBed<D: Device> {
    pub(crate) name: &'static str,
    pub(crate) profile: Profile,
    /// Whether the devices are kernel devices. Kernel devices measure timeouts with the system clock.
    pub(crate) kernel: bool,
    pub(crate) a: D,
    pub(crate) b: D,
    /// For each device, the index (in the GID table of the port) of the GID that the endpoints use.
    pub(crate) gid_index: [u32; 2],
}

impl<D: Device> TestBed<D> {
    /// Ends the case unless both devices list the capability for this type of queue pairs: see [`lacks_type`]. A device
    /// may create queue pairs of a type that it does not list: iWARP devices create RC queue pairs, but verbs cannot
    /// connect these queue pairs.
    pub(crate) fn require_type(&self, kind: QpType) -> Outcome {
        let capability = match kind {
            QpType::Rc => Capability::Rc,
            QpType::Uc => Capability::Uc,
            QpType::Ud => Capability::Datagram,
            QpType::RawPacket => Capability::RawPacket,
            _ => return Ok(()),
        };
        for device in [&self.a, &self.b] {
            if !device.capabilities().has.contains(&capability) {
                return Err(lacks_type(kind, device.missing_reason(capability)));
            }
        }
        if kind == QpType::RawPacket && self.link_layer()? == LinkLayer::InfiniBand {
            return Err(Stop::Skip("raw packets on InfiniBand".to_owned(), libc::EOPNOTSUPP));
        }
        Ok(())
    }

    /// Returns `caps`, with at most as many scatter/gather elements as both devices support. For example, a send of efa
    /// has at most two elements.
    pub(crate) fn fit(&self, caps: QpCaps) -> QpCaps {
        let most = self.a.capabilities().max_sge.min(self.b.capabilities().max_sge);
        QpCaps { send_sges: caps.send_sges.min(most), recv_sges: caps.recv_sges.min(most), ..caps }
    }

    /// Returns the link layer of the ports.
    pub(crate) fn link_layer(&self) -> Outcome<LinkLayer> {
        Ok(self.a.port(1)?.link_layer)
    }

    /// Returns the properties that decide which differences from the standard apply.
    pub(crate) fn properties(&self) -> Outcome<BedProperties> {
        let gid = self.a.gids(1)?.into_iter().find(|entry| entry.index == self.gid_index[0]);
        Ok(BedProperties {
            profile: self.profile,
            kernel: self.kernel,
            link_layer: self.link_layer()?,
            roce_v2: gid.is_some_and(|entry| entry.kind == GidKind::RoceV2),
            checks_every_key: self.a.checks_every_key(),
        })
    }
}

/// The reason why a case ends early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The test bed lacks the named capability. The number is the `errno` of the refused call, or 0 if the verbs traits
    /// have no function for the capability.
    Skip(String, i32),
    /// The case failed.
    Fail(String),
}

/// Returns the reason to end a case because a device lacks queue pairs of this type. `why` is the result of the probe
/// of the device. The case is skipped only if the device does not support the type. If the probe failed for another
/// reason, such as too little locked memory, the case fails.
pub(crate) fn lacks_type(kind: QpType, why: Option<&str>) -> Stop {
    let errno = why.and_then(|why| why.rsplit_once("(os error ")?.1.split_once(')')?.0.parse().ok());
    match (why, errno.unwrap_or(libc::EOPNOTSUPP)) {
        (_, errno @ (libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) => {
            Stop::Skip(format!("{kind} queue pairs"), errno)
        }
        (why, _) => Stop::Fail(format!("{kind} queue pairs: {}", why.unwrap_or_default())),
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Stop>;

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Fail(error.to_string())
    }
}

/// Returns the name of a state without the prefix `IBV_QPS_`.
pub(crate) fn state_name(state: QpState) -> &'static str {
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

/// Returns `ok`, or the name of the errno.
pub(crate) fn verb_result<T>(result: Result<T, dataplane::error::VerbError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => errno_name(error.errno),
    }
}

/// Returns `ok`, or the name of the errno and the number of requests accepted before the error.
pub(crate) fn post_result(result: Result<(), PostError>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(refused) => format!("{} after {}", errno_name(refused.error.errno), refused.accepted),
    }
}

/// One side of a pair: a queue pair, a completion queue for each direction, and memory.
pub(crate) struct Endpoint<D: Device> {
    pub(crate) name: &'static str,
    pub(crate) domain: MessageDomain<D>,
    pub(crate) buffer: Buffer<D>,
    pub(crate) send_cq: D::Cq,
    pub(crate) recv_cq: D::Cq,
    pub(crate) qp: MessageQueuePair<D>,
    /// The GID of the port and its index in the GID table.
    pub(crate) gid: (Gid, u32),
    /// The local identifier (LID) of an InfiniBand port, otherwise 0.
    pub(crate) lid: u16,
    /// Whether the log contains the GRH flag of datagrams.
    logs_grh: bool,
    /// The destination of datagrams.
    pub(crate) destination: Option<(Ah<D>, QpNum)>,
    /// Whether the queue pair was reset by [`Endpoint::set_state`].
    was_reset: bool,
    /// The polled completions of sends that are not logged yet.
    pub(crate) sent: Vec<Completion>,
    /// The polled completions of receives that are not logged yet.
    pub(crate) received: Vec<Completion>,
}

/// The parameters of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointSpec {
    pub(crate) kind: QpType,
    pub(crate) caps: QpCaps,
    pub(crate) signal_all: bool,
    pub(crate) access: Access,
    pub(crate) cq: CqSpec,
    pub(crate) send_api: SendApi,
    /// The index of the queue of this endpoint, and the number of queues of the port.
    pub(crate) queue: (u16, u16),
    /// The memory size in bytes.
    pub(crate) memory: usize,
}

impl EndpointSpec {
    pub(crate) fn new(kind: QpType) -> Self {
        // Datagrams use no remote access, and efa refuses to register memory with access flags that it does not
        // support.
        let access = if kind == QpType::Ud { Access::LOCAL_WRITE } else { ALL_ACCESS };
        let cq = CqSpec { depth: 64, fields: PollFields::STANDARD, ..CqSpec::default() };
        Self {
            kind,
            caps: CAPS,
            signal_all: false,
            access,
            cq,
            send_api: SendApi::Classic,
            queue: (0, 1),
            memory: MEMORY,
        }
    }
}

impl<D: Device> Endpoint<D> {
    pub(crate) fn new(
        bed: &TestBed<D>,
        second: bool,
        spec: EndpointSpec,
        srq: Option<&MessageSharedQueue<D>>,
    ) -> Outcome<Self> {
        let device = if second { &bed.b } else { &bed.a };
        Self::on(bed, second, spec, MessageDomain::new(device)?, srq)
    }

    /// Creates an endpoint in an existing protection domain.
    pub(crate) fn on(
        bed: &TestBed<D>,
        second: bool,
        spec: EndpointSpec,
        domain: MessageDomain<D>,
        srq: Option<&MessageSharedQueue<D>>,
    ) -> Outcome<Self> {
        bed.require_type(spec.kind)?;
        let device = domain.device().clone();
        let (send_cq, recv_cq) = (device.create_cq(&spec.cq, None)?.0, device.create_cq(&spec.cq, None)?.0);
        let EndpointSpec { signal_all, send_api, queue, .. } = spec;
        let qp_spec = QpSpec { signal_all, send_api, queue, ..QpSpec::new(spec.kind, bed.fit(spec.caps)) };
        let qp = domain.create_qp(&qp_spec, &send_cq, &recv_cq, srq).map_err(|refused| match refused.errno {
            libc::EOPNOTSUPP => Stop::Skip(format!("{} queue pairs", spec.kind), refused.errno),
            _ => refused.into(),
        })?;
        let gids = device.gids(1)?;
        let index = bed.gid_index[usize::from(second)];
        let Some(entry) = gids.iter().find(|entry| entry.index == index) else {
            return Err(Stop::Fail(format!("{} has no GID {index}: {gids:?}", device.name())));
        };
        let gid = (entry.gid, entry.index);
        let port = device.port(1)?;
        let lid = if port.link_layer == LinkLayer::InfiniBand { port.lid } else { 0 };
        let buffer = domain.buffer(spec.memory, spec.access)?;
        let name = if second { "b" } else { "a" };
        Ok(Self {
            name,
            domain,
            buffer,
            send_cq,
            recv_cq,
            qp,
            gid,
            lid,
            logs_grh: logs_grh(port.link_layer),
            destination: None,
            was_reset: false,
            sent: Vec::new(),
            received: Vec::new(),
        })
    }

    /// Returns the address of the port: the GID and the LID.
    pub(crate) fn address(&self) -> (Gid, u16) {
        (self.gid.0, self.lid)
    }

    /// Returns the path from this endpoint to an address: a GID, and a LID on InfiniBand.
    pub(crate) fn path(&self, (gid, dlid): (Gid, u16)) -> Path {
        Path { gid, dlid, source_gid_index: self.gid.1 as u8, hop_limit: 64, ..Path::default() }
    }

    pub(crate) fn poll_queues(&mut self) -> Outcome {
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
        let to = self.destination.as_ref().map(|(ah, qp)| Destination { ah, qp: *qp, qkey: QKEY });
        self.qp.post_send(&[SendRequest { wr_id, op, flags, sges, to }])
    }

    /// Sends a part of the memory as a message.
    pub(crate) fn send(&mut self, wr_id: u64, part: Range<usize>) -> Outcome {
        let sges = [self.buffer.sge(part)];
        Ok(self.post(wr_id, SendOp::Send, &sges)?)
    }

    pub(crate) fn set_state(&mut self, state: QpState) -> Outcome {
        let (attributes, mask) = QpAttributes::to(state);
        match state {
            QpState::Sqd => self.enter_sqd(&attributes, mask),
            _ => {
                self.qp.modify(&attributes, mask)?;
                self.was_reset |= state == QpState::Reset;
                Ok(())
            }
        }
    }

    /// Applies a step of [`Connection::step`]. Skips the case if the device refuses the change to INIT after a reset,
    /// as irdma does (`irdma_modify_qp_roce` in the kernel).
    pub(crate) fn apply(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Outcome {
        let again = self.was_reset && attributes.state == QpState::Init;
        self.qp.modify(attributes, mask).map_err(|refused| match refused.errno {
            libc::EINVAL if again => Stop::Skip("reuse of a queue pair after RESET".to_owned(), refused.errno),
            _ => refused.into(),
        })
    }

    /// Moves the queue pair from RTS to SQD. Skips the case if the driver does not support SQD.
    pub(crate) fn enter_sqd(&mut self, attributes: &QpAttributes, mask: AttributeMask) -> Outcome {
        self.qp.modify(attributes, mask).map_err(|refused| match refused.errno {
            libc::EINVAL => Stop::Skip("state SQD".to_owned(), refused.errno),
            _ => refused.into(),
        })
    }

    /// Returns the state that the device reports.
    pub(crate) fn state(&self) -> Outcome<&'static str> {
        Ok(state_name(self.qp.query()?.state))
    }

    /// Returns the names of the flags of a receive, without the flags that `differences.rs` removes from all logs.
    pub(crate) fn flag_names(&self, flags: WcFlags) -> String {
        let connected = matches!(self.qp.kind(), QpType::Rc | QpType::Uc);
        let logged = if connected || !self.logs_grh { flags - WcFlags::GRH } else { flags };
        let names: Vec<&str> = logged.iter_names().map(|(name, _)| name).collect();
        names.join("|")
    }

    /// Returns a description of a completion. Equal completions have the same description on every device.
    fn describe(&self, completion: &Completion, peer: Option<QpNum>) -> String {
        let mut words = format!("{}", completion.wr_id);
        if completion.qp_num().is_some_and(|number| number != self.qp.number()) {
            words += " of another queue pair";
        }
        let (Some(opcode), Some(flags)) = (completion.opcode(), completion.flags()) else {
            return format!("{words} {}", status_name(completion.status));
        };
        words += &format!(" {}", opcode.name().trim_start_matches("IBV_WC_"));
        if opcode.is_receive() {
            words += &format!(" {} bytes", completion.byte_len().unwrap_or(u32::MAX));
            let names = self.flag_names(flags);
            if !names.is_empty() {
                words += &format!(" {names}");
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

    /// Logs and removes all polled completions of one queue.
    fn log_completions(&mut self, receives: bool, peer: Option<QpNum>, log: &mut Vec<String>) {
        let queue = if receives { "receive" } else { "send" };
        let some = std::mem::take(if receives { &mut self.received } else { &mut self.sent });
        log.extend(some.iter().map(|one| format!("{} {queue} {}", self.name, self.describe(one, peer))));
    }
}

/// Returns the name of a status without the prefix `IBV_WC_`.
pub(crate) fn status_name(status: WcStatus) -> String {
    status.to_string().trim_start_matches("IBV_WC_").to_owned()
}

/// One of the four completion queues of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PairCq {
    ASent,
    AReceived,
    BSent,
    BReceived,
}

/// Two endpoints that are, or can be, connected to each other.
pub(crate) struct Pair<D: Device> {
    pub(crate) a: Endpoint<D>,
    pub(crate) b: Endpoint<D>,
}

/// The parameters of one endpoint of a connection.
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
            // 4.096 µs times 2^14 is 67 ms. An emulated processor acknowledges within this time.
            timeout: 14,
            path_mtu: 3,
            rq_psn: 0x10,
            sq_psn: 0x10,
        }
    }
}

impl Connection {
    /// Returns the attributes and the mask for the change of endpoint `end` to state `to`. `address` and `dest_qp` are the
    /// address of the peer.
    pub(crate) fn step<D: Device>(
        &self,
        end: &Endpoint<D>,
        to: QpState,
        address: (Gid, u16),
        dest_qp: QpNum,
    ) -> (QpAttributes, AttributeMask) {
        use AttributeMask as M;
        let attributes = QpAttributes {
            state: to,
            access: self.access,
            port: 1,
            qkey: QKEY,
            path: end.path(address),
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
    /// Creates two endpoints in RESET.
    pub(crate) fn new(bed: &TestBed<D>, spec: EndpointSpec) -> Outcome<Self> {
        Ok(Self { a: Endpoint::new(bed, false, spec, None)?, b: Endpoint::new(bed, true, spec, None)? })
    }

    /// Creates two endpoints in RTS that are connected to each other.
    pub(crate) fn connected(bed: &TestBed<D>, spec: EndpointSpec, a: Connection, b: Connection) -> Outcome<Self> {
        let mut pair = Self::new(bed, spec)?;
        pair.advance(QpState::Rts, a, b)?;
        Ok(pair)
    }

    /// Moves both endpoints from RESET to state `to`.
    pub(crate) fn advance(&mut self, to: QpState, a: Connection, b: Connection) -> Outcome {
        connect(&mut self.a, &self.b, a, to)?;
        connect(&mut self.b, &self.a, b, to)
    }

    pub(crate) fn poll_queues(&mut self) -> Outcome {
        self.a.poll_queues()?;
        self.b.poll_queues()
    }

    fn count(&self, cq: PairCq) -> usize {
        match cq {
            PairCq::ASent => self.a.sent.len(),
            PairCq::AReceived => self.a.received.len(),
            PairCq::BSent => self.b.sent.len(),
            PairCq::BReceived => self.b.received.len(),
        }
    }

    /// Polls until each queue in `wanted` has at least the given number of completions. Returns `false` on timeout.
    pub(crate) fn wait(&mut self, wanted: &[(PairCq, usize)]) -> Outcome<bool> {
        let begin = Instant::now();
        loop {
            self.poll_queues()?;
            if wanted.iter().all(|(cq, n)| self.count(*cq) >= *n) {
                return Ok(true);
            }
            if begin.elapsed() > COMPLETION_TIMEOUT {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }

    /// Logs all polled completions, one queue after the other.
    pub(crate) fn log_completions(&mut self, log: &mut Vec<String>) {
        let (a, b) = (self.a.qp.number(), self.b.qp.number());
        self.a.log_completions(false, Some(b), log);
        self.a.log_completions(true, Some(b), log);
        self.b.log_completions(false, Some(a), log);
        self.b.log_completions(true, Some(a), log);
    }
}

/// Moves the queue pair of `own` from RESET to state `to`, with `peer` as its peer.
pub(crate) fn connect<D: Device>(own: &mut Endpoint<D>, peer: &Endpoint<D>, with: Connection, to: QpState) -> Outcome {
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let (attributes, mask) = with.step(own, state, peer.address(), peer.qp.number());
        own.apply(&attributes, mask)?;
        if state == to {
            break;
        }
    }
    if own.qp.kind() == QpType::Ud {
        own.destination = Some((own.domain.create_ah(&own.path(peer.address()))?, peer.qp.number()));
    }
    Ok(())
}

/// Returns the remote address and key of the endpoint's memory at an offset.
pub(crate) fn remote<D: Device>(end: &Endpoint<D>, offset: usize) -> Remote {
    end.buffer.remote(offset)
}
