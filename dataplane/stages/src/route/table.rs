//! Loads routes from the config and from a file into lookup tables.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::Path as FilePath;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::Deserialize;

use super::paths::{MAX_WEIGHT, PathAction, Paths, RoutePath};
use crate::parameter::{self, Prefix, table_problem};
use crate::responder::broadcast_addresses;
use dataplane_core::pipeline::{NextHop, Problem, Setup};
use dataplane_tables::lpm::{Lpm4, Lpm6};

/// A route of the config.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteEntry {
    /// Destination prefix, such as `"10.0.0.0/8"`.
    pub(super) prefix: Prefix,
    /// The address of the gateway. Without a gateway, the destinations are neighbours on the port. An IPv4 prefix may
    /// have an IPv6 gateway (RFC 8950). An IPv6 prefix must have an IPv6 gateway.
    pub(super) via: Option<IpAddr>,
    /// Port that the gateway or the destinations are reached through.
    pub(super) port: Option<String>,
    /// Weight of this path among all paths of the prefix: 1 to 64.
    #[serde(default = "default_weight")]
    #[schemars(range(min = 1, max = 64))]
    pub(super) weight: u16,
    /// Whether to drop packets to this prefix, with the reason `blackhole`.
    #[serde(default)]
    pub(super) drop: bool,
}

/// Returns whether any prefix has several paths.
pub(super) fn has_equal_cost_paths(table: &[RouteEntry]) -> bool {
    let mut seen = HashSet::new();
    !table.iter().all(|entry| seen.insert(entry.prefix.0))
}

fn default_weight() -> u16 {
    1
}

/// The maximum number of bad lines that are reported one by one.
const MAX_REPORTED: usize = 100;
/// After this number of bad lines, the loader stops reading the file. The file is then probably no list of routes.
const MAX_BAD: usize = 10_000;
/// The maximum length of a line in bytes. A comment does not count.
const MAX_LINE: usize = 512;
/// The number of characters that are reported of a line longer than [`MAX_LINE`].
const MAX_SHOWN: usize = 64;

/// The maximum size of a route file, in bytes: several times the size of the whole Internet routing table.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The grammar of a line, for help texts.
const GRAMMAR: &str =
    "a line is `PREFIX via ADDRESS port NAME [weight N]`, `PREFIX port NAME [weight N]` or `PREFIX drop`";

/// The routes that all workers share. A prefix refers to a group of paths.
pub(super) struct SharedRoutes {
    pub(super) v4: Lpm4,
    pub(super) v6: Lpm6,
    pub(super) paths: Paths,
    /// All prefixes in order, each with the number of its group.
    pub(super) listed: Box<[(IpNet, u32)]>,
}

/// A path of a prefix, and the source of the route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PrefixPath {
    prefix: IpNet,
    path: u32,
    /// This field precedes `weight`, so that sorting puts equal routes in the order of their sources. The later route
    /// is reported as the duplicate.
    source: RouteSource,
    weight: u16,
}

/// The source of a route.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RouteSource {
    /// The entry of the table with this index.
    Table(u32),
    /// The line of the file with this number.
    Line(u32),
    /// The addresses of a port.
    Port,
}

/// The fields of a route, from any source.
struct RouteSpec<'a> {
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
    listed: Vec<PrefixPath>,
    /// Port numbers by name. The lookup must be fast, because a file may name ports a million times.
    ports: HashMap<String, u8>,
    /// Buffer for building the names of paths.
    name: String,
}

impl SharedRoutes {
    /// Loads the routes of a config and of its file.
    pub(super) fn load(table: &[RouteEntry], file: Option<&FilePath>, setup: &mut Setup<'_>) -> Result<Self, Problem> {
        let mut loader =
            Loader { setup, paths: Paths::default(), listed: Vec::new(), ports: HashMap::new(), name: String::new() };
        for (at, entry) in table.iter().enumerate() {
            let spec = RouteSpec {
                prefix: entry.prefix.0,
                via: entry.via,
                port: entry.port.as_deref(),
                weight: entry.weight,
                drop: entry.drop,
            };
            if let Err(problem) = loader.add(&spec, RouteSource::Table(at as u32)) {
                let key = format!("table[{at}]{}{}", if problem.key.is_empty() { "" } else { "." }, problem.key);
                loader.setup.reject(Problem { key, ..problem });
            }
        }
        let mut bad = Vec::new();
        let shown = file.map_or(String::new(), |file| file.display().to_string());
        if let Some(file) = file {
            loader.read(file, &mut bad)?;
        }
        loader.add_local_routes();
        let Loader { setup, paths, mut listed, .. } = loader;
        listed.sort_unstable();
        // A route of the config or of the file takes precedence over the route for a port's address.
        listed.dedup_by(|route, before| route.source == RouteSource::Port && route.prefix == before.prefix);
        let routes = Self::build(paths, &listed, &mut bad, setup)?;
        if bad.is_empty() {
            return Ok(routes);
        }
        bad.sort_unstable();
        let count = bad.len();
        let lines = match count {
            1 => "line",
            MAX_BAD.. => "lines or more",
            _ => "lines",
        };
        let mut message = format!("{shown} has {count} invalid {lines}");
        for (line, text) in bad.iter().take(MAX_REPORTED) {
            message.push_str(&format!("\n{shown}:{line}: {text}"));
        }
        if count > MAX_REPORTED {
            message.push_str(&format!("\nand {} more", count - MAX_REPORTED));
        }
        Err(Problem::at("file", message).help(GRAMMAR))
    }

