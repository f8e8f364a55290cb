//! The thread that exchanges connection parameters with the peer of a port. If the peer is another port of the same
//! config, the exchange stays in the process. Otherwise, the exchange uses TCP.

use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::next_hop::{NextHopLookup, NextHopWatch};
use super::rendezvous::Rendezvous;
use dataplane_core::connect::{
    self, ConnectError, Exchanged, Listener, Offer, PeerConnection, QueuePairEndpoint, WaitLimits,
};
use dataplane_core::error::{Error, Result};
use dataplane_core::pipeline::{RunStop, panic_message};
use dataplane_core::units::Period;

/// The interval between two checks of a connection.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The pause after a failed exchange.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The minimum time between two warnings.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Where the peer of a port is.
#[derive(Clone, Debug)]
pub(crate) enum PeerLocation {
    /// The peer connects to this address. If the second field is an address, only connections from that address are
    /// accepted.
    Listen(SocketAddr, Option<IpAddr>),
    /// The peer listens at this address.
    Connect(SocketAddr),
    /// The peer is another port of the same config.
    Local(Arc<Rendezvous>),
}

/// The time limits of an exchange, and whether a port may connect to itself. `deadline` limits the whole wait for a
/// peer. `step` limits one step with one peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeOptions {
    pub(crate) deadline: Duration,
    pub(crate) step: Duration,
    pub(crate) allow_self: bool,
}

/// The exchange thread of a port. Dropping this value ends the thread and the TCP connection.
pub(crate) struct PeerExchange {
    shared: Arc<ExchangeState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ExchangeState {
    stop: AtomicBool,
    /// The last error, and when the last warning was logged.
    last_error: Mutex<Option<(String, Instant)>>,
    /// The panic of the thread.
    failure: Mutex<Option<String>>,
}

impl ExchangeState {
    fn log_error(&self, text: String) {
        let mut last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        // Exchanges are retried several times a second, possibly for hours. Log an error at debug level if it repeats
        // the last error, or if the last warning is recent.
        let logged = match last_error.as_ref() {
            Some((last, logged)) if *last == text || logged.elapsed() < LOG_INTERVAL => {
                tracing::debug!("{text}");
                *logged
            }
            _ => {
                tracing::warn!("{text}");
                Instant::now()
            }
        };
        *last_error = Some((text, logged));
    }
}

impl PeerExchange {
    /// Starts the exchange thread of the port with the name `port`. `next_hop` looks up the next hop to a peer in
    /// another program. If the thread panics, it sets `stop`, because nobody connects the lanes of the port any more.
    ///
    /// # Errors
    /// Returns an error if the address cannot be bound, or the thread cannot be started.
    pub(crate) fn start(
        port: &str,
        location: PeerLocation,
        options: ExchangeOptions,
        (rendezvous, next_hop): (Arc<Rendezvous>, NextHopLookup),
        stop: &RunStop,
    ) -> Result<Self> {
        let shared = Arc::new(ExchangeState::default());
        let listener = match &location {
            PeerLocation::Listen(address, from) => Some(Listener::bind(*address, *from)?),
            PeerLocation::Connect(_) | PeerLocation::Local(_) => None,
        };
        let (port_name, thread_shared) = (port.to_owned(), shared.clone());
        let body = ExchangeThread {
            port: port_name,
            location,
            options,
            rendezvous,
            next_hop,
            listener,
            shared: thread_shared,
        };
        Self::spawn(port, shared, stop.clone(), move || body.run())
    }

