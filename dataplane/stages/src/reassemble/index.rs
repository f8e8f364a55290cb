//! Finds the slot of a datagram, the oldest of all datagrams, and the oldest datagram of a source. A slot here is a
//! place for one incomplete datagram, not a packet buffer.
//!
//! The links of the lists are in arrays indexed by slot, so no operation searches a list or allocates memory.

use std::collections::HashMap;

use super::assembly::Key;

/// The slots before and after a slot in a list. [`NONE`] marks the ends of a list.
#[derive(Clone, Copy, Debug)]
struct ListLink {
    before: u16,
    after: u16,
}

const NONE: u16 = u16::MAX;

/// A list of slots, oldest first.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u16,
    last: u16,
    len: u16,
}

const EMPTY: List = List { first: NONE, last: NONE, len: 0 };

impl List {
    fn push(&mut self, links: &mut [ListLink], at: u16) {
        links[usize::from(at)] = ListLink { before: self.last, after: NONE };
        match self.last {
            NONE => self.first = at,
            last => links[usize::from(last)].after = at,
        }
        (self.last, self.len) = (at, self.len + 1);
    }

    fn remove(&mut self, links: &mut [ListLink], at: u16) {
        let ListLink { before, after } = links[usize::from(at)];
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

/// The index of the slots. See the module documentation.
#[derive(Debug)]
pub(super) struct Index {
    known: HashMap<Key, u16>,
    all: List,
    by_age: Box<[ListLink]>,
    sources: HashMap<(bool, [u8; 16]), List>,
    by_source: Box<[ListLink]>,
    free: Vec<u16>,
}

impl Default for Index {
    fn default() -> Self {
        Self::new(0)
    }
}

impl Index {
    /// Creates an index with the given number of slots, all of which are free.
    pub(super) fn new(slots: u16) -> Self {
        let links = || vec![ListLink { before: NONE, after: NONE }; usize::from(slots)].into_boxed_slice();
        // The capacity is twice the maximum number of entries, so that the maps never grow.
        let room = 2 * usize::from(slots);
        Self {
            known: HashMap::with_capacity(room),
            all: EMPTY,
            by_age: links(),
            sources: HashMap::with_capacity(room),
            by_source: links(),
            free: (0..slots).rev().collect(),
        }
    }

    /// Returns the slot of a datagram.
    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        self.known.get(key).map(|at| usize::from(*at))
    }

    /// Returns whether all slots are in use.
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Returns the slot of the oldest datagram.
    pub(super) fn oldest(&self) -> Option<usize> {
        self.all.first()
    }

    /// Returns the slot of the oldest datagram from the source of `key`, and the number of datagrams from this
    /// source.
    pub(super) fn oldest_of_source(&self, key: &Key) -> Option<(usize, u16)> {
        let list = self.sources.get(&(key.v6, key.source))?;
        Some((list.first()?, list.len))
    }

    /// Returns the slot of the next younger datagram after the datagram in slot `at`.
    pub(super) fn after(&self, at: usize) -> Option<usize> {
        let after = self.by_age[at].after;
        (after != NONE).then_some(usize::from(after))
    }

    /// Assigns a free slot to a new datagram, which becomes the youngest datagram. Returns `None` if all slots are in
    /// use.
    pub(super) fn open(&mut self, key: Key) -> Option<usize> {
        let at = self.free.pop()?;
        self.all.push(&mut self.by_age, at);
        self.sources.entry((key.v6, key.source)).or_insert(EMPTY).push(&mut self.by_source, at);
        self.known.insert(key, at);
        Some(usize::from(at))
    }

    /// Removes the key of a datagram, so that later fragments start a new datagram. The slot stays in use.
    pub(super) fn forget(&mut self, key: &Key, at: usize) {
        if self.find(key) == Some(at) {
            self.known.remove(key);
        }
    }

    /// Frees a slot.
    pub(super) fn close(&mut self, key: &Key, at: usize) {
        self.forget(key, at);
        let slot = at as u16;
        self.all.remove(&mut self.by_age, slot);
        let source = (key.v6, key.source);
        if let Some(list) = self.sources.get_mut(&source) {
            list.remove(&mut self.by_source, slot);
            if list.len == 0 {
                self.sources.remove(&source);
            }
        }
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn index_matches_a_list_model(
            slots in 0..6u16,
            steps in prop::collection::vec((0..3u8, 0..4u8, any::<prop::sample::Index>()), 0..100),
        ) {
            let mut index = Index::new(slots);
            let mut model: Vec<(Key, usize, bool)> = Vec::new();
            for (source, port, chosen) in steps {
                let mut key = Key::default();
                (key.source, key.port) = ([source; 16], port);
                let known = model.iter().find(|(other, _, known)| *known && *other == key).map(|(_, at, _)| *at);
                prop_assert_eq!(index.find(&key), known);
                match known {
                    // Close one of the datagrams, or only forget its key, as after a timeout.
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
                        let full = model.len() == usize::from(slots);
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
