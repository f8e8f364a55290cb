//! The sockets of a queue: one that the kernel receives into a mapped ring for, and one that sends (`packet(7)`,
//! `Documentation/networking/packet_mmap.rst` of the kernel).
//!
//! The ring is of version 2. Each of its frames is handed over alone, when it comes. Version 3 hands over blocks of
//! frames, which are held back for up to a tick of the kernel's timer while they fill.
//!
//! What is sent does not go by a ring. The kernel would send its pages themselves, and hand them back as soon as the frame
//! is with its receiver, which on a veth pair may not have looked at it yet: what is sent next would overwrite it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::offload::{HEADER, Unfinished};
use crate::provider::soft::link::PacketSpec;
use crate::units::Nanos;

/// The least block of a ring: whole frames, and several of them, so that the kernel finds its memory in few pieces.
const BLOCK: usize = 1 << 16;
/// The most that stands before a frame: its descriptor, its address, alignment, and what is to be done with it.
const BEFORE: usize = 128;
/// Bytes that the kernel holds of frames too long for the ring, and of frames that are being sent.
const BUFFERS: libc::c_int = 8 << 20;

/// The sockets and the ring of one queue.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) receiver: Arc<OwnedFd>,
    pub(super) sender: OwnedFd,
    map: MmapRaw,
    /// Bytes from frame to frame.
    stride: usize,
    /// Frames less one: their count is a power of two.
    mask: usize,
    /// The next frame to look at.
    head: usize,
    /// Frames are stamped by the NIC.
    by_nic: bool,
}

/// A frame in the ring, which is ours until it is given back.
pub(super) struct Frame {
    /// The frame, and before it at least as many bytes as a VLAN tag has.
    start: NonNull<u8>,
    kept: usize,
    /// How long it was on the wire.
    pub(super) length: usize,
    /// Whether all of it waits at the socket: it was too long for the ring.
    pub(super) is_copied: bool,
    /// The tag that was taken off, with its type.
    pub(super) vlan: Option<[u8; 4]>,
    /// What is still to be done with it.
    pub(super) unfinished: Unfinished,
    /// When it came in by the clock that was asked for: nanoseconds since 1970.
    pub(super) came: Option<Nanos>,
}

impl Frame {
    /// Whether the ring has all of it.
    pub(super) fn is_whole(&self) -> bool {
        self.kept == self.length
    }

    /// The frame with its tag, if it had one.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the kernel wrote `kept` bytes from `start` on, and before them the header of what is to be done, which
        // has more than the four bytes of a tag; it touches none of them until the frame is given back,
        // which `PacketPort` does when it is done with these bytes.
        let bytes = unsafe {
            let tag = if self.vlan.is_some() { 4 } else { 0 };
            std::slice::from_raw_parts_mut(self.start.as_ptr().sub(tag), self.kept + tag)
        };
        if let Some(tag) = self.vlan {
            insert_tag(bytes, tag);
        }
        bytes
    }
}

/// Makes of a frame with four bytes of room before it one with that tag behind its addresses.
pub(super) fn insert_tag(bytes: &mut [u8], tag: [u8; 4]) {
    if bytes.len() >= 16 {
        bytes.copy_within(4..16, 0);
        bytes[12..16].copy_from_slice(&tag);
    }
}

