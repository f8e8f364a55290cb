//! The exchange of addresses over TCP, as the pingpong programs of rdma-core do it.
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
//! One address each way, or 256 of a shared receive queue. The stock server reads once and takes what that brings for the
//! whole, so each side's part must be one segment: one write, at once (`TCP_NODELAY`). A stock program ends the connection
//! after that. This one keeps it until it needs its peer no more: see [`Wire::part`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::address::{self, Address, AddressError};

/// How long one step with one peer may take.
pub(crate) const STEP: Duration = Duration::from_secs(5);
/// What ends the exchange.
const DONE: &[u8; 5] = b"done\0";
/// Between two tries to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// Why an exchange came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// Nobody came, or was there, in time.
    #[error("no peer within the deadline{}", .0.as_ref().map(|last| format!("; the last: {last}")).unwrap_or_default())]
    Nobody(Option<String>),
    /// The peer takes longer than it may.
    #[error("the peer has told {got} of {wanted} bytes in time: is it of the same type?")]
    Slow {
        /// What came.
        got: usize,
        /// What was to come.
        wanted: usize,
    },
    /// The peer ended the connection.
    #[error("the peer ended the exchange after {got} of {wanted} bytes: it says why")]
    Closed {
        /// What came.
        got: usize,
        /// What was to come.
        wanted: usize,
    },
    /// What it told is no address.
    #[error("address {number} of the peer: {error}")]
    Address {
        /// Which, from 0.
        number: usize,
        /// Why.
        error: AddressError,
    },
    /// It said something else than that it is done.
    #[error("the peer says \"{}\" and not \"done\": is it of the same type?", .0.escape_ascii())]
    NotDone([u8; DONE.len()]),
    /// The connection failed.
    #[error("the connection with the peer failed: {0}")]
    Failed(#[from] io::Error),
}

/// Waits for peers at an address.
#[derive(Debug)]
pub(crate) struct Listener(TcpListener);

impl Listener {
    /// Listens at an address; port 0 is any that is free.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Waits for somebody to come.
    pub(crate) fn accept(&self, until: Instant) -> Result<(Wire, SocketAddr), Fault> {
        loop {
            match self.0.accept() {
                Ok((stream, address)) => {
                    stream.set_nonblocking(false)?;
                    return Ok((Wire::new(stream)?, address));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // It went away before it was taken in.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::Interrupted) => continue,
                Err(error) => return Err(error.into()),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::Nobody(None));
            }
            // Whatever it says, everything is looked at again.
            let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Timespec::try_from(left).ok().as_ref());
        }
    }
}

/// A connection with a peer.
#[derive(Debug)]
pub(crate) struct Wire(TcpStream);

