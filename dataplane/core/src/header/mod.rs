//! Checked views of protocol headers, without I/O, allocation or copies.
//!
//! Every fixed header is a struct of big-endian fields without padding or alignment requirements. A reference to such a
//! struct is a view of the bytes of a packet. [`Header::view`] and [`Header::view_mut`] check once that the packet
//! contains the whole header, and that the length fields are valid. After that, each field access is a plain load or
//! store that cannot fail.
//!
//! ```
//! use dataplane_core::header::{Header, build::Frame, ethernet::Ethernet, ether_type};
//!
//! let mut bytes = Frame::new().ethernet("02:00:00:00:00:01".parse()?, "02:00:00:00:00:02".parse()?).build();
//! let ethernet = Ethernet::view_mut(&mut bytes)?;
//! ethernet.ether_type.set(ether_type::ARP);
//! assert_eq!(ethernet.source.to_string(), "02:00:00:00:00:01");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`parse::dissect`] parses a whole frame, [`build::Frame`] builds a frame, and [`checksum`] has the checksum
//! functions.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub mod arp;
pub mod build;
pub mod checksum;
pub mod ethernet;
pub mod grh;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod parse;
pub mod tcp;
pub mod tunnel;
pub mod udp;
pub mod vlan;

pub use ethernet::MacAddr;
pub use zerocopy::byteorder::network_endian::{U16, U32};

/// The reason why bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderError {
    /// There are fewer bytes than the header needs.
    Truncated,
    /// The version field does not have the value of the protocol.
    BadVersion,
    /// The header length field is below its minimum.
    BadHeaderLength,
    /// The packet length field is below the header length.
    BadLength,
    /// A field selects a format that the view does not support.
    Unsupported,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "truncated",
            Self::BadVersion => "bad version",
            Self::BadHeaderLength => "bad header length",
            Self::BadLength => "bad length",
            Self::Unsupported => "unsupported format",
        })
    }
}

impl std::error::Error for HeaderError {}

/// A protocol header with a fixed part that can be a view of the bytes of a packet.
pub trait Header: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
    /// The length of the fixed part in bytes.
    const LEN: usize = size_of::<Self>();

    /// Returns the length of the header including its options, in bytes. If the header has a header length field, the
    /// result is computed from this field.
    fn header_len(&self) -> usize {
        Self::LEN
    }

    /// Checks the version field and the minimum values of the length fields.
    ///
    /// # Errors
    ///
    /// Returns the first failed check.
    fn check(&self) -> Result<(), HeaderError> {
        Ok(())
    }

    /// Returns a view of the header at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// Returns [`HeaderError::Truncated`] if `bytes` ends before the end of the header and its options, or the error of
    /// [`Header::check`].
    #[inline]
    fn view(bytes: &[u8]) -> Result<&Self, HeaderError> {
        let (header, _) = Self::ref_from_prefix(bytes).map_err(|_| HeaderError::Truncated)?;
        header.check()?;
        if header.header_len() > bytes.len() { Err(HeaderError::Truncated) } else { Ok(header) }
    }

    /// Returns a mutable view of the header at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Header::view`].
    #[inline]
    fn view_mut(bytes: &mut [u8]) -> Result<&mut Self, HeaderError> {
        Self::view(bytes)?;
        Self::mut_from_prefix(bytes).map(|(header, _)| header).map_err(|_| HeaderError::Truncated)
    }

    /// Splits `bytes` into the header, its options and the remaining bytes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Header::view`].
    #[inline]
    fn parts(bytes: &[u8]) -> Result<Parts<'_, Self>, HeaderError> {
        let (header, after) = Self::ref_from_prefix(bytes).map_err(|_| HeaderError::Truncated)?;
        header.check()?;
        let (options, rest) =
            after.split_at_checked(header.header_len().saturating_sub(Self::LEN)).ok_or(HeaderError::Truncated)?;
        Ok(Parts { header, options, rest })
    }
}

/// A header, its options and the remaining bytes, as returned by [`Header::parts`].
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a, H> {
    /// The fixed part.
    pub header: &'a H,
    /// The options. Empty if there are none.
    pub options: &'a [u8],
    /// All bytes after the header, including padding of the link layer.
    pub rest: &'a [u8],
}

/// EtherType values (IEEE 802 numbers).
pub mod ether_type {
    /// IPv4, RFC 894.
    pub const IPV4: u16 = 0x0800;
    /// ARP, RFC 826.
    pub const ARP: u16 = 0x0806;
    /// A customer VLAN tag, IEEE 802.1Q.
    pub const VLAN: u16 = 0x8100;
    /// IPv6, RFC 2464.
    pub const IPV6: u16 = 0x86dd;
    /// A service VLAN tag, IEEE 802.1ad (QinQ).
    pub const QINQ: u16 = 0x88a8;
    /// A service VLAN tag, as used before 802.1ad.
    pub const QINQ_OLD: u16 = 0x9100;
    /// RoCE version 1: a GRH follows.
    pub const ROCE: u16 = 0x8915;
    /// An Ethernet frame inside a tunnel (transparent Ethernet bridging).
    pub const TEB: u16 = 0x6558;
    /// The lowest EtherType value. Lower values are IEEE 802.3 lengths.
    pub const FIRST: u16 = 0x0600;
}

/// IP protocol numbers, which are also the "next header" values of IPv6 (IANA protocol numbers).
pub mod protocol {
    /// IPv6 hop-by-hop options, RFC 8200.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP, RFC 792.
    pub const ICMP: u8 = 1;
    /// TCP, RFC 9293.
    pub const TCP: u8 = 6;
    /// UDP, RFC 768.
    pub const UDP: u8 = 17;
    /// IPv6 routing header, RFC 8200.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header, RFC 8200.
    pub const FRAGMENT: u8 = 44;
    /// GRE, RFC 2784.
    pub const GRE: u8 = 47;
    /// Encapsulating security payload, RFC 4303.
    pub const ESP: u8 = 50;
    /// Authentication header, RFC 4302.
    pub const AH: u8 = 51;
    /// ICMP for IPv6, RFC 4443.
    pub const ICMPV6: u8 = 58;
    /// No next header, RFC 8200: nothing follows.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// IPv6 destination options, RFC 8200.
    pub const DESTINATION_OPTIONS: u8 = 60;
}
