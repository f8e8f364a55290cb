//! `devices`: lists devices and links.

use std::fmt::Write;

use serde::Serialize;

use super::args;
use super::console::{self, CommandError};
use dataplane_core::pipeline::summary;
use dataplane_core::verbs::{Capability, CqApi, Device, DeviceInfo, Missing};
use dataplane_soft::config::{HOST, LinkKind, SOFT, link_kinds};
use dataplane_soft::{GeneratorSpec, LinkSpec, LoopbackLink, SoftDevice, SoftSpec};

#[derive(Serialize)]
struct DeviceList {
    /// The interfaces of this host.
    host: BuiltInDevice,
    soft: BuiltInDevice,
    verbs: Verbs,
}

/// A device that needs no RDMA hardware: the interfaces of this host, or the software device.
#[derive(Serialize)]
struct BuiltInDevice {
    device: &'static str,
    links: Vec<LinkSummary>,
    /// The capabilities of the device. A config can remove each of these capabilities.
    capabilities: Vec<Capability>,
}

#[derive(Serialize)]
struct LinkSummary {
    kind: &'static str,
    about: String,
}

/// The verbs devices, or the reason why there are none.
#[derive(Serialize)]
struct Verbs {
    devices: Vec<DeviceInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

fn host() -> BuiltInDevice {
    // Query a generator link. A generator link carries raw packets, like an interface, but needs no privileges.
    built(HOST, &[LinkSpec::Generator(GeneratorSpec::default())])
}

fn soft() -> BuiltInDevice {
    // Query two devices, because a link for raw packets and a link for connections have different capabilities.
    built(SOFT, &[LinkSpec::Generator(GeneratorSpec::default()), LinkSpec::Loopback(LoopbackLink::reflect())])
}

fn built(device: &'static str, wires: &[LinkSpec]) -> BuiltInDevice {
    let links = link_kinds().into_iter().filter(|kind| kind.device == device);
    let links =
        links.map(|LinkKind { name, schema, .. }| LinkSummary { kind: name, about: summary(&schema) }).collect();
    let devices: Vec<_> = wires.iter().map(|link| SoftDevice::new(SoftSpec::new(device, link.clone()))).collect();
    let has = |capability: &Capability| devices.iter().flatten().any(|it| it.capabilities().has.contains(capability));
    BuiltInDevice { device, links, capabilities: Capability::ALL.into_iter().filter(has).collect() }
}

#[cfg(feature = "ibverbs")]
fn verbs() -> Verbs {
    use dataplane_core::verbs::Provider;
    match dataplane_ibverbs::VerbsProvider.devices() {
        Ok(mut devices) => {
            // A software RDMA device is on the NUMA node of its network interface. The provider does not look up this
            // node, so look it up here.
            if let Ok(topology) = dataplane_core::topology::Topology::discover() {
                devices
                    .iter_mut()
                    .for_each(|device| device.node = device.node.or(topology.node_of_device(&device.name)));
            }
            let none = "this host has no verbs devices; help: load the driver of an RDMA NIC, or use device = \"host\"";
            Verbs { note: devices.is_empty().then(|| none.to_owned()), devices }
        }
        Err(error) => Verbs { devices: Vec::new(), note: Some(error.to_string()) },
    }
}

#[cfg(not(feature = "ibverbs"))]
fn verbs() -> Verbs {
    Verbs { devices: Vec::new(), note: Some("this program was built without the feature `ibverbs`".to_owned()) }
}

pub(super) fn devices(args: &args::Devices) -> Result<(), CommandError> {
    let devices = DeviceList { host: host(), soft: soft(), verbs: verbs() };
    if args.json { console::print_json(&devices) } else { console::print(&text(&devices)) }
}

fn polled_by(api: CqApi) -> &'static str {
    match api {
        CqApi::Auto | CqApi::Extended => "ibv_start_poll, in batches",
        CqApi::ExtendedSingle => "ibv_start_poll, one completion at a time",
        CqApi::Classic => "ibv_poll_cq",
    }
}

fn text(devices: &DeviceList) -> String {
    let mut text = String::from("verbs devices\n");
    // Writing to a string cannot fail.
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
                     entries, {} memory regions\n    capabilities: {}",
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
                    let _ = writeln!(text, "    completion timestamps of {bits} bits at {} kHz", can.clock_khz);
                }
                for Missing { capability, why } in &device.missing {
                    let _ = writeln!(text, "    missing {capability}: {why}");
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
    for (what, built) in [("interfaces of this host", &devices.host), ("software device", &devices.soft)] {
        let _ = writeln!(text, "\n{what} (device = \"{}\"), links", built.device);
        for link in &built.links {
            let _ = writeln!(text, "  {:<10}  {}", link.kind, link.about);
        }
        let names: Vec<&str> = built.capabilities.iter().map(|capability| capability.name()).collect();
        let _ = writeln!(text, "  capabilities: {}", names.join(", "));
    }
    text
}
