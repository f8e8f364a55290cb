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
//! - The driver stores the tag in the field of the completion that otherwise has the queue pair number. With
//!   [`PollFields::FLOW_TAG`](dataplane_core::verbs::PollFields), the queue pair number of a receive is therefore not
//!   valid. A frame that matched no rule with a tag has tag 0.

mod counters;
pub(super) mod driver;
mod encode;
pub(super) mod object;
#[cfg(test)]
mod tests;

use ibverbs_sys::ibv_context;

pub(super) use counters::VerbsFlowCounters;
pub(super) use driver::{LEVELS, limits};
pub use encode::encode_flow_rule;

use dataplane_core::verbs::FlowCounters;

/// Returns whether the device of a context created the counters.
pub(super) fn created_by(context: *mut ibv_context, counters: &dyn FlowCounters) -> bool {
    encode::own_counters(counters).is_some_and(|counters| counters.context() == context)
}
