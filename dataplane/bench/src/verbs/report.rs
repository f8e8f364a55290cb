//! The results as text and JSON. The field names are the keys of the JSON.

use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::plan::{Atomic, Plan, Role, Sizes, Test, Transport};
use super::samples::{LatencyStatistics, MessageRates};
use crate::report::Environment;

/// The line between the parts of the text, as in perftest.
const LINE: &str = "---------------------------------------------------------------------------------------";

/// The result of `bench verbs`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerbsReport {
    /// The command: `verbs`.
    pub method: String,
    /// The host and the program.
    pub environment: Environment,
    /// The side that runs in this process. With `--device soft`, the client.
    #[serde(flatten)]
    pub side: SideReport,
    /// The server, with `--device soft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Box<SideReport>>,
}

/// The result of one side.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SideReport {
    /// The test.
    pub test: Test,
    /// The atomic operation, in tests of atomics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub atomic: Option<Atomic>,
    /// The type of the queue pairs.
    pub transport: Transport,
    /// The role of the side.
    pub role: Role,
    /// The RDMA device.
    pub device: String,
    /// The local GID.
    pub gid: String,
    /// Whether the link layer is Ethernet.
    pub ethernet: bool,
    /// The path MTU in bytes; 0 before the connection.
    pub mtu: u32,
    /// The number of queue pairs of each side.
    pub queue_pairs: usize,
    /// Whether both sides send requests at once.
    #[serde(default)]
    pub bidirectional: bool,
    /// The duration of the test in seconds. The rate excludes the first and the last quarter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_s: Option<f64>,
    /// The maximum number of outstanding sends of each queue pair.
    pub tx_depth: u32,
    /// The maximum number of posted receives of each queue pair, in tests of SEND.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_depth: Option<u32>,
    /// The number of sends for each completion.
    pub cq_mod: u32,
    /// The maximum size of an inline message in bytes.
    pub inline: u32,
    /// Whether the side sleeps until a completion arrives, instead of polling.
    pub events: bool,
    /// The program of the peer.
    pub peer: Option<PeerReport>,
    /// The local and the remote address of each queue pair, for people.
    #[serde(skip)]
    pub addresses: Vec<[String; 2]>,
    /// Whether the run has ended as planned.
    pub complete: bool,
    /// The reason why the run is not complete.
    pub failure: Option<String>,
    /// The results of each size. The last result of an incomplete run can have fewer iterations.
    pub results: Vec<VerbsRow>,
    /// Whether the text has Gb/s instead of MB/s.
    #[serde(skip)]
    gbits: bool,
    /// Whether the run has several sizes.
    #[serde(skip)]
    all_sizes: bool,
}

/// The program of the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PeerReport {
    /// The version of perftest. If the peer is this program, the version of perftest whose messages the peer uses.
    pub version: String,
    /// Whether the peer is this program.
    pub is_dataplane: bool,
}

/// The result of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerbsRow {
    /// The size of the messages in bytes.
    pub bytes: u32,
    /// The number of messages of one side, on all queue pairs.
    pub iterations: u64,
    /// The number of messages that did not arrive, on the receiving side of `send_bw`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// The result of a bandwidth test. Absent if all messages arrived at the same time, so that no rate is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BandwidthReport>,
    /// The result of the requests of this side, in a bidirectional test. `bandwidth` is the sum of both sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<BandwidthReport>,
    /// The result of a latency test in nanoseconds. The latency of SEND and WRITE is half of the round-trip time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<VerbsLatencyReport>,
}

/// The result of a bandwidth test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BandwidthReport {
    /// The highest rate from the posting of a message to the completion of this or a later message, in bytes per second.
    /// Only on the sending side, and not with a duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes_per_s: Option<f64>,
    /// The rate from the first posting to the last completion, in bytes per second.
    pub average_bytes_per_s: f64,
    /// The rate in messages per second.
    pub messages_per_s: f64,
}

/// The result of a latency test in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct VerbsLatencyReport {
    /// The number of measured times.
    pub samples: u64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The median.
    pub typical: f64,
    /// The mean.
    pub average: f64,
    /// The standard deviation.
    pub deviation: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p99_9: f64,
}

impl SideReport {
    pub(super) fn new(plan: &Plan, device: &str, role: Role) -> Self {
        Self {
            test: plan.test,
            atomic: plan.test.is_atomic().then_some(plan.atomic),
            transport: plan.transport,
            role,
            device: device.to_owned(),
            gid: String::new(),
            ethernet: false,
            mtu: 0,
            queue_pairs: plan.queue_pairs,
            bidirectional: plan.bidirectional,
            duration_s: plan.duration.map(|duration| duration.as_secs_f64()),
            tx_depth: plan.tx_depth,
            rx_depth: plan.test.is_send().then_some(plan.rx_depth),
            cq_mod: plan.cq_mod,
            inline: plan.inline,
            events: plan.events,
            peer: None,
            addresses: Vec::new(),
            complete: false,
            failure: None,
            results: Vec::new(),
            gbits: plan.gbits,
            all_sizes: plan.sizes == Sizes::All,
        }
    }
}

