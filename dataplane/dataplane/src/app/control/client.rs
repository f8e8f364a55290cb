//! The client side of the control socket.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, connect};
use serde::Deserialize as _;
use serde_json::Value;

use super::{Refusal, STATS, TIMEOUT, socket};

/// The maximum length of an answer, in bytes.
const MAX_ANSWER: u64 = 64 << 20;

/// The control sockets of running programs.
pub(in crate::app) struct Found {
    /// The sockets of this user, by process id. Some sockets may belong to killed programs.
    pub(in crate::app) own: Vec<(u32, PathBuf)>,
    /// The number of sockets of other users. The client does not connect to such sockets.
    pub(in crate::app) others: usize,
}

impl Found {
    /// Finds the sockets in these folders.
    pub(in crate::app) fn within(folders: &[PathBuf]) -> Self {
        let (own, others): (Vec<_>, Vec<_>) =
            folders.iter().flat_map(|folder| socket::sockets(folder)).partition(|(_, _, is_own)| *is_own);
        let mut own: Vec<_> = own.into_iter().map(|(process, path, _)| (process, path)).collect();
        own.sort();
        own.dedup();
        Self { own, others: others.len() }
    }
}

/// The answer of a program.
pub(in crate::app) struct Answer {
    /// The answer as one line of JSON.
    pub(in crate::app) line: String,
    /// The parsed answer. Control characters in strings are replaced, because a terminal would interpret them.
    pub(in crate::app) value: Value,
}

impl Answer {
    fn of(line: &str) -> serde_json::Result<Self> {
        let mut value = serde_json::from_str(line)?;
        clean(&mut value);
        // JSON escapes control characters below U+0020, but not the control characters from U+007F.
        let line = line.trim_end().replace(char::is_control, " ") + "\n";
        Ok(Self { line, value })
    }
}

fn clean(value: &mut Value) {
    let plain = |text: &str| text.replace(char::is_control, "\u{fffd}");
    match value {
        Value::String(text) => *text = plain(text),
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Object(fields) => {
            fields.values_mut().for_each(clean);
            *fields = std::mem::take(fields).into_iter().map(|(name, value)| (plain(&name), value)).collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A connection to a running program.
pub(in crate::app) struct Connection {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Connection {
    /// Connects to the socket at a path.
    ///
    /// # Errors
    /// Returns the errors of [`connect`]: there is no socket (`ENOENT`), no program listens (`ECONNREFUSED`), or this
    /// user has no access (`EACCES`). Also returns an error if the path is too long for a socket.
    pub(in crate::app) fn open(path: &Path) -> io::Result<Self> {
        let address = socket::address(path).map_err(|why| io::Error::new(ErrorKind::InvalidFilename, why))?;
        let stream = socket::unix(SocketFlags::empty())?;
        for direction in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&stream, direction, Some(TIMEOUT))?;
        }
        connect(&stream, &address)?;
        Ok(Self { stream: BufReader::new(stream.into()), path: path.to_owned() })
    }

    /// Requests the statistics of the program. Returns `None` if the program has ended.
    ///
    /// # Errors
    /// Returns an error if the program does not answer, refuses the request, or sends invalid JSON.
    pub(in crate::app) fn stats(&mut self) -> Result<Option<Answer>, String> {
        let failed = |why: &str| Err(format!("{}: {why}", self.path.display()));
        let mut line = Vec::new();
        let asked = match self.stream.get_mut().write_all(format!("{STATS}\n").as_bytes()) {
            // The program may have sent an error before it closed the connection.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            asked => asked,
        };
        let read = asked.and_then(|()| self.stream.by_ref().take(MAX_ANSWER).read_until(b'\n', &mut line));
        match read {
            Ok(_) if line.ends_with(b"\n") => {}
            Ok(_) if line.len() as u64 == MAX_ANSWER => return failed("the answer is too long"),
            Ok(_) => return Ok(None),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionReset => return Ok(None),
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    let timeout = TIMEOUT.as_secs();
                    return failed(&format!("no answer within {timeout} s; the program may still be starting"));
                }
                _ => return failed(&error.to_string()),
            },
        }
        let Ok(line) = String::from_utf8(line) else { return failed("the answer is not UTF-8 text") };
        match Answer::of(&line).map(|answer| (Refusal::deserialize(&answer.value), answer)) {
            Ok((Ok(refusal), _)) => failed(&refusal.error),
            Ok((Err(_), answer)) => Ok(Some(answer)),
            Err(error) => failed(&format!("this version cannot read the answer: {error}")),
        }
    }
}
