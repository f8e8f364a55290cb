//! The hand-over of a running program to the new program of an upgrade: the side of the running program.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde::Serialize;

use crate::app::process::{self, Process};
use crate::runtime::{HandedRun, RESTART_HELP, Run, SharedMemory, UpgradeHold};
use dataplane_control::upgrade::{
    self, DONE, HAND_OVER_VERSION, HandedOver, MemoryRow, QueueRow, RUNNING, StateRow, TakeOver, TakenConfig,
    UpgradeStart, WITHDRAWN,
};
use dataplane_control::{ErrorCode, Refusal, Response};
use dataplane_soft::upgrade::HandedQueue;

/// The option of `run` with which a new program takes over a running program.
pub(in crate::app) const TAKE_OVER_OPTION: &str = "--take-over";
/// The environment variables that the new program gets from the running program. The new program does not get
/// `WATCHDOG_PID`, because the process id of the new program differs.
pub(in crate::app) const ENVIRONMENT: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "JOURNAL_STREAM", "RUST_LOG", "NO_COLOR", "XDG_RUNTIME_DIR"];
/// The maximum time from the start of an upgrade to `take_over`. The new program sends `take_over` before it prepares
/// anything, so only the kernel needs time to load the program file.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time from the start of an upgrade to the hand-over. The new program allocates memory and compiles tables.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(600);
/// The maximum time of `take_over`, and the maximum time from the hand-over until the workers of the new program run. Packets
/// wait during the hand-over.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum time that the running program waits for the end of a new program that took too long.
const WITHDRAW_TIMEOUT: Duration = Duration::from_millis(200);
/// The help for an upgrade that failed before the hand-over.
const TRY_AGAIN: &str = "try again; the program still forwards packets";
/// The maximum time that the running program waits for the end of a new program that was killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// An upgrade whose new program prepares its run.
pub(super) struct Upgrade {
    /// Refuses changes of the config.
    _hold: UpgradeHold,
    since: Instant,
    /// The last descriptor that the client has sent.
    descriptor: Option<io::Result<OwnedFd>>,
    /// The new program, after its first request.
    program: Option<Process>,
}

/// A listening socket that the new program takes over.
pub(in crate::app) struct SharedListener {
    pub(in crate::app) listener: OwnedFd,
    /// The file that locks the path of a Unix socket.
    pub(in crate::app) lock: Option<OwnedFd>,
    /// Whether another program has the socket, so that this program must not remove the socket file.
    pub(in crate::app) is_handed: Arc<AtomicBool>,
}

/// The reason why the new program did not take over.
pub(super) enum SwitchError {
    /// The run refuses the request, and receives packets.
    Refused(Refusal),
    /// The new program failed, so the connection must be closed. The run receives packets.
    Lost(String),
    /// The new program failed after it may have received packets. The run is paused until the new program has ended
    /// ([`Withdrawal`]).
    Withdrawn(String),
}

/// The wait for the end of a new program that failed after it may have received packets. Until then, the new program may
/// have the sockets, and the kernel may write to the packet memory.
pub(super) struct Withdrawal {
    /// Refuses changes of the config, and another upgrade.
    _hold: UpgradeHold,
    program: Process,
    since: Instant,
    is_killed: bool,
}

impl Withdrawal {
    /// Returns `true` if the new program has ended, or does not end although it was killed. Kills a new program that
    /// still runs after [`WITHDRAW_TIMEOUT`].
    pub(super) fn is_over(&mut self) -> bool {
        if self.program.has_ended(Duration::ZERO) {
            return true;
        }
        let waited = self.since.elapsed();
        if waited >= WITHDRAW_TIMEOUT {
            self.kill();
        }
        let is_late = waited >= WITHDRAW_TIMEOUT + KILL_TIMEOUT;
        if is_late {
            tracing::error!(
                "process {} does not end after SIGKILL, so this program receives packets again while the new program may \
                 still exist",
                self.program.pid
            );
        }
        is_late
    }

    fn kill(&mut self) {
        if !std::mem::replace(&mut self.is_killed, true)
            && let Err(error) = self.program.kill()
        {
            tracing::error!("cannot kill process {}: {error}", self.program.pid);
        }
    }
}

