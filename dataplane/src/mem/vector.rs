//! The loops over the slots, ids and descriptors of a burst.
//!
//! Each has versions for AVX-512 and AVX2, chosen when the program runs, beside the one for any processor. They have no branch a
//! packet: what must not be is gathered in the bits of one word, in the top one where a difference went below zero.

use multiversion::multiversion;

use crate::mem::Desc;

/// What the loops make of a descriptor.
pub(crate) type Word = u64;

/// Whether these are the ids of these slots: `tag` with the slot in its low bits. Both are of one length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn are_ids(ids: &[u64], slots: &[u32], tag: u64) -> bool {
    ids.iter().zip(slots).fold(0, |other, (id, slot)| other | (id ^ (tag | u64::from(*slot)))) == 0
}

/// Writes the ids of slots: `base` and the slot, added. Both are of one length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn write_ids(ids: &mut [u64], slots: &[u32], base: u64) {
    for (id, slot) in ids.iter_mut().zip(slots) {
        *id = base.wrapping_add(u64::from(*slot));
    }
}

/// Copies slots, if all are below `below`. Both are of one length. `false`: one is not, and what `to` has then means
/// nothing.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn copy_below(to: &mut [u32], slots: &[u32], below: u32) -> bool {
    let mut last = 0;
    for (to, slot) in to.iter_mut().zip(slots) {
        last = last.max(*slot);
        *to = *slot;
    }
    last < below || slots.is_empty()
}

/// Writes one length for all.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn fill(lengths: &mut [u32], length: u32) {
    for place in lengths {
        *place = length;
    }
}

/// What is so of all packets of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The bytes of all.
    pub(crate) bytes: u32,
    /// The fewest bytes of a packet; of none, the most that there are.
    pub(crate) shortest: u32,
    /// The most.
    pub(crate) longest: u32,
    /// No slot is beyond.
    pub(crate) last: u32,
    /// No packet ends beyond, in bytes from the start of its slot.
    pub(crate) end: u32,
}

impl Extent {
    /// That of no packets.
    pub(crate) const NONE: Self = Self { bytes: 0, shortest: u32::MAX, longest: 0, last: 0, end: 0 };

    /// That of two runs together.
    #[inline]
    pub(crate) fn join(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.shortest = self.shortest.min(other.shortest);
        self.longest = self.longest.max(other.longest);
        self.last = self.last.max(other.last);
        self.end = self.end.max(other.end);
    }

    /// Whether what is so of packets is within this.
    pub(crate) fn covers(&self, exact: Self) -> bool {
        let Self { bytes, shortest, longest, last, end } = *self;
        bytes == exact.bytes
            && (shortest, longest) == (exact.shortest, exact.longest)
            && last >= exact.last
            && end >= exact.end
    }
}

/// Packets that were received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// Bytes before them, which their lengths count and they do not have.
    pub(crate) prefix: u32,
    /// Where they begin in their slots.
    pub(crate) offset: u16,
    /// How many slots there are.
    pub(crate) count: u32,
    /// The most bytes that one may have.
    pub(crate) room: u32,
}

/// Writes their descriptors, and what is so of all. All three slices are of one length. `false`: a slot is not one, or a
/// packet is too long.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn write_descs(
    descs: &mut [[u32; 2]],
    slots: &[u32],
    lengths: &[u32],
    received: &Received,
    extent: &mut Extent,
) -> bool {
    let Received { prefix, offset, count, room } = *received;
    let (mut bytes, mut shortest, mut longest, mut last) = (0, u32::MAX, 0, 0);
    for ((desc, slot), length) in descs.iter_mut().zip(slots).zip(lengths) {
        let length = length.wrapping_sub(prefix);
        bytes = length.wrapping_add(bytes);
        shortest = shortest.min(length);
        longest = longest.max(length);
        last = last.max(*slot);
        *desc = [*slot, Desc::place(offset, length)];
    }
    *extent = Extent { bytes, shortest, longest, last, end: u32::from(offset) + longest.min(room) };
    last < count && longest <= room
}

