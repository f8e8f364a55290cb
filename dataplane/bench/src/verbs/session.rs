//! The steps of a run, in the order of the tools of perftest.
//!
//! ```text
//! versions, cycle buffers, cache lines, path MTUs
//! destinations           of all queue pairs; twice for write_lat, read_lat and atomic_lat
//!   (both sides connect their queue pairs)
//! destinations           of all queue pairs; before these, also of the first queue pair in tests of SEND, and after these in
//!                        the other tests. All later destinations are of the first queue pair
//! send_bw, send_lat      for each size: destinations, then the test; send_bw of all sizes: destinations after each test
//! other tests            the tests of all sizes
//! destinations           only write_bw, read_bw, atomic_bw
//! results                only write_bw, read_bw, atomic_bw: size, iterations, peak, average, message rate
//!   with --bidirectional, instead of the last two steps, for each size:
//!   destinations, then the test; of all sizes: destinations; results
//! destinations, "done"   not for write_lat
//! ```

use std::time::Duration;

use dataplane::clock::HostClock;
use dataplane::verbs::{Device, LinkLayer};
use dataplane::{Error, Result};

use super::bandwidth::{post_all, receive_all};
use super::endpoint::{Agreed, Endpoint, LocalSide};
use super::exchange::{Exchange, Limit};
use super::latency::{fetch_in_turn, send_in_turn, write_in_turn};
use super::plan::{Plan, Role, Sizes, Test, Transport};
use super::protocol::{
    Destination, INCOMPATIBLE, Identity, OLDEST, PeerVersion, VERSION, decode_version, encode_version,
};
use super::receives::Receives;
use super::report::{PeerReport, SideReport, VerbsRow};
use super::samples::{BandwidthTimes, LatencyTimes, MessageRates};
use super::watch::Watch;

/// The size of the area in which consecutive messages have different addresses, and the size of a cache line.
const SYSTEM: [(u32, &str); 2] = [(4096, "cycle buffer"), (64, "cache line")];
/// The largest cycle buffer that this program accepts from its peer.
const MAX_CYCLE: usize = 1 << 24;
/// The most memory for the cycle buffers of all queue pairs that an unauthenticated peer can request.
const MAX_CYCLES: usize = 1 << 26;
/// The size of the largest page. perftest uses the page size as the size of the cycle buffer, so this program accepts this
/// size with any number of queue pairs.
const LARGEST_PAGE: usize = 1 << 16;

/// Receives the parts of the report as soon as they are known.
pub trait Output {
    /// The sides are connected. The report has no results yet.
    fn connected(&mut self, report: &SideReport);
    /// The test of one size has ended.
    fn row(&mut self, report: &SideReport, row: &VerbsRow);
}

/// A run of one side.
pub struct Session<'a, 'x, D: Device> {
    device: &'a D,
    plan: &'a Plan,
    exchange: Exchange<'x>,
    clock: HostClock,
    report: SideReport,
    output: &'a mut dyn Output,
}

/// The queue pairs of a connected side, and the state of the exchange.
struct Connected<'p, D: Device> {
    end: Endpoint<'p, D>,
    /// The destination of the first queue pair.
    own: Destination,
    largest: u32,
    receives: Receives,
}

impl<'a, 'x, D: Device> Session<'a, 'x, D> {
    /// Prepares a run on a device, over a connection to the peer.
    pub fn new(device: &'a D, plan: &'a Plan, exchange: Exchange<'x>, output: &'a mut dyn Output) -> Self {
        let report = SideReport::new(plan, device.name(), exchange.role());
        Self { device, plan, exchange, clock: HostClock::new(), report, output }
    }

    /// Runs the tests. After an error, the report has the results until the error, and the error.
    pub fn run(mut self) -> (SideReport, Option<Error>) {
        let connected = self.connect();
        let outcome = connected.and_then(|mut connected| {
            self.tests(&mut connected)?;
            self.end(&mut connected)?;
            Ok(connected)
        });
        let error = match outcome {
            Ok(connected) => {
                self.report.complete = true;
                // The queue pair must answer the peer until the peer has finished.
                self.exchange.finish();
                drop(connected);
                None
            }
            Err(error) => {
                self.report.failure = Some(error.to_string());
                Some(error)
            }
        };
        (self.report, error)
    }

