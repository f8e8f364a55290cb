//! `why`: names the causes of the packets that a running program drops or loses.

mod cause;
mod drops;
mod examples;
mod fixes;
mod losses;
mod observe;
#[cfg(test)]
mod tests;

use super::args;
use super::console::{self, CommandError};
use cause::Diagnosis;
use dataplane_core::pipeline::Registry;
use observe::Observed;

pub(super) fn why(registry: &Registry, args: &args::Why) -> Result<(), CommandError> {
    let observed = observe::observe(args)?;
    let mut diagnosis = diagnose(registry, &observed);
    // An observer slows the workers down, so the counters are read before the program collects examples.
    examples::add(&mut diagnosis, args)?;
    if args.target.json { console::print_json(&diagnosis) } else { console::print(&diagnosis.to_string()) }
}

/// Finds the causes of all drops and losses. The causes have no examples yet.
fn diagnose(registry: &Registry, observed: &Observed) -> Diagnosis {
    let mut causes = drops::drops(registry, observed);
    causes.extend(losses::losses(observed));
    Diagnosis::new(observed, causes)
}
