//! The attributes of a port that hardware gets from the subnet manager.

/// The attributes of a port that hardware gets from the subnet manager: its address and its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSpec {
    /// The local identifier, whose low `lmc` bits are ignored. With 0, the port is an Ethernet port. With any other
    /// value, the port is an InfiniBand port, and its packets may have no GRH. An InfiniBand port needs a loopback
    /// link.
    pub lid: u16,
    /// The number of low bits of the local identifier that are path bits, 0 to 7.
    pub lmc: u8,
    /// Whether an InfiniBand port refuses paths without a GRH.
    pub grh_required: bool,
    /// The partition key table. 0 is an empty entry. The top bit of a key is set for full members of the partition. Two
    /// ports can communicate if the low 15 bits of their keys are equal and at least one port is a full member.
    pub pkeys: Vec<u16>,
}

impl Default for PortSpec {
    /// Returns an Ethernet port that is a full member of the default partition.
    fn default() -> Self {
        Self { lid: 0, lmc: 0, grh_required: false, pkeys: vec![0xffff] }
    }
}

impl PortSpec {
    pub(super) fn is_infiniband(&self) -> bool {
        self.lid != 0
    }

    fn path_bits(&self) -> u16 {
        (1 << self.lmc.min(7)) - 1
    }

    /// Returns the local identifier without path bits.
    pub(super) fn base_lid(&self) -> u16 {
        self.lid & !self.path_bits()
    }

    /// Returns the local identifier from which the port sends packets with these path bits. 0 for an Ethernet port.
    pub(super) fn source_lid(&self, path_bits: u8) -> u16 {
        if self.is_infiniband() { self.base_lid() | (u16::from(path_bits) & self.path_bits()) } else { 0 }
    }

    /// Returns whether packets to this local identifier arrive at the port.
    pub(super) fn has_lid(&self, lid: u16) -> bool {
        self.is_infiniband() && lid & !self.path_bits() == self.base_lid()
    }

    /// Returns the path bits of a local identifier.
    pub(super) fn path_bits_of(&self, lid: u16) -> u8 {
        (lid & self.path_bits()) as u8
    }

    /// Returns the partition key at an index, if the entry is not empty.
    pub(super) fn pkey(&self, index: u16) -> Option<u16> {
        self.pkeys.get(usize::from(index)).copied().filter(|pkey| pkey & 0x7fff != 0)
    }
}

/// Returns whether members with these partition keys may communicate.
pub(super) fn pkeys_match(one: u16, other: u16) -> bool {
    one & 0x7fff == other & 0x7fff && (one | other) & 0x8000 != 0
}