impl Socket {
    /// Opens the sockets of one queue on the interface `index`, for frames of up to `longest` bytes, which the NIC stamps or
    /// the kernel. A queue of several
    /// joins the others' group, or founds it where there is none yet.
    ///
    /// # Errors
    /// What the kernel refused, and why.
    pub(super) fn open(
        spec: &PacketSpec,
        longest: usize,
        index: u32,
        by_nic: bool,
        group: Option<&mut Option<u16>>,
    ) -> Result<Self, (&'static str, io::Error)> {
        let receiver = packet_socket().map_err(|error| ("an AF_PACKET socket", error))?;
        let set = |option, value: libc::c_int, what| {
            set_option(&receiver, libc::SOL_PACKET, option, &value).map_err(|error| (what, error))
        };
        set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int, "PACKET_VERSION")?;
        set(libc::PACKET_VNET_HDR, 1, "PACKET_VNET_HDR")?;
        set(libc::PACKET_COPY_THRESH, 1, "PACKET_COPY_THRESH")?;
        set(libc::PACKET_IGNORE_OUTGOING, (!spec.outgoing).into(), "PACKET_IGNORE_OUTGOING")?;
        if by_nic {
            set(libc::PACKET_TIMESTAMP, libc::SOF_TIMESTAMPING_RAW_HARDWARE as libc::c_int, "PACKET_TIMESTAMP")?;
        }
        grow(&receiver, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        let stride = (longest + BEFORE).next_power_of_two();
        let frames = spec.ring as usize;
        let block = stride.max(BLOCK).min(stride * frames);
        let request = libc::tpacket_req {
            tp_block_size: block as u32,
            tp_block_nr: (stride * frames / block) as u32,
            tp_frame_size: stride as u32,
            tp_frame_nr: frames as u32,
        };
        set_option(&receiver, libc::SOL_PACKET, libc::PACKET_RX_RING, &request).map_err(|error| ("its ring", error))?;
        let map = MmapOptions::new().len(stride * frames).map_raw(&receiver).map_err(|error| ("its ring", error))?;
        if spec.promiscuous {
            let member = libc::packet_mreq {
                mr_ifindex: index as libc::c_int,
                mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
                mr_alen: 0,
                mr_address: [0; 8],
            };
            let member = set_option(&receiver, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member);
            member.map_err(|error| ("promiscuous mode", error))?;
        }
        bind(&receiver, index, libc::ETH_P_ALL as u16).map_err(|error| ("bind", error))?;
        if let Some(group) = group {
            join(&receiver, group, spec.outgoing).map_err(|error| ("PACKET_FANOUT", error))?;
        }
        let sender = packet_socket().map_err(|error| ("an AF_PACKET socket", error))?;
        if spec.qdisc_bypass {
            let bypass: libc::c_int = 1;
            set_option(&sender, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &bypass)
                .map_err(|error| ("PACKET_QDISC_BYPASS", error))?;
        }
        grow(&sender, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        // Without a protocol it receives nothing.
        bind(&sender, index, 0).map_err(|error| ("bind", error))?;
        let mut socket = Self { receiver: Arc::new(receiver), sender, map, stride, mask: frames - 1, head: 0, by_nic };
        // What came before the group was joined has come to the others as well.
        socket.discard();
        Ok(socket)
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: a frame of the ring begins with its status, which is aligned, as frames are powers of two; the map lives
        // as long as this. Kernel and user write it in turn (packet_mmap.rst): an atomic does so soundly.
        unsafe { AtomicU32::from_ptr(self.place().cast::<u32>()) }
    }

    /// The next frame to look at.
    fn place(&self) -> *mut u8 {
        // SAFETY: `head` is at most `mask`, so this stays inside of the map, which has `mask + 1` frames.
        unsafe { self.map.as_mut_ptr().add(self.head * self.stride) }
    }

    /// The next frame, if it has come in. It stays the next until [`Socket::give_back`].
    #[inline]
    pub(super) fn front(&mut self) -> Option<Frame> {
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the kernel has written the descriptor before the status that was just acquired, and now it is ours.
        let (descriptor, header, start) = unsafe {
            let place = self.place();
            let descriptor = place.cast::<libc::tpacket2_hdr>().read();
            // A frame begins behind its descriptor and what is to be done with it.
            let start = place.add(usize::from(descriptor.tp_mac));
            (descriptor, start.sub(HEADER).cast::<[u8; HEADER]>().read(), start)
        };
        let tag = status & libc::TP_STATUS_VLAN_VALID != 0;
        let vlan = tag.then(|| {
            let typed = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let [a, b] = if typed { descriptor.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 }.to_be_bytes();
            let [c, d] = descriptor.tp_vlan_tci.to_be_bytes();
            [a, b, c, d]
        });
        let room = self.stride.saturating_sub(usize::from(descriptor.tp_mac));
        Some(Frame {
            start: NonNull::new(start)?,
            kept: (descriptor.tp_snaplen as usize).min(room),
            length: descriptor.tp_len as usize,
            is_copied: status & libc::TP_STATUS_COPY != 0,
            vlan,
            unfinished: Unfinished::read(header),
            came: self.came(status, &descriptor),
        })
    }

    /// When a frame came in: the kernel always says by its own clock, or instead by the NIC's, if that is asked for and has
    /// stamped this one.
    #[inline]
    fn came(&self, status: u32, descriptor: &libc::tpacket2_hdr) -> Option<Nanos> {
        let by_nic = status & libc::TP_STATUS_TS_RAW_HARDWARE != 0;
        let nanos = u64::from(descriptor.tp_sec) * 1_000_000_000 + u64::from(descriptor.tp_nsec);
        (by_nic == self.by_nic).then_some(Nanos(nanos))
    }

    /// Gives the frame that [`Socket::front`] found back to the kernel.
    #[inline]
    pub(super) fn give_back(&mut self) {
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.head = (self.head + 1) & self.mask;
    }

    /// Takes the oldest frame that was too long for the ring, behind what is to be done with it, into `into`, which has
    /// room for it. `None`: there is none, or it is longer than that.
    pub(super) fn take_copied(&self, into: &mut Vec<u8>) -> Option<Unfinished> {
        into.clear();
        let mut header = [0u8; HEADER];
        let mut parts = [
            libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER },
            libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.capacity() },
        ];
        // SAFETY: zero is a value of every field.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        loop {
            // SAFETY: the message names two pieces of memory that are writable for as long as they say.
            let n = unsafe { libc::recvmsg(self.receiver.as_raw_fd(), &raw mut message, flags) };
            if n == -1 {
                // What happened to the interface is told once, in place of a frame.
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::ENETDOWN | libc::EINTR) => continue,
                    _ => return None,
                }
            }
            let length = (n as usize).checked_sub(HEADER).filter(|length| *length <= into.capacity())?;
            // SAFETY: the kernel wrote this many bytes, and there is room for them.
            unsafe { into.set_len(length) };
            return Some(Unfinished::read(header));
        }
    }

    /// Gives all back that has come in. Returns how many frames that were.
    pub(super) fn discard(&mut self) -> u64 {
        let mut count = 0;
        let mut nothing = [0u8; 0];
        // More than the ring holds has come in meanwhile.
        while count <= self.mask as u64 {
            let Some(frame) = self.front() else { break };
            if frame.is_copied {
                // SAFETY: a buffer of no bytes; the frame itself is thrown away.
                unsafe {
                    libc::recv(self.receiver.as_raw_fd(), nothing.as_mut_ptr().cast(), 0, libc::MSG_DONTWAIT);
                }
            }
            self.give_back();
            count += 1;
        }
        count
    }
}

