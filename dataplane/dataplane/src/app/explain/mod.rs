//! `explain`: shows the path of every packet of a capture through a pipeline.

mod fields;

use std::fmt::Write;
use std::fs::File;

use serde::Serialize;

pub(super) use self::fields::summary;
use self::fields::{Change, changes};
use super::args;
use super::console::{self, CommandError};
use crate::runtime::{End, Hop, Trace, Tracer};
use dataplane_control::observe::{Fate, TraceHop, TracePath, TracedPacket};
use dataplane_core::pipeline::Registry;
use dataplane_soft::Capture;

/// A packet and its path, for JSON output.
#[derive(Serialize)]
pub(super) struct Explained {
    /// The number of the packet in the capture or trace, from 1.
    number: usize,
    /// The receive time, in nanoseconds since the epoch.
    time_ns: u64,
    /// The worker and the port of a live packet.
    #[serde(flatten)]
    received: Option<Received>,
    summary: String,
    bytes: usize,
    #[serde(flatten)]
    explained: ExplainedPath,
    copies: Vec<ExplainedPath>,
}

/// The worker and the port that received a live packet.
#[derive(Serialize)]
struct Received {
    worker: u32,
    port: String,
}

#[derive(Serialize)]
struct ExplainedPath {
    path: Vec<ExplainedStep>,
    changes: Vec<Change>,
    /// `sent`, `dropped`, `consumed`, `held` or `not_received`.
    fate: &'static str,
    /// The port on which the packet is sent, or the reason why it is dropped or not received.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

#[derive(Serialize)]
struct ExplainedStep {
    stage: String,
    /// The table entry that matched the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    hit: Option<String>,
    /// The output by which the packet left the stage. `None` if the stage chose no output.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

pub(super) fn explain(registry: &Registry, args: &args::Explain) -> Result<(), CommandError> {
    let assembly = console::offline_assembly(&args.config, registry)?;
    let inputs = assembly.plan.ports.iter().filter(|port| port.input);
    let inputs: Vec<String> = inputs.map(|port| port.config.name.clone()).collect();
    let mut tracer = Tracer::new(assembly)?;
    let port = port(&tracer, &inputs, args.port.as_deref())?;
    let named = |reason: &dyn std::fmt::Display| CommandError::Failed(format!("{}: {reason}", args.capture.display()));
    // The capture may be a pipe, so reading may block. SIGINT still ends the program.
    let file = File::open(&args.capture).map_err(|error| named(&error))?;
    let capture = Capture::load(&file).map_err(|reason| named(&reason))?;
    let count = capture.len().min(args.packets.unwrap_or(usize::MAX));
    for index in 0..count {
        let (frame, time) = (capture.frame(index), capture.time(index));
        let mut paths = tracer.trace(port, time, frame).into_iter().map(|trace| explained_path(frame, trace));
        // The first trace always exists and belongs to the packet itself. The other traces belong to its copies.
        let Some(explained) = paths.next() else { continue };
        let copies = paths.collect();
        let packet = Explained {
            number: index + 1,
            time_ns: time.0,
            received: None,
            summary: summary(frame),
            bytes: frame.len(),
            explained,
            copies,
        };
        console::print(&if args.json { json(&packet)? } else { text(&packet) })?;
    }
    if args.json {
        console::print(if count == 0 { "[]\n" } else { "\n]\n" })?;
    }
    match &capture.damage {
        Some(damage) if count == capture.len() => Err(named(&format!(
            "damaged at byte {}: {} (all packets before the damage are shown: {count})",
            damage.offset, damage.reason
        ))),
        _ => Ok(()),
    }
}

fn port(tracer: &Tracer, inputs: &[String], wanted: Option<&str>) -> Result<usize, CommandError> {
    // A valid config has an input.
    let name = wanted.or(inputs.first().map(String::as_str)).unwrap_or_default();
    let found = tracer.port(name).filter(|_| inputs.iter().any(|input| input == name));
    found.ok_or_else(|| {
        CommandError::Usage(format!("`{name}` is not an input of the pipeline; help: use one of {}", inputs.join(", ")))
    })
}

/// Returns a live packet with its path. `number` is the number of the packet, from 1.
pub(super) fn explained(number: usize, packet: TracedPacket) -> Explained {
    let frame = decode(&packet.bytes);
    let mut paths = packet.paths.into_iter().map(|path| live_path(&frame, path));
    let unknown = || TracePath { stages: Vec::new(), fate: Fate::Other, detail: None, bytes: packet.bytes.clone() };
    let explained = paths.next().unwrap_or_else(|| live_path(&frame, unknown()));
    Explained {
        number,
        time_ns: packet.time_ns,
        received: Some(Received { worker: packet.worker, port: packet.port }),
        summary: summary(&frame),
        bytes: frame.len(),
        explained,
        copies: paths.collect(),
    }
}

fn live_path(frame: &[u8], path: TracePath) -> ExplainedPath {
    let step = |hop: TraceHop| ExplainedStep { stage: hop.stage, hit: hop.hit, output: hop.output };
    let fate = match path.fate {
        Fate::Sent => "sent",
        Fate::Dropped => "dropped",
        Fate::Consumed => "consumed",
        Fate::Held => "held",
        Fate::Other => "unknown",
    };
    ExplainedPath {
        changes: changes(frame, &decode(&path.bytes)),
        path: path.stages.into_iter().map(step).collect(),
        fate,
        detail: path.detail,
    }
}

/// Decodes hexadecimal digits. The program sends valid digits, so an error gives no bytes.
pub(super) fn decode(digits: &str) -> Vec<u8> {
    hex::decode(digits).unwrap_or_default()
}

fn explained_path(frame: &[u8], trace: Trace) -> ExplainedPath {
    let step = |hop: Hop| ExplainedStep { stage: hop.stage, hit: hop.hit, output: hop.output };
    let (fate, detail) = match trace.end {
        End::Sent(port) => ("sent", Some(port)),
        End::Dropped(reason) => ("dropped", Some(reason)),
        End::Consumed => ("consumed", None),
        End::Held => ("held", None),
        End::TooLong(room) => ("not_received", Some(format!("longer than a buffer, which holds {room} bytes"))),
    };
    ExplainedPath {
        changes: changes(frame, &trace.bytes),
        path: trace.hops.into_iter().map(step).collect(),
        fate,
        detail,
    }
}

/// Formats one element of the JSON list, with the separator before it. The caller prints each element immediately,
/// because a capture may be long.
fn json(packet: &Explained) -> Result<String, CommandError> {
    let text = serde_json::to_string(packet).map_err(|error| CommandError::Failed(error.to_string()))?;
    Ok(format!("{}{text}", if packet.number == 1 { "[\n" } else { ",\n" }))
}

pub(super) fn text(packet: &Explained) -> String {
    let port = packet.received.as_ref().map_or(String::new(), |received| format!("{}  ", received.port));
    let mut text = format!("#{}  {port}{}  {} bytes\n", packet.number, packet.summary, packet.bytes);
    write_path(&packet.explained, "  ", &mut text);
    for copy in &packet.copies {
        text.push_str("  copy\n");
        write_path(copy, "    ", &mut text);
    }
    text
}

fn write_path(explained: &ExplainedPath, indent: &str, text: &mut String) {
    let mut path: Vec<String> = explained.path.iter().map(write_step).collect();
    if let ("sent", Some(port), Some(last)) = (explained.fate, &explained.detail, path.last_mut()) {
        last.push(' ');
        last.push_str(port);
    }
    // Writing to a string cannot fail.
    if !path.is_empty() {
        let _ = writeln!(text, "{indent}{}", path.join(" → "));
    }
    if !explained.changes.is_empty() {
        let changes: Vec<String> = explained.changes.iter().map(Change::to_string).collect();
        let _ = writeln!(text, "{indent}changed: {}", changes.join(", "));
    }
    let _ = match (explained.fate, &explained.detail, explained.path.last()) {
        ("sent", Some(port), _) => writeln!(text, "{indent}sent on {port}"),
        ("dropped", Some(reason), _) => writeln!(text, "{indent}dropped: {reason}"),
        (_, Some(detail), _) => writeln!(text, "{indent}not received: {detail}"),
        (fate, None, Some(last)) => writeln!(text, "{indent}{fate} by {}", last.stage),
        (fate, None, None) => writeln!(text, "{indent}{fate}"),
    };
}

fn write_step(step: &ExplainedStep) -> String {
    let hit = step.hit.as_ref().map_or(String::new(), |hit| format!(" ({hit})"));
    let output = step.output.as_ref().map_or(String::new(), |output| format!(" [{output}]"));
    format!("{}{hit}{output}", step.stage)
}
