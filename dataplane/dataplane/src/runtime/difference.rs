//! The difference between two checked configs, as a list of operations.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::config::{NodePlan, Plan, PortPlan, Qp, Target};
use dataplane_control::change::{Operation, OperationKind};
use dataplane_core::pipeline::{Registry, StageState};
use dataplane_soft::config::Buffers;

/// Returns the operations that change the plan `before` into the plan `after`. `renewed` has the stages that the
/// program prepares again although their parameters stay the same, with the reasons.
pub(crate) fn operations(
    before: &Plan,
    after: &Plan,
    registry: &Registry,
    renewed: &BTreeMap<String, String>,
) -> Vec<Operation> {
    let mut operations = fixed_operations(before, after);
    operations.extend(core_operations(before, after));
    if queue_refusals(before, after).is_empty() {
        operations.extend(worker_operations(before, after));
    }
    operations.extend(port_operations(before, after));
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

/// Returns the operations that need a restart: some changes of the number of workers, and changes of `[runtime]` and of
/// ports that stay. An added port also needs a restart in two cases:
///
/// - The packet buffers of the workers are too few or have another layout.
/// - A removed port uses the same interface, file or device, or listens on the same address.
pub(crate) fn fixed_operations(before: &Plan, after: &Plan) -> Vec<Operation> {
    let mut operations = Vec::new();
    let runtime = |plan: &Plan| {
        let mut keys = to_json(&plan.runtime);
        keys.remove("workers");
        keys
    };
    let mut links_change_layout = false;
    for key in changed_keys(&runtime(before), &runtime(after)) {
        let is_requested = match key.as_str() {
            "buffer_size" => before.requested_layout.size != after.requested_layout.size,
            "headroom" => before.requested_layout.headroom != after.requested_layout.headroom,
            _ => true,
        };
        if !is_requested {
            links_change_layout = true;
            continue;
        }
        let why = "the key applies at the start of the program";
        operations.push(restart(OperationKind::ChangeRuntime, &key, Vec::new(), why));
    }
    if links_change_layout {
        operations.push(restart(OperationKind::RestartWorkers, "buffers", Vec::new(), &layout_refusal(before, after)));
    }
    for why in queue_refusals(before, after) {
        operations.push(workers_operation(&why));
    }
    if before.runtime.buffers == after.runtime.buffers && after.min_buffers > before.buffers {
        let (least, now) = (after.min_buffers, before.buffers);
        let why = format!(
            "the ports need {least} packet buffers of each worker, and each worker has {now}: reduce rx_depth and \
             tx_depth of the added ports, or set buffers in [runtime] to at least {least} and restart the program"
        );
        operations.push(restart(OperationKind::RestartWorkers, "buffers", Vec::new(), &why));
    }
    for port in &after.ports {
        let name = &port.config.name;
        if let Some(earlier) = find(before, name) {
            let keys = changed_keys(&port_keys(before, earlier), &port_keys(after, port));
            if !keys.is_empty() {
                let why = "the program can add and remove a port, but cannot change the queues and the device of an \
                           open port: remove the port with one change, and add the port with another change";
                operations.push(restart(OperationKind::ChangePort, name, keys, why));
            }
        } else if let Some((other, what)) = shared_with_removed(before, after, port) {
            let why = format!(
                "the removed port {other} uses {what} until the change is complete: remove {other} with one change, and \
                 add {name} with another change"
            );
            operations.push(restart(OperationKind::AddPort, name, Vec::new(), &why));
        }
    }
    operations
}

/// Returns the reason why the buffers of the running program do not fit the ports of the plan `after`, although the
/// keys of `[runtime]` stay the same.
fn layout_refusal(before: &Plan, after: &Plan) -> String {
    let (now, needed) = (before.runtime.layout(), after.runtime.layout());
    let running = format!("the program has buffers of {} bytes with a headroom of {}", now.size, now.headroom);
    if added_ports(before, after).next().is_none() {
        return format!(
            "with its ports, the new config has buffers of {} bytes with a headroom of {}, and {running}: set buffer_size = \
             {} and headroom = {} in [runtime] of the new config",
            needed.size, needed.headroom, now.size, now.headroom
        );
    }
    // A link such as `xdp` changes a layout that does not fit, even for the shortest packets.
    let cause = added_ports(before, after).find_map(|port| {
        let link = port.config.link.as_ref().filter(|link| link.buffers(now, 0) != now)?;
        Some(format!("port {} ({}) needs", port.config.name, link.kind()))
    });
    let Buffers { size, headroom } = needed;
    format!(
        "{} buffers of {size} bytes with a headroom of {headroom}, and {running}: restart the program; after a start with \
         buffer_size = {size} and headroom = {headroom} in [runtime], such ports can be added and removed without a restart",
        cause.as_deref().unwrap_or("the ports need")
    )
}

/// Returns the operations that move workers to other cores.
fn core_operations(before: &Plan, after: &Plan) -> Vec<Operation> {
    let moves = before.cores.iter().zip(&after.cores).enumerate().filter(|(_, (from, to))| from != to);
    let operation = |(worker, (from, to))| {
        let why = format!("the kernel moves the thread from core {from} to core {to}");
        let state = Some("the worker keeps its packet memory and its queues".to_owned());
        hitless(OperationKind::MoveWorker, &format!("{worker}"), Vec::new(), &why, state)
    };
    moves.map(operation).collect()
}

/// Returns the operations that add or remove workers.
fn worker_operations(before: &Plan, after: &Plan) -> Vec<Operation> {
    let (running, workers) = (before.cores.len(), after.cores.len());
    // The ports on which the NIC selects the receive queue of each frame. Each of these queues belongs to one worker.
    let of_nic =
        |port: &&PortPlan| port.input && port.config.link.as_ref().is_some_and(|link| link.owns_receive_queues());
    let interfaces = |worker: usize, does: &str| {
        let kept = before.ports.iter().filter(|port| find(after, &port.config.name).is_some()).filter(of_nic);
        let names: Vec<&str> = kept.filter_map(|port| port.config.link.as_ref()?.interface()).collect();
        (!names.is_empty()).then(|| format!("{does} receive queue {worker} of {}", names.join(", ")))
    };
    let added = (running..workers).map(|worker| {
        let core = after.cores[worker];
        let why = format!(
            "the thread starts on core {core} with its own packet memory and a queue on each port, and then the ports pass \
             a part of their flows to the worker"
        );
        let state = interfaces(worker, "the worker gets the frames of");
        hitless(OperationKind::AddWorker, &worker.to_string(), Vec::new(), &why, state)
    });
    let removed = (workers..running).map(|worker| {
        let why = "the ports pass the flows of the worker to the other workers, and the worker ends after its last packet; \
                   packets that a stage holds longer than drain_timeout are dropped as `stopped`";
        let kernel = interfaces(worker, "the kernel gets the frames of");
        let kernel = kernel.map_or(String::new(), |kernel| format!("; {kernel}"));
        let state = format!("the report keeps its totals{kernel}");
        hitless(OperationKind::RemoveWorker, &worker.to_string(), Vec::new(), why, Some(state))
    });
    added.chain(removed).collect()
}

/// Returns the reasons why a running program cannot change the number of workers: ports that divide their packets among
/// the workers only when they are opened. Returns no reasons if the number stays the same.
fn queue_refusals(before: &Plan, after: &Plan) -> Vec<String> {
    if before.cores.len() == after.cores.len() {
        return Vec::new();
    }
    let reason = |port: &PortPlan| {
        let config = &port.config;
        if config.qp != Qp::RawPacket {
            Some("each worker has its own connection to the peer")
        } else if config.is_rdma() {
            Some("the device hashes the packets to the queues that exist when the port is opened")
        } else if config.flow.is_some() || config.rate_limit.is_some() {
            Some("its flow rules and its rate limit apply to the queues that exist when the port is opened")
        } else if port.input && config.link.as_ref().is_some_and(|link| link.divides_when_opened()) {
            Some("its frames are divided among the workers only when the port is opened")
        } else {
            None
        }
    };
    let kept = before.ports.iter().filter(|port| find(after, &port.config.name).is_some());
    kept.filter_map(|port| Some(format!("port {}: {}", port.config.name, reason(port)?))).collect()
}

/// Returns the operation for workers that the running program cannot add.
pub(crate) fn workers_operation(why: &str) -> Operation {
    restart(OperationKind::RestartWorkers, "workers", Vec::new(), why)
}

/// Returns the operation for a worker whose packet memory is not near its new core.
pub(crate) fn far_core(worker: usize, why: &str) -> Operation {
    restart(OperationKind::MoveWorker, &worker.to_string(), Vec::new(), why)
}

/// Returns the operations that add and remove ports, and that give ports other numbers.
fn port_operations(before: &Plan, after: &Plan) -> Vec<Operation> {
    let mut operations = Vec::new();
    for port in before.ports.iter().filter(|port| find(after, &port.config.name).is_none()) {
        let why = "the workers stop receiving from the port, and the program closes the device after the packets in \
                   flight are sent";
        let state = Some("the report keeps its totals".to_owned());
        operations.push(hitless(OperationKind::RemovePort, &port.config.name, Vec::new(), why, state));
    }
    for port in added_ports(before, after).filter(|port| shared_with_removed(before, after, port).is_none()) {
        let why = "the program opens the device before the workers switch to their new graphs";
        operations.push(hitless(OperationKind::AddPort, &port.config.name, Vec::new(), why, None));
    }
    let kept = |plan: &Plan, other: &Plan| -> Vec<String> {
        let names = plan.ports.iter().map(|port| port.config.name.clone());
        names.filter(|name| find(other, name).is_some()).collect()
    };
    let order = kept(after, before);
    if order != kept(before, after) {
        let why = "each worker switches to its new graph between two bursts";
        let name = order.join(", ");
        operations.push(hitless(OperationKind::ChangePort, &name, vec!["order".to_owned()], why, None));
    }
    operations
}

/// Returns the ports that only the plan `after` has.
pub(crate) fn added_ports<'a>(before: &'a Plan, after: &'a Plan) -> impl Iterator<Item = &'a PortPlan> {
    after.ports.iter().filter(|port| find(before, &port.config.name).is_none())
}

/// Returns `true` if two plans have the same ports, in the same order.
pub(crate) fn has_same_ports(before: &Plan, after: &Plan) -> bool {
    let names = |plan: &Plan| plan.ports.iter().map(|port| port.config.name.clone()).collect::<Vec<_>>();
    names(before) == names(after)
}

fn find<'a>(plan: &'a Plan, name: &str) -> Option<&'a PortPlan> {
    plan.ports.iter().find(|port| port.config.name == name)
}

