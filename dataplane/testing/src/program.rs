//! Runs programs in tests.

use std::io::Read;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Output};
use std::thread;

/// Runs a program until it ends. Returns its exit status, standard output and standard error.
///
/// # Panics
/// If the program cannot be started, if a signal ends it, or if its output is not UTF-8.
pub fn run(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// A program that runs while the test continues. When this value is dropped, even by a panic, the program is killed.
#[derive(Debug)]
pub struct RunningProgram(Child);

impl RunningProgram {
    /// Starts a program.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// Sends a signal to the program. The signal is an option of kill(1), such as `-HUP`.
    ///
    /// # Panics
    /// If the signal cannot be sent.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until the program ends. Returns its exit status, and the rest of its standard output and standard error
    /// that the test has not read. The text of a stream that is not piped is empty.
    ///
    /// # Panics
    /// If a signal ended the program, or if its output is not UTF-8.
    #[must_use]
    pub fn end(mut self) -> (i32, String, String) {
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let errors = thread::spawn(|| rest(stderr));
        let out = rest(stdout);
        (self.wait().unwrap().code().unwrap(), out, errors.join().unwrap())
    }
}

fn rest(stream: Option<impl Read>) -> String {
    stream.map_or_else(String::new, |stream| std::io::read_to_string(stream).unwrap())
}

impl Deref for RunningProgram {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for RunningProgram {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // `kill` fails if the program has already ended.
        let _ = self.kill();
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn program_is_killed_when_the_test_panics() {
        let pid = thread::spawn(|| {
            let program = RunningProgram::start(Command::new("sleep").arg("3600"));
            std::panic::panic_any(program.id());
        });
        let pid = *pid.join().unwrap_err().downcast::<u32>().unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn end_returns_status_and_both_streams() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        assert_eq!(RunningProgram::start(&mut command).end(), (3, "out\n".to_owned(), "err\n".to_owned()));
    }
}
