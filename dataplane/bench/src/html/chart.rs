//! Charts as inline SVG, with colours for light and dark mode from the style of the page.

use std::fmt::Write;

use super::escape::escape;
use crate::report::{Bps, Nanoseconds, Pps};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// The height of the row for the value 0 on a logarithmic scale, in pixels.
const ZERO_ROW: f64 = 24.0;
/// The number of colours in the style of the page.
const COLOURS: usize = 6;
/// A line with more points than this has no marks at its points.
const MOST_MARKS: usize = 120;

/// The unit of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Pps,
    Bps,
    Nanoseconds,
    Seconds,
    Ratio,
    Count,
    /// A percentile, as a number N: one of N packets is slower. For example, 100 is the 99th percentile.
    Percentile,
}

impl Unit {
    pub(super) fn show(self, value: f64) -> String {
        let text = match self {
            Self::Pps => Pps(value).to_string(),
            Self::Bps => Bps(value).to_string(),
            Self::Nanoseconds => Nanoseconds(value.round() as u64).to_string(),
            Self::Seconds => format!("{} s", short(value)),
            Self::Ratio => format!("{} %", short(value * 100.0)),
            Self::Count => short(value),
            Self::Percentile => match value {
                ..1.5 => "min".to_owned(),
                value => format!("{} %", short(100.0 - 100.0 / value)),
            },
        };
        // A number such as 20.000 kpps needs no zeros.
        match text.split_once(' ') {
            Some((number, unit)) if number.contains('.') => {
                format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
            }
            _ => text,
        }
    }
}

/// Returns a number with at most 6 digits after the point, without zeros at the end.
fn short(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Linear, from 0.
    Linear,
    /// Logarithmic. On a vertical axis, values of 0 have a row of their own.
    Log,
}

/// An axis.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) unit: Unit,
    pub(super) scale: Scale,
}

/// How the points of a series are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// A line through the points.
    Line,
    /// A wide line behind other lines.
    Band,
    /// Filled circles.
    Dots,
    /// Hollow circles.
    Rings,
}

/// A series of points.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) mark: Mark,
    pub(super) points: Vec<(f64, f64)>,
}

/// A chart.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
    /// Vertical lines with their names.
    pub(super) lines: Vec<(f64, String)>,
    /// Marked ranges of the horizontal axis.
    pub(super) ranges: Vec<(f64, f64)>,
}

/// The range of an axis in values and in pixels.
struct Range {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    /// The pixel of the value 0, if a logarithmic scale has a row for this value.
    zero: Option<f64>,
}

impl Range {
    fn new(scale: Scale, values: &mut dyn Iterator<Item = f64>, from: f64, to: f64, is_vertical: bool) -> Self {
        let (mut low, mut high, mut has_zero) = (f64::INFINITY, 0.0f64, false);
        // A file can have any number. An axis with more decades has no readable ticks.
        for value in values.filter(|value| *value == 0.0 || (1e-30..1e30).contains(&value.abs())) {
            has_zero |= value <= 0.0;
            if value > 0.0 {
                low = low.min(value);
            }
            high = high.max(value);
        }
        if high <= 0.0 {
            (low, high) = (0.1, 1.0);
        }
        match scale {
            Scale::Linear => {
                let step = step(high);
                let top = if is_vertical { (high / step).ceil() * step } else { high };
                Self { scale, low: 0.0, high: top, from, to, zero: None }
            }
            Scale::Log => {
                let (mut bottom, mut top) = (low, high);
                if is_vertical {
                    (bottom, top) = (10f64.powf(low.log10().floor()), 10f64.powf(high.log10().ceil()));
                }
                if bottom >= top {
                    top = bottom * 10.0;
                }
                if !is_vertical {
                    // Points at the ends must not touch the frame.
                    let margin = (top / bottom).powf(0.02);
                    (bottom, top) = (bottom / margin, top * margin);
                }
                let zero = (has_zero && is_vertical).then_some(from);
                let from = if zero.is_some() { from - ZERO_ROW } else { from };
                Self { scale, low: bottom, high: top, from, to, zero }
            }
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value <= 0.0 => return self.zero.unwrap_or(self.from),
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.high);
                let count = (self.high / step + 1e-9).floor() as usize;
                (0..=count).map(|number| number as f64 * step).collect()
            }
            Scale::Log => {
                let decades = (self.high / self.low).log10();
                let first = self.low.log10().floor() as i32;
                let of = |decade: i32, factors: &[f64]| {
                    factors.iter().map(|factor| factor * 10f64.powi(decade)).collect::<Vec<_>>()
                };
                let factors: &[f64] = if decades < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let every = (decades / 6.0).ceil().max(1.0) as i32;
                let all = (first..=first + decades.ceil() as i32 + 1).filter(|decade| (decade - first) % every == 0);
                let inside = |value: &f64| *value >= self.low * 0.999 && *value <= self.high * 1.001;
                let mut ticks: Vec<f64> = all.flat_map(|decade| of(decade, factors)).filter(inside).collect();
                if ticks.len() < 3 {
                    // The range is too narrow for powers of ten.
                    let step = step(self.high - self.low);
                    let first = (self.low / step).ceil() as u64;
                    ticks = (first..).map(|number| number as f64 * step).take_while(inside).collect();
                }
                if self.zero.is_some() {
                    ticks.insert(0, 0.0);
                }
                ticks
            }
        }
    }
}

