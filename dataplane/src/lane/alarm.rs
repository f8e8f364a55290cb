//! What the device says outside any completion, on its way from the thread that hears it to the lanes that it is about.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::provider::{AsyncEvent, EventKind, EventSubject};

/// The alarms of one device. Lanes look at it every few hundred loops, and take a lock only when there is something new.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    /// Changes with every alarm, after it.
    version: AtomicU32,
    gone: AtomicBool,
    rung: Mutex<Vec<(EventKind, u32)>>,
}

impl Alarms {
    /// Rings for the queues that an event is about. One that has rung already and was not heard yet does not ring
    /// again: of a storm of events one remains.
    pub(crate) fn ring(&self, event: AsyncEvent) {
        if event.kind == EventKind::DeviceFatal {
            self.gone.store(true, Ordering::Relaxed);
        }
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        if !rung.contains(&(event.kind, event.element)) {
            rung.push((event.kind, event.element));
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether there is something that was not there at `seen`, which is brought up to date.
    #[inline]
    pub(crate) fn rang_since(&self, seen: &mut u32) -> bool {
        let now = self.version.load(Ordering::Acquire);
        std::mem::replace(seen, now) != now
    }

    /// Whether the device is gone for good.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Takes off all alarms of a queue pair and its completion queues, which are gone.
    pub(crate) fn forget(&self, queue_pair: u32, queues: &[u32]) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        rung.retain(|(kind, number)| match kind.subject() {
            EventSubject::QueuePair => *number != queue_pair,
            EventSubject::CompletionQueue => !queues.contains(number),
            _ => true,
        });
    }

    /// Hears, and takes off, the alarm of this kind for one of these queues.
    pub(crate) fn hear(&self, kinds: &[EventKind], numbers: &[u32]) -> bool {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let before = rung.len();
        rung.retain(|(kind, number)| !(kinds.contains(kind) && numbers.contains(number)));
        rung.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_is_one_alarm_and_is_heard_once() {
        let (alarms, mut seen) = (Alarms::default(), 0);
        for _ in 0..37 {
            alarms.ring(AsyncEvent { kind: EventKind::CqErr, element: 4 });
        }
        assert!(alarms.rang_since(&mut seen) && !alarms.rang_since(&mut seen));
        assert!(!alarms.hear(&[EventKind::CqErr], &[5]) && !alarms.hear(&[EventKind::QpFatal], &[4]));
        assert!(alarms.hear(&[EventKind::CqErr], &[4, 5]) && !alarms.hear(&[EventKind::CqErr], &[4, 5]));
        alarms.ring(AsyncEvent { kind: EventKind::CqErr, element: 4 });
        assert!(alarms.rang_since(&mut seen), "it may ring again");
        assert!(!alarms.is_gone());
        alarms.ring(AsyncEvent { kind: EventKind::QpFatal, element: 4 });
        alarms.forget(5, &[5, 4]);
        assert!(!alarms.hear(&[EventKind::CqErr], &[4]), "it is gone");
        assert!(alarms.hear(&[EventKind::QpFatal], &[4]), "a queue pair of the same number is not");
        alarms.ring(AsyncEvent { kind: EventKind::DeviceFatal, element: 0 });
        assert!(alarms.is_gone());
    }
}
