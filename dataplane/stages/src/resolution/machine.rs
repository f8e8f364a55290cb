//! The state machine of neighbours: the states of RFC 4861, section 7.3, used for IPv6 and for ARP.
//!
//! The state machine reads no clock and sends no frames. The inputs are the requests of workers, received messages and
//! the current time. The outputs are actions.

use std::collections::HashMap;

use crate::forwarding::{ReportedEvent, ResolutionState};
use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::NextHop;
use dataplane_tables::bucket::TokenBucket;

/// Milliseconds since the start of the resolver.
type Millis = u64;

/// How long an answer is awaited, in milliseconds (RFC 4861, section 10: RETRANS_TIMER).
pub(super) const RETRANS_TIMER: Millis = 1000;
/// The maximum number of requests by multicast or broadcast, and of requests by unicast (MAX_MULTICAST_SOLICIT,
/// MAX_UNICAST_SOLICIT).
pub(super) const MAX_SOLICITS: u8 = 3;
/// The time from the first use of a stale neighbour to the first unicast request, in milliseconds
/// (DELAY_FIRST_PROBE_TIME).
pub(super) const FIRST_PROBE_DELAY: Millis = 5000;
/// The interval between unicast requests that verify a MAC address in doubt, in milliseconds. All these requests
/// together take [`RETRANS_TIMER`].
pub(super) const VERIFY_INTERVAL: Millis = RETRANS_TIMER / MAX_SOLICITS as Millis;
/// The time for which a neighbour that did not answer is not requested again, in milliseconds.
pub(super) const FAILED_TIME: Millis = 3000;
/// The rate limits of requests. Each limit counts only its own requests. So the repeated requests of a scan do not
/// delay the first request for a new neighbour. A scan also does not delay the requests to known neighbours.
#[derive(Clone, Copy, Debug)]
enum RequestLimit {
    /// The first request for an unknown neighbour, if the request is sent immediately.
    First,
    /// The first multicast or broadcast request for an unknown neighbour, in two cases: the rate limit delayed the
    /// request, or unicast requests to the MAC address from a received message got no answer.
    Waiting,
    /// A repeated request for an unknown neighbour.
    Repeat,
    /// A request to a neighbour that has answered before, or a multicast or broadcast request to a gateway.
    Known,
    /// A unicast request to a neighbour that has never answered. The neighbour's own message contained the MAC address.
    Claimed,
}

impl RequestLimit {
    /// The requests per second and the burst of each limit.
    const ALL: [(u64, u64); 5] = [(1000, 128), (500, 64), (500, 64), (500, 64), (500, 64)];
}

/// How long a neighbour waits for its first request if the limit is reached, in milliseconds. After that time, the next
/// packet to the neighbour starts a new wait.
const MAX_WAIT: Millis = 200;
/// The age at which an unknown neighbour counts as failed if the limit delays its repeated requests, in milliseconds.
const MAX_REPEAT_TIME: Millis = RETRANS_TIMER * (MAX_SOLICITS as Millis + 1);
/// The maximum number of neighbours that are evicted at once is `most` ([`Settings`]) divided by this number, but at
/// least 1. The same number of entries is reserved for neighbours that have never answered.
const EVICTION_DIVISOR: usize = 16;

/// The parameters of the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The maximum number of neighbours of each port.
    pub(super) most: usize,
    /// About how long an answer is valid, in milliseconds.
    pub(super) reachable: Millis,
    /// How long an unused neighbour is kept, in milliseconds.
    pub(super) ageing: Millis,
}

/// The kind of a message from a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeighborMessageKind {
    /// An answer to a request of this host.
    Reply,
    /// An announcement, or a message that was overheard.
    Announcement,
    /// A request for an address of this host. Packets for the neighbour will follow.
    Request,
}

/// A received message about a neighbour.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedMessage {
    pub(super) hop: NextHop,
    /// MAC address in the message. `None` means the known MAC address.
    pub(super) mac: Option<MacAddr>,
    pub(super) kind: NeighborMessageKind,
    /// Whether the message has the override flag (RFC 4861). ARP messages and solicitations count as messages with the
    /// flag.
    pub(super) overrides: bool,
}

