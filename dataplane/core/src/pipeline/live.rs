//! Values that a control thread replaces while workers use them.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

#[cfg(not(loom))]
use rtrb::{Consumer, Producer, RingBuffer};

#[cfg(loom)]
use self::loom_ring::{Consumer, Producer, RingBuffer};
use crate::mem::AtomicBox;
use crate::sync::{Arc, Mutex, MutexGuard};

#[cfg(loom)]
mod loom_ring;

/// The publishing side of a value that is replaced while workers use it, such as a table of a stage.
///
/// Each stage of each worker has its own [`LiveReader`] with its own value, so a value may contain counters that the
/// worker writes. Put a large table that all workers read into an [`Arc`]. A thread other than a worker builds new
/// values and publishes them. Between two batches, each reader switches to the new value by exchanging one pointer, and
/// hands the old value back. Only [`Live::publish`] and [`Live::settle`] drop old values, so a worker never frees
/// memory.
///
/// ```
/// use std::sync::Arc;
/// use dataplane_core::pipeline::{Live, LiveReader};
///
/// let live = Live::default();
/// let mut reader: LiveReader<Arc<[u16]>> = live.reader([53].into());
/// live.publish(|_| [53, 853].into());
/// assert_eq!(reader.len(), 1, "a stage uses one value for a whole batch");
/// assert!(!live.settle());
/// reader.refresh();
/// assert_eq!(reader.len(), 2);
/// assert!(live.settle());
/// ```
#[derive(Debug)]
pub struct Live<T> {
    /// The readers by number. The entry of a dropped reader is `None`, so that the remaining readers keep their
    /// numbers.
    readers: Mutex<Vec<Option<ReaderState<T>>>>,
}

/// The state of a reader on the publishing side.
#[derive(Debug)]
struct ReaderState<T> {
    next: Arc<Next<T>>,
    /// Values that the reader has handed back.
    old: Consumer<Box<T>>,
    /// The number of old values that the reader must still hand back.
    open: usize,
}

/// The worker's side of a live value. Dereferences to the current value.
#[derive(Debug)]
pub struct LiveReader<T> {
    current: Box<T>,
    next: Arc<Next<T>>,
    /// Values that the reader hands back. The publishing side empties this ring before it adds a value to `next`.
    /// Until the publishing side empties the ring again, the reader hands back at most three values:
    ///
    /// 1. A value that the reader was handing back while the publishing side emptied the ring.
    /// 2. The old value after the reader takes the value that was in `next` at that time.
    /// 3. The old value after the reader takes the value that the publishing side then adds to `next`.
    old: Producer<Box<T>>,
}

/// The latest value, if the reader has not taken it yet. Each side only exchanges one pointer. Neither side ever waits,
/// even if the kernel has preempted the thread of the opposite side.
struct Next<T>(AtomicBox<T>);

impl<T> fmt::Debug for Next<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}

/// The number of values that a reader can hand back before the publishing side empties the ring again.
const HANDED_BACK: usize = 3;

impl<T> Default for Live<T> {
    fn default() -> Self {
        Self { readers: Mutex::default() }
    }
}

impl<T> Live<T> {
    /// Adds a reader with its first value. Readers are numbered from 0, in the order of their creation.
    pub fn reader(&self, first: T) -> LiveReader<T> {
        let (next, (handed, old)) = (Arc::new(Next(AtomicBox::new())), RingBuffer::new(HANDED_BACK));
        self.readers().push(Some(ReaderState { next: next.clone(), old, open: 0 }));
        LiveReader { current: Box::new(first), next, old: handed }
    }

    /// Publishes a new value for every reader. `make` builds the value for the reader with the given number. If a
    /// reader has not taken the previous value yet, the new value replaces the previous value. A reader that was
    /// dropped gets no value.
    pub fn publish(&self, mut make: impl FnMut(usize) -> T) {
        for (number, slot) in self.readers().iter_mut().enumerate() {
            let Some(reader) = present(slot) else { continue };
            reader.collect();
            if reader.next.0.replace(Box::new(make(number))).is_none() {
                reader.open += 1;
            }
        }
    }

    /// Drops the values that readers have handed back. Returns `true` if every reader uses the latest value. Readers
    /// that were dropped do not count.
    pub fn settle(&self) -> bool {
        self.readers().iter_mut().filter_map(present).fold(true, |all, reader| all & reader.collect())
    }

    fn readers(&self) -> MutexGuard<'_, Vec<Option<ReaderState<T>>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A large value that all workers read, such as a table, and that a control thread replaces.
///
/// All readers share each published value. A new reader starts with the latest value. To give each reader its own
/// value, use [`Live`].
#[derive(Debug)]
pub struct LiveTable<T> {
    latest: Mutex<Arc<T>>,
    live: Live<Arc<T>>,
}

impl<T> LiveTable<T> {
    /// Creates a table with its first value.
    pub fn new(first: T) -> Self {
        Self { latest: Mutex::new(Arc::new(first)), live: Live::default() }
    }

