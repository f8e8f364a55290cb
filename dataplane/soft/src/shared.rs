//! The state that all objects of a device share. The link is not a part of this state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::fault::FaultSpec;
use crate::memory::Keys;
use crate::numbers::{Identity, Number, Numbers};
use crate::port::PortSpec;
use crate::profile::{Profile, SoftLimits};
use crate::quirk::SoftQuirk;
use crate::status::Status;
use crate::switch::LearningSwitch;
use dataplane_core::clock::HostClock;
use dataplane_core::error::VerbError;
use dataplane_core::units::Gid;
use dataplane_core::verbs::{Capabilities, Capability, EventKind, LinkLayer, Path, QpState};

/// The state that all objects of a device share. The link is a part of
/// [`OpenDevice`](super::open_device::OpenDevice) instead.
#[derive(Debug)]
pub(super) struct Shared {
    /// The number of the device on its fabric. `None` if the link of the device has no fabric.
    pub(super) id: Option<Number>,
    /// The identity of the device.
    pub(super) identity: Identity,
    pub(super) profile: Profile,
    pub(super) limits: SoftLimits,
    pub(super) faults: FaultSpec,
    /// The state change that the device refuses.
    pub(super) refused_change: Option<(QpState, QpState)>,
    /// The unusual properties of the device.
    pub(super) quirks: Vec<SoftQuirk>,
    /// The switch between the device and its peer, with [`SoftQuirk::BehindSwitch`].
    pub(super) switch: LearningSwitch,
    pub(super) clock: HostClock,
    pub(super) port: PortSpec,
    pub(super) link_layer: LinkLayer,
    /// The largest payload of a frame or datagram, in bytes.
    pub(super) mtu: u32,
    /// The maximum frame length, in bytes.
    pub(super) max_frame: u32,
    pub(super) keys: Arc<Keys>,
    pub(super) capabilities: Capabilities,
    /// The state of the port. The watcher of a link on an interface updates this state.
    pub(super) status: Arc<Status>,
    pub(super) gone: AtomicBool,
    /// The generator of queue numbers, which all devices of a fabric share.
    pub(super) numbers: Arc<Numbers>,
    pub(super) cqs: AtomicU32,
    pub(super) srqs: AtomicU32,
}

impl Shared {
    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities.has.contains(&capability)
    }

    /// Returns whether the device has an unusual property.
    pub(super) fn has_quirk(&self, quirk: SoftQuirk) -> bool {
        self.quirks.contains(&quirk)
    }

    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Simulates the removal of the device.
    pub(super) fn remove(&self) {
        if !self.gone.swap(true, Ordering::Relaxed) {
            self.raise(EventKind::DeviceFatal, 0);
        }
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.status.is_up()
    }

    pub(super) fn raise(&self, kind: EventKind, element: u32) {
        self.status.raise(kind, element);
    }

    /// Returns a new number for a queue. No other queue has this number on this device, or on any device of the same
    /// fabric.
    pub(super) fn number(&self) -> Number {
        self.numbers.take()
    }

    /// Returns the number of the device on its fabric. 0 if the link of the device has no fabric.
    pub(super) fn id(&self) -> u32 {
        self.id.as_ref().map_or(0, Number::get)
    }

    /// Returns the address at an index of the GID table.
    pub(super) fn gid_at(&self, index: u8) -> Option<Gid> {
        self.status.gids().get(usize::from(index)).copied().filter(|gid| !gid.is_zero())
    }

    /// Returns whether an address belongs to the port.
    pub(super) fn owns(&self, gid: Gid) -> bool {
        !gid.is_zero() && self.status.gids().contains(&gid)
    }

    /// Returns whether packets can be sent on a path.
    pub(super) fn is_valid_path(&self, path: &Path) -> bool {
        let destination = match path.global {
            true => !path.gid.is_zero() && self.gid_at(path.source_gid_index).is_some(),
            false => self.port.is_infiniband() && !self.port.grh_required && path.dlid != 0,
        };
        // Service levels have 4 bits, and flow labels have 20 bits.
        destination && path.port == 1 && path.service_level < 16 && path.flow_label >> 20 == 0
    }

    /// Returns the partition key at an index of the P_Key table, for a queue pair that uses this index. With the
    /// profile `Rxe`, every index has the default key.
    pub(super) fn pkey(&self, index: u16) -> u16 {
        if self.profile == Profile::Rxe { 0xffff } else { self.port.pkey(index).unwrap_or(0) }
    }

    /// Returns the path MTU of RC, UC and UD queue pairs: the maximum payload of one packet, in bytes.
    pub(super) fn path_mtu(&self) -> u32 {
        match self.profile {
            Profile::Spec => self.mtu,
            // The payload of an Ethernet frame without the RoCE headers, rounded down to a standard path MTU.
            Profile::Rxe => (8..=12).rev().map(|bits| 1 << bits).find(|mtu| mtu + 80 <= self.mtu).unwrap_or(256),
        }
    }

    /// Returns the maximum message length of a connection, in bytes.
    pub(super) fn max_message(&self) -> u32 {
        match self.profile {
            Profile::Spec => 1 << 31,
            Profile::Rxe => 8 << 20,
        }
    }

    pub(super) fn srq_is_gone(&self) {
        self.srqs.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn check(&self, verb: &'static str) -> Result<(), VerbError> {
        if self.is_gone() { Err(VerbError::new(verb, libc::EIO)) } else { Ok(()) }
    }
}
