//! Compares the flow rules of the software device with their encoding for libibverbs. The interpreter in this file
//! reads the encoding as a device would. The software device and the interpreter must deliver the same frames with the
//! same tags.
//!
//! The interpreter does not parse frames. The builder of a frame also creates an image of each header: the fields of
//! the header in the layout of the `val` member of `struct ibv_flow_spec_*`.
//!
//! `FUZZ_SEED=n` is the seed of the first list of rules.

use std::collections::{BTreeMap, BTreeSet};

use dataplane::ibverbs::encode_flow_rule;
use dataplane::verbs::{
    CqSpec, EthernetMatch, FlowRule, FlowTraffic, HeaderMatch, IpMatch, Ipv4Match, Ipv6Match, MaskedValue, PollFields,
    PortsMatch, QpType, RawDevice, RawSpec, TransportMatch, TunnelMatch,
};
use libtest_mimic::{Completion, Failed};

use crate::bed::{Connection, EndpointSpec, Pair, PairCq, Profile, TestBed};
use crate::fuzz::{Random, env_number};
use crate::soft;

/// The values of `enum ibv_flow_spec_type` and `enum ibv_flow_attr_type` in verbs.h.
const ETH: u32 = 0x20;
const IPV4: u32 = 0x30;
const IPV6: u32 = 0x31;
const IPV4_EXT: u32 = 0x32;
const TCP: u32 = 0x40;
const UDP: u32 = 0x41;
const VXLAN: u32 = 0x50;
const GRE: u32 = 0x51;
const MPLS: u32 = 0x60;
const INNER: u32 = 0x100;
const ACTION_TAG: u32 = 0x1000;
const ACTION_DROP: u32 = 0x1001;
const ALL_DEFAULT: u32 = 1;
const MULTICAST_DEFAULT: u32 = 2;
const SNIFFER: u32 = 3;
const DONT_TRAP: u32 = 1 << 1;

/// The size of `struct ibv_flow_attr`.
const ATTRIBUTES: usize = 20;

const MACS: [[u8; 6]; 3] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [1, 0, 0x5e, 0, 0, 9]];
const TAGS: [[u8; 2]; 2] = [[0, 7], [0x60, 8]];
const V4: [[u8; 4]; 3] = [[10, 0, 0, 1], [10, 0, 1, 2], [192, 0, 2, 1]];
const V6: [[u8; 16]; 2] = [[0xfd; 16], [0x20; 16]];
const LABELS: [[u8; 4]; 2] = [[0, 0, 0, 5], [0, 0x0f, 0, 5]];
const PORTS: [[u8; 2]; 2] = [[0, 1], [0x10, 2]];
const TTLS: [[u8; 1]; 2] = [[1], [64]];
const TOS: [[u8; 1]; 2] = [[0], [0xb8]];
const VNIS: [[u8; 4]; 2] = [[0, 0, 0, 9], [0, 1, 0, 9]];
const KEYS: [[u8; 4]; 2] = [[0, 0, 0, 3], [9, 0, 0, 3]];
const ENTRIES: [[u8; 4]; 2] = [[0, 1, 0x01, 64], [0, 2, 0x03, 64]];

/// A frame and the images of its headers.
struct Frame {
    bytes: Vec<u8>,
    /// The image of each header, by the type of the `ibv_flow_spec_*` that matches this header. If a header lacks an
    /// optional field at its end, such as a VLAN tag, the image ends before this field.
    images: BTreeMap<u32, Vec<u8>>,
}

/// Builds a frame with random headers.
struct Builder<'r> {
    random: &'r mut Random,
    frame: Frame,
}

