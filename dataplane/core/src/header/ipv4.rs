//! IPv4, RFC 791.

use std::net::Ipv4Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{self, Sum};
use super::{Header, HeaderError, U16};

/// "Don't fragment" in the flags and fragment offset field.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// "More fragments" in the flags and fragment offset field.
pub const MORE_FRAGMENTS: u16 = 0x2000;
/// The bits of the fragment offset, in units of 8 bytes.
pub const FRAGMENT_OFFSET: u16 = 0x1fff;

/// The IPv4 header without its options: 20 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv4 {
    /// Version (4 bits) and header length in units of 4 bytes (4 bits).
    pub version_ihl: u8,
    /// DSCP (6 bits, RFC 2474) and ECN (2 bits, RFC 3168).
    pub tos: u8,
    /// The length of the datagram in bytes, including the header.
    pub total_length: U16,
    /// The identification, which the fragments of one datagram share.
    pub identification: U16,
    /// The flags [`DONT_FRAGMENT`] and [`MORE_FRAGMENTS`], and the [`FRAGMENT_OFFSET`].
    pub fragment: U16,
    /// The remaining hops.
    pub ttl: u8,
    /// The protocol of the payload, one of [`super::protocol`].
    pub protocol: u8,
    /// The internet checksum of the header including options.
    pub checksum: U16,
    /// The source address.
    pub source: [u8; 4],
    /// The destination address.
    pub destination: [u8; 4],
}

impl Header for Ipv4 {
    #[inline]
    fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0x0f) * 4
    }

    #[inline]
    fn check(&self) -> Result<(), HeaderError> {
        if self.version_ihl >> 4 != 4 {
            return Err(HeaderError::BadVersion);
        }
        if self.header_len() < Self::LEN {
            return Err(HeaderError::BadHeaderLength);
        }
        if usize::from(self.total_length.get()) < self.header_len() {
            return Err(HeaderError::BadLength);
        }
        Ok(())
    }
}

impl Ipv4 {
    /// Returns the source address as a standard library type.
    pub fn source_addr(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// Returns the destination address as a standard library type.
    pub fn destination_addr(&self) -> Ipv4Addr {
        self.destination.into()
    }

    /// Returns whether the packet is a fragment of a datagram.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment.get() & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }

    /// Returns the offset of the payload in the complete datagram, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> u32 {
        u32::from(self.fragment.get() & FRAGMENT_OFFSET) * 8
    }

    /// Decrements the TTL and updates the checksum (RFC 1624). Returns `false` and changes nothing if the TTL is 0 or
    /// 1.
    #[inline]
    pub fn decrement_ttl(&mut self) -> bool {
        // A 4-byte word starts with the TTL and ends with the checksum. One load and one store update both fields.
        const WORD: usize = std::mem::offset_of!(Ipv4, ttl) / 4;
        let words: &mut [[u8; 4]; Ipv4::LEN / 4] = zerocopy::transmute_mut!(self);
        let bytes = &mut words[WORD];
        let four = u32::from_le_bytes(*bytes);
        if four as u8 <= 1 {
            return false;
        }
        // The checksum covers a sum of 16-bit words. The TTL is the upper byte of one of these words, so the sum
        // decreases by 0x0100, and the checksum increases by 0x0100. The code reads the 4 bytes as a little-endian
        // number, so the change of 0x0100 becomes a change of 1 (RFC 1071, section 2 B). The number increases by
        // `1 << 16` for the checksum, and decreases by 1 for the TTL. If the checksum wraps, the end-around carry adds
        // another `1 << 16`.
        // A checksum that reads as 0xfffe in little-endian order also gets the carry, and becomes 0 instead of 0xffff.
        // Both values are zero in one's complement.
        #[cold]
        fn carried(four: u32) -> u32 {
            four.wrapping_add((2 << 16) - 1)
        }
        let fewer = if four < 0xfffe << 16 { four + ((1 << 16) - 1) } else { carried(four) };
        *bytes = fewer.to_le_bytes();
        true
    }

    /// Sets the DSCP (RFC 2474) to the low 6 bits of `dscp`, and updates the checksum.
    #[inline]
    pub fn set_dscp(&mut self, dscp: u8) {
        let old = u16::from_be_bytes([self.version_ihl, self.tos]);
        self.tos = dscp << 2 | self.tos & 3;
        let new = u16::from_be_bytes([self.version_ihl, self.tos]);
        self.checksum.set(checksum::update_u16(self.checksum.get(), old, new));
    }

    /// Replaces the source address and updates the checksum of this header. The caller must update checksums that
    /// cover the pseudo header ([`checksum::update_bytes`]).
    pub fn set_source(&mut self, source: Ipv4Addr) {
        let new = source.octets();
        self.checksum.set(checksum::update_bytes(self.checksum.get(), &self.source, &new));
        self.source = new;
    }

    /// Replaces the destination address. See [`Ipv4::set_source`].
    pub fn set_destination(&mut self, destination: Ipv4Addr) {
        let new = destination.octets();
        self.checksum.set(checksum::update_bytes(self.checksum.get(), &self.destination, &new));
        self.destination = new;
    }
}

