//! Builds complete, valid frames for tests, the generator and the stages that send replies.
//!
//! ```
//! use dataplane_core::header::build::Frame;
//!
//! let frame = Frame::new()
//!     .vlan(7)
//!     .ipv4("192.0.2.1".parse()?, "198.51.100.9".parse()?)
//!     .udp(53, 1000)
//!     .payload(b"hello")
//!     .build();
//! assert_eq!(frame.len(), 14 + 4 + 20 + 8 + 5);
//! # Ok::<(), std::net::AddrParseError>(())
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::IntoBytes;

use super::arp::Arp;
use super::checksum::{Sum, checksum};
use super::ethernet::Ethernet;
use super::icmp::{self, Icmp};
use super::ipv4::{self, Ipv4};
use super::ipv6::Ipv6;
use super::tcp::Tcp;
use super::udp::Udp;
use super::vlan::VlanTag;
use super::{Header, MacAddr, U16, U32, ether_type, protocol};

/// The maximum number of VLAN tags that a [`Frame`] can have. The limit is above the two tags that [`super::parse`]
/// accepts, so that tests can build frames with too many tags.
pub const MAX_TAGS: usize = 4;

/// An IPv6 extension header to build. The header is padded to a multiple of 8 bytes. Options are padded with Pad1 or
/// PadN, and other headers with zeros. Content beyond 1,000 bytes is cut off.
#[derive(Clone, Copy, Debug)]
pub enum Extension<'a> {
    /// Hop-by-hop options.
    HopByHop(&'a [u8]),
    /// Destination options.
    DestinationOptions(&'a [u8]),
    /// A routing header. The bytes are the type, the segments left and the data.
    Routing(&'a [u8]),
    /// A fragment header: the offset in units of 8 bytes, whether more fragments follow, and the identification.
    Fragment(u16, bool, u32),
    /// An authentication header with its integrity check value.
    Authentication(&'a [u8]),
}

#[derive(Clone, Copy, Debug)]
enum Layer3 {
    Raw,
    Arp(Arp),
    Ipv4(Ipv4Addr, Ipv4Addr),
    Ipv6(Ipv6Addr, Ipv6Addr),
}

#[derive(Clone, Copy, Debug)]
enum Layer4 {
    Raw(u8),
    Udp(u16, u16),
    Tcp(u16, u16),
    Echo { reply: bool, identifier: u16, sequence: u16 },
    Icmp { kind: u8, code: u8, rest: [u8; 4] },
}

/// A frame to build. The frame contains only the layers that are set. [`Frame::write`] computes lengths and checksums,
/// and ignores the settings of layers that the frame does not have, such as the TTL of an ARP frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    destination: MacAddr,
    source: MacAddr,
    tags: [(u16, u16); MAX_TAGS],
    tag_count: usize,
    ether_type: u16,
    layer3: Layer3,
    ttl: u8,
    tos: u8,
    identification: u16,
    fragment: u16,
    flow_label: u32,
    options: &'a [u8],
    extensions: &'a [Extension<'a>],
    layer4: Layer4,
    tcp_flags: u8,
    tcp_numbers: (u32, u32),
    tcp_window: u16,
    tcp_options: &'a [u8],
    payload: &'a [u8],
    pad_to: usize,
}

impl Default for Frame<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Frame<'a> {
    /// Creates an empty frame. The two addresses of the Ethernet header are locally administered.
    pub fn new() -> Self {
        Self {
            destination: MacAddr([2, 0, 0, 0, 0, 2]),
            source: MacAddr([2, 0, 0, 0, 0, 1]),
            tags: [(0, 0); MAX_TAGS],
            tag_count: 0,
            ether_type: 0,
            layer3: Layer3::Raw,
            ttl: 64,
            tos: 0,
            identification: 0,
            fragment: 0,
            flow_label: 0,
            options: &[],
            extensions: &[],
            layer4: Layer4::Raw(protocol::NO_NEXT_HEADER),
            tcp_flags: super::tcp::ACK,
            tcp_numbers: (0, 0),
            tcp_window: u16::MAX,
            tcp_options: &[],
            payload: &[],
            pad_to: 0,
        }
    }

    /// Sets the source and the destination MAC address.
    #[must_use]
    pub fn ethernet(mut self, source: MacAddr, destination: MacAddr) -> Self {
        (self.source, self.destination) = (source, destination);
        self
    }

    /// Sets the EtherType and removes layer 3. The payload then follows the Ethernet header and its VLAN tags.
    #[must_use]
    pub fn ether_type(mut self, ether_type: u16) -> Self {
        (self.ether_type, self.layer3) = (ether_type, Layer3::Raw);
        self
    }

    /// Adds an 802.1Q VLAN tag after the existing tags. `tci` is the tag control information, or simply a VLAN id. Tags
    /// beyond [`MAX_TAGS`] are ignored.
    #[must_use]
    pub fn vlan(self, tci: u16) -> Self {
        self.tag(ether_type::VLAN, tci)
    }

    /// Adds a VLAN tag with the tag protocol identifier `tpid`, such as [`ether_type::QINQ`]. Tags beyond [`MAX_TAGS`]
    /// are ignored.
    #[must_use]
    pub fn tag(mut self, tpid: u16, tci: u16) -> Self {
        if let Some(tag) = self.tags.get_mut(self.tag_count) {
            *tag = (tpid, tci);
            self.tag_count += 1;
        }
        self
    }

    /// Sets an ARP message as layer 3.
    #[must_use]
    pub fn arp(mut self, operation: u16, sender: (MacAddr, Ipv4Addr), target: (MacAddr, Ipv4Addr)) -> Self {
        self.ether_type = ether_type::ARP;
        self.layer3 = Layer3::Arp(Arp::new(operation, sender, target));
        self
    }

    /// Sets an IPv4 header as layer 3.
    #[must_use]
    pub fn ipv4(mut self, source: Ipv4Addr, destination: Ipv4Addr) -> Self {
        (self.ether_type, self.layer3) = (ether_type::IPV4, Layer3::Ipv4(source, destination));
        self
    }

    /// Sets an IPv6 header as layer 3.
    #[must_use]
    pub fn ipv6(mut self, source: Ipv6Addr, destination: Ipv6Addr) -> Self {
        (self.ether_type, self.layer3) = (ether_type::IPV6, Layer3::Ipv6(source, destination));
        self
    }

    /// Sets the TTL or hop limit. Default: 64.
    #[must_use]
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the type of service or traffic class: DSCP and ECN.
    #[must_use]
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// Sets the IPv4 identification.
    #[must_use]
    pub fn identification(mut self, identification: u16) -> Self {
        self.identification = identification;
        self
    }

    /// Sets the IPv4 field of flags and fragment offset, such as [`ipv4::DONT_FRAGMENT`]. If the offset is not 0, the
    /// payload follows the IP header without a layer 4 header.
    #[must_use]
    pub fn fragment(mut self, flags_offset: u16) -> Self {
        self.fragment = flags_offset;
        self
    }

    /// Sets the IPv6 flow label: 20 bits.
    #[must_use]
    pub fn flow_label(mut self, flow_label: u32) -> Self {
        self.flow_label = flow_label & 0x000f_ffff;
        self
    }

    /// Sets IPv4 options, padded with zeros to a multiple of 4 bytes. At most 40 bytes are used.
    #[must_use]
    pub fn options(mut self, options: &'a [u8]) -> Self {
        self.options = options;
        self
    }

    /// Sets the IPv6 extension headers, in order. A fragment header with a nonzero offset must be the last header. In
    /// that case, the payload follows without a layer 4 header.
    #[must_use]
    pub fn extensions(mut self, extensions: &'a [Extension<'a>]) -> Self {
        self.extensions = extensions;
        self
    }

    /// Sets a UDP header with source port and destination port.
    #[must_use]
    pub fn udp(mut self, source: u16, destination: u16) -> Self {
        self.layer4 = Layer4::Udp(source, destination);
        self
    }

    /// Sets a TCP header with source port and destination port.
    #[must_use]
    pub fn tcp(mut self, source: u16, destination: u16) -> Self {
        self.layer4 = Layer4::Tcp(source, destination);
        self
    }

    /// Sets the TCP flags. Default: ACK.
    #[must_use]
    pub fn tcp_flags(mut self, flags: u8) -> Self {
        self.tcp_flags = flags;
        self
    }

    /// Sets the TCP sequence and acknowledgment numbers.
    #[must_use]
    pub fn tcp_numbers(mut self, sequence: u32, acknowledgement: u32) -> Self {
        self.tcp_numbers = (sequence, acknowledgement);
        self
    }

    /// Sets the TCP window. Default: 65,535.
    #[must_use]
    pub fn tcp_window(mut self, window: u16) -> Self {
        self.tcp_window = window;
        self
    }

    /// Sets TCP options, padded with zeros to a multiple of 4 bytes. At most 40 bytes are used.
    #[must_use]
    pub fn tcp_options(mut self, options: &'a [u8]) -> Self {
        self.tcp_options = options;
        self
    }

    /// Sets an echo request: ICMP over IPv4, ICMPv6 over IPv6.
    #[must_use]
    pub fn echo_request(mut self, identifier: u16, sequence: u16) -> Self {
        self.layer4 = Layer4::Echo { reply: false, identifier, sequence };
        self
    }

    /// Sets an echo reply: ICMP over IPv4, ICMPv6 over IPv6.
    #[must_use]
    pub fn echo_reply(mut self, identifier: u16, sequence: u16) -> Self {
        self.layer4 = Layer4::Echo { reply: true, identifier, sequence };
        self
    }

    /// Sets an ICMP or ICMPv6 message from its type, its code, and the four bytes after the checksum.
    #[must_use]
    pub fn icmp(mut self, kind: u8, code: u8, rest: [u8; 4]) -> Self {
        self.layer4 = Layer4::Icmp { kind, code, rest };
        self
    }

    /// Sets the protocol number of an IP packet, without building a layer 4 header. The payload must then contain the
    /// header and the content of this protocol.
    #[must_use]
    pub fn protocol(mut self, protocol: u8) -> Self {
        self.layer4 = Layer4::Raw(protocol);
        self
    }

    /// Sets the payload of the innermost header.
    #[must_use]
    pub fn payload(mut self, payload: &'a [u8]) -> Self {
        self.payload = payload;
        self
    }

    /// Appends zeros until the frame has `bytes` bytes. Ethernet pads short frames to 60 bytes in this way.
    #[must_use]
    pub fn pad_to(mut self, bytes: usize) -> Self {
        self.pad_to = bytes;
        self
    }

    /// Returns the length of the frame in bytes.
    pub fn frame_len(&self) -> usize {
        let tags = self.tag_count * VlanTag::LEN;
        (Ethernet::LEN + tags + self.layer3_len() + self.layer4_len() + self.content().len()).max(self.pad_to)
    }

    /// Returns the frame in a new vector.
    pub fn build(&self) -> Vec<u8> {
        let mut frame = vec![0; self.frame_len()];
        self.write(&mut frame);
        frame
    }

    /// Writes the frame to the start of `buffer` without allocation and returns the length of the frame. Returns `None`
    /// and writes nothing if the buffer is too small.
    pub fn write(&self, buffer: &mut [u8]) -> Option<usize> {
        let len = self.frame_len();
        let mut out = Writer(buffer.get_mut(..len)?);
        let tags = self.tags.get(..self.tag_count)?;
        let first = tags.first().map_or(self.ether_type, |tag| tag.0);
        let ethernet = Ethernet { destination: self.destination, source: self.source, ether_type: U16::new(first) };
        out.put(ethernet.as_bytes())?;
        for (at, (_, tci)) in tags.iter().enumerate() {
            let next = tags.get(at + 1).map_or(self.ether_type, |tag| tag.0);
            out.put(VlanTag { tci: U16::new(*tci), ether_type: U16::new(next) }.as_bytes())?;
        }
        match &self.layer3 {
            Layer3::Raw => {}
            Layer3::Arp(arp) => out.put(arp.as_bytes())?,
            Layer3::Ipv4(source, destination) => self.write_ipv4(&mut out, *source, *destination)?,
            Layer3::Ipv6(source, destination) => self.write_ipv6(&mut out, *source, *destination)?,
        }
        self.write_layer4(&mut out)?;
        out.0.fill(0);
        Some(len)
    }

    fn is_ip(&self) -> bool {
        matches!(self.layer3, Layer3::Ipv4(..) | Layer3::Ipv6(..))
    }

    /// Returns whether the layer 4 header is in another fragment.
    fn is_later_fragment(&self) -> bool {
        match self.layer3 {
            Layer3::Ipv4(..) => self.fragment & ipv4::FRAGMENT_OFFSET != 0,
            _ => self.extensions.iter().any(|e| matches!(e, Extension::Fragment(offset, ..) if *offset != 0)),
        }
    }

    fn content(&self) -> &'a [u8] {
        if matches!(self.layer3, Layer3::Arp(_)) { &[] } else { self.payload }
    }

    fn layer3_len(&self) -> usize {
        match self.layer3 {
            Layer3::Raw => 0,
            Layer3::Arp(_) => Arp::LEN,
            Layer3::Ipv4(..) => Ipv4::LEN + options_len(self.options),
            Layer3::Ipv6(..) => Ipv6::LEN + self.extensions.iter().map(Extension::len).sum::<usize>(),
        }
    }

    fn layer4_len(&self) -> usize {
        if !self.is_ip() || self.is_later_fragment() {
            return 0;
        }
        match self.layer4 {
            Layer4::Raw(_) => 0,
            Layer4::Udp(..) => Udp::LEN,
            Layer4::Tcp(..) => Tcp::LEN + options_len(self.tcp_options),
            Layer4::Echo { .. } | Layer4::Icmp { .. } => Icmp::LEN,
        }
    }

    fn layer4_protocol(&self) -> u8 {
        match self.layer4 {
            Layer4::Raw(protocol) => protocol,
            Layer4::Udp(..) => protocol::UDP,
            Layer4::Tcp(..) => protocol::TCP,
            Layer4::Echo { .. } | Layer4::Icmp { .. } => match self.layer3 {
                Layer3::Ipv6(..) => protocol::ICMPV6,
                _ => protocol::ICMP,
            },
        }
    }

    fn write_ipv4(&self, out: &mut Writer<'_>, source: Ipv4Addr, destination: Ipv4Addr) -> Option<()> {
        let header_len = self.layer3_len();
        let mut header = [0; 60];
        let header = header.get_mut(..header_len)?;
        let fixed = Ipv4 {
            version_ihl: 0x40 | (header_len / 4) as u8,
            tos: self.tos,
            total_length: length(header_len + self.layer4_len() + self.payload.len()),
            identification: U16::new(self.identification),
            fragment: U16::new(self.fragment),
            ttl: self.ttl,
            protocol: self.layer4_protocol(),
            checksum: U16::new(0),
            source: source.octets(),
            destination: destination.octets(),
        };
        let mut writer = Writer(header);
        writer.put(fixed.as_bytes())?;
        writer.put(clip(self.options))?;
        let sum = checksum(header);
        Ipv4::view_mut(header).ok()?.checksum.set(sum);
        out.put(header)
    }

    fn write_ipv6(&self, out: &mut Writer<'_>, source: Ipv6Addr, destination: Ipv6Addr) -> Option<()> {
        let next_of = |at: usize| self.extensions.get(at).map_or(self.layer4_protocol(), Extension::protocol);
        let payload_len = self.layer3_len() - Ipv6::LEN + self.layer4_len() + self.payload.len();
        let fixed = Ipv6 {
            version_class_flow: U32::new(6 << 28 | u32::from(self.tos) << 20 | self.flow_label),
            payload_length: length(payload_len),
            next_header: next_of(0),
            hop_limit: self.ttl,
            source: source.octets(),
            destination: destination.octets(),
        };
        out.put(fixed.as_bytes())?;
        for (at, extension) in self.extensions.iter().enumerate() {
            extension.write(out, next_of(at + 1))?;
        }
        Some(())
    }

    fn write_layer4(&self, out: &mut Writer<'_>) -> Option<()> {
        let segment_len = self.layer4_len() + self.content().len();
        let (segment, rest) = std::mem::take(&mut out.0).split_at_mut_checked(segment_len)?;
        out.0 = rest;
        let mut writer = Writer(segment);
        if self.layer4_len() > 0 {
            match self.layer4 {
                Layer4::Raw(_) => {}
                Layer4::Udp(source, destination) => {
                    let header = Udp {
                        source: U16::new(source),
                        destination: U16::new(destination),
                        length: length(segment_len),
                        checksum: U16::new(0),
                    };
                    writer.put(header.as_bytes())?;
                }
                Layer4::Tcp(source, destination) => {
                    let header = Tcp {
                        source: U16::new(source),
                        destination: U16::new(destination),
                        sequence: U32::new(self.tcp_numbers.0),
                        acknowledgement: U32::new(self.tcp_numbers.1),
                        data_offset: ((self.layer4_len() / 4) << 4) as u8,
                        flags: self.tcp_flags,
                        window: U16::new(self.tcp_window),
                        checksum: U16::new(0),
                        urgent: U16::new(0),
                    };
                    writer.put(header.as_bytes())?;
                    writer.put_padded(clip(self.tcp_options), options_len(self.tcp_options))?;
                }
                Layer4::Echo { reply, identifier, sequence } => {
                    let kind = match (self.layer4_protocol(), reply) {
                        (protocol::ICMPV6, false) => icmp::V6_ECHO_REQUEST,
                        (protocol::ICMPV6, true) => icmp::V6_ECHO_REPLY,
                        (_, false) => icmp::ECHO_REQUEST,
                        (_, true) => icmp::ECHO_REPLY,
                    };
                    let [a, b] = identifier.to_be_bytes();
                    let [c, d] = sequence.to_be_bytes();
                    writer.put(&[kind, 0, 0, 0, a, b, c, d])?;
                }
                Layer4::Icmp { kind, code, rest: [a, b, c, d] } => writer.put(&[kind, code, 0, 0, a, b, c, d])?,
            }
        }
        writer.put(self.content())?;
        if self.layer4_len() > 0 { self.write_layer4_checksum(segment) } else { Some(()) }
    }

    fn write_layer4_checksum(&self, segment: &mut [u8]) -> Option<()> {
        let (protocol, len) = (self.layer4_protocol(), segment.len());
        let pseudo = match self.layer3 {
            _ if protocol == protocol::ICMP => Sum::default(),
            Layer3::Ipv4(source, destination) => {
                Sum::default().pseudo_ipv4(source.octets(), destination.octets(), protocol, len as u16)
            }
            Layer3::Ipv6(source, destination) => {
                Sum::default().pseudo_ipv6(&source.octets(), &destination.octets(), protocol, len as u32)
            }
            _ => Sum::default(),
        };
        let sum = pseudo.bytes(segment);
        match self.layer4 {
            Layer4::Raw(_) => {}
            Layer4::Udp(..) => Udp::view_mut(segment).ok()?.checksum.set(sum.udp_checksum()),
            Layer4::Tcp(..) => Tcp::view_mut(segment).ok()?.checksum.set(sum.checksum()),
            Layer4::Echo { .. } | Layer4::Icmp { .. } => Icmp::view_mut(segment).ok()?.checksum.set(sum.checksum()),
        }
        Some(())
    }
}

