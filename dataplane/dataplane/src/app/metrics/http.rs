//! The thread of the metrics server. The thread never blocks on a client, and each client has a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::acceptor::Acceptor;
use super::facts::{Facts, problems, unready};
use super::families;
use super::request::{self, Format, MAX_REQUEST, Refused, Request, Resource};
use crate::app::control::{Feed, Phase};
use crate::runtime::{Scope, Snapshot};

/// The maximum number of clients. Further clients wait in the backlog of the socket.
const MAX_CLIENTS: usize = 256;
/// The maximum time for a client to send its request, and the maximum time to receive the response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The minimum age of a connection that the server may close to accept another client.
const PATIENCE: Duration = Duration::from_secs(1);
/// The maximum time to wait for a snapshot. Workers have one second to answer.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum age of the snapshot of a page of metrics. A new snapshot for each scrape would be expensive, because the
/// snapshot contains all counters of the stages.
const METRICS_AGE: Duration = Duration::from_secs(1);
/// A run that stops counts as healthy for `drain_timeout` plus this time.
const STOP_MARGIN: Duration = Duration::from_secs(5);
/// The maximum time between two checks of the deadlines.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct Http {
    acceptor: Acceptor,
    feed: Arc<Feed>,
    facts: Arc<Facts>,
    stop: Arc<AtomicBool>,
    clients: Vec<HttpConnection>,
    /// The latest page of metrics.
    metrics: Option<MetricsPage>,
    /// The time at which the run started to stop.
    stopping: Option<Instant>,
    /// Whether accepting a client failed, for example because there are no file descriptors left. The server then waits
    /// before it accepts again.
    has_accept_failed: bool,
}

/// A snapshot, and its metrics as text.
struct MetricsPage {
    taken: Instant,
    snapshot: Arc<Snapshot>,
    /// The texts by format, once a client has requested the format.
    texts: [Option<Arc<str>>; 2],
}

/// The connection of a client.
trait Stream: Read + Write + Send {
    fn fd(&self) -> BorrowedFd<'_>;
    fn end_output(&self) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn end_output(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

impl Stream for UnixStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn end_output(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }
}

/// The state of a connection.
enum ConnectionState {
    /// The request is not complete.
    Reading(Vec<u8>),
    /// The request is complete, and the response needs a snapshot.
    Waiting(Request),
    /// The response is not completely sent: the headers, the body, and the number of bytes that are already sent.
    Writing(Vec<u8>, Arc<str>, usize),
    /// The response is sent, and the server waits until the client closes the connection. If the server closed the
    /// connection while the client still sends, TCP could discard the response.
    Ending,
}

struct HttpConnection {
    stream: Box<dyn Stream>,
    state: ConnectionState,
    accepted: Instant,
    /// The time at which the response was created. Until the response is created, this is the time at which the server
    /// accepted the connection.
    responded: Instant,
    deadline: Instant,
}

/// A response without headers.
struct Response {
    status: &'static str,
    content_type: &'static str,
    body: Arc<str>,
}

impl Response {
    fn text(status: &'static str, text: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: (text.into() + "\n").into() }
    }
}

impl Http {
    pub(super) fn new(acceptor: Acceptor, feed: Arc<Feed>, facts: Facts, stop: Arc<AtomicBool>) -> Self {
        Self {
            acceptor,
            feed,
            facts: facts.into(),
            stop,
            clients: Vec::new(),
            metrics: None,
            stopping: None,
            has_accept_failed: false,
        }
    }

    /// Serves clients until `stop` is set.
    pub(super) fn run(mut self) {
        while !self.stop.load(Ordering::Acquire) {
            self.wait();
            self.accept();
            for client in &mut self.clients {
                client.read();
            }
            self.answer();
            let now = Instant::now();
            self.clients.retain_mut(|client| client.write() && now < client.deadline);
        }
    }

