//! Values with units, for people: three significant digits in a unit that fits.

use std::fmt;

/// A packet rate in packets per second, such as `500 pps` or `3.08 Mpps`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct PacketsPerSecond(pub f64);

/// A rate of anything per second, such as `500 /s` or `1.25 G/s`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct PerSecond(pub f64);

/// A bit rate in bits per second, such as `1.58 Gb/s`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct BitsPerSecond(pub f64);

/// A number of bytes, such as `64 B` or `2.00 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Size(pub f64);

/// A duration in nanoseconds, such as `999 ns` or `16.1 ms`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Duration(pub f64);

/// Writes a value in the largest of the units in which the value is at least 1. Each unit is `step` times the unit
/// before it.
fn scaled(f: &mut fmt::Formatter<'_>, mut value: f64, step: f64, units: &[&str]) -> fmt::Result {
    let mut units = units.iter();
    let (mut unit, mut is_base) = (units.next().copied().unwrap_or_default(), true);
    // A value that would round to the next unit uses the next unit.
    while value >= step - 0.5
        && let Some(next) = units.next()
    {
        (value, unit, is_base) = (value / step, next, false);
    }
    let digits = match value {
        value if is_base && value.fract() == 0.0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    f.pad(&format!("{value:.digits$} {unit}"))
}

impl fmt::Display for PacketsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1e3, &["pps", "kpps", "Mpps", "Gpps"])
    }
}

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1e3, &["/s", "k/s", "M/s", "G/s", "T/s"])
    }
}

impl fmt::Display for BitsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1e3, &["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"])
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1e3, &["ns", "µs", "ms", "s"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_display_in_a_fitting_unit() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (12.34, "12.3 ns"),
            (999.0, "999 ns"),
            (1_000.0, "1.00 µs"),
            (9_996.0, "10.0 µs"),
            (16_105_471.0, "16.1 ms"),
            (999_400_000.0, "999 ms"),
            (61_000_000_000.0, "61.0 s"),
        ] {
            assert_eq!(Duration(ns).to_string(), text);
        }
    }

    #[test]
    fn rates_and_sizes_display_in_a_fitting_unit() {
        assert_eq!(format!("{:>10}", PacketsPerSecond(500.0)), "   500 pps");
        assert_eq!(PacketsPerSecond(0.5).to_string(), "0.50 pps");
        assert_eq!(PacketsPerSecond(999_600.0).to_string(), "1.00 Mpps");
        assert_eq!(PerSecond(1_250_000_000.0).to_string(), "1.25 G/s");
        assert_eq!(BitsPerSecond(1_579_300_000.0).to_string(), "1.58 Gb/s");
        assert_eq!(Size(1536.0).to_string(), "1.50 KiB");
        assert_eq!(Size(1023.0).to_string(), "1023 B");
    }
}
