//! Builds results from the outcomes of trials.

use super::environment::{Calibration, Environment};
use super::parts::{
    BoundReport, CounterReport, GapReport, GoalReport, PortReport, RateReport, SeriesReport, StreamReport,
    TesterReport, Traffic, TrialReport,
};
use super::times::Times;
use super::units::{Nanoseconds, Pps, ratio};
use crate::rate::{FCS, LINE_OVERHEAD};
use crate::search::{Bound, GoalResult, ratio_interval};
use crate::stream::Stream;
use crate::tester::{CoreLoad, Outcome, StreamOutcome};

/// If the tester missed more than this share of the packets of a trial, the trial shows a limit of the tester.
const MAX_RATE_ERROR: f64 = 0.01;
/// A rate above this share of the tester's own maximum may show a limit of the tester.
const MAX_OWN_SHARE: f64 = 0.9;
/// If fewer packets than this share of the sent packets arrive without a signature, the packets may be from other hosts.
const MIN_CHANGED: f64 = 0.01;
/// A trial is disturbed if the tester waited for a core for more than this share of the trial.
const MAX_WAIT: f64 = 0.01;
/// A trial is disturbed if the hypervisor took the core of the tester for more than this share of the trial.
const MAX_STEAL: f64 = 0.01;
/// A trial is disturbed if another thread of the physical core was busy for more than this share of the trial.
const MAX_NEIGHBOUR: f64 = 0.1;
/// A trial is disturbed if the frequency of the core changed by more than this share.
const MAX_FREQUENCY_CHANGE: f64 = 0.05;

/// Returns the report of a trial. `rates` are the requested rates of the streams.
pub fn rate_report(
    method: &str,
    streams: &[Stream],
    rates: &[Option<f64>],
    names: &[(String, String)],
    outcome: &Outcome,
    environment: &Environment,
) -> RateReport {
    let seconds = outcome.duration as f64 / 1e9;
    let start = |gap: u64| gap as f64 / 1e9;
    let intervals = outcome.intervals;
    let mut total = Traffic::default();
    let (mut bits, mut line_bits) = (0.0, 0.0);
    let name = |port: usize| names.get(port).map_or_else(String::new, |(name, _)| name.clone());
    let mut reports = Vec::new();
    let overruns = outcome.overruns(streams);
    for (((stream, outcome), rate), overrun) in streams.iter().zip(&outcome.streams).zip(rates).zip(overruns) {
        let traffic = traffic(stream, outcome, overrun, *rate, seconds);
        bits += traffic.received_bps;
        line_bits += traffic.received_line_bps;
        add(&mut total, &traffic);
        let (judgement, counts) = (&outcome.judgement, outcome.judgement.counts);
        reports.push(StreamReport {
            name: stream.name.clone(),
            from: name(stream.from),
            to: name(stream.to),
            mean_size: stream.mean_size,
            max_reordering_extent: counts.max_extent,
            mean_reordering_extent: counts.extents as f64 / counts.reordered.max(1) as f64,
            latency_ns: Times::of(&judgement.latency),
            jitter_ns: Times::of(&judgement.jitter),
            pacing_ns: Times::of(&outcome.pacing),
            keys: stream.keys().clone(),
            series: SeriesReport::of(&outcome.series, intervals),
            gap_count: judgement.gap_count,
            gaps: judgement
                .gaps
                .iter()
                .map(|gap| GapReport { start_s: start(gap.start), length_s: start(gap.length) })
                .collect(),
            traffic,
        });
    }
    total.requested_pps = rates.iter().copied().sum::<Option<f64>>();
    total.loss_ratio = ratio(total.lost_by_device(), total.sent);
    total.loss_interval = loss_interval(total.lost_by_device(), total.sent);
    (total.received_bps, total.received_line_bps) = (bits, line_bits);
    let ports: Vec<PortReport> = outcome
        .ports
        .iter()
        .zip(names)
        .map(|(port, (name, device))| PortReport {
            name: name.clone(),
            device: device.clone(),
            tx: port.tx,
            tx_failed: port.tx_failed,
            rx: port.rx,
            foreign: port.foreign,
            overrun: port.overrun,
            link_up: port.link_up,
            link_downs: port.link_downs,
            clock: port.clock.clone(),
            clock_error_ns: port.clock_error,
            counters: port.device.clone(),
        })
        .collect();
    let mut limits = trial_limits(outcome, names);
    limits.extend(
        environment.calibration.as_ref().map_or_else(Vec::new, |own| calibration_limits(&total, &reports, own)),
    );
    RateReport {
        method: method.to_owned(),
        environment: environment.clone(),
        duration_s: seconds,
        stopped: outcome.stopped,
        total,
        by_counters: by_counters(streams, outcome),
        streams: reports,
        ports,
        tester: TesterReport {
            limits,
            disturbances: disturbances(outcome),
            longest_pause_ns: outcome.longest_pause,
            waited_ns: outcome.waited,
            stolen_ns: outcome.core.stolen,
            neighbour_ns: outcome.core.neighbour,
            core_mhz: outcome.core.megahertz.map(|(before, after)| [before, after]),
        },
        unaccounted: unaccounted(outcome),
    }
}

