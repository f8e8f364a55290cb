//! Values that a config writes in a form of its own.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Derives serde's traits from `Display` and `FromStr`.
macro_rules! as_string {
    ($name:ident, $expecting:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

/// A length of time, written `"5s"`, `"100ms"`, `"20us"`, `"50ns"` or `"2m"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

as_string!(Period, "a time such as \"5s\" or \"100ms\"");

const UNITS: [(&str, u64); 5] =
    [("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        for (unit, scale) in UNITS.iter().skip(1) {
            if nanos.is_multiple_of(u128::from(*scale)) {
                return write!(f, "{}{unit}", nanos / u128::from(*scale));
            }
        }
        unreachable!("the last unit divides every number of nanoseconds")
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
        let nanos = scale.and_then(|scale| number.parse::<u64>().ok()?.checked_mul(scale));
        nanos.map(|nanos| Self(Duration::from_nanos(nanos))).ok_or_else(|| {
            format!("`{text}` is no length of time\nwrite a whole number and its unit: \"5s\", \"100ms\", \"20us\", \"50ns\" or \"2m\"")
        })
    }
}

/// Where a program that runs can be asked for its numbers, written `"auto"`, `"none"` or as a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// At a socket named by the process, in the folder for such.
    #[default]
    Auto,
    /// Nowhere.
    None,
    /// At this socket.
    Path(PathBuf),
}

as_string!(Control, "\"auto\", \"none\", or the path of a socket");

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Control {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("an empty path\nwrite \"auto\", \"none\", or the path of a socket".to_owned()),
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            path => Ok(Self::Path(path.into())),
        }
    }
}

/// A MAC address, written `"02:00:00:00:00:01"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

as_string!(Mac, "a MAC address such as \"02:00:00:00:00:01\"");

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digit = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts: Option<Vec<u8>> =
            text.split(':').map(|part| u8::from_str_radix(part, 16).ok().filter(|_| digit(part))).collect();
        parts
            .and_then(|parts| parts.try_into().ok())
            .map(Self)
            .ok_or_else(|| format!("`{text}` is no MAC address\nwrite six bytes in hexadecimal: \"02:00:00:00:00:01\""))
    }
}

/// An address of a port and how long the prefix of its link is, written `"192.0.2.1/24"` or `"2001:db8::1/64"`. Without a
/// length there is nobody beside it on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub IpNet);

as_string!(Address, "an address and the length of its prefix, such as \"192.0.2.1/24\"");

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let net: IpNet = net.map_err(|_| {
            format!(
                "`{text}` is no address\nwrite it with the length of its prefix: \"192.0.2.1/24\" or \"2001:db8::1/64\""
            )
        })?;
        let address = net.addr();
        let alone = match net {
            IpNet::V4(net) => {
                let of_all = net.prefix_len() < 31 && (net.addr() == net.network() || net.addr() == net.broadcast());
                !of_all && !net.addr().is_broadcast()
            }
            IpNet::V6(_) => true,
        };
        if !alone || address.is_unspecified() || address.is_multicast() {
            return Err(format!("`{text}` is not the address of a single host"));
        }
        Ok(Self(net))
    }
}

/// The key of the Toeplitz hash: `"default"` (the one that Microsoft's RSS specification verifies with), `"symmetric"`
/// (both directions of a flow get one hash) or 40 bytes in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RssKey {
    /// The key of the RSS specification.
    #[default]
    Default,
    /// `6d5a` twenty times.
    Symmetric,
    /// Any other.
    Bytes([u8; 40]),
}

as_string!(RssKey, "\"default\", \"symmetric\" or 80 hexadecimal digits");

impl fmt::Display for RssKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Symmetric => f.write_str("symmetric"),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

impl FromStr for RssKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => return Ok(Self::Default),
            "symmetric" => return Ok(Self::Symmetric),
            _ => {}
        }
        let mut bytes = [0; 40];
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        match digits {
            Some(digits) if digits.len() == 80 => {
                for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
                    *byte = pair[0] << 4 | pair[1];
                }
                Ok(Self::Bytes(bytes))
            }
            _ => Err(format!("`{text}` is no RSS key\nwrite \"default\", \"symmetric\" or 80 hexadecimal digits")),
        }
    }
}

/// How often a capture is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// So many times.
    Times(u64),
    /// Until the run ends.
    Forever,
}

impl Default for Repeat {
    fn default() -> Self {
        Self::Times(1)
    }
}

impl Serialize for Repeat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Times(1) => serializer.serialize_bool(false),
            Self::Times(times) => serializer.serialize_u64(*times),
            Self::Forever => serializer.serialize_bool(true),
        }
    }
}

