//! Messages with a label (a header with numbers) and a checksum. The receiver detects loss, duplication and corruption.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 to 3 | `0x50 0x49 0x4e 0x47` |
//! | 4 to 7 | CRC-32 (as in Ethernet) of the whole message, computed with 0 in this field |
//! | 8 to 11 | index of the sender's queue pair |
//! | 12 to 15 | length of the message |
//! | 16 to 23 | sequence number of the message on its queue pair |
//! | 24 to 31 | sequence number of the message that this message answers |
//! | 32 on | filler, different for each message |
//!
//! All indexes and sequence numbers start at 0. All numbers are big-endian.

use serde::Serialize;

/// The minimum length of a checked message in bytes.
pub(crate) const MIN_LENGTH: usize = 32;
const MAGIC: [u8; 4] = *b"PING";

/// The label of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    /// The index of the sender's queue pair.
    pub(crate) queue: u32,
    /// The sequence number of the message.
    pub(crate) sequence: u64,
    /// The sequence number of the answered message.
    pub(crate) answers: u64,
}

impl Label {
    /// Writes a message with this label to `message`, which must have at least [`MIN_LENGTH`] bytes.
    pub(crate) fn write(&self, message: &mut [u8]) {
        let length = message.len() as u32;
        let (head, filler) = message.split_at_mut(MIN_LENGTH);
        let first = self.sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(self.queue));
        for (number, bytes) in filler.chunks_mut(8).enumerate() {
            let word = first.wrapping_add(number as u64).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
        head[..4].copy_from_slice(&MAGIC);
        head[4..8].fill(0);
        head[8..12].copy_from_slice(&self.queue.to_be_bytes());
        head[12..16].copy_from_slice(&length.to_be_bytes());
        head[16..24].copy_from_slice(&self.sequence.to_be_bytes());
        head[24..32].copy_from_slice(&self.answers.to_be_bytes());
        let crc = crc32fast::hash(message).to_be_bytes();
        message[4..8].copy_from_slice(&crc);
    }

    /// Returns the label of a message, or `None` if the first bytes, the checksum or the length are wrong. Sets the CRC
    /// field of the message to 0.
    pub(crate) fn read(message: &mut [u8]) -> Option<Self> {
        let length = u32::try_from(message.len()).ok()?;
        let crc = message.get_mut(4..8)?;
        let expected = u32::from_be_bytes((&*crc).try_into().ok()?);
        crc.fill(0);
        if crc32fast::hash(message) != expected {
            return None;
        }
        let word = |at: usize| message.get(at..at + 4)?.try_into().map(u32::from_be_bytes).ok();
        let long = |at: usize| message.get(at..at + 8)?.try_into().map(u64::from_be_bytes).ok();
        let whole = message.starts_with(&MAGIC) && word(12)? == length;
        whole.then_some(Self { queue: word(8)?, sequence: long(16)?, answers: long(24)? })
    }
}

/// The results of the checks of received messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Findings {
    /// Valid messages, without duplicates.
    pub(crate) good: u64,
    /// Messages that did not arrive. If a run ended early, messages after the highest received sequence number do not
    /// count.
    pub(crate) lost: u64,
    /// Duplicates of valid messages.
    pub(crate) duplicated: u64,
    /// Messages that arrived after a later message.
    pub(crate) reordered: u64,
    /// Messages with a wrong checksum or label, including messages of a peer that runs without `--check`.
    pub(crate) corrupt: u64,
}

impl Findings {
    /// Returns `true` if the counts are an error. Reordered messages are an error only on an ordered transport.
    pub(crate) fn are_bad(&self, ordered: bool) -> bool {
        self.lost + self.duplicated + self.corrupt > 0 || ordered && self.reordered > 0
    }

    /// Adds the counts of another queue pair.
    pub(crate) fn add(&mut self, other: &Self) {
        self.good += other.good;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupt += other.corrupt;
    }
}

/// Checks the sequence numbers of the messages that one queue pair receives.
#[derive(Clone, Debug)]
pub(crate) struct Tracker {
    queue: u32,
    /// One bit for each sequence number. The bit is set if the message has arrived.
    seen: Vec<u64>,
    most: u64,
    /// The highest received sequence number plus one.
    next: u64,
    findings: Findings,
}

impl Tracker {
    /// Creates a tracker for a queue pair that receives at most `most` messages.
    pub(crate) fn new(queue: u32, most: u64) -> Self {
        let words = usize::try_from(most.div_ceil(64)).unwrap_or(usize::MAX);
        Self { queue, seen: vec![0; words], most, next: 0, findings: Findings::default() }
    }

