//! The parameters of a loopback link.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LoopbackLink;
use crate::link::LinkSpec;
use crate::link::parameters::{LinkKind, LinkParameters, SOFT};
use dataplane_core::error::Result;
use dataplane_core::pipeline::parameter_schema;

/// Joins two ports, or returns the packets of a port to the same port.
///
/// ```toml
/// [[port]]
/// name   = "left"
/// device = "soft"
/// link   = { kind = "loopback", peer = "right" }
///
/// [[port]]
/// name   = "right"
/// device = "soft"
/// link   = { kind = "loopback", peer = "left" }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoopbackConfig {
    /// The name of the port at the other end. The other port must name this port as its `peer`. Default: sent packets
    /// return to this port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

/// Returns the name, the device and the parameter schema of this link kind.
pub(in crate::link) fn kind() -> LinkKind {
    LinkKind { name: "loopback", device: SOFT, schema: parameter_schema::<LoopbackConfig>(), tables: Vec::new() }
}

impl LinkParameters for LoopbackConfig {
    fn kind(&self) -> &'static str {
        "loopback"
    }

    fn spec(&self, _: u16, cable: &mut dyn FnMut() -> LoopbackLink) -> Result<LinkSpec> {
        Ok(LinkSpec::Loopback(cable()))
    }
}
