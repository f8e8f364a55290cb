//! Why a packet was dropped.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// The variants in order: their discriminants number the reasons.
        #[repr(u8)]
        enum Code { $($variant,)* }

        #[allow(non_upper_case_globals, reason = "they read, and match, as the variants of an enum")]
        impl Reason {
            $($(#[$doc])* pub const $variant: Self = Self(Code::$variant as u8);)*

            const NAMES: &'static [&'static str] = &[$($name,)*];
        }
    };
}

/// Why a packet was dropped. No packet disappears without one; each is a counter of the ledger, named `stage.reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(u8);

reasons! {
    /// Shorter than the smallest frame that the stage takes.
    Runt = "runt",
    /// A header, or what its length field promises, goes past the end of the frame.
    Truncated = "truncated",
    /// A version field that does not fit the protocol.
    BadVersion = "bad_version",
    /// A header length below its minimum.
    BadHeaderLength = "bad_header_length",
    /// A length field that contradicts the headers around it.
    BadLength = "bad_length",
    /// A checksum that does not fit.
    BadChecksum = "bad_checksum",
    /// More nested headers (VLAN tags, IPv6 extension headers) than are followed.
    TooManyHeaders = "too_many_headers",
    /// Not a protocol that the stage handles.
    Unsupported = "unsupported",
    /// TTL or hop limit used up.
    TtlExpired = "ttl_expired",
    /// No route to the destination.
    NoRoute = "no_route",
    /// The next hop's link address is not known.
    NoNeighbor = "no_neighbor",
    /// A rule denies it.
    Denied = "denied",
    /// Above the configured rate.
    RateExceeded = "rate_exceeded",
    /// No VLAN tag where one was wanted, or one that is not listed.
    VlanMismatch = "vlan_mismatch",
    /// No room to put a header in front.
    NoHeadroom = "no_headroom",
    /// Longer than the outgoing port takes.
    TooLong = "too_long",
    /// No port was chosen to send it on.
    NoPort = "no_port",
    /// The config sends it here to be dropped.
    Requested = "requested",
    /// The send queue was full.
    TxFull = "tx_full",
    /// The device refused to send it, or failed while sending.
    TxError = "tx_error",
    /// The outgoing port has no connection to its peer at the moment.
    NotConnected = "not_connected",
    /// The stage sent it to an output that it does not have.
    Undeclared = "undeclared_output",
    /// As many packets wait in the stage as it may hold.
    QueueFull = "queue_full",
    /// The worker stopped before it could be handled.
    Stopped = "stopped",
}

impl Reason {
    /// How many codes there are: what [`Reason::code`] returns is below.
    pub const CODES: usize = 128;
    /// How many reasons of its own a stage may name.
    pub const OWN: u8 = 64;
    const FIRST_OWN: u8 = Self::CODES as u8 - Self::OWN;

    /// A reason of the stage's own: an index, below [`Reason::OWN`], into what its `Stage::reasons` names.
    #[inline]
    pub const fn own(index: u8) -> Self {
        Self(Self::FIRST_OWN + index % Self::OWN)
    }

    /// A dense number, below [`Reason::CODES`].
    #[inline]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// What [`Reason::code`] numbered so.
    #[inline]
    pub(crate) const fn from_code(code: u8) -> Self {
        Self(code % Self::CODES as u8)
    }

    /// The name, with the stage's own reasons from `own`.
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
