//! Files that a config names: opened without waiting for anybody, told apart by what they are and not by what they are
//! called, and kept from others while they are played or written.

use std::fs::{self, File, FileType, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Deref;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

/// The most links that one path leads through, as in the kernel (path_resolution(7)).
const LINKS: usize = 40;

/// Opens a regular file to read it, and nothing else: whoever opens a pipe waits for its writer, and what some devices
/// have does not end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let is_regular = |kind: FileType| match kind.is_file() {
        true => Ok(()),
        false => Err(refused(kind, "no regular file")),
    };
    checked(path, OpenOptions::new().read(true), is_regular)
}

/// Reads a regular file whole, if it has so many bytes at the most.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::new(ErrorKind::FileTooLarge, format!("it has more than {} MiB", most >> 20))),
        false => Ok(bytes),
    }
}

/// Where packets may be written to. Devices that take all, such as /dev/null, are of use; a pipe would keep the run waiting
/// for its reader, and on a block device there is what somebody wants to keep.
fn takes_packets(kind: FileType) -> io::Result<()> {
    match kind.is_file() || kind.is_char_device() {
        true => Ok(()),
        false => Err(refused(kind, "neither a regular file nor such as /dev/null")),
    }
}

fn refused(kind: FileType, what: &str) -> io::Error {
    let kind = match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    io::Error::new(ErrorKind::InvalidInput, format!("{kind}, and {what}"))
}

/// Opens a file if its kind is allowed.
fn checked(path: &Path, options: &mut OpenOptions, allowed: impl Fn(FileType) -> io::Result<()>) -> io::Result<File> {
    // To open one of another kind may do something already.
    match fs::metadata(path) {
        Ok(known) => allowed(known.file_type())?,
        Err(_) => can_be_named(path)?,
    }
    // Something else may be there by now: this is what counts, and it is not waited for.
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    allowed(file.metadata()?.file_type())?;
    Ok(file)
}

/// Whether an output could be opened, without touching it.
pub(crate) fn can_be_written(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(_) => checked(path, OpenOptions::new().write(true), takes_packets).map(drop),
        // Folders that are missing are made with the file.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            can_be_named(path)?;
            match existing(&target(path)) {
                Some((_, known)) if !known.is_dir() => Err(ErrorKind::NotADirectory.into()),
                Some((folder, _)) => can_be_filled(folder),
                None => Ok(()),
            }
        }
        Err(error) => Err(error),
    }
}

/// Whether a path ends in a name that a file can have: not if it is empty, nor if it ends as that of a folder does.
fn can_be_named(path: &Path) -> io::Result<()> {
    let bytes = path.as_os_str().as_encoded_bytes();
    match path.file_name().is_some_and(|name| bytes.ends_with(name.as_encoded_bytes())) {
        true => Ok(()),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "the path does not end in the name of a file")),
    }
}

/// Whether something can be made in a folder that is there.
pub(crate) fn can_be_filled(folder: &Path) -> io::Result<()> {
    match accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Err(error.into()),
        // Kernels before 5.8 cannot tell.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The nearest of the folders of a path that is there.
fn existing(path: &Path) -> Option<(&Path, fs::Metadata)> {
    let mut folders = path.ancestors().skip(1).map(|folder| match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    });
    folders.find_map(|folder| Some((folder, fs::metadata(folder).ok()?)))
}

/// Where a path leads to that links follow which need not lead to anything.
fn target(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&path) else { break };
        path = path.with_file_name(next);
    }
    path
}

/// What tells a file apart, however it is called.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    /// Device and inode of the file, or of the nearest of its folders that is there.
    there: (u64, u64),
    /// The way on from that folder.
    missing: PathBuf,
}

impl Identity {
    /// Of a regular file, or of one that is not there yet. `None`: what is no such file may be anybody's.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let place = |known: &fs::Metadata| (known.dev(), known.ino());
        match fs::metadata(path) {
            Ok(known) => known.is_file().then(|| Self { there: place(&known), missing: PathBuf::new() }),
            Err(_) => {
                let path = target(path);
                let (folder, known) = existing(&path)?;
                let missing = path.strip_prefix(folder).unwrap_or(&path).to_owned();
                Some(Self { there: place(&known), missing })
            }
        }
    }
}

/// A file that is played or written. As long as it is, nobody else writes it, nor plays what is written: no other port or
/// stage, and no other program of this kind, by whatever name.
#[derive(Debug)]
pub(crate) struct Held(File);

impl Held {
    /// A file that is played.
    pub(crate) fn input(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        unless_held(file.try_lock_shared())?;
        Ok(Self(file))
    }

    /// A file that is to be written: it is made. What is in it stays until it is emptied, as a run that has opened it may
    /// still not start.
    pub(crate) fn output(path: &Path) -> io::Result<Self> {
        let file = checked(path, OpenOptions::new().write(true).create(true), takes_packets)?;
        if file.metadata()?.is_file() {
            unless_held(file.try_lock())?;
        }
        Ok(Self(file))
    }

    /// What was in an output before goes.
    pub(crate) fn empty(&self) -> io::Result<()> {
        match self.metadata()?.is_file() {
            true => self.set_len(0),
            false => Ok(()),
        }
    }
}

fn unless_held(locked: Result<(), TryLockError>) -> io::Result<()> {
    match locked {
        Err(TryLockError::WouldBlock) => {
            let why = "another port, stage or program writes or plays this file: give each a file of its own";
            Err(io::Error::new(ErrorKind::ResourceBusy, why))
        }
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Closing it would not do while a process that was just forked has it as well.
        let _ = self.0.unlock();
    }
}

impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Write for Held {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
