//! The switch of [`SoftQuirk::BehindSwitch`](crate::SoftQuirk::BehindSwitch) between the device and its peer.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

type MacAddress = [u8; 6];

/// Simulates a switch and a ConnectX NIC that is connected to the switch. The switch learns on which of its ports each
/// MAC address is (IEEE 802.1Q, learning and filtering). The NIC drops frames with a wrong Ethernet length field.
#[derive(Debug, Default)]
pub(super) struct LearningSwitch {
    /// The addresses on the port of the peer.
    at_peer: Mutex<HashSet<MacAddress>>,
}

impl LearningSwitch {
    fn at_peer(&self) -> MutexGuard<'_, HashSet<MacAddress>> {
        self.at_peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the source address of a frame that the device sends.
    pub(super) fn learn_sent(&self, frame: &[u8]) {
        if let Some((_, source)) = addresses(frame) {
            self.at_peer().remove(&source);
        }
    }

    /// Records the source address of a frame that the peer sends, and returns whether the device gets the frame. The
    /// switch also learns the source addresses of the frames that it drops. The switch learns no group addresses.
    pub(super) fn passes(&self, frame: &[u8]) -> bool {
        let Some((destination, source)) = addresses(frame) else { return false };
        if source[0] & 1 != 0 {
            return false;
        }
        let mut at_peer = self.at_peer();
        at_peer.insert(source);
        !at_peer.contains(&destination) && !has_wrong_length(frame)
    }
}

/// Returns the destination address and the source address of a frame.
fn addresses(frame: &[u8]) -> Option<(MacAddress, MacAddress)> {
    let (destination, rest) = frame.split_first_chunk()?;
    Some((*destination, *rest.first_chunk()?))
}

/// Returns whether a frame has a wrong Ethernet length field.
fn has_wrong_length(frame: &[u8]) -> bool {
    /// The minimum length of the data of an Ethernet frame.
    const MIN_DATA: usize = 46;
    let Some((header, data)) = frame.split_first_chunk::<14>() else { return true };
    // Values from 0x600 are an EtherType. Short data is followed by padding.
    let length = usize::from(u16::from_be_bytes([header[12], header[13]]));
    length < 0x600 && length != data.len() && !(length < MIN_DATA && data.len() == MIN_DATA)
}
