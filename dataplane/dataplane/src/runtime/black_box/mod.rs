//! The black box: the last bursts of each worker in memory, and the files with these bursts.
//!
//! Each worker writes its bursts into a ring ([`ring`]). After an event such as a panic, a separate thread reads the
//! rings of all workers and writes a file ([`file`]). Without `[runtime.black_box]` in the config, a worker has no
//! recorder, and runs a loop that was compiled without recording.

mod file;
mod ring;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::config;
use crate::runtime::worker_info::WorkerInfo;
use dataplane_core::error::{Error, Result, THREAD_REMEDY};
use dataplane_core::file::{LockedFile, Readers, create_folders};

use self::file::Description;
pub(crate) use self::file::{BlackBoxFile, Cause, CauseKind, PROGRAM, PacketPlace, PanickedBatch, RecordedPacket};
pub(crate) use self::ring::Recorder;
use self::ring::{BurstRing, RingSize, WorkerBursts};

/// The maximum number of files that a run writes without a request. A worker that stalls again and again must not fill
/// the disk.
const MAX_FILES: u32 = 16;

/// The rings of all workers, and the channel to the thread that writes files.
pub(crate) struct BlackBox {
    size: RingSize,
    folder: PathBuf,
    /// The path of the config with which the run started.
    config: String,
    /// The overrides of the config, as options `--set` of a command line.
    overrides: String,
    rings: Box<[Mutex<Option<Arc<BurstRing>>>]>,
    messages: Sender<WriterMessage>,
}

/// An event after which the black box is written.
pub(crate) struct BlackBoxEvent {
    pub(crate) cause: Cause,
    /// The bursts of the worker `cause.worker` at the time of the event. Without this copy, a worker that continues
    /// after a panic could overwrite the bursts before [`BlackBox::file`] reads the ring. `None` after a stall and for a
    /// request: [`BlackBox::file`] then reads the rings of all workers.
    pub(crate) bursts: Option<WorkerBursts>,
    /// The batch of the stage that panicked.
    pub(crate) batch: PanickedBatch,
}

/// A message to the thread that writes files.
pub(crate) enum WriterMessage {
    Write(Box<BlackBoxEvent>),
    End,
}