/// Returns the counts of the ports if packets arrived, but no packet arrived with its signature.
fn by_counters(streams: &[Stream], outcome: &Outcome) -> Option<CounterReport> {
    let is_receiver = |port: usize| streams.iter().any(|stream| stream.to == port);
    let receivers = outcome.ports.iter().enumerate().filter(|(port, _)| is_receiver(*port));
    let arrived: u64 = receivers.map(|(_, port)| port.foreign).sum();
    let judged: u64 = outcome.ports.iter().map(|port| port.judged).sum();
    let sent: u64 = outcome.ports.iter().map(|port| port.tx).sum();
    let signed: u64 = outcome.streams.iter().map(|stream| stream.sent).sum();
    let is_changed = judged == 0 && signed > 0 && ratio(arrived, sent) >= MIN_CHANGED;
    let lost = sent.saturating_sub(arrived + overrun(outcome));
    is_changed.then(|| CounterReport { sent, arrived, loss_ratio: ratio(lost, sent) })
}

/// Returns the number of packets that the tester was too slow to receive.
fn overrun(outcome: &Outcome) -> u64 {
    outcome.ports.iter().map(|port| port.overrun).sum()
}

fn traffic(stream: &Stream, outcome: &StreamOutcome, overrun: u64, rate: Option<f64>, seconds: f64) -> Traffic {
    let (counts, tx_failed) = (outcome.judgement.counts, outcome.tx_failed());
    let lost = counts.lost - overrun - tx_failed;
    let lost_by_device = counts.corrupted + counts.late + lost;
    let per_second = |packets: u64| if seconds > 0.0 { packets as f64 / seconds } else { 0.0 };
    let received_pps = per_second(counts.received - counts.drained);
    Traffic {
        requested_pps: rate,
        sent_pps: per_second(outcome.sent + outcome.unsigned),
        received_pps,
        received_bps: received_pps * (stream.mean_size + FCS) * 8.0,
        received_line_bps: received_pps * (stream.mean_size + LINE_OVERHEAD) * 8.0,
        sent: outcome.sent,
        unsigned: outcome.unsigned,
        missed: outcome.missed,
        received: counts.received,
        drained: counts.drained,
        held: counts.held,
        corrupted: counts.corrupted,
        late: counts.late,
        lost,
        overrun,
        tx_failed,
        loss_ratio: ratio(lost_by_device, outcome.sent),
        loss_interval: loss_interval(lost_by_device, outcome.sent),
        duplicated: counts.duplicated,
        reordered: counts.reordered,
        too_old: counts.too_old,
        unsent: counts.unsent,
    }
}

/// Returns the confidence interval of a loss ratio.
fn loss_interval(lost: u64, sent: u64) -> [f64; 2] {
    let (low, high) = ratio_interval(lost, sent);
    [low, high]
}

fn add(total: &mut Traffic, traffic: &Traffic) {
    total.sent_pps += traffic.sent_pps;
    total.received_pps += traffic.received_pps;
    total.sent += traffic.sent;
    total.unsigned += traffic.unsigned;
    total.missed += traffic.missed;
    total.received += traffic.received;
    total.drained += traffic.drained;
    total.held += traffic.held;
    total.corrupted += traffic.corrupted;
    total.late += traffic.late;
    total.lost += traffic.lost;
    total.overrun += traffic.overrun;
    total.tx_failed += traffic.tx_failed;
    total.duplicated += traffic.duplicated;
    total.reordered += traffic.reordered;
    total.too_old += traffic.too_old;
    total.unsent += traffic.unsent;
}

/// Returns the number of packets by which the counters of the ports and of the streams differ.
fn unaccounted(outcome: &Outcome) -> i64 {
    let sum = |values: &mut dyn Iterator<Item = u64>| values.sum::<u64>() as i64;
    let streams = || outcome.streams.iter();
    let ports = || outcome.ports.iter();
    let sent = sum(&mut ports().map(|port| port.tx + port.tx_failed))
        - sum(&mut streams().map(|stream| stream.sent + stream.unsigned));
    let arrived = sum(&mut streams().map(|stream| stream.judgement.counts.arrived()));
    let received = sum(&mut ports().map(|port| port.rx - port.foreign)) - arrived;
    let missing = |stream: &StreamOutcome| {
        let counts = stream.judgement.counts;
        (counts.received + counts.corrupted + counts.late + counts.lost).abs_diff(stream.sent)
    };
    sent.abs() + received.abs() + sum(&mut streams().map(missing))
}

