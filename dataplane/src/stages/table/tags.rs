//! The tags of a group of keys: a few bits of every key's hash beside its place, all in one line of the cache, and compared at
//! once.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Places of a group: what a line has room for, beside a count.
pub(super) const PLACES: usize = 31;

/// A line of the cache.
#[derive(Clone, Copy, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(64))]
pub(super) struct Group {
    /// 0: the place is free.
    pub(super) tags: [u16; PLACES],
    /// How many keys of this group had to go to their other one; at its greatest it stays. While it is 0, a key that is not here
    /// is nowhere.
    gone: u16,
}

impl Group {
    /// The places that have a tag, as bits.
    #[inline]
    pub(super) fn matches(&self, tag: u16) -> u32 {
        let places = self.tags.iter().enumerate();
        places.fold(0, |bits, (place, known)| bits | u32::from(*known == tag) << place)
    }

    /// As [`Group::matches`], for processors with AVX2.
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
        // Halves of vectors are packed by themselves: the quarters come as 0, 2, 1, 3.
        let same = _mm256_packs_epi16(_mm256_cmpeq_epi16(low, tag), _mm256_cmpeq_epi16(high, tag));
        let same = _mm256_permute4x64_epi64::<0b11_01_10_00>(same);
        _mm256_movemask_epi8(same).cast_unsigned() & !(1 << PLACES)
    }

    /// In a program that is built for such processors alone, there is no function for them: what the compiler makes of the one for all.
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
    #[allow(dead_code, reason = "not used where that processor has AVX-512 too")]
    #[inline]
    pub(super) fn matches_avx2(&self, tag: u16) -> u32 {
        self.matches(tag)
    }

    /// As [`Group::matches`], for processors with AVX-512.
    #[cfg(all(target_arch = "x86_64", not(target_feature = "avx512bw")))]
    #[target_feature(enable = "avx512bw")]
    #[inline]
    pub(super) fn matches_avx512(&self, tag: u16) -> u32 {
        use std::arch::x86_64::{__m512i, _mm512_cmpeq_epi16_mask, _mm512_set1_epi16};
        let line: __m512i = zerocopy::transmute!(*self);
        _mm512_cmpeq_epi16_mask(line, _mm512_set1_epi16(tag.cast_signed())) & !(1 << PLACES)
    }

    /// In a program that is built for such processors alone, there is no function for them: what the compiler makes of the one for all.
    #[cfg(all(target_arch = "x86_64", target_feature = "avx512bw"))]
    #[inline]
    pub(super) fn matches_avx512(&self, tag: u16) -> u32 {
        self.matches(tag)
    }

    /// A place that is free.
    pub(super) fn free(&self) -> Option<usize> {
        self.tags.iter().position(|tag| *tag == 0)
    }

    /// Whether a key of this group may be in its other one.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.gone != 0
    }

    /// One key more is in its other group.
    pub(super) fn leave(&mut self) {
        self.gone = self.gone.saturating_add(1);
    }

    /// One key less is in its other group. Where there were more than could be counted, nobody knows how many are left.
    pub(super) fn come_back(&mut self) {
        if self.gone != u16::MAX {
            self.gone -= 1;
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
        fn a_tag_matches_where_it_is(tags in prop::array::uniform31(0..4u16), gone in 0..4u16, tag in 0..4u16, high in any::<u16>()) {
            // Tags that differ in some bits alone.
            let group = Group { tags: tags.map(|tag| tag ^ high), gone: gone ^ high };
            let expected = (0..PLACES).filter(|place| tags[*place] == tag).fold(0, |all, place| all | 1 << place);
            let tag = tag ^ high;
            prop_assert_eq!(group.matches(tag), expected);
            prop_assert_eq!(by_avx2(&group, tag), expected);
            prop_assert_eq!(by_avx512(&group, tag), expected);
        }
    }

    #[test]
    fn a_count_that_was_too_great_stays() {
        let mut group = Group { tags: [0; PLACES], gone: u16::MAX - 1 };
        group.leave();
        group.come_back();
        assert_eq!(group.gone, u16::MAX);
        group.gone = 1;
        group.come_back();
        assert!(!group.is_left());
    }
}
