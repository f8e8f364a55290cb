//! A whole config on a bench.

use std::path::Path;

use crate::config::{Diagnostics, Source};
use crate::error::{Error, Result};
use crate::pipeline::Registry;
use crate::runtime::{Trace, Tracer, assemble_offline};
use crate::stages;
use crate::units::Nanos;

/// The pipeline of a config: give it packets on a port, look at what becomes of them. Its devices are not opened.
///
/// ```
/// use dataplane::testing::{End, Pipeline, frame};
///
/// let mut pipeline = Pipeline::from_toml(r#"
///     [[port]]
///     name = "wan"
///     device = "soft"
///     link = { kind = "generator" }
///
///     [pipeline]
///     input = ["wan"]
///
///     [[pipeline.stage]]
///     use = "parse"
///
///     [[pipeline.stage]]
///     use = "tx"
///     port = "wan"
/// "#)?;
/// let packet = frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(1, 2).build();
/// let traces = pipeline.run("wan", &[packet])?;
/// assert_eq!(traces[0].end, End::Sent("wan".to_owned()));
/// assert_eq!(traces[0].path(), ["parse", "tx"]);
/// # Ok::<(), dataplane::Error>(())
/// ```
pub struct Pipeline {
    tracer: Tracer,
    now: Nanos,
}

impl Pipeline {
    /// A config of built-in stages.
    ///
    /// # Errors
    /// [`Error::Config`] with all mistakes.
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::new(&Source::new("pipeline.toml", text, &[]), &stages::registry())
    }

    /// A config file of built-in stages.
    ///
    /// # Errors
    /// The file cannot be read; [`Error::Config`] with all mistakes.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::new(&Source::read(path, &[])?, &stages::registry())
    }

    /// A config of any stages: [`stages::registry`] has the built-in ones, to add others to.
    ///
    /// # Errors
    /// [`Error::Config`] with all mistakes.
    pub fn new(source: &Source, registry: &Registry) -> Result<Self> {
        let mut diagnostics = Diagnostics::new(source);
        let assembly = assemble_offline(source, registry, &mut diagnostics);
        diagnostics.into_result()?;
        let assembly = assembly.ok_or_else(|| Error::Config("the config cannot be run".to_owned()))?;
        Ok(Self { tracer: Tracer::new(assembly)?, now: Nanos(0) })
    }

    /// Hands over packets on the port of this name, one after the other. Returns what became of each, with a copy
    /// behind the packet that it was made of.
    ///
    /// # Errors
    /// There is no such port.
    pub fn run<T: AsRef<[u8]>>(&mut self, port: &str, packets: &[T]) -> Result<Vec<Trace>> {
        let number = self.tracer.port(port);
        let number = number.ok_or_else(|| Error::Config(format!("there is no port `{port}`")))?;
        let traces = packets.iter().flat_map(|packet| self.tracer.trace(number, self.now, packet.as_ref()));
        Ok(traces.collect())
    }

    /// Moves the clock that packets are stamped with, in nanoseconds.
    pub fn advance(&mut self, nanos: u64) {
        self.now.0 += nanos;
    }

    /// A counter that a stage keeps itself, such as the hits of a rule; `None`: it has none of this name.
    pub fn counter(&mut self, stage: &str, name: &str) -> Option<u64> {
        self.tracer.counters(stage).remove(name)
    }
}
