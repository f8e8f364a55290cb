//! Rules that change while workers use them, and their hit counters.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rules::{RuleSpec, Rules};
use dataplane_core::pipeline::{Live, LiveReader, Problem, Reload};

/// The slot of the hits of removed rules.
const GONE: u32 = 0;

/// A rule set, with the hit counters of one worker.
///
/// The counter of a rule has a slot. If a later set has a rule with the same name, the counters of both rules have the
/// same slot. A worker that switches to a later set therefore only copies its counters.
pub(super) struct RuleSet {
    pub(super) rules: Arc<Rules>,
    /// The hits, by slot.
    pub(super) hits: Vec<u64>,
    /// The slots of removed rules, in ascending order. A worker that uses an earlier set may still have hits in these
    /// slots.
    removed: Arc<[u32]>,
    pub(super) version: u64,
}

impl RuleSet {
    /// Takes over the hits of an earlier set. Moves the hits of removed rules to the slot [`GONE`].
    pub(super) fn take_hits(&mut self, earlier: &Self) {
        // A later set has at least as many slots.
        self.hits.iter_mut().zip(&earlier.hits).for_each(|(hits, earlier)| *hits = *earlier);
        for slot in &*self.removed {
            let hits = self.hits.get_mut(*slot as usize).map(std::mem::take);
            if let Some(gone) = self.hits.get_mut(GONE as usize) {
                *gone += hits.unwrap_or_default();
            }
        }
    }

    /// Takes over the hits of `other`, because a change of the pipeline replaces `other` by this set. If the change is
    /// reverted, this set is the earlier set, and `other` is the later set.
    pub(super) fn adopt(&mut self, other: &Self) {
        if other.version <= self.version {
            return self.take_hits(other);
        }
        // The change is reverted. The later set has added the hits of removed rules to `GONE`. This set still has these
        // hits in the slots of the rules, so subtract the hits from `GONE`.
        let kept: u64 = other.removed.iter().filter_map(|slot| self.hits.get(*slot as usize)).sum();
        let added: u64 = other.hits.iter().skip(self.hits.len()).sum();
        // This code runs on the worker, and there may be 100,000 rules, so do not search the list for each slot.
        let mut removed = other.removed.iter().peekable();
        for (slot, (hits, later)) in (0..).zip(self.hits.iter_mut().zip(&other.hits)) {
            if removed.next_if_eq(&&slot).is_none() {
                *hits = *later;
            }
        }
        if let Some(gone) = self.hits.get_mut(GONE as usize) {
            *gone = (*gone + added).saturating_sub(kept);
        }
    }

    /// Returns the name of each rule, whether the config chose the name, and the hits of the rule.
    pub(super) fn named_hits(&self) -> impl Iterator<Item = (&str, bool, u64)> {
        let hits = |slot: &u32| self.hits.get(*slot as usize).copied().unwrap_or_default();
        let Rules { names, named, slots, .. } = &*self.rules;
        names.iter().zip(named).zip(slots).map(move |((name, named), slot)| (name.as_str(), *named, hits(slot)))
    }

