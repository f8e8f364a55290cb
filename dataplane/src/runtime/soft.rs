//! The software device behind a port: what a config says of it becomes what the device is made from.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::clock::HostClock;
use crate::config::{self, ClockEventKind, FrameStamps, Link, PortPlan, RssField};
use crate::error::{Error, Result};
use crate::pipeline::PortInfo;
use crate::provider::Capability;
use crate::provider::soft::{
    BusyPoll, Copying, CounterEvent, CounterSpec, FaultSpec, Filter, FrameKind, GeneratorSpec, LinkSpec, LoopbackLink,
    Mode, Pace, PacketSpec, PcapSpec, RssFields, RssSpec, Selector, SoftDevice, SoftSpec, TapSpec, XdpSpec,
};
use crate::units::Nanos;

/// What the device counted.
pub(super) fn counters(device: &SoftDevice) -> BTreeMap<String, u64> {
    device.counters().named().filter(|(_, value)| *value > 0).map(|(name, value)| (name.into(), value)).collect()
}

/// What its wire is, where the kind of the link does not say all.
pub(super) fn detail(device: &SoftDevice) -> Option<String> {
    device.describe_link()
}

/// What went wrong with its input or output.
pub(super) fn finish(device: &SoftDevice) -> Vec<Error> {
    // What went wrong on the way first. An output that failed by then says so again when it is finished.
    let mut errors: Vec<Error> = device.wire_error().into_iter().chain(device.finish().err()).collect();
    errors.dedup_by_key(|error| error.to_string());
    errors
}

/// What the device of a port is made from. `stamped`: what comes in is to be stamped by the wall clock.
///
/// # Errors
/// A folder for its output cannot be made.
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
    let link = match &config.link {
        Some(Link::Generator(link)) => LinkSpec::Generator(generator(link)),
        Some(Link::Pcap(link)) => LinkSpec::Pcap(pcap(link)?),
        Some(Link::Packet(link)) => LinkSpec::Packet(PacketSpec {
            interface: link.interface.clone(),
            ring: link.ring,
            promiscuous: link.promiscuous,
            qdisc_bypass: link.qdisc_bypass,
            outgoing: link.outgoing,
            hardware_stamps: link.stamps == FrameStamps::Hardware,
        }),
        Some(Link::Tap(link)) => LinkSpec::Tap(TapSpec {
            name: link.name.clone(),
            mac: link.mac.map(|mac| mac.0),
            mtu: link.mtu,
            up: link.up,
            persistent: link.persistent,
        }),
        Some(Link::Xdp(link)) => LinkSpec::Xdp(xdp(link, workers)),
        Some(Link::Loopback(_)) | None => LinkSpec::Loopback(cable(index, port.peer.unwrap_or(index), cables)),
    };
    let mut spec = SoftSpec::new(&info.name, link);
    spec.mtu = config.mtu;
    spec.mac = info.mac;
    spec.clock = clock.clone();
    if let Some(faults) = &config.faults {
        spec.faults = self::faults(faults);
    }
    if let Some(clock) = &config.clock {
        spec.timestamp_mask = u64::MAX >> (64 - clock.bits.clamp(1, 64));
        spec.wall_ahead = clock.wall_ahead;
        spec.counter = Some(counter(clock));
    }
    spec.refuse = config.refuse.iter().map(|capability| refused(*capability)).collect();
    spec.rss = rss(&config.rss);
    spec.stamped = stamped;
    Ok(spec)
}

/// The end of the cable between two ports that the first of them to come has made.
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

fn pcap(link: &config::Pcap) -> Result<PcapSpec> {
    if let Some(folder) = link.output.as_deref().and_then(Path::parent) {
        fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.to_owned(), source })?;
    }
    Ok(PcapSpec {
        input: link.input.clone(),
        output: link.output.clone(),
        times: match link.repeat {
            config::Repeat::Times(times) => Some(times),
            config::Repeat::Forever => None,
        },
        pace: match link.pace {
            config::Pace::Fast => Pace::Fast,
            config::Pace::File => Pace::File,
        },
        snaplen: link.snaplen,
    })
}

fn xdp(link: &config::Xdp, workers: usize) -> XdpSpec {
    let selectors = |list: &[config::XdpSelect]| {
        let selector = |it: &config::XdpSelect| Selector {
            ether_type: it.ether_type,
            vlan: it.vlan,
            protocol: it.protocol,
            port: it.port,
            prefix: it.prefix,
        };
        list.iter().map(selector).collect()
    };
    XdpSpec {
        interface: link.interface.clone(),
        mode: match link.mode {
            config::XdpMode::Auto => Mode::Auto,
            config::XdpMode::Native => Mode::Native,
            config::XdpMode::Generic => Mode::Generic,
        },
        copying: match link.copy {
            config::XdpCopy::Auto => Copying::Auto,
            config::XdpCopy::Zero => Copying::Zero,
            config::XdpCopy::Copy => Copying::Copy,
        },
        filter: Filter { take: selectors(&link.filter), except: selectors(&link.except) },
        promiscuous: link.promiscuous,
        hardware_stamps: link.stamps == FrameStamps::Hardware,
        busy_poll: link.busy_poll.map(|busy| BusyPoll { micros: busy.micros, budget: busy.budget }),
        queues: u16::try_from(workers).unwrap_or(u16::MAX),
    }
}

