//! The parameters of a connection, and the check whether a device supports them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connect::access::{self, RemoteAccess};
use crate::connect::alternate::{AlternatePath, DEFAULT_TIMEOUT, PathMigration};
use crate::connect::gids::{default_gid, same_host_gid};
use crate::connect::mistakes::Mistakes;
use crate::error::{Error, Result};
use crate::units::{Gid, within, within_some};
use crate::verbs::{Access, Capability, Device, GidEntry, GidKind, LinkLayer, PortState, QpType};

/// The largest packet sequence number and the largest queue pair number: 24 bits.
pub(super) const MAX_24: u32 = 0xff_ffff;

/// All attributes that the local side chooses for the state changes from RESET to RTS. The attributes cover reliable
/// connections, unreliable connections and datagrams. Attributes that a queue pair type does not use are ignored.
///
/// The defaults are the values that the crate `ibverbs` on crates.io uses in its handshake and in its builder, except
/// `timeout`. That crate uses a `timeout` of 4 (65 µs), but a software device under load needs more time to
/// acknowledge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointParameters {
    /// The port of the device, from 1.
    #[serde(skip)]
    pub port: u8,
    /// Whether the peer is another port of the same host. The default GID is then [`same_host_gid`] instead of
    /// [`default_gid`].
    #[serde(skip)]
    pub same_host: bool,
    /// Whether a queue pair may be its own peer.
    pub allow_self: bool,
    /// The local GID (the address of the device's port), written as an IPv6 or IPv4 address. Default: a GID of the kind
    /// `gid_kind`. With `"roce_v2"`, the default is the first GID with an IPv4 address, otherwise the first GID with an
    /// IPv6 address, otherwise a link-local GID. If `peer` names a port on another device or on another `device_port`,
    /// the default is a link-local GID, because Linux cannot resolve the other addresses of an interface of the same
    /// host. The first GID of a port is link-local, but may not be an address of the interface. If the interface has
    /// another link-local address, this address is the default instead of the first GID. With other kinds, the default
    /// is the first GID. If addresses are added or removed, the default may change, and the port then connects again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<Gid>,
    /// The kind of the local GID. On Ethernet, both ends must use the same kind. Default: `"roce_v2"` if the port has
    /// such a GID, otherwise the kind of the first GID of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_kind: Option<GidKind>,
    /// The index of the local GID in the GID table of the port. Not together with `gid` or `gid_kind`. The index of a
    /// GID may change if addresses of the interface change.
    #[serde(deserialize_with = "within_some::<_, u8, 0, 255>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 255))]
    pub gid_index: Option<u8>,
    /// The index of the partition key (P_Key) in the partition key table of the port.
    #[serde(deserialize_with = "within::<_, u16, 0, 65535>")]
    #[schemars(range(min = 0, max = 65535))]
    pub pkey_index: u16,
    /// The RDMA operations that the peer may perform on memory of this side. Only with the `qp` types `"rc"` and
    /// `"uc"`. Default: none.
    #[serde(with = "access")]
    #[schemars(with = "Vec<RemoteAccess>")]
    pub access: Access,
    /// The queue key (Q_Key), which every received datagram must contain. Values of 2147483648 or more need
    /// CAP_NET_RAW. Only with `qp = "ud"`.
    #[serde(deserialize_with = "within::<_, u32, 0, 4294967295>")]
    #[schemars(range(min = 0, max = 4294967295u32))]
    pub qkey: u32,
    /// The maximum payload of an RDMA packet in bytes: 256, 512, 1024, 2048 or 4096. The connection uses the smaller
    /// value of the two sides. Default: the largest value that the active MTU of the port permits.
    #[serde(deserialize_with = "within_some::<_, u16, 256, 4096>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 256, max = 4096))]
    pub path_mtu: Option<u16>,
    /// Whether packets contain a global route header. On Ethernet, and on InfiniBand ports that require this header,
    /// packets always contain the header, and `false` is an error. Set the same value on both sides. `false` is only
    /// possible if neither port requires the header. Default: `true` if both sides have a GID, otherwise `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grh: Option<bool>,
    /// The hop limit of sent packets.
    #[serde(deserialize_with = "within::<_, u8, 1, 255>")]
    #[schemars(range(min = 1, max = 255))]
    pub hop_limit: u8,
    /// The traffic class of sent packets. For RoCE v2, this is the byte with DSCP and ECN in the IP header.
    #[serde(deserialize_with = "within::<_, u8, 0, 255>")]
    #[schemars(range(min = 0, max = 255))]
    pub traffic_class: u8,
    /// The flow label of sent packets.
    #[serde(deserialize_with = "within::<_, u32, 0, 1048575>")]
    #[schemars(range(min = 0, max = 1048575))]
    pub flow_label: u32,
    /// The service level of sent packets. On Ethernet, the maximum is 7.
    #[serde(deserialize_with = "within::<_, u8, 0, 15>")]
    #[schemars(range(min = 0, max = 15))]
    pub service_level: u8,
    /// The low bits of the source LID of sent packets. The maximum is 2^LMC - 1, where LMC is the LID mask count of the
    /// port. On Ethernet, the value must be 0.
    #[serde(deserialize_with = "within::<_, u8, 0, 127>")]
    #[schemars(range(min = 0, max = 127))]
    pub source_path_bits: u8,
    /// The maximum send rate, as a value of `enum ibv_rate` in verbs.h. The value 0 means no limit, 2 means 2.5 Gbit/s,
    /// 3 means 10 Gbit/s, 15 means 25 Gbit/s, 7 means 40 Gbit/s, 16 means 100 Gbit/s and 17 means 200 Gbit/s.
    #[serde(deserialize_with = "within::<_, u8, 0, 24>")]
    #[schemars(range(min = 0, max = 24))]
    pub static_rate: u8,
    /// The packet sequence number (PSN) of the first sent packet of the first connection. For each later connection,
    /// the program chooses another number.
    #[serde(deserialize_with = "within::<_, u32, 0, 16777215>")]
    #[schemars(range(min = 0, max = 16777215))]
    pub sq_psn: u32,
    /// The expected packet sequence number (PSN) of the first packet from the peer. If the value differs from the
    /// `sq_psn` of the peer, the handshake fails. Default: the PSN that the peer sends in the handshake.
    #[serde(deserialize_with = "within_some::<_, u32, 0, 16777215>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 16777215))]
    pub rq_psn: Option<u32>,
    /// The maximum number of outstanding RDMA reads and atomics that this side sends. If the `max_dest_rd_atomic` of
    /// the peer is smaller, the connection uses the peer's value. Only with `qp = "rc"`.
    #[serde(deserialize_with = "within::<_, u8, 0, 255>")]
    #[schemars(range(min = 0, max = 255))]
    pub max_rd_atomic: u8,
    /// The maximum number of outstanding RDMA reads and atomics that this side accepts from the peer. Only with `qp =
    /// "rc"`.
    #[serde(deserialize_with = "within::<_, u8, 0, 255>")]
    #[schemars(range(min = 0, max = 255))]
    pub max_dest_rd_atomic: u8,
    /// If a message arrives while this side has no posted receive, the peer waits for this time and then sends the
    /// message again. The value is a code of the InfiniBand specification. Code 1 means 0.01 ms, code 12 means 0.64 ms,
    /// code 16 means 2.56 ms, code 31 means 491.52 ms and code 0 means 655.36 ms. Only with `qp = "rc"`.
    #[serde(deserialize_with = "within::<_, u8, 0, 31>")]
    #[schemars(range(min = 0, max = 31))]
    pub min_rnr_timer: u8,
    /// The time that this side waits for an acknowledgement, as an exponent: the value N means 4.096 µs × 2^N. With the
    /// value 0, this side waits indefinitely. Only with `qp = "rc"`.
    #[serde(deserialize_with = "within::<_, u8, 0, 31>")]
    #[schemars(range(min = 0, max = 31))]
    pub timeout: u8,
    /// The number of times that this side resends a packet that the peer has not acknowledged. On some devices, the
    /// value 7 means unlimited. Only with `qp = "rc"`.
    #[serde(deserialize_with = "within::<_, u8, 0, 7>")]
    #[schemars(range(min = 0, max = 7))]
    pub retry_count: u8,
    /// The number of times that this side resends a message because the peer has no posted receive. The value 7 means
    /// unlimited. Only with `qp = "rc"`.
    #[serde(deserialize_with = "within::<_, u8, 0, 7>")]
    #[schemars(range(min = 0, max = 7))]
    pub rnr_retry: u8,
    /// The alternate path to the peer. If the primary path fails, the device moves the connection to this path. Only
    /// with the `qp` types `"rc"` and `"uc"`, and only on InfiniBand, because RoCE has no alternate paths. Default:
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alternate: Option<AlternatePath>,
    /// The migration state of a new connection. Needs `alternate`. With `"migrated"`, the connection stays on its
    /// current path. With `"armed"`, the device moves the connection if the primary path fails. With `"rearm"`, the
    /// device asks the peer to prepare the migration, and both sides then become `"armed"`. Default: the migration
    /// state that the device gives to a new queue pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_migration: Option<PathMigration>,
}

