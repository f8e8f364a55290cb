//! ACL rules that match on the 5-tuple of a packet. The first matching rule determines the result.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use dataplane::tables::classifier::{Addresses, Classifier, Key, Rule};
use ipnet::{IpNet, Ipv4Net};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::{Table, fail, file};

/// A rule of the input file. Addresses are numbers, which are little-endian like all numbers of the file. The protocol
/// number is already masked. A protocol mask of 0 matches any protocol.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RuleEntry {
    source: u32,
    destination: u32,
    source_len: u8,
    destination_len: u8,
    protocol: u8,
    protocol_mask: u8,
    source_ports: [u16; 2],
    destination_ports: [u16; 2],
}

#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Packet {
    source: u32,
    destination: u32,
    source_port: u16,
    destination_port: u16,
    protocol: u8,
    zero: [u8; 3],
}

pub(crate) struct Rules {
    classifier: Classifier,
    rules: Vec<Rule>,
    packets: Vec<Packet>,
}

fn net(address: u32, len: u8) -> Option<IpNet> {
    let net = Ipv4Net::new(Ipv4Addr::from(address), len).unwrap_or_else(|error| fail(&error.to_string()));
    (len > 0).then_some(net.into())
}

impl Rules {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let (entries, packets) = file::read::<RuleEntry, Packet>(bytes);
        let rules: Vec<Rule> = entries
            .iter()
            .map(|entry| Rule {
                source: net(entry.source, entry.source_len),
                destination: net(entry.destination, entry.destination_len),
                protocol: (entry.protocol_mask != 0).then_some(entry.protocol),
                source_ports: Some(entry.source_ports[0]..=entry.source_ports[1]),
                destination_ports: Some(entry.destination_ports[0]..=entry.destination_ports[1]),
                ..Rule::default()
            })
            .collect();
        Self { classifier: Classifier::new(&rules), rules, packets }
    }

    /// Measures changes of single rules. Removes rules at varying positions, and inserts each rule again at its old
    /// position. After each change, clones the classifier, as a publication to reader threads would do. Returns the
    /// mean time of one change, and the mean time to compile all rules.
    pub(crate) fn change(&self, time: Duration) -> [Duration; 2] {
        let (mut classifier, mut changes, began) = (self.classifier.clone(), 0, Instant::now());
        while began.elapsed() < time {
            let at = changes as usize / 2 * 7919 % self.rules.len();
            if changes % 2 == 0 {
                classifier.remove(at);
            } else {
                classifier.insert(at, self.rules[at].clone());
            }
            black_box(classifier.clone());
            changes += 1;
        }
        let change = began.elapsed() / changes;
        let (mut compiled, began) = (0, Instant::now());
        while began.elapsed() < time {
            black_box(Classifier::new(&self.rules));
            compiled += 1;
        }
        [change, began.elapsed() / compiled]
    }
}

impl Table for Rules {
    fn lookup_count(&self) -> usize {
        self.packets.len()
    }

    fn lookup(&self, range: std::ops::Range<usize>, values: &mut [u32]) {
        let packets = &self.packets[range];
        self.classifier.lookup_batch(values, |at| {
            let packet = packets.get(at)?;
            Some(Key {
                addresses: Addresses::V4(packet.source, packet.destination),
                protocol: packet.protocol,
                ports: Some((packet.source_port, packet.destination_port)),
                vlan: None,
                tcp_flags: None,
            })
        });
    }
}
