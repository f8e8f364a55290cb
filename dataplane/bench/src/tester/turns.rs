//! The order of the streams of a port that send as fast as possible.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The streams of one port that send as fast as possible. The streams share the port by their weights.
pub(super) struct Turns {
    /// The position and the number of each stream. The stream with the lowest position is next.
    order: BinaryHeap<Reverse<(u64, usize)>>,
    /// For each stream number, the distance between the positions of two packets.
    strides: Vec<u64>,
}

impl Turns {
    /// Creates the turns for the streams with the given numbers and weights.
    pub(super) fn new(weights: &[(usize, f64)]) -> Self {
        const ONE: f64 = (1u64 << 20) as f64;
        let highest = weights.iter().map(|(_, weight)| *weight).fold(0.0, f64::max);
        let mut strides = vec![1; weights.iter().map(|(number, _)| number + 1).max().unwrap_or(0)];
        for (number, weight) in weights {
            strides[*number] = ((highest / weight * ONE) as u64).max(1);
        }
        let order = weights.iter().map(|(number, _)| Reverse((strides[*number], *number))).collect();
        Self { order, strides }
    }

    /// Returns the stream of the next packet.
    #[inline]
    pub(super) fn next(&self) -> Option<usize> {
        self.order.peek().map(|Reverse((_, number))| *number)
    }

    /// Returns how many packets the stream sends before it is another stream's turn.
    #[inline]
    pub(super) fn packets(&self) -> usize {
        if self.order.len() == 1 { usize::MAX } else { 1 }
    }

    /// Notes that the next packet was sent. A single stream has no position.
    #[inline]
    pub(super) fn advance(&mut self) {
        if self.order.len() > 1
            && let Some(mut top) = self.order.peek_mut()
        {
            let Reverse((position, number)) = &mut *top;
            *position = position.saturating_add(self.strides.get(*number).copied().unwrap_or(1));
        }
    }
}
