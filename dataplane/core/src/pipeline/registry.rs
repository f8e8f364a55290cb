//! The registry of the stages that a config can use, by name.

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::pipeline::{Stage, StageInfo};

type Constructor = Box<dyn Fn(toml::de::Deserializer<'_>) -> Result<Box<dyn Stage>, toml::de::Error> + Send + Sync>;

/// A kind of stage.
pub struct StageKind {
    /// The name that a config gives in `use`.
    pub name: String,
    /// A short description: the first paragraph of the stage's documentation.
    pub summary: String,
    /// The outputs and drop reasons.
    pub info: StageInfo,
    /// The schema of the parameters, from [`parameter_schema`]. `None` if the kind was added without a schema.
    pub schema: Option<Schema>,
    make: Constructor,
}

impl StageKind {
    /// Builds a stage from its parameters in the config.
    ///
    /// # Errors
    /// Fails if a parameter is unknown, missing, or of a wrong type. The error contains the position of the parameter.
    pub fn make(&self, parameters: toml::de::Deserializer<'_>) -> Result<Box<dyn Stage>, toml::de::Error> {
        (self.make)(parameters)
    }
}

/// Returns the JSON schema of a type that a config contains. The schema uses draft 7, because TOML editors support this
/// draft. The schema has no references, so it can be a part of another schema.
pub fn parameter_schema<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    settings.with_transform(remove_null).into_generator().into_root_schema_for::<T>()
}

/// Returns the first paragraph of a schema's description, on one line.
pub fn summary(schema: &Schema) -> String {
    let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split("\n\n").next().unwrap_or_default().replace('\n', " ")
}

/// Removes `null` from a schema. TOML has no `null`: an optional key without a value is absent.
fn remove_null(schema: &mut Schema) {
    let is_null = |value: &Value| value.is_null() || value == "null" || value["type"] == "null";
    for key in ["type", "enum", "anyOf"] {
        let Some(choices) = schema.get_mut(key).and_then(Value::as_array_mut) else { continue };
        choices.retain(|choice| !is_null(choice));
        let (only, is_nested) = (choices.len() == 1 && key != "enum", key == "anyOf");
        if let Some(choice) = choices.pop_if(|_| only) {
            schema.remove(key);
            match choice {
                Value::Object(entries) if is_nested => {
                    for (key, value) in entries {
                        schema.get(&key).is_none().then(|| schema.insert(key, value));
                    }
                }
                choice => _ = schema.insert(key.to_owned(), choice),
            }
        }
    }
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    transform_subschemas(&mut remove_null, schema);
}

/// The kinds of stages that a config can use.
#[derive(Default)]
pub struct Registry {
    kinds: BTreeMap<String, StageKind>,
}

impl Registry {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kind of stage. Replaces an existing kind with the same name.
    pub fn add<S: Stage + DeserializeOwned + 'static>(&mut self, name: &str) -> &mut Self {
        self.insert::<S>(name, String::new(), None)
    }

    /// Adds a kind of stage with a schema of its parameters, which `dataplane stages` and the config reference show.
    pub fn add_described<S: Stage + DeserializeOwned + JsonSchema + 'static>(&mut self, name: &str) -> &mut Self {
        let schema = parameter_schema::<S>();
        self.insert::<S>(name, summary(&schema), Some(schema))
    }

    fn insert<S: Stage + DeserializeOwned + 'static>(
        &mut self,
        name: &str,
        summary: String,
        schema: Option<Schema>,
    ) -> &mut Self {
        let kind = StageKind {
            name: name.to_owned(),
            summary,
            info: S::info(),
            schema,
            make: Box::new(|parameters| Ok(Box::new(S::deserialize(parameters)?))),
        };
        self.kinds.insert(name.to_owned(), kind);
        self
    }

    /// Returns the kind with this name.
    pub fn get(&self, name: &str) -> Option<&StageKind> {
        self.kinds.get(name)
    }

    /// Returns all kinds, ordered by name.
    pub fn kinds(&self) -> impl Iterator<Item = &StageKind> {
        self.kinds.values()
    }
}
