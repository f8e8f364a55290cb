//! Requests that capture or trace packets.

use std::sync::Arc;

use crate::runtime::{Observation, PacketFilter, Run};
use dataplane_control::observe::{Capture, TracePackets};
use dataplane_control::{ErrorCode, Refusal};
use dataplane_stages::filter::FrameFilter;

/// Starts to capture packets.
pub(super) fn capture(run: &Run, request: &Capture) -> Result<Observation, Refusal> {
    run.capture(request, filter(request.filter.as_deref())?)
}

/// Starts to trace packets.
pub(super) fn trace(run: &Run, request: &TracePackets) -> Result<Observation, Refusal> {
    run.trace(request, filter(request.filter.as_deref())?)
}

fn filter(bytecode: Option<&str>) -> Result<Option<PacketFilter>, Refusal> {
    let Some(bytecode) = bytecode else { return Ok(None) };
    let filter = FrameFilter::parse(bytecode).map_err(|why| {
        let help = "send the output of `tcpdump -ddd -y EN10MB EXPRESSION`";
        Refusal::new(ErrorCode::BadField, format!("`filter`: {why}"), help)
    })?;
    Ok(Some(Arc::new(move |frame: &[u8]| filter.matches(frame))))
}

/// Returns the refusal of a request for captured packets or traces on a connection that has started neither a capture
/// nor a trace.
pub(super) fn nothing_started() -> Refusal {
    let help = "send the request `capture` or `trace` first, on the same connection";
    Refusal::new(ErrorCode::Failed, "this connection has no capture or trace", help)
}