impl VerbsRow {
    pub(super) fn bandwidth(bytes: u32, iterations: usize, lost: Option<u64>, rates: Option<MessageRates>) -> Self {
        let size = f64::from(bytes);
        let bandwidth = rates.map(|MessageRates { peak, average }| BandwidthReport {
            peak_bytes_per_s: peak.map(|peak| peak * size),
            average_bytes_per_s: average * size,
            messages_per_s: average,
        });
        Self { bytes, iterations: iterations as u64, lost, bandwidth, outgoing: None, latency_ns: None }
    }

    pub(super) fn latency(bytes: u32, iterations: usize, statistics: &LatencyStatistics) -> Self {
        let LatencyStatistics { samples, min, max, typical, mean, deviation, p99, p99_9 } = *statistics;
        let report = VerbsLatencyReport { samples, min, max, typical, average: mean, deviation, p99, p99_9 };
        let latency_ns = Some(report);
        Self { bytes, iterations: iterations as u64, lost: None, bandwidth: None, outgoing: None, latency_ns }
    }

    /// Returns the result of a peer, from the numbers of [`VerbsRow::exchanged`].
    pub(super) fn from_peer(numbers: [u64; 5]) -> Self {
        let [size, iterations, rates @ ..] = numbers;
        let [peak, average, rate] = rates.map(f64::from_bits);
        // The units of the bandwidth depend on the options of the peer. The unit of the message rate is fixed.
        let bandwidth = Some(BandwidthReport::from_peer(size, peak, average, rate));
        let bytes = u32::try_from(size).unwrap_or(u32::MAX);
        Self { bytes, iterations, lost: None, bandwidth, outgoing: None, latency_ns: None }
    }

    /// Adds the result of the other direction of a bidirectional test.
    pub(super) fn add_direction(&mut self, other: &Self) {
        self.outgoing = self.bandwidth;
        self.bandwidth = self.bandwidth.zip(other.bandwidth).map(|(own, other)| own.sum(&other));
    }

    /// Returns the numbers that the client sends to the server: size, iterations, peak, average and message rate. The
    /// last three numbers are the bits of floating-point numbers in the units of the text.
    pub(super) fn exchanged(&self, gbits: bool) -> [u64; 5] {
        let rates = self.bandwidth.map_or([0.0; 3], |bandwidth| bandwidth.columns(gbits)).map(f64::to_bits);
        [self.bytes.into(), self.iterations, rates[0], rates[1], rates[2]]
    }
}

impl BandwidthReport {
    /// Returns the result of a peer. The unit of `rate` is million messages per second. `peak` and `average` have the same
    /// unknown unit.
    pub(super) fn from_peer(size: u64, peak: f64, average: f64, rate: f64) -> Self {
        let messages = rate * 1e6;
        let bytes = messages * size as f64;
        let peak = (average > 0.0 && peak > 0.0).then(|| peak / average * bytes);
        Self { peak_bytes_per_s: peak, average_bytes_per_s: bytes, messages_per_s: messages }
    }

    fn sum(&self, other: &Self) -> Self {
        Self {
            peak_bytes_per_s: self.peak_bytes_per_s.zip(other.peak_bytes_per_s).map(|(own, other)| own + other),
            average_bytes_per_s: self.average_bytes_per_s + other.average_bytes_per_s,
            messages_per_s: self.messages_per_s + other.messages_per_s,
        }
    }

    /// Returns peak and average in Gb/s or MB/s, and the message rate in million messages per second.
    fn columns(&self, gbits: bool) -> [f64; 3] {
        let unit = if gbits { 125e6 } else { f64::from(1 << 20) };
        [self.peak_bytes_per_s.unwrap_or(0.0) / unit, self.average_bytes_per_s / unit, self.messages_per_s / 1e6]
    }
}

