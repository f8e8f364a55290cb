//! Invalid connection parameters, collected for one error message.

use std::fmt::Display;

use crate::error::Error;

/// Invalid parameters, each with its key, value, reason and remedy.
pub(super) struct Mistakes<'d> {
    device: &'d str,
    found: Vec<String>,
}

impl<'d> Mistakes<'d> {
    /// Creates an empty list for parameters of the device with this name.
    pub(super) fn new(device: &'d str) -> Self {
        Self { device, found: Vec::new() }
    }

    /// Returns whether no parameter is invalid.
    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Adds the parameter `key`.
    pub(super) fn add(&mut self, key: &str, value: impl Display, why: impl Display, remedy: impl Display) {
        self.found.push(format!("`{key}` = {value} on `{}`: {why}; help: {remedy}", self.device));
    }

    /// Adds the parameter `key` if its value is above `most`.
    pub(super) fn most(&mut self, key: &str, value: impl Into<u64>, most: impl Into<u64>) {
        let (value, most) = (value.into(), most.into());
        if value > most {
            let remedy = if most == 0 { "use 0".to_owned() } else { format!("use a value from 0 to {most}") };
            self.add(key, value, format_args!("the maximum is {most}"), remedy);
        }
    }

    /// Adds the parameter `key` with the number of a port that the device does not have. The device has `ports` ports.
    pub(super) fn missing_port(&mut self, key: &str, number: u8, ports: u8) {
        if ports == 1 {
            self.add(key, number, "the device has only port 1", "use port 1");
        } else {
            let why = format!("the device has the ports 1 to {ports}");
            self.add(key, number, why, format_args!("use a port from 1 to {ports}"));
        }
    }

    /// Returns an error with all invalid parameters, one per line.
    pub(super) fn into_error(self) -> Error {
        Error::Peer(self.found.join("\n"))
    }
}