    fn wait(&mut self) {
        let mut fds = Vec::with_capacity(2 + self.clients.len());
        fds.push(PollFd::from_borrowed_fd(self.feed.wake_fd(), PollFlags::IN));
        let has_failed = std::mem::take(&mut self.has_accept_failed);
        if !has_failed && self.has_room() {
            let listener = match &self.acceptor {
                Acceptor::Tcp(listener) => listener.as_fd(),
                Acceptor::Unix(socket) => socket.listener.as_fd(),
            };
            fds.push(PollFd::from_borrowed_fd(listener, PollFlags::IN));
        }
        for client in &self.clients {
            let what = match client.state {
                ConnectionState::Reading(_) | ConnectionState::Ending => PollFlags::IN,
                ConnectionState::Writing(..) => PollFlags::OUT,
                ConnectionState::Waiting(_) => continue,
            };
            fds.push(PollFd::from_borrowed_fd(client.stream.fd(), what));
        }
        match poll(&mut fds, Timespec::try_from(POLL_INTERVAL).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }

    /// Returns `true` if the server can accept another client, if necessary by closing the connection of
    /// [`Http::slowest`].
    fn has_room(&self) -> bool {
        self.clients.len() < MAX_CLIENTS || self.slowest().is_some()
    }

    /// Returns the oldest connection whose client is slow. Returns `None` if no client is slow.
    fn slowest(&self) -> Option<usize> {
        let slow = (0..self.clients.len()).filter(|at| self.clients[*at].is_slow());
        slow.min_by_key(|at| self.clients[*at].accepted)
    }

    fn accept(&mut self) {
        for _ in 0..MAX_CLIENTS {
            if self.clients.len() == MAX_CLIENTS && self.slowest().is_none() {
                return;
            }
            let accepted = match &self.acceptor {
                Acceptor::Tcp(listener) => listener.accept().and_then(|(stream, _)| {
                    stream.set_nonblocking(true)?;
                    Ok(Box::new(stream) as Box<dyn Stream>)
                }),
                Acceptor::Unix(socket) => socket.listener.accept().and_then(|(stream, _)| {
                    stream.set_nonblocking(true)?;
                    Ok(Box::new(stream) as Box<dyn Stream>)
                }),
            };
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    self.has_accept_failed = error.kind() != ErrorKind::WouldBlock;
                    return;
                }
            };
            if self.clients.len() == MAX_CLIENTS
                && let Some(slowest) = self.slowest()
            {
                self.clients.swap_remove(slowest);
            }
            let (accepted, state) = (Instant::now(), ConnectionState::Reading(Vec::new()));
            self.clients.push(HttpConnection {
                stream,
                state,
                accepted,
                responded: accepted,
                deadline: accepted + TIMEOUT,
            });
        }
    }

    /// Answers the clients that wait for a response, if there is a snapshot for their response.
    fn answer(&mut self) {
        let phase = self.feed.phase();
        if phase == Phase::Stopping {
            self.stopping.get_or_insert_with(Instant::now);
        }
        let latest = self.feed.take();
        if let Some((snapshot, Scope::All)) = &latest {
            let (taken, snapshot) = (Instant::now(), snapshot.clone());
            self.metrics = Some(MetricsPage { taken, snapshot, texts: [None, None] });
        }
        // Clients that requested a page shortly after another client get the same page.
        self.metrics.take_if(|page| page.taken.elapsed() >= METRICS_AGE);
        let is_draining = self.stopping.is_some_and(|since| since.elapsed() < self.facts.drain_timeout + STOP_MARGIN);
        for client in &mut self.clients {
            let ConnectionState::Waiting(request) = client.state else { continue };
            let page = match (&latest, request.what) {
                _ if phase == Phase::Starting => HttpPage::Starting,
                (_, Resource::Healthy) if is_draining => HttpPage::Draining,
                (_, Resource::Metrics(format)) => match &mut self.metrics {
                    Some(page) => HttpPage::Metrics(page.text(format, &self.facts, phase == Phase::Stopping), format),
                    None => HttpPage::Missing(Scope::All),
                },
                (_, Resource::Ready) if phase == Phase::Stopping => HttpPage::Stopping,
                (Some((snapshot, _)), _) => HttpPage::Snapshot(snapshot),
                (None, _) => HttpPage::Missing(Scope::Health),
            };
            match page {
                HttpPage::Missing(_) if client.is_late() => client.answer(&HttpPage::Stuck),
                HttpPage::Missing(scope) => self.feed.request(scope),
                page => client.answer(&page),
            }
        }
    }
}

