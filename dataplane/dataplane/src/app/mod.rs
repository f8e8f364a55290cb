//! The command line that every app has: `run`, `stats`, `top`, `show`, `capture`, `trace`, `black-box`, `why`, `log`, `plan`,
//! `apply`, `confirm`, `rollback`, `history`, `reload`, `set`, `save`, `upgrade`, `check`, `graph`, `explain`, `stages`,
//! `devices`, `topology`, `doctor`, `schema`, `completions`, and the hidden commands `manual` and `reference`.
//!
//! An app consists of its own stages and a `main` of one line. Every app includes the built-in stages:
//!
//! ```no_run
//! use dataplane::prelude::*;
//!
//! /// Drops every packet with an odd number of bytes.
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct EvenOnly {}
//!
//! impl Stage for EvenOnly {
//!     fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
//!         batch.iter_mut().filter(|packet| packet.len() % 2 == 1).for_each(|mut packet| packet.drop(Reason::BadLength));
//!     }
//! }
//!
//! fn main() -> dataplane::Result<()> {
//!     App::new().stage::<EvenOnly>("even_only").run()
//! }
//! ```
//!
//! Results go to standard output. Logs, progress and the mistakes of a config go to standard error.

mod args;
mod black_box;
mod capacity;
mod capture;
mod change;
mod check;
mod console;
mod control;
mod devices;
mod doctor;
mod explain;
mod graph;
mod log;
mod log_level;
mod logs;
mod manual;
mod metrics;
mod privileges;
mod process;
mod reference;
mod run;
mod schema;
mod service;
mod set;
mod show;
mod stages;
mod stats;
mod take_over;
mod top;
mod topology;
mod trace;
mod upgrade;
mod why;

#[cfg(any(test, fuzzing))]
pub(crate) use control::fuzz as fuzz_control;
#[cfg(any(test, fuzzing))]
pub(crate) use metrics::fuzz as fuzz_metrics;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use clap::{ArgMatches, CommandFactory, FromArgMatches};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use self::args::{Cli, Command};
use self::console::CommandError;
use dataplane_core::error::Result;
use dataplane_core::pipeline::{Registry, Stage};

/// A program with the built-in stages, its own stages, and the command line.
pub struct App {
    registry: Arc<Registry>,
    commands: Vec<AppCommand>,
}

/// A command that the app adds to the command line.
struct AppCommand {
    command: clap::Command,
    run: fn(&ArgMatches) -> Result<()>,
}

impl App {
    /// Creates an app with the built-in stages.
    pub fn new() -> Self {
        Self { registry: Arc::new(dataplane_stages::registry()), commands: Vec::new() }
    }

