//! The file of a capture, or its sequence of files.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use super::writer::{CaptureWriter, Record, last_complete_block};
use dataplane_core::file::{self, LockedFile, Readers};
use dataplane_core::pcapng::STATISTICS_BLOCK_LEN;

/// The parameters of a capture.
#[derive(Clone)]
pub(super) struct Spec {
    pub(super) path: PathBuf,
    pub(super) readers: Readers,
    pub(super) interface: String,
    pub(super) snaplen: u16,
    pub(super) buffers: usize,
    /// The maximum number of packets in all files together.
    pub(super) max_packets: u64,
    /// The maximum size of all files together, in bytes.
    pub(super) max_bytes: u64,
    pub(super) rotation: Option<Rotation>,
}

/// The limits at which a new file is started, and the number of files that are kept.
#[derive(Clone, Copy)]
pub(super) struct Rotation {
    /// The maximum size of a file in bytes.
    pub(super) bytes: u64,
    /// The maximum time from the first packet of a file to the last packet of the file, in nanoseconds.
    pub(super) nanos: u64,
    pub(super) keep: usize,
}

/// The files that a capture has written so far.
pub(super) struct Files<'a> {
    spec: &'a Spec,
    open: Option<Open>,
    /// The path of the open file, or of the file that could not be opened.
    path: PathBuf,
    /// The existing files of this capture, the open file last.
    names: VecDeque<PathBuf>,
    started: u64,
    packets: u64,
    /// The number of packets that are possibly not in the file yet.
    buffered: u64,
    /// The size of all completed files in bytes.
    bytes: u64,
    latest: u64,
}

struct Open {
    writer: CaptureWriter<BufWriter<LockedFile>>,
    /// The timestamp of the first packet.
    since: u64,
    /// The number of packets in all earlier files.
    before: u64,
    /// The number of bytes flushed to the file, which is always the end of a complete block.
    flushed: u64,
}

impl Open {
    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()?;
        self.flushed = self.writer.written();
        Ok(())
    }
}

impl<'a> Files<'a> {
    pub(super) fn new(spec: &'a Spec) -> Self {
        let (path, names) = (spec.path.clone(), VecDeque::new());
        Self { spec, open: None, path, names, started: 0, packets: 0, buffered: 0, bytes: 0, latest: 0 }
    }

    /// Returns the path of the open file, or of the file that could not be opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether a file is being written.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Writes a packet. `missed` is the number of packets that the capture has missed so far. Returns `false`, without
    /// writing the packet, if a limit is reached.
    pub(super) fn packet(&mut self, record: &Record<'_>, missed: u64) -> io::Result<bool> {
        if self.packets >= self.spec.max_packets {
            return Ok(false);
        }
        if let (Some(Open { writer, since, .. }), Some(rotation)) = (&mut self.open, self.spec.rotation) {
            let is_old = record.nanos.saturating_sub(*since) >= rotation.nanos;
            // If the first packet of a file alone exceeds the size limit, the file is complete after this packet.
            if is_old || writer.written() + writer.cost(record) + STATISTICS_BLOCK_LEN > rotation.bytes {
                self.complete(missed)?;
            }
        }
        let (bytes, max_bytes) = (self.bytes, self.spec.max_bytes);
        let writer = self.open(record.nanos)?;
        if bytes + writer.written() + writer.cost(record) + STATISTICS_BLOCK_LEN > max_bytes {
            return Ok(false);
        }
        writer.packet(record)?;
        self.packets += 1;
        self.buffered += 1;
        self.latest = self.latest.max(record.nanos);
        Ok(true)
    }

