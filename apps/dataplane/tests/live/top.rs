//! End-to-end tests of the command `top`.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use dataplane_testing::program::RunningProgram;
use dataplane_testing::{Terminal, wait_until};

use crate::common::{Running, RuntimeFolder};

/// Starts `top`, and waits until `top` has drawn its screen.
fn start(folder: &RuntimeFolder, running: &Running, terminal: &mut Terminal) -> RunningProgram {
    let mut command = folder.command(&format!("top {}", running.pid()));
    command.stdin(terminal.stream()).stdout(terminal.stream()).stderr(terminal.stream()).env("TERM", "xterm");
    let top = RunningProgram::start(&mut command);
    terminal.wait_for_text("overview");
    top
}

fn status(top: &mut RunningProgram) -> ExitStatus {
    let mut status = None;
    wait_until("top ends", || {
        status = top.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

#[test]
fn top_ends_when_its_terminal_closes() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    let mut terminal = Terminal::new();
    let mut top = start(&folder, &running, &mut terminal);
    drop(terminal);
    assert_eq!(status(&mut top).code(), Some(1));
    running.end("-TERM");
}

#[test]
fn signal_ends_top_within_an_escape_sequence_and_restores_the_terminal() {
    let folder = RuntimeFolder::new();
    let running = folder.run("", None);
    for (signal, number) in [("-TERM", 15), ("-HUP", 1), ("-INT", 2), ("-QUIT", 3)] {
        let mut terminal = Terminal::new();
        // `top` reads the start of an escape sequence before the signal arrives.
        terminal.press("\x1b[<");
        let mut top = start(&folder, &running, &mut terminal);
        assert!(terminal.is_raw());
        top.signal(signal);
        assert_eq!(status(&mut top).signal(), Some(number));
        assert!(!terminal.is_raw());
        // `top` shows the cursor and leaves the alternate screen.
        terminal.wait_for_text("\x1b[?25h\x1b[?1049l");
    }
    running.end("-TERM");
}
