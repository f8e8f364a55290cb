//! Completions. A cursor returns one completion at a time. A run contains many completions in fixed arrays.

use crate::error::VerbError;
use crate::mem::{RecvFlags, RecvInfo};
use crate::units::{Nanos, QpNum, Rkey, Ticks};
use crate::verbs::{PollFields, WcFlags, WcOpcode, WcStatus};

/// The maximum number of completions in a run.
pub const MAX_RUN: usize = 256;

/// A completion. A method returns `None` if its field was not requested when the queue was created, or if the field
/// does not apply to this completion. After an error, only `wr_id`, `status`, `vendor_err` and the queue pair number
/// are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The `wr_id` of the request.
    pub wr_id: u64,
    /// The result of the request.
    pub status: WcStatus,
    /// The provider-specific error code.
    pub vendor_err: u32,
    fields: PollFields,
    values: CompletionValues,
}

/// The fields of a completion that a provider fills in: the fields of `struct ibv_wc` and of an extended queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionValues {
    /// The completed operation: `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// Which other fields are valid, and properties of the message.
    pub flags: WcFlags,
    /// The number of bytes that were received, read by an RDMA read, or changed by a remote atomic operation.
    pub byte_len: u32,
    /// The immediate data if `flags` contains `WITH_IMM`, or the memory key that the peer invalidated if `flags`
    /// contains `WITH_INV`.
    pub imm: u32,
    /// The request's queue pair.
    pub qp_num: QpNum,
    /// The sender's queue pair.
    pub src_qp: QpNum,
    /// The sender's local identifier.
    pub slid: u32,
    /// The index of the packet's partition key, if the queue and the queue pair report it.
    pub pkey_index: Option<u16>,
    /// The service level.
    pub sl: u8,
    /// The low bits of the destination's local identifier (LID), which select a path.
    pub dlid_path_bits: u8,
    /// The stripped VLAN tag.
    pub cvlan: u16,
    /// The tag of the flow rule that matched, or 0.
    pub flow_tag: u32,
    /// The RSS hash of the frame, if the device computed one.
    pub rss_hash: Option<u32>,
    /// The tag of a message that the device matched to a tagged receive (`ibv_create_srq_ex(3)`).
    pub tag: TagInfo,
    /// The time of completion, in ticks of the device.
    pub ticks: Ticks,
    /// The time of completion, in nanoseconds of the wall clock.
    pub wallclock: Nanos,
}

/// Tag-matching information: `struct ibv_wc_tm_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagInfo {
    /// The tag of the message.
    pub tag: u64,
    /// Application data of the sender.
    pub private: u32,
}

impl Completion {
    /// Creates a completion with `fields` as the readable fields.
    pub const fn new(
        wr_id: u64,
        status: WcStatus,
        vendor_err: u32,
        fields: PollFields,
        values: CompletionValues,
    ) -> Self {
        Self { wr_id, status, vendor_err, fields, values }
    }

    /// Returns the completion with its readable fields reduced to `fields`.
    pub const fn only(self, fields: PollFields) -> Self {
        Self { fields: self.fields.intersection(fields), ..self }
    }

    /// Returns the values, so that a provider can fill them in.
    pub const fn values_mut(&mut self) -> &mut CompletionValues {
        &mut self.values
    }

    /// Returns the timestamp, even if the timestamp is not a readable field. Returns 0 if there is no clock.
    pub const fn raw_ticks(&self) -> Ticks {
        self.values.ticks
    }

    fn good(&self) -> bool {
        self.status == WcStatus::Success
    }

    fn has<T>(&self, field: PollFields, value: T) -> Option<T> {
        (self.good() && self.fields.contains(field)).then_some(value)
    }

    /// Returns the value of a field that only receives have.
    fn received<T>(&self, field: PollFields, value: T) -> Option<T> {
        self.has(field, value).filter(|_| WcOpcode::from_raw(self.values.opcode).is_receive())
    }

    /// Returns the completed operation, or `None` after an error.
    pub fn opcode(&self) -> Option<WcOpcode> {
        self.good().then_some(WcOpcode::from_raw(self.values.opcode))
    }

    /// Returns the flags, or `None` after an error.
    pub fn flags(&self) -> Option<WcFlags> {
        self.good().then_some(self.values.flags)
    }

