//! The fixes of causes. In the texts, `{stage}`, `{kind}`, `{output}`, `{port}` and `{interface}` stand for the
//! names of the cause, and `{record}` and `{error}` for [`RECORD`] and [`ERROR`].

use super::cause::CauseKind;

/// A part of the fixes for drops of damaged or wrong packets.
const RECORD: &str = "record the packets for the administrator of the sender: \
                      `dataplane capture --drops --at stage:{stage} -w FILE`";

/// A part of the fixes for drops that an ICMP error can report to the sender.
const ERROR: &str = "or tell the sender with a stage `icmp_error`: outputs = { {output} = \"ERROR_STAGE\" }";

/// The fix of a lack of packet buffers.
pub(super) const POOL: &str = "set more `buffers` in [runtime]; `dataplane show memory` prints the current number";

/// The fix of a device that fails.
pub(super) const DEVICE: &str =
    "fix the first error: docs/verbs/recovery.md; `dataplane doctor CONFIG` examines the host";

/// The fix of a blocked worker.
pub(super) const BLOCKED: &str = "find the stage in the log (`runtime.watchdog`), and remove the stage from the config \
                                  with `dataplane apply`; if the worker never answers, restart the program";

const NONE: &str = "no fix is necessary";

/// The fixes of outputs that lead to no stage: the kind of the stage, the outputs and the fix.
const OUTPUTS: [(&str, &[&str], &str); 8] = [
    (
        "route",
        &["no_route"],
        "add a route: `dataplane set route add PREFIX via ADDRESS dev PORT --stage {stage}`, or in the kernel with \
         `ip route add`; {error}",
    ),
    (
        "route",
        &["unreachable", "prohibited"],
        "remove the kernel route of type `unreachable` or `prohibit`, which `ip route` prints; {error}",
    ),
    (
        "route",
        &["local"],
        "answer packets for this host with the stages `arp` and `icmp`, or lead the packets to a `tap` port: outputs = \
         { {output} = \"STAGE\" }",
    ),
    (
        "neighbor",
        &["unresolved"],
        "check that the next hop answers: `dataplane show neighbors`; with `source = \"config\"`, add the next hop to \
         `table` of stage `{stage}`",
    ),
    (
        "neighbor",
        &["unreachable"],
        "check that the next hop is up and in the right network: `dataplane show neighbors` and `ip neigh`; {error}",
    ),
    ("ttl", &["expired"], "look for a routing loop between the hosts of the examples; {error}"),
    ("fragment", &["too_big"], "raise `mtu` of the outgoing port; {error}"),
    ("reassemble", &["expired"], "find out where the other fragments are lost; {error}"),
];

