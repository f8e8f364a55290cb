//! The exchange of addresses over TCP, as in the pingpong programs of rdma-core.
//!
//! ```text
//! client                                  server
//! its addresses, in one write        →
//!                                         connects its queue pairs
//!                                    ←    its addresses, in one write
//! connects its queue pairs
//! "done", with its NUL               →
//! ```
//!
//! Each side sends one address, or 256 addresses with a shared receive queue. The rdma-core server calls `read` once
//! and expects all addresses from this call. Each side therefore sends its addresses with a single write and
//! `TCP_NODELAY`. The rdma-core programs close the connection after the exchange. This program keeps the
//! connection open until this program no longer needs the peer: see [`ExchangeConnection::finish`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::address::{self, Address, AddressError};

/// The maximum duration of one step of the exchange with one peer.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(5);
/// The message that ends the exchange.
const DONE: &[u8; 5] = b"done\0";
/// The pause between two connection attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The reason why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// No peer connected, or the server was not reachable, before the deadline. Contains the last connection error.
    #[error("no peer within the deadline{}", .0.as_ref().map(|last| format!(": {last}")).unwrap_or_default())]
    NoPeer(Option<String>),
    /// The peer did not send all expected bytes in time.
    #[error("the peer sent only {got} of {wanted} bytes before the deadline; help: use the same --type on both sides")]
    Slow {
        /// The number of bytes received.
        got: usize,
        /// The number of bytes expected.
        wanted: usize,
    },
    /// The peer closed the connection before it had sent all expected bytes.
    #[error("the peer closed the connection after {got} of {wanted} bytes; help: see the output of the peer")]
    Closed {
        /// The number of bytes received.
        got: usize,
        /// The number of bytes expected.
        wanted: usize,
    },
    /// The peer sent an invalid address.
    #[error("address {number} of the peer: {error}")]
    Address {
        /// The index of the address, from 0.
        number: usize,
        /// The reason why the address is invalid.
        error: AddressError,
    },
    /// The peer sent something other than "done".
    #[error("the peer sent \"{}\" instead of \"done\"; help: use the same --type on both sides", .0.escape_ascii())]
    NotDone([u8; DONE.len()]),
    /// The connection failed.
    #[error("the connection with the peer failed: {0}")]
    Failed(#[from] io::Error),
}

/// A listening TCP socket.
#[derive(Debug)]
pub(crate) struct Listener(TcpListener);

impl Listener {
    /// Listens at an address. Port 0 selects any free port.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Returns the local address.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Waits for a connection of a peer until the deadline.
    pub(crate) fn accept(&self, until: Instant) -> Result<(ExchangeConnection, SocketAddr), Fault> {
        loop {
            match self.0.accept() {
                Ok((stream, address)) => {
                    stream.set_nonblocking(false)?;
                    return Ok((ExchangeConnection::new(stream)?, address));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The peer closed the connection early, or a signal interrupted the call. Call `accept` again.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
                Err(error) => return Err(error.into()),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::NoPeer(None));
            }
            // The result of `poll` does not matter, because the loop calls `accept` and checks the deadline again.
            let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Timespec::try_from(left).ok().as_ref());
        }
    }
}

/// A TCP connection with a peer.
#[derive(Debug)]
pub(crate) struct ExchangeConnection(TcpStream);

