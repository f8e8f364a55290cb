//! Notices that a neighbour table of the kernel is full.
//!
//! All network namespaces of a host share the kernel's two neighbour tables, one for ARP and one for IPv6. The setting
//! `gc_thresh3` limits the number of their entries (`arp(7)`). While a table is full, the kernel resolves no new
//! neighbour, so packets to that neighbour cannot be sent.

use std::collections::HashMap;
use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour_table::{NeighbourTableAttribute, NeighbourTableMessage};

use super::socket::{Content, DumpStep, Requests};

/// The state of one of the kernel's neighbour tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KernelTable {
    /// The name of the table: `arp_cache` or `ndisc_cache`.
    name: String,
    /// The maximum number of entries: `gc_thresh3`.
    limit: u32,
    /// The number of neighbours that the kernel refused because the table was full.
    refused: u64,
}

/// Finds the tables that overflow.
#[derive(Debug, Default)]
pub(super) struct Overflow {
    /// The number of refused neighbours of each table at the last check, by the name of the table.
    refused: HashMap<String, u64>,
}

impl Overflow {
    /// Reads the state of the kernel's tables. Returns a warning for each table that has refused neighbours since the
    /// last check.
    pub(super) fn check(&mut self, requests: &mut Requests) -> io::Result<Vec<String>> {
        Ok(read(requests)?.into_iter().filter_map(|table| self.warning(table)).collect())
    }

    fn warning(&mut self, table: KernelTable) -> Option<String> {
        let before = self.refused.insert(table.name.clone(), table.refused)?;
        let refused = table.refused.checked_sub(before).filter(|refused| *refused > 0)?;
        let (family, what) = if table.name == "arp_cache" { ("ipv4", "ARP") } else { ("ipv6", "IPv6") };
        Some(format!(
            "the kernel's {what} neighbour table is full: it holds {limit} entries and refused {refused} neighbours, so \
             packets to new neighbours are dropped; help: raise the limit in the initial network namespace with `sysctl \
             -w net.{family}.neigh.default.gc_thresh3={more}`, or use source = \"resolve\"",
            limit = table.limit,
            more = table.limit.saturating_mul(8).max(8192),
        ))
    }
}

/// Reads the state of the kernel's two neighbour tables.
fn read(requests: &mut Requests) -> io::Result<Vec<KernelTable>> {
    let mut tables = Vec::new();
    requests.dump(&RouteNetlinkMessage::GetNeighbourTable(NeighbourTableMessage::default()), |step| match step {
        DumpStep::Entry(message) => {
            if let Content::Route(RouteNetlinkMessage::NewNeighbourTable(message)) = message.content {
                tables.extend(table(message));
            }
        }
        DumpStep::Restart => tables.clear(),
        DumpStep::Pause => {}
    })?;
    Ok(tables)
}

/// Converts a message. Returns `None` for the parameters of a single interface.
fn table(message: NeighbourTableMessage) -> Option<KernelTable> {
    let (mut name, mut limit, mut refused) = (None, None, None);
    for attribute in message.attributes {
        match attribute {
            NeighbourTableAttribute::Name(text) => name = Some(text),
            NeighbourTableAttribute::Threshold3(most) => limit = Some(most),
            NeighbourTableAttribute::Stats(stats) => refused = Some(stats.table_fulls),
            _ => {}
        }
    }
    Some(KernelTable { name: name?, limit: limit?, refused: refused? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_of_the_kernel_are_read() {
        let tables = read(&mut Requests::open().unwrap()).unwrap();
        let mut names: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["arp_cache", "ndisc_cache"]);
        assert!(tables.iter().all(|table| table.limit > 0), "{tables:?}");
    }

    #[test]
    fn new_refusals_are_reported_with_the_limit_and_the_sysctl() {
        let mut overflow = Overflow::default();
        let mut at =
            |name: &str, refused| overflow.warning(KernelTable { name: name.to_owned(), limit: 1024, refused });
        // These refusals happened before the first check, so there is no warning.
        assert_eq!(at("arp_cache", 7), None);
        assert_eq!(at("ndisc_cache", 0), None);
        assert_eq!(at("arp_cache", 7), None);
        let warning = at("arp_cache", 10).unwrap();
        assert!(warning.contains("holds 1024 entries and refused 3 neighbours"), "{warning}");
        assert!(warning.contains("net.ipv4.neigh.default.gc_thresh3=8192"), "{warning}");
        assert!(at("ndisc_cache", 1).unwrap().contains("net.ipv6.neigh.default.gc_thresh3=8192"));
        assert_eq!(at("arp_cache", 10), None);
    }
}
