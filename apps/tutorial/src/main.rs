//! The app of the tutorial: the built-in stages and the stage `min_ttl`.

use dataplane::prelude::*;

/// Drops IPv4 packets whose TTL is below `least`, as the TTL security mechanism does (RFC 5082).
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MinTtl {
    least: u8,
    #[serde(skip)]
    seen: u64,
}

impl Stage for MinTtl {
    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::HEADERS)
    }

    fn info() -> StageInfo {
        StageInfo { reasons: &[("low_ttl", "the TTL is below `least`")], ..StageInfo::default() }
    }

    fn prepare(&mut self, _setup: &mut Setup<'_>) -> Result<(), Problem> {
        let valid = (self.least > 0).then_some(());
        valid.ok_or_else(|| Problem::at("least", "a minimum TTL of 0 drops no packet").help("write 1 to 255"))
    }

    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            let Some(ttl) = packet.ipv4().map(|ip| ip.ttl) else { continue };
            self.seen += 1;
            if ttl < self.least {
                packet.drop(Reason::of_stage(0));
            }
        }
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("seen", self.seen);
    }
}

fn main() -> dataplane::Result<()> {
    App::new().stage::<MinTtl>("min_ttl").run()
}

#[cfg(test)]
mod tests {
    use dataplane::stages::parse::Parse;
    use dataplane::testing::{Fate, Harness, frame};

    use super::*;

    #[test]
    fn low_ttl_is_dropped() {
        let mut stage = Harness::builder().after(Parse::default()).build::<MinTtl>("least = 32").unwrap();
        let with_ttl = |ttl| frame().ipv4([10, 0, 1, 2].into(), [10, 0, 2, 2].into()).ttl(ttl).udp(4000, 53).build();
        assert_eq!(stage.run_one(&with_ttl(64)).fate, Fate::Next);
        assert_eq!(stage.run_one(&with_ttl(32)).fate, Fate::Next);
        assert_eq!(stage.run_one(&with_ttl(31)).fate, Fate::Dropped("low_ttl".to_owned()));
        assert_eq!(stage.counters(), [("seen".to_owned(), 3)]);
    }

    #[test]
    fn zero_is_refused() {
        assert!(Harness::builder().after(Parse::default()).build::<MinTtl>("least = 0").is_err());
    }
}
