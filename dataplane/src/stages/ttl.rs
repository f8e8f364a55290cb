//! `ttl`: what a router takes from a packet at each hop.

use schemars::JsonSchema;
use serde::Deserialize;
use zerocopy::FromBytes;

use crate::header::Header;
use crate::header::ethernet::Ethernet;
use crate::header::ipv4::Ipv4;
use crate::header::ipv6::Ipv6;
use crate::mem::{Batch, Edge, Head, Meta, MetaFlags, Packet, Reason};
use crate::pipeline::{Ctx, Facts, Stage};

/// Takes one off the TTL of IPv4 and off the hop limit of IPv6, and adjusts the IPv4 checksum.
///
/// Packets on their last hop leave by `expired`, unchanged; where it leads nowhere they are dropped. Other packets go on
/// untouched.
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
        let plain = batch.is_plain();
        let take = |head: Head<'_, _>| ((plain || is_plain(head.meta)) && take_hop(head.bytes)).then_some(());
        let usual = batch.located_heads().map_while(take).count();
        for mut packet in batch.iter_mut_from(usual) {
            match hop(&mut packet) {
                Some(true) => {}
                Some(false) => packet.steer(EXPIRED),
                None => packet.drop(Reason::Truncated),
            }
        }
    }

    fn outputs() -> &'static [(&'static str, &'static str)] {
        &[("expired", "packets whose TTL or hop limit is used up")]
    }

    fn needs(&self) -> Facts {
        Facts::HEADERS
    }
}

/// Whether it is an IPv4 packet without tags.
#[inline]
fn is_plain(meta: &Meta) -> bool {
    usize::from(meta.l3) == Ethernet::LEN && meta.flags.contains(MetaFlags::IPV4)
}

/// Takes the hop of such a packet. `false`: it has none left, and nothing has changed.
#[inline]
fn take_hop(head: &mut [u8; Ethernet::LEN + Ipv4::LEN]) -> bool {
    Ipv4::mut_from_bytes(&mut head[Ethernet::LEN..]).is_ok_and(Ipv4::decrement_ttl)
}

/// Whether the packet had a hop left, which is taken; `None`: it was cut after it was parsed.
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
    use crate::header::ipv4;
    use crate::header::parse::{Flags, dissect};
    use crate::stages::parse::Parse;
    use crate::testing::{Fate, Harness, strategies};

    /// The same by the simplest means.
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
        fn a_hop_is_taken_as_the_model_takes_it(frames in prop::collection::vec(strategies::valid_frame(), 1..20)) {
            let mut harness = Harness::builder().after(Parse::default()).build::<Ttl>("").unwrap();
            for (outcome, frame) in harness.run(&frames).into_iter().zip(frames) {
                prop_assert_eq!((outcome.bytes, outcome.fate), model(frame));
            }
        }
    }

    /// Takes the IP header away, or says that it does: as a stage of an app may.
    struct Hides {
        by_fronts: bool,
    }

    impl Stage for Hides {
        fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
            if self.by_fronts {
                batch.heads_mut::<0>().for_each(|head| head.meta.flags = MetaFlags::empty());
            } else {
                batch.iter_mut().for_each(|mut packet| packet.meta_mut().flags = MetaFlags::empty());
            }
        }
    }

    #[test]
    fn what_parse_found_of_all_packets_is_forgotten_where_a_stage_may_have_changed_it() {
        let frames =
            vec![
                crate::testing::frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).udp(1, 2).pad_to(60).build();
                3
            ];
        for by_fronts in [false, true] {
            let mut harness =
                Harness::builder().after(Parse::default()).after(Hides { by_fronts }).build::<Ttl>("").unwrap();
            assert!(harness.run(&frames).iter().zip(&frames).all(|(outcome, frame)| outcome.bytes == *frame));
        }
        let mut harness = Harness::builder().after(Parse::default()).build::<Ttl>("").unwrap();
        assert!(
            harness.run(&frames).iter().zip(&frames).all(|(outcome, frame)| outcome.bytes == model(frame.clone()).0)
        );
    }

    #[test]
    fn a_packet_that_was_cut_is_dropped() {
        let bytes = crate::testing::frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into()).build();
        let outcome = crate::stages::bench::cut::<Ttl>().run_one(&bytes);
        assert_eq!(outcome.fate, Fate::Dropped("truncated".to_owned()));
    }
}
