//! The ring with the last bursts of a worker. The worker writes the ring. Any thread can read the ring, even while the
//! worker is stuck in a stage.
//!
//! Each slot of the ring is a seqlock: the worker makes the version odd, writes the burst, and makes the version even.
//! A reader ignores the burst if the version is odd, or if the version has changed during the read. The values of a
//! burst are atomics with relaxed order. Writing a burst therefore needs no lock and no atomic read-modify-write
//! operation.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use crate::runtime::wall_time::wall_time;
use crate::runtime::worker_info::WorkerInfo;
use dataplane_core::clock::{ClockSource, Stamp};
use dataplane_core::mem::Batch;
use dataplane_core::pipeline::Ctx;
use dataplane_core::units::Nanos;

/// The number of bytes of a word.
const WORD: usize = 8;
/// The number of words before the bytes of a packet. The first word has the length of the packet, and the clock of the
/// timestamp. The second word has the timestamp.
const PREFIX: usize = 2;
/// The number of low bits of the first word that hold the length of the packet.
const LENGTH_BITS: u32 = 32;

/// The size of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingSize {
    /// The number of bursts.
    pub(crate) bursts: usize,
    /// The maximum number of packets of a burst.
    pub(crate) packets: usize,
    /// The number of bytes of each packet that the ring keeps.
    pub(crate) bytes: usize,
}

/// The last bursts of a worker.
pub(crate) struct BurstRing {
    /// The number of words for the bytes of each packet.
    words: usize,
    bursts: Box<[BurstSlot]>,
    /// The properties that the worker had when it received the bursts.
    info: Mutex<Arc<WorkerInfo>>,
}

#[derive(Default)]
struct BurstSlot {
    /// Each change of the slot adds 2 to the version. Odd while the worker changes the slot.
    version: AtomicU64,
    /// The number of the burst, from 1. 0 if the slot has no burst.
    number: AtomicU64,
    /// The number of packets in the lower half, and the index of the port in the upper half.
    shape: AtomicU64,
    /// [`Ctx::start`] of the worker.
    start: AtomicU64,
    /// [`Ctx::start_wallclock`] of the worker.
    start_wallclock: AtomicU64,
    /// [`Ctx::now`] of the worker when the worker received the burst.
    now: AtomicU64,
    /// For each packet, [`PREFIX`] words and the words with the first bytes of the packet.
    packets: Box<[AtomicU64]>,
}

/// The first bytes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PacketHead {
    /// The receive time in nanoseconds since 1970.
    pub(crate) nanos: u64,
    /// The length of the packet in bytes.
    pub(crate) original: u32,
    pub(crate) bytes: Vec<u8>,
}

/// A burst that a worker received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    /// The number of the burst, from 1. Each worker numbers its own bursts.
    pub(crate) number: u64,
    /// The index of the port.
    pub(crate) port: usize,
    pub(crate) packets: Vec<PacketHead>,
}

/// The bursts of a ring, and the properties that the worker had when it received the bursts.
pub(crate) struct WorkerBursts {
    pub(crate) worker: usize,
    pub(crate) info: Arc<WorkerInfo>,
    /// The bursts, in the order of their numbers.
    pub(crate) bursts: Vec<Burst>,
}

impl BurstRing {
    /// Creates an empty ring. The worker calls this function, so that the memory of the ring is near the worker.
    fn new(size: RingSize, info: Arc<WorkerInfo>) -> Self {
        let words = size.bytes.div_ceil(WORD);
        let packets = || (0..size.packets * (PREFIX + words)).map(|_| AtomicU64::new(0)).collect();
        let bursts = (0..size.bursts).map(|_| BurstSlot { packets: packets(), ..BurstSlot::default() }).collect();
        Self { words, bursts, info: Mutex::new(info) }
    }