/// What is so of all of these.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn extent(descs: &[Word]) -> Extent {
    let Extent { mut bytes, mut shortest, mut longest, mut last, mut end } = Extent::NONE;
    for desc in descs {
        let (slot, offset, length) = Desc::of_word(*desc);
        bytes = bytes.wrapping_add(length);
        shortest = shortest.min(length);
        longest = longest.max(length);
        last = last.max(slot);
        end = end.max(offset + length);
    }
    Extent { bytes, shortest, longest, last, end }
}

/// Where packets start, in slots of so many bytes: bytes from the start of the first slot. Both are of one length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn starts(starts: &mut [usize], descs: &[Word], stride: u32) {
    for (start, desc) in starts.iter_mut().zip(descs) {
        let (slot, offset, _) = Desc::of_word(*desc);
        *start = slot as usize * stride as usize + offset as usize;
    }
}

/// The bytes of packets.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn bytes(descs: &[Word]) -> u32 {
    descs.iter().fold(0, |sum: u32, desc| sum.wrapping_add(Desc::of_word(*desc).2))
}

/// Copies the slots out of descriptors. Both are of one length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn copy_slots(slots: &mut [u32], descs: &[Word]) {
    for (slot, desc) in slots.iter_mut().zip(descs) {
        *slot = Desc::of_word(*desc).0;
    }
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
                let mut copied = vec![0; slots.len()];
                let all = slots.iter().all(|slot| *slot < count);
                prop_assert_eq!((copy_below(&mut copied, &slots, count), copied == slots), (all, true));
            }

            let words = Desc::words(&descs);
            let sum: u32 = descs.iter().map(|desc| u32::from(desc.len)).sum();
            prop_assert_eq!(bytes(words), sum);
            let mut copied = vec![0; descs.len()];
            copy_slots(&mut copied, words);
            prop_assert!(copied.iter().zip(&descs).all(|(slot, desc)| *slot == desc.slot));
            let least = |of: fn(&Desc) -> u32| descs.iter().map(of).min();
            let most = |of: fn(&Desc) -> u32| descs.iter().map(of).max().unwrap_or(0);
            let expected = Extent {
                bytes: sum,
                shortest: least(|desc| desc.len.into()).unwrap_or(u32::MAX),
                longest: most(|desc| desc.len.into()),
                last: most(|desc| desc.slot),
                end: most(|desc| u32::from(desc.offset) + u32::from(desc.len)),
            };
            prop_assert_eq!(extent(words), expected);
            let (first, second) = words.split_at(at.index(words.len() + 1));
            let mut both = extent(first);
            both.join(&extent(second));
            prop_assert_eq!(both, expected);
        }

        #[test]
        fn received_packets_get_their_descriptors(
            packets in proptest::collection::vec((0..40u32, prop_oneof![0..2000u32, any::<u32>()]), 0..100),
            prefix in prop_oneof![Just(0u32), Just(40)], count in 30..50u32, room in 0..2000u32,
        ) {
            let (slots, lengths): (Vec<u32>, Vec<u32>) = packets.iter().copied().unzip();
            let mut descs = vec![Desc::default(); packets.len()];
            let mut written = Extent::NONE;
            let received = Received { prefix, offset: 128, count, room };
            let all = write_descs(Desc::pairs_mut(&mut descs), &slots, &lengths, &received, &mut written);
            let fits = |(slot, length): &(u32, u32)| *slot < count && length.wrapping_sub(prefix) <= room;
            prop_assert_eq!(all, packets.iter().all(fits));
            if !all {
                return Ok(());
            }
            let expected = packets.iter().map(|(slot, length)| Desc { slot: *slot, offset: 128, len: (length - prefix) as u16 });
            prop_assert!(descs.iter().copied().eq(expected));
            prop_assert_eq!(written.end, 128 + written.longest);
            let known = extent(Desc::words(&descs));
            // Of no packets, none ends anywhere.
            prop_assert_eq!(Extent { end: known.end, ..written }, known);
        }
    }
}
