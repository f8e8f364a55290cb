//! Queues between the workers and one background thread. Each stage of each worker has its own ring with a single
//! producer and a single consumer. A worker therefore never waits for a thread that was descheduled within an operation
//! on the queue.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rtrb::{Consumer, Producer, RingBuffer};

/// The queues from the workers to a background thread. Only the background thread and [`FromWorkers::join`] lock.
#[derive(Debug)]
pub(crate) struct FromWorkers<T> {
    capacity: usize,
    /// The rings, and the index of the ring that the next call of [`FromWorkers::pop`] reads first.
    rings: Mutex<(Vec<Consumer<T>>, usize)>,
}

/// The queues from a background thread to the workers. Only the background thread and [`ToWorkers::join`] lock.
#[derive(Debug)]
pub(crate) struct ToWorkers<T> {
    capacity: usize,
    /// The rings, and the index of the ring that the next call of [`ToWorkers::push`] fills first.
    rings: Mutex<(Vec<Producer<T>>, usize)>,
}

impl<T> FromWorkers<T> {
    /// Creates queues with `capacity` elements for each stage of each worker.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, rings: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Consumer<T>>, usize)> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue, and returns the worker's end of this queue.
    pub(crate) fn join(&self) -> Producer<T> {
        let (producer, consumer) = RingBuffer::new(self.capacity);
        self.lock().0.push(consumer);
        producer
    }

    /// Removes and returns an element. Successive calls take elements from the queues in turn.
    pub(crate) fn pop(&self) -> Option<T> {
        let (rings, turn) = &mut *self.lock();
        rings.retain(|ring| !(ring.is_abandoned() && ring.is_empty()));
        let count = rings.len();
        let mut places = (0..count).map(|step| (*turn + step) % count);
        let (place, element) = places.find_map(|place| Some((place, rings[place].pop().ok()?)))?;
        *turn = place + 1;
        Some(element)
    }

    /// Returns the number of elements in all queues.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().0.iter().map(Consumer::slots).sum()
    }
}

impl<T> ToWorkers<T> {
    /// Creates queues with `capacity` elements for each stage of each worker.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, rings: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Producer<T>>, usize)> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue, and returns the worker's end of this queue.
    pub(crate) fn join(&self) -> Consumer<T> {
        let (producer, consumer) = RingBuffer::new(self.capacity);
        self.lock().0.push(producer);
        consumer
    }

    /// Adds an element to the queue of the next worker whose queue has room. Returns `false`, and drops the element, if
    /// all queues are full.
    pub(crate) fn push(&self, element: T) -> bool {
        let (rings, turn) = &mut *self.lock();
        rings.retain(|ring| !ring.is_abandoned());
        let count = rings.len();
        let free = (0..count).map(|step| (*turn + step) % count).find(|place| !rings[*place].is_full());
        let Some(place) = free else { return false };
        *turn = place + 1;
        rings[place].push(element).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_workers_take_turns_and_a_full_queue_refuses_elements() {
        let queues = FromWorkers::new(2);
        let (mut a, mut b) = (queues.join(), queues.join());
        for element in [1, 2] {
            a.push(element).unwrap();
        }
        b.push(3).unwrap();
        assert!(a.push(9).is_err());
        // The elements of a worker that has ended are not lost.
        drop(a);
        assert_eq!([(); 4].map(|()| queues.pop()), [Some(1), Some(3), Some(2), None]);
        b.push(4).unwrap();
        assert_eq!((queues.pop(), queues.lock().0.len()), (Some(4), 1));

        let queues = ToWorkers::new(2);
        assert!(!queues.push(0), "there is no worker");
        let (mut a, mut b) = (queues.join(), queues.join());
        assert_eq!([1, 2, 3, 4, 5].map(|element| queues.push(element)), [true, true, true, true, false]);
        assert_eq!([a.pop(), a.pop(), b.pop()], [Ok(1), Ok(3), Ok(2)]);
        drop(a);
        assert_eq!([6, 7].map(|element| queues.push(element)), [true, false]);
        assert_eq!([b.pop(), b.pop()], [Ok(4), Ok(6)]);
    }

    #[test]
    fn elements_of_several_threads_arrive_once_and_in_order() {
        const COUNT: u32 = 20_000;
        let queues = FromWorkers::new(16);
        std::thread::scope(|scope| {
            for worker in 0..2u32 {
                let mut ring = queues.join();
                scope.spawn(move || {
                    for element in 0..COUNT {
                        while ring.push((worker, element)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; 2];
            while next != [COUNT; 2] {
                match queues.pop() {
                    Some((worker, element)) => {
                        assert_eq!(element, next[worker as usize]);
                        next[worker as usize] += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        assert_eq!(queues.pop(), None);
    }
}
