//! `trace`: shows the paths of live packets through the stages of a running program.

use super::capture::{Answered, compile, each_answer, start};
use super::console::{self, CommandError};
use super::{args, explain};
use dataplane_control::Call;
use dataplane_control::observe::{TracePackets, Traced};

pub(super) fn trace(args: &args::Trace) -> Result<(), CommandError> {
    let filter = compile(args.filter.as_deref())?;
    let call = Call::Trace(TracePackets { filter, packets: Some(args.packets), dropped: None });
    let mut client = start(&args.target, &call, "dataplane trace --process PROCESS")?;
    let mut number = 0;
    each_answer(&mut client, |traced: Traced| {
        let is_empty = traced.packets.is_empty();
        for packet in traced.packets {
            number += 1;
            let explained = explain::explained(number, packet);
            let text = match args.target.json {
                true => {
                    serde_json::to_string(&explained).map_err(|error| CommandError::Failed(error.to_string()))? + "\n"
                }
                false => explain::text(&explained),
            };
            console::print(&text)?;
        }
        Ok(Answered { is_empty, is_over: traced.is_over, reason: traced.reason })
    })
}