impl Drop for Withdrawal {
    /// Kills the new program if the run of this program ends first.
    fn drop(&mut self) {
        if !self.program.has_ended(Duration::ZERO) {
            self.kill();
        }
    }
}

/// The connection to the new program, on which all messages must pass before a deadline.
struct TimedStream<'a> {
    stream: &'a UnixStream,
    deadline: Instant,
}

impl TimedStream<'_> {
    /// Limits the next call to the time until the deadline.
    fn limit(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(Some(left))?;
        self.stream.set_write_timeout(Some(left))
    }
}

impl Read for &TimedStream<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.limit()?;
        (&*self.stream).read(into)
    }
}

impl Write for &TimedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit()?;
        (&*self.stream).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Upgrade {
    /// Starts an upgrade. `peer` is the connection of the client.
    pub(super) fn start(run: &Run, peer: &UnixStream) -> Result<(Self, UpgradeStart), Refusal> {
        let client = check_peer(peer)?;
        let arguments = arguments(std::env::args_os().skip(1))?;
        let failed = |what: &str, why: String| {
            let message = format!("{what}: {why}");
            Refusal::new(ErrorCode::Failed, message, RESTART_HELP)
        };
        let directory = working_directory()?;
        let directory = directory.into_os_string().into_string();
        let directory = directory.map_err(|_| failed("the working directory", "its path is not UTF-8".to_owned()))?;
        let variable = |name: &&str| Some(((*name).to_owned(), std::env::var(name).ok()?));
        let start = UpgradeStart {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            arguments,
            directory,
            environment: ENVIRONMENT.iter().filter_map(variable).collect(),
        };
        let hold = run.changer().begin_upgrade(client)?;
        Ok((Self { _hold: hold, since: Instant::now(), descriptor: None, program: None }, start))
    }

    /// Returns the reason if the upgrade has taken too long at the time `now`.
    pub(super) fn overdue(&self, now: Instant) -> Option<String> {
        let (what, limit) = match self.program {
            None => ("no new program has started", START_TIMEOUT),
            Some(_) => ("the new program was not ready", PREPARE_TIMEOUT),
        };
        let is_overdue = now.saturating_duration_since(self.since) >= limit;
        is_overdue.then(|| format!("{what} within {} s", limit.as_secs()))
    }

    /// Reads from the connection of the client. Keeps a descriptor that the client has sent.
    pub(super) fn read(&mut self, stream: &UnixStream, into: &mut [u8]) -> io::Result<usize> {
        let (read, descriptor) = upgrade::receive_with_descriptor(stream, into)?;
        if descriptor.is_some() {
            self.descriptor = descriptor;
        }
        Ok(read)
    }

    /// Returns the new program.
    pub(super) fn program(&self) -> Option<&Process> {
        self.program.as_ref()
    }

    /// Starts to wait for the end of the new program.
    pub(super) fn withdraw(self) -> Option<Withdrawal> {
        let program = self.program?;
        Some(Withdrawal { _hold: self._hold, program, since: Instant::now(), is_killed: false })
    }

    /// Answers the request of the new program for the config. The answer is complete when this method returns.
    /// `running_time` is the time since the start of the run. `stream` is the connection to the new program, and `id` is
    /// the number of the request.
    pub(super) fn take_over(
        &mut self,
        run: &Run,
        running_time: Duration,
        request: &TakeOver,
        (stream, id): (&UnixStream, u64),
    ) -> Result<(), SwitchError> {
        let failed = |why: String| SwitchError::Refused(Refusal::new(ErrorCode::Failed, why, TRY_AGAIN));
        if request.hand_over_version != HAND_OVER_VERSION {
            let message = format!(
                "the new program has version {} of the hand-over, but the running program has version \
                 {HAND_OVER_VERSION}",
                request.hand_over_version
            );
            return Err(SwitchError::Refused(Refusal::new(ErrorCode::NeedsRestart, message, RESTART_HELP)));
        }
        self.program = Some(new_program(self.descriptor.take()).map_err(SwitchError::Refused)?);
        let source = run.source();
        let memories = run.shared_memories().map_err(|error| failed(format!("the packet memory: {error}")))?;
        let row = |memory: &SharedMemory| {
            let [stride, headroom, count] = memory.layout;
            let pages = serde_json::to_value(memory.pages)?.as_str().unwrap_or_default().to_owned();
            Ok(MemoryRow { pages, stride, headroom, count })
        };
        let rows: Result<_, serde_json::Error> = memories.iter().map(row).collect();
        let config = TakenConfig {
            text: source.text().to_owned(),
            settings: source.overrides().map(str::to_owned).collect(),
            running_s: running_time.as_secs_f64(),
            memories: rows.map_err(|error| failed(error.to_string()))?,
        };
        let descriptors: Vec<_> = memories.iter().map(|memory| memory.descriptor.as_fd()).collect();
        let timed = TimedStream { stream, deadline: Instant::now() + SWITCH_TIMEOUT };
        answer_with(&timed, id, &config, &descriptors, &mut false).map_err(SwitchError::Lost)?;
        stream.set_nonblocking(true).map_err(|error| SwitchError::Lost(error.to_string()))
    }
}

