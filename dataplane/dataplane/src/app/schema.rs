//! `schema`: prints the JSON schema of a config or of the control protocol.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::args::{self, SchemaSubject};
use super::console::{self, CommandError};
use crate::config;
use dataplane_control::change::{Applied, ChangePlan, History};
use dataplane_control::observe::{BlackBoxPart, Captured, Started, Traced};
use dataplane_control::upgrade::{HandedOver, TakenConfig, UpgradeStart};
use dataplane_control::{GetResult, Hello, LogLevel, Page, Request, Response, rows};
use dataplane_core::pipeline::Registry;
use dataplane_core::telemetry::LiveStatistics;

pub(super) fn schema(registry: &Registry, args: &args::Schema) -> Result<(), CommandError> {
    match args.what {
        SchemaSubject::Config => console::print_json(&config::schema(registry.kinds())),
        SchemaSubject::Control => console::print_json(&control(registry)),
    }
}

/// Returns the schema of the control protocol. The property `results` has the schema of the result of each request. The
/// property `rows` has the schema of the rows of each list.
fn control(registry: &Registry) -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let (request, response) = (generator.subschema_for::<Request>(), generator.subschema_for::<Response>());
    let results = json!({
        "hello": generator.subschema_for::<Hello>(),
        "stats": generator.subschema_for::<LiveStatistics>(),
        "show": generator.subschema_for::<Page>(),
        "get": generator.subschema_for::<GetResult>(),
        "log": generator.subschema_for::<LogLevel>(),
        "plan": generator.subschema_for::<ChangePlan>(),
        "apply": generator.subschema_for::<Applied>(),
        "confirm": generator.subschema_for::<Applied>(),
        "rollback": generator.subschema_for::<Applied>(),
        "history": generator.subschema_for::<History>(),
        "reload": generator.subschema_for::<Applied>(),
        "capture": generator.subschema_for::<Started>(),
        "trace": generator.subschema_for::<Started>(),
        "packets": { "anyOf": [generator.subschema_for::<Captured>(), generator.subschema_for::<Traced>()] },
        "black_box": generator.subschema_for::<BlackBoxPart>(),
        "upgrade": generator.subschema_for::<UpgradeStart>(),
        "take_over": generator.subschema_for::<TakenConfig>(),
        "hand_over": generator.subschema_for::<HandedOver>(),
    });
    let mut rows = serde_json::Map::new();
    let mut add = |list: &str, schema: Schema| drop(rows.insert(list.to_owned(), schema.to_value()));
    add("config", generator.subschema_for::<rows::ConfigRow>());
    add("links", generator.subschema_for::<rows::LinkRow>());
    add("memory", generator.subschema_for::<rows::MemoryRow>());
    add("ports", generator.subschema_for::<rows::PortRow>());
    add("stages", generator.subschema_for::<rows::StageRow>());
    add("workers", generator.subschema_for::<rows::WorkerRow>());
    for table in registry.kinds().flat_map(|kind| kind.info.tables) {
        add(table.name, table.row_schema(&mut generator));
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The control protocol of Dataplane: one JSON object per line",
        "type": "object",
        "properties": {
            "request": request,
            "response": response,
            "results": { "type": "object", "properties": results },
            "rows": { "type": "object", "properties": rows },
        },
        "$defs": generator.take_definitions(true),
    })
}
