//! Reports tests that this machine cannot run.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::sync::Mutex;

/// The environment variable that makes skipped tests fail if its value is `fail`.
pub const SKIPS: &str = "DATAPLANE_SKIPS";

/// Reports that the current test is skipped, because this machine lacks a program, a right or a resource. After this
/// call, the caller must return from the test.
///
/// The test harness reports a skipped test as passed. The message is therefore written directly to standard error,
/// which the harness does not capture. A property test reports each reason once, not once per case.
///
/// # Panics
/// With `DATAPLANE_SKIPS=fail`.
#[track_caller]
pub fn skip(reason: impl Display) {
    let allowed = std::env::var_os(SKIPS).is_none_or(|value| value != "fail");
    assert!(allowed, "{SKIPS}=fail, but this machine cannot run the test: {reason}");
    report_skip(reason);
}

/// Reports a skipped test or a skipped part of a test as [`skip`] does, but never fails. Use this function if the
/// kernel lacks a feature that no setup of the machine can add, or if another step of `tools/test` runs the skipped
/// part.
#[track_caller]
pub fn report_skip(reason: impl Display) {
    let test = match std::thread::current().name() {
        // With one test thread, libtest runs the tests on the main thread, whose name is not the name of the test.
        None | Some("main") => Location::caller().to_string(),
        Some(name) => name.to_owned(),
    };
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let line = format!("skipped: {test}: {reason}");
    if REPORTED.lock().unwrap().insert(line.clone()) {
        report(&line);
    }
}

/// Writes a line to standard error. The test harness captures only the output of `print!` and `eprint!`.
pub(crate) fn report(line: &str) {
    // Write the whole line at once, so that lines of parallel tests do not mix. The line break in front is needed if
    // the harness has begun a line.
    let _ = std::io::stderr().write_all(format!("\n{line}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::run;
    use std::process::Command;

    #[test]
    #[ignore = "`skipped_test_prints_the_reason_or_fails` runs this test"]
    fn skipped() {
        skip("no reason");
    }

    #[test]
    fn skipped_test_prints_the_reason_or_fails() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--ignored", "skip::tests::skipped"]);
        let (status, _, stderr) = run(command.env_remove(SKIPS));
        assert_eq!((status, stderr.as_str()), (0, "\nskipped: skip::tests::skipped: no reason\n"));
        let (status, stdout, _) = run(command.env(SKIPS, "fail"));
        assert!(status != 0 && stdout.contains("cannot run the test: no reason"), "{stdout}");
    }
}
