//! Raw-packet settings of a port: flow rules, receive and send offloads, segmentation and pacing. Every provider with
//! raw-packet queue pairs understands these settings.
//!
//! [`RawPacketCaps`] contains the capabilities of a device. A setting that needs a missing capability is refused before
//! any object is created. The error names the capability.
//!
//! - Receive checksums: the flag [`WcFlags::IP_CSUM_OK`](crate::verbs::WcFlags) of a received packet means that the
//!   IPv4 checksum and the TCP or UDP checksum are correct. A missing flag does not mean that a checksum is wrong,
//!   because devices do not check every packet.
//! - Send checksums: with [`SendFlags::IP_CSUM`](crate::verbs::SendFlags) or [`RawSpec::checksum`], the device computes
//!   the IPv4 checksum and the TCP or UDP checksum of a sent packet.
//! - VLAN stripping: the device removes the outer VLAN tag. The completion contains the removed tag.
//! - Frame check sequence: the device delivers the 4 bytes of the frame check sequence after the frame. The received
//!   length includes these 4 bytes: see [`frame_length`].
//! - Segmentation (TSO): the device splits a send with headers and a long payload into many frames.
//! - Pacing: the device limits a send queue to a rate in kbit/s, and limits the size of its bursts.
//! - Delay drop: if no receive is posted, the device delays a frame for some time before it drops the frame.

mod check;
mod flow;
mod offload;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use check::MatchedField;
pub use flow::{
    EthernetMatch, FlowCount, FlowCounters, FlowError, FlowLimits, FlowRule, FlowTraffic, HeaderMatch, IpMatch,
    Ipv4Match, Ipv6Match, MaskedValue, PortsMatch, TransportMatch, TunnelMatch,
};
pub use offload::{RateLimit, RawError, RawPacketCaps, RawReceive, RssCaps, checksum_covers_payload, frame_length};

use crate::error::{Error, VerbError};
use crate::verbs::{Device, RssSpec};

/// A device with raw-packet queue pairs.
pub trait RawDevice: Device {
    /// Returns the capabilities for raw-packet queue pairs.
    fn raw_caps(&self) -> RawPacketCaps;

    /// Sets the flow rules, the RSS settings and the offloads of raw-packet queue pairs that are created later with the
    /// returned device. By default, raw-packet queue pairs receive every frame unchanged.
    #[must_use]
    fn with_raw(self, spec: RawSpec) -> Self;

    /// Creates counters for flow rules: `ibv_create_counters(3)`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not support counters.
    fn create_flow_counters(&self) -> Result<Arc<dyn FlowCounters>, VerbError>;

    /// Checks that the device supports the settings for a port with `queues` queues.
    ///
    /// # Errors
    /// The first unsupported setting with its remedy, or an invalid flow rule. With libibverbs, also the reason why the
    /// device does not support raw packets.
    fn check_raw(&self, spec: &RawSpec, queues: u16) -> Result<(), Error> {
        let can = spec.check(&self.raw_caps(), queues);
        can.map_err(|why| Error::Config(format!("{}: {why}", self.name())))
    }
}

/// The raw-packet settings of a port.
#[derive(Clone, Debug)]
pub struct RawSpec {
    /// The receive offloads.
    pub receive: RawReceive,
    /// The RSS settings for the queues of the port.
    pub rss: RssSpec,
    /// The flow rules, which select the received frames. [`FlowRule::port`] is ignored: each rule applies to the port
    /// of the queue pair.
    pub rules: Vec<FlowRule>,
    /// Maximum header length of segmented sends in bytes. 0: no segmented sends. A larger value needs more space in the
    /// send queue.
    pub max_tso_header: u16,
    /// Whether the device computes the IPv4 checksum and the TCP or UDP checksum of packets that are sent in runs. A
    /// run is a burst of packets that the caller passes as slot indices. The device does not compute the checksums of
    /// fragments, of UDP packets without a checksum, or of packets of other protocols than TCP and UDP. General send
    /// requests select checksums with their own flags.
    pub checksum: bool,
    /// The rate limit of sends, which is set when the queue pair changes to RTS. `None`: the limit stays unchanged.
    pub rate: Option<RateLimit>,
}

impl Default for RawSpec {
    /// Returns settings with which a queue pair receives every frame unchanged.
    fn default() -> Self {
        let rules = vec![FlowRule::new(FlowTraffic::ANY_HEADERS)];
        Self {
            receive: RawReceive::default(),
            rss: RssSpec::STANDARD,
            rules,
            max_tso_header: 0,
            checksum: false,
            rate: None,
        }
    }
}

impl RawSpec {
    /// Checks that a device supports the settings for a port with `queues` queues. The provider checks other settings,
    /// such as the RSS fields, when it creates the queues.
    ///
    /// # Errors
    /// The first unsupported setting.
    pub fn check(&self, caps: &RawPacketCaps, queues: u16) -> Result<(), RawError> {
        self.receive.check(caps)?;
        if self.max_tso_header != 0 && caps.max_tso == 0 {
            return Err(RawError::lacks("segmentation", "set the header length to 0"));
        }
        if self.checksum && !caps.tx_checksum {
            return Err(RawError::lacks(
                "checksums of raw packets",
                "remove \"checksum\" from `offload`, because the stages update checksums in software",
            ));
        }
        if let Some(rate) = &self.rate {
            rate.check(caps)?;
        }
        if queues == 1 {
            self.receive.check_single_queue()?;
        } else if caps.rss.is_none() {
            return Err(RawError::lacks("RSS for raw packets", "set workers = 1 in [runtime]"));
        }
        self.rules.iter().try_for_each(|rule| caps.flow.check(rule, queues))?;
        Ok(())
    }
}
