//! The alternate path of a connection (automatic path migration). If the primary path fails, the adapter moves the
//! connection to the alternate path. The fields correspond to `alt_ah_attr`, `alt_pkey_index`, `alt_port_num`,
//! `alt_timeout` and `path_mig_state` of `ibv_modify_qp(3)`.
//!
//! Alternate paths exist only on InfiniBand, not on RoCE. This code was not tested on hardware.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::connect::mistakes::Mistakes;
use crate::units::{Gid, within};
use crate::verbs::{Device, LinkLayer, Path};

/// The alternate path to the peer. The handshake does not exchange the alternate addresses of the peer, so the config
/// must contain these addresses. For attributes without a key in this table, such as the hop limit, the alternate path
/// uses the values of the primary path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AlternatePath {
    /// The local identifier (LID) of the peer's port on this path.
    #[serde(deserialize_with = "within::<_, u16, 1, 65535>")]
    #[schemars(range(min = 1, max = 65535))]
    pub lid: u16,
    /// The GID of the peer's port on this path. Default: packets on this path contain no global route header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<Gid>,
    /// The port number on the local device, from 1.
    #[serde(rename = "device_port", default = "first_port", deserialize_with = "within::<_, u8, 1, 255>")]
    #[schemars(range(min = 1, max = 255))]
    pub port: u8,
    /// The index of the local GID in the GID table of the local port `device_port`. Only used with `gid`.
    #[serde(default)]
    pub source_gid_index: u8,
    /// The index of the partition key in the partition key table of the local port `device_port`.
    #[serde(default)]
    pub pkey_index: u16,
    /// The time that this side waits for an acknowledgement on this path. The values have the meaning of the key
    /// `timeout` of `[port.connection]`.
    #[serde(default = "usual_timeout", deserialize_with = "within::<_, u8, 0, 31>")]
    #[schemars(range(min = 0, max = 31))]
    pub timeout: u8,
    /// The service level.
    #[serde(default, deserialize_with = "within::<_, u8, 0, 15>")]
    #[schemars(range(min = 0, max = 15))]
    pub service_level: u8,
    /// The low bits of the source LID of packets on this path. The maximum is 2^LMC - 1, where LMC is the LID mask
    /// count of the local port.
    #[serde(default, deserialize_with = "within::<_, u8, 0, 127>")]
    #[schemars(range(min = 0, max = 127))]
    pub source_path_bits: u8,
    /// The maximum send rate on this path. The values have the meaning of the key `static_rate` of `[port.connection]`.
    #[serde(default, deserialize_with = "within::<_, u8, 0, 24>")]
    #[schemars(range(min = 0, max = 24))]
    pub static_rate: u8,
}

fn first_port() -> u8 {
    1
}

/// The default acknowledgement timeout of a path, as an exponent: 4.096 µs × 2^value.
pub(super) const DEFAULT_TIMEOUT: u8 = 14;

fn usual_timeout() -> u8 {
    DEFAULT_TIMEOUT
}

/// The state of the path migration: `enum ibv_mig_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathMigration {
    /// The connection stays on its current path.
    Migrated = 0,
    /// The device asks the peer to prepare the migration. Both sides then become `Armed`.
    Rearm = 1,
    /// The device moves the connection if the primary path fails.
    Armed = 2,
}

impl AlternatePath {
    /// Returns the alternate path as a verbs path. Missing attributes are copied from the primary path.
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

    /// Checks the alternate path against the device. `first` is the link layer of the primary path.
    pub(super) fn check<D: Device>(&self, device: &D, first: LinkLayer, wrong: &mut Mistakes<'_>) {
        let caps = device.capabilities();
        if first == LinkLayer::Ethernet {
            return wrong.add("alternate", "a path", "RoCE has no alternate paths", "remove `alternate`");
        }
        if !caps.path_migration {
            return wrong.add(
                "alternate",
                "a path",
                "the device does not support automatic path migration",
                "remove `alternate`",
            );
        }
        if self.port == 0 || self.port > caps.ports {
            return wrong.missing_port("alternate.device_port", self.port, caps.ports);
        }
        let port = match device.port(self.port) {
            Ok(port) if port.link_layer == first => port,
            Ok(port) => {
                let why = format!(
                    "the link layer of this port is {}, but the link layer of the primary port is {first}",
                    port.link_layer
                );
                return wrong.add("alternate.device_port", self.port, why, "use another port");
            }
            Err(error) => return wrong.add("alternate.device_port", self.port, error, "use another port"),
        };
        if self.lid == 0 {
            wrong.add(
                "alternate.lid",
                0,
                "the valid range is 1 to 65535",
                "use the LID that `ibv_devinfo` shows on the peer",
            );
        }
        if self.gid.is_none() && port.grh_required {
            let why = "the port requires a global route header (`IBV_QPF_GRH_REQUIRED`)";
            wrong.add("alternate.gid", "none", why, "use the GID of the peer's port on this path");
        }
        if self.gid.is_some() && u32::from(self.source_gid_index) >= port.gids {
            let why = format!("the GID table of the port has {} entries", port.gids);
            wrong.add(
                "alternate.source_gid_index",
                self.source_gid_index,
                why,
                "use the index of an entry with an address",
            );
        }
        let pkey = || device.pkey(self.port, self.pkey_index).is_ok_and(|pkey| pkey & 0x7fff != 0);
        if self.pkey_index >= port.pkeys || !pkey() {
            let why = "the port has no partition key at this index";
            wrong.add("alternate.pkey_index", self.pkey_index, why, "use an index with a key, such as 0");
        }
        wrong.most("alternate.timeout", self.timeout, 31u8);
        wrong.most("alternate.service_level", self.service_level, 15u8);
        wrong.most("alternate.source_path_bits", self.source_path_bits, (1u8 << port.lmc.min(7)) - 1);
        wrong.most("alternate.static_rate", self.static_rate, 24u8);
    }
}
