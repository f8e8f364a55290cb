//! `plan --capacity`: predicts the cores and the memory that a config needs for a rate, from costs that the command
//! measures on this machine.

mod measure;
mod model;
mod ports;
mod rate;
mod text;

use std::path::PathBuf;

use super::args;
use super::console::{self, CommandError};
use crate::config::Source;
use dataplane_core::pipeline::Registry;
use dataplane_core::topology::Topology;
use dataplane_soft::doctor::Roots;
use model::{Machine, Prediction};
pub(super) use rate::Rate;

/// The config for a command line that names no config: the cheapest pipeline, which shows the costs of the worker loop.
const FORWARD: &str = "[[port]]\nname = \"port\"\ndevice = \"soft\"\nlink = { kind = \"generator\" }\n\n\
                       [pipeline]\ninput = [\"port\"]\n\n[[pipeline.stage]]\nname = \"out\"\nuse = \"tx\"\nport = \"port\"\n";

pub(super) fn capacity(registry: &Registry, args: &args::Plan) -> Result<(), CommandError> {
    let args::Prediction { rate, size, traffic, measure, rounds, settings: overrides } = &args.prediction;
    let rate = rate.ok_or_else(|| {
        let help = "help: add the rate of all ports together, such as `--rate 100G` or `--rate 10Mpps`";
        CommandError::Usage(format!("`--capacity` needs a rate; {help}"))
    })?;
    let source = match &args.configs[..] {
        [_, _, ..] => {
            let help = "help: run the command once for each config";
            return Err(CommandError::Usage(format!(
                "`--capacity` predicts for one config, but two are given; {help}"
            )));
        }
        [path] => {
            let config = args::Config { path: path.clone(), settings: overrides.clone() };
            console::source(&config).map_err(|mistake| {
                console::show(&mistake);
                console::refusal(&mistake)
            })?
        }
        [] => Source::new(PathBuf::from("forward"), FORWARD, overrides),
    };
    let topology = Topology::discover()?;
    let frames = ports::Frames { size: *size, traffic: traffic.clone() };
    let plan = measure::offline(&source, &[], registry)?;
    let settings = ports::in_memory(&plan, &frames)?;
    measure::refuse_written_files(&source, &settings, registry)?;
    let measured = measure::measure(&source, &settings, registry, &topology, *rounds, *measure)?;
    let machine = Machine {
        cores: topology.allowed().count() as u64,
        line: ports::line_rate(&Roots::real(), &plan),
        memory: measure::memory(&source, registry)?,
    };
    let prediction = Prediction::new(rate, &measured, &machine);
    if args.target.json {
        return console::print_json(&prediction);
    }
    console::print(&text::text(&prediction))
}
