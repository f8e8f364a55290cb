//! `devices`: what a port can be.

use std::fmt::Write;

use schemars::{JsonSchema, schema_for};
use serde::Serialize;

use super::args;
use super::console::{self, Stop};
use crate::config::{self, SOFT};
use crate::provider::soft::{GeneratorSpec, LinkSpec, LoopbackLink, SoftDevice, SoftSpec};
use crate::provider::{Capability, CqApi, Device, DeviceInfo, Missing};

#[derive(Serialize)]
struct Devices {
    soft: Soft,
    verbs: Verbs,
}

/// The software device.
#[derive(Serialize)]
struct Soft {
    device: &'static str,
    links: Vec<Link>,
    /// What it has, and can be made to lack.
    capabilities: Vec<Capability>,
}

#[derive(Serialize)]
struct Link {
    kind: &'static str,
    about: String,
}

/// The verbs devices, or why there are none.
#[derive(Serialize)]
struct Verbs {
    devices: Vec<DeviceInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

fn about<T: JsonSchema>(kind: &'static str) -> Link {
    let schema = schema_for!(T);
    let about = schema.get("description").and_then(|about| about.as_str()).unwrap_or_default().replace('\n', " ");
    Link { kind, about }
}

fn soft() -> Soft {
    let links = vec![
        about::<config::Loopback>("loopback"),
        about::<config::Generator>("generator"),
        about::<config::Pcap>("pcap"),
        about::<config::Tap>("tap"),
        about::<config::Packet>("packet"),
        about::<config::Xdp>("xdp"),
    ];
    // It is asked itself, with a wire for raw packets and with one for connections.
    let wires = [LinkSpec::Generator(GeneratorSpec::default()), LinkSpec::Loopback(LoopbackLink::reflect())];
    let devices = wires.map(|link| SoftDevice::new(SoftSpec::new(SOFT, link)));
    let has = |capability: &Capability| devices.iter().flatten().any(|it| it.capabilities().has.contains(capability));
    Soft { device: SOFT, links, capabilities: Capability::ALL.into_iter().filter(has).collect() }
}

#[cfg(feature = "verbs")]
fn verbs() -> Verbs {
    use crate::provider::Provider;
    match crate::provider::verbs::VerbsProvider.devices() {
        Ok(mut devices) => {
            // A device of software has the node of the interface below it, which the provider doesn't look for.
            if let Ok(topology) = crate::topology::Topology::discover() {
                devices
                    .iter_mut()
                    .for_each(|device| device.node = device.node.or(topology.node_of_device(&device.name)));
            }
            let none = "this host has no verbs device: load the driver of an RDMA NIC, or use the software device";
            Verbs { note: devices.is_empty().then(|| none.to_owned()), devices }
        }
        Err(error) => Verbs { devices: Vec::new(), note: Some(error.to_string()) },
    }
}

#[cfg(not(feature = "verbs"))]
fn verbs() -> Verbs {
    Verbs { devices: Vec::new(), note: Some("this program was built without the feature `verbs`".to_owned()) }
}

pub(super) fn devices(args: &args::Devices) -> Result<(), Stop> {
    let devices = Devices { soft: soft(), verbs: verbs() };
    if args.json { console::print_json(&devices) } else { console::print(&text(&devices)) }
}

fn polled_by(api: CqApi) -> &'static str {
    match api {
        CqApi::Auto | CqApi::Extended => "ibv_start_poll, in batches",
        CqApi::ExtendedSingle => "ibv_start_poll, one completion at a time",
        CqApi::Classic => "ibv_poll_cq",
    }
}

fn text(devices: &Devices) -> String {
    let mut text = String::from("verbs devices\n");
    // A string takes any amount of writing.
    if let Some(note) = &devices.verbs.note {
        let _ = writeln!(text, "  {note}");
    }
    for device in &devices.verbs.devices {
        let node = device.node.map_or(String::new(), |node| format!(", node {node}"));
        let library = device.library.as_ref().map_or(String::new(), |version| format!(", libibverbs {version}"));
        let _ = writeln!(text, "  {} (driver {}{library}{node})", device.name, device.driver);
        match &device.capabilities {
            Err(reason) => {
                let _ = writeln!(text, "    {reason}");
            }
            Ok(can) => {
                let has: Vec<&str> = can.has.iter().map(|capability| capability.name()).collect();
                let _ = writeln!(
                    text,
                    "    {} ports, firmware {}\n    at most {} queue pairs of {} requests, {} completion queues of {} \
                     entries, {} memory regions\n    has {}",
                    can.ports,
                    can.firmware,
                    can.max_qp,
                    can.max_qp_wr,
                    can.max_cq,
                    can.max_cqe,
                    can.max_mr,
                    has.join(", ")
                );
                if can.timestamp_mask != 0 {
                    let bits = can.timestamp_mask.count_ones();
                    let _ = writeln!(text, "    completion stamps of {bits} bits at {} kHz", can.clock_khz);
                }
                for Missing { capability, why } in &device.missing {
                    let _ = writeln!(text, "    no {capability}: {why}");
                }
                if let Some(granted) = &device.queue {
                    let _ = writeln!(text, "    completion queues are polled by {}", polled_by(granted.api));
                }
                for quirk in &device.quirks {
                    let _ = writeln!(text, "    driver: {quirk}");
                }
            }
        }
    }
    let _ = writeln!(text, "\nsoftware device (device = \"{}\"), links", devices.soft.device);
    for link in &devices.soft.links {
        let _ = writeln!(text, "  {:<10}  {}", link.kind, link.about);
    }
    let names: Vec<&str> = devices.soft.capabilities.iter().map(|capability| capability.name()).collect();
    let _ = writeln!(text, "  has {}", names.join(", "));
    text
}