    /// Exchanges versions and addresses, and connects the queue pairs.
    fn connect(&mut self) -> Result<Connected<'a, D>> {
        let local = LocalSide::new(self.device, self.plan)?;
        let peer = self.versions()?;
        self.report.peer = Some(PeerReport { version: peer.text, is_dataplane: peer.identity.is_some() });
        let queue_pairs = self.plan.queue_pairs;
        let most = MAX_CYCLE.min((MAX_CYCLES / queue_pairs.max(1)).max(LARGEST_PAGE));
        let mut cycle = 0;
        for (own, name) in SYSTEM {
            let received = self.exchange.swap(&own.to_be_bytes(), name, Limit::Step)?;
            let value = u32::from_be_bytes(received.try_into().unwrap_or_default());
            if !(1..=most).contains(&(value as usize)) {
                return Err(Error::Peer(format!(
                    "{name}: the peer sent {value}, which is not in 1 to {most} for {queue_pairs} queue pairs; help: check \
                     HOST and --port"
                )));
            }
            cycle = value.max(own).max(cycle);
        }
        let own = local.mtu();
        let received = self.exchange.swap(&[b'0' + own, 0], "path MTU", Limit::Step)?;
        let peer_mtu = received[0].wrapping_sub(b'0');
        if !(1..=5).contains(&peer_mtu) {
            let code = received.escape_ascii();
            return Err(Error::Peer(format!("path MTU: the peer sent the code `{code}`, which is not in 1 to 5")));
        }
        let most = local.largest_message(self.plan.transport, peer_mtu);
        let largest = self.largest(most)?;
        let agreed = Agreed { peer_mtu, cycle: cycle as usize, largest };
        let mut end = Endpoint::new(self.device, self.plan, local, agreed)?;
        let own: Vec<Destination> = (0..self.plan.queue_pairs).map(|queue_pair| end.destination(queue_pair)).collect();
        let mut peers = self.all_destinations(&own, "destinations")?;
        if matches!(self.plan.test, Test::WriteLat | Test::ReadLat | Test::AtomicLat) {
            peers = self.all_destinations(&own, "destinations")?;
        }
        end.connect(&peers)?;
        if self.plan.test.is_send() {
            self.destinations(&own[0], "connections", Limit::Step)?;
        }
        self.all_destinations(&own, "connections")?;
        if !self.plan.test.is_send() {
            self.destinations(&own[0], "connections", Limit::Step)?;
        }
        let (link_layer, gid) = end.port();
        self.report.mtu = end.mtu_bytes();
        self.report.ethernet = link_layer == LinkLayer::Ethernet;
        self.report.gid = gid.to_string();
        let address = |side: &Destination| {
            let Destination { lid, qpn, psn, rkey, addr, .. } = side;
            format!("LID {lid:#06x} QPN {qpn:#08x} PSN {psn:#08x} RKey {rkey:#010x} VAddr {addr:#018x}")
        };
        self.report.addresses = own.iter().zip(&peers).map(|(own, peer)| [own, peer].map(address)).collect();
        self.output.connected(&self.report);
        let receives = Receives::new(self.plan.queue_pairs);
        Ok(Connected { end, own: own[0], largest, receives })
    }

    /// Exchanges the versions, and compares the options if the peer is this program.
    fn versions(&mut self) -> Result<PeerVersion> {
        let size = match self.plan.sizes {
            Sizes::One(size) => size,
            Sizes::All => 0,
        };
        let Plan { test, transport, bidirectional, queue_pairs, iterations, duration, .. } = *self.plan;
        let queue_pairs = queue_pairs as u16;
        let iterations = if duration.is_some() { 0 } else { iterations as u32 };
        let duration = duration.map_or(0, |duration| duration.as_millis() as u32);
        let own = Identity { test, transport, bidirectional, queue_pairs, size, iterations, duration };
        let received = self.exchange.swap(&encode_version(&own), "versions", Limit::Step)?;
        let peer = decode_version(&received).ok_or_else(|| {
            Error::Peer(format!(
                "versions: the peer sent `{}`, which is not a version of perftest; help: check HOST and --port",
                received.escape_ascii()
            ))
        })?;
        if peer.number < OLDEST {
            return Err(Error::Peer(format!(
                "versions: the peer has version {} of perftest, but this program ({VERSION}) needs 5.70 or later; \
                 help: update perftest on the other side",
                peer.text
            )));
        }
        if peer.identity.is_none() && peer.text == INCOMPATIBLE {
            return Err(Error::Peer(format!(
                "versions: the peer has version {} of perftest, whose exchange works only with its own version; help: \
                 update perftest on the other side to 6.29 or later",
                peer.text
            )));
        }
        match peer.identity.as_ref().and_then(|identity| own.difference(identity)) {
            None => Ok(peer),
            Some((option, own, peer)) => Err(Error::Peer(format!(
                "{option}: this side has {own}, and the peer has {peer}; help: use the same {option} on both sides"
            ))),
        }
    }

    /// Returns the size of the largest message of the run. `most` is the largest size that the connection permits.
    fn largest(&self, most: u32) -> Result<u32> {
        match self.plan.sizes {
            Sizes::One(size) if size > most => {
                let reason = if self.plan.transport == Transport::Ud {
                    "a datagram must fit in the path MTU"
                } else {
                    "a message must fit in the maximum message size of the port"
                };
                Err(Error::Peer(format!("--size {size}: {reason}, {most} bytes; help: use at most --size {most}")))
            }
            sizes => Ok(sizes.list(most).into_iter().max().unwrap_or(1)),
        }
    }

    /// Exchanges the destinations. All steps after the connection use this message to synchronize.
    fn destinations(&mut self, own: &Destination, step: &str, limit: Limit) -> Result<Destination> {
        let (bytes, has_gid) = (own.encode(), own.gid.is_some());
        debug_assert_eq!(bytes.len(), Destination::bytes(has_gid));
        let received = self.exchange.swap(&bytes, step, limit)?;
        Destination::decode(&received, has_gid).map_err(|reason| Error::Peer(format!("{step}: {reason}")))
    }

    /// Exchanges the destinations of all queue pairs.
    fn all_destinations(&mut self, own: &[Destination], step: &str) -> Result<Vec<Destination>> {
        own.iter().map(|own| self.destinations(own, step, Limit::Step)).collect()
    }

    /// Waits until both sides have reached the same step.
    fn synchronize(&mut self, connected: &Connected<'_, D>, step: &str, limit: Limit) -> Result<()> {
        self.destinations(&connected.own, step, limit).map(|_| ())
    }

    /// Runs the tests of all sizes.
    fn tests(&mut self, connected: &mut Connected<'_, D>) -> Result<()> {
        let test = self.plan.test;
        let acts = self.exchange.role() == Role::Client
            || self.plan.bidirectional
            || matches!(test, Test::SendBw | Test::SendLat | Test::WriteLat);
        if !acts {
            return Ok(());
        }
        for size in self.plan.sizes.list(connected.largest) {
            let receives = test == Test::SendLat || test == Test::SendBw && self.exchange.role() == Role::Server;
            if receives {
                connected.receives.fill(&mut connected.end, self.plan.iterations, self.plan.rx_depth)?;
            }
            if test.is_send() || self.plan.bidirectional {
                self.synchronize(connected, "start of the test", Limit::Step)?;
            }
            let outcome = if test.is_latency() {
                self.latency(connected, size)
            } else {
                self.bandwidth(connected, size, receives)
            };
            outcome?;
            if test == Test::SendBw && self.plan.sizes == Sizes::All {
                self.synchronize(connected, "end of the test", Limit::Test)?;
            }
        }
        Ok(())
    }

    /// Runs the bandwidth test of one size. `receives` is set if this side receives the messages.
    fn bandwidth(&mut self, connected: &mut Connected<'_, D>, size: u32, receives: bool) -> Result<()> {
        let plan = self.plan;
        // A sender of an unreliable transport gets its completions from the local device, so no completion is lost.
        let mut watch = Watch::new(&self.exchange, None);
        let mut times = match plan.duration {
            Some(duration) => BandwidthTimes::in_window(duration),
            None if receives => BandwidthTimes::with_capacity(1, plan.messages()),
            None => {
                let completions = plan.messages() / plan.cq_mod as usize + plan.queue_pairs;
                BandwidthTimes::with_capacity(plan.messages(), completions)
            }
        };
        let Connected { end, receives: posted, .. } = connected;
        let outcome = if receives {
            receive_all(end, plan, size, posted, &self.clock, &mut watch, &mut times)
        } else {
            post_all(end, plan, size, &self.clock, &mut watch, &mut times)
        };
        let messages = times.messages();
        // With a duration, the receiver does not know how many messages the sender has sent.
        let lost =
            (receives && outcome.is_ok() && plan.duration.is_none()).then(|| (plan.messages() - messages) as u64);
        // A complete test without any message has a row too.
        if messages > 0 || outcome.is_ok() {
            // Only the side that posts the messages knows when each message was posted.
            let rates = times.rates().map(|rates| MessageRates { peak: rates.peak.filter(|_| !receives), ..rates });
            let rates = rates.or((messages == 0).then(MessageRates::default));
            let mut row = VerbsRow::bandwidth(size, messages, lost, rates);
            if plan.bidirectional && outcome.is_ok() {
                if plan.sizes == Sizes::All {
                    self.synchronize(connected, "end of the test", Limit::Test)?;
                }
                let peer = self.swap_results(Some(&row), Limit::Test)?;
                row.add_direction(&peer);
            }
            self.add(row);
        }
        outcome
    }

    /// Runs the latency test of one size.
    fn latency(&mut self, connected: &mut Connected<'_, D>, size: u32) -> Result<()> {
        let (plan, role) = (self.plan, self.exchange.role());
        let limit: Option<Duration> = plan.loses_messages().then_some(plan.timeout);
        let mut watch = Watch::new(&self.exchange, limit);
        let mut times = LatencyTimes::with_capacity(plan.iterations);
        let Connected { end, receives, .. } = connected;
        let clock = (&self.clock, &mut watch);
        let outcome = match plan.test {
            Test::SendLat => send_in_turn(end, plan, size, role, receives, clock, &mut times),
            Test::WriteLat => write_in_turn(end, plan, size, role, clock, &mut times),
            _ => fetch_in_turn(end, plan, size, clock, &mut times),
        };
        // A message and its answer take one round trip. A read or an atomic operation takes one round trip by itself.
        let parts = if plan.test.fetches() { 1 } else { 2 };
        if let Some(statistics) = times.statistics(parts) {
            self.add(VerbsRow::latency(size, times.messages(), &statistics));
        }
        outcome
    }

    fn add(&mut self, row: VerbsRow) {
        self.output.row(&self.report, &row);
        self.report.results.push(row);
    }

    /// Ends the exchange.
    fn end(&mut self, connected: &mut Connected<'_, D>) -> Result<()> {
        let test = self.plan.test;
        if test == Test::WriteLat {
            return Ok(());
        }
        if test.is_one_sided_bandwidth() && !self.plan.bidirectional {
            self.synchronize(connected, "end of the test", Limit::Test)?;
            let own = self.report.results.last().cloned();
            let row = self.swap_results(own.as_ref(), Limit::Step)?;
            if self.exchange.role() == Role::Server {
                self.add(row);
            }
        }
        self.synchronize(connected, "end of the run", Limit::Test)?;
        self.exchange.send_last(b"done\0");
        Ok(())
    }

    /// Exchanges the results of both sides. Returns the result of the peer.
    fn swap_results(&mut self, own: Option<&VerbsRow>, limit: Limit) -> Result<VerbsRow> {
        let own = own.map(|row| row.exchanged(self.plan.gbits)).unwrap_or_default();
        let mut received = [0; 5];
        for (own, received) in own.into_iter().zip(&mut received) {
            let bytes = self.exchange.swap(&own.to_be_bytes(), "results", limit)?;
            *received = u64::from_be_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(VerbsRow::from_peer(received))
    }
}
