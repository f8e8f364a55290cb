//! The command line that every app has: `run`, `stats`, `check`, `graph`, `explain`, `stages`, `devices`,
//! `topology`, `doctor`.
//!
//! An app is its own stages and one line; the built-in stages are there too:
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
//! What was asked for goes to standard output, alone; logs, progress and mistakes go to standard error.

mod args;
mod check;
mod console;
mod control;
mod devices;
mod doctor;
mod explain;
mod graph;
mod reference;
mod run;
mod stages;
mod stats;
mod topology;

use std::ffi::OsString;

use clap::Parser;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use self::args::{Cli, Command};
use self::console::Stop;
use crate::error::Result;
use crate::pipeline::{Registry, Stage};

/// A program: the built-in stages, those of its own, and the command line.
pub struct App {
    registry: Registry,
}

impl App {
    /// With the built-in stages.
    pub fn new() -> Self {
        Self { registry: crate::stages::registry() }
    }

    /// Adds a kind of stage: `name` is what `use` in a config says. A kind of the same name is replaced.
    #[must_use]
    pub fn stage<S: Stage + DeserializeOwned + 'static>(mut self, name: &str) -> Self {
        self.registry.add::<S>(name);
        self
    }

    /// Adds a kind of stage whose parameters are described, so that `stages` and `reference` show them.
    #[must_use]
    pub fn described_stage<S: Stage + DeserializeOwned + JsonSchema + 'static>(mut self, name: &str) -> Self {
        self.registry.add_described::<S>(name);
        self
    }

    /// Does what the command line of the process says. It returns when all went well; otherwise, when it has said why
    /// on standard error, it ends the process with status 1 (a failed run) or 2 (a wrong command line or config).
    ///
    /// # Errors
    /// None: the signature is that of a `main`.
    pub fn run(self) -> Result<()> {
        match self.status(std::env::args_os()) {
            0 => Ok(()),
            status => std::process::exit(status),
        }
    }

    /// The same for any command line, the name of the program first; returns the exit status.
    pub fn status<T: Into<OsString> + Clone>(&self, args: impl IntoIterator<Item = T>) -> i32 {
        let cli = match Cli::try_parse_from(args) {
            Ok(cli) => cli,
            Err(error) => {
                // Where it cannot even be said there is only the status.
                let _ = error.print();
                return error.exit_code();
            }
        };
        console::log(cli.verbose);
        match self.execute(cli.command) {
            Ok(()) | Err(Stop::Pipe) => 0,
            Err(Stop::Failed(message)) => console::fail(&message, 1),
            Err(Stop::Usage(message)) => console::fail(&message, 2),
        }
    }

    fn execute(&self, command: Command) -> Result<(), Stop> {
        match command {
            Command::Run(args) => run::run(&self.registry, &args),
            Command::Stats(args) => stats::stats(&args),
            Command::Check(args) => check::check(&self.registry, &args),
            Command::Graph(args) => graph::graph(&self.registry, &args),
            Command::Explain(args) => explain::explain(&self.registry, &args),
            Command::Stages(args) => stages::stages(&self.registry, &args),
            Command::Devices(args) => devices::devices(&args),
            Command::Doctor(args) => doctor::doctor(&self.registry, &args),
            Command::Topology(args) => topology::topology(&self.registry, &args),
            Command::Reference => console::print(&reference::markdown(&self.registry)),
        }
    }
}

impl Default for App {
    fn default() -> Self {
        Self::new()
    }
}
