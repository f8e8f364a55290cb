//! The connection between workers and file: a ring of buffers for each worker, and the thread that writes the
//! buffers.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::files::{Files, Spec};
use super::ring::{Buffer, CapturedFrame, Inlet, Outlet, ring};
use dataplane_core::error::{Error, Result, THREAD_REMEDY};
use dataplane_core::file;
use dataplane_core::pipeline::{Problem, RunStop, StopSignal, Task, thread_name};

/// How long the writer sleeps when there is nothing to write.
const IDLE_SLEEP: Duration = Duration::from_millis(1);

/// The maximum number of bursts written from each ring before the file is flushed for concurrent readers.
const MAX_ROUNDS: usize = 256;

/// The first and the longest delay between a failure and the next attempt of a capture with rotation. The delay
/// doubles with each failed attempt.
const RETRY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The writer accepts packets.
const OPEN: u8 = 0;
/// A limit is reached, and the writer accepts no more packets.
const FULL: u8 = 1;
/// Writing failed, and packets are counted as missed.
const FAILED: u8 = 2;

/// The state that the workers and the writer share.
struct Shared {
    /// Rings of new workers that the writer thread has not picked up yet.
    joined: Mutex<Vec<Outlet>>,
    /// `OPEN`, `FULL` or `FAILED`.
    state: AtomicU8,
    /// Whether all workers have stopped offering packets.
    stop: AtomicBool,
    /// Whether a worker has used the capture. The writer then creates a file even without packets.
    is_used: AtomicBool,
    missed: AtomicU64,
    /// The number of packets that workers copied for the writer, but that the writer did not write. These packets also
    /// count as missed.
    lost: AtomicU64,
}

impl Shared {
    fn lose(&self, packets: u64) {
        self.missed.fetch_add(packets, Ordering::Relaxed);
        self.lost.fetch_add(packets, Ordering::Relaxed);
    }
}

/// The writer thread of one capture, which the stages of all workers share.
pub(super) struct Sink {
    shared: Arc<Shared>,
    /// The name of the capture in log messages.
    interface: String,
    snaplen: u16,
    buffers: usize,
    /// The number of stages that have joined and not left.
    users: AtomicUsize,
    writer: Arc<Mutex<Option<WriterThread>>>,
}

/// The writer thread. The result is the first write error.
type WriterThread = JoinHandle<Result<()>>;

/// Starts the writer thread, and closes the file when a change has removed the capture.
pub(super) struct WriterTask {
    shared: Arc<Shared>,
    spec: Spec,
    writer: Arc<Mutex<Option<WriterThread>>>,
}

impl Task for WriterTask {
    fn start(&mut self) -> Result<()> {
        let (shared, spec) = (self.shared.clone(), self.spec.clone());
        let name = thread_name(&format!("capture {}", spec.interface));
        let writer =
            thread::Builder::new().name(name.clone()).spawn(move || drain(&shared, &spec)).map_err(|error| {
                Error::Topology(format!("cannot start the thread `{name}`: {error}; help: {THREAD_REMEDY}"))
            })?;
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer);
        Ok(())
    }

    /// Waits until no worker uses the capture any more, and closes the file. At the end of the run, the last stage has
    /// already closed the file ([`Tap::leave`]).
    fn run(&mut self, stop: &StopSignal) -> Result<()> {
        stop.wait(Duration::MAX);
        close(&self.shared, &self.writer)
    }
}

