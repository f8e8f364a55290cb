//! Copies one packet in many.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::prelude::*;

/// Copies one packet in N to its output `sample`; the packets themselves go on.
///
/// Without a seed it is every Nth, counted on each worker. With one each packet is chosen by chance, so that traffic
/// with a period cannot hide; the same seed chooses the same packets on every run.
///
/// ```toml
/// [[pipeline.stage]]
/// name    = "one_in_a_thousand"
/// use     = "sample"
/// every   = 1000
/// seed    = 7
/// outputs = { sample = "to_monitor" }
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// N: one packet of so many is copied, 1 or more.
    every: u32,
    /// Chooses by chance, from this seed, instead of every Nth.
    #[serde(default)]
    seed: Option<u64>,
    #[serde(skip)]
    #[schemars(skip)]
    since: u32,
    #[serde(skip)]
    #[schemars(skip)]
    state: u64,
}

const SAMPLE: Edge = Edge::new(0);

impl Sample {
    /// Whether the next packet is one of those.
    #[inline]
    fn draw(&mut self) -> bool {
        if self.seed.is_none() {
            self.since += 1;
            let chosen = self.since >= self.every;
            self.since = if chosen { 0 } else { self.since };
            return chosen;
        }
        // SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((mixed >> 32) * u64::from(self.every)) >> 32 == 0
    }
}

impl Stage for Sample {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            if self.draw() {
                packet.copy_to(SAMPLE);
            }
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[("sample", "a copy of each packet that was chosen")]
    }

    fn copies(&self) -> bool {
        true
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.every == 0 {
            return Err(Problem::at("every", "one packet in 0 is not a share").help("write 1 to copy all"));
        }
        // Workers with the same seed would choose alike.
        self.state = self.seed.unwrap_or(0) ^ (setup.worker().0 as u64) << 48;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fate, Harness, frame};

    fn chosen(parameters: &str, packets: usize) -> Vec<usize> {
        let mut harness = Harness::from_toml::<Sample>(parameters).unwrap();
        let packet = frame().build();
        let outcomes = (0..packets).map(|_| harness.run_one(&packet));
        let copied = outcomes.map(|outcome| {
            assert_eq!(outcome.fate, Fate::Next);
            outcome.copy.is_some()
        });
        copied.enumerate().filter(|(_, copied)| *copied).map(|(at, _)| at).collect()
    }

    #[test]
    fn without_a_seed_every_nth_is_copied() {
        assert_eq!(chosen("every = 3", 10), [2, 5, 8]);
        assert_eq!(chosen("every = 1", 4), [0, 1, 2, 3]);
    }

    #[test]
    fn a_seed_chooses_the_same_share_again() {
        let first = chosen("every = 10\nseed = 1", 5_000);
        assert_eq!(first, chosen("every = 10\nseed = 1", 5_000));
        assert_ne!(first, chosen("every = 10\nseed = 2", 5_000));
        // Five standard deviations of a binomial around 500.
        assert!((394..=606).contains(&first.len()), "{}", first.len());
        let gaps: std::collections::BTreeSet<usize> = first.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.len() > 10, "not chosen by chance: {gaps:?}");
        assert_eq!(chosen("every = 1\nseed = 9", 50).len(), 50);
    }

    #[test]
    fn one_in_none_is_refused() {
        let error = Harness::from_toml::<Sample>("every = 0").err().unwrap();
        assert_eq!(error, "every: one packet in 0 is not a share (write 1 to copy all)");
    }
}
