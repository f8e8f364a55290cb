//! Builds the specification of a software device from the config of a port.

use std::collections::BTreeMap;

use crate::config::{LARGEST_PATH_MTU, PortPlan, Qp};
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::pipeline::PortInfo;
use dataplane_soft::{LinkSpec, LoopbackLink, SoftDevice, SoftSpec};

/// Returns the counters of the device that are not 0.
pub(super) fn counters(device: &SoftDevice) -> BTreeMap<String, u64> {
    device.counters().named().filter(|(_, value)| *value > 0).map(|(name, value)| (name.into(), value)).collect()
}

/// Returns the names of all counters of the device.
pub(super) fn counter_names(device: &SoftDevice) -> Vec<&'static str> {
    device.counters().named().map(|(name, _)| name).collect()
}

/// Returns details of the link beyond its kind, if there are any.
pub(super) fn detail(device: &SoftDevice) -> Option<String> {
    device.describe_link()
}

/// Returns the errors of the link, such as a damaged input file or a full disk.
pub(super) fn finish(device: &SoftDevice) -> Vec<Error> {
    // The errors during the run come first. If an output failed during the run, `finish` returns the same error again,
    // so remove the duplicate.
    let mut errors: Vec<Error> = device.wire_error().into_iter().chain(device.finish().err()).collect();
    errors.dedup_by_key(|error| error.to_string());
    errors
}

/// Returns the specification of the device of a port. With `stamped`, received packets get wall-clock timestamps.
///
/// # Errors
/// Returns an error if the folder of an output file cannot be created.
pub(super) fn spec(
    index: usize,
    port: &PortPlan,
    info: &PortInfo,
    workers: usize,
    stamped: bool,
    clock: &HostClock,
    cables: &mut BTreeMap<usize, LoopbackLink>,
) -> Result<SoftSpec> {
    let config = &port.config;
    let workers = u16::try_from(workers).unwrap_or(u16::MAX);
    let mut cable = || self::cable(index, port.peer.unwrap_or(index), cables);
    let link = match &config.link {
        Some(link) => link.spec(workers, &mut cable)?,
        None => LinkSpec::Loopback(cable()),
    };
    let mut spec = SoftSpec::new(&info.name, link);
    spec.mtu = config.max_packet();
    if config.qp == Qp::Ud {
        // A datagram must fit into the path MTU. The path MTU of the device depends on its MTU.
        spec.mtu = spec.mtu.max(LARGEST_PATH_MTU);
    }
    spec.mac = info.mac;
    spec.clock = clock.clone();
    spec.counter = config.clock.clone();
    spec.faults = config.faults.unwrap_or_default();
    spec.disabled_capabilities = config.disabled_capabilities.to_vec();
    spec.rss = config.rss.clone();
    spec.stamped = stamped;
    Ok(spec)
}

