mod ah {
    #[derive(Clone)]
    pub struct VerbsAh(_);
    impl fmt::Debug for VerbsAh {}
    impl AddressHandle for VerbsAh {}
}
mod channel {
    #[derive(Clone)]
    pub struct VerbsChannel(_);
    impl fmt::Debug for VerbsChannel {}
    impl CompletionChannel for VerbsChannel {}
}
mod cq {
    pub struct VerbsCq {
        private: _,
    }
    impl Drop for VerbsCq {}
    impl fmt::Debug for VerbsCq {}
}
mod device {
    #[derive(Clone)]
    pub struct VerbsDevice {
        private: _,
    }
    impl fmt::Debug for VerbsDevice {}
    impl VerbsDevice {
        pub fn self_test(&self) -> &SelfTest {}
    }
    unsafe impl Device for VerbsDevice {}
    impl RawDevice for VerbsDevice {}
}
mod domain {
    #[derive(Clone, Debug)]
    pub struct VerbsPd(_);
    impl VerbsPd {
        pub fn register_dmabuf(
            &self,
            fd: BorrowedFd<'_>,
            offset: u64,
            length: usize,
            iova: u64,
            access: Access,
        ) -> Result<VerbsDmabuf, VerbError> {}
    }
    #[derive(Clone)]
    pub struct VerbsMr(_);
    impl fmt::Debug for VerbsMr {}
    unsafe impl MemoryRegion for VerbsMr {}
    #[derive(Clone, Debug)]
    pub struct VerbsDmabuf(_);
    impl VerbsDmabuf {
        pub fn lkey(&self) -> Lkey {}
        pub fn rkey(&self) -> Rkey {}
    }
}
mod ffi {
    exported! {
        fn ibv_open_device(device : * mut ibv_device) -> * mut ibv_context; fn
        ibv_close_device(context : * mut ibv_context) -> c_int; fn
        ibv_query_device(context : * mut ibv_context, attr : * mut ibv_device_attr) ->
        c_int; fn ibv_query_pkey(context : * mut ibv_context, port : u8, index : c_int,
        pkey : * mut u16) -> c_int; fn ibv_get_async_event(context : * mut ibv_context,
        event : * mut ibv_async_event) -> c_int; fn ibv_alloc_pd(context : * mut
        ibv_context) -> * mut ibv_pd; fn ibv_dealloc_pd(pd : * mut ibv_pd) -> c_int; fn
        ibv_reg_dmabuf_mr(pd : * mut ibv_pd, offset : u64, length : usize, iova : u64, fd
        : c_int, access : c_int) -> * mut ibv_mr; fn ibv_dereg_mr(mr : * mut ibv_mr) ->
        c_int; fn ibv_create_comp_channel(context : * mut ibv_context) -> * mut
        ibv_comp_channel; fn ibv_destroy_comp_channel(channel : * mut ibv_comp_channel)
        -> c_int; fn ibv_get_cq_event(channel : * mut ibv_comp_channel, cq : * mut * mut
        ibv_cq, context : * mut * mut c_void) -> c_int; fn ibv_create_cq(context : * mut
        ibv_context, cqe : c_int, cq_context : * mut c_void, channel : * mut
        ibv_comp_channel, vector : c_int) -> * mut ibv_cq; fn ibv_resize_cq(cq : * mut
        ibv_cq, cqe : c_int) -> c_int; fn ibv_destroy_cq(cq : * mut ibv_cq) -> c_int; fn
        ibv_query_ece(qp : * mut ibv_qp, ece : * mut ibv_ece) -> c_int; fn ibv_set_ece(qp
        : * mut ibv_qp, ece : * mut ibv_ece) -> c_int; fn ibv_create_srq(pd : * mut
        ibv_pd, attr : * mut ibv_srq_init_attr) -> * mut ibv_srq; fn ibv_modify_srq(srq :
        * mut ibv_srq, attr : * mut ibv_srq_attr, mask : c_int) -> c_int; fn
        ibv_query_srq(srq : * mut ibv_srq, attr : * mut ibv_srq_attr) -> c_int; fn
        ibv_destroy_srq(srq : * mut ibv_srq) -> c_int; fn ibv_create_qp(pd : * mut
        ibv_pd, attr : * mut ibv_qp_init_attr) -> * mut ibv_qp; fn ibv_modify_qp(qp : *
        mut ibv_qp, attr : * mut ibv_qp_attr, mask : c_int) -> c_int; fn ibv_query_qp(qp
        : * mut ibv_qp, attr : * mut ibv_qp_attr, mask : c_int, init : * mut
        ibv_qp_init_attr) -> c_int; fn ibv_destroy_qp(qp : * mut ibv_qp) -> c_int; fn
        ibv_create_ah(pd : * mut ibv_pd, attr : * mut ibv_ah_attr) -> * mut ibv_ah; fn
        ibv_destroy_ah(ah : * mut ibv_ah) -> c_int; fn ibv_attach_mcast(qp : * mut
        ibv_qp, gid : * const ibv_gid, lid : u16) -> c_int; fn ibv_detach_mcast(qp : *
        mut ibv_qp, gid : * const ibv_gid, lid : u16) -> c_int; fn ibv_fork_init() ->
        c_int; fn ibv_qp_to_qp_ex(qp : * mut ibv_qp) -> * mut ibv_qp_ex;
    }
    extended! {
        fn ibv_create_cq_ex(context : * mut ibv_context, attr : * mut
        ibv_cq_init_attr_ex) -> * mut ibv_cq_ex = create_cq_ex of context; fn
        ibv_query_rt_values_ex(context : * mut ibv_context, values : * mut ibv_values_ex)
        -> c_int = query_rt_values of context; fn ibv_create_flow(qp : * mut ibv_qp, attr
        : * mut ibv_flow_attr) -> * mut ibv_flow = ibv_create_flow of(* qp).context; fn
        ibv_destroy_flow(flow : * mut ibv_flow) -> c_int = ibv_destroy_flow of(* flow)
        .context; fn ibv_modify_wq(wq : * mut ibv_wq, attr : * mut ibv_wq_attr) -> c_int
        = modify_wq of(* wq).context; fn ibv_destroy_wq(wq : * mut ibv_wq) -> c_int =
        destroy_wq of(* wq).context; fn ibv_create_rwq_ind_table(context : * mut
        ibv_context, attr : * mut ibv_rwq_ind_table_init_attr) -> * mut ibv_rwq_ind_table
        = create_rwq_ind_table of context; fn ibv_destroy_rwq_ind_table(table : * mut
        ibv_rwq_ind_table) -> c_int = destroy_rwq_ind_table of(* table).context; fn
        ibv_modify_cq(cq : * mut ibv_cq, attr : * mut ibv_modify_cq_attr) -> c_int =
        modify_cq of(* cq).context; fn ibv_alloc_td(context : * mut ibv_context, attr : *
        mut ibv_td_init_attr) -> * mut ibv_td = alloc_td of context; fn ibv_dealloc_td(td
        : * mut ibv_td) -> c_int = dealloc_td of(* td).context; fn
        ibv_alloc_parent_domain(context : * mut ibv_context, attr : * mut
        ibv_parent_domain_init_attr) -> * mut ibv_pd = alloc_parent_domain of context; fn
        ibv_modify_qp_rate_limit(qp : * mut ibv_qp, attr : * mut ibv_qp_rate_limit_attr)
        -> c_int = modify_qp_rate_limit of(* qp).context; fn ibv_create_counters(context
        : * mut ibv_context, attr : * mut ibv_counters_init_attr) -> * mut ibv_counters =
        create_counters of context; fn ibv_destroy_counters(counters : * mut
        ibv_counters) -> c_int = destroy_counters of(* counters).context; fn
        ibv_attach_counters_point_flow(counters : * mut ibv_counters, attr : * mut
        ibv_counter_attach_attr, flow : * mut ibv_flow) -> c_int =
        attach_counters_point_flow of(* counters).context; fn ibv_read_counters(counters
        : * mut ibv_counters, values : * mut u64, count : u32, flags : u32) -> c_int =
        read_counters of(* counters).context;
    }
    operations! {
        fn ibv_req_notify_cq(cq : * mut ibv_cq, solicited : c_int) -> c_int =
        req_notify_cq of(* cq).context; fn ibv_post_send(qp : * mut ibv_qp, wr : * mut
        ibv_send_wr, bad : * mut * mut ibv_send_wr) -> c_int = post_send of(* qp)
        .context; fn ibv_post_recv(qp : * mut ibv_qp, wr : * mut ibv_recv_wr, bad : * mut
        * mut ibv_recv_wr) -> c_int = post_recv of(* qp).context; fn
        ibv_post_srq_recv(srq : * mut ibv_srq, wr : * mut ibv_recv_wr, bad : * mut * mut
        ibv_recv_wr) -> c_int = post_srq_recv of(* srq).context; fn ibv_alloc_mw(pd : *
        mut ibv_pd, of_type : c_uint) -> * mut ibv_mw = alloc_mw of(* pd).context; fn
        ibv_dealloc_mw(mw : * mut ibv_mw) -> c_int = dealloc_mw of(* mw).context;
    }
    checked_readers! {
        fn ibv_start_poll(attr : * mut ibv_poll_cq_attr) -> c_int = start_poll; fn
        ibv_next_poll() -> c_int = next_poll; fn ibv_end_poll() = end_poll; fn
        wc_byte_len() -> u32 = read_byte_len; fn wc_completion_ts() -> u64 =
        read_completion_ts;
    }
    members! {
        ibv_cq_ex : fn ibv_wc_read_opcode() -> u32 = read_opcode; fn
        ibv_wc_read_vendor_err() -> u32 = read_vendor_err; fn ibv_wc_read_byte_len() ->
        u32 = read_byte_len; fn ibv_wc_read_imm_data() -> u32 = read_imm_data; fn
        ibv_wc_read_invalidated_rkey() -> u32 = read_imm_data; fn ibv_wc_read_qp_num() ->
        u32 = read_qp_num; fn ibv_wc_read_src_qp() -> u32 = read_src_qp; fn
        ibv_wc_read_wc_flags() -> u32 = read_wc_flags; fn ibv_wc_read_slid() -> u32 =
        read_slid; fn ibv_wc_read_sl() -> u8 = read_sl; fn ibv_wc_read_dlid_path_bits()
        -> u8 = read_dlid_path_bits; fn ibv_wc_read_completion_ts() -> u64 =
        read_completion_ts; fn ibv_wc_read_completion_wallclock_ns() -> u64 =
        read_completion_wallclock_ns; fn ibv_wc_read_cvlan() -> u16 = read_cvlan; fn
        ibv_wc_read_flow_tag() -> u32 = read_flow_tag; fn ibv_wc_read_tm_info(info : *
        mut ibv_wc_tm_info) = read_tm_info;
    }
    members! {
        ibv_qp_ex : fn ibv_wr_start() = wr_start; fn ibv_wr_abort() = wr_abort; fn
        ibv_wr_atomic_cmp_swp(rkey : u32, address : u64, compare : u64, swap : u64) =
        wr_atomic_cmp_swp; fn ibv_wr_atomic_fetch_add(rkey : u32, address : u64, add :
        u64) = wr_atomic_fetch_add; fn ibv_wr_local_inv(rkey : u32) = wr_local_inv; fn
        ibv_wr_rdma_read(rkey : u32, address : u64) = wr_rdma_read; fn
        ibv_wr_rdma_write(rkey : u32, address : u64) = wr_rdma_write; fn
        ibv_wr_rdma_write_imm(rkey : u32, address : u64, imm_data : u32) =
        wr_rdma_write_imm; fn ibv_wr_send() = wr_send; fn ibv_wr_send_imm(imm_data : u32)
        = wr_send_imm; fn ibv_wr_send_inv(rkey : u32) = wr_send_inv; fn
        ibv_wr_send_tso(header : * mut c_void, length : u16, mss : u16) = wr_send_tso; fn
        ibv_wr_set_ud_addr(ah : * mut ibv_ah, qpn : u32, qkey : u32) = wr_set_ud_addr; fn
        ibv_wr_set_inline_data(address : * mut c_void, length : usize) =
        wr_set_inline_data; fn ibv_wr_set_inline_data_list(count : usize, list : * const
        ibv_data_buf) = wr_set_inline_data_list; fn ibv_wr_set_sge(lkey : u32, address :
        u64, length : u32) = wr_set_sge; fn ibv_wr_set_sge_list(count : usize, list : *
        const ibv_sge) = wr_set_sge_list;
    }
}
mod flow {
    mod encode {
        pub fn encode_flow_rule(rule: &FlowRule) -> Result<Vec<u8>, FlowError> {}
    }
    pub use encode::encode_flow_rule;
}
mod objects {
    unsafe impl ProtectionDomain for VerbsPd {}
}
mod poll {
    unsafe impl CompletionQueue for VerbsCq {}
    #[derive(Debug)]
    pub struct VerbsCursor<'cq>(_);
    impl Cursor for VerbsCursor<'_> {}
    impl Drop for VerbsCursor<'_> {}
}
mod qp {
    pub struct VerbsQp {
        private: _,
    }
    unsafe impl Send for VerbsQp {}
    impl Drop for VerbsQp {}
    impl fmt::Debug for VerbsQp {}
}
mod queue_pair {
    impl VerbsQp {
        pub fn set_rate_limit(&mut self, limit: RateLimit) -> Result<(), VerbError> {}
    }
    unsafe impl QueuePair for VerbsQp {}
}
mod selftest {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum SelfTest {
        Passed,
        Failed(String),
        Unknown(String),
    }
}
mod srq {
    #[derive(Clone)]
    pub struct VerbsSrq(_);
    impl fmt::Debug for VerbsSrq {}
    unsafe impl SharedReceiveQueue for VerbsSrq {}
}
mod unlisted {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct UnlistedDevice {
        pub name: String,
        pub why: String,
        pub fix: String,
    }
    impl fmt::Display for UnlistedDevice {}
}
mod window {
    pub struct VerbsMw {
        private: _,
    }
    unsafe impl Send for VerbsMw {}
    impl Drop for VerbsMw {}
    impl fmt::Debug for VerbsMw {}
    impl MemoryWindow for VerbsMw {}
}
pub use ah::VerbsAh;
pub use channel::VerbsChannel;
pub use cq::VerbsCq;
pub use device::VerbsDevice;
pub use domain::{VerbsDmabuf, VerbsMr, VerbsPd};
pub use flow::encode_flow_rule;
pub use poll::VerbsCursor;
pub use qp::VerbsQp;
pub use selftest::SelfTest;
pub use srq::VerbsSrq;
pub use unlisted::UnlistedDevice;
pub use window::VerbsMw;
#[derive(Clone, Copy, Debug, Default)]
pub struct VerbsProvider;
impl Provider for VerbsProvider {}
impl VerbsProvider {
    pub fn unlisted(&self) -> Result<Vec<UnlistedDevice>> {}
}
