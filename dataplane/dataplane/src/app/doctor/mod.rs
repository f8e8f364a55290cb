//! `doctor`: finds settings of this host that cause failures, lose packets or cost speed. Prints commands that fix
//! these settings, but changes nothing itself.
//! `doctor --watch` prints what changes on the host around a running program.

mod address;
mod device;
mod host;
mod interface;
mod section;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt::Write;

use super::args;
use super::console::{self, CommandError};
use super::privileges::Privileges;
use crate::config::Plan;
use dataplane_core::pipeline::Registry;
use dataplane_core::topology::Topology;
use dataplane_soft::doctor::{Finding, Roots, Severity};
use section::Section;

pub(super) fn doctor(registry: &Registry, args: &args::Doctor) -> Result<(), CommandError> {
    if args.watch {
        return watch::watch(args);
    }
    let topology = Topology::discover()?;
    let assembly = match &args.config {
        Some(path) => {
            let config = args::Config { path: path.clone(), settings: args.settings.clone() };
            Some(console::assembly(&config, None, registry, topology.clone())?)
        }
        None => None,
    };
    let mut sections = examine(&Roots::real(), &topology, assembly.as_ref().map(|assembly| &assembly.plan));
    if let Some(assembly) = assembly.filter(|assembly| assembly.plan.runtime.sandbox) {
        let facts = Privileges::of(&assembly).describe();
        sections.push(Section { facts, ..Section::new("privileges of the run", "runtime.sandbox", Vec::new()) });
    }
    if args.json {
        console::print_json(&sections)?
    } else {
        console::print(&text(&sections))?
    }
    let bad = sections.iter().flat_map(|section| &section.findings).filter(|it| it.severity > Severity::Slow).count();
    match bad {
        0 => Ok(()),
        // All findings are already printed.
        _ => Err(CommandError::Failed(String::new())),
    }
}

/// Checks the interfaces of a plan, and logs the findings about lost or damaged packets.
pub(super) fn warn(plan: &Plan) {
    for Section { subject, findings, .. } in interface::of_plan(&Roots::real(), plan) {
        for Finding { what, effect, fix, .. } in findings.iter().filter(|it| it.severity == Severity::Breaks) {
            tracing::warn!("{subject}: {what}, so {effect}; help: {fix}");
        }
    }
}

/// A problem that ends the run of a plan at its start.
pub(super) struct StartFailure {
    /// The path of the key in the config that the problem is about.
    pub(super) key: String,
    pub(super) what: String,
    pub(super) fix: String,
}

/// Returns the problems of this host that end the run of a plan at its start.
pub(super) fn start_failures(topology: &Topology, plan: &Plan) -> Vec<StartFailure> {
    let failures = |Section { key, findings, .. }| {
        let fatal = findings.into_iter().filter(|finding: &Finding| finding.severity == Severity::Fails);
        fatal.map(move |Finding { what, fix, .. }| StartFailure { key: String::clone(&key), what, fix })
    };
    examine(&Roots::real(), topology, Some(plan)).into_iter().flat_map(failures).collect()
}

/// Checks the host, and every device, address and interface of the plan. Without a plan, checks every interface of the
/// host.
fn examine(roots: &Roots, topology: &Topology, plan: Option<&Plan>) -> Vec<Section> {
    let findings = host::findings(roots, topology, plan);
    let mut sections = vec![Section::new("host", "runtime.hugepages", findings)];
    match plan {
        Some(plan) => {
            sections.extend(device::of_plan(roots, plan, device::unlisted));
            sections.extend(address::of_plan(plan));
            sections.extend(interface::of_plan(roots, plan));
        }
        None => sections.extend(interface::all(roots)),
    }
    sections
}

fn text(sections: &[Section]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for Section { subject, findings, facts, .. } in sections {
        let is_good = findings.is_empty() && facts.is_empty();
        let _ = writeln!(text, "{subject}{}", if is_good { ": no problems found" } else { "" });
        for fact in facts {
            let _ = writeln!(text, "  {fact}");
        }
        for Finding { severity, what, effect, fix } in findings {
            let severity = match severity {
                Severity::Unseen => "check",
                Severity::Slow => "slow",
                Severity::Breaks => "breaks",
                Severity::Fails => "fails",
            };
            let _ = writeln!(text, "  {severity}: {what}\n    effect {effect}\n    fix    {fix}");
        }
    }
    text
}
