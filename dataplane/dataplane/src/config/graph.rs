//! Connects the stages: resolves the names in `next`, `outputs` and `drops`. Reports loops, unreachable stages, and
//! stages whose packets have no target.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;

use super::diagnostics::{Diagnostics, Mistake};
use super::load::{Loaded, Name, StageEntry, StageHead};
use super::plan::{Catalog, NodePlan, StageShape, Target};
use super::source::Span;
use dataplane_core::error::shorten;
use dataplane_core::parse_errors::{NAME_HELP, has_control_character, suggest};
use dataplane_core::pipeline::OnPanic;

/// The target name that drops packets, in `outputs` and `next`.
const DROP: &str = "drop";
/// The maximum number of reported loops. This bounds the time of the check.
const LOOPS: usize = 100;

/// The stages of a plan.
pub(super) struct Graph {
    pub(super) nodes: Vec<NodePlan>,
    pub(super) order: Vec<usize>,
}

/// An edge of the graph, and the span in the config that defines it.
struct StageEdge {
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
    edges: Vec<StageEdge>,
    /// Pairs of stages. The second stage observes the drops of the first stage.
    watches: Vec<(usize, usize)>,
    /// Whether every stage could be read. If a stage could not be read, an error about an unknown name or an
    /// unreachable stage could be wrong, so such errors are not reported.
    whole: bool,
}