    /// Starts a thread that runs `body`.
    fn spawn(
        port: &str,
        shared: Arc<ExchangeState>,
        stop: RunStop,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<Self> {
        let (thread_shared, name) = (shared.clone(), port.to_owned());
        let run = move || {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                let failure = format!("{name}: the thread of the peer exchange panicked: {}", panic_message(&*panic));
                tracing::error!(port = name, "{failure}");
                *thread_shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                stop.set();
            }
        };
        let thread = thread::Builder::new().name("peer".to_owned()).spawn(run);
        let thread = thread
            .map_err(|error| Error::Peer(format!("{port}: cannot start the thread of the peer exchange: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the panic of the thread, if there was one.
    pub(crate) fn failure(&self) -> Option<String> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the last error, if there was one.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.shared.last_error.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|(text, _)| text.clone())
    }
}

impl Drop for PeerExchange {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread catches its panics.
            let _ = thread.join();
        }
    }
}

struct ExchangeThread {
    port: String,
    location: PeerLocation,
    options: ExchangeOptions,
    rendezvous: Arc<Rendezvous>,
    next_hop: NextHopLookup,
    listener: Option<Listener>,
    shared: Arc<ExchangeState>,
}

/// A connection to a port of another program.
struct RemotePeer {
    lifeline: PeerConnection,
    /// The local endpoint and the peer's endpoint of the first lane. The endpoints of the other lanes have the same
    /// addresses.
    first_lane: Option<(QueuePairEndpoint, QueuePairEndpoint)>,
}

impl ExchangeThread {
    fn run(&self) {
        let cancelled = || self.shared.stop.load(Ordering::Relaxed);
        while !cancelled() {
            let connected = match &self.location {
                PeerLocation::Local(other) => self.join(other, &cancelled),
                PeerLocation::Listen(..) | PeerLocation::Connect(_) => self.exchange(&cancelled),
            };
            match connected {
                Ok(peer) => self.monitor(peer.as_ref(), &cancelled),
                Err(ConnectError::Cancelled) => {}
                Err(error) => {
                    self.shared.log_error(format!("{}: {error}", self.port));
                    thread::sleep(RETRY_INTERVAL);
                }
            }
            self.all_rendezvous().for_each(Rendezvous::mark_all_stale);
        }
    }

    fn all_rendezvous(&self) -> impl Iterator<Item = &Rendezvous> {
        let other = if let PeerLocation::Local(other) = &self.location { Some(&**other) } else { None };
        std::iter::once(&*self.rendezvous).chain(other)
    }

    /// Connects to a port of the same process.
    fn join(&self, other: &Rendezvous, cancelled: &dyn Fn() -> bool) -> Result<Option<RemotePeer>, ConnectError> {
        let own = self.rendezvous.gather_offers(cancelled).ok_or(ConnectError::Cancelled)?;
        let theirs = other.gather_offers(cancelled).ok_or(ConnectError::Cancelled)?;
        for (one, two) in own.iter().zip(&theirs) {
            two.check_peer(one, self.options.allow_self)?;
            one.check_peer(two, self.options.allow_self)?;
        }
        let until = Period(self.options.step).after_now();
        let met = self.rendezvous.deliver_peers(&own, &theirs)
            && other.deliver_peers(&theirs, &own)
            && self.rendezvous.all_ready(until, cancelled)
            && other.all_ready(until, cancelled);
        if met {
            self.all_rendezvous().for_each(Rendezvous::open);
            Ok(None)
        } else {
            Err(ConnectError::Deadline { last: self.all_rendezvous().find_map(Rendezvous::refusal) })
        }
    }

    /// Connects to a port of another program.
    fn exchange(&self, cancelled: &dyn Fn() -> bool) -> Result<Option<RemotePeer>, ConnectError> {
        let own = self.rendezvous.gather_offers(cancelled).ok_or(ConnectError::Cancelled)?;
        let offer = Offer { endpoints: &own, allow_self: self.options.allow_self };
        let limits =
            WaitLimits { until: Period(self.options.deadline).after_now(), step: self.options.step, cancelled };
        let exchanged: Exchanged = match (&self.location, &self.listener) {
            (_, Some(listener)) => listener.accept(&offer, &limits)?,
            (PeerLocation::Connect(address), _) => connect::connect(*address, &offer, &limits)?,
            // `PeerLocation::Listen` always has a listener, and `run` calls `join` for `PeerLocation::Local`.
            _ => return Err(ConnectError::Cancelled),
        };
        let until = Period(self.options.step).after_now();
        if !(self.rendezvous.deliver_peers(&own, &exchanged.remotes) && self.rendezvous.all_ready(until, cancelled)) {
            return Err(ConnectError::Deadline { last: self.rendezvous.refusal() });
        }
        let first_lane = own.first().copied().zip(exchanged.remotes.first().copied());
        let lifeline = exchanged.confirm(&limits)?;
        self.rendezvous.open();
        Ok(Some(RemotePeer { lifeline, first_lane }))
    }

