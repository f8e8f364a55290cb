//! One reading of the values of a running program and its cores, and the difference between two readings.

use std::collections::BTreeMap;

use serde::Serialize;

use super::parse::{self, ThreadTime};
use dataplane_core::topology::CoreTime;
use dataplane_soft::doctor::Roots;

/// The running program: its process, the cores of its workers, and its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) process: u32,
    /// The core of each worker.
    pub(super) cores: Vec<u32>,
    pub(super) ports: Vec<WatchedPort>,
}

/// A port, and the device or the kernel interface that carries the packets of the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchedPort {
    pub(super) port: String,
    /// The device, as in the config.
    pub(super) device: String,
    /// The port of the RDMA device. `None` if the device is not an RDMA device.
    pub(super) device_port: Option<u8>,
    pub(super) interface: Option<String>,
}

/// A value that cannot be read on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Unavailable {
    /// The value.
    pub(super) what: String,
    /// The reason.
    pub(super) why: String,
}

/// The values at one time. A counter that cannot be read is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HostSample {
    /// The values of the thread of each worker, in the order of the workers.
    threads: Vec<Thread>,
    cores: Vec<Core>,
    /// The bytes of memory on each node.
    nodes: Option<BTreeMap<u32, u64>>,
    /// The error counters of each port.
    links: BTreeMap<String, BTreeMap<String, u64>>,
    pub(super) unavailable: Vec<Unavailable>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Thread {
    time: Option<ThreadTime>,
    switches: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Core {
    number: u32,
    node: Option<u32>,
    megahertz: Option<f64>,
    time: Option<CoreTime>,
    interrupts: Option<BTreeMap<String, u64>>,
}

impl HostSample {
    /// Reads the values of this moment.
    pub(super) fn read(roots: &Roots, subject: &Subject) -> Self {
        let mut sample = Self::default();
        sample.read_threads(roots, subject);
        sample.read_cores(roots, subject);
        sample.read_memory(roots, subject);
        sample.read_links(roots, subject);
        sample
    }

    fn lacks(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.unavailable.push(Unavailable { what: what.into(), why: why.into() });
    }

    fn read_threads(&mut self, roots: &Roots, subject: &Subject) {
        let folder = format!("{}/task", subject.process);
        let names = roots.proc_names(&folder);
        for worker in 0..subject.cores.len() {
            let name = format!("worker-{worker}");
            let found = names.iter().find(|id| roots.proc(&format!("{folder}/{id}/comm")).as_deref() == Some(&*name));
            let Some(thread) = found.map(|id| format!("{folder}/{id}")) else {
                self.lacks(
                    format!("run-queue wait of worker {worker}"),
                    format!(
                        "process {} has no thread {name}; the process may run in another PID namespace",
                        subject.process
                    ),
                );
                self.threads.push(Thread::default());
                continue;
            };
            let time = roots.proc(&format!("{thread}/schedstat")).and_then(|text| parse::thread_time(&text));
            let switches = roots.proc(&format!("{thread}/status")).and_then(|text| parse::involuntary_switches(&text));
            if time.is_none() {
                self.lacks(
                    format!("run-queue wait of worker {worker}"),
                    "the kernel has no schedstat of threads (CONFIG_SCHED_INFO)",
                );
            }
            self.threads.push(Thread { time, switches });
        }
    }

    fn read_cores(&mut self, roots: &Roots, subject: &Subject) {
        let mut numbers = subject.cores.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let text = roots.proc("interrupts").unwrap_or_default();
        let mut interrupts = parse::interrupts(&text, &numbers).map(Vec::into_iter);
        if interrupts.is_none() {
            self.lacks("interrupts", "/proc/interrupts cannot be read, or has no column for a core of a worker");
        }
        let (stat, info) = (roots.proc("stat").unwrap_or_default(), roots.proc("cpuinfo").unwrap_or_default());
        for number in numbers {
            let folder = format!("devices/system/cpu/cpu{number}");
            let node = roots.sys_names(&folder).iter().find_map(|name| name.strip_prefix("node")?.parse().ok());
            let current = roots.sys(&format!("{folder}/cpufreq/scaling_cur_freq"));
            let kilohertz = current.and_then(|text| text.parse::<f64>().ok());
            let megahertz = kilohertz.map(|kilohertz| kilohertz / 1000.0).or_else(|| parse::megahertz(&info, number));
            if megahertz.is_none() {
                self.lacks(
                    format!("frequency of core {number}"),
                    "neither cpufreq nor /proc/cpuinfo has a frequency, as in most virtual machines",
                );
            }
            let time = CoreTime::parse(&stat, number);
            if time.is_none() {
                self.lacks(format!("steal of core {number}"), format!("/proc/stat has no line cpu{number}"));
            }
            let interrupts = interrupts.as_mut().and_then(Iterator::next);
            self.cores.push(Core { number, node, megahertz, time, interrupts });
        }
    }

    fn read_memory(&mut self, roots: &Roots, subject: &Subject) {
        let text = roots.proc(&format!("{}/numa_maps", subject.process)).filter(|text| !text.is_empty());
        match text {
            Some(text) => self.nodes = Some(parse::node_bytes(&text)),
            None => self.lacks(
                "NUMA nodes of the memory",
                format!(
                    "/proc/{}/numa_maps cannot be read: the command needs root, or the kernel has no NUMA support",
                    subject.process
                ),
            ),
        }
    }

    fn read_links(&mut self, roots: &Roots, subject: &Subject) {
        // This file shows the network namespace of the process.
        let table = roots.proc(&format!("{}/net/dev", subject.process)).unwrap_or_default();
        for WatchedPort { port, device, device_port, interface } in &subject.ports {
            let mut errors = device_port.and_then(|number| verbs_errors(roots, device, number));
            if let Some(errors) = &mut errors
                && let Some(number) = *device_port
            {
                match lost_packets(roots, device, number) {
                    Ok((name, count)) => _ = errors.insert(name, count),
                    Err(why) => self.lacks(
                        format!("lost packets of port {port}"),
                        why.unwrap_or_else(|| {
                            format!("Dataplane knows no counter of `{device}` for packets that find no receive buffer")
                        }),
                    ),
                }
            }
            if let Some(interface) = interface {
                match parse::interface_errors(&table, interface) {
                    Some(more) => errors.get_or_insert_default().extend(more),
                    None => self.lacks(
                        format!("errors of interface {interface}"),
                        format!("/proc/{}/net/dev does not show the interface", subject.process),
                    ),
                }
            }
            match errors {
                Some(errors) => _ = self.links.insert(port.clone(), errors),
                None if interface.is_none() => self.lacks(
                    format!("errors of port {port}"),
                    format!(
                        "the kernel has no error counters for the device `{device}`, because the device has no network \
                         interface"
                    ),
                ),
                None => {}
            }
        }
    }
}

/// The counters of RDMA ports that count errors (`sysfs-class-infiniband` in the kernel's ABI documentation).
const VERBS_ERRORS: [&str; 9] = [
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/rx_icrc_encapsulated",
    "hw_counters/out_of_sequence",
];

/// Returns the error counters of a port of an RDMA device. Returns `None` if the device does not exist.
fn verbs_errors(roots: &Roots, device: &str, port: u8) -> Option<BTreeMap<String, u64>> {
    let folder = format!("class/infiniband/{device}/ports/{port}");
    let exists = !roots.sys_names(&folder).is_empty();
    let error = |path: &&str| {
        let count = roots.sys(&format!("{folder}/{path}"))?.parse().ok()?;
        let (_, name) = path.split_once('/')?;
        Some((name.to_owned(), count))
    };
    exists.then(|| VERBS_ERRORS.iter().filter_map(error).collect())
}

/// Returns the name and the value of the counter of the packets that a port of an RDMA device lost because no receive
/// was posted.
///
/// # Errors
/// No known counter counts these packets. The error is the reason, if the reason is known.
#[cfg(feature = "ibverbs")]
fn lost_packets(roots: &Roots, device: &str, port: u8) -> Result<(String, u64), Option<String>> {
    let read = || {
        let file = crate::runtime::out_of_buffer_file(&roots.sys, device, port)?;
        let name = file.file_name()?.to_string_lossy().into_owned();
        Some((name, std::fs::read_to_string(file).ok()?.trim().parse().ok()?))
    };
    read().ok_or_else(|| crate::runtime::in_another_namespace(&roots.sys, device, port))
}

/// Returns an error, because this program is built without support for RDMA devices.
#[cfg(not(feature = "ibverbs"))]
fn lost_packets(_: &Roots, _: &str, _: u8) -> Result<(String, u64), Option<String>> {
    Err(None)
}

/// The changes between two samples. The end of a field's name is its unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Interval {
    /// The time between the samples.
    pub(super) interval_s: f64,
    pub(super) process: u32,
    /// The memory of the process. `null` if not available.
    pub(super) memory: Option<MemoryChange>,
    /// The cores of the workers.
    pub(super) cores: Vec<CoreChange>,
    pub(super) workers: Vec<WorkerChange>,
    /// The ports with error counters.
    pub(super) links: Vec<LinkChange>,
    pub(super) unavailable: Vec<Unavailable>,
}

