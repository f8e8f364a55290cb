//! Exchange of endpoints between two programs over TCP.
//!
//! Each side sends a HELLO message with a random token and its endpoints. When the queue pairs of a side are in RTS,
//! the side sends a READY message with the token that it received. The listening side treats every incoming connection
//! as hostile: see [`Listener::accept`].

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::connect::ConnectError;
use crate::connect::endpoint::QueuePairEndpoint;
use crate::connect::wire::{ExchangeError, Refusal, Wire};
use crate::units::Period;

/// Maximum number of queue pairs in one exchange.
pub const MAX_QUEUES: usize = 256;
/// Maximum number of simultaneous connections of a listener.
const MAX_CONNECTIONS: usize = 32;
/// Maximum number of connections in the kernel's queue that the listener has not accepted yet.
const BACKLOG: i32 = 1024;
/// Maximum number of connections that are accepted before the existing connections are processed.
const BATCH: usize = 64;
/// Interval at which a wait checks whether it was cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The pause between two attempts to connect is random, below a bound. The bound starts at the first value, and doubles
/// up to the second value.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The time limits and the cancellation of a wait.
#[derive(Clone, Copy)]
pub struct WaitLimits<'a> {
    /// The deadline of the whole wait.
    pub until: Instant,
    /// The time limit of one step with one peer, such as the wait for one message.
    pub step: Duration,
    /// Returns whether to stop waiting now. Called several times per second.
    pub cancelled: &'a dyn Fn() -> bool,
}

impl WaitLimits<'static> {
    /// Creates limits without cancellation. `all` is the time from now to the deadline, and `step` is the limit of a
    /// step.
    pub fn new(all: Duration, step: Duration) -> Self {
        Self { until: Period(all).after_now(), step, cancelled: &|| false }
    }
}

impl std::fmt::Debug for WaitLimits<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitLimits").field("until", &self.until).field("step", &self.step).finish_non_exhaustive()
    }
}

impl WaitLimits<'_> {
    /// Returns the deadline of a step that starts now.
    fn step_end(&self) -> Instant {
        self.until.min(Period(self.step).after_now())
    }

    fn check(&self, last: &mut Option<String>) -> Result<(), ConnectError> {
        if (self.cancelled)() {
            Err(ConnectError::Cancelled)
        } else if Instant::now() >= self.until {
            Err(ConnectError::Deadline { last: last.take() })
        } else {
            Ok(())
        }
    }

    /// Waits until one of the descriptors is ready, until the time `upto`, or for at most [`POLL_INTERVAL`].
    fn wait(&self, fds: &mut [PollFd<'_>], upto: Instant) {
        let now = Instant::now();
        let pause = upto.min(self.until).saturating_duration_since(now).min(POLL_INTERVAL);
        // The result is ignored because the caller checks every descriptor again.
        let _ = poll(fds, Timespec::try_from(pause).ok().as_ref());
    }

    fn sleep(&self, pause: Duration) -> Result<(), ConnectError> {
        let end = Instant::now() + pause;
        while Instant::now() < end.min(self.until) && !(self.cancelled)() {
            self.wait(&mut [], end);
        }
        if (self.cancelled)() { Err(ConnectError::Cancelled) } else { Ok(()) }
    }
}

/// The endpoints that the local side offers in an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// The local queue pairs, 1 to [`MAX_QUEUES`]. The peer must have the same number of queue pairs. Queue pairs are
    /// matched by their order.
    pub endpoints: &'a [QueuePairEndpoint],
    /// Whether a queue pair may be connected with itself.
    pub allow_self: bool,
}

impl Offer<'_> {
    fn check(&self) -> Result<(), ConnectError> {
        match self.endpoints.len() {
            1..=MAX_QUEUES => Ok(()),
            count => Err(ConnectError::Count(count)),
        }
    }
}

/// Returns a random number. A peer that returns this number has received the number from this program.
fn token() -> u64 {
    RandomState::new().hash_one(Instant::now())
}

