//! The history of the changes of a run.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::time::{SystemTime, UNIX_EPOCH};

use fnv::FnvHasher;

use crate::config::Source;
use dataplane_control::change::{ChangeState, HistoryRow};
use dataplane_control::{ErrorCode, Refusal};

/// The maximum number of entries. The start of the run is an entry too.
const MAX_ENTRIES: usize = 32;

/// The start of a run, and the last changes. The first entry is always the start.
pub(crate) struct ChangeHistory(VecDeque<HistoryEntry>);

struct HistoryEntry {
    row: HistoryRow,
    source: Source,
    /// The number of the change that created the pipeline. For a rollback or a revert, the number of the earlier change
    /// whose config is in force again.
    origin: u64,
    /// The origin of the config that was in force before the change `origin`. `None` for the start of the run.
    before: Option<u64>,
}

impl ChangeHistory {
    pub(crate) fn new(source: &Source) -> Self {
        let mut history = Self(VecDeque::new());
        history.push(source, 0, 0, "start", ChangeState::InForce, None);
        history
    }

    /// Returns the rows, in the order of their numbers.
    pub(crate) fn rows(&self) -> Vec<HistoryRow> {
        self.0.iter().map(|entry| entry.row.clone()).collect()
    }

    /// Returns the number of the last change.
    pub(crate) fn number(&self) -> u64 {
        self.0.back().map_or(0, |entry| entry.row.number)
    }

    /// Adds a change that is in force, or unconfirmed. `restores` is the number of the change whose config is in force
    /// again. Returns the number of the change.
    pub(crate) fn add(
        &mut self,
        source: &Source,
        operations: usize,
        cause: &str,
        state: ChangeState,
        restores: Option<u64>,
    ) -> u64 {
        for HistoryEntry { row, .. } in &mut self.0 {
            if matches!(row.state, ChangeState::InForce | ChangeState::Unconfirmed) {
                row.state = ChangeState::Replaced;
            }
        }
        let number = self.number() + 1;
        self.push(source, number, operations, cause, state, restores);
        while self.0.len() > MAX_ENTRIES {
            // Keep the start, because the config file has the text of the start until somebody saves another config.
            self.0.remove(1);
        }
        number
    }

    fn push(
        &mut self,
        source: &Source,
        number: u64,
        operations: usize,
        cause: &str,
        state: ChangeState,
        restores: Option<u64>,
    ) {
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (digest, operations) = (digest(source), operations as u64);
        let row = HistoryRow { number, time_s, digest, operations, cause: cause.to_owned(), state };
        let restored = self.0.iter().find(|entry| Some(entry.row.number) == restores);
        let (origin, before) = match restored {
            Some(entry) => (entry.origin, entry.before),
            None => (number, self.0.back().map(|entry| entry.origin)),
        };
        self.0.push_back(HistoryEntry { row, source: source.clone(), origin, before });
    }

    pub(crate) fn set_state(&mut self, number: u64, state: ChangeState) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.row.number == number) {
            entry.row.state = state;
        }
    }

    /// Returns the number of the change whose config is in force, which a rollback reverts. Also returns the number and
    /// the config of the change before that change.
    ///
    /// # Errors
    /// Fails if the history has no earlier config, or if the last change has only read files again.
    pub(crate) fn before_last(&self) -> Result<(u64, u64, Source), Refusal> {
        let is_last = |entry: &&HistoryEntry| entry.row.state == ChangeState::InForce;
        let last = self.0.iter().rev().find(is_last);
        let before = last.and_then(|last| {
            let before = last.before?;
            Some((last, self.0.iter().rev().find(|entry| entry.origin == before)?))
        });
        let Some((last, before)) = before else {
            let help = "`dataplane history` lists the changes of the run; to return to a config that was rolled back, \
                        run `dataplane apply FILE`";
            return Err(Refusal::new(ErrorCode::Failed, "there is no earlier config to roll back to", help));
        };
        if before.row.digest == last.row.digest {
            let message = format!(
                "change {} has only read files again, and the program does not keep the earlier content of the files",
                last.row.number
            );
            let help = "restore the files and run `dataplane reload`, or apply an earlier config";
            return Err(Refusal::new(ErrorCode::Failed, message, help));
        }
        Ok((last.row.number, before.row.number, before.source.clone()))
    }
}

/// Returns the digest of a config: a hash of the text of the config, and of the values that override the text. The hash
/// is FNV-1a with 64 bits. It detects unintended differences, but is not safe against intended collisions.
pub(crate) fn digest(source: &Source) -> String {
    digest_of(source.text(), source.overrides())
}

/// Returns the digest of a config with this text and these overrides.
pub fn digest_of<'a>(text: &'a str, settings: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = FnvHasher::default();
    for part in std::iter::once(text).chain(settings) {
        hasher.write(part.as_bytes());
        // A zero byte separates the parts. The parts contain no zero bytes.
        hasher.write_u8(0);
    }
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn start_stays_in_a_full_history() {
        let source = |text: &str| Source::new(Path::new("test.toml"), text, &[]);
        let mut history = ChangeHistory::new(&source("start"));
        for change in 1..=40 {
            history.add(&source(&change.to_string()), 1, "set", ChangeState::InForce, None);
        }
        let rows = history.rows();
        assert_eq!((rows.len(), &rows[0].digest), (MAX_ENTRIES, &digest(&source("start"))));
        assert_eq!((rows[1].number, history.number()), (10, 40));
        let (last, before, config) = history.before_last().unwrap();
        assert_eq!((last, before, config.text()), (40, 39, "39"));
    }
}
