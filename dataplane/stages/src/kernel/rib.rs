//! All routes of the kernel, and the choice of the best route of each prefix.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_EXCL, NLM_F_REPLACE};

use super::messages::{KernelHop, KernelRoute, KernelTarget};
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

impl RankedRoute {
    fn hops(&self) -> impl Iterator<Item = &KernelHop> {
        let hops = match &self.target {
            KernelTarget::Hops(hops) => &hops[..],
            KernelTarget::Special(_) => &[],
        };
        hops.iter()
    }

    /// Returns whether the route has next hops, and `other` has all these next hops.
    fn is_part_of(&self, other: &Self) -> bool {
        let KernelTarget::Hops(all) = &other.target else { return false };
        self.hops().next().is_some() && self.hops().all(|hop| is_any(hop, all))
    }
}

/// Returns whether a next hop is one of `hops`. The weight may differ.
fn is_any(hop: &KernelHop, hops: &[KernelHop]) -> bool {
    hops.iter().any(|other| (other.index, other.via) == (hop.index, hop.via))
}

/// What is known about the events of one prefix and metric during a replay ([`Rib::start_replay`]).
#[derive(Clone, Copy, Debug)]
enum ReplayedEvents {
    /// There was one event. If the dump already contains the change, applying the event again has no effect.
    One,
    /// All events replaced the first route. The last event names the route that is now the first route of the kernel.
    Replacements,
    /// An event named all routes of the prefix and metric, so the routes before this event do not matter.
    Complete,
}

/// Routes by table and prefix. The routes of a prefix are in order of preference.
#[derive(Debug, Default)]
pub(super) struct Rib {
    routes: HashMap<(u32, IpNet), Vec<RankedRoute>>,
    /// The number of routes.
    count: usize,
    /// Prefixes of [`LOCAL`] that cover more than one address. Every address in these prefixes belongs to this host,
    /// even if another table has a longer prefix for the address.
    wide: Vec<IpNet>,
    /// The number of routes that were not added because [`MAX_ROUTES`] routes are known.
    pub(super) refused: u64,
    /// The events of a replay, by table, prefix and metric. `None` if no replay is in progress.
    replayed: Option<HashMap<(u32, IpNet, u32), ReplayedEvents>>,
    /// Whether the routes may differ from the routes of the kernel.
    in_doubt: bool,
}

/// Returns whether an entry is a prefix of [`LOCAL`] that covers more than one address.
fn is_wide((table, prefix): (u32, IpNet)) -> bool {
    table == LOCAL && prefix.prefix_len() < prefix.max_prefix_len()
}

impl Rib {
    /// Starts a replay: after a dump, the task applies the events that were queued during the dump. The dump may
    /// already contain the changes of these events. If several of these events change one prefix, the resulting routes
    /// are not always certain.
    pub(super) fn start_replay(&mut self) {
        self.replayed = Some(HashMap::new());
    }

    /// Ends the replay. All later events are newer than the dump.
    pub(super) fn end_replay(&mut self) {
        self.replayed = None;
    }

    /// Returns whether the routes may differ from the routes of the kernel because of an event since the last call.
    pub(super) fn take_in_doubt(&mut self) -> bool {
        std::mem::take(&mut self.in_doubt)
    }

    /// Records an event of a replay.
    fn record(&mut self, (table, prefix): (u32, IpNet), metric: u32, event: ReplayedEvents) {
        use ReplayedEvents::{Complete, Replacements};
        let Some(replayed) = &mut self.replayed else { return };
        match replayed.entry((table, prefix, metric)) {
            Entry::Vacant(none) => {
                none.insert(event);
            }
            Entry::Occupied(mut known) => match (*known.get(), event) {
                (_, Complete) => *known.get_mut() = event,
                (Complete, _) | (Replacements, Replacements) => {}
                _ => self.in_doubt = true,
            },
        }
    }