impl<'de> Deserialize<'de> for Repeat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Choice;
        impl Visitor<'_> for Choice {
            type Value = Repeat;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or how often, 1 or more")
            }
            fn visit_bool<E>(self, forever: bool) -> Result<Repeat, E> {
                Ok(if forever { Repeat::Forever } else { Repeat::Times(1) })
            }
            fn visit_i64<E: serde::de::Error>(self, times: i64) -> Result<Repeat, E> {
                let valid = u64::try_from(times).ok().filter(|&times| times > 0);
                valid.map(Repeat::Times).ok_or_else(|| E::invalid_value(Unexpected::Signed(times), &self))
            }
        }
        deserializer.deserialize_any(Choice)
    }
}

/// Reads a whole number from `MIN` to `MAX`, for `#[serde(deserialize_with = "within::<_, u32, 1, 256>")]`.
///
/// # Errors
///
/// An error that names the range.
pub fn within<'de, D, T, const MIN: u64, const MAX: u64>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    struct Number<const MIN: u64, const MAX: u64>;
    impl<const MIN: u64, const MAX: u64> Visitor<'_> for Number<MIN, MAX> {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from {MIN} to {MAX}")
        }
        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<u64, E> {
            let valid = u64::try_from(number).ok().filter(|number| (MIN..=MAX).contains(number));
            valid.ok_or_else(|| E::invalid_value(Unexpected::Signed(number), &self))
        }
        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<u64, E> {
            let valid = Some(number).filter(|number| (MIN..=MAX).contains(number));
            valid.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
        }
    }
    let number = deserializer.deserialize_u64(Number::<MIN, MAX>)?;
    T::try_from(number).map_err(|_| D::Error::custom(format!("{number} is too large for this key")))
}

/// As [`within`], for a key that may be absent.
///
/// # Errors
///
/// An error that names the range.
pub fn within_some<'de, D, T, const MIN: u64, const MAX: u64>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<u64>,
{
    within::<D, T, MIN, MAX>(deserializer).map(Some)
}

/// Reads a whole number from `MIN` to `MAX`, which may be below 0.
///
/// # Errors
///
/// An error that names the range.
pub fn within_signed<'de, D, const MIN: i64, const MAX: i64>(deserializer: D) -> Result<i64, D::Error>
where
    D: Deserializer<'de>,
{
    let number = i64::deserialize(deserializer)?;
    if (MIN..=MAX).contains(&number) {
        return Ok(number);
    }
    let expected = format!("a whole number from {MIN} to {MAX}");
    Err(D::Error::invalid_value(Unexpected::Signed(number), &expected.as_str()))
}

/// Reads a probability: a number from 0 to 1.
///
/// # Errors
///
/// An error that names the range.
pub fn probability<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    struct Probability;
    impl Visitor<'_> for Probability {
        type Value = f64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a probability from 0.0 to 1.0")
        }
        fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<f64, E> {
            let valid = Some(number).filter(|number| (0.0..=1.0).contains(number));
            valid.ok_or_else(|| E::invalid_value(Unexpected::Float(number), &self))
        }
        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<f64, E> {
            match number {
                0 => Ok(0.0),
                1 => Ok(1.0),
                _ => Err(E::invalid_value(Unexpected::Signed(number), &self)),
            }
        }
    }
    deserializer.deserialize_f64(Probability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_prefix_of_their_link() {
        for (text, whole) in [
            ("192.0.2.1/24", "192.0.2.1/24"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("192.0.2.0/31", "192.0.2.0/31"),
            ("2001:db8::1/64", "2001:db8::1/64"),
            ("fe80::1", "fe80::1/128"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), whole);
        }
        for (text, message) in [
            ("192.0.2.1/33", "is no address"),
            ("eth0", "is no address"),
            ("192.0.2.0/24", "is not the address of a single host"),
            ("192.0.2.255/24", "is not the address of a single host"),
            ("224.0.0.1", "is not the address of a single host"),
            ("0.0.0.0", "is not the address of a single host"),
            ("255.255.255.255", "is not the address of a single host"),
            ("ff02::1/64", "is not the address of a single host"),
            ("::", "is not the address of a single host"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["5s", "100ms", "20us", "50ns", "0s", "120s"] {
            assert_eq!(text.parse::<Period>().unwrap().to_string(), text);
        }
        for text in ["auto", "none", "./auto", "/run/edge.sock"] {
            assert_eq!(text.parse::<Control>().unwrap().to_string(), text);
        }
        assert_eq!("2m".parse::<Period>().unwrap().0, Duration::from_secs(120));
        assert_eq!("0a:1B:00:ff:10:01".parse::<Mac>().unwrap().to_string(), "0a:1b:00:ff:10:01");
        let key = "6d5a".repeat(20);
        for text in ["default", "symmetric", &key] {
            assert_eq!(text.parse::<RssKey>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in ["", "5", "s", "-5s", "5 s", "1.5s", "5h", "99999999999999999999s", "9999999999999m"] {
            assert!(text.parse::<Period>().unwrap_err().starts_with(&format!("`{text}`")));
        }
        for text in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1", "0g:00:00:00:00:00", "+2:00:00:00:00:00"]
        {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
        for text in ["", "6d5a", "é"] {
            assert!(text.parse::<RssKey>().is_err(), "{text}");
        }
    }
}
