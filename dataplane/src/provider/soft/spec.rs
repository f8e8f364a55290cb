//! What a software device is made from.

use crate::clock::HostClock;
use crate::provider::Capability;
use crate::provider::soft::status::link_local;
use crate::provider::soft::{CounterSpec, FaultSpec, LinkSpec, RssSpec};
use crate::units::Gid;

/// Whose ways a device has, where the standard and the kernel's software device (rxe) differ. They agree on raw packets,
/// which the latter does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// The standard's, as hardware follows it.
    #[default]
    Spec,
    /// Those of rxe in Linux 6.1.
    Rxe,
}

impl Profile {
    /// The entries of a queue that was asked for with so many: rxe has one less than a power of two.
    pub(super) fn slots(self, depth: u32) -> u32 {
        match self {
            Self::Spec => depth,
            Self::Rxe => u32::MAX.checked_shr(depth.leading_zeros()).unwrap_or(0),
        }
    }
}

/// A software device with one port.
#[derive(Clone, Debug)]
pub struct SoftSpec {
    /// Its name.
    pub name: String,
    /// Whose ways it has.
    pub profile: Profile,
    /// What its wire is.
    pub link: LinkSpec,
    /// The largest payload of a frame or datagram, in bytes.
    pub mtu: u32,
    /// The address of its port.
    pub mac: [u8; 6],
    /// Further addresses of its port, after the one that is made from the MAC: IPv4 ones as `::ffff:192.0.2.1`.
    pub gids: Vec<Gid>,
    /// What it takes its time from, and what its stamps count where it has no counter of its own.
    pub clock: HostClock,
    /// A counter of its own.
    pub counter: Option<CounterSpec>,
    /// The bits that its counter shows.
    pub timestamp_mask: u64,
    /// How far its wall clock is ahead of the host's, in nanoseconds.
    pub wall_ahead: i64,
    /// What goes wrong.
    pub faults: FaultSpec,
    /// What it is to lack.
    pub refuse: Vec<Capability>,
    /// How frames are spread over queues.
    pub rss: RssSpec,
    /// Whether frames are to be stamped when they come in, for completions with wall-clock stamps, where that costs something:
    /// on an AF_XDP link.
    pub stamped: bool,
    /// How much of everything it has.
    pub limits: SoftLimits,
}

impl SoftSpec {
    /// A device that lacks nothing, on this link.
    pub fn new(name: &str, link: LinkSpec) -> Self {
        Self {
            name: name.to_owned(),
            profile: Profile::default(),
            link,
            mtu: 1500,
            mac: [2, 0, 0, 0, 0, 2],
            gids: Vec::new(),
            clock: HostClock::new(),
            counter: None,
            timestamp_mask: u64::MAX,
            wall_ahead: 0,
            faults: FaultSpec::default(),
            refuse: Vec::new(),
            rss: RssSpec::STANDARD,
            stamped: false,
            limits: SoftLimits::default(),
        }
    }

    /// The longest frame, in bytes: the payload, the Ethernet header and two VLAN tags.
    pub fn max_frame(&self) -> u32 {
        self.mtu + 22
    }

    /// The address of its port: link-local, made from the MAC as RFC 4291 has it.
    pub fn gid(&self) -> Gid {
        link_local(self.mac)
    }
}

/// How much of everything a software device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftLimits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests outstanding on a queue.
    pub max_qp_wr: u32,
    /// Elements of a request; at most 255.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Bytes of an inline send.
    pub max_inline: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Reads and atomics under way at a queue pair, as either side.
    pub max_rd_atomic: u8,
}

impl Default for SoftLimits {
    fn default() -> Self {
        Self {
            max_qp: 1024,
            max_qp_wr: 1 << 15,
            max_sge: 16,
            max_cq: 1024,
            max_cqe: 1 << 20,
            max_mr: 1 << 16,
            max_inline: 512,
            max_srq: 1024,
            max_rd_atomic: 128,
        }
    }
}
