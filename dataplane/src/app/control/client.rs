//! The side that asks.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketAddrUnix, SocketFlags, connect};

use super::{PATIENCE, Refusal, STATS, socket};

/// The most bytes of an answer that are taken.
const MOST: u64 = 64 << 20;

/// The sockets of programs that run.
pub(in crate::app) struct Found {
    /// Of this user, by process. Some may be of programs that were killed.
    pub(in crate::app) own: Vec<(u32, PathBuf)>,
    /// How many there are of others, which are left alone.
    pub(in crate::app) others: usize,
}

impl Found {
    /// Those in these folders.
    pub(in crate::app) fn within(folders: &[PathBuf]) -> Self {
        let (own, others): (Vec<_>, Vec<_>) =
            folders.iter().flat_map(|folder| socket::sockets(folder)).partition(|(_, _, is_own)| *is_own);
        let mut own: Vec<_> = own.into_iter().map(|(process, path, _)| (process, path)).collect();
        own.sort();
        Self { own, others: others.len() }
    }
}

/// Where the socket of a process may be.
pub(in crate::app) fn of_process(process: u32) -> impl Iterator<Item = PathBuf> {
    socket::folders().into_iter().map(move |folder| folder.join(socket::name(process)))
}

/// A connection to a program that runs.
pub(in crate::app) struct Connection {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Connection {
    /// # Errors
    /// Of [`connect`]: there is no socket (`ENOENT`), nobody listens (`ECONNREFUSED`), or not to this user (`EACCES`).
    pub(in crate::app) fn open(path: &Path) -> io::Result<Self> {
        let stream = socket::unix(SocketFlags::empty())?;
        for direction in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&stream, direction, Some(PATIENCE))?;
        }
        connect(&stream, &SocketAddrUnix::new(path)?)?;
        Ok(Self { stream: BufReader::new(stream.into()), path: path.to_owned() })
    }

    /// Asks what the program is doing: a line of JSON. `None`: it has ended.
    ///
    /// # Errors
    /// It does not answer, or not so.
    pub(in crate::app) fn stats(&mut self) -> Result<Option<String>, String> {
        let failed = |why: &str| Err(format!("{}: {why}", self.path.display()));
        let mut line = Vec::new();
        let asked = self.stream.get_mut().write_all(format!("{STATS}\n").as_bytes());
        let read = asked.and_then(|()| self.stream.by_ref().take(MOST).read_until(b'\n', &mut line));
        match read {
            Ok(_) if line.ends_with(b"\n") => {}
            Ok(_) if line.len() as u64 == MOST => return failed("the answer does not end"),
            Ok(_) => return Ok(None),
            Err(error) => match error.kind() {
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => return Ok(None),
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    let patience = PATIENCE.as_secs();
                    return failed(&format!("no answer in {patience} s: the program may still be starting"));
                }
                _ => return failed(&error.to_string()),
            },
        }
        match (serde_json::from_slice::<Refusal>(&line), String::from_utf8(line)) {
            (Ok(refusal), _) => failed(&refusal.error),
            (_, Ok(line)) => Ok(Some(line)),
            (_, Err(_)) => failed("the answer is no text"),
        }
    }
}
