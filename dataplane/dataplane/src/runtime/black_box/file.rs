//! The file of a black box, in the format pcapng. The comment of the section describes the event after which the file
//! was written. Each pair of a worker and a port is an interface. The comment of a packet has the number of its burst,
//! or the position of the packet in the batch of the stage that panicked. All comments are JSON.

use std::collections::BTreeMap;

use pcap_parser::Linktype;
use pcap_parser::pcapng::{Block, OptionCode, PcapNGOption, PcapNGOptionError, parse_block_le};
use pcap_parser::traits::PcapNGPacketBlock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::runtime::black_box::ring::{PacketHead, WorkerBursts};
use dataplane_core::pcapng::{self, CapturedPacket, Direction};

/// The version of the format.
const VERSION: u32 = 1;
/// The size of a pcapng block without content, in bytes.
const SMALLEST_BLOCK: u32 = 12;
/// The name and the version of this program, for the section header of pcapng files.
pub(crate) const PROGRAM: &str = concat!("dataplane ", env!("CARGO_PKG_VERSION"));
/// The maximum number of bytes of [`Cause::message`]. A comment of a pcapng file has at most 65,535 bytes.
const MAX_MESSAGE: usize = 4096;

/// The kind of event after which a black box is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CauseKind {
    /// A stage or the worker loop panicked.
    Panic,
    /// The worker ended, because a lane failed.
    Fault,
    /// The worker makes no progress.
    Stall,
    /// A client requested the file.
    Request,
}

/// The event after which a black box is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cause {
    pub(crate) kind: CauseKind,
    /// The worker of the event. `None` for a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) worker: Option<usize>,
    /// The stage that the worker ran at the event. `None` outside the stages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stage: Option<String>,
    pub(crate) message: String,
}

/// The batch of a stage that panicked.
#[derive(Clone, Debug, Default)]
pub(crate) struct PanickedBatch {
    /// The index of the port that received the packets.
    pub(crate) port: usize,
    pub(crate) packets: Vec<PacketHead>,
}

/// The description of a file, in the comment of the section.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    /// The version of the format.
    black_box: u32,
    /// The path of the config with which the program was started.
    pub(crate) config: String,
    /// The time at which the file was made, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
    pub(crate) cause: Cause,
}

impl Description {
    pub(crate) fn new(config: &str, time_ns: u64, mut cause: Cause) -> Self {
        let end = cause.message.floor_char_boundary(MAX_MESSAGE);
        cause.message.truncate(end);
        Self { black_box: VERSION, config: config.to_owned(), time_ns, cause }
    }
}

/// The description of an interface.
#[derive(Serialize, Deserialize)]
struct InterfaceText {
    worker: usize,
    /// The digest of the config that the worker used.
    config: String,
}

/// The comment of a packet: where the worker recorded the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PacketPlace {
    /// The worker received the packet in the burst with this number.
    Burst(u64),
    /// The packet was at this position in the batch of the stage that panicked. The stages before this stage may have
    /// changed the packet.
    PanickedBatch(u64),
}

/// A packet of a file.
#[derive(Clone, Debug)]
pub(crate) struct RecordedPacket {
    pub(crate) worker: usize,
    pub(crate) port: String,
    /// The digest of the config that the worker used.
    pub(crate) digest: String,
    pub(crate) place: PacketPlace,
    pub(crate) head: PacketHead,
}

impl RecordedPacket {
    /// Returns the packet with its original length. The bytes that the black box has not kept are 0.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut frame = self.head.bytes.clone();
        let original = self.head.original.min(u32::from(u16::MAX)) as usize;
        frame.resize(original.max(frame.len()), 0);
        frame
    }
}

/// The content of a file.
#[derive(Clone, Debug)]
pub(crate) struct BlackBoxFile {
    pub(crate) description: Description,
    pub(crate) packets: Vec<RecordedPacket>,
    /// Whether the end of the file is missing or damaged.
    pub(crate) is_cut: bool,
}