    /// Adds a reader, which starts with the latest value.
    pub fn reader(&self) -> LiveReader<Arc<T>> {
        let latest = self.latest();
        self.live.reader(latest.clone())
    }

    /// Publishes a new value for all readers. See [`Live::publish`].
    pub fn publish(&self, value: T) {
        let mut latest = self.latest();
        *latest = Arc::new(value);
        self.live.publish(|_| latest.clone());
    }

    /// Drops the values that no reader uses any more. Returns `true` if every reader uses the latest value. See
    /// [`Live::settle`].
    pub fn settle(&self) -> bool {
        self.live.settle()
    }

    fn latest(&self) -> MutexGuard<'_, Arc<T>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the state in `slot`, or `None` if the reader was dropped. Drops the values of a dropped reader.
fn present<T>(slot: &mut Option<ReaderState<T>>) -> Option<&mut ReaderState<T>> {
    slot.take_if(|reader| reader.old.is_abandoned());
    slot.as_mut()
}

impl<T> ReaderState<T> {
    /// Drops the values that the reader has handed back. Returns whether the reader uses the latest value.
    fn collect(&mut self) -> bool {
        while self.old.pop().is_ok() {
            self.open -= 1;
        }
        self.open == 0
    }
}

impl<T> LiveReader<T> {
    /// Switches to the latest value. Call this method in [`Stage::tick`]. The method neither waits nor frees memory.
    ///
    /// [`Stage::tick`]: super::Stage::tick
    #[inline]
    pub fn refresh(&mut self) {
        self.refresh_with(|_, _| {});
    }

    /// Switches to the latest value like [`LiveReader::refresh`]. Before the switch, `carry` moves data from the
    /// current value to the latest value, such as counters.
    #[inline]
    pub fn refresh_with(&mut self, carry: impl FnOnce(&T, &mut T)) {
        if let Some(mut next) = self.next.0.take() {
            carry(&self.current, &mut next);
            self.hand_back(next);
        }
    }

    /// Makes `next` the current value, and hands the previous value back.
    #[inline]
    fn hand_back(&mut self, next: Box<T>) {
        // The ring has room for all values that the reader can hand back.
        let pushed = self.old.push(std::mem::replace(&mut self.current, next));
        debug_assert!(pushed.is_ok(), "a reader has handed back more than three values and frees one on its worker");
    }
}

impl<T> Deref for LiveReader<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.current
    }
}

