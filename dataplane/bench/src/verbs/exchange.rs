//! The TCP connection to the peer.
//!
//! In each step, the client sends a message, and the server answers with a message of the same length. The tools of
//! perftest read each message with one call, so this module writes each message with one call.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dataplane::units::Period;
use dataplane::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv, sockopt};

use super::plan::Role;
use crate::tester::stopped;

/// The maximum time until a wait notices a signal.
const TICK: Duration = Duration::from_millis(50);
/// The times after which TCP reports that the host of the peer is gone: idle time, time between probes, number of probes.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(5), 3);
/// The maximum time that this side waits until the peer closes the connection.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// A listening TCP socket.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Listens on a TCP port of all addresses, with IPv6 and IPv4.
    ///
    /// # Errors
    /// The port is in use, or this user may not use the port.
    pub fn bind(port: u16) -> Result<Self> {
        let any = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), (Ipv4Addr::UNSPECIFIED, port).into()];
        let socket = TcpListener::bind(any[0]).or_else(|_| TcpListener::bind(any[1]));
        let failed = |error| Error::Peer(format!("--port {port}: {error}; help: use a free port"));
        Self::new(socket.map_err(failed)?).map_err(failed)
    }

    /// Listens on a free TCP port of the loopback address.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn local() -> Result<(Self, SocketAddr)> {
        let failed = |error| Error::Peer(format!("127.0.0.1: {error}"));
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        Ok((Self::new(socket).map_err(failed)?, address))
    }

    fn new(socket: TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Waits for a client.
    ///
    /// # Errors
    /// A signal has set `stop`, or the socket failed.
    pub fn accept<'a>(&self, timeout: Duration, stop: &'a AtomicBool) -> Result<Exchange<'a>> {
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            match self.0.accept() {
                Ok((stream, _)) => return Exchange::new(stream, Role::Server, timeout, stop),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => {}
                Err(error) => return Err(Error::Peer(format!("cannot accept a client: {error}"))),
            }
            // The result does not matter, because the loop calls `accept` again.
            let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Timespec::try_from(TICK).ok().as_ref());
        }
    }
}

/// The longest wait for a message of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// The timeout of a step.
    Step,
    /// Until the peer has finished its test.
    Test,
}

/// A TCP connection to the peer.
#[derive(Debug)]
pub struct Exchange<'a> {
    stream: TcpStream,
    role: Role,
    timeout: Duration,
    stop: &'a AtomicBool,
}

impl<'a> Exchange<'a> {
    fn new(stream: TcpStream, role: Role, timeout: Duration, stop: &'a AtomicBool) -> Result<Self> {
        let (idle, interval, probes) = KEEP_ALIVE;
        let set_up = || -> io::Result<()> {
            stream.set_nonblocking(false)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TICK))?;
            stream.set_write_timeout(Some(timeout.max(TICK)))?;
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, idle)?;
            sockopt::set_tcp_keepintvl(&stream, interval)?;
            sockopt::set_tcp_keepcnt(&stream, probes)?;
            Ok(())
        };
        set_up().map_err(|error| Error::Peer(format!("the connection to the peer failed: {error}")))?;
        Ok(Self { stream, role, timeout, stop })
    }

    /// Connects to a server. Tries again until the timeout, because the server may start later.
    ///
    /// # Errors
    /// The name of the host is unknown, no server answered in time, or a signal has set `stop`.
    pub fn connect(host: &str, port: u16, timeout: Duration, stop: &'a AtomicBool) -> Result<Self> {
        let found = (host, port).to_socket_addrs();
        let servers: Vec<SocketAddr> = match found {
            Ok(found) => found.collect(),
            Err(error) => return Err(Error::Peer(format!("HOST {host}: {error}; help: use a name or an address"))),
        };
        let until = Instant::now() + timeout;
        let mut last = String::new();
        loop {
            for server in &servers {
                match TcpStream::connect_timeout(server, timeout.max(TICK)) {
                    // If nothing listens on a local port, TCP can connect the port with itself.
                    Ok(stream)
                        if stream.local_addr().is_ok_and(|own| stream.peer_addr().is_ok_and(|peer| own == peer)) => {}
                    Ok(stream) => return Self::new(stream, Role::Client, timeout, stop),
                    Err(error) => last = format!("{server}: {error}"),
                }
            }
            if stop.load(Ordering::Relaxed) {
                return Err(stopped());
            }
            if Instant::now() >= until {
                return Err(Error::Peer(format!(
                    "no server answered within {}: {last}; help: start the server first, and check HOST and --port",
                    Period(timeout)
                )));
            }
            std::thread::sleep(TICK);
        }
    }

    /// Returns the role of this side.
    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// Exchanges messages of the same length with the peer. `step` describes the messages in errors.
    pub(super) fn swap(&mut self, own: &[u8], step: &str, limit: Limit) -> Result<Vec<u8>> {
        if self.role == Role::Client {
            self.write(own, step)?;
        }
        let received = self.read(own.len(), step, limit)?;
        if self.role == Role::Server {
            self.write(own, step)?;
        }
        Ok(received)
    }

    /// Sends a message without an answer. A peer that has already closed the connection is no error.
    pub(super) fn send_last(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Waits until the peer closes the connection. Until then, the queue pair of this side must answer the peer.
    pub(super) fn finish(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        let until = Instant::now() + LAST_WAIT;
        while Instant::now() < until && !self.stop.load(Ordering::Relaxed) {
            match self.stream.read(&mut [0; 64]) {
                Err(error) if !is_pending(&error) => return,
                Ok(0) => return,
                _ => {}
            }
        }
    }

    /// Whether a signal has stopped the run.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether the peer has closed the connection. Does not wait.
    pub(super) fn is_closed(&self) -> bool {
        match recv(&self.stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, length)) => length == 0,
            Err(error) => !is_pending(&error.into()),
        }
    }

    /// Whether the peer has sent the message of the next step. Does not wait.
    pub(super) fn has_message(&self) -> bool {
        recv(&self.stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(_, length)| length > 0)
    }

    fn read(&mut self, length: usize, step: &str, limit: Limit) -> Result<Vec<u8>> {
        let until = Instant::now() + self.timeout;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            if self.is_stopped() {
                return Err(stopped());
            }
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => return Err(closed(step)),
                Ok(count) => filled += count,
                Err(error) if is_pending(&error) => {
                    if limit == Limit::Step && Instant::now() >= until {
                        return Err(Error::Peer(format!(
                            "{step}: the peer sent {filled} of {length} bytes within {}; help: use the same test and \
                             the same options on both sides, or raise --timeout",
                            Period(self.timeout)
                        )));
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(closed(step)),
                Err(error) => return Err(failed(step, &error)),
            }
        }
        Ok(bytes)
    }

    fn write(&mut self, bytes: &[u8], step: &str) -> Result<()> {
        self.stream.write_all(bytes).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => closed(step),
            _ => failed(step, &error),
        })
    }
}

