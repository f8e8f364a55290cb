//! `limit`: meters and limits traffic.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::parameter::{NumberOrText, rate_share};
use dataplane_core::prelude::*;
use dataplane_core::units::{Bytes, PacketRate};
use dataplane_tables::bucket::{SingleRateMarker, TokenBucket, TwoRateMarker};

/// Limits traffic to a rate of packets or bytes, and marks packets as green, yellow or red (RFC 2697, RFC 2698).
///
/// The stage needs one rate, either `packets_per_second` or `bytes_per_second`. The burst sizes and the peak rate have
/// the unit of this rate: packets or bytes. The counted bytes of a frame include its headers and exclude its frame
/// check sequence. The meter uses the receive timestamps of the packets. Green packets go to the next stage. The keys
/// `yellow` and `red` define whether yellow and red packets go to the next stage or are dropped as `rate_exceeded`.
///
/// With several workers, each worker gets an equal share of the rates, because the flows are distributed over the
/// workers. The share is at least one packet or byte per second. The burst sizes `burst`, `excess_burst` and
/// `peak_burst` are not divided, so each worker has the full burst sizes.
///
/// ```toml
/// [[pipeline.stage]]
/// name               = "uplink"
/// use                = "limit"
/// packets_per_second = "10kpps"
/// burst              = 500
///
/// [[pipeline.stage]]
/// name             = "contract"
/// use              = "limit"
/// mode             = "trtcm"
/// bytes_per_second = "12.5MB"
/// burst            = "64KiB"
/// peak             = "25MB"
/// peak_burst       = "128KiB"
/// colour_aware     = true
///
/// [[pipeline.stage]]
/// name             = "access"
/// use              = "limit"
/// mode             = "srtcm"
/// bytes_per_second = "1.25MB"
/// burst            = "16KiB"
/// excess_burst     = "64KiB"
/// yellow           = "drop"
/// red              = "drop"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The metering mode. `rate`: green up to the rate, red above the rate. `srtcm` (RFC 2697): green within `burst`,
    /// yellow within `excess_burst`, red above both. `trtcm` (RFC 2698): green up to the rate, yellow up to `peak`, red
    /// above `peak`. Default: `rate`.
    #[serde(default)]
    mode: Mode,
    /// The committed rate in packets per second. No default: exactly one of `packets_per_second` and `bytes_per_second`
    /// is required.
    packets_per_second: Option<PacketRate>,
    /// The committed rate in bytes per second. No default: exactly one of `packets_per_second` and `bytes_per_second`
    /// is required.
    bytes_per_second: Option<Bytes>,
    /// The burst size, in the unit of the rate (packets or bytes), such as `500` or `"64KiB"`. A burst size in bytes
    /// must be at least the size of the largest frame that any port supports. No default.
    burst: Amount,
    /// The excess burst size (RFC 2697), in the unit of the rate. Required with `srtcm`, not allowed otherwise.
    excess_burst: Option<Amount>,
    /// The peak rate, in the unit (packets or bytes) of the committed rate, such as `"20kpps"` or `"25MB"`. At least
    /// the committed rate. Required with `trtcm`, not allowed otherwise.
    peak: Option<Amount>,
    /// The burst size at the peak rate, in the unit of the rate. A size in bytes has the same minimum as `burst`.
    /// Required with `trtcm`, not allowed otherwise.
    peak_burst: Option<Amount>,
    /// Whether the meter considers the colour that an earlier `limit` stage has set. The meter then never changes red
    /// to yellow or green, and never changes yellow to green. Default: `false`.
    #[serde(default)]
    colour_aware: bool,
    /// The action for yellow packets: `pass` or `drop`. Default: `pass`.
    #[serde(default = "pass")]
    yellow: ColourAction,
    /// The action for red packets: `pass` or `drop`. Default: `drop`.
    #[serde(default = "drop")]
    red: ColourAction,
    #[serde(skip)]
    #[schemars(skip)]
    meter: Option<Meter>,
    #[serde(skip)]
    #[schemars(skip)]
    marked: [u64; 3],
}

/// A number of packets or bytes, or a rate: a number, or text with a unit.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(try_from = "NumberOrText")]
#[schemars(with = "NumberOrText")]
struct Amount {
    value: u64,
    unit: Option<Unit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    PacketsPerSecond,
}

impl TryFrom<NumberOrText> for Amount {
    type Error = String;

