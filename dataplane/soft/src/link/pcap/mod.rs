//! A link that plays a capture file and writes sent frames to a capture file.
//!
//! The input is read completely when the device is created. All queues of the port share the output under a lock. The
//! output is for inspection, not for speed.

mod capture;
pub(super) mod config;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SoftCounters;
use crate::counters::Counting;
use crate::link::reel::Reel;
use crate::link::{Link, Sent, Wire};
use crate::memory::Slots;
use crate::rss::Rss;
use dataplane_core::clock::{ClockSource, HostClock, Timebase};
use dataplane_core::error::{Error, Result};
use dataplane_core::file::{LockedFile, Readers};
use dataplane_core::mem::SlotLayout;
use dataplane_core::units::{Nanos, Ticks};
use dataplane_core::verbs::{QpSpec, WcStatus};

pub use capture::Capture;
use capture::Writer;

/// Minimum interval between two periodic flushes of the output.
const FLUSH: Duration = Duration::from_secs(1);

/// Playback speed of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// As fast as the worker receives the frames.
    #[default]
    Fast,
    /// According to the timestamps in the file.
    File,
}

/// The capture files of a device.
#[derive(Clone, Debug)]
pub struct PcapSpec {
    /// Input file, pcap or pcapng. `None` means no input.
    pub input: Option<PathBuf>,
    /// Output file for sent frames. A name that ends in `.pcap` or `.cap` selects pcap, any other name pcapng. `None`
    /// means no output.
    pub output: Option<PathBuf>,
    /// The users that may read the output.
    pub readers: Readers,
    /// The number of times to play the input. `None` means repeat indefinitely.
    pub times: Option<u64>,
    /// Playback speed.
    pub pace: Pace,
    /// Maximum number of bytes of a frame in the output. The original length is also recorded.
    pub snaplen: u32,
}

impl Default for PcapSpec {
    fn default() -> Self {
        Self { input: None, output: None, readers: Readers::Owner, times: Some(1), pace: Pace::Fast, snaplen: 262_144 }
    }
}

/// The open files.
#[derive(Debug)]
pub(crate) struct Files {
    spec: PcapSpec,
    capture: Capture,
    /// The lock on the input file. The content is in memory, but the lock keeps other dataplane programs from writing
    /// the file.
    _input: Option<LockedFile>,
    output: Option<Mutex<Output>>,
}

#[derive(Debug)]
struct Output {
    path: PathBuf,
    writer: Writer,
    failed: Option<io::Error>,
    /// The number of sent frames that are missing in the file because of the failure.
    lost: u64,
    /// The time of the last periodic flush. A full buffer is also flushed in between.
    flushed: Instant,
}

impl Output {
    fn error(&self) -> Option<Error> {
        let failed = self.failed.as_ref()?;
        // Return a copy of the error, because later calls return the same error.
        let lost = format!("{failed}: {} sent packets are missing in the file", self.lost);
        Some(Error::File { path: self.path.clone(), source: io::Error::new(failed.kind(), lost) })
    }
}

impl Files {
    pub(super) fn open(spec: &PcapSpec) -> Result<Self> {
        let (capture, input) = match &spec.input {
            None => (Capture::default(), None),
            Some(path) => {
                let file = LockedFile::input(path).map_err(|source| Error::File { path: path.clone(), source })?;
                let capture = Capture::load(&file);
                (capture.map_err(|reason| Error::Wire(format!("{}: {reason}", path.display())))?, Some(file))
            }
        };
        let output = spec.output.clone().map(|path| match Writer::create(&path, spec.readers, spec.snaplen) {
            Ok(writer) => Ok(Mutex::new(Output { path, writer, failed: None, lost: 0, flushed: Instant::now() })),
            Err(source) => Err(Error::File { path, source }),
        });
        Ok(Self { spec: spec.clone(), capture, _input: input, output: output.transpose()? })
    }

    fn damage(&self) -> Option<Error> {
        let (damage, path) = (self.capture.damage.as_ref()?, self.spec.input.as_ref()?);
        let played = match self.capture.len() {
            0 => "no frame was played".to_owned(),
            1 => "the only frame that precedes this byte was played".to_owned(),
            frames => format!("the {frames} frames that precede this byte were played"),
        };
        let path = path.display();
        Some(Error::Wire(format!("{path}: damaged at byte {}: {}; {played}", damage.offset, damage.reason)))
    }
}

impl<End: From<Player>> Link<End> for Files {
    fn end(self: Arc<Self>, spec: &QpSpec, rss: &Arc<Rss>, clock: &HostClock) -> End {
        Player::new(self, spec.queue, rss, clock.clone()).into()
    }

    /// Returns the error of the input, or the error of the output if the input has none. [`Link::finish`] also returns
    /// the error of the output.
    fn error(&self) -> Option<Error> {
        self.damage().or_else(|| self.output.as_ref().and_then(|output| lock(output).error()))
    }

    /// Adds the number of sent frames that are missing in the output.
    fn count(&self, into: &mut SoftCounters) {
        into.tx_lost += self.output.as_ref().map_or(0, |output| lock(output).lost);
    }