    /// Builds the lookup tables from sorted routes.
    fn build(
        mut paths: Paths,
        listed: &[PrefixPath],
        bad: &mut Vec<(u32, String)>,
        setup: &mut Setup<'_>,
    ) -> Result<Self, Problem> {
        let (mut v4, mut v6, mut prefixes) = (Vec::new(), Vec::new(), Vec::new());
        let mut members = Vec::new();
        for routes in listed.chunk_by(|a, b| a.prefix == b.prefix) {
            members.clear();
            for (at, route) in routes.iter().enumerate() {
                let fault = match at.checked_sub(1).map(|at| routes[at]) {
                    Some(before) if before.path == route.path => Some("is listed twice"),
                    Some(before) if paths.drops(before.path) != paths.drops(route.path) => {
                        Some(if paths.drops(route.path) {
                            "conflicts with a path for this prefix"
                        } else {
                            "conflicts with `drop` for this prefix"
                        })
                    }
                    _ => None,
                };
                if let Some(fault) = fault {
                    let text = format!("`{} {}` {fault}", route.prefix, paths.name(route.path));
                    match route.source {
                        RouteSource::Table(at) => setup.reject(Problem::at(format!("table[{at}]"), text)),
                        RouteSource::Line(line) => bad.push((line, text)),
                        RouteSource::Port => {}
                    }
                }
                members.push((route.path, route.weight));
            }
            let group = paths.group(&members);
            prefixes.push((routes[0].prefix, group));
            match routes[0].prefix {
                IpNet::V4(net) => v4.push((u32::from(net.network()), net.prefix_len(), group)),
                IpNet::V6(net) => v6.push((u128::from(net.network()), net.prefix_len(), group)),
            }
        }
        let refused = |error| table_problem("table", error);
        let (v4, v6) = (Lpm4::build(&v4).map_err(refused)?, Lpm6::build(&v6).map_err(refused)?);
        Ok(Self { v4, v6, paths, listed: prefixes.into() })
    }

    /// Returns the longest prefix for a destination, and the number of its group.
    pub(super) fn longest(&self, destination: IpAddr) -> Option<(IpNet, u32)> {
        let (len, group) = match destination {
            IpAddr::V4(address) => (0..=32).rev().find_map(|len| Some((len, self.v4.get(address.into(), len)?))),
            IpAddr::V6(address) => (0..=128).rev().find_map(|len| Some((len, self.v6.get(address.into(), len)?))),
        }?;
        Some((IpNet::new(destination, len).ok()?.trunc(), group))
    }

