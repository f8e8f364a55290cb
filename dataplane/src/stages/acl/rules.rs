//! Rules as a config writes them, and as they are looked up.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::Action;
use crate::header::{protocol, tcp};
use crate::pipeline::Problem;
use crate::stages::parameter::{self, Ports, Prefix, Protocol};
use crate::stages::table::classifier::{Classifier, FlagMatch, Rule};

/// A rule: what it does, and what a packet must have for it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleSpec {
    /// `permit` or `deny`.
    action: Action,
    /// The prefix of the source address.
    src: Option<Prefix>,
    /// The prefix of the destination address.
    dst: Option<Prefix>,
    /// The protocol behind IP.
    #[serde(default)]
    protocol: Protocol,
    /// The source port of TCP or UDP, or a range.
    src_port: Option<Ports>,
    /// The destination port of TCP or UDP, or a range.
    dst_port: Option<Ports>,
    /// TCP flags that must be set, and with `!` those that must not, such as `"syn,!ack"`.
    tcp_flags: Option<TcpFlags>,
    /// The identifier of the outer VLAN tag.
    vlan: Option<u16>,
    /// What its counter is called; its place, such as `rules[3]`, if not named.
    name: Option<String>,
}

/// TCP flags that must be set or must not.
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
                    "`{word}` is no TCP flag: write some of fin, syn, rst, psh, ack, urg, ece, cwr, as in \"syn,!ack\""
                ));
            };
            if mask & flag != 0 {
                return Err(format!("`{name}` comes twice in `{text}`"));
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
    /// What contradicts itself: the key and the problem.
    fn check(&self) -> Result<(), Problem> {
        for (key, ports) in [("src_port", &self.src_port), ("dst_port", &self.dst_port)] {
            if ports.is_some() && !self.protocol.has_ports() {
                let problem = Problem::at(key, format!("protocol {} has no ports", self.protocol));
                return Err(problem.help("name tcp or udp, or take the port out"));
            }
        }
        let is_tcp = self.protocol.0.is_none_or(|number| number == protocol::TCP);
        if self.tcp_flags.is_some() && !is_tcp {
            let problem = Problem::at("tcp_flags", format!("protocol {} has no TCP flags", self.protocol));
            return Err(problem.help("name tcp, or take the flags out"));
        }
        if let Some(vlan) = self.vlan.filter(|vlan| *vlan > 4094) {
            return Err(Problem::at("vlan", format!("{vlan} is no VLAN identifier")).help("0 to 4094"));
        }
        match (self.src, self.dst) {
            (Some(src), Some(dst)) if src.0.addr().is_ipv4() != dst.0.addr().is_ipv4() => {
                let problem = Problem::at("dst", format!("{src} and {dst} are of different families"));
                Err(problem.help("no packet has both: write two rules"))
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
        let action = if self.action == Action::Deny { "deny" } else { "permit" };
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

/// A file of rules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rules: Vec<Spanned<RuleSpec>>,
}

/// The most rules of a stage.
pub(super) const MOST: usize = 100_000;
/// The most bytes of a file: many more than so many rules have.
const LARGEST: u64 = 32 << 20;
/// The most mistakes that are told of at once.
const TOLD: usize = 20;

/// Counters that are no rule's.
const RESERVED: [&str; 6] = ["default", "fragments", "gone", "refused", "reloads", "rules"];

/// Rules that all workers share.
pub(super) struct Rules {
    pub(super) classifier: Classifier,
    /// The place of each by its number in the classifier, and what it does.
    pub(super) verdicts: Vec<(u32, Action)>,
    /// What the counters are called.
    pub(super) names: Vec<String>,
    /// What the rules say.
    pub(super) texts: Vec<String>,
    /// Whether they have names of their own.
    named: Vec<bool>,
}

/// Reads a file; what is wrong with it, as a problem of the key `file`.
fn read(path: &Path) -> Result<String, Problem> {
    let bytes = parameter::file(path, LARGEST, "take rules together by their prefixes")?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]).into_owned();
        let (line, column) = position(&valid, valid.len());
        let message = format!("{}:{line}:{column}: this is not UTF-8", path.display());
        Problem::at("file", message).help("the file is TOML, a text in UTF-8")
    })
}

/// The line and the column of a byte, from 1; columns count characters.
fn position(text: &str, byte: usize) -> (usize, usize) {
    let before = text.get(..byte).unwrap_or(text);
    let line = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line..].chars().count() + 1)
}

