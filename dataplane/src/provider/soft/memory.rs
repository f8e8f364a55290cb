//! Registered memory: the table of keys, and the only places where the device touches bytes.

use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::mem::{Desc, GUARD, Region, SlotLayout, shared};
use crate::provider::{Access, MemoryRegion, Sge, WcStatus};
use crate::units::{Lkey, Rkey};

/// A registration, as the table has it.
#[derive(Clone, Debug)]
struct Entry {
    lkey: Lkey,
    pd: u32,
    access: Access,
    region: Arc<Region>,
    part: Range<usize>,
}

/// The registrations of a device.
#[derive(Debug)]
pub(super) struct Keys {
    entries: RwLock<Arc<[Entry]>>,
    /// Changes with every change of the entries, after it.
    generation: AtomicU64,
    next: AtomicU32,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { entries: RwLock::new([].into()), generation: AtomicU64::new(1), next: AtomicU32::new(0x100) }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
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
        let lkey = Lkey(self.next.fetch_add(1, Ordering::Relaxed));
        self.change(|list| list.push(Entry { lkey, pd, access, region: region.clone(), part: part.clone() }));
        SoftMr(Arc::new(Registration { keys: self.clone(), lkey, pd, access, region, part }))
    }
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

    /// The entry that lets this element be used so.
    fn find(&mut self, sge: &Sge, access: Access) -> Option<&Entry> {
        let now = self.keys.generation.load(Ordering::Acquire);
        if now != self.generation {
            self.entries = self.keys.entries.read().unwrap_or_else(PoisonError::into_inner).clone();
            self.generation = now;
        }
        let entry = self.entries.iter().find(|entry| entry.lkey == sge.lkey)?;
        let base = entry.region.base().addr().get() + entry.part.start;
        let inside = sge
            .addr
            .checked_sub(base as u64)
            .and_then(|from| from.checked_add(u64::from(sge.length)))
            .is_some_and(|end| end <= entry.part.len() as u64);
        (inside && entry.pd == self.pd && entry.access.contains(access)).then_some(entry)
    }

    /// Appends what the elements of a posted send name.
    pub(super) fn gather(&mut self, sges: &[Sge], into: &mut Vec<u8>) -> Result<(), WcStatus> {
        for sge in sges.iter().filter(|sge| sge.length > 0) {
            let entry = self.find(sge, Access::empty()).ok_or(WcStatus::LocProtErr)?;
            let offset = sge.addr as usize - entry.region.base().addr().get();
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
            let entry = self.find(sge, Access::LOCAL_WRITE).ok_or(WcStatus::LocProtErr)?;
            let offset = sge.addr as usize - entry.region.base().addr().get();
            // SAFETY: as in `gather`; the caller of `post_recv` has lent these bytes to the device.
            unsafe { shared::store(entry.region.base().add(offset).as_ptr(), now) };
            bytes = later;
        }
        Ok(())
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
        let sound = usize::from(layout.headroom) + GUARD <= layout.stride as usize
            && (1..=1 << 24).contains(&layout.count)
            // Slots count from the region's first byte.
            && mr.0.part.start == 0
            && layout.bytes() <= mr.0.part.end
            && mr.0.pd == pd;
        let writable = mr.0.access.contains(Access::LOCAL_WRITE);
        sound.then_some(Self { mr, layout, recv_wr_id, writable })
    }

    /// The element that a descriptor stands for.
    pub(super) fn sge(&self, desc: Desc) -> Sge {
        let offset = desc.slot as usize * self.layout.stride as usize + usize::from(desc.offset);
        let addr = (self.mr.0.region.base().addr().get() + offset) as u64;
        Sge { addr, length: u32::from(desc.len), lkey: self.mr.0.lkey }
    }

    /// Writes a frame into a slot of a posted receive.
    pub(super) fn write(&self, slot: u32, bytes: &[u8]) -> Result<(), WcStatus> {
        if !self.writable || slot >= self.layout.count {
            return Err(WcStatus::LocProtErr);
        }
        if bytes.len() > self.layout.room() as usize {
            return Err(WcStatus::LocLenErr);
        }
        let offset = slot as usize * self.layout.stride as usize + usize::from(self.layout.headroom);
        // SAFETY: slot and length were checked, so the bytes lie in the slot, and the slots lie in the region (`new`).
        // The caller of `post_recv_run` has lent the slot to the device. A frame of the link's own does not overlap it.
        unsafe { self.mr.0.region.base().add(offset).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }
}