    /// Returns a text that describes the route of a destination.
    pub(super) fn explain(&self, destination: IpAddr, flow_hash: u32) -> String {
        let Some((prefix, group)) = self.longest(destination) else { return format!("no route to {destination}") };
        let path = self.paths.number(group, flow_hash).map_or("", |path| self.paths.name(path));
        match self.paths.members(group) {
            1 => format!("{prefix} {path}"),
            paths => format!("{prefix} {path}, one of {paths} paths"),
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

    /// Adds a route. A returned problem names the key of the bad field, but not the entry or the line of the route.
    fn add(&mut self, spec: &RouteSpec<'_>, source: RouteSource) -> Result<(), Problem> {
        let RouteSpec { prefix, via, port, weight, drop } = *spec;
        if !(1..=MAX_WEIGHT).contains(&weight) {
            let problem = Problem::at("weight", format!("a weight of {weight} is out of range"));
            return Err(problem.help(format!("set a weight from 1 to {MAX_WEIGHT}")));
        }
        let path = if drop {
            if via.is_some() || port.is_some() {
                let problem = Problem::at("drop", "a route with drop cannot have via or port");
                return Err(problem.help("remove via and port, or remove drop"));
            }
            self.paths.path("drop", RoutePath { next_hop: 0, egress: 0, action: PathAction::Drop })
        } else {
            let Some(name) = port else {
                return Err(Problem::at("port", "no port is given").help("set port, or drop = true"));
            };
            if let (IpNet::V6(_), Some(IpAddr::V4(gateway))) = (prefix, via) {
                let problem = Problem::at("via", format!("an IPv6 prefix cannot have the IPv4 gateway {gateway}"));
                return Err(problem.help("set an IPv6 gateway"));
            }
            let egress = self.port(name)?;
            self.name.clear();
            // Writing to a string cannot fail.
            let _ = match via {
                Some(gateway) => std::fmt::Write::write_fmt(&mut self.name, format_args!("via {gateway} on {name}")),
                None => std::fmt::Write::write_fmt(&mut self.name, format_args!("on {name}")),
            };
            let next_hop = via.map_or(0, |address| self.setup.next_hops().number(NextHop { address, port: egress }));
            self.paths.path(&self.name, RoutePath { next_hop, egress, action: PathAction::Forward })
        };
        self.listed.push(PrefixPath { prefix, path, weight, source });
        Ok(())
    }

    /// Adds routes for this host: the addresses of the ports, and the broadcast addresses of their networks.
    fn add_local_routes(&mut self) {
        let path = self.paths.path("for this host", RoutePath { next_hop: 0, egress: 0, action: PathAction::Local });
        for own in self.setup.ports().iter().flat_map(|port| &port.addresses) {
            let broadcasts = broadcast_addresses(own).into_iter().flatten().map(IpAddr::V4);
            let prefixes = broadcasts.chain([own.addr()]).map(IpNet::from);
            self.listed.extend(prefixes.map(|prefix| PrefixPath {
                prefix,
                path,
                source: RouteSource::Port,
                weight: 1,
            }));
        }
    }

    /// Adds the routes of a file, and records the bad lines.
    fn read(&mut self, file: &FilePath, bad: &mut Vec<(u32, String)>) -> Result<(), Problem> {
        let path = self.setup.path(file);
        self.setup.declare_read_file(&path, "file")?;
        let bytes = parameter::file(&path, MAX_FILE_BYTES, "aggregate routes by prefix")?;
        for (line, bytes) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            if bad.len() >= MAX_BAD {
                break;
            }
            let route = bytes.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii();
            if route.is_empty() {
                continue;
            }
            if route.len() > MAX_LINE {
                let start = String::from_utf8_lossy(&route[..MAX_LINE]).chars().take(MAX_SHOWN).collect::<String>();
                bad.push((line, format!("`{start}…`: the line has {} bytes, more than {MAX_LINE}", route.len())));
                continue;
            }
            let text = String::from_utf8_lossy(route);
            let route = text.trim();
            let added = parse_line(route).and_then(|spec| {
                self.add(&spec, RouteSource::Line(line)).map_err(|problem| match problem.help {
                    Some(help) => format!("{}; help: {help}", problem.message),
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

/// Parses one line.
fn parse_line(line: &str) -> Result<RouteSpec<'_>, String> {
    let mut rest = line.split_whitespace();
    let Prefix(prefix) = rest.next().unwrap_or_default().parse()?;
    let mut spec = RouteSpec { prefix, via: None, port: None, weight: 1, drop: false };
    while let Some(word) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("`{word}` has no value"));
        match word {
            "via" => {
                let text = value()?;
                spec.via = Some(text.parse().map_err(|_| format!("`{text}` is not an IP address"))?);
            }
            "port" => spec.port = Some(value()?),
            "weight" => {
                let text = value()?;
                spec.weight = text.parse().map_err(|_| format!("`{text}` is not a weight from 1 to {MAX_WEIGHT}"))?;
            }
            "drop" => spec.drop = true,
            _ => return Err(format!("`{word}` is not one of via, port, weight, drop")),
        }
    }
    Ok(spec)
}

/// A target of the fuzzer: loads a route file. Every listed prefix must have a route, and the lookup must find the
/// longest prefix.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(input: &[u8]) {
    use dataplane_core::harness::port;
    use dataplane_core::pipeline::Resources;

    let mut resources = Resources::new(vec![port("a"), port("b")], FilePath::new(""));
    let mut setup = Setup::new(&mut resources, "routes", 0, 1);
    let Ok(routes) = crate::fuzzing::with_file(input, |path| SharedRoutes::load(&[], Some(path), &mut setup)) else {
        return;
    };
    for line in input.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line.split(|byte| *byte == b'#').next().unwrap_or_default());
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let prefix = parse_line(line)
            .unwrap_or_else(|fault| {
                panic!("the loader accepted the line `{line}`, but `parse_line` refuses it: {fault}")
            })
            .prefix;
        for address in [prefix.network(), prefix.broadcast()] {
            let (group, longest) = match address {
                IpAddr::V4(address) => {
                    let number = address.into();
                    (routes.v4.lookup(number), (0..=32).rev().find_map(|length| routes.v4.get(number, length)))
                }
                IpAddr::V6(address) => {
                    let number = address.into();
                    (routes.v6.lookup(number), (0..=128).rev().find_map(|length| routes.v6.get(number, length)))
                }
            };
            assert!(group.is_some() && group == longest, "{address}: {group:?} {longest:?}");
        }
        assert!(!routes.explain(prefix.network(), 0).starts_with("no route"));
    }
}
