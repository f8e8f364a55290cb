//! The atomics and locks of the algorithms that loom checks.
//!
//! Without `cfg(loom)`, every name is the type of the standard library, so the algorithms have no extra instructions.
//! With `cfg(loom)`, the names are the types of [loom](https://docs.rs/loom). The command `tools/verify loom` then runs
//! each model with every interleaving of its threads, up to a limited number of preemptions.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(loom))]
#[doc(no_inline)]
pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
#[doc(no_inline)]
pub use std::sync::{Arc, Mutex, MutexGuard};
