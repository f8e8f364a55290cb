//! `[[port]]`: the device, the queues and the link of a port.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::connection::Connection;
use super::raw::{FlowRuleConfig, Offload};
use super::types::Address;
use dataplane_core::connect::{EndpointParameters, mtu_bytes};
use dataplane_core::header::MacAddr;
use dataplane_core::units::{Bytes, bytes_within_some, within, within_some};
use dataplane_core::verbs::{Capability, RateLimit, RssSpec};
use dataplane_soft::config::{HOST, LinkConfig, MAX_HEADER, SOFT};
use dataplane_soft::{CounterSpec, FaultSpec};

/// The type of the queue pairs of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Qp {
    /// Raw packets: whole Ethernet frames.
    #[default]
    RawPacket,
    /// Unreliable datagrams with one frame each, after a global route header of 40 bytes.
    Ud,
    /// A reliable connection. Each message carries one frame.
    Rc,
    /// An unreliable connection. Each message carries one frame.
    Uc,
}

impl Qp {
    /// Returns the name used in configs and by tools.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RawPacket => "raw_packet",
            Self::Ud => "ud",
            Self::Rc => "rc",
            Self::Uc => "uc",
        }
    }
}

/// A port connects the pipeline to a device.
///
/// A port on an interface of this host:
///
/// ```toml
/// [[port]]
/// name      = "wan"
/// device    = "host"
/// link      = { kind = "xdp", interface = "eth1" }
/// mtu       = 9000
/// mac       = "02:00:00:00:00:01"
/// addresses = ["192.0.2.1/24", "2001:db8::1/64"]
/// interface = "eth1"
/// rx_depth  = 4096
/// tx_depth  = 2048
/// ```
///
/// A port on the software device, to test a pipeline:
///
/// ```toml
/// [[port]]
/// name       = "test"
/// device     = "soft"
/// qp         = "rc"
/// link       = { kind = "loopback" }
/// connection = { peer = "test", allow_self = true }
/// refuse     = ["timestamps", "inline"]
/// faults     = { loss = 0.01 }
/// clock      = { drift_ppb = 500 }
/// ```
///
/// A port on an RDMA device:
///
/// ```toml
/// [runtime]
/// workers = 2
///
/// [[port]]
/// name        = "lan"
/// device      = "mlx5_0"
/// device_port = 1
/// numa_node   = 1
/// qp          = "raw_packet"
/// promiscuous = false
/// offload     = ["checksum", "delay_drop"]
/// rss         = { key = "symmetric" }
/// rate_limit  = { rate = "1Gbps" }
/// required    = false
/// flow        = [{ match = { ipv4 = { dst = "192.0.2.1" } } }]
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// The name of the port in the config.
    pub name: String,
    /// The device: `"host"` for an interface of this host, `"soft"` for the software device, or the name of an RDMA
    /// device, such as `"mlx5_0"`. `"host"` needs a `link` of kind `packet`, `xdp` or `tap`. `"soft"` needs a `link` of
    /// kind `generator`, `pcap` or `loopback`.
    pub device: String,
    /// The number of the port on the RDMA device. The first port has the number 1.
    #[serde(default = "first_port", deserialize_with = "within::<_, u8, 1, 255>")]
    #[schemars(range(min = 1, max = 255))]
    pub device_port: u8,
    /// The preferred NUMA node for the workers and their memory. The default for an RDMA device is the node that the
    /// kernel reports. For all other devices, the default is no preference.
    #[serde(default, deserialize_with = "within_some::<_, u32, 0, 1023>", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1023))]
    pub numa_node: Option<u32>,
    /// The type of the queue pairs: `"raw_packet"` for Ethernet frames, `"ud"` for unreliable datagrams, `"rc"` for
    /// reliable connections, or `"uc"` for unreliable connections. Each datagram or message contains one frame.
    #[serde(default)]
    pub qp: Qp,
    /// The number of receive buffers that each worker posts.
    #[serde(default = "depth", deserialize_with = "within::<_, u32, 1, 32768>")]
    #[schemars(range(min = 1, max = 32768))]
    pub rx_depth: u32,
    /// The maximum number of packets of each worker that wait for a send completion.
    #[serde(default = "depth", deserialize_with = "within::<_, u32, 1, 32768>")]
    #[schemars(range(min = 1, max = 32768))]
    pub tx_depth: u32,
    /// The maximum packet length in bytes, without Ethernet header and VLAN tags. Default: the MTU of the link's
    /// interface, or of the network interface of the RDMA device for `qp = "raw_packet"`, but at most 65000. If the port
    /// has no interface in this network namespace, or if the interface's MTU is less than 68, the default is 1500. With
    /// `qp = "ud"`, a packet and its Ethernet header must fit into one datagram, whose length is the path MTU: 1024 for
    /// an interface with an MTU of 1500, and at most 4096. The default is then 1500, or the path MTU - 22 if this value
    /// is smaller. Without an Ethernet interface in this network namespace, the default is 1500, also with a smaller path
    /// MTU.
    #[serde(
        default,
        deserialize_with = "bytes_within_some::<_, u32, 68, 65000>",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Bytes", range(min = 68, max = 65000))]
    pub mtu: Option<u32>,
    /// The MAC address of the port. Default: the address of the interface of a `packet` link, of an `xdp` link or of a
    /// raw-packet port on an RDMA device. For all other ports, the default contains the index of the port in the
    /// config: 02:00:00:00:00:01 for the first port, 02:00:00:00:00:02 for the second port, and so on. Two programs
    /// that are connected by RDMA need different addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddr>,
    /// The kernel interface that represents this port for a routing daemon. For this port, stages with `source =
    /// "kernel"` use the addresses, neighbours and routes of this interface. Default: the interface of a `packet` or
    /// `xdp` link, if the port has such a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Whether the readiness of the program depends on this port. If `true`, the program is ready only while the link
    /// of this port is up and its queue pairs are connected. The page `/readyz` and the metric `dataplane_run_ready`
    /// report the readiness. Set `false` for a port whose loss does not stop the service, such as one of two uplinks.
    /// If `true` and the port has a connection, the start of a run waits for the peer of this port, and the run ends
    /// with an error if the port of the RDMA device is down at the start. If `false`, the start does not wait.
    #[serde(default = "is_required")]
    pub required: bool,
    /// The IP addresses of this host on the port, such as `"192.0.2.1/24"`. The stages `arp` and `icmp` answer requests
    /// for these addresses. The stages `icmp_error` and `neighbor` send packets from these addresses. If a stage has
    /// the key `addresses`, the stage uses only the addresses in its key. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub addresses: Vec<Address>,
    /// How the queue pairs find their peers, and the attributes of the connections. Required if `qp` is `"ud"`, `"rc"`
    /// or `"uc"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
    /// How the device distributes packets over workers.
    #[serde(default)]
    pub rss: RssSpec,
    /// Flow rules of the device, which select the frames that the port receives. Only with `qp = "raw_packet"`, and not
    /// for `xdp` links. Default: a port in `input` receives every frame, and any other port receives no frame. Not
    /// tested on hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow: Option<Vec<FlowRuleConfig>>,
    /// Whether the network interface of the RDMA device is in promiscuous mode while the port is open. Without this
    /// mode, the NIC delivers only these frames to a virtual function: frames to the MAC address of the interface,
    /// broadcast frames, and multicast frames of joined groups. A virtual function also needs `trust on`, which only the
    /// owner of its physical function can set. In switchdev mode, which a subfunction requires, the flow rules of the host
    /// select the frames instead. Only with `qp = "raw_packet"` on an RDMA device. Default: `false` if the port is not in
    /// `input`, if a `flow` rule has `frames = "all_default"` or `"multicast_default"`, or if all `flow` rules that
    /// receive frames match a destination MAC address. Otherwise, the default is `true`. Not tested on hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promiscuous: Option<bool>,
    /// Raw-packet offloads of the device. Not for `xdp` links. With `"auto"`, the program requests the offloads that
    /// the stages can use and that the device supports. `dataplane check` prints these offloads. With `"checksum"`, the
    /// device computes the IPv4, TCP and UDP checksums of sent packets. With `"vlan_strip"`, the device removes the
    /// outer VLAN tag of received frames. A `vlan` stage with `op = "restore"` can add the tag again. With `"fcs"`, the
    /// device leaves the 4-byte frame check sequence at the end of received frames, for captures. With `"delay_drop"`,
    /// a frame waits for a receive buffer instead of being dropped. `"delay_drop"` needs at least two workers. Default:
    /// `["auto"]` for RDMA devices, otherwise none. Not tested on hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Vec<Offload>>,
    /// The transmit rate limit of each worker's queue pair. The device enforces the limit. Only with `qp =
    /// "raw_packet"`, and not for `xdp` links. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    /// The link of the port. Required for the devices `"soft"` and `"host"`. The key `kind` of the link decides which
    /// other keys the link has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkConfig>,
    /// The faults that the program injects. Only for the devices `"soft"` and `"host"`, but not for `xdp` links.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultSpec>,
    /// The simulated clock. Only for the devices `"soft"` and `"host"`. Default: the system clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<CounterSpec>,
    /// The capabilities to remove from the device, to test a pipeline without these capabilities. Only for the devices
    /// `"soft"` and `"host"`. Default: none.
    #[serde(rename = "refuse", default, skip_serializing_if = "Vec::is_empty")]
    pub disabled_capabilities: Vec<Capability>,
}

