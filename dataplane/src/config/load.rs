//! A source becomes its parts: runtime, ports, input, stages. Each is read on its own, so a mistake in one hides none in
//! another.

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostics::{Diagnostics, Mistake};
use super::explain::{nearest, suggest};
use super::port::{LINKS, Port};
use super::recover::{recover, recover_beside};
use super::runtime::Runtime;
use super::source::{Source, Span};
use super::syntax;
use super::tree::{self, Step};

/// A name, and where it is written.
pub(super) type Name = Spanned<String>;

/// A config that was read as far as it is right. Mistakes are in the [`Diagnostics`].
#[derive(Debug)]
pub struct Loaded<'s> {
    source: &'s Source,
    tree: DeValue<'s>,
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
    /// The name is known even where the rest of the table is wrong.
    pub(super) name: Option<Name>,
    pub(super) port: Option<Port>,
}

#[derive(Debug)]
pub(super) struct StageEntry<'s> {
    pub(super) span: Span,
    pub(super) head: Option<StageHead>,
    pub(super) parameters: Spanned<DeTable<'s>>,
}

/// Adds to a section what was written under another name for it; what is there already stays.
fn join<'s>(into: &mut DeValue<'s>, from: DeValue<'s>) {
    match (into, from) {
        (DeValue::Table(into), DeValue::Table(from)) => {
            for (key, value) in from {
                if !into.contains_key(key.get_ref().as_ref()) {
                    into.insert(key, value);
                }
            }
        }
        (DeValue::Array(into), DeValue::Array(from)) => from.into_iter().for_each(|value| into.push(value)),
        _ => {}
    }
}

/// The keys that every stage has.
const HEAD_KEYS: [&str; 5] = ["name", "use", "outputs", "next", "drops"];

#[derive(Debug, Deserialize)]
pub(super) struct StageHead {
    pub(super) name: Option<Name>,
    #[serde(rename = "use")]
    pub(super) kind: Name,
    #[serde(default)]
    pub(super) outputs: std::collections::BTreeMap<Name, Name>,
    pub(super) next: Option<Name>,
    pub(super) drops: Option<Name>,
}

impl StageHead {
    /// The name of the stage, which is that of its kind where there is no other.
    pub(super) fn name(&self) -> &Name {
        self.name.as_ref().unwrap_or(&self.kind)
    }
}

/// Reads a config. What is wrong goes to the diagnostics, all of it.
pub fn load<'s>(source: &'s Source, diagnostics: &mut Diagnostics) -> Loaded<'s> {
    let parsed = syntax::parse(source, diagnostics);
    let mut root = parsed.root;
    let mut reader = Reader { diagnostics, damaged: parsed.damaged };
    reader.check_keys(&mut root, &["runtime", "port", "pipeline"]);
    if let Some(DeValue::Table(pipeline)) = root.get_mut("pipeline").map(|value| value.get_mut()) {
        reader.check_keys(pipeline, &["input", "stage"]);
    }
    let runtime = match root.get("runtime") {
        None => Some(Runtime::default()),
        Some(value) => {
            reader.table(value, "runtime", "[runtime]").and_then(|table| recover(&table, reader.diagnostics))
        }
    };
    let ports = root.get("port").map(|value| reader.tables(value, "port", "[[port]]")).unwrap_or_default();
    let ports = ports.into_iter().map(|table| reader.port(table)).collect();
    let mut input = None;
    let mut stages = Vec::new();
    let pipeline = root.get("pipeline").map(|value| value.span());
    if let Some(value) = root.get("pipeline")
        && let Some(table) = reader.table(value, "pipeline", "[pipeline]")
    {
        if let Some(value) = table.get_ref().get("stage") {
            let tables = reader.tables(value, "stage", "[[pipeline.stage]]");
            stages = tables.into_iter().map(|table| reader.stage(table)).collect();
        }
        input = reader.input(&table);
    }
    let damaged = reader.damaged;
    Loaded { source, tree: DeValue::Table(root), damaged, runtime, ports, pipeline, input, stages }
}

struct Reader<'d> {
    diagnostics: &'d mut Diagnostics,
    damaged: bool,
}

