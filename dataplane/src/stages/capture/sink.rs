//! Between the workers and the file: a ring of buffers, and the thread that writes them out.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use super::files::{Files, Spec};
use super::pcapng::Record;
use crate::clock::{ClockSource, Stamp};
use crate::error::{Error, Result};
use crate::pipeline::Problem;

/// The most bytes of a comment.
pub(super) const COMMENT: usize = 128;

/// How long the writer rests when there is nothing to write.
const REST: Duration = Duration::from_millis(1);

/// How long after a failure a capture of several files tries the next one: twice as long with each that fails, up to the
/// second of them.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// A packet on its way to the file.
struct Frame {
    nanos: u64,
    source: ClockSource,
    original: u32,
    len: usize,
    bytes: Box<[u8]>,
    comment_len: usize,
    comment: [u8; COMMENT],
}

impl Frame {
    fn new(snaplen: u16) -> Box<Self> {
        let bytes = vec![0; usize::from(snaplen)].into_boxed_slice();
        let source = ClockSource::None;
        Box::new(Self { nanos: 0, source, original: 0, len: 0, bytes, comment_len: 0, comment: [0; COMMENT] })
    }

    #[inline]
    fn fill(&mut self, nanos: u64, source: ClockSource, packet: &[u8], comment: &[&str]) {
        self.nanos = nanos;
        self.source = source;
        self.original = packet.len() as u32;
        self.len = packet.len().min(self.bytes.len());
        self.bytes[..self.len].copy_from_slice(&packet[..self.len]);
        self.comment_len = 0;
        for part in comment {
            let room = &mut self.comment[self.comment_len..];
            let len = part.floor_char_boundary(room.len());
            room[..len].copy_from_slice(&part.as_bytes()[..len]);
            self.comment_len += len;
        }
    }

    fn record(&self) -> Record<'_> {
        Record {
            nanos: self.nanos,
            source: self.source,
            original: self.original,
            bytes: &self.bytes[..self.len],
            comment: &self.comment[..self.comment_len],
        }
    }
}

/// The writer takes packets.
const OPEN: u8 = 0;
/// It takes no more: a limit is reached.
const FULL: u8 = 1;
/// It takes none, as the file failed: they are missed.
const FAILED: u8 = 2;

/// What workers and writer share.
struct Ring {
    free: ArrayQueue<Box<Frame>>,
    full: ArrayQueue<Box<Frame>>,
    /// One of the states below.
    state: AtomicU8,
    /// No worker offers any more.
    stop: AtomicBool,
    /// The run has come to its end: there is to be a file, with packets or without.
    complete: AtomicBool,
    missed: AtomicU64,
    /// Those of them that were taken, and then not written.
    lost: AtomicU64,
}

impl Ring {
    fn lose(&self, packets: u64) {
        self.missed.fetch_add(packets, Ordering::Relaxed);
        self.lost.fetch_add(packets, Ordering::Relaxed);
    }
}

/// One file, which the stages of all workers write to.
pub(super) struct Sink {
    ring: Arc<Ring>,
    /// How many stages have joined and not left.
    users: AtomicUsize,
    writer: Mutex<Option<JoinHandle<Result<()>>>>,
}

