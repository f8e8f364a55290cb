//! Frames that fill a line of the cache or two: copied whole, the rest of the last line with them.
//!
//! Nearly all frames that come in great numbers are so short. What is behind a frame in its slot means nothing, and there is
//! room for it ([`GUARD`]).

use multiversion::multiversion;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::mem::{Desc, GUARD, Run};
use crate::provider::soft::memory::Slots;

/// Bytes of a line.
pub(super) const LINE: usize = 64;

/// A line. It begins where one of the cache does: a part that crosses two lines, or even pages, takes many times as long.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(64))]
pub(super) struct Line([u8; LINE]);

impl Line {
    pub(super) const ZERO: Self = Self([0; LINE]);
}

/// Where a frame is in lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Its first line.
    pub(super) line: u32,
    /// Its bytes.
    pub(super) len: u32,
}

/// Writes frames of one length into the slots of posted receives, and that length for each; all three slices are of one
/// length. `false`: they are too long for this, or something is not as it should be; then some may have been written.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn write(slots: &Slots, part: &[u32], frames: (&[Line], &[Place]), len: u32, lengths: &mut [u32]) -> bool {
    let (lines, places) = frames;
    for length in lengths {
        *length = len;
    }
    let mut last = 0;
    for slot in part {
        last = last.max(*slot);
    }
    if last >= slots.layout.count || !slots.writable || part.len() > places.len() {
        return false;
    }
    // No closures here and below: what the library makes of one has not the features of these functions.
    match (len as usize).div_ceil(LINE) {
        // SAFETY: all slots are there, as just seen, and what is written of each fits before its guard.
        1 if LINE <= slots.layout.room() as usize => unsafe { write_each::<1>(slots, part, lines, places) },
        // SAFETY: as above.
        2 if 2 * LINE <= slots.layout.room() as usize => unsafe { write_each::<2>(slots, part, lines, places) },
        _ => false,
    }
}

/// The same, of frames of `N` lines.
///
/// # Safety
/// All slots are below the layout's count, and a slot has room for so many lines.
#[inline(always)]
unsafe fn write_each<const N: usize>(slots: &Slots, part: &[u32], lines: &[Line], places: &[Place]) -> bool {
    let (first, stride) = (slots.first(), slots.layout.stride as usize);
    for (slot, place) in part.iter().zip(places) {
        let from = place.line as usize;
        let Some(frame) = lines.get(from..from + N).and_then(<[Line]>::first_chunk::<N>) else { return false };
        // SAFETY: the slot is there and has room (above). The caller of `post_recv_run` has lent it to the device, so nobody
        // else looks at it, and lines of the link's own do not overlap it. It need not begin where a line does.
        unsafe { first.add(*slot as usize * stride).cast::<[Line; N]>().write_unaligned(*frame) };
    }
    true
}

/// Copies packets that are sent into lines, one behind the other and from the first again. `false`: they are too long for
/// this, of too different lengths, or one does not lie in a slot; then none was copied.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn read(out: &mut [Line], slots: &Slots, run: &Run<'_>) -> bool {
    let extent = run.extent();
    let lines = extent.longest.div_ceil(LINE as u32);
    let inside = extent.last < slots.layout.count && extent.end <= slots.layout.limit();
    if !inside || extent.shortest.div_ceil(LINE as u32) != lines {
        return false;
    }
    match lines {
        // SAFETY: each packet lies in its slot, as just seen of all of them, and has as many lines.
        1 => unsafe { read_each::<1>(out, slots, run.descs()) },
        // SAFETY: as above.
        2 => unsafe { read_each::<2>(out, slots, run.descs()) },
        _ => false,
    }
}