    fn try_from(value: NumberOrText) -> Result<Self, String> {
        let text = value.to_string();
        let wrong = |_| {
            format!(
                "`{text}` is not an amount; help: write a number, or text with a unit: 500, \"64KiB\" or \"10kpps\""
            )
        };
        if text.ends_with("pps") {
            let PacketRate(value) = text.parse().map_err(wrong)?;
            return Ok(Self { value, unit: Some(Unit::PacketsPerSecond) });
        }
        let Bytes(bytes) = text.parse().map_err(wrong)?;
        let has_unit = text.contains(|c: char| c.is_ascii_alphabetic());
        Ok(Self { value: bytes, unit: has_unit.then_some(Unit::Bytes) })
    }
}

/// How a meter assigns colours.
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

/// The action for packets of one colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ColourAction {
    /// Packets go to the next stage with their colour.
    Pass,
    /// Packets are dropped.
    Drop,
}

fn pass() -> ColourAction {
    ColourAction::Pass
}

fn drop() -> ColourAction {
    ColourAction::Drop
}

/// The limit of a stage. The rates and the packet counts are for all workers together. Each worker has the full burst
/// sizes.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct LimitRow {
    /// How the meter assigns colours.
    mode: Mode,
    /// The unit of the rates and burst sizes.
    unit: LimitUnit,
    /// The committed rate, in units per second.
    rate_per_s: u64,
    /// The burst size, in units.
    burst: u64,
    /// The excess burst size in units, with the mode `srtcm`.
    excess_burst: Option<u64>,
    /// The peak rate in units per second, with the mode `trtcm`.
    peak_per_s: Option<u64>,
    /// The burst size at the peak rate in units, with the mode `trtcm`.
    peak_burst: Option<u64>,
    /// Packets within the limit.
    green: u64,
    /// Packets above the limit, but within the excess burst size or the peak rate.
    yellow: u64,
    /// Packets that are neither green nor yellow.
    red: u64,
}

/// The unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum LimitUnit {
    /// Packets.
    Packets,
    /// Bytes.
    Bytes,
}

/// The table for `dataplane show limits`.
struct LimitTable(LimitRow);

impl Table for LimitTable {
    type Row = LimitRow;

    fn needs_counters(&self) -> bool {
        true
    }

    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<LimitRow>, String> {
        let [green, yellow, red] = ["green", "yellow", "red"].map(|name| query.counter(name));
        TablePage::of_list(std::slice::from_ref(&self.0), query, |row| LimitRow { green, yellow, red, ..row.clone() })
    }
}

/// The bytes of a frame in addition to its payload: the Ethernet header and one VLAN tag.
const FRAMING: u64 = 18;

#[derive(Debug)]
enum Meter {
    Rate(TokenBucket),
    SingleRate(SingleRateMarker),
    TwoRate(TwoRateMarker),
}

impl Meter {
    /// Takes over the tokens of an earlier meter with the same mode.
    fn take_over_tokens(&mut self, earlier: &Self) {
        match (self, earlier) {
            (Self::Rate(bucket), Self::Rate(earlier)) => bucket.take_over_tokens(earlier),
            (Self::SingleRate(marker), Self::SingleRate(earlier)) => marker.take_over_tokens(earlier),
            (Self::TwoRate(marker), Self::TwoRate(earlier)) => marker.take_over_tokens(earlier),
            _ => {}
        }
    }

    /// Returns the levels of the buckets. A plain rate limiter has only one bucket.
    fn levels(&self) -> [u128; 2] {
        match self {
            Self::Rate(bucket) => [bucket.level(), 0],
            Self::SingleRate(marker) => marker.levels(),
            Self::TwoRate(marker) => marker.levels(),
        }
    }

    fn set_levels(&mut self, levels: [u128; 2]) {
        match self {
            Self::Rate(bucket) => bucket.set_level(levels[0]),
            Self::SingleRate(marker) => marker.set_levels(levels),
            Self::TwoRate(marker) => marker.set_levels(levels),
        }
    }

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
    /// Returns the committed rate and its key.
    fn rate(&self) -> Result<(u64, &'static str), Problem> {
        let (rate, key) = match (self.packets_per_second, self.bytes_per_second) {
            (Some(rate), None) => (rate.0, "packets_per_second"),
            (None, Some(rate)) => (rate.0, "bytes_per_second"),
            (None, None) => {
                return Err(Problem::at("", "no rate is set").help("set packets_per_second or bytes_per_second"));
            }
            (Some(_), Some(_)) => {
                let problem =
                    Problem::at("bytes_per_second", "`bytes_per_second` and `packets_per_second` are both set");
                return Err(problem.help("use two stages, one for each rate"));
            }
        };
        if rate == 0 {
            return Err(Problem::at(key, "a rate of 0 passes no packet").help("use a `drop` stage instead"));
        }
        Ok((rate, key))
    }

