//! `capture`: captures packets of a running program.

use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::console::{self, CommandError};
use super::explain::{decode, summary};
use super::{args, stats};
use crate::runtime::PROGRAM;
use dataplane_control::observe::{Capture, Captured, CapturedPacket, Position};
use dataplane_control::{Call, Client, Error};
use dataplane_core::file::{LockedFile, Readers};
use dataplane_core::pcapng::{self, Direction};
use dataplane_stages::filter::bytecode;

/// The wait before the next request if the program had no packets.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) fn capture(args: &args::Capture) -> Result<(), CommandError> {
    let call = Call::Capture(Capture {
        at: args.at.clone(),
        drops: args.drops,
        filter: compile(args.filter.as_deref())?,
        // A line shows fields of the headers, which a truncated packet may lack.
        snaplen: args.snaplen.filter(|_| args.write.is_some() || args.target.json),
        packets: args.packets,
    });
    let mut client = start(&args.target, &call, "dataplane capture --process PROCESS")?;
    // Opening the file removes its old content, so first wait until the program has accepted the capture.
    let mut output = CaptureOutput::open(args)?;
    let (mut written, mut lost) = (0u64, 0);
    each_answer(&mut client, |captured: Captured| {
        written += captured.packets.len() as u64;
        lost = captured.lost;
        output.packets(&captured.packets)?;
        Ok(Answered { is_empty: captured.packets.is_empty(), is_over: captured.is_over, reason: captured.reason })
    })?;
    output.finish(written, lost)?;
    let noun = if written == 1 { "packet" } else { "packets" };
    console::write_line(&format!("captured {written} {noun}, lost {lost}"));
    Ok(())
}

/// Compiles a filter expression.
pub(super) fn compile(expression: Option<&str>) -> Result<Option<String>, CommandError> {
    let compiled = expression.map(bytecode).transpose();
    compiled.map_err(|problem| {
        let help = problem.help.map_or(String::new(), |help| format!("; help: {help}"));
        CommandError::Usage(format!("--filter: {}{help}", problem.message))
    })
}

/// Connects to a program, and starts a capture or a trace.
pub(super) fn start(target: &args::Target, call: &Call, example: &str) -> Result<Client, CommandError> {
    let mut client = stats::connect(target.socket.as_deref(), target.process, example)?;
    client.call(call).map_err(|error| match error {
        Error::Refused(_, refusal) => CommandError::Failed(refusal.to_string()),
        error => stats::failed(error, example),
    })?;
    Ok(client)
}

/// The state of a capture or trace after an answer.
pub(super) struct Answered {
    pub(super) is_empty: bool,
    pub(super) is_over: bool,
    pub(super) reason: Option<String>,
}

/// Requests the packets of a capture or trace, and calls `handle` for each answer, until the capture or trace ends or a
/// signal ends the command.
pub(super) fn each_answer<T: serde::de::DeserializeOwned>(
    client: &mut Client,
    mut handle: impl FnMut(T) -> Result<Answered, CommandError>,
) -> Result<(), CommandError> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // The second signal ends the command at once.
        signal_hook::flag::register_conditional_default(signal, is_stopped.clone())
            .and_then(|_| signal_hook::flag::register(signal, is_stopped.clone()))
            .map_err(|error| CommandError::Failed(format!("cannot install signal handlers: {error}")))?;
    }
    while !is_stopped.load(Ordering::Relaxed) {
        let answer = match client.call(&Call::Packets {}) {
            Err(Error::Ended(_)) => {
                console::write_line("the program has ended");
                return Ok(());
            }
            answer => answer.map_err(|error| stats::failed(error, ""))?,
        };
        let packets: T = answer.parse().map_err(|error| stats::failed(error, ""))?;
        let Answered { is_empty, is_over, reason } = handle(packets)?;
        if is_over {
            if let Some(reason) = reason {
                console::write_line(&format!("the program has ended the capture: {reason}"));
            }
            return Ok(());
        }
        if is_empty {
            thread::sleep(POLL_INTERVAL);
        }
    }
    Ok(())
}

/// The output of a capture.
enum CaptureOutput {
    Text,
    Json,
    File(Box<PcapngFile>),
}

impl CaptureOutput {
    fn open(args: &args::Capture) -> Result<Self, CommandError> {
        let Some(path) = &args.write else {
            return Ok(if args.target.json { Self::Json } else { Self::Text });
        };
        let file = PcapngFile::open(path, args.snaplen.unwrap_or(u32::from(u16::MAX)))?;
        Ok(Self::File(Box::new(file)))
    }