impl Port {
    /// The valid range of `mtu`.
    pub(crate) const MTU: RangeInclusive<u32> = 68..=65_000;

    /// Returns the maximum packet length in bytes, without Ethernet header and VLAN tags.
    pub fn max_packet(&self) -> u32 {
        self.mtu.unwrap_or_else(|| self.default_mtu(None))
    }

    /// Returns the parameters of the port's queue pairs with this connection. `peer` is the port that the key `peer` of the
    /// connection names.
    pub(crate) fn endpoint_parameters(&self, connection: &Connection, peer: Option<&Self>) -> EndpointParameters {
        // A device reaches itself by each of its own addresses.
        let same_host = peer.is_some_and(|peer| (&peer.device, peer.device_port) != (&self.device, self.device_port));
        EndpointParameters { port: self.device_port, same_host, ..connection.parameters.clone() }
    }

    /// Returns the default of the key `mtu`. `of_interface` is the MTU of the interface of the link or of the RDMA port.
    /// For datagrams, the default is at most the path MTU without Ethernet header and VLAN tags.
    fn default_mtu(&self, of_interface: Option<u32>) -> u32 {
        if self.qp != Qp::Ud {
            return of_interface.map_or(DEFAULT_MTU, |mtu| mtu.min(*Self::MTU.end()));
        }
        // The path MTU of a device without a known interface is checked when the device is opened.
        let of_device = of_interface.filter(|_| self.is_rdma()).map_or(LARGEST_PATH_MTU, path_mtu_of_interface);
        (self.given_path_mtu().unwrap_or(of_device) - MAX_HEADER).min(DEFAULT_MTU)
    }

