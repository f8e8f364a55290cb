//! The selection of a port's queue for a frame: the hashed fields and the hash key.

/// The fields of a frame that are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssFields {
    /// Whether the addresses of IPv4 packets are hashed.
    pub ipv4: bool,
    /// Whether the addresses of IPv6 packets are hashed.
    pub ipv6: bool,
    /// Whether the ports of TCP segments are hashed.
    pub tcp: bool,
    /// Whether the ports of UDP datagrams are hashed.
    pub udp: bool,
}

impl RssFields {
    /// All fields.
    pub const ALL: Self = Self { ipv4: true, ipv6: true, tcp: true, udp: true };
}

/// The distribution of frames over the queues of a port (receive-side scaling).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssSpec {
    /// The hash key.
    pub key: [u8; 40],
    /// The hashed fields. The hash input contains the addresses first, then the ports.
    pub fields: RssFields,
}

impl RssSpec {
    /// The key of the Microsoft RSS specification, which many drivers use by default. All fields are hashed.
    pub const STANDARD: Self = Self {
        key: [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
            0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
            0xbe, 0xac, 0x01, 0xfa,
        ],
        fields: RssFields::ALL,
    };

    /// A key that repeats every 16 bits. With this key, both directions of a flow have the same hash.
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
