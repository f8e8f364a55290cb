//! The frames of a capture as a stream: with other addresses, and with signatures where they fit.
//!
//! A signature overwrites the last bytes of the payload of UDP, TCP or ICMP. Frames with a shorter payload, fragments,
//! and frames of other protocols are sent without a signature. The tester cannot judge frames without a signature.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use dataplane::header::MacAddr;
use dataplane::soft::Capture;
use dataplane_core::file;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use ipnet::IpNet;

use crate::signature::{LENGTH, fold, ones_sum};
use crate::template::{Checksums, Template};

/// For each prefix of addresses in a capture, the prefix that replaces it. Both prefixes have the same length.
pub type Rewrite = BTreeMap<IpNet, IpNet>;

/// The frames of a capture and their times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replay {
    pub(crate) templates: Vec<Template>,
    /// The indexes of the templates with a signature.
    pub(crate) signed: Vec<u32>,
    /// The mean number of frames per second, or `None` if all frames have the same time.
    pub(crate) rate: Option<f64>,
    /// The time of the first frame since the start of the capture, as a multiple of the mean time.
    pub(crate) first: f64,
}

/// The side of the conversations in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    /// Returns the side that sent a frame, or `None` if the frame does not go from a client to a server or back.
    fn of(frame: &[u8], clients: &[IpNet]) -> Option<Self> {
        let [source, destination] = Place::find(frame)?.read_addresses(frame);
        let is_client = |address: &IpAddr| clients.iter().any(|net| net.contains(address));
        match (is_client(&source), is_client(&destination)) {
            (true, false) if !destination.is_multicast() => Some(Self::Client),
            (false, true) => Some(Self::Server),
            _ => None,
        }
    }
}

/// Checks that the prefixes of each pair have the same family and length.
fn check(rewrite: &Rewrite) -> Result<(), String> {
    match rewrite
        .iter()
        .find(|(from, to)| from.max_prefix_len() != to.max_prefix_len() || from.prefix_len() != to.prefix_len())
    {
        None => Ok(()),
        Some((from, to)) => {
            Err(format!("`rewrite` replaces {from} by {to}; help: use two prefixes of the same family and length"))
        }
    }
}

impl Replay {
    /// Reads a capture. All frames get the MAC addresses `src` and `dst`. `longest` is the length of the longest frame that
    /// the ports can send. `side` has the prefixes of the clients, and the side whose frames are read.
    ///
    /// # Errors
    /// Returns the reason, and how to fix the config.
    pub(crate) fn load(
        path: &Path,
        rewrite: &Rewrite,
        (src, dst): (MacAddr, MacAddr),
        longest: usize,
        side: Option<(&[IpNet], Side)>,
    ) -> Result<Self, String> {
        check(rewrite)?;
        let shown = path.display();
        let capture = file::open(path).map_err(|error| error.to_string()).and_then(|file| Capture::load(&file));
        let capture = capture.map_err(|why| format!("`capture` {shown}: {why}"))?;
        if let Some(damage) = &capture.damage {
            return Err(format!(
                "`capture` {shown} is damaged at byte {}: {}; help: repair the file, for example with `editcap`",
                damage.offset, damage.reason
            ));
        }
        if capture.is_empty() {
            return Err(format!("`capture` {shown} has no frames; help: use a capture with at least one frame"));
        }
        let mut replay = Self::default();
        let count = capture.len();
        let time = |index: usize| capture.time(index).0;
        let whole = time(count - 1).saturating_sub(time(0)) as f64;
        // In the repetition, the first frame follows the last frame after the mean time between frames.
        let period = whole + whole / (count - 1).max(1) as f64;
        let is_sent =
            |index: &usize| side.is_none_or(|(clients, side)| Side::of(capture.frame(*index), clients) == Some(side));
        let indexes: Vec<usize> = (0..count).filter(is_sent).collect();
        let (Some(&first), mean) = (indexes.first(), period / indexes.len().max(1) as f64) else {
            let which = if side.is_some_and(|(_, side)| side == Side::Client) { "from" } else { "to" };
            return Err(format!(
                "`capture` {shown} has no IP packets {which} `clients`; help: change the prefixes of `clients`"
            ));
        };
        let since_start = |index: usize| time(index).saturating_sub(time(0)) as f64;
        for (number, &index) in indexes.iter().enumerate() {
            let mut frame = capture.frame(index).to_vec();
            if frame.len() < 14 || frame.len() > longest {
                return Err(format!(
                    "`capture` {shown}: frame {} has {} bytes, and the ports send frames of 14 to {longest} bytes; help: \
                     remove the frame, or increase `mtu` of the ports",
                    index + 1,
                    frame.len()
                ));
            }
            frame[..6].copy_from_slice(&dst.0);
            frame[6..12].copy_from_slice(&src.0);
            let mut template = template(frame, rewrite);
            let next = indexes.get(number + 1).map_or(period + since_start(first), |next| since_start(*next));
            template.gap = if mean > 0.0 { (next - since_start(index)).max(0.0) / mean } else { 1.0 };
            if template.signature.is_some() {
                replay.signed.push(number as u32);
            }
            replay.templates.push(template);
        }
        replay.rate = (mean > 0.0).then(|| 1e9 / mean);
        replay.first = if mean > 0.0 { since_start(first) / mean } else { 0.0 };
        Ok(replay)
    }
}

