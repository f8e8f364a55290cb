//! An AF_XDP socket: its memory, its rings, and its binding to a queue of an interface.
//!
//! Each socket registers the worker's memory region by itself. `XDP_SHARED_UMEM` would save kernel memory, but would
//! tie the copy mode and the lifetime of all sockets to the first socket. A slot has the same address in all sockets of
//! the worker. One socket can therefore send a slot into which another socket received.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memmap2::MmapOptions;

use super::ring::{Offsets, Ring};
use super::spec::{BusyPoll, Copying};
use crate::link::interface::set_option;
use dataplane_core::mem::Region;

/// The socket option `XDP_MAX_TX_SKB_BUDGET` of Linux 6.17: the maximum number of frames that one call sends.
const MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// Maximum time to wait while another socket is bound to the queue. The kernel releases a queue some time after its
/// socket was closed.
pub(super) const BIND_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum time for which a queue pair waits until the kernel has released its queue. The other ports of the worker
/// continue between two checks. The release and each check need the kernel's RTNL lock. If another program holds this
/// lock, a check blocks the worker with all its ports until the lock is free.
pub(super) const REBIND_TIMEOUT: Duration = Duration::from_secs(10);

/// Parameters of a socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketSpec {
    /// The size of the registered memory, from the start of the region, in bytes.
    pub(super) bytes: usize,
    /// The size of a chunk, in bytes: 2048 or 4096.
    pub(super) chunk: u32,
    /// Free bytes before a frame, in addition to the [`super::HEADROOM`] that the kernel reserves.
    pub(super) headroom: u32,
    /// The number of entries of the receive and fill rings.
    pub(super) receives: u32,
    /// The number of entries of the send and completion rings.
    pub(super) sends: u32,
    pub(super) busy_poll: Option<BusyPoll>,
}

/// An operation that the kernel refused, and its error.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) step: &'static str,
    pub(super) error: io::Error,
}

fn at(step: &'static str) -> impl FnOnce(io::Error) -> Refused {
    move |error| Refused { step, error }
}

/// An AF_XDP socket.
#[derive(Debug)]
pub(super) struct XdpSocket {
    pub(super) rx: Ring<libc::xdp_desc>,
    pub(super) tx: Ring<libc::xdp_desc>,
    pub(super) fill: Ring<u64>,
    pub(super) completion: Ring<u64>,
    pub(super) zero_copy: bool,
    /// Whether a frame may use several buffers.
    pub(super) several: bool,
    /// Whether another program has opened the socket, and may still have a descriptor.
    pub(super) is_adopted: bool,
    fd: OwnedFd,
    /// Declared after `fd`, because the kernel uses the memory until the socket is closed.
    _region: Arc<Region>,
}

