//! `mac_swap`: swaps the MAC addresses, so that packets go back to their sender.

use multiversion::multiversion;
use multiversion::target::match_target;
use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::header::Header;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::mem::{Batch, Heads, Reason};
use dataplane_core::pipeline::{Contract, Ctx, Stage, StageInfo};

/// Swaps the source and destination addresses of the Ethernet header.
///
/// Frames shorter than `min_len` are dropped as `runt`.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "back"
/// use = "mac_swap"
/// min_len = 60
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MacSwap {
    /// The minimum frame length in bytes. Default: 14, the length of an Ethernet header.
    #[serde(default = "ethernet_header")]
    pub min_len: u16,
}

const fn ethernet_header() -> u16 {
    Ethernet::LEN as u16
}

impl Stage for MacSwap {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let min_len = usize::from(self.min_len);
        let all = batch.lengths_are_within(self.min_len, u16::MAX);
        let swapped = if all { swap(batch.heads_keeping_plain_ipv4()) } else { 0 };
        for mut packet in batch.iter_mut_from(swapped) {
            if packet.len() < min_len {
                packet.drop(Reason::Runt);
                continue;
            }
            let (destination, source) = packet.ethernet_addresses_mut();
            std::mem::swap(destination, source);
        }
    }

    fn info() -> StageInfo {
        StageInfo::new().stateless().drops(&[Reason::Runt])
    }

    fn contract(&self) -> Contract {
        Contract::new().ignores_checksums()
    }
}

/// For each of the first 16 bytes of the result, the index of its source byte. The two addresses are swapped, and the
/// bytes after them stay in place.
const FROM: [u8; 16] = [6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 12, 13, 14, 15];

/// Swaps the addresses of packets and returns the number of packets.
///
/// With SSSE3, one instruction permutes all 16 bytes. The instruction is selected explicitly because the compiler
/// mostly generates about ten instructions for the portable version.
#[multiversion(targets("x86_64+ssse3"))]
fn swap(heads: Heads<'_, { FROM.len() }>) -> usize {
    let count = heads.len();
    for head in heads {
        match_target! {
            "x86_64+ssse3" => *head.bytes = swapped(*head.bytes),
            _ => {
                let (destination, source) = head.bytes.split_at_mut(6);
                destination.swap_with_slice(&mut source[..6]);
            }
        }
    }
    count
}

#[cfg(all(target_arch = "x86_64", not(target_feature = "ssse3")))]
#[target_feature(enable = "ssse3")]
#[inline]
fn swapped(bytes: [u8; FROM.len()]) -> [u8; FROM.len()] {
    zerocopy::transmute!(std::arch::x86_64::_mm_shuffle_epi8(zerocopy::transmute!(bytes), zerocopy::transmute!(FROM)))
}

/// Swaps the two MAC addresses in a frame's first bytes. If the whole program is compiled with SSSE3, the compiler
/// selects the instruction itself.
#[cfg(all(target_arch = "x86_64", target_feature = "ssse3"))]
#[inline]
fn swapped(bytes: [u8; FROM.len()]) -> [u8; FROM.len()] {
    FROM.map(|at| bytes[usize::from(at)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use dataplane_core::harness::{Fate, Harness};

    proptest! {
        #[test]
        fn addresses_are_swapped(bytes in prop::collection::vec(any::<u8>(), 0..100), min_len in 12usize..64) {
            let outcome = Harness::from_toml::<MacSwap>(&format!("min_len = {min_len}")).unwrap().run_one(&bytes);
            if bytes.len() < min_len {
                prop_assert_eq!(outcome.fate, Fate::Dropped("runt".to_owned()));
                prop_assert_eq!(outcome.bytes, bytes);
            } else {
                prop_assert_eq!(outcome.fate, Fate::Next);
                prop_assert_eq!(outcome.bytes, [&bytes[6..12], &bytes[..6], &bytes[12..]].concat());
            }
        }
    }

    #[test]
    fn default_min_len_is_an_ethernet_header() {
        let mut harness = Harness::from_toml::<MacSwap>("").unwrap();
        assert_eq!(harness.run_one(&[7; 13]).fate, Fate::Dropped("runt".to_owned()));
        assert_eq!(harness.run_one(&[7; 14]).fate, Fate::Next);
    }
}