    /// Sets the MTU if the config does not set it. The default is the MTU of the interface of the link or of the RDMA
    /// port, but at most the maximum of the key `mtu`. If the port has no interface, or if the MTU is too small for IPv4,
    /// the default is [`DEFAULT_MTU`]. The default of datagrams is [`DEFAULT_MTU`] or the longest packet that a datagram
    /// can carry. Returns the MTU of the interface if the port uses this MTU. `of_rdma` returns the MTU of the interface
    /// of an RDMA port.
    pub(super) fn set_default_mtu(&mut self, of_rdma: impl Fn(&Self) -> Option<u32>) -> Option<u32> {
        let of_interface = || {
            let mtu = self.link.as_ref().map_or_else(|| of_rdma(self), |link| link.default_mtu());
            mtu.filter(|mtu| mtu >= Self::MTU.start())
        };
        let given = if self.mtu.is_some() { None } else { of_interface() };
        self.mtu = self.mtu.or_else(|| Some(self.default_mtu(given)));
        given.filter(|_| self.qp != Qp::Ud)
    }

    /// Returns the key `path_mtu` of the connection.
    fn given_path_mtu(&self) -> Option<u32> {
        self.connection.as_ref()?.parameters.path_mtu.map(u32::from)
    }

    /// Returns the length of the longest datagram that a device with the largest path MTU can send with this config, in
    /// bytes. `None` for ports that send no datagrams.
    pub(super) fn longest_datagram(&self) -> Option<u32> {
        (self.qp == Qp::Ud).then(|| self.given_path_mtu().unwrap_or(LARGEST_PATH_MTU))
    }

