//! Parameter types that several stages share: prefixes, ports, protocols and sources of tables.

use std::fmt;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use dataplane_core::file;
use dataplane_core::header::protocol;
use dataplane_core::pipeline::Problem;
use dataplane_core::units::Period;
use dataplane_tables::TableError;

/// The help text for a table whose memory cannot be allocated.
pub(crate) const MEMORY_HELP: &str = "raise the limits on address space and data (`ulimit -v` and `-d`, `LimitAS=` and `LimitDATA=` of systemd), or free \
     memory on this host";

/// Converts the error of a lookup table to a problem with the config key `key`.
pub(crate) fn table_problem(key: &str, error: TableError) -> Problem {
    match error {
        TableError::Memory(_) => Problem::host_problem(key, error.to_string()).help(MEMORY_HELP),
        _ => Problem::at(key, error.to_string()),
    }
}

/// Reads the text file that the config key `file` names. If the file has more than `most` bytes, returns a problem with
/// the help text `less`.
pub(crate) fn file(path: &Path, most: u64, less: &str) -> Result<Vec<u8>, Problem> {
    file::read_text(path, most).map_err(|error| {
        if let Some(help) = file::host_remedy(&error) {
            return Problem::host_problem("file", format!("{}: {error}", path.display())).help(help);
        }
        let help = match error.kind() {
            ErrorKind::FileTooLarge => less,
            ErrorKind::InvalidInput | ErrorKind::InvalidData => "name a text file",
            _ => "check the path: a relative path starts at the folder of the config",
        };
        Problem::at("file", format!("{}: {error}", path.display())).help(help)
    })
}

/// Checks that the value of a duration key is in a range.
pub(crate) fn check_period(key: &str, period: Period, range: RangeInclusive<Period>) -> Result<(), Problem> {
    if range.contains(&period) {
        return Ok(());
    }
    let help = format!("set {key} to a value from \"{}\" to \"{}\"", range.start(), range.end());
    Err(Problem::at(key, format!("{period} is out of range")).help(help))
}

/// Returns the share of a rate that one worker gets. `worker` is the index of the worker. If the division has a
/// remainder, each of the first workers gets one more token per second. Each worker gets at least one token per second,
/// because a worker without tokens would block its flows. So for a rate below the number of workers, the shares
/// together exceed the rate.
pub(crate) fn rate_share(rate: u64, (worker, workers): (usize, usize)) -> u64 {
    let share = rate / workers as u64 + u64::from((worker as u64) < rate % workers as u64);
    share.max(rate.min(1))
}

/// An address prefix, such as `"10.0.0.0/8"` or `"2001:db8::/32"`. A single address is a prefix that contains only this
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub struct Prefix(pub IpNet);

impl FromStr for Prefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let net: IpNet = match text.parse::<IpAddr>() {
            Ok(address) => address.into(),
            Err(_) => text.parse().map_err(|_| {
                format!("`{text}` is not a prefix; help: write a prefix such as 10.0.0.0/8 or 2001:db8::/32")
            })?,
        };
        match net.trunc() {
            prefix if prefix == net => Ok(Self(net)),
            prefix => Err(format!("`{text}` has host bits that are not 0; help: did you mean {prefix}?")),
        }
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The TOML value of a parameter that is a number or a string.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "the value must be a number or a string")]
pub(crate) enum NumberOrText {
    Number(i64),
    Text(String),
}

impl fmt::Display for NumberOrText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// One port, such as `80`, or an inclusive range, such as `"1024-65535"`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "NumberOrText")]
#[schemars(with = "NumberOrText")]
pub struct Ports(pub RangeInclusive<u16>);

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let port = |text: &str| {
            let port = text.trim();
            port.parse::<u16>().map_err(|_| format!("`{port}` is not a port: write 80 or \"1024-65535\""))
        };
        let (first, last) = text.split_once('-').filter(|(first, _)| !first.is_empty()).unwrap_or((text, text));
        match (port(first)?, port(last)?) {
            (first, last) if first > last => Err(format!("`{text}` is not a range: did you mean {last}-{first}?")),
            (first, last) => Ok(Self(first..=last)),
        }
    }
}

impl TryFrom<NumberOrText> for Ports {
    type Error = String;

