//! Two programs tell each other their endpoints over TCP.
//!
//! The side that listens takes what comes as hostile: see [`Listener::accept`].

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::provider::connect::ConnectError;
use crate::provider::connect::endpoint::QueuePairEndpoint;
use crate::provider::connect::wire::{Fault, Refusal, Wire};

/// The most queue pairs of one exchange.
pub const MAX_QUEUES: usize = 256;
/// The most connections that a listener has at a time.
const MOST: usize = 32;
/// How many connections the kernel keeps until they are taken in.
const BACKLOG: i32 = 1024;
/// How many connections are taken in before those that are there are looked after.
const BATCH: usize = 64;
/// How often a wait looks whether it was cancelled.
const GLANCE: Duration = Duration::from_millis(50);
/// The first and the longest pause between two tries to connect.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How long to wait, and for what.
#[derive(Clone, Copy)]
pub struct Patience<'a> {
    /// When waiting ends, whatever comes.
    pub until: Instant,
    /// How long one step with one peer may take.
    pub step: Duration,
    /// Whether waiting is to end now. It is asked some times in a second.
    pub cancelled: &'a dyn Fn() -> bool,
}

impl Patience<'static> {
    /// From now on for so long, a step for so long, and never cancelled.
    pub fn new(all: Duration, step: Duration) -> Self {
        Self { until: Instant::now() + all, step, cancelled: &|| false }
    }
}

impl std::fmt::Debug for Patience<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Patience").field("until", &self.until).field("step", &self.step).finish_non_exhaustive()
    }
}

impl Patience<'_> {
    /// The end of a step that begins now.
    fn step_end(&self) -> Instant {
        self.until.min(Instant::now() + self.step)
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

    /// Waits until one of these is ready, or for a moment.
    fn wait(&self, fds: &mut [PollFd<'_>], upto: Instant) {
        let now = Instant::now();
        let pause = upto.min(self.until).saturating_duration_since(now).min(GLANCE);
        // Whatever it says, everything is looked at again.
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

/// What a side brings into an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Its queue pairs, 1 to [`MAX_QUEUES`]: the peer has as many, and the first is that of the first and so on.
    pub endpoints: &'a [QueuePairEndpoint],
    /// Whether they may be their own peers.
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

/// A number that no peer can know before it was told.
fn token() -> u64 {
    RandomState::new().hash_one(Instant::now())
}

/// The endpoints of the peer are known. The queue pairs go to RTS now, and then [`Exchanged::confirm`] says so.
#[derive(Debug)]
pub struct Exchanged {
    /// The peer's queue pairs, in the order of the own ones: checked, each as the peer of its own one.
    pub remotes: Vec<QueuePairEndpoint>,
    /// The peer's address.
    pub address: SocketAddr,
    /// Peers that were let go before.
    pub refused: u64,
    wire: Wire,
    own: u64,
    answer: u64,
    listened: bool,
}

impl Exchanged {
    /// Tells the peer that the own queue pairs are in RTS, and waits until its are: no side sends before both can receive.
    ///
    /// # Errors
    /// The peer is gone, or took too long: the own queue pairs are to be reset.
    pub fn confirm(mut self, patience: &Patience<'_>) -> Result<Lifeline, ConnectError> {
        self.wire.queue_ready(self.answer);
        let end = patience.step_end();
        // Who has listened has heard it already.
        let mut heard = self.listened;
        loop {
            let flushed = self.wire.flush().map_err(ConnectError::Peer)?;
            if !heard {
                heard = self.wire.ready(self.own, self.remotes.len()).map_err(ConnectError::Peer)?;
            }
            if flushed && heard {
                return Ok(Lifeline(self.wire.stream));
            }
            if Instant::now() >= end {
                return Err(ConnectError::Peer(Fault::Slow));
            }
            patience.check(&mut None)?;
            patience.wait(&mut [watch(&self.wire, !heard)], end);
        }
    }
}

/// The TCP connection of an exchange that is over. It carries nothing more, and lasts as long as both sides do: each side
/// lets go of it when its queue pairs end or begin anew.
#[derive(Debug)]
pub struct Lifeline(TcpStream);

impl Lifeline {
    /// Whether the peer has let go. Waits so long at most.
    pub fn is_cut(&self, patience: Duration) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(patience).ok().as_ref()) {
            // Nothing is said here any more: what comes is the end, or no peer of ours.
            Ok(ready) => ready > 0,
            Err(error) => error != Errno::INTR,
        }
    }
}

/// What is waited for at a connection: what nobody would read is none of it, or waiting would not wait.
fn watch(wire: &Wire, reading: bool) -> PollFd<'_> {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, reading);
    flags.set(PollFlags::OUT, wire.is_writing());
    PollFd::new(&wire.stream, flags)
}

