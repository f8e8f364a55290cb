//! The choice of the local GID.

use std::net::Ipv6Addr;

use crate::units::Gid;
use crate::verbs::{GidEntry, GidKind};

/// Returns the GID that a connection to another host uses if its parameters do not select a GID. `kind` limits the choice
/// to GIDs of this kind. Returns `None` if there is no such GID.
///
/// Among the GIDs of RoCE v2, the result is the first GID with an IPv4 address, otherwise the first GID with an IPv6
/// address, otherwise the first GID. Link-local addresses count only in the last step. Without a GID of RoCE v2, the
/// result is the first GID.
///
/// The first GID of RoCE v2 is usually the default GID of the kernel. The kernel derives this link-local address from
/// the MAC address, even if the interface does not have this address. In that case, the host does not answer for the
/// address, and no peer can resolve the address (`enum_netdev_default_gids` and `ib_resolve_unicast_gid_dmac` in
/// Linux). With RoCE v1, a peer computes the MAC address from the default GID, so the default GID always works.
pub fn default_gid(entries: &[GidEntry], kind: Option<GidKind>) -> Option<&GidEntry> {
    let mut set = of_kind(entries, kind);
    // If several entries have the smallest rank, `min_by_key` returns the first of them.
    let best = set.clone().filter(|entry| entry.kind == GidKind::RoceV2).min_by_key(|entry| rank(entry.gid));
    best.or_else(|| set.next())
}

/// Returns the GID that a connection to a port of the same host uses if its parameters do not select a GID: the first GID
/// of RoCE v2, if there is one, otherwise the first GID. `kind` limits the choice to GIDs of this kind. Returns `None` if
/// there is no such GID.
///
/// The result is usually the link-local GID. With two IPv4 GIDs of one host, the kernel sends an ARP request through the
/// interface of the source GID. The other interface does not answer this request, because the address of the sender
/// belongs to the same host (`fib_validate_source` in Linux). IPv6 has no such check.
pub fn same_host_gid(entries: &[GidEntry], kind: Option<GidKind>) -> Option<&GidEntry> {
    let mut set = of_kind(entries, kind);
    set.clone().find(|entry| entry.kind == GidKind::RoceV2).or_else(|| set.next())
}

/// Returns the GIDs of one kind, or of all kinds, without empty entries.
fn of_kind(entries: &[GidEntry], kind: Option<GidKind>) -> impl Iterator<Item = &GidEntry> + Clone {
    entries.iter().filter(move |entry| !entry.gid.is_zero() && kind.is_none_or(|kind| kind == entry.kind))
}

/// Returns the rank of a GID of RoCE v2. A smaller rank is better.
fn rank(gid: Gid) -> u8 {
    match gid.ipv4() {
        Some(address) if !address.is_link_local() => 0,
        None if !Ipv6Addr::from(gid.0).is_unicast_link_local() => 1,
        _ => 2,
    }
}
