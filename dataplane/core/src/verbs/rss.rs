//! The selection of a port's queue for a frame: the hashed fields and the hash key.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The fields of a frame that are hashed. In a config, the value is a list of the names of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<RssField>", into = "Vec<RssField>")]
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
    /// No fields.
    pub const NONE: Self = Self { ipv4: false, ipv6: false, tcp: false, udp: false };
}

/// A part of the headers that RSS hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum RssField {
    /// The addresses of an IPv4 packet.
    Ipv4,
    /// The addresses of an IPv6 packet.
    Ipv6,
    /// The ports of a TCP segment.
    Tcp,
    /// The ports of a UDP datagram.
    Udp,
}

impl From<Vec<RssField>> for RssFields {
    fn from(fields: Vec<RssField>) -> Self {
        let has = |field| fields.contains(&field);
        Self { ipv4: has(RssField::Ipv4), ipv6: has(RssField::Ipv6), tcp: has(RssField::Tcp), udp: has(RssField::Udp) }
    }
}

impl From<RssFields> for Vec<RssField> {
    fn from(RssFields { ipv4, ipv6, tcp, udp }: RssFields) -> Self {
        let fields = [(ipv4, RssField::Ipv4), (ipv6, RssField::Ipv6), (tcp, RssField::Tcp), (udp, RssField::Udp)];
        fields.into_iter().filter_map(|(is_hashed, field)| is_hashed.then_some(field)).collect()
    }
}

/// The key of the Toeplitz hash, written `"default"` ([`RssKey::STANDARD`]), `"symmetric"` ([`RssKey::SYMMETRIC`]) or
/// as 40 bytes in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RssKey(pub [u8; 40]);

impl RssKey {
    /// The key of the verification suite in Microsoft's RSS specification, which many drivers use by default.
    pub const STANDARD: Self = Self([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// The bytes `6d5a`, repeated twenty times. With this key, both directions of a flow have the same hash.
    pub const SYMMETRIC: Self = {
        let mut key = [0x6d; 40];
        let mut i = 1;
        while i < key.len() {
            key[i] = 0x5a;
            i += 2;
        }
        Self(key)
    };
}

impl fmt::Display for RssKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::STANDARD => f.write_str("default"),
            Self::SYMMETRIC => f.write_str("symmetric"),
            Self(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

impl FromStr for RssKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "default" => return Ok(Self::STANDARD),
            "symmetric" => return Ok(Self::SYMMETRIC),
            _ => {}
        }
        let mut bytes = [0; 40];
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
        match digits {
            Some(digits) if digits.len() == 80 => {
                for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
                    *byte = pair[0] << 4 | pair[1];
                }
                Ok(Self(bytes))
            }
            _ => Err(format!(
                "`{text}` is not an RSS key; help: write \"default\", \"symmetric\" or 80 hexadecimal digits"
            )),
        }
    }
}

impl Serialize for RssKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RssKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = RssKey;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"default\", \"symmetric\" or 80 hexadecimal digits")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RssKey, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// How the device distributes packets over workers. All packets of a flow go to the same worker. `packet`, `xdp` and
/// `tap` links ignore `[port.rss]`, because the kernel or the NIC distributes their packets.
///
/// ```toml
/// [[port]]
/// name   = "wan"
/// device = "mlx5_0"
///
/// [port.rss]
/// fields = ["ipv4", "ipv6"]
/// key    = "symmetric"
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RssSpec {
    /// The key of the Toeplitz hash: `"default"`, `"symmetric"` or 80 hexadecimal digits. With `"symmetric"`, both
    /// directions of a flow go to the same worker.
    #[schemars(with = "String")]
    pub key: RssKey,
    /// The header fields that the device hashes. Packets without any of these fields go to the first worker.
    #[schemars(with = "Vec<RssField>")]
    pub fields: RssFields,
}

impl RssSpec {
    /// [`RssKey::STANDARD`], with all fields hashed.
    pub const STANDARD: Self = Self { key: RssKey::STANDARD, fields: RssFields::ALL };

    /// [`RssKey::SYMMETRIC`], with all fields hashed.
    pub const SYMMETRIC: Self = Self { key: RssKey::SYMMETRIC, fields: RssFields::ALL };
}

impl Default for RssSpec {
    fn default() -> Self {
        Self::STANDARD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_round_trip_through_text() {
        let key = "01".repeat(40);
        for text in ["default", "symmetric", &key] {
            assert_eq!(text.parse::<RssKey>().unwrap().to_string(), text);
        }
        assert_eq!("6d5a".repeat(20).parse(), Ok(RssKey::SYMMETRIC));
    }

    #[test]
    fn malformed_keys_are_rejected() {
        for text in ["", "6d5a", "é"] {
            assert!(text.parse::<RssKey>().is_err(), "{text}");
        }
    }
}
