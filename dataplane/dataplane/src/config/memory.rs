//! Checks that the packet buffers are large enough for the packets of the ports, and that there are enough buffers.

use super::diagnostics::{Diagnostics, Mistake};
use super::load::Loaded;
use super::plan::PortPlan;
use super::port::{DEFAULT_MTU, ETHERNET_HEADER, Port, Qp};
use super::raw::Offload;
use dataplane_core::error::shorten;
use dataplane_soft::config::{Buffers, MAX_HEADER};

/// The length of the global route header that a device writes in front of a received datagram, in bytes.
const GRH: u32 = 40;
/// The length of a frame check sequence, in bytes.
const FCS: u32 = 4;
/// The minimum space that a buffer must have after its headroom: one minimum-size frame, in bytes.
const LEAST_ROOM: u32 = 64;

/// Checks the size and number of buffers. Returns the number of buffers of each worker, the minimum number of buffers
/// that a worker needs, and the layout of a buffer.
pub(super) fn memory(
    loaded: &Loaded<'_>,
    ports: &[Option<PortPlan>],
    diagnostics: &mut Diagnostics,
) -> Option<(u32, u32, Buffers)> {
    let runtime = loaded.runtime.as_ref()?;
    let mut error = |path: &str, message: String, help: String| {
        diagnostics.push(Mistake::error(loaded.locate(path), message).help(help));
    };
    let room = runtime.buffer_size.saturating_sub(runtime.headroom);
    if room < LEAST_ROOM {
        let message = format!("a headroom of {} leaves only {room} bytes of a buffer", runtime.headroom);
        let most = runtime.buffer_size.saturating_sub(LEAST_ROOM);
        error("runtime.headroom", message, format!("set headroom to at most {most}, or increase `buffer_size`"));
        return None;
    }
    let asked = runtime.layout();
    let frames = ports.iter().flatten().map(|port| frame(&port.config));
    let longest = frames.max().unwrap_or(LEAST_ROOM);
    let mut buffers = asked;
    for link in ports.iter().flatten().filter_map(|port| port.config.link.as_ref()) {
        buffers = link.buffers(buffers, longest);
        if buffers.headroom > link.max_headroom() {
            let (kind, most) = (link.kind(), link.max_headroom());
            let message = format!(
                "the headroom is {}, but a port with the link `{kind}` supports at most {most}",
                runtime.headroom
            );
            error("runtime.headroom", message, format!("set headroom to at most {most}"));
            return None;
        }
    }
    let room = buffers.size - buffers.headroom;
    let mut rings = 0u32;
    for (index, port) in ports.iter().enumerate() {
        let Some(plan @ PortPlan { config: port, input, .. }) = port else { continue };
        rings = rings.saturating_add(port.tx_depth);
        if plan.posts_receives() {
            rings = rings.saturating_add(port.rx_depth);
        }
        if *input && runtime.burst > port.rx_depth {
            let (name, depth, burst) = (&port.name, port.rx_depth, runtime.burst);
            let message = format!("the rx_depth of `{name}` is {depth}, less than a burst of {burst}");
            let help = format!("set rx_depth to at least {burst}, or reduce `burst` in [runtime]");
            error(&format!("port[{index}].rx_depth"), message, help);
        }
        if let Some(longest) = port.longest_datagram()
            && port.max_packet() + ETHERNET_HEADER > longest
        {
            let (name, needed) = (shorten(&port.name), port.max_packet() + ETHERNET_HEADER);
            let message = format!(
                "a packet of `{name}` needs datagrams of {needed} bytes, but the path MTU is at most {longest}"
            );
            error(&format!("port[{index}].mtu"), message, format!("set mtu to at most {}", longest - MAX_HEADER));
        }
        let frame = frame(port);
        if frame > room {
            let interface = loaded.ports.get(index).and_then(|entry| entry.interface_mtu);
            let source =
                interface.map_or_else(String::new, |mtu| format!(" (the interface of the port has an MTU of {mtu})"));
            let name = shorten(&port.name);
            let message =
                format!("a packet of `{name}` has up to {frame} bytes, but a buffer holds only {room}{source}");
            // A link such as `xdp` may have enlarged the buffers to its maximum. In that case, only a smaller MTU
            // helps.
            let fitting = port.max_packet().saturating_sub(frame - room);
            let size = frame.saturating_add(runtime.headroom);
            let help = match buffers == asked {
                true if interface.is_some() && fitting >= DEFAULT_MTU => {
                    format!("set mtu = {DEFAULT_MTU} for the port, or buffer_size in [runtime] to at least {size}")
                }
                true => format!("set buffer_size in [runtime] to at least {size}, or mtu to at most {fitting}"),
                false => format!("set mtu to at most {fitting}"),
            };
            error(&format!("port[{index}].mtu"), message, help);
        }
    }
    let least = rings.saturating_add(runtime.burst);
    match runtime.buffers {
        Some(count) if count < least => {
            let message = format!("`buffers` is {count}, but the rings and one burst of a worker need {least} buffers");
            error("runtime.buffers", message, format!("set buffers to at least {least}, or remove the key"));
            None
        }
        Some(count) => Some((count, least, buffers)),
        // Add one eighth for packets that stages hold and copy.
        None => Some((least.saturating_add(least / 8).next_multiple_of(64), least, buffers)),
    }
}

/// Returns the maximum length of a packet of a port, in bytes.
fn frame(port: &Port) -> u32 {
    let header = if port.qp == Qp::Ud { GRH } else { 0 };
    let fcs = if port.offloads().contains(&Offload::Fcs) { FCS } else { 0 };
    port.max_packet().saturating_add(MAX_HEADER + header + fcs)
}