impl XdpSocket {
    /// Creates a socket that is not yet bound to an interface.
    pub(super) fn new(region: &Arc<Region>, spec: &SocketSpec) -> Result<Self, Refused> {
        // SAFETY: a plain system call. Nothing else owns the new descriptor.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
            if fd < 0 {
                return Err(Refused { step: "socket", error: io::Error::last_os_error() });
            }
            OwnedFd::from_raw_fd(fd)
        };
        let umem = libc::xdp_umem_reg {
            addr: region.base().as_ptr().expose_provenance() as u64,
            len: spec.bytes as u64,
            chunk_size: spec.chunk,
            headroom: spec.headroom,
            flags: 0,
            tx_metadata_len: 0,
        };
        set_option(&fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &umem).map_err(at("XDP_UMEM_REG"))?;
        for (option, entries) in [
            (libc::XDP_UMEM_FILL_RING, spec.receives),
            (libc::XDP_UMEM_COMPLETION_RING, spec.sends),
            (libc::XDP_RX_RING, spec.receives),
            (libc::XDP_TX_RING, spec.sends),
        ] {
            set_option(&fd, libc::SOL_XDP, option, &entries).map_err(at("a ring"))?;
        }
        // Make the send buffer large enough for all posted sends. Without the privilege for this option, the kernel
        // sends fewer frames at a time.
        let bytes = (u64::from(spec.sends) * 2 * u64::from(spec.chunk)).min(i32::MAX as u64 / 2) as libc::c_int;
        let _ = set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &bytes);
        let _ = set_option(&fd, libc::SOL_XDP, MAX_TX_SKB_BUDGET, &spec.sends.max(32));
        if let Some(busy) = spec.busy_poll {
            for (option, value) in [
                (libc::SO_PREFER_BUSY_POLL, 1),
                (libc::SO_BUSY_POLL, busy.duration.0.as_micros() as libc::c_int),
                (libc::SO_BUSY_POLL_BUDGET, busy.budget as libc::c_int),
            ] {
                set_option(&fd, libc::SOL_SOCKET, option, &value).map_err(at("busy polling"))?;
            }
        }
        Self::map(region, fd, (spec.receives, spec.sends))
    }

    /// Maps the rings of a socket.
    fn map(region: &Arc<Region>, fd: OwnedFd, (receives, sends): (u32, u32)) -> Result<Self, Refused> {
        let offsets: libc::xdp_mmap_offsets =
            get(fd.as_raw_fd(), libc::XDP_MMAP_OFFSETS).map_err(at("XDP_MMAP_OFFSETS"))?;
        Ok(Self {
            rx: map(&fd, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx, receives)?,
            tx: map(&fd, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, sends)?,
            fill: map(&fd, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, receives)?,
            completion: map(&fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, sends)?,
            zero_copy: false,
            several: false,
            is_adopted: false,
            fd,
            _region: region.clone(),
        })
    }

    /// Continues the socket of another program. The socket is bound, and its memory is `region`. `entries` are the
    /// numbers of entries of the receive ring and of the send ring. `several` is whether a frame may use several
    /// buffers.
    pub(super) fn adopt(
        region: &Arc<Region>,
        fd: OwnedFd,
        entries: (u32, u32),
        several: bool,
    ) -> Result<Self, Refused> {
        let mut socket = Self::map(region, fd, entries)?;
        socket.rx.continue_consuming();
        socket.completion.continue_consuming();
        socket.tx.continue_producing();
        socket.fill.continue_producing();
        (socket.several, socket.is_adopted) = (several, true);
        socket.read_mode()?;
        Ok(socket)
    }

    /// Closes this descriptor of the socket. Returns the number of frames that no program has received.
    pub(super) fn close(mut self) -> u32 {
        // Another program may have received some frames.
        self.rx.continue_consuming();
        self.rx.ready(u32::MAX)
    }

    /// Reads whether the socket is in zero-copy mode.
    fn read_mode(&mut self) -> Result<(), Refused> {
        let options: libc::xdp_options = get(self.fd.as_raw_fd(), libc::XDP_OPTIONS).map_err(at("XDP_OPTIONS"))?;
        self.zero_copy = options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0;
        Ok(())
    }

    /// Binds the socket to a queue. Waits up to `timeout` while another socket is bound to the queue. If `several` is
    /// `true`, requests that a frame may use several buffers. If `copying` is `Auto` and zero-copy mode is not
    /// available, returns the reason.
    pub(super) fn bind(
        &mut self,
        interface: u32,
        queue: u32,
        copying: Copying,
        several: bool,
        timeout: Duration,
    ) -> Result<Option<io::Error>, Refused> {
        let modes: &[u16] = match copying {
            Copying::Auto => &[libc::XDP_ZEROCOPY, libc::XDP_COPY],
            Copying::Zero => &[libc::XDP_ZEROCOPY],
            Copying::Copy => &[libc::XDP_COPY],
        };
        let segments: &[u16] = if several { &[libc::XDP_USE_SG, 0] } else { &[0] };
        let mut why = None;
        for mode in modes {
            for segments in segments {
                let flags = mode | segments | libc::XDP_USE_NEED_WAKEUP;
                let Err(error) = self.bind_as(interface, queue, flags, timeout) else {
                    self.read_mode()?;
                    self.several = flags & libc::XDP_USE_SG != 0;
                    return Ok(why.filter(|_| !self.zero_copy && copying == Copying::Auto));
                };
                // These errors occur in every mode, so do not try other modes.
                let last =
                    matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EPERM | libc::ENODEV | libc::ENETDOWN));
                if last {
                    return Err(Refused { step: "bind", error });
                }
                why = Some(error);
            }
        }
        let error = why.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
        Err(Refused { step: "bind", error })
    }

    fn bind_as(&self, interface: u32, queue: u32, flags: u16, timeout: Duration) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: interface,
            sxdp_queue_id: queue,
            sxdp_shared_umem_fd: 0,
        };
        let begin = Instant::now();
        loop {
            // SAFETY: the address belongs to this address family and has the given size.
            let done = unsafe {
                libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
            };
            if done == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) || begin.elapsed() >= timeout {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Makes the kernel send the frames of the TX ring. Ignores errors, because the caller tries again while frames are
    /// left.
    #[inline]
    pub(super) fn wake_tx(&self) {
        // SAFETY: all pointers are null, so the kernel accesses no memory of this process.
        unsafe { libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    }

    /// Makes the kernel receive frames.
    #[inline]
    pub(super) fn wake_rx(&self) {
        let none = std::ptr::null_mut();
        // SAFETY: all pointers are null, so the kernel accesses no memory of this process.
        unsafe { libc::recvfrom(self.fd.as_raw_fd(), none, 0, libc::MSG_DONTWAIT, std::ptr::null_mut(), none.cast()) };
    }

    pub(super) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the kernel's counters of an open socket.
pub(super) fn statistics(fd: RawFd) -> io::Result<libc::xdp_statistics> {
    get(fd, libc::XDP_STATISTICS)
}

/// Waits until the kernel has released a queue whose socket was closed. Until then, the kernel or the hardware may still
/// write into the posted buffers: in zero-copy mode, or if another program has a descriptor of the socket. The function
/// binds another socket to the queue, which succeeds only after the release. Returns `false` if the release is not
/// certain after `timeout`, for example because a socket of another program is bound to the queue.
pub(super) fn await_release(region: &Arc<Region>, interface: u32, queue: u32, timeout: Duration) -> bool {
    let spec = SocketSpec { bytes: 4096, chunk: 4096, headroom: 0, receives: 1, sends: 1, busy_poll: None };
    let Ok(mut probe) = XdpSocket::new(region, &spec) else { return false };
    match probe.bind(interface, queue, Copying::Copy, false, timeout) {
        Ok(_) => true,
        Err(refused) => shows_release(&refused.error),
    }
}

/// Returns whether the error of a bind means that no socket is bound to the queue: the interface or the queue does not
/// exist. The kernel releases the queues of an interface before it removes the interface. The kernel may return another
/// error, such as ENOMEM, before it checks whether the queue is in use.
pub(super) fn shows_release(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::EINVAL))
}

