//! Offloads in software: completes partial checksums and segments large frames.
//!
//! The kernel leaves checksums and segmentation to the NIC. A frame that another program sends over a veth pair passes
//! no NIC. Such a frame may arrive with a partial checksum, or with the data of many segments. Merged received packets
//! (GRO, LRO) are also large frames. A header before the frame describes the pending work: `struct virtio_net_hdr`
//! (Virtual I/O Device 1.1, section 5.1.6).

use dataplane_core::header::checksum::Sum;

/// The size of `struct virtio_net_hdr`, in bytes.
pub(super) const HEADER: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const KIND: u8 = 0x7f;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;

/// The maximum number of segments of a frame. The sender of a veth pair chooses the size of the segments, and could
/// otherwise turn one frame into 65,000 packets. A TCP segment of Linux has at least 48 bytes, so a frame of 64 KiB has
/// at most 1,366 segments.
const MAX_SEGMENTS: usize = 2048;

const ETHERTYPE_AT: usize = 12;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLANS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const TCP_PROTOCOL: u8 = 6;
const UDP_PROTOCOL: u8 = 17;

/// Offload work that is pending for a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingOffload {
    flags: u8,
    kind: u8,
    /// Payload length of each segment, in bytes.
    size: u16,
    /// Offset in the frame at which the checksummed data starts.
    start: u16,
    /// Offset of the checksum field, relative to `start`.
    offset: u16,
}

impl PendingOffload {
    /// Parses a `struct virtio_net_hdr`, whose fields are in host byte order.
    pub(super) fn read(header: [u8; HEADER]) -> Self {
        let [flags, kind, _, _, size @ .., s0, s1, o0, o1] = header;
        let word = |bytes: [u8; 2]| u16::from_ne_bytes(bytes);
        Self { flags, kind, size: word(size), start: word([s0, s1]), offset: word([o0, o1]) }
    }

    /// Returns whether no work is pending.
    #[inline]
    pub(super) fn is_none(self) -> bool {
        self.flags & NEEDS_CHECKSUM == 0 && !self.needs_segmentation()
    }

    /// Returns whether the frame must be segmented.
    #[inline]
    pub(super) fn needs_segmentation(self) -> bool {
        self.kind & KIND != 0
    }

    /// Adjusts the offsets after `by` bytes (a VLAN tag) were inserted into the Ethernet header.
    pub(super) fn shifted(self, by: u16) -> Self {
        Self { start: self.start.saturating_add(by), ..self }
    }

    /// Completes a partial checksum. The checksum field already holds the sum of the pseudo-header. If the field is
    /// outside the frame, the frame stays unchanged, and the receiver detects the wrong checksum.
    pub(super) fn complete(self, frame: &mut [u8]) {
        let (start, field) = (usize::from(self.start), usize::from(self.start) + usize::from(self.offset));
        if self.flags & NEEDS_CHECKSUM == 0 || field + 2 > frame.len() {
            return;
        }
        // Send a checksum of 0 as 0xffff for every protocol, as the kernel does.
        let sum = Sum::default().bytes(&frame[start..]).udp_checksum();
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A large frame, and the segments that are cut from it one by one.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    /// The large frame.
    pub(super) frame: Vec<u8>,
    plan: Option<SplitPlan>,
    /// The number of payload bytes that have been output.
    done: usize,
    part: Vec<u8>,
}

/// Header offsets of a frame that is segmented.
#[derive(Clone, Copy, Debug)]
struct SplitPlan {
    ip: usize,
    is_ipv6: bool,
    /// Offset of the TCP or UDP header.
    upper: usize,
    is_tcp: bool,
    /// Offset of the payload.
    payload: usize,
    /// Payload length of each segment.
    size: usize,
}

impl Splitter {
    /// Creates a splitter for frames of up to `frame` bytes and segments of up to `part` bytes.
    pub(super) fn new(frame: usize, part: usize) -> Self {
        Self { frame: Vec::with_capacity(frame), part: Vec::with_capacity(part), ..Self::default() }
    }

