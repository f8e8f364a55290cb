//! A program: the stages of a graph and their targets, before packet memory exists. [`Program::check`] verifies that
//! every stage gets the facts (known properties of packets) that it needs.

use crate::mem::{BATCH, Batch, RecvFields};
use crate::pipeline::{Contract, Ctx, DefaultTarget, Facts, OnPanic, Problem, Stage, StageInfo};

/// The destination of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the stage with this index.
    Node(usize),
    /// To this port, for sending.
    Port(usize),
    /// To the port in each packet's `Meta::egress`, for sending.
    Egress,
    /// The packet is dropped and counted.
    Drop,
}

/// A stage of a [`Program`].
pub struct NodeSpec {
    /// The name of the stage in the config.
    pub name: String,
    /// The name of the kind of stage.
    pub kind: String,
    /// The stage.
    pub stage: Box<dyn Stage>,
    /// Default target of the packets of the stage. If [`Contract::exit`](super::Contract::exit) is not
    /// [`DefaultTarget::Next`], the exit overrides this target.
    pub next: Target,
    /// Name and target of each output, by index.
    pub outputs: Vec<(String, Target)>,
    /// The drop reasons that the stage defines, by index.
    pub reasons: Vec<&'static str>,
    /// The properties of the kind of stage.
    pub info: StageInfo,
    /// What happens if the stage panics.
    pub on_panic: OnPanic,
    /// The index of the stage that observes the drops of this stage. The observing stage can be earlier or later than
    /// this stage.
    pub drop_observer: Option<usize>,
}

/// A placeholder with the properties of a running stage. If the stage continues after a change, the new [`Program`]
/// contains the placeholder until [`Graph::take_over`](super::Graph::take_over) moves the stage itself.
#[derive(Clone, Copy, Debug)]
pub struct StandIn {
    contract: Contract,
}

impl StandIn {
    /// Creates a placeholder with the contract of `stage`. The stage must already be prepared.
    pub fn of(stage: &dyn Stage) -> Self {
        Self { contract: stage.contract() }
    }
}

impl Stage for StandIn {
    fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

    fn contract(&self) -> Contract {
        self.contract
    }
}

/// Stages in the order in which packets pass them. The first stage gets all received packets.
pub struct Program {
    pub(super) nodes: Vec<NodeSpec>,
}

impl Program {
    /// Creates a program from stages in topological order: every target is later than its source.
    ///
    /// # Panics
    /// Panics if a target is not later than its source, if `drop_observer` is not the index of another stage, or if
    /// there is no stage. Each of these cases is an error in the code that planned the program.
    pub fn new(mut nodes: Vec<NodeSpec>) -> Self {
        assert!(!nodes.is_empty(), "a program has at least one stage");
        let stages = nodes.len();
        for (place, node) in nodes.iter_mut().enumerate() {
            node.next = match node.stage.contract().exit {
                DefaultTarget::Next => node.next,
                DefaultTarget::Port(port) => Target::Port(usize::from(port)),
                DefaultTarget::Egress => Target::Egress,
                DefaultTarget::Drop => Target::Drop,
            };
            for target in node.targets() {
                assert!(!matches!(target, Target::Node(to) if to <= place), "stages are in topological order");
            }
            let watched = node.drop_observer.is_none_or(|watcher| watcher < stages && watcher != place);
            assert!(watched, "the observing stage must exist, and a stage cannot observe its own drops");
        }
        Self { nodes }
    }

