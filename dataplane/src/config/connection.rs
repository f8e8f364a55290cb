//! `[port.connection]`: how the queue pairs of a port find their peers, and every attribute that they are connected with.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::diagnostics::{Diagnostics, Mistake};
use super::load::Loaded;
use super::port::{Port, Qp};
use super::types::{Period, within, within_some};
use crate::units::Gid;

/// The kind of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GidKind {
    /// Of InfiniBand.
    Infiniband,
    /// RoCE in Ethernet frames of a type of their own.
    RoceV1,
    /// RoCE over UDP.
    RoceV2,
}

/// What the peer may do to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RemoteAccess {
    /// Write it.
    RemoteWrite,
    /// Read it.
    RemoteRead,
    /// Compare-and-swap and fetch-and-add.
    RemoteAtomic,
}

/// How the queue pairs of a port find their peers, and every attribute that they are connected with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Connection {
    /// The address and TCP port at which the peer is waited for, such as `"192.0.2.1:18515"` or `"[::]:18515"`. A
    /// connection has one of `listen`, `to` and `peer`.
    #[serde(deserialize_with = "socket_address", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// The address and TCP port at which the peer waits.
    #[serde(deserialize_with = "socket_address", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub to: Option<SocketAddr>,
    /// The port of this config at the other end, which names this one in turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The only address that is listened to. Absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub from: Option<IpAddr>,
    /// How long the peer is waited for in all.
    #[schemars(with = "String")]
    pub deadline: Period,
    /// How long one step of the exchange with a peer may take: it is then let go, and the next is waited for.
    #[schemars(with = "String")]
    pub step_deadline: Period,
    /// Whether a queue pair may be its own peer.
    pub allow_self: bool,
    /// The address of the device's port that is used, written as an IPv6 or IPv4 address. Absent: the first of its
    /// `gid_kind`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub gid: Option<Gid>,
    /// The kind of that address. Absent: `"roce_v2"` where the port has one, otherwise that of its first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_kind: Option<GidKind>,
    /// The place of that address in the port's table, instead of `gid` and `gid_kind`. It may move when addresses change.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub gid_index: Option<u8>,
    /// The place of the partition key in the port's table.
    #[serde(deserialize_with = "within::<_, u16, 0, 65535>")]
    #[schemars(range(min = 0, max = 65535))]
    pub pkey_index: u16,
    /// What the peer may do to registered memory; of connections.
    pub access: Vec<RemoteAccess>,
    /// What a datagram must carry to be taken in. From 2147483648 on it takes CAP_NET_RAW.
    #[serde(deserialize_with = "within::<_, u32, 0, 4294967295>")]
    #[schemars(range(min = 0, max = 4294967295u32))]
    pub qkey: u32,
    /// The largest payload of a packet in bytes: 256, 512, 1024, 2048 or 4096. The smaller of both sides counts. Absent:
    /// the largest that the port carries now.
    #[serde(deserialize_with = "within_some::<_, u16, 256, 4096>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256, max = 4096))]
    pub path_mtu: Option<u16>,
    /// Whether packets carry a global route header. On Ethernet they always do. Absent: where the peer says its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grh: Option<bool>,
    /// Hops that a packet may take.
    #[serde(deserialize_with = "within::<_, u8, 1, 255>")]
    #[schemars(range(min = 1, max = 255))]
    pub hop_limit: u8,
    /// Traffic class: of RoCE over UDP the byte of DSCP and ECN.
    #[serde(deserialize_with = "within::<_, u8, 0, 255>")]
    #[schemars(range(min = 0, max = 255))]
    pub traffic_class: u8,
    /// Flow label.
    #[serde(deserialize_with = "within::<_, u32, 0, 1048575>")]
    #[schemars(range(min = 0, max = 1048575))]
    pub flow_label: u32,
    /// Service level: on Ethernet 0 to 7.
    #[serde(deserialize_with = "within::<_, u8, 0, 15>")]
    #[schemars(range(min = 0, max = 15))]
    pub service_level: u8,
    /// Path bits of the source: below 2 to the power of the port's mask count, which is 0 on Ethernet.
    #[serde(deserialize_with = "within::<_, u8, 0, 127>")]
    #[schemars(range(min = 0, max = 127))]
    pub source_path_bits: u8,
    /// The most that is sent, as `enum ibv_rate` of verbs.h numbers it: 0 no limit, 2 2.5 Gbit/s, 3 10, 7 40, 15 25, 16
    /// 100, 17 200 and so on.
    #[serde(deserialize_with = "within::<_, u8, 0, 24>")]
    #[schemars(range(min = 0, max = 24))]
    pub static_rate: u8,
    /// The number of the first packet sent. Each time that the connection is made anew it is another.
    #[serde(deserialize_with = "within::<_, u32, 0, 16777215>")]
    #[schemars(range(min = 0, max = 16777215))]
    pub sq_psn: u32,
    /// The number of the first packet received: the peer's `sq_psn`, or the handshake fails. Absent: what the peer says.
    #[serde(deserialize_with = "within_some::<_, u32, 0, 16777215>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16777215))]
    pub rq_psn: Option<u32>,
    /// Reads and atomics that this side has under way. The peer's `max_dest_rd_atomic` counts where it is less. Of rc.
    #[serde(deserialize_with = "within::<_, u8, 0, 255>")]
    #[schemars(range(min = 0, max = 255))]
    pub max_rd_atomic: u8,
    /// Reads and atomics that the peer may have under way. Of rc.
    #[serde(deserialize_with = "within::<_, u8, 0, 255>")]
    #[schemars(range(min = 0, max = 255))]
    pub max_dest_rd_atomic: u8,
    /// How long the peer waits before it sends again what came when no buffer waited, in the code of the InfiniBand
    /// specification: 1 0.01 ms, 12 0.64 ms, 16 2.56 ms, 31 491.52 ms, 0 655.36 ms. Of rc.
    #[serde(deserialize_with = "within::<_, u8, 0, 31>")]
    #[schemars(range(min = 0, max = 31))]
    pub min_rnr_timer: u8,
    /// How long an acknowledgement is waited for: 4.096 µs times 2 to the power of this; 0: for ever. Of rc.
    #[serde(deserialize_with = "within::<_, u8, 0, 31>")]
    #[schemars(range(min = 0, max = 31))]
    pub timeout: u8,
    /// How often what is not acknowledged is sent again. Some devices take 7 for ever. Of rc.
    #[serde(deserialize_with = "within::<_, u8, 0, 7>")]
    #[schemars(range(min = 0, max = 7))]
    pub retry_count: u8,
    /// How often is sent again what found no buffer at the peer; 7: for ever. Of rc.
    #[serde(deserialize_with = "within::<_, u8, 0, 7>")]
    #[schemars(range(min = 0, max = 7))]
    pub rnr_retry: u8,
    /// The other path to the peer, to which the adapter moves the connection when the first fails: of rc and uc on
    /// InfiniBand, for RoCE has none. Absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alternate: Option<Alternate>,
    /// What is done about that path once the connection is made: `"migrated"` stay where it is, `"rearm"` get ready to
    /// move as soon as the peer is too, `"armed"` move when the first path fails. Absent: what the device begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_migration: Option<PathMigration>,
}

