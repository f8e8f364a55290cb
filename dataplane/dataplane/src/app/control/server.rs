//! The server side of the control socket. The server runs on the thread that watches the run, and never blocks on a
//! client.

use std::cell::LazyCell;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::Level;

use super::feed::{Feed, Phase};
use super::jobs::{Job, Jobs};
use super::socket::Socket;
use super::upgrade::{self, SharedListener, SwitchError, Upgrade, Withdrawal};
use super::{black_box, lists, observe};
use crate::app::console::CommandError;
use crate::app::logs::{self, LogCounts};
use crate::config::Runtime;
use crate::runtime::{Observation, Run, Scope, Snapshot};
use dataplane_control::observe::Started;
use dataplane_control::{Call, ErrorCode, Hello, MAX_REQUEST, Refusal, Request, Response, TIMEOUT, VERSION};
use dataplane_core::pipeline::Registry;
use dataplane_core::telemetry::LiveStatistics;

/// The maximum number of clients. A further client replaces the client that has been idle longest. If no client is
/// idle, the server refuses the further client.
const MAX_CLIENTS: usize = 256;
/// The maximum number of bytes that the server reads from a client in one turn.
const READ_SIZE: usize = 64 << 10;
/// A request with more bytes is large. Only requests with a config are large.
const LARGE: usize = 64 << 10;
/// The maximum number of large requests at a time.
const MAX_LARGE: usize = 4;
/// A limit in bytes, for all clients together. If the memory of all answers that are not sent completely exceeds the
/// limit, further requests wait, and the server closes connections of clients that read slowly ([`READ_TIME`]). If even
/// the unsent bytes of these answers exceed the limit, the server closes the connection of the client with the most
/// unsent bytes.
const MAX_OUTPUT: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };
/// The time in which a client should read its answer. If requests wait because the memory of all answers exceeds
/// [`MAX_OUTPUT`], the server closes the connection of a client that is slower.
const READ_TIME: Duration = Duration::from_secs(1);
/// The minimum interval between two requests to the workers, for all clients together.
const INTERVAL: Duration = Duration::from_millis(50);
/// The minimum interval between the two snapshots from which rates are computed.
const RATE_INTERVAL: Duration = Duration::from_millis(500);
/// The wait between two checks for the answers of the workers.
const ANSWER_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Serves the clients of the control socket, and passes snapshots to the metrics server.
pub(in crate::app) struct ControlServer {
    socket: Option<Socket>,
    /// The socket of the metrics server.
    metrics: Option<SharedListener>,
    /// The process id of the program that has taken over the run, and the upgrade, which refuses further changes.
    successor: Option<(u32, Upgrade)>,
    /// The wait for the end of a new program that failed. The run is paused.
    withdrawal: Option<Withdrawal>,
    feed: Option<Arc<Feed>>,
    /// The counts of log messages.
    log_counts: Option<Arc<LogCounts>>,
    config: String,
    started: Instant,
    /// The running time of the programs whose run this program has taken over.
    earlier: Duration,
    clients: Vec<ClientConnection>,
    /// The scope of the requests to the workers that are in progress. `None` if no requests are in progress.
    asking: Option<Scope>,
    /// The time of the last answer of the workers.
    answered: Option<Instant>,
    /// The last answer of the workers.
    latest: Option<Arc<Snapshot>>,
    jobs: Jobs,
    /// Whether accepting a client failed, for example because there are no file descriptors left. The server then waits
    /// before it accepts again.
    has_accept_failed: bool,
}

struct ClientConnection {
    stream: UnixStream,
    input: Vec<u8>,
    /// The number of bytes of `input` that are known to contain no newline.
    scanned: usize,
    output: PendingAnswer,
    /// The request that is not answered yet.
    request: Option<Request>,
    /// The thread that handles the request.
    job: Option<Job>,
    /// The capture or trace of the client.
    observation: Option<Observation>,
    /// The file of the black box that the client reads in parts.
    black_box: Option<Vec<u8>>,
    /// The upgrade of the client.
    upgrade: Option<Upgrade>,
    /// Whether the server closes the connection after it has sent the output.
    is_refused: bool,
    /// The time by which the client must send its request, or must have received its answer.
    deadline: Option<Instant>,
    last_heard: Instant,
    /// The snapshot of the last answer to `stats`, without the counters that stages define.
    last_snapshot: Option<Arc<Snapshot>>,
    /// The first snapshot for a request with rates, without the counters that stages define, and the time of the
    /// snapshot.
    earlier: Option<(Instant, Arc<Snapshot>)>,
}

/// An answer that is not sent completely yet.
#[derive(Default)]
struct PendingAnswer {
    /// The whole answer. The memory is freed after the last byte is sent.
    bytes: Vec<u8>,
    /// The number of bytes that are sent.
    sent: usize,
}

impl PendingAnswer {
    fn is_empty(&self) -> bool {
        self.unsent().is_empty()
    }

    fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// Returns the size of the memory, in bytes. A client that reads all but the last bytes still needs the memory of
    /// the whole answer.
    fn memory(&self) -> usize {
        self.bytes.capacity()
    }
}

impl ControlServer {
    /// Starts to listen, unless the config disables the control socket. `feed` is the feed of the metrics server.
    /// Returns `None` if there is neither a control socket nor a metrics server.
    ///
    /// # Errors
    /// Returns an error if the socket that the config names cannot be created.
    pub(in crate::app) fn start(
        runtime: &Runtime,
        config: &Path,
        feed: Option<Arc<Feed>>,
        registry: &Arc<Registry>,
    ) -> Result<Option<Self>, CommandError> {
        let socket = Socket::open(runtime).map_err(CommandError::Failed)?;
        Ok(Self::new(socket, config, feed, registry))
    }

