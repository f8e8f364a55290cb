//! The JSON schema of a config and the tables of the config reference, generated from the config types.

use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::connection::Connection;
use super::port::Port;
use super::raw::{EthernetHeader, FlowRuleConfig, Gre, Ipv4Header, Ipv6Header, Match, Mpls, Ports, Vxlan};
use super::runtime::{BlackBox, Runtime};
use dataplane_core::connect::AlternatePath;
use dataplane_core::pipeline::{OnPanic, StageKind, parameter_schema};
use dataplane_core::verbs::{RateLimit, RssSpec};
use dataplane_soft::config::{LinkKind, link_kinds};
use dataplane_soft::{CounterSpec, FaultSpec};

/// The top level of a config file, without the parameters of each kind of stage.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used: a config is read section by section, to find all mistakes")]
struct File {
    /// The workers, their memory and the worker loop.
    runtime: Option<Runtime>,
    /// The ports.
    port: Vec<Port>,
    /// The stages, and the ports whose packets enter the first stage.
    pipeline: Pipeline,
}

/// The stages, and the ports whose packets enter the first stage.
///
/// ```toml
/// [[port]]
/// name   = "wan"
/// device = "host"
/// link   = { kind = "packet", interface = "eth1" }
///
/// [pipeline]
/// input = ["wan"]
///
/// [[pipeline.stage]]
/// name    = "headers"
/// use     = "parse"
/// outputs = { arp = "drop", other = "drop" }
/// next    = "total"
/// drops   = "broken"
///
/// [[pipeline.stage]]
/// name     = "total"
/// use      = "count"
/// on_panic = "bypass"
///
/// [[pipeline.stage]]
/// use  = "tx"
/// port = "wan"
///
/// [[pipeline.stage]]
/// name = "broken"
/// use  = "capture"
/// file = "broken.pcapng"
/// next = "drop"
/// ```
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema is used")]
struct Pipeline {
    /// The names of the ports whose packets enter at the first stage.
    input: Vec<String>,
    /// The stages.
    stage: Vec<Stage>,
}

/// A stage. Packets enter at the first stage in the list. Packets that do not leave a stage by a named output continue
/// to the next stage in the list, unless `next` names another target. The key `outputs` sets the targets of the named
/// outputs. The stages must not form a loop. Every kind of stage has the keys `name`, `use`, `outputs`, `next`, `drops`
/// and `on_panic`. All other keys are parameters of the kind.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Stage {
    /// The name of the stage, used in `outputs`, `next` and `drops` of other stages. Names are unique. Default: the
    /// value of `use`.
    name: Option<String>,
    /// The kind of the stage, such as `"acl"`.
    #[schemars(rename = "use")]
    kind: String,
    /// The target of each output: the name of a stage, or `"drop"`. If an output is not listed, the packets that leave
    /// by this output are dropped and counted.
    #[schemars(default)]
    outputs: std::collections::BTreeMap<String, String>,
    /// The target of packets that do not leave by a named output: the name of a stage, or `"drop"`. Stages after which
    /// no packet continues, such as `tx`, have no `next`. Default: the next stage in the list.
    next: Option<String>,
    /// The stage that observes every packet that this stage drops, for example a `capture` stage. Observed packets are
    /// still dropped and counted.
    drops: Option<String>,
    /// What happens if the stage panics: `"stop"` stops the run. `"drop"` and `"bypass"` quarantine the stage on the
    /// worker of the panic, and the run continues. With `"drop"`, the quarantined stage drops all packets. With
    /// `"bypass"`, all packets go to the target in `next`, so a bypassed filter lets all packets pass. After a panic,
    /// the exit status of the run is 1 with all three values.
    #[schemars(default)]
    on_panic: OnPanic,
}

/// One key of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The key.
    pub key: String,
    /// The type of the value, in words.
    #[serde(rename = "type")]
    pub kind: String,
    /// The default value, as TOML.
    pub default: Option<String>,
    /// The description.
    pub description: String,
    /// Whether the key is required.
    pub required: bool,
}

