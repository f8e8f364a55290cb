//! `upgrade`: replaces a running program by another program file, without loss of packets.

use std::fs;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde::Serialize;

use super::console::{self, CommandError};
use super::control::{ENVIRONMENT, TAKE_OVER_OPTION};
use super::process::{self, Process};
use super::{args, stats};
use dataplane_control::upgrade::UpgradeStart;
use dataplane_control::{Call, Client};
use dataplane_core::stderr;

/// The maximum time that the command waits for the end of the old program after the hand-over.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// The additional time after the timeout of the command if a hand-over has begun.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between two checks whether the new program has taken over or has ended, although its pipes are open.
const PIPE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The maximum time for reading the last messages of the new program.
const REST_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between two checks of the new program while the old program ends.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The command line in messages about several running programs.
const EXAMPLE: &str = "dataplane upgrade --to PROGRAM PROCESS";

/// The result of an upgrade.
#[derive(Serialize)]
struct Upgraded {
    /// The process id of the new program.
    pid: u32,
    /// The process id of the old program.
    replaced_pid: u32,
    /// The version of the old program.
    replaced_version: String,
    /// The time from the start of the new program until the new program forwards packets, in seconds.
    prepared_s: f64,
    /// Whether the old program has ended.
    has_ended: bool,
}

pub(super) fn upgrade(args: &args::Upgrade) -> Result<(), CommandError> {
    let program = &args.program;
    let (socket, process) = (program.socket.as_deref(), program.process);
    let mut client = stats::connect(socket, process, EXAMPLE)?;
    let start: UpgradeStart = client
        .call(&Call::Upgrade {})
        .and_then(|answer| answer.parse_exactly())
        .map_err(|error| stats::failed(error, EXAMPLE))?;
    check_network(start.pid)?;
    let old = Process::open(start.pid);
    let path = client.path().to_owned();
    let stream = client.into_stream();
    check_program(&stream)?;
    let connection = Connection(stream);
    let begin = Instant::now();
    let mut child = start_program(&args.to, &start, &connection)?;
    let is_old_waiting = || answers(&path, start.pid);
    let pid = await_program(&mut child, args.timeout, is_old_waiting)?.map_err(|NotTaken { why, help }| {
        // The old program may wait for the new program, and then does not answer.
        drop(connection);
        let old = state_of_old(&old, is_old_waiting);
        CommandError::Failed(format!("{} did not take over{why}; {old}; help: {help}", args.to.display()))
    })?;
    let prepared_s = begin.elapsed().as_secs_f64();
    let has_ended = await_end(&mut child, &old, &path, END_TIMEOUT).map_err(|why| {
        CommandError::Failed(format!("{}: {why}; help: the messages of the new program are above", args.to.display()))
    })?;
    let UpgradeStart { pid: replaced_pid, version: replaced_version, .. } = start;
    let upgraded = Upgraded { pid, replaced_pid, replaced_version, prepared_s, has_ended };
    let end = match has_ended {
        true => format!("process {replaced_pid} has ended"),
        false => format!("process {replaced_pid} still runs, but forwards no packets"),
    };
    let printed = match args.json {
        true => console::print_json(&upgraded),
        false => {
            console::print(&format!("upgraded: process {pid} forwards the packets after {prepared_s:.1} s, {end}\n"))
        }
    };
    printed.map_err(|error| match error {
        CommandError::Failed(why) => CommandError::Failed(format!(
            "the upgrade is complete, and process {pid} forwards the packets, but the result is lost: {why}"
        )),
        error => error,
    })
}

/// The connection to the old program, which the new program inherits. The old program refuses changes and other upgrades
/// until the connection ends. The new program may leave processes that have inherited the connection too, so the drop
/// of this value ends the connection for all processes.
struct Connection(UnixStream);

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Waits for the end of the old program, which listens on the control socket `path`. Returns `false` if the old program
/// still runs after `limit`, for example because nobody reads its report.
///
/// # Errors
/// Fails if the new program has ended, or if the old program still forwards packets.
fn await_end(child: &mut Child, old: &Process, path: &Path, limit: Duration) -> Result<bool, String> {
    let old_pid = old.pid;
    let begin = Instant::now();
    let mut is_asked = false;
    loop {
        let left = limit.saturating_sub(begin.elapsed());
        let has_ended = old.has_ended(left.min(CHECK_INTERVAL));
        if let Ok(Some(status)) = child.try_wait() {
            let old = match has_ended {
                true => format!("process {old_pid} has ended too"),
                false => format!("process {old_pid} still runs"),
            };
            return Err(format!("the new program has ended ({status}), and {old}"));
        }
        if has_ended || left.is_zero() {
            return Ok(has_ended);
        }
        // After a hand-over, the old program accepts no clients.
        if !std::mem::replace(&mut is_asked, true) && answers(path, old_pid) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("the new program has not taken over, so it was killed; process {old_pid} continues"));
        }
    }
}

