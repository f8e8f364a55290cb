//! The hit counters of rules.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::rules::Rules;
use dataplane_core::pipeline::{Problem, Setup};

/// The value in [`Places`] for a rule whose name does not exist in the replaced stage.
const NEW: u32 = u32::MAX;

/// The rules of a stage, with the hit counters of one worker.
pub(super) struct RuleSet {
    pub(super) rules: Arc<Rules>,
    /// The hits of each rule, indexed like `rules`.
    pub(super) hits: Vec<u64>,
    /// The hits of removed rules.
    pub(super) gone: u64,
    places: Arc<Places>,
}

/// For each rule, the index of the rule with the same name in the replaced stage, or [`NEW`].
struct Places {
    /// The rules of the replaced stage.
    earlier: Weak<Rules>,
    places: Vec<u32>,
}

impl Places {
    fn new(rules: &Rules, earlier: Option<&Arc<Rules>>) -> Self {
        let names = earlier.iter().flat_map(|earlier| &earlier.names).map(String::as_str);
        let known: HashMap<&str, u32> = names.zip(0..).collect();
        let places = rules.names.iter().map(|name| known.get(name.as_str()).copied().unwrap_or(NEW)).collect();
        Self { earlier: earlier.map(Arc::downgrade).unwrap_or_default(), places }
    }
}

impl RuleSet {
    /// Creates the rule set of one worker.
    ///
    /// # Errors
    /// Never fails.
    pub(super) fn new(rules: Arc<Rules>, setup: &mut Setup<'_>) -> Result<Self, Problem> {
        let earlier = setup.earlier::<Rules>();
        let mut places = setup.shared_by_workers(|_| Ok(Places::new(&rules, earlier.as_ref())))?;
        // In a revert, `places` is the shared object of the earlier pipeline. Its indexes do not refer to the rules of
        // the stage that the revert replaces, so compute the indexes again.
        if !places.earlier.ptr_eq(&earlier.as_ref().map(Arc::downgrade).unwrap_or_default()) {
            places = Arc::new(Places::new(&rules, earlier.as_ref()));
            setup.share(places.clone());
        }
        Ok(Self { hits: vec![0; rules.len()], gone: 0, rules, places })
    }

    /// Takes over the hits of the replaced rule set. Adds the hits of removed rules to `gone`. Runs on the worker.
    pub(super) fn adopt(&mut self, earlier: &Self) {
        let mut kept: u64 = 0;
        for (hits, place) in self.hits.iter_mut().zip(&self.places.places) {
            *hits = earlier.hits.get(*place as usize).copied().unwrap_or_default();
            kept += *hits;
        }
        self.gone = earlier.gone + earlier.hits.iter().sum::<u64>().saturating_sub(kept);
    }

    /// Returns the name of each rule, whether the config chose the name, and the hits of the rule.
    pub(super) fn named_hits(&self) -> impl Iterator<Item = (&str, bool, u64)> {
        let Rules { names, named, .. } = &*self.rules;
        names.iter().zip(named).zip(&self.hits).map(|((name, named), hits)| (name.as_str(), *named, *hits))
    }
}