    /// Writes the buffered packets to the file.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.open.as_mut().map_or(Ok(()), Open::flush)?;
        self.buffered = 0;
        Ok(())
    }

    /// Completes the open file at the end of the run. If `empty` is set, creates a file even without packets.
    pub(super) fn finish(&mut self, missed: u64, empty: bool) -> io::Result<()> {
        if self.open.is_some() || (empty && self.started == 0) {
            self.open(self.latest)?;
            self.complete(missed)?;
        }
        Ok(())
    }

    /// Closes the open file after a failure and keeps its complete blocks. Returns the number of packets that were
    /// written but are not in the file.
    pub(super) fn abandon(&mut self) -> u64 {
        let buffered = std::mem::take(&mut self.buffered);
        let Some(open) = self.open.take() else { return buffered };
        // A dropped writer would try to write the rest of its buffer again, so take the file out of the writer.
        let (file, _) = open.writer.into_inner().into_parts();
        // If the file cannot be read, it is truncated to the end of the last flushed block.
        let (end, found) = match file.metadata() {
            Ok(known) if known.is_file() => File::open(&self.path)
                .and_then(|file| last_complete_block(file, open.flushed, known.len()))
                .unwrap_or((open.flushed, 0)),
            _ => (open.flushed, 0),
        };
        let missing = buffered.saturating_sub(found);
        self.packets -= missing;
        self.bytes += end;
        // Errors here are ignored because the caller reports the first failure. A name without a number may be a
        // device, so such a file is not removed.
        if self.spec.rotation.is_some() && self.packets == open.before {
            let _ = fs::remove_file(&self.path);
            self.names.pop_back();
            self.started -= 1;
            self.bytes -= end;
        } else {
            let _ = file.set_len(end);
        }
        missing
    }

    fn complete(&mut self, missed: u64) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.writer.finish(self.latest, self.packets + missed, missed)?;
        self.bytes += open.writer.written();
        self.buffered = 0;
        self.open = None;
        Ok(())
    }

    /// Returns the writer of the open file, or of a new file if none is open. Old files are deleted only after the new
    /// file was started, so that the capture deletes no file when the disk is full.
    fn open(&mut self, since: u64) -> io::Result<&mut CaptureWriter<BufWriter<LockedFile>>> {
        if self.open.is_none() {
            let spec = self.spec;
            let number = self.started + 1;
            self.path = spec.rotation.map_or_else(|| spec.path.clone(), |_| numbered(&spec.path, number, since));
            file::create_folders(&self.path)?;
            let file = LockedFile::output(&self.path, spec.readers)?;
            file.truncate()?;
            let file = BufWriter::with_capacity(1 << 16, file);
            self.started = number;
            self.names.push_back(self.path.clone());
            let writer = CaptureWriter::new(file, &spec.interface, spec.snaplen.into())?;
            self.open.insert(Open { writer, since, before: self.packets, flushed: 0 }).flush()?;
            while let Some(oldest) = self.names.front()
                && spec.rotation.is_some_and(|rotation| self.names.len() > rotation.keep)
            {
                // Another program may have deleted the file.
                fs::remove_file(oldest).or_else(unless_gone)?;
                self.names.pop_front();
            }
        }
        self.open.as_mut().map(|open| &mut open.writer).ok_or_else(|| io::Error::other("no file"))
    }
}

