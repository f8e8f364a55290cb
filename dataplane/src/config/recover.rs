//! Finds every mistake of a table that serde reads, not the first alone.
//!
//! serde stops at the first error. So each error is noted, what it complains of is taken out of a working copy (or, for
//! a key that is missing, put in with a stand-in value that the type accepts), and the copy is read again.

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostics::{Diagnostics, Mistake};
use super::explain::{explain, missing_key, nearest, variants};
use super::source::Span;
use super::tree::{self, Prefer, Step};

/// How many mistakes of one table are shown; a table with more of them was not meant to be this table.
const SHOWN: usize = 250;

/// How often a table is read at most.
const ATTEMPTS: usize = SHOWN * 8;

/// How many values are read at most for all attempts together, so that a huge table doesn't take minutes.
const VALUES: usize = 20_000_000;

/// Values that stand in for a missing one. Among them is one for nearly every type, found by trying.
const STAND_INS: [&str; 16] = [
    "1",
    "1.0",
    "true",
    "'x'",
    "[]",
    "{}",
    "'192.0.2.1'",
    "'192.0.2.0/24'",
    "'2001:db8::1'",
    "'2001:db8::/32'",
    "'02:00:00:00:00:01'",
    "'1s'",
    "'1'",
    "'00'",
    "[1]",
    "['x']",
];

/// The span of every stand-in; no text is this long.
const STAND_IN: Span = usize::MAX - 1..usize::MAX;

/// Reads a table as a `T`, and notes all its mistakes. None when there was one.
pub fn recover<'i, T: Deserialize<'i>>(table: &Spanned<DeTable<'i>>, diagnostics: &mut Diagnostics) -> Option<T> {
    recover_with(table, |table| T::deserialize(toml::de::Deserializer::from(table)), diagnostics)
}

/// Reads a table by a function, and notes all its mistakes. None when there was one.
///
/// A type that refuses a value with an error of its own says what would be right after the first line break of its
/// message. Untagged enums and flattened structs lose the places of what is inside them: better not use them.
///
/// `read` is called with ever different versions of the table, so it must have no effect but its result.
pub fn recover_with<'i, T>(
    table: &Spanned<DeTable<'i>>,
    mut read: impl FnMut(Spanned<DeTable<'i>>) -> Result<T, toml::de::Error>,
    diagnostics: &mut Diagnostics,
) -> Option<T> {
    recover_beside(table, &[], &mut read, diagnostics)
}

/// As [`recover_with`]. `beside` are keys that were taken out of the table before, of which an unknown one may be a
/// misspelling.
pub(super) fn recover_beside<'i, T>(
    table: &Spanned<DeTable<'i>>,
    beside: &'static [&'static str],
    read: &mut dyn FnMut(Spanned<DeTable<'i>>) -> Result<T, toml::de::Error>,
    diagnostics: &mut Diagnostics,
) -> Option<T> {
    let mut copy = Copy {
        beside,
        span: table.span(),
        root: DeValue::Table(table.get_ref().clone()),
        removed: Vec::new(),
        trial: None,
        noted: 0,
    };
    let attempts = (VALUES / tree::count(&copy.root)).clamp(100, ATTEMPTS);
    for attempt in 0..attempts {
        let DeValue::Table(root) = copy.root.clone() else { return None };
        match read(Spanned::new(copy.span.clone(), root)) {
            Ok(value) => return (attempt == 0).then_some(value),
            Err(error) if copy.settle(&error, diagnostics) => {}
            Err(_) => return None,
        }
    }
    copy.too_many(diagnostics);
    None
}

/// The working copy of a table.
struct Copy<'i> {
    beside: &'static [&'static str],
    span: Span,
    root: DeValue<'i>,
    /// What was taken out: the span of its table, and its key.
    removed: Vec<(Span, String)>,
    /// The stand-in that was put in last.
    trial: Option<Trial<'i>>,
    noted: usize,
}

/// A key that is missing, and the values still to be tried for it.
struct Trial<'i> {
    table: Vec<Step>,
    key: String,
    candidates: Vec<DeValue<'i>>,
}

