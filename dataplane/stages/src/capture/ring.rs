//! The path of packets from one worker to the writer: two rings, one for full buffers and one that returns free
//! buffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use super::writer::Record;
use dataplane_core::clock::ClockSource;

/// The maximum length of a comment in bytes.
pub(super) const COMMENT: usize = 128;

/// The maximum number of frames that the writer handles before it returns their buffers.
const BURST: usize = 32;

/// Space for a packet and a comment.
pub(super) type Buffer = Box<[u8]>;

/// A copied packet on its way to the file.
pub(super) struct CapturedFrame {
    nanos: u64,
    /// The length of the original packet in bytes.
    original: u32,
    /// The length of the copied part in bytes.
    len: u16,
    comment: u8,
    source: ClockSource,
    /// The copied bytes, followed by the comment.
    buffer: Buffer,
}

impl CapturedFrame {
    /// Copies as much of a packet as fits into a buffer, followed by the comment: the parts in `comment`, joined.
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

/// The worker's side of the rings.
pub(super) struct Inlet {
    free: Consumer<Buffer>,
    full: Producer<CapturedFrame>,
    /// The number of buffers.
    buffers: usize,
    most_waiting: Arc<AtomicUsize>,
}

/// The writer's side of the rings.
pub(super) struct Outlet {
    full: Consumer<CapturedFrame>,
    free: Producer<Buffer>,
    /// The buffers of the burst that the writer handles.
    done: Vec<Buffer>,
    /// The number of buffers.
    buffers: usize,
    /// The largest number of frames that waited to be written. Only the writer changes this number.
    most_waiting: Arc<AtomicUsize>,
}

/// Creates the rings, with `buffers` free buffers for packets of up to `snaplen` bytes.
pub(super) fn ring(buffers: usize, snaplen: u16) -> (Inlet, Outlet) {
    // Each side frees a slot only after the side has passed the buffer to the other ring, so a buffer may occupy a slot
    // in both rings. A ring with twice as many slots as buffers is never full.
    let (full_in, full) = RingBuffer::new(2 * buffers);
    let (mut free, free_out) = RingBuffer::new(2 * buffers);
    let made = std::iter::repeat_with(|| vec![0; usize::from(snaplen) + COMMENT].into_boxed_slice());
    if let Ok(slots) = free.write_chunk_uninit(buffers) {
        slots.fill_from_iter(made);
    }
    let most_waiting = Arc::<AtomicUsize>::default();
    let inlet = Inlet { free: free_out, full: full_in, buffers, most_waiting: most_waiting.clone() };
    (inlet, Outlet { full, free, done: Vec::with_capacity(BURST), buffers, most_waiting })
}

/// Returns the memory of the buffers and rings of one worker in bytes.
pub(super) fn memory(buffers: usize, snaplen: u16) -> u64 {
    let slots = 2 * (size_of::<CapturedFrame>() + size_of::<Buffer>());
    (buffers * (usize::from(snaplen) + COMMENT + slots)) as u64
}

impl Inlet {
    /// Drops the ring of the full buffers, and returns the ring of the free buffers. The writer abandons the returned
    /// ring when it frees its side of the rings.
    #[cfg(test)]
    pub(super) fn into_free(self) -> Consumer<Buffer> {
        self.free
    }

    /// Returns the number of frames that wait to be written, and the largest number so far.
    pub(super) fn waiting(&self) -> [usize; 2] {
        let now = self.buffers.saturating_sub(self.free.slots());
        [now, now.max(self.most_waiting.load(Ordering::Relaxed))]
    }

    /// Returns whether the writer has ended.
    pub(super) fn is_abandoned(&self) -> bool {
        self.full.is_abandoned()
    }

