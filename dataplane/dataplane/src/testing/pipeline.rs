//! A test harness for a whole config.

use std::path::Path;

use crate::config::{Diagnostics, Source};
use crate::runtime::{Trace, Tracer, assemble_offline};
use dataplane_core::error::{Error, Result};
use dataplane_core::pipeline::Registry;
use dataplane_core::units::Nanos;
use dataplane_stages as stages;

/// The pipeline of a config, without the devices of its ports. [`Pipeline::run`] passes packets through the stages and
/// returns their traces.
///
/// ```
/// use dataplane::testing::{PathEnd, Pipeline, frame};
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
/// assert_eq!(traces[0].end, PathEnd::Sent("wan".to_owned()));
/// assert_eq!(traces[0].path(), ["parse", "tx"]);
/// # Ok::<(), dataplane::Error>(())
/// ```
pub struct Pipeline {
    tracer: Tracer,
    now: Nanos,
}

impl Pipeline {
    /// Creates the pipeline of a config with built-in stages.
    ///
    /// # Errors
    /// Returns [`Error::Config`] with all mistakes.
    pub fn from_toml(text: &str) -> Result<Self> {
        Self::new(&Source::new("pipeline.toml", text, &[]), &stages::registry())
    }

    /// Creates the pipeline of a config file with built-in stages.
    ///
    /// # Errors
    /// Returns [`Error::Config`] with all mistakes.
    pub fn from_file(path: &Path) -> Result<Self> {
        let source = Source::read(path, &[]).map_err(Diagnostics::into_error)?;
        Self::new(&source, &stages::registry())
    }

    /// Creates the pipeline of a config. The config may use the kinds of stages in `registry`. To use your own stages,
    /// add them to the registry that [`stages::registry`] returns.
    ///
    /// # Errors
    /// Returns [`Error::Config`] with all mistakes.
    pub fn new(source: &Source, registry: &Registry) -> Result<Self> {
        let mut diagnostics = Diagnostics::new(source);
        let assembly = assemble_offline(source, registry, &mut diagnostics)?;
        diagnostics.into_result()?;
        let assembly = assembly.ok_or_else(|| Error::Config("the config cannot be run".to_owned()))?;
        Ok(Self { tracer: Tracer::new(assembly)?, now: Nanos(0) })
    }

    /// Runs packets through the pipeline, one after the other, as if the port with this name had received them. Returns
    /// the trace of each packet. The trace of a copy follows the trace of the copied packet.
    ///
    /// # Errors
    /// Returns an error if there is no such port.
    pub fn run<T: AsRef<[u8]>>(&mut self, port: &str, packets: &[T]) -> Result<Vec<Trace>> {
        let number = self.tracer.port(port);
        let number = number.ok_or_else(|| Error::Config(format!("there is no port `{port}`")))?;
        let traces = packets.iter().flat_map(|packet| self.tracer.trace(number, self.now, packet.as_ref()));
        Ok(traces.collect())
    }

    /// Advances the virtual clock by `nanos` nanoseconds. The packets of the next [`Pipeline::run`] get the new time as
    /// their timestamp.
    pub fn advance(&mut self, nanos: u64) {
        self.now.0 += nanos;
    }

    /// Returns a counter of a stage, such as the hits of a rule, or `None` if the stage has no counter of this name.
    pub fn counter(&mut self, stage: &str, name: &str) -> Option<u64> {
        self.tracer.counters(stage).remove(name)
    }
}
