//! Builds configs for tests.

use std::fmt::{Display, Formatter, Result, Write};

/// The text of a config with software ports. Methods add the parts, and `Display` prints the config as TOML.
///
/// By default, the config has one worker. The config never uses huge pages. The pipeline reads from the first port,
/// unless [`Config::input`] sets other ports. Values may use single quotes, which need no escapes in Rust strings:
/// `kind = 'generator'`.
#[derive(Clone, Debug)]
pub struct Config {
    workers: usize,
    runtime: String,
    ports: String,
    input: Vec<String>,
    stages: String,
}

impl Config {
    /// Returns a config that has no ports and no stages yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a config without ports is not valid")]
    pub fn new() -> Self {
        Self { workers: 1, runtime: String::new(), ports: String::new(), input: Vec::new(), stages: String::new() }
    }

    /// Sets the number of workers.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Adds lines to the table `[runtime]`.
    #[must_use]
    pub fn runtime(mut self, lines: &str) -> Self {
        writeln!(self.runtime, "{lines}").unwrap();
        self
    }

    /// Adds a port on a software device. `link` contains the keys of its link.
    #[must_use]
    pub fn port(self, name: &str, link: &str) -> Self {
        self.port_with(name, link, "")
    }

    /// Adds a port. `link` contains the keys of its link, and `lines` contains other lines of the port.
    #[must_use]
    pub fn port_with(mut self, name: &str, link: &str, lines: &str) -> Self {
        writeln!(self.ports, "[[port]]\nname = '{name}'\ndevice = 'soft'\nlink = {{ {link} }}\n{lines}").unwrap();
        if self.input.is_empty() {
            self.input.push(name.to_owned());
        }
        self
    }

    /// Sets the ports that the pipeline reads from.
    #[must_use]
    pub fn input(mut self, ports: &[&str]) -> Self {
        self.input = ports.iter().map(|&port| port.to_owned()).collect();
        self
    }

    /// Adds a stage of this kind. `lines` contains the other lines of the stage and may be empty.
    #[must_use]
    pub fn stage(mut self, kind: &str, lines: &str) -> Self {
        writeln!(self.stages, "[[pipeline.stage]]\nuse = '{kind}'\n{lines}").unwrap();
        self
    }

    /// Adds stages that are given as TOML text.
    #[must_use]
    pub fn stages(mut self, toml: &str) -> Self {
        writeln!(self.stages, "{toml}").unwrap();
        self
    }
}

impl Display for Config {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Self { workers, runtime, ports, input, stages } = self;
        writeln!(f, "[runtime]\nworkers = {workers}\nhugepages = 'none'\n{runtime}{ports}")?;
        write!(f, "[pipeline]\ninput = {input:?}\n{stages}")
    }
}