/// Returns the working directory. If the directory was deleted, returns the new directory with the same path.
fn working_directory() -> Result<PathBuf, Refusal> {
    let no_directory = |message: String, help: &str| Refusal::new(ErrorCode::Failed, message, help);
    match std::env::current_dir() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        known => return known.map_err(|error| no_directory(format!("no working directory: {error}"), RESTART_HELP)),
    }
    // The kernel appends ` (deleted)` to the path of a deleted directory.
    let path = std::fs::read_link("/proc/self/cwd").ok();
    let path = path.as_ref().and_then(|path| path.to_str()?.strip_suffix(" (deleted)"));
    match path {
        None => Err(no_directory("the working directory was deleted or cannot be reached".to_owned(), RESTART_HELP)),
        Some(path) if Path::new(path).is_dir() => Ok(path.into()),
        Some(path) => {
            let help = format!("run `mkdir -p '{path}'`, put back the files that the config names, and upgrade again");
            Err(no_directory(format!("the working directory {path} was deleted"), &help))
        }
    }
}

/// Returns the new program, which has sent a descriptor of its process.
fn new_program(descriptor: Option<io::Result<OwnedFd>>) -> Result<Process, Refusal> {
    let failed = |message: String, help| Refusal::new(ErrorCode::Failed, message, help);
    match descriptor {
        Some(Ok(descriptor)) => Process::of_descriptor(descriptor),
        Some(Err(error)) => Err(failed(
            format!("the running program cannot receive a descriptor of the new program: {error}"),
            "raise the limit of open files of the running program, for example with `prlimit --nofile`",
        )),
        None => Err(failed(
            "the new program has sent no descriptor of its process (pidfd) together with `take_over`".to_owned(),
            "use `dataplane upgrade --to PROGRAM`",
        )),
    }
}

/// Refuses a client of another user, because the client gets the descriptors of this program, and chooses the process
/// that this program may have to kill. Returns a description of the client.
fn check_peer(peer: &UnixStream) -> Result<String, Refusal> {
    let help = "run `dataplane upgrade` as the user of the program, and in the container of the program, for example with \
                `nsenter --all --target PROCESS`";
    let refuse = |why: String| Refusal::new(ErrorCode::Failed, format!("upgrade refused: {why}"), help);
    let peer = process::peer(peer).map_err(refuse)?;
    match peer.uid() == geteuid().as_raw() {
        true => Ok(format!("process {} of user {}", peer.pid(), peer.uid())),
        false => Err(refuse(format!("the client runs as user {}, the program runs as user {}", peer.uid(), geteuid()))),
    }
}

/// Returns the arguments of the running program, without the option of an earlier upgrade.
fn arguments(arguments: impl Iterator<Item = OsString>) -> Result<Vec<String>, Refusal> {
    let text = |argument: OsString| {
        argument.into_string().map_err(|argument| {
            let message = format!("the argument `{}` of the program is not UTF-8", argument.display());
            Refusal::new(ErrorCode::Failed, message, RESTART_HELP)
        })
    };
    arguments.filter(|argument| argument != TAKE_OVER_OPTION).map(text).collect()
}