/// Encodes a file. `batch` is the batch of the stage that panicked on the worker `description.cause.worker`.
pub(crate) fn encode(
    description: &Description,
    workers: &[WorkerBursts],
    batch: &PanickedBatch,
    snaplen: u32,
) -> Vec<u8> {
    let (mut file, mut interfaces) = (Vec::new(), BTreeMap::new());
    pcapng::commented_section(PROGRAM, &json(description), &mut file);
    let mut put = |recorded: &WorkerBursts, port: usize, place: PacketPlace, head: &PacketHead| {
        let next = interfaces.len() as u32;
        let interface = *interfaces.entry((recorded.worker, port)).or_insert_with(|| {
            let name = recorded.info.ports.get(port).map_or("?", String::as_str);
            let text = InterfaceText { worker: recorded.worker, config: recorded.info.digest.clone() };
            pcapng::interface(name, &json(&text), snaplen, &mut file);
            next
        });
        let comment = json(&place);
        let packet = CapturedPacket {
            interface,
            nanos: head.nanos,
            original: head.original,
            bytes: &head.bytes,
            comment: comment.as_bytes(),
            direction: matches!(place, PacketPlace::Burst(_)).then_some(Direction::Inbound),
        };
        pcapng::packet(&packet, &mut file);
    };
    for recorded in workers {
        for burst in &recorded.bursts {
            burst.packets.iter().for_each(|head| put(recorded, burst.port, PacketPlace::Burst(burst.number), head));
        }
    }
    if let Some(recorded) = workers.iter().find(|recorded| Some(recorded.worker) == description.cause.worker) {
        for (position, head) in (1..).zip(&batch.packets) {
            put(recorded, batch.port, PacketPlace::PanickedBatch(position), head);
        }
    }
    file
}

fn json(value: &impl Serialize) -> String {
    // These types always serialize to JSON.
    serde_json::to_string(value).unwrap_or_default()
}

impl BlackBoxFile {
    /// Decodes a file.
    ///
    /// # Errors
    /// Returns the reason if the file is not a black box.
    pub(crate) fn decode(file: &[u8]) -> Result<Self, String> {
        let no_black_box = || "this file is not a black box; help: `dataplane black-box -w FILE` writes one".to_owned();
        let (mut rest, mut description) = (file, None);
        let mut interfaces: Vec<(String, InterfaceText)> = Vec::new();
        let mut packets = Vec::new();
        while let Some([_, _, _, _, length @ ..]) = rest.first_chunk::<8>() {
            // The parser subtracts `SMALLEST_BLOCK` from the length, and panics in debug builds if the length is smaller.
            let is_valid = u32::from_le_bytes(*length) >= SMALLEST_BLOCK;
            let Some((after, block)) = is_valid.then(|| parse_block_le(rest).ok()).flatten() else { break };
            rest = after;
            match block {
                Block::SectionHeader(section) => {
                    description = Some(parsed::<Description>(comment(&section.options)).ok_or_else(no_black_box)?);
                    interfaces.clear();
                }
                Block::InterfaceDescription(it) if it.linktype == Linktype::ETHERNET => {
                    let name = it.if_name().and_then(Result::ok).unwrap_or_default().to_owned();
                    interfaces.push((name, parsed(it.if_description()).ok_or_else(no_black_box)?));
                }
                Block::EnhancedPacket(it) => {
                    let (port, about) = interfaces.get(it.if_id as usize).ok_or_else(no_black_box)?;
                    packets.push(RecordedPacket {
                        worker: about.worker,
                        port: port.clone(),
                        digest: about.config.clone(),
                        place: parsed(comment(&it.options)).ok_or_else(no_black_box)?,
                        head: PacketHead {
                            nanos: u64::from(it.ts_high) << 32 | u64::from(it.ts_low),
                            original: it.origlen,
                            bytes: it.packet_data().to_vec(),
                        },
                    });
                }
                _ => {}
            }
        }
        let description: Description = description.ok_or_else(no_black_box)?;
        if description.black_box != VERSION {
            return Err(format!(
                "the format has version {}, but this program reads version {VERSION}; help: use the program that wrote \
                 the file",
                description.black_box
            ));
        }
        Ok(Self { description, packets, is_cut: !rest.is_empty() })
    }
}

/// The value of an option. `None` if the block lacks the option.
type OptionText<'o> = Option<Result<&'o str, PcapNGOptionError>>;

