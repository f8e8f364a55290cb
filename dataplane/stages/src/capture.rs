//! `capture`: writes packets to a file.

mod files;
mod ring;
mod sink;
mod writer;

use std::borrow::Borrow;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::file::Readers;
use dataplane_core::pipeline::Cause;
use dataplane_core::prelude::*;
use dataplane_core::units::{Bytes, Period, bytes_within};
use files::{Rotation, Spec};
use ring::CapturedFrame;
use sink::{Sink, Tap};

/// Writes all packets that reach the stage to a pcapng file, with nanosecond timestamps. All packets go to the next
/// stage.
///
/// Another stage can set its key `drops` to the name of a capture. The capture then also writes the packets that the
/// other stage drops, each with the comment `STAGE.REASON`, such as `edge.denied`. If a capture writes only dropped
/// packets, no stage needs to send packets to the capture.
///
/// Workers only copy packets into buffers. A separate thread writes the buffers to the file, one burst from each worker
/// in turn. In the file, the packets of one worker are in the order in which the worker handled the packets. The
/// packets of several workers are only nearly in the order of their timestamps.
///
/// If all buffers of a worker are full, the capture does not write further packets of this worker, and counts these
/// packets as `missed`. The missed packets still go to the next stage. With `lossless = true`, the worker waits until a
/// buffer is free. A stop of the run also ends the wait. Use `lossless` for offline runs only: on a live port, a
/// waiting worker loses packets.
///
/// Each buffer needs `snaplen` bytes and about 230 more bytes. With the defaults, the buffers of one worker need 64
/// MiB. `dataplane check` prints the memory of all buffers, and refuses a capture that needs more memory than the host
/// or its control group has.
///
/// If writing fails, for example because the disk is full, the capture logs the error at once and stops writing. The
/// run continues: packets still go to the next stage, and count as `missed`. A capture that rotates files starts a new
/// file after a delay (see below). At the end of the run, the program reports the error, and its exit status is 1. The
/// counter `taken` counts packets that a worker has copied into a buffer. Of these packets, the counter `lost` counts
/// the packets that may be missing from the file because of the failure.
///
/// The counter `waiting` is the number of packets that wait to be written. `waiting_max` is the largest number so far. If
/// this number is near `buffers`, increase `buffers`. With several workers, `waiting_max` is the sum of the largest
/// numbers of the workers.
///
/// With `rotate_bytes` or `rotate_time`, the capture writes a sequence of complete files. Each name has a number and
/// the UTC time of the first packet, as with Wireshark's `dumpcap`: `out_00001_20231114221320.pcapng`. `keep` limits
/// the number of files of this run. If a new file exceeds this limit, the capture deletes the oldest file. If writing
/// fails, the capture truncates the file to its last complete block, and starts the next file one second later. Each
/// further failure doubles this delay, up to one minute.
///
/// Timestamps are the receive timestamps of the packets. If the timestamps come from several clocks, a file has one
/// pcapng interface for each clock. The description of the interface names the clock.
///
/// ```toml
/// [[pipeline.stage]]
/// name    = "edge"
/// use     = "acl"
/// default = "deny"
/// drops   = "denied"
///
/// [[pipeline.stage]]
/// name         = "permitted"
/// use          = "capture"
/// file         = "permitted.pcapng"
/// comment      = "permitted by edge"
/// group        = "root"
/// rotate_bytes = "100MB"
/// rotate_time  = "1m"
/// keep         = 10
/// max_bytes    = "10GB"
/// buffers      = 4096
/// lossless     = true
///
/// [[pipeline.stage]]
/// name = "out"
/// use  = "tx"
/// port = "wan"
///
/// [[pipeline.stage]]
/// name        = "denied"
/// use         = "capture"
/// file        = "denied.pcapng"
/// snaplen     = 256
/// max_packets = 10_000
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// The file to write: a regular file, or a device such as `/dev/null`. A relative path starts from the folder of
    /// the config. When the first packet arrives, the capture replaces an existing file. If no packet arrives, the
    /// capture replaces the file at the end of the run. The capture fails if another part of the run, or another run,
    /// reads or writes the same file, even through another path. No default.
    file: PathBuf,
    /// A group that may read the files, as a name in `/etc/group` or a number in quotes. The files then have mode 0640,
    /// even if the files existed before. Default: new files have mode 0600, so only the user of the program can read
    /// them.
    group: Option<String>,
    /// The maximum number of bytes written of each packet: 1 to 65,535. Default: 65,535.
    #[serde(default = "default_snaplen", deserialize_with = "bytes_within::<_, u16, 1, 65535>")]
    #[schemars(with = "Bytes", range(min = 1, max = 65535))]
    snaplen: u16,
    /// A comment of at most 128 bytes, for every packet that another stage sends to the capture. Dropped packets have
    /// the comment `STAGE.REASON` instead. Default: no comment.
    comment: Option<String>,
    /// The maximum number of packets to write. All further packets still go to the next stage. Default: no limit.
    max_packets: Option<u64>,
    /// The maximum size of all files together, such as `"1GiB"`. The size includes pcapng headers, and files that the
    /// capture has deleted because of `keep`. The capture stops writing before a packet would exceed this limit.
    /// Default: no limit.
    max_bytes: Option<Bytes>,
    /// The maximum size of one file in bytes: 4,096 or more. The capture starts a new file before a packet would exceed
    /// this limit. Default: no limit.
    rotate_bytes: Option<Bytes>,
    /// The time span of one file: `"1s"` to `"365d"`. When this time has passed since the first packet of the current
    /// file, the next packet starts a new file. Default: no limit.
    rotate_time: Option<Period>,
    /// The number of files to keep when the capture rotates files: 1 or more. The oldest file is deleted first.
    /// Default: all files.
    keep: Option<usize>,
    /// The number of packets that can wait to be written, for each worker: 1 to 65,536. Default: 1,024.
    #[serde(default = "buffers")]
    buffers: usize,
    /// Whether a worker waits when all its buffers are full. If `false`, the capture does not write further packets of
    /// this worker until a buffer is free. A stop of the run ends the wait. Default: `false`.
    #[serde(default)]
    lossless: bool,
    #[serde(skip)]
    #[schemars(skip)]
    tap: Option<Tap>,
    #[serde(skip)]
    #[schemars(skip)]
    taken: u64,
    #[serde(skip)]
    #[schemars(skip)]
    missed: u64,
    #[serde(skip)]
    #[schemars(skip)]
    lost: u64,
    /// The largest number of packets that waited to be written, set when the stage ends.
    #[serde(skip)]
    #[schemars(skip)]
    waiting_max: u64,
}

