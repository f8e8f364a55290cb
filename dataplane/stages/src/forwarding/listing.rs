//! The list of routes for readers that are not workers.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;

use super::groups::RouteKind;

/// One path of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteHop {
    /// The egress port.
    pub port: u8,
    /// The gateway. Without a gateway, the destinations are neighbours on the link.
    pub via: Option<IpAddr>,
    /// The weight of this path among all paths of the route: 1 to 64.
    pub weight: u16,
}

/// The target of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// A route without paths. The kind defines the action for packets.
    Special(RouteKind),
    /// One or more paths.
    Paths(Vec<RouteHop>),
}

/// A route: its table, its prefix and its target.
pub type ListedRoute = (usize, IpNet, Arc<RouteTarget>);

/// The routes in the order of table and prefix. The lookup tables of the workers have no order. A lock protects the
/// list. Workers never access the list, so they never wait for the lock. A reader holds the lock while it copies one
/// page of routes ([`Listing::page`]), not longer.
#[derive(Debug, Default)]
pub(super) struct Listing(Mutex<ListedRoutes>);

#[derive(Debug, Default)]
struct ListedRoutes {
    /// The number of the group of each route.
    groups: BTreeMap<(usize, IpNet), u32>,
    /// The target of each group.
    targets: HashMap<u32, Arc<RouteTarget>>,
}

impl ListedRoutes {
    fn route(&self, (&(table, prefix), group): (&(usize, IpNet), &u32)) -> Option<ListedRoute> {
        Some((table, prefix, self.targets.get(group)?.clone()))
    }
}

impl Listing {
    fn lock(&self) -> MutexGuard<'_, ListedRoutes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a route, or changes its target.
    pub(super) fn set(&self, table: usize, prefix: IpNet, group: u32, target: &RouteTarget) {
        let mut routes = self.lock();
        // The known target may belong to an earlier group with this number. `remove_group` is not called for a one-path
        // group if a group with several paths still refers to it when its last route is removed. The target of the
        // one-path group then stays in the map until the number is reused.
        if routes.targets.get(&group).is_none_or(|known| **known != *target) {
            routes.targets.insert(group, Arc::new(target.clone()));
        }
        routes.groups.insert((table, prefix), group);
    }

    pub(super) fn remove(&self, table: usize, prefix: IpNet) {
        self.lock().groups.remove(&(table, prefix));
    }

    /// Removes the target of a group that no route uses.
    pub(super) fn remove_group(&self, group: u32) {
        self.lock().targets.remove(&group);
    }

    /// Returns up to `limit` routes after a position, in the order of table and prefix.
    pub(super) fn page(&self, after: Option<(usize, IpNet)>, limit: usize) -> Vec<ListedRoute> {
        let routes = self.lock();
        let from = after.map_or(Unbounded, Excluded);
        // The group of each route has a target, so `filter_map` skips no route.
        routes.groups.range((from, Unbounded)).filter_map(|route| routes.route(route)).take(limit).collect()
    }

    /// Returns the route with the longest prefix for an address.
    pub(super) fn find(&self, table: usize, address: IpAddr) -> Option<ListedRoute> {
        let (routes, longest) = (self.lock(), if address.is_ipv4() { 32 } else { 128 });
        let prefixes = (0..=longest).rev().filter_map(|length| IpNet::new(address, length).ok());
        let known = prefixes.filter_map(|prefix| routes.groups.get_key_value(&(table, prefix.trunc())));
        known.into_iter().next().and_then(|route| routes.route(route))
    }
}