    /// Counts a received message. Returns its label, or `None` if the message is corrupt.
    pub(crate) fn take(&mut self, message: &mut [u8]) -> Option<Label> {
        let label = Label::read(message).filter(|label| label.queue == self.queue && label.sequence < self.most);
        let Some(label) = label else {
            self.findings.corrupt += 1;
            return None;
        };
        let bit = 1 << (label.sequence % 64);
        let word = &mut self.seen[(label.sequence / 64) as usize];
        if *word & bit != 0 {
            self.findings.duplicated += 1;
        } else {
            *word |= bit;
            self.findings.good += 1;
            self.findings.reordered += u64::from(label.sequence < self.next);
            self.next = self.next.max(label.sequence + 1);
        }
        Some(label)
    }

    /// Returns the counts so far. Missing messages before the highest received sequence number count as lost.
    pub(crate) fn findings(&self) -> Findings {
        Findings { lost: self.next - self.findings.good, ..self.findings }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(sequence: u64, length: usize) -> Vec<u8> {
        let mut message = vec![0xaa; length];
        Label { queue: 3, sequence, answers: 7 }.write(&mut message);
        message
    }

    fn found(sequences: &[u64]) -> Findings {
        let mut tracker = Tracker::new(3, 100);
        sequences.iter().for_each(|&sequence| {
            tracker.take(&mut message(sequence, 40));
        });
        tracker.findings()
    }

    #[test]
    fn each_error_has_its_own_count() {
        let good = |good| Findings { good, ..Findings::default() };
        assert_eq!(found(&[0, 1, 2, 3]), good(4));
        assert_eq!(found(&[0, 2, 3]), Findings { lost: 1, ..good(3) });
        assert_eq!(found(&[0, 1, 1, 0]), Findings { duplicated: 2, ..good(2) });
        assert_eq!(found(&[1, 0, 2]), Findings { reordered: 1, ..good(3) });
        assert_eq!(found(&[0, 100, u64::MAX]), Findings { corrupt: 2, ..good(1) });
        let mut other = Tracker::new(4, 100);
        assert_eq!(other.take(&mut message(0, 40)), None, "the message is from another queue pair");
        assert_eq!(Tracker::new(3, 100).take(&mut []), None);
        assert!(!good(1).are_bad(true) && Findings { lost: 1, ..good(1) }.are_bad(false));
        let overtaken = Findings { reordered: 1, ..good(2) };
        assert!(overtaken.are_bad(true) && !overtaken.are_bad(false));
    }

    proptest! {
        #[test]
        fn label_round_trips(queue: u32, sequence: u64, answers: u64, length in MIN_LENGTH..5000) {
            let label = Label { queue, sequence, answers };
            let mut bytes = vec![0; length];
            label.write(&mut bytes);
            prop_assert_eq!(Label::read(&mut bytes), Some(label));
        }

        /// CRC-32 detects every change of up to 32 consecutive bits, and therefore any changed byte.
        #[test]
        fn changed_byte_is_detected(length in MIN_LENGTH..3000, at: prop::sample::Index, change in 1u8..) {
            let mut bytes = message(9, length);
            let at = at.index(length);
            bytes[at] ^= change;
            prop_assert_eq!(Label::read(&mut bytes), None);
        }

        /// The length is part of the label, so a truncated or extended message is corrupt.
        #[test]
        fn changed_length_is_detected(length in MIN_LENGTH..3000, other in 0usize..3000) {
            prop_assume!(length != other);
            let mut bytes = message(9, length);
            bytes.resize(other, 0);
            prop_assert_eq!(Label::read(&mut bytes), None);
        }

        /// For any messages in any order, the counts of the tracker equal simple counts with a set.
        #[test]
        fn findings_match_simple_counts(sequences in prop::collection::vec(0u64..100, 0..300)) {
            let distinct: std::collections::BTreeSet<_> = sequences.iter().collect();
            let findings = found(&sequences);
            prop_assert_eq!(findings.good, distinct.len() as u64);
            prop_assert_eq!(findings.duplicated, (sequences.len() - distinct.len()) as u64);
            prop_assert_eq!(findings.lost + findings.good, sequences.iter().max().map_or(0, |most| most + 1));
            prop_assert_eq!(findings.corrupt, 0);
        }
    }
}
