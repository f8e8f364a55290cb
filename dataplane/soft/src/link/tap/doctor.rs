//! Problems of the host for a TAP link.

use crate::link::doctor::{Finding, LinkCase, Severity};

/// Checks for strict reverse-path filtering on a TAP interface. With strict filtering, the kernel drops a packet if the
/// kernel's route to the source of the packet does not use this interface.
pub(super) fn reverse_path(case: &LinkCase<'_>) -> Option<Finding> {
    let roots = case.roots;
    let mode =
        |of: &str| roots.proc(&format!("sys/net/ipv4/conf/{of}/rp_filter")).and_then(|mode| mode.parse::<u8>().ok());
    // The kernel uses the larger value of `all` and the interface (`ip-sysctl.rst` of the kernel). A new interface has
    // the value of `default`.
    let strict = mode("all").max(mode(case.name).or_else(|| mode("default"))) == Some(1);
    strict.then(|| {
        Finding::new(
            Severity::Breaks,
            "the kernel uses strict reverse-path filtering (rp_filter = 1)",
            "the kernel drops packets from the port if it has no route back to their source through this interface",
            format!("sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{}.rp_filter=2", case.name),
        )
    })
}
