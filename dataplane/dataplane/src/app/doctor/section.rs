//! The result of the checks of one part of the host.

use serde::Serialize;

use dataplane_soft::doctor::Finding;

/// One checked part of the host, with its problems and other properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Section {
    /// The part of the host, such as ``port `wan`, device `mlx5_0` ``.
    pub(super) subject: String,
    /// The path of the key in the config that the findings are about.
    #[serde(skip)]
    pub(super) key: String,
    pub(super) findings: Vec<Finding>,
    /// Properties to print that are not problems. Each string is one line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) facts: Vec<String>,
}

impl Section {
    pub(super) fn new(subject: impl Into<String>, key: impl Into<String>, findings: Vec<Finding>) -> Self {
        Self { subject: subject.into(), key: key.into(), findings, facts: Vec::new() }
    }
}