/// Returns the template of a frame.
fn template(mut frame: Vec<u8>, rewrite: &Rewrite) -> Template {
    let place = Place::find(&frame);
    if let Some(place) = &place {
        place.rewrite(&mut frame, rewrite);
    }
    let mut template = Template::unsigned(&[]);
    if let Some(payload) = place.as_ref().and_then(Place::payload) {
        let Payload { l4, checksum, start, end, is_udp } = payload;
        // In a short frame, the payload and the signature end before the padding.
        let has_checksum = !(is_udp && frame[checksum..checksum + 2] == [0, 0]);
        let pseudo = place.as_ref().map_or(0, |place| place.pseudo_sum(&frame, end - l4));
        let fits = end - start >= LENGTH;
        if has_checksum {
            frame[checksum..checksum + 2].fill(0);
        }
        if fits {
            frame[end - LENGTH..end].fill(0);
        }
        let sum = fold(u64::from(ones_sum(&frame[l4..end])) + pseudo);
        if has_checksum {
            let value = if is_udp && !sum == 0 { 0xffff } else { !sum };
            frame[checksum..checksum + 2].copy_from_slice(&value.to_be_bytes());
        }
        if fits {
            let filler = end - LENGTH - start;
            template = Template {
                l4_sum: sum,
                filler_sum: !ones_sum(&frame[start..start + filler]),
                filler,
                signature: Some(end - LENGTH),
                odd: (end - LENGTH - l4) % 2 == 1,
                checksums: Checksums { l4: has_checksum.then_some(checksum), is_udp, ..Checksums::default() },
                ..template
            };
        }
    }
    template.frame = frame.into();
    template
}

/// The payload after the header of UDP, TCP or ICMP.
#[derive(Clone, Copy)]
struct Payload {
    /// The offset of the header.
    l4: usize,
    /// The offset of the checksum.
    checksum: usize,
    start: usize,
    end: usize,
    is_udp: bool,
}

/// The offsets of the headers of an IP packet.
struct Place {
    ip: usize,
    is_v6: bool,
    /// The number of the protocol after the IP header and its extensions.
    protocol: u8,
    payload: Option<Payload>,
    /// The offset of the layer-4 checksum, if the packet is the first fragment of a datagram.
    fragment_checksum: Option<usize>,
}

impl Place {
    fn find(frame: &[u8]) -> Option<Self> {
        let sliced = SlicedPacket::from_ethernet(frame).ok()?;
        let offset = |part: &[u8]| part.as_ptr().addr().checked_sub(frame.as_ptr().addr());
        let net = sliced.net.as_ref()?;
        let (ip, is_v6) = match net {
            NetSlice::Ipv4(slice) => (offset(slice.header().slice())?, false),
            NetSlice::Ipv6(slice) => (offset(slice.header().slice())?, true),
            NetSlice::Arp(_) => return None,
        };
        let rest = net.ip_payload_ref()?;
        let protocol = rest.ip_number.0;
        let l4 = offset(rest.payload)?;
        let checksum = match protocol {
            6 => Some(l4 + 16),
            17 => Some(l4 + 6),
            58 => Some(l4 + 2),
            _ => None,
        };
        let payload = sliced.transport.as_ref().and_then(|transport| {
            let (payload, checksum, is_udp) = match transport {
                TransportSlice::Udp(slice) => (slice.payload(), l4 + 6, true),
                TransportSlice::Tcp(slice) => (slice.payload(), l4 + 16, false),
                TransportSlice::Icmpv4(slice) => (slice.payload(), l4 + 2, false),
                TransportSlice::Icmpv6(slice) => (slice.payload(), l4 + 2, false),
                TransportSlice::Igmp(_) => return None,
            };
            let start = offset(payload)?;
            Some(Payload { l4, checksum, start, end: start + payload.len(), is_udp })
        });
        // The offset of the fragment: 13 bits in both headers, at the low end for IPv4 and at the high end for IPv6. If other
        // extension headers precede the fragment header of IPv6, the checksum is not adjusted.
        let word =
            |at: usize| frame.get(at..at + 2).and_then(|bytes| bytes.first_chunk()).map(|it| u16::from_be_bytes(*it));
        let offset_in_packet = match is_v6 {
            false => word(ip + 6)? & 0x1fff,
            true if frame.get(ip + 6) == Some(&44) => word(ip + 42)? >> 3,
            true => u16::MAX,
        };
        let is_first = rest.fragmented && offset_in_packet == 0;
        let fragment_checksum = checksum.filter(|at| is_first && at + 2 <= frame.len());
        Some(Self { ip, is_v6, protocol, payload, fragment_checksum })
    }

