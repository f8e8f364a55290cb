//! The trait of links that copy frames.

use std::os::fd::BorrowedFd;

use crate::counters::Counting;
use crate::memory::Slots;
use dataplane_core::mem::{Run, SlotLayout};
use dataplane_core::units::Nanos;
use dataplane_core::verbs::WcStatus;

/// State of a frame that was passed to [`Wire::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The frame has been sent.
    Gone,
    /// The frame is queued. [`Wire::flush`] sends it.
    Waits,
}

/// A queue pair's end of a link that copies frames. The default methods suit a link whose received frames are queued in
/// the kernel.
pub(crate) trait Wire {
    /// Starts receiving.
    ///
    /// # Errors
    /// Returns the `errno` of the failure. [`Link::error`](super::Link::error) may have more details.
    fn open(&mut self) -> Result<(), i32> {
        Ok(())
    }

    /// Stops receiving. Returns the number of frames that were still queued, which are lost.
    fn close(&mut self) -> u64 {
        0
    }

    /// Calls `deliver` with the next frame and the wall-clock receive time of the frame. The time is `None` if the wire
    /// has no timestamp. Returns `false` if no frame has arrived.
    fn take(&mut self, counts: &Counting, deliver: impl FnOnce(&[u8], Option<Nanos>)) -> bool;

    /// Sends a frame.
    fn send(&mut self, frame: &[u8], counts: &Counting) -> Result<Sent, WcStatus>;

    /// Returns whether the caller must call [`Wire::flush`] before the next [`Wire::send`].
    #[inline]
    fn is_full(&self) -> bool {
        false
    }

    /// Sends the queued frames. Calls `each` for every frame, in order, with the frame's length or its error.
    #[inline]
    fn flush(&mut self, _counts: &Counting, _each: impl FnMut(Result<usize, WcStatus>)) {}

    /// Returns the number of frames that have arrived and were not taken, or a lower bound of this number. `u64::MAX`
    /// means that the source is unlimited.
    #[inline]
    fn backlog(&mut self) -> u64 {
        0
    }

    /// Drops the due frames for which there is no posted receive. `room` is the number of posted receives. Returns the
    /// number of dropped frames. Only a wire that generates frames at its own rate implements this method.
    #[inline]
    fn skip_beyond(&mut self, _room: u64) -> u64 {
        0
    }

    /// Returns whether a frame stays queued if no receive is posted. If `false`, the frame is lost.
    fn waits(&self) -> bool {
        true
    }

    /// Prepares for slots of this layout. Returns whether [`Wire::write`] can write frames to these slots.
    fn bind(&mut self, _layout: SlotLayout) -> bool {
        false
    }

    /// Writes frames into the slots `part` and the frames' lengths into `lengths`. Returns the total length, in bytes.
    /// The caller requests at most [`Wire::backlog`] frames. Only wires with frames in memory implement this method.
    #[inline]
    fn write(&mut self, _slots: &Slots, _part: &[u32], _lengths: &mut [u32]) -> u64 {
        0
    }

    /// Prepares the slots `part` for [`Wire::write`]. Called when the slots are posted.
    fn prepare(&mut self, _slots: &Slots, _part: &[u32]) {}

    /// Returns the slot index below which all slots are prepared. Returns `None` if slots need no preparation.
    fn prepared(&self) -> Option<u32> {
        None
    }

    /// Returns whether the wire only counts sent frames and discards them.
    fn discards(&self) -> bool {
        false
    }

    /// Returns whether the wire copies sent frames before it discards them.
    fn copies_out(&self) -> bool {
        false
    }

    /// Copies sent frames. Called only if [`Wire::copies_out`] returns `true`.
    fn copy_out(&mut self, _slots: &Slots, _run: &Run<'_>) {}

    /// Returns whether the wire is a kernel interface. While the link is down, sends on an interface fail. On other
    /// wires, the sent frames are lost.
    fn is_interface(&self) -> bool {
        false
    }

    /// Returns the file descriptor that becomes readable when a frame arrives, or `None` if the wire has no such
    /// descriptor at this time.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns whether no more frames will arrive.
    fn ended(&self) -> bool {
        false
    }

    /// Returns the number of frames lost since the last call because the receiver was too slow.
    fn missed(&mut self) -> u64 {
        0
    }
}