impl Builder<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.frame.bytes.extend_from_slice(bytes);
    }

    fn image(&mut self, kind: u32, parts: &[&[u8]]) {
        self.frame.images.insert(kind, parts.concat());
    }

    /// Adds an Ethernet header and its payload. `inner` is 0 outside tunnels, and [`INNER`] inside a tunnel.
    fn ethernet(&mut self, inner: u32) {
        let (dst, src) = (self.random.of(&MACS), self.random.of(&MACS[..2]));
        let tag = self.random.once_in(3).then(|| self.random.of(&TAGS));
        let kind: [u8; 2] = match self.random.below(if inner == 0 { 8 } else { 7 }) {
            0..3 => [8, 0],
            3..6 => [0x86, 0xdd],
            6 => [8, 6],
            _ => [0x88, 0x47],
        };
        self.put(&[&dst[..], &src].concat());
        if let Some(tag) = tag {
            self.put(&[&[0x81, 0][..], &tag].concat());
        }
        self.put(&kind);
        self.image(ETH | inner, &[&dst, &src, &kind, tag.as_ref().map_or(&[][..], |tag| tag)]);
        match kind {
            [8, 0] => self.ipv4(inner),
            [0x86, 0xdd] => self.ipv6(inner),
            [8, 6] => self.put(&[0; 28]),
            _ => self.mpls(),
        }
    }

    fn protocol(&mut self, inner: u32) -> u8 {
        self.random.of(if inner == 0 { &[6, 17, 17, 17, 47, 47, 1] } else { &[6, 6, 17, 1] })
    }

    fn ipv4(&mut self, inner: u32) {
        let (src, dst) = (self.random.of(&V4), self.random.of(&V4));
        let ([tos], [ttl]) = (self.random.of(&TOS), self.random.of(&TTLS));
        // The flags of the header, and the same flags in `enum ib_ipv4_flags`: none, don't fragment, more fragments.
        let (bits, flags) = self.random.of(&[(0, 0), (0x40, 2), (0x20, 4)]);
        let protocol = self.protocol(inner);
        self.put(&[0x45, tos, 0, 0, 0, 0, bits, 0, ttl, protocol, 0, 0]);
        self.put(&[src, dst].concat());
        self.image(IPV4 | inner, &[&src, &dst]);
        self.image(IPV4_EXT | inner, &[&src, &dst, &[protocol, tos, ttl, flags]]);
        self.transport(protocol, inner);
    }

    fn ipv6(&mut self, inner: u32) {
        let (src, dst, label) = (self.random.of(&V6), self.random.of(&V6), self.random.of(&LABELS));
        let ([class], [limit]) = (self.random.of(&TOS), self.random.of(&TTLS));
        let protocol = self.protocol(inner);
        self.put(&[0x60 | class >> 4, class << 4 | label[1], label[2], label[3], 0, 0, protocol, limit]);
        self.put(&[src, dst].concat());
        self.image(IPV6 | inner, &[&src, &dst, &label, &[protocol, class, limit]]);
        self.transport(protocol, inner);
    }

    fn transport(&mut self, protocol: u8, inner: u32) {
        let (src, dst) = (self.random.of(&PORTS), self.random.of(&PORTS));
        match protocol {
            6 => {
                self.put(&[&src[..], &dst, &[0; 16]].concat());
                self.image(TCP | inner, &[&dst, &src]);
            }
            17 => {
                let dst = if inner == 0 { self.random.of(&[dst, [0x12, 0xb5], [0x19, 0xeb]]) } else { dst };
                self.put(&[&src[..], &dst, &[0; 4]].concat());
                self.image(UDP | inner, &[&dst, &src]);
                match dst {
                    [0x12, 0xb5] => self.vxlan(),
                    [0x19, 0xeb] => self.mpls(),
                    _ => self.put(&[1, 2, 3]),
                }
            }
            47 => self.gre(),
            _ => self.put(&[0; 8]),
        }
    }

    fn vxlan(&mut self) {
        let vni = self.random.of(&VNIS);
        self.put(&[8, 0, 0, 0, vni[1], vni[2], vni[3], 0]);
        self.image(VXLAN, &[&vni]);
        self.ethernet(INNER);
    }

    fn gre(&mut self) {
        let key = self.random.once_in(2).then(|| self.random.of(&KEYS));
        let flags = if key.is_some() { [0x20, 0] } else { [0; 2] };
        let kind = self.random.of(&[[8, 0], [0x86, 0xdd], [0x65, 0x58]]);
        let key = key.as_ref().map_or(&[][..], |key| key);
        self.put(&[&flags[..], &kind, key].concat());
        self.image(GRE, &[&flags, &kind, key]);
        match kind {
            [8, 0] => self.ipv4(INNER),
            [0x86, 0xdd] => self.ipv6(INNER),
            _ => self.ethernet(INNER),
        }
    }

    fn mpls(&mut self) {
        let entry = self.random.of(&ENTRIES);
        self.put(&entry);
        self.image(MPLS, &[&entry]);
        match self.random.once_in(2) {
            true => self.ipv4(INNER),
            false => self.ipv6(INNER),
        }
    }
}

fn frame(random: &mut Random) -> Frame {
    let mut builder = Builder { random, frame: Frame { bytes: Vec::new(), images: BTreeMap::new() } };
    builder.ethernet(0);
    builder.frame
}

/// Returns a random match for a field. Most matches allow any value. The other matches compare all bits, a prefix or
/// some bits of the field with one of `values`.
fn bits<const N: usize>(random: &mut Random, values: &[[u8; N]]) -> MaskedValue<N> {
    let value = random.of(values);
    match random.below(16) {
        0 => MaskedValue::exact(value),
        1 => MaskedValue::prefix(value, random.below(8 * N as u64) as u8),
        2 => MaskedValue::masked(value, [0x0f; N]),
        _ => MaskedValue::ANY,
    }
}

