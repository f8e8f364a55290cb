//! `cross`: ports joined in pairs, as by a cable.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::mem::{Batch, Reason};
use crate::pipeline::{Ctx, Facts, Problem, Setup, Stage};

/// Joins ports in pairs: what comes in at one of a pair is for the other.
///
/// It chooses the port alone; `tx` behind it sends. What comes in at a port of no pair is dropped as `not_joined`.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "wire"
/// use = "cross"
/// pairs = [["left", "right"]]
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cross {
    /// The names of the two ports of each pair. A port is in one pair alone.
    pub pairs: Vec<[String; 2]>,
    /// For each port the other of its pair.
    #[serde(skip)]
    #[schemars(skip)]
    others: Vec<Option<u8>>,
}

const NOT_JOINED: Reason = Reason::own(0);

impl Stage for Cross {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            match self.others.get(usize::from(packet.ingress())).copied().flatten() {
                Some(other) => packet.meta_mut().egress = other,
                None => packet.drop(NOT_JOINED),
            }
        }
    }

    fn reasons() -> &'static [(&'static str, &'static str)] {
        &[("not_joined", "it came in at a port of no pair")]
    }

    fn sets(&self) -> Facts {
        Facts::EGRESS
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.pairs.is_empty() {
            return Err(Problem::at("pairs", "there is no pair").help("name one: pairs = [[\"left\", \"right\"]]"));
        }
        self.others = vec![None; setup.ports().len()];
        for (nth, pair) in self.pairs.iter().enumerate() {
            let [left, right] = [setup.port(&pair[0], "pairs")?, setup.port(&pair[1], "pairs")?];
            for (from, to, name) in [(left, right, &pair[0]), (right, left, &pair[1])] {
                let place = self.others.get_mut(usize::from(from));
                if place.and_then(|place| place.replace(to)).is_some_and(|before| left != right || before != to) {
                    let message = format!("the port `{name}` is in two pairs");
                    return Err(Problem::at(format!("pairs[{nth}]"), message).help("take it out of one of them"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fate, Harness, port};

    fn harness(parameters: &str, ingress: u8) -> Result<Harness, String> {
        Harness::builder().ports(&["a", "b", "c"].map(port)).ingress(ingress).build::<Cross>(parameters)
    }

    #[test]
    fn what_comes_in_at_one_is_for_the_other() {
        for (parameters, others) in [
            ("pairs = [['b', 'c']]", [None, Some(2), Some(1)]),
            ("pairs = [['c', 'a'], ['b', 'b']]", [Some(2), Some(1), Some(0)]),
        ] {
            for (ingress, other) in others.into_iter().enumerate() {
                let outcome = harness(parameters, ingress as u8).unwrap().run_one(&[7; 60]);
                match other {
                    Some(port) => assert_eq!((outcome.fate, outcome.meta.egress), (Fate::Next, port)),
                    None => assert_eq!(outcome.fate, Fate::Dropped("not_joined".to_owned())),
                }
            }
        }
    }

    #[test]
    fn pairs_that_are_none_are_named() {
        for (parameters, expected) in [
            ("pairs = []", "pairs: there is no pair"),
            ("pairs = [['a', 'd']]", "pairs: there is no port `d`"),
            ("pairs = [['a', 'b'], ['c', 'b']]", "pairs[1]: the port `b` is in two pairs"),
        ] {
            let error = harness(parameters, 0).err().unwrap();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
