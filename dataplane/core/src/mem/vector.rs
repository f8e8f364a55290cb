//! Vectorised loops over the slots (packet buffers), request ids and descriptors of a burst.
//!
//! Each loop has versions for AVX-512, AVX2 and any other processor. The version is chosen at run time. The loops have
//! no branch per packet. Each loop accumulates errors, and checks the errors once at the end.

use multiversion::multiversion;

use crate::mem::desc::{Desc, DescWord};

/// Returns whether each request id is the bitwise OR of `tag` and the slot at the same index. Both slices have the same
/// length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn are_ids(ids: &[u64], slots: &[u32], tag: u64) -> bool {
    ids.iter().zip(slots).fold(0, |other, (id, slot)| other | (id ^ (tag | u64::from(*slot)))) == 0
}

/// Writes the request ids of slots. Each id is `base` plus the slot. Both slices have the same length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn write_ids(ids: &mut [u64], slots: &[u32], base: u64) {
    for (id, slot) in ids.iter_mut().zip(slots) {
        *id = base.wrapping_add(u64::from(*slot));
    }
}

/// Copies slots and returns whether all of them are less than `below`. If the result is `false`, do not use the content
/// of `to`. Both slices have the same length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn copy_below(to: &mut [u32], slots: &[u32], below: u32) -> bool {
    let mut last = 0;
    for (to, slot) in to.iter_mut().zip(slots) {
        last = last.max(*slot);
        *to = *slot;
    }
    last < below || slots.is_empty()
}

/// Sets all lengths to `length`.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn fill(lengths: &mut [u32], length: u32) {
    for place in lengths {
        *place = length;
    }
}

/// Bounds on the lengths and positions of all packets of a run (packets that are sent with one call).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Total length of all packets, in bytes.
    pub bytes: u32,
    /// The length of the shortest packet, in bytes. `u32::MAX` if there are no packets.
    pub shortest: u32,
    /// The length of the longest packet, in bytes.
    pub longest: u32,
    /// Upper bound on the slot indexes.
    pub last: u32,
    /// Upper bound on the offset of a packet's end from the start of its slot, in bytes.
    pub end: u32,
}

impl Bounds {
    /// The bounds of an empty run.
    pub const NONE: Self = Self { bytes: 0, shortest: u32::MAX, longest: 0, last: 0, end: 0 };

    /// Extends the bounds so that they include the bounds of a second run.
    #[inline]
    pub fn join(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.shortest = self.shortest.min(other.shortest);
        self.longest = self.longest.max(other.longest);
        self.last = self.last.max(other.last);
        self.end = self.end.max(other.end);
    }

    /// Returns whether these bounds are valid for packets with the bounds `exact`.
    pub fn covers(&self, exact: Self) -> bool {
        let Self { bytes, shortest, longest, last, end } = *self;
        bytes == exact.bytes
            && (shortest, longest) == (exact.shortest, exact.longest)
            && last >= exact.last
            && end >= exact.end
    }
}

/// The positions and limits of packets that a device has received.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedLayout {
    /// The number of bytes that the device writes in front of each packet. The received lengths include these bytes.
    /// The lengths of the packets do not.
    pub prefix: u32,
    /// Offset of the packets from the start of their slots.
    pub offset: u16,
    /// The number of slots.
    pub count: u32,
    /// Maximum length of a packet, in bytes.
    pub room: u32,
}

/// Writes the descriptors and the bounds of received packets. All three slices have the same length. Returns `false` if
/// a slot does not exist or a packet is too long.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn write_descs(
    descs: &mut [[u32; 2]],
    slots: &[u32],
    lengths: &[u32],
    received: &ReceivedLayout,
    bounds: &mut Bounds,
) -> bool {
    let ReceivedLayout { prefix, offset, count, room } = *received;
    let (mut bytes, mut shortest, mut longest, mut last) = (0, u32::MAX, 0, 0);
    for ((desc, slot), length) in descs.iter_mut().zip(slots).zip(lengths) {
        let length = length.wrapping_sub(prefix);
        bytes = length.wrapping_add(bytes);
        shortest = shortest.min(length);
        longest = longest.max(length);
        last = last.max(*slot);
        *desc = [*slot, Desc::pack_offset_len(offset, length)];
    }
    *bounds = Bounds { bytes, shortest, longest, last, end: u32::from(offset) + longest.min(room) };
    last < count && longest <= room
}

