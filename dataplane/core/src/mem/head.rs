//! Packet heads: the first bytes and the metadata of packets. Loops that only read and write headers and metadata use
//! heads.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::mem::batch::Batch;
use crate::mem::desc::Desc;
use crate::mem::meta::Meta;

impl Batch {
    /// Returns an iterator over the first `N` bytes and the metadata of every packet. The iterator is empty if any
    /// packet is shorter than `N` bytes.
    ///
    /// A loop over heads is faster than a loop over [`Batch::iter_mut`], because a head cannot label its packet (record
    /// a decision of the stage). Use heads for the common case, up to the first packet that needs a label or a new
    /// length. Handle this packet and all later packets with [`Batch::iter_mut_from`].
    ///
    /// This method removes the mark that every packet is plain IPv4 ([`Batch::is_plain_ipv4`]).
    ///
    /// ```
    /// # use dataplane_core::mem::Batch;
    /// # fn process(batch: &mut Batch) {
    /// let usual = batch.heads_mut::<14>().take_while(|head| head.bytes[12..] == [8, 0]).count();
    /// for packet in batch.iter_mut_from(usual) {
    ///     // This packet is not IPv4, or follows a packet that is not IPv4.
    /// }
    /// # }
    /// ```
    #[inline]
    pub fn heads_mut<const N: usize>(&mut self) -> Heads<'_, N> {
        self.plain = false;
        Heads::new(self)
    }

    /// Does the same as [`Batch::heads_mut`], but keeps the mark that every packet is plain IPv4
    /// ([`Batch::is_plain_ipv4`]). Use this method only in stages that do not turn a plain packet into another kind of
    /// packet.
    #[inline]
    pub fn heads_keeping_plain_ipv4<const N: usize>(&mut self) -> Heads<'_, N> {
        Heads::new(self)
    }

    /// Does the same as [`Batch::heads_keeping_plain_ipv4`], but the batch caches the start of every packet. Use this
    /// method in stages that usually run one after another. Only the first of these stages then computes the starts.
    #[inline]
    pub fn located_heads<const N: usize>(&mut self) -> Heads<'_, N, true> {
        Heads::new(self)
    }
}

/// The first `N` bytes of a packet, and its metadata.
///
/// A head cannot label its packet or change the packet's length. The length bounds and packet starts that the batch
/// caches therefore stay valid.
#[derive(Debug)]
pub struct Head<'b, const N: usize> {
    /// The first `N` bytes.
    pub bytes: &'b mut [u8; N],
    /// The length of the packet, in bytes.
    pub len: u16,
    /// Metadata that earlier stages wrote.
    pub meta: &'b mut Meta,
    #[expect(dead_code, reason = "this field holds the discriminant of `Option<Head>`")]
    niche: OptionNiche,
}

/// The field that holds the discriminant of `Option<Head>`. Without this field, the pointer of `bytes` would be the
/// discriminant. The compiler would then compute the pointer even in loops that do not read the bytes.
#[derive(Debug)]
#[repr(u8)]
enum OptionNiche {
    Yes = 1,
}

/// Iterator over the heads of a batch, in order. If `LOCATED` is set, the iterator uses the cached packet starts of the
/// batch. This is faster if several loops visit the same packets.
#[derive(Debug)]
pub struct Heads<'b, const N: usize, const LOCATED: bool = false> {
    batch: NonNull<Batch>,
    /// Start of the first slot. The iterator has its own copy of this pointer. The compiler must assume that a write
    /// through a head changes the batch, so without the copy it would load the pointer again for each head.
    slots: NonNull<u8>,
    stride: usize,
    next: usize,
    end: usize,
    life: PhantomData<&'b mut Batch>,
}

impl<'b, const N: usize, const LOCATED: bool> Heads<'b, N, LOCATED> {
    /// Returns an iterator over the heads of all packets. The iterator is empty if any packet is shorter than `N`
    /// bytes.
    #[inline]
    pub(super) fn new(batch: &'b mut Batch) -> Self {
        let end = if batch.bounds().shortest as usize >= N { batch.len() } else { 0 };
        if LOCATED {
            batch.locate();
        }
        // SAFETY: a layout has at least one slot (`SlotLayout::new`), so slot 0 exists.
        let slots = unsafe { batch.memory.slot(0) };
        let stride = batch.memory.layout.stride as usize;
        Self { next: 0, end, slots, stride, batch: NonNull::from(batch), life: PhantomData }
    }
}

impl<'b, const N: usize, const LOCATED: bool> Iterator for Heads<'b, N, LOCATED> {
    type Item = Head<'b, N>;

    #[inline]
    fn next(&mut self) -> Option<Head<'b, N>> {
        let (index, batch) = (self.next, self.batch.as_ptr());
        if index >= self.end {
            return None;
        }
        self.next += 1;
        // SAFETY: the batch is borrowed exclusively for `'b`. The index is below the length of the batch and is used
        // once, so no other head has this entry of the arrays. The packet has at least `N` bytes (see `new`), which are
        // inside its slot. The slots of a batch are distinct, and only the batch owns them. The kernel zeroed their
        // memory, so the bytes are initialised. With `LOCATED`, `new` made the cached start valid.
        unsafe {
            let Desc { slot, offset, len } = *(&raw const (*batch).descs).cast::<Desc>().add(index);
            let meta = &mut *(&raw mut (*batch).metas).cast::<Meta>().add(index);
            let found = || slot as usize * self.stride + usize::from(offset);
            let start = match LOCATED {
                true => *(&raw const (*batch).starts).cast::<usize>().add(index),
                false => found(),
            };
            debug_assert_eq!(start, found());
            Some(Head { bytes: self.slots.add(start).cast().as_mut(), len, meta, niche: OptionNiche::Yes })
        }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end - self.next;
        (left, Some(left))
    }
}

impl<const N: usize, const LOCATED: bool> ExactSizeIterator for Heads<'_, N, LOCATED> {}