/// The same, of packets of `N` lines.
///
/// # Safety
/// Every packet lies in a slot before its guard, and fills all of `N` lines but a part of the last.
#[inline(always)]
unsafe fn read_each<const N: usize>(out: &mut [Line], slots: &Slots, descs: &[Desc]) -> bool {
    const { assert!(LINE <= GUARD) };
    let (first, stride) = (slots.start(), slots.layout.stride as usize);
    let (out, _) = out.as_chunks_mut::<N>();
    if out.is_empty() {
        return false;
    }
    for part in descs.chunks(out.len()) {
        for (to, desc) in out.iter_mut().zip(part) {
            // SAFETY: the packet lies in its slot (above), and less than a line more is within the guard behind it. The kernel
            // has filled the region with zeros. The caller of `post_send_run` has promised that nobody writes the packet until
            // the send is done, and sends out of slots are done when they are posted; the slot is owned by who posts it.
            *to = unsafe {
                first.add(desc.slot as usize * stride + usize::from(desc.offset)).cast::<[Line; N]>().read_unaligned()
            };
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::mem::{Loose, PageKind, Region, RegionSpec, SlotLayout};
    use crate::provider::Access;
    use crate::provider::soft::memory::Keys;

    const COUNT: u32 = 8;

    /// Slots with room for `room` bytes behind `headroom`.
    fn slots(headroom: usize, room: usize) -> Slots {
        let layout = SlotLayout::new(headroom, room, COUNT as usize).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let region: Arc<Region> = Region::allocate(spec).unwrap().0.into();
        let part = 0..region.len();
        let mr = Arc::new(Keys::new()).register(1, region, part, Access::LOCAL_WRITE);
        Slots::new(mr, layout, 0, 1).unwrap()
    }

    /// All bytes of all slots.
    fn all(slots: &Slots) -> &[u8] {
        // SAFETY: the slots lie in the region, and nobody writes them while the test looks.
        unsafe { std::slice::from_raw_parts(slots.start().as_ptr(), slots.layout.bytes()) }
    }

    proptest! {
        /// A frame is where it belongs, nothing else but the rest of its lines is written, and what is sent comes out.
        #[test]
        fn frames_go_into_slots_and_out(
            length in 0..150usize, headroom in 0..130usize, room in 64..150usize, spare in 1..6usize,
            order in Just((0..COUNT).collect::<Vec<u32>>()).prop_shuffle(), beyond in 0..3u32,
        ) {
            let frames: Vec<Line> = (1..=3 * COUNT as u8).map(|line| Line([line; LINE])).collect();
            let places: Vec<Place> = (0..COUNT).map(|at| Place { line: at * 2 % 13, len: length as u32 }).collect();
            let slots = slots(headroom, room);
            let lines = length.div_ceil(LINE);
            let fits = (1..=2).contains(&lines) && lines * LINE <= slots.layout.room() as usize;
            let part = &order[..order.len() - spare];
            let mut lengths = vec![0; part.len()];
            let mut write = |part: &[u32], lines: &[Line]| {
                write(&slots, part, (lines, &places), length as u32, &mut lengths[..part.len()])
            };
            prop_assert_eq!(write(part, &frames), fits);
            prop_assert!(!write(&[COUNT + beyond], &frames));
            prop_assert!(!write(part, &frames[..3]));
            prop_assert!(lengths.iter().all(|written| *written == length as u32));
            let mut expected = vec![0; slots.layout.bytes()];
            let stride = slots.layout.stride as usize;
            if fits {
                for (slot, place) in part.iter().zip(&places) {
                    let at = *slot as usize * stride + headroom;
                    expected[at..at + lines * LINE].copy_from_slice(frames[place.line as usize..][..lines].as_bytes());
                }
                prop_assert_eq!(all(&slots), expected);
            } else {
                return Ok(());
            }

            let offset = |at: usize| (headroom + at) as u16;
            let descs: Vec<Desc> =
                part.iter().enumerate().map(|(at, slot)| Desc { slot: *slot, offset: offset(at % 3), len: length as u16 }).collect();
            let inside = descs.iter().all(|desc| slots.layout.admits(*desc));
            let mut out = vec![Line::ZERO; 2 * spare];
            prop_assert_eq!(read(&mut out, &slots, &Loose::new(&descs).run()), inside);
            // The last that were copied are there still.
            let held = if inside { out.len() / lines } else { 0 };
            for (at, desc) in descs.iter().enumerate().rev().take(held) {
                let from = desc.slot as usize * stride + usize::from(desc.offset);
                let copied = &out.as_bytes()[at % held * lines * LINE..][..length];
                prop_assert_eq!(copied, &all(&slots)[from..from + length]);
            }
            let strange = Desc { slot: COUNT + beyond, ..descs[0] };
            prop_assert!(!read(&mut out, &slots, &Loose::new(&[descs[0], strange]).run()));
            let shorter = Desc { len: length as u16 - 64.min(length as u16), ..descs[0] };
            prop_assert!(!read(&mut out, &slots, &Loose::new(&[descs[0], shorter]).run()));
        }
    }
}
