//! Newtypes for the quantities and names that must not be mixed up. They parse and print, nothing more.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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
    /// A logical processor, numbered as the operating system numbers it.
    CoreId(u32)
}
number! {
    /// A NUMA node, numbered as the operating system numbers it.
    NumaNode(u32)
}
number! {
    /// The number of a queue pair: 24 bits, unique on its device.
    QpNum(u32)
}
number! {
    /// The local key of a memory region: names it in a scatter/gather element.
    Lkey(u32)
}
number! {
    /// The remote key of a memory region or window: lets the peer name it.
    Rkey(u32)
}
number! {
    /// A count of a clock whose frequency is its own; [`crate::clock`] turns it into [`Nanos`].
    Ticks(u64)
}
number! {
    /// Nanoseconds.
    Nanos(u64)
}

/// The address of a port, 128 bits: of InfiniBand its own, of RoCE that of the interface, an IPv4 address as
/// `::ffff:192.0.2.1` (InfiniBand Architecture Specification, annex 17). Written as an IPv6 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether all of it is 0: an address that is not set.
    pub fn is_zero(self) -> bool {
        self == Self::default()
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
                Err(format!("`{text}` is no GID: write it as an IPv6 address, such as \"fe80::1\", or an IPv4 one"))
            }
        }
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

/// A number of bytes. Written `2048`, `"64K"`, `"2M"` or `"1G"` (powers of 1,024).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, suffix) in [(30, "G"), (20, "M"), (10, "K")] {
            if self.0 != 0 && self.0.is_multiple_of(1 << shift) {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        self.0.fmt(f)
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, shift) = match text.as_bytes().last() {
            Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
            Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
            Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
            _ => (text, 0),
        };
        let number: u64 = digits
            .parse()
            .map_err(|_| format!("`{text}` is no number of bytes: write 2048, \"64K\", \"2M\" or \"1G\""))?;
        number
            .checked_mul(1 << shift)
            .map(Bytes)
            .ok_or_else(|| format!("`{text}` is more bytes than 64 bits can count"))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, such as 2048 or \"2M\"")
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Bytes, E> {
                u64::try_from(value)
                    .map(Bytes)
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(value), &self))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Bytes, E> {
                Ok(Bytes(value))
            }
            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Bytes, E> {
                value.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gids_parse_and_print_alike() {
        for text in ["::", "fe80::1", "::ffff:127.0.0.1"] {
            assert_eq!(text.parse::<Gid>().unwrap().to_string(), text);
        }
        assert_eq!("127.0.0.1".parse::<Gid>(), "::ffff:127.0.0.1".parse());
        assert!("fe80".parse::<Gid>().unwrap_err().contains("`fe80`"));
    }

    #[test]
    fn bytes_parse_and_print_alike() {
        for text in ["0", "1", "2047", "64K", "2M", "1G", "3G"] {
            assert_eq!(text.parse::<Bytes>().unwrap().to_string(), text);
        }
        assert_eq!("1024".parse::<Bytes>().unwrap().to_string(), "1K");
        for wrong in ["", "K", "-1", "1.5M", "1T", "99999999999G"] {
            assert!(wrong.parse::<Bytes>().unwrap_err().contains(wrong));
        }
    }
}
