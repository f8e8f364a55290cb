//! The parameters of a packet link.

use rustix::thread::CapabilitySet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PacketSpec;
use crate::link::doctor::{Finding, LinkCase};
use crate::link::parameters::{
    FrameStamps, HOST, LinkKind, LinkMistake, LinkParameters, PortLimits, interface_name, yes,
};
use crate::link::{LinkSpec, LoopbackLink};
use dataplane_core::error::Result;
use dataplane_core::pipeline::parameter_schema;
use dataplane_core::units::within;

/// Uses a kernel interface through AF_PACKET. The network stack of the host also receives the frames that arrive on the
/// interface.
///
/// ```toml
/// [[port]]
/// name   = "wan"
/// device = "host"
///
/// [port.link]
/// kind         = "packet"
/// interface    = "eth1"
/// ring         = 4096
/// promiscuous  = false
/// qdisc_bypass = false
/// outgoing     = true
/// stamps       = "hardware"
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PacketConfig {
    /// The name of the interface.
    pub interface: String,
    /// The size of the receive ring of each worker, in frames. Must be a power of two.
    #[serde(default = "ring", deserialize_with = "within::<_, u32, 64, 65536>")]
    #[schemars(range(min = 64, max = 65536))]
    pub ring: u32,
    /// Whether the interface receives frames to any MAC address, not only to its own MAC address.
    #[serde(default = "yes")]
    pub promiscuous: bool,
    /// Whether sent frames go directly to the driver. If `true`, sent frames bypass the queueing discipline of the
    /// interface, and `tcpdump` does not see sent frames.
    #[serde(default = "yes")]
    pub qdisc_bypass: bool,
    /// Whether the port also receives the frames that the host sends on the interface. Use this key to monitor all
    /// traffic.
    #[serde(default)]
    pub outgoing: bool,
    /// The source of receive timestamps: `"kernel"`, or `"hardware"` for the NIC. Only used with `timestamps =
    /// "wallclock"` in `[runtime]`.
    #[serde(default)]
    pub stamps: FrameStamps,
}

fn ring() -> u32 {
    PacketSpec::RING
}

/// Returns the name, the device and the parameter schema of this link kind.
pub(in crate::link) fn kind() -> LinkKind {
    LinkKind { name: "packet", device: HOST, schema: parameter_schema::<PacketConfig>(), tables: Vec::new() }
}

impl LinkParameters for PacketConfig {
    fn kind(&self) -> &'static str {
        "packet"
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    /// Checks the name of the interface and the size of the ring.
    fn check(&self, _: &PortLimits<'_>, mistakes: &mut Vec<LinkMistake>) {
        interface_name("interface", &self.interface, mistakes);
        if !self.ring.is_power_of_two() {
            let message = format!("a ring of {} frames is not a power of two", self.ring);
            let help = format!("set `ring` to {}, for example", self.ring.next_power_of_two().min(1 << 16));
            mistakes.push(LinkMistake::at("ring", message, help));
        }
    }

    fn capabilities(&self) -> CapabilitySet {
        CapabilitySet::NET_RAW
    }

    /// Returns CAP_NET_ADMIN if NIC timestamps are requested. Without this capability, the link uses kernel timestamps.
    fn optional_capabilities(&self) -> CapabilitySet {
        match self.stamps {
            FrameStamps::Hardware => CapabilitySet::NET_ADMIN,
            _ => CapabilitySet::empty(),
        }
    }

    fn host_problems(&self, case: &LinkCase<'_>) -> Vec<Finding> {
        super::doctor::problems(case)
    }

    fn spec(&self, _: u16, _: &mut dyn FnMut() -> LoopbackLink) -> Result<LinkSpec> {
        Ok(LinkSpec::Packet(PacketSpec {
            interface: self.interface.clone(),
            ring: self.ring,
            promiscuous: self.promiscuous,
            qdisc_bypass: self.qdisc_bypass,
            outgoing: self.outgoing,
            hardware_stamps: self.stamps == FrameStamps::Hardware,
            takes_over: false,
        }))
    }
}
