//! `cross`: connects ports in pairs, like a cable.

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::mem::{Batch, Reason};
use dataplane_core::pipeline::{Contract, Ctx, Facts, Problem, Setup, Stage, StageInfo};

/// Connects ports in pairs. A packet that enters on one port of a pair gets the other port as egress port.
///
/// The stage only sets the egress port. A `tx` stage sends the packets. Packets from a port that is in no pair are
/// dropped as `not_joined`.
///
/// ```toml
/// [[pipeline.stage]]
/// name  = "wire"
/// use   = "cross"
/// pairs = [["left", "right"]]
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cross {
    /// The pairs of port names. A port can be in one pair only. No default: at least one pair is required.
    pub pairs: Vec<[String; 2]>,
    /// For each port, the other port of its pair.
    #[serde(skip)]
    #[schemars(skip)]
    others: Vec<Option<u8>>,
}

const NOT_JOINED: Reason = Reason::of_stage(0);

impl Stage for Cross {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            match self.others.get(usize::from(packet.ingress())).copied().flatten() {
                Some(other) => packet.meta_mut().egress = other,
                None => packet.drop(NOT_JOINED),
            }
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.pairs.is_empty() {
            return Err(Problem::at("pairs", "the list is empty").help("add a pair: pairs = [[\"left\", \"right\"]]"));
        }
        self.others = vec![None; setup.ports().len()];
        for (nth, pair) in self.pairs.iter().enumerate() {
            let [left, right] = [setup.port(&pair[0], "pairs")?, setup.port(&pair[1], "pairs")?];
            for (from, to, name) in [(left, right, &pair[0]), (right, left, &pair[1])] {
                let place = self.others.get_mut(usize::from(from));
                if place.and_then(|place| place.replace(to)).is_some_and(|before| left != right || before != to) {
                    let message = format!("the port `{name}` is in two pairs");
                    return Err(
                        Problem::at(format!("pairs[{nth}]"), message).help("remove the port from one of the pairs")
                    );
                }
            }
        }
        Ok(())
    }

    fn info() -> StageInfo {
        StageInfo::new().stateless().reasons(&[("not_joined", "the ingress port is in no pair")])
    }

    fn contract(&self) -> Contract {
        Contract::new().sets(Facts::EGRESS).ignores_checksums()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::harness::{Fate, Harness, port};

    fn harness(parameters: &str, ingress: u8) -> Result<Harness, String> {
        Harness::builder().ports(&["a", "b", "c"].map(port)).ingress(ingress).build::<Cross>(parameters)
    }

    #[test]
    fn packets_leave_by_the_other_port_of_the_pair() {
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
    fn invalid_pairs_are_refused_with_their_key() {
        for (parameters, expected) in [
            ("pairs = []", "pairs: the list is empty"),
            ("pairs = [['a', 'd']]", "pairs: there is no port `d`"),
            ("pairs = [['a', 'b'], ['c', 'b']]", "pairs[1]: the port `b` is in two pairs"),
        ] {
            let error = harness(parameters, 0).err().unwrap();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
