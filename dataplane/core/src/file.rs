//! Files that a config names. This module opens files without blocking, and locks files while they are read or written.
//! It identifies files by device and inode, not by path.

use std::fs::{self, File, FileType, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Deref;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The maximum number of symbolic links that are followed in one path, as in the kernel (path_resolution(7)).
const LINKS: usize = 40;

/// Opens a regular file for reading. Refuses all other kinds of files, because opening a pipe blocks until there is a
/// writer, and some devices have no end of file.
pub fn open(path: &Path) -> io::Result<File> {
    let is_regular = |kind: FileType| match kind.is_file() {
        true => Ok(()),
        false => Err(refused(kind, "a regular file")),
    };
    checked(path, OpenOptions::new().read(true), 0, is_regular)
}

/// The size of the parts in which a text file is read and checked, in bytes.
const PART: u64 = 1 << 20;

/// Reads a whole regular text file of at most `most` bytes. Text has no NUL bytes. Refuses a file at its first NUL
/// byte, without reading the rest of the file.
pub fn read_text(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (mut file, mut bytes) = (open(path)?.take(most + 1), Vec::new());
    loop {
        let start = bytes.len();
        if (&mut file).take(PART).read_to_end(&mut bytes)? == 0 {
            break;
        }
        if let Some(at) = bytes[start..].iter().position(|byte| *byte == 0) {
            let why = format!("byte {} is NUL, so the file is not a text file", start + at);
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
    }
    match bytes.len() as u64 > most {
        true => Err(io::Error::new(ErrorKind::FileTooLarge, format!("the file is larger than {} MiB", most >> 20))),
        false => Ok(bytes),
    }
}

/// Returns the remedy if an open or read failed because this host has too few file descriptors or too little memory
/// (open(2)). Returns `None` for any other cause.
pub fn host_remedy(error: &io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error)? {
        Errno::MFILE => Some("raise the limit on open files (`ulimit -n`, `LimitNOFILE=` of systemd)"),
        Errno::NFILE => Some("raise the limit on open files of this host (`sysctl fs.file-max`)"),
        Errno::NOMEM => Some("raise the memory limit of the process or its control group, or free memory on this host"),
        _ => None,
    }
}

/// Accepts the kinds of files that packets may be written to: regular files, and character devices such as /dev/null. A
/// pipe would block the run until there is a reader, and writing to a block device would destroy its content.
fn takes_packets(kind: FileType) -> io::Result<()> {
    match kind.is_file() || kind.is_char_device() {
        true => Ok(()),
        false => Err(refused(kind, "a regular file or a character device such as /dev/null")),
    }
}

fn refused(kind: FileType, what: &str) -> io::Error {
    let kind = match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    io::Error::new(ErrorKind::InvalidInput, format!("{kind}, not {what}"))
}

/// Opens a file with additional `open(2)` flags if `allowed` accepts its kind.
fn checked(
    path: &Path,
    options: &mut OpenOptions,
    flags: i32,
    allowed: impl Fn(FileType) -> io::Result<()>,
) -> io::Result<File> {
    // Check before the open, because opening some kinds of files has side effects.
    match fs::metadata(path) {
        Ok(known) => allowed(known.file_type())?,
        Err(_) => can_be_named(path)?,
    }
    // The file may have been replaced since the check, so open it without blocking and check its kind again.
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags).open(path)?;
    allowed(file.metadata()?.file_type())?;
    Ok(file)
}

/// Checks that an output file can be opened for writing. The file is not changed or created.
pub fn can_be_written(path: &Path) -> io::Result<()> {
    let target = target(path, is_own_link)?;
    match fs::metadata(path) {
        Ok(_) => checked(&target, OpenOptions::new().write(true), libc::O_NOFOLLOW, takes_packets).map(drop),
        // Missing folders are created together with the file.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            can_be_named(path)?;
            match existing(&target) {
                Some((_, known)) if !known.is_dir() => Err(ErrorKind::NotADirectory.into()),
                Some((folder, _)) => can_create_in(folder),
                None => Ok(()),
            }
        }
        Err(error) => Err(error),
    }
}

/// Checks that a path ends in a file name. An empty path, and a path that ends in `/` or `..`, does not end in a file
/// name.
fn can_be_named(path: &Path) -> io::Result<()> {
    let bytes = path.as_os_str().as_encoded_bytes();
    match path.file_name().is_some_and(|name| bytes.ends_with(name.as_encoded_bytes())) {
        true => Ok(()),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "the path does not end in a file name")),
    }
}

/// Checks that files can be created in an existing folder.
pub fn can_create_in(folder: &Path) -> io::Result<()> {
    match accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Err(error.into()),
        // Kernels before 5.8 do not support AT_EACCESS.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the nearest existing ancestor folder of a path, with its metadata.
fn existing(path: &Path) -> Option<(&Path, fs::Metadata)> {
    let mut folders = path.ancestors().skip(1).map(|folder| match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    });
    folders.find_map(|folder| Some((folder, fs::metadata(folder).ok()?)))
}

