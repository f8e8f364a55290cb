//! The address of a queue pair as the pingpong programs of rdma-core tell it: `libibverbs/examples/rc_pingpong.c`.
//!
//! ```text
//! "%04x:%06x:%06x:%s"   local identifier, queue pair, first packet, GID as 32 digits; then a NUL
//! ```

use std::fmt;

use dataplane::units::Gid;

/// Bytes of an address.
pub(crate) const BYTES: usize = 52;

/// What is written between the fields, and at the end.
const SEPARATORS: [(usize, u8); 4] = [(4, b':'), (11, b':'), (18, b':'), (BYTES - 1, 0)];

/// Where a peer is to be sent to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Address {
    /// Local identifier of its port; 0 on Ethernet.
    pub(crate) lid: u16,
    /// Number of its queue pair, 24 bits; 0: there is none.
    pub(crate) qpn: u32,
    /// Number of the first packet that it sends, 24 bits.
    pub(crate) psn: u32,
    /// Address of its port; 0: it told none.
    pub(crate) gid: Gid,
}

/// Why bytes are no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    /// Too few or too many.
    #[error("an address has {BYTES} bytes, and these are {0}")]
    Length(usize),
    /// Something else between two fields, or after the last.
    #[error("byte {at} is {found:#04x} where {wanted:#04x} must be")]
    Separator {
        /// Where, from 0.
        at: usize,
        /// What is there.
        found: u8,
        /// What must be.
        wanted: u8,
    },
    /// No digit where one must be.
    #[error("byte {at} is {found:#04x}, which is none of 0 to 9 and a to f")]
    Digit {
        /// Where, from 0.
        at: usize,
        /// What is there.
        found: u8,
    },
}

impl Address {
    /// As it is told.
    pub(crate) fn to_wire(self) -> [u8; BYTES] {
        let gid = u128::from_be_bytes(self.gid.0);
        let text = format!("{:04x}:{:06x}:{:06x}:{gid:032x}\0", self.lid, self.qpn & 0xff_ffff, self.psn & 0xff_ffff);
        text.into_bytes().try_into().expect("every field has its width")
    }

    /// As it was told. Nothing is skipped, and nothing guessed.
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

    /// What `ibv_rc_pingpong` of rdma-core 44 has written.
    const STOCK: &[u8; BYTES] = b"0000:000011:2f5b5c:fe800000000000000000000000ff0010\0";

    #[test]
    fn what_the_stock_program_writes_is_read_and_written() {
        let address = Address::from_wire(STOCK).unwrap();
        let gid = "fe80::ff:10".parse().unwrap();
        assert_eq!(address, Address { lid: 0, qpn: 0x11, psn: 0x2f_5b5c, gid });
        assert_eq!(&address.to_wire(), STOCK);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let with = |at: usize, byte: u8| {
            let mut bytes = *STOCK;
            bytes[at] = byte;
            Address::from_wire(&bytes).unwrap_err().to_string()
        };
        assert_eq!(with(11, b';'), "byte 11 is 0x3b where 0x3a must be");
        assert_eq!(with(51, b'\n'), "byte 51 is 0x0a where 0x00 must be");
        for (at, byte) in [(0, b' '), (5, b'+'), (12, b'x'), (19, b'-'), (50, b'A'), (30, 0xff), (31, 0)] {
            assert_eq!(with(at, byte), format!("byte {at} is {byte:#04x}, which is none of 0 to 9 and a to f"));
        }
        assert_eq!(Address::from_wire(&STOCK[..51]), Err(AddressError::Length(51)));
        assert_eq!(Address::from_wire(&[]), Err(AddressError::Length(0)));
    }

    proptest! {
        #[test]
        fn every_address_comes_back(lid: u16, qpn in 0u32..1 << 24, psn in 0u32..1 << 24, gid: [u8; 16]) {
            let address = Address { lid, qpn, psn, gid: Gid(gid) };
            prop_assert_eq!(Address::from_wire(&address.to_wire()), Ok(address));
        }

        /// What is taken is written back as it was: nothing else is an address.
        #[test]
        fn no_bytes_are_taken_for_what_they_are_not(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(address) = Address::from_wire(&bytes) {
                prop_assert_eq!(address.to_wire().to_vec(), bytes);
            }
        }

        /// The same, close to what is one.
        #[test]
        fn a_changed_address_is_refused_or_another(at in 0..BYTES, byte: u8) {
            let mut bytes = *STOCK;
            bytes[at] = byte;
            if let Ok(address) = Address::from_wire(&bytes) {
                prop_assert_eq!(address.to_wire(), bytes);
            }
        }
    }
}
