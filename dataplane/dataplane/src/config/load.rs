//! Splits a source into its parts: runtime, ports, input and stages. Each part is read separately, so that a mistake in
//! one part does not hide mistakes in another part.

use std::sync::LazyLock;

use schemars::Schema;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::connection;
use super::diagnostics::{Diagnostics, Mistake};
use super::keys::{Expected, remove_unknown};
use super::plan::Plan;
use super::port::Port;
use super::recover::{recover, recover_with};
use super::runtime::Runtime;
use super::source::{Source, Span};
use super::syntax;
use super::tree::{self, PathStep};
use super::types::Address;
use dataplane_core::pipeline::OnPanic;
use dataplane_core::pipeline::parameter_schema;

static PORT_SCHEMA: LazyLock<Schema> = LazyLock::new(parameter_schema::<Port>);
static RUNTIME_SCHEMA: LazyLock<Schema> = LazyLock::new(parameter_schema::<Runtime>);

/// A name with its position.
pub(super) type Name = Spanned<String>;

/// The parts of a config that could be read. Mistakes are in the [`Diagnostics`].
#[derive(Debug)]
pub struct Loaded<'s> {
    source: &'s Source,
    tree: DeValue<'s>,
    /// Whether parts of the file could not be read. A table that seems to be missing may be in such a part, so the
    /// checks do not report a missing table.
    pub(super) damaged: bool,
    pub(super) runtime: Option<Runtime>,
    pub(super) ports: Vec<PortEntry>,
    pub(super) pipeline: Option<Span>,
    pub(super) input: Option<(Span, Vec<Name>)>,
    pub(super) stages: Vec<StageEntry<'s>>,
}

#[derive(Debug)]
pub(super) struct PortEntry {
    pub(super) span: Span,
    /// The name, which may be known even if the rest of the table has mistakes.
    pub(super) name: Option<Name>,
    pub(super) port: Option<Port>,
    /// The addresses, which may be known even if the rest of the table has mistakes. `None` if the addresses could not
    /// be read.
    pub(super) addresses: Option<Vec<Address>>,
    /// The MTU of the port's interface, if the port uses this MTU because the config sets none.
    pub(super) interface_mtu: Option<u32>,
    /// Whether the config sets no MTU.
    pub(super) has_default_mtu: bool,
}

#[derive(Debug)]
pub(super) struct StageEntry<'s> {
    pub(super) span: Span,
    /// The kind, which may be known even if the rest of the table has mistakes.
    kind: Option<Name>,
    pub(super) head: Option<StageHead>,
    pub(super) parameters: Spanned<DeTable<'s>>,
}

/// The maximum number of ports: a packet stores the index of its port in one byte.
const MAX_PORTS: usize = 255;

/// The maximum number of stages. This bounds the time of the checks.
const MAX_STAGES: usize = 1024;

/// The keys that all stages have.
const HEAD_KEYS: [&str; 6] = ["name", "use", "outputs", "next", "drops", "on_panic"];

#[derive(Debug, Deserialize)]
pub(super) struct StageHead {
    pub(super) name: Option<Name>,
    #[serde(rename = "use")]
    pub(super) kind: Name,
    #[serde(default)]
    pub(super) outputs: std::collections::BTreeMap<Name, Name>,
    pub(super) next: Option<Name>,
    pub(super) drops: Option<Name>,
    #[serde(default)]
    pub(super) on_panic: OnPanic,
}

impl StageHead {
    /// Returns the name of the stage. The default name is the kind.
    pub(super) fn name(&self) -> &Name {
        self.name.as_ref().unwrap_or(&self.kind)
    }
}

