//! The outstanding sends of a lane, in the order in which they were posted.

use crate::clock::Stamp;
use crate::lane::LatencySink;
use crate::mem::{Desc, Pool, Run, SlotState, Stamps, vector};
use crate::verbs::WrId;

/// A ring with space for as many sends as the send queue. Each send has a sequence number, which starts at 0 and never
/// wraps. The low bits of the sequence number are in the `wr_id` of the send.
#[derive(Debug)]
pub(super) struct InFlight {
    descs: Box<[Desc]>,
    spans: Spans,
    depth: usize,
    posted: u64,
    /// All sends with a lower sequence number have completed.
    completed: u64,
    /// All sends with a lower sequence number have completed, and their buffers (slots) are back in the pool.
    reclaimed: u64,
}

/// Consecutive sends with the same receive timestamp, usually the sends of one burst.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    /// The sequence number of the first send after the span.
    end: u64,
    stamp: Stamp,
    /// The total length of the sends, in bytes.
    bytes: u32,
}

/// The spans of all sends, in order. Every span has at least one send, so there are never more spans than sends.
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

    /// Returns the oldest span. A span must exist.
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
            completed: 0,
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

    /// Returns the sequence number of the next send.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.posted
    }

    /// Returns the descriptor of the newest send.
    #[cold]
    pub(super) fn last(&self) -> Option<Desc> {
        (self.len() > 0).then(|| self.descs[self.ring_index(self.posted - 1).0])
    }

    /// Returns how many uncompleted sends precede the send whose `wr_id` contains `number`. Returns `None` if that send
    /// has completed or was never posted.
    #[inline]
    pub(super) fn position(&self, number: u64) -> Option<usize> {
        let earlier = number.wrapping_sub(self.completed) & WrId::NUMBER;
        (earlier < self.posted - self.completed).then_some(earlier as usize)
    }

    /// Returns the ring index of a sequence number, and the number of entries from there to the end of the ring.
    #[inline]
    fn ring_index(&self, count: u64) -> (usize, usize) {
        let at = count as usize & (self.descs.len() - 1);
        (at, self.descs.len() - at)
    }

    /// Appends sends with their receive timestamps. The ring must have space for all of these sends.
    #[inline(always)]
    pub(super) fn extend(&mut self, run: &Run<'_>, stamps: Stamps<'_>) {
        let descs = run.descs();
        if descs.is_empty() {
            return;
        }
        let (at, before_end) = self.ring_index(self.posted);
        let first = descs.len().min(before_end);
        self.descs[at..at + first].copy_from_slice(&descs[..first]);
        if first < descs.len() {
            self.descs[..descs.len() - first].copy_from_slice(&descs[first..]);
        }
        let end = self.posted + descs.len() as u64;
        match stamps {
            Stamps::Alike(stamp) => self.spans.push(Span { end, stamp, bytes: run.bounds().bytes }),
            Stamps::Each(stamps) => self.add_spans(descs, stamps),
        }
        self.posted = end;
    }

    /// Appends the spans of sends with different receive timestamps.
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

    /// Marks the oldest `n` uncompleted sends as completed. At least `n` such sends must exist. Records the latency of
    /// each send unless `completed` is [`Stamp::NONE`]. Returns the total length of the sends, in bytes. The slots of
    /// these sends return to the pool at the next call of [`InFlight::reclaim`]. If `latency` panics, all `n` sends are
    /// marked.
    #[inline(always)]
    pub(super) fn complete(&mut self, n: usize, completed: Stamp, latency: &mut dyn LatencySink) -> u64 {
        let (to, mut bytes) = (self.completed + n as u64, 0);
        let rest = Rest { in_flight: self, to };
        while rest.in_flight.completed < to {
            let (from, span) = rest.in_flight.complete_span(to);
            if completed != Stamp::NONE {
                latency.record(span.stamp, completed, span.end - from);
            }
            bytes += u64::from(span.bytes);
        }
        std::mem::forget(rest);
        bytes
    }

    /// Marks the sends of the oldest span with sequence numbers below `to` as completed. Returns the sequence number of
    /// the first of these sends, and a span of only these sends.
    #[inline(always)]
    fn complete_span(&mut self, to: u64) -> (u64, Span) {
        let from = self.completed;
        let mut span = *self.spans.first();
        if span.end <= to {
            self.spans.first = self.spans.first.wrapping_add(1);
        } else {
            (span.end, span.bytes) = (to, self.split_span(from, to));
        }
        self.completed = span.end;
        (from, span)
    }

    /// Returns the slots of all completed sends to the pool. One call usually covers several bursts.
    #[inline]
    pub(super) fn reclaim(&mut self, pool: &mut Pool) {
        let n = (self.completed - self.reclaimed) as usize;
        let (at, before_end) = self.ring_index(self.reclaimed);
        let first = n.min(before_end);
        pool.put_descs(&self.descs[at..at + first], SlotState::Sending);
        if first < n {
            pool.put_descs(&self.descs[..n - first], SlotState::Sending);
        }
        self.reclaimed = self.completed;
    }

    /// Takes the sends with the sequence numbers `done..to` out of the oldest span. Returns the total length of these
    /// sends, in bytes.
    #[cold]
    fn split_span(&mut self, done: u64, to: u64) -> u32 {
        let bytes = (done..to).map(|count| u32::from(self.descs[self.ring_index(count).0].len)).sum();
        self.spans.first().bytes -= bytes;
        bytes
    }
}

