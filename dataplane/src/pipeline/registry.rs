//! The stages that a config may use, by name.

use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

use crate::pipeline::Stage;

type Make = Box<dyn Fn(toml::de::Deserializer<'_>) -> Result<Box<dyn Stage>, toml::de::Error> + Send + Sync>;

/// A kind of stage.
pub struct Kind {
    /// What a config's `use` says.
    pub name: String,
    /// What it does: the first sentence of its documentation.
    pub summary: String,
    /// Its outputs beside the next stage, with their meanings.
    pub outputs: &'static [(&'static str, &'static str)],
    /// Its own reasons to drop a packet, with their meanings.
    pub reasons: &'static [(&'static str, &'static str)],
    /// Whether no packet goes on from it.
    pub terminal: bool,
    /// Whether it may be named as the `drops` of other stages.
    pub observes_drops: bool,
    /// Its parameters, where they are described.
    pub schema: Option<Schema>,
    make: Make,
}

impl Kind {
    /// Makes a stage from its parameters.
    ///
    /// # Errors
    /// A parameter that is unknown, missing, or of another type, with its place.
    pub fn make(&self, parameters: toml::de::Deserializer<'_>) -> Result<Box<dyn Stage>, toml::de::Error> {
        (self.make)(parameters)
    }
}

/// The stages that a config may use.
#[derive(Default)]
pub struct Registry {
    kinds: BTreeMap<String, Kind>,
}

impl Registry {
    /// With no stage.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kind of stage, or replaces that of the same name.
    pub fn add<S: Stage + DeserializeOwned + 'static>(&mut self, name: &str) -> &mut Self {
        self.insert::<S>(name, String::new(), None)
    }

    /// Adds a kind of stage whose parameters are described: `dataplane stages` and the config reference show them.
    pub fn add_described<S: Stage + DeserializeOwned + JsonSchema + 'static>(&mut self, name: &str) -> &mut Self {
        let schema = SchemaGenerator::default().into_root_schema_for::<S>();
        let text = schema.get("description").and_then(|text| text.as_str()).unwrap_or_default();
        let first = text.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        self.insert::<S>(name, first, Some(schema))
    }

    fn insert<S: Stage + DeserializeOwned + 'static>(
        &mut self,
        name: &str,
        summary: String,
        schema: Option<Schema>,
    ) -> &mut Self {
        let kind = Kind {
            name: name.to_owned(),
            summary,
            outputs: S::outputs(),
            reasons: S::reasons(),
            terminal: S::is_terminal(),
            observes_drops: S::observes_drops(),
            schema,
            make: Box::new(|parameters| Ok(Box::new(S::deserialize(parameters)?))),
        };
        self.kinds.insert(name.to_owned(), kind);
        self
    }

    /// The kind of that name.
    pub fn get(&self, name: &str) -> Option<&Kind> {
        self.kinds.get(name)
    }

    /// All kinds, by name.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.kinds.values()
    }
}
