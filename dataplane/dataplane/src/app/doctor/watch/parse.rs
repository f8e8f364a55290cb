//! Parsers of the texts of `/proc` that the watch reads. The formats are described in proc(5), numa_maps(5) and the
//! kernel's documentation of procfs.

use std::collections::BTreeMap;

/// Returns the interrupts of `cores`: for each core, in the order of `cores`, the number of interrupts of each source.
/// `text` is the content of `/proc/interrupts`. Returns `None` if the text has no column for one of the cores.
pub(super) fn interrupts(text: &str, cores: &[u32]) -> Option<Vec<BTreeMap<String, u64>>> {
    let mut lines = text.lines();
    // The heading has one column for each online core: `CPU0  CPU2`.
    let heading: Vec<&str> = lines.next()?.split_whitespace().collect();
    let column = |core: &u32| heading.iter().position(|name| *name == format!("CPU{core}"));
    let columns: Vec<usize> = cores.iter().map(column).collect::<Option<_>>()?;
    let mut found = vec![BTreeMap::new(); cores.len()];
    for line in lines {
        let mut words = line.split_whitespace();
        let Some(number) = words.next().and_then(|word| word.strip_suffix(':')) else { continue };
        let words: Vec<&str> = words.collect();
        let counts: Vec<u64> = words.iter().map_while(|word| word.parse().ok()).take(heading.len()).collect();
        // `ERR` and `MIS` have one number for all cores.
        if counts.len() < heading.len() {
            continue;
        }
        // A device interrupt has a number, its controller, its line, and the names of its devices. The other
        // interrupts, such as `LOC`, have a description.
        let name = match number.parse::<u32>() {
            Ok(_) => words.last().filter(|_| words.len() > counts.len()).copied().unwrap_or(number),
            Err(_) => number,
        };
        for (found, column) in found.iter_mut().zip(&columns) {
            *found.entry(name.to_owned()).or_default() += counts.get(*column).copied().unwrap_or_default();
        }
    }
    Some(found)
}

/// Returns the frequency of a core in MHz. `text` is the content of `/proc/cpuinfo`.
pub(super) fn megahertz(text: &str, core: u32) -> Option<f64> {
    let value = |line: &str, key: &str| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    };
    let blocks = text.split("\n\n");
    let is_core = |block: &&str| {
        block.lines().find_map(|line| value(line, "processor")).and_then(|number| number.parse().ok()) == Some(core)
    };
    blocks.filter(is_core).flat_map(str::lines).find_map(|line| value(line, "cpu MHz"))?.parse().ok()
}

/// The time of a thread on its core and in the run queue, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadTime {
    pub(super) ran: u64,
    /// The time in which the thread was ready, but another thread had the core.
    pub(super) waited: u64,
}

/// Returns the time of a thread. `text` is the content of `/proc/PID/task/TID/schedstat`.
pub(super) fn thread_time(text: &str) -> Option<ThreadTime> {
    let mut words = text.split_whitespace().map(str::parse);
    Some(ThreadTime { ran: words.next()?.ok()?, waited: words.next()?.ok()? })
}

/// Returns how often the kernel took the core from a thread. `text` is the content of `/proc/PID/task/TID/status`.
pub(super) fn involuntary_switches(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?.trim().parse().ok()
}

/// Returns the bytes of memory on each NUMA node. `text` is the content of `/proc/PID/numa_maps`.
pub(super) fn node_bytes(text: &str) -> BTreeMap<u32, u64> {
    let mut nodes = BTreeMap::new();
    for line in text.lines() {
        let size =
            line.split_whitespace().find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
        for word in line.split_whitespace() {
            let Some((node, pages)) = word.strip_prefix('N').and_then(|word| word.split_once('=')) else { continue };
            if let (Ok(node), Ok(pages)) = (node.parse::<u32>(), pages.parse::<u64>()) {
                // If the kernel does not report the page size, assume pages of 4 KiB.
                let bytes = pages.saturating_mul(size.unwrap_or(4)).saturating_mul(1024);
                *nodes.entry(node).or_default() += bytes;
            }
        }
    }
    nodes
}

/// The columns of `/proc/net/dev` that count errors, in the order of the columns. `bytes`, `packets`, `compressed` and
/// `multicast` do not count errors.
const COLUMNS: [Option<&str>; 16] = [
    None,
    None,
    Some("rx_errors"),
    Some("rx_dropped"),
    Some("rx_fifo"),
    Some("rx_frame"),
    None,
    None,
    None,
    None,
    Some("tx_errors"),
    Some("tx_dropped"),
    Some("tx_fifo"),
    Some("tx_collisions"),
    Some("tx_carrier"),
    None,
];

/// Returns the error counters of an interface. `text` is the content of `/proc/PID/net/dev`.
pub(super) fn interface_errors(text: &str, interface: &str) -> Option<BTreeMap<String, u64>> {
    let counts = text.lines().find_map(|line| {
        let (name, counts) = line.split_once(':')?;
        (name.trim() == interface).then_some(counts)
    })?;
    let counts = counts.split_whitespace().map(str::parse::<u64>);
    let named = COLUMNS.into_iter().zip(counts);
    named.filter_map(|(name, count)| Some((name?.to_owned(), count.ok()?))).collect::<BTreeMap<_, _>>().into()
}
