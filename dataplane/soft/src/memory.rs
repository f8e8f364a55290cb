//! Registered memory: the table of memory keys (L_Keys and R_Keys), and the code that accesses registered buffers.

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::numbers::Identity;
use crate::window::{BIND_BITS, BindRequest, BoundRange, Windows};
use dataplane_core::mem::{Desc, GUARD, Region, SlotLayout, shared};
use dataplane_core::units::{Lkey, Rkey};
use dataplane_core::verbs::{Access, MemoryRegion, Remote, Sge, WcStatus};

/// The first key. Key 0 is never used.
const FIRST_KEY: u32 = 1 << BIND_BITS.count_ones();

/// An entry of the key table: one registration.
#[derive(Clone, Debug)]
struct KeyEntry {
    lkey: Lkey,
    pd: Identity,
    access: Access,
    region: Arc<Region>,
    part: Range<usize>,
}

impl KeyEntry {
    /// Returns the offset of `addr` in the region, or `None` if the `length` bytes from `addr` are not all inside the
    /// registered part.
    fn offset(&self, addr: u64, length: u64) -> Option<usize> {
        let first = match self.access.contains(Access::ZERO_BASED) {
            true => 0,
            false => (self.region.base().addr().get() + self.part.start) as u64,
        };
        let from = addr.checked_sub(first)?;
        let end = from.checked_add(length)?;
        (end <= self.part.len() as u64).then_some(self.part.start + from as usize)
    }

    fn remote_memory(&self, addr: u64, length: u64) -> Option<RemoteMemory> {
        Some(RemoteMemory { region: self.region.clone(), offset: self.offset(addr, length)?, length: length as usize })
    }
}

/// The key table of a device.
#[derive(Debug)]
pub(super) struct Keys {
    entries: RwLock<Arc<[KeyEntry]>>,
    pub(super) windows: Windows,
    /// Incremented after every change of the entries.
    generation: AtomicU64,
    /// The key that is tried next for a registration or a window. The lock is held until the key is in use.
    next: Mutex<u32>,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self {
            entries: RwLock::new([].into()),
            windows: Windows::default(),
            generation: AtomicU64::new(1),
            next: Mutex::new(FIRST_KEY),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the number of registered bytes.
    pub(super) fn bytes(&self) -> u64 {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|entry| entry.part.len() as u64).sum()
    }

    /// Calls `insert` with a key that no registration and no window uses. `insert` must add the registration or the
    /// window to the table. The low 8 bits of the key are 0, because a memory window changes these bits with every
    /// binding. Returns `None` if all keys are in use.
    pub(super) fn with_new_key<R>(&self, insert: impl FnOnce(u32) -> R) -> Option<R> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *next;
        loop {
            let key = *next;
            *next = key.checked_add(1 << BIND_BITS.count_ones()).unwrap_or(FIRST_KEY);
            if !self.is_in_use(key) {
                return Some(insert(key));
            }
            if *next == first {
                return None;
            }
        }
    }

    fn is_in_use(&self, key: u32) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().any(|entry| entry.lkey.0 == key) || self.windows.contains(Rkey(key))
    }

    /// Sets the key that is tried next.
    #[cfg(test)]
    pub(super) fn continue_at(&self, key: u32) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// Binds a memory window. Returns `false` if the region or the window does not allow the binding.
    pub(super) fn bind(&self, binding: &BindRequest, pd: Identity, qp: Identity) -> bool {
        let BoundRange { lkey, addr, length, access } = binding.to;
        let allowed = length == 0 || self.may_bind(lkey, pd, addr, length, access);
        allowed && self.windows.bind(binding, pd, qp)
    }

    /// Returns whether the region with this key allows a window with this range and access.
    fn may_bind(&self, lkey: Lkey, pd: Identity, addr: u64, length: u64, access: Access) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        entries.iter().find(|entry| entry.lkey == lkey).is_some_and(|entry| {
            entry.pd == pd
                && entry.access.contains(Access::MW_BIND)
                && (!writes || entry.access.contains(Access::LOCAL_WRITE))
                && entry.offset(addr, length).is_some()
        })
    }

    fn change(&self, with: impl FnOnce(&mut Vec<KeyEntry>)) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let mut list = entries.to_vec();
        with(&mut list);
        *entries = list.into();
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Registers memory. Returns `None` if all keys are in use.
    pub(super) fn register(
        self: &Arc<Self>,
        pd: Identity,
        region: Arc<Region>,
        part: Range<usize>,
        access: Access,
    ) -> Option<SoftMr> {
        self.with_new_key(|key| {
            let lkey = Lkey(key);
            self.change(|list| list.push(KeyEntry { lkey, pd, access, region: region.clone(), part: part.clone() }));
            SoftMr(Arc::new(Registration { keys: self.clone(), lkey, pd, access, region, part }))
        })
    }
}