/// Returns one end of the cable between two loopback ports. The first call for the two ports creates the cable, and
/// stores the other end in `cables`.
fn cable(index: usize, peer: usize, cables: &mut BTreeMap<usize, LoopbackLink>) -> LoopbackLink {
    if index == peer {
        return LoopbackLink::reflect();
    }
    cables.remove(&index).unwrap_or_else(|| {
        let (mine, other) = LoopbackLink::pair();
        cables.insert(peer, other);
        mine
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{self, Diagnostics, Source};
    use dataplane_core::units::{Offset, Period};
    use dataplane_soft::{
        CounterEvent, CounterEventKind, CounterSpec, FaultSpec, FrameKind, GeneratorSpec, Pace, PcapSpec, RssFields,
        RssSpec,
    };

    /// Reads a config that has one port with the given keys.
    fn port(keys: &str) -> config::Port {
        let text = format!("[[port]]\nname = \"p\"\ndevice = \"soft\"\n{keys}\n");
        let source = Source::new("x.toml", &text, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let loaded = config::load(&source, &mut diagnostics);
        assert!(!diagnostics.has_errors(), "{}", diagnostics.render(false));
        loaded.ports().next().unwrap().clone()
    }

    /// Returns the link specification for a link with the given keys in a config.
    fn link(keys: &str) -> LinkSpec {
        spec_of(&port(&format!("link = {{ {keys} }}")))
    }

    fn spec_of(port: &config::Port) -> LinkSpec {
        port.link.as_ref().unwrap().spec(1, &mut LoopbackLink::reflect).unwrap()
    }

    #[test]
    fn every_generator_key_reaches_the_spec() {
        let LinkSpec::Generator(spec) = link(
            "kind = 'generator', sizes = [{ size = 90 }, { size = 65000, weight = 9 }], flows = 3, rate = 5, count = 7, \
             protocol = 'udp6', copy = false, copy_out = true, src_mac = '02:00:00:00:00:0a', dst_mac = '02:00:00:00:00:0b', \
             src_ip = 'fd00::1', dst_ip = 'fd00::2', src_port = 11, dst_port = 12, vlan = 13, seed = 14",
        ) else {
            panic!("expected a generator")
        };
        assert_eq!((&spec.sizes[..], spec.flows, spec.kind), (&[(90, 1), (65_000, 9)][..], 3, FrameKind::Udp6));
        assert_eq!((spec.rate, spec.count, spec.rewrite, spec.copy_out), (Some(5), Some(7), false, true));
        assert_eq!((spec.src_mac, spec.dst_mac), ([2, 0, 0, 0, 0, 10], [2, 0, 0, 0, 0, 11]));
        assert_eq!((spec.src_ip, spec.dst_ip), ("fd00::1".parse().ok(), "fd00::2".parse().ok()));
        assert_eq!((spec.src_port, spec.dst_port, spec.vlan, spec.seed), (11, 12, Some(13), 14));
    }

    /// The default of each key of a link in a config is the default of the link.
    #[test]
    fn config_and_link_defaults_agree() {
        let (LinkSpec::Generator(frames), LinkSpec::Pcap(spec)) =
            (link("kind = 'generator'"), link("kind = 'pcap', input = 'x'"))
        else {
            panic!("expected a generator and a capture")
        };
        assert_eq!(format!("{frames:?}"), format!("{:?}", GeneratorSpec::default()));
        let usual = PcapSpec { input: Some("x".into()), ..PcapSpec::default() };
        assert_eq!(format!("{spec:?}"), format!("{usual:?}"));
    }

    #[test]
    fn every_capture_key_reaches_the_spec() {
        let LinkSpec::Pcap(spec) = link("kind = 'pcap', input = 'x', loop = 3, pace = 'file', snaplen = 99") else {
            panic!("expected a capture")
        };
        assert_eq!((spec.times, spec.pace, spec.snaplen), (Some(3), Pace::File, 99));
    }

    #[test]
    fn keys_of_clock_faults_and_rss_reach_the_spec() {
        let port = port(
            "link = { kind = 'loopback' }\nrss = { key = 'symmetric', fields = ['ipv6', 'udp'] }\n\
             faults = { seed = 1, loss = 0.1, duplicate = 0.2, reorder = 0.3, corrupt = 0.4, delay = 0.5, \
             delay_by = '6us', rx_error = 0.7, tx_error = 0.8, flap = 0.9, removal = 1.0 }\n\
             [port.clock]\nkhz = 7\nreports_khz = false\nbits = 48\ndrift_ppb = -9\nstart = 11\n\
             wall_ahead = '-5ms'\nevents = [{ at = '3s', kind = 'fail_reads', value = 5 }, { at = '1s', kind = 'freeze' }]",
        );
        let (node, peer, requests, verifiers) = (None, None, Vec::new(), Vec::new());
        let (config, span, input, has_default_mtu) = (port, 0..0, true, false);
        let plan = PortPlan { config, span, input, has_default_mtu, node, peer, requests, verifiers };
        let info = PortInfo { name: "p".into(), mac: [2; 6], mtu: 1500, interface: None, addresses: Vec::new() };
        let spec = spec(0, &plan, &info, 1, false, &HostClock::new(), &mut BTreeMap::new()).unwrap();
        let fields = RssFields { ipv6: true, udp: true, ..RssFields::NONE };
        assert_eq!(spec.rss, RssSpec { fields, ..RssSpec::SYMMETRIC });
        let expected = FaultSpec {
            seed: 1,
            loss: 0.1,
            duplicate: 0.2,
            reorder: 0.3,
            corrupt: 0.4,
            delay: 0.5,
            delay_by: Period(Duration::from_micros(6)),
            rx_error: 0.7,
            tx_error: 0.8,
            flap: 0.9,
            removal: 1.0,
            ..FaultSpec::default()
        };
        assert_eq!(spec.faults, expected);
        let event = |seconds, kind, value| CounterEvent { at: Period::from_secs(seconds), kind, value };
        let expected = CounterSpec {
            khz: 7,
            reports_khz: false,
            bits: 48,
            drift_ppb: -9,
            start: 11,
            wall_ahead: Offset(-5_000_000),
            events: vec![event(3, CounterEventKind::FailReads, 5), event(1, CounterEventKind::Freeze, 0)],
        };
        assert_eq!(spec.counter, Some(expected));
    }
}
