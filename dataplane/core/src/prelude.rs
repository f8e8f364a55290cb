//! The names that a stage needs.

pub use crate::mem::{Batch, Colour, Edge, Head, Meta, MetaFlags, Packet, Reason, RecvFields, RecvFlags, RecvInfo};
pub use crate::pipeline::{Cause, ChecksumOffload, Contract, CounterReport, Ctx, DefaultTarget, DropObserver, Facts};
pub use crate::pipeline::{Generator, Headers, HeldPackets, Problem};
pub use crate::pipeline::{
    Live, LiveReader, LiveTable, PortChange, Setup, Stage, StageInfo, StateTransfer, StopSignal, Task,
};
pub use crate::pipeline::{Table, TableInfo, TablePage, TableQuery};
