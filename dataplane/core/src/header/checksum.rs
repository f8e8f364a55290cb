//! The internet checksum: RFC 1071, pseudo headers of RFC 9293 and RFC 8200, incremental update of RFC 1624.
//!
//! All functions take and return checksums as field values in host byte order.

/// A one's complement sum. Add the pieces of the data in order. Every piece except the last must have an even length.
///
/// If the two bytes of every word are swapped, the result is the sum with its two bytes swapped (RFC 1071, section
/// 2 B). The words are therefore added in memory order, and only the sum is converted, once at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes. If the number of bytes is odd, a zero byte is added as padding.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // The 64-bit sum of 32-bit words cannot overflow before 2^32 words are added, which is 16 GiB of data.
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

    /// Subtracts a 16-bit field that was added, such as the old checksum. Subtraction is faster than first writing a
    /// zero into the packet, because a wider load after such a store stalls. At least one of the other added values
    /// must not be 0. Otherwise, the checksum is 0 instead of 0xffff.
    #[inline]
    #[must_use]
    pub fn without(self, value: u16) -> Self {
        self.u16(!value)
    }

    /// Adds the pseudo header of TCP or UDP over IPv4. `length` is the length of header and data in bytes.
    #[inline]
    #[must_use]
    pub fn pseudo_ipv4(self, source: [u8; 4], destination: [u8; 4], protocol: u8, length: u16) -> Self {
        self.bytes(&source).bytes(&destination).u16(u16::from(protocol)).u16(length)
    }

    /// Adds the pseudo header of an upper layer over IPv6. `length` is the length of header and data in bytes.
    #[inline]
    #[must_use]
    pub fn pseudo_ipv6(self, source: &[u8; 16], destination: &[u8; 16], protocol: u8, length: u32) -> Self {
        self.bytes(source).bytes(destination).u16((length >> 16) as u16).u16(length as u16).u16(u16::from(protocol))
    }

    /// Returns the checksum: the complement of the sum. The result is 0 for data that contains its correct checksum.
    #[inline]
    pub fn checksum(self) -> u16 {
        u16::from_be(!fold(self.0))
    }

    /// Returns the checksum for UDP. The UDP field value 0 means "no checksum", so 0xffff replaces 0. Both values are
    /// zero in one's complement.
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

/// Returns whether an IPv4 header without options contains its correct checksum.
#[inline]
pub fn header_checksum_ok(header: &[u8; 20]) -> bool {
    // One's complement addition is addition modulo 65,535. Modulo 65,535, the numbers 2^16, 2^32, 2^48 and 2^64 equal
    // 1. A 64-bit word therefore equals the sum of its four 16-bit words. The code adds whole 64-bit words, and adds a
    // carry out of 64 bits as 1. The sum of a header with a correct checksum is a multiple of 65,535. Only a header of
    // zeros has the sum 0, which must be excluded.
    let (words, tail) = header.as_chunks::<8>();
    let [first, second] = [words[0], words[1]].map(u64::from_ne_bytes);
    let tail = tail.first_chunk().map_or(0, |tail| u32::from_ne_bytes(*tail));
    let (sum, carry) = first.overflowing_add(second);
    let (sum, again) = sum.overflowing_add(u64::from(tail) + u64::from(carry));
    let sum = sum + u64::from(again);
    // A test for divisibility by 65,535: multiply the sum by the inverse (modulo 2^64) of 65,535. The sum is a multiple
    // of 65,535 if and only if the product is at most QUOTIENT, which is (2^64 - 1) / 65,535. The product of 65,535 and
    // QUOTIENT is -1 modulo 2^64, so the inverse of 65,535 is -QUOTIENT. The subtraction of 1 excludes the sum 0.
    const QUOTIENT: u64 = u64::MAX / 65_535;
    sum.wrapping_mul(QUOTIENT.wrapping_neg()).wrapping_sub(1) < QUOTIENT
}

/// Folds a sum to 16 bits: adds the upper bits to the lower bits until no carry remains.
#[inline]
fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + ((sum >> 16) & 0xffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// Returns the internet checksum of `bytes`. The result is 0 for a header that contains its correct checksum.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::default().bytes(bytes).checksum()
}

