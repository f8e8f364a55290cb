//! The tags of a group of keys. A tag is a few hash bits of a key. A group keeps the tags of its keys in one cache
//! line, so that all tags are compared at once.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The number of slots in a group. A cache line has room for this many tags and a count.
pub(super) const SLOTS: usize = 31;

/// One cache line of tags.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(64))]
pub(super) struct Group {
    /// Tag of each slot. 0 marks a free slot.
    pub(super) tags: [u16; SLOTS],
    /// The number of keys that have this group as their first group, but are stored in their second group. A count that
    /// has reached its maximum no longer changes. While the count is 0, a key with this first group is either in this
    /// group or not in the table.
    overflow: u16,
}

impl Group {
    /// Returns the slots with this tag, as a bit mask.
    #[inline]
    pub(super) fn matches(&self, tag: u16) -> u32 {
        let slots = self.tags.iter().enumerate();
        slots.fold(0, |bits, (slot, known)| bits | u32::from(*known == tag) << slot)
    }

    /// Does the same as [`Group::matches`], for processors with AVX2.
    #[cfg(all(target_arch = "x86_64", not(target_feature = "avx2")))]
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn matches_avx2(&self, tag: u16) -> u32 {
        use std::arch::x86_64::{
            __m256i, _mm256_cmpeq_epi16, _mm256_movemask_epi8, _mm256_packs_epi16, _mm256_permute4x64_epi64,
            _mm256_set1_epi16,
        };
        let [low, high]: [__m256i; 2] = zerocopy::transmute!(*self);
        let tag = _mm256_set1_epi16(tag.cast_signed());
        // The pack instruction works on each half of the vectors, so the quarters of the result are in the order 0, 2,
        // 1, 3. The permutation restores the order.
        let same = _mm256_packs_epi16(_mm256_cmpeq_epi16(low, tag), _mm256_cmpeq_epi16(high, tag));
        let same = _mm256_permute4x64_epi64::<0b11_01_10_00>(same);
        _mm256_movemask_epi8(same).cast_unsigned() & !(1 << SLOTS)
    }

    /// Calls [`Group::matches`]. In a build for AVX2, the compiler already optimises that function for AVX2.
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
    #[allow(dead_code, reason = "unused in a build for AVX-512")]
    #[inline]
    pub(super) fn matches_avx2(&self, tag: u16) -> u32 {
        self.matches(tag)
    }

    /// Does the same as [`Group::matches`], for processors with AVX-512.
    #[cfg(all(target_arch = "x86_64", not(target_feature = "avx512bw")))]
    #[target_feature(enable = "avx512bw")]
    #[inline]
    pub(super) fn matches_avx512(&self, tag: u16) -> u32 {
        use std::arch::x86_64::{__m512i, _mm512_cmpeq_epi16_mask, _mm512_set1_epi16};
        let line: __m512i = zerocopy::transmute!(*self);
        _mm512_cmpeq_epi16_mask(line, _mm512_set1_epi16(tag.cast_signed())) & !(1 << SLOTS)
    }

    /// Calls [`Group::matches`]. In a build for AVX-512, the compiler already optimises that function for AVX-512.
    #[cfg(all(target_arch = "x86_64", target_feature = "avx512bw"))]
    #[inline]
    pub(super) fn matches_avx512(&self, tag: u16) -> u32 {
        self.matches(tag)
    }

    /// Returns a free slot.
    pub(super) fn free(&self) -> Option<usize> {
        self.tags.iter().position(|tag| *tag == 0)
    }

    /// Returns whether keys with this first group may be stored in their second group.
    #[inline]
    pub(super) fn has_overflow(&self) -> bool {
        self.overflow != 0
    }

    /// Counts a key that is stored in its second group.
    pub(super) fn add_overflow(&mut self) {
        self.overflow = self.overflow.saturating_add(1);
    }

    /// Subtracts a key from the count, because the key is no longer stored in its second group. A saturated count
    /// stays, because the true number is unknown.
    pub(super) fn remove_overflow(&mut self) {
        if self.overflow != u16::MAX {
            self.overflow -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use multiversion::multiversion;
    use multiversion::target::match_target;
    use proptest::prelude::*;

    use super::*;

    #[multiversion(targets("x86_64+avx2"))]
    fn by_avx2(group: &Group, tag: u16) -> u32 {
        match_target! { "x86_64+avx2" => group.matches_avx2(tag), _ => group.matches(tag) }
    }

    #[multiversion(targets("x86_64+avx512f+avx512bw"))]
    fn by_avx512(group: &Group, tag: u16) -> u32 {
        match_target! { "x86_64+avx512bw" => group.matches_avx512(tag), _ => group.matches(tag) }
    }

    proptest! {
        #[test]
        fn tag_matches_exactly_its_slots(tags in prop::array::uniform31(0..4u16), overflow in 0..4u16, tag in 0..4u16, high in any::<u16>()) {
            // All tags have the same upper bits, and differ only in the lowest two bits.
            let group = Group { tags: tags.map(|tag| tag ^ high), overflow: overflow ^ high };
            let expected = (0..SLOTS).filter(|slot| tags[*slot] == tag).fold(0, |all, slot| all | 1 << slot);
            let tag = tag ^ high;
            prop_assert_eq!(group.matches(tag), expected);
            prop_assert_eq!(by_avx2(&group, tag), expected);
            prop_assert_eq!(by_avx512(&group, tag), expected);
        }
    }

    #[test]
    fn saturated_overflow_count_is_never_decremented() {
        let mut group = Group { tags: [0; SLOTS], overflow: u16::MAX - 1 };
        group.add_overflow();
        group.remove_overflow();
        assert_eq!(group.overflow, u16::MAX);
        group.overflow = 1;
        group.remove_overflow();
        assert!(!group.has_overflow());
    }
}
