//! The layout of `wr_id` in a lane (one worker's queues on one port): kind, generation and number. The `wr_id` contains
//! this information because an error completion has almost no other valid field.

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WrKind {
    /// A receive. The number is the index of the slot (packet buffer).
    Receive = 1,
    /// A send. The number counts the sends of the queue pair.
    Send = 2,
    /// A send without a packet, posted in state ERR. Its flush completion shows that all earlier sends have ended. The
    /// number is the number of the next send.
    Marker = 3,
}

/// A `wr_id`. The top 8 bits are the kind, the next 16 bits are the generation (how often the queue pair was
/// restarted), and the low 40 bits are the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrId(pub u64);

impl WrId {
    /// The mask of the number bits.
    pub const NUMBER: u64 = (1 << 40) - 1;

    /// Combines the parts. Only the low 40 bits of `number` are used.
    #[inline]
    pub const fn new(kind: WrKind, generation: u16, number: u64) -> Self {
        Self((kind as u64) << 56 | (generation as u64) << 40 | number & Self::NUMBER)
    }

    /// Returns the number.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0 & Self::NUMBER
    }

    /// Returns the bits of the kind and of the generation. All requests of one kind on a queue pair have the same tag
    /// until the queue pair is restarted.
    #[inline]
    pub const fn tag(self) -> u64 {
        self.0 & !Self::NUMBER
    }
}