/// Returns the reasons why a trial shows a limit of the tester.
pub fn trial_limits(outcome: &Outcome, names: &[(String, String)]) -> Vec<String> {
    let (sent, missed) =
        outcome.streams.iter().fold((0, 0), |sums, stream| (sums.0 + stream.sent, sums.1 + stream.missed));
    let mut limits = Vec::new();
    if ratio(missed, sent + missed) > MAX_RATE_ERROR {
        limits.push(format!("the tester sent only {sent} of {} packets in time", sent + missed));
    }
    for (port, (name, _)) in outcome.ports.iter().zip(names) {
        if port.tx_failed > 0 {
            limits.push(format!("the port `{name}` did not send {} packets", port.tx_failed));
        }
        if port.overrun > 0 {
            limits.push(format!("the tester was too slow to receive {} packets from the port `{name}`", port.overrun));
        }
        if port.link_downs > 0 {
            limits.push(format!("the link of the port `{name}` went down {} times", port.link_downs));
        }
        if port.link_up == Some(false) {
            limits.push(format!("the link of the port `{name}` is down"));
        }
        if port.clock_faults > 0 {
            limits.push(format!("the clock of the port `{name}` jumped or stopped {} times", port.clock_faults));
        }
    }
    for (clock, step) in [("system", outcome.clock_steps.system), ("wall", outcome.clock_steps.wall)] {
        if step != 0 {
            let (sign, time) = (if step < 0 { '-' } else { '+' }, Nanoseconds(step.unsigned_abs()));
            limits.push(format!("the {clock} clock stepped by {sign}{time}"));
        }
    }
    limits
}

/// Returns the reasons why a result is near the limits of the tester.
fn calibration_limits(total: &Traffic, streams: &[StreamReport], own: &Calibration) -> Vec<String> {
    let mut limits = Vec::new();
    if total.sent_pps > own.max_pps * MAX_OWN_SHARE {
        let share = total.sent_pps / own.max_pps * 100.0;
        limits.push(format!("the rate is {share:.0} % of the tester's own maximum of {}", Pps(own.max_pps)));
    }
    let near = streams.iter().filter(|it| it.latency_ns.count > 0 && it.latency_ns.p50 < 2 * own.latency_ns.p50);
    limits.extend(near.map(|stream| {
        format!(
            "the median latency of the stream `{}` is {}, and the tester's own median latency is {}",
            stream.name,
            Nanoseconds(stream.latency_ns.p50),
            Nanoseconds(own.latency_ns.p50)
        )
    }));
    limits
}

/// Returns the reasons why a trial may be disturbed.
pub fn disturbances(outcome: &Outcome) -> Vec<String> {
    let share = |time: u64| time as f64 / outcome.elapsed.max(1) as f64;
    let percent = |time: u64| format!("{:.1} % of the trial", share(time) * 100.0);
    let mut reasons = Vec::new();
    if share(outcome.waited) > MAX_WAIT {
        let pause = Nanoseconds(outcome.longest_pause);
        reasons.push(format!(
            "the tester waited for a core for {}, and paused for up to {pause}",
            percent(outcome.waited)
        ));
    }
    let CoreLoad { stolen, neighbour, megahertz } = outcome.core;
    if share(stolen) > MAX_STEAL {
        reasons.push(format!("the hypervisor took the core of the tester for at least {}", percent(stolen)));
    }
    if share(neighbour) > MAX_NEIGHBOUR {
        let busy = percent(neighbour);
        reasons.push(format!("another thread of the physical core of the tester was busy for at least {busy}"));
    }
    if let Some((before, after)) = megahertz
        && (after / before - 1.0).abs() > MAX_FREQUENCY_CHANGE
    {
        reasons.push(format!("the frequency of the core of the tester changed from {before:.0} MHz to {after:.0} MHz"));
    }
    reasons
}

/// Returns the report of a bound. `mean` is the mean length of the frames, and `trials` are all trials of the search.
pub fn bound_report(bound: &Bound, mean: f64, trials: &[TrialReport]) -> BoundReport {
    BoundReport {
        pps: bound.load,
        bps: bound.load * (mean + FCS) * 8.0,
        line_bps: bound.load * (mean + LINE_OVERHEAD) * 8.0,
        trials: bound.trials,
        exceeded: bound.exceeded,
        short_trials: bound.short_trials,
        short_exceeded: bound.short_exceeded,
        exceed_probability: [bound.exceed_probability.0, bound.exceed_probability.1],
        ignored: trials.iter().filter(|trial| trial.pps == bound.load && trial.ignored).count() as u64,
    }
}

/// Returns the report of a goal. `trials` are all trials of the search.
pub fn goal_report(goal: &crate::search::Goal, result: &GoalResult, mean: f64, trials: &[TrialReport]) -> GoalReport {
    GoalReport {
        name: goal.name.clone(),
        loss_ratio: goal.loss_ratio,
        exceed_ratio: goal.exceed_ratio,
        trial_s: goal.final_duration,
        duration_sum_s: goal.duration_sum,
        width: goal.width,
        measured: result.lower.is_some() || result.upper.is_some(),
        lower: result.lower.as_ref().map(|bound| bound_report(bound, mean, trials)),
        upper: result.upper.as_ref().map(|bound| bound_report(bound, mean, trials)),
        conditional_throughput_pps: result.conditional_throughput,
        complete: result.complete,
    }
}
