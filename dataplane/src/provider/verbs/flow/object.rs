//! Rules and counters that a device has.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ibverbs_sys::*;

use super::{FlowError, FlowRule};
use crate::error::VerbError;
use crate::provider::verbs::context::Context;
use crate::provider::verbs::ffi;

/// A rule that holds until it is dropped.
#[derive(Debug)]
pub(in crate::provider::verbs) struct Flow {
    flow: NonNull<ibv_flow>,
    /// They outlive the rule that counts in them.
    count: Option<Arc<FlowCounters>>,
}

// SAFETY: a flow belongs to no thread.
unsafe impl Send for Flow {}

impl Flow {
    /// Makes a rule for a queue pair.
    ///
    /// # Errors
    /// The rule cannot be, or the device refuses it.
    ///
    /// # Safety
    /// The queue pair outlives the rule.
    pub(in crate::provider::verbs) unsafe fn create(qp: NonNull<ibv_qp>, rule: &FlowRule) -> Result<Self, FlowError> {
        let (bytes, partial) = rule.encoded()?;
        let mut words: Vec<u64> = vec![0; bytes.len().div_ceil(8)];
        // SAFETY: the words have room for the bytes, and are aligned for every member. The verb reads no further than the
        // size that is among them. The counters live on in the rule.
        let flow = unsafe {
            let start = words.as_mut_ptr().cast::<u8>();
            start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            ffi::ibv_create_flow(qp.as_ptr(), start.cast())
        };
        match flow {
            Ok(flow) => Ok(Self { flow, count: rule.count.clone() }),
            Err(error) => Err(FlowError::Refused { error, partial }),
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        // Without a rule counters may show nothing any more: what they show now is kept.
        if let Some(Err(error)) = self.count.as_ref().map(|count| count.read()) {
            tracing::warn!("the last frames of a flow rule are not counted: {error}");
        }
        // SAFETY: the flow is alive, and not used again.
        if let Err(error) = unsafe { ffi::ibv_destroy_flow(self.flow.as_ptr()) } {
            tracing::warn!("a flow rule stays until its device is closed: {error}");
        }
    }
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// Frames.
    pub packets: u64,
    /// Bytes of frames.
    pub bytes: u64,
}

/// Counters of rules: `ibv_create_counters(3)`. Rules that share them add up.
#[derive(Debug)]
pub struct FlowCounters {
    pub(super) counters: NonNull<ibv_counters>,
    /// The most that was read: packets and bytes.
    seen: [AtomicU64; 2],
    _context: Arc<Context>,
}

// SAFETY: counters belong to no thread, and libibverbs reads them under a lock of the kernel's.
unsafe impl Send for FlowCounters {}
// SAFETY: as above.
unsafe impl Sync for FlowCounters {}

impl FlowCounters {
    /// Makes counters of packets and of bytes.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: the device has none.
    pub(in crate::provider::verbs) fn create(context: &Arc<Context>) -> Result<Self, VerbError> {
        // SAFETY: the context is open; the attributes are those of the man pages. Without a flow they are for rules that
        // are still to be made.
        unsafe {
            let counters = ffi::ibv_create_counters(context.raw(), &mut ibv_counters_init_attr::default())?;
            let made = Self { counters, seen: Default::default(), _context: context.clone() };
            for (index, counter_desc) in [IBV_COUNTER_PACKETS, IBV_COUNTER_BYTES].into_iter().enumerate() {
                let mut attr = ibv_counter_attach_attr { counter_desc, index: index as u32, comp_mask: 0 };
                ffi::ibv_attach_counters_point_flow(counters.as_ptr(), &mut attr, ptr::null_mut())?;
            }
            Ok(made)
        }
    }

    /// What was counted so far: `ibv_read_counters(3)`. What rules counted that are gone is kept, whatever the device still
    /// shows of it.
    ///
    /// # Errors
    /// As the verb.
    pub fn read(&self) -> Result<FlowCount, VerbError> {
        let mut values = [0; 2];
        // SAFETY: the counters are alive, and there is room for as many values as are asked for. No flag: fresh ones.
        unsafe { ffi::ibv_read_counters(self.counters.as_ptr(), values.as_mut_ptr(), 2, 0)? };
        let most = |at: usize| self.seen[at].fetch_max(values[at], Ordering::Relaxed).max(values[at]);
        Ok(FlowCount { packets: most(0), bytes: most(1) })
    }
}

impl Drop for FlowCounters {
    fn drop(&mut self) {
        // SAFETY: the counters are alive, no rule has them any more, and they are not used again.
        if let Err(error) = unsafe { ffi::ibv_destroy_counters(self.counters.as_ptr()) } {
            tracing::warn!("counters stay until their device is closed: {error}");
        }
    }
}
