//! Ethernet II (IEEE 802.3) and the MAC address.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, U16};

/// A MAC address (EUI-48). Written `aa:bb:cc:dd:ee:ff`.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// The all-zero address, which no host has.
    pub const ZERO: Self = Self([0; 6]);

    /// Returns whether the address is a multicast or broadcast address.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether the address is [`MacAddr::BROADCAST`].
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }

    /// Returns whether the address is locally administered, not assigned by a vendor.
    pub const fn is_local(self) -> bool {
        self.0[0] & 2 != 0
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<[u8; 6]> for MacAddr {
    fn from(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

/// An error for text that is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a MAC address; help: write six hexadecimal bytes, such as \"02:00:00:00:00:01\"")]
pub struct ParseMacError(String);

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, ParseMacError> {
        let wrong = || ParseMacError(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()));
            *byte = part.and_then(|p| u8::from_str_radix(p, 16).ok()).ok_or_else(wrong)?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self(bytes)) }
    }
}

impl<'de> Deserialize<'de> for MacAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = MacAddr;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a MAC address such as \"02:00:00:00:00:01\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MacAddr, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

impl Serialize for MacAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for MacAddr {
    fn schema_name() -> Cow<'static, str> {
        "MacAddr".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A MAC address",
            "pattern": "^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$",
            "examples": ["aa:bb:cc:dd:ee:ff"],
        })
    }
}

/// The Ethernet II header: 14 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Ethernet {
    /// The destination address.
    pub destination: MacAddr,
    /// The source address.
    pub source: MacAddr,
    /// The EtherType of the content, one of [`super::ether_type`]. Values below 0x0600 are the length of an IEEE
    /// 802.3 frame.
    pub ether_type: U16,
}

impl Header for Ethernet {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_address_round_trips_as_text() {
        for text in ["00:00:00:00:00:00", "02:0a:b0:0c:d0:ef", "ff:ff:ff:ff:ff:ff"] {
            assert_eq!(text.parse::<MacAddr>().unwrap().to_string(), text);
        }
        assert_eq!("AA:bb:CC:dd:EE:0f".parse(), Ok(MacAddr([0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x0f])));
    }

    #[test]
    fn invalid_text_is_refused_and_quoted() {
        for wrong in
            ["", "0:1:2:3:4:5", "00:11:22:33:44", "00:11:22:33:44:55:66", "+0:11:22:33:44:55", "gg:11:22:33:44:55"]
        {
            let error = wrong.parse::<MacAddr>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}`")), "{error}");
        }
    }

    #[test]
    fn config_text_round_trips() {
        let mac: MacAddr = serde_json::from_str("\"02:00:00:00:00:01\"").unwrap();
        assert_eq!(serde_json::to_string(&mac).unwrap(), "\"02:00:00:00:00:01\"");
        assert!(serde_json::from_str::<MacAddr>("7").unwrap_err().to_string().contains("a MAC address"));
        let schema = schemars::schema_for!(MacAddr);
        assert_eq!(schema.get("type").and_then(|t| t.as_str()), Some("string"));
    }

    #[test]
    fn multicast_and_local_bits_are_distinct() {
        assert!(MacAddr::BROADCAST.is_multicast() && MacAddr::BROADCAST.is_broadcast());
        let multicast = MacAddr([0x01, 0, 0x5e, 0, 0, 1]);
        assert!(multicast.is_multicast() && !multicast.is_broadcast() && !multicast.is_local());
        let local = MacAddr([0x02, 0, 0, 0, 0, 1]);
        assert!(local.is_local() && !local.is_multicast());
    }
}
