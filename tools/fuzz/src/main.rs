//! Runs one target of the fuzzer with libFuzzer. The environment variable `FUZZ_TARGET` names the target.
#![no_main]

use std::sync::OnceLock;

use dataplane::fuzzing as program;
use dataplane_core::fuzzing as core;
use dataplane_soft::fuzzing as soft;
use dataplane_stages::fuzzing as stages;

type Target = fn(&[u8]);

/// All targets. `tools/fuzz/run` reads this list.
const TARGETS: &[(&str, Target)] = &[
    ("dissect", core::dissect),
    ("peer", core::peer),
    ("capture", soft::capture),
    ("interface", soft::interface),
    ("filter", stages::filter),
    ("expression", stages::expression),
    ("kernel", stages::kernel),
    ("rules", stages::rules),
    ("routes", stages::routes),
    ("pipeline", program::pipeline),
    ("config", program::config),
    ("control", program::control),
    ("metrics", program::metrics),
];

static TARGET: OnceLock<Target> = OnceLock::new();

/// Returns the target that the environment selects. Ends the program if there is no such target.
fn selected() -> Target {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    match TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => *target,
        None => {
            eprintln!("FUZZ_TARGET: there is no target `{name}`");
            std::process::exit(2)
        }
    }
}

libfuzzer_sys::fuzz_target!(init: { TARGET.get_or_init(selected); }, |input: &[u8]| TARGET.get_or_init(selected)(input));
