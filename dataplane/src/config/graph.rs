//! Wires the stages: names to indices, loops, stages that nothing reaches, packets that go nowhere.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;

use super::diagnostics::{Diagnostics, Mistake};
use super::explain::suggest;
use super::load::{Loaded, Name, StageEntry, StageHead};
use super::plan::{Catalog, NodePlan, StageShape, Target};
use super::source::Span;

/// What stands for no stage in `outputs` and `next`.
const DROP: &str = "drop";
/// How many loops are shown.
const LOOPS: usize = 100;

/// The stages of a plan.
pub(super) struct Graph {
    pub(super) nodes: Vec<NodePlan>,
    pub(super) order: Vec<usize>,
}

/// A way that packets take, and where the config says so.
struct Edge {
    from: usize,
    to: usize,
    span: Span,
}

pub(super) fn resolve(loaded: &Loaded<'_>, catalog: &dyn Catalog, diagnostics: &mut Diagnostics) -> Graph {
    let mut wiring = Wiring {
        loaded,
        catalog,
        kinds: catalog.names(),
        diagnostics,
        names: HashMap::new(),
        edges: Vec::new(),
        watches: Vec::new(),
        whole: !loaded.damaged && loaded.stages.iter().all(|stage| stage.head.is_some()),
    };
    wiring.sections();
    wiring.names();
    let nodes: Vec<NodePlan> =
        loaded.stages.iter().enumerate().map(|(index, stage)| wiring.node(index, stage)).collect();
    let order = wiring.order(&nodes);
    wiring.reach(&nodes);
    Graph { nodes, order }
}

struct Wiring<'a, 's> {
    loaded: &'a Loaded<'s>,
    catalog: &'a dyn Catalog,
    kinds: Vec<String>,
    diagnostics: &'a mut Diagnostics,
    names: HashMap<&'a str, usize>,
    edges: Vec<Edge>,
    /// Stages that are shown what another drops: from, to.
    watches: Vec<(usize, usize)>,
    /// Whether every stage could be read: else what seems unknown or out of reach may not be.
    whole: bool,
}

