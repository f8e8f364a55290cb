//! The address of a queue pair in the format of the pingpong programs of rdma-core
//! (`libibverbs/examples/rc_pingpong.c`).
//!
//! ```text
//! "%04x:%06x:%06x:%s"   LID, queue pair number, first PSN, GID as 32 hexadecimal digits; then a NUL
//! ```

use std::fmt;

use dataplane::units::Gid;

/// The length of an address in bytes.
pub(crate) const BYTES: usize = 52;

/// The separators between the fields and at the end, with their offsets.
const SEPARATORS: [(usize, u8); 4] = [(4, b':'), (11, b':'), (18, b':'), (BYTES - 1, 0)];

/// The address of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Address {
    /// The local identifier (LID) of the port, or 0 on Ethernet.
    pub(crate) lid: u16,
    /// The queue pair number, 24 bits. 0 means no queue pair.
    pub(crate) qpn: u32,
    /// The packet sequence number (PSN) of the first packet that this queue pair sends, 24 bits.
    pub(crate) psn: u32,
    /// The GID of the port. 0 if the sender of the address sends only its LID, which is possible on InfiniBand.
    pub(crate) gid: Gid,
}

/// The reason why bytes are not a valid address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    /// The length is wrong.
    #[error("an address has {BYTES} bytes, not {0}")]
    Length(usize),
    /// The separator between two fields or after the last field is wrong.
    #[error("byte {at} is {found:#04x} instead of {wanted:#04x}")]
    Separator {
        /// The offset of the byte.
        at: usize,
        /// The value of the byte.
        found: u8,
        /// The required value.
        wanted: u8,
    },
    /// A character is not a hexadecimal digit in lower case.
    #[error("byte {at} is {found:#04x}, which is not a digit (0 to 9, a to f)")]
    Digit {
        /// The offset of the byte.
        at: usize,
        /// The value of the byte.
        found: u8,
    },
}

impl Address {
    /// Returns the address in wire format.
    pub(crate) fn to_wire(self) -> [u8; BYTES] {
        let gid = u128::from_be_bytes(self.gid.0);
        let text = format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", self.lid, self.qpn & 0xff_ffff, self.psn & 0xff_ffff);
        text.into_bytes().try_into().expect("every field has its width")
    }

    /// Parses an address in wire format. The format must match exactly.
    pub(crate) fn from_wire(bytes: &[u8]) -> Result<Self, AddressError> {
        let bytes: &[u8; BYTES] = bytes.try_into().map_err(|_| AddressError::Length(bytes.len()))?;
        for (at, wanted) in SEPARATORS {
            if bytes[at] != wanted {
                return Err(AddressError::Separator { at, found: bytes[at], wanted });
            }
        }
        let number = |from: usize, digits: usize| {
            (from..from + digits).try_fold(0u128, |number, at| match bytes[at] {
                digit @ b'0'..=b'9' => Ok(number << 4 | u128::from(digit - b'0')),
                digit @ b'a'..=b'f' => Ok(number << 4 | u128::from(digit - b'a' + 10)),
                found => Err(AddressError::Digit { at, found }),
            })
        };
        Ok(Self {
            lid: number(0, 4)? as u16,
            qpn: number(5, 6)? as u32,
            psn: number(12, 6)? as u32,
            gid: Gid(number(19, 32)?.to_be_bytes()),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {:#06x}, QPN {:#08x}, PSN {:#08x}, GID {}", self.lid, self.qpn, self.psn, self.gid)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An address in wire format, from `ibv_rc_pingpong` of rdma-core 44.
    const RDMA_CORE_ADDRESS: &[u8; BYTES] = b"0000:000011:2f5b5c:fe800000000000000000000000ff0010\0";

    #[test]
    fn address_of_rdma_core_round_trips() {
        let address = Address::from_wire(RDMA_CORE_ADDRESS).unwrap();
        let gid = "fe80::ff:10".parse().unwrap();
        assert_eq!(address, Address { lid: 0, qpn: 0x11, psn: 0x2f_5b5c, gid });
        assert_eq!(&address.to_wire(), RDMA_CORE_ADDRESS);
    }

    #[test]
    fn invalid_byte_is_reported_with_its_offset() {
        let with = |at: usize, byte: u8| {
            let mut bytes = *RDMA_CORE_ADDRESS;
            bytes[at] = byte;
            Address::from_wire(&bytes).unwrap_err().to_string()
        };
        assert_eq!(with(11, b';'), "byte 11 is 0x3b instead of 0x3a");
        assert_eq!(with(51, b'\n'), "byte 51 is 0x0a instead of 0x00");
        for (at, byte) in [(0, b' '), (5, b'+'), (12, b'x'), (19, b'-'), (50, b'A'), (30, 0xff), (31, 0)] {
            assert_eq!(with(at, byte), format!("byte {at} is {byte:#04x}, which is not a digit (0 to 9, a to f)"));
        }
        assert_eq!(Address::from_wire(&RDMA_CORE_ADDRESS[..51]), Err(AddressError::Length(51)));
        assert_eq!(Address::from_wire(&[]), Err(AddressError::Length(0)));
    }

    proptest! {
        #[test]
        fn every_address_round_trips(lid: u16, qpn in 0u32..1 << 24, psn in 0u32..1 << 24, gid: [u8; 16]) {
            let address = Address { lid, qpn, psn, gid: Gid(gid) };
            prop_assert_eq!(Address::from_wire(&address.to_wire()), Ok(address));
        }

        /// If bytes are accepted as an address, the address in wire format equals the bytes. Each address therefore has
        /// only one accepted byte sequence.
        #[test]
        fn accepted_bytes_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(address) = Address::from_wire(&bytes) {
                prop_assert_eq!(address.to_wire().to_vec(), bytes);
            }
        }

        /// Like `accepted_bytes_round_trip`, but with bytes that differ from a valid address in one byte.
        #[test]
        fn changed_address_is_refused_or_round_trips(at in 0..BYTES, byte: u8) {
            let mut bytes = *RDMA_CORE_ADDRESS;
            bytes[at] = byte;
            if let Ok(address) = Address::from_wire(&bytes) {
                prop_assert_eq!(address.to_wire(), bytes);
            }
        }
    }
}
