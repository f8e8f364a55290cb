//! The properties of a worker and its stages.

use std::collections::{BTreeMap, BTreeSet};

use dataplane_core::mem::{PageKind, Reason};
use dataplane_core::pipeline::{NodeSpec, Program, StageInfo, Target};
use dataplane_core::units::CoreId;

/// The properties of a worker. While the worker runs, only a change of the pipeline replaces these properties.
pub(crate) struct WorkerInfo {
    pub(crate) core: CoreId,
    pub(crate) slots: u32,
    pub(crate) pages: PageKind,
    /// The properties of the completion queues, by port.
    pub(crate) granted: BTreeMap<String, String>,
    pub(crate) ports: Vec<String>,
    pub(crate) stages_info: Vec<ReportedStage>,
    /// The digest of the config that the worker uses.
    pub(crate) digest: String,
}

impl WorkerInfo {
    /// Returns the properties of a worker without ports and stages.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            core: CoreId(0),
            slots: 0,
            pages: PageKind::Normal,
            granted: BTreeMap::new(),
            ports: Vec::new(),
            stages_info: Vec::new(),
            digest: String::new(),
        }
    }

    /// Returns whether the pipeline sends packets on each port.
    pub(crate) fn sends(&self) -> Vec<bool> {
        let targets = || self.stages_info.iter().flat_map(|stage| stage.targets());
        (0..self.ports.len())
            .map(|port| targets().any(|target| matches!(target, Target::Egress) || target == Target::Port(port)))
            .collect()
    }

    /// Returns the names of the stages.
    pub(crate) fn stage_names(&self) -> Vec<String> {
        self.stages_info.iter().map(|stage| stage.name.clone()).collect()
    }
}

/// The properties of a stage that the report needs. The runtime copies these properties before the program moves into
/// the worker.
pub(crate) struct ReportedStage {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) outputs: Vec<(String, Target)>,
    pub(crate) reasons: Vec<&'static str>,
    /// The target of packets that leave by no output.
    pub(crate) next: Target,
    pub(crate) info: StageInfo,
}

impl ReportedStage {
    /// Returns the targets of packets that leave the stage.
    fn targets(&self) -> impl Iterator<Item = Target> {
        self.outputs.iter().map(|(_, target)| *target).chain([self.next])
    }

    /// Returns the drop reasons of the stage, as far as they are known before the first drop.
    pub(crate) fn drop_reasons(&self) -> BTreeSet<String> {
        let own = self.reasons.iter().map(|name| (*name).to_owned());
        let outputs = self.outputs.iter().filter(|(_, target)| *target == Target::Drop);
        let next = match self.next {
            Target::Drop => Some(Reason::Requested),
            Target::Egress => Some(Reason::NoPort),
            Target::Node(_) | Target::Port(_) => None,
        };
        let built_in = self.info.drops.iter().copied().chain(next).map(|reason| reason.name(&[]));
        own.chain(built_in).chain(outputs.map(|(name, _)| name.clone())).collect()
    }

    pub(crate) fn of(program: &Program) -> Vec<Self> {
        let shape = |node: &NodeSpec| Self {
            name: node.name.clone(),
            kind: node.kind.clone(),
            outputs: node.outputs.clone(),
            reasons: node.reasons.clone(),
            next: node.next,
            info: node.info,
        };
        program.nodes().iter().map(shape).collect()
    }
}
