//! Tests of the placement of workers on cores, and of the messages about distant or impossible placements.

use dataplane::topology::{Core, Node, Topology};
use dataplane::units::{Bytes, CoreId, NumaNode};

use super::check_on;

/// Returns a machine with three NUMA nodes of two cores each (node 0 has cores 0 and 1, and so on), and a fourth node
/// without cores. Node 2 has no memory. The process is not allowed to use core 5. Core 6 is offline.
fn machine() -> Topology {
    let core = |id| Core { id: CoreId(id), physical: id, package: id / 2, node: NumaNode(id / 2), allowed: id != 5 };
    let node = |id| Node {
        id: NumaNode(id),
        memory: Bytes(if id == 2 { 0 } else { 1 << 30 }),
        allowed: true,
        hugepages: Vec::new(),
    };
    Topology::from_parts((0..6).map(core).collect(), Vec::new(), (0..4).map(node).collect(), Vec::new())
        .with_offline(vec![CoreId(6)])
}

const TWO_PORTS: &str = r#"[runtime]
workers = "auto"
strict = false
[[port]]
name = "wan"
device = "soft"
numa_node = 1
link = { kind = "loopback", peer = "lan" }
[[port]]
name = "lan"
device = "soft"
numa_node = 1
link = { kind = "loopback", peer = "wan" }
[pipeline]
input = ["wan", "lan"]
[[pipeline.stage]]
use = "tx"
port = "lan"
"#;

/// Checks `TWO_PORTS` with these overrides. Returns the cores of the workers, and the level, line, message and help of
/// each mistake.
fn placed(overrides: &[(&str, &str)]) -> (Option<Vec<u32>>, Vec<String>) {
    let (plan, diagnostics) = check_on(&machine(), TWO_PORTS, overrides);
    let cores = plan.map(|plan| plan.cores.iter().map(|core| core.0).collect());
    let text = |record: dataplane::config::Record| {
        let level = serde_json::to_value(record.level).unwrap();
        format!("{} {}: {}; {}", level.as_str().unwrap(), record.line, record.message, record.help.unwrap_or_default())
    };
    (cores, diagnostics.records().into_iter().map(text).collect())
}

#[test]
fn workers_on_the_node_of_the_ports_cause_no_message() {
    for (workers, node, cores) in [
        ("\"auto\"", "1", &[2][..]),
        ("2", "1", &[2, 3]),
        ("\"auto\"", "0", &[1]),
        ("2", "0", &[1, 0]),
        ("[0]", "0", &[0]),
    ] {
        let overrides = [("runtime.workers", workers), ("port.wan.numa_node", node), ("port.lan.numa_node", node)];
        assert_eq!(placed(&overrides), (Some(cores.to_vec()), Vec::new()), "{workers} {node}");
    }
}

#[test]
fn plan_shows_the_node_of_each_port() {
    let (plan, _) = check_on(&machine(), TWO_PORTS, &[]);
    let text = plan.unwrap().to_string();
    assert!(
        text.contains("wan: soft loopback to lan, raw_packet, mtu 1500, rx 1024, tx 1024, node 1, input"),
        "{text}"
    );
}

#[test]
fn placement_on_a_distant_node_causes_a_warning() {
    for (overrides, cores, said) in [
        (
            &[("runtime.workers", "[2, 0]")][..],
            &[2, 0][..],
            "1: core 0 is on node 0, not on the node of a port: node 1 (`wan` and 1 other port); use cores on the node of \
             a port: 2-3",
        ),
        (
            &[("runtime.workers", "3")],
            &[2, 3, 1],
            "1: 1 of 3 workers cannot run on the node of a port: node 1 (`wan` and 1 other port); set workers = 2 to use \
             only the cores 2-3 on the node of a port",
        ),
        (
            &[("port.wan.numa_node", "3"), ("port.lan.numa_node", "3")],
            &[1],
            "2: the worker cannot run on the node of a port: node 3 (`wan` and 1 other port); extend the affinity mask \
             to a core on the node of a port, or use a device on another node",
        ),
        (
            &[("port.lan.numa_node", "0")],
            &[1],
            "1: `lan` is on node 0 and `wan` on node 1: packets between the two ports cross NUMA nodes; for full speed, \
             use devices on one node",
        ),
    ] {
        assert_eq!(placed(overrides), (Some(cores.to_vec()), vec![format!("warning {said}")]));
    }
}

#[test]
fn node_without_memory_causes_a_warning_or_with_strict_an_error() {
    let at = ("port.wan.numa_node", "2");
    let lan = ("port.lan.numa_node", "2");
    let said = "core 4 is on node 2, which has no memory, so its packets use memory of another node; use a core on a \
                node with memory (0-1, 3)";
    assert_eq!(placed(&[at, lan]), (Some(vec![4]), vec![format!("warning 2: {said}")]));
    let strict = ("runtime.strict", "true");
    assert_eq!(placed(&[at, lan, strict]), (None, vec![format!("error 2: {said}, or set strict = false")]));
    let workers = ("runtime.workers", "[4]");
    let (cores, said) = placed(&[at, lan, strict, workers]);
    assert_eq!(cores, None);
    assert!(said[0].starts_with("error 1: core 4 is on node 2"), "{said:?}");
}

#[test]
fn impossible_placement_causes_an_error() {
    for (key, value, said) in [
        ("runtime.workers", "[6]", "1: core 6 is offline; run `echo 1 | sudo tee /sys/devices/system/cpu/cpu6/online`"),
        ("runtime.workers", "[7]", "1: core 7 does not exist; this host has the cores 0-5"),
        (
            "runtime.workers",
            "[5]",
            "1: core 5 is outside the affinity mask of this process; this process may use the cores 0-4",
        ),
        ("port.lan.numa_node", "4", "1: there is no NUMA node 4; this host has the nodes 0-3"),
        ("port.lan.numa_node", "-1", "1: expected a whole number from 0 to 1023, found -1; "),
    ] {
        let (cores, mistakes) = placed(&[(key, value)]);
        assert_eq!(cores, None, "{value}");
        assert!(mistakes.contains(&format!("error {said}")), "{mistakes:?}");
    }
}

#[test]
fn config_overrides_the_node_that_the_kernel_reports() {
    use dataplane::topology::{Device, DeviceKind};
    let device = Device {
        name: "mlx5_0".into(),
        kind: DeviceKind::Verbs,
        lower_interfaces: Vec::new(),
        node: Some(NumaNode(0)),
    };
    let known = machine();
    let topology = Topology::from_parts(known.cores().to_vec(), Vec::new(), known.nodes().to_vec(), vec![device]);
    let text = TWO_PORTS.replacen("\"soft\"", "\"mlx5_0\"", 1);
    let (_, diagnostics) = check_on(&topology, &text, &[]);
    let said: Vec<String> = diagnostics.records().into_iter().map(|record| record.message).collect();
    assert!(said.contains(&"the kernel reports `mlx5_0` on node 0".to_owned()), "{said:?}");
}
