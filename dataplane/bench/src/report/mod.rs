//! The results as JSON and as text.

mod build;
mod environment;
mod flows;
mod latency;
mod parts;
mod rfc2544;
mod soak;
mod text;
mod times;
mod units;

pub use self::build::{bound_report, disturbances, goal_report, rate_report, trial_limits};
pub use self::environment::{Calibration, Environment, Pages, PortEnvironment, environment};
pub use self::flows::{CapacityReport, FlowTrialReport, FlowsReport};
pub use self::latency::{LatencyStep, LatencyStepsReport};
pub use self::parts::{
    BoundReport, CalibrationReport, CounterReport, GapReport, GoalReport, PortReport, RateReport, SearchReport,
    SeriesReport, StreamReport, StreamSetup, TesterReport, Traffic, TrialReport,
};
pub use self::rfc2544::{
    BackToBackReport, LatencyReport, LossStep, RecoveryReport, ResetReport, Rfc2544Report, SizeReport, ThroughputReport,
};
pub use self::soak::{Losses, SoakCounts, SoakInterval, SoakLine, SoakReport, SoakStart, progress as soak_progress};
pub use self::times::Times;
pub(crate) use self::units::ratio;
pub use self::units::{Bps, Nanoseconds, Percent, Pps};
