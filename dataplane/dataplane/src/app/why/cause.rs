//! The causes of drops and losses, and the text that `dataplane why` prints.

use std::cmp::Reverse;
use std::fmt;

use serde::Serialize;

use super::observe::Observed;
use dataplane_core::telemetry::PacketsPerSecond;

/// The causes of all drops and losses during the examined time.
#[derive(Debug, Serialize)]
pub(super) struct Diagnosis {
    /// The time in which the packets were counted.
    pub(super) duration_s: f64,
    /// The packets that the workers received.
    pub(super) received: u64,
    /// The packets that the stages and the ports dropped. The ledger contains these packets.
    pub(super) dropped: u64,
    /// The packets that the report counts as lost: `rx_lost` and `tx_lost` of the ports. The ledger does not contain
    /// these packets.
    pub(super) lost: u64,
    /// The causes, in descending order of their packets. Causes with an unknown number of packets are last.
    pub(super) causes: Vec<Cause>,
    /// The reasons why examples are missing.
    pub(super) notes: Vec<String>,
    /// The drops and losses since the start of the program.
    #[serde(skip)]
    since_start: u64,
}

/// The packets that one counter counts, and why they were dropped or lost.
#[derive(Debug, Serialize)]
pub(super) struct Cause {
    /// The counter: `STAGE.REASON`, `STAGE.OUTPUT`, `PORT.REASON` or `PORT.COUNTER`. A cause without a counter has the
    /// name `worker NUMBER` or `PORT.link_down`.
    pub(super) name: String,
    pub(super) kind: CauseKind,
    /// Whether the ledger contains the packets.
    pub(super) in_ledger: bool,
    /// Whether the report counts the packets as lost. `false` for missing copies, for packets that a port does not
    /// accept, and for counters of interfaces, which also count the packets of other programs.
    pub(super) is_lost: bool,
    /// The stage that dropped the packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stage: Option<String>,
    /// The kind of the stage.
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    pub(super) stage_kind: Option<String>,
    /// The port that dropped or lost the packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<String>,
    /// `None` if no counter counts the packets.
    pub(super) packets: Option<u64>,
    /// The meaning of the counter.
    pub(super) meaning: String,
    /// Why the packets were lost, if the counter alone does not show this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    pub(super) evidence: Vec<String>,
    /// The number of traced packets.
    pub(super) traced: u64,
    /// The table entries of the stage that applied to the traced packets, such as rules.
    pub(super) entries: Vec<TracedEntry>,
    /// Some of the packets.
    pub(super) examples: Vec<Example>,
    pub(super) fix: String,
}

/// The kind of a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CauseKind {
    /// A stage dropped the packets.
    Stage,
    /// A port dropped the packets instead of sending them.
    Send,
    /// The link of the port is down.
    LinkDown,
    /// The link damages frames.
    LinkErrors,
    /// The device failed, and its queues were reset.
    Device,
    /// A worker does not answer.
    WorkerBlocked,
    /// The workers cannot handle more packets.
    WorkerSaturated,
    /// Other programs run on the core of a worker.
    WorkerPreempted,
    /// Bursts exceed a queue, although the workers are idle in between.
    Bursts,
    /// The ring of the NIC was full.
    NicRing,
    /// The kernel dropped the packets before the port received them.
    Kernel,
    /// The port does not accept the packets.
    NotAccepted,
    /// A stage could not make a copy.
    Copies,
    /// A capture file could not be written.
    File,
}

/// A table entry of a stage that applied to some of the traced packets.
#[derive(Debug, Serialize)]
pub(super) struct TracedEntry {
    pub(super) text: String,
    /// The number of traced packets to which the entry applied.
    pub(super) packets: u64,
}

/// An example of the packets of a cause.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Example {
    /// The port that received the packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<String>,
    pub(super) summary: String,
    /// The length of the packet.
    pub(super) bytes: u32,
}

impl Cause {
    /// Creates a cause without evidence and examples.
    pub(super) fn new(name: String, kind: CauseKind, packets: Option<u64>, meaning: impl Into<String>) -> Self {
        Self {
            name,
            kind,
            in_ledger: false,
            is_lost: false,
            stage: None,
            stage_kind: None,
            port: None,
            packets,
            meaning: meaning.into(),
            reason: None,
            evidence: Vec::new(),
            traced: 0,
            entries: Vec::new(),
            examples: Vec::new(),
            fix: String::new(),
        }
    }
}

impl Diagnosis {
    pub(super) fn new(observed: &Observed, mut causes: Vec<Cause>) -> Self {
        causes.sort_by_cached_key(|cause| (Reverse(cause.packets), cause.name.clone()));
        let total = &observed.after.report;
        Self {
            duration_s: observed.seconds,
            received: observed.growth(|report| report.packets.rx),
            dropped: observed.growth(|report| report.ledger.dropped),
            lost: causes.iter().filter(|cause| cause.is_lost).filter_map(|cause| cause.packets).sum(),
            causes,
            notes: Vec::new(),
            since_start: total.ledger.dropped + total.ports.iter().map(|port| port.rx_lost + port.tx_lost).sum::<u64>(),
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { duration_s, received, dropped, lost, causes, notes, since_start } = self;
        writeln!(
            f,
            "in {duration_s:.1} s: {received} packets received, {dropped} dropped, {lost} lost outside the ledger"
        )?;
        if causes.is_empty() {
            return match since_start {
                0 => writeln!(f, "no packet was dropped or lost since the start of the program"),
                _ => writeln!(
                    f,
                    "no packet was dropped or lost in this time, but {since_start} since the start of the program; \
                     help: `dataplane why --total` names the causes"
                ),
            };
        }
        let all = (dropped + lost).max(1);
        for (number, cause) in causes.iter().enumerate() {
            let Cause { name, packets, meaning, reason, evidence, traced, entries, examples, fix, .. } = cause;
            write!(f, "\n{}. {name}: ", number + 1)?;
            match *packets {
                Some(packets) => {
                    let rate = PacketsPerSecond(packets as f64 / duration_s.max(1e-9));
                    let noun = if packets == 1 { "packet" } else { "packets" };
                    write!(f, "{packets} {noun}, {rate}")?;
                    match cause.in_ledger || cause.is_lost {
                        true => writeln!(f, ", {:.1} % of all", packets as f64 * 100.0 / all as f64)?,
                        false => writeln!(f)?,
                    }
                }
                None => writeln!(f, "an unknown number of packets")?,
            }
            writeln!(f, "   meaning   {meaning}")?;
            reason.iter().try_for_each(|reason| writeln!(f, "   reason    {reason}"))?;
            evidence.iter().try_for_each(|line| writeln!(f, "   evidence  {line}"))?;
            for TracedEntry { text, packets } in entries {
                writeln!(f, "   entry     {text} ({packets} of {traced} traced packets)")?;
            }
            for Example { port, summary, bytes } in examples {
                let port = port.as_ref().map_or(String::new(), |port| format!("from {port}: "));
                writeln!(f, "   example   {port}{summary}, {bytes} bytes")?;
            }
            writeln!(f, "   fix       {fix}")?;
        }
        if !notes.is_empty() {
            writeln!(f)?;
        }
        notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}
