//! Types of config values that are written as strings with their own format.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Implements serde's traits through `Display` and `FromStr`.
macro_rules! as_string {
    ($name:ident, $expecting:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
    };
}

/// The control socket of a running program, written `"auto"`, `"none"` or as a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// A socket in a default folder. The file name contains the process id.
    #[default]
    Auto,
    /// No control socket.
    None,
    /// A socket at this path.
    Path(PathBuf),
}

as_string!(Control, "\"auto\", \"none\", or the path of a socket");

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::None => f.write_str("none"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Control {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("the path is empty; help: write \"auto\", \"none\", or the path of a socket".to_owned()),
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            path => Ok(Self::Path(path.into())),
        }
    }
}

/// The address of the metrics server, written `"none"`, as an IP address and a TCP port, or as `unix:` and a path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Metrics {
    /// No metrics server.
    #[default]
    None,
    /// This IP address and TCP port.
    Tcp(SocketAddr),
    /// A Unix socket at this path.
    Unix(PathBuf),
}

as_string!(Metrics, "\"none\", an address such as \"127.0.0.1:9464\", or a path such as \"unix:/run/metrics.sock\"");

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for Metrics {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let help = "help: write \"none\", an IP address and a port such as \"127.0.0.1:9464\", or a path such as \
                    \"unix:/run/metrics.sock\"";
        match text {
            "none" => return Ok(Self::None),
            "unix:" => return Err(format!("the path after `unix:` is empty; {help}")),
            _ => {}
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(path.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() == 0 => Err(format!("`{text}` has the port 0; {help}")),
            Ok(address) => Ok(Self::Tcp(address)),
            Err(_) => Err(format!("`{text}` is neither an IP address with a port nor a Unix socket; {help}")),
        }
    }
}

/// An IP address of a port and the prefix length of its subnet, written `"192.0.2.1/24"` or `"2001:db8::1/64"`. Without
/// a prefix length, the subnet contains only this address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub IpNet);

as_string!(Address, "an address and its prefix length, such as \"192.0.2.1/24\"");

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let net = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        let net: IpNet = net.map_err(|_| {
            format!(
                "`{text}` is not an IP address; help: write the address with its prefix length: \"192.0.2.1/24\" or \"2001:db8::1/64\""
            )
        })?;
        let address = net.addr();
        let is_host = match net {
            IpNet::V4(net) => {
                let is_network =
                    net.prefix_len() < 31 && (net.addr() == net.network() || net.addr() == net.broadcast());
                !is_network && !net.addr().is_broadcast()
            }
            IpNet::V6(_) => true,
        };
        if !is_host || address.is_unspecified() || address.is_multicast() {
            return Err(format!("`{text}` is not the address of a single host"));
        }
        Ok(Self(net))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_keeps_its_prefix_length_and_must_be_a_host() {
        for (text, whole) in [
            ("192.0.2.1/24", "192.0.2.1/24"),
            ("192.0.2.1", "192.0.2.1/32"),
            ("192.0.2.0/31", "192.0.2.0/31"),
            ("2001:db8::1/64", "2001:db8::1/64"),
            ("fe80::1", "fe80::1/128"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), whole);
        }
        for (text, message) in [
            ("192.0.2.1/33", "is not an IP address"),
            ("eth0", "is not an IP address"),
            ("192.0.2.0/24", "is not the address of a single host"),
            ("192.0.2.255/24", "is not the address of a single host"),
            ("224.0.0.1", "is not the address of a single host"),
            ("0.0.0.0", "is not the address of a single host"),
            ("255.255.255.255", "is not the address of a single host"),
            ("ff02::1/64", "is not the address of a single host"),
            ("::", "is not the address of a single host"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn config_values_round_trip_through_text() {
        for text in ["auto", "none", "./auto", "/run/edge.sock"] {
            assert_eq!(text.parse::<Control>().unwrap().to_string(), text);
        }
        for text in ["none", "127.0.0.1:9464", "[::1]:9464", "unix:/run/metrics.sock"] {
            assert_eq!(text.parse::<Metrics>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn malformed_metrics_addresses_are_rejected() {
        for (text, message) in [
            ("", "`` is neither an IP address with a port nor a Unix socket"),
            ("auto", "`auto` is neither an IP address with a port nor a Unix socket"),
            (":9464", "`:9464` is neither an IP address with a port nor a Unix socket"),
            ("127.0.0.1", "`127.0.0.1` is neither an IP address with a port nor a Unix socket"),
            ("localhost:9464", "`localhost:9464` is neither an IP address with a port nor a Unix socket"),
            ("127.0.0.1:0", "`127.0.0.1:0` has the port 0"),
            ("unix:", "the path after `unix:` is empty"),
        ] {
            let error = text.parse::<Metrics>().unwrap_err();
            assert!(error.starts_with(message) && error.contains("help: "), "{text}: {error}");
        }
    }
}
