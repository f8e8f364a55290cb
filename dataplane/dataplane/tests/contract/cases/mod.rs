//! The cases of the verbs contract suite, grouped by topic. Each case runs on every test bed. A test bed is two
//! devices that can reach each other, or one device that loops back to itself.

use dataplane::units::{Lkey, Rkey};
use dataplane::verbs::{RawDevice, Remote, Sge};

mod completions;
mod data;
mod datagrams;
mod handshake;
mod memory;
mod opcodes;
mod posting;
mod raw;
mod rdma_core;
mod shared;
mod states;
mod statuses;

pub(crate) use raw::confuse_switch;

use crate::bed::Outcome;
use crate::{Case, Trial};

macro_rules! cases {
    ($($file:ident: $($name:ident)*;)*) => {
        /// Returns all cases.
        pub(crate) fn all<D: RawDevice>() -> Vec<Case<D>> {
            vec![$($((concat!(stringify!($file), ".", stringify!($name)), $file::$name::<D> as fn(&mut Trial<'_, D>) -> Outcome),)*)*]
        }
    };
}

cases! {
    statuses:
        rc_short_receive rc_receive_bad_lkey rc_receive_without_local_write rc_send_bad_lkey rc_write_bad_lkey
        rc_send_of_another_domain rc_send_out_of_bounds rc_read_without_local_write rc_write_bad_rkey
        rc_write_out_of_bounds rc_write_without_permission rc_read_without_permission rc_write_of_another_domain
        rc_write_not_enabled rc_read_not_enabled rc_atomic_not_enabled rc_read_max_dest_rd_atomic_0
        rc_read_unequal_mtu rc_no_receive rc_no_peer rc_read_max_rd_atomic_0 rc_send_with_invalidate_bad_rkey
        rc_error_flushes_later_requests
        uc_short_receive uc_no_receive uc_bad_rkey
        ud_wrong_qkey ud_too_long ud_short_receive ud_no_receive raw_no_receive
        error_by_user receive_after_error reset_by_user flush_order status_by_name;
    handshake: defaults parameters invalid_parameters over_tcp;
    opcodes: rc uc ud;
    raw:
        flow_ethernet flow_ipv4 flow_ipv6 flow_udp flow_tcp flow_drop_and_count receive_checksum vlan_strip send_checksum
        segmentation rate_limit rss_udp rss_tcp;
    states: rc_table uc_table ud_table query recovery send_queue_error;
    posting:
        rc_by_state uc_by_state ud_by_state receive_queue_full send_queue_full unsignalled_fills_the_queue
        one_signalled_request_frees_all signal_all too_many_elements receives_posted_in_init rtr_receives
        sqd_holds_sends;
    data:
        rc_lengths uc_lengths ud_lengths rc_write_lengths uc_write_lengths rc_read_lengths no_elements
        zero_length_write_ignores_bad_key rc_immediate uc_immediate ud_immediate rc_write_with_immediate inline fence
        rc_many uc_many ud_many rc_both_directions psn_wraps atomics atomic_not_aligned;
    completions:
        creation classic extended extended_one_at_a_time unrequested_fields_are_absent refused_capabilities_are_listed runs_and_cursor resize
        overrun events solicited_events arm_race two_queues_one_channel context parent_domain fields_of_datagrams
        fields_of_messages fields_of_errors checksum;
    shared: traffic full own_receives_are_refused limit error_keeps_shared_receives resize datagrams empty;
    memory:
        access_rules bounds bounds_below_and_overflow deregistered window_1_bounds window_2_bounds window_1_access window_2_access
        window_1_rebound window_1_unbound window_2_local_invalidate window_2_remote_invalidate
        window_without_bind_access window_out_of_bounds;
    datagrams: header own_qkey handle_of_another_domain handles multicast multicast_rules;
    rdma_core:
        test_atomic_cmp_and_swap test_atomic_fetch_and_add test_atomic_invalid_qp_access
        test_atomic_invalid_mr_access test_atomic_non_aligned_addr test_atomic_invalid_lkey test_atomic_invalid_rkey
        test_xrc_atomic
        test_create_cq test_create_cq_with_bad_flow test_destroy_cq test_resize_cq
        test_cq_events_ud test_cq_events_rc
        test_create_cq_ex test_create_cq_ex_bad_flow test_ud_traffic_cq_ex test_rc_traffic_cq_ex
        test_xrc_traffic_cq_ex
        test_eth_spec_flow_traffic test_ipv4_spec_flow_traffic test_ipv6_spec_flow_traffic test_udp_spec_flow_traffic
        test_tcp_spec_flow_traffic
        test_mr_rereg_addr test_mr_rereg_atomic test_mr_rereg_access test_mr_rereg_pd test_mr_rereg_bad_flow
        test_reg_mr_bad_flags test_mw_type1 test_mw_type2 test_mw_type2_invalidate_local
        test_mw_type2_invalidate_remote test_mw_wrong_type test_dm_traffic test_dmabuf_mr
        test_odp_rc_traffic test_odp_ud_traffic test_odp_xrc_traffic test_odp_rc_srq_traffic
        test_odp_implicit_rc_traffic test_odp_rc_huge_traffic test_odp_prefetch
        test_default_allocators_rc_traffic test_mem_align_rc_traffic
        test_create_qp_rc test_create_qp_uc test_create_qp_ud test_create_qp_raw_packet test_query_qp test_modify_qp
        test_modify_ud_qp test_modify_ud_privileged_qkey test_modify_raw_rate_limit
        test_qp_ex_ud_send test_qp_ex_ud_zero_size test_qp_ex_ud_send_imm test_qp_ex_rc_send test_qp_ex_rc_send_imm
        test_qp_ex_rc_rdma_write test_qp_ex_rc_rdma_write_imm test_qp_ex_rc_rdma_write_zero_length
        test_qp_ex_rc_rdma_read test_qp_ex_rc_rdma_read_zero_size test_qp_ex_rc_atomic_cmp_swp
        test_qp_ex_rc_atomic_fetch_add test_qp_ex_rc_atomic_write test_qp_ex_rc_flush test_qp_ex_rc_bind_mw
        test_qp_ex_xrc_send test_post_receive_qp_state_bad_flow test_post_send_qp_state_bad_flow
        test_full_rq_bad_flow test_rq_with_larger_sgl_bad_flow
        test_ro_rc_traffic test_ro_ud_traffic
        test_rss_udp_traffic test_rss_tcp_traffic
        test_rc_srq_traffic test_resize_srq test_srq_limit_event
        test_tag_matching_rc test_timestamp_free_running;
}

pub(crate) use data::{pattern, thirds};
pub(crate) use states::drain;

/// Returns the element with an invalid local key.
pub(crate) fn bad_lkey(sge: Sge) -> Sge {
    Sge { lkey: Lkey(0xdead_be00), ..sge }
}

/// Returns the remote address with an invalid remote key.
pub(crate) fn bad_rkey(remote: Remote) -> Remote {
    Remote { rkey: Rkey(0xdead_be00), ..remote }
}