    /// Returns the value of a parameter, or a problem if its unit differs from the unit of the committed rate.
    fn amount(&self, key: &str, amount: Amount) -> Result<u64, Problem> {
        let expected = match (self.bytes_per_second, key) {
            (Some(_), _) => Some(Unit::Bytes),
            (None, "peak") => Some(Unit::PacketsPerSecond),
            (None, _) => None,
        };
        if amount.unit.is_none() || amount.unit == expected {
            return Ok(amount.value);
        }
        let (rate, example) = match expected {
            Some(Unit::Bytes) => ("bytes_per_second", "\"64KiB\""),
            Some(Unit::PacketsPerSecond) => ("packets_per_second", "\"20kpps\""),
            None => ("packets_per_second", "500"),
        };
        let problem = Problem::at(key, format!("the unit does not fit `{rate}`"));
        Err(problem.help(format!("write a value such as {key} = {example}")))
    }

    /// Returns the value of a parameter that one mode requires and the other modes refuse.
    fn only_with(&self, mode: Mode, key: &str, name: &str, value: Option<Amount>) -> Result<u64, Problem> {
        match value {
            Some(_) if self.mode != mode => {
                let problem = Problem::at(key, format!("only allowed with mode = \"{name}\""));
                Err(problem.help(format!("set mode = \"{name}\" or remove {key}")))
            }
            None if self.mode == mode => Err(Problem::at(key, format!("required with mode = \"{name}\""))),
            Some(value) => self.amount(key, value),
            None => Ok(0),
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
                Colour::Green => (0, ColourAction::Pass),
                Colour::Yellow => (1, self.yellow),
                Colour::Red => (2, self.red),
            };
            self.marked[index] += 1;
            if action == ColourAction::Drop {
                packet.drop(Reason::RateExceeded);
            }
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let (rate, key) = self.rate()?;
        let burst = self.amount("burst", self.burst)?;
        let excess = self.only_with(Mode::Srtcm, "excess_burst", "srtcm", self.excess_burst)?;
        let peak = self.only_with(Mode::Trtcm, "peak", "trtcm", self.peak)?;
        let peak_burst = self.only_with(Mode::Trtcm, "peak_burst", "trtcm", self.peak_burst)?;
        if self.mode == Mode::Trtcm && peak < rate {
            let problem = Problem::at("peak", format!("a peak rate of {peak} is below the committed rate, {rate}"));
            return Err(problem.help(format!("set `peak` to {rate} or more, or lower `{key}`")));
        }
        // RFC 2697, section 2: a burst must be at least as large as the largest packet, or that packet never
        // conforms.
        let by_bytes = self.bytes_per_second.is_some();
        let frame = setup.ports().iter().map(|port| u64::from(port.mtu) + FRAMING).max();
        let least = if by_bytes { frame.unwrap_or(1) } else { 1 };
        let peak_least = if self.mode == Mode::Trtcm { least } else { 0 };
        for (key, size, least) in [("burst", burst, least), ("peak_burst", peak_burst, peak_least)] {
            if size < least {
                let problem =
                    Problem::at(key, format!("{size} is less than the largest packet, which could never pass"));
                return Err(problem.help(format!("set `{key}` to {least} or more")));
            }
        }
        let worker = setup.worker_and_count();
        let share = |rate| rate_share(rate, worker);
        self.meter = Some(match self.mode {
            Mode::Rate => Meter::Rate(TokenBucket::new(share(rate), burst, 0)),
            Mode::Srtcm => Meter::SingleRate(SingleRateMarker::new(share(rate), burst, excess, 0)),
            Mode::Trtcm => Meter::TwoRate(TwoRateMarker::new((share(rate), burst), (share(peak), peak_burst), 0)),
        });
        if worker.0 == 0 {
            let unit = if by_bytes { LimitUnit::Bytes } else { LimitUnit::Packets };
            let only = |mode, value| (self.mode == mode).then_some(value);
            setup.table(
                "limits",
                LimitTable(LimitRow {
                    mode: self.mode,
                    unit,
                    rate_per_s: rate,
                    burst,
                    excess_burst: only(Mode::Srtcm, excess),
                    peak_per_s: only(Mode::Trtcm, peak),
                    peak_burst: only(Mode::Trtcm, peak_burst),
                    green: 0,
                    yellow: 0,
                    red: 0,
                }),
            );
        }
        Ok(())
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        let Some(earlier) = earlier.downcast::<Self>() else { return HeldPackets::Keep };
        self.marked = earlier.marked;
        // A token is a packet or a byte, so the tokens of a bucket of packets have no meaning for a bucket of bytes.
        let is_same_unit = self.bytes_per_second.is_some() == earlier.bytes_per_second.is_some();
        if let (Some(meter), Some(earlier), true) = (&mut self.meter, &earlier.meter, is_same_unit) {
            meter.take_over_tokens(earlier);
        }
        HeldPackets::Keep
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .keeps("the tokens of its buckets (unless the mode or the unit of the limit changes)")
            .drops(&[Reason::RateExceeded])
            .tables(const { &[TableInfo::of::<LimitTable>("limits")] })
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        for (name, packets) in ["green", "yellow", "red"].into_iter().zip(self.marked) {
            report.add(name, packets);
        }
    }