impl Default for EndpointParameters {
    fn default() -> Self {
        Self {
            port: 1,
            same_host: false,
            gid: None,
            gid_kind: None,
            gid_index: None,
            pkey_index: 0,
            access: Access::empty(),
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
            timeout: DEFAULT_TIMEOUT,
            retry_count: 6,
            rnr_retry: 6,
            alternate: None,
            path_migration: None,
            allow_self: false,
        }
    }
}

/// The properties of the local port that a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// The port number, from 1.
    pub number: u8,
    /// The link layer.
    pub link_layer: LinkLayer,
    /// Whether each packet needs a global route header: always on Ethernet, otherwise
    /// [`PortAttributes::grh_required`](crate::verbs::PortAttributes::grh_required).
    pub needs_grh: bool,
    /// The local identifier. 0 on Ethernet.
    pub lid: u16,
    /// The selected GID. Zero if the port has none.
    pub gid: Gid,
    /// The index of the GID in the table.
    pub gid_index: u8,
    /// The type of the GID.
    pub gid_kind: GidKind,
    /// The path MTU, coded as in verbs.h: 1 to 5.
    pub path_mtu: u8,
    /// Maximum message size in bytes.
    pub max_message: u32,
}

/// Returns the verbs.h code of an MTU in bytes. `None` if verbs.h has no code for this MTU.
pub fn mtu_code(bytes: u32) -> Option<u8> {
    (1..=5).find(|&code| mtu_bytes(code) == bytes)
}

