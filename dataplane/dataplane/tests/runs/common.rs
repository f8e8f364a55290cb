//! Helpers of the tests in this folder: running configs, and reading and writing captures.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use dataplane::config::{Diagnostics, Source};
use dataplane::pipeline::Registry;
use dataplane::runtime::{Assembly, Options, Run, assemble};
use dataplane::telemetry::{Report, StageReport};
use dataplane::topology::Topology;

/// The temporary folder of a test, for captures and other files that configs name.
pub(crate) struct Folder(dataplane_testing::Folder);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(dataplane_testing::Folder::new())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.file(name)
    }

    /// Writes the frames as a classic pcap capture, one microsecond apart.
    pub(crate) fn capture<T: AsRef<[u8]>>(&self, name: &str, frames: impl IntoIterator<Item = T>) -> PathBuf {
        let mut bytes = pcap_header(1).to_vec();
        for (number, frame) in (0u32..).zip(frames) {
            let frame = frame.as_ref();
            let len = frame.len() as u32;
            for word in [number / 1_000_000, number % 1_000_000, len, len] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(frame);
        }
        self.write(name, bytes)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        self.0.write(name, bytes)
    }

    /// Checks a config. Relative paths in the config start from this folder.
    pub(crate) fn assemble(&self, text: &str) -> Result<Assembly, String> {
        assembled(&Source::new(self.file("test.toml"), text, &[]))
    }

    /// Runs a config until its inputs end. Relative paths in the config start from this folder.
    pub(crate) fn run(&self, text: &str) -> Report {
        self.run_until(text, Options::default())
    }

    pub(crate) fn run_until(&self, text: &str, options: Options) -> Report {
        self.start(text, options).unwrap().join().unwrap()
    }

    /// Starts a run of a config. Returns an error if the run cannot start.
    pub(crate) fn start(&self, text: &str, options: Options) -> dataplane::error::Result<Run> {
        Run::start(self.assemble(text).map_err(dataplane::error::Error::Config)?, options)
    }
}

/// A latch at which threads wait until a test opens the latch.
pub(crate) struct Latch(AtomicBool);

impl Latch {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn open(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn wait(&self) {
        while !self.is_open() {
            std::thread::yield_now();
        }
    }
}

/// Checks a config with the built-in stages.
pub(crate) fn assembled(source: &Source) -> Result<Assembly, String> {
    let mut registry = Registry::new();
    dataplane::stages::register(&mut registry);
    assembled_with(source, &registry)
}

pub(crate) fn assembled_with(source: &Source, registry: &Registry) -> Result<Assembly, String> {
    static TOPOLOGY: OnceLock<Topology> = OnceLock::new();
    let topology = TOPOLOGY.get_or_init(|| Topology::discover().unwrap()).clone();
    let mut diagnostics = Diagnostics::new(source);
    assemble(source, registry, topology, &mut diagnostics)
        .map_err(|error| error.to_string())?
        .ok_or_else(|| diagnostics.render(false))
}

/// Returns the header of a little-endian classic pcap file whose timestamps are in microseconds.
pub(crate) fn pcap_header(link_type: u32) -> [u8; 24] {
    let words = [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 262_144, link_type];
    std::array::from_fn(|at| words[at / 4].to_le_bytes()[at % 4])
}

/// Returns the frames of a capture: little-endian classic pcap, or pcapng with enhanced packet blocks.
pub(crate) fn frames_of(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let is_ng = word(0) == 0x0a0d_0d0a;
    let mut frames = Vec::new();
    let mut at = if is_ng { 0 } else { 24 };
    while at < bytes.len() {
        if !is_ng {
            frames.push(bytes[at + 16..at + 16 + word(at + 8)].to_vec());
            at += 16 + word(at + 8);
        } else {
            if word(at) == 6 {
                frames.push(bytes[at + 28..at + 28 + word(at + 20)].to_vec());
            }
            at += word(at + 4);
        }
    }
    frames
}

/// Returns the captures that are stored in the repository.
pub(crate) fn captures() -> Vec<PathBuf> {
    let folder = dataplane_testing::capture("");
    let is_capture =
        |path: &PathBuf| path.extension().is_some_and(|extension| extension == "pcap" || extension == "pcapng");
    let mut captures: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(is_capture).collect();
    captures.sort();
    assert!(captures.len() >= 9, "{captures:?}");
    captures
}

/// Checks that the ledger, the packet accounting of a run, balances. Errors of the run are allowed.
pub(crate) fn assert_conserved(report: &Report) {
    assert_eq!((report.ledger.unaccounted, report.ledger.held), (0, 0), "{report}");
    for worker in &report.workers {
        assert_eq!((worker.slots_missing, worker.ledger.unaccounted, worker.ledger.held), (0, 0, 0), "{report}");
    }
    let stale: u64 = report.ports.iter().map(|port| port.stale).sum();
    assert_eq!(stale, 0, "{report}");
}

pub(crate) fn assert_good(report: &Report) {
    assert_conserved(report);
    assert!(report.is_good(), "{report}");
}

pub(crate) fn stage<'r>(report: &'r Report, name: &str) -> &'r StageReport {
    report.stages.iter().find(|stage| stage.name == name).unwrap_or_else(|| panic!("no stage {name}\n{report}"))
}

/// Returns the number of packets that a stage or a port dropped for a reason.
pub(crate) fn drops(report: &Report, reason: &str) -> u64 {
    report.ledger.drops.get(reason).copied().unwrap_or(0)
}

/// Returns a counter of a port's device.
pub(crate) fn counter(report: &Report, port: usize, name: &str) -> u64 {
    report.ports[port].device_counters.get(name).copied().unwrap_or(0)
}
