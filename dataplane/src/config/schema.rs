//! The reference of the config, made of its types.

use std::fmt::Write;

use schemars::{JsonSchema, Schema, schema_for};
use serde::Serialize;
use serde_json::Value;

use super::connection::{Alternate, Connection};
use super::port::{Clock, Faults, Generator, Loopback, Packet, Pcap, Port, Rss, Size, Tap};
use super::raw::{EthernetHeader, Gre, Ipv4Header, Ipv6Header, Match, Mpls, Ports, RateLimit, Vxlan};
use super::runtime::Runtime;
use super::xdp::{Xdp, XdpBusyPoll, XdpSelect};

/// What a config file may hold, as far as the stages' own parameters leave it open.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used: a config is read section by section, to find all mistakes")]
struct File {
    /// Workers, memory and the loop.
    runtime: Option<Runtime>,
    /// The ports.
    port: Vec<Port>,
    /// The stages and what feeds them.
    pipeline: Pipeline,
}

/// The stages and what feeds them.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Pipeline {
    /// The ports whose packets enter at the first stage.
    input: Vec<String>,
    /// The stages.
    stage: Vec<Stage>,
}

/// A stage. All other keys are those of its kind.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Stage {
    /// What the config calls it, and other stages in `outputs`, `next` and `drops`. Absent: as its kind. No two stages
    /// have the same.
    name: Option<String>,
    /// Its kind.
    #[schemars(rename = "use")]
    kind: String,
    /// Where the packets of each output go: to a stage, or to `"drop"`. Those of an output that isn't named here are
    /// dropped and counted.
    #[schemars(default)]
    outputs: std::collections::BTreeMap<String, String>,
    /// Where packets go that leave by none of its outputs: to a stage, or to `"drop"`. Absent: to the stage that is
    /// listed next. A stage at which packets end, such as `tx`, has none.
    next: Option<String>,
    /// The stage that is shown every packet that this one drops, such as a `capture`. The packet is dropped and counted
    /// all the same.
    drops: Option<String>,
}

/// One key of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// The key.
    pub key: String,
    /// What it takes.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it is when it is absent, as TOML.
    pub default: Option<String>,
    /// What it means.
    pub description: String,
    /// Whether it must be there.
    pub required: bool,
}

/// The JSON schema of a config file.
pub fn schema() -> Value {
    schema_for!(File).to_value()
}

/// The keys of a table by its schema, in the order of their names. Those of the tables in an array follow it, as
/// `key[].inner`.
pub fn schema_table(schema: &Schema) -> Vec<Row> {
    let mut rows = Vec::new();
    add_rows("", schema.as_value(), schema.as_value(), &mut rows);
    rows
}

fn add_rows(before: &str, table: &Value, root: &Value, rows: &mut Vec<Row>) {
    let required = table.get("required").and_then(Value::as_array);
    let is_required = |key: &str| required.is_some_and(|keys| keys.iter().any(|known| known.as_str() == Some(key)));
    for (key, value) in table.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let default = value.get("default").filter(|default| !default.is_null()).map(toml);
        rows.push(Row {
            key: format!("{before}{key}"),
            kind: kind(value, root),
            default: default.filter(|default| default != "{}" && default != "[]"),
            description: description(value),
            required: is_required(key),
        });
        let items = value.get("items").map(|items| resolved(items, root));
        if let Some(items) = items.filter(|items| before.is_empty() && items.get("properties").is_some()) {
            add_rows(&format!("{key}[]."), items, root, rows);
        }
    }
}

/// What a reference stands for; anything else is itself.
fn resolved<'v>(value: &'v Value, root: &'v Value) -> &'v Value {
    let name = value.get("$ref").and_then(Value::as_str).and_then(|name| name.rsplit('/').next());
    name.and_then(|name| root.get("$defs")?.get(name)).unwrap_or(value)
}

/// A description on one line.
fn description(value: &Value) -> String {
    let text = value.get("description").and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A value as TOML writes it in one line.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) }
        }
        // Of the rest, JSON and TOML write all alike.
        other => other.to_string(),
    }
}