impl Sink {
    /// Creates a sink, and the task that starts its writer. The writer creates the file with the first packet, or at
    /// the end of the run.
    pub(super) fn new(spec: Spec) -> std::result::Result<(Self, WriterTask), Problem> {
        let path = spec.path.clone();
        file::can_be_written(&path).map_err(|error| {
            let message = format!("{} cannot be written: {error}", path.display());
            if let Some(help) = file::host_remedy(&error) {
                return Problem::host_problem("file", message).help(help);
            }
            // If the path is empty, the message starts with a space.
            let problem = Problem::at("file", message.trim_start());
            problem.help("set `file` to a writable file in a writable folder")
        })?;
        let shared = Arc::new(Shared {
            joined: Mutex::new(Vec::new()),
            state: AtomicU8::new(OPEN),
            stop: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            missed: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let writer = Arc::default();
        let (users, snaplen, buffers) = (AtomicUsize::new(0), spec.snaplen, spec.buffers);
        let interface = spec.interface.clone();
        let task = WriterTask { shared: shared.clone(), spec, writer: Arc::clone(&writer) };
        Ok((Self { shared, interface, snaplen, buffers, users, writer }, task))
    }

    /// Adds the stage of one more worker. The stage does not wait for buffers once `run` is set.
    pub(super) fn join(self: Arc<Self>, run: RunStop) -> Tap {
        let (inlet, outlet) = ring(self.buffers, self.snaplen);
        let mut joined = self.shared.joined.lock().unwrap_or_else(PoisonError::into_inner);
        // If the writer has ended, drop its side of the rings. Otherwise a lossless capture would wait indefinitely.
        let is_closed = self.shared.stop.load(Ordering::Acquire);
        if !is_closed {
            joined.push(outlet);
        }
        drop(joined);
        if is_closed {
            tracing::warn!(
                stage = self.interface,
                "capture {}: the file is closed, because a removed worker ended late; all packets count as missed; help: \
                 apply a config without the stage, and then a config with the stage",
                self.interface
            );
        }
        self.users.fetch_add(1, Ordering::Relaxed);
        Tap { sink: self, inlet, run, is_used: false, has_left: false }
    }
}

/// Ends the writer thread, which completes the file. Returns the first write error, unless an earlier call has returned
/// the error.
fn close(shared: &Shared, writer: &Mutex<Option<WriterThread>>) -> Result<()> {
    let writer = writer.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(writer) = writer else { return Ok(()) };
    shared.stop.store(true, Ordering::Release);
    writer.thread().unpark();
    writer.join().unwrap_or_else(|_| Err(Error::Wire("the writer of the capture panicked".to_owned())))
}

/// The connection of one worker's stage to the writer.
pub(super) struct Tap {
    sink: Arc<Sink>,
    inlet: Inlet,
    run: RunStop,
    is_used: bool,
    has_left: bool,
}

impl Tap {
    /// Returns the number of packets of the worker that wait to be written, and the largest number so far.
    pub(super) fn waiting(&self) -> [usize; 2] {
        self.inlet.waiting()
    }

    /// Reports that a worker uses the capture.
    pub(super) fn mark_used(&mut self) {
        if !std::mem::replace(&mut self.is_used, true) {
            self.sink.shared.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Copies packets for the writer. With `wait`, waits for free buffers until the run is stopped. Returns how many
    /// packets were taken, and how many were missed because no buffer was free or because writing the file failed.
    /// Returns `(0, 0)` once a limit is reached.
    #[inline]
    pub(super) fn offer<P>(
        &mut self,
        mut packets: impl ExactSizeIterator<Item = P>,
        wait: bool,
        mut frame: impl FnMut(P, Buffer) -> CapturedFrame,
    ) -> (u64, u64) {
        let shared = &*self.sink.shared;
        let mut taken = 0;
        match shared.state.load(Ordering::Relaxed) {
            OPEN => loop {
                taken += self.inlet.put(&mut packets, &mut frame) as u64;
                // The writer empties the ring even after the file has failed. A writer that is stuck in a system call
                // empties nothing, so a stop also ends this loop.
                if packets.len() == 0 || !wait || self.inlet.is_abandoned() || self.run.is_set() {
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

    /// Removes the stage of one worker. The last stage to leave closes the file. For the last stage, returns the first
    /// write error, and the number of packets of all stages that were copied but then not written.
    pub(super) fn leave(&mut self) -> (u64, Result<()>) {
        let Sink { shared, users, writer, .. } = &*self.sink;
        shared.is_used.store(true, Ordering::Relaxed);
        self.has_left = true;
        if users.fetch_sub(1, Ordering::AcqRel) != 1 {
            return (0, Ok(()));
        }
        let closed = close(shared, writer);
        (shared.lost.load(Ordering::Relaxed), closed)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if !self.has_left {
            self.sink.users.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Writes the packets of the workers until all workers have stopped. After a failure, only empties the rings, so that
/// no worker waits. A capture with rotation continues with the next file after a delay. Returns the first failure.
fn drain(shared: &Shared, spec: &Spec) -> Result<()> {
    let mut outlets = Vec::new();
    let mut files = Files::new(spec);
    let mut faults = Faults {
        shared,
        spec,
        first: Ok(()),
        failed: None,
        reported: false,
        wait: RETRY[0],
        last_attempt: Instant::now(),
    };
    loop {
        let stopped = shared.stop.load(Ordering::Acquire);
        outlets.append(&mut shared.joined.lock().unwrap_or_else(PoisonError::into_inner));
        // Write one burst from each ring in turn. The number of rounds is limited, so that the code after this loop
        // also runs.
        let mut take = |outlet: &mut Outlet| outlet.take(|frame| faults.write(&mut files, frame));
        let mut rounds = 0;
        let mut take_all = || outlets.iter_mut().map(&mut take).sum::<usize>() > 0;
        while take_all() && (stopped || rounds < MAX_ROUNDS) {
            rounds += 1;
        }
        // Free the buffers of workers that were removed, and of stages that were prepared but never ran.
        outlets.retain(|outlet| !outlet.is_finished());
        // All packets that were offered before the stop have been handled now.
        if stopped {
            break;
        }
        if faults.failed.is_some() {
            faults.retry();
        } else {
            // Flush for programs that read the file while it is written.
            match files.flush() {
                Ok(()) if files.is_open() => faults.recovered(&files),
                Ok(()) => {}
                Err(error) => faults.fail(&mut files, error),
            }
        }
        if rounds < MAX_ROUNDS {
            thread::park_timeout(IDLE_SLEEP);
        }
    }
    shared.joined.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let missed = shared.missed.load(Ordering::Relaxed);
    let empty = faults.first.is_ok() && shared.is_used.load(Ordering::Relaxed);
    if faults.failed.is_none()
        && let Err(error) = files.finish(missed, empty)
    {
        faults.fail(&mut files, error);
    }
    faults.first
}

/// The failures of the files, and the time of the next attempt.
struct Faults<'a> {
    shared: &'a Shared,
    spec: &'a Spec,
    first: Result<()>,
    /// The time of the last failure, or `None` if a new attempt has started since.
    failed: Option<Instant>,
    /// Whether a failure was logged and its recovery was not logged yet.
    reported: bool,
    /// The delay between a failure and the next attempt.
    wait: Duration,
    /// The time of the latest attempt.
    last_attempt: Instant,
}

impl Faults<'_> {
    /// Writes a frame, unless a limit is reached or writing has failed.
    fn write(&mut self, files: &mut Files<'_>, frame: &CapturedFrame) {
        if self.failed.is_some() {
            // The worker copied the packet before the worker could see the failure.
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
        if !std::mem::replace(&mut self.reported, true) {
            tracing::error!(
                stage = self.spec.interface,
                "capture {}: cannot write {}: {source}, so packets are not written",
                self.spec.interface,
                path.display()
            );
        }
        if self.first.is_ok() {
            self.first = Err(Error::File { path, source });
        } else {
            self.wait = backoff(self.wait, self.last_attempt.elapsed());
        }
        self.failed = Some(Instant::now());
    }

    /// Starts another attempt if the delay has passed and the capture has rotation.
    fn retry(&mut self) {
        if self.spec.rotation.is_some() && self.failed.is_some_and(|since| since.elapsed() >= self.wait) {
            (self.failed, self.last_attempt) = (None, Instant::now());
            self.shared.state.store(OPEN, Ordering::Relaxed);
        }
    }

    /// Logs the recovery after a failure. Called when a file is being written.
    fn recovered(&mut self, files: &Files<'_>) {
        if std::mem::take(&mut self.reported) {
            tracing::warn!(
                stage = self.spec.interface,
                "capture {}: continues in {}",
                self.spec.interface,
                files.path().display()
            );
        }
    }
}

/// Returns the delay after a failure. `last` is the previous delay. `ran` is the time since the latest attempt started.
fn backoff(last: Duration, ran: Duration) -> Duration {
    let [shortest, longest] = RETRY;
    if ran >= longest { shortest } else { (last * 2).min(longest) }
}

#[cfg(test)]
mod tests {
    use dataplane_core::clock::ClockSource;
    use dataplane_core::file::Readers;
    use dataplane_testing::Folder;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Returns the parameters of a capture that writes `out.pcapng` in this folder.
    fn spec(folder: &Folder) -> Spec {
        Spec {
            path: folder.file("out.pcapng"),
            readers: Readers::owner_and(None).unwrap(),
            interface: "under_test".to_owned(),
            snaplen: 64,
            buffers: 4,
            max_packets: u64::MAX,
            max_bytes: u64::MAX,
            rotation: None,
        }
    }

    /// A change can add and remove workers many times, and `plan` prepares stages that never run. The writer frees the
    /// rings of these stages after it has written their packets.
    #[test]
    fn writer_frees_the_buffers_of_a_stage_that_is_gone() {
        let folder = Folder::new();
        let (sink, mut task) = Sink::new(spec(&folder)).unwrap();
        task.start().unwrap();
        let sink = Arc::new(sink);
        let mut tap = sink.clone().join(RunStop::default());
        let (mut inlet, outlet) = ring(4, 64);
        let put = inlet.put(&mut [[7; 60]; 3].iter(), |bytes, buffer| {
            CapturedFrame::new(buffer, 1, ClockSource::Virtual, bytes, &[])
        });
        assert_eq!(put, 3);
        let free = inlet.into_free();
        sink.shared.joined.lock().unwrap().push(outlet);
        let begin = Instant::now();
        while !free.is_abandoned() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the writer keeps the ring");
            thread::yield_now();
        }
        let (lost, closed) = tap.leave();
        assert_eq!((lost, closed.is_ok()), (0, true));
        let written = std::fs::read(folder.file("out.pcapng")).unwrap();
        assert_eq!(written.windows(60).filter(|bytes| *bytes == [7; 60]).count(), 3);
    }

    #[test]
    fn retry_delay_doubles_and_restarts_after_a_long_attempt() {
        let mut wait = RETRY[0];
        let waits = [(); 7].map(|()| {
            wait = backoff(wait, Duration::from_millis(3));
            wait.as_secs()
        });
        assert_eq!(waits, [2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff(wait, Duration::from_secs(60)), RETRY[0]);
    }

    /// Counts log messages.
    struct Counter(Arc<AtomicUsize>);

    impl Subscriber for Counter {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// A stuck worker that a change has removed may close the capture after a revert needs the capture again.
    #[test]
    fn stage_that_joins_a_closed_capture_does_not_wait() {
        let folder = Folder::new();
        let (sink, mut task) = Sink::new(spec(&folder)).unwrap();
        task.start().unwrap();
        let sink = Arc::new(sink);
        let mut early = sink.clone().join(RunStop::default());
        early.leave().1.unwrap();
        let messages = Arc::new(AtomicUsize::new(0));
        let mut late = tracing::subscriber::with_default(Counter(messages.clone()), || sink.join(RunStop::default()));
        assert_eq!(messages.load(Ordering::Relaxed), 1);
        let frame = |bytes: &[u8; 60], buffer| CapturedFrame::new(buffer, 1, ClockSource::Virtual, bytes, &[]);
        // More packets than buffers.
        let (taken, missed) = late.offer([[7; 60]; 9].iter(), true, frame);
        assert_eq!(taken + missed, 9);
        assert!(missed > 0);
        late.leave().1.unwrap();
    }
}
