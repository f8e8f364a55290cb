//! The reasons to end a test early: a signal, a dead peer, or a lost message.

use std::time::{Duration, Instant};

use dataplane::units::Period;
use dataplane::{Error, Result};

use super::exchange::{Exchange, closed};
use crate::tester::stopped;

/// The number of empty polls between two looks at the clock.
const POLLS: u32 = 1024;
/// The time between two looks at the connection.
const LOOK: Duration = Duration::from_millis(20);
/// The time without a completion after which a closed connection means that the peer is gone. A peer may close the
/// connection before the last completion of this side arrives.
const GRACE: Duration = Duration::from_secs(1);

/// Watches a test while it waits for completions.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    exchange: &'a Exchange<'a>,
    /// The maximum wait for a completion. `None`: the transport loses no messages.
    limit: Option<Duration>,
    polls: u32,
    /// The time of the first empty poll since the last completion.
    idle: Option<Instant>,
    looked: Option<Instant>,
    was_closed: bool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(exchange: &'a Exchange<'a>, limit: Option<Duration>) -> Self {
        Self { exchange, limit, polls: 0, idle: None, looked: None, was_closed: false }
    }

    /// Notes that a completion has arrived.
    #[inline]
    pub(super) fn progress(&mut self) {
        self.polls = 0;
        self.idle = None;
    }

    /// Notes that a poll found nothing. `waited` is set if the poll slept.
    ///
    /// # Errors
    /// A signal has stopped the run, the peer is gone, or a message has not arrived in time.
    #[inline]
    pub(super) fn empty(&mut self, waited: bool) -> Result<()> {
        self.polls += 1;
        if waited || self.polls >= POLLS { self.look() } else { Ok(()) }
    }

    /// Checks whether a signal has stopped the run.
    ///
    /// # Errors
    /// A signal has stopped the run.
    #[inline]
    pub(super) fn check_stop(&self) -> Result<()> {
        if self.exchange.is_stopped() { Err(stopped()) } else { Ok(()) }
    }

    /// Returns the time since the first empty poll after the last completion.
    pub(super) fn idle_time(&self) -> Duration {
        self.idle.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns whether the peer has sent the message of the next step of the exchange. The peer then sends no more data
    /// in this test.
    pub(super) fn peer_has_finished(&self) -> bool {
        self.exchange.has_message()
    }

    #[cold]
    fn look(&mut self) -> Result<()> {
        self.polls = 0;
        self.check_stop()?;
        let now = Instant::now();
        let idle = now - *self.idle.get_or_insert(now);
        if self.looked.is_none_or(|looked| now - looked >= LOOK) {
            self.looked = Some(now);
            self.was_closed = self.exchange.is_closed();
        }
        if self.was_closed && idle >= GRACE {
            return Err(closed("during the test"));
        }
        match self.limit {
            Some(limit) if idle >= limit => Err(Error::Peer(format!(
                "no message arrived within {}: this transport does not send lost messages again; help: use --type rc, \
                 or raise --timeout",
                Period(limit)
            ))),
            _ => Ok(()),
        }
    }
}
