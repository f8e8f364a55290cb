//! Opcodes and flags, with the values of verbs.h.

use bitflags::bitflags;

use crate::mem::RecvFields;

use crate::verbs::code::codes;

codes! {
    /// The operation of a send request: `enum ibv_wr_opcode`.
    WrOpcode {
        /// Writes the peer's memory.
        RdmaWrite = 0 "IBV_WR_RDMA_WRITE",
        /// Writes the peer's memory and completes one of its receives.
        RdmaWriteWithImm = 1 "IBV_WR_RDMA_WRITE_WITH_IMM",
        /// Sends a message.
        Send = 2 "IBV_WR_SEND",
        /// Sends a message with four bytes of immediate data.
        SendWithImm = 3 "IBV_WR_SEND_WITH_IMM",
        /// Reads the peer's memory.
        RdmaRead = 4 "IBV_WR_RDMA_READ",
        /// Compares and swaps eight bytes of the peer's memory.
        AtomicCmpAndSwp = 5 "IBV_WR_ATOMIC_CMP_AND_SWP",
        /// Adds to eight bytes of the peer's memory.
        AtomicFetchAndAdd = 6 "IBV_WR_ATOMIC_FETCH_AND_ADD",
        /// Invalidates a remote key (rkey) of local memory.
        LocalInv = 7 "IBV_WR_LOCAL_INV",
        /// Binds a memory window.
        BindMw = 8 "IBV_WR_BIND_MW",
        /// Sends a message and invalidates one of the peer's keys.
        SendWithInv = 9 "IBV_WR_SEND_WITH_INV",
        /// Sends a TCP stream that the device cuts into segments.
        Tso = 10 "IBV_WR_TSO",
        /// Defined by the driver.
        Driver1 = 11 "IBV_WR_DRIVER1",
        /// Makes earlier writes visible, or persistent.
        Flush = 14 "IBV_WR_FLUSH",
        /// Writes eight bytes atomically.
        AtomicWrite = 15 "IBV_WR_ATOMIC_WRITE",
    }
}

codes! {
    /// The completed operation: `enum ibv_wc_opcode`. Not valid after an error.
    WcOpcode {
        /// A send.
        Send = 0 "IBV_WC_SEND",
        /// A write of the peer's memory.
        RdmaWrite = 1 "IBV_WC_RDMA_WRITE",
        /// A read of the peer's memory.
        RdmaRead = 2 "IBV_WC_RDMA_READ",
        /// A compare-and-swap.
        CompSwap = 3 "IBV_WC_COMP_SWAP",
        /// A fetch-and-add.
        FetchAdd = 4 "IBV_WC_FETCH_ADD",
        /// The binding of a memory window.
        BindMw = 5 "IBV_WC_BIND_MW",
        /// The invalidation of a remote key (rkey) of local memory.
        LocalInv = 6 "IBV_WC_LOCAL_INV",
        /// A segmented send.
        Tso = 7 "IBV_WC_TSO",
        /// A flush of earlier writes.
        Flush = 8 "IBV_WC_FLUSH",
        /// An atomic write.
        AtomicWrite = 9 "IBV_WC_ATOMIC_WRITE",
        /// A receive.
        Recv = 128 "IBV_WC_RECV",
        /// A receive that a write with immediate data consumed.
        RecvRdmaWithImm = 129 "IBV_WC_RECV_RDMA_WITH_IMM",
        /// An entry was added to a tag-matching list.
        TmAdd = 130 "IBV_WC_TM_ADD",
        /// An entry was removed from a tag-matching list.
        TmDel = 131 "IBV_WC_TM_DEL",
        /// A tag-matching list was synchronized.
        TmSync = 132 "IBV_WC_TM_SYNC",
        /// A receive that a tag matched.
        TmRecv = 133 "IBV_WC_TM_RECV",
        /// A receive without a tag.
        TmNoTag = 134 "IBV_WC_TM_NO_TAG",
        /// Defined by the driver.
        Driver1 = 135 "IBV_WC_DRIVER1",
        /// Defined by the driver.
        Driver2 = 136 "IBV_WC_DRIVER2",
        /// Defined by the driver.
        Driver3 = 137 "IBV_WC_DRIVER3",
    }
}

impl WcOpcode {
    /// Returns whether the opcode is the completion of a receive.
    #[inline]
    pub const fn is_receive(self) -> bool {
        self.raw() & 128 != 0
    }
}

