//! A capture file comes in, a capture file goes out.
//!
//! The input is read whole when the device is made. The output is shared by all queues of the port, under a lock: it is
//! for looking at, not for speed.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::clock::{ClockSource, HostClock, Timebase};
use crate::error::{Error, Result};
use crate::file::Held;
use crate::mem::SlotLayout;
use crate::provider::WcStatus;
use crate::provider::soft::SoftCounters;
use crate::provider::soft::link::capture::{Capture, Writer};
use crate::provider::soft::link::reel::Reel;
use crate::provider::soft::memory::Slots;
use crate::provider::soft::rss::Rss;
use crate::units::{Nanos, Ticks};

/// A frame that was sent is in the output so soon, give or take what the thread takes that sees to it.
const FLUSH: Duration = Duration::from_secs(1);

/// How fast a capture is played.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As fast as receives are posted.
    #[default]
    Fast,
    /// Each frame as long after the first as it was captured, by the device's clock, and later where no receive is
    /// posted.
    File,
}

/// The capture files of a device.
#[derive(Clone, Debug)]
pub struct PcapSpec {
    /// What comes in: pcap or pcapng; `None`: nothing.
    pub input: Option<PathBuf>,
    /// Where what is sent goes: pcap where the name ends in `.pcap` or `.cap`, otherwise pcapng; `None`: nowhere.
    pub output: Option<PathBuf>,
    /// How often the input is played; `None`: for ever.
    pub times: Option<u64>,
    /// How fast.
    pub pace: Pace,
    /// The most bytes of a frame that the output keeps. How long the frame was it keeps as well.
    pub snaplen: u32,
}

impl Default for PcapSpec {
    fn default() -> Self {
        Self { input: None, output: None, times: Some(1), pace: Pace::Fast, snaplen: 262_144 }
    }
}

/// The files, open.
#[derive(Debug)]
pub(in crate::provider::soft) struct Files {
    spec: PcapSpec,
    capture: Capture,
    /// It is in memory: here it is kept from those who would write it.
    _input: Option<Held>,
    output: Option<Mutex<Output>>,
}

#[derive(Debug)]
struct Output {
    path: PathBuf,
    writer: Writer,
    failed: Option<io::Error>,
    /// Frames that had been sent when it failed and are not in the file.
    lost: u64,
    /// When what had been sent was last to be written, but for what filled the memory before.
    flushed: Instant,
}

impl Output {
    fn attempt(&mut self, work: impl FnOnce(&mut Writer) -> io::Result<()>) -> bool {
        if self.failed.is_none()
            && let Err(error) = work(&mut self.writer)
        {
            tracing::error!("{}: {error}: further packets are dropped", self.path.display());
            self.lost = self.writer.abandon();
            self.failed = Some(error);
        }
        self.failed.is_none()
    }

    fn error(&self) -> Option<Error> {
        let failed = self.failed.as_ref()?;
        // The error itself stays here, for those who ask again.
        let lost = format!("{failed}: {} packets that were sent are not in it", self.lost);
        Some(Error::File { path: self.path.clone(), source: io::Error::new(failed.kind(), lost) })
    }
}

impl Files {
    pub(super) fn open(spec: &PcapSpec) -> Result<Self> {
        let (capture, input) = match &spec.input {
            None => (Capture::default(), None),
            Some(path) => {
                let file = Held::input(path).map_err(|source| Error::File { path: path.clone(), source })?;
                let capture = Capture::load(&file);
                (capture.map_err(|reason| Error::Wire(format!("{}: {reason}", path.display())))?, Some(file))
            }
        };
        let output = spec.output.clone().map(|path| match Writer::create(&path, spec.snaplen) {
            Ok(writer) => Ok(Mutex::new(Output { path, writer, failed: None, lost: 0, flushed: Instant::now() })),
            Err(source) => Err(Error::File { path, source }),
        });
        Ok(Self { spec: spec.clone(), capture, _input: input, output: output.transpose()? })
    }

    /// What is wrong with the input, or else with the output: that is told by [`Self::finish`] as well.
    pub(super) fn error(&self) -> Option<Error> {
        self.damage().or_else(|| self.output.as_ref().and_then(|output| lock(output).error()))
    }

