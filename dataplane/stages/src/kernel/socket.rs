//! Netlink sockets: [`Events`] receives changes, [`Requests`] sends requests.

use std::io::{self, ErrorKind};
use std::time::Duration;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

/// `RTNLGRP_LINK`, `_IPV4_IFADDR`, `_IPV4_ROUTE`, `_IPV6_IFADDR`, `_IPV6_ROUTE`, `_NEXTHOP` (linux/rtnetlink.h).
pub(super) const ROUTE_GROUPS: [u32; 6] = [1, 5, 7, 9, 11, 32];
/// `RTM_DELNEXTHOP` (linux/rtnetlink.h).
const NEXTHOP_REMOVED: u16 = 105;
/// `RTNLGRP_NEIGH` (linux/rtnetlink.h).
pub(super) const NEIGHBOR_GROUPS: [u32; 1] = [3];
/// Requested size of the socket's receive buffer, in bytes. The system may limit the size.
pub(super) const BACKLOG: usize = 8 << 20;
/// The size of a read buffer, in bytes: larger than any message batch of the kernel.
const READ_BUFFER: usize = 256 << 10;
/// Longest time to wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of reads in one [`Events::read`].
const MAX_READS: usize = 256;
/// The maximum number of messages to discard at a time. The limit is rarely reached, because discarding a message takes
/// less time than the kernel needs to report a change.
const MAX_DISCARDS: usize = 1 << 20;
/// The number of attempts to get a dump that no change interrupts.
const DUMP_ATTEMPTS: usize = 10;

/// A change, or an entry of a dump, with the netlink flags of its message.
pub(super) struct Message {
    pub(super) flags: u16,
    pub(super) content: Content,
}

/// The content of a message.
pub(super) enum Content {
    Route(RouteNetlinkMessage),
    /// A nexthop object was removed. The crate netlink-packet-route cannot parse this message.
    NexthopRemoved,
}

impl NetlinkDeserializable for Content {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        match header.message_type {
            NEXTHOP_REMOVED => Ok(Self::NexthopRemoved),
            _ => RouteNetlinkMessage::deserialize(header, payload).map(Self::Route),
        }
    }
}

/// A step of a dump ([`Requests::dump`]).
pub(super) enum DumpStep {
    /// An entry.
    Entry(Message),
    /// All entries of one read were passed. The caller can do other work before the next read.
    Pause,
    /// A change interrupted the dump, so the dump starts again.
    Restart,
}

/// Result of [`Events::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    /// The queue is empty.
    All,
    /// The queue may have further messages.
    Part,
    /// The kernel dropped messages. The caller must read the whole state again.
    Lost,
}

/// Waits until one of the sockets has messages. Returns whether a socket has messages.
fn is_readable<const N: usize>(sockets: [&Socket; N], within: Duration) -> io::Result<bool> {
    let mut fds = sockets.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
    match poll(&mut fds, Timespec::try_from(within).ok().as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Parses the messages in a buffer. Skips a message that cannot be parsed, because the kernel may be newer than this
/// program.
fn parse(mut bytes: &[u8], mut each: impl FnMut(NetlinkMessage<Content>)) {
    /// The length of a message header.
    const HEADER: usize = 16;
    while bytes.len() >= HEADER {
        let length = bytes.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length)) as usize;
        if length < HEADER || length > bytes.len() {
            return;
        }
        match NetlinkMessage::deserialize(&bytes[..length]) {
            Ok(message) => each(message),
            Err(error) => tracing::debug!("kernel: cannot parse a message of {length} bytes: {error}"),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Parses the messages in a buffer and calls `each` with each message, as [`Events::read`] does.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8], mut each: impl FnMut(Message)) {
    parse(bytes, |message| {
        if let NetlinkPayload::InnerMessage(content) = message.payload {
            each(Message { flags: message.header.flags, content });
        }
    });
}

/// The socket that receives changes.
#[derive(Debug)]
pub(super) struct Events(Socket);

impl Events {
    /// Subscribes to the changes of `groups`. `backlog` is the size of the receive buffer in bytes.
    pub(super) fn open(groups: &[u32], backlog: usize) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        // The system may limit or refuse the size. Messages are then lost sooner.
        let _ = socket.set_rx_buf_sz(backlog as u32);
        groups.iter().try_for_each(|group| socket.add_membership(*group))?;
        Ok(Self(socket))
    }

    /// Waits until one of the sockets has changes.
    pub(super) fn wait<const N: usize>(sockets: [&Self; N], within: Duration) -> io::Result<()> {
        is_readable(sockets.map(|events| &events.0), within).map(|_| ())
    }

    /// Calls `each` with each queued change, for at most [`MAX_READS`] reads. Does not wait for changes.
    pub(super) fn read(&self, mut each: impl FnMut(Message)) -> io::Result<ReadResult> {
        if !is_readable([&self.0], Duration::ZERO)? {
            return Ok(ReadResult::All);
        }
        let mut buffer = Vec::with_capacity(READ_BUFFER);
        for _ in 0..MAX_READS {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                Ok(_) => parse(&buffer, |message| {
                    if let NetlinkPayload::InnerMessage(content) = message.payload {
                        each(Message { flags: message.header.flags, content });
                    }
                }),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(ReadResult::All),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_loss(&error) => return self.discard().map(|()| ReadResult::Lost),
                Err(error) => return Err(error),
            }
        }
        Ok(ReadResult::Part)
    }

    /// Discards all queued messages after a loss, because the whole state is read again anyway. After a loss, the
    /// kernel reports no further loss until a read leaves the queue empty (`netlink_overrun` and `netlink_rcv_wake` in
    /// net/netlink/af_netlink.c). Without this step, changes lost during the resync would go unnoticed.
    fn discard(&self) -> io::Result<()> {
        // A read with a small buffer discards the rest of the message.
        let mut buffer = Vec::with_capacity(16);
        for _ in 0..MAX_DISCARDS {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted || is_loss(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(ErrorKind::ResourceBusy, "changes arrive faster than they can be discarded"))
    }
}

