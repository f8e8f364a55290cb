//! The addresses that a stage answers for, and the MAC addresses of the answers. All stages that answer for this host
//! use this module.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use dataplane_core::header::MacAddr;
use dataplane_core::pipeline::{Problem, Setup};

/// The addresses that a stage answers for.
#[derive(Clone, Debug, Default)]
pub(super) struct Responder {
    /// Sorted IPv4 addresses, each with its port. Without a port, the address belongs to all ports.
    v4: Vec<([u8; 4], Option<u8>)>,
    /// Sorted IPv6 addresses, each with its port. Without a port, the address belongs to all ports.
    v6: Vec<([u8; 16], Option<u8>)>,
    /// Broadcast addresses of the ports' networks.
    broadcasts: Vec<[u8; 4]>,
    /// By port: the source MAC address of answers, or `None` if packets received on the port are not answered.
    macs: Vec<Option<MacAddr>>,
}

impl Responder {
    /// Reads the parameters `addresses`, `port` and `mac` of a stage. Without `addresses`, the stage answers for the
    /// addresses of the ports that satisfy `wanted`.
    pub(super) fn new(
        addresses: &[IpAddr],
        wanted: impl Fn(&IpAddr) -> bool,
        port: Option<&str>,
        mac: Option<MacAddr>,
        setup: &mut Setup<'_>,
    ) -> Result<Self, Problem> {
        if mac.is_some_and(MacAddr::is_multicast) {
            return Err(Problem::at("mac", "a multicast MAC address cannot answer").help("set a unicast MAC address"));
        }
        let only = port.map(|name| setup.port(name, "port")).transpose()?;
        let ports = setup.ports().iter().enumerate();
        let macs = ports.map(|(number, port)| {
            only.is_none_or(|only| usize::from(only) == number).then_some(mac.unwrap_or(MacAddr(port.mac)))
        });
        let mut own = Self { macs: macs.collect(), ..Self::default() };
        if addresses.is_empty() {
            for (number, port) in (0..=u8::MAX).zip(setup.ports()) {
                if own.mac(number).is_some() {
                    let of_port = port.addresses.iter().map(IpNet::addr).filter(&wanted);
                    of_port.for_each(|address| own.add(address, Some(number)));
                }
            }
            if own.v4.is_empty() && own.v6.is_empty() {
                let problem = Problem::at("addresses", "no port has an address, so the stage cannot answer");
                return Err(problem.help(
                    "set addresses = [\"192.0.2.1\"] in this stage, or addresses = [\"192.0.2.1/24\"] in a [[port]]",
                ));
            }
        }
        for (place, address) in addresses.iter().enumerate() {
            let problem = |what: &str| Problem::at(format!("addresses[{place}]"), format!("{address} {what}"));
            if !is_host(*address) {
                setup.reject(problem("is not the address of a single host"));
            } else if addresses[..place].contains(address) {
                setup.reject(problem("is listed twice"));
            }
            own.add(*address, None);
        }
        let networks = setup.ports().iter().flat_map(|port| &port.addresses);
        own.broadcasts = networks.filter_map(broadcast_addresses).flatten().map(|address| address.octets()).collect();
        own.v4.sort_unstable();
        own.v6.sort_unstable();
        own.broadcasts.sort_unstable();
        Ok(own)
    }

    fn add(&mut self, address: IpAddr, port: Option<u8>) {
        match address {
            IpAddr::V4(address) => self.v4.push((address.octets(), port)),
            IpAddr::V6(address) => self.v6.push((address.octets(), port)),
        }
    }

    /// Returns the source MAC address of answers to packets received on a port, or `None` if such packets are not
    /// answered.
    #[inline]
    pub(super) fn mac(&self, ingress: u8) -> Option<MacAddr> {
        self.macs.get(usize::from(ingress)).copied().flatten()
    }

    /// Returns whether an IPv4 address belongs to this host.
    #[inline]
    pub(super) fn has_v4(&self, address: &[u8; 4]) -> bool {
        self.v4.binary_search_by_key(address, |own| own.0).is_ok()
    }

    /// Returns whether an IPv4 address can belong to a single host. Unlike [`is_host`], this function also excludes the
    /// broadcast addresses of the ports' networks.
    #[inline]
    pub(super) fn is_host_v4(&self, address: Ipv4Addr) -> bool {
        is_host(address.into()) && self.broadcasts.binary_search(&address.octets()).is_err()
    }

    /// Returns whether an IPv6 address belongs to this host.
    #[inline]
    pub(super) fn has_v6(&self, address: &[u8; 16]) -> bool {
        self.v6.binary_search_by_key(address, |own| own.0).is_ok()
    }

    /// Returns whether an IPv4 address belongs to this host on the link of a port.
    #[inline]
    pub(super) fn is_on_v4(&self, port: u8, address: &[u8; 4]) -> bool {
        let found = self.v4.binary_search_by_key(address, |own| own.0);
        found.is_ok_and(|at| self.v4.get(at).is_some_and(|own| own.1.is_none_or(|on| on == port)))
    }

    /// Returns whether an IPv6 address belongs to this host on the link of a port.
    #[inline]
    pub(super) fn is_on_v6(&self, port: u8, address: &[u8; 16]) -> bool {
        let found = self.v6.binary_search_by_key(address, |own| own.0);
        found.is_ok_and(|at| self.v6.get(at).is_some_and(|own| own.1.is_none_or(|on| on == port)))
    }
}

/// Returns the broadcast addresses of the network of an address (RFC 1122, section 3.2.1.3). The bits of the host part
/// are all 1 in the usual form, and all 0 in the obsolete form. A network of two hosts has no broadcast address (RFC
/// 3021).
pub(super) fn broadcast_addresses(own: &IpNet) -> Option<[Ipv4Addr; 2]> {
    match own {
        IpNet::V4(own) => (own.prefix_len() < 31).then(|| [own.broadcast(), own.network()]),
        IpNet::V6(_) => None,
    }
}

/// Returns whether an address can belong to a single host: it is not multicast, unspecified, loopback or
/// 255.255.255.255.
#[inline]
pub(super) fn is_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !address.is_loopback() && !broadcast
}
