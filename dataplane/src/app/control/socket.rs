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
use crate::file;

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
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let process = process_of(&entry.file_name())?;
        let about = entry.metadata().ok().filter(|about| about.file_type().is_socket())?;
        Some((process, entry.path(), is_own(&about)))
    })
}

/// Whether it is this user's.
fn is_own(about: &Metadata) -> bool {
    about.uid() == geteuid().as_raw()
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
    format!("{}: a socket cannot be made there: {error}", path.display())
}

/// The most bytes of the path of a socket. The kernel has room for one more, but for none behind it: many programs, which
/// may want to ask there too, end the path with a zero (unix(7)).
const LONGEST: usize = 107;

/// The address of a path, or why there can be none.
pub(super) fn address(path: &Path) -> Result<SocketAddrUnix, String> {
    let bytes = path.as_os_str().len();
    if bytes > LONGEST {
        let path = path.display();
        return Err(format!("{path}: the path of a socket has at most {LONGEST} bytes, and this one has {bytes}"));
    }
    SocketAddrUnix::new(path).map_err(|error| failed(path, &error.into()))
}

/// What keeps a socket from where the config wants it, as far as that can be told without making one; and what to do. That
/// another program listens there is not looked at.
pub(in crate::app) fn flaw(wish: &Control) -> Option<(String, String)> {
    let Control::Path(path) = wish else { return None };
    if let Err(why) = address(path) {
        let which = if path.as_os_str().len() > LONGEST { "a shorter" } else { "another" };
        return Some((why, format!("name {which} path, such as \"/run/dataplane.sock\"")));
    }
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            return Some((no_socket(path), "name a path where there is nothing yet".to_owned()));
        }
        _ => {}
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(there) if there.is_dir() => {
            let error = file::can_be_filled(folder).err()?;
            Some((failed(path, &error), "name a path in a folder that you may write to".to_owned()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Some((
            format!("{shown}: there is no such folder"),
            format!("make it by `mkdir -p {shown}`, or name another"),
        )),
        Ok(_) | Err(_) => Some((format!("{shown}: this is no folder that can be used"), "name another".to_owned())),
    }
}

fn no_socket(path: &Path) -> String {
    format!("{}: there is something that is no socket", path.display())
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
        address(&path)?;
        let failed = |error: io::Error| failed(&path, &error);
        let new = folder.join(format!(".dataplane-{}", process::id()));
        // Of a program that was this process before.
        if fs::symlink_metadata(&new).is_ok_and(|there| there.file_type().is_socket() && is_own(&there)) {
            let _ = fs::remove_file(&new);
        }
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
        if let Some((why, fix)) = flaw(&Control::Path(path.to_owned())) {
            return Err(format!("{why}: {fix}"));
        }
        let unlocked = |error| format!("{}.lock: a file cannot be locked there: {error}", path.display());
        let lock = Lock::take(path).map_err(unlocked)?.ok_or_else(another)?;
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(no_socket(path));
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

/// Keeps other programs from a path, by an empty file beside it. Dropping it removes the file.
struct Lock {
    path: PathBuf,
    identity: Identity,
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
            let about = file.metadata()?;
            let refused = |why: &str| {
                let why = format!("{why}: take it away, or name another path for the socket");
                Err(io::Error::new(ErrorKind::AlreadyExists, why))
            };
            // Such as a program of this kind leaves that is killed. Anything else would be lost at the end.
            if !about.is_file() || about.len() > 0 {
                return refused("there is something that is no lock");
            }
            let identity = identity(&about);
            match file.try_lock() {
                Ok(()) if !is_own(&about) => return refused("a program of another user has left one there"),
                Ok(()) if is_still(&path, identity) => return Ok(Some(Self { path, identity, _file: file })),
                // Whoever had it has just removed it.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if is_still(&self.path, self.identity) {
            let _ = fs::remove_file(&self.path);
        }
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
