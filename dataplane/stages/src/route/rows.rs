//! The tables of routes for `dataplane show routes`.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Serialize;

use super::table::SharedRoutes;
use crate::forwarding::{Forwarding, ListedRoute, RouteKind, RouteTarget};
use dataplane_core::pipeline::{NextHop, Table, TablePage, TableQuery};

/// A route.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct RouteRow {
    /// The prefix of the destinations.
    pub(super) prefix: String,
    /// The number of the routing table. 0 is the main table. The other tables are tables of VRFs.
    pub(super) table: usize,
    /// The action for the packets.
    pub(super) action: RouteAction,
    /// The paths of forwarded packets. Several paths share the flows by their weights.
    pub(super) paths: Vec<PathRow>,
}

/// A path of a route.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct PathRow {
    /// The gateway, or `null` if the destinations are on the link.
    pub(super) via: Option<IpAddr>,
    /// The egress port.
    pub(super) port: String,
    /// The share of the flows, relative to the other paths.
    pub(super) weight: u16,
}

/// The action for the packets of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RouteAction {
    /// The packets are sent on a path.
    Forward,
    /// The packets are for this host.
    Local,
    /// The packets are dropped.
    Blackhole,
    /// The packets leave by the output `unreachable`.
    Unreachable,
    /// The packets leave by the output `prohibited`.
    Prohibit,
    /// The packets leave by the output `no_route`.
    Throw,
}

/// Parses the key of a lookup.
fn address(key: &str) -> Result<IpAddr, String> {
    key.parse().map_err(|_| format!("`{}` is not an IP address", key.escape_debug()))
}

/// Returns the name of a port.
fn port_name(ports: &[String], port: u8) -> String {
    ports.get(usize::from(port)).cloned().unwrap_or_default()
}

/// Routes of the config.
pub(super) struct ConfigRoutes {
    pub(super) routes: Arc<SharedRoutes>,
    pub(super) ports: Vec<String>,
    pub(super) next_hops: Vec<NextHop>,
}

impl ConfigRoutes {
    fn row(&self, (prefix, group): &(IpNet, u32)) -> RouteRow {
        let mut action = RouteAction::Forward;
        let mut paths = Vec::new();
        for (path, weight) in self.routes.paths.of_group(*group) {
            match path.action {
                super::paths::PathAction::Drop => action = RouteAction::Blackhole,
                super::paths::PathAction::Local => action = RouteAction::Local,
                super::paths::PathAction::Forward => {
                    let gateway = path.next_hop.checked_sub(1).and_then(|at| self.next_hops.get(at as usize));
                    paths.push(PathRow {
                        via: gateway.map(|hop| hop.address),
                        port: port_name(&self.ports, path.egress),
                        weight,
                    });
                }
            }
        }
        RouteRow { prefix: prefix.to_string(), table: 0, action, paths }
    }
}

impl Table for ConfigRoutes {
    type Row = RouteRow;

    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<RouteRow>, String> {
        TablePage::of_list(&self.routes.listed, query, |route| self.row(route))
    }

    fn find(&self, key: &str) -> Result<Option<RouteRow>, String> {
        let listed = &self.routes.listed;
        let at = |prefix: &IpNet| listed.binary_search_by_key(prefix, |(prefix, _)| *prefix).ok();
        Ok(self.routes.longest(address(key)?).and_then(|(prefix, _)| Some(self.row(listed.get(at(&prefix)?)?))))
    }
}

/// Routes of the kernel.
pub(super) struct KernelRoutes {
    pub(super) tables: Arc<Forwarding>,
    pub(super) ports: Vec<String>,
}

impl KernelRoutes {
    fn row(&self, (table, prefix, target): &ListedRoute) -> RouteRow {
        let (action, paths) = match &**target {
            RouteTarget::Paths(hops) => {
                let path = |hop: &crate::forwarding::RouteHop| PathRow {
                    via: hop.via,
                    port: port_name(&self.ports, hop.port),
                    weight: hop.weight,
                };
                (RouteAction::Forward, hops.iter().map(path).collect())
            }
            RouteTarget::Special(kind) => {
                let action = match kind {
                    RouteKind::Forward => RouteAction::Forward,
                    RouteKind::Local => RouteAction::Local,
                    RouteKind::Blackhole => RouteAction::Blackhole,
                    RouteKind::Unreachable => RouteAction::Unreachable,
                    RouteKind::Prohibit => RouteAction::Prohibit,
                    RouteKind::Throw => RouteAction::Throw,
                };
                (action, Vec::new())
            }
        };
        RouteRow { prefix: prefix.to_string(), table: *table, action, paths }
    }
}

impl Table for KernelRoutes {
    type Row = RouteRow;

    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<RouteRow>, String> {
        let position = |text: &str| {
            let (table, prefix) = text.split_once(' ')?;
            Some((table.parse().ok()?, prefix.parse().ok()?))
        };
        let after = match query.after() {
            Some(text) => Some(position(text).ok_or_else(|| {
                format!("`{}` is not a table number and a prefix, such as `0 10.0.0.0/8`", text.escape_debug())
            })?),
            None => None,
        };
        let routes = self.tables.routes_after(after, query.limit());
        let next = routes.last().filter(|_| routes.len() == query.limit());
        let next = next.map(|(table, prefix, _)| format!("{table} {prefix}"));
        Ok(TablePage { rows: routes.iter().map(|route| self.row(route)).collect(), next })
    }

    fn find(&self, key: &str) -> Result<Option<RouteRow>, String> {
        Ok(self.tables.route_for(0, address(key)?).map(|route| self.row(&route)))
    }
}
