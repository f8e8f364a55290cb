//! Loads routes, from the config and from a file, into lookup tables.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path as FilePath;

use ipnet::IpNet;

use super::Entry;
use super::paths::{Fate, MAX_WEIGHT, Path, Paths};
use crate::pipeline::{NextHop, Problem, Setup};
use crate::stages::parameter::{self, Prefix};
use crate::stages::responder::hosts_of_all;
use crate::stages::table::lpm4::Lpm4;
use crate::stages::table::lpm6::Lpm6;

/// The most bad lines that are told one by one.
const TOLD: usize = 100;

/// The most bytes of a file: several times those of the routes of the whole Internet.
const LARGEST: u64 = 1 << 30;

/// What a line of a file may be.
const GRAMMAR: &str =
    "a line is `PREFIX via ADDRESS port NAME [weight N]`, `PREFIX port NAME [weight N]` or `PREFIX drop`";

/// Routes that all workers share: a prefix leads to a group of paths.
pub(super) struct Routes {
    pub(super) v4: Lpm4,
    pub(super) v6: Lpm6,
    pub(super) paths: Paths,
}

/// One path of one prefix, and where it was written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    prefix: IpNet,
    path: u32,
    /// Before the weight: of two that are alike the later is the one too many.
    origin: Origin,
    weight: u16,
}

/// Where a route was written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    /// The entry of the table with this index.
    Table(u32),
    /// The line of the file with this number.
    Line(u32),
    /// The addresses of a port.
    Port,
}

/// What a route says, wherever it was written.
struct Words<'a> {
    prefix: IpNet,
    via: Option<IpAddr>,
    port: Option<&'a str>,
    weight: u16,
    drop: bool,
}

/// Collects routes and numbers their paths.
struct Loader<'s, 'a> {
    setup: &'s mut Setup<'a>,
    paths: Paths,
    listed: Vec<Listed>,
    /// Ports by name: a file names them a million times.
    ports: HashMap<String, u8>,
    /// To put names of paths together in.
    name: String,
}

impl Routes {
    /// Loads the routes of a config and of its file.
    pub(super) fn load(table: &[Entry], file: Option<&FilePath>, setup: &mut Setup<'_>) -> Result<Self, Problem> {
        let mut loader =
            Loader { setup, paths: Paths::default(), listed: Vec::new(), ports: HashMap::new(), name: String::new() };
        for (at, entry) in table.iter().enumerate() {
            let words = Words {
                prefix: entry.prefix.0,
                via: entry.via,
                port: entry.port.as_deref(),
                weight: entry.weight,
                drop: entry.drop,
            };
            if let Err(problem) = loader.add(&words, Origin::Table(at as u32)) {
                let key = format!("table[{at}]{}{}", if problem.key.is_empty() { "" } else { "." }, problem.key);
                loader.setup.reject(Problem { key, ..problem });
            }
        }
        let mut bad = Vec::new();
        let shown = file.map_or(String::new(), |file| file.display().to_string());
        if let Some(file) = file {
            loader.read(file, &mut bad)?;
        }
        loader.add_own();
        let Loader { setup, paths, mut listed, .. } = loader;
        listed.sort_unstable();
        // What the config says of an address of its own holds.
        listed.dedup_by(|route, before| route.origin == Origin::Port && route.prefix == before.prefix);
        let routes = Self::build(paths, &listed, &mut bad, setup)?;
        if bad.is_empty() {
            return Ok(routes);
        }
        bad.sort_unstable();
        let count = bad.len();
        let mut message = format!("{shown} has {count} bad {}", if count == 1 { "line" } else { "lines" });
        for (line, text) in bad.iter().take(TOLD) {
            message.push_str(&format!("\n{shown}:{line}: {text}"));
        }
        if count > TOLD {
            message.push_str(&format!("\nand {} more", count - TOLD));
        }
        Err(Problem::at("file", message).help(GRAMMAR))
    }

    /// Puts sorted routes into tables.
    fn build(
        mut paths: Paths,
        listed: &[Listed],
        bad: &mut Vec<(u32, String)>,
        setup: &mut Setup<'_>,
    ) -> Result<Self, Problem> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        let mut members = Vec::new();
        for routes in listed.chunk_by(|a, b| a.prefix == b.prefix) {
            members.clear();
            for (at, route) in routes.iter().enumerate() {
                let fault = match at.checked_sub(1).map(|at| routes[at]) {
                    Some(before) if before.path == route.path => Some("is listed twice"),
                    Some(before) if paths.drops(before.path) != paths.drops(route.path) => {
                        Some("has a path, and is to be dropped")
                    }
                    _ => None,
                };
                if let Some(fault) = fault {
                    let text = format!("{} {} {fault}", route.prefix, paths.name(route.path));
                    match route.origin {
                        Origin::Table(at) => setup.reject(Problem::at(format!("table[{at}]"), text)),
                        Origin::Line(line) => bad.push((line, text)),
                        Origin::Port => {}
                    }
                }
                members.push((route.path, route.weight));
            }
            let group = paths.group(&members);
            match routes[0].prefix {
                IpNet::V4(net) => v4.push((u32::from(net.network()), net.prefix_len(), group)),
                IpNet::V6(net) => v6.push((u128::from(net.network()), net.prefix_len(), group)),
            }
        }
        let refused = |error| Problem::at("table", format!("{error}"));
        Ok(Self { v4: Lpm4::build(&v4).map_err(refused)?, v6: Lpm6::build(&v6).map_err(refused)?, paths })
    }

    /// The route that a destination takes, in words.
    pub(super) fn explain(&self, destination: IpAddr, flow_hash: u32) -> String {
        let found = match destination {
            IpAddr::V4(address) => (0..=32).rev().find_map(|len| {
                let group = self.v4.get(address.into(), len)?;
                Some((IpNet::new(destination, len).ok()?, group))
            }),
            IpAddr::V6(address) => (0..=128).rev().find_map(|len| {
                let group = self.v6.get(address.into(), len)?;
                Some((IpNet::new(destination, len).ok()?, group))
            }),
        };
        let Some((prefix, group)) = found else { return format!("no route to {destination}") };
        let path = self.paths.number(group, flow_hash).map_or("", |path| self.paths.name(path));
        match self.paths.members(group) {
            1 => format!("{} {path}", prefix.trunc()),
            paths => format!("{} {path}, one of {paths} paths", prefix.trunc()),
        }
    }
}

