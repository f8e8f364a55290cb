//! Frames in memory that come in one after the other, and then from the first again.

use multiversion::multiversion;
use zerocopy::IntoBytes;

use crate::mem::BATCH;
use crate::provider::soft::line::{self, LINE, Line, Place};
use crate::provider::soft::memory::Slots;

/// Frames, one behind the other, each from the beginning of a line on.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    lines: Vec<Line>,
    places: Vec<Place>,
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
        self.places.push(Place { line: line as u32, len: frame.len() as u32 });
        self.lines.resize(line + frame.len().div_ceil(LINE), Line::ZERO);
        self.lines[line..].as_mut_bytes()[..frame.len()].copy_from_slice(frame);
    }

    #[inline]
    fn at(&self, place: Place) -> &[u8] {
        &self.lines[place.line as usize..].as_bytes()[..place.len as usize]
    }
}

/// Those of the frames that come in by one queue.
#[derive(Debug)]
pub(super) struct Reel {
    numbers: Box<[u32]>,
    /// Where they are, so that nothing is looked up by number while they come: in rounds, as many as a burst is long.
    places: Box<[Place]>,
    /// The length of all; `None`: they have several, or there are none.
    length: Option<u32>,
    next: usize,
}

impl Reel {
    /// The frames that are `wanted`.
    pub(super) fn new(frames: &Frames, wanted: impl Fn(&[u8]) -> bool) -> Self {
        let numbers: Box<[u32]> =
            (0..frames.len() as u32).filter(|&number| wanted(frames.get(number as usize))).collect();
        let round = numbers.iter().map(|&number| frames.places[number as usize]);
        let rounds = BATCH.div_ceil(numbers.len().max(1));
        let places: Box<[Place]> = std::iter::repeat_n(round, rounds).flatten().collect();
        let first = places.first().map(|place| place.len);
        let length = first.filter(|first| places.iter().all(|place| place.len == *first));
        Self { numbers, places, length, next: 0 }
    }

    /// Their numbers.
    pub(super) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Their lengths.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.places[..self.numbers.len()].iter().map(|place| place.len as usize)
    }

    /// The number of the frame that is next.
    pub(super) fn next(&self) -> u32 {
        self.numbers[self.next % self.numbers.len()]
    }

    /// The next, and goes on; whether it was the last of a round.
    pub(super) fn take<'f>(&mut self, frames: &'f Frames) -> (&'f [u8], bool) {
        let frame = frames.at(self.places[self.next]);
        self.next = if self.next + 1 == self.places.len() { 0 } else { self.next + 1 };
        (frame, self.next.is_multiple_of(self.numbers.len()))
    }

    /// Writes the next frames into the slots of posted receives, and their lengths. Returns their bytes.
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

/// Writes frames into slots, as many as there are of both, and their lengths. Returns their bytes.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn write(places: &[Place], frames: &Frames, slots: &Slots, part: &[u32], lengths: &mut [u32]) -> u64 {
    let mut bytes = 0;
    for ((place, &slot), length) in places.iter().zip(part).zip(lengths) {
        // It fits: the wire has seen to the longest, and the slot was checked when it was posted.
        let _ = slots.write(slot, frames.at(*place));
        *length = place.len;
        bytes += u64::from(place.len);
    }
    bytes
}
