//! The endpoint of a queue pair that is sent to the peer, and the checks of a received endpoint.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::connect::parameters::MAX_24;
use crate::units::{Gid, QpNum, Rkey};
use crate::verbs::{GidKind, LinkLayer, QpType};

/// The version of the endpoint format and of the exchange. Both sides must use the same version.
pub const VERSION: u16 = 1;

/// Memory that the peer may read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteBuffer {
    /// The address of the first byte in the address space of the owning process.
    pub addr: u64,
    /// The key of the memory region or memory window.
    pub rkey: Rkey,
    /// The length in bytes.
    pub len: u64,
}

/// The properties of a queue pair that its peer must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairEndpoint {
    /// The format version: [`VERSION`].
    pub version: u16,
    /// The queue pair type: reliable connection, unreliable connection or datagram.
    pub transport: QpType,
    /// The link layer of the port.
    pub link_layer: LinkLayer,
    /// The local identifier of the port. 0 on Ethernet.
    pub lid: u16,
    /// The GID of the port. Zero if the port has none.
    pub gid: Gid,
    /// The type of the GID.
    pub gid_kind: GidKind,
    /// The queue pair number: 2 to 2^24 - 1. The numbers 0 and 1 are reserved for subnet management.
    pub qpn: QpNum,
    /// The initial packet sequence number of the send queue: 24 bits.
    pub psn: u32,
    /// The path MTU, coded as in verbs.h: 1 to 5 for 256 to 4,096 bytes.
    pub path_mtu: u8,
    /// Maximum number of outstanding reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Maximum message size in bytes.
    pub max_message: u32,
    /// The queue key that a datagram to this queue pair must carry. 0 for connections.
    pub qkey: u32,
    /// The number of times that this queue pair was reset. The next connection has a new generation.
    pub generation: u32,
    /// The index of the queue pair on its port. The peer's queue pair must have the same index.
    pub queue: u16,
    /// Capacity of the receive queue, or of the shared receive queue.
    pub receive_depth: u32,
    /// Memory that the peer may read or write.
    pub buffer: Option<RemoteBuffer>,
}

/// The reason why a peer's endpoint is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The number of bytes is not [`QueuePairEndpoint::SIZE`].
    #[error("an endpoint has {size} bytes, but {0} were received", size = QueuePairEndpoint::SIZE)]
    Length(usize),
    /// The version differs.
    #[error(
        "the peer uses version {0}, but this program uses version {VERSION}; help: run the same version on both sides"
    )]
    Version(u16),
    /// A field has an unknown value.
    #[error("the peer's {field} has the unknown value {value}")]
    Unknown {
        /// The name of the field.
        field: &'static str,
        /// The value.
        value: u32,
    },
    /// The queue pair number is out of range.
    #[error("the peer's queue pair number is {0}, which is not in 2 to 16777215")]
    QpNumber(u32),
    /// The initial packet sequence number has more than 24 bits.
    #[error("the peer's initial packet sequence number is {0}, which is not in 0 to 16777215")]
    PacketNumber(u32),
    /// The code of the path MTU is out of range.
    #[error("the code of the peer's path MTU is {0}, which is not in 1 to 5")]
    PathMtu(u8),
    /// The end of the buffer exceeds the address space.
    #[error("the peer's buffer exceeds the address space")]
    Buffer,
    /// The GID is missing.
    #[error(
        "the peer has no address, but RoCE and ports that require a global route header need an address; help: assign an \
         address to the peer's interface"
    )]
    NoAddress,
    /// Both the local identifier and the GID are missing.
    #[error("the peer has neither a local identifier nor an address; help: check that a subnet manager runs")]
    NoRoute,
    /// The two sides have different queue pair types.
    #[error(
        "the peer has queue pairs of type {peer}, but this side has type {own}; help: set the same `qp` on both sides"
    )]
    Transport {
        /// The local type.
        own: QpType,
        /// The peer's type.
        peer: QpType,
    },
    /// One side is InfiniBand and the other side is Ethernet.
    #[error("the link layer is {peer} at the peer and {own} on this side; help: use ports on the same network")]
    LinkLayer {
        /// The local link layer.
        own: LinkLayer,
        /// The peer's link layer.
        peer: LinkLayer,
    },
    /// The two sides use different versions of RoCE.
    #[error(
        "the peer's address is of kind {peer}, but the local address is of kind {own}; help: set the same `gid_kind` on both sides"
    )]
    GidKind {
        /// The local GID type.
        own: GidKind,
        /// The peer's GID type.
        peer: GidKind,
    },
    /// One side has an IPv4 address, and the other side has an IPv6 address.
    #[error(
        "the peer's GID is {peer}, but the local GID is {own}, and an IPv4 address cannot reach an IPv6 address; help: set `gid` on both sides, to two IPv4 addresses or two IPv6 addresses"
    )]
    AddressFamily {
        /// The local GID.
        own: Gid,
        /// The peer's GID.
        peer: Gid,
    },
    /// The peer's queue pair is the local queue pair.
    #[error("the peer's queue pair is the local queue pair itself; help: use another address, or set `allow_self`")]
    PeerIsSelf,
    /// The peer's queue index differs from the local queue index.
    #[error(
        "the peer's queue {peer} cannot connect to the local queue {own}; help: use the same number of workers on both sides"
    )]
    Queue {
        /// The local index.
        own: u16,
        /// The peer's index.
        peer: u16,
    },
    /// The peer's initial packet sequence number is not the number that `rq_psn` requires.
    #[error(
        "the peer's initial packet sequence number is {peer}, but `rq_psn` requires {own}; help: set `rq_psn` to the peer's `sq_psn`"
    )]
    UnexpectedPsn {
        /// The number that `rq_psn` requires in the peer's generation.
        own: u32,
        /// The peer's number.
        peer: u32,
    },
}