/// Returns whether the error means that the kernel dropped messages.
fn is_loss(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

/// The socket that sends requests.
#[derive(Debug)]
pub(super) struct Requests {
    socket: Socket,
    sequence: u32,
}

impl Requests {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let _ = socket.set_rx_buf_sz(BACKLOG as u32);
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Opens a socket whose requests fail, because no socket has the address 1 << 31.
    #[cfg(test)]
    pub(super) fn without_receiver() -> io::Result<Self> {
        let requests = Self::open()?;
        requests.socket.connect(&SocketAddr::new(1 << 31, 0))?;
        Ok(requests)
    }

    fn send(&mut self, flags: u16, inner: RouteNetlinkMessage) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(inner));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map(|_| ())
    }

    /// Requests all entries of one type, and calls `each` with each step. If a change interrupts the dump, requests all
    /// entries again, to get a consistent snapshot. If a change also interrupts the last attempt, the function accepts
    /// the result, which may be inconsistent.
    pub(super) fn dump(&mut self, what: &RouteNetlinkMessage, mut each: impl FnMut(DumpStep)) -> io::Result<()> {
        for last in (0..DUMP_ATTEMPTS).rev() {
            self.send(NLM_F_DUMP, what.clone())?;
            let flags = self.read_answers(&mut each)?;
            // If changes interrupt every attempt, the queued change events correct this dump later.
            if flags & NLM_F_DUMP_INTR == 0 || last == 0 {
                return Ok(());
            }
            each(DumpStep::Restart);
        }
        Ok(())
    }

    /// Sends a command and waits until the kernel has executed it.
    pub(super) fn execute(&mut self, what: RouteNetlinkMessage) -> io::Result<()> {
        self.send(NLM_F_ACK | NLM_F_CREATE, what)?;
        self.read_answers(|_| {}).map(|_| ())
    }

    /// Reads the answers to the last request. Returns the union of the flags of all messages, including the message
    /// that ends the answer.
    fn read_answers(&mut self, mut each: impl FnMut(DumpStep)) -> io::Result<u16> {
        let (mut buffer, mut flags) = (Vec::with_capacity(READ_BUFFER), 0);
        loop {
            if !is_readable([&self.socket], ANSWER_TIMEOUT)? {
                return Err(io::Error::new(ErrorKind::TimedOut, "the kernel does not answer"));
            }
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => continue,
                Err(error) => return Err(error),
            }
            let mut end = None;
            parse(&buffer, |message| {
                // Skip late answers to an earlier request that failed.
                if message.header.sequence_number != self.sequence {
                    return;
                }
                flags |= message.header.flags;
                match message.payload {
                    NetlinkPayload::InnerMessage(content) => {
                        each(DumpStep::Entry(Message { flags: message.header.flags, content }));
                    }
                    NetlinkPayload::Done(_) => end = Some(Ok(())),
                    NetlinkPayload::Error(error) if error.code.is_none() => end = Some(Ok(())),
                    NetlinkPayload::Error(error) => end = Some(Err(error.to_io())),
                    _ => {}
                }
            });
            if let Some(end) = end {
                return end.map(|()| flags);
            }
            each(DumpStep::Pause);
        }
    }
}
