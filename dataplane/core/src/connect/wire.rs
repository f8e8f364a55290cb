//! One TCP connection of the exchange. Messages have a known length and may arrive in pieces.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::connect::endpoint::{EndpointError, QueuePairEndpoint, VERSION};

/// The first bytes of every message. A connection that starts with other bytes is closed.
const MAGIC: [u8; 4] = *b"DPQP";

/// Idle time before the first TCP keepalive probe, and the interval between probes. Three probes are sent.
const KEEPALIVE_TIME: Duration = Duration::from_secs(5);

/// The header of a message, in network order. `docs/handshake.md` describes it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MessageHeader {
    magic: [u8; 4],
    version: U16,
    kind: U16,
    length: U32,
    token: U64,
}

/// The size of a message header in bytes.
pub(super) const HEADER_SIZE: usize = size_of::<MessageHeader>();

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// The endpoints of the sender's queue pairs.
    Hello = 1,
    /// The sender's queue pairs are in RTS.
    Ready = 2,
    /// The sender refuses the receiver as its peer.
    Refuse = 3,
}

/// The reason for a refusal, as sent to the refused side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The message is malformed.
    Malformed,
    /// The versions differ.
    Version,
    /// The two sides have different numbers of queue pairs.
    Queues,
    /// An endpoint is not acceptable as a peer.
    Endpoint,
    /// The sender already has a peer.
    Busy,
    /// A reason code that this version does not know.
    Other(u16),
}

impl Refusal {
    const fn code(self) -> u16 {
        match self {
            Self::Malformed => 1,
            Self::Version => 2,
            Self::Queues => 3,
            Self::Endpoint => 4,
            Self::Busy => 5,
            Self::Other(code) => code,
        }
    }

    const fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Malformed,
            2 => Self::Version,
            3 => Self::Queues,
            4 => Self::Endpoint,
            5 => Self::Busy,
            other => Self::Other(other),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed => f.write_str("the message is malformed"),
            Self::Version => write!(f, "version {VERSION} is not supported; help: run the same version on both sides"),
            Self::Queues => {
                f.write_str("the number of queue pairs differs; help: use the same number of workers on both sides")
            }
            Self::Endpoint => f.write_str("the queue pairs cannot be connected; help: see the log of the peer"),
            Self::Busy => f.write_str("the peer is already connected to another peer"),
            Self::Other(code) => write!(f, "unknown reason code {code}"),
        }
    }
}

/// The reason why the exchange over a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The connection ended.
    #[error("the connection ended")]
    Closed,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Failed(io::Error),
    /// A step took too long.
    #[error("a step took longer than the step_deadline")]
    TimedOut,
    /// The listener closed the connection to make room for a newer connection.
    #[error("the connection was closed to make room for a newer connection")]
    Displaced,
    /// The other side uses another protocol.
    #[error("the other side does not use this protocol: the message does not start with `DPQP`")]
    WrongMagic,
    /// The other side uses another version of the exchange.
    #[error(
        "the peer uses version {0} of the exchange, but this program uses version {VERSION}; help: run the same version on both sides"
    )]
    Version(u16),
    /// The message has an unexpected type or length.
    #[error("the peer sent an unexpected message of kind {kind} with {length} bytes")]
    Message {
        /// The message type in the header.
        kind: u16,
        /// The payload length in the header.
        length: u32,
    },
    /// The peer has a different number of queue pairs.
    #[error(
        "the peer has {peer} queue pairs, but this side has {own}; help: use the same number of workers on both sides"
    )]
    Queues {
        /// The local number.
        own: usize,
        /// The peer's number.
        peer: usize,
    },
    /// The token in the READY message is not the token of this exchange.
    #[error("the token does not match: the peer answered a different exchange")]
    WrongToken,
    /// An endpoint of the peer is not acceptable.
    #[error("{0}")]
    Endpoint(#[from] EndpointError),
    /// The peer refused.
    #[error("the peer refused: {0}")]
    Refused(Refusal),
}

impl ExchangeError {
    /// Returns the refusal to send to the peer. `None` if a refusal is useless, for example after a lost connection or
    /// a message of another protocol.
    pub(super) const fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Version(_) => Some(Refusal::Version),
            Self::Queues { .. } => Some(Refusal::Queues),
            Self::Endpoint(_) => Some(Refusal::Endpoint),
            Self::Message { .. } | Self::WrongToken => Some(Refusal::Malformed),
            Self::Closed | Self::Failed(_) | Self::TimedOut | Self::Displaced | Self::WrongMagic | Self::Refused(_) => {
                None
            }
        }
    }

    /// Returns whether another attempt can succeed, because the peer was not reachable or not ready.
    pub(super) const fn is_transient(&self) -> bool {
        matches!(self, Self::Closed | Self::Failed(_) | Self::TimedOut | Self::Refused(Refusal::Busy))
    }
}