impl MetricsPage {
    fn text(&mut self, format: Format, facts: &Arc<Facts>, is_stopping: bool) -> Arc<str> {
        let text = &mut self.texts[usize::from(format == Format::OpenMetrics)];
        text.get_or_insert_with(|| families::text(&self.snapshot, facts, is_stopping, format).into()).clone()
    }
}

/// The information for a response.
enum HttpPage<'a> {
    /// The workers have not started.
    Starting,
    /// The run stops, and the workers wait for packets in progress.
    Draining,
    /// The run stops.
    Stopping,
    /// There is no snapshot with this scope yet.
    Missing(Scope),
    /// The server got no snapshot within [`SNAPSHOT_TIMEOUT`].
    Stuck,
    Snapshot(&'a Snapshot),
    Metrics(Arc<str>, Format),
}

impl HttpPage<'_> {
    fn response(&self, what: Resource) -> Response {
        const UNAVAILABLE: &str = "503 Service Unavailable";
        let problems = match (self, what) {
            (Self::Starting, Resource::Healthy) => return Response::text("200 OK", "starting"),
            (Self::Draining, _) => return Response::text("200 OK", "stopping"),
            (Self::Metrics(body, format), _) => {
                return Response { status: "200 OK", content_type: format.content_type(), body: body.clone() };
            }
            (Self::Starting, _) => vec!["starting: the workers do not run yet".to_owned()],
            (Self::Stopping, _) => vec!["the run stops".to_owned()],
            (Self::Stuck | Self::Missing(_), _) => vec!["the server got no statistics within 3 s".to_owned()],
            (Self::Snapshot(snapshot), Resource::Healthy) => problems(snapshot),
            (Self::Snapshot(snapshot), _) => unready(snapshot),
        };
        match (problems.is_empty(), what) {
            (true, Resource::Healthy) => Response::text("200 OK", "ok"),
            (true, _) => Response::text("200 OK", "ready"),
            (false, _) => Response::text(UNAVAILABLE, problems.join("\n")),
        }
    }
}

impl HttpConnection {
    /// Returns `true` if the server waits for the client to send the request, to read the response or to close the
    /// connection, and [`PATIENCE`] is over. While the client must read the response, [`PATIENCE`] starts when the
    /// response is created. Otherwise, [`PATIENCE`] starts when the server accepts the connection. A client that reads
    /// small parts is slow too, because such clients could otherwise use all connections.
    fn is_slow(&self) -> bool {
        let since = match self.state {
            ConnectionState::Reading(_) | ConnectionState::Ending => self.accepted,
            ConnectionState::Writing(..) => self.responded,
            ConnectionState::Waiting(_) => return false,
        };
        since.elapsed() >= PATIENCE
    }

    /// Reads a part of the request, unless the request is complete. Answers a request that the server refuses.
    fn read(&mut self) {
        let ConnectionState::Reading(input) = &mut self.state else { return };
        let mut bytes = [0; MAX_REQUEST];
        let room = MAX_REQUEST - input.len();
        match self.stream.read(&mut bytes[..room]) {
            // The client has closed the connection.
            Ok(0) => return self.close(),
            Ok(read) => input.extend(&bytes[..read]),
            Err(error) if is_later(&error) => return,
            Err(_) => return self.close(),
        }
        match request::parse(input) {
            Ok(None) => {}
            Ok(Some(request)) => {
                self.deadline = Instant::now() + TIMEOUT;
                self.state = ConnectionState::Waiting(request);
            }
            Err(Refused { status, message }) => self.send(Response::text(status, message), false),
        }
    }

