//! `ttl`: decrements the TTL or hop limit, as each router does.

use schemars::JsonSchema;
use serde::Deserialize;
use zerocopy::FromBytes;

use dataplane_core::header::Header;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::ipv4::Ipv4;
use dataplane_core::header::ipv6::Ipv6;
use dataplane_core::mem::{Batch, Edge, Head, MetaFlags, Packet, Reason};
use dataplane_core::pipeline::{Contract, Ctx, Facts, Stage, StageInfo};

/// Decrements the TTL of IPv4 packets and the hop limit of IPv6 packets, and updates the IPv4 checksum.
///
/// Packets whose TTL or hop limit would become 0 leave by `expired`, unchanged. If `expired` is not connected, these
/// packets are dropped. Packets that are neither IPv4 nor IPv6 go to the next stage unchanged.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "hop"
/// use = "ttl"
/// ```
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ttl {}

const EXPIRED: Edge = Edge::new(0);

impl Stage for Ttl {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let plain = batch.is_plain_ipv4();
        let take = |head: Head<'_, _>| ((plain || head.meta.is_untagged_ipv4()) && take_hop(head.bytes)).then_some(());
        let usual = batch.located_heads().map_while(take).count();
        for mut packet in batch.iter_mut_from(usual) {
            match hop(&mut packet) {
                Some(true) => {}
                Some(false) => packet.steer(EXPIRED),
                None => packet.drop(Reason::Truncated),
            }
        }
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .stateless()
            .outputs(&[("expired", "packets whose TTL or hop limit has expired")])
            .drops(&[Reason::Truncated])
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::HEADERS)
    }
}

/// Decrements the TTL of an untagged IPv4 packet. Returns `false`, with the packet unchanged, if the TTL is used up.
#[inline]
fn take_hop(head: &mut [u8; Ethernet::LEN + Ipv4::LEN]) -> bool {
    Ipv4::mut_from_bytes(&mut head[Ethernet::LEN..]).is_ok_and(Ipv4::decrement_ttl)
}

/// Decrements the TTL or hop limit. Returns `Some(false)` if the TTL or hop limit is used up, and `None` if the packet
/// was truncated after `parse`.
#[inline]
fn hop(packet: &mut Packet<'_>) -> Option<bool> {
    let (l3, flags) = (usize::from(packet.meta().l3), packet.meta().flags);
    let header = packet.data_mut().get_mut(l3..)?;
    if flags.contains(MetaFlags::IPV4) {
        Ipv4::mut_from_prefix(header).ok().map(|(ip, _)| ip.decrement_ttl())
    } else if flags.contains(MetaFlags::IPV6) {
        Ipv6::mut_from_prefix(header).ok().map(|(ip, _)| ip.decrement_hop_limit())
    } else {
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::parse::Parse;
    use dataplane_core::harness::{Fate, Harness};
    use dataplane_core::header::ipv4;
    use dataplane_core::header::parse::{Flags, dissect};
    use dataplane_testing::strategies;

    /// Processes a frame with a simple model of the stage.
    fn model(mut bytes: Vec<u8>) -> (Vec<u8>, Fate) {
        let found = dissect(&bytes).unwrap();
        let l3 = usize::from(found.l3);
        let at = match () {
            () if found.flags.contains(Flags::IPV4) => l3 + 8,
            () if found.flags.contains(Flags::IPV6) => l3 + 7,
            () => return (bytes, Fate::Next),
        };
        if bytes[at] <= 1 {
            return (bytes, Fate::Output("expired".to_owned()));
        }
        bytes[at] -= 1;
        if found.flags.contains(Flags::IPV4) {
            ipv4::write_checksum(&mut bytes[l3..]).unwrap();
        }
        (bytes, Fate::Next)
    }

    proptest! {
        #[test]
        fn ttl_stage_matches_the_model(frames in prop::collection::vec(strategies::valid_frame(), 1..20)) {
            let mut harness = Harness::builder().after(Parse::default()).build::<Ttl>("").unwrap();
            for (outcome, frame) in harness.run(&frames).into_iter().zip(frames) {
                prop_assert_eq!((outcome.bytes, outcome.fate), model(frame));
            }
        }
    }

    /// Clears the header flags of every packet, as a stage of an app may do. `by_heads` selects the access: `heads_mut`
    /// or `iter_mut`.
    struct ClearFlags {
        by_heads: bool,
    }

    impl Stage for ClearFlags {
        fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
            if self.by_heads {
                batch.heads_mut::<0>().for_each(|head| head.meta.flags = MetaFlags::empty());
            } else {
                batch.iter_mut().for_each(|mut packet| packet.meta_mut().flags = MetaFlags::empty());
            }
        }
    }

    #[test]
    fn stage_that_may_change_metadata_invalidates_batch_facts() {
        let frames = vec![
            dataplane_core::harness::frame()
                .ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into())
                .udp(1, 2)
                .pad_to(60)
                .build();
            3
        ];
        for by_heads in [false, true] {
            let mut harness =
                Harness::builder().after(Parse::default()).after(ClearFlags { by_heads }).build::<Ttl>("").unwrap();
            assert!(harness.run(&frames).iter().zip(&frames).all(|(outcome, frame)| outcome.bytes == *frame));
        }
        let mut harness = Harness::builder().after(Parse::default()).build::<Ttl>("").unwrap();
        assert!(
            harness.run(&frames).iter().zip(&frames).all(|(outcome, frame)| outcome.bytes == model(frame.clone()).0)
        );
    }

    #[test]
    fn truncated_packet_is_dropped() {
        let bytes = dataplane_core::harness::frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).build();
        let outcome = crate::bench::cut::<Ttl>().run_one(&bytes);
        assert_eq!(outcome.fate, Fate::Dropped("truncated".to_owned()));
    }
}
