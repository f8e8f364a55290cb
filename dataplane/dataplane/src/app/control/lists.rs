//! The answers to the requests `show`, `get` and `log`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::app::log_level::{self, LEVELS};
use crate::config::{Plan, Port};
use crate::runtime::{Run, Snapshot};
use dataplane_control::rows::{ConfigRow, LinkRow, MemoryRow, PortRow, StageRow, WorkerRow};
use dataplane_control::{
    DEFAULT_LIMIT, ErrorCode, Get, GetResult, LISTS, Log, LogLevel, MAX_LIMIT, Page, Refusal, Show,
};
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::{PortInfo, StageTable, TablePage, TableQuery};
use dataplane_core::telemetry::{CostReport, PortReport, Rates, Recent, Report, StageReport, WorkerReport};

/// Returns `true` if the rows of a list have rates.
pub(super) fn has_rates(show: &Show) -> bool {
    show.what == "ports" && show.cursor.is_none()
}

/// Answers `show`. Returns `None` if the list needs a snapshot. `earlier` is an earlier snapshot, from which the rates
/// are computed.
pub(super) fn show(
    run: &Run,
    show: &Show,
    snapshot: Option<&Snapshot>,
    earlier: Option<&Snapshot>,
) -> Result<Option<Page>, Refusal> {
    let limit = show.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        let help = format!("set `limit` to a number from 1 to {MAX_LIMIT}");
        return Err(Refusal::new(ErrorCode::BadField, format!("the limit {limit} is out of range"), help));
    }
    let limit = limit as usize;
    if LISTS.contains(&show.what.as_str()) {
        if show.stage.is_some() {
            let message = format!("the list `{}` does not belong to a stage", show.what);
            return Err(Refusal::new(ErrorCode::BadField, message, "remove `stage`"));
        }
        return general(run, show, limit, snapshot.map(Snapshot::report), earlier.map(Snapshot::report));
    }
    let tables = tables(run, &show.what, show.stage.as_deref())?;
    let (number, after) = match show.cursor.as_deref().map(|cursor| (cursor, cursor.split_once(':'))) {
        Some((_, Some((number, after)))) => (number.parse().ok(), Some(after)),
        Some((number, None)) => (number.parse().ok(), None),
        None => (Some(0), None),
    };
    let known = number.and_then(|number: usize| Some((number, tables.get(number)?)));
    let (number, table) = known.ok_or_else(|| bad_cursor("there is no such position"))?;
    let none = BTreeMap::new();
    let counters = match snapshot {
        _ if !table.needs_counters() => &none,
        Some(snapshot) => {
            let mut stages = snapshot.report().stages.iter();
            stages.find(|stage| stage.name == table.stage()).map_or(&none, |stage| &stage.counters)
        }
        None => return Ok(None),
    };
    let page = table.page(&TableQuery::new(after, limit, counters)).map_err(|why| bad_cursor(&why))?;
    let next = match page.next {
        Some(after) => Some(format!("{number}:{after}")),
        None => (number + 1 < tables.len()).then(|| (number + 1).to_string()),
    };
    Ok(Some(Page { stage: Some(table.stage().to_owned()), rows: page.rows, next }))
}

/// Answers `log`.
pub(super) fn log(log: &Log) -> Result<LogLevel, Refusal> {
    let failed = |why: String| Refusal::new(ErrorCode::NotFound, why, "set the level in the logger of the app");
    let previous = log_level::level().map_err(failed)?;
    let Some(level) = &log.level else { return Ok(LogLevel { level: previous.clone(), previous }) };
    if !LEVELS.contains(&level.as_str()) {
        let message = format!("there is no level `{}`", level.escape_debug());
        return Err(Refusal::new(ErrorCode::BadField, message, format!("the levels are {}", LEVELS.join(", "))));
    }
    log_level::set(level).map_err(failed)?;
    tracing::info!("the level of the log is now {level}");
    Ok(LogLevel { level: level.clone(), previous })
}

