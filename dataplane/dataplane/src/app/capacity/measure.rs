//! Runs a config with ports in memory, and returns the costs of its parts.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::super::console::{self, CommandError};
use super::model::{Measured, Memory, Round};
use crate::config::{Diagnostics, Plan, Source};
use crate::runtime::{Assembly, Options, Run, assemble, assemble_offline};
use dataplane_core::error::Error;
use dataplane_core::pipeline::Registry;
use dataplane_core::telemetry::Report;
use dataplane_core::topology::Topology;

/// The time for which the pipeline runs before a measurement starts.
const WARM_UP: Duration = Duration::from_millis(100);

/// Returns a config with further overrides.
fn with_settings(source: &Source, settings: &[(String, String)]) -> Source {
    let given = source.overrides().filter_map(|setting| setting.split_once('='));
    let mut all: Vec<(String, String)> = given.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    all.extend_from_slice(settings);
    Source::new(source.path(), source.text(), &all)
}

fn setting(key: &str, value: impl ToString) -> (String, String) {
    (key.to_owned(), value.to_string())
}

fn checked(
    source: &Source,
    assemble: impl FnOnce(&mut Diagnostics) -> Result<Option<Assembly>, Error>,
) -> Result<Assembly, CommandError> {
    let mut diagnostics = Diagnostics::new(source);
    let assembly = assemble(&mut diagnostics)?;
    match assembly.filter(|_| !diagnostics.has_errors()) {
        Some(assembly) => Ok(assembly),
        None => {
            console::show(&diagnostics);
            Err(console::refusal(&diagnostics))
        }
    }
}

/// Returns the plan of a config, without a check of this host.
pub(super) fn offline(
    source: &Source,
    settings: &[(String, String)],
    registry: &Registry,
) -> Result<Plan, CommandError> {
    let source = with_settings(source, settings);
    checked(&source, |diagnostics| assemble_offline(&source, registry, diagnostics)).map(|assembly| assembly.plan)
}

/// Refuses a config whose stages write files, because the measurement would overwrite these files. `settings` are the
/// overrides that put the ports of the config in memory.
pub(super) fn refuse_written_files(
    source: &Source,
    settings: &[(String, String)],
    registry: &Registry,
) -> Result<(), CommandError> {
    let source = with_settings(source, settings);
    let assembly = checked(&source, |diagnostics| assemble_offline(&source, registry, diagnostics))?;
    let mut written = assembly.resources.files.written().filter(|path| !path.starts_with("/dev"));
    written.next().map_or(Ok(()), |path| {
        let help = "help: let the stage write to /dev/null, such as --set pipeline.stage.NAME.file=/dev/null";
        Err(CommandError::Usage(format!("the measurement would overwrite {}; {help}", path.display())))
    })
}

/// Returns the memory that each worker of a config adds. The memory of the stages is computed from the plans for one
/// worker and for two workers, because workers can share a table.
pub(super) fn memory(source: &Source, registry: &Registry) -> Result<Memory, CommandError> {
    let plan = |workers: u32| offline(source, &[setting("runtime.workers", workers)], registry);
    let (one, two) = (plan(1)?, plan(2)?);
    let stages = |plan: &Plan| plan.stage_memory.values().sum::<u64>();
    let inputs = one.ports.iter().filter(|port| port.input);
    Ok(Memory {
        buffers: u64::from(one.buffers),
        buffer_bytes: u64::from(one.runtime.buffer_size),
        first_worker_tables: stages(&one),
        further_worker_tables: stages(&two).saturating_sub(stages(&one)),
        receive_buffers: inputs.map(|port| u64::from(port.config.rx_depth)).sum(),
    })
}

/// Measures the costs of a config on one worker. `settings` are the overrides that put the ports of the config in
/// memory.
pub(super) fn measure(
    source: &Source,
    settings: &[(String, String)],
    registry: &Registry,
    topology: &Topology,
    rounds: u32,
    time: Duration,
) -> Result<Measured, CommandError> {
    let mut settings = settings.to_vec();
    settings.extend([
        setting("runtime.workers", 1),
        setting("runtime.idle", "\"spin\""),
        setting("runtime.control", "\"none\""),
        setting("runtime.metrics", "\"none\""),
    ]);
    let source = with_settings(source, &settings);
    let mut measured = Measured::default();
    for _ in 0..rounds {
        let topology = topology.clone();
        let assembly = checked(&source, |diagnostics| assemble(&source, registry, topology, diagnostics))?;
        let run = Run::start(assembly, Options::default())?;
        // The first packets fill the caches, so the measurement starts later.
        thread::sleep(WARM_UP);
        let before = sample(&run);
        let begin = Instant::now();
        thread::sleep(time);
        let (seconds, after) = (begin.elapsed().as_secs_f64(), sample(&run));
        run.stop();
        let report = run.join()?;
        if !report.is_good() {
            let why = report.errors.first().cloned().unwrap_or_else(|| "the ledger does not balance".to_owned());
            return Err(CommandError::Failed(format!("the measurement failed: {why}")));
        }
        let processor_ns = after.since(&before);
        measured.rounds.push(round(report, seconds, processor_ns)?);
    }
    Ok(measured)
}

/// The progress of the worker at one time.
struct ProgressSample {
    received: u64,
    /// The processor time of the worker in nanoseconds, if the kernel reports the time.
    processor: Option<u64>,
}

impl ProgressSample {
    /// Returns the processor time per received packet.
    fn since(&self, before: &Self) -> Option<f64> {
        let received = self.received.checked_sub(before.received).filter(|received| *received > 0)?;
        Some(self.processor?.checked_sub(before.processor?)? as f64 / received as f64)
    }
}

fn sample(run: &Run) -> ProgressSample {
    ProgressSample { received: run.progress().rx, processor: processor_time() }
}

/// Returns the processor time of the thread of the only worker.
fn processor_time() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").ok()?.flatten().map(|task| task.path());
    let is_worker = |task: &PathBuf| fs::read(task.join("comm")).is_ok_and(|name| name == b"worker-0\n");
    let text = fs::read_to_string(tasks.into_iter().find(is_worker)?.join("schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

fn round(report: Report, seconds: f64, processor_ns: Option<f64>) -> Result<Round, CommandError> {
    if report.packets.rx == 0 || report.costs.is_empty() {
        let help = "help: measure longer with --measure 5s, or check that the ports in `input` receive packets";
        return Err(CommandError::Failed(format!("the measurement received no packets; {help}")));
    }
    let dropped = report.ledger.drops.into_iter().max_by_key(|(_, packets)| *packets);
    Ok(Round {
        core: report.workers.first().map_or(0, |worker| worker.core),
        seconds,
        processor_ns,
        received: report.packets.rx,
        received_bytes: report.bytes.rx,
        sent: report.packets.tx,
        dropped: report.ledger.dropped,
        main_drop: dropped.map(|(reason, _)| reason),
        costs: report.costs,
    })
}
