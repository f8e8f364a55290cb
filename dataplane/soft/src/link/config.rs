//! The config of links: the table `link` of a port.
//!
//! Each kind of link defines its own keys, checks and documentation. [`LinkConfig`] lists the kinds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::generator::config as generator;
use super::loopback::config as loopback;
use super::packet::config as packet;
use super::pcap::config as pcap;
use super::tap::config as tap;
use super::xdp::config as xdp;

pub use generator::{GeneratorConfig, Size};
pub use loopback::LoopbackConfig;
pub use packet::PacketConfig;
pub use pcap::{PcapConfig, Repeat};
pub use tap::TapConfig;
pub use xdp::XdpConfig;

pub use super::parameters::{
    Buffers, FrameStamps, HOST, LinkKind, LinkMistake, LinkParameters, MAX_HEADER, PortLimits, SOFT,
};

/// The link of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LinkConfig {
    /// Joins two ports, or returns the packets of a port to the same port.
    Loopback(LoopbackConfig),
    /// Generates the frames that the port receives, and counts the frames that the port sends.
    Generator(GeneratorConfig),
    /// Receives the packets of a capture file, and writes sent packets to another file.
    Pcap(PcapConfig),
    /// A kernel interface through AF_PACKET.
    Packet(PacketConfig),
    /// A TAP interface, with the host at the other end.
    Tap(TapConfig),
    /// A kernel interface through AF_XDP.
    Xdp(XdpConfig),
}

/// Deserializes a table of the form `{ generator = { size = 64 } }`. In a config, the table has the form `{ kind =
/// "generator", size = 64 }`. The config loader converts the table first, because serde loses the positions of values
/// in a table with a `kind`.
impl<'de> Deserialize<'de> for LinkConfig {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(remote = "LinkConfig", rename_all = "snake_case")]
        enum Outside {
            Loopback(LoopbackConfig),
            Generator(GeneratorConfig),
            Pcap(PcapConfig),
            Packet(PacketConfig),
            Tap(TapConfig),
            Xdp(XdpConfig),
        }
        Outside::deserialize(deserializer)
    }
}

/// Returns the parameters inside a [`LinkConfig`].
macro_rules! inside {
    ($self:ident) => {
        match $self {
            LinkConfig::Loopback(link) => link,
            LinkConfig::Generator(link) => link,
            LinkConfig::Pcap(link) => link,
            LinkConfig::Packet(link) => link,
            LinkConfig::Tap(link) => link,
            LinkConfig::Xdp(link) => link,
        }
    };
}

impl std::ops::Deref for LinkConfig {
    type Target = dyn LinkParameters;

    fn deref(&self) -> &Self::Target {
        inside!(self)
    }
}

impl std::ops::DerefMut for LinkConfig {
    fn deref_mut(&mut self) -> &mut Self::Target {
        inside!(self)
    }
}

/// Returns all kinds of links.
pub fn link_kinds() -> [LinkKind; 6] {
    [loopback::kind(), generator::kind(), pcap::kind(), packet::kind(), tap::kind(), xdp::kind()]
}

/// Returns a list of link kinds for help texts: the kinds of `device` (`soft` or `host`), or all kinds if `device` is
/// `None`.
pub fn kinds(device: Option<&str>) -> String {
    let kinds: Vec<String> = link_kinds()
        .into_iter()
        .filter(|kind| device.is_none_or(|device| device == kind.device))
        .map(|kind| format!("\"{}\"", kind.name))
        .collect();
    match kinds.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
