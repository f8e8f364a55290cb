//! The paths of control sockets.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;

/// The maximum length of a socket path, in bytes. The kernel allows one more byte, but only without a final zero. Many
/// other programs need the final zero (unix(7)).
pub const MAX_PATH: usize = 107;

/// A control socket in a default folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ControlSocket {
    /// The process id in the name of the socket.
    pub process: u32,
    /// The path of the socket.
    pub path: PathBuf,
    /// Whether the socket belongs to the user of the calling process. Any user can create a socket with the name of any
    /// process.
    pub is_own: bool,
}

/// Returns the folders for control sockets, in order of preference.
pub fn folders() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let mut folders: Vec<PathBuf> = own.into_iter().chain(["/run".into(), std::env::temp_dir()]).collect();
    folders.dedup();
    folders
}

/// Returns the file name of the socket of a process.
pub fn name(process: u32) -> String {
    format!("dataplane-{process}.sock")
}

/// Returns the process id in the file name of a socket.
fn process_of(name: &OsStr) -> Option<u32> {
    name.to_str()?.strip_prefix("dataplane-")?.strip_suffix(".sock")?.parse().ok()
}

/// Returns the sockets in a folder. A program that was killed leaves its socket behind.
pub fn sockets_in(folder: &Path) -> impl Iterator<Item = ControlSocket> {
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let process = process_of(&entry.file_name())?;
        let about = entry.metadata().ok().filter(|about| about.file_type().is_socket())?;
        Some(ControlSocket { process, path: entry.path(), is_own: is_own(&about) })
    })
}

/// Returns `true` if the user of this process owns the file.
pub fn is_own(about: &Metadata) -> bool {
    about.uid() == geteuid().as_raw()
}

/// Returns the socket address of a path.
///
/// # Errors
/// Returns the reason why the path is not a valid address, such as a path of more than [`MAX_PATH`] bytes.
pub fn address(path: &Path) -> Result<SocketAddrUnix, String> {
    let (bytes, shown) = (path.as_os_str().len(), path.display());
    if bytes > MAX_PATH {
        return Err(format!("the socket path {shown} has {bytes} bytes, more than the maximum of {MAX_PATH}"));
    }
    SocketAddrUnix::new(path).map_err(|error| format!("the socket path {shown} is not valid: {error}"))
}

/// Creates a Unix stream socket.
///
/// # Errors
/// Returns the errors of socket(2).
pub fn unix(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)?)
}