/// A finished exchange of endpoints. Move the queue pairs to RTS, then call [`Exchanged::confirm`].
#[derive(Debug)]
pub struct Exchanged {
    /// The peer's queue pairs, in the order of the local queue pairs. Each endpoint is checked against its local queue
    /// pair.
    pub remotes: Vec<QueuePairEndpoint>,
    /// The peer's address.
    pub address: SocketAddr,
    /// The number of connections that were refused before this peer.
    pub refused: u64,
    wire: Wire,
    /// The token of the local HELLO. The READY of the peer must have this token.
    own: u64,
    /// The token of the peer's HELLO, for the local READY.
    answer: u64,
    /// Whether the local side is the listener.
    listened: bool,
}

impl Exchanged {
    /// Reports to the peer that the local queue pairs are in RTS, and waits for the peer's report. Neither side sends
    /// before both sides can receive.
    ///
    /// # Errors
    /// The peer closed the connection or was too slow. Reset the local queue pairs in this case.
    pub fn confirm(mut self, limits: &WaitLimits<'_>) -> Result<PeerConnection, ConnectError> {
        self.wire.queue_ready(self.answer);
        let end = limits.step_end();
        // A listener has already received the peer's READY message.
        let mut peer_ready = self.listened;
        loop {
            let flushed = self.wire.flush().map_err(ConnectError::Peer)?;
            if !peer_ready {
                peer_ready = self.wire.ready(self.own, self.remotes.len()).map_err(ConnectError::Peer)?;
            }
            if flushed && peer_ready {
                return Ok(PeerConnection(self.wire.stream));
            }
            if Instant::now() >= end {
                return Err(ConnectError::Peer(ExchangeError::TimedOut));
            }
            limits.check(&mut None)?;
            limits.wait(&mut [watch(&self.wire, !peer_ready)], end);
        }
    }
}

/// The TCP connection of a finished exchange. No more data is sent on the connection. Each side closes the connection
/// when it destroys or reconnects its queue pairs. An open connection therefore means that the peer still exists.
#[derive(Debug)]
pub struct PeerConnection(TcpStream);

impl PeerConnection {
    /// Returns whether the peer has closed the connection. Waits at most `timeout`.
    pub fn is_closed(&self, timeout: Duration) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(timeout).ok().as_ref()) {
            // A valid peer sends no more messages, so data or an event means that the connection has ended or that the
            // peer is invalid.
            Ok(ready) => ready > 0,
            Err(error) => error != Errno::INTR,
        }
    }
}

/// Returns the events to poll for on a connection. `IN` is only included if the caller reads, because unread data would
/// make every poll return at once.
fn watch(wire: &Wire, reading: bool) -> PollFd<'_> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, reading);
    flags.set(PollFlags::OUT, wire.is_writing());
    PollFd::new(&wire.stream, flags)
}

/// Waits for peers on a TCP address.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    from: Option<IpAddr>,
}

/// An incoming connection that may come from the peer.
struct Candidate {
    wire: Wire,
    address: SocketAddr,
    /// The deadline of the current step.
    end: Instant,
    /// The token of the local HELLO. The READY of the client must have this token.
    own: u64,
    /// The token and the endpoints that were received.
    received: Option<(u64, Vec<QueuePairEndpoint>)>,
    /// `true` after the READY message was received.
    ready: bool,
}

impl Candidate {
    /// Reads and writes as much as is possible without blocking.
    fn advance(&mut self, offer: &Offer<'_>, limits: &WaitLimits<'_>) -> Result<(), ExchangeError> {
        if self.received.is_none()
            && let Some(received) = self.wire.hello(offer.endpoints, offer.allow_self)?
        {
            self.received = Some(received);
            self.wire.queue_hello(self.own, offer.endpoints);
            self.end = limits.step_end();
        }
        if self.received.is_some() && !self.ready && self.wire.flush()? {
            self.ready = self.wire.ready(self.own, offer.endpoints.len())?;
        }
        if !self.ready && Instant::now() >= self.end { Err(ExchangeError::TimedOut) } else { Ok(()) }
    }

    /// Closes the connection. Returns a description of the fault.
    fn close(self, fault: &ExchangeError) -> String {
        tracing::debug!("{} is not the peer: {fault}", self.address);
        if let Some(refusal) = fault.refusal() {
            self.wire.refuse(refusal);
        }
        format!("{}: {fault}", self.address)
    }
}

