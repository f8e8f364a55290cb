//! Finds every mistake in a table that serde reads, not only the first.
//!
//! A comparison with the JSON schema of the table finds all unknown and missing keys. Serde finds wrong values, but
//! stops at the first wrong value. This module therefore lets serde read a working copy of the table. After each error,
//! this module reports the error, removes the wrong entry from the copy, and lets serde read the copy again. If serde
//! reports a missing key, serde has already read all values of that table, so the whole table is removed.

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::diagnostics::{Diagnostics, MOST, Mistake};
use super::keys::{Expected, KeyCheck};
use super::source::Span;
use super::tree::{self, PathStep, Prefer};
use dataplane_core::parse_errors::{explain, missing_key};

/// The maximum number of reported mistakes in one table. A table with more mistakes was probably meant to be another
/// table.
const SHOWN: usize = 50;

/// The maximum number of times that a table is read.
const ATTEMPTS: usize = SHOWN * 8;

/// The maximum number of values that are read in all attempts together. This bounds the time for a huge table.
const VALUES: usize = 1_000_000;

/// Reads a table as a `T`, and reports all mistakes of the table. The caller has already removed the extra keys of
/// [`Expected`] from the table.
/// Returns `None` if a value of the table is wrong or missing. An unknown key is reported too, but the result is still
/// a `T`.
pub(super) fn recover<'i, T: Deserialize<'i>>(
    table: &Spanned<DeTable<'i>>,
    expected: Expected<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<T> {
    let mut read = |table| T::deserialize(toml::de::Deserializer::from(table));
    recover_with(table, expected, &mut read, diagnostics)
}

/// Reads a table with the function `read`, and reports all mistakes. Returns `None` if a value is wrong or missing.
///
/// If a type rejects a value with its own error, the text after `; help: ` is the help. Untagged
/// enums and flattened structs lose the positions of their content, so config types should avoid them.
///
/// After each mistake, `read` is called again with a table without the wrong entry, so `read` must have no side
/// effects.
pub(super) fn recover_with<'i, T>(
    table: &Spanned<DeTable<'i>>,
    expected: Expected<'_>,
    read: &mut dyn FnMut(Spanned<DeTable<'i>>) -> Result<T, toml::de::Error>,
    diagnostics: &mut Diagnostics,
) -> Option<T> {
    let mut root = table.get_ref().clone();
    // After `MOST` mistakes, the diagnostics contain one last entry: there are more mistakes than are shown.
    let limit = (diagnostics.count() + SHOWN).min(MOST + 1);
    let mut check = KeyCheck { diagnostics: &mut *diagnostics, limit, removed: Vec::new(), has_lost_values: false };
    check.check(&table.span(), &mut root, expected);
    let KeyCheck { removed, has_lost_values, .. } = check;
    let mut copy = WorkingCopy {
        extra_keys: expected.extra_keys,
        span: table.span(),
        root: DeValue::Table(root),
        removed,
        has_lost_values,
    };
    let attempts = (VALUES / tree::count(&copy.root)).clamp(4, ATTEMPTS);
    for _ in 0..attempts {
        if diagnostics.count() >= limit {
            break;
        }
        let DeValue::Table(root) = copy.root.clone() else { return None };
        match read(Spanned::new(copy.span.clone(), root)) {
            Ok(value) => return (!copy.has_lost_values).then_some(value),
            Err(error) if copy.settle(&error, diagnostics) => {}
            Err(_) => return None,
        }
    }
    let mistake = Mistake::error(table.span(), "this table may have more mistakes than are shown");
    diagnostics.push(mistake.help("fix the reported mistakes and check again"));
    None
}

/// The working copy of a table.
struct WorkingCopy<'i> {
    extra_keys: &'static [&'static str],
    span: Span,
    root: DeValue<'i>,
    /// The removed entries: the span of the table, and the key.
    removed: Vec<(Span, String)>,
    /// Whether the copy lacks a value of the table.
    has_lost_values: bool,
}

impl WorkingCopy<'_> {
    /// Reports an error, and removes the entry that caused the error. Returns `false` if there is no such entry.
    fn settle(&mut self, error: &toml::de::Error, diagnostics: &mut Diagnostics) -> bool {
        let span = error.span().unwrap_or_else(|| self.span.clone());
        let message = error.message();
        let removed = self.removed.iter().filter(|(table, _)| *table == span);
        // An error about a whole table may be a consequence of a removed entry.
        let (prefer, follows) = match missing_key(message) {
            Some(key) => {
                (Prefer::Table, removed.into_iter().any(|(_, name)| name == key) || diagnostics.is_damaged(&span))
            }
            None if message.starts_with("unknown field") => (Prefer::Key, false),
            None => (Prefer::Value, removed.count() > 0),
        };
        self.has_lost_values |= prefer != Prefer::Key;
        let path = tree::find(&self.root, &span, prefer);
        if let (false, Some(key)) = (follows, missing_key(message)) {
            diagnostics.push_missing_key(span, key);
        } else if !follows {
            // The extra keys are valid only in the outermost table. The path to a key of that table has one step.
            let extra_keys = if path.as_ref().is_some_and(|path| path.len() == 1) { self.extra_keys } else { &[] };
            let (message, help) = explain(message, extra_keys);
            diagnostics.push(Mistake { help, ..Mistake::error(span, message) });
        }
        path.is_some_and(|path| self.take_out(&path))
    }

    fn take_out(&mut self, path: &[PathStep]) -> bool {
        let Some((last, parents)) = path.split_last() else { return false };
        let parent = tree::span(&self.root, parents).unwrap_or_else(|| self.span.clone());
        // A removed array element has no key. Record the element anyway, because a later error may be about the length
        // of the array.
        let key = if let PathStep::Key(key) = last { key.clone() } else { String::new() };
        self.removed.push((parent, key));
        tree::remove(&mut self.root, path)
    }
}