impl Loader<'_, '_> {
    fn port(&mut self, name: &str) -> Result<u8, Problem> {
        if let Some(port) = self.ports.get(name) {
            return Ok(*port);
        }
        let port = self.setup.port(name, "port")?;
        self.ports.insert(name.to_owned(), port);
        Ok(port)
    }

    /// Adds a route. A problem names the key, as if the route were a table.
    fn add(&mut self, words: &Words<'_>, origin: Origin) -> Result<(), Problem> {
        let Words { prefix, via, port, weight, drop } = *words;
        if !(1..=MAX_WEIGHT).contains(&weight) {
            let problem = Problem::at("weight", format!("a weight of {weight} is not to be had"));
            return Err(problem.help(format!("1 to {MAX_WEIGHT}")));
        }
        let path = if drop {
            if via.is_some() || port.is_some() {
                let problem = Problem::at("drop", "a route that drops has no path");
                return Err(problem.help("take via and port out, or drop"));
            }
            self.paths.path("drop", Path { next_hop: 0, egress: 0, fate: Fate::Drop })
        } else {
            let Some(name) = port else {
                return Err(Problem::at("port", "no port is named").help("name one, or say drop"));
            };
            if let (IpNet::V6(_), Some(IpAddr::V4(gateway))) = (prefix, via) {
                let problem = Problem::at("via", format!("{gateway} is an IPv4 gateway of an IPv6 prefix"));
                return Err(problem.help("name an IPv6 gateway"));
            }
            let egress = self.port(name)?;
            self.name.clear();
            // Writing to a string cannot fail.
            let _ = match via {
                Some(gateway) => std::fmt::Write::write_fmt(&mut self.name, format_args!("via {gateway} on {name}")),
                None => std::fmt::Write::write_fmt(&mut self.name, format_args!("on {name}")),
            };
            let next_hop = via.map_or(0, |address| self.setup.next_hops().number(NextHop { address, port: egress }));
            self.paths.path(&self.name, Path { next_hop, egress, fate: Fate::Forward })
        };
        self.listed.push(Listed { prefix, path, weight, origin });
        Ok(())
    }

    /// Adds what is for this host: the addresses of the ports, and those of all hosts of their networks.
    fn add_own(&mut self) {
        let path = self.paths.path("for this host", Path { next_hop: 0, egress: 0, fate: Fate::Local });
        for own in self.setup.ports().iter().flat_map(|port| &port.addresses) {
            let of_all = hosts_of_all(own).into_iter().flatten().map(IpAddr::V4);
            let prefixes = of_all.chain([own.addr()]).map(IpNet::from);
            self.listed.extend(prefixes.map(|prefix| Listed { prefix, path, origin: Origin::Port, weight: 1 }));
        }
    }

    /// Adds the routes of a file, and notes what is wrong with its lines.
    fn read(&mut self, file: &FilePath, bad: &mut Vec<(u32, String)>) -> Result<(), Problem> {
        let path = self.setup.path(file);
        self.setup.reads(&path, "file")?;
        let bytes = parameter::file(&path, LARGEST, "take routes together by their prefixes")?;
        for (line, bytes) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            let text = String::from_utf8_lossy(bytes);
            let route = text.split('#').next().unwrap_or_default().trim();
            if route.is_empty() {
                continue;
            }
            let added = words(route).and_then(|words| {
                self.add(&words, Origin::Line(line)).map_err(|problem| match problem.help {
                    Some(help) => format!("{} ({help})", problem.message),
                    None => problem.message,
                })
            });
            if let Err(fault) = added {
                bad.push((line, format!("`{route}`: {fault}")));
            }
        }
        Ok(())
    }
}

/// Reads one line.
fn words(line: &str) -> Result<Words<'_>, String> {
    let mut rest = line.split_whitespace();
    let Prefix(prefix) = rest.next().unwrap_or_default().parse()?;
    let mut words = Words { prefix, via: None, port: None, weight: 1, drop: false };
    while let Some(word) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("nothing follows `{word}`"));
        match word {
            "via" => {
                let text = value()?;
                words.via = Some(text.parse().map_err(|_| format!("`{text}` is no address"))?);
            }
            "port" => words.port = Some(value()?),
            "weight" => {
                let text = value()?;
                words.weight = text.parse().map_err(|_| format!("`{text}` is no weight: 1 to {MAX_WEIGHT}"))?;
            }
            "drop" => words.drop = true,
            _ => return Err(format!("`{word}` is none of via, port, weight, drop")),
        }
    }
    Ok(words)
}