/// Logs why the new program did not take over.
pub(super) fn log_failure(why: &str) {
    tracing::error!("upgrade failed: {why}; this program continues");
}

/// Logs that the run is paused until the new program with this process id has ended.
pub(super) fn log_withdrawal(why: &str, process: u32) {
    tracing::error!(
        "upgrade failed: {why}; this program waits for the end of process {process}, and then receives packets again"
    );
}

/// Returns the refusal of `take_over` without an upgrade.
pub(super) fn not_started() -> Refusal {
    Refusal::new(ErrorCode::Failed, "no upgrade was started on this connection", "send `upgrade` first")
}

/// Returns the refusal of `hand_over` before `take_over`.
pub(super) fn not_taken_over() -> Refusal {
    Refusal::new(
        ErrorCode::Failed,
        "no new program has received the config on this connection",
        "send `take_over` first",
    )
}

/// Hands the run over to the new program on the connection `stream`, and waits until the workers of the new program run.
/// `id` is the number of the request. Returns the maximum time for which packets waited.
pub(super) fn switch(
    run: &Run,
    stream: &UnixStream,
    id: u64,
    listeners: &[(&str, &SharedListener)],
) -> Result<Duration, SwitchError> {
    let begin = Instant::now();
    let refused = |why: String| SwitchError::Refused(Refusal::new(ErrorCode::Failed, why, TRY_AGAIN));
    let handed = run.detach();
    if run.is_stopped() {
        if handed.is_ok() {
            run.resume(false);
        }
        let message = "the running program is stopping";
        return Err(SwitchError::Refused(Refusal::new(ErrorCode::Failed, message, "start the program again")));
    }
    let handed = handed.map_err(refused)?;
    let mut is_touched = false;
    let timed = TimedStream { stream, deadline: begin + SWITCH_TIMEOUT };
    let switched = send(&timed, id, handed, listeners, &mut is_touched).and_then(|()| await_running(&timed));
    switched.map_err(|why| {
        if is_touched {
            let _ = upgrade::send_byte(stream, WITHDRAWN);
            return SwitchError::Withdrawn(why);
        }
        run.resume(false);
        SwitchError::Lost(why)
    })?;
    let time = begin.elapsed();
    for (_, shared) in listeners {
        shared.is_handed.store(true, Ordering::Release);
    }
    // Ignore the error if the new program has just ended: the service manager restarts the program. This program cannot
    // continue, because the new program may have received packets.
    let _ = upgrade::send_byte(stream, DONE);
    Ok(time)
}

/// Describes an error on the connection to the new program.
fn describe(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "the new program ended, or closed the connection".to_owned()
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("the new program did not answer within {} s", SWITCH_TIMEOUT.as_secs())
        }
        _ => format!("the connection to the new program failed: {error}"),
    }
}

/// Sends the descriptors and the states. Sets `is_touched` before the new program can receive packets.
fn send(
    stream: &TimedStream<'_>,
    id: u64,
    handed: HandedRun,
    listeners: &[(&str, &SharedListener)],
    is_touched: &mut bool,
) -> Result<(), String> {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let mut head = HandedOver { descriptors: vec!["stdout".to_owned(), "stderr".to_owned()], ..HandedOver::default() };
    let mut descriptors: Vec<BorrowedFd<'_>> = vec![stdout.as_fd(), stderr.as_fd()];
    for (name, shared) in listeners {
        head.descriptors.push((*name).to_owned());
        descriptors.push(shared.listener.as_fd());
        if let Some(lock) = &shared.lock {
            head.descriptors.push(format!("{name}_lock"));
            descriptors.push(lock.as_fd());
        }
    }
    for (port, HandedQueue { queue, descriptors: own, position, posted }) in &handed.queues {
        let (port, position, posted) = (port.clone(), position.clone(), posted.clone());
        head.queues.push(QueueRow { port, queue: *queue, descriptors: own.len(), position, posted });
        descriptors.extend(own.iter().map(AsFd::as_fd));
    }
    let mut bytes = Vec::new();
    for (worker, (stage, state)) in
        handed.states.iter().enumerate().flat_map(|(worker, states)| states.iter().map(move |state| (worker, state)))
    {
        head.states.push(StateRow { worker, stage: stage.clone(), bytes: state.len() });
        bytes.extend_from_slice(state);
    }
    answer_with(stream, id, &head, &descriptors, is_touched)?;
    let mut writer = stream;
    writer.write_all(&bytes).map_err(|error| describe(&error))
}

