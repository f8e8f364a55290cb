//! UDP, RFC 768.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, HeaderError, U16};

/// The UDP header: 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Udp {
    /// The port of the sender.
    pub source: U16,
    /// The port of the receiver.
    pub destination: U16,
    /// Bytes of header and data.
    pub length: U16,
    /// The internet checksum of pseudo-header, header and data; 0 over IPv4 for none.
    pub checksum: U16,
}

impl Header for Udp {
    #[inline]
    fn check(&self) -> Result<(), HeaderError> {
        if usize::from(self.length.get()) < Self::LEN { Err(HeaderError::BadLength) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_covers_at_least_the_header() {
        let mut bytes = [0, 53, 4, 1, 0, 7, 0, 0];
        assert_eq!(Udp::view(&bytes).unwrap_err(), HeaderError::BadLength);
        bytes[5] = 8;
        let udp = Udp::view(&bytes).unwrap();
        assert_eq!((udp.source.get(), udp.destination.get()), (53, 1025));
        assert!(Udp::view(&bytes[..7]).is_err());
    }
}
