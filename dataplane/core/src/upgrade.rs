//! The packet memory that a worker of another program takes over (`dataplane upgrade`).
//!
//! Two programs map the memory, and no check ensures that the programs do not use a packet buffer at the same time. The
//! functions are nevertheless safe, because the runtime, which follows the protocol of the upgrade, has no `unsafe` code. So
//! the crate `dataplane` does not re-export this module for apps, and a test ensures that only the runtime uses the module.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::Result;
use crate::mem::{BatchMemory, PageKind, Pool, Region, SlotLayout};

/// Returns the descriptor with which another program can map the memory, or `None` if the memory is not shared
/// ([`Region::allocate_shared`]).
///
/// The caller may only send the descriptor to the other program.
pub fn region_descriptor(memory: &BatchMemory) -> Option<BorrowedFd<'_>> {
    memory.region().descriptor()
}

/// Creates a pool that continues the pool of another program. The pool has no free slots until [`Pool::take_over`] and
/// [`Pool::take_over_rest`]. `descriptor` and `pages` are the descriptor and the pages of the memory of the other program.
///
/// The caller may take the slots over when the other program does not use them any more.
///
/// # Errors
/// Fails if the size of the memory can change, if the memory is smaller than the layout, if this program has mapped the
/// memory already, or if the kernel refuses the mapping.
pub fn continue_pool(descriptor: OwnedFd, layout: SlotLayout, pages: PageKind) -> Result<Pool> {
    Pool::continued(Region::of_descriptor(descriptor, layout.bytes(), pages)?, layout)
}
