//! Copies to and from memory that a device, or another thread, may touch at the same time.
//!
//! A byte at a time, as a relaxed atomic: all who touch such memory in this process do it so, and no two of them race.
//! What is read while it is being written is a mixture of old and new bytes, and never anything worse.

use std::sync::atomic::{AtomicU8, Ordering};

/// Copies `into.len()` bytes out of shared memory.
///
/// # Safety
/// The bytes from `from` on are in a live mapping, and whoever writes them meanwhile does it by [`store`] or is a device.
pub(crate) unsafe fn load(from: *const u8, into: &mut [u8]) {
    for (at, byte) in into.iter_mut().enumerate() {
        // SAFETY: the caller's promise; a byte is always aligned.
        *byte = unsafe { AtomicU8::from_ptr(from.add(at).cast_mut()) }.load(Ordering::Relaxed);
    }
}

/// Copies bytes into shared memory.
///
/// # Safety
/// The bytes from `to` on are in a live, writable mapping, and whoever reads or writes them meanwhile does it by [`load`]
/// and [`store`] or is a device.
pub(crate) unsafe fn store(to: *mut u8, bytes: &[u8]) {
    for (at, byte) in bytes.iter().enumerate() {
        // SAFETY: the caller's promise; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(*byte, Ordering::Relaxed);
    }
}
