//! Benchmarks of RDMA operations between two queue pairs: bandwidth, message rate and latency. The other side is this
//! program or a tool of perftest.
//!
//! | module | responsibility |
//! | --- | --- |
//! | `args` | the options of the command line, and the rules between them |
//! | `plan` | the parameters of a run |
//! | `protocol` | the messages of the exchange, in the format of perftest |
//! | `exchange` | the TCP connection to the peer |
//! | `watch` | the reasons to end a test early: a signal, a dead peer, a lost message |
//! | `endpoint` | the queue pair, its completion queues and its memory |
//! | `receives` | the posted receives of a side |
//! | `bandwidth`, `latency` | the loops of the tests |
//! | `samples` | the statistics of the measured times |
//! | `session` | the steps of a run in the order of perftest |
//! | `report` | the results as text and JSON |

mod args;
mod bandwidth;
mod endpoint;
mod exchange;
mod latency;
mod plan;
mod protocol;
mod receives;
mod report;
mod samples;
mod session;
mod watch;

pub use args::VerbsArgs;
pub(crate) use exchange::CLOSED;
pub use exchange::{Exchange, Listener};
pub(crate) use plan::SOFT;
pub use plan::{Atomic, Plan, Role, Sizes, Test, Transport};
pub use report::{BandwidthReport, PeerReport, SideReport, VerbsLatencyReport, VerbsReport, VerbsRow};
pub(crate) use report::{ending, heading, row_text};
pub use session::{Output, Session};
