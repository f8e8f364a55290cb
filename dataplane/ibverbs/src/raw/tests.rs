//! Tests of the device capabilities for raw packets, and of the offloads that a config requests.

use super::super::fake::{Call, Fake, Op};
use super::*;

/// Returns device attributes with every capability. The capabilities that depend on the queue pair type are set only
/// for type `kind`.
fn attributes(kind: u32) -> ibv_device_attr_ex {
    let mut attr = ibv_device_attr_ex::default();
    attr.orig_attr.device_cap_flags = 1 << 29;
    attr.raw_packet_caps = 1 | 2 | 4 | 8;
    attr.tso_caps = ibv_tso_caps { max_tso: 262_144, supported_qpts: 1 << kind };
    attr.packet_pacing_caps =
        ibv_packet_pacing_caps { qp_rate_limit_min: 1, qp_rate_limit_max: 100_000_000, supported_qpts: 1 << kind };
    attr.rss_caps = ibv_rss_caps {
        supported_qpts: 1 << kind,
        max_rwq_indirection_tables: 1024,
        max_rwq_indirection_table_size: 2048,
        rx_hash_fields_mask: 0x8000_00ff,
        rx_hash_function: 1,
    };
    attr.max_wq_type_rq = 4096;
    attr
}

fn caps() -> RawPacketCaps {
    reported_caps(&attributes(8))
}

#[test]
fn only_raw_packet_capabilities_are_reported() {
    let rss = RssCaps { max_tables: 1024, max_table_size: 2048, max_work_queues: 4096, fields: 0x8000_00ff };
    let all = RawPacketCaps {
        flow_rules: true,
        flow: flow::limits(""),
        rx_checksum: true,
        tx_checksum: true,
        vlan_strip: true,
        scatter_fcs: true,
        delay_drop: true,
        max_tso: 262_144,
        pacing: Some((1, 100_000_000)),
        rss: Some(rss),
    };
    assert_eq!(caps(), all);
    // Bit 4 stands for datagram queue pairs, so these capabilities do not apply to raw-packet queue pairs.
    let datagrams = reported_caps(&attributes(4));
    assert_eq!(datagrams, RawPacketCaps { max_tso: 0, pacing: None, rss: None, ..all });
    let mut other_hash = attributes(8);
    other_hash.rss_caps.rx_hash_function = 2;
    assert_eq!(reported_caps(&other_hash).rss, None);
    let nothing = reported_caps(&ibv_device_attr_ex::default());
    assert_eq!(nothing, RawPacketCaps { flow: all.flow, ..RawPacketCaps::default() });
    let mut old = ibv_device_attr_ex::default();
    old.orig_attr.device_cap_flags = 1 << 26;
    assert_eq!(reported_caps(&old), RawPacketCaps { rx_checksum: true, tx_checksum: true, ..nothing });
}

#[test]
fn receive_offloads_map_to_verbs_flags() {
    let all = RawReceive { vlan_strip: true, scatter_fcs: true, delay_drop: true };
    assert_eq!(wq_flags(all), 1 | 2 | 4);
    assert_eq!(qp_flags(RawReceive { delay_drop: false, ..all }), Ok(1 << 8 | 1 << 9));
    assert!(qp_flags(all).unwrap_err().to_string().contains("use more than one worker"));
}

#[test]
fn segmented_send_is_checked_and_built() {
    let offload = Offload { checksum: true, tso_header: 128, tso_payload: 262_144, ..Offload::default() };
    for (header, mss, payload, may) in [
        (54, 1448, 65_536, true),
        (14, 1, 1, true),
        (128, 1448, 262_144, true),
        (13, 1448, 65_536, false),
        (129, 1448, 65_536, false),
        (54, 0, 65_536, false),
        (54, 1448, 0, false),
        (54, 1448, 262_145, false),
    ] {
        assert_eq!(offload.may_segment(header, mss, payload), may, "{header} {mss} {payload}");
        assert!(!Offload::default().may_segment(header, mss, payload));
    }

    let fake = Fake::new(|_| {});
    let mut attr = ibv_qp_init_attr_ex {
        qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
        pd: fake.pd().as_ptr(),
        max_tso_header: 128,
        send_ops_flags: IBV_QP_EX_WITH_TSO.into(),
        ..Default::default()
    };
    let mut header = *b"fourteen bytes";
    // SAFETY: the objects are valid and are used in the order that the man pages require.
    unsafe {
        let qp = ffi::ibv_create_qp_ex(fake.context(), &mut attr).unwrap().as_ptr();
        let ex = ffi::ibv_qp_to_qp_ex(qp).unwrap().as_ptr();
        ffi::ibv_wr_start(ex).unwrap();
        ffi::wr_set_id_and_flags(ex, 9, 2 | 16);
        ffi::ibv_wr_send_tso(ex, header.as_mut_ptr().cast(), header.len() as u16, 1448).unwrap();
        ffi::ibv_wr_set_sge(ex, 3, 8192, 65_536).unwrap();
        ffi::ibv_wr_complete(ex).unwrap();
        assert_eq!(
            fake.calls(),
            [
                Call::CreateQp {
                    kind: 8,
                    send: 0,
                    recv: 0,
                    comp_mask: 1 | 8 | 64,
                    flags: 0,
                    send_ops: 1 << 10,
                    max_tso_header: 128,
                },
                Call::WrStart,
                // Flags 18: `IBV_SEND_SIGNALED` and `IBV_SEND_IP_CSUM`.
                Call::Wr { wr_id: 9, flags: 18, op: Op::Tso { header: header.to_vec(), mss: 1448 } },
                Call::WrSges(vec![(8192, 65_536, 3)]),
                Call::WrComplete,
            ]
        );
        ffi::ibv_destroy_qp(qp).unwrap();
    }
}