/// The reason why an access to local memory is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The key is unknown, belongs to another protection domain, or does not permit the access.
    Key,
    /// The range is not fully inside the registered part of the region.
    Bounds,
}

/// A queue pair's copy of the key table. Reading the copy needs no lock. After a change of the table, the queue pair
/// copies the table again.
#[derive(Debug)]
pub(super) struct KeyCache {
    keys: Arc<Keys>,
    entries: Arc<[KeyEntry]>,
    generation: u64,
    pd: Identity,
}

impl KeyCache {
    pub(super) fn new(keys: Arc<Keys>, pd: Identity) -> Self {
        Self { keys, entries: [].into(), generation: 0, pd }
    }

    /// Returns the table entry that permits this access to an element, and the element's offset in the region.
    fn find(&mut self, sge: &Sge, access: Access) -> Option<(&KeyEntry, usize)> {
        self.refresh();
        let entry = self.entries.iter().find(|entry| entry.lkey == sge.lkey)?;
        let offset = entry.offset(sge.addr, u64::from(sge.length))?;
        (entry.pd == self.pd && entry.access.contains(access)).then_some((entry, offset))
    }

    #[inline]
    fn refresh(&mut self) {
        let now = self.keys.generation.load(Ordering::Acquire);
        if now != self.generation {
            self.entries = self.keys.entries.read().unwrap_or_else(PoisonError::into_inner).clone();
            self.generation = now;
        }
    }

    /// Returns the key table of the device.
    pub(super) fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Returns the memory at `remote`, for a request that queue pair `qp` received from its peer. Returns `None` if the
    /// access is not permitted.
    pub(super) fn remote(&mut self, remote: Remote, length: u64, access: Access, qp: Identity) -> Option<RemoteMemory> {
        self.refresh();
        if let Some(entry) = self.entries.iter().find(|entry| entry.lkey.0 == remote.rkey.0) {
            let allowed = entry.pd == self.pd && entry.access.contains(access);
            return if allowed { entry.remote_memory(remote.addr, length) } else { None };
        }
        let lkey = self.keys.windows.through(remote, length, access, self.pd, qp)?;
        self.entries.iter().find(|entry| entry.lkey == lkey)?.remote_memory(remote.addr, length)
    }

    /// Returns whether any region or bound window of the device has this key, with any access and in any protection
    /// domain.
    pub(super) fn is_known(&mut self, rkey: Rkey) -> bool {
        self.refresh();
        self.entries.iter().any(|entry| entry.lkey.0 == rkey.0) || self.keys.windows.is_bound(rkey)
    }

    /// Checks whether this access is permitted for all elements.
    pub(super) fn check(&mut self, sges: &[Sge], access: Access) -> Result<(), Denied> {
        let wrong = sges.iter().filter(|sge| sge.length > 0).find(|sge| self.find(sge, access).is_none());
        let Some(wrong) = wrong else { return Ok(()) };
        let entry = self.entries.iter().find(|entry| entry.lkey == wrong.lkey);
        let known = entry.is_some_and(|entry| entry.pd == self.pd && entry.access.contains(access));
        Err(if known { Denied::Bounds } else { Denied::Key })
    }

    /// Appends a part of a posted send's data to `into`. The part starts at byte `from` of the data.
    pub(super) fn gather_part(
        &mut self,
        sges: &[Sge],
        from: u64,
        length: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), WcStatus> {
        for sge in parts(sges, from, length as u64) {
            self.gather(&[sge], into)?;
        }
        Ok(())
    }

    /// Writes all of `bytes` to the buffers of a posted request. The first byte goes to position `from` of the buffers.
    pub(super) fn scatter_part(&mut self, sges: &[Sge], from: u64, bytes: &[u8]) -> Result<(), WcStatus> {
        let mut done = 0;
        for sge in parts(sges, from, bytes.len() as u64) {
            let end = done + sge.length as usize;
            self.scatter(&[sge], &bytes[done..end])?;
            done = end;
        }
        if done == bytes.len() { Ok(()) } else { Err(WcStatus::LocLenErr) }
    }