    fn damage(&self) -> Option<Error> {
        let (damage, path) = (self.capture.damage.as_ref()?, self.spec.input.as_ref()?);
        let (path, frames) = (path.display(), self.capture.len());
        Some(Error::Wire(format!(
            "{path}: damaged at byte {}: {}; the {frames} frames before it were played",
            damage.offset, damage.reason
        )))
    }

    /// Adds the frames that were sent and are not in the output.
    pub(super) fn count(&self, into: &mut SoftCounters) {
        into.tx_lost += self.output.as_ref().map_or(0, |output| lock(output).lost);
    }

    /// Writes what was sent since the last time, where that was long ago: for those who look at the output while the port runs,
    /// and so that little is lost with a program that is killed.
    pub(super) fn flush_now_and_then(&self) {
        let Some(output) = &self.output else { return };
        let mut output = lock(output);
        if output.flushed.elapsed() >= FLUSH {
            output.flushed = Instant::now();
            if !output.writer.is_new() {
                output.attempt(Writer::flush);
            }
        }
    }

    pub(super) fn finish(&self) -> Result<()> {
        let Some(output) = &self.output else { return Ok(()) };
        let mut output = lock(output);
        output.attempt(Writer::flush);
        output.error().map_or(Ok(()), Err)
    }
}

fn lock(output: &Mutex<Output>) -> std::sync::MutexGuard<'_, Output> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a queue plays: the frames that hash to it.
#[derive(Debug)]
pub(in crate::provider::soft) struct Player {
    files: Arc<Files>,
    reel: Reel,
    /// Frames still to come; `u64::MAX`: no end.
    left: u64,
    clock: HostClock,
    timebase: Timebase,
    /// When this round began.
    began: Option<Ticks>,
    /// The wall clock when the device's clock showed those ticks.
    wall: (Nanos, Ticks),
}

impl Player {
    pub(super) fn new(files: Arc<Files>, queue: (u16, u16), rss: &Rss, clock: HostClock) -> Self {
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

    pub(super) fn ended(&self) -> bool {
        self.left == 0
    }

    /// How many frames have come in at least.
    pub(super) fn due(&mut self) -> u64 {
        if self.ended() {
            return 0;
        }
        match self.files.spec.pace {
            Pace::Fast => self.left,
            Pace::File => {
                let now = self.clock.now();
                let began = *self.began.get_or_insert(now);
                // Since the first frame of the whole capture: queues keep their distance.
                let time = self.files.capture.time(self.reel.next() as usize).0;
                let after = time.saturating_sub(self.files.capture.time(0).0);
                u64::from(self.timebase.between(began, now).0 >= after)
            }
        }
    }

    pub(super) fn take(&mut self, deliver: impl FnOnce(&[u8])) -> bool {
        if self.due() == 0 {
            return false;
        }
        let (frame, last) = self.reel.take(&self.files.capture.frames);
        deliver(frame);
        if last {
            self.began = None;
        }
        self.pass(1);
        true
    }

    /// Whether frames can be received a run at a time into slots of this layout: at once, and each of them fits.
    pub(in crate::provider::soft) fn bind(&mut self, layout: SlotLayout) -> bool {
        self.files.spec.pace == Pace::Fast && self.reel.lengths().all(|length| length <= layout.room() as usize)
    }

    /// Whether what is sent goes nowhere.
    pub(in crate::provider::soft) fn swallows(&self) -> bool {
        self.files.output.is_none()
    }

    /// Writes frames that are due into posted slots, and their lengths. Returns their bytes.
    #[inline]
    pub(super) fn write(&mut self, slots: &Slots, part: &[u32], lengths: &mut [u32]) -> u64 {
        self.pass(part.len() as u64);
        self.reel.write(&self.files.capture.frames, slots, part, lengths)
    }

    #[inline]
    fn pass(&mut self, frames: u64) {
        if self.left != u64::MAX {
            self.left -= frames;
        }
    }

    pub(super) fn send(&mut self, frame: &[u8]) -> Result<(), WcStatus> {
        let Some(output) = &self.files.output else { return Ok(()) };
        let time = Nanos(self.wall.0.0 + self.timebase.between(self.wall.1, self.clock.now()).0);
        match lock(output).attempt(|writer| writer.write(frame, time)) {
            true => Ok(()),
            false => Err(WcStatus::GeneralErr),
        }
    }
}
