//! `[port.connection]`: how the queue pairs of a port find their peers, and the attributes of the connections.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use dataplane_core::connect::EndpointParameters;
use dataplane_core::units::Period;

/// How the queue pairs of a port find their peers, and the attributes of the connections. A peer is the queue pair at
/// the other end of a connection. Each worker has its own queue pair, which connects to the queue pair of the worker
/// with the same index at the other end. Both ends must therefore have the same number of workers.
///
/// A port that listens for its peer, with unreliable datagrams:
///
/// ```toml
/// [[port]]
/// name   = "a"
/// device = "mlx5_0"
/// qp     = "ud"
///
/// [port.connection]
/// listen        = "192.0.2.1:18515"
/// from          = "192.0.2.2"
/// deadline      = "1m"
/// step_deadline = "2s"
/// gid_kind      = "roce_v2"
/// qkey          = 1234
/// pkey_index    = 0
/// hop_limit     = 64
/// traffic_class = 104
/// flow_label    = 7
/// service_level = 3
/// sq_psn        = 100
/// grh           = true
/// ```
///
/// Another example: a port that connects to a listening peer over InfiniBand, with a reliable connection and an
/// alternate path:
///
/// ```toml
/// [[port]]
/// name   = "b"
/// device = "mlx5_1"
/// qp     = "rc"
///
/// [port.connection]
/// to                 = "192.0.2.9:18515"
/// gid_index          = 3
/// access             = ["remote_read", "remote_write"]
/// path_mtu           = 2048
/// rq_psn             = 200
/// source_path_bits   = 1
/// static_rate        = 16
/// max_rd_atomic      = 4
/// max_dest_rd_atomic = 4
/// min_rnr_timer      = 12
/// timeout            = 15
/// retry_count        = 7
/// rnr_retry          = 7
/// path_migration     = "rearm"
///
/// [port.connection.alternate]
/// lid              = 7
/// gid              = "fe80::2"
/// device_port      = 2
/// source_gid_index = 1
/// pkey_index       = 0
/// timeout          = 15
/// service_level    = 3
/// source_path_bits = 1
/// static_rate      = 16
/// ```
///
/// Two ports of one config:
///
/// ```toml
/// [[port]]
/// name       = "left"
/// device     = "mlx5_0"
/// qp         = "uc"
/// connection = { peer = "right", gid = "fe80::1" }
///
/// [[port]]
/// name       = "right"
/// device     = "mlx5_1"
/// qp         = "uc"
/// connection = { peer = "left", gid = "fe80::2" }
/// ```
///
/// A port that is its own peer, to test one device:
///
/// ```toml
/// [[port]]
/// name       = "self"
/// device     = "mlx5_0"
/// qp         = "rc"
/// connection = { peer = "self", allow_self = true }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Connection {
    /// How the queue pairs find their peers.
    #[serde(flatten)]
    pub rendezvous: RendezvousConfig,
    /// The attributes of the queue pairs, except the port of the device. The key `device_port` of `[[port]]` selects
    /// the port of the device.
    #[serde(flatten)]
    pub parameters: EndpointParameters,
}

/// Deserializes the two parts from two separate tables, because `#[serde(flatten)]` loses the positions of values.
/// `split` creates these tables.
impl<'de> Deserialize<'de> for Connection {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Parts {
            rendezvous: RendezvousConfig,
            parameters: EndpointParameters,
        }
        let Parts { rendezvous, parameters } = Parts::deserialize(deserializer)?;
        Ok(Self { rendezvous, parameters })
    }
}

/// Converts `connection = { listen = "…", qkey = 1 }` to `connection = { rendezvous = { listen = "…" }, parameters = {
/// qkey = 1 } }`.
pub(super) fn split(port: &mut DeTable<'_>) {
    const RENDEZVOUS_KEYS: [&str; 6] = ["listen", "to", "peer", "from", "deadline", "step_deadline"];
    let Some(connection) = port.get_mut("connection") else { return };
    let span = connection.span();
    let DeValue::Table(table) = connection.get_mut() else { return };
    let (mut rendezvous, mut parameters) = (DeTable::new(), DeTable::new());
    for (key, value) in std::mem::take(table) {
        let is_own = RENDEZVOUS_KEYS.contains(&key.get_ref().as_ref());
        if is_own { &mut rendezvous } else { &mut parameters }.insert(key, value);
    }
    for (name, part) in [("rendezvous", rendezvous), ("parameters", parameters)] {
        table.insert(Spanned::new(span.clone(), name.into()), Spanned::new(span.clone(), DeValue::Table(part)));
    }
}

/// How the queue pairs of a port find their peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RendezvousConfig {
    /// The address and TCP port to listen on for the peer, such as `"192.0.2.1:18515"` or `"[::]:18515"`. A connection
    /// needs exactly one of `listen`, `to` and `peer`.
    #[serde(deserialize_with = "socket_address", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// The address and TCP port on which the peer listens, such as `"192.0.2.1:18515"`.
    #[serde(deserialize_with = "socket_address", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub to: Option<SocketAddr>,
    /// The name of the other port, if both ends are ports of this config. The other port must name this port as its
    /// `peer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The IP address of the peer. The program refuses TCP connections from all other addresses. Only with `listen`.
    /// Default: the program accepts connections from any address.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub from: Option<IpAddr>,
    /// The maximum time that the program waits for the peer at startup. If no peer has connected by the end of this
    /// time, the run ends with an error, unless the port has `required = false`. At most `"365d"`.
    pub deadline: Period,
    /// The maximum duration of one step of the handshake with a peer. If a step takes longer, the program closes the
    /// TCP connection with this peer. The side with `listen` then waits for the next client, and the side with `to`
    /// connects again. At most `"365d"`.
    pub step_deadline: Period,
}

impl Default for RendezvousConfig {
    fn default() -> Self {
        Self {
            listen: None,
            to: None,
            peer: None,
            from: None,
            deadline: Period::from_secs(30),
            step_deadline: Period::from_secs(5),
        }
    }
}

impl RendezvousConfig {
    /// Returns the address on which this side listens, if `other` cannot listen at the same time. A listener on a
    /// wildcard address uses the TCP port of all addresses. The listener on `[::]` also accepts connections over IPv4.
    /// Listeners on the same link-local address of two interfaces do not collide. The kernel ignores the interface of
    /// other addresses.
    pub(crate) fn shared_listener(&self, other: &Self) -> Option<SocketAddr> {
        let (one, two) = (self.listen?, other.listen?);
        let scope = |address: SocketAddr| match address {
            SocketAddr::V6(address) if address.ip().is_unicast_link_local() && address.scope_id() != 0 => {
                Some(address.scope_id())
            }
            _ => None,
        };
        let two_interfaces = scope(one).zip(scope(two)).is_some_and(|(one, two)| one != two);
        let all_v4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        let covers = |one: IpAddr, two: IpAddr| match one.to_canonical() {
            IpAddr::V6(address) if address.is_unspecified() => true,
            address if address == all_v4 => two.to_canonical().is_ipv4(),
            address => address == two.to_canonical() && !two_interfaces,
        };
        let overlap = covers(one.ip(), two.ip()) || covers(two.ip(), one.ip());
        (one.port() == two.port() && overlap).then_some(one)
    }
}

fn socket_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let address = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
    address.map(Some).ok_or_else(|| {
        let help = "write an IP address and a port: \"192.0.2.1:18515\" or \"[2001:db8::1]:18515\"";
        serde::de::Error::custom(format!("`{text}` is not an IP address with a port from 1 to 65535; help: {help}"))
    })
}
