//! The table of MAC addresses for `dataplane show bridge`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use schemars::JsonSchema;
use serde::Serialize;

use super::table::{BridgeTable, UNIT};
use dataplane_core::pipeline::{Table, TablePage, TableQuery};

/// The MAC addresses that a bridge has learned.
pub(super) struct LearnedMacs {
    pub(super) table: Arc<BridgeTable>,
    pub(super) ports: Vec<String>,
}

/// A MAC address that a bridge has learned.
#[derive(Serialize, JsonSchema)]
pub(super) struct BridgeRow {
    /// The MAC address.
    mac: String,
    /// The VLAN id, or 0 for untagged frames.
    vlan: u16,
    /// The port on which the last frame from this address arrived.
    port: Option<String>,
    /// The time since the last frame from this address, in seconds. The resolution is four seconds.
    age_s: u64,
}

impl Table for LearnedMacs {
    type Row = BridgeRow;

    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<BridgeRow>, String> {
        let start: usize = match query.after() {
            Some(text) => text.parse().map_err(|_| format!("`{}` is not an index", text.escape_debug()))?,
            None => 0,
        };
        let (mut rows, now) = (Vec::new(), self.table.now.load(Ordering::Relaxed));
        for index in start..self.table.words.len() {
            let Some(entry) = self.table.entry(index, now) else { continue };
            if rows.len() == query.limit() {
                return Ok(TablePage { rows, next: Some(index.to_string()) });
            }
            rows.push(BridgeRow {
                mac: entry.mac.to_string(),
                vlan: entry.vlan,
                port: self.ports.get(usize::from(entry.port)).cloned(),
                age_s: entry.age * UNIT,
            });
        }
        Ok(TablePage { rows, next: None })
    }
}