fn is_pending(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
        && error.raw_os_error() != Some(rustix::io::Errno::TIMEDOUT.raw_os_error())
}

/// The reason in the errors of [`closed`].
pub(crate) const CLOSED: &str = "the peer closed the connection";

/// Returns the error for a connection that the peer has closed.
pub(super) fn closed(step: &str) -> Error {
    Error::Peer(format!(
        "{step}: {CLOSED}; help: see the output of the peer, and use the same test and the same \
         options on both sides"
    ))
}

fn failed(step: &str, error: &io::Error) -> Error {
    Error::Peer(format!("{step}: the connection to the peer failed: {error}"))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);
    static RUNNING: AtomicBool = AtomicBool::new(false);

    fn pair(timeout: Duration) -> (Exchange<'static>, TcpStream) {
        let (listener, address) = Listener::local().unwrap();
        let client = TcpStream::connect(address).unwrap();
        (listener.accept(timeout, &RUNNING).unwrap(), client)
    }

    #[test]
    fn messages_are_swapped() {
        let (listener, address) = Listener::local().unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut server = listener.accept(TIMEOUT, &RUNNING).unwrap();
                assert_eq!(server.swap(b"pong", "test", Limit::Test).unwrap(), b"ping");
                server.finish();
            });
            let mut client = Exchange::connect("127.0.0.1", address.port(), TIMEOUT, &RUNNING).unwrap();
            assert!(!client.is_closed() && !client.has_message());
            assert_eq!(client.swap(b"ping", "test", Limit::Step).unwrap(), b"pong");
            client.finish();
        });
    }

    #[test]
    fn silent_peer_and_closed_connection_are_errors() {
        let (mut server, mut client) = pair(Duration::from_millis(60));
        client.write_all(b"pi").unwrap();
        let silent = server.swap(b"pong", "versions", Limit::Step).unwrap_err().to_string();
        assert!(silent.starts_with("versions: the peer sent 2 of 4 bytes within 60ms; help:"), "{silent}");
        let (mut server, client) = pair(TIMEOUT);
        drop(client);
        let ended = server.swap(b"pong", "versions", Limit::Test).unwrap_err().to_string();
        assert!(ended.starts_with("versions: the peer closed the connection; help:"), "{ended}");
        assert!(server.is_closed());
    }

    #[test]
    fn signal_ends_every_wait() {
        let stop = AtomicBool::new(true);
        let (listener, address) = Listener::local().unwrap();
        assert!(listener.accept(TIMEOUT, &stop).unwrap_err().to_string().starts_with("stopped"));
        let _client = TcpStream::connect(address).unwrap();
        let mut server = listener.accept(TIMEOUT, &RUNNING).unwrap();
        server.stop = &stop;
        assert!(server.swap(b"pong", "test", Limit::Test).unwrap_err().to_string().starts_with("stopped"));
        drop(listener);
        let refused = Exchange::connect("127.0.0.1", address.port(), TIMEOUT, &stop).unwrap_err().to_string();
        assert!(refused.starts_with("stopped"), "{refused}");
    }

    #[test]
    fn missing_server_and_unknown_host_are_errors() {
        let (listener, address) = Listener::local().unwrap();
        drop(listener);
        let refused = Exchange::connect("127.0.0.1", address.port(), Duration::ZERO, &RUNNING).unwrap_err().to_string();
        assert!(refused.contains("no server answered within 0s: 127.0.0.1:"), "{refused}");
        let unknown = Exchange::connect("256.0.0.1.invalid", 1, Duration::ZERO, &RUNNING).unwrap_err().to_string();
        assert!(unknown.starts_with("HOST 256.0.0.1.invalid:"), "{unknown}");
    }
}
