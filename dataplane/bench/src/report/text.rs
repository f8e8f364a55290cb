//! The results as text.

use std::fmt::{self, Write as _};

use super::environment::Calibration;
use super::parts::{
    BoundReport, CalibrationReport, CounterReport, PortReport, RateReport, SearchReport, StreamReport, Traffic,
};
use super::times::Times;
use super::units::{Bps, Nanoseconds, Percent, Pps, ratio};

impl fmt::Display for RateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, streams, ports, tester, .. } = self;
        let requested = total.requested_pps.map_or_else(|| "max".to_owned(), |rate| Pps(rate).to_string());
        writeln!(f, "rate      {requested} requested, {} sent for {:.3} s", Pps(total.sent_pps), self.duration_s)?;
        writeln!(
            f,
            "received  {}, {} with FCS, {} on the line",
            Pps(total.received_pps),
            Bps(total.received_bps),
            Bps(total.received_line_bps)
        )?;
        writeln!(
            f,
            "loss      {} ({} of {}), 95 % interval {} to {}",
            Percent(total.loss_ratio),
            total.lost_by_device(),
            total.sent,
            Percent(total.loss_interval[0]),
            Percent(total.loss_interval[1])
        )?;
        if let Some(CounterReport { sent, arrived, loss_ratio }) = self.by_counters {
            writeln!(
                f,
                "NO SIGNATURES: no packet arrived with its signature, because the device changes the payload or returns no packet"
            )?;
            let loss = Percent(loss_ratio);
            writeln!(f, "counters  {arrived} of {sent} packets arrived, loss {loss}; latency and order are unknown")?;
        }
        if total.overrun > 0 {
            let (overrun, share) = (total.overrun, Percent(ratio(total.overrun, total.sent)));
            writeln!(f, "overrun   the tester was too slow to receive {overrun} more packets ({share})")?;
        }
        if total.tx_failed > 0 {
            let (failed, share) = (total.tx_failed, Percent(ratio(total.tx_failed, total.sent)));
            writeln!(f, "not sent  the ports of the tester did not send {failed} more packets ({share})")?;
        }
        if total.unsigned > 0 {
            let arrived: u64 = ports.iter().map(|port| port.foreign).sum();
            writeln!(
                f,
                "NOT JUDGED: {} packets were sent without a signature, and {arrived} packets without a signature arrived",
                total.unsigned
            )?;
        }
        if total.held > 0 {
            let (held, share) = (total.held, Percent(ratio(total.held, total.sent)));
            writeln!(f, "queue     the device still held {held} packets ({share}) after the last transmission")?;
        }
        // Returns a cell of the column `by tester`. A result without packets that the tester lost has no such column.
        let by_tester = |total: &Traffic, cell: String| match total.lost_by_tester() {
            0 => String::new(),
            _ => format!(" {cell:>10}"),
        };
        let width = streams.iter().map(|stream| stream.name.chars().count()).max().unwrap_or(0).max(6);
        writeln!(
            f,
            "\n{:width$} {:>10} {:>10} {:>8} {:>8} {:>8} {:>8} {:>9} {:>6}{}",
            "stream",
            "sent",
            "received",
            "lost",
            "late",
            "corrupt",
            "dup",
            "reordered",
            "extent",
            by_tester(total, "by tester".to_owned())
        )?;
        for stream in streams {
            let Traffic { sent, received, lost, late, corrupted, duplicated, reordered, .. } = &stream.traffic;
            writeln!(
                f,
                "{:width$} {sent:>10} {received:>10} {lost:>8} {late:>8} {corrupted:>8} {duplicated:>8} {reordered:>9} {:>6}{}",
                stream.name,
                stream.max_reordering_extent,
                by_tester(total, stream.traffic.lost_by_tester().to_string())
            )?;
        }
        writeln!(
            f,
            "\n{:width$} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "latency", "min", "p50", "p90", "p99", "p99.9", "p99.999", "max"
        )?;
        let tables = [
            ("", (|it| &it.latency_ns) as fn(&StreamReport) -> &Times),
            ("jitter", |it| &it.jitter_ns),
            ("pacing error", |it| &it.pacing_ns),
        ];
        for (label, of) in tables {
            if !label.is_empty() {
                writeln!(f, "{label}")?;
            }
            for stream in streams {
                let times = of(stream);
                if times.count == 0 {
                    writeln!(f, "{:width$} {:>10}", stream.name, "unknown")?;
                    continue;
                }
                write!(f, "{:width$}", stream.name)?;
                for value in [times.min, times.p50, times.p90, times.p99, times.p99_9, times.p99_999, times.max] {
                    write!(f, " {:>10}", Nanoseconds(value))?;
                }
                writeln!(f)?;
            }
        }
        for stream in streams.iter().filter(|stream| stream.gap_count > 0) {
            let mut text = String::new();
            for gap in stream.gaps.iter().take(4) {
                let _ = write!(text, ", {:.3} s at {:.3} s", gap.length_s, gap.start_s);
            }
            writeln!(f, "\n{}: {} gaps{text}", stream.name, stream.gap_count)?;
        }
        writeln!(f)?;
        for port in ports {
            let PortReport { name, device, tx, rx, foreign, clock, clock_error_ns, .. } = port;
            writeln!(f, "port {name} ({device}): tx {tx}, rx {rx}, of these {foreign} without a signature")?;
            let error = clock_error_ns.map_or_else(|| "unknown".to_owned(), |error| Nanoseconds(error).to_string());
            writeln!(f, "  clock of the receive times: {clock}, error of the conversion: {error}")?;
        }
        let pause = Nanoseconds(tester.longest_pause_ns);
        writeln!(f, "tester: longest pause {pause}, unaccounted {}", self.unaccounted)?;
        self.environment.note_calibration(f)?;
        notes(f, self.stopped, &tester.limits, &tester.disturbances)
    }
}

