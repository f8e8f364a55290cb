//! Completions: one under a cursor, or a run of them in fixed arrays.

use crate::error::VerbError;
use crate::provider::{WcFlags, WcOpcode, WcStatus};
use crate::units::{QpNum, Ticks};

/// The most completions in a run.
pub const RUN: usize = 256;

/// Everything about one completion. After an error only `wr_id`, `status`, `qp_num` and `vendor_err` mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What the request was posted with.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// The provider's own word on an error.
    pub vendor_err: u32,
    /// Bytes received; for unreliable datagrams with the 40 of the GRH.
    pub byte_len: u32,
    /// Immediate data in network order, if [`WcFlags::WITH_IMM`].
    pub imm: u32,
    /// The queue pair whose request it was.
    pub qp_num: QpNum,
    /// The sender's queue pair; for unreliable datagrams only.
    pub src_qp: QpNum,
    /// What else holds.
    pub flags: WcFlags,
    /// When; 0 without a clock.
    pub ticks: Ticks,
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
    }

    /// Adds one. `false`: it is full.
    #[inline]
    pub fn push(&mut self, wr_id: u64, status: WcStatus, byte_len: u32, ticks: Ticks) -> bool {
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
