//! The listening control socket of a running program. The program removes the socket file when the program ends.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, chmod, chownat, fchmod, open, renameat_with};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, bind, connect, listen};

use super::upgrade::SharedListener;
use crate::config::{Control, Runtime};
use dataplane_control::socket::{ControlSocket, MAX_PATH, address, folders, is_own, name, sockets_in, unix};
use dataplane_core::file;

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket. Dropping this value removes the socket file.
pub(in crate::app) struct Socket {
    pub(in crate::app) listener: UnixListener,
    path: PathBuf,
    /// The identity of the socket file. The path may later name the file of another program, which must not be removed.
    identity: DeviceAndInode,
    /// The lock on the path, if the config names the path. `None` for a socket in a default folder.
    lock: Option<Lock>,
}

/// The device and inode of a file.
type DeviceAndInode = (u64, u64);

/// Returns `true` if a program listens on the socket. Returns an error if that is unknown.
fn is_alive(path: &Path) -> io::Result<bool> {
    match connect(unix(SocketFlags::NONBLOCK)?, &SocketAddrUnix::new(path)?) {
        // EAGAIN means that the backlog is full, so a program listens.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the error message for a socket that cannot be created.
fn failed(path: &Path, error: &io::Error) -> String {
    format!("cannot create the socket {}: {error}", path.display())
}

/// Checks whether the control socket can be created, but does not create the socket. Returns the problem and its fix.
/// Does not check whether another program listens on the path.
pub(in crate::app) fn problem(control: &Control) -> Option<(String, String)> {
    let Control::Path(path) = control else { return None };
    path_problem(path)
}

/// Checks whether the program can create a socket at a path, but does not create the socket. Returns the problem and
/// its fix.
pub(in crate::app) fn path_problem(path: &Path) -> Option<(String, String)> {
    if let Err(why) = address(path) {
        let which = if path.as_os_str().len() > MAX_PATH { "a shorter" } else { "another" };
        return Some((why, format!("name {which} path, such as \"/run/dataplane.sock\"")));
    }
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            return Some((no_socket(path), "name a path that does not exist yet".to_owned()));
        }
        _ => {}
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(there) if there.is_dir() => {
            let error = file::can_create_in(folder).err()?;
            Some((failed(path, &error), "name a path in a writable folder".to_owned()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Some((
            format!("the folder {shown} does not exist"),
            format!("run `mkdir -p {shown}`, or name another folder"),
        )),
        Ok(_) | Err(_) => {
            Some((format!("{shown} is not a folder, or not accessible"), "name another folder".to_owned()))
        }
    }
}

/// Checks the key `control_group`. Returns the problem of the group, and the fix.
pub(in crate::app) fn group_problem(runtime: &Runtime) -> Option<(String, String)> {
    let error = file::group_number(runtime.control_group.as_deref()?).err()?.to_string();
    let (what, fix) = error.split_once("; help: ").unwrap_or((&error, "name another group"));
    Some((what.to_owned(), fix.to_owned()))
}

/// Returns the path of a control socket on which another program listens.
pub(in crate::app) fn in_use(control: &Control) -> Option<&Path> {
    let Control::Path(path) = control else { return None };
    has_listener(path).then_some(path)
}

/// Returns `true` if a program listens on the socket at a path.
pub(in crate::app) fn has_listener(path: &Path) -> bool {
    is_alive(path).is_ok_and(|alive| alive)
}

fn no_socket(path: &Path) -> String {
    format!("{} exists and is not a socket", path.display())
}

/// Creates a listening socket at a path that does not exist yet. The members of `group` may connect too.
fn listener(path: &Path, group: Option<u32>) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let listener = unix(SocketFlags::NONBLOCK)?;
    // Linux gives the socket file the mode of the socket, so the file never has other permissions (unix(7)).
    fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
    bind(&listener, &address)?;
    if let Some(group) = group {
        // Another user may replace the path in a shared folder, so change the file by its descriptor.
        let file = open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        chownat(&file, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
        // fchmod(2) does not accept a descriptor that was opened with `O_PATH`.
        let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        chmod(descriptor, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)?;
    }
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

impl Socket {
    /// Opens the control socket that the config selects. Returns `None` if the config disables the control socket, or
    /// if `"auto"` finds no usable folder.
    ///
    /// # Errors
    /// Returns an error if the config names a path and the socket cannot be created there. With `"auto"`, a failure is
    /// only a warning.
    pub(super) fn open(runtime: &Runtime) -> Result<Option<Self>, String> {
        let group = runtime.control_group.as_deref().map(file::group_number).transpose();
        let group = group.map_err(|why| format!("runtime.control_group: {why}"))?;
        match &runtime.control {
            Control::None => return Ok(None),
            Control::Path(path) => {
                return Self::at(path, group, "runtime.control").map(Some);
            }
            Control::Auto => {}
        }
        let mut failures = Vec::new();
        for folder in folders() {
            remove_stale(&folder);
            match Self::within(&folder, group) {
                Ok(socket) => return Ok(Some(socket)),
                Err(why) => failures.push(why),
            }
        }
        tracing::warn!("no control socket, so `stats` cannot find this program: {}", failures.join(", "));
        Ok(None)
    }

    /// Creates a socket in a default folder. The program listens on the socket before the socket gets its final name.
    /// So if nobody listens on a socket with a final name, the program that created the socket has ended, and the
    /// socket is stale.
    fn within(folder: &Path, group: Option<u32>) -> Result<Self, String> {
        let path = folder.join(name(process::id()));
        address(&path)?;
        let failed = |error: io::Error| failed(&path, &error);
        let new = folder.join(format!(".dataplane-{}", process::id()));
        // A previous process with the same id may have left this file.
        if fs::symlink_metadata(&new).is_ok_and(|there| there.file_type().is_socket() && is_own(&there)) {
            let _ = fs::remove_file(&new);
        }
        let listener = listener(&new, group).map_err(failed)?;
        if let Err(error) = renameat_with(CWD, &new, CWD, &path, RenameFlags::NOREPLACE) {
            let _ = fs::remove_file(&new);
            return Err(failed(error.into()));
        }
        Self::new(listener, &path, None).map_err(failed)
    }

    /// Creates a socket at the path that the key `key` of the config names. The members of `group` may connect too.
    ///
    /// # Errors
    /// Returns an error that starts with the key.
    pub(in crate::app) fn at(path: &Path, group: Option<u32>, key: &str) -> Result<Self, String> {
        Self::try_at(path, group, key).map_err(|why| format!("{key}: {why}"))
    }

    fn try_at(path: &Path, group: Option<u32>, key: &str) -> Result<Self, String> {
        let failed = |error: io::Error| failed(path, &error);
        let another = || {
            let path = path.display();
            format!("another program listens on {path}; help: stop that program, or set another path in `{key}`")
        };
        if let Some((why, fix)) = path_problem(path) {
            return Err(format!("{why}; help: {fix}"));
        }
        // The lock or the socket belongs to another user.
        let help = |error: &io::Error| match error.kind() {
            ErrorKind::PermissionDenied => format!("; help: set another path in `{key}`"),
            _ => String::new(),
        };
        let unlocked = |error: io::Error| format!("cannot lock {}.lock: {error}{}", path.display(), help(&error));
        let lock = Lock::take(path).map_err(unlocked)?.ok_or_else(another)?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(no_socket(path));
            }
            Ok(_) => match is_alive(path) {
                Ok(true) => return Err(another()),
                // The socket is from a killed program.
                Ok(false) => fs::remove_file(path).map_err(failed)?,
                Err(error) => {
                    let unknown = "cannot detect whether a program listens on the existing socket";
                    return Err(format!("{}: {unknown}: {error}{}", path.display(), help(&error)));
                }
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        listener(path, group).and_then(|listener| Self::new(listener, path, Some(lock))).map_err(failed)
    }

    fn new(listener: OwnedFd, path: &Path, lock: Option<Lock>) -> io::Result<Self> {
        let identity = identity(&fs::symlink_metadata(path)?);
        Ok(Self { listener: listener.into(), path: path.to_owned(), identity, lock })
    }

    /// Returns the parts of the socket that another program needs to take over the socket. Returns `None` for a socket
    /// in a default folder, because its name has the process id.
    ///
    /// # Errors
    /// Fails if the process has no free descriptors.
    pub(in crate::app) fn share(&self) -> io::Result<Option<SharedListener>> {
        let Some(lock) = &self.lock else { return Ok(None) };
        let (listener, file) = (self.listener.as_fd().try_clone_to_owned()?, lock.file.as_fd().try_clone_to_owned()?);
        Ok(Some(SharedListener { listener, lock: Some(file), is_handed: lock.is_handed.clone() }))
    }

    /// Takes over a socket of another program.
    ///
    /// # Errors
    /// Fails if the path does not name the socket any more.
    pub(in crate::app) fn take_over(path: &Path, listener: OwnedFd, lock: OwnedFd) -> io::Result<Self> {
        let file = File::from(lock);
        let lock_path = path.with_added_extension("lock");
        let lock = Lock { path: lock_path, identity: identity(&file.metadata()?), file, is_handed: Arc::default() };
        let socket = Self::new(listener, path, Some(lock))?;
        socket.listener.set_nonblocking(true)?;
        Ok(socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let is_handed = self.lock.as_ref().is_some_and(|lock| lock.is_handed.load(Ordering::Acquire));
        if !is_handed && is_same_file(&self.path, self.identity) {
            // Ignore an error, because the next program detects that no program listens on the socket.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(about: &Metadata) -> DeviceAndInode {
    (about.dev(), about.ino())
}

/// Returns `true` if the path still names this file.
fn is_same_file(path: &Path, identified: DeviceAndInode) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| identity(&there) == identified)
}

/// A lock on a socket path: an empty file next to the socket. Dropping this value removes the lock file.
struct Lock {
    path: PathBuf,
    identity: DeviceAndInode,
    /// The lock ends when all copies of this descriptor are closed, so the lock ends with the program even if the program
    /// is killed.
    file: File,
    /// Whether another program has taken over the socket and the lock.
    is_handed: Arc<AtomicBool>,
}

impl Lock {
    /// Takes the lock. Returns `None` if another program holds the lock.
    fn take(path: &Path) -> io::Result<Option<Self>> {
        let path = path.with_added_extension("lock");
        // In a shared folder, another user may have created anything at this path.
        let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        loop {
            let refused = |why: &str| {
                let why = format!("{why}; help: remove the file, or set another socket path");
                Err(io::Error::new(ErrorKind::AlreadyExists, why))
            };
            let file = match open(&path, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => File::from(file),
                Err(Errno::LOOP) => return refused("the path is a symbolic link"),
                Err(error) => return Err(error.into()),
            };
            let about = file.metadata()?;
            // A killed program leaves an empty file. Refuse any other file, because dropping the lock would delete it.
            if !about.is_file() || about.len() > 0 {
                return refused("the path exists and is not a lock file");
            }
            let identity = identity(&about);
            match file.try_lock() {
                Ok(()) if !is_own(&about) => return refused("the lock file belongs to another user"),
                Ok(()) if is_same_file(&path, identity) => {
                    return Ok(Some(Self { path, identity, file, is_handed: Arc::default() }));
                }
                // The previous owner has just removed the file, so try again.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.is_handed.load(Ordering::Acquire) && is_same_file(&self.path, self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the sockets that killed programs of this user left behind.
fn remove_stale(folder: &Path) {
    for ControlSocket { path, is_own, .. } in sockets_in(folder) {
        if is_own && is_alive(&path).is_ok_and(|alive| !alive) {
            let _ = fs::remove_file(path);
        }
    }
}
