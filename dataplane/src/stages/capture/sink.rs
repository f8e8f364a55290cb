//! Between the workers and the file: a ring of buffers, and the thread that writes them out.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;

use super::pcapng::{Record, STATISTICS, Writer};
use crate::error::{Error, Result};
use crate::pipeline::Problem;

/// The most bytes of a comment.
pub(super) const COMMENT: usize = 128;

/// How long the writer rests when there is nothing to write.
const REST: Duration = Duration::from_millis(1);

/// What to write, and where.
#[derive(Clone)]
pub(super) struct Spec {
    pub(super) path: PathBuf,
    pub(super) interface: String,
    pub(super) snaplen: u16,
    pub(super) buffers: usize,
    pub(super) max_packets: u64,
    pub(super) max_bytes: u64,
}

/// A packet on its way to the file.
struct Frame {
    nanos: u64,
    original: u32,
    len: usize,
    bytes: Box<[u8]>,
    comment_len: usize,
    comment: [u8; COMMENT],
}

impl Frame {
    fn new(snaplen: u16) -> Box<Self> {
        let bytes = vec![0; usize::from(snaplen)].into_boxed_slice();
        Box::new(Self { nanos: 0, original: 0, len: 0, bytes, comment_len: 0, comment: [0; COMMENT] })
    }

    #[inline]
    fn fill(&mut self, nanos: u64, packet: &[u8], comment: &[&str]) {
        self.nanos = nanos;
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
            original: self.original,
            bytes: &self.bytes[..self.len],
            comment: &self.comment[..self.comment_len],
        }
    }
}

/// What workers and writer share.
struct Ring {
    free: ArrayQueue<Box<Frame>>,
    full: ArrayQueue<Box<Frame>>,
    /// The writer takes no more: a limit is reached, or the file failed.
    closed: AtomicBool,
    /// No worker offers any more.
    stop: AtomicBool,
    /// The run has come to its end: there is to be a file, with packets or without.
    complete: AtomicBool,
    missed: AtomicU64,
}

/// One file, which the stages of all workers write to.
pub(super) struct Sink {
    ring: Arc<Ring>,
    path: PathBuf,
    /// How many stages have joined and not left.
    users: AtomicUsize,
    writer: Mutex<Option<JoinHandle<io::Result<()>>>>,
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
            closed: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            complete: AtomicBool::new(false),
            missed: AtomicU64::new(0),
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
        Ok(Self { ring, path, users: AtomicUsize::new(0), writer: Mutex::new(Some(writer)) })
    }

    /// One more stage writes.
    pub(super) fn join(&self) {
        self.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether packets are still taken.
    #[inline]
    pub(super) fn wants_more(&self) -> bool {
        !self.ring.closed.load(Ordering::Relaxed)
    }

    /// Copies a packet for the writer. `false`: there was no free buffer.
    #[inline]
    pub(super) fn offer(&self, nanos: u64, packet: &[u8], comment: &[&str], wait: bool) -> bool {
        let mut frame = self.ring.free.pop();
        // The writer empties the ring even when the file has failed, so this ends.
        while wait && frame.is_none() {
            thread::yield_now();
            frame = self.ring.free.pop();
        }
        let Some(mut frame) = frame else { return false };
        frame.fill(nanos, packet, comment);
        // There are no more buffers than the queue has room for.
        self.ring.full.push(frame).is_ok()
    }

    /// One stage less, which left so many packets out. With the last the file is complete.
    ///
    /// # Errors
    /// What went wrong while writing; told to the last stage.
    pub(super) fn leave(&self, missed: u64) -> Result<()> {
        self.ring.missed.fetch_add(missed, Ordering::Relaxed);
        if self.users.fetch_sub(1, Ordering::AcqRel) != 1 {
            return Ok(());
        }
        self.ring.complete.store(true, Ordering::Relaxed);
        self.close()
    }

    fn close(&self) -> Result<()> {
        self.ring.stop.store(true, Ordering::Release);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(writer) = writer else { return Ok(()) };
        writer.thread().unpark();
        let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer of the capture panicked")));
        written.map_err(|source| Error::File { path: self.path.clone(), source })
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

/// The file, once there is one.
struct Output<'a> {
    spec: &'a Spec,
    writer: Option<Writer<BufWriter<File>>>,
    packets: u64,
    latest: u64,
}

impl Output<'_> {
    fn writer(&mut self) -> io::Result<&mut Writer<BufWriter<File>>> {
        if self.writer.is_none() {
            if let Some(folder) = self.spec.path.parent() {
                fs::create_dir_all(folder)?;
            }
            let out = BufWriter::with_capacity(1 << 16, File::create(&self.spec.path)?);
            self.writer = Some(Writer::new(out, &self.spec.interface, self.spec.snaplen.into())?);
        }
        self.writer.as_mut().ok_or_else(|| io::Error::other("no file"))
    }

    /// Writes a packet. `false`: a limit is reached, and it was not written.
    fn packet(&mut self, record: &Record<'_>) -> io::Result<bool> {
        let (max_packets, max_bytes) = (self.spec.max_packets, self.spec.max_bytes);
        let packets = self.packets;
        let writer = self.writer()?;
        if packets >= max_packets || writer.written() + record.size() + STATISTICS > max_bytes {
            return Ok(false);
        }
        writer.packet(record)?;
        self.packets += 1;
        self.latest = self.latest.max(record.nanos);
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), Writer::flush)
    }
}

/// Writes what workers offer, until they stop. After a failure it only empties the ring, so that none has to wait.
fn drain(ring: &Ring, spec: &Spec) -> io::Result<()> {
    let mut output = Output { spec, writer: None, packets: 0, latest: 0 };
    let mut fault = Ok(());
    loop {
        let stopped = ring.stop.load(Ordering::Acquire);
        while let Some(frame) = ring.full.pop() {
            if !ring.closed.load(Ordering::Relaxed) {
                let went_on = output.packet(&frame.record());
                ring.closed.store(!matches!(went_on, Ok(true)), Ordering::Relaxed);
                fault = fault.and(went_on.map(|_| ()));
            }
            // It came from there.
            let _ = ring.free.push(frame);
        }
        // What was offered before the stop has been seen by now.
        if stopped {
            break;
        }
        if fault.is_ok() {
            // Whoever reads along sees what there is.
            fault = output.flush();
            ring.closed.fetch_or(fault.is_err(), Ordering::Relaxed);
        }
        thread::park_timeout(REST);
    }
    fault?;
    if output.writer.is_none() && !ring.complete.load(Ordering::Relaxed) {
        return Ok(());
    }
    let (packets, latest) = (output.packets, output.latest);
    let missed = ring.missed.load(Ordering::Relaxed);
    output.writer()?.finish(latest, packets + missed, missed)
}
