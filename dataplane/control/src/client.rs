//! The client.

use std::io::{self, BufRead, BufReader, ErrorKind};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{SocketFlags, connect};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::printable::printable;
use crate::socket;
use crate::upgrade::send_with_descriptors;
use crate::{Call, Error, Get, GetResult, Hello, Page, Refusal, Request, Response, Show, TIMEOUT, VERSION};

/// The maximum length of an answer, in bytes.
const MAX_ANSWER: usize = 64 << 20;

/// A connection to a running program.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
    timeout: Duration,
    /// The number of the last request.
    last: u64,
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    path: PathBuf,
    json: String,
}

impl Answer {
    /// Returns the result as one line of JSON, without a newline. JSON escapes control characters below U+0020. The
    /// control characters from U+007F are replaced by spaces, because a terminal would interpret them.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Parses the result. Control characters in strings are replaced by U+FFFD, because a terminal would interpret
    /// them.
    ///
    /// # Errors
    /// Fails if the result has another type.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        let parsed = serde_json::from_str(&self.json).and_then(|mut value| {
            clean(&mut value);
            T::deserialize(value)
        });
        parsed.map_err(|error| Error::Answer(self.path.clone(), printable(&error.to_string())))
    }

    /// Parses the result, and keeps all control characters, and the text of values of the type
    /// [`RawValue`](serde_json::value::RawValue).
    ///
    /// # Errors
    /// Fails if the result has another type.
    pub fn parse_exactly<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_str(&self.json)
            .map_err(|error| Error::Answer(self.path.clone(), printable(&error.to_string())))
    }
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text),
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Object(fields) => {
            fields.values_mut().for_each(clean);
            *fields = std::mem::take(fields).into_iter().map(|(name, value)| (printable(&name), value)).collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Client {
    /// Connects to the program that listens on a socket.
    ///
    /// # Errors
    /// Fails if no program listens on the socket, if this user has no access, or if the path is not valid.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let address = socket::address(path).map_err(Error::Path)?;
        let open = || -> io::Result<UnixStream> {
            let stream = socket::unix(SocketFlags::empty())?;
            // The time limit also applies to `connect`, which waits while the queue of new connections is full.
            set_timeouts(&stream, TIMEOUT)?;
            connect(&stream, &address)?;
            Ok(stream.into())
        };
        let stream = open().map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Error::NotListening(path.to_owned()),
            ErrorKind::WouldBlock => Error::Busy(path.to_owned()),
            _ => Error::Socket(path.to_owned(), error),
        })?;
        Ok(Self { stream: BufReader::new(stream), path: path.to_owned(), timeout: TIMEOUT, last: 0 })
    }

    /// Connects to the program with this process id, by a socket of this user in a default folder. Ignores the sockets
    /// of other users, because any user can create a socket whose name has this process id.
    ///
    /// # Errors
    /// Fails if there is no such socket, or if the connection fails.
    pub fn of_process(process: u32) -> Result<Self, Error> {
        let found = own().0.into_iter().find(|found| found.process == process);
        Self::connect(&found.ok_or(Error::NoProcess(process))?.path)
    }

    /// Connects to the only running program of this user.
    ///
    /// # Errors
    /// Fails if no program or several programs of this user run.
    pub fn only() -> Result<Self, Error> {
        let (mut running, others) = Self::all();
        match (running.len(), running.pop()) {
            (1, Some((_, client))) => Ok(client),
            (_, Some(last)) => {
                let processes = running.iter().chain([&last]).map(|(process, _)| *process);
                Err(Error::Several(processes.collect()))
            }
            (_, None) => Err(Error::NotRunning { others }),
        }
    }

    /// Connects to all running programs of this user whose sockets are in the default folders. Returns the process id
    /// of each program, and the number of sockets of other users.
    pub fn all() -> (Vec<(u32, Self)>, usize) {
        let (own, others) = own();
        // Sockets of killed programs do not accept connections.
        let open = |found: socket::ControlSocket| Self::connect(&found.path).ok().map(|client| (found.process, client));
        (own.into_iter().filter_map(open).collect(), others)
    }

    /// Sets the maximum time to wait for a whole answer. The default is [`TIMEOUT`].
    ///
    /// # Errors
    /// Fails if the time is 0.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<(), Error> {
        set_timeouts(self.stream.get_ref(), timeout).map_err(|error| Error::Socket(self.path.clone(), error))?;
        self.timeout = timeout;
        Ok(())
    }

    /// Creates a client of a connection that another process has opened. `path` is the name of the program in errors.
    pub fn of_stream(stream: UnixStream, path: &Path) -> Self {
        Self { stream: BufReader::new(stream), path: path.to_owned(), timeout: TIMEOUT, last: 0 }
    }

    /// Returns the connection. Bytes that the client has received but not parsed cannot be read from the connection.
    pub fn stream(&self) -> &UnixStream {
        self.stream.get_ref()
    }

    /// Returns the connection. Bytes that the client has received but not parsed are lost.
    pub fn into_stream(self) -> UnixStream {
        self.stream.into_inner()
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// Fails if the program refuses the request, does not answer in time, or has ended. After a failure other than
    /// [`Error::Refused`], the connection is not usable.
    pub fn call(&mut self, call: &Call) -> Result<Answer, Error> {
        self.call_with_descriptors(call, &[])
    }

    /// Sends a request together with descriptors, and waits for its answer.
    ///
    /// # Errors
    /// Fails as [`Client::call`] does.
    pub fn call_with_descriptors(&mut self, call: &Call, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, Error> {
        self.last += 1;
        let request = Request { version: VERSION, id: self.last, call: call.clone() };
        let mut text = serde_json::to_vec(&request).map_err(|error| self.failed(&error.to_string()))?;
        text.push(b'\n');
        match send_with_descriptors(self.stream.get_ref(), &text, descriptors) {
            // The program may have sent an error before it closed the connection.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            sent => sent.map_err(|error| self.lost(error))?,
        }
        let line = self.read_line()?;
        let response: Response = serde_json::from_slice(&line).map_err(|error| self.failed(&error.to_string()))?;
        match response {
            // Without a number, the error concerns the connection.
            Response { error: Some(error), id, .. } if id.is_none_or(|id| id == self.last) => {
                let error = Refusal { message: printable(&error.message), help: printable(&error.help), ..error };
                Err(Error::Refused(self.path.clone(), error))
            }
            Response { result: Some(result), id: Some(id), .. } if id == self.last => {
                let json = result.get().replace(char::is_control, " ");
                Ok(Answer { path: self.path.clone(), json })
            }
            _ => Err(self.failed("the answer is for another request")),
        }
    }

    /// Sends the request [`Call::Hello`].
    ///
    /// # Errors
    /// Returns the errors of [`Client::call`].
    pub fn hello(&mut self) -> Result<Hello, Error> {
        self.call(&Call::Hello {})?.parse()
    }

    /// Lists the rows of a list, page by page.
    pub fn show(&mut self, show: Show) -> Pages<'_> {
        Pages { client: self, next: Some(show) }
    }

    /// Returns the row of a table that applies to a key.
    ///
    /// # Errors
    /// Returns the errors of [`Client::call`].
    pub fn get(&mut self, get: Get) -> Result<GetResult, Error> {
        self.call(&Call::Get(get))?.parse_exactly()
    }

    /// Reads a line. The time limit applies to the whole line, because a program could send single bytes indefinitely.
    fn read_line(&mut self) -> Result<Vec<u8>, Error> {
        let latest = Instant::now() + self.timeout;
        let mut line = Vec::new();
        loop {
            if self.stream.buffer().is_empty() {
                let left = latest.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(self.lost(ErrorKind::TimedOut.into()));
                }
                let limited = set_socket_timeout(self.stream.get_ref(), Timeout::Recv, Some(left));
                limited.map_err(|error| self.lost(error.into()))?;
            }
            let received = match self.stream.fill_buf() {
                Ok([]) => return Err(Error::Ended(self.path.clone())),
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.lost(error)),
            };
            let end = received.iter().position(|&byte| byte == b'\n');
            let taken = end.map_or(received.len(), |end| end + 1);
            line.extend(&received[..taken]);
            self.stream.consume(taken);
            if end.is_some() {
                return Ok(line);
            }
            if line.len() >= MAX_ANSWER {
                return Err(self.failed("the answer is too long"));
            }
        }
    }

    fn failed(&self, why: &str) -> Error {
        Error::Answer(self.path.clone(), printable(why))
    }

    fn lost(&self, error: io::Error) -> Error {
        match error.kind() {
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Error::Ended(self.path.clone()),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Error::Timeout(self.path.clone(), self.timeout.as_secs()),
            _ => Error::Socket(self.path.clone(), error),
        }
    }
}

/// The pages of a list. Ends after the last page or after an error.
#[derive(Debug)]
pub struct Pages<'a> {
    client: &'a mut Client,
    next: Option<Show>,
}

impl Iterator for Pages<'_> {
    type Item = Result<Page, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let show = self.next.take()?;
        let page = self.client.call(&Call::Show(show.clone())).and_then(|answer| answer.parse_exactly::<Page>());
        if let Ok(Page { next: Some(cursor), .. }) = &page {
            self.next = Some(Show { cursor: Some(cursor.clone()), ..show });
        }
        Some(page)
    }
}

fn set_timeouts(stream: impl std::os::fd::AsFd, timeout: Duration) -> io::Result<()> {
    for direction in [Timeout::Send, Timeout::Recv] {
        set_socket_timeout(&stream, direction, Some(timeout))?;
    }
    Ok(())
}

/// Returns the sockets of this user in the default folders, and the number of sockets of other users.
fn own() -> (Vec<socket::ControlSocket>, usize) {
    let all = socket::folders();
    let (mut own, others): (Vec<_>, Vec<_>) =
        all.iter().flat_map(|folder| socket::sockets_in(folder)).partition(|found| found.is_own);
    own.sort();
    own.dedup();
    (own, others.len())
}
