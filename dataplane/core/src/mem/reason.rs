//! Reasons for dropping a packet.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// The built-in reasons, in order. The discriminant of a variant is its reason code.
        #[repr(u8)]
        enum Code { $($variant,)* }

        #[allow(non_upper_case_globals, reason = "the constants are used like the variants of an enum")]
        impl Reason {
            $($(#[$doc])* pub const $variant: Self = Self(Code::$variant as u8);)*

            const NAMES: &'static [&'static str] = &[$($name,)*];
        }
    };
}

/// The reason why a packet was dropped. Every dropped packet has one reason. The ledger (the packet accounting) has one
/// counter per reason, named `stage.reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(u8);

reasons! {
    /// The frame is shorter than the minimum that the stage accepts.
    Runt = "runt",
    /// A header, or the length in its length field, extends past the end of the frame.
    Truncated = "truncated",
    /// A version field does not match the protocol.
    BadVersion = "bad_version",
    /// A header length is below its minimum.
    BadHeaderLength = "bad_header_length",
    /// A length field contradicts the headers around it.
    BadLength = "bad_length",
    /// A checksum is wrong.
    BadChecksum = "bad_checksum",
    /// The packet has more nested headers (VLAN tags, IPv6 extension headers) than the stage follows.
    TooManyHeaders = "too_many_headers",
    /// The stage does not handle the protocol.
    Unsupported = "unsupported",
    /// TTL or hop limit has expired.
    TtlExpired = "ttl_expired",
    /// No route to the destination.
    NoRoute = "no_route",
    /// The link-layer address of the next hop is unknown.
    NoNeighbor = "no_neighbor",
    /// A rule denies the packet.
    Denied = "denied",
    /// The packet exceeds the configured rate.
    RateExceeded = "rate_exceeded",
    /// A required VLAN tag is missing, or the VLAN is not in the list of allowed VLANs.
    VlanMismatch = "vlan_mismatch",
    /// The headroom is too small for a new header.
    NoHeadroom = "no_headroom",
    /// The packet is longer than the outgoing port accepts.
    TooLong = "too_long",
    /// No stage chose an outgoing port.
    NoPort = "no_port",
    /// The config sends the packet to `drop`.
    Requested = "requested",
    /// The send queue was full.
    TxFull = "tx_full",
    /// The device refused to send the packet, or failed while sending.
    TxError = "tx_error",
    /// The outgoing port is currently not connected to its peer.
    NotConnected = "not_connected",
    /// The stage chose an output that it does not declare.
    Undeclared = "undeclared_output",
    /// The stage already holds its maximum number of packets.
    QueueFull = "queue_full",
    /// A stage held the packet when the worker stopped, when a change removed the stage, or when a change replaced the
    /// stage by a stage that holds no packets.
    Stopped = "stopped",
    /// The stage panicked while it processed the batch of this packet.
    Panicked = "panicked",
    /// The stage is quarantined after a panic.
    Quarantined = "quarantined",
}

impl Reason {
    /// Number of reason codes. [`Reason::code`] is always below this number.
    pub const CODES: usize = 128;
    /// Maximum number of reasons that a stage can define.
    pub const OWN: u8 = 64;
    const FIRST_OWN: u8 = Self::CODES as u8 - Self::OWN;

    /// Returns a reason that the stage defines. `index` selects a name from `StageInfo::reasons`, and must be below
    /// [`Reason::OWN`].
    #[inline]
    pub const fn own(index: u8) -> Self {
        Self(Self::FIRST_OWN + index % Self::OWN)
    }

    /// Returns the code of the reason, which is below [`Reason::CODES`].
    #[inline]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Returns the reason with this code, which must be below [`Reason::CODES`].
    #[inline]
    pub const fn from_code(code: u8) -> Self {
        Self(code % Self::CODES as u8)
    }

    /// Returns the name of the reason. `own` contains the names of the reasons that the stage defines.
    pub fn name(self, own: &[&'static str]) -> String {
        let names = if self.0 >= Self::FIRST_OWN { own } else { Self::NAMES };
        match names.get((self.0 % Self::FIRST_OWN) as usize) {
            Some(name) => (*name).to_owned(),
            None => format!("reason_{}", self.0),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name(&[]))
    }
}
