//! The choice of the local GID.

use std::net::Ipv6Addr;

use crate::units::Gid;
use crate::verbs::{GidEntry, GidKind};

/// Returns the GID that a connection uses if its parameters do not select a GID, unless the peer is another port of the
/// same host. `kind` limits the choice to GIDs of this kind. Returns `None` if there is no such GID.
///
/// Among the GIDs of RoCE v2, the order is: the first GID with an IPv4 address, the first GID with an IPv6 address, a
/// link-local IPv4 address, a link-local IPv6 address, the first GID. Link-local addresses do not count in the first
/// two steps. In the third and the fourth step, only addresses of the interface of the first GID, other than the first
/// GID, count. Without a GID of RoCE v2, the result is the first GID.
///
/// The first GID of RoCE v2 is usually the default GID of the kernel. The kernel derives this link-local address from
/// the MAC address, even if the interface does not have this address. In that case, the host does not answer for the
/// address, and no peer can resolve the address (`enum_netdev_default_gids` and `ib_resolve_unicast_gid_dmac` in
/// Linux). The host itself cannot resolve the address either. All other GIDs are addresses of an interface. With RoCE
/// v1, a peer computes the MAC address from the default GID, so the default GID always works.
pub fn default_gid(entries: &[GidEntry], kind: Option<GidKind>) -> Option<&GidEntry> {
    let v2 = || of_kind(entries, kind).filter(|entry| entry.kind == GidKind::RoceV2);
    let first = v2().next();
    // If several entries have the smallest rank, `min_by_key` returns the first of them.
    let best = v2().min_by_key(|&entry| match entry.gid.ipv4() {
        Some(address) if !address.is_link_local() => 0,
        None if !is_link_local_ipv6(entry.gid) => 1,
        _ if !first.is_some_and(|first| is_other_address(entry, first)) => 4,
        // perftest also prefers IPv4.
        Some(_) => 2,
        None => 3,
    });
    best.or_else(|| of_kind(entries, kind).next())
}

/// Returns the GID that a connection to another port of the same host uses if its parameters do not select a GID. `kind`
/// limits the choice to GIDs of this kind. Returns `None` if there is no such GID.
///
/// Among the GIDs of RoCE v2, the order is: a link-local IPv6 address of the interface other than the first GID, the
/// first GID. The first GID is usually the default GID of the kernel, see [`default_gid`]. Without a GID of RoCE v2, the
/// result is the first GID.
///
/// Other addresses do not reach another interface of the same host. With two IPv4 GIDs, the kernel sends an ARP request
/// through the interface of the source GID. The other interface does not answer this request, because the address of the
/// sender belongs to the same host (`fib_validate_source` in Linux). With two other IPv6 GIDs, the kernel selects the
/// loopback interface, and the packets get the MAC address of the sender (`addr_resolve` in Linux).
pub fn same_host_gid(entries: &[GidEntry], kind: Option<GidKind>) -> Option<&GidEntry> {
    let v2 = || of_kind(entries, kind).filter(|entry| entry.kind == GidKind::RoceV2);
    let Some(first) = v2().next() else { return of_kind(entries, kind).next() };
    v2().find(|entry| is_link_local_ipv6(entry.gid) && is_other_address(entry, first)).or(Some(first))
}

/// Returns whether `entry` has another address of the same interface as `first`. The interfaces differ for example if
/// `entry` belongs to a VLAN.
fn is_other_address(entry: &GidEntry, first: &GidEntry) -> bool {
    entry.gid != first.gid && entry.interface == first.interface
}

fn is_link_local_ipv6(gid: Gid) -> bool {
    Ipv6Addr::from(gid.0).is_unicast_link_local()
}

/// Returns the GIDs of one kind, or of all kinds, without empty entries.
fn of_kind(entries: &[GidEntry], kind: Option<GidKind>) -> impl Iterator<Item = &GidEntry> + Clone {
    entries.iter().filter(move |entry| !entry.gid.is_zero() && kind.is_none_or(|kind| kind == entry.kind))
}
