//! What a device does for queue pairs of raw packets, and asking for it: checksums, VLAN tags, frame check sequences,
//! segmentation, pacing, patience with slow receivers.
//!
//! A device is asked once what it has ([`RawPacketCaps`]); a wish that it does not have is refused by name before any
//! object is made.
//!
//! - Checksums: a send with [`SendFlags::IP_CSUM`](crate::provider::SendFlags) gets those of IPv4 and of TCP or UDP from
//!   the device. Of a receive [`WcFlags::IP_CSUM_OK`](crate::provider::WcFlags) says that both are right; mlx5 never says
//!   so of IPv6 and of fragments, so its absence says nothing.
//! - VLAN strip: the outer tag is taken off, and read with the completion.
//! - Frame check sequence: its 4 bytes come behind the frame, and count: [`frame_length`].
//! - Segmentation (TSO): one send of headers and a long payload becomes many frames.
//! - Pacing: a send queue keeps to a rate in kbit/s, with bursts of a limited size.
//! - Delay drop: a frame without a posted receive waits a while instead of being dropped.
//!
//! Not run on hardware: no device of the test bed has any of it.
#![allow(unsafe_code)]

mod port;
#[cfg(test)]
mod tests;

use ibverbs_sys::*;

pub use port::RawSpec;
pub(super) use port::{RawPorts, RawQueue};

use super::ffi;
use super::flow::FlowError;
use crate::error::VerbError;
use crate::provider::SendFlags;

/// Bytes of a frame check sequence.
const FCS: u32 = 4;
/// The shortest header: Ethernet's.
const SHORTEST_HEADER: usize = 14;

/// What a device can do for queue pairs of raw packets: of `struct ibv_device_attr_ex`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawPacketCaps {
    /// Flow rules, without which nothing is received.
    pub flow_rules: bool,
    /// Checksums of sends and receives.
    pub ip_checksum: bool,
    /// Taking VLAN tags off.
    pub vlan_strip: bool,
    /// Frame check sequences behind frames.
    pub scatter_fcs: bool,
    /// Patience with receive queues that are empty.
    pub delay_drop: bool,
    /// The longest payload that it cuts into segments, in bytes; 0: none.
    pub max_tso: u32,
    /// The slowest and fastest rate of a send queue, in kbit/s; `None`: no pacing.
    pub pacing: Option<(u32, u32)>,
    /// Spreading by a hash; `None`: none.
    pub rss: Option<RssCaps>,
}

/// How a device spreads frames over work queues: `struct ibv_rss_caps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssCaps {
    /// The most indirection tables.
    pub max_tables: u32,
    /// The most entries of one.
    pub max_table_size: u32,
    /// The most work queues.
    pub max_work_queues: u32,
    /// What can be hashed: `enum ibv_rx_hash_fields`.
    pub fields: u64,
}

impl From<&ibv_device_attr_ex> for RawPacketCaps {
    fn from(attr: &ibv_device_attr_ex) -> Self {
        let raw = 1 << ibv_qp_type::IBV_QPT_RAW_PACKET;
        let has = |bit| attr.raw_packet_caps & bit != 0;
        let device = |bit| attr.orig_attr.device_cap_flags & bit != 0;
        let rss = attr.rss_caps;
        let toeplitz = u32::from(rss.rx_hash_function) & IBV_RX_HASH_FUNC_TOEPLITZ != 0;
        let pacing = attr.packet_pacing_caps;
        Self {
            flow_rules: device(IBV_DEVICE_MANAGED_FLOW_STEERING),
            ip_checksum: has(IBV_RAW_PACKET_CAP_IP_CSUM) || device(IBV_DEVICE_RAW_IP_CSUM),
            vlan_strip: has(IBV_RAW_PACKET_CAP_CVLAN_STRIPPING),
            scatter_fcs: has(IBV_RAW_PACKET_CAP_SCATTER_FCS),
            delay_drop: has(IBV_RAW_PACKET_CAP_DELAY_DROP),
            max_tso: if attr.tso_caps.supported_qpts & raw != 0 { attr.tso_caps.max_tso } else { 0 },
            pacing: (pacing.supported_qpts & raw != 0).then_some((pacing.qp_rate_limit_min, pacing.qp_rate_limit_max)),
            rss: (rss.supported_qpts & raw != 0 && toeplitz).then_some(RssCaps {
                max_tables: rss.max_rwq_indirection_tables,
                max_table_size: rss.max_rwq_indirection_table_size,
                max_work_queues: attr.max_wq_type_rq,
                fields: rss.rx_hash_fields_mask,
            }),
        }
    }
}

