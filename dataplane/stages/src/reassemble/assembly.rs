//! The reassembly of one datagram, in its own memory.

use dataplane_core::header::Header;
use dataplane_core::header::ipv4::{Ipv4, MORE_FRAGMENTS, write_checksum};
use dataplane_core::header::ipv6::{Fragment, Ipv6};
use dataplane_core::header::protocol;
use dataplane_core::mem::{MetaFlags, Packet};

/// The maximum number of bytes before the payload of a fragment, starting at the link header.
pub(super) const HEAD: usize = 256;
/// The maximum number of fragments of a datagram.
pub(super) const PIECES: usize = 128;

/// The bit for CE ("congestion experienced", RFC 3168) in the set of ECN codepoints of the fragments.
const CONGESTED: u8 = 1 << 3;
/// The bit for Not-ECT ("not ECN-capable transport").
const INCAPABLE: u8 = 1;

/// The fields that identify a datagram. The fields are equal in all fragments of the datagram, and differ from the
/// fields of every other datagram in transit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) source: [u8; 16],
    destination: [u8; 16],
    identification: u32,
    /// The protocol, for IPv4 only.
    protocol: u8,
    pub(super) v6: bool,
    pub(super) port: u8,
    /// The VLAN tags.
    tags: [u8; 8],
}

/// The location of a fragment in its packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) key: Key,
    /// The offset of the network header.
    l3: usize,
    /// The end of the headers that the complete datagram keeps. In IPv6 the fragment header follows.
    kept: usize,
    /// The start and the end of the payload.
    pub(super) payload: usize,
    pub(super) end: usize,
    /// For IPv6: the offset of the next-header field that the complete datagram must change, and its new value.
    next: (usize, u8),
    /// The position of the payload in the datagram, in bytes.
    pub(super) offset: usize,
    pub(super) more: bool,
    ecn: u8,
}

/// Why a fragment is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// The same fragment was received before.
    Duplicate,
    /// The fragment conflicts with other fragments.
    Overlap,
    /// The complete datagram exceeds the memory or the packet buffer.
    TooLarge,
    /// The datagram has too many fragments.
    TooMany,
    /// Some fragments are marked CE, others Not-ECT.
    Congestion,
}

/// Returns the offset of the fragment header of an IPv6 packet, and the offset of the next-header field that refers
/// to the fragment header.
fn fragment_header(packet: &Packet<'_>) -> Option<(usize, usize)> {
    let (l3, end) = (usize::from(packet.meta().l3), usize::from(packet.meta().end));
    let datagram = packet.data().get(..end)?;
    let (mut at, mut next_header_at) = (l3 + Ipv6::LEN, l3 + 6);
    loop {
        let next = *datagram.get(next_header_at)?;
        if next == protocol::FRAGMENT {
            return Some((at, next_header_at));
        }
        let length = usize::from(*datagram.get(at + 1)?);
        let length = match next {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => (length + 1) * 8,
            protocol::AH => (length + 2) * 4,
            _ => return None,
        };
        (next_header_at, at) = (at, at + length);
    }
}

