//! The fronts of packets, for loops over a batch that read and write headers and do nothing else to a packet.

use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::mem::{Batch, Desc, Meta};

/// The first `N` bytes of a packet, and what is known of it.
///
/// There is no way here to label the packet or to change its length, so these stay known of the batch as a whole.
#[derive(Debug)]
pub struct Head<'b, const N: usize> {
    /// The first bytes.
    pub bytes: &'b mut [u8; N],
    /// How many bytes the packet has.
    pub len: u16,
    /// What the stages before have found.
    pub meta: &'b mut Meta,
    #[expect(dead_code, reason = "it is read where an `Option` is matched")]
    there: There,
}

/// What an `Option` tells a packet from none by. Without it that would be where the bytes are, which would be computed for
/// this alone where a loop does not look at them.
#[derive(Debug)]
#[repr(u8)]
enum There {
    Yes = 1,
}

/// The fronts of the packets of a batch, in order. `LOCATED`: by what the batch has written down of where packets start, which
/// pays where several loops go over the same packets.
#[derive(Debug)]
pub struct Heads<'b, const N: usize, const LOCATED: bool = false> {
    batch: NonNull<Batch>,
    /// Where its slots are: what is written through one head could be the batch, for all that the compiler knows.
    slots: NonNull<u8>,
    stride: usize,
    next: usize,
    end: usize,
    life: PhantomData<&'b mut Batch>,
}

impl<'b, const N: usize, const LOCATED: bool> Heads<'b, N, LOCATED> {
    /// Those of all packets; of none where one has fewer than `N` bytes.
    #[inline]
    pub(super) fn new(batch: &'b mut Batch) -> Self {
        let end = if batch.extent().shortest as usize >= N { batch.len() } else { 0 };
        if LOCATED {
            batch.locate();
        }
        let (slots, stride) = (batch.memory.slot(0), batch.memory.layout.stride as usize);
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
        // SAFETY: the batch is borrowed alone for `'b`, and the index is below its length and comes once, so nobody else has
        // this entry of its arrays. The packet has at least `N` bytes (`new`), which lie in its slot, and slots of a batch are
        // distinct and owned by it; their memory was zeroed by the kernel, so it is initialised. What is written down of where it
        // starts is right (`new`).
        unsafe {
            let Desc { slot, offset, len } = *(&raw const (*batch).descs).cast::<Desc>().add(index);
            let meta = &mut *(&raw mut (*batch).metas).cast::<Meta>().add(index);
            let found = || slot as usize * self.stride + usize::from(offset);
            let start = match LOCATED {
                true => *(&raw const (*batch).starts).cast::<usize>().add(index),
                false => found(),
            };
            debug_assert_eq!(start, found());
            Some(Head { bytes: self.slots.add(start).cast().as_mut(), len, meta, there: There::Yes })
        }
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.end - self.next;
        (left, Some(left))
    }
}

impl<const N: usize, const LOCATED: bool> ExactSizeIterator for Heads<'_, N, LOCATED> {}

#[cfg(test)]
mod tests {
    use crate::mem::Batch;
    use crate::pipeline::{Ctx, Stage};
    use crate::stages::parse::Parse;
    use crate::testing::Harness;

    /// Marks IPv4 by the fronts up to the first frame that is of something else, and all from there on one by one.
    struct Marks;

    impl Stage for Marks {
        fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
            let mark = |head: super::Head<'_, 14>| {
                head.meta.user = head.len;
                (head.bytes[12..] == [8, 0]).then(|| head.bytes[0] = 0xee)
            };
            let marked = batch.heads_mut().map_while(mark).count();
            for mut packet in batch.iter_mut_from(marked) {
                packet.meta_mut().user = 1;
            }
        }
    }

    #[test]
    fn fronts_are_those_of_the_packets_and_of_none_where_one_is_short() {
        let v4 = crate::testing::frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).build();
        let v6 = crate::testing::frame().ether_type(0x86dd).payload(&[0; 46]).build();
        let users = |frames: &[Vec<u8>]| -> Vec<(u8, u16)> {
            let mut harness = Harness::builder().after(Marks).build::<Parse>("").unwrap();
            harness.run(frames).iter().map(|outcome| (outcome.bytes[0], outcome.meta.user)).collect()
        };
        let (marked, plain) = ((0xee, v4.len() as u16), (v4[0], 1));
        assert_eq!(users(&[v4.clone(), v4.clone()]), [marked, marked]);
        assert_eq!(users(&[v4.clone(), v6, v4.clone()]), [marked, (v4[0], 1), plain]);
        assert_eq!(users(&[v4.clone(), vec![1; 13]]), [plain, (1, 1)]);
    }
}
