//! The verdict about a packet, and access to the headers that a reply changes.

use zerocopy::FromBytes;

use dataplane_core::header::Header;
use dataplane_core::header::ethernet::Ethernet;
use dataplane_core::mem::{Packet, Reason};

pub(super) const BAD_SOLICITATION: Reason = Reason::of_stage(0);
pub(super) const NO_TAILROOM: Reason = Reason::of_stage(1);
pub(super) const BAD_ADVERTISEMENT: Reason = Reason::of_stage(2);

/// How the stage handles a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcmpVerdict {
    Answered,
    /// The message was for this host and was passed to the resolver.
    Consumed,
    NotOurs,
    Refused(Reason),
}

/// Returns the link header, the IP header, and the ICMP message up to the end of the datagram. The IP header must not
/// have options.
pub(super) fn layers<'p, Ip: Header>(
    packet: &'p mut Packet<'_>,
) -> Option<(&'p mut Ethernet, &'p mut Ip, &'p mut [u8])> {
    let (l3, end) = (usize::from(packet.meta().l3), usize::from(packet.meta().end));
    let (link, datagram) = packet.data_mut().get_mut(..end)?.split_at_mut_checked(l3)?;
    let (ethernet, _) = Ethernet::mut_from_prefix(link).ok()?;
    let (ip, message) = Ip::mut_from_prefix(datagram).ok()?;
    Some((ethernet, ip, message))
}
