//! The sockets of a queue: one that receives into a mapped ring, and one that sends (`packet(7)`,
//! `Documentation/networking/packet_mmap.rst` of the kernel).
//!
//! The ring has version 2 (`TPACKET_V2`), which delivers each frame when the frame arrives. Version 3 delivers blocks
//! of frames, and delays a partly filled block for up to a tick of the kernel's timer.
//!
//! Sending uses no ring. The kernel does not copy frames out of a TX ring, and frees a ring entry when the frame
//! reaches the receiving socket. On a veth pair, the receiver may read the frame after the kernel has freed the entry.
//! The next frame in the entry could then overwrite the unread frame.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::event::{EventfdFlags, eventfd};

use super::fanout;
use super::offload::{HEADER, PendingOffload};
use super::spec::PacketSpec;
use crate::link::interface::{number_option, packet_socket, set_option, set_promiscuous};
use dataplane_core::units::Nanos;

/// Minimum size of a ring block, in bytes. A block holds several frames. The kernel allocates each block separately, so
/// large blocks need fewer allocations.
const BLOCK: usize = 1 << 16;
/// Maximum number of bytes before a frame in the ring: the descriptor (`tpacket2_hdr`), a `sockaddr_ll`, alignment, and
/// the offload header.
const BEFORE: usize = 128;
/// Socket buffer size, in bytes, for frames that are too long for the ring and for frames that are being sent.
const BUFFERS: libc::c_int = 8 << 20;

/// The size of the ring of an end that receives nothing, in bytes.
const IDLE_RING: usize = 4096;

/// The geometry of a ring, and the index of the next frame to check.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingPosition {
    pub(super) stride: usize,
    pub(super) frames: usize,
    pub(super) head: usize,
}

/// The sockets and the ring of one queue.
#[derive(Debug)]
pub(super) struct PacketSocket {
    pub(super) receiver: Arc<OwnedFd>,
    pub(super) sender: OwnedFd,
    map: MmapRaw,
    /// Distance between two consecutive frames in the ring, in bytes.
    stride: usize,
    /// The number of frames in the ring minus one. The number of frames is a power of two.
    mask: usize,
    /// The index of the next frame to check.
    head: usize,
    /// Whether to use the timestamps of the NIC instead of the timestamps of the kernel.
    by_nic: bool,
}

/// A frame in the ring. User space owns the frame until [`PacketSocket::release`].
pub(super) struct Frame {
    /// Start of the frame. At least four bytes before the frame are free for a VLAN tag.
    start: NonNull<u8>,
    /// The number of bytes of the frame in the ring.
    kept: usize,
    /// The length of the frame on the wire, in bytes.
    pub(super) length: usize,
    /// Whether the frame was too long for a ring entry, so that the kernel has queued a copy of the whole frame at the
    /// socket.
    pub(super) is_copied: bool,
    /// The VLAN tag that the kernel stripped: the tag protocol identifier (TPID) and the tag.
    pub(super) vlan: Option<[u8; 4]>,
    /// Pending offload work.
    pub(super) pending: PendingOffload,
    /// Receive time since the Unix epoch, by the requested clock. `None` if the frame has no timestamp of this clock.
    pub(super) received_at: Option<Nanos>,
}

impl Frame {
    /// Returns whether the ring holds the whole frame.
    pub(super) fn is_whole(&self) -> bool {
        self.kept == self.length
    }

