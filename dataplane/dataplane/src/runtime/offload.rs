//! Derives the offloads of ports from the stages: the offloads that stages can use, and the work that devices then do.

use crate::config::{Offload, OffloadRequest, Plan, PortPlan, StageOffload};
use dataplane_core::mem::RecvFields;
use dataplane_core::pipeline::Program;

const RECEIVED: [(RecvFields, StageOffload); 4] = [
    (RecvFields::CHECKSUM, StageOffload::ReceiveChecksum),
    (RecvFields::VLAN, StageOffload::VlanTag),
    (RecvFields::FLOW_TAG, StageOffload::FlowTag),
    (RecvFields::HASH, StageOffload::RssHash),
];

/// Adds to each port of the plan the offloads that the stages of the program can use.
///
/// A port requests checksum offloads only if it has the offload `auto`. Without these offloads, the stages compute and
/// verify the checksums. The other receive information (VLAN tag, flow tag and RSS hash) comes only from the device. If
/// a stage reads this information, every input port whose device may report the information requests it.
pub(super) fn request(plan: &mut Plan, program: &Program) {
    let with_checksums = program.ports_with_checksums(plan.ports.len());
    let names = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    for (port, has_checksums) in plan.ports.iter_mut().zip(with_checksums) {
        let auto = port.config.has_auto_offloads();
        if has_checksums && auto {
            let stages = names(program.stages_with_checksums());
            port.requests.push(OffloadRequest { offload: StageOffload::SendChecksum, stages });
        }
        let is_reported = |part| if part == RecvFields::CHECKSUM { auto } else { port.config.reports_received() };
        for (part, offload) in RECEIVED.into_iter().filter(|(part, _)| port.input && is_reported(*part)) {
            let stages: Vec<String> = names(program.readers(part));
            if !stages.is_empty() {
                port.requests.push(OffloadRequest { offload, stages });
            }
        }
    }
}

/// Returns whether stages can use an offload of a port.
pub(super) fn is_requested(port: &PortPlan, offload: StageOffload) -> bool {
    port.requests.iter().any(|request| request.offload == offload)
}

/// Returns the receive information that stages read from the packets of a port.
pub(super) fn received(port: &PortPlan) -> RecvFields {
    RECEIVED.into_iter().filter(|(_, offload)| is_requested(port, *offload)).map(|(part, _)| part).collect()
}

/// Returns whether the device of a port computes the checksums of sent packets. `supports` is `true` if the device
/// supports this offload.
pub(super) fn computes_checksums(port: &PortPlan, supports: bool) -> bool {
    let is_set = port.config.offloads().contains(&Offload::Checksum);
    supports && (is_set || is_requested(port, StageOffload::SendChecksum))
}