    /// Returns whether a stage can observe the drops of other stages.
    pub fn observes_drops(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.stage.contract().drop_observer.is_some())
    }

    /// Returns the stages.
    pub fn nodes(&self) -> &[NodeSpec] {
        &self.nodes
    }

    /// Returns a placeholder for each stage.
    pub fn stand_ins(&self) -> Vec<StandIn> {
        self.nodes.iter().map(|node| StandIn::of(&*node.stage)).collect()
    }

    /// Returns the maximum number of packets that one received packet can become. Stages increase this number by
    /// copying and adding packets. The result is at most twice the size of a batch.
    pub fn max_packets_per_received(&self) -> usize {
        let each =
            self.nodes.iter().map(|node| 1 + node.stage.contract().splits + usize::from(node.stage.contract().copies));
        each.fold(1, |most: usize, one| most.saturating_mul(one).min(2 * BATCH))
    }

    /// Checks that every stage gets the facts that it needs, on every path of a packet. `source` contains the facts
    /// that the device sets on every packet. Returns the index and the problem of each stage that lacks a fact.
    pub fn check(&self, source: Facts) -> Vec<(usize, Problem)> {
        self.check_without(source, None)
    }

    /// Returns, for each stage with [`OnPanic::Bypass`], the index of a later stage that lacks a fact if the stage is
    /// bypassed, and the problem of the later stage. The program itself must have passed [`Program::check`].
    pub fn check_bypasses(&self, source: Facts) -> Vec<(usize, usize, Problem)> {
        let bypassed = self.nodes.iter().enumerate().filter(|(_, node)| node.on_panic == OnPanic::Bypass);
        let problem = |(place, _): (usize, &NodeSpec)| {
            let (later, problem) = self.check_without(source, Some(place)).into_iter().next()?;
            Some((place, later, problem))
        };
        bypassed.filter_map(problem).collect()
    }

    /// Checks the program. The stage `bypassed` sets no facts.
    fn check_without(&self, source: Facts, bypassed: Option<usize>) -> Vec<(usize, Problem)> {
        // For each stage: the facts that are known on all paths to the stage, and one path for the error message. This
        // path is the last visited path that removed a fact from the known facts, or the first path if no path removed
        // a fact.
        let mut known: Vec<Option<(Facts, Vec<usize>)>> = vec![None; self.nodes.len()];
        known[0] = Some((source, Vec::new()));
        let mut problems = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let Some((facts, path)) = known[place].clone() else { continue };
            let contract = node.stage.contract();
            let missing = contract.needs - facts;
            if !missing.is_empty() {
                problems.push((place, self.missing(place, missing, &path)));
            }
            let left = facts - contract.invalidates;
            for (target, sets) in node.targets_and_facts() {
                let Target::Node(to) = target else { continue };
                let after = if bypassed == Some(place) { left } else { left | sets };
                let path = || path.iter().copied().chain([place]).collect();
                match &mut known[to] {
                    Some((facts, _)) if facts.difference(after).is_empty() => {}
                    Some((facts, from)) => {
                        *facts &= after;
                        *from = path();
                    }
                    unknown => *unknown = Some((after, path())),
                }
            }
        }
        problems
    }

    /// Returns the names of the stages that read a part of the receive information.
    pub fn readers(&self, part: RecvFields) -> Vec<&str> {
        let reads = |node: &&NodeSpec| node.stage.contract().receives.intersects(part);
        self.nodes.iter().filter(reads).map(|node| node.name.as_str()).collect()
    }

    /// Returns the names of the stages that compute checksums.
    pub fn stages_with_checksums(&self) -> Vec<&str> {
        let computes = |node: &&NodeSpec| node.stage.contract().checksum_offload.is_some();
        self.nodes.iter().filter(computes).map(|node| node.name.as_str()).collect()
    }

    /// Returns, for each of `ports` ports, the state of the checksums of the packets that the port sends. `None` means
    /// that no stage sends packets to the port.
    pub fn sent_checksums(&self, ports: usize) -> Vec<Option<ChecksumState<'_>>> {
        use ChecksumState::{Computed, MayLack};
        // For each stage: the state of the checksums of the packets that enter the stage.
        let mut entering = vec![None; self.nodes.len()];
        entering[0] = Some(MayLack { changed_by: None });
        let mut sent = vec![None; ports];
        for (place, node) in self.nodes.iter().enumerate() {
            let contract = node.stage.contract();
            let state = match entering[place] {
                _ if contract.checksum_offload.is_some() => Computed,
                Some(lacking @ MayLack { .. }) => lacking,
                _ if contract.ignores_checksums => Computed,
                _ => MayLack { changed_by: Some(node.name.as_str()) },
            };
            for target in node.targets() {
                match target {
                    Target::Node(to) => state.join(&mut entering[to]),
                    Target::Port(port) => sent.iter_mut().skip(port).take(1).for_each(|sent| state.join(sent)),
                    Target::Egress => sent.iter_mut().for_each(|sent| state.join(sent)),
                    Target::Drop => {}
                }
            }
        }
        sent
    }

    /// Lets stages leave the computation of checksums to the devices of ports. `computes` has an entry for each port:
    /// whether the device of the port computes the checksums of sent packets. Returns the names of these stages.
    pub fn offload_checksums(&mut self, computes: &[bool]) -> Vec<String> {
        // For each stage: whether every packet that enters the stage is dropped or reaches a device that computes
        // checksums, and no stage on the way reads or changes the checksums of the packet.
        let mut leads_to_device = vec![false; self.nodes.len()];
        // For each stage: whether a packet that enters the stage can reach such a device.
        let mut reaches_device = vec![false; self.nodes.len()];
        let mut left = Vec::new();
        for place in (0..self.nodes.len()).rev() {
            let node = &self.nodes[place];
            let leads = |target| match target {
                Target::Node(to) => leads_to_device[to],
                Target::Port(port) => computes.get(port) == Some(&true),
                Target::Egress => computes.iter().all(|computes| *computes),
                Target::Drop => true,
            };
            let is_sent = |target| match target {
                Target::Node(to) => reaches_device[to],
                target => target != Target::Drop && leads(target),
            };
            reaches_device[place] = node.targets().any(is_sent);
            // A stage that observes the drops of this stage would see packets with wrong checksums.
            let all = node.targets().all(leads) && node.drop_observer.is_none();
            let contract = node.stage.contract();
            leads_to_device[place] = all && contract.ignores_checksums;
            if let (true, true, Some(offload)) = (all, reaches_device[place], contract.checksum_offload) {
                left.push(node.name.clone());
                offload(&mut *self.nodes[place].stage);
            }
        }
        left.reverse();
        left
    }

    fn missing(&self, place: usize, missing: Facts, path: &[usize]) -> Problem {
        let path: Vec<&str> = path.iter().chain([&place]).map(|&at| self.nodes[at].name.as_str()).collect();
        let problem = Problem::at(
            "",
            format!("needs {}, which packets on the path {} do not have", missing.describe(), path.join(" → ")),
        );
        let remedy = if missing.contains(Facts::HEADERS) {
            "put a stage with use = \"parse\" before this stage"
        } else if missing.contains(Facts::STAMP) {
            "set timestamps = \"device\" in [runtime]"
        } else if missing.intersects(Facts::EGRESS | Facts::NEXT_HOP) {
            "put a stage with use = \"route\" before this stage, or set `port`"
        } else if missing.contains(Facts::FLOW_HASH) {
            "put a stage with use = \"parse\" before this stage; if a custom stage may need the hash, its `contract` \
             must name FLOW_HASH even before `prepare` is called"
        } else {
            "put a stage that sets the missing fact before this stage"
        };
        problem.help(remedy)
    }
}

