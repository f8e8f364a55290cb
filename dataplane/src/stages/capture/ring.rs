//! The way of packets from one worker to the writer: buffers go round between the two, by a ring there and one back.

use rtrb::{Consumer, Producer, RingBuffer};

use super::pcapng::Record;
use crate::clock::ClockSource;

/// The most bytes of a comment.
pub(super) const COMMENT: usize = 128;

/// How many frames the writer handles before it gives their buffers back.
const BURST: usize = 32;

/// Room for a packet and a comment.
pub(super) type Buffer = Box<[u8]>;

/// A packet on its way to the file.
pub(super) struct Frame {
    nanos: u64,
    /// Bytes that the packet had.
    original: u32,
    /// Those that were kept.
    len: u16,
    comment: u8,
    source: ClockSource,
    /// The packet, and behind it the comment.
    buffer: Buffer,
}

impl Frame {
    /// Copies a packet into a buffer, as far as it fits, with a comment that is put together of these parts.
    #[inline(always)]
    pub(super) fn new(mut buffer: Buffer, nanos: u64, source: ClockSource, packet: &[u8], comment: &[&str]) -> Self {
        let len = packet.len().min(buffer.len() - COMMENT);
        let (kept, room) = buffer.split_at_mut(len);
        kept.copy_from_slice(&packet[..len]);
        let mut room = &mut room[..COMMENT];
        for part in comment {
            let (here, rest) = room.split_at_mut(part.floor_char_boundary(room.len()));
            here.copy_from_slice(&part.as_bytes()[..here.len()]);
            room = rest;
        }
        let comment = (COMMENT - room.len()) as u8;
        Self { nanos, original: packet.len() as u32, len: len as u16, comment, source, buffer }
    }

    pub(super) fn record(&self) -> Record<'_> {
        let (bytes, room) = self.buffer.split_at(self.len.into());
        let comment = &room[..self.comment.into()];
        Record { nanos: self.nanos, source: self.source, original: self.original, bytes, comment }
    }
}

/// The worker's end.
pub(super) struct Inlet {
    free: Consumer<Buffer>,
    full: Producer<Frame>,
}

/// The writer's end.
pub(super) struct Outlet {
    full: Consumer<Frame>,
    free: Producer<Buffer>,
}

/// So many buffers, for packets of so many bytes, and the ways that they go.
pub(super) fn ring(buffers: usize, snaplen: u16) -> (Inlet, Outlet) {
    // Either side gives a slot back only after what was in it has gone on: so there are twice as many as buffers.
    let (full_in, full) = RingBuffer::new(2 * buffers);
    let (mut free, free_out) = RingBuffer::new(2 * buffers);
    let made = std::iter::repeat_with(|| vec![0; usize::from(snaplen) + COMMENT].into_boxed_slice());
    if let Ok(slots) = free.write_chunk_uninit(buffers) {
        slots.fill_from_iter(made);
    }
    (Inlet { free: free_out, full: full_in }, Outlet { full, free })
}

impl Inlet {
    /// Whether there is no writer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.full.is_abandoned()
    }

    /// Makes frames of as many of these packets as there are buffers for, and hands them over all at once. Returns how many.
    #[inline]
    pub(super) fn put<P>(
        &mut self,
        packets: &mut impl ExactSizeIterator<Item = P>,
        mut frame: impl FnMut(P, Buffer) -> Frame,
    ) -> usize {
        let wanted = packets.len();
        // To look what the writer gave back costs a cache line that it writes to.
        let known = self.free.cached_slots();
        let count = wanted.min(if known < wanted { self.free.slots() } else { known });
        let (Ok(buffers), Ok(slots)) = (self.free.read_chunk(count), self.full.write_chunk_uninit(count)) else {
            return 0;
        };
        slots.fill_from_iter(packets.zip(buffers).map(|(packet, buffer)| frame(packet, buffer)))
    }
}

impl Outlet {
    /// Has `write` handle what there is, up to a burst, and gives the buffers back all at once. Returns how many there were.
    pub(super) fn take(&mut self, mut write: impl FnMut(&Frame)) -> usize {
        let count = self.full.slots().min(BURST);
        let (Ok(frames), Ok(slots)) = (self.full.read_chunk(count), self.free.write_chunk_uninit(count)) else {
            return 0;
        };
        slots.fill_from_iter(frames.into_iter().map(|frame| {
            write(&frame);
            frame.buffer
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Through few buffers, each used many times and by bursts of all sizes: every packet comes once, whole and in order.
    #[test]
    fn packets_come_in_order_and_buffers_go_round() {
        const PACKETS: u32 = 20_000;
        for buffers in [1, 3, 40] {
            let (mut inlet, mut outlet) = ring(buffers, 8);
            let worker = std::thread::spawn(move || {
                let mut next = 0;
                while next < PACKETS {
                    let burst = next..PACKETS.min(next + 1 + next % 50);
                    next += inlet.put(&mut burst.into_iter().map(u32::to_le_bytes), |bytes, buffer| {
                        Frame::new(buffer, 1, ClockSource::Virtual, &bytes, &["a", "ö"])
                    }) as u32;
                    std::thread::yield_now();
                }
            });
            let mut seen = 0;
            while seen < PACKETS {
                outlet.take(|frame| {
                    let record = frame.record();
                    assert_eq!((record.bytes, record.comment), (&seen.to_le_bytes()[..], "aö".as_bytes()));
                    seen += 1;
                });
                std::thread::yield_now();
            }
            worker.join().unwrap();
            assert_eq!(outlet.take(|_| ()), 0);
        }
    }

    #[test]
    fn what_does_not_fit_is_cut() {
        let (mut inlet, mut outlet) = ring(1, 4);
        let long = format!("{}ö", "x".repeat(COMMENT - 1));
        let put = inlet.put(&mut [[7; 6]; 2].iter(), |bytes, buffer| {
            Frame::new(buffer, 1, ClockSource::Virtual, bytes, &[&long, "", "y"])
        });
        assert_eq!(put, 1, "there is one buffer");
        let taken = outlet.take(|frame| {
            let Record { original, bytes, comment, .. } = frame.record();
            assert_eq!((original, bytes), (6, &[7; 4][..]));
            assert_eq!(comment, format!("{}y", "x".repeat(COMMENT - 1)).as_bytes());
        });
        assert_eq!(taken, 1);
    }
}
