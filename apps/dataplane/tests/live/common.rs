//! Helpers of the tests in this folder: running programs and their control sockets.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use dataplane_testing::config::Config;
use dataplane_testing::program::{RunningProgram, run};
use dataplane_testing::{Folder, wait_until};
use serde_json::Value;

/// Returns a config with a generator. A stage denies a part of the generated packets.
pub(crate) fn config(link: &str) -> String {
    let rules = "rules = [{ action = 'deny', protocol = 'udp', src_port = '1024-1027' }]";
    Config::new()
        .port("wire", link)
        .stage("parse", "")
        .stage("acl", &format!("name = 'edge'\ndefault = 'permit'\n{rules}"))
        .stage("tx", "name = 'out'\nport = 'wire'")
        .to_string()
}

pub(crate) const LINK: &str = "kind = 'generator', size = 64, flows = 16";

/// Options of `run` with which the port `wire` loses packets only if its worker does not run for four seconds.
pub(crate) const STEADY: &str = " --set port.wire.link.rate=1000 --set port.wire.rx_depth=4096";

/// The request `stats` with the number 1.
pub(crate) const STATS: &[u8] = b"{\"version\":1,\"id\":1,\"request\":\"stats\"}\n";

/// The maximum time to wait for an expected event.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A folder with a config. The folder is also the runtime directory, which contains the control sockets.
pub(crate) struct RuntimeFolder(pub(crate) Folder);

impl RuntimeFolder {
    pub(crate) fn new() -> Self {
        let folder = Folder::new();
        folder.write("x.toml", config(LINK));
        Self(folder)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dataplane"));
        command.args(line.split(' ').map(|arg| arg.replace('@', &self.0.path().display().to_string())));
        command.env_remove("RUST_LOG").env("XDG_RUNTIME_DIR", self.0.path()).stdin(Stdio::null());
        command
    }

    /// Runs the program with the arguments in `line`, where `@` stands for the path of the folder. Returns the exit
    /// status, standard output and standard error.
    pub(crate) fn dataplane(&self, line: &str) -> (i32, String, String) {
        run(&mut self.command(line))
    }

    /// Starts a program, and waits until the program answers on its control socket.
    pub(crate) fn run(&self, settings: &str, socket: Option<&str>) -> Running {
        let mut command = self.command(&format!("run @/x.toml --json{settings}"));
        self.start(command.stdout(Stdio::piped()).stderr(Stdio::null()), socket)
    }

    pub(crate) fn start(&self, command: &mut Command, socket: Option<&str>) -> Running {
        let program = RunningProgram::start(command);
        let name = socket.map_or_else(|| format!("dataplane-{}.sock", program.id()), str::to_owned);
        let mut running = Running { program, socket: self.path(&name) };
        wait_until("the program answers", || {
            assert!(running.program.try_wait().unwrap().is_none(), "the program has ended");
            running.ask().is_some()
        });
        running
    }
}

/// A running program and its control socket.
pub(crate) struct Running {
    pub(crate) program: RunningProgram,
    pub(crate) socket: PathBuf,
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.program.id()
    }

    pub(crate) fn connect(&self) -> Option<UnixStream> {
        let stream = UnixStream::connect(&self.socket).ok()?;
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Some(stream)
    }

    /// Requests statistics directly over the socket, without the command `stats`.
    pub(crate) fn ask(&self) -> Option<Value> {
        let mut stream = self.connect()?;
        stream.write_all(STATS).ok()?;
        let answer = line(&mut BufReader::new(stream)).expect("the connection ended without an answer");
        assert_eq!(answer["id"], 1, "{answer}");
        Some(answer["result"].clone())
    }

    /// Stops the program with a signal, and returns its report.
    pub(crate) fn end(self, signal: &str) -> Value {
        self.program.signal(signal);
        let (status, out, _) = self.program.end();
        assert_eq!(status, 0);
        assert!(!self.socket.exists());
        json(&out)
    }
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Reads a line of JSON. Returns `None` at the end of the stream.
pub(crate) fn line(stream: &mut impl BufRead) -> Option<Value> {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    (!line.is_empty()).then(|| json(&line))
}

pub(crate) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}
