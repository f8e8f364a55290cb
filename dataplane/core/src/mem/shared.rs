//! Copies to and from memory that a device or another thread may access at the same time.
//!
//! All code in this process accesses such memory one byte at a time, with relaxed atomics, so there is no data race. A
//! read that overlaps a write returns a mixture of old and new bytes. The overlap has no further effect.

use std::sync::atomic::{AtomicU8, Ordering};

/// Copies `into.len()` bytes out of shared memory.
///
/// # Safety
/// The `into.len()` bytes at `from` must be in a live mapping. Every concurrent writer must be a device or use
/// [`store`].
pub unsafe fn load(from: *const u8, into: &mut [u8]) {
    for (at, byte) in into.iter_mut().enumerate() {
        // SAFETY: the caller guarantees a live mapping and atomic access. A byte is always aligned.
        *byte = unsafe { AtomicU8::from_ptr(from.add(at).cast_mut()) }.load(Ordering::Relaxed);
    }
}

/// Copies bytes into shared memory.
///
/// # Safety
/// The `bytes.len()` bytes at `to` must be in a live, writable mapping. Every concurrent reader or writer must be a
/// device or use [`load`] and [`store`].
pub unsafe fn store(to: *mut u8, bytes: &[u8]) {
    for (at, byte) in bytes.iter().enumerate() {
        // SAFETY: the caller guarantees a live mapping and atomic access. A byte is always aligned.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(*byte, Ordering::Relaxed);
    }
}
