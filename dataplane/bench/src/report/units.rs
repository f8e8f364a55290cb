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
        match self.0 {
            0.0 => f.write_str("0 %"),
            ratio if ratio < 1e-4 => write!(f, "{:.2e}", ratio),
            ratio => write!(f, "{:.3} %", ratio * 100.0),
        }
    }
}

/// Returns a part as a ratio of the whole.
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
