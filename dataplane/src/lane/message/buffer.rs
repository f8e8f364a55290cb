//! Registered memory that is only ever copied to and from.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::lane::message::Mr;
use crate::mem::shared;
use crate::provider::{Device, MemoryRegion, Remote, Sge};
use crate::units::{Lkey, Rkey};

/// A registration of a region's first bytes. It owns the region: nobody else has it, so nobody has a reference to its
/// bytes.
#[derive(Debug)]
pub(super) struct Memory<D: Device> {
    mr: Mr<D>,
    len: usize,
}

impl<D: Device> Memory<D> {
    pub(super) fn new(mr: Mr<D>, len: usize) -> Self {
        Self { mr, len }
    }

    pub(super) fn mr(&self) -> &Mr<D> {
        &self.mr
    }

    pub(super) fn addr(&self) -> u64 {
        self.mr.region().base().as_ptr().expose_provenance() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first of `length` bytes at `offset`.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.len);
        assert!(inside, "{length} bytes at {offset} of a buffer of {}", self.len);
        // SAFETY: inside of the region, as has just been seen.
        unsafe { self.mr.region().base().as_ptr().add(offset) }
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        // SAFETY: `at` answers for the range, and the region is mapped as long as `self` is there. All access to the
        // memory of buffers is by `load` and `store`, or by a device.
        unsafe { shared::load(self.at(offset, into.len()), into) }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: as in `read`.
        unsafe { shared::store(self.at(offset, bytes.len()), bytes) }
    }
}

/// Registered memory. It is copied to and from, and a device may write it at any time. Clones are the same buffer, also
/// in other threads; its registration ends with the last one.
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

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The address of its first byte, as requests name it.
    pub fn addr(&self) -> u64 {
        self.0.addr()
    }

    /// The key that names it in requests of its domain.
    pub fn lkey(&self) -> Lkey {
        self.0.mr().lkey()
    }

    /// The key by which a peer names it.
    pub fn rkey(&self) -> Rkey {
        self.0.mr().rkey()
    }

    /// The scatter/gather element of a part. It is not looked at whether the buffer has such a part: the device does.
    pub fn sge(&self, part: Range<usize>) -> Sge {
        let length = part.end.saturating_sub(part.start) as u32;
        Sge { addr: self.addr().wrapping_add(part.start as u64), length, lkey: self.lkey() }
    }

    /// What a peer must know to reach the bytes from `offset` on. It is not looked at whether there are any.
    pub fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.addr().wrapping_add(offset as u64), rkey: self.rkey() }
    }

    /// Copies bytes out. What a device writes meanwhile may be seen in part.
    ///
    /// # Panics
    /// They are not all in the buffer.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.0.read(offset, into);
    }

    /// As [`Buffer::read`], into a new vector.
    ///
    /// # Panics
    /// They are not all in the buffer.
    pub fn to_vec(&self, part: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; part.len()];
        self.read(part.start, &mut bytes);
        bytes
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// They are not all in the buffer.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }
}
