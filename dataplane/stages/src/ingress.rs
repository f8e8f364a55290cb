//! `ingress`: selects packets by the port that received them.

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::mem::{Batch, Edge};
use dataplane_core::pipeline::{Contract, Ctx, Problem, Setup, Stage, StageInfo};

/// Splits packets by ingress port. Packets from the ports in `ports` go to the output `listed`. All other packets go to
/// the next stage.
///
/// ```toml
/// [[pipeline.stage]]
/// name    = "side"
/// use     = "ingress"
/// ports   = ["lan"]
/// outputs = { listed = "lan_packets" }
/// next    = "all_packets"
///
/// [[pipeline.stage]]
/// name = "lan_packets"
/// use  = "count"
///
/// [[pipeline.stage]]
/// name = "all_packets"
/// use  = "count"
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ingress {
    /// The names of the ports whose packets go to the output `listed`. No default: at least one port is required.
    ports: Vec<String>,
    /// Whether a port is in `ports`, indexed by port number.
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

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.ports.is_empty() {
            return Err(Problem::at("ports", "the list is empty").help("add a port: ports = [\"lan\"]"));
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

    fn info() -> StageInfo {
        StageInfo::new().stateless().outputs(&[("listed", "packets that were received on a port in `ports`")])
    }

    fn contract(&self) -> Contract {
        Contract::new().ignores_checksums()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::harness::{Fate, Harness, port};

    fn harness(parameters: &str, ingress: u8) -> Result<Harness, String> {
        Harness::builder().ports(&["a", "b", "c"].map(port)).ingress(ingress).build::<Ingress>(parameters)
    }

    #[test]
    fn packet_from_a_listed_port_leaves_by_listed_output() {
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
    fn invalid_ports_are_refused_with_their_key() {
        for (parameters, expected) in
            [("ports = []", "ports: the list is empty"), ("ports = ['a', 'd']", "ports[1]: there is no port `d`")]
        {
            let error = harness(parameters, 0).err().unwrap();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