impl Reader<'_> {
    /// Notes the keys that a table doesn't have. What stands under a misspelt one is read as if it weren't.
    fn check_keys(&mut self, table: &mut DeTable<'_>, known: &[&str]) {
        let unknown = table.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
        for key in unknown.cloned().collect::<Vec<_>>() {
            let name = key.get_ref().as_ref();
            let mistake = Mistake::error(key.span(), format!("unknown key `{name}`"));
            self.diagnostics.push(mistake.help(suggest("keys", name, known)));
            let Some(value) = table.remove(name) else { continue };
            let Some(meant) = nearest(name, known.iter().copied()) else { continue };
            match table.get_mut(meant).map(|there| there.get_mut()) {
                None => {
                    table.insert(Spanned::new(key.span(), meant.to_owned().into()), value);
                }
                Some(there) => join(there, value.into_inner()),
            }
        }
    }

    fn table<'s>(&mut self, value: &Spanned<DeValue<'s>>, name: &str, header: &str) -> Option<Spanned<DeTable<'s>>> {
        match value.get_ref() {
            DeValue::Table(table) => Some(Spanned::new(value.span(), table.clone())),
            _ => {
                let mistake = Mistake::error(value.span(), format!("`{name}` must be one table"));
                self.diagnostics.push(mistake.help(format!("write it as a section: {header}")));
                self.damaged = true;
                None
            }
        }
    }

    fn tables<'s>(&mut self, value: &Spanned<DeValue<'s>>, name: &str, header: &str) -> Vec<Spanned<DeTable<'s>>> {
        let values: Vec<&Spanned<DeValue<'s>>> = match value.get_ref() {
            DeValue::Array(array) => array.iter().collect(),
            _ => vec![value],
        };
        let mut tables = Vec::new();
        for (index, entry) in values.iter().enumerate() {
            match entry.get_ref() {
                // A single table is read as if its header were right, so that its own mistakes come to light too.
                DeValue::Table(table) => tables.push(Spanned::new(entry.span(), table.clone())),
                _ => {
                    let mistake = Mistake::error(entry.span(), format!("entry {index} of `{name}` must be a table"));
                    self.diagnostics.push(mistake.help(format!("write each as a section: {header}")));
                    self.damaged = true;
                }
            }
        }
        if value.get_ref().is_table() {
            let mistake = Mistake::error(value.span(), format!("`{name}` must be a list of tables"));
            self.diagnostics.push(mistake.help(format!("write two brackets on each side: {header}")));
        }
        tables
    }

    fn port(&mut self, mut table: Spanned<DeTable<'_>>) -> PortEntry {
        let span = table.span();
        let name = name(table.get_ref(), "name");
        let lost = self.put_kind_outside(&mut table);
        let port = recover(&table, self.diagnostics).filter(|_| !lost);
        PortEntry { span, name, port }
    }

    /// Makes `{ generator = { size = 64 } }` of `{ kind = "generator", size = 64 }`: serde keeps the places of what is
    /// in the first form alone. True when there is no kind.
    fn put_kind_outside(&mut self, port: &mut Spanned<DeTable<'_>>) -> bool {
        let Some(link) = port.get_mut().get_mut("link") else { return false };
        let span = link.span();
        let DeValue::Table(table) = link.get_mut() else { return false };
        let kind = table.remove("kind");
        let Some((at, kind)) = kind.as_ref().and_then(|kind| Some((kind.span(), kind.get_ref().as_str()?))) else {
            if !self.diagnostics.is_damaged(&span) {
                let mistake = match &kind {
                    None => Mistake::error(span, "the key `kind` is missing"),
                    Some(kind) => Mistake::error(kind.span(), "the kind of a link is a string"),
                };
                self.diagnostics.push(mistake.help(format!("write kind = {LINKS}")));
            }
            port.get_mut().remove("link");
            return true;
        };
        let inside = Spanned::new(span, DeValue::Table(std::mem::take(table)));
        table.insert(Spanned::new(at, kind.to_owned().into()), inside);
        false
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
        let input: Option<Input> = recover(&Spanned::new(pipeline.span(), table), self.diagnostics);
        input.map(|input| (input.input.span(), input.input.into_inner()))
    }

    fn stage<'s>(&mut self, table: Spanned<DeTable<'s>>) -> StageEntry<'s> {
        let span = table.span();
        let (mut head, mut parameters) = (DeTable::new(), DeTable::new());
        for (key, value) in table.into_inner() {
            let common = HEAD_KEYS.contains(&key.get_ref().as_ref());
            if common { &mut head } else { &mut parameters }.insert(key, value);
        }
        let head = recover(&Spanned::new(span.clone(), head), self.diagnostics);
        StageEntry { head, parameters: Spanned::new(span.clone(), parameters), span }
    }
}

