//! The signature: the last bytes of the payload of a frame. The tester can judge only frames with a signature. The
//! receiver finds the signature even if the device under test changes or removes headers, encapsulates the frame, or
//! appends padding.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0 to 3 | the check: a hash of the other bytes and of the key of the trial |
//! | 4 to 5 | the Internet checksum of the filler (the payload before the signature) |
//! | 6 | the number of the stream |
//! | 7 to 11 | the index of the frame size (4 bits) and the sequence number (36 bits) |
//! | 12 to 17 | the transmit time in nanoseconds of the system clock, modulo 2^48 |

use dataplane::units::Nanos;
use multiversion::multiversion;

/// The length of a signature in bytes. With this length, a frame of 60 bytes with IPv4 and UDP has room for exactly one
/// signature.
pub const LENGTH: usize = 18;
/// The maximum number of streams.
pub const MAX_STREAMS: usize = 256;
/// The maximum number of frame sizes of a stream.
pub const MAX_SIZES: usize = 16;
/// The sequence numbers of a stream are below this value.
pub const SEQUENCES: u64 = 1 << 36;

/// The maximum transmit time of a signature. The transmit time has 48 bits.
pub(crate) const MAX_TIME: u64 = (1 << 48) - 1;
/// The receiver searches for the signature in the last bytes of a frame, up to this distance from the end.
const MAX_PADDING: usize = 64;

/// The key of a trial. The signatures of a trial are not valid in another trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    /// Creates a key from a number. Keys with different numbers differ in many bits. Otherwise, a signature with one
    /// wrong bit could be valid in another trial.
    pub const fn new(number: u64) -> Self {
        Self(mix(number))
    }
}

/// Mixes the bits of a number with the finalizer of MurmurHash3. The finalizer is a bijection.
#[inline]
const fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// The content of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The number of the stream.
    pub stream: u8,
    /// The index of the frame size in the sizes of the stream.
    pub size: u8,
    /// The number of the packet in its stream, from 0.
    pub sequence: u64,
    /// The transmit time on the system clock, modulo 2^48 ns.
    pub sent: u64,
    /// The Internet checksum of the filler.
    pub filler: u16,
}

/// A signature that the receiver found in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The content.
    pub signature: Signature,
    /// The offset of the signature in the frame.
    pub offset: usize,
    /// Whether one bit of the signature in the frame was wrong. In `signature`, this bit is corrected.
    pub repaired: bool,
}

/// Mixes the bits of a number with the finalizer of the 32-bit MurmurHash3. The finalizer is a bijection. A vector unit
/// multiplies more numbers of 32 bits than of 64 bits at a time.
#[inline]
const fn mix32(mut hash: u32) -> u32 {
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// The part of the check that is equal for all signatures that differ only in the low 32 bits of the sequence number,
/// such as the signatures of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BurstHash(u32);

impl BurstHash {
    /// Returns the hash of the transmit time `sent`, modulo 2^48, and of the upper half of `middle`, the bytes 4 to 11 of
    /// the signature.
    #[inline]
    pub(crate) fn new(key: Key, sent: u64, middle: u64) -> Self {
        Self(mix(mix(sent ^ key.0) ^ (middle >> 32)) as u32)
    }

    /// Returns the check of a signature. `low` are the low 32 bits of the sequence number.
    #[inline]
    pub(crate) fn check(self, low: u32) -> u32 {
        mix32(self.0 ^ low)
    }
}

/// The bytes of a signature as numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Words {
    /// Bytes 0 to 3.
    pub(crate) check: u32,
    /// Bytes 4 to 11. The next packet of the stream has the next number, if it has the same frame size, and if the
    /// sequence number does not wrap around.
    pub(crate) middle: u64,
    /// Bytes 12 to 17: the transmit time.
    pub(crate) sent: u64,
}

