//! The result of `bench flows`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::parts::{GoalReport, StreamSetup, TrialReport};
use super::text::notes;
use super::units::Percent;

/// The result of `bench flows`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FlowsReport {
    /// The command: `flows`.
    pub method: String,
    /// The host and the program of the trials.
    pub environment: Environment,
    /// Whether the tests were stopped before their end.
    pub stopped: bool,
    /// The stream of the tests: a list with one element.
    pub streams: Vec<StreamSetup>,
    /// The limit of the loss ratio.
    pub loss_ratio: f64,
    /// The number of concurrent flows that the device carries.
    pub capacity: Option<CapacityReport>,
    /// The trials of the capacity.
    pub capacity_trials: Vec<FlowTrialReport>,
    /// The highest rate of new flows. Each packet opens a flow, so the rates are flows per second.
    pub set_up_rate: Option<GoalReport>,
    /// The trials of the set-up rate.
    pub rate_trials: Vec<TrialReport>,
    /// The reasons why trials show a limit or a disturbance of the tester.
    pub tester_limits: Vec<String>,
}

/// The capacity of a stateful device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CapacityReport {
    /// The largest number of flows with which the loss ratio did not exceed its limit. `None` if the loss ratio exceeded
    /// the limit in each trial.
    pub flows: Option<u64>,
    /// The smallest number of flows with which the loss ratio exceeded its limit. `None` if the loss ratio did not exceed
    /// the limit in any trial.
    pub exceeded_at: Option<u64>,
}

impl CapacityReport {
    /// Returns the capacity that the trials show, or `None` without trials.
    pub fn of(trials: &[FlowTrialReport]) -> Option<Self> {
        let lossy = |trial: &&FlowTrialReport| trial.exceeded;
        let exceeded_at = trials.iter().filter(lossy).map(|trial| trial.flows).min();
        let flows = trials.iter().filter(|trial| !lossy(trial)).map(|trial| trial.flows).max();
        (!trials.is_empty()).then_some(Self { flows, exceeded_at })
    }
}

/// A trial of the capacity: the tester opens new flows, and then sends one more packet of each flow.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FlowTrialReport {
    /// The number of flows.
    pub flows: u64,
    /// The lost packets that should open a flow. The device may have refused these flows because of their rate. Packets
    /// that the tester could not send in time count as lost.
    pub lost_set_up: u64,
    /// The lost packets after all flows were opened. Packets that the tester could not send in time count as lost.
    pub lost: u64,
    /// `lost` as a ratio of `flows`.
    pub loss_ratio: f64,
    /// Whether `loss_ratio` exceeds the limit of the loss ratio.
    pub exceeded: bool,
    /// The reasons why the trial shows a limit of the tester.
    pub limits: Vec<String>,
}

impl fmt::Display for FlowsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(CapacityReport { flows, exceeded_at }) = &self.capacity {
            let flows = flows.map_or("none".to_owned(), |flows| format!("{flows} flows"));
            let limit = Percent(self.loss_ratio);
            let above = match exceeded_at {
                Some(at) => format!("the loss ratio exceeds {limit} with {at} flows"),
                None => format!("the loss ratio of the largest trial is at most {limit}"),
            };
            writeln!(f, "capacity     {flows}; {above}; {} trials", self.capacity_trials.len())?;
            let early = self.capacity_trials.iter().filter(|trial| trial.lost_set_up > trial.lost);
            if let Some(trial) = early.max_by_key(|trial| trial.lost_set_up) {
                writeln!(
                    f,
                    "             of {} flows, {} lost their first packet, so the flows may be opened too fast; help: reduce \
                     --rate",
                    trial.flows, trial.lost_set_up
                )?;
            }
        }
        if let Some(goal) = &self.set_up_rate {
            let rate = |bound: &Option<super::parts::BoundReport>, none: &str| match bound {
                Some(bound) => {
                    format!(
                        "{:.0} flows/s ({} of {} trials exceed the loss ratio)",
                        bound.pps, bound.exceeded, bound.trials
                    )
                }
                None => goal.missing_bound(none).to_owned(),
            };
            writeln!(
                f,
                "set-up rate  loss ratio at most {}, trials of {:.3} s",
                Percent(goal.loss_ratio),
                goal.trial_s
            )?;
            writeln!(f, "  lower bound  {}", rate(&goal.lower, "none: the loss ratio is higher at the lowest rate"))?;
            writeln!(
                f,
                "  upper bound  {}",
                rate(&goal.upper, "none: the loss ratio is not higher at the highest rate")
            )?;
            if !goal.complete {
                writeln!(f, "  INCOMPLETE: the bounds are not as close as requested")?;
            }
        }
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