    /// Returns the hits of removed rules.
    pub(super) fn gone(&self) -> u64 {
        self.hits.get(GONE as usize).copied().unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The latest rule set, and the slots of the hit counters.
struct Latest {
    rules: Arc<Rules>,
    version: u64,
    /// The slot of each rule, by the name of the rule.
    slots: HashMap<String, u32>,
    /// The number of slots of a rule set.
    count: u32,
    /// Slots that no worker uses.
    free: Vec<u32>,
    /// Slots of removed rules that a worker may still use.
    removed: Vec<u32>,
}

impl Latest {
    fn new(mut rules: Rules) -> Self {
        let first: Vec<u32> = (GONE + 1..).take(rules.len()).collect();
        let slots = rules.names.iter().cloned().zip(first.iter().copied()).collect();
        let count = first.len() as u32 + 1;
        rules.set_slots(first);
        Self { rules: Arc::new(rules), version: 0, slots, count, free: Vec::new(), removed: Vec::new() }
    }

    /// Replaces the rules. `is_settled` is `true` if all workers use the rules that are replaced.
    fn replace(&mut self, mut rules: Rules, is_settled: bool) {
        if is_settled {
            self.free.append(&mut self.removed);
        }
        let mut before = std::mem::take(&mut self.slots);
        let kept: Vec<Option<u32>> = rules.names.iter().map(|name| before.remove(name)).collect();
        self.removed.extend(before.into_values());
        let mut new_slot = || {
            self.free.pop().unwrap_or_else(|| {
                self.count += 1;
                self.count - 1
            })
        };
        let slots: Vec<u32> = kept.into_iter().map(|slot| slot.unwrap_or_else(&mut new_slot)).collect();
        self.slots = rules.names.iter().cloned().zip(slots.iter().copied()).collect();
        rules.set_slots(slots);
        self.rules = Arc::new(rules);
        self.version += 1;
    }

    /// Returns the latest rule set and the slots for a new stage that has the rules `rules` and replaces the stage of
    /// `self`.
    fn successor(&self, rules: Rules) -> Self {
        let mut next = Self {
            rules: self.rules.clone(),
            version: self.version,
            slots: self.slots.clone(),
            count: self.count,
            free: self.free.clone(),
            removed: self.removed.clone(),
        };
        next.replace(rules, false);
        next
    }

    fn rule_set(&self) -> RuleSet {
        let mut removed = self.removed.clone();
        removed.sort_unstable();
        RuleSet {
            rules: self.rules.clone(),
            hits: vec![0; self.count as usize],
            removed: removed.into(),
            version: self.version,
        }
    }
}

/// The rules that the stages of all workers share.
pub(super) struct LiveRules {
    latest: Mutex<Latest>,
    sets: Live<RuleSet>,
    reloads: AtomicU64,
    refused: AtomicU64,
}

impl LiveRules {
    pub(super) fn new(rules: Rules) -> Self {
        let latest = Latest::new(rules);
        let (reloads, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { latest: Mutex::new(latest), sets: Live::default(), reloads, refused }
    }

    /// Returns the shared rules of a new stage that has the rules `rules` and replaces the stage of `self`. Rules with
    /// the same name have the same slot in both stages.
    pub(super) fn successor(&self, rules: Rules) -> Self {
        let latest = lock(&self.latest).successor(rules);
        let (reloads, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { latest: Mutex::new(latest), sets: Live::default(), reloads, refused }
    }

    /// Takes over the numbers of successful and refused reloads.
    pub(super) fn resume(&self, earlier: &Self) {
        self.reloads.store(earlier.reloads.load(Ordering::Relaxed), Ordering::Relaxed);
        self.refused.store(earlier.refused.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns the latest rules.
    pub(super) fn rules(&self) -> Arc<Rules> {
        lock(&self.latest).rules.clone()
    }

    /// Adds the stage of one worker. The stage starts with the latest rule set.
    pub(super) fn join(&self) -> LiveReader<RuleSet> {
        self.sets.reader(lock(&self.latest).rule_set())
    }

    /// Drops the rule sets that no worker uses any more. Returns `true` if every worker uses the latest rules.
    pub(super) fn settle(&self) -> bool {
        self.sets.settle()
    }

    fn publish(&self, rules: Rules) {
        let mut latest = lock(&self.latest);
        latest.replace(rules, self.settle());
        self.sets.publish(|_| latest.rule_set());
    }

    /// Reports the counters of reloads.
    pub(super) fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        report("reloads", self.reloads.load(Ordering::Relaxed));
        report("refused", self.refused.load(Ordering::Relaxed));
    }
}

/// Reads the rule file again when the run reloads its files.
pub(super) struct Reloader {
    pub(super) live: Arc<LiveRules>,
    /// The rules of the config, which precede the rules of the file.
    pub(super) own: Vec<RuleSpec>,
    pub(super) file: PathBuf,
}

impl Reloader {
    fn load(&self, before: &Rules) -> Result<Rules, Vec<Problem>> {
        let rules = Rules::load(&self.own, Some(&self.file), Some(before));
        rules.inspect_err(|_| _ = self.live.refused.fetch_add(1, Ordering::Relaxed))
    }
}

impl Reload for Reloader {
    fn check(&mut self) -> Result<(), Vec<Problem>> {
        self.load(&self.live.rules()).map(drop)
    }

    fn reload(&mut self) -> Result<String, Vec<Problem>> {
        let before = self.live.rules();
        let rules = self.load(&before)?;
        let (now, before) = (rules.len(), before.len());
        self.live.publish(rules);
        self.live.reloads.fetch_add(1, Ordering::Relaxed);
        Ok(format!("{}, rules now: {now}, before: {before}", self.file.display()))
    }

    fn settle(&mut self) -> bool {
        self.live.settle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(names: impl IntoIterator<Item = u64>) -> Rules {
        let rule = |name| toml::from_str(&format!("action = \"deny\"\nname = \"{name}\"")).unwrap();
        let rules: Vec<RuleSpec> = names.into_iter().map(rule).collect();
        Rules::load(&rules, None, None).unwrap_or_else(|_| panic!("the rules are valid"))
    }

    fn hit(set: &mut RuleSet, rule: usize, hits: u64) {
        let slot = set.rules.slots[rule] as usize;
        set.hits[slot] += hits;
    }

    #[test]
    fn hits_of_removed_rules_use_constant_memory() {
        let live = LiveRules::new(rules([0]));
        let mut set = live.join();
        for round in 1..=50 {
            hit(&mut set, 0, round);
            live.publish(rules([round]));
            set.refresh_with(|earlier, later| later.take_hits(earlier));
        }
        assert!(live.settle());
        let hits: Vec<_> = set.named_hits().collect();
        assert_eq!((hits, set.gone()), (vec![("50", true, 0)], 50 * 51 / 2));
        assert!(set.hits.len() <= 4, "{} slots for one rule", set.hits.len());
    }

    #[test]
    fn hits_stay_with_their_rule_if_a_worker_misses_rule_sets() {
        let live = LiveRules::new(rules([1, 2, 3]));
        let mut set = live.join();
        let mut slow = live.join();
        for (rule, hits) in [(0, 100), (1, 20), (2, 3)] {
            hit(&mut set, rule, hits);
            hit(&mut slow, rule, hits);
        }
        for names in [vec![9, 1, 3], vec![3, 8, 1], vec![7, 3]] {
            live.publish(rules(names));
            set.refresh_with(|earlier, later| later.take_hits(earlier));
        }
        slow.refresh_with(|earlier, later| later.take_hits(earlier));
        for set in [set, slow] {
            let hits: Vec<_> = set.named_hits().collect();
            assert_eq!((hits, set.gone()), (vec![("7", true, 0), ("3", true, 3)], 120));
        }
    }
}
