//! `explain`: what a pipeline does with every packet of a capture.

mod fields;

use std::fmt::Write;
use std::fs::File;

use serde::Serialize;

use self::fields::{Change, changes, summary};
use super::args;
use super::console::{self, Stop};
use crate::pipeline::Registry;
use crate::provider::soft::Capture;
use crate::runtime::{End, Hop, Trace, Tracer};

/// A packet and what became of it, for programs.
#[derive(Serialize)]
struct Explained {
    /// Its number in the capture, from 1.
    number: usize,
    /// When it was captured, in nanoseconds since the epoch.
    time_ns: u64,
    summary: String,
    bytes: usize,
    #[serde(flatten)]
    way: Way,
    copies: Vec<Way>,
}

#[derive(Serialize)]
struct Way {
    path: Vec<Step>,
    changes: Vec<Change>,
    /// `sent`, `dropped`, `consumed` or `not_received`.
    fate: &'static str,
    /// The port that it is sent on, or why it is dropped or not received.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

#[derive(Serialize)]
struct Step {
    stage: String,
    /// What the stage's tables held for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hit: Option<String>,
    /// The output that it left by; absent: on to the next stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

pub(super) fn explain(registry: &Registry, args: &args::Explain) -> Result<(), Stop> {
    let assembly = console::offline_assembly(&args.config, registry)?;
    let inputs = assembly.plan.ports.iter().filter(|port| port.input);
    let inputs: Vec<String> = inputs.map(|port| port.config.name.clone()).collect();
    let mut tracer = Tracer::new(assembly)?;
    let port = port(&tracer, &inputs, args.port.as_deref())?;
    let named = |reason: &dyn std::fmt::Display| Stop::Failed(format!("{}: {reason}", args.capture.display()));
    // It may come out of a pipe: nothing keeps SIGINT from ending this.
    let file = File::open(&args.capture).map_err(|error| named(&error))?;
    let capture = Capture::load(&file).map_err(|reason| named(&reason))?;
    let count = capture.len().min(args.packets.unwrap_or(usize::MAX));
    for index in 0..count {
        let (frame, time) = (capture.frame(index), capture.time(index));
        let mut ways = tracer.trace(port, time, frame).into_iter().map(|trace| way(frame, trace));
        // The packet's own comes first and is always there.
        let Some(way) = ways.next() else { continue };
        let copies = ways.collect();
        let packet =
            Explained { number: index + 1, time_ns: time.0, summary: summary(frame), bytes: frame.len(), way, copies };
        console::print(&if args.json { json(&packet)? } else { text(&packet) })?;
    }
    if args.json {
        console::print(if count == 0 { "[]\n" } else { "\n]\n" })?;
    }
    match &capture.damage {
        Some(damage) if count == capture.len() => Err(named(&format!(
            "damaged at byte {}: {}; the {count} packets before it were explained",
            damage.offset, damage.reason
        ))),
        _ => Ok(()),
    }
}

fn port(tracer: &Tracer, inputs: &[String], wanted: Option<&str>) -> Result<usize, Stop> {
    // A pipeline without an input is no valid config.
    let name = wanted.or(inputs.first().map(String::as_str)).unwrap_or_default();
    let found = tracer.port(name).filter(|_| inputs.iter().any(|input| input == name));
    found.ok_or_else(|| {
        Stop::Usage(format!("`{name}` is no input of the pipeline: its inputs are {}", inputs.join(", ")))
    })
}

fn way(frame: &[u8], trace: Trace) -> Way {
    let step = |hop: Hop| Step { stage: hop.stage, hit: hop.hit, output: hop.output };
    let (fate, detail) = match trace.end {
        End::Sent(port) => ("sent", Some(port)),
        End::Dropped(reason) => ("dropped", Some(reason)),
        End::Consumed => ("consumed", None),
        End::Held => ("held", None),
        End::TooLong(room) => ("not_received", Some(format!("longer than a buffer, which holds {room} bytes"))),
    };
    Way { changes: changes(frame, &trace.bytes), path: trace.hops.into_iter().map(step).collect(), fate, detail }
}

/// One element of a list that is written bit by bit, however long the capture is.
fn json(packet: &Explained) -> Result<String, Stop> {
    let text = serde_json::to_string(packet).map_err(|error| Stop::Failed(error.to_string()))?;
    Ok(format!("{}{text}", if packet.number == 1 { "[\n" } else { ",\n" }))
}

fn text(packet: &Explained) -> String {
    let mut text = format!("#{}  {}  {} bytes\n", packet.number, packet.summary, packet.bytes);
    write_way(&packet.way, "  ", &mut text);
    for copy in &packet.copies {
        text.push_str("  copy\n");
        write_way(copy, "    ", &mut text);
    }
    text
}

fn write_way(way: &Way, indent: &str, text: &mut String) {
    let mut path: Vec<String> = way.path.iter().map(write_step).collect();
    if let ("sent", Some(port), Some(last)) = (way.fate, &way.detail, path.last_mut()) {
        last.push(' ');
        last.push_str(port);
    }
    // A string takes any amount of writing.
    if !path.is_empty() {
        let _ = writeln!(text, "{indent}{}", path.join(" → "));
    }
    if !way.changes.is_empty() {
        let changes: Vec<String> = way.changes.iter().map(Change::to_string).collect();
        let _ = writeln!(text, "{indent}changed: {}", changes.join(", "));
    }
    let _ = match (way.fate, &way.detail) {
        ("sent", Some(port)) => writeln!(text, "{indent}sent on {port}"),
        ("dropped", Some(reason)) => writeln!(text, "{indent}dropped: {reason}"),
        (_, Some(detail)) => writeln!(text, "{indent}not received: {detail}"),
        (_, None) => writeln!(text, "{indent}consumed"),
    };
}

fn write_step(step: &Step) -> String {
    let hit = step.hit.as_ref().map_or(String::new(), |hit| format!(" ({hit})"));
    let output = step.output.as_ref().map_or(String::new(), |output| format!(" [{output}]"));
    format!("{}{hit}{output}", step.stage)
}