    fn contract(&self) -> Contract {
        Contract::new()
            .needs(if self.colour_aware { Facts::STAMP | Facts::COLOUR } else { Facts::STAMP })
            .sets(Facts::COLOUR)
            .ignores_checksums()
            .transfers_state::<Self>()
    }
}

/// The version of the saved state.
const STATE_VERSION: u8 = 1;

impl Limit {
    /// Returns the first bytes of the saved state: the version, the mode and the unit. A limit takes over only tokens
    /// that were saved with the same bytes.
    fn state_head(&self) -> [u8; 3] {
        [STATE_VERSION, self.mode as u8, self.bytes_per_second.is_some().into()]
    }
}

impl StateTransfer for Limit {
    fn save_state(&mut self) -> Option<Vec<u8>> {
        let levels = self.meter.as_ref()?.levels();
        Some([&self.state_head()[..], levels.map(u128::to_be_bytes).as_flattened()].concat())
    }

    /// The times of packets start at 0 in a new program, like the time of a new meter, so the meter earns no tokens for the
    /// time of the upgrade.
    fn load_state(&mut self, state: &[u8]) -> Result<(), String> {
        let head = self.state_head();
        let levels = state.strip_prefix(&head).ok_or("the saved tokens have another version, mode or unit")?;
        let ([committed, other], []) = levels.as_chunks::<16>() else {
            return Err("the saved tokens are damaged".to_owned());
        };
        if let Some(meter) = &mut self.meter {
            meter.set_levels([*committed, *other].map(u128::from_be_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use dataplane_core::harness::{Fate, Harness, frame, port};
    use dataplane_core::pipeline::{PortInfo, Resources};

    const SECOND: u64 = 1_000_000_000;

    fn refused(parameters: &str) -> String {
        Harness::from_toml::<Limit>(parameters).err().unwrap()
    }

    #[test]
    fn packet_rate_is_enforced() {
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
    fn action_of_each_colour_can_be_set() {
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

    #[test]
    fn tokens_move_to_another_program() {
        for (parameters, spent, expected) in [
            ("packets_per_second = 10\nburst = 5", 3, [2, 0, 7]),
            ("packets_per_second = 10\nburst = 3\nmode = \"srtcm\"\nexcess_burst = 4", 4, [0, 3, 6]),
            ("packets_per_second = 10\nburst = 3\nmode = \"trtcm\"\npeak = 20\npeak_burst = 5", 4, [0, 1, 8]),
        ] {
            let limit = |parameters: &str| Harness::from_toml::<Limit>(parameters).unwrap();
            let (mut old, mut new) = (limit(parameters), limit(parameters));
            old.advance(SECOND);
            old.run(&vec![frame().build(); spent]);
            let state = old.stage().downcast::<Limit>().unwrap().save_state().unwrap();
            let load = |new: &mut Harness, state: &[u8]| new.stage().downcast::<Limit>().unwrap().load_state(state);
            load(&mut new, &state).unwrap();
            new.run(&vec![frame().build(); 9]);
            let marked: Vec<u64> = new.counters().into_iter().map(|(_, value)| value).collect();
            assert_eq!(marked, expected, "{parameters}");
            for wrong in [&state[..state.len() - 1], &[], &[&state[..], &[0]].concat(), &[&[9], &state[1..]].concat()] {
                assert!(load(&mut new, wrong).is_err(), "{parameters}: {wrong:?}");
            }
            let mut other = limit("bytes_per_second = 10\nburst = 2000");
            assert_eq!(load(&mut other, &state).unwrap_err(), "the saved tokens have another version, mode or unit");
        }
    }

    const THREE_COLOURS: &str =
        "mode = \"trtcm\"\npackets_per_second = 1\nburst = 1\npeak = 2\npeak_burst = 2\nred = \"pass\"";

    #[test]
    fn colour_aware_meter_never_improves_the_colour() {
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
            assert_eq!(harness.stage().contract().needs.contains(Facts::COLOUR), aware);
        }
    }

    #[test]
    fn workers_share_the_rate() {
        let mut resources = Resources::new(Vec::new(), Path::new(""));
        let burst_and_second = |worker| {
            let mut stage: Limit = toml::from_str("packets_per_second = 11\nburst = 2").unwrap();
            stage.prepare(&mut Setup::new(&mut resources, "limit", worker, 3)).unwrap();
            let Some(Meter::Rate(bucket)) = &mut stage.meter else { panic!("the mode is not `rate`") };
            // The time steps are so short that the bucket of 2 tokens never overflows.
            (0..=20).map(|step| (0..9).filter(|_| bucket.take(step * SECOND / 20, 1)).count()).sum::<usize>()
        };
        assert_eq!([0, 1, 2].map(burst_and_second), [2 + 4, 2 + 4, 2 + 3]);
    }

    #[test]
    fn amounts_are_read_with_their_units() {
        for parameters in [
            "packets_per_second = '10kpps'\nburst = 500",
            "mode = 'trtcm'\npackets_per_second = '1kpps'\nburst = 1\npeak = '2kpps'\npeak_burst = 2",
            "mode = 'trtcm'\nbytes_per_second = '12.5MB'\nburst = '64KiB'\npeak = '25MB'\npeak_burst = '128Ki'",
            "mode = 'srtcm'\nbytes_per_second = '1M'\nburst = '9k'\nexcess_burst = '1MB'",
        ] {
            assert_eq!(Harness::from_toml::<Limit>(parameters).err(), None, "{parameters}");
        }
    }

    #[test]
    fn invalid_parameters_are_refused_with_their_key() {
        assert!(refused("burst = 1").starts_with("no rate is set; help: set packets_per_second or"));
        let both = refused("packets_per_second = 1\nbytes_per_second = 1\nburst = 1");
        assert!(
            both.starts_with("bytes_per_second: `bytes_per_second` and `packets_per_second` are both set"),
            "{both}"
        );
        assert!(refused("packets_per_second = 0\nburst = 1").starts_with("packets_per_second: a rate of 0"));
        assert!(refused("packets_per_second = 5\nburst = 0").starts_with("burst: 0 is less than the largest packet"));
        let small = refused("bytes_per_second = 5\nburst = 1517");
        assert_eq!(
            small,
            "burst: 1517 is less than the largest packet, which could never pass; help: set `burst` to 1518 or more"
        );
        let peak = refused("packets_per_second = 5\nburst = 1\npeak = 9");
        assert_eq!(peak, "peak: only allowed with mode = \"trtcm\"; help: set mode = \"trtcm\" or remove peak");
        let missing = refused("mode = \"srtcm\"\npackets_per_second = 5\nburst = 1");
        assert_eq!(missing, "excess_burst: required with mode = \"srtcm\"");
        let low = refused("mode = \"trtcm\"\npackets_per_second = 5\nburst = 1\npeak = 4\npeak_burst = 1");
        assert!(low.starts_with("peak: a peak rate of 4 is below the committed rate, 5"), "{low}");
        for (parameters, key) in [
            ("packets_per_second = 5\nburst = '64KiB'", "burst"),
            ("bytes_per_second = 5\nburst = '5kpps'", "burst"),
            ("mode = 'trtcm'\npackets_per_second = 5\nburst = 1\npeak = '25MB'\npeak_burst = 1", "peak"),
        ] {
            assert!(refused(parameters).starts_with(&format!("{key}: the unit does not fit `")), "{parameters}");
        }
        assert!(refused("packets_per_second = 5\nburst = '5x'").contains("`5x` is not an amount"));
        assert!(refused("packets_per_seconds = 5\nburst = 1").contains("unknown field `packets_per_seconds`"));
    }

    proptest! {
        /// Compares the meter with a simple bucket that counts whole tokens. At one token per nanosecond there are no
        /// fractions of tokens.
        #[test]
        fn byte_rate_matches_a_simple_token_bucket(
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
