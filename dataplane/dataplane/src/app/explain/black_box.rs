//! `explain --black-box`: passes the packets of a black box through the stages of a config.

use std::fmt::Write;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::fields::summary;
use super::packet::{Explained, ExplainedPath, Received, clean, explained_path, has_panicked, text};
use crate::app::args;
use crate::app::console::{self, CommandError};
use crate::config::{Diagnostics, Source};
use crate::runtime::{
    BlackBoxFile, Cause, CauseKind, PacketPlace, RecordedPacket, Trace, Tracer, assemble_offline, digest,
};
use dataplane_core::file;
use dataplane_core::pipeline::Registry;
use dataplane_core::units::Nanos;

/// The maximum time that the replay of one packet may take. A stage that blocked a worker may block the replay too.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// The maximum number of bytes that are read of a file.
const MAX_FILE: u64 = 1 << 30;
/// The text output shows at most this number of packets of the batch of the stage that panicked.
const MAX_SHOWN: usize = 16;

/// The result, for JSON output.
#[derive(Serialize)]
struct Replayed<'a> {
    /// The config with which the program was started.
    config: &'a str,
    /// Whether the workers used the config of this replay.
    config_matches: bool,
    /// The time at which the file was made, in nanoseconds since the epoch.
    time_ns: u64,
    cause: &'a Cause,
    packets: Vec<Explained>,
    /// The batch of the stage that panicked.
    batch: Vec<BatchPacket>,
}

#[derive(Serialize)]
struct BatchPacket {
    summary: String,
    bytes: u32,
}

/// A message of the thread that replays the packets.
enum ReplayMessage {
    /// The thread begins to pass a packet through the stages. The function returns the name of the stage that runs.
    Begins(Box<dyn Fn() -> Option<String> + Send>),
    /// The paths of the packet and of its copies.
    Ends(Vec<Trace>),
    /// The config has no port with the name of the packet's port.
    NoPort,
    Failed(CommandError),
}

pub(super) fn explain(registry: &Arc<Registry>, args: &args::Explain, path: &Path) -> Result<(), CommandError> {
    let source = console::offline_assembly(&args.config, registry)?.source;
    let named = |reason: &dyn std::fmt::Display| CommandError::Failed(format!("{}: {reason}", path.display()));
    let mut bytes = Vec::new();
    let read = file::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    read.map_err(|error| named(&error))?;
    let BlackBoxFile { mut description, mut packets, is_cut } =
        BlackBoxFile::decode(&bytes).map_err(|reason| named(&reason))?;
    // The file may come from another user, and may contain control characters.
    description.config = clean(&description.config);
    let cause = &mut description.cause;
    cause.message = clean(&cause.message);
    cause.stage = cause.stage.as_deref().map(clean);
    packets.iter_mut().for_each(|packet| packet.port = clean(&packet.port));
    // The packets of the worker that caused the black box come last, because a terminal shows the end of a long output.
    packets.sort_by_key(|packet| Some(packet.worker) == description.cause.worker);
    let is_of_burst = |packet: &RecordedPacket| matches!(packet.place, PacketPlace::Burst(_));
    let (mut received, batch): (Vec<_>, Vec<_>) = packets.into_iter().partition(is_of_burst);
    received.truncate(args.packets.unwrap_or(usize::MAX));
    let used = digest(&source);
    let other = received.iter().find(|packet| packet.digest != used);
    if let Some(packet) = other {
        tracing::warn!(
            "worker {} used another config (digest {}) than {} (digest {used}), so the paths may differ; help: use the \
             config file and the --set options of the recorded run; `dataplane save` writes the config of a run to its \
             file",
            packet.worker,
            clean(&packet.digest),
            args.config.path.display()
        );
    }
    if is_cut {
        match bytes.len() as u64 == MAX_FILE {
            true => tracing::warn!("{}: only the first {MAX_FILE} bytes of the file are read", path.display()),
            false => tracing::warn!("{}: the end of the file is missing", path.display()),
        }
    }
    let (mut outcomes, mut explained, mut burst) = (Vec::new(), Vec::new(), None);
    let show = |packet: Explained, rest: &[RecordedPacket]| {
        outcomes.push((packet.number, packet.explained.fate));
        if args.json {
            explained.push(packet);
            return Ok(());
        }
        let of = |packet: &RecordedPacket| (packet.worker, packet.place);
        let now = rest.first().map(of);
        let is_new = burst != now;
        burst = now;
        let count = rest.iter().take_while(|packet| Some(of(packet)) == now).count();
        let heading = if is_new { heading(&packet, count) } else { String::new() };
        console::print(&(heading + &text(&packet)))
    };
    replay(registry, source, &received, show)?;
    let batch: Vec<BatchPacket> = batch.iter().map(batch_packet).collect();
    if !args.json {
        let left = received.len() - outcomes.len();
        return console::print(&conclusion(&description.cause, &batch, &outcomes, left));
    }
    console::print_json(&Replayed {
        config: &description.config,
        config_matches: other.is_none(),
        time_ns: description.time_ns,
        cause: &description.cause,
        packets: explained,
        batch,
    })
}

