//! All routes that the kernel has, and which of them count.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ipnet::IpNet;
use netlink_packet_core::NLM_F_APPEND;

use super::messages::{Leads, Route};
use crate::stages::forwarding::ROUTES;

/// The kernel's table of its own addresses, which is asked first.
pub(super) const LOCAL: u32 = 255;
/// The kernel's main table.
pub(super) const MAIN: u32 = 254;

/// A route of one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    metric: u32,
    pub(super) leads: Leads,
}

/// Routes by table and prefix; those of one prefix in the order in which they count.
#[derive(Debug, Default)]
pub(super) struct Rib {
    routes: HashMap<(u32, IpNet), Vec<Choice>>,
    /// How many there are.
    count: usize,
    /// Prefixes of [`LOCAL`] that are more than one address: what lies in them is for this host, whatever else is said.
    wide: Vec<IpNet>,
    pub(super) refused: u64,
}

/// Whether a prefix is more than one address.
fn is_wide((table, prefix): (u32, IpNet)) -> bool {
    table == LOCAL && prefix.prefix_len() < prefix.max_prefix_len()
}

impl Rib {
    /// Adds a route, as a message with these flags says.
    pub(super) fn add(&mut self, route: Route, flags: u16) {
        let key = (route.table, route.prefix);
        let choice = Choice { metric: route.metric, leads: route.leads };
        let choices = match self.routes.entry(key) {
            Entry::Occupied(choices) => choices.into_mut(),
            Entry::Vacant(none) => none.insert(Vec::new()),
        };
        if choices.contains(&choice) {
            return;
        }
        let same = choices.iter().position(|known| known.metric == choice.metric);
        // IPv6 tells all paths of a metric together; IPv4 appends one behind the others, which it hides.
        let appended = flags & NLM_F_APPEND != 0 && matches!(key.1, IpNet::V4(_));
        match same {
            Some(at) if !appended => choices[at] = choice,
            _ if self.count >= ROUTES => {
                self.refused += 1;
                if choices.is_empty() {
                    self.routes.remove(&key);
                }
                return;
            }
            _ => {
                let at = choices.iter().position(|known| known.metric > choice.metric).unwrap_or(choices.len());
                choices.insert(at, choice);
                self.count += 1;
            }
        }
        if is_wide(key) && !self.wide.contains(&key.1) {
            self.wide.push(key.1);
        }
    }

    /// Takes a route out.
    pub(super) fn remove(&mut self, route: &Route) {
        let key = (route.table, route.prefix);
        let Entry::Occupied(mut entry) = self.routes.entry(key) else { return };
        let choices = entry.get_mut();
        let of_metric = |choice: &Choice| choice.metric == route.metric;
        let exact = choices.iter().position(|choice| of_metric(choice) && choice.leads == route.leads);
        let at = exact.or_else(|| choices.iter().position(of_metric));
        let Some(at) = at else { return };
        // IPv6 takes single paths out of many.
        if let (None, Leads::To(all), Leads::To(gone), IpNet::V6(_)) =
            (exact, &mut choices[at].leads, &route.leads, key.1)
        {
            let is_gone =
                |hop: &super::messages::NextHop| gone.iter().any(|gone| (gone.index, gone.via) == (hop.index, hop.via));
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

    /// The route that counts for a prefix of a table: of the main one with the host's own addresses first.
    pub(super) fn best(&self, table: u32, prefix: IpNet) -> Option<&Leads> {
        let first =
            |table| self.routes.get(&(table, prefix)).and_then(|choices| choices.first()).map(|best| &best.leads);
        if table != MAIN {
            return first(table);
        }
        let hidden = || self.wide.iter().any(|wide| *wide != prefix && wide.contains(&prefix));
        first(LOCAL).or_else(|| first(MAIN).filter(|_| !hidden()))
    }

    /// Prefixes of the host's own that hide others.
    pub(super) fn wide(&self) -> &[IpNet] {
        &self.wide
    }

    /// All tables and prefixes.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = (u32, IpNet)> + '_ {
        self.routes.keys().copied()
    }
}
