//! The receive side of a trial.

use dataplane::clock::Stamp;
use dataplane::mem::Batch;
use dataplane::units::Nanos;

use crate::judge::{Arrival, Judge};
use crate::sender::Sender;
use crate::signature::{BurstHash, Found, Key, LENGTH, Signature, Words, ones_sum};
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

/// Packets of one stream and one frame size with consecutive sequence numbers and equal times, which arrived one after
/// the other. If a run has several packets, all these packets have the right content.
struct Run {
    /// The number of the stream.
    stream: usize,
    first: Arrival,
    /// The number of packets.
    count: u64,
    /// The maximum number of packets. The next packet was not sent yet, or the low 32 bits of its sequence number wrap
    /// around.
    most: u64,
    /// The receive timestamp of the packets.
    stamp: Stamp,
    /// The signature of the first packet.
    signature: Words,
    hash: BurstHash,
    /// The length of the filler, and its Internet checksum.
    filler: (usize, u16),
}

impl Run {
    /// Adds the packets that continue the run. Returns the first packet that does not continue the run.
    #[inline]
    fn extend<'a>(&mut self, packets: &mut impl Iterator<Item = (&'a [u8], Stamp)>) -> Option<(&'a [u8], Stamp)> {
        let Self { most, stamp, signature, hash, filler, .. } = *self;
        let mut middle = signature.middle;
        let mut continues = |(data, arrived): (&[u8], Stamp)| {
            middle = middle.wrapping_add(1);
            let next = Words { check: hash.check(middle as u32), middle, ..signature };
            let Some((before, bytes)) = data.split_last_chunk::<LENGTH>() else { return false };
            // Equal signatures contain equal checksums of the filler. A filler that is not empty must be summed too.
            Words::new(bytes) == next && arrived == stamp && (filler.0 == 0 || is_filler(before, filler))
        };
        for packet in packets {
            if self.count == most || !continues(packet) {
                return Some(packet);
            }
            self.count += 1;
        }
        None
    }
}

/// Returns whether `before`, the bytes before a signature, end with the filler of this length and Internet checksum.
#[inline]
fn is_filler(before: &[u8], (length, sum): (usize, u16)) -> bool {
    let filler = before.len().checked_sub(length).and_then(|start| before.get(start..));
    filler.is_some_and(|filler| !ones_sum(filler) == sum)
}

impl Receiver<'_> {
    /// Judges the packets of a batch that arrived at the port `port`. Packets that follow each other in their stream are
    /// judged together.
    #[inline]
    pub(super) fn judge(&mut self, batch: &Batch, port: usize, now: Nanos, senders: &[Sender]) {
        let mut packets = batch.contents();
        let mut next = packets.next();
        while let Some((data, stamp)) = next {
            let Some(mut run) = self.start_run(data, stamp, port, now, senders) else {
                self.foreign += 1;
                next = packets.next();
                continue;
            };
            next = run.extend(&mut packets);
            if let (Some(judge), Some(sender)) = (self.judges.get_mut(run.stream), senders.get(run.stream)) {
                self.judged += run.count;
                judge.arrive_run(run.first, run.count, sender.sent());
            }
        }
    }

    /// Starts a run with a packet. Returns `None` if the packet has no signature of this trial.
    fn start_run(&self, data: &[u8], stamp: Stamp, port: usize, now: Nanos, senders: &[Sender]) -> Option<Run> {
        let at = if stamp.nanos().0 == 0 { now } else { stamp.nanos() };
        let Found { signature, offset, repaired } = Signature::find(data, self.key)?;
        let number = usize::from(signature.stream);
        let stream = self.streams.get(number).filter(|it| it.to == port)?;
        let sent = senders.get(number)?.sent();
        let sequence = signature.sequence_near(sent);
        let filler = (stream.filler(signature.size, sequence)?, signature.filler);
        let is_intact = !repaired && data.get(..offset).is_some_and(|before| is_filler(before, filler));
        let latency = at.0.saturating_sub(signature.sent_before(at).0);
        let first = Arrival { sequence, at: at.0.saturating_sub(self.start.0), latency, corrupted: !is_intact };
        // A run of several packets has only intact packets without padding. The frames of a capture differ in the
        // length of the filler, so each of these frames has a run of its own.
        let is_single = !is_intact || stream.is_capture() || offset + LENGTH != data.len();
        let words = signature.words(self.key);
        let left = sent.saturating_sub(sequence).min(u64::from(!(words.middle as u32)) + 1);
        Some(Run {
            stream: number,
            first,
            count: 1,
            most: if is_single { 1 } else { left.max(1) },
            stamp,
            signature: words,
            hash: BurstHash::new(self.key, words.sent, words.middle),
            filler,
        })
    }
}
