//! Netlink sockets: one that is told of changes, one that asks.

use std::io::{self, ErrorKind};
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

/// `RTNLGRP_LINK`, `_NEIGH`, `_IPV4_IFADDR`, `_IPV4_ROUTE`, `_IPV6_IFADDR`, `_IPV6_ROUTE` (linux/rtnetlink.h).
const GROUPS: [u32; 6] = [1, 3, 5, 7, 9, 11];
/// How much the kernel keeps of what was not read yet, in bytes, where it lets us.
pub(super) const BACKLOG: usize = 8 << 20;
/// As much as the kernel puts into one message, and more.
const BUFFER: usize = 256 << 10;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most reads between two looks at anything else.
const AT_ONCE: usize = 256;
/// The most that is thrown away at a time; without taking it apart that is faster than a kernel changes.
const DISCARDED: usize = 1 << 20;
/// How often a dump that changed under way is tried again.
const TRIES: usize = 10;

/// A change, or an entry of a dump, with the flags of its message.
pub(super) struct Message {
    pub(super) flags: u16,
    pub(super) inner: RouteNetlinkMessage,
}

fn is_readable(socket: &Socket, within: Duration) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
    match poll(&mut fds, Timespec::try_from(within).ok().as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Takes what was read apart. A message that is not understood is left out: the kernel is newer than this.
fn parse(mut bytes: &[u8], mut each: impl FnMut(NetlinkMessage<RouteNetlinkMessage>)) {
    /// The length of a message's header.
    const HEADER: usize = 16;
    while bytes.len() >= HEADER {
        let length = bytes.first_chunk().map_or(0, |length| u32::from_ne_bytes(*length)) as usize;
        if length < HEADER || length > bytes.len() {
            return;
        }
        match NetlinkMessage::deserialize(&bytes[..length]) {
            Ok(message) => each(message),
            Err(error) => tracing::debug!("kernel: a message of {length} bytes is not understood: {error}"),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Is told of changes.
#[derive(Debug)]
pub(super) struct Events(Socket);

impl Events {
    pub(super) fn open(backlog: usize) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        // A limit of the system may cut it, or forbid it: then messages are lost sooner.
        let _ = socket.set_rx_buf_sz(backlog as u32);
        GROUPS.iter().try_for_each(|group| socket.add_membership(*group))?;
        Ok(Self(socket))
    }

    /// Waits for changes and hands them over. `false`: the kernel had to throw some away, and all is to be read anew.
    pub(super) fn wait(&self, within: Duration, mut each: impl FnMut(Message)) -> io::Result<bool> {
        if !is_readable(&self.0, within)? {
            return Ok(true);
        }
        let mut buffer = Vec::with_capacity(BUFFER);
        for _ in 0..AT_ONCE {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                Ok(_) => parse(&buffer, |message| {
                    if let NetlinkPayload::InnerMessage(inner) = message.payload {
                        each(Message { flags: message.header.flags, inner });
                    }
                }),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_loss(&error) => return self.discard().map(|()| false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Throws away what is there, as all is read anew behind a loss. The kernel says nothing of a further loss until its queue was
    /// found empty (`netlink_overrun` and `netlink_rcv_wake` in net/netlink/af_netlink.c): otherwise changes that are lost while
    /// all is read would stay unknown.
    fn discard(&self) -> io::Result<()> {
        // The rest of a message goes with its beginning.
        let mut buffer = Vec::with_capacity(16);
        for _ in 0..DISCARDED {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted || is_loss(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::new(ErrorKind::ResourceBusy, "changes come faster than they can be thrown away"))
    }
}

/// Whether the kernel had to throw messages away.
fn is_loss(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

/// Asks.
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

    /// Asks for all entries of a kind, and hands them over. They are of one moment: where something changed meanwhile,
    /// `restart` is called, and they all come again.
    pub(super) fn dump(
        &mut self,
        what: &RouteNetlinkMessage,
        mut restart: impl FnMut(),
        mut each: impl FnMut(Message),
    ) -> io::Result<()> {
        for last in (0..TRIES).rev() {
            self.send(NLM_F_DUMP, what.clone())?;
            let flags = self.answers(|flags, inner| each(Message { flags, inner }))?;
            // A kernel that changes all the time: what is told of it meanwhile mends it.
            if flags & NLM_F_DUMP_INTR == 0 || last == 0 {
                return Ok(());
            }
            restart();
        }
        Ok(())
    }

    /// Sends something to be done, and waits until it is.
    pub(super) fn tell(&mut self, what: RouteNetlinkMessage) -> io::Result<()> {
        self.send(NLM_F_ACK | NLM_F_CREATE, what)?;
        self.answers(|_, _| {}).map(|_| ())
    }

    /// Reads the answers to the last request, and tells the flags that any of them had, the closing one as well.
    fn answers(&mut self, mut each: impl FnMut(u16, RouteNetlinkMessage)) -> io::Result<u16> {
        let (mut buffer, mut flags) = (Vec::with_capacity(BUFFER), 0);
        loop {
            if !is_readable(&self.socket, PATIENCE)? {
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
                // What an earlier request that failed half way left behind.
                if message.header.sequence_number != self.sequence {
                    return;
                }
                flags |= message.header.flags;
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => each(message.header.flags, inner),
                    NetlinkPayload::Done(_) => end = Some(Ok(())),
                    NetlinkPayload::Error(error) if error.code.is_none() => end = Some(Ok(())),
                    NetlinkPayload::Error(error) => end = Some(Err(error.to_io())),
                    _ => {}
                }
            });
            if let Some(end) = end {
                return end.map(|()| flags);
            }
        }
    }
}