/// The type of a value in words.
fn kind(value: &Value, root: &Value) -> String {
    if value.get("$ref").is_some() {
        let found = resolved(value, root);
        return if std::ptr::eq(found, value) { "table".to_owned() } else { kind(found, root) };
    }
    if let Some(constant) = value.get("const") {
        return toml(constant);
    }
    if let Some(values) = value.get("enum").and_then(Value::as_array) {
        return values.iter().filter(|value| !value.is_null()).map(toml).collect::<Vec<_>>().join(", ");
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        if let Some(choices) = value.get(key).and_then(Value::as_array) {
            return one_of(choices, root);
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
            Some(items) => format!("array of {}", kind(items, root)),
            None => "array".to_owned(),
        },
        "object" => "table".to_owned(),
        other => other.to_owned(),
    };
    let words: Vec<String> = names.into_iter().filter(|name| *name != "null").map(word).collect();
    if words.is_empty() { "any".to_owned() } else { words.join(" or ") }
}

fn one_of(choices: &[Value], root: &Value) -> String {
    let mut words: Vec<String> = Vec::new();
    for choice in choices.iter().filter(|choice| choice.get("type").and_then(Value::as_str) != Some("null")) {
        let word = kind(choice, root);
        if !words.contains(&word) {
            words.push(word);
        }
    }
    let constants = choices.iter().all(|choice| choice.get("const").is_some() || choice.get("enum").is_some());
    words.join(if constants { ", " } else { " or " })
}

fn range(value: &Value) -> String {
    // A float's bounds are shown as the whole numbers that they are.
    let bound = |key| value.get(key).and_then(Value::as_f64).map(|bound| bound.to_string());
    match (bound("minimum"), bound("maximum")) {
        (Some(least), Some(most)) => format!(" {least} to {most}"),
        (Some(least), None) if least != "0" => format!(" from {least}"),
        (None, Some(most)) => format!(" up to {most}"),
        _ => String::new(),
    }
}

/// The keys of a table as Markdown, an empty string for none.
pub fn markdown_table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut text = String::from("| key | type | default | meaning |\n| --- | --- | --- | --- |\n");
    let escape = |text: &str| text.replace('|', "\\|");
    for row in rows {
        let default = match (&row.default, row.required) {
            (_, true) => "required".to_owned(),
            (Some(default), false) => format!("`{default}`"),
            (None, false) => "–".to_owned(),
        };
        let cells = (escape(&row.kind), escape(&default), escape(&row.description));
        // A string takes any amount of writing.
        let _ = writeln!(text, "| `{}` | {} | {} | {} |", row.key, cells.0, cells.1, cells.2);
    }
    text
}

/// How stages are wired.
const STAGE: &str = "A stage. Packets enter at the first that is listed, and go on to the next unless `outputs` or \
                     `next` say otherwise; they never come back to a stage. All other keys are those of its kind.";

