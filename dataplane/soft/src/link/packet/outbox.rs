//! The frames of a burst, which are collected and then sent with one system call (`sendmmsg(2)`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::counters::Counting;
use dataplane_core::verbs::WcStatus;

/// Maximum number of frames per system call.
pub(crate) const BURST: usize = 64;

/// Frames that wait to be sent.
pub(super) struct Outbox {
    /// Space for [`BURST`] frames, each at a multiple of `stride`.
    bytes: Box<[u8]>,
    stride: usize,
    count: usize,
    /// The length of each frame, in bytes.
    lengths: [usize; BURST],
    /// The structures that the system call reads. `send` writes them before each call.
    parts: Box<[libc::iovec; BURST]>,
    messages: Box<[libc::mmsghdr; BURST]>,
}

// SAFETY: the raw pointers in the structures are used only in `send`, which writes them first.
unsafe impl Send for Outbox {}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Outbox {
    /// Creates an outbox for frames of up to `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        let stride = longest.next_multiple_of(64);
        // SAFETY: zero is a valid value of every field of both types.
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

    /// Adds a frame. The caller ensures that the outbox is not full and that the frame is not too long.
    #[inline]
    pub(super) fn push(&mut self, frame: &[u8]) {
        let place = self.count * self.stride;
        let length = frame.len().min(self.stride);
        self.bytes[place..place + length].copy_from_slice(&frame[..length]);
        self.lengths[self.count] = length;
        self.count += 1;
    }

    /// Sends all frames. Calls `each` for every frame, in order, with its length or its error.
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
                // The errors of this and the next arm affect all remaining frames: the queue is full, or the interface
                // is down or missing.
                Err(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                    counts.tx_queue_full.add((count - done) as u64);
                    count - done
                }
                Err(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    counts.tx_link_down.add((count - done) as u64);
                    count - done
                }
                // Any other error affects only this frame. Most likely the frame exceeds the current MTU of the
                // interface.
                Err(_) => {
                    counts.tx_refused.add(1);
                    1
                }
            };
            (0..refused).for_each(|_| each(Err(WcStatus::GeneralErr)));
            done += refused;
        }
    }

    /// Sends the frames with the indexes `from..to`. Returns the number of frames that the kernel accepted (at least
    /// one), or the `errno` of the first frame.
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
        // SAFETY: each message points to its `iovec`, which points to bytes of this outbox. All of them outlive the
        // call, and nothing has accessed the bytes since the pointers were written.
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
