//! Flow rules on a device: their encoding for `ibv_create_flow(3)`, and their counters.
//!
//! Flow rules have not been tested on hardware, because no test device supports them. The tests use a fake device in
//! memory and compare the encodings byte by byte with the man page and verbs.h.
//!
//! How devices behave, according to the man page and the kernel's mlx5 driver:
//! - If several rules match, the rule with the smallest priority number wins. Rules that are created through verbs
//!   precede the rules of `ethtool` and of the kernel network stack.
//! - Many devices can match only whole fields, and refuse masks for single bits, prefixes and ranges.
//!   [`FlowRule::partial_masks`](dataplane_core::verbs::FlowRule::partial_masks) lists the fields with such masks.
//! - The creation of a rule needs `CAP_NET_RAW` in the initial user namespace.
//! - The driver stores the tag in the completion field of the queue pair number. With
//!   [`PollFields::FLOW_TAG`](dataplane_core::verbs::PollFields), the queue pair number of a receive is therefore not
//!   valid. A frame that matched no rule with a tag has tag 0.

mod counters;
mod encode;
pub(super) mod object;
#[cfg(test)]
pub(super) mod tests;

use ibverbs_sys::ibv_context;

pub(super) use counters::VerbsFlowCounters;
pub use encode::encode_flow_rule;

use dataplane_core::verbs::{FlowCounters, FlowLimits, FlowRule, FlowTraffic, IpMatch};

/// If a port has several queues, one priority of a rule takes up this number of device priorities: see `TrafficClass`.
pub(super) const LEVELS: u16 = 3;

/// The limits of an unknown driver.
const UNKNOWN: FlowLimits = FlowLimits { rss_levels: LEVELS, ..FlowLimits::NONE };

/// The limits of the kernel's mlx5 driver: `MLX5_BY_PASS_NUM_REGULAR_PRIOS`, and `LAST_*_FIELD` and `parse_flow_attr` in
/// `fs.c`. Older kernels have 8 priorities.
pub(super) const MLX5: FlowLimits = FlowLimits {
    driver: "mlx5",
    priorities: Some(16),
    rss_levels: LEVELS,
    unmatched: &["ipv4 ttl", "ipv4 flags", "ipv6 hop_limit", "gre flags"],
};

/// Returns the limits of a driver.
pub(super) fn limits(driver: &str) -> FlowLimits {
    if driver == MLX5.driver { MLX5 } else { UNKNOWN }
}

/// Returns whether a rule needs an empty Ethernet header as its first spec, so that the driver obeys the priority of the
/// rule. mlx5 ignores the priority if the first spec selects multicast frames (`flow_is_multicast_only`), and applies
/// the rule after all other rules. If a rule has two Ethernet specs, mlx5 uses the second spec (`parse_flow_attr`).
fn needs_empty_ethernet(rule: &FlowRule, limits: &FlowLimits) -> bool {
    let FlowTraffic::Headers { outer, .. } = &rule.traffic else { return false };
    let is_multicast = match (&outer.ethernet, &outer.ip) {
        (Some(ethernet), _) => ethernet.dst.value()[0] & 1 == 1,
        (None, Some(IpMatch::V4(ip))) => ip.dst.value()[0] & 0xf0 == 0xe0,
        _ => false,
    };
    is_multicast && limits.driver == MLX5.driver
}

/// Returns whether the device of a context created the counters.
pub(super) fn created_by(context: *mut ibv_context, counters: &dyn FlowCounters) -> bool {
    encode::own_counters(counters).is_some_and(|counters| counters.context() == context)
}
