//! The receive side of a trial.

use dataplane::mem::Batch;
use dataplane::units::Nanos;

use crate::judge::{Arrival, Judge};
use crate::sender::Sender;
use crate::signature::{Found, Key, Signature, ones_sum};
use crate::stream::Stream;

/// The state of the receive side of a trial.
pub(super) struct Receiver<'a> {
    pub(super) streams: &'a [Stream],
    pub(super) judges: &'a mut [Judge],
    pub(super) key: Key,
    /// The start of the trial on the system clock.
    pub(super) start: Nanos,
    pub(super) judged: u64,
    pub(super) foreign: u64,
}

impl Receiver<'_> {
    /// Judges the packets of a batch that arrived at the port `port`.
    #[inline]
    pub(super) fn judge(&mut self, batch: &mut Batch, port: usize, now: Nanos, senders: &[Sender]) {
        for packet in batch.iter_mut() {
            let stamp = packet.stamp().nanos();
            let at = if stamp.0 == 0 { now } else { stamp };
            let data = packet.data();
            let found = Signature::find(data, self.key);
            let stream = |found: Found| {
                let number = usize::from(found.signature.stream);
                let stream = self.streams.get(number).filter(|it| it.to == port)?;
                let sequence = found.signature.sequence_near(senders.get(number)?.sent());
                Some((found, sequence, stream.filler(found.signature.size, sequence)?))
            };
            let Some((Found { signature, offset, repaired }, sequence, filler)) = found.and_then(stream) else {
                self.foreign += 1;
                continue;
            };
            let filler = offset.checked_sub(filler).and_then(|start| data.get(start..offset));
            let is_intact = !repaired && filler.is_some_and(|filler| !ones_sum(filler) == signature.filler);
            let latency = at.0.saturating_sub(signature.sent_before(at).0);
            let at = at.0.saturating_sub(self.start.0);
            let number = usize::from(signature.stream);
            if let (Some(judge), Some(sender)) = (self.judges.get_mut(number), senders.get(number)) {
                self.judged += 1;
                judge.arrive(Arrival { sequence, at, latency, corrupted: !is_intact }, sender.sent());
            }
        }
    }
}
