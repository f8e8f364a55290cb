//! Runs tests in their own network namespaces, so that they do not change the interfaces of the machine.

use std::any::type_name_of_val;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::skip::{report, skip};

/// The environment variable that is set in the process inside the namespace.
const INSIDE: &str = "DATAPLANE_TEST_IN_NAMESPACE";

/// Runs `work` in a new network namespace. `work` must be the whole body of a test. The loopback interface of the
/// namespace is up. Skips the test if this process has no permission to create a namespace.
///
/// The test program starts itself under `unshare --net` for this one test. The namespace disappears when the started
/// process ends.
///
/// # Panics
/// If the test fails in the namespace.
#[track_caller]
pub fn in_namespace(work: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return work();
    }
    let allowed = Command::new("unshare").args(["--net", "ip", "link"]).output();
    if !allowed.as_ref().is_ok_and(|output| output.status.success()) {
        return skip(format!("cannot create a network namespace: {allowed:?}"));
    }
    // The type name is `crate::module::test::{{closure}}`. The test harness names the test without the crate.
    let name = type_name_of_val(&work);
    let test = name.split_once("::").map_or(name, |(_, test)| test).trim_end_matches("::{{closure}}");
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
    stderr.lines().filter(|line| line.starts_with("skipped: ")).for_each(report);
}

/// Runs `ip` commands. Each line has the arguments of one command.
///
/// # Panics
/// If a command fails.
#[track_caller]
pub fn ip(lines: &str) {
    assert!(try_ip(lines), "ip refused:\n{lines}");
}

/// Runs `ip` commands as [`ip`] does. Returns whether all commands succeeded.
///
/// # Panics
/// If ip(8) is not installed.
pub fn try_ip(lines: &str) -> bool {
    let mut child = Command::new("ip").args(["-force", "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait().unwrap().success()
}
