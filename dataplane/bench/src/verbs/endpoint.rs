//! The queue pairs of one side, their completion queues and their memory.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::time::Duration;

use dataplane::connect::{Connector, EndpointParameters, QueuePairEndpoint, mtu_bytes};
use dataplane::error::VerbError;
use dataplane::lane::message::{Ah, Buffer, MessageDomain, MessageQueuePair, poll, poll_or_sleep};
use dataplane::units::{Gid, QpNum, Rkey};
use dataplane::verbs::{
    Access, Capability, Completion, CqSpec, Destination as To, Device, LinkLayer, PollFields, QpCaps, QpSpec, QpType,
    RecvRequest, Remote, SendFlags, SendOp, SendRequest, WcStatus,
};
use dataplane::{Error, Result};
use rustix::io::Errno;

use super::plan::{Atomic, Plan, Test, Transport};
use super::protocol::Destination;

/// The length of the global route header (GRH) before a received datagram.
const GRH: u32 = 40;
/// The distance between two messages in memory is a multiple of this number, which is also the size of a cache line.
const LINE: usize = 64;
/// The maximum number of completions of one poll, as in perftest.
pub(super) const POLL: usize = 16;
/// The number of bits of the index of a queue pair in the `wr_id` of a send.
const QUEUE_PAIR_BITS: u32 = 16;
/// The maximum duration of a sleep on a completion channel.
const SLEEP: Duration = Duration::from_millis(50);

/// One of the two completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Receive,
}

/// The properties of a side that must be known before the exchange.
#[derive(Debug)]
pub(super) struct LocalSide {
    connector: Connector,
    /// The number of reads and atomics that this side accepts at once.
    outstanding: u8,
}

/// The values that both sides have agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// The code of the path MTU of the peer.
    pub(super) peer_mtu: u8,
    /// The size of the memory area that consecutive messages use in turn (the "cycle buffer" of perftest). After the
    /// last message that fits, the next message is at the start of the area again.
    pub(super) cycle: usize,
    /// The size of the largest message.
    pub(super) largest: u32,
}

/// The peer of a connected queue pair.
struct Peer<D: Device> {
    remote: Remote,
    qpn: QpNum,
    /// The address handle of datagrams.
    ah: Option<Ah<D>>,
}

/// The queue pairs of one side, their completion queues and their memory.
pub(super) struct Endpoint<'p, D: Device> {
    // The queue pairs are destroyed before their completion queues and their memory.
    qps: Vec<MessageQueuePair<D>>,
    queues: [D::Cq; 2],
    channels: Option<[D::Channel; 2]>,
    memory: Buffer<D>,
    domain: MessageDomain<D>,
    /// The peers in the order of the queue pairs. Empty before the connection.
    peers: Vec<Peer<D>>,
    local: LocalSide,
    plan: &'p Plan,
    agreed: Agreed,
    /// The length of each part of the memory. The memory starts with one part for each queue pair, for the messages
    /// that the queue pair sends. Behind these parts, each queue pair has another part, for the messages of its peer.
    part: usize,
    completions: Vec<Completion>,
}

impl LocalSide {
    /// Checks the parameters against the device.
    pub(super) fn new<D: Device>(device: &D, plan: &Plan) -> Result<Self> {
        let caps = device.capabilities();
        let name = device.name();
        let test = plan.test;
        if test.is_atomic() && !caps.has.contains(&Capability::Atomic) {
            return Err(Error::Peer(format!(
                "{test}: {name} has no atomic operations; help: use another device or test"
            )));
        }
        let most = caps.max_rd_atomic.min(caps.max_init_rd_atomic).min(255) as u8;
        let outstanding = if test.fetches() { plan.outstanding.unwrap_or(most) } else { 1 };
        if test.fetches() && most == 0 {
            return Err(Error::Peer(format!(
                "{test}: {name} permits no reads and atomics; help: use another device or test"
            )));
        }
        if test.fetches() && outstanding > most {
            return Err(Error::Peer(format!(
                "--outstanding {outstanding}: the maximum of {name} is {most}; help: use 1 to {most}"
            )));
        }
        let parameters = EndpointParameters {
            sq_psn: RandomState::new().hash_one(0) as u32 & 0xff_ffff,
            max_rd_atomic: outstanding,
            max_dest_rd_atomic: outstanding,
            ..plan.parameters.clone()
        };
        let connector = Connector::new(device, plan.transport.qp_type(), parameters)?;
        check_depths(device, plan)?;
        Ok(Self { connector, outstanding })
    }

