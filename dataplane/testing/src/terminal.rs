//! A terminal for the programs that a test runs.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, tcflow};

use crate::PATIENCE;

/// A pseudoterminal (pty(7)).
#[derive(Debug)]
pub struct Terminal {
    /// The master side, which the test reads.
    test: File,
    /// The slave side, which the program writes to.
    program: File,
}

impl Terminal {
    /// Creates a terminal. The terminal does not become the controlling terminal of the test.
    ///
    /// # Panics
    /// If the terminal cannot be created.
    #[must_use]
    pub fn new() -> Self {
        let test = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap());
        grantpt(&test).unwrap();
        unlockpt(&test).unwrap();
        let name = ptsname(&test, Vec::new()).unwrap().into_string().unwrap();
        let program =
            File::options().read(true).write(true).custom_flags(OFlags::NOCTTY.bits() as i32).open(name).unwrap();
        Self { test, program }
    }

    /// Returns the terminal as the standard error of a program.
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
    /// If the program writes nothing within [`PATIENCE`], or the terminal cannot be read.
    pub fn wait_for_output(&mut self) {
        let mut readable = [PollFd::new(&self.test, PollFlags::IN)];
        let limit = Timespec::try_from(PATIENCE).unwrap();
        assert!(poll(&mut readable, Some(&limit)).unwrap() > 0, "no output after {PATIENCE:?}");
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