impl Words {
    #[inline]
    pub(crate) fn new(bytes: &[u8; LENGTH]) -> Self {
        let [a, b, c, d, middle @ .., e, f, g, h, i, j] = *bytes;
        Self {
            check: u32::from_be_bytes([a, b, c, d]),
            middle: u64::from_be_bytes(middle),
            sent: u64::from_be_bytes([0, 0, e, f, g, h, i, j]),
        }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&self.check.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.middle.to_be_bytes());
        bytes[12..].copy_from_slice(&self.sent.to_be_bytes()[2..]);
        bytes
    }

    /// Returns a number that [`fold`] reduces to the ones' complement sum of the 16-bit words of the signature.
    #[inline]
    pub(crate) fn sum(&self) -> u64 {
        let halves = |number: u64| (number >> 32) + (number & u64::from(u32::MAX));
        u64::from(self.check) + halves(self.middle) + halves(self.sent)
    }
}

impl Signature {
    /// Returns the signature as numbers. `key` is the key of the trial.
    #[inline]
    pub(crate) fn words(&self, key: Key) -> Words {
        let number = (u64::from(self.size & 0xf) << 36) | (self.sequence & (SEQUENCES - 1));
        let middle = (u64::from(self.filler) << 48) | (u64::from(self.stream) << 40) | number;
        let sent = self.sent & MAX_TIME;
        Words { check: BurstHash::new(key, sent, middle).check(middle as u32), middle, sent }
    }

    /// Returns the bytes of the signature. `key` is the key of the trial.
    #[inline]
    pub fn encode(&self, key: Key) -> [u8; LENGTH] {
        self.words(key).bytes()
    }

    /// Reads a signature. Returns `None` if the check is wrong.
    #[inline]
    pub fn decode(bytes: &[u8; LENGTH], key: Key) -> Option<Self> {
        let Words { check, middle, sent } = Words::new(bytes);
        (BurstHash::new(key, sent, middle).check(middle as u32) == check).then_some(Self {
            stream: (middle >> 40) as u8,
            size: (middle >> 36) as u8 & 0xf,
            sequence: middle & (SEQUENCES - 1),
            sent,
            filler: (middle >> 48) as u16,
        })
    }

    /// Finds the signature of a frame: at the end of the frame, before padding, or with one wrong bit at the end of the
    /// frame. Returns `None` for a frame that has no signature with this key.
    #[inline]
    pub fn find(frame: &[u8], key: Key) -> Option<Found> {
        let bytes = frame.last_chunk()?;
        match Self::decode(bytes, key) {
            Some(signature) => Some(Found { signature, offset: frame.len() - LENGTH, repaired: false }),
            None => Self::find_elsewhere(frame, key),
        }
    }

    #[cold]
    fn find_elsewhere(frame: &[u8], key: Key) -> Option<Found> {
        let last = frame.len().checked_sub(LENGTH)?;
        for offset in (last.saturating_sub(MAX_PADDING)..last).rev() {
            if let Some(signature) = frame[offset..].first_chunk().and_then(|bytes| Self::decode(bytes, key)) {
                return Some(Found { signature, offset, repaired: false });
            }
        }
        let bytes: [u8; LENGTH] = *frame.last_chunk()?;
        (0..LENGTH * 8).find_map(|bit| {
            let mut repaired = bytes;
            repaired[bit / 8] ^= 1 << (bit % 8);
            Self::decode(&repaired, key).map(|signature| Found { signature, offset: last, repaired: true })
        })
    }

    /// Returns the sequence number without its wrap-around. `next` is the sequence number of the next packet that is
    /// sent.
    #[inline]
    pub fn sequence_near(&self, next: u64) -> u64 {
        let ahead = self.sequence.wrapping_sub(next) & (SEQUENCES - 1);
        // A packet with a sequence number from `next` on was not sent yet. The result is then `next` or greater.
        let before = next.wrapping_sub(SEQUENCES - ahead);
        if ahead < SEQUENCES / 2 || SEQUENCES - ahead > next { next.wrapping_add(ahead) } else { before }
    }

    /// Returns the transmit time of the signature, given a later time of the same clock. Corrects the wrap-around after
    /// 2^48 ns (three days).
    #[inline]
    pub fn sent_before(&self, now: Nanos) -> Nanos {
        let age = now.0.wrapping_sub(self.sent) & MAX_TIME;
        // If the transmit time appears to be after `now`, the difference is the error of the receive clock.
        if age > MAX_TIME / 2 {
            Nanos(now.0.saturating_add((MAX_TIME + 1) - age))
        } else {
            Nanos(now.0 - age.min(now.0))
        }
    }
}

