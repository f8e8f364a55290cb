//! The table of neighbours for `dataplane show neighbors`.

use std::net::IpAddr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Forwarding, ResolutionState};
use dataplane_core::pipeline::{Table, TablePage, TableQuery};

/// A neighbour: a host on the link of a port.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NeighborRow {
    /// The IP address.
    pub address: IpAddr,
    /// The port. `null` if the entry applies to all ports.
    pub port: Option<String>,
    /// The state of the resolution.
    pub state: NeighborState,
    /// The MAC address, if it is known.
    pub mac: Option<String>,
}

/// The state of the resolution of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NeighborState {
    /// The entry is from the config.
    Static,
    /// The MAC address is known.
    Resolved,
    /// The MAC address is not known yet.
    Unresolved,
    /// The neighbour did not answer.
    Failed,
}

/// The neighbours in tables that change during the run.
pub struct NeighborTable {
    /// The tables.
    pub tables: Arc<Forwarding>,
    /// The names of the ports.
    pub ports: Vec<String>,
}

impl Table for NeighborTable {
    type Row = NeighborRow;

    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<NeighborRow>, String> {
        let start: usize = match query.after() {
            Some(text) => {
                text.parse().map_err(|_| format!("`{}` is not a position in the table", text.escape_debug()))?
            }
            None => 0,
        };
        let (mut rows, slots) = (Vec::new(), self.tables.neighbor_slots());
        for slot in start..slots {
            let Some((hop, resolved)) = self.tables.neighbor_at(slot) else { continue };
            if rows.len() == query.limit() {
                return Ok(TablePage { rows, next: Some(slot.to_string()) });
            }
            let (state, mac) = match resolved {
                ResolutionState::At(mac) => (NeighborState::Resolved, Some(mac.to_string())),
                ResolutionState::Unknown => (NeighborState::Unresolved, None),
                ResolutionState::Failed => (NeighborState::Failed, None),
            };
            rows.push(NeighborRow {
                address: hop.address,
                port: self.ports.get(usize::from(hop.port)).cloned(),
                state,
                mac,
            });
        }
        Ok(TablePage { rows, next: None })
    }
}

/// The neighbours of a config.
pub struct ConfigNeighbors(pub Vec<(IpAddr, Option<String>, String)>);

impl Table for ConfigNeighbors {
    type Row = NeighborRow;

    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<NeighborRow>, String> {
        TablePage::of_list(&self.0, query, |(address, port, mac)| NeighborRow {
            address: *address,
            port: port.clone(),
            state: NeighborState::Static,
            mac: Some(mac.clone()),
        })
    }
}
