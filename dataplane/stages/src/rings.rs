//! Queues between the workers and one background thread. Each stage of each worker has its own ring with a single
//! producer and a single consumer. A worker therefore never waits for a thread that was descheduled within an operation
//! on the queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    rings: Mutex<(Vec<ProducerEnd<T>>, usize)>,
}

/// The background thread's end of a queue of [`ToWorkers`].
#[derive(Debug)]
struct ProducerEnd<T> {
    ring: Producer<T>,
    /// Whether a worker has read from the queue.
    is_read: Arc<AtomicBool>,
}

/// The worker's end of a queue of [`ToWorkers`].
#[derive(Debug)]
pub(crate) struct WorkerEnd<T> {
    ring: Consumer<T>,
    /// Whether this end has already set `is_read`. Avoids a write to shared memory in each call.
    is_marked: bool,
    is_read: Arc<AtomicBool>,
}

impl<T> WorkerEnd<T> {
    /// Removes and returns an element.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if !self.is_marked {
            self.is_marked = true;
            self.is_read.store(true, Ordering::Relaxed);
        }
        self.ring.pop().ok()
    }
}

impl<T> FromWorkers<T> {
    /// Creates an empty set of queues. Each queue that [`FromWorkers::join`] adds has room for `capacity` elements.
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
    /// Creates an empty set of queues. Each queue that [`ToWorkers::join`] adds has room for `capacity` elements.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity, rings: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<ProducerEnd<T>>, usize)> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue, and returns the worker's end of this queue.
    pub(crate) fn join(&self) -> WorkerEnd<T> {
        let (producer, consumer) = RingBuffer::new(self.capacity);
        let is_read = Arc::new(AtomicBool::new(false));
        self.lock().0.push(ProducerEnd { ring: producer, is_read: is_read.clone() });
        WorkerEnd { ring: consumer, is_marked: false, is_read }
    }

    /// Adds an element to the next queue that has room. Returns `false`, and drops the element, if no queue has room.
    ///
    /// As soon as a worker has read from one of the queues, elements go only to queues from which a worker has read. The
    /// other queues belong to stages that were prepared for a change of the config and that may never run.
    pub(crate) fn push(&self, element: T) -> bool {
        let (rings, turn) = &mut *self.lock();
        rings.retain(|end| !end.ring.is_abandoned());
        let is_read = |end: &ProducerEnd<T>| end.is_read.load(Ordering::Relaxed);
        let is_any_read = rings.iter().any(is_read);
        let has_room = |end: &ProducerEnd<T>| (is_read(end) || !is_any_read) && !end.ring.is_full();
        let count = rings.len();
        let free = (0..count).map(|step| (*turn + step) % count).find(|place| has_room(&rings[*place]));
        let Some(place) = free else { return false };
        *turn = place + 1;
        rings[place].ring.push(element).is_ok()
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
        assert_eq!([a.pop(), a.pop(), b.pop()], [Some(1), Some(3), Some(2)]);
        drop(a);
        assert_eq!([6, 7].map(|element| queues.push(element)), [true, false]);
        assert_eq!([b.pop(), b.pop()], [Some(4), Some(6)]);
    }

    #[test]
    fn stages_that_do_not_run_get_no_elements() {
        let queues = ToWorkers::new(16);
        let mut running = queues.join();
        assert_eq!(running.pop(), None);
        let mut prepared = queues.join();
        for element in 0..10 {
            assert!(queues.push(element));
        }
        assert_eq!(
            [(); 11].map(|()| running.pop()).into_iter().flatten().collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
        // The prepared stage runs now, and the other stage has ended.
        assert_eq!(prepared.pop(), None);
        drop(running);
        assert!(queues.push(10));
        assert_eq!(prepared.pop(), Some(10));
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