impl Sink {
    /// Starts the writer. The file is not touched before there is something to write, or the end.
    pub(super) fn start(spec: Spec) -> std::result::Result<Self, Problem> {
        let path = spec.path.clone();
        check(&path).map_err(|error| {
            let problem = Problem::at("file", format!("{} cannot be written: {error}", path.display()));
            problem.help("name a file in a folder that exists, and that you may write")
        })?;
        let ring = Arc::new(Ring {
            free: ArrayQueue::new(spec.buffers),
            full: ArrayQueue::new(spec.buffers),
            state: AtomicU8::new(OPEN),
            stop: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            missed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        for _ in 0..spec.buffers {
            // The queue was made for so many.
            let _ = ring.free.push(Frame::new(spec.snaplen));
        }
        let shared = ring.clone();
        let name = format!("capture {}", spec.interface);
        let writer = thread::Builder::new()
            .name(name)
            .spawn(move || drain(&shared, &spec))
            .map_err(|error| Problem::at("", format!("no thread for the capture: {error}")))?;
        Ok(Self { ring, users: AtomicUsize::new(0), writer: Mutex::new(Some(writer)) })
    }

    /// One more stage writes.
    pub(super) fn join(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Copies a packet for the writer. `None`: there are to be no more. `false`: it is missed, as there was no free buffer
    /// or the file failed.
    #[inline]
    pub(super) fn offer(&self, nanos: u64, stamp: Stamp, packet: &[u8], comment: &[&str], wait: bool) -> Option<bool> {
        match self.ring.state.load(Ordering::Relaxed) {
            OPEN => {}
            FAILED => return Some(self.miss()),
            _ => return None,
        }
        let mut frame = self.ring.free.pop();
        // The writer empties the ring even when the file has failed, so this ends.
        while wait && frame.is_none() {
            thread::yield_now();
            frame = self.ring.free.pop();
        }
        let Some(mut frame) = frame else { return Some(self.miss()) };
        frame.fill(nanos, stamp.source(), packet, comment);
        // There are no more buffers than the queue has room for.
        Some(self.ring.full.push(frame).is_ok())
    }

    /// Counts one that is left out: `false`, it was not taken.
    #[cold]
    fn miss(&self) -> bool {
        self.ring.missed.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// One stage less. With the last the file is complete: it is told how many packets were taken from all of them and then
    /// not written, and what went wrong while writing.
    pub(super) fn leave(&self) -> (u64, Result<()>) {
        if self.users.fetch_sub(1, Ordering::AcqRel) != 1 {
            return (0, Ok(()));
        }
        self.ring.complete.store(true, Ordering::Relaxed);
        let closed = self.close();
        (self.ring.lost.load(Ordering::Relaxed), closed)
    }

    fn close(&self) -> Result<()> {
        self.ring.stop.store(true, Ordering::Release);
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

/// Whether the file could be written, without touching it.
fn check(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(known) if known.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(known) if known.is_file() => OpenOptions::new().write(true).open(path).map(|_| ()),
        // A pipe would keep the run waiting for its reader.
        Ok(known) if known.file_type().is_fifo() || known.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "a pipe or socket may keep the run waiting"))
        }
        Ok(_) => Ok(()),
        Err(_) => {
            // Folders that are missing are made with the file; something else in their place is in the way.
            let there = path.ancestors().skip(1).find_map(|folder| fs::metadata(folder).ok());
            match there {
                Some(known) if !known.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
                _ => Ok(()),
            }
        }
    }
}

/// Writes what workers offer, until they stop. After a failure it only empties the ring, so that none has to wait; a capture
/// of several files goes on with the next one after a while. Returns the first failure.
fn drain(ring: &Ring, spec: &Spec) -> Result<()> {
    let mut files = Files::new(spec);
    let mut faults =
        Faults { ring, spec, first: Ok(()), failed: None, told: false, wait: RETRY[0], again: Instant::now() };
    loop {
        let stopped = ring.stop.load(Ordering::Acquire);
        while let Some(frame) = ring.full.pop() {
            if faults.failed.is_some() {
                // It was offered before the worker could know.
                ring.lose(1);
            } else if ring.state.load(Ordering::Relaxed) == OPEN {
                match files.packet(&frame.record(), ring.missed.load(Ordering::Relaxed)) {
                    Ok(true) => {}
                    Ok(false) => ring.state.store(FULL, Ordering::Relaxed),
                    Err(error) => {
                        ring.lose(1);
                        faults.fail(&mut files, error);
                    }
                }
            }
            // It came from there.
            let _ = ring.free.push(frame);
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
        thread::park_timeout(REST);
    }
    let missed = ring.missed.load(Ordering::Relaxed);
    let empty = faults.first.is_ok() && ring.complete.load(Ordering::Relaxed);
    if faults.failed.is_none()
        && let Err(error) = files.finish(missed, empty)
    {
        faults.fail(&mut files, error);
    }
    faults.first
}

/// What went wrong with the files, and when to try again.
struct Faults<'a> {
    ring: &'a Ring,
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
    fn fail(&mut self, files: &mut Files<'_>, source: io::Error) {
        let path: PathBuf = files.path().to_owned();
        self.ring.lose(files.abandon());
        self.ring.state.store(FAILED, Ordering::Relaxed);
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
            self.ring.state.store(OPEN, Ordering::Relaxed);
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
