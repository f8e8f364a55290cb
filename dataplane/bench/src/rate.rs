//! Rates of traffic.

use std::fmt;
use std::str::FromStr;

use dataplane::units::{BitRate, PacketRate};
use serde::{Deserialize, Deserializer};

/// The bytes of a frame on an Ethernet line that are not in the frame itself: preamble, start delimiter, frame check
/// sequence and the minimum gap between frames.
pub const LINE_OVERHEAD: f64 = 24.0;
/// The length of a frame check sequence in bytes.
pub const FCS: f64 = 4.0;

/// The highest rate in frames per second. The unit of the time between frames is 1/65536 ns, so the tester cannot
/// distinguish much higher rates.
const MAX_PACKETS: f64 = 1e12;
/// The highest rate in bits per second.
const MAX_BITS: f64 = 1e15;

/// A rate of traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Frames per second.
    Packets(f64),
    /// Bits per second of the frames with their frame check sequence.
    Bits(f64),
    /// Percent of the speed of the line. Each frame counts with its [`LINE_OVERHEAD`].
    Percent(f64),
    /// As fast as the tester can send.
    Max,
}

impl Rate {
    /// Returns the rate in frames per second. `frame` is the mean length of the frames in bytes, without the frame
    /// check sequence. `line` is the speed of the line in bits per second. Returns `None` for [`Rate::Max`].
    ///
    /// # Errors
    /// Returns the reason if the rate exceeds the line, or is relative to a line with an unknown speed.
    pub fn packets(self, frame: f64, line: Option<u64>) -> Result<Option<f64>, String> {
        let on_line = |packets: f64| packets * (frame + LINE_OVERHEAD) * 8.0;
        let packets = match self {
            Self::Max => return Ok(None),
            Self::Packets(packets) => packets,
            Self::Bits(bits) => bits / ((frame + FCS) * 8.0),
            Self::Percent(percent) => match line {
                Some(line) => line as f64 * percent / 100.0 / ((frame + LINE_OVERHEAD) * 8.0),
                None => {
                    return Err(format!(
                        "the rate {self} needs the speed of the line, which the port does not report; help: add \
                         --line SPEED, such as --line 10Gbps"
                    ));
                }
            },
        };
        match line {
            Some(line) if on_line(packets) > line as f64 * 1.000_001 => Err(format!(
                "the rate {self} is {:.1} % of the line of {} Mbps; help: use at most 100%",
                on_line(packets) / line as f64 * 100.0,
                line / 1_000_000
            )),
            _ => Ok(Some(packets)),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(packets) => write!(f, "{packets}pps"),
            Self::Bits(bits) => write!(f, "{bits}bps"),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Max => f.write_str("max"),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = match text.strip_suffix('%') {
            _ if text == "max" => Some(Self::Max),
            Some(percent) => {
                percent.trim().parse().ok().filter(|percent| (0.0..=100.0).contains(percent)).map(Self::Percent)
            }
            None if text.ends_with("bps") => text.parse().ok().map(|BitRate(bits)| Self::Bits(bits as f64)),
            None if text.ends_with("pps") => text.parse().ok().map(|PacketRate(packets)| Self::Packets(packets as f64)),
            None => text.parse().ok().filter(|packets: &f64| packets.is_finite()).map(Self::Packets),
        };
        let positive = |rate: &Self| match rate {
            Self::Packets(rate) | Self::Bits(rate) | Self::Percent(rate) => *rate > 0.0,
            Self::Max => true,
        };
        let rate = rate.filter(positive).ok_or_else(|| {
            format!(
                "`{text}` is not a rate above 0; help: write packets per second, bits per second, percent of the line \
                 rate, or max: \"10kpps\", \"1Gbps\", \"50%\", \"max\""
            )
        })?;
        match rate {
            Self::Packets(packets) if packets > MAX_PACKETS => {
                Err(format!("the rate `{text}` is too high; help: use at most {MAX_PACKETS:e} packets per second"))
            }
            Self::Bits(bits) if bits > MAX_BITS => {
                Err(format!("the rate `{text}` is too high; help: use at most {MAX_BITS:e} bits per second"))
            }
            _ => Ok(rate),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Any {
            Text(String),
            Number(f64),
        }
        match Any::deserialize(deserializer)? {
            Any::Text(text) => text.parse(),
            Any::Number(number) => number.to_string().parse(),
        }
        .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_of_the_line_counts_preamble_and_gap() {
        let packets = |rate: &str| rate.parse::<Rate>().unwrap().packets(60.0, Some(10_000_000_000)).unwrap();
        // The rate of the smallest frames on 10 Gbit/s (RFC 2544, section 20).
        assert_eq!(packets("100%").unwrap().round(), 14_880_952.0);
        assert_eq!(packets("10kpps"), Some(10_000.0));
        assert_eq!(packets("512kbps"), Some(1000.0));
        assert_eq!(packets("250"), Some(250.0));
        assert_eq!(packets("max"), None);
    }

    #[test]
    fn rate_above_the_line_is_refused() {
        let rate = Rate::Packets(15e6).packets(60.0, Some(10_000_000_000));
        assert!(rate.unwrap_err().contains("100.8 % of the line"));
        assert_eq!(Rate::Packets(15e6).packets(60.0, None), Ok(Some(15e6)));
        assert!(Rate::Percent(5.0).packets(60.0, None).unwrap_err().contains("--line"));
    }

    #[test]
    fn rate_above_the_limit_is_refused_with_the_limit() {
        for (text, limit) in [
            ("1e300", "use at most 1e12 packets per second"),
            ("1000001Mpps", "use at most 1e12 packets per second"),
            ("1000001Gbps", "use at most 1e15 bits per second"),
        ] {
            let why = text.parse::<Rate>().unwrap_err();
            assert!(why.contains(limit) && why.contains(text), "{why}");
        }
        assert_eq!("1e12".parse(), Ok(Rate::Packets(1e12)));
        assert_eq!("1000000Gbps".parse(), Ok(Rate::Bits(1e15)));
    }

    #[test]
    fn wrong_rates_are_refused_with_examples() {
        for text in ["", "fast", "0", "-1", "101%", "1kpp", "nan", "0pps"] {
            assert!(text.parse::<Rate>().unwrap_err().contains("\"10kpps\""), "{text}");
        }
    }
}
