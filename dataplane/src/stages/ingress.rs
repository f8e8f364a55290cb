//! `ingress`: what came in at some ports takes a way of its own.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::mem::{Batch, Edge};
use crate::pipeline::{Ctx, Problem, Setup, Stage};

/// Parts packets by the port that they came in at: those of the ports named leave by `listed`, the others go on.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "side"
/// use = "ingress"
/// ports = ["lan"]
/// outputs = { listed = "lan_rules" }
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ingress {
    /// The names of ports, at least one.
    ports: Vec<String>,
    /// For each port whether it is named.
    #[serde(skip)]
    #[schemars(skip)]
    listed: Vec<bool>,
}

const LISTED: Edge = Edge::new(0);

impl Stage for Ingress {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            if self.listed.get(usize::from(packet.ingress())).copied().unwrap_or(false) {
                packet.steer(LISTED);
            }
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[("listed", "it came in at one of the ports")]
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.ports.is_empty() {
            return Err(Problem::at("ports", "there is no port").help("name one: ports = [\"lan\"]"));
        }
        self.listed = vec![false; setup.ports().len()];
        for (nth, name) in self.ports.iter().enumerate() {
            let port = setup.port(name, &format!("ports[{nth}]"))?;
            if let Some(listed) = self.listed.get_mut(usize::from(port)) {
                *listed = true;
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
        Harness::builder().ports(&["a", "b", "c"].map(port)).ingress(ingress).build::<Ingress>(parameters)
    }

    #[test]
    fn what_came_in_at_a_listed_port_leaves_by_the_output() {
        for (parameters, listed) in
            [("ports = ['b']", [false, true, false]), ("ports = ['c', 'a']", [true, false, true])]
        {
            for (ingress, listed) in listed.into_iter().enumerate() {
                let fate = harness(parameters, ingress as u8).unwrap().run_one(&[7; 60]).fate;
                assert_eq!(fate, if listed { Fate::Output("listed".to_owned()) } else { Fate::Next });
            }
        }
    }

    #[test]
    fn ports_that_are_none_are_named() {
        for (parameters, expected) in
            [("ports = []", "ports: there is no port"), ("ports = ['a', 'd']", "ports[1]: there is no port `d`")]
        {
            let error = harness(parameters, 0).err().unwrap();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
