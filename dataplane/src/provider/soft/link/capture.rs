//! Capture files: reading one whole, and writing one.
//!
//! Formats: pcap (draft-ietf-opsawg-pcap) and pcapng (draft-ietf-opsawg-pcapng).

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use pcap_parser::pcapng::{Block, parse_block_be, parse_block_le};
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Linktype, nom, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};

use crate::file::{self, Held};
use crate::provider::soft::link::reel::Frames;
use crate::units::Nanos;

/// The frames of a capture.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    pub(super) frames: Frames,
    times: Vec<Nanos>,
    /// Where the capture is damaged, and how: what stands here comes from before.
    pub(crate) damage: Option<Damage>,
}

/// Where a capture makes no sense any more, and why.
#[derive(Debug)]
pub(crate) struct Damage {
    pub(crate) offset: usize,
    pub(crate) reason: String,
}

/// Why nothing can be read.
type Refusal = String;

/// Bytes of the header of a pcap file; of pcapng the first of them say what it is.
const HEADER: u64 = 24;
/// The most bytes of a capture that is played: of more, lines of memory could not be counted in 32 bits.
const MOST: u64 = 64 << 30;

impl Capture {
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn frame(&self, index: usize) -> &[u8] {
        self.frames.get(index)
    }

    /// When a frame was captured, since the epoch.
    pub(crate) fn time(&self, index: usize) -> Nanos {
        self.times[index]
    }

    fn push(&mut self, frame: &[u8], time: Nanos) {
        self.frames.push(frame);
        self.times.push(time);
    }

    /// Reads a whole file.
    pub(crate) fn read(file: &[u8]) -> Result<Self, Refusal> {
        match file.first_chunk() {
            Some([0x0a, 0x0d, 0x0d, 0x0a]) => Self::read_ng(file),
            Some(_) => Self::read_classic(file),
            None => Err("not a capture: shorter than any header".to_owned()),
        }
    }

