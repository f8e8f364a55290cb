//! Quantities that a config writes with a unit: durations, sizes, packet rates and bit rates.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const SECONDS_PER_DAY: u64 = 86_400;

/// A duration, written `"5s"`, `"100ms"`, `"250us"`, `"50ns"` or `"1h30m"`. A config can contain durations of at most
/// [`Period::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

impl Period {
    /// The maximum duration that a config can contain: 365 days.
    pub const MAX: Self = Self::from_secs(365 * SECONDS_PER_DAY);

    /// Creates a period of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// Returns the period in nanoseconds, or the maximum of the type if the period is longer.
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the time that is this period after now. Treats a period of more than [`Period::MAX`] as
    /// [`Period::MAX`], because an [`Instant`] plus a longer period can overflow.
    pub fn after_now(self) -> Instant {
        Instant::now() + self.min(Self::MAX).0
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0.as_secs() / SECONDS_PER_DAY;
        if days < 30 {
            return humantime::format_duration(self.0).fmt(f);
        }
        // The crate `humantime` writes 30 days and more with months and years, which [`FromStr`] refuses.
        let rest = self.0 - Duration::from_secs(days * SECONDS_PER_DAY);
        write!(f, "{days}days")?;
        if rest.is_zero() { Ok(()) } else { write!(f, " {}", humantime::format_duration(rest)) }
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match unlimited_duration(text)? {
            Some(duration) if duration <= Self::MAX.0 => Ok(Self(duration)),
            _ => Err(format!("`{text}` is longer than the maximum of {}; help: write at most \"365d\"", Self::MAX)),
        }
    }
}

/// Reads a duration without a maximum. Returns `None` if the duration does not fit its type.
fn unlimited_duration(text: &str) -> Result<Option<Duration>, String> {
    // The crate `humantime` reads `M` as months. Months and years have no fixed length.
    let units = text.split(|char: char| !char.is_alphabetic());
    if let Some(unit) = units.into_iter().find(|unit| unit.starts_with(['M', 'y']) || unit.starts_with("mo")) {
        return Err(format!("`{unit}` is not a unit of a duration; help: write `m` for minutes, and `d` for days"));
    }
    match humantime::parse_duration(text) {
        Ok(duration) => Ok(Some(duration)),
        // The crate reports this error also for fractions of a nanosecond.
        Err(humantime::DurationError::NumberOverflow) if !text.contains('.') => Ok(None),
        Err(_) => Err(format!(
            "`{text}` is not a duration; help: write a number and its unit: \"5s\", \"100ms\", \"250us\" or \"1h30m\""
        )),
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Period;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"5s\" or \"100ms\"")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Period, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Period, E> {
                Err(E::custom(format!("the duration {number} has no unit; help: write \"{number}s\" for seconds")))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for Period {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Period".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^ *([0-9]+(\\.[0-9]+)? *(ns|us|µs|ms|s|m|h|d) *)+$",
            "examples": ["5s", "250us", "1h30m"],
        })
    }
}

/// Implements serde's traits and the JSON schema of a quantity that is a number, or text with a unit.
macro_rules! number_or_text {
    ($name:ident, $expecting:literal, $pattern:literal, $examples:tt) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u64(self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct NumberOrText;
                impl Visitor<'_> for NumberOrText {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_i64<E: Error>(self, number: i64) -> Result<$name, E> {
                        let valid = u64::try_from(number).map($name);
                        valid.map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
                    }
                    fn visit_u64<E>(self, number: u64) -> Result<$name, E> {
                        Ok($name(number))
                    }
                    fn visit_str<E: Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(NumberOrText)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "type": ["integer", "string"],
                    "minimum": 0,
                    "pattern": $pattern,
                    "examples": $examples,
                })
            }
        }
    };
}

/// A number of bytes, written `2048`, `"9k"` or `"2MiB"`. The prefixes `k`, `M`, `G` and `T` are powers of 1,000. The
/// prefixes `Ki`, `Mi`, `Gi` and `Ti` are powers of 1,024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

number_or_text!(
    Bytes,
    "a number of bytes, such as 2048, \"9k\" or \"2MiB\"",
    "^[0-9]+(\\.[0-9]+)? *([kKMGT]i?)?B?$",
    [2048, "9k", "2MiB"]
);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        self.0.fmt(f)
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<ByteSize>() {
            // `ByteSize` saturates.
            Ok(ByteSize(u64::MAX)) => Err(format!("`{text}` is out of range; help: write less than 16 EiB")),
            Ok(size) => Ok(Self(size.0)),
            Err(_) => Err(format!(
                "`{text}` is not a number of bytes; help: write a number, or text with a unit: 2048, \"9k\" or \"2MiB\""
            )),
        }
    }
}

