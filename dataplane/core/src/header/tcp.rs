//! TCP, RFC 9293.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, HeaderError, U16, U32};

/// FIN: the sender has sent all its data.
pub const FIN: u8 = 0x01;
/// SYN: opens a connection.
pub const SYN: u8 = 0x02;
/// RST: resets a connection.
pub const RST: u8 = 0x04;
/// PSH: the receiver should deliver the data at once.
pub const PSH: u8 = 0x08;
/// ACK: the acknowledgment number is valid.
pub const ACK: u8 = 0x10;
/// URG: the urgent pointer is valid.
pub const URG: u8 = 0x20;
/// ECE: ECN echo, RFC 3168.
pub const ECE: u8 = 0x40;
/// CWR: congestion window reduced, RFC 3168.
pub const CWR: u8 = 0x80;

/// The TCP header without its options: 20 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Tcp {
    /// The source port.
    pub source: U16,
    /// The destination port.
    pub destination: U16,
    /// The sequence number of the first byte of data.
    pub sequence: U32,
    /// The sequence number of the next expected byte.
    pub acknowledgement: U32,
    /// The header length in units of 4 bytes (4 bits), and reserved bits.
    pub data_offset: u8,
    /// The flags, [`FIN`] to [`CWR`].
    pub flags: u8,
    /// The receive window: the number of bytes that the sender of this segment accepts.
    pub window: U16,
    /// The internet checksum of pseudo header, header and data.
    pub checksum: U16,
    /// The urgent pointer: the end of the urgent data, relative to the sequence number.
    pub urgent: U16,
}

impl Header for Tcp {
    #[inline]
    fn header_len(&self) -> usize {
        usize::from(self.data_offset >> 4) * 4
    }

    #[inline]
    fn check(&self) -> Result<(), HeaderError> {
        if self.header_len() < Self::LEN { Err(HeaderError::BadHeaderLength) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_data_offset_is_refused() {
        let mut bytes = [0; 24];
        bytes[12] = 0x40;
        assert_eq!(Tcp::view(&bytes).unwrap_err(), HeaderError::BadHeaderLength);
        bytes[12] = 0x70;
        assert_eq!(Tcp::view(&bytes).unwrap_err(), HeaderError::Truncated);
        bytes[12] = 0x60;
        bytes[13] = SYN | ACK;
        bytes[20] = 2;
        let parts = Tcp::parts(&bytes).unwrap();
        assert_eq!((parts.header.flags, parts.options, parts.rest.len()), (0x12, &[2, 0, 0, 0][..], 0));
    }
}