/// An output of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighborAction {
    /// Write this state of a neighbour to the table.
    Set(NextHop, ResolutionState, ReportedEvent),
    /// Remove a neighbour from the table.
    Forget(NextHop),
    /// Send a request: by unicast if a MAC address is given, and by multicast or broadcast otherwise.
    Ask(NextHop, Option<MacAddr>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MachineState {
    /// Not resolved yet. The number counts the requests sent by multicast or broadcast.
    Incomplete(u8),
    /// The neighbour did not answer.
    Failed,
    Reachable(MacAddr),
    Stale(MacAddr),
    /// A stale neighbour that was used since it became stale.
    Delay(MacAddr),
    /// The neighbour is being verified. The number counts the requests sent by unicast.
    Probe(MacAddr, u8),
    /// The MAC address is in use and is being verified, because a message contradicts the MAC address, or because the
    /// neighbour has never answered. The number counts the requests sent by unicast.
    Doubted(MacAddr, u8),
}

#[derive(Clone, Copy, Debug)]
struct NeighborRecord {
    state: MachineState,
    /// The time at which the state ends by timeout.
    until: Millis,
    /// The time at which the neighbour was last confirmed. If the neighbour was never confirmed, the time at which the
    /// entry was created.
    since: Millis,
    /// Whether the neighbour ever answered.
    confirmed: bool,
    /// Whether a packet for a gateway of the config has used this entry. Multicast and broadcast requests to such a
    /// gateway have the same limit as requests to neighbours that have answered. The gateway is not evicted.
    is_gateway: bool,
}

/// The state machine of all neighbours of one port. Each port has its own entries and limits, so a flood on one port
/// does not affect the neighbours of other ports.
#[derive(Debug)]
pub(super) struct StateMachine {
    settings: Settings,
    entries: HashMap<NextHop, NeighborRecord>,
    /// The buckets of each [`RequestLimit`].
    limits: [TokenBucket; RequestLimit::ALL.len()],
    random: u64,
    /// Whether the last search for neighbours to evict found none. Reset at each timeout check. Index 0: room was
    /// needed for a neighbour that a worker requested. Index 1: room was needed for a neighbour that sent a request to
    /// this host.
    full: [bool; 2],
    pub(super) asked: u64,
    pub(super) refused: u64,
    pub(super) evicted: u64,
}

impl StateMachine {
    pub(super) fn new(settings: Settings, seed: u64) -> Self {
        let limits = RequestLimit::ALL.map(|(rate, burst)| TokenBucket::new(rate, burst, 0));
        let (entries, random) = (HashMap::new(), seed | 1);
        Self { settings, entries, limits, random, full: [false; 2], asked: 0, refused: 0, evicted: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes over a neighbour that an earlier state machine has resolved. A forged message may have created the earlier
    /// entry, so the neighbour counts as a neighbour that has never answered. At the next use of the neighbour, its MAC
    /// address is verified.
    pub(super) fn take_over(
        &mut self,
        hop: NextHop,
        mac: MacAddr,
        is_gateway: bool,
        actions: &mut Vec<NeighborAction>,
    ) {
        if is_gateway || self.entries.len() < self.settings.most {
            self.stale(hop, mac, 0, actions);
            if let Some(entry) = self.entries.get_mut(&hop) {
                entry.is_gateway = is_gateway;
            }
        }
    }

    /// Handles a packet of a worker for a neighbour that is unknown or stale. `askable` is `false` if the
    /// address cannot belong to a neighbour on the port, such as a broadcast address.
    pub(super) fn request(&mut self, hop: NextHop, askable: bool, now: Millis, actions: &mut Vec<NeighborAction>) {
        let known = self.entries.get(&hop).map(|entry| entry.state);
        match known {
            None if !self.make_room(false, actions) => self.refused += 1,
            None if askable => self.ask_by_multicast(hop, 0, RequestLimit::First, now, actions),
            None => self.fail(hop, now, actions),
            // A forged message may have created the entry, so verify the MAC address at its first use.
            Some(MachineState::Stale(mac)) if !self.is_confirmed(hop) && self.verify(hop, mac, 0, now, actions) => {}
            Some(MachineState::Stale(mac)) => {
                self.set_state(hop, MachineState::Delay(mac), now + FIRST_PROBE_DELAY, now, actions)
            }
            Some(_) => {}
        }
    }

    /// Handles a packet of a worker for a gateway of the config, like [`StateMachine::request`]. The gateway gets an
    /// entry even if the port has its maximum number of neighbours.
    pub(super) fn request_gateway(
        &mut self,
        hop: NextHop,
        askable: bool,
        now: Millis,
        actions: &mut Vec<NeighborAction>,
    ) {
        if let Some(entry) = self.entries.get_mut(&hop) {
            // A message, or a packet before the config had this gateway, may have created the entry.
            entry.is_gateway = true;
        } else if askable {
            let (state, is_gateway) = (MachineState::Incomplete(0), true);
            self.entries.insert(hop, NeighborRecord { state, until: now, since: now, confirmed: false, is_gateway });
            return self.ask_by_multicast(hop, 0, RequestLimit::First, now, actions);
        }
        self.request(hop, askable, now, actions);
    }

    /// Handles a message of a neighbour. A message with a different MAC address never replaces the known MAC address.
    /// If such a message has the override flag, the state machine verifies the known MAC address. RFC 4861 (sections
    /// 7.2.3 and 7.2.5) instead accepts the different MAC address immediately in the states stale, delay and probe.
    pub(super) fn receive(&mut self, heard: &ReceivedMessage, now: Millis, actions: &mut Vec<NeighborAction>) {
        let ReceivedMessage { hop, kind, overrides, .. } = *heard;
        let known = self.entries.get(&hop).map(|entry| entry.state);
        let known_mac = match known {
            Some(MachineState::Reachable(mac) | MachineState::Stale(mac) | MachineState::Delay(mac)) => Some(mac),
            Some(MachineState::Probe(mac, _) | MachineState::Doubted(mac, _)) => Some(mac),
            Some(MachineState::Incomplete(_) | MachineState::Failed) | None => None,
        };
        let Some(mac) = heard.mac.or(known_mac) else { return };
        let asks = kind == NeighborMessageKind::Request;
        match (known, known_mac == Some(mac)) {
            // An answer that was not requested creates no entry. A request for an address of this host creates an
            // entry, because packets to the sender of the request will follow.
            (None, _) if asks && self.make_room(true, actions) => self.stale(hop, mac, now, actions),
            (None, _) => self.refused += u64::from(asks),
            (Some(MachineState::Incomplete(_) | MachineState::Failed), _) if kind == NeighborMessageKind::Reply => {
                self.confirm(hop, mac, now, actions);
            }
            // Packets use the MAC address from now on, so verify the MAC address immediately.
            (Some(MachineState::Incomplete(_) | MachineState::Failed), _) => {
                if !self.verify(hop, mac, 0, now, actions) {
                    self.stale(hop, mac, now, actions);
                }
            }
            (Some(MachineState::Probe(..) | MachineState::Doubted(..)), true) if kind == NeighborMessageKind::Reply => {
                self.confirm(hop, mac, now, actions);
            }
            (Some(_), true) => {}
            // Wait for an answer from the known MAC address. If no answer arrives, ask by multicast or broadcast.
            (Some(MachineState::Doubted(..)), false) => {}
            (
                Some(
                    MachineState::Reachable(old)
                    | MachineState::Stale(old)
                    | MachineState::Delay(old)
                    | MachineState::Probe(old, _),
                ),
                false,
            ) if overrides => {
                self.verify(hop, old, 0, now, actions);
            }
            (Some(MachineState::Reachable(old)), false) => self.stale(hop, old, now, actions),
            (Some(MachineState::Stale(_) | MachineState::Delay(_) | MachineState::Probe(..)), false) => {}
        }
    }

    /// Handles timeouts. The caller must call this function several times a second.
    pub(super) fn check_timeouts(&mut self, now: Millis, actions: &mut Vec<NeighborAction>) {
        self.full = [false; 2];
        let due = |(hop, entry): (&NextHop, &NeighborRecord)| (entry.until <= now).then_some((*hop, *entry));
        let mut due: Vec<(NextHop, NeighborRecord)> = self.entries.iter().filter_map(due).collect();
        // Known neighbours and gateways are asked first, the longest wait first. All other neighbours are asked in
        // random order, because most of them may be unused addresses that a host scans.
        due.sort_unstable_by_key(|(hop, _)| *hop);
        due.sort_by_cached_key(|(_, entry)| match entry.state {
            MachineState::Incomplete(_) if !entry.confirmed && !entry.is_gateway => (true, self.random()),
            _ => (false, entry.until),
        });
        for (hop, entry) in due {
            match entry.state {
                MachineState::Incomplete(MAX_SOLICITS..) => self.fail(hop, now, actions),
                MachineState::Incomplete(0) => self.ask_by_multicast(hop, 0, RequestLimit::Waiting, now, actions),
                MachineState::Incomplete(tries) => {
                    self.ask_by_multicast(hop, tries, RequestLimit::Repeat, now, actions)
                }
                MachineState::Failed | MachineState::Stale(_) => {
                    self.entries.remove(&hop);
                    actions.push(NeighborAction::Forget(hop));
                }
                MachineState::Reachable(mac) => self.stale(hop, mac, now, actions),
                MachineState::Delay(mac) => self.probe(hop, mac, 0, now, actions),
                MachineState::Probe(mac, tries @ ..MAX_SOLICITS) => self.probe(hop, mac, tries, now, actions),
                MachineState::Doubted(mac, tries @ ..MAX_SOLICITS) => _ = self.verify(hop, mac, tries, now, actions),
                MachineState::Probe(..) | MachineState::Doubted(..) => {
                    self.ask_by_multicast(hop, 0, RequestLimit::Waiting, now, actions)
                }
            }
        }
    }

    /// Forgets all neighbours, because the link of the port has changed.
    pub(super) fn forget_all(&mut self, actions: &mut Vec<NeighborAction>) {
        actions.extend(self.entries.drain().map(|(hop, _)| NeighborAction::Forget(hop)));
    }

    /// Removes a neighbour that the table refused.
    pub(super) fn refuse(&mut self, hop: NextHop) {
        self.refused += 1;
        self.entries.remove(&hop);
    }

    fn permits(&mut self, limit: RequestLimit, now: Millis) -> bool {
        self.limits[limit as usize].take(now * 1_000_000, 1)
    }

    /// Asks by multicast or broadcast, if the rate limit allows. An unknown neighbour that waits too long is given up,
    /// so that the entries of a scan do not pile up.
    fn ask_by_multicast(
        &mut self,
        hop: NextHop,
        tries: u8,
        limit: RequestLimit,
        now: Millis,
        actions: &mut Vec<NeighborAction>,
    ) {
        let known = self.entries.get(&hop).copied();
        let is_known = known.is_some_and(|entry| entry.confirmed || entry.is_gateway);
        let age = known.map_or(0, |entry| now.saturating_sub(entry.since));
        if self.permits(if is_known { RequestLimit::Known } else { limit }, now) {
            self.asked += 1;
            self.set_state(hop, MachineState::Incomplete(tries + 1), now + RETRANS_TIMER, now, actions);
            actions.push(NeighborAction::Ask(hop, None));
        } else if is_known || age < if tries == 0 { MAX_WAIT } else { MAX_REPEAT_TIME } {
            self.set_state(hop, MachineState::Incomplete(tries), now, now, actions);
        } else if tries == 0 {
            self.refused += 1;
            self.entries.remove(&hop);
            actions.push(NeighborAction::Forget(hop));
        } else {
            self.fail(hop, now, actions);
        }
    }

    /// Asks a neighbour by unicast whether it still exists, if the rate limit allows.
    fn probe(&mut self, hop: NextHop, mac: MacAddr, tries: u8, now: Millis, actions: &mut Vec<NeighborAction>) {
        self.ask_by_unicast(hop, (MachineState::Probe(mac, tries + 1), RETRANS_TIMER), mac, now, actions);
    }

    /// Asks a neighbour by unicast whether it still has this MAC address, if the rate limit allows. Returns whether the
    /// neighbour is asked.
    fn verify(
        &mut self,
        hop: NextHop,
        mac: MacAddr,
        tries: u8,
        now: Millis,
        actions: &mut Vec<NeighborAction>,
    ) -> bool {
        self.ask_by_unicast(hop, (MachineState::Doubted(mac, tries + 1), VERIFY_INTERVAL), mac, now, actions)
    }

    /// Asks by unicast and sets `state` for the time `time`, if the rate limit allows. Returns whether the neighbour is
    /// asked.
    fn ask_by_unicast(
        &mut self,
        hop: NextHop,
        (state, time): (MachineState, Millis),
        mac: MacAddr,
        now: Millis,
        actions: &mut Vec<NeighborAction>,
    ) -> bool {
        let limit = if self.is_confirmed(hop) { RequestLimit::Known } else { RequestLimit::Claimed };
        let is_permitted = self.permits(limit, now);
        if is_permitted {
            self.asked += 1;
            self.set_state(hop, state, now + time, now, actions);
            actions.push(NeighborAction::Ask(hop, Some(mac)));
        }
        is_permitted
    }

    fn is_confirmed(&self, hop: NextHop) -> bool {
        self.entries.get(&hop).is_some_and(|entry| entry.confirmed)
    }

    fn fail(&mut self, hop: NextHop, now: Millis, actions: &mut Vec<NeighborAction>) {
        self.set_state(hop, MachineState::Failed, now + FAILED_TIME, now, actions);
    }

    fn stale(&mut self, hop: NextHop, mac: MacAddr, now: Millis, actions: &mut Vec<NeighborAction>) {
        self.set_state(hop, MachineState::Stale(mac), now + self.settings.ageing, now, actions);
    }

    /// Handles an answer. The answer is valid for a random time between half and three halves of `reachable`, so that
    /// not all neighbours are asked at the same time.
    fn confirm(&mut self, hop: NextHop, mac: MacAddr, now: Millis, actions: &mut Vec<NeighborAction>) {
        let time = self.settings.reachable / 2 + self.random() % self.settings.reachable.max(1);
        self.set_state(hop, MachineState::Reachable(mac), now + time, now, actions);
        if let Some(entry) = self.entries.get_mut(&hop) {
            (entry.confirmed, entry.since) = (true, now);
        }
    }

    /// Returns a random number: Marsaglia's xorshift.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn set_state(
        &mut self,
        hop: NextHop,
        state: MachineState,
        until: Millis,
        now: Millis,
        actions: &mut Vec<NeighborAction>,
    ) {
        let new = NeighborRecord { state, until, since: now, confirmed: false, is_gateway: false };
        let entry = self.entries.entry(hop).or_insert(new);
        (entry.state, entry.until) = (state, until);
        let (resolved, event) = match state {
            MachineState::Incomplete(_) => (ResolutionState::Unknown, ReportedEvent::Answer),
            MachineState::Failed => (ResolutionState::Failed, ReportedEvent::Answer),
            MachineState::Reachable(mac) | MachineState::Delay(mac) => (ResolutionState::At(mac), ReportedEvent::None),
            MachineState::Stale(mac) => (ResolutionState::At(mac), ReportedEvent::NextUse),
            MachineState::Probe(mac, _) | MachineState::Doubted(mac, _) => {
                (ResolutionState::At(mac), ReportedEvent::Answer)
            }
        };
        actions.push(NeighborAction::Set(hop, resolved, event));
    }

    /// Makes room for one more neighbour. Returns `false` if there is no room. Evicts neither neighbours in use
    /// nor gateways.
    ///
    /// A share of the entries ([`EVICTION_DIVISOR`]) is reserved for neighbours that have never answered, so that a new
    /// neighbour has time to answer during a scan. If such neighbours use the whole share, evicts the oldest quarter of
    /// these neighbours. Otherwise, evicts the oldest neighbours that have answered before, and are now stale or do not
    /// answer any more.
    ///
    /// For a neighbour that sent a request to this host (`asked_us`), evicts the oldest neighbours that have never
    /// answered. Without such neighbours, evicts the oldest neighbour that has answered before but does not answer any
    /// more. Never evicts a stale neighbour that has answered before.
    fn make_room(&mut self, asked_us: bool, actions: &mut Vec<NeighborAction>) -> bool {
        if self.entries.len() < self.settings.most {
            return true;
        }
        if self.full[usize::from(asked_us)] {
            return false;
        }
        let rank = |(hop, entry): (&NextHop, &NeighborRecord)| match entry.state {
            _ if entry.is_gateway => None,
            MachineState::Stale(_) if entry.confirmed && asked_us => None,
            MachineState::Stale(_) | MachineState::Incomplete(_) | MachineState::Failed => {
                Some((entry.confirmed, entry.since, *hop))
            }
            _ => None,
        };
        // Evict several neighbours at once. Otherwise, each new neighbour of a flood would cause a scan of the table.
        let mut gone: Vec<_> = self.entries.iter().filter_map(rank).collect();
        let unconfirmed = gone.iter().filter(|(confirmed, ..)| !confirmed).count();
        let share = (self.settings.most / EVICTION_DIVISOR).max(1);
        let count = if !asked_us && unconfirmed < share && unconfirmed < gone.len() {
            gone.retain(|(confirmed, ..)| *confirmed);
            share - unconfirmed
        } else {
            (unconfirmed / 4).clamp(1, share)
        };
        if let Some(last) = gone.len().min(count).checked_sub(1) {
            gone.select_nth_unstable(last);
            gone.truncate(last + 1);
        }
        for (.., hop) in &gone {
            self.entries.remove(hop);
            self.evicted += 1;
            actions.push(NeighborAction::Forget(*hop));
        }
        self.full[usize::from(asked_us)] = gone.is_empty();
        !gone.is_empty()
    }
}