    /// Returns the code of the path MTU.
    pub(super) fn mtu(&self) -> u8 {
        self.connector.local().path_mtu
    }

    /// Returns the size of the largest message, if the path MTU of the peer is `peer_mtu`.
    pub(super) fn largest_message(&self, transport: Transport, peer_mtu: u8) -> u32 {
        match transport {
            Transport::Ud => mtu_bytes(self.mtu().min(peer_mtu)),
            _ => self.connector.local().max_message,
        }
    }
}

impl<'p, D: Device> Endpoint<'p, D> {
    /// Creates the objects, and moves the queue pairs to INIT.
    pub(super) fn new(device: &D, plan: &'p Plan, local: LocalSide, agreed: Agreed) -> Result<Self> {
        let failed = |error: VerbError| error.on(device.name());
        let domain = MessageDomain::new(device).map_err(failed)?;
        let channel = || device.create_channel();
        let channels = if plan.events { Some([channel().map_err(failed)?, channel().map_err(failed)?]) } else { None };
        let cq = |depth: u32, queue: usize| {
            let spec = CqSpec { depth, fields: PollFields::STANDARD, ..CqSpec::default() };
            device.create_cq(&spec, channels.as_ref().map(|both| &both[queue])).map(|(cq, _)| cq)
        };
        let rx_depth = if plan.test.is_send() { plan.rx_depth } else { 1 };
        let count = plan.queue_pairs;
        let [tx_entries, rx_entries] = [plan.tx_depth, rx_depth].map(|depth| depth.saturating_mul(count as u32));
        let queues = [cq(tx_entries, 0).map_err(failed)?, cq(rx_entries, 1).map_err(failed)?];
        let create = |inline| {
            let caps = QpCaps { send_depth: plan.tx_depth, recv_depth: rx_depth, send_sges: 1, recv_sges: 1, inline };
            domain.create_qp(&QpSpec::new(plan.transport.qp_type(), caps), &queues[0], &queues[1], None)
        };
        let mut qps = Vec::with_capacity(count);
        for _ in 0..count {
            qps.push(match create(plan.inline) {
                Ok(qp) => qp,
                Err(error) if plan.inline > 0 && create(0).is_ok() => {
                    let granted = largest_inline(plan.inline, |inline| create(inline).is_ok());
                    return Err(inline_error(device.name(), plan.inline, granted, Some(&error)));
                }
                Err(error) => return Err(failed(error)),
            });
        }
        // The driver `hns` may grant less inline data than requested, without an error.
        let granted = qps.iter().map(|qp| qp.caps().inline).min().unwrap_or(0);
        if granted < plan.inline {
            return Err(inline_error(device.name(), plan.inline, granted, None));
        }
        let part = (agreed.largest as usize).max(agreed.cycle).next_multiple_of(LINE);
        // A received datagram starts at a cache line, and the GRH is before this line.
        let bytes = 2 * count * part + if plan.transport == Transport::Ud { LINE } else { 0 };
        // A test of latency polls the last byte of a write, so the bytes must become visible in order.
        let order = if plan.test.is_latency() { Access::empty() } else { Access::RELAXED_ORDERING };
        let memory = domain.buffer(bytes, Access::LOCAL_WRITE | plan.test.access() | order)?;
        let completions = Vec::with_capacity(POLL);
        let mut end =
            Self { qps, queues, channels, memory, domain, peers: Vec::new(), local, plan, agreed, part, completions };
        let (attributes, mask) = end.local.connector.init();
        for qp in &mut end.qps {
            let done = qp.modify(&attributes, mask);
            done.map_err(|error| failed(VerbError { verb: "ibv_modify_qp (RESET to INIT)", ..error }))?;
        }
        Ok(end)
    }

