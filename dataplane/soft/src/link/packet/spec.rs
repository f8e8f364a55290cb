//! The settings of a packet link.

/// An interface that is used with AF_PACKET, and the settings of its sockets.
#[derive(Clone, Debug)]
pub struct PacketSpec {
    /// The name of the interface.
    pub interface: String,
    /// The number of frames in the ring of a queue. A power of two.
    pub ring: u32,
    /// Whether to receive frames to any MAC address, not only to the interface's own address.
    pub promiscuous: bool,
    /// Whether sent frames go directly to the driver. Such frames bypass the queueing discipline of the interface
    /// (`tc(8)`), and `tcpdump` does not see them.
    pub qdisc_bypass: bool,
    /// Whether to also receive frames that the host itself sends on the interface.
    pub outgoing: bool,
    /// Whether received frames have timestamps of the NIC instead of the kernel. Only used if completions have
    /// wall-clock timestamps.
    pub hardware_stamps: bool,
    /// Whether the queues receive nothing until they take over the queues of another program.
    pub takes_over: bool,
}

impl PacketSpec {
    /// Default number of frames in a ring.
    pub const RING: u32 = 2048;
    /// Minimum and maximum number of frames in a ring.
    pub const RING_RANGE: [u32; 2] = [64, 65_536];

    /// Creates a spec with default settings.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.to_owned(),
            ring: Self::RING,
            promiscuous: true,
            qdisc_bypass: true,
            outgoing: false,
            hardware_stamps: false,
            takes_over: false,
        }
    }
}
