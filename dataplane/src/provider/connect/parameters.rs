//! Everything about a connection that can be chosen, and whether a device can do it.

use std::fmt::Display;

use crate::error::{Error, Result};
use crate::provider::connect::alternate::{AlternatePath, PathMigration};
use crate::provider::{Access, Capability, Device, GidEntry, GidKind, LinkLayer, PortState, QpType};
use crate::units::Gid;

/// The largest packet number, and the largest number of a queue pair: 24 bits.
pub(super) const MAX_24: u32 = 0xff_ffff;

/// Which of a port's addresses is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidChoice {
    /// The first that is as said. Without an address and a kind: the first of RoCE over UDP, or else the first.
    Is {
        /// The address.
        gid: Option<Gid>,
        /// Its kind.
        kind: Option<GidKind>,
    },
    /// The one at this place of the table. It may move when addresses change.
    At(u8),
}

/// Every attribute of the changes of state from RESET to RTS that is not the peer's to say: of reliable and unreliable
/// connections and of datagrams. What a type of queue pair has no use for is left unused.
///
/// The defaults are those of the `ibverbs` crate: what its handshake sets, and what its builder has for the rest. One
/// differs: its `timeout` is 4 (65 µs), and a software device under load takes longer to answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointParameters {
    /// The port of the device, from 1.
    pub port: u8,
    /// The address of that port.
    pub gid: GidChoice,
    /// The place of the partition key in the port's table.
    pub pkey_index: u16,
    /// What the peer may do to registered memory; of connections.
    pub access: Access,
    /// What a datagram must carry to be taken in. With the top bit it takes `CAP_NET_RAW`.
    pub qkey: u32,
    /// The largest payload of a packet: 256, 512, 1,024, 2,048 or 4,096 bytes. The smaller of both sides counts.
    /// Without: the largest that the port carries now.
    pub path_mtu: Option<u16>,
    /// Whether packets carry a global route header; on Ethernet always. Without: where the peer says its address.
    pub grh: Option<bool>,
    /// Hops that a packet may take; of a global route header, from 1.
    pub hop_limit: u8,
    /// Traffic class; of a global route header.
    pub traffic_class: u8,
    /// Flow label, 20 bits; of a global route header.
    pub flow_label: u32,
    /// Service level, 0 to 15; on Ethernet to 7.
    pub service_level: u8,
    /// Path bits of the source: below 2 to the power of the port's mask count.
    pub source_path_bits: u8,
    /// The most that is sent, as `enum ibv_rate` numbers it; 0: no limit.
    pub static_rate: u8,
    /// The number of the first packet sent, 24 bits: of the first generation; see [`EndpointParameters::psn`].
    pub sq_psn: u32,
    /// The number of the first packet received, 24 bits: what the peer must say. Without: whatever it says.
    pub rq_psn: Option<u32>,
    /// Reads and atomics under way, as requester: at most what the peer takes. Of reliable connections.
    pub max_rd_atomic: u8,
    /// Reads and atomics under way, as responder. Of reliable connections.
    pub max_dest_rd_atomic: u8,
    /// What the peer waits that found no receive posted, as verbs.h codes it, 0 to 31. Of reliable connections.
    pub min_rnr_timer: u8,
    /// Time without an answer before a retry: 4.096 µs times two to this, to 31; 0: for ever. Of reliable connections.
    pub timeout: u8,
    /// Retries without an answer, 0 to 7; Linux's software RoCE takes 7 for ever. Of reliable connections.
    pub retry_count: u8,
    /// Retries when the peer has no receive posted, 0 to 7; 7: for ever. Of reliable connections.
    pub rnr_retry: u8,
    /// The other path to the peer: of connections on InfiniBand.
    pub alternate: Option<AlternatePath>,
    /// What is done about that path, from RTS on. Without: as the device has it, which is to stay where it is.
    pub path_migration: Option<PathMigration>,
    /// Whether a queue pair may be its own peer.
    pub allow_self: bool,
}

impl Default for EndpointParameters {
    fn default() -> Self {
        Self {
            port: 1,
            gid: GidChoice::Is { gid: None, kind: None },
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
            timeout: 14,
            retry_count: 6,
            rnr_retry: 6,
            alternate: None,
            path_migration: None,
            allow_self: false,
        }
    }
}

/// What a device's port brings to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalPort {
    /// Its number, from 1.
    pub number: u8,
    /// What it speaks.
    pub link_layer: LinkLayer,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The address that is used; 0: none.
    pub gid: Gid,
    /// Its place in the table.
    pub gid_index: u8,
    /// Its kind.
    pub gid_kind: GidKind,
    /// The largest payload of a packet as verbs.h numbers it: 1 to 5.
    pub path_mtu: u8,
    /// The largest message in bytes.
    pub max_message: u32,
}

