//! Checks of memory: buffers hold what ports receive, and there are enough of them.

use super::diagnostics::{Diagnostics, Mistake};
use super::load::Loaded;
use super::plan::PortPlan;
use super::port::{Port, Qp};
use super::raw::Offload;
use super::xdp::{self, Buffers};

/// The bytes of an Ethernet header with two VLAN tags (IEEE 802.1Q).
pub(super) const ETHERNET: u32 = 14 + 2 * 4;
/// The bytes of the global route header in front of a datagram.
const GRH: u32 = 40;
/// The bytes of a frame check sequence.
const FCS: u32 = 4;
/// The least that a buffer must have beside its headroom: one shortest frame.
const LEAST_ROOM: u32 = 64;

/// Checks sizes and counts of buffers; gives how many each worker has, and how they are cut.
pub(super) fn memory(
    loaded: &Loaded<'_>,
    ports: &[Option<PortPlan>],
    diagnostics: &mut Diagnostics,
) -> Option<(u32, Buffers)> {
    let runtime = loaded.runtime.as_ref()?;
    let mut error = |path: &str, message: String, help: String| {
        diagnostics.push(Mistake::error(loaded.locate(path), message).help(help));
    };
    let room = runtime.buffer_size.saturating_sub(runtime.headroom);
    if room < LEAST_ROOM {
        let message = format!("a headroom of {} leaves {room} bytes of a buffer", runtime.headroom);
        let most = runtime.buffer_size.saturating_sub(LEAST_ROOM);
        error("runtime.headroom", message, format!("make it at most {most}, or the buffer_size larger"));
        return None;
    }
    let asked = Buffers { size: runtime.buffer_size, headroom: runtime.headroom };
    let frames = ports.iter().flatten().map(|port| frame(&port.config));
    let longest = frames.max().unwrap_or(LEAST_ROOM);
    let buffers = xdp::buffers(asked, longest, ports);
    if buffers != asked && buffers.headroom > xdp::MOST_HEADROOM {
        let message = format!("a headroom of {} is more than xdp ports have", runtime.headroom);
        error("runtime.headroom", message, format!("make it at most {}", xdp::MOST_HEADROOM));
        return None;
    }
    let room = buffers.size - buffers.headroom;
    let mut rings = 0u32;
    for (index, port) in ports.iter().enumerate() {
        let Some(PortPlan { config: port, input, .. }) = port else { continue };
        rings = rings.saturating_add(port.tx_depth);
        // Nothing is received from the others.
        if *input {
            rings = rings.saturating_add(port.rx_depth);
            if runtime.burst > port.rx_depth {
                let (name, depth, burst) = (&port.name, port.rx_depth, runtime.burst);
                let message = format!("the rx_depth of `{name}` is {depth}, less than a burst of {burst}");
                let help = format!("make it at least {burst}, or the burst of [runtime] smaller");
                error(&format!("port[{index}].rx_depth"), message, help);
            }
        }
        let frame = frame(port);
        if frame > room {
            let message =
                format!("a packet of `{}` has up to {frame} bytes, and a buffer has room for {room}", port.name);
            // Buffers of xdp ports are as large as their frames, up to the most that there is.
            let help = match buffers == asked {
                true => format!("make buffer_size of [runtime] at least {}", frame.saturating_add(runtime.headroom)),
                false => format!("make it at most {}", room - ETHERNET),
            };
            error(&format!("port[{index}].mtu"), message, help);
        }
    }
    let least = rings.saturating_add(runtime.burst);
    match runtime.buffers {
        Some(count) if count < least => {
            let message = format!("{count} buffers are fewer than rings and bursts of a worker hold, {least}");
            error("runtime.buffers", message, format!("make it at least {least}, or take the key out"));
            None
        }
        Some(count) => Some((count, buffers)),
        // An eighth more for what stages hold and copy.
        None => Some((least.saturating_add(least / 8).next_multiple_of(64), buffers)),
    }
}

/// The bytes of the longest packet of a port.
fn frame(port: &Port) -> u32 {
    let header = if port.qp == Qp::Ud { GRH } else { 0 };
    let fcs = if port.offload.contains(&Offload::Fcs) { FCS } else { 0 };
    port.mtu.saturating_add(ETHERNET + header + fcs)
}
