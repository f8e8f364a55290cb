//! Registered memory: the table of keys, and the only places where the device touches bytes.

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::mem::{Desc, GUARD, Region, SlotLayout, shared};
use crate::provider::soft::window::Windows;
use crate::provider::{Access, MemoryRegion, Remote, Sge, WcStatus};
use crate::units::{Lkey, QpNum, Rkey};

/// A registration, as the table has it.
#[derive(Clone, Debug)]
struct Entry {
    lkey: Lkey,
    pd: u32,
    access: Access,
    region: Arc<Region>,
    part: Range<usize>,
}

impl Entry {
    /// Where in the region `length` bytes from `addr` on are; `None`: not all of them are in the part.
    fn offset(&self, addr: u64, length: u64) -> Option<usize> {
        let first = match self.access.contains(Access::ZERO_BASED) {
            true => 0,
            false => (self.region.base().addr().get() + self.part.start) as u64,
        };
        let from = addr.checked_sub(first)?;
        let end = from.checked_add(length)?;
        (end <= self.part.len() as u64).then_some(self.part.start + from as usize)
    }

    fn place(&self, addr: u64, length: u64) -> Option<Place> {
        Some(Place { region: self.region.clone(), offset: self.offset(addr, length)?, length: length as usize })
    }
}

/// The registrations of a device.
#[derive(Debug)]
pub(super) struct Keys {
    entries: RwLock<Arc<[Entry]>>,
    pub(super) windows: Windows,
    /// Changes with every change of the entries, after it.
    generation: AtomicU64,
    next: AtomicU32,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self {
            entries: RwLock::new([].into()),
            windows: Windows::default(),
            generation: AtomicU64::new(1),
            next: AtomicU32::new(0x100),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The bytes that are registered.
    pub(super) fn bytes(&self) -> u64 {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|entry| entry.part.len() as u64).sum()
    }

    /// A key that nothing else has or had: the low 8 bits are the owner's to change.
    pub(super) fn key(&self) -> u32 {
        self.next.fetch_add(0x100, Ordering::Relaxed)
    }

    /// Whether a window may be opened so on a region.
    pub(super) fn may_bind(&self, lkey: Lkey, pd: u32, addr: u64, length: u64, access: Access) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        entries.iter().find(|entry| entry.lkey == lkey).is_some_and(|entry| {
            entry.pd == pd
                && entry.access.contains(Access::MW_BIND)
                && (!writes || entry.access.contains(Access::LOCAL_WRITE))
                && entry.offset(addr, length).is_some()
        })
    }

    fn change(&self, with: impl FnOnce(&mut Vec<Entry>)) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let mut list = entries.to_vec();
        with(&mut list);
        *entries = list.into();
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Makes an entry.
    pub(super) fn register(
        self: &Arc<Self>,
        pd: u32,
        region: Arc<Region>,
        part: Range<usize>,
        access: Access,
    ) -> SoftMr {
        let lkey = Lkey(self.key());
        self.change(|list| list.push(Entry { lkey, pd, access, region: region.clone(), part: part.clone() }));
        SoftMr(Arc::new(Registration { keys: self.clone(), lkey, pd, access, region, part }))
    }
}

/// Why local memory may not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The key is of no region, of another domain's, or does not allow it.
    Key,
    /// Not all of it is in the region.
    Bounds,
}

/// A queue pair's copy of the table: brought up to date when it has changed, without a lock when it has not.
#[derive(Debug)]
pub(super) struct KeyCache {
    keys: Arc<Keys>,
    entries: Arc<[Entry]>,
    generation: u64,
    pd: u32,
}

impl KeyCache {
    pub(super) fn new(keys: Arc<Keys>, pd: u32) -> Self {
        Self { keys, entries: [].into(), generation: 0, pd }
    }

