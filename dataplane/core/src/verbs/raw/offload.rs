//! Receive and send offloads of raw-packet queue pairs, and the capabilities that they need.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::flow::{FlowError, FlowLimits};
use crate::error::VerbError;
use crate::header::parse::{checksummed, dissect};
use crate::units::{BitRate, Bytes, bytes_within};

/// The length of a frame check sequence in bytes.
const FCS: u32 = 4;

/// The capabilities of a device for raw-packet queue pairs, from `struct ibv_device_attr_ex`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawPacketCaps {
    /// Whether the device supports flow rules. A device without flow rules receives no raw packets.
    pub flow_rules: bool,
    /// The limits of the driver for flow rules.
    pub flow: FlowLimits,
    /// Whether the device checks the IPv4, TCP and UDP checksums of received packets.
    pub rx_checksum: bool,
    /// Whether the device computes the IPv4, TCP and UDP checksums of sent packets.
    pub tx_checksum: bool,
    /// Whether the device can remove VLAN tags.
    pub vlan_strip: bool,
    /// Whether the device can deliver the frame check sequence after the frame.
    pub scatter_fcs: bool,
    /// Whether the device can delay a frame instead of dropping it when no receive is posted.
    pub delay_drop: bool,
    /// Maximum payload of a segmented send in bytes. 0: no segmentation.
    pub max_tso: u32,
    /// Minimum and maximum rate of a send queue in kbit/s. `None`: no pacing.
    pub pacing: Option<(u32, u32)>,
    /// The RSS capabilities. `None`: no RSS.
    pub rss: Option<RssCaps>,
}

/// The RSS capabilities of a device: `struct ibv_rss_caps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RssCaps {
    /// Maximum number of indirection tables.
    pub max_tables: u32,
    /// Maximum number of entries of an indirection table.
    pub max_table_size: u32,
    /// Maximum number of work queues, which are the receive queues of a port with several queues.
    pub max_work_queues: u32,
    /// The fields that can be hashed: `enum ibv_rx_hash_fields`.
    pub fields: u64,
}

/// The reason why a setting for raw packets was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RawError {
    /// The device does not support a feature.
    #[error("the device does not support {what}; help: {remedy}")]
    Lacks {
        /// The feature.
        what: &'static str,
        /// The remedy, as a phrase in the imperative.
        remedy: &'static str,
    },
    /// A value is out of range.
    #[error("{what}: {asked} is not in the range {least} to {most}")]
    Range {
        /// The name of the value.
        what: &'static str,
        /// The requested value.
        asked: u64,
        /// The minimum.
        least: u64,
        /// The maximum.
        most: u64,
    },
    /// A flow rule is invalid, or the device refused it.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// The device refused a rate limit with a burst or a packet size.
    #[error(
        "{0}: the device refused the burst or the packet size of the rate limit; help: remove `burst` and `packet`"
    )]
    Burst(VerbError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl RawError {
    /// Returns the error for a feature that the device lacks.
    pub const fn lacks(what: &'static str, remedy: &'static str) -> Self {
        Self::Lacks { what, remedy }
    }

    /// Checks that a value is in a range.
    ///
    /// # Errors
    /// The value is out of range.
    pub fn check_range(what: &'static str, asked: u64, least: u64, most: u64) -> Result<(), Self> {
        if (least..=most).contains(&asked) { Ok(()) } else { Err(Self::Range { what, asked, least, most }) }
    }

    /// Returns the verb and the error number that describe the error best.
    pub fn verb_error(&self) -> VerbError {
        match self {
            Self::Verb(error) | Self::Burst(error) | Self::Flow(FlowError::Refused { error, .. }) => *error,
            Self::Flow(_) => VerbError::new("ibv_create_flow", libc::EINVAL),
            Self::Lacks { .. } => VerbError::new("ibv_create_qp", libc::EOPNOTSUPP),
            Self::Range { .. } => VerbError::new("ibv_create_qp", libc::EINVAL),
        }
    }
}

/// The receive offloads of a queue. By default, all offloads are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawReceive {
    /// Whether the device removes the outer VLAN tag. The completion contains the removed tag.
    pub vlan_strip: bool,
    /// Whether the frame check sequence follows the frame.
    pub scatter_fcs: bool,
    /// Whether the device delays a frame instead of dropping the frame when no receive is posted. Only work queues
    /// support this offload.
    pub delay_drop: bool,
}

