//! End-to-end tests of the notifications to the service manager (sd_notify(3)). The test is the service manager: it
//! listens on a datagram socket.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use dataplane::prelude::*;
use dataplane_testing::config::Config;
use dataplane_testing::program::RunningProgram;

use crate::common::{LINK, Running, RuntimeFolder, TIMEOUT};

/// The service manager.
struct Manager(Receiver<Vec<String>>);

impl Manager {
    fn new(folder: &RuntimeFolder) -> Self {
        let socket = UnixDatagram::bind(folder.path("notify")).unwrap();
        let (sender, receiver) = mpsc::channel();
        // Read without pauses, because a program waits while the queue of the socket is full.
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length) = socket.recv(&mut bytes) {
                let text = std::str::from_utf8(&bytes[..length]).unwrap();
                if sender.send(text.lines().map(str::to_owned).collect()).is_err() {
                    return;
                }
            }
        });
        Self(receiver)
    }

    /// Starts a run as a service.
    fn run(&self, folder: &RuntimeFolder, environment: &[(&str, &str)]) -> Running {
        let mut command = folder.command("run @/x.toml --json");
        command.env("NOTIFY_SOCKET", folder.path("notify")).envs(environment.iter().copied());
        folder.start(command.stdout(Stdio::piped()).stderr(Stdio::null()), None)
    }

    /// Returns the next notification.
    fn next(&self) -> Vec<String> {
        self.before(Instant::now() + TIMEOUT)
    }

    fn before(&self, deadline: Instant) -> Vec<String> {
        let time = deadline.saturating_duration_since(Instant::now());
        self.0.recv_timeout(time).expect("the program sends another notification")
    }

    /// Reads notifications up to the first notification that contains `line`. Returns all these notifications.
    fn until(&self, line: &str) -> Vec<Vec<String>> {
        let deadline = Instant::now() + TIMEOUT;
        let mut all = vec![self.before(deadline)];
        while !all.last().unwrap().iter().any(|other| other.starts_with(line)) {
            assert!(Instant::now() < deadline, "no notification `{line}`: {all:?}");
            all.push(self.before(deadline));
        }
        all
    }
}

/// Returns `true` if one of the notifications contains `line`.
fn contains(notifications: &[Vec<String>], line: &str) -> bool {
    notifications.iter().flatten().any(|other| other == line)
}

#[test]
fn service_manager_gets_every_state_of_a_run() {
    let folder = RuntimeFolder::new();
    let manager = Manager::new(&folder);
    let running = manager.run(&folder, &[]);
    assert_eq!(manager.next(), ["STATUS=starting"]);
    assert_eq!(manager.next(), ["READY=1", "STATUS=running"]);
    running.program.signal("-HUP");
    let reloading = manager.until("RELOADING=1").pop().unwrap();
    assert_eq!(reloading[1], "STATUS=reloading");
    let time: u64 = reloading[2].strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
    assert!(time > 0);
    assert_eq!(manager.until("READY=1").pop().unwrap(), ["READY=1", "STATUS=running"]);
    let status = manager.until("STATUS=running: in ").pop().unwrap();
    assert!(status[0].contains("pps, out ") && status[0].ends_with("pps"), "{status:?}");
    running.end("-TERM");
    let rest = manager.until("STOPPING=1");
    // Without `WATCHDOG_USEC`, there is no watchdog.
    assert!(!contains(&rest, "WATCHDOG=1"), "{rest:?}");
}

#[test]
fn reload_that_is_refused_ends_the_state_reloading() {
    let folder = RuntimeFolder::new();
    let manager = Manager::new(&folder);
    let running = manager.run(&folder, &[]);
    folder.0.write("x.toml", "mistake");
    manager.until("READY=1");
    running.program.signal("-HUP");
    manager.until("RELOADING=1");
    manager.until("READY=1");
    running.end("-TERM");
}

/// A stage that stops its worker until a file exists.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Stuck {
    until: PathBuf,
}

impl Stage for Stuck {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {
        while !self.until.exists() {
            thread::yield_now();
        }
    }
}

/// The environment variable with the config of [`program_with_a_stuck_stage`].
const CONFIG: &str = "DATAPLANE_TEST_CONFIG";

#[test]
#[ignore = "runs in the process that `watchdog_is_fed_only_while_all_workers_make_progress` starts"]
fn program_with_a_stuck_stage() {
    let config = std::env::var(CONFIG).unwrap();
    let app = App::new().stage::<Stuck>("stuck");
    std::process::exit(app.exit_status_of(["dataplane", "run", &config, "--json"]));
}

