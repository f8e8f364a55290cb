//! The command-line arguments.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::capacity::Rate;
use super::log_level::LEVELS;
use dataplane_core::units::Period;

/// A poll-mode packet data plane on RDMA verbs.
#[derive(Debug, Parser)]
#[command(version, about, arg_required_else_help = true, after_help = STATUS)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub(super) command: Command,
    /// Log more to standard error: -v for info, -vv for debug
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(super) verbose: u8,
    /// The format of log messages
    #[arg(long, global = true, value_name = "FORMAT", default_value = "auto")]
    pub(super) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// `journal` if standard error is the journal of systemd, else `text`
    #[default]
    Auto,
    /// Text for people. Messages of `run` start with the time
    Text,
    /// Entries with fields in the journal of systemd. If standard error is not the journal, lines with priorities, such
    /// as `<4>`
    Journal,
    /// JSON, one object per line
    Json,
}

const UPGRADE_HELP: &str =
    "Exit status: 0 the new program forwards the packets, 1 the upgrade failed, 2 a wrong command line.";

const STATUS: &str = "Exit status: 0 success and a balanced ledger, 1 a failed run, 2 a wrong command line or config.";

const DOCTOR_STATUS: &str =
    "Exit status: 0 no cause of failures or packet loss, 1 at least one such cause, 2 a wrong command line or config.";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a pipeline and print a report
    Run(Run),
    /// Show live statistics of a running program: rates, costs, drops, the ledger
    Stats(Stats),
    /// Watch a running program on a screen: ports, workers, stages, drops, latency
    Top(Top),
    /// Show a list of a running program, such as its ports, routes or rules
    Show(Show),
    /// Capture packets of a running program at a port, a stage or an output, or dropped packets
    #[command(after_help = CAPTURE_HELP)]
    Capture(Capture),
    /// Show the path of live packets through the stages of a running program
    #[command(after_help = TRACE_HELP)]
    Trace(Trace),
    /// Write the last bursts of each worker of a running program to a file
    #[command(after_help = BLACK_BOX_HELP)]
    BlackBox(BlackBox),
    /// Name the causes of the packets that a running program drops or loses, with examples and fixes
    #[command(after_help = WHY_HELP)]
    Why(Why),
    /// Show or set the level of log messages of a running program
    Log(Log),
    /// List the operations that would change a running program to another config, or compare two configs. With
    /// `--capacity`, predict the cores and the memory that a config needs for a rate
    #[command(after_help = PLAN_HELP)]
    Plan(Plan),
    /// Change a running program to another config. The program carries out all operations, or none
    #[command(after_help = APPLY_HELP)]
    Apply(Apply),
    /// Confirm the last `apply --confirm`
    Confirm(Change),
    /// Revert the last change of a running program
    Rollback(Change),
    /// List the changes of a running program
    History(Change),
    /// Apply the config file of a running program again, and read the files of its stages again
    Reload(Change),
    /// Change one route, rule or limit in the config of a running program
    Set(Set),
    /// Write the config that a running program uses to a file
    Save(Save),
    /// Replace a running program by another program file, for example a new version, without loss of packets
    #[command(after_help = UPGRADE_HELP)]
    Upgrade(Upgrade),
    /// Check a config: print all mistakes, or the plan if there are none
    Check(Check),
    /// Draw the pipeline of a config
    Graph(Graph),
    /// Read packets from a capture file and show the path of each packet through a pipeline, without opening a device
    Explain(Explain),
    /// List the kinds of stages, or describe one kind
    Stages(Stages),
    /// List the verbs devices with their capabilities, and the links of the devices `host` and `soft`
    Devices(Devices),
    /// Show cores, NUMA nodes and devices, and the placement of workers
    Topology(Topology),
    /// Find settings of this host that cause failures, lose packets or cost speed, and print commands that fix them
    #[command(after_help = DOCTOR_STATUS)]
    Doctor(Doctor),
    /// Print the JSON schema of a config, which editors use to complete and check configs, or of the control protocol
    Schema(Schema),
    /// Print a script that lets a shell complete commands and options
    #[command(after_help = COMPLETIONS_HELP)]
    Completions(Completions),
    /// Write a manual page for each command
    #[command(hide = true)]
    Manual(Manual),
    /// Write the config reference as Markdown: an index and the folder `config` with one page for each section
    #[command(hide = true)]
    Reference(Reference),
}

