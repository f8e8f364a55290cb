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
}

pub(super) fn topology(registry: &Registry, args: &args::Topology) -> Result<(), Stop> {
    let topology = Topology::discover()?;
    let cores = match &args.config {
        Some(path) => {
            let config = args::Config { path: path.clone(), settings: Vec::new() };
            console::assembly(&config, registry, topology.clone())?.plan.cores
        }
        None => {
            let all = topology.allowed().count();
            topology.place(&Workers::Count(all), &[])?
        }
    };
    let place = |core: CoreId| Place { core, node: topology.core(core).map(|core| core.node) };
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
        let _ = writeln!(text, "  {number}: core {}{node}", place.core);
    }
    console::print(&text)
}
