//! The nodes and edges of a diagram.

use crate::config::Plan;
use crate::runtime::Assembly;
use dataplane_core::pipeline::{NodeSpec, Target};

/// The content of a diagram: the ports and stages, and the edges on which packets move between them.
#[derive(Debug, Default)]
pub(super) struct Diagram {
    pub(super) nodes: Vec<Node>,
    pub(super) edges: Vec<Edge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeKind {
    /// A port that receives packets.
    Input,
    Stage,
    /// A port that sends packets.
    Output,
    /// The outputs of one stage that drop their packets, drawn as one node.
    Drop,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: NodeKind,
    pub(super) title: String,
    /// The second line of text, or an empty string. For a `Drop` node, the name of the stage that observes the drops.
    pub(super) detail: String,
}

/// An edge from a node to a later node. The label is the name of an output. The label is empty for packets for which
/// the stage chooses no output.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) label: String,
}

impl Diagram {
    /// Returns the paths of packets in an assembled config.
    pub(super) fn of(assembly: &Assembly) -> Self {
        let plan = &assembly.plan;
        let Some(program) = assembly.programs.first() else { return Self::default() };
        let specs = program.nodes();
        let mut diagram = Self::default();
        let inputs: Vec<usize> = (0..plan.ports.len()).filter(|&port| plan.ports[port].input).collect();
        for &port in &inputs {
            diagram.nodes.push(port_node(plan, port, NodeKind::Input));
            diagram.edges.push(Edge { from: diagram.nodes.len() - 1, to: inputs.len(), label: String::new() });
        }
        let first = inputs.len();
        diagram.nodes.extend(specs.iter().map(|spec| Node {
            kind: NodeKind::Stage,
            title: spec.name.clone(),
            detail: if spec.kind == spec.name { String::new() } else { spec.kind.clone() },
        }));
        let mut outputs: Vec<Option<usize>> = vec![None; plan.ports.len()];
        for (place, spec) in specs.iter().enumerate() {
            for (label, target) in edges_of(spec) {
                let to = match target {
                    Target::Node(to) => vec![first + to],
                    Target::Port(port) => vec![output(&mut diagram, plan, &mut outputs, port)],
                    Target::Egress => {
                        (0..plan.ports.len()).map(|port| output(&mut diagram, plan, &mut outputs, port)).collect()
                    }
                    Target::Drop => continue,
                };
                diagram.edges.extend(to.into_iter().map(|to| Edge {
                    from: first + place,
                    to,
                    label: label.to_owned(),
                }));
            }
            let dropped: Vec<&str> =
                edges_of(spec).filter(|(_, target)| *target == Target::Drop).map(|(label, _)| label).collect();
            if !dropped.is_empty() || spec.drop_observer.is_some() {
                let title = dropped.iter().filter(|label| !label.is_empty()).copied().collect::<Vec<_>>().join(", ");
                let watcher = spec.drop_observer.and_then(|watcher| specs.get(watcher));
                let detail = watcher.map(|watcher| watcher.name.clone()).unwrap_or_default();
                diagram.nodes.push(Node { kind: NodeKind::Drop, title, detail });
                let to = diagram.nodes.len() - 1;
                diagram.edges.push(Edge { from: first + place, to, label: String::new() });
            }
        }
        diagram
    }
}

impl Node {
    /// Returns the text of a `Drop` node: the outputs that drop their packets, and the stage that observes the drops.
    pub(super) fn drops(&self) -> String {
        match (self.title.as_str(), self.detail.as_str()) {
            ("", "") => "drop".to_owned(),
            (outputs, "") => format!("drop: {outputs}"),
            ("", watcher) => format!("drop → {watcher}"),
            (outputs, watcher) => format!("drop: {outputs} → {watcher}"),
        }
    }
}

/// Returns the edges from a stage with their labels. The first edge has an empty label, and carries the packets for
/// which the stage chooses no output.
fn edges_of(spec: &NodeSpec) -> impl Iterator<Item = (&str, Target)> {
    let outputs = spec.outputs.iter().map(|(label, target)| (label.as_str(), *target));
    [("", spec.next)].into_iter().chain(outputs)
}

/// Returns the node of a port that sends packets. The first call for a port creates the node.
fn output(diagram: &mut Diagram, plan: &Plan, outputs: &mut [Option<usize>], port: usize) -> usize {
    *outputs[port].get_or_insert_with(|| {
        diagram.nodes.push(port_node(plan, port, NodeKind::Output));
        diagram.nodes.len() - 1
    })
}

fn port_node(plan: &Plan, port: usize, kind: NodeKind) -> Node {
    let config = &plan.ports[port].config;
    let detail = match &config.link {
        Some(link) => link.kind().to_owned(),
        None => config.device.clone(),
    };
    Node { kind, title: config.name.clone(), detail }
}