impl<T> DerefMut for LiveReader<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_of_a_table_share_the_latest_value() {
        let table = LiveTable::new(1);
        let mut first = table.reader();
        table.publish(2);
        let second = table.reader();
        assert_eq!((**first, **second), (1, 2), "a new reader starts with the latest value");
        assert!(!table.settle());
        first.refresh();
        assert!(Arc::ptr_eq(&first, &second));
        assert!(table.settle());
    }

    #[test]
    fn reader_skips_a_value_that_it_did_not_take_and_hands_back_its_previous_value() {
        let values: [Arc<u32>; 3] = [0, 1, 2].map(Arc::new);
        let live = Live::default();
        let mut readers = [0, 1].map(|_| live.reader(values[0].clone()));
        live.publish(|_| values[1].clone());
        readers[0].refresh();
        live.publish(|_| values[2].clone());
        readers[0].refresh();
        assert!(!live.settle(), "the second reader still uses the first value");
        assert_eq!(values.each_ref().map(Arc::strong_count), [2, 1, 3]);
        readers[1].refresh();
        assert!(live.settle());
        assert_eq!(readers.each_ref().map(|reader| ***reader), [2, 2]);
        assert_eq!(values.each_ref().map(Arc::strong_count), [1, 1, 3]);
    }

    #[test]
    fn reader_that_is_interrupted_hands_back_every_value() {
        let values: [Arc<u32>; 4] = [0, 1, 2, 3].map(Arc::new);
        let live = Live::default();
        let mut reader = live.reader(values[0].clone());
        live.publish(|_| values[1].clone());
        // The reader is interrupted after it has taken value 1 and before it hands back value 0.
        let taken = reader.next.0.take().unwrap();
        live.publish(|_| values[2].clone());
        // The publishing side empties the ring and is interrupted before it adds value 3. The reader goes on.
        assert!(!live.readers()[0].as_mut().unwrap().collect());
        reader.hand_back(taken);
        reader.refresh();
        assert!(reader.next.0.replace(Box::new(values[3].clone())).is_none());
        live.readers()[0].as_mut().unwrap().open += 1;
        reader.refresh();
        assert_eq!(values.each_ref().map(Arc::strong_count), [2, 2, 2, 2], "the reader has freed a value");
        assert!(live.settle());
        assert_eq!(values.each_ref().map(Arc::strong_count), [1, 1, 1, 2]);
    }

    #[test]
    fn dropped_reader_is_forgotten_and_the_others_keep_their_numbers() {
        let values: [Arc<usize>; 3] = [0, 1, 2].map(Arc::new);
        let live = Live::default();
        let [first, mut second] = [0, 1].map(|_| live.reader(values[0].clone()));
        live.publish(|_| values[1].clone());
        drop(first);
        second.refresh();
        assert!(live.settle(), "the dropped reader still counts");
        assert_eq!(values.each_ref().map(Arc::strong_count), [1, 2, 1]);
        let mut numbers = Vec::new();
        live.publish(|number| {
            numbers.push(number);
            values[2].clone()
        });
        assert_eq!(numbers, [1]);
        second.refresh();
        assert!(live.settle());
        assert_eq!(**second, 2);
    }

    #[test]
    fn refresh_on_another_thread_never_drops_a_value() {
        /// A value that panics if it is dropped on another thread than the thread that created the value.
        struct Owned(std::thread::ThreadId, u64);
        impl Drop for Owned {
            fn drop(&mut self) {
                assert_eq!(self.0, std::thread::current().id());
            }
        }
        const LAST: u64 = if cfg!(miri) { 100 } else { 10_000 };
        let new = |value| Owned(std::thread::current().id(), value);
        let live = Live::default();
        let mut reader = live.reader(new(0));
        std::thread::scope(|scope| {
            let reads = scope.spawn(move || {
                while reader.1 < LAST {
                    let before = reader.1;
                    reader.refresh();
                    assert!(reader.1 >= before);
                }
                reader
            });
            (1..=LAST).for_each(|value| live.publish(|_| new(value)));
            assert_eq!(reads.join().unwrap().1, LAST);
        });
        assert!(live.settle());
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use loom::alloc::Track;
    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    /// The values of one execution. Not a lock of loom, because the record is no part of the algorithm.
    #[derive(Clone, Default)]
    struct Record(std::sync::Arc<std::sync::Mutex<(usize, Vec<thread::ThreadId>)>>);

    impl Record {
        /// Creates a value that loom watches.
        fn create(&self, number: u32) -> Watched {
            self.0.lock().unwrap().0 += 1;
            let value = Watched { number, state: Track::new(UnsafeCell::new(())), record: self.clone() };
            value.change();
            value
        }

        /// Returns the number of values that were created and not dropped.
        fn live(&self) -> usize {
            let record = self.0.lock().unwrap();
            record.0 - record.1.len()
        }

        /// Returns the number of values that this thread dropped.
        fn dropped_here(&self) -> usize {
            let me = thread::current().id();
            self.0.lock().unwrap().1.iter().filter(|thread| **thread == me).count()
        }
    }

    /// A value that records the thread that drops the value. Loom reports accesses that are not ordered.
    struct Watched {
        number: u32,
        state: Track<UnsafeCell<()>>,
        record: Record,
    }

    impl Watched {
        /// Accesses the value as its only owner.
        fn change(&self) {
            self.state.get_ref().with_mut(|_| {});
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            self.change();
            self.record.0.lock().unwrap().1.push(thread::current().id());
        }
    }

    /// Publishes values with these numbers on another thread.
    fn publish(live: &Arc<Live<Watched>>, record: &Record, numbers: [u32; 2]) -> thread::JoinHandle<()> {
        let (live, record) = (live.clone(), record.clone());
        thread::spawn(move || numbers.into_iter().for_each(|number| live.publish(|_| record.create(number))))
    }

    #[test]
    fn reader_gets_the_latest_value_and_never_drops_a_value() {
        loom::model(|| {
            let (record, live) = (Record::default(), Arc::new(Live::default()));
            let mut reader = live.reader(record.create(0));
            // If a publication does not empty the ring, the ring is full before the last value.
            live.publish(|_| record.create(1));
            reader.refresh();
            live.publish(|_| record.create(2));
            assert_eq!(record.dropped_here(), 1, "the second publication has dropped value 0");
            let publisher = publish(&live, &record, [3, 4]);
            let mut last = 1;
            for _ in 0..3 {
                reader.refresh_with(|current, next| {
                    current.change();
                    next.change();
                });
                assert!(reader.number >= last, "value {} after value {last}", reader.number);
                last = reader.number;
                reader.change();
            }
            publisher.join().unwrap();
            reader.refresh();
            assert_eq!(reader.number, 4);
            assert_eq!(record.dropped_here(), 1, "the reader has dropped a value");
            assert!(live.settle());
            assert_eq!(record.live(), 1);
        });
    }

    #[test]
    fn every_value_is_dropped_if_the_reader_ends_during_a_publication() {
        loom::model(|| {
            let (record, live) = (Record::default(), Arc::new(Live::default()));
            let mut reader = live.reader(record.create(0));
            let publisher = publish(&live, &record, [1, 2]);
            reader.refresh();
            reader.change();
            drop(reader);
            publisher.join().unwrap();
            assert!(live.settle());
            assert_eq!(record.live(), 0);
        });
    }
}
