//! Copying of frames that fit in one or two cache lines. Whole lines are copied, including the unused rest of the last
//! line.
//!
//! Most frames at high packet rates are this short. Writing a whole line overwrites bytes after the frame. These bytes
//! have no meaning, and each slot has room for them ([`GUARD`]).

use multiversion::multiversion;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::memory::Slots;
use dataplane_core::mem::{Desc, GUARD, Run};

/// The size of a cache line in bytes.
pub(super) const LINE: usize = 64;

/// A block of the size and alignment of a cache line. The alignment avoids accesses that cross two cache lines or two
/// pages, which are many times slower.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(64))]
pub(super) struct Line([u8; LINE]);

impl Line {
    pub(super) const ZERO: Self = Self([0; LINE]);
}

/// The position of a frame in an array of lines.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameSpan {
    /// The index of the frame's first line.
    pub(super) line: u32,
    /// The length of the frame, in bytes.
    pub(super) len: u32,
}

/// Writes frames of length `len` into the slots of posted receives, and writes `len` into each of `lengths`. Frame `i`
/// has the span `frames.1[i]` and goes to the slot with index `targets[i]`. Returns `false` if the frames are too long
/// for this function, or if the arguments are invalid. In that case some frames may have been written.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn write(
    slots: &Slots,
    targets: &[u32],
    frames: (&[Line], &[FrameSpan]),
    len: u32,
    lengths: &mut [u32],
) -> bool {
    let (lines, places) = frames;
    for length in lengths {
        *length = len;
    }
    let mut last = 0;
    for slot in targets {
        last = last.max(*slot);
    }
    if last >= slots.layout.count() || !slots.writable || targets.len() > places.len() {
        return false;
    }
    // Do not use closures in this function and in `write_each`. A closure that a function of the standard library calls
    // is compiled without the target features of this function.
    match (len as usize).div_ceil(LINE) {
        // SAFETY: the check above has shown that all slots exist, and one line fits before the guard of a slot.
        1 if LINE <= slots.layout.room() as usize => unsafe { write_each::<1>(slots, targets, lines, places) },
        // SAFETY: as above, and two lines fit before the guard of a slot.
        2 if 2 * LINE <= slots.layout.room() as usize => unsafe { write_each::<2>(slots, targets, lines, places) },
        _ => false,
    }
}

/// Writes frames of `N` lines.
///
/// # Safety
/// All slots are below the layout's count, and each slot has room for `N` lines.
#[inline(always)]
unsafe fn write_each<const N: usize>(slots: &Slots, targets: &[u32], lines: &[Line], places: &[FrameSpan]) -> bool {
    let (first, stride) = (slots.first(), slots.layout.stride() as usize);
    for (slot, place) in targets.iter().zip(places) {
        let from = place.line as usize;
        let Some(frame) = lines.get(from..from + N).and_then(<[Line]>::first_chunk::<N>) else { return false };
        // SAFETY: the slot exists and has room (see above). The caller of `post_recv_run` gave the slot to the device,
        // so no other code accesses the slot. The link's own lines do not overlap the slot. The address may be
        // unaligned.
        unsafe { first.add(*slot as usize * stride).cast::<[Line; N]>().write_unaligned(*frame) };
    }
    true
}

/// Copies sent packets into the lines of `out`, one after the other. When `out` is full, the copy continues at its
/// first line. Returns `false` if the packets are too long for this function, their numbers of lines differ, or a
/// packet is not inside a slot. In that case nothing is copied.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn read(out: &mut [Line], slots: &Slots, run: &Run<'_>) -> bool {
    let bounds = run.bounds();
    let lines = bounds.longest.div_ceil(LINE as u32);
    let inside = bounds.last < slots.layout.count() && bounds.end <= slots.layout.limit();
    if !inside || bounds.shortest.div_ceil(LINE as u32) != lines {
        return false;
    }
    match lines {
        // SAFETY: the check above has shown that each packet lies in its slot and has one line.
        1 => unsafe { read_each::<1>(out, slots, run.descs()) },
        // SAFETY: as above, with two lines.
        2 => unsafe { read_each::<2>(out, slots, run.descs()) },
        _ => false,
    }
}