    /// Returns the offset of the memory for the messages of the peer of a queue pair.
    fn incoming(&self, queue_pair: usize) -> usize {
        (self.qps.len() + queue_pair) * self.part
    }

    /// Returns the address of a queue pair and of the memory that the peer writes or reads.
    pub(super) fn destination(&self, queue_pair: usize) -> Destination {
        let local = self.local.connector.local();
        Destination {
            lid: local.lid,
            outstanding: self.local.outstanding.into(),
            qpn: self.qps[queue_pair].number().0,
            psn: self.local.connector.parameters().sq_psn,
            rkey: self.memory.rkey().0,
            addr: self.memory.remote(self.incoming(queue_pair)).addr,
            gid: self.local.connector.needs_gid().then_some(local.gid),
        }
    }

    /// Connects the queue pairs with the queue pairs of the peer, and moves the queue pairs to RTS.
    pub(super) fn connect(&mut self, peers: &[Destination]) -> Result<()> {
        for (queue_pair, peer) in peers.iter().enumerate() {
            let peer = self.connect_one(queue_pair, peer)?;
            self.peers.push(peer);
        }
        Ok(())
    }

    fn connect_one(&mut self, queue_pair: usize, peer: &Destination) -> Result<Peer<D>> {
        let connector = &self.local.connector;
        let qp = &mut self.qps[queue_pair];
        let own = connector.endpoint_for(qp.number(), 0);
        // The exchange does not contain the other values of an endpoint. This side uses its own values instead.
        let remote = QueuePairEndpoint {
            lid: peer.lid,
            gid: peer.gid.unwrap_or_default(),
            qpn: QpNum(peer.qpn),
            psn: peer.psn,
            path_mtu: self.agreed.peer_mtu,
            max_dest_rd_atomic: peer.outstanding.min(255) as u8,
            ..own
        };
        let agreed = connector.negotiate(&own, &remote).map_err(|error| Error::Peer(error.to_string()))?;
        if self.plan.test.fetches() && agreed.max_rd_atomic == 0 {
            return Err(Error::Peer(
                "the peer accepts no reads and atomics; help: use the same test on both sides".to_owned(),
            ));
        }
        connector.establish(&agreed, |attributes, mask| qp.modify(attributes, mask))?;
        let ah = (qp.kind() == QpType::Ud).then(|| self.domain.create_ah(&agreed.path)).transpose();
        let ah = ah.map_err(|error| error.on(self.local.connector.device()))?;
        let remote = Remote { addr: peer.addr, rkey: Rkey(peer.rkey) };
        Ok(Peer { remote, qpn: QpNum(peer.qpn), ah })
    }

    /// Returns the path MTU of the connection in bytes.
    pub(super) fn mtu_bytes(&self) -> u32 {
        mtu_bytes(self.local.mtu().min(self.agreed.peer_mtu))
    }

    /// Returns the link layer and the local GID.
    pub(super) fn port(&self) -> (LinkLayer, Gid) {
        let local = self.local.connector.local();
        (local.link_layer, local.gid)
    }

    /// Returns the number of places for messages of this size in the area of [`Agreed::cycle`]. For a message that is
    /// larger than half of the area, there is one place.
    pub(super) fn places(&self, size: u32) -> usize {
        let size = size as usize;
        if size > self.agreed.cycle / 2 { 1 } else { self.agreed.cycle / size.next_multiple_of(LINE) }
    }

