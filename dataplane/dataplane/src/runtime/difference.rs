//! The difference between two checked configs, as a list of operations.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::config::{NodePlan, Plan, PortPlan, Target};
use dataplane_control::change::{Operation, OperationKind};
use dataplane_core::pipeline::{Registry, StageState};

/// Returns the operations that change the plan `before` into the plan `after`. `renewed` has the stages that the program
/// prepares again although their parameters stay the same, with the reasons.
pub(crate) fn operations(
    before: &Plan,
    after: &Plan,
    registry: &Registry,
    renewed: &BTreeMap<String, String>,
) -> Vec<Operation> {
    let mut operations = fixed_operations(before, after);
    let is_same = |one: &NodePlan, other: &NodePlan| (&one.name, &one.kind) == (&other.name, &other.kind);
    for node in before.nodes.iter().filter(|node| !after.nodes.iter().any(|later| is_same(node, later))) {
        let why = "each worker switches to its new graph between two bursts";
        let state = match state_of(registry, &node.kind) {
            StageState::Stateless => "it has no state",
            _ => "its state is lost, and packets that it holds are dropped as `stopped`",
        };
        operations.push(hitless(OperationKind::RemoveStage, &node.name, Vec::new(), why, Some(state.to_owned())));
    }
    for &index in &after.order {
        let Some(node) = after.nodes.get(index) else { continue };
        let Some(earlier) = before.nodes.iter().find(|earlier| is_same(earlier, node)) else {
            let why = "the program prepares the stage before the workers switch to their new graphs";
            operations.push(hitless(OperationKind::AddStage, &node.name, Vec::new(), why, None));
            continue;
        };
        let keys = changed_keys(&to_json(&earlier.parameters), &to_json(&node.parameters));
        let state = match state_of(registry, &node.kind) {
            StageState::Kept(state) => format!("the stage keeps its counters and {state}"),
            StageState::Stateless => "the stage keeps its counters, and has no other state".to_owned(),
            StageState::Lost => "the stage keeps the counters of its packets, and loses its other state".to_owned(),
        };
        if !keys.is_empty() {
            let why = "the program prepares the new stage before the workers switch to their new graphs";
            operations.push(hitless(OperationKind::ReplaceStage, &node.name, keys, why, Some(state)));
        } else if let Some(why) = renewed.get(&node.name) {
            operations.push(hitless(OperationKind::RenewStage, &node.name, Vec::new(), why, Some(state)));
        }
        let keys = changed_targets(before, earlier, after, node);
        if !keys.is_empty() {
            let why = "each worker switches to its new graph between two bursts";
            let state = Some("keeps its state".to_owned());
            operations.push(hitless(OperationKind::ConnectStage, &node.name, keys, why, state));
        }
    }
    let entry = |plan: &Plan| plan.nodes.first().map(|node| node.name.clone()).unwrap_or_default();
    if entry(before) != entry(after) {
        let why = "each worker switches to its new graph between two bursts";
        operations.push(hitless(OperationKind::ChangeEntry, &entry(after), Vec::new(), why, None));
    }
    operations
}