/// A non-blocking TCP connection that buffers one incoming and one outgoing message. The local side determines the
/// sizes of both buffers.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    /// Buffer for incoming messages, with exactly the size of a HELLO for `queues` endpoints ([`Wire::new`]).
    inbox: Box<[u8]>,
    received: usize,
    outbox: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// Creates the connection for an exchange of `queues` endpoints.
    pub(super) fn new(stream: TcpStream, queues: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // Each message is written with one call, so Nagle's algorithm would only delay the message.
        stream.set_nodelay(true)?;
        // A host that loses power does not close its connections. Without keepalive, this side would never detect the
        // loss.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE_TIME)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_TIME)?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        let inbox = vec![0; HEADER_SIZE + queues * QueuePairEndpoint::SIZE].into_boxed_slice();
        Ok(Self { stream, inbox, received: 0, outbox: Vec::new(), sent: 0 })
    }

    fn queue(&mut self, kind: MessageKind, token: u64, payload: &[u8]) {
        let head = MessageHeader {
            magic: MAGIC,
            version: VERSION.into(),
            kind: (kind as u16).into(),
            // The payload has at most 256 endpoints, so the conversion never fails.
            length: u32::try_from(payload.len()).unwrap_or(u32::MAX).into(),
            token: token.into(),
        };
        self.outbox.extend_from_slice(head.as_bytes());
        self.outbox.extend_from_slice(payload);
    }

    pub(super) fn queue_hello(&mut self, token: u64, endpoints: &[QueuePairEndpoint]) {
        let payload: Vec<u8> = endpoints.iter().flat_map(QueuePairEndpoint::to_bytes).collect();
        self.queue(MessageKind::Hello, token, &payload);
    }

    pub(super) fn queue_ready(&mut self, token: u64) {
        self.queue(MessageKind::Ready, token, &[]);
    }

    /// Sends a refusal if the socket accepts the refusal without blocking, and closes the connection.
    pub(super) fn refuse(mut self, refusal: Refusal) {
        // Received data is read first. Otherwise the close would cause a TCP reset, and the refusal would be lost.
        let mut rest = [0; 4096];
        let _ = self.stream.read(&mut rest);
        self.queue(MessageKind::Refuse, 0, &refusal.code().to_be_bytes());
        let _ = self.flush();
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Returns whether outgoing data is pending.
    pub(super) fn is_writing(&self) -> bool {
        self.sent < self.outbox.len()
    }

    /// Writes as much as is possible without blocking. Returns whether all outgoing data was written.
    pub(super) fn flush(&mut self) -> Result<bool, ExchangeError> {
        while let Some(rest) = self.outbox.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ExchangeError::Failed(error)),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Reads until the message has `upto` bytes, without blocking. Returns whether that many bytes have arrived.
    fn fill(&mut self, upto: usize) -> Result<bool, ExchangeError> {
        while self.received < upto {
            match self.stream.read(&mut self.inbox[self.received..upto]) {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(read) => self.received += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(ExchangeError::Failed(error)),
            }
        }
        Ok(true)
    }

    /// Reads a message of type `due`, without blocking. Returns the token and the payload after the whole message has
    /// arrived.
    fn receive(&mut self, due: MessageKind, queues: usize) -> Result<Option<(u64, &[u8])>, ExchangeError> {
        let whole = self.fill(HEADER_SIZE)?;
        let seen = self.received.min(MAGIC.len());
        if self.inbox[..seen] != MAGIC[..seen] {
            return Err(ExchangeError::WrongMagic);
        }
        if !whole {
            return Ok(None);
        }
        let Ok((head, _)) = MessageHeader::read_from_prefix(&self.inbox) else { return Ok(None) };
        let (kind, length) = (head.kind.get(), head.length.get());
        if head.version.get() != VERSION {
            return Err(ExchangeError::Version(head.version.get()));
        }
        let wrong = ExchangeError::Message { kind, length };
        if kind == MessageKind::Refuse as u16 {
            if length != 2 {
                return Err(wrong);
            }
            return match self.fill(HEADER_SIZE + 2)? {
                true => Err(ExchangeError::Refused(Refusal::from_code(u16::from_be_bytes([
                    self.inbox[HEADER_SIZE],
                    self.inbox[HEADER_SIZE + 1],
                ])))),
                false => Ok(None),
            };
        }
        if kind != due as u16 {
            return Err(wrong);
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let expected = if due == MessageKind::Hello { queues * QueuePairEndpoint::SIZE } else { 0 };
        if length != expected {
            let peer = length / QueuePairEndpoint::SIZE;
            let whole = length.is_multiple_of(QueuePairEndpoint::SIZE) && due == MessageKind::Hello && peer > 0;
            return Err(if whole { ExchangeError::Queues { own: queues, peer } } else { wrong });
        }
        if !self.fill(HEADER_SIZE + expected)? {
            return Ok(None);
        }
        // The next message starts at the beginning of the buffer.
        self.received = 0;
        Ok(Some((head.token.get(), &self.inbox[HEADER_SIZE..HEADER_SIZE + expected])))
    }

    /// Returns the peer's token and endpoints after both have arrived. Checks each endpoint against its local queue
    /// pair.
    pub(super) fn hello(
        &mut self,
        own: &[QueuePairEndpoint],
        allow_self: bool,
    ) -> Result<Option<(u64, Vec<QueuePairEndpoint>)>, ExchangeError> {
        let Some((token, payload)) = self.receive(MessageKind::Hello, own.len())? else { return Ok(None) };
        let mut remotes = Vec::with_capacity(own.len());
        for (record, own) in payload.chunks_exact(QueuePairEndpoint::SIZE).zip(own) {
            let remote = QueuePairEndpoint::from_bytes(record)?;
            remote.check_peer(own, allow_self)?;
            remotes.push(remote);
        }
        Ok(Some((token, remotes)))
    }

    /// Returns whether the peer has sent READY with this token.
    pub(super) fn ready(&mut self, token: u64, queues: usize) -> Result<bool, ExchangeError> {
        match self.receive(MessageKind::Ready, queues)? {
            None => Ok(false),
            Some((answered, _)) if answered == token => Ok(true),
            Some(_) => Err(ExchangeError::WrongToken),
        }
    }
}

/// A target of the fuzzer: receives a HELLO and a READY whose bytes arrive in two pieces. The first byte of the input
/// is the length of the first piece.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(input: &[u8]) {
    let Some((&first, bytes)) = input.split_first() else { return };
    let at = usize::from(first).min(bytes.len());
    let whole = fuzzed::exchange(&[bytes]);
    let in_pieces = fuzzed::exchange(&[&bytes[..at], &bytes[at..]]);
    assert_eq!(whole, in_pieces, "the result depends on the pieces");
}

