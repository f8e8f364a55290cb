//! The XDP properties of an interface that the kernel and the driver of the interface report. The command `doctor`
//! reads these properties and changes no setting.

use super::bpf::holding_link;
use crate::link::interface::Interface;
use crate::link::interface::netlink::{attribute, link_attributes, netdev_attributes};

/// XDP properties of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpFacts {
    /// XDP features of the driver. `None` on kernels before 6.3, which do not report these features.
    pub support: Option<XdpSupport>,
    /// The attached XDP program.
    pub program: Option<XdpProgram>,
}

impl XdpFacts {
    /// Reads the XDP properties of an interface.
    pub(in crate::link) fn of(interface: &Interface) -> Self {
        Self { support: xdp_support(interface.index), program: xdp_program(interface.index) }
    }
}

/// An XDP program that is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpProgram {
    /// Program id.
    pub program: u32,
    /// Id of the `bpf_link` that holds the program. `None` if the program is attached without a `bpf_link`, or if this
    /// process may not list the `bpf_link` objects.
    pub link: Option<u32>,
}

/// XDP features of a driver: `enum netdev_xdp_act`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpSupport {
    /// Whether the driver runs programs and can redirect frames to sockets.
    pub native: bool,
    /// Whether the driver supports zero-copy AF_XDP.
    pub zero_copy: bool,
}

/// `NETDEV_A_DEV_XDP_FEATURES` (linux/netdev.h).
const FEATURES: u16 = 3;
const XDP_BASIC: u64 = 1;
const XDP_REDIRECT: u64 = 1 << 1;
const XDP_ZERO_COPY: u64 = 1 << 3;

/// `NETDEV_A_DEV_XDP_RX_METADATA_FEATURES`, and its flag `NETDEV_XDP_RX_METADATA_TIMESTAMP`.
const METADATA: (u16, u64) = (5, 1);

/// Returns the XDP features of the driver. `None` on kernels before 6.3, which do not report these features.
fn xdp_support(index: u32) -> Option<XdpSupport> {
    let features = u64_attribute(&netdev_attributes(index)?, FEATURES)?;
    Some(XdpSupport {
        native: features & (XDP_BASIC | XDP_REDIRECT) == XDP_BASIC | XDP_REDIRECT,
        zero_copy: features & XDP_ZERO_COPY != 0,
    })
}

/// Returns whether the driver passes the NIC's receive time of a frame to XDP programs. `None` if the kernel does not
/// report this property.
pub(super) fn driver_reports_nic_time(index: u32) -> Option<bool> {
    u64_attribute(&netdev_attributes(index)?, METADATA.0).map(|features| features & METADATA.1 != 0)
}

/// Returns a 64-bit number from a list of attributes.
fn u64_attribute(all: &[u8], wanted: u16) -> Option<u64> {
    Some(u64::from_ne_bytes(attribute(all, wanted)?.get(..8)?.try_into().ok()?))
}

/// The attribute `IFLA_XDP`, and the attribute `IFLA_XDP_PROG_ID` inside it (linux/if_link.h).
const XDP: (u16, u16) = (43, 4);

/// Returns the XDP program of an interface, whichever process attached it. `None` if there is no program.
pub(super) fn xdp_program(index: u32) -> Option<XdpProgram> {
    let reply = link_attributes(index)?;
    let xdp = attribute(&reply, XDP.0)?;
    let program = u32::from_ne_bytes(attribute(xdp, XDP.1)?.get(..4)?.try_into().ok()?);
    Some(XdpProgram { program, link: holding_link(index, program) })
}
