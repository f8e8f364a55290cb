//! The causes of dropped packets: the packets that stages and ports drop. The ledger contains these packets.

use super::cause::{Cause, CauseKind};
use super::fixes;
use super::observe::Observed;
use dataplane_core::mem::Reason;
use dataplane_core::pipeline::Registry;
use dataplane_core::telemetry::{PortReport, StageReport};

/// The device counters of packets that a port failed to send, with their meanings.
const SEND_COUNTERS: [(&str, &str); 3] = [
    ("tx_link_down", "the link was down"),
    ("tx_queue_full", "the kernel's queue of the interface was full"),
    ("tx_refused", "the kernel refused the packet, for example because the packet is too long"),
];

/// Returns the causes of the drops in the ledger.
pub(super) fn drops(registry: &Registry, observed: &Observed) -> Vec<Cause> {
    let names = observed.after.report.ledger.drops.keys();
    let packets = |name: &str| observed.growth(|report| report.ledger.drops.get(name).copied().unwrap_or(0));
    let dropped = names.map(|name| (name, packets(name))).filter(|(_, packets)| *packets > 0);
    let mut causes: Vec<Cause> = dropped.map(|(name, packets)| drop_cause(registry, observed, name, packets)).collect();
    causes.extend(observed.after.report.stages.iter().filter_map(|stage| missed_copies(observed, stage)));
    causes
}

fn drop_cause(registry: &Registry, observed: &Observed, name: &str, packets: u64) -> Cause {
    let report = &observed.after.report;
    let reason_of = |owner: &str| name.strip_prefix(owner).and_then(|rest| rest.strip_prefix('.'));
    // Names of stages and ports may contain dots, so the stage or port with the longest matching name is the owner.
    let stage = report.stages.iter().filter(|stage| reason_of(&stage.name).is_some());
    let stage = stage.max_by_key(|stage| stage.name.len());
    let port = report.ports.iter().filter(|port| reason_of(&port.name).is_some()).max_by_key(|port| port.name.len());
    let mut cause = match (stage, port) {
        (Some(stage), _) if is_of_stage(stage, reason_of(&stage.name).unwrap_or_default()) => {
            stage_cause(registry, stage, name, packets)
        }
        (_, Some(port)) => port_cause(observed, port, reason_of(&port.name).unwrap_or_default(), packets),
        _ => removed_cause(name, packets),
    };
    cause.in_ledger = true;
    cause
}

/// Returns whether a stage has this drop. A stage and a port can have the same name.
fn is_of_stage(stage: &StageReport, reason: &str) -> bool {
    stage.drops.contains_key(reason) || reason == Reason::Stopped.to_string()
}

fn stage_cause(registry: &Registry, stage: &StageReport, name: &str, packets: u64) -> Cause {
    let reason = name.get(stage.name.len() + 1..).unwrap_or_default();
    let info = registry.get(&stage.kind).map(|kind| &kind.info);
    let listed = |list: &[(&'static str, &'static str)]| {
        list.iter().find(|(known, _)| *known == reason).map(|(_, meaning)| *meaning)
    };
    let own = info.and_then(|info| listed(info.reasons));
    // An output can have the name of a built-in reason. The name then means the output.
    let output = info.filter(|_| own.is_none()).and_then(|info| listed(info.outputs));
    let (meaning, fix) = match (own.or_else(|| Reason::meaning(reason)), output) {
        (Some(meaning), None) => (meaning.to_owned(), fixes::of_reason(&stage.kind, &stage.name, reason)),
        (_, Some(meaning)) => (
            format!("{meaning}; the output `{reason}` leads to no stage"),
            fixes::of_output(&stage.kind, &stage.name, reason),
        ),
        (None, None) => (
            format!("the stage `{}` has chosen the reason or output `{reason}`", stage.name),
            fixes::of_reason(&stage.kind, &stage.name, reason),
        ),
    };
    let mut cause = Cause::new(name.to_owned(), CauseKind::Stage, Some(packets), meaning);
    cause.stage = Some(stage.name.clone());
    cause.stage_kind = Some(stage.kind.clone());
    cause.fix = fix;
    cause
}

fn port_cause(observed: &Observed, port: &PortReport, reason: &str, packets: u64) -> Cause {
    let name = format!("{}.{reason}", port.name);
    let meaning = Reason::meaning(reason).unwrap_or("the port dropped the packet instead of sending it");
    let mut cause = Cause::new(name, CauseKind::Send, Some(packets), meaning);
    cause.port = Some(port.name.clone());
    cause.fix = fixes::of_port(&port.name, reason);
    let mut largest = 0;
    for (counter, meaning) in SEND_COUNTERS {
        let growth = observed.device_growth(&port.name, counter);
        if reason != "tx_error" || growth == 0 {
            continue;
        }
        cause.evidence.push(format!("{counter} of port {} increased by {growth}: {meaning}", port.name));
        if growth > largest {
            largest = growth;
            cause.reason = Some(meaning.to_owned());
            cause.kind = if counter == "tx_link_down" { CauseKind::LinkDown } else { CauseKind::Send };
            cause.fix = fixes::of_port(&port.name, counter);
        }
    }
    if reason == "tx_error" && port.tx_lost > 0 {
        cause.kind = CauseKind::File;
        cause.reason = Some("the capture file of the port cannot be written".to_owned());
        cause.evidence.extend(observed.failures().cloned());
        cause.fix = fixes::of_port(&port.name, "tx_lost");
        return cause;
    }
    let is_down = port.link_up == Some(false);
    if is_down {
        cause.evidence.push(format!("the link of port {} is down", port.name));
    }
    if let Some(error) = port.first_error.as_ref().filter(|_| matches!(reason, "tx_error" | "not_connected")) {
        cause.evidence.push(format!("the first error of the port: {error}"));
    }
    if is_down && largest == 0 && matches!(reason, "tx_error" | "tx_full" | "not_connected") {
        cause.kind = CauseKind::LinkDown;
        cause.reason = Some("the link is down".to_owned());
        cause.fix = fixes::of_port(&port.name, "tx_link_down");
    }
    cause
}

/// Returns the cause of drops of a stage or port that a change has removed.
fn removed_cause(name: &str, packets: u64) -> Cause {
    let reason = name.rsplit_once('.').map_or(name, |(_, reason)| reason);
    let meaning = Reason::meaning(reason).map_or_else(
        || "a stage or port dropped the packets, and a change of the config has removed this stage or port".to_owned(),
        |meaning| format!("{meaning} (a change of the config has removed the stage or port)"),
    );
    let mut cause = Cause::new(name.to_owned(), CauseKind::Stage, Some(packets), meaning);
    cause.fix = "no fix is necessary, because the stage or port no longer exists".to_owned();
    cause
}

/// Returns the cause of copies that a stage could not make.
fn missed_copies(observed: &Observed, stage: &StageReport) -> Option<Cause> {
    let packets = observed.growth(|report| {
        let stage = report.stages.iter().find(|other| other.name == stage.name);
        stage.map_or(0, |stage| stage.copies_missed)
    });
    let name = format!("{}.copies_missed", stage.name);
    let meaning = "the stage could not copy the packet, because no packet buffer was free; the packet itself goes on";
    let mut cause = Cause::new(name, CauseKind::Copies, (packets > 0).then_some(packets), meaning);
    cause.stage = Some(stage.name.clone());
    cause.stage_kind = Some(stage.kind.clone());
    cause.fix = fixes::POOL.to_owned();
    cause.packets.is_some().then_some(cause)
}
