//! Writes the packets of a capture to a pcapng file. The file has one interface for each clock that provides timestamps
//! of packets. The description of the interface names the clock.

use std::io::{self, Read, Seek, Write};

use dataplane_core::clock::ClockSource;
use dataplane_core::pcapng::{self, CapturedPacket, ENHANCED_PACKET};

/// A packet to write.
pub(super) struct Record<'a> {
    /// The timestamp, in nanoseconds since 1970.
    pub(super) nanos: u64,
    /// The clock of the timestamp.
    pub(super) source: ClockSource,
    /// The length of the original packet in bytes.
    pub(super) original: u32,
    /// The captured part of the packet.
    pub(super) bytes: &'a [u8],
    /// The comment. An empty slice means no comment.
    pub(super) comment: &'a [u8],
}

impl<'a> Record<'a> {
    fn packet(&self, interface: u32) -> CapturedPacket<'a> {
        let Self { nanos, original, bytes, comment, .. } = *self;
        CapturedPacket { interface, nanos, original, bytes, comment, direction: None }
    }
}

/// Returns the end of the last complete block in a file of `len` bytes, and the number of packets in the complete
/// blocks after the offset `from`. The offset must be the start of a block.
pub(super) fn last_complete_block(file: impl Read + Seek, from: u64, len: u64) -> io::Result<(u64, u64)> {
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

/// Writes the blocks of a file.
pub(super) struct CaptureWriter<W> {
    out: W,
    name: String,
    snaplen: u32,
    /// The clocks that have an interface. The position is the interface number.
    sources: Vec<ClockSource>,
    /// The block that is written next.
    block: Vec<u8>,
    written: u64,
}

impl<W: Write> CaptureWriter<W> {
    /// Writes the section header.
    pub(super) fn new(out: W, name: &str, snaplen: u32) -> io::Result<Self> {
        let (name, block) = (name.to_owned(), Vec::with_capacity(4096));
        let mut writer = Self { out, name, snaplen, sources: Vec::new(), block, written: 0 };
        pcapng::section(concat!("dataplane ", env!("CARGO_PKG_VERSION")), &mut writer.block);
        writer.write()?;
        Ok(writer)
    }

    /// Returns the interface number of a clock. The first call for a clock writes the interface description.
    fn interface(&mut self, source: ClockSource) -> io::Result<u32> {
        let known = self.sources.iter().position(|known| *known == source);
        if known.is_none() {
            self.describe(source);
            self.write()?;
            self.sources.push(source);
        }
        Ok(known.unwrap_or(self.sources.len() - 1) as u32)
    }

    /// Writes the description of the interface of a clock to `block`.
    fn describe(&mut self, source: ClockSource) {
        self.block.clear();
        pcapng::interface(&self.name, &format!("time stamps: {source}"), self.snaplen, &mut self.block);
    }

    /// Returns the number of bytes that a packet adds to the file.
    pub(super) fn cost(&mut self, record: &Record<'_>) -> u64 {
        let mut cost = record.packet(0).size();
        if !self.sources.contains(&record.source) {
            self.describe(record.source);
            cost += self.block.len();
        }
        cost as u64
    }

    /// Returns the number of bytes written so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Writes a packet.
    pub(super) fn packet(&mut self, record: &Record<'_>) -> io::Result<()> {
        let interface = self.interface(record.source)?;
        self.block.clear();
        pcapng::packet(&record.packet(interface), &mut self.block);
        self.write()
    }

    /// Writes the counts of received packets and of packets missing from the file, and flushes the output.
    pub(super) fn finish(&mut self, nanos: u64, received: u64, dropped: u64) -> io::Result<()> {
        if self.sources.is_empty() {
            self.interface(ClockSource::None)?;
        }
        self.block.clear();
        pcapng::statistics(0, nanos, received, dropped, &mut self.block);
        self.write()?;
        self.flush()
    }

    /// Flushes the output.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Returns the output without flushing it.
    pub(super) fn into_inner(self) -> W {
        self.out
    }

    /// Writes the block to the output.
    fn write(&mut self) -> io::Result<()> {
        self.out.write_all(&self.block)?;
        self.written += self.block.len() as u64;
        Ok(())
    }
}
