//! Labels: the decisions of a stage about its packets.

use crate::mem::Reason;

/// The label of a packet without a decision. A label is one byte per packet. A value between `NEXT` and `HELD` is the
/// index of an output of the stage, plus one. A value from `DROPPED` on is `DROPPED` plus the code of the drop reason.
pub(super) const NEXT: u8 = 0;
pub(super) const HELD: u8 = 126;
pub(super) const CONSUMED: u8 = 127;
pub(super) const DROPPED: u8 = 128;

/// An output of a stage: an index into the list `StageInfo::outputs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Edge(u8);

impl Edge {
    /// Maximum number of outputs of a stage.
    pub const MAX_OUTPUTS: usize = 32;

    /// Returns the output with this index.
    ///
    /// # Panics
    /// Panics if the index is [`Edge::MAX_OUTPUTS`] or more. In a constant, this is a compile error.
    pub const fn new(index: u8) -> Self {
        assert!((index as usize) < Self::MAX_OUTPUTS, "a stage has at most 32 outputs");
        Self(index)
    }

    /// Returns the index of the output.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    #[inline]
    pub(super) const fn label(self) -> u8 {
        self.0 + 1
    }

    #[inline]
    pub(super) const fn from_label(label: u8) -> Self {
        Self((label - 1) % Self::MAX_OUTPUTS as u8)
    }
}

/// A stage's decision for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No decision: the packet goes to the next stage.
    Next,
    /// The packet leaves by this output.
    Edge(Edge),
    /// The packet is dropped.
    Dropped(Reason),
    /// The packet leaves the pipeline, because it needs no further processing.
    Consumed,
    /// The stage keeps the packet for later.
    Held,
}

impl Verdict {
    /// Returns the decision that a label encodes.
    #[inline]
    pub(super) fn from_label(label: u8) -> Self {
        match label {
            NEXT => Self::Next,
            CONSUMED => Self::Consumed,
            HELD => Self::Held,
            label if label >= DROPPED => Self::Dropped(Reason::from_code(label - DROPPED)),
            edge => Self::Edge(Edge::from_label(edge)),
        }
    }
}

/// Whether the current stage has held a packet before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HoldState {
    /// The packet enters the stage for the first time.
    #[default]
    Fresh,
    /// The stage has held the packet.
    Held,
    /// The stage has held the packet for the maximum time.
    Overdue,
}
