//! Finds, changes and removes entries of a TOML tree with spans. A path, such as `table[3].via`, names an entry.

use std::collections::{HashMap, HashSet};

use toml::Spanned;
use toml::de::{DeArray, DeValue};

use super::source::Span;

/// One step on a path through the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathStep {
    /// To the value of a key in a table.
    Key(String),
    /// To an element of an array.
    Index(usize),
}

/// Which kind of entry to choose if the span of an error fits more than one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefer {
    Key,
    Value,
    Table,
}

/// Parses a path such as `table[3].via`. Returns `None` if the brackets do not match.
pub(super) fn parse_path(text: &str) -> Option<Vec<PathStep>> {
    let mut steps = Vec::new();
    for part in text.split('.').filter(|part| !part.is_empty()) {
        let (key, mut rest) = part.split_at(part.find('[').unwrap_or(part.len()));
        if !key.is_empty() {
            steps.push(PathStep::Key(key.to_owned()));
        }
        while !rest.is_empty() {
            let (index, after) = rest.strip_prefix('[')?.split_once(']')?;
            steps.push(PathStep::Index(index.parse().ok()?));
            rest = after;
        }
    }
    Some(steps)
}

pub(super) fn get<'t, 'i>(root: &'t DeValue<'i>, path: &[PathStep]) -> Option<&'t DeValue<'i>> {
    path.iter().try_fold(root, |value, step| match (value, step) {
        (DeValue::Table(table), PathStep::Key(key)) => table.get(key.as_str()).map(|value| value.get_ref()),
        (DeValue::Array(array), PathStep::Index(index)) => array.get(*index).map(|value| value.get_ref()),
        _ => None,
    })
}

pub(super) fn get_mut<'t, 'i>(root: &'t mut DeValue<'i>, path: &[PathStep]) -> Option<&'t mut DeValue<'i>> {
    path.iter().try_fold(root, |value, step| match (value, step) {
        (DeValue::Table(table), PathStep::Key(key)) => table.get_mut(key.as_str()).map(|value| value.get_mut()),
        (DeValue::Array(array), PathStep::Index(index)) => array.get_mut(*index).map(|value| value.get_mut()),
        _ => None,
    })
}

/// Returns the span of the value at a path. Returns `None` for the root, whose span is unknown.
pub(super) fn span(root: &DeValue<'_>, path: &[PathStep]) -> Option<Span> {
    let (last, parents) = path.split_last()?;
    match (get(root, parents)?, last) {
        (DeValue::Table(table), PathStep::Key(key)) => table.get(key.as_str()).map(|value| value.span()),
        (DeValue::Array(array), PathStep::Index(index)) => array.get(*index).map(|value| value.span()),
        _ => None,
    }
}

/// Returns the number of values in a tree, the root included.
pub(super) fn count(value: &DeValue<'_>) -> usize {
    match value {
        DeValue::Array(array) => 1 + array.iter().map(|value| count(value.get_ref())).sum::<usize>(),
        DeValue::Table(table) => 1 + table.values().map(|value| count(value.get_ref())).sum::<usize>(),
        _ => 1,
    }
}

/// Collects all strings in the values of a tree.
pub(super) fn strings<'t>(value: &'t DeValue<'_>, into: &mut HashSet<&'t str>) {
    match value {
        DeValue::String(text) => {
            into.insert(text);
        }
        DeValue::Array(array) => array.iter().for_each(|value| strings(value.get_ref(), into)),
        DeValue::Table(table) => table.values().for_each(|value| strings(value.get_ref(), into)),
        _ => {}
    }
}

pub(super) fn remove(root: &mut DeValue<'_>, path: &[PathStep]) -> bool {
    let Some((last, parents)) = path.split_last() else { return false };
    match (get_mut(root, parents), last) {
        (Some(DeValue::Table(table)), PathStep::Key(key)) => table.remove(key.as_str()).is_some(),
        (Some(DeValue::Array(array)), PathStep::Index(index)) if *index < array.len() => {
            let kept = std::mem::replace(array, DeArray::new()).into_iter().enumerate().filter(|(at, _)| at != index);
            *array = kept.map(|(_, value)| value).collect();
            true
        }
        _ => false,
    }
}