fn faults(faults: &config::Faults) -> FaultSpec {
    FaultSpec {
        seed: faults.seed,
        loss: faults.loss,
        duplicate: faults.duplicate,
        reorder: faults.reorder,
        corrupt: faults.corrupt,
        delay: faults.delay,
        // A config's time is a number of nanoseconds in 64 bits.
        delay_by: Nanos(u64::try_from(faults.delay_by.0.as_nanos()).unwrap_or(u64::MAX)),
        rx_error: faults.rx_error,
        tx_error: faults.tx_error,
        flap: faults.flap,
        ..FaultSpec::default()
    }
}

fn counter(clock: &config::Clock) -> CounterSpec {
    let event = |event: &config::ClockEvent| {
        // A config's time is a number of nanoseconds in 64 bits.
        let at = Nanos(u64::try_from(event.at.0.as_nanos()).unwrap_or(u64::MAX));
        let what = match event.kind {
            ClockEventKind::Jump => CounterEvent::Jump(event.value),
            ClockEventKind::Set => CounterEvent::Set(event.value as u64),
            ClockEventKind::Freeze => CounterEvent::Freeze,
            ClockEventKind::Resume => CounterEvent::Resume,
            ClockEventKind::Drift => CounterEvent::Drift(event.value),
            ClockEventKind::Mute => CounterEvent::Mute(i32::try_from(event.value).unwrap_or(libc::EIO)),
            ClockEventKind::Speak => CounterEvent::Speak,
        };
        (at, what)
    };
    let mut events: Vec<_> = clock.events.iter().map(event).collect();
    events.sort_by_key(|(at, _)| *at);
    CounterSpec { khz: clock.khz, says_khz: clock.says_khz, drift_ppb: clock.drift_ppb, start: clock.start, events }
}

fn refused(capability: config::Capability) -> Capability {
    match capability {
        config::Capability::RawPacket => Capability::RawPacket,
        config::Capability::Datagram => Capability::Datagram,
        config::Capability::Rc => Capability::Rc,
        config::Capability::Uc => Capability::Uc,
        config::Capability::Srq => Capability::Srq,
        config::Capability::MemoryWindow => Capability::MemoryWindow,
        config::Capability::Atomic => Capability::Atomic,
        config::Capability::Multicast => Capability::Multicast,
        config::Capability::Events => Capability::Events,
        config::Capability::ExtendedCq => Capability::ExtendedCq,
        config::Capability::Timestamps => Capability::Timestamps,
        config::Capability::WallclockTimestamps => Capability::WallclockTimestamps,
        config::Capability::SingleThreaded => Capability::SingleThreaded,
        config::Capability::IgnoreOverrun => Capability::IgnoreOverrun,
        config::Capability::Inline => Capability::Inline,
        config::Capability::Rss => Capability::Rss,
        config::Capability::FlowTag => Capability::FlowTag,
        config::Capability::Cvlan => Capability::Cvlan,
        config::Capability::TagMatching => Capability::TagMatching,
        config::Capability::ExtendedSend => Capability::ExtendedSend,
    }
}

/// How a port spreads packets.
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

