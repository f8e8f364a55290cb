//! TOML to a checked plan; touches no device.
//!
//! # The way of a config
//!
//! ```text
//! Source (text) → load → Loaded (typed as far as right, with places) → plan → Plan (cross-checked)
//! ```
//!
//! All mistakes of a config come to light in one go: they are collected in [`Diagnostics`], each with its place, and
//! each step goes on past them. The parameters of a stage belong to the stage: [`Loaded::read_stage`] reads them as
//! whatever type the stage has, with the same care.
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
mod explain;
mod graph;
mod link;
mod load;
mod memory;
mod plan;
mod port;
mod raw;
mod recover;
mod runtime;
mod schema;
mod source;
mod syntax;
mod tree;
mod types;
mod xdp;

pub use connection::{Alternate, Connection, GidKind, PathMigration, RemoteAccess};
pub use diagnostics::{Diagnostics, Level, Mistake, Record};
pub use explain::{nearest, suggest};
pub use load::{Loaded, load};
pub use plan::{Catalog, NodePlan, Plan, PortPlan, StageShape, Target, plan};
pub use port::{
    Capability, Clock, ClockEvent, ClockEventKind, Faults, FrameStamps, Generator, Link, Loopback, Pace, Packet, Pcap,
    Port, Protocol, Qp, Rss, RssField, SOFT, Size, Tap,
};
pub use raw::{
    Action, EthernetHeader, Flow, Frames, Gre, Inner, Ipv4Header, Ipv6Header, Match, Mpls, Offload, Ports, RateLimit,
    Vxlan,
};
pub use recover::{recover, recover_with};
pub use runtime::{Hugepages, Idle, Runtime, Timestamps};
pub use schema::{Row, markdown_table, reference_markdown, schema, schema_table};
pub use source::{MAX_SIZE, Position, Source, Span};
pub use types::{Address, Control, Mac, Period, Repeat, RssKey, probability, within, within_signed, within_some};
pub use xdp::{Xdp, XdpBusyPoll, XdpCopy, XdpMode, XdpSelect};
