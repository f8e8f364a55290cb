//! A bench for stages that need parsed headers.

use serde::de::DeserializeOwned;

use crate::header::parse::{Flags, dissect};
use crate::prelude::*;
use crate::testing::{Harness, HarnessBuilder};

/// Fills in what `parse` would, and nothing for frames that are malformed. The flow hash is the sum of the bytes of
/// addresses and ports.
struct Dissect;

impl Stage for Dissect {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        for mut packet in batch.iter_mut() {
            let Ok(found) = dissect(packet.data()) else { continue };
            let mut flags = MetaFlags::empty();
            for (from, to) in [
                (Flags::IPV4, MetaFlags::IPV4),
                (Flags::IPV6, MetaFlags::IPV6),
                (Flags::ARP, MetaFlags::ARP),
                (Flags::FRAGMENT, MetaFlags::FRAGMENT),
                (Flags::FIRST_FRAGMENT, MetaFlags::FIRST_FRAGMENT),
                (Flags::L4_OK, MetaFlags::L4),
            ] {
                flags.set(to, found.flags.contains(from));
            }
            flags.set(MetaFlags::VLAN, found.vlan_tags > 0);
            flags.set(MetaFlags::QINQ, found.vlan_tags > 1);
            let tuple = packet.data().get(usize::from(found.l3) + 8..usize::from(found.l4) + 4).unwrap_or_default();
            let flow_hash = tuple.iter().fold(0, |sum, byte| sum + u32::from(*byte));
            let meta = packet.meta_mut();
            (meta.l3, meta.l4, meta.end) = (found.l3, found.l4, found.end);
            (meta.ether_type, meta.vlan, meta.protocol) = (found.ether_type, found.outer_tci, found.protocol);
            (meta.flags, meta.flow_hash) = (flags, flow_hash);
        }
    }
}

/// A bench on which packets are parsed before they reach the stage.
pub(super) fn builder() -> HarnessBuilder {
    Harness::builder().after(Dissect)
}

/// The stage on that bench.
pub(super) fn parsed<S: Stage + DeserializeOwned + 'static>(parameters: &str) -> Result<Harness, String> {
    builder().build::<S>(parameters)
}