impl ExchangeConnection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Connects to a peer that listens on one of these addresses. Retries until the deadline. If the first
    /// attempt fails on all addresses, calls `waiting` with the last error of this attempt.
    pub(crate) fn connect(addresses: &[SocketAddr], until: Instant, waiting: impl FnOnce(&str)) -> Result<Self, Fault> {
        let mut waiting = Some(waiting);
        let mut last = None;
        loop {
            for address in addresses {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Fault::NoPeer(last));
                }
                match TcpStream::connect_timeout(address, left.min(STEP_TIMEOUT)) {
                    // If nothing listens on a local port, TCP can connect the port with itself. Ignore such a
                    // connection.
                    Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {}
                    Ok(stream) => return Ok(Self::new(stream)?),
                    Err(error) => last = Some(format!("{address}: {error}")),
                }
            }
            if let (Some(report), Some(reason)) = (waiting.take(), &last) {
                report(reason);
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Sends the local addresses.
    pub(crate) fn send_addresses(&mut self, own: &[Address], until: Instant) -> Result<(), Fault> {
        let bytes: Vec<u8> = own.iter().flat_map(|address| address.to_wire()).collect();
        self.write(&bytes, until)
    }

    /// Receives `count` addresses of the peer.
    pub(crate) fn receive_addresses(&mut self, count: usize, until: Instant) -> Result<Vec<Address>, Fault> {
        let mut bytes = vec![0; count * address::BYTES];
        self.read(&mut bytes, until)?;
        let each = bytes.chunks(address::BYTES).enumerate();
        each.map(|(number, bytes)| Address::from_wire(bytes).map_err(|error| Fault::Address { number, error }))
            .collect()
    }

    /// Sends "done", which means that the local queue pairs are connected.
    pub(crate) fn send_done(&mut self, until: Instant) -> Result<(), Fault> {
        self.write(DONE, until)
    }

    /// Receives "done" from the peer.
    pub(crate) fn receive_done(&mut self, until: Instant) -> Result<(), Fault> {
        let mut received = [0; DONE.len()];
        self.read(&mut received, until)?;
        if &received == DONE { Ok(()) } else { Err(Fault::NotDone(received)) }
    }

    /// Closes the sending side of the connection and waits until the peer closes its sending side. Meanwhile, the local
    /// queue pairs must acknowledge messages, so that the last sends of the peer complete. An rdma-core program has
    /// already closed its sending side. Returns `false` if the peer did not close its sending side in time.
    pub(crate) fn finish(mut self, until: Instant) -> bool {
        let _ = self.0.shutdown(Shutdown::Write);
        loop {
            let received = self.limit(until, |stream| stream.read(&mut [0; 64]));
            match received {
                Ok(0) => return true,
                // The peer has nothing more to send. Ignore unexpected data until the deadline.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return !is_timeout(&error),
            }
        }
    }

    fn limit<T>(&mut self, until: Instant, call: impl FnOnce(&mut TcpStream) -> io::Result<T>) -> io::Result<T> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.0.set_read_timeout(Some(left))?;
        self.0.set_write_timeout(Some(left))?;
        call(&mut self.0)
    }

    fn read(&mut self, bytes: &mut [u8], until: Instant) -> Result<(), Fault> {
        let wanted = bytes.len();
        let mut got = 0;
        while got < wanted {
            match self.limit(until, |stream| stream.read(&mut bytes[got..])) {
                Ok(0) => return Err(Fault::Closed { got, wanted }),
                Ok(some) => got += some,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => return Err(Fault::Slow { got, wanted }),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], until: Instant) -> Result<(), Fault> {
        self.limit(until, |stream| stream.write_all(bytes)).map_err(Fault::Failed)
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use dataplane::units::Gid;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn listener() -> (Listener, SocketAddr) {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().unwrap();
        (listener, address)
    }

    fn addresses(count: u32) -> Vec<Address> {
        (0..count).map(|n| Address { lid: 7, qpn: n, psn: 0xff_ffff - n, gid: Gid([n as u8; 16]) }).collect()
    }

    #[test]
    fn each_side_receives_the_addresses_of_its_peer() {
        for count in [1, 256] {
            let (listener, address) = listener();
            let own = addresses(count);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut connection, _) = listener.accept(soon()).unwrap();
                    let received = connection.receive_addresses(own.len(), soon()).unwrap();
                    // Return the received addresses, so that the client can compare them.
                    connection.send_addresses(&received, soon()).unwrap();
                    connection.receive_done(soon()).unwrap();
                    assert!(connection.finish(soon()));
                });
                let mut connection = ExchangeConnection::connect(&[address], soon(), |_| {}).unwrap();
                connection.send_addresses(&own, soon()).unwrap();
                assert_eq!(connection.receive_addresses(own.len(), soon()).unwrap(), own);
                connection.send_done(soon()).unwrap();
                assert!(connection.finish(soon()));
            });
        }
    }

    /// Sends `sent` as a client, and closes the sending side if `ends` is set. Returns the error of the server.
    fn server_error(sent: &[u8], ends: bool, until: Instant) -> String {
        let (listener, address) = listener();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(sent).unwrap();
        if ends {
            client.shutdown(Shutdown::Write).unwrap();
        }
        let (mut connection, _) = listener.accept(soon()).unwrap();
        let fault = connection
            .receive_addresses(1, until)
            .and_then(|received| connection.send_addresses(&received, until))
            .and_then(|()| connection.receive_done(until));
        fault.unwrap_err().to_string()
    }

    #[test]
    fn invalid_client_is_refused_with_the_reason() {
        let good = addresses(1)[0].to_wire();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            bytes
        };
        let ended = |sent: &[u8]| server_error(sent, true, soon());
        assert!(ended(b"").contains("after 0 of 52 bytes"));
        assert!(ended(&good[..51]).contains("after 51 of 52 bytes"));
        assert!(ended(&with(0, b'g')).contains("address 0 of the peer: byte 0 is 0x67"));
        assert!(ended(&with(51, b'0')).contains("byte 51 is 0x30 instead of 0x00"));
        assert!(ended(&[0xff; 4096]).contains("byte 4 is 0xff"));
        assert!(ended(&[good.as_slice(), b"doom\0"].concat()).contains("\"doom\\x00\" instead of \"done\""));
        assert!(ended(&[good.as_slice(), good.as_slice()].concat()).contains("use the same --type on both sides"));
        assert!(ended(&good).contains("after 0 of 5 bytes"));
    }

    #[test]
    fn silent_client_times_out() {
        let past = Instant::now();
        assert_eq!(
            server_error(b"0000:", false, past),
            "the peer sent only 0 of 52 bytes before the deadline; help: use the same --type on both sides"
        );
        let shortly = Instant::now() + Duration::from_millis(50);
        assert!(server_error(b"0000:", false, shortly).contains("of 52 bytes before the deadline"));
    }

    #[test]
    fn missing_peer_times_out() {
        let (listener, address) = listener();
        assert!(matches!(listener.accept(Instant::now()), Err(Fault::NoPeer(None))));
        drop(listener);
        let shortly = Instant::now() + Duration::from_secs(1);
        let mut first_failure = String::new();
        let fault =
            ExchangeConnection::connect(&[address], shortly, |reason| first_failure = reason.to_owned()).unwrap_err();
        assert!(fault.to_string().contains("refused") && first_failure.contains("refused"), "{fault}");
    }
}
