//! How frames are spread over the queues of a port: what is hashed, and by which key.

/// What of a frame is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssFields {
    /// The addresses of an IPv4 packet.
    pub ipv4: bool,
    /// The addresses of an IPv6 packet.
    pub ipv6: bool,
    /// The ports of a TCP segment.
    pub tcp: bool,
    /// The ports of a UDP datagram.
    pub udp: bool,
}

impl RssFields {
    /// Everything that can be hashed.
    pub const ALL: Self = Self { ipv4: true, ipv6: true, tcp: true, udp: true };
}

/// How frames are spread over the queues of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssSpec {
    /// The key of the hash.
    pub key: [u8; 40],
    /// What is hashed, addresses before ports.
    pub fields: RssFields,
}

impl RssSpec {
    /// The key that drivers use by default.
    pub const STANDARD: Self = Self {
        key: [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
            0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
            0xbe, 0xac, 0x01, 0xfa,
        ],
        fields: RssFields::ALL,
    };

    /// A key of period 16 bits, under which both directions of a flow have the same hash.
    pub const SYMMETRIC: Self = {
        let mut key = [0x6d; 40];
        let mut i = 1;
        while i < key.len() {
            key[i] = 0x5a;
            i += 2;
        }
        Self { key, fields: RssFields::ALL }
    };
}

impl Default for RssSpec {
    fn default() -> Self {
        Self::STANDARD
    }
}
