//! Ordered rules.

mod live;
mod rules;

use std::path::PathBuf;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::header::Header;
use crate::header::ethernet::Ethernet;
use crate::header::ipv4::Ipv4;
use crate::header::protocol;
use crate::mem::{BATCH, Head};
use crate::prelude::*;
use crate::stages::table::MISS;
use crate::stages::table::classifier::{Addresses, Key, V4Key, v4_key};
use live::{Exchange, Live, Reloader, Set};
use rules::{RuleSpec, Rules};

/// Permits or denies packets by ordered rules, of which the first that matches decides.
///
/// A rule matches when everything that it names does; one that names nothing matches all IP packets. Denied packets
/// are dropped with the reason `denied`. Where no rule matches, and for what is neither IPv4 nor IPv6, the default
/// decides. Every rule has a counter of its hits, by its `name` or its place, such as `rules[3]`.
///
/// A rule with ports or TCP flags matches only packets that show them, which fragments behind the first do not:
/// `fragments = "deny"` drops all fragments that do not show their ports (RFC 1858 and RFC 3128 tell why).
///
/// A file has the same rules, as TOML; they come behind those of the config, and are 100,000 at most with them:
///
/// ```text
/// rules = [
///     { action = "deny", src = "203.0.113.0/24" },
/// ]
/// ```
///
/// On SIGHUP the file is read anew while packets flow. Each worker changes from the old rules to the new ones between two
/// batches, so that no packet is judged by some of both. Where anything is wrong with the file, all of that is told, and
/// the old rules stay. Of rules that are mostly the same, only those that differ are compiled. The file is best replaced at once,
/// by `mv`: half of a file may be rules as well. A rule keeps its count when the new rules have it too: under its name, or
/// without one at the same place; the hits of rules that are no more are in `gone`. The counters `rules`, `reloads` and
/// `refused` say how many rules there are, how often they were changed,
/// and how often a file was refused.
///
/// ```toml
/// [[pipeline.stage]]
/// name    = "edge"
/// use     = "acl"
/// default = "deny"
/// rules   = [
///     { action = "deny", dst = "10.0.0.0/8", protocol = "tcp", dst_port = 22, name = "no_ssh" },
///     { action = "permit", src = "10.0.0.0/8", protocol = "udp", src_port = "1024-65535" },
///     { action = "deny", protocol = "tcp", tcp_flags = "syn,!ack", vlan = 7 },
///     { action = "permit", src = "2001:db8::/32", protocol = "any" },
/// ]
/// ```
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Acl {
    /// The rules, the first before all others.
    #[serde(default)]
    rules: Vec<RuleSpec>,
    /// A file with more rules, relative to the config: a regular file of 32 MiB at most. It is read anew on SIGHUP.
    file: Option<PathBuf>,
    /// What becomes of packets that no rule matches: `permit` or `deny`.
    default: Action,
    /// How fragments that do not show their ports are judged: `match_l3`, by the rules that name no ports or flags, or
    /// `deny`.
    #[serde(default)]
    fragments: Fragments,
    #[serde(skip)]
    #[schemars(skip)]
    set: Option<Box<Set>>,
    #[serde(skip)]
    #[schemars(skip)]
    exchange: Option<Arc<Exchange>>,
    /// Where there is a file, and for one worker: it counts for all what is the same for all.
    #[serde(skip)]
    #[schemars(skip)]
    live: Option<Arc<Live>>,
    #[serde(skip)]
    #[schemars(skip)]
    scratch: Box<Scratch>,
    #[serde(skip)]
    #[schemars(skip)]
    default_hits: u64,
    #[serde(skip)]
    #[schemars(skip)]
    fragments_denied: u64,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Action {
    /// It goes on.
    Permit,
    /// It is dropped.
    Deny,
}

/// How fragments that do not show their ports are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Fragments {
    /// By the rules that name neither ports nor TCP flags.
    #[default]
    MatchL3,
    /// They are dropped.
    Deny,
}

/// What decides on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Rule(u32, Action),
    Fragment,
    Default,
}

/// What is collected of the packets of a batch, so that their lookups can wait for memory together.
struct Scratch {
    keys: [V4Key; BATCH],
    found: [u32; BATCH],
    /// The places of those that are dropped.
    denied: [u16; BATCH],
}

impl Default for Scratch {
    fn default() -> Self {
        Self { keys: [V4Key::default(); BATCH], found: [MISS; BATCH], denied: [0; BATCH] }
    }
}

/// Where the header behind IPv4 is in the most usual packets, without tags and options.
const L4: usize = Ethernet::LEN + Ipv4::LEN;
/// How far up to the flags of TCP.
const USUAL: usize = L4 + 14;

/// What a TCP or UDP packet over IPv4 is looked up by that shows its ports, without tags and options. `None`: it is something
/// else.
#[inline]
fn usual_key(head: &Head<'_, USUAL>) -> Option<V4Key> {
    const SHOWN: MetaFlags = MetaFlags::IPV4.union(MetaFlags::L4);
    let (bytes, meta) = (&*head.bytes, &*head.meta);
    let is_usual = meta.flags.intersection(SHOWN.union(MetaFlags::VLAN)) == SHOWN
        && (usize::from(meta.l3), usize::from(meta.l4)) == (Ethernet::LEN, L4);
    if !is_usual || !matches!(meta.protocol, protocol::TCP | protocol::UDP) {
        return None;
    }
    let address = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let flags = (meta.protocol == protocol::TCP).then_some(bytes[L4 + 13]);
    Some(v4_key((address(L4 - 8), address(L4 - 4)), meta.protocol, (port(L4), port(L4 + 2)), flags))
}