    /// Starts to segment the frame in the field `frame`. `what` is the pending work of this frame. Returns `false` if
    /// the frame cannot be segmented.
    pub(super) fn begin(&mut self, what: PendingOffload) -> bool {
        self.plan = plan(&self.frame, what);
        self.done = 0;
        self.plan.is_some()
    }

    /// Discards the remaining segments.
    pub(super) fn clear(&mut self) {
        self.plan = None;
    }

    /// Returns the number of remaining segments.
    pub(super) fn left(&self) -> usize {
        self.plan.map_or(0, |plan| (self.frame.len() - plan.payload - self.done).div_ceil(plan.size))
    }

    /// Returns the next segment, with correct headers and checksums.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        let plan = self.plan?;
        let payload = &self.frame[plan.payload..];
        let now = &payload[self.done..][..plan.size.min(payload.len() - self.done)];
        let last = self.done + now.len() == payload.len();
        let part = &mut self.part;
        part.clear();
        part.extend_from_slice(&self.frame[..plan.payload]);
        part.extend_from_slice(now);
        plan.finish(part, self.done, last);
        self.done += now.len();
        if last {
            self.plan = None;
        }
        Some(part)
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn plan(frame: &[u8], what: PendingOffload) -> Option<SplitPlan> {
    let mut at = ETHERTYPE_AT;
    while VLANS.contains(&be16(frame, at)?) {
        at += 4;
    }
    let (ip, is_ipv6) = match be16(frame, at)? {
        IPV4 => (at + 2, false),
        IPV6 => (at + 2, true),
        _ => return None,
    };
    let is_tcp = match what.kind & KIND {
        TCP4 if !is_ipv6 => true,
        TCP6 if is_ipv6 => true,
        UDP => false,
        _ => return None,
    };
    let protocol = if is_tcp { TCP_PROTOCOL } else { UDP_PROTOCOL };
    // Refuse tunnels: segmentation applies to the inner packet, but this code reads the outer headers.
    let upper = if is_ipv6 {
        let direct = (*frame.get(ip + 6)? == protocol).then_some(ip + 40);
        direct
            .or((what.flags & NEEDS_CHECKSUM != 0).then_some(usize::from(what.start)).filter(|_| extended(frame, ip)))?
    } else {
        let header = usize::from(*frame.get(ip)? & 0xf) * 4;
        (header >= 20 && *frame.get(ip + 9)? == protocol).then_some(ip + header)?
    };
    let header = if is_tcp { usize::from(*frame.get(upper + 12)? >> 4) * 4 } else { 8 };
    let payload = upper + header;
    // The offset from the kernel may lie inside the IPv6 header.
    let begins_after_ip = upper >= ip + if is_ipv6 { 40 } else { 20 };
    let fits = begins_after_ip && header >= if is_tcp { 20 } else { 8 } && payload < frame.len();
    let splits =
        what.size > 0 && (frame.len() - payload.min(frame.len())).div_ceil(usize::from(what.size)) <= MAX_SEGMENTS;
    (fits && splits).then_some(SplitPlan { ip, is_ipv6, upper, is_tcp, payload, size: usize::from(what.size) })
}

/// Returns whether hop-by-hop or destination options follow the IPv6 header at offset `ip`. Routing headers are not
/// accepted, because they change the destination address of the pseudo-header.
fn extended(frame: &[u8], ip: usize) -> bool {
    frame.get(ip + 6).is_some_and(|next| [0, 60].contains(next))
}

impl SplitPlan {
    /// Corrects the headers of a segment. `before` is the number of payload bytes in the earlier segments.
    fn finish(self, part: &mut [u8], before: usize, last: bool) {
        let upper_length = part.len() - self.upper;
        // A segment is never longer than the large frame, so its length fits into the IP length field.
        let ip_length = (part.len() - self.ip - if self.is_ipv6 { 40 } else { 0 }) as u16;
        let nth = (before / self.size) as u16;
        if self.is_ipv6 {
            part[self.ip + 4..self.ip + 6].copy_from_slice(&ip_length.to_be_bytes());
        } else {
            let ip = &mut part[self.ip..self.upper];
            let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(nth);
            ip[2..4].copy_from_slice(&ip_length.to_be_bytes());
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            ip[10..12].fill(0);
            let sum = Sum::default().bytes(ip).checksum();
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let field = if self.is_tcp {
            self.finish_tcp(&mut part[self.upper..], before, last);
            16
        } else {
            part[self.upper + 4..self.upper + 6].copy_from_slice(&(upper_length as u16).to_be_bytes());
            6
        };
        part[self.upper + field..self.upper + field + 2].fill(0);
        let protocol = if self.is_tcp { TCP_PROTOCOL } else { UDP_PROTOCOL };
        let addresses = if self.is_ipv6 { self.ip + 8..self.ip + 40 } else { self.ip + 12..self.ip + 20 };
        let sum = Sum::default().bytes(&part[addresses]).u16(u16::from(protocol)).u16(upper_length as u16);
        let sum = sum.bytes(&part[self.upper..]).udp_checksum();
        part[self.upper + field..self.upper + field + 2].copy_from_slice(&sum.to_be_bytes());
    }

    fn finish_tcp(self, tcp: &mut [u8], before: usize, last: bool) {
        const FIN: u8 = 0x01;
        const PSH: u8 = 0x08;
        const CWR: u8 = 0x80;
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(before as u32);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        // Only the first segment keeps CWR, and only the last segment keeps FIN and PSH.
        if before > 0 {
            tcp[13] &= !CWR;
        }
        if !last {
            tcp[13] &= !(FIN | PSH);
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, PacketHeaders, TransportHeader};
    use proptest::prelude::*;

    use super::*;

    const FROM: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn header(kind: u8, size: u16, start: u16, offset: u16) -> PendingOffload {
        let [a, b] = size.to_ne_bytes();
        let ([c, d], [e, f]) = (start.to_ne_bytes(), offset.to_ne_bytes());
        PendingOffload::read([NEEDS_CHECKSUM, kind, 0, 0, a, b, c, d, e, f])
    }

    fn tcp(is_ipv6: bool, vlan: bool, payload: &[u8]) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2(FROM, TO);
        let mut frame = Vec::new();
        macro_rules! build {
            ($link:expr) => {
                match is_ipv6 {
                    true => $link.ipv6([1; 16], [2; 16], 9).tcp(1, 2, u32::MAX - 100, 4).fin().psh().cwr(),
                    false => $link.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).tcp(1, 2, u32::MAX - 100, 4).fin().psh().cwr(),
                }
                .write(&mut frame, payload)
                .unwrap()
            };
        }
        match vlan {
            true => build!(ethernet.single_vlan(etherparse::VlanId::try_new(7).unwrap())),
            false => build!(ethernet),
        }
        frame
    }

