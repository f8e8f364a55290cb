//! The raw-packet NIC in software: flow rules, receive offloads and send offloads of raw-packet queue pairs.
//!
//! A queue pair has a [`Receiving`] or a [`Sending`] only if its settings need one. All other queue pairs use the paths
//! that process whole runs of frames.

mod flow;
mod frames;
mod headers;
mod pacing;

use std::sync::Arc;

pub(super) use flow::SoftFlowCounters;
pub(super) use frames::{write_checksums, write_segment};
pub(super) use pacing::Pacer;

use crate::quirk::SoftQuirk;
use crate::rss::{Rss, TABLE};
use crate::shared::Shared;
use dataplane_core::clock::HostClock;
use dataplane_core::verbs::{
    Capability, FlowError, FlowLimits, PollFields, RawError, RawPacketCaps, RawSpec, RecvFlags, RecvInfo, RssCaps,
    RssSpec,
};

/// The capabilities of a raw-packet NIC. Zero-copy links lack these capabilities, because the kernel owns the frames.
pub(super) const CAPABILITIES: [Capability; 10] = [
    Capability::FlowRules,
    Capability::FlowTag,
    Capability::Cvlan,
    Capability::RxChecksum,
    Capability::TxChecksum,
    Capability::VlanStrip,
    Capability::Fcs,
    Capability::RssHash,
    Capability::Tso,
    Capability::Pacing,
];

/// The maximum payload of a segmented send in bytes.
pub(super) const MAX_TSO: u32 = 256 << 10;
/// The length of the two MAC addresses at the start of an Ethernet header.
const ADDRESSES: usize = 12;
/// The length of a VLAN tag.
const TAG: usize = 4;
/// The hashed fields that a device supports: `IBV_RX_HASH_SRC_IPV4` to `IBV_RX_HASH_DST_PORT_UDP` of
/// `enum ibv_rx_hash_fields`.
const HASH_FIELDS: u64 = 0xff;

/// The raw-packet settings of the queue pairs that a device handle creates.
#[derive(Clone, Debug)]
pub(super) struct RawSettings {
    pub(super) spec: RawSpec,
    pub(super) rss: Arc<Rss>,
}

impl RawSettings {
    /// Returns the settings of a device without offloads.
    pub(super) fn of_device(rss: &RssSpec) -> Self {
        Self::new(RawSpec { rss: rss.clone(), ..RawSpec::default() })
    }

    pub(super) fn new(spec: RawSpec) -> Self {
        Self { rss: Arc::new(Rss::new(&spec.rss)), spec }
    }

    /// Checks that the device supports the settings for a port with `queues` queues.
    ///
    /// # Errors
    /// The first unsupported setting.
    pub(super) fn check(spec: &RawSpec, device: &Shared, queues: u16) -> Result<(), RawError> {
        let caps = caps(device);
        spec.check(&caps, queues)?;
        if !caps.flow_rules && !spec.rules.is_empty() && !flow::FlowTable::new(&spec.rules).is_transparent() {
            return Err(RawError::lacks("flow rules", "remove `flow`, and select frames with an `acl` stage"));
        }
        let counters = spec.rules.iter().filter_map(|rule| rule.count.as_deref());
        if counters.into_iter().any(|counters| SoftFlowCounters::of(counters, device.identity).is_none()) {
            return Err(FlowError::OtherDevice.into());
        }
        Ok(())
    }
}

/// The limits of [`SoftQuirk::PlainFlowRules`](crate::SoftQuirk::PlainFlowRules).
const PLAIN_FLOW_RULES: FlowLimits = FlowLimits {
    unsupported_fields: &["ethernet src"],
    unsupported_headers: &["IPv6", "VXLAN", "GRE", "MPLS"],
    unsupported_actions: &["tag", "drop", "count"],
    ..FlowLimits::NONE
};

/// Returns the capabilities of a device for raw packets.
pub(super) fn caps(device: &Shared) -> RawPacketCaps {
    let has = |capability| device.has(capability);
    RawPacketCaps {
        flow_rules: has(Capability::FlowRules),
        flow: if device.has_quirk(SoftQuirk::PlainFlowRules) { PLAIN_FLOW_RULES } else { FlowLimits::NONE },
        rx_checksum: has(Capability::RxChecksum),
        tx_checksum: has(Capability::TxChecksum),
        vlan_strip: has(Capability::VlanStrip),
        scatter_fcs: has(Capability::Fcs),
        delay_drop: has(Capability::DelayDrop),
        max_tso: if has(Capability::Tso) { MAX_TSO } else { 0 },
        pacing: has(Capability::Pacing).then_some(pacing::RATES),
        rss: has(Capability::Rss).then_some(RssCaps {
            max_tables: device.limits.max_qp,
            max_table_size: TABLE,
            max_work_queues: device.limits.max_qp,
            fields: HASH_FIELDS,
        }),
    }
}

