//! The posted receives of a side, and the length of received messages.

use dataplane::verbs::Device;
use dataplane::{Error, Result};

use super::endpoint::Endpoint;

/// The number of posted receives of each queue pair. The receives stay posted between the sizes.
#[derive(Debug)]
pub(super) struct Receives(Vec<usize>);

impl Receives {
    pub(super) fn new(queue_pairs: usize) -> Self {
        Self(vec![0; queue_pairs])
    }

    /// Posts receives for `messages` messages of each queue pair, at most `depth` at once.
    pub(super) fn fill<D: Device>(&mut self, end: &mut Endpoint<'_, D>, messages: usize, depth: u32) -> Result<()> {
        for (queue_pair, outstanding) in self.0.iter_mut().enumerate() {
            while *outstanding < messages.min(depth as usize) {
                end.post_receive(queue_pair)?;
                *outstanding += 1;
            }
        }
        Ok(())
    }

    /// Notes that a message has arrived at a queue pair while `missing` messages of this queue pair are still missing.
    /// Posts another receive if there are fewer receives than missing messages.
    pub(super) fn replace<D: Device>(
        &mut self,
        end: &mut Endpoint<'_, D>,
        queue_pair: usize,
        missing: usize,
    ) -> Result<()> {
        let outstanding = &mut self.0[queue_pair];
        *outstanding -= 1;
        if *outstanding < missing {
            end.post_receive(queue_pair)?;
            *outstanding += 1;
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
