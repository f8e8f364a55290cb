//! Values with their units.

use std::fmt;

/// Packets per second, for display.
pub struct Pps(pub f64);

impl fmt::Display for Pps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, "pps")
    }
}

/// Bits per second, for display.
pub struct Bps(pub f64);

impl fmt::Display for Bps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, "bps")
    }
}

fn scaled(f: &mut fmt::Formatter<'_>, value: f64, unit: &str) -> fmt::Result {
    let (scale, prefix) = match value {
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e3.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    f.pad(&format!("{:.3} {prefix}{unit}", value / scale))
}

/// Nanoseconds, for display.
pub struct Nanoseconds(pub u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        f.pad(&match self.0 {
            1_000_000_000.. => format!("{:.3} s", value / 1e9),
            1_000_000.. => format!("{:.3} ms", value / 1e6),
            1_000.. => format!("{:.1} us", value / 1e3),
            _ => format!("{value} ns"),
        })
    }
}

/// A ratio in percent, for display.
pub struct Percent(pub f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 * 100.0 {
            0.0 => f.write_str("0 %"),
            // Three significant digits.
            percent if percent < 0.1 => write!(f, "{percent:.*} %", (2.0 - percent.log10().floor()) as usize),
            percent => write!(f, "{percent:.3} %"),
        }
    }
}

/// Returns a part as a ratio of the whole.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_always_printed_in_percent() {
        let expected = [
            (0.0, "0 %"),
            (1.0, "100.000 %"),
            (0.01234, "1.234 %"),
            (0.000_999, "0.0999 %"),
            (7.68e-5, "0.00768 %"),
            (3e-12, "0.000000000300 %"),
        ];
        for (ratio, text) in expected {
            assert_eq!(Percent(ratio).to_string(), text);
        }
    }
}