/// Returns the distance between the ticks of an axis: 1, 2 or 5 times a power of ten. About five ticks fit between 0
/// and `high`.
fn step(high: f64) -> f64 {
    let rough = high / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999).unwrap_or(10.0);
    factor * power
}

impl Chart {
    /// Returns whether the chart has no points.
    pub(super) fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.points.is_empty())
    }

    /// Draws the chart with its legend. `title` is for screen readers.
    pub(super) fn draw(&self, title: &str) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter());
        let mut xs = points().map(|point| point.0).chain(self.lines.iter().map(|line| line.0));
        let x = Range::new(self.x.scale, &mut xs, LEFT, WIDTH - RIGHT, false);
        let y = Range::new(self.y.scale, &mut points().map(|point| point.1), HEIGHT - BOTTOM, TOP, true);
        let mut svg =
            format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n<title>{}</title>\n", escape(title));
        // Writing to a string cannot fail.
        for (from, to) in &self.ranges {
            let (from, to) = (x.at(*from), x.at(*to).max(x.at(*from) + 1.0));
            let (wide, high) = (to - from, HEIGHT - BOTTOM - TOP);
            let _ = writeln!(
                svg,
                "<rect class=\"range\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{wide:.1}\" height=\"{high}\"/>"
            );
        }
        self.draw_axes(&x, &y, &mut svg);
        for (number, (at, name)) in self.lines.iter().enumerate() {
            let at = x.at(*at);
            let (anchor, shift) = if at > WIDTH * 0.7 { ("end", -5.0) } else { ("start", 5.0) };
            let _ = writeln!(
                svg,
                "<path class=\"line\" d=\"M{at:.1} {TOP}V{:.1}\"/><text class=\"note\" x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"{anchor}\">{}</text>",
                HEIGHT - BOTTOM,
                at + shift,
                TOP + 10.0 + 14.0 * number as f64,
                escape(name)
            );
        }
        for (number, series) in self.series.iter().enumerate() {
            self.draw_series(series, number % COLOURS, &x, &y, &mut svg);
        }
        svg.push_str("</svg>\n");
        if self.series.len() > 1 {
            svg.push_str("<p class=\"legend\">");
            for (number, series) in self.series.iter().enumerate() {
                let (kind, name) = (if series.mark == Mark::Rings { "ring" } else { "dot" }, escape(&series.name));
                let _ = write!(svg, "<span><i class=\"{kind} c{}\"></i>{name}</span> ", number % COLOURS);
            }
            svg.push_str("</p>\n");
        }
        svg
    }

    fn draw_axes(&self, x: &Range, y: &Range, svg: &mut String) {
        let bottom = HEIGHT - BOTTOM;
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                escape(&self.y.unit.show(tick))
            );
        }
        let mut right = f64::NEG_INFINITY;
        for tick in x.ticks() {
            let (at, text) = (x.at(tick), self.x.unit.show(tick));
            // Labels must not overlap.
            let half = text.chars().count() as f64 * 3.4;
            let middle = at.min(WIDTH - half);
            if middle - half < right + 8.0 {
                continue;
            }
            right = middle + half;
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom:.1}\"/><text x=\"{middle:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                escape(&text)
            );
        }
        let (middle, height) = ((LEFT + WIDTH - RIGHT) / 2.0, (TOP + bottom) / 2.0);
        let _ = writeln!(
            svg,
            "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom:.1}H{:.1}\"/><text x=\"{middle:.1}\" y=\"{:.1}\" \
             text-anchor=\"middle\">{}</text><text transform=\"rotate(-90)\" x=\"{:.1}\" y=\"13\" \
             text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            HEIGHT - 8.0,
            escape(self.x.label),
            -height,
            escape(self.y.label)
        );
    }

    fn draw_series(&self, series: &Series, colour: usize, x: &Range, y: &Range, svg: &mut String) {
        let place = |(h, v): &(f64, f64)| (x.at(*h), y.at(*v));
        if matches!(series.mark, Mark::Line | Mark::Band) && series.points.len() > 1 {
            let mut path = String::new();
            for (number, point) in series.points.iter().enumerate() {
                let ((h, v), command) = (place(point), if number == 0 { 'M' } else { 'L' });
                let _ = write!(path, "{command}{h:.1} {v:.1}");
            }
            let class = if series.mark == Mark::Band { "band" } else { "curve" };
            let _ = writeln!(svg, "<path class=\"{class} s{colour}\" d=\"{path}\"/>");
        }
        if series.mark == Mark::Band || (series.mark == Mark::Line && series.points.len() > MOST_MARKS) {
            return;
        }
        let (class, radius) = match series.mark {
            Mark::Rings => ("ring", 3.5),
            Mark::Dots => ("dot", 3.5),
            Mark::Line | Mark::Band => ("dot", 2.2),
        };
        for point in &series.points {
            let (h, v) = place(point);
            let text = format!("{}: {}, {}", series.name, self.x.unit.show(point.0), self.y.unit.show(point.1));
            let _ = writeln!(
                svg,
                "<circle class=\"{class} c{colour}\" cx=\"{h:.1}\" cy=\"{v:.1}\" r=\"{radius}\"><title>{}</title></circle>",
                escape(&text)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers_inside_the_range() {
        let linear = Range::new(Scale::Linear, &mut [0.0, 19_700.0].into_iter(), 0.0, 100.0, true);
        assert_eq!(linear.ticks(), [0.0, 5000.0, 10_000.0, 15_000.0, 20_000.0]);
        assert_eq!((linear.at(0.0), linear.at(20_000.0)), (0.0, 100.0));
        let log = Range::new(Scale::Log, &mut [0.0, 0.002, 0.6].into_iter(), 100.0, 0.0, true);
        assert_eq!(
            log.ticks().iter().map(|tick| Unit::Ratio.show(*tick)).collect::<Vec<_>>(),
            ["0 %", "0.1 %", "1 %", "10 %", "100 %"]
        );
        // Zero has a row below the smallest value.
        assert!(log.at(0.0) > log.at(0.001));
        assert_eq!(log.at(1.0), 0.0);
        let hostile = Range::new(Scale::Log, &mut [1e-300, 1.0, 1000.0, 1e308].into_iter(), 0.0, 100.0, true);
        assert_eq!(hostile.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        let narrow = Range::new(Scale::Log, &mut [52_700.0, 60_000.0].into_iter(), 0.0, 100.0, false);
        assert_eq!(narrow.ticks(), [54_000.0, 56_000.0, 58_000.0, 60_000.0]);
    }

    #[test]
    fn values_have_their_units() {
        assert_eq!(Unit::Pps.show(20_000.0), "20 kpps");
        assert_eq!(Unit::Nanoseconds.show(1500.0), "1.5 us");
        assert_eq!(Unit::Percentile.show(1000.0), "99.9 %");
        assert_eq!(Unit::Percentile.show(1.0), "min");
        assert_eq!(Unit::Seconds.show(0.5), "0.5 s");
    }

    #[test]
    fn chart_without_positive_values_is_drawn() {
        let axis = |unit, scale| Axis { label: "axis", unit, scale };
        let series = vec![Series { name: "<a>".to_owned(), mark: Mark::Line, points: vec![(0.0, 0.0), (1.0, 0.0)] }];
        for scale in [Scale::Linear, Scale::Log] {
            let (x, y) = (axis(Unit::Seconds, Scale::Linear), axis(Unit::Count, scale));
            let chart = Chart { x, y, series: series.clone(), lines: Vec::new(), ranges: Vec::new() };
            let svg = chart.draw("a & b");
            assert!(svg.contains("a &amp; b") && svg.contains("&lt;a&gt;") && !svg.contains("NaN"), "{svg}");
        }
    }
}
