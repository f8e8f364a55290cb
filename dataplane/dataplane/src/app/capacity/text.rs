//! The text of a prediction.

use std::fmt::Write;

use super::model::{Bottleneck, Part, Prediction};
use dataplane_core::telemetry::{BitsPerSecond, Duration, PacketsPerSecond, Size};

/// The share of dropped packets above which the text contains a warning, in percent.
const MANY_DROPS: f64 = 5.0;

pub(super) fn text(prediction: &Prediction) -> String {
    let Prediction { rounds, ns_per_packet, ns_per_packet_min: min, ns_per_packet_max: max, .. } = prediction;
    let seconds = prediction.measured_s / (*rounds).max(1) as f64;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "measured  {ns_per_packet:.1} ns per packet ({min:.1} to {max:.1} in {rounds} runs of {seconds:.1} s on core {})",
        prediction.measured_core
    );
    let _ = writeln!(
        text,
        "traffic   frames of {:.0} bytes, {:.1} % sent, {:.1} % dropped",
        prediction.frame_bytes, prediction.sent_percent, prediction.dropped_percent
    );
    let _ = writeln!(text, "one core  {}\n", PacketsPerSecond(prediction.core_pps));
    let width = prediction.parts.iter().map(|part| part.part.chars().count()).max().unwrap_or_default().max(4);
    let _ = writeln!(text, "{:<width$}  ns per packet  share", "part");
    for Part { part, ns_per_packet, share_percent, .. } in &prediction.parts {
        let _ = writeln!(text, "{part:<width$}  {ns_per_packet:>13.1}  {share_percent:>4.0} %");
    }
    let _ = writeln!(
        text,
        "\ntarget    {}, {} on the line",
        PacketsPerSecond(prediction.target_pps),
        BitsPerSecond(prediction.target_line_bps)
    );
    let _ = writeln!(
        text,
        "cores     {} with a load of {:.0} %; this process may use {}",
        prediction.cores, prediction.load_percent, prediction.cores_available
    );
    let (buffers, tables) = (Size(prediction.buffers_bytes as f64), Size(prediction.tables_bytes as f64));
    let _ = writeln!(text, "memory    {buffers} of packet buffers, {tables} of tables");
    let _ = writeln!(text, "queues    absorb a pause of {} of all workers", Duration(prediction.absorbed_pause_ns));
    let _ = writeln!(text, "limit     {}", limit(&prediction.bottleneck));
    if prediction.few_bursts {
        text +=
            "warning: few loops were measured, so the costs are uncertain; help: measure longer with --measure 5s\n";
    }
    if prediction.dropped_percent > MANY_DROPS {
        let reason = prediction.main_drop.as_ref().map_or(String::new(), |reason| format!(", mostly as {reason}"));
        let _ = writeln!(
            text,
            "warning: {:.0} % of the measured packets were dropped{reason}, and dropped packets have other costs; help: \
             measure typical packets with --traffic FILE.pcap",
            prediction.dropped_percent
        );
    }
    text
}

fn limit(bottleneck: &Bottleneck) -> String {
    match bottleneck {
        Bottleneck::Ports { line_bps } => format!("the ports: their speed is {}", BitsPerSecond(*line_bps as f64)),
        Bottleneck::Cores { needed, available } => format!("the cores: {needed} are needed, {available} are available"),
        Bottleneck::Part { part, share_percent } => format!("the part `{part}`: {share_percent:.0} % of the time"),
    }
}