    /// Returns the number of bytes that were received, read by an RDMA read, or changed by a remote atomic operation.
    /// For unreliable datagrams, the number includes the 40 bytes of the global route header (GRH). `None` for a send
    /// or a write.
    pub fn byte_len(&self) -> Option<u32> {
        let outgoing = matches!(self.opcode(), Some(WcOpcode::Send | WcOpcode::RdmaWrite));
        self.has(PollFields::BYTE_LEN, self.values.byte_len).filter(|_| !outgoing)
    }

    /// Returns the immediate data in network order, if this is a receive with immediate data.
    pub fn imm(&self) -> Option<u32> {
        self.received(PollFields::IMM, self.values.imm).filter(|_| self.values.flags.contains(WcFlags::WITH_IMM))
    }

    /// Returns the key that the peer invalidated, if this is a receive with an invalidation.
    pub fn invalidated_rkey(&self) -> Option<Rkey> {
        let rkey = self.received(PollFields::IMM, Rkey(self.values.imm));
        rkey.filter(|_| self.values.flags.contains(WcFlags::WITH_INV))
    }

    /// Returns the number of the request's queue pair. Valid after an error too.
    pub fn qp_num(&self) -> Option<QpNum> {
        self.fields.contains(PollFields::QP_NUM).then_some(self.values.qp_num)
    }

    /// Returns the sender's queue pair; only for unreliable datagrams.
    pub fn src_qp(&self) -> Option<QpNum> {
        self.received(PollFields::SRC_QP, self.values.src_qp)
    }

    /// Returns the sender's local identifier; only for unreliable datagrams on InfiniBand.
    pub fn slid(&self) -> Option<u32> {
        self.received(PollFields::SLID, self.values.slid)
    }

    /// Returns the index of the packet's partition key in the table of the port. Only for unreliable datagrams on a
    /// queue that is polled with `ibv_poll_cq(3)`. Returns `None` if the completion has immediate data or an
    /// invalidated key, because the completions of mlx4 and mlx5 store these values in the place of the index. Hardware
    /// reports a valid index only for queue pairs of the subnet management (GSI).
    pub fn pkey_index(&self) -> Option<u16> {
        let receive = self.good() && WcOpcode::from_raw(self.values.opcode).is_receive();
        let has_index = receive && !self.values.flags.intersects(WcFlags::WITH_IMM | WcFlags::WITH_INV);
        self.values.pkey_index.filter(|_| has_index)
    }

    /// Returns the service level; only for unreliable datagrams. The libibverbs provider returns the service level only
    /// on InfiniBand.
    pub fn sl(&self) -> Option<u8> {
        self.received(PollFields::SL, self.values.sl)
    }

    /// Returns the low bits of the destination's local identifier (LID), which select a path; only for unicast
    /// unreliable datagrams. The libibverbs provider returns these bits only on InfiniBand.
    pub fn dlid_path_bits(&self) -> Option<u8> {
        self.received(PollFields::DLID_PATH_BITS, self.values.dlid_path_bits)
    }

    /// Returns the stripped VLAN tag of a received frame.
    pub fn cvlan(&self) -> Option<u16> {
        self.received(PollFields::CVLAN, self.values.cvlan)
    }

    /// Returns the tag of the flow rule that matched; 0: no rule with a tag matched.
    pub fn flow_tag(&self) -> Option<u32> {
        self.received(PollFields::FLOW_TAG, self.values.flow_tag)
    }

    /// Returns the RSS hash of a received frame. `None`: the device computed no hash.
    pub fn rss_hash(&self) -> Option<u32> {
        self.received(PollFields::RSS_HASH, self.values.rss_hash).flatten()
    }

    /// Returns the receive information of a frame, limited to the readable fields.
    pub fn recv_info(&self) -> RecvInfo {
        let mut info = RecvInfo { flow_tag: self.flow_tag().unwrap_or(0), ..RecvInfo::default() };
        let flags = self.received(PollFields::CHECKSUM, self.values.flags).unwrap_or_default();
        info.flags.set(RecvFlags::CHECKSUM_OK, flags.contains(WcFlags::IP_CSUM_OK));
        if let Some(vlan) = self.cvlan().filter(|vlan| *vlan != 0) {
            info.flags |= RecvFlags::VLAN_STRIPPED;
            info.vlan = vlan;
        }
        if let Some(hash) = self.rss_hash() {
            info.flags |= RecvFlags::HASH;
            info.hash = hash;
        }
        info
    }