/// Returns the JSON schema of a config file with these kinds of stages. Editors use the schema to complete and check
/// configs.
pub fn schema<'k>(kinds: impl Iterator<Item = &'k StageKind>) -> Value {
    let mut schema = parameter_schema::<File>().to_value();
    let stages = &mut schema["properties"]["pipeline"]["properties"]["stage"]["items"];
    let kinds: Vec<Value> = kinds.map(|kind| stage_schema(stages, kind)).collect();
    *stages = json!({ "oneOf": kinds });
    schema
}

/// Returns the schema of a stage of one kind: the keys that all stages have, and the parameters of the kind.
fn stage_schema(common: &Value, kind: &StageKind) -> Value {
    let mut schema = match &kind.schema {
        Some(parameters) => parameters.as_value().clone(),
        // The parameters of this kind have no schema, so any key may be a parameter.
        None => json!({ "type": "object", "additionalProperties": true }),
    };
    for key in ["$schema", "title"] {
        schema.as_object_mut().map(|schema| schema.remove(key));
    }
    let mut properties = common["properties"].as_object().cloned().unwrap_or_default();
    properties["use"] = json!({ "const": kind.name, "description": kind.summary });
    let target = &common["properties"]["outputs"]["additionalProperties"];
    let outputs: Map<String, Value> = kind
        .info
        .outputs
        .iter()
        .map(|(output, meaning)| {
            let mut target = target.clone();
            target["description"] = json!(meaning);
            ((*output).to_owned(), target)
        })
        .collect();
    properties["outputs"]["properties"] = outputs.into();
    properties["outputs"]["additionalProperties"] = json!(false);
    if kind.info.terminal {
        properties.remove("next");
    }
    if let Some(parameters) = schema["properties"].as_object() {
        properties.extend(parameters.clone());
    }
    schema["properties"] = properties.into();
    let required = schema["required"].as_array().into_iter().flatten().cloned();
    schema["required"] = [json!("use")].into_iter().chain(required).collect();
    schema
}

/// Returns the keys of a table from its schema, sorted by name. The keys of an array of tables follow the key of the
/// array, as `key[].inner`.
pub fn schema_table(schema: &Schema) -> Vec<Row> {
    let mut rows = Vec::new();
    add_rows("", schema.as_value(), &mut rows);
    rows
}

fn add_rows(prefix: &str, table: &Value, rows: &mut Vec<Row>) {
    let required = table.get("required").and_then(Value::as_array);
    let is_required = |key: &str| required.is_some_and(|keys| keys.iter().any(|known| known.as_str() == Some(key)));
    for (key, value) in table.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let default = value.get("default").filter(|default| !default.is_null()).map(toml);
        rows.push(Row {
            key: format!("{prefix}{key}"),
            kind: kind(value),
            default: default.filter(|default| default != "{}" && default != "[]"),
            description: description(value),
            required: is_required(key),
        });
        let items = value.get("items");
        if let Some(items) = items.filter(|items| prefix.is_empty() && items.get("properties").is_some()) {
            add_rows(&format!("{key}[]."), items, rows);
        }
    }
}

/// Returns the description as one line.
fn description(value: &Value) -> String {
    let text = value.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Formats a value as TOML on one line.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
        }
        // JSON and TOML write all other values in the same way.
        other => other.to_string(),
    }
}

/// Returns the type of a value in words.
fn kind(value: &Value) -> String {
    if let Some(constant) = value.get("const") {
        return toml(constant);
    }
    if let Some(values) = value.get("enum").and_then(Value::as_array) {
        return values.iter().filter(|value| !value.is_null()).map(toml).collect::<Vec<_>>().join(", ");
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        if let Some(choices) = value.get(key).and_then(Value::as_array) {
            return one_of(choices);
        }
    }
    let names: Vec<&str> = match value.get("type") {
        Some(Value::String(name)) => vec![name.as_str()],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let word = |name: &str| match name {
        "integer" => format!("integer{}", range(value)),
        "number" => format!("number{}", range(value)),
        "boolean" => "boolean".to_owned(),
        "array" => match value.get("items") {
            Some(items) => format!("array of {}", kind(items)),
            None => "array".to_owned(),
        },
        "object" => "table".to_owned(),
        other => other.to_owned(),
    };
    let words: Vec<String> = names.into_iter().filter(|name| *name != "null").map(word).collect();
    if words.is_empty() { "any".to_owned() } else { words.join(" or ") }
}

fn one_of(choices: &[Value]) -> String {
    let mut words: Vec<String> = Vec::new();
    for choice in choices.iter().filter(|choice| choice.get("type").and_then(Value::as_str) != Some("null")) {
        let word = kind(choice);
        if !words.contains(&word) {
            words.push(word);
        }
    }
    let constants = choices.iter().all(|choice| choice.get("const").is_some() || choice.get("enum").is_some());
    words.join(if constants { ", " } else { " or " })
}

fn range(value: &Value) -> String {
    // Floats print without a trailing `.0`, such as 1 for 1.0.
    let bound = |key| value.get(key).and_then(Value::as_f64).map(|bound| bound.to_string());
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!(" {least} to {most}"),
        (Some(least), None) if least != "0" => format!(" from {least}"),
        (None, Some(most)) => format!(" up to {most}"),
        _ => String::new(),
    }
}

