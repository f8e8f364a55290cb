//! The packets of a burst: copies of one frame with consecutive sequence numbers and the same transmit time.

use dataplane::clock::Stamp;
use dataplane::mem::{Batch, Pool};
use multiversion::multiversion;

use crate::signature::{BurstHash, Key, Signature, Words, fold};
use crate::template::{Template, put};

/// The maximum number of packets that one call adds.
pub(crate) const MOST: usize = 64;
/// With fewer packets, writing the packets one by one is faster.
pub(crate) const LEAST: usize = 4;

/// The packets of a burst. The packets differ only in the check of the signature, the low bits of the sequence number,
/// and the layer-4 checksum.
struct Burst<'a> {
    /// The frame of the first packet.
    frame: &'a [u8],
    /// The offset of the signature.
    signature: usize,
    /// The offset of the layer-4 checksum. `usize::MAX` if the frame has no such checksum.
    checksum: usize,
    hash: BurstHash,
    /// Bytes 4 to 11 of the first signature.
    middle: u64,
    /// The sum of the parts of the checksum that are equal in all packets. If `odd` is set, the bytes of each 16-bit word
    /// are swapped.
    sum: u32,
    /// Whether the signature starts in the middle of a 16-bit word of the checksum.
    odd: bool,
    /// The checksum that is sent instead of a checksum of 0.
    instead_of_zero: u16,
}

/// Adds up to `count` packets, but at most [`MOST`], to the batch. `first` is the signature of the first packet. Returns
/// the number of added packets. The stream must have no fields with several values, and the template must have a
/// signature.
pub(crate) fn add(
    template: &mut Template,
    first: &Signature,
    key: Key,
    count: usize,
    batch: &mut Batch,
    pool: &mut Pool,
) -> usize {
    let Some(signature) = template.signature else { return 0 };
    let words = first.words(key);
    put(&mut template.frame, signature, words.bytes());
    let own = if template.odd { template.l4_sum.swap_bytes() } else { template.l4_sum };
    let low = words.middle & u64::from(u32::MAX);
    let burst = Burst {
        frame: &template.frame,
        signature,
        checksum: template.checksums.l4.unwrap_or(usize::MAX),
        hash: BurstHash::new(key, words.sent, words.middle),
        middle: words.middle,
        sum: fold(u64::from(own) + Words { check: 0, middle: words.middle - low, ..words }.sum()).into(),
        odd: template.odd,
        instead_of_zero: if template.checksums.is_udp { 0xffff } else { 0 },
    };
    // The other bits of the sequence number must not change.
    let until_wrap = u64::from(u32::MAX) - low + 1;
    let count = count.min(MOST).min(usize::try_from(until_wrap).unwrap_or(usize::MAX));
    add_packets(&burst, count, batch, pool)
}

/// Adds up to `count` packets, which must be at most [`MOST`], to the batch.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn add_packets(burst: &Burst<'_>, count: usize, batch: &mut Batch, pool: &mut Pool) -> usize {
    // The caller has limited `count`, so the upper half is equal in all packets.
    let (high, first) = ((burst.middle >> 32) as u32, burst.middle as u32);
    let (mut checks, mut sums) = ([0u32; MOST], [0u16; MOST]);
    for (index, (check, sum)) in checks[..count].iter_mut().zip(&mut sums[..count]).enumerate() {
        let low = first.wrapping_add(index as u32);
        let hash = burst.hash.check(low);
        // Sums of 16-bit words fit into 32 bits. Vectors have twice as many lanes of 32 bits as of 64 bits.
        let words = (hash & 0xffff) + (hash >> 16) + (low & 0xffff) + (low >> 16) + burst.sum;
        let folded = (words & 0xffff) + (words >> 16);
        let folded = ((folded & 0xffff) + (folded >> 16)) as u16;
        let checksum = !(if burst.odd { folded.swap_bytes() } else { folded });
        *check = hash.to_be();
        *sum = (if checksum == 0 { burst.instead_of_zero } else { checksum }).to_be();
    }
    batch.push_copies(burst.frame, count, Stamp::NONE, pool, |index, data| {
        let low = first.wrapping_add(index as u32);
        let mut start = [0; 12];
        start[..4].copy_from_slice(&checks[index % MOST].to_ne_bytes());
        start[4..8].copy_from_slice(&high.to_be_bytes());
        start[8..].copy_from_slice(&low.to_be_bytes());
        put(data, burst.signature, start);
        put(data, burst.checksum, sums[index % MOST].to_ne_bytes());
    })
}

#[cfg(test)]
mod tests {
    use dataplane::mem::{PageKind, Region, RegionSpec, SlotLayout};
    use proptest::prelude::*;

    use super::*;
    use crate::template::Checksums;

    fn pool() -> Pool {
        let layout = SlotLayout::new(128, 256, 128).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap()
    }

    proptest! {
        /// The packets of a burst are equal to packets that are written one by one, also near a carry into the high bits
        /// of the sequence number.
        #[test]
        fn packets_of_a_burst_equal_packets_that_are_written_one_by_one(
            length in 42usize..200, has_checksum: bool, is_udp: bool, l4_sum: u16, key: u64, stream: u8, size in 0u8..16,
            sequence in prop_oneof![0u64..1 << 36, (1u64 << 32) - 70..1 << 32, (1u64 << 36) - 70..1 << 36],
            sent in 0..1u64 << 48, filler: u16, count in 0usize..100,
        ) {
            let mut template = Template::unsigned(&vec![7; length]);
            let at = length - crate::signature::LENGTH;
            template.signature = Some(at);
            template.odd = at % 2 == 1;
            template.l4_sum = l4_sum;
            template.checksums = Checksums { l4: has_checksum.then_some(6), is_udp, ..Checksums::default() };
            let original = template.clone();
            let first = Signature { stream, size, sequence, sent, filler };
            let key = Key::new(key);
            let mut pool = pool();
            let mut batch = Batch::new(&pool);
            let added = add(&mut template, &first, key, count, &mut batch, &mut pool);
            prop_assert!(added == batch.len() && added <= count.min(MOST) && (added > 0 || count == 0));
            for (number, (data, _)) in batch.contents().enumerate() {
                let mut expected = original.frame.clone();
                let signature = Signature { sequence: sequence + number as u64, ..first };
                original.write(&mut [], &signature.words(key), &mut expected);
                prop_assert_eq!(data, &*expected, "packet {}", number);
            }
        }
    }
}
