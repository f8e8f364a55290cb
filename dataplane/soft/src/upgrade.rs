//! The functions with which a program hands the queues of its devices over to another program (`dataplane upgrade`).
//!
//! The functions check the sockets of the other program, but some conditions cannot be checked:
//!
//! - [`HandedQueue::position`] must come from [`HandOver::detached`] of the program that has used the socket.
//! - The memory of the slots must be the memory of the socket, and the two programs must not use a slot at the same time.
//!
//! The functions are nevertheless safe, because the runtime, which follows the protocol of the upgrade, has no `unsafe` code.
//! So the crate `dataplane` does not re-export this module for apps, and a test ensures that only the runtime uses the
//! module.

pub use crate::hand_over::{HandOver, HandedQueue};

use crate::device::SoftDevice;

/// Returns the functions that hand the queues of a device over to another program, or `None` if the link of the device
/// cannot do this.
pub fn hand_over(device: &SoftDevice) -> Option<&dyn HandOver> {
    device.hand_over()
}
