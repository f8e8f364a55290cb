//! Rules that change while workers look packets up in them.
//!
//! A new set is made on the thread that reloads, together with the counters that each worker needs for it, and put
//! where the worker's stage takes it up between two batches. What the worker had goes the way back, to be counted and
//! freed: workers only exchange one pointer for another.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;

use super::rules::{RuleSpec, Rules};
use crate::pipeline::{Problem, Reload};

/// Rules, and how often a worker found each.
pub(super) struct Set {
    pub(super) rules: Arc<Rules>,
    pub(super) hits: Vec<u64>,
}

impl Set {
    fn new(rules: &Arc<Rules>) -> Box<Self> {
        Box::new(Self { rules: rules.clone(), hits: vec![0; rules.len()] })
    }
}

/// Between the stage of one worker and who reloads.
pub(super) struct Exchange {
    /// The latest rules, if the worker has not taken them yet.
    next: ArrayQueue<Box<Set>>,
    /// What it had before: at most the one that it had when `next` was last given, and the one before that.
    before: ArrayQueue<Box<Set>>,
    past: Mutex<Past>,
}

/// What became of earlier rules of a worker.
#[derive(Default)]
struct Past {
    /// Sets that were given and not come back yet, beside the one in use.
    out: usize,
    /// Hits by [`Rules::identity`], of rules that the latest set has or that came back since it was given.
    hits: HashMap<String, u64>,
    /// Those of all others.
    gone: u64,
}

impl Past {
    /// Takes in what the worker has handed back.
    fn collect(&mut self, before: &ArrayQueue<Box<Set>>) {
        while let Some(set) = before.pop() {
            self.out -= 1;
            for (rule, hits) in set.hits.iter().enumerate().filter(|(_, hits)| **hits > 0) {
                *self.hits.entry(set.rules.identity(rule).to_owned()).or_default() += hits;
            }
        }
    }

    /// Adds up what these rules do not have, so that rules that come and go leave nothing behind but a number.
    fn fold(&mut self, rules: &Rules) {
        let known: HashSet<&str> = (0..rules.len()).map(|rule| rules.identity(rule)).collect();
        let before: u64 = self.hits.values().sum();
        self.hits.retain(|rule, _| known.contains(rule.as_str()));
        self.gone += before - self.hits.values().sum::<u64>();
    }
}

impl Exchange {
    /// Takes up newer rules, if there are any. On the worker: it neither waits nor frees.
    #[inline]
    pub(super) fn take_up(&self, set: &mut Box<Set>) {
        if let Some(next) = self.next.pop() {
            // There is room for all that can come back.
            let _ = self.before.push(std::mem::replace(set, next));
        }
    }

    fn give(&self, rules: &Arc<Rules>) {
        let mut past = self.past();
        past.collect(&self.before);
        past.fold(rules);
        past.out += 1;
        if self.next.force_push(Set::new(rules)).is_some() {
            past.out -= 1;
        }
    }

    /// The hits of earlier sets: for each rule of this one those that it had in them, and last those of rules that it does
    /// not have.
    pub(super) fn earlier(&self, rules: &Rules) -> (Vec<u64>, u64) {
        let mut past = self.past();
        past.collect(&self.before);
        let hits = |rule| past.hits.get(rules.identity(rule)).copied().unwrap_or(0);
        let known: Vec<u64> = (0..rules.len()).map(hits).collect();
        // No two rules of a set are the same.
        let others = past.hits.values().sum::<u64>() - known.iter().sum::<u64>();
        (known, past.gone + others)
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the stages of all workers share.
pub(super) struct Live {
    latest: Mutex<Arc<Rules>>,
    exchanges: Mutex<Vec<Arc<Exchange>>>,
    reloads: AtomicU64,
    refused: AtomicU64,
}

impl Live {
    pub(super) fn new(rules: Rules) -> Self {
        let (reloads, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { latest: Mutex::new(Arc::new(rules)), exchanges: Mutex::default(), reloads, refused }
    }

    /// One more stage: the rules that it begins with, and where it gets others.
    pub(super) fn join(&self) -> (Box<Set>, Arc<Exchange>) {
        let (next, before) = (ArrayQueue::new(1), ArrayQueue::new(2));
        let exchange = Arc::new(Exchange { next, before, past: Mutex::default() });
        self.exchanges().push(exchange.clone());
        (Set::new(&self.latest()), exchange)
    }

    /// Reports what there is once for all workers.
    pub(super) fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        report("rules", self.latest().len() as u64);
        report("reloads", self.reloads.load(Ordering::Relaxed));
        report("refused", self.refused.load(Ordering::Relaxed));
    }

    fn latest(&self) -> MutexGuard<'_, Arc<Rules>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchanges(&self) -> MutexGuard<'_, Vec<Arc<Exchange>>> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads a file of rules anew.
pub(super) struct Reloader {
    pub(super) live: Arc<Live>,
    /// The rules of the config, which stay before those of the file.
    pub(super) own: Vec<RuleSpec>,
    pub(super) file: PathBuf,
}

impl Reload for Reloader {
    fn reload(&mut self) -> Result<String, Vec<Problem>> {
        let before = self.live.latest().clone();
        let rules = match Rules::load(&self.own, Some(&self.file), Some(&before)) {
            Ok(rules) => Arc::new(rules),
            Err(problems) => {
                self.live.refused.fetch_add(1, Ordering::Relaxed);
                return Err(problems);
            }
        };
        *self.live.latest() = rules.clone();
        for exchange in self.live.exchanges().iter() {
            exchange.give(&rules);
        }
        self.live.reloads.fetch_add(1, Ordering::Relaxed);
        let (now, before) = (rules.len(), before.len());
        Ok(format!("rules: {now}, before: {before}, from {}", self.file.display()))
    }

    fn settle(&mut self) -> bool {
        self.live.exchanges().iter().fold(true, |all, exchange| {
            let mut past = exchange.past();
            past.collect(&exchange.before);
            all & (past.out == 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_come_and_go_leave_a_number() {
        let rules = |round: u64| {
            let text = format!("action = \"deny\"\nname = \"{round}\"");
            Rules::load(&[toml::from_str(&text).unwrap()], None, None).unwrap_or_else(|_| panic!("{text}"))
        };
        let live = Live::new(rules(0));
        let (mut set, exchange) = live.join();
        for round in 1..=50 {
            set.hits[0] += round;
            exchange.give(&Arc::new(rules(round)));
            exchange.take_up(&mut set);
        }
        assert_eq!(exchange.earlier(&set.rules), (vec![0], 50 * 51 / 2));
        let kept = exchange.past().hits.len();
        assert!(kept <= 2, "{kept} of rules that are no more");
    }
}