/// Answers `get`.
pub(super) fn get(run: &Run, get: &Get) -> Result<GetResult, Refusal> {
    let tables = tables(run, &get.what, get.stage.as_deref())?;
    let table = tables.first().ok_or_else(|| unknown_list(run, &get.what))?;
    let failed = |why: String| {
        let help = "set `key` to a key of this table, such as an IP address for `routes`";
        Refusal::new(ErrorCode::BadField, format!("table `{}` of stage `{}`: {why}", get.what, table.stage()), help)
    };
    Ok(GetResult { stage: table.stage().to_owned(), row: table.find(&get.key).map_err(failed)? })
}

/// Returns the tables with this name, of one stage or of all stages.
fn tables(run: &Run, what: &str, stage: Option<&str>) -> Result<Vec<Arc<StageTable>>, Refusal> {
    let mut tables = run.tables();
    tables.retain(|table| table.name() == what);
    if tables.is_empty() {
        return Err(unknown_list(run, what));
    }
    if let Some(stage) = stage {
        let stages: Vec<String> = tables.iter().map(|table| table.stage().to_owned()).collect();
        tables.retain(|table| table.stage() == stage);
        if tables.is_empty() {
            let message = format!("stage `{}` has no table `{what}`", stage.escape_debug());
            let help = format!("the stages with this table are {}", stages.join(", "));
            return Err(Refusal::new(ErrorCode::NotFound, message, help));
        }
    }
    Ok(tables)
}

fn unknown_list(run: &Run, what: &str) -> Refusal {
    let tables = run.tables();
    let mut names: Vec<&str> = LISTS.into_iter().chain(tables.iter().map(|table| table.name())).collect();
    names.sort_unstable();
    names.dedup();
    let message = format!("this program has no list `{}`", what.escape_debug());
    Refusal::new(ErrorCode::NotFound, message, format!("the lists of this program are {}", names.join(", ")))
}

fn bad_cursor(why: &str) -> Refusal {
    let help = "set `cursor` to the value of `next` of the previous page, or remove it";
    Refusal::new(ErrorCode::BadField, format!("bad cursor: {why}"), help)
}

/// Lists the properties of the run.
fn general(
    run: &Run,
    show: &Show,
    limit: usize,
    report: Option<&Report>,
    earlier: Option<&Report>,
) -> Result<Option<Page>, Refusal> {
    let (plan, counters) = (run.plan(), BTreeMap::new());
    let query = TableQuery::new(show.cursor.as_deref(), limit, &counters);
    let page = match (show.what.as_str(), report) {
        ("config", _) => rows(&[run.source()], &query, |source| ConfigRow {
            path: source.path().display().to_string(),
            file: run.config_file().map(|file| file.display().to_string()),
            unconfirmed: run.changer().is_unconfirmed(),
            settings: source.overrides().map(str::to_owned).collect(),
            text: source.text().to_owned(),
        }),
        ("links", _) => {
            let infos = run.port_infos();
            let devices = plan.ports.iter().map(|port| (&port.config.name, &port.config));
            let info = |name: &str| infos.iter().find(|info| info.name == name);
            let links: Vec<(&Port, &PortInfo)> =
                devices.filter_map(|(name, device)| Some((device, info(name)?))).collect();
            rows(&links, &query, link_row)
        }
        (_, None) => return Ok(None),
        ("memory", Some(report)) => rows(&memory(&plan, report), &query, Clone::clone),
        ("ports", Some(report)) => {
            let recent = earlier.map(|earlier| Recent::between(Some(earlier), report));
            // The ports of `Recent` are in the order of the ports of the report.
            let rates = |at: usize| Some(recent.as_ref()?.ports.get(at)?.rates);
            let ports: Vec<_> = report.ports.iter().enumerate().collect();
            let input = |name: &str| plan.port(name).is_some_and(|port| plan.ports[port].input);
            rows(&ports, &query, |(at, port)| port_row(port, input(&port.name), rates(*at)))
        }
        ("stages", Some(report)) => rows(&report.stages, &query, |stage| stage_row(stage, report)),
        ("workers", Some(report)) => {
            let workers: Vec<_> = report.workers.iter().enumerate().collect();
            rows(&workers, &query, |(number, worker)| worker_row(*number, worker))
        }
        (what, _) => return Err(unknown_list(run, what)),
    };
    let TablePage { rows, next } = page.map_err(|why| bad_cursor(&why))?;
    Ok(Some(Page { stage: None, rows, next }))
}