    /// The entry that lets this element be used so, and where in its region the element is.
    fn find(&mut self, sge: &Sge, access: Access) -> Option<(&Entry, usize)> {
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

    /// The keys of the device.
    pub(super) fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// The memory that a peer's request at queue pair `qp` names, if it may be used so.
    pub(super) fn remote(&mut self, remote: Remote, length: u64, access: Access, qp: QpNum) -> Option<Place> {
        self.refresh();
        if let Some(entry) = self.entries.iter().find(|entry| entry.lkey.0 == remote.rkey.0) {
            let allowed = entry.pd == self.pd && entry.access.contains(access);
            return if allowed { entry.place(remote.addr, length) } else { None };
        }
        let lkey = self.keys.windows.through(remote, length, access, self.pd, qp)?;
        self.entries.iter().find(|entry| entry.lkey == lkey)?.place(remote.addr, length)
    }

    /// Whether all elements may be used so.
    pub(super) fn check(&mut self, sges: &[Sge], access: Access) -> Result<(), Denied> {
        let wrong = sges.iter().filter(|sge| sge.length > 0).find(|sge| self.find(sge, access).is_none());
        let Some(wrong) = wrong else { return Ok(()) };
        let entry = self.entries.iter().find(|entry| entry.lkey == wrong.lkey);
        let known = entry.is_some_and(|entry| entry.pd == self.pd && entry.access.contains(access));
        Err(if known { Denied::Bounds } else { Denied::Key })
    }

    /// Appends `length` of the bytes that the elements of a posted send name, from the `from`-th on.
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

    /// Spreads `bytes` over the elements of a posted request, from the `from`-th byte of those on.
    pub(super) fn scatter_part(&mut self, sges: &[Sge], from: u64, bytes: &[u8]) -> Result<(), WcStatus> {
        let mut done = 0;
        for sge in parts(sges, from, bytes.len() as u64) {
            let end = done + sge.length as usize;
            self.scatter(&[sge], &bytes[done..end])?;
            done = end;
        }
        if done == bytes.len() { Ok(()) } else { Err(WcStatus::LocLenErr) }
    }

    /// Appends what the elements of a posted send name.
    pub(super) fn gather(&mut self, sges: &[Sge], into: &mut Vec<u8>) -> Result<(), WcStatus> {
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let (entry, offset) = self.find(sge, Access::empty()).ok_or(WcStatus::LocProtErr)?;
            let before = into.len();
            into.resize(before + sge.length as usize, 0);
            // SAFETY: `find` has seen to it that the bytes are in the region, which the entry keeps mapped. The caller
            // of `post_send` has promised that nobody writes them until the send is done, but atomically.
            unsafe { shared::load(entry.region.base().add(offset).as_ptr(), &mut into[before..]) };
        }
        Ok(())
    }

    /// Spreads `bytes` over the elements of a posted receive.
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
            // SAFETY: as in `gather`; the caller of `post_recv` has lent these bytes to the device.
            unsafe { shared::store(entry.region.base().add(offset).as_ptr(), now) };
            bytes = later;
        }
        Ok(())
    }
}

/// The elements, or parts of them, that have `length` bytes from the `from`-th on.
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

/// Memory that a peer may use: checked. Its owner may look at it at any time, so it is read and written through atomics,
/// byte by byte, in no order: who reads it through atomics of bytes never has a data race.
#[derive(Clone, Debug)]
pub(super) struct Place {
    region: Arc<Region>,
    offset: usize,
    length: usize,
}

impl Place {
    fn at(&self, from: usize) -> *mut u8 {
        // SAFETY: `Entry::place` has seen to it that the bytes are in the region, and no caller asks for one beyond them.
        unsafe { self.region.base().add(self.offset + from.min(self.length)).as_ptr() }
    }

    /// Writes `bytes` from the `at`-th byte on; what is too much is left out.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        let from = (at as usize).min(self.length);
        let fits = bytes.len().min(self.length - from);
        // SAFETY: so many bytes are in the region, which stays mapped as long as this is. Others that touch them
        // meanwhile do it through atomics: that is what letting a peer use memory means.
        unsafe { shared::store(self.at(from), &bytes[..fits]) };
    }

    /// Appends `length` bytes from the `at`-th on.
    pub(super) fn read(&self, at: u64, length: usize, into: &mut Vec<u8>) {
        let from = (at as usize).min(self.length);
        let before = into.len();
        into.resize(before + length.min(self.length - from), 0);
        // SAFETY: as in `write`.
        unsafe { shared::load(self.at(from), &mut into[before..]) };
    }

    /// Changes eight aligned bytes, at once for all requests of peers. Returns what they were.
    pub(super) fn update(&self, change: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let first = self.at(0);
        if self.length < 8 || !first.addr().is_multiple_of(8) {
            return None;
        }
        let mut word = [0; 8];
        // SAFETY: eight bytes, mapped, and touched by others byte by byte, as above. Among requests this is one step: the
        // whole fabric is behind one lock.
        unsafe { shared::load(first, &mut word) };
        let was = u64::from_ne_bytes(word);
        if let Some(is) = change(was) {
            // SAFETY: as above.
            unsafe { shared::store(first, &is.to_ne_bytes()) };
        }
        Some(was)
    }
}

/// Copies a frame to as many bytes. One of 32 to 128 bytes, as nearly all are that come in great numbers, without a call:
/// its first bytes and its last, which may overlap.
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