/// What an adapter does about the other path of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathMigration {
    /// It stays where it is.
    Migrated,
    /// It gets ready to move as soon as the peer is too.
    Rearm,
    /// It moves when the first path fails.
    Armed,
}

/// The other path to the peer. The peer does not tell of it: its addresses there are said here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Alternate {
    /// The local identifier of the peer's port there.
    #[serde(deserialize_with = "within::<_, u16, 1, 65535>")]
    #[schemars(range(min = 1, max = 65535))]
    pub lid: u16,
    /// The address of the peer's port there. Absent: packets carry no global route header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub gid: Option<Gid>,
    /// The port of the device.
    #[serde(default = "first_port", deserialize_with = "within::<_, u8, 1, 255>")]
    #[schemars(range(min = 1, max = 255))]
    pub device_port: u8,
    /// The place of the own address in that port's table; with `gid`.
    #[serde(default, deserialize_with = "within::<_, u8, 0, 255>")]
    #[schemars(range(min = 0, max = 255))]
    pub source_gid_index: u8,
    /// The place of the partition key in that port's table.
    #[serde(default, deserialize_with = "within::<_, u16, 0, 65535>")]
    #[schemars(range(min = 0, max = 65535))]
    pub pkey_index: u16,
    /// How long an acknowledgement is waited for there, coded as `timeout` of the connection.
    #[serde(default = "timeout", deserialize_with = "within::<_, u8, 0, 31>")]
    #[schemars(range(min = 0, max = 31))]
    pub timeout: u8,
    /// Service level.
    #[serde(default, deserialize_with = "within::<_, u8, 0, 15>")]
    #[schemars(range(min = 0, max = 15))]
    pub service_level: u8,
    /// Path bits of the source.
    #[serde(default, deserialize_with = "within::<_, u8, 0, 127>")]
    #[schemars(range(min = 0, max = 127))]
    pub source_path_bits: u8,
    /// The most that is sent, numbered as `static_rate` of the connection.
    #[serde(default, deserialize_with = "within::<_, u8, 0, 24>")]
    #[schemars(range(min = 0, max = 24))]
    pub static_rate: u8,
}

