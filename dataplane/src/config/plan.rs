//! The plan: a config with every name resolved and everything checked that can be without a device.

use std::fmt;

use serde::Serialize;

use super::check;
use super::cores;
use super::diagnostics::Diagnostics;
use super::graph;
use super::load::Loaded;
use super::memory;
use super::port::{Link, Port};
use super::runtime::{Hugepages, Runtime};
use super::source::Span;
use super::types::Control;
use crate::topology::Topology;
use crate::units::{CoreId, NumaNode};

/// What the plan must know of the kinds of stages.
pub trait Catalog {
    /// The names that `use` takes.
    fn names(&self) -> Vec<String>;
    /// The shape of a kind of stage; none when there is no such kind.
    fn shape(&self, kind: &str) -> Option<StageShape>;
}

/// Where packets leave a kind of stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageShape {
    /// The labels of its outputs.
    pub outputs: Vec<String>,
    /// Whether unlabelled packets end here, as at `tx` and `drop`: nothing comes after it.
    pub terminal: bool,
}

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// To the stage of this index.
    Stage(usize),
    /// Nowhere: they are counted and dropped.
    Drop,
}

/// A stage of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct NodePlan {
    /// What the config calls it.
    pub name: String,
    /// Its kind.
    #[serde(rename = "use")]
    pub kind: String,
    /// Where it is in the config.
    #[serde(skip)]
    pub span: Span,
    /// Where unlabelled packets go. None when they end here.
    pub next: Option<Target>,
    /// Every output of its kind and where it goes. One that isn't wired is a drop under `stage.output`.
    pub outputs: Vec<(String, Target)>,
    /// The stage that is shown what it drops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drops: Option<usize>,
    /// The keys that are its own.
    pub parameters: toml::Table,
}

/// A port of a plan.
#[derive(Clone, Debug, Serialize)]
pub struct PortPlan {
    /// Its config. Paths in it are resolved.
    #[serde(flatten)]
    pub config: Port,
    /// Where it is in the config.
    #[serde(skip)]
    pub span: Span,
    /// Whether what it receives enters the pipeline.
    pub input: bool,
    /// The NUMA node that it is on: `numa_node` of the config, else what the kernel says of its device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NumaNode>,
    /// The index of the port at the other end of a loopback, which may be this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
}

/// A config that can be run, as far as can be said without a device.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Workers, memory and the loop.
    pub runtime: Runtime,
    /// The cores that the workers run on, in the order of the workers.
    pub cores: Vec<CoreId>,
    /// Packet buffers of each worker.
    pub buffers: u32,
    /// The ports, in the order of the config.
    pub ports: Vec<PortPlan>,
    /// The stages, in the order of the config. Packets enter at the first.
    pub nodes: Vec<NodePlan>,
    /// The indices of the stages in an order in which every stage comes before those that it sends to.
    pub order: Vec<usize>,
}

/// Checks a config against itself, the kinds of stages and the machine. None when it cannot be run; the diagnostics say
/// why, with the mistakes of [`load`](super::load()) before.
pub fn plan(
    loaded: &Loaded<'_>,
    catalog: &dyn Catalog,
    topology: &Topology,
    diagnostics: &mut Diagnostics,
) -> Option<Plan> {
    let mut ports = check::ports(loaded, diagnostics);
    cores::nodes(loaded, &mut ports, topology, diagnostics);
    let cores = cores::cores(loaded, &ports, topology, diagnostics);
    check::spread(loaded, &ports, cores.as_ref().map_or(1, Vec::len), diagnostics);
    let memory = memory::memory(loaded, &ports, diagnostics);
    let graph = graph::resolve(loaded, catalog, diagnostics);
    if diagnostics.has_errors() {
        return None;
    }
    let (buffers, cut) = memory?;
    // As they are cut in the end: AF_XDP has sizes of its own.
    let mut runtime = Runtime { buffer_size: cut.size, headroom: cut.headroom, ..loaded.runtime.clone()? };
    if let Control::Path(path) = &mut runtime.control {
        *path = loaded.source().resolve(path);
    }
    let ports = ports.into_iter().collect::<Option<Vec<_>>>()?;
    Some(Plan { runtime, cores: cores?, buffers, ports, nodes: graph.nodes, order: graph.order })
}

impl Plan {
    /// The index of the port of this name.
    pub fn port(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|port| port.config.name == name)
    }

    /// The index of the stage of this name.
    pub fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    fn target(&self, target: Target) -> &str {
        match target {
            Target::Stage(index) => self.nodes.get(index).map_or("?", |node| node.name.as_str()),
            Target::Drop => "drop",
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runtime = &self.runtime;
        let cores: Vec<String> = self.cores.iter().map(CoreId::to_string).collect();
        let pages = match runtime.hugepages {
            Hugepages::Gigabyte => "1 GiB pages",
            Hugepages::Megabyte => "2 MiB pages",
            Hugepages::Transparent => "transparent huge pages",
            Hugepages::None => "normal pages",
        };
        writeln!(f, "workers   {} (cores {}), bursts of {}", cores.len(), cores.join(", "), runtime.burst)?;
        writeln!(
            f,
            "memory    {} buffers of {} bytes ({} headroom) each worker, {pages}",
            self.buffers, runtime.buffer_size, runtime.headroom
        )?;
        writeln!(f, "\nports")?;
        for port in &self.ports {
            let config = &port.config;
            let qp = config.qp.name();
            let link = config.link.as_ref().map_or(String::new(), |link| match (link, port.peer) {
                (Link::Loopback(_), Some(peer)) => {
                    format!(" loopback to {}", self.ports.get(peer).map_or("?", |peer| peer.config.name.as_str()))
                }
                _ => {
                    let interface = link.interface().map_or(String::new(), |interface| format!(" on {interface}"));
                    format!(" {}{interface}", link.kind())
                }
            });
            let node = port.node.map_or(String::new(), |node| format!(", node {node}"));
            let input = if port.input { ", input" } else { "" };
            // Who reads nothing of a port posts no receives there.
            let rx = if port.input { format!(", rx {}", config.rx_depth) } else { String::new() };
            let tx = config.tx_depth;
            writeln!(f, "  {}: {}{link}, {qp}{rx}, tx {tx}{node}{input}", config.name, config.device)?;
        }
        writeln!(f, "\nstages")?;
        for node in self.order.iter().filter_map(|&index| self.nodes.get(index)) {
            let edges = node.next.iter().map(|&next| format!("→ {}", self.target(next)));
            let outputs = node.outputs.iter().map(|(label, target)| format!("{label} → {}", self.target(*target)));
            let drops = node.drops.iter().map(|&at| format!("drops seen by {}", self.target(Target::Stage(at))));
            let edges: Vec<String> = edges.chain(outputs).chain(drops).collect();
            let edges = if edges.is_empty() { "packets end here".to_owned() } else { edges.join(", ") };
            let kind = if node.kind == node.name { String::new() } else { format!(" ({})", node.kind) };
            writeln!(f, "  {}{kind}: {edges}", node.name)?;
        }
        Ok(())
    }
}
