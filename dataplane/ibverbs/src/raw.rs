//! Receive and send offloads of raw-packet queue pairs: checksums, VLAN stripping, frame check sequences, segmentation,
//! pacing and delay drop.
//!
//! [`RawPacketCaps`] contains the capabilities of a device. A setting that needs a missing capability is refused before
//! any object is created. The error names the capability.
//!
//! - Checksums: with [`SendFlags::IP_CSUM`](dataplane_core::verbs::SendFlags), the device computes the IPv4 checksum
//!   and the TCP or UDP checksum of a sent packet. The flag [`WcFlags::IP_CSUM_OK`](dataplane_core::verbs::WcFlags) of
//!   a received packet means that both checksums are correct. mlx5 never sets this flag for IPv6 packets and fragments.
//!   A missing flag therefore does not mean that a checksum is wrong.
//! - VLAN stripping: the device removes the outer VLAN tag. The completion contains the removed tag.
//! - Frame check sequence: the device delivers the 4 bytes of the frame check sequence after the frame. The received
//!   length includes them: see [`frame_length`].
//! - Segmentation (TSO): the device splits a send with headers and a long payload into many frames.
//! - Pacing: the device limits a send queue to a rate in kbit/s, and limits the size of its bursts.
//! - Delay drop: if no receive is posted, the device delays a frame for some time before it drops the frame.
//!
//! These features have not been tested on hardware, because no test device supports them.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use ibverbs_sys::*;

use super::context::Context;
use super::ffi;
use super::flow::{FlowError, FlowLimits};
use dataplane_core::error::VerbError;
use dataplane_core::header::parse::{Flags, dissect};
use dataplane_core::header::protocol;

/// Length of a frame check sequence in bytes.
const FCS: u32 = 4;
/// Offset of the checksum in a UDP header in bytes.
const UDP_CHECKSUM: usize = 6;
/// Length of the shortest header in bytes: an Ethernet header.
const SHORTEST_HEADER: usize = 14;

/// The capabilities of a device for raw-packet queue pairs, from `struct ibv_device_attr_ex`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawPacketCaps {
    /// Whether the device supports flow rules. A device without flow rules receives no raw packets.
    pub flow_rules: bool,
    /// The limits of the driver for flow rules.
    pub flow: FlowLimits,
    /// Whether the device computes the checksums of sent packets and checks the checksums of received packets.
    pub ip_checksum: bool,
    /// Whether the device can remove VLAN tags.
    pub vlan_strip: bool,
    /// Whether the device can deliver the frame check sequence after the frame.
    pub scatter_fcs: bool,
    /// Whether the device can delay a frame instead of dropping it when no receive is posted.
    pub delay_drop: bool,
    /// Maximum payload of a segmented send in bytes. 0: no segmentation.
    pub max_tso: u32,
    /// Minimum and maximum rate of a send queue in kbit/s. `None`: no pacing.
    pub pacing: Option<(u32, u32)>,
    /// The RSS capabilities. `None`: no RSS.
    pub rss: Option<RssCaps>,
}

/// The RSS capabilities of a device: `struct ibv_rss_caps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssCaps {
    /// Maximum number of indirection tables.
    pub max_tables: u32,
    /// Maximum number of entries of an indirection table.
    pub max_table_size: u32,
    /// Maximum number of work queues.
    pub max_work_queues: u32,
    /// The fields that can be hashed: `enum ibv_rx_hash_fields`.
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
            flow: FlowLimits::default(),
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

impl RawPacketCaps {
    /// Returns the capabilities of a device, with the limits of its driver.
    pub(super) fn of(context: &Context) -> Self {
        Self { flow: FlowLimits::of(&context.driver), ..Self::from(&context.limits.attr) }
    }
}

/// The reason why a setting for raw packets was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RawError {
    /// The device does not support a feature.
    #[error("the device does not support {what}; help: {remedy}")]
    Lacks {
        /// The feature.
        what: &'static str,
        /// The remedy, as a phrase in the imperative.
        remedy: &'static str,
    },
    /// A value is out of range.
    #[error("{what}: {asked} is not in the range {least} to {most}")]
    Range {
        /// The name of the value.
        what: &'static str,
        /// The requested value.
        asked: u64,
        /// The minimum.
        least: u64,
        /// The maximum.
        most: u64,
    },
    /// A flow rule is invalid, or the device refused it.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

pub(super) fn lacks(what: &'static str, remedy: &'static str) -> RawError {
    RawError::Lacks { what, remedy }
}

pub(super) fn range(what: &'static str, asked: u64, least: u64, most: u64) -> Result<(), RawError> {
    if (least..=most).contains(&asked) { Ok(()) } else { Err(RawError::Range { what, asked, least, most }) }
}

/// The receive offloads of a queue. By default, all offloads are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawReceive {
    /// Whether the device removes the outer VLAN tag. The completion contains the removed tag.
    pub vlan_strip: bool,
    /// Whether the frame check sequence follows the frame.
    pub scatter_fcs: bool,
    /// Whether the device delays a frame instead of dropping the frame when no receive is posted. Only work queues
    /// support this offload.
    pub delay_drop: bool,
}