    /// Adds a route, or replaces a known route. `flags` are the netlink flags of the message.
    pub(super) fn add(&mut self, route: KernelRoute, flags: u16) {
        let key = (route.table, route.prefix);
        let ranked = RankedRoute { metric: route.metric, target: route.target };
        // A message with the exclusive flag reports the only route of its prefix and metric.
        let complete = flags & NLM_F_EXCL != 0;
        let is_v6 = matches!(key.1, IpNet::V6(_));
        // An IPv4 message replaces the first known route of equal metric only if it has the replace flag. With the
        // append flag, the new route follows the known routes of equal metric. Without these flags, the new route
        // precedes them (`ip route prepend`).
        let replaces = flags & NLM_F_REPLACE != 0;
        // A new IPv6 route always follows the known routes of equal metric.
        let appended = flags & NLM_F_APPEND != 0 || is_v6;
        self.record(
            key,
            ranked.metric,
            match (complete, replaces) {
                (true, _) => ReplayedEvents::Complete,
                (_, true) => ReplayedEvents::Replacements,
                _ => ReplayedEvents::One,
            },
        );
        let choices = match self.routes.entry(key) {
            Entry::Occupied(choices) => choices.into_mut(),
            Entry::Vacant(none) => none.insert(Vec::new()),
        };
        let before = choices.len();
        if complete {
            choices.retain(|known| known.metric != ranked.metric || *known == ranked);
        } else if is_v6 && !replaces {
            // An IPv6 message lists all paths of a multipath route. Each path was a route, or a path of a smaller
            // multipath route. Any other route of this metric stays, such as the route of a router advertisement.
            choices.retain(|known| known.metric != ranked.metric || *known == ranked || !known.is_part_of(&ranked));
        }
        self.count -= before - choices.len();
        // The kernel replaces a route of the same kind: an IPv6 route with a gateway, or one without a gateway.
        let of_metric = choices.iter().filter(|known| known.metric == ranked.metric);
        self.in_doubt |= is_v6 && replaces && of_metric.count() > 1;
        if choices.contains(&ranked) {
            return;
        }
        let same = choices.iter().position(|known| known.metric == ranked.metric);
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
    pub(super) fn remove(&mut self, route: &KernelRoute) {
        let key = (route.table, route.prefix);
        self.record(key, route.metric, ReplayedEvents::One);
        let Entry::Occupied(mut entry) = self.routes.entry(key) else { return };
        let choices = entry.get_mut();
        let of_metric = |ranked: &RankedRoute| ranked.metric == route.metric;
        let exact = choices.iter().position(|ranked| of_metric(ranked) && ranked.target == route.target);
        // An IPv6 message can remove single paths of a multipath route.
        let gone = match (&route.target, key.1) {
            (KernelTarget::Hops(gone), IpNet::V6(_)) => &gone[..],
            _ => &[],
        };
        let partly =
            || choices.iter().position(|ranked| of_metric(ranked) && ranked.hops().any(|hop| is_any(hop, gone)));
        let Some(at) = exact.or_else(partly) else {
            // The kernel removed a route that is not known. During a replay, this is usual: if the route was removed
            // before the dump, the dump does not contain the route. Outside a replay, or if the message has no next
            // hops, a known route has lost next hops without an event, so the routes are in doubt.
            let is_dead = matches!(&route.target, KernelTarget::Hops(hops) if hops.is_empty());
            self.in_doubt |= choices.iter().any(of_metric) && (is_dead || self.replayed.is_none());
            return;
        };
        if exact.is_none() {
            let left: Box<[KernelHop]> = choices[at].hops().filter(|hop| !is_any(hop, gone)).copied().collect();
            if !left.is_empty() {
                choices[at].target = KernelTarget::Hops(left);
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

    /// Returns an iterator that frees the routes of one prefix per step, because dropping a large RIB at once takes
    /// long.
    pub(super) fn into_routes(self) -> impl Iterator<Item = Vec<RankedRoute>> {
        self.routes.into_values()
    }

    /// Returns all tables and prefixes.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = (u32, IpNet)> + '_ {
        self.routes.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::NLM_F_CREATE;
    use proptest::prelude::*;

    use super::*;

    const ADD: u16 = NLM_F_CREATE | NLM_F_EXCL;
    const PREPEND: u16 = NLM_F_CREATE;
    const APPEND: u16 = NLM_F_CREATE | NLM_F_APPEND;

    /// An event of the prefix 20.0.0.0/8: the flags of a new route, or `None` for a removal; metric; gateway.
    type Event = (Option<u16>, u32, u8);

    fn prefix() -> IpNet {
        "20.0.0.0/8".parse().unwrap()
    }

    fn target(gateway: u8) -> KernelTarget {
        let via = Some([10, 1, 0, gateway].into());
        KernelTarget::Hops(Box::new([KernelHop { index: 7, via, weight: 1, encapsulated: false }]))
    }

    fn apply(rib: &mut Rib, (flags, metric, gateway): Event) {
        let route = KernelRoute { table: MAIN, prefix: prefix(), metric, target: target(gateway) };
        match flags {
            Some(flags) => rib.add(route, flags),
            None => rib.remove(&route),
        }
    }

    /// Reads the routes of the kernel, as a resync does.
    fn dump(kernel: &[(u32, u8)]) -> Rib {
        let mut rib = Rib::default();
        kernel.iter().for_each(|(metric, gateway)| apply(&mut rib, (Some(NLM_F_APPEND), *metric, *gateway)));
        rib.start_replay();
        rib
    }

    fn is_equal(rib: &Rib, kernel: &[(u32, u8)]) -> bool {
        let ranked = |(metric, gateway): &(u32, u8)| RankedRoute { metric: *metric, target: target(*gateway) };
        let expected: Vec<_> = kernel.iter().map(ranked).collect();
        rib.count == expected.len() && rib.routes.get(&(MAIN, prefix())).map_or(&[][..], |known| known) == expected
    }

    /// Executes a command as `fib_table_insert` and `fib_table_delete` of the kernel do. Returns whether the kernel
    /// reports an event.
    fn execute(kernel: &mut Vec<(u32, u8)>, (flags, metric, gateway): Event) -> bool {
        let known = kernel.iter().position(|route| *route == (metric, gateway));
        let Some(flags) = flags else { return known.map(|at| kernel.remove(at)).is_some() };
        let first = kernel.iter().position(|(known, _)| *known == metric);
        let behind = kernel.iter().position(|(known, _)| *known > metric).unwrap_or(kernel.len());
        // The kernel sets the exclusive flag exactly if no other route of the prefix has this metric.
        if known.is_some() || (flags & NLM_F_EXCL != 0) != first.is_none() {
            return false;
        }
        match first {
            Some(at) if flags & NLM_F_REPLACE != 0 => kernel[at].1 = gateway,
            Some(at) if flags & NLM_F_APPEND == 0 => kernel.insert(at, (metric, gateway)),
            _ => kernel.insert(behind, (metric, gateway)),
        }
        true
    }

    fn commands(most: usize) -> impl Strategy<Value = Vec<Event>> {
        let flags = prop::sample::select(vec![Some(ADD), Some(PREPEND), Some(APPEND), Some(NLM_F_REPLACE), None]);
        prop::collection::vec((flags, 0..2u32, 0..4u8), 0..most)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// The replay has events that are older than the dump, followed by newer events. After the replay, the mirror
        /// has the routes of the kernel, or reports that a resync is needed. Each event after the replay then keeps the
        /// routes equal.
        #[test]
        fn routes_after_a_replay_are_the_routes_of_the_kernel_or_in_doubt(
            before in commands(12),
            older in commands(8),
            newer in commands(4),
            later in commands(12),
        ) {
            let mut kernel = Vec::new();
            for command in before {
                execute(&mut kernel, command);
            }
            let mut events: Vec<Event> = older.into_iter().filter(|command| execute(&mut kernel, *command)).collect();
            let mut rib = dump(&kernel);
            events.extend(newer.into_iter().filter(|command| execute(&mut kernel, *command)));
            events.iter().for_each(|event| apply(&mut rib, *event));
            if rib.take_in_doubt() {
                rib = dump(&kernel);
            }
            prop_assert!(is_equal(&rib, &kernel), "{:?} instead of {:?} after {:?}", rib, kernel, events);
            rib.end_replay();
            for event in later {
                if !execute(&mut kernel, event) {
                    continue;
                }
                apply(&mut rib, event);
                prop_assert!(is_equal(&rib, &kernel), "{:?} instead of {:?} after {:?}", rib, kernel, event);
            }
            prop_assert!(!rib.take_in_doubt());
        }
    }

    /// Routing daemons cause such sequences of events. If these sequences needed a resync, each resync during
    /// convergence would need a further resync.
    #[test]
    fn usual_events_of_routing_daemons_need_no_further_resync() {
        let (add, replace, remove) = (|to| (Some(ADD), 0, to), |to| (Some(NLM_F_REPLACE), 0, to), |to| (None, 0, to));
        for events in [
            vec![add(1), replace(2), replace(3), remove(3)],
            vec![replace(1), replace(2), replace(0)],
            vec![remove(0), add(1), remove(1), add(0), replace(1)],
            vec![remove(0)],
        ] {
            for older in 0..=events.len() {
                let mut kernel = if events[0] == add(1) { Vec::new() } else { vec![(0, 0)] };
                let mut rib = Rib::default();
                for (number, event) in events.iter().enumerate() {
                    if number == older {
                        rib = dump(&kernel);
                    }
                    assert!(execute(&mut kernel, *event));
                }
                if older == events.len() {
                    rib = dump(&kernel);
                }
                events.iter().for_each(|event| apply(&mut rib, *event));
                assert!(is_equal(&rib, &kernel) && !rib.take_in_doubt(), "{events:?} with {older} older events");
            }
        }
    }
}
