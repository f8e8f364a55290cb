//! Tables of stages that other programs can list while the pipeline runs.

use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// A table that `dataplane show` and other programs can list while the pipeline runs, such as the routes of a stage.
/// Register the table with [`Setup::table`], and declare it with [`StageInfo::tables`].
///
/// A control thread, never a worker, calls the methods of this trait. The methods may allocate, but must not wait for a
/// worker, and must not hold a lock that a worker needs.
///
/// [`Setup::table`]: super::Setup::table
/// [`StageInfo::tables`]: super::StageInfo::tables
pub trait Table: Send + Sync + 'static {
    /// A row of the table. A row must serialize to a JSON object, with the same fields for every row.
    type Row: Serialize + JsonSchema;

    /// Returns whether the rows contain counters of the stage ([`TableQuery::counter`]). The workers then report the
    /// counters before the table is read.
    fn needs_counters(&self) -> bool {
        false
    }

    /// Returns the next rows, at most [`TableQuery::limit`]. The rows must have a fixed order, so that a listing skips
    /// and repeats no row that exists during the whole listing.
    ///
    /// # Errors
    /// Fails if [`TableQuery::after`] is not a position of this table.
    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<Self::Row>, String>;

    /// Returns the row that applies to a key, such as the route for an address. Returns `None` if no row applies.
    ///
    /// # Errors
    /// Fails if the key is not valid, or if the table has no such lookup.
    fn find(&self, key: &str) -> Result<Option<Self::Row>, String> {
        let _ = key;
        Err("this table has no lookup by key".to_owned())
    }
}

/// The part of a table to list.
#[derive(Clone, Copy, Debug)]
pub struct TableQuery<'a> {
    after: Option<&'a str>,
    limit: usize,
    counters: &'a BTreeMap<String, u64>,
}

impl<'a> TableQuery<'a> {
    /// Creates a query for at most `limit` rows after a position. `counters` has the counters of the stage by name, if
    /// the table needs counters ([`Table::needs_counters`]).
    pub fn new(after: Option<&'a str>, limit: usize, counters: &'a BTreeMap<String, u64>) -> Self {
        Self { after, limit, counters }
    }

    /// Returns the position after which the listing continues: [`TablePage::next`] of the previous page. `None` at the
    /// start.
    pub fn after(&self) -> Option<&'a str> {
        self.after
    }

    /// Returns the maximum number of rows.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the value of a counter of the stage, summed over all workers.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or_default()
    }
}

/// Some consecutive rows of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePage<R> {
    /// The rows.
    pub rows: Vec<R>,
    /// The position after the last row, or `None` if there are no more rows.
    pub next: Option<String>,
}

impl<R> TablePage<R> {
    /// Returns the next rows of a list. The position of a row is its index.
    ///
    /// # Errors
    /// Fails if [`TableQuery::after`] is not an index.
    pub fn of_list<T>(list: &[T], query: &TableQuery<'_>, row: impl FnMut(&T) -> R) -> Result<Self, String> {
        let start = match query.after() {
            Some(text) => text.parse().map_err(|_| format!("`{}` is not an index", text.escape_debug()))?,
            None => 0,
        };
        let rows: Vec<R> = list.iter().skip(start).take(query.limit()).map(row).collect();
        let end = start.saturating_add(rows.len());
        Ok(Self { rows, next: (end < list.len()).then(|| end.to_string()) })
    }
}

/// A registered table.
pub struct StageTable {
    name: String,
    stage: String,
    table: Box<dyn AnyTable>,
}

impl fmt::Debug for StageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageTable").field("name", &self.name).field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl StageTable {
    pub(super) fn new(name: &str, stage: &str, table: impl Table) -> Self {
        Self { name: name.to_owned(), stage: stage.to_owned(), table: Box::new(table) }
    }

    /// Returns the name of the table, such as `routes`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the stage.
    pub fn stage(&self) -> &str {
        &self.stage
    }

    /// See [`Table::needs_counters`].
    pub fn needs_counters(&self) -> bool {
        self.table.needs_counters()
    }

    /// Returns the next rows as JSON. See [`Table::page`].
    ///
    /// # Errors
    /// Returns the errors of [`Table::page`], or an error if a row cannot be represented as JSON.
    pub fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<Box<RawValue>>, String> {
        self.table.page(query)
    }

    /// Returns the row that applies to a key as JSON. See [`Table::find`].
    ///
    /// # Errors
    /// Returns the errors of [`Table::find`], or an error if the row cannot be represented as JSON.
    pub fn find(&self, key: &str) -> Result<Option<Box<RawValue>>, String> {
        self.table.find(key)
    }
}

/// A table with any type of rows.
trait AnyTable: Send + Sync {
    fn needs_counters(&self) -> bool;
    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<Box<RawValue>>, String>;
    fn find(&self, key: &str) -> Result<Option<Box<RawValue>>, String>;
}

fn json(row: &impl Serialize) -> Result<Box<RawValue>, String> {
    to_raw_value(row).map_err(|error| error.to_string())
}

impl<T: Table> AnyTable for T {
    fn needs_counters(&self) -> bool {
        Table::needs_counters(self)
    }

    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<Box<RawValue>>, String> {
        let TablePage { rows, next } = Table::page(self, query)?;
        Ok(TablePage { rows: rows.iter().map(json).collect::<Result<_, _>>()?, next })
    }

    fn find(&self, key: &str) -> Result<Option<Box<RawValue>>, String> {
        Table::find(self, key)?.as_ref().map(json).transpose()
    }
}

/// The name of a table that a kind of stage has, and the schema of its rows.
#[derive(Clone, Copy, Debug)]
pub struct TableInfo {
    /// The name of the table, such as `routes`.
    pub name: &'static str,
    schema: fn(&mut SchemaGenerator) -> Schema,
}

impl TableInfo {
    /// Describes a table.
    pub const fn of<T: Table>(name: &'static str) -> Self {
        Self { name, schema: SchemaGenerator::subschema_for::<T::Row> }
    }

    /// Returns the JSON schema of a row.
    pub fn row_schema(&self, generator: &mut SchemaGenerator) -> Schema {
        (self.schema)(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_list_have_every_row_once() {
        let (list, counters) = ([10, 20, 30, 40, 50], BTreeMap::new());
        let (mut rows, mut after) = (Vec::new(), None::<String>);
        loop {
            let query = TableQuery::new(after.as_deref(), 2, &counters);
            let page = TablePage::of_list(&list, &query, |row| row + 1).unwrap();
            rows.extend(page.rows);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(rows, [11, 21, 31, 41, 51]);
        let query = |after| TablePage::of_list(&list, &TableQuery::new(Some(after), 2, &counters), |row| *row);
        assert_eq!(query("9"), Ok(TablePage { rows: Vec::new(), next: None }));
        assert!(query("x").is_err());
    }
}
