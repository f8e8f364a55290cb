//! Reads whole capture files, and writes capture files.
//!
//! Formats: pcap (draft-ietf-opsawg-pcap) and pcapng (draft-ietf-opsawg-pcapng).

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use pcap_parser::pcapng::{Block, parse_block_be, parse_block_le};
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{Linktype, nom, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};

use crate::link::reel::Frames;
use dataplane_core::file::{self, LockedFile, Readers};
use dataplane_core::pcapng::{self, CapturedPacket};
use dataplane_core::units::Nanos;

/// The frames of a capture.
#[derive(Debug, Default)]
pub struct Capture {
    pub(super) frames: Frames,
    times: Vec<Nanos>,
    /// The damage of the capture, if there is any. `frames` contains the frames before the damaged position.
    pub damage: Option<Damage>,
}

/// The damage of a capture file: everything from this byte offset on is unreadable, for this reason.
#[derive(Debug)]
pub struct Damage {
    pub offset: usize,
    pub reason: String,
}

/// The reason why a file cannot be read at all.
type Refusal = String;

/// The size of a pcap file header, in bytes. The first 24 bytes of a pcapng file are also enough to recognize the file.
const HEADER: u64 = 24;
/// The size of a pcapng block without content, in bytes.
const SMALLEST_BLOCK: u32 = 12;
/// Maximum size of a capture that can be played, in bytes. In memory, each frame starts at a new cache line, and the
/// index of that cache line has 32 bits. Larger captures could need larger indexes.
const MOST: u64 = 64 << 30;

// The field of a pcap file that holds the link type (draft-ietf-opsawg-pcap). The highest four bits are the length of
// the frame check sequence (FCS) of each frame, in units of two bytes. The length is valid only if another bit is set.
const LINK_TYPE: u32 = 0xffff;
const HAS_FCS_LENGTH: u32 = 1 << 26;
const FCS_WORDS: u32 = 28;

impl Capture {
    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether the capture has no frames.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of a frame.
    ///
    /// # Panics
    /// If `index` is not below the number of frames.
    pub fn frame(&self, index: usize) -> &[u8] {
        self.frames.get(index)
    }

    /// Returns the capture time of a frame, since the Unix epoch.
    pub fn time(&self, index: usize) -> Nanos {
        self.times[index]
    }

    fn push(&mut self, frame: &[u8], time: Nanos) {
        self.frames.push(frame);
        self.times.push(time);
    }

    /// Parses the content of a whole file.
    pub fn read(file: &[u8]) -> Result<Self, Refusal> {
        match file.first_chunk() {
            Some([0x0a, 0x0d, 0x0d, 0x0a]) => Self::read_ng(file),
            Some(_) => Self::read_classic(file),
            None => Err("not a capture: shorter than any header".to_owned()),
        }
    }

