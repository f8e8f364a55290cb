//! `schema`: prints the JSON schema of a config or of the control protocol.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::args::{self, SchemaSubject};
use super::console::{self, CommandError};
use crate::config;
use dataplane_control::{Hello, Request, Response};
use dataplane_core::pipeline::Registry;
use dataplane_core::telemetry::Live;

pub(super) fn schema(registry: &Registry, args: &args::Schema) -> Result<(), CommandError> {
    match args.what {
        SchemaSubject::Config => console::print_json(&config::schema(registry.kinds())),
        SchemaSubject::Control => console::print_json(&control()),
    }
}

/// Returns the schema of the control protocol. The property `results` has the schema of the result of each request.
fn control() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let (request, response) = (generator.subschema_for::<Request>(), generator.subschema_for::<Response>());
    let results = json!({
        "hello": generator.subschema_for::<Hello>(),
        "stats": generator.subschema_for::<Live>(),
    });
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The control protocol of Dataplane: one JSON object per line",
        "type": "object",
        "properties": {
            "request": request,
            "response": response,
            "results": { "type": "object", "properties": results },
        },
        "$defs": generator.take_definitions(true),
    })
}
