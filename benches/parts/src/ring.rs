//! The ring by which workers hand packets to another thread.

use std::hint;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use rtrb::{Consumer, Producer, RingBuffer};

use crate::{fail, pin};

const BURST: usize = 32;
const SLOTS: usize = 1024;
/// Whole bursts.
pub(crate) const FIRST_ITEMS: u64 = 1 << 20;

/// Puts in the numbers from 0 on, burst by burst. Returns how many.
fn put(ring: &mut Producer<u64>, limit: u64, stop: &AtomicBool) -> u64 {
    let mut next = 0;
    while next < limit && !stop.load(Ordering::Relaxed) {
        let items: [u64; BURST] = std::array::from_fn(|i| next + i as u64);
        let (put, _) = ring.push_partial_slice(&items);
        if put.is_empty() {
            hint::spin_loop();
        }
        next += put.len() as u64;
    }
    next
}

#[derive(Default)]
struct Taken {
    count: u64,
    sum: u64,
}

impl Taken {
    /// Takes a burst out: of each item its product with its place is added, so that the order counts.
    fn take(&mut self, ring: &mut Consumer<u64>) -> bool {
        let mut items = [const { MaybeUninit::uninit() }; BURST];
        let (items, _) = ring.pop_partial_slice_uninit(&mut items);
        let more = items.iter().zip(self.count..).map(|(item, place)| item.wrapping_mul(place));
        self.sum = more.fold(self.sum, u64::wrapping_add);
        self.count += items.len() as u64;
        !items.is_empty()
    }
}

/// The sum over so many numbers from 0 on, each in its place: that of their squares.
fn squares(count: u64) -> u64 {
    let n = u128::from(count);
    (n.saturating_sub(1) * n * (2 * n).saturating_sub(1) / 6) as u64
}

/// Hands over so many items, or for so long, from another core; gives millions a second, and the sum.
pub(crate) fn hand_over(from: usize, limit: u64, time: Duration) -> (f64, u64) {
    let (mut producer, mut consumer) = RingBuffer::new(SLOTS);
    // Nothing that one side writes lies beside what the other reads.
    let stop = &CachePadded::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let putting = scope.spawn(move || {
            pin(from);
            put(&mut producer, limit, stop)
        });
        let mut taken = Taken::default();
        while !taken.take(&mut consumer) {
            hint::spin_loop();
        }
        let began = Instant::now();
        let rate = loop {
            for _ in 0..1024 {
                if taken.count == limit {
                    break;
                }
                if !taken.take(&mut consumer) {
                    hint::spin_loop();
                }
            }
            let took = began.elapsed();
            if taken.count == limit || took >= time {
                break taken.count as f64 / took.as_secs_f64() / 1e6;
            }
        };
        stop.store(true, Ordering::Relaxed);
        let sent = putting.join().unwrap_or_else(|_| fail("the thread that puts in panicked"));
        while taken.take(&mut consumer) {}
        if taken.count != sent || taken.sum != squares(sent) {
            fail("what came out is not what was put in");
        }
        (rate, taken.sum)
    })
}
