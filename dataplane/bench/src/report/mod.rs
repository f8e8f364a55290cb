//! The results as JSON and as text.

mod build;
mod parts;
mod text;
mod units;

pub use self::build::{bound_report, disturbances, environment, goal_report, rate_report, trial_limits};
pub use self::parts::{
    BoundReport, Calibration, CalibrationReport, Environment, GapReport, GoalReport, PortReport, RateReport,
    SearchReport, SeriesReport, StreamReport, StreamSetup, TesterReport, Times, Traffic, TrialReport,
};
pub use self::units::{Bps, Nanoseconds, Percent, Pps};