/// Returns the new checksum after a 16-bit field changed from `old` to `new` (RFC 1624, equation 3).
#[inline]
pub fn update_u16(checksum: u16, old: u16, new: u16) -> u16 {
    !fold(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

/// Returns the new checksum after a 32-bit field at an even offset changed from `old` to `new`.
#[inline]
pub fn update_u32(checksum: u16, old: u32, new: u32) -> u16 {
    let halves = |value: u32| u64::from(value >> 16) + u64::from(value & 0xffff);
    !fold(u64::from(!checksum) + halves(!old) + halves(new))
}

/// Returns the new checksum after the bytes `old` were replaced by `new`, for example in an address. Both slices must
/// have the same length and start at an even offset.
#[inline]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    debug_assert_eq!(old.len(), new.len(), "old and new bytes must have the same length");
    let removed = Sum::default().bytes(old).checksum();
    let added = !Sum::default().bytes(new).checksum();
    !fold(u64::from(!checksum) + u64::from(removed) + u64::from(added))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes the checksum as RFC 1071 defines it: adds big-endian words one by one and adds each carry back at once.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn checksum_matches_the_example_of_rfc_1071() {
        // Section 3: the words 0001 f203 f4f5 f6f7 sum to ddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&bytes), !0xddf2);
    }

    #[test]
    fn update_matches_the_example_of_rfc_1624() {
        // Section 4: a field changes from 5555 to 3285. The checksum then changes from dd2f to 0000, not to ffff.
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn edge_cases_match_the_definition() {
        assert_eq!(checksum(&[]), 0xffff);
        assert!(!header_checksum_ok(&[0; 20]) && header_checksum_ok(&[0xff; 20]));
        assert_eq!(checksum(&[0xff]), !0xff00);
        assert_eq!(checksum(&[0xff; 65_535]), reference(&[0xff; 65_535]));
        assert_eq!(Sum::default().u16(0xffff).udp_checksum(), 0xffff);
        assert_eq!(Sum(u64::MAX).u16(0xffff).checksum(), 0);
    }

    #[test]
    fn pseudo_headers_have_the_layout_of_the_rfcs() {
        let (source, destination) = ([192, 0, 2, 1], [198, 51, 100, 7]);
        let laid_out = [192, 0, 2, 1, 198, 51, 100, 7, 0, 17, 0x12, 0x34];
        assert_eq!(Sum::default().pseudo_ipv4(source, destination, 17, 0x1234).checksum(), reference(&laid_out));
        let (source, destination) = ([0x20; 16], [0xfe; 16]);
        let mut laid_out = [0; 40];
        laid_out[..16].copy_from_slice(&source);
        laid_out[16..32].copy_from_slice(&destination);
        laid_out[32..36].copy_from_slice(&0x0001_0203_u32.to_be_bytes());
        laid_out[39] = 58;
        assert_eq!(Sum::default().pseudo_ipv6(&source, &destination, 58, 0x0001_0203).checksum(), reference(&laid_out));
    }

    proptest! {
        #[test]
        fn header_check_accepts_only_correct_checksums(mut header: [u8; 20], right: bool) {
            if right {
                header[10..12].fill(0);
                let sum = reference(&header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            prop_assert_eq!(header_checksum_ok(&header), reference(&header) == 0);
        }

        #[test]
        fn checksum_matches_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
            prop_assert_eq!(checksum(&bytes), reference(&bytes));
            let (front, back) = bytes.split_at((cut * 2).min(bytes.len() & !1));
            prop_assert_eq!(Sum::default().bytes(front).bytes(back).checksum(), reference(&bytes));
        }

        #[test]
        fn subtraction_equals_zeroing_the_field(bytes in prop::collection::vec(any::<u8>(), 4..60), at in 1usize..30) {
            let mut bytes = bytes;
            bytes[0] |= 1;
            let at = (at * 2).min((bytes.len() - 2) & !1);
            let sum = Sum::default().bytes(&bytes).without(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
            bytes[at..at + 2].fill(0);
            prop_assert_eq!(sum.checksum(), reference(&bytes));
        }

        #[test]
        fn incremental_update_equals_recomputation(
            bytes in prop::collection::vec(any::<u8>(), 20..60),
            at in 0usize..8,
            new in any::<[u8; 4]>(),
        ) {
            // The first word is never zero, as in every header. Data of only zeros would have two correct checksums in
            // one's complement.
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
