//! Registered memory that programs access only by copying bytes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::lane::message::memory::{Memory, Mr};
use crate::units::{Lkey, Rkey};
use crate::verbs::{Device, MemoryRegion, Remote, Sge};

/// Registered memory that programs access only by copying bytes. A device may write to the memory at any time. Clones
/// refer to the same buffer and can be used in other threads. The registration ends when the last clone is dropped. If
/// [`Device::checks_every_key`] is `false`, the library of the device (such as libmlx5) may access the memory even
/// after the end of the registration. The memory then stays mapped until the protection domain and all its objects are
/// dropped.
pub struct Buffer<D: Device>(Arc<Memory<D>>);

impl<D: Device> Clone for Buffer<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Device> fmt::Debug for Buffer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len()).field("lkey", &self.lkey()).finish_non_exhaustive()
    }
}

impl<D: Device> Buffer<D> {
    pub(super) fn new(memory: Arc<Memory<D>>) -> Self {
        Self(memory)
    }

    pub(super) fn mr(&self) -> &Mr<D> {
        self.0.mr()
    }

    /// Returns the length, in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the address of the first byte, as used in requests.
    pub fn addr(&self) -> u64 {
        self.0.addr()
    }

    /// Returns the local key, which requests in the same domain use.
    pub fn lkey(&self) -> Lkey {
        self.0.mr().lkey()
    }

    /// Returns the remote key, which peers use.
    pub fn rkey(&self) -> Rkey {
        self.0.mr().rkey()
    }

    /// Returns the scatter/gather element for the byte range `part`. The device, not this function, checks that the
    /// buffer contains the range. An element has at most 4 GiB minus one byte, which is longer than any message.
    pub fn sge(&self, part: Range<usize>) -> Sge {
        let length = u32::try_from(part.end.saturating_sub(part.start)).unwrap_or(u32::MAX);
        Sge { addr: self.addr().wrapping_add(part.start as u64), length, lkey: self.lkey() }
    }

    /// Returns the address and the key that a peer needs to access the bytes from `offset` on. The offset is not
    /// checked.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.addr().wrapping_add(offset as u64), rkey: self.rkey() }
    }

    /// Copies bytes out of the buffer. If a device writes at the same time, the result may mix old and new bytes.
    ///
    /// # Panics
    /// Panics if the range is not inside the buffer.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
    }

    /// Copies a part of the buffer into a new vector, like [`Buffer::read`].
    ///
    /// # Panics
    /// Panics if the part is not inside the buffer.
    pub fn to_vec(&self, part: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; part.len()];
        self.read(part.start, &mut bytes);
        bytes
    }

    /// Copies bytes into the buffer.
    ///
    /// # Panics
    /// Panics if the range is not inside the buffer.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }
}
