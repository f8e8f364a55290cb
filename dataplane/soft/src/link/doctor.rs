//! Findings about host settings that affect links on interfaces. The checks change nothing on the host.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::thread::CapabilitySet;
use serde::Serialize;

use super::InterfaceFacts;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// This process cannot find out whether there is a problem.
    Unseen,
    /// The program runs, but not at full speed.
    Slow,
    /// The program runs, but packets are lost or damaged.
    Breaks,
    /// The program does not run.
    Fails,
}

/// A problem of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad the problem is.
    pub severity: Severity,
    /// What is wrong.
    pub what: String,
    /// The effect of the problem.
    pub effect: String,
    /// The fix: a command, or a change of the config.
    pub fix: String,
}

impl Finding {
    /// Creates a finding.
    pub fn new(severity: Severity, what: impl Into<String>, effect: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity, what: what.into(), effect: effect.into(), fix: fix.into() }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The folders of the kernel's file systems. Tests use folders with the same layout.
#[derive(Clone, Debug)]
pub struct Roots {
    /// The folder of sysfs.
    pub sys: PathBuf,
    /// The folder of procfs.
    pub proc: PathBuf,
}

impl Roots {
    /// Returns the folders of this host.
    pub fn real() -> Self {
        Self { sys: PathBuf::from("/sys"), proc: PathBuf::from("/proc") }
    }

    /// Returns the content of a file below `/sys` without surrounding white space. Returns `None` if the file cannot be
    /// read.
    pub fn sys(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.sys.join(path)).ok().map(|text| text.trim().to_owned())
    }

    /// Returns the content of a file below `/proc`, like [`Roots::sys`].
    pub fn proc(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.proc.join(path)).ok().map(|text| text.trim().to_owned())
    }

    /// Returns the names in a folder below `/sys`, sorted.
    pub fn sys_names(&self, path: &str) -> Vec<String> {
        names(&self.sys.join(path))
    }

    /// Returns the names in a folder below `/proc`, sorted.
    pub fn proc_names(&self, path: &str) -> Vec<String> {
        names(&self.proc.join(path))
    }

    /// Returns the effective capabilities of the process (capabilities(7)).
    pub fn capabilities(&self) -> CapabilitySet {
        let status = self.proc("self/status").unwrap_or_default();
        let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let bits = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        CapabilitySet::from_bits_retain(bits.unwrap_or_default())
    }
}

/// An interface that a link will use.
#[derive(Clone, Copy, Debug)]
pub struct LinkCase<'a> {
    /// The host.
    pub roots: &'a Roots,
    /// The name of the interface.
    pub name: &'a str,
    /// The properties of the interface.
    pub facts: &'a InterfaceFacts,
    /// The number of workers. Each worker uses one queue of the interface.
    pub workers: usize,
}
