//! IPv6 and its extension headers (RFC 8200), and the authentication header (RFC 4302).

use std::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, HeaderError, U16, U32, protocol};

/// The IPv6 header: 40 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ipv6 {
    /// Version (4 bits), traffic class (8 bits), flow label (20 bits).
    pub version_class_flow: U32,
    /// The number of bytes after this header.
    pub payload_length: U16,
    /// The type of the next header, one of [`super::protocol`].
    pub next_header: u8,
    /// The remaining hops.
    pub hop_limit: u8,
    /// The source address.
    pub source: [u8; 16],
    /// The destination address.
    pub destination: [u8; 16],
}

impl Header for Ipv6 {
    #[inline]
    fn check(&self) -> Result<(), HeaderError> {
        if self.version_class_flow.get() >> 28 == 6 { Ok(()) } else { Err(HeaderError::BadVersion) }
    }
}

impl Ipv6 {
    /// Returns the source address as a standard library type.
    pub fn source_addr(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// Returns the destination address as a standard library type.
    pub fn destination_addr(&self) -> Ipv6Addr {
        self.destination.into()
    }

    /// Returns the traffic class: DSCP (6 bits) and ECN (2 bits).
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// Returns the flow label: 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0x000f_ffff
    }

    /// Decrements the hop limit. Returns `false` and changes nothing if the hop limit is 0 or 1.
    #[inline]
    pub fn decrement_hop_limit(&mut self) -> bool {
        if self.hop_limit <= 1 {
            return false;
        }
        self.hop_limit -= 1;
        true
    }
}

/// The first 8 bytes of a hop-by-hop options header, a destination options header or a routing header. The length of
/// each of these headers is a multiple of 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Extension {
    /// The type of the next header, one of [`super::protocol`].
    pub next_header: u8,
    /// The length of the header in units of 8 bytes, not counting the first 8 bytes.
    pub length: u8,
    /// The first six bytes of the content.
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
    /// The type of the next header of the complete datagram, one of [`super::protocol`].
    pub next_header: u8,
    /// A reserved byte: 0.
    pub reserved: u8,
    /// Offset in units of 8 bytes (13 bits), 2 reserved bits, "more fragments" (1 bit).
    pub offset_more: U16,
    /// The identification, which the fragments of one datagram share.
    pub identification: U32,
}

impl Header for Fragment {}

impl Fragment {
    /// Returns the offset of the payload in the complete datagram, in bytes.
    #[inline]
    pub fn offset(&self) -> u16 {
        self.offset_more.get() & 0xfff8
    }

    /// Returns whether more fragments follow.
    #[inline]
    pub fn more(&self) -> bool {
        self.offset_more.get() & 1 != 0
    }

    /// Returns whether the packet is an atomic fragment (RFC 6946): a complete datagram with a fragment header.
    #[inline]
    pub fn is_atomic(&self) -> bool {
        self.offset_more.get() & 0xfff9 == 0
    }
}

/// The authentication header without its integrity check value: 12 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Authentication {
    /// The type of the next header, one of [`super::protocol`].
    pub next_header: u8,
    /// The length of the header in units of 4 bytes, minus 2.
    pub length: u8,
    /// Reserved bytes: 0.
    pub reserved: U16,
    /// The security parameters index, which identifies the security association.
    pub spi: U32,
    /// The sequence number of the packet in the security association.
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

/// Returns whether a next header value is the type of an extension header that itself has a next header field. ESP is
/// not included, because its next header field is encrypted.
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
    fn fields_have_the_layout_of_the_rfc() {
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
    fn extension_length_is_computed_from_its_field() {
        let mut bytes = [0; 32];
        bytes[1] = 2;
        assert_eq!(Extension::view(&bytes).unwrap().header_len(), 24);
        assert_eq!(Extension::view(&bytes[..23]).unwrap_err(), HeaderError::Truncated);
        assert_eq!(Authentication::view(&bytes).unwrap().header_len(), 16);
        bytes[1] = 0;
        assert_eq!(Authentication::view(&bytes).unwrap_err(), HeaderError::BadHeaderLength);
    }

    #[test]
    fn fragment_with_zero_offset_and_no_more_fragments_is_atomic() {
        let fragment = |word: u16| {
            let [a, b] = word.to_be_bytes();
            *Fragment::view(&[17, 0, a, b, 0, 0, 0, 1]).unwrap()
        };
        assert!(fragment(0).is_atomic() && fragment(6).is_atomic());
        assert!(!fragment(1).is_atomic() && fragment(1).more());
        assert!(!fragment(8).is_atomic() && !fragment(8).more() && fragment(8).offset() == 8);
    }
}