fn headers(random: &mut Random) -> HeaderMatch {
    let ethernet = random.once_in(3).then(|| EthernetMatch {
        dst: bits(random, &MACS),
        src: bits(random, &MACS),
        ether_type: bits(random, &[[8, 6], [0x88, 0x47]]),
        vlan_tag: bits(random, &TAGS),
    });
    let ports = PortsMatch { src: bits(random, &PORTS), dst: bits(random, &PORTS) };
    let ip = match random.below(4) {
        0 => Some(IpMatch::V4(Ipv4Match { src: bits(random, &V4), dst: bits(random, &V4), ..Ipv4Match::default() })),
        1 => Some(IpMatch::V4(Ipv4Match {
            src: bits(random, &V4),
            protocol: bits(random, &[[6], [17], [1]]),
            tos: bits(random, &TOS),
            ttl: bits(random, &TTLS),
            flags: bits(random, &[[0], [2], [4]]),
            ..Ipv4Match::default()
        })),
        2 => Some(IpMatch::V6(Ipv6Match {
            src: bits(random, &V6),
            dst: bits(random, &V6),
            flow_label: bits(random, &LABELS),
            next_header: bits(random, &[[6], [17], [1]]),
            traffic_class: bits(random, &TOS),
            hop_limit: bits(random, &TTLS),
        })),
        _ => None,
    };
    let transport = match random.below(4) {
        0 => Some(TransportMatch::Tcp(ports)),
        1 => Some(TransportMatch::Udp(ports)),
        _ => None,
    };
    HeaderMatch { ethernet, ip, transport }
}

