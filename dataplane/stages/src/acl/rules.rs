//! The rules of the config and of the rule file, and their compilation for lookups.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::parameter::{self, Ports, Prefix, Protocol};
use dataplane_core::header::{protocol, tcp};
use dataplane_core::parse_errors::explain;
use dataplane_core::pipeline::Problem;
use dataplane_tables::classifier::{Classifier, FlagMatch, Rule};

/// The action for packets that match a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RuleAction {
    /// Send the packet to the next stage.
    Permit,
    /// Drop the packet.
    Deny,
}

/// A rule: an action, and the properties of the packets that it matches.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleSpec {
    /// The action for packets that match the rule: `permit` or `deny`.
    action: RuleAction,
    /// Prefix of the source address.
    src: Option<Prefix>,
    /// Prefix of the destination address.
    dst: Option<Prefix>,
    /// Protocol above IP: `"tcp"`, `"udp"`, `"icmp"`, `"icmpv6"`, a number from 0 to 255, or `"any"`. Default: `"any"`.
    #[serde(default)]
    protocol: Protocol,
    /// Source port of TCP or UDP, or a range of ports, such as `"1024-65535"`.
    src_port: Option<Ports>,
    /// Destination port of TCP or UDP, or a range of ports, such as `"1024-65535"`.
    dst_port: Option<Ports>,
    /// TCP flags that must be set. A flag after `!` must not be set. Example: `"syn,!ack"`.
    tcp_flags: Option<TcpFlags>,
    /// VLAN id of the outer tag, 0 to 4094.
    #[schemars(range(min = 0, max = 4094))]
    vlan: Option<u16>,
    /// The name of the hit counter. The default is the text of the rule, such as `deny tcp dst 10.0.0.0/8 dst_port 22`.
    name: Option<String>,
}

/// TCP flags that must be set or must not be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub(super) struct TcpFlags(FlagMatch);

const FLAGS: [(&str, u8); 8] = [
    ("fin", tcp::FIN),
    ("syn", tcp::SYN),
    ("rst", tcp::RST),
    ("psh", tcp::PSH),
    ("ack", tcp::ACK),
    ("urg", tcp::URG),
    ("ece", tcp::ECE),
    ("cwr", tcp::CWR),
];

impl TryFrom<String> for TcpFlags {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (mut mask, mut value) = (0, 0);
        for word in text.split(',').map(str::trim) {
            let (name, set) = word.strip_prefix('!').map_or((word, true), |name| (name, false));
            let Some((_, flag)) = FLAGS.iter().find(|(known, _)| *known == name) else {
                return Err(format!(
                    "`{word}` is not a TCP flag; help: use fin, syn, rst, psh, ack, urg, ece or cwr, for example \"syn,!ack\""
                ));
            };
            if mask & flag != 0 {
                return Err(format!("`{name}` occurs twice in `{text}`"));
            }
            mask |= flag;
            value |= if set { *flag } else { 0 };
        }
        Ok(Self(FlagMatch { mask, value }))
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlagMatch { mask, value } = self.0;
        for (at, (name, flag)) in FLAGS.iter().filter(|(_, flag)| mask & flag != 0).enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}{name}", if value & flag == 0 { "!" } else { "" })?;
        }
        Ok(())
    }
}

impl RuleSpec {
    /// Checks that the properties of the rule do not contradict each other.
    fn check(&self) -> Result<(), Problem> {
        for (key, ports) in [("src_port", &self.src_port), ("dst_port", &self.dst_port)] {
            if ports.is_some() && !self.protocol.has_ports() {
                let problem = Problem::at(key, format!("protocol {} has no ports", self.protocol));
                return Err(problem.help("set protocol to tcp or udp, or remove the port"));
            }
        }
        let is_tcp = self.protocol.0.is_none_or(|number| number == protocol::TCP);
        if self.tcp_flags.is_some() && !is_tcp {
            let problem = Problem::at("tcp_flags", format!("protocol {} has no TCP flags", self.protocol));
            return Err(problem.help("set protocol to tcp, or remove the flags"));
        }
        if let Some(vlan) = self.vlan.filter(|vlan| *vlan > 4094) {
            return Err(Problem::at("vlan", format!("{vlan} is not a VLAN id")).help("set a VLAN id from 0 to 4094"));
        }
        match (self.src, self.dst) {
            (Some(src), Some(dst)) if src.0.addr().is_ipv4() != dst.0.addr().is_ipv4() => {
                let problem = Problem::at("dst", format!("{src} and {dst} are of different address families"));
                Err(problem.help("write two rules"))
            }
            _ => Ok(()),
        }
    }

