//! UDP, RFC 768.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, HeaderError, U16};

/// The UDP header: 8 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Udp {
    /// The source port.
    pub source: U16,
    /// The destination port.
    pub destination: U16,
    /// The length of header and data in bytes.
    pub length: U16,
    /// The internet checksum of pseudo header, header and data. 0 over IPv4 means no checksum.
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
    fn length_below_the_header_length_is_refused() {
        let mut bytes = [0, 53, 4, 1, 0, 7, 0, 0];
        assert_eq!(Udp::view(&bytes).unwrap_err(), HeaderError::BadLength);
        bytes[5] = 8;
        let udp = Udp::view(&bytes).unwrap();
        assert_eq!((udp.source.get(), udp.destination.get()), (53, 1025));
        assert!(Udp::view(&bytes[..7]).is_err());
    }
}