#[cfg(any(test, fuzzing))]
mod fuzzed {
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use crate::connect::endpoint::{QueuePairEndpoint, VERSION};
    use crate::connect::wire::{ExchangeError, HEADER_SIZE, MAGIC, MessageKind, Wire};
    use crate::units::{Gid, QpNum};
    use crate::verbs::{GidKind, LinkLayer, QpType};

    const QUEUES: usize = 2;
    const TOKEN: u64 = 7;

    fn own() -> Vec<QueuePairEndpoint> {
        let endpoint = |queue: u16| QueuePairEndpoint {
            version: VERSION,
            transport: QpType::Rc,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
            gid: Gid([1; 16]),
            gid_kind: GidKind::RoceV2,
            qpn: QpNum(17),
            psn: 1,
            path_mtu: 3,
            max_dest_rd_atomic: 1,
            max_message: 4096,
            qkey: 0,
            generation: 1,
            queue,
            receive_depth: 16,
            buffer: None,
        };
        (0..QUEUES as u16).map(endpoint).collect()
    }

    /// Returns the results of HELLO and READY for bytes that arrive in these pieces.
    pub(super) fn exchange(pieces: &[&[u8]]) -> String {
        let (mut peer, ours) = UnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("a non-blocking socket");
        // The wire only reads and writes its stream, so the stream may be any socket.
        let stream = TcpStream::from(OwnedFd::from(ours));
        let inbox = vec![0; HEADER_SIZE + QUEUES * QueuePairEndpoint::SIZE].into_boxed_slice();
        let mut wire = Wire { stream, inbox, received: 0, outbox: Vec::new(), sent: 0 };
        let own = own();
        let (mut hello, mut ready) = (Ok(None), Ok(false));
        for piece in pieces {
            peer.write_all(piece).expect("room in the socket");
            if matches!(hello, Ok(None)) {
                hello = wire.hello(&own, false);
            }
            if matches!((&hello, &ready), (Ok(Some(_)), Ok(false))) {
                ready = wire.ready(TOKEN, QUEUES);
            }
        }
        if let Ok(Some((token, remotes))) = &hello {
            let mut again = Vec::from(MAGIC);
            again.extend(VERSION.to_be_bytes());
            again.extend((MessageKind::Hello as u16).to_be_bytes());
            again.extend(((QUEUES * QueuePairEndpoint::SIZE) as u32).to_be_bytes());
            again.extend(token.to_be_bytes());
            again.extend(remotes.iter().flat_map(QueuePairEndpoint::to_bytes));
            assert!(pieces.concat().starts_with(&again), "the endpoints differ from the message");
        }
        let fault = |fault: &ExchangeError| (fault.refusal(), fault.is_transient(), fault.to_string());
        format!("{:?} {:?}", hello.as_ref().map_err(fault), ready.as_ref().map_err(fault))
    }
}