bitflags! {
    /// Options of a send request: `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// The request waits for earlier reads and atomics; only for reliable connections.
        const FENCE = 1;
        /// The request generates a completion. A failed request always generates a completion.
        const SIGNALED = 1 << 1;
        /// The completion at the peer raises an event if the queue is armed for solicited events.
        const SOLICITED = 1 << 2;
        /// The post call copies the bytes. The memory may be reused after the call, and the local key is not checked.
        const INLINE = 1 << 3;
        /// The device computes the IPv4 checksum and the TCP or UDP checksum.
        const IP_CSUM = 1 << 4;
    }
}

bitflags! {
    /// Flags of a completion: `enum ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes received are a GRH.
        const GRH = 1;
        /// Immediate data is present. Only valid for a receive.
        const WITH_IMM = 1 << 1;
        /// The IPv4 checksum and the TCP or UDP checksum are correct. If the flag is clear, the checksums are unknown.
        const IP_CSUM_OK = 1 << 2;
        /// A key was invalidated.
        const WITH_INV = 1 << 3;
        /// The tag-matching list needs a synchronization.
        const TM_SYNC_REQ = 1 << 4;
        /// A tag matched.
        const TM_MATCH = 1 << 5;
        /// The tag-matching data is in memory.
        const TM_DATA_VALID = 1 << 6;
    }
}

bitflags! {
    /// The completion fields that are read: `enum ibv_create_cq_wc_flags`. The flags from bit 32 are not in verbs.h.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PollFields: u64 {
        /// Bytes received.
        const BYTE_LEN = 1;
        /// Immediate data.
        const IMM = 1 << 1;
        /// The number of the queue pair.
        const QP_NUM = 1 << 2;
        /// The number of the sender's queue pair.
        const SRC_QP = 1 << 3;
        /// The sender's local identifier.
        const SLID = 1 << 4;
        /// Service level.
        const SL = 1 << 5;
        /// Path bits of the destination.
        const DLID_PATH_BITS = 1 << 6;
        /// A timestamp in ticks of the device.
        const TIMESTAMP = 1 << 7;
        /// The stripped VLAN tag.
        const CVLAN = 1 << 8;
        /// The tag of the flow rule that matched.
        const FLOW_TAG = 1 << 9;
        /// Tag-matching information.
        const TM_INFO = 1 << 10;
        /// A timestamp in nanoseconds of the wall clock.
        const WALLCLOCK = 1 << 11;
        /// Whether the IPv4, TCP and UDP checksums of a received frame are correct: [`RecvFlags::CHECKSUM_OK`] in
        /// [`RecvInfo`](crate::verbs::RecvInfo). [`WcFlags::IP_CSUM_OK`] has this information even if this flag was not
        /// requested.
        const CHECKSUM = 1 << 32;
        /// The RSS hash of a received frame. Verbs completions have no such field, so libibverbs refuses this flag.
        const RSS_HASH = 1 << 33;
        /// The fields that need no capability. If a device refuses `SLID`, `SL` and `DLID_PATH_BITS`, the completion
        /// queue lacks these three fields.
        const STANDARD = 0x7f;
        /// The fields of [`RecvInfo`](crate::verbs::RecvInfo).
        const RECV_INFO = 1 << 8 | 1 << 9 | 1 << 32 | 1 << 33;
    }
}

impl From<RecvFields> for PollFields {
    /// Returns the completion fields that contain the receive information.
    fn from(fields: RecvFields) -> Self {
        let all = [
            (RecvFields::CHECKSUM, Self::CHECKSUM),
            (RecvFields::VLAN, Self::CVLAN),
            (RecvFields::FLOW_TAG, Self::FLOW_TAG),
            (RecvFields::HASH, Self::RSS_HASH),
        ];
        all.into_iter().filter(|(part, _)| fields.contains(*part)).map(|(_, field)| field).collect()
    }
}

bitflags! {
    /// The locks and checks that a completion queue may omit: `enum ibv_create_cq_attr_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CqFlags: u32 {
        /// No lock: only one thread polls the queue.
        const SINGLE_THREADED = 1;
        /// No overrun check: the queue has room for every possible completion.
        const IGNORE_OVERRUN = 1 << 1;
    }
}

bitflags! {
    /// Permitted access to a memory region: `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Receives may write the memory. Sending from the memory is always permitted.
        const LOCAL_WRITE = 1;
        /// The peer may write the memory.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read the memory.
        const REMOTE_READ = 1 << 2;
        /// The peer may perform atomic operations on the memory.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses start at 0 instead of the virtual address.
        const ZERO_BASED = 1 << 5;
        /// Pages are faulted in on demand.
        const ON_DEMAND = 1 << 6;
        /// The memory is backed by huge pages.
        const HUGETLB = 1 << 7;
        /// Writes may become visible out of order. Devices without this feature ignore the flag.
        const RELAXED_ORDERING = 1 << 20;
    }
}
