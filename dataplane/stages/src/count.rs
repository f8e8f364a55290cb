//! `count`: counts packets and bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use dataplane_core::header::protocol;
use dataplane_core::prelude::*;

/// Counts packets and bytes. All packets go to the next stage.
///
/// A pipeline can have several `count` stages. Each of the stages counts the packets at its own point of the pipeline.
/// The counters appear in the report under the name of the stage. The counted bytes of a frame include its headers and
/// exclude its frame check sequence.
///
/// ```toml
/// [[pipeline.stage]]
/// name = "to_lan"
/// use  = "count"
/// by   = "protocol"
/// ```
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Count {
    /// How to split the counts. With `none`, the stage does not split the counts. With `ether_type`, the stage counts
    /// `ipv4`, `ipv6`, `arp` and `other` separately. With `protocol`, the stage counts `tcp`, `udp`, `icmp`, `icmpv6`
    /// and `other` separately. `ether_type` and `protocol` need a `parse` stage before this stage. Default: `none`.
    #[serde(default)]
    by: By,
    #[serde(skip)]
    #[schemars(skip)]
    tallies: [Tally; MOST],
}

/// How packets are split into classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum By {
    /// One class for all packets.
    #[default]
    None,
    /// The EtherType after all VLAN tags.
    EtherType,
    /// The protocol of the IP payload.
    Protocol,
}

/// The maximum number of classes of any [`By`].
const MOST: usize = 5;

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    packets: u64,
    bytes: u64,
}

impl By {
    /// Returns the names of the counters of each class.
    fn counters(self) -> &'static [[&'static str; 2]] {
        match self {
            Self::None => &[],
            Self::EtherType => &[
                ["ipv4.packets", "ipv4.bytes"],
                ["ipv6.packets", "ipv6.bytes"],
                ["arp.packets", "arp.bytes"],
                ["other.packets", "other.bytes"],
            ],
            Self::Protocol => &[
                ["tcp.packets", "tcp.bytes"],
                ["udp.packets", "udp.bytes"],
                ["icmp.packets", "icmp.bytes"],
                ["icmpv6.packets", "icmpv6.bytes"],
                ["other.packets", "other.bytes"],
            ],
        }
    }

    /// Returns the index of the packet's class. With [`By::None`], all packets have the class 0.
    #[inline]
    fn class(self, meta: &Meta) -> usize {
        match self {
            Self::None => 0,
            Self::EtherType if meta.flags.contains(MetaFlags::IPV4) => 0,
            Self::EtherType if meta.flags.contains(MetaFlags::IPV6) => 1,
            Self::EtherType if meta.flags.contains(MetaFlags::ARP) => 2,
            Self::EtherType => 3,
            Self::Protocol if !meta.flags.intersects(MetaFlags::IPV4 | MetaFlags::IPV6) => 4,
            Self::Protocol => match meta.protocol {
                protocol::TCP => 0,
                protocol::UDP => 1,
                protocol::ICMP => 2,
                protocol::ICMPV6 => 3,
                _ => 4,
            },
        }
    }
}

impl Stage for Count {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        if self.by == By::None {
            self.tallies[0].packets += batch.len() as u64;
            self.tallies[0].bytes += batch.bytes();
            return;
        }
        for packet in batch.iter_mut() {
            let tally = &mut self.tallies[self.by.class(packet.meta()).min(MOST - 1)];
            tally.packets += 1;
            tally.bytes += packet.len() as u64;
        }
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        if let Some(earlier) = earlier.downcast::<Self>().filter(|earlier| earlier.by == self.by) {
            self.tallies = earlier.tallies;
        }
        HeldPackets::Keep
    }

    fn info() -> StageInfo {
        StageInfo::new().keeps("its numbers of packets and bytes, unless `by` changes")
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        report.add("packets", self.tallies.iter().map(|tally| tally.packets).sum());
        report.add("bytes", self.tallies.iter().map(|tally| tally.bytes).sum());
        for ([packets, bytes], tally) in self.by.counters().iter().zip(&self.tallies) {
            report.add(packets, tally.packets);
            report.add(bytes, tally.bytes);
        }
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(if self.by == By::None { Facts::empty() } else { Facts::HEADERS }).ignores_checksums()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench;
    use dataplane_core::harness::{Fate, Harness, frame};
    use dataplane_core::header::{MacAddr, arp};

    fn frames() -> Vec<Vec<u8>> {
        let v4 = || frame().ipv4([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let v6 = || frame().ipv6("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let host = |last| (MacAddr([2, 0, 0, 0, 0, last]), [192, 0, 2, last].into());
        vec![
            v4().tcp(1, 2).build(),
            v4().udp(1, 2).payload(&[0; 100]).build(),
            v4().protocol(47).build(),
            v4().vlan(7).echo_request(1, 1).build(),
            v6().echo_request(1, 1).build(),
            v6().udp(1, 2).build(),
            frame().arp(arp::REQUEST, host(1), host(2)).build(),
        ]
    }

    fn count(by: &str, mut harness: Harness) -> Vec<(String, u64)> {
        let outcomes = harness.run(&frames());
        assert!(outcomes.iter().all(|outcome| outcome.fate == Fate::Next), "{by}");
        let counters = harness.counters();
        harness.run(&frames());
        for ((_, once), (_, twice)) in counters.iter().zip(harness.counters()) {
            assert_eq!(*once * 2, twice, "{by}");
        }
        counters
    }

    fn packets(counters: &[(String, u64)]) -> Vec<(&str, u64)> {
        let packets = counters.iter().filter(|(name, _)| name.ends_with(".packets"));
        packets.map(|(name, value)| (name.trim_end_matches(".packets"), *value)).collect()
    }

    #[test]
    fn every_packet_is_counted_once() {
        let bytes: usize = frames().iter().map(Vec::len).sum();
        for by in ["none", "ether_type", "protocol"] {
            let parameters = format!("by = \"{by}\"");
            let counters = count(by, bench::parsed::<Count>(&parameters).unwrap());
            assert_eq!(counters[..2], [("packets".to_owned(), 7), ("bytes".to_owned(), bytes as u64)]);
            if by != "none" {
                assert_eq!(packets(&counters).iter().map(|(_, packets)| packets).sum::<u64>(), 7);
                let parts = counters[2..].iter().filter(|(name, _)| name.ends_with(".bytes"));
                assert_eq!(parts.map(|(_, bytes)| bytes).sum::<u64>(), bytes as u64);
            }
        }
    }

    #[test]
    fn packets_are_counted_by_class() {
        let counters = count("ether_type", bench::parsed::<Count>("by = \"ether_type\"").unwrap());
        assert_eq!(packets(&counters), [("ipv4", 4), ("ipv6", 2), ("arp", 1), ("other", 0)]);
        let counters = count("protocol", bench::parsed::<Count>("by = \"protocol\"").unwrap());
        assert_eq!(packets(&counters), [("tcp", 1), ("udp", 2), ("icmp", 1), ("icmpv6", 1), ("other", 2)]);
    }

    #[test]
    fn parsed_headers_are_needed_only_for_classes() {
        let mut plain = Harness::from_toml::<Count>("").unwrap();
        assert_eq!(plain.stage().contract().needs, Facts::empty());
        let mut by = Harness::from_toml::<Count>("by = \"protocol\"").unwrap();
        assert_eq!(by.stage().contract().needs, Facts::HEADERS);
        let error = Harness::from_toml::<Count>("by = \"colour\"").err().unwrap();
        assert!(error.contains("`none`, `ether_type`, `protocol`"), "{error}");
    }
}