/// Returns the removed port that uses the same interface, file, port of an RDMA device or listening address as an added
/// port, and a description of the shared object.
fn shared_with_removed(before: &Plan, after: &Plan, added: &PortPlan) -> Option<(String, String)> {
    let objects = |port: &PortPlan| {
        let config = &port.config;
        let link = config.link.as_ref();
        let interface = link.and_then(|link| link.interface()).map(|name| format!("the interface {name}"));
        let output = link.and_then(|link| link.output()).map(|path| format!("the file {}", path.display()));
        let device = config.is_rdma().then(|| format!("the device {} port {}", config.device, config.device_port));
        [interface, output, device].into_iter().flatten().collect::<Vec<_>>()
    };
    let wanted = objects(added);
    let removed = before.ports.iter().filter(|port| find(after, &port.config.name).is_none());
    removed.into_iter().find_map(|port| {
        let shared = objects(port).into_iter().find(|object| wanted.contains(object));
        Some((port.config.name.clone(), shared.or_else(|| shared_listener(port, added))?))
    })
}

/// Returns a description of the address on which a port listens for its peer, if another port cannot listen at the same
/// time.
fn shared_listener(port: &PortPlan, other: &PortPlan) -> Option<String> {
    let [one, two] = [port, other].map(|port| port.config.connection.as_ref());
    one?.rendezvous.shared_listener(&two?.rendezvous).map(|address| format!("the address {address}"))
}

