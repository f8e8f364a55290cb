//! The loops over the slots, ids and descriptors of a burst.
//!
//! Each has a version for AVX2, chosen when the program runs, beside the one for any processor. They have no branch a
//! packet: what must not be is gathered in the bits of one word, in the top one where a difference went below zero.

use multiversion::multiversion;

use crate::mem::Desc;

/// What the loops make of a descriptor: its slot, and its place in it.
pub(crate) type Words = [u32; 2];

/// Whether these are the ids of these slots: `tag` with the slot in its low bits. Both are of one length.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn are_ids(ids: &[u64], slots: &[u32], tag: u64) -> bool {
    ids.iter().zip(slots).fold(0, |other, (id, slot)| other | (id ^ (tag | u64::from(*slot)))) == 0
}

/// Writes the ids of slots: `base` and the slot, added. Both are of one length.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn write_ids(ids: &mut [u64], slots: &[u32], base: u64) {
    for (id, slot) in ids.iter_mut().zip(slots) {
        *id = base.wrapping_add(u64::from(*slot));
    }
}

/// Whether all slots are below `count`.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn are_below(slots: &[u32], count: u32) -> bool {
    let last = count.wrapping_sub(1);
    slots.iter().fold(last, |outside, slot| outside | slot | last.wrapping_sub(*slot)) >> 31 == 0
}

/// Writes descriptors of packets that begin at `offset` of their slots and have so many bytes, less `prefix`. All three
/// slices are of one length. `None`: a slot is not below `count`, or a packet has more than `room` bytes. Else their
/// bytes.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn write_descs(
    descs: &mut [Words],
    slots: &[u32],
    lengths: &[u32],
    prefix: u32,
    offset: u16,
    count: u32,
    room: u32,
) -> Option<u32> {
    let (mut outside, mut bytes) = (0, 0u32);
    for ((desc, slot), length) in descs.iter_mut().zip(slots).zip(lengths) {
        let length = length.wrapping_sub(prefix);
        outside |= length | room.wrapping_sub(length) | slot | count.wrapping_sub(1).wrapping_sub(*slot);
        bytes = bytes.wrapping_add(length);
        *desc = [*slot, Desc::word(offset, length)];
    }
    (outside >> 31 == 0).then_some(bytes)
}

/// The bytes of packets.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn bytes(descs: &[Words]) -> u32 {
    descs.iter().fold(0, |sum: u32, [_, place]| sum.wrapping_add(Desc::place(*place).1))
}

/// Whether each packet has at least `shortest` and at most `longest` bytes.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn lengths_are_within(descs: &[Words], shortest: u32, longest: u32) -> bool {
    let outside = |outside, [_, place]: &Words| {
        let (_, length) = Desc::place(*place);
        outside | length.wrapping_sub(shortest) | longest.wrapping_sub(length)
    };
    descs.iter().fold(0, outside) >> 31 == 0
}

/// Copies the slots out of descriptors. Both are of one length.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn copy_slots(slots: &mut [u32], descs: &[Words]) {
    for (slot, [of, _]) in slots.iter_mut().zip(descs) {
        *slot = *of;
    }
}

/// What the packets of a run may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Slots are below; at least 1.
    pub(crate) count: u32,
    /// Where a packet ends in its slot at the latest.
    pub(crate) end: u32,
    /// The least bytes of a packet.
    pub(crate) shortest: u32,
    /// The most.
    pub(crate) longest: u32,
}

/// The bytes of packets. `None`: one of them is out of bounds.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn bytes_within(descs: &[Words], bounds: Bounds) -> Option<u32> {
    let Bounds { count, end, shortest, longest } = bounds;
    let (mut outside, mut bytes) = (0, 0u32);
    for [slot, place] in descs {
        let (offset, length) = Desc::place(*place);
        outside |= slot | (count - 1).wrapping_sub(*slot) | end.wrapping_sub(offset + length);
        outside |= length.wrapping_sub(shortest) | longest.wrapping_sub(length);
        bytes = bytes.wrapping_add(length);
    }
    (outside >> 31 == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn descs() -> impl Strategy<Value = Vec<Desc>> {
        let desc = (0..40u32, 0..3000u16, 0..3000u16).prop_map(|(slot, offset, len)| Desc { slot, offset, len });
        proptest::collection::vec(desc, 0..100)
    }

    proptest! {
        /// Against loops that go from packet to packet.
        #[test]
        fn runs_are_as_their_packets(descs in descs(), odd in any::<u32>(), at in any::<prop::sample::Index>(), tag in 0..3u64) {
            let tag = tag << 40;
            let mut slots: Vec<u32> = descs.iter().map(|desc| desc.slot).collect();
            if !slots.is_empty() && odd % 3 == 0 {
                slots[at.index(descs.len())] = odd;
            }
            let mut ids = vec![0; slots.len()];
            write_ids(&mut ids, &slots, tag);
            prop_assert!(ids.iter().zip(&slots).all(|(id, slot)| *id == tag + u64::from(*slot)));
            prop_assert!(are_ids(&ids, &slots, tag));
            if !ids.is_empty() {
                let index = at.index(ids.len());
                ids[index] ^= 1 << (odd % 64);
                prop_assert!(!are_ids(&ids, &slots, tag));
            }
            for count in [1, 10, 40, 1 << 24] {
                prop_assert_eq!(are_below(&slots, count), slots.iter().all(|slot| *slot < count));
            }

            let words = Desc::words(&descs);
            let sum: u32 = descs.iter().map(|desc| u32::from(desc.len)).sum();
            prop_assert_eq!(bytes(words), sum);
            let mut copied = vec![0; descs.len()];
            copy_slots(&mut copied, words);
            prop_assert!(copied.iter().zip(&descs).all(|(slot, desc)| *slot == desc.slot));
            for (shortest, longest) in [(0, 3000), (100, 2900), (14, 65_535)] {
                let within = |desc: &Desc| (shortest..=longest).contains(&u32::from(desc.len));
                prop_assert_eq!(lengths_are_within(words, shortest, longest), descs.iter().all(within));
                for (count, end) in [(40, 6000), (39, 6000), (40, 5900)] {
                    let inside = |desc: &Desc| {
                        within(desc) && desc.slot < count && u32::from(desc.offset) + u32::from(desc.len) <= end
                    };
                    let expected = descs.iter().all(inside).then_some(sum);
                    prop_assert_eq!(bytes_within(words, Bounds { count, end, shortest, longest }), expected);
                }
            }
        }

        #[test]
        fn received_packets_get_their_descriptors(
            packets in proptest::collection::vec((0..40u32, prop_oneof![0..2000u32, any::<u32>()]), 0..100),
            prefix in prop_oneof![Just(0u32), Just(40)], count in 30..50u32, room in 0..2000u32,
        ) {
            let (slots, lengths): (Vec<u32>, Vec<u32>) = packets.iter().copied().unzip();
            let mut descs = vec![Desc::default(); packets.len()];
            let written = write_descs(Desc::words_mut(&mut descs), &slots, &lengths, prefix, 128, count, room);
            let fits = |(slot, length): &(u32, u32)| *slot < count && length.wrapping_sub(prefix) <= room;
            if !packets.iter().all(fits) {
                prop_assert_eq!(written, None);
                return Ok(());
            }
            let expected = packets.iter().map(|(slot, length)| Desc { slot: *slot, offset: 128, len: (length - prefix) as u16 });
            prop_assert_eq!(written, Some(lengths.iter().map(|length| length - prefix).sum()));
            prop_assert!(descs.into_iter().eq(expected));
        }
    }
}
