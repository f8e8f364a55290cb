//! Writes pcapng files (draft-ietf-opsawg-pcapng), little-endian, of Ethernet: an interface for each clock that packets
//! are stamped by, which its description names.

use std::io::{self, Read, Seek, Write};

use crate::clock::ClockSource;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

/// With the reserved 16 bits that follow the link type.
const LINKTYPE_ETHERNET: u32 = 1;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const USER_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_TEXT: u16 = 3;
const TIME_RESOLUTION: u16 = 9;
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;

/// Bytes of the statistics at the end of the file.
pub(super) const STATISTICS: u64 = 52;

/// A packet to be written.
pub(super) struct Record<'a> {
    /// Nanoseconds since 1970.
    pub(super) nanos: u64,
    /// The clock that said so.
    pub(super) source: ClockSource,
    /// Bytes that the packet had.
    pub(super) original: u32,
    /// Those that were kept.
    pub(super) bytes: &'a [u8],
    /// What to say of it; empty: nothing.
    pub(super) comment: &'a [u8],
}

impl Record<'_> {
    /// Bytes that its block takes.
    fn size(&self) -> u64 {
        let comment = match self.comment.len() {
            0 => 0,
            len => 4 + len.next_multiple_of(4) + 4,
        };
        (32 + self.bytes.len().next_multiple_of(4) + comment) as u64
    }
}

/// Where the last block ends that is whole, in a file of so many bytes, and how many packets there are from `from` on, which
/// is where a block begins.
pub(super) fn whole(file: impl Read + Seek, from: u64, len: u64) -> io::Result<(u64, u64)> {
    let mut file = io::BufReader::new(file);
    file.seek(io::SeekFrom::Start(from))?;
    let (mut end, mut packets) = (from, 0);
    while end + 12 <= len {
        let mut head = [0; 8];
        file.read_exact(&mut head)?;
        let (kind, size) = (u32::from_le_bytes([head[0], head[1], head[2], head[3]]), &head[4..]);
        let size = u32::from_le_bytes([size[0], size[1], size[2], size[3]]);
        if size < 12 || end + u64::from(size) > len {
            break;
        }
        file.seek_relative(i64::from(size) - 8)?;
        end += u64::from(size);
        packets += u64::from(kind == ENHANCED_PACKET);
    }
    Ok((end, packets))
}

/// Writes blocks. Every block is put together in memory first, as its length comes before its content.
pub(super) struct Writer<W> {
    out: W,
    name: String,
    snaplen: u32,
    /// The clocks that there are interfaces for, by their numbers.
    sources: Vec<ClockSource>,
    block: Vec<u8>,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Writes the section header.
    pub(super) fn new(out: W, name: &str, snaplen: u32) -> io::Result<Self> {
        let (name, block) = (name.to_owned(), Vec::with_capacity(4096));
        let mut writer = Self { out, name, snaplen, sources: Vec::new(), block, written: 0 };
        writer.begin(SECTION_HEADER);
        writer.put(&BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0, and a section of unknown length.
        writer.put(&[1, 0, 0, 0]);
        writer.put(&u64::MAX.to_le_bytes());
        writer.option(USER_APPLICATION, concat!("dataplane ", env!("CARGO_PKG_VERSION")).as_bytes());
        writer.option(END_OF_OPTIONS, &[]);
        writer.end()?;
        Ok(writer)
    }

    /// The number of the interface for a clock; it is described when it comes first.
    fn interface(&mut self, source: ClockSource) -> io::Result<u32> {
        let known = self.sources.iter().position(|known| *known == source);
        if known.is_none() {
            self.describe(source);
            self.end()?;
            self.sources.push(source);
        }
        Ok(known.unwrap_or(self.sources.len() - 1) as u32)
    }

    /// Puts the description of an interface together, but for its end.
    fn describe(&mut self, source: ClockSource) {
        let name = std::mem::take(&mut self.name);
        self.begin(INTERFACE_DESCRIPTION);
        self.put(&LINKTYPE_ETHERNET.to_le_bytes());
        self.put(&self.snaplen.to_le_bytes());
        self.option(INTERFACE_NAME, name.as_bytes());
        self.option(INTERFACE_TEXT, format!("time stamps: {source}").as_bytes());
        // Units of ten to the minus ninth second.
        self.option(TIME_RESOLUTION, &[9]);
        self.option(END_OF_OPTIONS, &[]);
        self.name = name;
    }

    /// Bytes that a packet takes.
    pub(super) fn cost(&mut self, record: &Record<'_>) -> u64 {
        let mut cost = record.size();
        if !self.sources.contains(&record.source) {
            self.describe(record.source);
            cost += self.block.len() as u64 + 4;
        }
        cost
    }

    /// Bytes written so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Writes a packet.
    pub(super) fn packet(&mut self, record: &Record<'_>) -> io::Result<()> {
        let interface = self.interface(record.source)?;
        self.begin(ENHANCED_PACKET);
        self.put(&interface.to_le_bytes());
        self.put_time(record.nanos);
        self.put(&(record.bytes.len() as u32).to_le_bytes());
        self.put(&record.original.to_le_bytes());
        self.put(record.bytes);
        if !record.comment.is_empty() {
            self.option(COMMENT, record.comment);
            self.option(END_OF_OPTIONS, &[]);
        }
        self.end()
    }

    /// Writes how many packets there were, and how many of them are not in the file; then everything that is buffered.
    pub(super) fn finish(&mut self, nanos: u64, received: u64, dropped: u64) -> io::Result<()> {
        if self.sources.is_empty() {
            self.interface(ClockSource::None)?;
        }
        self.begin(INTERFACE_STATISTICS);
        self.put(&0u32.to_le_bytes());
        self.put_time(nanos);
        self.option(RECEIVED, &received.to_le_bytes());
        self.option(DROPPED, &dropped.to_le_bytes());
        self.option(END_OF_OPTIONS, &[]);
        self.end()?;
        self.flush()
    }

    /// Writes everything that is buffered.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// What was written to, as it is.
    pub(super) fn into_inner(self) -> W {
        self.out
    }

    /// The type, and room for the length.
    fn begin(&mut self, kind: u32) {
        self.block.clear();
        self.block.extend(kind.to_le_bytes());
        self.block.extend([0; 4]);
    }

    /// Bytes, padded to 32 bits.
    fn put(&mut self, bytes: &[u8]) {
        self.block.extend_from_slice(bytes);
        self.block.resize(self.block.len().next_multiple_of(4), 0);
    }

    /// A time stamp: its upper half comes first.
    fn put_time(&mut self, nanos: u64) {
        self.put(&((nanos >> 32) as u32).to_le_bytes());
        self.put(&(nanos as u32).to_le_bytes());
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        // No option here is longer than a name from the config; one beyond 16 bits is cut.
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        self.block.extend(code.to_le_bytes());
        self.block.extend((value.len() as u16).to_le_bytes());
        self.put(value);
    }

    /// The length, at both ends.
    fn end(&mut self) -> io::Result<()> {
        let len = (self.block.len() as u32 + 4).to_le_bytes();
        self.block[4..8].copy_from_slice(&len);
        self.block.extend(len);
        self.out.write_all(&self.block)?;
        self.written += self.block.len() as u64;
        Ok(())
    }
}