    /// Reads a file that is open, up to its end; what is no capture by its first bytes is not read further.
    pub(crate) fn load(file: &File) -> Result<Self, Refusal> {
        let mut bytes = Vec::new();
        file.take(HEADER).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Self::begin(&bytes)?;
        let rest = Self::length(file)?.saturating_sub(HEADER);
        let room = bytes.try_reserve_exact(rest as usize).map_err(|error| error.to_string());
        room?;
        // It may grow while it is read.
        file.take(MOST - HEADER + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Self::fits(bytes.len() as u64)?;
        Self::read(&bytes)
    }

    /// Whether a file may be a capture that can be played, by its first bytes.
    pub(crate) fn probe(path: &Path) -> Result<(), Refusal> {
        let mut head = Vec::new();
        let file = file::open(path).map_err(|error| error.to_string())?;
        (&file).take(HEADER).read_to_end(&mut head).map_err(|error| error.to_string())?;
        Self::begin(&head)?;
        Self::length(&file).map(drop)
    }

    /// The bytes of a file that is not too long to be played; of what is no plain file this is 0.
    fn length(file: &File) -> Result<u64, Refusal> {
        let bytes = file.metadata().map_or(0, |about| about.len());
        Self::fits(bytes).map(|()| bytes)
    }

    fn fits(bytes: u64) -> Result<(), Refusal> {
        match bytes > MOST {
            true => Err(format!("it has more than {} GiB, and is held in memory: take it apart", MOST >> 30)),
            false => Ok(()),
        }
    }

    /// Whether a capture may begin so.
    fn begin(head: &[u8]) -> Result<(), Refusal> {
        match head.first_chunk() {
            Some([0x0a, 0x0d, 0x0d, 0x0a]) => Ok(()),
            _ => Self::read(head).map(drop),
        }
    }

    fn read_classic(file: &[u8]) -> Result<Self, Refusal> {
        let (mut rest, header) =
            parse_pcap_header(file).map_err(|_| "not a capture: neither pcap nor pcapng".to_owned())?;
        if header.network != Linktype::ETHERNET {
            return Err(format!("its link type is {} and not Ethernet", header.network.0));
        }
        let unit = if header.is_nanosecond_precision() { 1 } else { 1_000 };
        let parse = if header.is_bigendian() { parse_pcap_frame_be } else { parse_pcap_frame };
        let mut capture = Self::default();
        while !rest.is_empty() {
            match parse(rest) {
                Ok((after, record)) => {
                    let nanos = u64::from(record.ts_sec) * 1_000_000_000 + u64::from(record.ts_usec) * unit;
                    capture.push(record.data, Nanos(nanos));
                    rest = after;
                }
                Err(error) => {
                    capture.damage = Some(damage(file.len() - rest.len(), error));
                    break;
                }
            }
        }
        Ok(capture)
    }

    fn read_ng(file: &[u8]) -> Result<Self, Refusal> {
        let mut capture = Self::default();
        let mut interfaces: Vec<(u8, i64)> = Vec::new();
        let mut big_endian = false;
        let mut rest = file;
        while !rest.is_empty() {
            let offset = file.len() - rest.len();
            if let Some([0x0a, 0x0d, 0x0d, 0x0a, _, _, _, _, order, ..]) = rest.first_chunk::<12>() {
                big_endian = *order == 0x1a;
            }
            let (after, block) = match if big_endian { parse_block_be(rest) } else { parse_block_le(rest) } {
                Ok(parsed) => parsed,
                Err(error) => {
                    capture.damage = Some(damage(offset, error));
                    break;
                }
            };
            rest = after;
            let interface = |number: u32| interfaces.get(number as usize).copied();
            match block {
                Block::SectionHeader(_) => interfaces.clear(),
                Block::InterfaceDescription(it) if it.linktype == Linktype::ETHERNET => {
                    interfaces.push((it.if_tsresol, it.if_tsoffset));
                }
                Block::InterfaceDescription(it) => {
                    return Err(format!(
                        "the link type of interface {} is {} and not Ethernet",
                        interfaces.len(),
                        it.linktype.0
                    ));
                }
                Block::EnhancedPacket(it) => match interface(it.if_id) {
                    Some((resolution, offset)) => {
                        let time = nanos(u64::from(it.ts_high) << 32 | u64::from(it.ts_low), resolution, offset);
                        capture.push(it.packet_data(), time);
                    }
                    None => {
                        let reason = format!("a packet of interface {}, which is not described", it.if_id);
                        capture.damage = Some(Damage { offset, reason });
                        break;
                    }
                },
                Block::SimplePacket(it) => {
                    let len = it.data.len().min(it.origlen as usize);
                    let time = capture.times.last().copied().unwrap_or(Nanos(0));
                    capture.push(&it.data[..len], time);
                }
                _ => {}
            }
        }
        match (&capture.damage, interfaces.is_empty() && capture.len() == 0) {
            (Some(damage), true) => Err(format!("at byte {}: {}", damage.offset, damage.reason)),
            _ => Ok(capture),
        }
    }
}

fn damage<I>(offset: usize, error: nom::Err<pcap_parser::PcapError<I>>) -> Damage {
    let reason = match error {
        nom::Err::Incomplete(_) => "the file ends in the middle of a record".to_owned(),
        nom::Err::Error(_) | nom::Err::Failure(_) => "no valid record".to_owned(),
    };
    Damage { offset, reason }
}

/// The time of a pcapng stamp: `resolution` is a negative power of 10, or of 2 with the top bit set.
fn nanos(ticks: u64, resolution: u8, offset: i64) -> Nanos {
    let unit = match resolution & 0x80 {
        0 => 10u128.checked_pow(u32::from(resolution)),
        _ => 2u128.checked_pow(u32::from(resolution & 0x7f)),
    };
    let nanos = unit.map_or(0, |unit| u128::from(ticks) * 1_000_000_000 / unit) as u64;
    Nanos(nanos.wrapping_add((offset as u64).wrapping_mul(1_000_000_000)))
}

/// A capture file that is being written: pcapng, or pcap with nanoseconds where the name ends so.
#[derive(Debug)]
pub(super) struct Writer {
    file: Held,
    classic: bool,
    /// The most bytes of a frame that are kept.
    snaplen: u32,
    /// Bytes in the file: whole records.
    written: u64,
    /// What is not in the file yet: the header first, then whole records.
    buffer: Vec<u8>,
    /// Where the header or a record ends in the buffer.
    ends: Vec<u32>,
}

/// So many bytes are kept before they are written.
const BUFFER: usize = 1 << 18;
/// So many records they are at the most: none has fewer than 16 bytes.
const RECORDS: usize = BUFFER / 16;

impl Writer {
    pub(super) fn create(path: &Path, snaplen: u32) -> io::Result<Self> {
        let classic = path.extension().is_some_and(|extension| extension == "pcap" || extension == "cap");
        let header: &[u32] = match classic {
            true => &[0xa1b2_3c4d, 4 << 16 | 2, 0, 0, snaplen, 1],
            false => &[
                0x0a0d_0d0a,
                28,
                0x1a2b_3c4d,
                1,
                u32::MAX,
                u32::MAX,
                28, // section header, version 1.0
                1,
                32,
                1,
                snaplen,
                1 << 16 | 9,
                9,
                0,
                32, // interface description: Ethernet, nanoseconds
            ],
        };
        let (file, ends) = (Held::output(path)?, Vec::with_capacity(RECORDS));
        let mut writer = Self { file, classic, snaplen, written: 0, buffer: Vec::with_capacity(BUFFER), ends };
        writer.put(header);
        writer.ends.push(writer.buffer.len() as u32);
        Ok(writer)
    }

    /// Whether nothing but the header was to be written so far: what was in the file before is still there.
    pub(super) fn is_new(&self) -> bool {
        self.written == 0 && self.ends.len() == 1
    }