    /// Creates a server for a socket. Returns `None` if there is neither a socket nor a metrics server.
    pub(in crate::app) fn new(
        socket: Option<Socket>,
        config: &Path,
        feed: Option<Arc<Feed>>,
        registry: &Arc<Registry>,
    ) -> Option<Self> {
        if socket.is_none() && feed.is_none() {
            return None;
        }
        Some(Self {
            socket,
            metrics: None,
            successor: None,
            withdrawal: None,
            feed,
            log_counts: None,
            config: config.display().to_string(),
            started: Instant::now(),
            earlier: Duration::ZERO,
            clients: Vec::new(),
            asking: None,
            answered: None,
            latest: None,
            jobs: Jobs::new(registry),
            has_accept_failed: false,
        })
    }

    /// Sets the socket of the metrics server, which the new program of an upgrade takes over.
    pub(in crate::app) fn share_metrics(&mut self, metrics: Option<SharedListener>) {
        self.metrics = metrics;
    }

    /// Sets the running time of the programs whose run this program has taken over.
    pub(in crate::app) fn set_earlier(&mut self, earlier: Duration) {
        self.earlier = earlier;
    }

    /// Sets the feed of the metrics server.
    pub(in crate::app) fn set_feed(&mut self, feed: Option<Arc<Feed>>) {
        self.feed = feed;
    }

    /// Returns the process id of the program that has taken over the run.
    pub(in crate::app) fn successor(&self) -> Option<u32> {
        self.successor.as_ref().map(|(process, _)| *process)
    }

    /// Hands the run over to the new program, which is the client with the index `at`. `id` is the number of the
    /// request.
    fn switch(&mut self, run: &Run, at: usize, id: u64) {
        let mut client = self.clients.swap_remove(at);
        let Some(program) = client.upgrade.as_ref().and_then(Upgrade::program) else {
            client.answer::<()>(id, Err(&upgrade::not_taken_over()));
            return self.clients.push(client);
        };
        let process = program.pid;
        let control = self.socket.as_ref().and_then(|socket| {
            let not_shared = |error| tracing::error!("the new program cannot take over the control socket: {error}");
            socket.share().map_err(not_shared).ok().flatten()
        });
        let shared = [("control", &control), ("metrics", &self.metrics)];
        let listeners: Vec<(&str, &SharedListener)> =
            shared.into_iter().filter_map(|(name, shared)| Some((name, shared.as_ref()?))).collect();
        match upgrade::switch(run, &client.stream, id, &listeners) {
            Ok(time) => {
                self.successor = client.upgrade.take().map(|upgrade| (process, upgrade));
                let waited = time.as_secs_f64() * 1e3;
                let message =
                    format!("process {process} has taken over this run; packets waited {waited:.1} ms at most");
                logs::notice(Level::INFO, &message);
                for other in &mut self.clients {
                    let message = format!("process {process} has taken over this run (`dataplane upgrade`)");
                    other.dismiss(Refusal::new(ErrorCode::Failed, message, "connect again"));
                }
            }
            Err(SwitchError::Refused(refusal)) => {
                client.answer::<()>(id, Err(&refusal));
                self.clients.push(client);
            }
            Err(SwitchError::Lost(why)) => upgrade::log_failure(&why),
            Err(SwitchError::Withdrawn(why)) => {
                upgrade::log_withdrawal(&why, process);
                self.withdrawal = client.upgrade.take().and_then(Upgrade::withdraw);
            }
        }
    }

    /// Ends the server after the workers have ended.
    pub(in crate::app) fn end(mut self, run: &Run) {
        // The drop kills the new program. Its packets are lost, and the ports count these packets when they take back
        // their queues.
        if self.withdrawal.take().is_some() {
            run.resume(true);
        }
    }

    /// Sets the counts of log messages. The statistics contain the number of lost messages.
    pub(in crate::app) fn set_log_counts(&mut self, counts: Arc<LogCounts>) {
        self.log_counts = Some(counts);
    }