/// What a packet is looked up by; `None`: it is neither IPv4 nor IPv6.
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
    // Where TCP and UDP have their ports, and TCP its flags.
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
    /// Whether a packet is dropped before any rule is asked.
    #[inline]
    fn denies(self, packet: &Packet<'_>) -> bool {
        let shown = packet.meta().flags.intersection(MetaFlags::FRAGMENT | MetaFlags::L4);
        self == Self::Deny && shown == MetaFlags::FRAGMENT
    }

    /// What decides on a packet, by what was found with its key.
    #[inline]
    fn judge(self, rules: &Rules, found: u32, packet: &Packet<'_>) -> Verdict {
        match rules.verdicts.get(found as usize) {
            Some((place, action)) => Verdict::Rule(*place, *action),
            None if self.denies(packet) => Verdict::Fragment,
            None => Verdict::Default,
        }
    }

    /// What a packet is looked up by, if the rules are asked.
    #[inline]
    fn key(self, packet: &Packet<'_>) -> Option<Key> {
        if self.denies(packet) { None } else { key(packet) }
    }
}

impl Verdict {
    /// What it means.
    #[inline]
    fn action(self, default: Action) -> Action {
        match self {
            Self::Rule(_, action) => action,
            Self::Fragment => Action::Deny,
            Self::Default => default,
        }
    }
}

impl Stage for Acl {
    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let Self { set, scratch, default_hits, fragments_denied, default, fragments, .. } = self;
        let Some(Set { rules, hits }) = set.as_deref_mut() else { return };
        let Scratch { keys, found, denied } = &mut **scratch;
        let keyed =
            batch.located_heads().zip(&mut *keys).map_while(|(head, key)| usual_key(&head).map(|now| *key = now));
        let usual = keyed.count();
        let (found, rest) = found[..batch.len()].split_at_mut(usual);
        rules.classifier.lookup_v4(&keys[..usual], found);
        let mut drops = 0;
        for (place, found) in (0..).zip(&*found) {
            let (counter, action) = match rules.verdicts.get(*found as usize) {
                Some((rule, action)) => (hits.get_mut(*rule as usize).unwrap_or(&mut *default_hits), *action),
                None => (&mut *default_hits, *default),
            };
            *counter += 1;
            denied[drops % BATCH] = place;
            drops += usize::from(action == Action::Deny);
        }
        for place in denied.iter().take(drops) {
            batch.get_mut(usize::from(*place)).into_iter().for_each(|mut packet| packet.drop(Reason::Denied));
        }
        if rest.is_empty() {
            return;
        }
        rules.classifier.lookup_batch(rest, |at| fragments.key(&batch.get_mut(usual + at)?));
        for (mut packet, found) in batch.iter_mut_from(usual).zip(rest) {
            let verdict = fragments.judge(rules, *found, &packet);
            let counter = match verdict {
                Verdict::Rule(rule, _) => hits.get_mut(rule as usize).unwrap_or(&mut *default_hits),
                Verdict::Fragment => &mut *fragments_denied,
                Verdict::Default => &mut *default_hits,
            };
            *counter += 1;
            if verdict.action(*default) == Action::Deny {
                packet.drop(Reason::Denied);
            }
        }
    }

    fn tick(&mut self, _ctx: &Ctx) {
        if let (Some(set), Some(exchange)) = (&mut self.set, &self.exchange) {
            exchange.take_up(set);
        }
    }

    fn needs(&self) -> Facts {
        Facts::HEADERS
    }

    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let (own, file) = (std::mem::take(&mut self.rules), self.file.as_deref().map(|file| setup.path(file)));
        let live = setup.shared(|setup| {
            file.iter().try_for_each(|file| setup.reads(file, "file"))?;
            let rules = Rules::load(&own, file.as_deref(), None).map_err(|mut problems| {
                let last = problems.pop().unwrap_or_else(|| Problem::at("rules", "they cannot be used"));
                problems.into_iter().for_each(|problem| setup.reject(problem));
                last
            })?;
            Ok(Live::new(rules))
        })?;
        let (set, exchange) = live.join();
        (self.set, self.exchange) = (Some(set), Some(exchange));
        if let Some(file) = file.filter(|_| setup.worker().0 == 0) {
            setup.reloads(Reloader { live: live.clone(), own, file });
            self.live = Some(live);
        }
        Ok(())
    }

    fn counters(&self, report: &mut dyn FnMut(&str, u64)) {
        let (Some(set), Some(exchange)) = (&self.set, &self.exchange) else { return };
        let (earlier, gone) = exchange.earlier(&set.rules);
        for ((name, hits), earlier) in set.rules.names.iter().zip(&set.hits).zip(earlier) {
            report(name, hits + earlier);
        }
        if self.fragments == Fragments::Deny {
            report("fragments", self.fragments_denied);
        }
        report("default", self.default_hits);
        if self.file.is_some() {
            report("gone", gone);
        }
        if let Some(live) = &self.live {
            live.counters(report);
        }
    }

    fn explain(&mut self, packet: &Packet<'_>) -> Option<String> {
        let rules = &self.set.as_ref()?.rules;
        let found = self.fragments.key(packet).and_then(|key| rules.classifier.lookup(&key));
        let verdict = self.fragments.judge(rules, found.unwrap_or(MISS), packet);
        let action = match verdict.action(self.default) {
            Action::Permit => "permit",
            Action::Deny => "deny",
        };
        Some(match verdict {
            Verdict::Rule(rule, _) => rules.texts.get(rule as usize).cloned().unwrap_or_default(),
            Verdict::Fragment => "a fragment that does not show its ports: deny".to_owned(),
            Verdict::Default => format!("no rule matches: {action}"),
        })
    }
}

#[cfg(test)]
mod tests;