    /// Waits until a lane must connect again, until the peer disconnects, or until the MAC address of the next hop
    /// changes.
    fn monitor(&self, peer: Option<&RemotePeer>, cancelled: &dyn Fn() -> bool) {
        tracing::info!(port = self.port, "{}: connected", self.port);
        let first_lane = peer.and_then(|peer| peer.first_lane);
        let mut next_hop = first_lane.and_then(|(own, peer)| NextHopWatch::new(&self.next_hop, own, peer));
        while !cancelled() && self.all_rendezvous().all(Rendezvous::is_open) {
            match peer {
                Some(peer) if peer.lifeline.is_closed(POLL_INTERVAL) => {
                    tracing::warn!(port = self.port, "{}: the peer has disconnected", self.port);
                    return;
                }
                Some(_) => {}
                None => thread::sleep(POLL_INTERVAL),
            }
            if let Some((before, now)) = next_hop.as_mut().and_then(NextHopWatch::change) {
                let port = &self.port;
                tracing::warn!(port, "{port}: the next hop to the peer has the MAC address {now} instead of {before}");
                return;
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv6Addr, TcpListener};
    use std::sync::atomic::AtomicU8;

    use super::super::next_hop::LOOKUP_INTERVAL;
    use super::*;
    use dataplane_core::connect::VERSION;
    use dataplane_core::header::MacAddr;
    use dataplane_core::units::{Gid, QpNum};
    use dataplane_core::verbs::{GidKind, LinkLayer, QpType};

    const DEADLINE: Duration = Duration::from_secs(60);

    fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_done() {
            assert!(begin.elapsed() < DEADLINE, "{what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the endpoint of a queue pair with this number, for tests.
    pub(in crate::runtime::peer) fn endpoint(transport: QpType, number: u32) -> QueuePairEndpoint {
        QueuePairEndpoint {
            version: VERSION,
            transport,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            gid: Gid(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number as u16).octets()),
            gid_kind: GidKind::RoceV2,
            qpn: QpNum(number),
            psn: 0,
            path_mtu: 3,
            max_dest_rd_atomic: 0,
            max_message: 1024,
            qkey: 0,
            generation: 0,
            queue: 0,
            receive_depth: 64,
            buffer: None,
        }
    }

    /// The device of a queue pair of the type uc or ud never updates the MAC address of the next hop, so the lane must
    /// connect again. A queue pair of the type rc detects the loss of its packets, so nobody watches its next hop.
    #[test]
    fn unreliable_lanes_connect_again_when_the_next_hop_has_another_mac_address() {
        for (transport, connects_again) in [(QpType::Ud, true), (QpType::Uc, true), (QpType::Rc, false)] {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mac = Arc::new(AtomicU8::new(1));
            let options = ExchangeOptions { deadline: DEADLINE, step: DEADLINE, allow_self: false };
            let ports = [PeerLocation::Listen(address, None), PeerLocation::Connect(address)].map(|location| {
                let (rendezvous, mac) = (Arc::new(Rendezvous::new(1)), mac.clone());
                let next_hop: NextHopLookup =
                    Box::new(move |_, _| Some(MacAddr([2, 0, 0, 0, 0, mac.load(Ordering::Relaxed)])));
                let parts = (rendezvous.clone(), next_hop);
                let exchange = PeerExchange::start("port", location, options, parts, &RunStop::default()).unwrap();
                (rendezvous, exchange)
            });
            let lanes = || ports.iter().map(|(rendezvous, _)| rendezvous).zip([2, 3]);
            let connect = || {
                lanes().for_each(|(lane, number)| lane.offer(0, endpoint(transport, number)));
                // The lane of the listening port gets its answer only after `ready` of the other lane.
                wait_until("connection", || {
                    lanes().filter(|(lane, _)| lane.answer(0).is_some()).for_each(|(lane, _)| lane.ready(0));
                    lanes().all(|(lane, _)| lane.is_live(0))
                });
            };
            connect();
            let is_stale = || lanes().all(|(lane, _)| lane.is_stale(0));
            thread::sleep(LOOKUP_INTERVAL + LOOKUP_INTERVAL / 2);
            assert!(!is_stale(), "{transport}: the next hop is the same");
            mac.store(2, Ordering::Relaxed);
            if connects_again {
                wait_until("stale lanes", is_stale);
                connect();
            } else {
                thread::sleep(LOOKUP_INTERVAL + LOOKUP_INTERVAL / 2);
                assert!(!is_stale(), "{transport}");
            }
        }
    }

    #[test]
    fn panic_of_the_exchange_thread_is_reported_and_stops_the_run() {
        let stop = RunStop::default();
        let body = || panic!("an unknown peer");
        let mut exchange = PeerExchange::spawn("left", Arc::default(), stop.clone(), body).unwrap();
        exchange.thread.take().unwrap().join().unwrap();
        let failure = "left: the thread of the peer exchange panicked: an unknown peer";
        assert_eq!(exchange.failure().as_deref(), Some(failure));
        assert!(stop.is_set());
    }
}
