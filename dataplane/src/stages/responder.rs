//! What the stages that answer for this host have in common: whom they answer for, and with which link address.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

use crate::header::MacAddr;
use crate::pipeline::{Problem, Setup};

/// The addresses that a stage answers for.
#[derive(Clone, Debug, Default)]
pub(super) struct Responder {
    /// Sorted, each with the port that it is on; without one it is on all.
    v4: Vec<([u8; 4], Option<u8>)>,
    /// The same.
    v6: Vec<([u8; 16], Option<u8>)>,
    /// Addresses of all hosts of the ports' networks.
    of_all: Vec<[u8; 4]>,
    /// By port: the link address to answer with, if packets that came in by it are answered.
    macs: Vec<Option<MacAddr>>,
}

impl Responder {
    /// Takes the parameters `addresses`, `port` and `mac` of a stage. Without addresses it answers for those of the ports that
    /// are of a wanted kind.
    pub(super) fn new(
        addresses: &[IpAddr],
        wanted: impl Fn(&IpAddr) -> bool,
        port: Option<&str>,
        mac: Option<MacAddr>,
        setup: &mut Setup<'_>,
    ) -> Result<Self, Problem> {
        if mac.is_some_and(MacAddr::is_multicast) {
            return Err(Problem::at("mac", "a group of stations cannot answer").help("give that of a single station"));
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
                let problem = Problem::at("addresses", "there is none to answer for");
                return Err(problem.help("list at least one, here or in a [[port]]: addresses = [\"192.0.2.1/24\"]"));
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
        own.of_all = networks.filter_map(hosts_of_all).flatten().map(|address| address.octets()).collect();
        own.v4.sort_unstable();
        own.v6.sort_unstable();
        own.of_all.sort_unstable();
        Ok(own)
    }

    fn add(&mut self, address: IpAddr, port: Option<u8>) {
        match address {
            IpAddr::V4(address) => self.v4.push((address.octets(), port)),
            IpAddr::V6(address) => self.v6.push((address.octets(), port)),
        }
    }

    /// The link address to answer with what came in by a port, if it is answered.
    #[inline]
    pub(super) fn mac(&self, ingress: u8) -> Option<MacAddr> {
        self.macs.get(usize::from(ingress)).copied().flatten()
    }

    /// Whether an IPv4 address is one of this host.
    #[inline]
    pub(super) fn has_v4(&self, address: &[u8; 4]) -> bool {
        self.v4.binary_search_by_key(address, |own| own.0).is_ok()
    }

    /// Whether an IPv4 address can be that of one other host, to be answered.
    #[inline]
    pub(super) fn may_ask_v4(&self, address: Ipv4Addr) -> bool {
        is_host(address.into()) && self.of_all.binary_search(&address.octets()).is_err()
    }

    /// Whether an IPv6 address is one of this host.
    #[inline]
    pub(super) fn has_v6(&self, address: &[u8; 16]) -> bool {
        self.v6.binary_search_by_key(address, |own| own.0).is_ok()
    }

    /// Whether an IPv4 address is one of this host on the link of a port.
    #[inline]
    pub(super) fn is_on_v4(&self, port: u8, address: &[u8; 4]) -> bool {
        let found = self.v4.binary_search_by_key(address, |own| own.0);
        found.is_ok_and(|at| self.v4.get(at).is_some_and(|own| own.1.is_none_or(|on| on == port)))
    }

    /// Whether an IPv6 address is one of this host on the link of a port.
    #[inline]
    pub(super) fn is_on_v6(&self, port: u8, address: &[u8; 16]) -> bool {
        let found = self.v6.binary_search_by_key(address, |own| own.0);
        found.is_ok_and(|at| self.v6.get(at).is_some_and(|own| own.1.is_none_or(|on| on == port)))
    }
}

/// The addresses that mean all hosts of the network of an address (RFC 1122, section 3.2.1.3): with the host's part all
/// ones, and, as once was said, all zeros. A network of two hosts has none (RFC 3021).
pub(super) fn hosts_of_all(own: &IpNet) -> Option<[Ipv4Addr; 2]> {
    match own {
        IpNet::V4(own) => (own.prefix_len() < 31).then(|| [own.broadcast(), own.network()]),
        IpNet::V6(_) => None,
    }
}

/// Whether an address can be that of one host: of an answer's sender, and of its receiver.
#[inline]
pub(super) fn is_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !address.is_loopback() && !broadcast
}
