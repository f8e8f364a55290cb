//! Between the workers and the file: a ring of buffers for each worker, and the thread that writes them out.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::files::{Files, Spec};
use super::ring::{Buffer, Frame, Inlet, Outlet, ring};
use crate::error::{Error, Result};
use crate::file;
use crate::pipeline::Problem;

/// How long the writer rests when there is nothing to write.
const REST: Duration = Duration::from_millis(1);

/// Bursts of each ring that are written before somebody who reads along sees them.
const TURNS: usize = 256;

/// How long after a failure a capture of several files tries the next one: twice as long with each that fails, up to the
/// second of them.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The writer takes packets.
const OPEN: u8 = 0;
/// It takes no more: a limit is reached.
const FULL: u8 = 1;
/// It takes none, as the file failed: they are missed.
const FAILED: u8 = 2;

/// What workers and writer share.
struct Shared {
    /// Rings of workers that the writer has not seen yet.
    joined: Mutex<Vec<Outlet>>,
    /// One of the states above.
    state: AtomicU8,
    /// No worker offers any more.
    stop: AtomicBool,
    /// The run has come to its end: there is to be a file, with packets or without.
    complete: AtomicBool,
    missed: AtomicU64,
    /// Those of them that were taken, and then not written.
    lost: AtomicU64,
}

impl Shared {
    fn lose(&self, packets: u64) {
        self.missed.fetch_add(packets, Ordering::Relaxed);
        self.lost.fetch_add(packets, Ordering::Relaxed);
    }
}

/// One file, which the stages of all workers write to.
pub(super) struct Sink {
    shared: Arc<Shared>,
    snaplen: u16,
    buffers: usize,
    /// How many stages have joined and not left.
    users: AtomicUsize,
    writer: Mutex<Option<JoinHandle<Result<()>>>>,
}

impl Sink {
    /// Starts the writer. The file is not touched before there is something to write, or the end.
    pub(super) fn start(spec: Spec) -> std::result::Result<Self, Problem> {
        let path = spec.path.clone();
        file::can_be_written(&path).map_err(|error| {
            let message = format!("{} cannot be written: {error}", path.display());
            // The path may be empty.
            let problem = Problem::at("file", message.trim_start());
            problem.help("name a file that you may write, in a folder that you may")
        })?;
        let shared = Arc::new(Shared {
            joined: Mutex::new(Vec::new()),
            state: AtomicU8::new(OPEN),
            stop: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            missed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let (snaplen, buffers, theirs) = (spec.snaplen, spec.buffers, shared.clone());
        let name = format!("capture {}", spec.interface);
        let writer = thread::Builder::new()
            .name(name)
            .spawn(move || drain(&theirs, &spec))
            .map_err(|error| Problem::at("", format!("no thread for the capture: {error}")))?;
        Ok(Self { shared, snaplen, buffers, users: AtomicUsize::new(0), writer: Mutex::new(Some(writer)) })
    }

    /// One more stage writes.
    pub(super) fn join(self: Arc<Self>) -> Tap {
        let (inlet, outlet) = ring(self.buffers, self.snaplen);
        self.shared.joined.lock().unwrap_or_else(PoisonError::into_inner).push(outlet);
        self.users.fetch_add(1, Ordering::Relaxed);
        Tap { sink: self, inlet }
    }

    fn close(&self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Release);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(writer) = writer else { return Ok(()) };
        writer.thread().unpark();
        writer.join().unwrap_or_else(|_| Err(Error::Wire("the writer of the capture panicked".to_owned())))
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // A run that was never finished has nobody to tell.
        let _ = self.close();
    }
}

/// Where the stage of one worker puts its packets.
pub(super) struct Tap {
    sink: Arc<Sink>,
    inlet: Inlet,
}

impl Tap {
    /// Makes frames of packets for the writer. Returns how many were taken, and how many are missed, as there was no free
    /// buffer or the file failed. Neither: there are to be no more.
    #[inline]
    pub(super) fn offer<P>(
        &mut self,
        mut packets: impl ExactSizeIterator<Item = P>,
        wait: bool,
        mut frame: impl FnMut(P, Buffer) -> Frame,
    ) -> (u64, u64) {
        let shared = &*self.sink.shared;
        let mut taken = 0;
        match shared.state.load(Ordering::Relaxed) {
            OPEN => loop {
                taken += self.inlet.put(&mut packets, &mut frame) as u64;
                // The writer empties the ring even when the file has failed, so this ends.
                if packets.len() == 0 || !wait || self.inlet.is_abandoned() {
                    break;
                }
                thread::yield_now();
            },
            FAILED => {}
            _ => return (0, 0),
        }
        let missed = packets.len() as u64;
        if missed > 0 {
            shared.missed.fetch_add(missed, Ordering::Relaxed);
        }
        (taken, missed)
    }

