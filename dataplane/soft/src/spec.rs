//! The description of a software device.

use crate::counter::CounterSpec;
use crate::fault::FaultSpec;
use crate::link::LinkSpec;
use crate::port::PortSpec;
use crate::profile::{Profile, SoftLimits};
use crate::quirk::SoftQuirk;
use crate::status::link_local;
use dataplane_core::clock::HostClock;
use dataplane_core::units::Gid;
use dataplane_core::verbs::{Capability, LinkLayer, QpState, RssSpec};

/// The description of a software device with one port.
#[derive(Clone, Debug)]
pub struct SoftSpec {
    /// The device's name.
    pub name: String,
    /// The behaviour in cases where the standard and rxe (the kernel's software RoCE driver) differ.
    pub profile: Profile,
    /// The device's wire.
    pub link: LinkSpec,
    /// The largest payload of a frame or datagram, in bytes.
    pub mtu: u32,
    /// The MAC address of the port.
    pub mac: [u8; 6],
    /// Additional addresses of the port, after the address that is derived from the MAC address. IPv4 addresses have
    /// the form `::ffff:192.0.2.1`.
    pub gids: Vec<Gid>,
    /// The InfiniBand local identifier (LID) and the partition keys of the port.
    pub port: PortSpec,
    /// The clock of the device. If `counter` is `None`, the clock is also the source of timestamps.
    pub clock: HostClock,
    /// The simulated counter for timestamps, and the offset of the device's wall clock. `None` means that timestamps
    /// come from `clock`.
    pub counter: Option<CounterSpec>,
    /// The faults to inject.
    pub faults: FaultSpec,
    /// The capabilities that the device does not offer, although its profile and link support them.
    pub disabled_capabilities: Vec<Capability>,
    /// The capabilities for queue pair types that the device does not list, although it creates queue pairs of these
    /// types. For example, iWARP devices create RC queue pairs, but verbs cannot connect them.
    pub hidden_qp_types: Vec<Capability>,
    /// A change of the state of RC, UC and UD queue pairs that the device refuses with `EINVAL`: the old state and the
    /// new state. For example, some drivers refuse the change from RTS to SQD.
    pub refused_change: Option<(QpState, QpState)>,
    /// The unusual properties of the device.
    pub quirks: Vec<SoftQuirk>,
    /// The result of [`Device::checks_every_key`](dataplane_core::verbs::Device::checks_every_key). The device checks
    /// every key even if this field is `false`.
    pub checks_every_key: bool,
    /// The distribution of frames over queues.
    pub rss: RssSpec,
    /// Whether the wall-clock timestamps of completions are the arrival times of frames. An AF_XDP link timestamps
    /// frames only if this field is `true`, because each timestamp costs time.
    pub stamped: bool,
    /// The limits of the device.
    pub limits: SoftLimits,
}

impl SoftSpec {
    /// Returns the valid bits of the counter for timestamps.
    pub(super) fn timestamp_mask(&self) -> u64 {
        self.counter.as_ref().map_or(u64::MAX, CounterSpec::mask)
    }

    /// Returns the offset of the device's wall clock from the system's wall clock, in nanoseconds.
    pub(super) fn wall_ahead(&self) -> i64 {
        self.counter.as_ref().map_or(0, |counter| counter.wall_ahead.0)
    }

    /// Returns the link layer of the port.
    pub(super) fn link_layer(&self) -> LinkLayer {
        match self.quirks.contains(&SoftQuirk::UnspecifiedLinkLayer) {
            true => LinkLayer::Unspecified,
            false if self.port.is_infiniband() => LinkLayer::InfiniBand,
            false => LinkLayer::Ethernet,
        }
    }

    /// Returns the description of a device on this link, with default values for everything else and no refused
    /// capabilities.
    pub fn new(name: &str, link: LinkSpec) -> Self {
        Self {
            name: name.to_owned(),
            profile: Profile::default(),
            link,
            mtu: 1500,
            mac: [2, 0, 0, 0, 0, 2],
            gids: Vec::new(),
            port: PortSpec::default(),
            clock: HostClock::new(),
            counter: None,
            faults: FaultSpec::default(),
            disabled_capabilities: Vec::new(),
            hidden_qp_types: Vec::new(),
            refused_change: None,
            quirks: Vec::new(),
            checks_every_key: true,
            rss: RssSpec::STANDARD,
            stamped: false,
            limits: SoftLimits::default(),
        }
    }

    /// Returns the maximum frame length in bytes: the payload, the Ethernet header and two VLAN tags.
    pub fn max_frame(&self) -> u32 {
        self.mtu + 22
    }

    /// Returns the link-local address of the port, derived from the MAC address (RFC 4291).
    pub fn gid(&self) -> Gid {
        link_local(self.mac)
    }
}
