//! The sends that have not completed, in the order in which they were posted.

use crate::clock::Stamp;
use crate::lane::LatencySink;
use crate::mem::{Desc, Pool, Run, SlotState, Stamps, vector};
use crate::provider::WrId;

/// A ring as deep as the send queue. Sends are counted from 0 for ever; the count's low bits are in their `wr_id`.
#[derive(Debug)]
pub(super) struct InFlight {
    descs: Box<[Desc]>,
    spans: Spans,
    depth: usize,
    posted: u64,
    /// Those before are over.
    over: u64,
    /// Those before are over and their slots with the pool.
    reclaimed: u64,
}

/// Sends that follow each other and were received at one moment: most often those of a burst.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// The count of the first send after them.
    end: u64,
    stamp: Stamp,
    bytes: u32,
}

/// The spans of all sends, in order. None is without a send, so there are never more than those.
#[derive(Debug)]
struct Spans {
    ring: Box<[Span]>,
    first: usize,
    next: usize,
}

impl Spans {
    #[inline]
    fn push(&mut self, span: Span) {
        let mask = self.ring.len() - 1;
        self.ring[self.next & mask] = span;
        self.next = self.next.wrapping_add(1);
    }

    /// The oldest; there must be one.
    #[inline]
    fn first(&mut self) -> &mut Span {
        let mask = self.ring.len() - 1;
        &mut self.ring[self.first & mask]
    }
}

impl InFlight {
    pub(super) fn new(depth: u32) -> Self {
        let capacity = (depth.max(1) as usize).next_power_of_two();
        Self {
            descs: vec![Desc::default(); capacity].into(),
            spans: Spans { ring: vec![Span::default(); capacity].into(), first: 0, next: 0 },
            depth: depth as usize,
            posted: 0,
            over: 0,
            reclaimed: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        (self.posted - self.reclaimed) as usize
    }

    #[inline]
    pub(super) fn space(&self) -> usize {
        self.depth - self.len()
    }

    /// The number of the next send.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.posted
    }

    /// The newest.
    #[cold]
    pub(super) fn last(&self) -> Option<Desc> {
        (self.len() > 0).then(|| self.descs[self.place(self.posted - 1).0])
    }

    /// How many sends are not over before the one with this number; `None`: it is over, or was never posted.
    #[inline]
    pub(super) fn position(&self, number: u64) -> Option<usize> {
        let behind = number.wrapping_sub(self.over) & WrId::NUMBER;
        (behind < self.posted - self.over).then_some(behind as usize)
    }

    /// The ring's place of a count, and how many follow it before the end of the ring.
    #[inline]
    fn place(&self, count: u64) -> (usize, usize) {
        let at = count as usize & (self.descs.len() - 1);
        (at, self.descs.len() - at)
    }

    /// Adds sends, which were received at these times; there must be space.
    #[inline(always)]
    pub(super) fn extend(&mut self, run: &Run<'_>, stamps: Stamps<'_>) {
        let descs = run.descs();
        if descs.is_empty() {
            return;
        }
        let (at, before_end) = self.place(self.posted);
        let first = descs.len().min(before_end);
        self.descs[at..at + first].copy_from_slice(&descs[..first]);
        if first < descs.len() {
            self.descs[..descs.len() - first].copy_from_slice(&descs[first..]);
        }
        let end = self.posted + descs.len() as u64;
        match stamps {
            Stamps::Alike(stamp) => self.spans.push(Span { end, stamp, bytes: run.extent().bytes }),
            Stamps::Each(stamps) => self.add_spans(descs, stamps),
        }
        self.posted = end;
    }

    /// Adds the spans of sends that were received at several times.
    #[inline(never)]
    fn add_spans(&mut self, descs: &[Desc], stamps: &[Stamp]) {
        let mut from = 0;
        for alike in stamps.chunk_by(|a, b| a == b) {
            let to = from + alike.len();
            let bytes = vector::bytes(Desc::words(&descs[from..to]));
            self.spans.push(Span { end: self.posted + to as u64, stamp: alike[0], bytes });
            from = to;
        }
    }

