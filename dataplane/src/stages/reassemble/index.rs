//! Which place a datagram has, and which datagrams are the oldest: of all, and of one source.
//!
//! Lists are threaded through the places, so that nothing is searched and nothing allocated as datagrams come and go.

use std::collections::HashMap;

use super::assembly::Key;

/// Neighbours in a list; a place that is in none, and the ends, have [`NONE`].
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u16,
    after: u16,
}

const NONE: u16 = u16::MAX;

/// A list of places, the oldest first.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u16,
    last: u16,
    len: u16,
}

const EMPTY: List = List { first: NONE, last: NONE, len: 0 };

impl List {
    fn push(&mut self, links: &mut [Link], at: u16) {
        links[usize::from(at)] = Link { before: self.last, after: NONE };
        match self.last {
            NONE => self.first = at,
            last => links[usize::from(last)].after = at,
        }
        (self.last, self.len) = (at, self.len + 1);
    }

    fn remove(&mut self, links: &mut [Link], at: u16) {
        let Link { before, after } = links[usize::from(at)];
        match before {
            NONE => self.first = after,
            before => links[usize::from(before)].after = after,
        }
        match after {
            NONE => self.last = before,
            after => links[usize::from(after)].before = before,
        }
        self.len -= 1;
    }

    fn first(&self) -> Option<usize> {
        (self.first != NONE).then_some(usize::from(self.first))
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Index {
    known: HashMap<Key, u16>,
    all: List,
    by_age: Box<[Link]>,
    sources: HashMap<(bool, [u8; 16]), List>,
    by_source: Box<[Link]>,
    free: Vec<u16>,
}

impl Default for Index {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Index {
    /// For so many places, which are all free.
    pub(super) fn new(places: u16) -> Self {
        let links = || vec![Link { before: NONE, after: NONE }; usize::from(places)].into_boxed_slice();
        // Twice as large as they get: then they never grow, whatever comes and goes.
        let room = 2 * usize::from(places);
        Self {
            known: HashMap::with_capacity(room),
            all: EMPTY,
            by_age: links(),
            sources: HashMap::with_capacity(room),
            by_source: links(),
            free: (0..places).rev().collect(),
        }
    }

    /// The place of a datagram.
    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        self.known.get(key).map(|at| usize::from(*at))
    }

    /// Whether all places are taken.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// The place of the oldest datagram.
    pub(super) fn oldest(&self) -> Option<usize> {
        self.all.first()
    }

    /// The place of the oldest datagram of the source of this one, and how many it has.
    pub(super) fn oldest_of_source(&self, key: &Key) -> Option<(usize, u16)> {
        let list = self.sources.get(&(key.v6, key.source))?;
        Some((list.first()?, list.len))
    }

    /// The place of the next younger datagram.
    pub(super) fn after(&self, at: usize) -> Option<usize> {
        let after = self.by_age[at].after;
        (after != NONE).then_some(usize::from(after))
    }

    /// Gives a datagram a place, as the youngest. `None`: all are taken.
    pub(super) fn open(&mut self, key: Key) -> Option<usize> {
        let at = self.free.pop()?;
        self.all.push(&mut self.by_age, at);
        self.sources.entry((key.v6, key.source)).or_insert(EMPTY).push(&mut self.by_source, at);
        self.known.insert(key, at);
        Some(usize::from(at))
    }

    /// What comes of a datagram is not of this place any more, which is still taken.
    pub(super) fn forget(&mut self, key: &Key, at: usize) {
        if self.find(key) == Some(at) {
            self.known.remove(key);
        }
    }

    /// Gives a place back.
    pub(super) fn close(&mut self, key: &Key, at: usize) {
        self.forget(key, at);
        let place = at as u16;
        self.all.remove(&mut self.by_age, place);
        let source = (key.v6, key.source);
        if let Some(list) = self.sources.get_mut(&source) {
            list.remove(&mut self.by_source, place);
            if list.len == 0 {
                self.sources.remove(&source);
            }
        }
        self.free.push(place);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_knows_what_a_plain_list_knows(
            places in 0..6u16,
            steps in prop::collection::vec((0..3u8, 0..4u8, any::<prop::sample::Index>()), 0..100),
        ) {
            let mut index = Index::new(places);
            let mut model: Vec<(Key, usize, bool)> = Vec::new();
            for (source, port, chosen) in steps {
                let mut key = Key::default();
                (key.source, key.port) = ([source; 16], port);
                let known = model.iter().find(|(other, _, known)| *known && *other == key).map(|(_, at, _)| *at);
                prop_assert_eq!(index.find(&key), known);
                match known {
                    // All are old enough: one is given up, or forgotten first.
                    Some(_) => {
                        let (key, at, known) = model[chosen.index(model.len())];
                        if known && chosen.index(2) == 0 {
                            index.forget(&key, at);
                            model.iter_mut().filter(|(_, other, _)| *other == at).for_each(|entry| entry.2 = false);
                        } else {
                            index.close(&key, at);
                            model.retain(|(_, other, _)| *other != at);
                        }
                    }
                    None => {
                        let full = model.len() == usize::from(places);
                        prop_assert_eq!(index.is_full(), full);
                        let at = index.open(key);
                        prop_assert_eq!(at.is_none(), full);
                        model.extend(at.map(|at| (key, at, true)));
                    }
                }
                let all: Vec<usize> = std::iter::successors(index.oldest(), |at| index.after(*at)).collect();
                prop_assert_eq!(all, model.iter().map(|(_, at, _)| *at).collect::<Vec<_>>());
                let own = model.iter().filter(|(other, ..)| other.source == key.source).map(|(_, at, _)| *at);
                let own: Vec<usize> = own.collect();
                let oldest = own.first().map(|at| (*at, own.len() as u16));
                prop_assert_eq!(index.oldest_of_source(&key), oldest);
            }
        }
    }
}
