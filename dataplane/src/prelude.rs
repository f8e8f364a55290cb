//! What a stage and an app need.

pub use crate::app::App;
pub use crate::mem::{Batch, Colour, Edge, Head, Meta, MetaFlags, Packet, Reason};
pub use crate::pipeline::{Cause, Ctx, Exit, Facts, Headers, Problem, Setup, Stage};
