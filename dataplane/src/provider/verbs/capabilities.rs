//! What a device can do: partly it says so, the rest is tried. What it cannot comes with the reason.

use std::ffi::CStr;

use ibverbs_sys::{IBV_DEVICE_AUTO_PATH_MIG, ibv_device_attr_ex};

use super::context::Limits;
use super::device::VerbsDevice;
use crate::error::VerbError;
use crate::provider::{
    Capabilities, Capability, CqApi, CqFlags, CqGranted, CqSpec, Device, Missing, MwKind, PollFields, ProtectionDomain,
    QpCaps, QpSpec, QpType, SendApi, SrqSpec,
};

/// What is known of a device.
#[derive(Debug, Default)]
pub(super) struct About {
    pub(super) capabilities: Capabilities,
    pub(super) missing: Vec<Missing>,
    /// What it answers who asks for all that a completion queue can have.
    pub(super) queue: Option<CqGranted>,
}

/// The least that a queue pair can be.
const SMALL: QpCaps = QpCaps { send_depth: 1, recv_depth: 1, send_sges: 1, recv_sges: 1, inline: 0 };

/// Asks, and tries: a few small objects are created and destroyed at once.
pub(super) fn probe(device: &VerbsDevice) -> About {
    let context = device.context();
    let attr = &context.limits.attr;
    let mut about = About { capabilities: said(attr, context.limits.vectors), ..About::default() };
    let all = CqSpec { depth: 1, fields: PollFields::all(), flags: CqFlags::all(), ..CqSpec::default() };
    let queue = device.create_cq(&all, None);
    // Where the better interface cannot be relied on, what the device itself has to say of the rest is asked by it.
    let plain = device.create_cq(&CqSpec { api: CqApi::ExtendedSingle, ..all }, None).map(|(_, granted)| granted).ok();
    for capability in Capability::ALL {
        let tried = match (&queue, capability) {
            (Err(error), _) => Err(error.to_string()),
            (Ok((_, granted)), _) if OF_QUEUES.contains(&capability) => of_queue(granted, plain.as_ref(), capability),
            (Ok((cq, _)), _) => attempt(device, cq, capability),
        };
        match tried {
            Ok(()) => about.capabilities.has.push(capability),
            Err(why) => about.missing.push(Missing { capability, why }),
        }
    }
    about.queue = queue.ok().map(|(_, granted)| granted);
    about
}

const OF_QUEUES: [Capability; 8] = [
    Capability::ExtendedCq,
    Capability::Timestamps,
    Capability::WallclockTimestamps,
    Capability::SingleThreaded,
    Capability::IgnoreOverrun,
    Capability::FlowTag,
    Capability::Cvlan,
    Capability::TagMatching,
];

fn of_queue(granted: &CqGranted, plain: Option<&CqGranted>, capability: Capability) -> Result<(), String> {
    if !granted.refused.contains(&capability) {
        return Ok(());
    }
    let prefix = format!("no {capability}: ");
    let reasons = plain.into_iter().chain([granted]).flat_map(|granted| &granted.why);
    let why = reasons.filter_map(|line| line.strip_prefix(&prefix)).next();
    Err(why.unwrap_or("it was refused").to_owned())
}

fn attempt(device: &VerbsDevice, cq: &super::cq::VerbsCq, capability: Capability) -> Result<(), String> {
    let attr = &device.context().limits.attr;
    let basic = &attr.orig_attr;
    let says = |has: bool, what: &str| if has { Ok(()) } else { Err(format!("the device says that it has no {what}")) };
    let tell = |error: VerbError| hint(error);
    let pd = device.alloc_pd().map_err(tell)?;
    let qp = |kind, caps, send_api| {
        let spec = QpSpec { send_api, ..QpSpec::new(kind, caps) };
        pd.create_qp(&spec, cq, cq, None).map(drop).map_err(tell)
    };
    let small = |kind| qp(kind, SMALL, SendApi::Classic);
    match capability {
        Capability::RawPacket => small(QpType::RawPacket),
        Capability::Datagram => small(QpType::Ud),
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
        Capability::Srq => pd.create_srq(&SrqSpec { depth: 1, sges: 1 }).map(drop).map_err(tell),
        Capability::MemoryWindow => {
            let window = |kind| pd.alloc_mw(kind).map(drop).map_err(tell);
            window(MwKind::Type2).or_else(|_| window(MwKind::Type1))
        }
        Capability::Atomic => says(basic.atomic_cap != 0, "atomics"),
        Capability::Multicast => says(basic.max_mcast_grp > 0, "groups of multicast"),
        Capability::Events => device.create_channel().map(drop).map_err(tell),
        Capability::Rss => says(device.raw_caps().rss.is_some(), "hash for raw packets"),
        _ => Ok(()),
    }
}

/// An error of trying, with the remedy where there is one.
fn hint(error: VerbError) -> String {
    match error.remedy() {
        Some(remedy) => format!("{error}: {remedy}"),
        None => error.to_string(),
    }
}

/// What the device says of itself.
fn said(attr: &ibv_device_attr_ex, completion_vectors: u32) -> Capabilities {
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
