//! Meters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::prelude::*;
use crate::stages::table::bucket::{SingleRate, TokenBucket, TwoRate};

/// Holds traffic to a rate of packets or bytes, and colours it as RFC 2697 and RFC 2698 do.
///
/// Name one rate, `packets_per_second` or `bytes_per_second`: bursts and the peak rate are in the same unit. Bytes are
/// those of the frame without its checksum. Time is that of the packets' receive stamps. Green packets go on; yellow
/// and red ones go on or are dropped as `yellow` and `red` say, with the reason `rate_exceeded`.
///
/// With several workers each takes an equal share of the rates, as flows are spread over them; bursts are each
/// worker's own.
///
/// ```toml
/// [[pipeline.stage]]
/// name               = "uplink"
/// use                = "limit"
/// packets_per_second = 10_000
/// burst              = 500
///
/// [[pipeline.stage]]
/// name             = "contract"
/// use              = "limit"
/// mode             = "trtcm"
/// bytes_per_second = 12_500_000
/// burst            = 65_536
/// peak             = 25_000_000
/// peak_burst       = 131_072
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// `rate`: green up to the rate, red above it. `srtcm` (RFC 2697): green within `burst`, yellow within
    /// `excess_burst`, red above both. `trtcm` (RFC 2698): green up to the rate, yellow up to `peak`, red above it.
    #[serde(default)]
    mode: Mode,
    /// The committed rate in packets a second.
    packets_per_second: Option<u64>,
    /// The committed rate in bytes a second.
    bytes_per_second: Option<u64>,
    /// How much may come at once, in packets or bytes as the rate is. Of bytes at least one full frame of every port.
    burst: u64,
    /// How much more may come at once after a pause, in packets or bytes. Only with `srtcm`.
    excess_burst: Option<u64>,
    /// The peak rate, in packets or bytes a second. Only with `trtcm`.
    peak: Option<u64>,
    /// How much may come at once at the peak rate, in packets or bytes. Only with `trtcm`.
    peak_burst: Option<u64>,
    /// Whether the colour that an earlier meter gave counts: a packet never gets a better one.
    #[serde(default)]
    colour_aware: bool,
    /// What becomes of yellow packets: `pass` or `drop`.
    #[serde(default = "pass")]
    yellow: Action,
    /// What becomes of red packets: `pass` or `drop`.
    #[serde(default = "drop")]
    red: Action,
    #[serde(skip)]
    #[schemars(skip)]
    meter: Option<Meter>,
    #[serde(skip)]
    #[schemars(skip)]
    marked: [u64; 3],
}

/// How a packet gets its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Mode {
    /// One rate, two colours.
    #[default]
    Rate,
    /// One rate, three colours: RFC 2697.
    Srtcm,
    /// Two rates, three colours: RFC 2698.
    Trtcm,
}

/// What becomes of packets of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Action {
    /// They go on, coloured.
    Pass,
    /// They are dropped.
    Drop,
}

fn pass() -> Action {
    Action::Pass
}

fn drop() -> Action {
    Action::Drop
}

/// Bytes of a frame beside its payload: the Ethernet header and one VLAN tag.
const FRAMING: u64 = 18;

#[derive(Debug)]
enum Meter {
    Rate(TokenBucket),
    SingleRate(SingleRate),
    TwoRate(TwoRate),
}

impl Meter {
    #[inline]
    fn mark(&mut self, now: u64, tokens: u64, before: Colour) -> Colour {
        match self {
            Self::Rate(bucket) => match before != Colour::Red && bucket.take(now, tokens) {
                true => before,
                false => Colour::Red,
            },
            Self::SingleRate(marker) => marker.mark(now, tokens, before),
            Self::TwoRate(marker) => marker.mark(now, tokens, before),
        }
    }
}

impl Limit {
    /// The committed rate with its key.
    fn rate(&self) -> Result<(u64, &'static str), Problem> {
        let (rate, key) = match (self.packets_per_second, self.bytes_per_second) {
            (Some(rate), None) => (rate, "packets_per_second"),
            (None, Some(rate)) => (rate, "bytes_per_second"),
            (None, None) => {
                return Err(Problem::at("", "no rate is named").help("set packets_per_second or bytes_per_second"));
            }
            (Some(_), Some(_)) => {
                let problem = Problem::at("bytes_per_second", "there is a packets_per_second already");
                return Err(problem.help("one stage holds one rate: put two behind each other"));
            }
        };
        if rate == 0 {
            return Err(Problem::at(key, "a rate of 0 lets nothing through").help("use = \"drop\" says so"));
        }
        Ok((rate, key))
    }

    /// A parameter that goes with one mode alone.
    fn only_with(&self, mode: Mode, key: &str, name: &str, value: Option<u64>) -> Result<u64, Problem> {
        match value {
            Some(_) if self.mode != mode => {
                let problem = Problem::at(key, format!("this goes with mode = \"{name}\" alone"));
                Err(problem.help(format!("set mode = \"{name}\" or take {key} out")))
            }
            None if self.mode == mode => Err(Problem::at(key, format!("mode = \"{name}\" needs it"))),
            value => Ok(value.unwrap_or(0)),
        }
    }
}

