//! What is known of neighbours, and what is to be asked: the states of RFC 4861, section 7.3, for IPv6 and for ARP alike.
//!
//! It has no clock and no port: it is told what was heard and how late it is, and says what to do.

use std::collections::HashMap;

use crate::header::MacAddr;
use crate::pipeline::NextHop;
use crate::stages::forwarding::{Mark, Resolved};
use crate::stages::table::bucket::TokenBucket;

/// Milliseconds since the start.
type Millis = u64;

/// How long an answer is waited for (RFC 4861, section 10: RETRANS_TIMER).
pub(super) const ANSWER: Millis = 1000;
/// How often is asked, of all stations and of one (MAX_MULTICAST_SOLICIT, MAX_UNICAST_SOLICIT).
pub(super) const TRIES: u8 = 3;
/// How long one that is used may be unconfirmed before it is asked (DELAY_FIRST_PROBE_TIME).
pub(super) const DELAY: Millis = 5000;
/// How long one that did not answer is not asked again.
pub(super) const PENANCE: Millis = 3000;
/// Questions about neighbours that are not known, in a second and at once; as many are to spare for those that are known.
const QUESTIONS: (u64, u64) = (500, 64);
/// Where room has to be made, this part of all that fit may be forgotten at once.
const AT_ONCE: usize = 16;

/// What a config may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The most neighbours.
    pub(super) most: usize,
    /// About how long an answer is believed, in milliseconds.
    pub(super) reachable: Millis,
    /// How long one that nobody uses is kept, in milliseconds.
    pub(super) ageing: Millis,
}

/// What a station says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It answers a question of this host.
    Answer,
    /// It announces itself, or can be overheard.
    Announces,
    /// It asks for this host: there will be packets for it.
    Asks,
}

/// What was heard of a neighbour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub(super) hop: NextHop,
    /// Where it says it is; without one, where it is known to be.
    pub(super) mac: Option<MacAddr>,
    pub(super) claim: Claim,
    /// Whether what is known is to give way, in its opinion.
    pub(super) overrides: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Workers are to know this of a neighbour.
    Set(NextHop, Resolved, Mark),
    /// They are to know nothing of it any more.
    Forget(NextHop),
    /// It is to be asked where it is: all stations, or this one.
    Ask(NextHop, Option<MacAddr>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Asked of all so many times.
    Incomplete(u8),
    /// It did not answer.
    Failed,
    Reachable(MacAddr),
    Stale(MacAddr),
    /// It was used since it became stale.
    Delay(MacAddr),
    /// Asked itself so many times.
    Probe(MacAddr, u8),
    /// It is believed, and somebody else claims its address: asked itself once.
    Doubted(MacAddr),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// When the state ends by itself.
    until: Millis,
    /// When it was last confirmed, or else first heard of.
    since: Millis,
    /// Whether it ever answered.
    confirmed: bool,
}

/// Neighbours.
#[derive(Debug)]
pub(super) struct Machine {
    settings: Settings,
    entries: HashMap<NextHop, Entry>,
    /// What questions to all, and to single stations, may cost.
    wide: TokenBucket,
    narrow: TokenBucket,
    random: u64,
    /// Until the next turn there is no room to be made, for those that are wanted and for those that ask.
    full: [bool; 2],
    pub(super) asked: u64,
    pub(super) refused: u64,
    pub(super) evicted: u64,
}

