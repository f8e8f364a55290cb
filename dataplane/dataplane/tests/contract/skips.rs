//! The capabilities that each test bed lacks. A case may be skipped only because of a listed capability. Any other skip
//! is an error.

/// Capabilities for which the traits of the verbs contract have no function, or that no tested device has.
const EVERYWHERE: &[&str] = &[
    "IBV_QPT_XRC_SEND queue pairs",
    "device memory",
    "dma-buf memory",
    "ibv_rereg_mr",
    "ibv_wr_atomic_write",
    "ibv_wr_flush",
    "on-demand paging",
    "memory allocators of parent domains",
    "tag_matching",
];
/// The capabilities that the software device lacks.
pub(crate) const SOFT: &[&str] = &[];
/// The capabilities that are missing if both endpoints are on one software device.
pub(crate) const SOFT_ALONE: &[&str] = &["raw packets from a device to itself"];
/// The capabilities that the software devices of `soft_unchecked` lack. These devices do not check every key, and
/// refuse the change from RTS to SQD.
pub(crate) const SOFT_UNCHECKED: &[&str] = &["state SQD"];
/// The capabilities that a software device lacks if it refuses atomics and flow tags, and has only plain flow rules.
pub(crate) const SOFT_FEWER_CAPABILITIES: &[&str] =
    &["atomic", "flow counters", "flow rules with the headers that the test case uses", "flow_tag"];
/// The capabilities that the software devices of `soft_other_driver` lack.
pub(crate) const SOFT_OTHER_DRIVER: &[&str] = &[
    "error completions for unsupported operations",
    "ibv_resize_cq",
    "requests with 3 elements",
    "unsignalled sends",
    "reuse of a queue pair after RESET",
];
/// The capabilities that the software devices of `soft_no_flow_rules` lack.
pub(crate) const SOFT_NO_FLOW_RULES: &[&str] =
    &["cvlan", "flow_rules", "pacing", "rss", "rx_checksum", "tso", "tx_checksum", "vlan_strip"];
/// The capabilities that software devices with InfiniBand ports lack.
pub(crate) const SOFT_INFINIBAND: &[&str] =
    &["IBV_QPT_RAW_PACKET queue pairs", "multicast groups without a subnet manager", "raw_packet"];
/// The capabilities that software devices with an unspecified link layer lack.
pub(crate) const SOFT_UNSPECIFIED: &[&str] = &["IBV_QPT_RAW_PACKET queue pairs", "raw_packet"];
/// The capabilities that a software device lacks if it is like an iWARP device.
pub(crate) const SOFT_IWARP: &[&str] = &[
    "IBV_QPT_RAW_PACKET queue pairs",
    "IBV_QPT_RC queue pairs",
    "IBV_QPT_UC queue pairs",
    "IBV_QPT_UD queue pairs",
    "raw_packet",
];
/// The capabilities that the software device lacks with the profile `Rxe`.
pub(crate) const RXE: &[&str] =
    &["IBV_QPT_RAW_PACKET queue pairs", "parent_domain", "raw_packet", "rss", "state SQE", "timestamps"];
/// The capabilities that real rxe devices lack.
#[cfg(feature = "ibverbs")]
pub(crate) const KERNEL: &[&str] =
    &["IBV_QPT_RAW_PACKET queue pairs", "extended_cq", "parent_domain", "raw_packet", "rss", "state SQE", "timestamps"];
/// The capabilities that a real rxe device on the loopback interface lacks. That interface has no multicast.
#[cfg(feature = "ibverbs")]
pub(crate) const KERNEL_ALONE: &[&str] = &[
    "IBV_QPT_RAW_PACKET queue pairs",
    "extended_cq",
    "multicast on this interface",
    "parent_domain",
    "raw_packet",
    "rss",
    "state SQE",
    "timestamps",
];

/// Allows every capability to be missing, for devices whose capabilities are not known in advance.
#[cfg(feature = "ibverbs")]
pub(crate) const ANY: &[&str] = &["*"];

/// Returns `true` if a case may be skipped because the test bed lacks `capability`.
pub(crate) fn may_skip(lacks: &[&str], capability: &str) -> bool {
    lacks == ["*"] || EVERYWHERE.contains(&capability) || lacks.contains(&capability)
}