/// Returns the MTU in bytes for a verbs.h code from 1 to 5.
pub const fn mtu_bytes(code: u8) -> u32 {
    128 << code
}

/// Returns the initial packet sequence number (PSN) of a generation. `first` is the PSN of generation 0.
const fn psn(first: u32, generation: u32) -> u32 {
    /// 2^24 divided by the golden ratio. Modulo 2^24, the first multiples of this number are far from each other
    /// (Fibonacci hashing).
    const STEP: u32 = 0x9e_3779;
    first.wrapping_add(generation.wrapping_mul(STEP)) & MAX_24
}

impl EndpointParameters {
    /// Returns the initial packet sequence number of a generation, which is one connection of the queue pair. The first
    /// generation uses `sq_psn`. The number of each later generation is far from the numbers of all earlier
    /// generations. The queue pair therefore does not accept delayed packets of an earlier generation.
    pub const fn psn(&self, generation: u32) -> u32 {
        psn(self.sq_psn, generation)
    }

    /// Returns the initial packet sequence number that the peer must have in its generation `generation`. Returns
    /// `None` if the peer may have any number.
    pub fn expected_psn(&self, generation: u32) -> Option<u32> {
        self.rq_psn.map(|first| psn(first, generation))
    }

    /// Checks all parameters against a device. Returns the properties of the port that the connection uses.
    ///
    /// # Errors
    /// The device does not support the parameters, or the device cannot be queried. The error lists every unsupported
    /// parameter with its value, valid range and remedy.
    pub fn resolve<D: Device>(&self, device: &D, kind: QpType) -> Result<LocalPort> {
        let failed = |error: crate::error::VerbError| error.on(device.name());
        let mut wrong = Mistakes::new(device.name());
        let caps = device.capabilities();
        let needed = match kind {
            QpType::Rc => Capability::Rc,
            QpType::Uc => Capability::Uc,
            QpType::Ud => Capability::Datagram,
            other => {
                let message = format!("{}: a queue pair of type {other} cannot be connected", device.name());
                return Err(Error::Peer(message));
            }
        };
        if !caps.has.contains(&needed) {
            let why = device.missing_reason(needed).map_or_else(String::new, |why| format!(": {why}"));
            let message = format!("{}: the device does not support queue pairs of type {kind}{why}", device.name());
            return Err(Error::Peer(message));
        }
        if self.port == 0 || self.port > caps.ports {
            wrong.missing_port("device_port", self.port, caps.ports);
            return Err(wrong.into_error());
        }
        let port = device.port(self.port).map_err(failed)?;
        if !port.is_active() {
            let state = if port.state == PortState::Down { "is down" } else { "is not active yet" };
            let why = format!("the port {state} ({})", port.state);
            wrong.add("device_port", self.port, why, "bring the network interface of the port up, or check the cable");
        }
        let ethernet = port.link_layer == LinkLayer::Ethernet;
        let entries = device.gids(self.port).map_err(failed)?;
        let gid = self.choose(&entries, &mut wrong);
        let needs_grh = ethernet || port.grh_required;
        if needs_grh && self.grh == Some(false) {
            let why = if ethernet {
                "packets on Ethernet always have a global route header"
            } else {
                "the port requires a global route header (`IBV_QPF_GRH_REQUIRED`)"
            };
            wrong.add("grh", false, why, "remove `grh`");
        }
        self.check_pkey(device, port.pkeys, &mut wrong);
        let most = (1..=5).rev().find(|&code| mtu_bytes(code) <= port.active_mtu);
        if most.is_none() {
            let why = format!("the active path MTU of the port is only {} bytes", port.active_mtu);
            wrong.add("device_port", self.port, why, "set the MTU of the interface to at least 352");
        }
        let most = most.unwrap_or(1);
        let path_mtu = match self.path_mtu {
            None => most,
            Some(bytes) => match mtu_code(bytes.into()) {
                Some(code) if code <= most => code,
                Some(_) => {
                    let why = format!("the active path MTU of the port is {}", mtu_bytes(most));
                    let remedy = format!("use at most {}, or increase the MTU of the interface", mtu_bytes(most));
                    wrong.add("path_mtu", bytes, why, remedy);
                    most
                }
                None => {
                    wrong.add(
                        "path_mtu",
                        bytes,
                        format!("{bytes} is not a path MTU"),
                        "use 256, 512, 1024, 2048 or 4096",
                    );
                    most
                }
            },
        };
        self.check_ranges(kind, ethernet, port.lmc, &mut wrong);
        match (&self.alternate, self.path_migration) {
            (Some(alternate), _) if kind != QpType::Ud => alternate.check(device, port.link_layer, &mut wrong),
            // The check of a config also refuses `migrated` without `alternate`.
            (None, Some(state @ (PathMigration::Rearm | PathMigration::Armed))) if kind != QpType::Ud => {
                wrong.add(
                    "path_migration",
                    if state == PathMigration::Armed { "armed" } else { "rearm" },
                    "there is no `alternate` path",
                    "add `alternate`, or remove `path_migration`",
                );
            }
            _ => {}
        }
        if kind == QpType::Rc {
            wrong.most("max_rd_atomic", self.max_rd_atomic, caps.max_init_rd_atomic);
            wrong.most("max_dest_rd_atomic", self.max_dest_rd_atomic, caps.max_rd_atomic);
        }
        if self.access.contains(Access::REMOTE_ATOMIC) && !caps.has.contains(&Capability::Atomic) {
            wrong.add(
                "access",
                "remote_atomic",
                "the device does not support atomics",
                "remove \"remote_atomic\" from `access`",
            );
        }
        if !wrong.is_empty() {
            return Err(wrong.into_error());
        }
        let max_message = if kind == QpType::Ud { mtu_bytes(path_mtu) } else { port.max_message };
        let (gid, gid_index, gid_kind) = gid.unwrap_or((Gid::default(), 0, GidKind::InfiniBand));
        Ok(LocalPort {
            number: self.port,
            link_layer: port.link_layer,
            needs_grh,
            lid: port.lid,
            gid,
            gid_index,
            gid_kind,
            path_mtu,
            max_message,
        })
    }