    fn compile(&self) -> Rule {
        Rule {
            source: self.src.map(|prefix| prefix.0),
            destination: self.dst.map(|prefix| prefix.0),
            protocol: self.protocol.0,
            source_ports: self.src_port.as_ref().map(|ports| ports.0.clone()),
            destination_ports: self.dst_port.as_ref().map(|ports| ports.0.clone()),
            vlan: self.vlan,
            tcp_flags: self.tcp_flags.map(|flags| flags.0),
        }
    }
}

impl fmt::Display for RuleSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = if self.action == RuleAction::Deny { "deny" } else { "permit" };
        write!(f, "{action} {}", self.protocol)?;
        let named: [(&str, Option<&dyn fmt::Display>); 6] = [
            ("src", self.src.as_ref().map(|value| value as _)),
            ("src_port", self.src_port.as_ref().map(|value| value as _)),
            ("dst", self.dst.as_ref().map(|value| value as _)),
            ("dst_port", self.dst_port.as_ref().map(|value| value as _)),
            ("tcp_flags", self.tcp_flags.as_ref().map(|value| value as _)),
            ("vlan", self.vlan.as_ref().map(|value| value as _)),
        ];
        for (key, value) in named {
            if let Some(value) = value {
                write!(f, " {key} {value}")?;
            }
        }
        Ok(())
    }
}

/// The contents of a rule file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rules: Vec<Spanned<RuleSpec>>,
}

/// The maximum number of rules of a stage.
pub(super) const MAX_RULES: usize = 100_000;
/// The maximum size of a rule file, in bytes. A file with [`MAX_RULES`] rules is much smaller.
const MAX_FILE_BYTES: u64 = 32 << 20;
/// The maximum number of errors that are reported at once.
const MAX_REPORTED: usize = 20;
/// The maximum size of a rule file, in bytes, for which several syntax errors are reported. For a larger file, only the
/// first syntax error is reported, because the parser can find one error per byte and needs more than 100 bytes of
/// memory for each error.
const MAX_RECOVERED: usize = 256 << 10;
/// The maximum number of nested brackets in a rule file. A valid file nests two: the list of rules, and a rule.
const MAX_DEPTH: usize = 16;

/// The names of the counters that do not belong to a rule.
const RESERVED: [&str; 4] = ["default", "fragments", "gone", "rules"];

/// Compiled rules, shared by all workers.
pub(super) struct Rules {
    pub(super) classifier: Classifier,
    /// For each rule, its index in the order of precedence, and its action. Element n belongs to the rule with the
    /// number n in the classifier.
    pub(super) verdicts: Vec<(u32, RuleAction)>,
    /// The names of the hit counters. No two rules have the same name.
    pub(super) names: Vec<String>,
    /// The rules as text.
    pub(super) texts: Vec<String>,
    pub(super) actions: Vec<RuleAction>,
    /// For each rule, whether the rule sets the name of its counter.
    pub(super) named: Vec<bool>,
}

/// Returns the names of the hit counters. The default name of a rule is its text, so that the name does not change when
/// another rule is inserted or removed. A further rule with the same text gets a number.
fn counter_names(rules: &[RuleSpec]) -> Vec<String> {
    let mut known: HashSet<String> = rules.iter().filter_map(|rule| rule.name.clone()).collect();
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let name = |rule: &RuleSpec| {
        if let Some(name) = &rule.name {
            return name.clone();
        }
        let text = rule.to_string();
        let number = numbers.entry(text.clone()).or_default();
        loop {
            *number += 1;
            let name = if *number == 1 { text.clone() } else { format!("{text} #{number}") };
            if known.insert(name.clone()) {
                return name;
            }
        }
    };
    rules.iter().map(name).collect()
}

/// Reads a rule file. A returned problem names the key `file`.
fn read(path: &Path) -> Result<String, Problem> {
    let bytes = parameter::file(path, MAX_FILE_BYTES, "aggregate rules by prefix")?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        let (line, column) = position(&valid, valid.len());
        let message = format!("{}:{line}:{column}: invalid UTF-8", path.display());
        Problem::at("file", message).help("write the file as TOML in UTF-8")
    })
}

/// Returns the line and the column of a byte offset, both counted from 1. Columns count characters.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line..].chars().count() + 1)
}

