//! The search for the highest load with an acceptable loss, after the draft "Multiple Loss Ratio Search"
//! (draft-ietf-bmwg-mlrsearch). The names of the draft are used: goal, load, exceed ratio, lower bound, upper bound.
//!
//! The search has no state outside of its arguments, and depends only on the results of the trials.

/// The maximum number of trials of one search.
const MAX_TRIALS: usize = 2_000;
/// How often a search repeats a trial in which the tester was the limit or was disturbed.
pub const REPEATS: usize = 4;
/// The confidence of the stated probabilities.
pub const CONFIDENCE: f64 = 0.95;

/// The goal of a search (section "Search Goal" of the draft). Durations are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The name in the results.
    pub name: String,
    /// The limit of the loss ratio.
    pub loss_ratio: f64,
    /// The share of the trials at a load, by duration, that may exceed the loss ratio.
    pub exceed_ratio: f64,
    /// The duration of the first trials. The first trials only find the region of the result.
    pub initial_duration: f64,
    /// The duration of a full-length trial. Only full-length trials can make a load a lower bound.
    pub final_duration: f64,
    /// The total duration of the trials at one load after which the search decides about this load.
    pub duration_sum: f64,
    /// The maximum relative distance between the lower and the upper bound.
    pub width: f64,
    /// The smallest number of full-length trials at the upper bound, if `exceed_ratio` is 0. With this ratio, a single
    /// short trial can make a load an upper bound, and the loss of that trial can be chance.
    pub confirmations: u64,
}

/// The result of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// The duration of the trial in seconds.
    pub duration: f64,
    /// The share of the packets that were lost.
    pub loss_ratio: f64,
}

/// Runs trials. The search calls [`Trials::measure`] for one trial after the other.
pub trait Trials {
    /// The error that ends the search.
    type Error;

    /// Runs a trial with the load, for the duration in seconds.
    ///
    /// # Errors
    /// Returns an error to end the search.
    fn measure(&mut self, load: f64, duration: f64) -> Result<Measurement, Self::Error>;
}

/// Returns whether a search ignores a trial and repeats it. `is_doubtful` is whether the tester was the limit or was
/// disturbed, and `attempt` counts from 1.
///
/// The loss of the trial must not matter. If only the trials with loss were repeated, a device would get several chances
/// to pass, and the result would be too high.
pub fn is_ignored(is_doubtful: bool, attempt: usize) -> bool {
    is_doubtful && attempt <= REPEATS
}

/// The classification of a load by its trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The device fulfils the goal at this load.
    Lower,
    /// The device does not fulfil the goal at this load.
    Upper,
    /// More trials are needed.
    Undecided,
}

/// The bound of a result: a load and its trials.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// The load.
    pub load: f64,
    /// The number of full-length trials.
    pub trials: u64,
    /// The number of full-length trials whose loss ratio exceeds the goal.
    pub exceeded: u64,
    /// The number of shorter trials. A single short trial with loss can make a load an upper bound.
    pub short_trials: u64,
    /// The number of shorter trials whose loss ratio exceeds the goal.
    pub short_exceeded: u64,
    /// The nominal 95 % confidence interval (Clopper and Pearson) of the probability that a full-length trial exceeds
    /// the loss ratio. The interval is only approximate, because it is for a fixed number of trials: the search stops
    /// as soon as the trials decide about the load.
    pub exceed_probability: (f64, f64),
}

/// The result of a goal.
#[derive(Clone, Debug, PartialEq)]
pub struct GoalResult {
    /// The name of the goal.
    pub name: String,
    /// The relevant lower bound: the highest load at which the device fulfils the goal, below the upper bound. `None`
    /// if the device does not fulfil the goal at the lowest load.
    pub lower: Option<Bound>,
    /// The relevant upper bound: the lowest load at which the device does not fulfil the goal. `None` if the device
    /// fulfils the goal at the highest load.
    pub upper: Option<Bound>,
    /// The load of the lower bound, less the loss at this load.
    pub conditional_throughput: Option<f64>,
    /// Whether the search reached the width of the goal, or the limit of the range.
    pub complete: bool,
}

/// All trials of a search, by load.
#[derive(Clone, Debug, Default)]
struct Log(Vec<(f64, Vec<Measurement>)>);

impl Log {
    fn at(&self, load: f64) -> &[Measurement] {
        self.0.iter().find(|(known, _)| *known == load).map_or(&[], |(_, trials)| trials)
    }

    fn add(&mut self, load: f64, trial: Measurement) {
        match self.0.iter_mut().find(|(known, _)| *known == load) {
            Some((_, trials)) => trials.push(trial),
            None => self.0.push((load, vec![trial])),
        }
    }

    fn trials(&self) -> usize {
        self.0.iter().map(|(_, trials)| trials.len()).sum()
    }

