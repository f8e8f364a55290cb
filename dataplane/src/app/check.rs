//! `check`: the mistakes of a config, or its plan.

use super::args;
use super::console::{self, Stop};
use super::doctor;
use crate::config::{Diagnostics, Mistake};
use crate::pipeline::Registry;
use crate::topology::Topology;

pub(super) fn check(registry: &Registry, args: &args::Check) -> Result<(), Stop> {
    let source = console::source(&args.config)?;
    let mut diagnostics = Diagnostics::new(&source);
    let assembly = console::assemble_here(&source, registry, Topology::discover()?, &mut diagnostics);
    match assembly {
        Some(assembly) => {
            // The plan may be for another host, so this is no error.
            let loaded = console::loaded(&source);
            for (port, what, fix) in doctor::absent_devices(&assembly.plan) {
                let device = loaded.locate(&format!("port[{port}].device"));
                diagnostics.push(Mistake::warning(device, what).help(fix));
            }
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