fn unless_gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Returns the name of a file of a sequence, as `dumpcap` names it: `out_00001_20231114221320.pcapng`. The time is
/// UTC.
fn numbered(path: &Path, number: u64, nanos: u64) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("_{number:05}_{}", date(nanos / 1_000_000_000)));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Formats seconds since 1970 as year, month, day, hour, minute and second. The conversion from days is from Hinnant,
/// "chrono-compatible low-level date algorithms". In this algorithm years start in March, so that a leap day is the
/// last day of a year.
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

    /// The third file is a link to `/dev/full`, so it cannot be written. The two existing files stay until a new file
    /// was started.
    #[test]
    fn old_files_are_kept_if_a_new_file_cannot_be_written() {
        let folder = dataplane_testing::Folder::new();
        let spec = Spec {
            path: folder.file("out.pcapng"),
            readers: Readers::Owner,
            interface: "test".to_owned(),
            snaplen: 100,
            buffers: 1,
            max_packets: u64::MAX,
            max_bytes: u64::MAX,
            // Each packet starts a new file.
            rotation: Some(Rotation { bytes: 0, nanos: u64::MAX, keep: 2 }),
        };
        let name = |number| numbered(&spec.path, number, 0);
        std::os::unix::fs::symlink("/dev/full", name(3)).unwrap();
        let record = Record {
            nanos: 0,
            source: dataplane_core::clock::ClockSource::None,
            original: 60,
            bytes: &[7; 60],
            comment: &[],
        };
        let there = || [1, 2, 3, 4].map(|number| name(number).is_file());
        let mut files = Files::new(&spec);
        assert!(files.packet(&record, 0).unwrap() && files.packet(&record, 0).unwrap());
        let error = files.packet(&record, 0).unwrap_err();
        assert_eq!((error.kind(), files.path()), (io::ErrorKind::StorageFull, &*name(3)));
        assert_eq!((files.abandon(), there()), (0, [true, true, false, false]));
        assert!(name(3).symlink_metadata().is_err(), "a failed file without packets is removed");
        assert!(files.packet(&record, 0).unwrap());
        assert_eq!((there(), files.packets), ([false, true, true, false], 3));

        // Complete blocks stay in the file, and an incomplete last block is removed.
        files.flush().unwrap();
        let whole = fs::metadata(name(3)).unwrap().len();
        let open = files.open.as_mut().unwrap();
        open.flushed = 0;
        fs::OpenOptions::new().append(true).open(name(3)).unwrap().set_len(whole + 50).unwrap();
        files.buffered = 3;
        files.packets += 2;
        assert_eq!((files.abandon(), files.packets), (2, 3));
        assert_eq!((there(), fs::metadata(name(3)).unwrap().len()), ([false, true, true, false], whole));
    }

    fn spec(path: PathBuf, readers: Readers) -> Spec {
        let (interface, rotation) = ("test".to_owned(), None);
        Spec { path, readers, interface, snaplen: 100, buffers: 1, max_packets: 9, max_bytes: 1 << 20, rotation }
    }

    #[test]
    fn new_file_is_readable_for_its_owner_and_the_group_only() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let folder = dataplane_testing::Folder::new();
        let about = |name: &str, readers| {
            Files::new(&spec(folder.file(name), readers)).finish(0, true).unwrap();
            let about = fs::metadata(folder.file(name)).unwrap();
            (about.permissions().mode() & 0o7777, about.gid())
        };
        let own = fs::metadata(folder.path()).unwrap().gid();
        assert_eq!(about("a.pcapng", Readers::Owner), (0o600, own));
        assert_eq!(about("b.pcapng", Readers::Group(own)), (0o640, own));
        // An existing file keeps its mode, unless a group is set.
        fs::set_permissions(folder.file("a.pcapng"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(about("a.pcapng", Readers::Owner), (0o644, own));
        assert_eq!(about("a.pcapng", Readers::Group(own)), (0o640, own));
    }

    #[test]
    fn symbolic_link_of_another_user_is_not_followed() {
        let folder = dataplane_testing::Folder::new();
        let (link, target) = (folder.file("link.pcapng"), folder.file("target.pcapng"));
        std::os::unix::fs::symlink("target.pcapng", &link).unwrap();
        let write = || Files::new(&spec(link.clone(), Readers::Owner)).finish(0, true);
        write().unwrap();
        assert!(fs::metadata(&target).unwrap().len() > 0);
        fs::remove_file(&target).unwrap();
        if let Err(error) = std::os::unix::fs::lchown(&link, Some(12_345), None) {
            return dataplane_testing::skip(format!("cannot change the owner of a link: {error}"));
        }
        let error = write().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(dataplane_core::file::can_be_written(&link).is_err() && !target.exists());
    }

    /// Compares with the output of `date -u -d @SECONDS +%Y%m%d%H%M%S`.
    #[test]
    fn file_names_have_number_and_date() {
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