/// The state of the checksums of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChecksumState<'p> {
    /// A stage has computed the checksums of every packet. The device of a port may compute the checksums again, and
    /// the packets stay the same.
    Computed,
    /// Packets may lack computed checksums.
    MayLack {
        /// The name of a stage that may change packets after another stage has computed their checksums. `None` if
        /// there is no such stage.
        changed_by: Option<&'p str>,
    },
}

impl ChecksumState<'_> {
    /// Combines this state with `all`, the state of the packets of other stages. `all` is `None` if there are no other
    /// packets so far.
    fn join(self, all: &mut Option<Self>) {
        *all = match (*all, self) {
            (Some(Self::MayLack { changed_by: Some(_) }), _) | (Some(Self::MayLack { .. }), Self::Computed) => *all,
            _ => Some(self),
        };
    }
}

impl NodeSpec {
    /// Returns all possible targets of packets that leave this stage.
    fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.targets_and_facts().map(|(target, _)| target)
    }

    /// Returns all targets, each with the facts that the stage sets on packets that go there.
    fn targets_and_facts(&self) -> impl Iterator<Item = (Target, Facts)> + '_ {
        let contract = self.stage.contract();
        let outputs = self.outputs.iter().map(move |(_, target)| (*target, contract.sets_on_outputs));
        outputs.chain([(self.next, contract.sets)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Batch;
    use crate::pipeline::{ChecksumOffload, Contract, Ctx};

    /// A stage with one output that sets the egress port only on packets of this output.
    struct SetsEgressOnOutput;

    impl Stage for SetsEgressOnOutput {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

        fn contract(&self) -> Contract {
            Contract::new().sets_on_outputs(Facts::EGRESS)
        }
    }

    struct SendsByEgress;

    impl Stage for SendsByEgress {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

        fn contract(&self) -> Contract {
            Contract::new().needs(Facts::EGRESS).exit(DefaultTarget::Egress)
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
            info: StageInfo::new(),
            on_panic: OnPanic::Stop,
            drop_observer: None,
        }
    }

    fn check(next: Target, reply: Target) -> Vec<(usize, Problem)> {
        let nodes = vec![
            node("answers", SetsEgressOnOutput, next, Some(reply)),
            node("sends", SendsByEgress, Target::Drop, None),
        ];
        Program::new(nodes).check(Facts::empty())
    }

    /// A stage with this contract.
    struct Declares(Contract);

    impl Stage for Declares {
        fn process(&mut self, _ctx: &Ctx, _batch: &mut Batch) {}

        fn contract(&self) -> Contract {
            self.0
        }
    }

    impl ChecksumOffload for Declares {
        fn offload_checksums(&mut self) {}
    }

    #[test]
    fn stage_that_changes_packets_after_the_checksums_is_named() {
        use ChecksumState::{Computed, MayLack};
        let stages = |contracts: [Contract; 3], output| {
            let [first, second, third] = contracts.map(Declares);
            Program::new(vec![
                node("first", first, Target::Node(1), output),
                node("second", second, Target::Node(2), None),
                node("third", third, Target::Port(0), None),
            ])
        };
        let changes = Contract::new();
        let (computes, ignores) =
            (Contract::new().computes_checksums::<Declares>(), Contract::new().ignores_checksums());
        let lacking = Some(MayLack { changed_by: None });
        let [by_second, by_third] = ["second", "third"].map(|stage| Some(MayLack { changed_by: Some(stage) }));
        let computed = Some(Computed);
        for (contracts, output, expected) in [
            ([changes, computes, ignores], None, [computed, None]),
            ([computes, changes, computes], None, [computed, None]),
            ([changes, ignores, changes], None, [lacking, None]),
            ([changes, computes, changes], None, [by_third, None]),
            // Packets also leave the first stage by its output.
            ([computes, changes, ignores], Some(Target::Port(0)), [by_second, None]),
            ([computes, changes, ignores], Some(Target::Port(1)), [by_second, computed]),
            ([changes, computes, ignores], Some(Target::Port(0)), [lacking, None]),
            ([changes, computes, changes], Some(Target::Egress), [by_third, lacking]),
        ] {
            assert_eq!(stages(contracts, output).sent_checksums(2), expected, "{contracts:?}, {output:?}");
        }
    }

    #[test]
    fn fact_set_only_on_an_output_is_unknown_on_the_path_of_next() {
        assert_eq!(check(Target::Drop, Target::Node(1)), []);
        for reply in [Target::Drop, Target::Node(1)] {
            let problems = check(Target::Node(1), reply);
            let [(1, problem)] = &problems[..] else { panic!("{problems:?}") };
            let message = "needs an egress port, which packets on the path answers → sends do not have";
            assert_eq!(problem.message, message);
        }
    }
}