/// The reference of all keys that aren't a stage's own, as Markdown.
pub fn reference_markdown() -> String {
    let link = "A `link` of this `kind` ";
    let sections: [(&str, Schema, &str); 28] = [
        ("`[runtime]`", schema_for!(Runtime), "Workers, memory and the loop. All of it may be left out."),
        ("`[[port]]`", schema_for!(Port), "A port: one device, and how it is used."),
        (
            "`connection` of a port",
            schema_for!(Connection),
            "How the queue pairs of a port find their peers, and every attribute that they are connected with. Of each \
             worker's queue pair the peer is that of the same worker at the other end: both ends have as many workers.",
        ),
        (
            "`alternate` of a connection",
            schema_for!(Alternate),
            "The other path to the peer. The peer does not tell of it: its addresses there are said here. Hop limit, traffic \
             class and flow label are those of the first path. Not run on hardware.",
        ),
        (
            "`rss` of a port",
            schema_for!(Rss),
            "How packets are spread over workers. All packets of a flow go to one worker.",
        ),
        (
            "`match` of a flow",
            schema_for!(Match),
            "The headers that a rule wants. A header with nothing in it, such as `udp = {}`: any of its kind. Not run on \
             hardware.",
        ),
        ("`ethernet` of a match", schema_for!(EthernetHeader), "An Ethernet header."),
        ("`ipv4` of a match", schema_for!(Ipv4Header), "An IPv4 header."),
        ("`ipv6` of a match", schema_for!(Ipv6Header), "An IPv6 header."),
        ("`tcp` and `udp` of a match", schema_for!(Ports), "The ports of TCP or UDP."),
        ("`vxlan` of a match", schema_for!(Vxlan), "A tunnel of VXLAN."),
        ("`gre` of a match", schema_for!(Gre), "A tunnel of GRE."),
        ("`mpls` of a match", schema_for!(Mpls), "A tunnel of MPLS."),
        (
            "`rate_limit` of a port",
            schema_for!(RateLimit),
            "What the sends of each worker are slowed down to, by the verbs device. Not run on hardware.",
        ),
        (
            "`link` with `kind = \"loopback\"`",
            schema_for!(Loopback),
            "joins two ports, or reflects what a port sends to itself.",
        ),
        ("`link` with `kind = \"generator\"`", schema_for!(Generator), "makes frames and counts what is sent."),
        (
            "`sizes` of a generator",
            schema_for!(Size),
            "Frames of these sizes come in turn, each as often as its weight says.",
        ),
        ("`link` with `kind = \"pcap\"`", schema_for!(Pcap), "plays a capture file and writes one."),
        (
            "`link` with `kind = \"packet\"`",
            schema_for!(Packet),
            "is an interface of the kernel, by AF_PACKET: see [links](links.md).",
        ),
        (
            "`link` with `kind = \"tap\"`",
            schema_for!(Tap),
            "is a TAP interface, with the host at the other end: see [links](links.md).",
        ),
        (
            "`link` with `kind = \"xdp\"`",
            schema_for!(Xdp),
            "is an interface of the kernel, by AF_XDP: see [links](links.md).",
        ),
        ("`filter` and `except` of an xdp link", schema_for!(XdpSelect), "Frames that have all of what is given."),
        ("`busy_poll` of an xdp link", schema_for!(XdpBusyPoll), "How the driver is polled from the worker."),
        (
            "`faults` of a port",
            schema_for!(Faults),
            "Faults of a software device. Those of one seed are the same in every run.",
        ),
        (
            "`clock` of a port",
            schema_for!(Clock),
            "The clock of a software device: a counter with a crystal of its own, and what is wrong with it. The counter \
             stamps completions.",
        ),
        ("`[pipeline]`", schema_for!(Pipeline), "What feeds the stages, and the stages."),
        ("`[[pipeline.stage]]`", schema_for!(Stage), STAGE),
        ("The whole file", schema_for!(File), "The sections of a config."),
    ];
    let mut text = String::new();
    for (title, schema, about) in sections {
        let lead = if about.starts_with(char::is_lowercase) { link } else { "" };
        let _ = write!(text, "## {title}\n\n{lead}{about}\n\n{}\n", markdown_table(&schema_table(&schema)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(schema: &Schema, key: &str) -> Row {
        schema_table(schema).into_iter().find(|row| row.key == key).unwrap()
    }

    #[test]
    fn rows_say_type_default_and_meaning() {
        let runtime = schema_for!(Runtime);
        let burst = row(&runtime, "burst");
        assert_eq!((burst.kind.as_str(), burst.default.as_deref()), ("integer 1 to 256", Some("64")));
        assert_eq!(burst.description, "The most packets that are taken from a port at a time.");
        assert_eq!(row(&runtime, "idle").kind, "\"spin\", \"pause\", \"sleep\"");
        assert_eq!(row(&runtime, "workers").kind, "\"auto\" or integer 1 to 1024 or array of integer");
        assert_eq!(row(&runtime, "drain_timeout").default.as_deref(), Some("\"5s\""));
        assert_eq!(row(&runtime, "buffers").default, None);
        let port = schema_for!(Port);
        assert!(row(&port, "name").required && !row(&port, "mtu").required);
        assert_eq!(row(&port, "link").kind, "table");
        assert_eq!(row(&schema_for!(Pcap), "loop").kind, "boolean or integer from 1");
        assert_eq!(row(&schema_for!(Stage), "use").kind, "string");
    }

    #[test]
    fn the_reference_describes_every_key() {
        let text = reference_markdown();
        for line in text.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.split(" | ").collect();
            assert_eq!(cells.len(), 4, "{line}");
            assert!(cells[3].len() > 5, "no meaning: {line}");
            assert_ne!(cells[1], "any", "no type: {line}");
        }
        for key in [
            "`burst`",
            "`rx_depth`",
            "`flows`",
            "`loop`",
            "`peer`",
            "`loss`",
            "`outputs`",
            "`drops`",
            "`weight`",
            "`flap`",
        ] {
            assert!(text.contains(&format!("| {key} |")), "{key}");
        }
        assert_eq!(schema()["properties"]["runtime"]["description"], "Workers, memory and the loop.");
    }
}
