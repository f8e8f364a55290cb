//! Passes snapshots of the run from the main thread to the thread of the metrics server.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::runtime::{Scope, Snapshot};

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

/// The scopes of a request for a snapshot. The number of a wider scope is greater.
const WANTED: [Option<Scope>; 3] = [None, Some(Scope::Health), Some(Scope::All)];

fn number(scope: Option<Scope>) -> u8 {
    match scope {
        None => 0,
        Some(Scope::Health) => 1,
        Some(Scope::All) => 2,
    }
}

/// The connection between the main thread, which watches the run, and the thread of the metrics server, which needs
/// snapshots.
pub(in crate::app) struct Feed {
    /// The scope of the requested snapshot, as in [`WANTED`].
    wanted: AtomicU8,
    phase: AtomicU8,
    latest: Mutex<Option<(Arc<Snapshot>, Scope)>>,
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
        Ok(Self { wanted: AtomicU8::new(0), phase, latest: Mutex::new(None), wake })
    }

    /// Requests a snapshot that has at least this scope.
    pub(in crate::app) fn request(&self, scope: Scope) {
        self.wanted.fetch_max(number(Some(scope)), Ordering::AcqRel);
    }

    /// Returns the scope of the snapshot that was requested and is not published yet.
    pub(super) fn wanted(&self) -> Option<Scope> {
        let wanted = self.wanted.load(Ordering::Acquire);
        WANTED.into_iter().find(|scope| number(*scope) == wanted).flatten()
    }

    /// Publishes a snapshot, and wakes the receiver.
    pub(super) fn publish(&self, snapshot: Arc<Snapshot>, scope: Scope) {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some((snapshot, scope));
        // A snapshot with a smaller scope does not fulfil the request.
        let fulfils = |wanted| (wanted <= number(Some(scope))).then_some(0);
        let _ = self.wanted.fetch_update(Ordering::AcqRel, Ordering::Acquire, fulfils);
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

    /// Returns the latest snapshot and its scope, unless an earlier call has returned this snapshot.
    pub(in crate::app) fn take(&self) -> Option<(Arc<Snapshot>, Scope)> {
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
