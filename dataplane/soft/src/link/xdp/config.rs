//! The parameters of an xdp link, and their requirements for the memory of a worker.

use std::time::Duration;

use rustix::thread::CapabilitySet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::HEADROOM;
use super::spec::{BusyPoll, Copying, Filter, Mode, Selector, XdpSpec};
use crate::link::doctor::{Finding, LinkCase};
use crate::link::parameters::{
    Buffers, FrameStamps, HOST, LinkKind, LinkMistake, LinkParameters, PortLimits, interface_name, yes,
};
use crate::link::{InterfaceFacts, LinkSpec, LoopbackLink};
use dataplane_core::error::Result;
use dataplane_core::mem;
use dataplane_core::pipeline::parameter_schema;

/// Uses a kernel interface through AF_XDP. The kernel reads and writes frames in the packet memory of the worker.
///
/// ```toml
/// [[port]]
/// name   = "wan"
/// device = "host"
///
/// [port.link]
/// kind        = "xdp"
/// interface   = "eth1"
/// mode        = "native"
/// copy        = "zero"
/// filter      = [{ ether_type = 0x0800, prefix = "10.0.0.0/8" }, { vlan = 7, protocol = "udp", port = 53 }]
/// except      = [{ protocol = "tcp", port = 22 }, { vlan = 99 }, { ether_type = 0x0806 }, { prefix = "192.0.2.0/24" }]
/// promiscuous = false
/// stamps      = "hardware"
/// busy_poll   = { duration = "50us", budget = 32 }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct XdpConfig {
    /// The name of the interface. Worker 0 uses receive queue 0 of the interface, worker 1 uses receive queue 1, and so
    /// on.
    pub interface: String,
    /// Where the XDP program runs: `"native"` in the driver, `"generic"` in the network stack of the kernel, `"auto"`
    /// in the driver if the driver supports XDP, otherwise in the network stack.
    #[serde(default)]
    pub mode: Mode,
    /// How frames get into packet memory: `"zero"` for zero-copy, `"copy"` for a copy by the kernel, `"auto"` for
    /// zero-copy if the driver supports zero-copy, otherwise for a copy.
    #[serde(default)]
    pub copy: Copying,
    /// The frames that the port receives: each entry selects the frames that match all its keys. All other frames go to
    /// the kernel. Default: every frame.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<Selector>,
    /// Frames that always go to the kernel, even if `filter` selects these frames, such as `[{ protocol = "tcp", port =
    /// 22 }]`. Each entry selects the frames that match all its keys. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub except: Vec<Selector>,
    /// Whether the interface receives frames to any MAC address, not only to its own MAC address.
    #[serde(default = "yes")]
    pub promiscuous: bool,
    /// The source of receive timestamps: `"kernel"`, or `"hardware"` for the NIC. Only used with `timestamps =
    /// "wallclock"` in `[runtime]`.
    #[serde(default)]
    pub stamps: FrameStamps,
    /// Parameters of busy polling: when the worker polls the socket, the kernel polls the driver on the core of the
    /// worker, instead of waiting for an interrupt. Default: no busy polling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_poll: Option<BusyPoll>,
}

/// The maximum headroom of an AF_XDP buffer, in bytes. The rest of the first page holds the beginning of the frame.
const MOST_HEADROOM: u32 = 2048;
/// The slot sizes of AF_XDP, in bytes: half a page, or multiples of a page.
const SMALL: u32 = 2048;
const PAGE: u32 = 4096;
/// The free space after the packet in a slot, in bytes.
const GUARD: u32 = mem::GUARD as u32;
/// The maximum size of a packet buffer of whole pages, in bytes. The limit exists because offsets in a buffer have 16
/// bits.
const MOST_SIZE: u32 = (1 << 16) - PAGE - GUARD;

/// Returns the name, the device and the parameter schema of this link kind.
pub(in crate::link) fn kind() -> LinkKind {
    LinkKind {
        name: "xdp",
        device: HOST,
        schema: parameter_schema::<XdpConfig>(),
        tables: vec![("busy_poll", parameter_schema::<BusyPoll>())],
    }
}

impl XdpConfig {
    fn program_filter(&self) -> Filter {
        Filter { take: self.filter.clone(), except: self.except.clone() }
    }
}

impl LinkParameters for XdpConfig {
    fn kind(&self) -> &'static str {
        "xdp"
    }

    fn owns_receive_queues(&self) -> bool {
        true
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn locks_memory(&self) -> bool {
        true
    }

    fn copies_frames(&self) -> bool {
        false
    }

    /// Returns the layout of a buffer: half a page, or whole pages. Half a page is used if the requested size fits, and
    /// if the headroom, a frame of `longest` bytes and the guard also fit.
    fn buffers(&self, asked: Buffers, longest: u32) -> Buffers {
        let headroom = asked.headroom.max(u32::from(HEADROOM));
        let small = asked.size <= SMALL && headroom.saturating_add(longest) <= SMALL - GUARD;
        let whole = asked.size.max(headroom.saturating_add(longest)).saturating_add(GUARD).next_multiple_of(PAGE);
        let size = if small { SMALL - GUARD } else { (whole - GUARD).min(MOST_SIZE) };
        Buffers { size, headroom }
    }

    fn max_headroom(&self) -> u32 {
        MOST_HEADROOM
    }

    /// Checks the name of the interface and the duration of busy polling. Refuses `faults`, because the kernel cannot
    /// inject faults.
    fn check(&self, port: &PortLimits<'_>, mistakes: &mut Vec<LinkMistake>) {
        interface_name("interface", &self.interface, mistakes);
        let is_valid =
            |busy: &BusyPoll| (Duration::from_micros(1)..=Duration::from_millis(100)).contains(&busy.duration.0);
        if let Some(busy) = self.busy_poll.filter(|busy| !is_valid(busy)) {
            let message = format!("{} is out of range", busy.duration);
            mistakes.push(LinkMistake::at(
                "busy_poll.duration",
                message,
                "set `duration` to a time from \"1us\" to \"100ms\"",
            ));
        }
        if port.has_faults {
            let message = format!("`faults` do not work on `{}`, because xdp links have no fault injection", port.name);
            let help = "remove `faults`, or write link = { kind = \"packet\" }";
            mistakes.push(LinkMistake::of_port("faults", message, help));
        }
    }

    fn capabilities(&self) -> CapabilitySet {
        self.program_filter().capabilities() | CapabilitySet::NET_RAW
    }

    fn polls_driver(&self) -> bool {
        self.busy_poll.is_some()
    }

    fn always_posts_receives(&self) -> bool {
        self.copy != Copying::Copy
    }

    fn uncounted_losses(&self, facts: &InterfaceFacts) -> Option<String> {
        super::doctor::uncounted_losses(&self.interface, self.mode, self.copy, facts)
    }

    fn starved_kernel(&self) -> Option<Finding> {
        (self.filter.is_empty() && self.except.is_empty()).then(super::doctor::starved_kernel)
    }

    fn host_problems(&self, case: &LinkCase<'_>) -> Vec<Finding> {
        super::doctor::problems(self.mode, self.copy, case)
    }

    fn spec(&self, workers: u16, _: &mut dyn FnMut() -> LoopbackLink) -> Result<LinkSpec> {
        Ok(LinkSpec::Xdp(XdpSpec {
            interface: self.interface.clone(),
            mode: self.mode,
            copying: self.copy,
            filter: self.program_filter(),
            promiscuous: self.promiscuous,
            hardware_stamps: self.stamps == FrameStamps::Hardware,
            busy_poll: self.busy_poll,
            queues: workers,
            takes_over: false,
        }))
    }
}
