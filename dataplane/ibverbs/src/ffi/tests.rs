//! Tests that compare structure layouts with the installed header, and tests of functions that a driver lacks.

use std::collections::BTreeMap;
use std::env;
use std::io::Write;
use std::mem::zeroed;
use std::process::{Command, Stdio};

use super::super::fake::{Call, Completion, Fake, NO_ERRNO, Op, Poll, with_windows};
use super::*;
use dataplane_testing::{Folder, skip};

/// The names of structures with their sizes, and names of members with their offsets. The names are `struct` or
/// `struct.member`, as in C.
struct Layouts(Vec<(String, usize)>);

macro_rules! layouts {
    ($($c:ident = $rust:ty: $($member:ident),+;)+) => {{
        let mut list = Vec::new();
        $(
            list.push((stringify!($c).to_owned(), size_of::<$rust>()));
            $({
                let member = stringify!($member).trim_start_matches("r#");
                let member = member.strip_suffix('_').unwrap_or(member);
                list.push((format!("{}.{member}", stringify!($c)), offset_of!($rust, $member)));
            })+
        )+
        Layouts(list)
    }};
}

/// Returns the layouts of the structures that this crate declares by hand, and of the structures that libibverbs
/// allocates or reads.
fn layouts() -> Layouts {
    layouts! {
        verbs_context = VerbsContext: query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
            create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
            destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td,
            modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq, create_wq,
            query_rt_values, create_cq_ex, r#priv, query_device_ex, ibv_destroy_flow, ABI_placeholder2, ibv_create_flow,
            ABI_placeholder1, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd,
            _ABI_placeholder3, sz, context;
        ibv_wc = Wc: wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid,
            sl, dlid_path_bits;
        ibv_context = ibv_context: device, ops, cmd_fd, async_fd, num_comp_vectors, abi_compat;
        ibv_context_ops = ibv_context_ops: alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv,
            post_send, post_recv;
        ibv_cq = ibv_cq: context, channel, cqe;
        ibv_cq_ex = ibv_cq_ex: context, channel, cqe, comp_mask, status, wr_id, start_poll, next_poll, end_poll,
            read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags,
            read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info,
            read_completion_wallclock_ns;
        ibv_cq_init_attr_ex = ibv_cq_init_attr_ex: cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags,
            parent_domain;
        ibv_modify_cq_attr = ibv_modify_cq_attr: attr_mask, moderate;
        ibv_poll_cq_attr = ibv_poll_cq_attr: comp_mask;
        ibv_qp = ibv_qp: context, pd, send_cq, recv_cq, srq, qp_num, state, qp_type;
        ibv_qp_ex = ibv_qp_ex: qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
            wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv,
            wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge,
            wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write;
        ibv_qp_init_attr = ibv_qp_init_attr: qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all;
        ibv_qp_init_attr_ex = ibv_qp_init_attr_ex: qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
            comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags;
        ibv_qp_attr = ibv_qp_attr: qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
            max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num,
            alt_timeout, rate_limit;
        ibv_qp_rate_limit_attr = ibv_qp_rate_limit_attr: rate_limit, max_burst_sz, typical_pkt_sz, comp_mask;
        ibv_send_wr = ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type;
        ibv_recv_wr = ibv_recv_wr: wr_id, next, sg_list, num_sge;
        ibv_sge = ibv_sge: addr, length, lkey;
        ibv_data_buf = ibv_data_buf: addr, length;
        ibv_mw = ibv_mw: context, pd, rkey, handle, type_;
        ibv_mw_bind = ibv_mw_bind: wr_id, send_flags, bind_info;
        ibv_mw_bind_info = ibv_mw_bind_info: mr, addr, length, mw_access_flags;
        ibv_mr = ibv_mr: context, pd, addr, length, handle, lkey, rkey;
        ibv_pd = ibv_pd: context, handle;
        ibv_srq = ibv_srq: context, pd, handle;
        ibv_wq = ibv_wq: context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond,
            events_completed, comp_mask;
        ibv_wq_init_attr = ibv_wq_init_attr: wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags;
        ibv_wq_attr = ibv_wq_attr: attr_mask, wq_state, curr_wq_state, flags, flags_mask;
        ibv_rwq_ind_table = ibv_rwq_ind_table: context, ind_tbl_handle, ind_tbl_num, comp_mask;
        ibv_rwq_ind_table_init_attr = ibv_rwq_ind_table_init_attr: log_ind_tbl_size, ind_tbl, comp_mask;
        ibv_rx_hash_conf = ibv_rx_hash_conf: rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask;
        ibv_device_attr = ibv_device_attr: fw_ver, max_mr_size, max_qp, max_qp_wr, device_cap_flags, max_sge, max_cq,
            max_cqe, max_mr, max_raw_ethy_qp, phys_port_cnt;
        ibv_device_attr_ex = ibv_device_attr_ex: orig_attr, comp_mask, odp_caps, completion_timestamp_mask,
            hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
            raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex;
        ibv_port_attr = ibv_port_attr: state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
            bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2;
        ibv_gid_entry = ibv_gid_entry: gid, gid_index, port_num, gid_type, ndev_ifindex;
        ibv_values_ex = ibv_values_ex: comp_mask, raw_clock;
        ibv_async_event = ibv_async_event: element, event_type;
        ibv_ah_attr = ibv_ah_attr: grh, dlid, sl, src_path_bits, static_rate, is_global, port_num;
        ibv_grh = ibv_grh: version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid;
        ibv_td = ibv_td: context;
        ibv_td_init_attr = ibv_td_init_attr: comp_mask;
        ibv_parent_domain_init_attr = ibv_parent_domain_init_attr: pd, td, comp_mask, alloc, free, pd_context;
        ibv_counters = ibv_counters: context;
        ibv_counters_init_attr = ibv_counters_init_attr: comp_mask;
        ibv_counter_attach_attr = ibv_counter_attach_attr: counter_desc, index, comp_mask;
        ibv_flow = ibv_flow: comp_mask, context, handle;
        ibv_flow_attr = ibv_flow_attr: comp_mask, type_, size, priority, num_of_specs, port, flags;
        ibv_flow_spec_eth = ibv_flow_spec_eth: type_, size, val, mask;
        ibv_flow_eth_filter = ibv_flow_eth_filter: dst_mac, src_mac, ether_type, vlan_tag;
        ibv_flow_spec_ipv4_ext = ibv_flow_spec_ipv4_ext: type_, size, val, mask;
        ibv_flow_ipv4_ext_filter = ibv_flow_ipv4_ext_filter: src_ip, dst_ip, proto, tos, ttl, flags;
        ibv_flow_spec_ipv6 = ibv_flow_spec_ipv6: type_, size, val, mask;
        ibv_flow_ipv6_filter = ibv_flow_ipv6_filter: src_ip, dst_ip, flow_label, next_hdr, traffic_class, hop_limit;
        ibv_flow_spec_tcp_udp = ibv_flow_spec_tcp_udp: type_, size, val, mask;
        ibv_flow_spec_tunnel = ibv_flow_spec_tunnel: type_, size, val, mask;
        ibv_flow_spec_gre = ibv_flow_spec_gre: type_, size, val, mask;
        ibv_flow_gre_filter = ibv_flow_gre_filter: c_ks_res0_ver, protocol, key;
        ibv_flow_spec_mpls = ibv_flow_spec_mpls: type_, size, val, mask;
        ibv_flow_spec_action_tag = ibv_flow_spec_action_tag: type_, size, tag_id;
        ibv_flow_spec_action_drop = ibv_flow_spec_action_drop: type_, size;
        ibv_flow_spec_counter_action = ibv_flow_spec_counter_action: type_, size, counters;
    }
}

