//! Opcodes and flags, with the values of verbs.h.

use bitflags::bitflags;

use crate::provider::code::codes;

codes! {
    /// What a send request asks for: `enum ibv_wr_opcode`.
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
        /// Ends a local key's life.
        LocalInv = 7 "IBV_WR_LOCAL_INV",
        /// Binds a memory window.
        BindMw = 8 "IBV_WR_BIND_MW",
        /// Sends a message and ends the life of one of the peer's keys.
        SendWithInv = 9 "IBV_WR_SEND_WITH_INV",
        /// Sends a TCP stream, cut into segments by the device.
        Tso = 10 "IBV_WR_TSO",
        /// The driver's own.
        Driver1 = 11 "IBV_WR_DRIVER1",
        /// Makes earlier writes visible, or persistent.
        Flush = 14 "IBV_WR_FLUSH",
        /// Writes eight bytes at once.
        AtomicWrite = 15 "IBV_WR_ATOMIC_WRITE",
    }
}

codes! {
    /// What completed: `enum ibv_wc_opcode`. Not valid after an error.
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
        /// The end of a local key.
        LocalInv = 6 "IBV_WC_LOCAL_INV",
        /// A segmented send.
        Tso = 7 "IBV_WC_TSO",
        /// A flush.
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
        /// A tag-matching list was brought in line.
        TmSync = 132 "IBV_WC_TM_SYNC",
        /// A receive that a tag matched.
        TmRecv = 133 "IBV_WC_TM_RECV",
        /// A receive without a tag.
        TmNoTag = 134 "IBV_WC_TM_NO_TAG",
        /// The driver's own.
        Driver1 = 135 "IBV_WC_DRIVER1",
        /// The driver's own.
        Driver2 = 136 "IBV_WC_DRIVER2",
        /// The driver's own.
        Driver3 = 137 "IBV_WC_DRIVER3",
    }
}

impl WcOpcode {
    /// Whether a receive completed.
    #[inline]
    pub const fn is_receive(self) -> bool {
        self.raw() & 128 != 0
    }
}

bitflags! {
    /// How a send request is to be handled: `enum ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Waits for earlier reads and atomics; reliable connections only.
        const FENCE = 1;
        /// Completes with an entry. An error always does.
        const SIGNALED = 1 << 1;
        /// The peer's completion may wake a waiter.
        const SOLICITED = 1 << 2;
        /// The bytes are copied when it is posted: the memory is free at return, and its key is not looked at.
        const INLINE = 1 << 3;
        /// The device computes the checksums of IPv4 and of TCP or UDP.
        const IP_CSUM = 1 << 4;
    }
}

bitflags! {
    /// What holds of a completion: `enum ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes received are a GRH.
        const GRH = 1;
        /// Immediate data came along. Only to be read of a receive.
        const WITH_IMM = 1 << 1;
        /// The checksums of IPv4 and of TCP or UDP are right. Its absence says nothing.
        const IP_CSUM_OK = 1 << 2;
        /// A key was invalidated.
        const WITH_INV = 1 << 3;
        /// A tag-matching list is to be brought in line.
        const TM_SYNC_REQ = 1 << 4;
        /// A tag matched.
        const TM_MATCH = 1 << 5;
        /// The tag-matching data is in memory.
        const TM_DATA_VALID = 1 << 6;
    }
}

bitflags! {
    /// Fields of a completion that are read by cursor: `enum ibv_create_cq_wc_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct PollFields: u64 {
        /// Bytes received.
        const BYTE_LEN = 1;
        /// Immediate data.
        const IMM = 1 << 1;
        /// Number of the queue pair.
        const QP_NUM = 1 << 2;
        /// Number of the sender's queue pair.
        const SRC_QP = 1 << 3;
        /// The sender's local identifier.
        const SLID = 1 << 4;
        /// Service level.
        const SL = 1 << 5;
        /// Path bits of the destination.
        const DLID_PATH_BITS = 1 << 6;
        /// A stamp in ticks of the device.
        const TIMESTAMP = 1 << 7;
        /// The VLAN tag that was taken off.
        const CVLAN = 1 << 8;
        /// The tag of the flow rule that matched.
        const FLOW_TAG = 1 << 9;
        /// Tag-matching information.
        const TM_INFO = 1 << 10;
        /// A stamp in nanoseconds of the wall clock.
        const WALLCLOCK = 1 << 11;
        /// The fields that every device with such queues has.
        const STANDARD = 0x7f;
    }
}

bitflags! {
    /// What a completion queue need not do: `enum ibv_create_cq_attr_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CqFlags: u32 {
        /// Lock: one thread polls it.
        const SINGLE_THREADED = 1;
        /// Watch for overrun: it is large enough for all that can complete.
        const IGNORE_OVERRUN = 1 << 1;
    }
}

bitflags! {
    /// Who may do what with a memory region: `enum ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Receives may write it. It can always be sent from.
        const LOCAL_WRITE = 1;
        /// The peer may write it.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read it.
        const REMOTE_READ = 1 << 2;
        /// The peer may change eight bytes at once.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addresses count from its start.
        const ZERO_BASED = 1 << 5;
        /// Pages are brought in when they are used.
        const ON_DEMAND = 1 << 6;
        /// It is backed by huge pages.
        const HUGETLB = 1 << 7;
        /// Writes may become visible out of order; ignored by a device that cannot.
        const RELAXED_ORDERING = 1 << 20;
    }
}
