//! Conversion of queue pair attributes between the C interface and the types of this crate.

use ibverbs_sys::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_port_attr, ibv_qp_attr};

use dataplane_core::units::{Gid, QpNum};
use dataplane_core::verbs::{Access, Path, QpAttributes, QpState};

pub(super) fn ah_attr(path: &Path) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: path.gid.0 },
            flow_label: path.flow_label,
            sgid_index: path.source_gid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: path.dlid,
        sl: path.service_level,
        src_path_bits: path.source_path_bits,
        static_rate: path.static_rate,
        is_global: path.global.into(),
        port_num: path.port,
    }
}

pub(super) fn gid_of(gid: ibv_gid) -> Gid {
    // SAFETY: every member of this union is 16 bytes of plain numbers.
    #[allow(unsafe_code, reason = "the binding is a C union")]
    Gid(unsafe { gid.raw })
}

fn path_of(attr: &ibv_ah_attr) -> Path {
    Path {
        global: attr.is_global != 0,
        gid: gid_of(attr.grh.dgid),
        source_gid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label,
        dlid: attr.dlid,
        service_level: attr.sl,
        source_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        port: attr.port_num,
    }
}

/// Converts all attributes. The attribute mask of the verb selects the attributes that the device uses.
pub(super) fn qp_attr(from: &QpAttributes) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: from.state.raw(),
        cur_qp_state: from.current_state.raw(),
        path_mtu: from.path_mtu.into(),
        path_mig_state: from.path_migration.into(),
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp.0,
        qp_access_flags: from.access.bits(),
        ah_attr: ah_attr(&from.path),
        alt_ah_attr: ah_attr(&from.alternate_path),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alternate_pkey_index,
        en_sqd_async_notify: from.notify_drained.into(),
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port,
        timeout: from.timeout,
        retry_cnt: from.retry_count,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alternate_path.port,
        alt_timeout: from.alternate_timeout,
        rate_limit: from.rate_limit,
        ..Default::default()
    }
}

/// Converts the attributes that a device reports. A device may return any value, so a value that is too large for its
/// field of [`QpAttributes`] is truncated.
pub(super) fn qp_attributes(from: &ibv_qp_attr) -> QpAttributes {
    QpAttributes {
        state: QpState::from_raw(from.qp_state),
        current_state: QpState::from_raw(from.cur_qp_state),
        notify_drained: from.en_sqd_async_notify != 0,
        access: Access::from_bits_truncate(from.qp_access_flags),
        pkey_index: from.pkey_index,
        port: from.port_num,
        qkey: from.qkey,
        path: path_of(&from.ah_attr),
        alternate_path: path_of(&from.alt_ah_attr),
        alternate_pkey_index: from.alt_pkey_index,
        alternate_timeout: from.alt_timeout,
        path_migration: from.path_mig_state as u8,
        path_mtu: from.path_mtu as u8,
        dest_qp: QpNum(from.dest_qp_num),
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        timeout: from.timeout,
        retry_count: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        rate_limit: from.rate_limit,
    }
}

/// Returns the MTU in bytes for a path MTU code. Codes 1 to 5 mean 256 to 4,096 bytes. Returns `None` for other codes.
pub(super) fn mtu_bytes(code: u32) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}

/// Returns the number of physical lanes of a link for a code of `ibv_port_attr::active_width`, or 0 for an unknown
/// code.
pub(super) fn lanes(code: u8) -> u8 {
    match code {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    }
}

/// Returns the nominal data rate of a physical lane in bits per second, or 0 if the code of the rate is unknown. A rate
/// that does not fit in `active_speed` is in `active_speed_ex`. Older libraries leave `active_speed_ex` at 0.
pub(super) fn lane_speed(attr: &ibv_port_attr) -> u64 {
    let code = if attr.active_speed_ex != 0 { attr.active_speed_ex } else { attr.active_speed.into() };
    let mbps = match code {
        1 => 2_500,
        2 => 5_000,
        // QDR, and FDR10.
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        256 => 200_000,
        _ => 0,
    };
    mbps * 1_000_000
}

#[cfg(test)]
mod tests {
    /// Codes of the port speed, as `ibv_devinfo` prints them.
    #[test]
    fn speed_and_width_codes_are_converted() {
        use super::{ibv_port_attr, lane_speed, lanes};
        assert_eq!([1, 2, 4, 8, 16, 0, 3].map(lanes), [1, 4, 8, 12, 2, 0, 0]);
        let speed = |active_speed, active_speed_ex| {
            lane_speed(&ibv_port_attr { active_speed, active_speed_ex, ..Default::default() }) / 1_000_000
        };
        assert_eq!(
            [1, 2, 4, 8, 16, 32, 64, 128].map(|code| speed(code, 0)),
            [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000]
        );
        assert_eq!((speed(128, 256), speed(0, 0), speed(3, 0)), (200_000, 0, 0));
    }

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The conversion to the C structure and back preserves every attribute.
        #[test]
        fn attributes_survive_conversion_in_both_directions(
            numbers in any::<[u32; 6]>(), small in any::<[u8; 16]>(), gid in any::<[u8; 16]>(), key in any::<u16>(),
            states in (0u32..9, 0u32..9), global in any::<bool>()
        ) {
            let path = Path {
                global,
                gid: Gid(gid),
                source_gid_index: small[0],
                hop_limit: small[1],
                traffic_class: small[2],
                flow_label: numbers[0],
                dlid: key ^ 0x55aa,
                service_level: small[3],
                source_path_bits: small[4],
                static_rate: small[5],
                port: small[6],
            };
            let attributes = QpAttributes {
                state: QpState::from_raw(states.0),
                current_state: QpState::from_raw(states.1),
                notify_drained: !global,
                access: Access::from_bits_truncate(numbers[1]),
                pkey_index: key,
                port: small[7],
                qkey: numbers[2],
                path,
                alternate_path: Path { port: small[8], global: !global, ..path },
                alternate_pkey_index: key ^ 0xaa55,
                alternate_timeout: small[1] ^ small[14],
                path_migration: small[9] % 3,
                path_mtu: small[10],
                dest_qp: QpNum(numbers[3]),
                rq_psn: numbers[4],
                sq_psn: numbers[5],
                max_rd_atomic: small[11],
                max_dest_rd_atomic: small[12],
                min_rnr_timer: small[13],
                timeout: small[14],
                retry_count: small[15],
                rnr_retry: small[0] ^ small[15],
                rate_limit: numbers[0] ^ numbers[5],
            };
            prop_assert_eq!(qp_attributes(&qp_attr(&attributes)), attributes);
        }
    }

    #[test]
    fn path_mtu_codes_convert_to_bytes() {
        let bytes: Vec<_> = (0..7).map(mtu_bytes).collect();
        assert_eq!(bytes, [None, Some(256), Some(512), Some(1024), Some(2048), Some(4096), None]);
    }
}