impl<'i> Copy<'i> {
    /// Notes an error and changes the copy so that the next reading gets past it. False when there is no way past.
    fn settle(&mut self, error: &toml::de::Error, diagnostics: &mut Diagnostics) -> bool {
        let span = error.span().unwrap_or_else(|| self.span.clone());
        if let Some(mut trial) = self.trial.take()
            && span == STAND_IN
        {
            for name in variants(error.message()) {
                trial.candidates.push(DeValue::String(name.to_owned().into()));
            }
            return self.try_next(trial);
        }
        match missing_key(error.message()) {
            Some(key) => self.add(span, key, error.message(), diagnostics),
            None => self.remove(span, error.message(), diagnostics),
        }
    }

    fn too_many(&self, diagnostics: &mut Diagnostics) {
        let mistake = Mistake::error(self.span.clone(), "this table has more mistakes than are shown");
        diagnostics.push(mistake.help("correct those that are shown and check again"));
    }

    fn note(&mut self, span: Span, message: &str, diagnostics: &mut Diagnostics) -> bool {
        self.noted += 1;
        if self.noted > SHOWN {
            self.too_many(diagnostics);
            return false;
        }
        // What stands beside is in the outermost table, whose keys are one step away.
        let path = tree::find(&self.root, &span, Prefer::Key);
        let beside = if path.is_some_and(|path| path.len() == 1) { self.beside } else { &[] };
        let (message, help) = explain(message, beside);
        diagnostics.push(Mistake { help, ..Mistake::error(span, message) });
        true
    }

    fn add(&mut self, table: Span, key: &str, message: &str, diagnostics: &mut Diagnostics) -> bool {
        let entry = (table.clone(), key.to_owned());
        // A key under a wrong name was noted as that.
        let misspelt = |(at, name): &(Span, String)| *at == table && nearest(name, [key]).is_some();
        let known =
            self.removed.contains(&entry) || self.removed.iter().any(misspelt) || diagnostics.is_damaged(&table);
        if !known && !self.note(table.clone(), message, diagnostics) {
            return false;
        }
        let path = if table == self.span { Some(Vec::new()) } else { tree::find(&self.root, &table, Prefer::Table) };
        let Some(table) = path else { return false };
        // A key that is still missing with a stand-in for it would be tried for ever.
        if tree::get(&self.root, &table).and_then(DeValue::as_table).is_none_or(|found| found.contains_key(key)) {
            return self.give_up(&table);
        }
        let candidates = STAND_INS.iter().rev().filter_map(|text| Some(DeValue::parse(text).ok()?.into_inner()));
        let trial = Trial { table, key: key.to_owned(), candidates: candidates.collect() };
        self.try_next(trial)
    }

    fn try_next(&mut self, mut trial: Trial<'i>) -> bool {
        let Some(candidate) = trial.candidates.pop() else { return self.give_up(&trial.table) };
        let Some(DeValue::Table(table)) = tree::get_mut(&mut self.root, &trial.table) else { return false };
        table.remove(trial.key.as_str());
        table.insert(Spanned::new(STAND_IN, trial.key.clone().into()), Spanned::new(STAND_IN, candidate));
        self.trial = Some(trial);
        true
    }

    /// No value was found that a missing key accepts: without the whole table the others can be read.
    fn give_up(&mut self, table: &[Step]) -> bool {
        self.take_out(table)
    }

    fn remove(&mut self, span: Span, message: &str, diagnostics: &mut Diagnostics) -> bool {
        // What a type says of a whole table that has lost something may come of the loss.
        let follows = span == STAND_IN || self.removed.iter().any(|(table, _)| *table == span);
        if !follows && !self.note(span.clone(), message, diagnostics) {
            return false;
        }
        let prefer = if message.starts_with("unknown field") { Prefer::Key } else { Prefer::Value };
        match tree::find(&self.root, &span, prefer) {
            Some(path) => self.take_out(&path),
            None => false,
        }
    }

    fn take_out(&mut self, path: &[Step]) -> bool {
        let Some((last, parents)) = path.split_last() else { return false };
        if let Step::Key(key) = last {
            self.removed.push((tree::span(&self.root, parents).unwrap_or_else(|| self.span.clone()), key.clone()));
        } else if let Some(array) = tree::span(&self.root, parents) {
            // An array that lost an element: what is said of its length follows from that.
            self.removed.push((array, String::new()));
        }
        tree::remove(&mut self.root, path)
    }
}
