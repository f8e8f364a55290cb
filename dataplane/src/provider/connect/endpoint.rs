//! What a queue pair tells its peer about itself, and what it takes of what the peer tells.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::provider::connect::parameters::MAX_24;
use crate::provider::{GidKind, LinkLayer, QpType};
use crate::units::{Gid, QpNum, Rkey};

/// The version of the endpoint and of the exchange. Both sides have the same.
pub const VERSION: u16 = 1;

/// Memory that the peer may read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The first byte, as an address of its process.
    pub addr: u64,
    /// The key of the region or window that it is in.
    pub rkey: Rkey,
    /// How many bytes.
    pub len: u64,
}

/// A queue pair as its peer must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairEndpoint {
    /// The version of what is told here: [`VERSION`].
    pub version: u16,
    /// The type of the queue pair: reliable or unreliable connection, or datagrams.
    pub transport: QpType,
    /// What its port speaks.
    pub link_layer: LinkLayer,
    /// The local identifier of its port; 0 on Ethernet.
    pub lid: u16,
    /// The address of its port; 0: none.
    pub gid: Gid,
    /// The kind of that address.
    pub gid_kind: GidKind,
    /// Its number: 2 to 2^24 - 1, as 0 and 1 are of the subnet's management.
    pub qpn: QpNum,
    /// The number of the first packet that it sends: 24 bits.
    pub psn: u32,
    /// The largest payload of a packet, as verbs.h numbers it: 1 to 5 for 256 to 4,096 bytes.
    pub path_mtu: u8,
    /// Reads and atomics that it takes at a time, as responder.
    pub max_dest_rd_atomic: u8,
    /// The largest message in bytes.
    pub max_message: u32,
    /// What a datagram to it must carry; 0 of connections.
    pub qkey: u32,
    /// How often this queue pair was connected before.
    pub generation: u32,
    /// Which of the queue pairs of its port it is: the peer has the same number.
    pub queue: u16,
    /// Receives that it has room for.
    pub receive_depth: u32,
    /// Memory that the peer may read or write.
    pub buffer: Option<RemoteBuffer>,
}

/// Why what a peer tells is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// It is no endpoint at all.
    #[error("an endpoint has {size} bytes, and these are {0}", size = QueuePairEndpoint::SIZE)]
    Length(usize),
    /// It is told in another version.
    #[error("the peer speaks version {0}, and this program {VERSION}: run the same version on both sides")]
    Version(u16),
    /// A field that has few values has another.
    #[error("the peer's {field} is {value}, which there is not")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// It has no number that a queue pair has.
    #[error("the peer's queue pair has the number {0}: those are 2 to 16777215")]
    Number(u32),
    /// A packet number of more than 24 bits.
    #[error("the peer's first packet has the number {0}: those are 0 to 16777215")]
    PacketNumber(u32),
    /// A size of packets that there is not.
    #[error("the peer's path MTU has the code {0}: those are 1 to 5")]
    PathMtu(u8),
    /// Memory that ends beyond all addresses.
    #[error("the peer's buffer ends beyond the last address")]
    Buffer,
    /// An address is missing.
    #[error("the peer tells no address, and RoCE needs one: give its interface an address")]
    NoAddress,
    /// Neither a local identifier nor an address.
    #[error("the peer tells neither a local identifier nor an address: is its subnet managed?")]
    NoRoute,
    /// The two sides are of different types.
    #[error("the peer has queue pairs of type {peer}, and this side {own}: give both the same `qp`")]
    Transport {
        /// The own type.
        own: QpType,
        /// The peer's.
        peer: QpType,
    },
    /// One side is InfiniBand and the other Ethernet.
    #[error("the peer's port is {peer}, and this one {own}: they are not on one network")]
    LinkLayer {
        /// The own link layer.
        own: LinkLayer,
        /// The peer's.
        peer: LinkLayer,
    },
    /// The two sides have different versions of RoCE.
    #[error("the peer's address is of kind {peer}, and this one's {own}: give both the same `gid_kind`")]
    GidKind {
        /// The own kind.
        own: GidKind,
        /// The peer's.
        peer: GidKind,
    },
    /// It is this very queue pair.
    #[error("the peer is this very queue pair: name another address, or allow it with `allow_self`")]
    Own,
    /// It is another of the peer's queue pairs than this is of its port.
    #[error("the peer tells of its queue {peer}, and this is queue {own}: give both the same number of workers")]
    Queue {
        /// The own number.
        own: u16,
        /// The peer's.
        peer: u16,
    },
    /// It begins with another packet than it was said to.
    #[error("the peer's first packet has the number {peer}, and `rq_psn` says {own}: make it the peer's `sq_psn`")]
    Expected {
        /// What `rq_psn` says.
        own: u32,
        /// The peer's `sq_psn`.
        peer: u32,
    },
}

/// An endpoint on the wire, in network order. `docs/handshake.md` describes it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    version: U16,
    transport: u8,
    link_layer: u8,
    gid_kind: u8,
    path_mtu: u8,
    max_dest_rd_atomic: u8,
    has_buffer: u8,
    lid: U16,
    queue: U16,
    qpn: U32,
    psn: U32,
    qkey: U32,
    max_message: U32,
    generation: U32,
    receive_depth: U32,
    rkey: U32,
    gid: [u8; 16],
    addr: U64,
    len: U64,
}

