//! The tables of the screen.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::model::{Model, find, per_second};
use dataplane_core::telemetry::{
    BitsPerSecond, CostReport, Duration, LiveStatistics, PacketsPerSecond, PerSecond, Report, StageReport,
};

/// A cell: its text, and its number if the cell has a number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    number: Option<f64>,
    /// Whether the value is a problem.
    pub(super) is_bad: bool,
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), number: None, is_bad: false }
    }

    fn number(text: impl ToString, number: f64) -> Self {
        Self { text: text.to_string(), number: Some(number), is_bad: false }
    }

    fn packets(rate: f64) -> Self {
        Self::number(PacketsPerSecond(rate), rate)
    }

    /// Returns a cell with a rate of lost or dropped packets. A rate above 0 is marked as bad.
    fn loss(rate: f64) -> Self {
        Self { is_bad: rate > 0.0, ..Self::packets(rate) }
    }

    fn bits(rate: f64) -> Self {
        Self::number(BitsPerSecond(rate), rate)
    }

    fn count(count: u64) -> Self {
        Self::number(count, count as f64)
    }

    fn missing() -> Self {
        Self { number: Some(f64::NEG_INFINITY), ..Self::text("–") }
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.number, other.number) {
            (Some(one), Some(two)) => one.total_cmp(&two),
            _ => self.text.cmp(&other.text),
        }
    }
}

/// A column: its heading and its minimum width. A column is as wide as its widest cell. The first column has the
/// remaining width.
pub(super) type Column = (&'static str, u16);

/// A table.
#[derive(Clone, Debug)]
pub(super) struct ScreenTable {
    pub(super) columns: &'static [Column],
    pub(super) rows: Vec<Vec<Cell>>,
}

/// The order of the rows: a column, and whether the highest value is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_descending: bool,
}

impl ScreenTable {
    /// Sorts the rows. Rows with the same value keep their order.
    pub(super) fn sort(&mut self, sort: Option<Sort>) {
        let Some(Sort { column, is_descending }) = sort else { return };
        self.rows.sort_by(|one, other| match (one.get(column), other.get(column)) {
            (Some(one), Some(other)) if is_descending => other.compare(one),
            (Some(one), Some(other)) => one.compare(other),
            _ => Ordering::Equal,
        });
    }

    /// Returns at most `most` rows. If there are more rows, the rows with the most problems come first, and the last
    /// row has the number of the rows that are left out.
    pub(super) fn shortened(mut self, most: usize, key: char) -> Self {
        if self.rows.len() > most.max(1) {
            self.rows.sort_by_key(|row| std::cmp::Reverse(row.iter().filter(|cell| cell.is_bad).count()));
            let more = self.rows.split_off(most.saturating_sub(1));
            let is_bad = more.iter().flatten().any(|cell| cell.is_bad);
            self.rows.push(vec![Cell { is_bad, ..Cell::text(format!("{} more: key {key}", more.len())) }]);
        }
        self
    }

    /// Returns the order by a column. Numbers start with the highest number.
    pub(super) fn order(&self, column: usize) -> Sort {
        let is_number = self.rows.first().and_then(|row| row.get(column)).is_some_and(|cell| cell.number.is_some());
        Sort { column, is_descending: is_number }
    }
}

pub(super) const PORTS: &[Column] =
    &[("port", 8), ("link", 4), ("in", 9), ("bits in", 9), ("out", 9), ("bits out", 9), ("lost", 9), ("dropped", 9)];
pub(super) const WORKERS: &[Column] =
    &[("worker", 6), ("core", 4), ("in", 9), ("out", 9), ("dropped", 9), ("busy", 6), ("held", 7)];
pub(super) const STAGES: &[Column] =
    &[("stage", 10), ("use", 10), ("packets", 9), ("time", 8), ("burst", 6), ("dropped", 9), ("consumed", 9)];
pub(super) const DROPS: &[Column] = &[("drop", 20), ("now", 9), ("total", 20)];
pub(super) const DETAILS: &[Column] = &[("name", 20), ("kind", 8), ("now", 11), ("total", 20)];

pub(super) fn ports(model: &Model, live: &LiveStatistics) -> ScreenTable {
    let row = |rates: &dataplane_core::telemetry::PortRates| {
        // Two reports may have different ports, because a change can add and remove ports.
        let find = |report: &Report| report.ports.iter().find(|port| port.name == rates.name).cloned();
        let port = find(&live.report);
        let link = match port.and_then(|port| port.link_up) {
            Some(true) => Cell::text("up"),
            Some(false) => Cell { is_bad: true, ..Cell::text("down") },
            None => Cell::text("–"),
        };
        let dropped = |report: &Report| {
            let port = find(report);
            port.map_or(0, |port| port.tx_full + port.tx_errors + port.tx_too_long + port.tx_not_connected)
        };
        let lost = |report: &Report| find(report).map_or(0, |port| port.rx_lost);
        let of = &rates.rates;
        vec![
            Cell::text(&rates.name),
            link,
            Cell::packets(of.rate_rx_mpps * 1e6),
            Cell::bits(of.rate_rx_gbps * 1e9),
            Cell::packets(of.rate_mpps * 1e6),
            Cell::bits(of.rate_gbps * 1e9),
            Cell::loss(model.rate(lost)),
            Cell::loss(model.rate(dropped)),
        ]
    };
    ScreenTable { columns: PORTS, rows: live.recent.ports.iter().map(row).collect() }
}

