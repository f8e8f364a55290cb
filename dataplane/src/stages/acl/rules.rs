//! Rules as a config writes them, and as they are looked up.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;

use super::Action;
use crate::header::{protocol, tcp};
use crate::pipeline::{Problem, Setup};
use crate::stages::parameter::{Ports, Prefix, Protocol};
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
    rules: Vec<RuleSpec>,
}

/// Rules that all workers share.
pub(super) struct Rules {
    pub(super) classifier: Classifier,
    pub(super) actions: Vec<Action>,
    /// What the counters are called.
    pub(super) names: Vec<String>,
    /// What the rules say.
    pub(super) texts: Vec<String>,
}

impl Rules {
    /// Compiles the rules of a config and of its file.
    pub(super) fn load(mut rules: Vec<RuleSpec>, file: Option<&Path>, setup: &mut Setup<'_>) -> Result<Self, Problem> {
        let own = rules.len();
        if let Some(file) = file {
            let path = setup.path(file);
            let fault = |error: String| Problem::at("file", format!("{}: {error}", path.display()));
            let text = std::fs::read_to_string(&path)
                .map_err(|error| fault(error.to_string()).help("paths start from the folder of the config"))?;
            let File { rules: more } = toml::from_str(&text).map_err(|error| {
                fault(error.to_string()).help("the file has `rules = [...]` as the config may have")
            })?;
            rules.extend(more);
        }
        let mut names = HashSet::new();
        for (at, rule) in rules.iter().enumerate() {
            let place = match (at.checked_sub(own), file) {
                (Some(at), Some(file)) => format!("file: {} rules[{at}]", file.display()),
                _ => format!("rules[{at}]"),
            };
            if let Err(problem) = rule.check() {
                setup.reject(Problem { key: format!("{place}.{}", problem.key), ..problem });
            }
            if let Some(name) = &rule.name
                && (!names.insert(name) || ["default", "fragments"].contains(&name.as_str()))
            {
                let problem = Problem::at(format!("{place}.name"), format!("there is a counter `{name}` already"));
                setup.reject(problem.help("name it differently, or not at all"));
            }
        }
        let name = |(at, rule): (usize, &RuleSpec)| rule.name.clone().unwrap_or_else(|| format!("rules[{at}]"));
        let names: Vec<String> = rules.iter().enumerate().map(name).collect();
        Ok(Self {
            classifier: Classifier::new(&rules.iter().map(RuleSpec::compile).collect::<Vec<_>>()),
            actions: rules.iter().map(|rule| rule.action).collect(),
            texts: rules.iter().zip(&names).map(|(rule, name)| format!("{name}: {rule}")).collect(),
            names,
        })
    }
}
