//! The `acl` stage: permits or denies packets by ordered rules.

mod hits;
mod rows;
mod rules;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use dataplane_core::header::Header;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::header::ipv4::Ipv4;
use dataplane_core::header::protocol;
use dataplane_core::mem::{BATCH, Head};
use dataplane_core::prelude::*;
use dataplane_tables::MISS;
use dataplane_tables::classifier::{Addresses, Key, V4Key, v4_key};
use hits::RuleSet;
use rows::RuleTable;
#[cfg(any(test, fuzzing))]
pub(crate) use rules::fuzz;
use rules::{RuleAction, RuleSpec, Rules};

/// Permits or denies packets by ordered rules. The first rule that matches a packet determines the action.
///
/// A rule matches a packet if all match keys of the rule match, such as `src` or `dst_port`. A rule without match keys
/// matches all IP packets. Denied packets are dropped with the reason `denied`. The key `default` sets the action for
/// packets that no rule matches, and for packets that are neither IPv4 nor IPv6. Every rule has a hit counter. The name
/// of the counter is the rule's `name`, or the text of the rule, such as `deny tcp dst 10.0.0.0/8 dst_port 22`. If
/// several rules without a name have the same text, the name of the second counter ends with `#2`, the name of the
/// third counter ends with `#3`, and so on.
///
/// A rule that names ports or TCP flags matches only packets that contain these fields. In a fragmented datagram, only
/// the first fragment can contain these fields. `fragments = "deny"` drops all fragments without a complete TCP, UDP or
/// ICMP header (see RFC 1858 and RFC 3128 for the reasons).
///
/// A rule file is a TOML file. The rules in the file have the keys of `rules`:
///
/// ```text
/// rules = [
///     { action = "deny", src = "203.0.113.0/24" },
/// ]
/// ```
///
/// The rules of the file follow the rules of the config. The config and the file together can have at most 100,000
/// rules. Replace the file atomically with `mv`. Otherwise, the stage may read a partly written file. If this part is
/// valid TOML, the stage uses the rules in this part, and reports no error about the missing rules.
///
/// On SIGHUP or `dataplane reload`, the stage reads the file again, while the workers continue. The stage compiles only
/// the rules that have changed. Each worker switches to the new rules between two batches, so the stage never mixes old
/// and new rules for one packet. If the file has errors, the program reports up to 20 errors, and nothing changes.
///
/// If a counter with the same name exists before and after the reload, the counter keeps its value, even if the rule
/// has another index. The hits of removed rules are added to the counter `gone`. The counter `rules` reports the number
/// of rules.
///
/// ```toml
/// [[pipeline.stage]]
/// name      = "edge"
/// use       = "acl"
/// default   = "deny"
/// file      = "firewall.rules"
/// fragments = "deny"
/// rules     = [
///     { action = "deny", dst = "10.0.0.0/8", protocol = "tcp", dst_port = 22, name = "no_ssh" },
///     { action = "permit", src = "10.0.0.0/8", protocol = "udp", src_port = "1024-65535" },
///     { action = "deny", protocol = "tcp", tcp_flags = "syn,!ack", vlan = 7 },
///     { action = "permit", src = "2001:db8::/32", protocol = "any" },
/// ]
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Acl {
    /// The rules, in order of precedence.
    #[serde(default)]
    rules: Vec<RuleSpec>,
    /// A file with more rules. A relative path starts from the folder of the config. The file must be a regular file of
    /// at most 32 MiB. The stage reads the file again on SIGHUP or `dataplane reload`.
    file: Option<PathBuf>,
    /// The action for packets that no rule matches: `permit` or `deny`.
    default: RuleAction,
    /// How fragments without a complete TCP, UDP or ICMP header are handled. `match_l3` checks these fragments only
    /// against rules that name neither ports nor TCP flags. `deny` drops these fragments.
    #[serde(default)]
    fragments: Fragments,
    #[serde(skip)]
    #[schemars(skip)]
    rule_set: Option<RuleSet>,
    /// Whether rules may have been removed while the program runs.
    #[serde(skip)]
    #[schemars(skip)]
    reports_gone: bool,
    /// Whether this worker's stage reports the number of rules, which all workers share.
    #[serde(skip)]
    #[schemars(skip)]
    reports_rules: bool,
    #[serde(skip)]
    #[schemars(skip)]
    scratch: Box<RuleScratch>,
    #[serde(skip)]
    #[schemars(skip)]
    default_hits: u64,
    #[serde(skip)]
    #[schemars(skip)]
    fragments_denied: u64,
}

/// How fragments without a complete TCP, UDP or ICMP header are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Fragments {
    /// Check these fragments against the rules that name neither ports nor TCP flags.
    #[default]
    MatchL3,
    /// Drop these fragments.
    Deny,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleVerdict {
    Rule(u32, RuleAction),
    Fragment,
    Default,
}