    /// Appends all bytes of a posted send's data to `into`.
    pub(super) fn gather(&mut self, sges: &[Sge], into: &mut Vec<u8>) -> Result<(), WcStatus> {
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let (entry, offset) = self.find(sge, Access::empty()).ok_or(WcStatus::LocProtErr)?;
            let before = into.len();
            into.resize(before + sge.length as usize, 0);
            // SAFETY: `find` has checked that the bytes are in the region, and the entry keeps the region mapped. The
            // caller of `post_send` guarantees that the bytes are written only through atomics until the send is done.
            unsafe { shared::load(entry.region.base().add(offset).as_ptr(), &mut into[before..]) };
        }
        Ok(())
    }

    /// Writes `bytes` to the buffers of a posted request.
    pub(super) fn scatter(&mut self, sges: &[Sge], mut bytes: &[u8]) -> Result<(), WcStatus> {
        if sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>() < bytes.len() as u64 {
            return Err(WcStatus::LocLenErr);
        }
        for sge in sges {
            let (now, later) = bytes.split_at(bytes.len().min(sge.length as usize));
            if now.is_empty() {
                continue;
            }
            let (entry, offset) = self.find(sge, Access::LOCAL_WRITE).ok_or(WcStatus::LocProtErr)?;
            // SAFETY: as in `gather`. The caller of `post_recv` gave these bytes to the device.
            unsafe { shared::store(entry.region.base().add(offset).as_ptr(), now) };
            bytes = later;
        }
        Ok(())
    }
}

/// Returns the elements, or parts of elements, that contain `length` bytes starting at byte `from`.
fn parts(sges: &[Sge], from: u64, length: u64) -> impl Iterator<Item = Sge> {
    let (mut skip, mut left) = (from, length);
    sges.iter().filter_map(move |sge| {
        let passed = skip.min(u64::from(sge.length));
        skip -= passed;
        let now = (u64::from(sge.length) - passed).min(left);
        left -= now;
        (now > 0).then(|| Sge { addr: sge.addr.wrapping_add(passed), length: now as u32, lkey: sge.lkey })
    })
}

/// Memory that a peer may access, after the checks of bounds and access rights. The owner may access the memory at any
/// time. The device therefore reads and writes the memory through byte atomics, in no particular order. If the owner
/// also uses byte atomics, there is no data race.
#[derive(Clone, Debug)]
pub(super) struct RemoteMemory {
    region: Arc<Region>,
    offset: usize,
    length: usize,
}

impl RemoteMemory {
    fn at(&self, from: usize) -> *mut u8 {
        // SAFETY: `KeyEntry::remote_memory` has checked that the bytes are in the region, and `min` keeps the offset
        // within them.
        unsafe { self.region.base().add(self.offset + from.min(self.length)).as_ptr() }
    }

    /// Writes `bytes` starting at byte `at`. Bytes beyond the end of the memory are ignored.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        let from = (at as usize).min(self.length);
        let fits = bytes.len().min(self.length - from);
        // SAFETY: the bytes are in the region, which `self` keeps mapped. Other code accesses them only through
        // atomics, which is the rule for memory that a peer may access.
        unsafe { shared::store(self.at(from), &bytes[..fits]) };
    }

    /// Appends `length` bytes, starting at byte `at`, to `into`.
    pub(super) fn read(&self, at: u64, length: usize, into: &mut Vec<u8>) {
        let from = (at as usize).min(self.length);
        let before = into.len();
        into.resize(before + length.min(self.length - from), 0);
        // SAFETY: as in `write`.
        unsafe { shared::load(self.at(from), &mut into[before..]) };
    }

    /// Performs an atomic operation on the first eight bytes, and returns the old value. The operation is atomic with
    /// respect to all requests of peers. Returns `None` if the bytes are not aligned or not inside the memory.
    pub(super) fn update(&self, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let first = self.at(0);
        if self.length < 8 || !first.addr().is_multiple_of(8) {
            return None;
        }
        let mut word = [0; 8];
        // SAFETY: these are eight mapped bytes, and other code accesses them only through byte atomics, as in `write`.
        // Requests of peers cannot interleave, because one lock protects the whole fabric.
        unsafe { shared::load(first, &mut word) };
        let was = u64::from_ne_bytes(word);
        if let Some(is) = change(was) {
            // SAFETY: as above.
            unsafe { shared::store(first, &is.to_ne_bytes()) };
        }
        Some(was)
    }
}