fn default_snaplen() -> u16 {
    u16::MAX
}

fn buffers() -> usize {
    1024
}

impl Capture {
    /// Copies packets for the writer. `cause` is the drop reason, or `None` for packets that were not dropped.
    #[inline]
    fn take<'p, P: Borrow<Packet<'p>>>(
        &mut self,
        ctx: &Ctx,
        packets: impl ExactSizeIterator<Item = P>,
        cause: Option<Cause<'_>>,
    ) {
        let Some(tap) = &mut self.tap else { return };
        let comment: &[&str] = match (cause, self.comment.as_deref()) {
            (Some(cause), _) => &[cause.stage, ".", cause.reason],
            (None, Some(comment)) => &[comment],
            (None, None) => &[],
        };
        let (taken, missed) = tap.offer(packets, self.lossless, |packet, buffer| {
            let packet: &Packet<'_> = packet.borrow();
            let nanos = ctx.start_wallclock.0.saturating_add(ctx.nanos(packet.stamp()));
            CapturedFrame::new(buffer, nanos, packet.stamp().source(), packet.data(), comment)
        });
        self.taken += taken;
        self.missed += missed;
    }
}

impl Capture {
    /// Returns the rotation parameters, or `None` if the capture writes one file.
    fn rotation(&self) -> Result<Option<Rotation>, Problem> {
        if self.rotate_bytes.is_none() && self.rotate_time.is_none() {
            return match self.keep {
                None => Ok(None),
                Some(_) => {
                    let problem = Problem::at("keep", "the capture writes only one file, so `keep` has no effect");
                    Err(problem.help("add `rotate_bytes` or `rotate_time`, or remove `keep`"))
                }
            };
        }
        if let Some(bytes) = self.rotate_bytes.filter(|bytes| bytes.0 < 4096) {
            return Err(
                Problem::at("rotate_bytes", format!("{bytes} is too small")).help("set `rotate_bytes` to 4096 or more")
            );
        }
        if let Some(period) = self.rotate_time.filter(|period| *period < Period::from_secs(1)) {
            return Err(Problem::at("rotate_time", format!("{period} is too short"))
                .help("set `rotate_time` to \"1s\" or longer"));
        }
        if self.keep == Some(0) {
            return Err(Problem::at("keep", "0 is too small").help("set `keep` to 1 or more"));
        }
        Ok(Some(Rotation {
            bytes: self.rotate_bytes.map_or(u64::MAX, |bytes| bytes.0),
            nanos: self.rotate_time.map_or(u64::MAX, Period::as_nanos),
            keep: self.keep.unwrap_or(usize::MAX),
        }))
    }
}