/// What verbs.h has for a payload of so many bytes; none for what it has no number for.
pub fn mtu_code(bytes: u32) -> Option<u8> {
    (1..=5).find(|&code| mtu_bytes(code) == bytes)
}

/// The bytes of a payload that verbs.h numbers 1 to 5.
pub const fn mtu_bytes(code: u8) -> u32 {
    128 << code
}

/// Mistakes, each with its key, value, range and remedy.
pub(super) struct Mistakes<'d> {
    device: &'d str,
    found: Vec<String>,
}

impl Mistakes<'_> {
    pub(super) fn add(&mut self, key: &str, value: impl Display, why: impl Display, remedy: impl Display) {
        self.found.push(format!("`{key}` = {value} on `{}`: {why}; {remedy}", self.device));
    }

    pub(super) fn most(&mut self, key: &str, value: impl Into<u64>, most: impl Into<u64>) {
        let (value, most) = (value.into(), most.into());
        if value > most {
            self.add(key, value, format_args!("it is 0 to {most}"), format_args!("make it at most {most}"));
        }
    }
}

impl EndpointParameters {
    /// The number of the first packet that a generation sends: that of the first is `sq_psn`, and each later one is far
    /// from those before it, so that what is still under way of them is not taken for its own.
    pub const fn psn(&self, generation: u32) -> u32 {
        /// 2^24 divided by the golden ratio: the multiples of it lie as far from each other as can be.
        const STEP: u32 = 0x9e_3779;
        self.sq_psn.wrapping_add(generation.wrapping_mul(STEP)) & MAX_24
    }