/// A guard whose drop marks all sends before sequence number `to` as completed.
struct Rest<'a> {
    in_flight: &'a mut InFlight,
    to: u64,
}

impl Drop for Rest<'_> {
    #[cold]
    fn drop(&mut self) {
        while self.in_flight.completed < self.to {
            self.in_flight.complete_span(self.to);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::ClockSource;
    use crate::mem::{PageKind, Region, RegionSpec, RunSource, SlotLayout};
    use crate::units::Nanos;

    /// Recorded latencies, one entry per packet.
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
        /// Compares the ring with a simple queue of descriptors and timestamps.
        #[test]
        fn each_send_is_reclaimed_once_with_its_bytes_and_latency(
            depth in 1..40u32,
            steps in proptest::collection::vec((proptest::collection::vec((0..1500u16, 0..3u8), 0..20), 0..20usize, 0..2u8), 1..40),
        ) {
            let layout = SlotLayout::new(0, 1500, 64).unwrap();
            let region = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
            let mut pool = Pool::new(Region::allocate(region).unwrap().0, layout).unwrap();
            let mut in_flight = InFlight::new(depth);
            let mut model = std::collections::VecDeque::new();
            for (sends, done, end) in steps {
                let n = sends.len().min(in_flight.space());
                let stamps: Vec<Stamp> = sends[..n].iter().map(|send| stamp(send.1)).collect();
                let slots = pool.take(n, SlotState::Sending).to_vec();
                let descs: Vec<Desc> =
                    slots.iter().zip(&sends).map(|(slot, send)| Desc { slot: *slot, offset: 0, len: send.0 }).collect();
                match stamps.iter().all(|stamp| *stamp == stamps[0]) {
                    true if n > 0 => in_flight.extend(&RunSource::new(&descs).run(), Stamps::Alike(stamps[0])),
                    _ => in_flight.extend(&RunSource::new(&descs).run(), Stamps::Each(&stamps)),
                }
                model.extend(descs.into_iter().zip(stamps));
                prop_assert_eq!(in_flight.len(), model.len());

                let end = stamp(end);
                let completed: Vec<(Desc, Stamp)> = model.drain(..done.min(model.len())).collect();
                let mut recorded = Recorded::default();
                let bytes = in_flight.complete(completed.len(), end, &mut recorded);
                prop_assert_eq!(in_flight.len(), completed.len() + model.len());
                in_flight.reclaim(&mut pool);
                prop_assert_eq!(bytes, completed.iter().map(|(desc, _)| u64::from(desc.len)).sum::<u64>());
                let spans = completed.iter().filter(|_| end != Stamp::NONE).map(|(_, stamp)| (*stamp, end));
                prop_assert!(spans.eq(recorded.0));
                prop_assert_eq!(pool.available() + in_flight.len(), 64);
                prop_assert_eq!(in_flight.last(), model.back().map(|(desc, _)| *desc));
            }
        }
    }
}
