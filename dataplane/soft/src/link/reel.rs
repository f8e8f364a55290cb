//! Frames that are stored in memory. The queue pairs receive the frames in order, again and again.

use multiversion::multiversion;
use zerocopy::IntoBytes;

use crate::line::{self, FrameSpan, LINE, Line};
use crate::memory::Slots;
use dataplane_core::mem::BATCH;

/// Frames in consecutive cache lines. Each frame starts at a new line.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    lines: Vec<Line>,
    places: Vec<FrameSpan>,
}

impl Frames {
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn get(&self, number: usize) -> &[u8] {
        self.at(self.places[number])
    }

    pub(super) fn push(&mut self, frame: &[u8]) {
        let line = self.lines.len();
        self.places.push(FrameSpan { line: line as u32, len: frame.len() as u32 });
        self.lines.resize(line + frame.len().div_ceil(LINE), Line::ZERO);
        self.lines[line..].as_mut_bytes()[..frame.len()].copy_from_slice(frame);
    }

    #[inline]
    fn at(&self, place: FrameSpan) -> &[u8] {
        &self.lines[place.line as usize..].as_bytes()[..place.len as usize]
    }
}

/// The frames of one queue. The queue receives the frames in rounds. Each round contains all frames of the queue.
#[derive(Debug)]
pub(super) struct Reel {
    /// The index in [`Frames`] of each frame of the queue.
    numbers: Box<[u32]>,
    /// The locations of the queue's frames. The list repeats the locations until the list is at least as long as a
    /// batch. Most bursts are then one slice of the list.
    places: Box<[FrameSpan]>,
    /// The length of each frame, if all frames have the same length. Otherwise `None`.
    length: Option<u32>,
    /// The index in `places` of the next frame.
    next: usize,
}

impl Reel {
    /// Creates a reel with the frames for which `wanted` returns `true`.
    pub(super) fn new(frames: &Frames, wanted: impl Fn(&[u8]) -> bool) -> Self {
        let numbers: Box<[u32]> =
            (0..frames.len() as u32).filter(|&number| wanted(frames.get(number as usize))).collect();
        let round = numbers.iter().map(|&number| frames.places[number as usize]);
        let rounds = BATCH.div_ceil(numbers.len().max(1));
        let places: Box<[FrameSpan]> = std::iter::repeat_n(round, rounds).flatten().collect();
        let first = places.first().map(|place| place.len);
        let length = first.filter(|first| places.iter().all(|place| place.len == *first));
        Self { numbers, places, length, next: 0 }
    }

    /// Returns the index in [`Frames`] of each frame of the queue.
    pub(super) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Returns the lengths of the frames.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.places[..self.numbers.len()].iter().map(|place| place.len as usize)
    }

    /// Returns the index in [`Frames`] of the next frame.
    pub(super) fn next(&self) -> u32 {
        self.numbers[self.next % self.numbers.len()]
    }

    /// Returns the next frame, and whether it is the last frame of a round. Advances to the next frame.
    pub(super) fn take<'f>(&mut self, frames: &'f Frames) -> (&'f [u8], bool) {
        let frame = frames.at(self.places[self.next]);
        self.next = if self.next + 1 == self.places.len() { 0 } else { self.next + 1 };
        (frame, self.next.is_multiple_of(self.numbers.len()))
    }

    /// Writes the next frames into the slots `part`, and the lengths of the frames into `lengths`. Returns the total
    /// length in bytes.
    #[inline]
    pub(super) fn write(&mut self, frames: &Frames, slots: &Slots, part: &[u32], lengths: &mut [u32]) -> u64 {
        let (mut bytes, mut done) = (0, 0);
        while done < part.len() && !self.places.is_empty() {
            let rest = &self.places[self.next..];
            let now = rest.len().min(part.len() - done);
            let (places, part, lengths) = (&rest[..now], &part[done..done + now], &mut lengths[done..done + now]);
            bytes += match self.length {
                Some(length) if line::write(slots, part, (&frames.lines, places), length, lengths) => {
                    u64::from(length) * now as u64
                }
                _ => write(places, frames, slots, part, lengths),
            };
            done += now;
            self.next = if now == rest.len() { 0 } else { self.next + now };
        }
        bytes
    }
}

/// Writes frames into slots, and the lengths of the frames into `lengths`. Stops at the end of the shortest list.
/// Returns the total length in bytes.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn write(places: &[FrameSpan], frames: &Frames, slots: &Slots, part: &[u32], lengths: &mut [u32]) -> u64 {
    let mut bytes = 0;
    for ((place, &slot), length) in places.iter().zip(part).zip(lengths) {
        // The write cannot fail. `Wire::bind` has checked that the longest frame fits in a slot, and the post has
        // checked the index of the slot.
        let _ = slots.write(slot, frames.at(*place));
        *length = place.len;
        bytes += u64::from(place.len);
    }
    bytes
}