/// Copies a frame to a slice of the same length. Most frames have 32 to 128 bytes. For these lengths, the function
/// copies the first and the last 32 or 64 bytes, which may overlap, and does not call `memcpy`.
#[inline]
pub(super) fn copy(to: &mut [u8], frame: &[u8]) {
    match frame.len() {
        32..=64 => copy_ends::<32>(to, frame),
        65..=128 => copy_ends::<64>(to, frame),
        _ => to.copy_from_slice(frame),
    }
}

#[inline]
fn copy_ends<const N: usize>(to: &mut [u8], frame: &[u8]) {
    debug_assert_eq!(to.len(), frame.len());
    if let (Some(to), Some(first)) = (to.first_chunk_mut::<N>(), frame.first_chunk()) {
        *to = *first;
    }
    if let (Some(to), Some(last)) = (to.last_chunk_mut::<N>(), frame.last_chunk()) {
        *to = *last;
    }
}

/// Appends the bytes of an inline send to `into`.
pub(super) fn copy_inline(sges: &[Sge], into: &mut Vec<u8>) {
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        let from = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: the caller of `post_send` passes its own readable bytes. Keys are not checked for inline sends.
        into.extend_from_slice(unsafe { slice::from_raw_parts(from, sge.length as usize) });
    }
}

/// A memory region of the software device.
#[derive(Clone, Debug)]
pub struct SoftMr(Arc<Registration>);

#[derive(Debug)]
struct Registration {
    keys: Arc<Keys>,
    lkey: Lkey,
    pd: Identity,
    access: Access,
    region: Arc<Region>,
    part: Range<usize>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.keys.change(|list| list.retain(|entry| entry.lkey != self.lkey));
    }
}

// SAFETY: clones share one entry, and the region of the entry never changes.
unsafe impl MemoryRegion for SoftMr {
    fn lkey(&self) -> Lkey {
        self.0.lkey
    }

    fn rkey(&self) -> Rkey {
        Rkey(self.0.lkey.0)
    }

    fn region(&self) -> &Arc<Region> {
        &self.0.region
    }
}

/// The slots (packet buffers of the pool) of a queue pair. [`Slots::new`] checks once that all slots lie in the region.
#[derive(Debug)]
pub(super) struct Slots {
    mr: SoftMr,
    pub(super) layout: SlotLayout,
    /// The `wr_id` of a receive into slot 0.
    pub(super) recv_wr_id: u64,
    /// Whether receives may write to the slots.
    pub(super) writable: bool,
}

impl Slots {
    /// Returns `None` if the layout does not fit the region, or if the region belongs to another protection domain.
    pub(super) fn new(mr: SoftMr, layout: SlotLayout, recv_wr_id: u64, pd: Identity) -> Option<Self> {
        let zero_based = mr.0.access.contains(Access::ZERO_BASED);
        let sound = usize::from(layout.headroom()) + GUARD <= layout.stride() as usize
            && (1..=1 << 24).contains(&layout.count())
            // Slot 0 starts at the region's first byte.
            && mr.0.part.start == 0
            && layout.bytes() <= mr.0.part.end
            && mr.0.pd == pd
            && !zero_based;
        let writable = mr.0.access.contains(Access::LOCAL_WRITE);
        sound.then_some(Self { mr, layout, recv_wr_id, writable })
    }

    /// Returns the scatter/gather element of a descriptor.
    pub(super) fn sge(&self, desc: Desc) -> Sge {
        let offset = desc.slot as usize * self.layout.stride() as usize + usize::from(desc.offset);
        let addr = (self.mr.0.region.base().addr().get() + offset) as u64;
        Sge { addr, length: u32::from(desc.len), lkey: self.mr.0.lkey }
    }

    /// Returns the scatter/gather element of a receive slot.
    pub(super) fn recv_sge(&self, slot: u32) -> Sge {
        let offset = slot as usize * self.layout.stride() as usize + usize::from(self.layout.headroom());
        let addr = (self.mr.0.region.base().addr().get() + offset) as u64;
        Sge { addr, length: self.layout.room(), lkey: self.mr.0.lkey }
    }