fn batch_packet(packet: &RecordedPacket) -> BatchPacket {
    BatchPacket { summary: summary(&packet.frame()), bytes: packet.head.original }
}

/// Returns the line before the packets of a burst.
fn heading(first: &Explained, packets: usize) -> String {
    let (worker, port) = first.received.as_ref().map_or((0, "?"), |received| (received.worker, received.port.as_str()));
    let time = humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(first.time_ns));
    let (noun, burst) = (if packets == 1 { "packet" } else { "packets" }, first.burst.unwrap_or_default());
    format!("worker {worker}, burst {burst}: {packets} {noun} from {port}, {time}\n")
}

/// Returns a text with the cause of the black box, and with the packets at which the replay panics or is stuck.
/// `outcomes` has the number and the fate of each packet. `left` is the number of packets that were not replayed.
fn conclusion(cause: &Cause, batch: &[BatchPacket], outcomes: &[(usize, &str)], left: usize) -> String {
    let Cause { kind, worker, stage, message } = cause;
    let worker = worker.map_or(String::new(), |worker| format!("worker {worker}: "));
    let mut text = match (kind, stage) {
        (CauseKind::Panic, Some(stage)) => format!("{worker}stage `{stage}` panicked: {message}\n"),
        (CauseKind::Panic, None) => format!("{worker}panicked outside the stages: {message}\n"),
        (CauseKind::Fault, _) => format!("{worker}stopped: {message}\n"),
        // The message names the worker and the stage.
        (CauseKind::Stall | CauseKind::Request, _) => format!("{message}\n"),
    };
    // Writing to a string cannot fail.
    if !batch.is_empty() {
        let noun = if batch.len() == 1 { "packet" } else { "packets" };
        let _ = writeln!(text, "  batch of the stage: {} {noun}, with the changes of earlier stages", batch.len());
        for BatchPacket { summary, bytes } in batch.iter().take(MAX_SHOWN) {
            let _ = writeln!(text, "    {summary}  {bytes} bytes");
        }
        if batch.len() > MAX_SHOWN {
            let _ = writeln!(text, "    and {} more", batch.len() - MAX_SHOWN);
        }
    }
    let with = |fate: &str| {
        let found = outcomes.iter().filter(|(_, other)| *other == fate);
        found.map(|(number, _)| format!("#{number}")).collect::<Vec<_>>().join(", ")
    };
    let (panicked, stuck) = (with("panicked"), with("stuck"));
    if !panicked.is_empty() {
        let _ = writeln!(text, "  the replay panics at {panicked}");
    }
    if !stuck.is_empty() {
        let _ = writeln!(text, "  the replay is stuck at {stuck}; packets that were not replayed: {left}");
    }
    if panicked.is_empty() && stuck.is_empty() && matches!(kind, CauseKind::Panic | CauseKind::Stall) {
        text += "  the replay repeats neither a panic nor a stall: the event depends on the state of the run\n";
    }
    text
}