/// A number of packets per second, written `1000000`, `"1Mpps"` or `"500kpps"`. The prefixes are powers of 1,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketRate(pub u64);

number_or_text!(
    PacketRate,
    "a number of packets per second, such as 1000 or \"1Mpps\"",
    "^[0-9]+(\\.[0-9]+)? *[kMGT]?pps$",
    [1000, "500kpps", "1Mpps"]
);

impl fmt::Display for PacketRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for PacketRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        per_second(text, "pps").map(Self).ok_or_else(|| {
            format!(
                "`{text}` is not a packet rate; help: write a number, or text with a unit: 1000, \"500kpps\" or \"1Mpps\""
            )
        })
    }
}

/// A number of bits per second, written `1000000`, `"5Gbps"` or `"500kbps"`. The prefixes are powers of 1,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

number_or_text!(
    BitRate,
    "a number of bits per second, such as 1000000 or \"5Gbps\"",
    "^[0-9]+(\\.[0-9]+)? *[kMGT]?bps$",
    [1_000_000, "500kbps", "5Gbps"]
);

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for BitRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        per_second(text, "bps").map(Self).ok_or_else(|| {
            format!(
                "`{text}` is not a bit rate; help: write a number, or text with a unit: 1000000, \"500Mbps\" or \"5Gbps\""
            )
        })
    }
}

/// Reads a number with the unit `unit`, such as `pps`. The prefixes `k`, `M`, `G` and `T` are powers of 1,000. Returns
/// `None` for any other text, and for a number that does not fit.
fn per_second(text: &str, unit: &str) -> Option<u64> {
    let scaled = text.strip_suffix(unit)?;
    let number = scaled.strip_suffix(['k', 'M', 'G', 'T']).unwrap_or(scaled);
    let prefix = &scaled[number.len()..];
    let number = number.trim_end_matches(' ');
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let rate = format!("{number}{prefix}B").parse::<ByteSize>().ok()?.0;
    // `ByteSize` saturates.
    (rate != u64::MAX).then_some(rate)
}

/// A duration that may be negative, written `"37s"` or `"-5ms"`, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offset(pub i64);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(f, "{sign}{}", Period(Duration::from_nanos(self.0.unsigned_abs())))
    }
}

impl FromStr for Offset {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (sign, period) = text.strip_prefix('-').map_or((1, text), |period| (-1, period));
        let duration = unlimited_duration(period).ok().flatten();
        let nanos = duration.and_then(|duration| i64::try_from(duration.as_nanos()).ok());
        nanos.map(|nanos| Self(sign * nanos)).ok_or_else(|| {
            format!("`{text}` is not a duration; help: write a number and its unit, with `-` if it is negative: \"37s\" or \"-5ms\"")
        })
    }
}