fn generator(link: &config::Generator) -> GeneratorSpec {
    GeneratorSpec {
        sizes: link.mix().iter().map(|entry| (entry.size, entry.weight)).collect(),
        flows: link.flows,
        kind: match link.protocol {
            config::Protocol::Udp4 => FrameKind::Udp4,
            config::Protocol::Tcp4 => FrameKind::Tcp4,
            config::Protocol::Udp6 => FrameKind::Udp6,
        },
        vlan: link.vlan,
        src_mac: link.src_mac.0,
        dst_mac: link.dst_mac.0,
        src_ip: link.src_ip,
        dst_ip: link.dst_ip,
        src_port: link.src_port,
        dst_port: link.dst_port,
        seed: link.seed,
        count: link.count,
        rate: link.rate,
        copy: link.copy,
        copy_out: link.copy_out,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Deserialize;

    use super::*;
    use crate::config::{Diagnostics, Source};

    /// The port of a config that has this one alone.
    fn port(keys: &str) -> config::Port {
        let text = format!("[[port]]\nname = \"p\"\ndevice = \"soft\"\n{keys}\n");
        let source = Source::new("x.toml", &text, &[]);
        let mut diagnostics = Diagnostics::new(&source);
        let loaded = config::load(&source, &mut diagnostics);
        assert!(!diagnostics.has_errors(), "{}", diagnostics.render(false));
        loaded.ports().next().unwrap().clone()
    }

    fn link(keys: &str) -> Link {
        port(&format!("link = {{ {keys} }}")).link.unwrap()
    }

    #[test]
    fn capabilities_keep_their_names() {
        let mut names = BTreeSet::new();
        for capability in Capability::ALL {
            let name = toml::Value::String(capability.name().to_owned());
            assert_eq!(refused(config::Capability::deserialize(name).unwrap()), capability);
            names.insert(capability.name());
        }
        assert_eq!(names.len(), Capability::ALL.len());
    }

    #[test]
    fn every_key_of_a_generator_arrives() {
        let Link::Generator(link) = link(
            "kind = 'generator', sizes = [{ size = 90 }, { size = 65000, weight = 9 }], flows = 3, rate = 5, count = 7, \
             protocol = 'udp6', copy = false, copy_out = true, src_mac = '02:00:00:00:00:0a', dst_mac = '02:00:00:00:00:0b', \
             src_ip = 'fd00::1', dst_ip = 'fd00::2', src_port = 11, dst_port = 12, vlan = 13, seed = 14",
        ) else {
            panic!("a generator")
        };
        let spec = generator(&link);
        assert_eq!((&spec.sizes[..], spec.flows, spec.kind), (&[(90, 1), (65_000, 9)][..], 3, FrameKind::Udp6));
        assert_eq!((spec.rate, spec.count, spec.copy, spec.copy_out), (Some(5), Some(7), false, true));
        assert_eq!((spec.src_mac, spec.dst_mac), ([2, 0, 0, 0, 0, 10], [2, 0, 0, 0, 0, 11]));
        assert_eq!((spec.src_ip, spec.dst_ip), ("fd00::1".parse().ok(), "fd00::2".parse().ok()));
        assert_eq!((spec.src_port, spec.dst_port, spec.vlan, spec.seed), (11, 12, Some(13), 14));
    }

    #[test]
    fn every_key_of_a_clock_arrives() {
        let port = port(
            "[port.clock]\nkhz = 7\nsays_khz = false\nbits = 48\ndrift_ppb = -9\nstart = 11\n\
             events = [{ at = '3s', kind = 'mute', value = 5 }, { at = '1s', kind = 'jump', value = -4 },\
             { at = '2s', kind = 'freeze' }, { at = '4s', kind = 'resume' }, { at = '5s', kind = 'drift', value = 6 },\
             { at = '6s', kind = 'set', value = 8 }, { at = '7s', kind = 'speak' }]",
        );
        let at = |seconds: u64, event| (Nanos(seconds * 1_000_000_000), event);
        let events = vec![
            at(1, CounterEvent::Jump(-4)),
            at(2, CounterEvent::Freeze),
            at(3, CounterEvent::Mute(5)),
            at(4, CounterEvent::Resume),
            at(5, CounterEvent::Drift(6)),
            at(6, CounterEvent::Set(8)),
            at(7, CounterEvent::Speak),
        ];
        let expected = CounterSpec { khz: 7, says_khz: false, drift_ppb: -9, start: 11, events };
        assert_eq!(counter(port.clock.as_ref().unwrap()), expected);
        assert_eq!(counter(&config::Clock::default()), CounterSpec::default());
    }

    /// What a config leaves out is what the device has by itself.
    #[test]
    fn defaults_agree() {
        let (Link::Generator(link), Link::Pcap(files)) =
            (link("kind = 'generator'"), link("kind = 'pcap', input = 'x'"))
        else {
            panic!("a generator and a capture")
        };
        assert_eq!(format!("{:?}", generator(&link)), format!("{:?}", GeneratorSpec::default()));
        let spec = pcap(&files).unwrap();
        let usual = PcapSpec { input: Some("x".into()), ..PcapSpec::default() };
        assert_eq!(format!("{spec:?}"), format!("{usual:?}"));
        let port = port("faults = { }");
        assert!(faults(&port.faults.unwrap()).is_none());
        assert_eq!(rss(&port.rss), RssSpec::STANDARD);
    }

    #[test]
    fn every_key_of_faults_captures_and_rss_arrives() {
        let port = port(
            "link = { kind = 'pcap', input = 'x', loop = 3, pace = 'file', snaplen = 99 }\n\
             rss = { key = 'symmetric', fields = ['ipv6', 'udp'] }\n\
             faults = { seed = 1, loss = 0.1, duplicate = 0.2, reorder = 0.3, corrupt = 0.4, delay = 0.5, \
             delay_by = '6us', rx_error = 0.7, tx_error = 0.8, flap = 0.9 }",
        );
        let Some(Link::Pcap(files)) = &port.link else { panic!("a capture") };
        let spec = pcap(files).unwrap();
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
