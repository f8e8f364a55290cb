//! The side that answers: between the looks at a run, on the same thread. No client is waited for.

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
use super::{PATIENCE, Refusal, STATS};
use crate::app::console::Stop;
use crate::config::Control;
use crate::runtime::{Run, Snapshot};
use crate::telemetry::Live;

/// The most clients at a time. When one more comes, the one that was silent longest has to go; if none is silent, the new
/// one has.
const CLIENTS: usize = 16;
/// The most bytes of a request.
const LINE: usize = 256;
/// Workers are not asked more often than this, however many clients ask.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long an answer of the workers is slept for at a time.
const NAP: Duration = Duration::from_millis(1);

/// Answers clients.
pub(in crate::app) struct Server {
    socket: Socket,
    config: String,
    clients: Vec<Client>,
    /// The workers were asked, and have not all answered.
    is_asking: bool,
    /// When they last have.
    answered: Option<Instant>,
    /// No client could be taken, such as for want of file descriptors: it is waited before the next is.
    is_full: bool,
}

struct Client {
    stream: UnixStream,
    input: Vec<u8>,
    /// What it has not taken yet.
    output: Vec<u8>,
    is_waiting: bool,
    /// It is not listened to any more.
    is_refused: bool,
    /// Until when it must have sent its line, or taken its answer.
    deadline: Option<Instant>,
    heard: Instant,
    told: Option<Rc<Snapshot>>,
}

impl Server {
    /// Listens, where that is wished.
    ///
    /// # Errors
    /// There cannot be a socket where the config wants one.
    pub(in crate::app) fn start(wish: &Control, config: &Path) -> Result<Option<Self>, Stop> {
        let server = |socket| Self {
            socket,
            config: config.display().to_string(),
            clients: Vec::new(),
            is_asking: false,
            answered: None,
            is_full: false,
        };
        Ok(Socket::open(wish)?.map(server))
    }

    /// Does what there is to do, without waiting for anything.
    pub(in crate::app) fn turn(&mut self, run: &Run) {
        self.clients.retain_mut(Client::hear);
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
        self.clients.retain_mut(|client| client.tell() && client.deadline.is_none_or(|deadline| now < deadline));
    }

    /// Waits until there is something to do, for so long at most.
    pub(in crate::app) fn wait(&mut self, time: Duration) {
        let is_waiting = self.is_asking || self.clients.iter().any(|client| client.is_waiting);
        let time = if is_waiting { NAP } else { time };
        let mut fds = Vec::with_capacity(1 + CLIENTS);
        if !std::mem::take(&mut self.is_full) {
            fds.push(PollFd::from_borrowed_fd(self.socket.listener.as_fd(), PollFlags::IN));
        }
        // One that waits has nothing to say that would be heard.
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
        for _ in 0..CLIENTS {
            let stream = match self.socket.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    self.is_full = error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let mut client = Client::new(stream);
            if !client.hear() {
                continue;
            }
            if self.clients.len() == CLIENTS {
                let silent = (0..CLIENTS).filter(|at| self.clients[*at].is_silent());
                match silent.min_by_key(|at| self.clients[*at].heard) {
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

/// Whether there is nothing to read or to write at the moment.
fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Client {
    fn new(stream: UnixStream) -> Self {
        let heard = Instant::now();
        Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            is_waiting: false,
            is_refused: false,
            deadline: Some(heard + PATIENCE),
            heard,
            told: None,
        }
    }

    /// It has no answer to come, nor one to take.
    fn is_silent(&self) -> bool {
        !self.is_waiting && self.output.is_empty()
    }

    /// Reads on, where its last request was answered. `false`: it is gone.
    fn hear(&mut self) -> bool {
        if !self.is_silent() {
            return true;
        }
        // Behind a request there may have been the next.
        if !self.input.contains(&b'\n') {
            let mut bytes = [0; LINE];
            let room = LINE - self.input.len();
            match self.stream.read(&mut bytes[..room]) {
                Ok(0) => return false,
                Ok(read) => self.input.extend(&bytes[..read]),
                Err(error) => return is_later(&error),
            }
        }
        self.heard = Instant::now();
        self.deadline.get_or_insert(self.heard + PATIENCE);
        match self.input.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                match line.trim_ascii() {
                    line if line == STATS.as_bytes() => self.is_waiting = true,
                    line => self.refuse(format!("no request `{}`: there is `{STATS}`", line.escape_ascii())),
                }
            }
            None if self.input.len() == LINE => self.refuse(format!("a request has at most {LINE} bytes")),
            None => {}
        }
        true
    }

    fn refuse(&mut self, error: String) {
        self.is_refused = true;
        self.say(&Refusal { error });
    }

    /// Tells it that it is one too many.
    fn dismiss(mut self) {
        self.refuse("too many clients".to_owned());
        self.tell();
    }

    fn answer(&mut self, config: &str, snapshot: &Rc<Snapshot>) {
        self.is_waiting = false;
        let live = Live {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: config.to_owned(),
            report: snapshot.report().clone(),
            recent: snapshot.since(self.told.as_deref()),
        };
        self.told = Some(snapshot.clone());
        self.say(&live);
    }

    fn say(&mut self, what: &impl serde::Serialize) {
        // Text, numbers and maps by text: there is nothing that has no JSON.
        self.output = serde_json::to_vec(what).unwrap_or_default();
        self.output.push(b'\n');
        self.deadline = Some(Instant::now() + PATIENCE);
    }

    /// Writes on. `false`: it is gone, or told all.
    fn tell(&mut self) -> bool {
        if self.output.is_empty() {
            return true;
        }
        match self.stream.write(&self.output) {
            Ok(0) => return false,
            Ok(written) => drop(self.output.drain(..written)),
            Err(error) => return is_later(&error),
        }
        if self.output.is_empty() {
            // It may ask again, whenever it likes.
            (self.heard, self.deadline) = (Instant::now(), None);
            return !self.is_refused;
        }
        true
    }
}
