//! The server side of the control socket. The server runs on the thread that watches the run, and never blocks on a
//! client.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::socket::Socket;
use super::{Refusal, STATS, TIMEOUT};
use crate::app::console::CommandError;
use crate::config::Runtime;
use crate::runtime::{Run, Snapshot};
use dataplane_core::telemetry::Live;

/// The maximum number of clients. A further client replaces the client that has been idle longest. If no client is
/// idle, the server refuses the further client.
const MAX_CLIENTS: usize = 16;
/// The maximum length of a request, in bytes.
const MAX_REQUEST: usize = 256;
/// The minimum interval between two requests to the workers, for all clients together.
const INTERVAL: Duration = Duration::from_millis(50);
/// The wait between two checks for the answers of the workers.
const ANSWER_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Serves the clients of the control socket.
pub(in crate::app) struct Server {
    socket: Socket,
    config: String,
    clients: Vec<Client>,
    /// Whether requests to the workers are in progress.
    is_asking: bool,
    /// When the workers last answered.
    answered: Option<Instant>,
    /// Whether accepting a client failed, for example because there are no file descriptors left. The server then waits
    /// before it accepts again.
    has_accept_failed: bool,
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    /// The bytes that are not sent yet.
    output: Vec<u8>,
    is_waiting: bool,
    /// Whether the server closes the connection after it has sent the output.
    is_refused: bool,
    /// The time by which the client must send its request, or must have received its answer.
    deadline: Option<Instant>,
    last_heard: Instant,
    last_snapshot: Option<Rc<Snapshot>>,
}

impl Server {
    /// Starts to listen, unless the config disables the control socket.
    ///
    /// # Errors
    /// Returns an error if the socket that the config names cannot be created.
    pub(in crate::app) fn start(runtime: &Runtime, config: &Path) -> Result<Option<Self>, CommandError> {
        let server = |socket| Self {
            socket,
            config: config.display().to_string(),
            clients: Vec::new(),
            is_asking: false,
            answered: None,
            has_accept_failed: false,
        };
        Ok(Socket::open(runtime).map_err(CommandError::Failed)?.map(server))
    }

    /// Accepts clients, reads requests and sends answers, without blocking.
    pub(in crate::app) fn turn(&mut self, run: &Run) {
        self.clients.retain_mut(Client::read_request);
        self.accept();
        let is_due = self.answered.is_none_or(|answered| answered.elapsed() >= INTERVAL);
        self.is_asking |= is_due && self.clients.iter().any(|client| client.is_waiting);
        if self.is_asking
            && let Some(snapshot) = run.snapshot()
        {
            self.is_asking = false;
            self.answered = Some(Instant::now());
            let snapshot = Rc::new(snapshot);
            for client in self.clients.iter_mut().filter(|client| client.is_waiting) {
                client.answer(&self.config, &snapshot);
            }
        }
        let now = Instant::now();
        self.clients
            .retain_mut(|client| client.write_output() && client.deadline.is_none_or(|deadline| now < deadline));
    }

    /// Waits until there is something to do, at most this long.
    pub(in crate::app) fn wait(&mut self, time: Duration) {
        let is_waiting = self.is_asking || self.clients.iter().any(|client| client.is_waiting);
        let time = if is_waiting { ANSWER_POLL_INTERVAL } else { time };
        let mut fds = Vec::with_capacity(1 + MAX_CLIENTS);
        if !std::mem::take(&mut self.has_accept_failed) {
            fds.push(PollFd::from_borrowed_fd(self.socket.listener.as_fd(), PollFlags::IN));
        }
        // The server reads no requests from a client that waits for an answer.
        for client in self.clients.iter().filter(|client| !client.is_waiting) {
            let what = if client.output.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(client.stream.as_fd(), what));
        }
        match poll(&mut fds, Timespec::try_from(time).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => thread::sleep(time),
        }
    }

    fn accept(&mut self) {
        for _ in 0..MAX_CLIENTS {
            let stream = match self.socket.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    self.has_accept_failed = error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let mut client = Client::new(stream);
            if !client.read_request() {
                continue;
            }
            if self.clients.len() == MAX_CLIENTS {
                let silent = (0..MAX_CLIENTS).filter(|at| self.clients[*at].is_silent());
                match silent.min_by_key(|at| self.clients[*at].last_heard) {
                    Some(silent) => self.clients.swap_remove(silent).dismiss(),
                    None => {
                        client.dismiss();
                        continue;
                    }
                }
            }
            self.clients.push(client);
        }
    }
}

