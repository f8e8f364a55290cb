//! The hand-over of the queues of a kernel interface to another program, without loss of frames.

use std::io;
use std::os::fd::OwnedFd;

/// A queue that another program can take over.
#[derive(Debug)]
pub struct HandedQueue {
    /// Index of the queue.
    pub queue: u16,
    /// The descriptors of the queue. The first descriptor is the descriptor from which the queue receives.
    pub descriptors: Vec<OwnedFd>,
    /// The position in the ring of the queue, and other numbers that the link in the other program needs to continue the
    /// queue. The kernel does not report these numbers, so the link in the other program can only check their bounds.
    pub position: Vec<u64>,
    /// The packet buffers (slots) into which the kernel writes received frames. Empty unless the link
    /// [shares the packet memory](HandOver::shares_memory).
    pub posted: Vec<u32>,
}

/// A link whose queues another program can take over. The old program calls [`HandOver::detach`], and then calls
/// [`HandOver::detached`] until the function returns the queues. The new program calls [`HandOver::attach`].
pub trait HandOver: Send + Sync {
    /// Returns whether the kernel uses the packet memory of the workers. The new program must then take over the packet
    /// memory too. The old program must stop the stages of all workers before it calls [`HandOver::detach`]. After
    /// [`HandOver::detach`], the old program must move each queue pair to state ERR, and poll its receive queue once. Its
    /// posted receives do not complete, because the kernel still writes to the slots of these receives. The receives
    /// complete after [`HandOver::resume`], when no program has the socket of the queue any more.
    fn shares_memory(&self) -> bool {
        false
    }

    /// Requests that all queues stop receiving. Frames that arrive from now on wait in the kernel. If the link does not
    /// share the packet memory, the queues can still send. `queues` is the number of queue pairs, and `is_input` is whether
    /// workers poll the queues.
    ///
    /// # Errors
    /// Fails if the interface does not exist any more, if a queue waits for its interface, or if the kernel refuses a
    /// descriptor. No queue stops.
    fn detach(&self, queues: u16, is_input: bool) -> io::Result<()>;

    /// Returns the queues, or `None` while a queue has not stopped yet.
    ///
    /// # Errors
    /// Fails if the process has no free descriptors, or if the interface of an idle queue was created again. After
    /// [`HandOver::resume`], this queue uses the new interface.
    fn detached(&self) -> io::Result<Option<Vec<HandedQueue>>>;

    /// Lets all queues receive again. `is_touched` is whether the other program may have received frames.
    ///
    /// # Errors
    /// Fails if the kernel refuses new sockets.
    fn resume(&self, is_touched: bool) -> io::Result<()>;

    /// Makes the queues of this link continue the queues of another program. The link must have been opened with
    /// [`LinkSpec::take_over`](crate::LinkSpec::take_over). The queues must come from [`HandOver::detached`] of that program.
    ///
    /// # Errors
    /// Fails if the queues do not fit this link.
    fn attach(&self, queues: Vec<HandedQueue>) -> io::Result<()>;
}

/// Returns the error for queues that do not fit.
pub(crate) fn misfit(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("the queues of the other program do not fit: {what}"))
}

/// Returns the error for an interface that does not exist any more.
pub(crate) fn deleted() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the interface was deleted")
}

/// Returns the error for queues of an interface that was created again.
pub(crate) fn recreated() -> io::Error {
    misfit("the interface was created again")
}

/// Returns the error for too few or too many queues.
pub(crate) fn wrong_count() -> io::Error {
    misfit("the number of queues differs")
}

/// Returns the only descriptor of a queue.
pub(crate) fn only(descriptors: Vec<OwnedFd>) -> io::Result<OwnedFd> {
    let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| misfit("a queue has several descriptors"))?;
    Ok(descriptor)
}
