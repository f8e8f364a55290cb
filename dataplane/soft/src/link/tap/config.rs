//! The parameters of a TAP link.

use rustix::thread::CapabilitySet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TapSpec;
use crate::link::doctor::{Finding, LinkCase};
use crate::link::interface::mtu_of;
use crate::link::parameters::{HOST, LinkKind, LinkMistake, LinkParameters, PortLimits, interface_name, yes};
use crate::link::{LinkSpec, LoopbackLink};
use dataplane_core::error::Result;
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::parameter_schema;
use dataplane_core::units::{Bytes, bytes_within_some};

/// Uses a TAP interface. The TAP interface is the host's end of the link. The host receives the frames that the port
/// sends, and the port receives the frames that the host sends. If the interface does not exist, the program creates
/// the interface.
///
/// ```toml
/// [[port]]
/// name   = "host"
/// device = "host"
///
/// [port.link]
/// kind       = "tap"
/// name       = "dp0"
/// mac        = "02:00:00:00:00:ee"
/// mtu        = 1400
/// up         = true
/// persistent = true
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TapConfig {
    /// The name of the interface.
    pub name: String,
    /// The MAC address of the host's end. The host's end and the port must have different MAC addresses. Default:
    /// an existing interface keeps its MAC address, and the kernel chooses the MAC address of a new interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// The MTU of the host's end, in bytes, such as `1400` or `"9k"`. If the table `[[port]]` has no `mtu`, the port
    /// uses this MTU too. Default: an existing interface keeps its MTU, and a new interface gets the MTU of the port.
    #[serde(
        default,
        deserialize_with = "bytes_within_some::<_, u32, 68, 65000>",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Bytes", range(min = 68, max = 65000))]
    pub mtu: Option<u32>,
    /// Whether the program sets the interface up.
    #[serde(default = "yes")]
    pub up: bool,
    /// Whether the interface remains after the program ends.
    #[serde(default)]
    pub persistent: bool,
}

/// Returns the name, the device and the parameter schema of this link kind.
pub(in crate::link) fn kind() -> LinkKind {
    LinkKind { name: "tap", device: HOST, schema: parameter_schema::<TapConfig>(), tables: Vec::new() }
}

impl LinkParameters for TapConfig {
    fn kind(&self) -> &'static str {
        "tap"
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn interface_key(&self) -> &'static str {
        "name"
    }

    fn default_mtu(&self) -> Option<u32> {
        self.mtu.or_else(|| mtu_of(&self.name))
    }

    fn is_host_end(&self) -> bool {
        true
    }

    /// Checks the name of the interface, and that its MAC address is a unicast address.
    fn check(&self, _: &PortLimits<'_>, mistakes: &mut Vec<LinkMistake>) {
        interface_name("name", &self.name, mistakes);
        if let Some(mac) = self.mac.filter(|mac| mac.is_multicast() || *mac == MacAddr::ZERO) {
            let message = format!("{mac} is not a unicast MAC address");
            let help = "use an even first byte, such as 02, and not only zeros";
            mistakes.push(LinkMistake::at("mac", message, help));
        }
    }

    fn capabilities(&self) -> CapabilitySet {
        CapabilitySet::NET_ADMIN
    }

    fn host_problems(&self, case: &LinkCase<'_>) -> Vec<Finding> {
        super::doctor::reverse_path(case).into_iter().collect()
    }

    fn spec(&self, _: u16, _: &mut dyn FnMut() -> LoopbackLink) -> Result<LinkSpec> {
        Ok(LinkSpec::Tap(TapSpec {
            name: self.name.clone(),
            mac: self.mac.map(|mac| mac.0),
            mtu: self.mtu,
            up: self.up,
            persistent: self.persistent,
            takes_over: false,
        }))
    }
}