fn first_port() -> u8 {
    1
}

fn timeout() -> u8 {
    14
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            listen: None,
            to: None,
            peer: None,
            from: None,
            deadline: Period(Duration::from_secs(30)),
            step_deadline: Period(Duration::from_secs(5)),
            allow_self: false,
            gid: None,
            gid_kind: None,
            gid_index: None,
            pkey_index: 0,
            access: Vec::new(),
            qkey: 0x1111_1111,
            path_mtu: None,
            grh: None,
            hop_limit: 255,
            traffic_class: 0,
            flow_label: 0,
            service_level: 0,
            source_path_bits: 0,
            static_rate: 0,
            sq_psn: 0,
            rq_psn: None,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 16,
            timeout: timeout(),
            retry_count: 6,
            rnr_retry: 6,
            alternate: None,
            path_migration: None,
        }
    }
}

fn socket_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let address = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
    address.map(Some).ok_or_else(|| {
        let help = "write an IP address and a port: \"192.0.2.1:18515\" or \"[2001:db8::1]:18515\"";
        serde::de::Error::custom(format!("`{text}` is no address with a port\n{help}"))
    })
}

/// Checks the connection of a port, or that it has none where there can be none: all but its `peer`.
pub(super) fn connection(loaded: &Loaded<'_>, index: usize, port: &Port, diagnostics: &mut Diagnostics) {
    let place = format!("port[{index}]");
    let kind = port.qp.name();
    let Some(connection) = &port.connection else {
        if port.qp != Qp::RawPacket && !loaded.damaged {
            let mistake = Mistake::error(
                loaded.locate(&format!("{place}.qp")),
                format!("{kind} queue pairs need to know their peer"),
            );
            diagnostics.push(mistake.help("add connection = { listen = \"address:port\" }, or `to`, or `peer`"));
        }
        return;
    };
    let at = |key: &str| loaded.locate(&format!("{place}.connection{key}"));
    if port.qp == Qp::RawPacket {
        let mistake = Mistake::error(at(""), "queue pairs of raw packets have no connection");
        diagnostics.push(mistake.help("take `connection` out, or write qp = \"rc\", \"uc\" or \"ud\""));
        return;
    }
    let mut error = |key: &str, message: String, help: &str| {
        diagnostics.push(Mistake::error(at(&format!(".{key}")), message).help(help));
    };
    let ways: Vec<&str> =
        [("listen", connection.listen.is_some()), ("to", connection.to.is_some()), ("peer", connection.peer.is_some())]
            .into_iter()
            .filter_map(|(key, given)| given.then_some(key))
            .collect();
    match ways[..] {
        [_] => {}
        [] if loaded.damaged => {}
        [] => {
            let message = "this connection does not say how the peer is found".to_owned();
            error("", message, "add `listen` or `to` with an address and port, or `peer` with a port of this config");
        }
        [first, second, ..] => {
            error(second, format!("`{first}` and `{second}` are both given"), "take one of them out");
        }
    }
    if connection.from.is_some() && connection.listen.is_none() {
        error("from", "`from` is about `listen`, and there is none".to_owned(), "add `listen`, or take `from` out");
    }
    for (key, period) in [("deadline", connection.deadline), ("step_deadline", connection.step_deadline)] {
        if period.0.is_zero() {
            error(key, format!("a {key} of 0 lets no peer come"), "make it some seconds, such as \"5s\"");
        }
    }
    if connection.gid_index.is_some() {
        for (key, given) in [("gid", connection.gid.is_some()), ("gid_kind", connection.gid_kind.is_some())] {
            if given {
                error("gid_index", format!("`gid_index` and `{key}` both choose the address"), "take one of them out");
            }
        }
    }
    if connection.gid.is_some_and(Gid::is_zero) {
        error("gid", "this GID is 0, which no port has".to_owned(), "`dataplane devices` shows those of each port");
    }
    if connection.path_mtu.is_some_and(|mtu| !mtu.is_power_of_two()) {
        error("path_mtu", "this is no size of packets".to_owned(), "make it 256, 512, 1024, 2048 or 4096");
    }
    if connection.static_rate == 1 {
        error("static_rate", "verbs.h has no rate 1".to_owned(), "make it 0 for no limit, or 2 for 2.5 Gbit/s");
    }
    if connection.path_migration.is_some() && connection.alternate.is_none() {
        let help = "add `alternate`, or take `path_migration` out";
        error("path_migration", "`path_migration` is about `alternate`, and there is none".to_owned(), help);
    }
    for key in connection.idle(port.qp) {
        error(key, format!("{kind} queue pairs have no `{key}`"), "take it out");
    }
    let mut warning = |key: &str, message: String, help: &str| {
        diagnostics.push(Mistake::warning(at(&format!(".{key}")), message).help(help));
    };
    if port.qp == Qp::Rc {
        if connection.retry_count == 7 {
            let message = "some devices take a retry_count of 7 for ever: a peer that died is then never noticed";
            warning("retry_count", message.to_owned(), "make it at most 6");
        }
        if connection.rnr_retry == 7 {
            let message = "an rnr_retry of 7 is for ever: a peer that stopped taking packets stops this port too";
            warning("rnr_retry", message.to_owned(), "make it at most 6, unless that is meant");
        }
        if connection.timeout == 0 {
            let message = "a timeout of 0 is for ever: a packet that is lost is never sent again";
            warning("timeout", message.to_owned(), "make it 14 (67 ms), for example");
        }
    }
    if port.qp == Qp::Ud && connection.qkey >= 1 << 31 {
        let message = format!("a qkey of {} takes CAP_NET_RAW", connection.qkey);
        warning("qkey", message, "make it less than 2147483648, unless the program has that capability");
    }
}

