//! Packets into a file.

mod files;
mod pcapng;
mod ring;
mod sink;

use std::borrow::Borrow;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::pipeline::Cause;
use crate::prelude::*;
use files::{Rotation, Spec};
use ring::Frame;
use sink::{Sink, Tap};

/// Writes the packets that pass to a pcapng file, with nanosecond time stamps; they all go on.
///
/// A stage that names it as its `drops` has the packets that it drops written as well, each with `stage.reason` as its
/// comment. A capture of drops alone needs no packets to pass.
///
/// Workers only copy packets into buffers; a thread of its own writes them, a burst of each worker in turn: in the file packets
/// of one worker are in order, those of several nearly so. When all buffers of its worker are full the packet goes
/// on without being written and is counted as `missed`. With `lossless` the worker waits for a buffer instead: right
/// for offline runs, wrong where packets arrive at their own pace. A capture that fails, as on a full disk, says so at
/// once and stops writing but not the packets, which are counted as `missed`, and the run ends with the error. Those that
/// were `taken` before and are not in the file for sure are counted as `lost`.
///
/// With `rotate_bytes` or `rotate_seconds` there is one file after another, each complete in itself. Their names are as
/// those of Wireshark's `dumpcap`, with a number and the date of the first packet in UTC: `out_00001_20231114221320.pcapng`.
/// Of those of this run as many stay as `keep` says; an old one goes when the new one has begun. After a failure the next
/// file is tried a second later, and then ever more rarely, up to a minute; the one that failed is cut to what is whole.
///
/// The time stamps are those that packets were received with; the description of a file's interface names the clock that
/// they are of, and where there are several, there is an interface for each.
///
/// ```toml
/// [[pipeline.stage]]
/// name  = "edge"
/// use   = "acl"
/// rules = []
/// drops = "denied"
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
    /// The file, relative to the config: a regular one, or a device that takes all, such as `/dev/null`. An old one is replaced
    /// when the first packet comes, or the run ends; one that another part of the run, or another run, writes or plays is
    /// left alone, by whatever name, and the capture fails.
    file: PathBuf,
    /// The most bytes of a packet that are written: 1 to 65,535.
    #[serde(default = "whole")]
    snaplen: u16,
    /// A comment on every packet that was not dropped, of at most 128 bytes.
    comment: Option<String>,
    /// Ends the capture after so many packets.
    max_packets: Option<u64>,
    /// Ends the capture before the file has more than so many bytes, those of its headers included; all files together.
    max_bytes: Option<u64>,
    /// Begins a further file before one has more than so many bytes, 4,096 or more.
    rotate_bytes: Option<u64>,
    /// Begins a further file with the first packet that comes so many seconds after the first of the file before it.
    rotate_seconds: Option<u64>,
    /// How many files stay when there is one after another; the oldest goes first. Absent: all of them.
    keep: Option<usize>,
    /// How many packets of each worker may wait to be written: 1 to 65,536.
    #[serde(default = "buffers")]
    buffers: usize,
    /// Whether a worker waits when all buffers are full, instead of leaving the packet out.
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
}

fn whole() -> u16 {
    u16::MAX
}

fn buffers() -> usize {
    1024
}

impl Capture {
    /// Copies packets for the writer; of those that were dropped, `cause` says why.
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
            let nanos = ctx.epoch.0.saturating_add(ctx.nanos(packet.stamp()));
            Frame::new(buffer, nanos, packet.stamp().source(), packet.data(), comment)
        });
        self.taken += taken;
        self.missed += missed;
    }
}

impl Capture {
    /// When there is a further file, if ever.
    fn rotation(&self) -> Result<Option<Rotation>, Problem> {
        if self.rotate_bytes.is_none() && self.rotate_seconds.is_none() {
            return match self.keep {
                None => Ok(None),
                Some(_) => {
                    let problem = Problem::at("keep", "there is one file only");
                    Err(problem.help("add `rotate_bytes` or `rotate_seconds`, or take `keep` out"))
                }
            };
        }
        if let Some(bytes) = self.rotate_bytes.filter(|bytes| *bytes < 4096) {
            return Err(Problem::at("rotate_bytes", format!("{bytes} bytes are too few")).help("4096 or more"));
        }
        if self.rotate_seconds == Some(0) {
            return Err(Problem::at("rotate_seconds", "0 seconds are too few").help("1 or more"));
        }
        if self.keep == Some(0) {
            return Err(Problem::at("keep", "0 files are none").help("1 or more"));
        }
        Ok(Some(Rotation {
            bytes: self.rotate_bytes.unwrap_or(u64::MAX),
            nanos: self.rotate_seconds.map_or(u64::MAX, |seconds| seconds.saturating_mul(1_000_000_000)),
            keep: self.keep.unwrap_or(usize::MAX),
        }))
    }
}

impl Stage for Capture {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        self.take(ctx, batch.iter_mut(), None);
    }

    fn observes_drops() -> bool {
        true
    }

    fn observe_drop(&mut self, ctx: &Ctx, packet: &Packet<'_>, cause: Cause<'_>) {
        self.take(ctx, std::iter::once(packet), Some(cause));
    }

    fn needs(&self) -> Facts {
        Facts::STAMP
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.snaplen == 0 {
            return Err(Problem::at("snaplen", "0 bytes of a packet are none").help("1 to 65535"));
        }
        if !(1..=65_536).contains(&self.buffers) {
            let problem = Problem::at("buffers", format!("{} buffers are not to be had", self.buffers));
            return Err(problem.help("1 to 65536"));
        }
        if let Some(comment) = self.comment.as_ref().filter(|comment| comment.len() > ring::COMMENT) {
            let problem = Problem::at("comment", format!("{} bytes are too many", comment.len()));
            return Err(problem.help(format!("{} at most", ring::COMMENT)));
        }
        let rotation = self.rotation()?;
        let path = setup.path(&self.file);
        setup.claim(&path, "file")?;
        if setup.is_offline() {
            return Ok(());
        }
        let spec = Spec {
            path,
            interface: setup.stage().to_owned(),
            snaplen: self.snaplen,
            buffers: self.buffers,
            max_packets: self.max_packets.unwrap_or(u64::MAX),
            max_bytes: self.max_bytes.unwrap_or(u64::MAX),
            rotation,
        };
        self.tap = Some(setup.shared(|_| Sink::start(spec))?.join());
        Ok(())
    }

    fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        report("taken", self.taken);
        report("missed", self.missed);
        report("lost", self.lost);
    }

    fn finish(&mut self) -> crate::error::Result<()> {
        let Some(tap) = self.tap.take() else { return Ok(()) };
        let (lost, done) = tap.leave();
        self.lost = lost;
        done
    }
}

#[cfg(test)]
mod tests;
