//! Reads the counters of a running program before and after the time that `dataplane why` examines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::app::console::CommandError;
use crate::app::{args, stats};
use crate::runtime::rdma_interface;
use dataplane_control::rows::LinkRow;
use dataplane_control::{Call, Client, Show};
use dataplane_core::telemetry::{LiveStatistics, PortReport, Report, WorkerRates};

/// The counters before and after the time that `why` examines.
pub(super) struct Observed {
    /// `None` if the time begins at the start of the program.
    pub(super) before: Option<LiveStatistics>,
    pub(super) after: LiveStatistics,
    /// The time between the two observations, in seconds. The times in the reports are not exact, because workers may
    /// answer late.
    pub(super) seconds: f64,
    /// The kernel interface of each port that has an interface, and the increases of the counters of the interface.
    pub(super) interfaces: BTreeMap<String, (String, InterfaceCounters)>,
    /// The ports of RDMA devices.
    pub(super) rdma_ports: BTreeSet<String>,
    /// For each worker, the time in which the worker waited for its core, because other threads used the core.
    pub(super) waits: BTreeMap<usize, Duration>,
}

/// The kernel's counters of the frames that an interface lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InterfaceCounters {
    /// Damaged frames (`rx_errors`).
    pub(super) errors: u64,
    /// Frames that the NIC or the kernel dropped (`rx_dropped` and `rx_missed_errors`).
    pub(super) drops: u64,
    /// The part of `drops` that the NIC dropped because its ring was full (`rx_missed_errors`).
    pub(super) missed: u64,
    /// Frames that the NIC lost because its memory was full (`rx_fifo_errors`).
    pub(super) fifo: u64,
}

/// A share of the examined time. If a worker waits for its core for a smaller share, `why` assumes that the worker has
/// its core.
const MOSTLY: f64 = 0.5;

impl Observed {
    /// Returns the increase of a counter.
    pub(super) fn growth(&self, counter: impl Fn(&Report) -> u64) -> u64 {
        let before = self.before.as_ref().map_or(0, |before| counter(&before.report));
        counter(&self.after.report).saturating_sub(before)
    }

    /// Returns the increase of a counter of a port.
    pub(super) fn port_growth(&self, port: &str, counter: impl Fn(&PortReport) -> u64) -> u64 {
        self.growth(|report| report.ports.iter().find(|other| other.name == port).map_or(0, &counter))
    }

    /// Returns the increase of a counter of the device of a port.
    pub(super) fn device_growth(&self, port: &str, counter: &str) -> u64 {
        self.port_growth(port, |port| port.device_counters.get(counter).copied().unwrap_or(0))
    }

    /// Returns, for each worker, the number of the worker, its rates, and the share of its loops that received packets.
    pub(super) fn workers(&self) -> impl Iterator<Item = (usize, &WorkerRates, f64)> {
        let busy = |worker: &WorkerRates| match worker.loops {
            // The worker has not finished a loop in this time.
            0 => 1.0,
            loops => 1.0 - worker.idle_loops as f64 / loops as f64,
        };
        self.after.recent.workers.iter().enumerate().map(move |(number, worker)| (number, worker, busy(worker)))
    }

    /// Returns the blocked workers, each with the message of the program. A blocked worker does not answer, has
    /// finished no loop, and has its core. Without the last two conditions, the result would include slow workers, and
    /// workers whose core runs other threads.
    pub(super) fn blocked(&self) -> impl Iterator<Item = (usize, &String)> {
        let errors = self.after.report.errors.iter();
        let silent = errors.filter_map(|error| Some((silent_worker(error)?, error)));
        silent.filter(|(number, _)| {
            let wait = self.waits.get(number).map_or(0.0, Duration::as_secs_f64);
            let has_core = wait < MOSTLY * self.seconds;
            has_core && self.workers().nth(*number).is_none_or(|(_, worker, _)| worker.loops == 0)
        })
    }

    /// Returns the errors of the run, except for the reports of workers that do not answer.
    pub(super) fn failures(&self) -> impl Iterator<Item = &String> {
        self.after.report.errors.iter().filter(|error| silent_worker(error).is_none())
    }

