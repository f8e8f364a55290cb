//! The InfiniBand global route header (InfiniBand Architecture Specification, volume 1, section 8.3). The device writes
//! this header in front of each message that a UD queue pair receives.

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, U16, U32};

/// The global route header (GRH): 40 bytes. With RoCE version 2 over IPv4, the device writes the IPv4 header into the
/// last 20 bytes, and the first 20 bytes are undefined. [`Header::view`] therefore does not check the version.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Grh {
    /// Version (4 bits), traffic class (8 bits), flow label (20 bits). The version is 6, except with RoCE version 2
    /// over IPv4.
    pub version_class_flow: U32,
    /// The number of bytes from the end of this header to the variant CRC of the packet.
    pub payload_length: U16,
    /// The next header: 0x1b for InfiniBand transport.
    pub next_header: u8,
    /// The remaining hops.
    pub hop_limit: u8,
    /// The GID of the sender.
    pub source: [u8; 16],
    /// The GID of the receiver.
    pub destination: [u8; 16],
}

impl Header for Grh {}

impl Grh {
    /// Returns the GID of the sender as an IPv6 address. With RoCE version 2 over IPv4, the result is undefined.
    pub fn source_gid(&self) -> Ipv6Addr {
        self.source.into()
    }

    /// Returns the GID of the receiver as an IPv6 address. With RoCE version 2 over IPv4, the result is undefined.
    pub fn destination_gid(&self) -> Ipv6Addr {
        self.destination.into()
    }
}

/// Returns the IPv4 address of a GID in `::ffff:0:0/96`, or `None` for other GIDs.
pub fn gid_to_ipv4(gid: Ipv6Addr) -> Option<Ipv4Addr> {
    gid.to_ipv4_mapped()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_are_in_the_last_32_bytes() {
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
