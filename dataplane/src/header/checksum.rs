//! The internet checksum: RFC 1071, pseudo-headers of RFC 9293 and RFC 8200, incremental update of RFC 1624.
//!
//! Checksums are given and taken as the number that the field holds, in the byte order of the host.

/// A one's complement sum under way. Pieces are added in order; every piece but the last has an even length.
///
/// The sum of 16-bit words does not depend on their byte order (RFC 1071, section 2 B), so words are added as they
/// lie in memory and turned once at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes. One at an odd end counts as if a zero followed.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // A 64-bit accumulator of 32-bit words takes 2^32 of them before it could overflow: 16 GiB.
        let (words, tail) = bytes.as_chunks::<8>();
        let halves = |word: u64| (word & 0xffff_ffff) + (word >> 32);
        let mut sum: u64 = words.iter().map(|word| halves(u64::from_ne_bytes(*word))).sum();
        let (words, tail) = tail.as_chunks::<4>();
        sum += words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>();
        let (words, tail) = tail.as_chunks::<2>();
        sum += words.iter().map(|word| u64::from(u16::from_ne_bytes(*word))).sum::<u64>();
        sum += tail.iter().map(|byte| u64::from(u16::from_ne_bytes([*byte, 0]))).sum::<u64>();
        self.add(sum)
    }

    /// Adds a 16-bit field.
    #[inline]
    #[must_use]
    pub fn u16(self, value: u16) -> Self {
        self.add(u64::from(value.to_be()))
    }

    /// Takes out a 16-bit field that was added, such as the old checksum: cheaper than to write a zero there first,
    /// for which a processor waits when it reads wider. Something that is not 0 must be left.
    #[inline]
    #[must_use]
    pub fn without(self, value: u16) -> Self {
        self.u16(!value)
    }

    /// Adds the pseudo-header of TCP or UDP over IPv4. `length` is that of header and data, in bytes.
    #[inline]
    #[must_use]
    pub fn pseudo_ipv4(self, source: [u8; 4], destination: [u8; 4], protocol: u8, length: u16) -> Self {
        self.bytes(&source).bytes(&destination).u16(u16::from(protocol)).u16(length)
    }

    /// Adds the pseudo-header of an upper layer over IPv6. `length` is that of header and data, in bytes.
    #[inline]
    #[must_use]
    pub fn pseudo_ipv6(self, source: &[u8; 16], destination: &[u8; 16], protocol: u8, length: u32) -> Self {
        self.bytes(source).bytes(destination).u16((length >> 16) as u16).u16(length as u16).u16(u16::from(protocol))
    }

    /// The checksum: the complement of the sum. Over data that holds its right checksum it is 0.
    #[inline]
    pub fn checksum(self) -> u16 {
        u16::from_be(!fold(self.0))
    }

    /// The checksum as UDP sends it: 0 would say "none", so the other zero of one's complement stands for it.
    #[inline]
    pub fn udp_checksum(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            sum => sum,
        }
    }

    #[inline]
    fn add(self, value: u64) -> Self {
        let (sum, carry) = self.0.overflowing_add(value);
        Self(sum + u64::from(carry))
    }
}

/// Whether an IPv4 header without options holds its right checksum.
#[inline]
pub fn header_fits(header: &[u8; 20]) -> bool {
    // One's complement is arithmetic modulo 65,535, in which 65,536, and so the place of a 16-bit word in a longer one and a
    // carry out of 64 bits, is 1. The header is not all zeros, so a multiple is no sum of nothing.
    let (words, tail) = header.as_chunks::<8>();
    let [first, second] = [words[0], words[1]].map(u64::from_ne_bytes);
    let tail = tail.first_chunk().map_or(0, |tail| u32::from_ne_bytes(*tail));
    let (sum, carry) = first.overflowing_add(second);
    let (sum, again) = sum.overflowing_add(u64::from(tail) + u64::from(carry));
    let sum = sum + u64::from(again);
    // Multiples of an odd number are, times its inverse modulo 2^64, the numbers from 0 up to 2^64 less 1 divided by it; here
    // from 1, as the sum is not 0. 65,535 times this quotient is 2^64 less 1, so the inverse is its negative.
    const QUOTIENT: u64 = u64::MAX / 65_535;
    sum.wrapping_mul(QUOTIENT.wrapping_neg()).wrapping_sub(1) < QUOTIENT
}

/// Folds a sum to 16 bits: carries are added back in.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The internet checksum of `bytes`. Over a header that holds its right checksum it is 0.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::default().bytes(bytes).checksum()
}

