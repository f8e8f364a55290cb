//! A parameter of a stage that is not valid.

use std::fmt;

/// A problem with a parameter of a stage: what is wrong, where the parameter is, and how to fix the problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The parameter, such as `table[3].via`. Empty if the problem concerns the whole stage.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// How to fix the problem.
    pub help: Option<String>,
    /// Whether this host lacks a resource, such as memory. The parameter may then be valid on another host.
    pub is_host_problem: bool,
}

impl Problem {
    /// Creates a problem with a parameter.
    pub fn at(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into(), help: None, is_host_problem: false }
    }

    /// Creates a problem of this host, such as too little memory. `key` is the parameter that needs the resource.
    pub fn host_problem(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { is_host_problem: true, ..Self::at(key, message) }
    }

    /// Adds a help text that describes how to fix the problem.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.key.as_str() {
            "" => f.write_str(&self.message)?,
            key => write!(f, "{key}: {}", self.message)?,
        }
        match &self.help {
            Some(help) if self.message.contains('\n') => write!(f, "\nhelp: {help}"),
            Some(help) => write!(f, "; help: {help}"),
            None => Ok(()),
        }
    }
}
