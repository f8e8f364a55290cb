//! A terminal for the programs that a test runs.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, tcflow};

/// A pseudoterminal (pty(7)).
#[derive(Debug)]
pub struct Terminal {
    /// The end of the test.
    test: File,
    /// The end of the program.
    program: File,
}

impl Terminal {
    /// Creates a terminal. It does not become the controlling terminal of the test.
    ///
    /// # Panics
    /// If the terminal cannot be created.
    #[must_use]
    pub fn new() -> Self {
        const O_NOCTTY: i32 = 0o400;
        let test = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap());
        grantpt(&test).unwrap();
        unlockpt(&test).unwrap();
        let name = ptsname(&test, Vec::new()).unwrap().into_string().unwrap();
        let program = File::options().read(true).write(true).custom_flags(O_NOCTTY).open(name).unwrap();
        Self { test, program }
    }

    /// Returns the standard error of a program.
    ///
    /// # Panics
    /// If there are no file descriptors left.
    #[must_use]
    pub fn stderr(&self) -> Stdio {
        self.program.try_clone().unwrap().into()
    }

    /// Waits until a program has written to the terminal.
    ///
    /// # Panics
    /// If the terminal cannot be read.
    pub fn wait_for_output(&mut self) {
        assert!(self.test.read(&mut [0; 1000]).unwrap() > 0);
    }

    /// Stops the output of programs to the terminal, as Ctrl-S does.
    ///
    /// # Panics
    /// If the terminal does not stop.
    pub fn stop(&self) {
        tcflow(&self.program, Action::OOff).unwrap();
    }
}

impl Default for Terminal {
    fn default() -> Self {
        Self::new()
    }
}