    /// Returns the tag of a message that the device matched to a tagged receive.
    pub fn tag_info(&self) -> Option<TagInfo> {
        self.has(PollFields::TM_INFO, self.values.tag)
    }

    /// Returns the time of completion in ticks of the device.
    pub fn ticks(&self) -> Option<Ticks> {
        self.has(PollFields::TIMESTAMP, self.values.ticks)
    }

    /// Returns the time of completion in nanoseconds of the wall clock.
    pub fn wallclock(&self) -> Option<Nanos> {
        self.has(PollFields::WALLCLOCK, self.values.wallclock)
    }
}

/// A started poll. A cursor exists only after a successful `ibv_start_poll`, and dropping the cursor calls
/// `ibv_end_poll`. `ibv_end_poll` must not be called after a failed `ibv_start_poll`, and must be called after a failed
/// `ibv_next_poll`.
pub trait Cursor {
    /// Returns the completion under the cursor.
    fn get(&self) -> Completion;

    /// Advances to the next completion: `ibv_next_poll(3)`. Returns `false` if there is no further completion. The
    /// caller then drops the cursor.
    ///
    /// # Errors
    /// The queue is unusable.
    fn advance(&mut self) -> Result<bool, VerbError>;
}

/// A run of completions. A lane (the queues of one worker on one port) polls completions in this form. The first `len`
/// entries of each array are valid, except as described at `failed`, `in_order` and `has_info`.
#[derive(Debug)]
pub struct Completions {
    /// The number of completions.
    pub len: usize,
    /// Whether at least one status is not success. `status` is valid only if `failed` is set.
    pub failed: bool,
    /// Whether the completions belong to the oldest posted receives, in posting order, with one common timestamp. This
    /// requires that the completion queue has only one queue pair. If `in_order` is set, `wr_id` is not filled in, and
    /// only the first entry of `ticks` is valid.
    pub in_order: bool,
    /// Whether `info` is valid. The completion queue sets this flag only if at least one of the fields in
    /// [`PollFields::RECV_INFO`] was granted. `info` may be valid together with `in_order`.
    pub has_info: bool,
    /// The `wr_id` of each request.
    pub wr_id: [u64; MAX_RUN],
    /// The number of received bytes; for unreliable datagrams including the 40 bytes of the global route header (GRH).
    pub byte_len: [u32; MAX_RUN],
    /// The timestamps; 0 without a clock.
    pub ticks: [Ticks; MAX_RUN],
    /// The results of the requests.
    pub status: [WcStatus; MAX_RUN],
    /// The receive information of each frame. Default values for failed requests.
    pub info: [RecvInfo; MAX_RUN],
}

impl Completions {
    /// Creates an empty run.
    pub fn new() -> Box<Self> {
        Box::new(Self {
            len: 0,
            failed: false,
            in_order: false,
            has_info: false,
            wr_id: [0; MAX_RUN],
            byte_len: [0; MAX_RUN],
            ticks: [Ticks(0); MAX_RUN],
            status: [WcStatus::Success; MAX_RUN],
            info: [RecvInfo::default(); MAX_RUN],
        })
    }

    /// Removes all completions.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.failed = false;
        self.in_order = false;
        self.has_info = false;
    }

    /// Returns the receive information of each frame, or nothing if `has_info` is not set.
    #[inline]
    pub fn infos(&self) -> &[RecvInfo] {
        if self.has_info { &self.info[..self.len.min(MAX_RUN)] } else { &[] }
    }

    /// Adds a completion to a run that is not [`Completions::in_order`]. Returns `false` if the run is full.
    #[inline]
    pub fn push(&mut self, wr_id: u64, status: WcStatus, byte_len: u32, ticks: Ticks) -> bool {
        debug_assert!(!self.in_order);
        let at = self.len;
        if at >= MAX_RUN {
            return false;
        }
        if status != WcStatus::Success && !self.failed {
            self.status[..at].fill(WcStatus::Success);
            self.failed = true;
        }
        self.wr_id[at] = wr_id;
        self.byte_len[at] = byte_len;
        self.ticks[at] = ticks;
        self.status[at] = status;
        self.len = at + 1;
        true
    }
}