/// Waits for peers at an address.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    from: Option<IpAddr>,
}

/// A peer that has come to a listener.
struct Guest {
    wire: Wire,
    address: SocketAddr,
    end: Instant,
    own: u64,
    /// What it has told: its token and its endpoints.
    told: Option<(u64, Vec<QueuePairEndpoint>)>,
    /// It has answered what it was told.
    ready: bool,
}

impl Guest {
    /// Goes on as far as it can.
    fn advance(&mut self, offer: &Offer<'_>, patience: &Patience<'_>) -> Result<(), Fault> {
        if self.told.is_none()
            && let Some(told) = self.wire.hello(offer.endpoints, offer.allow_self)?
        {
            self.told = Some(told);
            self.wire.queue_hello(self.own, offer.endpoints);
            self.end = patience.step_end();
        }
        if self.told.is_some() && !self.ready && self.wire.flush()? {
            self.ready = self.wire.ready(self.own, offer.endpoints.len())?;
        }
        if !self.ready && Instant::now() >= self.end { Err(Fault::Slow) } else { Ok(()) }
    }

    /// It is let go.
    fn dismiss(self, fault: &Fault) -> String {
        tracing::debug!("{} is not the peer: {fault}", self.address);
        if let Some(refusal) = fault.refusal() {
            self.wire.refuse(refusal);
        }
        format!("{}: {fault}", self.address)
    }
}

