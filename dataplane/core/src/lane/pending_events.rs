//! Passes asynchronous device events from the thread that reads the events to the affected lanes. A lane is one
//! worker's queue pair and completion queues on one port.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::verbs::{AsyncEvent, EventKind, EventSubject};

/// The pending events of one device. A lane checks the version every few hundred loops. The lane takes the lock only if
/// the version has changed.
#[derive(Debug, Default)]
pub struct PendingEvents {
    /// Incremented after every new event.
    version: AtomicU32,
    gone: AtomicBool,
    pending: Mutex<Vec<(EventKind, u32)>>,
}

impl PendingEvents {
    /// Adds an event. An event that is already pending is not added again, so repeated events use no additional memory.
    pub fn push(&self, event: AsyncEvent) {
        if event.kind == EventKind::DeviceFatal {
            self.gone.store(true, Ordering::Relaxed);
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if !pending.contains(&(event.kind, event.element)) {
            pending.push((event.kind, event.element));
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns whether events were added since version `seen`, and updates `seen`.
    #[inline]
    pub fn changed_since(&self, seen: &mut u32) -> bool {
        let now = self.version.load(Ordering::Acquire);
        std::mem::replace(seen, now) != now
    }

    /// Returns whether the device has reported a fatal error. Such a device does not come back.
    pub fn is_device_lost(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Removes all events of a queue pair, of its work queue and of its completion queues `queues`, because these
    /// queues no longer exist.
    pub fn forget(&self, queue_pair: u32, work_queue: Option<u32>, queues: &[u32]) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.retain(|(kind, number)| match kind.subject() {
            EventSubject::QueuePair => *number != queue_pair,
            EventSubject::WorkQueue => Some(*number) != work_queue,
            EventSubject::CompletionQueue => !queues.contains(number),
            _ => true,
        });
    }

    /// Removes every event whose kind is in `kinds` and whose queue number is in `numbers`. Returns whether an event
    /// was removed.
    pub fn take(&self, kinds: &[EventKind], numbers: &[u32]) -> bool {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let before = pending.len();
        pending.retain(|(kind, number)| !(kinds.contains(kind) && numbers.contains(number)));
        pending.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_events_are_stored_and_taken_once() {
        let (pending_events, mut seen) = (PendingEvents::default(), 0);
        for _ in 0..37 {
            pending_events.push(AsyncEvent { kind: EventKind::CqErr, element: 4 });
        }
        assert!(pending_events.changed_since(&mut seen) && !pending_events.changed_since(&mut seen));
        assert!(!pending_events.take(&[EventKind::CqErr], &[5]) && !pending_events.take(&[EventKind::QpFatal], &[4]));
        assert!(
            pending_events.take(&[EventKind::CqErr], &[4, 5]) && !pending_events.take(&[EventKind::CqErr], &[4, 5])
        );
        pending_events.push(AsyncEvent { kind: EventKind::CqErr, element: 4 });
        assert!(pending_events.changed_since(&mut seen), "an event that was taken can be raised again");
        assert!(!pending_events.is_device_lost());
        pending_events.push(AsyncEvent { kind: EventKind::QpFatal, element: 4 });
        pending_events.push(AsyncEvent { kind: EventKind::WqFatal, element: 4 });
        pending_events.forget(5, None, &[5, 4]);
        assert!(
            !pending_events.take(&[EventKind::CqErr], &[4]),
            "events of the forgotten completion queue are removed"
        );
        assert!(pending_events.take(&[EventKind::QpFatal], &[4]), "events of a queue pair with the same number stay");
        pending_events.forget(5, Some(4), &[]);
        assert!(!pending_events.take(&[EventKind::WqFatal], &[4]), "events of the forgotten work queue are removed");
        pending_events.push(AsyncEvent { kind: EventKind::DeviceFatal, element: 0 });
        assert!(pending_events.is_device_lost());
    }
}
