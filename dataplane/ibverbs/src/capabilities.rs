//! Detects the capabilities of a device. The device reports some capabilities. For the other capabilities, this module
//! tries to create an object. Each missing capability has a reason.

use std::ffi::CStr;

use ibverbs_sys::{IBV_DEVICE_AUTO_PATH_MIG, ibv_device_attr_ex};

use super::context::{Context, Limits};
use super::raw;
use dataplane_core::clock::ClockSource;
use dataplane_core::error::VerbError;
use dataplane_core::lane::Stamping;
use dataplane_core::verbs::{
    Capabilities, Capability, CqApi, CqFlags, CqGranted, CqSpec, Device, Missing, MwKind, PollFields, ProtectionDomain,
    QpCaps, QpSpec, QpType, SendApi, SrqSpec,
};

/// The result of the detection.
#[derive(Debug, Default)]
pub(super) struct ProbeResult {
    pub(super) capabilities: Capabilities,
    pub(super) missing: Vec<Missing>,
    /// The features that the driver granted for a completion queue that requested all features.
    pub(super) queue: Option<CqGranted>,
}

/// The capacities of the smallest possible queue pair.
const SMALL: QpCaps = QpCaps { send_depth: 1, recv_depth: 1, send_sges: 1, recv_sges: 1, inline: 0 };

/// The smallest possible completion queue, without optional features.
const PLAIN: CqSpec =
    CqSpec { depth: 1, fields: PollFields::empty(), flags: CqFlags::empty(), vector: 0, api: CqApi::Auto, context: 0 };

/// The reason why a device with iWARP lacks reliable connections. The device creates the queue pair, but the driver
/// refuses the state RTS without a connection of rdma_cm (`irdma_modify_qp` in the kernel).
const IWARP: &str = "the device uses iWARP, whose connections need rdma_cm, which this program does not use; help: set \
                     the NIC to RoCE if it supports RoCE";

/// Detects the capabilities of a device. Creates a few small objects and destroys them immediately.
pub(super) fn probe(device: &impl Device, context: &Context) -> ProbeResult {
    let attr = &context.limits.attr;
    let mut probed = ProbeResult { capabilities: reported(attr, context.limits.vectors), ..ProbeResult::default() };
    let all = CqSpec { fields: PollFields::all(), flags: CqFlags::all(), ..PLAIN };
    // A device may create a completion queue with a feature, but refuse every queue pair on it. Queue pairs are
    // therefore created on a queue without optional features.
    let plain = device.create_cq(&PLAIN, None);
    let mut queue = device.create_cq(&all, None);
    if let (Ok((plain, _)), Ok((_, granted))) = (&plain, &mut queue) {
        refuse_unusable_timestamps(device, plain, granted);
    }
    // If batch polling is not reliable, `queue` uses the classic poll interface, which lacks all extended features. The
    // reasons for missing features then name the classic poll interface, not the device. A further queue (`single`)
    // uses the extended interface and polls one completion at a time, so its reasons come from the device.
    let single = device.create_cq(&CqSpec { api: CqApi::ExtendedSingle, ..all }, None).map(|(_, granted)| granted).ok();
    for capability in Capability::ALL {
        let tried = match (&queue, &plain) {
            (Err(error), _) | (_, Err(error)) => Err(hint(*error)),
            (Ok((_, granted)), _) if CQ_CAPABILITIES.contains(&capability) => {
                cq_capability(granted, single.as_ref(), capability)
            }
            (_, Ok((cq, _))) => attempt(device, context, cq, capability),
        };
        match tried {
            Ok(()) => probed.capabilities.has.push(capability),
            Err(why) => probed.missing.push(Missing { capability, why }),
        }
    }
    probed.queue = queue.ok().map(|(_, granted)| granted);
    probed
}

const CQ_CAPABILITIES: [Capability; 10] = [
    Capability::ExtendedCq,
    Capability::Timestamps,
    Capability::WallclockTimestamps,
    Capability::SingleThreaded,
    Capability::IgnoreOverrun,
    Capability::FlowTag,
    Capability::Cvlan,
    Capability::RxChecksum,
    Capability::RssHash,
    Capability::TagMatching,
];

