//! The ring buffer that passes packets from a worker to another thread.

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
/// The number of items of the first pass, which checks the order of the items: a multiple of the burst size.
pub(crate) const FIRST_ITEMS: u64 = 1 << 20;

/// Pushes the numbers 0, 1, 2 and so on in bursts, up to the limit or until `stop` is set. Returns the number of pushed
/// items.
fn push_all(ring: &mut Producer<u64>, limit: u64, stop: &AtomicBool) -> u64 {
    let mut next = 0;
    while next < limit && !stop.load(Ordering::Relaxed) {
        let items: [u64; BURST] = std::array::from_fn(|i| next + i as u64);
        let (pushed, _) = ring.push_partial_slice(&items);
        if pushed.is_empty() {
            hint::spin_loop();
        }
        next += pushed.len() as u64;
    }
    next
}

#[derive(Default)]
struct Received {
    count: u64,
    sum: u64,
}

impl Received {
    /// Receives a burst. Adds each item, multiplied by its position, to the sum, so that the sum depends on the order
    /// of the items. Returns `false` if the ring is empty.
    fn receive(&mut self, ring: &mut Consumer<u64>) -> bool {
        let mut items = [const { MaybeUninit::uninit() }; BURST];
        let (items, _) = ring.pop_partial_slice_uninit(&mut items);
        let weighted = items.iter().zip(self.count..).map(|(item, position)| item.wrapping_mul(position));
        self.sum = weighted.fold(self.sum, u64::wrapping_add);
        self.count += items.len() as u64;
        !items.is_empty()
    }
}

/// Returns the expected sum for the numbers below `count`: the sum of their squares.
fn sum_of_squares(count: u64) -> u64 {
    let n = u128::from(count);
    (n.saturating_sub(1) * n * (2 * n).saturating_sub(1) / 6) as u64
}

/// Receives items that a thread on another core pushes, at most `limit` items and for at most `time`. Returns the rate
/// in millions of items per second, and the sum over the items.
pub(crate) fn pass_items(from: usize, limit: u64, time: Duration) -> (f64, u64) {
    let (mut producer, mut consumer) = RingBuffer::new(SLOTS);
    // The padding keeps other data out of the cache line of the flag.
    let stop = &CachePadded::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            pin(from);
            push_all(&mut producer, limit, stop)
        });
        let mut received = Received::default();
        while !received.receive(&mut consumer) {
            hint::spin_loop();
        }
        let began = Instant::now();
        let rate = loop {
            for _ in 0..1024 {
                if received.count == limit {
                    break;
                }
                if !received.receive(&mut consumer) {
                    hint::spin_loop();
                }
            }
            let took = began.elapsed();
            if received.count == limit || took >= time {
                break received.count as f64 / took.as_secs_f64() / 1e6;
            }
        };
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().unwrap_or_else(|_| fail("the sending thread panicked"));
        while received.receive(&mut consumer) {}
        if received.count != sent || received.sum != sum_of_squares(sent) {
            fail("the received items differ from the sent items");
        }
        (rate, received.sum)
    })
}