pub(super) fn workers(model: &Model, live: &LiveStatistics) -> ScreenTable {
    let row = |(at, rates): (usize, &dataplane_core::telemetry::WorkerRates)| {
        let busy = 100.0 - rates.idle_loops as f64 / rates.loops.max(1) as f64 * 100.0;
        let busy = if rates.loops == 0 { 0.0 } else { busy };
        let dropped = |report: &Report| report.workers.get(at).map_or(0, |worker| worker.ledger.dropped);
        vec![
            Cell::number(at, at as f64),
            Cell::count(rates.core.into()),
            Cell::packets(rates.rates.rate_rx_mpps * 1e6),
            Cell::packets(rates.rates.rate_mpps * 1e6),
            Cell::loss(model.rate(dropped)),
            Cell::number(format!("{busy:.1} %"), busy),
            Cell::count(live.report.workers.get(at).map_or(0, |worker| worker.ledger.held)),
        ]
    };
    ScreenTable { columns: WORKERS, rows: live.recent.workers.iter().enumerate().map(row).collect() }
}

pub(super) fn stages(model: &Model, live: &LiveStatistics) -> ScreenTable {
    let row = |stage: &StageReport| {
        let rate = |value: fn(&StageReport) -> u64| model.rate(|report| find(report, &stage.name).map_or(0, value));
        let cost = CostReport::of_stage(&live.recent.costs, &stage.name);
        vec![
            Cell { is_bad: stage.quarantined > 0, ..Cell::text(&stage.name) },
            match stage.quarantined {
                0 => Cell::text(&stage.kind),
                _ => Cell { is_bad: true, ..Cell::text("panicked") },
            },
            Cell::packets(rate(|stage| stage.packets)),
            cost.map_or_else(Cell::missing, |cost| Cell::number(Duration(cost.ns), cost.ns)),
            cost.map_or_else(Cell::missing, |cost| Cell::number(format!("{:.1}", cost.burst), cost.burst)),
            Cell::loss(rate(|stage| stage.drops.values().sum())),
            Cell::packets(rate(|stage| stage.consumed)),
        ]
    };
    ScreenTable { columns: STAGES, rows: live.report.stages.iter().map(row).collect() }
}

pub(super) fn drops(model: &Model, live: &LiveStatistics) -> ScreenTable {
    let row = |(name, total): (&String, &u64)| {
        let rate = model.rate(|report| report.ledger.drops.get(name).copied().unwrap_or(0));
        vec![Cell::text(name), Cell::loss(rate), Cell::count(*total)]
    };
    ScreenTable { columns: DROPS, rows: live.report.ledger.drops.iter().map(row).collect() }
}

/// Returns the outputs, drops and counters of a stage.
pub(super) fn details(model: &Model, stage: &StageReport) -> ScreenTable {
    let mut rows = Vec::new();
    let earlier = model.earlier_stage(&stage.name);
    let mut add = |name: &str, kind: &str, now: u64, before: u64| {
        let rate = per_second(now.saturating_sub(before), model.seconds());
        let change = match kind {
            "counter" => Cell::number(PerSecond(rate), rate),
            "drop" => Cell::loss(rate),
            _ => Cell::packets(rate),
        };
        rows.push(vec![Cell::text(name), Cell::text(kind), change, Cell::count(now)]);
    };
    type Entries = fn(&StageReport) -> &BTreeMap<String, u64>;
    let maps: [(&str, Entries); 3] =
        [("output", |stage| &stage.outputs), ("drop", |stage| &stage.drops), ("counter", |stage| &stage.counters)];
    for (kind, map) in maps {
        for (name, now) in map(stage) {
            let before = earlier.and_then(|earlier| map(earlier).get(name)).copied().unwrap_or(0);
            add(name, kind, *now, before);
        }
    }
    type Packets = fn(&StageReport) -> u64;
    let single: [(&str, Packets); 4] = [
        ("consumed", |stage| stage.consumed),
        ("copied", |stage| stage.copied),
        ("generated", |stage| stage.generated),
        ("copies missed", |stage| stage.copies_missed),
    ];
    for (name, value) in single.into_iter().filter(|(_, value)| value(stage) > 0) {
        add(name, "packets", value(stage), earlier.map_or(0, value));
    }
    ScreenTable { columns: DETAILS, rows }
}