    /// Posts message number `number` of `size` bytes. [`sent_message`] returns the queue pair and the number from the
    /// completion. `place` is below [`Endpoint::places`].
    #[inline]
    pub(super) fn post_send(
        &mut self,
        queue_pair: usize,
        number: u64,
        size: u32,
        place: usize,
        is_signaled: bool,
    ) -> Result<()> {
        let peer = &self.peers[queue_pair];
        let offset = place * (size as usize).next_multiple_of(LINE);
        let begin = queue_pair * self.part + offset;
        let sges = [self.memory.sge(begin..begin + size as usize)];
        let remote = Remote { addr: peer.remote.addr.wrapping_add(offset as u64), ..peer.remote };
        let op = match self.plan.test {
            Test::SendBw | Test::SendLat => SendOp::Send,
            Test::WriteBw | Test::WriteLat => SendOp::RdmaWrite(remote),
            Test::ReadBw | Test::ReadLat => SendOp::RdmaRead(remote),
            Test::AtomicBw | Test::AtomicLat if self.plan.atomic == Atomic::FetchAdd => {
                SendOp::FetchAdd { remote, add: 1 }
            }
            Test::AtomicBw | Test::AtomicLat => SendOp::CompareSwap { remote, compare: 0, swap: 1 },
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, is_signaled);
        flags.set(SendFlags::INLINE, size <= self.plan.inline);
        let qkey = self.plan.parameters.qkey;
        let to = peer.ah.as_ref().map(|ah| To { ah, qp: peer.qpn, qkey });
        let wr_id = number << QUEUE_PAIR_BITS | queue_pair as u64;
        let posted = self.qps[queue_pair].post_send(&[SendRequest { wr_id, op, flags, sges: &sges, to }]);
        posted.map_err(|refused| {
            let is_invalid = refused.error.errno == Errno::INVAL.raw_os_error();
            let error = refused.error.on(self.local.connector.device());
            match is_signaled || !is_invalid {
                true => error,
                // efa refuses a request without a completion.
                false => Error::Peer(format!(
                    "{error}; help: the device may need a completion for each request: use --cq-mod 1"
                )),
            }
        })
    }

    /// Posts a receive for a message of any size of the run. The completion has the index of the queue pair. All receives of
    /// a queue pair use the same memory.
    #[inline]
    pub(super) fn post_receive(&mut self, queue_pair: usize) -> Result<()> {
        let incoming = self.incoming(queue_pair);
        let (begin, extra) = match self.plan.transport {
            Transport::Ud => (incoming + LINE - GRH as usize, GRH as usize),
            _ => (incoming, 0),
        };
        let sges = [self.memory.sge(begin..begin + extra + self.agreed.largest as usize)];
        let posted = self.qps[queue_pair].post_recv(&[RecvRequest { wr_id: queue_pair as u64, sges: &sges }]);
        posted.map_err(|refused| refused.error.on(self.local.connector.device()))
    }

    /// Polls up to `limit` completions of a queue, which [`Endpoint::completions`] then returns. With events, sleeps
    /// until a completion arrives. Returns the number of completions.
    ///
    /// # Errors
    /// The queue is unusable, or a request has failed.
    #[inline]
    pub(super) fn poll(&mut self, queue: Queue, limit: usize) -> Result<usize> {
        self.completions.clear();
        let index = queue as usize;
        let cq = &mut self.queues[index];
        let polled = match &self.channels {
            Some(channels) => poll_or_sleep(cq, &channels[index], &mut self.completions, limit.min(POLL), SLEEP),
            None => poll(cq, &mut self.completions, limit.min(POLL)),
        };
        let polled = polled.map_err(|error| error.on(self.local.connector.device()))?;
        if polled == 0 {
            if self.plan.yields {
                std::thread::yield_now();
            }
            return Ok(0);
        }
        match self.completions.iter().find(|completion| completion.status != WcStatus::Success) {
            Some(completion) => Err(request_error(self.plan.test, queue, completion)),
            None => Ok(polled),
        }
    }

