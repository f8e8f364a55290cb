//! Tests of the clocks that timestamp packets, and of their names in the report.

use std::collections::BTreeMap;

use dataplane::clock::{ClockSource, ClockState};
use dataplane::telemetry::Report;
use dataplane_testing::config::Config;

use crate::common::{Folder, assert_good};

const COUNT: u64 = 20_000;

/// Runs a config with a generator port for each entry of `ports` (the name and the keys of the port). The first port
/// receives packets, and the port `back` sends these packets.
fn run(timestamps: &str, ports: &[(&str, &str)], back: &str) -> Report {
    let link = format!("kind = 'generator', count = {COUNT}");
    let config = Config::new().runtime(&format!("timestamps = '{timestamps}'"));
    let config = ports.iter().fold(config, |config, (name, keys)| config.port_with(name, &link, keys));
    let report = Folder::new().run(&config.stage("tx", &format!("port = '{back}'")).to_string());
    assert_good(&report);
    report
}

/// Checks that the latency of all packets was measured with this clock.
fn assert_timed_by(source: ClockSource, report: &Report) {
    let latency = &report.latency_ns;
    assert_eq!((latency.source, latency.count, latency.unmeasured), (source, COUNT, 0), "{report}");
    assert_eq!(latency.by_source, BTreeMap::from([(source, COUNT)]));
    assert_eq!(report.ports[0].stamps.keys().collect::<Vec<_>>(), [&source], "{report}");
    assert!(latency.max < 60_000_000_000 && latency.p50 > 0, "{report}");
}

#[test]
fn device_ticks_are_synchronized() {
    for (bits, drift) in [(24, 90_000), (48, -90_000), (64, 0)] {
        let clock = format!("clock = {{ khz = 156250, bits = {bits}, drift_ppb = {drift}, start = 16777000 }}");
        let report = run("device", &[("a", &clock)], "a");
        if bits > 24 {
            assert_timed_by(ClockSource::DeviceTicks, &report);
        } else {
            // This counter wraps in a tenth of a second. If the worker is paused for at least that long, timestamps are
            // ambiguous.
            let latency = &report.latency_ns;
            assert_eq!(latency.count + latency.unmeasured, COUNT, "{report}");
            assert!(report.ports[0].stamps[&ClockSource::DeviceTicks] > 0, "{report}");
        }
        let [clock] = &report.ports[0].clocks[..] else { panic!("{report}") };
        assert_eq!(clock.source, ClockSource::DeviceTicks);
        assert!(clock.state != ClockState::Invalid && clock.steps > 0, "{report}");
        assert!(report.to_string().contains("clock device_ticks: "), "{report}");
    }
}

#[test]
fn unusable_device_clock_falls_back_to_software_timestamps() {
    for (keys, why) in [
        ("clock = { reports_khz = false }", "the device does not report its frequency"),
        ("clock = { bits = 8 }", "the counter wraps in less than 8 us"),
        ("clock = { events = [{ at = '0s', kind = 'fail_reads', value = 95 }] }", "ibv_query_rt_values_ex failed"),
    ] {
        let report = run("device", &[("a", keys)], "a");
        assert_timed_by(ClockSource::Software, &report);
        let [clock] = &report.ports[0].clocks[..] else { panic!("{report}") };
        assert_eq!(clock.state, ClockState::Invalid);
        assert!(clock.fault.as_ref().is_some_and(|fault| fault.contains(why)), "{clock}");
    }
}

#[test]
fn packets_without_a_device_clock_get_software_timestamps() {
    for (timestamps, keys) in [("device", "refuse = ['timestamps']"), ("software", ""), ("device", "")] {
        let report = run(timestamps, &[("a", keys)], "a");
        assert_timed_by(ClockSource::Software, &report);
        assert!(report.ports[0].clocks.is_empty(), "{report}");
    }
    let report = run("none", &[("a", "")], "a");
    assert_eq!((report.latency_ns.source, report.latency_ns.count), (ClockSource::None, 0));
    assert!(report.ports[0].stamps.is_empty());
}

#[test]
fn device_wall_clock_is_converted_to_the_system_clock() {
    const AHEAD: i64 = 37_000_000_000;
    for (ahead, offset) in [(0, 0), (AHEAD, -AHEAD)] {
        let keys = format!("clock = {{ wall_ahead = '{ahead}ns' }}");
        let report = run("wallclock", &[("a", &keys)], "a");
        assert_timed_by(ClockSource::DeviceWallclock, &report);
        let clock = report.ports[0].clocks.iter().find(|clock| clock.source == ClockSource::DeviceWallclock).unwrap();
        assert!((clock.offset_ns - offset).abs() < 1_000_000_000, "{clock}");
    }
    let refused = "clock = { khz = 156250 }\nrefuse = ['wallclock_timestamps']";
    assert_timed_by(ClockSource::DeviceTicks, &run("wallclock", &[("a", refused)], "a"));
}

/// The latency of a packet is known only if its two timestamps are from the same kind of source. Here, the port `a` has
/// timestamps from a device counter, and the port `b` has software timestamps.
#[test]
fn latency_between_timestamps_of_different_sources_is_not_measured() {
    let ports = [("a", "clock = { khz = 156250 }"), ("b", "refuse = ['timestamps']")];
    let report = run("device", &ports, "b");
    assert_eq!((report.latency_ns.source, report.latency_ns.count), (ClockSource::None, 0), "{report}");
    assert_eq!(report.latency_ns.unmeasured, COUNT);
    // Here, both ports have timestamps from device counters. Both counters are synchronized with the system clock, so
    // the latency is known.
    let ports = [("a", "clock = { khz = 156250 }"), ("b", "clock = { khz = 322265, bits = 48 }")];
    let report = run("device", &ports, "b");
    assert_timed_by(ClockSource::DeviceTicks, &report);
}