    /// Returns the packets that a worker received.
    pub(super) fn received_by(&self, worker: usize) -> u64 {
        self.growth(|report| report.workers.get(worker).map_or(0, |worker| worker.ledger.rx))
    }
}

/// Returns the number of the worker if the error reports a worker that does not answer.
fn silent_worker(error: &str) -> Option<usize> {
    let (number, _) = error.strip_prefix("worker ")?.split_once(" does not answer, so ")?;
    number.parse().ok()
}

/// Reads the counters, waits, and reads the counters again.
pub(super) fn observe(args: &args::Why) -> Result<Observed, CommandError> {
    let target = &args.target;
    let mut client = stats::connect(target.socket.as_deref(), target.process, "dataplane why --process PROCESS")?;
    let (links, rdma_ports) = links(&mut client)?;
    let mut live = || -> Result<LiveStatistics, CommandError> {
        let answer = client.call(&Call::Stats {}).map_err(|error| stats::failed(error, ""))?;
        answer.parse().map_err(|error| stats::failed(error, ""))
    };
    if args.total {
        let after = live()?;
        // The counters of the interfaces include losses from before the start of the program, so do not use them.
        let (seconds, waits) = (after.report.duration_s, waits(after.pid));
        return Ok(Observed { before: None, after, seconds, interfaces: BTreeMap::new(), rdma_ports, waits });
    }
    let before = live()?;
    let start = Instant::now();
    let (counters, waited) = (counters(before.pid, &links), waits(before.pid));
    thread::sleep(args.time);
    let after = live()?;
    let seconds = start.elapsed().as_secs_f64();
    let (counters_now, waited_now) = (self::counters(after.pid, &links), waits(after.pid));
    let increase = |(port, interface): (String, String)| {
        let (was, now) = (counters.get(&port)?, counters_now.get(&port)?);
        let increase = InterfaceCounters {
            errors: now.errors.saturating_sub(was.errors),
            drops: now.drops.saturating_sub(was.drops),
            missed: now.missed.saturating_sub(was.missed),
            fifo: now.fifo.saturating_sub(was.fifo),
        };
        Some((port, (interface, increase)))
    };
    let interfaces = links.into_iter().filter_map(increase).collect();
    let waits = waited_now.into_iter().map(|(worker, now)| {
        let was = waited.get(&worker).copied().unwrap_or(now);
        (worker, now.saturating_sub(was))
    });
    Ok(Observed { before: Some(before), after, seconds, interfaces, rdma_ports, waits: waits.collect() })
}

/// Returns the kernel interface of each port that has an interface, by the name of the port, and the ports of RDMA
/// devices.
fn links(client: &mut Client) -> Result<(BTreeMap<String, String>, BTreeSet<String>), CommandError> {
    let (mut interfaces, mut rdma_ports) = (BTreeMap::new(), BTreeSet::new());
    for page in client.show(Show { what: "links".to_owned(), ..Show::default() }) {
        for row in page.map_err(|error| stats::failed(error, ""))?.rows {
            let Ok(row) = serde_json::from_str::<LinkRow>(row.get()) else { continue };
            rdma_ports.extend(row.device_port.map(|_| row.port.clone()));
            interfaces.extend(interface(Path::new("/sys"), &row).map(|interface| (row.port, interface)));
        }
    }
    Ok((interfaces, rdma_ports))
}

/// Returns the kernel interface of a port: the interface behind the port, or the interface of its RDMA device. `sysfs` is
/// the folder at which sysfs is mounted.
fn interface(sysfs: &Path, row: &LinkRow) -> Option<String> {
    row.interface.clone().or_else(|| rdma_interface::find(sysfs, &row.device, row.device_port?))
}

/// Returns the folders of the worker threads of a process in `/proc`, by the number of the worker. The map is empty if
/// the process is in another PID namespace.
fn worker_threads(pid: u32) -> BTreeMap<usize, PathBuf> {
    let number = |folder: &Path| {
        let name = fs::read_to_string(folder.join("comm")).ok()?;
        name.trim().strip_prefix("worker-")?.parse().ok()
    };
    let folders = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter_map(|folder| Some((number(&folder)?, folder))).collect()
}

