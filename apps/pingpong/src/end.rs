//! One side of a run: its queue pairs, the completion queue of all queue pairs, and its message buffers.

use std::hash::{BuildHasher, RandomState};

use dataplane::connect::{Connector, EndpointParameters, QpModification, QueuePairEndpoint};
use dataplane::error::VerbError;
use dataplane::lane::message::{Ah, Buffer, MessageDomain, MessageQueuePair, MessageSharedQueue};
use dataplane::units::{Gid, QpNum};
use dataplane::verbs::{
    Access, CqSpec, Destination, Device, PollFields, QpCaps, QpSpec, RecvRequest, SendFlags, SendOp, SendRequest,
    SrqSpec,
};

use crate::Result;
use crate::address::Address;
use crate::args::{Plan, Type};

/// The length in bytes of the global routing header (GRH) that precedes a received datagram.
const GRH: usize = 40;
/// The bit of a `wr_id` that marks a send request.
const SEND: u64 = 1 << 63;

/// The request that a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A send request.
    Send,
    /// A receive request into this slot.
    Receive(u32),
}

impl Work {
    /// Returns the request type of a `wr_id`.
    pub(crate) fn of(wr_id: u64) -> Self {
        if wr_id & SEND != 0 { Self::Send } else { Self::Receive(wr_id as u32) }
    }
}

/// A queue pair and its connection state.
struct ConnectedQueuePair<D: Device> {
    qp: MessageQueuePair<D>,
    connector: Connector,
    /// The destination of sent datagrams.
    to: Option<(Ah<D>, QpNum)>,
}

/// One side of a run.
pub(crate) struct Endpoint<D: Device> {
    pairs: Vec<ConnectedQueuePair<D>>,
    shared: Option<MessageSharedQueue<D>>,
    /// The completion queue of all requests.
    pub(crate) cq: D::Cq,
    /// The completion channel to sleep on, or `None` when polling.
    pub(crate) channel: Option<D::Channel>,
    receives: Buffer<D>,
    sends: Buffer<D>,
    domain: MessageDomain<D>,
    plan: Plan,
}

/// Returns a random packet sequence number (PSN), which has 24 bits.
fn random_psn() -> u32 {
    RandomState::new().hash_one(0) as u32 & 0xff_ffff
}

impl<D: Device> Endpoint<D> {
    /// Creates all objects that do not depend on the peer. The queue pairs are then in state INIT, and all receive
    /// requests are posted.
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
        let pairs = connectors
            .into_iter()
            .map(|connector| {
                let qp = domain.create_qp(&QpSpec::new(kind, caps), &cq, &cq, shared.as_ref()).map_err(failed)?;
                Ok(ConnectedQueuePair { qp, connector, to: None })
            })
            .collect::<Result<_>>()?;
        let stride = stride(plan);
        let receives = domain.buffer(stride * plan.rx_depth as usize, Access::LOCAL_WRITE)?;
        let sends = domain.buffer(stride * sends as usize, Access::LOCAL_WRITE)?;
        let mut end = Self { pairs, shared, cq, channel, receives, sends, domain, plan: plan.clone() };
        end.initialise()?;
        if end.shared.is_some() {
            end.post_all_receives()?;
        }
        Ok(end)
    }

    /// Moves the queue pairs from RESET to INIT. Posts the receive requests of each queue pair that has its own receive
    /// queue.
    fn initialise(&mut self) -> Result<()> {
        for pair in &mut self.pairs {
            let change = pair.connector.init();
            modify(pair, "ibv_modify_qp (RESET to INIT)", change)?;
        }
        if self.shared.is_none() { self.post_all_receives() } else { Ok(()) }
    }

    fn post_all_receives(&mut self) -> Result<()> {
        (0..self.plan.rx_depth).try_for_each(|slot| self.post_receive(0, slot))
    }

    /// Returns the addresses to send to the peer: one for each queue pair, followed by zeros for unused entries.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        let mut all: Vec<Address> = self.pairs.iter().map(ConnectedQueuePair::address).collect();
        all.resize(self.plan.kind.addresses(), Address::default());
        all
    }

    /// Returns the name of the device.
    pub(crate) fn device(&self) -> &str {
        self.domain.device().name()
    }

    /// Moves the queue pairs to RTS. Each queue pair is connected with the queue pair of the peer that has the same
    /// index.
    pub(crate) fn connect(&mut self, remotes: &[Address]) -> Result<()> {
        let remote_count = remotes.iter().take_while(|remote| remote.qpn != 0).count();
        if remote_count != self.pairs.len() {
            let own = self.pairs.len();
            let text = format!(
                "the peer has {remote_count} queue pairs, but this side has {own}; help: set the same --queue-pairs on both sides"
            );
            return Err(text.into());
        }
        for (pair, remote) in self.pairs.iter_mut().zip(remotes) {
            let own = pair.address();
            if remote.gid.is_zero() && (remote.lid == 0 || pair.connector.local().needs_grh) {
                return Err("the peer sent no GID; help: start the peer with its GID index, such as -g 0".into());
            }
            if own.gid.is_zero() && remote.lid == 0 {
                return Err("the peer sent no LID; help: select the GID of this side, such as -g 0".into());
            }
            let agreed = pair.connector.negotiate(&pair.endpoint(own), &pair.endpoint(*remote))?;
            let qp = &mut pair.qp;
            pair.connector.establish(&agreed, |attributes, mask| qp.modify(attributes, mask))?;
            if self.plan.kind == Type::Ud {
                let ah = self.domain.create_ah(&agreed.path).map_err(|error| error.on(pair.connector.device()))?;
                pair.to = Some((ah, agreed.remote.qpn));
            }
        }
        Ok(())
    }

    /// Returns the number of queue pairs.
    pub(crate) fn queues(&self) -> usize {
        self.pairs.len()
    }

    /// Returns the index of the queue pair with the queue pair number `number`, or `None` if there is no such queue
    /// pair.
    pub(crate) fn queue(&self, number: QpNum) -> Option<usize> {
        self.pairs.iter().position(|pair| pair.qp.number() == number)
    }

    /// Posts a receive request into a slot. The request goes to this queue pair, or to the shared receive queue if
    /// there is one.
    pub(crate) fn post_receive(&mut self, queue: usize, slot: u32) -> Result<()> {
        let from = stride(&self.plan) * slot as usize;
        let sges = [self.receives.sge(from..from + grh(&self.plan) + self.plan.size as usize)];
        let request = [RecvRequest { wr_id: slot.into(), sges: &sges }];
        let posted = match &mut self.shared {
            Some(shared) => shared.post_recv(&request),
            None => self.pairs[queue].qp.post_recv(&request),
        };
        Ok(posted.map_err(|refused| refused.error.on(self.domain.device().name()))?)
    }

    /// Posts a send request from a send slot of this queue pair. Each queue pair has one send slot for each message of
    /// its window.
    pub(crate) fn post_send(&mut self, queue: usize, slot: u32) -> Result<()> {
        let from = self.send_offset(queue, slot);
        let sges = [self.sends.sge(from..from + self.plan.size as usize)];
        let pair = &mut self.pairs[queue];
        let qkey = self.plan.parameters.qkey;
        let to = pair.to.as_ref().map(|(ah, qp)| Destination { ah, qp: *qp, qkey });
        let wr_id = SEND | slot as u64;
        let request = SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::SIGNALED, sges: &sges, to };
        Ok(pair.qp.post_send(&[request]).map_err(|refused| refused.error.on(self.domain.device().name()))?)
    }

    /// Returns the message length in bytes for the `byte_len` of a receive completion, or `None` if `byte_len` is below
    /// the length of the GRH.
    pub(crate) fn length(&self, byte_len: u32) -> Option<usize> {
        (byte_len as usize).checked_sub(grh(&self.plan))
    }

    /// Copies a message out of its receive slot.
    pub(crate) fn read(&self, slot: u32, into: &mut [u8]) {
        self.receives.read(stride(&self.plan) * slot as usize + grh(&self.plan), into);
    }

    /// Copies a message into its send slot.
    pub(crate) fn write(&self, queue: usize, slot: u32, message: &[u8]) {
        self.sends.write(self.send_offset(queue, slot), message);
    }

    fn send_offset(&self, queue: usize, slot: u32) -> usize {
        stride(&self.plan) * (queue * self.plan.window as usize + slot as usize)
    }
}

