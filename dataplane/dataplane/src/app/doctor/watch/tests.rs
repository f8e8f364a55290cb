//! Tests with texts of `/proc` that were recorded on several machines, and with a temporary folder in place of `/proc`
//! and `/sys`.

use std::collections::BTreeMap;

use dataplane_testing::Folder;

use super::parse::{self, ThreadTime};
use super::sample::{HostSample, Interval, Subject, WatchedPort};
use super::text;
use dataplane_core::topology::CoreTime;
use dataplane_soft::doctor::Roots;

/// From a virtual machine with two cores, shortened.
const INTERRUPTS: &str = "           CPU0       CPU1       
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 36:          0    3199017 PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 41:      17692          3 PCI-MSIX-0000:00:04.0   1-edge      virtio3-rx
NMI:          0          0   Non-maskable interrupts
LOC:    5014262    4985020   Local timer interrupts
RES:     402613     433921   Rescheduling interrupts
ERR:          7
MIS:          0
";

/// From the virtual machine of [`INTERRUPTS`].
const STAT: &str = "cpu  1949222 1656199 634344 909996 13250 0 33070 4485 0 0
cpu0 900258 825759 329759 526839 4321 0 9500 2334 0 0
cpu1 1048964 830440 304584 383156 8929 0 23570 2151 0 0
intr 52555986 0 0
ctxt 160934480
";

const CPUINFO: &str = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\ncpu MHz\t\t: 2596.122\n\n\
                       processor\t: 1\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\ncpu MHz\t\t: 3100.000\n";

/// From a machine with two nodes: a huge-page region on node 1, a heap, a file.
const NUMA_MAPS: &str = "55e115e34000 default heap anon=4 dirty=4 active=0 N0=3 N1=1 kernelpagesize_kB=4
7f0000000000 prefer:1 file=/anon_hugepage\\040(deleted) huge anon=3 dirty=3 N1=3 kernelpagesize_kB=2048
7f18dabc6000 default anon=2 dirty=2 active=0 N0=2 kernelpagesize_kB=4
7f18dadb7000 default
";

const NET_DEV: &str = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 1000 10 0 0 0 0 0 0 1000 10 0 0 0 0 0 0
  eth1:  157650  1201    1   22    3    4          0         5   160404    1228    6    7    8     9      10          0
";

