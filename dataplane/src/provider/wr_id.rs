//! What a lane writes into `wr_id`: kind, generation, number. On an error completion it is all there is to go by.

/// What a request was posted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WrKind {
    /// A receive; the number is the slot.
    Receive = 1,
    /// A send; the number counts the sends of the queue pair.
    Send = 2,
    /// A send of no packet, posted in state ERR for its flush; the number is that of the next send.
    Marker = 3,
}

/// Kind in the top 8 bits, generation of the queue pair in the next 16, number in the low 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrId(pub u64);

impl WrId {
    /// The bits of the number.
    pub const NUMBER: u64 = (1 << 40) - 1;

    /// Puts one together; of the number the low 40 bits count.
    #[inline]
    pub const fn new(kind: WrKind, generation: u16, number: u64) -> Self {
        Self((kind as u64) << 56 | (generation as u64) << 40 | number & Self::NUMBER)
    }

    /// The number.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0 & Self::NUMBER
    }

    /// Kind and generation: equal for all requests of one queue of one generation.
    #[inline]
    pub const fn tag(self) -> u64 {
        self.0 & !Self::NUMBER
    }
}