/// Returns the ones' complement sum of 16-bit words in network byte order (RFC 1071), not inverted. A last odd byte is
/// the high byte of a word.
#[inline]
pub fn ones_sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let sum = if words.is_empty() { 0 } else { word_sum(words) };
    // The sum of words in the other byte order is the sum in the other byte order (RFC 1071, section 2B), so only the
    // result is converted.
    u16::from_be(fold(sum + u64::from(u32::from_ne_bytes(last))))
}

/// Returns the sum of 32-bit words. Modulo 2^16 - 1, this sum equals the sum of the 16-bit words. The sum of 2^32 words
/// can overflow.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn word_sum(words: &[[u8; 4]]) -> u64 {
    let mut sum = 0;
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    sum
}

/// Reduces a sum of 16-bit words to 16 bits.
#[inline]
pub fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn signature() -> impl Strategy<Value = Signature> {
        (any::<u8>(), 0..16u8, 0..SEQUENCES, 0..1u64 << 48, any::<u16>())
            .prop_map(|(stream, size, sequence, sent, filler)| Signature { stream, size, sequence, sent, filler })
    }

    proptest! {
        #[test]
        fn signature_is_found_behind_other_headers_and_before_padding(
            signature in signature(), key: u64, head in prop::collection::vec(any::<u8>(), 0..100), padding in 0..46usize,
        ) {
            let mut frame = head.clone();
            frame.extend(signature.encode(Key::new(key)));
            frame.extend(vec![0; padding]);
            let found = Signature::find(&frame, Key::new(key));
            prop_assert_eq!(found, Some(Found { signature, offset: head.len(), repaired: false }));
        }

        #[test]
        fn signature_with_one_wrong_bit_is_found_and_marked(
            signature in signature(), key: u64, head in prop::collection::vec(any::<u8>(), 0..100), bit in 0..LENGTH * 8,
        ) {
            let mut frame = head.clone();
            frame.extend(signature.encode(Key::new(key)));
            frame[head.len() + bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Signature::find(&frame, Key::new(key)), Some(Found { signature, offset: head.len(), repaired: true }));
        }

        #[test]
        fn signature_of_another_trial_is_not_found(
            signature in signature(), key: u64, other in prop_oneof![any::<u64>(), 1..9u64],
        ) {
            // The keys of consecutive trials have consecutive numbers.
            let other = key.wrapping_add(other);
            prop_assume!(key != other);
            prop_assert_eq!(Signature::find(&signature.encode(Key::new(key)), Key::new(other)), None);
        }

        #[test]
        fn transmit_time_survives_the_wrap_around(now in 0u64..1 << 60, age in 0u64..1 << 40) {
            prop_assume!(age <= now);
            let sent = now - age;
            let signature = Signature { stream: 0, size: 0, sequence: 0, sent: sent & ((1 << 48) - 1), filler: 0 };
            prop_assert_eq!(signature.sent_before(Nanos(now)), Nanos(sent));
        }

        #[test]
        fn sequence_number_survives_the_wrap_around(next in 0u64..1 << 40, age in -1000i64..1 << 34) {
            let sequence = next as i64 - age;
            prop_assume!(sequence >= 0);
            let signature =
                Signature { stream: 0, size: 0, sequence: sequence as u64 & (SEQUENCES - 1), sent: 0, filler: 0 };
            prop_assert_eq!(signature.sequence_near(next), sequence as u64);
        }

        #[test]
        fn ones_sum_equals_the_sum_of_words(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut sum = 0u32;
            for word in bytes.chunks(2) {
                sum += u32::from(word[0]) << 8 | u32::from(word.get(1).copied().unwrap_or(0));
                sum = (sum & 0xffff) + (sum >> 16);
            }
            prop_assert_eq!(ones_sum(&bytes), sum as u16);
        }
    }
}