    /// Accepts clients, reads requests and sends answers, without blocking. Reads and answers at most one request of
    /// each client, so that no client delays the others.
    pub(in crate::app) fn turn(&mut self, run: &Run) {
        if let Some(feed) = &self.feed {
            feed.set_phase(if run.is_stopped() { Phase::Stopping } else { Phase::Running });
        }
        if self.withdrawal.as_mut().is_some_and(Withdrawal::is_over) {
            run.resume(true);
            self.withdrawal = None;
            tracing::info!("this program receives packets again after a failed upgrade");
        }
        let mut large = self.clients.iter().filter(|client| client.is_large()).count();
        self.clients.retain_mut(|client| {
            let was_large = client.is_large();
            let is_there = client.read_request();
            if is_there && client.is_large() && !was_large {
                large += 1;
                if large > MAX_LARGE {
                    let message = format!("{MAX_LARGE} large requests are in progress");
                    client.dismiss(Refusal::new(ErrorCode::Busy, message, "try again later"));
                    large -= 1;
                }
            }
            is_there
        });
        // The new program accepts further clients.
        if self.successor.is_none() {
            self.accept();
        }
        // The memory of the answers that wait to be sent. A client with a request has no output.
        let mut output: usize = self.clients.iter().map(|client| client.output.memory()).sum();
        let now = Instant::now();
        self.clients.iter_mut().for_each(|client| client.free_idle_file(now));
        let mut files = self.clients.iter().filter(|client| client.black_box.is_some()).count();
        let mut switching = None;
        for (at, client) in self.clients.iter_mut().enumerate() {
            let Some(Request { id, call, .. }) = &client.request else { continue };
            if output > MAX_OUTPUT {
                break;
            }
            let id = *id;
            match call {
                Call::Hello {} => {
                    let hello = Hello {
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                        pid: std::process::id(),
                        config: self.config.clone(),
                        running_s: self.started.elapsed().as_secs_f64(),
                        protocol_versions: vec![VERSION],
                        requests: Call::NAMES.map(str::to_owned).to_vec(),
                        max_request: MAX_REQUEST,
                    };
                    client.answer(id, Ok(&hello));
                }
                Call::Get(get) => {
                    let found = lists::get(run, get);
                    client.answer(id, found.as_ref());
                }
                Call::Log(log) => {
                    let level = lists::log(log);
                    client.answer(id, level.as_ref());
                }
                Call::Show(show) => {
                    // All pages of a list come from one snapshot, unless another client requests a snapshot meanwhile.
                    let snapshot = self.latest.as_deref().filter(|_| show.cursor.is_some());
                    let page = lists::show(run, show, snapshot, None);
                    if let Some(page) = page.transpose() {
                        client.answer(id, page.as_ref());
                    }
                }
                Call::Capture(request) => {
                    // The earlier capture or trace of the client ends.
                    client.observation = None;
                    let started = observe::capture(run, request);
                    client.start_observation(id, started, run);
                }
                Call::Trace(request) => {
                    client.observation = None;
                    let started = observe::trace(run, request);
                    client.start_observation(id, started, run);
                }
                Call::Packets {} => match &mut client.observation {
                    Some(observation) if observation.is_trace() => {
                        let traced = observation.traced();
                        client.answer(id, Ok(&traced));
                    }
                    Some(observation) => {
                        let captured = observation.captured();
                        client.answer(id, Ok(&captured));
                    }
                    None => client.answer::<()>(id, Err(&observe::nothing_started())),
                },
                Call::BlackBox(request) => {
                    files -= usize::from(client.black_box.is_some());
                    let part = black_box::part(&mut client.black_box, request.offset, files, || run.black_box());
                    files += usize::from(client.black_box.is_some());
                    client.answer(id, part.as_ref());
                }
                Call::Stats {} => {}
                Call::Upgrade {} => {
                    // An earlier upgrade of the client ends.
                    client.upgrade = None;
                    let started = Upgrade::start(run, &client.stream).map(|(upgrade, start)| {
                        client.upgrade = Some(upgrade);
                        start
                    });
                    client.answer(id, started.as_ref());
                }
                Call::TakeOver(request) => {
                    let connection = (&client.stream, id);
                    let running_time = self.earlier.saturating_add(self.started.elapsed());
                    let answered = match &mut client.upgrade {
                        Some(upgrade) => upgrade.take_over(run, running_time, request, connection),
                        None => Err(SwitchError::Refused(upgrade::not_started())),
                    };
                    match answered {
                        Ok(()) => client.mark_answered(),
                        Err(SwitchError::Refused(refusal)) => client.answer::<()>(id, Err(&refusal)),
                        Err(SwitchError::Lost(why) | SwitchError::Withdrawn(why)) => {
                            upgrade::log_failure(&why);
                            client.close();
                        }
                    }
                }
                Call::HandOver {} => switching = Some((at, id)),
                Call::Plan(_)
                | Call::Apply(_)
                | Call::Confirm {}
                | Call::Rollback {}
                | Call::History {}
                | Call::Reload {} => match client.job.as_mut().map(Job::result) {
                    None => match self.jobs.start(&run.changer(), call) {
                        Ok(job) => client.job = Some(job),
                        Err(refusal) => client.answer::<()>(id, Err(&refusal)),
                    },
                    Some(None) => {}
                    Some(Some(result)) => {
                        client.job = None;
                        client.answer(id, result.as_ref());
                    }
                },
            }
            output += client.output.memory();
        }
        if let Some((at, id)) = switching {
            self.switch(run, at, id);
        }
        let now = Instant::now();
        self.clients.retain(|client| {
            let overdue = client.upgrade.as_ref().and_then(|upgrade| upgrade.overdue(now));
            overdue.inspect(|why| upgrade::log_failure(why)).is_none()
        });
        let is_due = self.answered.is_none_or(|answered| answered.elapsed() >= INTERVAL);
        if self.asking.is_none() && is_due && output <= MAX_OUTPUT {
            let mut clients = self.clients.iter();
            let is_client_waiting = clients.any(|client| client.is_waiting() && client.needs_snapshot());
            let wanted = self.feed.as_ref().and_then(|feed| feed.wanted());
            self.asking = if is_client_waiting { Some(Scope::All) } else { wanted };
        }
        if let Some(scope) = self.asking
            && let Some((mut snapshot, scope)) = run.snapshot_of(scope)
        {
            self.asking = None;
            self.answered = Some(Instant::now());
            snapshot.set_logs_lost(self.log_counts.as_ref().map_or(0, |counts| counts.lost()));
            let snapshot = Arc::new(snapshot);
            // A client keeps a snapshot for as long as it is connected, so it keeps a copy that needs little memory.
            let kept = LazyCell::new(|| Arc::new(snapshot.without_stage_counters()));
            // A client of the control socket needs the counters of the stages too.
            for client in self.clients.iter_mut().filter(|_| scope == Scope::All) {
                if output > MAX_OUTPUT {
                    break;
                }
                let had_output = client.output.memory();
                match &client.request {
                    Some(Request { id, call: Call::Stats {}, .. }) => {
                        client.answer_stats(*id, &self.config, &snapshot, &kept);
                    }
                    Some(Request { id, call: Call::Show(show), .. }) => {
                        // The rates of the ports need an earlier snapshot. The answer follows after `RATE_INTERVAL`.
                        if lists::has_rates(show) && client.earlier.is_none() {
                            client.earlier = Some((Instant::now(), kept.clone()));
                            continue;
                        }
                        if !client.needs_snapshot() {
                            continue;
                        }
                        let earlier = client.earlier.take().map(|(_, earlier)| earlier);
                        let (id, page) = (*id, lists::show(run, show, Some(&snapshot), earlier.as_deref()));
                        if let Some(page) = page.transpose() {
                            client.answer(id, page.as_ref());
                        }
                    }
                    _ => {}
                }
                output += client.output.memory() - had_output;
            }
            if let Some(feed) = &self.feed {
                feed.publish(snapshot.clone(), scope);
            }
            if scope == Scope::All {
                self.latest = Some(snapshot);
            }
        }
        let now = Instant::now();
        if output > MAX_OUTPUT {
            // In the next turn, begin with the request that waits longest.
            self.clients.sort_by_key(|client| client.last_heard);
            // While the server answers no requests, the clients that wait keep their time.
            let waiting = self.clients.iter_mut().filter(|client| client.is_waiting());
            waiting.for_each(|client| client.deadline = Some(now + TIMEOUT));
        }
        self.clients.retain_mut(|client| client.write_output() && (client.job.is_some() || client.is_in_time(now)));
        self.close_slow_clients(now);
    }

