//! Completions: one under a cursor, or a run of them in fixed arrays.

use crate::error::VerbError;
use crate::provider::{PollFields, WcFlags, WcOpcode, WcStatus};
use crate::units::{Nanos, QpNum, Rkey, Ticks};

/// The most completions in a run.
pub const RUN: usize = 256;

/// One completion. What was not asked for when its queue was made, or does not hold of it, cannot be read: of such a
/// field the reader gives `None`. After an error only `wr_id`, `status`, `vendor_err` and the queue pair mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the request was posted with.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// The provider's own word on an error.
    pub vendor_err: u32,
    fields: PollFields,
    values: Values,
}

/// The fields of a completion as a provider fills them in: `struct ibv_wc`, and what an extended queue adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Values {
    pub(super) opcode: u32,
    pub(super) flags: WcFlags,
    pub(super) byte_len: u32,
    /// Immediate data, or the key that was invalidated.
    pub(super) imm: u32,
    pub(super) qp_num: QpNum,
    pub(super) src_qp: QpNum,
    pub(super) slid: u32,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
    pub(super) cvlan: u16,
    pub(super) flow_tag: u32,
    pub(super) tag: TagInfo,
    pub(super) ticks: Ticks,
    pub(super) wallclock: Nanos,
}

/// Tag-matching information: `struct ibv_wc_tm_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagInfo {
    /// The tag of the message.
    pub tag: u64,
    /// The sender's own word.
    pub private: u32,
}

impl Completion {
    /// A completion of which these fields were read.
    pub(super) const fn new(wr_id: u64, status: WcStatus, vendor_err: u32, fields: PollFields, values: Values) -> Self {
        Self { wr_id, status, vendor_err, fields, values }
    }

    /// The same with no other fields than these.
    pub(super) const fn only(self, fields: PollFields) -> Self {
        Self { fields: self.fields.intersection(fields), ..self }
    }

    /// Its fields, to be filled in.
    pub(super) const fn values(&mut self) -> &mut Values {
        &mut self.values
    }

    /// The stamp as it stands, whichever it is; 0 without a clock.
    pub(super) const fn raw_ticks(&self) -> Ticks {
        self.values.ticks
    }

    fn good(&self) -> bool {
        self.status == WcStatus::Success
    }

    fn has<T>(&self, field: PollFields, value: T) -> Option<T> {
        (self.good() && self.fields.contains(field)).then_some(value)
    }

    /// What completed; `None` after an error.
    pub fn opcode(&self) -> Option<WcOpcode> {
        self.good().then_some(WcOpcode::from_raw(self.values.opcode))
    }

    /// What else holds; `None` after an error.
    pub fn flags(&self) -> Option<WcFlags> {
        self.good().then_some(self.values.flags)
    }

    /// Bytes received, read, or changed by an atomic; for unreliable datagrams with the 40 of the GRH. Of a send it
    /// means nothing.
    pub fn byte_len(&self) -> Option<u32> {
        self.has(PollFields::BYTE_LEN, self.values.byte_len)
    }

    /// Immediate data in network order: of a receive that came with some.
    pub fn imm(&self) -> Option<u32> {
        self.received(WcFlags::WITH_IMM)
    }

    /// The key whose life the peer has ended: of a receive that came with one.
    pub fn invalidated_rkey(&self) -> Option<Rkey> {
        self.received(WcFlags::WITH_INV).map(Rkey)
    }

    fn received(&self, with: WcFlags) -> Option<u32> {
        let holds = self.values.flags.contains(with) && WcOpcode::from_raw(self.values.opcode).is_receive();
        self.has(PollFields::IMM, self.values.imm).filter(|_| holds)
    }

    /// The queue pair whose request it was. Valid after an error too.
    pub fn qp_num(&self) -> Option<QpNum> {
        self.fields.contains(PollFields::QP_NUM).then_some(self.values.qp_num)
    }

    /// The sender's queue pair; of unreliable datagrams.
    pub fn src_qp(&self) -> Option<QpNum> {
        self.has(PollFields::SRC_QP, self.values.src_qp)
    }

    /// The sender's local identifier; of unreliable datagrams on InfiniBand.
    pub fn slid(&self) -> Option<u32> {
        self.has(PollFields::SLID, self.values.slid)
    }

    /// Service level; of unreliable datagrams.
    pub fn sl(&self) -> Option<u8> {
        self.has(PollFields::SL, self.values.sl)
    }

    /// Path bits of the destination; of unreliable datagrams that were not multicast.
    pub fn dlid_path_bits(&self) -> Option<u8> {
        self.has(PollFields::DLID_PATH_BITS, self.values.dlid_path_bits)
    }

    /// The VLAN tag that was taken off.
    pub fn cvlan(&self) -> Option<u16> {
        self.has(PollFields::CVLAN, self.values.cvlan)
    }

    /// The tag of the flow rule that matched; 0: none.
    pub fn flow_tag(&self) -> Option<u32> {
        self.has(PollFields::FLOW_TAG, self.values.flow_tag)
    }

    /// Tag-matching information.
    pub fn tag_info(&self) -> Option<TagInfo> {
        self.has(PollFields::TM_INFO, self.values.tag)
    }

    /// When it completed, in ticks of the device.
    pub fn ticks(&self) -> Option<Ticks> {
        self.has(PollFields::TIMESTAMP, self.values.ticks)
    }

    /// When it completed, in nanoseconds of the wall clock.
    pub fn wallclock(&self) -> Option<Nanos> {
        self.has(PollFields::WALLCLOCK, self.values.wallclock)
    }
}

/// A poll that has begun. It exists only on success, and dropping it ends the poll: after a failed `ibv_start_poll`,
/// `ibv_end_poll` must not be called, after a failed `ibv_next_poll` it must.
pub trait Cursor {
    /// The completion under the cursor.
    fn get(&self) -> Completion;

    /// Goes to the next: `ibv_next_poll(3)`. `false`: there is none, and the cursor is to be dropped.
    ///
    /// # Errors
    /// The queue cannot be used any more.
    fn advance(&mut self) -> Result<bool, VerbError>;
}

/// A run of completions, as the lanes read them. The first `len` entries of each array are valid.
#[derive(Debug)]
pub struct Completions {
    /// How many.
    pub len: usize,
    /// Whether any status is not success. Only then `status` is valid.
    pub failed: bool,
    /// Whether they are the oldest receives of the one queue pair that reports to the queue, in the order in which those
    /// were posted, and all of one moment. Then nothing is in `wr_id`, and of `ticks` the first alone is valid.
    pub in_order: bool,
    /// What the requests were posted with.
    pub wr_id: [u64; RUN],
    /// Bytes received; for unreliable datagrams with the 40 of the GRH.
    pub byte_len: [u32; RUN],
    /// When; 0 without a clock.
    pub ticks: [Ticks; RUN],
    /// How they ended.
    pub status: [WcStatus; RUN],
}

impl Completions {
    /// An empty run.
    pub fn new() -> Box<Self> {
        Box::new(Self {
            len: 0,
            failed: false,
            in_order: false,
            wr_id: [0; RUN],
            byte_len: [0; RUN],
            ticks: [Ticks(0); RUN],
            status: [WcStatus::Success; RUN],
        })
    }

    /// Empties it.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
        self.failed = false;
        self.in_order = false;
    }

    /// Adds one; what is there is not [`Completions::in_order`]. `false`: it is full.
    #[inline]
    pub fn push(&mut self, wr_id: u64, status: WcStatus, byte_len: u32, ticks: Ticks) -> bool {
        debug_assert!(!self.in_order);
        let at = self.len;
        if at >= RUN {
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
