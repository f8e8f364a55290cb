//! The side that asks.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, connect};
use serde::Deserialize as _;
use serde_json::Value;

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
        own.dedup();
        Self { own, others: others.len() }
    }
}

/// What a program says of itself, if it is one of ours.
pub(in crate::app) struct Answer {
    /// A line of JSON.
    pub(in crate::app) line: String,
    /// What is in it. No text has control characters, such as a terminal would obey.
    pub(in crate::app) value: Value,
}

impl Answer {
    fn of(line: &str) -> serde_json::Result<Self> {
        let mut value = serde_json::from_str(line)?;
        clean(&mut value);
        // In JSON those below U+0020 have been written as escapes; others need not be.
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

/// A connection to a program that runs.
pub(in crate::app) struct Connection {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Connection {
    /// # Errors
    /// Of [`connect`]: there is no socket (`ENOENT`), nobody listens (`ECONNREFUSED`), or not to this user (`EACCES`); or
    /// the path can be none of a socket.
    pub(in crate::app) fn open(path: &Path) -> io::Result<Self> {
        let address = socket::address(path).map_err(|why| io::Error::new(ErrorKind::InvalidFilename, why))?;
        let stream = socket::unix(SocketFlags::empty())?;
        for direction in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&stream, direction, Some(PATIENCE))?;
        }
        connect(&stream, &address)?;
        Ok(Self { stream: BufReader::new(stream.into()), path: path.to_owned() })
    }

    /// Asks what the program is doing. `None`: it has ended.
    ///
    /// # Errors
    /// It does not answer, or by no line of JSON, or does not want to.
    pub(in crate::app) fn stats(&mut self) -> Result<Option<Answer>, String> {
        let failed = |why: &str| Err(format!("{}: {why}", self.path.display()));
        let mut line = Vec::new();
        let asked = match self.stream.get_mut().write_all(format!("{STATS}\n").as_bytes()) {
            // It may have said why before it hung up.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            asked => asked,
        };
        let read = asked.and_then(|()| self.stream.by_ref().take(MOST).read_until(b'\n', &mut line));
        match read {
            Ok(_) if line.ends_with(b"\n") => {}
            Ok(_) if line.len() as u64 == MOST => return failed("the answer does not end"),
            Ok(_) => return Ok(None),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionReset => return Ok(None),
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    let patience = PATIENCE.as_secs();
                    return failed(&format!("no answer in {patience} s: the program may still be starting"));
                }
                _ => return failed(&error.to_string()),
            },
        }
        let Ok(line) = String::from_utf8(line) else { return failed("the answer is no text") };
        match Answer::of(&line).map(|answer| (Refusal::deserialize(&answer.value), answer)) {
            Ok((Ok(refusal), _)) => failed(&refusal.error),
            Ok((Err(_), answer)) => Ok(Some(answer)),
            Err(error) => failed(&format!("an answer that this version cannot read: {error}")),
        }
    }
}
