//! The frames of a stream before their fields and signatures are written.

use crate::signature::{Words, fold, ones_sum};
use crate::values::Cycle;

/// A frame without the values that differ between packets.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// The frame. Fields with several values are 0, and so is the signature.
    pub(crate) frame: Box<[u8]>,
    /// The sum of the outer IPv4 header of a frame with a tunnel, for the checksum of this header.
    pub(crate) outer_sum: u16,
    /// The sum of the inner IPv4 header of a frame with a tunnel, or of the IPv4 header of any other frame.
    pub(crate) ip_sum: u16,
    /// The sum of the pseudo header, the layer-4 header and the payload, for the layer-4 checksum.
    pub(crate) l4_sum: u16,
    /// The Internet checksum of the filler.
    pub(crate) filler_sum: u16,
    /// The length of the filler.
    pub(crate) filler: usize,
    /// The offset of the signature, or `None` if the frame has no room for a signature.
    pub(crate) signature: Option<usize>,
    /// Whether the signature starts in the middle of a 16-bit word of the checksum.
    pub(crate) odd: bool,
    pub(crate) checksums: Checksums,
    /// The time until the next frame of a capture, as a multiple of the mean time.
    pub(crate) gap: f64,
}

/// The offsets of the checksums that are written in each packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checksums {
    /// The offset of the checksum of the outer IPv4 header of a frame with a tunnel.
    pub(crate) outer: Option<usize>,
    /// The offset of the checksum of the inner or only IPv4 header. `None` for IPv6, and for captures, whose header
    /// fields are constant.
    pub(crate) ip: Option<usize>,
    /// The offset of the layer-4 checksum (TCP, UDP, ICMP), or `None` if the frame has no such checksum.
    pub(crate) l4: Option<usize>,
    /// Whether a checksum of 0 is sent as 0xffff.
    pub(crate) is_udp: bool,
}

impl Template {
    /// Creates the template of a frame without a signature.
    pub(crate) fn unsigned(frame: &[u8]) -> Self {
        Self {
            frame: frame.into(),
            outer_sum: 0,
            ip_sum: 0,
            l4_sum: 0,
            filler_sum: 0,
            filler: 0,
            signature: None,
            odd: false,
            checksums: Checksums::default(),
            gap: 1.0,
        }
    }

    /// Writes the fields, the signature and the checksums of a packet. `data` is a copy of the frame.
    #[inline]
    pub(crate) fn write(&self, fields: &mut [Field], signature: &Words, data: &mut [u8]) {
        let (mut ip_sum, mut l4) = (u64::from(self.ip_sum), u64::from(self.l4_sum));
        let mut outer_sum = u64::from(self.outer_sum);
        for field in fields {
            let sum = field.write(data);
            outer_sum += if field.sums.outer { sum } else { 0 };
            ip_sum += if field.sums.ip { sum } else { 0 };
            l4 += if field.sums.l4 { sum } else { 0 };
        }
        if let Some(offset) = self.signature {
            put(data, offset, signature.bytes());
        }
        let sum = fold(signature.sum());
        l4 += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        let Checksums { outer, ip, l4: l4_offset, is_udp } = self.checksums;
        if let Some(offset) = outer {
            put(data, offset, (!fold(outer_sum)).to_be_bytes());
        }
        if let Some(offset) = ip {
            put(data, offset, (!fold(ip_sum)).to_be_bytes());
        }
        // A UDP checksum of 0 would mean that there is no checksum.
        let l4 = !fold(l4);
        if let Some(offset) = l4_offset {
            put(data, offset, (if is_udp && l4 == 0 { 0xffff } else { l4 }).to_be_bytes());
        }
    }
}

/// Writes bytes at an offset, if the packet has these bytes.
#[inline(always)]
pub(crate) fn put<const N: usize>(data: &mut [u8], at: usize, bytes: [u8; N]) {
    if let Some(rest) = data.get_mut(at..)
        && let Some(place) = rest.first_chunk_mut()
    {
        *place = bytes;
    }
}

/// A header field that differs between packets.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) offset: usize,
    /// The width in bytes.
    pub(crate) width: usize,
    pub(crate) sums: Sums,
    pub(crate) cycle: Cycle,
}

impl Field {
    /// Writes the next value of the field. Returns a number that [`fold`] reduces to the ones' complement sum of the
    /// 16-bit words of the value.
    #[inline]
    fn write(&mut self, data: &mut [u8]) -> u64 {
        let value = self.cycle.next();
        match self.width {
            2 => {
                put(data, self.offset, (value as u16).to_be_bytes());
                u64::from(value as u16)
            }
            4 => {
                put(data, self.offset, (value as u32).to_be_bytes());
                u64::from(value as u32)
            }
            width => {
                let bytes = value.to_be_bytes();
                let bytes = &bytes[16 - width..];
                if let Some(place) = data.get_mut(self.offset..self.offset + width) {
                    place.copy_from_slice(bytes);
                }
                u64::from(ones_sum(bytes))
            }
        }
    }
}

/// The checksums that a field is part of.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// The checksum of the outer IPv4 header of a frame with a tunnel.
    pub(crate) outer: bool,
    /// The checksum of the inner or only IPv4 header.
    pub(crate) ip: bool,
    /// The layer-4 checksum.
    pub(crate) l4: bool,
}