/// Reads an option of [`libc::SOL_XDP`]. All values are plain numbers.
fn get<T: Copy>(fd: RawFd, option: libc::c_int) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes. Zero is a valid value of every type that is used.
    let (done, value) = unsafe {
        let done = libc::getsockopt(fd, libc::SOL_XDP, option, value.as_mut_ptr().cast(), &mut size);
        (done, value.assume_init())
    };
    // Kernels before 5.4 return a shorter structure, without the offsets of the wake-up flags. Such kernels are not
    // supported.
    let older = (size as usize) < size_of::<T>() && option == libc::XDP_MMAP_OFFSETS;
    match done {
        0 if older => Err(io::Error::from_raw_os_error(libc::ENOPROTOOPT)),
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

fn map<T: Copy>(fd: &OwnedFd, page: u64, at: &libc::xdp_ring_offset, size: u32) -> Result<Ring<T>, Refused> {
    let refused = |error| Refused { step: "mmap of a ring", error };
    let len = at.desc as usize + size as usize * size_of::<T>();
    let map = MmapOptions::new().offset(page).len(len).populate().map_raw(fd).map_err(refused)?;
    let offsets = Offsets {
        producer: at.producer as usize,
        consumer: at.consumer as usize,
        flags: at.flags as usize,
        entries: at.desc as usize,
    };
    Ring::new(map, offsets, size).ok_or_else(|| refused(io::Error::from_raw_os_error(libc::EPROTO)))
}
