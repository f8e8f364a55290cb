//! Numbers and identities. Programs refer to devices and queues by numbers, such as the number of a queue pair.
//! Identities distinguish objects, and only this crate uses identities.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The identity of a device, a protection domain or a queue pair. An identity is never used again, unlike the number of
/// a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(u64);

impl Identity {
    /// Returns an identity that no other object of this process has or had.
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The first number of a device or a queue. InfiniBand reserves some of the lower numbers.
const FIRST_NUMBER: u32 = 0x11;
/// The last number of a device or a queue. The numbers of queue pairs have 24 bits.
const LAST_NUMBER: u32 = 0xff_ffff;

/// A generator of numbers for devices and queues.
#[derive(Debug)]
pub(super) struct Numbers(Mutex<NumberState>);

#[derive(Debug)]
struct NumberState {
    next: u32,
    in_use: HashSet<u32>,
}

/// The number of a device or a queue. No other device and no other queue gets this number until this value is dropped.
#[derive(Debug)]
pub(super) struct Number {
    value: u32,
    numbers: Arc<Numbers>,
}

impl Number {
    pub(super) fn get(&self) -> u32 {
        self.value
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.numbers.lock().in_use.remove(&self.value);
    }
}

impl Default for Numbers {
    fn default() -> Self {
        Self(Mutex::new(NumberState { next: FIRST_NUMBER, in_use: HashSet::new() }))
    }
}

impl Numbers {
    fn lock(&self) -> MutexGuard<'_, NumberState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next number that is not in use. The memory of the host has space for far fewer objects than there
    /// are numbers, so a number is always free.
    pub(super) fn take(self: &Arc<Self>) -> Number {
        let mut state = self.lock();
        loop {
            let value = state.next;
            state.next = if value == LAST_NUMBER { FIRST_NUMBER } else { value + 1 };
            if state.in_use.insert(value) {
                return Number { value, numbers: self.clone() };
            }
        }
    }

    /// Sets the number that is tried next.
    #[cfg(test)]
    pub(super) fn continue_at(&self, next: u32) {
        self.lock().next = next;
    }
}
