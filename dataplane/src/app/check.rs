//! `check`: all mistakes of a config, or its plan.

use super::args;
use super::console::{self, Stop};
use super::doctor;
use crate::config::Diagnostics;
use crate::pipeline::Registry;
use crate::runtime::assemble;
use crate::topology::Topology;

pub(super) fn check(registry: &Registry, args: &args::Check) -> Result<(), Stop> {
    let source = console::source(&args.config)?;
    let mut diagnostics = Diagnostics::new(&source);
    let assembly = assemble(&source, registry, Topology::discover()?, &mut diagnostics);
    match assembly {
        Some(assembly) => {
            console::show(&diagnostics);
            doctor::warn(&assembly.plan, true);
            if args.json { console::print_json(&assembly.plan) } else { console::print(&assembly.plan.to_string()) }
        }
        None if args.json => {
            console::print_json(&diagnostics.records())?;
            // The list says it all.
            Err(Stop::Usage(String::new()))
        }
        None => {
            console::show(&diagnostics);
            Err(Stop::Usage(console::count(&diagnostics)))
        }
    }
}
