//! `check`: prints the mistakes of a config, or its plan.

use super::args;
use super::console::{self, CommandError};
use super::doctor::{self, StartFailure};
use crate::config::{Diagnostics, Mistake};
use dataplane_core::pipeline::Registry;
use dataplane_core::topology::Topology;

pub(super) fn check(registry: &Registry, args: &args::Check) -> Result<(), CommandError> {
    let source = match console::source(&args.config) {
        Ok(source) => source,
        Err(mistake) => return refuse(&mistake, args.json),
    };
    let topology = Topology::discover()?;
    let mut diagnostics = Diagnostics::new(&source);
    let assembly = console::assemble_here(&source, registry, topology.clone(), &mut diagnostics)
        .inspect_err(|_| console::show(&diagnostics))?;
    if let Some(assembly) = &assembly {
        let loaded = console::loaded(&source);
        for StartFailure { key, what, fix } in doctor::start_failures(&topology, &assembly.plan) {
            let create = if args.strict { Mistake::error } else { Mistake::warning };
            diagnostics.push(create(loaded.locate(&key), what).help(fix));
        }
    }
    match assembly.filter(|_| !diagnostics.has_errors()) {
        Some(assembly) => {
            console::show(&diagnostics);
            doctor::warn(&assembly.plan);
            if args.json { console::print_json(&assembly.plan) } else { console::print(&assembly.plan.to_string()) }
        }
        None => refuse(&diagnostics, args.json),
    }
}

/// Prints the mistakes of a config that cannot be run.
fn refuse(diagnostics: &Diagnostics, json: bool) -> Result<(), CommandError> {
    if json {
        console::print_json(&diagnostics.records())?;
        // The JSON list contains all mistakes, so no message follows.
        return Err(match console::refusal(diagnostics) {
            CommandError::Usage(_) => CommandError::Usage(String::new()),
            _ => CommandError::Failed(String::new()),
        });
    }
    console::show(diagnostics);
    Err(console::refusal(diagnostics))
}