/// Returns whether the process `pid` answers on the control socket `path`.
fn answers(path: &Path, pid: u32) -> bool {
    let mut client = Client::connect(path).ok();
    client.as_mut().and_then(|client| client.hello().ok()).is_some_and(|hello| hello.pid == pid)
}

/// Checks that the command runs in the network namespace of the old program, because the new program inherits the
/// namespace of the command. Accepts a namespace that this user cannot read.
fn check_network(process: u32) -> Result<(), CommandError> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    match (namespace("self"), namespace(&process.to_string())) {
        (Some(own), Some(theirs)) if own != theirs => Err(CommandError::Failed(format!(
            "process {process} runs in another network namespace; help: run `nsenter --net=/proc/{process}/ns/net \
             dataplane upgrade ...`"
        ))),
        _ => Ok(()),
    }
}

/// Checks that this user, or root, has created the control socket. The new program gets arguments, a working directory and
/// a config from the program at the socket, so another user could otherwise run code as this user.
fn check_program(stream: &UnixStream) -> Result<(), CommandError> {
    let in_container = "help: run the command in the container of the program, for example with `nsenter --all --target \
                        PROCESS`";
    let owner = process::peer(stream).map_err(|why| CommandError::Failed(format!("{why}; {in_container}")))?.uid();
    match owner == 0 || owner == geteuid().as_raw() {
        true => Ok(()),
        false => Err(CommandError::Failed(format!(
            "the program at the socket belongs to the user {owner}; help: run the command as this user, for example \
             `sudo -u '#{owner}' dataplane upgrade ...`, or let systemd run the command (docs/upgrade.md)"
        ))),
    }
}

/// Starts the new program, with the connection to the old program as its standard input.
fn start_program(file: &Path, start: &UpgradeStart, connection: &Connection) -> Result<Child, CommandError> {
    let input = connection.0.as_fd().try_clone_to_owned().map_err(|error| cannot_start(file, &error))?;
    // The new program starts in the directory of the old program.
    let path = match file.components().count() {
        // A name without a slash is searched in PATH.
        1 => file.to_owned(),
        _ => std::path::absolute(file).map_err(|error| cannot_start(file, &error))?,
    };
    let mut command = Command::new(path);
    command.args(&start.arguments).arg(TAKE_OVER_OPTION).current_dir(&start.directory);
    // Signals from the terminal of this command do not concern the new program.
    command.process_group(0);
    command.env_remove("WATCHDOG_PID");
    let known = start.environment.iter().filter(|(name, _)| ENVIRONMENT.contains(&name.as_str()));
    command.envs(known.map(|(name, value)| (name, value)));
    command.stdin(Stdio::from(input)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| cannot_start(file, &error))
}

fn cannot_start(file: &Path, error: &std::io::Error) -> CommandError {
    let file = file.display();
    CommandError::Failed(format!(
        "cannot start {file}: {error}; the running program continues; help: name the file of a program, such as \
         `--to /usr/bin/dataplane`"
    ))
}

/// Reads a pipe to its end on another thread, and sends the bytes together with `is_stdout`.
fn read_all(
    mut pipe: impl Read + Send + 'static,
    is_stdout: bool,
    sender: SyncSender<(bool, Vec<u8>)>,
) -> std::io::Result<()> {
    let read = move || {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = pipe.read(&mut bytes)
            && sender.send((is_stdout, bytes[..read].to_vec())).is_ok()
        {}
    };
    thread::Builder::new().spawn(read).map(drop)
}

/// Describes the old program after a failed upgrade.
fn state_of_old(old: &Process, is_old_waiting: impl Fn() -> bool) -> String {
    let pid = old.pid;
    if old.has_ended(Duration::ZERO) {
        format!("the running program (process {pid}) has ended too, so no program forwards packets")
    } else if is_old_waiting() {
        "the running program continues".to_owned()
    } else {
        format!("the running program (process {pid}) does not answer, and may be ending")
    }
}