    fn info(&self) -> Arc<WorkerInfo> {
        self.info.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of bytes of each packet that the ring keeps.
    fn bytes(&self) -> usize {
        self.words * WORD
    }

    /// Reads the ring. The result lacks bursts that the worker overwrites during the read.
    pub(crate) fn read(&self, worker: usize) -> WorkerBursts {
        loop {
            let info = self.info();
            let mut bursts: Vec<Burst> = self.bursts.iter().filter_map(|slot| self.read_slot(slot)).collect();
            bursts.sort_by_key(|burst| burst.number);
            // If the pipeline has changed during the read, `info` possibly belongs to other bursts, so read again.
            if Arc::ptr_eq(&info, &self.info()) {
                return WorkerBursts { worker, info, bursts };
            }
        }
    }

    fn read_slot(&self, slot: &BurstSlot) -> Option<Burst> {
        let value = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let version = slot.version.load(Ordering::Acquire);
        let (number, shape) = (value(&slot.number), value(&slot.shape));
        let [start, start_wallclock, now] =
            [&slot.start, &slot.start_wallclock, &slot.now].map(|word| Nanos(value(word)));
        let ctx = Ctx { start, start_wallclock, now, worker: 0 };
        let count = (shape as u32) as usize;
        let head = |words: &[AtomicU64]| {
            let (shape, time) = (value(&words[0]), value(&words[1]));
            let source = ClockSource::ALL.get((shape >> LENGTH_BITS) as usize).copied().unwrap_or(ClockSource::None);
            let original = shape as u32;
            let mut bytes: Vec<u8> = words[PREFIX..].iter().flat_map(|word| value(word).to_ne_bytes()).collect();
            bytes.truncate(original as usize);
            PacketHead { nanos: wall_time(&ctx, Stamp::new(Nanos(time), source)), original, bytes }
        };
        let packets = slot.packets.chunks_exact(PREFIX + self.words).take(count).map(head).collect();
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && number > 0 && version == slot.version.load(Ordering::Relaxed);
        is_whole.then_some(Burst { number, port: (shape >> LENGTH_BITS) as usize, packets })
    }
}

impl BurstSlot {
    /// Calls `change`, which writes the slot. Readers ignore the slot during the call.
    #[inline]
    fn write(&self, change: impl FnOnce()) {
        // Only the worker writes the version.
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.version.store(version + 2, Ordering::Release);
    }
}

/// The worker's side of the ring.
pub(crate) struct Recorder {
    worker: usize,
    ring: Arc<BurstRing>,
    /// The number of the last burst.
    number: u64,
    /// The slot of the next burst.
    at: usize,
}

impl Recorder {
    /// Creates a ring, and the recorder that writes the ring.
    pub(crate) fn new(worker: usize, size: RingSize, info: Arc<WorkerInfo>) -> Self {
        Self { worker, ring: Arc::new(BurstRing::new(size, info)), number: 0, at: 0 }
    }

    pub(crate) fn ring(&self) -> &Arc<BurstRing> {
        &self.ring
    }

    /// Writes a received burst into the ring, in place of the oldest burst.
    pub(crate) fn record(&mut self, ctx: &Ctx, batch: &Batch) {
        let Some(slot) = self.ring.bursts.get(self.at) else { return };
        self.number += 1;
        self.at = if self.at + 1 == self.ring.bursts.len() { 0 } else { self.at + 1 };
        let (number, words) = (self.number, self.ring.words);
        slot.write(|| {
            let set = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
            set(&slot.number, number);
            set(&slot.shape, u64::from(batch.ingress()) << LENGTH_BITS | batch.len() as u64);
            set(&slot.start, ctx.start.0);
            set(&slot.start_wallclock, ctx.start_wallclock.0);
            set(&slot.now, ctx.now.0);
            for ((data, stamp), packet) in batch.contents().zip(slot.packets.chunks_exact(PREFIX + words)) {
                let [shape, time, kept @ ..] = packet else { return };
                set(shape, (stamp.source() as u64) << LENGTH_BITS | data.len() as u64);
                set(time, stamp.nanos().0);
                let (whole, rest) = data.as_chunks::<WORD>();
                for (word, bytes) in kept.iter().zip(whole) {
                    set(word, u64::from_ne_bytes(*bytes));
                }
                if let Some(word) = kept.get(whole.len()).filter(|_| !rest.is_empty()) {
                    let mut last = [0; WORD];
                    last[..rest.len()].copy_from_slice(rest);
                    set(word, u64::from_ne_bytes(last));
                }
            }
        });
    }

    /// Forgets all bursts, because the pipeline has changed. `info` has the new properties of the worker.
    #[cold]
    pub(crate) fn forget(&mut self, info: &Arc<WorkerInfo>) {
        for slot in &self.ring.bursts {
            slot.write(|| slot.number.store(0, Ordering::Relaxed));
        }
        *self.ring.info.lock().unwrap_or_else(PoisonError::into_inner) = info.clone();
    }