/// Returns the fragment that a packet carries, or `None` if the fragment is invalid.
pub(super) fn locate(packet: &Packet<'_>) -> Option<Piece> {
    let meta = packet.meta();
    let (l3, end) = (usize::from(meta.l3), usize::from(meta.end));
    let data = packet.data();
    let datagram = data.get(l3..end)?;
    let mut key = Key { port: packet.ingress(), ..Key::default() };
    let tags = data.get(12..l3.checked_sub(2)?)?;
    key.tags.get_mut(..tags.len())?.copy_from_slice(tags);
    let piece = if meta.flags.contains(MetaFlags::IPV4) {
        let ip = Ipv4::view(datagram).ok()?;
        key.source[..4].copy_from_slice(&ip.source);
        key.destination[..4].copy_from_slice(&ip.destination);
        (key.identification, key.protocol) = (ip.identification.get().into(), ip.protocol);
        let (payload, offset) = (l3 + ip.header_len(), ip.fragment_offset() as usize);
        let more = ip.fragment.get() & MORE_FRAGMENTS != 0;
        Piece { key, l3, kept: payload, payload, end, next: (0, 0), offset, more, ecn: 1 << (ip.tos & 3) }
    } else {
        let ip = Ipv6::view(datagram).ok()?;
        let (at, next_header_at) = fragment_header(packet)?;
        let fragment = Fragment::view(data.get(at..end)?).ok()?;
        (key.source, key.destination, key.v6) = (ip.source, ip.destination, true);
        key.identification = fragment.identification.get();
        let next = (next_header_at, fragment.next_header);
        let (offset, more) = (usize::from(fragment.offset()), fragment.more());
        let ecn = 1 << (ip.traffic_class() & 3);
        Piece { key, l3, kept: at, payload: at + Fragment::LEN, end, next, offset, more, ecn }
    };
    let length = piece.end.checked_sub(piece.payload)?;
    let whole = piece.kept - piece.l3 - if piece.key.v6 { Ipv6::LEN } else { 0 } + piece.offset + length;
    let fits = length > 0 && piece.payload <= HEAD && whole <= usize::from(u16::MAX);
    (fits && (!piece.more || length.is_multiple_of(8))).then_some(piece)
}

/// Removes the fragment header of an unfragmented IPv6 packet (RFC 6946). Returns `false` if the packet has no such
/// header.
pub(super) fn strip_atomic(packet: &mut Packet<'_>) -> bool {
    let Some((at, next_header_at)) = fragment_header(packet) else { return false };
    let end = usize::from(packet.meta().end);
    let l3 = usize::from(packet.meta().l3);
    let Some(Ok(fragment)) = packet.data().get(at..end).map(Fragment::view) else { return false };
    if !fragment.is_atomic() {
        return false;
    }
    let next = fragment.next_header;
    let bytes = packet.data_mut();
    if let Some(next_header) = bytes.get_mut(next_header_at) {
        *next_header = next;
    }
    bytes.copy_within(at + Fragment::LEN..end, at);
    if let Some(Ok(ip)) = bytes.get_mut(l3..).map(Ipv6::view_mut) {
        ip.payload_length.set((end - Fragment::LEN - l3 - Ipv6::LEN) as u16);
    }
    packet.truncate(end - Fragment::LEN);
    true
}

/// A datagram in reassembly. `memory` holds the headers of the first fragment, as received, followed by the payload.
#[derive(Debug)]
pub(super) struct Assembly {
    memory: Box<[u8]>,
    /// The first fragment, if it has arrived.
    first: Option<Piece>,
    pieces: [(u16, u16); PIECES],
    count: usize,
    /// The number of payload bytes received.
    received: usize,
    /// The length of the whole payload in bytes. `None` until the last fragment arrives.
    total: Option<usize>,
    ecn: u8,
}

impl Assembly {
    /// Creates an assembly for a payload of up to `largest` bytes.
    pub(super) fn new(largest: usize) -> Self {
        let memory = vec![0; HEAD + largest].into_boxed_slice();
        Self { memory, first: None, pieces: [(0, 0); PIECES], count: 0, received: 0, total: None, ecn: 0 }
    }

    /// Resets the assembly for a new datagram.
    pub(super) fn clear(&mut self) {
        (self.first, self.count, self.received, self.total, self.ecn) = (None, 0, 0, None, 0);
    }

