//! The command `bench`.

mod calibration;
mod compare;
mod find;
mod flows;
mod journal;
mod latency;
mod opened;
mod output;
mod progress;
mod rate;
mod ratios;
mod reset;
mod rfc2544;
mod soak;
mod threads;
mod trials;
mod verbs;

use clap::{Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use dataplane::{Error, Result};

use self::compare::{CompareArgs, HtmlArgs};
use self::find::{NdrArgs, PdrArgs};
use self::flows::FlowsArgs;
use self::latency::LatencyArgs;
use self::output::print_json;
use self::rate::{CalibrateArgs, RateArgs};
use self::rfc2544::Rfc2544Args;
use self::soak::SoakArgs;
use crate::compare::CompareReport;
use crate::report::{
    CalibrationReport, FlowsReport, LatencyStepsReport, RateReport, Rfc2544Report, SearchReport, SoakLine,
};
use crate::verbs::{VerbsArgs, VerbsReport};

/// Send streams of packets through a device under test, and judge the packets that return
#[derive(Debug, Parser)]
#[command(name = "bench", arg_required_else_help = true, after_help = STATUS)]
struct Bench {
    #[command(subcommand)]
    method: Method,
}

const STATUS: &str = "Exit status: 0 success, 1 a failed or incomplete run, 2 a wrong command line or config.";

#[derive(Debug, Subcommand)]
enum Method {
    /// Send at one rate, and report loss, duplicates, reordering, latency and jitter of each stream
    Rate(RateArgs),
    /// Search the highest rate without loss (no drop rate, MLRsearch)
    Ndr(NdrArgs),
    /// Search the highest rate at which the loss ratio stays within a limit (partial drop rate, MLRsearch)
    Pdr(PdrArgs),
    /// Measure the limits of the tester on two ports that are directly connected
    Calibrate(CalibrateArgs),
    /// Run the tests of RFC 2544 for several frame sizes
    Rfc2544(Rfc2544Args),
    /// Measure the latency at several loads
    Latency(LatencyArgs),
    /// Send for hours, and locate each loss in time
    Soak(SoakArgs),
    /// Find the number of flows and the rate of new flows that a stateful device carries
    Flows(FlowsArgs),
    /// Measure bandwidth, message rate and latency of RDMA operations, with a peer that is this program or perftest
    Verbs(VerbsArgs),
    /// Compare two results: better, worse, or no difference shown
    Compare(CompareArgs),
    /// Print a stored result as an HTML page
    Html(HtmlArgs),
    /// Print the JSON schema of a result
    Schema(SchemaArgs),
}

#[derive(Debug, Args)]
struct SchemaArgs {
    /// The result
    result: SchemaOf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SchemaOf {
    /// The result of `rate`
    Rate,
    /// The result of `ndr` and `pdr`
    Search,
    /// The result of `calibrate`
    Calibrate,
    /// The result of `rfc2544`
    Rfc2544,
    /// The result of `latency`
    Latency,
    /// A line of the file of `soak`
    Soak,
    /// The result of `flows`
    Flows,
    /// The result of `verbs`
    Verbs,
    /// The result of `compare`
    Compare,
}

/// Returns the command for [`dataplane::app::App::command`].
pub fn command() -> clap::Command {
    <Bench as clap::CommandFactory>::command()
}

/// Runs the command.
///
/// # Errors
/// Returns [`Error::Config`] for a wrong command line or config, and another error for a failed run.
pub fn run(matches: &clap::ArgMatches) -> Result<()> {
    let bench = Bench::from_arg_matches(matches).map_err(|error| Error::Config(error.to_string()))?;
    match bench.method {
        Method::Rate(args) => rate::rate(&args),
        Method::Ndr(NdrArgs { search, exceed }) => find::find("ndr", &search, &[0.0], exceed),
        Method::Pdr(PdrArgs { search, loss, exceed }) => find::find("pdr", &search, &loss, exceed),
        Method::Calibrate(args) => rate::calibrate(&args),
        Method::Rfc2544(args) => rfc2544::rfc2544(&args),
        Method::Latency(args) => latency::latency(&args),
        Method::Soak(args) => soak::soak(&args),
        Method::Flows(args) => flows::flows(&args),
        Method::Verbs(args) => verbs::verbs(&args),
        Method::Compare(args) => compare::compare(&args),
        Method::Html(args) => compare::html(&args),
        Method::Schema(args) => {
            let schema = match args.result {
                SchemaOf::Rate => schemars::schema_for!(RateReport),
                SchemaOf::Search => schemars::schema_for!(SearchReport),
                SchemaOf::Rfc2544 => schemars::schema_for!(Rfc2544Report),
                SchemaOf::Latency => schemars::schema_for!(LatencyStepsReport),
                SchemaOf::Soak => schemars::schema_for!(SoakLine),
                SchemaOf::Flows => schemars::schema_for!(FlowsReport),
                SchemaOf::Verbs => schemars::schema_for!(VerbsReport),
                SchemaOf::Compare => schemars::schema_for!(CompareReport),
                SchemaOf::Calibrate => schemars::schema_for!(CalibrationReport),
            };
            print_json(&schema)
        }
    }
}
