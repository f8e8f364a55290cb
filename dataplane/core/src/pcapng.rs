//! Encoding of pcapng files (draft-ietf-opsawg-pcapng): little-endian, link type Ethernet, times in nanoseconds.
//!
//! Each function appends one block to a buffer. A file starts with a [`section`]. The [`interface`] blocks of a section
//! are numbered from 0 in the order of the blocks. The block of an interface must precede the packets of the interface.

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
/// The type of a block that contains a packet.
pub const ENHANCED_PACKET: u32 = 6;

/// The link type, together with the 16 reserved bits that follow it.
const LINKTYPE_ETHERNET: u32 = 1;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const FLAGS: u16 = 2;
const USER_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_TEXT: u16 = 3;
const TIME_RESOLUTION: u16 = 9;
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;

/// The length of a statistics block in bytes.
pub const STATISTICS_BLOCK_LEN: u64 = 52;

/// A captured packet.
#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'a> {
    /// The number of the interface.
    pub interface: u32,
    /// The timestamp, in nanoseconds since 1970.
    pub nanos: u64,
    /// The length of the original packet in bytes.
    pub original: u32,
    /// The captured part of the packet.
    pub bytes: &'a [u8],
    /// The comment. Empty for none.
    pub comment: &'a [u8],
    /// Whether the interface received or sent the packet. `None` if this is unknown.
    pub direction: Option<Direction>,
}

/// The direction of a packet on its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The interface received the packet.
    Inbound = 1,
    /// The interface sent the packet.
    Outbound = 2,
}

impl CapturedPacket<'_> {
    /// Returns the length of the packet block in bytes.
    pub fn size(&self) -> usize {
        let comment = match self.comment.len() {
            0 => 0,
            len => 4 + len.next_multiple_of(4),
        };
        let flags = if self.direction.is_some() { 8 } else { 0 };
        let options = comment + flags;
        32 + self.bytes.len().next_multiple_of(4) + options + if options > 0 { 4 } else { 0 }
    }
}

/// Appends the section header. `application` is the name of the program. Empty for none.
pub fn section(application: &str, into: &mut Vec<u8>) {
    commented_section(application, "", into);
}

/// Appends the section header with a comment. Empty texts are not written.
pub fn commented_section(application: &str, comment: &str, into: &mut Vec<u8>) {
    let mut block = Block::begin(SECTION_HEADER, into);
    block.word(BYTE_ORDER_MAGIC);
    // Version 1.0, and a section of unknown length.
    block.words([1, u32::MAX, u32::MAX]);
    block.options([(COMMENT, comment.as_bytes()), (USER_APPLICATION, application.as_bytes())]);
    block.end();
}

/// Appends the description of an interface. `snaplen` is the largest captured length of a packet in bytes. Empty texts
/// are not written.
pub fn interface(name: &str, description: &str, snaplen: u32, into: &mut Vec<u8>) {
    let mut block = Block::begin(INTERFACE_DESCRIPTION, into);
    block.words([LINKTYPE_ETHERNET, snaplen]);
    block.options([
        (INTERFACE_NAME, name.as_bytes()),
        (INTERFACE_TEXT, description.as_bytes()),
        // The resolution is 10^-9 seconds.
        (TIME_RESOLUTION, &[9]),
    ]);
    block.end();
}

/// Appends a packet.
#[inline]
pub fn packet(packet: &CapturedPacket<'_>, into: &mut Vec<u8>) {
    let mut block = Block::begin(ENHANCED_PACKET, into);
    block.word(packet.interface);
    block.time(packet.nanos);
    block.words([packet.bytes.len() as u32, packet.original]);
    block.bytes(packet.bytes);
    let flags = packet.direction.map(|direction| (direction as u32).to_le_bytes());
    block.options([(COMMENT, packet.comment), (FLAGS, flags.as_ref().map_or(&[], |flags| flags))]);
    block.end();
}

