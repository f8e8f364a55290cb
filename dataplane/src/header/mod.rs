//! Checked views of protocol headers: no I/O, no allocation, no copy.
//!
//! Every fixed header is a structure of big-endian fields without alignment or padding, laid over the bytes of a
//! packet. [`Header::view`] and [`Header::view_mut`] check the bounds and the header's own lengths once; after that a
//! field is a plain load or store that cannot fail.
//!
//! ```
//! use dataplane::header::{Header, build::Frame, ethernet::Ethernet, ether_type};
//!
//! let mut bytes = Frame::new().ethernet("02:00:00:00:00:01".parse()?, "02:00:00:00:00:02".parse()?).build();
//! let ethernet = Ethernet::view_mut(&mut bytes)?;
//! ethernet.ether_type.set(ether_type::ARP);
//! assert_eq!(ethernet.source.to_string(), "02:00:00:00:00:01");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`parse::dissect`] walks a whole frame, [`build::Frame`] writes one, [`checksum`] has the arithmetic of both.

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

/// Why bytes are no valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeaderError {
    /// Fewer bytes than the header has.
    Truncated,
    /// Another version of the protocol.
    BadVersion,
    /// The header's own length is below its minimum.
    BadHeaderLength,
    /// The length of the packet, as its header gives it, is below that of the header.
    BadLength,
    /// A field that selects a format this view does not describe.
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

/// A fixed header that can be laid over the bytes of a packet, with the checks that make it one.
pub trait Header: Copy + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
    /// Bytes of the fixed part.
    const LEN: usize = size_of::<Self>();

    /// Bytes of the whole header with its options, as its own length field gives them.
    fn header_len(&self) -> usize {
        Self::LEN
    }

    /// The checks beyond "there are enough bytes": version, and lengths against their minimum.
    ///
    /// # Errors
    ///
    /// The first check that fails.
    fn check(&self) -> Result<(), HeaderError> {
        Ok(())
    }

    /// The header at the front of `bytes`.
    ///
    /// # Errors
    ///
    /// [`HeaderError::Truncated`] when `bytes` ends before the header or its options do, otherwise what
    /// [`Header::check`] found.
    #[inline]
    fn view(bytes: &[u8]) -> Result<&Self, HeaderError> {
        let (header, _) = Self::ref_from_prefix(bytes).map_err(|_| HeaderError::Truncated)?;
        header.check()?;
        if header.header_len() > bytes.len() { Err(HeaderError::Truncated) } else { Ok(header) }
    }

    /// The header at the front of `bytes`, to change.
    ///
    /// # Errors
    ///
    /// Those of [`Header::view`].
    #[inline]
    fn view_mut(bytes: &mut [u8]) -> Result<&mut Self, HeaderError> {
        Self::view(bytes)?;
        Self::mut_from_prefix(bytes).map(|(header, _)| header).map_err(|_| HeaderError::Truncated)
    }

    /// The header at the front of `bytes`, its options, and what follows them.
    ///
    /// # Errors
    ///
    /// Those of [`Header::view`].
    #[inline]
    fn parts(bytes: &[u8]) -> Result<Parts<'_, Self>, HeaderError> {
        let (header, after) = Self::ref_from_prefix(bytes).map_err(|_| HeaderError::Truncated)?;
        header.check()?;
        let (options, rest) =
            after.split_at_checked(header.header_len().saturating_sub(Self::LEN)).ok_or(HeaderError::Truncated)?;
        Ok(Parts { header, options, rest })
    }
}

/// A header, its options and what follows, as [`Header::parts`] finds them.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a, H> {
    /// The fixed part.
    pub header: &'a H,
    /// The options; empty where there are none.
    pub options: &'a [u8],
    /// Everything behind the header, padding of the link layer included.
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
    /// A service VLAN tag as it was written before 802.1ad.
    pub const QINQ_OLD: u16 = 0x9100;
    /// RoCE version 1: a GRH follows.
    pub const ROCE: u16 = 0x8915;
    /// An Ethernet frame inside a tunnel (transparent Ethernet bridging).
    pub const TEB: u16 = 0x6558;
    /// The least value that is a type: below it is an IEEE 802.3 length.
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
    /// Nothing follows, RFC 8200.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// IPv6 destination options, RFC 8200.
    pub const DESTINATION_OPTIONS: u8 = 60;
}