/// The reason why the new program did not take over.
#[derive(Debug)]
struct NotTaken {
    why: String,
    help: &'static str,
}

/// Waits until the new program forwards packets. Returns the process id of the new program. If the new program did not
/// take over, the new program has ended. `is_old_waiting` returns whether the old program answers its clients. During and
/// after a hand-over, the old program answers no clients.
fn await_program(
    child: &mut Child,
    timeout: Duration,
    is_old_waiting: impl Fn() -> bool,
) -> Result<Result<u32, NotTaken>, CommandError> {
    // The readers wait if the new program prints faster than this thread takes the output.
    let (sender, events) = mpsc::sync_channel(1);
    // The new program closes both pipes when it has taken over, and when it ends.
    let reading = child.stdout.take().map_or(Ok(()), |pipe| read_all(pipe, true, sender.clone()));
    let reading = reading.and_then(|()| child.stderr.take().map_or(Ok(()), |pipe| read_all(pipe, false, sender)));
    if let Err(error) = reading {
        let _ = child.kill();
        let _ = child.wait();
        return Err(console::no_thread(error));
    }
    let mut deadline = Instant::now() + timeout;
    let mut is_late = false;
    let (mut output, mut text) = (Vec::new(), Vec::new());
    loop {
        match events.recv_timeout(PIPE_CHECK_INTERVAL) {
            Ok((true, bytes)) => output.extend(bytes),
            Ok((false, bytes)) => text.extend(bytes),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        // Another process may keep the pipes open, if the new program or a script has started the process.
        let has_ended = child.try_wait().is_ok_and(|status| status.is_some());
        if has_ended || last_number(&output) == Some(child.id()) && !is_old_waiting() {
            break;
        }
        if Instant::now() < deadline {
            continue;
        }
        // After the hand-over, only the new program forwards packets, so it must not be killed.
        if !std::mem::replace(&mut is_late, true) && !is_old_waiting() {
            deadline = Instant::now() + HAND_OVER_TIMEOUT;
            continue;
        }
        let _ = child.kill();
        let _ = child.wait();
        let why = format!(" within {:.0} s, so it was killed", timeout.as_secs_f64());
        return Ok(Err(NotTaken { why, help: "set a longer time with --timeout" }));
    }
    let has_taken_over = last_number(&output) == Some(child.id());
    // Read the rest of the messages.
    let end = Instant::now() + REST_TIMEOUT;
    while Instant::now() < end
        && let Ok((is_stdout, bytes)) = events.recv_timeout(PIPE_CHECK_INTERVAL)
    {
        if is_stdout { &mut output } else { &mut text }.extend(bytes);
    }
    stderr::write(&String::from_utf8_lossy(&text));
    if has_taken_over || last_number(&output) == Some(child.id()) {
        return Ok(Ok(child.id()));
    }
    let _ = child.kill();
    let status = child.wait().map_or("an unknown status".to_owned(), |status| status.to_string());
    Ok(Err(NotTaken { why: format!(" ({status})"), help: "the messages of the new program are above" }))
}

/// Returns the number in the last line. The new program prints its process id as soon as it forwards packets. A stage of the
/// new program may print other lines.
fn last_number(output: &[u8]) -> Option<u32> {
    String::from_utf8_lossy(output).lines().last()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use super::*;
    use dataplane_control::{Hello, Response};
    use dataplane_testing::{Folder, PATIENCE};

    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    fn script(folder: &Folder, text: &str) -> PathBuf {
        folder.write("new", format!("#!/bin/sh\n{text}\n"));
        let file = folder.path().join("new");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o700)).unwrap();
        file
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn new_program_that_has_ended_has_not_taken_over() {
        let (folder, old) = (Folder::new(), Process::open(std::process::id()));
        let mut child = Command::new("true").spawn().unwrap();
        let error = await_end(&mut child, &old, &folder.file("none"), END_TIMEOUT).unwrap_err();
        assert_eq!(
            error,
            format!("the new program has ended (exit status: 0), and process {} still runs", std::process::id())
        );
    }

    #[test]
    fn new_program_is_killed_if_the_old_program_still_answers() {
        let folder = Folder::new();
        let path = folder.file("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let serve = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            let hello = Hello {
                version: String::new(),
                pid: std::process::id(),
                config: String::new(),
                running_s: 0.0,
                protocol_versions: Vec::new(),
                requests: Vec::new(),
                max_request: 0,
            };
            let answer = serde_json::to_string(&Response::result(1, &hello).unwrap()).unwrap();
            writeln!(stream, "{answer}").unwrap();
        });
        let (old, mut child) = (Process::open(std::process::id()), sleeper());
        let error = await_end(&mut child, &old, &path, END_TIMEOUT).unwrap_err();
        assert!(error.contains("the new program has not taken over, so it was killed; process"), "{error}");
        assert!(child.try_wait().unwrap().is_some());
        serve.join().unwrap();
    }

    #[test]
    fn new_program_is_not_killed_after_the_timeout_if_the_hand_over_has_begun() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut child = start("echo $$; exec >/dev/null 2>&1; exec sleep 600");
        assert_eq!(await_program(&mut child, Duration::ZERO, || false).unwrap().unwrap(), child.id());
        end(child);
        let mut child = start("exec sleep 600");
        let NotTaken { why, .. } = await_program(&mut child, Duration::ZERO, || true).unwrap().unwrap_err();
        assert_eq!(why, " within 0 s, so it was killed");
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn end_of_the_new_program_is_noticed_although_its_child_keeps_the_pipes_and_the_connection_open() {
        let folder = Folder::new();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let start = UpgradeStart {
            pid: 1,
            version: String::new(),
            arguments: Vec::new(),
            directory: folder.path().display().to_string(),
            environment: Vec::new(),
        };
        // `cat` ends with the connection. The shell gives `cat` another standard input, unless the shell copies its own.
        let file = script(&folder, "exec 3<&0\ncat <&3 &\nexit 3");
        let connection = Connection(ours);
        let mut child = start_program(&file, &start, &connection).unwrap();
        let NotTaken { why, .. } = await_program(&mut child, PATIENCE, || true).unwrap().unwrap_err();
        assert_eq!(why, " (exit status: 3)");
        drop(connection);
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "the connection has ended");
    }

    #[test]
    fn new_program_that_has_taken_over_is_not_killed_although_another_process_keeps_its_pipes_open() {
        let folder = Folder::new();
        let file = script(&folder, "echo message >&2\nsleep 600 &\necho $!\necho $$\nexec sleep 600 >&- 2>&-");
        let mut child = Command::new(file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(await_program(&mut child, Duration::ZERO, || false).unwrap().unwrap(), child.id());
        assert!(child.try_wait().unwrap().is_none());
        end(child);
    }

    #[test]
    fn failed_upgrade_reports_whether_the_running_program_continues() {
        let mut child = sleeper();
        let old = Process::open(child.id());
        assert_eq!(state_of_old(&old, || true), "the running program continues");
        assert!(state_of_old(&old, || false).contains("does not answer"));
        child.kill().unwrap();
        assert!(old.has_ended(PATIENCE));
        let state = state_of_old(&old, || false);
        assert_eq!(
            state,
            format!("the running program (process {}) has ended too, so no program forwards packets", child.id())
        );
        child.wait().unwrap();
    }

    #[test]
    fn old_program_may_end_later() {
        let folder = Folder::new();
        let (mut child, old) = (sleeper(), sleeper());
        let process = Process::open(old.id());
        let mut wait = |limit| await_end(&mut child, &process, &folder.file("none"), limit);
        assert_eq!(wait(Duration::from_millis(1)), Ok(false));
        end(old);
        assert_eq!(wait(END_TIMEOUT), Ok(true));
        end(child);
    }

    #[test]
    fn new_program_gets_only_the_known_variables() {
        let folder = Folder::new();
        let file = script(&folder, "echo \"[$DATAPLANE_OTHER][$NO_COLOR]\"");
        let variable = |name: &str| (name.to_owned(), "value".to_owned());
        let start = UpgradeStart {
            pid: 1,
            version: String::new(),
            arguments: Vec::new(),
            directory: folder.path().display().to_string(),
            environment: vec![variable("DATAPLANE_OTHER"), variable("NO_COLOR")],
        };
        let (connection, _other) = UnixStream::pair().unwrap();
        check_program(&connection).unwrap();
        let child = start_program(&file, &start, &Connection(connection)).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "[][value]\n");
    }
}
