//! The behaviour of drivers with flow rules. A program cannot query this behaviour through verbs.

use dataplane_core::verbs::{FlowLimits, FlowRule, FlowTraffic, IpMatch};

/// The number of device priorities that one priority of the config needs, if the port has several queues. Each group of
/// traffic classes with the same `TrafficClass::priority_offset` needs one device priority.
pub(crate) const LEVELS: u16 = 3;

/// The limits of an unknown driver.
const UNKNOWN: FlowLimits = FlowLimits { rss_levels: LEVELS, ..FlowLimits::NONE };

/// The limits of the kernel's mlx5 driver. `priorities` is `MLX5_BY_PASS_NUM_REGULAR_PRIOS`, and older kernels have 8
/// priorities. `unsupported_fields` follows from `LAST_*_FIELD` and `parse_flow_attr` in `fs.c`.
pub(crate) const MLX5: FlowLimits = FlowLimits {
    driver: "mlx5",
    priorities: Some(16),
    rss_levels: LEVELS,
    unsupported_fields: &["ipv4 ttl", "ipv4 flags", "ipv6 hop_limit", "gre flags"],
    ..FlowLimits::NONE
};

/// The limits of the kernel's mlx4 driver. `priorities` is `MLX4_IB_FLOW_MAX_PRIO` + 1. The unsupported parts follow
/// from `parse_flow_attr` in `main.c`. The driver creates a rule with the source MAC address or the EtherType, but the
/// rule ignores these two fields.
const MLX4: FlowLimits = FlowLimits {
    driver: "mlx4",
    priorities: Some(4096),
    rss_levels: LEVELS,
    unsupported_fields: &["ethernet src", "ether_type", "ipv4 protocol", "ipv4 tos", "ipv4 ttl", "ipv4 flags"],
    unsupported_headers: &["IPv6", "VXLAN", "GRE", "MPLS"],
    unsupported_actions: &["tag", "drop", "count"],
};

/// Returns the limits of a driver.
pub(crate) fn limits(driver: &str) -> FlowLimits {
    [MLX5, MLX4].into_iter().find(|limits| limits.driver == driver).unwrap_or(UNKNOWN)
}

/// Returns whether the driver obeys the priority of a rule only if the first spec of the rule is an empty Ethernet
/// header. If the first spec selects multicast frames, mlx5 ignores the priority and applies the rule after all other
/// rules (`flow_is_multicast_only`). If a rule has two Ethernet specs, mlx5 uses the second spec (`parse_flow_attr`).
pub(super) fn needs_empty_ethernet(rule: &FlowRule, limits: &FlowLimits) -> bool {
    let FlowTraffic::Headers { outer, .. } = &rule.traffic else { return false };
    let is_multicast = match (&outer.ethernet, &outer.ip) {
        (Some(ethernet), _) => ethernet.dst.value()[0] & 1 == 1,
        (None, Some(IpMatch::V4(ip))) => ip.dst.value()[0] & 0xf0 == 0xe0,
        _ => false,
    };
    is_multicast && limits.driver == MLX5.driver
}
