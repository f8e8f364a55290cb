//! One side: its queue pairs, their completion queue and their memory.

use std::hash::{BuildHasher, RandomState};

use dataplane::error::VerbError;
use dataplane::lane::message::{Ah, Buffer, MessageDomain, MessageQueuePair, MessageSharedQueue};
use dataplane::provider::connect::{Change, Connector, EndpointParameters, QueuePairEndpoint, VERSION};
use dataplane::provider::{
    Access, CqSpec, Destination, Device, PollFields, QpAttributes, QpCaps, QpSpec, QpState, QpType, RecvRequest,
    SendFlags, SendOp, SendRequest, SrqSpec,
};
use dataplane::units::QpNum;

use crate::Result;
use crate::address::Address;
use crate::args::{Plan, Type};

/// Bytes in front of a datagram: the route header.
const GRH: usize = 40;
/// The bit of a `wr_id` by which sends are told from receives.
const SEND: u64 = 1 << 63;

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A send.
    Send,
    /// A receive into this slot.
    Receive(u32),
}

impl Work {
    /// Of the `wr_id` that it was posted with.
    pub(crate) fn of(wr_id: u64) -> Self {
        if wr_id & SEND != 0 { Self::Send } else { Self::Receive(wr_id as u32) }
    }
}

/// A queue pair with what is known of both its sides.
struct Line<D: Device> {
    qp: MessageQueuePair<D>,
    connector: Connector,
    /// Where datagrams go.
    to: Option<(Ah<D>, QpNum)>,
}

/// One side of a run.
pub(crate) struct End<D: Device> {
    lines: Vec<Line<D>>,
    shared: Option<MessageSharedQueue<D>>,
    /// Where all of it completes.
    pub(crate) cq: D::Cq,
    /// What to sleep on.
    pub(crate) channel: Option<D::Channel>,
    receives: Buffer<D>,
    sends: Buffer<D>,
    domain: MessageDomain<D>,
    plan: Plan,
}

/// What fits into 24 bits, other each time.
fn random_psn() -> u32 {
    RandomState::new().hash_one(0) as u32 & 0xff_ffff
}

impl<D: Device> End<D> {
    /// Makes all of it, as far as it goes without a peer: the queue pairs are in INIT, with all receives posted.
    pub(crate) fn new(device: &D, plan: &Plan) -> Result<Self> {
        let kind = plan.kind.kind();
        let sends = plan.window * plan.queue_pairs;
        let connectors: Vec<Connector> = (0..plan.queue_pairs)
            .map(|queue| {
                let parameters = EndpointParameters { sq_psn: random_psn(), ..plan.parameters.clone() };
                Ok(Connector::new(device, kind, parameters)?.queue(queue as u16))
            })
            .collect::<Result<_>>()?;
        check_sizes(device, plan, connectors[0].local().max_message)?;
        let failed = |error: VerbError| error.on(device.name());
        let domain = MessageDomain::new(device).map_err(failed)?;
        let channel = plan.events.then(|| device.create_channel()).transpose().map_err(failed)?;
        let spec = CqSpec { depth: plan.rx_depth + sends, fields: PollFields::STANDARD, ..CqSpec::default() };
        let (cq, _) = device.create_cq(&spec, channel.as_ref()).map_err(failed)?;
        let shared = (plan.kind == Type::Srq)
            .then(|| domain.create_srq(&SrqSpec { depth: plan.rx_depth, sges: 1 }))
            .transpose()
            .map_err(failed)?;
        let recv_depth = if shared.is_some() { 0 } else { plan.rx_depth };
        let caps = QpCaps { send_depth: plan.window, recv_depth, send_sges: 1, recv_sges: 1, inline: 0 };
        let lines = connectors
            .into_iter()
            .map(|connector| {
                let qp = domain.create_qp(&QpSpec::new(kind, caps), &cq, &cq, shared.as_ref()).map_err(failed)?;
                Ok(Line { qp, connector, to: None })
            })
            .collect::<Result<_>>()?;
        let stride = stride(plan);
        let receives = domain.buffer(stride * plan.rx_depth as usize, Access::LOCAL_WRITE)?;
        let sends = domain.buffer(stride * sends as usize, Access::LOCAL_WRITE)?;
        let mut end = Self { lines, shared, cq, channel, receives, sends, domain, plan: plan.clone() };
        end.initialise()?;
        if end.shared.is_some() {
            end.post_all_receives()?;
        }
        Ok(end)
    }

