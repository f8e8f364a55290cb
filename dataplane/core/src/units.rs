//! Newtypes for quantities and identifiers that must not be confused, and serde functions for numbers with a range.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

mod quantity;
mod range;

pub use quantity::{BitRate, Bytes, Offset, PacketRate, Period};
pub use range::{bytes_within, bytes_within_some, probability, within, within_signed, within_some};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A logical processor, with the number that the operating system uses.
    CoreId(u32)
}
number! {
    /// A NUMA node, with the number that the operating system uses.
    NumaNode(u32)
}
number! {
    /// The number of a queue pair: 24 bits, unique on its device.
    QpNum(u32)
}
number! {
    /// The local key of a memory region, used in scatter/gather elements.
    Lkey(u32)
}
number! {
    /// The remote key of a memory region or window. A peer uses this key to access the memory.
    Rkey(u32)
}
number! {
    /// A number of clock ticks. Each clock has its own frequency. [`crate::clock`] converts ticks to [`Nanos`].
    Ticks(u64)
}
number! {
    /// A number of nanoseconds.
    Nanos(u64)
}

/// A 128-bit port address (GID). On InfiniBand, a GID is the address of the port. On RoCE, a GID is an IP address of
/// the interface. An IPv4 address is mapped to an IPv6 address such as `::ffff:192.0.2.1` (InfiniBand Architecture
/// Specification, annex 17). The text of a GID is an IPv6 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns `true` if all bits are 0, which means that the address is not set.
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }

    /// Returns the IPv4 address, or `None` if the GID is not an IPv4-mapped IPv6 address.
    pub fn ipv4(self) -> Option<std::net::Ipv4Addr> {
        std::net::Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::net::Ipv6Addr::from(self.0).fmt(f)
    }
}

impl FromStr for Gid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(std::net::IpAddr::V6(address)) => Ok(Self(address.octets())),
            Ok(std::net::IpAddr::V4(address)) => Ok(Self(address.to_ipv6_mapped().octets())),
            Err(_) => {
                Err(format!("`{text}` is not a GID: write an IPv6 address such as \"fe80::1\", or an IPv4 address"))
            }
        }
    }
}

impl JsonSchema for Gid {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Gid".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "examples": ["fe80::1", "192.0.2.1"] })
    }
}

impl Serialize for Gid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Gid {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_text_round_trips() {
        for text in ["::", "fe80::1", "::ffff:127.0.0.1"] {
            assert_eq!(text.parse::<Gid>().unwrap().to_string(), text);
        }
        assert_eq!("127.0.0.1".parse::<Gid>(), "::ffff:127.0.0.1".parse());
        assert!("fe80".parse::<Gid>().unwrap_err().contains("`fe80`"));
    }
}