/// Follows the symbolic links of a path. Fails if `allowed` refuses a link. The final target need not exist.
fn target(path: &Path, allowed: impl Fn(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&path) else { break };
        allowed(&path)?;
        path = path.with_file_name(next);
    }
    Ok(path)
}

/// Accepts a symbolic link of this user or of root. In a shared folder, another user may have created a link in place of
/// an output file.
fn is_own_link(link: &Path) -> io::Result<()> {
    let owner = fs::symlink_metadata(link)?.uid();
    if owner == 0 || owner == geteuid().as_raw() {
        return Ok(());
    }
    let link = link.display();
    let why = format!("the symbolic link {link} belongs to another user; help: use the path of the target instead");
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

/// The users that may read an output file that this program creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// All users, as far as the umask permits.
    All,
    /// Only the user of this program: mode 0600.
    Owner,
    /// The user of this program and the group with this number: mode 0640. An existing file gets this group and mode
    /// too.
    Group(u32),
}

impl Readers {
    /// Returns [`Self::Group`] for a group that is given by name or by number. Returns [`Self::Owner`] without a group.
    ///
    /// # Errors
    /// Fails like [`group_number`].
    pub fn owner_and(group: Option<&str>) -> io::Result<Self> {
        group.map_or(Ok(Self::Owner), |group| Ok(Self::Group(group_number(group)?)))
    }

    fn mode(self) -> u32 {
        match self {
            Self::All => 0o666,
            Self::Owner => 0o600,
            Self::Group(_) => 0o640,
        }
    }
}

/// Returns the number of a group. `group` is the name of a group in `/etc/group`, or the number itself.
///
/// # Errors
/// Fails if `group` is neither a number nor the name of a group in `/etc/group`.
pub fn group_number(group: &str) -> io::Result<u32> {
    let missing = || {
        let why = format!(
            "there is no group `{group}` in /etc/group; help: set a name from /etc/group, or the number of a group"
        );
        io::Error::new(ErrorKind::NotFound, why)
    };
    // fchown(2) does not change the group if the number is `u32::MAX`.
    if let Some(number) = group.parse().ok().filter(|number| *number != u32::MAX) {
        return Ok(number);
    }
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let mut lines = groups.lines().map(|line| line.split(':'));
    let found = lines.find_map(|mut fields| (fields.next() == Some(group)).then(|| fields.nth(1)?.parse().ok())?);
    found.filter(|_| !group.is_empty()).ok_or_else(missing)
}

/// The identity of a file, independent of the path that names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The device and inode of the file, or of its nearest existing ancestor folder.
    there: (u64, u64),
    /// The path from that folder to the file; empty if the file exists.
    missing: PathBuf,
}

impl Identity {
    /// Returns the identity of a regular file or of a file that does not exist yet. Returns `None` for other kinds of
    /// files, because several ports or stages may share such a file.
    pub fn of(path: &Path) -> Option<Self> {
        let place = |known: &fs::Metadata| (known.dev(), known.ino());
        match fs::metadata(path) {
            Ok(known) => known.is_file().then(|| Self { there: place(&known), missing: PathBuf::new() }),
            Err(_) => {
                let path = target(path, |_| Ok(())).ok()?;
                let (folder, known) = existing(&path)?;
                let missing = path.strip_prefix(folder).unwrap_or(&path).to_owned();
                Some(Self { there: place(&known), missing })
            }
        }
    }
}

/// A file that is open for reading or writing, and locked. While an output is locked, no other port, stage or dataplane
/// program can open the file, by any path. Several readers can share an input.
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// Opens and locks a file for reading.
    pub fn input(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        unless_held(file.try_lock_shared())?;
        Ok(Self(file))
    }

    /// Opens and locks a file for writing, and creates the file if it does not exist. The content stays until
    /// [`Self::empty`] is called, because the run may still fail to start. `readers` selects the users that may read a
    /// new file. Refuses symbolic links of other users.
    pub fn output(path: &Path, readers: Readers) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).mode(readers.mode());
        let file = checked(&target(path, is_own_link)?, &mut options, libc::O_NOFOLLOW, takes_packets)?;
        if file.metadata()?.is_file() {
            unless_held(file.try_lock())?;
            if let Readers::Group(group) = readers {
                fchown(&file, None, Some(group))?;
                file.set_permissions(Permissions::from_mode(readers.mode()))?;
            }
        }
        Ok(Self(file))
    }

    /// Truncates an output file.
    pub fn empty(&self) -> io::Result<()> {
        match self.metadata()?.is_file() {
            true => self.set_len(0),
            false => Ok(()),
        }
    }
}

fn unless_held(locked: Result<(), TryLockError>) -> io::Result<()> {
    match locked {
        Err(TryLockError::WouldBlock) => {
            let why = "another port, stage or program uses this file; help: name a different file";
            Err(io::Error::new(ErrorKind::ResourceBusy, why))
        }
        // Some file systems do not support locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing the file does not always release the lock: a child process that was just forked may still hold the
        // same open file description.
        let _ = self.0.unlock();
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Write for LockedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