/// The wire format of an endpoint, in network order. `docs/handshake.md` describes it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EndpointRecord {
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

/// Converts a verbs.h number to a byte. All known numbers fit. Unknown numbers become 255, which every peer refuses.
fn byte(raw: u32) -> u8 {
    u8::try_from(raw).unwrap_or(u8::MAX)
}

impl QueuePairEndpoint {
    /// The size of an endpoint in the wire format, in bytes.
    pub const SIZE: usize = size_of::<EndpointRecord>();

    /// Returns the endpoint in the wire format.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let buffer = self.buffer.unwrap_or(RemoteBuffer { addr: 0, rkey: Rkey(0), len: 0 });
        let record = EndpointRecord {
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

    /// Parses an endpoint from the wire format.
    ///
    /// # Errors
    /// The number of bytes is wrong, or a field is invalid: see [`QueuePairEndpoint::validate`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EndpointError> {
        let record = EndpointRecord::ref_from_bytes(bytes).map_err(|_| EndpointError::Length(bytes.len()))?;
        let buffer = RemoteBuffer { addr: record.addr.get(), rkey: Rkey(record.rkey.get()), len: record.len.get() };
        let buffer = match (record.has_buffer, buffer) {
            (1, buffer) => Some(buffer),
            (0, RemoteBuffer { addr: 0, rkey: Rkey(0), len: 0 }) => None,
            (value, _) => return Err(EndpointError::Unknown { field: "buffer flag", value: value.into() }),
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

    /// Checks each field of the endpoint without knowledge of the local queue pair.
    ///
    /// # Errors
    /// A field has an invalid value.
    pub fn validate(&self) -> Result<(), EndpointError> {
        if self.version != VERSION {
            return Err(EndpointError::Version(self.version));
        }
        let unknown = |field, value| Err(EndpointError::Unknown { field, value });
        if !matches!(self.transport, QpType::Rc | QpType::Uc | QpType::Ud) {
            return unknown("queue pair type", self.transport.raw());
        }
        if let LinkLayer::Unknown(value) = self.link_layer {
            return unknown("link layer", value);
        }
        if let GidKind::Unknown(value) = self.gid_kind {
            return unknown("address kind", value);
        }
        if !(2..=MAX_24).contains(&self.qpn.0) {
            return Err(EndpointError::QpNumber(self.qpn.0));
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

    /// Checks that this endpoint can be the peer of the queue pair `own`.
    ///
    /// # Errors
    /// The endpoint is invalid, or it does not match `own`.
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
        // The kernel would refuse the path with EINVAL (`rdma_resolve_ip`).
        if ethernet(own) && peer.gid.ipv4().is_some() != own.gid.ipv4().is_some() {
            return Err(EndpointError::AddressFamily { own: own.gid, peer: peer.gid });
        }
        if !allow_self && (peer.qpn, peer.gid, peer.lid) == (own.qpn, own.gid, own.lid) {
            return Err(EndpointError::PeerIsSelf);
        }
        if peer.queue != own.queue {
            return Err(EndpointError::Queue { own: own.queue, peer: peer.queue });
        }
        Ok(())
    }
}