impl Serialize for Offset {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Offset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Offset;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"37s\" or \"-5ms\"")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Offset, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Offset, E> {
                Err(E::custom(format!("the duration {number} has no unit; help: write \"{number}ns\" for nanoseconds")))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for Offset {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Offset".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^-?([0-9]+(\\.[0-9]+)? *(ns|us|µs|ms|s|m|h|d) *)+$",
            "examples": ["37s", "-5ms"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_and_years_are_refused() {
        for text in ["5M", "1h 5M", "2 months", "1month", "1y", "3years"] {
            let error = text.parse::<Period>().unwrap_err();
            assert!(error.contains("help: write `m` for minutes"), "{text}: {error}");
        }
        assert_eq!("5m".parse(), Ok(Period::from_secs(300)));
        assert_eq!("5min".parse(), Ok(Period::from_secs(300)));
    }

    #[test]
    fn period_is_read_with_its_units() {
        for (text, nanos) in [
            ("5s", 5_000_000_000),
            ("100ms", 100_000_000),
            ("250us", 250_000),
            ("50ns", 50),
            ("2m", 120_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1m 30s", 90_000_000_000),
            ("0s", 0),
        ] {
            let period: Period = text.parse().unwrap();
            assert_eq!(period.as_nanos(), nanos, "{text}");
            assert_eq!(period.to_string().parse::<Period>(), Ok(period), "{text}");
        }
        for text in ["", "5", "s", "-5s", "5x"] {
            assert!(
                text.parse::<Period>().unwrap_err().starts_with(&format!("`{text}` is not a duration; help: write"))
            );
        }
    }

    #[test]
    fn duration_of_more_than_a_year_is_refused() {
        for text in ["365d", "8760h", "31536000s", "31536000000000000ns", "90d", "31days 5s"] {
            let period: Period = text.parse().unwrap();
            assert_eq!(period.to_string().parse(), Ok(period), "{text}");
        }
        for text in ["366d", "365d 1ns", "9223372036854775807s", "18446744073709551615s", "99999999999999999999s"] {
            let message = format!("`{text}` is longer than the maximum of 365days; help: write at most \"365d\"");
            assert_eq!(text.parse::<Period>(), Err(message));
        }
        assert_eq!("-20000d".parse(), Ok(Offset(-20_000 * 86_400_000_000_000)), "an offset may be longer than a year");
    }

    #[test]
    fn longest_duration_after_now_does_not_overflow() {
        assert!(Period(Duration::MAX).after_now() > Instant::now());
    }

    #[test]
    fn bytes_are_read_with_powers_of_1000_and_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("2048", 2048),
            ("9k", 9000),
            ("9K", 9000),
            ("9kB", 9000),
            ("64Ki", 65_536),
            ("64KiB", 65_536),
            ("2M", 2_000_000),
            ("2MiB", 2 << 20),
            ("1.5 GiB", 3 << 29),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["99999999999E", "16EiB", "99999999999999999999.5k"] {
            let message = format!("`{text}` is out of range; help: write less than 16 EiB");
            assert_eq!(text.parse::<Bytes>(), Err(message));
        }
        for text in ["", "k", "-1", "2x", "9kpps"] {
            assert!(
                text.parse::<Bytes>()
                    .unwrap_err()
                    .starts_with(&format!("`{text}` is not a number of bytes; help: write"))
            );
        }
    }

    #[test]
    fn packet_rate_is_read_with_its_unit() {
        for (text, rate) in [
            ("10pps", 10),
            ("10 pps", 10),
            ("0.5pps", 0),
            ("500kpps", 500_000),
            ("1.5Mpps", 1_500_000),
            ("2 Gpps", 2_000_000_000),
            ("1Tpps", 1_000_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(PacketRate(rate)), "{text}");
        }
        for text in [
            "",
            "pps",
            "kpps",
            "10",
            "1Mbps",
            "1Mipps",
            "1MBpps",
            "5Gbpps",
            "1KIpps",
            "5mpps",
            "5Kpps",
            "1Ppps",
            "5.kpps",
            ".5kpps",
            "1.2.3kpps",
            "-1pps",
            "+1pps",
            "1e3pps",
            " 1pps",
            "1k pps",
            "1\tkpps",
            "99999999999Tpps",
        ] {
            assert!(text.parse::<PacketRate>().unwrap_err().contains("is not a packet rate"), "{text}");
        }
    }

    #[test]
    fn bit_rate_is_read_with_its_unit() {
        for (text, rate) in [
            ("10bps", 10),
            ("10 bps", 10),
            ("500kbps", 500_000),
            ("2.5 Gbps", 2_500_000_000),
            ("1Tbps", 1_000_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(BitRate(rate)), "{text}");
        }
        for text in ["", "bps", "10", "1Mpps", "1Mibps", "1MBps", "5mbps", "5Gbbps", "5.kbps", "99999999999Tbps"] {
            assert!(text.parse::<BitRate>().unwrap_err().contains("is not a bit rate"), "{text}");
        }
    }

    #[test]
    fn offset_has_a_sign_and_a_unit() {
        for (text, nanos) in [("37s", 37_000_000_000), ("-5ms", -5_000_000), ("0s", 0), ("-1m 1ns", -60_000_000_001)] {
            let offset: Offset = text.parse().unwrap();
            assert_eq!(offset.0, nanos, "{text}");
            assert_eq!(offset.to_string().parse::<Offset>(), Ok(offset), "{text}");
        }
        for text in ["", "5", "--5s", "1000y"] {
            assert!(text.parse::<Offset>().unwrap_err().contains("is not a duration"), "{text}");
        }
    }

    #[test]
    fn number_without_unit_is_read_unless_it_is_ambiguous() {
        #[derive(Debug, Deserialize)]
        struct Quantities {
            size: Option<Bytes>,
            rate: Option<PacketRate>,
            time: Option<Period>,
        }
        let read = |text: &str| toml::from_str::<Quantities>(text).map_err(|error| error.message().to_owned());
        let both = read("size = 5\nrate = 7").unwrap();
        assert_eq!((both.size, both.rate, both.time), (Some(Bytes(5)), Some(PacketRate(7)), None));
        assert_eq!(read("time = 300").unwrap_err(), "the duration 300 has no unit; help: write \"300s\" for seconds");
        assert!(read("size = -1").unwrap_err().contains("expected a number of bytes"));
    }
}