    /// Returns the completions of the last poll.
    #[inline]
    pub(super) fn completions(&self) -> &[Completion] {
        &self.completions
    }

    /// Whether a poll sleeps.
    pub(super) fn sleeps(&self) -> bool {
        self.channels.is_some()
    }

    /// Returns the length of the received message of a completion.
    pub(super) fn received_length(&self, completion: &Completion) -> Option<u32> {
        let header = if self.plan.transport == Transport::Ud { GRH } else { 0 };
        completion.byte_len()?.checked_sub(header)
    }

    /// Writes a byte to the end of the next message of `size` bytes at place 0 of the first queue pair.
    #[inline]
    pub(super) fn write_last_byte(&self, size: u32, value: u8) {
        self.memory.write(size as usize - 1, &[value]);
    }

    /// Reads the byte at the end of the memory for a received message of `size` bytes of the first queue pair.
    #[inline]
    pub(super) fn read_last_byte(&self, size: u32) -> u8 {
        let mut byte = [0];
        self.memory.read(self.incoming(0) + size as usize - 1, &mut byte);
        byte[0]
    }
}

/// Returns the queue pair and the number of the message of a completed send.
#[inline]
pub(super) fn sent_message(completion: &Completion) -> (usize, usize) {
    let wr_id = completion.wr_id;
    ((wr_id & ((1 << QUEUE_PAIR_BITS) - 1)) as usize, (wr_id >> QUEUE_PAIR_BITS) as usize)
}

fn check_depths<D: Device>(device: &D, plan: &Plan) -> Result<()> {
    let caps = device.capabilities();
    // All queue pairs share the completion queues.
    let most = caps.max_qp_wr.min(caps.max_cqe / plan.queue_pairs as u32);
    let depths = [("--tx-depth", plan.tx_depth), ("--rx-depth", if plan.test.is_send() { plan.rx_depth } else { 0 })];
    match depths.into_iter().find(|(_, depth)| *depth > most) {
        None => Ok(()),
        Some((option, depth)) => Err(Error::Peer(format!(
            "{option} {depth}: a queue of {} has at most {most} requests; help: use {option} {most}",
            device.name()
        ))),
    }
}

/// Returns the largest inline size below `refused` that `accepts` accepts. 0 is always accepted.
fn largest_inline(refused: u32, accepts: impl Fn(u32) -> bool) -> u32 {
    let Range { mut start, mut end } = 0..refused;
    while end - start > 1 {
        let middle = start + (end - start) / 2;
        if accepts(middle) {
            start = middle;
        } else {
            end = middle;
        }
    }
    start
}

fn inline_error(device: &str, wanted: u32, granted: u32, error: Option<&VerbError>) -> Error {
    let remedy = if granted == 0 { "remove --inline".to_owned() } else { format!("use --inline {granted}") };
    let error = error.map_or_else(String::new, |error| format!(" ({error})"));
    Error::Peer(format!("--inline {wanted}: {device} grants at most {granted} bytes{error}; help: {remedy}"))
}

fn request_error(test: Test, queue: Queue, completion: &Completion) -> Error {
    let what = if queue == Queue::Receive { "a receive" } else { test.operation() };
    let status = completion.status;
    let hint = match status {
        WcStatus::LocLenErr | WcStatus::RemInvReqErr | WcStatus::RemAccessErr => {
            "; help: use the same test and the same options on both sides"
        }
        WcStatus::RetryExcErr => "; help: see the output of the peer, and check the network",
        _ => "",
    };
    Error::Peer(format!("{what} failed: {}: {}{hint}", status.description(), status.likely_cause()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_inline_is_found() {
        for granted in [0, 1, 7, 511, 512] {
            assert_eq!(largest_inline(513, |inline| inline <= granted), granted);
        }
    }
}