impl Extension<'_> {
    fn protocol(&self) -> u8 {
        match self {
            Self::HopByHop(_) => protocol::HOP_BY_HOP,
            Self::DestinationOptions(_) => protocol::DESTINATION_OPTIONS,
            Self::Routing(_) => protocol::ROUTING,
            Self::Fragment(..) => protocol::FRAGMENT,
            Self::Authentication(_) => protocol::AH,
        }
    }

    /// Returns the content, cut off at 1,000 bytes.
    fn content(&self) -> &[u8] {
        let content = match self {
            Self::HopByHop(bytes) | Self::DestinationOptions(bytes) => bytes,
            Self::Routing(bytes) | Self::Authentication(bytes) => bytes,
            Self::Fragment(..) => &[][..],
        };
        content.get(..1000).unwrap_or(content)
    }

    fn len(&self) -> usize {
        match self {
            Self::Fragment(..) => 8,
            Self::Authentication(_) => (12 + self.content().len()).next_multiple_of(8),
            _ => (2 + self.content().len()).next_multiple_of(8),
        }
    }

    fn write(&self, out: &mut Writer<'_>, next: u8) -> Option<()> {
        let (len, content) = (self.len(), self.content());
        match self {
            Self::Fragment(offset, more, identification) => {
                let [a, b] = (offset << 3 | u16::from(*more)).to_be_bytes();
                out.put(&[next, 0, a, b])?;
                out.put(&identification.to_be_bytes())
            }
            Self::Authentication(_) => {
                out.put(&[next, (len / 4 - 2) as u8, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1])?;
                out.put_padded(content, len - 12)
            }
            Self::Routing(_) => {
                out.put(&[next, (len / 8 - 1) as u8])?;
                out.put_padded(content, len - 2)
            }
            Self::HopByHop(_) | Self::DestinationOptions(_) => {
                out.put(&[next, (len / 8 - 1) as u8])?;
                out.put(content)?;
                // Pad1 is a single zero byte, PadN is 1, a length, and zeros (RFC 8200, section 4.2).
                match len - 2 - content.len() {
                    0 => Some(()),
                    1 => out.put(&[0]),
                    pad => {
                        out.put(&[1, (pad - 2) as u8])?;
                        out.put_padded(&[], pad - 2)
                    }
                }
            }
        }
    }
}

/// Returns the length of the options including their padding, in bytes.
fn options_len(options: &[u8]) -> usize {
    clip(options).len().next_multiple_of(4)
}

/// Returns the options, cut off at the 40 bytes that fit in a header.
fn clip(options: &[u8]) -> &[u8] {
    options.get(..40).unwrap_or(options)
}

/// Returns `bytes` as a 16-bit length field, without higher bits. A frame that is too long for its length field is
/// malformed anyway.
fn length(bytes: usize) -> U16 {
    U16::new(bytes as u16)
}

/// The part of a buffer that is not yet written.
struct Writer<'b>(&'b mut [u8]);

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.put_padded(bytes, bytes.len())
    }

    /// Writes `bytes`, followed by zeros up to `len` bytes in total.
    fn put_padded(&mut self, bytes: &[u8], len: usize) -> Option<()> {
        let (now, rest) = std::mem::take(&mut self.0).split_at_mut_checked(len)?;
        let (front, pad) = now.split_at_mut_checked(bytes.len())?;
        front.copy_from_slice(bytes);
        pad.fill(0);
        self.0 = rest;
        Some(())
    }
}