    /// Keeps a frame, and writes those that were kept before if there are many.
    pub(super) fn write(&mut self, frame: &[u8], time: Nanos) -> io::Result<()> {
        if self.is_new() {
            self.file.empty()?;
        }
        let original = frame.len() as u32;
        let frame = &frame[..frame.len().min(self.snaplen as usize)];
        let len = frame.len() as u32;
        let padding = frame.len().next_multiple_of(4) - frame.len();
        let block = 32 + len + padding as u32;
        if self.buffer.len() + block as usize > BUFFER {
            self.flush()?;
        }
        match self.classic {
            true => self.put(&[(time.0 / 1_000_000_000) as u32, (time.0 % 1_000_000_000) as u32, len, original]),
            false => self.put(&[6, block, 0, (time.0 >> 32) as u32, time.0 as u32, len, original]),
        }
        self.buffer.extend_from_slice(frame);
        if !self.classic {
            self.buffer.extend_from_slice(&[0; 3][..padding]);
            self.put(&[block]);
        }
        self.ends.push(self.buffer.len() as u32);
        Ok(())
    }

    fn put(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.buffer.extend_from_slice(&word.to_le_bytes()));
    }

    /// Writes what was kept.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.is_new() {
            self.file.empty()?;
        }
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        self.ends.clear();
        Ok(())
    }

    /// After a failure: cuts the file to what is whole in it. Returns how many frames that were kept are not there.
    pub(super) fn abandon(&mut self) -> u64 {
        let reached = (&*self.file).stream_position().unwrap_or(self.written).saturating_sub(self.written);
        let whole = self.ends.partition_point(|end| u64::from(*end) <= reached);
        let end = whole.checked_sub(1).map_or(0, |last| u64::from(self.ends[last]));
        // If it cannot be cut, a reader finds its last record damaged. The header is no frame.
        let _ = self.file.set_len(self.written + end);
        let frames = |records: usize| records - usize::from(self.written == 0 && records > 0);
        let lost = frames(self.ends.len()) - frames(whole);
        self.written += end;
        self.buffer.clear();
        self.ends.clear();
        lost as u64
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A run that was never finished has nobody to tell, and one that did not even start leaves the file as it was.
        if !self.is_new() {
            let _ = self.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn captures() -> impl Strategy<Value = Vec<u8>> {
        let magic = prop_oneof![
            Just(vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 1, 0, 0, 0]),
            Just(vec![0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 0, 1]),
            Just(
                [
                    [0x0au8, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0].as_slice(),
                    &[255; 8],
                    &[28, 0, 0, 0]
                ]
                .concat()
            ),
            Just(vec![]),
        ];
        let small = prop_oneof![3 => 0u8..40, 1 => any::<u8>()];
        (magic, prop::collection::vec(small, 0..200)).prop_map(|(magic, rest)| [magic, rest].concat())
    }

    proptest! {
        #[test]
        fn garbage_is_no_panic(bytes in captures()) {
            if let Ok(capture) = Capture::read(&bytes) {
                prop_assert!((0..capture.len()).map(|index| capture.frame(index).len()).sum::<usize>() <= bytes.len());
            }
        }
    }

    /// What is longer than the snap length is cut, and its own length kept.
    #[test]
    fn the_snap_length_cuts_frames() {
        for (name, lengths) in [("pcap", 24 + 8), ("pcapng", 60 + 20)] {
            let path = std::env::temp_dir().join(format!("snap-{}", std::process::id())).with_extension(name);
            let mut writer = Writer::create(&path, 5).unwrap();
            writer.write(&[1; 9], Nanos(0)).unwrap();
            writer.write(&[2; 5], Nanos(0)).unwrap();
            writer.write(&[3; 2], Nanos(0)).unwrap();
            writer.flush().unwrap();
            let file = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_eq!(file[lengths..lengths + 8], [5, 0, 0, 0, 9, 0, 0, 0], "{name}");
            let capture = Capture::read(&file).unwrap();
            let frames: Vec<&[u8]> = (0..capture.len()).map(|index| capture.frame(index)).collect();
            assert_eq!(frames, [&[1; 5][..], &[2; 5], &[3; 2]], "{name}");
        }
    }

    /// Cut anywhere, a capture has the frames that are whole, and damage unless the cut is between two.
    #[test]
    fn a_cut_leaves_what_is_whole() {
        for classic in [true, false] {
            let path = std::env::temp_dir().join(format!("capture-{}-{classic}", std::process::id()));
            let path = path.with_extension(if classic { "pcap" } else { "pcapng" });
            let mut writer = Writer::create(&path, 33).unwrap();
            for number in 0..3 {
                writer.write(&[number; 33], Nanos(u64::from(number) * 5_000_000_001)).unwrap();
            }
            writer.flush().unwrap();
            let file = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let (header, each) = if classic { (24, 49) } else { (60, 68) };
            assert_eq!(file.len(), header + 3 * each);
            for cut in header..=file.len() {
                let capture = Capture::read(&file[..cut]).unwrap();
                let (whole, rest) = ((cut - header) / each, (cut - header) % each);
                assert_eq!((capture.len(), capture.damage.is_some()), (whole, rest > 0), "{path:?} cut at {cut}");
                if let Some(damage) = &capture.damage {
                    assert_eq!(damage.offset, header + whole * each);
                }
                for index in 0..whole {
                    assert_eq!(capture.frame(index), [index as u8; 33]);
                    assert_eq!(capture.time(index), Nanos(index as u64 * 5_000_000_001));
                }
            }
        }
    }
}
