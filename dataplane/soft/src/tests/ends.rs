//! Pairs of queue pairs for tests: each queue pair (an end) is on its own device.

use super::*;

/// All access flags for memory registration.
pub(super) const FULL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
/// The access flags that permit all operations of the peer.
pub(super) const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
/// The size of an end's memory in bytes.
pub(super) const BYTES: usize = 1 << 18;
/// The Q_Key of datagrams.
pub(super) const QKEY: u32 = 0x1111;

/// A queue pair with its device and memory.
pub(super) struct End {
    pub(super) device: SoftDevice,
    pub(super) pd: SoftPd,
    pub(super) mr: SoftMr,
    pub(super) srq: Option<SoftSrq>,
    pub(super) send: SoftCq,
    pub(super) recv: SoftCq,
    pub(super) qp: SoftQp,
    pub(super) clock: HostClock,
    /// The attributes for the transitions to RTR and RTS.
    pub(super) attributes: QpAttributes,
}

/// The parameters of a pair of ends.
#[derive(Clone)]
pub(super) struct Ends {
    pub(super) profile: Profile,
    pub(super) kind: QpType,
    pub(super) caps: QpCaps,
    pub(super) cq_depth: u32,
    pub(super) api: CqApi,
    /// Whether the devices use the system clock instead of a virtual clock.
    pub(super) real_time: bool,
    pub(super) srq: Option<u32>,
    pub(super) faults: FaultSpec,
    pub(super) send_api: SendApi,
    pub(super) attributes: QpAttributes,
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            profile: Profile::Spec,
            kind: QpType::Rc,
            caps: QpCaps { send_depth: 16, recv_depth: 16, send_sges: 4, recv_sges: 4, inline: 64 },
            cq_depth: 64,
            api: CqApi::Auto,
            real_time: false,
            srq: None,
            faults: FaultSpec::default(),
            send_api: SendApi::Classic,
            attributes: QpAttributes {
                access: REMOTE,
                path_mtu: 3,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                min_rnr_timer: 1,
                timeout: 14,
                retry_count: 3,
                rnr_retry: 3,
                ..QpAttributes::default()
            },
        }
    }
}

impl Ends {
    pub(super) fn of(profile: Profile, kind: QpType) -> Self {
        Self { profile, kind, ..Self::default() }
    }

    /// Returns two ends on two devices, in RESET.
    pub(super) fn unconnected(&self) -> (End, End) {
        let (a, b) = LoopbackLink::pair();
        let clock = if self.real_time { HostClock::new() } else { HostClock::manual() };
        let end = |name: &str, link, last| {
            let spec = SoftSpec {
                profile: self.profile,
                faults: self.faults,
                clock: clock.clone(),
                mac: [2, 0, 0, 0, 0, last],
                gids: vec![Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last])],
                ..SoftSpec::new(name, LinkSpec::Loopback(link))
            };
            self.on(&SoftDevice::new(spec).unwrap(), &clock)
        };
        let (mut a, mut b) = (end("a", a, 1), end("b", b, 2));
        (a.attributes.sq_psn, a.attributes.rq_psn) = (0xff_fff0, 7);
        (b.attributes.sq_psn, b.attributes.rq_psn) = (7, 0xff_fff0);
        (a, b)
    }

    /// Returns an end on a device.
    pub(super) fn on(&self, device: &SoftDevice, clock: &HostClock) -> End {
        let pd = device.alloc_pd().unwrap();
        let mr = pd.register(region(BYTES), FULL).unwrap();
        let cq = CqSpec { depth: self.cq_depth, fields: PollFields::STANDARD, api: self.api, ..CqSpec::default() };
        let (send, _) = device.create_cq(&cq, None).unwrap();
        let (recv, _) = device.create_cq(&cq, None).unwrap();
        let srq = self.srq.map(|depth| pd.create_srq(&SrqSpec { depth, sges: 4 }).unwrap());
        let spec = QpSpec { send_api: self.send_api, ..QpSpec::new(self.kind, self.caps) };
        let qp = pd.create_qp(&spec, &send, &recv, srq.as_ref()).unwrap();
        let (device, clock) = (device.clone(), clock.clone());
        End { device, pd, mr, srq, send, recv, qp, clock, attributes: self.attributes }
    }

    /// Returns two connected ends.
    pub(super) fn connected(&self) -> (End, End) {
        let (mut a, mut b) = self.unconnected();
        connect(&mut a, &mut b);
        (a, b)
    }
}

/// Connects the ends `a` and `b`, and moves their queue pairs to RTS.
pub(super) fn connect(a: &mut End, b: &mut End) {
    let (to_a, to_b) = (a.address(), b.address());
    a.connect(to_b);
    b.connect(to_a);
}

/// The fields of a completion that most tests compare: `wr_id`, status and number of bytes.
pub(super) type Done = (u64, WcStatus, u32);

impl End {
    pub(super) fn address(&self) -> (Gid, QpNum) {
        (self.device.gid(), self.qp.number())
    }

    /// Moves the queue pair from RESET to RTS.
    pub(super) fn connect(&mut self, to: (Gid, QpNum)) {
        self.init();
        self.rtr(to);
        self.rts();
    }

    pub(super) fn init(&mut self) {
        let (mut attributes, mask) = QpAttributes::init(self.qp.kind(), 1, QKEY);
        attributes.access = self.attributes.access;
        self.qp.modify(&attributes, mask).unwrap();
    }