/// The lookup keys and results of a batch. All keys are collected first, so that the memory accesses of the lookups
/// overlap.
struct RuleScratch {
    keys: [V4Key; BATCH],
    found: [u32; BATCH],
    /// Indexes of the packets to drop.
    denied: [u16; BATCH],
}

impl Default for RuleScratch {
    fn default() -> Self {
        Self { keys: [V4Key::default(); BATCH], found: [MISS; BATCH], denied: [0; BATCH] }
    }
}

/// Offset of the transport header in a packet without VLAN tags and IPv4 options.
const L4: usize = Ethernet::LEN + Ipv4::LEN;
/// The number of bytes from the start of the packet up to and including the TCP flags.
const FAST_PATH_BYTES: usize = L4 + 14;

/// Returns the lookup key of an IPv4 packet with TCP or UDP ports, without VLAN tags and IPv4 options. Returns `None`
/// for any other packet.
#[inline]
fn fast_key(head: &Head<'_, FAST_PATH_BYTES>) -> Option<V4Key> {
    const PLAIN: MetaFlags = MetaFlags::IPV4.union(MetaFlags::L4);
    let (bytes, meta) = (&*head.bytes, &*head.meta);
    let is_fast = meta.flags.intersection(PLAIN.union(MetaFlags::VLAN)) == PLAIN
        && (usize::from(meta.l3), usize::from(meta.l4)) == (Ethernet::LEN, L4);
    if !is_fast || !matches!(meta.protocol, protocol::TCP | protocol::UDP) {
        return None;
    }
    let address = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let flags = (meta.protocol == protocol::TCP).then_some(bytes[L4 + 13]);
    Some(v4_key((address(L4 - 8), address(L4 - 4)), meta.protocol, (port(L4), port(L4 + 2)), flags))
}

/// Returns the lookup key of a packet, or `None` if the packet is neither IPv4 nor IPv6.
#[inline]
fn key(packet: &Packet<'_>) -> Option<Key> {
    let meta = packet.meta();
    let l3 = packet.data().get(usize::from(meta.l3)..)?;
    let addresses = if meta.flags.contains(MetaFlags::IPV4) {
        let (source, rest) = l3.get(12..)?.split_first_chunk()?;
        Addresses::V4(u32::from_be_bytes(*source), u32::from_be_bytes(*rest.first_chunk()?))
    } else if meta.flags.contains(MetaFlags::IPV6) {
        let (source, rest) = l3.get(8..)?.split_first_chunk()?;
        Addresses::V6(u128::from_be_bytes(*source), u128::from_be_bytes(*rest.first_chunk()?))
    } else {
        return None;
    };
    // The transport header, which has the ports of TCP and UDP and the flags of TCP.
    let l4 = match meta.flags.contains(MetaFlags::L4) {
        true => packet.data().get(usize::from(meta.l4)..).unwrap_or_default(),
        false => &[],
    };
    let has_ports = meta.protocol == protocol::TCP || meta.protocol == protocol::UDP;
    let ports = l4.first_chunk::<4>().filter(|_| has_ports);
    Some(Key {
        addresses,
        protocol: meta.protocol,
        ports: ports.map(|[a, b, c, d]| (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]))),
        vlan: meta.flags.contains(MetaFlags::VLAN).then_some(meta.vlan & 0x0fff),
        tcp_flags: if meta.protocol == protocol::TCP { l4.get(13).copied() } else { None },
    })
}

impl Fragments {
    /// Returns whether a packet is dropped because it is a fragment without a complete TCP, UDP or ICMP header.
    #[inline]
    fn denies(self, packet: &Packet<'_>) -> bool {
        let flags = packet.meta().flags.intersection(MetaFlags::FRAGMENT | MetaFlags::L4);
        self == Self::Deny && flags == MetaFlags::FRAGMENT
    }

    /// Returns the decision about a packet, given the result of its lookup.
    #[inline]
    fn decide(self, rules: &Rules, found: u32, packet: &Packet<'_>) -> RuleVerdict {
        match rules.verdicts.get(found as usize) {
            Some((place, action)) => RuleVerdict::Rule(*place, *action),
            None if self.denies(packet) => RuleVerdict::Fragment,
            None => RuleVerdict::Default,
        }
    }

    /// Returns the lookup key of a packet, or `None` if no rule is checked for the packet.
    #[inline]
    fn key(self, packet: &Packet<'_>) -> Option<Key> {
        if self.denies(packet) { None } else { key(packet) }
    }
}

impl RuleVerdict {
    /// Returns the action for the packet.
    #[inline]
    fn action(self, default: RuleAction) -> RuleAction {
        match self {
            Self::Rule(_, action) => action,
            Self::Fragment => RuleAction::Deny,
            Self::Default => default,
        }
    }
}

