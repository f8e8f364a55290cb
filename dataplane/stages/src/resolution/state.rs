//! The format in which a program saves its resolved neighbours, so that another program can take over the neighbours.
//! The format has its version, and for each neighbour the port, the version of IP, the address and the MAC address.

use std::net::{IpAddr, Ipv6Addr};

use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::NextHop;

/// The version of the format.
const VERSION: u8 = 1;
/// The number of bytes of a neighbour.
const ENTRY: usize = 24;

pub(super) fn save(neighbors: impl Iterator<Item = (NextHop, MacAddr)>) -> Vec<u8> {
    let mut state = vec![VERSION];
    for (hop, mac) in neighbors {
        let (version, address) = match hop.address {
            IpAddr::V4(address) => (4, address.to_ipv6_mapped()),
            IpAddr::V6(address) => (6, address),
        };
        state.extend([hop.port, version]);
        state.extend(address.octets());
        state.extend(mac.0);
    }
    state
}

/// Returns the neighbours of a saved state.
///
/// # Errors
/// Fails if the version is unknown or the neighbours are damaged.
pub(super) fn load(state: &[u8]) -> Result<Vec<(NextHop, MacAddr)>, String> {
    let Some((&VERSION, neighbors)) = state.split_first() else {
        return Err("the saved neighbours have an unknown version".to_owned());
    };
    let (neighbors, rest) = neighbors.as_chunks::<ENTRY>();
    let neighbor = |entry: &[u8; ENTRY]| {
        let [port, version, address @ .., a, b, c, d, e, f] = *entry;
        let address = Ipv6Addr::from(address);
        let address = match version {
            4 => IpAddr::V4(address.to_ipv4_mapped()?),
            6 => IpAddr::V6(address),
            _ => return None,
        };
        Some((NextHop { address, port }, MacAddr([a, b, c, d, e, f])))
    };
    let neighbors: Option<Vec<_>> = neighbors.iter().map(neighbor).collect();
    neighbors.filter(|_| rest.is_empty()).ok_or_else(|| "the saved neighbours are damaged".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_neighbors_are_loaded() {
        let hop = |address: &str, port| NextHop { address: address.parse().unwrap(), port };
        let all = vec![(hop("192.0.2.1", 0), MacAddr([2; 6])), (hop("2001:db8::1", 7), MacAddr([4; 6]))];
        let state = save(all.iter().copied());
        assert_eq!(load(&state).unwrap(), all);
        for wrong in [&[][..], &[9], &state[..state.len() - 1], &[&state[..2], &[5; 23]].concat()] {
            assert!(load(wrong).is_err());
        }
    }
}