/// The rules of a file that can be read, each with its place among all and where it begins in the text; and all mistakes of
/// those that cannot, up to a number.
fn parse(text: &str) -> (Vec<(usize, usize, RuleSpec)>, Vec<toml::de::Error>) {
    let first = match toml::from_str(text) {
        Ok(File { rules }) => {
            let place = |(place, rule): (usize, Spanned<RuleSpec>)| (place, rule.span().start, rule.into_inner());
            return (rules.into_iter().enumerate().map(place).collect(), Vec::new());
        }
        Err(error) => error,
    };
    let (table, mut errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // What else is wrong may come of these.
        errors.truncate(TOLD);
        return (Vec::new(), errors);
    }
    let mut rules = Vec::new();
    for (key, value) in table.into_inner() {
        let DeValue::Array(array) = value.into_inner() else { continue };
        for (place, value) in array.into_iter().enumerate().filter(|_| key.get_ref() == "rules") {
            let start = value.span().start;
            match RuleSpec::deserialize(ValueDeserializer::from(value)) {
                Ok(rule) => rules.push((place, start, rule)),
                Err(error) if errors.len() < TOLD => errors.push(error),
                Err(_) => {}
            }
        }
    }
    // It may be none of a rule.
    if errors.iter().all(|error| error.span() != first.span()) {
        errors.insert(0, first);
    }
    (rules, errors)
}

impl Rules {
    /// Compiles the rules of a config, and behind them those of a file: only those that differ, where there are rules before.
    ///
    /// # Errors
    /// All that is wrong with them, up to a number that somebody may still read; never nothing.
    pub(super) fn load(own: &[RuleSpec], file: Option<&Path>, before: Option<&Self>) -> Result<Self, Vec<Problem>> {
        let (mut rules, mut text, mut starts, mut wrong) = (own.to_vec(), String::new(), Vec::new(), Vec::new());
        if let Some(path) = file {
            text = read(path).map_err(|problem| vec![problem])?;
            let (more, errors) = parse(&text);
            wrong.extend(errors.into_iter().map(|error| {
                let start = error.span().map_or(0, |span| span.start);
                let (line, column) = position(&text, start);
                let message = format!("{}:{line}:{column}: {}", path.display(), error.message().trim());
                (start, Problem::at("file", message).help("the file has `rules = [...]` as the config may have"))
            }));
            for (place, start, rule) in more {
                starts.push((place, start));
                rules.push(rule);
            }
        }
        if rules.len() > MOST {
            let problem = Problem::at(if file.is_some() { "file" } else { "rules" }, format!("{} rules", rules.len()));
            return Err(vec![problem.help(format!("{MOST} at most: take them together by their prefixes"))]);
        }
        // With the place of the rule, in the config or in the file.
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
                let problem = Problem::at("name", format!("there is a counter `{name}` already"));
                wrong.push(at(place, problem.help("name it differently, or not at all")));
            }
            if wrong.len() >= TOLD {
                break;
            }
        }
        if !wrong.is_empty() {
            wrong.sort_by_key(|(start, _)| *start);
            return Err(wrong.into_iter().map(|(_, problem)| problem).take(TOLD).collect());
        }
        let name = |(at, rule): (usize, &RuleSpec)| rule.name.clone().unwrap_or_else(|| format!("rules[{at}]"));
        let names: Vec<String> = rules.iter().enumerate().map(name).collect();
        let compiled: Vec<Rule> = rules.iter().map(RuleSpec::compile).collect();
        let mut classifier = before.map_or_else(|| Classifier::new(&[]), |before| before.classifier.clone());
        classifier.update(&compiled);
        let mut verdicts = vec![(0, Action::Deny); classifier.numbers()];
        for ((number, _), (place, rule)) in classifier.rules().zip((0..).zip(&rules)) {
            verdicts[number as usize] = (place, rule.action);
        }
        Ok(Self {
            classifier,
            verdicts,
            texts: rules.iter().zip(&names).map(|(rule, name)| format!("{name}: {rule}")).collect(),
            named: rules.iter().map(|rule| rule.name.is_some()).collect(),
            names,
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// By what a rule is the same in another set: its own name, or its place and what it says.
    pub(super) fn identity(&self, rule: usize) -> &str {
        if self.named[rule] { &self.names[rule] } else { &self.texts[rule] }
    }
}
