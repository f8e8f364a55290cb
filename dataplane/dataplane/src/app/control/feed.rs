//! Passes snapshots of the run from the main thread to the thread of the metrics server.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::runtime::Snapshot;

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::app) enum Phase {
    /// The workers have not started.
    Starting,
    /// The workers run.
    Running,
    /// The run was stopped.
    Stopping,
}

/// The connection between the main thread, which watches the run, and the thread of the metrics server, which needs
/// snapshots.
pub(in crate::app) struct Feed {
    is_wanted: AtomicBool,
    phase: AtomicU8,
    latest: Mutex<Option<Arc<Snapshot>>>,
    /// A pair of sockets: the main thread writes to the first socket, and the receiver waits for the second socket.
    wake: (UnixStream, UnixStream),
}

impl Feed {
    /// Creates a feed of a run that has not started.
    ///
    /// # Errors
    /// Returns an error if there are no file descriptors left.
    pub(in crate::app) fn new() -> std::io::Result<Self> {
        let wake = UnixStream::pair()?;
        wake.0.set_nonblocking(true)?;
        wake.1.set_nonblocking(true)?;
        let phase = AtomicU8::new(Phase::Starting as u8);
        Ok(Self { is_wanted: AtomicBool::new(false), phase, latest: Mutex::new(None), wake })
    }

    /// Requests a snapshot.
    pub(in crate::app) fn request(&self) {
        self.is_wanted.store(true, Ordering::Release);
    }

    /// Returns `true` if a snapshot was requested and is not published yet.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Acquire)
    }

    /// Publishes a snapshot, and wakes the receiver.
    pub(super) fn publish(&self, snapshot: Arc<Snapshot>) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
        self.is_wanted.store(false, Ordering::Release);
        self.wake();
    }

    /// Wakes the receiver.
    pub(in crate::app) fn wake(&self) {
        // If the socket is full, its content wakes the receiver.
        let _ = (&self.wake.0).write(&[0]);
    }

    /// Returns the descriptor that becomes readable when the receiver should wake up.
    pub(in crate::app) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.1.as_fd()
    }

    /// Returns the latest snapshot, unless an earlier call has returned this snapshot.
    pub(in crate::app) fn take(&self) -> Option<Arc<Snapshot>> {
        let mut bytes = [0; 64];
        while (&self.wake.1).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(in crate::app) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    pub(in crate::app) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            phase if phase == Phase::Starting as u8 => Phase::Starting,
            phase if phase == Phase::Running as u8 => Phase::Running,
            _ => Phase::Stopping,
        }
    }
}