    fn udp(is_ipv6: bool, payload: &[u8]) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2(FROM, TO);
        let mut frame = Vec::new();
        match is_ipv6 {
            true => ethernet.ipv6([1; 16], [2; 16], 9).udp(1, 2).write(&mut frame, payload).unwrap(),
            false => ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 9).udp(1, 2).write(&mut frame, payload).unwrap(),
        }
        frame
    }

    /// Replaces the checksum of a correct frame by the partial checksum that a sender writes for hardware offload.
    fn make_partial(frame: &mut [u8], start: usize, offset: usize) {
        let (pseudo, length) = match start {
            34 => (Sum::default().bytes(&frame[26..34]), frame.len() - start),
            _ => (Sum::default().bytes(&frame[22..54]), frame.len() - start),
        };
        let protocol = if offset == 6 { 17 } else { 6 };
        let sum = !pseudo.u16(protocol).u16(length as u16).checksum();
        frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
    }

    fn parts(frame: &[u8], what: PendingOffload) -> Vec<Vec<u8>> {
        let mut splitter = Splitter::new(65_535, 1514);
        splitter.frame.extend_from_slice(frame);
        assert!(splitter.begin(what));
        let count = splitter.left();
        let parts: Vec<Vec<u8>> = std::iter::from_fn(|| splitter.next().map(<[u8]>::to_vec)).collect();
        assert_eq!((parts.len(), splitter.left()), (count, 0));
        parts
    }

