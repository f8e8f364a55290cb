//! Counters of flow rules.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ibverbs_sys::*;

use crate::context::Context;
use crate::{ffi, held_log};
use dataplane_core::error::VerbError;
use dataplane_core::verbs::{FlowCount, FlowCounters};

/// Counters of flow rules on a device: `ibv_create_counters(3)`.
#[derive(Debug)]
pub(crate) struct VerbsFlowCounters {
    pub(super) counters: NonNull<ibv_counters>,
    /// The largest values that were read so far: packets and bytes.
    seen: [AtomicU64; 2],
    context: Arc<Context>,
}

// SAFETY: counters are not bound to a thread, and the kernel locks them when libibverbs reads them.
unsafe impl Send for VerbsFlowCounters {}
// SAFETY: same as above.
unsafe impl Sync for VerbsFlowCounters {}

impl VerbsFlowCounters {
    /// Creates counters for packets and bytes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not support counters.
    pub(crate) fn create(context: &Arc<Context>) -> Result<Self, VerbError> {
        // SAFETY: the context is open, and the attributes contain what the man pages require. With a null flow, the
        // counters apply to rules that are created later.
        unsafe {
            let counters = ffi::ibv_create_counters(context.raw(), &mut ibv_counters_init_attr::default())?;
            let made = Self { counters, seen: Default::default(), context: context.clone() };
            for (index, counter_desc) in [IBV_COUNTER_PACKETS, IBV_COUNTER_BYTES].into_iter().enumerate() {
                let mut attr = ibv_counter_attach_attr { counter_desc, index: index as u32, comp_mask: 0 };
                ffi::ibv_attach_counters_point_flow(counters.as_ptr(), &mut attr, ptr::null_mut())?;
            }
            Ok(made)
        }
    }

    /// Returns the context that created the counters.
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context.raw()
    }
}

impl FlowCounters for VerbsFlowCounters {
    /// Returns the largest values that were read so far. The counts of a destroyed rule therefore remain, even if the
    /// device no longer reports them.
    fn read(&self) -> Result<FlowCount, VerbError> {
        let mut values = [0; 2];
        // SAFETY: the counters are valid, and there is space for the requested values. Without flags, the verb reads
        // the current values from the device.
        let read = unsafe { ffi::ibv_read_counters(self.counters.as_ptr(), values.as_mut_ptr(), 2, 0) };
        match read {
            // The kernel returns EINVAL while no rule uses the counters. `Flow` reads the counters before it destroys a
            // rule, so the values that were read last are complete.
            Err(error) if error.errno == libc::EINVAL => values = [0; 2],
            other => other?,
        }
        let most = |at: usize| self.seen[at].fetch_max(values[at], Ordering::Relaxed).max(values[at]);
        Ok(FlowCount { packets: most(0), bytes: most(1) })
    }
}

impl Drop for VerbsFlowCounters {
    fn drop(&mut self) {
        // SAFETY: the counters are valid, no rule uses them any more, and they are not used again.
        if let Err(error) = unsafe { ffi::ibv_destroy_counters(self.counters.as_ptr()) } {
            held_log::emit(move || {
                tracing::warn!("cannot destroy flow counters, so they stay until their device is closed: {error}");
            });
        }
    }
}
