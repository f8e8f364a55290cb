//! The trait that the config of each link kind implements, and the types of its arguments and results.

use std::fmt;
use std::path::{Path, PathBuf};

use rustix::thread::CapabilitySet;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::doctor::{Finding, LinkCase};
use super::interface::{LONGEST_NAME, is_name, mtu_of};
use super::{InterfaceFacts, LinkSpec, LoopbackLink};
use dataplane_core::error::{Result, shorten};

/// The `device` of a port whose link is inside this program (not a kernel interface).
pub const SOFT: &str = "soft";

/// The `device` of a port whose link is a kernel interface of this host.
pub const HOST: &str = "host";

/// The length of an Ethernet header with two VLAN tags, in bytes (IEEE 802.1Q).
pub const MAX_HEADER: u32 = 14 + 2 * 4;

/// A kind of link.
#[derive(Clone, Debug)]
pub struct LinkKind {
    /// The value of the key `kind` for such a link.
    pub name: &'static str,
    /// The `device` of a port with such a link.
    pub device: &'static str,
    /// The schema of the parameters.
    pub schema: Schema,
    /// The parameters that are tables with their own section in the config reference: the key and the schema of each
    /// table.
    pub tables: Vec<(&'static str, Schema)>,
}

/// The parameters of a kind of link: the table `link` of a port.
pub trait LinkParameters: fmt::Debug {
    /// Returns the `kind` of the link.
    fn kind(&self) -> &'static str;

    /// Returns the name of the link's kernel interface, or `None` if the link has no kernel interface.
    fn interface(&self) -> Option<&str> {
        None
    }

    /// Returns the key that names the interface.
    fn interface_key(&self) -> &'static str {
        "interface"
    }

    /// Returns the default of the port's key `mtu`, in bytes: the MTU of the link's kernel interface. `None` if the
    /// link has no interface, or if the interface does not exist.
    fn default_mtu(&self) -> Option<u32> {
        self.interface().and_then(mtu_of)
    }

    /// Returns whether the link divides received frames among the workers only when the link is opened. A change of the
    /// number of workers then needs a new link.
    fn divides_when_opened(&self) -> bool {
        false
    }

    /// Returns whether each worker reads the receive queue of the NIC that has the number of the worker. The kernel
    /// gets the frames of the other receive queues.
    fn owns_receive_queues(&self) -> bool {
        false
    }

    /// Returns whether the interface is the host's end of the link, as with a TAP interface. If `false`, the interface
    /// itself is the port.
    fn is_host_end(&self) -> bool {
        false
    }