/// Copies packets of `N` lines.
///
/// # Safety
/// Every packet lies in a slot before its guard, and uses `N` lines, of which the last may be partly used.
#[inline(always)]
unsafe fn read_each<const N: usize>(out: &mut [Line], slots: &Slots, descs: &[Desc]) -> bool {
    const { assert!(LINE <= GUARD) };
    let (first, stride) = (slots.start(), slots.layout.stride() as usize);
    let (out, _) = out.as_chunks_mut::<N>();
    if out.is_empty() {
        return false;
    }
    for part in descs.chunks(out.len()) {
        for (to, desc) in out.iter_mut().zip(part) {
            // SAFETY: the packet lies in its slot (see above), and the rest of its last line lies in the guard after
            // it. The kernel has filled the region with zeros, so all bytes are initialised. The caller of
            // `post_send_run` guarantees that no code writes the packet until the send is done. This function runs
            // during that call, and the calling thread owns the slot.
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
    use crate::memory::Keys;
    use crate::numbers::Identity;
    use dataplane_core::mem::{PageKind, Region, RegionSpec, RunSource, SlotLayout};
    use dataplane_core::verbs::Access;

    const COUNT: u32 = 8;

    /// Returns slots with a headroom of `headroom` bytes and room for `room` bytes.
    fn slots(headroom: usize, room: usize) -> Slots {
        let layout = SlotLayout::new(headroom, room, COUNT as usize).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        let region: Arc<Region> = Region::allocate(spec).unwrap().0.into();
        let part = 0..region.len();
        let pd = Identity::new();
        let mr = Arc::new(Keys::new()).register(pd, region, part, Access::LOCAL_WRITE).unwrap();
        Slots::new(mr, layout, 0, pd).unwrap()
    }

    /// Returns all bytes of all slots.
    fn all(slots: &Slots) -> &[u8] {
        // SAFETY: the slots lie in the region, and no code writes them while the test reads them.
        unsafe { std::slice::from_raw_parts(slots.start().as_ptr(), slots.layout.bytes()) }
    }

    proptest! {
        /// Frames are written to their slots. No other bytes change, except the rest of the last line of each frame.
        /// Reading copies the bytes of the sent packets.
        #[test]
        fn short_frames_are_written_to_slots_and_read_back(
            length in 0..150usize, headroom in 0..130usize, room in 64..150usize, spare in 1..6usize,
            order in Just((0..COUNT).collect::<Vec<u32>>()).prop_shuffle(), beyond in 0..3u32,
        ) {
            let frames: Vec<Line> = (1..=3 * COUNT as u8).map(|line| Line([line; LINE])).collect();
            let places: Vec<FrameSpan> = (0..COUNT).map(|at| FrameSpan { line: at * 2 % 13, len: length as u32 }).collect();
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
            let stride = slots.layout.stride() as usize;
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
            prop_assert_eq!(read(&mut out, &slots, &RunSource::new(&descs).run()), inside);
            // `out` still holds the packets that were copied last.
            let held = if inside { out.len() / lines } else { 0 };
            for (at, desc) in descs.iter().enumerate().rev().take(held) {
                let from = desc.slot as usize * stride + usize::from(desc.offset);
                let copied = &out.as_bytes()[at % held * lines * LINE..][..length];
                prop_assert_eq!(copied, &all(&slots)[from..from + length]);
            }
            let outside = Desc { slot: COUNT + beyond, ..descs[0] };
            prop_assert!(!read(&mut out, &slots, &RunSource::new(&[descs[0], outside]).run()));
            let shorter = Desc { len: length as u16 - 64.min(length as u16), ..descs[0] };
            prop_assert!(!read(&mut out, &slots, &RunSource::new(&[descs[0], shorter]).run()));
        }
    }
}