impl Connection {
    /// The keys that are not as usual and of no use with queue pairs of this type.
    fn idle(&self, qp: Qp) -> Vec<&'static str> {
        let usual = Self::default();
        let of_rc = [
            ("max_rd_atomic", self.max_rd_atomic != usual.max_rd_atomic),
            ("max_dest_rd_atomic", self.max_dest_rd_atomic != usual.max_dest_rd_atomic),
            ("min_rnr_timer", self.min_rnr_timer != usual.min_rnr_timer),
            ("timeout", self.timeout != usual.timeout),
            ("retry_count", self.retry_count != usual.retry_count),
            ("rnr_retry", self.rnr_retry != usual.rnr_retry),
        ];
        let connected = [
            ("access", self.access != usual.access),
            ("rq_psn", self.rq_psn != usual.rq_psn),
            ("alternate", self.alternate.is_some()),
            ("path_migration", self.path_migration.is_some()),
        ];
        let of_ud = [("qkey", self.qkey != usual.qkey)];
        let none: &[(&'static str, bool)] = &[];
        let (first, second) = match qp {
            Qp::RawPacket => (none, none),
            Qp::Rc => (none, &of_ud[..]),
            Qp::Uc => (&of_rc[..], &of_ud[..]),
            Qp::Ud => (&of_rc[..], &connected[..]),
        };
        first.iter().chain(second).filter(|(_, given)| *given).map(|(key, _)| *key).collect()
    }
}
