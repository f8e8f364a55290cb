//! IPv6 and its extension headers, RFC 8200; the authentication header of RFC 4302.

use std::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, HeaderError, U16, U32, protocol};

/// The IPv6 header: 40 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6 {
    /// Version (4 bits), traffic class (8 bits), flow label (20 bits).
    pub version_class_flow: U32,
    /// Bytes behind this header.
    pub payload_length: U16,
    /// What follows, one of [`super::protocol`].
    pub next_header: u8,
    /// Hops that are left.
    pub hop_limit: u8,
    /// Who sent it.
    pub source: [u8; 16],
    /// Who it is for.
    pub destination: [u8; 16],
}

impl Header for Ipv6 {
    #[inline]
    fn check(&self) -> Result<(), HeaderError> {
        if self.version_class_flow.get() >> 28 == 6 { Ok(()) } else { Err(HeaderError::BadVersion) }
    }
}

impl Ipv6 {
    /// The source as a standard address.
    pub fn source_addr(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// The destination as a standard address.
    pub fn destination_addr(&self) -> Ipv6Addr {
        self.destination.into()
    }

    /// DSCP (6 bits) and ECN (2 bits).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// The flow label: 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0x000f_ffff
    }

    /// Takes one off the hop limit. False, with nothing changed, when no hop is left: the limit is 0 or 1.
    #[inline]
    pub fn decrement_hop_limit(&mut self) -> bool {
        if self.hop_limit <= 1 {
            return false;
        }
        self.hop_limit -= 1;
        true
    }
}

/// The front of hop-by-hop options, destination options and routing headers; their length is in units of 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Extension {
    /// What follows, one of [`super::protocol`].
    pub next_header: u8,
    /// Length in units of 8 bytes, without the first 8.
    pub length: u8,
    /// The first six bytes of its content.
    pub content: [u8; 6],
}

impl Header for Extension {
    #[inline]
    fn header_len(&self) -> usize {
        (usize::from(self.length) + 1) * 8
    }
}

/// The fragment header: 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Fragment {
    /// What the whole datagram goes on with, one of [`super::protocol`].
    pub next_header: u8,
    /// 0.
    pub reserved: u8,
    /// Offset in units of 8 bytes (13 bits), 2 reserved bits, "more fragments" (1 bit).
    pub offset_more: U16,
    /// Tells the fragments of one datagram from those of another.
    pub identification: U32,
}

impl Header for Fragment {}

impl Fragment {
    /// Where the payload belongs in the whole datagram, in bytes.
    #[inline]
    pub fn offset(&self) -> u16 {
        self.offset_more.get() & 0xfff8
    }

    /// Whether more fragments follow.
    #[inline]
    pub fn more(&self) -> bool {
        self.offset_more.get() & 1 != 0
    }

    /// Whether the datagram is whole in spite of this header (an atomic fragment, RFC 6946).
    #[inline]
    pub fn is_atomic(&self) -> bool {
        self.offset_more.get() & 0xfff9 == 0
    }
}

/// The authentication header without its integrity check value: 12 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Authentication {
    /// What follows, one of [`super::protocol`].
    pub next_header: u8,
    /// Length in units of 4 bytes, minus 2.
    pub length: u8,
    /// 0.
    pub reserved: U16,
    /// The security association.
    pub spi: U32,
    /// Counts the packets of the association.
    pub sequence: U32,
}

impl Header for Authentication {
    #[inline]
    fn header_len(&self) -> usize {
        (usize::from(self.length) + 2) * 4
    }

    #[inline]
    fn check(&self) -> Result<(), HeaderError> {
        if self.header_len() < Self::LEN { Err(HeaderError::BadHeaderLength) } else { Ok(()) }
    }
}

/// Whether a next header value is an extension header behind which the chain goes on.
#[inline]
pub const fn is_extension(next_header: u8) -> bool {
    matches!(
        next_header,
        protocol::HOP_BY_HOP | protocol::ROUTING | protocol::FRAGMENT | protocol::AH | protocol::DESTINATION_OPTIONS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_rfc_has_them() {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&[0x6a, 0xb1, 0x23, 0x45, 0, 9, 17, 2]);
        bytes[23] = 1;
        let ip = Ipv6::view_mut(&mut bytes).unwrap();
        assert_eq!((ip.traffic_class(), ip.flow_label()), (0xab, 0x12345));
        assert_eq!((ip.payload_length.get(), ip.next_header), (9, 17));
        assert_eq!(ip.source_addr(), Ipv6Addr::LOCALHOST);
        assert!(ip.decrement_hop_limit());
        assert!(!ip.decrement_hop_limit());
        assert_eq!(ip.hop_limit, 1);
        bytes[0] = 0x45;
        assert_eq!(Ipv6::view(&bytes).unwrap_err(), HeaderError::BadVersion);
    }

    #[test]
    fn extensions_know_their_length() {
        let mut bytes = [0; 32];
        bytes[1] = 2;
        assert_eq!(Extension::view(&bytes).unwrap().header_len(), 24);
        assert_eq!(Extension::view(&bytes[..23]).unwrap_err(), HeaderError::Truncated);
        assert_eq!(Authentication::view(&bytes).unwrap().header_len(), 16);
        bytes[1] = 0;
        assert_eq!(Authentication::view(&bytes).unwrap_err(), HeaderError::BadHeaderLength);
    }

    #[test]
    fn a_fragment_is_atomic_without_offset_and_more() {
        let fragment = |word: u16| {
            let [a, b] = word.to_be_bytes();
            *Fragment::view(&[17, 0, a, b, 0, 0, 0, 1]).unwrap()
        };
        assert!(fragment(0).is_atomic() && fragment(6).is_atomic());
        assert!(!fragment(1).is_atomic() && fragment(1).more());
        assert!(!fragment(8).is_atomic() && !fragment(8).more() && fragment(8).offset() == 8);
    }
}