    /// RESET to INIT, with receives where they are the queue pair's own.
    fn initialise(&mut self) -> Result<()> {
        for line in &mut self.lines {
            let change = line.connector.init();
            modify(line, "ibv_modify_qp (RESET to INIT)", change)?;
        }
        if self.shared.is_none() { self.post_all_receives() } else { Ok(()) }
    }

    fn post_all_receives(&mut self) -> Result<()> {
        (0..self.plan.rx_depth).try_for_each(|slot| self.post_receive(0, slot))
    }

    /// What the peer is told: an address for each queue pair, and nothing for what there could be more.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        let mut all: Vec<Address> = self.lines.iter().map(Line::address).collect();
        all.resize(self.plan.kind.addresses(), Address::default());
        all
    }

    /// The name of the device.
    pub(crate) fn device(&self) -> &str {
        self.domain.device().name()
    }

    /// Takes the queue pairs to RTS, each with its peer.
    pub(crate) fn connect(&mut self, remotes: &[Address]) -> Result<()> {
        let told = remotes.iter().take_while(|remote| remote.qpn != 0).count();
        if told != self.lines.len() {
            let own = self.lines.len();
            return Err(format!("the peer has {told} queue pairs, and this side {own}: give both the same").into());
        }
        for (line, remote) in self.lines.iter_mut().zip(remotes) {
            if remote.gid.is_zero() && remote.lid == 0 {
                return Err("the peer tells no address: start it with its GID index, such as -g 0".into());
            }
            let agreed = line.connector.agree(&line.endpoint(line.address()), &line.endpoint(*remote))?;
            modify(line, "ibv_modify_qp (INIT to RTR)", line.connector.rtr(&agreed))?;
            modify(line, "ibv_modify_qp (RTR to RTS)", line.connector.rts(&agreed))?;
            if self.plan.kind == Type::Ud {
                let ah = self.domain.create_ah(&agreed.path).map_err(|error| error.on(line.connector.device()))?;
                line.to = Some((ah, agreed.remote.qpn));
            }
        }
        Ok(())
    }

    /// Takes back what [`End::connect`] did, for the next that may be the peer. The addresses stay.
    pub(crate) fn disconnect(&mut self) -> Result<()> {
        for line in &mut self.lines {
            modify(line, "ibv_modify_qp (to RESET)", QpAttributes::to(QpState::Reset))?;
            line.to = None;
        }
        self.initialise()
    }

    /// How many queue pairs there are.
    pub(crate) fn queues(&self) -> usize {
        self.lines.len()
    }

    /// Which of them has this number.
    pub(crate) fn queue(&self, number: QpNum) -> Option<usize> {
        self.lines.iter().position(|line| line.qp.number() == number)
    }

    /// Posts a receive into a slot, of this queue pair or of the shared queue.
    pub(crate) fn post_receive(&mut self, queue: usize, slot: u32) -> Result<()> {
        let from = stride(&self.plan) * slot as usize;
        let sges = [self.receives.sge(from..from + grh(&self.plan) + self.plan.size as usize)];
        let request = [RecvRequest { wr_id: slot.into(), sges: &sges }];
        let posted = match &mut self.shared {
            Some(shared) => shared.post_recv(&request),
            None => self.lines[queue].qp.post_recv(&request),
        };
        Ok(posted.map_err(|refused| refused.error.on(self.domain.device().name()))?)
    }

    /// Posts a send from a slot of this queue pair: there are as many as its window is wide.
    pub(crate) fn post_send(&mut self, queue: usize, slot: u32) -> Result<()> {
        let from = self.send_offset(queue, slot);
        let sges = [self.sends.sge(from..from + self.plan.size as usize)];
        let line = &mut self.lines[queue];
        let qkey = self.plan.parameters.qkey;
        let to = line.to.as_ref().map(|(ah, qp)| Destination { ah, qp: *qp, qkey });
        let wr_id = SEND | slot as u64;
        let request = SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to };
        Ok(line.qp.post_send(&[request]).map_err(|refused| refused.error.on(self.domain.device().name()))?)
    }

    /// The bytes of a message out of the `byte_len` of its completion.
    pub(crate) fn length(&self, byte_len: u32) -> Option<usize> {
        (byte_len as usize).checked_sub(grh(&self.plan))
    }

    /// Copies a message out of the slot that it was received in.
    pub(crate) fn read(&self, slot: u32, into: &mut [u8]) {
        self.receives.read(stride(&self.plan) * slot as usize + grh(&self.plan), into);
    }

    /// Copies a message into the slot that it will be sent from.
    pub(crate) fn write(&self, queue: usize, slot: u32, message: &[u8]) {
        self.sends.write(self.send_offset(queue, slot), message);
    }

    fn send_offset(&self, queue: usize, slot: u32) -> usize {
        stride(&self.plan) * (queue * self.plan.window as usize + slot as usize)
    }
}