/// Returns a random valid rule, and the encoding of the rule for libibverbs.
fn rule(random: &mut Random) -> (FlowRule, Vec<u8>) {
    loop {
        let tunnel = match random.below(5) {
            0 => Some(TunnelMatch::Vxlan { vni: bits(random, &VNIS) }),
            1 => Some(TunnelMatch::Gre {
                flags: bits(random, &[[0, 0], [0x20, 0]]),
                protocol: bits(random, &[[8, 0], [0x65, 0x58]]),
                key: bits(random, &KEYS),
            }),
            2 => Some(TunnelMatch::Mpls { label: bits(random, &ENTRIES) }),
            _ => None,
        };
        let traffic = match random.below(12) {
            0 => FlowTraffic::AllDefault,
            1 => FlowTraffic::MulticastDefault,
            2 => FlowTraffic::Sniffer,
            _ => {
                FlowTraffic::Headers { outer: headers(random), tunnel: tunnel.map(|tunnel| (tunnel, headers(random))) }
            }
        };
        let has_actions = matches!(traffic, FlowTraffic::Headers { .. });
        let rule = FlowRule {
            priority: random.below(3) as u16,
            tag: (has_actions && random.once_in(2)).then(|| random.below(1 << 24) as u32),
            drop: has_actions && random.once_in(4),
            dont_trap: has_actions && random.once_in(4),
            ..FlowRule::new(traffic)
        };
        if let Ok(encoding) = encode_flow_rule(&rule) {
            return (rule, encoding);
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(*bytes[at..].first_chunk().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("four bytes"))
}

/// Returns the type of each spec of an encoded rule, and all bytes of the spec, including its header.
fn specs(encoding: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut at = ATTRIBUTES;
    std::iter::from_fn(move || {
        let spec = encoding.get(at..).filter(|rest| !rest.is_empty())?;
        let size = usize::from(u16_at(spec, 4));
        at += size;
        Some((u32_at(spec, 0), &spec[..size]))
    })
}

/// Returns the offset of `val` in a spec, the offset of `mask`, and the length of each of these members without
/// padding.
fn layout(kind: u32) -> (usize, usize, usize) {
    match kind & !INNER {
        ETH => (6, 22, 16),
        IPV4 => (8, 16, 8),
        IPV4_EXT => (8, 20, 12),
        IPV6 => (8, 48, 39),
        TCP | UDP => (6, 10, 4),
        VXLAN | MPLS => (8, 12, 4),
        GRE => (8, 16, 8),
        other => panic!("spec {other:#x}"),
    }
}

/// Returns whether the encoded rule matches the frame. Adds the type of each spec that matches to `matched`.
fn matches(encoding: &[u8], frame: &Frame, matched: &mut BTreeSet<u32>) -> bool {
    specs(encoding).filter(|(kind, _)| *kind < ACTION_TAG).all(|(kind, spec)| {
        let (value, mask, length) = layout(kind);
        let (value, mask) = (&spec[value..][..length], &spec[mask..][..length]);
        let Some(image) = frame.images.get(&kind) else { return false };
        let found = |at: usize| image.get(at).map(|byte| byte & mask[at]);
        let same = (0..length).all(|at| found(at).map_or(mask[at] == 0, |byte| byte == value[at]));
        matched.extend(same.then_some(kind));
        same
    })
}

/// Returns the tag of each copy of the frame that a device with these rules delivers.
fn delivered(rules: &[Vec<u8>], frame: &Frame, matched: &mut BTreeSet<u32>) -> Vec<u32> {
    let of = |wanted: u32| rules.iter().filter(move |rule| u32_at(rule, 4) == wanted);
    let mut tags: Vec<u32> = of(SNIFFER).map(|_| 0).collect();
    // mlx5 has two tables for each priority: first a table for the rules with `dont_trap`, then a table for the other
    // rules.
    let table = |rule: &[u8]| (u16_at(rule, 10), u32_at(rule, 16) & DONT_TRAP == 0);
    let tables: BTreeSet<(u16, bool)> = rules.iter().map(|rule| table(rule)).collect();
    let mut hit = false;
    for at in tables {
        // In one table, only the first matching rule acts.
        let first = of(0).filter(|rule| table(rule) == at).find(|rule| matches(rule, frame, matched));
        let Some(rule) = first else { continue };
        hit = true;
        if !specs(rule).any(|(kind, _)| kind == ACTION_DROP) {
            tags.push(specs(rule).find(|(kind, _)| *kind == ACTION_TAG).map_or(0, |(_, spec)| u32_at(spec, 8)));
        }
        if u32_at(rule, 16) & DONT_TRAP == 0 {
            break;
        }
    }
    let is_multicast = frame.bytes[0] & 1 == 1;
    if !hit && (of(ALL_DEFAULT).count() > 0 || (of(MULTICAST_DEFAULT).count() > 0 && is_multicast)) {
        tags.push(0);
    }
    tags
}

/// Compares the software device with the interpreter for `count` random lists of rules, with eight frames for each
/// list.
pub(crate) fn compare(count: u64) -> Result<Completion, Failed> {
    let seed = env_number("FUZZ_SEED", 1);
    println!("flow rules: FUZZ_SEED={seed}");
    let (mut matched, mut copies, mut losses) = (BTreeSet::new(), 0, 0);
    for seed in seed..seed + count {
        let random = &mut Random(seed);
        let number = 1 + random.below(5);
        let (rules, encodings): (Vec<_>, Vec<_>) = (0..number).map(|_| rule(random)).unzip();
        let bed = soft("flow rules", Profile::Spec);
        let raw = RawSpec { rules: rules.clone(), ..RawSpec::default() };
        bed.b.check_raw(&raw, 1)?;
        let bed = TestBed { b: bed.b.with_raw(raw), ..bed };
        let fields = PollFields::STANDARD | PollFields::FLOW_TAG;
        let spec = EndpointSpec::new(QpType::RawPacket);
        let spec = EndpointSpec { cq: CqSpec { fields, ..spec.cq }, ..spec };
        let mut pair = Pair::connected(&bed, spec, Connection::default(), Connection::default())
            .map_err(|stop| format!("{stop:?}"))?;
        for _ in 0..8 {
            let frame = frame(random);
            let expected = delivered(&encodings, &frame, &mut matched);
            let got = send(&mut pair, &frame.bytes, expected.len()).map_err(|stop| format!("{stop:?}"))?;
            if got != expected {
                let frame = &frame.bytes;
                return Err(format!(
                    "FUZZ_SEED={seed}: the tags are {got:?}, not {expected:?}: {frame:02x?} {rules:#?}"
                )
                .into());
            }
            copies += got.len();
            losses += usize::from(got.is_empty());
        }
    }
    let kinds = [ETH, IPV4, IPV4_EXT, IPV6, TCP, UDP];
    let inner = kinds.map(|kind| kind | INNER);
    let all: BTreeSet<u32> = kinds.into_iter().chain(inner).chain([VXLAN, GRE, MPLS]).collect();
    if matched != all || copies == 0 || losses == 0 {
        return Err(format!(
            "the random rules do not cover every case: the specs {matched:x?} of {all:x?} matched, {copies} copies were \
             delivered, and {losses} frames were not delivered"
        )
        .into());
    }
    Ok(Completion::Completed)
}

/// Sends a frame and returns the tag of each received copy. Posts one receive more than the expected number of copies,
/// so that a surplus copy is received and returned.
fn send<D: RawDevice>(pair: &mut Pair<D>, frame: &[u8], expected: usize) -> crate::Outcome<Vec<u32>> {
    pair.a.buffer.write(0, frame);
    for wr_id in 0..=expected as u64 {
        pair.b.recv(wr_id, 0..512)?;
    }
    pair.a.send(1, 0..frame.len())?;
    pair.wait(&[(PairCq::ASent, 1)])?;
    pair.b.poll_queues()?;
    pair.a.sent.clear();
    let received = std::mem::take(&mut pair.b.received);
    Ok(received.iter().map(|it| it.flow_tag().unwrap_or(u32::MAX)).collect())
}