    fn try_from(value: NumberOrText) -> Result<Self, String> {
        value.to_string().parse()
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.start(), self.0.end()) {
            (first, last) if first == last => first.fmt(f),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

/// The protocol above IP: `"tcp"`, `"udp"`, `"icmp"`, `"icmpv6"`, a number from 0 to 255, or `"any"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "NumberOrText")]
#[schemars(with = "NumberOrText")]
pub struct Protocol(pub Option<u8>);

impl Protocol {
    const NAMES: &[(&str, u8)] =
        &[("tcp", protocol::TCP), ("udp", protocol::UDP), ("icmp", protocol::ICMP), ("icmpv6", protocol::ICMPV6)];

    /// Returns whether the protocol has ports that the `parse` stage finds. `true` also for `"any"`.
    pub fn has_ports(self) -> bool {
        self.0.is_none_or(|number| number == protocol::TCP || number == protocol::UDP)
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
        match named.or_else(|| text.parse().ok()) {
            None if text != "any" => {
                Err(format!("`{text}` is not a protocol: write tcp, udp, icmp, icmpv6, any, or a number from 0 to 255"))
            }
            number => Ok(Self(number)),
        }
    }
}

impl TryFrom<NumberOrText> for Protocol {
    type Error = String;

    fn try_from(value: NumberOrText) -> Result<Self, String> {
        value.to_string().parse()
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, Self::NAMES.iter().find(|(_, number)| Some(*number) == self.0)) {
            (_, Some((name, _))) => f.write_str(name),
            (Some(number), None) => number.fmt(f),
            (None, None) => f.write_str("any"),
        }
    }
}

/// The source of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The config.
    #[default]
    Config,
    /// The kernel, whose tables the stage follows.
    Kernel,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Any<T> {
        x: T,
    }

    fn read<T: serde::de::DeserializeOwned + fmt::Display>(value: &str) -> Result<String, String> {
        let read: Result<Any<T>, _> = toml::from_str(&format!("x = {value}"));
        read.map(|any| any.x.to_string()).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn valid_values_are_parsed_and_printed_back() {
        assert_eq!(read::<Prefix>("\"10.0.0.0/8\"").unwrap(), "10.0.0.0/8");
        assert_eq!(read::<Prefix>("\"192.0.2.1\"").unwrap(), "192.0.2.1/32");
        assert_eq!(read::<Prefix>("\"2001:db8::1\"").unwrap(), "2001:db8::1/128");
        assert_eq!(read::<Prefix>("\"::/0\"").unwrap(), "::/0");
        assert_eq!(read::<Ports>("80").unwrap(), "80");
        assert_eq!(read::<Ports>("\"0-65535\"").unwrap(), "0-65535");
        assert_eq!(read::<Protocol>("\"icmpv6\"").unwrap(), "icmpv6");
        assert_eq!(read::<Protocol>("6").unwrap(), "tcp");
        assert_eq!(read::<Protocol>("\"47\"").unwrap(), "47");
        assert_eq!(read::<Protocol>("\"any\"").unwrap(), "any");
    }

    #[test]
    fn invalid_values_are_reported_with_a_suggestion() {
        let prefix = |text| read::<Prefix>(text).unwrap_err();
        assert_eq!(
            prefix("\"10.0.0/8\""),
            "`10.0.0/8` is not a prefix; help: write a prefix such as 10.0.0.0/8 or 2001:db8::/32"
        );
        assert_eq!(
            prefix("\"10.1.0.0/8\""),
            "`10.1.0.0/8` has host bits that are not 0; help: did you mean 10.0.0.0/8?"
        );
        assert!(prefix("\"10.0.0.0/33\"").contains("is not a prefix"));
        let ports = |text| read::<Ports>(text).unwrap_err();
        for wrong in ["65536", "-1", "\"http\"", "\"1-\"", "\"-5\"", "\"1-2-3\"", "\"\""] {
            assert!(ports(wrong).contains("is not a port: write 80 or \"1024-65535\""), "{wrong}: {}", ports(wrong));
        }
        assert_eq!(ports("\"9-1\""), "`9-1` is not a range: did you mean 1-9?");
        assert_eq!(ports("true"), "the value must be a number or a string");
        for wrong in ["256", "-1", "\"tpc\""] {
            assert!(read::<Protocol>(wrong).unwrap_err().contains("is not a protocol: write tcp, udp"), "{wrong}");
        }
    }
}