impl<D: Device> Line<D> {
    fn address(&self) -> Address {
        let local = self.connector.local();
        let psn = self.connector.parameters().sq_psn;
        Address { lid: local.lid, qpn: self.qp.number().0, psn, gid: local.gid }
    }

    /// An address with all that the exchange does not tell: of that both sides have the same.
    fn endpoint(&self, address: Address) -> QueuePairEndpoint {
        let local = self.connector.local();
        let parameters = self.connector.parameters();
        let transport = self.qp.kind();
        QueuePairEndpoint {
            version: VERSION,
            transport,
            link_layer: local.link_layer,
            lid: address.lid,
            gid: address.gid,
            gid_kind: local.gid_kind,
            qpn: QpNum(address.qpn),
            psn: address.psn,
            path_mtu: local.path_mtu,
            max_dest_rd_atomic: parameters.max_dest_rd_atomic,
            max_message: local.max_message,
            qkey: if transport == QpType::Ud { parameters.qkey } else { 0 },
            generation: 0,
            queue: 0,
            receive_depth: 0,
            buffer: None,
        }
    }
}

fn modify<D: Device>(line: &mut Line<D>, verb: &'static str, change: Change) -> Result<()> {
    let done = line.qp.modify(&change.0, change.1);
    Ok(done.map_err(|error| VerbError { verb, ..error }.on(line.connector.device()))?)
}

/// Bytes in front of each message received.
fn grh(plan: &Plan) -> usize {
    if plan.kind == Type::Ud { GRH } else { 0 }
}

/// From one slot to the next: no two share a cache line.
fn stride(plan: &Plan) -> usize {
    (grh(plan) + plan.size as usize).next_multiple_of(64)
}

fn check_sizes<D: Device>(device: &D, plan: &Plan, max_message: u32) -> Result<()> {
    let caps = device.capabilities();
    let (receives, of) = match plan.kind {
        Type::Srq => (caps.max_srq_wr, "of a shared queue"),
        _ => (caps.max_qp_wr, "of a queue pair"),
    };
    let sizes = [
        ("--size", plan.size, max_message, "bytes of a message"),
        ("--rx-depth", plan.rx_depth, receives, of),
        ("--window", plan.window, caps.max_qp_wr, "of a queue pair"),
        (
            "--rx-depth and --window",
            plan.rx_depth.saturating_add(plan.window * plan.queue_pairs),
            caps.max_cqe,
            "of a completion queue",
        ),
    ];
    match sizes.into_iter().find(|(_, wanted, most, _)| wanted > most) {
        None => Ok(()),
        Some((option, wanted, most, what)) => {
            Err(format!("{option} {wanted}: {} has at most {most} {what}", device.name()).into())
        }
    }
}