/// Removes a kind of timestamp from `granted`, the granted properties of a completion queue, if no queue pair can use
/// this kind. The device then creates queue pairs on the completion queue `plain`, but refuses all queue pairs on a
/// completion queue with these timestamps. An example is mlx5 in real-time mode: it has no timestamps of the counter
/// that libibverbs reads (`get_ts_format` in the kernel). From libibverbs 65 on, such a device accepts queue pairs on a
/// completion queue that has only wall-clock timestamps. But lanes request the wall clock and the counter together, so
/// lanes cannot use the wall clock of such a device.
fn refuse_unusable_timestamps<D: Device>(device: &D, plain: &D::Cq, granted: &mut CqGranted) {
    let Ok(pd) = device.alloc_pd() else { return };
    let create = |kind, cq: &D::Cq| pd.create_qp(&QpSpec::new(kind, SMALL), cq, cq, None).map(drop);
    let kinds = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::RawPacket];
    let kinds: Vec<QpType> = kinds.into_iter().filter(|&kind| create(kind, plain).is_ok()).collect();
    // `fields` has all fields that a lane requests for these timestamps.
    for (capability, field, fields) in [
        (Capability::WallclockTimestamps, PollFields::WALLCLOCK, Stamping::Wallclock.fields()),
        (Capability::Timestamps, PollFields::TIMESTAMP, Stamping::Device.fields()),
    ] {
        if !granted.fields.contains(field) {
            continue;
        }
        let Ok((cq, _)) = device.create_cq(&CqSpec { fields, ..PLAIN }, None) else { continue };
        if let Some(Err(error)) = kinds.iter().map(|&kind| create(kind, &cq)).reduce(Result::or) {
            let why = format!("the device refuses queue pairs with timestamps: {}", hint(error));
            granted.fields -= field;
            granted.refused.push(capability);
            granted.why.push(format!("missing {capability}: {why}"));
        }
    }
    granted.refused.sort_unstable();
    granted.stamps = match granted.fields {
        fields if fields.contains(PollFields::WALLCLOCK) => granted.stamps,
        fields if fields.contains(PollFields::TIMESTAMP) => ClockSource::DeviceTicks,
        _ => ClockSource::None,
    };
}

/// Returns an error with the reason if the driver granted a completion queue without a capability. A reason in `single`
/// takes precedence over a reason in `granted`.
fn cq_capability(granted: &CqGranted, single: Option<&CqGranted>, capability: Capability) -> Result<(), String> {
    if !granted.refused.contains(&capability) {
        return Ok(());
    }
    let prefix = format!("missing {capability}: ");
    let reasons = single.into_iter().chain([granted]).flat_map(|granted| &granted.why);
    let why = reasons.filter_map(|line| line.strip_prefix(&prefix)).next();
    Err(why.unwrap_or("the device refused it").to_owned())
}