    /// Marks the connection as expired. The next check of the deadlines closes the connection.
    fn close(&mut self) {
        (self.state, self.deadline) = (ConnectionState::Ending, self.accepted);
    }

    /// Answers the request, if the client waits for a response.
    fn answer(&mut self, page: &HttpPage<'_>) {
        if let ConnectionState::Waiting(request) = self.state {
            self.send(page.response(request.what), request.is_head);
        }
    }

    /// Returns `true` if the client has waited for a snapshot for [`SNAPSHOT_TIMEOUT`].
    fn is_late(&self) -> bool {
        let waited = TIMEOUT.saturating_sub(self.deadline.saturating_duration_since(Instant::now()));
        waited >= SNAPSHOT_TIMEOUT
    }

    fn send(&mut self, response: Response, is_head: bool) {
        let Response { status, content_type, body } = response;
        let length = body.len();
        let allow = if status.starts_with("405") { "allow: GET, HEAD\r\n" } else { "" };
        let headers = format!(
            "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\ncache-control: no-store\r\n\
             x-content-type-options: nosniff\r\n{allow}connection: close\r\n\r\n"
        );
        self.responded = Instant::now();
        self.deadline = self.responded + TIMEOUT;
        self.state = ConnectionState::Writing(headers.into(), if is_head { "".into() } else { body }, 0);
    }

    /// Sends as much of the response as the socket accepts. Returns `false` if the connection has ended.
    fn write(&mut self) -> bool {
        match &mut self.state {
            ConnectionState::Reading(_) | ConnectionState::Waiting(_) => return true,
            ConnectionState::Ending => return self.discard(),
            ConnectionState::Writing(headers, body, sent) => {
                while *sent < headers.len() + body.len() {
                    let rest = match headers.get(*sent..).filter(|rest| !rest.is_empty()) {
                        Some(rest) => rest,
                        None => &body.as_bytes()[*sent - headers.len()..],
                    };
                    match self.stream.write(rest) {
                        Ok(0) => return false,
                        Ok(written) => *sent += written,
                        Err(error) => return is_later(&error),
                    }
                }
            }
        }
        self.state = ConnectionState::Ending;
        self.stream.end_output().is_ok() && self.discard()
    }

    /// Discards input of the client. Returns `false` if the client has closed the connection.
    fn discard(&mut self) -> bool {
        match self.stream.read(&mut [0; MAX_REQUEST]) {
            Ok(read) => read > 0,
            Err(error) => is_later(&error),
        }
    }
}

/// Returns `true` if the operation would block or was interrupted.
fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_slow_until_it_has_read_the_whole_response() {
        let (server, mut reader) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        let accepted = Instant::now();
        let (stream, state) = (Box::new(server), ConnectionState::Reading(Vec::new()));
        let mut client = HttpConnection { stream, state, accepted, responded: accepted, deadline: accepted + TIMEOUT };
        // The response is larger than the buffer of the socket.
        client.send(Response::text("200 OK", "x".repeat(16 << 20)), false);
        assert!(client.write() && matches!(client.state, ConnectionState::Writing(..)));
        assert!(!client.is_slow());
        client.responded = client.responded.checked_sub(PATIENCE).unwrap();
        assert!(client.is_slow());
        reader.set_nonblocking(true).unwrap();
        while reader.read(&mut [0; 4096]).is_ok() {}
        assert!(client.write() && matches!(client.state, ConnectionState::Writing(..)) && client.is_slow());
        while matches!(client.state, ConnectionState::Writing(..)) {
            while reader.read(&mut [0; 4096]).is_ok() {}
            assert!(client.write());
        }
        assert!(!client.is_slow());
    }
}
