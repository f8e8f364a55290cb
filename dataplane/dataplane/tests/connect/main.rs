//! Tests of connections: endpoint parameters, the state changes to RTS, and the endpoint exchange with correct and
//! hostile peers.

mod endpoint;
mod exchange;
mod hostile;
mod parameters;
mod queue_pairs;

use dataplane::connect::{EndpointParameters, PreparedQueuePair, QueuePairEndpoint, VERSION};
use dataplane::soft::{LinkSpec, LoopbackLink, SoftCq, SoftDevice, SoftPd, SoftSpec};
use dataplane::units::{Gid, QpNum};
use dataplane::verbs::{CqSpec, Device, GidKind, LinkLayer, QpCaps, QpSpec, QpType};

/// Returns the endpoint of the queue pair `number`. An endpoint is the address that a queue pair sends to its peer. All
/// endpoints that this function returns accept each other as peers.
fn endpoint(number: u32) -> QueuePairEndpoint {
    QueuePairEndpoint {
        version: VERSION,
        transport: QpType::Rc,
        link_layer: LinkLayer::Ethernet,
        lid: 0,
        gid: "fe80::1".parse().unwrap(),
        gid_kind: GidKind::RoceV2,
        qpn: QpNum(number),
        psn: 0,
        path_mtu: 3,
        max_dest_rd_atomic: 1,
        max_message: 1 << 23,
        qkey: 0,
        generation: 0,
        queue: 0,
        receive_depth: 64,
        buffer: None,
    }
}

/// Returns two software devices that are connected by a loopback cable.
fn cabled() -> [SoftDevice; 2] {
    let (one, two) = LoopbackLink::pair();
    let device = |name: &str, link, last| {
        let spec = SoftSpec { mac: [2, 0, 0, 0, 0, last], ..SoftSpec::new(name, LinkSpec::Loopback(link)) };
        SoftDevice::new(spec).unwrap()
    };
    [device("one", one, 1), device("two", two, 2)]
}

/// Returns a prepared queue pair with its protection domain and completion queue.
fn prepared(
    device: &SoftDevice,
    kind: QpType,
    parameters: EndpointParameters,
) -> dataplane::Result<(PreparedQueuePair<SoftPd>, SoftPd, SoftCq)> {
    let pd = device.alloc_pd().unwrap();
    let (cq, _) = device.create_cq(&CqSpec { depth: 64, ..CqSpec::default() }, None).unwrap();
    let caps = QpCaps { send_depth: 16, recv_depth: 16, send_sges: 1, recv_sges: 1, inline: 0 };
    let prepared = PreparedQueuePair::new(device, &pd, &QpSpec::new(kind, caps), (&cq, &cq), None, parameters)?;
    Ok((prepared, pd, cq))
}

fn gid(text: &str) -> Gid {
    text.parse().unwrap()
}