impl Wiring<'_, '_> {
    fn error(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Mistake::error(span, message).help(help));
    }

    fn sections(&mut self) {
        if !self.whole {
            return;
        }
        match self.loaded.pipeline.clone() {
            None => self.error(
                0..0,
                "the config has no pipeline",
                "add [pipeline] with input = [\"…\"] and a [[pipeline.stage]]",
            ),
            Some(span) if self.loaded.stages.is_empty() => {
                self.error(span, "the pipeline has no stage", "add a [[pipeline.stage]] with use = \"…\"");
            }
            Some(_) => {}
        }
    }

    fn names(&mut self) {
        let loaded = self.loaded;
        for (index, head) in loaded.stages.iter().enumerate().filter_map(|(at, stage)| Some((at, stage.head.as_ref()?)))
        {
            let name = head.name();
            if name.get_ref().is_empty() {
                self.error(name.span(), "a stage needs a name", "write name = \"…\", or take the key out");
            } else if let Some(&first) = self.names.get(name.get_ref().as_str()) {
                let line = loaded.source().position(&loaded.stages[first].span).line;
                let message = format!("two stages have the name `{}`", name.get_ref());
                self.error(
                    name.span(),
                    message,
                    format!("the other one is on line {line}: give this one another `name`"),
                );
            } else {
                self.names.insert(name.get_ref(), index);
            }
        }
    }

    fn node(&mut self, index: usize, stage: &StageEntry<'_>) -> NodePlan {
        let mut node = NodePlan {
            name: String::new(),
            kind: String::new(),
            span: stage.span.clone(),
            next: None,
            outputs: Vec::new(),
            drops: None,
            parameters: stage.table(),
        };
        let Some(head) = &stage.head else { return node };
        node.name.clone_from(head.name().get_ref());
        node.kind.clone_from(head.kind.get_ref());
        let shape = self.catalog.shape(&node.kind);
        if shape.is_none() {
            let kinds: Vec<&str> = self.kinds.iter().map(String::as_str).collect();
            let help = suggest("stages", &node.kind, &kinds);
            self.error(head.kind.span(), format!("there is no stage `{}`", node.kind), help);
        }
        node.next = self.next(index, stage, head, shape.as_ref());
        node.outputs = self.outputs(index, head, shape.as_ref());
        node.drops = head.drops.as_ref().and_then(|watcher| self.watcher(index, watcher));
        node
    }

    fn next(
        &mut self,
        index: usize,
        stage: &StageEntry<'_>,
        head: &StageHead,
        shape: Option<&StageShape>,
    ) -> Option<Target> {
        let terminal = shape.is_some_and(|shape| shape.terminal);
        if let Some(next) = &head.next {
            if terminal {
                let message = format!("packets end at `{}`, so nothing comes next", head.name().get_ref());
                self.error(next.span(), message, "take `next` out");
                return None;
            }
            return self.target(index, next);
        }
        if terminal {
            return None;
        }
        let following = index + 1;
        if following < self.loaded.stages.len() {
            self.edges.push(Edge { from: index, to: following, span: stage.span.clone() });
            return Some(Target::Stage(following));
        }
        // Of a stage of an unknown kind it isn't known whether packets end there.
        if shape.is_some() && self.whole {
            let message = format!("`{}` is the last stage, and its packets go nowhere", head.name().get_ref());
            self.error(stage.span.clone(), message, "add a `tx` or `drop` stage after it, or next = \"…\" to it");
        }
        None
    }

    fn outputs(&mut self, index: usize, head: &StageHead, shape: Option<&StageShape>) -> Vec<(String, Target)> {
        let labels = shape.map_or_else(Vec::new, |shape| shape.outputs.clone());
        let mut outputs: Vec<(String, Target)> = labels.iter().map(|label| (label.clone(), Target::Drop)).collect();
        for (label, to) in &head.outputs {
            let target = self.target(index, to).unwrap_or(Target::Drop);
            match outputs.iter_mut().find(|(known, _)| known == label.get_ref()) {
                Some(output) => output.1 = target,
                None if shape.is_none() => outputs.push((label.get_ref().clone(), target)),
                None => {
                    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                    let help = suggest("outputs", label.get_ref(), &labels);
                    let kind = head.kind.get_ref();
                    self.error(label.span(), format!("the stage `{kind}` has no output `{}`", label.get_ref()), help);
                }
            }
        }
        outputs
    }

    /// The stage that is shown what another drops. No packet goes that way, so it closes no loop.
    fn watcher(&mut self, from: usize, name: &Name) -> Option<usize> {
        match self.names.get(name.get_ref().as_str()) {
            Some(&to) if to == from => {
                let message = format!("`{}` cannot see its own drops", name.get_ref());
                self.error(name.span(), message, "name another stage, such as a `capture`");
                None
            }
            Some(&to) => {
                self.watches.push((from, to));
                Some(to)
            }
            None => {
                if self.whole {
                    let names: Vec<&str> = self.names.keys().copied().collect();
                    let help = suggest("stages of this pipeline", name.get_ref(), &names);
                    self.error(name.span(), format!("no stage has the name `{}`", name.get_ref()), help);
                }
                None
            }
        }
    }

    fn target(&mut self, from: usize, name: &Name) -> Option<Target> {
        if let Some(&to) = self.names.get(name.get_ref().as_str()) {
            self.edges.push(Edge { from, to, span: name.span() });
            return Some(Target::Stage(to));
        }
        if name.get_ref() == DROP {
            return Some(Target::Drop);
        }
        if self.whole {
            let is_name =
                |port: &super::load::PortEntry| port.name.as_ref().is_some_and(|port| port.get_ref() == name.get_ref());
            let help = if self.loaded.ports.iter().any(is_name) {
                format!("`{}` is a port: send to a `tx` stage with port = \"{}\"", name.get_ref(), name.get_ref())
            } else {
                let names: Vec<&str> = self.names.keys().copied().chain([DROP]).collect();
                suggest("stages of this pipeline", name.get_ref(), &names)
            };
            self.error(name.span(), format!("no stage has the name `{}`", name.get_ref()), help);
        }
        None
    }

    /// Every stage before those that it sends to, else as listed. Loops are mistakes, and are cut to go on.
    fn order(&mut self, nodes: &[NodePlan]) -> Vec<usize> {
        for _ in 0..LOOPS {
            let (order, left) = self.sort(nodes.len());
            let Some(round) = self.find_loop(&left) else { return order };
            let names: Vec<&str> = round.iter().chain(round.first()).map(|&at| nodes[at].name.as_str()).collect();
            let message = format!("the stages form a loop: {}", names.join(" → "));
            // The way back is what closes it: from the stage listed last to one before.
            let ways = round.iter().zip(round.iter().cycle().skip(1));
            let Some((&from, &to)) = ways.max_by_key(|(from, to)| (from >= to, **from)) else { return order };
            let Some(span) =
                self.edges.iter().find(|edge| edge.from == from && edge.to == to).map(|edge| edge.span.clone())
            else {
                return order;
            };
            let help = format!(
                "a packet could go round for ever: send it from `{}` to another stage or to `drop`",
                nodes[from].name
            );
            self.error(span, message, help);
            self.edges.retain(|edge| edge.from != from || edge.to != to);
        }
        self.sort(nodes.len()).0
    }

    /// Kahn's algorithm: the order, and the stages that are left because of loops.
    fn sort(&self, count: usize) -> (Vec<usize>, BTreeSet<usize>) {
        let mut waiting = vec![0usize; count];
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); count];
        for edge in &self.edges {
            waiting[edge.to] += 1;
            after[edge.from].push(edge.to);
        }
        let mut ready: BTreeSet<usize> = (0..count).filter(|&at| waiting[at] == 0).collect();
        let mut order = Vec::with_capacity(count);
        while let Some(at) = ready.pop_first() {
            order.push(at);
            for &to in &after[at] {
                waiting[to] -= 1;
                if waiting[to] == 0 {
                    ready.insert(to);
                }
            }
        }
        let left = (0..count).filter(|&at| waiting[at] > 0).collect();
        (order, left)
    }

    /// A loop among the stages left over, of which each has one before it that is left over too.
    fn find_loop(&self, left: &BTreeSet<usize>) -> Option<Vec<usize>> {
        let mut before: HashMap<usize, usize> = HashMap::new();
        for edge in self.edges.iter().filter(|edge| left.contains(&edge.from)) {
            before.entry(edge.to).or_insert(edge.from);
        }
        let mut at = *left.first()?;
        let mut seen: HashMap<usize, usize> = HashMap::new();
        let mut path = Vec::new();
        while !seen.contains_key(&at) {
            seen.insert(at, path.len());
            path.push(at);
            at = *before.get(&at)?;
        }
        let mut round = path.split_off(seen[&at]);
        round.reverse();
        let first = round.iter().enumerate().min_by_key(|(_, at)| **at)?.0;
        round.rotate_left(first);
        Some(round)
    }

    /// Stages that no packet comes to.
    fn reach(&mut self, nodes: &[NodePlan]) {
        if !self.whole {
            return;
        }
        let mut after: HashMap<usize, Vec<usize>> = HashMap::new();
        for edge in &self.edges {
            after.entry(edge.from).or_default().push(edge.to);
        }
        for &(from, to) in &self.watches {
            after.entry(from).or_default().push(to);
        }
        let mut reached = vec![false; nodes.len()];
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            if let Some(reached) = reached.get_mut(at)
                && !std::mem::replace(reached, true)
            {
                open.extend(after.get(&at).into_iter().flatten());
            }
        }
        for (node, _) in nodes.iter().zip(reached).filter(|(_, reached)| !reached) {
            let help = "send packets to it by `outputs` or `next` of a stage that is reached, or take it out";
            self.error(node.span.clone(), format!("no packet can reach the stage `{}`", node.name), help);
        }
    }
}

impl StageEntry<'_> {
    /// The parameters as plain values. A value that TOML's types cannot hold (an integer past 64 bits) leaves them empty;
    /// the stage that reads it says so.
    fn table(&self) -> toml::Table {
        toml::Table::deserialize(toml::de::Deserializer::from(self.parameters.clone())).unwrap_or_default()
    }
}