impl Machine {
    pub(super) fn new(settings: Settings, seed: u64) -> Self {
        let bucket = || TokenBucket::new(QUESTIONS.0, QUESTIONS.1, 0);
        let (entries, random) = (HashMap::new(), seed | 1);
        Self {
            settings,
            entries,
            wide: bucket(),
            narrow: bucket(),
            random,
            full: [false; 2],
            asked: 0,
            refused: 0,
            evicted: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A worker has a packet for a neighbour that it does not know, or that is stale. `askable`: there is such a neighbour,
    /// for all that is known of the port.
    pub(super) fn wanted(&mut self, hop: NextHop, askable: bool, now: Millis, acts: &mut Vec<Act>) {
        let known = self.entries.get(&hop).map(|entry| entry.state);
        match known {
            None if !self.make_room(false, acts) => self.refused += 1,
            None if askable => self.ask_all(hop, 0, now, acts),
            None => self.fail(hop, now, acts),
            Some(State::Stale(mac)) => self.enter(hop, State::Delay(mac), now + DELAY, now, acts),
            Some(_) => {}
        }
    }

    /// A station said something. What does not fit what is known is not believed at once: see the arms.
    pub(super) fn heard(&mut self, heard: &Heard, now: Millis, acts: &mut Vec<Act>) {
        let Heard { hop, claim, overrides, .. } = *heard;
        let known = self.entries.get(&hop).map(|entry| entry.state);
        let there = match known {
            Some(State::Reachable(mac) | State::Stale(mac) | State::Delay(mac)) => Some(mac),
            Some(State::Probe(mac, _) | State::Doubted(mac)) => Some(mac),
            Some(State::Incomplete(_) | State::Failed) | None => None,
        };
        let Some(mac) = heard.mac.or(there) else { return };
        let asks = claim == Claim::Asks;
        match (known, there == Some(mac)) {
            // Who answers a question that nobody asked is not taken in; who asks is about to get packets.
            (None, _) if asks && self.make_room(true, acts) => self.stale(hop, mac, now, acts),
            (None, _) => self.refused += u64::from(asks),
            (Some(State::Incomplete(_) | State::Failed), _) if claim == Claim::Answer => {
                self.confirm(hop, mac, now, acts);
            }
            (Some(State::Incomplete(_) | State::Failed), _) => self.stale(hop, mac, now, acts),
            (Some(State::Probe(..) | State::Doubted(_)), true) if claim == Claim::Answer => {
                self.confirm(hop, mac, now, acts);
            }
            (Some(_), true) => {}
            // Its old place answers, or it does not: then it is asked of all.
            (Some(State::Doubted(_)), false) => {}
            (Some(State::Reachable(old)), false) if overrides => {
                if self.narrow.take(now * 1_000_000, 1) {
                    self.ask_one(hop, State::Doubted(old), old, now, acts);
                }
            }
            (Some(State::Reachable(old)), false) => self.stale(hop, old, now, acts),
            (Some(State::Probe(..)), false) if overrides && claim == Claim::Answer => self.confirm(hop, mac, now, acts),
            (Some(State::Stale(_) | State::Delay(_) | State::Probe(..)), false) if overrides => {
                self.stale(hop, mac, now, acts);
            }
            (Some(State::Stale(_) | State::Delay(_) | State::Probe(..)), false) => {}
        }
    }

    /// Time has passed: to be called some times in a second.
    pub(super) fn turn(&mut self, now: Millis, acts: &mut Vec<Act>) {
        self.full = [false; 2];
        let due = |(hop, entry): (&NextHop, &Entry)| (entry.until <= now).then_some((*hop, *entry));
        let mut due: Vec<(NextHop, Entry)> = self.entries.iter().filter_map(due).collect();
        // Those that have waited longest are the first to be asked.
        due.sort_unstable_by_key(|(hop, entry)| (entry.until, *hop));
        for (hop, entry) in due {
            match entry.state {
                State::Incomplete(TRIES..) => self.fail(hop, now, acts),
                State::Incomplete(tries) => self.ask_all(hop, tries, now, acts),
                State::Failed | State::Stale(_) => {
                    self.entries.remove(&hop);
                    acts.push(Act::Forget(hop));
                }
                State::Reachable(mac) => self.stale(hop, mac, now, acts),
                State::Delay(mac) => self.probe(hop, mac, 0, now, acts),
                State::Probe(mac, tries @ ..TRIES) => self.probe(hop, mac, tries, now, acts),
                State::Probe(..) | State::Doubted(_) => self.ask_all(hop, 0, now, acts),
            }
        }
    }

    /// The link of a port is another than before: nothing is known of who is behind it.
    pub(super) fn forget(&mut self, port: u8, acts: &mut Vec<Act>) {
        self.entries.retain(|hop, _| {
            let stays = hop.port != port;
            if !stays {
                acts.push(Act::Forget(*hop));
            }
            stays
        });
    }

    /// A neighbour that workers cannot be told of.
    pub(super) fn drop(&mut self, hop: NextHop) {
        self.refused += 1;
        self.entries.remove(&hop);
    }

    /// Asks all stations, as far as there may be more questions now.
    fn ask_all(&mut self, hop: NextHop, tries: u8, now: Millis, acts: &mut Vec<Act>) {
        if self.wide.take(now * 1_000_000, 1) {
            self.asked += 1;
            self.enter(hop, State::Incomplete(tries + 1), now + ANSWER, now, acts);
            acts.push(Act::Ask(hop, None));
        } else {
            self.enter(hop, State::Incomplete(tries), now, now, acts);
        }
    }

    /// Asks a station whether it is still there, as far as there may be more questions now.
    fn probe(&mut self, hop: NextHop, mac: MacAddr, tries: u8, now: Millis, acts: &mut Vec<Act>) {
        if self.narrow.take(now * 1_000_000, 1) {
            self.ask_one(hop, State::Probe(mac, tries + 1), mac, now, acts);
        }
    }

    fn ask_one(&mut self, hop: NextHop, state: State, mac: MacAddr, now: Millis, acts: &mut Vec<Act>) {
        self.asked += 1;
        self.enter(hop, state, now + ANSWER, now, acts);
        acts.push(Act::Ask(hop, Some(mac)));
    }

    fn fail(&mut self, hop: NextHop, now: Millis, acts: &mut Vec<Act>) {
        self.enter(hop, State::Failed, now + PENANCE, now, acts);
    }

    fn stale(&mut self, hop: NextHop, mac: MacAddr, now: Millis, acts: &mut Vec<Act>) {
        self.enter(hop, State::Stale(mac), now + self.settings.ageing, now, acts);
    }

    /// It has answered. That is believed for half to three halves of the time, so that not all are asked at once.
    fn confirm(&mut self, hop: NextHop, mac: MacAddr, now: Millis, acts: &mut Vec<Act>) {
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let time = self.settings.reachable / 2 + self.random % self.settings.reachable.max(1);
        self.enter(hop, State::Reachable(mac), now + time, now, acts);
        if let Some(entry) = self.entries.get_mut(&hop) {
            (entry.confirmed, entry.since) = (true, now);
        }
    }

    fn enter(&mut self, hop: NextHop, state: State, until: Millis, now: Millis, acts: &mut Vec<Act>) {
        let new = Entry { state, until, since: now, confirmed: false };
        let entry = self.entries.entry(hop).or_insert(new);
        (entry.state, entry.until) = (state, until);
        let (resolved, mark) = match state {
            State::Incomplete(_) => (Resolved::Unknown, Mark::Asked),
            State::Failed => (Resolved::Failed, Mark::Asked),
            State::Reachable(mac) | State::Delay(mac) => (Resolved::At(mac), Mark::Quiet),
            State::Stale(mac) => (Resolved::At(mac), Mark::Watched),
            State::Probe(mac, _) | State::Doubted(mac) => (Resolved::At(mac), Mark::Asked),
        };
        acts.push(Act::Set(hop, resolved, mark));
    }

    /// Makes room for one more. What never answered goes first, the oldest of it; then, but not for somebody who merely asks
    /// for this host, what is stale. What is in use stays.
    fn make_room(&mut self, unasked: bool, acts: &mut Vec<Act>) -> bool {
        if self.entries.len() < self.settings.most {
            return true;
        }
        if self.full[usize::from(unasked)] {
            return false;
        }
        let rank = |(hop, entry): (&NextHop, &Entry)| match entry.state {
            State::Stale(_) if entry.confirmed && unasked => None,
            State::Stale(_) | State::Incomplete(_) | State::Failed => Some((entry.confirmed, entry.since, *hop)),
            _ => None,
        };
        // Of strangers some at once: under a flood of them not all are looked at for each.
        let mut gone: Vec<_> = self.entries.iter().filter_map(rank).collect();
        let strangers = gone.iter().filter(|(confirmed, ..)| !confirmed).count();
        if let Some(last) = gone.len().min(strangers.min(self.settings.most / AT_ONCE).max(1)).checked_sub(1) {
            gone.select_nth_unstable(last);
            gone.truncate(last + 1);
        }
        for (.., hop) in &gone {
            self.entries.remove(hop);
            self.evicted += 1;
            acts.push(Act::Forget(*hop));
        }
        self.full[usize::from(unasked)] = gone.is_empty();
        !gone.is_empty()
    }
}