/// What `checksum` becomes when a 16-bit field goes from `old` to `new` (RFC 1624, equation 3).
#[inline]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// What `checksum` becomes when a 32-bit field goes from `old` to `new`. The field lies at an even offset.
#[inline]
pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let halves = |value: u32| u64::from(value >> 16) + u64::from(value & 0xffff);
    !fold(u64::from(!checksum) + halves(!old) + halves(new))
}

/// What `checksum` becomes when the bytes `old` are replaced by `new`, which are as many: an address, or the front of
/// one. They lie at an even offset.
#[inline]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    debug_assert_eq!(old.len(), new.len(), "a replacement has the length of what it replaces");
    let removed = Sum::default().bytes(old).checksum();
    let added = !Sum::default().bytes(new).checksum();
    !fold(u64::from(!checksum) + u64::from(removed) + u64::from(added))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition: big-endian words one by one, the carry added back at once.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn the_example_of_rfc_1071() {
        // Section 3: the words 0001 f203 f4f5 f6f7 sum to ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&bytes), !0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // Section 4: a field goes from 5555 to 3285, the checksum from dd2f to 0000 and not to ffff.
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn edges() {
        assert_eq!(checksum(&[]), 0xffff);
        assert!(!header_fits(&[0; 20]) && header_fits(&[0xff; 20]));
        assert_eq!(checksum(&[0xff]), !0xff00);
        assert_eq!(checksum(&[0xff; 65_535]), naive(&[0xff; 65_535]));
        assert_eq!(Sum::default().u16(0xffff).udp_checksum(), 0xffff);
        assert_eq!(Sum(u64::MAX).u16(0xffff).checksum(), 0);
    }

    #[test]
    fn pseudo_headers_are_laid_out_as_the_rfcs_have_them() {
        let (source, destination) = ([192, 0, 2, 1], [198, 51, 100, 7]);
        let laid_out = [192, 0, 2, 1, 198, 51, 100, 7, 0, 17, 0x12, 0x34];
        assert_eq!(Sum::default().pseudo_ipv4(source, destination, 17, 0x1234).checksum(), naive(&laid_out));
        let (source, destination) = ([0x20; 16], [0xfe; 16]);
        let mut laid_out = [0; 40];
        laid_out[..16].copy_from_slice(&source);
        laid_out[16..32].copy_from_slice(&destination);
        laid_out[32..36].copy_from_slice(&0x0001_0203_u32.to_be_bytes());
        laid_out[39] = 58;
        assert_eq!(Sum::default().pseudo_ipv6(&source, &destination, 58, 0x0001_0203).checksum(), naive(&laid_out));
    }

    proptest! {
        #[test]
        fn a_header_fits_if_its_checksum_is_0(mut header: [u8; 20], right: bool) {
            if right {
                header[10..12].fill(0);
                let sum = naive(&header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            prop_assert_eq!(header_fits(&header), naive(&header) == 0);
        }

        #[test]
        fn fast_is_naive(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
            prop_assert_eq!(checksum(&bytes), naive(&bytes));
            let (front, back) = bytes.split_at((cut * 2).min(bytes.len() & !1));
            prop_assert_eq!(Sum::default().bytes(front).bytes(back).checksum(), naive(&bytes));
        }

        #[test]
        fn a_field_is_taken_out_as_if_it_were_zero(bytes in prop::collection::vec(any::<u8>(), 4..60), at in 1usize..30) {
            let mut bytes = bytes;
            bytes[0] |= 1;
            let at = (at * 2).min((bytes.len() - 2) & !1);
            let sum = Sum::default().bytes(&bytes).without(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
            bytes[at..at + 2].fill(0);
            prop_assert_eq!(sum.checksum(), naive(&bytes));
        }

        #[test]
        fn incremental_is_recomputed(
            bytes in prop::collection::vec(any::<u8>(), 20..60),
            at in 0usize..8,
            new in any::<[u8; 4]>(),
        ) {
            // The word in front is never zero, as in every header: of all-zero data one's complement has two sums.
            let mut bytes = bytes;
            bytes[0] |= 1;
            let at = 2 + at * 2;
            let before = checksum(&bytes);
            let old: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
            bytes[at..at + 4].copy_from_slice(&new);
            let after = checksum(&bytes);
            prop_assert_eq!(update_bytes(before, &old, &new), after);
            prop_assert_eq!(update_u32(before, u32::from_be_bytes(old), u32::from_be_bytes(new)), after);
            bytes[at + 2..at + 4].copy_from_slice(&old[2..]);
            let after = checksum(&bytes);
            let half = |four: [u8; 4]| u16::from_be_bytes([four[0], four[1]]);
            prop_assert_eq!(update_u16(before, half(old), half(new)), after);
        }
    }
}