/// Returns the keys of a port, whether the port is in `input` of `[pipeline]`, and the name of its peer.
fn port_keys(plan: &Plan, port: &PortPlan) -> Map<String, Value> {
    let mut keys = to_json(port);
    // These values depend on the stages, on the host or on other ports, so a difference is no change of the port.
    ["requests", "verifiers", "node", "peer"].iter().for_each(|key| _ = keys.remove(*key));
    if let Some(peer) = port.peer.and_then(|peer| plan.ports.get(peer)) {
        keys.insert("peer".to_owned(), Value::String(peer.config.name.clone()));
    }
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
    if watcher(plan, before.drop_observer) != watcher(later, after.drop_observer) {
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

/// Returns the operation for a port that the running program cannot change, or cannot add.
pub(crate) fn port_operation(exists: bool, port: &str, why: &str) -> Operation {
    let operation = if exists { OperationKind::ChangePort } else { OperationKind::AddPort };
    restart(operation, port, Vec::new(), why)
}

/// Returns the operation for a stage that the running program cannot replace. `hint` is the end of the reason:
/// how to avoid the restart.
pub(crate) fn stage_restart(stage: &str, why: &str, hint: &str) -> Operation {
    restart(OperationKind::ReplaceStage, stage, Vec::new(), &format!("{why}; restart the program{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Diagnostics, Source};
    use dataplane_core::topology::Topology;

    /// Returns a plan with one port that listens for its peer.
    fn listening(port: &str, device: &str, address: &str) -> Plan {
        let text = format!(
            "[[port]]\nname = '{port}'\ndevice = '{device}'\nqp = 'rc'\nconnection = {{ listen = '{address}' }}\n\
             [pipeline]\ninput = ['{port}']\n[[pipeline.stage]]\nuse = 'tx'\n"
        );
        plan_of(&text)
    }

    fn plan_of(text: &str) -> Plan {
        let source = Source::new("x.toml", text, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let loaded = config::load(&source, &mut diagnostics);
        let plan = config::plan(&loaded, &dataplane_stages::registry(), &Topology::uniform(4), &mut diagnostics);
        plan.unwrap_or_else(|| panic!("{}", diagnostics.render(false)))
    }

    #[test]
    fn port_that_needs_another_layout_of_the_buffers_names_the_layout() {
        let plan = |runtime: &str, ports: &[(&str, &str)]| {
            let port = |(name, link): &(&str, &str)| {
                format!(
                    "[[port]]\nname = '{name}'\ndevice = 'host'\nmtu = 1500\nlink = {{ kind = '{link}', interface = '{name}' }}\n"
                )
            };
            let ports: String = ports.iter().map(port).collect();
            plan_of(&format!(
                "[runtime]\nbuffers = 8192\n{runtime}\n{ports}[pipeline]\ninput = ['a']\n[[pipeline.stage]]\nuse = 'drop'\n"
            ))
        };
        let (one, two) = (&[("a", "packet")][..], &[("a", "packet"), ("c", "xdp")][..]);
        let sized = "buffer_size = 1984\nheadroom = 256";
        let added = "restart workers because of buffers: needs a restart: port c (xdp) needs buffers of 1984 bytes with a \
                     headroom of 256, and the program has buffers of 2048 bytes with a headroom of 128: restart the program; \
                     after a start with buffer_size = 1984 and headroom = 256 in [runtime], such ports can be added and \
                     removed without a restart";
        let removed = "restart workers because of buffers: needs a restart: with its ports, the new config has \
                       buffers of 2048 bytes with a headroom of 128, and the program has buffers of 1984 bytes with a \
                       headroom of 256: set buffer_size = 1984 and headroom = 256 in [runtime] of the new config";
        let key = "change runtime headroom: needs a restart: the key applies at the start of the program";
        for (before, after, expected) in [
            (plan("", one), plan("", two), &[added][..]),
            (plan("", two), plan("", one), &[removed]),
            (plan(sized, one), plan(sized, two), &[]),
            (plan(sized, two), plan(sized, one), &[]),
            // The fix of the message for a removed port.
            (plan("", two), plan(sized, one), &[]),
            (plan("", one), plan("headroom = 192", one), &[key]),
        ] {
            let operations = fixed_operations(&before, &after);
            let operations: Vec<String> = operations.iter().map(ToString::to_string).collect();
            assert_eq!(operations, expected);
        }
    }

    #[test]
    fn port_that_listens_on_the_address_of_a_removed_port_needs_a_restart() {
        let before = listening("old", "mlx5_0", "192.0.2.1:18515");
        for (device, address, shared) in [
            ("mlx5_1", "192.0.2.1:18515", Some("the address 192.0.2.1:18515")),
            ("mlx5_1", "0.0.0.0:18515", Some("the address 192.0.2.1:18515")),
            ("mlx5_1", "192.0.2.2:18515", None),
            ("mlx5_1", "192.0.2.1:18516", None),
            ("mlx5_0", "192.0.2.1:18516", Some("the device mlx5_0 port 1")),
        ] {
            let operations = operations(
                &before,
                &listening("new", device, address),
                &dataplane_stages::registry(),
                &BTreeMap::new(),
            );
            let added = operations.iter().filter(|operation| operation.operation == OperationKind::AddPort);
            let [added] = added.collect::<Vec<_>>()[..] else { panic!("{operations:#?}") };
            assert_eq!(added.hitless, shared.is_none(), "{added}");
            assert!(
                shared.is_none_or(|shared| added.why.contains(&format!("port old uses {shared} until"))),
                "{added}"
            );
        }
    }
}