impl std::fmt::Debug for BlackBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlackBox").field("size", &self.size).field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl BlackBox {
    /// Creates a black box without rings. `burst` is the maximum number of packets of a burst. The second result is for
    /// [`BlackBoxWriter::start`].
    pub(crate) fn new(
        settings: &config::BlackBox,
        source: &config::Source,
        burst: usize,
        workers: usize,
    ) -> (Arc<Self>, Receiver<WriterMessage>) {
        let (messages, receiver) = mpsc::channel();
        let size = RingSize { bursts: settings.bursts as usize, packets: burst, bytes: settings.bytes as usize };
        let rings = (0..workers).map(|_| Mutex::default()).collect();
        let (folder, config) = (source.resolve(&settings.folder), source.path().display().to_string());
        let overrides = source.overrides().map(|one| format!(" --set '{}'", one.replace('\'', r"'\''"))).collect();
        (Arc::new(Self { size, folder, config, overrides, rings, messages }), receiver)
    }

    /// Creates the ring of a worker, and the recorder that writes the ring. Must be called on the worker's thread, so
    /// that the memory of the ring is near the worker.
    pub(crate) fn recorder(&self, worker: usize, info: &Arc<WorkerInfo>) -> Recorder {
        let recorder = Recorder::new(worker, self.size, info.clone());
        if let Some(place) = self.rings.get(worker) {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(recorder.ring().clone());
        }
        recorder
    }

    /// Removes the ring of a worker that a change has removed, so that later files lack the bursts of this worker.
    pub(crate) fn remove(&self, worker: usize) {
        if let Some(place) = self.rings.get(worker) {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Lets the thread of the [`BlackBoxWriter`] write a file. Does not wait for the file.
    #[cold]
    pub(crate) fn write_after(&self, event: BlackBoxEvent) {
        // The thread ends after all workers, so sending cannot fail.
        let _ = self.messages.send(WriterMessage::Write(Box::new(event)));
    }

    /// Returns a file with the bursts of all workers.
    pub(crate) fn file(&self, event: BlackBoxEvent) -> Vec<u8> {
        let BlackBoxEvent { cause, mut bursts, batch } = event;
        let known = bursts.as_ref().map(|bursts| bursts.worker);
        let read = |(worker, ring): (usize, &Mutex<Option<Arc<BurstRing>>>)| match Some(worker) == known {
            true => bursts.take(),
            false => Some(ring.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.read(worker)),
        };
        let workers: Vec<WorkerBursts> = self.rings.iter().enumerate().filter_map(read).collect();
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let description = Description::new(&self.config, nanos, cause);
        file::encode(&description, &workers, &batch, self.size.bytes as u32)
    }
}

impl BlackBoxEvent {
    /// Returns the event for the request of a client.
    pub(crate) fn request() -> Self {
        let message = "a client requested the file".to_owned();
        Self::without_batch(Cause { kind: CauseKind::Request, worker: None, stage: None, message })
    }

    /// Returns the event of a worker that makes no progress.
    pub(crate) fn stall(worker: usize, stage: Option<String>, message: &str) -> Self {
        let kind = CauseKind::Stall;
        Self::without_batch(Cause { kind, worker: Some(worker), stage, message: message.to_owned() })
    }

    fn without_batch(cause: Cause) -> Self {
        Self { cause, bursts: None, batch: PanickedBatch::default() }
    }
}

/// The thread that writes files. Dropping this value ends the thread after the last file is complete.
pub(crate) struct BlackBoxWriter {
    black_box: Arc<BlackBox>,
    thread: Option<JoinHandle<()>>,
}

impl BlackBoxWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started.
    pub(crate) fn start(black_box: &Arc<BlackBox>, messages: Receiver<WriterMessage>) -> Result<Self> {
        let shared = black_box.clone();
        let work = move || {
            let mut number = 0;
            while let Ok(WriterMessage::Write(event)) = messages.recv() {
                number += 1;
                write(&shared, *event, number);
            }
        };
        let thread = thread::Builder::new().name("black-box".to_owned()).spawn(work);
        let thread = thread.map_err(|error| {
            Error::Topology(format!("cannot start the black box thread: {error}; help: {THREAD_REMEDY}"))
        })?;
        Ok(Self { black_box: black_box.clone(), thread: Some(thread) })
    }
}

impl Drop for BlackBoxWriter {
    fn drop(&mut self) {
        let _ = self.black_box.messages.send(WriterMessage::End);
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

/// Writes the file with this number, and logs its name or the error.
fn write(black_box: &BlackBox, event: BlackBoxEvent, number: u32) {
    if number > MAX_FILES {
        if number == MAX_FILES + 1 {
            tracing::warn!(
                "the black box writes no further files: this run has written {MAX_FILES} files; help: run `dataplane \
                 black-box -w FILE` to write a file on request"
            );
        }
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let time: String = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(now)).to_string();
    let time = time.replace(['-', ':'], "");
    let path = black_box.folder.join(format!("black-box-{time}-{}-{number}.pcapng", std::process::id()));
    match write_file(&path, &black_box.file(event)) {
        Ok(()) => tracing::warn!(
            "the black box is in {path}; help: run `dataplane explain {config}{overrides} --black-box {path}`",
            path = path.display(),
            config = black_box.config,
            overrides = black_box.overrides
        ),
        Err(error) => tracing::error!(
            "the black box cannot be written: {}: {error}; help: set `folder` in [runtime.black_box] to a folder in which \
             this user can write, on a disk with free space",
            path.display()
        ),
    }
}

fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    create_folders(path)?;
    let mut file = LockedFile::output(path, Readers::Owner)?;
    let written = file.truncate().and_then(|()| file.write_all(content)).and_then(|()| file.sync_all());
    if written.is_err() {
        // Ignore an error of the removal: `explain` can read an incomplete file up to its end.
        let _ = std::fs::remove_file(path);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_are_quoted_for_a_shell() {
        let settings = config::BlackBox { folder: PathBuf::from("box"), bursts: 1, bytes: 16 };
        let overrides = [("runtime.burst", "8"), ("port.a.link.input", "'it.pcap'")];
        let overrides = overrides.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let (black_box, _) = BlackBox::new(&settings, &config::Source::new("x.toml", "", &overrides), 1, 1);
        let expected = r" --set 'runtime.burst=8' --set 'port.a.link.input='\''it.pcap'\'''";
        assert_eq!(black_box.overrides, expected);
    }
}