    fn choose(&self, entries: &[GidEntry], wrong: &mut Mistakes<'_>) -> Option<(Gid, u8, GidKind)> {
        let set = || entries.iter().filter(|entry| !entry.gid.is_zero());
        let kind_name = |kind: GidKind| match kind {
            GidKind::InfiniBand => "infiniband".to_owned(),
            GidKind::RoceV1 => "roce_v1".to_owned(),
            GidKind::RoceV2 => "roce_v2".to_owned(),
            GidKind::Unknown(raw) => raw.to_string(),
        };
        let all = || {
            let each = |entry: &GidEntry| format!("{} {} {}", entry.index, entry.gid, kind_name(entry.kind));
            let list: Vec<String> = set().take(8).map(each).collect();
            if list.is_empty() { "none".to_owned() } else { list.join(", ") }
        };
        let default = if self.same_host { same_host_gid } else { default_gid };
        let found = match (self.gid_index, self.gid, self.gid_kind) {
            (Some(index), ..) => {
                let found = set().find(|entry| entry.index == u32::from(index));
                if found.is_none() {
                    wrong.add(
                        "gid_index",
                        index,
                        format!("the port has no address at this index; the addresses of the port: {}", all()),
                        "use the index of an address of the port",
                    );
                }
                found
            }
            (None, None, None) => {
                let found = default(entries, None);
                if found.is_none() {
                    wrong.add(
                        "gid",
                        "any",
                        "the port has no address",
                        "assign an address to the interface of the port",
                    );
                }
                found
            }
            (None, gid, kind) => {
                let found = match gid {
                    Some(gid) => {
                        let fits =
                            || set().filter(|entry| entry.gid == gid && kind.is_none_or(|kind| kind == entry.kind));
                        // The kernel adds each address as RoCE v1 first, then as RoCE v2.
                        fits().find(|entry| entry.kind == GidKind::RoceV2).or_else(|| fits().next())
                    }
                    None => default(entries, kind),
                };
                if found.is_none() {
                    let (key, value) = match (gid, kind) {
                        (Some(gid), Some(kind)) => ("gid", format!("{gid} {}", kind_name(kind))),
                        (Some(gid), None) => ("gid", gid.to_string()),
                        (None, kind) => ("gid_kind", kind.map_or_else(String::new, kind_name)),
                    };
                    let (why, remedy) = if gid.is_some() {
                        (
                            "the port has no such address",
                            "use an address of the port, or assign the address to the interface",
                        )
                    } else {
                        (
                            "the port has no address of this kind",
                            "use the kind of an address of the port, or assign an address of this kind to the interface",
                        )
                    };
                    wrong.add(key, value, format!("{why}; the addresses of the port: {}", all()), remedy);
                }
                found
            }
        }?;
        match u8::try_from(found.index) {
            Ok(index) => Some((found.gid, index, found.kind)),
            Err(_) => {
                let why = format!(
                    "the index in the GID table is {}, but a path can only use the first 256 entries",
                    found.index
                );
                wrong.add("gid", found.gid, why, "remove addresses from the interface");
                None
            }
        }
    }

