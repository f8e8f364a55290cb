//! The calibration of the tester that the option `--calibration` names.

use std::path::Path;

use dataplane::{Error, Result};

use crate::report::{CalibrationReport, Environment};
use crate::stream::Stream;

/// Reads the result of `bench calibrate`.
pub(super) fn read(path: &Path) -> Result<CalibrationReport> {
    let text = std::fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|error| {
        let path = path.display();
        Error::Config(format!(
            "{path} is not a calibration: {error}; help: create it with dataplane bench calibrate --json > {path}"
        ))
    })
}

/// Returns the frame sizes of streams, sorted.
pub(super) fn sizes(streams: &[Stream]) -> Vec<String> {
    unique(streams.iter().map(|stream| size(stream.keys().get("size"), stream.mean_size)))
}

/// Returns the size of the frames of a stream: its key `size`, or the mean size of the frames of a capture.
fn size(key: Option<&String>, mean: f64) -> String {
    key.cloned().unwrap_or_else(|| format!("{mean:.1} on average"))
}

fn unique(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<String> = texts.collect();
    texts.sort();
    texts.dedup();
    texts
}

/// Checks that a calibration is from this host, these ports and these frame sizes.
///
/// # Errors
/// Returns [`Error::Config`] with all differences.
pub(super) fn check(path: &Path, own: &CalibrationReport, environment: &Environment, sizes: &[String]) -> Result<()> {
    let ports = |(name, device): (&String, &String)| format!("{name} ({device})");
    let calibrated_ports: Vec<_> = own.max.ports.iter().map(|port| ports((&port.name, &port.device))).collect();
    let these_ports: Vec<_> = environment.ports.iter().map(|port| ports((&port.name, &port.device))).collect();
    let calibrated_sizes = unique(own.max.streams.iter().map(|stream| size(stream.keys.get("size"), stream.mean_size)));
    let host = &own.max.environment;
    let pairs = [
        ("ports", calibrated_ports.join(", "), these_ports.join(", ")),
        ("frame sizes", calibrated_sizes.join("; "), unique(sizes.iter().cloned()).join("; ")),
        ("number of cores", host.cores.to_string(), environment.cores.to_string()),
        ("processor", host.processor.clone(), environment.processor.clone()),
    ];
    let differences: Vec<String> = pairs
        .into_iter()
        .filter(|(_, calibrated, this)| calibrated != this)
        .map(|(what, calibrated, this)| format!("{what}: `{calibrated}` in the calibration, `{this}` in this run"))
        .collect();
    if differences.is_empty() {
        return Ok(());
    }
    let (path, differences) = (path.display(), differences.join("; "));
    Err(Error::Config(format!(
        "the calibration {path} does not fit this run: {differences}; help: run dataplane bench calibrate with the same \
         ports and streams, or remove --calibration"
    )))
}
