//! The fixed headers of tunnels: VXLAN (RFC 7348) and GRE (RFC 2784, RFC 2890).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, HeaderError, U16, U32};

/// The UDP port of VXLAN.
pub const VXLAN_PORT: u16 = 4789;

/// The VXLAN header: 8 bytes, behind UDP, before an Ethernet frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Vxlan {
    /// 0x08 in the first byte: the network identifier counts.
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
    /// The header of a network: the low 24 bits of `vni`.
    pub fn new(vni: u32) -> Self {
        Self { flags: U32::new(0x0800_0000), vni_reserved: U32::new(vni << 8) }
    }

    /// The network identifier: 24 bits.
    pub fn vni(&self) -> u32 {
        self.vni_reserved.get() >> 8
    }
}

/// The GRE header without its optional fields: 4 bytes. Version 1 (PPTP) and source routing are refused.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Gre {
    /// Which optional fields there are, and the version (the low 3 bits).
    pub flags_version: U16,
    /// What follows, one of [`super::ether_type`].
    pub protocol: U16,
}

/// GRE: a checksum and two reserved bytes are there.
pub const GRE_CHECKSUM: u16 = 0x8000;
/// GRE: a key is there.
pub const GRE_KEY: u16 = 0x2000;
/// GRE: a sequence number is there.
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
    fn a_vxlan_header_carries_its_network() {
        let header = Vxlan::new(0x12_3456);
        assert_eq!(header.as_bytes(), [8, 0, 0, 0, 0x12, 0x34, 0x56, 0]);
        assert_eq!(Vxlan::view(header.as_bytes()).unwrap().vni(), 0x12_3456);
        assert_eq!(Vxlan::view(&[0; 8]).unwrap_err(), HeaderError::Unsupported);
    }

    #[test]
    fn gre_options_follow_its_flags() {
        let bytes = [0xb0, 0, 0x65, 0x58, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 7];
        let parts = Gre::parts(&bytes).unwrap();
        assert_eq!((parts.options.len(), parts.rest), (12, &[7][..]));
        assert_eq!(parts.header.protocol.get(), crate::header::ether_type::TEB);
        assert_eq!(Gre::view(&[0, 1, 8, 0]).unwrap_err(), HeaderError::BadVersion);
        assert_eq!(Gre::view(&[0x40, 0, 8, 0]).unwrap_err(), HeaderError::Unsupported);
        assert_eq!(Gre::view(&bytes[..15]).unwrap_err(), HeaderError::Truncated);
    }
}