/// How many frames a socket has lost since the last call.
pub(super) fn drops(receiver: &OwnedFd) -> u64 {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the option writes at most `length` bytes.
    let done = unsafe {
        let (fd, to) = (receiver.as_raw_fd(), (&raw mut statistics).cast());
        libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, to, &raw mut length)
    };
    if done == 0 { u64::from(statistics.tp_drops) } else { 0 }
}

fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is named.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set_option<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is of the size that is said, and the kernel copies it.
    let done = unsafe {
        let (value, size) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), level, option, value, size)
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a buffer of the socket larger: past the limit of the host where that is allowed, else up to it.
fn grow(socket: &OwnedFd, force: libc::c_int, ask: libc::c_int) {
    if set_option(socket, libc::SOL_SOCKET, force, &BUFFERS).is_err() {
        // It is cut down to the limit rather than refused.
        let _ = set_option(socket, libc::SOL_SOCKET, ask, &BUFFERS);
    }
}

fn bind(socket: &OwnedFd, index: u32, protocol: u16) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as libc::c_ushort,
        sll_protocol: protocol.to_be(),
        sll_ifindex: index as libc::c_int,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the address is of the size that is said, and the kernel copies it.
    let done = unsafe {
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size)
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Joins the sockets that share an interface by the hash of their flows; without a group, founds one.
fn join(socket: &OwnedFd, group: &mut Option<u16>, outgoing: bool) -> io::Result<()> {
    // In a group it is this flag that keeps outgoing frames away, and not the option of the socket.
    let kind = libc::PACKET_FANOUT_HASH | if outgoing { 0 } else { libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING };
    let found = if group.is_none() { libc::PACKET_FANOUT_FLAG_UNIQUEID } else { 0 };
    let argument = u32::from(group.unwrap_or(0)) | (kind | found) << 16;
    set_option(socket, libc::SOL_PACKET, libc::PACKET_FANOUT, &argument)?;
    let (mut joined, mut length) = (0u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: the option writes at most `length` bytes.
    let done = unsafe {
        let to = (&raw mut joined).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, to, &raw mut length)
    };
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    *group = Some(joined as u16);
    Ok(())
}