impl Stage for Limit {
    fn process(&mut self, ctx: &Ctx, batch: &mut Batch) {
        let Some(meter) = &mut self.meter else { return };
        let by_bytes = self.bytes_per_second.is_some();
        for mut packet in batch.iter_mut() {
            let tokens = if by_bytes { packet.len() as u64 } else { 1 };
            let before = if self.colour_aware { packet.meta().colour } else { Colour::Green };
            let colour = meter.mark(ctx.nanos(packet.stamp()), tokens, before);
            packet.meta_mut().colour = colour;
            let (index, action) = match colour {
                Colour::Green => (0, Action::Pass),
                Colour::Yellow => (1, self.yellow),
                Colour::Red => (2, self.red),
            };
            self.marked[index] += 1;
            if action == Action::Drop {
                packet.drop(Reason::RateExceeded);
            }
        }
    }

    fn needs(&self) -> Facts {
        if self.colour_aware { Facts::STAMP | Facts::COLOUR } else { Facts::STAMP }
    }

    fn sets(&self) -> Facts {
        Facts::COLOUR
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let (rate, key) = self.rate()?;
        let excess = self.only_with(Mode::Srtcm, "excess_burst", "srtcm", self.excess_burst)?;
        let peak = self.only_with(Mode::Trtcm, "peak", "trtcm", self.peak)?;
        let peak_burst = self.only_with(Mode::Trtcm, "peak_burst", "trtcm", self.peak_burst)?;
        if self.mode == Mode::Trtcm && peak < rate {
            let problem = Problem::at("peak", format!("a peak rate of {peak} is below the committed rate, {rate}"));
            return Err(problem.help(format!("set it to {rate} or more, or lower {key}")));
        }
        // RFC 2697, section 2: a burst is at least as large as the largest packet, or that never conforms.
        let by_bytes = self.bytes_per_second.is_some();
        let frame = setup.ports().iter().map(|port| u64::from(port.mtu) + FRAMING).max();
        let least = if by_bytes { frame.unwrap_or(1) } else { 1 };
        let peak_least = if self.mode == Mode::Trtcm { least } else { 0 };
        for (key, burst, least) in [("burst", self.burst, least), ("peak_burst", peak_burst, peak_least)] {
            if burst < least {
                let problem = Problem::at(key, format!("{burst} is less than the largest packet, which never passes"));
                return Err(problem.help(format!("set it to {least} or more")));
            }
        }
        let (worker, workers) = setup.worker();
        // The remainder goes to the first workers, one each.
        let share = |rate: u64| rate / workers as u64 + u64::from((worker as u64) < rate % workers as u64);
        self.meter = Some(match self.mode {
            Mode::Rate => Meter::Rate(TokenBucket::new(share(rate), self.burst, 0)),
            Mode::Srtcm => Meter::SingleRate(SingleRate::new(share(rate), self.burst, excess, 0)),
            Mode::Trtcm => Meter::TwoRate(TwoRate::new((share(rate), self.burst), (share(peak), peak_burst), 0)),
        });
        Ok(())
    }

    fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        for (name, packets) in ["green", "yellow", "red"].into_iter().zip(self.marked) {
            report(name, packets);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::{PortInfo, Resources};
    use crate::testing::{Fate, Harness, frame, port};

    const SECOND: u64 = 1_000_000_000;

    fn refused(parameters: &str) -> String {
        Harness::from_toml::<Limit>(parameters).err().unwrap()
    }

    #[test]
    fn a_packet_rate_is_held() {
        let mut harness = Harness::from_toml::<Limit>("packets_per_second = 10\nburst = 3").unwrap();
        let burst = vec![frame().build(); 5];
        let passed = |harness: &mut Harness| {
            let outcomes = harness.run(&burst);
            for outcome in &outcomes {
                let expected = match outcome.meta.colour {
                    Colour::Green => Fate::Next,
                    _ => Fate::Dropped("rate_exceeded".to_owned()),
                };
                assert_eq!(outcome.fate, expected);
            }
            outcomes.iter().filter(|outcome| outcome.fate == Fate::Next).count()
        };
        assert_eq!(passed(&mut harness), 3);
        harness.advance(SECOND / 10 - 1);
        assert_eq!(passed(&mut harness), 0);
        harness.advance(1);
        assert_eq!(passed(&mut harness), 1);
        harness.advance(100 * SECOND);
        assert_eq!(passed(&mut harness), 3);
        let counters: Vec<u64> = harness.counters().into_iter().map(|(_, value)| value).collect();
        assert_eq!(counters, [7, 0, 13]);
    }

    #[test]
    fn colours_may_pass_or_be_dropped() {
        let parameters = "mode = \"srtcm\"\npackets_per_second = 1\nburst = 1\nexcess_burst = 1";
        let fates = |more: &str| {
            let mut harness = Harness::from_toml::<Limit>(&format!("{parameters}\n{more}")).unwrap();
            let outcomes = harness.run(&vec![frame().build(); 3]);
            let colours: Vec<Colour> = outcomes.iter().map(|outcome| outcome.meta.colour).collect();
            assert_eq!(colours, [Colour::Green, Colour::Yellow, Colour::Red]);
            outcomes.iter().map(|outcome| outcome.fate == Fate::Next).collect::<Vec<_>>()
        };
        assert_eq!(fates(""), [true, true, false]);
        assert_eq!(fates("red = \"pass\""), [true, true, true]);
        assert_eq!(fates("yellow = \"drop\""), [true, false, false]);
    }

    const THREE_COLOURS: &str =
        "mode = \"trtcm\"\npackets_per_second = 1\nburst = 1\npeak = 2\npeak_burst = 2\nred = \"pass\"";

    #[test]
    fn an_aware_meter_gives_no_better_colour() {
        for (aware, expected) in [
            (true, [Colour::Green, Colour::Yellow, Colour::Red]),
            (false, [Colour::Green, Colour::Green, Colour::Green]),
        ] {
            let before: Limit = toml::from_str(THREE_COLOURS).unwrap();
            let parameters = format!("packets_per_second = 9\nburst = 9\nred = \"pass\"\ncolour_aware = {aware}");
            let mut harness = Harness::builder().after(before).build::<Limit>(&parameters).unwrap();
            let outcomes = harness.run(&vec![frame().build(); 3]);
            let colours: Vec<Colour> = outcomes.iter().map(|outcome| outcome.meta.colour).collect();
            assert_eq!(colours, expected, "aware: {aware}");
            assert_eq!(harness.stage().needs().contains(Facts::COLOUR), aware);
        }
    }

    #[test]
    fn workers_share_the_rate() {
        let mut resources = Resources::new(Vec::new(), Path::new(""));
        let burst_and_second = |worker| {
            let mut stage: Limit = toml::from_str("packets_per_second = 11\nburst = 2").unwrap();
            stage.prepare(&mut Setup::new(&mut resources, "limit", worker, 3)).unwrap();
            let Some(Meter::Rate(bucket)) = &mut stage.meter else { panic!("a plain rate") };
            // In steps that a burst of 2 can hold.
            (0..=20).map(|step| (0..9).filter(|_| bucket.take(step * SECOND / 20, 1)).count()).sum::<usize>()
        };
        assert_eq!([0, 1, 2].map(burst_and_second), [2 + 4, 2 + 4, 2 + 3]);
    }

    #[test]
    fn bad_parameters_are_refused_with_their_place() {
        assert!(refused("burst = 1").starts_with("no rate is named (set packets_per_second or"));
        let both = refused("packets_per_second = 1\nbytes_per_second = 1\nburst = 1");
        assert!(both.starts_with("bytes_per_second: there is a packets_per_second already"), "{both}");
        assert!(refused("packets_per_second = 0\nburst = 1").starts_with("packets_per_second: a rate of 0"));
        assert!(refused("packets_per_second = 5\nburst = 0").starts_with("burst: 0 is less than the largest packet"));
        let small = refused("bytes_per_second = 5\nburst = 1517");
        assert_eq!(small, "burst: 1517 is less than the largest packet, which never passes (set it to 1518 or more)");
        let peak = refused("packets_per_second = 5\nburst = 1\npeak = 9");
        assert_eq!(peak, "peak: this goes with mode = \"trtcm\" alone (set mode = \"trtcm\" or take peak out)");
        let missing = refused("mode = \"srtcm\"\npackets_per_second = 5\nburst = 1");
        assert_eq!(missing, "excess_burst: mode = \"srtcm\" needs it");
        let low = refused("mode = \"trtcm\"\npackets_per_second = 5\nburst = 1\npeak = 4\npeak_burst = 1");
        assert!(low.starts_with("peak: a peak rate of 4 is below the committed rate, 5"), "{low}");
        assert!(refused("packets_per_seconds = 5\nburst = 1").contains("unknown field `packets_per_seconds`"));
    }

    proptest! {
        /// Against a bucket of whole tokens: at one token a nanosecond there are no fractions.
        #[test]
        fn bytes_conform_as_by_hand(
            burst in 100u64..2_000,
            packets in prop::collection::vec((0u64..600, 14usize..600), 1..80),
        ) {
            let port = PortInfo { mtu: 80, ..port("a") };
            let parameters = format!("bytes_per_second = {SECOND}\nburst = {burst}");
            let mut harness = Harness::builder().ports(&[port]).build::<Limit>(&parameters).unwrap();
            let mut level = burst;
            for (pause, len) in packets {
                harness.advance(pause);
                level = burst.min(level + pause);
                let conforms = level >= len as u64;
                level -= if conforms { len as u64 } else { 0 };
                let outcome = harness.run_one(&vec![0; len]);
                prop_assert_eq!(outcome.fate == Fate::Next, conforms);
            }
        }
    }
}
