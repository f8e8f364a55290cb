//! The file of a capture, or one file after another.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use super::pcapng::{Record, STATISTICS, Writer};

/// What to write, and where.
#[derive(Clone)]
pub(super) struct Spec {
    pub(super) path: PathBuf,
    pub(super) interface: String,
    pub(super) snaplen: u16,
    pub(super) buffers: usize,
    /// Of all files together.
    pub(super) max_packets: u64,
    pub(super) max_bytes: u64,
    pub(super) rotation: Option<Rotation>,
}

/// When a further file is begun, and how many of them stay.
#[derive(Clone, Copy)]
pub(super) struct Rotation {
    /// Before a file has more than so many bytes.
    pub(super) bytes: u64,
    /// When a packet comes so many nanoseconds after the file's first.
    pub(super) nanos: u64,
    pub(super) keep: usize,
}

/// What is written so far.
pub(super) struct Files<'a> {
    spec: &'a Spec,
    open: Option<Open>,
    /// Those of this capture that are there, with the open one last.
    names: VecDeque<PathBuf>,
    begun: u64,
    packets: u64,
    /// Those of them that may not be in the file yet.
    buffered: u64,
    /// Bytes of the files that are complete.
    bytes: u64,
    latest: u64,
}

struct Open {
    writer: Writer<BufWriter<File>>,
    /// When its first packet came.
    since: u64,
}

impl<'a> Files<'a> {
    pub(super) fn new(spec: &'a Spec) -> Self {
        Self { spec, open: None, names: VecDeque::new(), begun: 0, packets: 0, buffered: 0, bytes: 0, latest: 0 }
    }

    /// The file that is being written.
    pub(super) fn path(&self) -> &Path {
        self.names.back().unwrap_or(&self.spec.path)
    }

    /// Writes a packet; so many others were left out so far. `false`: a limit is reached, and it was not written.
    pub(super) fn packet(&mut self, record: &Record<'_>, missed: u64) -> io::Result<bool> {
        if self.packets >= self.spec.max_packets {
            return Ok(false);
        }
        if let (Some(Open { writer, since }), Some(rotation)) = (&mut self.open, self.spec.rotation) {
            let is_old = record.nanos.saturating_sub(*since) >= rotation.nanos;
            // A file of one packet that is larger than all may be, is complete as well.
            if is_old || writer.written() + writer.cost(record) + STATISTICS > rotation.bytes {
                self.complete(missed)?;
            }
        }
        let (bytes, max_bytes) = (self.bytes, self.spec.max_bytes);
        let writer = self.open(record.nanos)?;
        if bytes + writer.written() + writer.cost(record) + STATISTICS > max_bytes {
            return Ok(false);
        }
        writer.packet(record)?;
        self.packets += 1;
        self.buffered += 1;
        self.latest = self.latest.max(record.nanos);
        Ok(true)
    }

    /// Writes out what is buffered.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.open.as_mut().map_or(Ok(()), |open| open.writer.flush())?;
        self.buffered = 0;
        Ok(())
    }

    /// The end: the open file is complete. With `empty` there is one also where no packet came.
    pub(super) fn finish(&mut self, missed: u64, empty: bool) -> io::Result<()> {
        if self.open.is_some() || (empty && self.begun == 0) {
            self.open(self.latest)?;
            self.complete(missed)?;
        }
        Ok(())
    }

    /// Leaves the open file as it is, after a failure. Returns how many packets may be missing in it.
    pub(super) fn abandon(&mut self) -> u64 {
        self.open = None;
        let missing = std::mem::take(&mut self.buffered);
        self.packets -= missing;
        missing
    }

    fn complete(&mut self, missed: u64) -> io::Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        open.writer.finish(self.latest, self.packets + missed, missed)?;
        self.bytes += open.writer.written();
        self.buffered = 0;
        Ok(())
    }

    /// The writer of the open file; without one, of a new one.
    fn open(&mut self, since: u64) -> io::Result<&mut Writer<BufWriter<File>>> {
        if self.open.is_none() {
            let spec = self.spec;
            // Before there is one more: it may be that there is no room left.
            while self.names.len() >= spec.rotation.map_or(1, |rotation| rotation.keep) {
                let oldest = self.names.pop_front();
                // Somebody else may have taken it away.
                oldest.filter(|_| spec.rotation.is_some()).map_or(Ok(()), fs::remove_file).or_else(unless_gone)?;
            }
            self.begun += 1;
            let path = spec.rotation.map_or_else(|| spec.path.clone(), |_| numbered(&spec.path, self.begun, since));
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            let file = File::create(&path)?;
            self.names.push_back(path);
            let writer = Writer::new(BufWriter::with_capacity(1 << 16, file), &spec.interface, spec.snaplen.into())?;
            self.open = Some(Open { writer, since });
        }
        self.open.as_mut().map(|open| &mut open.writer).ok_or_else(|| io::Error::other("no file"))
    }
}

fn unless_gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The name of one of several files, as `dumpcap` gives it: `out_00001_20231114221320.pcapng`. The time is UTC.
fn numbered(path: &Path, number: u64, nanos: u64) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("_{number:05}_{}", date(nanos / 1_000_000_000)));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Seconds since 1970 as year, month, day, hour, minute and second. (The way from days to dates is that of Hinnant,
/// "chrono-compatible low-level date algorithms": years begin in March, so that a leap day is the last.)
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    format!("{year:04}{month:02}{day:02}{:02}{:02}{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `date -u -d @SECONDS +%Y%m%d%H%M%S` says.
    #[test]
    fn names_have_number_and_date() {
        for (seconds, expected) in [
            (0, "19700101000000"),
            (951_782_399, "20000228235959"),
            (951_782_400, "20000229000000"),
            (951_868_800, "20000301000000"),
            (1_700_000_000, "20231114221320"),
            (1_709_210_096, "20240229123456"),
            (4_107_542_400, "21000301000000"),
        ] {
            assert_eq!(date(seconds), expected);
        }
        let name = numbered(Path::new("a/b.c.pcapng"), 7, 1_700_000_000_999_999_999);
        assert_eq!(name, Path::new("a/b.c_00007_20231114221320.pcapng"));
        assert_eq!(numbered(Path::new("x"), 123_456, 0), Path::new("x_123456_19700101000000"));
    }
}
