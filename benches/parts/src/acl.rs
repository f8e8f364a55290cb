//! Rules on the 5-tuple, the first that matches wins.

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use dataplane::stages::table::classifier::{Addresses, Classifier, Key, Rule};
use ipnet::{IpNet, Ipv4Net};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::{Table, fail, file};

/// Numbers as they are, but for the protocol under its mask: 0 for any.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
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
        let (entries, packets) = file::read::<Entry, Packet>(bytes);
        let rules: Vec<Rule> = entries
            .iter()
            .map(|it| Rule {
                source: net(it.source, it.source_len),
                destination: net(it.destination, it.destination_len),
                protocol: (it.protocol_mask != 0).then_some(it.protocol),
                source_ports: Some(it.source_ports[0]..=it.source_ports[1]),
                destination_ports: Some(it.destination_ports[0]..=it.destination_ports[1]),
                ..Rule::default()
            })
            .collect();
        Self { classifier: Classifier::new(&rules), rules, packets }
    }

    /// Takes rules out, one here and one there, and puts each back where it was, a copy being given out after every change as to those
    /// who look up. Gives the mean time of a change, and of compiling all rules.
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
    fn len(&self) -> usize {
        self.packets.len()
    }

    fn lookup(&self, range: std::ops::Range<usize>, values: &mut [u32]) {
        let packets = &self.packets[range];
        self.classifier.lookup_batch(values, |at| {
            let it = packets.get(at)?;
            Some(Key {
                addresses: Addresses::V4(it.source, it.destination),
                protocol: it.protocol,
                ports: Some((it.source_port, it.destination_port)),
                vlan: None,
                tcp_flags: None,
            })
        });
    }
}
