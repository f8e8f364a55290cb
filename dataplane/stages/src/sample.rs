//! `sample`: copies one of every N packets.

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::prelude::*;

/// Copies one of every N packets to the output `sample`. All packets go to the next stage.
///
/// Without `seed`, each worker copies every Nth packet. With `seed`, the stage copies each packet with the probability
/// 1/N, so that periodic traffic cannot avoid the sample. Runs with the same seed and the same packets select the same
/// packets.
///
/// ```toml
/// [[pipeline.stage]]
/// name    = "one_in_a_thousand"
/// use     = "sample"
/// every   = 1000
/// seed    = 7
/// outputs = { sample = "to_monitor" }
/// next    = "drop"
///
/// [[pipeline.stage]]
/// name = "to_monitor"
/// use  = "tx"
/// port = "left"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// The number N: one of every N packets is copied. N must be 1 or more. No default.
    every: u32,
    /// The seed of the random selection. Default: no random selection, so every Nth packet is copied.
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
    /// Returns whether to copy the next packet.
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

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.every == 0 {
            return Err(Problem::at("every", "0 is too small").help("set `every` to 1 to copy all packets"));
        }
        // Each worker needs its own seed. With one seed, all workers would select the same positions.
        self.state = self.seed.unwrap_or(0) ^ (setup.worker_number() as u64) << 48;
        Ok(())
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        if let Some(earlier) = earlier.downcast::<Self>().filter(|earlier| earlier.seed == self.seed) {
            (self.since, self.state) = (earlier.since % self.every.max(1), earlier.state);
        }
        HeldPackets::Keep
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .keeps("the position of its next sample, unless `seed` changes")
            .outputs(&[("sample", "a copy of each selected packet")])
    }

    fn contract(&self) -> Contract {
        Contract::new().copies().ignores_checksums()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::harness::{Fate, Harness, frame};

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
    fn every_nth_packet_is_copied_without_a_seed() {
        assert_eq!(chosen("every = 3", 10), [2, 5, 8]);
        assert_eq!(chosen("every = 1", 4), [0, 1, 2, 3]);
    }

    #[test]
    fn same_seed_selects_the_same_packets() {
        let first = chosen("every = 10\nseed = 1", 5_000);
        assert_eq!(first, chosen("every = 10\nseed = 1", 5_000));
        assert_ne!(first, chosen("every = 10\nseed = 2", 5_000));
        // Five standard deviations of a binomial distribution around 500.
        assert!((394..=606).contains(&first.len()), "{}", first.len());
        let gaps: std::collections::BTreeSet<usize> = first.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.len() > 10, "not random: {gaps:?}");
        assert_eq!(chosen("every = 1\nseed = 9", 50).len(), 50);
    }

    #[test]
    fn replaced_stage_continues_at_the_position_of_the_next_sample() {
        let packet = frame().build();
        for (parameters, changed, expected) in [
            ("every = 3", "every = 3", chosen("every = 3", 40)),
            ("every = 10\nseed = 1", "every = 10\nseed = 1", chosen("every = 10\nseed = 1", 40)),
            // After packets 0 to 19, two packets have passed since the last sample (packet 17). With `every = 4`, the
            // next sample is packet 21.
            ("every = 3", "every = 4", vec![2, 5, 8, 11, 14, 17, 21, 25, 29, 33, 37]),
        ] {
            let mut harness = Harness::from_toml::<Sample>(parameters).unwrap();
            let mut copied = Vec::new();
            for at in 0..40 {
                if at == 20 {
                    harness.change::<Sample>(changed).unwrap();
                }
                if harness.run_one(&packet).copy.is_some() {
                    copied.push(at);
                }
            }
            assert_eq!(copied, expected, "{changed}");
        }
    }

    #[test]
    fn zero_for_the_key_every_is_refused() {
        let error = Harness::from_toml::<Sample>("every = 0").err().unwrap();
        assert_eq!(error, "every: 0 is too small; help: set `every` to 1 to copy all packets");
    }
}
