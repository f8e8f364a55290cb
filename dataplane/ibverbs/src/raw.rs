//! Receive and send offloads of raw-packet queue pairs: the capabilities of a device, the flags of queues, and the rate
//! limit.
//!
//! mlx5 reports a checksum verdict neither for IPv6 packets nor for fragments.
//!
//! These features have not been tested on hardware, because no test device supports them.
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use ibverbs_sys::*;

use super::context::Context;
use super::{ffi, flow, held_log};
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{FlowError, RateLimit, RawError, RawPacketCaps, RawReceive, RssCaps};

/// The length of the shortest header in bytes: an Ethernet header.
const SHORTEST_HEADER: usize = 14;

/// Returns the capabilities that `struct ibv_device_attr_ex` reports.
pub(super) fn reported_caps(attr: &ibv_device_attr_ex) -> RawPacketCaps {
    let raw = 1 << ibv_qp_type::IBV_QPT_RAW_PACKET;
    let has = |bit| attr.raw_packet_caps & bit != 0;
    let device = |bit| attr.orig_attr.device_cap_flags & bit != 0;
    // One capability bit covers the checksums of sent and of received packets.
    let checksum = has(IBV_RAW_PACKET_CAP_IP_CSUM) || device(IBV_DEVICE_RAW_IP_CSUM);
    let rss = attr.rss_caps;
    let toeplitz = u32::from(rss.rx_hash_function) & IBV_RX_HASH_FUNC_TOEPLITZ != 0;
    let pacing = attr.packet_pacing_caps;
    RawPacketCaps {
        flow_rules: device(IBV_DEVICE_MANAGED_FLOW_STEERING),
        flow: flow::limits(""),
        rx_checksum: checksum,
        tx_checksum: checksum,
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

/// Returns the capabilities of a device, with the limits of its driver.
pub(super) fn caps(context: &Context) -> RawPacketCaps {
    let reported = reported_caps(&context.limits.attr);
    // mlx4 refuses an indirection table unless the numbers of its work queues are consecutive, and the first number is
    // a multiple of the table size (`mlx4_ib_create_rwq_ind_table`). A program cannot choose these numbers. mlx4 also
    // refuses each table that contains a work queue more than once. So report no RSS for mlx4.
    let is_mlx4 = context.driver == "mlx4";
    let rss = reported.rss.filter(|_| !is_mlx4);
    // The mlx4 driver of the kernel reports segmentation, but the library of mlx4 refuses segmented sends
    // (`mlx4_post_send` in rdma-core 65).
    let max_tso = if is_mlx4 { 0 } else { reported.max_tso };
    RawPacketCaps { flow: flow::limits(&context.driver), rss, max_tso, ..reported }
}

/// Returns the flags of a work queue: `enum ibv_wq_flags`.
pub(super) fn wq_flags(receive: RawReceive) -> u32 {
    flags([
        (receive.vlan_strip, IBV_WQ_FLAGS_CVLAN_STRIPPING),
        (receive.scatter_fcs, IBV_WQ_FLAGS_SCATTER_FCS),
        (receive.delay_drop, IBV_WQ_FLAGS_DELAY_DROP),
    ])
}

/// Returns the flags of a queue pair that has its own receive queue: `enum ibv_qp_create_flags`.
///
/// # Errors
/// Returns an error if delay drop is set, because only work queues support delay drop.
pub(super) fn qp_flags(receive: RawReceive) -> Result<u32, RawError> {
    receive.check_single_queue()?;
    Ok(flags([(receive.vlan_strip, IBV_QP_CREATE_CVLAN_STRIPPING), (receive.scatter_fcs, IBV_QP_CREATE_SCATTER_FCS)]))
}

fn flags<const N: usize>(bits: [(bool, u32); N]) -> u32 {
    bits.into_iter().filter(|(wanted, _)| *wanted).fold(0, |flags, (_, bit)| flags | bit)
}

/// The send offloads of a queue pair. By default, all offloads are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offload {
    /// Whether the device computes checksums.
    pub(super) checksum: bool,
    /// Whether the device computes checksums for bursts that the caller passes as slot indices (`post_send_run`). If
    /// `true`, the device computes checksums only for the packets of the burst for which
    /// [`checksum_covers_payload`](dataplane_core::verbs::checksum_covers_payload) returns `true`.
    pub(super) checksum_runs: bool,
    /// Maximum header length of a segmented send in bytes. 0: no segmentation.
    pub(super) tso_header: u16,
    /// Maximum payload of a segmented send in bytes. 0: no segmentation.
    pub(super) tso_payload: u32,
}

impl Offload {
    /// Returns whether the device can execute a segmented send. Lengths are in bytes.
    pub(super) fn may_segment(&self, header: usize, mss: u16, payload: u64) -> bool {
        (SHORTEST_HEADER..=usize::from(self.tso_header)).contains(&header)
            && mss > 0
            && (1..=u64::from(self.tso_payload)).contains(&payload)
    }
}

/// Sets the rate limit of a queue pair. Calls `ibv_modify_qp` if only the rate is set. Otherwise calls
/// `ibv_modify_qp_rate_limit`, which also sets the burst and the packet size.
///
/// # Errors
/// Returns the errors of [`RateLimit::check`], or the error of the verb.
///
/// # Safety
/// The queue pair must be valid and in state RTS.
pub(super) unsafe fn set_rate_limit(limit: &RateLimit, qp: *mut ibv_qp, caps: &RawPacketCaps) -> Result<(), RawError> {
    limit.check(caps)?;
    // SAFETY: the caller upholds the safety contract. The attributes contain what the man pages require.
    unsafe {
        if limit.burst == 0 && limit.typical_packet_size == 0 {
            let mut attr = ibv_qp_attr { rate_limit: limit.kbps, ..Default::default() };
            let mask = ibv_qp_attr_mask::IBV_QP_RATE_LIMIT.0.cast_signed();
            ffi::ibv_modify_qp(qp, &mut attr, mask)?;
        } else {
            let mut attr = ibv_qp_rate_limit_attr {
                rate_limit: limit.kbps,
                max_burst_sz: limit.burst,
                typical_pkt_sz: limit.typical_packet_size,
                comp_mask: 0,
            };
            // The device may lack burst control, which no verb reports.
            ffi::ibv_modify_qp_rate_limit(qp, &mut attr).map_err(|error| match error.errno {
                libc::EINVAL | libc::EOPNOTSUPP => RawError::Burst(error),
                _ => RawError::Verb(error),
            })?;
        }
    }
    Ok(())
}

/// Converts an error to a verb error. Logs the error if its message contains more than the verb error.
pub(super) fn verb_error(error: &RawError, device: &str) -> VerbError {
    if !matches!(error, RawError::Verb(_) | RawError::Flow(FlowError::Refused { .. })) {
        let (device, text) = (device.to_owned(), error.to_string());
        held_log::emit(move || tracing::error!(device, "raw packets: {text}"));
    }
    error.verb_error()
}