/// Returns whether the IPv4 header at the start of `datagram`, including options, has a correct checksum. Returns
/// `false` if the header is invalid.
pub fn checksum_ok(datagram: &[u8]) -> bool {
    Ipv4::view(datagram)
        .ok()
        .and_then(|header| datagram.get(..header.header_len()))
        .is_some_and(|header| checksum::checksum(header) == 0)
}

/// Computes the checksum of the IPv4 header and its options at the start of `datagram`, and writes the checksum to the
/// header.
///
/// # Errors
///
/// Returns the errors of [`Header::view`]. Nothing is written in that case.
pub fn write_checksum(datagram: &mut [u8]) -> Result<(), HeaderError> {
    let header = Ipv4::view(datagram)?;
    let (len, old) = (header.header_len(), header.checksum.get());
    // `without` requires that the remaining header is not all zero. The version is never zero.
    let sum = Sum::default().bytes(datagram.get(..len).ok_or(HeaderError::Truncated)?).without(old).checksum();
    Ipv4::view_mut(datagram)?.checksum.set(sum);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // A widely used example of the checksum: 45 00 ... with checksum b861.
    const KNOWN: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8,
        0x00, 0xc7,
    ];

    #[test]
    fn fields_have_the_layout_of_the_rfc() {
        let ip = Ipv4::view(&KNOWN).unwrap();
        assert_eq!((ip.ttl, ip.protocol, ip.total_length.get()), (64, 17, 115));
        assert_eq!(ip.source_addr(), Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(ip.destination_addr(), Ipv4Addr::new(192, 168, 0, 199));
        assert!(!ip.is_fragment());
        assert!(checksum_ok(&KNOWN));
    }

    #[test]
    fn more_fragments_flag_or_an_offset_marks_a_fragment() {
        // The flag "don't fragment" alone, "more fragments" alone, the minimum and the maximum offset alone, and both
        // flags with an offset.
        for (field, is_fragment, offset) in
            [(0x4000, false, 0), (0x2000, true, 0), (0x0001, true, 8), (0x1fff, true, 65_528), (0x6003, true, 24)]
        {
            let mut bytes = KNOWN;
            let ip = Ipv4::view_mut(&mut bytes).unwrap();
            ip.fragment.set(field);
            assert_eq!((ip.is_fragment(), ip.fragment_offset()), (is_fragment, offset), "{field:#x}");
        }
    }

    #[test]
    fn decrement_ttl_keeps_the_checksum_correct() {
        let mut bytes = KNOWN;
        for hop in (1..64).rev() {
            assert!(Ipv4::view_mut(&mut bytes).unwrap().decrement_ttl());
            assert_eq!(bytes[8], hop);
            assert!(checksum_ok(&bytes));
        }
        let before = bytes;
        assert!(!Ipv4::view_mut(&mut bytes).unwrap().decrement_ttl());
        assert_eq!(bytes, before);
    }

    #[test]
    fn decrement_ttl_updates_every_checksum_as_in_the_rfc() {
        let mut bytes = KNOWN;
        for before in 0..=u16::MAX {
            bytes[8] = 2;
            bytes[10..12].copy_from_slice(&before.to_be_bytes());
            assert!(Ipv4::view_mut(&mut bytes).unwrap().decrement_ttl());
            let after = u16::from_be_bytes([bytes[10], bytes[11]]);
            let expected = checksum::update_u16(before, 0x0200, 0x0100);
            // 0 and 0xffff are equal in one's complement.
            assert!(
                after == expected || (after | expected == 0xffff && after & expected == 0),
                "{before:#x}: {after:#x}"
            );
        }
    }

    #[test]
    fn new_addresses_keep_the_checksum_correct() {
        let mut bytes = KNOWN;
        let ip = Ipv4::view_mut(&mut bytes).unwrap();
        ip.set_source(Ipv4Addr::new(203, 0, 113, 250));
        ip.set_destination(Ipv4Addr::new(0, 0, 0, 0));
        assert!(checksum_ok(&bytes));
        let mut again = bytes;
        write_checksum(&mut again).unwrap();
        assert_eq!(again, bytes);
    }

    #[test]
    fn invalid_header_is_refused() {
        for (at, value, error) in [
            (0, 0x65, HeaderError::BadVersion),
            (0, 0x44, HeaderError::BadHeaderLength),
            (0, 0x46, HeaderError::Truncated),
            (3, 19, HeaderError::BadLength),
        ] {
            let mut bytes = KNOWN;
            bytes[at] = value;
            assert_eq!(Ipv4::view(&bytes).unwrap_err(), error);
            assert!(!checksum_ok(&bytes));
        }
        assert_eq!(Ipv4::view(&KNOWN[..19]).unwrap_err(), HeaderError::Truncated);
    }

    #[test]
    fn options_are_between_header_and_payload() {
        let mut bytes = [0; 30];
        bytes[..20].copy_from_slice(&KNOWN);
        bytes[0] = 0x47;
        bytes[20] = 7;
        bytes[28] = 9;
        let parts = Ipv4::parts(&bytes).unwrap();
        assert_eq!((parts.options, parts.rest), (&[7, 0, 0, 0, 0, 0, 0, 0][..], &[9, 0][..]));
    }
}
