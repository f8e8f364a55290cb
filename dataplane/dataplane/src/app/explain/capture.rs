//! `explain CONFIG PCAP`: shows the path of every packet of a capture.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::packet::{Explained, explained_path, has_panicked, text};
use crate::app::args;
use crate::app::console::{self, CommandError};
use crate::runtime::Tracer;
use dataplane_core::file;
use dataplane_core::pipeline::Registry;
use dataplane_soft::Capture;

pub(super) fn explain(registry: &Registry, args: &args::Explain, path: &Path) -> Result<(), CommandError> {
    let assembly = console::offline_assembly(&args.config, registry)?;
    let inputs = assembly.plan.ports.iter().filter(|port| port.input);
    let inputs: Vec<String> = inputs.map(|port| port.config.name.clone()).collect();
    let mut tracer = Tracer::new(assembly)?;
    let port = port(&tracer, &inputs, args.port.as_deref())?;
    let named = |reason: &dyn std::fmt::Display| CommandError::Failed(format!("{}: {reason}", path.display()));
    let file = match path.as_os_str() == "-" {
        // Standard input may be a pipe, so reading may block. SIGINT still ends the program.
        true => io::stdin().as_fd().try_clone_to_owned().map(File::from),
        false => file::open(path),
    };
    let capture = Capture::load(&file.map_err(|error| named(&error))?).map_err(|reason| named(&reason))?;
    let count = capture.len().min(args.packets.unwrap_or(usize::MAX));
    for index in 0..count {
        let (frame, time) = (capture.frame(index), capture.time(index));
        let traces = tracer.trace(port, time, frame);
        if traces.iter().any(has_panicked) {
            tracer = Tracer::new(console::offline_assembly(&args.config, registry)?)?;
        }
        let mut paths = traces.into_iter().map(|trace| explained_path(frame, trace));
        // The first trace always exists and belongs to the packet itself. The other traces belong to its copies.
        let Some(explained) = paths.next() else { continue };
        let packet = Explained::new(index + 1, time.0, frame, explained, paths.collect());
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

/// Formats one element of the JSON list, with the separator before it. The caller prints each element immediately,
/// because a capture may be long.
fn json(packet: &Explained) -> Result<String, CommandError> {
    let text = serde_json::to_string(packet).map_err(|error| CommandError::Failed(error.to_string()))?;
    Ok(format!("{}{text}", if packet.number == 1 { "[\n" } else { ",\n" }))
}
