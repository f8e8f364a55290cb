//! The receive information of packets: what the device found out about a frame.
//!
//! The information is in the last bytes of the packet's slot, where no packet reaches. A move of a packet to another
//! batch therefore needs no copy of the information. A pool keeps the information only if a stage needs it.

use std::ptr::NonNull;

use bitflags::bitflags;

use crate::mem::desc::Desc;
use crate::mem::packet::Packet;
use crate::mem::pool::{GUARD, Pool, SlotMemory, SlotState};

bitflags! {
    /// The valid parts of [`RecvInfo`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RecvFlags: u16 {
        /// The IPv4 checksum and the TCP or UDP checksum are correct (`IBV_WC_IP_CSUM_OK`). If the flag is clear, the
        /// checksums are unknown.
        const CHECKSUM_OK = 1;
        /// The device removed the VLAN tag that `vlan` contains.
        const VLAN_STRIPPED = 1 << 1;
        /// `hash` is valid.
        const HASH = 1 << 2;
    }
}

bitflags! {
    /// The parts of [`RecvInfo`] that a stage needs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RecvFields: u8 {
        /// [`RecvFlags::CHECKSUM_OK`].
        const CHECKSUM = 1;
        /// [`RecvFlags::VLAN_STRIPPED`] and [`RecvInfo::vlan`].
        const VLAN = 1 << 1;
        /// [`RecvInfo::flow_tag`].
        const FLOW_TAG = 1 << 2;
        /// [`RecvFlags::HASH`] and [`RecvInfo::hash`].
        const HASH = 1 << 3;
    }
}

/// What a device found out about a received frame. The parts that the device did not report have their default values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RecvInfo {
    /// The valid parts of this structure.
    pub flags: RecvFlags,
    /// The removed VLAN tag: priority, drop eligible indicator and identifier. 0 without
    /// [`RecvFlags::VLAN_STRIPPED`].
    pub vlan: u16,
    /// The tag of the flow rule that matched. 0: no rule with a tag matched.
    pub flow_tag: u32,
    /// The RSS hash of the frame. 0 without [`RecvFlags::HASH`].
    pub hash: u32,
}

impl RecvInfo {
    /// The information about a packet that no device received.
    pub const NONE: Self = Self { flags: RecvFlags::empty(), vlan: 0, flow_tag: 0, hash: 0 };
}

/// The distance of the receive information from the end of its slot, in bytes.
const FROM_END: usize = 16;
// `Packet` writes up to 12 bytes from the start of a packet, even if the packet is shorter. All other writes to packets
// and heads end at or before the last byte of the packet. No write to a packet therefore reaches the receive
// information.
const _: () = assert!(FROM_END + 12 <= GUARD && size_of::<RecvInfo>() <= FROM_END);

impl SlotMemory {
    /// Returns a pointer to the receive information of a slot.
    ///
    /// # Safety
    /// `slot` must be below `layout.count`.
    #[inline]
    unsafe fn received_at(&self, slot: u32) -> NonNull<RecvInfo> {
        // SAFETY: the caller guarantees that the slot exists. Its last bytes are inside the slot, and a slot starts at
        // a multiple of 64 bytes from the start of the page-aligned region, so the pointer is aligned.
        unsafe { self.slot(slot).add(self.layout.stride() as usize - FROM_END).cast() }
    }
}

impl Pool {
    /// Keeps the receive information of packets ([`Packet::recv_info`]). Without this call, packets have no receive
    /// information. Batches and lanes must be created after this call.
    #[must_use]
    pub fn with_recv_info(mut self) -> Self {
        self.memory.keeps_received = true;
        self
    }

    /// Returns whether packets have receive information.
    #[inline]
    pub(crate) fn keeps_received(&self) -> bool {
        self.memory.keeps_received
    }

    /// Stores the receive information of received packets. If `infos` is shorter than `descs`, the remaining packets
    /// get [`RecvInfo::NONE`].
    #[inline(never)]
    pub(crate) fn set_received(&mut self, descs: &[Desc], infos: &[RecvInfo]) {
        self.moved_descs(descs, SlotState::Batched, SlotState::Batched);
        for (at, desc) in descs.iter().enumerate() {
            self.write_received(desc.slot, infos.get(at).copied().unwrap_or_default());
        }
    }

    /// Takes up to `most` free slots for packets that no device received, and removes the receive information of
    /// earlier packets from these slots.
    #[inline]
    pub(super) fn take_new(&mut self, most: usize) -> &[u32] {
        let taken = self.take(most, SlotState::Batched).len();
        let slots = self.available()..self.available() + taken;
        if self.memory.keeps_received {
            slots.clone().for_each(|at| self.write_received(self.free[at], RecvInfo::NONE));
        }
        &self.free[slots]
    }

    #[inline]
    fn write_received(&mut self, slot: u32, info: RecvInfo) {
        if slot < self.memory.layout.count() {
            // SAFETY: the slot exists. The slot is free, or belongs to a batch of this worker. The caller has exclusive
            // access to the pool or to the batch, so no packet in the slot is borrowed during this call. A device may
            // write the bytes of the guard only while the slot is posted, and the slot is not posted now.
            unsafe { self.memory.received_at(slot).write(info) };
        }
    }
}

impl Packet<'_> {
    /// Returns what the device found out about the frame when the port received it. A stage that calls this method must
    /// declare the parts that it needs with `Contract::receives`. Copies of packets, generated packets and packets
    /// from another worker have no receive information. Changes of the packet do not change the information.
    #[inline]
    pub fn recv_info(&self) -> RecvInfo {
        let memory = self.memory();
        if !memory.keeps_received {
            return RecvInfo::NONE;
        }
        // SAFETY: the slot of a packet exists, and the packet has exclusive access to it. A pool that keeps the receive
        // information writes it before it gives a slot to a batch.
        unsafe { memory.received_at(self.slot()).read() }
    }
}