/// The memory of the process by its NUMA nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct MemoryChange {
    /// The memory on each node.
    pub(super) node_bytes: BTreeMap<u32, u64>,
    /// The memory on nodes without a worker. `null` if the node of a core is unknown.
    pub(super) remote_bytes: Option<u64>,
    /// The change of `remote_bytes` since the previous sample.
    pub(super) remote_change_bytes: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct CoreChange {
    pub(super) core: u32,
    pub(super) mhz: Option<f64>,
    /// The change of `mhz` since the previous sample.
    pub(super) mhz_change: Option<f64>,
    /// The share of the interval in which the hypervisor ran something else.
    pub(super) steal_percent: Option<f64>,
    /// New interrupts by source, without sources that had no new interrupts.
    pub(super) interrupts: Option<BTreeMap<String, u64>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct WorkerChange {
    pub(super) worker: usize,
    pub(super) core: u32,
    /// The time on the core.
    pub(super) ran_ns: Option<u64>,
    /// The time in which the thread was ready, but another thread had the core.
    pub(super) waited_ns: Option<u64>,
    /// How often the kernel took the core from the thread.
    pub(super) involuntary_switches: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LinkChange {
    pub(super) port: String,
    /// New errors by counter, without counters that did not change.
    pub(super) errors: BTreeMap<String, u64>,
}

impl Interval {
    /// Returns the changes from `before` to `after`, which is `seconds` later.
    pub(super) fn between(subject: &Subject, before: &HostSample, after: &HostSample, seconds: f64) -> Self {
        Self {
            interval_s: seconds,
            process: subject.process,
            memory: after.memory(before),
            cores: after
                .cores
                .iter()
                .map(|core| core.since(before.cores.iter().find(|old| old.number == core.number)))
                .collect(),
            workers: workers(subject, before, after),
            links: links(before, after),
            unavailable: after.unavailable.clone(),
        }
    }
}

impl HostSample {
    fn memory(&self, before: &Self) -> Option<MemoryChange> {
        let node_bytes = self.nodes.clone()?;
        let remote = self.remote();
        let change = remote.zip(before.remote()).map(|(now, then)| now.cast_signed().wrapping_sub(then.cast_signed()));
        Some(MemoryChange { node_bytes, remote_bytes: remote, remote_change_bytes: change })
    }

    /// Returns the bytes on nodes without a worker.
    fn remote(&self) -> Option<u64> {
        let near: Vec<u32> = self.cores.iter().map(|core| core.node).collect::<Option<_>>()?;
        Some(self.nodes.as_ref()?.iter().filter(|(node, _)| !near.contains(node)).map(|(_, bytes)| bytes).sum())
    }
}

impl Core {
    fn since(&self, before: Option<&Self>) -> CoreChange {
        let time = self.time.zip(before.and_then(|before| before.time));
        let steal = time.map(|(now, then)| {
            let total = now.total.saturating_sub(then.total);
            now.steal.saturating_sub(then.steal) as f64 / total.max(1) as f64 * 100.0
        });
        let interrupts = self.interrupts.as_ref().zip(before.and_then(|before| before.interrupts.as_ref()));
        CoreChange {
            core: self.number,
            mhz: self.megahertz,
            mhz_change: self.megahertz.zip(before.and_then(|before| before.megahertz)).map(|(now, then)| now - then),
            steal_percent: steal,
            interrupts: interrupts.map(|(now, then)| increases(now, then)),
        }
    }
}

/// Returns the counters that increased, with their increases.
fn increases(now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let increase = |(name, count): (&String, &u64)| {
        // A name without an earlier count, such as a new interrupt source, counts from 0.
        let increase = count.saturating_sub(then.get(name).copied().unwrap_or_default());
        (increase > 0).then(|| (name.clone(), increase))
    };
    now.iter().filter_map(increase).collect()
}

fn workers(subject: &Subject, before: &HostSample, after: &HostSample) -> Vec<WorkerChange> {
    let change = |(worker, (thread, core)): (usize, (&Thread, &u32))| {
        let old = before.threads.get(worker);
        let time = thread.time.zip(old.and_then(|old| old.time));
        let switches = thread.switches.zip(old.and_then(|old| old.switches));
        WorkerChange {
            worker,
            core: *core,
            ran_ns: time.map(|(now, then)| now.ran.saturating_sub(then.ran)),
            waited_ns: time.map(|(now, then)| now.waited.saturating_sub(then.waited)),
            involuntary_switches: switches.map(|(now, then)| now.saturating_sub(then)),
        }
    };
    after.threads.iter().zip(&subject.cores).enumerate().map(change).collect()
}

fn links(before: &HostSample, after: &HostSample) -> Vec<LinkChange> {
    let change = |(port, errors): (&String, &BTreeMap<String, u64>)| {
        // A new port has no earlier counts, so its present errors are not new errors.
        let old = before.links.get(port).unwrap_or(errors);
        LinkChange { port: port.clone(), errors: increases(errors, old) }
    };
    after.links.iter().map(change).collect()
}