/// Structures to which newer versions of libibverbs may add members at the end. An added member causes no error. Either
/// the library receives the size of the structure, or the library allocates the structure and this crate uses only the
/// listed members.
const GROW: [&str; 4] = ["ibv_port_attr", "ibv_qp_ex", "ibv_cq_ex", "ibv_device_attr_ex"];

/// Returns a C program that prints the sizes and offsets of all names in a list.
fn program(list: &Layouts) -> String {
    let line = |(name, _): &(String, usize)| match name.split_once('.') {
        None => format!("  printf(\"{name} %zu\\n\", sizeof(struct {name}));\n"),
        Some((of, member)) => format!("  printf(\"{name} %zu\\n\", offsetof(struct {of}, {member}));\n"),
    };
    let lines: String = list.0.iter().map(line).collect();
    format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         int main(void)\n{{\n{lines}  return 0;\n}}\n"
    )
}

/// Compiles C source text. On failure, returns the messages of the compiler.
fn compile(source: &str, arguments: &[&str]) -> Result<(), String> {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(arguments).args(["-x", "c", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{compiler}: {error}"))?;
    child.stdin.take().expect("stdin is piped").write_all(source.as_bytes()).map_err(|error| error.to_string())?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Returns the sizes and offsets in the installed header, or the reason why the header cannot be compiled.
fn ask_header(list: &Layouts) -> Result<BTreeMap<String, usize>, String> {
    compile("#include <infiniband/verbs.h>\n", &["-fsyntax-only"])?;
    let folder = Folder::new();
    let binary = folder.file("layout");
    let path = binary.to_str().expect("the path is valid UTF-8");
    compile(&program(list), &["-o", path]).expect("the header has every structure and member that is used");
    let output = Command::new(&binary).output().expect("the program runs");
    let parse = |line: &str| line.split_once(' ').map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
    Ok(String::from_utf8(output.stdout).unwrap().lines().filter_map(parse).collect())
}

#[test]
fn layouts_match_the_installed_header() {
    let ours = layouts();
    let theirs = match ask_header(&ours) {
        Ok(theirs) => theirs,
        Err(why) => return skip(format!("no C compiler or no infiniband/verbs.h: {why}")),
    };
    assert_eq!(theirs.len(), ours.0.len());
    let whole = (size_of::<VerbsContext>(), theirs["verbs_context"]);
    for (name, ours) in &ours.0 {
        let theirs = theirs[name];
        match name.split_once('.') {
            // The structure grows at the front, so offsets are counted from the end.
            Some(("verbs_context", _)) => assert_eq!(whole.0 - ours, whole.1 - theirs, "{name}"),
            Some(_) => assert_eq!(*ours, theirs, "{name}"),
            None if name == "verbs_context" || GROW.contains(&name.as_str()) => {}
            None => assert_eq!(*ours, theirs, "{name}"),
        }
    }
}

/// Returns a `verbs_context` in which every verb is null. `sz` is the size that the library reports.
fn bare(sz: usize) -> Box<VerbsContext> {
    // SAFETY: all members are pointers and numbers, for which zeros are valid.
    let mut bare: Box<VerbsContext> = Box::new(unsafe { zeroed() });
    bare.sz = sz;
    bare.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    bare
}

unsafe extern "C" fn creates_nothing(_: *mut ibv_context, _: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
    // SAFETY: the pointer refers to the `errno` of this thread.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    ptr::null_mut()
}

/// Returns a pointer to the inner context that is also valid for the outer structure.
fn context_of(verbs: &mut VerbsContext) -> *mut ibv_context {
    let verbs: *mut VerbsContext = verbs;
    // SAFETY: the structure is valid.
    unsafe { &raw mut (*verbs).context }
}

#[test]
fn missing_verb_returns_unsupported_with_its_name() {
    let mut verbs = bare(size_of::<VerbsContext>());
    let context = context_of(&mut verbs);
    let none = |verb| VerbError::new(verb, libc::EOPNOTSUPP);
    let mut attr = ibv_cq_init_attr_ex::default();
    // SAFETY: each verb finds no function in the context and returns before it accesses the other arguments.
    unsafe {
        assert_eq!(ibv_create_cq_ex(context, &mut attr), Err(none("ibv_create_cq_ex")));
        assert_eq!(ibv_create_wq(context, &mut ibv_wq_init_attr::default()), Err(none("ibv_create_wq")));
        let mut qp_attr = ibv_qp_init_attr_ex::default();
        assert_eq!(ibv_create_qp_ex(context, &mut qp_attr), Err(none("ibv_create_qp_ex")));
        let mut values = ibv_values_ex::default();
        assert_eq!(ibv_query_rt_values_ex(context, &mut values), Err(none("ibv_query_rt_values_ex")));
        let mut cq = ibv_cq { context, ..Default::default() };
        assert_eq!(ibv_poll_cq(&mut cq, &mut []), Err(none("ibv_poll_cq")));
        assert_eq!(ibv_req_notify_cq(&mut cq, 0), Err(none("ibv_req_notify_cq")));
        let mut qp = ibv_qp { context, ..Default::default() };
        assert_eq!(ibv_create_flow(&mut qp, ptr::null_mut()), Err(none("ibv_create_flow")));
        assert_eq!(ibv_post_send(&mut qp, ptr::null_mut(), ptr::null_mut()), Err(none("ibv_post_send")));
        let mut wq = ibv_wq { context, ..Default::default() };
        assert_eq!(ibv_post_wq_recv(&mut wq, ptr::null_mut(), ptr::null_mut()), Err(none("ibv_post_wq_recv")));
    }
}

/// A member is usable only if the reported size `sz` covers it and the member is not null, as in verbs.h.
#[test]
fn member_is_used_only_within_the_reported_size() {
    let reach = size_of::<VerbsContext>() - offset_of!(VerbsContext, create_cq_ex);
    let mut attr = ibv_cq_init_attr_ex::default();
    for (sz, errno) in [(reach - 1, libc::EOPNOTSUPP), (reach, libc::ENOMEM), (usize::MAX, libc::ENOMEM)] {
        let mut verbs = bare(sz);
        verbs.create_cq_ex = Some(creates_nothing);
        let context = context_of(&mut verbs);
        // SAFETY: the context is valid. The function in the context accesses no argument.
        let made = unsafe { ibv_create_cq_ex(context, &mut attr) };
        assert_eq!(made, Err(VerbError::new("ibv_create_cq_ex", errno)), "{sz}");
    }
}

/// A library without `verbs_context` allocates a context that is not part of a larger structure. The memory in front of
/// the context must not be read.
#[test]
fn old_context_has_no_extended_verbs() {
    let mut context = Box::new(ibv_context::default());
    // SAFETY: the context is valid.
    let made = unsafe { ibv_create_cq_ex(&mut *context, &mut ibv_cq_init_attr_ex::default()) };
    assert_eq!(made, Err(VerbError::new("ibv_create_cq_ex", libc::EOPNOTSUPP)));
}

/// If a completion field was not requested, drivers set the reader function of this field to null or to 1.
#[test]
fn functions_that_a_driver_marks_as_missing_are_never_called() {
    let mut cq = ibv_cq_ex::default();
    let mut qp = ibv_qp_ex::default();
    for mark in [0_usize, 1, 4095] {
        // SAFETY: the objects are valid. The marks are written and read as integers.
        unsafe {
            (&raw mut cq.read_byte_len).cast::<usize>().write(mark);
            (&raw mut cq.start_poll).cast::<usize>().write(mark);
            (&raw mut qp.wr_send).cast::<usize>().write(mark);
            assert_eq!(ibv_wc_read_byte_len(&mut cq), None);
            assert_eq!(ibv_wr_send(&mut qp), None);
            assert_eq!(check_readers(&mut cq, 1), Err(VerbError::new("ibv_start_poll", libc::EOPNOTSUPP)));
            assert_eq!(check_builders(&mut qp, 1), Err(VerbError::new("ibv_wr_start", libc::EOPNOTSUPP)));
        }
    }
}

#[test]
fn return_values_are_converted_as_in_the_man_pages() {
    let verb = "ibv_modify_qp";
    assert_eq!(0.value(verb), Ok(()));
    assert_eq!(libc::EINVAL.value(verb), Err(VerbError::new(verb, libc::EINVAL)));
    assert_eq!((-libc::EINVAL).value(verb), Err(VerbError::new(verb, libc::EINVAL)));
    // SAFETY: the pointer refers to the `errno` of this thread.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    assert_eq!((-1).value(verb), Err(VerbError::new(verb, libc::EAGAIN)));
    assert_eq!(ptr::null_mut::<ibv_qp>().value(verb), Err(VerbError::new(verb, libc::EAGAIN)));
}

/// If a device of hns (HIP08) or vmw_pvrdma has no address handles, its library returns null without an error number.
#[test]
fn null_without_an_error_number_means_unsupported() {
    let fake = Fake::new(|_| {});
    fake.refuse("ibv_create_ah", NO_ERRNO);
    // SAFETY: the pointer refers to the `errno` of this thread.
    unsafe { *libc::__errno_location() = libc::ENOENT };
    // SAFETY: the protection domain is valid, and the fake device does not read the attributes.
    let handle = unsafe { ibv_create_ah(fake.pd().as_ptr(), &mut ibv_ah_attr::default()) };
    assert_eq!(handle, Err(VerbError::new("ibv_create_ah", libc::EOPNOTSUPP)));
    // A verb of the context operations.
    let fake = Fake::new(with_windows);
    fake.refuse("ibv_alloc_mw", NO_ERRNO);
    // SAFETY: the pointer refers to the `errno` of this thread.
    unsafe { *libc::__errno_location() = libc::ENOENT };
    // SAFETY: the protection domain is valid.
    let window = unsafe { ibv_alloc_mw(fake.pd().as_ptr(), IBV_MW_TYPE_1) };
    assert_eq!(window, Err(VerbError::new("ibv_alloc_mw", libc::EOPNOTSUPP)));
}

/// A poll returns the result of the driver unchanged, including invalid values and the errors of broken queues.
#[test]
fn poll_results_of_the_driver_are_returned_unchanged() {
    let fake = Fake::new(|_| {});
    let odd = Wc { wr_id: u64::MAX, status: 99, opcode: 200, byte_len: 4, wc_flags: 0xffff, ..Wc::default() };
    fake.polls(
        1,
        [
            Poll::ReturnCode(libc::EBUSY),
            Poll::Wc(Completion { wc: odd, ..Completion::default() }),
            Poll::wc(2, 5),
            Poll::ReturnCode(-2),
        ],
    );
    fake.polls(2, [Poll::wc(3, 0), Poll::Wc(Completion { wc: odd, ..Completion::default() }), Poll::ReturnCode(-2)]);
    let mut attr = ibv_cq_init_attr_ex { cqe: 8, wc_flags: u64::from(IBV_WC_EX_WITH_BYTE_LEN), ..Default::default() };
    // SAFETY: the objects are valid and are used in the order that the man pages require.
    unsafe {
        let cq = ibv_create_cq_ex(fake.context(), &mut attr).unwrap().as_ptr();
        assert_eq!(check_readers(cq, attr.wc_flags), Ok(()));
        let missing = VerbError::new("ibv_wc_read_flow_tag", libc::EOPNOTSUPP);
        assert_eq!(check_readers(cq, IBV_WC_EX_WITH_FLOW_TAG.into()), Err(missing));
        let mut attr = ibv_poll_cq_attr::default();
        assert_eq!(ibv_start_poll(cq, &mut attr), libc::EBUSY);
        assert_eq!(ibv_start_poll(cq, &mut attr), 0);
        assert_eq!(wc_id_and_status(cq), (u64::MAX, 99));
        assert_eq!((ibv_wc_read_opcode(cq), ibv_wc_read_byte_len(cq)), (Some(200), Some(4)));
        assert_eq!((ibv_wc_read_flow_tag(cq), ibv_wc_read_qp_num(cq)), (None, None));
        assert_eq!((wc_byte_len(cq), ibv_next_poll(cq)), (4, 0));
        assert_eq!(wc_id_and_status(cq), (2, 5));
        assert_eq!(ibv_next_poll(cq), -2);
        ibv_end_poll(cq);
        assert_eq!(ibv_start_poll(cq, &mut attr), libc::ENOENT);
        ibv_destroy_cq(cq.cast()).unwrap();

        let cq = ibv_create_cq(fake.context(), 8, ptr::null_mut(), ptr::null_mut(), 0).unwrap().as_ptr();
        let mut into = [Wc::default(); 3];
        assert_eq!(ibv_poll_cq(cq, &mut into), Ok(2));
        assert_eq!((into[0].wr_id, into[1].status, into[1].opcode), (3, 99, 200));
        assert_eq!(ibv_poll_cq(cq, &mut into), Err(VerbError::new("ibv_poll_cq", 0)));
        assert_eq!(ibv_poll_cq(cq, &mut into), Ok(0));
        ibv_destroy_cq(cq).unwrap();
    }
    assert!(!fake.calls().iter().any(|call| matches!(call, Call::Misuse(_))));
    assert_eq!(fake.live(), 0);
}

/// If the driver returns a count larger than the buffer, nothing beyond the end of the buffer may be read.
#[test]
fn poll_count_beyond_the_buffer_is_an_error() {
    let fake = Fake::new(|_| {});
    fake.polls(1, [Poll::ReturnCode(4)]);
    // SAFETY: the objects are valid.
    unsafe {
        let cq = ibv_create_cq(fake.context(), 8, ptr::null_mut(), ptr::null_mut(), 0).unwrap().as_ptr();
        let broken = VerbError::new("ibv_poll_cq", 0);
        assert_eq!(ibv_poll_cq(cq, &mut [Wc::default(); 3]), Err(broken));
        ibv_destroy_cq(cq).unwrap();
    }
}

#[test]
fn only_requested_builder_functions_exist() {
    let fake = Fake::new(|_| {});
    let pd = fake.pd();
    let mut attr = ibv_qp_init_attr_ex {
        qp_type: ibv_qp_type::IBV_QPT_RC,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: pd.as_ptr(),
        send_ops_flags: u64::from(IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM),
        ..Default::default()
    };
    // SAFETY: the objects are valid and are used in the order that the man pages require.
    unsafe {
        let qp = ibv_create_qp_ex(fake.context(), &mut attr).unwrap().as_ptr();
        let ex = ibv_qp_to_qp_ex(qp).unwrap().as_ptr();
        assert_eq!(check_builders(ex, attr.send_ops_flags), Ok(()));
        let tso = VerbError::new("ibv_wr_send_tso", libc::EOPNOTSUPP);
        assert_eq!(check_builders(ex, IBV_QP_EX_WITH_TSO.into()), Err(tso));
        fake.calls();
        ibv_wr_start(ex).unwrap();
        wr_set_id_and_flags(ex, 7, 2);
        ibv_wr_send_imm(ex, 0x0102_0304).unwrap();
        ibv_wr_set_sge(ex, 5, 4096, 64).unwrap();
        assert_eq!(ibv_wr_complete(ex), Ok(()));
        let built = Call::Wr { wr_id: 7, flags: 2, op: Op::SendImm(0x0102_0304) };
        assert_eq!(fake.calls(), [Call::WrStart, built, Call::WrSges(vec![(4096, 64, 5)]), Call::WrComplete]);
        fake.refuse("ibv_wr_complete", libc::ENOMEM);
        ibv_wr_start(ex).unwrap();
        assert_eq!(ibv_wr_complete(ex), Err(VerbError::new("ibv_wr_complete", libc::ENOMEM)));
        ibv_destroy_qp(qp).unwrap();
    }
}