/// Returns the next rows of a list as JSON.
fn rows<T, R: Serialize>(
    list: &[T],
    query: &TableQuery<'_>,
    row: impl Fn(&T) -> R,
) -> Result<TablePage<Box<RawValue>>, String> {
    let TablePage { rows, next } = TablePage::of_list(list, query, row)?;
    let json = |row: &R| to_raw_value(row).map_err(|error| error.to_string());
    Ok(TablePage { rows: rows.iter().map(json).collect::<Result<_, _>>()?, next })
}

fn link_row((config, info): &(&Port, &PortInfo)) -> LinkRow {
    LinkRow {
        port: info.name.clone(),
        device: config.device.clone(),
        device_port: config.is_rdma().then_some(config.device_port),
        interface: info.interface.clone(),
        mac: MacAddr(info.mac).to_string(),
        mtu: info.mtu,
        addresses: info.addresses.iter().map(ToString::to_string).collect(),
    }
}

fn port_row(port: &PortReport, input: bool, rates: Option<Rates>) -> PortRow {
    PortRow {
        rx_pps: rates.map(|rates| rates.rate_rx_mpps * 1e6),
        tx_pps: rates.map(|rates| rates.rate_mpps * 1e6),
        rx_bps: rates.map(|rates| rates.rate_rx_gbps * 1e9),
        tx_bps: rates.map(|rates| rates.rate_gbps * 1e9),
        name: port.name.clone(),
        device: port.device.clone(),
        input,
        link_up: port.link_up,
        rx: port.packets.rx,
        tx: port.packets.tx,
        rx_bytes: port.bytes.rx,
        tx_bytes: port.bytes.tx,
        rx_lost: port.rx_lost,
        rx_errors: port.rx_errors,
        tx_dropped: port.tx_full + port.tx_errors + port.tx_too_long + port.tx_not_connected,
    }
}

fn stage_row(stage: &StageReport, report: &Report) -> StageRow {
    StageRow {
        name: stage.name.clone(),
        kind: stage.kind.clone(),
        packets: stage.packets,
        burst: stage.packets as f64 / stage.batches.max(1) as f64,
        cost_ns: CostReport::of_stage(&report.costs, &stage.name).map(|cost| cost.ns),
        steered: stage.outputs.values().sum(),
        dropped: stage.drops.values().sum(),
        consumed: stage.consumed,
        quarantined: stage.quarantined,
        counters: stage.counters.clone(),
    }
}

fn worker_row(number: usize, worker: &WorkerReport) -> WorkerRow {
    WorkerRow {
        worker: number,
        core: worker.core,
        loops: worker.loops,
        idle_percent: worker.idle_loops as f64 / worker.loops.max(1) as f64 * 100.0,
        rx: worker.ledger.rx,
        tx: worker.ledger.tx,
        dropped: worker.ledger.dropped,
        held: worker.ledger.held,
        unaccounted: worker.ledger.unaccounted,
        error: worker.error.clone(),
    }
}

fn memory(plan: &Plan, report: &Report) -> Vec<MemoryRow> {
    let of_worker = |(number, worker): (usize, &WorkerReport)| MemoryRow {
        owner: format!("worker {number}"),
        buffers: Some(worker.slots),
        size_bytes: worker.slots * u64::from(plan.runtime.buffer_size),
        pages: Some(worker.pages.clone()),
    };
    let of_stage = |(stage, bytes): (&String, &u64)| MemoryRow {
        owner: format!("stage {stage}"),
        buffers: None,
        size_bytes: *bytes,
        pages: None,
    };
    let workers = report.workers.iter().enumerate().map(of_worker);
    workers.chain(plan.stage_memory.iter().map(of_stage)).collect()
}