    fn check_pkey<D: Device>(&self, device: &D, places: u16, wrong: &mut Mistakes<'_>) {
        if places == 0 {
            let why = "the port has no partition keys, so no queue pair can use the port";
            wrong.add("device_port", self.port, why, "use another port or device");
            return;
        }
        if self.pkey_index >= places {
            let why = format!("the partition key table of the port has {places} entries");
            wrong.add("pkey_index", self.pkey_index, why, format!("use at most {}", places - 1));
            return;
        }
        // The low 15 bits are the partition number. 0 means that the entry is empty.
        let found = device.pkey(self.port, self.pkey_index);
        if !found.is_ok_and(|pkey| pkey & 0x7fff != 0) {
            let why = "the port has no partition key at this index";
            wrong.add("pkey_index", self.pkey_index, why, "use an index with a key, such as 0");
        }
    }

    fn check_ranges(&self, kind: QpType, ethernet: bool, lmc: u8, wrong: &mut Mistakes<'_>) {
        if self.hop_limit == 0 {
            wrong.add("hop_limit", 0, "the valid range is 1 to 255", "use 255");
        }
        wrong.most("flow_label", self.flow_label, 0xf_ffffu32);
        wrong.most("service_level", self.service_level, if ethernet { 7u8 } else { 15 });
        wrong.most("source_path_bits", self.source_path_bits, (1u8 << lmc.min(7)) - 1);
        wrong.most("static_rate", self.static_rate, 24u8);
        if self.static_rate == 1 {
            wrong.add(
                "static_rate",
                1,
                "verbs.h has no rate with this code",
                "use 0 for no limit, or 2 for 2.5 Gbit/s",
            );
        }
        wrong.most("sq_psn", self.sq_psn, MAX_24);
        wrong.most("rq_psn", self.rq_psn.unwrap_or(0), MAX_24);
        if kind == QpType::Rc {
            wrong.most("min_rnr_timer", self.min_rnr_timer, 31u8);
            wrong.most("timeout", self.timeout, 31u8);
            wrong.most("retry_count", self.retry_count, 7u8);
            wrong.most("rnr_retry", self.rnr_retry, 7u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_a_connection_is_read() {
        let text = "gid = 'fe80::7'\ngid_index = 4\ngid_kind = 'roce_v1'\npkey_index = 2\naccess = ['remote_read', 'remote_atomic']\n\
                    qkey = 3\npath_mtu = 2048\ngrh = true\nhop_limit = 4\ntraffic_class = 5\nflow_label = 6\n\
                    service_level = 7\nsource_path_bits = 8\nstatic_rate = 9\nsq_psn = 10\nrq_psn = 11\n\
                    max_rd_atomic = 12\nmax_dest_rd_atomic = 13\nmin_rnr_timer = 14\ntimeout = 15\nretry_count = 3\n\
                    rnr_retry = 2\nallow_self = true\npath_migration = 'rearm'\n\
                    alternate = { lid = 20, gid = 'fe80::8', device_port = 2, source_gid_index = 21, pkey_index = 22, \
                    timeout = 23, service_level = 11, source_path_bits = 24, static_rate = 7 }";
        let parameters: EndpointParameters = toml::from_str(text).unwrap();
        let expected = EndpointParameters {
            port: 1,
            same_host: false,
            gid: "fe80::7".parse().ok(),
            gid_kind: Some(GidKind::RoceV1),
            gid_index: Some(4),
            pkey_index: 2,
            access: Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            qkey: 3,
            path_mtu: Some(2048),
            grh: Some(true),
            hop_limit: 4,
            traffic_class: 5,
            flow_label: 6,
            service_level: 7,
            source_path_bits: 8,
            static_rate: 9,
            sq_psn: 10,
            rq_psn: Some(11),
            max_rd_atomic: 12,
            max_dest_rd_atomic: 13,
            min_rnr_timer: 14,
            timeout: 15,
            retry_count: 3,
            rnr_retry: 2,
            alternate: Some(AlternatePath {
                port: 2,
                gid: "fe80::8".parse().ok(),
                source_gid_index: 21,
                lid: 20,
                pkey_index: 22,
                timeout: 23,
                service_level: 11,
                source_path_bits: 24,
                static_rate: 7,
            }),
            path_migration: Some(PathMigration::Rearm),
            allow_self: true,
        };
        assert_eq!(parameters, expected);
    }
}