    /// Returns the checksum as it is sent: 0 becomes 0xffff.
    fn sent(sum: u16) -> u16 {
        if sum == 0 { 0xffff } else { sum }
    }

    /// Checks the TCP or UDP checksum with the crate `etherparse`, and for TCP over IPv4 also the IPv4 header checksum.
    fn is_right(frame: &[u8]) -> bool {
        let packet = PacketHeaders::from_ethernet_slice(frame).unwrap();
        let payload = packet.payload.slice();
        let net = packet.net.unwrap();
        match (packet.transport.unwrap(), &net) {
            (TransportHeader::Tcp(it), etherparse::NetHeaders::Ipv4(ip, _)) => {
                ip.calc_header_checksum() == ip.header_checksum
                    && sent(it.calc_checksum_ipv4(ip, payload).unwrap()) == it.checksum
            }
            (TransportHeader::Tcp(it), etherparse::NetHeaders::Ipv6(ip, _)) => {
                sent(it.calc_checksum_ipv6(ip, payload).unwrap()) == it.checksum
            }
            (TransportHeader::Udp(it), etherparse::NetHeaders::Ipv4(ip, _)) => {
                it.calc_checksum_ipv4(ip, payload).unwrap() == it.checksum
            }
            (TransportHeader::Udp(it), etherparse::NetHeaders::Ipv6(ip, _)) => {
                it.calc_checksum_ipv6(ip, payload).unwrap() == it.checksum
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn partial_checksum_is_completed(is_ipv6: bool, is_tcp: bool, payload in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut right = if is_tcp { tcp(is_ipv6, false, &payload) } else { udp(is_ipv6, &payload) };
            let (start, offset) = (if is_ipv6 { 54 } else { 34 }, if is_tcp { 16 } else { 6 });
            let sum = sent(u16::from_be_bytes([right[start + offset], right[start + offset + 1]]));
            right[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
            let mut frame = right.clone();
            make_partial(&mut frame, start, offset);
            header(0, 0, start as u16, offset as u16).complete(&mut frame);
            prop_assert_eq!(frame, right);
        }

        #[test]
        fn tcp_segments_contain_the_whole_stream(
            is_ipv6: bool, vlan: bool, size in 5u16..1500, payload in prop::collection::vec(any::<u8>(), 1..9000),
        ) {
            let whole = tcp(is_ipv6, vlan, &payload);
            let start = if is_ipv6 { 54 } else { 34 } + if vlan { 4 } else { 0 };
            let parts = parts(&whole, header(if is_ipv6 { TCP6 } else { TCP4 }, size, start, 16));
            let (mut together, last) = (Vec::new(), parts.len() - 1);
            for (nth, part) in parts.iter().enumerate() {
                prop_assert!(is_right(part), "part {}", nth);
                let packet = PacketHeaders::from_ethernet_slice(part).unwrap();
                let Some(TransportHeader::Tcp(tcp)) = packet.transport else { panic!("the segment is not TCP") };
                prop_assert_eq!(tcp.sequence_number, (u32::MAX - 100).wrapping_add(together.len() as u32));
                prop_assert_eq!((tcp.cwr, tcp.fin, tcp.psh), (nth == 0, nth == last, nth == last));
                let payload = packet.payload.slice();
                prop_assert_eq!(payload.len(), usize::from(size).min(9000).min(payload.len()));
                together.extend_from_slice(payload);
            }
            prop_assert_eq!(together, payload);
        }

        #[test]
        fn udp_segments_contain_the_whole_payload(
            is_ipv6: bool, size in 5u16..1500, payload in prop::collection::vec(any::<u8>(), 1..9000),
        ) {
            let parts = parts(&udp(is_ipv6, &payload), header(UDP, size, if is_ipv6 { 54 } else { 34 }, 6));
            let mut together = Vec::new();
            for part in &parts {
                prop_assert!(is_right(part));
                together.extend_from_slice(PacketHeaders::from_ethernet_slice(part).unwrap().payload.slice());
            }
            prop_assert_eq!(together, payload);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(header: [u8; HEADER], mut frame in prop::collection::vec(any::<u8>(), 0..200)) {
            let what = PendingOffload::read(header);
            let mut splitter = Splitter { frame: frame.clone(), ..Splitter::default() };
            if splitter.begin(what) {
                let left = splitter.left();
                prop_assert_eq!(std::iter::from_fn(|| splitter.next().map(<[u8]>::len)).count(), left);
            }
            what.shifted(4).complete(&mut frame);
        }

        #[test]
        fn any_frame_is_split_or_refused(
            is_ipv6: bool,
            protocol in prop::sample::select(vec![TCP_PROTOCOL, UDP_PROTOCOL, 0, 60]),
            kind in prop::sample::select(vec![TCP4, TCP6, UDP]),
            (size, start, offset) in (0..300u16, 0..120u16, 0..20u16),
            mut frame in prop::collection::vec(any::<u8>(), 30..200),
        ) {
            let (ether_type, version, at) = if is_ipv6 { (IPV6, 0x60, 6) } else { (IPV4, 0x40, 9) };
            frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
            frame[14] = version | frame[14] & 0xf;
            frame[14 + at] = protocol;
            let mut splitter = Splitter { frame, ..Splitter::default() };
            if splitter.begin(header(kind, size, start, offset)) {
                let left = splitter.left();
                let sizes: Vec<usize> = std::iter::from_fn(|| splitter.next().map(<[u8]>::len)).collect();
                prop_assert!(left > 0 && sizes.len() == left, "{:?}", sizes);
            }
        }
    }

    #[test]
    fn udp_header_inside_the_ipv6_header_is_refused() {
        let mut whole = udp(true, &[7; 3000]);
        // Options follow the IPv6 header, so the splitter takes the offset of the UDP header from the kernel's header
        // (`start`).
        whole[14 + 6] = 60;
        let mut splitter = Splitter { frame: whole, ..Splitter::default() };
        for (start, is_split) in [(14 + 20, false), (14 + 39, false), (14 + 40, true)] {
            assert_eq!(splitter.begin(header(UDP, 1000, start, 6)), is_split, "{start}");
        }
        splitter.frame.truncate(14 + 30);
        assert!(!splitter.begin(header(UDP, 1000, 14 + 20, 6)));
    }

    #[test]
    fn mismatched_offload_kinds_are_not_split() {
        let whole = tcp(false, false, &[7; 3000]);
        let mut splitter = Splitter { frame: whole.clone(), ..Splitter::default() };
        for what in [header(TCP6, 1000, 34, 16), header(UDP, 1000, 34, 6), header(TCP4, 0, 34, 16), header(3, 9, 34, 6)]
        {
            assert!(!splitter.begin(what), "{what:?}");
        }
        splitter.frame = tcp(false, false, &[0; 60_000]);
        assert!(!splitter.begin(header(TCP4, 1, 34, 16)), "60,000 segments");
        assert!(splitter.begin(header(TCP4, 48, 34, 16)));
        // A frame of a tunnel has another IP protocol.
        splitter.frame[23] = 47;
        assert!(!splitter.begin(header(TCP4, 1000, 34, 16)));
        assert!(PendingOffload::read([0; HEADER]).is_none());
    }
}