fn name(table: &DeTable<'_>, key: &str) -> Option<Name> {
    let value = table.get(key)?;
    Some(Spanned::new(value.span(), value.get_ref().as_str()?.to_owned()))
}

impl<'s> Loaded<'s> {
    /// The text that it was read from.
    pub fn source(&self) -> &'s Source {
        self.source
    }

    /// The ports that could be read, in the order of the config.
    pub fn ports(&self) -> impl Iterator<Item = &Port> {
        self.ports.iter().filter_map(|entry| entry.port.as_ref())
    }

    /// Each port of the config, as far as it could be read: a port that is wrong elsewhere has its name all the same.
    pub fn named_ports(&self) -> impl Iterator<Item = (&str, Option<&Port>)> {
        self.ports.iter().map(|entry| {
            let name = entry.name.as_ref().map_or("", |name| name.get_ref());
            (name, entry.port.as_ref())
        })
    }

    /// The name of a stage. None past the last stage, and where the config doesn't say.
    pub fn stage_name(&self, stage: usize) -> Option<&str> {
        Some(self.stages.get(stage)?.head.as_ref()?.name().get_ref())
    }

    /// How many stages the config lists.
    pub fn stage_count(&self) -> usize {
        self.stages.len()
    }

    /// The kind of a stage. None past the last stage, and where the config doesn't say.
    pub fn stage_kind(&self, stage: usize) -> Option<&str> {
        Some(self.stages.get(stage)?.head.as_ref()?.kind.get_ref())
    }

    /// The keys of a stage that are its own: all but `name`, `use`, `outputs`, `next` and `drops`. None past the last stage.
    pub fn stage_parameters(&self, stage: usize) -> Option<&Spanned<DeTable<'s>>> {
        self.stages.get(stage).map(|stage| &stage.parameters)
    }

    /// Reads the parameters of a stage by a function and notes all mistakes, as [`recover_with`](super::recover_with)
    /// does; a misspelt `outputs` gets its help too. None when there was a mistake, or no such stage.
    pub fn read_stage<T>(
        &self,
        stage: usize,
        mut read: impl FnMut(Spanned<DeTable<'s>>) -> Result<T, toml::de::Error>,
        diagnostics: &mut Diagnostics,
    ) -> Option<T> {
        recover_beside(self.stage_parameters(stage)?, &HEAD_KEYS, &mut read, diagnostics)
    }

    /// The place of a value by its path, such as `port[1].rx_depth`; of what is nearest around it when it isn't there.
    pub fn locate(&self, path: &str) -> Span {
        let steps = tree::parse_path(path).unwrap_or_default();
        self.nearest(&steps).unwrap_or(0..0)
    }

    /// The place of a value of a stage, such as `table[3].via`; of the stage when the value isn't there.
    pub fn locate_stage(&self, stage: usize, path: &str) -> Span {
        let stages = ["pipeline", "stage"].map(|key| Step::Key(key.to_owned()));
        let mut steps: Vec<Step> = stages.into_iter().chain([Step::Index(stage)]).collect();
        steps.extend(tree::parse_path(path).unwrap_or_default());
        self.nearest(&steps).unwrap_or(0..0)
    }

    fn nearest(&self, steps: &[Step]) -> Option<Span> {
        (1..=steps.len()).rev().find_map(|length| tree::span(&self.tree, &steps[..length]))
    }
}