/// Returns the comment of a block.
fn comment<'o>(options: &'o [PcapNGOption<'_>]) -> OptionText<'o> {
    options.iter().find(|option| option.code == OptionCode::Comment).map(PcapNGOption::as_str)
}

/// Parses an option with JSON.
fn parsed<T: DeserializeOwned>(text: OptionText<'_>) -> Option<T> {
    serde_json::from_str(text?.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::runtime::black_box::ring::Burst;
    use crate::runtime::worker_info::WorkerInfo;

    fn head(byte: u8, original: u32) -> PacketHead {
        PacketHead { nanos: 1 << 60 | u64::from(byte), original, bytes: vec![byte; 14] }
    }

    fn example() -> Vec<u8> {
        let info = |digest: &str| {
            let ports = vec!["in".to_owned(), "out".to_owned()];
            Arc::new(WorkerInfo { ports, digest: digest.to_owned(), ..WorkerInfo::example() })
        };
        let burst = |number, port, packets| Burst { number, port, packets };
        let workers = [
            WorkerBursts { worker: 0, info: info("a"), bursts: vec![burst(7, 1, vec![head(1, 64), head(2, 1500)])] },
            WorkerBursts { worker: 1, info: info("b"), bursts: vec![burst(1, 0, vec![head(3, 60)])] },
        ];
        let message = format!("why\n{}", "é".repeat(MAX_MESSAGE));
        let cause = Cause { kind: CauseKind::Panic, worker: Some(1), stage: Some("acl".to_owned()), message };
        let batch = PanickedBatch { port: 0, packets: vec![head(4, 78)] };
        encode(&Description::new("x.toml", 5, cause), &workers, &batch, 128)
    }

    #[test]
    fn decoded_file_has_the_bursts_and_the_batch() {
        let file = BlackBoxFile::decode(&example()).unwrap();
        let Description { config, time_ns, cause, .. } = &file.description;
        assert_eq!((config.as_str(), *time_ns, cause.kind, cause.worker), ("x.toml", 5, CauseKind::Panic, Some(1)));
        assert!(cause.message.starts_with("why\né") && cause.message.len() <= MAX_MESSAGE && !file.is_cut);
        let packets: Vec<_> = file
            .packets
            .iter()
            .map(|packet| (packet.worker, packet.port.as_str(), packet.digest.as_str(), packet.place))
            .collect();
        let expected = [
            (0, "out", "a", PacketPlace::Burst(7)),
            (0, "out", "a", PacketPlace::Burst(7)),
            (1, "in", "b", PacketPlace::Burst(1)),
            (1, "in", "b", PacketPlace::PanickedBatch(1)),
        ];
        assert_eq!(packets, expected);
        let heads: Vec<_> = file.packets.into_iter().map(|packet| packet.head).collect();
        assert_eq!(heads, [head(1, 64), head(2, 1500), head(3, 60), head(4, 78)]);
    }

    #[test]
    fn damaged_files_are_refused_or_read_up_to_the_damage() {
        let whole = example();
        let packets = |file: &[u8]| BlackBoxFile::decode(file).map(|file| (file.packets.len(), file.is_cut));
        assert_eq!(packets(&whole), Ok((4, false)));
        for length in 0..whole.len() {
            match packets(&whole[..length]) {
                Ok((count, is_cut)) => assert!(count < 4 && (is_cut || count > 0 || length > 100), "{length}"),
                Err(why) => assert!(why.starts_with("this file is not a black box; help: "), "{why}"),
            }
        }
        // A change of any byte never leads to a panic.
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = BlackBoxFile::decode(&damaged);
        }
        let mut capture = Vec::new();
        pcapng::section("another program", &mut capture);
        assert!(packets(&capture).is_err());
        let mut newer = Vec::new();
        let cause = Cause { kind: CauseKind::Request, worker: None, stage: None, message: String::new() };
        let description = Description { black_box: 2, ..Description::new("x", 0, cause) };
        pcapng::commented_section("x", &json(&description), &mut newer);
        assert!(packets(&newer).unwrap_err().starts_with("the format has version 2, but this program reads version 1"));
    }
}
