//! Statistics: the ledger, latency, live counters that do not disturb the worker, and the report of a run.

mod board;
mod cost;
mod display;
mod latency;
mod ledger;
mod recent;
mod report;

pub use board::{Progress, SharedProgress};
pub use cost::{CostReport, CostSum, Costs};
pub use display::{BitsPerSecond, Duration, PacketsPerSecond, PerSecond, Size};
pub use latency::Latency;
pub use ledger::Ledger;
pub use recent::{LiveStatistics, PortRates, Rates, Recent, WorkerRates};
pub use report::{
    CounterKind, LatencyReport, PortReport, RemovedWorkersReport, Report, SleepReport, StageReport, Totals,
    WorkerReport,
};
