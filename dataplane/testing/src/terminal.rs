//! A terminal for the programs that a test runs.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, LocalModes, Winsize, tcflow, tcgetattr, tcsetwinsize};

use crate::PATIENCE;

/// A pseudoterminal (pty(7)).
#[derive(Debug)]
pub struct Terminal {
    /// The master side, for the test.
    test: File,
    /// The slave side, for the program.
    program: File,
}

impl Terminal {
    /// Creates a terminal of 80 columns and 24 lines. The terminal does not become the controlling terminal of the test.
    ///
    /// # Panics
    /// If the terminal cannot be created.
    #[must_use]
    pub fn new() -> Self {
        let test = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap());
        grantpt(&test).unwrap();
        unlockpt(&test).unwrap();
        let name = ptsname(&test, Vec::new()).unwrap().into_string().unwrap();
        let program =
            File::options().read(true).write(true).custom_flags(OFlags::NOCTTY.bits() as i32).open(name).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&program, size).unwrap();
        Self { test, program }
    }

    /// Returns the terminal as a standard stream of a program.
    ///
    /// # Panics
    /// If there are no file descriptors left.
    #[must_use]
    pub fn stream(&self) -> Stdio {
        self.program.try_clone().unwrap().into()
    }

    /// Waits until a program has written to the terminal. Returns the next bytes of the output.
    ///
    /// # Panics
    /// If the program writes nothing within [`PATIENCE`], or the terminal cannot be read.
    pub fn wait_for_output(&mut self) -> Vec<u8> {
        let mut readable = [PollFd::new(&self.test, PollFlags::IN)];
        let limit = Timespec::try_from(PATIENCE).unwrap();
        assert!(poll(&mut readable, Some(&limit)).unwrap() > 0, "no output after {PATIENCE:?}");
        let mut bytes = [0; 1000];
        let read = self.test.read(&mut bytes).unwrap();
        bytes[..read].to_vec()
    }

    /// Waits until the output of a program contains a text.
    ///
    /// # Panics
    /// If the output does not contain the text within [`PATIENCE`], or the terminal cannot be read.
    pub fn wait_for_text(&mut self, text: &str) {
        let (begin, mut output) = (Instant::now(), Vec::new());
        while !String::from_utf8_lossy(&output).contains(text) {
            assert!(begin.elapsed() < PATIENCE, "no `{text}` after {PATIENCE:?}");
            output.extend(self.wait_for_output());
        }
    }

    /// Sends keys to the program, as a keyboard does.
    ///
    /// # Panics
    /// If the terminal takes no input.
    pub fn press(&mut self, keys: &str) {
        self.test.write_all(keys.as_bytes()).unwrap();
    }

    /// Returns whether a program has set the terminal to raw mode (`ICANON` is off).
    ///
    /// # Panics
    /// If the terminal returns no settings.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        !tcgetattr(&self.program).unwrap().local_modes.contains(LocalModes::ICANON)
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
