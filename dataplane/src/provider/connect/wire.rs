//! One TCP connection of the exchange: messages of a known length, in pieces as they come.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use rustix::net::sockopt;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::provider::connect::endpoint::{EndpointError, QueuePairEndpoint, VERSION};

/// What every message begins with: no peer that speaks something else is listened to any longer.
const MAGIC: [u8; 4] = *b"DPQP";

/// After so long without a word from the peer's host it is asked for one, up to three times, so far apart.
const SILENCE: Duration = Duration::from_secs(5);

/// The head of a message, in network order. `docs/handshake.md` describes it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    version: U16,
    kind: U16,
    length: U32,
    token: U64,
}

/// The bytes of a head.
pub(super) const HEAD: usize = size_of::<Head>();

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The endpoints of the sender's queue pairs.
    Hello = 1,
    /// The sender's queue pairs are in RTS.
    Ready = 2,
    /// The sender won't have the other as its peer.
    Refuse = 3,
}

/// Why a side won't have the other as its peer, as it tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The message is none.
    Malformed,
    /// The versions differ.
    Version,
    /// The numbers of queue pairs differ.
    Queues,
    /// An endpoint is none that this side can have as its peer.
    Endpoint,
    /// There is a peer already.
    Busy,
    /// What has no name here.
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
            Self::Malformed => f.write_str("it did not understand this side"),
            Self::Version => write!(f, "it does not speak version {VERSION}: run the same version on both sides"),
            Self::Queues => f.write_str("it has another number of queue pairs: give both sides as many workers"),
            Self::Endpoint => f.write_str("it cannot have these queue pairs as peers: its own log says why"),
            Self::Busy => f.write_str("it has a peer already"),
            Self::Other(code) => write!(f, "its reason is {code}, which this version does not know"),
        }
    }
}

/// Why a peer is let go.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The connection ended.
    #[error("the connection ended")]
    Closed,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Failed(io::Error),
    /// A step took too long.
    #[error("a step took longer than the step_deadline")]
    Slow,
    /// It said nothing while others came, and made room for them.
    #[error("it said nothing while others came")]
    Displaced,
    /// It speaks something else.
    #[error("the peer does not speak this protocol")]
    Magic,
    /// It speaks another version.
    #[error("the peer speaks version {0} of the exchange, and this program {VERSION}: run the same on both sides")]
    Version(u16),
    /// Another message was due, or it has another length.
    #[error("the peer sent a message of kind {kind} and {length} bytes where another was due")]
    Message {
        /// The kind that it says.
        kind: u16,
        /// The bytes that it says.
        length: u32,
    },
    /// It has more or fewer queue pairs.
    #[error("the peer has {peer} queue pairs, and this side {own}: give both sides as many workers")]
    Queues {
        /// The own number.
        own: usize,
        /// The peer's.
        peer: usize,
    },
    /// It answers what this side has not said.
    #[error("the peer answers another exchange than this")]
    Token,
    /// One of its queue pairs cannot be a peer.
    #[error("{0}")]
    Endpoint(#[from] EndpointError),
    /// It refuses.
    #[error("the peer refuses: {0}")]
    Refused(Refusal),
}

impl Fault {
    /// What the peer is told, where it may be one that can understand it.
    pub(super) const fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Version(_) => Some(Refusal::Version),
            Self::Queues { .. } => Some(Refusal::Queues),
            Self::Endpoint(_) => Some(Refusal::Endpoint),
            Self::Message { .. } | Self::Token => Some(Refusal::Malformed),
            Self::Closed | Self::Failed(_) | Self::Slow | Self::Displaced | Self::Magic | Self::Refused(_) => None,
        }
    }

    /// Whether the next try may end otherwise: the peer was not there, or not ready.
    pub(super) const fn may_pass(&self) -> bool {
        matches!(self, Self::Closed | Self::Failed(_) | Self::Slow | Self::Refused(Refusal::Busy))
    }
}

/// A TCP connection that never blocks. It holds one message in and one out, whose lengths this side knows.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: TcpStream,
    /// Room for a HELLO of this side's number of queue pairs, and none more.
    inbox: Box<[u8]>,
    received: usize,
    outbox: Vec<u8>,
    sent: usize,
}