impl Stage for Capture {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        self.take(ctx, batch.iter_mut(), None);
    }

    fn tick(&mut self, _ctx: &Ctx) {
        self.tap.iter_mut().for_each(Tap::mark_used);
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if !(1..=65_536).contains(&self.buffers) {
            let problem = Problem::at("buffers", format!("{} is out of range", self.buffers));
            return Err(problem.help("set `buffers` to a value from 1 to 65536"));
        }
        if let Some(comment) = self.comment.as_ref().filter(|comment| comment.len() > ring::COMMENT) {
            let problem = Problem::at("comment", format!("{} bytes is too long", comment.len()));
            return Err(problem.help(format!("shorten the comment to at most {} bytes", ring::COMMENT)));
        }
        let rotation = self.rotation()?;
        let readers = Readers::owner_and(self.group.as_deref());
        let path = setup.path(&self.file);
        setup.declare_written_file(&path, "file")?;
        if setup.is_offline() {
            return Ok(());
        }
        let bytes = ring::memory(self.buffers, self.snaplen);
        setup.declare_worker_memory(bytes, "buffers", "reduce `buffers`, or `snaplen`")?;
        let readers = readers.map_err(|error| {
            let text = error.to_string();
            let (what, help) = text.split_once("; help: ").unwrap_or((&text, "name another group"));
            Problem::at("group", what).help(help)
        })?;
        let spec = Spec {
            path,
            readers,
            interface: setup.stage().to_owned(),
            snaplen: self.snaplen,
            buffers: self.buffers,
            max_packets: self.max_packets.unwrap_or(u64::MAX),
            max_bytes: self.max_bytes.map_or(u64::MAX, |bytes| bytes.0),
            rotation,
        };
        let sink = setup.shared_by_workers(|setup| {
            let (sink, writer) = Sink::new(spec)?;
            setup.task(&format!("capture {}", setup.stage()), writer);
            Ok(sink)
        })?;
        self.tap = Some(sink.join(setup.run_stop()));
        Ok(())
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("taken", self.taken);
        report.add("missed", self.missed);
        report.add("lost", self.lost);
        let [waiting, most] = self.tap.as_ref().map_or([0; 2], Tap::waiting);
        report.add("waiting", waiting as u64);
        report.add("waiting_max", self.waiting_max.max(most as u64));
    }

    fn info() -> StageInfo {
        StageInfo::new().gauges(&["waiting", "waiting_max"])
    }

    fn finish(&mut self) -> dataplane_core::error::Result<()> {
        let Some(mut tap) = self.tap.take() else { return Ok(()) };
        let (lost, done) = tap.leave();
        let [_, most] = tap.waiting();
        (self.lost, self.waiting_max) = (lost, most as u64);
        done
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::STAMP).observes_drops::<Self>()
    }
}

impl DropObserver for Capture {
    fn observe_drop(&mut self, ctx: &Ctx, packet: &Packet<'_>, cause: Cause<'_>) {
        self.take(ctx, std::iter::once(packet), Some(cause));
    }
}

#[cfg(test)]
mod tests;
