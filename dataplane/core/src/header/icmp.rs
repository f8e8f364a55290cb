//! ICMP (RFC 792) and ICMPv6 (RFC 4443): the eight bytes that all messages start with.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, U16};

/// ICMP: echo reply.
pub const ECHO_REPLY: u8 = 0;
/// ICMP: destination unreachable.
pub const UNREACHABLE: u8 = 3;
/// ICMP: echo request.
pub const ECHO_REQUEST: u8 = 8;
/// ICMP: time exceeded.
pub const TIME_EXCEEDED: u8 = 11;
/// ICMPv6: destination unreachable.
pub const V6_UNREACHABLE: u8 = 1;
/// ICMPv6: packet too big.
pub const V6_PACKET_TOO_BIG: u8 = 2;
/// ICMPv6: time exceeded.
pub const V6_TIME_EXCEEDED: u8 = 3;
/// ICMPv6: parameter problem.
pub const V6_PARAMETER_PROBLEM: u8 = 4;
/// ICMPv6: echo request.
pub const V6_ECHO_REQUEST: u8 = 128;
/// ICMPv6: echo reply.
pub const V6_ECHO_REPLY: u8 = 129;
/// ICMPv6: router solicitation, RFC 4861.
pub const V6_ROUTER_SOLICITATION: u8 = 133;
/// ICMPv6: router advertisement, RFC 4861.
pub const V6_ROUTER_ADVERTISEMENT: u8 = 134;
/// ICMPv6: neighbor solicitation, RFC 4861.
pub const V6_NEIGHBOR_SOLICITATION: u8 = 135;
/// ICMPv6: neighbor advertisement, RFC 4861.
pub const V6_NEIGHBOR_ADVERTISEMENT: u8 = 136;

/// The first 8 bytes of an ICMP or ICMPv6 message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Icmp {
    /// The message type. ICMP and ICMPv6 use different numbers.
    pub kind: u8,
    /// The code, which refines the type.
    pub code: u8,
    /// The internet checksum of the message. The checksum of ICMPv6 includes the pseudo header.
    pub checksum: U16,
    /// The identifier of an echo message. Other types use this field differently.
    pub identifier: U16,
    /// The sequence number of an echo message. Other types use this field differently.
    pub sequence: U16,
}

impl Header for Icmp {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_layout_of_the_rfc() {
        let icmp = Icmp::view(&[8, 1, 2, 3, 4, 5, 6, 7, 9]).unwrap();
        assert_eq!((icmp.kind, icmp.code, icmp.checksum.get()), (ECHO_REQUEST, 1, 0x0203));
        assert_eq!((icmp.identifier.get(), icmp.sequence.get()), (0x0405, 0x0607));
        assert!(Icmp::view(&[0; 7]).is_err());
    }
}