impl<D: Device> ConnectedQueuePair<D> {
    fn address(&self) -> Address {
        let local = self.connector.local();
        let parameters = self.connector.parameters();
        // An rdma-core program without `-g` fails if the peer sends a GID, because the rdma-core program then has no
        // source GID for the global route header.
        let gid = if self.connector.needs_gid() { local.gid } else { Gid::default() };
        Address { lid: local.lid, qpn: self.qp.number().0, psn: parameters.sq_psn, gid }
    }

    /// Converts an address, of this side or of the peer, to an endpoint. An address lacks some values of an endpoint.
    /// The values of this side replace the missing values, so this side assumes that the peer has the same values.
    fn endpoint(&self, address: Address) -> QueuePairEndpoint {
        QueuePairEndpoint {
            lid: address.lid,
            gid: address.gid,
            qpn: QpNum(address.qpn),
            psn: address.psn,
            ..self.connector.endpoint_for(self.qp.number(), 0)
        }
    }
}

fn modify<D: Device>(pair: &mut ConnectedQueuePair<D>, verb: &'static str, change: QpModification) -> Result<()> {
    let done = pair.qp.modify(&change.0, change.1);
    Ok(done.map_err(|error| VerbError { verb, ..error }.on(pair.connector.device()))?)
}

/// Returns the number of bytes that precede each received message.
fn grh(plan: &Plan) -> usize {
    if plan.kind == Type::Ud { GRH } else { 0 }
}

/// Returns the distance between two slots in bytes: a multiple of 64, to avoid false sharing.
fn stride(plan: &Plan) -> usize {
    (grh(plan) + plan.size as usize).next_multiple_of(64)
}

fn check_sizes<D: Device>(device: &D, plan: &Plan, max_message: u32) -> Result<()> {
    let caps = device.capabilities();
    let Plan { size, rx_depth, window, queue_pairs, .. } = *plan;
    let (receives, receiver) = match plan.kind {
        Type::Srq => (caps.max_srq_wr, "a shared receive queue"),
        _ => (caps.max_qp_wr, "a queue pair"),
    };
    let sizes = [
        (format!("--size {size}"), size, max_message, "a message", "bytes"),
        (format!("--rx-depth {rx_depth}"), rx_depth, receives, receiver, "receive requests"),
        (format!("--window {window}"), window, caps.max_qp_wr, "a queue pair", "send requests"),
        (
            format!("--rx-depth {rx_depth} and --window {window}"),
            rx_depth.saturating_add(window * queue_pairs),
            caps.max_cqe,
            "a completion queue",
            "entries",
        ),
    ];
    match sizes.into_iter().find(|(_, wanted, most, ..)| wanted > most) {
        None => Ok(()),
        Some((option, _, most, object, unit)) => {
            Err(format!("{option}: {object} of {} has at most {most} {unit}", device.name()).into())
        }
    }
}