/// The receive side of a queue pair with flow rules, receive offloads or receive information.
#[derive(Debug)]
pub(super) struct Receiving {
    table: flow::FlowTable,
    strips: bool,
    appends_fcs: bool,
    /// The receive information that the completion queue was granted.
    fields: PollFields,
    rss: Arc<Rss>,
    /// A frame that the offloads have changed.
    changed: Vec<u8>,
}

impl Receiving {
    /// Returns `None` if frames are received unchanged and without receive information. `fields` are the completion
    /// fields that were granted to the receive completion queue.
    pub(super) fn new(settings: &RawSettings, fields: PollFields, max_frame: usize) -> Option<Box<Self>> {
        let table = flow::FlowTable::new(&settings.spec.rules);
        let receive = settings.spec.receive;
        let fields = fields & PollFields::RECV_INFO;
        let transparent = table.is_transparent() && !receive.vlan_strip && !receive.scatter_fcs;
        (!transparent || !fields.is_empty()).then(|| {
            Box::new(Self {
                table,
                strips: receive.vlan_strip,
                appends_fcs: receive.scatter_fcs,
                fields,
                rss: settings.rss.clone(),
                changed: Vec::with_capacity(max_frame + frames::FCS),
            })
        })
    }

    /// Processes a frame from the wire. A queue pair receives the frame once for each flow rule that applies to the
    /// frame. For each of these receives, calls `deliver` with the frame and its receive information.
    pub(super) fn receive(&mut self, frame: &[u8], mut deliver: impl FnMut(&[u8], RecvInfo)) {
        let Self { table, strips, appends_fcs, fields, rss, changed } = self;
        let mut info = RecvInfo::default();
        let (mut prepared, mut is_changed) = (false, false);
        table.apply(frame, |tag| {
            if !prepared {
                prepared = true;
                if fields.contains(PollFields::CHECKSUM) {
                    info.flags.set(RecvFlags::CHECKSUM_OK, frames::checksums_are_correct(frame));
                }
                if fields.contains(PollFields::RSS_HASH)
                    && let Some(hash) = rss.hash(frame)
                {
                    info.flags |= RecvFlags::HASH;
                    info.hash = hash;
                }
                let tag = if *strips { outer_tag(frame) } else { None };
                if tag.is_some() || *appends_fcs {
                    changed.clear();
                    changed.extend_from_slice(&frame[..ADDRESSES.min(frame.len())]);
                    changed.extend_from_slice(
                        &frame[(ADDRESSES + if tag.is_some() { TAG } else { 0 }).min(frame.len())..],
                    );
                    if *appends_fcs {
                        changed.extend_from_slice(&frames::check_sequence(frame));
                    }
                    is_changed = true;
                }
                // A completion cannot distinguish a tag control information of 0 from a frame without a tag.
                // Completions of libibverbs have the same limit.
                if let Some(tci) = tag.filter(|tci| *tci != 0 && fields.contains(PollFields::CVLAN)) {
                    info.flags |= RecvFlags::VLAN_STRIPPED;
                    info.vlan = tci;
                }
            }
            let flow_tag = if fields.contains(PollFields::FLOW_TAG) { tag } else { 0 };
            deliver(if is_changed { changed } else { frame }, RecvInfo { flow_tag, ..info });
        });
    }
}

/// Returns the tag control information of the outer VLAN tag.
fn outer_tag(frame: &[u8]) -> Option<u16> {
    let tag = frame.get(ADDRESSES..ADDRESSES + TAG)?;
    let word = |at: usize| u16::from_be_bytes([tag[at], tag[at + 1]]);
    dataplane_core::header::vlan::is_tag(word(0)).then_some(word(2))
}

/// The send side of a queue pair with send offloads.
#[derive(Debug)]
pub(super) struct Sending {
    /// Whether the device computes the checksums of packets that `post_send_run` sends.
    pub(super) checksums_of_runs: bool,
    /// The maximum length of the headers of a segmented send. 0: no segmented sends.
    pub(super) tso_header: usize,
    /// The rate limit.
    pub(super) pacer: Option<Pacer>,
}

impl Sending {
    /// Returns `None` if the settings have no send offload.
    pub(super) fn new(spec: &RawSpec, clock: &HostClock) -> Option<Box<Self>> {
        let sending = Self {
            checksums_of_runs: spec.checksum,
            tso_header: usize::from(spec.max_tso_header),
            pacer: spec.rate.filter(|rate| rate.kbps > 0).map(|rate| Pacer::new(clock, rate)),
        };
        let used = sending.checksums_of_runs || sending.tso_header > 0 || sending.pacer.is_some();
        used.then(|| Box::new(sending))
    }
}
