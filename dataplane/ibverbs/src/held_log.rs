//! Log messages of functions that have claimed a queue or hold a lock.
//!
//! The logger of the program (the `tracing` subscriber) runs in the thread that logs, and may call any function of this
//! crate. During a claim, the subscriber could end the claim with `CompletionQueue::release`. Another thread could then
//! use a queue that has no lock. While the thread holds a lock, the subscriber could wait for this lock indefinitely. A
//! function that may log while it holds a temporary claim or a lock therefore calls [`hold`] first. The messages are
//! then logged after the claims and the locks have ended.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

type Message = Box<dyn FnOnce()>;

thread_local! {
    /// The number of `Hold` values of this thread.
    static HOLDS: Cell<usize> = const { Cell::new(0) };
    static HELD: RefCell<Vec<Message>> = const { RefCell::new(Vec::new()) };
}

/// Holds the messages of this thread until the value is dropped. Declare the value before the guards of claims and
/// locks: local variables are dropped in reverse order.
#[must_use = "the messages are logged as soon as this value is dropped"]
pub(super) struct Hold(PhantomData<*const ()>);

/// Holds the messages of this thread. Calls may be nested: the drop of the outermost value logs the messages.
pub(super) fn hold() -> Hold {
    HOLDS.set(HOLDS.get() + 1);
    Hold(PhantomData)
}

impl Drop for Hold {
    fn drop(&mut self) {
        HOLDS.set(HOLDS.get() - 1);
        if HOLDS.get() == 0 {
            // The list is empty again before the first message is logged, because the subscriber may hold messages too.
            HELD.try_with(RefCell::take).unwrap_or_default().into_iter().for_each(|log| log());
        }
    }
}

/// Calls `log` now, or after the last [`Hold`] of this thread is dropped.
pub(super) fn emit(log: impl FnOnce() + 'static) {
    if HOLDS.get() == 0 {
        return log();
    }
    // A thread that ends may already have dropped its list. The message is then lost.
    let _ = HELD.try_with(|held| held.borrow_mut().push(Box::new(log)));
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn held_message_is_logged_when_the_outermost_hold_ends() {
        let logged = Rc::new(RefCell::new(Vec::new()));
        let log = |number: u32| {
            let logged = logged.clone();
            emit(move || logged.borrow_mut().push(number));
        };
        log(1);
        assert_eq!(*logged.borrow(), [1]);
        let outer = hold();
        log(2);
        drop(hold());
        log(3);
        assert_eq!(*logged.borrow(), [1]);
        drop(outer);
        assert_eq!(*logged.borrow(), [1, 2, 3]);
    }
}