/// Returns the operations that need a restart: changes of ports, workers and `[runtime]`.
pub(crate) fn fixed_operations(before: &Plan, after: &Plan) -> Vec<Operation> {
    let mut operations = Vec::new();
    let runtime = |plan: &Plan| {
        let mut keys = to_json(&plan.runtime);
        keys.remove("workers");
        keys
    };
    for key in changed_keys(&runtime(before), &runtime(after)) {
        let why = "the key applies at the start of the program";
        operations.push(restart(OperationKind::ChangeRuntime, &key, Vec::new(), why));
    }
    if before.cores != after.cores {
        let why = "workers and their memory are created at the start of the program";
        operations.push(restart(OperationKind::RestartWorkers, "workers", Vec::new(), why));
    } else if before.buffers != after.buffers {
        let why = "packet memory is allocated at the start of the program";
        operations.push(restart(OperationKind::RestartWorkers, "buffers", Vec::new(), why));
    }
    let find = |plan: &Plan, name: &str| plan.ports.iter().find(|port| port.config.name == name).cloned();
    for port in &before.ports {
        if find(after, &port.config.name).is_none() {
            let why = "the devices are opened at the start of the program";
            operations.push(restart(OperationKind::RemovePort, &port.config.name, Vec::new(), why));
        }
    }
    for port in &after.ports {
        let why = "the devices are opened at the start of the program";
        match find(before, &port.config.name) {
            None => operations.push(restart(OperationKind::AddPort, &port.config.name, Vec::new(), why)),
            Some(earlier) => {
                let keys = changed_keys(&port_keys(&earlier), &port_keys(port));
                if !keys.is_empty() {
                    operations.push(restart(OperationKind::ChangePort, &port.config.name, keys, why));
                }
            }
        }
    }
    let names = |plan: &Plan| plan.ports.iter().map(|port| port.config.name.clone()).collect::<Vec<_>>();
    if operations.is_empty() && names(before) != names(after) {
        let why = "the order of the ports gives their numbers";
        operations.push(restart(OperationKind::ChangePort, &names(after).join(", "), Vec::new(), why));
    }
    operations
}

/// Returns the keys of a port, and whether the port is in `input` of `[pipeline]`.
fn port_keys(port: &PortPlan) -> Map<String, Value> {
    let mut keys = to_json(port);
    // These values come from the stages, from the host, or from other ports.
    ["requests", "verifiers", "node", "peer"].iter().for_each(|key| _ = keys.remove(*key));
    keys
}

fn to_json(value: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(keys)) => keys,
        _ => Map::new(),
    }
}

fn changed_keys(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<String> {
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    keys.into_iter().filter(|key| before.get(*key) != after.get(*key)).cloned().collect()
}

/// Returns the keys of a stage that belong to the graph and that change: `next`, `drops`, `on_panic` and outputs.
fn changed_targets(plan: &Plan, before: &NodePlan, later: &Plan, after: &NodePlan) -> Vec<String> {
    let name = |plan: &Plan, target: Option<Target>| match target {
        Some(Target::Stage(at)) => plan.nodes.get(at).map(|node| node.name.clone()),
        Some(Target::Drop) => Some("drop".to_owned()),
        None => None,
    };
    let mut changed = Vec::new();
    if name(plan, before.next) != name(later, after.next) {
        changed.push("next".to_owned());
    }
    for (output, target) in &after.outputs {
        let earlier = before.outputs.iter().find(|(known, _)| known == output).map(|(_, target)| *target);
        if name(plan, earlier) != name(later, Some(*target)) {
            changed.push(format!("outputs.{output}"));
        }
    }
    let watcher = |plan: &Plan, drops: Option<usize>| name(plan, drops.map(Target::Stage));
    if watcher(plan, before.drops) != watcher(later, after.drops) {
        changed.push("drops".to_owned());
    }
    if before.on_panic != after.on_panic {
        changed.push("on_panic".to_owned());
    }
    changed
}

fn state_of(registry: &Registry, kind: &str) -> StageState {
    registry.get(kind).map_or(StageState::Lost, |kind| kind.info.state)
}

fn hitless(operation: OperationKind, name: &str, keys: Vec<String>, why: &str, state: Option<String>) -> Operation {
    Operation { operation, name: name.to_owned(), keys, hitless: true, why: why.to_owned(), state }
}

fn restart(operation: OperationKind, name: &str, keys: Vec<String>, why: &str) -> Operation {
    Operation { hitless: false, ..hitless(operation, name, keys, why, None) }
}

/// Returns the operation for a port that the running program cannot change.
pub(crate) fn port_operation(port: &str, keys: Vec<String>, why: &str) -> Operation {
    restart(OperationKind::ChangePort, port, keys, why)
}

/// Returns the operation for a stage that the running program cannot replace. `hint` is the end of the reason:
/// how to avoid the restart.
pub(crate) fn stage_restart(stage: &str, why: &str, hint: &str) -> Operation {
    restart(OperationKind::ReplaceStage, stage, Vec::new(), &format!("{why}; restart the program{hint}"))
}
