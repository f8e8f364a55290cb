//! Rules that change while workers use them, and the hit counts of replaced rule sets.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rules::{RuleSpec, Rules};
use dataplane_core::pipeline::{Live, LiveReader, Problem, Reload};

/// A rule set, with the hit count of each rule on one worker. When the set is dropped after a reload, its hit counts
/// are added to `earlier`.
pub(super) struct RuleSet {
    pub(super) rules: Arc<Rules>,
    pub(super) hits: Vec<u64>,
    earlier: Arc<Mutex<EarlierHits>>,
}

/// The hit counts of the rule sets that a worker used before its current rule set.
#[derive(Default)]
struct EarlierHits {
    /// Hit counts by [`Rules::identity`]. A reload keeps only the entries of rules that are in the new set. A set that
    /// is dropped after the reload adds the hits of all its rules again.
    hits: HashMap<String, u64>,
    /// Total hits of all removed rules that have no entry in `hits`.
    gone: u64,
}

impl EarlierHits {
    /// Moves the hits of rules that are not in `rules` to `gone`, so that removed rules use no memory.
    fn fold(&mut self, rules: &Rules) {
        let known: HashSet<&str> = (0..rules.len()).map(|rule| rules.identity(rule)).collect();
        let before: u64 = self.hits.values().sum();
        self.hits.retain(|rule, _| known.contains(rule.as_str()));
        self.gone += before - self.hits.values().sum::<u64>();
    }
}

impl RuleSet {
    fn new(rules: &Arc<Rules>, earlier: Arc<Mutex<EarlierHits>>) -> Self {
        Self { rules: rules.clone(), hits: vec![0; rules.len()], earlier }
    }

    /// Returns the hit counts from earlier rule sets: one count for each rule of this set, and the total for all rules
    /// that are not in this set.
    pub(super) fn earlier_hits(&self) -> (Vec<u64>, u64) {
        let earlier = lock(&self.earlier);
        let hits = |rule| earlier.hits.get(self.rules.identity(rule)).copied().unwrap_or(0);
        let known: Vec<u64> = (0..self.rules.len()).map(hits).collect();
        // No two rules of a set have the same identity.
        let others = earlier.hits.values().sum::<u64>() - known.iter().sum::<u64>();
        (known, earlier.gone + others)
    }
}

impl Drop for RuleSet {
    fn drop(&mut self) {
        let mut earlier = lock(&self.earlier);
        for (rule, hits) in self.hits.iter().enumerate().filter(|(_, hits)| **hits > 0) {
            *earlier.hits.entry(self.rules.identity(rule).to_owned()).or_default() += hits;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The rules that the stages of all workers share.
pub(super) struct LiveRules {
    latest: Mutex<Arc<Rules>>,
    sets: Live<RuleSet>,
    /// The earlier hits of each worker.
    earlier: Mutex<Vec<Arc<Mutex<EarlierHits>>>>,
    reloads: AtomicU64,
    refused: AtomicU64,
}

impl LiveRules {
    pub(super) fn new(rules: Rules) -> Self {
        let (reloads, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        let latest = Mutex::new(Arc::new(rules));
        Self { latest, sets: Live::default(), earlier: Mutex::default(), reloads, refused }
    }

    /// Adds the stage of one worker. The stage starts with the latest rule set.
    pub(super) fn join(&self) -> LiveReader<RuleSet> {
        let earlier = Arc::<Mutex<EarlierHits>>::default();
        lock(&self.earlier).push(earlier.clone());
        self.sets.reader(RuleSet::new(&lock(&self.latest), earlier))
    }

    /// Drops the rule sets that no worker uses any more, which saves their hit counts. Returns `true` if every worker
    /// uses the latest rules.
    pub(super) fn settle(&self) -> bool {
        self.sets.settle()
    }

    fn publish(&self, rules: &Arc<Rules>) {
        *lock(&self.latest) = rules.clone();
        self.settle();
        let earlier = lock(&self.earlier);
        self.sets.publish(|worker| {
            lock(&earlier[worker]).fold(rules);
            RuleSet::new(rules, earlier[worker].clone())
        });
    }

    /// Reports the counters that all workers share.
    pub(super) fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        report("rules", lock(&self.latest).len() as u64);
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

impl Reload for Reloader {
    fn reload(&mut self) -> Result<String, Vec<Problem>> {
        let before = lock(&self.live.latest).clone();
        let rules = match Rules::load(&self.own, Some(&self.file), Some(&before)) {
            Ok(rules) => Arc::new(rules),
            Err(problems) => {
                self.live.refused.fetch_add(1, Ordering::Relaxed);
                return Err(problems);
            }
        };
        self.live.publish(&rules);
        self.live.reloads.fetch_add(1, Ordering::Relaxed);
        let (now, before) = (rules.len(), before.len());
        Ok(format!("{}, rules now: {now}, before: {before}", self.file.display()))
    }

    fn settle(&mut self) -> bool {
        self.live.settle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_of_removed_rules_use_constant_memory() {
        let rules = |round: u64| {
            let text = format!("action = \"deny\"\nname = \"{round}\"");
            Rules::load(&[toml::from_str(&text).unwrap()], None, None).unwrap_or_else(|_| panic!("{text}"))
        };
        let live = LiveRules::new(rules(0));
        let mut set = live.join();
        for round in 1..=50 {
            set.hits[0] += round;
            live.publish(&Arc::new(rules(round)));
            set.refresh();
        }
        assert!(live.settle());
        assert_eq!(set.earlier_hits(), (vec![0], 50 * 51 / 2));
        let kept = lock(&set.earlier).hits.len();
        assert!(kept <= 2, "{kept} entries for removed rules");
    }
}
