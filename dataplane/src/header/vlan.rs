//! VLAN tags: IEEE 802.1Q, and 802.1ad (QinQ) when there are two.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, U16, ether_type};

/// What follows the tag protocol identifier of a VLAN tag: 4 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VlanTag {
    /// Priority (3 bits), drop eligible (1 bit), VLAN identifier (12 bits).
    pub tci: U16,
    /// What follows the tag, one of [`super::ether_type`].
    pub ether_type: U16,
}

impl Header for VlanTag {}

impl VlanTag {
    /// The VLAN identifier: 0 to 4095.
    pub fn id(&self) -> u16 {
        id(self.tci.get())
    }

    /// The priority code point: 0 to 7.
    pub fn priority(&self) -> u8 {
        priority(self.tci.get())
    }

    /// Whether the frame may be dropped first.
    pub fn drop_eligible(&self) -> bool {
        self.tci.get() & 0x1000 != 0
    }
}

/// The VLAN identifier of tag control information: 0 to 4095.
pub const fn id(tci: u16) -> u16 {
    tci & 0x0fff
}

/// The priority code point of tag control information: 0 to 7.
pub const fn priority(tci: u16) -> u8 {
    (tci >> 13) as u8
}

/// Whether an EtherType announces a VLAN tag.
#[inline]
pub const fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, ether_type::VLAN | ether_type::QINQ | ether_type::QINQ_OLD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_tag_are_where_the_standard_has_them() {
        let tag = VlanTag::view(&[0xb0, 0x07, 0x08, 0x00]).unwrap();
        assert_eq!((tag.id(), tag.priority(), tag.drop_eligible()), (7, 5, true));
        assert_eq!(tag.ether_type.get(), ether_type::IPV4);
        assert!(VlanTag::view(&[0; 3]).is_err());
    }
}