    fn payload(&self) -> Option<Payload> {
        self.payload
    }

    /// Returns the offsets and the length of the addresses.
    fn addresses(&self) -> ([usize; 2], usize) {
        if self.is_v6 { ([self.ip + 8, self.ip + 24], 16) } else { ([self.ip + 12, self.ip + 16], 4) }
    }

    /// Returns the source and the destination address.
    fn read_addresses(&self, frame: &[u8]) -> [IpAddr; 2] {
        self.addresses().0.map(|at| {
            let bytes = frame.get(at..).unwrap_or_default();
            match (self.is_v6, bytes.first_chunk::<16>(), bytes.first_chunk::<4>()) {
                (true, Some(bytes), _) => IpAddr::from(*bytes),
                (_, _, bytes) => IpAddr::from(bytes.copied().unwrap_or_default()),
            }
        })
    }

    /// Replaces the prefixes of the addresses, and adjusts the checksums.
    fn rewrite(&self, frame: &mut [u8], rewrite: &Rewrite) {
        let (offsets, width) = self.addresses();
        let before = self.address_sum(frame);
        for (at, old) in offsets.into_iter().zip(self.read_addresses(frame)) {
            match replaced(old, rewrite) {
                Some(IpAddr::V4(new)) => frame[at..at + width].copy_from_slice(&new.octets()),
                Some(IpAddr::V6(new)) => frame[at..at + width].copy_from_slice(&new.octets()),
                None => {}
            }
        }
        let after = self.address_sum(frame);
        let mut adjust = |at: usize| {
            // RFC 1624: the new checksum from the old checksum and the changed words.
            let old = u16::from_be_bytes([frame[at], frame[at + 1]]);
            let new = !fold(u64::from(!old) + u64::from(!before) + u64::from(after));
            frame[at..at + 2].copy_from_slice(&new.to_be_bytes());
        };
        if before != after {
            if !self.is_v6 {
                adjust(self.ip + 10);
            }
            self.fragment_checksum.into_iter().for_each(adjust);
        }
    }

    fn address_sum(&self, frame: &[u8]) -> u16 {
        let ([source, _], width) = self.addresses();
        frame.get(source..source + 2 * width).map_or(0, ones_sum)
    }

    /// Returns the sum of the pseudo header. The checksum of ICMP over IPv4 has no pseudo header.
    fn pseudo_sum(&self, frame: &[u8], length: usize) -> u64 {
        if self.protocol == 1 {
            return 0;
        }
        u64::from(self.address_sum(frame)) + u64::from(self.protocol) + length as u64
    }
}

/// Returns the address with the prefix that replaces its longest prefix in `rewrite`. Returns `None` if `rewrite` has
/// no prefix of the address.
fn replaced(old: IpAddr, rewrite: &Rewrite) -> Option<IpAddr> {
    let (from, to) =
        rewrite.iter().filter(|(from, _)| from.contains(&old)).max_by_key(|(from, _)| from.prefix_len())?;
    Some(match (old, from.hostmask(), to.network()) {
        (IpAddr::V4(old), IpAddr::V4(mask), IpAddr::V4(to)) => IpAddr::from((old & mask) | to),
        (IpAddr::V6(old), IpAddr::V6(mask), IpAddr::V6(to)) => IpAddr::from((old & mask) | to),
        // The two prefixes have the same family (`check`), so no other case exists.
        _ => old,
    })
}