/// Sends the answer `head` to the request with the number `id`, and then the descriptors. Sets `is_sent` before the new
/// program can use a descriptor.
fn answer_with(
    stream: &TimedStream<'_>,
    id: u64,
    head: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    is_sent: &mut bool,
) -> Result<(), String> {
    let failed = |error: io::Error| describe(&error);
    let line = Response::result(id, head).and_then(|response| serde_json::to_string(&response));
    let line = line.map_err(|error| error.to_string())? + "\n";
    let mut writer = stream;
    writer.write_all(line.as_bytes()).map_err(failed)?;
    if receive_byte(stream).map_err(failed)? != upgrade::READY {
        return Err("the new program sent an unknown message".to_owned());
    }
    *is_sent = true;
    stream.limit().and_then(|()| upgrade::send_descriptors(stream.stream, descriptors)).map_err(failed)
}

/// Receives a message of one byte.
fn receive_byte(mut stream: &TimedStream<'_>) -> io::Result<u8> {
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    Ok(byte[0])
}

/// Waits until the workers of the new program run.
fn await_running(stream: &TimedStream<'_>) -> Result<(), String> {
    match receive_byte(stream) {
        Ok(RUNNING) => Ok(()),
        Ok(_) => Err("the new program sent an unknown message".to_owned()),
        Err(error) => Err(describe(&error)),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn option_of_an_earlier_upgrade_is_not_an_argument() {
        let given = ["run", "x.toml", "--take-over", "-v"].map(OsString::from);
        assert_eq!(arguments(given.into_iter()).unwrap(), ["run", "x.toml", "-v"]);
    }

    #[test]
    fn no_message_passes_after_the_deadline() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        upgrade::send_byte(&theirs, RUNNING).unwrap();
        let timed = |deadline| TimedStream { stream: &ours, deadline };
        let late = timed(Instant::now());
        assert_eq!(receive_byte(&late).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!((&late).write(&[DONE]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(receive_byte(&timed(Instant::now() + SWITCH_TIMEOUT)).unwrap(), RUNNING);
        // A client that reads nothing does not extend the time.
        let timed = timed(Instant::now() + Duration::from_millis(10));
        assert!((&timed).write_all(&vec![0; 16 << 20]).is_err());
    }

    #[test]
    fn errors_of_the_new_program_are_described() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let timed = |milliseconds| TimedStream {
            stream: &ours,
            deadline: Instant::now() + Duration::from_millis(milliseconds),
        };
        assert_eq!(await_running(&timed(0)).unwrap_err(), "the new program did not answer within 2 s");
        assert_eq!(await_running(&timed(10)).unwrap_err(), "the new program did not answer within 2 s");
        drop(theirs);
        assert_eq!(await_running(&timed(60_000)).unwrap_err(), "the new program ended, or closed the connection");
    }

    #[test]
    #[ignore = "runs in the process that `client_in_another_pid_namespace_is_refused` starts"]
    fn process_in_another_pid_namespace() {
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
        let refused = check_peer(&stream).unwrap_err();
        assert!(refused.message.ends_with("is in another pid namespace"), "{refused}");
    }

    #[test]
    fn client_in_another_pid_namespace_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut test = Command::new("unshare");
        test.args(["--pid", "--fork"]).arg(std::env::current_exe().unwrap());
        test.args(["--exact", "--ignored", "app::control::upgrade::tests::process_in_another_pid_namespace"]);
        let output = test.stdin(Stdio::from(OwnedFd::from(ours))).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn client_of_the_same_user_may_upgrade() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let client = check_peer(&ours).unwrap();
        assert_eq!(client, format!("process {} of user {}", std::process::id(), geteuid()));
    }
}
