//! Reads a TOML config, checks the config, and converts it to a plan. Opens no device.
//!
//! # Steps
//!
//! ```text
//! Source (text) → load → Loaded (typed values with their positions) → plan → Plan (cross-checked)
//! ```
//!
//! All mistakes of a config are reported together. Each step adds its mistakes and their positions to [`Diagnostics`],
//! and continues after a mistake. Each kind of stage defines its own parameters. [`Loaded::read_stage`] deserializes
//! these parameters into the type of the stage, and adds mistakes in the parameters to [`Diagnostics`].
//!
//! ```
//! use dataplane::config::{self, Diagnostics, Source};
//!
//! let source = Source::new("x.toml", "[runtime]\nbrst = 32\n", &[]);
//! let mut diagnostics = Diagnostics::new(&source);
//! config::load(&source, &mut diagnostics);
//! let mistake = &diagnostics.records()[0];
//! assert_eq!((mistake.line, mistake.column), (2, 1));
//! assert_eq!(mistake.help.as_deref(), Some("did you mean `burst`?"));
//! ```

mod check;
mod connection;
mod cores;
mod diagnostics;
mod graph;
mod keys;
mod load;
mod memory;
mod plan;
mod planner;
mod port;
mod raw;
mod read;
mod recover;
mod runtime;
mod schema;
mod source;
mod syntax;
mod tree;
mod types;

pub use connection::{Connection, RendezvousConfig};
pub use dataplane_core::parse_errors::{nearest, suggest};
pub use dataplane_soft::config::{FrameStamps, HOST, LinkConfig, LinkParameters, SOFT};
pub use diagnostics::{Diagnostics, Level, Mistake, Record};
pub use load::{Loaded, load};
pub(crate) use plan::LockedMemory;
pub use plan::{Catalog, NodePlan, OffloadRequest, Plan, PortPlan, StageOffload, StageShape, Target};
pub use planner::plan;
pub(crate) use port::{
    ETHERNET_HEADER, LARGEST_PATH_MTU, ROCE_HEADERS, interface_mtu_for_datagrams, path_mtu_of_interface,
};
pub use port::{Port, Qp};
pub use raw::{
    Action, EthernetHeader, FlowRuleConfig, Frames, Gre, Headers, Ipv4Header, Ipv6Header, Match, Mpls, Offload, Ports,
    Vxlan,
};
pub use read::MAX_SIZE;
pub use runtime::{BlackBox, Idle, MetricsRules, Runtime, Timestamps};
pub use schema::{Row, Section, schema, schema_table, sections};
pub use source::{Position, Source, Span};
pub use types::{Address, Control, Metrics};
