//! Flow rules that exist on a device.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::*;

use super::encode::encode_for;
use crate::{ffi, held_log};
use dataplane_core::verbs::{FlowCounters, FlowError, FlowLimits, FlowRule};

/// A flow rule on a device. The rule is destroyed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Flow {
    flow: NonNull<ibv_flow>,
    /// The counters that the rule uses. The counters must outlive the rule.
    count: Option<Arc<dyn FlowCounters>>,
}

// SAFETY: a flow rule is not bound to a thread.
unsafe impl Send for Flow {}

impl Flow {
    /// Creates a flow rule for a queue pair. `limits` are the limits of the driver.
    ///
    /// # Errors
    /// The rule is invalid, or the device refuses it.
    ///
    /// # Safety
    /// The queue pair must outlive the rule.
    pub(crate) unsafe fn create(qp: NonNull<ibv_qp>, rule: &FlowRule, limits: &FlowLimits) -> Result<Self, FlowError> {
        let bytes = encode_for(rule, limits)?;
        let mut words: Vec<u64> = vec![0; bytes.len().div_ceil(8)];
        // SAFETY: `words` has space for all bytes and is aligned for every member. The verb reads only the number of
        // bytes in the size field. The returned `Flow` holds the counters.
        let flow = unsafe {
            let start = words.as_mut_ptr().cast::<u8>();
            start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            ffi::ibv_create_flow(qp.as_ptr(), start.cast())
        };
        match flow {
            Ok(flow) => Ok(Self { flow, count: rule.count.clone() }),
            Err(error) => Err(FlowError::Refused { error, partial: rule.partial_masks() }),
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // After the destruction, the device may no longer report the counts of this rule. `FlowCounters` keeps the
        // largest values that were read, so read the counters now.
        if let Some(Err(error)) = self.count.as_ref().map(|count| count.read()) {
            held_log::emit(move || {
                tracing::warn!("cannot read the counters of a flow rule before its destruction: {error}");
            });
        }
        // SAFETY: the flow rule is valid and is not used again.
        if let Err(error) = unsafe { ffi::ibv_destroy_flow(self.flow.as_ptr()) } {
            held_log::emit(move || {
                tracing::warn!("cannot destroy a flow rule, so it stays until its device is closed: {error}");
            });
        }
    }
}
