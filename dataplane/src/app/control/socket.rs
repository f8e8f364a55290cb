//! The socket of a program that runs: where it is, and that it is gone when the program is.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, process, thread};

use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use rustix::process::geteuid;

use crate::app::console::Stop;
use crate::config::Control;

/// Connections that wait to be taken.
const BACKLOG: i32 = 16;
/// How long another program may take to put its socket into the same folder.
const TURN: Duration = Duration::from_secs(1);

/// A socket that is listened at. Dropping it removes it.
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode: what is at the path later may be another's.
    identity: (u64, u64),
}

/// The folders for sockets of programs that run, the best first.
pub(in crate::app) fn folders() -> Vec<PathBuf> {
    let own = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut folders: Vec<PathBuf> = own.into_iter().chain(["/run".into(), env::temp_dir()]).collect();
    folders.dedup();
    folders
}

/// What the socket of a process is called.
pub(super) fn name(process: u32) -> String {
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

/// Whether somebody listens there. Of a socket that may not be asked that is to be believed.
fn is_alive(path: &Path) -> io::Result<bool> {
    let address = SocketAddrUnix::new(path)?;
    Ok(connect(unix(SocketFlags::NONBLOCK)?, &address) != Err(Errno::CONNREFUSED))
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
            match Self::at(&folder.join(name(process::id()))) {
                Ok(socket) => return Ok(Some(socket)),
                Err(why) => failures.push(why),
            }
        }
        tracing::warn!("`stats` will not find this program: {}", failures.join("; "));
        Ok(None)
    }

    fn at(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NAMETOOLONG) => format!("{}: the path of a socket has at most 107 bytes", path.display()),
            _ => format!("{}: a socket cannot be made there: {error}", path.display()),
        };
        let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
        let _turn = turn(path.parent().unwrap_or(Path::new("/"))).map_err(failed)?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(format!("{}: there is something that is no socket", path.display()));
            }
            Ok(_) if is_alive(path).map_err(failed)? => {
                return Err(format!("{}: another program listens there", path.display()));
            }
            // Of a program that was killed.
            Ok(_) => fs::remove_file(path).map_err(failed)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = unix(SocketFlags::NONBLOCK).map_err(failed)?;
        // Linux gives the file the mode of the socket, so that it never has another (unix(7)).
        let made = fchmod(&listener, Mode::RUSR | Mode::WUSR).and_then(|()| bind(&listener, &address));
        made.and_then(|()| listen(&listener, BACKLOG)).map_err(|error| failed(error.into()))?;
        let identity = identity(path).map_err(failed)?;
        Ok(Self { listener: listener.into(), path: path.to_owned(), identity })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|there| there == self.identity) {
            // If it cannot be removed, the next program sees that nobody listens.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

/// Waits until no other program puts its socket into the folder: one that is not listened at yet looks like one that was
/// left behind.
fn turn(folder: &Path) -> io::Result<File> {
    let folder = File::open(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })?;
    let begin = Instant::now();
    loop {
        match folder.try_lock() {
            Ok(()) => return Ok(folder),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if begin.elapsed() < TURN => thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(ErrorKind::ResourceBusy, "another program holds a lock on the folder"));
            }
        }
    }
}

/// Removes what programs of this user left behind that were killed.
fn sweep(folder: &Path) {
    let Ok(_turn) = turn(folder) else { return };
    for (_, path, is_own) in sockets(folder) {
        if is_own && is_alive(&path).is_ok_and(|alive| !alive) {
            let _ = fs::remove_file(path);
        }
    }
}