    /// Returns the relevant lower and upper bound of a goal.
    fn bounds(&self, goal: &Goal) -> (Option<f64>, Option<f64>) {
        let of = |wanted: Class| {
            self.0.iter().filter(move |(_, trials)| classify(goal, trials) == wanted).map(|(load, _)| *load)
        };
        let upper = of(Class::Upper).min_by(f64::total_cmp);
        let lower = of(Class::Lower).filter(|load| upper.is_none_or(|upper| *load < upper)).max_by(f64::total_cmp);
        (lower, upper)
    }
}

/// Classifies a load by its trials (appendix "Load Classification Code" of the draft).
pub fn classify(goal: &Goal, trials: &[Measurement]) -> Class {
    // A trial may be a little shorter than requested.
    let is_full = |trial: &&Measurement| trial.duration >= goal.final_duration * 0.99;
    let sum = |full: bool, high: bool| -> f64 {
        let of = trials.iter().filter(|trial| is_full(trial) == full && (trial.loss_ratio > goal.loss_ratio) == high);
        of.map(|trial| trial.duration).sum()
    };
    let (full_low, full_high, short_low, short_high) =
        (sum(true, false), sum(true, true), sum(false, false), sum(false, true));
    // Short trials with little loss prove nothing. They only balance short trials with much loss.
    let balancing = short_low * goal.exceed_ratio / (1.0 - goal.exceed_ratio);
    let effective_high = full_high + (short_high - balancing).max(0.0);
    let effective_whole = (full_low + effective_high).max(goal.duration_sum * 0.99);
    let quantile = effective_whole * goal.exceed_ratio;
    // `optimistic` assumes that all remaining trials have little loss, and `pessimistic` that all have much loss.
    let (optimistic, pessimistic) = (effective_high <= quantile, effective_whole - full_low <= quantile);
    match (optimistic, pessimistic) {
        (true, true) => Class::Lower,
        (false, false) => Class::Upper,
        _ => Class::Undecided,
    }
}

/// Returns the conditional throughput of a lower bound (appendix "Conditional Throughput Code" of the draft).
fn conditional_throughput(goal: &Goal, load: f64, trials: &[Measurement]) -> f64 {
    let mut full: Vec<&Measurement> =
        trials.iter().filter(|trial| trial.duration >= goal.final_duration * 0.99).collect();
    full.sort_by(|a, b| a.loss_ratio.total_cmp(&b.loss_ratio));
    let whole = full.iter().map(|trial| trial.duration).sum::<f64>().max(goal.duration_sum * 0.99);
    let mut remaining = whole * (1.0 - goal.exceed_ratio);
    for trial in full {
        remaining -= trial.duration;
        if remaining <= 1e-9 {
            return load * (1.0 - trial.loss_ratio);
        }
    }
    0.0
}

/// Returns the limits of the confidence interval of a probability, after `hits` of `trials` (Clopper and Pearson).
pub fn confidence_interval(hits: u64, trials: u64) -> (f64, f64) {
    if trials == 0 {
        return (0.0, 1.0);
    }
    let tail = (1.0 - CONFIDENCE) / 2.0;
    // The probability of at most `most` hits.
    let at_most = |most: u64, probability: f64| -> f64 {
        let (mut term, mut sum) = ((1.0 - probability).powi(trials.min(1 << 20) as i32), 0.0);
        for k in 0..=most {
            sum += term;
            term *= (trials - k) as f64 / (k + 1) as f64 * probability / (1.0 - probability);
        }
        sum
    };
    let solve = |is_below: &dyn Fn(f64) -> bool| {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            if is_below(middle) { low = middle } else { high = middle }
        }
        low
    };
    let lower = if hits == 0 { 0.0 } else { solve(&|p| 1.0 - at_most(hits - 1, p) < tail) };
    let upper = if hits == trials { 1.0 } else { solve(&|p| at_most(hits, p) > tail) };
    (lower, upper)
}

/// Returns the limits of the confidence interval of a ratio of packets, after `hits` of `packets` (Wilson score interval).
/// After few losses, the interval contains the true ratio slightly less often than in 95 % of the trials.
pub fn ratio_interval(hits: u64, packets: u64) -> (f64, f64) {
    /// The quantile of the standard normal distribution for a confidence of 95 %.
    const Z: f64 = 1.959_963_984_540_054;
    if packets == 0 {
        return (0.0, 1.0);
    }
    let (n, ratio) = (packets as f64, hits as f64 / packets as f64);
    let square = Z * Z / n;
    let middle = ratio + square / 2.0;
    let half = Z * (ratio * (1.0 - ratio) / n + square / (4.0 * n)).sqrt();
    let limit = |value: f64| (value / (1.0 + square)).clamp(0.0, 1.0);
    // Rounding must not exclude the observed ratio.
    (limit(middle - half).min(ratio), limit(middle + half).max(ratio))
}