    /// Returns whether the port is on a verbs device. All other ports have a link.
    pub fn is_rdma(&self) -> bool {
        ![SOFT, HOST].contains(&self.device.as_str())
    }

    /// Returns whether the port locks packet memory: verbs devices and AF_XDP sockets do.
    pub(crate) fn locks_memory(&self) -> bool {
        self.is_rdma() || self.link.as_ref().is_some_and(|link| link.locks_memory())
    }

    /// Returns the offloads that the config lists.
    pub fn offloads(&self) -> &[Offload] {
        self.offload.as_deref().unwrap_or_default()
    }

    /// Returns whether the program requests the offloads that the stages can use.
    pub fn has_auto_offloads(&self) -> bool {
        let listed = self.offload.as_ref().map(|listed| listed.contains(&Offload::Auto));
        self.qp == Qp::RawPacket && listed.unwrap_or(self.is_rdma())
    }

    /// Returns whether the device may report information about received packets besides their length and timestamp.
    pub fn has_recv_info(&self) -> bool {
        self.qp == Qp::RawPacket && self.link.as_ref().is_none_or(|link| link.copies_frames())
    }

    /// Returns the kernel interface that represents the port, if there is one.
    pub fn kernel_interface(&self) -> Option<&str> {
        // The interface of a TAP link is the host's end of the link, so it does not represent the port.
        let link = self.link.as_ref().filter(|link| !link.is_host_end());
        self.interface.as_deref().or_else(|| link?.interface())
    }
}

fn is_required() -> bool {
    true
}

fn first_port() -> u8 {
    1
}

fn depth() -> u32 {
    1024
}

/// The MTU of a port without the key `mtu` and without a usable MTU of an interface, in bytes.
pub(super) const DEFAULT_MTU: u32 = 1500;

/// The length of an Ethernet header without VLAN tags, in bytes.
pub(crate) const ETHERNET_HEADER: u32 = 14;

/// The largest path MTU of RDMA devices, in bytes.
pub(crate) const LARGEST_PATH_MTU: u32 = mtu_bytes(5);

/// The bytes that the RoCE headers take from the MTU of an interface, as `iboe_get_mtu` in the kernel computes: the
/// headers GRH, UDP, BTH, XRC and AtomicETH, and the ICRC. Some drivers subtract less: rxe 80 bytes, and irdma nothing.
pub(crate) const ROCE_HEADERS: u32 = 96;

/// Returns the path MTU, in bytes, of a RoCE device whose network interface has the MTU `mtu`. Some drivers use a
/// larger path MTU, see [`ROCE_HEADERS`].
pub(crate) fn path_mtu_of_interface(mtu: u32) -> u32 {
    (1..=5).rev().map(mtu_bytes).find(|bytes| bytes + ROCE_HEADERS <= mtu).unwrap_or(mtu_bytes(1))
}

/// Returns the MTU that the network interface of a RoCE device needs for datagrams with packets of `mtu` bytes. `None` if
/// no path MTU is large enough.
pub(crate) fn interface_mtu_for_datagrams(mtu: u32) -> Option<u32> {
    (1..=5).map(mtu_bytes).find(|&bytes| bytes >= mtu.saturating_add(MAX_HEADER)).map(|bytes| bytes + ROCE_HEADERS)
}

#[cfg(test)]
mod tests {
    use super::super::connection::RendezvousConfig;
    use super::*;

    /// The default GID depends on whether the peer is another device port of this host.
    #[test]
    fn peer_on_another_device_port_is_on_the_same_host() {
        let on = |device: &str, number| {
            let text = format!("name = 'nic'\ndevice = '{device}'\nqp = 'rc'\ndevice_port = {number}");
            toml::from_str::<Port>(&text).unwrap()
        };
        let connection =
            Connection { rendezvous: RendezvousConfig::default(), parameters: EndpointParameters::default() };
        let own = on("mlx5_0", 2);
        let same_host = |peer: Option<&Port>| {
            let parameters = own.endpoint_parameters(&connection, peer);
            assert_eq!(parameters.port, 2);
            parameters.same_host
        };
        assert!(same_host(Some(&on("mlx5_1", 2))) && same_host(Some(&on("mlx5_0", 1))));
        assert!(!same_host(Some(&own)) && !same_host(Some(&on("mlx5_0", 2))) && !same_host(None));
    }
}