    /// Adds a kind of stage. `name` is the value of `use` in a config. An existing kind with the same name is replaced.
    #[must_use]
    pub fn stage<S: Stage + DeserializeOwned + 'static>(mut self, name: &str) -> Self {
        self.registry().add::<S>(name);
        self
    }

    /// Adds a kind of stage with a schema, so that the commands `stages` and `schema` describe its parameters.
    #[must_use]
    pub fn described_stage<S: Stage + DeserializeOwned + JsonSchema + 'static>(mut self, name: &str) -> Self {
        self.registry().add_described::<S>(name);
        self
    }

    /// Adds a command to the command line. `run` gets the arguments of the command. If `run` returns
    /// [`Error::Config`](crate::Error::Config), the process ends with status 2, and after another error with status 1.
    #[must_use]
    pub fn command(mut self, command: clap::Command, run: fn(&ArgMatches) -> Result<()>) -> Self {
        self.commands.push(AppCommand { command, run });
        self
    }

    fn registry(&mut self) -> &mut Registry {
        // Only a running command shares the registry.
        Arc::get_mut(&mut self.registry).expect("no command runs while stages are added")
    }

    /// Runs the command line of the process. Returns on success. Otherwise, prints the error to standard error and ends
    /// the process with status 1 (a failed run) or 2 (a wrong command line or config).
    ///
    /// # Errors
    /// Returns no errors. The signature fits `main`.
    pub fn run(self) -> Result<()> {
        match self.exit_status_of(std::env::args_os()) {
            0 => Ok(()),
            status => std::process::exit(status),
        }
    }

    /// Runs the command line `args`, which starts with the name of the program. Returns the exit status.
    pub fn exit_status_of<T: Into<OsString> + Clone>(&self, args: impl IntoIterator<Item = T>) -> i32 {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let name = args.first().and_then(|path| Path::new(path).file_name()).unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        let commands = self.commands.iter().map(|added| added.command.clone());
        let definition = Cli::command().subcommands(commands);
        let cli = definition.clone().try_get_matches_from(args).and_then(|matches| {
            let added = matches.subcommand().and_then(|(name, arguments)| {
                let added = self.commands.iter().find(|added| added.command.get_name() == name)?;
                Some((added.run, arguments))
            });
            match added {
                // The derived parser knows only the commands of every app.
                Some((run, arguments)) => Ok(Parsed::Added(run, arguments.clone(), matches.clone())),
                None => Cli::from_arg_matches(&matches).map(Parsed::Cli),
            }
        });
        let result = match cli {
            Ok(Parsed::Cli(cli)) => {
                logs::start(cli.verbose, cli.log_format, matches!(cli.command, Command::Run(_)));
                self.execute(cli.command, &name, definition)
            }
            Ok(Parsed::Added(run, arguments, all)) => {
                let format = all.get_one("log_format").copied().unwrap_or_default();
                logs::start(all.get_count("verbose"), format, false);
                run(&arguments).map_err(CommandError::from)
            }
            Err(error) => {
                // If printing fails too, only the exit status is left.
                let _ = error.print();
                return error.exit_code();
            }
        };
        match result {
            Ok(()) | Err(CommandError::Pipe) => 0,
            Err(CommandError::Failed(message)) => logs::fail(&message, 1),
            Err(CommandError::Usage(message)) => logs::fail(&message, 2),
        }
    }

    /// Executes a command. `name` is the name of the program, and `definition` is the definition of its command line.
    fn execute(&self, command: Command, name: &str, definition: clap::Command) -> Result<(), CommandError> {
        match command {
            Command::Run(args) => run::run(&self.registry, &args),
            Command::Stats(args) => stats::stats(&args),
            Command::Top(args) => top::top(&args),
            Command::Show(args) => show::show(&args),
            Command::Capture(args) => capture::capture(&args),
            Command::Trace(args) => trace::trace(&args),
            Command::BlackBox(args) => black_box::black_box(&args),
            Command::Why(args) => why::why(&self.registry, &args),
            Command::Log(args) => log::log(&args),
            Command::Plan(args) if args.capacity => capacity::capacity(&self.registry, &args),
            Command::Plan(args) => change::plan(&self.registry, &args),
            Command::Apply(args) => change::apply(&args),
            Command::Confirm(args) => change::confirm(&args),
            Command::Rollback(args) => change::rollback(&args),
            Command::History(args) => change::history(&args),
            Command::Reload(args) => change::reload(&args),
            Command::Set(args) => set::set(&args),
            Command::Save(args) => change::save(&args),
            Command::Upgrade(args) => upgrade::upgrade(&args),
            Command::Check(args) => check::check(&self.registry, &args),
            Command::Graph(args) => graph::graph(&self.registry, &args),
            Command::Explain(args) => explain::explain(&self.registry, &args),
            Command::Stages(args) => stages::stages(&self.registry, &args),
            Command::Devices(args) => devices::devices(&args),
            Command::Doctor(args) => doctor::doctor(&self.registry, &args),
            Command::Topology(args) => topology::topology(&self.registry, &args),
            Command::Schema(args) => schema::schema(&self.registry, &args),
            Command::Completions(args) => manual::completions(definition, name, &args),
            Command::Manual(args) => manual::manual(definition, name, &args),
            Command::Reference(args) => reference::reference(&self.registry, &args),
        }
    }
}

/// A parsed command line.
enum Parsed {
    /// A command that every app has.
    Cli(Cli),
    /// A command that the app added, with its arguments and the arguments of the whole command line.
    Added(fn(&ArgMatches) -> Result<()>, ArgMatches, ArgMatches),
}

impl Default for App {
    fn default() -> Self {
        Self::new()
    }
}
