//! A graph before it has memory: stages, where their packets go, and the check that every stage knows what it needs.

use crate::mem::BATCH;
use crate::pipeline::{Exit, Facts, Problem, Stage};

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the stage at this place.
    Node(usize),
    /// Out by this port.
    Port(usize),
    /// Out by the port that each packet names.
    Egress,
    /// Nowhere: a counted drop.
    Drop,
}

/// A stage of a program.
pub struct NodeSpec {
    /// Its name in the config.
    pub name: String,
    /// The name of its kind.
    pub kind: String,
    /// The stage.
    pub stage: Box<dyn Stage>,
    /// Where unlabelled packets go, unless [`Stage::exit`] says so.
    pub next: Target,
    /// Its outputs by index: name and target.
    pub outputs: Vec<(String, Target)>,
    /// Its own reasons to drop a packet, by index.
    pub reasons: Vec<&'static str>,
    /// The place of the stage that sees what it drops: any but its own, on a packet's way or not.
    pub drops: Option<usize>,
}

/// Stages in the order in which packets meet them. The first gets all packets that are received.
pub struct Program {
    pub(super) nodes: Vec<NodeSpec>,
}

impl Program {
    /// Takes stages in an order in which every target is later than its source.
    ///
    /// # Panics
    /// A target is not later, no other stage is where `drops` points, or there is no stage: the plan that the program was
    /// made from is wrong.
    pub fn new(mut nodes: Vec<NodeSpec>) -> Self {
        assert!(!nodes.is_empty(), "a program has at least one stage");
        let stages = nodes.len();
        for (place, node) in nodes.iter_mut().enumerate() {
            node.next = match node.stage.exit() {
                Exit::Next => node.next,
                Exit::Port(port) => Target::Port(usize::from(port)),
                Exit::Egress => Target::Egress,
                Exit::Drop => Target::Drop,
            };
            for target in node.targets() {
                assert!(!matches!(target, Target::Node(to) if to <= place), "stages are in topological order");
            }
            let watched = node.drops.is_none_or(|watcher| watcher < stages && watcher != place);
            assert!(watched, "drops are seen by another stage");
        }
        Self { nodes }
    }

    /// The stages.
    pub fn nodes(&self) -> &[NodeSpec] {
        &self.nodes
    }

    /// How many packets there may be of one received, by copies and by what stages make of it. Counting ends above what a
    /// batch holds.
    pub fn multiplicity(&self) -> usize {
        let each = self.nodes.iter().map(|node| 1 + node.stage.makes() + usize::from(node.stage.copies()));
        each.fold(1, |most: usize, one| most.saturating_mul(one).min(2 * BATCH))
    }

    /// Checks that every stage gets what it needs to know, whichever way a packet comes. `source` is what the device
    /// tells of every packet. Returns the place of each stage that does not, and why.
    pub fn check(&self, source: Facts) -> Vec<(usize, Problem)> {
        // For every stage what is known on all ways to it, and one way on which no more than that is known.
        let mut known: Vec<Option<(Facts, Vec<usize>)>> = vec![None; self.nodes.len()];
        known[0] = Some((source, Vec::new()));
        let mut problems = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let Some((facts, way)) = known[place].clone() else { continue };
            let missing = node.stage.needs() - facts;
            if !missing.is_empty() {
                problems.push((place, self.missing(place, missing, &way)));
            }
            let left = facts - node.stage.spoils();
            for (target, sets) in node.ways() {
                let Target::Node(to) = target else { continue };
                let after = left | sets;
                let way = || way.iter().copied().chain([place]).collect();
                match &mut known[to] {
                    Some((facts, _)) if facts.difference(after).is_empty() => {}
                    Some((facts, from)) => {
                        *facts &= after;
                        *from = way();
                    }
                    unknown => *unknown = Some((after, way())),
                }
            }
        }
        problems
    }

    fn missing(&self, place: usize, missing: Facts, way: &[usize]) -> Problem {
        let way: Vec<&str> = way.iter().chain([&place]).map(|&at| self.nodes[at].name.as_str()).collect();
        let problem =
            Problem::at("", format!("needs {}, which nothing sets on the way {}", missing.describe(), way.join(" → ")));
        let remedy = if missing.contains(Facts::HEADERS) {
            "put a stage with use = \"parse\" before it"
        } else if missing.contains(Facts::STAMP) {
            "set timestamps = \"device\" in [runtime]"
        } else if missing.intersects(Facts::EGRESS | Facts::NEXT_HOP) {
            "put a stage with use = \"route\" before it, or name the port"
        } else if missing.contains(Facts::FLOW_HASH) {
            "put a stage with use = \"parse\" before it; a stage of your own says in `needs` that it may need the hash before it is prepared"
        } else {
            "put a stage that sets it before it"
        };
        problem.help(remedy)
    }
}

impl NodeSpec {
    /// Everywhere that packets may go from here.
    fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.ways().map(|(target, _)| target)
    }

    /// The same, with what the stage lets know of the packets that go there.
    fn ways(&self) -> impl Iterator<Item = (Target, Facts)> + '_ {
        let outputs = self.outputs.iter().enumerate();
        let outputs = outputs.map(|(output, (_, target))| (*target, self.stage.sets_on(output)));
        outputs.chain([(self.next, self.stage.sets())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Batch;
    use crate::pipeline::Ctx;

    /// Has one output, and chooses a port on it alone.
    struct Answers;

    impl Stage for Answers {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

        fn sets_on(&self, _output: usize) -> Facts {
            Facts::EGRESS
        }
    }

    struct Sends;

    impl Stage for Sends {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

        fn needs(&self) -> Facts {
            Facts::EGRESS
        }

        fn exit(&self) -> Exit {
            Exit::Egress
        }
    }

    fn node(name: &str, stage: impl Stage + 'static, next: Target, output: Option<Target>) -> NodeSpec {
        let outputs = output.into_iter().map(|target| ("reply".to_owned(), target)).collect();
        NodeSpec {
            name: name.to_owned(),
            kind: name.to_owned(),
            stage: Box::new(stage),
            next,
            outputs,
            reasons: Vec::new(),
            drops: None,
        }
    }

    fn check(next: Target, reply: Target) -> Vec<(usize, Problem)> {
        let nodes = vec![node("answers", Answers, next, Some(reply)), node("sends", Sends, Target::Drop, None)];
        Program::new(nodes).check(Facts::empty())
    }

    #[test]
    fn what_is_known_on_an_output_is_not_known_of_all() {
        assert_eq!(check(Target::Drop, Target::Node(1)), []);
        for reply in [Target::Drop, Target::Node(1)] {
            let problems = check(Target::Node(1), reply);
            let [(1, problem)] = &problems[..] else { panic!("{problems:?}") };
            let message = "needs an egress port, which nothing sets on the way answers → sends";
            assert_eq!(problem.message, message);
        }
    }
}