/// A wish for raw packets that cannot be met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RawError {
    /// The device does not have it.
    #[error("the device has no {what}: {remedy}")]
    Lacks {
        /// What was wished for.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// More than the device has, or less than is of use.
    #[error("{what}: {asked} asked for, {least} to {most} is possible")]
    Range {
        /// What was wished for.
        what: &'static str,
        /// How much.
        asked: u64,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A rule cannot be.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

fn lacks(what: &'static str, remedy: &'static str) -> RawError {
    RawError::Lacks { what, remedy }
}

pub(super) fn range(what: &'static str, asked: u64, least: u64, most: u64) -> Result<(), RawError> {
    if (least..=most).contains(&asked) { Ok(()) } else { Err(RawError::Range { what, asked, least, most }) }
}

/// What receiving is asked to do. Nothing, by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawReceive {
    /// Take the outer VLAN tag off, to be read with the completion.
    pub vlan_strip: bool,
    /// Put the frame check sequence behind the frame.
    pub scatter_fcs: bool,
    /// Let a frame wait for a receive instead of dropping it. Of work queues only.
    pub delay_drop: bool,
}

impl RawReceive {
    /// Checks that the device does it.
    ///
    /// # Errors
    /// The first that it does not.
    pub(super) fn check(&self, caps: &RawPacketCaps) -> Result<(), RawError> {
        for (wanted, has, what) in [
            (self.vlan_strip, caps.vlan_strip, "VLAN stripping"),
            (self.scatter_fcs, caps.scatter_fcs, "scattering of frame check sequences"),
            (self.delay_drop, caps.delay_drop, "delay drop"),
        ] {
            if wanted && !has {
                return Err(lacks(what, "leave it out"));
            }
        }
        Ok(())
    }

    /// The flags of a work queue: `enum ibv_wq_flags`.
    pub(super) fn wq_flags(self) -> u32 {
        flags([
            (self.vlan_strip, IBV_WQ_FLAGS_CVLAN_STRIPPING),
            (self.scatter_fcs, IBV_WQ_FLAGS_SCATTER_FCS),
            (self.delay_drop, IBV_WQ_FLAGS_DELAY_DROP),
        ])
    }

    /// The flags of a queue pair that receives by itself: `enum ibv_qp_create_flags`.
    ///
    /// # Errors
    /// Delay drop, which only work queues have.
    pub(super) fn qp_flags(self) -> Result<u32, RawError> {
        if self.delay_drop {
            return Err(lacks("delay drop of a queue pair", "it is of work queues: receive on more than one queue"));
        }
        Ok(flags([(self.vlan_strip, IBV_QP_CREATE_CVLAN_STRIPPING), (self.scatter_fcs, IBV_QP_CREATE_SCATTER_FCS)]))
    }
}

fn flags<const N: usize>(bits: [(bool, u32); N]) -> u32 {
    bits.into_iter().filter(|(wanted, _)| *wanted).fold(0, |flags, (_, bit)| flags | bit)
}

/// The length of a frame of so many received bytes: without its frame check sequence, where that was scattered.
#[inline]
pub fn frame_length(received: u32, scatter_fcs: bool) -> u32 {
    if scatter_fcs { received.saturating_sub(FCS) } else { received }
}

/// What the sends of a queue pair may ask of the device. Nothing, by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offload {
    /// Checksums.
    pub(super) checksum: bool,
    /// The flags of each send of a run.
    pub(super) run_flags: SendFlags,
    /// The longest headers of a segmented send in bytes; 0: there are none.
    pub(super) tso_header: u16,
    /// The longest payload of a segmented send in bytes.
    pub(super) tso_payload: u32,
}

impl Offload {
    /// Whether a segmented send is one that the device can carry out: libraries answer with one error to all that is not.
    pub(super) fn may_segment(&self, header: usize, mss: u16, payload: u64) -> bool {
        (SHORTEST_HEADER..=usize::from(self.tso_header)).contains(&header)
            && mss > 0
            && (1..=u64::from(self.tso_payload)).contains(&payload)
    }
}

/// The rate of a send queue: `struct ibv_qp_rate_limit_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// In kbit/s; 0: as fast as it can.
    pub kbps: u32,
    /// Bytes of a burst; 0: as the device likes.
    pub burst: u32,
    /// Bytes of a typical packet; 0: the port's MTU.
    pub packet: u16,
}

impl RateLimit {
    /// Checks that the device can keep it.
    ///
    /// # Errors
    /// No pacing, or not at this rate.
    fn check(&self, caps: &RawPacketCaps) -> Result<(), RawError> {
        let Some((least, most)) = caps.pacing else {
            return Err(lacks("pacing", "leave the rate out, or limit it in the pipeline"));
        };
        if self.kbps == 0 { Ok(()) } else { range("kbit/s", self.kbps.into(), least.into(), most.into()) }
    }

    /// Sets it: by the attribute of the queue pair where that says all, else by the verb that knows of bursts.
    ///
    /// # Errors
    /// As [`RateLimit::check`], or as the verbs.
    ///
    /// # Safety
    /// The queue pair is alive. It is in state RTS.
    pub(super) unsafe fn set(&self, qp: *mut ibv_qp, caps: &RawPacketCaps) -> Result<(), RawError> {
        self.check(caps)?;
        // SAFETY: the caller's promise; the attributes are those of the man pages.
        unsafe {
            if self.burst == 0 && self.packet == 0 {
                let mut attr = ibv_qp_attr { rate_limit: self.kbps, ..Default::default() };
                let mask = ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0.cast_signed();
                ffi::ibv_modify_qp(qp, &mut attr, mask)?;
            } else {
                let mut attr = ibv_qp_rate_limit_attr {
                    rate_limit: self.kbps,
                    max_burst_sz: self.burst,
                    typical_pkt_sz: self.packet,
                    comp_mask: 0,
                };
                ffi::ibv_modify_qp_rate_limit(qp, &mut attr)?;
            }
        }
        Ok(())
    }
}
