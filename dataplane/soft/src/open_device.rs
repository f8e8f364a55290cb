//! An open device: the state that all its objects share, its link and its queue pairs.

use std::sync::Arc;

use crate::counter::Counter;
use crate::link::{AnyLink, Watcher};
use crate::queues::Queues;
use crate::shared::Shared;
use crate::spec::SoftSpec;
use dataplane_core::units::Ticks;

/// An open device. Queue pairs and completion queues keep the device open.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) shared: Arc<Shared>,
    pub(super) spec: SoftSpec,
    // Declared before `link`, because the watcher must be dropped before the link that it watches.
    pub(super) _watcher: Option<Watcher>,
    pub(super) link: Arc<AnyLink>,
    pub(super) queues: Queues,
    /// The wall-clock time at which the device was opened, in nanoseconds, and the ticks of the clock at that time.
    pub(super) wall: (u64, Ticks),
    pub(super) counter: Arc<Counter>,
}