impl Listener {
    /// Listens on an address. Port 0 selects a free port. If `from` is set, the listener closes connections from
    /// addresses other than `from` at once.
    ///
    /// # Errors
    /// The address is not an address of this host, or the port is in use.
    pub fn bind(address: SocketAddr, from: Option<IpAddr>) -> Result<Self, ConnectError> {
        let listening = |socket: TcpListener| {
            // The usual backlog of 128 fills quickly. If the backlog is full, the client retries only after one second.
            rustix::net::listen(&socket, BACKLOG)?;
            socket.set_nonblocking(true).map(|()| socket)
        };
        match TcpListener::bind(address).and_then(listening) {
            Ok(socket) => Ok(Self { socket, from: from.map(|from| from.to_canonical()) }),
            Err(error) => Err(ConnectError::Listen { address, error }),
        }
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// The socket does not return its address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for the peer.
    ///
    /// Every connection is treated as hostile until it has proved to be the peer:
    ///
    /// - At most 32 connections are open at a time. The local side alone determines the memory size of each connection.
    /// - A connection is closed if it sends an unexpected message or exceeds the time limit of a step.
    /// - If 32 connections are open, a new connection replaces the oldest connection that has not sent a valid HELLO.
    ///   If all connections have sent a valid HELLO, the new connection replaces the oldest connection.
    /// - A connection has proved to be the peer when it has sent READY with the token of the local HELLO. All other
    ///   connections are then closed.
    ///
    /// # Errors
    /// No peer connected in time, or the wait was cancelled.
    pub fn accept(&self, offer: &Offer<'_>, limits: &WaitLimits<'_>) -> Result<Exchanged, ConnectError> {
        offer.check()?;
        let mut candidates: Vec<Candidate> = Vec::with_capacity(MAX_CONNECTIONS);
        let mut refused = 0u64;
        let mut last = None;
        loop {
            limits.check(&mut last)?;
            let exhausted = self.accept_new(&mut candidates, offer, limits, &mut refused, &mut last);
            let mut at = 0;
            while let Some(candidate) = candidates.get_mut(at) {
                match candidate.advance(offer, limits) {
                    Ok(()) => at += 1,
                    Err(fault) => {
                        refused += 1;
                        last = Some(candidates.remove(at).close(&fault));
                    }
                }
            }
            if let Some(at) = candidates.iter().position(|candidate| candidate.ready) {
                let peer = candidates.remove(at);
                candidates.into_iter().for_each(|candidate| candidate.wire.refuse(Refusal::Busy));
                return Ok(peer.into_exchanged(refused));
            }
            let end = candidates.iter().map(|candidate| candidate.end).min().unwrap_or(limits.until);
            let listening = (!exhausted).then(|| PollFd::new(&self.socket, PollFlags::IN));
            // A connection is not polled for input while data is still being written to the connection.
            let waiting = candidates.iter().map(|candidate| watch(&candidate.wire, !candidate.wire.is_writing()));
            let mut fds: Vec<PollFd<'_>> = listening.into_iter().chain(waiting).collect();
            limits.wait(&mut fds, end);
        }
    }

    /// Accepts new connections. Returns `true` if a resource such as file descriptors is exhausted.
    fn accept_new(
        &self,
        candidates: &mut Vec<Candidate>,
        offer: &Offer<'_>,
        limits: &WaitLimits<'_>,
        refused: &mut u64,
        last: &mut Option<String>,
    ) -> bool {
        for _ in 0..BATCH {
            if candidates.iter().any(|candidate| candidate.ready) {
                return false;
            }
            let (stream, address) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // The client closed the connection before it was accepted.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
                Err(error) => {
                    *last = Some(format!("cannot accept connections: {error}"));
                    return true;
                }
            };
            if self.from.is_some_and(|from| from != address.ip().to_canonical()) {
                *refused += 1;
                *last = Some(format!("{address} is not the configured peer address"));
                continue;
            }
            let Ok(wire) = Wire::new(stream, offer.endpoints.len()) else { continue };
            let end = limits.step_end();
            let mut candidate = Candidate { wire, address, end, own: token(), received: None, ready: false };
            // Read the HELLO at once, because most valid clients have already sent it. If there are too many
            // connections, a later connection displaces a client without a HELLO. If all clients have sent a HELLO, the
            // later connection displaces the oldest client.
            if let Err(fault) = candidate.advance(offer, limits) {
                *refused += 1;
                *last = Some(candidate.close(&fault));
                continue;
            }
            if candidates.len() == MAX_CONNECTIONS {
                let silent = candidates.iter().position(|candidate| candidate.received.is_none()).unwrap_or(0);
                *refused += 1;
                *last = Some(candidates.remove(silent).close(&ExchangeError::Displaced));
            }
            candidates.push(candidate);
        }
        false
    }
}

