//! The global routing header of InfiniBand (InfiniBand Architecture Specification, volume 1, section 8.3), which UD
//! queue pairs put before what they receive.

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, U16, U32};

/// The global routing header: 40 bytes. On RoCE version 2 over IPv4 the device writes the IPv4 header into its last
/// 20 bytes instead, and the first 20 mean nothing; so the version is not checked by [`Header::view`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Grh {
    /// Version (4 bits, always 6), traffic class (8 bits), flow label (20 bits).
    pub version_class_flow: U32,
    /// Bytes behind this header, up to the variant CRC.
    pub payload_length: U16,
    /// 0x1b when InfiniBand transport follows.
    pub next_header: u8,
    /// Hops that are left.
    pub hop_limit: u8,
    /// The GID of the sender.
    pub source: [u8; 16],
    /// The GID of the receiver.
    pub destination: [u8; 16],
}

impl Header for Grh {}

impl Grh {
    /// The sender's GID as an IPv6 address, which it has the form of.
    pub fn source_gid(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// The receiver's GID as an IPv6 address.
    pub fn destination_gid(&self) -> Ipv6Addr {
        self.destination.into()
    }
}

/// The IPv4 address that a GID stands for, when it is one of `::ffff:0:0/96`.
pub fn gid_to_ipv4(gid: Ipv6Addr) -> Option<Ipv4Addr> {
    gid.to_ipv4_mapped()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_the_last_32_bytes() {
        let mut bytes = [0; 40];
        bytes[18..24].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 1]);
        bytes[39] = 1;
        let grh = Grh::view(&bytes).unwrap();
        assert_eq!(gid_to_ipv4(grh.source_gid()), Some(Ipv4Addr::new(192, 0, 2, 1)));
        assert_eq!(grh.destination_gid(), Ipv6Addr::LOCALHOST);
        assert_eq!(gid_to_ipv4(grh.destination_gid()), None);
        assert!(Grh::view(&bytes[..39]).is_err());
    }
}