    /// Returns the address of slot 0.
    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.mr.0.region.base()
    }

    /// Returns the address in slot 0 at which received frames start.
    #[inline]
    pub(super) fn first(&self) -> NonNull<u8> {
        // SAFETY: the headroom is less than the stride, and the slots lie in the region (see `new`).
        unsafe { self.start().add(usize::from(self.layout.headroom())) }
    }

    /// Returns the bytes of a packet that is being sent, or `None` if the packet does not lie in a slot.
    #[inline]
    pub(super) fn bytes(&self, desc: Desc) -> Option<&[u8]> {
        if !self.layout.admits(desc) {
            return None;
        }
        let offset = desc.slot as usize * self.layout.stride() as usize + usize::from(desc.offset);
        // SAFETY: the check above has shown that the packet lies in its slot. The slots lie in the region (see `new`).
        // The kernel filled the region with zeros, so the bytes are initialized. The caller of `post_send_run`
        // guarantees that no code writes the packet until the send is done. A send from a slot is done before the post
        // returns.
        Some(unsafe { slice::from_raw_parts(self.mr.0.region.base().add(offset).as_ptr(), usize::from(desc.len)) })
    }

    /// Writes a frame into the slot of a posted receive.
    #[inline]
    pub(super) fn write(&self, slot: u32, bytes: &[u8]) -> Result<(), WcStatus> {
        if !self.writable || slot >= self.layout.count() {
            return Err(WcStatus::LocProtErr);
        }
        if bytes.len() > self.layout.room() as usize {
            return Err(WcStatus::LocLenErr);
        }
        let offset = slot as usize * self.layout.stride() as usize + usize::from(self.layout.headroom());
        // SAFETY: slot and length were checked, so the bytes lie in the slot. The slots lie in the region (see `new`).
        // The kernel filled the region with zeros, so the bytes are initialized. The caller of `post_recv_run` gave the
        // slot to the device, so no other code accesses it. A frame of the link is not in the region, so `bytes` does
        // not overlap the slot.
        let to = unsafe { slice::from_raw_parts_mut(self.mr.0.region.base().add(offset).as_ptr(), bytes.len()) };
        copy(to, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dataplane_core::mem::{PageKind, RegionSpec};

    use super::*;

    /// A peer and the owner access the same bytes at the same time. Neither changes bytes outside of the registered
    /// part.
    #[test]
    fn concurrent_accesses_stay_inside_the_registered_part() {
        let spec = RegionSpec { bytes: 4096, pages: PageKind::Normal, strict: false, node: None };
        let region: Arc<Region> = Region::allocate(spec).unwrap().0.into();
        let (keys, pd) = (Arc::new(Keys::new()), Identity::new());
        let register =
            |part| keys.register(pd, region.clone(), part, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let (whole, mr) = (register(0..256), register(64..128));
        let first = (region.base().addr().get() + 64) as u64;
        let sge = |at: u64, length| Sge { addr: first + at, length, lkey: mr.lkey() };
        let mut cache = KeyCache::new(keys.clone(), pd);
        let remote = |at: u64| {
            let remote = Remote { addr: first + at, rkey: mr.rkey() };
            KeyCache::new(keys.clone(), pd).remote(remote, 64, Access::REMOTE_WRITE, Identity::new())
        };
        assert!(remote(1).is_none());
        assert_eq!(cache.gather(&[sge(1, 64)], &mut Vec::new()), Err(WcStatus::LocProtErr));
        let memory = remote(0).unwrap();
        // Only the first four of these 20 bytes fit into the memory.
        memory.write(60, &[7; 20]);
        assert_eq!(memory.update(|word| Some(word + 5)), Some(0));
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=20).for_each(|byte| memory.write(8, &[byte; 16])));
            for _ in 0..20 {
                let mut bytes = Vec::new();
                cache.gather(&[sge(8, 16)], &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte <= 20));
                cache.scatter(&[sge(16, 8), sge(30, 4)], &[9; 12]).unwrap();
            }
        });
        memory.write(8, &[20; 16]);
        let mut bytes = Vec::new();
        cache.gather(&[Sge { addr: first - 64, length: 256, lkey: whole.lkey() }], &mut bytes).unwrap();
        let mut expected = [0; 256];
        expected[64..72].copy_from_slice(&5u64.to_ne_bytes());
        expected[72..88].fill(20);
        expected[94..98].fill(9);
        expected[124..128].fill(7);
        assert_eq!(bytes, expected);
        let mut end = Vec::new();
        memory.read(60, 20, &mut end);
        assert_eq!(end, [7; 4]);
    }

    #[test]
    fn copy_is_exact_for_every_frame_length() {
        let lengths: Vec<u8> = if cfg!(miri) { vec![0, 31, 32, 64, 65, 128, 129] } else { (0..200).collect() };
        for length in lengths {
            let frame: Vec<u8> = (1..=length).collect();
            let mut room = [0; 200];
            copy(&mut room[..usize::from(length)], &frame);
            assert_eq!((&room[..frame.len()], room[frame.len()..].iter().any(|byte| *byte != 0)), (&frame[..], false));
        }
    }
}
