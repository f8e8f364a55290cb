//! The calibration of the tester that the option `--calibration` names.

use std::path::Path;

use dataplane::{Error, Result};

use crate::report::{CalibrationReport, Environment};
use crate::stored::read_text;
use crate::stream::Stream;

/// The maximum size of a calibration file, in bytes.
const MAX_SIZE: u64 = 64 << 20;

/// Reads the result of `bench calibrate`.
pub(super) fn read(path: &Path) -> Result<CalibrationReport> {
    let text = read_text(path, MAX_SIZE)?;
    serde_json::from_str(&text).map_err(|error| {
        let path = path.display();
        Error::Config(format!(
            "{path} is not a calibration: {error}; help: create a calibration with dataplane bench calibrate --json > calibration.json"
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

/// Returns the frame sizes of a calibration, sorted.
fn sizes_of(own: &CalibrationReport) -> Vec<String> {
    unique(own.max.streams.iter().map(|stream| size(stream.keys.get("size"), stream.mean_size)))
}

fn unique(texts: impl Iterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<String> = texts.collect();
    // Numbers come first, in numeric order. Other texts are lists of sizes, or the name of a mix.
    texts.sort_by_cached_key(|text| (text.parse::<u64>().map_or((1, 0), |number| (0, number)), text.clone()));
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
    let calibrated_sizes = sizes_of(own);
    let sizes = unique(sizes.iter().cloned());
    let missing = only_in(&sizes, &calibrated_sizes);
    let host = &own.max.environment;
    let pairs = [
        ("ports", calibrated_ports.join(", "), these_ports.join(", ")),
        ("number of cores", host.cores.to_string(), environment.cores.to_string()),
        ("processor", host.processor.clone(), environment.processor.clone()),
    ];
    let mut differences: Vec<String> = pairs
        .into_iter()
        .filter(|(_, calibrated, this)| calibrated != this)
        .map(|(what, calibrated, this)| format!("{what}: `{calibrated}` in the calibration, `{this}` in this run"))
        .collect();
    for (which, sizes) in [("missing in", &missing), ("only in", &only_in(&calibrated_sizes, &sizes))] {
        if !sizes.is_empty() {
            differences.push(format!("frame sizes (without the FCS) {which} the calibration: {}", sizes.join(", ")));
        }
    }
    if differences.is_empty() {
        return Ok(());
    }
    // A test of several frame sizes has the same streams for all sizes, but the calibration needs a stream for each size.
    let streams = match missing.is_empty() || sizes.iter().any(|size| size.parse::<u16>().is_err()) {
        true => "the same streams".to_owned(),
        false => sizes.iter().map(|size| format!("--stream 'size = {size}'")).collect::<Vec<_>>().join(" "),
    };
    let (path, differences) = (path.display(), differences.join("; "));
    Err(Error::Config(format!(
        "the calibration {path} does not fit this run: {differences}; help: run dataplane bench calibrate with the same \
         ports and {streams}, or remove --calibration"
    )))
}

/// Returns the texts of `a` that `b` does not have.
fn only_in<'a>(a: &'a [String], b: &[String]) -> Vec<&'a str> {
    a.iter().filter(|text| !b.contains(text)).map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Calibration, RateReport, Times};

    #[test]
    fn missing_frame_sizes_are_listed_with_the_command_that_calibrates_all() {
        let mut max: RateReport = serde_json::from_str(include_str!("../../tests/rate.json")).unwrap();
        max.streams[0].keys.insert("size".to_owned(), "60".to_owned());
        let mut environment = max.environment.clone();
        let port = |port: &crate::report::PortReport| crate::report::PortEnvironment {
            name: port.name.clone(),
            device: port.device.clone(),
            ..Default::default()
        };
        environment.ports = max.ports.iter().map(port).collect();
        let calibration = Calibration {
            max_pps: 1.0,
            rate_error: 0.0,
            loss_ratio: 0.0,
            latency_ns: Times::default(),
            pacing_ns: Times::default(),
        };
        let own = CalibrationReport { calibration, half: max.clone(), max };
        let check = |sizes: &[&str]| {
            let sizes: Vec<String> = sizes.iter().map(|size| (*size).to_owned()).collect();
            check(Path::new("own.json"), &own, &environment, &sizes).map_err(|error| error.to_string())
        };
        check(&["60"]).unwrap();
        let why = check(&["9", "60", "10"]).unwrap_err();
        assert!(why.contains("frame sizes (without the FCS) missing in the calibration: 9, 10; help: "), "{why}");
        assert!(why.contains("--stream 'size = 9' --stream 'size = 10' --stream 'size = 60'"), "{why}");
        let why = check(&[]).unwrap_err();
        assert!(why.contains("frame sizes (without the FCS) only in the calibration: 60; help: "), "{why}");
        assert!(why.contains("the same ports and the same streams"), "{why}");
    }
}