pub(crate) fn notes(
    f: &mut fmt::Formatter<'_>,
    stopped: bool,
    limits: &[String],
    disturbances: &[String],
) -> fmt::Result {
    if stopped {
        writeln!(f, "INCOMPLETE: stopped before the end")?;
    }
    limits.iter().try_for_each(|limit| writeln!(f, "TESTER LIMIT: {limit}"))?;
    disturbances.iter().try_for_each(|note| writeln!(f, "DISTURBED: {note}"))
}

impl fmt::Display for CalibrationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Calibration { max_pps, rate_error, loss_ratio, latency_ns, pacing_ns } = &self.calibration;
        writeln!(f, "maximum        {}", Pps(*max_pps))?;
        writeln!(f, "at half of the maximum:")?;
        writeln!(f, "  rate error   {:+.4} %", rate_error * 100.0)?;
        writeln!(f, "  loss         {}", Percent(*loss_ratio))?;
        for (name, times) in [("latency", latency_ns), ("pacing error", pacing_ns)] {
            let [min, p50, p99, max] = [times.min, times.p50, times.p99, times.max].map(Nanoseconds);
            writeln!(f, "  {name:12} min {min}, p50 {p50}, p99 {p99}, max {max}")?;
        }
        let tester = &self.half.tester;
        notes(f, self.max.stopped || self.half.stopped, &tester.limits, &tester.disturbances)
    }
}

impl fmt::Display for SearchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for goal in &self.goals {
            writeln!(f, "{}: loss ratio at most {}", goal.name, Percent(goal.loss_ratio))?;
            let bound = |bound: &Option<BoundReport>, none: &str| match bound {
                None => goal.missing_bound(none).to_owned(),
                Some(it) => {
                    let trials = match it.trials {
                        0 => format!(
                            "{} of {} short trials exceed the loss ratio of the goal",
                            it.short_exceeded, it.short_trials
                        ),
                        trials => format!(
                            "{} of {trials} trials exceed the loss ratio of the goal (nominal 95 % interval of the probability: {:.0} to {:.0} %)",
                            it.exceeded,
                            it.exceed_probability[0] * 100.0,
                            it.exceed_probability[1] * 100.0
                        ),
                    };
                    let ignored = match it.ignored {
                        0 => String::new(),
                        ignored => format!("; {ignored} more trials ignored"),
                    };
                    format!("{}, {} with FCS; {trials}{ignored}", Pps(it.pps), Bps(it.bps))
                }
            };
            writeln!(
                f,
                "  lower bound  {}",
                bound(&goal.lower, "none: the device does not fulfil the goal at the lowest rate")
            )?;
            writeln!(
                f,
                "  upper bound  {}",
                bound(&goal.upper, "none: the device fulfils the goal at the highest rate")
            )?;
            if let Some(throughput) = goal.conditional_throughput_pps {
                writeln!(f, "  conditional throughput  {}", Pps(throughput))?;
            }
            if !goal.complete {
                writeln!(f, "  INCOMPLETE: the bounds are not as close as requested")?;
            }
        }
        if self.trials.iter().any(|trial| trial.by_counters) {
            writeln!(
                f,
                "NO SIGNATURES: in some trials, no packet arrived with its signature, so the losses are from the counters of the ports"
            )?;
        }
        // `sum` of an empty iterator is -0, and the text would have `-0 s`.
        let seconds = self.trials.iter().fold(0.0, |sum, trial| sum + trial.duration_s);
        let ignored = self.trials.iter().filter(|trial| trial.ignored).count();
        writeln!(
            f,
            "trials: {} in {seconds:.0} s of traffic, {ignored} ignored because the tester was the limit or was disturbed",
            self.trials.len()
        )?;
        /// The maximum number of limits in the text. The JSON has all limits.
        const SHOWN: usize = 3;
        let (shown, rest) = self.tester_limits.split_at(self.tester_limits.len().min(SHOWN));
        self.environment.note_calibration(f)?;
        notes(f, self.stopped, shown, &[])?;
        match rest.len() {
            0 => Ok(()),
            more => writeln!(f, "TESTER LIMIT: {more} more, listed with --json"),
        }
    }
}