    fn packets(&mut self, packets: &[CapturedPacket]) -> Result<(), CommandError> {
        match self {
            Self::Text => console::print(&packets.iter().map(line).collect::<String>()),
            Self::Json => packets.iter().try_for_each(|packet| {
                let text = serde_json::to_string(packet).map_err(|error| CommandError::Failed(error.to_string()))?;
                console::print(&(text + "\n"))
            }),
            Self::File(file) => file.packets(packets),
        }
    }

    fn finish(&mut self, written: u64, lost: u64) -> Result<(), CommandError> {
        match self {
            Self::Text | Self::Json => Ok(()),
            Self::File(file) => file.finish(written, lost),
        }
    }
}

/// Returns the line that describes a packet.
fn line(packet: &CapturedPacket) -> String {
    let (verb, end) = match packet.position {
        Position::Received => ("received on", ""),
        Position::Sent => ("sent on", ""),
        Position::Entered => ("entered", ""),
        Position::Left => ("left by", ""),
        Position::Dropped => ("dropped by", "."),
        Position::Other => ("at", ""),
    };
    let reason = packet.reason.as_ref().map_or(String::new(), |reason| format!("{end}{reason}"));
    let (seconds, nanos) = (packet.time_ns / 1_000_000_000 % 86_400, packet.time_ns % 1_000_000_000);
    let time = format!("{:02}:{:02}:{:02}.{nanos:09}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let frame = summary(&decode(&packet.bytes));
    format!("{time}  {verb} {}{reason}  {frame}  {} bytes\n", packet.name, packet.length)
}

/// A pcapng file with one interface for each position and clock.
struct PcapngFile {
    out: Box<dyn Write>,
    name: String,
    snaplen: u32,
    /// The names and clocks of the interfaces, in the order of their numbers.
    interfaces: Vec<(String, String)>,
    blocks: Vec<u8>,
}

impl PcapngFile {
    fn open(path: &Path, snaplen: u32) -> Result<Self, CommandError> {
        let out: Box<dyn Write> = if path.as_os_str() == "-" {
            if io::stdout().is_terminal() {
                let help = "redirect standard output, such as `dataplane capture -w - | wireshark -k -i -`";
                return Err(CommandError::Usage(format!("a terminal cannot show a pcapng file; help: {help}")));
            }
            Box::new(io::stdout())
        } else {
            let failed = |error: io::Error| console::not_written(path.display(), &error);
            let file = LockedFile::output(path, Readers::Owner).map_err(failed)?;
            file.truncate().map_err(failed)?;
            Box::new(file)
        };
        let name = path.display().to_string();
        let mut file = Self { out, name, snaplen, interfaces: Vec::new(), blocks: Vec::new() };
        pcapng::section(PROGRAM, &mut file.blocks);
        file.write()?;
        Ok(file)
    }

    fn interface(&mut self, packet: &CapturedPacket) -> u32 {
        let is_known = |(name, clock): &(String, String)| *name == packet.name && *clock == packet.clock;
        if let Some(known) = self.interfaces.iter().position(is_known) {
            return known as u32;
        }
        let text = format!("time stamps: {}", packet.clock);
        pcapng::interface(&packet.name, &text, self.snaplen, &mut self.blocks);
        self.interfaces.push((packet.name.clone(), packet.clock.clone()));
        self.interfaces.len() as u32 - 1
    }

    fn packets(&mut self, packets: &[CapturedPacket]) -> Result<(), CommandError> {
        for packet in packets {
            let interface = self.interface(packet);
            let comment = packet.reason.as_ref().map_or(String::new(), |reason| format!("{}.{reason}", packet.name));
            let captured = pcapng::CapturedPacket {
                interface,
                nanos: packet.time_ns,
                original: packet.length,
                bytes: &decode(&packet.bytes),
                comment: comment.as_bytes(),
                direction: match packet.position {
                    Position::Received => Some(Direction::Inbound),
                    Position::Sent => Some(Direction::Outbound),
                    _ => None,
                },
            };
            pcapng::packet(&captured, &mut self.blocks);
        }
        self.write()
    }

    /// Writes the number of captured packets and of lost packets.
    fn finish(&mut self, written: u64, lost: u64) -> Result<(), CommandError> {
        if self.interfaces.is_empty() {
            pcapng::interface("", "", self.snaplen, &mut self.blocks);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        pcapng::statistics(0, now, written + lost, lost, &mut self.blocks);
        self.write()
    }

    fn write(&mut self) -> Result<(), CommandError> {
        let written = self.out.write_all(&self.blocks).and_then(|()| self.out.flush());
        self.blocks.clear();
        written.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => CommandError::Pipe,
            _ => console::not_written(&self.name, &error),
        })
    }
}