    /// Closes connections of clients that do not read their answers, while the answers need too much memory.
    fn close_slow_clients(&mut self, now: Instant) {
        let mut unsent: usize = self.clients.iter().map(|client| client.output.unsent().len()).sum();
        while unsent > MAX_OUTPUT
            && let Some(longest) = (0..self.clients.len()).max_by_key(|at| self.clients[*at].output.unsent().len())
        {
            unsent -= self.clients.swap_remove(longest).output.unsent().len();
        }
        let is_needed = self.clients.iter().any(ClientConnection::is_waiting)
            || self.feed.as_ref().is_some_and(|feed| feed.wanted().is_some());
        let mut memory: usize = self.clients.iter().map(|client| client.output.memory()).sum();
        while is_needed && memory > MAX_OUTPUT {
            let slow = (0..self.clients.len()).filter(|at| self.clients[*at].reads_slowly(now));
            let Some(largest) = slow.max_by_key(|at| self.clients[*at].output.memory()) else { break };
            memory -= self.clients.swap_remove(largest).output.memory();
        }
    }

    /// Waits until there is something to do, at most this long.
    pub(in crate::app) fn wait(&mut self, time: Duration) {
        let time = if self.clients.iter().any(ClientConnection::has_request) {
            Duration::ZERO
        } else if self.asking.is_some()
            || self.withdrawal.is_some()
            || self.clients.iter().any(ClientConnection::is_waiting)
            || self.feed.as_ref().is_some_and(|feed| feed.wanted().is_some())
        {
            ANSWER_POLL_INTERVAL
        } else {
            time
        };
        let mut fds = Vec::with_capacity(1 + MAX_CLIENTS);
        if !std::mem::take(&mut self.has_accept_failed)
            && let Some(socket) = &self.socket
        {
            fds.push(PollFd::from_borrowed_fd(socket.listener.as_fd(), PollFlags::IN));
        }
        // The server reads no requests from a client that waits for an answer.
        for client in self.clients.iter().filter(|client| !client.is_waiting()) {
            let what = if client.output.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(client.stream.as_fd(), what));
        }
        match poll(&mut fds, Timespec::try_from(time).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => thread::sleep(time),
        }
    }

    fn accept(&mut self) {
        let Some(socket) = &self.socket else { return };
        for _ in 0..MAX_CLIENTS {
            let stream = match socket.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    self.has_accept_failed = error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let mut client = ClientConnection::new(stream);
            if !client.read_request() {
                continue;
            }
            if self.clients.len() == MAX_CLIENTS {
                let silent =
                    (0..MAX_CLIENTS).filter(|at| self.clients[*at].is_silent() && self.clients[*at].upgrade.is_none());
                match silent.min_by_key(|at| self.clients[*at].last_heard) {
                    Some(silent) => self.clients.swap_remove(silent).turn_away(),
                    None => {
                        client.turn_away();
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

impl ClientConnection {
    fn new(stream: UnixStream) -> Self {
        let last_heard = Instant::now();
        Self {
            stream,
            input: Vec::new(),
            scanned: 0,
            output: PendingAnswer::default(),
            request: None,
            job: None,
            observation: None,
            black_box: None,
            upgrade: None,
            is_refused: false,
            deadline: Some(last_heard + TIMEOUT),
            last_heard,
            last_snapshot: None,
            earlier: None,
        }
    }

    fn is_in_time(&self, now: Instant) -> bool {
        self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Returns `true` if the client has not read its whole answer within [`READ_TIME`].
    fn reads_slowly(&self, now: Instant) -> bool {
        let remaining = self.deadline.map(|deadline| deadline.saturating_duration_since(now));
        !self.output.is_empty() && remaining.is_some_and(|remaining| remaining + READ_TIME <= TIMEOUT)
    }

    /// Returns `true` if the client waits for an answer.
    fn is_waiting(&self) -> bool {
        self.request.is_some()
    }

    /// Returns `true` if a waiting client can be answered from a snapshot now: no job handles its request, and the
    /// interval for rates is over.
    fn needs_snapshot(&self) -> bool {
        let is_early = self.earlier.as_ref().is_some_and(|(taken, _)| taken.elapsed() < RATE_INTERVAL);
        self.job.is_none() && !is_early
    }

    /// Returns `true` if the client has no request in progress and no output to send.
    fn is_silent(&self) -> bool {
        !self.is_waiting() && self.output.is_empty()
    }

    /// Frees the file of the black box if the client has not requested a part for some time. Otherwise a few idle
    /// clients could prevent all others from reading the black box.
    fn free_idle_file(&mut self, now: Instant) {
        if self.is_silent() && now.saturating_duration_since(self.last_heard) >= TIMEOUT {
            self.black_box = None;
        }
    }

    /// Returns `true` if the next request is complete and can be handled.
    fn has_request(&self) -> bool {
        self.is_silent() && self.input.get(self.scanned..).is_some_and(|new| new.contains(&b'\n'))
    }

    /// Returns `true` if the client needs much memory.
    fn is_large(&self) -> bool {
        let text = match self.request.as_ref().map(|request| &request.call) {
            Some(Call::Plan(config)) => config.text.len(),
            Some(Call::Apply(apply)) => apply.text.len(),
            _ => 0,
        };
        !self.is_refused && self.input.len().max(text) > LARGE
    }

    /// Returns the end of the next request.
    fn line_end(&mut self) -> Option<usize> {
        let end = self.input.get(self.scanned..)?.iter().position(|byte| *byte == b'\n');
        let end = end.map(|end| self.scanned + end);
        self.scanned = end.unwrap_or(self.input.len());
        end
    }

    /// Reads the next request, if the previous request is answered. Returns `false` if the client is gone.
    fn read_request(&mut self) -> bool {
        if !self.is_silent() {
            return true;
        }
        // The input may already contain another request.
        if self.line_end().is_none() {
            let mut bytes = [0; READ_SIZE];
            let room = (MAX_REQUEST - self.input.len()).min(READ_SIZE);
            let read = match &mut self.upgrade {
                Some(upgrade) => upgrade.read(&self.stream, &mut bytes[..room]),
                None => self.stream.read(&mut bytes[..room]),
            };
            match read {
                Ok(0) => return false,
                Ok(read) => self.input.extend(&bytes[..read]),
                Err(error) => return is_later(&error),
            }
        }
        self.last_heard = Instant::now();
        self.deadline.get_or_insert(self.last_heard + TIMEOUT);
        match self.line_end() {
            Some(end) => {
                match Request::parse(&self.input[..end]) {
                    Ok(request) => self.request = Some(request),
                    Err(error) => self.queue(&error.into()),
                }
                self.input.drain(..=end);
                self.input.shrink_to(READ_SIZE);
                self.scanned = 0;
            }
            None if self.input.len() == MAX_REQUEST => {
                let message = format!("a request has at most {MAX_REQUEST} bytes, with the newline at its end");
                self.dismiss(Refusal::new(ErrorCode::TooLong, message, "send shorter requests, each on one line"));
            }
            None => {}
        }
        true
    }

    /// Refuses the connection. The server closes the connection after it has sent the error.
    fn dismiss(&mut self, error: Refusal) {
        self.is_refused = true;
        (self.input, self.request) = (Vec::new(), None);
        self.queue(&Response::error(None, error));
    }

    /// Sends the client an error because there are too many clients.
    fn turn_away(mut self) {
        let help = "close connections that are not in use, and try again";
        self.dismiss(Refusal::new(ErrorCode::TooManyClients, "too many clients", help));
        self.write_output();
    }

    fn start_observation(&mut self, id: u64, started: Result<Observation, Refusal>, run: &Run) {
        match started {
            Ok(observation) => {
                self.observation = Some(observation);
                self.answer(id, Ok(&Started { workers: run.plan().cores.len() as u32 }));
            }
            Err(refusal) => self.answer::<()>(id, Err(&refusal)),
        }
    }

    /// Answers `stats`. `kept` is the snapshot without the counters that stages define.
    fn answer_stats(&mut self, id: u64, config: &str, snapshot: &Snapshot, kept: &Arc<Snapshot>) {
        let live = LiveStatistics {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config: config.to_owned(),
            report: snapshot.report().clone(),
            recent: snapshot.since(self.last_snapshot.as_deref()),
        };
        self.last_snapshot = Some(kept.clone());
        self.answer(id, Ok(&live));
    }

    /// Answers the request.
    fn answer<T: serde::Serialize>(&mut self, id: u64, result: Result<&T, &Refusal>) {
        self.request = None;
        match result.map(|result| Response::result(id, result)) {
            // The results always serialize to JSON.
            Ok(Ok(response)) => self.queue(&response),
            Ok(Err(_)) => {}
            Err(refusal) => self.queue(&Response::error(Some(id), refusal.clone())),
        }
    }

    /// Closes the connection at the end of the turn.
    fn close(&mut self) {
        (self.request, self.deadline) = (None, Some(Instant::now()));
    }

    /// Records that the client has received the answer.
    fn mark_answered(&mut self) {
        (self.request, self.deadline) = (None, None);
    }

    fn queue(&mut self, response: &Response) {
        let mut bytes = serde_json::to_vec(response).unwrap_or_default();
        bytes.push(b'\n');
        bytes.shrink_to_fit();
        self.output = PendingAnswer { bytes, sent: 0 };
        self.deadline = Some(Instant::now() + TIMEOUT);
    }

    /// Sends more output. Returns `false` if the client is gone, or everything is sent and the connection must close.
    fn write_output(&mut self) -> bool {
        if self.output.is_empty() {
            return true;
        }
        match self.stream.write(self.output.unsent()) {
            Ok(0) => return false,
            Ok(written) => self.output.sent += written,
            Err(error) => return is_later(&error),
        }
        if self.output.is_empty() {
            self.output = PendingAnswer::default();
            // The client may send its next request at any time.
            (self.last_heard, self.deadline) = (Instant::now(), None);
            return !self.is_refused;
        }
        true
    }
}

/// A target of the fuzzer: a client sends requests, whose bytes arrive in two pieces. The first byte of the input is
/// the length of the first piece.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(input: &[u8]) {
    let Some((&first, bytes)) = input.split_first() else { return };
    let (mut peer, ours) = UnixStream::pair().expect("a socket pair");
    ours.set_nonblocking(true).expect("a non-blocking socket");
    let mut client = ClientConnection::new(ours);
    let (mut answered, mut refused, mut is_open) = (Vec::new(), 0, true);
    let at = usize::from(first).min(bytes.len());
    for piece in [&bytes[..at], &bytes[at..]] {
        peer.write_all(piece).expect("room in the socket");
        // A call handles at most one request. If the input has no complete request yet, a call reads at most as many
        // bytes as one request may have.
        for _ in 0..=bytes.len() {
            is_open = is_open && client.read_request();
            assert!(client.input.len() <= MAX_REQUEST);
            answered.extend(client.request.take());
            let output = std::mem::take(&mut client.output);
            if is_open && !output.is_empty() {
                let response: Response = serde_json::from_slice(output.unsent()).expect("an answer");
                let error = response.error.expect("an error");
                assert!(response.result.is_none() && !error.message.is_empty() && !error.help.is_empty());
                refused += 1;
                is_open = !client.is_refused;
            }
        }
    }
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let is_short = |line: &&[u8]| line.len() <= MAX_REQUEST && line.last() == Some(&b'\n');
    let (parsed, failed): (Vec<_>, Vec<_>) =
        lines.clone().take_while(is_short).map(Request::parse).partition(Result::is_ok);
    assert!(answered.into_iter().map(Ok).eq(parsed));
    let is_too_long = lines.clone().find(|line| !is_short(line)).is_some_and(|line| line.len() >= MAX_REQUEST);
    assert_eq!((refused, is_open), (failed.len() + usize::from(is_too_long), !is_too_long));
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs::{self, File};
    use std::io::{BufRead, BufReader};
    use std::os::fd::BorrowedFd;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;
    use crate::app::process::own_descriptor;
    use crate::config::{Diagnostics, Source};
    use crate::prelude::*;
    use crate::runtime::{Options, assemble};
    use dataplane_control::upgrade::{DONE, HAND_OVER_VERSION, READY, send_with_descriptors};
    use dataplane_core::topology::Topology;
    use dataplane_testing::config::Config;
    use dataplane_testing::namespace::{in_namespace, ip};
    use dataplane_testing::{Folder, wait_until};

    /// The number of counters of the stage `many`. The answer to `stats` then has about 400 kB.
    const COUNTERS: usize = 16_384;

    /// A stage with many counters.
    #[derive(serde::Deserialize)]
    struct Many {}

    impl Stage for Many {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

        fn counters(&self, report: &mut dyn CounterReport) {
            let mut name = String::new();
            for number in 0..COUNTERS {
                name.clear();
                write!(name, "counter_{number:012}").unwrap();
                report.add(&name, 1);
            }
        }
    }

    #[test]
    fn partly_sent_answer_counts_with_its_whole_memory() {
        let (peer, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut client = ClientConnection::new(ours);
        client.answer(1, Ok(&"x".repeat(1 << 20)));
        let length = client.output.unsent().len();
        assert_eq!(client.output.memory(), length);
        assert!(client.write_output());
        assert!(client.output.unsent().len() < length && !client.output.is_empty());
        assert_eq!(client.output.memory(), length);
        let mut answer = Vec::new();
        let mut peer = BufReader::new(peer);
        peer.get_mut().set_nonblocking(true).unwrap();
        while !answer.ends_with(b"\n") {
            assert!(client.write_output());
            _ = peer.read_until(b'\n', &mut answer);
        }
        assert_eq!((answer.len(), client.output.memory()), (length, 0));
    }

    #[test]
    fn file_of_the_black_box_is_freed_if_its_client_is_idle() {
        let (_peer, ours) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut client = ClientConnection::new(ours);
        let mut is_kept = |time: Duration, has_output: bool| {
            client.black_box = Some(vec![0; 1 << 20]);
            client.output = PendingAnswer { bytes: vec![0; usize::from(has_output)], sent: 0 };
            client.free_idle_file(client.last_heard + time);
            client.black_box.is_some()
        };
        assert!(is_kept(TIMEOUT - Duration::from_millis(1), false));
        assert!(!is_kept(TIMEOUT, false));
        // The client still reads a part.
        assert!(is_kept(TIMEOUT, true));
    }

    /// Starts a run whose statistics are long, and a server with a control socket at `path`.
    fn run_with_long_answers(path: &Path) -> (Run, ControlServer) {
        let mut registry = dataplane_stages::registry();
        registry.add::<Many>("many");
        let registry = Arc::new(registry);
        let text = Config::new()
            .runtime(&format!("control = '{}'\nidle = 'sleep'", path.display()))
            .port("in", "kind = 'generator', rate = 1000")
            .stage("many", "")
            .stage("drop", "");
        start(text.to_string(), registry)
    }

    #[test]
    fn connection_of_a_new_program_that_breaks_off_is_closed() {
        in_namespace(|| {
            let folder = Folder::new();
            let path = folder.file("control.sock");
            let (run, mut server) = run_of_a_tap(&path);
            let mut client = client(&path, "upgrade");
            let answer = |server: &mut ControlServer, client: &mut BufReader<UnixStream>| {
                let mut answer = Vec::new();
                wait_until("an answer", || {
                    server.turn(&run);
                    let read = client.read_until(b'\n', &mut answer);
                    answer.ends_with(b"\n") || read.is_ok_and(|read| read == 0)
                });
                String::from_utf8(answer).unwrap()
            };
            assert!(answer(&mut server, &mut client).contains("\"arguments\""));
            let (own, other) = (own_descriptor().unwrap(), File::open("/dev/null").unwrap());
            for (descriptors, why) in [
                (Vec::new(), "the new program has sent no descriptor of its process (pidfd) together with `take_over`"),
                (vec![other.as_fd()], "its descriptor does not refer to a process"),
                (vec![own.as_fd()], "which is the running program"),
                // The refusal has used the descriptor.
                (Vec::new(), "the new program has sent no descriptor of its process"),
            ] {
                take_over(&client, &descriptors);
                let refused = answer(&mut server, &mut client);
                assert!(refused.contains(why), "{refused}");
            }
            let overdue = |server: &ControlServer, time| {
                server.clients[0].upgrade.as_ref().unwrap().overdue(Instant::now() + time)
            };
            let time = upgrade::START_TIMEOUT;
            assert_eq!(overdue(&server, time).unwrap(), "no new program has started within 30 s");
            assert_eq!(server.clients.len(), 1);
            let refused = run.changer().begin_upgrade(String::new()).err().unwrap();
            let id = std::process::id();
            let expected = format!("another change or an upgrade is in progress: an upgrade by process {id} of user ");
            assert!(refused.message.starts_with(&expected), "{refused}");
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            let descriptor = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            take_over(&client, &[descriptor.as_fd()]);
            client.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
            let config = answer(&mut server, &mut client);
            assert!(config.contains("\"memories\":[]"), "{config}");
            // The connection has blocked during the request, and its state is not known.
            assert_eq!(answer(&mut server, &mut client), "");
            assert!(server.clients.is_empty());
            child.kill().unwrap();
            child.wait().unwrap();
            run.stop();
            run.join().unwrap();
        });
    }

    /// Sends `take_over` together with these descriptors.
    fn take_over(client: &BufReader<UnixStream>, descriptors: &[BorrowedFd<'_>]) {
        let request = format!("\"request\":\"take_over\",\"hand_over_version\":{HAND_OVER_VERSION}");
        let request = format!("{{\"version\":1,\"id\":2,{request}}}\n");
        send_with_descriptors(client.get_ref(), request.as_bytes(), descriptors).unwrap();
    }

    /// Hands a run over to a new program that fails and does not end. Returns the process of the new program.
    fn fail_hand_over(path: &Path, run: &Run, server: &mut ControlServer) -> Child {
        // After `take_over`, the new program gets another user, so that the running program cannot kill it.
        let script = "read line && exec setpriv --reuid 65534 --clear-groups sleep 600";
        let mut child = Command::new("sh");
        child.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.spawn().unwrap();
        let (id, descriptor) = (child.id(), pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap());
        let mut input = child.stdin.take().unwrap();
        let mut new_program = client(path, "upgrade");
        new_program.get_ref().set_nonblocking(false).unwrap();
        let new_program = thread::spawn(move || {
            let mut answer = String::new();
            new_program.read_line(&mut answer).unwrap();
            answer.clear();
            take_over(&new_program, &[descriptor.as_fd()]);
            new_program.read_line(&mut answer).unwrap();
            let memories = answer.matches("\"pages\"").count();
            writeln!(input).unwrap();
            let status = format!("/proc/{id}/status");
            wait_until("another user", || fs::read_to_string(&status).unwrap().contains("Uid:\t65534"));
            new_program.get_mut().write_all(&[READY]).unwrap();
            // One byte carries the descriptor of the packet memory of the worker.
            new_program.read_exact(&mut vec![0; memories]).unwrap();
            let request = b"{\"version\":1,\"id\":3,\"request\":\"hand_over\"}\n";
            new_program.get_mut().write_all(request).unwrap();
            new_program.read_line(&mut answer).unwrap();
            // The new program receives the descriptors, and then fails.
            new_program.get_mut().write_all(&[READY]).unwrap();
            new_program.read_exact(&mut [0]).unwrap();
            new_program.get_mut().write_all(&[DONE]).unwrap();
            new_program.read_to_end(&mut Vec::new()).unwrap();
        });
        wait_until("the new program has failed", || {
            server.turn(run);
            new_program.is_finished()
        });
        new_program.join().unwrap();
        child
    }

    #[test]
    fn packets_of_a_failed_new_program_are_counted_if_the_run_stops() {
        in_namespace(|| {
            let folder = Folder::new();
            let path = folder.file("control.sock");
            ip("link add va type veth peer name vb
                link set va up
                link set vb up
                addr add 10.0.0.1/24 dev vb
                neigh add 10.0.0.2 lladdr 02:00:00:00:00:09 dev vb nud permanent");
            let (run, mut server) = run_on_host(&path, "kind = 'xdp', interface = 'va'");
            let mut child = fail_hand_over(&path, &run, &mut server);
            let socket = std::net::UdpSocket::bind("10.0.0.1:7").unwrap();
            for _ in 0..3 {
                socket.send_to(b"lost", "10.0.0.2:7").unwrap();
            }
            run.stop();
            wait_until("the worker ends", || run.loops() == [None]);
            server.end(&run);
            let report = run.join().unwrap();
            let counters = &report.ports[0].device_counters;
            // The kernel may have sent packets too.
            assert!(counters.get("rx_missed").is_some_and(|missed| *missed >= 3), "{counters:?}");
            child.kill().unwrap();
            child.wait().unwrap();
        });
    }

    #[test]
    fn server_answers_while_a_failed_new_program_has_not_ended() {
        in_namespace(|| {
            let folder = Folder::new();
            let path = folder.file("control.sock");
            let (run, mut server) = run_of_a_tap(&path);
            let mut child = fail_hand_over(&path, &run, &mut server);
            let mut other = client(&path, "hello");
            let mut answer = String::new();
            wait_until("an answer", || {
                server.turn(&run);
                other.read_line(&mut answer).is_ok()
            });
            let refused = run.changer().begin_upgrade(String::new()).err().expect("the upgrade is in progress");
            assert_eq!(refused.code, ErrorCode::Busy);
            child.kill().unwrap();
            child.wait().unwrap();
            wait_until("the end of the upgrade", || {
                server.turn(&run);
                run.changer().begin_upgrade(String::new()).is_ok()
            });
            assert!(run.detach().is_ok());
            run.resume(false);
            run.stop();
            run.join().unwrap();
        });
    }

    #[test]
    fn stopping_program_refuses_the_hand_over() {
        in_namespace(|| {
            let folder = Folder::new();
            let path = folder.file("control.sock");
            let (run, mut server) = run_of_a_tap(&path);
            let mut child =
                Command::new("sleep").arg("600").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let descriptor = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            let mut new_program = client(&path, "upgrade");
            new_program.get_ref().set_nonblocking(false).unwrap();
            let new_program = thread::spawn(move || {
                let mut answer = String::new();
                new_program.read_line(&mut answer).unwrap();
                take_over(&new_program, &[descriptor.as_fd()]);
                new_program.read_line(&mut answer).unwrap();
                new_program.get_mut().write_all(&[READY]).unwrap();
                let request = b"{\"version\":1,\"id\":3,\"request\":\"hand_over\"}\n";
                new_program.get_mut().write_all(request).unwrap();
                answer.clear();
                new_program.read_line(&mut answer).unwrap();
                answer
            });
            // The upgrade begins before the stop.
            wait_until("the upgrade", || {
                server.turn(&run);
                server.clients.iter().any(|client| client.upgrade.is_some())
            });
            run.stop();
            wait_until("an answer", || {
                server.turn(&run);
                new_program.is_finished()
            });
            let answer = new_program.join().unwrap();
            assert!(answer.contains("the running program is stopping"), "{answer}");
            child.kill().unwrap();
            child.wait().unwrap();
            run.join().unwrap();
        });
    }

    /// Starts a run with a `tap` port, and a server with a control socket at `path`.
    fn run_of_a_tap(path: &Path) -> (Run, ControlServer) {
        run_on_host(path, "kind = 'tap', name = 'dp0'")
    }

    /// Starts a run with a port on the host, and a server with a control socket at `path`. `link` has the keys of the
    /// link.
    fn run_on_host(path: &Path, link: &str) -> (Run, ControlServer) {
        let config = Config::new()
            .runtime(&format!("control = '{}'\nidle = 'sleep'\nsandbox = false", path.display()))
            .port("in", "kind = 'generator'")
            .stage("drop", "");
        let link = format!("device = 'host'\nlink = {{ {link} }}");
        let text = config.to_string().replace("device = 'soft'\nlink = { kind = 'generator' }", &link);
        start(text, Arc::new(dataplane_stages::registry()))
    }

    /// Starts a run, and a server with the control socket of the config.
    fn start(text: String, registry: Arc<Registry>) -> (Run, ControlServer) {
        let source = Source::new("test.toml", text, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let assembly = assemble(&source, &registry, Topology::discover().unwrap(), &mut diagnostics).unwrap().unwrap();
        let server =
            ControlServer::start(&assembly.plan.runtime, Path::new("test.toml"), None, &registry).unwrap().unwrap();
        (Run::start(assembly, Options::default()).unwrap(), server)
    }

    /// Returns a client that has sent a request.
    fn client(path: &Path, request: &str) -> BufReader<UnixStream> {
        let mut stream = UnixStream::connect(path).unwrap();
        writeln!(stream, "{{\"version\":1,\"id\":1,\"request\":\"{request}\"}}").unwrap();
        stream.set_nonblocking(true).unwrap();
        BufReader::new(stream)
    }

    #[test]
    fn clients_that_do_not_read_their_answers_do_not_stop_the_server() {
        let folder = Folder::new();
        let path = folder.file("control.sock");
        let (run, mut server) = run_with_long_answers(&path);
        let _slow = [(); 3].map(|()| client(&path, "stats"));
        let is_blocked = |server: &ControlServer| {
            let answers = server.clients.iter().map(|client| client.output.memory());
            answers.sum::<usize>() > MAX_OUTPUT
        };
        wait_until("too much memory", || {
            server.turn(&run);
            is_blocked(&server)
        });
        let unsent: usize = server.clients.iter().map(|client| client.output.unsent().len()).sum();
        assert!(unsent <= MAX_OUTPUT, "the server closes connections even if no request waits");
        let mut waiting = client(&path, "hello");
        server.turn(&run);
        // The time in which the server answers no requests does not count.
        let before = Instant::now();
        if let Some(client) = server.clients.iter_mut().find(|client| client.is_waiting()) {
            client.deadline = Some(before);
            server.turn(&run);
        }
        // The answers wait for longer than `READ_TIME`.
        for client in server.clients.iter_mut().filter(|client| !client.output.is_empty()) {
            client.deadline = Some(before + TIMEOUT - READ_TIME);
        }
        server.turn(&run);
        server.turn(&run);
        let mut answer = String::new();
        waiting.read_line(&mut answer).unwrap();
        assert!(answer.contains("\"max_request\""), "{answer}");
        // The server closes only as many connections as needed.
        assert_eq!(server.clients.len(), 3);
        run.stop();
        run.join().unwrap();
    }

    #[test]
    fn clients_that_ask_simultaneously_share_the_room_for_answers() {
        let folder = Folder::new();
        let path = folder.file("control.sock");
        let (run, mut server) = run_with_long_answers(&path);
        let mut clients: Vec<_> = (0..10).map(|_| BufReader::new(UnixStream::connect(&path).unwrap())).collect();
        for round in 0..2 {
            for client in &mut clients {
                client.get_mut().write_all(b"{\"version\":1,\"id\":1,\"request\":\"stats\"}\n").unwrap();
                client.get_mut().set_nonblocking(true).unwrap();
            }
            let mut answers = vec![Vec::new(); clients.len()];
            let mut longest = 0;
            wait_until("all answers", || {
                server.turn(&run);
                let output: usize = server.clients.iter().map(|client| client.output.memory()).sum();
                for (client, answer) in clients.iter_mut().zip(&mut answers) {
                    match client.read_until(b'\n', answer) {
                        Ok(read) => assert!(read > 0, "round {round}: the server has closed the connection"),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                    longest = longest.max(answer.len());
                }
                // The last answer may exceed the limit.
                assert!(output <= MAX_OUTPUT + MAX_OUTPUT / 2, "answers need {output} bytes");
                answers.iter().all(|answer| answer.ends_with(b"\n"))
            });
            assert!(longest > MAX_OUTPUT / 4, "an answer has only {longest} bytes");
        }
        // The clients keep no counters of stages.
        for client in &server.clients {
            let kept = client.last_snapshot.as_ref().unwrap();
            assert!(kept.report().stages.iter().all(|stage| stage.counters.is_empty()));
        }
        run.stop();
        run.join().unwrap();
    }
}
