//! The requested rate.

use std::str::FromStr;

use dataplane_core::units::{BitRate, PacketRate};

/// A requested rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::app) enum Rate {
    /// Packets per second.
    Packets(u64),
    /// Bits per second on an Ethernet line.
    Bits(u64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_zero = |rate: &u64| *rate > 0;
        let packets = text.parse::<PacketRate>().map(|rate| rate.0);
        // Network engineers write a line rate without the unit, such as 100G. Without a prefix too, the unit is unclear.
        let has_prefix = text.ends_with(['k', 'M', 'G', 'T']);
        let bits = if has_prefix { format!("{text}bps").parse::<BitRate>() } else { text.parse() }.map(|rate| rate.0);
        let rate = packets.ok().filter(is_zero).map(Self::Packets).or(bits.ok().filter(is_zero).map(Self::Bits));
        rate.ok_or_else(|| {
            format!("`{text}` is not a rate; help: write 100G or 100Gbps for bits per second on the line, or 10Mpps")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_needs_a_unit_or_a_prefix() {
        for text in ["100Gbps", "100G", "100 G", "100000M"] {
            assert_eq!(text.parse(), Ok(Rate::Bits(100_000_000_000)), "{text}");
        }
        assert_eq!("1.5Mpps".parse(), Ok(Rate::Packets(1_500_000)));
        for wrong in ["100", "0bps", "0G", "G", "100g", "100Gbpsk", "-1pps"] {
            assert!(wrong.parse::<Rate>().unwrap_err().contains("write 100G or"), "{wrong}");
        }
    }
}