/// Returns the text before the first result.
pub(crate) fn heading(report: &SideReport) -> String {
    let SideReport { test, transport, device, mtu, gid, addresses, .. } = report;
    let kind = match (test.is_latency(), report.bidirectional) {
        (true, _) => "Latency",
        (false, true) => "Bidirectional BW",
        (false, false) => "BW",
    };
    let mut text = format!("{LINE}\n                    {} {kind} Test\n", test.title());
    let mut fields = vec![
        ("Device", device.clone()),
        ("Connection type", transport.to_string().to_uppercase()),
        ("Role", report.role.to_string()),
        ("Peer", peer_text(report.peer.as_ref())),
        ("Mtu", format!("{mtu}[B]")),
        ("Link type", if report.ethernet { "Ethernet" } else { "IB" }.to_owned()),
        ("Completions", if report.events { "events" } else { "polling" }.to_owned()),
    ];
    if !test.fetches() {
        fields.push(("Max inline data", format!("{}[B]", report.inline)));
    }
    if !test.is_latency() {
        fields.push(("TX depth", report.tx_depth.to_string()));
        fields.push(("CQ Moderation", report.cq_mod.to_string()));
    }
    if report.queue_pairs > 1 {
        fields.push(("Number of qps", report.queue_pairs.to_string()));
    }
    fields.extend(report.duration_s.map(|seconds| ("Duration", format!("{seconds}[s]"))));
    fields.extend(report.rx_depth.map(|depth| ("RX depth", depth.to_string())));
    for pair in fields.chunks(2) {
        let line: String = pair.iter().map(|(name, value)| format!(" {name:<15} : {value:<22}")).collect();
        let _ = writeln!(text, "{}", line.trim_end());
    }
    let _ = writeln!(text, "{LINE}");
    addresses.iter().for_each(|[local, _]| text += &format!(" local address: {local}\n"));
    let _ = writeln!(text, " GID: {gid}");
    addresses.iter().for_each(|[_, remote]| text += &format!(" remote address: {remote}\n"));
    let _ = writeln!(text, "{LINE}");
    text += columns_text(report);
    text
}

fn peer_text(peer: Option<&PeerReport>) -> String {
    match peer {
        Some(PeerReport { is_dataplane: true, .. }) => "dataplane".to_owned(),
        Some(PeerReport { version, .. }) => format!("perftest {version}"),
        None => "unknown".to_owned(),
    }
}

fn columns_text(report: &SideReport) -> &'static str {
    if report.test.is_latency() {
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   \
         99% percentile[usec]   99.9% percentile[usec]\n"
    } else if report.gbits {
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    } else {
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    }
}

/// Returns the line of one result.
pub(crate) fn row_text(report: &SideReport, row: &VerbsRow) -> String {
    let VerbsRow { bytes, iterations, bandwidth, latency_ns, .. } = row;
    if !report.test.is_latency() {
        let cells = bandwidth.map_or(["-"; 3].map(str::to_owned), |bandwidth| {
            let [peak, average, rate] = bandwidth.columns(report.gbits);
            let digits = if report.gbits && average < 0.1 { 6 } else { 2 };
            [format!("{peak:.digits$}"), format!("{average:.digits$}"), format!("{rate:.6}")]
        });
        let [peak, average, rate] = cells;
        return format!(" {bytes:<7}    {iterations:<10}     {peak:<15}    {average:<17}    {rate}\n");
    }
    let latency = latency_ns.map_or([0.0; 7], |times| {
        let VerbsLatencyReport { min, max, typical, average, deviation, p99, p99_9, .. } = times;
        [min, max, typical, average, deviation, p99, p99_9].map(|nanos| nanos / 1e3)
    });
    let [min, max, typical, average, deviation, p99, p99_9] = latency;
    format!(
        " {bytes:<7} {iterations:<10}    {min:<11.2}    {max:<11.2}  {typical:<15.2}    {average:<11.2}    \
         {deviation:<13.2}   {p99:<20.2}   {p99_9:.2}\n"
    )
}

/// Returns the text after the last result.
pub(crate) fn ending(report: &SideReport) -> String {
    let mut text = String::new();
    for VerbsRow { bytes, lost, iterations, .. } in &report.results {
        if let Some(lost @ 1..) = lost {
            let sent = iterations + lost;
            let _ = writeln!(text, " LOST: {lost} of {sent} messages of {bytes} bytes did not arrive");
        }
    }
    let _ = writeln!(text, "{LINE}");
    if !report.complete {
        let sizes = report.results.len();
        let scope = if report.all_sizes { format!(" after {sizes} sizes") } else { String::new() };
        let _ = writeln!(text, "INCOMPLETE: the run ended early{scope}. The last result can have fewer iterations.");
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::VerbsArgs;
    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: VerbsArgs,
    }

    #[test]
    fn unknown_rate_is_a_dash() {
        let plan = Program::parse_from(["verbs", "send_bw", "-d", "rxe0", "-s", "64"]).args.plan().unwrap();
        let report = SideReport::new(&plan, "rxe0", Role::Server);
        let row = VerbsRow::bandwidth(64, 5, Some(0), None);
        assert_eq!(row_text(&report, &row).split_whitespace().collect::<Vec<_>>(), ["64", "5", "-", "-", "-"]);
        assert_eq!(row.exchanged(false), [64, 5, 0, 0, 0]);
    }
}
