//! What the stages that answer for this host have in common: whom they answer for, and with which link address.

use std::net::IpAddr;

use crate::header::MacAddr;
use crate::pipeline::{Problem, Setup};

/// The addresses that a stage answers for.
#[derive(Clone, Debug, Default)]
pub(super) struct Responder {
    /// Sorted.
    v4: Vec<[u8; 4]>,
    /// Sorted.
    v6: Vec<[u8; 16]>,
    /// By port: the link address to answer with, if packets that came in by it are answered.
    macs: Vec<Option<MacAddr>>,
}

impl Responder {
    /// Takes the parameters `addresses`, `port` and `mac` of a stage.
    pub(super) fn new(
        addresses: &[IpAddr],
        port: Option<&str>,
        mac: Option<MacAddr>,
        setup: &mut Setup<'_>,
    ) -> Result<Self, Problem> {
        if addresses.is_empty() {
            return Err(Problem::at("addresses", "there is none to answer for").help("list at least one"));
        }
        if mac.is_some_and(MacAddr::is_multicast) {
            return Err(Problem::at("mac", "a group of stations cannot answer").help("give that of a single station"));
        }
        let only = port.map(|name| setup.port(name, "port")).transpose()?;
        let ports = setup.ports().iter().enumerate();
        let macs = ports.map(|(number, port)| {
            only.is_none_or(|only| usize::from(only) == number).then_some(mac.unwrap_or(MacAddr(port.mac)))
        });
        let mut own = Self { macs: macs.collect(), ..Self::default() };
        for (place, address) in addresses.iter().enumerate() {
            let problem = |what: &str| Problem::at(format!("addresses[{place}]"), format!("{address} {what}"));
            if !is_host(*address) {
                setup.reject(problem("is not the address of a single host"));
            } else if addresses[..place].contains(address) {
                setup.reject(problem("is listed twice"));
            }
            match address {
                IpAddr::V4(address) => own.v4.push(address.octets()),
                IpAddr::V6(address) => own.v6.push(address.octets()),
            }
        }
        own.v4.sort_unstable();
        own.v6.sort_unstable();
        Ok(own)
    }

    /// The link address to answer with what came in by a port, if it is answered.
    #[inline]
    pub(super) fn mac(&self, ingress: u8) -> Option<MacAddr> {
        self.macs.get(usize::from(ingress)).copied().flatten()
    }

    /// Whether it answers for an IPv4 address.
    #[inline]
    pub(super) fn has_v4(&self, address: &[u8; 4]) -> bool {
        self.v4.binary_search(address).is_ok()
    }

    /// Whether it answers for an IPv6 address.
    #[inline]
    pub(super) fn has_v6(&self, address: &[u8; 16]) -> bool {
        self.v6.binary_search(address).is_ok()
    }
}

/// Whether an address can be that of one host: of an answer's sender, and of its receiver.
#[inline]
pub(super) fn is_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !broadcast
}
