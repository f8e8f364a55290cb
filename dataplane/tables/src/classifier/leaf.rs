//! A leaf: up to eight rules that are compared with a packet at once.

use super::words::{NO_PACKET, PORTS, RuleEntry, SHORT};

/// The number of rules in a leaf. Each rule has its own SIMD lane.
pub(super) const LANES: usize = 8;

/// The rank that means no rule. This value is higher than the rank of any rule.
pub(super) const NO_RANK: u64 = u64::MAX;

/// Rules in the order of their ranks, stored word by word. The rule with the lowest rank takes precedence.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Leaf<const W: usize> {
    /// For the word [`PORTS`]: the lowest ports of each rule. For each other word: the required values of the bits.
    values: [[u32; LANES]; W],
    /// For the word [`PORTS`]: the highest ports of each rule. For each other word: the bits that are compared.
    masks: [[u32; LANES]; W],
    ranks: [u64; LANES],
    /// The index of the next leaf of the list, or 0 for the last leaf. Leaf 0 has no rules.
    pub(super) next: u32,
}

impl<const W: usize> Leaf<W> {
    pub(super) const EMPTY: Self = {
        let mut leaf = Self { values: [[0; LANES]; W], masks: [[0; LANES]; W], ranks: [NO_RANK; LANES], next: 0 };
        leaf.values[SHORT] = [NO_PACKET; LANES];
        leaf.masks[SHORT] = [NO_PACKET; LANES];
        leaf
    };

    /// Creates a leaf of up to [`LANES`] rules in their order.
    pub(super) fn new(entries: &[RuleEntry<W>], next: u32) -> Self {
        let mut leaf = Self { next, ..Self::EMPTY };
        for (lane, entry) in entries.iter().enumerate().take(LANES) {
            for word in 0..W {
                leaf.values[word][lane] = entry.values[word];
                leaf.masks[word][lane] = entry.masks[word];
            }
            leaf.ranks[lane] = entry.rank;
        }
        leaf
    }

    /// Returns the rules in their order.
    pub(super) fn entries(&self) -> impl Iterator<Item = RuleEntry<W>> + '_ {
        let lanes = (0..LANES).take_while(|lane| self.ranks[*lane] != NO_RANK);
        lanes.map(|lane| RuleEntry {
            values: self.values.map(|lanes| lanes[lane]),
            masks: self.masks.map(|lanes| lanes[lane]),
            rank: self.ranks[lane],
        })
    }

    /// Returns the rank of the first rule.
    #[inline]
    pub(super) fn least(&self) -> u64 {
        self.ranks[0]
    }

    /// Returns the rank of the rule in the first lane that is set in a bit mask, or [`NO_RANK`] if no lane is set.
    #[inline]
    pub(super) fn first(&self, lanes: u32) -> u64 {
        let rank = self.ranks[lanes.trailing_zeros() as usize % LANES];
        if lanes == 0 { NO_RANK } else { rank }
    }

    /// Returns the lanes whose rules match, as a bit mask.
    #[inline]
    pub(super) fn matches(&self, words: &[u32; W]) -> u32 {
        let mut other = [0u32; LANES];
        let lanes = self.values.iter().zip(&self.masks);
        for (word, (values, masks)) in words.iter().zip(lanes.clone()).skip(PORTS + 1) {
            for (other, (value, mask)) in other.iter_mut().zip(values.iter().zip(masks)) {
                *other |= (word ^ value) & mask;
            }
        }
        for (port, (least, greatest)) in words.iter().zip(lanes).take(PORTS + 1) {
            for (other, (least, greatest)) in other.iter_mut().zip(least.iter().zip(greatest)) {
                let [[a, b], [least_a, least_b], [greatest_a, greatest_b]] =
                    [port, least, greatest].map(|ports| [ports >> 16, ports & 0xffff]);
                *other |= u32::from(a < least_a) | u32::from(a > greatest_a);
                *other |= u32::from(b < least_b) | u32::from(b > greatest_b);
            }
        }
        let bits = other.iter().enumerate();
        bits.fold(0, |bits, (lane, other)| bits | u32::from(*other == 0) << lane)
    }

    /// Does the same as [`Leaf::matches`], for processors with AVX2.
    #[cfg(all(target_arch = "x86_64", not(target_feature = "avx2")))]
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) fn matches_avx2(&self, words: &[u32; W]) -> u32 {
        use std::arch::x86_64::{
            __m256i, _mm256_and_si256, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_max_epu16, _mm256_min_epu16,
            _mm256_movemask_ps, _mm256_or_si256, _mm256_set1_epi32, _mm256_setzero_si256, _mm256_xor_si256,
        };
        let of = |lanes: [u32; LANES]| -> __m256i { zerocopy::transmute!(lanes) };
        // Checks both ports of a lane at once. A port lies in its range exactly if clamping to the range does not
        // change the port.
        let port = _mm256_set1_epi32(words[PORTS].cast_signed());
        let inside = _mm256_max_epu16(_mm256_min_epu16(port, of(self.masks[PORTS])), of(self.values[PORTS]));
        let mut other = _mm256_xor_si256(port, inside);
        for (word, (values, masks)) in words.iter().zip(self.values.iter().zip(&self.masks)).skip(PORTS + 1) {
            let differs = _mm256_xor_si256(_mm256_set1_epi32(word.cast_signed()), of(*values));
            other = _mm256_or_si256(other, _mm256_and_si256(differs, of(*masks)));
        }
        let same = _mm256_cmpeq_epi32(other, _mm256_setzero_si256());
        _mm256_movemask_ps(_mm256_castsi256_ps(same)).cast_unsigned()
    }

    /// Calls [`Leaf::matches`]. In a build for AVX2, the compiler already optimises that function for AVX2.
    #[cfg(all(target_arch = "x86_64", target_feature = "avx2"))]
    #[inline]
    pub(super) fn matches_avx2(&self, words: &[u32; W]) -> u32 {
        self.matches(words)
    }
}
