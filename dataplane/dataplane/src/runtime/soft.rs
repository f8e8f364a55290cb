//! Builds the specification of a software device from the config of a port.

use std::collections::BTreeMap;

use crate::config::{self, ClockEventKind, PortPlan, RssField};
use dataplane_core::clock::HostClock;
use dataplane_core::error::{Error, Result};
use dataplane_core::pipeline::PortInfo;
use dataplane_core::units::Nanos;
use dataplane_soft::{
    CounterEvent, CounterSpec, FaultSpec, LinkSpec, LoopbackLink, RssFields, RssSpec, SoftDevice, SoftSpec,
};

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
    spec.mac = info.mac;
    spec.clock = clock.clone();
    if let Some(faults) = &config.faults {
        spec.faults = self::faults(faults);
    }
    if let Some(clock) = &config.clock {
        spec.timestamp_mask = u64::MAX >> (64 - clock.bits.clamp(1, 64));
        spec.wall_ahead = clock.wall_ahead.0;
        spec.counter = Some(counter(clock));
    }
    spec.disabled_capabilities = config.disabled_capabilities.to_vec();
    spec.rss = rss(&config.rss);
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

fn faults(faults: &config::Faults) -> FaultSpec {
    FaultSpec {
        seed: faults.seed,
        loss: faults.loss,
        duplicate: faults.duplicate,
        reorder: faults.reorder,
        corrupt: faults.corrupt,
        delay: faults.delay,
        delay_by: Nanos(faults.delay_by.as_nanos()),
        rx_error: faults.rx_error,
        tx_error: faults.tx_error,
        flap: faults.flap,
        ..FaultSpec::default()
    }
}

fn counter(clock: &config::Clock) -> CounterSpec {
    let event = |event: &config::ClockEvent| {
        let at = Nanos(event.at.as_nanos());
        let what = match event.kind {
            ClockEventKind::Jump => CounterEvent::Jump(event.value),
            ClockEventKind::Set => CounterEvent::Set(event.value as u64),
            ClockEventKind::Freeze => CounterEvent::Freeze,
            ClockEventKind::Resume => CounterEvent::Resume,
            ClockEventKind::Drift => CounterEvent::Drift(event.value),
            ClockEventKind::FailReads => CounterEvent::FailReads(i32::try_from(event.value).unwrap_or(libc::EIO)),
            ClockEventKind::AllowReads => CounterEvent::AllowReads,
        };
        (at, what)
    };
    let mut events: Vec<_> = clock.events.iter().map(event).collect();
    events.sort_by_key(|(at, _)| *at);
    CounterSpec {
        khz: clock.khz,
        reports_khz: clock.reports_khz,
        drift_ppb: clock.drift_ppb,
        start: clock.start,
        events,
    }
}

/// Converts the RSS settings of a port.
pub(super) fn rss(rss: &config::Rss) -> RssSpec {
    let key = match rss.key {
        config::RssKey::Default => RssSpec::STANDARD.key,
        config::RssKey::Symmetric => RssSpec::SYMMETRIC.key,
        config::RssKey::Bytes(key) => key,
    };
    let has = |field| rss.fields.contains(&field);
    let fields = RssFields {
        ipv4: has(RssField::Ipv4),
        ipv6: has(RssField::Ipv6),
        tcp: has(RssField::Tcp),
        udp: has(RssField::Udp),
    };
    RssSpec { key, fields }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::config::{Diagnostics, Source};
    use dataplane_soft::{FrameKind, GeneratorSpec, Pace, PcapSpec};

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

    #[test]
    fn every_clock_key_reaches_the_spec() {
        let port = port(
            "[port.clock]\nkhz = 7\nreports_khz = false\nbits = 48\ndrift_ppb = -9\nstart = 11\n\
             events = [{ at = '3s', kind = 'fail_reads', value = 5 }, { at = '1s', kind = 'jump', value = -4 },\
             { at = '2s', kind = 'freeze' }, { at = '4s', kind = 'resume' }, { at = '5s', kind = 'drift', value = 6 },\
             { at = '6s', kind = 'set', value = 8 }, { at = '7s', kind = 'allow_reads' }]",
        );
        let at = |seconds: u64, event| (Nanos(seconds * 1_000_000_000), event);
        let events = vec![
            at(1, CounterEvent::Jump(-4)),
            at(2, CounterEvent::Freeze),
            at(3, CounterEvent::FailReads(5)),
            at(4, CounterEvent::Resume),
            at(5, CounterEvent::Drift(6)),
            at(6, CounterEvent::Set(8)),
            at(7, CounterEvent::AllowReads),
        ];
        let expected = CounterSpec { khz: 7, reports_khz: false, drift_ppb: -9, start: 11, events };
        assert_eq!(counter(port.clock.as_ref().unwrap()), expected);
        assert_eq!(counter(&config::Clock::default()), CounterSpec::default());
    }

    /// The default of each key in a config is the default of the device.
    #[test]
    fn config_and_device_defaults_agree() {
        let (LinkSpec::Generator(frames), LinkSpec::Pcap(spec)) =
            (link("kind = 'generator'"), link("kind = 'pcap', input = 'x'"))
        else {
            panic!("expected a generator and a capture")
        };
        assert_eq!(format!("{frames:?}"), format!("{:?}", GeneratorSpec::default()));
        let usual = PcapSpec { input: Some("x".into()), ..PcapSpec::default() };
        assert_eq!(format!("{spec:?}"), format!("{usual:?}"));
        let port = port("faults = { }");
        assert!(faults(&port.faults.unwrap()).is_none());
        assert_eq!(rss(&port.rss), RssSpec::STANDARD);
    }

    #[test]
    fn every_fault_capture_and_rss_key_reaches_the_spec() {
        let port = port(
            "link = { kind = 'pcap', input = 'x', loop = 3, pace = 'file', snaplen = 99 }\n\
             rss = { key = 'symmetric', fields = ['ipv6', 'udp'] }\n\
             faults = { seed = 1, loss = 0.1, duplicate = 0.2, reorder = 0.3, corrupt = 0.4, delay = 0.5, \
             delay_by = '6us', rx_error = 0.7, tx_error = 0.8, flap = 0.9 }",
        );
        let LinkSpec::Pcap(spec) = spec_of(&port) else { panic!("expected a capture") };
        assert_eq!((spec.times, spec.pace, spec.snaplen), (Some(3), Pace::File, 99));
        let fields = RssFields { ipv4: false, ipv6: true, tcp: false, udp: true };
        assert_eq!(rss(&port.rss), RssSpec { fields, ..RssSpec::SYMMETRIC });
        let expected = FaultSpec {
            seed: 1,
            loss: 0.1,
            duplicate: 0.2,
            reorder: 0.3,
            corrupt: 0.4,
            delay: 0.5,
            delay_by: Nanos(6_000),
            rx_error: 0.7,
            tx_error: 0.8,
            flap: 0.9,
            ..FaultSpec::default()
        };
        assert_eq!(faults(&port.faults.unwrap()), expected);
    }
}