impl Candidate {
    fn into_exchanged(self, refused: u64) -> Exchanged {
        let (answer, remotes) = self.received.unwrap_or_default();
        let Self { wire, address, own, .. } = self;
        Exchanged { remotes, address, refused, wire, own, answer, listened: true }
    }
}

/// Connects to a peer that listens on an address. Retries until the deadline while the peer is not reachable. The pause
/// between two attempts is random. The random pauses keep many clients of one host from connecting at the same time.
/// The upper bound of the pause doubles from 10 ms to 1 s.
///
/// # Errors
/// The peer was not reachable in time, the wait was cancelled, the peer refused, or the server is not a valid peer.
pub fn connect(address: SocketAddr, offer: &Offer<'_>, limits: &WaitLimits<'_>) -> Result<Exchanged, ConnectError> {
    offer.check()?;
    let mut last = None;
    let mut bound = RETRY_PAUSES.0;
    loop {
        limits.check(&mut last)?;
        match call(address, offer, limits) {
            Ok(exchanged) => return Ok(exchanged),
            Err(ConnectError::Peer(fault)) if fault.is_transient() => last = Some(format!("{address}: {fault}")),
            Err(error) => return Err(error),
        }
        let most = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        limits.sleep(Duration::from_nanos(token() % most))?;
        bound = RETRY_PAUSES.1.min(bound * 2);
    }
}

/// Opens a TCP connection. The wait for a connection to an unresponsive address can be cancelled.
fn reach(address: SocketAddr, end: Instant, limits: &WaitLimits<'_>) -> Result<TcpStream, ConnectError> {
    let failed = |error: Errno| ConnectError::Peer(ExchangeError::Failed(error.into()));
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(failed)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => return Ok(socket.into()),
        Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(error) => return Err(failed(error)),
    }
    loop {
        let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
        limits.wait(&mut fds, end);
        if !fds[0].revents().is_empty() {
            socket_error(&socket).flatten().map_err(failed)?;
            return Ok(socket.into());
        }
        if Instant::now() >= end {
            return Err(ConnectError::Peer(ExchangeError::TimedOut));
        }
        limits.check(&mut None)?;
    }
}

/// Makes one attempt to connect and to exchange endpoints.
fn call(address: SocketAddr, offer: &Offer<'_>, limits: &WaitLimits<'_>) -> Result<Exchanged, ConnectError> {
    let failed = |error| ConnectError::Peer(ExchangeError::Failed(error));
    let end = limits.step_end();
    let stream = reach(address, end, limits)?;
    // TCP can connect a local port with itself if no program listens on the port.
    if stream.local_addr().map_err(failed)? == stream.peer_addr().map_err(failed)? {
        return Err(ConnectError::Peer(ExchangeError::Closed));
    }
    let mut wire = Wire::new(stream, offer.endpoints.len()).map_err(failed)?;
    let own = token();
    wire.queue_hello(own, offer.endpoints);
    loop {
        wire.flush().map_err(ConnectError::Peer)?;
        match wire.hello(offer.endpoints, offer.allow_self) {
            Ok(Some((answer, remotes))) => {
                return Ok(Exchanged { remotes, address, refused: 0, wire, own, answer, listened: false });
            }
            Ok(None) => {}
            Err(fault) => {
                if let Some(refusal) = fault.refusal() {
                    wire.refuse(refusal);
                }
                return Err(ConnectError::Peer(fault));
            }
        }
        if Instant::now() >= end {
            return Err(ConnectError::Peer(ExchangeError::TimedOut));
        }
        limits.check(&mut None)?;
        limits.wait(&mut [watch(&wire, true)], end);
    }
}