impl Wire {
    /// For an exchange of so many endpoints.
    pub(super) fn new(stream: TcpStream, queues: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // A message is written whole: it need not wait for more.
        stream.set_nodelay(true)?;
        // A host that loses its power says no goodbye: without this its successor would be waited out for ever.
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, SILENCE)?;
        sockopt::set_tcp_keepintvl(&stream, SILENCE)?;
        sockopt::set_tcp_keepcnt(&stream, 3)?;
        let inbox = vec![0; HEAD + queues * QueuePairEndpoint::SIZE].into_boxed_slice();
        Ok(Self { stream, inbox, received: 0, outbox: Vec::new(), sent: 0 })
    }

    fn queue(&mut self, kind: Kind, token: u64, payload: &[u8]) {
        let head = Head {
            magic: MAGIC,
            version: VERSION.into(),
            kind: (kind as u16).into(),
            // A payload has at most 256 endpoints.
            length: u32::try_from(payload.len()).unwrap_or(u32::MAX).into(),
            token: token.into(),
        };
        self.outbox.extend_from_slice(head.as_bytes());
        self.outbox.extend_from_slice(payload);
    }

    pub(super) fn queue_hello(&mut self, token: u64, endpoints: &[QueuePairEndpoint]) {
        let payload: Vec<u8> = endpoints.iter().flat_map(QueuePairEndpoint::to_bytes).collect();
        self.queue(Kind::Hello, token, &payload);
    }

    pub(super) fn queue_ready(&mut self, token: u64) {
        self.queue(Kind::Ready, token, &[]);
    }

    /// Tells the peer why it is let go, as far as that can be done at once, and lets it go.
    pub(super) fn refuse(mut self, refusal: Refusal) {
        // What it has sent already is taken, or the connection would end with a reset, and the answer be lost.
        let mut rest = [0; 4096];
        let _ = self.stream.read(&mut rest);
        self.queue(Kind::Refuse, 0, &refusal.code().to_be_bytes());
        let _ = self.flush();
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Whether there is something to be written.
    pub(super) fn is_writing(&self) -> bool {
        self.sent < self.outbox.len()
    }

    /// Writes what can be written now. Returns whether that was all.
    pub(super) fn flush(&mut self) -> Result<bool, Fault> {
        while let Some(rest) = self.outbox.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(0) => return Err(Fault::Closed),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Failed(error)),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Takes in what has come, up to this many bytes of the message. Returns whether they are there.
    fn fill(&mut self, upto: usize) -> Result<bool, Fault> {
        while self.received < upto {
            match self.stream.read(&mut self.inbox[self.received..upto]) {
                Ok(0) => return Err(Fault::Closed),
                Ok(read) => self.received += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::Failed(error)),
            }
        }
        Ok(true)
    }

    /// Takes in what has come of a message of this kind. `Some`: it is there, with its token and payload.
    fn receive(&mut self, due: Kind, queues: usize) -> Result<Option<(u64, &[u8])>, Fault> {
        let whole = self.fill(HEAD)?;
        let seen = self.received.min(MAGIC.len());
        if self.inbox[..seen] != MAGIC[..seen] {
            return Err(Fault::Magic);
        }
        if !whole {
            return Ok(None);
        }
        let Ok((head, _)) = Head::read_from_prefix(&self.inbox) else { return Ok(None) };
        let (kind, length) = (head.kind.get(), head.length.get());
        if head.version.get() != VERSION {
            return Err(Fault::Version(head.version.get()));
        }
        let wrong = Fault::Message { kind, length };
        if kind == Kind::Refuse as u16 {
            if length != 2 {
                return Err(wrong);
            }
            return match self.fill(HEAD + 2)? {
                true => Err(Fault::Refused(Refusal::from_code(u16::from_be_bytes([
                    self.inbox[HEAD],
                    self.inbox[HEAD + 1],
                ])))),
                false => Ok(None),
            };
        }
        if kind != due as u16 {
            return Err(wrong);
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let expected = if due == Kind::Hello { queues * QueuePairEndpoint::SIZE } else { 0 };
        if length != expected {
            let peer = length / QueuePairEndpoint::SIZE;
            let whole = length.is_multiple_of(QueuePairEndpoint::SIZE) && due == Kind::Hello && peer > 0;
            return Err(if whole { Fault::Queues { own: queues, peer } } else { wrong });
        }
        if !self.fill(HEAD + expected)? {
            return Ok(None);
        }
        // The next message begins anew.
        self.received = 0;
        Ok(Some((head.token.get(), &self.inbox[HEAD..HEAD + expected])))
    }

    /// The peer's token and its endpoints, each checked as the peer of the own one, once they are there.
    pub(super) fn hello(
        &mut self,
        own: &[QueuePairEndpoint],
        allow_self: bool,
    ) -> Result<Option<(u64, Vec<QueuePairEndpoint>)>, Fault> {
        let Some((token, payload)) = self.receive(Kind::Hello, own.len())? else { return Ok(None) };
        let mut remotes = Vec::with_capacity(own.len());
        for (record, own) in payload.chunks_exact(QueuePairEndpoint::SIZE).zip(own) {
            let remote = QueuePairEndpoint::from_bytes(record)?;
            remote.check_peer(own, allow_self)?;
            remotes.push(remote);
        }
        Ok(Some((token, remotes)))
    }

    /// Whether the peer has said that it is ready, answering this token.
    pub(super) fn ready(&mut self, token: u64, queues: usize) -> Result<bool, Fault> {
        match self.receive(Kind::Ready, queues)? {
            None => Ok(false),
            Some((answered, _)) if answered == token => Ok(true),
            Some(_) => Err(Fault::Token),
        }
    }
}