    /// Copies as many of the packets as there are free buffers, and passes all copies to the writer together.
    /// Returns the number of copied packets.
    #[inline]
    pub(super) fn put<P>(
        &mut self,
        packets: &mut impl ExactSizeIterator<Item = P>,
        mut frame: impl FnMut(P, Buffer) -> CapturedFrame,
    ) -> usize {
        let wanted = packets.len();
        // Reading the number of returned buffers costs a cache miss, because the writer writes to that cache line. Use
        // the cached number if it is large enough.
        let known = self.free.cached_slots();
        let count = wanted.min(if known < wanted { self.free.slots() } else { known });
        let (Ok(buffers), Ok(slots)) = (self.free.read_chunk(count), self.full.write_chunk_uninit(count)) else {
            return 0;
        };
        slots.fill_from_iter(packets.zip(buffers).map(|(packet, buffer)| frame(packet, buffer)))
    }
}

impl Outlet {
    /// Returns whether the stage of the worker is gone and no frame waits.
    pub(super) fn is_finished(&self) -> bool {
        // Check for frames last, because the worker may pass on a frame before its stage is dropped.
        self.full.is_abandoned() && self.full.is_empty()
    }

    /// Calls `write` for the waiting frames, up to one burst, and then gives all their buffers back to the worker
    /// together. Returns the number of frames.
    pub(super) fn take(&mut self, mut write: impl FnMut(&CapturedFrame)) -> usize {
        let Ok(frames) = self.full.read_chunk(self.full.slots().min(BURST)) else { return 0 };
        self.done.extend(frames.into_iter().map(|frame| {
            write(&frame);
            frame.buffer
        }));
        let count = self.done.len();
        if count > 0 {
            // Count before the buffers go back to the worker, because a frame occupies its buffer until the frame is
            // written. The ring of the free buffers has two slots for each buffer. The number of empty slots is therefore
            // the number of occupied buffers plus `buffers`.
            let waiting = self.free.slots().saturating_sub(self.buffers);
            self.most_waiting.fetch_max(waiting, Ordering::Relaxed);
        }
        match self.free.write_chunk_uninit(count) {
            Ok(slots) => slots.fill_from_iter(self.done.drain(..)),
            Err(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few buffers are used many times, with bursts of 1 to 50 packets. Every packet arrives once, complete and in
    /// order.
    #[test]
    fn packets_arrive_in_order_and_buffers_are_reused() {
        const PACKETS: u32 = 20_000;
        for buffers in [1, 3, 40] {
            let (mut inlet, mut outlet) = ring(buffers, 8);
            let worker = std::thread::spawn(move || {
                let mut next = 0;
                while next < PACKETS {
                    let burst = next..PACKETS.min(next + 1 + next % 50);
                    next += inlet.put(&mut burst.into_iter().map(u32::to_le_bytes), |bytes, buffer| {
                        CapturedFrame::new(buffer, 1, ClockSource::Virtual, &bytes, &["a", "ö"])
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
    fn waiting_frames_are_counted_until_their_buffers_are_free() {
        let (mut inlet, mut outlet) = ring(4, 8);
        let put = |inlet: &mut Inlet, count: usize| {
            let frame = |bytes: &[u8; 6], buffer| CapturedFrame::new(buffer, 1, ClockSource::Virtual, bytes, &[]);
            inlet.put(&mut [[7; 6]; 9][..count].iter(), frame)
        };
        assert_eq!((put(&mut inlet, 1), inlet.waiting()), (1, [1, 1]));
        // The worker uses the other buffers while the writer writes the first frame.
        let mut taken = 0;
        outlet.take(|_| taken += put(&mut inlet, 9));
        assert_eq!((taken, inlet.waiting()), (3, [3, 4]));
        assert_eq!((outlet.take(|_| ()), inlet.waiting()), (3, [0, 4]));
        assert_eq!((outlet.take(|_| ()), put(&mut inlet, 2), inlet.waiting()), (0, 2, [2, 4]));
    }

    #[test]
    fn packet_and_comment_are_truncated_to_the_buffer() {
        let (mut inlet, mut outlet) = ring(1, 4);
        let long = format!("{}ö", "x".repeat(COMMENT - 1));
        let put = inlet.put(&mut [[7; 6]; 2].iter(), |bytes, buffer| {
            CapturedFrame::new(buffer, 1, ClockSource::Virtual, bytes, &[&long, "", "y"])
        });
        assert_eq!(put, 1, "only one buffer is free");
        let taken = outlet.take(|frame| {
            let Record { original, bytes, comment, .. } = frame.record();
            assert_eq!((original, bytes), (6, &[7; 4][..]));
            assert_eq!(comment, format!("{}y", "x".repeat(COMMENT - 1)).as_bytes());
        });
        assert_eq!(taken, 1);
    }
}