fn attempt<D: Device>(device: &D, context: &Context, cq: &D::Cq, capability: Capability) -> Result<(), String> {
    let (basic, raw) = (&context.limits.attr.orig_attr, raw::caps(context));
    let reported_if = |has: bool, what: &str| if has { Ok(()) } else { Err(format!("the device reports no {what}")) };
    let describe = |error: VerbError| hint(error);
    let pd = device.alloc_pd().map_err(describe)?;
    let qp = |kind, caps, send_api| {
        let spec = QpSpec { send_api, ..QpSpec::new(kind, caps) };
        pd.create_qp(&spec, cq, cq, None).map(drop).map_err(describe)
    };
    let small = |kind| qp(kind, SMALL, SendApi::Classic);
    match capability {
        Capability::RawPacket => small(QpType::RawPacket),
        Capability::Datagram => small(QpType::Ud),
        Capability::Rc if context.is_iwarp => Err(IWARP.to_owned()),
        Capability::Rc => small(QpType::Rc),
        Capability::Uc => small(QpType::Uc),
        Capability::Inline => {
            let inline = QpCaps { inline: 16, ..SMALL };
            [QpType::Rc, QpType::Ud, QpType::RawPacket]
                .into_iter()
                .map(|kind| qp(kind, inline, SendApi::Classic))
                .reduce(Result::or)
                .unwrap_or(Ok(()))
        }
        Capability::ExtendedSend => {
            let kinds = [QpType::Rc, QpType::Ud, QpType::RawPacket];
            kinds.into_iter().map(|kind| qp(kind, SMALL, SendApi::Extended)).reduce(Result::or).unwrap_or(Ok(()))
        }
        Capability::ParentDomain => pd.alloc_parent().map(drop).map_err(describe),
        Capability::Srq => pd.create_srq(&SrqSpec { depth: 1, sges: 1 }).map(drop).map_err(describe),
        Capability::MemoryWindow => {
            let window = |kind| pd.alloc_mw(kind).map(drop).map_err(describe);
            window(MwKind::Type2).or_else(|_| window(MwKind::Type1))
        }
        Capability::Atomic => reported_if(basic.atomic_cap != 0, "atomics"),
        Capability::Multicast => reported_if(basic.max_mcast_grp > 0, "multicast groups"),
        // Some efa devices have completion channels, but refuse completion queues with a channel.
        Capability::Events => {
            let with_channel = device.create_channel().and_then(|channel| device.create_cq(&PLAIN, Some(&channel)));
            with_channel.map(drop).map_err(describe)
        }
        Capability::Rss => reported_if(raw.rss.is_some(), "RSS for raw packets"),
        Capability::FlowRules => reported_if(raw.flow_rules, "flow rules"),
        Capability::TxChecksum => reported_if(raw.tx_checksum, "checksum offload for sent packets"),
        Capability::VlanStrip => reported_if(raw.vlan_strip, "VLAN stripping"),
        Capability::Fcs => reported_if(raw.scatter_fcs, "delivery of the frame check sequence"),
        Capability::DelayDrop => reported_if(raw.delay_drop, "delay drop"),
        Capability::Tso => reported_if(raw.max_tso > 0, "segmentation of raw packets"),
        Capability::Pacing => reported_if(raw.pacing.is_some(), "pacing of raw packets"),
        _ => Ok(()),
    }
}

/// Formats the error of a failed attempt, followed by the remedy if a remedy is known.
fn hint(error: VerbError) -> String {
    match error.remedy() {
        Some(remedy) => format!("{error}; help: {remedy}"),
        None => error.to_string(),
    }
}

/// Returns the capabilities that the device reports.
fn reported(attr: &ibv_device_attr_ex, completion_vectors: u32) -> Capabilities {
    let basic = &attr.orig_attr;
    let firmware: Vec<u8> = basic.fw_ver.iter().map(|&byte| byte as u8).chain([0]).collect();
    let firmware = CStr::from_bytes_until_nul(&firmware).map(|text| text.to_string_lossy().into_owned());
    let count = Limits::count;
    Capabilities {
        firmware: firmware.unwrap_or_default(),
        ports: basic.phys_port_cnt,
        max_qp: count(basic.max_qp),
        max_qp_wr: count(basic.max_qp_wr),
        max_sge: count(basic.max_sge),
        max_cq: count(basic.max_cq),
        max_cqe: count(basic.max_cqe),
        max_mr: count(basic.max_mr),
        max_mr_size: basic.max_mr_size,
        max_srq: count(basic.max_srq),
        max_srq_wr: count(basic.max_srq_wr),
        max_rd_atomic: count(basic.max_qp_rd_atom),
        max_init_rd_atomic: count(basic.max_qp_init_rd_atom),
        path_migration: basic.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG != 0,
        completion_vectors,
        timestamp_mask: attr.completion_timestamp_mask,
        clock_khz: attr.hca_core_clock,
        has: Vec::new(),
    }
}