    /// Reads an open file up to its end. Fails after the first bytes if the file is not a capture.
    pub fn load(file: &File) -> Result<Self, Refusal> {
        let mut bytes = Vec::new();
        file.take(HEADER).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Self::begin(&bytes)?;
        let rest = Self::length(file)?.saturating_sub(HEADER);
        let room = bytes.try_reserve_exact(rest as usize).map_err(|error| error.to_string());
        room?;
        // The file may grow during the read.
        file.take(MOST - HEADER + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Self::fits(bytes.len() as u64)?;
        Self::read(&bytes)
    }

    /// Checks whether a file is a capture that can be played. Reads only the first bytes and the size of the file.
    pub fn probe(path: &Path) -> Result<(), Refusal> {
        let mut head = Vec::new();
        let file = file::open(path).map_err(|error| error.to_string())?;
        (&file).take(HEADER).read_to_end(&mut head).map_err(|error| error.to_string())?;
        Self::begin(&head)?;
        Self::length(&file).map(drop)
    }

    /// Returns the size of a file, or 0 if its size is unknown. Fails if the file is too large to be played.
    fn length(file: &File) -> Result<u64, Refusal> {
        let bytes = file.metadata().map_or(0, |about| about.len());
        Self::fits(bytes).map(|()| bytes)
    }

    fn fits(bytes: u64) -> Result<(), Refusal> {
        match bytes > MOST {
            true => Err(format!(
                "larger than {} GiB, but a capture must fit into memory; help: split the file, for example \
                 with `editcap -c`",
                MOST >> 30
            )),
            false => Ok(()),
        }
    }

    /// Checks that the first bytes can be the start of a capture.
    fn begin(head: &[u8]) -> Result<(), Refusal> {
        match head.first_chunk() {
            Some([0x0a, 0x0d, 0x0d, 0x0a]) => Ok(()),
            _ => Self::read(head).map(drop),
        }
    }

    fn read_classic(file: &[u8]) -> Result<Self, Refusal> {
        let (mut rest, header) =
            parse_pcap_header(file).map_err(|_| "not a capture: neither pcap nor pcapng".to_owned())?;
        // The field is unsigned in the file, but signed in the parser.
        let network = header.network.0 as u32;
        let link_type = network & LINK_TYPE;
        if link_type != Linktype::ETHERNET.0 as u32 {
            return Err(format!("the link type is {link_type}, not Ethernet"));
        }
        let fcs = if network & HAS_FCS_LENGTH != 0 { 2 * (network >> FCS_WORDS) } else { 0 };
        let unit = if header.is_nanosecond_precision() { 1 } else { 1_000 };
        let parse = if header.is_bigendian() { parse_pcap_frame_be } else { parse_pcap_frame };
        let mut capture = Self::default();
        while !rest.is_empty() {
            match parse(rest) {
                Ok((after, record)) => {
                    let nanos = u64::from(record.ts_sec) * 1_000_000_000 + u64::from(record.ts_usec) * unit;
                    let length = record.data.len().min(record.origlen.saturating_sub(fcs) as usize);
                    capture.push(&record.data[..length], Nanos(nanos));
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
            // The parser subtracts `SMALLEST_BLOCK` from the length, and panics in debug builds if the length is
            // smaller.
            if let Some([_, _, _, _, length @ ..]) = rest.first_chunk::<8>() {
                let length = if big_endian { u32::from_be_bytes(*length) } else { u32::from_le_bytes(*length) };
                if length < SMALLEST_BLOCK {
                    capture.damage = Some(Damage { offset, reason: "no valid record".to_owned() });
                    break;
                }
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
                        it.linktype.0 as u32
                    ));
                }
                Block::EnhancedPacket(it) => match interface(it.if_id) {
                    Some((resolution, offset)) => {
                        let time = nanos(u64::from(it.ts_high) << 32 | u64::from(it.ts_low), resolution, offset);
                        capture.push(it.packet_data(), time);
                    }
                    None => {
                        let reason =
                            format!("a packet refers to interface {}, which has no description block", it.if_id);
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
        match (&capture.damage, interfaces.is_empty() && capture.is_empty()) {
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

/// Converts a pcapng timestamp. The unit of `ticks` is 10^-`resolution` seconds. If the top bit of `resolution` is set,
/// the unit is 2^-n seconds, where n is the value of the other bits. `offset` is in seconds.
fn nanos(ticks: u64, resolution: u8, offset: i64) -> Nanos {
    let unit = match resolution & 0x80 {
        0 => 10u128.checked_pow(u32::from(resolution)),
        _ => 2u128.checked_pow(u32::from(resolution & 0x7f)),
    };
    let nanos = unit.map_or(0, |unit| u128::from(ticks) * 1_000_000_000 / unit) as u64;
    Nanos(nanos.wrapping_add((offset as u64).wrapping_mul(1_000_000_000)))
}

/// A writer for a capture file: pcap with nanoseconds if the name ends in `.pcap` or `.cap`, otherwise pcapng.
#[derive(Debug)]
pub(super) struct Writer {
    file: LockedFile,
    classic: bool,
    /// Maximum number of bytes of a frame in the file.
    snaplen: u32,
    /// The number of bytes in the file: the header and whole records.
    written: u64,
    /// Data that is not yet in the file: whole records and, before the first flush, the file header.
    buffer: Vec<u8>,
    /// Offsets in `buffer` at which the header or a record ends.
    ends: Vec<u32>,
}

/// The size of the write buffer, in bytes.
const BUFFER: usize = 1 << 18;
/// Maximum number of buffered records. No record has fewer than 16 bytes.
const RECORDS: usize = BUFFER / 16;

impl Writer {
    pub(super) fn create(path: &Path, readers: Readers, snaplen: u32) -> io::Result<Self> {
        let classic = path.extension().is_some_and(|extension| extension == "pcap" || extension == "cap");
        let (file, ends) = (LockedFile::output(path, readers)?, Vec::with_capacity(RECORDS));
        let mut writer = Self { file, classic, snaplen, written: 0, buffer: Vec::with_capacity(BUFFER), ends };
        if classic {
            writer.put(&[0xa1b2_3c4d, 4 << 16 | 2, 0, 0, snaplen, 1]);
        } else {
            pcapng::section("", &mut writer.buffer);
            pcapng::interface("", "", snaplen, &mut writer.buffer);
        }
        writer.ends.push(writer.buffer.len() as u32);
        Ok(writer)
    }

    /// Returns `true` until the first call of [`Writer::write`] or [`Writer::flush`]. Until this call, the file keeps
    /// its previous content.
    pub(super) fn is_new(&self) -> bool {
        self.written == 0 && self.ends.len() == 1
    }

    /// Buffers a frame. Flushes the buffer first if the frame does not fit.
    pub(super) fn write(&mut self, frame: &[u8], time: Nanos) -> io::Result<()> {
        if self.is_new() {
            self.file.truncate()?;
        }
        let original = frame.len() as u32;
        let frame = &frame[..frame.len().min(self.snaplen as usize)];
        let packet =
            CapturedPacket { interface: 0, nanos: time.0, original, bytes: frame, comment: &[], direction: None };
        if self.buffer.len() + packet.size() > BUFFER {
            self.flush()?;
        }
        if self.classic {
            let (seconds, nanos) = (time.0 / 1_000_000_000, time.0 % 1_000_000_000);
            self.put(&[seconds as u32, nanos as u32, frame.len() as u32, original]);
            self.buffer.extend_from_slice(frame);
        } else {
            pcapng::packet(&packet, &mut self.buffer);
        }
        self.ends.push(self.buffer.len() as u32);
        Ok(())
    }

    fn put(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.buffer.extend_from_slice(&word.to_le_bytes()));
    }

    /// Writes the buffered data to the file.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.is_new() {
            self.file.truncate()?;
        }
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        self.ends.clear();
        Ok(())
    }

    /// Truncates the file after its last whole record. Called after a write has failed. Returns the number of buffered
    /// frames that are missing in the file.
    pub(super) fn abandon(&mut self) -> u64 {
        let reached = (&*self.file).stream_position().unwrap_or(self.written).saturating_sub(self.written);
        let whole = self.ends.partition_point(|end| u64::from(*end) <= reached);
        let end = whole.checked_sub(1).map_or(0, |last| u64::from(self.ends[last]));
        // If the truncation fails, readers report the last record as damaged.
        let _ = self.file.set_len(self.written + end);
        // If nothing is in the file yet, the first entry of `ends` is the end of the file header, which is not a frame.
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
        // Errors are ignored here, because no caller can handle them. If nothing was written, the file keeps its
        // previous content.
        if !self.is_new() {
            let _ = self.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use dataplane_testing::Folder;

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
        fn invalid_files_do_not_panic(bytes in captures()) {
            if let Ok(capture) = Capture::read(&bytes) {
                prop_assert!((0..capture.len()).map(|index| capture.frame(index).len()).sum::<usize>() <= bytes.len());
            }
        }
    }

    /// A frame longer than the snap length is truncated, and its original length is kept.
    #[test]
    fn snap_length_truncates_frames_and_keeps_the_original_length() {
        for (name, lengths) in [("pcap", 24 + 8), ("pcapng", 60 + 20)] {
            let folder = Folder::new();
            let path = folder.file("snap").with_extension(name);
            let mut writer = Writer::create(&path, Readers::Owner, 5).unwrap();
            writer.write(&[1; 9], Nanos(0)).unwrap();
            writer.write(&[2; 5], Nanos(0)).unwrap();
            writer.write(&[3; 2], Nanos(0)).unwrap();
            writer.flush().unwrap();
            let file = std::fs::read(&path).unwrap();
            assert_eq!(file[lengths..lengths + 8], [5, 0, 0, 0, 9, 0, 0, 0], "{name}");
            let capture = Capture::read(&file).unwrap();
            let frames: Vec<&[u8]> = (0..capture.len()).map(|index| capture.frame(index)).collect();
            assert_eq!(frames, [&[1; 5][..], &[2; 5], &[3; 2]], "{name}");
        }
    }

    #[test]
    fn frame_check_sequence_is_removed_from_frames() {
        let folder = Folder::new();
        let path = folder.file("fcs.pcap");
        let mut writer = Writer::create(&path, Readers::Owner, 62).unwrap();
        writer.write(&[1; 60], Nanos(0)).unwrap();
        writer.write(&[2; 68], Nanos(0)).unwrap();
        writer.flush().unwrap();
        let mut file = std::fs::read(&path).unwrap();
        // Wireshark writes the first value for frames with an FCS of four bytes. The second value has no valid length.
        for (link_type, lengths) in [(0x2400_0001_u32, [56, 62]), (0x9000_0001, [60, 62])] {
            file[20..24].copy_from_slice(&link_type.to_le_bytes());
            let capture = Capture::read(&file).unwrap();
            assert_eq!([0, 1].map(|index| capture.frame(index).len()), lengths, "{link_type:x}");
        }
        file[20..24].copy_from_slice(&0x2400_0071_u32.to_le_bytes());
        assert_eq!(Capture::read(&file).unwrap_err(), "the link type is 113, not Ethernet");
    }

    /// A truncated capture still returns its whole frames. The capture reports damage if the cut is inside a record.
    #[test]
    fn truncated_file_keeps_its_whole_frames() {
        for classic in [true, false] {
            let folder = Folder::new();
            let path = folder.file(if classic { "cut.pcap" } else { "cut.pcapng" });
            let mut writer = Writer::create(&path, Readers::Owner, 33).unwrap();
            for number in 0..3 {
                writer.write(&[number; 33], Nanos(u64::from(number) * 5_000_000_001)).unwrap();
            }
            writer.flush().unwrap();
            let file = std::fs::read(&path).unwrap();
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
