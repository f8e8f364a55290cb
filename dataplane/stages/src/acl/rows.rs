//! The table of rules for `dataplane show acl`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::rules::{RuleAction, Rules};
use dataplane_core::pipeline::{Table, TablePage, TableQuery};

/// The rules of a stage, in order of precedence. The last row has the packets that no rule matches.
pub(super) struct RuleTable {
    pub(super) rules: Arc<Rules>,
    pub(super) default: RuleAction,
}

/// A rule of a stage `acl`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AclRow")]
pub(super) struct RuleRow {
    /// The index of the rule. `null` for the packets that no rule matches.
    index: Option<usize>,
    /// The name of the hit counter.
    name: String,
    /// The action.
    action: RuleAction,
    /// The packets that the rule matched.
    hits: u64,
    /// The text of the rule.
    rule: String,
}

impl Table for RuleTable {
    type Row = RuleRow;

    fn needs_counters(&self) -> bool {
        true
    }

    fn page(&self, query: &TableQuery<'_>) -> Result<TablePage<RuleRow>, String> {
        let rules = &self.rules;
        let indexes: Vec<usize> = (0..=rules.len()).collect();
        TablePage::of_list(&indexes, query, |index| {
            let (Some(name), Some(action), Some(rule)) =
                (rules.names.get(*index), rules.actions.get(*index), rules.texts.get(*index))
            else {
                let (name, rule) = ("default".to_owned(), "no rule matches".to_owned());
                return RuleRow { index: None, hits: query.counter(&name), name, action: self.default, rule };
            };
            let hits = query.counter(name);
            RuleRow { index: Some(*index), name: name.clone(), action: *action, hits, rule: rule.clone() }
        })
    }
}
