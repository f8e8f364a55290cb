//! `topology`: shows the topology of the host, and the placement of workers.

use std::fmt::Write;

use serde::Serialize;

use super::args;
use super::console::{self, CommandError};
use dataplane_core::pipeline::Registry;
use dataplane_core::topology::{Topology, Workers};
use dataplane_core::units::{CoreId, NumaNode};

#[derive(Serialize)]
struct TopologyReport {
    #[serde(flatten)]
    topology: Topology,
    /// The workers in order.
    workers: Vec<WorkerPlacement>,
}

#[derive(Serialize)]
struct WorkerPlacement {
    core: CoreId,
    node: Option<NumaNode>,
    /// The ports whose NUMA node differs from the node of the core.
    far_from: Vec<RemotePort>,
}

#[derive(Serialize)]
struct RemotePort {
    port: String,
    node: NumaNode,
}

pub(super) fn topology(registry: &Registry, args: &args::Topology) -> Result<(), CommandError> {
    let topology = Topology::discover()?;
    let (cores, ports) = match &args.config {
        Some(path) => {
            let config = args::Config { path: path.clone(), settings: Vec::new() };
            let plan = console::assembly(&config, None, registry, topology.clone())?.plan;
            (plan.cores, plan.ports)
        }
        None => {
            let all = topology.allowed().count();
            (topology.place(&Workers::Count(all), &[])?, Vec::new())
        }
    };
    let placement = |core: CoreId| {
        let node = topology.core(core).map(|core| core.node);
        let far = ports.iter().filter_map(|port| {
            let there = port.node.filter(|there| Some(*there) != node)?;
            Some(RemotePort { port: port.config.name.clone(), node: there })
        });
        WorkerPlacement { core, node, far_from: far.collect() }
    };
    let workers: Vec<WorkerPlacement> = cores.into_iter().map(placement).collect();
    if args.json {
        return console::print_json(&TopologyReport { topology, workers });
    }
    let mut text = topology.to_string();
    text.push_str(match args.config {
        Some(_) => "\nworkers of this config\n",
        None => "\nplacement, with one worker on each allowed core\n",
    });
    for (number, placement) in workers.iter().enumerate() {
        let node = placement.node.map_or(String::new(), |node| format!(" on node {node}"));
        // Writing to a string cannot fail.
        let _ = write!(text, "  {number}: core {}{node}", placement.core);
        if !placement.far_from.is_empty() {
            let far: Vec<String> =
                placement.far_from.iter().map(|far| format!("`{}` (node {})", far.port, far.node)).collect();
            let _ = write!(text, ", ports on other nodes: {}", far.join(", "));
        }
        text.push('\n');
    }
    console::print(&text)
}