/// A number of verbs.h that is small wherever it has a name; what has none becomes 255, which no peer takes.
fn byte(raw: u32) -> u8 {
    u8::try_from(raw).unwrap_or(u8::MAX)
}

impl QueuePairEndpoint {
    /// The bytes of an endpoint on the wire.
    pub const SIZE: usize = size_of::<Record>();

    /// As it goes over the wire.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let buffer = self.buffer.unwrap_or(RemoteBuffer { addr: 0, rkey: Rkey(0), len: 0 });
        let record = Record {
            version: self.version.into(),
            transport: byte(self.transport.raw()),
            link_layer: byte(self.link_layer.raw()),
            gid_kind: byte(self.gid_kind.raw()),
            path_mtu: self.path_mtu,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            has_buffer: self.buffer.is_some().into(),
            lid: self.lid.into(),
            queue: self.queue.into(),
            qpn: self.qpn.0.into(),
            psn: self.psn.into(),
            qkey: self.qkey.into(),
            max_message: self.max_message.into(),
            generation: self.generation.into(),
            receive_depth: self.receive_depth.into(),
            rkey: buffer.rkey.0.into(),
            gid: self.gid.0,
            addr: buffer.addr.into(),
            len: buffer.len.into(),
        };
        zerocopy::transmute!(record)
    }

    /// Reads one from the wire.
    ///
    /// # Errors
    /// These are not as many bytes, or no endpoint: see [`QueuePairEndpoint::validate`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {
        let record = Record::ref_from_bytes(bytes).map_err(|_| EndpointError::Length(bytes.len()))?;
        let buffer = RemoteBuffer { addr: record.addr.get(), rkey: Rkey(record.rkey.get()), len: record.len.get() };
        let buffer = match (record.has_buffer, buffer) {
            (1, buffer) => Some(buffer),
            (0, RemoteBuffer { addr: 0, rkey: Rkey(0), len: 0 }) => None,
            (value, _) => return Err(EndpointError::Unknown { field: "mark of a buffer", value: value.into() }),
        };
        let endpoint = Self {
            version: record.version.get(),
            transport: QpType::from_raw(record.transport.into()),
            link_layer: LinkLayer::from_raw(record.link_layer.into()),
            lid: record.lid.get(),
            gid: Gid(record.gid),
            gid_kind: GidKind::from_raw(record.gid_kind.into()),
            qpn: QpNum(record.qpn.get()),
            psn: record.psn.get(),
            path_mtu: record.path_mtu,
            max_dest_rd_atomic: record.max_dest_rd_atomic,
            max_message: record.max_message.get(),
            qkey: record.qkey.get(),
            generation: record.generation.get(),
            queue: record.queue.get(),
            receive_depth: record.receive_depth.get(),
            buffer,
        };
        endpoint.validate().map(|()| endpoint)
    }

    /// Checks what can be said of it alone.
    ///
    /// # Errors
    /// A field is not what it can be.
    pub fn validate(&self) -> Result<(), EndpointError> {
        if self.version != VERSION {
            return Err(EndpointError::Version(self.version));
        }
        let unknown = |field, value| Err(EndpointError::Unknown { field, value });
        if !matches!(self.transport, QpType::Rc | QpType::Uc | QpType::Ud) {
            return unknown("type of queue pair", self.transport.raw());
        }
        if let LinkLayer::Unknown(value) = self.link_layer {
            return unknown("link layer", value);
        }
        if let GidKind::Unknown(value) = self.gid_kind {
            return unknown("kind of address", value);
        }
        if !(2..=MAX_24).contains(&self.qpn.0) {
            return Err(EndpointError::Number(self.qpn.0));
        }
        if self.psn > MAX_24 {
            return Err(EndpointError::PacketNumber(self.psn));
        }
        if !(1..=5).contains(&self.path_mtu) {
            return Err(EndpointError::PathMtu(self.path_mtu));
        }
        if self.buffer.is_some_and(|buffer| buffer.addr.checked_add(buffer.len).is_none()) {
            return Err(EndpointError::Buffer);
        }
        match self.link_layer {
            LinkLayer::Ethernet if self.gid.is_zero() => Err(EndpointError::NoAddress),
            _ if self.gid.is_zero() && self.lid == 0 => Err(EndpointError::NoRoute),
            _ => Ok(()),
        }
    }

    /// Checks that it can be the peer of the queue pair `own`.
    ///
    /// # Errors
    /// It is none, or not one for this queue pair.
    pub fn check_peer(&self, own: &Self, allow_self: bool) -> Result<(), EndpointError> {
        self.validate()?;
        let peer = self;
        if peer.transport != own.transport {
            return Err(EndpointError::Transport { own: own.transport, peer: peer.transport });
        }
        let ethernet = |endpoint: &Self| endpoint.link_layer == LinkLayer::Ethernet;
        if ethernet(peer) != ethernet(own) {
            return Err(EndpointError::LinkLayer { own: own.link_layer, peer: peer.link_layer });
        }
        if ethernet(own) && peer.gid_kind != own.gid_kind {
            return Err(EndpointError::GidKind { own: own.gid_kind, peer: peer.gid_kind });
        }
        if !allow_self && (peer.qpn, peer.gid, peer.lid) == (own.qpn, own.gid, own.lid) {
            return Err(EndpointError::Own);
        }
        if peer.queue != own.queue {
            return Err(EndpointError::Queue { own: own.queue, peer: peer.queue });
        }
        Ok(())
    }
}