/// Copies the bytes of an inline send.
pub(super) fn copy_inline(sges: &[Sge], into: &mut Vec<u8>) {
    for sge in sges.iter().filter(|sge| sge.length > 0) {
        let from = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        // SAFETY: the caller of `post_send` names its own readable bytes; of inline sends the verbs look at no key.
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
    pd: u32,
    access: Access,
    region: Arc<Region>,
    part: Range<usize>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.keys.change(|list| list.retain(|entry| entry.lkey != self.lkey));
    }
}

impl MemoryRegion for SoftMr {
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

/// The slots of runs: checked once, when they are bound.
#[derive(Debug)]
pub(super) struct Slots {
    mr: SoftMr,
    pub(super) layout: SlotLayout,
    /// The `wr_id` of a receive into slot 0.
    pub(super) recv_wr_id: u64,
    /// Whether receives may write them.
    pub(super) writable: bool,
}

impl Slots {
    /// `None`: the layout does not fit the region, or the region is another protection domain's.
    pub(super) fn new(mr: SoftMr, layout: SlotLayout, recv_wr_id: u64, pd: u32) -> Option<Self> {
        let zero_based = mr.0.access.contains(Access::ZERO_BASED);
        let sound = usize::from(layout.headroom) + GUARD <= layout.stride as usize
            && (1..=1 << 24).contains(&layout.count)
            // Slots count from the region's first byte.
            && mr.0.part.start == 0
            && layout.bytes() <= mr.0.part.end
            && mr.0.pd == pd
            && !zero_based;
        let writable = mr.0.access.contains(Access::LOCAL_WRITE);
        sound.then_some(Self { mr, layout, recv_wr_id, writable })
    }

    /// The element that a descriptor stands for.
    pub(super) fn sge(&self, desc: Desc) -> Sge {
        let offset = desc.slot as usize * self.layout.stride as usize + usize::from(desc.offset);
        let addr = (self.mr.0.region.base().addr().get() + offset) as u64;
        Sge { addr, length: u32::from(desc.len), lkey: self.mr.0.lkey }
    }

    /// The element that a slot to receive into stands for.
    pub(super) fn recv_sge(&self, slot: u32) -> Sge {
        let offset = slot as usize * self.layout.stride as usize + usize::from(self.layout.headroom);
        let addr = (self.mr.0.region.base().addr().get() + offset) as u64;
        Sge { addr, length: self.layout.room(), lkey: self.mr.0.lkey }
    }

    /// Where slot 0 begins.
    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.mr.0.region.base()
    }

    /// Where what is received into slot 0 begins.
    #[inline]
    pub(super) fn first(&self) -> NonNull<u8> {
        // SAFETY: the headroom is less than the stride, and the slots lie in the region (`new`).
        unsafe { self.start().add(usize::from(self.layout.headroom)) }
    }

    /// The bytes of a packet that is being sent. `None`: it does not lie in a slot.
    #[inline]
    pub(super) fn bytes(&self, desc: Desc) -> Option<&[u8]> {
        if !self.layout.admits(desc) {
            return None;
        }
        let offset = desc.slot as usize * self.layout.stride as usize + usize::from(desc.offset);
        // SAFETY: the packet lies in its slot, as just seen, and the slots lie in the region (`new`), which the kernel has
        // filled with zeros. The caller of `post_send_run` has promised that nobody writes it until the send is done, and
        // sends out of slots are done when they are posted.
        Some(unsafe { slice::from_raw_parts(self.mr.0.region.base().add(offset).as_ptr(), usize::from(desc.len)) })
    }

    /// Writes a frame into a slot of a posted receive.
    #[inline]
    pub(super) fn write(&self, slot: u32, bytes: &[u8]) -> Result<(), WcStatus> {
        if !self.writable || slot >= self.layout.count {
            return Err(WcStatus::LocProtErr);
        }
        if bytes.len() > self.layout.room() as usize {
            return Err(WcStatus::LocLenErr);
        }
        let offset = slot as usize * self.layout.stride as usize + usize::from(self.layout.headroom);
        // SAFETY: slot and length were checked, so the bytes lie in the slot, and the slots lie in the region (`new`), which
        // the kernel has filled with zeros. The caller of `post_recv_run` has lent the slot to the device, so nobody else looks
        // at it, and a frame of the link's own does not overlap it.
        let to = unsafe { slice::from_raw_parts_mut(self.mr.0.region.base().add(offset).as_ptr(), bytes.len()) };
        copy(to, bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_length_are_copied() {
        for length in 0..200u8 {
            let frame: Vec<u8> = (1..=length).collect();
            let mut room = [0; 200];
            copy(&mut room[..usize::from(length)], &frame);
            assert_eq!((&room[..frame.len()], room[frame.len()..].iter().any(|byte| *byte != 0)), (&frame[..], false));
        }
    }
}