/// Returns `true` if the operation would block or was interrupted.
fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        let last_heard = Instant::now();
        Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            is_waiting: false,
            is_refused: false,
            deadline: Some(last_heard + TIMEOUT),
            last_heard,
            last_snapshot: None,
        }
    }

    /// Returns `true` if the client has no request in progress and no output to send.
    fn is_silent(&self) -> bool {
        !self.is_waiting && self.output.is_empty()
    }

    /// Reads the next request, if the previous request is answered. Returns `false` if the client is gone.
    fn read_request(&mut self) -> bool {
        if !self.is_silent() {
            return true;
        }
        // The input may already contain another request.
        if !self.input.contains(&b'\n') {
            let mut bytes = [0; MAX_REQUEST];
            let room = MAX_REQUEST - self.input.len();
            match self.stream.read(&mut bytes[..room]) {
                Ok(0) => return false,
                Ok(read) => self.input.extend(&bytes[..read]),
                Err(error) => return is_later(&error),
            }
        }
        self.last_heard = Instant::now();
        self.deadline.get_or_insert(self.last_heard + TIMEOUT);
        match self.input.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                match line.trim_ascii() {
                    line if line == STATS.as_bytes() => self.is_waiting = true,
                    line => self.refuse(format!("unknown request `{}`; help: send `{STATS}`", line.escape_ascii())),
                }
            }
            None if self.input.len() == MAX_REQUEST => {
                self.refuse(format!("a request has at most {MAX_REQUEST} bytes"))
            }
            None => {}
        }
        true
    }

    fn refuse(&mut self, error: String) {
        self.is_refused = true;
        self.queue(&Refusal { error });
    }

    /// Sends the client an error because there are too many clients.
    fn dismiss(mut self) {
        self.refuse("too many clients".to_owned());
        self.write_output();
    }

    fn answer(&mut self, config: &str, snapshot: &Rc<Snapshot>) {
        self.is_waiting = false;
        let live = Live {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: config.to_owned(),
            report: snapshot.report().clone(),
            recent: snapshot.since(self.last_snapshot.as_deref()),
        };
        self.last_snapshot = Some(snapshot.clone());
        self.queue(&live);
    }

    fn queue(&mut self, what: &impl serde::Serialize) {
        // These types always serialize to JSON.
        self.output = serde_json::to_vec(what).unwrap_or_default();
        self.output.push(b'\n');
        self.deadline = Some(Instant::now() + TIMEOUT);
    }

    /// Sends more output. Returns `false` if the client is gone, or everything is sent and the connection must close.
    fn write_output(&mut self) -> bool {
        if self.output.is_empty() {
            return true;
        }
        match self.stream.write(&self.output) {
            Ok(0) => return false,
            Ok(written) => drop(self.output.drain(..written)),
            Err(error) => return is_later(&error),
        }
        if self.output.is_empty() {
            // The client may send its next request at any time.
            (self.last_heard, self.deadline) = (Instant::now(), None);
            return !self.is_refused;
        }
        true
    }
}

/// A target of the fuzzer: a client sends requests, whose bytes arrive in two pieces. The first byte of the input is the
/// length of the first piece.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(input: &[u8]) {
    let Some((&first, bytes)) = input.split_first() else { return };
    let (mut peer, ours) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a non-blocking socket");
    let mut client = Client::new(ours);
    let (mut answered, mut is_open) = (0, true);
    let at = usize::from(first).min(bytes.len());
    for piece in [&bytes[..at], &bytes[at..]] {
        peer.write_all(piece).expect("room in the socket");
        // A call reads at most one request. Without a request, a call reads at most the bytes of one request.
        for _ in 0..=bytes.len() {
            is_open = is_open && client.read_request();
            assert!(client.input.len() <= MAX_REQUEST);
            if std::mem::take(&mut client.is_waiting) {
                answered += 1;
            }
            if client.is_refused && is_open {
                let refusal: Result<Refusal, _> = serde_json::from_slice(&client.output);
                assert!(refusal.is_ok_and(|refusal| !refusal.error.is_empty()));
                is_open = client.write_output();
            }
        }
    }
    let is_stats = |line: &&[u8]| {
        line.len() <= MAX_REQUEST && line.last() == Some(&b'\n') && line.trim_ascii() == STATS.as_bytes()
    };
    let expected = bytes.split_inclusive(|byte| *byte == b'\n').take_while(is_stats).count();
    assert_eq!(answered, expected);
    let last = bytes.split_inclusive(|byte| *byte == b'\n').nth(expected);
    let is_complete = |line: &[u8]| line.len() >= MAX_REQUEST || line.last() == Some(&b'\n');
    assert_eq!(is_open, !last.is_some_and(is_complete));
}
