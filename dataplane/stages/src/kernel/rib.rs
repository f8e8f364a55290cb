//! All routes of the kernel, and the choice of the best route of each prefix.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_REPLACE};

use super::messages::{KernelTarget, Route};
use crate::forwarding::MAX_ROUTES;

/// The kernel's table of the host's own addresses. The kernel looks up this table first.
pub(super) const LOCAL: u32 = 255;
/// The kernel's main table.
pub(super) const MAIN: u32 = 254;

/// One of the routes of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankedRoute {
    metric: u32,
    pub(super) target: KernelTarget,
}

/// Routes by table and prefix. The routes of a prefix are in order of preference.
#[derive(Debug, Default)]
pub(super) struct Rib {
    routes: HashMap<(u32, IpNet), Vec<RankedRoute>>,
    /// Number of routes.
    count: usize,
    /// Prefixes of [`LOCAL`] that cover more than one address. Every address in these prefixes belongs to this host,
    /// even if another table has a longer prefix for the address.
    wide: Vec<IpNet>,
    /// Number of routes that were not added because [`MAX_ROUTES`] routes are known.
    pub(super) refused: u64,
}

/// Whether an entry is a prefix of [`LOCAL`] that covers more than one address.
fn is_wide((table, prefix): (u32, IpNet)) -> bool {
    table == LOCAL && prefix.prefix_len() < prefix.max_prefix_len()
}

impl Rib {
    /// Adds a route, or replaces a known route. `flags` are the netlink flags of the message.
    pub(super) fn add(&mut self, route: Route, flags: u16) {
        let key = (route.table, route.prefix);
        let ranked = RankedRoute { metric: route.metric, target: route.target };
        let choices = match self.routes.entry(key) {
            Entry::Occupied(choices) => choices.into_mut(),
            Entry::Vacant(none) => none.insert(Vec::new()),
        };
        if choices.contains(&ranked) {
            return;
        }
        let same = choices.iter().position(|known| known.metric == ranked.metric);
        // An IPv6 message lists all paths of its prefix and metric, so the message replaces the known route. An IPv4
        // message replaces the first known route of equal metric only if it has the replace flag. With the append flag,
        // the new route follows the known routes of equal metric. Without these flags, the new route precedes them
        // (`ip route prepend`).
        let replaces = flags & NLM_F_REPLACE != 0 || matches!(key.1, IpNet::V6(_));
        let appended = flags & NLM_F_APPEND != 0;
        match same {
            Some(at) if replaces => choices[at] = ranked,
            _ if self.count >= MAX_ROUTES => {
                self.refused += 1;
                if choices.is_empty() {
                    self.routes.remove(&key);
                }
                return;
            }
            _ => {
                let behind = || choices.iter().position(|known| known.metric > ranked.metric).unwrap_or(choices.len());
                let at = same.filter(|_| !appended).unwrap_or_else(behind);
                choices.insert(at, ranked);
                self.count += 1;
            }
        }
        if is_wide(key) && !self.wide.contains(&key.1) {
            self.wide.push(key.1);
        }
    }

    /// Removes a route.
    pub(super) fn remove(&mut self, route: &Route) {
        let key = (route.table, route.prefix);
        let Entry::Occupied(mut entry) = self.routes.entry(key) else { return };
        let choices = entry.get_mut();
        let of_metric = |ranked: &RankedRoute| ranked.metric == route.metric;
        let exact = choices.iter().position(|ranked| of_metric(ranked) && ranked.target == route.target);
        let at = exact.or_else(|| choices.iter().position(of_metric));
        let Some(at) = at else { return };
        // An IPv6 message can remove single paths of a multipath route.
        if let (None, KernelTarget::Hops(all), KernelTarget::Hops(gone), IpNet::V6(_)) =
            (exact, &mut choices[at].target, &route.target, key.1)
        {
            let is_gone = |hop: &super::messages::KernelHop| {
                gone.iter().any(|gone| (gone.index, gone.via) == (hop.index, hop.via))
            };
            let left: Vec<_> = all.iter().filter(|hop| !is_gone(hop)).copied().collect();
            if !left.is_empty() {
                *all = left.into();
                return;
            }
        }
        choices.remove(at);
        self.count -= 1;
        if choices.is_empty() {
            entry.remove();
            self.wide.retain(|wide| !is_wide(key) || *wide != key.1);
        }
    }

    /// Returns the target of the best route for a prefix of a table. In the main table, the host's own addresses come
    /// first.
    pub(super) fn best(&self, table: u32, prefix: IpNet) -> Option<&KernelTarget> {
        let first =
            |table| self.routes.get(&(table, prefix)).and_then(|choices| choices.first()).map(|best| &best.target);
        if table != MAIN {
            return first(table);
        }
        let hidden = || self.wide.iter().any(|wide| *wide != prefix && wide.contains(&prefix));
        first(LOCAL).or_else(|| first(MAIN).filter(|_| !hidden()))
    }

    /// Returns the prefixes of [`LOCAL`] that cover more than one address. Routes of the main table for longer prefixes
    /// inside these prefixes are not used.
    pub(super) fn wide(&self) -> &[IpNet] {
        &self.wide
    }

    /// Returns all tables and prefixes.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = (u32, IpNet)> + '_ {
        self.routes.keys().copied()
    }
}