/// A table of a config, for the config reference.
pub struct Section {
    /// The name of the page of the reference that describes the table.
    pub page: String,
    /// The header of the table in a config, such as `[[port]]`, as Markdown. The title of a link includes its `kind`.
    pub title: String,
    /// The schema of the table, with its description.
    pub schema: Schema,
}

impl Section {
    /// Returns the keys of the table, without the keys of inner tables that have a section of their own.
    pub fn rows(&self, sections: &[Self]) -> Vec<Row> {
        let mut rows = schema_table(&self.schema);
        rows.retain(|row| {
            let inner = row.key.split_once("[].").map(|(table, _)| format!("{}.{table}", self.path()));
            inner.is_none_or(|inner| sections.iter().all(|section| section.path() != inner))
        });
        rows
    }

    /// Returns the path of the table, such as `port.connection`.
    fn path(&self) -> &str {
        let path = self.title.trim_start_matches(['`', '[']);
        path.split_once(']').map_or(path, |(path, _)| path)
    }
}

/// Returns the tables of a config, without the parameters of stages, in the order of the reference.
pub fn sections() -> Vec<Section> {
    let section = |page: &str, title: &str, schema| Section { page: page.to_owned(), title: title.to_owned(), schema };
    let link = |LinkKind { name, schema, tables, .. }| {
        let page = format!("link-{name}");
        let mut sections = vec![section(&page, &format!("`[port.link]` with `kind = \"{name}\"`"), schema)];
        sections
            .extend(tables.into_iter().map(|(key, schema)| section(&page, &format!("`[port.link.{key}]`"), schema)));
        sections
    };
    let first = [
        section("runtime", "`[runtime]`", parameter_schema::<Runtime>()),
        section("runtime", "`[runtime.black_box]`", parameter_schema::<BlackBox>()),
        section("port", "`[[port]]`", parameter_schema::<Port>()),
    ];
    let rest = [
        section("connection", "`[port.connection]`", parameter_schema::<Connection>()),
        section("connection", "`[port.connection.alternate]`", parameter_schema::<AlternatePath>()),
        section("rss", "`[port.rss]`", parameter_schema::<RssSpec>()),
        section("flow", "`[[port.flow]]`", parameter_schema::<FlowRuleConfig>()),
        section("flow", "`[port.flow.match]`", parameter_schema::<Match>()),
        section("flow", "`[port.flow.match.ethernet]`", parameter_schema::<EthernetHeader>()),
        section("flow", "`[port.flow.match.ipv4]`", parameter_schema::<Ipv4Header>()),
        section("flow", "`[port.flow.match.ipv6]`", parameter_schema::<Ipv6Header>()),
        section("flow", "`[port.flow.match.tcp]` and `[port.flow.match.udp]`", parameter_schema::<Ports>()),
        section("flow", "`[port.flow.match.vxlan]`", parameter_schema::<Vxlan>()),
        section("flow", "`[port.flow.match.gre]`", parameter_schema::<Gre>()),
        section("flow", "`[port.flow.match.mpls]`", parameter_schema::<Mpls>()),
        section("rate-limit", "`[port.rate_limit]`", parameter_schema::<RateLimit>()),
        section("faults", "`[port.faults]`", parameter_schema::<FaultSpec>()),
        section("clock", "`[port.clock]`", parameter_schema::<CounterSpec>()),
        section("pipeline", "`[pipeline]`", parameter_schema::<Pipeline>()),
        section("pipeline", "`[[pipeline.stage]]`", parameter_schema::<Stage>()),
    ];
    first.into_iter().chain(link_kinds().into_iter().flat_map(link)).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_soft::config::PcapConfig;

    fn row(schema: &Schema, key: &str) -> Row {
        schema_table(schema).into_iter().find(|row| row.key == key).unwrap()
    }

    #[test]
    fn rows_have_type_default_and_description() {
        let runtime = parameter_schema::<Runtime>();
        let burst = row(&runtime, "burst");
        assert_eq!((burst.kind.as_str(), burst.default.as_deref()), ("integer 1 to 256", Some("64")));
        assert_eq!(burst.description, "The maximum number of packets that a worker receives from a port in one poll.");
        assert_eq!(row(&runtime, "idle").kind, "\"spin\", \"pause\", \"sleep\", \"adaptive\"");
        assert_eq!(row(&runtime, "workers").kind, "\"auto\" or integer 1 to 1024 or array of integer");
        assert_eq!(row(&runtime, "drain_timeout").default.as_deref(), Some("\"5s\""));
        assert_eq!(row(&runtime, "buffers").default, None);
        let port = parameter_schema::<Port>();
        assert!(row(&port, "name").required && !row(&port, "mtu").required);
        assert_eq!(row(&port, "link").kind, "table");
        assert_eq!(row(&parameter_schema::<PcapConfig>(), "loop").kind, "boolean or integer from 1");
        assert_eq!(row(&parameter_schema::<Stage>(), "use").kind, "string");
    }

    #[test]
    fn schema_has_the_parameters_of_each_kind_of_stage() {
        let registry = dataplane_stages::registry();
        let schema = schema(registry.kinds());
        assert_eq!(schema["properties"]["runtime"]["description"], "The workers, their memory and the worker loop.");
        let stages = schema["properties"]["pipeline"]["properties"]["stage"]["items"]["oneOf"].as_array().unwrap();
        assert_eq!(stages.len(), registry.kinds().count());
        let stage = |kind: &str| stages.iter().find(|stage| stage["properties"]["use"]["const"] == kind).unwrap();
        let acl = stage("acl");
        assert_eq!(acl["required"], json!(["use", "default"]));
        assert_eq!(acl["properties"]["rules"]["type"], "array");
        assert_eq!(acl["additionalProperties"], false);
        assert_eq!(stage("parse")["properties"]["outputs"]["properties"]["arp"]["description"], "ARP messages");
        assert!(stage("tx")["properties"].get("next").is_none());
        assert!(!schema.to_string().contains("null,"), "TOML has no null");
    }

    #[test]
    fn stage_without_described_parameters_accepts_any_key() {
        #[derive(serde::Deserialize)]
        struct Own {}
        impl dataplane_core::pipeline::Stage for Own {
            fn process(&mut self, _: &dataplane_core::pipeline::Ctx, _: &mut dataplane_core::mem::Batch) {}
        }
        let mut registry = dataplane_core::pipeline::Registry::new();
        registry.add::<Own>("own");
        let schema = schema(registry.kinds());
        let stage = &schema["properties"]["pipeline"]["properties"]["stage"]["items"]["oneOf"][0];
        assert_eq!(
            (&stage["properties"]["use"]["const"], &stage["additionalProperties"]),
            (&json!("own"), &json!(true))
        );
    }

    #[test]
    fn every_key_has_a_type_and_a_description() {
        let sections = sections();
        let rows: Vec<Row> = sections.iter().flat_map(|section| section.rows(&sections)).collect();
        for row in &rows {
            assert!(row.description.len() > 5, "no description: {row:?}");
            assert_ne!(row.kind, "any", "no type: {row:?}");
        }
        let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
        for key in ["burst", "rx_depth", "flows", "loop", "peer", "loss", "outputs", "drops", "sizes[].weight", "flap"]
        {
            assert!(keys.contains(&key), "{key}");
        }
        assert!(!keys.contains(&"flow[].priority") && !keys.contains(&"stage[].use"), "sections are not repeated");
    }
}
