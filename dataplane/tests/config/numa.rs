//! Where workers are put, and what is said of a place that is far or impossible.

use dataplane::topology::{Core, Node, Topology};
use dataplane::units::{Bytes, CoreId, NumaNode};

use super::check_on;

/// Three nodes of two cores each, 0 and 1 on node 0 and so on, and a fourth without cores. Node 2 has no memory, core 5 is
/// not for this process, core 6 is offline.
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

/// The cores of the workers, and level, line, message and help of each mistake, with these overrides.
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
fn workers_are_near_the_ports_and_nothing_is_said() {
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
fn the_plan_says_where_the_ports_are() {
    let (plan, _) = check_on(&machine(), TWO_PORTS, &[]);
    let text = plan.unwrap().to_string();
    assert!(text.contains("wan: soft loopback to lan, raw_packet, rx 1024, tx 1024, node 1, input"), "{text}");
}

#[test]
fn what_is_far_is_a_warning() {
    for (overrides, cores, said) in [
        (
            &[("runtime.workers", "[2, 0]")][..],
            &[2, 0][..],
            "1: core 0 is on node 0, far from `wan` and 1 more (node 1); near are the cores 2-3",
        ),
        (
            &[("runtime.workers", "3")],
            &[2, 3, 1],
            "1: 1 of 3 workers must be far from `wan` and 1 more (node 1); near are the cores 2-3, enough for 2",
        ),
        (
            &[("port.wan.numa_node", "3"), ("port.lan.numa_node", "3")],
            &[1],
            "2: the worker must be far from `wan` and 1 more (node 3); this process may use no core there: widen its \
             affinity mask, or use a device on another node",
        ),
        (
            &[("port.lan.numa_node", "0")],
            &[1],
            "1: `lan` is on node 0 and `wan` on node 1: a packet from one to the other crosses nodes; use devices of one \
             node where speed matters",
        ),
    ] {
        assert_eq!(placed(overrides), (Some(cores.to_vec()), vec![format!("warning {said}")]));
    }
}

#[test]
fn memory_that_cannot_be_near_is_a_warning_or_refused() {
    let at = ("port.wan.numa_node", "2");
    let lan = ("port.lan.numa_node", "2");
    let said =
        "core 4 is on node 2, which has no memory: its packets are in that of another; nodes with memory are 0-1, 3";
    assert_eq!(placed(&[at, lan]), (Some(vec![4]), vec![format!("warning 2: {said}")]));
    let strict = ("runtime.strict", "true");
    assert_eq!(placed(&[at, lan, strict]), (None, vec![format!("error 2: {said}; strict = true refuses others")]));
    let workers = ("runtime.workers", "[4]");
    let (cores, said) = placed(&[at, lan, strict, workers]);
    assert_eq!(cores, None);
    assert!(said[0].starts_with("error 1: core 4 is on node 2"), "{said:?}");
}

#[test]
fn what_cannot_be_is_refused() {
    for (key, value, said) in [
        (
            "runtime.workers",
            "[6]",
            "1: core 6 is offline; to change it: echo 1 | sudo tee /sys/devices/system/cpu/cpu6/online",
        ),
        ("runtime.workers", "[7]", "1: core 7 doesn't exist; this machine has the cores 0-5"),
        (
            "runtime.workers",
            "[5]",
            "1: core 5 is outside the affinity mask of this process; this process may use the cores 0-4",
        ),
        ("port.lan.numa_node", "4", "1: there is no NUMA node 4; this machine has the nodes 0-3"),
        ("port.lan.numa_node", "-1", "1: expected a whole number from 0 to 1023, found -1; "),
    ] {
        let (cores, mistakes) = placed(&[(key, value)]);
        assert_eq!(cores, None, "{value}");
        assert!(mistakes.contains(&format!("error {said}")), "{mistakes:?}");
    }
}

#[test]
fn the_kernel_is_believed_but_for_what_the_config_says() {
    use dataplane::topology::{Device, DeviceKind};
    let device = Device { name: "mlx5_0".into(), kind: DeviceKind::Verbs, on: Vec::new(), node: Some(NumaNode(0)) };
    let known = machine();
    let topology = Topology::from_parts(known.cores().to_vec(), Vec::new(), known.nodes().to_vec(), vec![device]);
    let text = TWO_PORTS.replacen("\"soft\"", "\"mlx5_0\"", 1);
    let (_, diagnostics) = check_on(&topology, &text, &[]);
    let said: Vec<String> = diagnostics.records().into_iter().map(|record| record.message).collect();
    assert!(said.contains(&"the kernel says that `mlx5_0` is on node 0".to_owned()), "{said:?}");
}