/// A config file and the values that override it.
#[derive(Debug, Args)]
pub(super) struct Config {
    /// The config, a TOML file, or `-` for standard input
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
    /// Stop after this many received packets
    #[arg(long, value_name = "N")]
    pub(super) packets: Option<u64>,
    /// The format of the report
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub(super) report: ReportFormat,
    /// Same as --report json
    #[arg(short, long)]
    pub(super) json: bool,
    /// Take over the running program at the other end of standard input
    #[arg(long, hide = true)]
    pub(super) take_over: bool,
}

#[derive(Debug, Args)]
pub(super) struct Upgrade {
    /// The file of the new program
    #[arg(long, value_name = "PROGRAM")]
    pub(super) to: PathBuf,
    #[command(flatten)]
    pub(super) program: Program,
    /// The maximum time until the new program forwards packets. After this time, the upgrade fails, and the new program
    /// is killed
    #[arg(long, value_name = "TIME", value_parser = period, default_value = "60s")]
    pub(super) timeout: Duration,
    /// Print JSON
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportFormat {
    /// Text for people
    Human,
    /// JSON for programs
    Json,
}

/// A running program.
#[derive(Debug, Args)]
pub(super) struct Program {
    /// The process id of the program, needed if several are running
    #[arg(value_name = "PROCESS", conflicts_with = "socket")]
    pub(super) process: Option<u32>,
    /// The control socket of the program, as set by runtime.control in its config
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(super) struct Stats {
    #[command(flatten)]
    pub(super) program: Program,
    /// Repeat at this interval, such as 1s, and show the rates since the previous output
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(super) every: Option<Duration>,
    /// Print JSON, one object per line
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Top {
    #[command(flatten)]
    pub(super) program: Program,
    /// The interval between two samples, such as 500ms
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s")]
    pub(super) every: Duration,
    /// Print one sample as JSON, with the rates during one interval
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = SHOW_HELP)]
pub(super) struct Show {
    /// The list, or `route get ADDRESS` for the route of an address
    #[arg(value_name = "WHAT", required = true, num_args = 1..)]
    pub(super) what: Vec<String>,
    /// The process id of the program, needed if several are running
    #[arg(short, long, value_name = "PROCESS", conflicts_with = "socket")]
    pub(super) process: Option<u32>,
    /// The control socket of the program, as set by runtime.control in its config
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Show only the table of this stage
    #[arg(long, value_name = "STAGE")]
    pub(super) stage: Option<String>,
    /// Stop after this many rows
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<usize>,
    /// Print JSON: one object per page
    #[arg(short, long)]
    pub(super) json: bool,
}

const SHOW_HELP: &str = "Lists of every program: config, links, memory, ports, stages, workers.\n\
    Tables of stages: acl, bridge, limits, neighbors, routes, and the tables of your own stages.";

const CAPTURE_HELP: &str = "Filters have the syntax of tcpdump (pcap-filter(7)). If this command is too slow, it loses packets \
    of the capture and counts them. The traffic goes on. Ctrl-C ends the capture.\n\n\
    Exit status: 0 the capture has ended, 1 the program does not answer or the file cannot be written, 2 a wrong command \
    line.";

const TRACE_HELP: &str = "Filters have the syntax of tcpdump (pcap-filter(7)) and apply to received packets. Ctrl-C ends \
    the trace.\n\n\
    Exit status: 0 the trace has ended, 1 the program does not answer, 2 a wrong command line.";

const BLACK_BOX_HELP: &str = "The config of the program needs `black_box` in [runtime]. `dataplane explain CONFIG \
    --black-box FILE` replays the file.\n\n\
    Exit status: 0 the file is complete, 1 the program does not answer, has no black box, or the file cannot be written, \
    2 a wrong command line.";

const WHY_HELP: &str = "The first cause has lost the most packets. The command counts for the time of --time, and then collects \
    examples.\n\n\
    Exit status: 0 the causes are printed, 1 the program does not answer, 2 a wrong command line.";

const PLAN_HELP: &str = "With `--capacity`, the command needs no running program. The command replaces all ports of the config \
    by ports in memory, opens no device, and measures the costs of the stages on this machine. \
    Example: dataplane plan --capacity edge.toml --rate 100G --size 64\n\n\
    Exit status: 0 a prediction, or a list of operations, which may be empty, 1 the program does not answer or the \
    measurement failed, 2 a wrong command line or config.";

const APPLY_HELP: &str = "Exit status: 0 the program uses the new config, 1 the change failed or the program does not \
    answer, 2 a wrong command line or config.";

/// The running program that a command changes.
#[derive(Debug, Args)]
pub(super) struct Target {
    /// The process id of the program, needed if several are running
    #[arg(short, long, value_name = "PROCESS", conflicts_with = "socket")]
    pub(super) process: Option<u32>,
    /// The control socket of the program, as set by runtime.control in its config
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Print JSON
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Capture {
    /// Write a pcapng file, or `-` for standard output. Without a file, print a line for each packet
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    pub(super) write: Option<PathBuf>,
    /// The stage, output (STAGE.OUTPUT) or port. `stage:NAME` and `port:NAME` select a stage or port of the same name
    /// [default: all ports]
    #[arg(long, value_name = "NAME")]
    pub(super) at: Option<String>,
    /// Capture only packets that this filter selects, such as 'udp port 53'
    #[arg(long, value_name = "EXPR")]
    pub(super) filter: Option<String>,
    /// Capture only packets that stages drop
    #[arg(long)]
    pub(super) drops: bool,
    /// Stop after this many packets
    #[arg(short = 'n', long, value_name = "N")]
    pub(super) packets: Option<u64>,
    /// Write at most this many bytes of each packet to the file or to JSON
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(super) snaplen: Option<u32>,
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
pub(super) struct Trace {
    /// Trace only received packets that this filter selects, such as 'udp port 53'
    #[arg(long, value_name = "EXPR")]
    pub(super) filter: Option<String>,
    /// Stop after this many packets
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) packets: u64,
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
pub(super) struct BlackBox {
    /// Write a pcapng file, or `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    pub(super) write: PathBuf,
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
pub(super) struct Why {
    /// Count for this time, such as 10s
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "2s")]
    pub(super) time: Duration,
    /// Count from the start of the program until now
    #[arg(long, conflicts_with = "time")]
    pub(super) total: bool,
    /// Show this many packets of each cause
    #[arg(short = 'n', long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub(super) examples: u64,
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
pub(super) struct Plan {
    /// The new config, a TOML file, or `-` for standard input. With two files, list the operations from the first
    /// config to the second config, without a running program. With `--capacity`, no CONFIG means a pipeline with only a
    /// `tx` stage
    #[arg(value_name = "CONFIG", required_unless_present = "capacity", num_args = 1..=2)]
    pub(super) configs: Vec<PathBuf>,
    /// Predict the cores and the memory that the config needs for the rate of `--rate`
    #[arg(long, conflicts_with_all = ["process", "socket"])]
    pub(super) capacity: bool,
    #[command(flatten)]
    pub(super) target: Target,
    #[command(flatten)]
    pub(super) prediction: Prediction,
}

/// The options of `plan --capacity`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options for `--capacity`")]
pub(super) struct Prediction {
    /// The rate of received packets over all ports: bits per second on the Ethernet line (100G), or packets per second
    /// (10Mpps)
    #[arg(long, value_name = "RATE", requires = "capacity")]
    pub(super) rate: Option<Rate>,
    /// The size of the frames in bytes, without the frame check sequence [default: the frames of the config, else 64]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(42..=65_022), requires = "capacity")]
    pub(super) size: Option<u16>,
    /// A capture file that every port replays in the measurement, instead of generated frames
    #[arg(long, value_name = "PCAP", conflicts_with = "size", requires = "capacity")]
    pub(super) traffic: Option<PathBuf>,
    /// The time of each measurement
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s", requires = "capacity")]
    pub(super) measure: Duration,
    /// The number of measurements. The prediction uses the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    #[arg(requires = "capacity")]
    pub(super) rounds: u32,
    /// Override a value, such as runtime.burst=32 or port.wan.mtu=9000
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting, requires = "capacity")]
    pub(super) settings: Vec<(String, String)>,
}

#[derive(Debug, Args)]
pub(super) struct Apply {
    /// The new config, a TOML file, or `-` for standard input
    #[arg(value_name = "CONFIG")]
    pub(super) config: PathBuf,
    /// Revert the change after this time, such as 60s, unless `dataplane confirm` confirms the change
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(super) confirm: Option<Duration>,
    /// Refuse the change unless the program uses the config with this digest, which `dataplane plan` prints
    #[arg(long, value_name = "DIGEST")]
    pub(super) base: Option<String>,
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
pub(super) struct Change {
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
pub(super) struct Save {
    /// The file [default: the config file of the run]
    #[arg(value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Save an unconfirmed config too, and replace a config file that has changed since the program read it
    #[arg(long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) target: Target,
}

#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(subcommand)]
    pub(super) change: SetChange,
}

#[derive(Debug, Subcommand)]
pub(super) enum SetChange {
    /// Add or delete a route of the config
    #[command(subcommand)]
    Route(SetRoute),
    /// Add or delete a rule of the config, or set the action for packets that no rule matches
    #[command(subcommand)]
    Acl(SetAcl),
    /// Set parameters of a limit, such as `packets_per_second 1000 burst 100`
    Limit(SetLimit),
}

#[derive(Debug, Subcommand)]
pub(super) enum SetRoute {
    /// Add a route
    Add {
        /// The prefix, such as 10.0.0.0/8
        prefix: String,
        /// The path: `via ADDRESS dev PORT`, `dev PORT` or `drop`
        #[arg(value_name = "PATH", required = true, num_args = 1..)]
        path: Vec<String>,
        #[command(flatten)]
        options: SetOptions,
    },
    /// Delete the routes to a prefix, or only the routes with this path
    Del {
        /// The prefix, such as 10.0.0.0/8
        prefix: String,
        /// The path, as for `add`
        #[arg(value_name = "PATH", num_args = 0..)]
        path: Vec<String>,
        #[command(flatten)]
        options: SetOptions,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum SetAcl {
    /// Add a rule after the other rules of the config
    Add {
        /// The rule, such as `deny tcp dst 10.0.0.0/8 dst_port 22 name no_ssh`
        #[arg(value_name = "RULE", required = true, num_args = 1..)]
        rule: Vec<String>,
        /// Add the rule before the rule with this name or text
        #[arg(long, value_name = "RULE")]
        before: Option<String>,
        #[command(flatten)]
        options: SetOptions,
    },
    /// Delete a rule
    Del {
        /// The name or the text of the rule, as `dataplane show acl` prints it
        #[arg(value_name = "RULE", required = true, num_args = 1..)]
        rule: Vec<String>,
        #[command(flatten)]
        options: SetOptions,
    },
    /// Set the action for packets that no rule matches
    Default {
        /// The action
        #[arg(value_parser = ["permit", "deny"])]
        action: String,
        #[command(flatten)]
        options: SetOptions,
    },
}

#[derive(Debug, Args)]
pub(super) struct SetLimit {
    /// Pairs of a key of the stage and its value, such as `packets_per_second 1000 burst 100`
    #[arg(value_name = "KEY VALUE", required = true, num_args = 1..)]
    pub(super) values: Vec<String>,
    #[command(flatten)]
    pub(super) options: SetOptions,
}

#[derive(Debug, Args)]
pub(super) struct SetOptions {
    /// The name of the stage, needed if the config has several stages of the kind
    #[arg(long, value_name = "NAME")]
    pub(super) stage: Option<String>,
    /// Revert the change after this time, such as 60s, unless `dataplane confirm` confirms the change
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(super) confirm: Option<Duration>,
    #[command(flatten)]
    pub(super) target: Target,
}

impl SetRoute {
    pub(super) fn options(&self) -> &SetOptions {
        let (Self::Add { options, .. } | Self::Del { options, .. }) = self;
        options
    }
}

impl SetAcl {
    pub(super) fn options(&self) -> &SetOptions {
        let (Self::Add { options, .. } | Self::Del { options, .. } | Self::Default { options, .. }) = self;
        options
    }
}

#[derive(Debug, Args)]
pub(super) struct Log {
    #[command(subcommand)]
    pub(super) command: LogCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Show the level of log messages, or set another level
    Level(LogLevel),
}

#[derive(Debug, Args)]
pub(super) struct LogLevel {
    /// The new level. Without a level, show the current level
    #[arg(value_name = "LEVEL", value_parser = LEVELS)]
    pub(super) level: Option<String>,
    /// The process id of the program, needed if several are running
    #[arg(short, long, value_name = "PROCESS", conflicts_with = "socket")]
    pub(super) process: Option<u32>,
    /// The control socket of the program, as set by runtime.control in its config
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
    /// Print JSON
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Check {
    #[command(flatten)]
    pub(super) config: Config,
    /// Fail on problems of this host that would end the run at its start, such as a missing interface. Without this
    /// flag, these problems are warnings, because the config may be for another host
    #[arg(long)]
    pub(super) strict: bool,
    /// Print JSON: a list of mistakes, or the plan
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Graph {
    #[command(flatten)]
    pub(super) config: Config,
    /// The format of the drawing [default: from the extension of FILE, else svg]
    #[arg(long, value_name = "FORMAT")]
    pub(super) format: Option<GraphFormat>,
    /// Write the drawing to a file
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum GraphFormat {
    /// A picture for browsers
    Svg,
    /// Input for Graphviz
    Dot,
    /// A diagram for Markdown
    Mermaid,
}

#[derive(Debug, Args)]
pub(super) struct Explain {
    #[command(flatten)]
    pub(super) config: Config,
    /// The packets, a pcap or pcapng file, or `-` for standard input
    #[arg(value_name = "PCAP", required_unless_present = "black_box")]
    pub(super) capture: Option<PathBuf>,
    /// Replay the file of a black box, which also names the port of each packet
    #[arg(long, value_name = "FILE", conflicts_with_all = ["capture", "port"])]
    pub(super) black_box: Option<PathBuf>,
    /// The port that receives the packets [default: the first input]
    #[arg(long, value_name = "NAME")]
    pub(super) port: Option<String>,
    /// Stop after this many packets
    #[arg(long, value_name = "N")]
    pub(super) packets: Option<usize>,
    /// Print JSON: a list with one object per packet, or one object for a black box
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Stages {
    /// The kind of stage to describe
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
    /// A config, to show the placement of its workers
    #[arg(value_name = "CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Print JSON
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// Check only the devices and interfaces that this config uses [default: check all interfaces]
    #[arg(value_name = "CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Override a value, such as runtime.burst=32 or port.wan.mtu=9000
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = setting, requires = "config")]
    pub(super) settings: Vec<(String, String)>,
    /// Watch the host around a running program: remote memory, interrupts, frequency and steal of the cores of workers,
    /// waits of workers for their cores, link errors. Print the changes until Ctrl-C
    #[arg(long, conflicts_with = "config")]
    pub(super) watch: bool,
    /// The interval of `--watch`
    #[arg(long, value_name = "TIME", value_parser = interval, default_value = "1s", requires = "watch")]
    pub(super) every: Duration,
    /// Stop `--watch` after this many intervals
    #[arg(short = 'n', long, value_name = "N", requires = "watch")]
    pub(super) samples: Option<u64>,
    /// The process id of the program to watch, needed if several are running
    #[arg(short, long, value_name = "PROCESS", requires = "watch", conflicts_with = "socket")]
    pub(super) process: Option<u32>,
    /// The control socket of the program to watch, as set by runtime.control in its config
    #[arg(long, value_name = "PATH", requires = "watch")]
    pub(super) socket: Option<PathBuf>,
    /// Print JSON. With --watch, one object per interval and line
    #[arg(short, long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Schema {
    /// The subject of the schema
    #[arg(value_name = "WHAT", default_value = "config")]
    pub(super) what: SchemaSubject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum SchemaSubject {
    /// The config
    Config,
    /// The requests and answers of the control socket
    Control,
}

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(super) shell: Shell,
}

const COMPLETIONS_HELP: &str = "Example for the current bash: source <(dataplane completions bash)";

#[derive(Debug, Args)]
pub(super) struct Manual {
    /// The folder that the pages are written to
    #[arg(value_name = "FOLDER")]
    pub(super) output: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Reference {
    /// The folder that the pages are written to
    #[arg(short, long, value_name = "FOLDER", default_value = "docs")]
    pub(super) output: PathBuf,
}

fn interval(text: &str) -> Result<Duration, String> {
    match period(text)? {
        Duration::ZERO => Err("the interval must be longer than 0".to_owned()),
        time => Ok(time),
    }
}

fn period(text: &str) -> Result<Duration, String> {
    text.parse::<Period>().map(|period| period.0)
}

/// Parses `key=value`. A value that is not valid TOML becomes a string, because a shell removes quotes.
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
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn string_setting_needs_no_quotes() {
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

    #[test]
    fn durations_have_the_syntax_of_a_config() {
        assert_eq!(period("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(interval("250us"), Ok(Duration::from_micros(250)));
        assert!(period("10").unwrap_err().starts_with("`10` is not a duration"));
        assert!(interval("0s").is_err());
    }
}