    pub(super) fn rtr(&mut self, (gid, dest_qp): (Gid, QpNum)) {
        use AttributeMask as Mask;
        let uc = Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN;
        let mask = match self.qp.kind() {
            QpType::Rc => uc | Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER,
            QpType::Uc => uc,
            _ => Mask::empty(),
        };
        let path = dataplane_core::verbs::Path { gid, ..self.attributes.path };
        let attributes = QpAttributes { state: QpState::Rtr, path, dest_qp, ..self.attributes };
        self.qp.modify(&attributes, mask | Mask::STATE).unwrap();
    }

    pub(super) fn rts(&mut self) {
        use AttributeMask as Mask;
        let mask = match self.qp.kind() {
            QpType::Rc => Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC | Mask::SQ_PSN,
            _ => Mask::SQ_PSN,
        };
        let attributes = QpAttributes { state: QpState::Rts, ..self.attributes };
        self.qp.modify(&attributes, mask | Mask::STATE).unwrap();
    }

    pub(super) fn to(&mut self, state: QpState) {
        let (attributes, mask) = QpAttributes::to(state);
        self.qp.modify(&attributes, mask).unwrap();
    }

    /// Returns the scatter/gather element for `length` bytes of the end's memory, from byte `at`.
    pub(super) fn sge(&self, at: usize, length: u32) -> Sge {
        Sge { addr: self.addr(at), length, lkey: self.mr.lkey() }
    }

    pub(super) fn addr(&self, at: usize) -> u64 {
        self.mr.region().base().addr().get() as u64 + at as u64
    }

    /// Returns the remote address of byte `at` of the end's memory, for requests of the peer.
    pub(super) fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.addr(at), rkey: self.mr.rkey() }
    }

    /// Writes bytes to the end's memory.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES);
        // SAFETY: the bytes are inside the region, and tests write only memory that they have not posted.
        unsafe { self.mr.region().base().add(at).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Returns bytes of the end's memory.
    pub(super) fn get(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= BYTES);
        // SAFETY: the bytes are inside the region, and no operation is outstanding when tests read.
        unsafe { std::slice::from_raw_parts(self.mr.region().base().add(at).as_ptr(), length) }.to_vec()
    }

    /// Posts a receive to the queue pair, or to the shared receive queue if the end has one.
    pub(super) fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let requests = [RecvRequest { wr_id, sges }];
        // SAFETY: tests do not access posted memory.
        unsafe {
            match &mut self.srq {
                Some(srq) => srq.post_recv(&requests),
                None => self.qp.post_recv(&requests),
            }
        }
    }

    /// Posts a signalled send.
    pub(super) fn post(&mut self, wr_id: u64, op: SendOp<'_>, sges: &[Sge]) -> Result<(), PostError> {
        self.post_with(wr_id, op, SendFlags::SIGNALED, sges)
    }

    pub(super) fn post_with(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        flags: SendFlags,
        sges: &[Sge],
    ) -> Result<(), PostError> {
        // SAFETY: tests do not access posted memory.
        unsafe { self.qp.post_send(&[SendRequest { wr_id, op, flags, sges, to: None }]) }
    }

    /// Posts several signalled sends in one call.
    pub(super) fn post_list(&mut self, list: &[(u64, SendOp<'_>, &[Sge])]) -> Result<(), PostError> {
        let requests: Vec<_> = list
            .iter()
            .map(|&(wr_id, op, sges)| SendRequest { wr_id, op, flags: SendFlags::SIGNALED, sges, to: None })
            .collect();
        // SAFETY: tests do not access posted memory.
        unsafe { self.qp.post_send(&requests) }
    }

    /// Posts a datagram.
    pub(super) fn post_to(
        &mut self,
        wr_id: u64,
        op: SendOp<'_>,
        sges: &[Sge],
        (gid, qp): (Gid, QpNum),
        qkey: u32,
    ) -> Result<(), PostError> {
        let path = dataplane_core::verbs::Path { gid, ..self.attributes.path };
        let ah = self.pd.create_ah(&path).unwrap();
        let to = Some(Destination { ah: &ah, qp, qkey });
        // SAFETY: tests do not access posted memory.
        unsafe { self.qp.post_send(&[SendRequest { wr_id, op, flags: SendFlags::SIGNALED, sges, to }]) }
    }

    /// Polls the completions of sends.
    pub(super) fn sent(&mut self) -> Vec<Done> {
        polled(&mut self.send)
    }

    /// Polls the completions of receives.
    pub(super) fn received(&mut self) -> Vec<Done> {
        polled(&mut self.recv)
    }

    /// Returns all completions with all their fields.
    pub(super) fn completions(cq: &mut SoftCq) -> Vec<Completion> {
        let mut found = Vec::new();
        if let Some(mut cursor) = cq.start_poll().unwrap() {
            found.push(cursor.get());
            while cursor.advance().unwrap() {
                found.push(cursor.get());
            }
        }
        found
    }

    /// Returns the kinds of the asynchronous events that the device has raised.
    pub(super) fn events(&self) -> Vec<EventKind> {
        std::iter::from_fn(|| self.device.poll_async_event()).map(|event| event.kind).collect()
    }
}

pub(super) fn polled(cq: &mut SoftCq) -> Vec<Done> {
    let mut run = Completions::new();
    cq.poll_run(&mut run, MAX_RUN).unwrap();
    completions_of(&run)
}

/// Returns the statuses of all completions.
pub(super) fn statuses(done: &[Done]) -> Vec<WcStatus> {
    done.iter().map(|(_, status, _)| *status).collect()
}