/// Returns the offset of the first bracket that is nested too deeply. The parser needs many seconds for a large file of
/// nested brackets.
fn first_too_deep(text: &str) -> Option<usize> {
    let (mut depth, mut at, bytes) = (0_usize, 0, text.as_bytes());
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'[' | b'{' if depth == MAX_DEPTH => return Some(at),
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'#' => at += bytes[at..].iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len()),
            // A string ends at its quote or, if the quote is missing, at the end of its line.
            b'"' | b'\'' => {
                let mut escaped = false;
                let end = |&other: &u8| {
                    let is_end = !escaped && other == byte || other == b'\n';
                    escaped = !escaped && other == b'\\' && byte == b'"';
                    is_end
                };
                at += 1 + bytes[at + 1..].iter().position(end).unwrap_or(bytes.len());
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Parses a rule file. Returns the valid rules and up to [`MAX_REPORTED`] errors. Each rule comes with its index and
/// its offset in the text.
fn parse(text: &str) -> (Vec<(usize, usize, RuleSpec)>, Vec<toml::de::Error>) {
    let first = match toml::from_str(text) {
        Ok(File { rules }) => {
            let place = |(place, rule): (usize, Spanned<RuleSpec>)| (place, rule.span().start, rule.into_inner());
            return (rules.into_iter().enumerate().map(place).collect(), Vec::new());
        }
        Err(error) => error,
    };
    let (table, mut errors) = match DeTable::parse(text) {
        Ok(table) => (table, Vec::new()),
        // The text has TOML syntax errors. A syntax error may cause further errors in the values, so errors in the
        // values are not reported.
        Err(first) if text.len() > MAX_RECOVERED => return (Vec::new(), vec![first]),
        Err(_) => {
            let (_, mut errors) = DeTable::parse_recoverable(text);
            errors.truncate(MAX_REPORTED);
            return (Vec::new(), errors);
        }
    };
    let mut rules = Vec::new();
    for (key, value) in table.into_inner() {
        let DeValue::Array(array) = value.into_inner() else { continue };
        for (place, value) in array.into_iter().enumerate().filter(|_| key.get_ref() == "rules") {
            let start = value.span().start;
            match RuleSpec::deserialize(ValueDeserializer::from(value)) {
                Ok(rule) => rules.push((place, start, rule)),
                Err(error) if errors.len() < MAX_REPORTED => errors.push(error),
                Err(_) => {}
            }
        }
    }
    // The first attempt may have failed because of an error outside the rules, such as an unknown key.
    if errors.iter().all(|error| error.span() != first.span()) {
        errors.insert(0, first);
    }
    (rules, errors)
}

impl Rules {
    /// Compiles the rules of a config, followed by the rules of a file. If the previous rules `before` are given,
    /// compiles only the rules that `before` does not contain.
    ///
    /// # Errors
    /// All errors of the rules, up to [`MAX_REPORTED`]. The list is never empty.
    pub(super) fn load(own: &[RuleSpec], file: Option<&Path>, before: Option<&Self>) -> Result<Self, Vec<Problem>> {
        let (mut rules, mut text, mut starts, mut wrong) = (own.to_vec(), String::new(), Vec::new(), Vec::new());
        if let Some(path) = file {
            text = read(path).map_err(|problem| vec![problem])?;
            if let Some(deep) = first_too_deep(&text) {
                let (line, column) = position(&text, deep);
                let message = format!("{}:{line}:{column}: the brackets are nested too deeply", path.display());
                let help = format!("close the brackets: a rule file needs less than {MAX_DEPTH} levels");
                return Err(vec![Problem::at("file", message).help(help)]);
            }
            let (more, errors) = parse(&text);
            wrong.extend(errors.into_iter().map(|error| {
                let start = error.span().map_or(0, |span| span.start);
                let (line, column) = position(&text, start);
                let (what, help) = explain(error.message(), &[]);
                let message = format!("{}:{line}:{column}: {what}", path.display());
                (
                    start,
                    Problem::at("file", message)
                        .help(help.as_deref().unwrap_or("write `rules = [...]` as in the config")),
                )
            }));
            for (place, start, rule) in more {
                starts.push((place, start));
                rules.push(rule);
            }
        }
        if rules.len() > MAX_RULES {
            let problem = Problem::at(
                if file.is_some() { "file" } else { "rules" },
                format!("{} rules exceed the maximum of {MAX_RULES}", rules.len()),
            );
            return Err(vec![problem.help("aggregate the rules by prefix")]);
        }
        // Adds the position of the rule, in the config or in the file, to a problem.
        let at = |rule: usize, problem: Problem| match (rule.checked_sub(own.len()), file) {
            (Some(place), Some(file)) => {
                let (place, start) = starts.get(place).copied().unwrap_or_default();
                let (line, column) = position(&text, start);
                let message = format!("rules[{place}].{}: {}", problem.key, problem.message);
                let message = format!("{}:{line}:{column}: {message}", file.display());
                (start, Problem { key: "file".to_owned(), message, ..problem })
            }
            _ => (0, Problem { key: format!("rules[{rule}].{}", problem.key), ..problem }),
        };
        let mut names = HashSet::new();
        for (place, rule) in rules.iter().enumerate() {
            wrong.extend(rule.check().err().map(|problem| at(place, problem)));
            if let Some(name) = &rule.name
                && (!names.insert(name) || RESERVED.contains(&name.as_str()))
            {
                let problem = Problem::at("name", format!("there is already a counter `{name}`"));
                wrong.push(at(place, problem.help("choose another name, or remove the name")));
            }
            if wrong.len() >= MAX_REPORTED {
                break;
            }
        }
        if !wrong.is_empty() {
            wrong.sort_by_key(|(start, _)| *start);
            return Err(wrong.into_iter().map(|(_, problem)| problem).take(MAX_REPORTED).collect());
        }
        let compiled: Vec<Rule> = rules.iter().map(RuleSpec::compile).collect();
        let mut classifier = before.map_or_else(|| Classifier::new(&[]), |before| before.classifier.clone());
        classifier.update(&compiled);
        let mut verdicts = vec![(0, RuleAction::Deny); classifier.rule_number_bound()];
        for ((number, _), (place, rule)) in classifier.rules().zip((0..).zip(&rules)) {
            verdicts[number as usize] = (place, rule.action);
        }
        Ok(Self {
            classifier,
            verdicts,
            texts: rules.iter().map(RuleSpec::to_string).collect(),
            actions: rules.iter().map(|rule| rule.action).collect(),
            named: rules.iter().map(|rule| rule.name.is_some()).collect(),
            names: counter_names(&rules),
        })
    }

    /// Returns the number of rules.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Describes the rule with this index in the order of precedence.
    pub(super) fn explain(&self, place: u32) -> Option<String> {
        let rule = place as usize;
        let text = self.texts.get(rule)?;
        Some(if *self.named.get(rule)? {
            format!("{}: {text}", self.names.get(rule)?)
        } else {
            format!("rules[{rule}]: {text}")
        })
    }
}

/// A target of the fuzzer: loads a rule file. A zero byte separates the rules before a reload from the rules after the
/// reload. A rule set that is updated must give the same verdicts as a new rule set.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(input: &[u8]) {
    let (before, after) = match input.iter().position(|byte| *byte == 0) {
        Some(end) => (Some(&input[..end]), &input[end + 1..]),
        None => (None, input),
    };
    let load = |text: &[u8], before: Option<&Rules>| {
        crate::fuzzing::with_file(text, |path| Rules::load(&[], Some(path), before))
    };
    let before = before.and_then(|text| load(text, None).ok());
    let (updated, new) = match (load(after, before.as_ref()), load(after, None)) {
        (Ok(updated), Ok(new)) => (updated, new),
        (Err(first), Err(again)) => {
            assert!(!first.is_empty() && first.len() <= MAX_REPORTED);
            let texts = |problems: &[Problem]| problems.iter().map(ToString::to_string).collect::<Vec<_>>();
            return assert_eq!(texts(&first), texts(&again));
        }
        (updated, new) => panic!(
            "the rules are valid after a reload: {}, and valid as a new rule set: {}",
            updated.is_ok(),
            new.is_ok()
        ),
    };
    assert_eq!((updated.len(), &updated.texts), (new.len(), &new.texts));
    for (_, rule) in new.classifier.rules() {
        let key = fuzzed_key(rule);
        let verdict = |rules: &Rules| rules.classifier.lookup(&key).map(|number| rules.verdicts[number as usize]);
        let found = verdict(&new);
        assert_eq!(verdict(&updated), found, "{key:?}");
        assert!(found.is_some(), "{key:?} matches at least {rule:?}");
    }
}