    /// Returns the bursts of the ring.
    #[cold]
    pub(crate) fn bursts(&self) -> WorkerBursts {
        self.ring.read(self.worker)
    }

    /// Returns the heads of the packets of a batch, with as many bytes as the ring keeps of each packet.
    #[cold]
    pub(crate) fn heads(&self, ctx: &Ctx, batch: &Batch) -> Vec<PacketHead> {
        let head = |(data, stamp): (&[u8], Stamp)| {
            let kept = &data[..data.len().min(self.ring.bytes())];
            PacketHead { nanos: wall_time(ctx, stamp), original: data.len() as u32, bytes: kept.to_vec() }
        };
        batch.contents().map(head).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use dataplane_core::mem::{PageKind, Pool, Region, RegionSpec, SlotLayout};

    fn info() -> Arc<WorkerInfo> {
        Arc::new(WorkerInfo::example())
    }

    fn pool() -> Pool {
        let layout = SlotLayout::new(0, 256, 64).unwrap();
        let spec = RegionSpec { bytes: layout.bytes(), pages: PageKind::Normal, strict: false, node: None };
        Pool::new(Region::allocate(spec).unwrap().0, layout).unwrap()
    }

    /// Records a burst of packets with these lengths. All bytes of the packets have the value `byte`.
    fn record(recorder: &mut Recorder, pool: &mut Pool, byte: u8, lengths: &[usize]) {
        let ctx = Ctx { start: Nanos(10), start_wallclock: Nanos(1000), now: Nanos(20), worker: 0 };
        let mut batch = Batch::new(pool);
        batch.set_ingress(1);
        for length in lengths {
            let stamp = Stamp::new(Nanos(10 + u64::from(byte)), ClockSource::Virtual);
            assert!(batch.push_bytes(&vec![byte; *length], stamp, pool));
        }
        recorder.record(&ctx, &batch);
        batch.free_into(pool);
    }

    #[test]
    fn ring_keeps_the_last_bursts_with_the_heads_of_their_packets() {
        let (mut pool, info) = (pool(), info());
        let mut recorder = Recorder::new(3, RingSize { bursts: 2, packets: 3, bytes: 16 }, info.clone());
        assert!(recorder.bursts().bursts.is_empty());
        for byte in 1..=3 {
            record(&mut recorder, &mut pool, byte, &[5, 16, 100]);
        }
        let found = recorder.bursts();
        assert!(found.worker == 3 && Arc::ptr_eq(&found.info, &info));
        let burst = |byte: u8| {
            let head =
                |original: u32, kept| PacketHead { nanos: 1000 + u64::from(byte), original, bytes: vec![byte; kept] };
            Burst { number: byte.into(), port: 1, packets: vec![head(5, 5), head(16, 16), head(100, 16)] }
        };
        assert_eq!(found.bursts, [burst(2), burst(3)]);
        // A burst contains no packet of the earlier, longer burst in its slot.
        record(&mut recorder, &mut pool, 4, &[1]);
        assert_eq!(recorder.bursts().bursts[1].packets.len(), 1);
        let changed = self::info();
        recorder.forget(&changed);
        let found = recorder.bursts();
        assert!(found.bursts.is_empty() && Arc::ptr_eq(&found.info, &changed));
    }

    #[test]
    fn reader_sees_no_half_written_burst() {
        let mut pool = pool();
        let mut recorder = Recorder::new(0, RingSize { bursts: 2, packets: 4, bytes: 64 }, info());
        let (ring, is_over) = (recorder.ring().clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                loop {
                    let is_last = is_over.load(Ordering::Relaxed);
                    for burst in ring.read(0).bursts {
                        let byte = (burst.number % 251) as u8;
                        let is_whole = |head: &PacketHead| head.bytes == vec![byte; 64] && head.original == 64;
                        assert!(burst.packets.len() == 4 && burst.packets.iter().all(is_whole), "{burst:?}");
                        seen += 1;
                    }
                    if is_last {
                        return seen;
                    }
                }
            });
            for number in 1..=20_000u64 {
                record(&mut recorder, &mut pool, (number % 251) as u8, &[64; 4]);
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(reader.join().unwrap() > 0);
        });
    }
}
