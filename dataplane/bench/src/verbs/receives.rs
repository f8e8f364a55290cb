//! The posted receives of a side, and the length of received messages.

use dataplane::verbs::Device;
use dataplane::{Error, Result};

use super::endpoint::Endpoint;

/// The receives of a side, which stay posted between the sizes.
#[derive(Debug, Default)]
pub(super) struct Receives {
    outstanding: usize,
}

impl Receives {
    /// Posts receives for `messages` messages, at most `depth` at once.
    pub(super) fn fill<D: Device>(&mut self, end: &mut Endpoint<'_, D>, messages: usize, depth: u32) -> Result<()> {
        while self.outstanding < messages.min(depth as usize) {
            end.post_receive()?;
            self.outstanding += 1;
        }
        Ok(())
    }

    /// Notes that a message has arrived while `missing` messages are still missing. Posts another receive if there are
    /// fewer receives than missing messages.
    pub(super) fn replace<D: Device>(&mut self, end: &mut Endpoint<'_, D>, missing: usize) -> Result<()> {
        self.outstanding -= 1;
        if self.outstanding < missing {
            end.post_receive()?;
            self.outstanding += 1;
        }
        Ok(())
    }
}

/// Returns an error if a received message of the last poll has another size.
pub(super) fn check_length<D: Device>(end: &Endpoint<'_, D>, size: u32) -> Result<()> {
    let lengths = end.completions().iter().filter_map(|completion| end.received_length(completion));
    match lengths.into_iter().find(|length| *length != size) {
        None => Ok(()),
        Some(length) => Err(Error::Peer(format!(
            "received a message of {length} bytes instead of {size} bytes; help: use the same --size or --all on both \
             sides"
        ))),
    }
}
