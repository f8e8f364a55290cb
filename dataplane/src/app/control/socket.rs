//! The socket of a program that runs: where it is, and that it is gone when the program is.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::{env, process};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, fchmod, open, renameat_with};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::geteuid;

use crate::app::console::Stop;
use crate::config::Control;

/// Connections that wait to be taken.
const BACKLOG: i32 = 16;

/// A socket that is listened at. Dropping it removes it.
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// What is at the path later may be another's.
    identity: Identity,
    /// Of a path that the config names.
    _lock: Option<Lock>,
}

/// Device and inode.
type Identity = (u64, u64);

/// The folders for sockets of programs that run, the best first.
pub(in crate::app) fn folders() -> Vec<PathBuf> {
    let own = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut folders: Vec<PathBuf> = own.into_iter().chain(["/run".into(), env::temp_dir()]).collect();
    folders.dedup();
    folders
}

/// What the socket of a process is called.
fn name(process: u32) -> String {
    format!("dataplane-{process}.sock")
}

/// The process whose socket is called so.
fn process_of(name: &OsStr) -> Option<u32> {
    name.to_str()?.strip_prefix("dataplane-")?.strip_suffix(".sock")?.parse().ok()
}

/// The sockets in a folder that are called so: each with its process, and whether it is this user's.
pub(super) fn sockets(folder: &Path) -> impl Iterator<Item = (u32, PathBuf, bool)> {
    let user = geteuid().as_raw();
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(move |entry| {
        let process = process_of(&entry.file_name())?;
        let about = entry.metadata().ok().filter(|about| about.file_type().is_socket())?;
        Some((process, entry.path(), about.uid() == user))
    })
}

/// A new socket.
pub(super) fn unix(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)?)
}

/// Whether somebody listens there, if that can be found out.
fn is_alive(path: &Path) -> io::Result<bool> {
    match connect(unix(SocketFlags::NONBLOCK)?, &SocketAddrUnix::new(path)?) {
        // That others wait already is an answer too.
        Ok(()) | Err(Errno::AGAIN) => Ok(true),
        Err(Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Why there can be no socket.
fn failed(path: &Path, error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NAMETOOLONG) => format!("{}: the path of a socket has at most 107 bytes", path.display()),
        _ => format!("{}: a socket cannot be made there: {error}", path.display()),
    }
}

/// Listens at a path where there is nothing yet.
fn listener(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let listener = unix(SocketFlags::NONBLOCK)?;
    // Linux gives the file the mode of the socket, so that it never has another (unix(7)).
    fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
    bind(&listener, &address)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

impl Socket {
    /// Listens where that is wished. `None`: nowhere.
    ///
    /// # Errors
    /// It cannot be where the config says. That it cannot be where it would be by itself is a warning.
    pub(super) fn open(wish: &Control) -> Result<Option<Self>, Stop> {
        match wish {
            Control::None => return Ok(None),
            Control::Path(path) => {
                let socket = Self::at(path).map_err(|why| Stop::Failed(format!("runtime.control: {why}")))?;
                return Ok(Some(socket));
            }
            Control::Auto => {}
        }
        let mut failures = Vec::new();
        for folder in folders() {
            sweep(&folder);
            match Self::within(&folder) {
                Ok(socket) => return Ok(Some(socket)),
                Err(why) => failures.push(why),
            }
        }
        tracing::warn!("`stats` will not find this program: {}", failures.join("; "));
        Ok(None)
    }

    /// In a folder where it is looked for. It is listened at before it is called so: one that is not was left behind.
    fn within(folder: &Path) -> Result<Self, String> {
        let path = folder.join(name(process::id()));
        let failed = |error: io::Error| failed(&path, &error);
        let new = folder.join(format!(".dataplane-{}", process::id()));
        // Of a program that was this process before.
        let _ = fs::remove_file(&new);
        let listener = listener(&new).map_err(failed)?;
        if let Err(error) = renameat_with(CWD, &new, CWD, &path, RenameFlags::NOREPLACE) {
            let _ = fs::remove_file(&new);
            return Err(failed(error.into()));
        }
        Self::new(listener, &path, None).map_err(failed)
    }

    /// At a path that the config names.
    fn at(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| failed(path, &error);
        let another = || format!("{}: another program listens there", path.display());
        SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
        let unlocked = |error| format!("{}.lock: a file cannot be locked there: {error}", path.display());
        let lock = Lock::take(path).map_err(unlocked)?.ok_or_else(another)?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(format!("{}: there is something that is no socket", path.display()));
            }
            Ok(_) => match is_alive(path) {
                Ok(true) => return Err(another()),
                // Of a program that was killed.
                Ok(false) => fs::remove_file(path).map_err(failed)?,
                Err(error) => {
                    let unknown = "there is a socket that cannot be asked whether a program listens";
                    return Err(format!("{}: {unknown}: {error}", path.display()));
                }
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        listener(path).and_then(|listener| Self::new(listener, path, Some(lock))).map_err(failed)
    }

    fn new(listener: OwnedFd, path: &Path, lock: Option<Lock>) -> io::Result<Self> {
        let identity = identity(&fs::symlink_metadata(path)?);
        Ok(Self { listener: listener.into(), path: path.to_owned(), identity, _lock: lock })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if is_still(&self.path, self.identity) {
            // If it cannot be removed, the next program sees that nobody listens.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(about: &Metadata) -> Identity {
    (about.dev(), about.ino())
}

/// Whether this is what is at the path.
fn is_still(path: &Path, identified: Identity) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| identity(&there) == identified)
}

/// Keeps other programs from a path, by a file beside it. Dropping it removes the file.
struct Lock {
    path: PathBuf,
    /// It is locked as long as it is open, however the program ends.
    _file: File,
}

impl Lock {
    /// `None`: another program has it.
    fn take(path: &Path) -> io::Result<Option<Self>> {
        let path = path.with_added_extension("lock");
        // It may be anything, in a folder that is anybody's.
        let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        loop {
            let file = File::from(open(&path, flags, Mode::RUSR | Mode::WUSR)?);
            match file.try_lock() {
                // Otherwise whoever had it has just removed it.
                Ok(()) if is_still(&path, identity(&file.metadata()?)) => return Ok(Some(Self { path, _file: file })),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes what programs of this user left behind that were killed.
fn sweep(folder: &Path) {
    for (_, path, is_own) in sockets(folder) {
        if is_own && is_alive(&path).is_ok_and(|alive| !alive) {
            let _ = fs::remove_file(path);
        }
    }
}
