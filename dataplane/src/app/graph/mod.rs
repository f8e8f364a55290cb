//! `graph`: the pipeline as a picture.

mod layout;
mod svg;
mod text;

use std::io::Write;
use std::path::Path;

use super::args::{self, Picture as Format};
use super::console::{self, Stop};
use crate::config::Plan;
use crate::file::Held;
use crate::pipeline::{Files, NodeSpec, Registry, Target};
use crate::runtime::Assembly;

/// What a picture shows: every way that a packet can take, from ports to ports.
#[derive(Debug, Default)]
struct Picture {
    nodes: Vec<Node>,
    edges: Vec<Edge>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A port that packets come in by.
    Input,
    Stage,
    /// A port that packets leave by.
    Output,
    /// The outputs of one stage whose packets are dropped.
    Drop,
}

#[derive(Debug)]
struct Node {
    kind: Kind,
    title: String,
    /// A second line, or nothing; of drops the stage that sees them.
    detail: String,
}

/// A way, from a node to a later one. The way of unlabelled packets has no label.
#[derive(Debug)]
struct Edge {
    from: usize,
    to: usize,
    label: String,
}

pub(super) fn graph(registry: &Registry, args: &args::Graph) -> Result<(), Stop> {
    let mut assembly = console::offline_assembly(&args.config, registry)?;
    let picture = picture(&assembly);
    let text = match args.format.unwrap_or_else(|| format_of(args.output.as_deref())) {
        Format::Svg => svg::draw(&picture),
        Format::Dot => text::dot(&picture),
        Format::Mermaid => text::mermaid(&picture),
    };
    match &args.output {
        None => console::print(&text),
        Some(file) => {
            assembly.files.write(file, "the picture").map_err(|why| Stop::Failed(format!("{why}: {}", Files::HELP)))?;
            let written = Held::output(file).and_then(|held| {
                held.empty()?;
                (&*held).write_all(text.as_bytes())
            });
            written.map_err(|error| Stop::Failed(format!("{}: {error}", file.display())))
        }
    }
}

fn format_of(file: Option<&Path>) -> Format {
    match file.and_then(Path::extension).and_then(|end| end.to_str()) {
        Some("dot" | "gv") => Format::Dot,
        Some("mmd" | "mermaid") => Format::Mermaid,
        _ => Format::Svg,
    }
}

fn picture(assembly: &Assembly) -> Picture {
    let plan = &assembly.plan;
    let Some(program) = assembly.programs.first() else { return Picture::default() };
    let specs = program.nodes();
    let mut picture = Picture::default();
    let inputs: Vec<usize> = (0..plan.ports.len()).filter(|&port| plan.ports[port].input).collect();
    for &port in &inputs {
        picture.nodes.push(port_node(plan, port, Kind::Input));
        picture.edges.push(Edge { from: picture.nodes.len() - 1, to: inputs.len(), label: String::new() });
    }
    let first = inputs.len();
    picture.nodes.extend(specs.iter().map(|spec| Node {
        kind: Kind::Stage,
        title: spec.name.clone(),
        detail: if spec.kind == spec.name { String::new() } else { spec.kind.clone() },
    }));
    let mut outputs: Vec<Option<usize>> = vec![None; plan.ports.len()];
    for (place, spec) in specs.iter().enumerate() {
        for (label, target) in ways(spec) {
            let to = match target {
                Target::Node(to) => vec![first + to],
                Target::Port(port) => vec![output(&mut picture, plan, &mut outputs, port)],
                Target::Egress => {
                    (0..plan.ports.len()).map(|port| output(&mut picture, plan, &mut outputs, port)).collect()
                }
                Target::Drop => continue,
            };
            picture.edges.extend(to.into_iter().map(|to| Edge { from: first + place, to, label: label.to_owned() }));
        }
        let dropped: Vec<&str> =
            ways(spec).filter(|(_, target)| *target == Target::Drop).map(|(label, _)| label).collect();
        if !dropped.is_empty() || spec.drops.is_some() {
            let title = dropped.iter().filter(|label| !label.is_empty()).copied().collect::<Vec<_>>().join(", ");
            let watcher = spec.drops.and_then(|watcher| specs.get(watcher));
            let detail = watcher.map(|watcher| watcher.name.clone()).unwrap_or_default();
            picture.nodes.push(Node { kind: Kind::Drop, title, detail });
            let to = picture.nodes.len() - 1;
            picture.edges.push(Edge { from: first + place, to, label: String::new() });
        }
    }
    picture
}

/// The ways from a stage: that of unlabelled packets, which has no name, and its outputs.
fn ways(spec: &NodeSpec) -> impl Iterator<Item = (&str, Target)> {
    let outputs = spec.outputs.iter().map(|(label, target)| (label.as_str(), *target));
    [("", spec.next)].into_iter().chain(outputs)
}

/// The node of a port that packets leave by; made when it is first asked for.
fn output(picture: &mut Picture, plan: &Plan, outputs: &mut [Option<usize>], port: usize) -> usize {
    *outputs[port].get_or_insert_with(|| {
        picture.nodes.push(port_node(plan, port, Kind::Output));
        picture.nodes.len() - 1
    })
}

fn port_node(plan: &Plan, port: usize, kind: Kind) -> Node {
    let config = &plan.ports[port].config;
    let detail = match &config.link {
        Some(link) => link.kind().to_owned(),
        None => config.device.clone(),
    };
    Node { kind, title: config.name.clone(), detail }
}

/// What is dropped, and which stage sees it.
fn drops(node: &Node) -> String {
    match (node.title.as_str(), node.detail.as_str()) {
        ("", "") => "drop".to_owned(),
        (outputs, "") => format!("drop: {outputs}"),
        ("", watcher) => format!("drop → {watcher}"),
        (outputs, watcher) => format!("drop: {outputs} → {watcher}"),
    }
}