/// Returns the time in which each worker waited for its core since its start (the second field of `schedstat`).
fn waits(pid: u32) -> BTreeMap<usize, Duration> {
    let wait = |(worker, folder): (usize, PathBuf)| {
        let text = fs::read_to_string(folder.join("schedstat")).ok()?;
        let nanos = text.split_whitespace().nth(1)?.parse().ok()?;
        Some((worker, Duration::from_nanos(nanos)))
    };
    worker_threads(pid).into_iter().filter_map(wait).collect()
}

/// Returns the counters of the interfaces of the ports, in the network namespace of the process.
fn counters(pid: u32, links: &BTreeMap<String, String>) -> BTreeMap<String, InterfaceCounters> {
    if links.is_empty() || worker_threads(pid).is_empty() {
        return BTreeMap::new();
    }
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/net/dev")) else { return BTreeMap::new() };
    let all = parse_net_dev(&text);
    let of = |(port, interface): (&String, &String)| {
        let mut counters = *all.get(interface.as_str())?;
        // The folder shows the network namespace of this command. The process may be in another network namespace. If
        // the sum of the counters in the folder is too small, the folder shows another interface.
        let read = |name: &str| -> Option<u64> {
            let path = Path::new("/sys/class/net").join(interface).join("statistics").join(name);
            fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        let (missed, dropped) = (read("rx_missed_errors").unwrap_or(0), read("rx_dropped").unwrap_or(0));
        counters.missed = if missed + dropped >= counters.drops { missed.min(counters.drops) } else { 0 };
        Some((port.clone(), counters))
    };
    links.iter().filter_map(of).collect()
}

/// Parses `/proc/net/dev`: two lines of headings, and then a line for each interface.
fn parse_net_dev(text: &str) -> BTreeMap<&str, InterfaceCounters> {
    let interface = |line: &'_ str| -> Option<(usize, InterfaceCounters)> {
        let colon = line.find(':')?;
        let fields: Vec<u64> = line[colon + 1..].split_whitespace().map_while(|field| field.parse().ok()).collect();
        // Bytes, packets, errors, drops, FIFO errors.
        let [_, _, errors, drops, fifo, ..] = fields[..] else { return None };
        Some((colon, InterfaceCounters { errors, drops, missed: 0, fifo }))
    };
    let named = |line| interface(line).map(|(colon, counters)| (line[..colon].trim(), counters));
    text.lines().skip(2).filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_testing::Folder;

    #[test]
    fn interface_of_an_rdma_device_is_the_interface_of_its_port() {
        let sysfs = Folder::new();
        sysfs.write("class/infiniband/mlx5_0/device/net/eth9/mtu", "1500");
        let of = |device_port, interface: Option<&str>| {
            let interface = interface.map(str::to_owned);
            let (port, device, mac) = ("wan".to_owned(), "mlx5_0".to_owned(), String::new());
            super::interface(
                sysfs.path(),
                &LinkRow { port, device, device_port, interface, mac, mtu: 1500, addresses: Vec::new() },
            )
        };
        assert_eq!(of(Some(1), None).as_deref(), Some("eth9"));
        assert_eq!(of(Some(1), Some("tap0")).as_deref(), Some("tap0"));
        assert_eq!(of(None, None), None);
    }

    #[test]
    fn interface_counters_are_read_by_column() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo\n\
                    \x20   lo: 16 2 0 0 0 0 0 0 16 2 0 0 0 0 0 0\n\
                    enp1s0f0np0.100:1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\nbroken: 1 2\n";
        let found = parse_net_dev(text);
        let expected = InterfaceCounters { errors: 3, drops: 4, missed: 0, fifo: 5 };
        assert_eq!(found, BTreeMap::from([("lo", InterfaceCounters::default()), ("enp1s0f0np0.100", expected)]));
    }
}