/// Reads a config. All mistakes go to the diagnostics.
pub fn load<'s>(source: &'s Source, diagnostics: &mut Diagnostics) -> Loaded<'s> {
    let parsed = syntax::parse(source, diagnostics);
    let mut root = parsed.root;
    let mut reader = Reader { diagnostics, damaged: parsed.damaged, port_schema: &PORT_SCHEMA };
    remove_unknown(&mut root, &["runtime", "port", "pipeline"], &[], reader.diagnostics);
    if let Some(DeValue::Table(pipeline)) = root.get_mut("pipeline").map(|value| value.get_mut()) {
        remove_unknown(pipeline, &["input", "stage"], &[], reader.diagnostics);
    }
    let runtime = match root.get("runtime") {
        None => Some(Runtime::default()),
        Some(value) => reader
            .table(value, "runtime", "[runtime]")
            .and_then(|table| recover(&table, Expected::of(&RUNTIME_SCHEMA), reader.diagnostics)),
    };
    let ports = root.get("port").map(|value| reader.tables(value, "port", "[[port]]", MAX_PORTS)).unwrap_or_default();
    let ports = ports.into_iter().map(|table| reader.port(table)).collect();
    let mut input = None;
    let mut stages = Vec::new();
    let pipeline = root.get("pipeline").map(|value| value.span());
    if let Some(value) = root.get("pipeline")
        && let Some(table) = reader.table(value, "pipeline", "[pipeline]")
    {
        if let Some(value) = table.get_ref().get("stage") {
            let tables = reader.tables(value, "stage", "[[pipeline.stage]]", MAX_STAGES);
            stages = tables.into_iter().map(|table| reader.stage(table)).collect();
        }
        input = reader.input(&table);
    }
    let damaged = reader.damaged;
    let mut tree = DeValue::Table(root);
    tree::rename(&mut tree, diagnostics.renamed());
    Loaded { source, tree, damaged, runtime, ports, pipeline, input, stages }
}

struct Reader<'d> {
    diagnostics: &'d mut Diagnostics,
    /// See [`Loaded::damaged`].
    damaged: bool,
    port_schema: &'static Schema,
}

impl Reader<'_> {
    fn table<'s>(&mut self, value: &Spanned<DeValue<'s>>, name: &str, header: &str) -> Option<Spanned<DeTable<'s>>> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Spanned::new(value.span(), table.clone())),
            _ => {
                let mistake = Mistake::error(value.span(), format!("`{name}` must be a single table"));
                self.diagnostics.push(mistake.help(format!("write the table as a section: {header}")));
                self.damaged = true;
                None
            }
        }
    }

    /// Returns the tables of an array of tables. Reports and ignores the entries after the first `max` entries.
    fn tables<'s>(
        &mut self,
        value: &Spanned<DeValue<'s>>,
        name: &str,
        header: &str,
        max: usize,
    ) -> Vec<Spanned<DeTable<'s>>> {
        let mut values: Vec<&Spanned<DeValue<'s>>> = match value.get_ref() {
            DeValue::Array(array) => array.iter().collect(),
            _ => vec![value],
        };
        if let Some(entry) = values.get(max) {
            let message = format!("{name} {} exceeds the maximum of {max} {name}s", max + 1);
            self.diagnostics.push(Mistake::error(entry.span(), message).help(format!("use at most {max} {name}s")));
            self.damaged = true;
            values.truncate(max);
        }
        let mut tables = Vec::new();
        for (index, entry) in values.iter().enumerate() {
            match entry.get_ref() {
                // Read a single table like an array with one table, so that the mistakes inside the table are reported
                // too.
                DeValue::Table(table) => tables.push(Spanned::new(entry.span(), table.clone())),
                _ => {
                    let mistake = Mistake::error(entry.span(), format!("entry {index} of `{name}` must be a table"));
                    self.diagnostics.push(mistake.help(format!("write each entry as a section: {header}")));
                    self.damaged = true;
                }
            }
        }
        if value.get_ref().is_table() {
            let mistake = Mistake::error(value.span(), format!("`{name}` must be an array of tables"));
            self.diagnostics.push(mistake.help(format!("write two brackets on each side: {header}")));
        }
        tables
    }

    fn port(&mut self, table: Spanned<DeTable<'_>>) -> PortEntry {
        let span = table.span();
        let name = name(table.get_ref(), "name");
        let addresses = match table.get_ref().get("addresses") {
            Some(value) => Vec::deserialize(ValueDeserializer::from(value.clone())).ok(),
            None => Some(Vec::new()),
        };
        let read = |mut table: Spanned<DeTable<'_>>| {
            put_kind_outside(table.get_mut());
            connection::split(table.get_mut());
            Port::deserialize(toml::de::Deserializer::from(table))
        };
        let port = recover_with(&table, Expected::of(self.port_schema), &mut { read }, self.diagnostics);
        PortEntry { span, name, port, addresses, interface_mtu: None, has_default_mtu: false }
    }

    fn input(&mut self, pipeline: &Spanned<DeTable<'_>>) -> Option<(Span, Vec<Name>)> {
        #[derive(Deserialize)]
        struct Input {
            input: Spanned<Vec<Name>>,
        }
        let mut table = DeTable::new();
        if let Some((key, value)) = pipeline.get_ref().get_key_value("input") {
            table.insert(key.clone(), value.clone());
        }
        let input: Option<Input> = recover(&Spanned::new(pipeline.span(), table), Expected::ANY, self.diagnostics);
        input.map(|input| (input.input.span(), input.input.into_inner()))
    }

    fn stage<'s>(&mut self, table: Spanned<DeTable<'s>>) -> StageEntry<'s> {
        let (span, kind) = (table.span(), name(table.get_ref(), "use"));
        let (mut head, mut parameters) = (DeTable::new(), DeTable::new());
        for (key, value) in table.into_inner() {
            let common = HEAD_KEYS.contains(&key.get_ref().as_ref());
            if common { &mut head } else { &mut parameters }.insert(key, value);
        }
        let head = recover(&Spanned::new(span.clone(), head), Expected::ANY, self.diagnostics);
        StageEntry { kind, head, parameters: Spanned::new(span.clone(), parameters), span }
    }
}