impl RawReceive {
    /// Checks that the device supports the offloads.
    ///
    /// # Errors
    /// The first unsupported offload.
    pub(super) fn check(&self, caps: &RawPacketCaps) -> Result<(), RawError> {
        for (wanted, has, what, remedy) in [
            (self.vlan_strip, caps.vlan_strip, "VLAN stripping", "remove \"vlan_strip\" from `offload`"),
            (
                self.scatter_fcs,
                caps.scatter_fcs,
                "delivery of the frame check sequence",
                "remove \"fcs\" from `offload`",
            ),
            (self.delay_drop, caps.delay_drop, "delay drop", "remove \"delay_drop\" from `offload`"),
        ] {
            if wanted && !has {
                return Err(lacks(what, remedy));
            }
        }
        Ok(())
    }

    /// Returns the flags of a work queue: `enum ibv_wq_flags`.
    pub(super) fn wq_flags(self) -> u32 {
        flags([
            (self.vlan_strip, IBV_WQ_FLAGS_CVLAN_STRIPPING),
            (self.scatter_fcs, IBV_WQ_FLAGS_SCATTER_FCS),
            (self.delay_drop, IBV_WQ_FLAGS_DELAY_DROP),
        ])
    }

    /// Returns the flags of a queue pair that has its own receive queue: `enum ibv_qp_create_flags`.
    ///
    /// # Errors
    /// Delay drop is set, which only work queues support.
    pub(super) fn qp_flags(self) -> Result<u32, RawError> {
        if self.delay_drop {
            return Err(lacks(
                "delay drop on a queue pair",
                "use more than one worker, because only work queues support delay drop",
            ));
        }
        Ok(flags([(self.vlan_strip, IBV_QP_CREATE_CVLAN_STRIPPING), (self.scatter_fcs, IBV_QP_CREATE_SCATTER_FCS)]))
    }
}

fn flags<const N: usize>(bits: [(bool, u32); N]) -> u32 {
    bits.into_iter().filter(|(wanted, _)| *wanted).fold(0, |flags, (_, bit)| flags | bit)
}

/// Returns the length of the frame for the length in a completion. With `scatter_fcs`, the result excludes the frame
/// check sequence.
#[inline]
pub fn frame_length(received: u32, scatter_fcs: bool) -> u32 {
    if scatter_fcs { received.saturating_sub(FCS) } else { received }
}

/// The send offloads of a queue pair. By default, all offloads are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offload {
    /// Whether the device computes checksums.
    pub(super) checksum: bool,
    /// Whether the device computes the checksums of the packets of a run, except packets for which
    /// [`has_whole_checksum`] returns `false`. A run is a burst of packets that the caller passes as slot indices.
    pub(super) checksum_runs: bool,
    /// Maximum header length of a segmented send in bytes. 0: no segmentation.
    pub(super) tso_header: u16,
    /// Maximum payload of a segmented send in bytes. 0: no segmentation.
    pub(super) tso_payload: u32,
}

/// Returns whether a frame has a TCP or UDP checksum that the device can compute from this frame alone. Returns `false`
/// for a fragment, because its checksum covers all fragments, and for a UDP checksum of 0, which means "no checksum".
/// The device must not change the checksums of these frames. The stages keep such checksums correct.
pub(super) fn has_whole_checksum(frame: &[u8]) -> bool {
    let Ok(found) = dissect(frame) else { return false };
    let whole = found.flags.contains(Flags::L4_OK) && !found.flags.contains(Flags::FRAGMENT);
    match found.protocol {
        protocol::TCP => whole,
        protocol::UDP => {
            let at = usize::from(found.l4) + UDP_CHECKSUM;
            whole && frame.get(at..at + 2).is_some_and(|checksum| checksum != [0, 0])
        }
        _ => false,
    }
}

impl Offload {
    /// Returns whether the device can execute a segmented send. Lengths are in bytes.
    pub(super) fn may_segment(&self, header: usize, mss: u16, payload: u64) -> bool {
        (SHORTEST_HEADER..=usize::from(self.tso_header)).contains(&header)
            && mss > 0
            && (1..=u64::from(self.tso_payload)).contains(&payload)
    }
}

/// The rate limit of a send queue: `struct ibv_qp_rate_limit_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Rate in kbit/s. 0: no limit.
    pub kbps: u32,
    /// Maximum burst in bytes. 0: the device default.
    pub burst: u32,
    /// Typical packet size in bytes. 0: the MTU of the port.
    pub packet: u16,
}

impl RateLimit {
    /// Checks that the device supports the rate.
    ///
    /// # Errors
    /// The device does not support pacing, or the rate is out of range.
    pub(super) fn check(&self, caps: &RawPacketCaps) -> Result<(), RawError> {
        let Some((least, most)) = caps.pacing else {
            return Err(lacks("pacing", "remove the rate, or limit it in the pipeline"));
        };
        if self.kbps == 0 { Ok(()) } else { range("rate in kbit/s", self.kbps.into(), least.into(), most.into()) }
    }

    /// Sets the rate limit of a queue pair. Calls `ibv_modify_qp` if only the rate is set. Otherwise calls
    /// `ibv_modify_qp_rate_limit`, which also sets the burst and the packet size.
    ///
    /// # Errors
    /// Same as [`RateLimit::check`], or the error of the verb.
    ///
    /// # Safety
    /// The queue pair must be valid and in state RTS.
    pub(super) unsafe fn set(&self, qp: *mut ibv_qp, caps: &RawPacketCaps) -> Result<(), RawError> {
        self.check(caps)?;
        // SAFETY: the caller upholds the safety contract. The attributes contain what the man pages require.
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