impl RawReceive {
    /// Checks that the device supports the offloads.
    ///
    /// # Errors
    /// The first unsupported offload.
    pub fn check(&self, caps: &RawPacketCaps) -> Result<(), RawError> {
        for (wanted, has, what, remedy) in [
            (self.vlan_strip, caps.vlan_strip, "VLAN stripping", "remove \"vlan_strip\" from `offload`"),
            (
                self.scatter_fcs,
                caps.scatter_fcs,
                "delivery of the frame check sequence",
                "remove \"fcs\" from `offload`",
            ),
            (self.delay_drop, caps.delay_drop, "delay drop", "remove \"delay_drop\" from `offload`"),
        ] {
            if wanted && !has {
                return Err(RawError::lacks(what, remedy));
            }
        }
        Ok(())
    }

    /// Checks the offloads for a port with one queue. The queue pair of such a port has its own receive queue. On a
    /// port with several queues, the receive queues are work queues.
    ///
    /// # Errors
    /// Delay drop is set, which only work queues support.
    pub fn check_single_queue(&self) -> Result<(), RawError> {
        match self.delay_drop {
            true => Err(RawError::lacks(
                "delay drop on a queue pair",
                "use more than one worker, because only work queues support delay drop",
            )),
            false => Ok(()),
        }
    }
}

/// Converts `received`, the length in a completion, to the length of the frame. With `scatter_fcs`, the result excludes
/// the frame check sequence.
#[inline]
pub fn frame_length(received: u32, scatter_fcs: bool) -> u32 {
    if scatter_fcs { received.saturating_sub(FCS) } else { received }
}

/// Returns `true` if the frame has a TCP or UDP checksum that covers the whole IP payload. Request the checksum offload
/// for sends only for such frames. The stages keep the checksums of all other frames correct.
pub fn checksum_covers_payload(frame: &[u8]) -> bool {
    let Ok(found) = dissect(frame) else { return false };
    checksummed(frame, &found).is_some_and(|(_, bytes)| bytes.len() == usize::from(found.end - found.l4))
}

// `struct ibv_qp_rate_limit_attr`. The default has no limit.
/// The transmit rate limit of each worker's queue pair. The device enforces the limit. Not tested on hardware.
///
/// ```toml
/// [[port]]
/// name       = "wan"
/// device     = "mlx5_0"
/// rate_limit = { rate = "1Gbps", burst = "64KiB", packet = 1500 }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    /// The rate, such as `"5Gbps"`: a multiple of 1 kbit/s, at most 4294967295 kbit/s.
    #[serde(rename = "rate", with = "device_rate")]
    #[schemars(with = "BitRate", extend("x-previous-name" = "kbps"))]
    pub kbps: u32,
    /// The maximum number of bytes in a burst, such as `"64KiB"`. The value 0 means the default of the device.
    #[serde(default, deserialize_with = "bytes_within::<_, u32, 0, 4294967295>")]
    #[schemars(with = "Bytes", range(min = 0, max = 4294967295u32))]
    pub burst: u32,
    /// The typical packet size, in bytes. The value 0 means the default of the device.
    #[serde(rename = "packet", default, deserialize_with = "bytes_within::<_, u16, 0, 65535>")]
    #[schemars(with = "Bytes", range(min = 0, max = 65535))]
    pub typical_packet_size: u16,
}

/// A rate in a config that must be a whole number of kbit/s, the unit of rates in verbs.h.
mod device_rate {
    use serde::de::{Error, Unexpected};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::units::BitRate;

    pub(super) fn serialize<S: Serializer>(kbps: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        BitRate(u64::from(*kbps) * 1000).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let rate = BitRate::deserialize(deserializer)?;
        let kbps = u32::try_from(rate.0 / 1000).ok().filter(|kbps| *kbps > 0 && rate.0 % 1000 == 0);
        let expected = "a multiple of 1000 bit/s from \"1kbps\" to \"4294967295kbps\"";
        kbps.ok_or_else(|| D::Error::invalid_value(Unexpected::Unsigned(rate.0), &expected))
    }
}

impl RateLimit {
    /// Checks that the device supports the rate. No verb reports whether a device supports a burst and a packet size.
    ///
    /// # Errors
    /// The device does not support pacing, the rate is out of range, or a burst or a packet size is set without a rate.
    pub fn check(&self, caps: &RawPacketCaps) -> Result<(), RawError> {
        let Some((least, most)) = caps.pacing else {
            return Err(RawError::lacks("pacing", "remove the rate, or limit it in the pipeline"));
        };
        if *self == Self::default() {
            Ok(())
        } else {
            RawError::check_range("rate in kbit/s", self.kbps.into(), least.max(1).into(), most.into())
        }
    }
}