/// Searches the highest load between `lowest` and `highest` that fulfils each goal. All goals use the trials of the
/// whole search.
///
/// # Errors
/// Returns the error of a trial, with the results so far.
pub fn search<T: Trials>(
    goals: &[Goal],
    (lowest, highest): (f64, f64),
    trials: &mut T,
) -> Result<Vec<GoalResult>, (T::Error, Vec<GoalResult>)> {
    let mut log = Log::default();
    let mut complete = vec![false; goals.len()];
    let mut failure = None;
    for (goal, complete) in goals.iter().zip(&mut complete) {
        match search_goal(goal, (lowest, highest), &mut log, trials) {
            Ok(is_complete) => *complete = is_complete,
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let results = goals.iter().zip(complete).map(|(goal, complete)| result(goal, &log, complete)).collect();
    match failure {
        None => Ok(results),
        Some(error) => Err((error, results)),
    }
}

fn result(goal: &Goal, log: &Log, complete: bool) -> GoalResult {
    let (lower, upper) = log.bounds(goal);
    let bound = |load: f64| {
        let count = |full: bool| {
            let of = log.at(load).iter().filter(|trial| (trial.duration >= goal.final_duration * 0.99) == full);
            let exceeded = of.clone().filter(|trial| trial.loss_ratio > goal.loss_ratio).count() as u64;
            (of.count() as u64, exceeded)
        };
        let ((trials, exceeded), (short_trials, short_exceeded)) = (count(true), count(false));
        let exceed_probability = confidence_interval(exceeded, trials);
        Bound { load, trials, exceeded, short_trials, short_exceeded, exceed_probability }
    };
    GoalResult {
        name: goal.name.clone(),
        conditional_throughput: lower.map(|load| conditional_throughput(goal, load, log.at(load))),
        lower: lower.map(bound),
        upper: upper.map(bound),
        complete,
    }
}

/// Returns the goals of the phases: from short trials and a wide result to the goal itself.
fn phases(goal: &Goal) -> Vec<Goal> {
    let mut phases = vec![goal.clone()];
    let (mut width, mut duration) = (goal.width, goal.final_duration);
    while duration > goal.initial_duration * 1.01 && phases.len() < 8 {
        width = (width * 2.0).min(0.5);
        duration = (duration / 4.0).max(goal.initial_duration);
        phases.push(Goal { width, final_duration: duration, duration_sum: duration, ..goal.clone() });
    }
    if phases.len() == 1 {
        // One trial at each load finds the region.
        let width = (goal.width * 4.0).min(0.5);
        phases.push(Goal { width, duration_sum: goal.final_duration, ..goal.clone() });
    }
    phases.reverse();
    phases
}

/// Searches one goal. Returns `false` if the search reached the maximum number of trials.
fn search_goal<T: Trials>(
    goal: &Goal,
    (lowest, highest): (f64, f64),
    log: &mut Log,
    trials: &mut T,
) -> Result<bool, T::Error> {
    // The first candidate is the highest load. The second candidate is the rate that the device forwards at this load.
    let mut hints = vec![highest];
    for (number, phase) in phases(goal).iter().enumerate() {
        let mut step = phase.width;
        loop {
            let (lower, upper) = log.bounds(phase);
            let inside = |load: f64| lower.is_none_or(|lower| load > lower) && upper.is_none_or(|upper| load < upper);
            hints.retain(|hint| inside(*hint));
            let width = |lower: f64, upper: f64| (upper - lower) / upper;
            let candidate = match (hints.first().copied(), lower, upper) {
                (Some(hint), ..) => hint,
                (None, Some(lower), Some(upper)) if width(lower, upper) <= phase.width => break,
                (None, Some(lower), None) if lower >= highest => break,
                (None, None, Some(upper)) if upper <= lowest => break,
                (None, Some(lower), Some(upper)) => (lower * upper).sqrt(),
                // Leave the region of the hints in steps that grow.
                (None, Some(lower), None) => {
                    step *= 2.0;
                    (lower * (1.0 + step)).min(highest)
                }
                (None, None, Some(upper)) => {
                    step *= 2.0;
                    (upper * (1.0 - step.min(0.5))).max(lowest)
                }
                (None, None, None) => highest,
            };
            let mut last = None;
            while classify(phase, log.at(candidate)) == Class::Undecided {
                if log.trials() >= MAX_TRIALS {
                    return Ok(false);
                }
                let trial = trials.measure(candidate, phase.final_duration)?;
                log.add(candidate, trial);
                last = Some(trial);
            }
            if number == 0
                && candidate == highest
                && let Some(trial) = last
            {
                let forwarded = (highest * (1.0 - trial.loss_ratio)).max(lowest);
                hints.extend([
                    forwarded * (1.0 - phase.width / 2.0),
                    (forwarded * (1.0 + phase.width / 2.0)).min(highest),
                ]);
            }
        }
        // The next phase starts with the bounds of this phase.
        let (lower, upper) = log.bounds(phase);
        hints = [lower, upper].into_iter().flatten().collect();
    }
    if goal.exceed_ratio == 0.0
        && let (_, Some(upper)) = log.bounds(goal)
    {
        let is_full = |trial: &&Measurement| trial.duration >= goal.final_duration * 0.99;
        while (log.at(upper).iter().filter(is_full).count() as u64) < goal.confirmations {
            log.add(upper, trials.measure(upper, goal.final_duration)?);
        }
    }
    Ok(true)
}
