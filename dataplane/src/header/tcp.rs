//! TCP, RFC 9293.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, HeaderError, U16, U32};

/// The sender has no more to say.
pub const FIN: u8 = 0x01;
/// Opens a connection.
pub const SYN: u8 = 0x02;
/// Tears a connection down.
pub const RST: u8 = 0x04;
/// Hand the data over now.
pub const PSH: u8 = 0x08;
/// The acknowledgement number counts.
pub const ACK: u8 = 0x10;
/// The urgent pointer counts.
pub const URG: u8 = 0x20;
/// Congestion echo, RFC 3168.
pub const ECE: u8 = 0x40;
/// Congestion window reduced, RFC 3168.
pub const CWR: u8 = 0x80;

/// The TCP header without its options: 20 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Tcp {
    /// The port of the sender.
    pub source: U16,
    /// The port of the receiver.
    pub destination: U16,
    /// The number of the first byte of data.
    pub sequence: U32,
    /// The number of the byte that is expected next.
    pub acknowledgement: U32,
    /// Header length in units of 4 bytes (4 bits) and reserved bits.
    pub data_offset: u8,
    /// [`FIN`] to [`CWR`].
    pub flags: u8,
    /// Bytes that the sender will take.
    pub window: U16,
    /// The internet checksum of pseudo-header, header and data.
    pub checksum: U16,
    /// Where urgent data ends.
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
    fn the_data_offset_is_checked() {
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
