//! `topology`: the machine, and where workers would go.

use std::fmt::Write;

use serde::Serialize;

use super::args;
use super::console::{self, Stop};
use crate::pipeline::Registry;
use crate::topology::{Topology, Workers};
use crate::units::{CoreId, NumaNode};

#[derive(Serialize)]
struct Machine {
    #[serde(flatten)]
    topology: Topology,
    /// In the order of the workers.
    workers: Vec<Place>,
}

#[derive(Serialize)]
struct Place {
    core: CoreId,
    node: Option<NumaNode>,
    /// The ports that are on another node.
    far_from: Vec<Far>,
}

#[derive(Serialize)]
struct Far {
    port: String,
    node: NumaNode,
}

pub(super) fn topology(registry: &Registry, args: &args::Topology) -> Result<(), Stop> {
    let topology = Topology::discover()?;
    let (cores, ports) = match &args.config {
        Some(path) => {
            let config = args::Config { path: path.clone(), settings: Vec::new() };
            let plan = console::assembly(&config, registry, topology.clone())?.plan;
            (plan.cores, plan.ports)
        }
        None => {
            let all = topology.allowed().count();
            (topology.place(&Workers::Count(all), &[])?, Vec::new())
        }
    };
    let place = |core: CoreId| {
        let node = topology.core(core).map(|core| core.node);
        let far = ports.iter().filter_map(|port| {
            let there = port.node.filter(|there| Some(*there) != node)?;
            Some(Far { port: port.config.name.clone(), node: there })
        });
        Place { core, node, far_from: far.collect() }
    };
    let workers: Vec<Place> = cores.into_iter().map(place).collect();
    if args.json {
        return console::print_json(&Machine { topology, workers });
    }
    let mut text = topology.to_string();
    text.push_str(match args.config {
        Some(_) => "\nworkers of the config\n",
        None => "\nworkers, as many as there are cores for\n",
    });
    for (number, place) in workers.iter().enumerate() {
        let node = place.node.map_or(String::new(), |node| format!(" on node {node}"));
        // A string takes any amount of writing.
        let _ = write!(text, "  {number}: core {}{node}", place.core);
        if !place.far_from.is_empty() {
            let far: Vec<String> =
                place.far_from.iter().map(|far| format!("`{}` (node {})", far.port, far.node)).collect();
            let _ = write!(text, ", far from {}", far.join(", "));
        }
        text.push('\n');
    }
    console::print(&text)
}