impl Wire {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Goes to a peer that listens at one of these addresses, again and again until somebody is there. `waiting` is told
    /// once why the first try failed.
    pub(crate) fn connect(addresses: &[SocketAddr], until: Instant, waiting: impl FnOnce(&str)) -> Result<Self, Fault> {
        let mut waiting = Some(waiting);
        let mut last = None;
        loop {
            for address in addresses {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Fault::Nobody(last));
                }
                match TcpStream::connect_timeout(address, left.min(STEP)) {
                    // TCP connects a port of this host with itself when nobody listens there.
                    Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {}
                    Ok(stream) => return Ok(Self::new(stream)?),
                    Err(error) => last = Some(format!("{address}: {error}")),
                }
            }
            if let (Some(say), Some(why)) = (waiting.take(), &last) {
                say(why);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Tells the own addresses.
    pub(crate) fn tell(&mut self, own: &[Address], until: Instant) -> Result<(), Fault> {
        let bytes: Vec<u8> = own.iter().flat_map(|address| address.to_wire()).collect();
        self.write(&bytes, until)
    }

    /// Hears so many addresses of the peer.
    pub(crate) fn hear(&mut self, count: usize, until: Instant) -> Result<Vec<Address>, Fault> {
        let mut bytes = vec![0; count * address::BYTES];
        self.read(&mut bytes, until)?;
        let each = bytes.chunks(address::BYTES).enumerate();
        each.map(|(number, bytes)| Address::from_wire(bytes).map_err(|error| Fault::Address { number, error }))
            .collect()
    }

    /// Says that the own queue pairs are connected.
    pub(crate) fn tell_done(&mut self, until: Instant) -> Result<(), Fault> {
        self.write(DONE, until)
    }

    /// Hears that the peer's are.
    pub(crate) fn hear_done(&mut self, until: Instant) -> Result<(), Fault> {
        let mut said = [0; DONE.len()];
        self.read(&mut said, until)?;
        if &said == DONE { Ok(()) } else { Err(Fault::NotDone(said)) }
    }

    /// Says that the peer is needed no more, and waits until it says so too: until then the queue pairs must answer it, or
    /// its last sends would not end. A stock program has said so long ago. `false`: it did not in time.
    pub(crate) fn part(mut self, until: Instant) -> bool {
        let _ = self.0.shutdown(Shutdown::Write);
        loop {
            let heard = self.limit(until, |stream| stream.read(&mut [0; 64]));
            match heard {
                Ok(0) => return true,
                // It has nothing to say any more; what it says is not waited for longer than all.
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
    fn both_sides_learn_of_each_other() {
        for count in [1, 256] {
            let (listener, address) = listener();
            let own = addresses(count);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut wire, _) = listener.accept(soon()).unwrap();
                    let heard = wire.hear(own.len(), soon()).unwrap();
                    // Told back, so the client can compare.
                    wire.tell(&heard, soon()).unwrap();
                    wire.hear_done(soon()).unwrap();
                    assert!(wire.part(soon()));
                });
                let mut wire = Wire::connect(&[address], soon(), |_| {}).unwrap();
                wire.tell(&own, soon()).unwrap();
                assert_eq!(wire.hear(own.len(), soon()).unwrap(), own);
                wire.tell_done(soon()).unwrap();
                assert!(wire.part(soon()));
            });
        }
    }

    /// What the server says to a client that sends this and then ends its part, or not.
    fn said_to(sent: &[u8], ends: bool, until: Instant) -> String {
        let (listener, address) = listener();
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(sent).unwrap();
        if ends {
            client.shutdown(Shutdown::Write).unwrap();
        }
        let (mut wire, _) = listener.accept(soon()).unwrap();
        let fault = wire.hear(1, until).and_then(|heard| wire.tell(&heard, until)).and_then(|()| wire.hear_done(until));
        fault.unwrap_err().to_string()
    }

    #[test]
    fn a_hostile_client_is_refused_with_the_reason() {
        let good = addresses(1)[0].to_wire();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            bytes
        };
        let ended = |sent: &[u8]| said_to(sent, true, soon());
        assert!(ended(b"").contains("after 0 of 52 bytes"));
        assert!(ended(&good[..51]).contains("after 51 of 52 bytes"));
        assert!(ended(&with(0, b'g')).contains("address 0 of the peer: byte 0 is 0x67"));
        assert!(ended(&with(51, b'0')).contains("byte 51 is 0x30 where 0x00 must be"));
        assert!(ended(&[0xff; 4096]).contains("byte 4 is 0xff"));
        assert!(ended(&[good.as_slice(), b"doom\0"].concat()).contains("\"doom\\x00\" and not \"done\""));
        assert!(ended(&[good.as_slice(), good.as_slice()].concat()).contains("is it of the same type?"));
        assert!(ended(&good).contains("after 0 of 5 bytes"));
    }

    #[test]
    fn a_silent_client_is_waited_for_no_longer_than_said() {
        let past = Instant::now();
        assert_eq!(said_to(b"0000:", false, past), "the peer has told 0 of 52 bytes in time: is it of the same type?");
        let shortly = Instant::now() + Duration::from_millis(50);
        assert!(said_to(b"0000:", false, shortly).contains("of 52 bytes in time"));
    }

    #[test]
    fn where_nobody_is_the_wait_ends() {
        let (listener, address) = listener();
        assert!(matches!(listener.accept(Instant::now()), Err(Fault::Nobody(None))));
        drop(listener);
        let shortly = Instant::now() + Duration::from_secs(1);
        let mut told = String::new();
        let fault = Wire::connect(&[address], shortly, |why| told = why.to_owned()).unwrap_err();
        assert!(fault.to_string().contains("refused") && told.contains("refused"), "{fault}");
    }
}