impl Stage for Acl {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let Self { rule_set, scratch, default_hits, fragments_denied, default, fragments, .. } = self;
        let Some(RuleSet { rules, hits, .. }) = rule_set else { return };
        let RuleScratch { keys, found, denied } = &mut **scratch;
        let keyed =
            batch.located_heads().zip(&mut *keys).map_while(|(head, key)| fast_key(&head).map(|now| *key = now));
        let fast = keyed.count();
        let (found, rest) = found[..batch.len()].split_at_mut(fast);
        rules.classifier.lookup_v4(&keys[..fast], found);
        let mut drops = 0;
        for (place, found) in (0..).zip(&*found) {
            let (counter, action) = match rules.verdicts.get(*found as usize) {
                Some((rule, action)) => (hits.get_mut(*rule as usize).unwrap_or(&mut *default_hits), *action),
                None => (&mut *default_hits, *default),
            };
            *counter += 1;
            denied[drops % BATCH] = place;
            drops += usize::from(action == RuleAction::Deny);
        }
        for place in denied.iter().take(drops) {
            batch.get_mut(usize::from(*place)).into_iter().for_each(|mut packet| packet.drop(Reason::Denied));
        }
        if rest.is_empty() {
            return;
        }
        rules.classifier.lookup_batch(rest, |at| fragments.key(&batch.get_mut(fast + at)?));
        for (mut packet, found) in batch.iter_mut_from(fast).zip(rest) {
            let verdict = fragments.decide(rules, *found, &packet);
            let counter = match verdict {
                RuleVerdict::Rule(rule, _) => hits.get_mut(rule as usize).unwrap_or(&mut *default_hits),
                RuleVerdict::Fragment => &mut *fragments_denied,
                RuleVerdict::Default => &mut *default_hits,
            };
            *counter += 1;
            if verdict.action(*default) == RuleAction::Deny {
                packet.drop(Reason::Denied);
            }
        }
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let (own, file) = (std::mem::take(&mut self.rules), self.file.as_deref().map(|file| setup.path(file)));
        self.reports_gone = file.is_some() || setup.earlier::<Rules>().is_some();
        let rules = setup.shared_by_workers(|setup| {
            file.iter().try_for_each(|file| setup.declare_read_file(file, "file"))?;
            let earlier = setup.earlier::<Rules>();
            Rules::load(&own, file.as_deref(), earlier.as_deref()).map_err(|mut problems| {
                let last = problems.pop().unwrap_or_else(|| Problem::at("rules", "the rules are invalid"));
                problems.into_iter().for_each(|problem| setup.reject(problem));
                last
            })
        })?;
        if setup.worker_number() == 0 {
            setup.table("acl", RuleTable { rules: rules.clone(), default: self.default });
            self.reports_rules = file.is_some();
        }
        self.rule_set = Some(RuleSet::new(rules, setup)?);
        Ok(())
    }

    fn counters(&self, report: &mut dyn CounterReport) {
        let Some(rule_set) = &self.rule_set else { return };
        rule_set.named_hits().for_each(|(name, is_named, hits)| report.add_entry(name, is_named, hits));
        if self.fragments == Fragments::Deny {
            report.add("fragments", self.fragments_denied);
        }
        report.add("default", self.default_hits);
        if self.reports_gone {
            report.add("gone", rule_set.gone);
        }
        if self.reports_rules {
            report.add("rules", rule_set.rules.len() as u64);
        }
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let rules = &self.rule_set.as_ref()?.rules;
        let found = self.fragments.key(packet).and_then(|key| rules.classifier.lookup(&key));
        let verdict = self.fragments.decide(rules, found.unwrap_or(MISS), packet);
        let action = match verdict.action(self.default) {
            RuleAction::Permit => "permit",
            RuleAction::Deny => "deny",
        };
        Some(match verdict {
            RuleVerdict::Rule(rule, _) => rules.explain(rule).unwrap_or_default(),
            RuleVerdict::Fragment => "a fragment without a complete TCP, UDP or ICMP header: deny".to_owned(),
            RuleVerdict::Default => format!("no rule matches: {action}"),
        })
    }

    fn adopt(&mut self, earlier: &mut dyn Stage) -> HeldPackets {
        let Some(earlier) = earlier.downcast::<Self>() else { return HeldPackets::Keep };
        (self.default_hits, self.fragments_denied) = (earlier.default_hits, earlier.fragments_denied);
        if let (Some(rule_set), Some(earlier)) = (&mut self.rule_set, &earlier.rule_set) {
            rule_set.adopt(earlier);
        }
        HeldPackets::Keep
    }

    fn info() -> StageInfo {
        StageInfo::new()
            .keeps("the hits of each rule whose name the new rules also contain")
            .drops(&[Reason::Denied])
            .gauges(&["rules"])
            .tables(const { &[TableInfo::of::<RuleTable>("acl")] })
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::HEADERS)
    }
}

#[cfg(test)]
mod tests;
