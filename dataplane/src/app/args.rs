//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::Period;

/// A polling-mode packet data plane that speaks RDMA verbs.
#[derive(Debug, Parser)]
#[command(version, about, arg_required_else_help = true, after_help = STATUS)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
    /// Say more on standard error; twice: everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
}

const STATUS: &str = "Exit status: 0 done and the ledger balances, 1 a failed run, 2 a wrong command line or config.";

const DOCTOR_STATUS: &str =
    "Exit status: 0 nothing will fail or lose packets, 1 something will, 2 a wrong command line or config.";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a pipeline and report
    Run(Run),
    /// Show what a program that runs is doing: rates, costs, drops, the ledger
    Stats(Stats),
    /// Show the mistakes of a config, or its plan when there are none
    Check(Check),
    /// Draw a pipeline
    Graph(Graph),
    /// Say what a pipeline does with every packet of a capture; no device is opened
    Explain(Explain),
    /// List the stages, or describe one
    Stages(Stages),
    /// List verbs devices and what they grant, and what the software device can be
    Devices(Devices),
    /// Show cores, nodes and devices, and where workers would go
    Topology(Topology),
    /// Say what on this host costs speed or will fail, with the command that mends it; nothing is changed
    #[command(after_help = DOCTOR_STATUS)]
    Doctor(Doctor),
    /// Print the config reference as Markdown
    #[command(hide = true)]
    Reference,
}

/// A config, and what overrides it.
#[derive(Debug, Args)]
pub(super) struct Config {
    /// The config, a TOML file
    #[arg(value_name = "CONFIG")]
    pub(super) path: PathBuf,
    /// Override a value, such as runtime.burst=32 or port.wan.mtu=9000
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting)]
    pub(super) settings: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) config: Config,
    /// Stop after this time, such as 10s or 500ms
    #[arg(long = "for", value_name = "TIME", value_parser = period)]
    pub(super) duration: Option<Duration>,
    /// Stop after so many received packets
    #[arg(long, value_name = "N")]
    pub(super) packets: Option<u64>,
    /// How to report
    #[arg(long, value_name = "FORM", default_value = "human")]
    pub(super) report: Form,
    /// The same as --report json
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// For people
    Human,
    /// For programs
    Json,
}

#[derive(Debug, Args)]
pub(super) struct Stats {
    /// The process of the program; without it the one that runs
    #[arg(value_name = "PROCESS", conflicts_with = "socket")]
    pub(super) process: Option<u32>,
    /// The socket of the program: runtime.control of its config
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Show it again and again, after this time, such as 1s, with the rates since the time before
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(super) every: Option<Duration>,
    /// Print JSON, one object a line
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    pub(super) config: Config,
    /// Print JSON: a list of mistakes, or the plan
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Graph {
    #[command(flatten)]
    pub(super) config: Config,
    /// What to draw it as; without it the end of FILE's name says, or else it is svg
    #[arg(long, value_name = "FORMAT")]
    pub(super) format: Option<Picture>,
    /// Write to a file
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Picture {
    /// A picture that shows in any browser
    Svg,
    /// For Graphviz
    Dot,
    /// For Markdown
    Mermaid,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    pub(super) config: Config,
    /// The packets: a pcap or pcapng file
    #[arg(value_name = "PCAP")]
    pub(super) capture: PathBuf,
    /// The port that they come in by; without it the first input
    #[arg(long, value_name = "NAME")]
    pub(super) port: Option<String>,
    /// Stop after so many packets
    #[arg(long, value_name = "N")]
    pub(super) packets: Option<usize>,
    /// Print JSON: a list with one object for each packet
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Stages {
    /// The stage to describe
    #[arg(value_name = "NAME")]
    pub(super) name: Option<String>,
    /// Print JSON
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Devices {
    /// Print JSON
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Topology {
    /// A config, to show where its workers would go
    #[arg(value_name = "CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Print JSON
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// A config, to look at what it uses; without it all interfaces are looked at
    #[arg(value_name = "CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Override a value, such as runtime.burst=32 or port.wan.mtu=9000
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting, requires = "config")]
    pub(super) settings: Vec<(String, String)>,
    /// Print JSON
    #[arg(short, long)]
    pub(super) json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match period(text)? {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        time => Ok(time),
    }
}

fn period(text: &str) -> Result<Duration, String> {
    text.parse::<Period>().map(|period| period.0)
}

/// `key=value`. A value that is no TOML is a string without its quotes, which a shell would take away.
fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as runtime.burst=32")?;
    let is_toml = format!("value = {value}").parse::<toml::Table>().is_ok();
    let value = if is_toml { value.to_owned() } else { toml::Value::from(value).to_string() };
    Ok((key.trim().to_owned(), value))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_setting_needs_no_quotes() {
        for (text, key, value) in [
            ("runtime.burst=32", "runtime.burst", "32"),
            ("runtime.idle=sleep", "runtime.idle", "\"sleep\""),
            ("a=\"x=y\"", "a", "\"x=y\""),
            ("a=[1, 2]", "a", "[1, 2]"),
            ("a=", "a", "\"\""),
        ] {
            assert_eq!(setting(text), Ok((key.to_owned(), value.to_owned())));
        }
        assert!(setting("runtime.burst").is_err());
    }
}