    /// Flushes the output if the last flush was long ago. Users can then read the output while the port runs, and a
    /// killed program loses few frames.
    fn drive(&self) {
        let Some(output) = &self.output else { return };
        attempt(output, |output| {
            if output.flushed.elapsed() < FLUSH {
                return Ok(());
            }
            output.flushed = Instant::now();
            if output.writer.is_new() { Ok(()) } else { output.writer.flush() }
        });
    }

    fn finish(&self) -> Result<()> {
        let Some(output) = &self.output else { return Ok(()) };
        attempt(output, |output| output.writer.flush());
        lock(output).error().map_or(Ok(()), Err)
    }
}

/// Calls `work` unless an earlier call failed. Returns whether all calls succeeded.
fn attempt(output: &Mutex<Output>, work: impl FnOnce(&mut Output) -> io::Result<()>) -> bool {
    let mut locked = lock(output);
    if locked.failed.is_some() {
        return false;
    }
    let Err(error) = work(&mut locked) else { return true };
    let message = format!("cannot write {}: {error}, further packets are dropped", locked.path.display());
    locked.lost = locked.writer.abandon();
    locked.failed = Some(error);
    // Log without the lock, because the logger of the program may call this module.
    drop(locked);
    tracing::error!("{message}");
    false
}

fn lock(output: &Mutex<Output>) -> std::sync::MutexGuard<'_, Output> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Playback state of one queue, with the frames that hash to the queue.
#[derive(Debug)]
pub(crate) struct Player {
    files: Arc<Files>,
    reel: Reel,
    /// The number of remaining frames. `u64::MAX` means unlimited.
    left: u64,
    clock: HostClock,
    timebase: Timebase,
    /// Start of the current round. `None` before the first poll of the round.
    began: Option<Ticks>,
    /// Wall-clock time at the creation of the player, and the device's ticks at the same moment.
    wall: (Nanos, Ticks),
}

impl Player {
    fn new(files: Arc<Files>, queue: (u16, u16), rss: &Rss, clock: HostClock) -> Self {
        let reel = Reel::new(&files.capture.frames, |frame| rss.queue(frame, queue.1) == queue.0);
        let timebase = clock.timebase();
        let wall = match timebase.source {
            ClockSource::Virtual => Nanos(0),
            _ => Nanos(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)),
        };
        let left = match (reel.numbers().len() as u64, files.spec.times) {
            (0, _) => 0,
            (_, None) => u64::MAX,
            (frames, Some(times)) => frames.saturating_mul(times),
        };
        let wall = (wall, clock.now());
        Self { files, reel, left, clock, timebase, began: None, wall }
    }

    /// Returns a lower bound on the number of frames that are due.
    fn due(&mut self) -> u64 {
        if self.left == 0 {
            return 0;
        }
        match self.files.spec.pace {
            Pace::Fast => self.left,
            Pace::File => {
                let now = self.clock.now();
                let began = *self.began.get_or_insert(now);
                // The time is relative to the first frame of the whole capture, so that all queues keep the same pace.
                let time = self.files.capture.time(self.reel.next() as usize).0;
                let after = time.saturating_sub(self.files.capture.time(0).0);
                u64::from(self.timebase.between(began, now).0 >= after)
            }
        }
    }

    #[inline]
    fn pass(&mut self, frames: u64) {
        if self.left != u64::MAX {
            self.left -= frames;
        }
    }
}

impl Wire for Player {
    fn ended(&self) -> bool {
        self.left == 0
    }

    fn backlog(&mut self) -> u64 {
        self.due()
    }

    fn take(&mut self, _: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool {
        if self.due() == 0 {
            return false;
        }
        let (frame, last) = self.reel.take(&self.files.capture.frames);
        deliver(frame, None);
        if last {
            self.began = None;
        }
        self.pass(1);
        true
    }

    /// Returns whether several frames can be written to slots of this layout in one call of [`Wire::write`]. Playback
    /// must be at full speed, and every frame must fit in a slot.
    fn bind(&mut self, layout: SlotLayout) -> bool {
        self.files.spec.pace == Pace::Fast && self.reel.lengths().all(|length| length <= layout.room() as usize)
    }

    fn discards(&self) -> bool {
        self.files.output.is_none()
    }

    #[inline]
    fn write(&mut self, slots: &Slots, part: &[u32], lengths: &mut [u32]) -> u64 {
        self.pass(part.len() as u64);
        self.reel.write(&self.files.capture.frames, slots, part, lengths)
    }

    fn send(&mut self, frame: &[u8], _: &Counting) -> Result<Sent, WcStatus> {
        let Some(output) = &self.files.output else { return Ok(Sent::Gone) };
        let time = Nanos(self.wall.0.0 + self.timebase.between(self.wall.1, self.clock.now()).0);
        match attempt(output, |output| output.writer.write(frame, time)) {
            true => Ok(Sent::Gone),
            false => Err(WcStatus::GeneralErr),
        }
    }
}