/// The fixes of the drop reasons of stages: the kind of the stage, the reasons and the fix. An empty kind stands for
/// all kinds. The first match counts.
const REASONS: [(&str, &[&str], &str); 36] = [
    (
        "",
        &["denied"],
        "if the packets should pass, permit them: `dataplane set acl add permit … --stage {stage}`; if a rule drops \
         the packets, add `--before RULE` with this rule",
    ),
    ("icmp_error", &["rate_exceeded"], "raise `per_second` of stage `{stage}`, or stop the sender of the examples"),
    ("icmp_error", &["host_rate_exceeded"], "raise `per_host` of stage `{stage}`, or stop the sender of the examples"),
    ("icmp_error", &["no_error_allowed"], "no fix is necessary: such packets never cause an ICMP error"),
    ("icmp_error", &["no_address"], "add the ingress port to `addresses` of stage `{stage}`"),
    (
        "",
        &["rate_exceeded"],
        "raise the rate: `dataplane set limit KEY VALUE --stage {stage}`, or reduce the traffic of the sender",
    ),
    (
        "",
        &["runt", "truncated", "bad_version", "bad_header_length", "bad_length", "bad_extension", "bad_fragment"],
        "the sender or the link damages packets; {record}",
    ),
    (
        "",
        &["bad_checksum"],
        "the sender or the link damages packets, or the interface PEER at the other end of a virtual link computes no \
         checksums (`ethtool -K PEER tx off` changes this); {record}",
    ),
    (
        "",
        &["bad_solicitation", "bad_advertisement", "bad_ecn", "overlap", "martian", "bad_source"],
        "the sender violates the protocol; {record}",
    ),
    ("", &["too_many_headers"], "the sender nests more headers than the stage follows; {record}"),
    (
        "",
        &["unsupported"],
        "lead these packets past stage `{stage}`, for example with the outputs of `parse` or with a stage `filter`",
    ),
    ("fragment", &["too_many"], "raise `most` of stage `{stage}`, or `mtu` of the outgoing port"),
    ("fragment", &["no_buffer"], POOL),
    ("reassemble", &["too_many"], "let the sender use larger fragments; {record}"),
    ("reassemble", &["too_large"], "raise `largest` of stage `{stage}` and `buffer_size` in [runtime]"),
    ("reassemble", &["duplicate"], "look for a network that duplicates packets; {record}"),
    ("parse", &["too_long"], "lower the MTU of the sender; {record}"),
    ("", &["too_long"], "raise `mtu` of the outgoing port, or add a stage `fragment` before stage `{stage}`"),
    ("", &["vlan_mismatch"], "add the VLAN to stage `{stage}`, or change the VLAN of the sender"),
    ("", &["no_headroom"], "set a larger `headroom` in [runtime]"),
    ("", &["no_tailroom"], "set a larger `buffer_size` in [runtime]"),
    (
        "",
        &["no_port"],
        "choose the outgoing port with a stage before stage `{stage}`, such as `route` or `cross`, or set `port` of \
         the stage `tx`",
    ),
    (
        "",
        &["requested"],
        "no fix is necessary if the config drops these packets on purpose; otherwise set `next` of stage `{stage}` to \
         another stage",
    ),
    (
        "",
        &["queue_full"],
        "check that the next hops answer: `dataplane show neighbors`; packets wait until a neighbour is resolved",
    ),
    ("", &["stopped"], NONE),
    (
        "",
        &["panicked", "quarantined"],
        "fix the bug that the log names; to end the quarantine, apply a config that changes the parameters of stage \
         `{stage}`, or restart the program",
    ),
    (
        "route",
        &["blackhole"],
        "remove `drop = true` from the route: `dataplane set route del PREFIX --stage {stage}`, or remove the \
         blackhole route of the kernel, which `ip route` prints",
    ),
    (
        "route",
        &["not_for_us"],
        "send the frames to the MAC address of the port: `dataplane show links`; if the frames are for another host, no \
         fix is necessary",
    ),
    ("route", &["tagged"], "remove the VLAN tag with a stage `vlan` before stage `{stage}`"),
    ("cross", &["not_joined"], "add the ingress port to `pairs` of stage `{stage}`"),
    (
        "bridge",
        &["broadcast_storm", "multicast_storm", "unknown_storm"],
        "stop the sender of the examples or the loop behind its port, or raise `storm_control` of stage `{stage}`",
    ),
    ("bridge", &["alone", "not_a_member"], "add the port to the VLAN: `members` of stage `{stage}`"),
    ("bridge", &["reserved", "same_port"], "no fix is necessary: a bridge does not forward such frames"),
    ("bridge", &["probe", "shut"], "remove the loop between the ports; the log names both ports"),
    ("neighbor", &["no_neighbor"], "check that the next hop answers: `dataplane show neighbors`"),
    ("", &["undeclared_output"], "fix the stage: `StageInfo::outputs` must list every output"),
];

/// The fixes of the drops and counters of ports.
const PORTS: [(&[&str], &str); 14] = [
    (
        &["tx_full"],
        "set a larger `tx_depth` for the port `{port}` if the packets come in bursts; otherwise use a faster link, or \
         limit the traffic with a stage `limit`",
    ),
    (
        &["tx_link_down"],
        "connect the cable or start the peer of the port `{port}`, and run `ip link set dev IFACE up`; `dataplane show \
         links` prints the interface",
    ),
    (&["tx_queue_full"], "use a faster link for the port `{port}`, or limit the traffic with a stage `limit`"),
    (
        &["tx_refused"],
        "set `mtu` of the port `{port}` to the MTU of its interface, and add a stage `fragment` for longer packets",
    ),
    (&["tx_error"], "read the first error of the port `{port}`, and examine the host: `dataplane doctor CONFIG`"),
    (
        &["too_long"],
        "set `mtu` of the port `{port}` to at most the longest message of the connection - 22, and add a stage \
         `fragment`: the log has this length. For `qp = \"ud\"`, a larger MTU of the interfaces on both sides permits \
         longer messages; for \"rc\" and \"uc\", a larger `buffer_size` of the peer",
    ),
    (
        &["not_connected"],
        "start the peer of the port `{port}`, and check its address in `connection`; for `qp = \"rc\"`, the port of the peer \
         must be in `input` of its pipeline",
    ),
    (&["stopped"], NONE),
    (
        &["rx_too_long"],
        "set a larger `buffer_size` in [runtime] and a larger `mtu` for the port `{port}`, or lower the MTU of the \
         sender",
    ),
    (
        &["rx_gso_too_long"],
        "limit GSO packets to 64 KiB: `ip link set dev IFACE gso_max_size 65536 gro_max_size 65536`, for the interface \
         of the port `{port}` (`dataplane show links`) and for its veth peer",
    ),
    (
        &["rx_errors"],
        "set `mtu` of the port `{port}` to the MTU of its interface, or the MTU of the interface to `mtu`: `dataplane \
         doctor CONFIG` prints both values and the command",
    ),
    (&["rx_unmatched"], "add a flow rule for these frames to the port `{port}`: docs/config/flow.md"),
    (
        &["qkey_violations", "pkey_violations"],
        "set the same Q_Key and the same P_Key on both sides of the connection of the port `{port}`",
    ),
    (&["tx_lost"], "free disk space, or write the capture of the port `{port}` to another file system"),
];