    /// Returns the `device` of a port with this link.
    fn device(&self) -> &'static str {
        if self.interface().is_some() { HOST } else { SOFT }
    }

    /// Returns whether the link locks the packet memory of its workers.
    fn locks_memory(&self) -> bool {
        false
    }

    /// Returns whether the device copies frames between the link and the packet buffers. Only such a device supports
    /// receive information, flow rules and offloads.
    fn copies_frames(&self) -> bool {
        true
    }

    /// Returns the buffer layout of a worker with this link, for frames of up to `longest` bytes. `asked` is the layout
    /// that the config requests.
    fn buffers(&self, asked: Buffers, _longest: u32) -> Buffers {
        asked
    }

    /// Returns the maximum headroom of a buffer, in bytes.
    fn max_headroom(&self) -> u32 {
        u32::MAX
    }

    /// Returns the capabilities that the process needs.
    fn capabilities(&self) -> CapabilitySet {
        CapabilitySet::empty()
    }

    /// Returns the capabilities that the link uses if the process has them.
    fn optional_capabilities(&self) -> CapabilitySet {
        CapabilitySet::empty()
    }

    /// Returns whether the workers poll the driver. If `true`, the interrupts of the interface belong on the cores of
    /// the workers.
    fn polls_driver(&self) -> bool {
        false
    }

    /// Returns whether the NIC writes the frames that go to the kernel into posted buffers too. A port that only sends
    /// then posts receives.
    fn always_posts_receives(&self) -> bool {
        false
    }

    /// Returns a fact if no counter of the link has the frames that find no posted buffer on an interface with these
    /// properties.
    fn uncounted_losses(&self, _facts: &InterfaceFacts) -> Option<String> {
        None
    }

    /// Returns a finding if the kernel receives no frames from this link's interface. Stages that use the kernel's
    /// neighbours and routes do not work on such a port.
    fn starved_kernel(&self) -> Option<Finding> {
        None
    }

    /// Returns the settings of the host and the interface that cause problems for this kind of link.
    fn host_problems(&self, _case: &LinkCase<'_>) -> Vec<Finding> {
        Vec::new()
    }

    /// Adds the mistakes of the parameters to `mistakes`: values that the schema cannot check, and conflicts between
    /// keys or with the port.
    fn check(&self, _port: &PortLimits<'_>, _mistakes: &mut Vec<LinkMistake>) {}

    /// Returns the capture file whose frames the link receives, or `None` if the link reads no file.
    fn input(&self) -> Option<&Path> {
        None
    }

    /// Returns the capture file that the link writes, or `None` if the link writes no file.
    fn output(&self) -> Option<&Path> {
        None
    }

    /// Replaces each path by the result of `resolve`. `resolve` makes relative paths start from the folder of the
    /// config.
    fn resolve_paths(&mut self, _resolve: &dyn Fn(&Path) -> PathBuf) {}

    /// Returns the spec of the link for this number of workers. `cable` returns the port's end of a loopback cable.
    ///
    /// # Errors
    /// Fails if the folder of an output file cannot be created.
    fn spec(&self, workers: u16, cable: &mut dyn FnMut() -> LoopbackLink) -> Result<LinkSpec>;
}

/// The layout of the buffers of a worker, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// The size of one buffer, headroom included.
    pub size: u32,
    /// The free space before a received packet.
    pub headroom: u32,
}

/// The properties of a port that its link is checked against.
#[derive(Clone, Copy, Debug)]
pub struct PortLimits<'a> {
    /// The name of the port.
    pub name: &'a str,
    /// The maximum packet length in bytes, without Ethernet header and VLAN tags.
    pub mtu: u32,
    /// Whether the config injects faults on the port.
    pub has_faults: bool,
    /// Whether some lines of the config could not be read, so that keys may be missing.
    pub is_damaged: bool,
}

/// A mistake in the config of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkMistake {
    /// The key that has the mistake, as a path from the table of the port, such as `link.ring`.
    pub place: String,
    /// What is wrong.
    pub message: String,
    /// The fix.
    pub help: String,
}

impl LinkMistake {
    /// Creates a mistake at a key of the link. An empty `key` means the table `link` itself.
    pub(super) fn at(key: &str, message: impl Into<String>, help: impl Into<String>) -> Self {
        let place = if key.is_empty() { "link".to_owned() } else { format!("link.{key}") };
        Self { place, message: message.into(), help: help.into() }
    }

    /// Creates a mistake at a key of the port.
    pub(super) fn of_port(key: &str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { place: key.to_owned(), message: message.into(), help: help.into() }
    }
}

/// The source of receive timestamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FrameStamps {
    /// The kernel, at the time when the driver passes the frame to the kernel.
    #[default]
    Kernel,
    /// The NIC. If the NIC does not timestamp frames, the kernel timestamps the frames, and the program logs a warning.
    Hardware,
}

/// Checks the name of an interface.
pub(super) fn interface_name(key: &str, name: &str, mistakes: &mut Vec<LinkMistake>) {
    if !is_name(name) {
        let help = format!(
            "use 1 to {} bytes without space, slash, colon or percent sign: `ip link` lists the interfaces",
            LONGEST_NAME
        );
        mistakes.push(LinkMistake::at(key, format!("`{}` is not a valid interface name", shorten(name)), help));
    }
}

pub(super) fn yes() -> bool {
    true
}
