//! The parts of the fabric that a queue pair uses when it processes requests and packets.

use std::collections::{BTreeMap, VecDeque};

use super::packet::Packet;
use super::srq::Srq;
use crate::fault::Faults;

/// The parts of the fabric that a queue pair's methods can access: the network and the shared receive queues.
pub(super) struct FabricContext<'a> {
    pub(super) net: &'a mut Net,
    pub(super) srqs: &'a mut BTreeMap<u32, Srq>,
}

/// The network: packets in transit, injected faults, and unused buffers.
#[derive(Debug, Default)]
pub(super) struct Net {
    /// Packets in transit.
    pub(super) wire: VecDeque<Packet>,
    /// The injected faults for packets that arrive at a device. The map's key is the device's number.
    pub(super) faults: BTreeMap<u32, Faults<Packet>>,
    /// Completion queues that overran and whose queue pairs have not yet been moved to ERR.
    pub(super) overrun: Vec<u32>,
    /// Unused payload buffers.
    spare: Vec<Vec<u8>>,
}

/// The maximum number of unused payload buffers that are kept.
const MAX_SPARE_BUFFERS: usize = 64;

impl Net {
    /// Returns an empty buffer.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < MAX_SPARE_BUFFERS {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}
