//! Decides which offloads each port requests from its device: the offloads that the stages of the pipeline can use.

use crate::config::{Offload, OffloadRequest, Plan, PortPlan, StageOffload};
use dataplane_core::mem::RecvFields;
use dataplane_core::pipeline::{ChecksumState, Program};
use dataplane_core::verbs::PollFields;

const RECEIVED: [(RecvFields, StageOffload); 4] = [
    (RecvFields::CHECKSUM, StageOffload::ReceiveChecksum),
    (RecvFields::VLAN, StageOffload::VlanTag),
    (RecvFields::FLOW_TAG, StageOffload::FlowTag),
    (RecvFields::HASH, StageOffload::RssHash),
];

/// Adds to each port of the plan the offloads that the stages of the program can use.
///
/// A port requests checksum offloads only if its `offload` contains `auto`. Without these offloads, the stages compute
/// and verify the checksums. With several workers, an RDMA port receives with one work queue for each worker. mlx5 does
/// not report the checksums of packets that a work queue receives, so such a port requests no receive checksums.
///
/// Stages cannot compute VLAN tags, flow tags and RSS hashes. An input port therefore requests:
/// - the VLAN tag, if its `offload` contains `vlan_strip`;
/// - the flow tag, if one of its flow rules has a tag;
/// - the RSS hash, if the device may report the hash.
///
/// If a stage reads VLAN tags or flow tags, but no port reports these tags, returns the name of the stage, a warning
/// and its help.
pub(super) fn request(plan: &mut Plan, program: &Program) -> Vec<(String, &'static str, &'static str)> {
    let workers = plan.cores.len();
    let sent = program.sent_checksums(plan.ports.len());
    let names = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect();
    for (port, checksums) in plan.ports.iter_mut().zip(sent) {
        let auto = port.config.has_auto_offloads();
        if checksums == Some(ChecksumState::Computed) && auto {
            let stages = names(program.stages_with_checksums());
            port.requests.push(OffloadRequest { offload: StageOffload::SendChecksum, stages });
        }
        let config = &port.config;
        let is_reported = |offload| match offload {
            StageOffload::VlanTag => config.offloads().contains(&Offload::VlanStrip),
            StageOffload::FlowTag => config.flow.iter().flatten().any(|flow| flow.tag.is_some()),
            StageOffload::RssHash => config.has_recv_info(),
            _ => auto,
        };
        let reported: Vec<_> =
            RECEIVED.into_iter().filter(|(_, offload)| port.input && is_reported(*offload)).collect();
        for (part, offload) in reported {
            let stages: Vec<String> = names(program.readers(part));
            if stages.is_empty() {
                continue;
            }
            if offload == StageOffload::ReceiveChecksum && workers > 1 && port.config.is_rdma() {
                port.verifiers = stages;
            } else {
                port.requests.push(OffloadRequest { offload, stages });
            }
        }
    }
    let without = |(part, offload, what, help)| {
        let has_source = plan.ports.iter().any(|port| is_requested(port, offload));
        let stages = if has_source { Vec::new() } else { program.readers(part) };
        stages.into_iter().map(move |stage| (stage.to_owned(), what, help)).collect::<Vec<_>>()
    };
    let sources = [
        (
            RecvFields::VLAN,
            StageOffload::VlanTag,
            "no input port removes VLAN tags, so this stage restores none",
            "add \"vlan_strip\" to `offload` of an input port",
        ),
        (
            RecvFields::FLOW_TAG,
            StageOffload::FlowTag,
            "no flow rule of an input port has a tag, so this stage selects no packet",
            "add `tag` to a rule in `flow` of an input port",
        ),
    ];
    sources.into_iter().flat_map(without).collect()
}

/// Checks that a device reports the VLAN tags and flow tags that stages need. `received` is the information that the
/// stages read, and `fields` are the completion fields that the device granted.
///
/// # Errors
/// Returns an error if the device does not report the VLAN tags or the flow tags in `received`. The error contains a
/// remedy.
pub(super) fn check_granted(received: RecvFields, fields: PollFields) -> Result<(), &'static str> {
    let lacks = |part| received.contains(part) && !fields.contains(PollFields::from(part));
    if lacks(RecvFields::VLAN) {
        return Err("the device does not report the VLAN tags that it removes, which a stage needs; help: remove \
                    \"vlan_strip\" from `offload`");
    }
    if lacks(RecvFields::FLOW_TAG) {
        return Err("the device does not report the tags of flow rules, which a stage needs; help: remove `tag` from \
                    `flow`, and select the packets with an `acl` stage");
    }
    Ok(())
}

/// Returns `true` if a port requests an offload, because stages can use the offload.
pub(super) fn is_requested(port: &PortPlan, offload: StageOffload) -> bool {
    port.requests.iter().any(|request| request.offload == offload)
}

/// Returns the receive information that stages read from the packets of a port.
pub(super) fn received(port: &PortPlan) -> RecvFields {
    RECEIVED.into_iter().filter(|(_, offload)| is_requested(port, *offload)).map(|(part, _)| part).collect()
}
