//! The fixed headers of VXLAN (RFC 7348) and GRE (RFC 2784, RFC 2890).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, HeaderError, U16, U32};

/// The UDP port of VXLAN.
pub const VXLAN_PORT: u16 = 4789;

/// The VXLAN header between the UDP header and the inner Ethernet frame: 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Vxlan {
    /// The flags. 0x08 in the first byte means that the network identifier is valid.
    pub flags: U32,
    /// Network identifier (24 bits) and 8 reserved bits.
    pub vni_reserved: U32,
}

impl Header for Vxlan {
    fn check(&self) -> Result<(), HeaderError> {
        if self.flags.get() & 0x0800_0000 == 0 { Err(HeaderError::Unsupported) } else { Ok(()) }
    }
}

impl Vxlan {
    /// Returns the header for the network identifier in the low 24 bits of `vni`.
    pub fn new(vni: u32) -> Self {
        Self { flags: U32::new(0x0800_0000), vni_reserved: U32::new(vni << 8) }
    }

    /// Returns the network identifier: 24 bits.
    pub fn vni(&self) -> u32 {
        self.vni_reserved.get() >> 8
    }
}

/// The GRE header without its optional fields: 4 bytes. [`Header::check`] refuses version 1 (PPTP) and source routing.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Gre {
    /// The flags that select the optional fields, and the version in the low 3 bits.
    pub flags_version: U16,
    /// The EtherType of the payload, one of [`super::ether_type`].
    pub protocol: U16,
}

/// The GRE flag for a checksum and two reserved bytes.
pub const GRE_CHECKSUM: u16 = 0x8000;
/// The GRE flag for a key.
pub const GRE_KEY: u16 = 0x2000;
/// The GRE flag for a sequence number.
pub const GRE_SEQUENCE: u16 = 0x1000;

impl Header for Gre {
    fn header_len(&self) -> usize {
        let flags = self.flags_version.get();
        let present = |flag: u16| usize::from(flags & flag != 0);
        Self::LEN + 4 * (present(GRE_CHECKSUM) + present(GRE_KEY) + present(GRE_SEQUENCE))
    }

    fn check(&self) -> Result<(), HeaderError> {
        let flags = self.flags_version.get();
        if flags & 0x0007 != 0 {
            return Err(HeaderError::BadVersion);
        }
        if flags & 0x4000 != 0 { Err(HeaderError::Unsupported) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vxlan_header_contains_its_network_identifier() {
        let header = Vxlan::new(0x12_3456);
        assert_eq!(header.as_bytes(), [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(Vxlan::view(header.as_bytes()).unwrap().vni(), 0x12_3456);
        assert_eq!(Vxlan::view(&[0; 8]).unwrap_err(), HeaderError::Unsupported);
    }

    #[test]
    fn gre_header_length_depends_on_its_flags() {
        let bytes = [0xb0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 7];
        let parts = Gre::parts(&bytes).unwrap();
        assert_eq!((parts.options.len(), parts.rest), (12, &[7][..]));
        assert_eq!(parts.header.protocol.get(), crate::header::ether_type::TEB);
        assert_eq!(Gre::view(&[0, 1, 8, 0]).unwrap_err(), HeaderError::BadVersion);
        assert_eq!(Gre::view(&[0x40, 0, 8, 0]).unwrap_err(), HeaderError::Unsupported);
        assert_eq!(Gre::view(&bytes[..15]).unwrap_err(), HeaderError::Truncated);
    }
}
