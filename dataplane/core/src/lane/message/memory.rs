//! The registered memory of the buffers of a message domain.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::mem::{Region, shared};
use crate::verbs::{Device, ProtectionDomain, Sge};

/// The memory region type of a device.
pub(super) type Mr<D> = <<D as Device>::Pd as ProtectionDomain>::Mr;

/// A registration of the first `len` bytes of a region. No other code has the region, so no reference to these bytes
/// exists.
#[derive(Debug)]
pub(super) struct Memory<D: Device> {
    // Declared first: the registration must end before the region is unmapped.
    mr: Mr<D>,
    /// The registered region. The program accesses the bytes through this region, so each access is in bounds even if a
    /// provider returns another region.
    region: Arc<Region>,
    len: usize,
}

impl<D: Device> Memory<D> {
    /// Panics if the region is shorter than `len` bytes.
    pub(super) fn new(mr: Mr<D>, region: Arc<Region>, len: usize) -> Self {
        assert!(len <= region.len(), "{len} bytes of a region of {}", region.len());
        Self { mr, region, len }
    }

    pub(super) fn mr(&self) -> &Mr<D> {
        &self.mr
    }

    pub(super) fn addr(&self) -> u64 {
        self.region.base().as_ptr().expose_provenance() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns a pointer to the first of `length` bytes at `offset`. Panics if any of these bytes is outside the
    /// buffer.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.len);
        assert!(inside, "{length} bytes at {offset} of a buffer of {}", self.len);
        // SAFETY: `new` checks that the region has `len` bytes, and the assertion above checks that the range is inside
        // these bytes.
        unsafe { self.region.base().as_ptr().add(offset) }
    }

    pub(super) fn read(&self, offset: usize, into: &mut [u8]) {
        // SAFETY: `at` checks the range, and the region is mapped as long as `self` lives. The program accesses buffer
        // memory only with `load` and `store`. Every other access is an access of a device.
        unsafe { shared::load(self.at(offset, into.len()), into) }
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: as in `read`.
        unsafe { shared::store(self.at(offset, bytes.len()), bytes) }
    }
}

/// A memory of the list, with its addresses. [`Memories::find`] upgrades only the memory that contains the wanted address,
/// and returns this memory to its caller. A memory is therefore never dropped while the list is locked.
#[derive(Debug)]
struct ListedMemory<D: Device> {
    addresses: Range<u64>,
    memory: Weak<Memory<D>>,
}

/// The memory of all buffers of one domain that are still registered.
#[derive(Debug)]
pub(super) struct Memories<D: Device> {
    list: Mutex<Vec<ListedMemory<D>>>,
    checks_every_key: bool,
}

impl<D: Device> Memories<D> {
    pub(super) fn new(device: &D) -> Self {
        Self { list: Mutex::default(), checks_every_key: device.checks_every_key() }
    }

    /// See [`Device::checks_every_key`].
    pub(super) fn checks_every_key(&self) -> bool {
        self.checks_every_key
    }

    pub(super) fn add(&self, memory: &Arc<Memory<D>>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|other| other.memory.strong_count() > 0);
        let addr = memory.addr();
        let addresses = addr..addr + memory.len() as u64;
        list.push(ListedMemory { addresses, memory: Arc::downgrade(memory) });
    }

    /// Returns the memory that contains all `length` bytes at `addr`, and the offset of the first byte in that memory.
    pub(super) fn find(&self, addr: u64, length: usize) -> Option<(Arc<Memory<D>>, usize)> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let end = addr.checked_add(length as u64)?;
        let contains = |range: &Range<u64>| range.start <= addr && end <= range.end;
        list.iter()
            .filter(|listed| contains(&listed.addresses))
            .find_map(|listed| Some((listed.memory.upgrade()?, usize::try_from(addr - listed.addresses.start).ok()?)))
    }

    /// Returns `true` if a queue may post requests with these elements: the device checks every key, or all elements
    /// are inside buffers of the domain. The address of an element without bytes is not checked. Some libraries read from
    /// the first element of raw packets and atomics even if this element has no bytes, but the provider refuses these
    /// requests.
    pub(super) fn permits<'s>(&self, elements: impl IntoIterator<Item = &'s [Sge]>) -> bool {
        let is_known = |sge: &Sge| sge.length == 0 || self.find(sge.addr, sge.length as usize).is_some();
        self.checks_every_key || elements.into_iter().all(|sges| sges.iter().all(is_known))
    }
}