    /// Checks all of it against a device, and finds out what its port brings.
    ///
    /// # Errors
    /// The device cannot do it so: every mistake, with the key, the value, what would be possible and the remedy. Or it
    /// could not be asked.
    pub fn resolve<D: Device>(&self, device: &D, kind: QpType) -> Result<LocalPort> {
        let failed = |error: crate::error::VerbError| error.on(device.name());
        let mut wrong = Mistakes { device: device.name(), found: Vec::new() };
        let caps = device.capabilities();
        let needed = match kind {
            QpType::Rc => Capability::Rc,
            QpType::Uc => Capability::Uc,
            QpType::Ud => Capability::Datagram,
            other => {
                let message = format!("{}: a queue pair of type {other} has no endpoint", device.name());
                return Err(Error::Peer(message));
            }
        };
        if !caps.has.contains(&needed) {
            let message = format!("{}: the device has no queue pairs of type {kind}", device.name());
            return Err(Error::Peer(message));
        }
        if self.port == 0 || self.port > caps.ports {
            let range = format!("its ports are 1 to {}", caps.ports);
            wrong.add("device_port", self.port, range, "name one of them");
            return Err(wrong.into_error());
        }
        let port = device.port(self.port).map_err(failed)?;
        if !port.is_active() {
            let state = if port.state == PortState::Down { "is down" } else { "is not active yet" };
            let why = format!("the port {state} ({})", port.state);
            wrong.add("device_port", self.port, why, "bring its network interface up, or mend its cable");
        }
        let ethernet = port.link_layer == LinkLayer::Ethernet;
        let entries = device.gids(self.port).map_err(failed)?;
        let gid = self.choose(&entries, &mut wrong);
        if ethernet && self.grh == Some(false) {
            wrong.add("grh", false, "packets on Ethernet always have one", "take it out");
        }
        self.check_pkey(device, port.pkeys, &mut wrong);
        let most = (1..=5).rev().find(|&code| mtu_bytes(code) <= port.active_mtu);
        if most.is_none() {
            let why = format!("the port carries payloads of {} bytes alone", port.active_mtu);
            wrong.add("device_port", self.port, why, "make the MTU of its interface at least 300");
        }
        let most = most.unwrap_or(1);
        let path_mtu = match self.path_mtu {
            None => most,
            Some(bytes) => match mtu_code(bytes.into()) {
                Some(code) if code <= most => code,
                Some(_) => {
                    let why = format!("the port carries {} now", mtu_bytes(most));
                    let remedy = format!("make it at most {}, or the MTU of the interface larger", mtu_bytes(most));
                    wrong.add("path_mtu", bytes, why, remedy);
                    most
                }
                None => {
                    wrong.add("path_mtu", bytes, "it is 256, 512, 1024, 2048 or 4096", "name one of them");
                    most
                }
            },
        };
        self.check_ranges(kind, ethernet, port.lmc, &mut wrong);
        match (&self.alternate, self.path_migration) {
            (Some(alternate), _) if kind != QpType::Ud => alternate.check(device, port.link_layer, &mut wrong),
            (None, Some(PathMigration::Rearm | PathMigration::Armed)) if kind != QpType::Ud => {
                wrong.add(
                    "path_migration",
                    "to another path",
                    "there is no `alternate` path",
                    "add it, or take this out",
                );
            }
            _ => {}
        }
        if kind == QpType::Rc {
            wrong.most("max_rd_atomic", self.max_rd_atomic, caps.max_init_rd_atomic);
            wrong.most("max_dest_rd_atomic", self.max_dest_rd_atomic, caps.max_rd_atomic);
        }
        if self.access.contains(Access::REMOTE_ATOMIC) && !caps.has.contains(&Capability::Atomic) {
            wrong.add("access", "remote_atomic", "the device has no atomics", "take it out");
        }
        if !wrong.found.is_empty() {
            return Err(wrong.into_error());
        }
        let max_message = if kind == QpType::Ud { mtu_bytes(path_mtu) } else { port.max_message };
        let (gid, gid_index, gid_kind) = gid.unwrap_or((Gid::default(), 0, GidKind::InfiniBand));
        Ok(LocalPort {
            number: self.port,
            link_layer: port.link_layer,
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
        let remedy = "name one of them, or give the interface that address";
        let found = match self.gid {
            GidChoice::At(index) => {
                let found = set().find(|entry| entry.index == u32::from(index));
                if found.is_none() {
                    wrong.add("gid_index", index, format!("the port has there none; it has {}", all()), remedy);
                }
                found
            }
            GidChoice::Is { gid: None, kind: None } => {
                let found = set().find(|entry| entry.kind == GidKind::RoceV2).or_else(|| set().next());
                if found.is_none() {
                    wrong.add("gid", "any", "the port has no address", "give its interface one");
                }
                found
            }
            GidChoice::Is { gid, kind } => {
                let fits = |entry: &&GidEntry| {
                    gid.is_none_or(|gid| gid == entry.gid) && kind.is_none_or(|kind| kind == entry.kind)
                };
                let found = set().find(fits);
                if found.is_none() {
                    let (key, value) = match (gid, kind) {
                        (Some(gid), Some(kind)) => ("gid", format!("{gid} {}", kind_name(kind))),
                        (Some(gid), None) => ("gid", gid.to_string()),
                        (None, kind) => ("gid_kind", kind.map_or_else(String::new, kind_name)),
                    };
                    wrong.add(key, value, format!("the port has {}", all()), remedy);
                }
                found
            }
        }?;
        match u8::try_from(found.index) {
            Ok(index) => Some((found.gid, index, found.kind)),
            Err(_) => {
                let why = format!("it is at {} of the port's table, and a path names the first 256", found.index);
                wrong.add("gid", found.gid, why, "take addresses away from the interface");
                None
            }
        }
    }

    fn check_pkey<D: Device>(&self, device: &D, places: u16, wrong: &mut Mistakes<'_>) {
        if self.pkey_index >= places {
            let why = format!("the port's table has {places}");
            wrong.add("pkey_index", self.pkey_index, why, format!("make it at most {}", places.saturating_sub(1)));
            return;
        }
        // The low 15 bits are the partition; 0 is none.
        let found = device.pkey(self.port, self.pkey_index);
        if !found.is_ok_and(|pkey| pkey & 0x7fff != 0) {
            let why = "the port has no partition key there";
            wrong.add("pkey_index", self.pkey_index, why, "name a place that has one, such as 0");
        }
    }

    fn check_ranges(&self, kind: QpType, ethernet: bool, lmc: u8, wrong: &mut Mistakes<'_>) {
        if self.hop_limit == 0 {
            wrong.add("hop_limit", 0, "it is 1 to 255", "make it 255");
        }
        wrong.most("flow_label", self.flow_label, 0xf_ffffu32);
        wrong.most("service_level", self.service_level, if ethernet { 7u8 } else { 15 });
        wrong.most("source_path_bits", self.source_path_bits, (1u8 << lmc.min(7)) - 1);
        wrong.most("static_rate", self.static_rate, 24u8);
        if self.static_rate == 1 {
            wrong.add("static_rate", 1, "verbs.h has no such rate", "make it 0 for no limit, or 2 for 2.5 Gbit/s");
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

impl Mistakes<'_> {
    fn into_error(self) -> Error {
        Error::Peer(self.found.join("\n"))
    }
}
