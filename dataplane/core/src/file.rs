//! Files that a config names. This module opens files without blocking, and locks files while they are read or written.
//! It identifies files by device and inode, not by path.

use std::ffi::OsString;
use std::fs::{self, File, FileType, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Deref;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, Mode, OFlags, XattrFlags, accessat, fgetxattr, fremovexattr, fsetxattr, mkdirat, openat,
    readlinkat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error;

/// The maximum number of symbolic links that are followed in one path, as in the kernel (path_resolution(7)).
const LINKS: usize = 40;
/// The maximum number of attempts to open an output file that other programs create or remove at the same time.
const ATTEMPTS: usize = 8;

/// Opens a regular file for reading. Refuses all other kinds of files, because opening a pipe blocks until there is a
/// writer, and some devices have no end of file.
pub fn open(path: &Path) -> io::Result<File> {
    let is_regular = |kind: FileType| match kind.is_file() {
        true => Ok(()),
        false => Err(refused(kind, "a regular file")),
    };
    // Check before the open, because opening some kinds of files has side effects.
    match fs::metadata(path) {
        Ok(known) => is_regular(known.file_type())?,
        Err(_) => can_be_named(path)?,
    }
    // The file may have been replaced since the check, so open it without blocking and check its kind again.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    is_regular(file.metadata()?.file_type())?;
    Ok(file)
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
    error::host_remedy(error.raw_os_error()?)
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

/// Checks that an output file can be opened for writing. The file is not changed or created.
pub fn can_be_written(path: &Path) -> io::Result<()> {
    let place = OutputPlace::of(path)?;
    if place.known.is_some() {
        return place.open(path, Mode::empty()).map(drop);
    }
    // Missing folders are created together with the file.
    can_be_named(path)?;
    may_create(accessat(&place.folder, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS))
}

/// Creates the missing folders of an output file. Refuses symbolic links like [`LockedFile::output`].
pub fn create_folders(path: &Path) -> io::Result<()> {
    let OutputPlace { mut folder, rest, .. } = OutputPlace::of(path)?;
    for name in &rest[..rest.len().saturating_sub(1)] {
        match mkdirat(&folder, name, Mode::from_raw_mode(0o777)) {
            // Another program may have created the folder since the check.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        folder = File::from(openat(&folder, name, LOOKUP | OFlags::DIRECTORY, Mode::empty())?);
    }
    Ok(())
}

/// Replaces the content of a regular file, or creates the file. An existing file keeps its permissions and its access
/// control list (acl(5)). The file also keeps its owner and its group if this program may set them. If the group cannot
/// be kept, groups and other users lose the permissions that depend on the group. Refuses files and symbolic links of
/// other users like [`LockedFile::output`].
///
/// If the outer result is an error, such as a full disk, the file has its old content. If only the inner result is an
/// error, the file has its new content, but a power failure may bring back the old content.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<io::Result<()>> {
    let place = OutputPlace::of(path)?;
    let [name] = &place.rest[..] else { return Err(Errno::NOENT.into()) };
    can_be_named(path)?;
    if let Some(known) = &place.known {
        if !known.is_file() {
            return Err(refused(known.file_type(), "a regular file"));
        }
        place.check_owner(path, known, "change")?;
    }
    let mut new = OsString::from(".");
    new.push(name);
    new.push(format!(".{}.new", std::process::id()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The old file may permit fewer users than the default. Only this user can read the new content until `copy_access`
    // has copied the permissions.
    let mode = if place.known.is_some() { 0o600 } else { 0o666 };
    let mut created = File::from(openat(&place.folder, &new, flags, Mode::from_raw_mode(mode))?);
    let mut write = || {
        created.write_all(content)?;
        if let Some(before) = &place.known {
            copy_access(&created, before, access_list(&place.folder, name))?;
        }
        created.sync_all()?;
        Ok(renameat(&place.folder, &new, &place.folder, name)?)
    };
    if let Err(error) = write() {
        let _ = unlinkat(&place.folder, &new, AtFlags::empty());
        return Err(error);
    }
    // The rename survives a power failure only if the folder is also synced.
    let folder = openat(&place.folder, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    Ok(folder.map_err(io::Error::from).and_then(|folder| File::from(folder).sync_all()))
}

/// The extended attribute that contains the access control list of a file (acl(5)).
const ACCESS_LIST: &str = "system.posix_acl_access";
/// The maximum size of an extended attribute in bytes (xattr(7)).
const MAX_ATTRIBUTE: usize = 1 << 16;

/// Returns the access control list of a file. Returns `None` if the file has no access control list.
fn access_list(folder: &File, name: &OsString) -> io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, Mode::empty())?;
    let mut list = vec![0; MAX_ATTRIBUTE];
    match fgetxattr(&file, ACCESS_LIST, &mut list[..]) {
        Ok(length) => {
            list.truncate(length);
            Ok(Some(list))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Copies the owner, the group and the permissions in the metadata `before` to `file`, and sets the access control list
/// of `file` to `list`. Before the call, only this user can access `file`. If a property cannot be set, no user gets an
/// access that `before` and `list` do not permit.
fn copy_access(file: &File, before: &fs::Metadata, list: io::Result<Option<Vec<u8>>>) -> io::Result<()> {
    // Only root can change the owner of a file. Other users can set only the groups of which they are members.
    if fchown(file, Some(before.uid()), Some(before.gid())).is_err() {
        let _ = fchown(file, None, Some(before.gid()));
    }
    let (mode, keeps_group) = (before.mode() & 0o7777, file.metadata()?.gid() == before.gid());
    // With an access control list, the group permissions of `mode` are the mask of the list.
    let mode = match &list {
        Ok(None) if keeps_group => mode,
        Ok(None) => without_group(mode),
        Ok(Some(_)) | Err(_) => mode & 0o700,
    };
    if let Ok(None) = list {
        // The file may have inherited a list from its folder.
        let _ = fremovexattr(file, ACCESS_LIST);
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    if let Ok(Some(list)) = list
        && keeps_group
    {
        // If this fails, only the owner can access the file.
        let _ = fsetxattr(file, ACCESS_LIST, &list, XattrFlags::empty());
    }
    Ok(())
}

/// Returns the permissions of a file that has lost its group. Members of the earlier group are other users now, and
/// members of the new group may have been other users before. The group and other users therefore get only the
/// permissions that both had before.
fn without_group(mode: u32) -> u32 {
    let both = mode >> 3 & mode & 0o7;
    mode & 0o700 | both << 3 | both
}

/// The flags to open a file or folder only for lookups in the file system. A symbolic link is not followed.
const LOOKUP: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The place to which the path of an output leads, after all symbolic links.
struct OutputPlace {
    /// The nearest existing folder, opened with [`LOOKUP`].
    folder: File,
    /// The names from that folder to the file. Contains only the name of the file if the folder of the file exists.
    rest: Vec<OsString>,
    /// The file, if it exists.
    known: Option<fs::Metadata>,
}

impl OutputPlace {
    /// Follows a path name by name. Refuses symbolic links of other users. Every folder stays open until the next name
    /// is looked up, so other users cannot replace a folder after its check.
    fn of(path: &Path) -> io::Result<Self> {
        let names = |path: &Path| -> Vec<OsString> {
            let name = |part: Component<'_>| (part != Component::CurDir).then(|| part.as_os_str().to_owned());
            path.components().rev().filter_map(name).collect()
        };
        let (mut left, mut shown, mut links) = (names(path), PathBuf::new(), 0);
        let mut folder = File::from(openat(CWD, ".", LOOKUP, Mode::empty())?);
        let mut last = false;
        while let Some(name) = left.pop() {
            let open = |flags| openat(&folder, &name, LOOKUP | flags, Mode::empty());
            // If a file system is mounted on demand (autofs), only a lookup with the flag `DIRECTORY` mounts it.
            let found = match open(OFlags::DIRECTORY) {
                Err(Errno::NOTDIR) => open(OFlags::empty()),
                found => found,
            };
            let found = match found {
                Ok(found) => File::from(found),
                Err(Errno::NOENT) => {
                    left.push(name);
                    left.reverse();
                    return Ok(Self { folder, rest: left, known: None });
                }
                Err(error) => return Err(error.into()),
            };
            let known = found.metadata()?;
            if known.is_symlink() {
                links += 1;
                if links > LINKS {
                    return Err(Errno::LOOP.into());
                }
                last |= left.is_empty();
                let link = shown.join(&name);
                // A link to a folder may belong to the owner of the folder that contains the link. This exception does
                // not apply to the link of the file itself and to the links after it.
                is_accepted_link(&link, &known, (!last).then_some(&folder))?;
                let target = readlinkat(&found, "", Vec::new())?;
                left.extend(names(Path::new(&OsString::from_vec(target.into_bytes()))));
            } else if left.is_empty() {
                return Ok(Self { folder, rest: vec![name], known: Some(known) });
            } else if known.is_dir() {
                shown.push(&name);
                folder = found;
            } else {
                return Err(Errno::NOTDIR.into());
            }
        }
        can_be_named(path)?;
        Err(Errno::ISDIR.into())
    }

    /// Returns whether the error of [`Self::open`] means that the file was created or removed since the check.
    fn has_changed(&self, error: &io::Error) -> bool {
        let expected = if self.known.is_some() { ErrorKind::NotFound } else { ErrorKind::AlreadyExists };
        error.kind() == expected
    }

    /// Opens the file for writing, or creates it. Fails with `EEXIST` or `ENOENT` if the file was created or removed
    /// since the check.
    fn open(&self, path: &Path, mode: Mode) -> io::Result<File> {
        let [name] = &self.rest[..] else { return Err(Errno::NOENT.into()) };
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Some(known) = &self.known else {
            can_be_named(path)?;
            return Ok(File::from(openat(&self.folder, name, flags | OFlags::CREATE | OFlags::EXCL, mode)?));
        };
        // Check before the open, because opening some kinds of files has side effects.
        takes_packets(known.file_type())?;
        can_be_named(path)?;
        let file = File::from(openat(&self.folder, name, flags, Mode::empty())?);
        // The file may have been replaced since the check.
        let known = file.metadata()?;
        takes_packets(known.file_type())?;
        if known.is_file() {
            self.check_owner(path, &known, "read")?;
        }
        Ok(file)
    }

    /// Refuses a file of another user. `act` is the verb in the message: what the owner of the file may do with the
    /// content that this program writes, such as `read`.
    fn check_owner(&self, path: &Path, known: &fs::Metadata, act: &str) -> io::Result<()> {
        if is_trusted(known.uid(), Some(&self.folder))? {
            return Ok(());
        }
        let why = format!(
            "the file {} belongs to another user (number {}), who may then {act} it; help: delete the file, or name another \
             file",
            path.display(),
            known.uid()
        );
        Err(io::Error::new(ErrorKind::PermissionDenied, why))
    }
}

/// Returns whether this program trusts the owner of a file or symbolic link: root, the user of this program and, if
/// `folder` is given, the owner of the folder that contains the file. The owner of a folder controls all files in the
/// folder.
fn is_trusted(owner: u32, folder: Option<&File>) -> io::Result<bool> {
    let own = owner == 0 || owner == geteuid().as_raw();
    Ok(own || folder.map(File::metadata).transpose()?.is_some_and(|folder| folder.uid() == owner))
}

/// Accepts a symbolic link of a trusted user. In a shared folder, another user may have created a link in place of an
/// output file or one of its folders.
fn is_accepted_link(link: &Path, known: &fs::Metadata, folder: Option<&File>) -> io::Result<()> {
    if is_trusted(known.uid(), folder)? {
        return Ok(());
    }
    let link = link.display();
    let why = format!("the symbolic link {link} belongs to another user; help: use the path of the target instead");
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
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
    may_create(accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS))
}

fn may_create(access: rustix::io::Result<()>) -> io::Result<()> {
    match access {
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

/// Follows the symbolic links of the last name of a path. The final target need not exist.
fn target(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Ok(next) = fs::read_link(&path) else { break };
        path = path.with_file_name(next);
    }
    path
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
                let path = target(path);
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
    /// [`Self::truncate`] is called, because the run may still fail to start. `readers` selects the users that may read
    /// a new file.
    ///
    /// Refuses symbolic links and files of other users, with one exception: the file, or a link to a folder, may belong
    /// to the owner of the folder that contains the file or the link.
    pub fn output(path: &Path, readers: Readers) -> io::Result<Self> {
        let mut attempts = 0;
        let file = loop {
            let place = OutputPlace::of(path)?;
            attempts += 1;
            match place.open(path, Mode::from_raw_mode(readers.mode())) {
                // Another program has created or removed the file since the check.
                Err(error) if attempts < ATTEMPTS && place.has_changed(&error) => {}
                opened => break opened?,
            }
        };
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
    pub fn truncate(&self) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, lchown, symlink};

    use dataplane_testing::{Folder, skip};

    use super::*;

    /// The number of a user that is not the user of this process.
    const OTHER: u32 = 12_345;

    fn refusal(path: &Path) -> [Option<String>; 3] {
        let denied = |error: io::Error| {
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            error.to_string()
        };
        let output = LockedFile::output(path, Readers::Owner).map(drop);
        [can_be_written(path), output, create_folders(path)].map(|result| result.err().map(denied))
    }

    #[test]
    fn link_of_another_user_in_a_folder_of_the_path_is_not_followed() {
        let folder = Folder::new();
        let (shared, target) = (folder.file("shared"), folder.file("target"));
        fs::create_dir(&shared).unwrap();
        fs::create_dir(&target).unwrap();
        let link = shared.join("link");
        symlink("../target", &link).unwrap();
        let (file, deep) = (link.join("x.pcapng"), link.join("new/x.pcapng"));
        assert_eq!(refusal(&file), [None, None, None], "a link of this user is followed");
        fs::remove_file(target.join("x.pcapng")).unwrap();
        if let Err(error) = lchown(&link, Some(OTHER), None) {
            return skip(format!("cannot change the owner of a link: {error}"));
        }
        for path in [&file, &deep] {
            for error in refusal(path) {
                let expected = format!("the symbolic link {} belongs to another user; help: ", link.display());
                assert!(error.as_ref().is_some_and(|error| error.starts_with(&expected)), "{error:?}");
            }
        }
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
        // A link of the folder's owner is followed, because the owner controls the content of the folder in any case.
        chown(&shared, Some(OTHER), None).unwrap();
        create_folders(&deep).unwrap();
        LockedFile::output(&deep, Readers::Owner).unwrap();
        assert!(target.join("new/x.pcapng").exists());
    }

    #[test]
    fn file_of_another_user_is_not_written() {
        let folder = Folder::new();
        fs::create_dir(folder.file("shared")).unwrap();
        let file = folder.file("shared/x.pcapng");
        fs::write(&file, "kept").unwrap();
        if let Err(error) = chown(&file, Some(OTHER), None) {
            return skip(format!("cannot change the owner of a file: {error}"));
        }
        let [check, output, folders] = refusal(&file);
        assert_eq!((check.is_some(), folders), (true, None));
        let expected = format!("the file {} belongs to another user (number {OTHER})", file.display());
        assert!(output.as_ref().is_some_and(|error| error.starts_with(&expected)), "{output:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        chown(folder.file("shared"), Some(OTHER), None).unwrap();
        assert_eq!(refusal(&file), [None, None, None]);
    }

    #[test]
    fn replaced_file_has_the_whole_text_or_keeps_its_content() {
        let folder = Folder::new();
        let file = folder.write("a.toml", "old");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        replace(&file, b"new").unwrap().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        // A file with the name of the temporary file exists, so `replace` writes nothing.
        let taken = folder.write(&format!(".a.toml.{}.new", std::process::id()), "other");
        assert!(replace(&file, b"later").is_err());
        let texts = [&file, &taken].map(|file| fs::read_to_string(file).unwrap());
        assert_eq!(texts, ["new", "other"]);
        assert!(replace(folder.path(), b"text").is_err());
        // A link of this user stays a link.
        fs::remove_file(&taken).unwrap();
        let link = folder.file("link.toml");
        symlink("a.toml", &link).unwrap();
        replace(&link, b"by the link").unwrap().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "by the link");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        if let Err(error) = lchown(&link, Some(OTHER), None) {
            return skip(format!("cannot change the owner of a link: {error}"));
        }
        let error = replace(&link, b"by a link of another user").unwrap_err();
        assert!(error.to_string().contains("belongs to another user"), "{error}");
        chown(&file, Some(OTHER), None).unwrap();
        let error = replace(&file, b"in a file of another user").unwrap_err();
        assert!(error.to_string().contains("who may then change it"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "by the link");
    }

    #[test]
    fn replaced_file_keeps_its_access_control_list() {
        let folder = Folder::new();
        let file = folder.write("a.toml", "old");
        // The owner may read and write, user 12345 may read, the group has no permission, and the mask is `r--`.
        let entries = [(0x01u16, 6u16, u32::MAX), (0x02, 4, OTHER), (0x04, 0, u32::MAX), (0x10, 4, u32::MAX)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries.into_iter().chain([(0x20, 0, u32::MAX)]) {
            list.extend(tag.to_le_bytes().into_iter().chain(permissions.to_le_bytes()).chain(id.to_le_bytes()));
        }
        if let Err(error) = fsetxattr(File::open(&file).unwrap(), ACCESS_LIST, &list, XattrFlags::empty()) {
            return skip(format!("cannot set an access control list: {error}"));
        }
        let access = || {
            let known = File::from(openat(CWD, folder.path(), LOOKUP | OFlags::DIRECTORY, Mode::empty()).unwrap());
            let mode = fs::metadata(&file).unwrap().mode() & 0o777;
            (access_list(&known, &"a.toml".into()).unwrap(), mode)
        };
        assert_eq!(access(), (Some(list.clone()), 0o640));
        replace(&file, b"new").unwrap().unwrap();
        assert_eq!(access(), (Some(list), 0o640));
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    }

    #[test]
    fn file_that_loses_its_group_permits_no_further_user() {
        for (before, after) in [(0o640, 0o600), (0o644, 0o644), (0o604, 0o600), (0o664, 0o644), (0o4755, 0o755)] {
            assert_eq!(without_group(before), after, "{before:o}");
        }
    }

    #[test]
    fn links_lead_to_the_file_and_loops_end() {
        let folder = Folder::new();
        fs::create_dir_all(folder.file("a/b")).unwrap();
        symlink("b/../b", folder.file("a/link")).unwrap();
        symlink(folder.file("a/link/missing.pcap"), folder.file("x.pcap")).unwrap();
        symlink("loop.pcap", folder.file("loop.pcap")).unwrap();
        LockedFile::output(&folder.file("./x.pcap"), Readers::Owner).unwrap();
        assert!(folder.file("a/b/missing.pcap").is_file());
        let error = LockedFile::output(&folder.file("loop.pcap"), Readers::Owner).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
        let below_a_file = folder.file("x.pcap/y.pcap");
        assert_eq!(can_be_written(&below_a_file).unwrap_err().kind(), ErrorKind::NotADirectory);
    }
}
