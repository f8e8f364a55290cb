//! Neighbour discovery for IPv6, RFC 4861: solicitations and advertisements of neighbours.

use std::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, MacAddr, U16, U32};

/// The hop limit of what has not passed a router.
pub const HOP_LIMIT: u8 = 255;
/// The option of a solicitation that has the link address of its sender.
pub const SOURCE_LINK_ADDRESS: u8 = 1;
/// The option of an advertisement that has the link address of its target.
pub const TARGET_LINK_ADDRESS: u8 = 2;
/// A flag of an advertisement: its sender is a router.
pub const ROUTER: u32 = 1 << 31;
/// A flag of an advertisement: it answers a solicitation.
pub const SOLICITED: u32 = 1 << 30;
/// A flag of an advertisement: it is to replace what is known.
pub const OVERRIDE: u32 = 1 << 29;
/// The group of all stations of a link.
pub const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// A neighbour solicitation or advertisement (sections 4.3 and 4.4): 24 bytes, before its options.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Neighbor {
    /// The type of ICMPv6.
    pub kind: u8,
    /// 0.
    pub code: u8,
    /// With the pseudo-header.
    pub checksum: U16,
    /// Of an advertisement.
    pub flags: U32,
    /// The address that is asked for, or told of.
    pub target: [u8; 16],
}

impl Header for Neighbor {}

/// A link-layer address option (section 4.6.1): 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LinkAddress {
    /// Whose it is.
    pub kind: u8,
    /// In units of 8 bytes.
    pub length: u8,
    /// The address.
    pub mac: MacAddr,
}

impl Header for LinkAddress {}

/// The option of a kind in a run of options. `None`: one of them has no length or goes past the end, or that of this kind is
/// none of Ethernet. `Some(None)`: there is none of this kind.
pub fn link_address(mut options: &[u8], wanted: u8) -> Option<Option<MacAddr>> {
    let mut found = None;
    while let [kind, length, ..] = *options {
        let (option, behind) = options.split_at_checked(usize::from(length) * 8).filter(|_| length > 0)?;
        if kind == wanted {
            let address = LinkAddress::ref_from_bytes(option).ok()?;
            found = found.or(Some(address.mac));
        }
        options = behind;
    }
    options.is_empty().then_some(found)
}

/// The group in which a station listens for solicitations of an address (RFC 4291, section 2.7.1).
pub fn solicited_node(address: &[u8; 16]) -> [u8; 16] {
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&address[13..]);
    group
}

/// The link address of a group (RFC 2464, section 7).
pub fn group_mac(group: &[u8; 16]) -> MacAddr {
    let [.., a, b, c, d] = *group;
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// Whether an address is one of the link alone.
pub fn is_of_link(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_strictly() {
        let own = [2, 1, 2, 0, 0, 0, 0, 7];
        let mac = MacAddr([2, 0, 0, 0, 0, 7]);
        let other = [14, 2, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9];
        assert_eq!(link_address(&[], 2), Some(None));
        assert_eq!(link_address(&own, 2), Some(Some(mac)));
        assert_eq!(link_address(&own, 1), Some(None));
        assert_eq!(link_address(&[&other[..], &own].concat(), 2), Some(Some(mac)));
        for bad in [&own[..7], &[2, 0, 2, 0, 0, 0, 0, 7], &[&own[..], &[1]].concat(), &[&[2, 2], &other[2..]].concat()]
        {
            assert_eq!(link_address(bad, 2), None, "{bad:?}");
        }
    }

    #[test]
    fn groups_are_those_of_the_rfc() {
        // The example of RFC 4291, section 2.7.1.
        let address = Ipv6Addr::new(0x4037, 0, 0, 0, 1, 0x800, 0x200e, 0x8c6c).octets();
        let group = solicited_node(&address);
        assert_eq!(Ipv6Addr::from(group), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(&group), MacAddr([0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]));
    }
}