#[test]
fn rate_with_burst_is_set_by_the_rate_limit_verb() {
    let fake = Fake::new(|_| {});
    let mut attr = ibv_qp_init_attr { qp_type: ibv_qp_type::IBV_QPT_RAW_PACKET, ..Default::default() };
    // SAFETY: the objects belong to the same device and are destroyed before it.
    unsafe {
        let qp = ffi::ibv_create_qp(fake.pd().as_ptr(), &mut attr).unwrap().as_ptr();
        fake.calls();
        set_rate_limit(&RateLimit { kbps: 5000, ..RateLimit::default() }, qp, &caps()).unwrap();
        set_rate_limit(&RateLimit { kbps: 5000, burst: 64_000, typical_packet_size: 1500 }, qp, &caps()).unwrap();
        set_rate_limit(&RateLimit::default(), qp, &caps()).unwrap();
        assert_eq!(
            fake.calls(),
            [
                Call::ModifyQp { qp: 1, mask: 1 << 25, state: 0, port: 0, rate_limit: 5000 },
                Call::RateLimit { qp: 1, rate_limit: 5000, burst: 64_000, packet: 1500, comp_mask: 0 },
                Call::ModifyQp { qp: 1, mask: 1 << 25, state: 0, port: 0, rate_limit: 0 },
            ]
        );
        let fast = RateLimit { kbps: 100_000_001, ..RateLimit::default() };
        let error = set_rate_limit(&fast, qp, &caps()).unwrap_err().to_string();
        assert_eq!(error, "rate in kbit/s: 100000001 is not in the range 1 to 100000000");
        let error = set_rate_limit(&fast, qp, &RawPacketCaps::default()).unwrap_err().to_string();
        assert!(error.contains("does not support pacing"), "{error}");
        assert_eq!(fake.calls(), []);
        fake.refuse("ibv_modify_qp_rate_limit", libc::EINVAL);
        let error = set_rate_limit(&RateLimit { kbps: 1, burst: 1, typical_packet_size: 0 }, qp, &caps()).unwrap_err();
        // mlx5 returns this error if the device has no burst control. No verb reports this capability.
        let text = error.to_string();
        assert!(text.contains("burst") && text.contains("remove `burst` and `packet`"), "{text}");
        assert_eq!(error.verb_error().verb, "ibv_modify_qp_rate_limit");
        // Without a rate, mlx5 refuses a burst and a packet size.
        fake.refuse("ibv_modify_qp_rate_limit", 0);
        fake.calls();
        for limit in [
            RateLimit { kbps: 0, burst: 1, typical_packet_size: 0 },
            RateLimit { kbps: 0, burst: 0, typical_packet_size: 1 },
        ] {
            let error = set_rate_limit(&limit, qp, &caps()).unwrap_err().to_string();
            assert_eq!(error, "rate in kbit/s: 0 is not in the range 1 to 100000000");
        }
        assert_eq!(fake.calls(), []);
        ffi::ibv_destroy_qp(qp).unwrap();
    }
    let bare = Fake::new(|verbs| verbs.modify_qp_rate_limit = None);
    let mut qp = ibv_qp { context: bare.context(), ..Default::default() };
    // SAFETY: only the context of the queue pair is accessed.
    let error = unsafe { set_rate_limit(&RateLimit { kbps: 1, burst: 1, typical_packet_size: 0 }, &mut qp, &caps()) };
    let unsupported = VerbError::new("ibv_modify_qp_rate_limit", libc::EOPNOTSUPP);
    assert_eq!(error, Err(RawError::Burst(unsupported)));
}