impl Wiring<'_, '_> {
    fn error(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Mistake::error(span, message).help(help));
    }

    /// Returns `true` if a mistake about an unknown name would be reported and shown. In a large config, the search for
    /// a similar name is slow, so the caller skips the search if the result is `false`.
    fn reports_unknown_names(&self) -> bool {
        self.whole && !self.diagnostics.is_full()
    }

    fn sections(&mut self) {
        if !self.whole {
            return;
        }
        match self.loaded.pipeline.clone() {
            None => self.error(
                0..0,
                "the config has no pipeline",
                "add [pipeline] with input = [\"…\"], and a [[pipeline.stage]]",
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
                self.error(name.span(), "the name of the stage is empty", "write name = \"…\", or remove the key");
            } else if has_control_character(name.get_ref()) {
                self.error(name.span(), "the name of the stage contains a control character", NAME_HELP);
                // Register the name, so that references to this stage are not reported as unknown names.
                self.names.insert(name.get_ref(), index);
            } else if let Some(&first) = self.names.get(name.get_ref().as_str()) {
                let line = loaded.source().position(&loaded.stages[first].span).line;
                let message = format!("two stages have the name `{}`", shorten(name.get_ref()));
                self.error(
                    name.span(),
                    message,
                    format!("the other stage is on line {line}; rename one of the two stages"),
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
            drop_observer: None,
            on_panic: OnPanic::Stop,
            parameters: stage.table(),
        };
        let Some(head) = &stage.head else { return node };
        node.name.clone_from(head.name().get_ref());
        node.kind.clone_from(head.kind.get_ref());
        node.on_panic = head.on_panic;
        let shape = self.catalog.shape(&node.kind);
        if shape.is_none() && !self.diagnostics.is_full() {
            let kinds: Vec<&str> = self.kinds.iter().map(String::as_str).collect();
            let help = suggest("stages", &node.kind, &kinds);
            self.error(head.kind.span(), format!("unknown stage kind `{}`", shorten(&node.kind)), help);
        }
        node.next = self.next(index, stage, head, shape.as_ref());
        node.outputs = self.outputs(index, head, shape.as_ref());
        node.drop_observer = head.drops.as_ref().and_then(|watcher| self.watcher(index, watcher));
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
                let message =
                    format!("`{}` has no next stage, because packets end at this stage", head.name().get_ref());
                self.error(next.span(), message, "remove `next`");
                return None;
            }
            return self.target(index, next);
        }
        if terminal {
            return None;
        }
        let following = index + 1;
        if following < self.loaded.stages.len() {
            self.edges.push(StageEdge { from: index, to: following, span: stage.span.clone() });
            return Some(Target::Stage(following));
        }
        // Report this only for known kinds of stages. A stage of an unknown kind may end its packets.
        if shape.is_some() && self.whole {
            let message = format!("packets of the last stage `{}` have no target", head.name().get_ref());
            self.error(stage.span.clone(), message, "add a `tx` or `drop` stage after this stage, or set next = \"…\"");
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
                None if self.diagnostics.is_full() => {}
                None => {
                    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
                    let help = suggest("outputs", label.get_ref(), &labels);
                    let kind = head.kind.get_ref();
                    self.error(
                        label.span(),
                        format!("the stage `{kind}` has no output `{}`", shorten(label.get_ref())),
                        help,
                    );
                }
            }
        }
        outputs
    }

    /// Resolves the name of the stage that observes the drops of stage `from`. Packets do not continue from the
    /// observing stage, so this relation is not an edge and cannot form a loop.
    fn watcher(&mut self, from: usize, name: &Name) -> Option<usize> {
        match self.names.get(name.get_ref().as_str()) {
            Some(&to) if to == from => {
                let message = format!("`{}` cannot observe its own drops", name.get_ref());
                self.error(name.span(), message, "name another stage, such as a `capture`");
                None
            }
            Some(&to) => {
                self.watches.push((from, to));
                Some(to)
            }
            None => {
                if self.reports_unknown_names() {
                    let names: Vec<&str> = self.names.keys().copied().collect();
                    let help = suggest("stages of this pipeline", name.get_ref(), &names);
                    self.error(name.span(), format!("no stage has the name `{}`", shorten(name.get_ref())), help);
                }
                None
            }
        }
    }

    fn target(&mut self, from: usize, name: &Name) -> Option<Target> {
        if let Some(&to) = self.names.get(name.get_ref().as_str()) {
            self.edges.push(StageEdge { from, to, span: name.span() });
            return Some(Target::Stage(to));
        }
        if name.get_ref() == DROP {
            return Some(Target::Drop);
        }
        if self.reports_unknown_names() {
            let is_name =
                |port: &super::load::PortEntry| port.name.as_ref().is_some_and(|port| port.get_ref() == name.get_ref());
            let help = if self.loaded.ports.iter().any(is_name) {
                format!(
                    "`{}` is a port, not a stage: use a `tx` stage with port = \"{}\"",
                    name.get_ref(),
                    name.get_ref()
                )
            } else {
                let names: Vec<&str> = self.names.keys().copied().chain([DROP]).collect();
                suggest("stages of this pipeline", name.get_ref(), &names)
            };
            self.error(name.span(), format!("no stage has the name `{}`", shorten(name.get_ref())), help);
        }
        None
    }

    /// Returns a topological order of the stages, which follows the config order where possible. Reports each loop.
    /// After each loop, removes one edge of the loop and searches again.
    fn order(&mut self, nodes: &[NodePlan]) -> Vec<usize> {
        for _ in 0..LOOPS {
            let (order, left) = self.sort(nodes.len());
            let Some(round) = self.find_loop(&left) else { return order };
            let names: Vec<&str> = round.iter().chain(round.first()).map(|&at| nodes[at].name.as_str()).collect();
            let message = format!("the stages form a loop: {}", names.join(" → "));
            // Report the edge that goes back: from a stage to the same or an earlier stage in the config.
            let edges = round.iter().zip(round.iter().cycle().skip(1));
            let Some((&from, &to)) = edges.max_by_key(|(from, to)| (from >= to, **from)) else { return order };
            let Some(span) =
                self.edges.iter().find(|edge| edge.from == from && edge.to == to).map(|edge| edge.span.clone())
            else {
                return order;
            };
            let help = format!(
                "packets could loop indefinitely: change the target of `{}` to another stage or to `drop`",
                nodes[from].name
            );
            self.error(span, message, help);
            self.edges.retain(|edge| edge.from != from || edge.to != to);
        }
        self.sort(nodes.len()).0
    }

    /// Sorts the stages topologically with Kahn's algorithm. Also returns the stages that cannot be sorted because of
    /// loops.
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

    /// Finds a loop among the stages that `sort` could not sort. Each stage in `left` has a predecessor in `left`, so a
    /// walk from predecessor to predecessor ends in a loop.
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

    /// Reports stages that no packet can reach.
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
            let help = "name the stage in `outputs` or `next` of a reachable stage, or remove the stage";
            self.error(node.span.clone(), format!("no packet can reach the stage `{}`", node.name), help);
        }
    }
}

impl StageEntry<'_> {
    /// Returns the parameters as plain values. Returns an empty table if [`toml::Table`] cannot hold a value, such as
    /// an integer of more than 64 bits. The program reports such a value later, when it reads the parameters of the
    /// stage.
    fn table(&self) -> toml::Table {
        toml::Table::deserialize(toml::de::Deserializer::from(self.parameters.clone())).unwrap_or_default()
    }
}
