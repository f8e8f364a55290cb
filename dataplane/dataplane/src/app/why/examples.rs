//! Collects examples of dropped packets from the running program, by traces and captures.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use super::cause::{Cause, Diagnosis, Example, TracedEntry};
use crate::app::console::CommandError;
use crate::app::explain::{decode, summary};
use crate::app::{args, stats};
use dataplane_control::observe::{Capture, Captured, Position, TraceFate, TracePackets, Traced};
use dataplane_control::{Answer, Call, Client, Error, ErrorCode};

/// The maximum time of a trace or capture for the examples of one cause.
const TIME: Duration = Duration::from_millis(400);
/// The wait between two requests for packets.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The maximum number of table entries of a cause.
const ENTRIES: usize = 5;
/// The number of packets to trace for each example. Several packets are necessary, because equal packets give only one
/// example.
const TRACED: u64 = 8;
/// The maximum number of causes that get examples.
const CAUSES: usize = 8;

/// Adds examples to the first causes whose packets are in the ledger. No observer sees the packets that were lost
/// outside the ledger.
pub(super) fn add(diagnosis: &mut Diagnosis, args: &args::Why) -> Result<(), CommandError> {
    let observable = |cause: &&mut Cause| cause.in_ledger;
    let causes: Vec<&mut Cause> = diagnosis.causes.iter_mut().filter(observable).take(CAUSES).collect();
    if args.examples == 0 || causes.is_empty() {
        return Ok(());
    }
    let target = &args.target;
    let mut client = stats::connect(target.socket.as_deref(), target.process, "dataplane why --process PROCESS")?;
    for cause in causes {
        match examples(&mut client, cause, args.examples) {
            Ok(()) => {}
            // The counters are complete even without examples, so this is no error.
            Err(Error::Refused(_, refusal)) if refusal.code == ErrorCode::Busy => {
                diagnosis.notes.push(format!("there are no examples, because {}", refusal.message));
                return Ok(());
            }
            // A change of the config may have removed the stage.
            Err(Error::Refused(..)) => {}
            Err(Error::Ended(_)) => {
                diagnosis.notes.push("the program has ended before it sent examples".to_owned());
                return Ok(());
            }
            Err(error) => return Err(stats::failed(error, "")),
        }
    }
    Ok(())
}

fn examples(client: &mut Client, cause: &mut Cause, wanted: u64) -> Result<(), Error> {
    match (&cause.stage, &cause.port) {
        (Some(stage), _) => {
            let at = format!("stage:{stage}");
            traced(client, cause, wanted)?;
            // A trace misses rare drops, and drops of packets that a stage has held.
            if cause.examples.is_empty() {
                captured(client, cause, Capture { at: Some(at), drops: true, ..Capture::default() }, wanted)?;
            }
            Ok(())
        }
        // An observer sees a packet before the port handles the packet, and cannot see whether the port drops the
        // packet. The examples are therefore any packets that the stages send on the port.
        (None, Some(port)) => {
            let at = format!("port:{port}");
            captured(client, cause, Capture { at: Some(at), ..Capture::default() }, wanted)
        }
        (None, None) => Ok(()),
    }
}

/// Adds packets from a trace, with the table entries that applied to the packets.
fn traced(client: &mut Client, cause: &mut Cause, wanted: u64) -> Result<(), Error> {
    let dropped = Some(cause.name.clone());
    client.call(&Call::Trace(TracePackets { filter: None, packets: Some(wanted * TRACED), dropped }))?;
    let (mut packets, mut is_over) = (Vec::new(), false);
    poll(client, |answer| {
        let traced: Traced = answer.parse()?;
        packets.extend(traced.packets);
        is_over = traced.is_over;
        Ok(is_over)
    })?;
    let mut entries = BTreeMap::new();
    for packet in packets {
        let is_this =
            |fate: TraceFate, detail: Option<&String>| fate == TraceFate::Dropped && detail == Some(&cause.name);
        let path = packet.paths.iter().find(|path| is_this(path.fate, path.detail.as_ref()));
        if let Some(hit) = path.and_then(|path| path.stages.last()).and_then(|hop| hop.hit.clone()) {
            *entries.entry(hit).or_default() += 1;
        }
        cause.traced += 1;
        let frame = decode(&packet.bytes);
        let example = Example { port: Some(packet.port), summary: summary(&frame), bytes: frame.len() as u32 };
        if (cause.examples.len() as u64) < wanted && !cause.examples.contains(&example) {
            cause.examples.push(example);
        }
    }
    let mut entries: Vec<TracedEntry> =
        entries.into_iter().map(|(text, packets)| TracedEntry { text, packets }).collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.packets));
    entries.truncate(ENTRIES);
    cause.entries = entries;
    Ok(())
}

/// Adds packets from a capture.
fn captured(client: &mut Client, cause: &mut Cause, request: Capture, wanted: u64) -> Result<(), Error> {
    let (is_of_stage, wanted) = (request.drops, wanted as usize);
    client.call(&Call::Capture(request))?;
    poll(client, |answer| {
        let captured: Captured = answer.parse()?;
        for packet in captured.packets {
            let is_this = match is_of_stage {
                true => packet.reason.is_some_and(|reason| cause.name == format!("{}.{reason}", packet.name)),
                false => packet.position == Position::Sent,
            };
            let example = Example { port: None, summary: summary(&decode(&packet.bytes)), bytes: packet.length };
            if is_this && cause.examples.len() < wanted && !cause.examples.contains(&example) {
                cause.examples.push(example);
            }
        }
        Ok(captured.is_over || cause.examples.len() >= wanted)
    })
}

/// Requests packets until `take` returns `true`, or for [`TIME`].
fn poll(client: &mut Client, mut take: impl FnMut(Answer) -> Result<bool, Error>) -> Result<(), Error> {
    let end = Instant::now() + TIME;
    while Instant::now() < end {
        if take(client.call(&Call::Packets {})?)? {
            break;
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