/// Converts `link = { kind = "generator", size = 64 }` to `link = { generator = { size = 64 } }`. Serde keeps the
/// positions of values only in the second form.
fn put_kind_outside(port: &mut DeTable<'_>) {
    let Some(link) = port.get_mut("link") else { return };
    let span = link.span();
    let DeValue::Table(table) = link.get_mut() else { return };
    let Some(kind) = table.remove("kind") else { return };
    let at = kind.span();
    let DeValue::String(kind) = kind.into_inner() else { return };
    let inside = Spanned::new(span, DeValue::Table(std::mem::take(table)));
    table.insert(Spanned::new(at, kind), inside);
}

fn name(table: &DeTable<'_>, key: &str) -> Option<Name> {
    let value = table.get(key)?;
    Some(Spanned::new(value.span(), value.get_ref().as_str()?.to_owned()))
}

impl<'s> Loaded<'s> {
    /// Returns the source of the config.
    pub fn source(&self) -> &'s Source {
        self.source
    }

    /// Returns the ports that could be read, in the order of the config.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter_map(|entry| entry.port.as_ref())
    }

    /// Sets the MTU of each port without the key `mtu`. The MTU of a link's interface is read from this host. `of_rdma`
    /// returns the MTU of the interface of an RDMA port. For a change of a running program, `running` is the plan of the
    /// program, and its ports keep the default MTU that was read at the start.
    pub fn set_default_mtus(&mut self, running: Option<&Plan>, of_rdma: impl Fn(&Port) -> Option<u32>) {
        for entry in &mut self.ports {
            let Some(port) = &mut entry.port else { continue };
            entry.has_default_mtu = port.mtu.is_none();
            let known = running.iter().flat_map(|plan| &plan.ports);
            let known = known.filter(|known| known.has_default_mtu && known.config.qp == port.qp);
            let mut known = known.filter(|known| known.config.name == port.name);
            port.mtu = port.mtu.or(known.next().and_then(|known| known.config.mtu));
            entry.interface_mtu = port.set_default_mtu(&of_rdma);
        }
    }

    /// Returns the name and the config of each port. The config is `None` if the port has mistakes. The name is empty
    /// if the name could not be read.
    pub fn named_ports(&self) -> impl Iterator<Item = (&str, Option<&Port>)> {
        self.ports.iter().map(|entry| {
            let name = entry.name.as_ref().map_or("", |name| name.get_ref());
            (name, entry.port.as_ref())
        })
    }

    /// Returns the addresses of each port, including ports with mistakes. Returns `None` if the addresses of a port
    /// could not be read.
    pub fn port_addresses(&self) -> Option<Vec<&[Address]>> {
        self.ports.iter().map(|entry| entry.addresses.as_deref()).collect()
    }

    /// Returns `true` if the name of a port, or a part of the file, could not be read. A reference to an unknown port
    /// may then mean this port, so the checks do not report such references.
    pub fn may_lack_ports(&self) -> bool {
        self.damaged || self.ports.iter().any(|entry| entry.name.is_none())
    }

    /// Returns the name of a stage. Returns `None` if there is no such stage, or its name could not be read.
    pub fn stage_name(&self, stage: usize) -> Option<&str> {
        Some(self.stages.get(stage)?.head.as_ref()?.name().get_ref())
    }

    /// Returns the number of stages in the config.
    pub fn stage_count(&self) -> usize {
        self.stages.len()
    }

    /// Returns the kind of a stage. Returns `None` if there is no such stage, or its kind could not be read.
    pub fn stage_kind(&self, stage: usize) -> Option<&str> {
        Some(self.stages.get(stage)?.kind.as_ref()?.get_ref())
    }

    /// Returns the parameters of a stage: all keys except the keys that all stages have. Returns `None` if there is no
    /// such stage.
    pub fn stage_parameters(&self, stage: usize) -> Option<&Spanned<DeTable<'s>>> {
        self.stages.get(stage).map(|stage| &stage.parameters)
    }

    /// Reads the parameters of a stage with the function `read`, and reports all mistakes. Returns `None` if there is a
    /// mistake, or no such stage. `schema` is the JSON schema of the parameters, if known. The suggestions for misspelt
    /// keys include the keys that all stages have, such as `outputs`.
    ///
    /// A type may reject a value with an error of its own. The text after `; help: ` in that error becomes the
    /// suggested fix. After each mistake, `read` is called again with parameters without the wrong entry, so `read`
    /// must have no side effects.
    pub fn read_stage<T>(
        &self,
        stage: usize,
        schema: Option<&Schema>,
        mut read: impl FnMut(Spanned<DeTable<'s>>) -> Result<T, toml::de::Error>,
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        let expected = Expected { extra_keys: &HEAD_KEYS, ..schema.map_or(Expected::ANY, Expected::of) };
        recover_with(self.stage_parameters(stage)?, expected, &mut read, diagnostics)
    }

    /// Returns the span of the value at a path, such as `port[1].rx_depth`. If there is no such value, returns the span
    /// of the nearest parent.
    pub fn locate(&self, path: &str) -> Span {
        let steps = tree::parse_path(path).unwrap_or_default();
        self.nearest(&steps).unwrap_or(0..0)
    }

    /// Returns the span of a parameter of a stage, such as `table[3].via`. If there is no such value, returns the span
    /// of the nearest parent.
    pub fn locate_stage(&self, stage: usize, path: &str) -> Span {
        let stages = ["pipeline", "stage"].map(|key| PathStep::Key(key.to_owned()));
        let mut steps: Vec<PathStep> = stages.into_iter().chain([PathStep::Index(stage)]).collect();
        steps.extend(tree::parse_path(path).unwrap_or_default());
        self.nearest(&steps).unwrap_or(0..0)
    }

    /// Returns the span of the value at a path, such as `runtime.burst`. Returns `None` if there is no such value.
    pub fn find(&self, path: &str) -> Option<Span> {
        tree::span(&self.tree, &tree::parse_path(path)?)
    }

    fn nearest(&self, steps: &[PathStep]) -> Option<Span> {
        (1..=steps.len()).rev().find_map(|length| tree::span(&self.tree, &steps[..length]))
    }
}
