//! The errors of a client.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::Refusal;

/// The reason why a request has no result.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The path of the socket is not valid. The text names the path.
    Path(String),
    /// No program listens on the socket.
    NotListening(PathBuf),
    /// The program has too many clients.
    Busy(PathBuf),
    /// The socket cannot be used, for example because this user has no access.
    Socket(PathBuf, io::Error),
    /// No process with this id has a control socket of this user in the default folders.
    NoProcess(u32),
    /// No program of this user runs. `others` is the number of control sockets of other users.
    NotRunning {
        /// The number of control sockets of other users.
        others: usize,
    },
    /// Several programs of this user run.
    Several(Vec<u32>),
    /// The program did not answer in time. The number is the time limit in seconds.
    Timeout(PathBuf, u64),
    /// The program ended, or closed the connection. A client cannot distinguish these cases.
    Ended(PathBuf),
    /// The program refused the request.
    Refused(PathBuf, Refusal),
    /// The answer is not an answer of this protocol. The text has the reason.
    Answer(PathBuf, String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(why) => f.write_str(why),
            Self::NotListening(path) => write!(f, "{}: no program listens on this socket", path.display()),
            Self::Busy(path) => write!(f, "{}: the program has too many clients", path.display()),
            Self::Socket(path, error) => write!(f, "{}: {error}", path.display()),
            Self::NoProcess(process) => {
                write!(f, "process {process} has no control socket of this user in the default folders")
            }
            Self::NotRunning { others: 0 } => f.write_str("no running program of this user"),
            Self::NotRunning { others } => write!(f, "no running program of this user, but {others} of other users"),
            Self::Several(processes) => {
                let processes: Vec<String> = processes.iter().map(u32::to_string).collect();
                write!(f, "several programs of this user are running, with the process ids {}", processes.join(", "))
            }
            Self::Timeout(path, seconds) => {
                let path = path.display();
                write!(
                    f,
                    "{path}: no answer within {seconds} s; the program may still be starting, or may be suspended by a signal (SIGSTOP)"
                )
            }
            Self::Ended(path) => write!(f, "{}: the program closed the connection before it answered", path.display()),
            Self::Refused(path, refusal) => write!(f, "{}: {refusal}", path.display()),
            Self::Answer(path, why) => write!(f, "{}: this version cannot read the answer: {why}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Socket(_, error) => Some(error),
            _ => None,
        }
    }
}