    /// One stage less. With the last the file is complete: it is told how many packets were taken from all of them and then
    /// not written, and what went wrong while writing.
    pub(super) fn leave(self) -> (u64, Result<()>) {
        let Sink { shared, users, .. } = &*self.sink;
        if users.fetch_sub(1, Ordering::AcqRel) != 1 {
            return (0, Ok(()));
        }
        shared.complete.store(true, Ordering::Relaxed);
        let closed = self.sink.close();
        (shared.lost.load(Ordering::Relaxed), closed)
    }
}

/// Writes what workers offer, until they stop. After a failure it only empties the rings, so that none has to wait; a capture
/// of several files goes on with the next one after a while. Returns the first failure.
fn drain(shared: &Shared, spec: &Spec) -> Result<()> {
    let mut outlets = Vec::new();
    let mut files = Files::new(spec);
    let mut faults =
        Faults { shared, spec, first: Ok(()), failed: None, told: false, wait: RETRY[0], again: Instant::now() };
    loop {
        let stopped = shared.stop.load(Ordering::Acquire);
        outlets.append(&mut shared.joined.lock().unwrap_or_else(PoisonError::into_inner));
        // In turns, a burst of each. The rest of this loop is not put off for ever.
        let mut take = |outlet: &mut Outlet| outlet.take(|frame| faults.write(&mut files, frame));
        let mut turns = 0;
        let mut take_all = || outlets.iter_mut().map(&mut take).sum::<usize>() > 0;
        while take_all() && (stopped || turns < TURNS) {
            turns += 1;
        }
        // What was offered before the stop has been seen by now.
        if stopped {
            break;
        }
        if faults.failed.is_some() {
            faults.retry();
        } else {
            // Whoever reads along sees what there is.
            match files.flush() {
                Ok(()) if files.is_open() => faults.mended(&files),
                Ok(()) => {}
                Err(error) => faults.fail(&mut files, error),
            }
        }
        if turns < TURNS {
            thread::park_timeout(REST);
        }
    }
    let missed = shared.missed.load(Ordering::Relaxed);
    let empty = faults.first.is_ok() && shared.complete.load(Ordering::Relaxed);
    if faults.failed.is_none()
        && let Err(error) = files.finish(missed, empty)
    {
        faults.fail(&mut files, error);
    }
    faults.first
}

/// What went wrong with the files, and when to try again.
struct Faults<'a> {
    shared: &'a Shared,
    spec: &'a Spec,
    first: Result<()>,
    /// When it did, if no attempt was made since.
    failed: Option<Instant>,
    /// It was said that packets are left out, and not yet that they are written again.
    told: bool,
    /// How long after a failure the next attempt is.
    wait: Duration,
    /// When the latest was.
    again: Instant,
}

impl Faults<'_> {
    /// Writes a frame, unless there are to be no more.
    fn write(&mut self, files: &mut Files<'_>, frame: &Frame) {
        if self.failed.is_some() {
            // It was offered before the worker could know.
            self.shared.lose(1);
        } else if self.shared.state.load(Ordering::Relaxed) == OPEN {
            match files.packet(&frame.record(), self.shared.missed.load(Ordering::Relaxed)) {
                Ok(true) => {}
                Ok(false) => self.shared.state.store(FULL, Ordering::Relaxed),
                Err(error) => {
                    self.shared.lose(1);
                    self.fail(files, error);
                }
            }
        }
    }

    fn fail(&mut self, files: &mut Files<'_>, source: io::Error) {
        let path: PathBuf = files.path().to_owned();
        self.shared.lose(files.abandon());
        self.shared.state.store(FAILED, Ordering::Relaxed);
        if !std::mem::replace(&mut self.told, true) {
            tracing::error!("capture {}: {}: {source}: packets are left out", self.spec.interface, path.display());
        }
        if self.first.is_ok() {
            self.first = Err(Error::File { path, source });
        } else {
            self.wait = backoff(self.wait, self.again.elapsed());
        }
        self.failed = Some(Instant::now());
    }

    /// Makes a further attempt if it is time, and there may be a further file.
    fn retry(&mut self) {
        if self.spec.rotation.is_some() && self.failed.is_some_and(|since| since.elapsed() >= self.wait) {
            (self.failed, self.again) = (None, Instant::now());
            self.shared.state.store(OPEN, Ordering::Relaxed);
        }
    }

    /// Packets are being written.
    fn mended(&mut self, files: &Files<'_>) {
        if std::mem::take(&mut self.told) {
            tracing::warn!("capture {}: goes on in {}", self.spec.interface, files.path().display());
        }
    }
}

/// How long to wait after a failure, so long after the attempt before which the wait was `last`.
fn backoff(last: Duration, ran: Duration) -> Duration {
    let [shortest, longest] = RETRY;
    if ran >= longest { shortest } else { (last * 2).min(longest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rare_until_one_lasts() {
        let mut wait = RETRY[0];
        let waits = [(); 7].map(|()| {
            wait = backoff(wait, Duration::from_millis(3));
            wait.as_secs()
        });
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff(wait, Duration::from_secs(60)), RETRY[0]);
    }
}