/// Returns the key of a packet that matches a rule.
#[cfg(any(test, fuzzing))]
fn fuzzed_key(rule: &Rule) -> dataplane_tables::classifier::Key {
    use dataplane_tables::classifier::{Addresses, Key};
    use std::net::IpAddr;

    let addresses = match (rule.source.map(|net| net.network()), rule.destination.map(|net| net.broadcast())) {
        (None | Some(IpAddr::V4(_)), None | Some(IpAddr::V4(_))) => Addresses::V4(
            rule.source.map_or(7, |net| if let IpAddr::V4(address) = net.network() { address.into() } else { 0 }),
            rule.destination
                .map_or(9, |net| if let IpAddr::V4(address) = net.broadcast() { address.into() } else { 0 }),
        ),
        (source, destination) => {
            let number = |address: Option<IpAddr>| match address {
                Some(IpAddr::V6(address)) => address.into(),
                _ => 5u128,
            };
            Addresses::V6(number(source), number(destination))
        }
    };
    let flags = rule.tcp_flags;
    let protocol = rule.protocol.unwrap_or(if flags.is_some() { protocol::TCP } else { protocol::UDP });
    let port = |ports: &Option<std::ops::RangeInclusive<u16>>| ports.as_ref().map_or(3, |ports| *ports.end());
    let ports = [protocol::TCP, protocol::UDP].contains(&protocol);
    Key {
        addresses,
        protocol,
        ports: ports.then(|| (port(&rule.source_ports), port(&rule.destination_ports))),
        vlan: rule.vlan,
        tcp_flags: (protocol == protocol::TCP).then(|| flags.map_or(0, |flags| flags.value)),
    }
}
