//! IPv6 neighbor discovery (RFC 4861): neighbor solicitations and advertisements.

use std::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, MacAddr, U16, U32};

/// The required hop limit. A received hop limit of 255 proves that no router has forwarded the message.
pub const HOP_LIMIT: u8 = 255;
/// The type of the option in a solicitation that contains the link-layer address of the sender.
pub const SOURCE_LINK_ADDRESS: u8 = 1;
/// The type of the option in an advertisement that contains the link-layer address of the target.
pub const TARGET_LINK_ADDRESS: u8 = 2;
/// The advertisement flag "the sender is a router".
pub const ROUTER: u32 = 1 << 31;
/// The advertisement flag "the message answers a solicitation".
pub const SOLICITED: u32 = 1 << 30;
/// The advertisement flag "replace a cached entry".
pub const OVERRIDE: u32 = 1 << 29;
/// The multicast address of all nodes on a link.
pub const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// The part of a neighbor solicitation or advertisement before its options (sections 4.3 and 4.4): 24 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Neighbor {
    /// The ICMPv6 type.
    pub kind: u8,
    /// The code, always 0.
    pub code: u8,
    /// The internet checksum of the pseudo header and the message.
    pub checksum: U16,
    /// The flags of an advertisement. Reserved in a solicitation.
    pub flags: U32,
    /// The address that the message asks for or announces.
    pub target: [u8; 16],
}

impl Header for Neighbor {}

/// A link-layer address option (section 4.6.1): 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LinkAddress {
    /// The option type.
    pub kind: u8,
    /// The length in units of 8 bytes.
    pub length: u8,
    /// The address.
    pub mac: MacAddr,
}

impl Header for LinkAddress {}

/// Returns the MAC address in the first option of type `wanted`, or `Some(None)` if no option has this type. Returns
/// `None` if the options are malformed. Options are malformed if an option has length 0 or is truncated, or if an
/// option of type `wanted` does not contain a MAC address.
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

/// Returns the solicited-node multicast address of an address (RFC 4291, section 2.7.1).
pub fn solicited_node(address: &[u8; 16]) -> [u8; 16] {
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&address[13..]);
    group
}

/// Returns the MAC address of an IPv6 multicast address (RFC 2464, section 7).
pub fn group_mac(group: &[u8; 16]) -> MacAddr {
    let [.., a, b, c, d] = *group;
    MacAddr([0x33, 0x33, a, b, c, d])
}

/// Returns whether an address is a link-local unicast address.
pub fn is_link_local(address: Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_options_are_refused() {
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
    fn link_local_addresses_have_the_prefix_fe80_10() {
        for (address, expected) in [
            ("fe80::1", true),
            ("febf::1", true),
            ("fec0::1", false),
            ("fe40::1", false),
            ("2001:db8::1", false),
            ("140::1", false),
        ] {
            assert_eq!(is_link_local(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn solicited_node_address_matches_the_rfc() {
        // The example of RFC 4291, section 2.7.1.
        let address = Ipv6Addr::new(0x4037, 0, 0, 0, 1, 0x800, 0x200e, 0x8c6c).octets();
        let group = solicited_node(&address);
        assert_eq!(Ipv6Addr::from(group), "ff02::1:ff0e:8c6c".parse::<Ipv6Addr>().unwrap());
        assert_eq!(group_mac(&group), MacAddr([0x33, 0x33, 0xff, 0x0e, 0x8c, 0x6c]));
    }
}