#[test]
fn watchdog_is_fed_only_while_all_workers_make_progress() {
    let folder = RuntimeFolder::new();
    let config = Config::new()
        .port("wire", LINK)
        .stage("stuck", &format!("until = '{}'", folder.path("go").display()))
        .stage("tx", "name = 'out'\nport = 'wire'");
    folder.0.write("x.toml", config.to_string());
    let manager = Manager::new(&folder);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--nocapture", "service::program_with_a_stuck_stage"]);
    command.env(CONFIG, folder.path("x.toml")).env("XDG_RUNTIME_DIR", folder.0.path()).env_remove("RUST_LOG");
    command.env("NOTIFY_SOCKET", folder.path("notify")).env("WATCHDOG_USEC", "400000");
    let running = RunningProgram::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    manager.until("STATUS=workers without progress: 0.");
    // A reload waits for the workers, so several checks of the watchdog happen before the reload ends.
    running.signal("-HUP");
    manager.until("RELOADING=1");
    let stuck = manager.until("READY=1");
    assert!(!contains(&stuck, "WATCHDOG=1"), "{stuck:?}");
    folder.0.write("go", "");
    manager.until("WATCHDOG=1");
    manager.until("WATCHDOG=1");
    running.signal("-TERM");
    manager.until("STOPPING=1");
    let (status, _, err) = running.end();
    assert_eq!(status, 0, "{err}");
}

#[test]
fn watchdog_of_another_process_is_not_fed() {
    let folder = RuntimeFolder::new();
    let manager = Manager::new(&folder);
    // `WATCHDOG_PID` names process 1, which is not the started program.
    let running = manager.run(&folder, &[("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")]);
    manager.until("READY=1");
    running.program.signal("-HUP");
    manager.until("RELOADING=1");
    let checked = manager.until("READY=1");
    assert!(!contains(&checked, "WATCHDOG=1"), "{checked:?}");
    running.end("-TERM");
}

#[test]
fn run_that_ends_without_a_signal_reports_its_end() {
    let folder = RuntimeFolder::new();
    let config =
        Config::new().port("wire", &format!("{LINK}, count = 1000")).stage("tx", "name = 'out'\nport = 'wire'");
    folder.0.write("x.toml", config.to_string());
    let manager = Manager::new(&folder);
    let mut command = folder.command("run @/x.toml --json");
    command.env("NOTIFY_SOCKET", folder.path("notify"));
    let (status, _, err) = dataplane_testing::program::run(&mut command);
    assert_eq!(status, 0, "{err}");
    manager.until("READY=1");
    assert_eq!(manager.until("STOPPING=1").pop().unwrap(), ["STOPPING=1", "STATUS=stopping"]);
}

#[test]
fn run_continues_if_the_service_manager_cannot_be_notified() {
    let folder = RuntimeFolder::new();
    let mut command = folder.command("run @/x.toml --json --for 100ms");
    command.env("NOTIFY_SOCKET", folder.path("missing"));
    let (status, _, err) = dataplane_testing::program::run(&mut command);
    assert_eq!(status, 0, "{err}");
    let problem = "cannot notify the service manager at `";
    assert_eq!(err.matches(problem).count(), 1, "{err}");
    assert!(err.contains("/missing` (NOTIFY_SOCKET): No such file or directory"), "{err}");
}

#[test]
fn full_socket_of_the_service_manager_delays_only_the_notifications() {
    let folder = RuntimeFolder::new();
    let manager = UnixDatagram::bind(folder.path("notify")).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send_to(b"", folder.path("notify")).is_ok() {}
    let mut command = folder.command("run @/x.toml --json");
    command.env("NOTIFY_SOCKET", folder.path("notify")).env("WATCHDOG_USEC", "400000");
    let running = folder.start(command.stdout(Stdio::piped()).stderr(Stdio::piped()), None);
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (expected, mut bytes) = (b"READY=1\nSTATUS=running\n", [0; 100]);
    while manager.recv(&mut bytes).unwrap() != expected.len() || !bytes.starts_with(expected) {}
    // The service manager reads no further notifications.
    while sender.send_to(b"", folder.path("notify")).is_ok() {}
    running.program.signal("-TERM");
    let (status, _, err) = running.program.end();
    assert_eq!((status, err.matches("(NOTIFY_SOCKET): the socket is full").count()), (0, 1), "{err}");
}