impl Listener {
    /// Listens at an address. Port 0 is any that is free. With `from`, connections from elsewhere end at once.
    ///
    /// # Errors
    /// The address is not this host's, or taken.
    pub fn bind(address: SocketAddr, from: Option<IpAddr>) -> Result<Self, ConnectError> {
        let listening = |socket: TcpListener| {
            // The usual 128 are soon full, and who finds them so tries again after a second alone.
            rustix::net::listen(&socket, BACKLOG)?;
            socket.set_nonblocking(true).map(|()| socket)
        };
        match TcpListener::bind(address).and_then(listening) {
            Ok(socket) => Ok(Self { socket, from: from.map(|from| from.to_canonical()) }),
            Err(error) => Err(ConnectError::Listen { address, error }),
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The socket does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Waits for the peer.
    ///
    /// Whoever comes is taken as hostile until it has proved to be the peer. At most 32 are looked after at a time, each
    /// in memory whose size only this side says; a peer that sends what is not due, or takes longer than a step may take,
    /// is let go; when the places are taken, the one that has said nothing right for the longest makes room. A peer has
    /// proved itself when it answered the own endpoints. Then the others are let go.
    ///
    /// # Errors
    /// Nobody came in time, or waiting was cancelled.
    pub fn accept(&self, offer: &Offer<'_>, patience: &Patience<'_>) -> Result<Exchanged, ConnectError> {
        offer.check()?;
        let mut guests: Vec<Guest> = Vec::with_capacity(MOST);
        let mut refused = 0u64;
        let mut last = None;
        loop {
            patience.check(&mut last)?;
            let exhausted = self.take_in(&mut guests, offer, patience, &mut refused, &mut last);
            let mut at = 0;
            while let Some(guest) = guests.get_mut(at) {
                match guest.advance(offer, patience) {
                    Ok(()) => at += 1,
                    Err(fault) => {
                        refused += 1;
                        last = Some(guests.remove(at).dismiss(&fault));
                    }
                }
            }
            if let Some(at) = guests.iter().position(|guest| guest.ready) {
                let peer = guests.remove(at);
                guests.into_iter().for_each(|guest| guest.wire.refuse(Refusal::Busy));
                return Ok(peer.into_exchanged(refused));
            }
            let end = guests.iter().map(|guest| guest.end).min().unwrap_or(patience.until);
            let listening = (!exhausted).then(|| PollFd::new(&self.socket, PollFlags::IN));
            // While it takes in nothing of what it is told, nothing of it is read.
            let waiting = guests.iter().map(|guest| watch(&guest.wire, !guest.wire.is_writing()));
            let mut fds: Vec<PollFd<'_>> = listening.into_iter().chain(waiting).collect();
            patience.wait(&mut fds, end);
        }
    }

    /// Takes in who has come. Returns whether there is nothing left to take them in with, such as descriptors.
    fn take_in(
        &self,
        guests: &mut Vec<Guest>,
        offer: &Offer<'_>,
        patience: &Patience<'_>,
        refused: &mut u64,
        last: &mut Option<String>,
    ) -> bool {
        for _ in 0..BATCH {
            if guests.iter().any(|guest| guest.ready) {
                return false;
            }
            let (stream, address) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // It went away before it was taken in.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
                Err(error) => {
                    *last = Some(format!("no connection can be taken in: {error}"));
                    return true;
                }
            };
            if self.from.is_some_and(|from| from != address.ip().to_canonical()) {
                *refused += 1;
                *last = Some(format!("{address} is not the address that is listened to"));
                continue;
            }
            let Ok(wire) = Wire::new(stream, offer.endpoints.len()) else { continue };
            let end = patience.step_end();
            let mut guest = Guest { wire, address, end, own: token(), told: None, ready: false };
            // Most that have something to say have said it by now: they need not fear for their place.
            if let Err(fault) = guest.advance(offer, patience) {
                *refused += 1;
                *last = Some(guest.dismiss(&fault));
                continue;
            }
            if guests.len() == MOST {
                let silent = guests.iter().position(|guest| guest.told.is_none()).unwrap_or(0);
                *refused += 1;
                *last = Some(guests.remove(silent).dismiss(&Fault::Displaced));
            }
            guests.push(guest);
        }
        false
    }
}

impl Guest {
    fn into_exchanged(self, refused: u64) -> Exchanged {
        let (answer, remotes) = self.told.unwrap_or_default();
        let Self { wire, address, own, .. } = self;
        Exchanged { remotes, address, refused, wire, own, answer, listened: true }
    }
}

/// Goes to a peer that listens at an address. As long as nobody is there, tries again after a pause: of a random length up
/// to a bound that doubles from 10 ms to 1 s, so that many that wait for one host do not come all at once.
///
/// # Errors
/// Nobody was there in time, or waiting was cancelled. The peer refuses, or is none.
pub fn connect(address: SocketAddr, offer: &Offer<'_>, patience: &Patience<'_>) -> Result<Exchanged, ConnectError> {
    offer.check()?;
    let mut last = None;
    let mut bound = PAUSES.0;
    loop {
        patience.check(&mut last)?;
        match call(address, offer, patience) {
            Ok(exchanged) => return Ok(exchanged),
            Err(ConnectError::Peer(fault)) if fault.may_pass() => last = Some(format!("{address}: {fault}")),
            Err(error) => return Err(error),
        }
        let most = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        patience.sleep(Duration::from_nanos(token() % most))?;
        bound = PAUSES.1.min(bound * 2);
    }
}

/// Connects, and looks now and then whether waiting was cancelled: an address behind which nobody answers takes its time.
fn reach(address: SocketAddr, end: Instant, patience: &Patience<'_>) -> Result<TcpStream, ConnectError> {
    let failed = |error: Errno| ConnectError::Peer(Fault::Failed(error.into()));
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
        patience.wait(&mut fds, end);
        if !fds[0].revents().is_empty() {
            socket_error(&socket).flatten().map_err(failed)?;
            return Ok(socket.into());
        }
        if Instant::now() >= end {
            return Err(ConnectError::Peer(Fault::Slow));
        }
        patience.check(&mut None)?;
    }
}

/// One try.
fn call(address: SocketAddr, offer: &Offer<'_>, patience: &Patience<'_>) -> Result<Exchanged, ConnectError> {
    let failed = |error| ConnectError::Peer(Fault::Failed(error));
    let end = patience.step_end();
    let stream = reach(address, end, patience)?;
    // TCP connects a port of this host with itself when nobody listens there.
    if stream.local_addr().map_err(failed)? == stream.peer_addr().map_err(failed)? {
        return Err(ConnectError::Peer(Fault::Closed));
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
            return Err(ConnectError::Peer(Fault::Slow));
        }
        patience.check(&mut None)?;
        patience.wait(&mut [watch(&wire, true)], end);
    }
}