/// Renames the keys that have these spans. If the table already has a key with the new name, the renamed key replaces
/// that key.
pub(super) fn rename(value: &mut DeValue<'_>, names: &HashMap<Span, String>) {
    match value {
        DeValue::Table(table) => {
            let found = table.keys().filter_map(|key| Some((key.clone(), names.get(&key.span())?)));
            for (old, name) in found.collect::<Vec<_>>() {
                if let Some(value) = table.remove(old.get_ref().as_ref()) {
                    table.insert(Spanned::new(old.span(), name.clone().into()), value);
                }
            }
            table.iter_mut().for_each(|(_, value)| rename(value.get_mut(), names));
        }
        DeValue::Array(array) => array.iter_mut().for_each(|value| rename(value.get_mut(), names)),
        _ => {}
    }
}

/// Returns the path of the entry that a span belongs to: the entry whose key or value has this span, or the smallest
/// entry around it.
pub(super) fn find(root: &DeValue<'_>, span: &Span, prefer: Prefer) -> Option<Vec<PathStep>> {
    let mut search = Search { span, prefer, path: Vec::new(), best: None };
    search.walk(root);
    search.best.map(|(_, path)| path)
}

struct Search<'s> {
    span: &'s Span,
    prefer: Prefer,
    path: Vec<PathStep>,
    /// The quality of the best match (smaller is better), and the path of that match.
    best: Option<((u8, usize), Vec<PathStep>)>,
}

impl Search<'_> {
    fn walk(&mut self, value: &DeValue<'_>) {
        match value {
            DeValue::Table(table) => {
                for (key, value) in table.iter() {
                    self.path.push(PathStep::Key(key.get_ref().to_string()));
                    self.weigh(Some(key.span()), value.span(), value.get_ref());
                    self.walk(value.get_ref());
                    self.path.pop();
                }
            }
            DeValue::Array(array) => {
                for (index, value) in array.iter().enumerate() {
                    self.path.push(PathStep::Index(index));
                    self.weigh(None, value.span(), value.get_ref());
                    self.walk(value.get_ref());
                    self.path.pop();
                }
            }
            _ => {}
        }
    }

    fn weigh(&mut self, key: Option<Span>, at: Span, value: &DeValue<'_>) {
        let span = self.span;
        let in_key = key.is_some_and(|key| key == *span);
        let in_value = at == *span && (self.prefer != Prefer::Table || value.is_table());
        let fit = match self.prefer {
            Prefer::Key if in_key => (0, 0),
            Prefer::Value | Prefer::Table if in_value => (0, 0),
            Prefer::Table => return,
            _ if in_key || in_value => (1, 0),
            _ if at.start <= span.start && span.end <= at.end => (2, at.len()),
            _ => return,
        };
        // For equal matches, take the later match, which is deeper in the tree. For example, an array of tables has the
        // same span as its first table.
        if self.best.as_ref().is_none_or(|(best, _)| fit <= *best) {
            self.best = Some((fit, self.path.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::*;

    #[test]
    fn path_is_parsed_and_found_by_its_span() {
        let tree = DeValue::Table(DeTable::parse("a = [1, { b = 'x' }]\n[[c]]\nd.e = 2\n").unwrap().into_inner());
        for (path, span) in [("a[1].b", 14..17), ("a[0]", 5..6), ("c[0].d.e", 33..34), ("a[1]", 8..19)] {
            let steps = parse_path(path).unwrap();
            assert_eq!(super::span(&tree, &steps), Some(span.clone()), "{path}");
            assert_eq!(find(&tree, &span, Prefer::Value), Some(steps), "{path}");
        }
        for path in ["a[x]", "a[1", "a]1["] {
            assert_eq!(parse_path(path).and_then(|steps| span(&tree, &steps)), None, "{path}");
        }
        assert_eq!(find(&tree, &(15..16), Prefer::Value), parse_path("a[1].b"));
    }
}
