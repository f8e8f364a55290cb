//! `doctor`: what on this host costs speed or will fail, with the command that mends it. It changes nothing.

mod device;
mod host;
mod interface;
#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use serde::Serialize;

use super::args;
use super::console::{self, Stop};
use crate::config::Plan;
use crate::pipeline::Registry;
use crate::topology::Topology;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    /// It may be well: it cannot be seen from here.
    Unseen,
    /// It runs, and not as fast as it could.
    Slow,
    /// It runs, and packets are lost or wrong.
    Breaks,
    /// It will not run.
    Fails,
}

/// Something that could be better.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    severity: Severity,
    what: String,
    /// What it costs.
    costs: String,
    /// What mends it: a command, or what to write.
    fix: String,
}

impl Finding {
    fn new(severity: Severity, what: impl Into<String>, costs: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity, what: what.into(), costs: costs.into(), fix: fix.into() }
    }
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Section {
    subject: String,
    findings: Vec<Finding>,
}

/// Where the kernel tells of itself; in tests a folder that looks so.
#[derive(Clone, Debug)]
struct Roots {
    sys: PathBuf,
    proc: PathBuf,
}

impl Roots {
    fn real() -> Self {
        Self { sys: PathBuf::from("/sys"), proc: PathBuf::from("/proc") }
    }

    /// A file without the space around it. `None`: it is not there, or not to be read.
    fn sys(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.sys.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn proc(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.proc.join(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The names in a folder, sorted.
    fn sys_names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.sys.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether the process has a capability now (`capabilities(7)`).
    fn has_capability(&self, bit: u32) -> bool {
        let status = self.proc("self/status").unwrap_or_default();
        let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> bit & 1 == 1)
    }
}

/// The numbers of a list such as `0-3,8`.
fn numbers(list: &str) -> Vec<u32> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

pub(super) fn doctor(registry: &Registry, args: &args::Doctor) -> Result<(), Stop> {
    let topology = Topology::discover()?;
    let plan = match &args.config {
        Some(path) => {
            let config = args::Config { path: path.clone(), settings: args.settings.clone() };
            Some(console::assembly(&config, registry, topology.clone())?.plan)
        }
        None => None,
    };
    let sections = examine(&Roots::real(), &topology, plan.as_ref());
    if args.json {
        console::print_json(&sections)?
    } else {
        console::print(&text(&sections))?
    }
    let bad = sections.iter().flat_map(|section| &section.findings).filter(|it| it.severity > Severity::Slow).count();
    match bad {
        0 => Ok(()),
        // All of it has been said.
        _ => Err(Stop::Failed(String::new())),
    }
}

/// Tells what packets will be lost or wrong by on the interfaces of a plan; `all`: also by what it will not run.
pub(super) fn warn(plan: &Plan, all: bool) {
    for Section { subject, findings } in interface::of_plan(&Roots::real(), plan) {
        for Finding { what, costs, fix, .. } in
            findings.iter().filter(|it| it.severity == Severity::Breaks || all && it.severity == Severity::Fails)
        {
            tracing::warn!("{subject}: {what}: {costs}. To mend it: {fix}");
        }
    }
}

/// The ports of a plan, by their places, whose RDMA device this host has not.
pub(super) fn absent_devices(plan: &Plan) -> impl Iterator<Item = (usize, String, String)> {
    let sections = device::of_plan(&Roots::real(), plan).into_iter();
    sections.flat_map(|(place, Section { findings, .. })| {
        findings.into_iter().map(move |Finding { what, fix, .. }| (place, what, fix))
    })
}

/// Looks at the host, and at every interface of the plan, or without one at every interface.
fn examine(roots: &Roots, topology: &Topology, plan: Option<&Plan>) -> Vec<Section> {
    let mut sections = vec![Section { subject: "host".to_owned(), findings: host::findings(roots, topology, plan) }];
    sections.extend(match plan {
        Some(plan) => {
            let devices = device::of_plan(roots, plan).into_iter().map(|(_, section)| section);
            devices.chain(interface::of_plan(roots, plan)).collect()
        }
        None => interface::all(roots),
    });
    sections
}

fn text(sections: &[Section]) -> String {
    let mut text = String::new();
    // A string takes any amount of writing.
    for Section { subject, findings } in sections {
        let _ = writeln!(text, "{subject}{}", if findings.is_empty() { ": nothing found" } else { "" });
        for Finding { severity, what, costs, fix } in findings {
            let severity = match severity {
                Severity::Unseen => "look",
                Severity::Slow => "slow",
                Severity::Breaks => "breaks",
                Severity::Fails => "fails",
            };
            let _ = writeln!(text, "  {severity}: {what}\n    costs  {costs}\n    fix    {fix}");
        }
    }
    text
}