    /// Adds a fragment. Returns whether the datagram is complete.
    pub(super) fn add(&mut self, piece: &Piece, data: &[u8]) -> Result<bool, Flaw> {
        let payload = data.get(piece.payload..piece.end).unwrap_or_default();
        let (start, end) = (piece.offset, piece.offset + payload.len());
        let known = self.pieces.get(..self.count).unwrap_or_default();
        let at = known.partition_point(|(known, _)| usize::from(*known) < start);
        if let Some((known, until)) = known.get(at)
            && (usize::from(*known), usize::from(*until)) == (start, end)
        {
            let same = self.memory.get(HEAD + start..HEAD + end) == Some(payload);
            let last = self.total == Some(end);
            return Err(if same && last != piece.more { Flaw::Duplicate } else { Flaw::Overlap });
        }
        let before = at.checked_sub(1).and_then(|before| known.get(before));
        let overlaps = before.is_some_and(|(_, until)| usize::from(*until) > start)
            || known.get(at).is_some_and(|(known, _)| usize::from(*known) < end);
        // Only the last fragment has no "more fragments" flag. Fragments conflict about the end of the datagram in
        // three cases:
        // - A fragment with the flag reaches or exceeds the known end.
        // - Two different fragments have no flag.
        // - A fragment without the flag ends before another fragment.
        let beyond = match (piece.more, self.total) {
            (true, Some(total)) => end >= total,
            (true, None) => false,
            (false, Some(_)) => true,
            (false, None) => known.last().is_some_and(|(_, until)| usize::from(*until) > end),
        };
        if overlaps || beyond {
            return Err(Flaw::Overlap);
        }
        if self.count == PIECES {
            return Err(Flaw::TooMany);
        }
        let Some(room) = self.memory.get_mut(HEAD + start..HEAD + end) else { return Err(Flaw::TooLarge) };
        room.copy_from_slice(payload);
        // `count` is below the maximum, and `start` and `end` are below 65,536.
        self.pieces.copy_within(at..self.count, at + 1);
        self.pieces[at] = (start as u16, end as u16);
        self.count += 1;
        self.received += payload.len();
        self.ecn |= piece.ecn;
        if !piece.more {
            self.total = Some(end);
        }
        if start == 0
            && let (Some(head), Some(room)) =
                (data.get(..piece.payload), self.memory.get_mut(HEAD - piece.payload..HEAD))
        {
            room.copy_from_slice(head);
            self.first = Some(*piece);
        }
        Ok(self.total == Some(self.received))
    }

    /// Returns the first fragment as it was received, or `None` if the fragment has not arrived.
    pub(super) fn first(&self) -> Option<&[u8]> {
        let first = self.first.as_ref()?;
        self.memory.get(HEAD - first.payload..HEAD + first.end - first.payload)
    }

    /// Turns a packet into the complete datagram.
    pub(super) fn finish(&self, packet: &mut Packet<'_>) -> Result<(), Flaw> {
        let (Some(first), Some(total)) = (&self.first, self.total) else { return Err(Flaw::Overlap) };
        if self.ecn & (CONGESTED | INCAPABLE) == CONGESTED | INCAPABLE {
            return Err(Flaw::Congestion);
        }
        let length = first.kept + total;
        // If the first fragment has longer headers than the other fragments, the length may exceed the length field of
        // the IP header.
        if length - first.l3 > usize::from(u16::MAX) {
            return Err(Flaw::TooLarge);
        }
        let missing = length.saturating_sub(packet.len());
        if missing > 0 && packet.append(missing).is_none() {
            return Err(Flaw::TooLarge);
        }
        packet.truncate(length);
        let start = HEAD - first.payload;
        let (head, payload) = (self.memory.get(start..start + first.kept), self.memory.get(HEAD..HEAD + total));
        if let (Some(head), Some(payload), Some((front, rest))) =
            (head, payload, packet.data_mut().split_at_mut_checked(first.kept))
        {
            front.copy_from_slice(head);
            rest.copy_from_slice(payload);
        }
        let congested = if self.ecn & CONGESTED != 0 { 3 } else { 0 };
        let Some(datagram) = packet.data_mut().get_mut(first.l3..) else { return Err(Flaw::TooLarge) };
        if first.key.v6 {
            let payload_length = datagram.len() - Ipv6::LEN;
            if let Some(next_header) = datagram.get_mut(first.next.0 - first.l3) {
                *next_header = first.next.1;
            }
            if let Ok(ip) = Ipv6::view_mut(datagram) {
                ip.payload_length.set(payload_length as u16);
                ip.version_class_flow.set(ip.version_class_flow.get() | congested << 20);
            }
        } else {
            let total_length = datagram.len() as u16;
            if let Ok(ip) = Ipv4::view_mut(datagram) {
                ip.total_length.set(total_length);
                ip.fragment.set(0);
                ip.tos |= congested as u8;
            }
            // The header was parsed before, so `write_checksum` cannot fail.
            let _ = write_checksum(datagram);
        }
        Ok(())
    }
}