    /// Returns the frame, with its VLAN tag reinserted.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the entry of the ring contains `kept` bytes from `start` on (see `next_frame`). The offload header
        // precedes them and is longer than the four bytes of a tag. An invalid frame has no tag. The kernel accesses none
        // of these bytes until the frame is released, and `PacketPort` releases the frame only when it no longer uses the
        // bytes.
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

/// Inserts a VLAN tag after the MAC addresses. The first four bytes of `bytes` are free space before the frame.
pub(super) fn insert_tag(bytes: &mut [u8], tag: [u8; 4]) {
    if bytes.len() >= 16 {
        bytes.copy_within(4..16, 0);
        bytes[12..16].copy_from_slice(&tag);
    }
}

impl PacketSocket {
    /// Opens the sockets of one queue on the interface `index`, for frames of up to `longest` bytes. `by_nic` selects
    /// NIC timestamps instead of kernel timestamps. If `group` is `Some`, the receiving socket joins a fanout group:
    /// the group whose number `group` contains, or a new group if `group` contains `None`. The function stores the
    /// number of a new group in `group`.
    ///
    /// # Errors
    /// Returns the operation that the kernel refused, and the error.
    pub(super) fn open(
        spec: &PacketSpec,
        longest: usize,
        index: u32,
        by_nic: bool,
        group: Option<&mut Option<u16>>,
    ) -> Result<Self, (&'static str, io::Error)> {
        let receiver = packet_socket().map_err(|error| ("opening an AF_PACKET socket", error))?;
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
        set_option(&receiver, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
            .map_err(|error| ("creating the ring of the AF_PACKET socket", error))?;
        let map = MmapOptions::new()
            .len(stride * frames)
            .map_raw(&receiver)
            .map_err(|error| ("creating the ring of the AF_PACKET socket", error))?;
        if spec.promiscuous {
            set_promiscuous(&receiver, index).map_err(|error| ("setting promiscuous mode", error))?;
        }
        bind(&receiver, index, libc::ETH_P_ALL as u16).map_err(|error| ("bind", error))?;
        if let Some(group) = group {
            fanout::join(&receiver, group, spec.outgoing).map_err(|error| ("PACKET_FANOUT", error))?;
        }
        let sender = sender(spec, index)?;
        let mut socket = Self { receiver: Arc::new(receiver), sender, map, stride, mask: frames - 1, head: 0, by_nic };
        // Discard the frames that arrived before the socket joined the group. Other queues received these frames too.
        socket.discard();
        Ok(socket)
    }

    /// Returns an end that receives nothing. The ring has one entry, which stays empty. `sender` is the sending socket.
    ///
    /// The receiver is no socket, because closing a packet socket takes the kernel more than 10 ms.
    ///
    /// # Errors
    /// Returns the operation that the kernel refused, and the error.
    pub(super) fn idle(sender: Option<OwnedFd>) -> Result<Self, (&'static str, io::Error)> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| ("opening an eventfd", error.into()));
        // A page of zeros: the status of the only entry is `TP_STATUS_KERNEL`.
        let map = MmapOptions::new().len(IDLE_RING).map_anon().map_err(|error| ("allocating memory", error))?;
        let (receiver, sender) = (Arc::new(event()?), sender.map_or_else(event, Ok)?);
        Ok(Self { receiver, sender, map: map.into(), stride: IDLE_RING, mask: 0, head: 0, by_nic: false })
    }

    /// Returns the position in the ring for [`PacketSocket::adopt`].
    pub(super) fn position(&self) -> RingPosition {
        RingPosition { stride: self.stride, frames: self.mask + 1, head: self.head }
    }

    /// Continues the receiving socket of another program at a position in the ring.
    ///
    /// # Errors
    /// Returns the operation that the kernel refused, and the error.
    pub(super) fn adopt(
        spec: &PacketSpec,
        receiver: OwnedFd,
        index: u32,
        by_nic: bool,
        position: RingPosition,
    ) -> Result<Self, (&'static str, io::Error)> {
        let RingPosition { stride, frames, head } = position;
        let length = stride.checked_mul(frames).filter(|_| stride.is_power_of_two() && frames.is_power_of_two());
        let Some(length) = length.filter(|_| stride >= BEFORE && head < frames) else {
            return Err(("checking the ring of the other program", io::ErrorKind::InvalidInput.into()));
        };
        // `next_frame` relies on the format of the ring.
        let format = [
            (libc::SOL_SOCKET, libc::SO_DOMAIN, libc::AF_PACKET),
            (libc::SOL_PACKET, libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int),
            (libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1),
        ];
        for (level, option, wanted) in format {
            let found = number_option(&receiver, level, option);
            let found = found.map_err(|error| ("checking the socket of the other program", error))?;
            if found != wanted {
                return Err(("checking the socket of the other program", io::ErrorKind::InvalidInput.into()));
            }
        }
        let sender = sender(spec, index)?;
        // The kernel refuses a length that is not the length of the ring.
        let map = MmapOptions::new().len(length).map_raw(&receiver);
        let map = map.map_err(|error| ("mapping the ring of the other program", error))?;
        Ok(Self { receiver: Arc::new(receiver), sender, map, stride, mask: frames - 1, head, by_nic })
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: a frame of the ring starts with its status. The status is aligned, because the frame size is a power
        // of two. The map lives as long as `self`. Kernel and user space write the status in turn (packet_mmap.rst), so
        // atomic access is sound.
        unsafe { AtomicU32::from_ptr(self.next_entry().cast::<u32>()) }
    }

    /// Returns a pointer to the next frame to check.
    fn next_entry(&self) -> *mut u8 {
        // SAFETY: `head` is at most `mask`, and the map has `mask + 1` frames, so the result is inside the map.
        unsafe { self.map.as_mut_ptr().add(self.head * self.stride) }
    }

    /// Returns the next frame, if it has arrived. Returns the same frame again until [`PacketSocket::release`] is
    /// called.
    #[inline]
    pub(super) fn next_frame(&mut self) -> Option<Frame> {
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let place = self.next_entry();
        // SAFETY: the kernel wrote the descriptor before the status that was just acquired. User space now owns the
        // frame. An entry of the ring has at least `BEFORE` bytes.
        let descriptor = unsafe { place.cast::<libc::tpacket2_hdr>().read() };
        // The frame follows its descriptor and the offload header. If the offset of the frame is smaller than the header,
        // the subtraction wraps, and the result is larger than the entry.
        let header_at = usize::from(descriptor.tp_mac).wrapping_sub(HEADER);
        let Some(room) = (self.stride - HEADER).checked_sub(header_at) else { return self.invalid_frame() };
        // SAFETY: the header and the start of the frame are inside the entry, because `checked_sub` succeeded.
        let (header, start) = unsafe {
            let header = place.add(header_at).cast::<[u8; HEADER]>();
            (header.read(), header.add(1).cast::<u8>())
        };
        let tag = status & libc::TP_STATUS_VLAN_VALID != 0;
        let vlan = tag.then(|| {
            let typed = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let [a, b] = if typed { descriptor.tp_vlan_tpid } else { libc::ETH_P_8021Q as u16 }.to_be_bytes();
            let [c, d] = descriptor.tp_vlan_tci.to_be_bytes();
            [a, b, c, d]
        });
        Some(Frame {
            start: NonNull::new(start)?,
            kept: (descriptor.tp_snaplen as usize).min(room),
            length: descriptor.tp_len as usize,
            is_copied: status & libc::TP_STATUS_COPY != 0,
            vlan,
            pending: PendingOffload::read(header),
            received_at: self.received_at(status, &descriptor),
        })
    }

    /// Returns a frame without bytes, for an entry whose frame is not inside the entry. The frame counts as lost, like a
    /// frame that the kernel could not copy.
    #[cold]
    fn invalid_frame(&self) -> Option<Frame> {
        Some(Frame {
            start: NonNull::new(self.next_entry())?,
            kept: 0,
            length: 1,
            is_copied: false,
            vlan: None,
            pending: PendingOffload::default(),
            received_at: None,
        })
    }

    /// Returns the receive time of a frame. A frame without a timestamp of the NIC has a timestamp of the kernel. If
    /// NIC timestamps are selected, returns `None` for a frame with a timestamp of the kernel.
    #[inline]
    fn received_at(&self, status: u32, descriptor: &libc::tpacket2_hdr) -> Option<Nanos> {
        let by_nic = status & libc::TP_STATUS_TS_RAW_HARDWARE != 0;
        let nanos = u64::from(descriptor.tp_sec) * 1_000_000_000 + u64::from(descriptor.tp_nsec);
        (by_nic == self.by_nic).then_some(Nanos(nanos))
    }

    /// Returns the frame of [`PacketSocket::next_frame`] to the kernel.
    #[inline]
    pub(super) fn release(&mut self) {
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.head = (self.head + 1) & self.mask;
    }

    /// Copies the oldest frame that was too long for the ring into `into`, and returns the frame's pending offload
    /// work. Returns `None` if there is no such frame, or if the frame is longer than the capacity of `into`.
    pub(super) fn take_copied(&self, into: &mut Vec<u8>) -> Option<PendingOffload> {
        into.clear();
        let mut header = [0u8; HEADER];
        let mut parts = [
            libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER },
            libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.capacity() },
        ];
        // SAFETY: zero is a valid value of every field.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        loop {
            // SAFETY: the message points to two buffers that are writable for their given lengths.
            let n = unsafe { libc::recvmsg(self.receiver.as_raw_fd(), &raw mut message, flags) };
            if n == -1 {
                // If the interface went down, the call returns `ENETDOWN` once instead of a frame.
                match io::Error::last_os_error().raw_os_error() {
                    Some(libc::ENETDOWN | libc::EINTR) => continue,
                    _ => return None,
                }
            }
            let length = (n as usize).checked_sub(HEADER).filter(|length| *length <= into.capacity())?;
            // SAFETY: the kernel wrote this many bytes, and they fit into the capacity.
            unsafe { into.set_len(length) };
            return Some(PendingOffload::read(header));
        }
    }

    /// Releases all frames that have arrived. Returns their number.
    pub(super) fn discard(&mut self) -> u64 {
        let mut count = 0;
        let mut nothing = [0u8; 0];
        // The limit stops the loop if frames arrive as fast as they are released.
        while count <= self.mask as u64 {
            let Some(frame) = self.next_frame() else { break };
            if frame.is_copied {
                // SAFETY: the kernel discards the frame and writes nothing, because the buffer has no bytes.
                unsafe {
                    libc::recv(self.receiver.as_raw_fd(), nothing.as_mut_ptr().cast(), 0, libc::MSG_DONTWAIT);
                }
            }
            self.release();
            count += 1;
        }
        count
    }

    /// Releases all frames of a ring from which another program may have received. Entries that the other program has
    /// released may precede the frames. Returns the number of frames. Afterwards, the socket does not receive, because
    /// the next entry of the kernel is not known.
    pub(super) fn discard_after_another_program(&mut self) -> u64 {
        let mut count = 0;
        for _ in 0..=self.mask {
            count += self.discard();
            self.head = (self.head + 1) & self.mask;
        }
        count
    }
}

