//! The other path of a connection, to which an adapter moves it by itself (automatic path migration): what
//! `ibv_modify_qp(3)` has as `alt_ah_attr`, `alt_pkey_index`, `alt_port_num`, `alt_timeout` and `path_mig_state`.
//!
//! Of InfiniBand alone: RoCE has no alternate paths. Not run on hardware.

use crate::provider::connect::parameters::Mistakes;
use crate::provider::{Device, LinkLayer, Path};
use crate::units::Gid;

/// The other path to the same peer. The peer does not tell of it: its addresses there are said here. What is not here, such
/// as the hop limit, is as on the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlternatePath {
    /// The own port, from 1.
    pub port: u8,
    /// The peer's address; without: packets carry no global route header.
    pub gid: Option<Gid>,
    /// The place of the own address in the own port's table; of a path with a GID.
    pub source_gid_index: u8,
    /// The peer's local identifier, from 1.
    pub lid: u16,
    /// The place of the partition key in the own port's table.
    pub pkey_index: u16,
    /// Time without an answer before a retry, coded as that of the first path.
    pub timeout: u8,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// Path bits of the source: below 2 to the power of the own port's mask count.
    pub source_path_bits: u8,
    /// The most that is sent, as `enum ibv_rate` numbers it; 0: no limit.
    pub static_rate: u8,
}

/// What an adapter does about the other path: `enum ibv_mig_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMigration {
    /// It stays where it is.
    Migrated = 0,
    /// It asks the peer to be ready to move; both become armed by themselves.
    Rearm = 1,
    /// It moves when the first path fails.
    Armed = 2,
}

impl AlternatePath {
    /// The way, as verbs have it. What is not its own is that of the first.
    pub(super) fn path(&self, first: &Path) -> Path {
        Path {
            global: self.gid.is_some(),
            gid: self.gid.unwrap_or_default(),
            source_gid_index: self.source_gid_index,
            dlid: self.lid,
            service_level: self.service_level,
            source_path_bits: self.source_path_bits,
            static_rate: self.static_rate,
            port: self.port,
            ..*first
        }
    }

    /// Checks it against the device; the first path is on a link of this kind.
    pub(super) fn check<D: Device>(&self, device: &D, first: LinkLayer, wrong: &mut Mistakes<'_>) {
        let caps = device.capabilities();
        if first == LinkLayer::Ethernet {
            return wrong.add("alternate", "a path", "RoCE has no alternate paths", "take it out");
        }
        if !caps.path_migration {
            return wrong.add("alternate", "a path", "the device has no automatic path migration", "take it out");
        }
        if self.port == 0 || self.port > caps.ports {
            let range = format!("its ports are 1 to {}", caps.ports);
            return wrong.add("alternate.device_port", self.port, range, "name one of them");
        }
        let port = match device.port(self.port) {
            Ok(port) if port.link_layer == first => port,
            Ok(port) => {
                let why = format!("that port speaks {}, and the first {first}", port.link_layer);
                return wrong.add("alternate.device_port", self.port, why, "name another port");
            }
            Err(error) => return wrong.add("alternate.device_port", self.port, error, "name another port"),
        };
        if self.lid == 0 {
            wrong.add("alternate.lid", 0, "it is 1 to 65535", "give the peer's, as `ibv_devinfo` shows it there");
        }
        if self.gid.is_some() && u32::from(self.source_gid_index) >= port.gids {
            let why = format!("the port's table has {}", port.gids);
            wrong.add("alternate.source_gid_index", self.source_gid_index, why, "name a place that has an address");
        }
        let pkey = || device.pkey(self.port, self.pkey_index).is_ok_and(|pkey| pkey & 0x7fff != 0);
        if self.pkey_index >= port.pkeys || !pkey() {
            let why = "the port has no partition key there";
            wrong.add("alternate.pkey_index", self.pkey_index, why, "name a place that has one, such as 0");
        }
        wrong.most("alternate.timeout", self.timeout, 31u8);
        wrong.most("alternate.service_level", self.service_level, 15u8);
        wrong.most("alternate.source_path_bits", self.source_path_bits, (1u8 << port.lmc.min(7)) - 1);
        wrong.most("alternate.static_rate", self.static_rate, 24u8);
    }
}
