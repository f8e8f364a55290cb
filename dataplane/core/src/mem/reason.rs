//! Reasons for dropping a packet.

use std::fmt;

macro_rules! reasons {
    ($($variant:ident = $name:literal: $meaning:literal,)*) => {
        /// The built-in reasons, in order. The discriminant of a variant is its reason code.
        #[repr(u8)]
        enum Code { $($variant,)* }

        #[allow(non_upper_case_globals, reason = "the constants are used like the variants of an enum")]
        impl Reason {
            $(#[doc = concat!("`", $name, "`: ", $meaning, ".")] pub const $variant: Self = Self(Code::$variant as u8);)*

            const NAMES: &'static [&'static str] = &[$($name,)*];
            const MEANINGS: &'static [&'static str] = &[$($meaning,)*];
        }
    };
}

/// The reason why a packet was dropped. Every dropped packet has one reason. The ledger (the packet accounting) has one
/// counter per reason, named `stage.reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(u8);

reasons! {
    Runt = "runt": "the frame is shorter than the minimum that the stage accepts",
    Truncated = "truncated": "a header, or the length in its length field, extends past the end of the frame",
    BadVersion = "bad_version": "a version field does not match the protocol",
    BadHeaderLength = "bad_header_length": "a header length is below its minimum",
    BadLength = "bad_length": "a length field contradicts the headers around it",
    BadChecksum = "bad_checksum": "a checksum is wrong",
    TooManyHeaders = "too_many_headers":
        "the packet has more nested headers (VLAN tags, IPv6 extension headers) than the stage follows",
    Unsupported = "unsupported": "the stage does not handle the protocol",
    TtlExpired = "ttl_expired": "the TTL or hop limit has expired",
    NoRoute = "no_route": "there is no route to the destination",
    NoNeighbor = "no_neighbor": "the link-layer address of the next hop is unknown",
    Denied = "denied": "a rule, or the default action, denies the packet",
    RateExceeded = "rate_exceeded": "the packet exceeds the configured rate",
    VlanMismatch = "vlan_mismatch":
        "a required VLAN tag is missing, or the VLAN is not in the list of allowed VLANs",
    NoHeadroom = "no_headroom": "the headroom is too small for a new header",
    TooLong = "too_long": "the packet is longer than the outgoing port accepts",
    NoPort = "no_port": "no stage chose an outgoing port",
    Requested = "requested": "the config sends the packet to `drop`",
    TxFull = "tx_full": "the send queue was full",
    TxError = "tx_error": "the device refused to send the packet, or failed while sending",
    NotConnected = "not_connected": "the outgoing port is currently not connected to its peer",
    Undeclared = "undeclared_output": "the stage chose an output that it does not declare",
    QueueFull = "queue_full": "the stage already holds its maximum number of packets",
    Stopped = "stopped":
        "a stage or a port held the packet when the worker stopped, when a change removed the stage, or when a change \
         replaced the stage by a stage that holds no packets",
    Panicked = "panicked": "the stage panicked while it processed the batch of this packet",
    Quarantined = "quarantined": "the stage is quarantined after a panic",
}

impl Reason {
    /// The number of reason codes. [`Reason::code`] is always below this number.
    pub const CODES: usize = 128;
    /// Maximum number of reasons that a stage can define.
    pub const MAX_STAGE_REASONS: u8 = 64;
    const FIRST_OWN: u8 = Self::CODES as u8 - Self::MAX_STAGE_REASONS;

    /// Returns a reason that the stage defines. `index` selects a name from `StageInfo::reasons`, and must be below
    /// [`Reason::MAX_STAGE_REASONS`].
    #[inline]
    pub const fn of_stage(index: u8) -> Self {
        Self(Self::FIRST_OWN + index % Self::MAX_STAGE_REASONS)
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

    /// Returns the meaning of the built-in reason with this name. Returns `None` if there is no such reason.
    pub fn meaning(name: &str) -> Option<&'static str> {
        let at = Self::NAMES.iter().position(|known| *known == name)?;
        Self::MEANINGS.get(at).copied()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name(&[]))
    }
}
