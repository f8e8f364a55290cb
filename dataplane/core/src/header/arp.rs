//! ARP for IPv4 over Ethernet, RFC 826.

use std::net::Ipv4Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, HeaderError, MacAddr, U16, ether_type};

/// The operation of a request.
pub const REQUEST: u16 = 1;
/// The operation of a reply.
pub const REPLY: u16 = 2;

/// An ARP message for IPv4 over Ethernet: 28 bytes. [`Header::check`] returns [`HeaderError::Unsupported`] for other
/// hardware and protocol types.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Arp {
    /// The hardware type: 1 for Ethernet.
    pub hardware: U16,
    /// The protocol type: 0x0800 for IPv4.
    pub protocol: U16,
    /// The length of a MAC address: 6.
    pub hardware_len: u8,
    /// The length of an IPv4 address: 4.
    pub protocol_len: u8,
    /// The operation: [`REQUEST`] or [`REPLY`].
    pub operation: U16,
    /// The MAC address of the sender.
    pub sender_mac: MacAddr,
    /// The IPv4 address of the sender.
    pub sender_ip: [u8; 4],
    /// The MAC address of the target. Zero in a request.
    pub target_mac: MacAddr,
    /// The IPv4 address of the target.
    pub target_ip: [u8; 4],
}

impl Header for Arp {
    fn check(&self) -> Result<(), HeaderError> {
        if self.hardware_len != 6 || self.protocol_len != 4 {
            return Err(HeaderError::BadHeaderLength);
        }
        if self.hardware.get() != 1 || self.protocol.get() != ether_type::IPV4 {
            return Err(HeaderError::Unsupported);
        }
        Ok(())
    }
}

impl Arp {
    /// Creates a complete message.
    pub fn new(operation: u16, sender: (MacAddr, Ipv4Addr), target: (MacAddr, Ipv4Addr)) -> Self {
        Self {
            hardware: U16::new(1),
            protocol: U16::new(ether_type::IPV4),
            hardware_len: 6,
            protocol_len: 4,
            operation: U16::new(operation),
            sender_mac: sender.0,
            sender_ip: sender.1.octets(),
            target_mac: target.0,
            target_ip: target.1.octets(),
        }
    }

    /// Turns a request into its reply in place. `mac` is the MAC address of the requested IPv4 address.
    pub fn answer(&mut self, mac: MacAddr) {
        self.operation.set(REPLY);
        let requested_ip = self.target_ip;
        self.target_mac = self.sender_mac;
        self.target_ip = self.sender_ip;
        self.sender_mac = mac;
        self.sender_ip = requested_ip;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_swaps_sender_and_target() {
        let (asker, owner) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let mut arp =
            Arp::new(REQUEST, (asker, Ipv4Addr::new(192, 0, 2, 1)), (MacAddr::ZERO, Ipv4Addr::new(192, 0, 2, 2)));
        arp.answer(owner);
        let arp = Arp::view(arp.as_bytes()).unwrap();
        assert_eq!(arp.operation.get(), REPLY);
        assert_eq!((arp.sender_mac, arp.sender_ip), (owner, [192, 0, 2, 2]));
        assert_eq!((arp.target_mac, arp.target_ip), (asker, [192, 0, 2, 1]));
    }

    #[test]
    fn unsupported_formats_are_refused() {
        let good = Arp::new(REQUEST, (MacAddr::ZERO, [0; 4].into()), (MacAddr::ZERO, [0; 4].into()));
        for (at, value, error) in [
            (1, 6, HeaderError::Unsupported),
            (2, 0x86, HeaderError::Unsupported),
            (4, 8, HeaderError::BadHeaderLength),
            (5, 16, HeaderError::BadHeaderLength),
        ] {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] = value;
            assert_eq!(Arp::view(&bytes).unwrap_err(), error);
        }
        assert_eq!(Arp::view(&good.as_bytes()[..27]).unwrap_err(), HeaderError::Truncated);
    }
}