    /// The oldest `n` sends are over, of which there are as many; with a stamp of their completion, records how long they
    /// took. Returns their bytes. Their slots come back by [`InFlight::reclaim`].
    #[inline(always)]
    pub(super) fn complete(&mut self, n: usize, completed: Stamp, latency: &mut dyn LatencySink) -> u64 {
        let (mut over, mut bytes) = (self.over, 0);
        let to = over + n as u64;
        while over < to {
            let span = *self.spans.first();
            let (end, of_span) = match span.end <= to {
                true => (span.end, span.bytes),
                false => (to, self.split_span(over, to)),
            };
            if completed != Stamp::NONE {
                latency.record(span.stamp, completed, end - over);
            }
            bytes += u64::from(of_span);
            self.spans.first = self.spans.first.wrapping_add(usize::from(end == span.end));
            over = end;
        }
        self.over = to;
        bytes
    }

    /// Gives the slots of all sends that are over back to the pool: those of several bursts at once.
    #[inline]
    pub(super) fn reclaim(&mut self, pool: &mut Pool) {
        let n = (self.over - self.reclaimed) as usize;
        let (at, before_end) = self.place(self.reclaimed);
        let first = n.min(before_end);
        pool.put_descs(&self.descs[at..at + first], SlotState::Sending);
        if first < n {
            pool.put_descs(&self.descs[..n - first], SlotState::Sending);
        }
        self.reclaimed = self.over;
    }

    /// Takes the sends before a count out of the oldest span. Returns their bytes.
    #[cold]
    fn split_span(&mut self, over: u64, to: u64) -> u32 {
        let bytes = (over..to).map(|count| u32::from(self.descs[self.place(count).0].len)).sum();
        self.spans.first().bytes -= bytes;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::ClockSource;
    use crate::mem::{Loose, PageKind, Region, RegionSpec, SlotLayout};
    use crate::units::Nanos;

    /// What was recorded, a packet at a time.
    #[derive(Default)]
    struct Recorded(Vec<(Stamp, Stamp)>);

    impl LatencySink for Recorded {
        fn record(&mut self, from: Stamp, to: Stamp, packets: u64) {
            self.0.extend((0..packets).map(|_| (from, to)));
        }
    }

    fn stamp(at: u8) -> Stamp {
        if at == 0 { Stamp::NONE } else { Stamp::new(Nanos(at.into()), ClockSource::Software) }
    }

    proptest! {
        /// Against a list of packets.
        #[test]
        fn each_send_comes_back_once_with_its_bytes_and_time(
            depth in 1..40u32,
            steps in proptest::collection::vec((proptest::collection::vec((0..1500u16, 0..3u8), 0..20), 0..20usize, 0..2u8), 1..40),
        ) {
            let layout = SlotLayout::new(0, 1500, 64).unwrap();
            let region = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
            let mut pool = Pool::new(Region::allocate(region).unwrap().0.into(), layout).unwrap();
            let mut in_flight = InFlight::new(depth);
            let mut model = std::collections::VecDeque::new();
            for (sends, done, over) in steps {
                let n = sends.len().min(in_flight.space());
                let stamps: Vec<Stamp> = sends[..n].iter().map(|send| stamp(send.1)).collect();
                let slots = pool.take(n, SlotState::Sending).to_vec();
                let descs: Vec<Desc> =
                    slots.iter().zip(&sends).map(|(slot, send)| Desc { slot: *slot, offset: 0, len: send.0 }).collect();
                match stamps.iter().all(|stamp| *stamp == stamps[0]) {
                    true if n > 0 => in_flight.extend(&Loose::new(&descs).run(), Stamps::Alike(stamps[0])),
                    _ => in_flight.extend(&Loose::new(&descs).run(), Stamps::Each(&stamps)),
                }
                model.extend(descs.into_iter().zip(stamps));
                prop_assert_eq!(in_flight.len(), model.len());

                let over = stamp(over);
                let gone: Vec<(Desc, Stamp)> = model.drain(..done.min(model.len())).collect();
                let mut recorded = Recorded::default();
                let bytes = in_flight.complete(gone.len(), over, &mut recorded);
                prop_assert_eq!(in_flight.len(), gone.len() + model.len());
                in_flight.reclaim(&mut pool);
                prop_assert_eq!(bytes, gone.iter().map(|(desc, _)| u64::from(desc.len)).sum::<u64>());
                let spans = gone.iter().filter(|_| over != Stamp::NONE).map(|(_, stamp)| (*stamp, over));
                prop_assert!(spans.eq(recorded.0));
                prop_assert_eq!(pool.available() + in_flight.len(), 64);
                prop_assert_eq!(in_flight.last(), model.back().map(|(desc, _)| *desc));
            }
        }
    }
}
