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
    /// Bytes of the datagram, header included.
    pub total_length: U16,
    /// Tells the fragments of one datagram from those of another.
    pub identification: U16,
    /// [`DONT_FRAGMENT`], [`MORE_FRAGMENTS`], [`FRAGMENT_OFFSET`].
    pub fragment: U16,
    /// Hops that are left.
    pub ttl: u8,
    /// What follows, one of [`super::protocol`].
    pub protocol: u8,
    /// The internet checksum of the header, options included.
    pub checksum: U16,
    /// Who sent it.
    pub source: [u8; 4],
    /// Who it is for.
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
    /// The source as a standard address.
    pub fn source_addr(&self) -> Ipv4Addr {
        self.source.into()
    }

    /// The destination as a standard address.
    pub fn destination_addr(&self) -> Ipv4Addr {
        self.destination.into()
    }

    /// Whether this is a part of a datagram rather than a whole one.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.fragment.get() & (MORE_FRAGMENTS | FRAGMENT_OFFSET) != 0
    }

    /// Where the payload belongs in the whole datagram, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> u32 {
        u32::from(self.fragment.get() & FRAGMENT_OFFSET) * 8
    }

    /// Takes one off the TTL and adjusts the checksum (RFC 1624). False, with nothing changed, when the datagram has
    /// no hop left: its TTL is 0 or 1.
    #[inline]
    pub fn decrement_ttl(&mut self) -> bool {
        // TTL and checksum are the ends of four bytes, which are read and written at once.
        const WORD: usize = std::mem::offset_of!(Ipv4, ttl) / 4;
        let words: &mut [[u8; 4]; Ipv4::LEN / 4] = zerocopy::transmute_mut!(self);
        let bytes = &mut words[WORD];
        let four = u32::from_le_bytes(*bytes);
        if four as u8 <= 1 {
            return false;
        }
        // The sum of the header is 0x0100 less, so that its complement is as much more: with the carry of one's complement, which
        // is seldom. It does not depend on the order of bytes (RFC 1071, section 2 B): the checksum is the upper half here, the
        // TTL the lowest byte.
        #[cold]
        fn carried(four: u32) -> u32 {
            four.wrapping_add((2 << 16) - 1)
        }
        let fewer = if four < 0xfffe << 16 { four + ((1 << 16) - 1) } else { carried(four) };
        *bytes = fewer.to_le_bytes();
        true
    }

    /// Sets the DSCP (RFC 2474), of which the low 6 bits count, and adjusts the checksum.
    #[inline]
    pub fn set_dscp(&mut self, dscp: u8) {
        let old = u16::from_be_bytes([self.version_ihl, self.tos]);
        self.tos = dscp << 2 | self.tos & 3;
        let new = u16::from_be_bytes([self.version_ihl, self.tos]);
        self.checksum.set(checksum::update_u16(self.checksum.get(), old, new));
    }

    /// Replaces the source address and adjusts the checksum of this header. One that also covers the pseudo-header
    /// is the caller's to adjust ([`checksum::update_bytes`]).
    pub fn set_source(&mut self, source: Ipv4Addr) {
        let new = source.octets();
        self.checksum.set(checksum::update_bytes(self.checksum.get(), &self.source, &new));
        self.source = new;
    }

    /// Replaces the destination address, as [`Ipv4::set_source`] does the source.
    pub fn set_destination(&mut self, destination: Ipv4Addr) {
        let new = destination.octets();
        self.checksum.set(checksum::update_bytes(self.checksum.get(), &self.destination, &new));
        self.destination = new;
    }
}

/// Whether the header at the front of `datagram`, options included, sums up to its checksum. False also for what is
/// no IPv4 header.
pub fn checksum_ok(datagram: &[u8]) -> bool {
    Ipv4::view(datagram)
        .ok()
        .and_then(|header| datagram.get(..header.header_len()))
        .is_some_and(|header| checksum::checksum(header) == 0)
}

/// Writes the checksum of the header at the front of `datagram`, options included.
///
/// # Errors
///
/// Those of [`Header::view`]; nothing is written then.
pub fn write_checksum(datagram: &mut [u8]) -> Result<(), HeaderError> {
    let header = Ipv4::view(datagram)?;
    let (len, old) = (header.header_len(), header.checksum.get());
    // The version is in the sum: it is not 0.
    let sum = Sum::default().bytes(datagram.get(..len).ok_or(HeaderError::Truncated)?).without(old).checksum();
    Ipv4::view_mut(datagram)?.checksum.set(sum);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // A header that is widely used as an example of the checksum: 45 00 ... with checksum b861.
    const KNOWN: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0, 0xa8,
        0x00, 0xc7,
    ];

    #[test]
    fn fields_are_where_the_rfc_has_them() {
        let ip = Ipv4::view(&KNOWN).unwrap();
        assert_eq!((ip.ttl, ip.protocol, ip.total_length.get()), (64, 17, 115));
        assert_eq!(ip.source_addr(), Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(ip.destination_addr(), Ipv4Addr::new(192, 168, 0, 199));
        assert!(!ip.is_fragment());
        assert!(checksum_ok(&KNOWN));
    }

    #[test]
    fn a_hop_keeps_the_checksum_right_down_to_the_last() {
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
    fn a_hop_takes_every_checksum_to_what_the_rfc_says() {
        let mut bytes = KNOWN;
        for before in 0..=u16::MAX {
            bytes[8] = 2;
            bytes[10..12].copy_from_slice(&before.to_be_bytes());
            assert!(Ipv4::view_mut(&mut bytes).unwrap().decrement_ttl());
            let after = u16::from_be_bytes([bytes[10], bytes[11]]);
            let expected = checksum::update_u16(before, 0x0200, 0x0100);
            // 0 and 0xffff are the same in one's complement.
            assert!(
                after == expected || (after | expected == 0xffff && after & expected == 0),
                "{before:#x}: {after:#x}"
            );
        }
    }

    #[test]
    fn new_addresses_keep_the_checksum_right() {
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
    fn what_is_no_header_is_refused() {
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
    fn options_lie_between_header_and_payload() {
        let mut bytes = [0; 30];
        bytes[..20].copy_from_slice(&KNOWN);
        bytes[0] = 0x47;
        bytes[20] = 7;
        bytes[28] = 9;
        let parts = Ipv4::parts(&bytes).unwrap();
        assert_eq!((parts.options, parts.rest), (&[7, 0, 0, 0, 0, 0, 0, 0][..], &[9, 0][..]));
    }
}