/// Computes the bounds of these packets.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn bounds(descs: &[DescWord]) -> Bounds {
    let Bounds { mut bytes, mut shortest, mut longest, mut last, mut end } = Bounds::NONE;
    for desc in descs {
        let (slot, offset, length) = Desc::unpack(*desc);
        bytes = bytes.wrapping_add(length);
        shortest = shortest.min(length);
        longest = longest.max(length);
        last = last.max(slot);
        end = end.max(offset + length);
    }
    Bounds { bytes, shortest, longest, last, end }
}

/// Writes the offset of each packet from the start of the first slot, in bytes. `stride` is the size of a slot. Both
/// slices have the same length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn starts(starts: &mut [usize], descs: &[DescWord], stride: u32) {
    for (start, desc) in starts.iter_mut().zip(descs) {
        let (slot, offset, _) = Desc::unpack(*desc);
        *start = slot as usize * stride as usize + offset as usize;
    }
}

/// Returns the total length of the packets, in bytes.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn bytes(descs: &[DescWord]) -> u32 {
    descs.iter().fold(0, |sum: u32, desc| sum.wrapping_add(Desc::unpack(*desc).2))
}

/// Copies the slot of each descriptor to `slots`. Both slices have the same length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn copy_slots(slots: &mut [u32], descs: &[DescWord]) {
    for (slot, desc) in slots.iter_mut().zip(descs) {
        *slot = Desc::unpack(*desc).0;
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
        /// Compares the vector loops with loops over single packets.
        #[test]
        fn vector_loops_match_per_packet_loops(descs in descs(), odd in any::<u32>(), at in any::<prop::sample::Index>(), tag in 0..3u64) {
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
            let expected = Bounds {
                bytes: sum,
                shortest: least(|desc| desc.len.into()).unwrap_or(u32::MAX),
                longest: most(|desc| desc.len.into()),
                last: most(|desc| desc.slot),
                end: most(|desc| u32::from(desc.offset) + u32::from(desc.len)),
            };
            prop_assert_eq!(bounds(words), expected);
            let (first, second) = words.split_at(at.index(words.len() + 1));
            let mut both = bounds(first);
            both.join(&bounds(second));
            prop_assert_eq!(both, expected);
        }

        #[test]
        fn received_packets_get_their_descriptors(
            packets in proptest::collection::vec((0..40u32, prop_oneof![0..2000u32, any::<u32>()]), 0..100),
            prefix in prop_oneof![Just(0u32), Just(40)], count in 30..50u32, room in 0..2000u32,
        ) {
            let (slots, lengths): (Vec<u32>, Vec<u32>) = packets.iter().copied().unzip();
            let mut descs = vec![Desc::default(); packets.len()];
            let mut written = Bounds::NONE;
            let received = ReceivedLayout { prefix, offset: 128, count, room };
            let all = write_descs(Desc::pairs_mut(&mut descs), &slots, &lengths, &received, &mut written);
            let fits = |(slot, length): &(u32, u32)| *slot < count && length.wrapping_sub(prefix) <= room;
            prop_assert_eq!(all, packets.iter().all(fits));
            if !all {
                return Ok(());
            }
            let expected = packets.iter().map(|(slot, length)| Desc { slot: *slot, offset: 128, len: (length - prefix) as u16 });
            prop_assert!(descs.iter().copied().eq(expected));
            prop_assert_eq!(written.end, 128 + written.longest);
            let known = bounds(Desc::words(&descs));
            // `end` is not compared, because an empty run sets `written.end` to the offset and `known.end` to 0.
            prop_assert_eq!(Bounds { end: known.end, ..written }, known);
        }
    }
}