/// Returns the fix for packets of an output that leads to no stage.
pub(super) fn of_output(kind: &str, stage: &str, output: &str) -> String {
    let found = OUTPUTS.iter().find(|(of, outputs, _)| *of == kind && outputs.contains(&output));
    let fix = found
        .map_or("connect the output of stage `{stage}` to a stage: outputs = { {output} = \"STAGE\" }", |(.., fix)| {
            fix
        });
    of_stage(fix, kind, stage, output)
}

/// Returns the fix for a drop reason of a stage.
pub(super) fn of_reason(kind: &str, stage: &str, reason: &str) -> String {
    let fits = |of: &str| of.is_empty() || of == kind;
    let found = REASONS.iter().find(|(of, reasons, _)| fits(of) && reasons.contains(&reason));
    let fix = found.map_or("read the documentation of the stage: `dataplane stages {kind}`; {record}", |(.., fix)| fix);
    of_stage(fix, kind, stage, reason)
}

fn of_stage(fix: &str, kind: &str, stage: &str, output: &str) -> String {
    let fix = fix.replace("{record}", RECORD).replace("{error}", ERROR);
    fix.replace("{output}", output).replace("{kind}", kind).replace("{stage}", stage)
}

/// Returns the fix for packets that a port dropped or did not accept.
pub(super) fn of_port(port: &str, counter: &str) -> String {
    let found = PORTS.iter().find(|(counters, _)| counters.contains(&counter));
    let other = "examine the host: `dataplane doctor CONFIG`; `dataplane show ports` shows the port `{port}`";
    found.map_or(other, |(_, fix)| fix).replace("{port}", port)
}

/// Returns the fix for frames that the kernel's interface lost.
pub(super) fn of_interface(interface: &str, kind: CauseKind) -> String {
    let fix = match kind {
        CauseKind::NicRing => {
            "enlarge the ring of the NIC: `ethtool -G {interface} rx N`; `ethtool -g {interface}` prints the maximum"
        }
        CauseKind::LinkErrors => {
            "`ethtool -S {interface}` shows the kind of the errors: replace the cable or the transceiver, or for frames \
             that are too long (`rx_oversize_pkts_phy` of mlx5), run `ip link set dev {interface} mtu MTU` and set `mtu` \
             of the port"
        }
        _ => {
            "see the counters of the driver: `ethtool -S {interface}`; if the second column of /proc/net/softnet_stat \
             increases, run `sysctl -w net.core.netdev_max_backlog=10000`"
        }
    };
    fix.replace("{interface}", interface)
}

/// Returns the fix for workers that cannot handle more packets. `stage` is the slowest part of the loop, if this part is
/// a stage.
pub(super) fn saturated(stage: Option<&str>, is_preempted: bool) -> String {
    let part = stage.map_or(String::new(), |stage| format!(", or remove or simplify the stage `{stage}`"));
    let core = if is_preempted { "; first give each worker its own core: `dataplane doctor CONFIG`" } else { "" };
    format!("set more `workers` in [runtime]{part}{core}")
}

/// Returns the fix for a worker whose core runs other threads.
pub(super) fn preempted(port: &str, queue: &str) -> String {
    let key = queue_key(port, queue);
    format!(
        "isolate the cores of the workers: `dataplane doctor CONFIG` prints the commands; a larger {queue} bridges \
         short pauses: {key}"
    )
}

/// Returns the fix for bursts that exceed a queue.
pub(super) fn bursts(port: &str, queue: &str) -> String {
    format!("enlarge the {queue}: {}", queue_key(port, queue))
}

fn queue_key(port: &str, queue: &str) -> String {
    match queue {
        "ring" => format!("`ring` in the link of the port `{port}`"),
        _ => format!("`rx_depth` of the port `{port}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only a stage of an app may get the fallback fix, which names the documentation.
    #[test]
    fn every_drop_of_a_built_in_stage_has_its_own_fix() {
        let registry = dataplane_stages::registry();
        for kind in registry.kinds() {
            let built_in = kind.info.drops.iter().map(|reason| reason.to_string());
            for reason in kind.info.reasons.iter().map(|(name, _)| (*name).to_owned()).chain(built_in) {
                let fix = of_reason(&kind.name, "s", &reason);
                assert!(!fix.contains("documentation") && !fix.contains('{'), "{}.{reason}: {fix}", kind.name);
            }
        }
    }
}
