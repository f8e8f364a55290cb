//! An explained packet: its path through the stages, as text and for JSON.

use std::fmt::Write;

use annotate_snippets::normalize_untrusted_str;
use serde::Serialize;

use super::fields::{FieldChange, changes, summary};
use crate::runtime::{Hop, PathEnd, Trace};
use dataplane_control::observe::{TraceFate, TraceHop, TracePath, TracedPacket};

/// A packet and its path, for JSON output.
#[derive(Serialize)]
pub(in crate::app) struct Explained {
    /// The number of the packet in the capture or trace, from 1.
    pub(super) number: usize,
    /// The receive time, in nanoseconds since the epoch.
    pub(super) time_ns: u64,
    /// The worker and the port of a live packet, or of a packet of a black box.
    #[serde(flatten)]
    pub(super) received: Option<Received>,
    /// For a packet of a black box, the number of the burst that contains the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) burst: Option<u64>,
    pub(super) summary: String,
    pub(super) bytes: usize,
    #[serde(flatten)]
    pub(super) explained: ExplainedPath,
    pub(super) copies: Vec<ExplainedPath>,
}

impl Explained {
    /// Returns a packet of a capture. `explained` is the path of the packet, and `copies` has the paths of its copies.
    pub(super) fn new(
        number: usize,
        time_ns: u64,
        frame: &[u8],
        explained: ExplainedPath,
        copies: Vec<ExplainedPath>,
    ) -> Self {
        let (summary, bytes) = (summary(frame), frame.len());
        Self { number, time_ns, received: None, burst: None, summary, bytes, explained, copies }
    }
}

/// The worker and the port that received a packet.
#[derive(Serialize)]
pub(super) struct Received {
    pub(super) worker: u32,
    pub(super) port: String,
}

#[derive(Serialize)]
pub(super) struct ExplainedPath {
    pub(super) path: Vec<ExplainedStep>,
    pub(super) changes: Vec<FieldChange>,
    /// `sent`, `dropped`, `consumed`, `held`, `not_received`, `panicked`, `stuck` or `unknown`.
    pub(super) fate: &'static str,
    /// A detail of the fate: the port on which the packet is sent, the reason why the packet is dropped or not
    /// received, the stage and the message of the panic, or the stage in which the packet is stuck.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
}

#[derive(Serialize)]
pub(super) struct ExplainedStep {
    stage: String,
    /// The table entry that matched the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    hit: Option<String>,
    /// The output by which the packet left the stage. `None` if the stage chose no output.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

/// Returns a live packet with its path. `number` is the number of the packet, from 1.
pub(in crate::app) fn explained(number: usize, packet: TracedPacket) -> Explained {
    let frame = decode(&packet.bytes);
    let mut paths = packet.paths.into_iter().map(|path| live_path(&frame, path));
    let unknown =
        || TracePath { stages: Vec::new(), fate: TraceFate::Other, detail: None, bytes: packet.bytes.clone() };
    let explained = paths.next().unwrap_or_else(|| live_path(&frame, unknown()));
    let received = Some(Received { worker: packet.worker, port: packet.port });
    Explained { received, ..Explained::new(number, packet.time_ns, &frame, explained, paths.collect()) }
}

fn live_path(frame: &[u8], path: TracePath) -> ExplainedPath {
    let step = |hop: TraceHop| ExplainedStep { stage: hop.stage, hit: hop.hit, output: hop.output };
    let fate = match path.fate {
        TraceFate::Sent => "sent",
        TraceFate::Dropped => "dropped",
        TraceFate::Consumed => "consumed",
        TraceFate::Held => "held",
        TraceFate::Other => "unknown",
    };
    ExplainedPath {
        changes: changes(frame, &decode(&path.bytes)),
        path: path.stages.into_iter().map(step).collect(),
        fate,
        detail: path.detail,
    }
}

/// Decodes hexadecimal digits. Returns no bytes if the digits are invalid. The running program sends only valid digits.
pub(in crate::app) fn decode(digits: &str) -> Vec<u8> {
    hex::decode(digits).unwrap_or_default()
}

pub(super) fn explained_path(frame: &[u8], trace: Trace) -> ExplainedPath {
    let step = |hop: Hop| ExplainedStep { stage: hop.stage, hit: hop.hit, output: hop.output };
    let (fate, detail) = match trace.end {
        PathEnd::Sent(port) => ("sent", Some(port)),
        PathEnd::Dropped(reason) => ("dropped", Some(reason)),
        PathEnd::Consumed => ("consumed", None),
        PathEnd::Held => ("held", None),
        PathEnd::Panicked { stage, message } => ("panicked", Some(format!("{stage}: {}", clean(&message)))),
        PathEnd::TooLong(room) => ("not_received", Some(format!("longer than a buffer, which holds {room} bytes"))),
    };
    ExplainedPath {
        changes: changes(frame, &trace.bytes),
        path: trace.hops.into_iter().map(step).collect(),
        fate,
        detail,
    }
}

/// Returns `true` if a stage panicked. The tracer is then not usable any more.
pub(super) fn has_panicked(trace: &Trace) -> bool {
    matches!(trace.end, PathEnd::Panicked { .. })
}

/// Returns a text without control characters, which a terminal could execute.
pub(super) fn clean(text: &str) -> String {
    normalize_untrusted_str(text)
}

pub(in crate::app) fn text(packet: &Explained) -> String {
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
        let changes: Vec<String> = explained.changes.iter().map(FieldChange::to_string).collect();
        let _ = writeln!(text, "{indent}changed: {}", changes.join(", "));
    }
    let _ = match (explained.fate, &explained.detail, explained.path.last()) {
        ("sent", Some(port), _) => writeln!(text, "{indent}sent on {port}"),
        ("dropped", Some(reason), _) => writeln!(text, "{indent}dropped: {reason}"),
        ("panicked", Some(detail), _) => writeln!(text, "{indent}panicked in {detail}"),
        ("stuck", Some(stage), _) => writeln!(text, "{indent}does not leave stage {stage}"),
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
