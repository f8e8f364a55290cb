//! Packet descriptors: where the bytes of a packet are.

/// A descriptor as one 64-bit word.
pub(super) type DescWord = u64;

/// The location of the bytes of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Desc {
    /// The index of the slot (packet buffer).
    pub slot: u32,
    /// Offset of the packet's first byte from the start of the slot, in bytes.
    pub offset: u16,
    /// The length of the packet, in bytes.
    pub len: u16,
}

impl Desc {
    /// Returns the descriptors as 64-bit words, because the compiler vectorises loops over words well.
    #[inline]
    pub(crate) fn words(descs: &[Self]) -> &[DescWord] {
        const { assert!(size_of::<Self>() == 8 && align_of::<Self>() >= align_of::<DescWord>()) };
        // SAFETY: a descriptor has the size of a word (asserted above), so it has no padding. It is aligned for a word,
        // and every bit pattern is a valid word.
        unsafe { std::slice::from_raw_parts(descs.as_ptr().cast(), descs.len()) }
    }

    /// Returns the descriptors as writable pairs of 32-bit words. The first word is the slot, the second word is the
    /// packed offset and length.
    #[inline]
    pub(crate) fn pairs_mut(descs: &mut [Self]) -> &mut [[u32; 2]] {
        const { assert!(align_of::<Self>() >= align_of::<[u32; 2]>()) };
        // SAFETY: size and alignment are as for `words`. Any two 32-bit words form a valid descriptor.
        unsafe { std::slice::from_raw_parts_mut(descs.as_mut_ptr().cast(), descs.len()) }
    }

    /// Packs the offset and the low 16 bits of the length into the second 32-bit word of a descriptor.
    #[inline]
    pub(crate) const fn pack_offset_len(offset: u16, len: u32) -> u32 {
        match cfg!(target_endian = "little") {
            true => offset as u32 | len << 16,
            false => (offset as u32) << 16 | len & 0xffff,
        }
    }

    /// Unpacks a word into slot, offset and length.
    #[inline]
    pub(crate) const fn unpack(word: DescWord) -> (u32, u32, u32) {
        let (low, high) = (word as u32, (word >> 32) as u32);
        if cfg!(target_endian = "little") { (low, high & 0xffff, high >> 16) } else { (high, low >> 16, low & 0xffff) }
    }
}