#[test]
fn interrupts_are_read_for_the_requested_cores() {
    let [core] = &parse::interrupts(INTERRUPTS, &[1]).unwrap()[..] else { panic!("one core") };
    let expected: BTreeMap<String, u64> = [
        ("ACPI:Ged", 0),
        ("virtio1-req.0", 3_199_017),
        ("virtio3-rx", 3),
        ("NMI", 0),
        ("LOC", 4_985_020),
        ("RES", 433_921),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .into();
    assert_eq!(core, &expected);
    // Core 2 is offline or belongs to another container.
    assert_eq!(parse::interrupts(INTERRUPTS, &[1, 2]), None);
    assert_eq!(parse::interrupts("", &[0]), None);
}

#[test]
fn offline_core_has_no_column_of_interrupts() {
    let text = "     CPU0  CPU2\n LOC:  10  30  Local timer interrupts\n  9:  1  2\n";
    let [core] = &parse::interrupts(text, &[2]).unwrap()[..] else { panic!("one core") };
    assert_eq!((core["LOC"], core["9"]), (30, 2));
}

#[test]
fn steal_time_and_clock_frequency_and_waits_are_read() {
    let total = 1_048_964 + 830_440 + 304_584 + 383_156 + 8929 + 23_570 + 2151;
    let idle = 383_156 + 8929;
    assert_eq!(CoreTime::parse(STAT, 1), Some(CoreTime { idle, steal: 2151, total }));
    assert_eq!(CoreTime::parse(STAT, 2), None);
    // Linux before 2.6.11 has no steal time.
    assert_eq!(CoreTime::parse("cpu0 1 2 3 4 5 6 7\n", 0), None);
    assert_eq!(parse::megahertz(CPUINFO, 1), Some(3100.0));
    assert_eq!(parse::megahertz("processor\t: 0\nBogoMIPS\t: 243.75\n", 0), None);
    assert_eq!(parse::thread_time("86930 56754 2"), Some(ThreadTime { ran: 86_930, waited: 56_754 }));
    assert_eq!(parse::thread_time("x"), None);
    let status = "Name:\tworker-0\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t345\n";
    assert_eq!(parse::involuntary_switches(status), Some(345));
}

#[test]
fn memory_is_summed_for_each_node_with_its_page_sizes() {
    let expected = BTreeMap::from([(0, 5 * 4096), (1, 4096 + 3 * (2 << 20))]);
    assert_eq!(parse::node_bytes(NUMA_MAPS), expected);
}

#[test]
fn errors_of_an_interface_are_read_by_their_columns() {
    let errors = parse::interface_errors(NET_DEV, "eth1").unwrap();
    let expected = [
        ("rx_errors", 1),
        ("rx_dropped", 22),
        ("rx_fifo", 3),
        ("rx_frame", 4),
        ("tx_errors", 6),
        ("tx_dropped", 7),
        ("tx_fifo", 8),
        ("tx_collisions", 9),
        ("tx_carrier", 10),
    ];
    assert_eq!(errors, expected.map(|(name, count)| (name.to_owned(), count)).into());
    assert_eq!(parse::interface_errors(NET_DEV, "eth"), None);
}

/// A fake host with the process 42: worker 0 on core 1 (node 1).
struct Host(Roots, Folder);

impl Host {
    fn new() -> Self {
        let folder = Folder::new();
        let host = Self(Roots { sys: folder.file("sys"), proc: folder.file("proc") }, folder);
        host.write("proc/42/task/42/comm", "dataplane\n");
        host.write("proc/42/task/43/comm", "worker-0\n");
        host.write("proc/42/task/43/schedstat", "1000 2000 3\n");
        host.write("proc/42/task/43/status", "nonvoluntary_ctxt_switches:\t5\n");
        host.write("proc/42/numa_maps", NUMA_MAPS);
        host.write("proc/42/net/dev", NET_DEV);
        host.write("proc/interrupts", INTERRUPTS);
        host.write("proc/stat", STAT);
        host.write("proc/cpuinfo", CPUINFO);
        host.write("sys/devices/system/cpu/cpu1/node1/x", "");
        host.write("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "3\n");
        host.write("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer", "100\n");
        host
    }

    fn write(&self, path: &str, text: &str) {
        self.1.write(path, text);
    }
}

fn subject() -> Subject {
    let port = |port: &str, device: &str, interface: Option<&str>| WatchedPort {
        port: port.to_owned(),
        device: device.to_owned(),
        device_port: device.starts_with("mlx5").then_some(1),
        interface: interface.map(str::to_owned),
    };
    let ports = vec![port("wan", "host", Some("eth1")), port("lan", "mlx5_0", None), port("null", "soft", None)];
    Subject { process: 42, cores: vec![1], ports }
}

#[test]
fn changes_between_two_samples_are_printed() {
    let (host, subject) = (Host::new(), subject());
    let before = HostSample::read(&host.0, &subject);
    let what: Vec<&str> = before.unavailable.iter().map(|lack| lack.what.as_str()).collect();
    assert_eq!(what, ["errors of port null"]);

    let same = Interval::between(&subject, &before, &before.clone(), 1.0);
    let first = text::lines(&same, true);
    assert_eq!(first, "after 1.0 s\n  memory: 20.0 KiB on nodes without a worker (+0 B)\n  core 1: 3100 MHz\n");
    assert_eq!(text::lines(&same, false), "after 1.0 s\n  no changes\n");

    host.write("proc/42/task/43/schedstat", "500001000 250002000 9\n");
    host.write("proc/42/task/43/status", "nonvoluntary_ctxt_switches:\t35\n");
    host.write("proc/42/numa_maps", &NUMA_MAPS.replace("N0=2", "N0=258"));
    host.write("proc/42/net/dev", &NET_DEV.replace("   22 ", "   34 "));
    host.write("proc/interrupts", &INTERRUPTS.replace("4985020", "4985520").replace("3199017", "3199027"));
    host.write("proc/stat", &STAT.replace("383156", "383250").replace("2151", "2157"));
    host.write("proc/cpuinfo", &CPUINFO.replace("3100", "2000"));
    host.write("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_buffer", "107\n");
    let after = HostSample::read(&host.0, &subject);
    let interval = Interval::between(&subject, &before, &after, 2.0);
    assert_eq!(
        text::lines(&interval, false),
        "after 2.0 s\n  \
         memory: 1.02 MiB on nodes without a worker (+1.00 MiB)\n  \
         core 1: 2000 MHz, 6.0 % steal, 255 interrupts/s (LOC 250, virtio1-req.0 5)\n  \
         worker 0: waited 250 ms (12.5 %) for core 1, preempted 30 times\n  \
         port lan: out_of_buffer +7\n  \
         port wan: rx_dropped +12\n"
    );
    let json = serde_json::to_value(&interval).unwrap();
    assert_eq!(json["workers"][0]["waited_ns"], 250_000_000);
    assert_eq!(json["memory"]["remote_change_bytes"], 1 << 20);
    assert_eq!(json["cores"][0]["interrupts"]["LOC"], 500);
    assert_eq!(json["links"][1]["errors"]["rx_dropped"], 12);
}

/// The errors of a port do not include the errors of another port of the device. If the device has no known counter of
/// lost packets, the sample lists this value as unavailable.
#[cfg(feature = "ibverbs")]
#[test]
fn lost_packets_of_the_port_are_read_from_the_counter_of_the_driver() {
    let mut subject = subject();
    subject.ports.retain(|port| port.port == "lan");
    let symbols = "ports/1/counters/symbol_error";
    for (file, other, counter) in [
        ("ports/1/hw_counters/out_of_buffer", symbols, Some("out_of_buffer")),
        ("ports/1/hw_counters/rx_out_of_buffer", symbols, Some("rx_out_of_buffer")),
        ("hw_counters/out_of_buffer", symbols, Some("out_of_buffer")),
        // In another network namespace, the port has no counters, and a read of this file can crash the kernel.
        ("hw_counters/out_of_buffer", "ports/1/rate", None),
        ("ports/2/hw_counters/out_of_buffer", symbols, None),
    ] {
        let folder = Folder::new();
        let roots = Roots { sys: folder.file("sys"), proc: folder.file("proc") };
        let write = |file: &str, text: &str| folder.write(&format!("sys/class/infiniband/mlx5_0/{file}"), text);
        write("ports/1/state", "4: ACTIVE\n");
        write(other, "0\n");
        write(file, "3\n");
        write("ports/2/counters/symbol_error", "1\n");
        let before = HostSample::read(&roots, &subject);
        write(file, "9\n");
        write("ports/2/counters/symbol_error", "2\n");
        let after = HostSample::read(&roots, &subject);
        let interval = Interval::between(&subject, &before, &after, 1.0);
        let expected = counter.map(|name| (name.to_owned(), 6)).into_iter().collect();
        assert_eq!(interval.links[0].errors, expected, "{file}");
        let is_named = after.unavailable.iter().any(|lack| lack.what == "lost packets of port lan");
        assert_eq!(is_named, counter.is_none(), "{file}");
    }
}

#[test]
fn values_that_the_machine_does_not_offer_are_named_with_the_reason() {
    let folder = Folder::new();
    let roots = Roots { sys: folder.file("sys"), proc: folder.file("proc") };
    let subject = subject();
    let sample = HostSample::read(&roots, &subject);
    let heading = text::heading(&subject, &sample.unavailable);
    for line in [
        "process 42, workers on cores 1\n",
        "not available: run-queue wait of worker 0: process 42 has no thread worker-0",
        "not available: interrupts: ",
        "not available: frequency of core 1: ",
        "not available: steal of core 1: ",
        "not available: NUMA nodes of the memory: /proc/42/numa_maps cannot be read",
        "not available: errors of interface eth1: ",
        "not available: errors of port lan: ",
        "not available: errors of port null: ",
    ] {
        assert!(heading.contains(line), "{line:?} is missing:\n{heading}");
    }
    let interval = Interval::between(&subject, &sample, &sample.clone(), 1.0);
    assert_eq!(text::lines(&interval, true), "after 1.0 s\n  no changes\n");
    let json = serde_json::to_value(&interval).unwrap();
    assert!(json["memory"].is_null() && json["cores"][0]["steal_percent"].is_null(), "{json}");
}