/// Appends the statistics of an interface. `nanos` is the time of the statistics, in nanoseconds since 1970. `received`
/// is the number of received packets. `dropped` is the number of these packets that are missing in the file.
pub fn statistics(interface: u32, nanos: u64, received: u64, dropped: u64, into: &mut Vec<u8>) {
    let mut block = Block::begin(INTERFACE_STATISTICS, into);
    block.word(interface);
    block.time(nanos);
    block.options([(RECEIVED, &received.to_le_bytes()), (DROPPED, &dropped.to_le_bytes())]);
    block.end();
}

/// A block under construction.
struct Block<'a> {
    into: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Block<'a> {
    /// Starts a block with its type and space for its length.
    fn begin(kind: u32, into: &'a mut Vec<u8>) -> Self {
        let start = into.len();
        let mut block = Self { into, start };
        block.words([kind, 0]);
        block
    }

    fn word(&mut self, word: u32) {
        self.into.extend_from_slice(&word.to_le_bytes());
    }

    fn words<const N: usize>(&mut self, words: [u32; N]) {
        words.into_iter().for_each(|word| self.word(word));
    }

    /// Appends bytes, padded to a multiple of 4.
    fn bytes(&mut self, bytes: &[u8]) {
        self.into.extend_from_slice(bytes);
        self.into.extend_from_slice(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()]);
    }

    /// Appends a timestamp, upper half first.
    fn time(&mut self, nanos: u64) {
        self.words([(nanos >> 32) as u32, nanos as u32]);
    }

    /// Appends the options that are not empty, and the end of the options if there are any.
    fn options<const N: usize>(&mut self, options: [(u16, &[u8]); N]) {
        let given = options.into_iter().filter(|(_, value)| !value.is_empty());
        let count = given.map(|(code, value)| self.option(code, value)).count();
        if count > 0 {
            self.option(END_OF_OPTIONS, &[]);
        }
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        // The length field has 16 bits, so a longer value is truncated.
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        self.word(u32::from(code) | (value.len() as u32) << 16);
        self.bytes(value);
    }

    /// Ends the block: writes its length at both ends.
    fn end(mut self) {
        let len = (self.into.len() - self.start + 4) as u32;
        self.into[self.start + 4..self.start + 8].copy_from_slice(&len.to_le_bytes());
        self.word(len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_without_options_have_no_end_of_options() {
        let mut file = Vec::new();
        section("", &mut file);
        interface("", "", 96, &mut file);
        let words: Vec<u32> = file.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let header = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
        assert_eq!(words, [&header[..], &[1, 32, 1, 96, 1 << 16 | 9, 9, 0, 32]].concat());
    }

    #[test]
    fn size_of_a_packet_is_the_length_of_its_block() {
        let directions = [None, Some(Direction::Inbound), Some(Direction::Outbound)];
        for (comment, direction) in ["", "a", "stage.reason"].into_iter().flat_map(|it| directions.map(|way| (it, way)))
        {
            for length in 0..9 {
                let captured = CapturedPacket {
                    interface: 1,
                    nanos: 1 << 40 | 7,
                    original: 64,
                    bytes: &[0xab; 9][..length],
                    comment: comment.as_bytes(),
                    direction,
                };
                let mut file = vec![1, 2, 3, 4];
                packet(&captured, &mut file);
                let block = &file[4..];
                assert_eq!(block.len(), captured.size());
                assert_eq!(block[4..8], (captured.size() as u32).to_le_bytes());
                assert_eq!(block[block.len() - 4..], block[4..8]);
                let flags = direction.map(|direction| [2, 0, 4, 0, direction as u8, 0, 0, 0]);
                assert!(flags.is_none_or(|flags| block.windows(8).any(|part| part == flags)), "{block:?}");
                assert_eq!(block[8..28], [1, 0, 0, 0, 0, 1, 0, 0, 7, 0, 0, 0, length as u8, 0, 0, 0, 64, 0, 0, 0]);
            }
        }
    }

    #[test]
    fn statistics_have_a_fixed_length() {
        let mut file = Vec::new();
        statistics(0, 1, 2, 3, &mut file);
        assert_eq!(file.len() as u64, STATISTICS_BLOCK_LEN);
    }
}
