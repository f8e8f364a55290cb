//! `flow_tag`: selects packets by the tag that a flow rule of their ingress port has set.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Deserialize;

use dataplane_core::mem::{Batch, Edge, Packet, RecvFields};
use dataplane_core::pipeline::{Contract, Ctx, Problem, Setup, Stage, StageInfo};

/// Selects packets by the tag of a flow rule. If a received packet matches a flow rule with a tag, the device reports
/// the tag together with the packet.
///
/// Packets with one of the `tags` leave by the output `listed`. All other packets go to the next stage: packets with
/// another tag, packets that matched a rule without a tag, packets from ports without flow rules, generated packets,
/// and copies of packets. The stage does not read the packet, because the device has already compared the headers.
///
/// ```toml
/// [[port]]
/// name = "wan"
/// device = "mlx5_0"
/// flow = [{ match = { ipv4 = {}, udp = { dst = 53 } }, tag = 5 }, { priority = 1 }]
///
/// [[pipeline.stage]]
/// use = "flow_tag"
/// tags = [5]
/// outputs = { listed = "drop" }
/// ```
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FlowTag {
    /// The tags of the packets that leave by the output `listed`, each from 1 to 16777215. No default.
    pub tags: BTreeSet<u32>,
}

const LISTED: Edge = Edge::new(0);
const MAX_TAG: u32 = (1 << 24) - 1;

impl Stage for FlowTag {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            if self.tags.contains(&packet.recv_info().flow_tag) {
                packet.steer(LISTED);
            }
        }
    }

    fn prepare(&mut self, _setup: &mut Setup<'_>) -> Result<(), Problem> {
        if self.tags.is_empty() {
            return Err(Problem::at("tags", "the list is empty").help("add the tag of a flow rule: tags = [5]"));
        }
        match self.tags.iter().find(|tag| !(1..=MAX_TAG).contains(*tag)) {
            Some(tag) => Err(Problem::at("tags", format!("{tag} is not a tag")).help("set tags from 1 to 16777215")),
            None => Ok(()),
        }
    }

    fn info() -> StageInfo {
        StageInfo::new().stateless().outputs(&[("listed", "packets with a tag in `tags`")])
    }

    fn contract(&self) -> Contract {
        Contract::new().receives(RecvFields::FLOW_TAG).ignores_checksums()
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        Some(match packet.recv_info().flow_tag {
            0 => "no flow tag".to_owned(),
            tag => format!("flow tag {tag}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dataplane_core::harness::{Fate, Harness, frame};

    #[test]
    fn packet_without_a_tag_goes_to_the_next_stage() {
        let mut harness = Harness::from_toml::<FlowTag>("tags = [1, 7]").unwrap();
        assert_eq!(harness.run_one(&frame().build()).fate, Fate::Next);
    }

    #[test]
    fn invalid_tags_are_refused() {
        for (parameters, message) in [
            ("tags = []", "tags: the list is empty; help: add the tag of a flow rule: tags = [5]"),
            ("tags = [3, 0]", "tags: 0 is not a tag; help: set tags from 1 to 16777215"),
            ("tags = [16777216]", "tags: 16777216 is not a tag; help: set tags from 1 to 16777215"),
        ] {
            assert_eq!(Harness::from_toml::<FlowTag>(parameters).err().unwrap(), message);
        }
    }
}