/// Passes the packets through the stages, on a separate thread. For each packet of a burst, calls `show` with the
/// explained packet, and with a slice of `packets` from this packet to the end. Returns early if the thread is stuck.
fn replay(
    registry: &Arc<Registry>,
    source: Source,
    packets: &[RecordedPacket],
    mut show: impl FnMut(Explained, &[RecordedPacket]) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let (sender, messages) = mpsc::channel();
    let (registry, replayed) = (registry.clone(), packets.to_vec());
    let work = move || Replay { registry, source, tracer: None, messages: sender }.run(&replayed);
    let thread = thread::Builder::new().name("replay".to_owned()).spawn(work);
    thread.map_err(console::no_thread)?;
    for (number, packet) in (1..).zip(packets) {
        let (paths, is_stuck) = paths(&messages, packet)?;
        let mut paths = paths.into_iter();
        // The first path always exists and belongs to the packet itself.
        let Some(explained) = paths.next() else { continue };
        let PacketPlace::Burst(burst) = packet.place else { continue };
        let explained = Explained {
            received: Some(Received { worker: packet.worker as u32, port: packet.port.clone() }),
            burst: Some(burst),
            bytes: packet.head.original as usize,
            ..Explained::new(number, packet.head.nanos, &packet.frame(), explained, paths.collect())
        };
        show(explained, packets.get(number - 1..).unwrap_or_default())?;
        if is_stuck {
            break;
        }
    }
    Ok(())
}

/// Waits for the paths of a packet and of its copies. The second result is `true` if the replay of the packet
/// does not end within [`TIME_LIMIT`].
fn paths(
    messages: &Receiver<ReplayMessage>,
    packet: &RecordedPacket,
) -> Result<(Vec<ExplainedPath>, bool), CommandError> {
    let without_path =
        |fate, detail| ExplainedPath { path: Vec::new(), changes: Vec::new(), fate, detail: Some(detail) };
    let ended = || CommandError::Failed("the replay has ended early".to_owned());
    let mut message = messages.recv().map_err(|_| ended())?;
    if let ReplayMessage::Begins(stage) = &message {
        message = match messages.recv_timeout(TIME_LIMIT) {
            Ok(next) => next,
            Err(RecvTimeoutError::Disconnected) => return Err(ended()),
            Err(RecvTimeoutError::Timeout) => {
                let stage = stage().unwrap_or_else(|| "?".to_owned());
                return Ok((vec![without_path("stuck", stage)], true));
            }
        };
    }
    match message {
        ReplayMessage::Ends(traces) => {
            let frame = packet.frame();
            Ok((traces.into_iter().map(|trace| explained_path(&frame, trace)).collect(), false))
        }
        ReplayMessage::NoPort => {
            Ok((vec![without_path("not_received", format!("the config has no port {}", packet.port))], false))
        }
        ReplayMessage::Failed(error) => Err(error),
        ReplayMessage::Begins(_) => Err(ended()),
    }
}

/// The thread that replays the packets.
struct Replay {
    registry: Arc<Registry>,
    source: Source,
    /// The tracer, and the worker whose packets passed through the tracer.
    tracer: Option<(usize, Tracer)>,
    messages: Sender<ReplayMessage>,
}

impl Replay {
    fn run(mut self, packets: &[RecordedPacket]) {
        for packet in packets {
            let message = self.replay(packet).unwrap_or_else(ReplayMessage::Failed);
            if self.messages.send(message).is_err() {
                return;
            }
        }
    }

    fn replay(&mut self, packet: &RecordedPacket) -> Result<ReplayMessage, CommandError> {
        // Each worker has its own stages, and a stage is not usable after a panic.
        let (_, tracer) = match &mut self.tracer {
            Some(tracer) if tracer.0 == packet.worker => tracer,
            other => {
                let mut diagnostics = Diagnostics::new(&self.source);
                let assembly = assemble_offline(&self.source, &self.registry, &mut diagnostics)?;
                let assembly = assembly.ok_or_else(|| console::refusal(&diagnostics))?;
                other.insert((packet.worker, Tracer::new(assembly)?))
            }
        };
        let Some(port) = tracer.port(&packet.port) else { return Ok(ReplayMessage::NoPort) };
        let _ = self.messages.send(ReplayMessage::Begins(Box::new(tracer.running_stage())));
        let traces = tracer.trace(port, Nanos(packet.head.nanos), &packet.frame());
        if traces.iter().any(has_panicked) {
            self.tracer = None;
        }
        Ok(ReplayMessage::Ends(traces))
    }
}