/// Returns how many frames a socket has dropped since the last call.
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

/// Opens the sending socket of a queue.
pub(super) fn sender(spec: &PacketSpec, index: u32) -> Result<OwnedFd, (&'static str, io::Error)> {
    let sender = packet_socket().map_err(|error| ("opening an AF_PACKET socket", error))?;
    if spec.qdisc_bypass {
        let bypass: libc::c_int = 1;
        set_option(&sender, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &bypass)
            .map_err(|error| ("PACKET_QDISC_BYPASS", error))?;
    }
    grow(&sender, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
    // Protocol 0 means that the socket receives no frames.
    bind(&sender, index, 0).map_err(|error| ("bind", error))?;
    Ok(sender)
}

/// Enlarges a socket buffer. `force` is the socket option that may exceed the limit of the host, if the process has
/// CAP_NET_ADMIN. Otherwise the option `ask` sets the size, and the limit applies.
fn grow(socket: &OwnedFd, force: libc::c_int, ask: libc::c_int) {
    if set_option(socket, libc::SOL_SOCKET, force, &BUFFERS).is_err() {
        // The kernel reduces a size above the limit to the limit, without an error.
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
    // SAFETY: the address has the given size, and the kernel copies it.
    let done = unsafe {
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size)
    };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the next frame of a ring whose only entry has this descriptor: the length and the start of its bytes,
    /// relative to the entry.
    fn frame_at(tp_mac: u16, tp_snaplen: u32) -> Option<(usize, isize)> {
        let mut socket = PacketSocket::idle(None).unwrap();
        let place = socket.next_entry();
        // SAFETY: zero is a valid value of every field, and the entry has a page.
        unsafe {
            let descriptor = libc::tpacket2_hdr {
                tp_status: libc::TP_STATUS_USER | libc::TP_STATUS_VLAN_VALID,
                tp_mac,
                tp_snaplen,
                tp_len: tp_snaplen,
                ..std::mem::zeroed()
            };
            place.cast::<libc::tpacket2_hdr>().write(descriptor);
        }
        let mut frame = socket.next_frame().unwrap();
        assert_eq!(socket.next_frame().unwrap().length, frame.length, "the frame stays until its release");
        let whole = frame.is_whole();
        // SAFETY: both pointers point into the entry.
        let bytes = whole.then(|| (frame.bytes().len(), unsafe { frame.bytes().as_ptr().offset_from(place) }));
        socket.release();
        assert!(socket.next_frame().is_none());
        bytes
    }

    #[test]
    fn frame_that_is_not_inside_its_entry_is_lost() {
        let least = HEADER as u16;
        // With its tag, the frame is four bytes longer, and starts four bytes earlier.
        assert_eq!(frame_at(82, 1500), Some((1504, 78)));
        assert_eq!(frame_at(least, 4096 - 10), Some((4090, 6)));
        assert_eq!(frame_at(4096, 0), Some((4, 4092)));
        for (start, length) in [(0, 60), (least - 1, 60), (4097, 60), (u16::MAX, 60), (82, 5000)] {
            assert_eq!(frame_at(start, length), None, "{start} {length}");
        }
    }
}
