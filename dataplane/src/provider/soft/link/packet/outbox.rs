//! Frames of a burst that go to the kernel by one system call (`sendmmsg(2)`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::provider::WcStatus;
use crate::provider::soft::counters::Counting;

/// The most frames that one system call sends.
pub(in crate::provider::soft) const BURST: usize = 64;

/// Frames that wait to be sent.
pub(super) struct Outbox {
    /// Room for [`BURST`] frames, each at a multiple of `stride`.
    bytes: Box<[u8]>,
    stride: usize,
    count: usize,
    /// How long each frame is.
    lengths: [usize; BURST],
    /// What the system call reads: written anew before each.
    parts: Box<[libc::iovec; BURST]>,
    messages: Box<[libc::mmsghdr; BURST]>,
}

// SAFETY: its pointers mean something only within `send`, which writes them first.
unsafe impl Send for Outbox {}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Outbox {
    /// For frames of up to `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        let stride = longest.next_multiple_of(64);
        // SAFETY: zero is a value of every field of both.
        let (part, message) = unsafe { (std::mem::zeroed::<libc::iovec>(), std::mem::zeroed::<libc::mmsghdr>()) };
        Self {
            bytes: vec![0; stride * BURST].into(),
            stride,
            count: 0,
            lengths: [0; BURST],
            parts: Box::new([part; BURST]),
            messages: Box::new([message; BURST]),
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.count == BURST
    }

    /// Adds a frame, for which there is room and which is not too long: the engine has seen to both.
    #[inline]
    pub(super) fn push(&mut self, frame: &[u8]) {
        let place = self.count * self.stride;
        let length = frame.len().min(self.stride);
        self.bytes[place..place + length].copy_from_slice(&frame[..length]);
        self.lengths[self.count] = length;
        self.count += 1;
    }

    /// Sends them all, and tells of each, in order, how long it was and whether the kernel took it.
    pub(super) fn flush(
        &mut self,
        socket: Option<&OwnedFd>,
        counts: &Counting,
        mut each: impl FnMut(Result<usize, WcStatus>),
    ) {
        let count = std::mem::take(&mut self.count);
        let mut done = 0;
        while done < count {
            let sent = socket.map_or(Err(libc::ENETDOWN), |socket| self.send(socket, done, count));
            let refused = match sent {
                Ok(sent) => {
                    self.lengths[done..done + sent].iter().for_each(|length| each(Ok(*length)));
                    done += sent;
                    continue;
                }
                Err(libc::EINTR) => continue,
                // What stops one stops all: the queue is full, or the interface is not there.
                Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    counts.tx_queue_full.add((count - done) as u64);
                    count - done
                }
                Err(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    counts.tx_link_down.add((count - done) as u64);
                    count - done
                }
                // Longer than the MTU of the interface is now, most likely: of this frame alone.
                Err(_) => {
                    counts.tx_refused.add(1);
                    1
                }
            };
            (0..refused).for_each(|_| each(Err(WcStatus::GeneralErr)));
            done += refused;
        }
    }

    /// Sends those from `from` to `to`. Returns how many the kernel took, at least one; or the `errno` of the first.
    fn send(&mut self, socket: &OwnedFd, from: usize, to: usize) -> Result<usize, i32> {
        let frames = self.bytes.chunks_exact_mut(self.stride).zip(&self.lengths);
        for ((frame, length), part) in frames.zip(&mut *self.parts).take(to).skip(from) {
            *part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: *length };
        }
        for (part, message) in self.parts.iter_mut().zip(&mut *self.messages).take(to).skip(from) {
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        let messages = &mut self.messages[from..to];
        // SAFETY: each message names its part, which names bytes of this outbox; all outlive the call, and nothing has
        // touched them since they were named.
        let sent = unsafe {
            let count = messages.len() as libc::c_uint;
            libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _)
        };
        match usize::try_from(sent) {
            Ok(sent) if sent > 0 => Ok(sent),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        }
    }
}
