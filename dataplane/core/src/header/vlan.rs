//! VLAN tags: IEEE 802.1Q, and 802.1ad (QinQ) with two tags.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, U16, ether_type};

/// The tag control information of a VLAN tag and the EtherType after the tag: 4 bytes. The tag protocol identifier,
/// which comes first in a tag, is not included.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VlanTag {
    /// Priority (3 bits), drop eligible (1 bit), VLAN identifier (12 bits).
    pub tci: U16,
    /// The EtherType of the content after the tag, one of [`super::ether_type`].
    pub ether_type: U16,
}

impl Header for VlanTag {}

impl VlanTag {
    /// Returns the VLAN id: 0 to 4095.
    pub fn id(&self) -> u16 {
        id(self.tci.get())
    }

    /// Returns the priority code point: 0 to 7.
    pub fn priority(&self) -> u8 {
        priority(self.tci.get())
    }

    /// Returns whether the frame should be dropped before other frames if there is congestion.
    pub fn drop_eligible(&self) -> bool {
        self.tci.get() & 0x1000 != 0
    }
}

/// Returns the VLAN id in the tag control information `tci`: 0 to 4095.
pub const fn id(tci: u16) -> u16 {
    tci & 0x0fff
}

/// Returns the priority code point in the tag control information `tci`: 0 to 7.
pub const fn priority(tci: u16) -> u8 {
    (tci >> 13) as u8
}

/// Returns whether an EtherType is the type of a VLAN tag.
#[inline]
pub const fn is_tag(ether_type: u16) -> bool {
    matches!(ether_type, ether_type::VLAN | ether_type::QINQ | ether_type::QINQ_OLD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_fields_have_the_layout_of_the_standard() {
        let tag = VlanTag::view(&[0xb0, 0x07, 0x08, 0x00]).unwrap();
        assert_eq!((tag.id(), tag.priority(), tag.drop_eligible()), (7, 5, true));
        assert_eq!(tag.ether_type.get(), ether_type::IPV4);
        assert!(VlanTag::view(&[0; 3]).is_err());
    }
}
